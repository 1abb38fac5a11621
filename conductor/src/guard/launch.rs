//! Starts the guarded command, and says in words why it could not be started.

use std::{
    env,
    ffi::{OsStr, OsString},
    fs,
    io::{self, ErrorKind},
    os::unix::{ffi::OsStrExt as _, process::CommandExt as _},
    path::{Path, PathBuf},
    process::Command,
    ptr,
};

use nix::{
    errno::Errno,
    libc,
    sys::{
        prctl,
        signal::{SigSet, Signal},
    },
    unistd::{Pid, getpid, getppid, setsid},
};

/// As a command, this name means the running program itself, wherever it is installed.
const THIS_PROGRAM: &str = "conductor";
/// The running program, even after its file was replaced or removed.
const THIS_EXECUTABLE: &str = "/proc/self/exe";

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

/// Starts `command` in the current directory, with the inherited 0, 1 and 2, and
/// with the variables in `env` (`NAME=VALUE`) beside the inherited ones.
#[allow(clippy::disallowed_methods, reason = "the guard is who starts commands")]
pub fn start(command: &[OsString], env: &[OsString]) -> Result<Pid, Refusal> {
    let [program, arguments @ ..] = command else {
        return Err(Refusal::new("no command was given; name one after --".to_owned()));
    };
    let mut child = if program == THIS_PROGRAM {
        let mut this = Command::new(THIS_EXECUTABLE);
        this.arg0(THIS_PROGRAM);
        this
    } else {
        Command::new(program)
    };
    child.args(arguments);
    child.envs(env.iter().filter_map(|pair| variable(pair)));
    prepare(&mut child);
    let child = child.spawn().map_err(|error| explain(program, &error))?;
    let pid = i32::try_from(child.id()).map_err(|error| Refusal::new(format!("odd process id: {error}")))?;
    Ok(Pid::from_raw(pid))
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

/// Arranges what happens in the child between fork and exec.
#[allow(unsafe_code, reason = "pre_exec is unsafe")]
fn prepare(child: &mut Command) {
    let guard = getpid();
    let in_child = move || {
        setsid()?;
        // Without new privileges no exec can clear the parent-death signal.
        prctl::set_no_new_privs()?;
        prctl::set_pdeathsig(Signal::SIGKILL)?;
        if getppid() != guard {
            // The guard died before the line above, so its death went unnoticed.
            return Err(io::Error::from(Errno::ESRCH));
        }
        for signal in 1..=libc::SIGRTMAX() {
            reset(signal);
        }
        SigSet::empty().thread_set_mask()?;
        Ok(())
    };
    // SAFETY: the closure makes system calls only: it neither allocates nor locks.
    unsafe { child.pre_exec(in_child) };
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
