//! Derived tables are made of frames: made anew they are the same, and another
//! ledger's frames bring theirs along.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

use conductor::{
    journal::{Batch, Class, Journal},
    ledger::{self, LedgerError, Settings, rebuild::Progress},
    record::{Destination, Origin, Stream, StreamKind, note, now_us},
    tasks::Tasks,
};
use conductor_tests::{
    postgres::Database,
    shipping::{
        Bench, Known, append, caught_up, open_file, open_session, session, ship, ship_all, sorted, stream,
        synced, turn,
    },
};
use serde_json::json;
use sqlx::{AssertSqlSafe, Executor as _};

async fn execute(bench: &Bench, statement: &str) {
    let statement = AssertSqlSafe(statement.to_owned());
    match bench.settings().url.is_empty() {
        true => drop(open_file(&bench.file()).await.execute(statement).await.unwrap()),
        false => drop(bench.database().connect().await.execute(statement).await.unwrap()),
    }
}

fn record(journal: &Journal, stream: Stream, method: &str, params: &serde_json::Value) -> Vec<Known> {
    append(journal, stream, Origin::Conductor, Destination::Record, &[note(method, params)])
}

/// A permission that the agent asks for with this id, and an answer of the
/// editor's, by somebody if not the owner.
fn permission(journal: &Journal, session: Stream, id: u64, by: Option<&str>) -> Vec<Known> {
    let options = json!([{ "optionId": "yes", "name": "Yes", "kind": "allow_once" }]);
    let asked = json!({ "jsonrpc": "2.0", "id": id, "method": "session/request_permission", "params": {
        "toolCall": { "toolCallId": "t", "title": "Run" }, "options": options } });
    let (seq, raw) = (journal.next_seq(session.id), asked.to_string().into_bytes());
    let mut batch = Batch::new();
    let lines = [raw.as_slice()].into_iter();
    batch.push(session, seq, now_us(), Origin::Agent, Destination::Editor, &[(0, id)], lines);
    journal.append(batch, Class::Stop).unwrap();
    let mut all = vec![Known { stream: session.id, seq: i64::try_from(seq).unwrap(), raw }];
    if let Some(user) = by {
        all.extend(record(journal, session, note::BY, &json!({ "user": user })));
    }
    let outcome = json!({ "outcome": { "outcome": "selected", "optionId": "yes" } });
    let answer = json!({ "jsonrpc": "2.0", "id": id, "result": outcome }).to_string().into_bytes();
    all.extend(append(journal, session, Origin::Editor, Destination::Agent, &[answer]));
    all
}

/// Sessions that are written to by turns, processes and connections, shipped in
/// many batches with restarts between. Some of it is said by others than the
/// owner, whom the last note of the batch before names.
async fn history(bench: &Bench) -> Vec<Known> {
    let mut journal = bench.journal();
    let sessions: Vec<_> = (0..4).map(|_| stream(StreamKind::Session)).collect();
    let mut all = Vec::new();
    for session in &sessions {
        all.extend(open_session(&journal, *session));
    }
    let (process, connection) = (stream(StreamKind::Process), stream(StreamKind::Connection));
    let started = json!({ "agent": "demo", "command": "demo", "args": ["x"], "cwd": "/w", "pid": 7 });
    all.extend(record(&journal, process, note::PROCESS_STARTED, &started));
    all.extend(record(
        &journal,
        connection,
        note::CONNECTED,
        &json!({ "user": "ann", "teams": ["a"], "client": "ed" }),
    ));
    for number in 1..=6 {
        for session in &sessions {
            all.extend(turn(&journal, *session, number));
        }
        all.extend(permission(&journal, sessions[0], 100 + number, None));
        all.extend(permission(&journal, sessions[1], 100 + number, Some("bob")));
        all.extend(record(&journal, sessions[1], note::BY, &json!({ "user": "bob" })));
        synced(&journal).await;
        ship_all(bench.settings(), &journal).await;
        journal.close();
        journal = bench.journal();
    }
    let ended = json!({ "reason": "exited", "code": 3, "crashed": true, "stderr": "oh \u{0} no" });
    all.extend(record(&journal, process, note::PROCESS_ENDED, &ended));
    all.extend(record(&journal, connection, note::DISCONNECTED, &json!({ "reason": "closed" })));
    ship_all(bench.settings(), &journal).await;
    all
}

