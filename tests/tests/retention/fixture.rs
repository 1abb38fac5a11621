//! Sessions of long ago in a ledger, the program beside it, and a look at every byte of a
//! directory.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use conductor::{
    journal::{Batch, Class, Journal},
    record::{Destination, Origin, Stream, StreamKind, note, now_us},
};
pub use conductor_tests::program::{Done, done};
use conductor_tests::{harness::Service, program::told_by, shipping::Bench};
use serde_json::{Value, json};
use uuid::{NoContext, Timestamp, Uuid};

/// So many microseconds are a day.
pub const DAY_US: i64 = 86_400_000_000;

/// A moment so many days ago, in microseconds since 1970.
pub fn days_ago(days: i64) -> i64 {
    now_us() - days * DAY_US
}

/// An id that was made at a moment.
pub fn id_of(at_us: i64) -> Uuid {
    let since = Duration::from_micros(u64::try_from(at_us).unwrap());
    Uuid::new_v7(Timestamp::from_unix(NoContext, since.as_secs(), since.subsec_nanos()))
}

/// Writes one frame.
pub fn write(journal: &Journal, stream: Stream, at_us: i64, from: (Origin, Destination), raw: &[u8]) {
    let mut batch = Batch::new();
    let seq = journal.next_seq(stream.id);
    let outgoing: &[(u32, u64)] = if from.0 == Origin::Editor { &[(0, 1)] } else { &[] };
    batch.push(stream, seq, at_us, from.0, from.1, outgoing, std::iter::once(raw));
    journal.append(batch, Class::Stop).unwrap();
}

fn noted(journal: &Journal, stream: Stream, at_us: i64, method: &str, params: &Value) {
    write(journal, stream, at_us, (Origin::Conductor, Destination::Record), &note(method, params));
}

/// A session that was opened at a moment, with a process, a connection and a grant of its own, a
/// turn, and words in all places.
#[derive(Debug, Clone, Copy)]
pub struct Past {
    pub session: Stream,
    pub process: Stream,
    pub connection: Stream,
}

pub fn past(journal: &Journal, at_us: i64, words: &str) -> Past {
    let stream = |kind| Stream { id: id_of(at_us), kind };
    let session = stream(StreamKind::Session);
    let (process, connection) = (stream(StreamKind::Process), stream(StreamKind::Connection));
    let connected = json!({ "user": "ann", "teams": ["a"], "client": "ed" });
    noted(journal, connection, at_us, note::CONNECTED, &connected);
    let started = json!({ "agent": "demo", "command": "demo", "args": [], "cwd": "/w", "pid": 7 });
    noted(journal, process, at_us, note::PROCESS_STARTED, &started);
    let opened = json!({ "how": "new", "user": "ann", "teams": ["a"], "agent": "demo", "cwd": "/w",
        "connection": connection.id.to_string() });
    noted(journal, session, at_us, note::SESSION_OPENED, &opened);
    let bound = json!({ "binding": id_of(at_us).to_string(), "process": process.id.to_string(),
        "agent": "demo", "agentSession": format!("agent-{}", session.id) });
    noted(journal, session, at_us, note::SESSION_BOUND, &bound);
    turn(journal, session, at_us + 1, words);
    Past { session, process, connection }
}

/// A prompt, an answer, and a tool call in between.
pub fn turn(journal: &Journal, session: Stream, at_us: i64, words: &str) {
    let line = |value: Value| value.to_string().into_bytes();
    let update = |update: Value| {
        line(json!({ "jsonrpc": "2.0", "method": "session/update",
            "params": { "sessionId": "s-1", "update": update } }))
    };
    let prompt = json!({ "jsonrpc": "2.0", "id": "e1", "method": "session/prompt", "params": {
        "sessionId": session.id.to_string(), "prompt": [{ "type": "text", "text": words }] } });
    let call = json!({ "sessionUpdate": "tool_call", "toolCallId": "c", "title": words, "kind": "execute",
        "status": "completed", "rawInput": { "command": words }, "locations": [{ "path": format!("/w/{words}") }] });
    let said =
        json!({ "sessionUpdate": "agent_message_chunk", "content": { "type": "text", "text": words } });
    let titled = json!({ "sessionUpdate": "session_info_update", "title": words });
    let answer = json!({ "jsonrpc": "2.0", "id": 1, "result": { "stopReason": "end_turn" } });
    write(journal, session, at_us, (Origin::Editor, Destination::Agent), &line(prompt));
    for frame in [update(call), update(said), update(titled), line(answer)] {
        write(journal, session, at_us + 1, (Origin::Agent, Destination::Editor), &frame);
    }
}

/// The session ends, and its process and connection with it.
pub fn end(journal: &Journal, past: &Past, at_us: i64) {
    noted(journal, past.session, at_us, note::SESSION_ENDED, &json!({ "reason": "closed" }));
    let ended = json!({ "reason": "exited", "code": 0, "crashed": false, "stderr": "last words" });
    noted(journal, past.process, at_us, note::PROCESS_ENDED, &ended);
    noted(journal, past.connection, at_us, note::DISCONNECTED, &json!({ "reason": "closed" }));
}

/// The program beside a ledger that its configuration names.
pub fn conductor(bench: &Bench, args: &[&str]) -> Command {
    told_by(bench, "CONDUCTOR_LEDGER__URL", args)
}

/// Runs a command beside a service, with its configuration.
pub fn conduct(service: &Service, args: &[&str]) -> Done {
    let mut command = service.command(args);
    done(&command.env("CONDUCTOR_CONFIG", service.dir.join("agents.toml")).output().unwrap())
}

/// The same with an answer in JSON; it must work.
pub fn told(service: &Service, args: &[&str]) -> Value {
    let done = conduct(service, &[args, &["--json"]].concat());
    assert_eq!(done.code, Some(0), "{args:?}: {done:?}");
    serde_json::from_str(&done.stdout).unwrap()
}

/// Runs it, and it must work.
pub fn run(bench: &Bench, args: &[&str]) -> Done {
    let done = done(&conductor(bench, args).output().unwrap());
    assert_eq!(done.code, Some(0), "{args:?}: {done:?}");
    done
}

/// The same with an answer in JSON.
pub fn run_json(bench: &Bench, args: &[&str]) -> Value {
    let done = run(bench, &[args, &["--json"]].concat());
    serde_json::from_str(&done.stdout).unwrap_or_else(|error| panic!("{error}: {done:?}"))
}

/// Nothing was changed that is not on record.
pub fn verified(bench: &Bench) -> Done {
    run(bench, &["ledger", "verify"])
}

/// Every file beneath a directory.
pub fn files(dir: &Path, found: &mut Vec<PathBuf>) {
    found.extend(conductor_tests::files::files(dir, &[]));
}

/// The files beneath a directory that have a text anywhere in their bytes.
pub fn holding(dir: &Path, text: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    files(dir, &mut found);
    assert!(!found.is_empty(), "{} is empty", dir.display());
    let holds = |path: &PathBuf| {
        let bytes = fs::read(path).unwrap_or_default();
        memchr::memmem::find(&bytes, text.as_bytes()).is_some()
    };
    found.into_iter().filter(holds).collect()
}
