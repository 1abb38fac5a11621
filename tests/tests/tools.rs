//! The tools themselves: the fake editor talks to the fake agent directly, so
//! that a failure elsewhere is the conductor's and not the tools'.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

use std::{fs, path::PathBuf, process::Command, time::Duration};

use conductor_tests::{
    editor::Editor,
    harness::{poll_until, program},
    ledger::{self, Kind},
};
use serde_json::{Value, json};

/// A fake editor with the fake agent as its child, and their directory.
struct Pair {
    editor: Editor,
    dir: PathBuf,
}

impl Drop for Pair {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

fn pair(script: &Value) -> Pair {
    let dir = std::env::temp_dir().join(format!("conductor-tools-{}", uuid::Uuid::now_v7()));
    fs::create_dir_all(&dir).unwrap();
    let mut command = Command::new(program("fake-agent"));
    command
        .env("FAKE_AGENT_SCRIPT", script.to_string())
        .env("FAKE_AGENT_LEDGER", &dir)
        .env("FAKE_AGENT_STORE", &dir);
    Pair { editor: Editor::spawn(&mut command), dir }
}

fn ready(script: &Value) -> (Pair, String) {
    let mut pair = pair(script);
    assert_eq!(pair.editor.initialize()["protocolVersion"], 1);
    let session = pair.editor.new_session(&PathBuf::from("/"));
    (pair, session)
}

#[test]
fn echoes_text_and_streams_chunks() {
    let (mut pair, session) = ready(&json!({}));
    assert_eq!(pair.editor.turn(&session, "hello"), ["echo: hello"]);
    assert_eq!(pair.editor.turn_do(&session, &json!([{ "update": { "n": 2, "text": "c" } }])), ["c0", "c1"]);
}

#[test]
fn waits_for_answers_and_tells_them() {
    let (mut pair, session) = ready(&json!({ "uuid_request_ids": true }));
    let steps = json!([{ "request": { "method": "fs/read_text_file", "params": { "sessionId": "$sid", "path": "/x" } } }]);
    let id = pair.editor.prompt_do(&session, &steps);
    let request = pair.editor.next_request("fs/read_text_file");
    assert!(request["id"].is_string());
    assert_eq!(request["params"]["sessionId"], json!(session));
    pair.editor.answer(&request, &json!({ "content": "body" }));
    assert_eq!(pair.editor.stop_reason(&id), "end_turn");
    assert!(pair.editor.chunks(&session)[0].contains(r#""content":"body""#));
}

#[test]
fn hook_answers_by_itself() {
    let (mut pair, session) = ready(&json!({}));
    pair.editor.answer_with(|request| (request["method"] == "x/y").then(|| json!({ "ok": true })));
    let chunks = pair.editor.turn_do(&session, &json!([{ "request": { "method": "x/y" } }]));
    assert!(chunks[0].contains(r#""ok":true"#), "{chunks:?}");
}

#[test]
fn every_cancel_style_ends_as_told() {
    for (style, wanted) in
        [("cancelled", "cancelled"), ("update_first", "cancelled"), ("end_turn", "end_turn")]
    {
        let (mut pair, session) = ready(&json!({ "cancel": style }));
        let id = pair.editor.prompt_do(&session, &json!([{ "update": {} }, "wait_cancel"]));
        pair.editor.wait_chunks(&session, 1);
        pair.editor.cancel(&session);
        assert_eq!(pair.editor.stop_reason(&id), wanted, "{style}");
    }
    let (mut pair, session) = ready(&json!({ "cancel": "error" }));
    let id = pair.editor.prompt_do(&session, &json!([{ "update": {} }, "wait_cancel"]));
    pair.editor.wait_chunks(&session, 1);
    pair.editor.cancel(&session);
    assert_eq!(pair.editor.error_of(&id)["code"], -32800);
}

#[test]
fn answers_twice_late_and_wrongly_when_told() {
    let (mut pair, session) = ready(&json!({}));
    let steps =
        json!([{ "answer": { "times": 2 } }, { "answer": { "id": 77 } }, { "after": [{ "update": {} }] }]);
    let id = pair.editor.prompt_do(&session, &steps);
    pair.editor.wait_chunks(&session, 1);
    assert_eq!(pair.editor.answers_to(&id), 2);
    assert_eq!(pair.editor.answers_to(&json!(77)), 1);
}

#[test]
fn loads_what_an_earlier_process_saw() {
    let (mut pair, session) = ready(&json!({}));
    pair.editor.turn_do(&session, &json!([{ "update": { "n": 3 } }]));
    let mut command = Command::new(program("fake-agent"));
    let mut second = Editor::spawn(command.env("FAKE_AGENT_STORE", &pair.dir));
    second.initialize();
    second.call("session/load", &json!({ "sessionId": session, "cwd": "/", "mcpServers": [] }));
    assert_eq!(second.chunks(&session), pair.editor.chunks(&session));
    let error =
        second.call_error("session/load", &json!({ "sessionId": "nope", "cwd": "/", "mcpServers": [] }));
    assert_eq!(error["code"], -32002);
}

#[test]
fn ledger_holds_every_line_of_both_directions() {
    let (mut pair, session) = ready(&json!({ "seed": 7 }));
    pair.editor.turn_do(&session, &json!([{ "random": 50 }, { "bytes": "ff0a" }]));
    let ledger = ledger::read(&pair.dir);
    let sent: Vec<Vec<u8>> =
        ledger.iter().filter(|e| e.kind == Kind::Out).map(ledger::Entry::bytes).collect();
    let seen: Vec<Vec<u8>> = pair.editor.lines().into_iter().map(|line| line.raw).collect();
    assert_eq!(sent.len(), seen.len());
    assert_eq!(sent[..sent.len() - 2], seen[..seen.len() - 2]);
    assert_eq!(sent[sent.len() - 2], [0xff, 0x0a]);
    let methods: Vec<_> =
        ledger.iter().filter(|e| e.kind == Kind::In).filter_map(ledger::Entry::method).collect();
    assert_eq!(methods, ["initialize", "session/new", "session/prompt"]);
}

#[test]
fn exits_and_dies_as_told() {
    let (mut pair, session) = ready(&json!({}));
    pair.editor.prompt_do(&session, &json!([{ "stderr": "farewell\n" }, { "exit": 3 }]));
    assert_eq!(pair.editor.wait_exit().code(), Some(3));
    assert!(poll_until(Duration::from_secs(5), || pair.editor.stderr() == "farewell\n"));
    let (mut pair, session) = ready(&json!({}));
    pair.editor.prompt_do(&session, &json!([{ "signal": 9 }]));
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&pair.editor.wait_exit()), Some(9));
}

#[test]
fn script_breaks_the_handshake_when_told() {
    let mut pair = pair(&json!({ "version": "1", "start": [{ "line": "garbage" }],
        "before": { "initialize": [{ "bytes": "0a" }] } }));
    let info = pair.editor.initialize();
    assert_eq!(info["protocolVersion"], "1");
    let lines: Vec<_> = pair.editor.lines().iter().map(|line| line.text()).collect();
    assert_eq!(lines[..2], ["garbage", ""]);
}

#[test]
fn survives_sigterm_only_when_told() {
    let (mut pair, session) = ready(&json!({}));
    pair.editor.turn_do(&session, &json!(["ignore_sigterm", { "signal": 15 }]));
    assert_eq!(pair.editor.turn(&session, "alive"), ["echo: alive"]);
    let (mut pair, session) = ready(&json!({}));
    pair.editor.prompt_do(&session, &json!([{ "signal": 15 }, "hang"]));
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&pair.editor.wait_exit()), Some(15));
}

#[test]
fn reads_nothing_while_told_so() {
    let (mut pair, session) = ready(&json!({}));
    let gate = pair.dir.join("go");
    let steps = json!(["stop_reading", { "update": {} }, { "wait_file": gate }, "start_reading"]);
    let first = pair.editor.prompt_do(&session, &steps);
    pair.editor.wait_chunks(&session, 1);
    // The line that is being read when the gate shuts may still get through.
    pair.editor.notify("_x/one", &json!({}));
    let unread = pair.editor.request("_x/return", &json!({ "late": 1 }));
    fs::write(&gate, "").unwrap();
    assert_eq!(pair.editor.stop_reason(&first), "end_turn");
    assert_eq!(pair.editor.response(&unread)["result"]["late"], 1);
}
