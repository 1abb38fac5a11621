//! What agents do without asking, or other than they asked, and what is on record of it all.

use std::time::Duration;

use conductor::ledger::Settings;
use conductor_tests::{disk, harness::poll_until, shipping};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::{asks, chosen, modes, open, ruled, tells, told, usual, was_asked};

#[test]
fn decisions_can_be_asked_for_with_sql() {
    let service = ruled(&json!({}), "use = ['default']").start();
    let (mut editor, session) = open(&service);
    editor.turn_do(&session, &json!([asks(&json!({ "command": "ls" }), &usual())]));
    let settings = Settings::embedded(&service.state());
    let rows = "SELECT count(*) FROM decisions WHERE verdict = 'allow' AND decision = 'allow' \
        AND decided_by = 'conductor' AND length(policy_revision) > 11 AND rule IS NOT NULL \
        AND method = 'session/request_permission' AND sub_actions LIKE '%\"program\":\"ls\"%'";
    let runtime = Runtime::new().unwrap();
    let found =
        poll_until(Duration::from_secs(20), || runtime.block_on(shipping::number(&settings, rows)) == 1);
    assert!(found);
}

#[test]
fn m2_what_is_done_without_asking_is_reported_once_and_recorded() {
    let mut service = ruled(&json!({}), "use = ['default']").start();
    let mut editor = service.connect(&[]);
    editor.initialize_with(&json!({ "session": { "notices": {} } }));
    let opened = editor.call("session/new", &json!({ "cwd": service.work(), "mcpServers": [] }));
    let session = opened["sessionId"].as_str().unwrap().to_owned();
    let done = |id: &str, kind: &str| {
        tells(&json!({ "sessionUpdate": "tool_call", "toolCallId": id, "title": "t", "kind": kind,
            "status": "completed", "rawInput": { "command": "rm -rf x" } }))
    };
    editor.turn_do(&session, &json!([done("looks", "read"), done("acts", "execute"), done("again", "edit")]));
    let notices = editor.lines().iter().filter(|line| line.text().contains("Not asked")).count();
    assert_eq!(notices, 1, "{}", editor.story());
    service.wait_log("the agent acted without asking");
    service.term();
    let noted = disk::journal(&service);
    let noted = noted.iter().flat_map(|record| record.lines().map(<[u8]>::to_vec).collect::<Vec<_>>());
    let noted: Vec<Value> = noted.filter_map(|line| serde_json::from_slice(&line).ok()).collect();
    let noted: Vec<&Value> = noted
        .iter()
        .filter(|line| line["method"] == "_conductor/unmediated")
        .map(|line| &line["params"]["toolCallId"])
        .collect();
    assert_eq!(noted, ["acts", "again"]);
}

#[test]
fn a_call_that_was_asked_about_may_end_twice_and_its_id_come_again() {
    let mut service = ruled(&json!({}), "use = ['default']").start();
    let (mut editor, session) = open(&service);
    let call = |update: &str, kind: &str, status: &str| {
        tells(&json!({ "sessionUpdate": update, "toolCallId": "call-1", "title": "t", "kind": kind,
            "status": status }))
    };
    let ended = || call("tool_call_update", "execute", "completed");
    let ask = asks(&json!({ "command": "ls" }), &usual());
    let steps = json!([
        call("tool_call", "execute", "pending"),
        ask,
        ended(),
        ended(),
        call("tool_call", "read", "completed")
    ]);
    assert_eq!(chosen(&told(&editor.turn_do(&session, &steps))), "once");
    service.term();
    let notes = disk::texts(&disk::journal(&service), conductor::record::Origin::Conductor);
    let reported: Vec<_> = notes.iter().filter(|note| note.contains("_conductor/unmediated")).collect();
    assert!(reported.is_empty(), "{reported:?}");
}

