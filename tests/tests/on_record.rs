//! Sessions that are kept on record: loaded as they were seen live, found again
//! after a kill of the service, continued after the end of their agent's
//! process in each of the three ways, listed in pages, hidden when deleted,
//! parked when idle.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

use std::time::Duration;

use conductor_tests::{
    editor::Editor,
    harness::{Builder, Service, assert_says, open_params, poll_until, service},
};
use serde_json::{Value, json};

/// Capabilities of agents that lack something.
fn only(load: bool, resume: bool) -> Value {
    let mut session = json!({ "close": {} });
    if resume {
        session["resume"] = json!({});
    }
    json!({ "capabilities": { "loadSession": load, "sessionCapabilities": session } })
}

fn update(update: &Value) -> Value {
    json!({ "notify": { "method": "session/update", "params": { "sessionId": "$sid", "update": update } } })
}

/// The updates of a session as they came, without the user's words, which only
/// a replay tells.
fn updates(editor: &Editor, session: &str) -> Vec<String> {
    let lines = editor.lines();
    let of_session = lines.iter().filter(|line| {
        line.method() == "session/update"
            && line.json["params"]["sessionId"] == session
            && line.json["params"]["update"]["sessionUpdate"] != "user_message_chunk"
    });
    of_session.map(conductor_tests::editor::Line::text).collect()
}

fn user_words(editor: &Editor, session: &str) -> Vec<String> {
    let lines = editor.lines();
    let chunks = lines.iter().filter(|line| {
        line.json["params"]["sessionId"] == session
            && line.json["params"]["update"]["sessionUpdate"] == "user_message_chunk"
    });
    let text = |line: &conductor_tests::editor::Line| {
        line.json["params"]["update"]["content"]["text"].as_str().unwrap().to_owned()
    };
    chunks.map(text).collect()
}

fn close(editor: &mut Editor, session: &str) {
    editor.call("session/close", &json!({ "sessionId": session }));
}

fn listed(editor: &mut Editor) -> Vec<Value> {
    let (mut all, mut params) = (Vec::new(), json!({}));
    loop {
        let page = editor.call("session/list", &params);
        all.extend(page["sessions"].as_array().unwrap().iter().cloned());
        match &page["nextCursor"] {
            Value::Null => return all,
            cursor => params = json!({ "cursor": cursor }),
        }
    }
}

/// What the agent was asked, by method and in order.
fn asked(service: &Service, methods: &[&str]) -> Vec<String> {
    let received = service.received("fake");
    let calls = received.iter().filter_map(|entry| serde_json::from_str::<Value>(entry.text.as_ref()?).ok());
    let names = calls.filter_map(|call| call["method"].as_str().map(str::to_owned));
    names.filter(|name| methods.contains(&name.as_str())).collect()
}

/// The texts of the prompts that the agent was sent.
fn prompts(service: &Service) -> Vec<Vec<String>> {
    let received = service.received("fake");
    let calls = received.iter().filter_map(|entry| serde_json::from_str::<Value>(entry.text.as_ref()?).ok());
    let prompts = calls.filter(|call| call["method"] == "session/prompt");
    let texts = |call: Value| {
        let blocks = call["params"]["prompt"].as_array().unwrap().clone();
        blocks.iter().map(|block| block["text"].as_str().unwrap_or_default().to_owned()).collect()
    };
    prompts.map(texts).collect()
}

const OPENING: &[&str] = &["session/new", "session/load", "session/resume"];

/// A turn with one of everything that a history has.
fn eventful_turn() -> Value {
    let text = |text: &str| json!({ "type": "text", "text": text });
    json!([
        update(&json!({ "sessionUpdate": "session_info_update", "title": "Mend it" })),
        update(&json!({ "sessionUpdate": "agent_thought_chunk", "content": text("hm"), "messageId": "t-1" })),
        update(&json!({ "sessionUpdate": "agent_message_chunk", "content": text("I \u{e9}dit"), "messageId": "m-1",
            "_meta": { "big": 12_345_678_901_234_567_u64 } })),
        update(&json!({ "sessionUpdate": "plan", "entries": [{ "content": "mend", "priority": "high", "status": "pending" }] })),
        update(&json!({ "sessionUpdate": "tool_call", "toolCallId": "c-1", "title": "Edit", "kind": "edit", "status": "pending" })),
        update(&json!({ "sessionUpdate": "tool_call_update", "toolCallId": "c-1", "status": "completed",
            "content": [{ "type": "diff", "path": "/w/a", "oldText": "a", "newText": "b" }] })),
        update(&json!({ "sessionUpdate": "something_new", "unheard": ["of", null] })),
        { "update": { "n": 3, "text": "told " } },
    ])
}

