//! Several editors on one session (E3–E5): history, then live, without a gap;
//! prompts that queue; permission requests that one of them answers; editors
//! that leave while a turn runs; turns that stall.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

use std::time::Duration;

use conductor_tests::{
    editor::{DEADLINE, Editor, Line},
    harness::{Service, assert_says, open_params, permission, poll_until, service},
    people::{Person, share},
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};

fn plain() -> Service {
    service(&json!({})).set("agents.fake.warm", 0).start()
}

/// Opens a session that another editor has open.
fn load(service: &Service, session: &str) -> Editor {
    let mut editor = service.editor();
    editor.call("session/load", &open_params(service, session));
    editor
}

/// What an editor has been shown, in order and without the framing: the user's
/// words, the agent's words.
fn conversation(editor: &Editor) -> Vec<String> {
    let told = |line: &Line| {
        let update = &line.json["params"]["update"];
        let text = update["content"]["text"].as_str()?;
        match update["sessionUpdate"].as_str()? {
            "user_message_chunk" => Some(format!("user: {text}")),
            "agent_message_chunk" => Some(text.to_owned()),
            _ => None,
        }
    };
    editor.lines().iter().filter_map(told).collect()
}

fn wait_conversation(editor: &Editor, words: &[&str]) {
    let is_there =
        || conversation(editor).ends_with(&words.iter().map(ToString::to_string).collect::<Vec<_>>());
    assert!(poll_until(Duration::from_secs(10), is_there), "{words:?}\n{}", editor.story());
}

/// Waits until an editor is told not to answer a request any more; by whom that
/// was done.
fn withdrawn(editor: &Editor, request: &Value) -> Value {
    editor.wait_for("the request to be withdrawn", |line| {
        let params = &line.json["params"];
        (line.method() == "$/cancel_request" && params["requestId"] == request["id"])
            .then(|| params["_meta"]["conductor"]["answeredBy"].clone())
    })
}

fn choose(editor: &Editor, request: &Value, option: &str) {
    editor.answer(request, &json!({ "outcome": { "outcome": "selected", "optionId": option } }));
}

/// The outcomes of permission requests that the agent has heard of.
fn outcomes(service: &Service) -> Vec<Value> {
    let received = service.received("fake");
    let messages = received.iter().filter_map(|entry| entry.json());
    let answers = messages.filter(|message| message.get("method").is_none());
    answers.filter_map(|answer| Some(answer["result"].get("outcome")?.clone())).collect()
}

fn prompts(service: &Service) -> usize {
    let received = service.received("fake");
    received.iter().filter_map(|entry| entry.json()).filter(|call| call["method"] == "session/prompt").count()
}

/// A turn that waits for a permission and then says something.
fn gated(text: &str) -> Value {
    json!([permission(), { "update": { "n": 1, "text": text } }])
}

#[test]
fn e03_a_second_editor_gets_history_then_live_and_drives() {
    let service = plain();
    let (mut first, session) = service.session();
    first.turn(&session, "one");
    let mut second = load(&service, &session);
    assert_eq!(conversation(&second), ["user: one", "echo: one"], "{}", second.story());

    // What the first does, the second sees.
    first.turn(&session, "two");
    wait_conversation(&second, &["user: two", "echo: two"]);

    // And the other way round; nobody sees their own words again.
    assert_eq!(second.turn(&session, "three").last().unwrap(), "echo: three");
    wait_conversation(&first, &["echo: two", "user: three", "echo: three"]);
    wait_conversation(&second, &["user: two", "echo: two", "echo: three"]);
    let ids = |editor: &Editor| {
        let lines = editor.lines();
        let id = |line: &Line| line.json["params"]["update"]["messageId"].as_str().map(str::to_owned);
        lines
            .iter()
            .filter(|line| line.text().contains("user_message_chunk"))
            .filter_map(id)
            .collect::<Vec<_>>()
    };
    // A third gets all of it, the same as it was told live.
    let third = load(&service, &session);
    let all = ["user: one", "echo: one", "user: two", "echo: two", "user: three", "echo: three"];
    assert_eq!(conversation(&third), all, "{}", third.story());
    assert_eq!(ids(&first).last(), ids(&third).last());
}

#[test]
fn resuming_a_session_that_is_open_attaches_without_replay() {
    let service = plain();
    let (mut first, session) = service.session();
    first.turn(&session, "one");
    let mut second = service.editor();
    second.call("session/resume", &open_params(&service, &session));
    assert_eq!(conversation(&second), Vec::<String>::new());
    first.turn(&session, "two");
    wait_conversation(&second, &["user: two", "echo: two"]);
}

