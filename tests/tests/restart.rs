//! Restarts beneath editors that stay (`tests/faults`, rows C5–C7 and N6): one
//! signal, two signals, a kill in the middle of it, again and again. The fake
//! agents' own ledgers are the oracle: no prompt reaches an agent twice, each
//! is answered once, and what is answered as done was done and seen in full.
//!
//! `RESTARTS` makes a longer run.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

use std::{
    collections::BTreeMap,
    env,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
    time::Duration,
};

use conductor::{
    journal::{Batch, Class, Journal, Settings},
    record::{Stream, StreamKind},
};
use conductor_tests::{
    editor::{DEADLINE, Editor},
    harness::{Service, assert_says, open_params, poll_until, service},
};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use uuid::Uuid;

/// Chunks in each answer.
const CHUNKS: usize = 20;

/// Editors that stay.
const EDITORS: usize = 4;

fn restarts(default: usize) -> usize {
    env::var("RESTARTS").map_or(default, |text| text.parse().unwrap())
}

/// The texts of the prompts that the agent was sent, in order.
fn heard(service: &Service) -> Vec<String> {
    let received = service.received("fake");
    let calls = received.iter().filter_map(conductor_tests::ledger::Entry::json);
    let prompts = calls.filter(|call| call["method"] == "session/prompt");
    prompts.map(|call| call["params"]["prompt"][0]["text"].as_str().unwrap().to_owned()).collect()
}

/// What became of one prompt.
#[derive(Debug)]
struct Asked {
    /// Its text: the steps for the agent, with a mark that no other has.
    text: String,
    mark: String,
    id: Value,
    /// Whether the editor was told that the turn ended as it should.
    is_done: bool,
}

/// Prompts one after the other until it is over, and once more.
fn keep_asking(
    editor: &mut Editor,
    session: &str,
    name: usize,
    is_over: &AtomicBool,
    done: &AtomicUsize,
) -> Vec<Asked> {
    editor.set_deadline(Duration::from_secs(60));
    let mut asked = Vec::new();
    loop {
        let is_last = is_over.load(Ordering::SeqCst);
        let mark = format!("e{name}p{} ", asked.len());
        let text = json!({ "do": [{ "update": { "n": CHUNKS, "text": mark, "size": 200 } }] }).to_string();
        let id = editor.prompt(session, &text);
        let answer = editor.response(&id);
        let is_done = answer["result"]["stopReason"] == "end_turn";
        // One that is still on its way to the agent may be called off.
        let is_refused =
            answer["error"]["message"].is_string() || answer["result"]["stopReason"] == "cancelled";
        assert!(is_done || is_refused, "neither done nor refused: {answer}");
        done.fetch_add(usize::from(is_done), Ordering::SeqCst);
        asked.push(Asked { text, mark, id, is_done });
        if is_last && is_done {
            return asked;
        }
    }
}

/// Restarts the service again and again beneath editors that never stop
/// asking. Gives the prompts that an agent got and whose answer was an error.
fn rolling(restarts: usize, stop: impl Fn(&mut Service, usize)) -> usize {
    let mut service = service(&json!({})).set("agents.fake.sessions_per_process", EDITORS).start();
    let mut editors: Vec<(Editor, String)> = (0..EDITORS).map(|_| service.session()).collect();
    let (is_over, done) = (AtomicBool::new(false), AtomicUsize::new(0));
    let asked: Vec<Vec<Asked>> = thread::scope(|scope| {
        let workers: Vec<_> = editors
            .iter_mut()
            .enumerate()
            .map(|(name, (editor, session))| {
                let (session, is_over, done) = (&*session, &is_over, &done);
                scope.spawn(move || keep_asking(editor, session, name, is_over, done))
            })
            .collect();
        for round in 0..restarts {
            // Everybody is at work when it happens.
            let before = done.load(Ordering::SeqCst);
            let busy = poll_until(Duration::from_secs(60), || {
                done.load(Ordering::SeqCst) >= before + 2 * EDITORS
                    || workers.iter().any(thread::ScopedJoinHandle::is_finished)
            });
            assert!(busy, "nothing is answered any more:\n{}", service.log());
            stop(&mut service, round);
            service.start_again();
        }
        is_over.store(true, Ordering::SeqCst);
        workers.into_iter().map(|worker| worker.join().unwrap()).collect()
    });

    let heard = heard(&service);
    let mut times: BTreeMap<&str, usize> = BTreeMap::new();
    for text in &heard {
        *times.entry(text).or_default() += 1;
    }
    let mut cut_short = 0;
    for ((editor, session), asked) in editors.iter().zip(&asked) {
        let chunks = editor.chunks(session);
        for Asked { text, mark, id, is_done } in asked {
            let times = times.get(text.as_str()).copied().unwrap_or_default();
            assert!(times <= 1, "{mark}was sent {times} times");
            assert_eq!(editor.answers_to(id), 1, "{mark}");
            // What was told is a beginning of the answer, in order and once.
            let told: Vec<&String> = chunks.iter().filter(|chunk| chunk.starts_with(mark)).collect();
            for (number, chunk) in told.iter().enumerate() {
                assert!(chunk.starts_with(&format!("{mark}{number} ")), "{mark}{told:?}");
            }
            if *is_done {
                assert_eq!((times, told.len()), (1, CHUNKS), "{mark}");
            } else {
                cut_short += times;
            }
        }
    }
    // On record is each of them once, and what became of it.
    for ((editor, session), asked) in editors.into_iter().zip(&asked) {
        drop(editor);
        assert_history(&service, &session, asked, &heard);
    }
    cut_short
}

