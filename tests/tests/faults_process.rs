//! Faults of agents as processes (`tests/faults`, rows A16–A30): floods, deaths,
//! descendants, signals. Nothing outlives its session and nothing slows its
//! neighbours.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use conductor_tests::{
    fake::process::SLEEPER,
    harness::{Service, assert_says, permission, poll_until, service},
};
use serde_json::json;

/// The promise: one second after its end nothing of a session is alive.
const ONE_SECOND: Duration = Duration::from_secs(1);

/// Longer than any ladder of deadlines for one process takes.
const LADDER: Duration = Duration::from_secs(15);

fn close(editor: &mut conductor_tests::editor::Editor, session: &str) {
    editor.call("session/close", &json!({ "sessionId": session }));
}

fn wait_no_agent(service: &Service, time: Duration) {
    let gone = poll_until(time, || service.agents_alive().is_empty());
    assert!(gone, "an agent is still alive: {:?}\n{}", service.processes(), service.log());
}

#[test]
fn a16_flood_of_frames_leaves_others_responsive() {
    let service = service(&json!({})).agent("good", &json!({})).start();
    let (mut flooded, session) = service.session();
    let mut other = service.connect(&["--agent", "good"]);
    other.initialize();
    let calm = other.new_session(&service.work());
    let id = flooded.prompt_do(&session, &json!([{ "update": { "n": 20_000 } }]));
    flooded.wait_chunks(&session, 1);
    for number in 0..5 {
        let start = Instant::now();
        other.turn(&calm, &number.to_string());
        assert!(start.elapsed() < Duration::from_secs(3), "a turn took {:?} beside a flood", start.elapsed());
    }
    flooded.set_deadline(Duration::from_secs(60));
    assert_eq!(flooded.stop_reason(&id), "end_turn");
    let chunks = flooded.chunks(&session);
    assert_eq!(chunks.len(), 20_000);
    assert!(chunks.iter().enumerate().all(|(n, text)| *text == format!("chunk {n}")), "in order");
}

#[test]
fn a17_flood_on_stderr_is_drained_and_bounded() {
    let service = service(&json!({})).start();
    let (mut editor, session) = service.session();
    let before = service.peak_memory();
    editor.set_deadline(Duration::from_secs(60));
    let chunks = editor.turn_do(&session, &json!([{ "stderr_flood": 64 }, { "update": { "text": "done" } }]));
    assert_eq!(chunks, ["done0"]);
    let growth = service.peak_memory() - before;
    assert!(growth <= 32 * 1024, "memory grew by {growth} KiB");
    let log = service.log().len();
    assert!(log < 4 << 20, "the log grew to {log} bytes");
}

#[test]
fn a18_stderr_cannot_forge_log_lines() {
    let service = service(&json!({})).env("RUST_LOG", "debug").start();
    let (mut editor, session) = service.session();
    let evil = "\u{1b}[2Jwiped\rforged INFO all is well\u{8}\u{0}\n";
    let id =
        editor.prompt_do(&session, &json!([{ "stderr": evil }, { "stderr": "unfinished" }, { "exit": 1 }]));
    let error = editor.error_of(&id);
    assert_says(&error, &["wiped"]);
    let message = error["message"].as_str().unwrap();
    assert!(!message.contains(['\u{1b}', '\r', '\u{8}', '\u{0}']), "escaped in messages: {message:?}");
    let log = service.log();
    assert!(!log.contains(['\u{1b}', '\r', '\u{8}', '\u{0}']), "escaped in the log:\n{log:?}");
    assert!(!log.lines().any(|line| line.starts_with("forged")), "no line of its own:\n{log}");
}

#[test]
fn a19_every_way_to_die_is_named() {
    let service = service(&json!({})).set("agents.fake.restart.intensity", 100).start();
    let deaths = [
        (json!({ "exit": 0 }), "exited with status 0"),
        (json!({ "exit": 1 }), "exited with status 1"),
        (json!({ "signal": 9 }), "was killed by SIGKILL"),
        (json!({ "signal": 4 }), "was killed by SIGILL"),
        (json!("abort"), "was killed by SIGABRT"),
    ];
    let mut editor = service.editor();
    for (death, words) in deaths {
        let session = editor.new_session(&service.work());
        let id = editor.prompt_do(&session, &json!([{ "stderr": "last words\n" }, death, "hang"]));
        let error = editor.error_of(&id);
        assert_says(&error, &[words, "last words"]);
    }
    let agent = service.agent_json("fake");
    assert_eq!(agent["last_exit"], "was killed by SIGABRT", "{agent}");
    // A new session works at once: the deaths are below the intensity.
    let session = editor.new_session(&service.work());
    assert_eq!(editor.turn(&session, "alive"), ["echo: alive"]);
}