fn replay_is_identical(builder: Builder, swallowed: &str) {
    let service = builder.start();
    let (mut editor, session) = service.session();
    editor.turn_do(&session, &eventful_turn());
    editor.turn(&session, "and \"quotes\"");
    let live = updates(&editor, &session);
    assert!(live.len() >= 11, "{}", editor.story());
    close(&mut editor, &session);

    let mut other = service.editor();
    let id = other.request("session/load", &open_params(&service, &session));
    assert!(other.response(&id).get("result").is_some(), "{}", other.story());
    assert_eq!(updates(&other, &session), live, "{}", other.story());
    let words = user_words(&other, &session);
    assert_eq!(words.len(), 2, "{words:?}");
    assert_eq!(words[1], "and \"quotes\"");
    let lines = other.lines();
    let answered = lines.iter().position(|line| line.json["id"] == id).unwrap();
    let last = lines.iter().rposition(|line| line.method() == "session/update").unwrap();
    assert!(last < answered, "the history comes before the answer\n{}", other.story());
    assert_eq!(asked(&service, OPENING), ["session/new", swallowed]);

    // It goes on, and a third editor sees all of it, once.
    assert_eq!(other.turn(&session, "on")[..], ["echo: on"]);
    let live = updates(&other, &session);
    close(&mut other, &session);
    let mut third = service.editor();
    third.call("session/load", &open_params(&service, &session));
    assert_eq!(updates(&third, &session), live);
}

#[test]
fn load_tells_exactly_what_was_seen_live() {
    replay_is_identical(service(&json!({})), "session/resume");
}

#[test]
fn load_swallows_the_replay_of_an_agent_that_cannot_resume() {
    replay_is_identical(service(&only(true, false)), "session/load");
}

/// Gemini CLI tells most of the history after its answer to `session/load`.
#[test]
fn a_replay_that_comes_late_is_swallowed_all_the_same() {
    let mut script = only(true, false);
    let mark = update(&json!({ "sessionUpdate": "session_info_update", "title": "mark" }));
    script["instead"] = json!({ "session/load":
        [{ "answer": { "result": {} } }, { "update": { "n": 3, "text": "late " } }, mark] });
    let service = service(&script).start();
    let (mut editor, session) = service.session();
    editor.turn(&session, "one");
    close(&mut editor, &session);
    for _ in 0..2 {
        let mut other = service.editor();
        other.call("session/load", &open_params(&service, &session));
        other.wait_for("the mark", |line| line.text().contains("\"mark\"").then_some(()));
        assert_eq!(other.chunks(&session), ["echo: one"]);
        close(&mut other, &session);
    }
}

#[test]
fn load_works_with_an_agent_that_can_neither() {
    let service = service(&only(false, false)).start();
    let (mut editor, session) = service.session();
    editor.turn(&session, "the first word");
    let live = updates(&editor, &session);
    close(&mut editor, &session);
    let mut other = service.editor();
    let result = other.call("session/load", &open_params(&service, &session));
    assert_eq!(result.get("sessionId"), None, "the agent's own id is not for editors");
    assert_eq!(updates(&other, &session), live);
    other.turn(&session, "next");
    other.turn(&session, "last");
    let sent = prompts(&service);
    assert_eq!(sent.len(), 3, "{sent:?}");
    assert_eq!(sent[1].len(), 2, "{sent:?}");
    assert!(sent[1][0].starts_with("[History") && sent[1][0].contains("the first word"), "{sent:?}");
    assert!(sent[1][0].contains("echo: the first word") && sent[1][1] == "next", "{sent:?}");
    assert_eq!(sent[2], ["last"], "the past is told once");
}

#[test]
fn resume_attaches_without_a_replay_even_if_the_agent_only_loads() {
    for script in [json!({}), only(true, false), only(false, false)] {
        let service = service(&script).start();
        let (mut editor, session) = service.session();
        editor.turn(&session, "before");
        close(&mut editor, &session);
        let mut other = service.editor();
        other.call("session/resume", &open_params(&service, &session));
        assert_eq!(updates(&other, &session), Vec::<String>::new());
        assert!(other.turn(&session, "after").concat().contains("after"));
        // Neither the hand-over nor a second replay is anybody's history.
        close(&mut other, &session);
        let mut third = service.editor();
        third.call("session/load", &open_params(&service, &session));
        assert_eq!(user_words(&third, &session), ["before", "after"]);
        assert_eq!(third.chunks(&session)[0], "echo: before");
    }
}

