//! Starting an agent, or a command for one, under its guard, and the ladder by
//! which it is ended.

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    fs, io,
    os::{
        fd::{AsRawFd as _, OwnedFd},
        unix::fs::DirBuilderExt as _,
    },
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    sync::Arc,
    time::Duration,
};

use command_fds::{CommandFdExt as _, FdMapping};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tokio::{
    io::AsyncReadExt as _,
    net::{UnixStream, unix::pipe},
    process::{Child, ChildStderr, ChildStdin, ChildStdout, Command},
    time::timeout,
};
use tracing::warn;

use super::profile::Profile;
use crate::config::{self, Home};

/// After end of file on its stdin, an agent has this long to leave.
pub const EOF_GRACE: Duration = Duration::from_secs(1);

/// After SIGTERM, this long; then everything beneath the guard is killed.
pub const TERM_GRACE: Duration = Duration::from_secs(2);

/// A guard that has not killed and reaped all within this time is killed
/// itself.
pub const KILL_GRACE: Duration = Duration::from_secs(2);

/// How long the guard may take to say whether the agent could be started.
const GUARD_GRACE: Duration = Duration::from_secs(10);

/// The guard's end of the control socket.
const CONTROL_FD: i32 = 3;

/// Variables an agent gets from the conductor's own environment. Everything
/// else, secrets above all, must be named in the configuration.
const INHERITED: &[&str] = &[
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "LANGUAGE",
    "TZ",
    "TERM",
    "COLORTERM",
    "TMPDIR",
    "XDG_RUNTIME_DIR",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
    "XDG_CACHE_HOME",
    "XDG_STATE_HOME",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "NODE_EXTRA_CA_CERTS",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
];

/// A whole environment.
pub type Environment = BTreeMap<OsString, OsString>;

/// What to start.
#[derive(Debug, Clone)]
pub struct Launch {
    /// The program, resolved.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<String>,
    /// Its whole environment.
    pub env: Environment,
    /// What of it commands get that the agent has us run: neither what is
    /// configured for the agent alone nor the secrets handed on to it.
    pub shared_env: Arc<Environment>,
    /// Where it runs.
    pub cwd: PathBuf,
}

/// A command to run for an agent.
#[derive(Debug)]
pub struct Errand {
    /// The program: a path, or a name to look up on its `PATH`.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// Its whole environment.
    pub env: Environment,
    /// Where it runs: an open directory, because the path to it may be changed
    /// at any moment.
    pub directory: OwnedFd,
}

impl Launch {
    /// Makes ready what the configuration asks for: home, files, environment.
    pub fn prepare(
        name: &str,
        agent: &config::Agent,
        program: PathBuf,
        cwd: PathBuf,
        homes: &Path,
    ) -> io::Result<Self> {
        let own = |name: &&str| std::env::var_os(name).map(|value| (OsString::from(name), value));
        let mut env: Environment = INHERITED.iter().filter_map(own).collect();
        // Locale variables form an open set.
        env.extend(std::env::vars_os().filter(|(key, _)| key.as_encoded_bytes().starts_with(b"LC_")));
        if agent.home == Home::Isolated {
            let home = homes.join(name);
            fs::DirBuilder::new().recursive(true).mode(0o700).create(&home)?;
            for (target, source) in &agent.files {
                let target = home.join(target);
                if let Some(parent) = target.parent() {
                    fs::DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
                }
                fs::copy(source, &target).map_err(|error| {
                    let text = format!("cannot copy {} into the agent's home: {error}", source.display());
                    io::Error::new(error.kind(), text)
                })?;
            }
            env.retain(|key, _| !key.as_encoded_bytes().starts_with(b"XDG_"));
            env.insert("HOME".into(), home.into());
        }
        let shared_env = Arc::new(env.clone());
        for name in &agent.env_from {
            if let Some(value) = std::env::var_os(name) {
                env.insert(name.into(), value);
            }
        }
        env.extend(agent.env.iter().map(|(key, value)| (key.into(), value.into())));
        let profile = match agent.profile.as_str() {
            "none" => None,
            "auto" => Profile::by_program(&program),
            name => Profile::by_name(name),
        };
        if let Some(profile) = profile {
            profile.apply(&homes.join(name), &mut env)?;
        }
        Ok(Self { program, args: agent.args.clone(), env, shared_env, cwd })
    }
}

