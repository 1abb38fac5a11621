//! Whether the rows that are looked for by ids and numbers have ids and numbers. A file takes
//! anything in any column, and an id that is written otherwise is found by nobody who looks for it.

use uuid::Uuid;

use super::questions::Row;
use crate::ledger::{
    error::LedgerError,
    evidence::finding::{Finding, What},
    question::Question,
    reader::Reader,
};

/// So many rows of a table are named.
const NAMED: usize = 100;

/// What a column of these tables holds.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Holds {
    Id,
    IdOrNull,
    Int,
    IntOrNull,
    Text,
    Bytes,
}

use Holds::{Bytes, Id, IdOrNull, Int, IntOrNull, Text};

/// Columns, those by which rows are found first.
type Columns = &'static [(&'static str, Holds)];

const TABLES: [(&str, What, Columns); 5] = [
    // The other columns are looked at row by row.
    ("frames", What::Altered, &[("stream_id", Id), ("seq", Int)]),
    ("frame_conflicts", What::Conflict, &[("stream_id", Id), ("seq", Int)]),
    (
        "stream_heads",
        What::HeadsDisagree,
        &[
            ("stream_id", Id),
            ("seq", Int),
            ("chain", Bytes),
            ("checkpoint", IntOrNull),
            ("journal_id", IdOrNull),
        ],
    ),
    (
        "checkpoints",
        What::CheckpointAltered,
        &[
            ("journal_id", Id),
            ("number", Int),
            ("kind", Text),
            ("at_us", Int),
            ("previous", Bytes),
            ("root", Bytes),
            ("leaves", Int),
            ("key_id", Text),
            ("signature", Bytes),
            ("note", Text),
        ],
    ),
    (
        "checkpoint_heads",
        What::CheckpointAltered,
        &[("journal_id", Id), ("number", Int), ("stream_id", Id), ("seq", Int), ("chain", Bytes)],
    ),
];

impl Holds {
    /// That a column of a file holds it.
    fn condition(self, column: &str) -> String {
        // Letters are written small, and nothing comes behind: not even what text ends at.
        let digits = |count: usize| "[0-9a-f]".repeat(count);
        let id = [8, 4, 4, 4, 12].map(digits).join("-");
        let id = format!(
            "(typeof({column}) = 'text' AND length(CAST({column} AS BLOB)) = 36 AND {column} GLOB '{id}')"
        );
        match self {
            Self::Id => id,
            Self::IdOrNull => format!("({column} IS NULL OR {id})"),
            Self::Int => format!("typeof({column}) = 'integer'"),
            Self::IntOrNull => format!("typeof({column}) IN ('integer', 'null')"),
            Self::Text => format!("typeof({column}) = 'text'"),
            Self::Bytes => format!("typeof({column}) = 'blob'"),
        }
    }
}

impl Reader {
    /// Rows that nobody would find, or that cannot be read. A server's columns have types.
    pub(super) async fn misshapen(&mut self) -> Result<Vec<Finding>, LedgerError> {
        let Self::Sqlite(_) = self else { return Ok(Vec::new()) };
        let mut findings = Vec::new();
        for (table, what, columns) in TABLES {
            let conditions: Vec<_> = columns.iter().map(|(column, holds)| holds.condition(column)).collect();
            let (id, number) = (columns[0].0, columns[1].0);
            let question = Question::new(format!(
                "SELECT CAST({id} AS text), CAST({number} AS text) FROM {table} WHERE NOT ({}) LIMIT {NAMED}",
                conditions.join(" AND ")
            ));
            for Row(row) in self.ask(question, usize::MAX).await? {
                let [id, number] = [0, 1].map(|at| row.get(at).cloned().flatten().unwrap_or_default());
                let why = format!(
                    "a row of {table} with {id:?} and {number:?} is not written as the ledger writes ids and numbers; \
                     nothing else was looked at"
                );
                let (id, number) = (Uuid::try_parse(&id).ok(), number.parse().ok());
                findings.push(Finding { what, id, number, why });
            }
        }
        Ok(findings)
    }
}
