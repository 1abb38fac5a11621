//! Every place where something goes on, or is left out, that could not be done in
//! full has a number (goal G18). Those that no peer and no disk can cause from
//! outside are tested where they are: `pool`, `router::sharing`, `session::seats`, `tasks`;
//! `accept_failures` is read in `faults_listener`, `readers_dropped` in `typed`.

use std::{fs, time::Duration};

use conductor_tests::{
    admin::{metric, wait_metric, watched},
    disk::Disk,
    editor::{DEADLINE, Line},
    harness::{permission, poll_until, service},
    preload::library,
};
use serde_json::json;
use sqlx::{Connection as _, SqliteConnection};
use tokio::runtime::Runtime;

fn branch(name: &str) -> String {
    format!(r#"conductor_best_effort_total{{branch="{name}"}}"#)
}

#[test]
fn g18_frames_that_pass_unrecorded() {
    let builder = watched(service(&json!({})).set("journal.recording", "best-effort"));
    let (disk, builder) = Disk::under(builder);
    let service = builder.start();
    let (mut editor, session) = service.session();
    assert_eq!(metric(&service, "conductor_unrecorded_frames_total"), 0.0);
    disk.rule("pwrite EIO");
    editor.turn_do(&session, &json!([{ "update": { "n": 2 } }]));
    disk.works();
    assert!(metric(&service, "conductor_unrecorded_frames_total") >= 3.0, "a prompt, two updates");
}

#[test]
fn g18_stopping_although_the_journal_takes_nothing() {
    let (disk, builder) = Disk::under(watched(service(&json!({}))));
    let service = builder.start();
    let (mut editor, session) = service.session();
    let id = editor.prompt_do(&session, &json!([permission()]));
    editor.next_request("session/request_permission");
    disk.rule("pwrite EIO");
    editor.cancel(&session);
    assert_eq!(editor.stop_reason(&id), "cancelled");
    assert!(metric(&service, &branch("stop_unrecorded")) >= 1.0);
    assert_eq!(metric(&service, "conductor_journal_refusing"), 1.0);
    let refused = editor.prompt(&session, "not recorded");
    editor.error_of(&refused);
    disk.works();
    wait_metric(&service, "conductor_journal_refusing", |refusing| refusing == 0.0);
}

#[test]
fn g18_a_file_of_sessions_that_cannot_be_written() {
    let service = watched(service(&json!({}))).start();
    let (mut editor, session) = service.session();
    let file = service.state().join("store.sqlite");
    Runtime::new().unwrap().block_on(async {
        let mut other = SqliteConnection::connect(&format!("sqlite://{}", file.display())).await.unwrap();
        sqlx::raw_sql("BEGIN EXCLUSIVE").execute(&mut other).await.unwrap();
        editor.turn(&session, "one");
        wait_metric(&service, &branch("store_not_saved"), |count| count >= 1.0);
        sqlx::raw_sql("ROLLBACK").execute(&mut other).await.unwrap();
    });
}

#[test]
fn g18_a_value_that_the_ledger_refuses() {
    let service = watched(service(&json!({}))).start();
    let (mut editor, session) = service.session();
    editor.turn(&session, "one");
    wait_metric(&service, "conductor_ledger_behind_bytes", |behind| behind == 0.0);
    let file = service.state().join("ledger.sqlite");
    Runtime::new().unwrap().block_on(async {
        let mut other = SqliteConnection::connect(&format!("sqlite://{}", file.display())).await.unwrap();
        let refuse = "CREATE TRIGGER refuse BEFORE INSERT ON turns BEGIN SELECT RAISE(ABORT, 'no'); END";
        sqlx::raw_sql(refuse).execute(&mut other).await.unwrap();
        assert_eq!(metric(&service, "conductor_ledger_stripped_total"), 0.0);
        editor.turn(&session, "two");
        wait_metric(&service, "conductor_ledger_stripped_total", |count| count >= 1.0);
        sqlx::raw_sql("DROP TRIGGER refuse").execute(&mut other).await.unwrap();
    });
    wait_metric(&service, "conductor_ledger_behind_bytes", |behind| behind == 0.0);
}

#[test]
fn g18_updates_ahead_of_the_answer_that_tells_the_session() {
    let flood = json!([{ "update": { "n": 90, "size": 100_000 } }]);
    let service = watched(service(&json!({ "before": { "session/new": flood } }))).start();
    let (mut editor, session) = service.session();
    editor.turn(&session, "hello");
    assert!(metric(&service, &branch("early_dropped")) >= 1.0);
    let kept = editor.chunks(&session).iter().filter(|text| text.starts_with("chunk ")).count();
    assert!((1..90).contains(&kept), "{kept}");
}

#[test]
fn g18_updates_ahead_of_the_history_of_a_session() {
    // Something that is no history, which would be swallowed.
    let update = json!({ "sessionUpdate": "available_commands_update", "availableCommands": [
        { "name": "x", "description": "y".repeat(100_000) },
    ] });
    let say = json!({ "method": "session/update", "params": { "sessionId": "$sid", "update": update } });
    let flood = json!([{ "repeat": [90, [{ "notify": say }]] }]);
    let mut service = watched(service(&json!({ "before": { "session/resume": flood } }))).start();
    let (mut editor, session) = service.session();
    editor.turn(&session, "hello");
    drop(editor);
    service.term();
    service.start_again();
    let mut editor = service.editor();
    let params = json!({ "sessionId": session, "cwd": service.work(), "mcpServers": [] });
    editor.call("session/load", &params);
    assert!(metric(&service, &branch("early_unordered")) >= 1.0);
    let is_update =
        |line: &Line| line.json["params"]["update"]["sessionUpdate"] == "available_commands_update";
    let count = || editor.lines().iter().filter(|line| is_update(line)).count();
    assert!(poll_until(DEADLINE, || count() == 90), "{} of 90", count());
}

#[test]
fn g18_orphans_that_nobody_will_adopt() {
    let builder = service(&json!({})).env("LD_PRELOAD", library("prctl").to_str().unwrap());
    let service = watched(builder).start();
    assert_eq!(metric(&service, &branch("orphans_not_adopted")), 1.0);
    let (mut editor, session) = service.session();
    editor.turn(&session, "served all the same");
}

#[test]
fn g18_a_file_that_cannot_be_read_again_leaves_the_old_one_in_force() {
    let service = watched(service(&json!({}))).start();
    fs::write(service.dir.join("agents.toml"), "[broken").unwrap();
    fs::write(service.dir.join("policy.toml"), "[broken").unwrap();
    service.reload();
    service.wait_log("the configuration was not reloaded");
    assert!(metric(&service, r#"conductor_reloads_total{outcome="config_refused"}"#) >= 1.0);
    assert!(metric(&service, r#"conductor_reloads_total{outcome="policy_refused"}"#) >= 1.0);
    let (mut editor, session) = service.session();
    editor.turn(&session, "still served");
}

#[test]
fn g18_an_agent_that_does_not_answer_what_it_is_to_be_set_to() {
    let modes = json!({ "currentModeId": "a", "availableModes": [
        { "id": "a", "name": "A" }, { "id": "b", "name": "B" },
    ] });
    let script = json!({ "session": { "modes": modes }, "instead": { "session/set_mode": ["hang"] } });
    let service = watched(service(&script)).start();
    let mut editor = service.connect(&["--mode", "b"]);
    // It is given a minute, and prompts wait meanwhile.
    editor.set_deadline(Duration::from_secs(90));
    editor.initialize();
    let session = editor.new_session(&service.work());
    let id = editor.prompt(&session, "hello");
    assert_eq!(editor.stop_reason(&id), "end_turn");
    assert_eq!(metric(&service, &branch("setting_unanswered")), 1.0);
}
