//! One database to write to, whichever it is: a batch of frames, what they
//! say of the derived tables, and the position reached, in one transaction.
//!
//! The first attempt takes for granted that all frames are new and all values
//! fit, because that is nearly always so. If the database objects, the batch is
//! written again carefully: frames that are there already are left out (and
//! compared), and a frame with a value that the database refuses is found by
//! halving and stored without it. So no frame can hold up those behind it.

use std::{collections::HashMap, path::Path, time::Duration};

use sqlx::SqlSafeStr;
use tokio::time::timeout;
use tracing::{debug, error};
use uuid::Uuid;

use super::{
    error::LedgerError,
    evidence::tables::heads_of,
    postgres::Postgres,
    row::{Reached, Row, Stored, merged},
    schema,
    settings::{Place, Settings},
    sqlite::Sqlite,
    table::{Fact, TABLES},
};
use crate::record::now_us;

/// Longer than the server takes to give up by itself: by then the connection
/// is dead, not slow.
const STATEMENT: Duration = Duration::from_secs(120);

/// A connection may take so long.
const CONNECT: Duration = Duration::from_secs(15);

/// Its end, too.
const CLOSE: Duration = Duration::from_secs(3);

/// So many frames are read back at once.
const PAGE: i64 = 256;

/// A database to write to.
#[derive(Debug)]
pub enum Sink {
    /// A server.
    Postgres(Box<Postgres>),
    /// A file.
    Sqlite(Box<Sqlite>),
}

/// What became of a batch.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    /// Frames that were not there before.
    pub new: u64,
    /// Frames whose number another frame has.
    pub conflicts: u64,
    /// Frames that were stored without what the database refused.
    pub stripped: u64,
    /// Frames whose place in the chain is another than was thought, as the ledger
    /// has other frames before them.
    pub rechained: u64,
}

/// Calls a verb of whichever database it is, with a deadline.
macro_rules! verb {
    ($sink:expr, $verb:ident($($argument:expr),*)) => {
        within(STATEMENT, async {
            match $sink {
                Sink::Postgres(sink) => sink.$verb($($argument),*).await,
                Sink::Sqlite(sink) => sink.$verb($($argument),*).await,
            }
        })
        .await
    };
}

impl Sink {
    /// Connects and brings the schema up to date.
    pub async fn open(settings: &Settings) -> Result<Self, LedgerError> {
        let opened = match settings.place() {
            Ok(place) => Self::open_place(settings, place).await,
            Err(error) => Err(error),
        };
        opened.map_err(|error| settings.hide(error))
    }

    async fn open_place(settings: &Settings, place: Place) -> Result<Self, LedgerError> {
        match place {
            Place::Postgres(options) => {
                let mut postgres = within(CONNECT, Postgres::connect(&options)).await?;
                let owner = settings.owner()?;
                schema::migrate_postgres(&mut postgres, owner.as_ref(), options.get_username()).await?;
                within(STATEMENT, postgres.prepare()).await?;
                Ok(Self::Postgres(Box::new(postgres)))
            }
            Place::Sqlite(file) => Self::open_file(&file).await,
        }
    }

    /// Brings the schema up to date and gives the writing role its rights. Where there is an owner,
    /// nothing but its password is needed for that.
    pub async fn migrate(settings: &Settings) -> Result<i64, LedgerError> {
        let migrated = match (settings.owner(), settings.url.postgres()) {
            (Ok(Some(owner)), Some(writer)) => schema::migrate_as_owner(&owner, writer.get_username()).await,
            (Err(error), _) => Err(error),
            _ => {
                Self::open(settings).await?.close().await;
                Ok(())
            }
        };
        migrated.map_err(|error| settings.hide(error))?;
        Ok(schema::newest_of(settings.url.postgres().is_some()))
    }

    /// Opens a SQLite file and brings its schema up to date.
    pub async fn open_file(file: &Path) -> Result<Self, LedgerError> {
        let mut sqlite = within(CONNECT, Sqlite::connect(file)).await?;
        schema::migrate_sqlite(sqlite.connection()).await?;
        Ok(Self::Sqlite(Box::new(sqlite)))
    }

    /// Connects as the owner, if there is one: to change what the writing role
    /// may not.
    pub async fn open_as_owner(settings: &Settings) -> Result<Self, LedgerError> {
        // As the writer first, so that the schema is up to date and granted.
        let writer = Self::open(settings).await?;
        match settings.owner()? {
            None => Ok(writer),
            Some(options) => {
                Ok(Self::Postgres(Box::new(within(CONNECT, Postgres::connect(&options)).await?)))
            }
        }
    }

    /// Opens another ledger to read its frames. Nothing is changed in it.
    pub async fn open_to_import(file: &Path) -> Result<Self, LedgerError> {
        let mut sqlite = within(CONNECT, Sqlite::connect_to_read(file)).await?;
        if schema::check_sqlite(sqlite.connection()).await? < schema::CHAINS {
            sqlite.without_chains();
        }
        Ok(Self::Sqlite(Box::new(sqlite)))
    }

