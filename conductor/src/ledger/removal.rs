//! The two ways in which the ledger lets go of something: what is old goes as a whole
//! ([`retain`]), and what is to be forgotten loses its words and keeps its place
//! ([`erase`]). Nothing else ever changes a frame.
//!
//! Both need whoever owns the tables. Both are on record, signed, before they are done: the
//! log of checkpoints says which streams, and where each had ended. Whoever is killed in
//! between has promised more than was done, which is harmless, and does it again.

pub mod erase;
pub mod retain;

use std::collections::{BTreeMap, HashMap, HashSet};

use sqlx::AssertSqlSafe;
use uuid::Uuid;

use super::{
    cell::Cells,
    error::LedgerError,
    evidence::{
        EvidenceError,
        checkpoint::{Head, Kind, naming},
        log::Log,
    },
    question::{Question, Value},
    settings::Settings,
    sink::Sink,
};
use crate::record::StreamKind;

/// So many ids go into one statement.
const IDS: usize = 500;

/// So many heads go into one checkpoint, and so many checkpoints into the table at once.
const HEADS: usize = 4096;
const ENTRIES: usize = 64;

/// A stream that is to go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Going {
    /// Its id.
    pub id: Uuid,
    /// What it is.
    pub kind: StreamKind,
    /// Its last number.
    pub seq: i64,
    /// How many frames it has.
    pub frames: u64,
    /// Bytes of these.
    pub bytes: u64,
    /// When its first was recorded.
    pub oldest_us: i64,
    /// When its last was.
    pub newest_us: i64,
}

/// How much goes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sum {
    /// Sessions.
    pub sessions: u64,
    /// Other streams: processes, connections, grants.
    pub others: u64,
    /// Frames of all of them.
    pub frames: u64,
    /// Bytes of these.
    pub bytes: u64,
    /// When the oldest was recorded.
    pub oldest_us: Option<i64>,
    /// When the newest was.
    pub newest_us: Option<i64>,
}

impl Sum {
    /// Of these streams.
    pub fn of<'a>(streams: impl IntoIterator<Item = &'a Going>) -> Self {
        let mut sum = Self::default();
        for stream in streams {
            match stream.kind {
                StreamKind::Session => sum.sessions += 1,
                _ => sum.others += 1,
            }
            sum.frames += stream.frames;
            sum.bytes += stream.bytes;
            let earlier = sum.oldest_us.map_or(stream.oldest_us, |oldest| oldest.min(stream.oldest_us));
            let later = sum.newest_us.map_or(stream.newest_us, |newest| newest.max(stream.newest_us));
            (sum.oldest_us, sum.newest_us) = (Some(earlier), Some(later));
        }
        sum
    }
}

/// How far it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Frames that are done.
    pub done: u64,
    /// Frames there are.
    pub total: u64,
}

/// The ledger, as somebody has it who may let go of what is in it.
#[derive(Debug)]
pub struct Remover {
    sink: Sink,
    settings: Settings,
}

impl Remover {
    /// Connects as whoever owns the tables.
    pub async fn open(settings: &Settings) -> Result<Self, LedgerError> {
        let mut sink = Sink::open_as_owner(settings).await?;
        sink.without_limits().await?;
        let mut remover = Self { sink, settings: settings.clone() };
        remover.check_owner().await.map_err(|error| settings.hide(error))?;
        let kind = remover.pick("uuid", "TEXT");
        let table = format!("CREATE TEMP TABLE going (stream_id {kind} NOT NULL PRIMARY KEY)");
        remover.sink.run_long(AssertSqlSafe(table)).await.map_err(|error| settings.hide(error))?;
        Ok(remover)
    }

    /// One text for Postgres, another for SQLite.
    fn pick<T>(&self, postgres: T, sqlite: T) -> T {
        match self.sink {
            Sink::Postgres(_) => postgres,
            Sink::Sqlite(_) => sqlite,
        }
    }

