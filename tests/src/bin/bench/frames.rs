//! Frames of about 300 bytes to fill a journal with: what agents say in a working day, and how it comes in runs.

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use conductor::{
    journal::{Batch, Cause, Class, Journal, Position},
    record::{Destination, Origin, Stream, StreamKind, note, now_us},
};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use uuid::Uuid;

/// Bytes of a plain frame, without its newline.
pub const FRAME: usize = 300;

/// Sessions that are under way at the same time.
const SESSIONS: usize = 16;

/// Frames of a turn: a prompt, forty chunks in runs of eight, four tool calls of three frames, usage, the answer.
const CHUNK_RUNS: usize = 5;
const CHUNKS: usize = 8;
const CALLS: usize = 4;

/// Longest wait for the disk.
const PATIENCE: Duration = Duration::from_secs(60);

/// A frame of [`FRAME`] bytes: a chunk of a message.
pub fn chunk(number: usize) -> Vec<u8> {
    let head = format!(
        r#"{{"jsonrpc":"2.0","method":"session/update","params":{{"sessionId":"s-1","update":{{"sessionUpdate":"agent_message_chunk","content":{{"type":"text","text":"{number:08} "#
    );
    let tail = r#""}}}}"#;
    let room = FRAME - head.len() - tail.len();
    let words = "the quick brown fox jumps over the lazy dog and does so again ".repeat(4);
    format!("{head}{}{tail}", &words[..room]).into_bytes()
}

/// Appends a run and waits where the journal says so.
pub fn append(journal: &Journal, runtime: &Runtime, mut batch: Batch) -> Result<()> {
    let due = Instant::now() + PATIENCE;
    loop {
        match journal.append(batch, Class::Stream) {
            Ok(_) => return Ok(()),
            Err(refused) if refused.cause == Cause::Busy => {
                ensure!(Instant::now() < due, "the journal does not sync");
                batch = refused.batch;
                runtime.block_on(journal.accepting());
            }
            Err(refused) => bail!("the journal refuses: {}", refused.why),
        }
    }
}

/// Waits until all that is written is synced.
pub async fn synced(journal: &Journal) -> Result<Position> {
    let end = journal.status().end;
    let mut synced = journal.synced();
    let waiting = synced.wait_for(|position| *position >= end);
    Ok(*tokio::time::timeout(PATIENCE, waiting).await??)
}

/// What was written.
#[derive(Debug, Default, Clone, Copy)]
pub struct Filled {
    pub frames: usize,
    /// Bytes of the frames, newlines included.
    pub raw: usize,
}

/// Writes turns of sessions, at least so many frames, as streams of a kind. In streams of sessions they tell of
/// messages, tool calls, files, commands and cost; in streams of processes the same frames tell of nothing.
pub fn fill(journal: &Journal, runtime: &Runtime, kind: StreamKind, frames: usize) -> Result<Filled> {
    let mut filled = Filled::default();
    let mut sessions: Vec<_> =
        (0..SESSIONS).map(|_| Session { stream: Stream { id: Uuid::now_v7(), kind }, next: 1 }).collect();
    let process = kind == StreamKind::Process;
    if !process {
        for session in &mut sessions {
            let opened =
                json!({ "how": "new", "user": "ann", "teams": ["core"], "agent": "demo", "cwd": "/w" });
            let bound = json!({ "binding": Uuid::now_v7().to_string(), "process": Uuid::now_v7().to_string(), "agentSession": "s-1" });
            let notes = [note(note::SESSION_OPENED, &opened), note(note::SESSION_BOUND, &bound)];
            let batch = session.run(Origin::Conductor, Destination::Record, &[], &notes, &mut filled);
            append(journal, runtime, batch)?;
        }
    }
    let mut turn = 0;
    while filled.frames < frames {
        turn += 1;
        // Their runs come in turn, as those of sessions that work at the same time do.
        for at in 0..3 + CHUNK_RUNS {
            for session in &mut sessions {
                let batch = session.part(turn, at, &mut filled);
                append(journal, runtime, batch)?;
            }
        }
    }
    Ok(filled)
}

struct Session {
    stream: Stream,
    next: u64,
}

impl Session {
    /// One run of a turn.
    fn part(&mut self, turn: u64, at: usize, filled: &mut Filled) -> Batch {
        let (agent, editor) = (Origin::Agent, Destination::Editor);
        match at {
            0 => {
                let words = "Look at the failing test, find out why it fails, and mend it. ".repeat(2);
                let prompt = json!({ "jsonrpc": "2.0", "id": format!("e{turn}"), "method": "session/prompt", "params": {
                    "sessionId": self.stream.id.to_string(), "prompt": [{ "type": "text", "text": words }] } });
                let line = prompt.to_string().into_bytes();
                self.run(Origin::Editor, Destination::Agent, &[(0, turn)], &[line], filled)
            }
            1 => {
                let usage =
                    update(&json!({ "sessionUpdate": "usage_update", "used": 1000 + turn, "size": 200_000,
                    "cost": { "amount": 0.25 * turn as f64, "currency": "USD" } }));
                let calls = (0..CALLS).flat_map(|call| tool_call(&format!("call-{turn}-{call}")));
                let lines: Vec<_> = calls.chain([usage]).collect();
                self.run(agent, editor, &[], &lines, filled)
            }
            last if last == 2 + CHUNK_RUNS => {
                let answer = json!({ "jsonrpc": "2.0", "id": turn, "result": { "stopReason": "end_turn" } });
                self.run(agent, editor, &[], &[answer.to_string().into_bytes()], filled)
            }
            _ => {
                let lines: Vec<_> = (0..CHUNKS).map(|number| chunk(at * CHUNKS + number)).collect();
                self.run(agent, editor, &[], &lines, filled)
            }
        }
    }

    fn run(
        &mut self,
        origin: Origin,
        to: Destination,
        outgoing: &[(u32, u64)],
        lines: &[Vec<u8>],
        filled: &mut Filled,
    ) -> Batch {
        let mut batch = Batch::new();
        batch.push(self.stream, self.next, now_us(), origin, to, outgoing, lines.iter().map(Vec::as_slice));
        self.next += lines.len() as u64;
        filled.frames += lines.len();
        filled.raw += lines.iter().map(|line| line.len() + 1).sum::<usize>();
        batch
    }
}

fn update(update: &Value) -> Vec<u8> {
    let params = json!({ "sessionId": "s-1", "update": update });
    json!({ "jsonrpc": "2.0", "method": "session/update", "params": params }).to_string().into_bytes()
}

/// A tool call from begin to end.
fn tool_call(id: &str) -> [Vec<u8>; 3] {
    [
        update(
            &json!({ "sessionUpdate": "tool_call", "toolCallId": id, "title": "Edit a.rs", "kind": "edit",
            "status": "pending", "rawInput": { "path": "/w/src/a.rs", "old": "let a = 1;", "new": "let a = 2;" },
            "locations": [{ "path": "/w/src/a.rs", "line": 7 }] }),
        ),
        update(&json!({ "sessionUpdate": "tool_call_update", "toolCallId": id, "status": "in_progress" })),
        update(&json!({ "sessionUpdate": "tool_call_update", "toolCallId": id, "status": "completed",
            "content": [{ "type": "diff", "path": "/w/src/a.rs", "oldText": "let a = 1;", "newText": "let a = 2;" }],
            "rawOutput": { "ok": true } })),
    ]
}
