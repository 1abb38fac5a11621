//! What keeps recorded rows as they are, lifted for one transaction of the
//! owner's: a rebuild makes decisions anew, an erasure takes bytes away. Nobody
//! else sees the tables without it.

use sqlx::AssertSqlSafe;

use super::{error::LedgerError, sink::Sink};

/// What was lifted, to be put back before the transaction ends.
#[derive(Debug)]
#[must_use = "what is lifted must be put back"]
pub struct Lifted {
    table: &'static str,
    /// The triggers of SQLite, which has no other way than to make them anew.
    triggers: Vec<String>,
}

impl Sink {
    /// Lifts it from a table, within a transaction. Postgres lets only the owner do so.
    pub async fn lift(&mut self, table: &'static str) -> Result<Lifted, LedgerError> {
        let mut triggers = Vec::new();
        match self {
            Self::Postgres(sink) => {
                let statement = format!("ALTER TABLE {table} DISABLE TRIGGER USER");
                sqlx::raw_sql(AssertSqlSafe(statement)).execute(sink.connection()).await?;
            }
            Self::Sqlite(sink) => {
                let query = sqlx::query_as(
                    "SELECT name, sql FROM sqlite_schema WHERE type = 'trigger' AND tbl_name = ?",
                );
                let found: Vec<(String, String)> = query.bind(table).fetch_all(sink.connection()).await?;
                for (name, sql) in found {
                    let statement = format!("DROP TRIGGER \"{name}\"");
                    sqlx::raw_sql(AssertSqlSafe(statement)).execute(sink.connection()).await?;
                    triggers.push(sql);
                }
            }
        }
        Ok(Lifted { table, triggers })
    }

    /// Puts back what was lifted, within the same transaction.
    pub async fn put_back(&mut self, lifted: Lifted) -> Result<(), LedgerError> {
        match self {
            Self::Postgres(sink) => {
                let statement = format!("ALTER TABLE {} ENABLE TRIGGER USER", lifted.table);
                sqlx::raw_sql(AssertSqlSafe(statement)).execute(sink.connection()).await?;
            }
            Self::Sqlite(sink) => {
                for trigger in lifted.triggers {
                    sqlx::raw_sql(AssertSqlSafe(trigger)).execute(sink.connection()).await?;
                }
            }
        }
        Ok(())
    }
}