    /// A role that may only add rows would fail in the midst of it, with words of the
    /// database's.
    async fn check_owner(&mut self) -> Result<(), LedgerError> {
        let Sink::Postgres(_) = self.sink else { return Ok(()) };
        let question = Question::new(
            "SELECT pg_has_role(current_user, relowner, 'USAGE'), CAST(current_user AS text), \
             CAST(pg_get_userbyid(relowner) AS text) FROM pg_class WHERE oid = CAST('frames' AS regclass)",
        );
        let row = self.sink.fetch(question).await?.pop();
        let mut row = row.ok_or_else(|| LedgerError::Unavailable("the ledger has no frames".to_owned()))?;
        let (owns, role, owner): (bool, String, String) = (row.take()?, row.take()?, row.take()?);
        if owns {
            return Ok(());
        }
        Err(LedgerError::Settings(format!(
            "the role {role} may add to the ledger, but not let go of anything: that is for {owner}, which owns its \
             tables. Set ledger.owner_url to that role, for this command at least \
             (CONDUCTOR_LEDGER__OWNER_URL=postgres://{owner}@…)"
        )))
    }

    /// Notes which streams are meant, for the statements to come.
    async fn mark(&mut self, streams: impl IntoIterator<Item = Uuid>) -> Result<(), LedgerError> {
        self.sink.run("DELETE FROM going").await?;
        self.mark_more(streams).await
    }

    async fn mark_more(&mut self, streams: impl IntoIterator<Item = Uuid>) -> Result<(), LedgerError> {
        let streams: Vec<_> = streams.into_iter().collect();
        for part in streams.chunks(IDS) {
            let mut question = Question::new("INSERT INTO going (stream_id) VALUES ");
            for (at, id) in part.iter().enumerate() {
                question.bind(if at == 0 { "(?)" } else { ", (?)" }, Value::Id(*id));
            }
            question.push(" ON CONFLICT DO NOTHING");
            self.sink.change(question).await?;
        }
        Ok(())
    }

    /// The streams that are meant by now, by what `frames` has of them.
    async fn marked(&mut self) -> Result<Vec<Going>, LedgerError> {
        let question = Question::new(format!(
            "SELECT {SEEN} FROM frames WHERE stream_id IN (SELECT stream_id FROM going) \
             GROUP BY stream_id, stream_kind ORDER BY stream_id"
        ));
        self.sink.fetch(question).await?.into_iter().map(going).collect()
    }

    /// Begins the transaction in which rows go or change. Nobody else writes meanwhile.
    async fn lift(&mut self) -> Result<Lifted, LedgerError> {
        self.sink.begin(true).await?;
        let mut put_back = Vec::new();
        if let Sink::Postgres(_) = self.sink {
            self.sink.run("SELECT set_config('conductor.lifted', 'on', true)").await?;
            // That is what frames and their partitions ask. Other tables have triggers of other sorts.
            let question = Question::new(
                "SELECT CAST(c.relname AS text), CAST(t.tgname AS text) FROM pg_trigger t \
                 JOIN pg_class c ON c.oid = t.tgrelid JOIN pg_namespace n ON n.oid = c.relnamespace \
                 WHERE NOT t.tgisinternal AND t.tgenabled = 'O' AND t.tgname LIKE '%\\_stay\\_filled' \
                 AND n.nspname = current_schema() AND c.relkind = 'r'",
            );
            for mut row in self.sink.fetch(question).await? {
                let (table, trigger): (String, String) = (row.take()?, row.take()?);
                let switch = |how: &str| format!("ALTER TABLE \"{table}\" {how} TRIGGER \"{trigger}\"");
                self.sink.run_long(AssertSqlSafe(switch("DISABLE"))).await?;
                put_back.push(switch("ENABLE"));
            }
            return Ok(Lifted(put_back));
        }
        // What keeps rows as they are is taken away and put back as it was; nobody sees it gone.
        let question = Question::new(
            "SELECT name, sql FROM sqlite_schema WHERE type = 'trigger' AND name LIKE '%\\_stay\\_%' ESCAPE '\\'",
        );
        for mut row in self.sink.fetch(question).await? {
            let (name, sql): (String, String) = (row.take()?, row.take()?);
            self.sink.run_long(AssertSqlSafe(format!("DROP TRIGGER \"{name}\""))).await?;
            put_back.push(sql);
        }
        Ok(Lifted(put_back))
    }

