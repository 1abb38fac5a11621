//! The whole way from a frame to the database, through the running service: what
//! was said is in the ledger, byte for byte, in SQLite and in Postgres alike; and
//! what the service does while the database is away, by recording mode.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

use std::time::Duration;

use conductor::ledger::Settings;
use conductor_tests::{
    disk,
    editor::Editor,
    harness::{Builder, Service, assert_says, permission, poll_until, service},
    people::Person,
    postgres::{Database, Postgres},
    shipping::{self, Known},
};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

/// The code of what was not done because it could not be recorded.
const NOT_RECORDED: i64 = -31004;

/// Longest wait for the ledger to have everything.
const PATIENCE: Duration = Duration::from_secs(60);

/// A service whose ledger is in this database.
fn in_postgres(database: &Database) -> Builder {
    service(&json!({})).set("ledger.url", database.url())
}

fn settings(service: &Service, database: Option<&Database>) -> Settings {
    let mut settings = Settings::embedded(&service.state());
    if let Some(database) = database {
        settings.url = database.url().parse().unwrap();
    }
    settings
}

fn choose(editor: &mut Editor, option: &str) {
    let ask = editor.next_request("session/request_permission");
    editor.answer(&ask, &json!({ "outcome": { "outcome": "selected", "optionId": option } }));
}

/// A conversation with something of everything.
fn talk(editor: &mut Editor, session: &str) {
    let id = editor.prompt_do(session, &json!([{ "update": { "n": 5 } }, permission(), { "update": {} }]));
    choose(editor, "yes");
    assert_eq!(editor.stop_reason(&id), "end_turn");
    for nasty in [
        r#"{"jsonrpc":"2.0","method":"_x","params":{"nul":"\u0000","half":"\ud83d","huge":1e400000,"minus":-0}}"#,
        r#"{"jsonrpc":"2.0","method":"_x","params":{"twice":1,"twice":2, "space" : [ ] }}"#,
    ] {
        editor.turn_do(session, &json!([{ "line": nasty }]));
    }
    // Too deep to be a frame, and no JSON at all: recorded as they are.
    let deep = format!("{}{}", "[".repeat(200), "]".repeat(200));
    editor.turn_do(session, &json!([{ "line": deep }, { "line": "no json" }, { "update": {} }]));
}

fn what_was_said_is_in_the_ledger(database: Option<&Database>, mut service: Service) {
    let runtime = Runtime::new().unwrap();
    let (mut editor, session) = service.session();
    talk(&mut editor, &session);
    editor.call("session/close", &json!({ "sessionId": session }));
    drop(editor);
    service.term();
    let settings = settings(&service, database);
    let expected = disk::journaled(&service);
    let stored = shipping::sorted(runtime.block_on(shipping::frames(&settings)));
    assert_eq!(stored.len(), expected.len());
    assert_eq!(stored, expected, "the ledger has what the journal has");
    let number = |statement: &str| runtime.block_on(shipping::number(&settings, statement));
    assert_eq!(number("SELECT count(*) FROM sessions WHERE end_reason = 'closed'"), 1);
    assert_eq!(number("SELECT count(*) FROM turns WHERE stop_reason = 'end_turn'"), 4);
    assert_eq!(
        number("SELECT count(*) FROM decisions WHERE decision = 'allow' AND decided_by = 'editor'"),
        1
    );
    assert_eq!(number("SELECT count(*) FROM processes WHERE ended_us IS NOT NULL"), 1);
    assert_eq!(number("SELECT count(*) FROM connections WHERE closed_us IS NOT NULL"), 1);
    assert_eq!(number("SELECT count(*) FROM frames WHERE kind = 'opaque'"), 2);
    // A rebuild from the frames alone gives the same rows again.
    let live = runtime.block_on(shipping::derived(&settings));
    runtime.block_on(conductor::ledger::rebuild(&settings, |_| ())).unwrap();
    assert_eq!(runtime.block_on(shipping::derived(&settings)), live);
}

#[test]
fn what_was_said_is_in_the_ledger_in_sqlite() {
    what_was_said_is_in_the_ledger(None, service(&json!({})).start());
}

#[test]
fn what_was_said_is_in_the_ledger_in_postgres() {
    let database = Runtime::new().unwrap().block_on(Database::new());
    what_was_said_is_in_the_ledger(Some(&database), in_postgres(&database).start());
}

