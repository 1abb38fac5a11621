//! Faults of agents on the wire (`tests/faults`, rows A1–A15): silence, wrong
//! answers, garbage. Each ends in a clear error for that session and leaves
//! every other session alone.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

use std::{fs, time::Duration};

use conductor_tests::{
    editor::Editor,
    harness::{Service, assert_says, poll_until, service},
};
use serde_json::{Value, json};

/// The service still serves: a fresh session of the well-behaved agent works.
fn others_are_fine(service: &Service) {
    let mut editor = service.connect(&["--agent", "good"]);
    editor.initialize();
    let session = editor.new_session(&service.work());
    assert_eq!(editor.turn(&session, "others"), ["echo: others"]);
}

fn new_session_error(service: &Service, editor: &mut Editor) -> Value {
    editor.call_error("session/new", &json!({ "cwd": service.work(), "mcpServers": [] }))
}

#[test]
fn a01_never_answers_initialize() {
    let service = service(&json!({ "instead": { "initialize": ["hang"] } }))
        .set("agents.fake.start_timeout", "300ms")
        .agent("good", &json!({}))
        .start();
    let mut editor = service.editor();
    let error = new_session_error(&service, &mut editor);
    assert_says(&error, &["did not answer initialize within 300ms and was ended"]);
    assert!(
        poll_until(Duration::from_secs(5), || service.agents_alive().is_empty()),
        "the silent agent is killed"
    );
    others_are_fine(&service);
}

#[test]
fn a02_never_answers_a_prompt() {
    let service = service(&json!({ "cancel": "never" }))
        .set("service.cancel_grace", "300ms")
        .agent("good", &json!({}))
        .start();
    let (mut editor, session) = service.session();
    let id = editor.prompt_do(&session, &json!([{ "update": {} }, "hang"]));
    editor.wait_chunks(&session, 1);
    editor.cancel(&session);
    assert_eq!(editor.stop_reason(&id), "cancelled");
    assert!(poll_until(Duration::from_secs(5), || service.agents_alive().is_empty()), "its process is ended");
    // The session goes on with another process.
    assert_eq!(editor.turn(&session, "again"), ["echo: again"]);
    others_are_fine(&service);
}

#[test]
fn a03_never_reads_its_input() {
    let service = service(&json!({ "after": { "session/new": ["stop_reading"] } }))
        .set("service.stall_timeout", "500ms")
        .agent("good", &json!({}))
        .start();
    let (mut editor, session) = service.session();
    let id = editor.prompt(&session, &"p".repeat(10 << 20));
    others_are_fine(&service);
    assert_says(&editor.error_of(&id), &["did not read its input for 500ms and was ended"]);
    assert!(poll_until(Duration::from_secs(5), || service.agents_alive().is_empty()), "its process is ended");
    others_are_fine(&service);
}

