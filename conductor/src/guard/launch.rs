//! Starts the guarded command, and says in words why it could not be started.

use std::{
    env,
    ffi::{OsStr, OsString},
    fs,
    io::{self, ErrorKind, PipeWriter, Read as _, Write as _},
    os::{
        fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd},
        unix::{ffi::OsStrExt as _, process::CommandExt as _},
    },
    path::{Path, PathBuf},
    process::Command,
    ptr,
};

use nix::{
    errno::Errno,
    libc,
    sys::{
        prctl,
        signal::{SigSet, Signal, kill},
        wait::waitpid,
    },
    unistd::{self, ForkResult, Pid, getpid, getppid, setsid},
};
use serde::{Deserialize, Serialize};

use super::{bubble::Shell, cell::Group, hold, protected::Protected};
use crate::{
    config::Layer,
    contain::{Held, Terms},
};

/// As a command, this name means the running program itself, wherever it is installed.
const THIS_PROGRAM: &str = "conductor";
/// The running program, even after its file was replaced or removed.
pub const THIS_EXECUTABLE: &str = "/proc/self/exe";

/// The kernel's flag for it, which the C library's constant has no room for.
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;

/// Why the command does not run, with the exit code that shells use for it.
#[derive(Debug)]
pub struct Refusal {
    /// 127 if there is no such command, else 126.
    pub code: u8,
    /// Cause and remedy, on one line.
    pub text: String,
}

impl Refusal {
    /// A command that does not exist.
    fn not_found(text: String) -> Self {
        Self { code: 127, text }
    }

    /// Everything else.
    pub fn new(text: String) -> Self {
        Self { code: 126, text }
    }
}

/// What to start.
#[derive(Debug)]
pub struct Order<'a> {
    /// The command and its arguments.
    pub command: &'a [OsString],
    /// Variables beside the inherited ones, as `NAME=VALUE`.
    pub env: &'a [OsString],
    /// 0 is a terminal that becomes the command's own.
    pub terminal: bool,
    /// Another stdin than the inherited one.
    pub stdin: Option<OwnedFd>,
    /// What it is held by.
    pub terms: &'a Terms,
    /// The group that it is born into.
    pub group: Option<&'a Group>,
}

/// A command that runs.
#[derive(Debug)]
pub struct Started {
    /// The guard's child: the command, or the `bwrap` around it.
    pub pid: Pid,
    /// What it is held by.
    pub held: Held,
    /// What a bubble around it keeps as it is.
    pub protected: Option<Protected>,
}

/// Starts a command in the current directory, with the inherited 1 and 2.
///
/// Whether a host lets a bubble be made shows only when one is made. Nothing of the command
/// has run by then, so it is started without one, unless one is required.
pub fn start(order: &Order<'_>) -> Result<Started, Refusal> {
    let mut held = Held::default();
    if let Some(bubble) = &order.terms.bubble {
        let why = match Shell::new(bubble, order.terms) {
            Ok(shell) => {
                let open = shell.protected.open.clone();
                match attempt(order, Some(&shell), Held { open, ..Held::default() }) {
                    Ok((pid, held)) => return Ok(Started { pid, held, protected: Some(shell.protected) }),
                    Err(Unfit::Refused(refusal)) => return Err(refusal),
                    Err(Unfit::NoBubble(why)) => why,
                }
            }
            Err(why) => why,
        };
        held.lacks(Layer::Bwrap, why);
        if let Some(text) = held.refusal(&order.terms.layers).filter(|_| order.terms.is_required) {
            return Err(Refusal::new(text));
        }
    }
    match attempt(order, None, held) {
        Ok((pid, held)) => Ok(Started { pid, held, protected: None }),
        Err(Unfit::Refused(refusal)) => Err(refusal),
        Err(Unfit::NoBubble(why)) => Err(Refusal::new(why)),
    }
}

/// Why a command does not run in the way that was tried.
#[derive(Debug)]
enum Unfit {
    /// Nor would it in another.
    Refused(Refusal),
    /// There can be no bubble around it.
    NoBubble(String),
}

