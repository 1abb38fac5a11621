//! The agent face, towards editors: what ACP asks of whoever stands in the agent's place. Points
//! 1–15 and 20; `conformance_agent` says how they are numbered.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

use std::{fs, time::Duration};

use conductor_tests::{
    editor::Editor,
    harness::{Service, poll_until, service},
};
use serde_json::{Value, json};

fn plain() -> Service {
    service(&json!({})).start()
}

fn new_params(service: &Service) -> Value {
    json!({ "cwd": service.work(), "mcpServers": [] })
}

#[test]
fn p01_requests_before_initialize_are_refused() {
    let service = plain();
    let mut editor = service.connect(&[]);
    for method in ["session/new", "session/prompt", "session/list", "_x/y"] {
        let error = editor.call_error(method, &new_params(&service));
        assert_eq!(error["code"], -32600, "{method}: {error}");
    }
    editor.initialize();
    editor.new_session(&service.work());
}

#[test]
fn p01_second_initialize_is_answered_like_the_first() {
    let service = plain();
    let mut editor = service.connect(&[]);
    let first = editor.initialize();
    let session = editor.new_session(&service.work());
    assert_eq!(editor.initialize(), first);
    assert_eq!(editor.turn(&session, "intact"), ["echo: intact"]);
}

#[test]
fn p02_every_offered_version_gets_version_1() {
    let service = plain();
    for version in [0, 1, 2, 99, 65_535] {
        let mut editor = service.connect(&[]);
        let result = editor.call("initialize", &json!({ "protocolVersion": version }));
        assert_eq!(result["protocolVersion"], 1, "offered {version}");
    }
}

#[test]
fn p02_version_that_is_no_number_is_refused() {
    let service = plain();
    for params in [json!({ "protocolVersion": "1" }), json!({}), json!({ "protocolVersion": null })] {
        let mut editor = service.connect(&[]);
        let error = editor.call_error("initialize", &params);
        assert_eq!(error["code"], -32602, "{params}: {error}");
        // The editor may correct itself.
        editor.initialize();
    }
}

#[test]
fn p03_gated_methods_that_were_not_advertised_are_refused() {
    let service = service(&json!({ "capabilities": {} })).start();
    let mut editor = service.connect(&[]);
    let capabilities = editor.initialize()["agentCapabilities"].clone();
    let session = editor.new_session(&service.work());
    let gated = [
        ("session/load", capabilities["loadSession"] == true),
        ("session/resume", capabilities["sessionCapabilities"]["resume"].is_object()),
        ("session/fork", capabilities["sessionCapabilities"]["fork"].is_object()),
        ("session/delete", capabilities["sessionCapabilities"]["delete"].is_object()),
        ("logout", capabilities["auth"]["logout"].is_object()),
    ];
    let refused = gated.iter().filter(|(_, advertised)| !advertised).count();
    assert!(refused > 0, "an agent without capabilities cannot have all of them: {capabilities}");
    for (method, advertised) in gated {
        if !advertised {
            let params = json!({ "sessionId": session, "cwd": service.work(), "mcpServers": [] });
            let error = editor.call_error(method, &params);
            assert_eq!(error["code"], -32601, "{method}: {error}");
        }
    }
}