/// Ann drives a session that is not hers, beside its owner.
fn drive_together(service: &Service, me: &str) {
    let (mut owner, session) = service.session();
    let ann = Person::named(service, "ann");
    let shared = service.run(&["sessions", "share", &session, "--with", "ann", "--as", "driver"]);
    assert!(shared.status.success(), "{shared:?}");
    let mut guest = ann.editor(service);
    guest.call("session/load", &json!({ "sessionId": session, "cwd": service.work(), "mcpServers": [] }));
    // The owner asks and ann decides, then the other way round.
    let id = owner.prompt_do(&session, &json!([permission()]));
    owner.next_request("session/request_permission");
    choose(&mut guest, "yes");
    assert_eq!(owner.stop_reason(&id), "end_turn");
    let id = guest.prompt_do(&session, &json!([permission()]));
    guest.next_request("session/request_permission");
    choose(&mut owner, "no");
    assert_eq!(guest.stop_reason(&id), "end_turn");
    // Ann leaves it to the owner, which decides nothing.
    let id = guest.prompt_do(&session, &json!([permission()]));
    let ask = guest.next_request("session/request_permission");
    guest.answer(&ask, &json!({ "outcome": { "outcome": "cancelled" } }));
    let export = || String::from_utf8(service.run(&["sessions", "export", &session]).stdout).unwrap();
    assert!(poll_until(PATIENCE, || export().contains("_conductor/declined")), "{}", export());
    choose(&mut owner, "yes");
    assert_eq!(guest.stop_reason(&id), "end_turn");
    // She stops a turn of the owner's, and nobody has decided what it asked.
    let id = owner.prompt_do(&session, &json!([permission()]));
    guest.next_request("session/request_permission");
    guest.cancel(&session);
    assert_eq!(owner.stop_reason(&id), "cancelled");
    let show = || String::from_utf8(service.run(&["sessions", "show", &session]).stdout).unwrap();
    let expected = [
        "allow (allow_once) by ann".to_owned(),
        format!("reject (reject_once) by {me}"),
        format!("allow (allow_once) by {me}"),
        "cancelled by conductor".to_owned(),
    ];
    let is_shown = || {
        let shown = show();
        expected.iter().all(|line| shown.contains(line))
    };
    assert!(poll_until(PATIENCE, is_shown), "{}", show());
    guest.call("session/close", &json!({ "sessionId": session }));
    owner.call("session/close", &json!({ "sessionId": session }));
}

fn who_said_what_is_in_the_ledger(database: Option<&Database>, mut service: Service) {
    let runtime = Runtime::new().unwrap();
    let me = nix::unistd::User::from_uid(nix::unistd::Uid::effective()).unwrap().unwrap().name;
    drive_together(&service, &me);
    service.term();
    let settings = settings(&service, database);
    let number = |statement: &str| runtime.block_on(shipping::number(&settings, statement));
    let turns = |by: &str| {
        let turns = "SELECT count(*) FROM turns JOIN sessions ON sessions.session_id = turns.session_id";
        number(&format!("{turns} WHERE sessions.user_name = '{me}' AND turns.user_name = '{by}'"))
    };
    assert_eq!((turns(&me), turns("ann")), (2, 2));
    assert_eq!(number("SELECT count(*) FROM turns WHERE user_name = 'ann' AND team IS NULL"), 2);
    let decided = |turn_by: &str, decision: &str, by: &str| {
        number(&format!(
            "SELECT count(*) FROM decision_log JOIN turns \
             ON turns.session_id = decision_log.session_id AND turns.turn = decision_log.turn \
             WHERE turns.user_name = '{turn_by}' AND decision_log.user_name = '{me}' \
             AND decision = '{decision}' AND decided_user {by}"
        ))
    };
    assert_eq!(decided(&me, "allow", "= 'ann'"), 1);
    assert_eq!(decided("ann", "reject", &format!("= '{me}'")), 1);
    assert_eq!(decided("ann", "allow", &format!("= '{me}'")), 1);
    assert_eq!(decided(&me, "cancelled", "IS NULL AND decided_by = 'conductor'"), 1);
    assert_eq!(number("SELECT count(*) FROM decisions"), 4);
    let live = runtime.block_on(shipping::derived(&settings));
    runtime.block_on(conductor::ledger::rebuild(&settings, |_| ())).unwrap();
    assert_eq!(runtime.block_on(shipping::derived(&settings)), live);
}

#[test]
fn who_said_what_is_in_the_ledger_in_sqlite() {
    who_said_what_is_in_the_ledger(None, service(&json!({})).start());
}

#[test]
fn who_said_what_is_in_the_ledger_in_postgres() {
    let database = Runtime::new().unwrap().block_on(Database::new());
    who_said_what_is_in_the_ledger(Some(&database), in_postgres(&database).start());
}

/// A server of the test's own with a database, stopped.
fn stopped_server() -> Database {
    let runtime = Runtime::new().unwrap();
    let database = runtime.block_on(Postgres::start_private().database());
    database.server().stop();
    database
}

