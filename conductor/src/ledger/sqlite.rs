//! The ledger in a SQLite file: the verbs that `sink` composes.
//!
//! Every commit is synced to disk (`synchronous = FULL`): the journal lets go
//! of what was shipped, so a commit that a power loss could take back would be
//! a loss.

use std::{path::Path, time::Duration};

use futures_util::{Stream as RowStream, TryStreamExt as _};
use sqlx::{
    AssertSqlSafe, ConnectOptions as _, Connection as _, Row as _, SqlSafeStr as _, SqlStr, Sqlite as Driver,
    SqliteConnection,
    query::Query,
    sqlite::{SqliteArguments, SqliteConnectOptions, SqliteJournalMode, SqliteRow, SqliteSynchronous},
};
use uuid::Uuid;

use super::{
    error::LedgerError,
    row::{self, Reached, Row, Stored},
    table::{Fact, TABLES, Value},
    upsert,
};
use crate::{
    record::{Destination, Origin, Stream, StreamKind},
    state::make_private,
};

/// Another program's transaction is waited for so long before an attempt
/// counts as failed.
const BUSY: Duration = Duration::from_secs(5);

/// Room for the pages that a batch changes, in KiB, negative as SQLite wants it:
/// what does not fit is written before its time, and read again.
const CACHE: &str = "-8192";

/// Pages in the file's log before they are folded into the file. Pages that
/// every batch changes are folded once for several.
const CHECKPOINT: &str = "4000";

/// So many rows go into one statement, then so many, then the rest one by one:
/// a hop to the driver's thread costs more than a row does.
const ROWS: [usize; 3] = [64, 8, 1];

/// A connection for writing.
#[derive(Debug)]
pub struct Sqlite {
    connection: SqliteConnection,
    frames: Vec<SqlStr>,
    /// Whether `frames` has a column for the chain.
    has_chains: bool,
    upserts: Vec<Vec<SqlStr>>,
}

/// How the file is opened for questions: it must be there, and stays as it is.
pub fn to_read(file: &Path) -> SqliteConnectOptions {
    let options = SqliteConnectOptions::new().filename(file).read_only(true);
    options.busy_timeout(BUSY).disable_statement_logging()
}

/// How it is opened for writing.
fn to_write(file: &Path) -> SqliteConnectOptions {
    to_read(file)
        .read_only(false)
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .pragma("cache_size", CACHE)
        .pragma("wal_autocheckpoint", CHECKPOINT)
}

impl Sqlite {
    /// Opens or makes the file.
    pub async fn connect(file: &Path) -> Result<Self, LedgerError> {
        let refused = |error| LedgerError::Unavailable(format!("cannot open {}: {error}", file.display()));
        make_private(file).map_err(refused)?;
        Self::connect_with(&to_write(file)).await
    }

    /// Opens a file that is there, and changes nothing in it.
    pub async fn connect_to_read(file: &Path) -> Result<Self, LedgerError> {
        Self::connect_with(&to_read(file)).await
    }

    async fn connect_with(options: &SqliteConnectOptions) -> Result<Self, LedgerError> {
        let made = |statement: String| AssertSqlSafe(statement).into_sql_str();
        Ok(Self {
            connection: options.connect().await?,
            has_chains: true,
            frames: ROWS.iter().map(|rows| made(upsert::sqlite_frames(*rows))).collect(),
            upserts: TABLES
                .iter()
                .map(|table| ROWS.iter().map(|rows| made(upsert::sqlite(table, *rows))).collect())
                .collect(),
        })
    }

    /// Ends the connection in good order.
    pub async fn close(self) -> Result<(), LedgerError> {
        Ok(self.connection.close().await?)
    }

    /// The connection, for statements of others.
    pub fn connection(&mut self) -> &mut SqliteConnection {
        &mut self.connection
    }

    /// Says that this ledger is from before there were chains.
    pub fn without_chains(&mut self) {
        self.has_chains = false;
    }

    /// Begins a transaction. Only one can write at a time.
    pub async fn begin(&mut self) -> Result<(), LedgerError> {
        self.run("BEGIN IMMEDIATE").await
    }

    /// Runs a statement without parameters.
    pub async fn run(&mut self, statement: &'static str) -> Result<(), LedgerError> {
        sqlx::raw_sql(statement).execute(&mut self.connection).await?;
        Ok(())
    }

