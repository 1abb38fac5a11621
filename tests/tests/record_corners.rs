//! Corners of the record: each of these once went wrong, and must not again.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

use std::collections::HashMap;

use conductor::{
    journal::{Batch, Class, Record},
    record::{Destination, Origin, Stream, StreamKind},
};
use conductor_tests::{
    disk::{self, Disk},
    editor::DEADLINE,
    harness::{Service, permission, poll_until, service},
    shipping::{Bench, ship_all},
};
use serde_json::{Value, json};
use uuid::Uuid;

/// The code of what was not done because it could not be recorded.
const NOT_RECORDED: i64 = -31004;

/// Every stream's numbers are there once, in order.
fn assert_in_order(records: &[Record]) {
    let mut next: HashMap<Uuid, u64> = HashMap::new();
    for record in records {
        let next = next.entry(record.stream.id).or_insert(1);
        assert_eq!(record.first_seq, *next, "in {record:?}");
        *next += u64::from(record.count);
    }
}

/// A request of the agent's to write a file, of about this size.
fn write(service: &Service, bytes: usize, forget: bool) -> Value {
    let path = service.work().join("written");
    json!({ "request": { "method": "fs/write_text_file", "forget": forget, "params": {
        "sessionId": "$sid", "path": path, "content": "x".repeat(bytes),
    } } })
}

#[test]
fn what_a_session_could_not_write_before_its_end_is_written_later() {
    let (disk, builder) = Disk::under(service(&json!({})));
    let mut service = builder.start();
    let (mut editor, session) = service.session();
    disk.rule("pwrite EIO");
    let refused = editor.prompt(&session, "refused");
    assert_eq!(editor.error_of(&refused)["code"], NOT_RECORDED);
    editor.call("session/close", &json!({ "sessionId": session }));
    disk.works();
    service.wait_log("the journal can be written again");
    drop(editor);
    service.term();
    let records = disk::journal(&service);
    assert_in_order(&records);
    let of_session: Vec<_> =
        records.into_iter().filter(|record| record.stream.id.to_string() == session).collect();
    let editors = disk::texts(&of_session, Origin::Editor);
    assert!(editors.iter().any(|frame| frame.contains("refused")), "{editors:#?}");
    let ours = disk::texts(&of_session, Origin::Conductor);
    assert!(ours.last().unwrap().contains("_conductor/session_ended"), "{ours:#?}");
}

#[test]
fn refused_requests_do_not_pile_up_in_memory() {
    let (disk, builder) = Disk::under(service(&json!({})));
    let service = builder.start();
    let (mut editor, session) = service.session();
    let go = service.work().join("go");
    let steps = json!([
        { "wait_file": go }, { "repeat": [60, [write(&service, 1 << 20, true)]] }, { "update": {} }
    ]);
    let id = editor.prompt_do(&session, &steps);
    service.wait_received("fake", "the prompt", |line| {
        line.text.as_deref().is_some_and(|text| text.contains("wait_file"))
    });
    editor.set_deadline(std::time::Duration::from_secs(60));
    let before = service.peak_memory();
    disk.rule("pwrite EIO");
    std::fs::write(&go, "").unwrap();
    // The first ones are refused at once, and then the agent is not read.
    service.wait_received("fake", "a refusal", |line| {
        line.text.as_deref().is_some_and(|text| text.contains(&NOT_RECORDED.to_string()))
    });
    service.wait_settled("fake");
    disk.works();
    assert_eq!(editor.stop_reason(&id), "end_turn");
    let grown = service.peak_memory().saturating_sub(before);
    assert!(grown < 32 << 10, "{grown} KiB more");
}

#[test]
fn what_belongs_to_no_session_waits_for_the_disk_as_well() {
    let (disk, builder) = Disk::under(service(&json!({})));
    let service = builder.start();
    let (mut editor, session) = service.session();
    let (go, done) = (service.work().join("go"), service.work().join("done"));
    let stray = json!({ "notify": { "method": "_x/stray", "params": {
        "sessionId": "nobody's", "padding": "x".repeat(60_000),
    } } });
    let turn = editor
        .prompt_do(&session, &json!([{ "wait_file": go }, { "repeat": [700, [stray]] }, { "touch": done }]));
    service.wait_received("fake", "the prompt", |line| {
        line.text.as_deref().is_some_and(|text| text.contains("wait_file"))
    });
    disk.rule("fdatasync hold");
    std::fs::write(&go, "").unwrap();
    service.wait_settled("fake");
    assert!(!done.exists(), "the agent was read all the same");
    disk.works();
    assert_eq!(editor.stop_reason(&turn), "end_turn");
    assert!(done.exists());
}

#[test]
fn the_agent_is_told_at_once_that_a_write_was_not_recorded() {
    let (disk, builder) = Disk::under(service(&json!({})));
    let service = builder.start();
    let (mut editor, session) = service.session();
    let go = service.work().join("go");
    editor.prompt_do(&session, &json!([{ "wait_file": go }, write(&service, 1, false)]));
    service.wait_received("fake", "the prompt", |line| {
        line.text.as_deref().is_some_and(|text| text.contains("wait_file"))
    });
    disk.rule("pwrite EIO");
    std::fs::write(&go, "").unwrap();
    service.wait_received("fake", "the refusal", |line| {
        line.text.as_deref().is_some_and(|text| text.contains(&NOT_RECORDED.to_string()))
    });
    assert!(!service.work().join("written").exists());
}

