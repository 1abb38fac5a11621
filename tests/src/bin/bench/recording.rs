//! What recording adds: the journal and the ledger as libraries, a service that waits for its disk beside one that
//! does not, and a service that starts with much on its disk.

use std::{
    fs,
    path::PathBuf,
    time::{Duration, Instant},
};

use anyhow::Result;
use conductor::{
    journal::{Batch, Journal, Settings},
    ledger::{self, row::Reached, sink::Sink},
    record::{Destination, Origin, Stream, StreamKind, now_us},
};
use conductor_tests::postgres::Postgres;
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};
use uuid::Uuid;

use crate::{
    frames::{append, chunk, synced},
    journal::{self, Amount},
    machine::Machine,
    measure::{PACE, Seat, micros, rate},
    report::{Row, median},
    rows::{Compared, Rows},
    service::{Programs, Service},
    shipping,
};

/// What a service finds when it starts.
const SESSIONS: usize = 10_000;
const JOURNAL_BYTES: u64 = 1 << 30;

/// Everything that recording is measured with. What is not measured is not started.
pub struct Recording {
    programs: Programs,
    dir: TempDir,
    runtime: Runtime,
    server: Option<Option<Postgres>>,
    modes: Option<Seats>,
    /// Another build of the conductor, to compare with.
    other: Option<PathBuf>,
    builds: Option<Seats>,
    /// A state directory with much in it.
    full: Option<PathBuf>,
}

/// An editor at each of two services that are compared.
struct Seats {
    services: [Service; 2],
    seats: [Seat; 2],
}

impl Seats {
    fn take(services: [Service; 2]) -> Result<Self> {
        let [first, second] = &services;
        let seats = [Seat::take(first.bridge("stub")?, first)?, Seat::take(second.bridge("stub")?, second)?];
        Ok(Self { services, seats })
    }

    /// Everything through both, in turn. Gives what a prompt took.
    fn round(
        &mut self,
        amount: &crate::measure::Amount,
        index: usize,
        machine: &mut Machine,
        rows: &mut Compared,
    ) -> Result<(f64, f64)> {
        let Self { services, seats } = self;
        let mut each = |row: &mut Row, measure: &mut dyn FnMut(&mut Seat) -> Result<f64>| {
            let mut found = [0.0; 2];
            for turn in 0..2 {
                let which = (index + turn) % 2;
                machine.settle()?;
                services[which].step();
                found[which] = measure(&mut seats[which])?;
            }
            row.pair(found[0], found[1]);
            anyhow::Ok((found[0], found[1]))
        };
        let prompts = each(&mut rows.prompt, &mut |seat| {
            for _ in 0..amount.round_trips / 40 {
                seat.editor.turn(&seat.session, "n=1 size=64", 2)?;
            }
            let one = |_| Ok(micros(seat.editor.turn(&seat.session, "n=1 size=64", 2)?));
            Ok(median(&(0..amount.round_trips / 4).map(one).collect::<Result<Vec<f64>>>()?))
        })?;
        each(&mut rows.paced, &mut |seat| {
            let delays = seat.editor.paced(&seat.session, PACE, amount.paced)?;
            Ok(median(&delays.into_iter().map(micros).collect::<Vec<_>>()))
        })?;
        for (row, size) in [(&mut rows.stream_small, 64), (&mut rows.stream_large, 2048)] {
            each(row, &mut |seat| {
                let prompt = format!("n={} size={size}", amount.stream);
                let one =
                    |_| rate(amount.stream, seat.editor.turn(&seat.session, &prompt, amount.stream + 1)?);
                Ok(median(&(0..amount.streams).map(one).collect::<Result<Vec<f64>>>()?))
            })?;
        }
        Ok(prompts)
    }

    fn end(self) -> Result<()> {
        for seat in self.seats {
            seat.editor.end()?;
        }
        for service in self.services {
            service.stop()?;
        }
        Ok(())
    }
}

impl Recording {
    pub fn new(programs: Programs, other: Option<PathBuf>) -> Result<Self> {
        let dir = TempDir::with_prefix("conductor-bench-recording-")?;
        let runtime = Builder::new_multi_thread().enable_all().build()?;
        Ok(Self { programs, dir, runtime, server: None, modes: None, other, builds: None, full: None })
    }

    pub fn journal(
        &mut self,
        amount: Amount,
        index: usize,
        machine: &mut Machine,
        rows: &mut Rows,
    ) -> Result<()> {
        machine.settle()?;
        journal::round(self.dir.path(), &self.runtime, amount, index.is_multiple_of(2), rows)
    }

