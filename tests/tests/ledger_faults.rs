//! Whatever happens to the database, the ledger ends up with every frame, once,
//! and the sessions notice nothing: rows D1–D12 of `tests/faults`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

use std::{
    fs,
    os::unix::fs::FileExt as _,
    time::{Duration, Instant},
};

use conductor::{
    config::Recording,
    journal::{self, Batch, Class},
    ledger::{LedgerError, Settings},
    record::{Destination, Origin, StreamKind, now_us},
    tasks::Tasks,
};
use conductor_tests::{
    postgres::{Database, PASSWORD, Postgres},
    proxy::Proxy,
    shipping::{
        Bench, Known, append, caught_up, down, down_because, open_file, open_session, refused, session, ship,
        ship_all, sorted, stream, synced, turn,
    },
};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _};

async fn private() -> Bench {
    Bench::postgres(Postgres::start_private().database().await)
}

/// Frames that take some time to write.
fn much(journal: &journal::Journal) -> Vec<Known> {
    (0..4).flat_map(|_| session(journal, 25).1).collect()
}

#[tokio::test]
async fn d1_absent_at_start_and_there_later() {
    let bench = private().await;
    bench.database().server().stop();
    let (journal, tasks) = (bench.journal(), Tasks::default());
    let frames = session(&journal, 3).1;
    let ledger = ship(bench.settings(), &journal, &tasks).await;
    let why = down(&ledger).await;
    assert!(!why.contains(PASSWORD), "{why}");
    synced(&journal).await;
    assert!(ledger.status().behind_bytes > 0);
    assert!(journal.refusing().is_none(), "durable recording needs no ledger");
    bench.database().server().start();
    caught_up(&ledger, &journal).await;
    assert_eq!(bench.frames().await, sorted(frames));
    assert!(ledger.status().progress.down.is_none());
    assert_eq!(ledger.status().behind_bytes, 0);
}

#[tokio::test]
async fn d1_strict_recording_refuses_effects_until_it_is_there() {
    let bench = private().await;
    bench.database().server().stop();
    let journal =
        bench.journal_with(journal::Settings { recording: Recording::Strict, ..Default::default() });
    let tasks = Tasks::default();
    let ledger = ship(bench.settings(), &journal, &tasks).await;
    down(&ledger).await;
    let refusing = journal.refusing().expect("effects must be refused");
    assert!(refusing.contains("ledger"), "{refusing}");
    bench.database().server().start();
    ledger.progress().wait_for(|progress| progress.down.is_none()).await.unwrap();
    let session = stream(StreamKind::Session);
    let mut batch = Batch::new();
    batch.push(
        session,
        1,
        now_us(),
        Origin::Editor,
        Destination::Agent,
        &[],
        [b"effect".as_slice()].into_iter(),
    );
    let ticket = journal.append(batch, Class::Effect).unwrap();
    journal.released(ticket).await.unwrap();
    let there = bench.frames().await.iter().any(|frame| frame.stream == session.id && frame.raw == b"effect");
    assert!(there, "released means that the ledger has it");
}

#[tokio::test]
async fn d2_down_again_and_again_under_load() {
    let bench = private().await;
    let (journal, tasks) = (bench.journal(), Tasks::default());
    let ledger = ship(bench.settings(), &journal, &tasks).await;
    let mut frames = Vec::new();
    for _ in 0..3 {
        frames.extend(much(&journal));
        bench.database().server().stop();
        frames.extend(much(&journal));
        down(&ledger).await;
        bench.database().server().start();
    }
    caught_up(&ledger, &journal).await;
    assert_eq!(bench.frames().await, sorted(frames));
    assert_eq!(bench.number("SELECT count(*) FROM frame_conflicts").await, 0);
}

#[tokio::test]
async fn d3_a_killed_backend_costs_nothing() {
    let bench = private().await;
    let (journal, tasks) = (bench.journal(), Tasks::default());
    let ledger = ship(bench.settings(), &journal, &tasks).await;
    let mut admin = bench.database().connect().await;
    let mut frames = Vec::new();
    for _ in 0..5 {
        frames.extend(much(&journal));
        synced(&journal).await;
        let kill = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'conductor'";
        admin.execute(kill).await.unwrap();
    }
    caught_up(&ledger, &journal).await;
    assert_eq!(bench.frames().await, sorted(frames));
}