#[test]
fn a20_crash_loop_ends_in_quarantine_until_restarted() {
    let builder = service(&json!({})).agent("good", &json!({}));
    let wrapper = builder.dir().join("wrapper");
    let broken = builder.dir().join("broken");
    let fake = conductor_tests::harness::program("fake-agent");
    let text = format!(
        "#!/bin/sh\nif [ -e {} ]; then echo no licence >&2; exit 4; fi\nexec {}\n",
        broken.display(),
        fake.display()
    );
    fs::write(&wrapper, text).unwrap();
    fs::set_permissions(&wrapper, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    fs::write(&broken, "").unwrap();
    let service = builder
        .set("agents.fake.command", wrapper.display().to_string())
        .set("agents.fake.restart", json!({ "intensity": 3, "within": "60s", "backoff": "1ms" }))
        .start();
    let mut editor = service.editor();
    let params = json!({ "cwd": service.work(), "mcpServers": [] });
    let quarantined = (0..20).map(|_| editor.call_error("session/new", &params)).find(|error| {
        error["message"].as_str().unwrap_or_default().contains("conductor agents restart fake")
    });
    let error = quarantined.unwrap_or_else(|| panic!("never quarantined\n{}", editor.story()));
    assert_says(&error, &["exited with status 4", "no licence"]);
    assert!(service.agent_json("fake").to_string().to_lowercase().contains("quarantined"));
    let spawned = || service.log().matches("no licence").count();
    let before = spawned();
    editor.call_error("session/new", &params);
    assert_eq!(spawned(), before, "a quarantined agent is not started");

    // Others are not touched, and the remedy in the message helps.
    let mut other = service.connect(&["--agent", "good"]);
    other.initialize();
    other.new_session(&service.work());
    fs::remove_file(&broken).unwrap();
    assert!(service.run(&["agents", "restart", "fake"]).status.success());
    let session = editor.new_session(&service.work());
    assert_eq!(editor.turn(&session, "back"), ["echo: back"]);
}

#[test]
fn a21_detached_descendants_die_with_the_session() {
    let service = service(&json!({})).start();
    let (mut editor, session) = service.session();
    let detached = json!({ "fork": { "detach": true, "hold_stdout": true, "ignore_sigterm": true } });
    editor.turn_do(
        &session,
        &json!([detached, { "fork": { "hold_stdout": true } }, { "fork": { "detach": true } }]),
    );
    let sleepers = || service.processes().iter().filter(|running| running.command.contains(SLEEPER)).count();
    assert!(poll_until(ONE_SECOND, || sleepers() == 3), "{:?}", service.processes());
    close(&mut editor, &session);
    service.wait_gone(SLEEPER, ONE_SECOND);
    wait_no_agent(&service, ONE_SECOND);
}

#[test]
fn a21_descendants_die_with_a_crashed_agent_and_its_reader_ends() {
    let service = service(&json!({})).start();
    let (mut editor, session) = service.session();
    let detached = json!({ "fork": { "detach": true, "hold_stdout": true, "ignore_sigterm": true } });
    // The descendant holds stdout, so there is no end of file to notice.
    let id = editor.prompt_do(&session, &json!([detached, { "exit": 5 }]));
    assert_says(&editor.error_of(&id), &["exited with status 5"]);
    service.wait_gone(SLEEPER, ONE_SECOND);
}

#[test]
fn a22_ignored_sigterm_is_followed_by_sigkill() {
    let service = service(&json!({ "ignore_sigterm": true, "ignore_eof": true })).start();
    let (mut editor, session) = service.session();
    editor.turn(&session, "hello");
    close(&mut editor, &session);
    wait_no_agent(&service, LADDER);
    let told = service.ledger("fake").iter().any(|entry| entry.text.as_deref() == Some("SIGTERM"));
    assert!(told, "SIGTERM comes before SIGKILL");
}

#[test]
fn a23_stopped_agent_is_found_and_killed() {
    let service = service(&json!({})).start();
    let (mut editor, session) = service.session();
    let id = editor.prompt_do(&session, &json!([{ "signal": 19 }, "hang"]));
    editor.set_deadline(Duration::from_secs(30));
    assert_says(&editor.error_of(&id), &["was stopped by a signal for too long and was ended"]);
    wait_no_agent(&service, LADDER);
}

#[test]
fn a24_zombies_are_reaped() {
    let service = service(&json!({})).start();
    let (mut editor, session) = service.session();
    let chunks = editor.turn_do(&session, &json!([{ "zombies": 20 }]));
    let pids: Vec<u32> = serde_json::from_str(&chunks[0]).unwrap();
    assert_eq!(pids.len(), 20);
    close(&mut editor, &session);
    wait_no_agent(&service, LADDER);
    let left = || pids.iter().filter(|pid| Path::new(&format!("/proc/{pid}")).exists()).count();
    assert!(poll_until(ONE_SECOND, || left() == 0), "{} zombies are left", left());
}

#[test]
fn a28_closed_stdout_counts_as_dead() {
    let service = service(&json!({ "ignore_eof": true })).start();
    let (mut editor, session) = service.session();
    let id = editor.prompt_do(&session, &json!(["close_stdout", "hang"]));
    assert_says(&editor.error_of(&id), &["closed its stdout and was ended"]);
    wait_no_agent(&service, LADDER);
}

#[test]
fn a29_wrong_protocol_versions_are_refused_by_name() {
    for version in [json!(2), json!(99), json!("1"), json!([1])] {
        let service = service(&json!({ "version": version })).start();
        let mut editor = service.editor();
        let error = editor.call_error("session/new", &json!({ "cwd": service.work(), "mcpServers": [] }));
        assert_says(&error, &["version"]);
        if version.is_number() {
            assert_says(&error, &[&version.to_string()]);
        }
        wait_no_agent(&service, LADDER);
    }
}

#[test]
fn a29_unknown_capabilities_do_no_harm() {
    let capabilities = json!({ "loadSession": true, "telepathy": { "range": [1, null] }, "sessionCapabilities": { "dream": {} } });
    let service = service(&json!({ "capabilities": capabilities })).start();
    let (mut editor, session) = service.session();
    assert_eq!(editor.turn(&session, "hello"), ["echo: hello"]);
}

#[test]
fn a30_equal_session_and_request_ids_of_processes_never_mix() {
    let service = service(&json!({ "reuse_session_ids": true })).start();
    let mut editor = service.editor();
    let (one, two) = (editor.new_session(&service.work()), editor.new_session(&service.work()));
    assert_ne!(one, two);
    for id in [&one, &two] {
        uuid::Uuid::parse_str(id).unwrap_or_else(|error| panic!("{id} is not a UUID: {error}"));
    }
    // Both agents call their session "0" and their first request 0.
    let turns =
        [editor.prompt_do(&one, &json!([permission()])), editor.prompt_do(&two, &json!([permission()]))];
    let asks = [
        editor.next_request("session/request_permission"),
        editor.next_request("session/request_permission"),
    ];
    assert_ne!(asks[0]["id"], asks[1]["id"]);
    for ask in asks {
        let option = if ask["params"]["sessionId"] == json!(one) { "yes" } else { "no" };
        editor.answer(&ask, &json!({ "outcome": { "outcome": "selected", "optionId": option } }));
    }
    for id in &turns {
        assert_eq!(editor.stop_reason(id), "end_turn");
    }
    assert!(editor.chunks(&one)[0].contains(r#""optionId":"yes""#), "{}", editor.story());
    assert!(editor.chunks(&two)[0].contains(r#""optionId":"no""#), "{}", editor.story());
}

#[test]
fn a30_ids_of_a_dead_process_mean_nothing_to_its_successor() {
    let service = service(&json!({ "reuse_session_ids": true })).start();
    let mut editor = service.editor();
    let dead = editor.new_session(&service.work());
    let id = editor.prompt_do(&dead, &json!([{ "exit": 1 }]));
    editor.error_of(&id);
    let fresh = editor.new_session(&service.work());
    assert_ne!(dead, fresh);
    // It goes on with a process of its own, whatever that calls it.
    assert_eq!(editor.turn(&dead, "who reads this?"), ["echo: who reads this?"]);
    assert_eq!(editor.turn(&fresh, "me"), ["echo: me"]);
    assert_eq!(editor.chunks(&fresh), ["echo: me"]);
    let prompts = service
        .received("fake")
        .into_iter()
        .filter(|line| line.method().as_deref() == Some("session/prompt"));
    assert_eq!(prompts.count(), 3, "each prompt reached one process");
}
