//! What stands at the protected places of a session, so that a change of it can be told.
//!
//! Where no layer of the kernel holds an agent's own tools, they can change what makes other
//! programs, or the next session, do something. That is found by looking twice, before a turn and
//! after it. Nothing is read but names and what the kernel says of each: kind, inode, size, mode,
//! times, and where a link leads. The time of the last change cannot be set, so content need not
//! be compared. No link is followed on the way.
//!
//! A survey is bounded. What it has not looked at it names, and says nothing of: that a name is
//! missing there means nothing.
//!
//! Mostly nothing has changed since the last look, and that is cheaper to tell than to look again
//! (`still`).

mod git;
mod places;
mod still;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use nix::sys::statfs::{
    BTRFS_SUPER_MAGIC, EXT4_SUPER_MAGIC, FsType, OVERLAYFS_SUPER_MAGIC, TMPFS_MAGIC, XFS_SUPER_MAGIC, statfs,
};

use self::{
    git::{plain_repositories, repositories},
    places::Look,
    still::Still,
};

/// How long a survey may take, beside a turn of an agent. A disk may be slow; one that hangs is
/// left to whoever waits.
const LONGEST: Duration = Duration::from_millis(200);

/// How long a glance may take: others may have to wait for it who have nothing to do with it.
const GLANCE: Duration = Duration::from_millis(1);

/// File systems that lie on disks of this host, or in its memory: they do not hang as one does
/// whose server is gone.
const LOCAL: [FsType; 5] =
    [BTRFS_SUPER_MAGIC, EXT4_SUPER_MAGIC, OVERLAYFS_SUPER_MAGIC, TMPFS_MAGIC, XFS_SUPER_MAGIC];

/// What something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Directory,
    Link,
    /// A file, or something odd.
    Other,
}

/// What the kernel says of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Found {
    kind: Kind,
    mode: u64,
    inode: u64,
    size: i64,
    /// When the content and anything about it was changed last: seconds and nanoseconds.
    times: [(i64, i64); 2],
    /// Where a link leads.
    target: Option<PathBuf>,
}

/// What became of something between two surveys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// It was not there before.
    Appeared,
    /// It is another one, or has another content, mode or target.
    Changed,
    /// It is not there any more.
    Removed,
}

impl What {
    /// The word for it in records.
    pub fn name(self) -> &'static str {
        match self {
            Self::Appeared => "appeared",
            Self::Changed => "changed",
            Self::Removed => "removed",
        }
    }
}

/// A protected place that is not as it was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// Which one.
    pub path: PathBuf,
    /// What became of it.
    pub what: What,
}

/// Where a session's protected places are.
#[derive(Debug)]
struct Grounds {
    roots: Vec<PathBuf>,
    /// Directories of git that the roots belong to. Found once: who changes a `.git` file between
    /// two surveys must not have us look elsewhere.
    repositories: Vec<PathBuf>,
}

impl Grounds {
    /// Whether they are on disks of this host, all of them.
    fn are_local(&self) -> bool {
        let is_local =
            |path: &PathBuf| statfs(path).is_ok_and(|disk| LOCAL.contains(&disk.filesystem_type()));
        self.roots.iter().chain(&self.repositories).all(is_local)
    }
}

/// What was found at the protected places beneath some roots. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Survey {
    grounds: Arc<Grounds>,
    seen: Arc<Seen>,
    /// The next look at these places can be a glance.
    is_brief: bool,
}

/// What a look has seen.
#[derive(Debug, Default)]
struct Seen {
    found: BTreeMap<PathBuf, Found>,
    /// Where not all was looked at.
    partial: BTreeSet<PathBuf>,
    /// Those of them that are directories which cannot be opened and do not count by themselves.
    closed: BTreeMap<PathBuf, Found>,
    /// What else tells whether another look would see the same.
    still: Still,
}

impl Survey {
    /// Looks for the first time. A disk may hang meanwhile.
    pub fn first(roots: &[PathBuf]) -> Self {
        let grounds = Grounds { roots: roots.to_vec(), repositories: repositories(roots) };
        Self::take(Arc::new(grounds), LONGEST)
    }

    /// Looks at the same places again, likewise.
    #[must_use]
    pub fn again(&self) -> Self {
        Self::take(self.grounds.clone(), LONGEST)
    }

    /// Whether the next look at these places can be a glance: this one was over in a moment, and
    /// they are on disks that do not hang.
    pub fn is_brief(&self) -> bool {
        self.is_brief
    }

