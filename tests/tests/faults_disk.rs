//! Rows S of `tests/faults`, through the whole service: what happens when
//! the disk beneath the journal is slow, full or failing. Nothing that was not
//! recorded happens, streams and stopping go on, and nothing needs a restart.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

use conductor::{
    journal::Record,
    record::{Destination, Origin},
};
use conductor_tests::{
    disk::{self, Disk},
    editor::{DEADLINE, Editor},
    harness::{Service, assert_says, permission, poll_until, service},
    ledger::Kind,
};
use serde_json::{Value, json};

/// The code of what was not done because it could not be recorded.
const NOT_RECORDED: i64 = -31004;

/// The prompts that the agent received, in order.
fn prompts(service: &Service) -> Vec<String> {
    let lines = service.received("fake").into_iter().filter_map(|entry| entry.json());
    let prompts = lines.filter(|line| line["method"] == "session/prompt");
    prompts.map(|line| line["params"]["prompt"][0]["text"].as_str().unwrap().to_owned()).collect()
}

/// The prompts in the journal of a stopped service, in order.
fn recorded_prompts(service: &Service) -> Vec<String> {
    let frames = disk::texts(&disk::journal(service), Origin::Editor);
    let frames = frames.iter().map(|frame| serde_json::from_str::<Value>(frame).unwrap());
    let prompts = frames.filter(|frame| frame["method"] == "session/prompt");
    prompts.map(|frame| frame["params"]["prompt"][0]["text"].as_str().unwrap().to_owned()).collect()
}

/// Prompts until one is taken.
fn until_taken(editor: &mut Editor, session: &str, text: &str) {
    let taken = poll_until(DEADLINE, || {
        let id = editor.prompt(session, text);
        editor.response(&id).get("error").is_none()
    });
    assert!(taken, "the disk works again, and no prompt is taken:\n{}", editor.story());
}

