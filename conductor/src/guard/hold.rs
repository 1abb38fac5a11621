//! What the command is held by, made between fork and exec in the order in which each still
//! can be.

use std::{fs, io, path::Path};

use nix::{
    errno::Errno,
    libc,
    sys::{
        resource::{Resource, getrlimit, setrlimit},
        sysinfo::sysinfo,
    },
};

use super::{landlock, seccomp};
use crate::{
    config::Layer,
    contain::{Held, Terms},
};

/// Joins the groups of version 1 that the command is to be in. There, a limit that does not
/// hold would go unnoticed.
pub fn join(terms: &Terms) -> Result<(), String> {
    for directory in &terms.cell.join {
        enter(directory)
            .map_err(|error| format!("it cannot join the control group {}: {error}", directory.display()))?;
    }
    Ok(())
}

/// Moves this process into a group.
pub fn enter(directory: &Path) -> io::Result<()> {
    fs::write(directory.join("cgroup.procs"), "0")
}

/// Holds this process as far as it can be; the command follows.
pub fn hold(terms: &Terms, held: &mut Held) -> Result<(), String> {
    limits(terms)?;
    if let Some(files) = &terms.reach {
        landlock::apply(terms, files, held);
    }
    if terms.seccomp {
        seccomp::apply(terms.ports.is_some(), held);
    }
    for layer in &terms.layers {
        if !held.knows(*layer) {
            held.lacks(*layer, reason(*layer));
        }
    }
    let refusal = held.refusal(&terms.layers).filter(|_| terms.is_required);
    refusal.map_or(Ok(()), Err)
}

/// Why a layer was not even tried.
fn reason(layer: Layer) -> &'static str {
    match layer {
        Layer::Cgroup => {
            "no control group can be made here; run the service with Delegate=yes, or as a user who can make some"
        }
        Layer::Network => "no ports are named in reach.network",
        Layer::Landlock | Layer::Scope | Layer::Seccomp | Layer::Bwrap => "the sandbox is off",
    }
}

fn limits(terms: &Terms) -> Result<(), String> {
    let limits = &terms.limits;
    let wanted = [(Resource::RLIMIT_NOFILE, limits.open_files), (Resource::RLIMIT_FSIZE, limits.file_size)];
    for (resource, wanted) in wanted {
        let Some(wanted) = wanted else { continue };
        let failed = |error: Errno| format!("its limits cannot be set ({resource:?}): {error}");
        let (soft, hard) = getrlimit(resource).map_err(failed)?;
        setrlimit(resource, soft.min(wanted), hard.min(wanted)).map_err(failed)?;
    }
    if let Some(most) = limits.processes.filter(|_| terms.cell.process_events.is_none()) {
        bound_forks(most);
    }
    if limits.nice > 0 {
        renice(limits.nice);
    }
    Ok(())
}

/// So many processes more than it may have, a command could come to before that is measured.
const FLOOD: u64 = 8192;

/// Bounds what a flood of processes can come to. The kernel counts all processes of a user
/// here, so this is far above the limit: below it, others would be the ones to suffer.
fn bound_forks(most: u64) {
    let Ok(now) = sysinfo().map(|host| u64::from(host.process_count())) else { return };
    let (Ok((soft, hard)), wanted) = (getrlimit(Resource::RLIMIT_NPROC), now.saturating_add(most + FLOOD))
    else {
        return;
    };
    // Without it there is still the measuring.
    setrlimit(Resource::RLIMIT_NPROC, soft.min(wanted), hard.min(wanted)).ok();
}

/// Lets others go first. Stepping back is always allowed.
#[allow(unsafe_code, reason = "nix has no such call")]
fn renice(nice: i32) {
    // SAFETY: the call reads no memory.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice) };
}
