//! A person's question to the ledger, in SQL, as it was typed. The database
//! itself sees to it that nothing is changed: a read-only transaction in
//! Postgres, a file that is opened for reading in SQLite.

use std::time::{Duration, Instant};

use futures_util::{StreamExt as _, TryStreamExt as _};
use sqlx::{
    AssertSqlSafe, Column as _, Connection as _, Executor as _, PgConnection, SqlSafeStr as _,
    SqliteConnection, Statement as _,
};

use super::{
    cell::{self, Cell},
    error::LedgerError,
    reader::Reader,
    settings::Settings,
};

/// SQLite looks at the clock after so many steps of its machine.
const STEPS: i32 = 10_000;

/// Whoever takes the answer.
pub trait Answer {
    /// The names of the columns; once, before any row.
    fn columns(&mut self, names: &[String]) -> Result<(), Stop>;
    /// A row.
    fn row(&mut self, row: Vec<Cell>) -> Result<(), Stop>;
}

/// Why an answer ended early.
#[derive(Debug)]
pub enum Stop {
    /// The question is wrong, or takes too long: cause and remedy.
    Refused(String),
    /// The ledger cannot be read.
    Ledger(LedgerError),
    /// Nobody takes the answer any more.
    Enough,
    /// It cannot be written.
    Output(std::io::Error),
}

impl From<LedgerError> for Stop {
    fn from(error: LedgerError) -> Self {
        Self::Ledger(error)
    }
}

/// Asks. One statement, which may take so long.
pub async fn ask(
    settings: &Settings,
    sql: &str,
    limit: Duration,
    answer: &mut impl Answer,
) -> Result<(), Stop> {
    if sql.trim().trim_matches(';').trim().is_empty() {
        return Err(Stop::Refused("there is no statement".to_owned()));
    }
    let asked = match Reader::open(settings).await? {
        Reader::Postgres(mut connection) => postgres(&mut connection, sql, limit, answer).await,
        Reader::Sqlite(mut connection) => sqlite(&mut connection, sql, limit, answer).await,
    };
    asked.map_err(|stop| match stop {
        Stop::Ledger(error) => Stop::Ledger(settings.hide(error)),
        other => other,
    })
}

