//! What the disk has shown while one request is judged.
//!
//! The paths of a request share their beginnings, and so do the directories of
//! `PATH`. Each place is looked at once: a second look that differed would be no
//! better than the first.

use std::{
    cell::RefCell,
    collections::HashMap,
    ffi::OsString,
    fs::{self, FileType, Metadata},
    io::ErrorKind,
    os::unix::{
        ffi::OsStrExt as _,
        fs::{MetadataExt as _, PermissionsExt as _},
    },
    path::{Path, PathBuf},
};

use foldhash::fast::RandomState;

/// What is at a place; a link is a link.
#[derive(Debug, Clone, Copy)]
pub struct Look {
    pub kind: FileType,
    /// Everyone may write to it. A sticky bit does not help: it keeps others from removing files,
    /// not from making them.
    pub is_open: bool,
    /// Somebody may execute it.
    pub is_executable: bool,
    pub stamp: Stamp,
}

/// Which file it is, and when something about it, or a name in it, was changed last. That time
/// cannot be set: it is not the one that `touch` sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    pub device: u64,
    pub inode: u64,
    /// Seconds since 1970, and nanoseconds.
    pub changed: (i64, i64),
}

impl From<&Metadata> for Look {
    fn from(metadata: &Metadata) -> Self {
        let mode = metadata.permissions().mode();
        let changed = (metadata.ctime(), metadata.ctime_nsec());
        Self {
            kind: metadata.file_type(),
            is_open: mode & 0o002 != 0,
            is_executable: mode & 0o111 != 0,
            stamp: Stamp { device: metadata.dev(), inode: metadata.ino(), changed },
        }
    }
}

/// Places that most requests look at; room for as many is made at once.
const MOST_USUAL: usize = 28;

/// What was looked at; for one request and no longer.
#[derive(Debug, Default)]
pub struct Looks(RefCell<HashMap<OsString, Result<Look, ErrorKind>, RandomState>>);

impl Looks {
    /// What is at a place. Links above it are followed, the last one is not.
    pub fn at(&self, path: &Path) -> Result<Look, ErrorKind> {
        if let Some(known) = self.0.borrow().get(path.as_os_str()) {
            return *known;
        }
        let found = fs::symlink_metadata(path);
        let found = found.map(|metadata| Look::from(&metadata)).map_err(|error| error.kind());
        let mut looks = self.0.borrow_mut();
        if looks.capacity() == 0 {
            looks.reserve(MOST_USUAL);
        }
        looks.insert(path.into(), found);
        found
    }

    /// A directory that is reached without links; none if it is not.
    pub fn plain(&self, directory: &Path) -> Option<Look> {
        if !is_tidy(directory) {
            return None;
        }
        let look = |directory: &Path| self.at(directory).ok().filter(|look| look.kind.is_dir());
        let mut above = directory.ancestors();
        let found = above.next().and_then(look)?;
        let mut above = above.filter(|above| above.parent().is_some());
        above.all(|directory| look(directory).is_some()).then_some(found)
    }

    /// Where a directory is, all links resolved.
    pub fn real(&self, directory: &Path) -> Option<PathBuf> {
        match self.plain(directory) {
            Some(_) => Some(directory.to_path_buf()),
            None => directory.canonicalize().ok(),
        }
    }
}

/// Whether a path begins at `/` and has nothing but names in it. A slash at the end would follow a
/// link there, and `..` leads to different places before and after links are followed.
fn is_tidy(path: &Path) -> bool {
    let Some(names) = path.as_os_str().as_bytes().strip_prefix(b"/") else { return false };
    let is_name = |name: &[u8]| !matches!(name, b"" | b"." | b"..");
    names.is_empty() || names.split(|byte| *byte == b'/').all(is_name)
}
