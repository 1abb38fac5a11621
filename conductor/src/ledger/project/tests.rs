//! Conversations as they are recorded, and the rows that come of them.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]
#![allow(clippy::needless_pass_by_value, reason = "JSON is written where it is used")]

use std::collections::BTreeMap;

use serde_json::json;

use super::*;
use crate::{
    ledger::table::{
        BINDINGS, COMMANDS, CONNECTIONS, DECISIONS, FILE_ACCESSES, MESSAGES, MODELS, PROCESSES, ROUTES_TAKEN,
        TABLES, TOOL_CALLS, TURNS, USAGE,
    },
    record::note,
};

mod conversations;
mod endings;
mod hostile;
mod people;
mod routing;

const SESSION: Uuid = Uuid::from_u128(0x0190_0000_0000_7000_8000_0000_0000_0001);
const PROCESS: Uuid = Uuid::from_u128(0x0190_0000_0000_7000_8000_0000_0000_0002);
const BINDING: Uuid = Uuid::from_u128(0x0190_0000_0000_7000_8000_0000_0000_0003);

/// A recorded frame.
#[derive(Clone)]
struct Recorded {
    origin: Origin,
    to: Destination,
    outgoing: Option<u64>,
    raw: Vec<u8>,
}

/// A stream; the seq of a frame is its place, and its time a thousand times
/// that.
struct Tape {
    stream: Stream,
    frames: Vec<Recorded>,
    next: u64,
}

impl Tape {
    fn of(kind: StreamKind) -> Self {
        Self { stream: Stream { id: SESSION, kind }, frames: Vec::new(), next: 100 }
    }

    /// A session that is opened and bound, with two notes.
    fn session() -> Self {
        let mut tape = Self::of(StreamKind::Session);
        tape.opened("new");
        tape.note(
            note::SESSION_BOUND,
            json!({ "binding": BINDING.to_string(), "process": PROCESS.to_string(), "agentSession": "a-1" }),
        );
        tape
    }

    fn opened(&mut self, how: &str) {
        let connection = Uuid::from_u128(9).to_string();
        self.note(
            note::SESSION_OPENED,
            json!({ "how": how, "user": "ann", "teams": ["core", "web"], "agent": "claude", "cwd": "/w",
                    "repository": "/w", "connection": connection }),
        );
    }

    fn push(&mut self, origin: Origin, to: Destination, outgoing: Option<u64>, frame: impl ToString) -> i64 {
        self.frames.push(Recorded { origin, to, outgoing, raw: frame.to_string().into_bytes() });
        self.frames.len() as i64
    }

    fn note(&mut self, method: &str, params: serde_json::Value) -> i64 {
        let frame = String::from_utf8(crate::record::note(method, &params)).unwrap();
        self.push(Origin::Conductor, Destination::Record, None, frame)
    }

    fn update(&mut self, update: serde_json::Value) -> i64 {
        let frame = json!({ "jsonrpc": "2.0", "method": "session/update", "params": { "sessionId": "a-1", "update": update } });
        self.push(Origin::Agent, Destination::Editor, None, frame)
    }

    fn chunk(&mut self, kind: &str, text: &str, id: Option<&str>) -> i64 {
        let mut update = json!({ "sessionUpdate": kind, "content": { "type": "text", "text": text } });
        if let Some(id) = id {
            update["messageId"] = id.into();
        }
        self.update(update)
    }

    /// A request of the editor's; returns its seq and the id at the agent.
    fn ask_agent(&mut self, method: &str, mut params: serde_json::Value) -> (i64, u64) {
        self.next += 1;
        params["sessionId"] = SESSION.to_string().into();
        let id = format!("editor-{}", self.next);
        let frame = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
        (self.push(Origin::Editor, Destination::Agent, Some(self.next), frame), self.next)
    }

    fn prompt(&mut self, text: &str) -> (i64, u64) {
        self.ask_agent("session/prompt", json!({ "prompt": [{ "type": "text", "text": text }] }))
    }

    fn agent_answers(&mut self, id: u64, result: serde_json::Value) -> i64 {
        self.push(
            Origin::Agent,
            Destination::Editor,
            None,
            json!({ "jsonrpc": "2.0", "id": id, "result": result }),
        )
    }

    /// A request of the agent's that goes on to the editor.
    fn ask_editor(&mut self, method: &str, params: serde_json::Value) -> (i64, u64) {
        self.next += 1;
        let frame = json!({ "jsonrpc": "2.0", "id": format!("agent-{}", self.next), "method": method, "params": params });
        (self.push(Origin::Agent, Destination::Editor, Some(self.next), frame), self.next)
    }

    fn editor_answers(&mut self, id: u64, result: serde_json::Value) -> i64 {
        self.push(
            Origin::Editor,
            Destination::Agent,
            None,
            json!({ "jsonrpc": "2.0", "id": id, "result": result }),
        )
    }

    /// A request of the agent's that we serve, and our answer; its seq.
    fn serve(&mut self, method: &str, params: serde_json::Value, answer: serde_json::Value) -> i64 {
        self.next += 1;
        let frame = json!({ "jsonrpc": "2.0", "id": self.next, "method": method, "params": params });
        let seq = self.push(Origin::Agent, Destination::Editor, None, frame);
        let mut reply = json!({ "jsonrpc": "2.0", "id": self.next });
        reply.as_object_mut().unwrap().extend(answer.as_object().unwrap().clone());
        self.push(Origin::Conductor, Destination::Agent, None, reply);
        seq
    }