#[tokio::test]
async fn d4_a_killed_postmaster_costs_nothing() {
    let bench = private().await;
    let (journal, tasks) = (bench.journal(), Tasks::default());
    let ledger = ship(bench.settings(), &journal, &tasks).await;
    let mut frames = much(&journal);
    caught_up(&ledger, &journal).await;
    for _ in 0..2 {
        frames.extend(much(&journal));
        synced(&journal).await;
        bench.database().server().kill();
        frames.extend(much(&journal));
        bench.database().server().start();
    }
    caught_up(&ledger, &journal).await;
    assert_eq!(bench.frames().await, sorted(frames));
    assert_eq!(bench.number("SELECT count(*) FROM frame_conflicts").await, 0);
}

#[tokio::test]
async fn d5_a_lost_answer_to_a_commit_brings_nothing_twice() {
    let bench = Bench::postgres(Database::new().await);
    let proxy = Proxy::to(bench.database().server().port()).await;
    let (journal, tasks) = (bench.journal(), Tasks::default());
    let settings = bench.settings_at(&bench.database().url_at(proxy.port()));
    let ledger = ship(settings, &journal, &tasks).await;
    let (first, mut frames) = session(&journal, 1);
    caught_up(&ledger, &journal).await;
    for round in 2..5 {
        proxy.lose_answer_to(b"COMMIT\0");
        frames.extend(turn(&journal, first, round));
        proxy.lost().await;
        caught_up(&ledger, &journal).await;
    }
    assert_eq!(bench.frames().await, sorted(frames));
    let progress = ledger.status().progress;
    assert_eq!((progress.written.conflicts, progress.written.stripped), (0, 0));
    // Facts that add up would show what came twice.
    let [other, same] = [Bench::sqlite(), bench];
    copy_into(&same, &other).await;
    assert_eq!(same.derived().await, other.derived().await);
}

/// Makes the other ledger from the frames of one.
async fn copy_into(from: &Bench, to: &Bench) {
    use conductor::ledger::sink::Sink;
    let mut source = Sink::open(&from.settings()).await.unwrap();
    let mut target = Sink::open(&to.settings()).await.unwrap();
    let mut state = conductor::ledger::project::State::default();
    let page = source.frames_after(uuid::Uuid::nil(), 0).await.unwrap();
    let stream = page[0].stream;
    let rows: Vec<_> =
        page.into_iter().filter(|frame| frame.stream == stream).map(|f| f.project(&mut state)).collect();
    target.write(&rows, None).await.unwrap();
}

#[tokio::test]
async fn d6_a_lock_only_makes_the_queue_longer() {
    let bench = Bench::postgres(Database::new().await);
    let (journal, tasks) = (bench.journal(), Tasks::default());
    let ledger = ship(bench.settings(), &journal, &tasks).await;
    let mut frames = session(&journal, 1).1;
    caught_up(&ledger, &journal).await;
    let mut admin = bench.database().connect().await;
    let mut lock = admin.begin().await.unwrap();
    lock.execute("LOCK TABLE frames IN ACCESS EXCLUSIVE MODE").await.unwrap();
    frames.extend(much(&journal));
    synced(&journal).await;
    // Appending goes on at its own pace meanwhile.
    let begun = Instant::now();
    frames.extend(much(&journal));
    assert!(begun.elapsed() < Duration::from_secs(5), "a lock in the database must not hold up the journal");
    let why = down_because(&ledger, "lock").await;
    assert!(why.contains("55P03"), "{why}");
    assert!(ledger.status().behind_bytes > 0);
    lock.rollback().await.unwrap();
    caught_up(&ledger, &journal).await;
    assert_eq!(bench.frames().await, sorted(frames));
}

