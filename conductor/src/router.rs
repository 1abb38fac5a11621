//! Which sessions there are: session id → where it is bound.
//!
//! Holds the only lock in the crate: many connections ask, answers take
//! nanoseconds, and no guard leaves this module or crosses an `.await`.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::SystemTime,
};

use bytes::Bytes;
use tokio::sync::watch;
use uuid::Uuid;

use crate::identity::Caller;

/// Sessions remembered after their end, so that they can be reopened; the
/// longest unused one is forgotten first.
const MAX_PARKED: usize = 10_000;

/// Characters of a title that are kept: agents choose them freely.
const MAX_TITLE: usize = 500;

/// What is known of a session.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Whose it is.
    pub owner: String,
    /// The agent it is bound to.
    pub agent: Arc<str>,
    /// Where it works.
    pub cwd: PathBuf,
    /// The agent's own id of it, with quotes.
    pub agent_session: Bytes,
    /// What it is about, if the agent said so.
    pub title: Option<String>,
    /// When something last happened in it.
    pub updated: SystemTime,
    /// Whether an editor has it open.
    pub live: bool,
}

/// The table of sessions.
#[derive(Debug, Clone)]
pub struct Router {
    sessions: Arc<Mutex<HashMap<Uuid, Entry>>>,
    turns: Arc<watch::Sender<usize>>,
}

impl Default for Router {
    fn default() -> Self {
        Self { sessions: Arc::default(), turns: Arc::new(watch::channel(0).0) }
    }
}

/// What a look for a session found.
#[derive(Debug)]
pub enum Found {
    /// It can be reopened.
    Parked(Entry),
    /// An editor has it open.
    Live,
    /// There is none, or it is not the caller's: the two look the same.
    Nothing,
}

impl Router {
    fn lock(&self) -> MutexGuard<'_, HashMap<Uuid, Entry>> {
        // The map is whole after every statement, also if a holder panicked.
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a session that has been opened.
    pub fn opened(&self, id: Uuid, entry: Entry) {
        let mut sessions = self.lock();
        if sessions.len() >= MAX_PARKED {
            let oldest =
                sessions.iter().filter(|(_, e)| !e.live).min_by_key(|(_, e)| e.updated).map(|(id, _)| *id);
            if let Some(oldest) = oldest {
                sessions.remove(&oldest);
            }
        }
        sessions.insert(id, entry);
    }

    /// The agent that one of the caller's sessions is bound to.
    pub fn agent(&self, id: Uuid, caller: &Caller) -> Option<Arc<str>> {
        self.lock().get(&id).filter(|entry| entry.owner == caller.user).map(|entry| entry.agent.clone())
    }

    /// Claims a parked session for reopening.
    pub fn claim(&self, id: Uuid, caller: &Caller) -> Found {
        match self.lock().get_mut(&id).filter(|entry| entry.owner == caller.user) {
            Some(entry) if entry.live => Found::Live,
            Some(entry) => {
                entry.live = true;
                Found::Parked(entry.clone())
            }
            None => Found::Nothing,
        }
    }

    /// Notes that no editor has the session open any more.
    pub fn parked(&self, id: Uuid) {
        if let Some(entry) = self.lock().get_mut(&id) {
            entry.live = false;
            entry.updated = SystemTime::now();
        }
    }

    /// Ends a session, whoever has it open. Whether there is one that the
    /// caller may close; one that is not open is closed already.
    pub fn close(&self, id: Uuid, caller: &Caller) -> bool {
        self.lock().get(&id).is_some_and(|entry| entry.owner == caller.user || caller.is_admin())
    }

    /// Notes what the agent calls the session.
    pub fn titled(&self, id: Uuid, title: Option<String>) {
        if let Some(entry) = self.lock().get_mut(&id) {
            entry.title = title.map(|title| title.chars().take(MAX_TITLE).collect());
        }
    }

    /// Forgets a session; fine if there is none. One that is live stays,
    /// unless the caller is the one who has it open. Whether it is gone.
    pub fn deleted(&self, id: Uuid, caller: &Caller, own: bool) -> bool {
        let mut sessions = self.lock();
        match sessions.get(&id).filter(|entry| entry.owner == caller.user) {
            Some(entry) if entry.live && !own => false,
            Some(_) => sessions.remove(&id).is_some(),
            None => true,
        }
    }

    /// The caller's sessions, newest first.
    pub fn list(&self, caller: &Caller, cwd: Option<&Path>) -> Vec<(Uuid, Entry)> {
        let sessions = self.lock();
        let mine =
            sessions.iter().filter(|(_, e)| e.owner == caller.user && cwd.is_none_or(|cwd| e.cwd == cwd));
        let mut list: Vec<_> = mine.map(|(id, entry)| (*id, entry.clone())).collect();
        list.sort_by_key(|(id, _)| std::cmp::Reverse(*id));
        list
    }

    /// Counts a turn that has begun.
    pub fn turn_begun(&self) {
        self.turns.send_modify(|turns| *turns += 1);
    }

    /// Counts a turn that has ended.
    pub fn turn_ended(&self) {
        self.turns.send_modify(|turns| *turns = turns.saturating_sub(1));
    }

    /// Waits until no turn is running.
    pub async fn idle(&self) {
        self.turns.subscribe().wait_for(|turns| *turns == 0).await.ok();
    }

    /// How many turns are running.
    pub fn turns(&self) -> usize {
        *self.turns.borrow()
    }
}
