//! Losses at the seams: a guard that is killed, an editor that stops talking
//! but listens, an agent that is overrun.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

use std::{io::Write as _, process::Stdio, time::Duration};

use conductor_tests::{
    fake::process::SLEEPER,
    harness::{assert_says, poll_until, service},
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};

/// The code of what is one too many.
const LIMIT: i64 = -31002;

#[test]
fn c03_killed_guard_takes_the_agent_and_its_descendants_along() {
    let service = service(&json!({})).set("agents.fake.warm", 0).start();
    let (mut editor, session) = service.session();
    for how in [json!({}), json!({ "detach": true, "hold_stdout": true })] {
        editor.turn_do(&session, &json!([{ "fork": how }]));
    }
    let id = editor.prompt_do(&session, &json!([{ "update": {} }, "hang"]));
    editor.wait_chunks(&session, 1);
    let guard = service.processes().into_iter().find(|running| running.command.contains(" guard ")).unwrap();
    kill(Pid::from_raw(guard.pid.cast_signed()), Signal::SIGKILL).unwrap();
    assert_says(&editor.error_of(&id), &["SIGKILL"]);
    service.wait_gone("fake-agent", Duration::from_secs(2));
    service.wait_gone(SLEEPER, Duration::from_secs(2));
    // Nobody is left as a zombie, either: the service reaps what it adopted.
    let children = format!("/proc/{}/task/{}/children", service.pid(), service.pid());
    let none = || std::fs::read_to_string(&children).unwrap().trim().is_empty();
    assert!(poll_until(Duration::from_secs(5), none), "{}", std::fs::read_to_string(&children).unwrap());
}

#[test]
fn editor_that_stops_talking_still_gets_its_answers() {
    let service = service(&json!({})).start();
    let mut bridge = service.command(&["connect"]);
    let mut bridge = bridge.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let hello =
        json!({ "jsonrpc": "2.0", "id": 7, "method": "initialize", "params": { "protocolVersion": 1 } });
    writeln!(bridge.stdin.take().unwrap(), "{hello}").unwrap();
    let output = bridge.wait_with_output().unwrap();
    assert!(output.status.success());
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&answer["id"], &answer["result"]["protocolVersion"]), (&json!(7), &json!(1)));
}

#[test]
fn agent_that_is_overrun_is_ended_and_nothing_is_lost_in_silence() {
    let service = service(&json!({})).set("service.stall_timeout", "60s").start();
    let mut editor = service.editor();
    let session = editor.new_session(&service.work());
    editor.set_deadline(Duration::from_secs(60));
    let id = editor.prompt_do(&session, &json!(["stop_reading", "hang"]));
    // Far more than pipe and queues hold; notifications cannot be refused.
    let padding = "x".repeat(1 << 20);
    for _ in 0..64 {
        editor.notify("_test/padding", &json!({ "sessionId": session, "padding": padding }));
    }
    assert_says(&editor.error_of(&id), &["did not read its input"]);
    // The process that takes its place has lost nothing.
    editor.turn_do(&session, &json!([{ "update": {} }]));
    editor.turn_do(&session, &json!([{ "update": {} }]));
}

#[test]
fn a_cancel_for_another_session_does_not_end_an_agent_that_is_busy() {
    let service = service(&json!({})).set("service.stall_timeout", "60s").start();
    let mut editor = service.editor();
    editor.set_deadline(Duration::from_secs(60));
    let (session, go) = (editor.new_session(&service.work()), service.work().join("go"));
    let turn = editor.prompt_do(&session, &json!(["stop_reading", { "wait_file": go }, "start_reading"]));
    // Until there is room for none any more: first in the pipe, then in the session's queue.
    let mut asked = |padding: usize, count: usize| {
        let params = json!({ "sessionId": session, "padding": "x".repeat(padding) });
        let ids: Vec<Value> = (0..count).map(|_| editor.request("_x/return", &params)).collect();
        ids.into_iter().next_back().unwrap()
    };
    asked(1 << 20, 20);
    let refused = asked(1, 400);
    assert_eq!(editor.error_of(&refused)["code"], LIMIT);
    for _ in 0..20 {
        editor.notify("$/cancel_request", &json!({ "requestId": "nobody's".repeat(100) }));
    }
    // Answered after those, by the connection itself.
    editor.call("session/list", &json!({}));
    std::fs::write(&go, "").unwrap();
    assert_eq!(editor.stop_reason(&turn), "end_turn");
}
