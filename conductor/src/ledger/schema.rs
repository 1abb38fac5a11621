//! The schema of the ledger's database: brought up to date at start, refused if
//! it is newer than this program.

use sqlx::{
    AssertSqlSafe, Connection as _, PgConnection, SqliteConnection,
    migrate::{Migrate as _, Migrator},
    postgres::PgConnectOptions,
};
use tracing::info;

use super::{error::LedgerError, postgres::Postgres, table::TABLES};

static POSTGRES: Migrator = sqlx::migrate!("../migrations/postgres");
static SQLITE: Migrator = sqlx::migrate!("../migrations/sqlite");

/// The version that brought chains and checkpoints.
pub const CHAINS: i64 = 11;

/// The newest version this program knows of a database.
fn newest(migrator: &Migrator) -> i64 {
    migrator.iter().map(|migration| migration.version).max().unwrap_or_default()
}

/// Whether there is something to do. A newer schema is refused, because this
/// program cannot know what its columns mean.
fn is_behind(found: i64, migrator: &Migrator) -> Result<bool, LedgerError> {
    let known = newest(migrator);
    if found > known { Err(LedgerError::Newer { found, known }) } else { Ok(found < known) }
}

/// Brings a Postgres up to date: by the owner, if there is one, who then also
/// gives the writing role its rights. sqlx takes a lock, so several conductors
/// may start at once.
pub async fn migrate_postgres(
    writer: &mut Postgres,
    owner: Option<&PgConnectOptions>,
    role: &str,
) -> Result<(), LedgerError> {
    let behind = match version_of_postgres(writer.connection()).await {
        Ok(found) => is_behind(found, &POSTGRES)?,
        // The role may not even look; the owner may.
        Err(_) if owner.is_some() => true,
        Err(error) => return Err(error),
    };
    if !behind {
        return Ok(());
    }
    match owner {
        None => run_postgres(writer.connection()).await?,
        Some(options) => migrate_as_owner(options, role).await?,
    }
    info!(version = newest(&POSTGRES), "the ledger's schema is up to date");
    Ok(())
}

/// The same by the owner alone.
pub async fn migrate_as_owner(options: &PgConnectOptions, role: &str) -> Result<(), LedgerError> {
    let mut owner = Postgres::connect(options).await?;
    // A big table takes longer to change than any statement should.
    owner.run("SET statement_timeout = 0; SET lock_timeout = 0").await?;
    is_behind(version_of_postgres(owner.connection()).await?, &POSTGRES)?;
    run_postgres(owner.connection()).await?;
    grant(owner.connection(), role).await
}

/// The version that a ledger has once it is up to date.
pub fn newest_of(is_postgres: bool) -> i64 {
    newest(if is_postgres { &POSTGRES } else { &SQLITE })
}

async fn run_postgres(connection: &mut PgConnection) -> Result<(), LedgerError> {
    let timeouts = "SET statement_timeout = 0; SET lock_timeout = 0";
    sqlx::raw_sql(timeouts).execute(&mut *connection).await?;
    // Only what is beneath `run`: that one wants to own a pool.
    POSTGRES.run_direct(None, connection, false).await?;
    sqlx::raw_sql("SET statement_timeout = '110s'; SET lock_timeout = '5s'").execute(connection).await?;
    Ok(())
}

async fn version_of_postgres(connection: &mut PgConnection) -> Result<i64, LedgerError> {
    let there: bool = sqlx::query_scalar("SELECT to_regclass('_sqlx_migrations') IS NOT NULL")
        .fetch_one(&mut *connection)
        .await?;
    if !there {
        return Ok(0);
    }
    let version = sqlx::query_scalar("SELECT COALESCE(max(version), 0) FROM _sqlx_migrations WHERE success");
    Ok(version.fetch_one(connection).await?)
}

/// What the writing role needs: to add frames, to change derived rows, to look
/// at everything, and nothing more.
async fn grant(owner: &mut PgConnection, role: &str) -> Result<(), LedgerError> {
    let role = format!("\"{}\"", role.replace('"', "\"\""));
    let derived: Vec<_> = TABLES.iter().map(|table| table.name).chain(["journals", "stream_heads"]).collect();
    let (schema,): (String,) =
        sqlx::query_as("SELECT quote_ident(current_schema())").fetch_one(&mut *owner).await?;
    let statements = format!(
        "GRANT USAGE ON SCHEMA {schema} TO {role}; \
         GRANT SELECT ON ALL TABLES IN SCHEMA {schema} TO {role}; \
         GRANT INSERT ON frames, frame_conflicts, checkpoints, checkpoint_heads TO {role}; \
         GRANT INSERT, UPDATE ON {} TO {role}; \
         GRANT INSERT, UPDATE, DELETE ON search_docs, search_pending TO {role}",
        derived.join(", ")
    );
    sqlx::raw_sql(AssertSqlSafe(statements)).execute(owner).await?;
    Ok(())
}

/// Brings a SQLite file up to date.
pub async fn migrate_sqlite(connection: &mut SqliteConnection) -> Result<(), LedgerError> {
    if !is_behind(version_of_sqlite(connection).await?, &SQLITE)? {
        return Ok(());
    }
    // sqlx has no lock here, so two programs could make the same table. One
    // that holds the write lock while it looks again and migrates is alone; the
    // migrations' own transactions are savepoints within it.
    connection.ping().await?;
    // Another that migrates may take longer than any write should.
    sqlx::raw_sql("PRAGMA busy_timeout = 60000").execute(&mut *connection).await?;
    let mut alone = connection.begin_with("BEGIN IMMEDIATE").await?;
    alone.ensure_migrations_table("_sqlx_migrations").await?;
    if is_behind(version_of_sqlite(&mut alone).await?, &SQLITE)? {
        SQLITE.run_direct(None, &mut *alone, false).await?;
    }
    alone.commit().await?;
    sqlx::raw_sql("PRAGMA busy_timeout = 5000").execute(connection).await?;
    info!(version = newest(&SQLITE), "the ledger's schema is up to date");
    Ok(())
}

/// The version of a file. One that is newer than this program is refused, and what is no
/// ledger at all.
pub async fn check_sqlite(connection: &mut SqliteConnection) -> Result<i64, LedgerError> {
    let found = version_of_sqlite(connection).await?;
    if found == 0 {
        return Err(LedgerError::Settings("the file is no ledger of a conductor".to_owned()));
    }
    is_behind(found, &SQLITE).map(|_| found)
}

async fn version_of_sqlite(connection: &mut SqliteConnection) -> Result<i64, LedgerError> {
    let there: i64 = sqlx::query_scalar("SELECT count(*) FROM sqlite_schema WHERE name = '_sqlx_migrations'")
        .fetch_one(&mut *connection)
        .await?;
    if there == 0 {
        return Ok(0);
    }
    let version = sqlx::query_scalar("SELECT COALESCE(max(version), 0) FROM _sqlx_migrations WHERE success");
    Ok(version.fetch_one(connection).await?)
}
