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
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use figment::Figment;
use serde::Deserialize;

use self::{environment::Environment, origins::Origins, source::Source};

mod access;
mod agent;
mod approvals;
mod check;
mod containment;
mod database;
mod duration;
mod environment;
mod error;
mod feed;
mod limits;
mod listen;
mod origins;
mod people;
mod policy;
mod recording;
mod resolve;
mod routing;
mod size;
mod source;
mod telemetry;
#[cfg(test)]
mod tests;

pub use self::{
    access::{Certificates, ClientAuth, Identity, NameKind, Oidc, Others, Person, Tls},
    agent::{Agent, Home, OnDetach, OnStall, Restart, SpawnCwd, Workspace},
    approvals::{Approvals, Notify},
    containment::{Amount, Bounds, Layer, Network, Reach, Sandbox},
    database::{DatabaseUrl, GivenUrl},
    error::{ConfigError, Place},
    feed::{Feed, FeedFormat},
    limits::{Limits, Quota},
    listen::{ListenRefused, check_listen, parse_listen},
    people::{GitIdentity, SecretSource, Secrets, User, Users},
    policy::{McpServer, PolicyFiles},
    recording::{Journal, Ledger, Recording},
    resolve::Unavailable,
    routing::{Overlay, Pick, Route, RouteSettings},
    telemetry::Telemetry,
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
    /// Who may come in.
    #[serde(default)]
    pub identity: Identity,
    /// What is written down on this host.
    pub journal: Journal,
    /// The queryable record.
    #[serde(default)]
    pub ledger: Ledger,
    /// Where audit events go.
    pub feed: Feed,
    /// What agents may do.
    pub policy: PolicyFiles,
    /// How people are asked.
    pub approvals: Approvals,
    /// How much users and teams may use.
    #[serde(default)]
    pub limits: Limits,
    /// Where traces and metrics go.
    pub telemetry: Telemetry,
    /// MCP servers that the team knows, by name.
    #[serde(default)]
    pub mcp: BTreeMap<String, McpServer>,
    /// Where prompts go, first match first.
    #[serde(default)]
    pub route: Vec<Route>,
    /// Where the secrets of users and teams come from.
    pub secrets: SecretSource,
    /// Who commits when agents do, for users of whom nothing else is said.
    #[serde(default)]
    pub git: Option<GitIdentity>,
    /// What is known of users.
    #[serde(default)]
    pub users: Users,
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

    /// The file that [`Config::load`] reads, if there is one to be read.
    pub fn file(
        explicit: Option<&Path>,
        env: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Option<PathBuf> {
        let named = explicit.filter(|path| !path.as_os_str().is_empty()).map(Path::to_owned);
        named.or_else(|| Self::usual_files(env).into_iter().find(|path| Source::is_there(path)))
    }

    /// Where [`Config::load`] looks for a file if none is named: the user's, then the machine's.
    pub fn usual_files(env: impl IntoIterator<Item = (OsString, OsString)>) -> Vec<PathBuf> {
        Environment::new(env).user_file().into_iter().chain([SYSTEM_FILE.into()]).collect()
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
        let mut merged = Figment::from(source::Layer::new("defaults", defaults.parse()?));
        if let Some(file) = &file {
            merged = merged.merge(source::Layer::new("file", file.parse()?));
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
    /// What protects that address.
    #[serde(default)]
    pub tls: Tls,
    /// Where metrics and health are served; nowhere if `None`.
    #[serde(default, deserialize_with = "listen::optional")]
    pub admin: Option<SocketAddr>,
    /// How long running turns may take to end after SIGTERM.
    #[serde(with = "duration")]
    pub drain_timeout: Duration,
    /// Most editor and tool connections at once.
    pub max_connections: usize,
    /// Those of one user.
    pub max_connections_per_user: usize,
    /// Most sessions one editor connection may have open.
    pub max_sessions_per_connection: usize,
    /// Most agent processes that may be starting at once.
    pub parallel_spawns: usize,
    /// No session is opened while more of the memory is in use, in percent.
    pub memory_high: u8,
    /// Calls without a valid token that one address may make in a minute.
    pub bad_tokens_per_minute: u32,
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
