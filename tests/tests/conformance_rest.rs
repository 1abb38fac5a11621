//! Conformance to ACP beyond a turn, with one agent (points 16–18, 25, 30, 31 and 43):
//! lists, closing, options, lost editors, elicitation, terminals, secrets.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

use std::time::Duration;

use conductor_tests::{
    editor::Editor,
    harness::{Service, permission, poll_until, service},
};
use serde_json::{Value, json};

fn list(editor: &mut Editor, params: &Value) -> (Vec<String>, Value) {
    let page = editor.call("session/list", params);
    let ids = page["sessions"].as_array().unwrap().iter();
    (
        ids.map(|session| session["sessionId"].as_str().unwrap().to_owned()).collect(),
        page["nextCursor"].clone(),
    )
}

#[test]
fn p16_sessions_are_listed_in_pages() {
    let service = service(&json!({}))
        .set("agents.fake.sessions_per_process", 100)
        .set("agents.fake.warm", 0)
        .set("service.max_sessions_per_connection", 100)
        .start();
    let mut editor = service.editor();
    assert_eq!(list(&mut editor, &json!({})), (vec![], Value::Null));
    let opened: Vec<String> = (0..60).map(|_| editor.new_session(&service.work())).collect();
    let (first, cursor) = list(&mut editor, &json!({}));
    assert!(first.len() < 60 && cursor.is_string(), "{} {cursor}", first.len());
    let (rest, end) = list(&mut editor, &json!({ "cursor": cursor }));
    assert_eq!(end, Value::Null);
    let newest_first: Vec<String> = opened.iter().rev().cloned().collect();
    assert_eq!([first, rest].concat(), newest_first);
    let elsewhere = list(&mut editor, &json!({ "cwd": "/elsewhere" }));
    assert_eq!(elsewhere, (vec![], Value::Null));
    for cursor in [json!("nonsense"), json!(7), json!({})] {
        assert_eq!(editor.call_error("session/list", &json!({ "cursor": cursor }))["code"], -32602);
    }
}

#[test]
fn p16_titles_that_agents_give_are_listed() {
    let service = service(&json!({})).start();
    let (mut editor, session) = service.session();
    let update = |title: Value| json!({ "sessionId": "$sid", "update": { "sessionUpdate": "session_info_update", "title": title } });
    let title = |editor: &mut Editor| editor.call("session/list", &json!({}))["sessions"][0]["title"].clone();
    editor.turn_do(
        &session,
        &json!([{ "notify": { "method": "session/update", "params": update(json!("Mend")) } }]),
    );
    assert_eq!(title(&mut editor), json!("Mend"));
    editor.turn_do(
        &session,
        &json!([{ "notify": { "method": "session/update", "params": update(Value::Null) } }]),
    );
    assert_eq!(title(&mut editor), Value::Null);
}

#[test]
fn p17_close_cancels_then_frees_and_leaves_siblings_alone() {
    let service = service(&json!({})).set("agents.fake.warm", 0).start();
    let (mut editor, one) = service.session();
    let two = editor.new_session(&service.work());
    let running = editor.prompt_do(&one, &json!([{ "update": {} }, "wait_cancel"]));
    editor.wait_chunks(&one, 1);
    assert_eq!(editor.call("session/close", &json!({ "sessionId": one })), json!({}));
    assert_eq!(editor.stop_reason(&running), "cancelled");
    assert!(poll_until(Duration::from_secs(10), || service.agents_alive().len() == 1), "one process is left");
    assert_eq!(
        editor.call_error("session/prompt", &json!({ "sessionId": one, "prompt": [] }))["code"],
        -32002
    );
    assert_eq!(editor.turn(&two, "alive"), ["echo: alive"]);
}

#[test]
fn p17_delete_is_idempotent_and_forgets() {
    let service = service(&json!({})).start();
    let (mut editor, session) = service.session();
    for _ in 0..2 {
        assert_eq!(editor.call("session/delete", &json!({ "sessionId": session })), json!({}));
    }
    assert!(poll_until(Duration::from_secs(10), || list(&mut editor, &json!({})).0.is_empty()));
    let params = json!({ "sessionId": session, "cwd": service.work(), "mcpServers": [] });
    assert_eq!(editor.call_error("session/load", &params)["code"], -32002);
    for unknown in [json!("never-there"), json!("00000000-0000-7000-8000-000000000000")] {
        assert_eq!(editor.call("session/delete", &json!({ "sessionId": unknown })), json!({}));
    }
}

const OPTIONS: &str = r#"[{"id":"model","name":"Model","category":"model","type":"select","currentValue":"a","options":[{"value":"a","name":"A"},{"value":"b","name":"B"}]},{"id":"fast","name":"Fast","type":"boolean","currentValue":true}]"#;

