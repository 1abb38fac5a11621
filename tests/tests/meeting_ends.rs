//! Ends that meet: what is asked while something else closes, fails, reloads
//! or fills up still gets its one answer, and harms nobody else.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

use std::{fs, time::Duration};

use conductor_tests::{
    editor::DEADLINE,
    harness::{Service, assert_says, poll_until, service},
    ledger::to_hex,
};
use serde_json::{Value, json};

fn new_params(service: &Service) -> Value {
    json!({ "cwd": service.work(), "mcpServers": [] })
}

fn line(id: u64, method: &str, params: &Value) -> String {
    json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }).to_string() + "\n"
}

#[test]
fn requests_behind_a_close_are_answered() {
    let service = service(&json!({})).start();
    let (editor, session) = service.session();
    let params = json!({ "sessionId": session, "prompt": [] });
    let block = line(901, "session/close", &params)
        + &line(902, "session/prompt", &params)
        + &line(903, "_x/return", &params);
    editor.send_bytes(block.as_bytes());
    assert_eq!(editor.response(&json!(901))["result"], json!({}));
    for id in [902, 903] {
        assert_eq!(editor.error_of(&json!(id))["code"], -32002);
    }
}

#[test]
fn requests_held_while_a_session_opens_are_answered_when_it_fails() {
    let service = service(&json!({ "start": [{ "sleep": 200 }, { "exit": 3 }] })).start();
    let editor = service.editor();
    let block = line(901, "session/new", &new_params(&service)) + &line(902, "_x/return", &json!({}));
    editor.send_bytes(block.as_bytes());
    assert_says(&editor.error_of(&json!(901)), &["status 3"]);
    editor.error_of(&json!(902));
}

#[test]
fn session_that_is_still_opening_is_answered_when_the_editor_stops_talking() {
    let service = service(&json!({})).start();
    let editor = service.editor();
    editor.send_bytes(line(901, "session/new", &new_params(&service)).as_bytes());
    editor.close_stdin();
    editor.wait_end();
    assert_eq!(editor.answers_to(&json!(901)), 1, "{}", editor.story());
}

// Several sessions on one process.

#[test]
fn late_answers_to_closed_sessions_are_no_breach() {
    let script = json!({ "instead": { "session/close": [{ "sleep": 30 }] } });
    let service = service(&script).set("agents.fake.sessions_per_process", 200).start();
    let (mut editor, anchor) = service.session();
    for _ in 0..120 {
        let session = editor.new_session(&service.work());
        editor.call("session/close", &json!({ "sessionId": session }));
    }
    let closed = |service: &Service| {
        service.received("fake").iter().filter(|e| e.method().as_deref() == Some("session/close")).count()
    };
    assert!(poll_until(DEADLINE, || closed(&service) == 120));
    service.wait_settled("fake");
    assert_eq!(editor.turn(&anchor, "alive"), ["echo: alive"]);
}

#[test]
fn requests_for_a_closed_session_are_answered() {
    let service =
        service(&json!({ "reuse_session_ids": true })).set("agents.fake.sessions_per_process", 2).start();
    let (mut editor, anchor) = service.session();
    for closed in 1..20 {
        let session = editor.new_session(&service.work());
        editor.call("session/close", &json!({ "sessionId": session }));
        let params = json!({ "sessionId": closed.to_string(), "toolCall": {}, "options": [] });
        let ask = json!({ "request": { "method": "session/request_permission", "params": params } });
        let chunks = editor.turn_do(&anchor, &json!([ask]));
        assert!(chunks[0].starts_with("answer "), "{chunks:?}");
    }
}

#[test]
fn requests_for_a_session_that_never_comes_are_answered() {
    let ask = json!({ "request": {
        "method": "fs/read_text_file", "params": { "sessionId": "ghost", "path": "/x" }, "forget": true,
    } });
    let script = json!({ "before": { "session/new": [ask] } });
    let service = service(&script).set("agents.fake.sessions_per_process", 2).start();
    let (_editor, _session) = service.session();
    service.wait_received("fake", "an answer about the ghost", |entry| {
        entry.json().is_some_and(|json| json["error"]["data"]["sessionId"] == "ghost")
    });
}

