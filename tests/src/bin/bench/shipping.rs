//! The ledger, against what its database can do: the same frames put into the same tables with nothing else to do.

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use conductor::{
    journal::{self, Journal},
    ledger::{Ledger, Settings, row, sink::Sink, upsert},
    record::StreamKind,
    tasks::Tasks,
};
use conductor_tests::postgres::{PASSWORD, Postgres};
use sqlx::{
    AssertSqlSafe, ConnectOptions as _, Connection as _, Executor as _, PgConnection, Row as _,
    SqlSafeStr as _,
    postgres::PgConnectOptions,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous},
};
use tokio::{runtime::Runtime, time::timeout};
use tokio_stream::StreamExt as _;
use uuid::Uuid;

use crate::{
    frames::{Filled, fill, synced},
    measure::rate,
    rows::{Rows, Shipped},
};

/// Pieces in which a COPY is sent.
const PIECE: usize = 256 << 10;

/// Rows of one INSERT.
const ROWS: usize = 64;

/// What a real agent streams at most, in frames per second.
const REAL_TIME: f64 = 500.0;

/// Longest wait for the database.
const PATIENCE: Duration = Duration::from_secs(100);

/// One round of one database, in both ways: frames of processes, which tell of nothing, and frames of sessions.
pub fn round(
    dir: &Path,
    runtime: &Runtime,
    server: Option<&Postgres>,
    frames: usize,
    rows: &mut Rows,
) -> Result<()> {
    for (kind, derived) in [(StreamKind::Process, false), (StreamKind::Session, true)] {
        let state = dir.join("ledger");
        fs::create_dir_all(&state)?;
        let (journal, _) = Journal::open(&state.join("journal"), journal::Settings::default())?;
        let filled = fill(&journal, runtime, kind, frames)?;
        runtime.block_on(synced(&journal))?;
        let raw = filled.raw as f64 / filled.frames as f64;
        let per_frame = |bytes: i64| bytes as f64 / filled.frames as f64;
        if derived {
            rows.journal_bytes.pair(raw, per_frame(i64::try_from(journal.status().bytes)?));
        }
        if let Some(server) = server {
            let measured = runtime.block_on(postgres(server, &state, &journal, filled))?;
            note(&mut rows.postgres, &measured, raw, per_frame(measured.bytes), derived);
        }
        let measured = runtime.block_on(sqlite(&state, &journal, filled))?;
        note(&mut rows.sqlite, &measured, raw, per_frame(measured.bytes), derived);
        journal.close();
        fs::remove_dir_all(&state)?;
    }
    Ok(())
}

struct Measured {
    /// Frames per second by the database alone.
    limit: f64,
    /// And by the shipper.
    shipped: f64,
    bytes: i64,
}

fn note(rows: &mut Shipped, measured: &Measured, raw: f64, bytes: f64, derived: bool) {
    if derived {
        rows.derived.pair(measured.limit, measured.shipped);
        rows.catch_up.pair(REAL_TIME, measured.shipped);
        rows.bytes_derived.pair(raw, bytes);
    } else {
        rows.frames.pair(measured.limit, measured.shipped);
        rows.bytes.pair(raw, bytes);
    }
}

/// Carries a whole journal into a ledger. The time begins when the database is connected to and has its tables.
async fn ship(settings: Settings, journal: &Journal, filled: Filled) -> Result<f64> {
    let tasks = Tasks::default();
    let end = journal.status().end;
    let ledger = Ledger::open(settings, journal.clone(), &tasks).await?;
    let begun = Instant::now();
    let reached = timeout(PATIENCE, ledger.reached(end)).await;
    let took = begun.elapsed();
    ensure!(reached == Ok(true), "not shipped: {:?}", ledger.status());
    ledger.stop().await;
    tasks.ended().await;
    ensure!(ledger.status().progress.written.new == filled.frames as u64, "{:?}", ledger.status());
    rate(filled.frames, took)
}

