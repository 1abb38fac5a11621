//! The guard's own life: set up, start the command, wait for an end, kill the rest.
//!
//! All signals are blocked and read from a descriptor, so that one `poll` waits
//! for everything that can happen and nothing happens in between.

use std::{
    ffi::OsString,
    fs::File,
    io::{self, ErrorKind, Read as _, Write as _},
    os::fd::{AsFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd},
    path::Path,
    process::ExitCode,
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    fcntl::{FcntlArg, FdFlag, OFlag, fcntl},
    libc,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        prctl,
        resource::{Resource, setrlimit},
        signal::{SigHandler, SigSet, Signal, killpg, signal},
        signalfd::{SfdFlags, SignalFd},
    },
    unistd::{Pid, chdir, dup2_stderr, dup2_stdin, dup2_stdout, setsid},
};

use super::{
    ending::{self, Ending},
    launch::{self, Refusal},
    tree::Tree,
};
use crate::cli::GuardArgs;

/// What the agent gets to see of the signals sent to the guard.
const PASSED_ON: [Signal; 8] = [
    Signal::SIGTERM,
    Signal::SIGINT,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGCONT,
    Signal::SIGWINCH,
];

/// The first descriptor that is not one of the agent's own three.
const FIRST_OTHER_FD: RawFd = 3;

/// How long a killed process may take to die before the tree is listed and
/// killed again; a death wakes the guard earlier.
const KILL_AGAIN_AFTER_MS: u8 = 10;

/// Runs the command under guard.
pub fn guard(args: GuardArgs) -> ExitCode {
    let GuardArgs { cwd, control_fd, env, stopped_grace_ms, command } = args;
    let mut control = match control_fd.map(Control::take).transpose() {
        Ok(control) => control,
        Err(refusal) => return refuse(None, &refusal),
    };
    let started = set_up(control_fd).and_then(|(signals, tree)| {
        let agent = start(&command, &env, cwd.as_deref())?;
        Ok((signals, tree, agent))
    });
    match started {
        Ok((signals, tree, agent)) => {
            if let Some(control) = &mut control {
                control.say(&format!("pid {agent}"));
            }
            let grace = Duration::from_millis(stopped_grace_ms);
            Watch { signals, control, tree, agent, grace, kill_stopped_at: None, ending: None }.run()
        }
        Err(refusal) => refuse(control.as_mut(), &refusal),
    }
}

/// Tells why the command does not run: to the conductor, or to whoever sees stderr.
fn refuse(control: Option<&mut Control>, refusal: &Refusal) -> ExitCode {
    match control {
        Some(control) => control.say(&format!("error {}", refusal.text)),
        // Nobody is left to tell when stderr itself cannot be written.
        None => drop(writeln!(io::stderr(), "conductor guard: {}", refusal.text)),
    }
    ExitCode::from(refusal.code)
}

/// Makes this process a guard: nothing inherited, no signal lost, orphans adopted.
fn set_up(control: Option<RawFd>) -> Result<(SignalFd, Tree), Refusal> {
    let failed = |what: &str, errno: Errno| {
        Refusal::new(format!(
            "the guard cannot {what}: {errno}; check the limits and the kernel of this host"
        ))
    };
    close_others(control);
    // Only a process that leads a group already cannot lead a new session.
    let _ = setsid();
    prctl::set_child_subreaper(true).map_err(|errno| failed("adopt orphans", errno))?;
    setrlimit(Resource::RLIMIT_CORE, 0, 0).map_err(|errno| failed("forbid core dumps", errno))?;
    expect_children();
    let all = SigSet::all();
    all.thread_block().map_err(|errno| failed("block signals", errno))?;
    let signals = SignalFd::with_flags(&all, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)
        .map_err(|errno| failed("read signals", errno))?;
    let tree = Tree::below_this_process()
        .map_err(|error| Refusal::new(format!("the guard cannot list processes: {error}; mount /proc")))?;
    Ok((signals, tree))
}