    fn play(&self, state: &mut State, from: usize, to: usize) -> Vec<Fact> {
        let mut facts = Vec::new();
        for (at, frame) in self.frames[from..to].iter().enumerate() {
            let seq = (from + at + 1) as u64;
            let view = FrameView {
                stream: self.stream,
                seq,
                at_us: seq as i64 * 1000,
                origin: frame.origin,
                to: frame.to,
                outgoing: frame.outgoing,
                raw: &frame.raw,
            };
            facts.extend(project(state, &view).facts);
        }
        facts
    }

    /// The rows that the database would have, and that it has wherever the fold
    /// was interrupted.
    fn rows(&self) -> Rows {
        let all = self.play(&mut State::default(), 0, self.frames.len());
        for cut in 0..self.frames.len() {
            let mut state = State::default();
            let mut facts = self.play(&mut state, 0, cut);
            let mut again = State::default();
            self.play(&mut again, 0, cut);
            facts.extend(self.play(&mut again, cut, self.frames.len()));
            assert_eq!(facts, all, "cut at {cut}");
        }
        Rows::of(all)
    }
}

/// Rows by table and key.
struct Rows(BTreeMap<(usize, String), Fact>);

impl Rows {
    fn of(facts: Vec<Fact>) -> Self {
        let mut rows: BTreeMap<(usize, String), Fact> = BTreeMap::new();
        for fact in facts {
            let key = fact.key().iter().map(|value| match value {
                Value::Int(number) => format!("{number:020}"),
                other => show(other),
            });
            let key = (fact.table, key.collect::<Vec<_>>().join("/"));
            match rows.get_mut(&key) {
                Some(row) => row.merge(&fact),
                None => drop(rows.insert(key, fact)),
            }
        }
        Self(rows)
    }

    /// The chosen columns of all rows of a table, in the order of their keys.
    fn get(&self, table: usize, columns: &str) -> Vec<String> {
        let rows = self.0.values().filter(|row| row.table == table);
        rows.map(|row| columns.split(' ').map(|name| self.show(row, name)).collect::<Vec<_>>().join(" | "))
            .collect()
    }

    fn show(&self, row: &Fact, name: &str) -> String {
        let at = TABLES[row.table].columns.iter().position(|column| column.name == name);
        show(&row.values[at.unwrap_or_else(|| panic!("{} has no {name}", TABLES[row.table].name))])
    }
}

fn show(value: &Value) -> String {
    match value {
        Value::Null => "-".into(),
        Value::Id(id) => id.to_string(),
        Value::Int(number) => number.to_string(),
        Value::Real(number) => format!("{number:.6}"),
        Value::Bool(yes) => yes.to_string(),
        Value::Text(text) | Value::Json(text) => text.clone(),
    }
}

/// The envelope of one frame.
fn envelope(origin: Origin, to: Destination, raw: &[u8]) -> Envelope {
    let stream = Stream { id: SESSION, kind: StreamKind::Session };
    let view = FrameView { stream, seq: 1, at_us: 1, origin, to, outgoing: None, raw };
    project(&mut State::default(), &view).envelope
}

#[test]
fn the_envelope_is_what_the_frame_says() {
    let seen = |raw: &str| envelope(Origin::Agent, Destination::Editor, raw.as_bytes());
    let request = seen(r#"{"id":"a\u00e9","method":"fs\/read_text_file","params":{}}"#);
    assert_eq!((request.kind, request.method.as_deref()), ("request", Some("fs/read_text_file")));
    assert_eq!(request.request_id.as_deref(), Some(r#""a\u00e9""#));
    assert_eq!(
        request.json.as_deref(),
        Some(r#"{"id":"a\u00e9","method":"fs\/read_text_file","params":{}}"#)
    );
    assert_eq!(seen(r#"{"method":"x"}"#).kind, "notification");
    assert_eq!(seen(r#"{"id":null,"result":1}"#).kind, "result");
    assert_eq!(seen(r#"{"id":1,"error":{}}"#).kind, "error");
    assert_eq!(seen(r#"{"method":"a\u0000b\ud800"}"#).method.as_deref(), Some("a\u{fffd}b\u{fffd}"));
    assert_eq!(seen(r#"{"method":"a\u0000b"}"#).json, None);
    for garbage in ["", "noise", "[]", "{\"a\":1", "7", "{\"id\":{}}"] {
        let opaque = Envelope { kind: "opaque", ..Envelope::default() };
        assert_eq!(seen(garbage), opaque, "{garbage}");
    }
    let noted = crate::record::note(note::GAP, &json!({ "count": 3 }));
    assert_eq!(envelope(Origin::Conductor, Destination::Record, &noted).kind, "note");
    // An agent cannot write our notes.
    assert_eq!(envelope(Origin::Agent, Destination::Editor, &noted).kind, "notification");
}

#[test]
fn frames_of_a_session_name_its_binding() {
    let tape = Tape::session();
    let mut state = State::default();
    tape.play(&mut state, 0, 2);
    let stream = tape.stream;
    let view = FrameView {
        stream,
        seq: 3,
        at_us: 3,
        origin: Origin::Agent,
        to: Destination::Editor,
        outgoing: None,
        raw: b"?",
    };
    assert_eq!(project(&mut state, &view).envelope.binding, Some(BINDING));
}