async fn postgres(server: &Postgres, state: &Path, journal: &Journal, filled: Filled) -> Result<Measured> {
    let mut admin = server.connect("postgres").await;
    let names = ["shipped", "limit"].map(|name| format!("{name}_{}", Uuid::now_v7().simple()));
    for name in &names {
        admin.execute(AssertSqlSafe(format!("CREATE DATABASE {name}"))).await?;
    }
    let url = |name: &str| format!("postgres://postgres:{PASSWORD}@127.0.0.1:{}/{name}", server.port());
    let settings = |name: &str| -> Result<Settings> {
        let url = url(name).parse().map_err(|error| anyhow::anyhow!("{error}"))?;
        Ok(Settings { url, ..Settings::embedded(state) })
    };
    // Nobody's measurement begins with the checkpoint of somebody else's.
    admin.execute("CHECKPOINT").await?;
    let shipped = ship(settings(&names[0])?, journal, filled).await?;

    let mut from = url(&names[0]).parse::<PgConnectOptions>()?.disable_statement_logging().connect().await?;
    let bytes = size(&mut from).await?;
    let columns = row::COLUMNS.join(", ");
    from.execute("SET max_parallel_workers_per_gather = 0").await?;
    let statement = format!("COPY (SELECT {columns} FROM frames) TO STDOUT (FORMAT binary)");
    let mut copy = Vec::new();
    {
        let mut pieces = from.copy_out_raw(&statement).await?;
        while let Some(piece) = pieces.next().await {
            copy.extend_from_slice(&piece?);
        }
    }
    from.close().await?;

    Sink::open(&settings(&names[1])?).await?.close().await;
    let mut to = url(&names[1]).parse::<PgConnectOptions>()?.disable_statement_logging().connect().await?;
    admin.execute("CHECKPOINT").await?;
    let begun = Instant::now();
    let mut into = to.copy_in_raw(&format!("COPY frames ({columns}) FROM STDIN (FORMAT binary)")).await?;
    for piece in copy.chunks(PIECE) {
        into.send(piece).await?;
    }
    let copied = into.finish().await?;
    let took = begun.elapsed();
    ensure!(copied == filled.frames as u64, "{copied} rows were copied, not {}", filled.frames);
    to.close().await?;
    for name in &names {
        admin.execute(AssertSqlSafe(format!("DROP DATABASE {name} WITH (FORCE)"))).await?;
    }
    admin.close().await?;
    Ok(Measured { limit: rate(filled.frames, took)?, shipped, bytes })
}

/// Bytes of all our tables with their indices.
async fn size(connection: &mut PgConnection) -> Result<i64> {
    let statement = "SELECT sum(pg_total_relation_size(oid))::bigint FROM pg_class \
                     WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace";
    Ok(sqlx::query_scalar(statement).fetch_one(connection).await?)
}

async fn sqlite(state: &Path, journal: &Journal, filled: Filled) -> Result<Measured> {
    let settings = Settings::embedded(state);
    let file = settings.file.clone();
    let shipped = ship(settings, journal, filled).await?;
    let bytes = i64::try_from(fs::metadata(&file)?.len())?;
    let options = |file: &Path| {
        SqliteConnectOptions::new()
            .filename(file)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .disable_statement_logging()
    };
    let columns = row::COLUMNS.join(", ");
    let mut from = options(&file).connect().await?;
    let statement = AssertSqlSafe(format!("SELECT {columns} FROM frames ORDER BY rowid"));
    let all = sqlx::query(statement).fetch_all(&mut from).await?;
    from.close().await?;

    let limit = state.join("limit.sqlite");
    Sink::open_file(&limit).await?.close().await;
    let mut to = options(&limit).connect().await?;
    let whole = AssertSqlSafe(upsert::sqlite_frames(ROWS)).into_sql_str();
    let begun = Instant::now();
    to.execute("BEGIN IMMEDIATE").await?;
    for rows in all.chunks(ROWS) {
        let statement = match rows.len() {
            ROWS => whole.clone(),
            fewer => AssertSqlSafe(upsert::sqlite_frames(fewer)).into_sql_str(),
        };
        let mut query = sqlx::query(statement);
        for row in rows {
            for at in 0..row::COLUMNS.len() {
                query = match row::COLUMNS[at] {
                    "seq" | "at_us" | "outgoing_id" => query.bind(row.try_get::<Option<i64>, _>(at)?),
                    "raw" | "hash" | "chain" => query.bind(row.try_get::<&[u8], _>(at)?),
                    _ => query.bind(row.try_get::<Option<&str>, _>(at)?),
                };
            }
        }
        query.execute(&mut to).await?;
    }
    to.execute("COMMIT").await.context("the limit cannot be measured")?;
    let took = begun.elapsed();
    to.close().await?;
    Ok(Measured { limit: rate(filled.frames, took)?, shipped, bytes })
}
