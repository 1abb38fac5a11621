//! One agent of the configuration, and what its keys may say.

use std::{collections::BTreeMap, fmt, path::PathBuf, time::Duration};

use serde::Deserialize;

use super::{
    containment::{Bounds, Layer, Reach, Sandbox},
    duration, error,
    people::Secrets,
    routing::Overlay,
};

/// One kind of agent.
#[derive(Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Agent {
    /// Its name in `agents`, repeated here for messages.
    #[serde(skip)]
    pub name: String,
    /// Name for people.
    #[serde(default)]
    pub title: Option<String>,
    /// `false` hides the agent.
    #[serde(default = "yes")]
    pub enabled: bool,
    /// Program: an absolute path, or a name looked up on `PATH`. `conductor`
    /// means this very binary. Empty only until the configuration is checked:
    /// the file may leave it to the environment.
    #[serde(default)]
    pub command: String,
    /// How to install the program, shown when it is not found.
    #[serde(default)]
    pub install: Option<String>,
    /// Its arguments.
    #[serde(default)]
    pub args: Vec<String>,
    /// Variables set for it.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Names of variables handed on from the conductor's own environment.
    #[serde(default)]
    pub env_from: Vec<String>,
    /// Files copied into its home before it starts: path beneath the home →
    /// absolute source. Needs a home of its own.
    #[serde(default)]
    pub files: BTreeMap<PathBuf, PathBuf>,
    /// Which home directory it sees.
    #[serde(default)]
    pub home: Home,
    /// Whether it gets secrets of the user it runs for.
    #[serde(default)]
    pub secrets: Secrets,
    /// The settings that make it ask for permission: of a known agent, `auto` for the one
    /// that its program is known as, or `none`.
    #[serde(default = "default_profile")]
    pub profile: String,
    /// Whether it is shut in; if absent, as its profile has been tested.
    #[serde(default)]
    pub sandbox: Option<Sandbox>,
    /// What `sandbox = "required"` insists on. The layer `bwrap` is used only if it is named
    /// here, also when the sandbox is only preferred.
    #[serde(default = "default_layers")]
    pub sandbox_layers: Vec<Layer>,
    /// What it can reach then beside what it always can.
    #[serde(default)]
    pub reach: Reach,
    /// How much of the machine each of its processes may have.
    #[serde(default)]
    pub limits: Bounds,
    /// Directory it is started in, whatever the session's; overrides
    /// `spawn_cwd`.
    #[serde(default)]
    pub cwd: Option<PathBuf>,
    /// Which directory it is started in.
    #[serde(default)]
    pub spawn_cwd: SpawnCwd,
    /// Spare processes kept ready per recently used pool key.
    #[serde(default = "default_warm")]
    pub warm: usize,
    /// Most spare processes over all keys.
    #[serde(default = "default_warm_total")]
    pub warm_total: usize,
    /// Directories kept warm from the start, not only once used.
    #[serde(default)]
    pub warm_keys: Vec<PathBuf>,
    /// Age at which a spare process is replaced.
    #[serde(default = "default_warm_max_age", with = "duration")]
    pub warm_max_age: Duration,
    /// Most processes at once, spare ones included.
    #[serde(default = "default_max")]
    pub max: usize,
    /// Sessions that may share one process.
    #[serde(default = "one")]
    pub sessions_per_process: usize,
    /// How long spawn and handshake may take.
    #[serde(default = "default_start_timeout", with = "duration")]
    pub start_timeout: Duration,
    /// How long a process without sessions is kept for a key nobody uses.
    #[serde(default = "default_idle_timeout", with = "duration")]
    pub idle_timeout: Duration,
    /// After how long without anything to do a session's process is released,
    /// if the agent can take the session back; zero for never.
    #[serde(default = "default_park_after", with = "duration")]
    pub park_after: Duration,
    /// What to do about crashes.
    #[serde(default)]
    pub restart: Restart,
    /// Directories beneath which this agent may work; the service's `roots`
    /// if absent.
    #[serde(default)]
    pub roots: Option<Vec<PathBuf>>,
    /// Who serves its files and terminals.
    #[serde(default)]
    pub workspace: Workspace,
    /// With `workspace = "host"`, files are still left to editors that serve
    /// them, because those know what is not saved yet.
    #[serde(default)]
    pub prefer_client_fs: bool,
    /// With `workspace = "host"`, terminals are still left to editors that
    /// serve them.
    #[serde(default)]
    pub prefer_client_terminal: bool,
    /// What becomes of its turns when the editor goes away.
    #[serde(default)]
    pub on_detach: OnDetach,
    /// After how long without a sign of work a turn counts as stalled; zero for
    /// never.
    #[serde(default = "default_turn_stall_timeout", with = "duration")]
    pub turn_stall_timeout: Duration,
    /// What to do about that.
    #[serde(default)]
    pub on_stall: OnStall,
    /// What people see of its models, by the agent's own names of them.
    #[serde(default)]
    pub models: BTreeMap<String, Overlay>,
    /// What people see of its modes, likewise.
    #[serde(default)]
    pub modes: BTreeMap<String, Overlay>,
    /// Not offered beside other agents, unless it is the default; who names it
    /// gets it all the same.
    #[serde(default)]
    pub hidden: bool,
    /// How long a session that has gone on to another agent keeps its process
    /// here; zero releases it at once.
    #[serde(default = "default_linger", with = "duration")]
    pub linger: Duration,
    /// Errors that say that it has no quota left, as expressions; a prompt then
    /// goes to a fallback. What most agents say if absent.
    #[serde(default)]
    pub quota_errors: Option<Vec<String>>,
    /// The same for answers: some agents tell it as text. The whole answer has
    /// to match.
    #[serde(default)]
    pub quota_answers: Option<Vec<String>>,
    /// Most processes that sessions of one user may have at once.
    #[serde(default = "default_max")]
    pub max_per_user: usize,
    /// How long a session may wait for a process while all are in use.
    #[serde(default = "default_queue_timeout", with = "duration")]
    pub queue_timeout: Duration,
    /// Free labels, shown in listings and matched by routes.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
}

