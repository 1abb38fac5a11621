//! How a process ended, and how to end in the same way.
//!
//! The raw wait status is kept, because the decoded forms of the standard
//! library and of `nix` have no place for realtime signals.

use std::process::ExitCode;

use nix::{
    libc,
    sys::{prctl, signal::SigSet},
};

/// What shells add to the number of a signal to make an exit code of it.
const SIGNAL_BASE: i32 = 128;

/// The wait status of a process that is no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ending(i32);

impl Ending {
    /// Wraps a raw wait status, unless it only says that a process was stopped or continued.
    pub fn from_wait(status: i32) -> Option<Self> {
        (libc::WIFEXITED(status) || libc::WIFSIGNALED(status)).then_some(Self(status))
    }

    /// Whether it was killed.
    pub fn is_kill(self) -> bool {
        libc::WIFSIGNALED(self.0) && libc::WTERMSIG(self.0) == libc::SIGKILL
    }

    /// Whether it tells by its exit code that another was killed.
    pub fn tells_of_kill(self) -> bool {
        libc::WIFEXITED(self.0) && libc::WEXITSTATUS(self.0) == SIGNAL_BASE + libc::SIGKILL
    }

    /// Ends this process in the same way: returns the exit code, or dies of the same signal.
    pub fn mirror(self) -> ExitCode {
        if libc::WIFEXITED(self.0) {
            return code(libc::WEXITSTATUS(self.0));
        }
        let signal = libc::WTERMSIG(self.0);
        // The core limit does not bind where cores are piped to a program, and one
        // crash must not be reported twice, so this process is made undumpable.
        let _ = prctl::set_dumpable(false);
        die_of(signal);
        // Still alive: the kernel spares the first process of a PID namespace.
        code(SIGNAL_BASE + signal)
    }
}

/// The code to exit with when the agent's end was never seen: that of a killed process.
pub fn unknown() -> ExitCode {
    code(SIGNAL_BASE + libc::SIGKILL)
}

fn code(value: i32) -> ExitCode {
    // Wait statuses and 128 plus a signal both fit in eight bits.
    ExitCode::from(u8::try_from(value).unwrap_or(u8::MAX))
}

/// Raises `signal` with its default effect. Only this one is unblocked: another
/// pending one would otherwise be the cause of death.
#[allow(unsafe_code, reason = "nix knows no realtime signals, and setting dispositions is unsafe")]
fn die_of(signal: i32) {
    let mut only = *SigSet::empty().as_ref();
    // SAFETY: no handler is installed, and `only` is an initialised set.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        libc::raise(signal);
        libc::sigaddset(&mut only, signal);
        libc::sigprocmask(libc::SIG_UNBLOCK, &only, std::ptr::null_mut());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ends_are_endings() {
        assert_eq!(Ending::from_wait(42 << 8), Some(Ending(42 << 8)), "exit 42");
        assert_eq!(Ending::from_wait(libc::SIGKILL), Some(Ending(libc::SIGKILL)), "killed");
        assert_eq!(Ending::from_wait((libc::SIGSTOP << 8) | 0x7f), None, "stopped");
        assert_eq!(Ending::from_wait(0xffff), None, "continued");
    }
}
