//! Requests for permission: what is answered by the policy, what by people, and what counts of what they say.

use std::fs;

use serde_json::{Value, json};

use super::{asks, chosen, judged, open, ruled, told, usual, was_asked, writes};

#[test]
fn what_is_harmless_is_allowed_without_asking_anybody() {
    let mut service = ruled(&json!({}), "use = ['default']").start();
    let (mut editor, session) = open(&service);
    let chunks = editor.turn_do(&session, &json!([asks(&json!({ "command": "ls -la" }), &usual())]));
    assert_eq!(chosen(&told(&chunks)), "once", "never the option that lasts");
    assert_eq!(was_asked(&editor), 0);
    let judged = judged(&mut service);
    assert_eq!(judged[0]["decision"], "allow");
    assert!(judged[0]["revision"].as_str().is_some_and(|revision| revision.len() >= 12), "{judged:?}");
    assert!(judged[0]["rule"].is_string() && judged[0]["subActions"].is_array(), "{judged:?}");
}

#[test]
fn a_denial_chooses_reject_and_says_why() {
    let rules =
        "[[rule]]\nid = 'no-ls'\neffect = 'deny'\nreason = 'we do not list'\nrun = { program = ['ls'] }";
    let service = ruled(&json!({}), rules).start();
    let (mut editor, session) = open(&service);
    let steps = json!([asks(&json!({ "command": "ls -la" }), &usual())]);
    let answer = told(&editor.turn_do(&session, &steps));
    assert_eq!(chosen(&answer), "no");
    assert_eq!(answer["result"]["_meta"]["conductor"]["reason"], "we do not list");
    let only_always = json!([{ "optionId": "never", "name": "Never", "kind": "reject_always" }]);
    let steps = json!([asks(&json!({ "command": "ls" }), &only_always)]);
    assert_eq!(chosen(&told(&editor.turn_do(&session, &steps))), "never");
    let no_reject = json!([{ "optionId": "yes", "name": "Yes", "kind": "allow_once" }]);
    let steps = json!([asks(&json!({ "command": "ls" }), &no_reject)]);
    let answer = told(&editor.turn_do(&session, &steps));
    assert_eq!(answer["result"]["outcome"]["outcome"], "cancelled");
    assert_eq!(was_asked(&editor), 0);
}

#[test]
fn an_agent_that_can_only_be_allowed_for_ever_is_rejected() {
    let service = ruled(&json!({}), "use = ['default']").start();
    let (mut editor, session) = open(&service);
    let options = json!([
        { "optionId": "ever", "name": "Always", "kind": "allow_always" },
        { "optionId": "no", "name": "No", "kind": "reject_once" },
    ]);
    let steps = json!([asks(&json!({ "command": "ls" }), &options)]);
    let answer = told(&editor.turn_do(&session, &steps));
    assert_eq!(chosen(&answer), "no");
    assert!(answer["result"]["_meta"]["conductor"]["reason"].as_str().unwrap().contains("no_allow_once"));
}

#[test]
fn always_becomes_once_and_holds_for_the_session_and_for_exactly_this() {
    let service = ruled(&json!({}), "use = ['default']").start();
    let (mut editor, session) = open(&service);
    let run = |command: &str| json!([asks(&json!({ "command": command }), &usual())]);
    let turn = editor.prompt_do(&session, &run("make install"));
    let request = editor.next_request("session/request_permission");
    editor.answer(&request, &json!({ "outcome": { "outcome": "selected", "optionId": "ever" } }));
    editor.stop_reason(&turn);
    assert_eq!(chosen(&told(&editor.chunks(&session))), "once");
    let chunks = editor.turn_do(&session, &run("make install"));
    assert_eq!(chosen(&told(&chunks)), "once");
    assert_eq!(was_asked(&editor), 1, "it was granted");
    editor.prompt_do(&session, &run("make install PREFIX=/"));
    let request = editor.next_request("session/request_permission");
    editor.answer(&request, &json!({ "outcome": { "outcome": "selected", "optionId": "no" } }));
    let (mut other, another) = open(&service);
    other.prompt_do(&another, &run("make install"));
    other.next_request("session/request_permission");
}

#[test]
fn an_answer_that_was_not_on_offer_allows_nothing() {
    let service = ruled(&json!({}), "use = ['default']").start();
    let (mut editor, session) = open(&service);
    let turn = editor.prompt_do(&session, &json!([asks(&json!({ "command": "make all" }), &usual())]));
    let request = editor.next_request("session/request_permission");
    editor.answer(&request, &json!({ "outcome": { "outcome": "selected", "optionId": "made up" } }));
    editor.stop_reason(&turn);
    assert_ne!(chosen(&told(&editor.chunks(&session))), "made up");
}

#[test]
fn t02_a_title_does_not_count() {
    let service = ruled(&json!({}), "use = ['default']").start();
    let (mut editor, session) = open(&service);
    let mut ask = asks(&Value::Null, &usual());
    ask["request"]["params"]["toolCall"] = json!({ "toolCallId": "c", "title": "ls", "kind": "read" });
    editor.prompt_do(&session, &json!([ask]));
    editor.next_request("session/request_permission");
}

