//! A recorded ledger, and ways to do what nobody may.

use std::time::Duration;

use conductor::{
    journal::{Batch, Class, Journal},
    ledger::{
        Settings,
        evidence::{
            checkpoint::Entry,
            finding::{Finding, What},
            key::Key,
            verify::{Options, Report, verify},
        },
        row::COLUMNS,
    },
    record::{Destination, Origin, Stream, now_us},
    tasks::Tasks,
};
use conductor_tests::shipping::{Bench, caught_up, session, ship, turn};
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, SqliteConnection};
use uuid::Uuid;

/// Numbers that look random and are the same in every run.
pub struct Dice(pub u64);

impl Dice {
    /// Below a bound.
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((mixed ^ (mixed >> 31)) % bound as u64).unwrap()
    }
}

/// A frame that nothing but a request for permission and its answer needs.
fn append(
    journal: &Journal,
    stream: Stream,
    origin: Origin,
    to: Destination,
    outgoing: &[(u32, u64)],
    value: &Value,
) {
    let mut batch = Batch::new();
    let bytes = value.to_string().into_bytes();
    let seq = journal.next_seq(stream.id);
    batch.push(stream, seq, now_us(), origin, to, outgoing, [bytes.as_slice()].into_iter());
    journal.append(batch, Class::Stream).unwrap();
}

/// Asks for permission, and is answered.
pub fn decision(journal: &Journal, session: Stream, number: u64) {
    let call = json!({ "toolCallId": format!("call-{number}"), "title": "Edit", "kind": "edit" });
    let options = json!([{ "kind": "allow_once", "name": "Yes", "optionId": "yes" }]);
    let asked = json!({ "jsonrpc": "2.0", "id": 70 + number, "method": "session/request_permission",
        "params": { "sessionId": "s-1", "toolCall": call, "options": options } });
    append(journal, session, Origin::Agent, Destination::Editor, &[(0, 1000 + number)], &asked);
    let answer = json!({ "jsonrpc": "2.0", "id": 1000 + number,
        "result": { "outcome": { "outcome": "selected", "optionId": "yes" } } });
    append(journal, session, Origin::Editor, Destination::Agent, &[], &answer);
}

/// Runs a command.
pub fn command(journal: &Journal, session: Stream, line: &str) {
    let asked = json!({ "jsonrpc": "2.0", "id": "run", "method": "terminal/create",
        "params": { "sessionId": "s-1", "command": line } });
    append(journal, session, Origin::Agent, Destination::Editor, &[], &asked);
}

/// Settings that sign only when told to, or at the end.
pub fn slowly(bench: &Bench) -> Settings {
    let mut settings = bench.settings();
    settings.evidence.every = Duration::from_secs(3600);
    settings
}

/// Ships what is in the journal, and signs it.
pub async fn shipped(settings: Settings, journal: &Journal) {
    let tasks = Tasks::default();
    let ledger = ship(settings, journal, &tasks).await;
    caught_up(&ledger, journal).await;
    ledger.stop().await;
    tasks.ended().await;
}

/// Three sessions with decisions, signed in two steps.
pub async fn recorded(bench: &Bench) -> (Journal, Vec<Stream>) {
    let journal = bench.journal();
    let mut streams: Vec<_> = (0..2).map(|_| session(&journal, 1).0).collect();
    streams.iter().for_each(|stream| decision(&journal, *stream, 1));
    shipped(slowly(bench), &journal).await;
    turn(&journal, streams[0], 2);
    decision(&journal, streams[0], 2);
    streams.push(session(&journal, 1).0);
    shipped(slowly(bench), &journal).await;
    (journal, streams)
}

/// Checks with the state directory's own key and log, as the command does.
pub async fn checked(settings: &Settings) -> Report {
    checked_with(settings, |_| {}).await
}

pub async fn checked_with(settings: &Settings, change: impl FnOnce(&mut Options)) -> Report {
    let key = Key::load(&settings.evidence.key).unwrap().unwrap();
    let log = Some(settings.evidence.log.clone());
    let mut options = Options { keys: vec![*key.public()], log, ..Options::default() };
    change(&mut options);
    verify(settings, &options, |_| {}).await.unwrap()
}

/// What was found: what, where, which.
pub fn told(findings: &[Finding]) -> Vec<(What, Option<Uuid>, Option<i64>)> {
    findings.iter().map(|finding| (finding.what, finding.id, finding.number)).collect()
}

/// Somebody with all rights to the database.
pub enum Intruder {
    Postgres(PgConnection),
    Sqlite(SqliteConnection),
}