/// A started agent: its pipes, and the guard that answers for it.
#[derive(Debug)]
pub struct Started {
    /// The agent's own process id.
    pub pid: u32,
    /// Its pipes.
    pub stdin: ChildStdin,
    /// Its pipes.
    pub stdout: ChildStdout,
    /// Its pipes.
    pub stderr: ChildStderr,
    /// The guard.
    pub guarded: Guarded,
}

/// Starts an agent under a guard and waits until its program runs.
pub async fn spawn(launch: &Launch) -> Result<Started, String> {
    let mut order = guard_command(&launch.env);
    order.arg("--cwd").arg(&launch.cwd).arg("--").arg(&launch.program).args(&launch.args);
    order.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let (mut guard, control) = start_guard(order)?;
    let (Some(stdin), Some(stdout), Some(stderr)) =
        (guard.stdin.take(), guard.stdout.take(), guard.stderr.take())
    else {
        return Err("the guard has no pipes".into());
    };
    widen(&stdout);
    let (pid, guarded) = await_start(guard, control).await?;
    Ok(Started { pid, stdin, stdout, stderr, guarded })
}

/// A started errand: one pipe with all it writes, and its guard.
#[derive(Debug)]
pub struct Running {
    /// Its process id.
    pub pid: u32,
    /// Its stdout and stderr, in the order in which they were written.
    pub output: pipe::Receiver,
    /// The guard.
    pub guarded: Guarded,
}

/// Starts an errand under a guard and waits until its program runs.
pub async fn run_errand(errand: Errand) -> Result<Running, String> {
    let Errand { program, args, env, directory } = errand;
    // What tells the loader which code to run must not reach the guard, which
    // has to outlive and contain the command.
    let (loader, env): (Environment, Environment) =
        env.into_iter().partition(|(name, _)| is_for_loader(name.as_encoded_bytes()));
    let mut order = guard_command(&env);
    for (name, value) in loader {
        let mut pair = name;
        pair.push("=");
        pair.push(value);
        order.arg("--env").arg(pair);
    }
    let no_pipe = |error: io::Error| format!("no pipe for its output: {error}");
    let (read, write) = io::pipe().map_err(no_pipe)?;
    order.arg("--").arg(program).args(args);
    order.stdin(Stdio::null()).stdout(write.try_clone().map_err(no_pipe)?).stderr(write);
    // The guard begins where it is to start the command. After the fork, the
    // number names the same directory in the child.
    order.current_dir(format!("/proc/self/fd/{}", directory.as_raw_fd()));
    let (guard, control) = start_guard(order)?;
    drop(directory);
    let (pid, guarded) = await_start(guard, control).await?;
    let output = pipe::Receiver::from_owned_fd(read.into()).map_err(no_pipe)?;
    Ok(Running { pid, output, guarded })
}

fn is_for_loader(name: &[u8]) -> bool {
    name.starts_with(b"LD_") || name.starts_with(b"GLIBC_")
}

/// The beginning of every guard's command line.
#[allow(clippy::disallowed_methods, reason = "what is started here is the guard")]
fn guard_command(env: &Environment) -> std::process::Command {
    let mut command = std::process::Command::new(own_program());
    command.arg("guard").args(["--control-fd", &CONTROL_FD.to_string()]).env_clear().envs(env);
    command
}

fn start_guard(mut order: std::process::Command) -> Result<(Child, UnixStream), String> {
    let no_control = |error: io::Error| format!("no control socket: {error}");
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().map_err(no_control)?;
    ours.set_nonblocking(true).map_err(no_control)?;
    order
        .fd_mappings(vec![FdMapping { parent_fd: theirs.into(), child_fd: CONTROL_FD }])
        .map_err(|error| format!("cannot hand the guard its control socket: {error}"))?;
    // The command holds our copies of the guard's pipes; it ends here.
    let guard = Command::from(order).spawn().map_err(|error| format!("cannot start the guard: {error}"))?;
    Ok((guard, UnixStream::from_std(ours).map_err(no_control)?))
}