#[test]
fn a04_both_pipes_full_at_once() {
    let service = service(&json!({})).set("service.stall_timeout", "60s").start();
    let (mut editor, session) = service.session();
    let gate = service.dir.join("go");
    // The agent writes 16 MiB before it reads again, and meanwhile 8 MiB wait for it.
    let steps = json!(["stop_reading", { "update": { "text": "first" } }, { "wait_file": gate },
        { "update": { "n": 4096, "size": 4096 } }, "start_reading"]);
    let id = editor.prompt_do(&session, &steps);
    editor.wait_chunks(&session, 1);
    for number in 0..8 {
        editor.notify(
            "_x/blob",
            &json!({ "sessionId": session, "number": number, "blob": "b".repeat(1 << 20) }),
        );
    }
    fs::write(gate, "").unwrap();
    editor.set_deadline(Duration::from_secs(60));
    assert_eq!(editor.stop_reason(&id), "end_turn");
    assert_eq!(editor.chunks(&session).len(), 4097);
    service.wait_received("fake", "the last blob", |line| {
        line.text.as_deref().is_some_and(|text| text.contains(r#""number":7"#))
    });
}

#[test]
fn a05_second_answer_is_dropped() {
    let service = service(&json!({})).start();
    let (mut editor, session) = service.session();
    let id = editor.prompt_do(&session, &json!([{ "answer": { "times": 3 } }]));
    assert_eq!(editor.stop_reason(&id), "end_turn");
    assert_eq!(editor.turn(&session, "next"), ["echo: next"]);
    assert_eq!(editor.answers_to(&id), 1);
}

#[test]
fn a06_answers_to_unknown_ids_end_the_agent_at_the_hundredth() {
    let service = service(&json!({})).agent("good", &json!({})).start();
    let (mut editor, session) = service.session();
    let unknown = |times: usize| json!([{ "repeat": [times, [{ "answer": { "id": "nobody-asked" } }]] }]);
    editor.turn_do(&session, &unknown(50));
    let before = editor.lines().len();
    let steps = json!([{ "repeat": [60, [{ "answer": { "id": 987_654 } }]] }, "hang"]);
    let id = editor.prompt_do(&session, &steps);
    assert_says(&editor.error_of(&id), &["breached the protocol 100 times and was ended"]);
    assert!(editor.lines()[before..].iter().all(|line| line.json["id"] != 987_654), "none is forwarded");
    others_are_fine(&service);
}

#[test]
fn a07_answer_with_the_id_of_another_session_never_crosses() {
    let service = service(&json!({})).start();
    let mut editor = service.editor();
    let (one, two) = (editor.new_session(&service.work()), editor.new_session(&service.work()));
    let waiting = editor.prompt_do(&two, &json!([{ "update": {} }, "wait_cancel"]));
    editor.wait_chunks(&two, 1);
    // Whatever ids the conductor uses towards the other process, these try them.
    let mut steps: Vec<Value> =
        (0..40).map(|id| json!({ "answer": { "id": id, "result": { "stolen": id } } })).collect();
    steps.push(json!({ "answer": { "id": waiting, "result": { "stolen": "same id" } } }));
    steps.push(json!({ "update": { "text": "tried" } }));
    let id = editor.prompt_do(&one, &json!(steps));
    editor.response(&id);
    assert_eq!(editor.answers_to(&waiting), 0, "{}", editor.story());
    editor.cancel(&two);
    assert_eq!(editor.stop_reason(&waiting), "cancelled");
    assert_eq!(editor.answers_to(&waiting), 1);
}

#[test]
fn a08_garbage_on_stdout_is_logged_escaped_and_not_forwarded() {
    let service = service(&json!({ "start": [{ "line": "garbage at start" }] })).start();
    let (mut editor, session) = service.session();
    let steps = json!([{ "line": "Warning: \u{1b}[31mred\u{1b}[0m" }, { "line": "" }, { "line": "[1,2]" },
        { "line": "\"text\"" }, { "line": "{\"half\":" }, { "update": { "text": "after" } }]);
    assert_eq!(editor.turn_do(&session, &steps), ["after0"]);
    for line in editor.lines() {
        assert!(line.json.is_object(), "garbage reached the editor: {}", line.text());
    }
    service.wait_log("Warning: ");
    assert!(!service.log().contains('\u{1b}'), "control characters are escaped in the log");
}

#[test]
fn a08_a_hundred_garbage_lines_end_the_agent() {
    let service = service(&json!({})).agent("good", &json!({})).start();
    let (mut editor, session) = service.session();
    let id = editor.prompt_do(&session, &json!([{ "repeat": [100, [{ "line": "garbage" }]] }, "hang"]));
    assert_says(&editor.error_of(&id), &["breached the protocol 100 times and was ended"]);
    others_are_fine(&service);
}

#[test]
fn a10_partial_line_then_exit() {
    let service = service(&json!({})).start();
    let (mut editor, session) = service.session();
    let steps = json!([{ "stderr": "about to fail\n" }, { "bytes": "7b2270617274" }, { "exit": 3 }]);
    let id = editor.prompt_do(&session, &steps);
    let error = editor.error_of(&id);
    assert_says(&error, &["exited with status 3", "about to fail"]);
    assert!(editor.lines().iter().all(|line| !line.text().contains("{\"part")), "no part is forwarded");
}

#[test]
fn a11_line_without_end_is_cut_at_the_cap() {
    let service = service(&json!({})).agent("good", &json!({})).start();
    let (mut editor, session) = service.session();
    let before = service.peak_memory();
    let steps =
        json!([{ "bytes": "7b2261223a22" }, { "repeat": [48, [{ "fill": [97, 1_048_576] }]] }, "hang"]);
    let id = editor.prompt_do(&session, &steps);
    assert_says(&editor.error_of(&id), &["sent a line over 16 MiB and was ended"]);
    let growth = service.peak_memory() - before;
    assert!(growth <= 64 * 1024, "memory grew by {growth} KiB");
    assert!(poll_until(Duration::from_secs(5), || service.agents_alive().is_empty()), "the agent is ended");
    others_are_fine(&service);
}

#[test]
fn a12_nesting_without_end_is_refused() {
    let service = service(&json!({})).start();
    let (mut editor, session) = service.session();
    let steps = json!([
        { "bytes": conductor_tests::ledger::to_hex(br#"{"jsonrpc":"2.0","method":"_x/deep","params":"#) },
        { "fill": [91, 100_000] }, { "fill": [93, 100_000] }, { "line": "}" },
        { "fill": [91, 100_000] }, { "line": "" },
        { "update": { "text": "after" } },
    ]);
    assert_eq!(editor.turn_do(&session, &steps), ["after0"]);
    assert!(editor.lines().iter().all(|line| line.raw.len() < 10_000), "the nest is not forwarded");
}

#[test]
fn a13_numbers_and_ids_beyond_every_type_pass_exactly() {
    let service = service(&json!({})).start();
    let (mut editor, session) = service.session();
    let update = |sid: &str| {
        format!(
            r#"{{"jsonrpc":"2.0","method":"session/update","params":{{"sessionId":"{sid}","update":{{"sessionUpdate":"usage_update","used":1e400000,"size":-0,"big":123456789012345678901234567890}}}}}}"#
        )
    };
    editor.turn_do(&session, &json!([{ "line": update("$sid") }]));
    let wanted = update(&session);
    assert!(editor.lines().iter().any(|line| line.text() == wanted), "{}", editor.story());

    // The id must come back as it was, though no integer type holds it.
    editor.answer_with(|request| {
        (request["method"] == "session/request_permission")
            .then(|| json!({ "outcome": { "outcome": "cancelled" } }))
    });
    for id in ["18446744073709551616", "-9223372036854775808", "\"\\u0041\""] {
        let mut ask = conductor_tests::harness::permission().to_string();
        ask = ask.replacen(r#"{"request":{"#, &format!(r#"{{"request":{{"id":{id},"#), 1);
        let prompt = format!(r#"{{"do":[{ask}]}}"#);
        let chunks = editor.turn(&session, &prompt);
        assert!(chunks[0].contains(&format!(r#""id":{id}"#)), "{id} came back as {chunks:?}");
    }
}

#[test]
fn a14_duplicate_keys_pass_as_data_and_never_redirect() {
    let service = service(&json!({})).set("agents.fake.sessions_per_process", 2).start();
    let mut editor = service.editor();
    let (one, two) = (editor.new_session(&service.work()), editor.new_session(&service.work()));
    let update = |sid: &str| {
        format!(
            r#"{{"jsonrpc":"2.0","method":"session/update","params":{{"sessionId":"{sid}","update":{{"sessionUpdate":"tool_call","toolCallId":"t","title":"x","rawInput":{{"cmd":"ls","cmd":"rm"}}}}}}}}"#
        )
    };
    editor.turn_do(&one, &json!([{ "line": update("$sid") }]));
    let wanted = update(&one);
    assert!(editor.lines().iter().any(|line| line.text() == wanted), "{}", editor.story());

    // The agent's own name of the other session, from its ledger.
    let news =
        service.ledger("fake").into_iter().filter(|entry| entry.kind == conductor_tests::ledger::Kind::Out);
    let ids: Vec<String> =
        news.filter_map(|entry| Some(entry.json()?["result"]["sessionId"].as_str()?.to_owned())).collect();
    let twice = format!(
        r#"{{"jsonrpc":"2.0","method":"session/update","params":{{"sessionId":"$sid","sessionId":"{}","update":{{"sessionUpdate":"agent_message_chunk","content":{{"type":"text","text":"whose"}}}}}}}}"#,
        ids[1]
    );
    editor.turn_do(&one, &json!([{ "line": twice }, { "update": { "text": "after" } }]));
    for line in editor.lines() {
        assert!(!ids.iter().any(|id| line.text().contains(id)), "an agent's id leaked: {}", line.text());
    }
    assert!(editor.chunks(&two).is_empty(), "the update must not reach the other session");
}

#[test]
fn a15_bad_text_never_breaks_the_stream() {
    let service = service(&json!({})).start();
    let (mut editor, session) = service.session();
    let update = |sid: &str, text: &str| {
        format!(
            r#"{{"jsonrpc":"2.0","method":"session/update","params":{{"sessionId":"{sid}","update":{{"sessionUpdate":"agent_message_chunk","content":{{"type":"text","text":"{text}"}}}}}}}}"#
        )
    };
    let good = [r"lone \ud83d surrogate", r"nul \u0000 inside", r"\ud83d\ude00", "emoji 😀", r"\/ \u00e9"];
    let mut steps: Vec<Value> = good.iter().map(|text| json!({ "line": update("$sid", text) })).collect();
    // Invalid UTF-8 is left out, and so is a line that starts with a byte order mark.
    steps.push(json!({ "bytes": "7b226a736f6e727063223a22322e30222c226d6574686f64223a22ff227d0a" }));
    steps.push(json!({ "line": format!("\u{feff}{}", update("$sid", "after a mark")) }));
    steps.push(json!({ "line": format!("{}\r", update("$sid", "carriage return")) }));
    steps.push(json!({ "update": { "text": "end" } }));
    let id = editor.prompt_do(&session, &json!(steps));
    assert_eq!(editor.stop_reason(&id), "end_turn");
    let lines: Vec<String> = editor.lines().iter().map(|line| line.text()).collect();
    for text in good {
        assert!(lines.contains(&update(&session, text)), "{text} did not pass exactly\n{}", editor.story());
    }
    let with_return = update(&session, "carriage return");
    assert!(lines.iter().any(|line| line.trim_end() == with_return), "a line ended by CRLF passes");
    assert!(editor.lines().iter().all(|line| std::str::from_utf8(&line.raw).is_ok()), "all lines are UTF-8");
    assert_eq!(editor.chunks(&session).last().map(String::as_str), Some("end0"));
}