    pub fn shipping(&mut self, frames: usize, machine: &mut Machine, rows: &mut Rows) -> Result<()> {
        let server = self.server.get_or_insert_with(|| {
            let server = Postgres::start_durable();
            if server.is_none() {
                eprintln!("no Postgres is installed (package postgresql), so its rows are left out");
            }
            server
        });
        machine.settle()?;
        shipping::round(self.dir.path(), &self.runtime, server.as_ref(), frames, rows)
    }

    /// Round trips and streams through a service that does not wait for its disk and one that does; then through
    /// another build, if there is one, and this one.
    pub fn service(
        &mut self,
        amount: &crate::measure::Amount,
        index: usize,
        machine: &mut Machine,
        rows: &mut Rows,
    ) -> Result<()> {
        if self.modes.is_none() {
            let passing = Service::start_with(&self.programs, "[journal]\nrecording = \"best-effort\"\n")?;
            self.modes = Some(Seats::take([passing, Service::start(&self.programs)?])?);
        }
        if let Some(seats) = &mut self.modes {
            let (passing, durable) = seats.round(amount, index, machine, &mut rows.modes)?;
            let sync = journal::plain_sync(self.dir.path(), amount.round_trips / 4)?;
            rows.prompt_sync.pair(sync, durable - passing);
        }
        if let (None, Some(other)) = (&self.builds, &self.other) {
            let other = Programs { conductor: other.clone(), ..self.programs.clone() };
            self.builds = Some(Seats::take([Service::start(&other)?, Service::start(&self.programs)?])?);
        }
        if let Some(seats) = &mut self.builds {
            seats.round(amount, index, machine, &mut rows.builds)?;
        }
        Ok(())
    }

    /// How long a service takes to be ready, with nothing on its disk and with much.
    pub fn restart(&mut self, machine: &mut Machine, rows: &mut Rows) -> Result<()> {
        let full = match &self.full {
            Some(full) => full.clone(),
            None => self.full.insert(self.fill_state()?).clone(),
        };
        machine.settle()?;
        let begun = Instant::now();
        let service = Service::start(&self.programs)?;
        let empty = begun.elapsed();
        service.stop()?;
        // Read once by ourselves: it was written just now, but by others it may have been pushed out since.
        for entry in fs::read_dir(full.join("journal"))? {
            fs::read(entry?.path())?;
        }
        machine.settle()?;
        let begun = Instant::now();
        let service = Service::start_at(&self.programs, &full)?;
        let took = begun.elapsed();
        service.stop()?;
        let seconds = |time: Duration| time.as_secs_f64();
        rows.restart.pair(seconds(empty), seconds(took));
        Ok(())
    }

    /// A state directory whose journal has a gigabyte of many sessions. Its ledger has them all, as it says.
    fn fill_state(&self) -> Result<PathBuf> {
        let state = self.dir.path().join("full");
        fs::create_dir_all(&state)?;
        let (journal, _) = Journal::open(&state.join("journal"), Settings::default())?;
        let lines: Vec<Vec<u8>> = (0..10).map(chunk).collect();
        let mut sessions: Vec<(Uuid, u64)> = (0..SESSIONS).map(|_| (Uuid::now_v7(), 1)).collect();
        for round in 0_usize.. {
            // Every other run has one frame, the others ten.
            let lines = if round.is_multiple_of(2) { &lines[..1] } else { &lines[..] };
            for (id, next) in &mut sessions {
                let stream = Stream { id: *id, kind: StreamKind::Session };
                let mut batch = Batch::new();
                let frames = lines.iter().map(Vec::as_slice);
                batch.push(stream, *next, now_us(), Origin::Agent, Destination::Editor, &[], frames);
                append(&journal, &self.runtime, batch)?;
                *next += lines.len() as u64;
            }
            if journal.status().bytes >= JOURNAL_BYTES {
                break;
            }
        }
        let end = self.runtime.block_on(synced(&journal))?;
        journal.shipped(end);
        let file = ledger::Settings::embedded(&state).file;
        let (id, host) = (journal.id(), String::new());
        let reached = Reached { journal: id, host, segment: end.segment, offset: end.offset };
        self.runtime.block_on(async {
            let mut sink = Sink::open_file(&file).await?;
            sink.write(&[], Some(&reached)).await?;
            sink.close().await;
            anyhow::Ok(())
        })?;
        journal.close();
        Ok(state)
    }

    /// Ends everything in good order.
    pub fn finish(self) -> Result<()> {
        for seats in [self.modes, self.builds].into_iter().flatten() {
            seats.end()?;
        }
        Ok(())
    }
}