#[tokio::test]
async fn d7_a_slow_server_gets_larger_batches_one_at_a_time() {
    let bench = Bench::postgres(Database::new().await);
    let proxy = Proxy::to(bench.database().server().port()).await;
    let (journal, tasks) = (bench.journal(), Tasks::default());
    let settings = bench.settings_at(&bench.database().url_at(proxy.port()));
    let ledger = ship(settings, &journal, &tasks).await;
    let (first, mut frames) = session(&journal, 1);
    caught_up(&ledger, &journal).await;
    let before = ledger.status().progress;
    let connections = proxy.connections();
    proxy.delay_answers(Duration::from_millis(150));
    // Each turn is synced by itself, so each could be a batch of its own.
    let turns = 60;
    for number in 2..2 + turns {
        frames.extend(turn(&journal, first, number));
        synced(&journal).await;
    }
    caught_up(&ledger, &journal).await;
    let after = ledger.status().progress;
    assert_eq!(proxy.connections(), connections, "one connection, which is slow but not lost");
    assert!(after.down.is_none());
    let batches = after.batches - before.batches;
    assert!(batches < turns / 2, "{batches} batches for {turns} turns: they do not grow");
    proxy.delay_answers(Duration::ZERO);
    assert_eq!(bench.frames().await, sorted(frames));
}

#[tokio::test]
async fn d8_a_full_disk_of_the_database_is_waited_out() {
    let bench = private().await;
    let (journal, tasks) = (bench.journal(), Tasks::default());
    let ledger = ship(bench.settings(), &journal, &tasks).await;
    let (first, mut frames) = session(&journal, 1);
    caught_up(&ledger, &journal).await;
    // The write-ahead log has files of 16 MiB and still fits.
    bench.database().server().limit_files(Some(17 << 20));
    bench.database().connect().await.execute("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'conductor'").await.unwrap();
    let large: Vec<Vec<u8>> = (0..4).map(noise).collect();
    for line in &large {
        frames.extend(append(
            &journal,
            first,
            Origin::Agent,
            Destination::Editor,
            std::slice::from_ref(line),
        ));
    }
    down_because(&ledger, "could not extend file").await;
    assert!(journal.refusing().is_none());
    bench.database().server().limit_files(None);
    caught_up(&ledger, &journal).await;
    assert!(bench.frames().await == sorted(frames), "all frames must be there");
}

/// Eight megabytes that no database can compress, without a newline.
fn noise(seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    (0..8 << 20)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            let byte = (state >> 32) as u8;
            if byte == b'\n' { b' ' } else { byte }
        })
        .collect()
}

#[tokio::test]
async fn d9_a_read_only_database_is_named_and_waited_out() {
    let bench = Bench::postgres(Database::new().await);
    let (journal, tasks) = (bench.journal(), Tasks::default());
    ship_all(bench.settings(), &journal).await;
    let mut admin = bench.database().connect().await;
    let name = bench.database().name();
    let read_only = format!("ALTER DATABASE {name} SET default_transaction_read_only = on");
    admin.execute(AssertSqlSafe(read_only)).await.unwrap();
    let frames = session(&journal, 2).1;
    let ledger = ship(bench.settings(), &journal, &tasks).await;
    down_because(&ledger, "read-only").await;
    admin
        .execute(AssertSqlSafe(format!("ALTER DATABASE {name} RESET default_transaction_read_only")))
        .await
        .unwrap();
    caught_up(&ledger, &journal).await;
    assert_eq!(bench.frames().await, sorted(frames));
}

#[tokio::test]
async fn d9_a_role_without_rights_is_named_and_waited_out() {
    let bench = Bench::postgres(Database::new().await);
    let role = format!("poor_{}", uuid::Uuid::now_v7().simple());
    let mut admin = bench.database().connect().await;
    let (journal, tasks) = (bench.journal(), Tasks::default());
    ship_all(bench.settings(), &journal).await;
    let make = format!(
        "CREATE ROLE {role} LOGIN PASSWORD 'poor-word'; GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}"
    );
    sqlx::raw_sql(AssertSqlSafe(make)).execute(&mut admin).await.unwrap();
    let file = bench.state().join("password");
    fs::write(&file, "poor-word").unwrap();
    let url = bench.database().url_of(&role);
    let settings = Settings { password_file: Some(file), ..bench.settings_at(&url) };
    let frames = session(&journal, 1).1;
    let ledger = ship(settings, &journal, &tasks).await;
    let why = down_because(&ledger, "grant the role its rights").await;
    assert!(why.contains("permission denied"), "{why}");
    let grant = format!("GRANT INSERT, UPDATE ON ALL TABLES IN SCHEMA public TO {role}");
    sqlx::raw_sql(AssertSqlSafe(grant)).execute(&mut admin).await.unwrap();
    caught_up(&ledger, &journal).await;
    assert_eq!(bench.frames().await, sorted(frames));
    ledger.stop().await;
    let leave = format!("DROP OWNED BY {role}; DROP ROLE {role}");
    sqlx::raw_sql(AssertSqlSafe(leave)).execute(&mut admin).await.unwrap();
}

