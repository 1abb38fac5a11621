//! All grants that hold, by where they hold, and how often each was used.
//!
//! Looked up in memory and only where the rules say *ask*: first whether any
//! grant is for this session, root, user or team at all, which nearly always
//! ends it; then what covers all that is asked is found and counted in one step,
//! so that many sessions together never use a grant more often than it may be,
//! and none uses one that was revoked before. A use is counted before its effect
//! and noted in the session's record with its number, from which a kill at any
//! moment is made good (`store::behind`).

use std::{
    collections::{HashMap, HashSet},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use tokio::{sync::watch, time::timeout};
use uuid::Uuid;

use super::{Grant, Scope};
use crate::{
    identity::{Caller, present::Present},
    policy::SubAction,
};

/// Grants that one session, root, user or team may have.
pub const MOST_OF_SCOPE: usize = 1024;

/// Grants of one author that hold at a time, so that nobody fills the book for others.
pub const MOST_OF_AUTHOR: usize = 4096;

/// How long the store may take to write something that is waited for.
const SAVING: Duration = Duration::from_secs(5);

/// Who asks, and where.
#[derive(Debug, Clone, Copy)]
pub struct Asker<'a> {
    /// The session.
    pub session: Uuid,
    /// Its directory.
    pub root: &'a Path,
    /// Whoever prompts.
    pub user: &'a str,
    /// Their teams.
    pub teams: &'a [String],
}

/// One use of a grant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Use {
    /// Which grant.
    pub grant: Uuid,
    /// How often it was used, with this.
    pub number: u64,
    /// How many are left, if they are counted.
    pub left: Option<u64>,
    /// What it allowed.
    pub actions: Vec<SubAction>,
}

/// There are too many grants already: in which respect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TooMany {
    /// For this scope.
    OfScope,
    /// By this author.
    OfAuthor,
}

/// What the store is to be told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// A grant, and how often it was used.
    Kept(Arc<Grant>, u64),
    /// It is no more.
    Gone(Uuid),
}

#[derive(Debug, Clone)]
struct Entry {
    grant: Arc<Grant>,
    uses: u64,
}

impl Entry {
    fn is_usable(&self) -> bool {
        !self.grant.is_over() && self.grant.most_uses.is_none_or(|most| self.uses < most)
    }
}

/// What one request takes of a grant.
struct Drawn {
    entry: Entry,
    /// How often each part is used.
    parts: Vec<u64>,
    actions: Vec<SubAction>,
}

impl Drawn {
    fn new(entry: &Entry) -> Self {
        Self { entry: entry.clone(), parts: vec![0; entry.grant.parts.len()], actions: Vec::new() }
    }

    /// Takes something more, if it is covered and there is as much.
    fn draw(&mut self, action: &SubAction) -> bool {
        let Entry { grant, uses } = &self.entry;
        let Some(times) = grant.covering(action).and_then(|at| self.parts.get_mut(at)) else { return false };
        if grant.most_uses.is_some_and(|most| uses + *times >= most) {
            return false;
        }
        *times += 1;
        self.actions.push(action.clone());
        true
    }

    /// One that is not used is none.
    fn into_use(self) -> Option<Use> {
        let times = self.parts.into_iter().max().filter(|times| *times > 0)?;
        let Entry { grant, uses } = self.entry;
        let number = uses + times;
        let left = grant.most_uses.map(|most| most.saturating_sub(number));
        Some(Use { grant: grant.id, number, left, actions: self.actions })
    }
}

#[derive(Debug, Default)]
struct Table {
    grants: HashMap<Uuid, Entry>,
    sessions: HashMap<Uuid, Vec<Uuid>>,
    roots: HashMap<PathBuf, Vec<Uuid>>,
    users: HashMap<String, Vec<Uuid>>,
    teams: HashMap<String, Vec<Uuid>>,
    /// Grants that the store has not been told of, or of whose end.
    changed: HashSet<Uuid>,
    /// Counts changes.
    version: u64,
}

impl Table {
    fn ids(&mut self, scope: &Scope) -> &mut Vec<Uuid> {
        match scope {
            Scope::Session(id) => self.sessions.entry(*id).or_default(),
            Scope::Root(path) => self.roots.entry(path.clone()).or_default(),
            Scope::User(user) => self.users.entry(user.clone()).or_default(),
            Scope::Team(team) => self.teams.entry(team.clone()).or_default(),
        }
    }

    fn put(&mut self, grant: Arc<Grant>, uses: u64) {
        self.ids(&grant.scope).push(grant.id);
        self.grants.insert(grant.id, Entry { grant, uses });
    }

