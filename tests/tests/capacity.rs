//! Agents with fewer processes than sessions: who waits, who is next, who is
//! refused and in which words.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

use std::{
    fs,
    time::{Duration, Instant},
};

use conductor_tests::{
    editor::{DEADLINE, Editor},
    harness::{Builder, Service, poll_until, service},
    people::Person,
};
use serde_json::{Value, json};

/// Longer than any test waits for anything.
const LONG: &str = "10m";

const LIMIT: i64 = -31002;

fn scarce(max: usize) -> Builder {
    service(&json!({})).set("agents.fake.max", max).set("agents.fake.queue_timeout", LONG)
}

fn ask(editor: &mut Editor, service: &Service) -> Value {
    editor.request("session/new", &json!({ "cwd": service.work(), "mcpServers": [] }))
}

/// Asks for a session, and sees it wait as the last of so many.
fn ask_in_vain(editor: &mut Editor, service: &Service, waiting: usize) -> Value {
    let id = ask(editor, service);
    wait_waiting(service, waiting);
    id
}

fn wait_waiting(service: &Service, waiting: usize) {
    let is_so = || service.agent_json("fake")["waiting"] == waiting;
    assert!(poll_until(DEADLINE, is_so), "not {waiting} wait: {}", service.agent_json("fake"));
}

fn opened(editor: &Editor, id: &Value) -> String {
    let answer = editor.response(id);
    let session = answer["result"]["sessionId"].as_str();
    session.unwrap_or_else(|| panic!("no session: {answer}\n{}", editor.story())).to_owned()
}

fn close(editor: &mut Editor, session: &str) {
    editor.call("session/close", &json!({ "sessionId": session }));
}

fn assert_all(error: &Value, texts: &[&str]) {
    let message = error["message"].as_str().unwrap_or_default();
    for text in texts {
        assert!(message.contains(text), "the message should say {text:?}: {error}");
    }
}

fn notices(editor: &Editor) -> Vec<String> {
    let updates = editor.lines().into_iter().map(|line| line.json["params"]["update"].clone());
    let notices = updates.filter(|update| update["sessionUpdate"] == "notice");
    notices.map(|update| update["title"].as_str().unwrap().to_owned()).collect()
}

fn wait_notice(editor: &Editor, text: &str) {
    assert!(
        poll_until(DEADLINE, || notices(editor).iter().any(|title| title.contains(text))),
        "{}",
        editor.story()
    );
}

// Waiting and being served.

#[test]
fn session_waits_until_another_closes() {
    let service = scarce(1).start();
    let (mut first, session) = service.session();
    let mut second = service.editor();
    let id = ask_in_vain(&mut second, &service, 1);
    assert_eq!(service.agent_json("fake")["max_per_user"], 64);
    let table = String::from_utf8(service.run(&["agents"]).stdout).unwrap();
    let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    let row = rows.iter().find(|row| row[0] == "fake*").unwrap();
    assert_eq!((rows[0][4], row[5]), ("WAITING", "1"), "{table}");
    assert_eq!(second.answers_to(&id), 0);

    close(&mut first, &session);
    let session = opened(&second, &id);
    assert_eq!(second.turn(&session, "at last"), ["echo: at last"]);
    wait_waiting(&service, 0);
    assert!(poll_until(DEADLINE, || service.agents_alive().len() == 1));
}

#[test]
fn more_processes_after_a_reload_serve_who_waits() {
    let mut service = scarce(1).start();
    let (mut first, held) = service.session();
    let mut second = service.editor();
    let id = ask_in_vain(&mut second, &service, 1);
    service.configure("agents.fake.max", 2);
    service.reload();
    opened(&second, &id);
    assert_eq!(first.turn(&held, "still"), ["echo: still"]);
}

#[test]
fn sessions_that_share_a_process_need_no_place_of_their_own() {
    let service = scarce(1).set("agents.fake.sessions_per_process", 2).start();
    let mut editor = service.editor();
    // The second comes while the process is still starting.
    let (one, two) = (ask(&mut editor, &service), ask(&mut editor, &service));
    let sessions = [opened(&editor, &one), opened(&editor, &two)];
    assert_eq!(service.agents_alive().len(), 1);
    let three = ask_in_vain(&mut editor, &service, 1);
    close(&mut editor, &sessions[0]);
    opened(&editor, &three);
    assert_eq!(editor.turn(&sessions[1], "beside"), ["echo: beside"]);
    assert_eq!(service.agents_alive().len(), 1);
}

// Refusals.

#[test]
fn wait_ends_in_a_refusal_that_says_what_to_do() {
    let service = scarce(1).set("agents.fake.queue_timeout", "300ms").start();
    let (mut first, session) = service.session();
    let asked = Instant::now();
    let mut second = service.editor();
    let id = ask(&mut second, &service);
    let error = second.error_of(&id);
    assert!(asked.elapsed() >= Duration::from_millis(300), "{:?}", asked.elapsed());
    assert_eq!(error["code"], LIMIT);
    assert_all(&error, &["all 1 processes of agent `fake` are in use", "this waited", "position 1"]);
    assert_all(&error, &["close a session", "try again later", "agents.fake.max"]);
    // It was no more than a refusal.
    assert_eq!(first.turn(&session, "still"), ["echo: still"]);
    close(&mut first, &session);
    second.new_session(&service.work());
}

