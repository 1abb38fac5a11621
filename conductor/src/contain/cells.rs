//! Control groups for agents, where this host lets us make some.
//!
//! A *cell* is the group of one process of an agent and of the commands that it has us run:
//! what they have together is limited there, and all of it can be killed at once. Each guard
//! makes a group of its own inside it for its command, so that a command can be ended without
//! the agent.
//!
//! With version 2 one tree has everything; with version 1 each kind of limit has a tree of
//! its own, and none can kill. Hosts mix the two. A kind that is not to be had is left to the
//! guard, which measures.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use nix::unistd::{AccessFlags, access};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::Limits;

/// Begins the name of every group of ours.
const PREFIX: &str = "conductor-";

/// The group that the service itself moves to, so that those beside it can have limits: a
/// group of version 2 that has processes in it cannot hand out any.
const SERVICE: &str = "conductor-service";

/// How often a group is made anew that goes away while another is made in it.
const MOST_TRIES: usize = 8;

/// What is usual for the weight of a group, in the two versions.
const USUAL_WEIGHT: u64 = 100;
const USUAL_SHARES: u64 = 1024;

/// Each step of niceness is worth a quarter more of a processor.
const NICE_STEP: f64 = 1.25;

/// The last niceness there is.
const NICEST: i32 = 19;

/// What can be limited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Memory,
    Processes,
    Cpu,
}

impl Kind {
    const ALL: [Self; 3] = [Self::Memory, Self::Processes, Self::Cpu];

    /// The kernel's name.
    fn controller(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Processes => "pids",
            Self::Cpu => "cpu",
        }
    }
}

/// Which version limits something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// Where cells can be made; nowhere, maybe.
#[derive(Debug, Clone, Default)]
pub struct Cells {
    /// The group of version 2 that they are in.
    two: Option<PathBuf>,
    /// Where each kind is limited.
    limited: Vec<(Kind, Version, PathBuf)>,
}

/// The groups of one guard.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Places {
    /// Of version 2: the guard makes one of its own in it.
    pub within: Option<PathBuf>,
    /// Of version 1: the command joins them.
    pub join: Vec<PathBuf>,
    /// The kernel limits memory, and tells of it here.
    pub memory_events: Option<PathBuf>,
    /// The kernel limits processes, and tells of it here.
    pub process_events: Option<PathBuf>,
}

impl Cells {
    /// None.
    pub fn none() -> Self {
        Self::default()
    }

    /// Looks where the groups of this process are, and tries whether some can be made beneath
    /// and can limit anything. The service's own group is there only while it has cells.
    pub fn find(instance: &str) -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let trees = trees(&read("/proc/self/cgroup"), &read("/proc/self/mountinfo"));
        let name = format!("{PREFIX}{instance}");
        let mut found = Self::default();
        for tree in trees {
            match tree.controllers {
                None => {
                    let can = hand_out(&tree.own);
                    let base = tree.own.join(&name);
                    if make(&base).is_err() {
                        continue;
                    }
                    let can: Vec<Kind> =
                        can.into_iter().filter(|kind| enable(&base, *kind).is_ok()).collect();
                    fs::remove_dir(&base).ok();
                    found.limited.extend(can.into_iter().map(|kind| (kind, Version::Two, base.clone())));
                    found.two = Some(base);
                }
                Some(controllers) => {
                    let base = tree.own.join(&name);
                    let kinds = Kind::ALL
                        .into_iter()
                        .filter(|kind| controllers.iter().any(|controller| controller == kind.controller()));
                    let kinds: Vec<Kind> = kinds.collect();
                    if !kinds.is_empty() && make(&base).is_ok() {
                        fs::remove_dir(&base).ok();
                        found
                            .limited
                            .extend(kinds.into_iter().map(|kind| (kind, Version::One, base.clone())));
                    }
                }
            }
        }
        found
    }

    /// All groups of the service.
    pub fn bases(&self) -> Vec<&Path> {
        let mut bases: Vec<&Path> = self.two.iter().map(PathBuf::as_path).collect();
        bases.extend(self.limited.iter().map(|(_, _, base)| base.as_path()));
        bases.sort_unstable();
        bases.dedup();
        bases
    }

    /// Makes the cell of a process. What cannot be made is left out.
    pub(super) fn make(&self, id: Uuid, limits: &Limits, weight: u64) -> Cell {
        let mut cell = Cell::default();
        for base in self.bases() {
            let directory = base.join(id.to_string());
            if self.make_within(base, &directory).is_ok() {
                cell.made.push(directory);
            }
        }
        if let Some(two) = &self.two {
            let within = two.join(id.to_string());
            cell.places.within = cell.made.contains(&within).then_some(within);
        }
        for (kind, version, base) in &self.limited {
            let directory = base.join(id.to_string());
            if cell.made.contains(&directory) {
                cell.limit(*kind, *version, &directory, limits, weight);
            }
        }
        cell
    }
}