/// Starts a command in a bubble or without one; also gives what it is held by.
fn attempt(order: &Order<'_>, shell: Option<&Shell<'_>>, mut held: Held) -> Result<(Pid, Held), Unfit> {
    let refused = |refusal| Unfit::Refused(refusal);
    let Some(program) = order.command.first() else {
        return Err(refused(Refusal::new("no command was given; name one after --".to_owned())));
    };
    let no_pipe =
        |error: io::Error| refused(Refusal::new(format!("the guard has no pipe: {error}; close some files")));
    let (mut told, tell) = io::pipe().map_err(no_pipe)?;
    let guard = getpid();
    let forked = fork(order.group, &mut held).map_err(|error| refused(explain(program, &error)))?;
    let Some(pid) = forked else {
        drop(told);
        let failed = become_command(order, shell, guard, held, &tell);
        let text = serde_json::to_vec(&failed).unwrap_or_default();
        (&tell).write_all(&text).ok();
        exit_at_once();
    };
    drop(tell);
    let mut text = Vec::new();
    told.read_to_end(&mut text).map_err(no_pipe)?;
    let lines: Vec<&[u8]> = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()).collect();
    let held = lines.first().and_then(|line| serde_json::from_slice(line).ok());
    let failed: Option<Failed> = lines.last().and_then(|line| serde_json::from_slice(line).ok());
    let unfit = match (failed, held) {
        (None, Some(held)) => return Ok((pid, held)),
        (Some(Failed::Exec(number)), _) => refused(explain(program, &io::Error::from_raw_os_error(number))),
        (Some(Failed::Held(why)), _) => refused(Refusal::new(why)),
        (Some(Failed::Bubble(why)), _) => Unfit::NoBubble(why),
        (None, None) => match shell {
            Some(shell) => Unfit::NoBubble(shell.complaint()),
            None => refused(Refusal::new(format!("{program:?} was killed before it ran"))),
        },
    };
    // Nothing of it may be left when it is tried in another way.
    kill(pid, Signal::SIGKILL).ok();
    waitpid(pid, None).ok();
    Err(unfit)
}

/// Why the forked guard did not become the command.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Failed {
    /// The kernel does not run it: the error's number.
    Exec(i32),
    /// It would not be held as it has to be.
    Held(String),
    /// There can be no bubble around it.
    Bubble(String),
}

/// A command with its arguments and the variables beside the inherited ones.
pub fn command(words: &[OsString], env: &[OsString]) -> Command {
    let (program, arguments) =
        words.split_first().map_or((OsStr::new(""), words), |(first, rest)| (first.as_os_str(), rest));
    let mut command = command_of(program);
    command.args(arguments);
    command.envs(env.iter().filter_map(|pair| variable(pair)));
    command
}

#[allow(clippy::disallowed_methods, reason = "the guard is who starts commands")]
fn command_of(program: &OsStr) -> Command {
    if program != THIS_PROGRAM {
        return Command::new(program);
    }
    let mut this = Command::new(THIS_EXECUTABLE);
    this.arg0(THIS_PROGRAM);
    this
}

/// Makes a copy of this process, in a group if there is one: `None` in the copy.
///
/// It is born in there, so that no moment exists in which it is not. Where the kernel does
/// not offer that, the copy moves there itself before it is anything else.
fn fork(group: Option<&Group>, held: &mut Held) -> io::Result<Option<Pid>> {
    if let Some(group) = group
        && let Ok(forked) = clone_into(group)
    {
        held.has(Layer::Cgroup);
        return Ok(forked);
    }
    let forked = plain_fork()?;
    if let (None, Some(group)) = (forked, group) {
        match hold::enter(group.directory()) {
            Ok(()) => held.has(Layer::Cgroup),
            Err(error) => held.lacks(Layer::Cgroup, format!("it cannot be joined: {error}")),
        }
    }
    Ok(forked)
}