async fn postgres(
    connection: &mut PgConnection,
    sql: &str,
    limit: Duration,
    answer: &mut impl Answer,
) -> Result<(), Stop> {
    let say = |error: sqlx::Error| explain(error, limit);
    let mut reading = connection
        .begin_with("BEGIN TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        .await
        .map_err(|error| Stop::Ledger(error.into()))?;
    // A statement of ours comes first: after one, no transaction becomes
    // writable again.
    let milliseconds = limit.as_millis().clamp(1, i32::MAX as u128);
    let timeout = format!("SELECT set_config('statement_timeout', '{milliseconds}', true)");
    reading.execute(AssertSqlSafe(timeout)).await.map_err(say)?;
    // Preparing takes one statement only, so nobody can end the transaction and
    // go on; and it knows the columns of an answer without rows.
    let statement = AssertSqlSafe(sql).into_sql_str();
    let prepared = (&mut *reading).prepare(statement.clone()).await.map_err(say)?;
    if prepared.parameters().is_some_and(|needed| needed.either(|list| !list.is_empty(), |n| n > 0)) {
        return Err(Stop::Refused("$1 and the like have no values here; write the values".to_owned()));
    }
    let names: Vec<_> = prepared.columns().iter().map(|column| column.name().to_owned()).collect();
    answer.columns(&names)?;
    // The simple protocol answers in text, whatever the type.
    let mut rows = sqlx::raw_sql(statement).fetch(&mut *reading);
    while let Some(row) = rows.try_next().await.map_err(say)? {
        answer.row(cell::of_postgres(&row)?)?;
    }
    Ok(())
}

async fn sqlite(
    connection: &mut SqliteConnection,
    sql: &str,
    limit: Duration,
    answer: &mut impl Answer,
) -> Result<(), Stop> {
    let say = |error: sqlx::Error| explain(error, limit);
    if !is_one_statement(sql) {
        return Err(Stop::Refused("one statement at a time".to_owned()));
    }
    sqlx::raw_sql("PRAGMA query_only = on").execute(&mut *connection).await.map_err(say)?;
    let until = Instant::now() + limit;
    let mut handle = connection.lock_handle().await.map_err(say)?;
    handle.set_progress_handler(STEPS, move || Instant::now() < until);
    drop(handle);
    let statement = AssertSqlSafe(sql).into_sql_str();
    let prepared = (&mut *connection).prepare(statement.clone()).await.map_err(say)?;
    let names: Vec<_> = prepared.columns().iter().map(|column| column.name().to_owned()).collect();
    answer.columns(&names)?;
    let mut rows = sqlx::raw_sql(statement).fetch(connection).boxed();
    while let Some(row) = rows.try_next().await.map_err(say)? {
        answer.row(cell::of_sqlite(&row)?)?;
    }
    Ok(())
}

/// What the database has against a question, in words.
fn explain(error: sqlx::Error, limit: Duration) -> Stop {
    let sqlx::Error::Database(refused) = &error else { return Stop::Ledger(error.into()) };
    let code = refused.code().unwrap_or_default();
    let text = refused.message();
    let postgres = refused.try_downcast_ref::<sqlx::postgres::PgDatabaseError>();
    let too_long = || {
        let seconds = limit.as_secs_f64();
        Stop::Refused(format!("no answer within {seconds} s; give it longer with --timeout"))
    };
    let written = || Stop::Refused(format!("the ledger is open for reading only: {text}"));
    if let Some(refused) = postgres {
        let hint = refused.hint().map(|hint| format!(" ({hint})")).unwrap_or_default();
        return match &*code {
            "57014" => too_long(),
            "25006" | "25001" => written(),
            // The server is going, has no room, or does not know us.
            code if ["08", "53", "57", "28"].iter().any(|class| code.starts_with(class)) => {
                Stop::Ledger(error.into())
            }
            _ => Stop::Refused(format!("{text}{hint}")),
        };
    }
    let primary = code.parse::<u32>().unwrap_or_default() & 0xff;
    match primary {
        // INTERRUPT
        9 => too_long(),
        // PERM, READONLY
        3 | 8 => written(),
        // ERROR, AUTH, MISMATCH, MISUSE, RANGE: the question is wrong.
        1 | 20 | 21 | 23 | 25 => Stop::Refused(text.to_owned()),
        _ => Stop::Ledger(error.into()),
    }
}

/// Whether nothing but blanks and comments follows the first `;`. Postgres
/// finds that out by itself.
fn is_one_statement(sql: &str) -> bool {
    let mut rest = sql;
    let mut ended = false;
    while let Some(first) = rest.chars().next() {
        let after = |open: usize, close: &str| {
            rest[open..].find(close).map_or("", |at| &rest[open + at + close.len()..])
        };
        rest = match first {
            '-' if rest.starts_with("--") => after(2, "\n"),
            '/' if rest.starts_with("/*") => after(2, "*/"),
            c if c.is_whitespace() => &rest[c.len_utf8()..],
            ';' => {
                ended = true;
                &rest[1..]
            }
            _ if ended => return false,
            // A quote within quotes is written twice: that looks like two texts.
            '\'' => after(1, "'"),
            '"' => after(1, "\""),
            '`' => after(1, "`"),
            '[' => after(1, "]"),
            c => &rest[c.len_utf8()..],
        };
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_statement_is_told_from_two() {
        for one in [
            "SELECT 1",
            "SELECT 1;",
            "SELECT ';' AS \"a;b\", [c;d], `e;f` -- ; g\n; /* ; */ -- end",
            "SELECT 'it''s; fine';",
            "SELECT é;",
            "/* unfinished ; ",
        ] {
            assert!(is_one_statement(one), "{one}");
        }
        for two in ["SELECT 1; SELECT 2", "SELECT 1;;x", "SELECT ';'; DELETE FROM frames"] {
            assert!(!is_one_statement(two), "{two}");
        }
    }
}
