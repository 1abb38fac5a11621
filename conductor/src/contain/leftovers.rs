//! Processes of a former run that outlived it: a service and a guard that were killed at the
//! same moment can end nothing.
//!
//! They are found by the groups they are in and by the tag in their environment, which is
//! this service's alone, as long as its state directory is locked.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::ffi::OsStrExt as _,
    path::Path,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use super::{
    TAG,
    cells::{self, Cells},
};
use crate::frame::escape;

/// How long the kernel may take to end what was killed.
const PATIENCE: Duration = Duration::from_secs(2);

/// Between two looks at what is left.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// How much of a command line is told.
const SHOWN: usize = 200;

/// Bytes of the hash that a service is known by.
const NAME_BYTES: usize = 8;

/// What a service is known by: a hash of where its state is.
pub fn instance(state: &Path) -> String {
    let state = state.canonicalize().unwrap_or_else(|_| state.to_path_buf());
    let hash = Sha256::digest(state.as_os_str().as_bytes());
    hash.iter().take(NAME_BYTES).map(|byte| format!("{byte:02x}")).collect()
}

/// A process that was found and ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leftover {
    /// Our id of the process of an agent that it belonged to, if it is known.
    pub process: Option<Uuid>,
    /// Its command line, escaped.
    pub command: String,
}

/// Ends all that is left of a former run, and says what it was, by process id. The state
/// directory has to be locked, and nothing started yet.
pub fn end(instance: &str, cells: &Cells) -> BTreeMap<i32, Leftover> {
    let mut ended = BTreeMap::new();
    let until = Instant::now() + PATIENCE;
    let spared = ancestry();
    loop {
        let mut left = find(instance, cells);
        left.retain(|pid, _| !spared.contains(pid));
        if left.is_empty() || Instant::now() >= until {
            break;
        }
        // None starts another while the others die.
        for signal in [Signal::SIGSTOP, Signal::SIGKILL] {
            for pid in left.keys() {
                kill(Pid::from_raw(*pid), signal).ok();
            }
        }
        for (pid, leftover) in left {
            ended.entry(pid).or_insert(leftover);
        }
        std::thread::sleep(LOOK_EVERY);
    }
    for base in cells.bases() {
        let inside = fs::read_dir(base).into_iter().flatten().flatten();
        for entry in inside.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
            cells::remove(&entry.path());
        }
    }
    ended
}

/// This process and those above it: a service may be started from an agent's terminal.
fn ancestry() -> Vec<i32> {
    let mut found = Vec::new();
    let mut next = Some(std::process::id().cast_signed());
    while let Some(pid) = next.filter(|pid| *pid > 0 && !found.contains(pid)) {
        found.push(pid);
        let stat = fs::read(format!("/proc/{pid}/stat")).unwrap_or_default();
        let stat = String::from_utf8_lossy(&stat);
        let fields = stat.rsplit_once(')').map(|(_, rest)| rest);
        next = fields.and_then(|rest| rest.split_ascii_whitespace().nth(1)?.parse().ok());
    }
    found
}

/// All that is in the service's groups or has its tag, and is not dead yet.
fn find(instance: &str, cells: &Cells) -> BTreeMap<i32, Leftover> {
    let grouped: Vec<i32> = cells.bases().into_iter().flat_map(cells::members).collect();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let mut found = BTreeMap::new();
    for pid in pids {
        // Of other users' processes it cannot be read, and ours are none of those.
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let process = tagged(&environment, instance);
        if (process.is_some() || grouped.contains(&pid)) && is_alive(pid) {
            let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let words: Vec<u8> = command.iter().map(|byte| if *byte == 0 { b' ' } else { *byte }).collect();
            let command = escape(words.trim_ascii(), SHOWN);
            found.insert(pid, Leftover { process: process.flatten(), command });
        }
    }
    found
}

/// The process in the tag of this service: `None` without the tag, `Some(None)` if it
/// cannot be read.
fn tagged(environment: &[u8], instance: &str) -> Option<Option<Uuid>> {
    environment.split(|byte| *byte == 0).find_map(|variable| {
        let value = variable.strip_prefix(TAG.as_bytes())?.strip_prefix(b"=")?;
        let id = value.strip_prefix(instance.as_bytes())?.strip_prefix(b":")?;
        Some(std::str::from_utf8(id).ok().and_then(|id| id.parse().ok()))
    })
}

/// One that is dead and was not waited for yet holds nothing.
fn is_alive(pid: i32) -> bool {
    let stat = fs::read(format!("/proc/{pid}/stat")).unwrap_or_default();
    let stat = String::from_utf8_lossy(&stat);
    let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_ascii_whitespace().next());
    state.is_some_and(|state| !["Z", "X"].contains(&state))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_own_tag_counts() {
        let id = Uuid::from_u128(7);
        let with = |value: String| format!("HOME=/x\0{TAG}={value}\0PATH=/bin\0").into_bytes();
        assert_eq!(tagged(&with(format!("abc:{id}")), "abc"), Some(Some(id)));
        assert_eq!(tagged(&with("abc:nonsense".into()), "abc"), Some(None));
        assert_eq!(tagged(&with(format!("abcd:{id}")), "abc"), None, "another service's");
        assert_eq!(tagged(b"HOME=/x\0", "abc"), None);
    }

    #[test]
    fn this_process_is_among_those_that_are_spared() {
        assert!(ancestry().contains(&std::process::id().cast_signed()));
        assert!(ancestry().contains(&1) || ancestry().len() > 1);
    }
}