    /// Ends it.
    async fn commit(&mut self, lifted: Lifted) -> Result<(), LedgerError> {
        for sql in lifted.0 {
            self.sink.run_long(AssertSqlSafe(sql)).await?;
        }
        self.sink.run("COMMIT").await
    }

    /// Puts on record, signed, that these streams go or lose their words, with where each ends.
    pub async fn sign(
        &mut self,
        log: &Log,
        kind: Kind,
        streams: &[Going],
        note: &str,
    ) -> Result<(), LedgerError> {
        let signed = self.sign_marked(log, kind, streams, note).await;
        signed.map_err(|error| self.settings.hide(error))
    }

    /// Puts on record, signed, that these frames lose their words, and no others of their streams.
    pub async fn sign_frames(
        &mut self,
        log: &Log,
        streams: &[Going],
        frames: &[(Uuid, i64)],
        note: &str,
    ) -> Result<(), LedgerError> {
        let signed = self.sign_named(log, streams, frames, note).await;
        signed.map_err(|error| self.settings.hide(error))
    }

    async fn sign_named(
        &mut self,
        log: &Log,
        streams: &[Going],
        frames: &[(Uuid, i64)],
        note: &str,
    ) -> Result<(), LedgerError> {
        let heads = self.heads_of(streams).await?;
        for part in heads.chunks(HEADS) {
            let mut named: BTreeMap<Uuid, Vec<i64>> =
                part.iter().map(|head| (head.stream, Vec::new())).collect();
            for (stream, seq) in frames {
                if let Some(numbers) = named.get_mut(stream) {
                    numbers.push(*seq);
                }
            }
            let (log, part, note) = (log.clone(), part.to_vec(), naming(&named, note));
            blocking(move || log.append(Kind::Frames, part, &note)).await?;
        }
        self.fill(log).await
    }

    async fn sign_marked(
        &mut self,
        log: &Log,
        kind: Kind,
        streams: &[Going],
        note: &str,
    ) -> Result<(), LedgerError> {
        let heads = self.heads_of(streams).await?;
        let parts = if heads.is_empty() { vec![&heads[..]] } else { heads.chunks(HEADS).collect() };
        for part in parts {
            let (log, part, note) = (log.clone(), part.to_vec(), note.to_owned());
            blocking(move || log.append(kind, part, &note)).await?;
        }
        self.fill(log).await
    }

    /// Where each of these streams ends.
    async fn heads_of(&mut self, streams: &[Going]) -> Result<Vec<Head>, LedgerError> {
        self.mark(streams.iter().map(|stream| stream.id)).await?;
        let question = Question::new(
            "SELECT CAST(stream_id AS text), seq, chain FROM stream_heads \
             WHERE stream_id IN (SELECT stream_id FROM going) ORDER BY stream_id",
        );
        let mut heads = Vec::new();
        for mut row in self.sink.fetch(question).await? {
            let stream = id(&row.take::<String>()?)?;
            let (seq, chain): (i64, Vec<u8>) = (row.take()?, row.take()?);
            let chain =
                chain.try_into().map_err(|_| LedgerError::Corrupt("a hash has not 32 bytes".to_owned()))?;
            heads.push(Head { stream, seq, chain });
        }
        // Those from before there were chains have no head yet.
        let known: HashSet<_> = heads.iter().map(|head| head.stream).collect();
        for stream in streams.iter().filter(|stream| !known.contains(&stream.id)) {
            let (seq, chain) = self.sink.end_of_chain(stream.id).await?;
            heads.push(Head { stream: stream.id, seq, chain });
        }
        heads.sort_unstable();
        Ok(heads)
    }

    /// The file is what counts; the table follows it, in order.
    async fn fill(&mut self, log: &Log) -> Result<(), LedgerError> {
        loop {
            let known = self.sink.last_checkpoint(log.journal()).await?;
            let file = log.clone();
            let entries = blocking(move || file.after(known, ENTRIES)).await?;
            if entries.is_empty() {
                return Ok(());
            }
            self.sink.add_checkpoints(&entries).await?;
        }
    }

