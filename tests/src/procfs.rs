//! What the kernel says of a process: who started it, since when it runs, and how
//! much it has.

use std::fs;

/// What a process has of what can leak.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holds {
    /// Resident memory in KiB.
    pub resident: u64,
    /// Open descriptors.
    pub descriptors: u64,
    /// Threads.
    pub threads: u64,
}

/// The fields of a process's `stat` file after its name.
fn stat(pid: u32) -> Option<Vec<String>> {
    let text = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let text = String::from_utf8_lossy(&text).into_owned();
    Some(text.rsplit_once(')')?.1.split_whitespace().map(str::to_owned).collect())
}

/// Who started it, or took it over.
pub fn parent(pid: u32) -> Option<u32> {
    stat(pid)?.get(1)?.parse().ok()
}

/// When a process began, which tells it from a later one with its number; none if it is dead.
pub fn began(pid: u32) -> Option<String> {
    let fields = stat(pid)?;
    let is_dead = matches!(fields.first()?.as_str(), "Z" | "X");
    fields.get(19).filter(|_| !is_dead).cloned()
}

/// What it has now; none if it is gone.
pub fn holds(pid: u32) -> Option<Holds> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let value = |name: &str| -> Option<u64> {
        let line = status.lines().find(|line| line.starts_with(name))?;
        line.split_whitespace().nth(1)?.parse().ok()
    };
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count() as u64;
    Some(Holds { resident: value("VmRSS:")?, descriptors, threads: value("Threads:")? })
}