fn with_options() -> Service {
    let options: Value = serde_json::from_str(OPTIONS).unwrap();
    let answer = json!({ "answer": { "result": { "configOptions": options } } });
    let script = json!({ "session": { "configOptions": options }, "instead": { "session/set_config_option": [answer] } });
    service(&script).start()
}

fn option_ids(holder: &Value) -> Vec<&str> {
    holder["configOptions"].as_array().unwrap().iter().map(|option| option["id"].as_str().unwrap()).collect()
}

#[test]
fn p18_options_are_complete_and_booleans_are_for_those_who_know_them() {
    let update = json!([{ "notify": { "method": "session/update", "params": { "sessionId": "$sid",
        "update": { "sessionUpdate": "config_option_update", "configOptions": serde_json::from_str::<Value>(OPTIONS).unwrap() } } } }]);
    let able = json!({ "session": { "configOptions": { "boolean": {} } } });
    for (capabilities, wanted) in [(json!({}), vec!["model"]), (able, vec!["model", "fast"])] {
        let service = with_options();
        let mut editor = service.connect(&[]);
        editor.initialize_with(&capabilities);
        let opened = editor.call("session/new", &json!({ "cwd": service.work(), "mcpServers": [] }));
        assert_eq!(option_ids(&opened), wanted);
        let session = opened["sessionId"].as_str().unwrap().to_owned();
        let set = json!({ "sessionId": session, "configId": "model", "value": "b" });
        assert_eq!(option_ids(&editor.call("session/set_config_option", &set)), wanted);
        editor.turn_do(&session, &update);
        let lines = editor.lines();
        let told = lines
            .iter()
            .find(|line| line.json["params"]["update"]["sessionUpdate"] == "config_option_update");
        assert_eq!(option_ids(&told.unwrap().json["params"]["update"]), wanted);
    }
}

#[test]
fn p18_model_and_mode_of_connect_are_set_and_announced() {
    let service = with_options();
    let mut editor = service.connect(&["--model", "b"]);
    editor.initialize();
    editor.new_session(&service.work());
    let set = service.wait_received("fake", "the model", |line| {
        line.method().as_deref() == Some("session/set_config_option")
    });
    let params = set.json().unwrap()["params"].clone();
    assert_eq!((&params["configId"], &params["value"]), (&json!("model"), &json!("b")));
    editor.wait_for("the announcement", |line| {
        (line.json["params"]["update"]["sessionUpdate"] == "config_option_update").then_some(())
    });
    let mut wrong = service.connect(&["--model", "c"]);
    wrong.initialize();
    let error = wrong.call_error("session/new", &json!({ "cwd": service.work(), "mcpServers": [] }));
    assert_eq!(error["code"], -32602);
    assert!(error["message"].as_str().unwrap().contains("a, b"), "{error}");
}

#[test]
fn prompt_with_content_the_agent_does_not_take_is_refused_by_name() {
    let service = service(&json!({ "capabilities": { "promptCapabilities": { "image": true } } })).start();
    let (mut editor, session) = service.session();
    let prompt =
        |block: Value| json!({ "sessionId": session, "prompt": [{ "type": "text", "text": "see" }, block] });
    let image = prompt(json!({ "type": "image", "data": "", "mimeType": "image/png" }));
    assert_eq!(editor.call("session/prompt", &image)["stopReason"], "end_turn");
    for (kind, block) in [
        ("audio", json!({ "type": "audio", "data": "", "mimeType": "audio/wav" })),
        ("resource", json!({ "type": "resource", "resource": { "uri": "file:///x", "text": "" } })),
    ] {
        let error = editor.call_error("session/prompt", &prompt(block));
        assert_eq!(error["code"], -32602);
        assert!(error["message"].as_str().unwrap().contains(kind), "{error}");
    }
}

fn elicit(params: &Value) -> Value {
    json!([{ "request": { "method": "elicitation/create", "params": params } }])
}

