//! What happens, told to others: whoever follows hears each thing once, in order, whatever
//! happens to the service; and what is told is what the ledger has.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

mod events;
mod listener;
mod places;
mod siem;
mod tail;

use conductor_tests::{
    admin::{wait_metric, watched},
    editor::Editor,
    harness::{Builder, Service, permission, service},
};
use serde_json::{Value, json};

/// Text that is in a prompt, in what a tool is given, and in a file; nobody else shall see it.
const CANARY: &str = "canary-7f3a";

/// Every line of a text as JSON.
fn lines(text: &[u8]) -> Vec<Value> {
    let text = std::str::from_utf8(text).unwrap();
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("no JSON: {line}")))
        .collect()
}

/// What `conductor ledger tail --json` tells.
fn tail(service: &Service, args: &[&str]) -> Vec<Value> {
    let told = service.run(&[&["ledger", "tail", "--json"], args].concat());
    assert!(told.status.success(), "{told:?}");
    lines(&told.stdout)
}

/// What it says instead.
fn refusal(service: &Service, args: &[&str]) -> String {
    let told = service.run(&[&["ledger", "tail", "--json"], args].concat());
    assert_eq!(told.status.code(), Some(1), "{told:?}");
    String::from_utf8(told.stderr).unwrap()
}

/// What the ledger answers, once it has all that happened.
fn sql(service: &Service, statement: &str) -> Vec<Value> {
    wait_metric(service, "conductor_ledger_behind_bytes", |behind| behind == 0.0);
    let told = service.run(&["ledger", "sql", "--json", statement]);
    assert!(told.status.success(), "{told:?}");
    lines(&told.stdout)
}

fn text<'a>(event: &'a Value, key: &str) -> &'a str {
    event[key].as_str().unwrap_or_else(|| panic!("no {key}: {event}"))
}

/// The uids of events, in order.
fn uids(events: &[Value]) -> Vec<String> {
    events.iter().map(|event| text(event, "uid").to_owned()).collect()
}

fn request(method: &str, params: &Value) -> Value {
    let mut params = params.clone();
    params["sessionId"] = json!("$sid");
    json!({ "request": { "method": method, "params": params } })
}

fn update(update: &Value) -> Value {
    json!({ "notify": { "method": "session/update", "params": { "sessionId": "$sid", "update": update } } })
}

/// A service that allows most, and denies some.
fn ruled() -> Builder {
    watched(service(&json!({}))).rules(
        "use = ['trusted']\n\
         [[rule]]\nid = 'no-rm'\neffect = 'deny'\nreason = 'not here'\nrun = { program = ['rm'] }\n",
    )
}

/// Turns with something of everything: a file written, one that is denied, a command in a
/// terminal, one that a tool runs, one that is denied, a question that the editor answers.
fn busy(service: &Service) -> (Editor, String) {
    let mut editor = service.editor();
    editor.answer_with(|request| {
        let chosen = json!({ "outcome": { "outcome": "selected", "optionId": "yes" } });
        (request["method"] == "session/request_permission").then_some(chosen)
    });
    let session = editor.new_session(&service.work());
    let file = service.work().join("a.txt");
    let write = json!({ "path": file, "content": CANARY });
    editor.turn_do(&session, &json!([request("fs/write_text_file", &write)]));
    let outside = json!({ "path": "/etc/passwd", "content": CANARY });
    editor.turn_do(&session, &json!([request("fs/write_text_file", &outside)]));
    let create = json!({ "command": "sh", "args": ["-c", "exit 3"] });
    let chunks = editor.turn_do(&session, &json!([request("terminal/create", &create)]));
    let created: Value = serde_json::from_str(chunks[0].strip_prefix("answer ").unwrap()).unwrap();
    let terminal = json!({ "terminalId": created["result"]["terminalId"] });
    editor.turn_do(
        &session,
        &json!([request("terminal/wait_for_exit", &terminal), request("terminal/release", &terminal)]),
    );
    let call = json!({ "sessionUpdate": "tool_call", "toolCallId": "call-9", "title": CANARY, "kind": "execute",
        "status": "in_progress", "rawInput": { "command": "cargo test" } });
    let done = json!({ "sessionUpdate": "tool_call_update", "toolCallId": "call-9", "status": "completed",
        "rawOutput": { "exit_code": 0, "output": CANARY } });
    editor.turn_do(&session, &json!([update(&call), update(&done), permission()]));
    let mut removal = permission();
    removal["request"]["params"]["toolCall"] = json!({ "toolCallId": "call-10", "title": "Remove",
        "kind": "execute", "rawInput": { "command": "rm a.txt" } });
    editor.turn_do(&session, &json!([removal]));
    editor.turn(&session, CANARY);
    (editor, session)
}
