//! How terminals and requests end: killed, released, withdrawn, or with their
//! session.

use std::{thread, time::Duration};

use conductor_tests::{
    editor::{DEADLINE, Editor},
    harness::{Service, poll_until},
};
use serde_json::{Value, json};

use crate::{ask, bad, create, good, hosted, request, told};

/// Everything of a session must be gone by then.
const SOON: Duration = Duration::from_secs(3);

/// A command with descendants that hide: in sessions of their own, their
/// parents gone, deaf to SIGTERM.
fn tree(service: &Service) -> Value {
    let line = "trap '' TERM HUP; \
        setsid sleep 3701 & \
        (setsid sh -c 'sleep 3702 & sleep 3703' &) ; \
        sh -c 'trap \"\" TERM; sleep 3704; sleep 3705' & \
        sleep 3706";
    json!({ "command": "sh", "args": ["-c", line], "env": [service.tag()] })
}

fn sleepers(service: &Service) -> usize {
    service.processes().iter().filter(|running| running.command.starts_with("sleep 37")).count()
}

/// Starts the tree and waits until all of it runs.
fn grow(service: &Service, editor: &mut Editor, session: &str) -> Value {
    let id = create(editor, session, &tree(service));
    assert!(poll_until(DEADLINE, || sleepers(service) == 5), "{:?}", service.processes());
    json!({ "terminalId": id })
}

#[test]
fn kill_ends_the_whole_tree_and_the_terminal_stays() {
    let service = hosted();
    let (mut editor, session) = service.session();
    let id = grow(&service, &mut editor, &session);
    assert_eq!(good(&mut editor, &session, "terminal/kill", &id), json!({}));
    assert_eq!(sleepers(&service), 0, "{:?}", service.processes());
    let killed = json!({ "exitCode": null, "signal": "SIGKILL" });
    assert_eq!(good(&mut editor, &session, "terminal/wait_for_exit", &id), killed);
    let output = good(&mut editor, &session, "terminal/output", &id);
    assert_eq!(output, json!({ "output": "", "truncated": false, "exitStatus": killed }));
}

