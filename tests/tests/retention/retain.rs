//! What is old goes as a whole, and nothing else.

use conductor::{
    ledger::{
        self,
        evidence::{checkpoint::Kind, log::Log},
        removal::{Remover, retain::Age},
        table::TABLES,
    },
    record::{Stream, StreamKind},
};
use conductor_tests::{
    editor::DEADLINE,
    harness::{poll_until, service},
    postgres::{Database, PASSWORD},
    shipping::{Bench, ship_all},
};
use serde_json::json;
use sqlx::{AssertSqlSafe, Executor as _};
use uuid::Uuid;

use crate::fixture::{
    Past, conduct, conductor, days_ago, done, end, holding, id_of, past, run_json, told, turn, verified,
};

/// A ledger with a session of each sort; the first is the only one to go.
async fn ledger(bench: &Bench) -> [Past; 4] {
    let journal = bench.journal();
    let old = past(&journal, days_ago(100), "old words");
    end(&journal, &old, days_ago(95));
    let open = past(&journal, days_ago(100), "open words");
    let used = past(&journal, days_ago(100), "used words");
    turn(&journal, used.session, days_ago(80), "used again");
    end(&journal, &used, days_ago(80));
    let new = past(&journal, days_ago(3), "new words");
    end(&journal, &new, days_ago(2));
    ship_all(bench.settings(), &journal).await;
    journal.close();
    [old, open, used, new]
}

/// How many rows of any table tell of a stream.
async fn rows_of(bench: &Bench, stream: Uuid) -> i64 {
    let mut rows = bench.number(&format!("SELECT count(*) FROM frames WHERE stream_id = '{stream}'")).await;
    for table in TABLES {
        let (name, key) = (table.name, table.columns[0].name);
        let whose = match key {
            "session_id" | "process_id" | "connection_id" => key,
            _ if table.has("session_id") => "session_id",
            _ => continue,
        };
        rows += bench.number(&format!("SELECT count(*) FROM {name} WHERE {whose} = '{stream}'")).await;
    }
    rows
}

#[tokio::test]
async fn what_is_old_goes_and_what_is_open_or_was_used_stays() {
    for bench in Bench::both().await {
        let [old, open, used, new] = ledger(&bench).await;
        verified(&bench);
        let before = bench.derived().await;
        let looked = run_json(&bench, &["ledger", "retain", "--older-than", "90d", "--dry-run"]);
        assert_eq!((&looked["sessions"], &looked["open"]), (&1.into(), &1.into()), "{looked}");
        assert_eq!(looked["session_ids"][0], old.session.id.to_string());
        assert_eq!(bench.derived().await, before, "it was only looked");
        let gone = run_json(&bench, &["ledger", "retain", "--older-than", "90d"]);
        for told in ["sessions", "others", "frames", "bytes", "oldest_us", "newest_us"] {
            assert_eq!(gone[told], looked[told], "{told} of {gone}");
        }
        assert_eq!((gone["others"].as_i64(), gone["frames"].as_i64()), (Some(2), Some(12)), "{gone}");
        for stream in [old.session, old.process, old.connection] {
            assert_eq!(rows_of(&bench, stream.id).await, 0, "{stream:?}");
        }
        for stays in [open, used, new] {
            for stream in [stays.session, stays.process, stays.connection] {
                assert!(rows_of(&bench, stream.id).await > 1, "{stream:?}");
            }
        }
        let without = |rows: Vec<String>, past: Past| {
            let ids = [past.session, past.process, past.connection].map(|stream| stream.id.to_string());
            rows.into_iter().filter(|row| !ids.iter().any(|id| row.contains(id))).collect::<Vec<_>>()
        };
        let after = bench.derived().await;
        // What a service left open that runs no more gets its last word.
        let rest = without(without(before, old), open);
        assert_eq!(without(after.clone(), open), rest, "nothing else has changed");
        verified(&bench);
        ledger::rebuild(&bench.settings(), |_| {}).await.unwrap();
        assert_eq!(bench.derived().await, after, "and it is all made of frames");
        let again = run_json(&bench, &["ledger", "retain", "--older-than", "90d"]);
        assert_eq!((&again["sessions"], &again["frames"]), (&0.into(), &0.into()));
        verified(&bench);
        let retained = "SELECT count(*) FROM checkpoints WHERE kind = 'retained'";
        assert_eq!(bench.number(retained).await, 1, "what there was nothing of is not recorded");
    }
}