#[tokio::test]
async fn rebuilt_equals_live() {
    for bench in Bench::both().await {
        let frames = history(&bench).await;
        let live = bench.derived().await;
        assert!(live.len() > 50, "a history that says little proves little: {live:#?}");
        // The first was before he was named.
        let others = "SELECT count(*) FROM turns WHERE user_name = 'bob' AND team IS NULL";
        assert_eq!(bench.number(others).await, 5);
        for user in ["ann", "bob"] {
            let decided = format!("SELECT count(*) FROM decisions WHERE decided_user = '{user}'");
            assert_eq!(bench.number(&decided).await, 6);
        }
        // What was tampered with is made right again.
        execute(&bench, "UPDATE messages SET text = 'changed'").await;
        execute(&bench, "DELETE FROM turns").await;
        assert_ne!(bench.derived().await, live);
        let mut told = Vec::new();
        let done = ledger::rebuild(&bench.settings(), |progress| told.push(progress)).await.unwrap();
        assert_eq!(done, frames.len() as u64);
        assert_eq!(told.last(), Some(&Progress { done, total: done }));
        assert!(told.is_sorted_by_key(|progress| progress.done));
        assert_eq!(bench.derived().await, live);
        assert_eq!(bench.frames().await, sorted(frames));
    }
}

/// Who reads during a rebuild sees the old rows or the new ones, and who writes
/// loses nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_rebuild_is_seen_whole_and_loses_nothing() {
    for bench in Bench::both().await {
        let mut frames = history(&bench).await;
        let live = bench.derived().await;
        let (journal, tasks) = (bench.journal(), Tasks::default());
        let ledger = ship(bench.settings(), &journal, &tasks).await;
        caught_up(&ledger, &journal).await;
        let settings = bench.settings();
        let (begun, mut at_work) = tokio::sync::watch::channel(false);
        let (go_on, went_on) = std::sync::mpsc::sync_channel::<()>(0);
        let rebuilding = tokio::spawn(async move {
            let mut first = true;
            let wait = move |_: Progress| {
                if std::mem::take(&mut first) {
                    begun.send_replace(true);
                    // The rebuild stands still in its midst until it was looked at.
                    tokio::task::block_in_place(|| went_on.recv().unwrap());
                }
            };
            ledger::rebuild(&settings, wait).await
        });
        at_work.wait_for(|begun| *begun).await.unwrap();
        assert_eq!(bench.derived().await, live, "half a rebuild is seen by nobody");
        frames.extend(session(&journal, 2).1);
        synced(&journal).await;
        go_on.send(()).unwrap();
        rebuilding.await.unwrap().unwrap();
        caught_up(&ledger, &journal).await;
        assert_eq!(bench.frames().await, sorted(frames));
        let now = bench.derived().await;
        assert!(now.len() > live.len());
        ledger.stop().await;
        ledger::rebuild(&bench.settings(), |_| {}).await.unwrap();
        assert_eq!(bench.derived().await, now);
    }
}

#[tokio::test]
async fn an_old_ledger_is_carried_over_once() {
    let old = Bench::sqlite();
    let frames = history(&old).await;
    for bench in Bench::both().await {
        let mut told = Vec::new();
        let tell = |progress| told.push(progress);
        let written = ledger::import(&bench.settings(), &old.file(), tell).await.unwrap();
        assert_eq!((written.new, written.conflicts, written.stripped), (frames.len() as u64, 0, 0));
        assert_eq!(told.last().unwrap().done, frames.len() as u64);
        assert_eq!(bench.frames().await, sorted(frames.clone()));
        assert_eq!(bench.derived().await, old.derived().await);
        let again = ledger::import(&bench.settings(), &old.file(), |_| {}).await.unwrap();
        assert_eq!(again.new, 0);
        assert_eq!(bench.derived().await, old.derived().await);
    }
}

