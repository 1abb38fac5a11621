//! What can go wrong with the ledger's database, as far as it makes a
//! difference: most of it is waited out, a row that the database refuses is
//! not, and a newer schema is somebody else's decision.

use sqlx::error::DatabaseError;

/// Why the ledger could not be read or written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LedgerError {
    /// The settings make no sense, whatever the database says.
    #[error("{0}")]
    Settings(String),
    /// Another program has migrated the database.
    #[error(
        "the ledger's schema is version {found}, but this conductor knows versions up to {known}: \
         upgrade the conductor, or set ledger.url to another database"
    )]
    Newer {
        /// The version of the database.
        found: i64,
        /// The newest one known here.
        known: i64,
    },
    /// The database refuses a value. Trying again would not help.
    #[error("the database refuses a value: {0}")]
    Value(String),
    /// A row of that key is there already.
    #[error("a row of that key is there already: {0}")]
    Duplicate(String),
    /// The file of a SQLite ledger is not what it should be.
    #[error("the ledger's file is damaged: {0}")]
    Corrupt(String),
    /// Anything else; it may go away.
    #[error("{0}")]
    Unavailable(String),
}

impl LedgerError {
    /// The same with a text changed, as to take a secret out.
    pub fn map_text(self, change: impl Fn(&str) -> String) -> Self {
        match self {
            Self::Settings(text) => Self::Settings(change(&text)),
            Self::Value(text) => Self::Value(change(&text)),
            Self::Duplicate(text) => Self::Duplicate(change(&text)),
            Self::Corrupt(text) => Self::Corrupt(change(&text)),
            Self::Unavailable(text) => Self::Unavailable(change(&text)),
            Self::Newer { found, known } => Self::Newer { found, known },
        }
    }
}

impl From<sqlx::Error> for LedgerError {
    fn from(error: sqlx::Error) -> Self {
        match &error {
            sqlx::Error::Database(refused) => from_database(refused.as_ref()),
            sqlx::Error::Io(io) => Self::Unavailable(format!(
                "the database is not reached: {io}; see that it runs, and that ledger.url or --database-url names it"
            )),
            sqlx::Error::Encode(_) => Self::Value(error.to_string()),
            _ => Self::Unavailable(error.to_string()),
        }
    }
}

impl From<sqlx::migrate::MigrateError> for LedgerError {
    fn from(error: sqlx::migrate::MigrateError) -> Self {
        use sqlx::migrate::MigrateError;
        match error {
            MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _) => {
                match Self::from(error) {
                    // A migration that fails is no fault of a row's.
                    Self::Value(text) | Self::Duplicate(text) => Self::Unavailable(text),
                    other => other,
                }
            }
            other => Self::Unavailable(format!("the ledger's schema cannot be brought up to date: {other}")),
        }
    }
}

fn from_database(error: &dyn DatabaseError) -> LedgerError {
    let code = error.code().unwrap_or_default();
    let text = format!("{} ({code})", error.message());
    let is_postgres = error.try_downcast_ref::<sqlx::postgres::PgDatabaseError>().is_some();
    if is_postgres { from_postgres(&code, text) } else { from_sqlite(&code, text) }
}

/// The table that is there as soon as any is.
const FIRST_TABLE: &str = "_sqlx_migrations";

/// By SQLSTATE; the class is its first two characters.
fn from_postgres(code: &str, text: String) -> LedgerError {
    let remedy = match code {
        "42P01" if text.contains(FIRST_TABLE) => {
            let why = "the database has no tables of the ledger yet; `conductor serve` or `conductor ledger migrate` \
                       makes them";
            return LedgerError::Unavailable(why.to_owned());
        }
        "23505" => return LedgerError::Duplicate(text),
        "25006" => "the database is read-only; make it writable or set ledger.url to one that is",
        "28P01" | "28000" => {
            "check ledger.url and ledger.password_file, or owner_url and owner_password_file; files are read again \
             at every attempt"
        }
        "3D000" => "create the database, or correct ledger.url",
        "42501" => "grant the role its rights, or set ledger.owner_url, which does so at start",
        "42P01" | "42703" => {
            "the ledger's schema is not complete; set ledger.owner_url to a role that may migrate"
        }
        "53100" => "the database's disk is full",
        "55P03" | "57014" => "somebody holds a lock, or the server is slow",
        _ => match code.get(..2) {
            // Data exceptions, violated constraints, limits of the program.
            Some("22" | "23" | "54") => return LedgerError::Value(text),
            _ => return LedgerError::Unavailable(text),
        },
    };
    LedgerError::Unavailable(format!("{text}: {remedy}"))
}

/// By SQLite's extended result code; the primary one is its last byte.
fn from_sqlite(code: &str, text: String) -> LedgerError {
    let extended: u32 = code.parse().unwrap_or_default();
    match (extended, extended & 0xff) {
        // Of the primary key, of another unique index.
        (1555 | 2067, _) => LedgerError::Duplicate(text),
        // CORRUPT, NOTADB
        (_, 11 | 26) => LedgerError::Corrupt(text),
        // TOOBIG, CONSTRAINT, MISMATCH
        (_, 18..=20) => LedgerError::Value(text),
        // BUSY, LOCKED
        (_, 5 | 6) => LedgerError::Unavailable(format!("{text}: another program has the ledger's file")),
        // FULL
        (_, 13) => LedgerError::Unavailable(format!("{text}: make room on the disk of the state directory")),
        _ => LedgerError::Unavailable(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_database_is_told_from_one_whose_schema_is_older() {
        let said = |text: &str| from_postgres("42P01", text.to_owned()).to_string();
        let empty = said("relation \"_sqlx_migrations\" does not exist (42P01)");
        assert!(empty.contains("no tables of the ledger yet; `conductor serve`"), "{empty}");
        let older = said("relation \"search_docs\" does not exist (42P01)");
        assert!(older.contains("search_docs") && older.contains("set ledger.owner_url"), "{older}");
    }
}