#[test]
fn options_in_the_answer_come_from_the_new_binding() {
    let mut script = only(true, false);
    script["session"] = json!({ "configOptions": [{ "id": "model", "name": "M", "type": "select",
        "currentValue": "a", "options": [{ "value": "a", "name": "A" }] }] });
    let service = service(&script).start();
    let (mut editor, session) = service.session();
    editor.turn(&session, "x");
    close(&mut editor, &session);
    let result = editor.call("session/load", &open_params(&service, &session));
    assert_eq!(result["configOptions"][0]["id"], "model", "{result}");
}

#[test]
fn sessions_outlive_a_killed_service() {
    let mut service = service(&json!({})).start();
    let (mut editor, one) = service.session();
    editor.turn_do(&one, &eventful_turn());
    let two = editor.new_session(&service.work());
    let live = updates(&editor, &one);
    service.kill9();
    // Its bridge would come back and open the sessions itself.
    drop(editor);
    service.start_again();
    let mut editor = service.editor();
    let sessions = listed(&mut editor);
    let ids: Vec<&str> = sessions.iter().map(|session| session["sessionId"].as_str().unwrap()).collect();
    assert_eq!(ids, [&two, &one], "newest first: {sessions:?}");
    assert_eq!(sessions[1]["title"], "Mend it");
    assert_eq!(sessions[1]["cwd"], json!(service.work()));
    assert!(sessions[1]["updatedAt"].as_str().unwrap().ends_with('Z'));
    editor.call("session/load", &open_params(&service, &one));
    assert_eq!(updates(&editor, &one), live);
    assert_eq!(editor.turn(&one, "still here").last().unwrap(), "echo: still here");
    editor.call("session/resume", &open_params(&service, &two));
    assert_eq!(editor.turn(&two, "me, too"), ["echo: me, too"]);
}

#[test]
fn a_lost_store_is_made_anew_from_the_journal() {
    let mut service = service(&json!({})).start();
    let (mut editor, session) = service.session();
    editor.turn_do(&session, &eventful_turn());
    service.kill9();
    // Its bridge would come back and open the sessions itself.
    drop(editor);
    for file in ["store.sqlite", "store.sqlite-wal", "store.sqlite-shm"] {
        std::fs::remove_file(service.state().join(file)).ok();
    }
    service.start_again();
    let mut editor = service.editor();
    assert_eq!(listed(&mut editor)[0]["title"], "Mend it");
    editor.call("session/load", &open_params(&service, &session));
    assert_eq!(editor.turn(&session, "on").last().unwrap(), "echo: on");
    assert_eq!(asked(&service, OPENING), ["session/new", "session/resume"]);
}

#[test]
fn a_turn_that_ran_in_a_killed_service_is_interrupted_and_not_sent_again() {
    let mut service = service(&json!({})).start();
    let (mut editor, session) = service.session();
    let tool = update(
        &json!({ "sessionUpdate": "tool_call", "toolCallId": "c-9", "title": "Build", "status": "in_progress" }),
    );
    editor.prompt_do(&session, &json!([tool, { "update": {} }, "hang"]));
    editor.wait_chunks(&session, 1);
    service.kill9();
    // Its bridge would come back and open the sessions itself.
    drop(editor);
    service.start_again();
    let mut editor = service.editor();
    editor.call("session/load", &open_params(&service, &session));
    let seen = updates(&editor, &session);
    let last: Value = serde_json::from_str(seen.last().unwrap()).unwrap();
    assert_eq!(last["params"]["update"], failed("c-9"), "{seen:?}");
    assert_eq!(prompts(&service).len(), 1, "nothing is sent again");
    assert_eq!(editor.turn(&session, "next").last().unwrap(), "echo: next");
    assert_eq!(prompts(&service).len(), 2);
    wait_shown(&service, &session, "the conductor ended without warning");
}

/// Waits until the ledger, which comes behind, tells this of a session.
fn wait_shown(service: &Service, session: &str, text: &str) {
    let mut told = String::new();
    let is_there = poll_until(Duration::from_secs(20), || {
        let shown = service.run(&["sessions", "show", session, "--json"]);
        told = String::from_utf8_lossy(&shown.stdout).into_owned();
        told.contains(text)
    });
    assert!(is_there, "{told}");
}

fn failed(tool: &str) -> Value {
    json!({ "sessionUpdate": "tool_call_update", "toolCallId": tool, "status": "failed" })
}

