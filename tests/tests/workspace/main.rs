//! The host workspace at its edge: a real service, real files, real processes;
//! the fake agent asks, and what it is told is what counts.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

mod choice;
mod ends;
mod escapes;
mod files;
mod terminals;

use conductor_tests::{
    editor::Editor,
    harness::{Service, service},
};
use serde_json::{Value, json};

/// A service whose agent leaves nothing to the editor.
fn hosted() -> Service {
    service(&json!({})).start()
}

/// The steps by which the agent sends a request and waits for the answer.
fn request(method: &str, params: &Value) -> Value {
    let mut params = params.clone();
    params["sessionId"] = json!("$sid");
    json!({ "request": { "method": method, "params": params } })
}

/// Has the agent send a request; the whole answer that it got.
fn ask(editor: &mut Editor, session: &str, method: &str, params: &Value) -> Value {
    let chunks = editor.turn_do(session, &json!([request(method, params)]));
    told(&chunks[0])
}

/// Has the agent send a request; the result. An error fails the test.
fn good(editor: &mut Editor, session: &str, method: &str, params: &Value) -> Value {
    let answer = ask(editor, session, method, params);
    answer.get("result").unwrap_or_else(|| panic!("{method} {params} failed: {answer}")).clone()
}

/// Has the agent send a request; the error. A result fails the test.
fn bad(editor: &mut Editor, session: &str, method: &str, params: &Value) -> Value {
    let answer = ask(editor, session, method, params);
    answer.get("error").unwrap_or_else(|| panic!("{method} {params} succeeded: {answer}")).clone()
}

/// The answer in a chunk of the fake agent.
fn told(chunk: &str) -> Value {
    let answer = chunk.strip_prefix("answer ").unwrap_or_else(|| panic!("no answer: {chunk}"));
    serde_json::from_str(answer).unwrap()
}

/// Starts a command; the terminal's id.
fn create(editor: &mut Editor, session: &str, params: &Value) -> String {
    let created = good(editor, session, "terminal/create", params);
    created["terminalId"].as_str().unwrap_or_else(|| panic!("no id: {created}")).to_owned()
}

/// Runs a command to its end: what it wrote, and how it ended.
fn run(editor: &mut Editor, session: &str, params: &Value) -> (Value, Value) {
    let id = json!({ "terminalId": create(editor, session, params) });
    let ended = good(editor, session, "terminal/wait_for_exit", &id);
    let output = good(editor, session, "terminal/output", &id);
    assert_eq!(output["exitStatus"], ended);
    assert_eq!(good(editor, session, "terminal/release", &id), json!({}));
    (output, ended)
}

/// A shell line run as argv.
fn sh(line: &str) -> Value {
    json!({ "command": "sh", "args": ["-c", line] })
}