#[test]
fn p04_new_session_checks_its_parameters() {
    let service = plain();
    let mut editor = service.editor();
    let file = service.work().join("file");
    fs::write(&file, "").unwrap();
    let work = service.work();
    let sibling = format!("{}-evil", work.display());
    fs::create_dir(&sibling).unwrap();
    let bad = [
        ("no mcpServers", json!({ "cwd": work })),
        ("no cwd", json!({ "mcpServers": [] })),
        ("relative", json!({ "cwd": "work", "mcpServers": [] })),
        ("not a string", json!({ "cwd": 7, "mcpServers": [] })),
        ("missing", json!({ "cwd": work.join("absent"), "mcpServers": [] })),
        ("a file", json!({ "cwd": file, "mcpServers": [] })),
        ("outside the roots", json!({ "cwd": "/", "mcpServers": [] })),
        ("a sibling of a root", json!({ "cwd": sibling, "mcpServers": [] })),
        ("out by dots", json!({ "cwd": work.join("../home"), "mcpServers": [] })),
        ("not a list", json!({ "cwd": work, "mcpServers": {} })),
        ("no parameters", json!(null)),
    ];
    for (what, params) in bad {
        let error = editor.call_error("session/new", &params);
        assert_eq!(error["code"], -32602, "{what}: {error}");
        assert!(
            error["message"].as_str().unwrap().len() > 10,
            "{what}: the message names the cause: {error}"
        );
    }
    let link = service.work().join("link");
    std::os::unix::fs::symlink(service.dir.join("home"), &link).unwrap();
    let error = editor.call_error("session/new", &json!({ "cwd": link, "mcpServers": [] }));
    assert_eq!(error["code"], -32602, "a link out of the roots: {error}");
    // `null` counts as an empty list, and a directory below a root is fine.
    let below = service.work().join("a/b");
    fs::create_dir_all(&below).unwrap();
    editor.call("session/new", &json!({ "cwd": below, "mcpServers": null }));
}

#[test]
fn p05_unknown_session_is_named_in_the_error() {
    let service = plain();
    let mut editor = service.editor();
    let unknown = uuid::Uuid::now_v7().to_string();
    let calls = [
        ("session/prompt", json!({ "prompt": [] })),
        ("session/set_mode", json!({ "modeId": "x" })),
        ("session/set_config_option", json!({ "configId": "x", "value": "y" })),
        ("session/close", json!({})),
        ("session/load", new_params(&service)),
        ("session/resume", new_params(&service)),
    ];
    for (method, mut params) in calls {
        params["sessionId"] = json!(unknown);
        let error = editor.call_error(method, &params);
        assert_eq!(error["code"], -32002, "{method}: {error}");
        assert_eq!(error["data"]["sessionId"], json!(unknown), "{method}: {error}");
    }
}

#[test]
fn p06_extension_requests_reach_the_agent() {
    let service = plain();
    let (mut editor, session) = service.session();
    let result = editor
        .call("_x/do", &json!({ "sessionId": session, "do": [{ "answer": { "result": { "a": 1 } } }] }));
    assert_eq!(result, json!({ "a": 1 }));
    let error = editor.call_error("_x/unknown", &json!({ "sessionId": session }));
    assert_eq!(error["code"], -32601, "the agent's own answer: {error}");
    // Without a session id it goes to the only session …
    let answer = editor.call("_x/return", &json!({ "b": 2 }));
    assert_eq!(answer, json!({ "b": 2 }));
    // … and with two it cannot be routed.
    editor.new_session(&service.work());
    assert_eq!(editor.call_error("_x/return", &json!({ "b": 2 }))["code"], -32601);
}

#[test]
fn p06_unknown_notifications_are_never_answered() {
    let service = plain();
    let (mut editor, session) = service.session();
    let before = editor.lines().len();
    for method in ["_x/note", "no/such", "$/whatever", "session/cancel", "session/prompt"] {
        editor.notify(method, &json!({ "sessionId": "unknown", "x": 1 }));
    }
    editor.notify("_x/note", &json!({ "sessionId": session, "for": "the agent" }));
    editor.turn(&session, "barrier");
    for line in &editor.lines()[before..] {
        assert!(line.json["error"].is_null(), "a notification was answered: {}", line.text());
    }
    service.wait_received("fake", "the notification", |line| line.method().as_deref() == Some("_x/note"));
}

#[test]
fn p07_prompt_answer_comes_after_every_update() {
    let service = service(&json!({ "seed": 11 })).start();
    let (mut editor, session) = service.session();
    editor.pause(true);
    let id = editor.prompt_do(&session, &json!([{ "random": 1500 }]));
    editor.pause(false);
    assert_eq!(editor.stop_reason(&id), "end_turn");
    let lines = editor.lines();
    let end = lines.iter().position(|line| line.json["id"] == id && line.json["method"].is_null()).unwrap();
    let before = lines[..end].iter().filter(|line| line.method() == "session/update").count();
    assert_eq!(before, 1500);
    let texts = editor.chunks(&session);
    assert!(texts.iter().enumerate().all(|(n, text)| text.starts_with(&format!("random {n} "))), "in order");
}