#[test]
fn release_ends_the_whole_tree_and_frees_the_id() {
    let service = hosted();
    let (mut editor, session) = service.session();
    let id = grow(&service, &mut editor, &session);
    let mut wait = request("terminal/wait_for_exit", &id);
    wait["request"]["forget"] = json!(true);
    let chunks = editor.turn_do(&session, &json!([wait, request("terminal/release", &id)]));
    assert_eq!(told(&chunks[0])["result"], json!({}));
    assert_eq!(sleepers(&service), 0, "{:?}", service.processes());
    // Who waited is told.
    service.wait_received("fake", "the end of the command", |line| {
        line.text.as_deref().is_some_and(|text| text.contains(r#""signal":"SIGKILL""#))
    });
    for method in ["output", "wait_for_exit", "kill", "release"] {
        let error = bad(&mut editor, &session, &format!("terminal/{method}"), &id);
        assert_eq!(error["code"], -32002, "{method}: {error}");
        assert_eq!(error["data"], id);
    }
}

#[test]
fn what_a_command_leaves_behind_ends_with_it() {
    let service = hosted();
    let (mut editor, session) = service.session();
    let line = "setsid sleep 3707 & sleep 3708 & exit 4";
    let params = json!({ "command": line, "env": [service.tag()] });
    let id = json!({ "terminalId": create(&mut editor, &session, &params) });
    assert_eq!(good(&mut editor, &session, "terminal/wait_for_exit", &id)["exitCode"], 4);
    assert_eq!(sleepers(&service), 0, "{:?}", service.processes());
}

#[test]
fn terminals_belong_to_their_session() {
    let service =
        conductor_tests::harness::service(&json!({})).set("agents.fake.sessions_per_process", 8).start();
    let mut editor = service.editor();
    let (one, two) = (editor.new_session(&service.work()), editor.new_session(&service.work()));
    assert_eq!(service.agents_alive().len(), 1, "both are with one process");
    let id = json!({ "terminalId": create(&mut editor, &one, &tree(&service)) });
    for method in ["output", "wait_for_exit", "kill", "release"] {
        let method = format!("terminal/{method}");
        let error = bad(&mut editor, &two, &method, &id);
        assert_eq!(error["code"], -32002, "{method}: {error}");
        // Not told apart from one that never was.
        let never = bad(&mut editor, &two, &method, &json!({ "terminalId": "never" }));
        assert_eq!((&error["code"], &error["message"]), (&never["code"], &never["message"]));
        assert_eq!(bad(&mut editor, &two, &method, &json!({}))["code"], -32602);
    }
    assert!(good(&mut editor, &one, "terminal/output", &id).get("exitStatus").is_none());
    // The other session's end is not this one's.
    editor.call("session/close", &json!({ "sessionId": two }));
    assert!(good(&mut editor, &one, "terminal/output", &id).get("exitStatus").is_none());
    editor.call("session/close", &json!({ "sessionId": one }));
    assert!(poll_until(SOON, || sleepers(&service) == 0), "{:?}", service.processes());
}

#[test]
fn terminals_end_with_their_editor() {
    let service = hosted();
    let (mut editor, session) = service.session();
    grow(&service, &mut editor, &session);
    drop(editor);
    assert!(poll_until(SOON, || sleepers(&service) == 0), "{:?}", service.processes());
}

#[test]
fn terminals_end_with_their_agent() {
    let service = hosted();
    let (mut editor, session) = service.session();
    grow(&service, &mut editor, &session);
    let id = editor.prompt_do(&session, &json!([{ "exit": 3 }]));
    editor.error_of(&id);
    assert!(poll_until(SOON, || sleepers(&service) == 0), "{:?}", service.processes());
}

#[test]
fn terminals_end_with_a_killed_service() {
    let mut service = hosted();
    let (mut editor, session) = service.session();
    grow(&service, &mut editor, &session);
    service.kill9();
    assert!(poll_until(SOON, || sleepers(&service) == 0), "{:?}", service.processes());
}

#[test]
fn terminals_end_when_their_guard_is_killed() {
    let service = hosted();
    let (mut editor, session) = service.session();
    let id = grow(&service, &mut editor, &session);
    let guards = service.processes();
    let guard =
        guards.iter().find(|running| running.command.contains("guard") && running.command.contains("3701"));
    let guard = i32::try_from(guard.unwrap_or_else(|| panic!("no guard in {guards:?}")).pid).unwrap();
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(guard), nix::sys::signal::Signal::SIGKILL).unwrap();
    assert_eq!(good(&mut editor, &session, "terminal/wait_for_exit", &id)["signal"], "SIGKILL");
    assert!(poll_until(SOON, || sleepers(&service) == 0), "{:?}", service.processes());
}

#[test]
fn a_cancelled_turn_leaves_terminals_alone() {
    let service = hosted();
    let (mut editor, session) = service.session();
    let id = grow(&service, &mut editor, &session);
    let mut wait = request("terminal/wait_for_exit", &id);
    wait["request"]["forget"] = json!(true);
    let turn = editor.prompt_do(&session, &json!([wait, { "update": {} }, "wait_cancel"]));
    editor.wait_chunks(&session, 2);
    editor.cancel(&session);
    assert_eq!(editor.stop_reason(&turn), "cancelled");
    assert!(good(&mut editor, &session, "terminal/output", &id).get("exitStatus").is_none());
    assert_eq!(sleepers(&service), 5);
}

#[test]
fn a_withdrawn_request_is_answered_once() {
    let service = hosted();
    let (mut editor, session) = service.session();
    let id = grow(&service, &mut editor, &session);
    let mut wait = request("terminal/wait_for_exit", &id);
    wait["request"]["forget"] = json!(true);
    let chunks = editor.turn_do(&session, &json!([wait, "cancel_request", "await_answer"]));
    let answer = told(&chunks[0]);
    assert_eq!(answer["error"]["code"], -32800, "{answer}");
    // The terminal lives on, and its end is no second answer.
    assert!(good(&mut editor, &session, "terminal/output", &id).get("exitStatus").is_none());
    good(&mut editor, &session, "terminal/kill", &id);
    good(&mut editor, &session, "terminal/wait_for_exit", &id);
    let same = |line: &conductor_tests::ledger::Entry| {
        line.json().is_some_and(|message| message.get("method").is_none() && message["id"] == answer["id"])
    };
    assert_eq!(service.received("fake").iter().filter(|line| same(line)).count(), 1);
    // A second withdrawal means nothing.
    let note = json!({ "notify": { "method": "$/cancel_request", "params": { "requestId": answer["id"] } } });
    editor.turn_do(&session, &json!([note]));
    assert_eq!(service.received("fake").iter().filter(|line| same(line)).count(), 1);
}

#[test]
fn withdrawn_requests_do_not_pile_up() {
    let service = hosted();
    let (mut editor, session) = service.session();
    let id = grow(&service, &mut editor, &session);
    let mut wait = request("terminal/wait_for_exit", &id);
    wait["request"]["forget"] = json!(true);
    let round = json!([{ "repeat": [400, [wait, "cancel_request", "await_answer"]] }]);
    let codes: Vec<Value> =
        editor.turn_do(&session, &round).iter().map(|chunk| told(chunk)["error"]["code"].clone()).collect();
    assert_eq!(codes, vec![json!(-32800); 400]);
    // Without being withdrawn they do, up to a limit.
    let wait = round[0]["repeat"][1][0].clone();
    editor.turn_do(&session, &json!([{ "repeat": [300, [wait]] }]));
    let error = bad(&mut editor, &session, "terminal/output", &id);
    assert_eq!(error["code"], -31002, "{error}");
}

#[test]
fn a_withdrawn_create_leaves_nothing() {
    let service = hosted();
    let (mut editor, session) = service.session();
    let mut start = request("terminal/create", &tree(&service));
    start["request"]["forget"] = json!(true);
    let round = json!([start, "cancel_request", "await_answer"]);
    let mut alive = 0;
    for _ in 0..20 {
        let answer = told(&editor.turn_do(&session, &round)[0]);
        if answer["error"]["code"] == -32800 {
            continue;
        }
        // It was created before the word came; then it is there.
        alive += 1;
        let id = json!({ "terminalId": answer["result"]["terminalId"] });
        good(&mut editor, &session, "terminal/release", &id);
    }
    assert!(alive < 20, "some were withdrawn in time");
    assert!(poll_until(SOON, || sleepers(&service) == 0), "{:?}", service.processes());
    // And their places are free again.
    let params = json!({ "command": "sleep", "args": ["3709"], "env": [service.tag()] });
    for _ in 0..32 {
        create(&mut editor, &session, &params);
    }
}

#[test]
fn an_id_in_use_is_refused() {
    let service = hosted();
    let (mut editor, session) = service.session();
    let id = grow(&service, &mut editor, &session);
    let mut wait = request("terminal/wait_for_exit", &id);
    wait["request"]["id"] = json!("same");
    let mut first = wait.clone();
    first["request"]["forget"] = json!(true);
    let answer = told(&editor.turn_do(&session, &json!([first, wait]))[0]);
    assert_eq!(answer["error"]["code"], -32600, "{answer}");
    good(&mut editor, &session, "terminal/kill", &id);
}

#[test]
fn sessions_do_not_wait_for_each_other() {
    let service = hosted();
    let (mut editor, session) = service.session();
    let id = grow(&service, &mut editor, &session);
    let waiting = editor.prompt_do(&session, &json!([request("terminal/wait_for_exit", &id)]));
    let (mut second, other) = service.session();
    thread::scope(|scope| {
        let busy = scope.spawn(move || {
            (0..20)
                .map(|_| ask(&mut second, &other, "terminal/create", &json!({ "command": "true" })))
                .count()
        });
        assert_eq!(busy.join().unwrap(), 20);
    });
    assert_eq!(editor.answers_to(&waiting), 0);
}