#[test]
fn nobody_waits_where_waiting_is_switched_off() {
    let service = scarce(1).set("agents.fake.queue_timeout", "0s").start();
    let (mut editor, _session) = service.session();
    let id = ask(&mut editor, &service);
    let error = editor.error_of(&id);
    assert_eq!(error["code"], LIMIT);
    assert_all(&error, &["all 1 processes of agent `fake` are in use; close a session", "agents.fake.max"]);
    assert!(!error["message"].as_str().unwrap().contains("position"), "{error}");
}

#[test]
fn line_is_bounded_and_the_longest_row_gives_way() {
    let service = scarce(1).set("service.max_sessions_per_connection", 300).start();
    let (_first, _session) = service.session();
    let mut crowd = service.editor();
    let ids: Vec<Value> = (0..257).map(|_| ask(&mut crowd, &service)).collect();
    let refused =
        |ids: &[Value]| ids.iter().filter(|id| crowd.answers_to(id) > 0).cloned().collect::<Vec<_>>();
    assert!(poll_until(DEADLINE, || refused(&ids).len() == 1), "{}", service.agent_json("fake"));
    let error = crowd.error_of(&refused(&ids)[0]);
    assert_eq!(error["code"], LIMIT);
    assert_all(&error, &["256 requests wait", "agent `fake`", "try again later"]);
    // Somebody else still has room, at the cost of who has the most.
    let bob = Person::named(&service, "bob");
    let mut editor = bob.editor(&service);
    let id = ask(&mut editor, &service);
    assert!(poll_until(DEADLINE, || refused(&ids).len() == 2), "{}", service.agent_json("fake"));
    assert_eq!(editor.answers_to(&id), 0);
    wait_waiting(&service, 256);
}

// Users.

#[test]
fn who_has_fewer_processes_is_next() {
    let service = scarce(2).start();
    let (ann, bob) = (Person::named(&service, "ann"), Person::named(&service, "bob"));
    let (mut anns, mut bobs) = (ann.editor(&service), bob.editor(&service));
    let held = anns.new_session(&service.work());
    anns.new_session(&service.work());
    let crowd: Vec<Value> = (1..=3).map(|nth| ask_in_vain(&mut anns, &service, nth)).collect();
    let id = ask_in_vain(&mut bobs, &service, 4);
    close(&mut anns, &held);
    opened(&bobs, &id);
    wait_waiting(&service, 3);
    assert!(crowd.iter().all(|id| anns.answers_to(id) == 0));
}

#[test]
fn users_take_turns_at_the_only_process() {
    let service = scarce(1).start();
    let (ann, bob) = (Person::named(&service, "ann"), Person::named(&service, "bob"));
    let (mut anns, mut bobs) = (ann.editor(&service), bob.editor(&service));
    let held = anns.new_session(&service.work());
    let crowd: Vec<Value> = (1..=3).map(|nth| ask_in_vain(&mut anns, &service, nth)).collect();
    let id = ask_in_vain(&mut bobs, &service, 4);
    close(&mut anns, &held);
    // Whoever came first, and among one user's requests the first.
    let held = opened(&anns, &crowd[0]);
    wait_waiting(&service, 3);
    assert_eq!(bobs.answers_to(&id), 0);
    close(&mut anns, &held);
    let held = opened(&bobs, &id);
    assert_eq!(anns.answers_to(&crowd[1]), 0);
    close(&mut bobs, &held);
    let held = opened(&anns, &crowd[1]);
    close(&mut anns, &held);
    opened(&anns, &crowd[2]);
}

#[test]
fn user_has_no_more_processes_than_one_may_have() {
    let service = scarce(3).set("agents.fake.max_per_user", 1).start();
    let (ann, bob) = (Person::named(&service, "ann"), Person::named(&service, "bob"));
    let (mut anns, mut bobs) = (ann.editor(&service), bob.editor(&service));
    let held = anns.new_session(&service.work());
    let id = ask_in_vain(&mut anns, &service, 1);
    // Who is kept back by their own limit keeps nobody else back.
    let other = bobs.new_session(&service.work());
    assert_eq!(bobs.turn(&other, "free"), ["echo: free"]);
    assert_eq!(anns.answers_to(&id), 0);
    assert_eq!(service.agent_json("fake")["max_per_user"], 1);
    close(&mut anns, &held);
    opened(&anns, &id);
}

#[test]
fn refusal_names_the_limit_of_the_user() {
    let service =
        scarce(3).set("agents.fake.max_per_user", 1).set("agents.fake.queue_timeout", "100ms").start();
    let mut editor = Person::named(&service, "ann").editor(&service);
    editor.new_session(&service.work());
    let id = ask(&mut editor, &service);
    let error = editor.error_of(&id);
    assert_eq!(error["code"], LIMIT);
    assert_all(&error, &["user `ann` has all 1 processes of agent `fake` that one user may have"]);
    assert_all(&error, &["position 1", "raise agents.fake.max_per_user"]);
}

