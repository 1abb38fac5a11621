//! Who else may see a session, and who may drive it.
//!
//! Shares stand in the same table as the sessions, because every look at a
//! session asks for both. They count from the moment they are in it, and end
//! with it; whoever is in a session then learns so by [`Router::lost`].

use std::{collections::HashSet, path::PathBuf, sync::Arc, time::SystemTime};

use serde_json::{Value, json};
use uuid::Uuid;

use super::{Entry, Live, Router, Table};
use crate::{
    identity::{Caller, Party, Relation},
    journal::{Class, Journal, Ticket},
    metrics::{Branch, Metrics},
    record::{Stream, StreamKind, note},
    recorder::Recorder,
};

/// Others that one session may be shared with.
pub const MOST_SHARES: usize = 100;

/// What somebody may do with a session, the least first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Access {
    /// See what happens in it.
    Observer,
    /// Prompt, answer and cancel, too.
    Driver,
    /// Everything: it is theirs.
    Owner,
}

impl Access {
    /// Whether what they say is heard.
    pub fn drives(self) -> bool {
        self >= Self::Driver
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Observer => "observer",
            Self::Driver => "driver",
            Self::Owner => "owner",
        }
    }

    /// What can be shared under this name; nobody is made an owner.
    pub fn shared_as(name: &str) -> Option<Self> {
        [Self::Observer, Self::Driver].into_iter().find(|access| access.name() == name)
    }
}

/// A session's being shared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Share {
    /// With whom.
    pub with: Party,
    /// As what.
    pub access: Access,
    /// Who did it.
    pub by: String,
    /// When.
    pub since: SystemTime,
}

/// Why a call may not have to do with a session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotAdmitted {
    /// There is none, or the caller may not know of it: the two look the same.
    Nothing,
    /// The caller knows of it, but it is this user's.
    NotTheirs(String),
}

/// Why a session was not shared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotShared {
    /// The caller may not.
    NotAdmitted(NotAdmitted),
    /// It is that user's own.
    OwnersOwn,
    /// With too many others already.
    TooMany,
    /// It cannot be written down now: why.
    NotRecorded(Arc<str>),
}

impl From<NotAdmitted> for NotShared {
    fn from(why: NotAdmitted) -> Self {
        Self::NotAdmitted(why)
    }
}

impl Router {
    /// What the caller may do with a session, in a call for which they must have
    /// this to do with it. Every call that names a session comes through here.
    pub fn admit(&self, id: Uuid, caller: &Caller, relation: Relation) -> Result<Access, NotAdmitted> {
        admit(self.lock().get(id), caller, relation)
    }

    /// What the store knows of shares. Sessions that are not there any more are
    /// passed over.
    pub fn shared_before(&self, shares: Vec<(Uuid, Share)>) {
        let mut table = self.lock();
        for (id, share) in shares {
            if let Some(entry) = table.sessions.get_mut(&id) {
                entry.shares.push(share);
            }
        }
    }

    /// What the caller may do with a session; `None` if there is none, or if
    /// they may not know of it.
    pub fn access(&self, id: Uuid, caller: &Caller) -> Option<Access> {
        self.lock().get(id).and_then(|entry| access(entry, caller))
    }

    /// Waits until the caller may do less with a session than they `had`.
    pub fn lost(&self, id: Uuid, caller: &Caller, had: Access) -> impl Future<Output = ()> + Send + use<> {
        let (router, caller) = (self.clone(), caller.clone());
        async move {
            let mut changes = router.sharing.subscribe();
            loop {
                changes.mark_unchanged();
                if router.access(id, &caller).is_none_or(|now| now < had) {
                    return;
                }
                // The sender is in our own hands.
                changes.changed().await.ok();
            }
        }
    }

