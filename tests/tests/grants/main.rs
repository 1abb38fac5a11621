//! Grants: answers that are given ahead of time. Where they hold, how often and
//! how long, what they never allow, who may give and see them, and what is on
//! record of them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

mod authors;
mod commands;
mod floor;
mod people;
mod record;
mod scopes;
mod uses;

use std::{path::Path, process::Output};

use conductor_tests::{
    editor::Editor,
    harness::{Service, service},
    people::Person,
};
use serde_json::{Value, json};

/// Everything is asked about that these rules do not allow or deny.
const RULES: &str = "[[rule]]\nid = 'no-removal'\neffect = 'deny'\nreason = 'nothing is removed here'\n\
    run = { program = ['rm'] }\n\n\
    [[rule]]\nid = 'listing'\neffect = 'allow'\nreason = 'harmless'\nrun = { program = ['ls'] }\n";

fn ruled() -> Service {
    service(&json!({})).rules(RULES).start()
}

/// Requests for permission to run these, one after the other.
fn asks(lines: &[&str]) -> Value {
    lines
        .iter()
        .enumerate()
        .map(|(at, line)| {
            json!({ "request": { "method": "session/request_permission", "params": {
                "sessionId": "$sid",
                "toolCall": {
                    "toolCallId": format!("call-{at}"), "title": "t", "kind": "execute",
                    "rawInput": { "command": line }, "_meta": { "claudeCode": { "toolName": "Bash" } },
                },
                "options": [
                    { "optionId": "ever", "name": "Always", "kind": "allow_always" },
                    { "optionId": "once", "name": "Yes", "kind": "allow_once" },
                    { "optionId": "no", "name": "No", "kind": "reject_once" },
                ],
            } } })
        })
        .collect()
}

fn writes(path: &Path) -> Value {
    json!([{ "request": { "method": "fs/write_text_file", "params": {
        "sessionId": "$sid", "path": path, "content": "new",
    } } }])
}

/// Somebody in front of an editor who says no to everything.
fn refusing(mut editor: Editor) -> Editor {
    editor.decides();
    editor.answer_with(|request| {
        let options = request["params"]["options"].as_array()?;
        let no = options.iter().find(|option| option["kind"] == "reject_once")?;
        Some(json!({ "outcome": { "outcome": "selected", "optionId": no["optionId"] } }))
    });
    editor.set_deadline(std::time::Duration::from_secs(60));
    editor
}

/// What came of each request of a turn: whether it was allowed.
fn outcomes(editor: &mut Editor, session: &str, steps: &Value) -> Vec<bool> {
    let chunks = editor.turn_do(session, steps);
    let answers = chunks.iter().filter_map(|chunk| chunk.strip_prefix("answer "));
    let answers = answers.map(|answer| serde_json::from_str::<Value>(answer).unwrap());
    answers
        .map(|answer| match answer["result"]["outcome"]["optionId"].as_str() {
            Some(option) => option == "once",
            None => answer["error"].is_null(),
        })
        .collect()
}

/// Whether an agent may run this without anybody's being asked.
fn may_run(editor: &mut Editor, session: &str, line: &str) -> bool {
    outcomes(editor, session, &asks(&[line])) == [true]
}

/// Gives a grant as somebody; its id.
fn give(service: &Service, by: &Person, args: &[&str]) -> String {
    let given = by.run(service, &[&["grants", "give", "--yes"], args].concat());
    assert!(given.status.success(), "{given:?}");
    String::from_utf8(given.stdout).unwrap().trim().to_owned()
}

/// Why a grant was not given.
fn refused(service: &Service, by: &Person, args: &[&str]) -> String {
    let refused = by.run(service, &[&["grants", "give", "--yes"], args].concat());
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    assert!(refused.stdout.is_empty(), "{refused:?}");
    text(&refused)
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn json_of(output: &Output) -> Value {
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The grants that somebody sees.
fn listed(service: &Service, by: &Person) -> Vec<Value> {
    json_of(&by.run(service, &["grants", "ls", "--json"]))["grants"].as_array().unwrap().clone()
}

fn shown(service: &Service, by: &Person, id: &str) -> Value {
    json_of(&by.run(service, &["grants", "show", id, "--json"]))
}

fn path(path: &Path) -> &str {
    path.to_str().unwrap()
}