#[tokio::test]
async fn d9_a_newer_schema_keeps_the_service_from_starting() {
    for bench in Bench::both().await {
        let journal = bench.journal();
        ship_all(bench.settings(), &journal).await;
        let later = "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time) \
            VALUES (9999, 'later', TRUE, '', 0)";
        match bench.settings().url.is_empty() {
            true => drop(open_file(&bench.file()).await.execute(later).await.unwrap()),
            false => drop(bench.database().connect().await.execute(later).await.unwrap()),
        }
        let error = refused(bench.settings(), &journal).await;
        assert!(matches!(error, LedgerError::Newer { found: 9999, .. }), "{error}");
    }
}

#[tokio::test]
async fn d11_a_rotated_password_needs_no_restart() {
    let bench = Bench::postgres(Database::new().await);
    let role = format!("rot_{}", uuid::Uuid::now_v7().simple());
    let mut admin = bench.database().connect().await;
    let make = format!("CREATE ROLE {role} SUPERUSER LOGIN PASSWORD 'first-word'");
    admin.execute(AssertSqlSafe(make)).await.unwrap();
    let file = bench.state().join("password");
    fs::write(&file, "first-word\n").unwrap();
    let url = bench.database().url_of(&role);
    let settings = Settings { password_file: Some(file.clone()), ..bench.settings_at(&url) };
    let (journal, tasks) = (bench.journal(), Tasks::default());
    let ledger = ship(settings, &journal, &tasks).await;
    let (first, mut frames) = session(&journal, 1);
    caught_up(&ledger, &journal).await;
    let rotate = format!(
        "ALTER ROLE {role} PASSWORD 'second-word'; \
         SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename = '{role}'"
    );
    sqlx::raw_sql(AssertSqlSafe(rotate)).execute(&mut admin).await.unwrap();
    frames.extend(turn(&journal, first, 2));
    let why = down_because(&ledger, "password").await;
    assert!(why.contains("ledger.password_file") && !why.contains("first-word"), "{why}");
    fs::write(&file, "second-word\n").unwrap();
    caught_up(&ledger, &journal).await;
    assert_eq!(bench.frames().await, sorted(frames));
    ledger.stop().await;
    let leave = format!("DROP OWNED BY {role}; DROP ROLE {role}");
    sqlx::raw_sql(AssertSqlSafe(leave)).execute(&mut admin).await.unwrap();
}

#[tokio::test]
async fn d12_a_locked_file_is_waited_for() {
    let bench = Bench::sqlite();
    let (journal, tasks) = (bench.journal(), Tasks::default());
    let ledger = ship(bench.settings(), &journal, &tasks).await;
    let (first, mut frames) = session(&journal, 1);
    caught_up(&ledger, &journal).await;
    let mut other = open_file(&bench.file()).await;
    other.execute("BEGIN IMMEDIATE").await.unwrap();
    frames.extend(turn(&journal, first, 2));
    let why = down_because(&ledger, "locked").await;
    assert!(why.contains("another program"), "{why}");
    other.execute("ROLLBACK").await.unwrap();
    caught_up(&ledger, &journal).await;
    assert_eq!(bench.frames().await, sorted(frames));
}