    /// Shares a session, or changes what somebody may do with it.
    pub fn share(
        &self,
        id: Uuid,
        caller: &Caller,
        relation: Relation,
        with: Party,
        access: Access,
        journal: &Journal,
    ) -> Result<(Share, Option<Ticket>), NotShared> {
        let mut table = self.lock();
        let entry = manageable(&mut table, id, caller, relation)?;
        if matches!(&with, Party::User(user) if *user == entry.row.owner) {
            return Err(NotShared::OwnersOwn);
        }
        let at = entry.shares.iter().position(|share| share.with == with);
        if at.is_none() && entry.shares.len() >= MOST_SHARES {
            return Err(NotShared::TooMany);
        }
        if let Some(why) = journal.refusing() {
            return Err(NotShared::NotRecorded(why));
        }
        let said = json!({ "with": with.to_string(), "as": access.name(), "by": caller.user });
        let ticket = write_note(entry, id, journal, note::SHARED, &said)?;
        let share = Share { with, access, by: caller.user.clone(), since: SystemTime::now() };
        match at {
            Some(at) => entry.shares[at] = share.clone(),
            None => entry.shares.push(share.clone()),
        }
        self.shares_changed(&mut table, id);
        Ok((share, ticket))
    }

    /// Takes a share back; fine if there is none. Never waits for the record:
    /// what is taken away is taken away at once.
    pub fn unshare(
        &self,
        id: Uuid,
        caller: &Caller,
        relation: Relation,
        with: &Party,
        journal: &Journal,
        metrics: &Metrics,
    ) -> Result<Option<Ticket>, NotShared> {
        let mut table = self.lock();
        let entry = manageable(&mut table, id, caller, relation)?;
        let Some(at) = entry.shares.iter().position(|share| share.with == *with) else { return Ok(None) };
        entry.shares.remove(at);
        let said = json!({ "with": with.to_string(), "by": caller.user });
        let ticket = write_note(entry, id, journal, note::UNSHARED, &said).unwrap_or_else(|why| {
            metrics.best_effort(Branch::UnshareUnrecorded);
            tracing::warn!(session.id = %id, ?why, "that a session is no longer shared was not recorded");
            None
        });
        self.shares_changed(&mut table, id);
        Ok(ticket)
    }

    /// With whom a session is shared.
    pub fn shares(&self, id: Uuid, caller: &Caller, relation: Relation) -> Result<Vec<Share>, NotShared> {
        manageable(&mut self.lock(), id, caller, relation).map(|entry| entry.shares.clone())
    }

    /// Sessions of others that the caller may see, newest first.
    pub fn shared_with(&self, caller: &Caller) -> Vec<Uuid> {
        let table = self.lock();
        let is_shared = |entry: &Entry| {
            !entry.shares.is_empty() && access(entry, caller).is_some_and(|access| access < Access::Owner)
        };
        let shared = table.sessions.iter().filter(|(_, entry)| !entry.row.is_deleted && is_shared(entry));
        let mut ids: Vec<_> = shared.map(|(id, _)| *id).collect();
        drop(table);
        ids.sort_unstable_by_key(|id| std::cmp::Reverse(*id));
        ids
    }

    /// The directories of the sessions that the caller has this to do with.
    pub fn directories(&self, caller: &Caller, relation: Relation) -> HashSet<PathBuf> {
        let table = self.lock();
        let there = table.sessions.values().filter(|entry| !entry.row.is_deleted);
        let theirs = there.filter(|entry| admit(Some(entry), caller, relation).is_ok());
        let mut found = HashSet::new();
        for entry in theirs {
            if !found.contains(&entry.row.cwd) {
                found.insert(entry.row.cwd.clone());
            }
        }
        found
    }

    /// Sessions whose shares are to be saved, with all that they have.
    pub fn take_shares(&self) -> Vec<(Uuid, Vec<Share>)> {
        let mut table = self.lock();
        let ids = std::mem::take(&mut table.shared);
        let shares = |id: Uuid| table.sessions.get(&id).map(|entry| (id, entry.shares.clone()));
        ids.into_iter().filter_map(shares).collect()
    }

    /// These were not saved after all.
    pub fn shares_not_saved(&self, shares: &[(Uuid, Vec<Share>)]) {
        self.lock().shared.extend(shares.iter().map(|(id, _)| *id));
    }

    fn shares_changed(&self, table: &mut Table, id: Uuid) {
        table.shared.insert(id);
        // The session comes along, as its record has grown.
        table.change(id, |_| {});
        self.publish(table.version);
        self.sharing.send_replace(());
    }
}

/// What the caller may do with a session.
pub(super) fn access(entry: &Entry, caller: &Caller) -> Option<Access> {
    if entry.row.owner == caller.user {
        return Some(Access::Owner);
    }
    entry.shares.iter().filter(|share| share.with.has(caller)).map(|share| share.access).max()
}