#[test]
fn p08_updates_before_the_session_is_told_come_after_it() {
    let early = json!([{ "update": { "n": 20, "text": "early " } }]);
    let late = json!([{ "update": { "n": 5, "text": "late " } }]);
    let service =
        service(&json!({ "before": { "session/new": early }, "after": { "session/new": late } })).start();
    let mut editor = service.editor();
    let id = editor.request("session/new", &new_params(&service));
    let answer = editor.response(&id);
    let session = answer["result"]["sessionId"].as_str().unwrap().to_owned();
    let chunks = editor.wait_chunks(&session, 25);
    let wanted: Vec<_> =
        (0..20).map(|n| format!("early {n}")).chain((0..5).map(|n| format!("late {n}"))).collect();
    assert_eq!(chunks, wanted);
    let lines = editor.lines();
    let told = lines.iter().position(|line| line.json["id"] == id).unwrap();
    let first = lines.iter().position(|line| line.method() == "session/update").unwrap();
    assert!(told < first, "the answer comes first\n{}", editor.story());
}

#[test]
fn p09_updates_outside_a_turn_are_delivered() {
    let service = plain();
    let (mut editor, session) = service.session();
    let id = editor.prompt_do(&session, &json!([{ "after": [{ "update": { "n": 3, "text": "late" } }] }]));
    assert_eq!(editor.stop_reason(&id), "end_turn");
    assert_eq!(editor.wait_chunks(&session, 3), ["late0", "late1", "late2"]);
}

#[test]
fn p10_second_prompt_waits_for_the_first() {
    let service = plain();
    let (mut editor, session) = service.session();
    let first = editor.prompt_do(&session, &json!([{ "update": { "n": 300 } }]));
    let second = editor.prompt(&session, "second");
    assert_eq!(editor.stop_reason(&first), "end_turn");
    assert_eq!(editor.stop_reason(&second), "end_turn");
    assert_eq!(editor.chunks(&session).last().unwrap(), "echo: second");
    // In the agent's own ledger the second prompt came in after the first answer went out.
    let ledger = service.ledger("fake");
    let prompts: Vec<_> = (0..ledger.len())
        .filter(|place| ledger[*place].method().as_deref() == Some("session/prompt"))
        .collect();
    let ended =
        ledger.iter().position(|entry| entry.text.as_ref().is_some_and(|text| text.contains("end_turn")));
    assert!(ended.unwrap() < prompts[1], "the prompts overlapped");
}

#[test]
fn p11_cancel_without_a_turn_changes_nothing() {
    let service = plain();
    let (mut editor, session) = service.session();
    editor.cancel(&session);
    assert_eq!(editor.turn(&session, "one"), ["echo: one"]);
    editor.cancel(&session);
    editor.cancel(&session);
    assert_eq!(editor.turn(&session, "two"), ["echo: two"]);
    assert!(editor.lines().iter().all(|line| line.json["error"].is_null()), "{}", editor.story());
}

fn cancel_mid_turn(style: &str) {
    let service = service(&json!({ "cancel": style })).set("service.cancel_grace", "400ms").start();
    let (mut editor, session) = service.session();
    let id = editor.prompt_do(
        &session,
        &json!([{ "update": {} }, "wait_cancel", { "update": { "text": "more" } }, "hang"]),
    );
    editor.wait_chunks(&session, 1);
    editor.cancel(&session);
    assert_eq!(editor.stop_reason(&id), "cancelled", "style {style}");
    // A round trip later there is still exactly one answer.
    let other = editor.new_session(&service.work());
    editor.turn(&other, "barrier");
    assert_eq!(editor.answers_to(&id), 1, "style {style}");
}

#[test]
fn p12_cancel_mid_turn_answers_once() {
    cancel_mid_turn("cancelled");
}

