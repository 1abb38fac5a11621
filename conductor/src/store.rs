//! The small SQLite file of what the service needs in order to act: which
//! sessions there are, whose they are, with whom they are shared and where they
//! are bound; who has a token; which answers are remembered as grants; what the
//! agents offer; who has used how much; what waits for people.
//!
//! The journal remains the truth of sessions: whatever this file has not heard
//! of when the service is killed is read from there at the next start
//! (`behind`). So nothing ever waits for this file, except what no session's
//! own record tells: that a session was deleted, that a token or a grant was made
//! or revoked; and except shares, because who lost one must not get it back.

mod approvals;
pub mod behind;
mod bound;
pub mod catalogue;
mod erasing;
mod grants;
mod shares;
mod tokens;
mod usage;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;
use futures_util::TryStreamExt as _;
use sqlx::{
    AssertSqlSafe, ConnectOptions as _, Connection as _, Row as _, SqliteConnection,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteRow, SqliteSynchronous},
};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

pub use self::bound::Bound;
use self::catalogue::Unsaved;
use crate::{
    approvals::Approvals,
    clock::micros,
    grants::Book,
    identity::tokens::{Issued, Tokens},
    metrics::{Branch, Metrics},
    router::{Router, Share},
    state::make_private,
};

/// Each step leads on to the next version of the schema, which only ever goes
/// forward. The version is the number of steps taken.
const STEPS: &[&str] = &[
    SESSIONS,
    tokens::STEP,
    shares::STEP,
    bound::STEP,
    catalogue::STEP,
    usage::STEP,
    approvals::STEP,
    grants::STEP,
    usage::BY_AGENT,
];

const SESSIONS: &str = "CREATE TABLE sessions (
    id BLOB PRIMARY KEY,            -- ours
    owner TEXT NOT NULL,            -- the user who opened it
    agent TEXT NOT NULL,
    cwd BLOB NOT NULL,              -- a path need not be text
    agent_session BLOB NOT NULL,    -- the agent's own id, as JSON; empty if it has none
    title TEXT,
    created_us INTEGER NOT NULL,
    updated_us INTEGER NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('live', 'parked')),
    deleted INTEGER NOT NULL,       -- hidden from its owner
    seq INTEGER NOT NULL            -- frames of its record up to here are accounted for
) STRICT, WITHOUT ROWID";

/// Another program's transaction is waited for so long.
const BUSY: Duration = Duration::from_secs(5);

/// How long a change may wait, so that what many turns and sessions change goes
/// into one write. Who waits for it need not; what a kill takes back is in the
/// journal.
const DELAY: Duration = Duration::from_millis(250);

/// Pause after a write that failed.
const RETRY: Duration = Duration::from_secs(1);

/// What is known of a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// Whose it is.
    pub owner: String,
    /// The agent it is bound to.
    pub agent: Arc<str>,
    /// Where it works.
    pub cwd: PathBuf,
    /// The agent's own id of it, with quotes; empty if there is none to go
    /// back to.
    pub agent_session: Bytes,
    /// All sessions of agents that it has had, that one among them.
    pub bound: Vec<Bound>,
    /// What it is about, if the agent said so.
    pub title: Option<String>,
    /// When it was opened.
    pub created: SystemTime,
    /// When something last happened in it.
    pub updated: SystemTime,
    /// Whether an editor has it open.
    pub is_live: bool,
    /// Whether its owner does not want to see it any more.
    pub is_deleted: bool,
    /// Frames of its record up to here are accounted for; no turn was running
    /// there.
    pub seq: u64,
}

/// Why the file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A later version wrote it.
    #[error(
        "it has version {0} of its schema, which this conductor does not know; use the version that wrote it, or a later one"
    )]
    Newer(i64),
    /// The system or the file refused.
    #[error(
        "{0}. If the file is damaged, move it away: the sessions of the last days are then found in the journal; tokens, \
         shares and grants have to be made anew"
    )]
    Sqlite(#[from] sqlx::Error),
}

