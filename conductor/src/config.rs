//! What the service is told to do: compiled-in defaults, then `agents.toml`,
//! then `CONDUCTOR_*`, read once, checked once and immutable from then on.
//!
//! Nothing is ever read from the working directory: a repository must not be
//! able to configure the service that runs agents in it.
//!
//! `source` reads a file and knows where each key stands in it,
//! `environment` turns variables into keys, `check` refuses what no type can,
//! `origins` finds the file, line or variable to blame, `error` finds the
//! words, and `resolve` looks for an agent's program.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fmt,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use figment::Figment;
use serde::Deserialize;

use self::{
    environment::Environment,
    origins::Origins,
    source::{Layer, Source},
};

mod check;
mod database;
mod duration;
mod environment;
mod error;
mod listen;
mod origins;
mod policy;
mod recording;
mod resolve;
mod size;
mod source;
#[cfg(test)]
mod tests;

pub use self::{
    database::{DatabaseUrl, GivenUrl},
    error::{ConfigError, Place},
    listen::{ListenRefused, check_listen},
    policy::{McpServer, PolicyFiles},
    recording::{Journal, Ledger, Recording},
    resolve::Unavailable,
};

/// The compiled-in defaults, which the user's file overlays.
pub const DEFAULTS: &str = include_str!("../../agents.toml");

/// The file for the whole machine, used if the user has none.
const SYSTEM_FILE: &str = "/etc/conductor/agents.toml";

/// A configuration and where it came from.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// The checked configuration.
    pub config: Config,
    /// The file it was read from; `None` if there are only the defaults. A
    /// reload that names it explicitly reads the same file again.
    pub file: Option<PathBuf>,
}

/// The whole configuration.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Agent for editors that name none.
    pub default: String,
    /// Directories beneath which sessions may work.
    pub roots: Vec<PathBuf>,
    /// The service itself.
    pub service: Service,
    /// What is written down on this host.
    pub journal: Journal,
    /// The queryable record.
    #[serde(default)]
    pub ledger: Ledger,
    /// What agents may do.
    pub policy: PolicyFiles,
    /// MCP servers that the team knows, by name.
    #[serde(default)]
    pub mcp: BTreeMap<String, McpServer>,
    /// Every agent by name.
    pub agents: BTreeMap<String, Agent>,
}

impl Config {
    /// Reads, merges and checks the configuration.
    ///
    /// `explicit` is the file of `--config` or `CONDUCTOR_CONFIG`, which must
    /// exist; without it the user's file and then the machine's are used if
    /// they are there. `env` is the whole environment, normally
    /// `std::env::vars_os()`: it carries the overlay, `HOME` and
    /// `XDG_CONFIG_HOME`.
    pub fn load(
        explicit: Option<&Path>,
        env: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<Loaded, ConfigError> {
        Self::load_with(explicit, &Environment::new(env), Path::new(SYSTEM_FILE))
    }

    /// [`Config::load`] with the machine's file named, so that tests need not
    /// write to `/etc`.
    fn load_with(explicit: Option<&Path>, env: &Environment, system: &Path) -> Result<Loaded, ConfigError> {
        // An empty variable is how people unset one.
        let file = match explicit.filter(|path| !path.as_os_str().is_empty()) {
            Some(path) => Some(Source::read_required(path)?),
            None => Source::read_first(env.user_file().as_deref().into_iter().chain([system]))?,
        };
        let defaults = Source::built_in();
        let mut merged = Figment::from(Layer::new("defaults", defaults.parse()?));
        if let Some(file) = &file {
            merged = merged.merge(Layer::new("file", file.parse()?));
            // The file is judged before the environment is laid over it, so
            // that what is wrong now can only be wrong there.
            if let Err(error) = merged.extract::<Self>() {
                return Err(file.refuse(&error));
            }
        }
        let (merged, variables) = env.overlay(merged)?;
        let origins = Origins { variables, file, defaults };
        let mut config = merged.extract::<Self>().map_err(|error| origins.refuse_extract(&error))?;
        check::check(&mut config, &origins, env.home().as_deref())?;
        Ok(Loaded { config, file: origins.file.and_then(Source::into_path) })
    }
}

/// Limits and deadlines of the service.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Service {
    /// Address to listen on.
    #[serde(with = "listen")]
    pub listen: SocketAddr,
    /// How long running turns may take to end after SIGTERM.
    #[serde(with = "duration")]
    pub drain_timeout: Duration,
    /// Most editor and tool connections at once.
    pub max_connections: usize,
    /// Most sessions one editor connection may have open.
    pub max_sessions_per_connection: usize,
    /// Most agent processes that may be starting at once.
    pub parallel_spawns: usize,
    /// How long an editor may leave its frames unread before it is dropped.
    #[serde(with = "duration")]
    pub editor_timeout: Duration,
    /// How long a connection outlives its stream.
    #[serde(with = "duration")]
    pub detached_ttl: Duration,
    /// How long a cancelled turn may take to end before its process is ended.
    #[serde(with = "duration")]
    pub cancel_grace: Duration,
    /// How long an agent may leave its input unread or a line unfinished before
    /// it is ended.
    #[serde(with = "duration")]
    pub stall_timeout: Duration,
    /// Most bytes of the recorded turns that an agent is handed which has lost
    /// a session.
    #[serde(with = "size")]
    pub handover_bytes: u64,
    /// Where editors have other paths than this host.
    #[serde(default)]
    pub cwd_map: Vec<CwdMapEntry>,
}

/// Two prefixes that stand for each other.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CwdMapEntry {
    /// On the editor's machine.
    pub editor: String,
    /// On this host.
    pub host: PathBuf,
}

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
    /// absolute source. Needs `home = "isolated"`.
    #[serde(default)]
    pub files: BTreeMap<PathBuf, PathBuf>,
    /// Which home directory it sees.
    #[serde(default)]
    pub home: Home,
    /// The settings that make it ask for permission: of a known agent, `auto` for the one
    /// that its program is known as, or `none`.
    #[serde(default = "default_profile")]
    pub profile: String,
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
            profile,
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
            .field("profile", profile)
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
}

// Not derived: a derived enum would also take the number of a variant.
impl TryFrom<String> for Home {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match text.as_str() {
            "inherit" => Ok(Self::Inherit),
            "isolated" => Ok(Self::Isolated),
            _ => Err(error::not_one_of(&text, &["inherit", "isolated"])),
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

fn default_idle_timeout() -> Duration {
    Duration::from_secs(30 * 60)
}