    /// Gives the room back. In a file nothing is left then of what went, not even in its free
    /// pages and its log; a server does as much as it does by itself, and forgets the values that it
    /// has taken down as samples of each column.
    pub async fn clean(&mut self) -> Result<(), LedgerError> {
        let done = match self.sink {
            Sink::Postgres(_) => self.clean_server().await,
            Sink::Sqlite(_) => self.clean_file().await,
        };
        done.map_err(|error| self.settings.hide(error))
    }

    async fn clean_server(&mut self) -> Result<(), LedgerError> {
        let question = Question::new(
            "SELECT quote_ident(relname), relkind = 'p' FROM pg_class c \
             JOIN pg_namespace n ON n.oid = c.relnamespace \
             WHERE n.nspname = current_schema() AND c.relkind IN ('r', 'p')",
        );
        let (mut tables, mut parents): (Vec<String>, Vec<String>) = Default::default();
        for mut row in self.sink.fetch(question).await? {
            let (name, is_parent) = (row.take()?, row.take()?);
            if is_parent { parents.push(name) } else { tables.push(name) }
        }
        self.sink.run_long(AssertSqlSafe(format!("VACUUM (ANALYZE) {}", tables.join(", ")))).await?;
        // A table with partitions has samples of its own.
        match parents.is_empty() {
            true => Ok(()),
            false => self.sink.run_long(AssertSqlSafe(format!("ANALYZE {}", parents.join(", ")))).await,
        }
    }

    async fn clean_file(&mut self) -> Result<(), LedgerError> {
        self.sink.run("PRAGMA busy_timeout = 60000").await?;
        // An index of words keeps those of rows that are gone until it is put together anew.
        let question = Question::new(
            "SELECT name FROM sqlite_schema WHERE type = 'table' AND sql LIKE 'CREATE VIRTUAL TABLE%USING fts5%'",
        );
        for mut row in self.sink.fetch(question).await? {
            let name: String = row.take()?;
            let optimize = format!("INSERT INTO \"{name}\" (\"{name}\") VALUES ('optimize')");
            self.sink.run_long(AssertSqlSafe(optimize)).await?;
        }
        self.sink.run_long("VACUUM").await?;
        let mut row = self.sink.fetch(Question::new("PRAGMA wal_checkpoint(TRUNCATE)")).await?;
        let is_busy: i64 = row.pop().map_or(Ok(0), |mut row| row.take())?;
        if is_busy != 0 {
            let why = "somebody reads the ledger, so its log still holds pages of before; do it again";
            return Err(LedgerError::Unavailable(why.to_owned()));
        }
        Ok(())
    }

    /// Ends the connection.
    pub async fn close(self) {
        self.sink.close().await;
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, EvidenceError> + Send + 'static,
) -> Result<T, LedgerError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done.map_err(|error| LedgerError::Unavailable(error.to_string())),
        Err(failure) => Err(LedgerError::Unavailable(failure.to_string())),
    }
}

/// What keeps rows as they are, to be put back.
#[must_use]
struct Lifted(Vec<String>);

/// What is selected of a stream.
const SEEN: &str = "CAST(stream_id AS text), stream_kind, max(seq), count(*), COALESCE(sum(length(raw)), 0), \
     min(at_us), max(at_us)";

fn going(mut row: Cells) -> Result<Going, LedgerError> {
    let whole = |number: i64| u64::try_from(number).unwrap_or_default();
    Ok(Going {
        id: id(&row.take::<String>()?)?,
        kind: StreamKind::from_name(&row.take::<String>()?).unwrap_or(StreamKind::Session),
        seq: row.take()?,
        frames: whole(row.take()?),
        bytes: whole(row.take()?),
        oldest_us: row.take()?,
        newest_us: row.take()?,
    })
}

fn id(text: &str) -> Result<Uuid, LedgerError> {
    text.parse().map_err(|_| LedgerError::Corrupt(format!("`{text}` is no id")))
}

/// Streams by their ids.
fn by_id(streams: Vec<Going>) -> HashMap<Uuid, Going> {
    streams.into_iter().map(|stream| (stream.id, stream)).collect()
}
