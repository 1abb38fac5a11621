//! Sessions with something of everything in them, in a ledger.

use conductor::{
    journal::{Batch, Class, Journal},
    ledger::{Settings, history::History},
    record::{Destination, Origin, Stream, StreamKind, note},
};
use conductor_tests::{
    program::{Done, conductor, done},
    shipping::{Bench, ship_all},
};
use serde_json::{Value, json};
use uuid::Uuid;

/// When all of this happened: 2026-11-16T12:00:00Z.
pub const NOON_US: i64 = 1_794_830_400_000_000;

/// Bytes that are no text.
pub const NO_TEXT: &[u8] = b"{\"jsonrpc\":\"2.0\",\"method\":\"bad\xff\xfe\"}";

/// A frame, as it goes into the journal.
pub struct Sent {
    pub origin: Origin,
    pub to: Destination,
    pub outgoing: Option<u64>,
    pub raw: Vec<u8>,
}

/// Who opens a session, with what, and what it is about.
#[derive(Clone, Copy)]
pub struct About {
    pub user: &'static str,
    pub agent: &'static str,
    pub model: &'static str,
    pub prompt: &'static str,
    pub answer: &'static str,
    pub title: &'static str,
    pub path: &'static str,
}

pub const EDITING: About = About {
    user: "ann",
    agent: "demo",
    model: "opus-5",
    prompt: "make the parser faster",
    answer: "I **edit** the file.\n\nDone: 100 % of it_self \u{1b}[2J",
    title: "A faster parser",
    path: "/w/src/parser.rs",
};

fn from(origin: Origin, to: Destination, value: &Value) -> Sent {
    Sent { origin, to, outgoing: None, raw: value.to_string().into_bytes() }
}

fn asked(origin: Origin, to: Destination, outgoing: u64, value: &Value) -> Sent {
    Sent { outgoing: Some(outgoing), ..from(origin, to, value) }
}

