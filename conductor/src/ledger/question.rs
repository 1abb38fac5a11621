//! Our own questions to the ledger: one text for both databases, with values
//! apart from it.

use futures_util::TryStreamExt as _;
use sqlx::AssertSqlSafe;
use uuid::Uuid;

use super::{
    cell::{self, Cell, Cells},
    error::LedgerError,
    reader::Reader,
    sink::Sink,
};

/// A value in a question.
#[derive(Debug, Clone)]
pub(super) enum Value {
    Id(Uuid),
    Int(i64),
    Text(String),
}

/// A question that grows: text, and the values behind its `$1`, `$2` …
#[derive(Debug, Default)]
pub(super) struct Question {
    text: String,
    values: Vec<Value>,
}

impl Question {
    /// Begins with a text of ours.
    pub(super) fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), values: Vec::new() }
    }

    /// Adds text of ours.
    pub(super) fn push(&mut self, text: &str) {
        self.text.push_str(text);
    }

    /// Adds text of ours in which `?` stands for the value, everywhere.
    pub(super) fn bind(&mut self, text: &str, value: Value) {
        self.values.push(value);
        self.text.push_str(&text.replace('?', &format!("${}", self.values.len())));
    }
}

/// What a question may be answered with.
pub(super) trait Record: Sized {
    /// What to select.
    const COLUMNS: &'static [&'static str];

    /// A row of it.
    fn from_row(row: Cells) -> Result<Self, LedgerError>;
}

/// Binds the values of a question, for whichever database.
macro_rules! bound {
    ($question:expr, $id:expr) => {{
        let Question { text, values } = $question;
        // Pieces of ours, and placeholders.
        let mut query = sqlx::query(AssertSqlSafe(text));
        for value in values {
            query = match value {
                Value::Id(id) => query.bind($id(id)),
                Value::Int(number) => query.bind(number),
                Value::Text(text) => query.bind(text),
            };
        }
        query
    }};
}

impl Sink {
    /// The rows that answer a question, however long that takes.
    pub(super) async fn fetch(&mut self, question: Question) -> Result<Vec<Cells>, LedgerError> {
        let mut found = Vec::new();
        match self {
            Self::Postgres(sink) => {
                let mut rows = bound!(question, |id: Uuid| id).fetch(sink.connection());
                while let Some(row) = rows.try_next().await? {
                    found.push(Cells::new(cell::of_postgres(&row)?));
                }
            }
            Self::Sqlite(sink) => {
                let mut rows = bound!(question, |id: Uuid| id.to_string()).fetch(sink.connection());
                while let Some(row) = rows.try_next().await? {
                    found.push(Cells::new(cell::of_sqlite(&row)?));
                }
            }
        }
        Ok(found)
    }

    /// Runs a statement with values, however long that takes. How many rows it changed.
    pub(super) async fn change(&mut self, question: Question) -> Result<u64, LedgerError> {
        Ok(match self {
            Self::Postgres(sink) => {
                bound!(question, |id: Uuid| id).execute(sink.connection()).await?.rows_affected()
            }
            Self::Sqlite(sink) => {
                bound!(question, |id: Uuid| id.to_string()).execute(sink.connection()).await?.rows_affected()
            }
        })
    }
}

impl Reader {
    /// All answers; of large ones, no more than about so many bytes.
    pub(super) async fn ask<T: Record>(
        &mut self,
        question: Question,
        max_bytes: usize,
    ) -> Result<Vec<T>, LedgerError> {
        let Question { text, values } = question;
        // Pieces of ours, and placeholders.
        let text = AssertSqlSafe(text);
        let (mut answers, mut bytes) = (Vec::new(), 0);
        let mut add = |row: Vec<Cell>| {
            bytes += row.iter().map(Cell::size).sum::<usize>();
            answers.push(T::from_row(Cells::new(row))?);
            Ok::<_, LedgerError>(bytes < max_bytes)
        };
        match self {
            Self::Postgres(connection) => {
                let mut query = sqlx::query(text);
                for value in values {
                    query = match value {
                        Value::Id(id) => query.bind(id),
                        Value::Int(number) => query.bind(number),
                        Value::Text(text) => query.bind(text),
                    };
                }
                let mut rows = query.fetch(&mut **connection);
                while let Some(row) = rows.try_next().await? {
                    if !add(cell::of_postgres(&row)?)? {
                        break;
                    }
                }
            }
            Self::Sqlite(connection) => {
                let mut query = sqlx::query(text);
                for value in values {
                    query = match value {
                        Value::Id(id) => query.bind(id.to_string()),
                        Value::Int(number) => query.bind(number),
                        Value::Text(text) => query.bind(text),
                    };
                }
                let mut rows = query.fetch(&mut **connection);
                while let Some(row) = rows.try_next().await? {
                    if !add(cell::of_sqlite(&row)?)? {
                        break;
                    }
                }
            }
        }
        Ok(answers)
    }
}
