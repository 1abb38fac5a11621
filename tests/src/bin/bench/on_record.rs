//! A service that starts with much on record: a gigabyte of ten thousand sessions.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Instant,
};

use anyhow::Result;
use conductor::{
    journal::{Batch, Journal, Settings},
    ledger::{self, row::Reached, sink::Sink},
    record::{Destination, Origin, Stream, StreamKind, note, now_us},
};
use serde_json::json;
use tokio::runtime::Runtime;
use uuid::Uuid;

use crate::{
    frames::{append, chunk, synced},
    machine::{self, Machine},
    rows::Rows,
    service::{Programs, Service},
};

/// What a service finds when it starts.
const SESSIONS: usize = 10_000;
const JOURNAL_BYTES: u64 = 1 << 30;

/// How many of them were at work when it was killed, and what each had said since it was opened last.
const AT_WORK: usize = 1000;
const SAID: usize = 20;

/// A state directory with much in it.
pub struct OnRecord {
    state: PathBuf,
    sessions: Vec<Uuid>,
}

impl OnRecord {
    /// Fills the journal. The ledger has all of it, as it says.
    pub fn fill(state: &Path, runtime: &Runtime) -> Result<Self> {
        fs::create_dir_all(state)?;
        let (journal, _) = Journal::open(&state.join("journal"), Settings::default())?;
        let lines: Vec<Vec<u8>> = (0..10).map(chunk).collect();
        let sessions: Vec<Uuid> = (0..SESSIONS).map(|_| Uuid::now_v7()).collect();
        for id in &sessions {
            let lines = [opened("new"), bound()];
            put(&journal, runtime, *id, Origin::Conductor, &lines)?;
        }
        for round in 0_usize.. {
            // Every other run has one frame, the others ten.
            let lines = if round.is_multiple_of(2) { &lines[..1] } else { &lines[..] };
            for id in &sessions {
                put(&journal, runtime, *id, Origin::Agent, lines)?;
            }
            if journal.status().bytes >= JOURNAL_BYTES {
                break;
            }
        }
        for id in &sessions {
            let ended = note(note::SESSION_ENDED, &json!({ "reason": "closed" }));
            put(&journal, runtime, *id, Origin::Conductor, &[ended])?;
        }
        let end = runtime.block_on(synced(&journal))?;
        journal.shipped(end);
        let file = ledger::Settings::embedded(state).file;
        let (id, host) = (journal.id(), String::new());
        let reached = Reached { journal: id, host, segment: end.segment, offset: end.offset };
        runtime.block_on(async {
            let mut sink = Sink::open_file(&file).await?;
            sink.write(&[], Some(&reached)).await?;
            sink.close().await;
            anyhow::Ok(())
        })?;
        journal.close();
        Ok(Self { state: state.to_path_buf(), sessions })
    }

    /// How long a service takes to be ready, with nothing on its disk and with much.
    pub fn round(
        &self,
        programs: &Programs,
        runtime: &Runtime,
        machine: &mut Machine,
        rows: &mut Rows,
    ) -> Result<()> {
        machine.settle()?;
        let begun = Instant::now();
        let service = Service::start(programs)?;
        let empty = begun.elapsed().as_secs_f64();
        machine::until_idle(service.pid())?;
        let idle = machine::resident(service.pid())?;
        service.stop()?;

        for entry in fs::read_dir(&self.state)? {
            let path = entry?.path();
            if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("store.")) {
                fs::remove_file(path)?;
            }
        }
        let (took, _) = self.start(programs, machine)?;
        rows.restart_lost.pair(empty, took);

        let (took, memory) = self.start(programs, machine)?;
        rows.restart.pair(empty, took);
        rows.on_record.value((memory - idle) / SESSIONS as f64);

        let (journal, _) = Journal::open(&self.state.join("journal"), Settings::default())?;
        for id in &self.sessions[..AT_WORK] {
            put(&journal, runtime, *id, Origin::Conductor, &[opened("resume"), bound()])?;
            let lines: Vec<Vec<u8>> = (0..SAID).map(chunk).collect();
            put(&journal, runtime, *id, Origin::Agent, &lines)?;
        }
        runtime.block_on(synced(&journal))?;
        journal.close();
        let (took, _) = self.start(programs, machine)?;
        rows.restart_killed.pair(empty, took);
        Ok(())
    }

    /// Seconds until a service is ready, and the memory that it then has, in KiB.
    fn start(&self, programs: &Programs, machine: &mut Machine) -> Result<(f64, f64)> {
        // Read once by ourselves: it was written just now, but by others it may have been pushed out since.
        for entry in fs::read_dir(self.state.join("journal"))? {
            fs::read(entry?.path())?;
        }
        machine.settle()?;
        let begun = Instant::now();
        let service = Service::start_at(programs, &self.state)?;
        let took = begun.elapsed().as_secs_f64();
        service.until_asked()?;
        machine::until_idle(service.pid())?;
        let memory = machine::resident(service.pid())?;
        service.stop()?;
        Ok((took, memory))
    }
}

/// Appends a run to a session's stream.
fn put(journal: &Journal, runtime: &Runtime, id: Uuid, origin: Origin, lines: &[Vec<u8>]) -> Result<()> {
    let stream = Stream { id, kind: StreamKind::Session };
    let to = if origin == Origin::Conductor { Destination::Record } else { Destination::Editor };
    let mut batch = Batch::new();
    let frames = lines.iter().map(Vec::as_slice);
    batch.push(stream, journal.next_seq(id), now_us(), origin, to, &[], frames);
    append(journal, runtime, batch)
}

fn opened(how: &str) -> Vec<u8> {
    let said =
        json!({ "how": how, "user": "ann", "teams": ["core"], "agent": "stub", "cwd": "/srv/project" });
    note(note::SESSION_OPENED, &said)
}

fn bound() -> Vec<u8> {
    let (binding, process) = (Uuid::now_v7().to_string(), Uuid::now_v7().to_string());
    note(note::SESSION_BOUND, &json!({ "binding": binding, "process": process, "agentSession": "s-1" }))
}