// The pool.

fn freed_place(warm: u64) {
    let service = service(&json!({ "before": { "initialize": [{ "sleep": 300 }] } }))
        .set("agents.fake.max", 1)
        .set("agents.fake.queue_timeout", "0s")
        .set("agents.fake.warm", warm)
        .start();
    let (mut editor, mut session) = service.session();
    for _ in 0..3 {
        editor.call("session/close", &json!({ "sessionId": session }));
        session = editor.new_session(&service.work());
    }
    let error = editor.call_error("session/new", &new_params(&service));
    assert_says(&error, &["all 1 processes"]);
}

#[test]
fn place_that_is_being_freed_is_waited_for() {
    freed_place(0);
}

#[test]
fn process_that_is_starting_is_waited_for() {
    freed_place(1);
}

#[test]
fn lost_directory_does_not_quarantine_the_agent() {
    let service = service(&json!({}))
        .set("agents.fake.warm", 1)
        .set("agents.fake.restart", json!({ "intensity": 3, "within": "30s", "backoff": "10ms" }))
        .start();
    let mut editor = service.editor();
    let place = service.work().join("short-lived");
    fs::create_dir(&place).unwrap();
    let session = editor.new_session(&place);
    editor.call("session/close", &json!({ "sessionId": session }));
    fs::remove_dir(&place).unwrap();
    assert!(service.run(&["agents", "restart", "fake"]).status.success());
    let quarantined =
        || service.agent_json("fake")["state"].to_string().to_lowercase().contains("quarantine");
    assert!(!poll_until(Duration::from_secs(2), quarantined), "{}", service.log());
    editor.new_session(&service.work());
}

fn variables(editor: &mut conductor_tests::editor::Editor, session: &str) -> String {
    editor.turn_do(session, &json!(["describe"])).join(" ")
}

#[test]
fn reload_reaches_new_sessions_of_a_shared_process() {
    let mut service = service(&json!({})).set("agents.fake.sessions_per_process", 4).start();
    let (mut editor, old) = service.session();
    service.configure("agents.fake.env.FRESHLY_SET", "1");
    service.reload();
    service.wait_log("the configuration was reloaded");
    let new = editor.new_session(&service.work());
    assert!(!variables(&mut editor, &old).contains("FRESHLY_SET"));
    assert!(variables(&mut editor, &new).contains("FRESHLY_SET"));
}

#[test]
fn reload_reaches_sessions_although_a_process_was_starting() {
    let builder = service(&json!({}));
    let gate = builder.dir().join("go");
    let script = json!({ "start": [{ "wait_file": gate }] });
    let mut service = builder.agent("fake", &script).set("agents.fake.warm", 1).start();
    let mut editor = service.connect(&[]);
    let hello = editor.request("initialize", &json!({ "protocolVersion": 1 }));
    // One of them is asked what it offers; the other one is for the session.
    assert!(poll_until(DEADLINE, || service.agents_alive().len() >= 2));
    service.configure("agents.fake.env.FRESHLY_SET", "1");
    service.reload();
    service.wait_log("the configuration was reloaded");
    fs::write(gate, "").unwrap();
    editor.response(&hello);
    let session = editor.new_session(&service.work());
    assert!(variables(&mut editor, &session).contains("FRESHLY_SET"));
}

// Agents.

