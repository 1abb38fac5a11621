//! What the service keeps in memory, at rest and while a stream passes.

use std::{thread::sleep, time::Duration};

use anyhow::Result;

use crate::{machine, measure::Bench, service::Service, targets::Seat};

/// A slow reader takes nothing at first, then a little at a time, and then all the rest.
const READER_ASLEEP: Duration = Duration::from_secs(1);
const READER_PAUSE: Duration = Duration::from_millis(2);
const READER_SLOW_BYTES: usize = 24 << 20;

/// Connections that share the idle sessions.
const CONNECTIONS: usize = 4;

impl Bench {
    /// What the service keeps in memory. A fresh one each time, because freed memory stays with a process.
    pub fn memory(&mut self) -> Result<()> {
        let service = Service::start(&self.targets.programs)?;
        let pid = service.pid();
        let mut seats = Vec::new();
        for _ in 0..CONNECTIONS {
            seats.push(Seat::take(service.bridge("shared")?, &service)?);
        }
        let before = machine::resident(pid)?;
        self.rows.idle.value(before / 1024.0);
        let each = self.amount.idle_sessions / CONNECTIONS;
        for seat in &mut seats {
            for _ in 0..each {
                seat.editor.new_session(&service.work())?;
            }
        }
        let after = machine::resident(pid)?;
        self.rows.session.value((after - before) / (each * CONNECTIONS) as f64);
        for seat in seats {
            seat.editor.end()?;
        }
        service.stop()?;

        let fast = self.streaming_memory(|_| {})?;
        self.rows.fast_reader.value(fast);
        let slow = self.streaming_memory(|read| {
            if read == 0 {
                sleep(READER_ASLEEP);
            } else if read < READER_SLOW_BYTES {
                sleep(READER_PAUSE);
            }
        })?;
        self.rows.slow_reader.value(slow);
        Ok(())
    }

    /// The most memory above idle, in MiB, while a stream passes.
    fn streaming_memory(&mut self, pause: impl FnMut(usize)) -> Result<f64> {
        let service = Service::start(&self.targets.programs)?;
        let mut seat = Seat::take(service.bridge("stub")?, &service)?;
        seat.editor.turn(&seat.session, "n=1 size=64", 2)?;
        let pid = service.pid();
        machine::forget_peak(pid)?;
        let before = machine::resident(pid)?;
        let frames = self.amount.stream;
        seat.editor.turn_slowly(&seat.session, &format!("n={frames} size=2048"), frames + 1, pause)?;
        let above = machine::peak(pid)? - before;
        seat.editor.end()?;
        service.stop()?;
        Ok(above / 1024.0)
    }
}