#[test]
fn after_the_death_of_its_agent_a_session_goes_on_in_each_way() {
    for (script, way) in [
        (json!({}), "session/resume"),
        (only(true, false), "session/load"),
        (only(false, false), "session/new"),
    ] {
        let service = service(&script).start();
        let mut editor = service.connect(&[]);
        editor.initialize_with(&json!({ "session": { "notices": {} } }));
        let session = editor.new_session(&service.work());
        editor.turn(&session, "early words");
        let tool = update(
            &json!({ "sessionUpdate": "tool_call", "toolCallId": "c-1", "title": "Build", "status": "in_progress" }),
        );
        let done = update(
            &json!({ "sessionUpdate": "tool_call", "toolCallId": "c-2", "title": "Look", "status": "completed" }),
        );
        let dying =
            editor.prompt_do(&session, &json!([tool, done, { "stderr": "dying 31\n" }, { "exit": 31 }]));
        assert_says(&editor.error_of(&dying), &["dying 31"]);
        let lines = editor.lines();
        let failure = lines.iter().position(|line| line.json["params"]["update"] == failed("c-1")).unwrap();
        let answer = lines.iter().position(|line| line.json["id"] == dying).unwrap();
        assert!(failure < answer, "{}", editor.story());
        assert!(
            !lines.iter().any(|line| line.json["params"]["update"] == failed("c-2")),
            "{}",
            editor.story()
        );

        assert!(editor.turn(&session, "go on").last().unwrap().ends_with("go on"), "{}", editor.story());
        assert_eq!(asked(&service, OPENING), ["session/new", way], "{way}");
        let sent = prompts(&service);
        assert_eq!(sent.len(), 3, "no prompt is sent twice: {sent:?}");
        assert_eq!(sent[2].len(), if way == "session/new" { 2 } else { 1 }, "{sent:?}");
        // That the script's tool calls are not asked about is told, too.
        let is_news = |line: &String| line.contains("\"notice\"") && !line.contains("Not asked");
        let notices: Vec<_> = updates(&editor, &session).into_iter().filter(is_news).collect();
        assert_eq!(notices.len(), 1, "{way}: {notices:?}");
        // What the agent replays is not shown again.
        assert_eq!(editor.chunks(&session).iter().filter(|text| *text == "echo: early words").count(), 1);
        assert_eq!(editor.turn(&session, "and on").last().unwrap(), "echo: and on");
        assert_eq!(asked(&service, OPENING).len(), 2, "it stays there");
    }
}

#[test]
fn a_hand_over_is_bounded() {
    let service = service(&only(false, false)).set("service.handover_bytes", "2KiB").start();
    let (mut editor, session) = service.session();
    for turn in 0..20 {
        editor.turn(&session, &format!("{turn} {}", "word ".repeat(40)));
    }
    editor.turn_do(&session, &json!([{ "after": [{ "exit": 3 }] }]));
    service.wait_no_process("fake");
    editor.turn(&session, "now");
    let sent = prompts(&service);
    let last = sent.last().unwrap();
    assert!(last[0].len() <= 2048, "{}", last[0].len());
    assert!(last[0].contains("19 word") && !last[0].contains("User: 2 word"), "{}", last[0]);
    assert!(last[0].contains("earlier turns are left out"), "{}", last[0]);
    assert_eq!(last[1], "now");
}

#[test]
fn an_agent_that_cannot_come_back_refuses_what_waits_and_is_tried_again() {
    let script = json!({ "before": { "session/resume": [{ "wait_file": "never" }] } });
    let service = service(&script).start();
    let (mut editor, session) = service.session();
    editor.turn_do(&session, &json!([{ "after": [{ "exit": 3 }] }]));
    service.wait_no_process("fake");
    let waiting = editor.prompt(&session, "wait");
    service.wait_received("fake", "session/resume", |entry| {
        entry.text.as_deref().is_some_and(|text| text.contains("session/resume"))
    });
    editor.cancel(&session);
    assert_eq!(editor.stop_reason(&waiting), "cancelled");
    let doomed = editor.prompt(&session, "doomed");
    // One behind it that is taken back: once that is answered, both have arrived.
    let behind = editor.prompt(&session, "behind");
    editor.notify("$/cancel_request", &json!({ "requestId": behind }));
    assert_eq!(editor.stop_reason(&behind), "cancelled");
    for pid in service.agents_alive() {
        nix::sys::signal::kill(
            nix::unistd::Pid::from_raw(pid.cast_signed()),
            nix::sys::signal::Signal::SIGKILL,
        )
        .unwrap();
    }
    assert_says(&editor.error_of(&doomed), &["was killed by SIGKILL"]);
    assert_eq!(prompts(&service).len(), 1, "none of them was ever sent");
    std::fs::write(service.work().join("never"), "").unwrap();
    assert_eq!(editor.turn(&session, "again"), ["echo: again"]);
}

