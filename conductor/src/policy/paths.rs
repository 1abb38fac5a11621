//! Where a path leads, and which places are protected.

use std::path::{Path, PathBuf};

use super::PathFact;

/// What has to be asked of the world to judge a request.
pub trait Resolver {
    /// Where a path leads, seen from `cwd`, which is absolute.
    fn path(&self, cwd: &Path, given: &str) -> PathFact;

    /// The file that a program's name stands for, all links resolved, and whether it is local
    /// (see `Command::is_local`). A name with a slash is a path from `cwd`; another is looked
    /// up in `PATH`.
    fn program(&self, cwd: &Path, name: &str) -> (Option<PathBuf>, bool);
}

/// The disk as it is.
#[derive(Debug, Clone)]
pub struct Disk {
    /// The session's roots, resolved.
    pub roots: Vec<PathBuf>,
    /// Directories in which programs are looked for, in order.
    pub search: Vec<PathBuf>,
}

impl Resolver for Disk {
    fn path(&self, _cwd: &Path, given: &str) -> PathFact {
        PathFact { given: given.into(), trouble: Some("not read".into()), ..PathFact::default() }
    }

    fn program(&self, _cwd: &Path, _name: &str) -> (Option<PathBuf>, bool) {
        (None, true)
    }
}

/// A disk without links, on which every program is found in `/usr/bin`; for the examples in
/// rules, which must mean the same on every machine.
#[derive(Debug, Clone)]
pub struct Imagined {
    /// The roots.
    pub roots: Vec<PathBuf>,
}

impl Resolver for Imagined {
    fn path(&self, _cwd: &Path, given: &str) -> PathFact {
        PathFact { given: given.into(), trouble: Some("not read".into()), ..PathFact::default() }
    }

    fn program(&self, _cwd: &Path, _name: &str) -> (Option<PathBuf>, bool) {
        (None, true)
    }
}