    /// Inserts frames of which none is there yet.
    pub async fn insert(&mut self, rows: &[Row]) -> Result<(), LedgerError> {
        for (form, rows) in pieces(rows) {
            let mut query = sqlx::query(self.frames[form].clone());
            for row in rows {
                query = bind_row(query, row);
            }
            query.execute(&mut self.connection).await?;
        }
        Ok(())
    }

    /// Inserts those frames that are not there yet, and says which they were.
    pub async fn insert_missing(&mut self, rows: &[Row]) -> Result<Vec<bool>, LedgerError> {
        let statement =
            AssertSqlSafe(format!("{} ON CONFLICT DO NOTHING", upsert::sqlite_frames(1))).into_sql_str();
        let mut new = Vec::with_capacity(rows.len());
        for row in rows {
            let done = bind_row(sqlx::query(statement.clone()), row).execute(&mut self.connection).await?;
            new.push(done.rows_affected() == 1);
        }
        Ok(new)
    }

    /// The hash of a frame.
    pub async fn stored_hash(&mut self, stream: Uuid, seq: i64) -> Result<Option<Vec<u8>>, LedgerError> {
        let query = sqlx::query_scalar("SELECT hash FROM frames WHERE stream_id = ? AND seq = ?");
        Ok(query.bind(stream.to_string()).bind(seq).fetch_optional(&mut self.connection).await?)
    }

    /// Keeps a frame whose number another one has.
    pub async fn add_conflict(&mut self, row: &Row, journal: Uuid, found_us: i64) -> Result<(), LedgerError> {
        sqlx::query(
            "INSERT INTO frame_conflicts (stream_id, seq, hash, raw, at_us, origin, journal_id, found_us) \
             VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
        )
        .bind(row.stream.id.to_string())
        .bind(row.seq)
        .bind(&row.hash[..])
        .bind(&*row.raw)
        .bind(row.at_us)
        .bind(row.origin.name())
        .bind(journal.to_string())
        .bind(found_us)
        .execute(&mut self.connection)
        .await?;
        Ok(())
    }

    /// Merges facts of one table into it.
    pub async fn upsert(&mut self, table: usize, facts: &[Fact]) -> Result<(), LedgerError> {
        for (form, facts) in pieces(facts) {
            let mut query = sqlx::query(self.upserts[table][form].clone());
            for value in facts.iter().flat_map(|fact| &fact.values) {
                query = bind_value(query, value);
            }
            query.execute(&mut self.connection).await?;
        }
        Ok(())
    }

    /// Writes down how far a journal has been carried over.
    pub async fn reach(&mut self, reached: &Reached, now_us: i64) -> Result<(), LedgerError> {
        sqlx::query(
            "INSERT INTO journals (journal_id, host, segment, byte_offset, updated_us) VALUES (?, ?, ?, ?, ?) \
             ON CONFLICT (journal_id) DO UPDATE SET host = excluded.host, segment = excluded.segment, \
             byte_offset = excluded.byte_offset, updated_us = excluded.updated_us",
        )
        .bind(reached.journal.to_string())
        .bind(&reached.host)
        .bind(i64::try_from(reached.segment).unwrap_or(i64::MAX))
        .bind(i64::try_from(reached.offset).unwrap_or(i64::MAX))
        .bind(now_us)
        .execute(&mut self.connection)
        .await?;
        Ok(())
    }

    /// How far a journal has been carried over: segment and offset.
    pub async fn reached(&mut self, journal: Uuid) -> Result<Option<(i64, i64)>, LedgerError> {
        let query = sqlx::query_as("SELECT segment, byte_offset FROM journals WHERE journal_id = ?");
        Ok(query.bind(journal.to_string()).fetch_optional(&mut self.connection).await?)
    }

    /// How many frames there are, of a stream or at all.
    pub async fn count(&mut self, stream: Option<Uuid>) -> Result<i64, LedgerError> {
        let query = match stream {
            Some(stream) => {
                sqlx::query_scalar("SELECT count(*) FROM frames WHERE stream_id = ?").bind(stream.to_string())
            }
            None => sqlx::query_scalar("SELECT count(*) FROM frames"),
        };
        Ok(query.fetch_one(&mut self.connection).await?)
    }

