//! The client face, towards agents: what ACP asks of whoever stands in the editor's place.
//! Tests of conformance begin with the number of their point (`p21_…`), which goes on through
//! `conformance_editor`, `conformance_rest`, `relay` and `lifecycle`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

use std::time::Duration;

use conductor_tests::{
    editor::Editor,
    harness::{Service, permission, poll_until, service},
    ledger::Entry,
};
use serde_json::{Value, json};

/// A service that leaves files and terminals to the editor.
fn plain() -> Service {
    service(&json!({})).set("agents.fake.workspace", "editor").start()
}

fn handshakes(service: &Service) -> Vec<Value> {
    let received = service.received("fake");
    let all = received.iter().filter(|line| line.method().as_deref() == Some("initialize"));
    all.filter_map(Entry::json).map(|message| message["params"].clone()).collect()
}

/// The answer that the agent got to its request, as it told us.
fn told_answer(chunk: &str) -> Value {
    let text = chunk.strip_prefix("answer ").unwrap_or_else(|| panic!("not an answer: {chunk}"));
    serde_json::from_str(text).unwrap()
}

fn ask(method: &str, params: &Value) -> Value {
    json!([{ "request": { "method": method, "params": params } }])
}

#[test]
fn p21_initialize_is_pinned_to_version_1() {
    let service = plain();
    for version in [1, 2, 99] {
        let mut editor = service.connect(&[]);
        editor.call("initialize", &json!({ "protocolVersion": version, "clientCapabilities": {} }));
        editor.new_session(&service.work());
    }
    let all = handshakes(&service);
    assert!(!all.is_empty());
    for params in all {
        assert_eq!(params["protocolVersion"], 1, "{params}");
    }
}

#[test]
fn p22_agents_see_the_capabilities_of_their_editor() {
    let service = plain();
    let sets = [
        json!({}),
        json!({ "fs": { "readTextFile": true, "writeTextFile": false }, "terminal": false }),
        json!({ "fs": { "readTextFile": true, "writeTextFile": true }, "terminal": true }),
    ];
    for set in &sets {
        let mut editor = service.connect(&[]);
        editor.initialize_with(set);
        let session = editor.new_session(&service.work());
        editor.turn(&session, "which process?");
        // The process that got this prompt has shaken hands with this editor's set.
        let received = service.received("fake");
        let pid = received
            .iter()
            .rfind(|line| line.text.as_deref().is_some_and(|text| text.contains("which process?")));
        let pid = pid.unwrap().pid;
        let told = received
            .iter()
            .filter(|line| line.pid == pid)
            .find(|line| line.method().as_deref() == Some("initialize"));
        let told = told.unwrap().json().unwrap()["params"]["clientCapabilities"].clone();
        for path in ["/fs/readTextFile", "/fs/writeTextFile", "/terminal"] {
            let flag = |caps: &Value| caps.pointer(path).and_then(Value::as_bool).unwrap_or(false);
            assert_eq!(flag(&told), flag(set), "{path}: told {told}, editor has {set}");
        }
        editor.close_stdin();
        editor.wait_exit();
    }
}

#[test]
fn p23_requests_reach_the_editor_and_are_answered_once() {
    let service = plain();
    let (mut editor, session) = service.session();
    let calls = [
        ("fs/read_text_file", json!({ "sessionId": "$sid", "path": "/a", "line": 1 })),
        ("fs/write_text_file", json!({ "sessionId": "$sid", "path": "/a", "content": "x" })),
        ("terminal/create", json!({ "sessionId": "$sid", "command": "ls", "args": [] })),
        ("terminal/output", json!({ "sessionId": "$sid", "terminalId": "t1" })),
        (
            "elicitation/create",
            json!({ "sessionId": "$sid", "message": "m", "mode": "form", "requestedSchema": {} }),
        ),
        ("_x/from_agent", json!({ "sessionId": "$sid", "z": 1 })),
    ];
    for (method, params) in calls {
        let before = editor.chunks(&session).len();
        let id = editor.prompt_do(&session, &ask(method, &params));
        let request = editor.next_request(method);
        assert!(request["id"].is_i64(), "ids towards the editor are integers: {request}");
        let mut wanted = params.clone();
        wanted["sessionId"] = json!(session);
        assert_eq!(request["params"], wanted, "{method}");
        editor.answer(&request, &json!({ "by": method, "terminalId": "t1" }));
        // A second answer of the editor goes nowhere.
        editor.answer(&request, &json!({ "by": "again" }));
        assert_eq!(editor.stop_reason(&id), "end_turn");
        assert_eq!(told_answer(&editor.chunks(&session)[before])["result"]["by"], json!(method));
    }
    assert_eq!(editor.turn(&session, "end"), ["echo: end"]);
    let twice = service
        .received("fake")
        .into_iter()
        .filter(|line| line.text.as_deref().is_some_and(|text| text.contains("again")));
    assert_eq!(twice.count(), 0, "second answers are not forwarded");
}

