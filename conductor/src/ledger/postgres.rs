//! The ledger in Postgres: the verbs that `sink` composes.
//!
//! Frames go in by COPY in its binary form, straight into the table. The usual
//! `INSERT … ON CONFLICT` is only needed when a key is there already, and the
//! position that is committed with the rows makes that an exception.

use bytes::BufMut as _;
use futures_util::{Stream as RowStream, TryStreamExt as _};
use sqlx::{
    AssertSqlSafe, ConnectOptions as _, Connection as _, PgConnection, Row as _, SqlSafeStr as _, SqlStr,
    postgres::{PgArguments, PgConnectOptions, PgRow},
    query::Query,
};
use uuid::Uuid;

use super::{
    error::LedgerError,
    row::{self, Reached, Row, Stored},
    table::{Fact, TABLES, Type, Value},
    upsert,
};
use crate::record::{Destination, Origin, Stream, StreamKind};

/// COPY's data is sent in pieces of about this size, so that a batch is not in
/// memory twice.
const PIECE: usize = 256 << 10;

/// The server gives up on one statement after this time: it is slow, and a
/// new attempt may find it less so. Waiting for a lock is given up earlier.
const LIMITS: &str = "SET statement_timeout = '110s'; SET lock_timeout = '5s'; \
    SET idle_in_transaction_session_timeout = '10min'; SET client_min_messages = 'warning'";

/// A rebuild takes this lock alone, who writes frames takes it with others.
const BEGIN: &str = "BEGIN; SELECT pg_advisory_xact_lock_shared(7420, 2)";
const BEGIN_ALONE: &str = "BEGIN; SELECT pg_advisory_xact_lock(7420, 2)";

/// A connection for writing.
#[derive(Debug)]
pub struct Postgres {
    connection: PgConnection,
    upserts: Vec<SqlStr>,
    missing: SqlStr,
}

impl Postgres {
    /// Connects.
    pub async fn connect(options: &PgConnectOptions) -> Result<Self, LedgerError> {
        let mut connection = options.connect().await?;
        sqlx::raw_sql(LIMITS).execute(&mut connection).await?;
        let upserts =
            TABLES.iter().map(|table| AssertSqlSafe(upsert::postgres(table)).into_sql_str()).collect();
        let missing = AssertSqlSafe(upsert::postgres_missing_frames()).into_sql_str();
        Ok(Self { connection, upserts, missing })
    }

    /// Ends the connection in good order.
    pub async fn close(self) -> Result<(), LedgerError> {
        Ok(self.connection.close().await?)
    }

    /// The connection, for statements of others.
    pub fn connection(&mut self) -> &mut PgConnection {
        &mut self.connection
    }

    /// Begins a transaction; `alone` keeps everybody else from writing.
    pub async fn begin(&mut self, alone: bool) -> Result<(), LedgerError> {
        self.run(if alone { BEGIN_ALONE } else { BEGIN }).await
    }

    /// Runs a statement without parameters.
    pub async fn run(&mut self, statement: &'static str) -> Result<(), LedgerError> {
        sqlx::raw_sql(statement).execute(&mut self.connection).await?;
        Ok(())
    }

    /// Makes the months' partitions that will be needed soon.
    pub async fn prepare(&mut self) -> Result<(), LedgerError> {
        self.run("SELECT ensure_frame_partitions(2)").await
    }

    /// Inserts frames of which none is there yet.
    pub async fn insert(&mut self, rows: &[Row]) -> Result<(), LedgerError> {
        let statement = format!("COPY frames ({}) FROM STDIN (FORMAT binary)", row::COLUMNS.join(", "));
        let mut copy = self.connection.copy_in_raw(&statement).await?;
        let mut piece = Vec::with_capacity(PIECE + (64 << 10));
        piece.put_slice(b"PGCOPY\n\xff\r\n\0\0\0\0\0\0\0\0\0");
        for row in rows {
            encode(row, &mut piece);
            if piece.len() >= PIECE {
                copy.send(piece.as_slice()).await?;
                piece.clear();
                tokio::task::consume_budget().await;
            }
        }
        piece.put_i16(-1);
        copy.send(piece.as_slice()).await?;
        copy.finish().await?;
        Ok(())
    }

