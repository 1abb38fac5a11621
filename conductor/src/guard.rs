//! The small parent of every agent process.
//!
//! An agent starts shells, servers and helpers of its own, and some of them
//! leave its process group and its session. A process group is therefore not
//! enough to end an agent, and a conductor that is killed can end nothing at
//! all. So every agent runs below one guard: a process of this same program,
//! synchronous and with a single thread, which adopts whatever the agent leaves
//! behind, notices by the end of file on its control descriptor that the
//! conductor is gone, and exits only when nothing below it is alive.
//!
//! To the conductor the guard looks like the agent itself: signals sent to it
//! reach the agent, and its wait status is the agent's. On the control
//! descriptor it writes lines, each at most once: `pid N` when the command
//! runs, `error TEXT` when it cannot be started, `stopped` when it is killed
//! because a signal had stopped it for too long. Closing the other end, or
//! shutting down its writing half, asks for the death of everything.
//!
//! - `launch` starts the command and says in words why it could not.
//! - `watch` waits for the end, passes signals on and reaps.
//! - `tree` finds and kills all descendants.
//! - `ending` is a wait status and how to die of the same one.

use std::process::ExitCode;

use crate::cli::GuardArgs;

#[cfg(target_os = "linux")]
mod ending;
#[cfg(target_os = "linux")]
mod launch;
#[cfg(target_os = "linux")]
mod tree;
#[cfg(target_os = "linux")]
mod watch;

/// Runs the command under guard and ends exactly as the command did.
#[cfg(target_os = "linux")]
pub fn run(args: GuardArgs) -> ExitCode {
    watch::guard(args)
}

/// Refuses: nothing here can keep the promise that no process outlives its agent.
#[cfg(not(target_os = "linux"))]
pub fn run(_args: GuardArgs) -> ExitCode {
    use std::io::Write as _;
    // Nobody is left to tell when stderr itself cannot be written.
    let _ = writeln!(
        std::io::stderr(),
        "conductor guard needs Linux (subreaper, signalfd, /proc); run the service on a Linux host"
    );
    ExitCode::FAILURE
}
