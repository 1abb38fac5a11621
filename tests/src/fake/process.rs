//! What the fake agent does to itself as a process: signals, descendants,
//! zombies. No `unsafe`: descendants are this program started again.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]
#![allow(clippy::zombie_processes, reason = "leaving children behind is the fault to show")]

use std::{
    env,
    process::{Command, Stdio},
    sync::{Arc, atomic::Ordering},
    thread,
    time::Duration,
};

use nix::{
    sys::signal::{SigSet, Signal, raise},
    unistd::setsid,
};

use super::{Agent, hog, script::Fork};
use crate::harness::TAG;

/// Marks a descendant that sleeps; visible in `/proc/PID/cmdline`.
pub const SLEEPER: &str = "--descendant-sleeps";
/// Has a descendant leave its session and its parent before it does what else it is told.
pub const DETACH: &str = "--descendant-detaches";
/// Marks a descendant that forks without end.
pub const BOMB: &str = "--descendant-bombs";
/// Has every process of a bomb leave the session of its parent.
pub const LEAVES: &str = "--leaves-its-session";
/// Marks a descendant that takes memory, so many MiB as the next argument says, and keeps it.
pub const GLUTTON: &str = "--descendant-takes-mib";
const DEAF: &str = "--deaf-to-sigterm";
const DEAD: &str = "--descendant-ends";

/// Lives the life of a descendant if this process is one; `true` when it is over.
pub fn is_descendant() -> bool {
    let args: Vec<String> = env::args().collect();
    let has = |flag: &str| args.iter().any(|arg| arg == flag);
    if has(DETACH) {
        setsid().expect("a fresh child may start a session");
        let rest = args[1..].iter().filter(|arg| *arg != DETACH);
        this_program().args(rest).stdin(Stdio::null()).spawn().expect("spawn");
        return true;
    }
    if has(BOMB) {
        hog::explode(has(LEAVES));
        return true;
    }
    if let Some(place) = args.iter().position(|arg| arg == GLUTTON) {
        let taken = hog::take_memory(args[place + 1].parse().expect("a number of MiB"));
        thread::sleep(Duration::from_secs(3600));
        drop(taken);
        return true;
    }
    if has(SLEEPER) {
        if has(DEAF) {
            term().thread_block().expect("mask");
        }
        thread::sleep(Duration::from_secs(3600));
        return true;
    }
    has(DEAD)
}

fn this_program() -> Command {
    Command::new(env::current_exe().expect("own path"))
}

fn term() -> SigSet {
    let mut set = SigSet::empty();
    set.add(Signal::SIGTERM);
    set
}

/// Records SIGTERM and dies of it, unless told to ignore it. Must be called
/// before any other thread exists: they inherit the mask.
pub fn watch_sigterm(agent: &Arc<Agent>) {
    term().thread_block().expect("mask");
    let agent = Arc::clone(agent);
    thread::spawn(move || {
        loop {
            term().wait().expect("sigwait");
            agent.wire.event("SIGTERM");
            if !agent.wire.ignore_sigterm.load(Ordering::SeqCst) {
                term().thread_unblock().expect("mask");
                raise(Signal::SIGTERM).expect("raise");
            }
        }
    });
}

/// Leaves a descendant behind.
pub fn fork(how: &Fork) {
    let mut command = descendant(how.detach, how.clear_env);
    command.arg(SLEEPER);
    if how.ignore_sigterm {
        command.arg(DEAF);
    }
    if !how.hold_stdout {
        command.stdout(Stdio::null()).stderr(Stdio::null());
    }
    let mut child = command.spawn().expect("spawn");
    if how.detach {
        child.wait().expect("the middle process ends at once");
    }
}

/// This program as a descendant, to be told what it does.
pub fn descendant(detach: bool, clear_env: bool) -> Command {
    let mut command = this_program();
    command.stdin(Stdio::null());
    if clear_env {
        // It must still be found by the test, though by nobody else.
        let tag = env::var(TAG).unwrap_or_default();
        command.env_clear().arg(format!("{TAG}={tag}"));
    }
    if detach {
        command.arg(DETACH);
    }
    command
}

/// Starts children that end at once and are never reaped; their pids.
pub fn zombies(count: usize) -> Vec<u32> {
    let start =
        |_| this_program().arg(DEAD).stdin(Stdio::null()).stdout(Stdio::null()).spawn().expect("spawn").id();
    (0..count).map(start).collect()
}
