//! Starting an agent, or a command for one, under its guard, and the ladder by
//! which it is ended.

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    fmt,
    fs::File,
    io::{self, IoSlice, Seek as _, Write as _},
    mem::MaybeUninit,
    os::{
        fd::{AsFd as _, AsRawFd as _, OwnedFd},
        unix::fs::OpenOptionsExt as _,
    },
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    sync::Arc,
    time::Duration,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    net::{UnixStream, unix::pipe},
    process::{Child, ChildStderr, ChildStdin, ChildStdout, Command},
    task::spawn_blocking,
    time::timeout,
};
use tracing::warn;
use uuid::Uuid;

use super::{
    home::{self, Belongings},
    profile::Profile,
    pty::{Pty, Size},
};
use crate::{
    config,
    contain::{Container, Containment, Held, Premises, reach::Needs},
    redact::Known,
};

/// After end of file on its stdin, an agent has this long to leave.
pub const EOF_GRACE: Duration = Duration::from_secs(1);

/// After SIGTERM, this long; then everything beneath the guard is killed.
pub const TERM_GRACE: Duration = Duration::from_secs(2);

/// A guard that has not killed and reaped all within this time is killed
/// itself.
pub const KILL_GRACE: Duration = Duration::from_secs(2);

/// How long the guard may take to say whether the agent could be started.
const GUARD_GRACE: Duration = Duration::from_secs(10);

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
#[derive(Clone)]
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
    /// What is to hold it.
    pub containment: Containment,
    /// What of all that is secret, so that it is kept out of the record.
    pub known: Known,
}

// Written by hand because the environment holds secrets: its names are shown, its
// values never.
impl fmt::Debug for Launch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { program, args, env, shared_env, cwd, containment, known } = self;
        f.debug_struct("Launch")
            .field("program", program)
            .field("args", args)
            .field("env", &env.keys())
            .field("shared_env", &shared_env.keys())
            .field("cwd", cwd)
            .field("containment", containment)
            .field("known", known)
            .finish()
    }
}

/// A command to run for an agent, or for the service.
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
    /// Where its stderr goes.
    pub errors: Errors,
    /// What holds it: what holds the agent that asks for it. What the service itself wants
    /// done is held by nothing.
    pub container: Option<Arc<Container>>,
}

impl Errand {
    /// A program that the configuration names, for the service itself. What it says on its
    /// stderr may be a secret.
    pub fn of(command: &[String], env: Environment) -> Result<Self, String> {
        let (program, args) = command.split_first().ok_or("it names no program")?;
        let directory = File::open("/").map_err(|error| error.to_string())?;
        let (program, args) = (program.into(), args.iter().map(Into::into).collect());
        Ok(Self { program, args, env, directory: directory.into(), errors: Errors::Dropped, container: None })
    }
}

/// Where the stderr of a command goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Errors {
    /// Where its stdout goes.
    Together,
    /// Nowhere.
    Dropped,
}

impl Launch {
    /// Makes ready what the configuration asks for: home, files, environment, and what is to
    /// hold it. `roots` is where it works beside `cwd`; `own` is what a process gets that
    /// runs for one user alone.
    pub fn prepare(
        premises: &Premises,
        agent: &config::Agent,
        program: PathBuf,
        cwd: PathBuf,
        roots: &[PathBuf],
        own: Option<&Belongings>,
    ) -> io::Result<Self> {
        let homes = premises.homes();
        let inherit = |name: &&str| std::env::var_os(name).map(|value| (OsString::from(name), value));
        let mut env: Environment = INHERITED.iter().filter_map(inherit).collect();
        // Locale variables form an open set.
        env.extend(std::env::vars_os().filter(|(key, _)| key.as_encoded_bytes().starts_with(b"LC_")));
        let home = home::furnish(agent, &homes, own)?;
        if let Some(home) = &home {
            env.retain(|key, _| !key.as_encoded_bytes().starts_with(b"XDG_"));
            env.insert("HOME".into(), home.into());
        }
        env.extend(own.into_iter().flat_map(Belongings::git_variables));
        let shared_env = env.clone();
        for name in &agent.env_from {
            if let Some(value) = std::env::var_os(name) {
                env.insert(name.into(), value);
            }
        }
        let known = home::known(agent, own, &env);
        env.extend(agent.env.iter().map(|(key, value)| (key.into(), value.into())));
        // What somebody has of their own counts more than what all have, but less than
        // what makes the agent ask.
        env.extend(own.into_iter().flat_map(Belongings::secret_variables));
        let profile = match agent.profile.as_str() {
            "none" => None,
            "auto" => Profile::by_program(&program),
            name => Profile::by_name(name),
        };
        if let Some(profile) = profile {
            profile.apply(&home.clone().unwrap_or_else(|| homes.join(&agent.name)), &mut env)?;
        }
        let roots: Vec<PathBuf> = std::iter::once(cwd.clone()).chain(roots.iter().cloned()).collect();
        let variable = |name: &str| env.get(OsStr::new(name)).map(OsString::as_os_str);
        let needs = Needs {
            program: &program,
            args: &agent.args,
            search: variable("PATH"),
            home: variable("HOME").map(Path::new),
            owns_home: home.is_some(),
            roots: &roots,
            profile,
        };
        let containment = Containment::new(premises, agent, &needs);
        Ok(Self {
            program,
            args: agent.args.clone(),
            env,
            shared_env: Arc::new(shared_env),
            cwd,
            containment,
            known,
        })
    }