/// With a service at work: what somebody has open stays, and what goes is gone there, too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_at_work_keeps_what_is_open() {
    let service = service(&json!({})).start();
    let (mut open, kept) = service.session();
    open.turn(&kept, "open words");
    let (mut editor, old) = service.session();
    editor.turn(&old, "old words");
    let closed = conduct(&service, &["sessions", "close", &old]);
    assert_eq!(closed.code, Some(0), "{closed:?}");
    drop(editor);
    let args = ["ledger", "retain", "--older-than", "2s"];
    let found = poll_until(DEADLINE, || {
        let looked = told(&service, &[&args[..], &["--dry-run"]].concat());
        looked["session_ids"] == json!([old]) && looked["open"] == 1
    });
    assert!(found, "the one is old some day, and the other one is not open to that");
    let gone = told(&service, &args);
    assert_eq!((&gone["session_ids"], &gone["open"]), (&json!([old]), &json!(1)), "{gone}");
    assert!(gone["journal_records"].as_u64().unwrap() > 3, "{gone}");
    assert!(holding(&service.state(), "old words").is_empty());
    let listed = open.call("session/list", &json!({}));
    assert!(listed.to_string().contains(&kept) && !listed.to_string().contains(&old), "{listed}");
    assert_eq!(open.turn(&kept, "it goes on"), ["echo: it goes on"]);
    let nothing = conduct(&service, &["sessions", "show", &old]);
    assert_eq!(nothing.code, Some(1), "{nothing:?}");
    let verified = conduct(&service, &["ledger", "verify"]);
    assert_eq!(verified.code, Some(0), "{verified:?}");
    let verified = conduct(&service, &["ledger", "verify", "--session", &old, "--json"]);
    assert_eq!(verified.code, Some(0), "{verified:?}");
    let verified: serde_json::Value = serde_json::from_str(&verified.stdout).unwrap();
    assert_eq!((&verified["ok"], &verified["seen"]["retained"]), (&json!(true), &json!(1)), "{verified}");
}

/// Months of which everything goes are dropped; of others only rows go.
#[tokio::test]
async fn a_month_that_is_all_old_is_dropped() {
    let bench = Bench::postgres(Database::new().await);
    let journal = bench.journal();
    ship_all(bench.settings(), &journal).await;
    // As they were made when these months were ahead.
    let mut admin = bench.database().connect().await;
    for (name, from, to) in [("frames_old", 130, 110), ("frames_mixed", 110, 95)] {
        let (from, to) = (id_of(days_ago(from)), id_of(days_ago(to)));
        let bound = |id: Uuid| Uuid::from_u128(id.as_u128() & (u128::MAX << 80));
        let made = format!(
            "CREATE TABLE {name} PARTITION OF frames FOR VALUES FROM ('{}') TO ('{}')",
            bound(from),
            bound(to)
        );
        admin.execute(AssertSqlSafe(made)).await.unwrap();
    }
    let (first, second) = (past(&journal, days_ago(120), "one"), past(&journal, days_ago(100), "two"));
    for old in [first, second] {
        end(&journal, &old, days_ago(94));
    }
    let stays = past(&journal, days_ago(100), "three");
    ship_all(bench.settings(), &journal).await;
    journal.close();
    assert!(bench.number("SELECT count(*) FROM frames_old").await > 5);
    let gone = run_json(&bench, &["ledger", "retain", "--older-than", "90d"]);
    assert_eq!((&gone["sessions"], &gone["months"]), (&2.into(), &json!(["frames_old"])), "{gone}");
    assert_eq!(bench.number("SELECT count(*) FROM pg_class WHERE relname = 'frames_old'").await, 0);
    let left = "SELECT count(DISTINCT stream_id) FROM frames_mixed";
    assert_eq!(bench.number(left).await, 3, "the open session, its process and its connection");
    assert!(rows_of(&bench, stays.session.id).await > 1);
    verified(&bench);
}

/// Killed between the record and the removal: more was promised than done.
#[tokio::test]
async fn an_entry_without_a_removal_is_harmless_and_is_made_good() {
    for bench in Bench::both().await {
        let [old, ..] = ledger(&bench).await;
        let mut remover = Remover::open(&bench.settings()).await.unwrap();
        let found = remover.old(&Age { before_us: days_ago(90), ..Age::default() }).await.unwrap();
        let log = Log::of_state(bench.settings().evidence).unwrap();
        remover.sign(&log, Kind::Retained, &found.streams, "and then the power went").await.unwrap();
        remover.close().await;
        assert!(rows_of(&bench, old.session.id).await > 1);
        verified(&bench);
        // Before it is done again, the session may even be used.
        let journal = bench.journal();
        turn(&journal, old.session, days_ago(1), "back again");
        ship_all(bench.settings(), &journal).await;
        journal.close();
        verified(&bench);
        let gone = run_json(&bench, &["ledger", "retain", "--older-than", "90d"]);
        assert_eq!(gone["sessions"], 0, "{gone}");
        verified(&bench);
    }
    for bench in Bench::both().await {
        let [old, ..] = ledger(&bench).await;
        let mut remover = Remover::open(&bench.settings()).await.unwrap();
        let found = remover.old(&Age { before_us: days_ago(90), ..Age::default() }).await.unwrap();
        let log = Log::of_state(bench.settings().evidence).unwrap();
        remover.sign(&log, Kind::Retained, &found.streams, "and then the power went").await.unwrap();
        remover.close().await;
        let gone = run_json(&bench, &["ledger", "retain", "--older-than", "90d"]);
        assert_eq!(gone["sessions"], 1, "{gone}");
        assert_eq!(rows_of(&bench, old.session.id).await, 0);
        verified(&bench);
    }
}