/// Everything a session can have: thoughts, an answer, a tool call with a
/// permission and a change, a command, a refused file, usage, bytes.
pub fn everything(about: &About, session: Uuid) -> Vec<Sent> {
    use Destination::{Agent as ToAgent, Editor as ToEditor, Record};
    use Origin::{Agent, Conductor, Editor};
    let update = |update: Value| {
        let params = json!({ "sessionId": "s-1", "update": update });
        from(Agent, ToEditor, &json!({ "jsonrpc": "2.0", "method": "session/update", "params": params }))
    };
    let text = |text: &str| json!({ "type": "text", "text": text });
    let opened = json!({ "how": "new", "user": about.user, "teams": ["core"], "agent": about.agent, "cwd": "/w",
        "repository": "/w" });
    let bound = json!({ "binding": Uuid::now_v7().to_string(), "process": Uuid::now_v7().to_string(),
        "agentSession": "s-1" });
    let option = json!({ "id": "model", "name": "Model", "category": "model", "type": "select",
        "currentValue": about.model, "options": [{ "value": about.model, "name": about.model }] });
    let call = json!({ "toolCallId": "call-1", "title": "Edit the parser", "kind": "edit",
        "rawInput": { "path": about.path }, "locations": [{ "path": about.path }] });
    let request = |id: u64, method: &str, params: Value| json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
    let note = |method: &str, params: &Value| Sent {
        origin: Conductor,
        to: Record,
        outgoing: None,
        raw: note(method, params),
    };
    let merged = |extra: Value| {
        let mut all = call.clone();
        all.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        all
    };
    vec![
        note(note::SESSION_OPENED, &opened),
        note(note::SESSION_BOUND, &bound),
        update(json!({ "sessionUpdate": "config_option_update", "configOptions": [option] })),
        asked(
            Editor,
            ToAgent,
            1,
            &json!({ "jsonrpc": "2.0", "id": "e1", "method": "session/prompt", "params": {
                "sessionId": session.to_string(), "prompt": [text(about.prompt)] } }),
        ),
        update(json!({ "sessionUpdate": "agent_thought_chunk", "content": text("hmm, ") })),
        update(json!({ "sessionUpdate": "agent_thought_chunk", "content": text("yes") })),
        update(json!({ "sessionUpdate": "agent_message_chunk", "content": text(about.answer) })),
        update(merged(json!({ "sessionUpdate": "tool_call", "status": "pending",
            "_meta": { "claudeCode": { "toolName": "Edit" } } }))),
        asked(
            Agent,
            ToEditor,
            1001,
            &request(
                77,
                "session/request_permission",
                json!({ "sessionId": "s-1", "toolCall": call, "options": [
                { "kind": "allow_once", "name": "Yes", "optionId": "yes" },
                { "kind": "reject_once", "name": "No", "optionId": "no" }] }),
            ),
        ),
        from(
            Editor,
            ToAgent,
            &json!({ "jsonrpc": "2.0", "id": 1001,
                "result": { "outcome": { "outcome": "selected", "optionId": "yes" } } }),
        ),
        update(json!({ "sessionUpdate": "tool_call_update", "toolCallId": "call-1", "status": "completed",
            "content": [{ "type": "diff", "path": about.path, "oldText": "slow\n", "newText": "fast\n" }],
            "rawOutput": { "output": "1 file changed" } })),
        from(
            Agent,
            ToEditor,
            &request(
                78,
                "terminal/create",
                json!({ "sessionId": "s-1", "command": "cargo", "args": ["test"] }),
            ),
        ),
        from(Conductor, ToAgent, &json!({ "jsonrpc": "2.0", "id": 78, "result": { "terminalId": "t1" } })),
        from(
            Agent,
            ToEditor,
            &request(79, "terminal/wait_for_exit", json!({ "sessionId": "s-1", "terminalId": "t1" })),
        ),
        from(Conductor, ToAgent, &json!({ "jsonrpc": "2.0", "id": 79, "result": { "exitCode": 3 } })),
        from(
            Agent,
            ToEditor,
            &request(80, "fs/read_text_file", json!({ "sessionId": "s-1", "path": "/etc/shadow" })),
        ),
        from(
            Conductor,
            ToAgent,
            &json!({ "jsonrpc": "2.0", "id": 80, "error": { "code": -32602, "message": "outside" } }),
        ),
        update(json!({ "sessionUpdate": "usage_update", "used": 1234, "size": 200_000,
            "cost": { "amount": 0.25, "currency": "USD" } })),
        update(json!({ "sessionUpdate": "session_info_update", "title": about.title })),
        Sent { origin: Agent, to: ToEditor, outgoing: None, raw: NO_TEXT.to_vec() },
        from(
            Agent,
            ToEditor,
            &json!({ "jsonrpc": "2.0", "id": 1, "result": { "stopReason": "end_turn",
                "usage": { "inputTokens": 1000, "outputTokens": 500, "totalTokens": 1500 } } }),
        ),
    ]
}

/// Writes frames, one second apart, from a moment on.
pub fn write(journal: &Journal, session: Stream, first_seq: u64, at_us: i64, frames: &[Sent]) {
    for ((frame, seq), at) in frames.iter().zip(first_seq..).zip((at_us..).step_by(1_000_000)) {
        let outgoing: Vec<_> = frame.outgoing.map(|id| (0, id)).into_iter().collect();
        let mut batch = Batch::new();
        batch.push(session, seq, at, frame.origin, frame.to, &outgoing, [frame.raw.as_slice()].into_iter());
        journal.append(batch, Class::Stream).map_err(|refused| refused.why).unwrap();
    }
}

pub fn new_session() -> Stream {
    Stream { id: Uuid::now_v7(), kind: StreamKind::Session }
}

/// A ledger with these sessions, the later ones an hour apart.
pub async fn ledger(bench: &Bench, abouts: &[About]) -> Vec<Uuid> {
    fill(&bench.settings(), &bench.journal(), abouts).await
}

/// Carries these sessions into a ledger.
pub async fn fill(settings: &Settings, journal: &Journal, abouts: &[About]) -> Vec<Uuid> {
    let hours = (0..).map(|hour| NOON_US + hour * 3_600_000_000);
    let ids = abouts.iter().zip(hours).map(|(about, at)| {
        let session = new_session();
        write(journal, session, 1, at, &everything(about, session.id));
        session.id
    });
    let ids = ids.collect();
    ship_all(settings.clone(), journal).await;
    ids
}

pub fn history(bench: &Bench) -> History {
    History::new(bench.settings(), None)
}

/// Runs it; whatever it says, it never tells the password.
pub fn run(bench: &Bench, args: &[&str]) -> Done {
    done(&conductor(bench, args).output().unwrap())
}
