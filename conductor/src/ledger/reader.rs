//! A connection for questions: it cannot change anything, and a question that
//! takes too long is ended.

use std::time::{Duration, Instant};

use sqlx::{ConnectOptions as _, PgConnection, SqliteConnection};
use tokio::time::timeout;

use super::{
    error::LedgerError,
    settings::{Place, Settings},
    sqlite,
};

/// A connection may take so long.
const CONNECT: Duration = Duration::from_secs(10);

/// A file has no limit of its own. A connection to it lives for one question,
/// which may take as long as in Postgres; SQLite looks at the clock after so
/// many steps of its machine.
const QUESTION: Duration = Duration::from_secs(30);
const STEPS: i32 = 10_000;

/// Read-only, and no question takes longer than half a minute.
const LIMITS: &str =
    "SET default_transaction_read_only = on; SET statement_timeout = '30s'; SET lock_timeout = '10s'";

/// A read-only connection to the ledger.
#[derive(Debug)]
pub enum Reader {
    /// To a server.
    Postgres(Box<PgConnection>),
    /// To a file.
    Sqlite(Box<SqliteConnection>),
}

impl Reader {
    /// Connects for many questions, without a limit of time for any.
    pub async fn open_for_long(settings: &Settings) -> Result<Self, LedgerError> {
        let mut opened = Self::open(settings).await?;
        match &mut opened {
            Self::Postgres(connection) => {
                let limits = "SET statement_timeout = 0";
                sqlx::raw_sql(limits).execute(&mut **connection).await.map_err(LedgerError::from)?;
            }
            Self::Sqlite(connection) => connection.lock_handle().await?.remove_progress_handler(),
        }
        Ok(opened)
    }

    /// Connects. A file that is not there is not made.
    pub async fn open(settings: &Settings) -> Result<Self, LedgerError> {
        let opening = async {
            match settings.place()? {
                Place::Postgres(options) => {
                    let mut connection = options.connect().await?;
                    sqlx::raw_sql(LIMITS).execute(&mut connection).await?;
                    Ok(Self::Postgres(Box::new(connection)))
                }
                Place::Sqlite(file) => {
                    let mut connection = sqlite::to_read(&file).connect().await.map_err(LedgerError::from)?;
                    let until = Instant::now() + QUESTION;
                    let mut handle = connection.lock_handle().await?;
                    handle.set_progress_handler(STEPS, move || Instant::now() < until);
                    drop(handle);
                    Ok(Self::Sqlite(Box::new(connection)))
                }
            }
        };
        let opened = timeout(CONNECT, opening).await.unwrap_or_else(|_| {
            Err(LedgerError::Unavailable("the database does not answer; history is unavailable".to_owned()))
        });
        opened.map_err(|error| settings.hide(error))
    }
}
