//! Crashes under load (rows C1, D3 and D4, goal G1): the service, its agents or its
//! database are killed at random times while many sessions stream. The fake agents' own
//! ledgers are the oracle: whatever was passed on, in either direction, is
//! recorded, once and in order; of what an agent said only an end is missing,
//! which nobody has seen; and the database has exactly what the journal has.
//!
//! `CRASH_KILLS` and `CRASH_SEED` make a longer or another run; `make soak` has
//! hundreds.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use conductor::{
    journal::Record,
    ledger::Settings,
    record::{Origin, StreamKind},
};
use conductor_tests::{
    dice::{Dice, number},
    disk,
    editor::Editor,
    harness::{Service, poll_until, service},
    ledger::{Entry, Kind},
    postgres::Postgres,
    shipping,
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use uuid::Uuid;

const EDITORS: usize = 8;

/// One editor that prompts until something was killed; all that it received
/// until then. Its bridge would go on by itself, so it is told to end.
fn work(mut editor: Editor, session: &str, over: &AtomicBool) -> Vec<Value> {
    while !over.load(Ordering::Relaxed) {
        let steps = json!([{ "update": { "n": 40, "size": 300 } }, { "update": { "n": 1 } }]);
        let id = editor.prompt_do(session, &steps);
        let waited = poll_until(Duration::from_secs(60), || {
            over.load(Ordering::Relaxed) || editor.answers_to(&id) > 0
        });
        assert!(waited, "neither an answer nor a kill");
    }
    editor.close_stdin();
    editor.wait_exit();
    editor.lines().into_iter().map(|line| line.json).collect()
}

/// What the editors of one round saw, by session.
type Seen = BTreeMap<Uuid, Vec<Value>>;

/// Sessions under load until something is killed.
fn round(service: &mut Service, postgres: Option<&Postgres>, dice: &mut Dice) -> Seen {
    let over = Arc::new(AtomicBool::new(false));
    let mut editors = Vec::new();
    for _ in 0..EDITORS {
        let (editor, session) = service.session();
        let over = over.clone();
        let id: Uuid = session.parse().unwrap();
        editors.push((id, thread::spawn(move || work(editor, &session, &over))));
    }
    // The moment of the kill is what is random here; nothing waits for it.
    let moment = Instant::now() + Duration::from_micros(dice.roll(60_000));
    while Instant::now() < moment {
        thread::yield_now();
    }
    let victim = dice.roll(4);
    if let Some(postgres) = postgres.filter(|_| victim == 0) {
        postgres.kill();
        over.store(true, Ordering::Relaxed);
        postgres.start();
    } else if victim == 1 {
        let agents = service.agents_alive();
        let victim = agents[dice.roll(agents.len() as u64) as usize];
        kill(Pid::from_raw(victim.cast_signed()), Signal::SIGKILL).unwrap();
        over.store(true, Ordering::Relaxed);
    } else {
        service.kill9();
        over.store(true, Ordering::Relaxed);
    }
    let seen = editors.into_iter().map(|(id, editor)| (id, editor.join().unwrap())).collect();
    if !service.is_running() {
        service.start_again();
    }
    seen
}

/// The frames of one session in the journal, in order of their numbers.
fn frames(records: &[Record], session: Uuid) -> Vec<(Origin, Value)> {
    let mut next = 1;
    let mut all = Vec::new();
    for record in records.iter().filter(|record| record.stream.id == session) {
        assert_eq!(record.stream.kind, StreamKind::Session);
        assert_eq!(record.first_seq, next, "session {session}: a gap or a number used twice");
        next += u64::from(record.count);
        all.extend(record.lines().map(|line| (record.origin, serde_json::from_slice(line).unwrap())));
    }
    all
}

/// What a frame says, whichever ids it has on this side.
fn content(frame: &Value) -> Value {
    let mut frame = frame.clone();
    frame["id"] = Value::Null;
    for part in ["params", "result"] {
        if frame[part].get("sessionId").is_some() {
            frame[part]["sessionId"] = Value::Null;
        }
    }
    frame
}

/// Whether `part` stands in `whole`, in order.
fn assert_in_order(part: &[Value], whole: &[Value], what: &str) {
    let mut rest = whole.iter();
    for frame in part {
        assert!(rest.any(|other| other == frame), "{what}: not recorded, or out of order:\n{frame}");
    }
}

/// The pids of the agents' processes, by our ids of them.
fn pids(records: &[Record]) -> BTreeMap<Uuid, u32> {
    let of_processes = records.iter().filter(|record| record.stream.kind == StreamKind::Process);
    let started = |record: &Record| {
        let frame: Value = serde_json::from_slice(record.lines().next()?).ok()?;
        let pid =
            (frame["method"] == "_conductor/process_started").then(|| frame["params"]["pid"].as_u64())?;
        Some((record.stream.id, u32::try_from(pid?).unwrap()))
    };
    of_processes.filter_map(started).collect()
}

/// What a session has of each process that served it, one after the other: one
/// that was killed has a successor if a prompt came between.
fn by_process(recorded: &[(Origin, Value)], pids: &BTreeMap<Uuid, u32>) -> Vec<(u32, Vec<Value>)> {
    let mut all: Vec<(u32, Vec<Value>)> = Vec::new();
    for (origin, frame) in recorded {
        if frame["method"] == "_conductor/session_bound" {
            let process: Uuid = frame["params"]["process"].as_str().unwrap().parse().unwrap();
            let pid = pids[&process];
            if all.last().is_none_or(|(last, _)| *last != pid) {
                all.push((pid, Vec::new()));
            }
        } else if *origin == Origin::Agent {
            all.last_mut().expect("no agent speaks before it is bound").1.push(content(frame));
        }
    }
    all
}

fn check(records: &[Record], seen: &Seen, agents: &[Entry]) -> usize {
    let mut compared = 0;
    let pids = pids(records);
    for (session, received) in seen {
        let recorded = frames(records, *session);
        let of = |origins: &[Origin]| -> Vec<Value> {
            let wanted = recorded.iter().filter(|(origin, _)| origins.contains(origin));
            wanted.map(|(_, frame)| content(frame)).collect()
        };
        let name = session.to_string();
        let updates = received.iter().filter(|line| line["params"]["sessionId"] == name.as_str());
        let updates: Vec<Value> = updates.map(content).collect();
        assert_in_order(&updates, &of(&[Origin::Agent, Origin::Conductor]), "the editor received");
        compared += updates.len();
        for (pid, agent_frames) in by_process(&recorded, &pids) {
            let lines = |kind: Kind| -> Vec<Value> {
                let of = agents.iter().filter(|entry| entry.pid == pid && entry.kind == kind);
                of.filter_map(Entry::json).collect()
            };
            // Only the end may be missing of what the agent said.
            let of_session = |line: &&Value| line["result"].get("protocolVersion").is_none();
            let said: Vec<Value> = lines(Kind::Out).iter().filter(of_session).map(content).collect();
            assert!(agent_frames.len() <= said.len(), "more recorded than {pid} said in {session}");
            assert_eq!(agent_frames, said[..agent_frames.len()], "what {pid} said in {session}");
            // All that the agent heard is recorded.
            let heard = lines(Kind::In);
            let heard: Vec<Value> =
                heard.iter().filter(|line| line["method"] != "initialize").map(content).collect();
            assert_in_order(&heard, &of(&[Origin::Editor, Origin::Conductor]), "the agent heard");
            compared += agent_frames.len() + heard.len();
        }
    }
    compared
}

/// Kills until enough, then holds everything against everything.
fn crash(mut service: Service, settings: &Settings, postgres: Option<&Postgres>) {
    let kills = number("CRASH_KILLS", 6);
    let seed = number("CRASH_SEED", 20_261_116);
    let mut dice = Dice::new(seed);
    let mut seen = Seen::new();
    for _ in 0..kills {
        seen.extend(round(&mut service, postgres, &mut dice));
    }
    service.term();
    let expected = disk::journaled(&service);
    let runtime = Runtime::new().unwrap();
    let in_ledger = || -> BTreeMap<_, _> {
        let stored = runtime.block_on(shipping::frames(settings));
        stored.into_iter().map(|known| ((known.stream, known.seq), known.raw)).collect()
    };
    // A stop waits for the ledger only so long, which a busy machine may exceed;
    // a start carries on what is left.
    service.start_again();
    poll_until(Duration::from_secs(120), || {
        let stored = in_ledger();
        expected.iter().all(|known| stored.contains_key(&(known.stream, known.seq)))
    });
    service.term();
    let stored = in_ledger();
    for known in &expected {
        let raw = stored.get(&(known.stream, known.seq));
        assert_eq!(raw, Some(&known.raw), "frame {} of {}", known.seq, known.stream);
    }
    assert_eq!(runtime.block_on(shipping::number(settings, "SELECT count(*) FROM frame_conflicts")), 0);
    let records = disk::journal(&service);
    let compared = check(&records, &seen, &service.ledger("fake"));
    assert!(compared > 1000, "only {compared} frames were compared; the load was no load");
}

#[test]
fn c01_killed_at_random_times_nothing_that_was_passed_on_is_lost() {
    let service = service(&json!({})).start();
    let settings = Settings::embedded(&service.state());
    crash(service, &settings, None);
}

#[test]
fn c01_with_postgres_killed_too_nothing_is_lost_or_doubled() {
    let database = Runtime::new().unwrap().block_on(Postgres::start_private().database());
    let service = service(&json!({})).set("ledger.url", database.url()).start();
    let mut settings = Settings::embedded(&service.state());
    settings.url = database.url().parse().unwrap();
    crash(service, &settings, Some(database.server()));
}
