//! Whether another look would see what the last one has seen.
//!
//! A look lists directories and asks for names that may be in them. If each directory that was
//! listed has the times it had, what was found is as it was, and what was missing is missing, there
//! is nothing new to see: a few `lstat`s tell, where a look opens and lists. A directory that was
//! changed at the moment of the look tells nothing, since the kernel's clock stands still for some
//! milliseconds; then somebody has to look.

use std::{
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use nix::{errno::Errno, sys::stat::lstat};

use super::{Found, Kind, Seen, places::Open};

/// How long before a look a directory must have been changed last, for its times to tell of later
/// changes. Kernels count time in steps of up to 10 ms.
const SETTLED: Duration = Duration::from_millis(100);

/// What a look has seen besides what it has found.
#[derive(Debug, Default)]
pub(super) struct Still {
    /// When it was made, since 1970.
    began: Duration,
    /// Directories whose names it knows, and what is no directory where one could be.
    listed: Vec<(PathBuf, Found)>,
    /// What was asked for and is not there.
    missing: Vec<PathBuf>,
    /// Some directory has just been changed.
    is_unsettled: bool,
}

impl Still {
    /// For a look that begins.
    pub(super) fn now() -> Self {
        let began = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { began, ..Self::default() }
    }

    /// The names in a directory are about to be read.
    pub(super) fn listed(&mut self, directory: &Open) {
        match directory.itself() {
            Ok(found) => {
                self.is_unsettled |= !found.is_older(self.began.saturating_sub(SETTLED));
                self.listed.push((directory.path.clone(), found));
            }
            Err(_) => self.is_unsettled = true,
        }
    }

    /// This was found where a directory could be.
    pub(super) fn noted(&mut self, path: PathBuf, found: Found) {
        self.listed.push((path, found));
    }

    /// Nothing was found there.
    pub(super) fn missing(&mut self, path: PathBuf) {
        self.missing.push(path);
    }
}

impl Seen {
    /// Whether another look would see the same.
    pub(super) fn is_still(&self) -> bool {
        let is_listed_still = |(path, then): &(PathBuf, Found)| lstat(path).is_ok_and(|now| then.is_as(&now));
        let is_found_still = |(path, then): (&PathBuf, &Found)| then.is_still_at(path);
        let is_missing = |path: &PathBuf| matches!(lstat(path), Err(Errno::ENOENT | Errno::ENOTDIR));
        let Still { listed, missing, is_unsettled, .. } = &self.still;
        !is_unsettled
            && self.partial.is_empty()
            && listed.iter().all(is_listed_still)
            && self.found.iter().all(is_found_still)
            && missing.iter().all(is_missing)
    }
}

impl Found {
    /// Whether this is what the kernel says of a path now. Where a link leads cannot change while
    /// its inode and its times stay; of what is in a directory, all that counts was listed, found or
    /// missing itself.
    fn is_still_at(&self, path: &Path) -> bool {
        lstat(path).is_ok_and(|now| match self.kind {
            Kind::Directory => (self.mode, self.inode) == (now.st_mode.into(), now.st_ino),
            Kind::Link | Kind::Other => self.is_as(&now),
        })
    }

    /// Whether it was changed last before a moment, counted from 1970.
    fn is_older(&self, than: Duration) -> bool {
        let (seconds, nanoseconds) = self.times[0].max(self.times[1]);
        let changed = (u64::try_from(seconds), u32::try_from(nanoseconds));
        matches!(changed, (Ok(s), Ok(ns)) if Duration::new(s, ns.min(999_999_999)) < than)
    }
}