#[allow(unsafe_code, reason = "a fork is unsafe")]
fn clone_into(group: &Group) -> io::Result<Option<Pid>> {
    // SAFETY: all zero is a valid value, and means none of everything.
    let mut wish: libc::clone_args = unsafe { std::mem::zeroed() };
    wish.flags = CLONE_INTO_CGROUP;
    wish.exit_signal = libc::SIGCHLD as u64;
    wish.cgroup = u64::try_from(group.as_fd().as_raw_fd()).unwrap_or_default();
    // SAFETY: nothing is shared with the copy, and the guard has one thread only, so the copy
    // may do whatever the guard may.
    let done = unsafe { libc::syscall(libc::SYS_clone3, &raw mut wish, size_of::<libc::clone_args>()) };
    let pid = Errno::result(done)?;
    let pid = i32::try_from(pid).map_err(io::Error::other)?;
    Ok((pid != 0).then(|| Pid::from_raw(pid)))
}

#[allow(unsafe_code, reason = "a fork is unsafe")]
fn plain_fork() -> io::Result<Option<Pid>> {
    // SAFETY: as above.
    match unsafe { unistd::fork()? } {
        ForkResult::Parent { child } => Ok(Some(child)),
        ForkResult::Child => Ok(None),
    }
}

/// Ends a copy that did not become the command, without what a program does at its end.
#[allow(unsafe_code, reason = "nothing of the guard's may run here")]
fn exit_at_once() -> ! {
    // SAFETY: ends the process, and returns to nobody.
    unsafe { libc::_exit(127) }
}

/// Turns the copy into the command, or into the bubble around it; returns only if that fails.
fn become_command(
    order: &Order<'_>,
    shell: Option<&Shell<'_>>,
    guard: Pid,
    mut held: Held,
    tell: &PipeWriter,
) -> Failed {
    if let Err(error) = detach(order.stdin.as_ref().map(OwnedFd::as_fd), order.terminal, guard) {
        return Failed::Exec(error.raw_os_error().unwrap_or(libc::EIO));
    }
    if let Err(why) = hold::join(order.terms) {
        return Failed::Held(why);
    }
    if let Some(shell) = shell {
        return shell.enter(order, held, tell);
    }
    match hold::hold(order.terms, &mut held) {
        Ok(()) => exec(&mut command(order.command, order.env), &held, tell),
        Err(why) => Failed::Held(why),
    }
}

/// Becomes the command; returns only if that fails. What it is held by is told first, and the
/// pipe is closed by the exec itself.
pub fn exec(command: &mut Command, held: &Held, mut tell: &PipeWriter) -> Failed {
    let Ok(mut line) = serde_json::to_vec(held) else {
        return Failed::Held("what it is held by cannot be told".to_owned());
    };
    line.push(b'\n');
    if let Err(error) = tell.write_all(&line) {
        return Failed::Held(format!("what it is held by cannot be told: {error}"));
    }
    let error = command.exec();
    Failed::Exec(error.raw_os_error().unwrap_or(libc::EIO))
}

/// Makes the copy a process of its own, which dies with the guard.
fn detach(stdin: Option<BorrowedFd<'_>>, terminal: bool, guard: Pid) -> io::Result<()> {
    setsid()?;
    if let Some(stdin) = stdin {
        unistd::dup2_stdin(stdin)?;
    }
    if terminal {
        take_terminal()?;
    }
    // Without new privileges no exec can clear the parent-death signal.
    prctl::set_no_new_privs()?;
    prctl::set_pdeathsig(Signal::SIGKILL)?;
    if getppid() != guard {
        // The guard died before the line above, so its death went unnoticed.
        return Err(io::Error::from(Errno::ESRCH));
    }
    reset_signals();
    SigSet::empty().thread_set_mask()?;
    Ok(())
}

/// Gives every signal its default effect.
pub fn reset_signals() {
    for signal in 1..=libc::SIGRTMAX() {
        reset(signal);
    }
}

/// The name and the value in `NAME=VALUE`.
fn variable(pair: &OsStr) -> Option<(&OsStr, &OsStr)> {
    let bytes = pair.as_bytes();
    let at = bytes.iter().position(|byte| *byte == b'=')?;
    Some((OsStr::from_bytes(&bytes[..at]), OsStr::from_bytes(&bytes[at + 1..])))
}

