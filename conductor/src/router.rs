//! Which sessions there are: session id → whose it is, who else may see it,
//! where it is bound.
//!
//! Holds the only lock in the crate besides the journal's: many connections
//! ask, answers take nanoseconds, and no guard leaves this module or crosses an
//! `.await`. What changes here is written to the store behind everybody's
//! back; only who must not lose it waits for that.

mod erasing;
mod sharing;

use std::{
    collections::{HashMap, HashSet},
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use tokio::{sync::watch, time::timeout};
use uuid::Uuid;

pub use self::sharing::{Access, MOST_SHARES, NotAdmitted, NotShared, Share};
use crate::{
    agent::Ended,
    identity::{Caller, Relation},
    limits::Limits,
    session::SessionHandle,
    store::{Bound, Row},
};

/// Characters of a title that are kept: agents choose them freely.
const MAX_TITLE: usize = 500;

/// How long the store may take to write something that is waited for.
const SAVING: Duration = Duration::from_secs(5);

/// A session.
#[derive(Debug, Clone)]
struct Entry {
    row: Row,
    /// How it is reached; `None` if nobody has it open.
    live: Option<Live>,
    /// The process that served it last, while that is ending: some agents
    /// refuse a second one meanwhile.
    leaving: Option<Ended>,
    /// One of its turns is running.
    in_turn: bool,
    /// With whom it is shared.
    shares: Vec<Share>,
}

/// A session that somebody has open.
#[derive(Debug, Clone)]
enum Live {
    /// It is claimed, and about to be started.
    Claimed,
    /// It runs.
    Started(SessionHandle),
}

/// What the lock guards.
#[derive(Debug, Default)]
struct Table {
    sessions: HashMap<Uuid, Entry>,
    /// Sessions that the store has not been told of.
    changed: HashSet<Uuid>,
    /// Sessions of whose shares the store has not been told.
    shared: HashSet<Uuid>,
    /// Sessions of which the store has to erase every trace.
    erased: Vec<Uuid>,
    /// Counts changes.
    version: u64,
}

impl Table {
    /// A session that its owner has not deleted.
    fn get(&self, id: Uuid) -> Option<&Entry> {
        self.sessions.get(&id).filter(|entry| !entry.row.is_deleted)
    }

    fn change(&mut self, id: Uuid, change: impl FnOnce(&mut Entry)) -> bool {
        let Some(entry) = self.sessions.get_mut(&id) else { return false };
        change(entry);
        self.changed.insert(id);
        self.version += 1;
        true
    }
}

/// The table of sessions.
#[derive(Debug, Clone)]
pub struct Router {
    table: Arc<Mutex<Table>>,
    turns: Arc<watch::Sender<Turns>>,
    changes: Arc<watch::Sender<u64>>,
    saved: Arc<watch::Sender<u64>>,
    /// The version that somebody waits for.
    awaited: Arc<watch::Sender<u64>>,
    /// Somebody's access to a session has changed.
    sharing: Arc<watch::Sender<()>>,
    /// Who may begin how much.
    limits: Limits,
}

/// How many turns are running, and whether another one may begin.
#[derive(Debug, Default)]
struct Turns {
    running: usize,
    is_last: bool,
}

/// A page of the sessions that somebody may see.
#[derive(Debug)]
pub struct Listed {
    /// The sessions, and what may be done with each.
    pub page: Vec<(Uuid, Row, Access)>,
    /// There are more behind them.
    pub has_more: bool,
}

/// What a look for a session found.
#[derive(Debug)]
pub enum Found {
    /// It can be reopened; once that has ended, if something has to.
    Parked(Row, Option<Ended>),
    /// Somebody has it open; and what the caller may do there.
    Live(SessionHandle, Access),
    /// Somebody is about to open it.
    Claimed,
    /// Nobody has it open, and the caller may only watch it.
    Watched,
    /// There is none, or it is not the caller's: the two look the same.
    Nothing,
}

impl Router {
    /// A table with what the store knows, of which some must be written.
    pub fn new(rows: HashMap<Uuid, Row>, changed: Vec<Uuid>, limits: Limits) -> Self {
        let version = changed.len() as u64;
        let entry = |row| Entry { row, live: None, leaving: None, in_turn: false, shares: Vec::new() };
        let sessions = rows.into_iter().map(|(id, row)| (id, entry(row))).collect();
        Self {
            table: Arc::new(Mutex::new(Table {
                sessions,
                changed: changed.into_iter().collect(),
                shared: HashSet::new(),
                erased: Vec::new(),
                version,
            })),
            turns: Arc::new(watch::channel(Turns::default()).0),
            changes: Arc::new(watch::channel(version).0),
            saved: Arc::new(watch::channel(0).0),
            awaited: Arc::new(watch::channel(0).0),
            sharing: Arc::new(watch::channel(()).0),
            limits,
        }
    }

    /// Who may begin how much.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        // The map is whole after every statement, also if a holder panicked.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, id: Uuid, change: impl FnOnce(&mut Entry)) {
        let mut table = self.lock();
        table.change(id, change);
        let version = table.version;
        drop(table);
        self.publish(version);
    }

    fn publish(&self, version: u64) {
        self.changes.send_if_modified(|now| version > std::mem::replace(now, version.max(*now)));
    }

    /// Notes a session that has been opened.
    pub fn opened(&self, id: Uuid, row: Row, handle: SessionHandle) {
        let live = Some(Live::Started(handle));
        self.lock()
            .sessions
            .insert(id, Entry { row, live, leaving: None, in_turn: false, shares: Vec::new() });
        self.change(id, |_| {});
    }

    /// The agent that a session is bound to, if the caller may see it.
    pub fn agent(&self, id: Uuid, caller: &Caller) -> Option<Arc<str>> {
        let table = self.lock();
        let seen = table.get(id).filter(|entry| sharing::access(entry, caller).is_some());
        seen.map(|entry| entry.row.agent.clone())
    }

    /// What is known of a session.
    pub fn row(&self, id: Uuid) -> Option<Row> {
        self.lock().get(id).map(|entry| entry.row.clone())
    }

    /// Claims a parked session for reopening.
    pub fn claim(&self, id: Uuid, caller: &Caller) -> Found {
        let mut table = self.lock();
        let found = table.get(id).and_then(|entry| Some((entry, sharing::access(entry, caller)?)));
        match found {
            Some((Entry { live: Some(Live::Started(handle)), .. }, access)) => {
                return Found::Live(handle.clone(), access);
            }
            Some((Entry { live: Some(Live::Claimed), .. }, _)) => return Found::Claimed,
            Some((_, access)) if access.drives() => {}
            Some(_) => return Found::Watched,
            None => return Found::Nothing,
        }
        match table.sessions.get_mut(&id) {
            Some(entry) => {
                entry.live = Some(Live::Claimed);
                Found::Parked(entry.row.clone(), entry.leaving.take())
            }
            None => Found::Nothing,
        }
    }

    /// Notes how a session that was claimed is reached.
    pub fn started(&self, id: Uuid, handle: SessionHandle) {
        if let Some(entry) = self.lock().sessions.get_mut(&id) {
            entry.live = Some(Live::Started(handle));
        }
    }

    /// How a session is reached that somebody has open.
    pub fn live(&self, id: Uuid) -> Option<SessionHandle> {
        match &self.lock().get(id)?.live {
            Some(Live::Started(handle)) => Some(handle.clone()),
            _ => None,
        }
    }

    /// Notes that a session was opened again.
    pub fn reopened(&self, id: Uuid, seq: u64) {
        self.change(id, |entry| {
            entry.row.is_live = true;
            entry.row.updated = SystemTime::now();
            entry.row.seq = entry.row.seq.max(seq);
        });
    }

    /// Notes which agent has a session, and that one's own id of it.
    pub fn bound(&self, id: Uuid, agent: Arc<str>, agent_session: Bytes, bound: Vec<Bound>) {
        self.change(id, |entry| {
            (entry.row.agent, entry.row.agent_session, entry.row.bound) = (agent, agent_session, bound);
        });
    }

    /// Notes that no editor has the session open any more, and which process is
    /// still ending.
    pub fn parked(&self, id: Uuid, seq: Option<u64>, leaving: Option<Ended>) {
        self.change(id, |entry| {
            entry.live = None;
            entry.leaving = leaving;
            entry.row.is_live = false;
            if let Some(seq) = seq {
                entry.row.updated = SystemTime::now();
                entry.row.seq = entry.row.seq.max(seq);
            }
        });
    }

    /// Notes that the process of a session that was parked has ended.
    pub fn left(&self, id: Uuid) {
        // The entry may belong to a later process by now; that one is waited
        // for by whoever has the session open.
        if let Some(entry) = self.lock().sessions.get_mut(&id)
            && entry.leaving.as_ref().is_some_and(Ended::is_over)
        {
            entry.leaving = None;
        }
    }

    /// Ends a session, whoever has it open; one that is not open is closed
    /// already.
    pub fn close(&self, id: Uuid, caller: &Caller, relation: Relation) -> Result<(), NotAdmitted> {
        let table = self.lock();
        let entry = table.get(id);
        sharing::admit(entry, caller, relation)?;
        if let Some(Entry { live: Some(Live::Started(handle)), .. }) = entry {
            handle.close();
        }
        Ok(())
    }

    /// Notes what the agent calls the session.
    pub fn titled(&self, id: Uuid, text: Option<&str>) {
        self.change(id, |entry| entry.row.title = text.map(title));
    }

    /// Hides a session from its owner; fine if there is none. One that is live
    /// stays, unless the caller is the one who has it open. Whether it is gone.
    pub fn deleted(&self, id: Uuid, caller: &Caller, own: bool) -> bool {
        let mut table = self.lock();
        let found = table.get(id).filter(|entry| entry.row.owner == caller.user);
        match found.map(|entry| entry.live.is_some() && !own) {
            Some(true) => return false,
            Some(false) => table.change(id, |entry| entry.row.is_deleted = true),
            None => return true,
        };
        let version = table.version;
        drop(table);
        self.publish(version);
        self.sharing.send_replace(());
        true
    }

    /// The sessions that the caller has this to do with, newest first: at most
    /// so many of those before one, and whether there are more.
    pub fn list(
        &self,
        caller: &Caller,
        relation: Relation,
        cwd: Option<&Path>,
        before: Option<Uuid>,
        most: usize,
    ) -> Listed {
        let table = self.lock();
        let is_there = |id: &Uuid, row: &Row| {
            !row.is_deleted
                && before.is_none_or(|before| *id < before)
                && cwd.is_none_or(|cwd| row.cwd == cwd)
        };
        let there = table.sessions.iter().filter(|(id, entry)| is_there(id, &entry.row));
        let seen = there.filter_map(|(id, entry)| {
            Some((*id, entry, sharing::admit(Some(entry), caller, relation).ok()?))
        });
        // Only what is told is copied: there may be very many.
        let mut seen: Vec<_> = seen.collect();
        seen.sort_unstable_by_key(|(id, ..)| std::cmp::Reverse(*id));
        let page =
            seen.iter().take(most).map(|(id, entry, access)| (*id, entry.row.clone(), *access)).collect();
        Listed { page, has_more: seen.len() > most }
    }

    /// Notes a turn that begins; `false` if none may begin any more.
    pub fn begin_turn(&self, id: Uuid) -> bool {
        let may_begin = self.turns.send_if_modified(|turns| {
            turns.running += usize::from(!turns.is_last);
            !turns.is_last
        });
        if may_begin {
            self.change(id, |entry| {
                entry.in_turn = true;
                entry.row.updated = SystemTime::now();
            });
        }
        may_begin
    }

    /// Notes a turn that has ended, and the last number of its record.
    pub fn turn_ended(&self, id: Uuid, seq: u64) {
        self.turns.send_modify(|turns| turns.running = turns.running.saturating_sub(1));
        self.change(id, |entry| {
            entry.in_turn = false;
            entry.row.updated = SystemTime::now();
            entry.row.seq = entry.row.seq.max(seq);
        });
    }

    /// Notes that a session's task broke down, and its turn with it.
    pub fn broken(&self, id: Uuid) {
        let mut was_in_turn = false;
        self.change(id, |entry| {
            was_in_turn = std::mem::take(&mut entry.in_turn);
            entry.live = None;
            entry.row.is_live = false;
        });
        if was_in_turn {
            self.turns.send_modify(|turns| turns.running = turns.running.saturating_sub(1));
        }
    }

    /// Lets no turn begin any more, and waits until none is running. The two
    /// are one: a turn that began unseen in between would be cut short.
    pub async fn last_turns(&self) {
        self.turns.send_modify(|turns| turns.is_last = true);
        self.turns.subscribe().wait_for(|turns| turns.running == 0).await.ok();
    }

    /// How many turns are running.
    pub fn turns(&self) -> usize {
        self.turns.borrow().running
    }

    /// Waits until something is to be saved.
    pub async fn changed(&self) {
        let saved = *self.saved.borrow();
        self.changes.subscribe().wait_for(|version| *version > saved).await.ok();
    }

    /// Waits until somebody waits for what is to be saved.
    pub async fn awaited(&self) {
        let saved = *self.saved.borrow();
        self.awaited.subscribe().wait_for(|version| *version > saved).await.ok();
    }

    /// What is to be saved, and which version that will be.
    pub fn take_changed(&self) -> (Vec<(Uuid, Row)>, u64) {
        let mut table = self.lock();
        let changed = std::mem::take(&mut table.changed);
        let row = |id: Uuid| table.sessions.get(&id).map(|entry| (id, entry.row.clone()));
        (changed.into_iter().filter_map(row).collect(), table.version)
    }

    /// Everything up to a version is saved.
    pub fn saved(&self, version: u64) {
        self.saved.send_replace(version);
    }

    /// These were not saved after all.
    pub fn not_saved(&self, rows: &[(Uuid, Row)]) {
        self.lock().changed.extend(rows.iter().map(|(id, _)| *id));
    }

    /// Waits until everything that has changed so far is saved; whether it is.
    pub async fn is_saved(&self) -> bool {
        let version = self.lock().version;
        self.awaited.send_if_modified(|now| version > std::mem::replace(now, version.max(*now)));
        let mut saved = self.saved.subscribe();
        let waiting = saved.wait_for(|saved| *saved >= version);
        timeout(SAVING, waiting).await.is_ok_and(|saved| saved.is_ok())
    }
}

/// A title as far as it is kept.
pub fn title(text: &str) -> String {
    text.chars().take(MAX_TITLE).collect()
}