    /// Makes ready what holds the process of this id.
    pub async fn container(&self, id: Uuid) -> Result<Container, String> {
        let containment = self.containment.clone();
        // Groups and directories are made, for which the kernel may take its time.
        let made = spawn_blocking(move || containment.container(id)).await;
        let made = made.unwrap_or_else(|failure| Err(io::Error::other(failure)));
        made.map_err(|error| format!("what is to hold it cannot be made: {error}"))
    }
}

/// A started agent: its pipes, and the guard that answers for it.
#[derive(Debug)]
pub struct Started {
    /// The agent's own process id.
    pub pid: u32,
    /// What holds it.
    pub held: Held,
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
pub async fn spawn(launch: &Launch, container: &Container) -> Result<Started, String> {
    let mut order = guard_command(&launch.env);
    order.envs(container.variables());
    order.arg("--cwd").arg(&launch.cwd).arg("--").arg(&launch.program).args(&launch.args);
    order.stdout(Stdio::piped()).stderr(Stdio::piped());
    let no_pipe = |error: io::Error| format!("no pipe for its input: {error}");
    let (read, write) = io::pipe().map_err(no_pipe)?;
    let (mut guard, control) = start_guard(order, read.into(), Some(container))?;
    let (Some(stdout), Some(stderr)) = (guard.stdout.take(), guard.stderr.take()) else {
        return Err("the guard has no pipes".into());
    };
    let stdin = ChildStdin::from_std(OwnedFd::from(write).into()).map_err(no_pipe)?;
    widen(&stdout);
    let (pid, held, guarded) = await_start(guard, control).await?;
    Ok(Started { pid, held, stdin, stdout, stderr, guarded })
}

/// A started program in a terminal of its own, and its guard.
#[derive(Debug)]
pub struct Interactive {
    /// Its process id.
    pub pid: u32,
    /// What holds it.
    pub held: Held,
    /// The other side of the terminal.
    pub pty: Pty,
    /// The guard.
    pub guarded: Guarded,
}

/// Starts an agent's program in a terminal, under a guard.
pub async fn spawn_in_terminal(
    launch: &Launch,
    container: &Container,
    size: Size,
) -> Result<Interactive, String> {
    let no_terminal = |error: io::Error| format!("no terminal can be had: {error}");
    let (pty, slave) = Pty::open(size).map_err(no_terminal)?;
    let mut order = guard_command(&launch.env);
    order.envs(container.variables());
    order.arg("--terminal").arg("--cwd").arg(&launch.cwd).arg("--").arg(&launch.program).args(&launch.args);
    let copy = || slave.try_clone().map_err(no_terminal);
    order.stdout(copy()?).stderr(copy()?);
    let (guard, control) = start_guard(order, slave.into(), Some(container))?;
    let (pid, held, guarded) = await_start(guard, control).await?;
    Ok(Interactive { pid, held, pty, guarded })
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
    run_errand_with(errand, b"").await
}

/// The same for a program that is given something on its stdin.
pub async fn run_errand_with(errand: Errand, input: &[u8]) -> Result<Running, String> {
    let Errand { program, args, env, directory, errors, container } = errand;
    // What tells the loader which code to run must not reach the guard, which
    // has to outlive and contain the command.
    let (loader, env): (Environment, Environment) =
        env.into_iter().partition(|(name, _)| is_for_loader(name.as_encoded_bytes()));
    let mut order = guard_command(&env);
    order.envs(container.iter().flat_map(|container| container.variables()));
    for (name, value) in loader {
        let mut pair = name;
        pair.push("=");
        pair.push(value);
        order.arg("--env").arg(pair);
    }
    let no_pipe = |error: io::Error| format!("no pipe for its output: {error}");
    let (read, write) = io::pipe().map_err(no_pipe)?;
    order.arg("--").arg(program).args(args);
    match errors {
        Errors::Together => order.stdout(write.try_clone().map_err(no_pipe)?).stderr(write),
        Errors::Dropped => order.stdout(write).stderr(Stdio::null()),
    };
    // The guard begins where it is to start the command. After the fork, the
    // number names the same directory in the child.
    order.current_dir(format!("/proc/self/fd/{}", directory.as_raw_fd()));
    let stdin = given(input).map_err(|error| format!("no input for it: {error}"))?;
    let (guard, control) = start_guard(order, stdin.into(), container.as_deref())?;
    drop(directory);
    let (pid, _, guarded) = await_start(guard, control).await?;
    let output = pipe::Receiver::from_owned_fd(read.into()).map_err(no_pipe)?;
    Ok(Running { pid, output, guarded })
}

/// What a command reads on its stdin: a file without a name, so that nobody has to wait,
/// however slowly it reads.
fn given(input: &[u8]) -> io::Result<File> {
    if input.is_empty() {
        return File::open("/dev/null");
    }
    let name = std::env::temp_dir().join(format!(".conductor-{}", Uuid::now_v7()));
    let mut file = File::options().read(true).write(true).create_new(true).mode(0o600).open(&name)?;
    std::fs::remove_file(&name)?;
    file.write_all(input)?;
    file.rewind()?;
    Ok(file)
}

/// Whether a variable decides which code the loader runs.
pub(super) fn is_for_loader(name: &[u8]) -> bool {
    name.starts_with(b"LD_") || name.starts_with(b"GLIBC_")
}

/// The beginning of every guard's command line.
#[allow(clippy::disallowed_methods, reason = "what is started here is the guard")]
fn guard_command(env: &Environment) -> std::process::Command {
    let mut command = std::process::Command::new(own_program());
    command.args(["guard", "--control"]).env_clear().envs(env);
    command
}

/// Starts a guard. Its stdin is the control socket, and what its program gets as stdin is
/// handed over there. Nothing is arranged between fork and exec, so that the standard
/// library can do without a fork: that would copy the tables of all our memory, which takes
/// long when there is much, and fails when there is not as much again.
fn start_guard(
    mut order: std::process::Command,
    stdin: OwnedFd,
    container: Option<&Container>,
) -> Result<(Child, UnixStream), String> {
    let terms = container.map(|container| container.terms.clone()).unwrap_or_default();
    let mut terms = serde_json::to_vec(&terms)
        .map_err(|error| format!("what is to hold it cannot be told: {error}; use names that are UTF-8"))?;
    terms.push(b'\n');
    let no_control = |error: io::Error| format!("no control socket: {error}");
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().map_err(no_control)?;
    ours.set_nonblocking(true).map_err(no_control)?;
    order.stdin(OwnedFd::from(theirs));
    // The command holds our copies of the guard's pipes; it ends here.
    let guard = Command::from(order).spawn().map_err(|error| format!("cannot start the guard: {error}"))?;
    hand_over(&ours, &stdin, &terms).map_err(|error| format!("cannot tell the guard its task: {error}"))?;
    // A copy of ours would hide that the program has closed its own.
    drop(stdin);
    Ok((guard, UnixStream::from_std(ours).map_err(no_control)?))
}

/// Sends a descriptor to the guard, with the one byte that it takes, and what the command is
/// held by.
fn hand_over(mut control: &std::os::unix::net::UnixStream, stdin: &OwnedFd, terms: &[u8]) -> io::Result<()> {
    let stdin = [stdin.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut rights = SendAncillaryBuffer::new(&mut space);
    rights.push(SendAncillaryMessage::ScmRights(&stdin));
    sendmsg(control, &[IoSlice::new(b"0")], &mut rights, SendFlags::NOSIGNAL)?;
    // The buffer of a new socket takes far more.
    control.write_all(terms)
}

/// Waits for the guard's word on whether the program runs.
async fn await_start(guard: Child, control: UnixStream) -> Result<(u32, Held, Guarded), String> {
    let mut control = BufReader::new(control);
    let words = async {
        let first = read_word(&mut control).await;
        let Some(held) = first.strip_prefix("held ") else { return Err(first) };
        let held = serde_json::from_str(held).map_err(|_| first.clone())?;
        let second = read_word(&mut control).await;
        let pid = second.strip_prefix("pid ").and_then(|pid| pid.parse().ok());
        pid.map(|pid| (pid, held)).ok_or(second)
    };
    let words = timeout(GUARD_GRACE, words).await.unwrap_or_else(|_| Err(String::new()));
    let mut guarded = Guarded { guard, control: Some(control) };
    match words {
        Ok((pid, held)) => Ok((pid, held, guarded)),
        Err(word) => {
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

/// One line of the guard's; empty at the end.
async fn read_word(control: &mut BufReader<UnixStream>) -> String {
    let mut word = Vec::new();
    control.read_until(b'\n', &mut word).await.ok();
    String::from_utf8_lossy(&word).trim_end_matches('\n').to_owned()
}

/// Why a guard has ended its command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// A signal had stopped it for too long.
    Stopped,
    /// It had too much memory.
    Memory,
    /// It had too many processes.
    Processes,
}

/// The guard of a running agent. Dropping it kills everything beneath.
#[derive(Debug)]
pub struct Guarded {
    guard: Child,
    control: Option<BufReader<UnixStream>>,
}

impl Guarded {
    /// Waits for the agent's end; the status is exactly the agent's own.
    pub async fn wait(&mut self) -> io::Result<ExitStatus> {
        self.guard.wait().await
    }

    /// Why the guard ended the agent, if it did so by itself. Valid after [`Self::wait`].
    pub async fn reason(&mut self) -> Option<Reason> {
        let control = self.control.as_mut()?;
        match timeout(Duration::from_millis(100), read_word(control)).await.ok()?.as_str() {
            "stopped" => Some(Reason::Stopped),
            "limit memory" => Some(Reason::Memory),
            "limit processes" => Some(Reason::Processes),
            _ => None,
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