    /// The frames of a stream between two numbers, both excluded, in order.
    pub async fn frames_of(
        &mut self,
        stream: Uuid,
        after: i64,
        below: i64,
        limit: i64,
    ) -> Result<Vec<Stored>, LedgerError> {
        let query = sqlx::query(
            "SELECT stream_id, stream_kind, seq, at_us, origin, destination, outgoing_id, raw, hash, chain \
             FROM frames WHERE stream_id = ? AND seq > ? AND seq < ? ORDER BY seq LIMIT ?",
        );
        page(query.bind(stream.to_string()).bind(after).bind(below).bind(limit).fetch(&mut self.connection))
            .await
    }

    /// The frames of all streams after one, in order of stream and number.
    pub async fn frames_after(
        &mut self,
        stream: Uuid,
        seq: i64,
        limit: i64,
    ) -> Result<Vec<Stored>, LedgerError> {
        // Another ledger, from before there were chains, has no such column.
        let chain = if self.has_chains { "chain" } else { "NULL" };
        let query = sqlx::query(AssertSqlSafe(format!(
            "SELECT stream_id, stream_kind, seq, at_us, origin, destination, outgoing_id, raw, hash, {chain} \
             FROM frames WHERE (stream_id, seq) > (?, ?) ORDER BY stream_id, seq LIMIT ?"
        )));
        page(query.bind(stream.to_string()).bind(seq).bind(limit).fetch(&mut self.connection)).await
    }
}

/// Cuts a list into pieces for which there is a statement: its number in
/// [`ROWS`], and the piece.
fn pieces<T>(all: &[T]) -> impl Iterator<Item = (usize, &[T])> {
    let mut rest = all;
    std::iter::from_fn(move || {
        let (form, rows) = ROWS.iter().enumerate().find(|(_, rows)| **rows <= rest.len())?;
        let (piece, after) = rest.split_at(*rows);
        rest = after;
        Some((form, piece))
    })
}

/// Rows up to a bound in bytes: frames may be large.
async fn page(
    mut rows: impl RowStream<Item = Result<SqliteRow, sqlx::Error>> + Unpin,
) -> Result<Vec<Stored>, LedgerError> {
    let (mut page, mut bytes) = (Vec::new(), 0);
    while bytes < row::PAGE_BYTES
        && let Some(row) = rows.try_next().await?
    {
        let frame = stored(&row)?;
        bytes += frame.raw.len();
        page.push(frame);
    }
    Ok(page)
}

fn stored(row: &SqliteRow) -> Result<Stored, LedgerError> {
    let id = Uuid::try_parse(row.try_get(0)?)
        .map_err(|error| LedgerError::Corrupt(format!("a stream's id is none: {error}")))?;
    let kind = StreamKind::from_name(row.try_get(1)?).unwrap_or(StreamKind::Session);
    let (raw, erased) = row::kept(row.try_get(7)?, row.try_get(8)?)?;
    Ok(Stored {
        stream: Stream { id, kind },
        seq: row.try_get(2)?,
        at_us: row.try_get(3)?,
        origin: Origin::from_name(row.try_get(4)?).unwrap_or(Origin::Conductor),
        to: Destination::from_name(row.try_get(5)?).unwrap_or(Destination::Record),
        outgoing: row.try_get(6)?,
        raw,
        erased,
        chain: row::hash(row.try_get(9)?)?,
    })
}

type Bound<'q> = Query<'q, Driver, SqliteArguments>;

fn bind_row<'q>(query: Bound<'q>, row: &'q Row) -> Bound<'q> {
    query
        .bind(row.stream.id.to_string())
        .bind(row.seq)
        .bind(row.stream.kind.name())
        .bind(row.at_us)
        .bind(row.origin.name())
        .bind(row.to.name())
        .bind(row.envelope.kind)
        .bind(row.envelope.method.as_deref())
        .bind(row.envelope.request_id.as_deref())
        .bind(row.outgoing)
        .bind(row.envelope.binding.map(|id| id.to_string()))
        .bind(row.stored_raw())
        .bind(row.envelope.json.as_deref())
        .bind(&row.hash[..])
        .bind(row.chain.as_ref().map(|chain| &chain[..]))
}

fn bind_value<'q>(query: Bound<'q>, value: &'q Value) -> Bound<'q> {
    match value {
        Value::Null => query.bind(None::<i64>),
        Value::Id(id) => query.bind(id.to_string()),
        Value::Int(number) => query.bind(*number),
        Value::Real(number) => query.bind(*number),
        Value::Bool(yes) => query.bind(*yes),
        Value::Text(text) | Value::Json(text) => query.bind(text.as_str()),
    }
}
