//! Finds and kills everything that descends from this process.
//!
//! This process is a subreaper, so whoever loses its parent becomes its child:
//! as long as it has children there may be descendants, and with no child left
//! there are none. One pass can miss a process that is forked meanwhile; the
//! caller repeats until `waitpid` knows no child.

use std::{
    collections::{BTreeSet, HashMap},
    fs, io,
};

use nix::{
    sys::signal::{Signal, kill, killpg},
    unistd::{Pid, getpgid, getpgrp, getpid},
};

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

    /// Sends SIGKILL to all that descend from this process right now.
    ///
    /// Groups come first: the kernel signals a whole group at once, so processes
    /// that fork faster than they can be listed cannot slip through. All groups
    /// below the guard are its own, because the agent leads a new session and
    /// nobody can join a group of another session.
    pub fn kill(&self) {
        let descendants = self.descendants();
        let mut groups: BTreeSet<Pid> =
            descendants.iter().filter_map(|pid| getpgid(Some(*pid)).ok()).collect();
        groups.remove(&getpgrp());
        // Failing to signal means that it is gone; the next pass knows.
        for group in groups {
            let _ = killpg(group, Signal::SIGKILL);
        }
        for pid in descendants {
            let _ = kill(pid, Signal::SIGKILL);
        }
    }

    /// All descendants, in no useful order.
    fn descendants(&self) -> BTreeSet<Pid> {
        match self.source {
            Source::ChildrenFiles => closure(self.root, children),
            Source::Scan => {
                let families = scan();
                closure(self.root, |pid| families.get(&pid).cloned().unwrap_or_default())
            }
        }
    }
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