/// Moving to Postgres with one setting: the journal brings what it still has,
/// the old file brings the rest, and the derived rows know of both.
#[tokio::test]
async fn a_session_that_went_on_elsewhere_becomes_one_again() {
    let old = Bench::sqlite();
    let new = Bench::postgres(Database::new().await);
    let before = old.journal();
    let (first, mut frames) = session(&before, 3);
    ship_all(old.settings(), &before).await;
    // Another journal that does not have the first turns any more.
    let after = new.journal();
    let seq = i64::try_from(before.next_seq(first.id)).unwrap();
    let mut batch = Batch::new();
    let line = br#"{"jsonrpc":"2.0","method":"session/update","params":{"update":{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"late"}}}}"#;
    let now = now_us();
    batch.push(
        first,
        seq as u64,
        now,
        Origin::Agent,
        Destination::Editor,
        &[],
        [line.as_slice()].into_iter(),
    );
    after.append(batch, Class::Stream).unwrap();
    frames.push(Known { stream: first.id, seq, raw: line.to_vec() });
    ship_all(new.settings(), &after).await;
    ledger::import(&new.settings(), &old.file(), |_| {}).await.unwrap();
    assert_eq!(new.frames().await, sorted(frames));
    let imported = new.derived().await;
    ledger::rebuild(&new.settings(), |_| {}).await.unwrap();
    assert_eq!(new.derived().await, imported);
    assert_eq!(new.number("SELECT frames FROM sessions").await, seq);
}

#[tokio::test]
async fn what_is_no_other_ledger_is_not_imported() {
    let bench = Bench::sqlite();
    let journal = bench.journal();
    session(&journal, 1);
    ship_all(bench.settings(), &journal).await;
    let own = ledger::import(&bench.settings(), &bench.file(), |_| {}).await.unwrap_err();
    assert!(matches!(own, LedgerError::Settings(_)) && own.to_string().contains("itself"), "{own}");
    let other = bench.state().join("empty.sqlite");
    open_file_new(&other).await;
    let none = ledger::import(&bench.settings(), &other, |_| {}).await.unwrap_err();
    assert!(none.to_string().contains("no ledger"), "{none}");
    let missing = bench.state().join("missing.sqlite");
    ledger::import(&bench.settings(), &missing, |_| {}).await.unwrap_err();
    assert!(!missing.exists(), "an import makes no file");
}

async fn open_file_new(file: &std::path::Path) {
    std::fs::write(file, b"").unwrap();
    open_file(file).await.execute("CREATE TABLE other (a)").await.unwrap();
}

#[tokio::test]
async fn the_owner_rebuilds_where_the_writer_may_not() {
    let bench = Bench::postgres(Database::new().await);
    let role = format!("r_{}", uuid::Uuid::now_v7().simple());
    execute(&bench, &format!("CREATE ROLE {role} LOGIN PASSWORD 'writer-word'")).await;
    let password = bench.state().join("password");
    std::fs::write(&password, "writer-word").unwrap();
    let url = bench.database().url_of(&role);
    let writer = Settings { password_file: Some(password), ..bench.settings_at(&url) };
    let owner = Settings { owner_url: bench.database().url().parse().unwrap(), ..writer.clone() };
    let journal = bench.journal();
    session(&journal, 2);
    ship_all(owner.clone(), &journal).await;
    let live = bench.derived().await;
    let refused = ledger::rebuild(&writer, |_| {}).await.unwrap_err().to_string();
    assert!(refused.contains("ledger.owner_url"), "{refused}");
    assert_eq!(bench.derived().await, live, "a rebuild that fails has changed nothing");
    ledger::rebuild(&owner, |_| {}).await.unwrap();
    assert_eq!(bench.derived().await, live);
    let mut admin = bench.database().connect().await;
    let leave = format!("DROP OWNED BY {role}; DROP ROLE {role}");
    sqlx::raw_sql(AssertSqlSafe(leave)).execute(&mut admin).await.unwrap();
}