/// Starts the command, then lets go of its pipes, so that their readers see the
/// end of file as soon as the agent and its descendants are gone.
fn start(command: &[OsString], env: &[OsString], cwd: Option<&Path>) -> Result<Pid, Refusal> {
    let null = File::options()
        .read(true)
        .write(true)
        .open("/dev/null")
        .map_err(|error| Refusal::new(format!("the guard cannot open /dev/null: {error}; mount /dev")))?;
    if let Some(directory) = cwd {
        launch::enter(directory)?;
    }
    let agent = launch::start(command, env)?;
    // These can only fail for descriptors that are not open, which all of them are.
    let _ = dup2_stdin(&null);
    let _ = dup2_stdout(&null);
    let _ = dup2_stderr(&null);
    // A workspace must not be busy because of its guard.
    let _ = chdir("/");
    Ok(agent)
}

/// Undoes an inherited "ignore" for SIGCHLD, with which children vanish unwaited.
#[allow(unsafe_code, reason = "setting dispositions is unsafe")]
fn expect_children() {
    // SAFETY: no handler is installed.
    let _ = unsafe { signal(Signal::SIGCHLD, SigHandler::SigDfl) };
}

/// Closes all descriptors but the agent's three and the control descriptor.
fn close_others(control: Option<RawFd>) {
    match control {
        Some(fd) => {
            close_between(FIRST_OTHER_FD, fd - 1);
            close_between(fd.saturating_add(1), RawFd::MAX);
        }
        None => close_between(FIRST_OTHER_FD, RawFd::MAX),
    }
}

/// Closes all descriptors from `first` to `last`.
#[allow(unsafe_code, reason = "closing descriptors by number is unsafe")]
fn close_between(first: RawFd, last: RawFd) {
    if first > last {
        return;
    }
    // SAFETY: this runs before the guard opens anything, so none of these is owned.
    // The system call is used directly because older C libraries lack its wrapper.
    let done = unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
    if done == 0 {
        return;
    }
    // Kernels before 5.9 cannot do that; there the open ones are listed. The list
    // is complete before the first is closed, and its own descriptor is closed by then.
    let open: Vec<RawFd> = std::fs::read_dir("/proc/self/fd")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    for fd in open.into_iter().filter(|fd| (first..=last).contains(fd)) {
        // SAFETY: as above; closing a descriptor that is closed already does nothing.
        unsafe { libc::close(fd) };
    }
}

/// The guard's end of the line to the conductor.
#[derive(Debug)]
struct Control(File);

impl Control {
    /// Takes over the inherited descriptor and hides it from the agent.
    #[allow(unsafe_code, reason = "taking a descriptor by number is unsafe")]
    fn take(fd: RawFd) -> Result<Self, Refusal> {
        let wrong = |why: &str| {
            Refusal::new(format!("--control-fd {fd} {why}; pass one end of a socket pair as 3 or higher"))
        };
        if fd < FIRST_OTHER_FD {
            return Err(wrong("belongs to the agent"));
        }
        // SAFETY: borrowed only for this call, which fails if it is not open.
        let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
        fcntl(borrowed, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC)).map_err(|_| wrong("is not open"))?;
        // A conductor that does not read must not hold up the guard.
        fcntl(borrowed, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).map_err(|_| wrong("cannot be used"))?;
        // SAFETY: it is open, was passed for this purpose, and nothing else here owns it.
        Ok(Self(File::from(unsafe { OwnedFd::from_raw_fd(fd) })))
    }

    /// Writes one line. A conductor that cannot be told is noticed by the end of file.
    fn say(&mut self, line: &str) {
        let _ = self.0.write_all(format!("{line}\n").as_bytes());
    }

    /// Whether the conductor is gone. What it may have written means nothing.
    fn is_over(&mut self) -> bool {
        let mut ignored = [0; 64];
        loop {
            match self.0.read(&mut ignored) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return error.kind() != ErrorKind::WouldBlock,
            }
        }
    }
}

/// A running agent and all that the guard waits for.
#[derive(Debug)]
struct Watch {
    signals: SignalFd,
    control: Option<Control>,
    tree: Tree,
    agent: Pid,
    /// How long the agent may be stopped.
    grace: Duration,
    /// Set while the agent is stopped by a signal.
    kill_stopped_at: Option<Instant>,
    /// Set when the agent has been reaped.
    ending: Option<Ending>,
}

