//! Which names the directories of `PATH` do not have.
//!
//! Most of a search is to find out that a program is not in one directory after
//! the other. That is remembered from one request to the next, and believed only
//! of a directory that is the same and in which nothing has changed since: each
//! request looks at all of them anew. What is there is never remembered.

use std::{
    collections::{HashMap, HashSet},
    ffi::OsString,
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

use foldhash::fast::RandomState;

use super::looks::Stamp;

/// Seconds that a directory must have been left alone. Clocks of file systems go in steps, of two
/// seconds at most: a change within the same step would not show.
const QUIET: u64 = 3;

/// Names that are remembered of a directory; an agent can ask for any number of them.
const MOST_NAMES: usize = 256;

/// Directories that are remembered; more than any `PATH` has.
const MOST_DIRECTORIES: usize = 64;

/// Names that are not there.
#[derive(Debug, Clone, Default)]
pub struct Absent(HashMap<OsString, (Stamp, Names), RandomState>);

/// Names that a directory does not have.
type Names = HashSet<String, RandomState>;

impl Absent {
    /// What is remembered of a directory that is now like this: whether it has no such name. None if
    /// nothing is.
    pub fn of(&self, directory: &Path, now: Stamp, name: &str) -> Option<bool> {
        let (then, names) = self.0.get(directory.as_os_str())?;
        (*then == now).then(|| names.contains(name))
    }

    /// Notes that it did not have it, after it was looked at and reached without links.
    pub fn note(&mut self, directory: &Path, now: Stamp, name: &str) {
        if !is_quiet(now) {
            return;
        }
        if self.0.len() >= MOST_DIRECTORIES && !self.0.contains_key(directory.as_os_str()) {
            self.0.clear();
        }
        let (then, names) = self.0.entry(directory.into()).or_insert_with(|| (now, Names::default()));
        if *then != now || names.len() >= MOST_NAMES {
            names.clear();
        }
        *then = now;
        names.insert(name.to_owned());
    }
}

/// Whether a later change is sure to have another time. A time in the future says nothing.
fn is_quiet(stamp: Stamp) -> bool {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
    u64::try_from(stamp.changed.0).is_ok_and(|changed| changed.saturating_add(QUIET) < now)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: Stamp = Stamp { device: 1, inode: 2, changed: (1000, 5) };

    #[test]
    fn only_the_same_directory_unchanged_is_believed() {
        let (bin, name) = (Path::new("/bin"), "tool");
        let mut absent = Absent::default();
        absent.note(bin, OLD, name);
        assert_eq!(absent.of(bin, OLD, name), Some(true));
        assert_eq!(absent.of(bin, OLD, "other"), Some(false));
        assert_eq!(absent.of(Path::new("/sbin"), OLD, name), None);
        for other in [
            Stamp { device: 3, ..OLD },
            Stamp { inode: 3, ..OLD },
            Stamp { changed: (1000, 6), ..OLD },
            Stamp { changed: (999, 5), ..OLD },
        ] {
            assert_eq!(absent.of(bin, other, name), None, "{other:?}");
        }
        // What was seen of it before it changed counts no more, also not if it looks like before.
        absent.note(bin, Stamp { changed: (1001, 0), ..OLD }, "other");
        assert_eq!(absent.of(bin, OLD, name), None);
    }

    #[test]
    fn a_directory_that_has_just_changed_is_not_remembered() {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_secs());
        let now = i64::try_from(now).unwrap_or(i64::MAX);
        for changed in [now - 1, now, now + 1000, i64::MAX, -1] {
            let stamp = Stamp { changed: (changed, 0), ..OLD };
            let mut absent = Absent::default();
            absent.note(Path::new("/bin"), stamp, "tool");
            assert_eq!(absent.of(Path::new("/bin"), stamp, "tool"), None, "{changed}");
        }
    }

    #[test]
    fn no_more_is_remembered_than_there_is_room_for() {
        let mut absent = Absent::default();
        for number in 0..10 * MOST_NAMES {
            absent.note(Path::new("/bin"), OLD, &number.to_string());
            absent.note(Path::new(&format!("/{number}")), OLD, "tool");
        }
        assert!(absent.0.len() <= MOST_DIRECTORIES);
        assert!(absent.0.values().all(|(_, names)| names.len() <= MOST_NAMES));
    }
}
