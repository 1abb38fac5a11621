//! A backup that was put back: nothing is lost that the journal still has, nothing is there
//! twice, and the service goes on.

use std::{collections::BTreeSet, fs, process::Command};

use conductor::ledger::Settings;
use conductor_tests::{
    editor::DEADLINE,
    harness::{Service, poll_until, service},
    postgres::{Database, Postgres},
    shipping::{Known, frames, number, open_file},
};
use serde_json::json;
use sqlx::{AssertSqlSafe, Executor as _};

use crate::fixture::conduct;

fn settings(service: &Service, database: Option<&Database>) -> Settings {
    let mut settings = Settings::embedded(&service.state());
    if let Some(database) = database {
        settings.url = database.url().parse().unwrap();
    }
    settings
}

/// A turn of a session that ends with it.
fn talk(service: &Service, words: &str) -> String {
    let (mut editor, session) = service.session();
    editor.turn(&session, words);
    editor.close_stdin();
    editor.wait_exit();
    session
}

/// Every frame, once no more come.
async fn settled(service: &Service, database: Option<&Database>, session: &str) -> BTreeSet<Known> {
    let ended = format!("SELECT count(*) FROM sessions WHERE session_id = '{session}' AND NOT is_open");
    let settings = settings(service, database);
    let until = std::time::Instant::now() + DEADLINE;
    while number(&settings, &ended).await == 0 {
        assert!(std::time::Instant::now() < until, "the session never ended in the ledger");
        tokio::task::yield_now().await;
    }
    frames(&settings).await.into_iter().collect()
}

fn verify(service: &Service) {
    let verified = conduct(service, &["ledger", "verify"]);
    assert_eq!(verified.code, Some(0), "{verified:?}");
}

fn pg(server: &Postgres, program: &str, args: &[&str]) {
    let run = Command::new(server.program(program)).args(args).output().unwrap();
    assert!(run.status.success(), "{program}: {}", String::from_utf8_lossy(&run.stderr));
}

/// What was recorded before and after the backup is all there, once, and more is recorded.
async fn goes_on(service: &mut Service, database: Option<&Database>, before: &BTreeSet<Known>) {
    service.start_again();
    let session = talk(service, "after the backup was put back");
    let now = settled(service, database, &session).await;
    let missing: Vec<_> = before.difference(&now).collect();
    assert!(missing.is_empty(), "lost: {missing:?}");
    let settings = settings(service, database);
    assert_eq!(number(&settings, "SELECT count(*) FROM frame_conflicts").await, 0, "and nothing twice");
    verify(service);
    assert!(service.term().success());
    verify(service);
    service.start_again();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dump_is_restored_into_another_server() {
    let (first, second) = (Database::new().await, Postgres::start_private().database().await);
    let mut service = service(&json!({})).set("ledger.url", first.url()).start();
    let early = talk(&service, "before the backup");
    settled(&service, Some(&first), &early).await;
    let dump = service.dir.join("ledger.dump");
    let file = dump.to_str().unwrap();
    pg(first.server(), "pg_dump", &["--format=custom", "--dbname", &first.url(), "--file", file]);
    let late = talk(&service, "after the backup");
    let before = settled(&service, Some(&first), &late).await;
    assert!(service.term().success());
    // The first server is lost. What the dump does not have, the journal has.
    pg(second.server(), "pg_restore", &["--no-owner", "--exit-on-error", "--dbname", &second.url(), file]);
    service.configure("ledger.url", second.url());
    assert_eq!(
        number(
            &settings(&service, Some(&second)),
            &format!("SELECT count(*) FROM sessions WHERE session_id = '{late}'")
        )
        .await,
        0,
        "the dump is older"
    );
    goes_on(&mut service, Some(&second), &before).await;
}

/// A key that is known by its looks, in two parts so that nobody takes it for one here.
const TOKEN: [&str; 2] = ["gh", "p_aB3dE6gH9jK2mN5pQ8sT1vW4yZ7aB3dE6gH9"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_is_made_anew_without_its_journal() {
    let database = Database::new().await;
    let mut service = service(&json!({})).set("ledger.url", database.url()).start();
    let words = format!("use {}", TOKEN.concat());
    let early = talk(&service, &words);
    let before = settled(&service, Some(&database), &early).await;
    assert!(service.term().success());
    // What deploy/README.md says is to be put back, and nothing else.
    let guide = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/README.md")).unwrap();
    let (_, told) = guide.split_once("**Restore the host**").unwrap();
    let told = told.split_once("back before the first start").unwrap().0;
    let state = service.state();
    for entry in fs::read_dir(&state).unwrap().map(Result::unwrap) {
        let name = entry.file_name().into_string().unwrap();
        let is_kept = told.contains(&format!("`{name}`")) || told.contains(&format!("`{name}/`"));
        match (is_kept, entry.path().is_dir()) {
            (true, _) => {}
            (false, true) => fs::remove_dir_all(entry.path()).unwrap(),
            (false, false) => fs::remove_file(entry.path()).unwrap(),
        }
    }
    assert!(!state.join("journal").exists() && state.join("redact.key").exists());
    service.start_again();
    let late = talk(&service, &words);
    let now = settled(&service, Some(&database), &late).await;
    assert!(before.is_subset(&now), "lost: {:?}", before.difference(&now).collect::<Vec<_>>());
    let settings = settings(&service, Some(&database));
    assert_eq!(number(&settings, "SELECT count(*) FROM frame_conflicts").await, 0);
    // The same secret has the same tag.
    let tags = "SELECT count(DISTINCT substring(prompt from '<secret:token:[0-9a-f]{8}>')) FROM turns";
    assert_eq!(number(&settings, tags).await, 1);
    verify(&service);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_of_the_file_is_put_back() {
    let mut service = service(&json!({})).start();
    let early = talk(&service, "before the backup");
    settled(&service, None, &early).await;
    let (ledger, copy) = (service.state().join("ledger.sqlite"), service.dir.join("copy.sqlite"));
    // While the service writes to it.
    let into = format!("VACUUM INTO '{}'", copy.display());
    open_file(&ledger).await.execute(AssertSqlSafe(into)).await.unwrap();
    let late = talk(&service, "after the backup");
    let before = settled(&service, None, &late).await;
    assert!(service.term().success());
    for part in ["-wal", "-shm"] {
        let _ = fs::remove_file(service.state().join(format!("ledger.sqlite{part}")));
    }
    fs::rename(&copy, &ledger).unwrap();
    goes_on(&mut service, None, &before).await;
    assert!(poll_until(DEADLINE, || service.is_running()));
}
