//! The guard's own life: set up, start the command, wait for an end, kill the rest.
//!
//! All signals are blocked and read from a descriptor, so that one `poll` waits
//! for everything that can happen and nothing happens in between.

use std::{
    fs::File,
    io::{self, Write as _},
    os::fd::AsFd as _,
    path::Path,
    process::ExitCode,
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
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
    cell::{self, Group},
    control::{self, Control},
    ending::{self, Ending},
    excess::Excess,
    launch::{self, Order, Refusal, Started},
    protected::Protected,
    tree::{self, Tree},
};
use crate::{
    cli::GuardArgs,
    contain::{Terms, cells::Places},
};

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

/// How long a killed process may take to die before the tree is listed and
/// killed again; a death wakes the guard earlier.
const KILL_AGAIN_AFTER_MS: u8 = 10;

/// How often it is looked whether a command in a bubble was stopped: its parent in there is
/// told of that, and nobody else.
const LOOK_INSIDE_EVERY: Duration = Duration::from_secs(1);

/// Runs the command under guard.
pub fn guard(args: GuardArgs) -> ExitCode {
    let GuardArgs { cwd, control, env, terminal, stopped_grace_ms, command, inside: _ } = args;
    let (mut control, stdin, terms) = match control.then(Control::take).transpose() {
        Ok(Some((control, stdin, terms))) => (Some(control), Some(stdin), terms),
        Ok(None) => {
            control::none();
            (None, None, Terms::default())
        }
        Err(refusal) => return refuse(None, &refusal),
    };
    let group = terms.cell.within.as_deref().and_then(|within| Group::make(within).ok());
    let started = set_up().and_then(|(signals, tree)| {
        let order =
            Order { command: &command, env: &env, terminal, stdin, terms: &terms, group: group.as_ref() };
        let started = start(&order, cwd.as_deref())?;
        Ok((signals, tree, started))
    });
    match started {
        Ok((signals, tree, Started { pid: agent, held, protected })) => {
            if let Some(control) = &mut control {
                control.say(&format!("held {}", serde_json::to_string(&held).unwrap_or_default()));
                control.say(&format!("pid {agent}"));
            }
            let grace = Duration::from_millis(stopped_grace_ms);
            let excess = Excess::new(&terms);
            let places = terms.cell;
            let inside = protected.as_ref().and_then(|_| tree.inside(agent));
            let watch = Watch {
                places,
                protected,
                inside,
                look_inside_at: inside.map(|_| Instant::now() + LOOK_INSIDE_EVERY),
                signals,
                control,
                tree,
                group,
                agent,
                grace,
                excess,
                kill_stopped_at: None,
                ending: None,
            };
            watch.run()
        }
        Err(refusal) => {
            drop(group);
            refuse(control.as_mut(), &refusal)
        }
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

/// Makes this process a guard: no signal lost, orphans adopted.
fn set_up() -> Result<(SignalFd, Tree), Refusal> {
    let failed = |what: &str, errno: Errno| {
        Refusal::new(format!(
            "the guard cannot {what}: {errno}; check the limits and the kernel of this host"
        ))
    };
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
fn start(order: &Order<'_>, cwd: Option<&Path>) -> Result<Started, Refusal> {
    let null = File::options()
        .read(true)
        .write(true)
        .open("/dev/null")
        .map_err(|error| Refusal::new(format!("the guard cannot open /dev/null: {error}; mount /dev")))?;
    if let Some(directory) = cwd {
        launch::enter(directory)?;
    }
    let started = launch::start(order)?;
    // These can only fail for descriptors that are not open, which all of them are.
    let _ = dup2_stdin(&null);
    let _ = dup2_stdout(&null);
    let _ = dup2_stderr(&null);
    // A workspace must not be busy because of its guard.
    let _ = chdir("/");
    Ok(started)
}

/// Undoes an inherited "ignore" for SIGCHLD, with which children vanish unwaited.
#[allow(unsafe_code, reason = "setting dispositions is unsafe")]
fn expect_children() {
    // SAFETY: no handler is installed.
    let _ = unsafe { signal(Signal::SIGCHLD, SigHandler::SigDfl) };
}

/// A running agent and all that the guard waits for.
#[derive(Debug)]
struct Watch {
    signals: SignalFd,
    control: Option<Control>,
    tree: Tree,
    /// The group that the agent was born into.
    group: Option<Group>,
    /// The groups that are there for all of the cell.
    places: Places,
    /// The agent, or the `bwrap` around it.
    agent: Pid,
    /// The agent, if it is in a bubble.
    inside: Option<Pid>,
    /// When to look after it.
    look_inside_at: Option<Instant>,
    /// What its bubble keeps as it is.
    protected: Option<Protected>,
    /// Whether it has more than it may have.
    excess: Excess,
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
            self.look_inside();
            if self.kill_stopped_at.is_some_and(|at| at <= Instant::now()) {
                self.say("stopped");
                break;
            }
            if let Some(limit) = self.excess.look(&self.tree, self.inside.unwrap_or(self.agent)) {
                self.say(&format!("limit {limit}"));
                break;
            }
            if self.wait().is_err() {
                // What cannot be watched must not run.
                break;
            }
        }
        self.kill_all();
        let is_bubble = self.protected.is_some();
        let was_killed =
            self.ending.is_some_and(|ending| ending.is_kill() || is_bubble && ending.tells_of_kill());
        if was_killed && self.excess.ended_for_memory() {
            self.say("limit memory");
        }
        drop(self.group.take());
        drop(self.protected.take());
        if self.control.as_mut().is_some_and(Control::is_over) {
            // Nobody else is left to do it.
            cell::forsake(&self.places);
        }
        self.ending.map_or_else(ending::unknown, Ending::mirror)
    }

    fn say(&mut self, line: &str) {
        if let Some(control) = &mut self.control {
            control.say(line);
        }
    }

    /// Waits until a signal, the conductor or the end of the grace asks for attention.
    fn wait(&self) -> nix::Result<()> {
        let next = [self.kill_stopped_at, self.look_inside_at, self.excess.look_at()];
        let next = next.into_iter().flatten().min();
        let timeout = next.map_or(PollTimeout::NONE, |at| {
            let left = at.saturating_duration_since(Instant::now());
            // Rounded up, so that the guard does not spin in the last millisecond.
            PollTimeout::try_from(left.as_millis() + 1).unwrap_or(PollTimeout::MAX)
        });
        let mut fds = vec![PollFd::new(self.signals.as_fd(), PollFlags::POLLIN)];
        if let Some(control) = &self.control {
            fds.push(PollFd::new(control.as_fd(), PollFlags::POLLIN));
        }
        if let Some(events) = self.excess.events() {
            fds.push(PollFd::new(events, PollFlags::POLLPRI));
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

    /// Notes whether the agent in a bubble was stopped or continued.
    fn look_inside(&mut self) {
        let (Some(inside), Some(at)) = (self.inside, self.look_inside_at) else { return };
        let now = Instant::now();
        if at > now {
            return;
        }
        self.look_inside_at = Some(now + LOOK_INSIDE_EVERY);
        if ![inside, self.agent].into_iter().any(tree::is_stopped) {
            self.kill_stopped_at = None;
        } else if self.kill_stopped_at.is_none() {
            self.kill_stopped_at = now.checked_add(self.grace);
        }
    }

    /// Kills and reaps until nothing is left, however fast it forks.
    fn kill_all(&mut self) {
        while self.reap() || self.group.as_ref().is_some_and(Group::is_populated) {
            if let Some(group) = &self.group {
                group.kill();
            }
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