// Written by hand because `env` may hold secrets: its names are shown, its
// values never. Taking the value apart makes a new field a compile error here.
impl fmt::Debug for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            name,
            title,
            enabled,
            command,
            install,
            args,
            env,
            env_from,
            files,
            home,
            secrets,
            profile,
            sandbox,
            sandbox_layers,
            reach,
            limits,
            cwd,
            spawn_cwd,
            warm,
            warm_total,
            warm_keys,
            warm_max_age,
            max,
            sessions_per_process,
            start_timeout,
            idle_timeout,
            park_after,
            restart,
            roots,
            workspace,
            prefer_client_fs,
            prefer_client_terminal,
            on_detach,
            turn_stall_timeout,
            on_stall,
            models,
            modes,
            hidden,
            linger,
            quota_errors,
            quota_answers,
            max_per_user,
            queue_timeout,
            labels,
        } = self;
        f.debug_struct("Agent")
            .field("name", name)
            .field("title", title)
            .field("enabled", enabled)
            .field("command", command)
            .field("install", install)
            .field("args", args)
            .field("env", &Hidden(env))
            .field("env_from", env_from)
            .field("files", files)
            .field("home", home)
            .field("secrets", secrets)
            .field("profile", profile)
            .field("sandbox", sandbox)
            .field("sandbox_layers", sandbox_layers)
            .field("reach", reach)
            .field("limits", limits)
            .field("cwd", cwd)
            .field("spawn_cwd", spawn_cwd)
            .field("warm", warm)
            .field("warm_total", warm_total)
            .field("warm_keys", warm_keys)
            .field("warm_max_age", warm_max_age)
            .field("max", max)
            .field("sessions_per_process", sessions_per_process)
            .field("start_timeout", start_timeout)
            .field("idle_timeout", idle_timeout)
            .field("park_after", park_after)
            .field("restart", restart)
            .field("roots", roots)
            .field("workspace", workspace)
            .field("prefer_client_fs", prefer_client_fs)
            .field("prefer_client_terminal", prefer_client_terminal)
            .field("on_detach", on_detach)
            .field("turn_stall_timeout", turn_stall_timeout)
            .field("on_stall", on_stall)
            .field("models", models)
            .field("modes", modes)
            .field("hidden", hidden)
            .field("linger", linger)
            .field("quota_errors", quota_errors)
            .field("quota_answers", quota_answers)
            .field("max_per_user", max_per_user)
            .field("queue_timeout", queue_timeout)
            .field("labels", labels)
            .finish()
    }
}

