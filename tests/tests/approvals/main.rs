//! What rules leave to people: who is asked, who may answer, and that there is one outcome
//! whoever comes first.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

mod abuse;
mod answers;
mod endings;
mod holes;
mod races;
mod telling;

use std::{process::Output, time::Duration};

use conductor_tests::{
    editor::Editor,
    harness::{Builder, Service, poll_until, service},
    people::Person,
};
use serde_json::{Value, json};

const DEADLINE: Duration = Duration::from_secs(30);

/// A rule that asks about `make`, in this way.
fn rule(ask: &str) -> String {
    format!(
        "use = ['default']\n[[rule]]\nid = 'make-asks'\neffect = 'ask'\nreason = 'builds are approved'\n\
         run = {{ program = ['make'] }}\nask = {{ {ask} }}\n"
    )
}

/// A service with that rule.
fn asking(ask: &str) -> Builder {
    service(&json!({})).rules(&rule(ask))
}

/// A request for permission to run something, as Claude Code writes it.
fn run(command: &str) -> Value {
    json!({ "request": { "method": "session/request_permission", "params": {
        "sessionId": "$sid",
        "toolCall": {
            "toolCallId": "call-1", "title": "innocent", "kind": "execute", "rawInput": { "command": command },
            "_meta": { "claudeCode": { "toolName": "Bash" } },
        },
        "options": [
            { "optionId": "once", "name": "Yes", "kind": "allow_once" },
            { "optionId": "no", "name": "No", "kind": "reject_once" },
        ],
    } } })
}

/// An editor of somebody's, that decides for itself, and a session.
fn open(service: &Service, who: &Person) -> (Editor, String) {
    let mut editor = who.editor(service);
    editor.decides();
    let session = editor.new_session(&service.work());
    (editor, session)
}

/// The answer that the agent got to its last request.
fn told(chunks: &[String]) -> Value {
    let line = chunks.iter().rev().find_map(|chunk| chunk.strip_prefix("answer "));
    serde_json::from_str(line.expect("the agent got an answer")).unwrap()
}

fn chosen(answer: &Value) -> &str {
    answer["result"]["outcome"]["optionId"].as_str().unwrap_or("nothing")
}

fn was_asked(editor: &Editor) -> usize {
    editor.lines().iter().filter(|line| line.method() == "session/request_permission").count()
}

fn approver(service: &Service, user: &str) -> Person {
    Person::new(service, &["--user", user, "--role", "approver"])
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn listed(service: &Service, who: &Person, more: &[&str]) -> Vec<Value> {
    let output = who.run(service, &[&["approvals", "ls", "--json"], more].concat());
    assert!(output.status.success(), "{output:?}");
    let listed: Value = serde_json::from_slice(&output.stdout).unwrap();
    listed["approvals"].as_array().unwrap().clone()
}

/// Waits until somebody sees a question, and gives it.
fn question(service: &Service, who: &Person) -> Value {
    let mut found = None;
    let has_one = || {
        found = listed(service, who, &[]).pop();
        found.is_some()
    };
    assert!(poll_until(DEADLINE, has_one), "no question came: {}", service.log());
    found.unwrap()
}

fn id(question: &Value) -> &str {
    question["id"].as_str().unwrap()
}

/// The outcome of a question that has ended.
fn outcome(service: &Service, who: &Person, id: &str) -> Value {
    let output = who.run(service, &["approvals", "show", id, "--json"]);
    let shown: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
    shown["outcome"].clone()
}