#[test]
fn what_a_call_was_announced_with_counts() {
    let service = ruled(&json!({}), "use = ['default']").start();
    let (mut editor, session) = open(&service);
    let announced = json!({ "notify": { "method": "session/update", "params": { "sessionId": "$sid", "update": {
        "sessionUpdate": "tool_call", "toolCallId": "call-1", "title": "t", "kind": "execute",
        "rawInput": { "command": "ls" }, "_meta": { "claudeCode": { "toolName": "Bash" } },
    } } } });
    let mut ask = asks(&Value::Null, &usual());
    ask["request"]["params"]["toolCall"] = json!({ "toolCallId": "call-1" });
    let chunks = editor.turn_do(&session, &json!([announced, ask]));
    assert_eq!(chosen(&told(&chunks)), "once");
    let contradicting = asks(&json!({ "command": "make all" }), &usual());
    editor.prompt_do(&session, &json!([announced, contradicting]));
    editor.next_request("session/request_permission");
}

#[test]
fn what_a_person_has_allowed_a_tool_to_do_it_may_do_once() {
    let service = ruled(&json!({}), "use = ['default']").start();
    let file = service.work().join("a.txt");
    let (mut editor, session) = open(&service);
    let mut ask = asks(&json!({ "file_path": file, "content": "new" }), &usual());
    ask["request"]["params"]["toolCall"]["kind"] = "edit".into();
    ask["request"]["params"]["toolCall"]["_meta"]["claudeCode"]["toolName"] = "Write".into();
    let steps = json!([ask, writes(&file)[0], writes(&file)[0]]);
    let turn = editor.prompt_do(&session, &steps);
    let request = editor.next_request("session/request_permission");
    editor.answer(&request, &json!({ "outcome": { "outcome": "selected", "optionId": "once" } }));
    let second = editor.next_request("session/request_permission");
    assert!(file.exists(), "the first write needed no second question");
    editor.answer(&second, &json!({ "outcome": { "outcome": "selected", "optionId": "reject" } }));
    editor.stop_reason(&turn);
}

#[test]
fn once_is_once_for_a_tool_that_asks_again() {
    let service = ruled(&json!({}), "use = ['default']").start();
    let (mut editor, session) = open(&service);
    let ask = || asks(&json!({ "command": "make install" }), &usual());
    let turn = editor.prompt_do(&session, &json!([ask(), ask()]));
    for _ in 0..2 {
        let request = editor.next_request("session/request_permission");
        editor.answer(&request, &json!({ "outcome": { "outcome": "selected", "optionId": "once" } }));
    }
    editor.stop_reason(&turn);
}

#[test]
fn with_nobody_there_a_question_is_denied_in_time() {
    let service = ruled(&json!({}), "use = ['default']").set("policy.ask_timeout", "300ms").start();
    let (mut editor, session) = open(&service);
    editor.prompt_do(&session, &json!([asks(&json!({ "command": "make all" }), &usual())]));
    editor.next_request("session/request_permission");
    drop(editor);
    let answer = service.wait_received("fake", "an answer to its request", |line| {
        line.json().is_some_and(|message| message.get("method").is_none() && message["id"] == 0)
    });
    let answer = answer.json().unwrap();
    assert_eq!(chosen(&answer), "no", "{answer}");
    assert!(answer["result"]["_meta"]["conductor"]["reason"].as_str().unwrap().contains("nobody"));
}

#[test]
fn a_write_that_nobody_asked_about_is_asked_about() {
    let service = ruled(&json!({}), "use = ['default']").start();
    let file = service.work().join("a.txt");
    let (mut editor, session) = open(&service);
    let turn = editor.prompt_do(&session, &writes(&file));
    let request = editor.next_request("session/request_permission");
    assert_eq!(request["params"]["toolCall"]["kind"], "edit");
    assert_eq!(request["params"]["toolCall"]["rawInput"]["path"], file.to_str().unwrap());
    assert!(!file.exists(), "it waits");
    editor.answer(&request, &json!({ "outcome": { "outcome": "selected", "optionId": "allow" } }));
    editor.stop_reason(&turn);
    assert_eq!(fs::read_to_string(&file).unwrap(), "new");
    let other = service.work().join("b.txt");
    let turn = editor.prompt_do(&session, &writes(&other));
    let request = editor.next_request("session/request_permission");
    editor.answer(&request, &json!({ "outcome": { "outcome": "selected", "optionId": "reject" } }));
    editor.stop_reason(&turn);
    assert!(!other.exists());
    assert_eq!(told(&editor.chunks(&session)[1..])["error"]["code"], -31005);
}

#[test]
fn a_write_that_is_denied_says_why_to_the_agent() {
    let service = ruled(&json!({}), "use = ['default']").start();
    let (mut editor, session) = open(&service);
    let answer = told(&editor.turn_do(&session, &writes(&service.work().join(".git/hooks/pre-commit"))));
    assert_eq!(answer["error"]["code"], -31005, "{answer}");
    assert!(answer["error"]["message"].as_str().unwrap().contains("denied by the policy"), "{answer}");
    assert!(!service.work().join(".git").exists());
    assert_eq!(was_asked(&editor), 0);
}