#[test]
fn p23_errors_of_the_editor_reach_the_agent() {
    let service = plain();
    let (mut editor, session) = service.session();
    let id =
        editor.prompt_do(&session, &ask("fs/read_text_file", &json!({ "sessionId": "$sid", "path": "/a" })));
    let request = editor.next_request("fs/read_text_file");
    editor.answer_raw(&request, r#""error":{"code":-32002,"message":"gone","data":{"path":"/a","n":1e3}}"#);
    assert_eq!(editor.stop_reason(&id), "end_turn");
    let told = &editor.chunks(&session)[0];
    assert!(
        told.contains(r#""error":{"code":-32002,"message":"gone","data":{"path":"/a","n":1e3}}"#),
        "{told}"
    );
}

#[test]
fn p23_requests_the_editor_cannot_serve_get_a_clear_error() {
    let service = plain();
    let mut editor = service.connect(&[]);
    editor.initialize_with(&json!({}));
    let session = editor.new_session(&service.work());
    let before = editor.lines().len();
    for method in
        ["fs/read_text_file", "fs/write_text_file", "terminal/create", "terminal/output", "terminal/kill"]
    {
        let params =
            json!({ "sessionId": "$sid", "path": "/a", "content": "", "command": "ls", "terminalId": "t" });
        let chunks = editor.turn_do(&session, &ask(method, &params));
        let answer = told_answer(&chunks[0]);
        assert_eq!(answer["error"]["code"], -32601, "{method}: {answer}");
        let message = answer["error"]["message"].as_str().unwrap_or_default();
        assert!(message.len() > 15, "{method}: the message says why: {answer}");
    }
    let passed = editor
        .lines()
        .split_off(before)
        .into_iter()
        .filter(|line| line.json["id"].is_i64() && !line.method().is_empty());
    assert_eq!(passed.count(), 0, "the editor is not bothered");
}

#[test]
fn p23_requests_for_no_known_session_are_answered() {
    let service = plain();
    let (mut editor, session) = service.session();
    // One that names no session at all may be shown to the process's only editor.
    editor.answer_with(|_| Some(json!({ "outcome": { "outcome": "cancelled" } })));
    for params in [json!({ "sessionId": "nobody" }), json!({}), json!({ "sessionId": 7 })] {
        let chunks = editor.turn_do(&session, &ask("session/request_permission", &params));
        let answer = told_answer(&chunks[0]);
        assert!(
            answer.get("error").is_some() || answer["result"]["outcome"]["outcome"] == "cancelled",
            "{answer}"
        );
    }
}

fn lose_editor(ask: &Value) -> Value {
    let service =
        service(&json!({})).set("agents.fake.workspace", "editor").set("policy.ask_timeout", "300ms").start();
    let (mut editor, session) = service.session();
    editor.prompt_do(&session, ask);
    let method = ask[0]["request"]["method"].as_str().unwrap().to_owned();
    editor.next_request(&method);
    drop(editor);
    let answer = service.wait_received("fake", "an answer to its request", |line| {
        line.json().is_some_and(|message| message.get("method").is_none() && message["id"] == 0)
    });
    let gone = poll_until(Duration::from_secs(15), || service.agents_alive().is_empty());
    assert!(gone, "the session ends with its editor: {:?}", service.processes());
    answer.json().unwrap()
}

#[test]
fn p23_lost_editor_means_permission_rejected() {
    assert_eq!(lose_editor(&json!([permission()]))["result"]["outcome"]["optionId"], "no");
}

#[test]
fn p23_lost_editor_means_elicitation_cancel() {
    let params = json!({ "sessionId": "$sid", "message": "m", "mode": "form", "requestedSchema": {} });
    assert_eq!(lose_editor(&ask("elicitation/create", &params))["result"]["action"], "cancel");
}

#[test]
fn p23_lost_editor_means_an_error_for_everything_else() {
    let params = json!({ "sessionId": "$sid", "path": "/a" });
    assert!(lose_editor(&ask("fs/read_text_file", &params))["error"]["code"].is_i64());
}

#[test]
fn p24_cancel_answers_every_pending_permission() {
    let service = plain();
    let (mut editor, session) = service.session();
    let mut forgotten = permission();
    forgotten["request"]["forget"] = json!(true);
    let id = editor.prompt_do(&session, &json!([forgotten, permission()]));
    let asks = [
        editor.next_request("session/request_permission"),
        editor.next_request("session/request_permission"),
    ];
    editor.cancel(&session);
    // The editor never answers, and yet the turn ends.
    assert_eq!(editor.stop_reason(&id), "cancelled");
    let answers: Vec<Value> = service
        .received("fake")
        .iter()
        .filter_map(Entry::json)
        .filter(|message| message.get("method").is_none() && message["result"]["outcome"].is_object())
        .collect();
    assert_eq!(answers.len(), 2, "{answers:?}");
    assert!(
        answers.iter().all(|answer| answer["result"]["outcome"]["outcome"] == "cancelled"),
        "{answers:?}"
    );
    // Answers that come later are ignored.
    for request in &asks {
        editor.answer(request, &json!({ "outcome": { "outcome": "selected", "optionId": "yes" } }));
    }
    assert_eq!(editor.turn(&session, "next"), ["echo: next"]);
    let late = service
        .received("fake")
        .into_iter()
        .filter(|line| line.text.as_deref().is_some_and(|text| text.contains("selected")));
    assert_eq!(late.count(), 0);
}

fn cancelled_request(editor: &mut Editor, session: &str, steps: &Value, method: &str) -> (Value, Value) {
    let id = editor.prompt_do(session, steps);
    let request = editor.next_request(method);
    let cancel = editor.wait_for("$/cancel_request", |line| {
        (line.method() == "$/cancel_request").then(|| line.json.clone())
    });
    (request, json!([cancel, id]))
}

#[test]
fn p26_cancelled_request_reaches_the_editor_with_its_id() {
    for uuids in [false, true] {
        let service = service(&json!({ "uuid_request_ids": uuids })).start();
        let (mut editor, session) = service.session();
        let mut forgotten = permission();
        forgotten["request"]["forget"] = json!(true);
        let steps = json!([forgotten, "cancel_request", "await_answer"]);
        let (request, found) = cancelled_request(&mut editor, &session, &steps, "session/request_permission");
        assert_eq!(found[0]["params"]["requestId"], request["id"], "the id that the editor knows");
        editor.answer(&request, &json!({ "outcome": { "outcome": "cancelled" } }));
        assert_eq!(editor.stop_reason(&found[1]), "end_turn");
        let told = told_answer(&editor.chunks(&session)[0]);
        assert_eq!(told["result"]["outcome"]["outcome"], "cancelled");
        assert_eq!(told["id"].is_string(), uuids, "the agent's own id comes back: {told}");
    }
}

#[test]
fn p26_editors_cancelled_request_reaches_the_agent_with_its_id() {
    let service = plain();
    let (mut editor, session) = service.session();
    let gate = service.dir.join("go");
    let id = editor
        .request("_x/do", &json!({ "sessionId": session, "do": [{ "update": {} }, { "wait_file": gate }] }));
    editor.wait_chunks(&session, 1);
    editor.notify("$/cancel_request", &json!({ "requestId": id }));
    let cancel = service.wait_received("fake", "$/cancel_request", |line| {
        line.method().as_deref() == Some("$/cancel_request")
    });
    let received = service.received("fake");
    let request = received.iter().find(|line| line.method().as_deref() == Some("_x/do")).unwrap();
    assert_eq!(cancel.json().unwrap()["params"]["requestId"], request.json().unwrap()["id"]);
    std::fs::write(gate, "").unwrap();
    editor.response(&id);
    assert_eq!(editor.answers_to(&id), 1);
    // One for a request that is over, or never was, is harmless.
    editor.notify("$/cancel_request", &json!({ "requestId": id }));
    editor.notify("$/cancel_request", &json!({ "requestId": "never" }));
    assert_eq!(editor.turn(&session, "next"), ["echo: next"]);
}

#[test]
fn p26_cancelled_prompt_request_ends_as_cancelled() {
    let service = service(&json!({})).set("service.cancel_grace", "500ms").start();
    let (mut editor, session) = service.session();
    let first = editor.prompt_do(&session, &json!([{ "update": {} }, "wait_cancel"]));
    editor.wait_chunks(&session, 1);
    // A queued prompt has not reached the agent, so only the conductor can end it.
    let queued = editor.prompt(&session, "queued");
    editor.notify("$/cancel_request", &json!({ "requestId": queued }));
    editor.cancel(&session);
    assert_eq!(editor.stop_reason(&first), "cancelled");
    assert_eq!(editor.stop_reason(&queued), "cancelled");
    assert_eq!((editor.answers_to(&first), editor.answers_to(&queued)), (1, 1));
}

#[test]
fn p29_unknown_kinds_and_fields_in_permissions_are_shown_and_answerable() {
    let service = plain();
    let (mut editor, session) = service.session();
    let params = json!({ "sessionId": "$sid", "novel": [1], "toolCall": { "toolCallId": "c", "shape": { "new": null } },
        "options": [{ "optionId": "later", "name": "Later", "kind": "ask_me_later", "icon": "clock" }] });
    let id = editor.prompt_do(&session, &ask("session/request_permission", &params));
    let request = editor.next_request("session/request_permission");
    let mut wanted = params;
    wanted["sessionId"] = json!(session);
    assert_eq!(request["params"], wanted);
    let outcome = json!({ "outcome": { "outcome": "selected", "optionId": "later", "until": "noon" } });
    editor.answer(&request, &outcome);
    assert_eq!(editor.stop_reason(&id), "end_turn");
    // The choice goes on; what else an editor says was judged by nobody.
    let chosen = json!({ "outcome": { "outcome": "selected", "optionId": "later" } });
    assert_eq!(told_answer(&editor.chunks(&session)[0])["result"], chosen);
}