/// Waits for the guard's word on whether the program runs.
async fn await_start(guard: Child, mut control: UnixStream) -> Result<(u32, Guarded), String> {
    let word = timeout(GUARD_GRACE, read_word(&mut control)).await.unwrap_or_default();
    let mut guarded = Guarded { guard, control: Some(control) };
    match word.strip_prefix("pid ").and_then(|pid| pid.parse().ok()) {
        Some(pid) => Ok((pid, guarded)),
        None => {
            guarded.kill().await;
            let cause = word.strip_prefix("error ").unwrap_or("the guard did not start it");
            Err(cause.to_string())
        }
    }
}

/// Gives a pipe more room, so that a streaming agent and its reader take
/// turns less often. Users have a limit for this; the default does, too.
fn widen(pipe: &ChildStdout) {
    #[cfg(target_os = "linux")]
    if let Ok(size) = i32::try_from(super::stdio::READ_BYTES) {
        use nix::fcntl::{FcntlArg, fcntl};
        fcntl(pipe, FcntlArg::F_SETPIPE_SZ(size)).ok();
    }
}

/// This very binary, also after an upgrade has replaced its file.
fn own_program() -> PathBuf {
    if cfg!(target_os = "linux") {
        return "/proc/self/exe".into();
    }
    std::env::current_exe().unwrap_or_else(|_| "conductor".into())
}

async fn read_word(control: &mut UnixStream) -> String {
    let mut word = Vec::new();
    let mut byte = [0];
    while let Ok(1) = control.read(&mut byte).await {
        if byte[0] == b'\n' {
            break;
        }
        word.push(byte[0]);
    }
    String::from_utf8_lossy(&word).into_owned()
}

/// The guard of a running agent. Dropping it kills everything beneath.
#[derive(Debug)]
pub struct Guarded {
    guard: Child,
    control: Option<UnixStream>,
}

impl Guarded {
    /// Waits for the agent's end; the status is exactly the agent's own.
    pub async fn wait(&mut self) -> io::Result<ExitStatus> {
        self.guard.wait().await
    }

    /// Whether the guard ended the agent because a signal had stopped it for
    /// too long. Valid after [`Self::wait`].
    pub async fn was_stopped(&mut self) -> bool {
        match &mut self.control {
            Some(control) => {
                timeout(Duration::from_millis(100), read_word(control)).await.is_ok_and(|w| w == "stopped")
            }
            None => false,
        }
    }

    /// The ladder: end of file on stdin, then SIGTERM, then SIGKILL for
    /// everything beneath the guard. `patient` is false when the agent has
    /// shown that end of file will not impress it.
    pub async fn end(&mut self, patient: bool) -> Option<ExitStatus> {
        if patient && let Ok(status) = timeout(EOF_GRACE, self.guard.wait()).await {
            return status.ok();
        }
        self.signal(Signal::SIGTERM);
        if let Ok(status) = timeout(TERM_GRACE, self.guard.wait()).await {
            return status.ok();
        }
        self.kill().await
    }

    /// Kills everything beneath the guard, at once.
    pub async fn kill(&mut self) -> Option<ExitStatus> {
        // The guard takes the end of its control socket as the word to kill.
        self.control = None;
        if let Ok(status) = timeout(KILL_GRACE, self.guard.wait()).await {
            return status.ok();
        }
        warn!(guard = self.guard.id(), "a guard did not end in time and is killed");
        self.guard.kill().await.ok();
        self.guard.wait().await.ok()
    }

    fn signal(&self, signal: Signal) {
        // No id means it has been waited for; then there is no one to tell.
        if let Some(pid) = self.guard.id().and_then(|pid| i32::try_from(pid).ok()) {
            kill(Pid::from_raw(pid), signal).ok();
        }
    }
}

/// Says how a process ended, for people.
pub fn describe(status: Option<ExitStatus>) -> String {
    use std::os::unix::process::ExitStatusExt as _;
    match status {
        Some(status) => match (status.code(), status.signal()) {
            (Some(code), _) => format!("exited with status {code}"),
            (None, Some(signal)) => match Signal::try_from(signal) {
                Ok(signal) => format!("was killed by {signal}"),
                Err(_) => format!("was killed by signal {signal}"),
            },
            (None, None) => "ended".into(),
        },
        None => "ended".into(),
    }
}

/// Looks up a variable the way the agent would.
pub fn path_variable() -> Option<OsString> {
    std::env::var_os("PATH").filter(|path| path != OsStr::new(""))
}