/// The role that writes frames cannot let go of any.
#[tokio::test]
async fn the_service_role_is_refused_with_the_remedy() {
    let bench = Bench::postgres(Database::new().await);
    let role = format!("svc_{}", Uuid::now_v7().simple());
    let mut admin = bench.database().connect().await;
    let made = format!("CREATE ROLE {role} LOGIN PASSWORD '{PASSWORD}'");
    admin.execute(AssertSqlSafe(made)).await.unwrap();
    let url = bench.database().url_of(&role).replacen('@', &format!(":{PASSWORD}@"), 1);
    let settings = ledger::Settings {
        url: url.parse().unwrap(),
        owner_url: bench.database().url().parse().unwrap(),
        ..bench.settings()
    };
    let journal = bench.journal();
    let old = past(&journal, days_ago(100), "old words");
    end(&journal, &old, days_ago(95));
    ship_all(settings, &journal).await;
    journal.close();
    let session = old.session.id.to_string();
    for args in [&["retain", "--older-than", "90d"][..], &["erase", "--session", &session]] {
        let args = [&["ledger"][..], args].concat();
        let refused = done(&conductor(&bench, &args).env("CONDUCTOR_LEDGER__URL", &url).output().unwrap());
        assert_eq!(refused.code, Some(1), "{refused:?}");
        assert!(refused.stderr.contains(&role) && refused.stderr.contains("ledger.owner_url"), "{refused:?}");
        assert!(rows_of(&bench, old.session.id).await > 5, "nothing has gone");
    }
    let as_owner = conductor(&bench, &["ledger", "retain", "--older-than", "90d"])
        .env("CONDUCTOR_LEDGER__URL", &url)
        .env("CONDUCTOR_LEDGER__OWNER_URL", bench.database().url())
        .output()
        .unwrap();
    let as_owner = done(&as_owner);
    assert_eq!(as_owner.code, Some(0), "{as_owner:?}");
    assert!(as_owner.stdout.contains("it is removed, and that is on record"), "{as_owner:?}");
    assert_eq!(rows_of(&bench, old.session.id).await, 0);
    for leave in [format!("DROP OWNED BY {role}"), format!("DROP ROLE {role}")] {
        admin.execute(AssertSqlSafe(leave)).await.unwrap();
    }
}

/// A state directory that is not the service's signs nothing, so nothing goes on its word.
#[tokio::test]
async fn another_state_directory_lets_go_of_nothing() {
    let bench = Bench::postgres(Database::new().await);
    let [old, ..] = ledger(&bench).await;
    let elsewhere = Bench::sqlite();
    let refused = conductor(&elsewhere, &["ledger", "retain", "--older-than", "90d"])
        .env("CONDUCTOR_LEDGER__URL", bench.database().url())
        .output()
        .unwrap();
    let refused = done(&refused);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.stderr.contains("run this where the service runs"), "{refused:?}");
    assert!(rows_of(&bench, old.session.id).await > 5);
}

/// A stream of the journal's own never ends, so it never goes.
#[tokio::test]
async fn the_journal_keeps_its_own_stream() {
    let bench = Bench::sqlite();
    let journal = bench.journal();
    let own = Stream { id: journal.id(), kind: StreamKind::Process };
    let note = conductor::record::note(conductor::record::note::RECORDING, &json!({ "state": "stopped" }));
    let from = (conductor::record::Origin::Conductor, conductor::record::Destination::Record);
    crate::fixture::write(&journal, own, days_ago(100), from, &note);
    ship_all(bench.settings(), &journal).await;
    journal.close();
    let gone = run_json(&bench, &["ledger", "retain", "--older-than", "0s"]);
    assert_eq!(gone["frames"], 0, "{gone}");
    assert_eq!(rows_of(&bench, own.id).await, 1);
}