#[test]
fn p12_cancel_answered_with_end_turn_counts_as_cancelled() {
    cancel_mid_turn("end_turn");
}

#[test]
fn p12_cancel_answered_with_an_error_counts_as_cancelled() {
    cancel_mid_turn("error");
}

#[test]
fn p12_cancel_never_answered_counts_as_cancelled() {
    cancel_mid_turn("never");
}

#[test]
fn p12_cancel_that_kills_the_agent_counts_as_cancelled() {
    cancel_mid_turn("die");
}

#[test]
fn p12_updates_after_cancel_come_before_the_answer() {
    let service = service(&json!({ "cancel": "update_first" })).start();
    let (mut editor, session) = service.session();
    let id = editor.prompt_do(&session, &json!([{ "update": {} }, "wait_cancel"]));
    editor.wait_chunks(&session, 1);
    editor.cancel(&session);
    assert_eq!(editor.stop_reason(&id), "cancelled");
    assert_eq!(editor.chunks(&session), ["chunk 0", "last words"]);
}

#[test]
fn p12_cancel_ends_queued_prompts_too() {
    let service = plain();
    let (mut editor, session) = service.session();
    let first = editor.prompt_do(&session, &json!([{ "update": {} }, "wait_cancel"]));
    editor.wait_chunks(&session, 1);
    let queued = [editor.prompt(&session, "a"), editor.prompt(&session, "b")];
    editor.cancel(&session);
    for id in [&first, &queued[0], &queued[1]] {
        assert_eq!(editor.stop_reason(id), "cancelled");
    }
    assert_eq!(editor.turn(&session, "next"), ["echo: next"]);
}

fn race(editor: &mut Editor, session: &str, round: usize) {
    let before = editor.chunks(session).len();
    let id = editor.prompt_do(session, &json!([{ "update": { "text": format!("r{round} ") } }]));
    if round.is_multiple_of(2) {
        editor.wait_chunks(session, before + 1);
    }
    editor.cancel(session);
    let reason = editor.stop_reason(&id);
    assert!(reason == "end_turn" || reason == "cancelled", "{reason}");
    let next = editor.prompt(session, &format!("n{round}"));
    assert_eq!(editor.stop_reason(&next), "end_turn", "the next turn is not hit by the cancel of the last");
    assert_eq!(editor.chunks(session).last().unwrap(), &format!("echo: n{round}"));
    assert_eq!((editor.answers_to(&id), editor.answers_to(&next)), (1, 1));
}

#[test]
fn p13_cancel_racing_with_the_end_answers_once() {
    let service = plain();
    let (mut editor, session) = service.session();
    (0..60).for_each(|round| race(&mut editor, &session, round));
}

fn updates_of(editor: &Editor, session: &str) -> Vec<Value> {
    let lines = editor.lines();
    let of_session = lines.iter().filter(|line| line.json["params"]["sessionId"] == session);
    of_session.map(|line| line.json["params"]["update"].clone()).collect()
}

#[test]
fn p14_load_streams_the_history_and_then_answers() {
    let service = plain();
    let (mut editor, session) = service.session();
    editor.turn_do(&session, &json!([{ "update": { "n": 5, "text": "told " } }]));
    let live = updates_of(&editor, &session);
    editor.call("session/close", &json!({ "sessionId": session }));
    let before = editor.lines().len();
    let mut params = new_params(&service);
    params["sessionId"] = json!(session);
    let id = editor.request("session/load", &params);
    assert!(editor.response(&id).get("result").is_some(), "{}", editor.story());
    let lines = editor.lines().split_off(before);
    let answered = lines.iter().position(|line| line.json["id"] == id).unwrap();
    let replayed: Vec<_> = lines[..answered]
        .iter()
        .map(|line| line.json["params"]["update"].clone())
        .filter(|update| update["sessionUpdate"] != "user_message_chunk")
        .collect();
    assert_eq!(replayed, live, "{}", editor.story());
    assert_eq!(editor.turn(&session, "goes on"), ["echo: goes on"]);
}