/// Changes to `directory`, in which the command is to be found and to run.
pub fn enter(directory: &Path) -> Result<(), Refusal> {
    env::set_current_dir(directory).map_err(|error| {
        let remedy = match error.kind() {
            ErrorKind::NotFound => "create it or name another one",
            ErrorKind::NotADirectory => "it must be a directory",
            ErrorKind::PermissionDenied => "allow the service's user to enter it",
            _ => "name another one",
        };
        Refusal::new(format!("cannot enter the working directory {directory:?}: {error}; {remedy}"))
    })
}

/// Makes the terminal at 0 the one whose keys send signals to this session.
#[allow(unsafe_code, reason = "an ioctl is unsafe")]
fn take_terminal() -> io::Result<()> {
    // SAFETY: the call reads no memory of ours; 0 asks for no more than is free.
    let taken = unsafe { libc::ioctl(0, libc::TIOCSCTTY as _, 0) };
    Errno::result(taken).map(drop).map_err(io::Error::from)
}

/// Gives a signal its default effect; those that have no other are refused harmlessly.
///
/// The system call is made directly, because the C library hides the two signals
/// it uses itself, which its own `posix_spawn` leaves ignored in every child.
#[allow(unsafe_code, reason = "setting dispositions is unsafe")]
fn reset(signal: i32) {
    // All zero means the default, no flags and no mask, in the kernel's layout of
    // every architecture; none is larger than this.
    let default = [0_u64; 8];
    // The kernel's set of signals has one bit for each.
    let set_size = libc::SIGRTMAX().unsigned_abs().div_ceil(u8::BITS) as usize;
    let nothing = ptr::null::<u64>();
    // SAFETY: the kernel reads one action from `default` and writes nothing.
    unsafe { libc::syscall(libc::SYS_rt_sigaction, signal, default.as_ptr(), nothing, set_size) };
}

/// Turns the error of a spawn into cause and remedy.
fn explain(program: &OsStr, error: &io::Error) -> Refusal {
    let found = find(program);
    match (error.kind(), found) {
        (ErrorKind::NotFound, Some(path)) => Refusal::new(format!(
            "cannot run {path:?}: its interpreter or loader is missing; install what its first line names"
        )),
        (ErrorKind::NotFound, None) if is_path(program) => Refusal::not_found(format!(
            "command not found: there is no file {program:?}; install it or correct the command"
        )),
        (ErrorKind::NotFound, None) => Refusal::not_found(format!(
            "command not found: {program:?} is in no directory of PATH ({:?}); install it or give its full path",
            env::var_os("PATH").unwrap_or_default()
        )),
        (ErrorKind::PermissionDenied, Some(path)) if path.is_dir() => {
            Refusal::new(format!("cannot run {path:?}: it is a directory; name a program"))
        }
        (ErrorKind::PermissionDenied, found) => Refusal::new(format!(
            "{:?} is not executable for this user; allow it with chmod +x, and check its directories and mount",
            found.unwrap_or_else(|| PathBuf::from(program))
        )),
        (ErrorKind::WouldBlock, _) => Refusal::new(format!(
            "cannot start {program:?}: this user has too many processes; end some or raise the limit (ulimit -u)"
        )),
        (ErrorKind::ArgumentListTooLong, _) => Refusal::new(format!(
            "cannot start {program:?}: arguments and environment are too long; shorten them"
        )),
        _ => Refusal::new(format!(
            "cannot start {program:?}: {error}; check that it runs in a shell on this host"
        )),
    }
}

/// Whether the name is a path, which is not searched for in `PATH`.
fn is_path(program: &OsStr) -> bool {
    program.as_encoded_bytes().contains(&b'/')
}

/// The file that was meant, whether it can be executed or not.
fn find(program: &OsStr) -> Option<PathBuf> {
    if is_path(program) {
        return exists(Path::new(program)).then(|| PathBuf::from(program));
    }
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|directory| directory.join(program)).find(|candidate| exists(candidate))
}

fn exists(path: &Path) -> bool {
    fs::metadata(path).is_ok()
}
