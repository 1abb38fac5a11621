//! The measurements. Each round takes every one of them once, of all targets in turn.

use std::{path::PathBuf, time::Duration};

use anyhow::{Result, ensure};
use tempfile::TempDir;

use crate::{
    contained, decisions, instructions, journal,
    lasting::Lasting,
    machine::Machine,
    parts::Part,
    recording::Recording,
    report::Row,
    rows::Rows,
    targets::{Each, Seat, Target, Targets},
};

/// How much of everything one round does.
#[derive(Debug, Clone, Copy)]
pub struct Amount {
    pub round_trips: usize,
    pub decisions: usize,
    pub stream: usize,
    /// Streams of one round, of which the median counts.
    pub streams: usize,
    pub paced: usize,
    pub starts: usize,
    pub slow_starts: usize,
    pub idle_sessions: usize,
    /// Connections and bridges that come back at once.
    pub links: usize,
    pub bridges: usize,
    pub journal: journal::Amount,
    /// Frames carried into each database.
    pub shipped: usize,
}

impl Amount {
    pub const FULL: Self = Self {
        round_trips: 2000,
        decisions: 24_000,
        stream: 100_000,
        streams: 3,
        paced: 500,
        starts: 20,
        slow_starts: 3,
        idle_sessions: 200,
        links: 1000,
        bridges: 100,
        journal: journal::Amount { frames: 1_000_000, effects: 300 },
        shipped: 200_000,
    };
    pub const QUICK: Self = Self {
        round_trips: 500,
        decisions: 6_000,
        stream: 20_000,
        streams: 3,
        paced: 100,
        starts: 5,
        slow_starts: 1,
        idle_sessions: 200,
        links: 1000,
        bridges: 50,
        journal: journal::Amount { frames: 300_000, effects: 100 },
        shipped: 60_000,
    };
}

/// Frames per second of the paced stream.
pub const PACE: usize = 500;

/// Everything that is measured round by round.
pub struct Bench {
    pub amount: Amount,
    pub targets: Targets,
    seats: Each<Seat>,
    /// On the disk that the services have their journals on.
    pub dir: TempDir,
    recording: Recording,
    lasting: Lasting,
    pub machine: Machine,
    pub rows: Rows,
}

impl Bench {
    pub fn start(targets: Targets, other: Option<PathBuf>, amount: Amount, machine: Machine) -> Result<Self> {
        let mut seats = Each::new();
        for target in Target::ALL.into_iter().filter(|target| targets.has(*target)) {
            seats.set(target, targets.take(target)?);
        }
        let dir = TempDir::with_prefix("conductor-bench-disk-")?;
        let recording = Recording::new(targets.programs.clone(), other)?;
        let lasting = Lasting::new(targets.programs.clone())?;
        Ok(Self { amount, targets, seats, dir, recording, lasting, machine, rows: Rows::new() })
    }

    /// Ends everything in good order and gives the rows in the order of the table.
    pub fn finish(self) -> Result<(Vec<Row>, Machine)> {
        for seat in self.seats.into_values() {
            seat.editor.end()?;
        }
        self.recording.finish()?;
        self.targets.stop()?;
        Ok((self.rows.into_vec(), self.machine))
    }

    /// One round of everything, or of one part. Who comes first changes from round to round.
    pub fn round(&mut self, index: usize, only: Option<&[Part]>) -> Result<()> {
        let parts = Part::ALL.into_iter().map(|(_, part)| part);
        for part in parts.filter(|part| only.is_none_or(|only| only.contains(part))) {
            self.targets.step();
            let (recording, amount) = (&mut self.recording, &self.amount);
            let (machine, rows) = (&mut self.machine, &mut self.rows);
            match part {
                Part::RoundTrips => self.round_trips(index)?,
                Part::Decisions => {
                    machine.settle()?;
                    decisions::round(amount.decisions, rows)?;
                }
                Part::Instructions => instructions::round(index, rows)?,
                Part::Held => {
                    machine.settle()?;
                    contained::round(&self.targets.programs, amount.starts, rows)?;
                }
                Part::Streams => self.streams(index)?,
                Part::Crowds => self.crowds(index)?,
                Part::Terminal => self.terminal()?,
                Part::Starts => self.starts(index)?,
                Part::New => self.new_sessions()?,
                Part::Memory => self.memory()?,
                Part::Journal => recording.journal(amount.journal, index, machine, rows)?,
                Part::Recording => recording.service(amount, index, machine, rows)?,
                Part::Shipping => recording.shipping(amount.shipped, machine, rows)?,
                Part::Restart => recording.restart(machine, rows)?,
                Part::Reattach => self.lasting.reattach(machine, rows)?,
                Part::Idle => self.lasting.idle(machine, rows)?,
                Part::Reconnect => self.lasting.reconnect(amount, machine, rows)?,
            }
        }
        Ok(())
    }

    /// Measures those of the targets that are there, one right after the other.
    pub fn each<T>(
        &mut self,
        round: usize,
        targets: &[Target],
        mut measure: impl FnMut(&mut Seat, Target) -> Result<T>,
    ) -> Result<Each<T>> {
        let mut found = Each::new();
        for turn in 0..targets.len() {
            let target = targets[(round + turn) % targets.len()];
            let Some(seat) = self.seats.get_mut(target) else { continue };
            self.machine.settle()?;
            self.targets.step();
            found.set(target, measure(seat, target)?);
        }
        Ok(found)
    }
}

pub fn rate(frames: usize, took: Duration) -> Result<f64> {
    ensure!(!took.is_zero(), "a stream that took no time");
    Ok(frames as f64 / took.as_secs_f64())
}

pub fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

pub fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
