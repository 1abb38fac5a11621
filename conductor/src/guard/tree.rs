//! Finds and kills everything that descends from this process.
//!
//! This process is a subreaper, so whoever loses its parent becomes its child:
//! as long as it has children there may be descendants, and with no child left
//! there are none. One pass can miss a process that is forked meanwhile; the
//! caller repeats until `waitpid` knows no child.

use std::{
    collections::{BTreeSet, HashMap},
    fs, io,
    os::unix::fs::MetadataExt as _,
};

use nix::{
    sys::signal::{Signal, kill, killpg},
    unistd::{Pid, SysconfVar, getpgid, getpgrp, getpid, sysconf},
};

/// How often it is looked for processes that are not stopped yet, before those that are get
/// killed; what goes on forking after that is killed by the next pass.
const MOST_PASSES: usize = 32;

/// The processes below this one.
#[derive(Debug)]
pub struct Tree {
    root: Pid,
    source: Source,
}

/// Where the kernel tells who is whose child.
#[derive(Debug)]
enum Source {
    /// `/proc/PID/task/TID/children`, which some kernels are built without.
    ChildrenFiles,
    /// The parent in every `/proc/PID/stat`.
    Scan,
}

impl Tree {
    /// Checks that the descendants of this process can be found at all.
    pub fn below_this_process() -> io::Result<Self> {
        let root = getpid();
        if fs::exists(format!("/proc/{root}/task/{root}/children"))? {
            return Ok(Self { root, source: Source::ChildrenFiles });
        }
        fs::read(format!("/proc/{root}/stat"))?;
        Ok(Self { root, source: Source::Scan })
    }

    /// Kills all that descend from this process.
    ///
    /// First all are stopped: what is stopped starts nothing, so that processes which fork
    /// faster than they can be listed come to rest, and still take up what room their user
    /// has for more. Those that slip through are found by the next pass, as are those that
    /// only now have become descendants.
    pub fn kill(&self) {
        let mut stopped = BTreeSet::new();
        for _ in 0..MOST_PASSES {
            let fresh: BTreeSet<Pid> = self.descendants().difference(&stopped).copied().collect();
            if fresh.is_empty() {
                break;
            }
            signal(&fresh, Signal::SIGSTOP);
            stopped.extend(fresh);
        }
        signal(&stopped, Signal::SIGKILL);
    }

    /// What all descendants have together, and which has the most.
    pub fn measure(&self) -> Measured {
        let mut measured = Measured::default();
        for pid in self.descendants() {
            let Some((memory, tasks)) = taken(pid) else { continue };
            measured.memory += memory;
            measured.tasks += tasks;
            if measured.largest.is_none_or(|(_, most)| memory > most) {
                measured.largest = Some((pid, memory));
            }
        }
        measured
    }

    /// The command in a bubble: the first child of the first process in there, which is the
    /// only child of the `bwrap` outside.
    pub fn inside(&self, bubble: Pid) -> Option<Pid> {
        let children = self.children();
        let first = |parent| children(parent).first().copied();
        first(first(bubble)?)
    }

    /// All descendants, in no useful order.
    fn descendants(&self) -> BTreeSet<Pid> {
        closure(self.root, self.children())
    }

    /// Who is whose child: as it is now, or as it was when this was asked.
    fn children(&self) -> Box<dyn Fn(Pid) -> Vec<Pid>> {
        match self.source {
            Source::ChildrenFiles => Box::new(children),
            Source::Scan => {
                let families = scan();
                Box::new(move |pid| families.get(&pid).cloned().unwrap_or_default())
            }
        }
    }
}

/// Sends a signal to processes and to the groups they are in. Groups come first: the kernel
/// signals a whole group at once. All groups below the guard are its own, because the agent
/// leads a new session and nobody can join a group of another session.
fn signal(pids: &BTreeSet<Pid>, signal: Signal) {
    let mut groups: BTreeSet<Pid> = pids.iter().filter_map(|pid| getpgid(Some(*pid)).ok()).collect();
    groups.remove(&getpgrp());
    // Failing to signal means that it is gone; the next pass knows.
    for group in groups {
        let _ = killpg(group, signal);
    }
    for pid in pids {
        let _ = kill(*pid, signal);
    }
}

/// What a tree of processes has.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Measured {
    /// Bytes of memory of their own.
    pub memory: u64,
    /// Processes and threads.
    pub tasks: u64,
    /// The process with the most memory, and how much.
    pub largest: Option<(Pid, u64)>,
}

