//! Faults of the network and of the service beneath a bridge (`tests/faults`, rows
//! E1, E2, N1–N3, N6): a connection outlives its stream, and the editor sees a
//! pause and nothing else.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

use std::{
    thread,
    time::{Duration, Instant},
};

use conductor::proto::{ConnectRequest, Hello, Run, Welcome, connect_request, connect_response};
use conductor_tests::{
    editor::Editor,
    harness::{Service, assert_says, permission, poll_until, service},
    net::Net,
    proxy::Side,
    tunnel::{Tunnel, authorised, hello},
};
use serde_json::{Value, json};
use tonic::Code;

const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":1}}"#;

fn allow(request: &Value) -> Option<Value> {
    let asked = request["method"] == "session/request_permission";
    asked.then(|| json!({ "outcome": { "outcome": "selected", "optionId": "yes" } }))
}

/// About 2 KB: updates, a permission that is asked for and given, more updates.
fn exchange() -> Value {
    json!([{ "update": { "n": 3, "size": 100 } }, permission(), { "update": { "n": 2, "text": "after " } }])
}

/// One such turn; every frame must come once and in order.
fn run_exchange(editor: &mut Editor, session: &str) {
    let asked = |editor: &Editor| {
        editor.lines().iter().filter(|line| line.method() == "session/request_permission").count()
    };
    let (lines, asks) = (editor.lines().len(), asked(editor));
    let chunks = editor.turn_do(session, &exchange());
    let heads: Vec<&str> = chunks.iter().map(|text| text.split(' ').next().unwrap()).collect();
    assert_eq!(heads, ["chunk", "chunk", "chunk", "answer", "after", "after"], "{chunks:#?}");
    for (text, start) in chunks.iter().zip(["chunk 0", "chunk 1", "chunk 2", "answer ", "after 0", "after 1"])
    {
        assert!(text.starts_with(start), "{chunks:#?}");
    }
    assert!(chunks[3].contains(r#""optionId":"yes""#), "{chunks:#?}");
    assert_eq!(asked(editor) - asks, 1, "the permission is asked for once");
    assert_eq!(editor.lines().len() - lines, 8, "nothing else came:\n{}", editor.story());
}

#[test]
fn n01_delay_and_tiny_segments_do_no_harm() {
    let service = service(&json!({})).start();
    let net = Net::before(&service);
    net.proxy.delay_answers(Duration::from_millis(300));
    net.proxy.segment(1);
    let (mut editor, session) = net.session(&service);
    editor.answer_with(allow);
    run_exchange(&mut editor, &session);
    assert_eq!(net.proxy.connections(), 1, "nobody lost patience");
    assert_eq!(editor.stderr(), "");
}

#[test]
fn n02_cut_at_every_place_loses_and_doubles_nothing() {
    // Every seventh byte, so that this stays quick; all of them with CUT_STEP=1.
    let step: usize = std::env::var("CUT_STEP").ok().and_then(|text| text.parse().ok()).unwrap_or(7);
    let service = service(&json!({})).start();
    let turns: usize = thread::scope(|scope| {
        let workers: Vec<_> = (0..4)
            .map(|worker| {
                let service = &service;
                scope.spawn(move || cut_everywhere(service, worker * step, 4 * step))
            })
            .collect();
        workers.into_iter().map(|worker| worker.join().unwrap()).sum()
    });
    // What the agents got is the other half of the truth.
    let received = service.received("fake");
    let prompts = received.iter().filter(|line| line.method().as_deref() == Some("session/prompt")).count();
    let answers = received
        .iter()
        .filter(|line| line.text.as_deref().unwrap().contains(r#""outcome":"selected""#))
        .count();
    assert_eq!((prompts, answers), (turns, turns));
}

/// Cuts at every `step`-th byte of the exchange from `first` on, in both
/// directions; how many turns that took.
fn cut_everywhere(service: &Service, first: usize, step: usize) -> usize {
    let net = Net::before(service);
    let (mut editor, session) = net.session(service);
    editor.answer_with(allow);
    let sides = [Side::Up, Side::Down];
    let before = sides.map(|side| net.proxy.passed(side));
    run_exchange(&mut editor, &session);
    let after = sides.map(|side| net.proxy.passed(side));
    let (mut turns, mut cuts) = (1, 0);
    for (side, (before, after)) in sides.into_iter().zip(before.into_iter().zip(after)) {
        let length = after - before;
        assert!(length > 500, "{length} bytes are no exchange");
        for offset in (first as u64..length).step_by(step) {
            net.proxy.cut_after(Some((side, offset)));
            run_exchange(&mut editor, &session);
            turns += 1;
            cuts += 1;
        }
    }
    net.proxy.cut_after(None);
    // The last bytes of the exchange that was measured may have been acks, which
    // are sent every now and then; others then have fewer bytes.
    let made = net.proxy.cuts();
    assert!(10 * made >= 9 * cuts, "{made} of {cuts} cuts were made");
    turns
}

#[test]
fn n02_network_that_breaks_all_the_time_carries_all() {
    let service = service(&json!({})).start();
    let net = Net::before(&service);
    let (mut editor, session) = net.session(&service);
    editor.set_deadline(Duration::from_secs(60));
    net.proxy.cut();
    net.proxy.cut_each(400_000);
    let chunks = editor.turn_do(&session, &json!([{ "update": { "n": 4000, "size": 500 } }]));
    assert_eq!(chunks.len(), 4000);
    assert!(chunks.iter().enumerate().all(|(n, text)| text.starts_with(&format!("chunk {n} "))), "in order");
    assert!(net.proxy.cuts() >= 5, "only {} cuts", net.proxy.cuts());
}

#[test]
fn n03_half_open_peer_is_found_and_replaced() {
    let service = service(&json!({})).start();
    let net = Net::before(&service);
    let (mut editor, session) = net.session(&service);
    editor.set_deadline(Duration::from_secs(40));
    net.proxy.swallow();
    let start = Instant::now();
    assert_eq!(editor.turn(&session, "anyone there?"), ["echo: anyone there?"]);
    assert!(start.elapsed() < Duration::from_secs(30), "it took {:?}", start.elapsed());
    assert_eq!(net.proxy.connections(), 2);
}

#[test]
fn e01_turn_goes_on_while_the_editor_is_away() {
    let service = service(&json!({})).start();
    let net = Net::before(&service);
    let (mut editor, session) = net.session(&service);
    let (go, done) = (service.dir.join("go"), service.dir.join("done"));
    let steps = json!([{ "update": { "text": "before " } }, { "wait_file": go },
        { "update": { "n": 3000, "size": 1000 } }, permission(), { "touch": done }]);
    let id = editor.prompt_do(&session, &steps);
    editor.wait_chunks(&session, 1);
    net.proxy.close(true);
    net.proxy.cut();
    service.wait_log("its sessions go on");
    // More than memory keeps: the rest waits on disk, in a file without a name.
    let memory = service.peak_memory();
    std::fs::write(&go, "").unwrap();
    service.wait_settled("fake");
    assert!(service.peak_memory() - memory <= 32 * 1024, "memory grew while the editor was away");
    assert!(
        std::fs::read_dir(service.state())
            .unwrap()
            .all(|entry| { !entry.unwrap().file_name().to_string_lossy().starts_with("spool") })
    );
    assert!(!done.exists(), "the permission waits");
    assert_eq!(editor.chunks(&session).len(), 1);
    net.proxy.close(false);
    // The request that was asked meanwhile is answered now.
    let request = editor.next_request("session/request_permission");
    assert_eq!(editor.chunks(&session).len(), 3001);
    // Away again while it is open: it stays so, and the answer finds its way.
    net.proxy.close(true);
    net.proxy.cut();
    editor.answer(&request, &json!({ "outcome": { "outcome": "selected", "optionId": "yes" } }));
    net.proxy.close(false);
    assert_eq!(editor.stop_reason(&id), "end_turn");
    let chunks = editor.chunks(&session);
    assert_eq!(chunks.len(), 3002);
    assert!(chunks[1..3001].iter().enumerate().all(|(n, text)| text.starts_with(&format!("chunk {n} "))));
    assert_eq!(editor.answers_to(&id), 1);
    let told = editor.stderr();
    assert_eq!(told.matches("trying to get back").count(), 2, "{told}");
    assert_eq!(told.matches("is back").count(), 2, "{told}");
}

#[test]
fn e01_editor_that_takes_notices_is_told() {
    let service = service(&json!({})).start();
    let net = Net::before(&service);
    let mut editor = net.connect(&service);
    editor.initialize_with(&json!({ "session": { "notices": {} } }));
    let session = editor.new_session(&service.work());
    net.proxy.cut();
    editor.wait_for("a notice", |line| {
        let params = &line.json["params"];
        (params["update"]["sessionUpdate"] == "notice" && params["sessionId"] == session).then_some(())
    });
    assert_eq!(editor.turn(&session, "on"), ["echo: on"]);
}

#[test]
fn e01_editor_that_ends_while_away_is_not_waited_for() {
    let service = service(&json!({})).start();
    let net = Net::before(&service);
    let (mut editor, _session) = net.session(&service);
    net.proxy.close(true);
    net.proxy.cut();
    service.wait_log("its sessions go on");
    editor.close_stdin();
    assert!(editor.wait_exit().success());
}

#[test]
fn e01_detached_ttl_ends_what_nobody_comes_back_for() {
    let service = service(&json!({})).set("service.detached_ttl", "500ms").start();
    let net = Net::before(&service);
    let (mut editor, session) = net.session(&service);
    let id = editor.prompt_do(&session, &json!([{ "update": {} }, "wait_cancel"]));
    editor.wait_chunks(&session, 1);
    net.proxy.close(true);
    net.proxy.cut();
    service.wait_gone("fake-agent", Duration::from_secs(10));
    service.wait_log("Expired");
    net.proxy.close(false);
    // The connection is gone, and the editor learns what became of its prompt.
    assert_says(&editor.error_of(&id), &["restarted", "ask again"]);
    let fresh = editor.new_session(&service.work());
    assert_eq!(editor.turn(&fresh, "on"), ["echo: on"]);
}

#[test]
fn e01_on_detach_cancel_ends_turns_but_not_for_a_blip() {
    let service = service(&json!({})).set("agents.fake.on_detach", "cancel").start();
    let net = Net::before(&service);
    let (mut editor, session) = net.session(&service);
    let go = service.dir.join("go");
    let id = editor.prompt_do(&session, &json!([{ "update": {} }, { "wait_file": go }]));
    editor.wait_chunks(&session, 1);
    net.proxy.cut();
    net.wait_connections(2);
    let cancels = || {
        let received = service.received("fake");
        received.iter().filter(|line| line.method().as_deref() == Some("session/cancel")).count()
    };
    std::fs::write(&go, "").unwrap();
    assert_eq!(editor.stop_reason(&id), "end_turn");
    assert_eq!(cancels(), 0);
    let id = editor.prompt_do(&session, &json!([{ "update": {} }, "wait_cancel"]));
    editor.wait_chunks(&session, 2);
    net.proxy.close(true);
    net.proxy.cut();
    assert!(poll_until(Duration::from_secs(10), || cancels() == 1), "the turn is not cancelled");
    net.proxy.close(false);
    assert_eq!(editor.stop_reason(&id), "cancelled");
    assert_eq!(editor.turn(&session, "on"), ["echo: on"]);
}

/// A stream that may be resumed; its welcome.
fn resumable(service: &Service, hello: Hello) -> (Tunnel, Result<Welcome, tonic::Status>) {
    let hello = Hello { resumable: true, ..hello };
    let first = ConnectRequest { kind: Some(connect_request::Kind::Hello(hello)) };
    let mut tunnel = Tunnel::open_with(service, authorised(service), Some(first));
    let welcome = tunnel.next_message().map(|message| match message.kind {
        Some(connect_response::Kind::Welcome(welcome)) => welcome,
        other => panic!("no welcome: {other:?}"),
    });
    (tunnel, welcome)
}

fn back(welcome: &Welcome, last_seq: u64) -> Hello {
    Hello {
        connection_id: welcome.connection_id.clone(),
        resume_key: welcome.resume_key.clone(),
        last_seq,
        ..hello()
    }
}

#[test]
fn e02_resume_replays_from_the_number_or_refuses_it() {
    let service = service(&json!({})).start();
    let (mut tunnel, welcome) = resumable(&service, hello());
    let welcome = welcome.unwrap();
    assert!(!welcome.resumed && welcome.resume_key.len() >= 32, "{welcome:?}");
    for _ in 0..3 {
        tunnel.send_frame(INITIALIZE);
        tunnel.next_frames();
    }
    // From the future: refused, and the connection stays.
    let (_, refused) = resumable(&service, back(&welcome, 4));
    assert_eq!(refused.unwrap_err().code(), Code::InvalidArgument);
    // A new stream takes over from one that is still open.
    let (mut second, resumed) = resumable(&service, back(&welcome, 0));
    let resumed = resumed.unwrap();
    assert!(resumed.resumed && resumed.resumed_from_seq == 3, "{resumed:?}");
    assert_eq!(resumed.connection_id, welcome.connection_id);
    tunnel.expect_end(Code::Aborted);
    let mut again = Vec::new();
    while again.len() < 3 {
        again.extend(second.next_frames());
    }
    assert_eq!(again.len(), 3, "all that was not acknowledged");
    // What was taken before is passed over, what follows is not.
    let frames = format!("{INITIALIZE}\n").repeat(2).into();
    second.send(connect_request::Kind::Run(Run { first_seq: 3, count: 2, frames }));
    assert_eq!(second.next_frames().len(), 1);
    // Too old: what was acknowledged is gone.
    second.send_ack(2);
    let old = poll_until(Duration::from_secs(5), || {
        let (_, refused) = resumable(&service, back(&welcome, 1));
        refused.is_err_and(|status| status.code() == Code::InvalidArgument)
    });
    assert!(old, "an acknowledged frame cannot be asked for again");
    let (mut third, resumed) = resumable(&service, back(&welcome, 3));
    assert!(resumed.unwrap().resumed);
    assert_eq!(third.next_frames().len(), 1, "the fourth alone");
    // The editor's own end of it.
    third.close();
    assert_eq!(third.end().code(), Code::Ok);
    let (_, fresh) = resumable(&service, back(&welcome, 4));
    assert!(!fresh.unwrap().resumed, "an ended connection cannot be resumed");
}

#[test]
fn e02_wrong_key_looks_like_an_unknown_connection() {
    let service = service(&json!({})).start();
    let (mut tunnel, welcome) = resumable(&service, hello());
    let welcome = welcome.unwrap();
    tunnel.send_frame(INITIALIZE);
    tunnel.next_frames();
    let good = back(&welcome, 0);
    let wrong = [
        Hello { resume_key: "0".repeat(good.resume_key.len()), ..good.clone() },
        Hello { resume_key: String::new(), ..good.clone() },
        Hello { connection_id: "01890000-0000-7000-8000-000000000000".to_owned(), ..good.clone() },
        Hello { connection_id: "nonsense".to_owned(), ..good },
    ];
    for hello in wrong {
        let (_stream, fresh) = resumable(&service, hello);
        let fresh = fresh.unwrap();
        assert!(!fresh.resumed && fresh.resumed_from_seq == 0, "{fresh:?}");
        assert_ne!(fresh.connection_id, welcome.connection_id);
    }
    // The stream that had it was not disturbed.
    tunnel.send_frame(INITIALIZE);
    assert_eq!(tunnel.next_frames().len(), 1);
}

#[test]
fn e06_stalled_editor_loses_its_stream_and_nothing_else() {
    let service = service(&json!({})).set("service.editor_timeout", "500ms").start();
    let (mut editor, session) = service.session();
    let gate = service.dir.join("written");
    editor.pause(true);
    let id =
        editor.prompt_do(&session, &json!([{ "update": { "n": 6_000, "size": 4096 } }, { "touch": gate }]));
    service.wait_log("its stream is dropped");
    // Nobody holds the agent back now.
    assert!(poll_until(Duration::from_secs(20), || gate.exists()), "the agent is held back");
    editor.pause(false);
    editor.set_deadline(Duration::from_secs(60));
    assert_eq!(editor.stop_reason(&id), "end_turn");
    let chunks = editor.chunks(&session);
    assert_eq!(chunks.len(), 6_000);
    assert!(chunks.iter().enumerate().all(|(n, text)| text.starts_with(&format!("chunk {n} "))), "in order");
}

/// The service goes and comes back beneath a bridge, which comes back by itself.
fn restarted(stop: impl FnOnce(&mut Service)) -> Value {
    let mut service = service(&json!({})).set("service.drain_timeout", "300ms").start();
    let (mut editor, session) = service.session();
    let told = json!({ "update": { "n": 3, "text": "told " } });
    let id = editor.prompt_do(&session, &json!([told, permission(), told]));
    let request = editor.next_request("session/request_permission");
    stop(&mut service);
    service.start_again();
    // The open prompt gets one answer, the dialogue is taken back.
    let answer = editor.response(&id);
    editor.wait_for("the withdrawal of the request", |line| {
        (line.method() == "$/cancel_request" && line.json["params"]["requestId"] == request["id"])
            .then_some(())
    });
    // A late answer to it does no harm.
    editor.answer(&request, &json!({ "outcome": { "outcome": "selected", "optionId": "yes" } }));
    let fresh = editor.new_session(&service.work());
    assert_eq!(editor.turn(&fresh, "on"), ["echo: on"]);
    // The former session goes on where it was.
    assert_eq!(editor.turn(&session, "still there?"), ["echo: still there?"]);
    let seen: Vec<_> = ["told 0", "told 1", "told 2", "echo: still there?"].map(str::to_owned).into();
    assert_eq!(editor.chunks(&session), seen, "no frame is lost or told twice");
    assert_eq!(editor.answers_to(&id), 1);
    let handshakes = editor.lines().iter().filter(|line| line.json["result"]["protocolVersion"] == 1).count();
    assert_eq!(handshakes, 1, "the editor sees no second handshake");
    let ours = editor.lines().iter().filter(|line| line.text().contains("conductor-connect:")).count();
    assert_eq!(ours, 0, "nor anything else that it did not ask for");
    let received = service.received("fake");
    let prompts = received.iter().filter(|line| line.method().as_deref() == Some("session/prompt")).count();
    assert_eq!(prompts, 3, "no prompt is sent twice");
    answer
}

#[test]
fn n06_restart_after_kill_is_survived() {
    let answer = restarted(Service::kill9);
    assert_says(&answer["error"], &["restarted before it answered"]);
}

#[test]
fn n06_restart_after_sigterm_is_survived() {
    let answer = restarted(|service| assert_eq!(service.term().code(), Some(0)));
    // The drain ended the turn before the service went.
    let is_told = answer["result"]["stopReason"] == "cancelled" || answer["error"]["message"].is_string();
    assert!(is_told, "{answer}");
}

#[test]
fn n06_what_is_said_while_the_service_is_away_is_heard_later() {
    let mut service = service(&json!({})).start();
    let (mut editor, session) = service.session();
    service.kill9();
    assert!(poll_until(Duration::from_secs(5), || editor.stderr().contains("trying to get back")));
    let opened = editor.request("session/new", &json!({ "cwd": service.work(), "mcpServers": [] }));
    let prompted = editor.prompt(&session, "said into the void");
    service.start_again();
    assert!(editor.response(&opened)["result"]["sessionId"].is_string(), "{}", editor.story());
    assert_eq!(editor.stop_reason(&prompted), "end_turn");
    assert_eq!(editor.chunks(&session), ["echo: said into the void"]);
    assert_eq!((editor.answers_to(&opened), editor.answers_to(&prompted)), (1, 1));
    let received = service.received("fake");
    let prompts = received.iter().filter(|line| line.method().as_deref() == Some("session/prompt")).count();
    assert_eq!(prompts, 1);
}