    /// Ends the connection in good order: the server need not find out, and the
    /// file's log is folded into the file. It is bounded, as it is not needed.
    pub async fn close(self) {
        let closing = async {
            match self {
                Self::Postgres(sink) => sink.close().await,
                Self::Sqlite(sink) => sink.close().await,
            }
        };
        if let Err(error) = within(CLOSE, closing).await {
            debug!(%error, "the ledger's connection did not end in good order");
        }
    }

    /// Lifts the server's limits on this connection, for work that takes long.
    pub async fn without_limits(&mut self) -> Result<(), LedgerError> {
        match self {
            Self::Postgres(sink) => sink.run("SET statement_timeout = 0; SET lock_timeout = 0").await,
            Self::Sqlite(_) => Ok(()),
        }
    }

    /// Looks after what will be needed soon.
    pub async fn prepare(&mut self) -> Result<(), LedgerError> {
        match self {
            Self::Postgres(sink) => within(STATEMENT, sink.prepare()).await,
            Self::Sqlite(_) => Ok(()),
        }
    }

    /// Writes a batch, all of it or nothing. An error that is not passing has
    /// been dealt with inside; whatever comes out is worth another attempt with
    /// a new connection.
    pub async fn write(&mut self, rows: &[Row], reached: Option<&Reached>) -> Result<Written, LedgerError> {
        match self.write_new(rows, reached).await {
            Err(LedgerError::Value(_) | LedgerError::Duplicate(_)) => {
                self.run("ROLLBACK").await?;
                self.write_carefully(rows, reached).await
            }
            other => other,
        }
    }

    async fn write_new(&mut self, rows: &[Row], reached: Option<&Reached>) -> Result<Written, LedgerError> {
        self.begin(false).await?;
        verb!(self, insert(rows))?;
        self.upsert_all(&merged(rows.iter())).await?;
        self.write_heads(rows, reached).await?;
        self.finish(reached).await?;
        Ok(Written { new: rows.len() as u64, ..Written::default() })
    }

    /// Writes a batch of which the database may have some already.
    pub async fn write_carefully(
        &mut self,
        rows: &[Row],
        reached: Option<&Reached>,
    ) -> Result<Written, LedgerError> {
        let journal = reached.map_or(Uuid::nil(), |reached| reached.journal);
        self.begin(false).await?;
        let (rows, rechained) = self.rechained(rows).await?;
        let written = self.write_in_parts(&rows, Some(journal)).await?;
        self.write_heads(&rows, reached).await?;
        self.finish(reached).await?;
        Ok(Written { rechained, ..written })
    }

    async fn write_heads(&mut self, rows: &[Row], reached: Option<&Reached>) -> Result<(), LedgerError> {
        let heads = heads_of(rows.iter());
        within(STATEMENT, self.put_heads(reached.map(|reached| reached.journal), &heads)).await
    }

    /// The rows with their places in the chains as the ledger has these: what comes
    /// behind the last frame of a stream goes on from there, and what comes before
    /// it is there already, or fills a gap, and has none. Also how many that changed.
    async fn rechained(&mut self, rows: &[Row]) -> Result<(Vec<Row>, u64), LedgerError> {
        let mut ends = HashMap::new();
        let mut changed = 0;
        let mut again = Vec::with_capacity(rows.len());
        for row in rows {
            let (last, chain) = match ends.get(&row.stream.id) {
                Some(end) => *end,
                None => self.end_of_chain(row.stream.id).await?,
            };
            let mut row = row.clone();
            let place = (row.seq > last && row.chain.is_some()).then(|| row.chained(&chain));
            changed += u64::from(place.is_some() && place != row.chain);
            row.chain = place;
            ends.insert(row.stream.id, place.map_or((last, chain), |place| (row.seq, place)));
            again.push(row);
        }
        Ok((again, changed))
    }

    /// Merges what frames say into the derived tables, within a transaction.
    /// The frames themselves are there.
    pub async fn write_facts(&mut self, rows: &[Row]) -> Result<(), LedgerError> {
        self.write_in_parts(rows, None).await?;
        Ok(())
    }