/// What an editor that comes later is told of a session.
fn assert_history(service: &Service, session: &str, asked: &[Asked], heard: &[String]) {
    let mut later = service.editor();
    later.set_deadline(Duration::from_secs(60));
    later.call("session/load", &open_params(service, session));
    let lines = later.lines();
    let prompts: Vec<&str> = lines
        .iter()
        .filter(|line| line.json["params"]["update"]["sessionUpdate"] == "user_message_chunk")
        .map(|line| line.json["params"]["update"]["content"]["text"].as_str().unwrap())
        .collect();
    let sent: Vec<&str> = asked
        .iter()
        .map(|asked| asked.text.as_str())
        .filter(|text| heard.iter().any(|h| h == text))
        .collect();
    // One that was recorded may not have been sent any more.
    let recorded: Vec<&str> = prompts.iter().copied().filter(|text| sent.contains(text)).collect();
    assert_eq!(recorded, sent, "each prompt once and in order");
    let chunks = later.chunks(session);
    for Asked { mark, .. } in asked.iter().filter(|asked| asked.is_done) {
        let told = chunks.iter().filter(|chunk| chunk.starts_with(mark)).count();
        assert_eq!(told, CHUNKS, "{mark}on record");
    }
    assert_eq!(later.turn(session, "later").last().unwrap(), "echo: later");
}

#[test]
fn n06_rolling_restarts_lose_nothing_and_send_nothing_twice() {
    let cut_short = rolling(restarts(4), |service, _| assert_eq!(service.term().code(), Some(0)));
    assert_eq!(cut_short, 0, "a turn that ends in time is not cut short");
}

#[test]
fn c07_rolling_kills_send_nothing_twice() {
    rolling(restarts(6), |service, round| match round % 3 {
        0 => service.kill9(),
        1 => {
            service.signal(Signal::SIGTERM);
            service.kill9();
        }
        _ => {
            service.signal(Signal::SIGTERM);
            service.signal(Signal::SIGTERM);
            service.wait_exit(DEADLINE);
        }
    });
}

#[test]
fn c06_running_turns_end_and_no_turn_begins_in_a_drain() {
    let mut service = service(&json!({})).set("service.drain_timeout", "60s").start();
    let (mut editor, session) = service.session();
    let beside = editor.new_session(&service.work());
    let gate = service.dir.join("go");
    let steps = json!([{ "update": {} }, { "wait_file": gate }, { "update": { "text": "end " } }]);
    let running = editor.prompt_do(&session, &steps);
    editor.wait_chunks(&session, 1);
    let queued = editor.prompt(&session, "queued");
    service.signal(Signal::SIGTERM);
    service.wait_log("a second signal stops at once");
    let id = editor.prompt(&beside, "too late");
    assert_says(&editor.error_of(&id), &["stopping"]);
    let params = json!({ "cwd": service.work(), "mcpServers": [] });
    assert_says(&editor.call_error("session/new", &params), &["stopping"]);
    std::fs::write(gate, "").unwrap();
    assert_eq!(editor.stop_reason(&running), "end_turn");
    assert_eq!(editor.chunks(&session), ["chunk 0", "end 0"]);
    assert_says(&editor.error_of(&queued), &["stopping"]);
    assert_eq!(service.wait_exit(DEADLINE).code(), Some(0));
    assert_eq!(heard(&service).len(), 1, "neither of the others was sent");
    // The bridge comes back by itself, and both sessions go on.
    service.start_again();
    assert_eq!(editor.turn(&session, "queued again"), ["echo: queued again"]);
    assert_eq!(editor.turn(&beside, "again"), ["echo: again"]);
}