#[test]
fn shared_session_counts_for_its_owner() {
    let service = scarce(3).set("agents.fake.max_per_user", 1).start();
    let ann = Person::named(&service, "ann");
    let mut anns = ann.editor(&service);
    let shared = anns.new_session(&service.work());
    anns.turn(&shared, "mine");
    close(&mut anns, &shared);
    let done = ann.run(&service, &["sessions", "share", &shared, "--with", "bob", "--as", "driver"]);
    assert!(done.status.success(), "{done:?}");
    let mut bobs = Person::named(&service, "bob").editor(&service);
    bobs.call("session/load", &json!({ "sessionId": shared, "cwd": service.work(), "mcpServers": [] }));
    // It is ann's, whoever has it open.
    bobs.new_session(&service.work());
    ask_in_vain(&mut anns, &service, 1);
}

// Those who go, and an agent that does.

#[test]
fn who_goes_away_gives_up_the_place() {
    let service = scarce(1).start();
    let (mut first, session) = service.session();
    let (mut second, mut third) = (service.editor(), service.editor());
    ask_in_vain(&mut second, &service, 1);
    let id = ask_in_vain(&mut third, &service, 2);
    drop(second);
    wait_waiting(&service, 1);
    close(&mut first, &session);
    opened(&third, &id);
    let news = service.received("fake").into_iter().filter(|e| e.method().as_deref() == Some("session/new"));
    assert_eq!(news.count(), 2, "nothing was opened for who has gone");
}

#[test]
fn quarantine_answers_all_who_wait() {
    let restart = json!({ "intensity": 1, "within": "30s", "backoff": "10ms" });
    let service = scarce(1).set("agents.fake.restart", restart).start();
    let (mut first, session) = service.session();
    let (mut second, mut third) = (service.editor(), service.editor());
    let ids = [ask_in_vain(&mut second, &service, 1), ask_in_vain(&mut third, &service, 2)];
    first.prompt_do(&session, &json!([{ "stderr": "dying 31\n" }, { "exit": 31 }]));
    for (editor, id) in [&second, &third].into_iter().zip(&ids) {
        assert_all(&editor.error_of(id), &["dying 31"]);
    }
    assert_eq!(service.agent_json("fake")["state"], "quarantined");
    wait_waiting(&service, 0);
}

#[test]
fn service_that_stops_answers_all_who_wait() {
    let mut service = scarce(1).start();
    let (_first, _session) = service.session();
    let mut second = service.editor();
    let id = ask_in_vain(&mut second, &service, 1);
    assert_eq!(service.term().code(), Some(0));
    second.error_of(&id);
}

// Sessions that are open and have no process.

/// An editor with a session whose process was released, and another with the
/// only process, which it keeps until `go` is there.
fn parked(queue_timeout: &str) -> (Service, Editor, String, Editor) {
    let service = scarce(1)
        .set("agents.fake.queue_timeout", queue_timeout)
        .set("agents.fake.park_after", "50ms")
        .start();
    let mut editor = service.connect(&[]);
    editor.initialize_with(&json!({ "session": { "notices": {} } }));
    let session = editor.new_session(&service.work());
    editor.turn(&session, "first");
    service.wait_no_process("fake");
    let mut other = service.editor();
    let busy = other.new_session(&service.work());
    other.prompt_do(&busy, &json!([{ "update": {} }, { "wait_file": service.dir.join("go") }]));
    other.wait_chunks(&busy, 1);
    (service, editor, session, other)
}

#[test]
fn editor_is_told_the_position_as_it_changes() {
    let (service, mut editor, session, _other) = parked(LONG);
    let mut bobs = Person::named(&service, "bob").editor(&service);
    ask_in_vain(&mut bobs, &service, 1);
    // Bob has none, and is first.
    let id = editor.prompt(&session, "second");
    wait_notice(&editor, "Waiting for a process of agent `fake`: position 2");
    drop(bobs);
    wait_notice(&editor, "Waiting for a process of agent `fake`: position 1");
    assert_eq!(editor.answers_to(&id), 0);
    // What had the process is idle then, and releases it in its turn.
    fs::write(service.dir.join("go"), "").unwrap();
    assert_eq!(editor.stop_reason(&id), "end_turn");
    assert_eq!(editor.chunks(&session), ["echo: first", "echo: second"]);
    assert_eq!(notices(&editor).len(), 2, "{}", editor.story());
}

#[test]
fn prompt_that_waited_too_long_is_refused_and_the_next_is_not() {
    let (service, mut editor, session, _other) = parked("200ms");
    let id = editor.prompt(&session, "too early");
    let error = editor.error_of(&id);
    assert_eq!(error["code"], LIMIT);
    assert_all(&error, &["agent `fake`", "position 1", "agents.fake.max"]);
    assert_eq!(editor.answers_to(&id), 1);
    fs::write(service.dir.join("go"), "").unwrap();
    service.wait_no_process("fake");
    assert_eq!(editor.turn(&session, "again"), ["echo: again"]);
}
