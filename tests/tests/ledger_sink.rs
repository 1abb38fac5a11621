//! One database to write to, whichever it is: what goes in comes out the same,
//! in both.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

use std::path::Path;

use conductor::{
    ledger::{
        LedgerError, Settings,
        row::{Reached, Row, Stored},
        sink::{Sink, Written},
        table::{Fact, Merge, SESSIONS, TABLES, Type, Value},
    },
    record::{Destination, Origin, StreamKind},
};
use conductor_tests::{
    postgres::{Database, PASSWORD},
    shipping::{Bench, Known, open_file, sorted, stream},
};
use sqlx::{AssertSqlSafe, Executor as _, migrate::Migrator};
use uuid::Uuid;

/// Frames that JSON columns, text columns or parsers choke on.
fn nasty() -> Vec<Vec<u8>> {
    let in_text = |text: &str| {
        format!(r#"{{"jsonrpc":"2.0","method":"session/update","params":{{"text":"{text}"}}}}"#).into_bytes()
    };
    vec![
        in_text(r"a\u0000b"),
        in_text(r"\ud800 alone"),
        in_text(r"\udc00\ud800"),
        format!(r#"{{"jsonrpc":"2.0","method":"x","params":{}{}}}"#, "[".repeat(20_000), "]".repeat(20_000))
            .into(),
        br#"{"jsonrpc":"2.0","method":"x","params":{"n":1e400000,"m":-0,"k":18446744073709551616}}"#.to_vec(),
        br#"{"jsonrpc":"2.0","id":1e400000,"result":{}}"#.to_vec(),
        b"{\"jsonrpc\":\"2.0\",\"method\":\"bad\xff\xfeutf8\"}".to_vec(),
        b"\xef\xbb\xbf{\"jsonrpc\":\"2.0\",\"method\":\"bom\"}".to_vec(),
        b"\0\0\0".to_vec(),
        b"not json at all".to_vec(),
        b"".to_vec(),
        b"{\"jsonrpc\":\"2.0\",\"method\":\"cr\"}\r".to_vec(),
        br#"{"jsonrpc":"2.0","method":"a","method":"b","params":{"x":1,"x":2}}"#.to_vec(),
        format!(r#"{{"jsonrpc":"2.0","method":"{}"}}"#, "m".repeat(70_000)).into_bytes(),
        format!(r#"{{"jsonrpc":"2.0","method":"\u0000{}"}}"#, "\u{10ffff}".repeat(3000)).into_bytes(),
        format!(r#"{{"jsonrpc":"2.0","method":"big","params":"{}"}}"#, "x".repeat((16 << 20) - 64))
            .into_bytes(),
    ]
}

fn row(stream: conductor::record::Stream, seq: i64, raw: &[u8]) -> Row {
    let frame = Stored {
        stream,
        seq,
        at_us: 1_700_000_000_000_000 + seq,
        origin: Origin::Agent,
        to: Destination::Editor,
        outgoing: None,
        raw: raw.to_vec().into(),
        erased: None,
        chain: None,
    };
    frame.project(&mut conductor::ledger::project::State::default())
}

fn known(rows: &[Row]) -> Vec<Known> {
    rows.iter().map(|row| Known { stream: row.stream.id, seq: row.seq, raw: row.raw.to_vec() }).collect()
}

#[tokio::test]
async fn a13_a15_nasty_frames_come_back_byte_for_byte() {
    for bench in Bench::both().await {
        let mut sink = Sink::open(&bench.settings()).await.unwrap();
        let session = stream(StreamKind::Session);
        let rows: Vec<_> = (1..).zip(nasty()).map(|(seq, raw)| row(session, seq, &raw)).collect();
        let written = sink.write(&rows, None).await.unwrap();
        assert_eq!(written.new, rows.len() as u64);
        assert!(bench.frames().await == known(&rows), "{:?}: not the same bytes", bench.settings().url);
    }
}

/// A projection that does not see a value coming must not hold up the rest.
#[tokio::test]
async fn a_value_the_database_refuses_costs_only_itself() {
    for bench in Bench::both().await {
        let mut sink = Sink::open(&bench.settings()).await.unwrap();
        let session = stream(StreamKind::Session);
        let fact =
            |text: &str| Fact::new(SESSIONS, [session.id.into()]).set("title", text).set("frames", 1i64);
        let mut rows: Vec<_> =
            (1..=100).map(|seq| row(session, seq, format!("frame {seq}").as_bytes())).collect();
        for row in &mut rows {
            row.facts = vec![fact("fine")];
        }
        let deep = format!("{}{}", "[".repeat(500_000), "]".repeat(500_000));
        rows[16].envelope.json = Some(r#""\u0000""#.to_owned());
        rows[40].envelope.json = Some(deep);
        rows[41].envelope.json = Some("1e400000".to_owned());
        // Of a session of its own, as a later title would replace it unseen.
        let mut bad = Fact::new(SESSIONS, [Uuid::now_v7().into()]);
        bad.values[6] = Value::Text("with \0 inside".to_owned());
        rows[70].facts.push(bad);
        rows[99].at_us = i64::MIN;
        let refused = if bench.settings().url.is_empty() { 0 } else { 5 };
        let reached = Reached { journal: Uuid::now_v7(), host: "h".to_owned(), segment: 3, offset: 9 };
        let written = sink.write(&rows, Some(&reached)).await.unwrap();
        assert_eq!(written, Written { new: 100, conflicts: 0, stripped: refused, rechained: 0 });
        assert_eq!(bench.frames().await, known(&rows));
        let counted = bench.number("SELECT CAST(sum(frames) AS BIGINT) FROM sessions").await;
        assert_eq!(counted, 100 - i64::try_from(refused).unwrap());
        assert_eq!(sink.reached(reached.journal).await.unwrap(), Some((3, 9)));
    }
}

#[tokio::test]
async fn a_frame_that_is_there_already_is_left_alone() {
    for bench in Bench::both().await {
        let mut sink = Sink::open(&bench.settings()).await.unwrap();
        let session = stream(StreamKind::Session);
        let rows = |upto: i64| -> Vec<Row> {
            let all = (1..=upto).map(|seq| {
                let mut row = row(session, seq, format!("frame {seq}").as_bytes());
                row.facts = vec![Fact::new(SESSIONS, [session.id.into()]).set("frames", 1i64)];
                row
            });
            all.collect()
        };
        assert_eq!(sink.write(&rows(70), None).await.unwrap().new, 70);
        let again = sink.write(&rows(100), None).await.unwrap();
        assert_eq!(again, Written { new: 30, ..Written::default() });
        assert_eq!(sink.write(&rows(100), None).await.unwrap(), Written::default());
        assert_eq!(bench.frames().await, known(&rows(100)));
        assert_eq!(bench.number("SELECT CAST(sum(frames) AS BIGINT) FROM sessions").await, 100);
    }
}

#[tokio::test]
async fn d10_another_frame_under_the_same_number_is_kept_beside_it() {
    for bench in Bench::both().await {
        let mut sink = Sink::open(&bench.settings()).await.unwrap();
        let session = stream(StreamKind::Session);
        let first = [row(session, 1, b"one"), row(session, 2, b"two")];
        sink.write(&first, None).await.unwrap();
        let second = [row(session, 1, b"one"), row(session, 2, b"other"), row(session, 3, b"three")];
        let reached = Reached { journal: Uuid::now_v7(), host: "h".to_owned(), segment: 1, offset: 1 };
        for (new, conflicts) in [(1, 1), (0, 1)] {
            let written = sink.write(&second, Some(&reached)).await.unwrap();
            assert_eq!(written, Written { new, conflicts, stripped: 0, rechained: 0 });
        }
        let frames: Vec<_> = bench.frames().await.into_iter().map(|frame| frame.raw).collect();
        assert_eq!(frames, [b"one".to_vec(), b"two".to_vec(), b"three".to_vec()]);
        assert_eq!(bench.number("SELECT count(*) FROM frame_conflicts").await, 1);
        assert_eq!(bench.number("SELECT seq FROM frame_conflicts").await, 2);
    }
}

/// A value of each type, and another one.
fn value(kind: Type, which: u8) -> Value {
    let which_int = i64::from(which);
    match kind {
        Type::Id => Value::Id(Uuid::from_u128(u128::from(which))),
        Type::Int => Value::Int(which_int * 7 % 5),
        Type::Real => Value::Real(f64::from(which) / 4.0),
        Type::Bool => Value::Bool(which.is_multiple_of(2)),
        Type::Text => Value::Text(format!("t{which}'\"é")),
        Type::Json => Value::Json(format!(r#"{{"n":{which}}}"#)),
    }
}

/// Every statement that is made for a derived table, on both databases, with
/// every combination of null and not null: the rows are those that the merge in
/// memory makes, wherever the facts are cut into batches.
#[tokio::test]
async fn rows_are_merged_in_the_database_as_in_memory() {
    let mut outcomes = Vec::new();
    for bench in Bench::both().await {
        for batches in [1, 3] {
            let mut sink = Sink::open(&bench.settings()).await.unwrap();
            let session = stream(StreamKind::Session);
            let rows: Vec<Row> = (0..9u8)
                .map(|which| {
                    let mut row = row(session, i64::from(which) + 1, b"x");
                    row.facts.clear();
                    for (number, table) in TABLES.iter().enumerate() {
                        for key in 0..70u8 {
                            // Each key has its own pattern of nulls.
                            let mut values: Vec<_> = Vec::new();
                            for (at, column) in table.columns.iter().enumerate() {
                                let is_null = (u32::from(key) >> ((usize::from(which) + at) % 3)) & 1 == 0;
                                values.push(match (at < table.key, is_null) {
                                    (true, _) => match column.kind {
                                        Type::Int => Value::Int(i64::from(key)),
                                        Type::Text => Value::Text(format!("k{key:02}")),
                                        _ => Value::Id(Uuid::from_u128(u128::from(key) + 1)),
                                    },
                                    (false, true) => Value::Null,
                                    (false, false) => value(column.kind, which),
                                });
                            }
                            row.facts.push(Fact { table: number, values });
                        }
                    }
                    row
                })
                .collect();
            for part in rows.chunks(rows.len().div_ceil(batches)) {
                sink.write(part, None).await.unwrap();
            }
            outcomes.push(bench.derived().await);
            // As a rebuild does it.
            sink.begin(true).await.unwrap();
            let lifted = sink.lift("decisions").await.unwrap();
            let cleared: Vec<_> = TABLES.iter().map(|table| format!("DELETE FROM {}", table.name)).collect();
            sink.run_long(AssertSqlSafe(cleared.join("; "))).await.unwrap();
            sink.put_back(lifted).await.unwrap();
            sink.run("COMMIT").await.unwrap();
        }
    }
    assert!(TABLES.iter().any(|table| table.columns.iter().any(|column| column.merge == Merge::Append)));
    assert_eq!(outcomes[0].len(), TABLES.len() * 70);
    for outcome in &outcomes[1..] {
        assert_eq!(*outcome, outcomes[0]);
    }
}

#[tokio::test]
async fn frames_are_read_back_in_pages_and_in_order() {
    for bench in Bench::both().await {
        let mut sink = Sink::open(&bench.settings()).await.unwrap();
        let streams =
            [stream(StreamKind::Session), stream(StreamKind::Process), stream(StreamKind::Connection)];
        let mut all = Vec::new();
        for stream in streams {
            let rows: Vec<_> =
                (1..=600).map(|seq| row(stream, seq, format!("{} {seq}", stream.id).as_bytes())).collect();
            sink.write(&rows, None).await.unwrap();
            all.extend(known(&rows));
        }
        let mut read = Vec::new();
        let (mut after, mut seq) = (Uuid::nil(), 0);
        loop {
            let page = sink.frames_after(after, seq).await.unwrap();
            let Some(last) = page.last() else { break };
            (after, seq) = (last.stream.id, last.seq);
            read.extend(page.into_iter().map(|frame| {
                assert!(streams.contains(&frame.stream));
                Known { stream: frame.stream.id, seq: frame.seq, raw: frame.raw.to_vec() }
            }));
        }
        assert_eq!(read, sorted(all));
        let part = sink.frames_of(streams[1].id, 590, 595).await.unwrap();
        assert_eq!(part.iter().map(|frame| frame.seq).collect::<Vec<_>>(), [591, 592, 593, 594]);
        assert_eq!(part[0].origin, Origin::Agent);
        assert_eq!(part[0].to, Destination::Editor);
    }
}

#[tokio::test]
async fn d9_a_newer_schema_is_refused_with_both_versions() {
    for bench in Bench::both().await {
        drop(Sink::open(&bench.settings()).await.unwrap());
        let later = "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time) \
            VALUES (9999, 'later', TRUE, '', 0)";
        if bench.settings().url.is_empty() {
            open_file(&bench.file()).await.execute(later).await.unwrap();
        } else {
            bench.database().connect().await.execute(later).await.unwrap();
        }
        let refused = Sink::open(&bench.settings()).await.unwrap_err();
        assert!(matches!(refused, LedgerError::Newer { found: 9999, .. }), "{refused}");
        let text = refused.to_string();
        assert!(text.contains("9999") && text.contains("upgrade the conductor"), "{text}");
    }
}

/// A ledger as version 2 has left it: what was decided then, the owner has.
#[tokio::test]
async fn c10_an_older_schema_is_brought_up_to_date() {
    let decisions = "INSERT INTO decisions (session_id, seq, user_name, decision, decided_by) VALUES \
        ('01900000-0000-7000-8000-000000000001', 1, 'ann', 'allow', 'editor'), \
        ('01900000-0000-7000-8000-000000000001', 2, 'ann', 'cancelled', 'conductor'), \
        ('01900000-0000-7000-8000-000000000001', 3, 'ann', NULL, NULL)";
    // A view of an auditor's own.
    let theirs = "CREATE VIEW theirs AS SELECT seq FROM decision_log";
    for bench in Bench::both().await {
        let migrations = Path::new(env!("CARGO_MANIFEST_DIR")).join("../migrations");
        if bench.settings().url.is_empty() {
            std::fs::write(bench.file(), b"").unwrap();
            let mut file = open_file(&bench.file()).await;
            older(&migrations.join("sqlite")).await.run_direct(None, &mut file, false).await.unwrap();
            file.execute(decisions).await.unwrap();
            file.execute(theirs).await.unwrap();
        } else {
            let mut owner = bench.database().connect().await;
            older(&migrations.join("postgres")).await.run_direct(None, &mut owner, false).await.unwrap();
            owner.execute(decisions).await.unwrap();
            owner.execute(theirs).await.unwrap();
        }
        assert_eq!(bench.number("SELECT max(version) FROM _sqlx_migrations").await, 2);
        let mut sink = Sink::open(&bench.settings()).await.unwrap();
        sink.write(&[row(stream(StreamKind::Session), 1, b"x")], None).await.unwrap();
        let newest = Migrator::new(migrations.join("sqlite")).await.unwrap();
        let newest = newest.iter().map(|migration| migration.version).max().unwrap();
        assert!(newest > 2);
        assert_eq!(bench.number("SELECT max(version) FROM _sqlx_migrations").await, newest);
        let known = "SELECT count(*) FROM decision_log WHERE decided_user = 'ann' AND seq = 1";
        assert_eq!(bench.number(known).await, 1);
        assert_eq!(bench.number("SELECT count(decided_user) FROM decisions").await, 1);
        assert_eq!(bench.number("SELECT count(*) FROM theirs").await, 3);
    }
}

/// The migrations up to version 2.
async fn older(folder: &Path) -> Migrator {
    let all = Migrator::new(folder).await.unwrap();
    Migrator::with_migrations(all.iter().filter(|migration| migration.version <= 2).cloned().collect())
}

#[tokio::test]
async fn many_may_migrate_at_once() {
    for bench in Bench::both().await {
        let settings = bench.settings();
        let opening = (0..6).map(|_| {
            let settings = settings.clone();
            tokio::spawn(async move { Sink::open(&settings).await.map(drop) })
        });
        for opened in opening.collect::<Vec<_>>() {
            opened.await.unwrap().unwrap();
        }
    }
}

/// The role that writes can add frames and nothing else; the owner makes the
/// tables and gives it its rights.
#[tokio::test]
async fn d9_the_writing_role_can_add_frames_but_not_change_them() {
    let bench = Bench::postgres(Database::new().await);
    let (database, role) = (bench.database(), format!("w_{}", Uuid::now_v7().simple()));
    let mut admin = database.connect().await;
    admin.execute(AssertSqlSafe(format!("CREATE ROLE {role} LOGIN PASSWORD 'writer-word'"))).await.unwrap();
    let password = bench.state().join("password");
    std::fs::write(&password, "writer-word\n").unwrap();
    let alone = Settings { password_file: Some(password), ..bench.settings_at(&database.url_of(&role)) };
    // Without an owner nobody makes the tables, and it says what to do.
    let error = Sink::open(&alone).await.unwrap_err().to_string();
    assert!(error.contains("ledger.owner_url"), "{error}");
    let settings = Settings { owner_url: database.url().parse().unwrap(), ..alone.clone() };
    let mut sink = Sink::open(&settings).await.unwrap();
    let session = stream(StreamKind::Session);
    let rows = [row(session, 1, b"one")];
    sink.write(&rows, None).await.unwrap();
    // Once it is up to date, the owner is not needed any more.
    let mut sink = Sink::open(&alone).await.unwrap();
    sink.write(&[row(session, 2, b"two")], None).await.unwrap();
    for forbidden in
        ["UPDATE frames SET seq = 5", "DELETE FROM frames", "DELETE FROM sessions", "DROP TABLE frames"]
    {
        let refused = sink.run(forbidden).await.unwrap_err().to_string();
        assert!(refused.contains("42501"), "{forbidden}: {refused}");
    }
    for secret in [PASSWORD, "writer-word"] {
        assert!(!format!("{settings:?}").contains(secret));
    }
    drop(sink);
    let leave = format!("DROP OWNED BY {role}; DROP ROLE {role}");
    sqlx::raw_sql(AssertSqlSafe(leave)).execute(&mut admin).await.unwrap();
}

#[tokio::test]
async fn a_socket_is_as_good_as_tcp() {
    let bench = Bench::postgres(Database::new().await);
    let settings = bench.settings_at(&bench.database().socket_url());
    let mut sink = Sink::open(&settings).await.unwrap();
    sink.write(&[row(stream(StreamKind::Session), 1, b"x")], None).await.unwrap();
    assert_eq!(bench.frames().await.len(), 1);
}

#[tokio::test]
async fn frames_land_in_the_partition_of_their_month() {
    let bench = Bench::postgres(Database::new().await);
    let mut sink = Sink::open(&bench.settings()).await.unwrap();
    sink.write(&[row(stream(StreamKind::Session), 1, b"x")], None).await.unwrap();
    assert_eq!(bench.number("SELECT count(*) FROM frames_default").await, 0);
    assert_eq!(bench.number("SELECT count(*) FROM frames").await, 1);
}

#[tokio::test]
async fn the_embedded_ledger_syncs_what_it_commits() {
    let bench = Bench::sqlite();
    let Sink::Sqlite(mut sink) = Sink::open(&bench.settings()).await.unwrap() else { panic!("not SQLite") };
    let full: i64 = sqlx::query_scalar("PRAGMA synchronous").fetch_one(sink.connection()).await.unwrap();
    assert_eq!(full, 2, "a commit that a power loss takes back would be a loss: the journal lets go of it");
    let mode: String = sqlx::query_scalar("PRAGMA journal_mode").fetch_one(sink.connection()).await.unwrap();
    assert_eq!(mode, "wal");
}