/// What else changes and is kept.
#[derive(Debug)]
pub struct Books {
    /// The answers that are remembered.
    pub grants: Book,
    /// What waits for people.
    pub approvals: Approvals,
    /// What the agents offer.
    pub catalogue: Unsaved,
}

/// The open file.
#[derive(Debug)]
pub struct Store {
    connection: SqliteConnection,
}

impl Store {
    /// Opens or makes the file.
    pub async fn open(file: &Path) -> Result<Self, StoreError> {
        make_private(file).map_err(sqlx::Error::Io)?;
        // What a power loss takes back is read from the journal again.
        let options = SqliteConnectOptions::new()
            .filename(file)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Normal)
            .busy_timeout(BUSY)
            .disable_statement_logging();
        let mut store = Self { connection: options.connect().await? };
        let version: i64 = sqlx::query_scalar("PRAGMA user_version").fetch_one(&mut store.connection).await?;
        let Some(steps) = usize::try_from(version).ok().and_then(|version| STEPS.get(version..)) else {
            return Err(StoreError::Newer(version));
        };
        if !steps.is_empty() {
            let mut transaction = store.connection.begin().await?;
            for step in steps {
                sqlx::raw_sql(*step).execute(&mut *transaction).await?;
            }
            let done = format!("PRAGMA user_version = {}", STEPS.len());
            sqlx::raw_sql(AssertSqlSafe(done)).execute(&mut *transaction).await?;
            transaction.commit().await?;
        }
        Ok(store)
    }

    /// Every session.
    pub async fn sessions(&mut self) -> Result<Vec<(Uuid, Row)>, StoreError> {
        // One at a time: as sqlx holds them, all together take three times the
        // memory of what is made of them.
        let mut rows = sqlx::query(
            "SELECT id, owner, agent, cwd, agent_session, title, created_us, updated_us, state, deleted, seq, \
             bound FROM sessions",
        )
        .fetch(&mut self.connection);
        let mut sessions = Vec::new();
        while let Some(row) = rows.try_next().await? {
            sessions.push(session(&row)?);
        }
        Ok(sessions)
    }

    /// Writes sessions as they are now, all or none.
    pub async fn write(&mut self, rows: &[(Uuid, Row)]) -> Result<(), StoreError> {
        let mut transaction = self.connection.begin().await?;
        for (id, row) in rows {
            sqlx::query(
                "INSERT INTO sessions (id, owner, agent, cwd, agent_session, title, created_us, updated_us, \
                 state, deleted, seq, bound) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) \
                 ON CONFLICT (id) DO UPDATE SET owner = excluded.owner, agent = excluded.agent, \
                 cwd = excluded.cwd, agent_session = excluded.agent_session, title = excluded.title, \
                 updated_us = excluded.updated_us, state = excluded.state, deleted = excluded.deleted, \
                 seq = excluded.seq, bound = excluded.bound",
            )
            .bind(&id.as_bytes()[..])
            .bind(&row.owner)
            .bind(&*row.agent)
            .bind(row.cwd.as_os_str().as_encoded_bytes())
            .bind(&row.agent_session[..])
            .bind(&row.title)
            .bind(micros(row.created))
            .bind(micros(row.updated))
            .bind(if row.is_live { "live" } else { "parked" })
            .bind(row.is_deleted)
            .bind(row.seq.cast_signed())
            .bind(bound::written(&row.bound))
            .execute(&mut *transaction)
            .await?;
        }
        Ok(transaction.commit().await?)
    }

    /// Writes tokens as they are now, all or none. Nothing else tells that one
    /// was revoked, so this is on disk once it is done.
    pub async fn write_tokens(&mut self, issued: &[Issued]) -> Result<(), StoreError> {
        self.synced(true).await?;
        let mut transaction = self.connection.begin().await?;
        tokens::write(&mut transaction, issued).await?;
        transaction.commit().await?;
        self.synced(false).await
    }

    /// Writes all shares of some sessions as they are now, all or none, onto the
    /// disk.
    pub async fn write_shares(&mut self, sessions: &[(Uuid, Vec<Share>)]) -> Result<(), StoreError> {
        self.synced(true).await?;
        let mut transaction = self.connection.begin().await?;
        shares::write(&mut transaction, sessions).await?;
        transaction.commit().await?;
        self.synced(false).await
    }

    /// Whether what is written from now on must outlive a power loss.
    async fn synced(&mut self, synced: bool) -> Result<(), StoreError> {
        let pragma = if synced { "PRAGMA synchronous = FULL" } else { "PRAGMA synchronous = NORMAL" };
        sqlx::raw_sql(pragma).execute(&mut self.connection).await?;
        Ok(())
    }

    /// Writes what changes in the router, among the tokens, in the books and of what was
    /// used, until `stop`; then once more. What changes while a write is under way goes into
    /// the next one, so what waits is never more than there is.
    pub async fn keep(
        mut self,
        router: Router,
        tokens: Tokens,
        books: Books,
        metrics: Metrics,
        stop: CancellationToken,
    ) {
        let Books { grants, approvals, mut catalogue } = books;
        let mut last = false;
        while !last {
            tokio::select! {
                () = router.changed() => {}
                () = tokens.changed() => {}
                () = grants.changed() => {}
                () = catalogue.changed() => {}
                () = router.limits().changed() => {}
                () = approvals.changed() => {}
                () = stop.cancelled() => last = true,
            }
            // Turns begin and end all the time, and a write for each would take
            // the processor from the turn itself.
            tokio::select! {
                () = router.awaited() => {}
                () = tokens.changed() => {}
                () = grants.awaited() => {}
                () = stop.cancelled() => {}
                () = tokio::time::sleep(DELAY) => {}
            }
            let counted = |saved: bool| {
                if !saved {
                    metrics.best_effort(Branch::StoreNotSaved);
                }
                saved
            };
            let saved = counted(self.save(&router, &grants).await)
                & counted(self.save_tokens(&tokens).await)
                & counted(self.save_catalogue(&mut catalogue).await)
                & counted(self.save_usage(router.limits()).await)
                & counted(self.save_approvals(&approvals).await);
            if !saved {
                tokio::time::sleep(RETRY).await;
            }
        }
        if let Err(error) = self.connection.close().await {
            tracing::warn!(%error, "the file of the sessions was not closed in good order");
        }
    }

    async fn save(&mut self, router: &Router, grants: &Book) -> bool {
        let (rows, version) = router.take_changed();
        // Which uses of grants a session's row accounts for is not looked up again at the next
        // start, so they are in the file before it.
        if !self.save_grants(grants).await {
            router.not_saved(&rows);
            return false;
        }
        // Taken later, so that none is missing from what this version has.
        let shares = router.take_shares();
        let mut written = self.write(&rows).await;
        if written.is_ok() && !shares.is_empty() {
            written = self.write_shares(&shares).await;
        }
        // Only then is what was to be erased nowhere any more.
        if written.is_ok() && !self.save_erased(router).await {
            router.not_saved(&rows);
            return false;
        }
        match written {
            Ok(()) => {
                router.saved(version);
                true
            }
            Err(error) => {
                tracing::warn!(%error, "the sessions cannot be saved; trying again");
                router.not_saved(&rows);
                router.shares_not_saved(&shares);
                false
            }
        }
    }

    async fn save_tokens(&mut self, tokens: &Tokens) -> bool {
        let (changed, version) = tokens.take_changed();
        if changed.is_empty() {
            return true;
        }
        match self.write_tokens(&changed).await {
            Ok(()) => {
                tokens.saved(version);
                true
            }
            Err(error) => {
                tracing::warn!(%error, "the tokens cannot be saved; trying again");
                tokens.not_saved(&changed);
                false
            }
        }
    }
}