/// Damage at the begin of the file, where it is no database any more, and in
/// its midst, where a page is not what it should be.
#[tokio::test]
async fn d12_a_damaged_file_is_moved_aside_and_filled_again() {
    for damage in [0, 4096] {
        let bench = Bench::sqlite();
        let journal = bench.journal();
        let (first, mut frames) = session(&journal, 3);
        ship_all(bench.settings(), &journal).await;
        let file = fs::OpenOptions::new().write(true).open(bench.file()).unwrap();
        let length = file.metadata().unwrap().len();
        file.write_all_at(&vec![0xa5; usize::try_from(length - damage).unwrap()], damage).unwrap();
        for part in ["-wal", "-shm"] {
            let _ = fs::remove_file(format!("{}{part}", bench.file().display()));
        }
        frames.extend(turn(&journal, first, 4));
        let progress = ship_all(bench.settings(), &journal).await;
        let aside = progress.set_aside.expect("the damaged file is kept");
        assert!(length > 4096 && fs::metadata(&aside).unwrap().len() == length);
        assert_eq!(bench.frames().await, sorted(frames), "the journal still has everything");
    }
}

#[tokio::test]
async fn a_stop_carries_over_what_is_synced_and_a_start_goes_on() {
    for bench in Bench::both().await {
        let (mut frames, mut journal) = (Vec::new(), bench.journal());
        let first = stream(StreamKind::Session);
        frames.extend(open_session(&journal, first));
        for number in 1..=4 {
            frames.extend(turn(&journal, first, number));
            synced(&journal).await;
            let tasks = Tasks::default();
            let ledger = ship(bench.settings(), &journal, &tasks).await;
            ledger.stop().await;
            tasks.ended().await;
            assert_eq!(bench.frames().await, sorted(frames.clone()));
            journal.close();
            journal = bench.journal();
        }
        // Turns that began before a restart are known after it.
        assert_eq!(bench.number("SELECT count(*) FROM turns WHERE stop_reason = 'end_turn'").await, 4);
        assert_eq!(bench.number("SELECT count(*) FROM sessions WHERE user_name = 'ann'").await, 1);
    }
}

#[tokio::test]
async fn a_stop_does_not_wait_for_a_database_that_is_gone() {
    let bench = private().await;
    let (journal, tasks) = (bench.journal(), Tasks::default());
    let ledger = ship(bench.settings(), &journal, &tasks).await;
    caught_up(&ledger, &journal).await;
    bench.database().server().stop();
    session(&journal, 1);
    down(&ledger).await;
    let begun = Instant::now();
    ledger.stop().await;
    assert!(begun.elapsed() < Duration::from_secs(2));
}

/// The database was put back to an older state: what came after is brought
/// again from the journal.
#[tokio::test]
async fn a_restored_backup_is_filled_up_again() {
    for bench in Bench::both().await {
        let journal = bench.journal();
        let mut frames = session(&journal, 3).1;
        ship_all(bench.settings(), &journal).await;
        let back = "DELETE FROM journals";
        match bench.settings().url.is_empty() {
            true => drop(open_file(&bench.file()).await.execute(back).await.unwrap()),
            false => drop(bench.database().connect().await.execute(back).await.unwrap()),
        }
        let before = bench.derived().await;
        let progress = ship_all(bench.settings(), &journal).await;
        assert_eq!(progress.written.new, 0, "all of it is there");
        assert_eq!(bench.derived().await, before, "nothing is counted twice");
        frames.extend(session(&journal, 1).1);
        ship_all(bench.settings(), &journal).await;
        assert_eq!(bench.frames().await, sorted(frames));
    }
}

#[tokio::test]
async fn settings_that_make_no_sense_are_refused_at_once() {
    let bench = Bench::sqlite();
    let journal = bench.journal();
    let owner = Settings { owner_url: "postgres://o:owner-word@h/d".parse().unwrap(), ..bench.settings() };
    let password = Settings { password_file: Some("/nowhere".into()), ..bench.settings() };
    for settings in [owner, password] {
        let shown = format!("{settings:?}");
        let error = refused(settings, &journal).await;
        assert!(matches!(error, LedgerError::Settings(_)), "{error}");
        assert!(!shown.contains("owner-word") && !error.to_string().contains("owner-word"));
    }
}