    /// Inserts those frames that are not there yet, and says which they were.
    pub async fn insert_missing(&mut self, rows: &[Row]) -> Result<Vec<bool>, LedgerError> {
        let all = || rows.iter();
        let query = sqlx::query(self.missing.clone())
            .bind(all().map(|row| row.stream.id).collect::<Vec<_>>())
            .bind(all().map(|row| row.seq).collect::<Vec<_>>())
            .bind(all().map(|row| row.stream.kind.name()).collect::<Vec<_>>())
            .bind(all().map(|row| row.at_us).collect::<Vec<_>>())
            .bind(all().map(|row| row.origin.name()).collect::<Vec<_>>())
            .bind(all().map(|row| row.to.name()).collect::<Vec<_>>())
            .bind(all().map(|row| row.envelope.kind).collect::<Vec<_>>())
            .bind(all().map(|row| row.envelope.method.as_deref()).collect::<Vec<_>>())
            .bind(all().map(|row| row.envelope.request_id.as_deref()).collect::<Vec<_>>())
            .bind(all().map(|row| row.outgoing).collect::<Vec<_>>())
            .bind(all().map(|row| row.envelope.binding).collect::<Vec<_>>())
            .bind(all().map(Row::stored_raw).collect::<Vec<_>>())
            .bind(all().map(|row| row.envelope.json.as_deref()).collect::<Vec<_>>())
            .bind(all().map(|row| &row.hash[..]).collect::<Vec<_>>())
            .bind(all().map(|row| row.chain.as_ref().map(|chain| &chain[..])).collect::<Vec<_>>());
        let mut new = std::collections::HashSet::new();
        for key in query.fetch_all(&mut self.connection).await? {
            new.insert((key.try_get::<Uuid, _>(0)?, key.try_get::<i64, _>(1)?));
        }
        Ok(rows.iter().map(|row| new.remove(&(row.stream.id, row.seq))).collect())
    }

    /// The hash of a frame.
    pub async fn stored_hash(&mut self, stream: Uuid, seq: i64) -> Result<Option<Vec<u8>>, LedgerError> {
        let query = sqlx::query_scalar("SELECT hash FROM frames WHERE stream_id = $1 AND seq = $2");
        Ok(query.bind(stream).bind(seq).fetch_optional(&mut self.connection).await?)
    }

    /// Keeps a frame whose number another one has.
    pub async fn add_conflict(&mut self, row: &Row, journal: Uuid, found_us: i64) -> Result<(), LedgerError> {
        sqlx::query(
            "INSERT INTO frame_conflicts (stream_id, seq, hash, raw, at_us, origin, journal_id, found_us) \
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT DO NOTHING",
        )
        .bind(row.stream.id)
        .bind(row.seq)
        .bind(&row.hash[..])
        .bind(&*row.raw)
        .bind(row.at_us)
        .bind(row.origin.name())
        .bind(journal)
        .bind(found_us)
        .execute(&mut self.connection)
        .await?;
        Ok(())
    }

    /// Merges facts of one table into it.
    pub async fn upsert(&mut self, table: usize, facts: &[Fact]) -> Result<(), LedgerError> {
        let mut query = sqlx::query(self.upserts[table].clone());
        for (at, column) in TABLES[table].columns.iter().enumerate() {
            query = bind_column(query, column.kind, at, facts);
        }
        query.execute(&mut self.connection).await?;
        Ok(())
    }

    /// Writes down how far a journal has been carried over.
    pub async fn reach(&mut self, reached: &Reached, now_us: i64) -> Result<(), LedgerError> {
        sqlx::query(
            "INSERT INTO journals AS t (journal_id, host, segment, byte_offset, updated_us) \
             VALUES ($1, $2, $3, $4, $5) ON CONFLICT (journal_id) DO UPDATE SET host = excluded.host, \
             segment = excluded.segment, byte_offset = excluded.byte_offset, updated_us = excluded.updated_us",
        )
        .bind(reached.journal)
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
        let query = sqlx::query_as("SELECT segment, byte_offset FROM journals WHERE journal_id = $1");
        Ok(query.bind(journal).fetch_optional(&mut self.connection).await?)
    }

