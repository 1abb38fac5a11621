//! What recording adds: the journal and the ledger as libraries, a service that waits for its disk beside one that
//! does not, and a service that starts with much on its disk.

use std::path::PathBuf;

use anyhow::Result;
use conductor_tests::postgres::Postgres;
use tempfile::TempDir;
use tokio::runtime::{Builder, Runtime};

use crate::{
    journal::{self, Amount},
    machine::Machine,
    measure::{PACE, micros, rate},
    on_record::OnRecord,
    report::{Row, median},
    rows::{Compared, Rows},
    service::{Programs, Service, Way},
    shipping,
    targets::{Seat, UNSYNCED},
};

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
    record: Option<OnRecord>,
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
        Ok(Self { programs, dir, runtime, server: None, modes: None, other, builds: None, record: None })
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
            let unsynced = Service::start_with(&self.programs, Way::Tls, UNSYNCED)?;
            self.modes = Some(Seats::take([unsynced, Service::start(&self.programs)?])?);
        }
        if let Some(seats) = &mut self.modes {
            let (unsynced, durable) = seats.round(amount, index, machine, &mut rows.modes)?;
            let syncs = journal::plain_syncs(self.dir.path(), amount.round_trips / 4)?;
            rows.prompt_sync.pair(median(&syncs), durable - unsynced);
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
        let record = match &mut self.record {
            Some(record) => record,
            none => none.insert(OnRecord::fill(&self.dir.path().join("full"), &self.runtime)?),
        };
        record.round(&self.programs, &self.runtime, machine, rows)
    }

    /// Ends everything in good order.
    pub fn finish(self) -> Result<()> {
        for seats in [self.modes, self.builds].into_iter().flatten() {
            seats.end()?;
        }
        Ok(())
    }
}
