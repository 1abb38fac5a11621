//! What the policy does to real sessions: which requests it answers, which it
//! leaves to people, what is recorded first, and how it changes while sessions
//! are open.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

mod asking;
mod modes;
mod rules;
mod unasked;

use std::path::Path;

use conductor_tests::{
    disk,
    editor::Editor,
    harness::{Builder, Service, service},
};
use serde_json::{Value, json};

/// A service with these rules.
fn ruled(script: &Value, rules: &str) -> Builder {
    service(script).rules(rules)
}

/// An editor that decides for itself, and a session.
fn open(service: &Service) -> (Editor, String) {
    let (editor, session) = service.session();
    editor.decides();
    (editor, session)
}

/// A request for permission of an agent, as Claude Code writes them.
fn asks(input: &Value, options: &Value) -> Value {
    json!({ "request": { "method": "session/request_permission", "params": {
        "sessionId": "$sid",
        "toolCall": {
            "toolCallId": "call-1", "title": "innocent", "kind": "execute", "rawInput": input,
            "_meta": { "claudeCode": { "toolName": "Bash" } },
        },
        "options": options,
    } } })
}

fn usual() -> Value {
    json!([
        { "optionId": "ever", "name": "Always", "kind": "allow_always" },
        { "optionId": "once", "name": "Yes", "kind": "allow_once" },
        { "optionId": "no", "name": "No", "kind": "reject_once" },
    ])
}

/// The answer that the agent got to its first request.
fn told(chunks: &[String]) -> Value {
    let line = chunks.iter().find_map(|chunk| chunk.strip_prefix("answer "));
    serde_json::from_str(line.expect("the agent got an answer")).unwrap()
}

fn chosen(answer: &Value) -> &str {
    answer["result"]["outcome"]["optionId"].as_str().unwrap_or("nothing")
}

fn was_asked(editor: &Editor) -> usize {
    editor.lines().iter().filter(|line| line.method() == "session/request_permission").count()
}

/// What was noted of verdicts, in the journal of a service that is stopped for it.
fn judged(service: &mut Service) -> Vec<Value> {
    service.term();
    let notes = disk::journal(service).into_iter().flat_map(|record| {
        let lines: Vec<Value> = record.lines().filter_map(|line| serde_json::from_slice(line).ok()).collect();
        lines
    });
    notes.filter(|line| line["method"] == "_conductor/judged").map(|line| line["params"].clone()).collect()
}

fn writes(path: &Path) -> Value {
    json!([{ "request": { "method": "fs/write_text_file", "params": {
        "sessionId": "$sid", "path": path, "content": "new",
    } } }])
}

fn tells(update: &Value) -> Value {
    json!({ "notify": { "method": "session/update", "params": { "sessionId": "$sid", "update": update } } })
}

fn modes(current: &str) -> Value {
    json!({ "session": { "modes": { "currentModeId": current, "availableModes": [
        { "id": "default", "name": "Default" }, { "id": "bypassPermissions", "name": "Bypass" },
    ] } } })
}