impl Cells {
    /// Makes a group in the service's own, which goes away with its last cell: maybe just now.
    fn make_within(&self, base: &Path, directory: &Path) -> io::Result<()> {
        let mut made = Err(io::ErrorKind::NotFound.into());
        for _ in 0..MOST_TRIES {
            make(base)?;
            for (kind, version, place) in &self.limited {
                if *version == Version::Two && place == base {
                    enable(base, *kind)?;
                }
            }
            made = make(directory);
            if made.as_ref().err().is_none_or(|error| error.kind() != io::ErrorKind::NotFound) {
                break;
            }
        }
        made
    }
}

/// The groups of one process. Dropping it removes them.
#[derive(Debug, Default)]
pub struct Cell {
    places: Places,
    made: Vec<PathBuf>,
    is_weighed: bool,
}

impl Cell {
    /// What its guards have to know.
    pub fn places(&self) -> &Places {
        &self.places
    }

    /// How nice a process has to be that no group weighs.
    pub(super) fn nice(&self, weight: u64) -> i32 {
        if self.is_weighed || weight >= USUAL_WEIGHT {
            return 0;
        }
        let steps = (USUAL_WEIGHT as f64 / weight.max(1) as f64).ln() / NICE_STEP.ln();
        (steps.round() as i32).clamp(0, NICEST)
    }

    fn limit(&mut self, kind: Kind, version: Version, directory: &Path, limits: &Limits, weight: u64) {
        let set = |file: &str, value: u64| fs::write(directory.join(file), value.to_string());
        let done = match (kind, version) {
            (Kind::Memory, version) => {
                let Some(bytes) = limits.memory else { return };
                let (file, swap, events) = match version {
                    Version::One => {
                        ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.oom_control")
                    }
                    Version::Two => ("memory.max", "memory.swap.max", "memory.events"),
                };
                let done = set(file, bytes);
                // Not every kernel accounts for swap. The older version counts both together.
                let both = if version == Version::One { bytes } else { 0 };
                set(swap, both).ok();
                done.map(|()| self.places.memory_events = Some(directory.join(events)))
            }
            (Kind::Processes, _) => {
                let Some(processes) = limits.processes else { return };
                let done = set("pids.max", processes);
                done.map(|()| self.places.process_events = Some(directory.join("pids.events")))
            }
            (Kind::Cpu, Version::One) => set("cpu.shares", weight * USUAL_SHARES / USUAL_WEIGHT),
            (Kind::Cpu, Version::Two) => set("cpu.weight", weight),
        };
        if done.is_err() {
            return;
        }
        self.is_weighed |= kind == Kind::Cpu;
        let directory = directory.to_path_buf();
        if version == Version::One && !self.places.join.contains(&directory) {
            self.places.join.push(directory);
        }
    }
}

impl Drop for Cell {
    fn drop(&mut self) {
        // A guard that was killed leaves its own group behind.
        for directory in &self.made {
            remove(directory);
            // Refused as long as others are in there.
            directory.parent().map(fs::remove_dir);
        }
    }
}

/// Kills what is in a group and in those inside it, and removes them. Whether it is gone.
pub(super) fn remove(directory: &Path) -> bool {
    if fs::remove_dir(directory).is_ok() {
        return true;
    }
    // Not there in version 1, where what holds it is found by its tag.
    fs::write(directory.join("cgroup.kill"), "1").ok();
    let inside = fs::read_dir(directory).into_iter().flatten().flatten();
    for entry in inside.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        remove(&entry.path());
    }
    fs::remove_dir(directory).is_ok() || !directory.exists()
}

/// All that are in a group and in those inside it.
pub(super) fn members(directory: &Path) -> Vec<i32> {
    let listed = fs::read_to_string(directory.join("cgroup.procs")).unwrap_or_default();
    let mut found: Vec<i32> = listed.lines().filter_map(|line| line.parse().ok()).collect();
    let inside = fs::read_dir(directory).into_iter().flatten().flatten();
    for entry in inside.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        found.extend(members(&entry.path()));
    }
    found
}

fn make(directory: &Path) -> io::Result<()> {
    match fs::create_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        made => made,
    }
}

/// Lets the groups beneath one of version 2 be limited; which kinds.
///
/// That is possible only if no process is in it. A service manager that hands a group over
/// puts the service alone into it: then it moves one further down. Where others are, too,
/// nothing is moved.
fn hand_out(own: &Path) -> Vec<Kind> {
    let enabled = || -> Vec<Kind> {
        let listed = fs::read_to_string(own.join("cgroup.subtree_control")).unwrap_or_default();
        let has = |kind: &Kind| listed.split_whitespace().any(|word| word == kind.controller());
        Kind::ALL.into_iter().filter(has).collect()
    };
    let there = fs::read_to_string(own.join("cgroup.controllers")).unwrap_or_default();
    let there: Vec<&str> = there.split_whitespace().collect();
    let wanted: Vec<Kind> = Kind::ALL.into_iter().filter(|kind| there.contains(&kind.controller())).collect();
    if wanted.is_empty() || wanted.iter().all(|kind| enabled().contains(kind)) {
        return enabled();
    }
    let listed = fs::read_to_string(own.join("cgroup.procs")).unwrap_or_default();
    let alone = listed.lines().all(|line| line.parse() == Ok(std::process::id()));
    if alone && !listed.is_empty() {
        let service = own.join(SERVICE);
        if make(&service).and_then(|()| fs::write(service.join("cgroup.procs"), "0")).is_err() {
            return enabled();
        }
    }
    for kind in wanted {
        enable(own, kind).ok();
    }
    enabled()
}