#[test]
fn m3_a_call_that_is_changed_after_it_was_allowed_ends_the_turn() {
    let service = ruled(&json!({}), "use = ['default']").start();
    let (mut editor, session) = open(&service);
    let update = |input: Value| {
        tells(&json!({ "sessionUpdate": "tool_call_update", "toolCallId": "call-1", "status": "in_progress",
            "rawInput": input, "_meta": { "claudeCode": { "toolName": "Bash" } } }))
    };
    let ask = || asks(&json!({ "command": "ls -la" }), &usual());
    let honest = json!([ask(), update(json!({ "command": "ls -la" })), { "update": { "text": "fine " } }]);
    let turn = editor.prompt_do(&session, &honest);
    assert_eq!(editor.stop_reason(&turn), "end_turn");
    let sly = json!([ask(), update(json!({ "command": "rm -rf src" })), "wait_cancel"]);
    let turn = editor.prompt_do(&session, &sly);
    assert_eq!(editor.stop_reason(&turn), "cancelled");
    service.wait_log("a tool call was changed after it was allowed");
}

#[test]
fn o4_a_storm_of_requests_is_decided_and_recorded_in_groups() {
    let service = ruled(&json!({}), "use = ['default']").start();
    let (mut editor, session) = open(&service);
    let mut ask = asks(&json!({ "command": "git status --short" }), &usual());
    ask["request"]["forget"] = true.into();
    let steps = json!([{ "repeat": [1000, [ask]] }, { "update": { "text": "sent " } }]);
    let turn = editor.prompt_do(&session, &steps);
    assert_eq!(editor.stop_reason(&turn), "end_turn");
    let answers = || {
        let heard = service.ledger("fake");
        let heard = heard.iter().filter_map(|entry| entry.json());
        heard.filter(|line| chosen(line) == "once").count()
    };
    assert!(poll_until(Duration::from_secs(30), || answers() == 1000), "{} answers", answers());
    assert_eq!(was_asked(&editor), 0);
}

#[test]
fn a14_what_cannot_be_read_is_not_carried_out() {
    let service = ruled(&modes("default"), "use = ['trusted']").start();
    let (mut editor, session) = service.session();
    // Numbers that serde cannot hold, and others can.
    let odd = r#"{"jsonrpc":"2.0","id":7,"method":"fs/write_text_file","params":{"sessionId":"$sid","path":"PATH","content":"x","n":1e999}}"#;
    let odd = odd.replace("PATH", service.work().join("odd.txt").to_str().unwrap());
    editor.turn_do(&session, &json!([{ "line": odd }, { "update": {} }]));
    let refused = service.wait_received("fake", "a refusal", |entry| {
        entry.json().is_some_and(|line| line["id"] == 7 && line["error"]["code"] == -32602)
    });
    assert!(refused.json().is_some());
    assert!(!service.work().join("odd.txt").exists());
    for params in [
        format!(r#"{{"sessionId":"{session}","modeId":"bypassPermissions","n":1e999}}"#),
        format!(r#"{{"sessionId":"{session}","modeId":"default","modeId":"bypassPermissions"}}"#),
    ] {
        let id = editor.request_raw("session/set_mode", &params);
        assert!(editor.response(&id)["error"]["code"].is_i64(), "{params}");
    }
    let work = service.work();
    let params = format!(
        r#"{{"cwd":"{}","mcpServers":[{{"name":"x","command":"/bin/x","args":[],"env":[]}}],"n":1e999}}"#,
        work.display()
    );
    let id = editor.request_raw("session/new", &params);
    assert_eq!(editor.response(&id)["error"]["code"], -32602);
}

#[test]
fn a_request_without_an_id_is_nobodys_order() {
    let service =
        ruled(&modes("default"), "use = ['trusted']").set("agents.fake.workspace", "editor").start();
    let (mut editor, session) = service.session();
    let write = json!({ "notify": { "method": "fs/write_text_file", "params": {
        "sessionId": "$sid", "path": service.work().join("a"), "content": "x" } } });
    editor.turn_do(&session, &json!([write, { "update": {} }]));
    assert!(!editor.lines().iter().any(|line| line.method() == "fs/write_text_file"), "{}", editor.story());
    editor.notify("session/set_mode", &json!({ "sessionId": session, "modeId": "bypassPermissions" }));
    editor.turn_do(&session, &json!([{ "update": {} }]));
    let heard = service.ledger("fake");
    assert!(!heard.iter().any(|entry| entry.json().is_some_and(|line| line["method"] == "session/set_mode")));
}