#[test]
fn p15_resume_replays_nothing_before_its_answer() {
    let service = plain();
    let (mut editor, session) = service.session();
    editor.turn_do(&session, &json!([{ "update": { "n": 5 } }]));
    editor.call("session/close", &json!({ "sessionId": session }));
    let before = editor.lines().len();
    let mut params = new_params(&service);
    params["sessionId"] = json!(session);
    let id = editor.request("session/resume", &params);
    assert!(editor.response(&id).get("result").is_some(), "{}", editor.story());
    let lines = editor.lines().split_off(before);
    assert_eq!(lines[0].json["id"], id, "nothing comes before the answer\n{}", editor.story());
    assert_eq!(editor.turn(&session, "goes on"), ["echo: goes on"]);
}

#[test]
fn p20_batch_is_refused_as_a_whole() {
    let service = plain();
    let (mut editor, session) = service.session();
    let batch = json!([
        { "jsonrpc": "2.0", "id": 71, "method": "session/new", "params": new_params(&service) },
        { "jsonrpc": "2.0", "id": 72, "method": "session/new", "params": new_params(&service) },
    ]);
    editor.send_line(&batch.to_string());
    editor.send_line("[]");
    editor.send_line("not json");
    editor.send_line("");
    editor.turn(&session, "barrier");
    let errors: Vec<Value> = editor
        .lines()
        .iter()
        .filter(|line| line.json.get("id") == Some(&Value::Null))
        .map(|line| line.json["error"]["code"].clone())
        .collect();
    assert_eq!(errors, [-32600, -32600, -32700], "{}", editor.story());
    assert_eq!((editor.answers_to(&json!(71)), editor.answers_to(&json!(72))), (0, 0));
}

#[test]
fn p20_ids_of_every_kind_come_back_as_they_were() {
    let service = plain();
    let (editor, session) = service.session();
    let prompt = json!([{ "type": "text", "text": "x" }]);
    let ids = [
        "1001",
        "\"1001\"",
        "0",
        "-7",
        "9223372036854775807",
        "-9223372036854775808",
        "18446744073709551616",
        "\"\"",
        "\"\\u00e9\\/\"",
        "1.5",
        "null",
    ];
    for id in ids {
        editor.send_line(&format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"session/prompt","params":{{"sessionId":"{session}","prompt":{prompt}}}}}"#
        ));
        let member = format!(r#""id":{id}"#);
        editor.wait_for(&format!("an answer with {member}"), |line| {
            (line.text().contains(&member) && line.text().contains("stopReason")).then_some(())
        });
    }
}

#[test]
fn p20_numbers_and_texts_are_different_ids() {
    let service = plain();
    let (mut editor, session) = service.session();
    let gate = service.dir.join("go");
    let steps = json!({ "do": [{ "update": {} }, { "wait_file": gate }] }).to_string();
    let prompt = |text: &str| json!({ "sessionId": session, "prompt": [{ "type": "text", "text": text }] });
    editor.request_with_id(&json!(500), "session/prompt", &prompt(&steps));
    editor.wait_chunks(&session, 1);
    editor.request_with_id(&json!("500"), "_x/do", &json!({ "sessionId": session, "do": [] }));
    assert!(editor.response(&json!("500")).get("result").is_some());
    assert_eq!(editor.answers_to(&json!(500)), 0);
    // The same id again while it is in flight is refused, and the first goes on.
    editor.request_with_id(&json!(500), "_x/do", &json!({ "sessionId": session, "do": [] }));
    let error = editor.error_of(&json!(500));
    assert_eq!(error["code"], -32600, "{error}");
    fs::write(gate, "").unwrap();
    assert!(
        poll_until(Duration::from_secs(10), || editor.answers_to(&json!(500)) == 2),
        "{}",
        editor.story()
    );
    // Once answered, an id may be used again.
    editor.request_with_id(&json!(500), "_x/do", &json!({ "sessionId": session, "do": [] }));
    assert!(
        poll_until(Duration::from_secs(10), || editor.answers_to(&json!(500)) == 3),
        "{}",
        editor.story()
    );
    editor.turn(&session, "end");
}
