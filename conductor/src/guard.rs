//! The small parent of every agent process.
//!
//! An agent starts shells, servers and helpers of its own, and some of them
//! leave its process group and its session. A process group is therefore not
//! enough to end an agent, and a conductor that is killed can end nothing at
//! all. So every agent runs below one guard: a process of this same program,
//! synchronous and with a single thread, which adopts whatever the agent leaves
//! behind, notices by the end of file on its control socket that the
//! conductor is gone, and exits only when nothing below it is alive.
//!
//! To the conductor the guard looks like the agent itself: signals sent to it
//! reach the agent, and its wait status is the agent's (of an agent in a bubble, a death by
//! signal is told as 128 plus its number). Its stdin is the control
//! socket, over which it is handed the agent's own stdin: so that the conductor has
//! nothing to do between fork and exec, and can start a guard without a copy of its
//! address space. What the command is to be held by ([`Terms`](crate::contain::Terms)) comes
//! over it, too. On the socket it writes lines, each at most once: `held JSON` and `pid N` when
//! the command runs, `error TEXT` when it cannot be started, `stopped` when it is killed
//! because a signal had stopped it for too long, `limit memory` or `limit processes` when it
//! had too much of that. Closing the other end, or
//! shutting down its writing half, asks for the death of everything.
//!
//! - `control` is its end of the socket.
//! - `launch` starts the command and says in words why it could not.
//! - `hold` is what happens to it before that, with `landlock` and `seccomp`.
//! - `bubble` puts it into name spaces of its own, which `protected` places are read-only in;
//!   `inside` is the stage in there, in which this program runs once more.
//! - `cell` is the control group that it is born into.
//! - `watch` waits for the end, passes signals on and reaps.
//! - `excess` is whether it has more than it may have.
//! - `tree` finds, measures and kills all descendants.
//! - `ending` is a wait status and how to die of the same one.

use std::process::ExitCode;

use crate::cli::GuardArgs;

#[cfg(target_os = "linux")]
mod bubble;
#[cfg(target_os = "linux")]
mod cell;
#[cfg(target_os = "linux")]
mod control;
#[cfg(target_os = "linux")]
mod ending;
#[cfg(target_os = "linux")]
mod excess;
#[cfg(target_os = "linux")]
mod hold;
#[cfg(target_os = "linux")]
mod inside;
#[cfg(target_os = "linux")]
mod landlock;
#[cfg(target_os = "linux")]
mod launch;
#[cfg(target_os = "linux")]
mod protected;
#[cfg(target_os = "linux")]
mod seccomp;
#[cfg(target_os = "linux")]
mod tree;
#[cfg(target_os = "linux")]
mod watch;

/// Runs the command under guard and ends exactly as the command did.
#[cfg(target_os = "linux")]
pub fn run(args: GuardArgs) -> ExitCode {
    match args.inside {
        Some(letter) => inside::run(letter, &args),
        None => watch::guard(args),
    }
}

/// The version of Landlock that is switched on, if any.
#[cfg(target_os = "linux")]
pub fn landlock_version() -> Option<i32> {
    landlock::version()
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