impl Watch {
    /// Waits for the agent's end or for a reason to end it, leaves nothing behind,
    /// and ends as the agent did.
    fn run(mut self) -> ExitCode {
        loop {
            self.pass_on_signals();
            self.reap();
            if self.ending.is_some() || self.control.as_mut().is_some_and(Control::is_over) {
                break;
            }
            if self.kill_stopped_at.is_some_and(|at| at <= Instant::now()) {
                if let Some(control) = &mut self.control {
                    control.say("stopped");
                }
                break;
            }
            if self.wait().is_err() {
                // What cannot be watched must not run.
                break;
            }
        }
        self.kill_all();
        self.ending.map_or_else(ending::unknown, Ending::mirror)
    }

    /// Waits until a signal, the conductor or the end of the grace asks for attention.
    fn wait(&self) -> nix::Result<()> {
        let timeout = self.kill_stopped_at.map_or(PollTimeout::NONE, |at| {
            let left = at.saturating_duration_since(Instant::now());
            // Rounded up, so that the guard does not spin in the last millisecond.
            PollTimeout::try_from(left.as_millis() + 1).unwrap_or(PollTimeout::MAX)
        });
        let mut fds = vec![PollFd::new(self.signals.as_fd(), PollFlags::POLLIN)];
        if let Some(Control(file)) = &self.control {
            fds.push(PollFd::new(file.as_fd(), PollFlags::POLLIN));
        }
        match poll(&mut fds, timeout) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    /// Passes the signals that arrived on to the agent's group. It exists: only
    /// `reap` removes the agent, after which no signal is passed on.
    fn pass_on_signals(&self) {
        while let Ok(Some(info)) = self.signals.read_signal() {
            let known = i32::try_from(info.ssi_signo).ok().and_then(|number| Signal::try_from(number).ok());
            if let Some(signal) = known.filter(|signal| PASSED_ON.contains(signal)) {
                let _ = killpg(self.agent, signal);
            }
        }
    }

    /// Takes every status there is, adopted orphans' too. False if no child is left.
    fn reap(&mut self) -> bool {
        loop {
            match wait_any() {
                Ok(Some((pid, status))) if pid == self.agent => self.agent_changed(status),
                Ok(Some(_)) | Err(Errno::EINTR) => {}
                Ok(None) => return true,
                Err(_) => return false,
            }
        }
    }

    /// Notes that the agent ended, was stopped or was continued.
    fn agent_changed(&mut self, status: i32) {
        self.ending = Ending::from_wait(status);
        // Every report of a stop is a new one, even if a continuation in between
        // went by unseen. A grace beyond the range of the clock never ends.
        let stopped = libc::WIFSTOPPED(status);
        self.kill_stopped_at = stopped.then(|| Instant::now().checked_add(self.grace)).flatten();
    }

    /// Kills and reaps until nothing is left, however fast it forks.
    fn kill_all(&mut self) {
        while self.reap() {
            self.tree.kill();
            let mut fds = [PollFd::new(self.signals.as_fd(), PollFlags::POLLIN)];
            // Whatever comes of it, the next round looks again.
            let _ = poll(&mut fds, PollTimeout::from(KILL_AGAIN_AFTER_MS));
            // Too late to pass anything on; a death after this makes it readable again.
            while let Ok(Some(_)) = self.signals.read_signal() {}
        }
    }
}

/// The next child that ended, was stopped or was continued, if there is one now.
#[allow(unsafe_code, reason = "nix loses the process whose status holds a realtime signal")]
fn wait_any() -> nix::Result<Option<(Pid, i32)>> {
    // Children that a thread or a `clone` made count as well.
    let options = libc::WNOHANG | libc::WUNTRACED | libc::WCONTINUED | libc::__WALL;
    let mut status = 0;
    // SAFETY: `status` is a valid place for the answer.
    let pid = Errno::result(unsafe { libc::waitpid(-1, &mut status, options) })?;
    Ok((pid != 0).then_some((Pid::from_raw(pid), status)))
}