#[test]
fn the_first_valid_answer_counts_and_the_others_are_told_who_gave_it() {
    let service = plain();
    let (mut first, session) = service.session();
    let mut second = load(&service, &session);
    let turn = first.prompt_do(&session, &gated("done"));
    let asked_first = first.next_request("session/request_permission");
    let asked_second = second.next_request("session/request_permission");
    // Who comes while it is open is asked, too.
    let mut third = load(&service, &session);
    let asked_third = third.next_request("session/request_permission");
    assert_eq!(asked_third["params"], asked_second["params"]);
    assert_eq!(asked_second["params"], asked_first["params"]);

    // An option that was never offered is no answer.
    choose(&third, &asked_third, "everything");
    choose(&second, &asked_second, "yes");
    let user = withdrawn(&first, &asked_first);
    assert_eq!(user, withdrawn(&third, &asked_third));
    assert!(user.as_str().is_some_and(|user| !user.is_empty()), "{user}");
    // Late answers change nothing.
    choose(&first, &asked_first, "no");
    assert_eq!(first.stop_reason(&turn), "end_turn");
    assert_eq!(outcomes(&service), [json!({ "outcome": "selected", "optionId": "yes" })]);
    wait_conversation(&third, &["done0"]);
}

#[test]
fn an_editor_that_cannot_answer_leaves_it_to_the_others() {
    let service = plain();
    let (mut first, session) = service.session();
    let mut second = load(&service, &session);
    let turn = first.prompt_do(&session, &gated("done"));
    let asked_first = first.next_request("session/request_permission");
    let asked_second = second.next_request("session/request_permission");
    first.answer_raw(&asked_first, r#""error":{"code":-32601,"message":"no such method"}"#);
    choose(&second, &asked_second, "no");
    assert_eq!(first.stop_reason(&turn), "end_turn");
    assert_eq!(outcomes(&service), [json!({ "outcome": "selected", "optionId": "no" })]);
}

#[test]
fn e04_answers_that_race_have_one_outcome() {
    let service = plain();
    let (mut first, session) = service.session();
    let mut second = load(&service, &session);
    for round in 0..50 {
        let turn = first.prompt_do(&session, &json!([permission()]));
        let asked_first = first.next_request("session/request_permission");
        let asked_second = second.next_request("session/request_permission");
        choose(&first, &asked_first, "yes");
        choose(&second, &asked_second, "no");
        assert_eq!(first.stop_reason(&turn), "end_turn");
        assert_eq!(outcomes(&service).len(), round + 1);
    }
}

#[test]
fn e05_a_cancel_that_races_with_an_answer_has_one_outcome() {
    let service = plain();
    let (mut first, session) = service.session();
    let mut second = load(&service, &session);
    for round in 0..50 {
        let turn = first.prompt_do(&session, &json!([permission()]));
        first.next_request("session/request_permission");
        let asked = second.next_request("session/request_permission");
        if round % 2 == 0 {
            first.cancel(&session);
            choose(&second, &asked, "yes");
        } else {
            choose(&second, &asked, "yes");
            first.cancel(&session);
        }
        let reason = first.stop_reason(&turn);
        assert!(matches!(reason.as_str(), "end_turn" | "cancelled"), "{reason}");
        assert_eq!(first.answers_to(&turn), 1);
        assert!(poll_until(Duration::from_secs(10), || outcomes(&service).len() == round + 1));
    }
}

#[test]
fn e09_prompts_of_two_editors_queue_and_a_cancel_spares_the_other() {
    let service = plain();
    let (mut first, session) = service.session();
    let mut second = load(&service, &session);
    let running = first.prompt_do(&session, &gated("first "));
    let asked = second.next_request("session/request_permission");
    let mine = first.prompt(&session, "dropped");
    let theirs = second.prompt(&session, "kept");
    // The second is heard after the first, because it has the permission open.
    assert!(poll_until(Duration::from_secs(10), || {
        let output = service.run(&["sessions", "queue", &session, "--json"]);
        String::from_utf8_lossy(&output.stdout).matches("\"entry\"").count() == 2
    }));
    first.cancel(&session);
    assert_eq!(first.stop_reason(&running), "cancelled");
    assert_eq!(first.stop_reason(&mine), "cancelled");
    assert_eq!(second.stop_reason(&theirs), "end_turn");
    withdrawn(&second, &asked);
    wait_conversation(&first, &["user: kept", "echo: kept"]);
    assert_eq!(prompts(&service), 2);
}

#[test]
fn a_waiting_prompt_is_shown_and_taken_out_of_the_queue() {
    let service = plain();
    let (mut editor, session) = service.session();
    let running = editor.prompt_do(&session, &gated("done"));
    let asked = editor.next_request("session/request_permission");
    let waiting = editor.prompt(&session, "one that waits");
    let mut shown = String::new();
    assert!(poll_until(Duration::from_secs(10), || {
        shown = String::from_utf8(service.run(&["sessions", "queue", &session]).stdout).unwrap();
        shown.contains("one that waits")
    }));
    let entry = shown.lines().last().unwrap().split_whitespace().next().unwrap().to_owned();
    let output = service.run(&["sessions", "queue", &session, "--cancel", &entry]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(editor.stop_reason(&waiting), "cancelled");
    let again = service.run(&["sessions", "queue", &session, "--cancel", &entry]);
    assert_eq!(again.status.code(), Some(1), "{again:?}");
    choose(&editor, &asked, "yes");
    assert_eq!(editor.stop_reason(&running), "end_turn");
    assert_eq!(prompts(&service), 1);
}

#[test]
fn e01_a_turn_goes_on_when_the_editor_leaves_and_is_found_complete() {
    let service = plain();
    let (mut editor, session) = service.session();
    let gate = service.work().join("gate");
    let steps =
        json!([{ "update": { "text": "before " } }, { "wait_file": gate }, { "update": { "n": 100 } }]);
    editor.prompt_do(&session, &steps);
    editor.wait_chunks(&session, 1);
    drop(editor);
    assert_eq!(service.agents_alive().len(), 1);
    std::fs::write(gate, "").unwrap();
    // Once the turn is over, nobody needs the process any more.
    assert!(poll_until(Duration::from_secs(20), || service.agents_alive().is_empty()), "{}", service.log());
    let later = load(&service, &session);
    assert_eq!(conversation(&later).len(), 102, "{}", later.story());
}

#[test]
fn the_session_goes_on_with_who_is_left() {
    let service = plain();
    let (mut first, session) = service.session();
    let mut second = load(&service, &session);
    first.prompt_do(&session, &gated("rest"));
    let asked = second.next_request("session/request_permission");
    drop(first);
    choose(&second, &asked, "yes");
    wait_conversation(&second, &["rest0"]);
    assert_eq!(second.turn(&session, "alone").last().unwrap(), "echo: alone");
    // The last one to leave ends it.
    second.call("session/close", &json!({ "sessionId": session }));
    assert!(poll_until(Duration::from_secs(10), || service.agents_alive().is_empty()));
    assert_says(
        &second.call_error("session/prompt", &json!({ "sessionId": session, "prompt": [] })),
        &["no such session"],
    );
}

#[test]
fn closing_a_session_that_others_have_open_leaves_it_to_them() {
    let service = plain();
    let (mut first, session) = service.session();
    let mut second = load(&service, &session);
    let mut third = load(&service, &session);
    second.call("session/close", &json!({ "sessionId": session }));
    first.call("session/close", &json!({ "sessionId": session }));
    assert_eq!(third.turn(&session, "still here").last().unwrap(), "echo: still here");
    // Whoever left can come back.
    first.call("session/load", &open_params(&service, &session));
    wait_conversation(&first, &["user: still here", "echo: still here"]);
}

#[test]
fn a_bridge_that_was_killed_keeps_nobody_out() {
    let service = plain();
    let (mut first, session) = service.session();
    first.prompt_do(&session, &gated("rest"));
    first.next_request("session/request_permission");
    kill(Pid::from_raw(first.pid().cast_signed()), Signal::SIGKILL).unwrap();
    let mut second = load(&service, &session);
    let asked = second.next_request("session/request_permission");
    choose(&second, &asked, "yes");
    wait_conversation(&second, &["rest0"]);
    assert_eq!(second.turn(&session, "mine now").last().unwrap(), "echo: mine now");
}

#[test]
fn e06_an_editor_that_does_not_read_slows_nobody_and_misses_nothing() {
    let service = plain();
    let (mut first, session) = service.session();
    let second = load(&service, &session);
    second.pause(true);
    // More than all queues and pipes on the way hold.
    let turn = first.prompt_do(&session, &long_turn());
    assert_eq!(first.stop_reason(&turn), "end_turn");
    assert_eq!(first.chunks(&session).len(), 4000);
    second.pause(false);
    assert!(
        poll_until(Duration::from_secs(30), || second.chunks(&session).len() == 4000),
        "{}",
        second.chunks(&session).len()
    );
    assert_eq!(second.chunks(&session), first.chunks(&session));
}

/// Two editors of a session, the second of which reads nothing for now.
fn two_of_whom_one_reads(service: &Service) -> (Editor, Editor, String) {
    let (mut first, session) = service.session();
    let mut second = load(service, &session);
    first.set_deadline(Duration::from_secs(60));
    second.set_deadline(Duration::from_secs(60));
    second.pause(true);
    (first, second, session)
}

/// More than there is room for on the way to an editor.
fn long_turn() -> Value {
    json!([{ "update": { "n": 4000, "text": "x".repeat(4096) } }])
}

#[test]
fn who_is_behind_when_the_service_stops_sees_all_before_the_answer() {
    let service = plain();
    let (first, mut second, session) = two_of_whom_one_reads(&service);
    let turn = second.prompt_do(&session, &long_turn());
    first.wait_chunks(&session, 4000);
    service.signal(Signal::SIGTERM);
    let stops = || service.log().contains("stopping; a second signal stops at once");
    assert!(poll_until(DEADLINE, stops), "{}", service.log());
    second.pause(false);
    assert_eq!(second.stop_reason(&turn), "end_turn");
    assert_eq!(second.chunks(&session).len(), 4000, "the answer came before what was said");
}

#[test]
fn who_leaves_a_session_that_has_ended_meanwhile_is_answered() {
    let service = plain();
    let (mut first, mut second, session) = two_of_whom_one_reads(&service);
    let turn = first.prompt_do(&session, &long_turn());
    assert_eq!(first.stop_reason(&turn), "end_turn");
    // It ends for everybody while the second is far behind.
    let closed = service.run(&["sessions", "close", &session]);
    assert!(closed.status.success(), "{closed:?}");
    second.pause(false);
    second.wait_chunks(&session, 1500);
    // By now that was heard of; the rest still waits, as nobody reads it.
    second.pause(true);
    let id = second.request("session/close", &json!({ "sessionId": session }));
    second.pause(false);
    second.response(&id);
    // Only that seat is left.
    let other = second.new_session(&service.work());
    assert_eq!(second.turn(&other, "on"), ["echo: on"]);
    assert_eq!(second.answers_to(&id), 1);
}

#[test]
fn a_stalled_turn_is_reported_and_then_cancelled() {
    let service = service(&json!({}))
        .set("agents.fake.turn_stall_timeout", "300ms")
        .set("agents.fake.on_stall", "cancel")
        .set("service.cancel_grace", "500ms")
        .start();
    let mut editor = service.connect(&[]);
    editor.initialize_with(&json!({ "session": { "notices": {} } }));
    let session = editor.new_session(&service.work());
    let turn = editor.prompt_do(&session, &json!(["hang"]));
    editor.wait_for("a notice", |line| line.text().contains("has stalled").then_some(()));
    assert_eq!(editor.stop_reason(&turn), "cancelled");
}

#[test]
fn a_session_is_followed_in_a_terminal_until_it_ends() {
    let service = plain();
    let (mut editor, session) = service.session();
    editor.turn(&session, "one");
    let mut command = service.command(&["sessions", "attach", &session, "--json"]);
    let mut follower = Editor::spawn(&mut command);
    follower.wait_for("the past", |line| (line.json["event"] == "text").then_some(()));
    editor.turn(&session, "two");
    follower.wait_for("the present", |line| (line.json["text"] == "echo: two").then_some(()));
    // Who watches is not asked.
    let turn = editor.prompt_do(&session, &gated("three"));
    let asked = editor.next_request("session/request_permission");
    choose(&editor, &asked, "yes");
    assert_eq!(editor.stop_reason(&turn), "end_turn");
    follower.wait_for("more", |line| (line.json["text"] == "three0").then_some(()));
    let asks = follower.lines().iter().filter(|line| line.json["event"] == "permission").count();
    assert_eq!(asks, 0, "{}", follower.story());
    assert!(service.run(&["sessions", "close", &session]).status.success());
    assert!(follower.wait_exit().success(), "{}", follower.story());
    let events: Vec<Value> = follower.lines().iter().map(|line| line.json.clone()).collect();
    let words = events.iter().filter(|event| event["event"] == "user");
    assert_eq!(words.filter_map(|event| event["text"].as_str()).take(2).collect::<Vec<_>>(), ["one", "two"]);
}

#[test]
fn who_only_watches_cannot_drive() {
    let service = plain();
    let (mut first, session) = service.session();
    let mut watcher = service.editor();
    let mut params = open_params(&service, &session);
    params["_meta"] = json!({ "conductor": { "observe": true } });
    watcher.call("session/load", &params);
    let prompt = json!({ "sessionId": session, "prompt": [{ "type": "text", "text": "no" }] });
    assert_says(&watcher.call_error("session/prompt", &prompt), &["may watch"]);
    let turn = first.prompt_do(&session, &gated("done"));
    let asked = first.next_request("session/request_permission");
    watcher.cancel(&session);
    choose(&first, &asked, "yes");
    assert_eq!(first.stop_reason(&turn), "end_turn");
    wait_conversation(&watcher, &["done0"]);
    watcher.call("session/close", &json!({ "sessionId": session }));
    assert_eq!(first.turn(&session, "still").last().unwrap(), "echo: still");
}

#[test]
fn a_guest_drives_a_session_that_is_open_until_it_is_not_shared_any_more() {
    let service = plain();
    let ann = Person::named(&service, "ann");
    let (mut owner, session) = service.session();
    owner.turn(&session, "one");
    let mut guest = ann.editor(&service);
    let nothing = guest.call_error("session/load", &open_params(&service, &session));
    assert_says(&nothing, &["no such session"]);
    share(&service, &session, "ann", "driver");
    guest.call("session/load", &open_params(&service, &session));
    assert_eq!(guest.turn(&session, "hers").last().unwrap(), "echo: hers");
    wait_conversation(&owner, &["user: hers", "echo: hers"]);
    // The owner learns who answered.
    let turn = owner.prompt_do(&session, &gated("done"));
    let asked = owner.next_request("session/request_permission");
    let asked_too = guest.next_request("session/request_permission");
    choose(&guest, &asked_too, "yes");
    assert_eq!(withdrawn(&owner, &asked), "ann");
    assert_eq!(owner.stop_reason(&turn), "end_turn");
    let export = service.run(&["sessions", "export", &session, "--format", "jsonl"]);
    let export = String::from_utf8(export.stdout).unwrap();
    assert_eq!(export.matches(r#"_conductor/by\"#).count(), 3, "{export}");

    let output = service.run(&["sessions", "unshare", &session, "--with", "ann"]);
    assert!(output.status.success(), "{output:?}");
    let prompt = json!({ "sessionId": session, "prompt": [] });
    let gone = || guest.call_error("session/prompt", &prompt);
    assert!(poll_until(Duration::from_secs(10), {
        let mut gone = gone;
        move || gone()["message"].as_str().is_some_and(|text| text.contains("no such session here"))
    }));
    assert_eq!(owner.turn(&session, "alone").last().unwrap(), "echo: alone");
}

#[test]
fn a_guest_whose_share_is_taken_back_in_a_turn_is_answered() {
    let service = plain();
    let ann = Person::named(&service, "ann");
    let (mut owner, session) = service.session();
    share(&service, &session, "ann", "driver");
    let mut guest = ann.editor(&service);
    guest.call("session/load", &open_params(&service, &session));
    let running = guest.prompt_do(&session, &gated("done"));
    let asked = owner.next_request("session/request_permission");
    let waiting = guest.prompt(&session, "later");
    let queued = || {
        let output = service.run(&["sessions", "queue", &session, "--json"]);
        String::from_utf8_lossy(&output.stdout).contains("later")
    };
    assert!(poll_until(Duration::from_secs(10), queued));
    assert!(service.run(&["sessions", "unshare", &session, "--with", "ann"]).status.success());
    assert_says(&guest.error_of(&running), &["not shared with you"]);
    assert_says(&guest.error_of(&waiting), &["not shared with you"]);
    // What they began goes on, and they see nothing of it.
    choose(&owner, &asked, "yes");
    wait_conversation(&owner, &["done0"]);
    assert_eq!(owner.turn(&session, "alone").last().unwrap(), "echo: alone");
    assert_eq!(prompts(&service), 2);
    assert!(!conversation(&guest).iter().any(|words| words.contains("done")), "{}", guest.story());
}

#[test]
fn a_guest_who_may_only_watch_does() {
    let service = plain();
    let ann = Person::named(&service, "ann");
    let (mut owner, session) = service.session();
    share(&service, &session, "ann", "observer");
    let mut guest = ann.editor(&service);
    guest.call("session/load", &open_params(&service, &session));
    let turn = owner.prompt_do(&session, &gated("done"));
    let asked = owner.next_request("session/request_permission");
    let prompt = json!({ "sessionId": session, "prompt": [{ "type": "text", "text": "no" }] });
    assert_says(&guest.call_error("session/prompt", &prompt), &["may watch"]);
    choose(&owner, &asked, "yes");
    assert_eq!(owner.stop_reason(&turn), "end_turn");
    wait_conversation(&guest, &["done0"]);
    assert!(guest.lines().iter().all(|line| line.method() != "session/request_permission"));
}

/// Has a guest's prompt wait behind a turn of the owner's; the guest, the request
/// that the turn waits for, and the turn.
fn queued_by_guest(
    service: &Service,
    ann: &Person,
    owner: &mut Editor,
    session: &str,
) -> (Editor, Value, Value) {
    share(service, session, "ann", "driver");
    let mut guest = ann.editor(service);
    guest.call("session/load", &open_params(service, session));
    let turn = owner.prompt_do(session, &gated("done"));
    let asked = owner.next_request("session/request_permission");
    guest.prompt(session, "hers");
    let waits = || String::from_utf8(service.run(&["sessions", "queue", session]).stdout).unwrap();
    assert!(poll_until(Duration::from_secs(10), || waits().contains("ann")), "{}", waits());
    (guest, asked, turn)
}

#[test]
fn what_a_guest_asked_before_leaving_is_recorded_as_theirs() {
    let service = plain();
    let ann = Person::named(&service, "ann");
    let (mut owner, session) = service.session();
    let (mut guest, asked, turn) = queued_by_guest(&service, &ann, &mut owner, &session);
    guest.close_stdin();
    assert!(guest.wait_exit().success(), "{}", guest.story());
    let export = || {
        let export = service.run(&["sessions", "export", &session, "--format", "jsonl"]);
        String::from_utf8(export.stdout).unwrap()
    };
    assert!(poll_until(Duration::from_secs(10), || export().contains("_conductor/unseated")), "{}", export());
    choose(&owner, &asked, "yes");
    assert_eq!(owner.stop_reason(&turn), "end_turn");
    wait_conversation(&owner, &["user: hers", "echo: hers"]);
    // Before her prompt it is said that it is hers.
    let record = export();
    let prompt = record.lines().position(|line| line.contains("hers") && line.contains("session/prompt"));
    let said_by = record.lines().nth(prompt.unwrap() - 1).unwrap();
    assert!(said_by.contains("_conductor/by") && said_by.contains("ann"), "{record}");
}

#[test]
fn what_a_guest_asked_is_not_done_once_the_session_is_not_shared_any_more() {
    let service = plain();
    let ann = Person::named(&service, "ann");
    let (mut owner, session) = service.session();
    let (_guest, asked, turn) = queued_by_guest(&service, &ann, &mut owner, &session);
    let output = service.run(&["sessions", "unshare", &session, "--with", "ann"]);
    assert!(output.status.success(), "{output:?}");
    choose(&owner, &asked, "yes");
    assert_eq!(owner.stop_reason(&turn), "end_turn");
    assert_eq!(owner.turn(&session, "alone").last().unwrap(), "echo: alone");
    assert_eq!(prompts(&service), 2);
}

#[test]
fn who_gives_up_before_the_session_is_open_leaves_no_seat_behind() {
    let temp = tempfile::tempdir().unwrap();
    let go = temp.path().join("go");
    let script = json!({ "before": { "session/resume": [{ "wait_file": go }] } });
    let service = service(&script).set("agents.fake.warm", 0).start();
    let (mut first, session) = service.session();
    first.turn(&session, "one");
    first.call("session/close", &json!({ "sessionId": session }));
    let mut first = service.editor();
    let opening = first.request("session/resume", &open_params(&service, &session));
    // One that comes while it is being opened, and goes again.
    let mut second = service.editor();
    second.request("session/load", &open_params(&service, &session));
    second.close_stdin();
    second.wait_exit();
    std::fs::write(&go, "").unwrap();
    first.response(&opening);
    first.call("session/close", &json!({ "sessionId": session }));
    let shown = || String::from_utf8(service.run(&["sessions", "export", &session]).stdout).unwrap();
    let ends = || shown().matches("_conductor/session_ended").count();
    assert!(poll_until(Duration::from_secs(10), || ends() == 2), "{}", shown());
}