#[test]
fn p30_elicitation_reaches_only_editors_that_take_it() {
    let service = service(&json!({})).start();
    let form = json!({ "sessionId": "$sid", "message": "Name?", "mode": "form", "requestedSchema": { "type": "object" } });
    let url = json!({ "sessionId": "$sid", "message": "Log in", "mode": "url", "elicitationId": "e", "url": "https://x" });
    let mut editor = service.connect(&[]);
    editor.initialize_with(&json!({ "elicitation": { "form": {} } }));
    let session = editor.new_session(&service.work());
    // A link, which this editor does not take, is cancelled for it.
    let told = editor.turn_do(&session, &elicit(&url));
    assert!(told[0].contains(r#""action":"cancel""#), "{told:?}");
    let turn = editor.prompt_do(&session, &elicit(&form));
    let asked = editor.next_request("elicitation/create");
    assert_eq!(asked["params"]["sessionId"], json!(session));
    editor.answer(&asked, &json!({ "action": "accept", "content": { "name": "x" } }));
    assert_eq!(editor.stop_reason(&turn), "end_turn");
}

#[test]
fn p30_elicitation_for_a_request_names_the_editors_own_id() {
    let service = service(&json!({})).start();
    let mut editor = service.connect(&[]);
    editor.initialize_with(&json!({ "elicitation": { "form": {} } }));
    let session = editor.new_session(&service.work());
    let steps = json!([{ "line": r#"{"jsonrpc":"2.0","id":"e1","method":"elicitation/create","params":{"requestId":$id,"message":"?","mode":"form"}}"# },
        "wait_cancel"]);
    let text = json!({ "do": steps }).to_string();
    let params = json!({ "sessionId": session, "prompt": [{ "type": "text", "text": text }] });
    editor.request_with_id(&json!("the prompt"), "session/prompt", &params);
    let asked = editor.next_request("elicitation/create");
    assert_eq!(asked["params"]["requestId"], json!("the prompt"));
    editor.cancel(&session);
    assert_eq!(editor.stop_reason(&json!("the prompt")), "cancelled");
}

#[test]
fn p31_terminals_belong_to_their_session() {
    let service = service(&json!({})).set("agents.fake.workspace", "editor").start();
    let mut editor = service.editor();
    editor.answer_with(|request| match request["method"].as_str()? {
        "terminal/create" => Some(json!({ "terminalId": "t1" })),
        "terminal/output" => Some(json!({ "output": "secret", "truncated": false })),
        "terminal/release" => Some(json!({})),
        _ => None,
    });
    let (one, two) = (editor.new_session(&service.work()), editor.new_session(&service.work()));
    let ask = |method: &str| json!([{ "request": { "method": method, "params": { "sessionId": "$sid", "terminalId": "t1", "command": "true" } } }]);
    editor.turn_do(&one, &ask("terminal/create"));
    let answer = |editor: &mut Editor, session: &str, method: &str| {
        editor.turn_do(session, &ask(method)).pop().unwrap()
    };
    assert!(answer(&mut editor, &one, "terminal/output").contains("secret"));
    let foreign = answer(&mut editor, &two, "terminal/output");
    assert!(foreign.contains("-32002") && !foreign.contains("secret"), "{foreign}");
    answer(&mut editor, &one, "terminal/release");
    assert!(answer(&mut editor, &one, "terminal/output").contains("-32002"));
}

#[test]
fn p43_secrets_that_editors_hand_over_are_not_logged() {
    let service = service(&json!({})).env("RUST_LOG", "conductor=trace").start();
    let mut editor = service.editor();
    let servers = json!([
        { "name": "a", "command": "/bin/true", "args": [], "env": [{ "name": "KEY", "value": "canary-env-1" }] },
        { "type": "http", "name": "b", "url": "https://x", "headers": [{ "name": "Authorization", "value": "canary-header-2" }] },
    ]);
    let opened = editor.call("session/new", &json!({ "cwd": service.work(), "mcpServers": servers }));
    let session = opened["sessionId"].as_str().unwrap().to_owned();
    editor.turn(&session, "canary-prompt-3");
    editor.call_error("session/new", &json!({ "cwd": "/", "mcpServers": servers }));
    service.wait_log("agent process is ready");
    let received = service.received("fake");
    assert!(
        received.iter().any(|line| line.text.as_deref().is_some_and(|text| text.contains("canary-env-1"))),
        "the agent gets them"
    );
    let everywhere = service.log() + &editor.stderr() + &service.agent_json("fake").to_string();
    for canary in ["canary-env-1", "canary-header-2", "canary-prompt-3", &service.token()] {
        assert!(!everywhere.contains(canary), "{canary} was told to others");
    }
    for running in service.processes() {
        assert!(!running.command.contains("canary"), "{running:?}");
    }
}

#[test]
fn p25_lost_editor_never_leaves_the_agent_blocked() {
    let service = service(&json!({})).set("policy.ask_timeout", "300ms").start();
    let (mut editor, session) = service.session();
    editor.prompt_do(&session, &json!([permission()]));
    editor.next_request("session/request_permission");
    drop(editor);
    let answer = service.wait_received("fake", "the answer to its permission request", |line| {
        line.json().is_some_and(|message| message.get("method").is_none() && message["id"] == 0)
    });
    assert_eq!(answer.json().unwrap()["result"]["outcome"]["optionId"], "no");
    assert!(poll_until(Duration::from_secs(10), || service.agents_alive().is_empty()));
}