#[test]
fn what_is_cancelled_while_it_waits_for_the_disk_never_goes_out() {
    let (disk, builder) = Disk::under(service(&json!({})));
    let service = builder.start();
    let (mut one, first) = service.session();
    let (mut two, second) = service.session();
    let asked = one.prompt_do(&first, &json!([permission(), "wait_cancel"]));
    let ask = one.next_request("session/request_permission");
    disk.rule("fdatasync hold");
    // An allowance that has not gone out does not follow the cancel.
    one.answer(&ask, &json!({ "outcome": { "outcome": "selected", "optionId": "yes" } }));
    one.cancel(&first);
    assert_eq!(one.stop_reason(&asked), "cancelled");
    // Nor does a request follow its own end.
    let prompt = two.prompt(&second, "never sent");
    two.notify("$/cancel_request", &json!({ "requestId": prompt }));
    assert_eq!(two.stop_reason(&prompt), "cancelled");
    let mode = two.request("session/set_mode", &json!({ "sessionId": second, "modeId": "another" }));
    two.notify("$/cancel_request", &json!({ "requestId": mode }));
    assert_eq!(two.error_of(&mode)["code"], -32800);
    let later = two.prompt(&second, "sent after the sync");
    disk.works();
    assert_eq!(two.stop_reason(&later), "end_turn");
    let received: Vec<_> = service.received("fake").into_iter().filter_map(|entry| entry.text).collect();
    for never in ["\"yes\"", "never sent", "set_mode", "$/cancel_request"] {
        assert!(!received.iter().any(|line| line.contains(never)), "{never} in {received:#?}");
    }
    assert!(received.iter().any(|line| line.contains("\"outcome\":\"cancelled\"")), "{received:#?}");
}

#[test]
fn a_session_that_changes_hands_has_one_record() {
    let loads = json!({ "instead": { "session/load": [{ "answer": { "result": {} } }] } });
    let mut service = service(&loads).start();
    let (mut editor, session) = service.session();
    for _ in 0..20 {
        let mut next = service.editor();
        let params = json!({ "sessionId": session, "cwd": service.work(), "mcpServers": [] });
        editor.close_stdin();
        let opened = poll_until(DEADLINE, || {
            let id = next.request("session/load", &params);
            next.response(&id).get("error").is_none()
        });
        assert!(opened, "{}", next.story());
        editor = next;
    }
    drop(editor);
    service.term();
    assert_in_order(&disk::journal(&service));
}

#[test]
fn what_an_agent_says_without_a_session_is_recorded_once() {
    let said = json!({ "after": { "initialize": [{ "notify": { "method": "_hello", "params": {} } }] } });
    let mut service = service(&said).start();
    let (mut editor, session) = service.session();
    editor.turn(&session, "one");
    editor.call("session/close", &json!({ "sessionId": session }));
    drop(editor);
    service.term();
    let said = disk::texts(&disk::journal(&service), Origin::Agent);
    assert_eq!(said.iter().filter(|frame| frame.contains("_hello")).count(), 1, "{said:#?}");
}

#[tokio::test]
async fn many_streams_in_one_batch_do_not_confuse_the_ledger() {
    let bench = Bench::sqlite();
    let journal = bench.journal();
    let session = |number| Stream { id: Uuid::from_u128(number), kind: StreamKind::Session };
    let mut batch = Batch::new();
    let mut add = |stream, seq, origin, to, outgoing: &[(u32, u64)], frame: &Value| {
        let line = frame.to_string();
        batch.push(stream, seq, 1_000, origin, to, outgoing, std::iter::once(line.as_bytes()));
    };
    let prompt = json!({ "jsonrpc": "2.0", "id": 1, "method": "session/prompt",
        "params": { "sessionId": "a", "prompt": [{ "type": "text", "text": "hi" }] } });
    add(session(1), 1, Origin::Editor, Destination::Agent, &[(0, 7)], &prompt);
    for other in 2..2100 {
        let update = json!({ "jsonrpc": "2.0", "method": "_x", "params": { "sessionId": "b" } });
        add(session(other), 1, Origin::Agent, Destination::Editor, &[], &update);
    }
    let answer = json!({ "jsonrpc": "2.0", "id": 7, "result": { "stopReason": "end_turn" } });
    add(session(1), 2, Origin::Agent, Destination::Editor, &[], &answer);
    journal.append(batch, Class::Stream).map_err(|refused| refused.why).unwrap();
    ship_all(bench.settings(), &journal).await;
    assert_eq!(bench.number("SELECT count(*) FROM turns WHERE stop_reason = 'end_turn'").await, 1);
    let live = bench.derived().await;
    conductor::ledger::rebuild(&bench.settings(), |_| ()).await.unwrap();
    assert_eq!(bench.derived().await, live);
}
