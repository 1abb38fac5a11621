//! What the service itself still holds of sessions that are erased, or whose record is let
//! go because it is old: frames in the journal, rows in the store, what is in memory.
//!
//! The order is always the same, and whoever is killed in between does it again: nobody can
//! open the sessions any more ([`withdraw`]), and the ledger has every frame of theirs. Of what
//! is erased the ledger is changed next, by whoever asked for it, and then the rest goes
//! ([`finish`]). What is old goes from the ledger last, since nothing else says what that is.
//! Where no service runs, [`Offline`] does the same in its place.

use std::{collections::HashSet, path::Path, time::Duration};

use tokio::{task::spawn_blocking, time::timeout};
use uuid::Uuid;

use crate::{
    config::Config,
    connection::Hub,
    grants,
    journal::{Erasure, Journal},
    ledger::{self, Ledger},
    state::{ServiceState, StateDir, kept::Kept},
    store::{Store, behind},
    tasks::Tasks,
};

/// The ledger is waited for so long to take what it does not have yet.
const SHIPPING: Duration = Duration::from_secs(12);

/// The same where nothing else is going on.
const SHIPPING_ALL: Duration = Duration::from_secs(600);

/// Hides sessions from everybody and waits until the ledger has all that was recorded of
/// them. The answer are those that somebody has open, which stay; an error says why the
/// ledger does not have it all.
pub async fn withdraw(hub: &Hub, sessions: &[Uuid], caller: &str) -> Result<Vec<Uuid>, String> {
    let open = hub.router.withdraw(sessions).await;
    // Now, so that the end of a grant is in the ledger before its record is looked at.
    for session in sessions.iter().filter(|id| !open.contains(id)) {
        for grant in hub.grants.session_deleted(*session).iter().filter(|grant| !grant.is_over()) {
            if let Err(why) = grants::record_revoked(&hub.journal, grant, caller, "its session is no more") {
                tracing::warn!(grant.id = %grant.id, %why, "that a grant has ended is recorded later");
            }
        }
    }
    let written = *hub.journal.written().borrow();
    match timeout(SHIPPING, hub.ledger.reached(written)).await {
        Ok(true) => Ok(open),
        _ => Err(behind_by(&hub.ledger)),
    }
}

/// Erases what is left of sessions that were withdrawn, and of other streams that go with
/// them. Returns how many records of the journal had something of it.
pub async fn finish(hub: &Hub, sessions: Vec<Uuid>, streams: HashSet<Uuid>) -> Result<u64, String> {
    if let Some(open) = sessions.iter().find(|id| hub.router.is_open(**id)) {
        return Err(format!("session {open} is open; close it first: conductor sessions close {open}"));
    }
    hub.approvals.forget(&sessions);
    hub.router.erase(&sessions);
    for session in &sessions {
        hub.kept.forget(*session);
    }
    let erased = erase_in_journal(hub.journal.clone(), sessions, streams).await?;
    if !hub.router.is_saved().await {
        return Err(
            "the file of the sessions could not be written; the service's log says why, and it is tried \
                    again until it works"
                .to_owned(),
        );
    }
    Ok(erased)
}

async fn erase_in_journal(
    journal: Journal,
    sessions: Vec<Uuid>,
    mut streams: HashSet<Uuid>,
) -> Result<u64, String> {
    streams.extend(&sessions);
    let erasure = Erasure { streams, named: sessions.into_iter().collect() };
    match spawn_blocking(move || journal.erase(&erasure)).await {
        Ok(Ok(records)) => Ok(records),
        Ok(Err(error)) => Err(format!("the journal still holds some of it: {error}; do it again")),
        Err(failure) => Err(format!("the journal still holds some of it: {failure}; do it again")),
    }
}

/// Why what is in the journal is not in the ledger.
fn behind_by(ledger: &Ledger) -> String {
    let status = ledger.status();
    match status.progress.down {
        Some(why) => {
            format!("the ledger does not have every frame yet: {why}; bring it back and do it again")
        }
        None => format!(
            "the ledger does not have every frame yet, {} bytes are on their way; do it again in a while",
            status.behind_bytes
        ),
    }
}

/// The state directory of a service that does not run, held so that none starts meanwhile.
#[derive(Debug)]
pub struct Offline {
    state: ServiceState,
    journal: Journal,
    tasks: Tasks,
}

impl Offline {
    /// Takes the state directory and carries into the ledger what it does not have yet.
    pub async fn open(
        state: &StateDir,
        config: &Config,
        settings: &ledger::Settings,
    ) -> Result<Self, String> {
        let state = state.open_for_service().map_err(|error| error.to_string())?;
        let (journal, _) = Journal::open(&state.path().join("journal"), (&config.journal).into())
            .map_err(|error| format!("the journal cannot be opened: {error}"))?;
        // A session that was open when the service was killed gets its last word, as at a start.
        // The store hears of the rest at that start.
        let rows = open_store(state.path()).await?.sessions().await.map_err(|error| error.to_string())?;
        behind::catch_up(&journal, &mut rows.into_iter().collect())
            .map_err(|error| format!("the journal cannot be read for the sessions in it: {error}"))?;
        let tasks = Tasks::default();
        let ledger = Ledger::open(settings.clone(), journal.clone(), &tasks)
            .await
            .map_err(|error| format!("the ledger cannot be used: {error}"))?;
        let end = journal.status().end;
        journal.synced().wait_for(|synced| *synced >= end).await.ok();
        let shipped = timeout(SHIPPING_ALL, ledger.reached(end)).await;
        let why = behind_by(&ledger);
        ledger.stop().await;
        tasks.ended().await;
        match shipped {
            Ok(true) => Ok(Self { state, journal, tasks }),
            _ => Err(why),
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.state.path()
    }

    /// Erases what is left of sessions, and of other streams that go with them.
    pub async fn finish(&self, sessions: Vec<Uuid>, streams: HashSet<Uuid>) -> Result<u64, String> {
        let kept = Kept::new(self.state.path());
        for session in &sessions {
            kept.forget(*session);
        }
        let mut store = open_store(self.state.path()).await?;
        store.erase(&sessions).await.map_err(|error| {
            format!("the file of the sessions still holds some of it: {error}; do it again")
        })?;
        erase_in_journal(self.journal.clone(), sessions, streams).await
    }

    /// Lets go of the state directory.
    pub async fn close(self) {
        self.journal.close();
        self.tasks.ended().await;
        drop(self.state);
    }
}

async fn open_store(state: &Path) -> Result<Store, String> {
    let file = state.join("store.sqlite");
    Store::open(&file).await.map_err(|error| format!("{} cannot be used: {error}", file.display()))
}
