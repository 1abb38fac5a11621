//! A real journal in a directory of its own, frames to fill it with, and the
//! ledger they are carried into, in either database.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use conductor::{
    journal::{self, Batch, Cause, Class, Journal, Position},
    ledger::{Ledger, LedgerError, Progress, Reader, Settings, table::TABLES},
    record::{Destination, Origin, Stream, StreamKind, note, now_us},
    tasks::Tasks,
};
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Row as _, SqliteConnection};
use tokio_stream::StreamExt as _;
use uuid::Uuid;

use crate::postgres::Database;

/// Longest wait for what must come.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A journal and the place for a ledger.
#[derive(Debug)]
pub struct Bench {
    state: tempfile::TempDir,
    database: Option<Database>,
}

/// A frame as the tests know it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Known {
    /// Its stream.
    pub stream: Uuid,
    /// Its number.
    pub seq: i64,
    /// Its bytes.
    pub raw: Vec<u8>,
}

impl Bench {
    /// With a ledger in SQLite.
    pub fn sqlite() -> Self {
        Self { state: tempfile::tempdir().unwrap(), database: None }
    }

    /// With a ledger in this database.
    pub fn postgres(database: Database) -> Self {
        Self { state: tempfile::tempdir().unwrap(), database: Some(database) }
    }

    /// One of each kind.
    pub async fn both() -> [Self; 2] {
        [Self::sqlite(), Self::postgres(Database::new().await)]
    }

    /// The state directory.
    pub fn state(&self) -> &Path {
        self.state.path()
    }

    /// The file of a ledger in SQLite.
    pub fn file(&self) -> PathBuf {
        self.settings().file
    }

    /// The database of a ledger in Postgres.
    pub fn database(&self) -> &Database {
        self.database.as_ref().expect("this ledger is in Postgres")
    }

    /// Where the ledger is.
    pub fn settings(&self) -> Settings {
        let mut settings = Settings::embedded(self.state());
        if let Some(database) = &self.database {
            settings.url = database.url().parse().unwrap();
        }
        settings
    }

    /// The same with another address.
    pub fn settings_at(&self, url: &str) -> Settings {
        Settings { url: url.parse().unwrap(), ..self.settings() }
    }

    /// Opens the journal.
    pub fn journal(&self) -> Journal {
        self.journal_with(journal::Settings::default())
    }

    /// Opens the journal with settings.
    pub fn journal_with(&self, mut settings: journal::Settings) -> Journal {
        settings.reserve_bytes = 1 << 16;
        Journal::open(&self.state().join("journal"), settings).unwrap().0
    }

    /// Every frame of the ledger.
    pub async fn frames(&self) -> Vec<Known> {
        frames(&self.settings()).await
    }

    /// The one number that a statement asks for.
    pub async fn number(&self, statement: &str) -> i64 {
        number(&self.settings(), statement).await
    }

    /// Every derived row, as text that is the same for both databases.
    pub async fn derived(&self) -> Vec<String> {
        derived(&self.settings()).await
    }
}

async fn reader(settings: &Settings) -> Reader {
    Reader::open(settings).await.expect("the ledger must answer")
}

/// Every frame of the ledger.
pub async fn frames(settings: &Settings) -> Vec<Known> {
    let statement = "SELECT stream_id, seq, raw FROM frames ORDER BY stream_id, seq";
    match reader(settings).await {
        Reader::Postgres(mut connection) => {
            let rows = sqlx::query(statement).fetch_all(&mut *connection).await.unwrap();
            rows.iter().map(|row| Known { stream: row.get(0), seq: row.get(1), raw: row.get(2) }).collect()
        }
        Reader::Sqlite(mut connection) => {
            let rows = sqlx::query(statement).fetch_all(&mut *connection).await.unwrap();
            let id = |row: &sqlx::sqlite::SqliteRow| row.get::<String, _>(0).parse().unwrap();
            rows.iter().map(|row| Known { stream: id(row), seq: row.get(1), raw: row.get(2) }).collect()
        }
    }
}