#[test]
fn frames_are_in_the_journal_as_they_came() {
    let mut service = service(&json!({})).start();
    let (mut editor, session) = service.session();
    let id = editor.prompt_do(&session, &json!([{ "update": { "n": 5 } }, permission(), { "update": {} }]));
    let ask = editor.next_request("session/request_permission");
    editor.answer(&ask, &json!({ "outcome": { "outcome": "selected", "optionId": "yes" } }));
    editor.stop_reason(&id);
    editor.turn_do(
        &session,
        &json!([{ "line": "{\"method\":\"_x\",\"params\":{\"a\":1e400,\"b\":\"\\ud83d\"} }" }]),
    );
    editor.call("session/close", &json!({ "sessionId": session }));
    service.term();
    let records = disk::journal(&service);
    // Its answer to our own session/close is read only if it comes before its end.
    let is_farewell = |line: &String| line.ends_with(r#""result":{}}"#);
    let out = service.ledger("fake").into_iter().filter(|entry| entry.kind == Kind::Out);
    let mut said: Vec<String> = out.filter_map(|entry| entry.text).collect();
    said.retain(|line| !is_farewell(line));
    let mut recorded = disk::texts(&records, Origin::Agent);
    recorded.retain(|line| !is_farewell(line));
    assert_eq!(recorded, said, "what the agent said, in its order, byte for byte");
    // What the agent received was recorded, too, whoever said it.
    let heard = service.received("fake").len();
    let ours = |record: &&Record| record.to == Destination::Agent;
    let for_agent: u32 = records.iter().filter(ours).map(|record| record.count).sum();
    // The handshake of the editor is not passed on, session/close is ours, and so are the words in
    // which the agent hears what the editor has chosen.
    assert_eq!(for_agent as usize, heard + 3);
    let seqs = records.iter().filter(|record| record.stream.id.to_string() == session);
    let mut next = 1;
    for record in seqs {
        assert_eq!(record.first_seq, next, "numbers without a gap");
        next += u64::from(record.count);
    }
}

#[test]
fn s04_slow_sync_holds_effects_while_streams_flow_and_stopping_works() {
    let (disk, builder) = Disk::under(service(&json!({})));
    let service = builder.start();
    let (mut one, first) = service.session();
    let (mut two, second) = service.session();
    let id = one.prompt_do(&first, &json!([permission(), { "update": { "n": 3 } }]));
    let ask = one.next_request("session/request_permission");
    disk.rule("fdatasync hold");
    // A refusal stops something and goes out at once; what the agent streams
    // after it needs no sync.
    one.answer(&ask, &json!({ "outcome": { "outcome": "selected", "optionId": "no" } }));
    one.wait_chunks(&first, 3);
    assert_eq!(one.stop_reason(&id), "end_turn");
    // A prompt waits for the disk; cancelled meanwhile, it is never sent.
    let waiting = two.prompt(&second, "never sent");
    two.cancel(&second);
    assert_eq!(two.stop_reason(&waiting), "cancelled");
    let later = two.prompt(&second, "sent after the sync");
    disk.works();
    assert_eq!(two.stop_reason(&later), "end_turn");
    let prompts = prompts(&service);
    assert_eq!(prompts.last().unwrap(), "sent after the sync");
    assert!(!prompts.iter().any(|prompt| prompt == "never sent"), "{prompts:?}");
}

#[test]
fn s03_full_disk_refuses_effects_at_once_and_recovers_by_itself() {
    let (disk, builder) = Disk::under(service(&json!({})));
    let mut service = builder.start();
    let (mut one, first) = service.session();
    let (mut two, second) = service.session();
    let running = one.prompt_do(&first, &json!([permission()]));
    one.next_request("session/request_permission");
    disk.rule("pwrite ENOSPC");
    let error = two.prompt(&second, "refused");
    let error = two.error_of(&error);
    assert_eq!(error["code"], NOT_RECORDED, "{error}");
    assert_says(&error, &["journal", "No space left"]);
    // Nothing new begins, and what runs can be stopped.
    let new = two.request("session/new", &json!({ "cwd": service.work(), "mcpServers": [] }));
    assert_eq!(two.error_of(&new)["code"], NOT_RECORDED);
    one.cancel(&first);
    service.wait_received("fake", "the cancel", |line| {
        line.text.as_deref().is_some_and(|text| text.contains("session/cancel"))
    });
    assert_eq!(one.stop_reason(&running), "cancelled");
    disk.works();
    until_taken(&mut two, &second, "taken");
    until_taken(&mut one, &first, "taken, too");
    service.term();
    let sent = prompts(&service);
    assert!(!sent.iter().any(|prompt| prompt == "refused"), "{sent:?}");
    let recorded = recorded_prompts(&service);
    for prompt in ["request_permission", "taken", "taken, too"] {
        assert!(recorded.iter().any(|text| text.contains(prompt)), "{prompt} in {recorded:?}");
    }
    // What was refused is on record as well: it was written once it could be.
    assert!(recorded.iter().any(|text| text == "refused"), "{recorded:?}");
}

#[test]
fn s01_nth_failing_call_refuses_an_effect_or_leaves_it_recorded() {
    let (disk, builder) = Disk::under(service(&json!({})));
    let mut service = builder.start();
    let (mut editor, session) = service.session();
    let mut refused = 0;
    for call in
        ["pwrite EIO", "pwrite ENOSPC", "pwrite EDQUOT", "pwrite EINTR", "fdatasync EIO", "fdatasync EINTR"]
    {
        for nth in 1..=4 {
            disk.rule(&format!("{call} {nth}"));
            let text = format!("{call} {nth}");
            let id = editor.prompt(&session, &text);
            let answer = editor.response(&id);
            if answer.get("error").is_some() {
                assert_eq!(answer["error"]["code"], NOT_RECORDED, "{answer}");
                refused += 1;
            }
            disk.works();
            until_taken(&mut editor, &session, &format!("after {text}"));
        }
    }
    assert!(refused > 0, "no failing call was ever noticed");
    service.term();
    let (sent, recorded) = (prompts(&service), recorded_prompts(&service));
    // Each prompt went out at most once, in order, and none without a record.
    let mut rest = recorded.iter();
    for prompt in &sent {
        assert!(rest.any(|text| text == prompt), "{prompt:?} is not recorded in order:\n{recorded:#?}");
    }
}

#[test]
fn s02_short_writes_are_completed() {
    let (disk, builder) = Disk::under(service(&json!({})));
    let mut service = builder.start();
    let (mut editor, session) = service.session();
    disk.rule("pwrite short");
    let chunks = editor.turn_do(&session, &json!([{ "update": { "n": 20 } }]));
    assert_eq!(chunks.len(), 20);
    disk.works();
    drop(editor);
    service.term();
    let frames = disk::texts(&disk::journal(&service), Origin::Agent);
    assert!(frames.iter().filter(|frame| frame.contains("agent_message_chunk")).count() >= 20);
}

#[test]
fn best_effort_goes_on_without_a_disk_and_says_what_is_missing() {
    let (disk, builder) = Disk::under(service(&json!({})).set("journal.recording", "best-effort"));
    let mut service = builder.start();
    let (mut editor, session) = service.session();
    disk.rule("pwrite EIO");
    assert_eq!(editor.turn_do(&session, &json!([{ "update": { "n": 2 } }])).len(), 2);
    disk.works();
    service.wait_log("the journal can be written again");
    editor.turn(&session, "recorded again");
    drop(editor);
    service.term();
    let notes = disk::texts(&disk::journal(&service), Origin::Conductor);
    assert!(notes.iter().any(|note| note.contains("_conductor/gap")), "{notes:#?}");
}