fn enable(directory: &Path, kind: Kind) -> io::Result<()> {
    fs::write(directory.join("cgroup.subtree_control"), format!("+{}", kind.controller()))
}

/// What this host would let us make, in words; nothing is made.
pub fn offered() -> Vec<String> {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let trees = trees(&read("/proc/self/cgroup"), &read("/proc/self/mountinfo"));
    let writable = trees.into_iter().filter(|tree| access(&tree.own, AccessFlags::W_OK).is_ok());
    let named = writable.filter_map(|tree| match tree.controllers {
        None => {
            let limits = fs::read_to_string(tree.own.join("cgroup.controllers")).unwrap_or_default();
            let limits: Vec<&str> =
                Kind::ALL.iter().map(|kind| kind.controller()).filter(|name| limits.contains(name)).collect();
            Some(format!(
                "version 2 ({})",
                if limits.is_empty() { "no limits".to_owned() } else { limits.join(", ") }
            ))
        }
        Some(controllers) => {
            let kind =
                Kind::ALL.iter().find(|kind| controllers.iter().any(|name| name == kind.controller()))?;
            Some(kind.controller().to_owned())
        }
    });
    named.collect()
}

/// A tree of groups, and the one that this process is in.
#[derive(Debug, PartialEq, Eq)]
struct Tree {
    /// `None` for version 2.
    controllers: Option<Vec<String>>,
    own: PathBuf,
}

/// The trees that are mounted here, from the kernel's own lists.
fn trees(groups: &str, mounts: &str) -> Vec<Tree> {
    // `4:memory:/path`, `0::/path`
    groups
        .lines()
        .filter_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            let (names, path) = (parts.next()?, parts.next()?);
            let controllers: Option<Vec<String>> =
                (!names.is_empty()).then(|| names.split(',').map(str::to_owned).collect());
            let (root, point) = mounts.lines().find_map(|mount| mounted(mount, controllers.as_deref()))?;
            let rest = Path::new(path).strip_prefix(&root).ok()?;
            let own = if rest.as_os_str().is_empty() { point } else { point.join(rest) };
            Some(Tree { controllers, own })
        })
        .collect()
}

/// What part of the tree a mount shows and where, if it is a mount of that tree.
fn mounted(line: &str, controllers: Option<&[String]>) -> Option<(PathBuf, PathBuf)> {
    // `34 28 0:30 / /sys/fs/cgroup/memory rw,relatime shared:15 - cgroup cgroup rw,memory`
    let (before, after) = line.split_once(" - ")?;
    let mut words = before.split(' ').skip(3);
    let (root, point) = (words.next()?, words.next()?);
    let mut words = after.split(' ');
    let (kind, options) = (words.next()?, words.nth(1)?);
    let is_it = match controllers {
        None => kind == "cgroup2",
        Some(wanted) => {
            kind == "cgroup" && wanted.iter().all(|name| options.split(',').any(|option| option == name))
        }
    };
    is_it.then(|| (root.into(), point.into()))
}

/// How much memory this host has.
pub fn host_memory() -> u64 {
    let listed = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let total = listed.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = total.and_then(|rest| rest.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kib.map_or(u64::MAX, |kib| kib << 10)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    const MOUNTS: &str = "\
30 28 0:27 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
31 28 0:28 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
32 28 0:29 /docker/abc /sys/fs/cgroup/unified rw,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate";

    #[test]
    fn both_versions_are_found_where_they_are_mounted() {
        let groups = "4:memory:/user/x\n3:cpu,cpuacct:/\n2:pids:/\n0::/docker/abc/inner\n";
        let own = |path: &str| PathBuf::from(path);
        let named = |names: &[&str]| Some(names.iter().map(|name| (*name).to_owned()).collect());
        let expected = vec![
            Tree { controllers: named(&["memory"]), own: own("/sys/fs/cgroup/memory/user/x") },
            Tree { controllers: named(&["cpu", "cpuacct"]), own: own("/sys/fs/cgroup/cpu,cpuacct") },
            Tree { controllers: None, own: own("/sys/fs/cgroup/unified/inner") },
        ];
        assert_eq!(trees(groups, MOUNTS), expected, "no mount has pids");
        assert_eq!(trees("0::/elsewhere\n", MOUNTS), [], "the mount does not show it");
        assert_eq!(trees("nonsense\n", MOUNTS), []);
    }

    #[test]
    fn a_small_weight_is_niceness_where_nobody_weighs() {
        let cell = Cell::default();
        assert_eq!([100, 1000, 80, 50, 1].map(|weight| cell.nice(weight)), [0, 0, 1, 3, NICEST]);
        let mut weighed = Cell::default();
        weighed.is_weighed = true;
        assert_eq!(weighed.nice(1), 0);
    }
}