/// A drain that does not come to its end.
fn interrupted_drain(second: Signal) {
    let mut service = service(&json!({ "cancel": "never" })).set("service.drain_timeout", "60s").start();
    let (mut editor, session) = service.session();
    let id = editor.prompt_do(&session, &json!([{ "update": { "n": 3 } }, "hang"]));
    editor.wait_chunks(&session, 3);
    service.signal(Signal::SIGTERM);
    service.wait_log("a second signal stops at once");
    service.signal(second);
    service.wait_exit(DEADLINE);
    service.start_again();
    assert_says(&editor.error_of(&id), &["restarted"]);
    // Its session goes on, at an agent that heard of the first prompt once.
    assert_eq!(editor.turn(&session, "next"), ["echo: next"]);
    assert_eq!(editor.answers_to(&id), 1);
    assert_eq!(heard(&service).len(), 2, "nothing is sent again");
    drop(editor);
    let mut later = service.editor();
    later.call("session/load", &open_params(&service, &session));
    assert_eq!(later.chunks(&session), ["chunk 0", "chunk 1", "chunk 2", "echo: next"]);
}

#[test]
fn c07_second_sigterm_in_mid_drain_loses_nothing() {
    interrupted_drain(Signal::SIGTERM);
}

#[test]
fn c07_sigkill_in_mid_drain_loses_nothing() {
    interrupted_drain(Signal::SIGKILL);
}

/// Writes the record of a session many times more, each under an id of its own,
/// as if so many had been open when the service was killed. Gives the ids.
fn multiply(service: &Service, session: &str, count: usize) -> Vec<String> {
    let (journal, _) = Journal::open(&service.state().join("journal"), Settings::default()).unwrap();
    let records = journal.read_stream(session.parse().unwrap(), 1, 1 << 20).unwrap();
    let ids: Vec<Uuid> = (0..count).map(|_| Uuid::now_v7()).collect();
    for some in ids.chunks(100) {
        let mut batch = Batch::new();
        for id in some {
            let stream = Stream { id: *id, kind: StreamKind::Session };
            for record in &records {
                let text = String::from_utf8_lossy(&record.frames).replace(session, &id.to_string());
                let lines = text.lines().map(str::as_bytes);
                let (origin, to) = (record.origin, record.to);
                batch.push(stream, record.first_seq, record.at_us, origin, to, &record.outgoing, lines);
            }
        }
        assert!(journal.append(batch, Class::Stream).is_ok(), "the journal takes it");
    }
    journal.close();
    ids.iter().map(Uuid::to_string).collect()
}

fn listed(editor: &mut Editor) -> Vec<String> {
    let (mut all, mut params) = (Vec::new(), json!({}));
    loop {
        let page = editor.call("session/list", &params);
        let sessions = page["sessions"].as_array().unwrap();
        all.extend(sessions.iter().map(|session| session["sessionId"].as_str().unwrap().to_owned()));
        match &page["nextCursor"] {
            Value::Null => return all,
            cursor => params = json!({ "cursor": cursor }),
        }
    }
}

/// How long the start takes is measured by `make bench`.
#[test]
fn c05_ten_thousand_sessions_of_a_killed_service_are_all_there() {
    let mut service = service(&json!({})).start();
    let (mut editor, session) = service.session();
    editor.turn(&session, "done");
    let running = editor.prompt_do(&session, &json!([{ "update": {} }, "hang"]));
    editor.wait_chunks(&session, 2);
    assert_eq!(editor.answers_to(&running), 0);
    service.kill9();
    drop(editor);
    // The small file of the sessions has heard of none of them.
    let mut all = multiply(&service, &session, 10_000);
    all.push(session);
    service.start_again();
    let mut editor = service.editor();
    let mut found = listed(&mut editor);
    let last = all[9_999].clone();
    all.sort();
    found.sort();
    assert!(found == all, "{} of {} are listed", found.len(), all.len());
    // They are sessions, and not only names.
    editor.call("session/load", &open_params(&service, &last));
    assert_eq!(editor.chunks(&last), ["echo: done", "chunk 0"]);
    // A second kill: now they come from the small file. To list all takes a while.
    service.kill9();
    drop(editor);
    service.start_again();
    assert_eq!(service.log().matches(r#""sessions":10001"#).count(), 2, "{}", service.log());
    let first = service.editor().call("session/list", &json!({}));
    assert!(first["sessions"][0]["sessionId"] == *all.last().unwrap(), "{first}");
    // Bringing all that into the ledger is beside the point.
    service.kill9();
}