/// A frame on its way out of the ledger.
#[derive(Debug)]
pub struct Stored<'a> {
    /// Its stream.
    pub stream: Uuid,
    /// Its number.
    pub seq: i64,
    /// When it was recorded.
    pub at_us: i64,
    /// Who made it.
    pub origin: &'a str,
    /// Its bytes.
    pub raw: &'a [u8],
}

/// Shows every frame of the ledger, stream by stream and in order, and never holds them all.
pub async fn each_frame(settings: &Settings, mut show: impl FnMut(Stored<'_>)) {
    let statement = "SELECT stream_id, seq, at_us, origin, raw FROM frames ORDER BY stream_id, seq";
    match Reader::open_for_long(settings).await.expect("the ledger must answer") {
        Reader::Postgres(mut connection) => {
            let mut rows = sqlx::query(statement).fetch(&mut *connection);
            while let Some(row) = rows.next().await {
                let row = row.unwrap();
                let (stream, seq, at_us) = (row.get(0), row.get(1), row.get(2));
                show(Stored { stream, seq, at_us, origin: row.get(3), raw: row.get(4) });
            }
        }
        Reader::Sqlite(mut connection) => {
            let mut rows = sqlx::query(statement).fetch(&mut *connection);
            while let Some(row) = rows.next().await {
                let row = row.unwrap();
                let stream = row.get::<&str, _>(0).parse().unwrap();
                let (seq, at_us) = (row.get(1), row.get(2));
                show(Stored { stream, seq, at_us, origin: row.get(3), raw: row.get(4) });
            }
        }
    }
}

/// The one number that a statement asks for.
pub async fn number(settings: &Settings, statement: &str) -> i64 {
    let statement = AssertSqlSafe(statement.to_owned());
    match reader(settings).await {
        Reader::Postgres(mut connection) => {
            sqlx::query_scalar(statement).fetch_one(&mut *connection).await.unwrap()
        }
        Reader::Sqlite(mut connection) => {
            sqlx::query_scalar(statement).fetch_one(&mut *connection).await.unwrap()
        }
    }
}

/// The texts that a statement asks for.
pub async fn texts(settings: &Settings, statement: &str) -> Vec<String> {
    let statement = AssertSqlSafe(statement.to_owned());
    match reader(settings).await {
        Reader::Postgres(mut connection) => {
            sqlx::query_scalar(statement).fetch_all(&mut *connection).await.unwrap()
        }
        Reader::Sqlite(mut connection) => {
            sqlx::query_scalar(statement).fetch_all(&mut *connection).await.unwrap()
        }
    }
}

/// Every derived row, as text that is the same for both databases.
pub async fn derived(settings: &Settings) -> Vec<String> {
    let mut all = Vec::new();
    for table in TABLES {
        // Named anew, as ORDER BY would take the text for the column.
        let columns = table.columns.iter().enumerate();
        let columns: Vec<_> =
            columns.map(|(at, column)| format!("CAST({} AS TEXT) AS c{at}", column.name)).collect();
        let keys: Vec<_> = table.columns[..table.key].iter().map(|column| column.name).collect();
        let (columns, keys) = (columns.join(", "), keys.join(", "));
        let statement = AssertSqlSafe(format!("SELECT {columns} FROM {} ORDER BY {keys}", table.name));
        let rows: Vec<Vec<Option<String>>> = match reader(settings).await {
            Reader::Postgres(mut connection) => {
                let rows = sqlx::query(statement).fetch_all(&mut *connection).await.unwrap();
                rows.iter().map(|row| (0..table.columns.len()).map(|at| row.get(at)).collect()).collect()
            }
            Reader::Sqlite(mut connection) => {
                let rows = sqlx::query(statement).fetch_all(&mut *connection).await.unwrap();
                rows.iter().map(|row| (0..table.columns.len()).map(|at| row.get(at)).collect()).collect()
            }
        };
        for row in rows {
            let values = row.into_iter().zip(table.columns).map(|(value, column)| alike(value, column.kind));
            all.push(format!("{} {}", table.name, values.collect::<Vec<_>>().join(" | ")));
        }
    }
    all
}

/// A value as both databases would write it.
fn alike(value: Option<String>, kind: conductor::ledger::table::Type) -> String {
    use conductor::ledger::table::Type;
    let Some(value) = value else { return "null".to_owned() };
    match kind {
        Type::Bool => matches!(value.as_str(), "1" | "true" | "t").to_string(),
        Type::Real => value.parse::<f64>().unwrap().to_string(),
        Type::Json => {
            let mut json: Value = serde_json::from_str(&value).unwrap();
            json.sort_all_objects();
            json.to_string()
        }
        _ => value,
    }
}

/// Starts to ship.
pub async fn ship(settings: Settings, journal: &Journal, tasks: &Tasks) -> Ledger {
    Ledger::open(settings, journal.clone(), tasks).await.unwrap()
}

/// Ships all there is and ends.
pub async fn ship_all(settings: Settings, journal: &Journal) -> Progress {
    let tasks = Tasks::default();
    let ledger = ship(settings, journal, &tasks).await;
    caught_up(&ledger, journal).await;
    ledger.stop().await;
    tasks.ended().await;
    ledger.status().progress
}

/// Waits until the ledger has all that is in the journal.
pub async fn caught_up(ledger: &Ledger, journal: &Journal) {
    let end = synced(journal).await;
    let reached = tokio::time::timeout(PATIENCE, ledger.reached(end)).await;
    assert_eq!(reached, Ok(true), "not caught up: {:?}", ledger.status());
}

/// Waits until all that is written is synced.
pub async fn synced(journal: &Journal) -> Position {
    let end = journal.status().end;
    let mut synced = journal.synced();
    let waiting = synced.wait_for(|position| *position >= end);
    *tokio::time::timeout(PATIENCE, waiting).await.expect("the journal must sync").unwrap()
}

/// Waits until the ledger is down, and says why.
pub async fn down(ledger: &Ledger) -> String {
    down_because(ledger, "").await
}

/// Waits until the ledger is down for a reason that has these words.
pub async fn down_because(ledger: &Ledger, words: &str) -> String {
    let mut progress = ledger.progress();
    let waiting = progress.wait_for(|progress| progress.down.as_ref().is_some_and(|why| why.contains(words)));
    let down = tokio::time::timeout(PATIENCE, waiting).await;
    let down = down.unwrap_or_else(|_| panic!("not down because of {words:?}: {:?}", ledger.status()));
    down.unwrap().down.as_deref().unwrap().to_owned()
}

/// What opening a ledger fails with.
pub async fn refused(settings: Settings, journal: &Journal) -> LedgerError {
    let opened = Ledger::open(settings, journal.clone(), &Tasks::default()).await;
    opened.expect_err("the ledger must not open")
}

/// A new stream of a kind.
pub fn stream(kind: StreamKind) -> Stream {
    Stream { id: Uuid::now_v7(), kind }
}

/// Appends lines to a stream as one run.
pub fn append(
    journal: &Journal,
    stream: Stream,
    origin: Origin,
    to: Destination,
    lines: &[Vec<u8>],
) -> Vec<Known> {
    let first = journal.next_seq(stream.id);
    let mut batch = Batch::new();
    batch.push(stream, first, now_us(), origin, to, &[], lines.iter().map(Vec::as_slice));
    // A busy disk makes streams wait, as it makes sessions.
    let written = crate::harness::poll_until(PATIENCE, || {
        match journal.append(std::mem::take(&mut batch), Class::Stream) {
            Ok(_) => true,
            Err(refused) if refused.cause == Cause::Busy => {
                batch = refused.batch;
                false
            }
            Err(refused) => panic!("{refused}"),
        }
    });
    assert!(written, "the disk stays busy");
    let numbered = lines.iter().zip(i64::try_from(first).unwrap()..);
    numbered.map(|(raw, seq)| Known { stream: stream.id, seq, raw: raw.clone() }).collect()
}

/// A session's first notes.
pub fn open_session(journal: &Journal, session: Stream) -> Vec<Known> {
    let opened = json!({ "how": "new", "user": "ann", "teams": ["core"], "agent": "demo", "cwd": "/w" });
    let bound = json!({ "binding": Uuid::now_v7().to_string(), "process": Uuid::now_v7().to_string(), "agentSession": "s-1" });
    let notes = [note(note::SESSION_OPENED, &opened), note(note::SESSION_BOUND, &bound)];
    append(journal, session, Origin::Conductor, Destination::Record, &notes)
}

/// A turn of a session: a prompt, chunks, a tool call with a diff, a permission,
/// and the answer, all in their own runs.
pub fn turn(journal: &Journal, session: Stream, number: u64) -> Vec<Known> {
    let line = |value: Value| value.to_string().into_bytes();
    let update = |update: Value| {
        line(
            json!({ "jsonrpc": "2.0", "method": "session/update", "params": { "sessionId": "s-1", "update": update } }),
        )
    };
    let mut all = Vec::new();
    let prompt = json!({ "jsonrpc": "2.0", "id": format!("e{number}"), "method": "session/prompt", "params": {
        "sessionId": session.id.to_string(), "prompt": [{ "type": "text", "text": format!("do {number}") }] } });
    let seq = journal.next_seq(session.id);
    let mut batch = Batch::new();
    let bytes = line(prompt);
    batch.push(
        session,
        seq,
        now_us(),
        Origin::Editor,
        Destination::Agent,
        &[(0, number)],
        [bytes.as_slice()].into_iter(),
    );
    // A busy disk makes streams wait, as it makes sessions.
    let written = crate::harness::poll_until(PATIENCE, || {
        match journal.append(std::mem::take(&mut batch), Class::Stream) {
            Ok(_) => true,
            Err(refused) if refused.cause == Cause::Busy => {
                batch = refused.batch;
                false
            }
            Err(refused) => panic!("{refused}"),
        }
    });
    assert!(written, "the disk stays busy");
    all.push(Known { stream: session.id, seq: i64::try_from(seq).unwrap(), raw: bytes });
    let chunks: Vec<_> = (0..5)
        .map(|at| {
            let text = json!({ "type": "text", "text": format!("chunk {number}.{at} ") });
            update(json!({ "sessionUpdate": "agent_message_chunk", "content": text }))
        })
        .collect();
    all.extend(append(journal, session, Origin::Agent, Destination::Editor, &chunks));
    let id = format!("call-{number}");
    let calls = [
        update(json!({ "sessionUpdate": "tool_call", "toolCallId": id, "title": "Edit", "kind": "edit",
            "status": "pending", "rawInput": { "path": "/w/a.rs" }, "locations": [{ "path": "/w/a.rs" }] })),
        update(json!({ "sessionUpdate": "tool_call_update", "toolCallId": id, "status": "completed",
            "content": [{ "type": "diff", "path": "/w/a.rs", "oldText": "a", "newText": "b" }],
            "rawOutput": { "ok": true } })),
        update(json!({ "sessionUpdate": "usage_update", "used": 1000 + number, "size": 200_000,
            "cost": { "amount": 0.25 * number as f64, "currency": "USD" } })),
    ];
    all.extend(append(journal, session, Origin::Agent, Destination::Editor, &calls));
    let answer = line(json!({ "jsonrpc": "2.0", "id": number, "result": { "stopReason": "end_turn" } }));
    all.extend(append(journal, session, Origin::Agent, Destination::Editor, &[answer]));
    all
}

/// A session of so many turns.
pub fn session(journal: &Journal, turns: u64) -> (Stream, Vec<Known>) {
    let session = stream(StreamKind::Session);
    let mut all = open_session(journal, session);
    for number in 1..=turns {
        all.extend(turn(journal, session, number));
    }
    (session, all)
}

/// The same in the order of the ledger.
pub fn sorted(mut frames: Vec<Known>) -> Vec<Known> {
    frames.sort();
    frames
}

/// A connection to a SQLite file, for tests that get in the way.
pub async fn open_file(file: &Path) -> SqliteConnection {
    use sqlx::ConnectOptions as _;
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(file).busy_timeout(PATIENCE);
    options.connect().await.unwrap()
}