/// Shows the names of variables and hides their values.
struct Hidden<'a>(&'a BTreeMap<String, String>);

impl fmt::Debug for Hidden<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.0.keys().map(|name| (name, format_args!("…")))).finish()
    }
}

/// Which home directory an agent sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(try_from = "String")]
pub enum Home {
    /// The conductor's own.
    #[default]
    Inherit,
    /// A private one in the state directory.
    Isolated,
    /// A private one there for each user.
    User,
}

// Not derived: a derived enum would also take the number of a variant.
impl TryFrom<String> for Home {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match text.as_str() {
            "inherit" => Ok(Self::Inherit),
            "isolated" => Ok(Self::Isolated),
            "user" => Ok(Self::User),
            _ => Err(error::not_one_of(&text, &["inherit", "isolated", "user"])),
        }
    }
}

/// Which directory an agent is started in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(try_from = "String")]
pub enum SpawnCwd {
    /// The session's `cwd`: what an editor that spawns the agent would do.
    #[default]
    Session,
    /// The configured root above it, so that projects share warm processes.
    Root,
}

impl TryFrom<String> for SpawnCwd {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match text.as_str() {
            "session" => Ok(Self::Session),
            "root" => Ok(Self::Root),
            _ => Err(error::not_one_of(&text, &["session", "root"])),
        }
    }
}

/// Who serves an agent's files and terminals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(try_from = "String")]
pub enum Workspace {
    /// This host, on which the code lives.
    #[default]
    Host,
    /// The editor, as far as it can.
    Editor,
}

impl TryFrom<String> for Workspace {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match text.as_str() {
            "host" => Ok(Self::Host),
            "editor" => Ok(Self::Editor),
            _ => Err(error::not_one_of(&text, &["host", "editor"])),
        }
    }
}

/// What becomes of an agent's turns when the editor goes away.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(try_from = "String")]
pub enum OnDetach {
    /// They go on.
    #[default]
    Continue,
    /// They are cancelled.
    Cancel,
}

impl TryFrom<String> for OnDetach {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match text.as_str() {
            "continue" => Ok(Self::Continue),
            "cancel" => Ok(Self::Cancel),
            _ => Err(error::not_one_of(&text, &["continue", "cancel"])),
        }
    }
}

/// What is done about a turn that has stalled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(try_from = "String")]
pub enum OnStall {
    /// It is reported.
    #[default]
    Warn,
    /// It is reported, and cancelled if nothing comes for the same time again.
    Cancel,
}

impl TryFrom<String> for OnStall {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match text.as_str() {
            "warn" => Ok(Self::Warn),
            "cancel" => Ok(Self::Cancel),
            _ => Err(error::not_one_of(&text, &["warn", "cancel"])),
        }
    }
}

/// How often an agent may crash before it is quarantined.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Restart {
    /// So many crashes …
    pub intensity: usize,
    /// … within this time are too many.
    #[serde(with = "duration")]
    pub within: Duration,
    /// Pause before the first restart; doubles, with jitter, up to `within`.
    #[serde(with = "duration")]
    pub backoff: Duration,
}

impl Default for Restart {
    fn default() -> Self {
        Self { intensity: 5, within: Duration::from_secs(30), backoff: Duration::from_millis(200) }
    }
}

fn yes() -> bool {
    true
}

fn one() -> usize {
    1
}

fn default_profile() -> String {
    "auto".into()
}

fn default_layers() -> Vec<Layer> {
    vec![Layer::Landlock, Layer::Seccomp]
}

fn default_warm() -> usize {
    1
}

fn default_warm_total() -> usize {
    4
}

fn default_max() -> usize {
    64
}

fn default_warm_max_age() -> Duration {
    Duration::from_secs(6 * 3600)
}

fn default_start_timeout() -> Duration {
    Duration::from_secs(30)
}

fn default_park_after() -> Duration {
    Duration::from_secs(30 * 60)
}

fn default_turn_stall_timeout() -> Duration {
    Duration::from_secs(10 * 60)
}

fn default_linger() -> Duration {
    Duration::from_secs(10 * 60)
}

fn default_queue_timeout() -> Duration {
    Duration::from_secs(30)
}

fn default_idle_timeout() -> Duration {
    Duration::from_secs(30 * 60)
}
