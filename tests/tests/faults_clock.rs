//! A wall clock that is set while the service runs (`tests/faults`, row C9): an hour
//! back, a day ahead. What is recorded is in order by its numbers, and whatever
//! waits, waits by a clock that only goes forward.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

use std::time::Duration;

use conductor::record::Origin;
use conductor_tests::{
    clock::Clock,
    disk,
    editor::DEADLINE,
    harness::{open_params, poll_until, service},
    net::Net,
};
use serde_json::json;
use uuid::Uuid;

const HOUR: i64 = 3600;
const DAY: i64 = 24 * HOUR;

#[test]
fn c09_order_is_by_number_and_not_by_time() {
    let (clock, builder) = Clock::under(service(&json!({})));
    let mut service = builder.start();
    let (mut editor, session) = service.session();
    let words = ["one", "two", "three", "four"];
    for (word, jump) in words.iter().zip([0, -HOUR, DAY, 0]) {
        clock.jump(jump);
        assert_eq!(editor.turn(&session, word), [format!("echo: {word}")]);
    }
    drop(editor);
    // A service that starts in the past knows what was recorded in its future.
    clock.jump(-DAY);
    service.kill9();
    service.start_again();
    let mut editor = service.editor();
    assert_eq!(editor.call("session/list", &json!({}))["sessions"][0]["sessionId"], json!(session));
    editor.call("session/load", &open_params(&service, &session));
    let told = words.map(|word| format!("echo: {word}"));
    assert_eq!(editor.chunks(&session), told);
    assert_eq!(editor.turn(&session, "five"), ["echo: five"]);
    drop(editor);
    service.term();

    let id: Uuid = session.parse().unwrap();
    let records: Vec<_> =
        disk::journal(&service).into_iter().filter(|record| record.stream.id == id).collect();
    let mut next = 1;
    for record in &records {
        assert_eq!(record.first_seq, next, "no gap, and no number twice");
        next += u64::from(record.count);
    }
    let said = disk::texts(&records, Origin::Editor);
    let prompts: Vec<&String> = said.iter().filter(|line| line.contains("session/prompt")).collect();
    let all = words.iter().chain(&["five"]);
    assert!(prompts.len() == 5 && prompts.iter().zip(all).all(|(line, word)| line.contains(word)));
    // The clock really jumped, both ways.
    let steps: Vec<i64> =
        records.windows(2).map(|pair| (pair[1].at_us - pair[0].at_us) / 1_000_000).collect();
    assert!(steps.iter().any(|step| *step < -HOUR / 2), "{steps:?}");
    assert!(steps.iter().any(|step| *step > DAY / 2), "{steps:?}");
}

#[test]
fn c09_nothing_times_out_because_the_clock_was_set() {
    let (clock, builder) = Clock::under(service(&json!({})));
    let service = builder
        .set("agents.fake.park_after", "1h")
        .set("service.detached_ttl", "1h")
        .set("service.editor_timeout", "1h")
        .start();
    let net = Net::before(&service);
    let (mut editor, session) = net.session(&service);
    let gate = service.dir.join("go");
    let id = editor.prompt_do(&session, &json!([{ "update": {} }, { "wait_file": gate }]));
    editor.wait_chunks(&session, 1);
    net.proxy.close(true);
    net.proxy.cut();
    service.wait_log("its sessions go on");
    for jump in [DAY, -HOUR, 2 * DAY] {
        clock.jump(jump);
        // Somebody else's turn: so the service has seen that time.
        let (mut other, beside) = service.session();
        assert_eq!(other.turn(&beside, "x"), ["echo: x"]);
    }
    net.proxy.close(false);
    std::fs::write(gate, "").unwrap();
    assert_eq!(editor.stop_reason(&id), "end_turn");
    // What people read comes another way than the answer, and may come later.
    let is_told = || editor.stderr().contains("nothing was lost");
    assert!(poll_until(DEADLINE, is_told), "{}", editor.stderr());
    // Nor was its idle process released.
    clock.jump(4 * DAY);
    assert_eq!(editor.turn(&session, "on"), ["echo: on"]);
    let received = service.received("fake");
    let resumed = received.iter().any(|line| line.method().as_deref() == Some("session/resume"));
    assert!(!resumed, "it was parked");
}

#[test]
fn c09_what_times_out_does_so_although_the_clock_was_set() {
    let (clock, builder) = Clock::under(service(&json!({ "cancel": "never" })));
    let service = builder.set("service.cancel_grace", "300ms").start();
    let (mut editor, session) = service.session();
    let id = editor.prompt_do(&session, &json!([{ "update": {} }, "hang"]));
    editor.wait_chunks(&session, 1);
    clock.jump(-DAY);
    editor.set_deadline(Duration::from_secs(5));
    editor.cancel(&session);
    assert_eq!(editor.stop_reason(&id), "cancelled");
}
