//! More than the service can do (O2 and O5 of the faults): who cannot be served
//! is told so, in order, and what runs goes on.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

use std::time::Duration;

use conductor::proto::connect_response;
use conductor_tests::{
    harness::{assert_says, poll_until, service},
    tunnel::Tunnel,
};
use serde_json::{Value, json};

const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":1}}"#;

/// What editors read when a limit is reached.
const LIMIT: i64 = -31002;

/// Sessions that are asked for, and by how many editors.
const STARTS: usize = 10_000;
const EDITORS: usize = 10;

/// Processes that there may be, and how many may wait for one.
const PROCESSES: usize = 4;
const LINE: usize = 256;

/// How long nothing may come while so many are served: this is not about speed.
const PATIENCE: Duration = Duration::from_secs(120);

/// KiB that each start may cost while it is there.
const EACH: u64 = 32;

/// Reads until so many answers have come.
fn read_answers(tunnel: &mut Tunnel, count: usize) -> Vec<Value> {
    let mut answers = Vec::new();
    while answers.len() < count {
        let message = tunnel.next_within(PATIENCE).unwrap();
        if let Some(connect_response::Kind::Run(run)) = message.kind {
            let lines = run.frames.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
            let frames = lines.map(|line| serde_json::from_slice::<Value>(line).unwrap());
            answers.extend(frames.filter(|frame| !frame["id"].is_null()));
        }
    }
    answers
}

fn start(id: usize, cwd: &Value) -> String {
    let params = json!({ "cwd": cwd, "mcpServers": [] });
    json!({ "jsonrpc": "2.0", "id": id, "method": "session/new", "params": params }).to_string()
}

#[test]
fn o02_ten_thousand_starts_at_once_are_answered_each() {
    let service = service(&json!({}))
        .set("agents.fake.max", PROCESSES)
        .set("agents.fake.queue_timeout", "3s")
        // A handshake has to wait its turn beside all these; how long is not asked here.
        .set("agents.fake.start_timeout", format!("{}s", PATIENCE.as_secs()))
        .set("service.max_sessions_per_connection", STARTS)
        .start();
    // Somebody works all the while.
    let (mut editor, session) = service.session();
    editor.turn(&session, "before");
    let before = service.peak_memory();
    let cwd = json!(service.work());
    let answers: Vec<Value> = std::thread::scope(|scope| {
        let asking = |_| {
            scope.spawn(|| {
                let mut tunnel = Tunnel::greeted(&service);
                tunnel.send_frame(INITIALIZE);
                assert!(read_answers(&mut tunnel, 1)[0]["result"].is_object());
                for id in 1..=STARTS / EDITORS {
                    assert!(tunnel.send_frame(&start(id, &cwd)));
                }
                read_answers(&mut tunnel, STARTS / EDITORS)
            })
        };
        let asking: Vec<_> = (0..EDITORS).map(asking).collect();
        editor.set_deadline(PATIENCE);
        assert_eq!(editor.turn(&session, "meanwhile"), ["echo: meanwhile"]);
        asking.into_iter().flat_map(|asking| asking.join().unwrap()).collect()
    });
    assert_eq!(answers.len(), STARTS, "each is answered once");
    let opened = answers.iter().filter(|answer| answer["result"].is_object()).count();
    // One of the processes is in use already; those of editors that have left are free again.
    assert!((1..STARTS / 10).contains(&opened), "{opened} were opened");
    let refused: Vec<_> = answers.iter().filter(|answer| answer["error"].is_object()).collect();
    assert_eq!(opened + refused.len(), STARTS);
    for answer in &refused {
        assert_eq!(answer["error"]["code"], LIMIT, "{answer}");
    }
    let says = |words: &str| refused.iter().filter(|answer| answer.to_string().contains(words)).count();
    assert!(says(&format!("{LINE} requests wait")) > STARTS / 2, "most are refused at once");
    assert!(says("position") > 0, "who has waited reads where: {}", refused[refused.len() - 1]);
    let growth = service.peak_memory() - before;
    assert!(growth < EACH * STARTS as u64, "memory grew by {growth} KiB");
    assert_eq!(editor.turn(&session, "after"), ["echo: after"]);
}

#[test]
fn o05_while_memory_is_short_no_session_is_opened() {
    let mut service = service(&json!({})).start();
    let (mut editor, session) = service.session();
    let new = json!({ "cwd": service.work(), "mcpServers": [] });
    // Any machine that runs this uses more.
    service.configure("service.memory_high", 0);
    service.reload();
    service.wait_log("the configuration was reloaded");
    let told = editor.call_error("session/new", &new);
    assert_eq!(told["code"], LIMIT, "{told}");
    assert_says(&told, &["no memory to spare", "service.memory_high is 0 %", "try again later"]);
    assert_eq!(editor.turn(&session, "what runs goes on"), ["echo: what runs goes on"]);
    service.configure("service.memory_high", 100);
    service.reload();
    let opened = || {
        let id = editor.request("session/new", &new);
        editor.response(&id).get("result").is_some()
    };
    assert!(poll_until(Duration::from_secs(10), opened));
}