/// The memory of a process that is its own, and its threads; none if it is gone.
fn taken(pid: Pid) -> Option<(u64, u64)> {
    // `size resident shared …`, in pages
    let sizes = fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
    let mut pages = sizes.split_ascii_whitespace().skip(1).map_while(|word| word.parse::<u64>().ok());
    let (resident, shared) = (pages.next()?, pages.next()?);
    // One directory for each, beside `.` and `..`.
    let threads = fs::metadata(format!("/proc/{pid}/task")).ok()?.nlink().saturating_sub(2);
    let page = sysconf(SysconfVar::PAGE_SIZE).ok().flatten().and_then(|size| u64::try_from(size).ok());
    Some((resident.saturating_sub(shared) * page.unwrap_or(4096), threads))
}

/// All that can be reached from `root` by `children`, without `root`.
fn closure(root: Pid, children: impl Fn(Pid) -> Vec<Pid>) -> BTreeSet<Pid> {
    let mut found = BTreeSet::new();
    let mut pending = vec![root];
    while let Some(parent) = pending.pop() {
        // Ids may be reused while this runs, so a cycle must not hang the guard.
        pending.extend(children(parent).into_iter().filter(|pid| *pid != root && found.insert(*pid)));
    }
    found
}

/// The children of all threads of one process; none if it is gone.
fn children(parent: Pid) -> Vec<Pid> {
    let Ok(threads) = fs::read_dir(format!("/proc/{parent}/task")) else {
        return Vec::new();
    };
    let lists =
        threads.flatten().filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    lists.flat_map(|list| list.split_ascii_whitespace().filter_map(parse).collect::<Vec<_>>()).collect()
}

/// Whether a signal has stopped a process.
pub fn is_stopped(pid: Pid) -> bool {
    let stat = fs::read(format!("/proc/{pid}/stat")).unwrap_or_default();
    let stat = String::from_utf8_lossy(&stat);
    stat.rsplit_once(')').is_some_and(|(_, rest)| rest.trim_start().starts_with('T'))
}

/// Every process of this host by its parent.
fn scan() -> HashMap<Pid, Vec<Pid>> {
    let mut families: HashMap<Pid, Vec<Pid>> = HashMap::new();
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    for pid in entries.filter_map(|entry| entry.file_name().to_str().and_then(parse)) {
        // A program name need not be UTF-8.
        let stat = fs::read(format!("/proc/{pid}/stat")).unwrap_or_default();
        if let Some(parent) = parent_in(&String::from_utf8_lossy(&stat)) {
            families.entry(parent).or_default().push(pid);
        }
    }
    families
}

/// The parent in the text of a `stat` file. The name of the program stands in
/// parentheses and may itself contain spaces and parentheses.
fn parent_in(stat: &str) -> Option<Pid> {
    let (_, rest) = stat.rsplit_once(')')?;
    rest.split_ascii_whitespace().nth(1).and_then(parse)
}

fn parse(text: &str) -> Option<Pid> {
    text.parse().ok().map(Pid::from_raw)
}

#[cfg(test)]
#[allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "tests fail by panicking and wait for their processes"
)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn the_parent_is_found_behind_a_hostile_name() {
        assert_eq!(parent_in("12 (a) R 7 (b) S 34 12 12 0"), Some(Pid::from_raw(34)));
        assert_eq!(parent_in("12 (sh) S 1 12"), Some(Pid::from_raw(1)));
        assert_eq!(parent_in(""), None);
    }

    #[test]
    fn both_sources_find_a_grandchild() {
        let mut child = Command::new("sh")
            .args(["-c", "sleep 60 & echo $!; wait"])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let mut stdout = io::BufReader::new(child.stdout.take().unwrap());
        io::BufRead::read_line(&mut stdout, &mut line).unwrap();
        let family = [Pid::from_raw(child.id().cast_signed()), parse(line.trim()).unwrap()];

        for source in [Source::ChildrenFiles, Source::Scan] {
            let found = Tree { root: getpid(), source }.descendants();
            assert!(family.iter().all(|pid| found.contains(pid)), "{family:?} not in {found:?}");
            assert!(!found.contains(&getpid()));
        }
        kill(family[1], Signal::SIGKILL).unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_cycle_ends() {
        let one = Pid::from_raw(1);
        let two = Pid::from_raw(2);
        let found = closure(one, |pid| if pid == one { vec![two] } else { vec![one, two] });
        assert_eq!(found, BTreeSet::from([two]));
    }
}
