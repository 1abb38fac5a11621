//! Processes that lost their guard.
//!
//! A guard that is killed takes the agent with it, but what the agent had
//! started becomes an orphan. The service adopts such orphans (it is their
//! subreaper) and ends them.

use std::{fs, os::unix::fs::MetadataExt as _, path::Path, time::Duration};

use nix::{
    sys::{
        signal::{Signal, kill},
        wait::{WaitPidFlag, WaitStatus, waitpid},
    },
    unistd::Pid,
};
use tokio::time::sleep;
use tracing::warn;

use crate::metrics::{Branch, Metrics};

/// How often it is looked whether killed orphans are gone, and how long.
const LOOK_EVERY: Duration = Duration::from_millis(20);
const LOOKS: u32 = 50;

/// Makes this process the one that adopts orphans beneath it.
pub fn adopt(metrics: &Metrics) {
    #[cfg(target_os = "linux")]
    if let Err(error) = nix::sys::prctl::set_child_subreaper(true) {
        metrics.best_effort(Branch::OrphansNotAdopted);
        warn!(%error, "orphans of a killed guard will not be found");
    }
}

/// Ends adopted orphans until there are none, and reaps the agent itself,
/// which died with its guard. Guards, which run this very program, are let be.
pub async fn end(agent: u32) {
    let agent = i32::try_from(agent).map(Pid::from_raw).ok();
    let mut killed: Vec<Pid> = agent.into_iter().collect();
    for _ in 0..LOOKS {
        let strays = children().into_iter().filter(|pid| !is_guard(*pid) && !killed.contains(pid));
        let strays: Vec<Pid> = strays.collect();
        // Only a death makes the children of the dead ours: one look that finds
        // nobody, after the last of them is gone, is needed.
        if strays.is_empty() && killed.is_empty() {
            return;
        }
        for pid in strays {
            warn!(pid = pid.as_raw(), "a process had lost its guard and is killed");
            kill(pid, Signal::SIGKILL).ok();
            killed.push(pid);
        }
        // What is not our child, or not any more, needs no waiting for.
        killed.retain(|pid| matches!(waitpid(*pid, Some(WaitPidFlag::WNOHANG)), Ok(WaitStatus::StillAlive)));
        if !killed.is_empty() {
            sleep(LOOK_EVERY).await;
        }
    }
}

fn children() -> Vec<Pid> {
    let threads = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let lists = threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    let pids = lists
        .flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<i32>>());
    pids.map(Pid::from_raw).collect()
}

/// A child that runs our own program, or is too dead to tell: that one has
/// been or will be waited for by whoever started it.
fn is_guard(pid: Pid) -> bool {
    let inode = |path: &Path| fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()));
    match inode(Path::new(&format!("/proc/{pid}/exe"))) {
        Some(theirs) => Some(theirs) == inode(Path::new("/proc/self/exe")),
        None => true,
    }
}