fn session(row: &SqliteRow) -> Result<(Uuid, Row), sqlx::Error> {
    use std::os::unix::ffi::OsStringExt as _;
    let id: Vec<u8> = row.try_get(0)?;
    let id = Uuid::from_slice(&id).map_err(|error| sqlx::Error::Decode(error.into()))?;
    let cwd = std::ffi::OsString::from_vec(row.try_get(3)?);
    Ok((
        id,
        Row {
            owner: row.try_get(1)?,
            agent: row.try_get::<String, _>(2)?.into(),
            cwd: cwd.into(),
            agent_session: row.try_get::<Vec<u8>, _>(4)?.into(),
            bound: bound::read(row.try_get(11)?),
            title: row.try_get(5)?,
            created: moment(row.try_get(6)?),
            updated: moment(row.try_get(7)?),
            is_live: row.try_get::<String, _>(8)? == "live",
            is_deleted: row.try_get(9)?,
            seq: row.try_get::<i64, _>(10)?.cast_unsigned(),
        },
    ))
}

fn moment(micros: i64) -> SystemTime {
    UNIX_EPOCH + Duration::from_micros(micros.max(0).cast_unsigned())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;
    use crate::{identity::Party, router::Access};

    fn row(title: &str) -> Row {
        Row {
            owner: "someone".into(),
            agent: "demo".into(),
            cwd: "/srv/\u{e9}".into(),
            agent_session: Bytes::from_static(b"\"a\\\"b\""),
            bound: vec![Bound { agent: "demo".into(), session: "a\"b".into(), number: 1, seen: 7 }],
            title: Some(title.into()),
            created: moment(1_700_000_000_000_001),
            updated: moment(1_700_000_000_000_002),
            is_live: true,
            is_deleted: false,
            seq: 7,
        }
    }

    #[tokio::test]
    async fn what_was_written_is_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("store.sqlite");
        let id = Uuid::now_v7();
        let mut store = Store::open(&file).await.unwrap();
        store.write(&[(id, row("one"))]).await.unwrap();
        let later = Row { is_live: false, is_deleted: true, ..row("two") };
        store.write(&[(id, later.clone())]).await.unwrap();
        drop(store);
        let mut store = Store::open(&file).await.unwrap();
        assert_eq!(store.sessions().await.unwrap(), [(id, later)]);
    }

    #[tokio::test]
    async fn a_file_of_the_first_version_is_brought_forward() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("store.sqlite");
        let mut first =
            SqliteConnectOptions::new().filename(&file).create_if_missing(true).connect().await.unwrap();
        sqlx::raw_sql(SESSIONS).execute(&mut first).await.unwrap();
        sqlx::raw_sql("PRAGMA user_version = 1").execute(&mut first).await.unwrap();
        first.close().await.unwrap();
        let mut store = Store::open(&file).await.unwrap();
        store.write(&[(Uuid::now_v7(), row("old"))]).await.unwrap();
        let (given, revoked) = (tokens::example(None), tokens::example(Some(moment(9))));
        store.write_tokens(&[given]).await.unwrap();
        store.write_tokens(std::slice::from_ref(&revoked)).await.unwrap();
        let id = Uuid::now_v7();
        let share = |with| Share { with, access: Access::Driver, by: "root".into(), since: moment(8) };
        let (ann, web) = (share(Party::User("ann".into())), share(Party::Team("web".into())));
        store.write_shares(&[(id, vec![ann.clone(), web])]).await.unwrap();
        store.write_shares(&[(id, vec![ann.clone()])]).await.unwrap();
        drop(store);
        let mut store = Store::open(&file).await.unwrap();
        assert_eq!(store.sessions().await.unwrap().len(), 1);
        assert_eq!(store.tokens().await.unwrap(), [revoked]);
        assert_eq!(store.shares().await.unwrap(), [(id, ann)]);
    }

    #[tokio::test]
    async fn a_newer_file_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("store.sqlite");
        let mut store = Store::open(&file).await.unwrap();
        let newer = STEPS.len() + 1;
        let set = AssertSqlSafe(format!("PRAGMA user_version = {newer}"));
        sqlx::raw_sql(set).execute(&mut store.connection).await.unwrap();
        drop(store);
        let refused = Store::open(&file).await.unwrap_err().to_string();
        assert!(refused.contains(&format!("version {newer}")), "{refused}");
    }
}
