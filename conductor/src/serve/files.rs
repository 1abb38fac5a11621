//! Notices when the files that the service was started with are others.
//!
//! They are looked at every now and then, by what the file system says of them:
//! that costs two calls, needs no watch that somebody's network file system does
//! not have, and follows a link that is pointed elsewhere, which is how secrets and
//! config maps are exchanged. What counts as read is how a file was *before* it was
//! read: what is written meanwhile is then a change like any other.

use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::{
    task::spawn_blocking,
    time::{Interval, MissedTickBehavior, interval},
};

/// How often they are looked at. A change counts once it was seen twice, so that
/// a file is not read while it is being written.
const EVERY: Duration = Duration::from_secs(1);

/// What tells one version of a file from the next; `None` if there is none.
type Stamp = Option<(u64, u64, u64, i64, i64)>;

/// Files, and how each was before it was read.
#[derive(Debug, Default)]
pub(super) struct Read {
    files: Vec<PathBuf>,
    stamps: Vec<Stamp>,
}

impl Read {
    /// This file is about to be read, if there is one.
    pub(super) fn next(&mut self, file: Option<&Path>) {
        if let Some(file) = file {
            self.stamps.push(stamp(file));
            self.files.push(file.to_owned());
        }
    }
}

/// Files, and how they were when they were last looked at.
pub(super) struct Files {
    ticks: Interval,
    read: Read,
    seen: Vec<Stamp>,
}

impl Files {
    pub(super) fn new(read: Read) -> Self {
        let mut ticks = interval(EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let seen = read.stamps.clone();
        Self { ticks, read, seen }
    }

    /// These were read just now.
    pub(super) fn were_read(&mut self, read: Read) {
        self.seen.clone_from(&read.stamps);
        self.read = read;
    }

    /// Returns when one of them is another one. May be dropped and asked again.
    pub(super) async fn changed(&mut self) {
        loop {
            self.ticks.tick().await;
            // A network file system that hangs must not hold up the relay.
            let files = self.read.files.clone();
            let now = spawn_blocking(move || stamps(&files)).await;
            if now.is_ok_and(|now| self.saw(now)) {
                return;
            }
        }
    }

    /// Whether they are others, and are not being written.
    fn saw(&mut self, now: Vec<Stamp>) -> bool {
        let has_settled = now == self.seen;
        let is_other = now != self.read.stamps;
        self.seen = now;
        is_other && has_settled
    }
}

fn stamps(files: &[PathBuf]) -> Vec<Stamp> {
    files.iter().map(|file| stamp(file)).collect()
}

fn stamp(file: &Path) -> Stamp {
    let found = fs::metadata(file).ok()?;
    // Not when it was written, which whoever writes it may set as they like.
    Some((found.dev(), found.ino(), found.size(), found.ctime(), found.ctime_nsec()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    impl Files {
        fn look(&mut self) -> bool {
            self.saw(stamps(&self.read.files))
        }
    }

    fn read(file: &Path) -> Read {
        let mut read = Read::default();
        read.next(Some(file));
        read
    }

    #[tokio::test]
    async fn a_change_counts_once_it_has_settled() {
        let temp = tempfile::tempdir().unwrap();
        let file = temp.path().join("agents.toml");
        let mut files = Files::new(read(&file));
        assert!(!files.look());
        fs::write(&file, "a").unwrap();
        assert!(!files.look(), "it may still be being written");
        fs::write(&file, "ab").unwrap();
        assert!(!files.look(), "it was");
        assert!(files.look());
        files.were_read(read(&file));
        assert!(!files.look() && !files.look());
        // A link that is pointed elsewhere is another file, whatever its times say.
        let other = temp.path().join("other");
        fs::write(&other, "ab").unwrap();
        fs::rename(&other, &file).unwrap();
        assert!(!files.look() && files.look());
    }
    #[tokio::test]
    async fn what_is_written_while_it_is_read_is_a_change() {
        let temp = tempfile::tempdir().unwrap();
        let file = temp.path().join("agents.toml");
        fs::write(&file, "a").unwrap();
        let old = read(&file);
        // Whoever reads it has the old text by now, or half of the new one.
        fs::write(&file, "ab").unwrap();
        let mut files = Files::new(old);
        assert!(!files.look() && files.look());
        let old = read(&file);
        fs::write(&file, "abc").unwrap();
        files.were_read(old);
        assert!(!files.look() && files.look());
        files.were_read(read(&file));
        assert!(!files.look() && !files.look());
    }
}