    fn take(&mut self, id: Uuid) -> Option<Arc<Grant>> {
        let Entry { grant, .. } = self.grants.remove(&id)?;
        let ids = self.ids(&grant.scope);
        ids.retain(|other| *other != id);
        if ids.is_empty() {
            match &grant.scope {
                Scope::Session(id) => drop(self.sessions.remove(id)),
                Scope::Root(path) => drop(self.roots.remove(path)),
                Scope::User(user) => drop(self.users.remove(user)),
                Scope::Team(team) => drop(self.teams.remove(team)),
            }
        }
        self.change(id);
        Some(grant)
    }

    fn change(&mut self, id: Uuid) {
        self.changed.insert(id);
        self.version += 1;
    }

    /// Those whose time is over go.
    fn sweep(&mut self) {
        let over = self.grants.values().filter(|entry| entry.grant.is_over());
        for id in over.map(|entry| entry.grant.id).collect::<Vec<_>>() {
            self.take(id);
        }
    }

    /// The grants that are for somebody, the narrowest scope first.
    fn concerning(&self, asker: &Asker<'_>) -> impl Iterator<Item = Uuid> {
        let own = self.sessions.get(&asker.session).into_iter();
        let own = own.chain(self.roots.get(asker.root)).chain(self.users.get(asker.user));
        own.chain(asker.teams.iter().filter_map(|team| self.teams.get(team))).flatten().copied()
    }
}

/// All grants. Clones share them.
#[derive(Debug, Clone)]
pub struct Book {
    table: Arc<watch::Sender<Table>>,
    /// Who the authors are by now.
    present: Present,
    saved: Arc<watch::Sender<u64>>,
    /// The version that somebody waits for.
    awaited: Arc<watch::Sender<u64>>,
}

impl Book {
    /// What the store has, and how often each was used.
    pub fn new(kept: Vec<(Grant, u64)>, present: Present) -> Self {
        let mut table = Table::default();
        for (grant, uses) in kept {
            table.put(Arc::new(grant), uses);
        }
        table.sweep();
        Self {
            table: Arc::new(watch::channel(table).0),
            present,
            saved: Arc::new(watch::channel(0).0),
            awaited: Arc::new(watch::channel(0).0),
        }
    }

    /// What the record tells of uses beyond what the store had heard of. It is saved anew: the
    /// record is not asked twice.
    pub fn were_used(&self, uses: &HashMap<Uuid, u64>) {
        self.table.send_modify(|table| {
            for (id, uses) in uses {
                if let Some(entry) = table.grants.get_mut(id).filter(|entry| entry.uses < *uses) {
                    entry.uses = *uses;
                    table.change(*id);
                }
            }
        });
    }

    /// Somebody has come in by an issuer's token or a certificate. What they have lost since
    /// they gave a grant it loses for good, and a restart gives nothing back.
    pub fn saw(&self, caller: &Caller) {
        if !self.present.saw(caller) {
            return;
        }
        self.table.send_if_modified(|table| {
            let theirs = table.grants.values().filter(|entry| entry.grant.by.user == caller.user);
            let now = theirs.filter_map(|entry| {
                let by = self.present.by_now(&entry.grant.by).filter(|by| *by != entry.grant.by)?;
                Some(Grant { by, ..(*entry.grant).clone() })
            });
            let now: Vec<Grant> = now.collect();
            let has_changed = !now.is_empty();
            for grant in now {
                let id = grant.id;
                if let Some(entry) = table.grants.get_mut(&id) {
                    entry.grant = Arc::new(grant);
                }
                table.change(id);
            }
            has_changed
        });
    }

    /// Who has given a grant, as they are by now; none if nothing lets them in any more.
    pub fn author(&self, grant: &Grant) -> Option<Caller> {
        self.present.by_now(&grant.by)
    }

    /// Adds a grant. It counts from now on.
    pub fn give(&self, grant: Grant) -> Result<Arc<Grant>, TooMany> {
        let grant = Arc::new(grant);
        let mut refused = None;
        self.table.send_modify(|table| {
            table.sweep();
            let of_author = table.grants.values().filter(|entry| entry.grant.by.user == grant.by.user);
            if of_author.count() >= MOST_OF_AUTHOR {
                refused = Some(TooMany::OfAuthor);
            } else if table.ids(&grant.scope).len() >= MOST_OF_SCOPE {
                refused = Some(TooMany::OfScope);
            } else {
                table.put(grant.clone(), 0);
                table.change(grant.id);
            }
        });
        refused.map_or(Ok(grant), Err)
    }

    /// Takes a grant back: nothing is allowed by it from now on. None if there is none.
    pub fn revoke(&self, id: Uuid) -> Option<Arc<Grant>> {
        let mut taken = None;
        self.table.send_modify(|table| {
            table.sweep();
            taken = table.take(id);
        });
        taken
    }

