//! Whether a command has more than it may have, with all that it has started.
//!
//! Where control groups hold the limits, the kernel counts how often one was reached, and in
//! version 2 also tells. Elsewhere the guard measures, a few times in a second.

use std::{
    fs::{self, File},
    io::{Read as _, Seek as _},
    os::fd::{AsFd as _, BorrowedFd},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use super::tree::Tree;
use crate::contain::Terms;

/// Between two measurements: short enough that no more than some hundred MiB or some thousand
/// processes come in between, long enough that nobody notices.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// What was too much.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// The agent itself had the most memory.
    Memory,
    /// Processes and threads.
    Processes,
}

impl std::fmt::Display for Limit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Memory => "memory",
            Self::Processes => "processes",
        })
    }
}

/// What is looked at.
#[derive(Debug)]
pub struct Excess {
    /// To be measured.
    memory: Option<u64>,
    /// To be measured.
    processes: Option<u64>,
    look_at: Option<Instant>,
    /// Where the kernel tells of processes that could not be started.
    refused: Option<File>,
    /// Where it tells of those it has killed for their memory.
    memory_events: Option<PathBuf>,
    /// How many those were when this began: a cell has several guards.
    killed_before: u64,
}

impl Excess {
    /// What the terms leave to the guard.
    pub fn new(terms: &Terms) -> Self {
        let places = &terms.cell;
        let memory = terms.limits.memory.filter(|_| places.memory_events.is_none());
        let refused = places.process_events.as_ref().and_then(|path| File::open(path).ok());
        let processes = terms.limits.processes.filter(|_| refused.is_none());
        let is_looked_at = memory.is_some() || processes.is_some() || refused.is_some();
        Self {
            memory,
            processes,
            look_at: is_looked_at.then(Instant::now),
            refused,
            memory_events: places.memory_events.clone(),
            killed_before: places.memory_events.as_deref().map_or(0, killed),
        }
    }

    /// When to look again, for nobody may tell.
    pub fn look_at(&self) -> Option<Instant> {
        self.look_at
    }

    /// Where the kernel tells of something; readable as urgent then.
    pub fn events(&self) -> Option<BorrowedFd<'_>> {
        self.refused.as_ref().map(|file| file.as_fd())
    }

    /// What is too much, so that all has to end. A process that has taken too much memory and
    /// is not the agent itself is killed alone, as the kernel would: the agent can tell.
    pub fn look(&mut self, tree: &Tree, agent: Pid) -> Option<Limit> {
        if self.refused.as_mut().is_some_and(was_refused) {
            return Some(Limit::Processes);
        }
        let now = Instant::now();
        if self.look_at.is_none_or(|at| at > now) {
            return None;
        }
        self.look_at = Some(now + LOOK_EVERY);
        if self.memory.is_none() && self.processes.is_none() {
            return None;
        }
        let measured = tree.measure();
        if self.processes.is_some_and(|most| measured.tasks > most) {
            return Some(Limit::Processes);
        }
        if self.memory.is_none_or(|most| measured.memory <= most) {
            return None;
        }
        match measured.largest {
            Some((largest, _)) if largest != agent => {
                // Failing to signal means that it is gone.
                let _ = kill(largest, Signal::SIGKILL);
                None
            }
            _ => Some(Limit::Memory),
        }
    }

    /// Whether the kernel has killed something of the cell for its memory since.
    pub fn ended_for_memory(&self) -> bool {
        self.memory_events.as_deref().is_some_and(|events| killed(events) > self.killed_before)
    }
}

/// Whether a process could not be started: `max N`. Reading is what makes the next change
/// be told.
fn was_refused(events: &mut File) -> bool {
    let mut text = String::new();
    let read = events.rewind().and_then(|()| events.read_to_string(&mut text));
    read.is_ok() && number(&text, "max") > 0
}

/// How many processes the kernel has killed there for their memory.
fn killed(events: &Path) -> u64 {
    number(&fs::read_to_string(events).unwrap_or_default(), "oom_kill")
}

/// The number behind a word, in lines of both.
fn number(text: &str, word: &str) -> u64 {
    let mut lines = text.lines().filter_map(|line| line.split_once(' '));
    lines.find(|(name, _)| *name == word).and_then(|(_, value)| value.parse().ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stand_behind_their_words() {
        let text = "low 0\nhigh 2\nmax 17\noom 1\noom_kill 3\noom_group_kill 9\n";
        assert_eq!((number(text, "max"), number(text, "oom_kill"), number(text, "other")), (17, 3, 0));
        assert_eq!(number("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n", "oom_kill"), 2);
    }
}