/// Waits until the ledger has a frame with this text.
fn wait_stored(settings: &Settings, text: &str) {
    let runtime = Runtime::new().unwrap();
    let stored = poll_until(PATIENCE, || {
        let frames = runtime.block_on(shipping::frames(settings));
        frames.iter().any(|frame| String::from_utf8_lossy(&frame.raw).contains(text))
    });
    assert!(stored, "the ledger never got {text:?}");
}

#[test]
fn d01_durable_works_without_postgres_and_catches_up() {
    let database = stopped_server();
    let mut service = in_postgres(&database).start();
    let (mut editor, session) = service.session();
    editor.turn(&session, "while the database is away");
    let doctor = String::from_utf8(service.run(&["doctor"]).stdout).unwrap();
    assert!(doctor.contains("cannot be written") && doctor.contains("behind"), "{doctor}");
    database.server().start();
    service.wait_log("the ledger is being written");
    wait_stored(&settings(&service, Some(&database)), "while the database is away");
    // It may go and come back at any time.
    database.server().kill();
    editor.turn(&session, "while it is away again");
    database.server().start();
    wait_stored(&settings(&service, Some(&database)), "while it is away again");
    let up_to_date = || {
        let doctor = service.run(&["doctor"]);
        String::from_utf8_lossy(&doctor.stdout).contains("up to date") && doctor.status.success()
    };
    assert!(poll_until(PATIENCE, up_to_date), "{:?}", service.run(&["doctor"]));
    drop(editor);
    service.term();
    let stored = Runtime::new().unwrap().block_on(shipping::frames(&settings(&service, Some(&database))));
    assert_eq!(shipping::sorted(stored), disk::journaled(&service));
}

#[test]
fn d01_strict_refuses_effects_without_postgres_and_recovers() {
    let database = stopped_server();
    let service = in_postgres(&database).set("journal.recording", "strict").start();
    let mut editor = service.editor();
    let new = json!({ "cwd": service.work(), "mcpServers": [] });
    let error = editor.request("session/new", &new);
    let error = editor.error_of(&error);
    assert_eq!(error["code"], NOT_RECORDED, "{error}");
    assert_says(&error, &["ledger"]);
    database.server().start();
    let mut session = Value::Null;
    let opened = poll_until(PATIENCE, || {
        let id = editor.request("session/new", &new);
        session = editor.response(&id)["result"]["sessionId"].clone();
        session.is_string()
    });
    assert!(opened, "the database is back, and no session opens:\n{}", service.log());
    let session = session.as_str().unwrap();
    // The effect was released, so the database has it already.
    editor.turn(session, "known before it is done");
    let stored = Runtime::new().unwrap().block_on(shipping::frames(&settings(&service, Some(&database))));
    let has = |frame: &Known| String::from_utf8_lossy(&frame.raw).contains("known before it is done");
    assert!(stored.iter().any(has));
    // Gone again: refused at once, and stopping still works.
    let running = editor.prompt_do(session, &json!([permission()]));
    editor.next_request("session/request_permission");
    database.server().stop();
    let refused = poll_until(PATIENCE, || {
        let id = editor.request("session/set_mode", &json!({ "sessionId": session, "modeId": "x" }));
        editor.response(&id)["error"]["code"] == NOT_RECORDED
    });
    assert!(refused, "the database is gone, and effects still happen:\n{}", service.log());
    editor.cancel(session);
    assert_eq!(editor.stop_reason(&running), "cancelled");
    database.server().start();
}

#[test]
fn full_journal_stops_agents_and_effects_until_the_ledger_takes_it() {
    let database = stopped_server();
    let service = in_postgres(&database).set("journal.cap", "64MiB").start();
    let (mut editor, session) = service.session();
    editor.set_deadline(PATIENCE);
    let (mut other, second) = service.session();
    other.set_deadline(PATIENCE);
    // Far more than the cap: the agent is not read once it is reached.
    let flood = editor.prompt_do(&session, &json!([{ "update": { "n": 1800, "size": 40_000 } }]));
    // Refused in any case, and at once: the agent takes no sound. What counts is why.
    let sound = json!([{ "type": "audio", "data": "", "mimeType": "audio/wav" }]);
    let mut error = Value::Null;
    let refused = poll_until(PATIENCE, || {
        let id = other.request("session/prompt", &json!({ "sessionId": second, "prompt": sound }));
        error = other.error_of(&id);
        error["code"] == NOT_RECORDED
    });
    assert!(refused, "the journal is never full:\n{}", service.log());
    assert_says(&error, &["cap"]);
    assert_eq!(editor.answers_to(&flood), 0, "the agent was read all the same");
    database.server().start();
    assert_eq!(editor.stop_reason(&flood), "end_turn");
    assert_eq!(editor.chunks(&session).len(), 1800);
    other.turn(&second, "taken again");
    wait_stored(&settings(&service, Some(&database)), "taken again");
}
