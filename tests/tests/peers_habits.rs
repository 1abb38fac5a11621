//! Habits of real agents that the lab has met (`tests/lab`), played by the fake
//! agent so that every test run meets them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

use std::fs;

use conductor_tests::harness::service;
use serde_json::json;

/// Gemini CLI does not find a session that it made seconds ago, and finds it a
/// minute later.
#[test]
fn a_session_that_the_agent_does_not_find_goes_on_with_a_hand_over() {
    let service = service(&json!({})).start();
    let (mut editor, session) = service.session();
    editor.turn(&session, "remember me");
    editor.call("session/close", &json!({ "sessionId": session }));

    let (store, away) = (service.dir.join("store/fake"), service.dir.join("store/away"));
    fs::rename(&store, &away).unwrap();
    fs::create_dir(&store).unwrap();
    let params = json!({ "sessionId": session, "cwd": service.work(), "mcpServers": [] });
    let before = editor.chunks(&session).len();
    editor.call("session/load", &params);
    assert_eq!(editor.chunks(&session)[before..], ["echo: remember me"]);
    editor.call("session/close", &json!({ "sessionId": session }));

    // Nothing was said to the new session of the agent's, so the old one, which
    // is found by now, is still the one to go back to.
    fs::remove_dir_all(&store).unwrap();
    fs::rename(&away, &store).unwrap();
    editor.call("session/load", &params);
    assert_eq!(editor.turn(&session, "and on"), ["echo: and on"]);
}

/// Claude's adapter tells of its login, for no session, while it opens one.
#[test]
fn a_notification_for_no_session_reaches_the_editor() {
    let told = json!({ "authStatus": { "kind": "api_key", "label": "a key" } });
    let notify = json!([{ "notify": { "method": "_auth/status_update", "params": told } }]);
    let service = service(&json!({ "before": { "session/new": notify } })).start();
    let (mut editor, session) = service.session();
    assert_eq!(editor.turn(&session, "hello"), ["echo: hello"]);
    let seen = editor.wait_for("the notification", |line| {
        (line.method() == "_auth/status_update").then(|| line.json["params"].clone())
    });
    assert_eq!(seen, told);
}