/// What the caller may do with a session that they must have this to do with.
pub(super) fn admit(
    entry: Option<&Entry>,
    caller: &Caller,
    relation: Relation,
) -> Result<Access, NotAdmitted> {
    let entry = entry.ok_or(NotAdmitted::Nothing)?;
    let access = access(entry, caller);
    let least = match relation {
        // Nobody is stopped from what everybody of their role may see.
        Relation::Any => return Ok(access.unwrap_or(Access::Observer)),
        Relation::Seen => Access::Observer,
        Relation::Driven => Access::Driver,
        Relation::Own => Access::Owner,
        // A call that is about no session gets at none.
        Relation::Nothing => return Err(NotAdmitted::Nothing),
    };
    match access {
        Some(access) if access >= least => Ok(access),
        Some(_) => Err(NotAdmitted::NotTheirs(entry.row.owner.clone())),
        None => Err(NotAdmitted::Nothing),
    }
}

/// A session that the caller may share.
fn manageable<'a>(
    table: &'a mut Table,
    id: Uuid,
    caller: &Caller,
    relation: Relation,
) -> Result<&'a mut Entry, NotShared> {
    admit(table.get(id), caller, relation)?;
    table.sessions.get_mut(&id).ok_or(NotShared::NotAdmitted(NotAdmitted::Nothing))
}

/// Writes a note into a session's record. While nobody has the session open,
/// nobody else writes there: opening it takes the lock that we hold.
fn write_note(
    entry: &mut Entry,
    id: Uuid,
    journal: &Journal,
    method: &'static str,
    params: &Value,
) -> Result<Option<Ticket>, NotShared> {
    match &entry.live {
        // Its own recorder numbers what is written there.
        Some(Live::Started(handle)) if handle.note(method, params.clone()) => return Ok(None),
        Some(_) => return Err(NotShared::NotRecorded("the session is too busy; try again".into())),
        None => {}
    }
    let mut recorder = Recorder::new(Some(journal.clone()), Stream { id, kind: StreamKind::Session });
    recorder.note(method, params);
    entry.row.seq = entry.row.seq.max(recorder.last_seq());
    // What the journal would not take now it takes later: its numbers are used.
    recorder.commit(Class::Stop).map_err(NotShared::NotRecorded)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::{identity::Role, journal::Settings, limits::Limits, router::Found, store::Row};

    #[test]
    fn a_share_is_taken_back_although_that_cannot_be_recorded_and_is_counted() {
        let temp = tempfile::tempdir().unwrap();
        let (journal, _) = Journal::open(&temp.path().join("journal"), Settings::default()).unwrap();
        let owner = Caller { user: "ann".into(), teams: Vec::new(), roles: vec![Role::Developer] };
        let row = Row {
            owner: owner.user.clone(),
            agent: "demo".into(),
            cwd: "/".into(),
            agent_session: Default::default(),
            bound: Vec::new(),
            title: None,
            created: SystemTime::now(),
            updated: SystemTime::now(),
            is_live: false,
            is_deleted: false,
            seq: 0,
        };
        let (id, metrics) = (Uuid::now_v7(), Metrics::default());
        let router = Router::new(HashMap::from([(id, row)]), Vec::new(), Limits::default());
        let with = Party::User("bob".into());
        let unrecorded = || metrics.best_effort.of(Branch::UnshareUnrecorded).get();
        let share = || Share {
            with: with.clone(),
            access: Access::Driver,
            by: "ann".into(),
            since: SystemTime::now(),
        };
        router.shared_before(vec![(id, share())]);
        router.unshare(id, &owner, Relation::Own, &with, &journal, &metrics).unwrap();
        assert_eq!(unrecorded(), 0);
        // Somebody is about to open it, and nobody can write to its record meanwhile.
        router.shared_before(vec![(id, share())]);
        assert!(matches!(router.claim(id, &owner), Found::Parked(..)));
        router.unshare(id, &owner, Relation::Own, &with, &journal, &metrics).unwrap();
        assert_eq!((unrecorded(), router.shares(id, &owner, Relation::Own).unwrap().len()), (1, 0));
    }
}