    /// Takes back all grants of a session that is no more.
    pub fn session_deleted(&self, session: Uuid) -> Vec<Arc<Grant>> {
        if !self.table.borrow().sessions.contains_key(&session) {
            return Vec::new();
        }
        let mut taken = Vec::new();
        self.table.send_modify(|table| {
            let ids = table.sessions.get(&session).cloned().unwrap_or_default();
            taken = ids.into_iter().filter_map(|id| table.take(id)).collect();
        });
        taken
    }

    /// A grant that holds, and how often it was used.
    pub fn get(&self, id: Uuid) -> Option<(Arc<Grant>, u64)> {
        let table = self.table.borrow();
        let entry = table.grants.get(&id).filter(|entry| !entry.grant.is_over())?;
        Some((entry.grant.clone(), entry.uses))
    }

    /// All that hold, newest first.
    pub fn list(&self) -> Vec<(Arc<Grant>, u64)> {
        let table = self.table.borrow();
        let entries = table.grants.values().filter(|entry| !entry.grant.is_over());
        let mut all: Vec<_> = entries.map(|entry| (entry.grant.clone(), entry.uses)).collect();
        drop(table);
        all.sort_by_key(|(grant, _)| std::cmp::Reverse(grant.id));
        all
    }

    /// Uses what covers all that is asked, of those grants whose author may answer; nothing
    /// if something is not covered. A part counts as often as something is asked that it
    /// covers: what stands twice in a request is done twice. Parts that are used together,
    /// such as different commands of one line, count together.
    pub fn make_use(
        &self,
        asker: &Asker<'_>,
        asked: &[&SubAction],
        may_answer: impl Fn(&Grant) -> bool,
    ) -> Option<Vec<Use>> {
        // Almost always there is none, and nobody has to wait for anybody.
        self.table.borrow().concerning(asker).next()?;
        let mut used: Option<Vec<Use>> = None;
        self.table.send_if_modified(|table| {
            let usable = table.concerning(asker).filter_map(|id| table.grants.get(&id));
            let mut usable: Vec<Drawn> = usable
                .filter(|entry| entry.is_usable() && may_answer(&entry.grant))
                .map(Drawn::new)
                .collect();
            // What may be used any number of times spares what may not.
            usable.sort_by_key(|drawn| drawn.entry.grant.most_uses.is_some());
            if !asked.iter().all(|action| usable.iter_mut().any(|drawn| drawn.draw(action))) {
                return false;
            }
            let found: Vec<Use> = usable.into_iter().filter_map(Drawn::into_use).collect();
            for used in &found {
                if let Some(entry) = table.grants.get_mut(&used.grant) {
                    entry.uses = used.number;
                }
                table.change(used.grant);
            }
            used = Some(found);
            true
        });
        used
    }

    /// Waits until something is to be saved.
    pub async fn changed(&self) {
        let saved = *self.saved.borrow();
        self.table.subscribe().wait_for(|table| table.version > saved).await.ok();
    }

    /// Waits until somebody waits for what is to be saved.
    pub async fn awaited(&self) {
        let saved = *self.saved.borrow();
        self.awaited.subscribe().wait_for(|version| *version > saved).await.ok();
    }

    /// What is to be saved, and which version that will be.
    pub fn take_changed(&self) -> (Vec<Change>, u64) {
        let (mut changes, mut version) = (Vec::new(), 0);
        // Nobody needs to know.
        self.table.send_if_modified(|table| {
            table.sweep();
            let ids = std::mem::take(&mut table.changed);
            let change = |id: Uuid| match table.grants.get(&id) {
                Some(Entry { grant, uses }) => Change::Kept(grant.clone(), *uses),
                None => Change::Gone(id),
            };
            changes = ids.into_iter().map(change).collect();
            version = table.version;
            false
        });
        (changes, version)
    }

    /// Everything up to a version is saved.
    pub fn saved(&self, version: u64) {
        self.saved.send_replace(version);
    }

    /// These were not saved after all.
    pub fn not_saved(&self, changes: &[Change]) {
        self.table.send_if_modified(|table| {
            table.changed.extend(changes.iter().map(|change| match change {
                Change::Kept(grant, _) => grant.id,
                Change::Gone(id) => *id,
            }));
            false
        });
    }

    /// Waits until everything that has changed so far is saved; whether it is.
    pub async fn is_saved(&self) -> bool {
        let version = self.table.borrow().version;
        self.awaited.send_if_modified(|now| version > std::mem::replace(now, version.max(*now)));
        let mut saved = self.saved.subscribe();
        let waiting = saved.wait_for(|saved| *saved >= version);
        timeout(SAVING, waiting).await.is_ok_and(|saved| saved.is_ok())
    }
}