impl Intruder {
    /// Gets in, and past what keeps rows as they are.
    pub async fn of(bench: &Bench) -> Self {
        if !bench.settings().url.is_empty() {
            let mut connection = bench.database().connect().await;
            let past = "SET session_replication_role = replica; \
                 ALTER TABLE frames DROP CONSTRAINT IF EXISTS frames_from_one; \
                 ALTER TABLE checkpoints DROP CONSTRAINT IF EXISTS checkpoints_from_one";
            sqlx::raw_sql(past).execute(&mut connection).await.unwrap();
            return Self::Postgres(connection);
        }
        let mut connection = conductor_tests::shipping::open_file(&bench.file()).await;
        let triggers: Vec<String> =
            sqlx::query_scalar("SELECT name FROM sqlite_schema WHERE type = 'trigger'")
                .fetch_all(&mut connection)
                .await
                .unwrap();
        for trigger in triggers {
            let statement = format!("DROP TRIGGER {trigger}");
            sqlx::raw_sql(AssertSqlSafe(statement)).execute(&mut connection).await.unwrap();
        }
        Self::Sqlite(connection)
    }

    /// Runs statements that change something. How many rows that were.
    pub async fn run(&mut self, statement: &str) -> u64 {
        let sql = sqlx::raw_sql(AssertSqlSafe(statement.to_owned()));
        let failed = |error: sqlx::Error| -> u64 { panic!("{statement}: {error}") };
        match self {
            Self::Postgres(connection) => {
                sql.execute(connection).await.map_or_else(failed, |done| done.rows_affected())
            }
            Self::Sqlite(connection) => {
                sql.execute(connection).await.map_or_else(failed, |done| done.rows_affected())
            }
        }
    }

    /// Puts a copy of a frame somewhere: its new stream and number, as SQL.
    pub async fn copy_frame(&mut self, stream: Uuid, seq: i64, to: (&str, &str)) {
        let columns = COLUMNS.map(|column| match column {
            "stream_id" => to.0,
            "seq" => to.1,
            other => other,
        });
        self.run(&format!(
            "INSERT INTO frames ({}) SELECT {} FROM frames WHERE stream_id = '{stream}' AND seq = {seq}",
            COLUMNS.join(", "),
            columns.join(", ")
        ))
        .await;
    }

    /// Puts a checkpoint into the tables.
    pub async fn put_checkpoint(&mut self, Entry { checkpoint: it, heads }: &Entry) {
        let byte = |at: usize| u8::from_str_radix(&it.signature[at..at + 2], 16).unwrap();
        let signature: Vec<u8> = (0..it.signature.len()).step_by(2).map(byte).collect();
        let (previous, root) = (self.bytes(&it.previous), self.bytes(&it.root));
        let signature = self.bytes(&signature);
        self.run(&format!(
            "INSERT INTO checkpoints (journal_id, number, kind, at_us, previous, root, leaves, key_id, signature, \
             note) VALUES ('{}', {}, '{}', {}, {previous}, {root}, {}, '{}', {signature}, '{}')",
            it.journal,
            it.number,
            it.kind.name(),
            it.at_us,
            it.leaves,
            it.key_id,
            it.note
        ))
        .await;
        for head in heads {
            let chain = self.bytes(&head.chain);
            self.run(&format!(
                "INSERT INTO checkpoint_heads (journal_id, number, stream_id, seq, chain) \
                 VALUES ('{}', {}, '{}', {}, {chain})",
                it.journal, it.number, head.stream, head.seq
            ))
            .await;
        }
    }

    /// Bytes as this database writes them.
    pub fn bytes(&self, bytes: &[u8]) -> String {
        let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        match self {
            Self::Postgres(_) => format!("'\\x{digits}'::bytea"),
            Self::Sqlite(_) => format!("x'{digits}'"),
        }
    }

    /// Remembers everything, to bring it back.
    pub async fn remember(&mut self) {
        for (table, columns) in tables() {
            self.run(&format!("CREATE TABLE copy_{table} AS SELECT {columns} FROM {table}")).await;
        }
    }

    /// Brings back what was remembered.
    pub async fn undo(&mut self) {
        for (table, columns) in tables() {
            self.run(&format!(
                "DELETE FROM {table}; INSERT INTO {table} ({columns}) SELECT {columns} FROM copy_{table}"
            ))
            .await;
        }
    }

    pub async fn close(self) {
        match self {
            Self::Postgres(connection) => connection.close().await.unwrap(),
            Self::Sqlite(connection) => connection.close().await.unwrap(),
        }
    }
}

fn tables() -> Vec<(&'static str, String)> {
    let decisions = &conductor::ledger::table::TABLES[conductor::ledger::table::DECISIONS];
    let of_decisions: Vec<_> = decisions.columns.iter().map(|column| column.name).collect();
    vec![
        ("frames", COLUMNS.join(", ")),
        ("decisions", of_decisions.join(", ")),
        ("stream_heads", "stream_id, journal_id, seq, chain, checkpoint".to_owned()),
        (
            "checkpoints",
            "journal_id, number, kind, at_us, previous, root, leaves, key_id, signature, note".to_owned(),
        ),
        ("checkpoint_heads", "journal_id, number, stream_id, seq, chain".to_owned()),
        ("frame_conflicts", "stream_id, seq, hash, raw, at_us, origin, journal_id, found_us".to_owned()),
    ]
}