    async fn write_in_parts(&mut self, rows: &[Row], journal: Option<Uuid>) -> Result<Written, LedgerError> {
        let mut written = Written::default();
        // Parts that are yet to be written, the next one last.
        let mut parts = vec![rows];
        while let Some(part) = parts.pop() {
            self.run("SAVEPOINT part").await?;
            let done = match journal {
                Some(journal) => self.write_part(part, journal).await,
                None => self.upsert_all(&merged(part.iter())).await.map(|()| Written::default()),
            };
            match done {
                Ok(done) => {
                    self.run("RELEASE SAVEPOINT part").await?;
                    written = written.and(done);
                }
                Err(LedgerError::Value(why)) => {
                    self.run("ROLLBACK TO SAVEPOINT part").await?;
                    let (first, second) = part.split_at(part.len() / 2);
                    if !first.is_empty() {
                        parts.push(second);
                        parts.push(first);
                        continue;
                    }
                    for row in second {
                        error!(
                            stream = %row.stream.id,
                            seq = row.seq,
                            why,
                            "the ledger refuses a value of this frame; it is stored as bytes only"
                        );
                        if let Some(journal) = journal {
                            let done = self.write_part(&[row.stripped()], journal).await?;
                            written = written.and(Written { stripped: 1, ..done });
                        }
                    }
                }
                Err(other) => return Err(other),
            }
        }
        Ok(written)
    }

    async fn write_part(&mut self, rows: &[Row], journal: Uuid) -> Result<Written, LedgerError> {
        let new = verb!(self, insert_missing(rows))?;
        let mut written = Written::default();
        for (row, _) in rows.iter().zip(&new).filter(|(_, new)| !**new) {
            let stored = verb!(self, stored_hash(row.stream.id, row.seq))?;
            if stored.is_none_or(|hash| hash == row.hash) {
                continue;
            }
            error!(
                stream = %row.stream.id,
                seq = row.seq,
                "another frame has this number in the ledger; the second is kept in frame_conflicts. \
                 Was a state directory copied?"
            );
            verb!(self, add_conflict(row, journal, now_us()))?;
            written.conflicts += 1;
        }
        let added = rows.iter().zip(&new).filter(|(_, new)| **new).map(|(row, _)| row);
        written.new = added.clone().count() as u64;
        self.upsert_all(&merged(added)).await?;
        Ok(written)
    }

    async fn finish(&mut self, reached: Option<&Reached>) -> Result<(), LedgerError> {
        if let Some(reached) = reached {
            verb!(self, reach(reached, now_us()))?;
        }
        self.run("COMMIT").await
    }

    /// Begins a transaction; `alone` keeps every other writer out.
    pub async fn begin(&mut self, alone: bool) -> Result<(), LedgerError> {
        within(STATEMENT, async {
            match self {
                Self::Postgres(sink) => sink.begin(alone).await,
                Self::Sqlite(sink) => sink.begin().await,
            }
        })
        .await
    }

    /// Runs a statement without parameters.
    pub async fn run(&mut self, statement: &'static str) -> Result<(), LedgerError> {
        verb!(self, run(statement))
    }

    /// Runs a statement that may take as long as it likes.
    pub async fn run_long(&mut self, statement: impl SqlSafeStr) -> Result<(), LedgerError> {
        let statement = sqlx::raw_sql(statement);
        match self {
            Self::Postgres(sink) => statement.execute(sink.connection()).await.map(drop)?,
            Self::Sqlite(sink) => statement.execute(sink.connection()).await.map(drop)?,
        }
        Ok(())
    }

    /// Merges facts, by table, into the derived tables.
    pub async fn upsert_all(&mut self, tables: &[Vec<Fact>]) -> Result<(), LedgerError> {
        debug_assert!(tables.len() <= TABLES.len());
        for (table, facts) in tables.iter().enumerate().filter(|(_, facts)| !facts.is_empty()) {
            verb!(self, upsert(table, facts))?;
        }
        Ok(())
    }

    /// How far a journal has been carried over: segment and offset.
    pub async fn reached(&mut self, journal: Uuid) -> Result<Option<(u64, u64)>, LedgerError> {
        let reached = verb!(self, reached(journal))?;
        let whole = |number: i64| u64::try_from(number).unwrap_or_default();
        Ok(reached.map(|(segment, offset)| (whole(segment), whole(offset))))
    }

    /// A page of a stream's frames between two numbers, both excluded. An empty
    /// one is the end.
    pub async fn frames_of(
        &mut self,
        stream: Uuid,
        after: i64,
        below: i64,
    ) -> Result<Vec<Stored>, LedgerError> {
        verb!(self, frames_of(stream, after, below, PAGE))
    }

    /// A page of all frames after one, in order of stream and number. An empty
    /// one is the end.
    pub async fn frames_after(&mut self, stream: Uuid, seq: i64) -> Result<Vec<Stored>, LedgerError> {
        verb!(self, frames_after(stream, seq, PAGE))
    }
}

impl Written {
    /// Both together.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            new: self.new + other.new,
            conflicts: self.conflicts + other.conflicts,
            stripped: self.stripped + other.stripped,
            rechained: self.rechained + other.rechained,
        }
    }
}

async fn within<T>(
    most: Duration,
    work: impl Future<Output = Result<T, LedgerError>>,
) -> Result<T, LedgerError> {
    timeout(most, work).await.unwrap_or_else(|_| {
        Err(LedgerError::Unavailable(format!("the database has not answered within {} s", most.as_secs())))
    })
}