    /// How many frames there are, of a stream or at all.
    pub async fn count(&mut self, stream: Option<Uuid>) -> Result<i64, LedgerError> {
        let query = match stream {
            Some(stream) => {
                sqlx::query_scalar("SELECT count(*) FROM frames WHERE stream_id = $1").bind(stream)
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
             FROM frames WHERE stream_id = $1 AND seq > $2 AND seq < $3 ORDER BY seq LIMIT $4",
        );
        page(query.bind(stream).bind(after).bind(below).bind(limit).fetch(&mut self.connection)).await
    }

    /// The frames of all streams after one, in order of stream and number.
    pub async fn frames_after(
        &mut self,
        stream: Uuid,
        seq: i64,
        limit: i64,
    ) -> Result<Vec<Stored>, LedgerError> {
        let query = sqlx::query(
            "SELECT stream_id, stream_kind, seq, at_us, origin, destination, outgoing_id, raw, hash, chain \
             FROM frames WHERE (stream_id, seq) > ($1, $2) ORDER BY stream_id, seq LIMIT $3",
        );
        page(query.bind(stream).bind(seq).bind(limit).fetch(&mut self.connection)).await
    }
}

/// Rows up to a bound in bytes: frames may be large.
async fn page(
    mut rows: impl RowStream<Item = Result<PgRow, sqlx::Error>> + Unpin,
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

fn stored(row: &PgRow) -> Result<Stored, LedgerError> {
    let kind = row.try_get::<&str, _>(1)?;
    let (raw, erased) = row::kept(row.try_get(7)?, row.try_get(8)?)?;
    Ok(Stored {
        stream: Stream {
            id: row.try_get(0)?,
            kind: StreamKind::from_name(kind).unwrap_or(StreamKind::Session),
        },
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

type Bound<'q> = Query<'q, sqlx::Postgres, PgArguments>;

/// Binds one column of all facts as a list. A value of another type than the
/// column's would be a mistake of the projection's and counts as null.
fn bind_column<'q>(query: Bound<'q>, kind: Type, at: usize, facts: &'q [Fact]) -> Bound<'q> {
    macro_rules! list {
        ($variant:ident, $take:expr) => {
            facts
                .iter()
                .map(|fact| match fact.values.get(at) {
                    Some(Value::$variant(value)) => Some($take(value)),
                    _ => None,
                })
                .collect::<Vec<_>>()
        };
    }
    match kind {
        Type::Id => query.bind(list!(Id, |id: &Uuid| *id)),
        Type::Int => query.bind(list!(Int, |number: &i64| *number)),
        Type::Real => query.bind(list!(Real, |number: &f64| *number)),
        Type::Bool => query.bind(list!(Bool, |yes: &bool| *yes)),
        Type::Text => query.bind(list!(Text, String::as_str)),
        Type::Json => query.bind(list!(Json, String::as_str)),
    }
}

/// A row in COPY's binary form: the number of fields, then length and bytes of
/// each, in the order of [`row::COLUMNS`].
fn encode(row: &Row, to: &mut Vec<u8>) {
    to.put_i16(15);
    field(to, Some(row.stream.id.as_bytes()));
    field(to, Some(&row.seq.to_be_bytes()));
    field(to, Some(row.stream.kind.name().as_bytes()));
    field(to, Some(&row.at_us.to_be_bytes()));
    field(to, Some(row.origin.name().as_bytes()));
    field(to, Some(row.to.name().as_bytes()));
    field(to, Some(row.envelope.kind.as_bytes()));
    field(to, row.envelope.method.as_deref().map(str::as_bytes));
    field(to, row.envelope.request_id.as_deref().map(str::as_bytes));
    field(to, row.outgoing.map(i64::to_be_bytes).as_ref().map(<[u8; 8]>::as_slice));
    field(to, row.envelope.binding.as_ref().map(|id| &id.as_bytes()[..]));
    field(to, row.stored_raw());
    match &row.envelope.json {
        // `jsonb` has a version before its text.
        Some(json) => {
            to.put_i32(i32::try_from(json.len() + 1).unwrap_or(i32::MAX));
            to.put_u8(1);
            to.put_slice(json.as_bytes());
        }
        None => field(to, None),
    }
    field(to, Some(&row.hash));
    field(to, row.chain.as_ref().map(|chain| &chain[..]));
}

/// A frame is at most some megabytes long, so its length always fits.
fn field(to: &mut Vec<u8>, bytes: Option<&[u8]>) {
    match bytes {
        Some(bytes) => {
            to.put_i32(i32::try_from(bytes.len()).unwrap_or(i32::MAX));
            to.put_slice(bytes);
        }
        None => to.put_i32(-1),
    }
}