    /// Looks for the first time in a turn, if that takes but a moment. Only after a look at these
    /// roots that was brief.
    pub fn glance(&self) -> Option<Self> {
        let repositories = plain_repositories(&self.grounds.roots)?;
        if repositories == self.grounds.repositories {
            return self.glance_again();
        }
        let roots = self.grounds.roots.clone();
        Self::take(Arc::new(Grounds { roots, repositories }), GLANCE).if_brief()
    }

    /// Looks at the same places again, if that takes but a moment.
    pub fn glance_again(&self) -> Option<Self> {
        if !self.is_brief {
            return None;
        }
        if self.seen.is_still() {
            return Some(self.clone());
        }
        Self::take(self.grounds.clone(), GLANCE).if_brief()
    }

    fn if_brief(self) -> Option<Self> {
        self.is_brief.then_some(self)
    }

    /// A survey that has come to nothing: the disk hangs.
    pub fn unseen(roots: &[PathBuf]) -> Self {
        let grounds = Grounds { roots: roots.to_vec(), repositories: Vec::new() };
        let seen = Seen { partial: roots.iter().cloned().collect(), ..Seen::default() };
        Self { grounds: Arc::new(grounds), seen: Arc::new(seen), is_brief: false }
    }

    fn take(grounds: Arc<Grounds>, longest: Duration) -> Self {
        let began = Instant::now();
        let mut look = Look::new(began + longest);
        for repository in &grounds.repositories {
            look.repository(repository);
        }
        for root in &grounds.roots {
            look.root(root);
        }
        let is_brief = began.elapsed() < GLANCE && grounds.are_local();
        let seen = Seen { found: look.found, partial: look.partial, closed: look.closed, still: look.still };
        Self { seen: Arc::new(seen), grounds, is_brief }
    }

    /// Where not all was looked at: more than the bounds allow, or not to be read.
    pub fn partial(&self) -> impl Iterator<Item = &Path> {
        self.seen.partial.iter().map(PathBuf::as_path)
    }

    /// What has changed since another survey of the same places, in order of the paths. A directory
    /// counts for what is in it, unless that could not be told.
    pub fn changes_since(&self, before: &Self) -> Vec<Change> {
        if Arc::ptr_eq(&self.seen, &before.seen) {
            return Vec::new();
        }
        let (before, after) = (&before.seen, &self.seen);
        let paths: BTreeSet<&PathBuf> = before.found.keys().chain(after.found.keys()).collect();
        let mut changes: Vec<Change> = Vec::new();
        for path in paths {
            let is_partial = after.partial.contains(path) || before.partial.contains(path);
            let what = match (before.found.get(path), after.found.get(path)) {
                (Some(then), Some(now)) => (!then.is_same(now, is_partial)).then_some(What::Changed),
                (None, Some(now)) => {
                    (now.counts(is_partial) && before.would_have(path)).then_some(What::Appeared)
                }
                (Some(then), None) => {
                    (then.counts(is_partial) && after.would_have(path)).then_some(What::Removed)
                }
                (None, None) => None,
            };
            // That a directory was swapped for something else says what became of its content.
            let is_told = |change: &Change| path != &change.path && path.starts_with(&change.path);
            if let Some(what) = what
                && !(what == What::Removed && changes.iter().rev().any(is_told))
            {
                changes.push(Change { path: path.clone(), what });
            }
        }
        changes.extend(after.opened_or_closed_since(before));
        changes.sort_by(|one, other| one.path.cmp(&other.path));
        changes
    }
}

impl Seen {
    /// What could be opened before and cannot any more, or the other way round, or is another one.
    fn opened_or_closed_since(&self, before: &Self) -> Vec<Change> {
        let paths: BTreeSet<&PathBuf> = before.closed.keys().chain(self.closed.keys()).collect();
        let is_other = |path: &&PathBuf| {
            let were_there = before.would_have(path) && self.would_have(path);
            were_there && before.closed.get(*path) != self.closed.get(*path)
        };
        let change = |path: &PathBuf| Change { path: path.clone(), what: What::Changed };
        paths.into_iter().filter(is_other).map(change).collect()
    }

    /// Whether a place would have been found, had there been something.
    fn would_have(&self, path: &Path) -> bool {
        !path.ancestors().skip(1).any(|above| self.partial.contains(above))
    }
}

impl Found {
    /// Whether it counts by itself.
    fn counts(&self, is_partial: bool) -> bool {
        self.kind != Kind::Directory || is_partial
    }

    fn is_same(&self, other: &Self, is_partial: bool) -> bool {
        match (self.kind, other.kind) {
            // Its times tell of names in it, which are looked at themselves.
            (Kind::Directory, Kind::Directory) if !is_partial => self.mode == other.mode,
            _ => self == other,
        }
    }
}

#[cfg(test)]
mod tests;
