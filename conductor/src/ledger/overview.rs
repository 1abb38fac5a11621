//! How large a ledger is, and up to when it has what.

use super::{
    cell::Cells,
    error::LedgerError,
    question::{Question, Record},
    reader::Reader,
    settings::Settings,
};

/// The tables that are counted. `frames` is too large for that: every session
/// knows how many it has.
const COUNTED: [&str; 5] = ["sessions", "turns", "tool_calls", "decisions", "frame_conflicts"];

/// What a ledger holds.
#[derive(Debug)]
pub struct Overview {
    /// The version of its schema.
    pub schema_version: i64,
    /// How much room it takes.
    pub bytes: i64,
    /// How many rows tables have; for `frames`, those of sessions.
    pub rows: Vec<(&'static str, i64)>,
    /// When the last frame of a session was recorded.
    pub last_frame_us: Option<i64>,
    /// The journals that are carried over.
    pub journals: Vec<JournalRow>,
}

/// How far a journal has been carried over.
#[derive(Debug)]
pub struct JournalRow {
    /// The journal.
    pub journal_id: String,
    /// The host it is on.
    pub host: Option<String>,
    /// The segment reached.
    pub segment: i64,
    /// The place reached in it.
    pub byte_offset: i64,
    /// When that was.
    pub updated_us: i64,
}

impl Overview {
    /// Frames that came under a number which another has.
    pub fn conflicts(&self) -> i64 {
        self.rows.iter().find(|(table, _)| *table == "frame_conflicts").map_or(0, |(_, rows)| *rows)
    }
}

struct Number(Option<i64>);

impl Record for Number {
    const COLUMNS: &'static [&'static str] = &[];

    fn from_row(mut row: Cells) -> Result<Self, LedgerError> {
        Ok(Self(row.take()?))
    }
}

impl Record for JournalRow {
    const COLUMNS: &'static [&'static str] =
        &["CAST(journal_id AS text)", "host", "segment", "byte_offset", "updated_us"];

    fn from_row(mut row: Cells) -> Result<Self, LedgerError> {
        Ok(Self {
            journal_id: row.take()?,
            host: row.take()?,
            segment: row.take()?,
            byte_offset: row.take()?,
            updated_us: row.take()?,
        })
    }
}

/// Looks.
pub async fn of(settings: &Settings) -> Result<Overview, LedgerError> {
    let mut reader = Reader::open(settings).await?;
    look(&mut reader).await.map_err(|error| settings.hide(error))
}

async fn look(reader: &mut Reader) -> Result<Overview, LedgerError> {
    let bytes = match reader {
        Reader::Postgres(_) => "SELECT pg_database_size(current_database())",
        Reader::Sqlite(_) => "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size",
    };
    let schema = "SELECT max(version) FROM _sqlx_migrations WHERE success";
    let schema_version = number(reader, schema).await?.unwrap_or_default();
    let bytes = number(reader, bytes).await?.unwrap_or_default();
    let frames = "SELECT CAST(COALESCE(sum(frames), 0) AS bigint) FROM sessions";
    let mut rows = vec![("frames", number(reader, frames).await?.unwrap_or_default())];
    for table in COUNTED {
        let counted = number(reader, &format!("SELECT count(*) FROM {table}")).await?;
        rows.push((table, counted.unwrap_or_default()));
    }
    let last_frame_us = number(reader, "SELECT max(updated_us) FROM sessions").await?;
    let columns = JournalRow::COLUMNS.join(", ");
    let journals = Question::new(format!("SELECT {columns} FROM journals ORDER BY updated_us DESC"));
    let journals = reader.ask(journals, usize::MAX).await?;
    Ok(Overview { schema_version, bytes, rows, last_frame_us, journals })
}

async fn number(reader: &mut Reader, text: &str) -> Result<Option<i64>, LedgerError> {
    let found: Vec<Number> = reader.ask(Question::new(text), usize::MAX).await?;
    Ok(found.first().and_then(|number| number.0))
}