#[test]
fn agent_that_closes_its_input_is_ended() {
    let builder = service(&json!({}));
    let closed = builder.dir().join("closed");
    let says = r#"
        read -r hello; echo '{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":1}}'
        read -r new; echo '{"jsonrpc":"2.0","id":1,"result":{"sessionId":"s"}}'
        exec 0<&-; touch "$0"; exec sleep 600"#;
    let service = builder
        .set("agents.deaf", json!({ "command": "/bin/sh", "args": ["-c", says, closed], "warm": 0 }))
        .start();
    let mut editor = service.connect(&["--agent", "deaf"]);
    editor.initialize();
    let session = editor.new_session(&service.work());
    assert!(poll_until(DEADLINE, || closed.exists()));
    let ids = [editor.prompt(&session, "one"), editor.prompt(&session, "two")];
    for id in ids {
        assert_says(&editor.error_of(&id), &["closed its stdin and was ended"]);
    }
}

#[test]
fn a09_unfinished_line_after_a_pause_ends_the_agent() {
    let service = service(&json!({})).set("service.stall_timeout", "500ms").start();
    let (mut editor, session) = service.session();
    let gate = service.dir.join("go");
    let steps = json!([{ "update": {} }, { "wait_file": gate }, { "bytes": "7b2270617274" }, "hang"]);
    let id = editor.prompt_do(&session, &steps);
    editor.wait_chunks(&session, 1);
    fs::write(gate, "").unwrap();
    assert_says(&editor.error_of(&id), &["unfinished"]);
}

#[test]
fn largest_line_travels_with_what_follows_it() {
    let service = service(&json!({ "reuse_session_ids": true })).start();
    let (mut editor, session) = service.session();
    let update = |text: &str| {
        let content = json!({ "type": "text", "text": text });
        let update = json!({ "sessionUpdate": "agent_message_chunk", "content": content });
        json!({ "jsonrpc": "2.0", "method": "session/update", "params": { "sessionId": "0", "update": update } })
            .to_string()
    };
    // One line just below the limit, and in the same write as its end as
    // much as one read can take.
    let large = update("HERE");
    let (before, after) = large.split_once("HERE").unwrap();
    let fill = (16 << 20) - large.len() - 100;
    let tail = format!("{}\n", update("x")).repeat(1200);
    let steps = json!([
        { "bytes": to_hex(before.as_bytes()) },
        { "fill": [b'x', fill] },
        { "bytes": to_hex(format!("{after}\n{tail}").as_bytes()) },
    ]);
    let id = editor.prompt_do(&session, &steps);
    assert_eq!(editor.stop_reason(&id), "end_turn");
    assert_eq!(editor.chunks(&session).len(), 1201);
}

// The connection.

#[test]
fn deleted_session_is_gone_at_once() {
    let service = service(&json!({})).start();
    let (editor, session) = service.session();
    let params = json!({ "sessionId": session });
    let block = line(901, "session/delete", &params) + &line(902, "session/list", &json!({}));
    editor.send_bytes(block.as_bytes());
    assert_eq!(editor.response(&json!(902))["result"]["sessions"], json!([]));
}

#[test]
fn session_is_reopened_beneath_the_roots_of_its_own_agent() {
    let builder = service(&json!({})).agent("wide", &json!({}));
    let (work, other) = (builder.dir().join("work"), builder.dir().join("other"));
    let service = builder
        .set("agents.fake.roots", json!([work]))
        .set("agents.wide.roots", json!([work, other]))
        .start();
    let (mut editor, session) = service.session();
    editor.turn(&session, "history");
    editor.call("session/close", &json!({ "sessionId": session }));
    let mut wide = service.connect(&["--agent", "wide"]);
    wide.initialize();
    let mut params = json!({ "sessionId": session, "cwd": other, "mcpServers": [] });
    assert_says(&wide.call_error("session/load", &params), &["outside the roots"]);
    params["cwd"] = json!(work);
    wide.call("session/load", &params);
}

#[test]
fn logins_at_once_are_bounded() {
    let service = service(&json!({ "instead": { "authenticate": ["hang"] } })).start();
    let mut editor = service.editor();
    let ids: Vec<Value> =
        (0..9).map(|_| editor.request("authenticate", &json!({ "methodId": "x" }))).collect();
    assert_eq!(editor.error_of(&ids[8])["code"], -31002);
}