#[test]
fn a_deleted_session_stays_hidden_and_on_record() {
    let mut service = service(&json!({})).start();
    let (mut editor, session) = service.session();
    editor.turn(&session, "secret plan");
    close(&mut editor, &session);
    let (_kept, other) = service.session();
    editor.call("session/delete", &json!({ "sessionId": session }));
    service.kill9();
    // Its bridge would come back and open the sessions itself.
    drop(editor);
    service.start_again();
    let mut editor = service.editor();
    let ids: Vec<Value> = listed(&mut editor).into_iter().map(|entry| entry["sessionId"].clone()).collect();
    assert_eq!(ids, [json!(other)]);
    assert_eq!(editor.call_error("session/load", &open_params(&service, &session))["code"], -32002);
    wait_shown(&service, &session, "secret plan");
}

#[test]
fn lists_are_paged_across_a_restart() {
    let mut service = service(&json!({}))
        .set("agents.fake.sessions_per_process", 200)
        .set("service.max_sessions_per_connection", 200)
        .start();
    let mut editor = service.editor();
    let opened: Vec<String> = (0..120).map(|_| editor.new_session(&service.work())).collect();
    drop(editor);
    assert_eq!(service.term().code(), Some(0));
    service.start_again();
    let mut editor = service.editor();
    let first = editor.call("session/list", &json!({}));
    assert_eq!(first["sessions"].as_array().unwrap().len(), 50);
    let ids: Vec<String> =
        listed(&mut editor).iter().map(|entry| entry["sessionId"].as_str().unwrap().to_owned()).collect();
    assert_eq!(ids, opened.into_iter().rev().collect::<Vec<_>>());
}

#[test]
fn an_idle_session_is_parked_and_brought_back() {
    for (script, comes_back) in [
        (json!({}), Some("session/resume")),
        (only(true, false), Some("session/load")),
        (only(false, false), None),
    ] {
        let service = service(&script).set("agents.fake.park_after", "200ms").start();
        let mut editor = service.connect(&[]);
        editor.initialize_with(&json!({ "session": { "notices": {} } }));
        let session = editor.new_session(&service.work());
        editor.turn(&session, "one");
        if comes_back.is_some() {
            assert!(poll_until(Duration::from_secs(10), || service.agents_alive().is_empty()), "not parked");
        }
        assert_eq!(editor.turn(&session, "two").last().unwrap(), "echo: two");
        let expected: Vec<&str> = ["session/new"].into_iter().chain(comes_back).collect();
        assert_eq!(asked(&service, OPENING), expected);
        let seen = updates(&editor, &session);
        assert_eq!(seen.len(), 2, "the editor does not notice: {seen:?}");
        assert_eq!(prompts(&service).len(), 2);
    }
}

#[test]
fn a_running_turn_is_never_parked() {
    let service = service(&json!({})).set("agents.fake.park_after", "50ms").start();
    let (mut editor, session) = service.session();
    let id = editor.prompt_do(&session, &json!([{ "update": {} }, { "sleep": 600 }, { "update": {} }]));
    assert_eq!(editor.stop_reason(&id), "end_turn");
    assert_eq!(asked(&service, OPENING), ["session/new"]);
}

#[test]
fn a_session_with_the_demo_agent_comes_back_after_a_kill() {
    let mut service = service(&json!({})).demo().start();
    let (mut editor, session) = service.session();
    editor.turn(&session, "stream 5");
    let live = updates(&editor, &session);
    service.kill9();
    // Its bridge would come back and open the sessions itself.
    drop(editor);
    service.start_again();
    let mut editor = service.editor();
    editor.call("session/load", &open_params(&service, &session));
    // The agent announces its commands again, after the history.
    assert_eq!(updates(&editor, &session)[..live.len()], live);
    assert_eq!(user_words(&editor, &session), ["stream 5"]);
    assert!(!editor.turn(&session, "stream 1").is_empty());
}

/// Some agents refuse a session that another process of theirs has open: the
/// old process has gone before the new one is asked.
#[test]
fn a_session_that_is_loaded_right_after_its_end_waits_for_the_old_process() {
    let service = service(&json!({ "ignore_eof": true })).start();
    let (mut editor, session) = service.session();
    editor.turn(&session, "x");
    let old = service.agents_alive();
    close(&mut editor, &session);
    editor.call("session/load", &open_params(&service, &session));
    let now = service.agents_alive();
    assert!(!now.iter().any(|pid| old.contains(pid)), "{old:?} {now:?}");
}
