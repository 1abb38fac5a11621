//! What the service is told to do: compiled-in defaults, then `agents.toml`,
//! then `CONDUCTOR_*`, read once, checked once and immutable from then on.
//!
//! Nothing is ever read from the working directory: a repository must not be
//! able to configure the service that runs agents in it.

use std::{collections::BTreeMap, net::SocketAddr, path::PathBuf, time::Duration};

use serde::Deserialize;

/// The compiled-in defaults, which the user's file overlays.
pub const DEFAULTS: &str = include_str!("../../agents.toml");

/// The whole configuration.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Agent for editors that name none.
    pub default: String,
    /// Directories beneath which sessions may work.
    pub roots: Vec<PathBuf>,
    /// The service itself.
    pub service: Service,
    /// Every agent by name.
    pub agents: BTreeMap<String, Agent>,
}

/// Limits and deadlines of the service.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Service {
    /// Address to listen on.
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
    /// How long a cancelled turn may take to end before its process is ended.
    #[serde(with = "duration")]
    pub cancel_grace: Duration,
    /// How long an agent may leave its input unread or a line unfinished before
    /// it is ended.
    #[serde(with = "duration")]
    pub stall_timeout: Duration,
}

/// One kind of agent.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Agent {
    /// Name for people.
    #[serde(default)]
    pub title: Option<String>,
    /// `false` hides the agent.
    #[serde(default = "yes")]
    pub enabled: bool,
    /// Program: an absolute path, or a name looked up on `PATH`. `conductor`
    /// means this very binary.
    pub command: String,
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
    /// What to do about crashes.
    #[serde(default)]
    pub restart: Restart,
    /// Directories beneath which this agent may work; the service's `roots`
    /// if absent.
    #[serde(default)]
    pub roots: Option<Vec<PathBuf>>,
    /// Free labels, shown in listings and matched by routes.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
}

/// Which home directory an agent sees.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Home {
    /// The conductor's own.
    #[default]
    Inherit,
    /// A private one in the state directory.
    Isolated,
}

/// Which directory an agent is started in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SpawnCwd {
    /// The session's `cwd`: what an editor that spawns the agent would do.
    #[default]
    Session,
    /// The configured root above it, so that projects share warm processes.
    Root,
}

/// How often an agent may crash before it is quarantined.
#[derive(Debug, Clone, Deserialize)]
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

fn default_idle_timeout() -> Duration {
    Duration::from_secs(30 * 60)
}

/// Durations are written as text: `"250ms"`, `"30s"`, `"5m"`, `"2h"`.
mod duration {
    use std::time::Duration;

    use serde::{Deserialize, Deserializer, de::Error};

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        let text = String::deserialize(from)?;
        parse(&text).ok_or_else(|| {
            D::Error::custom(format!(
                "`{text}` is not a duration; write a number and a unit, as in \"250ms\", \"30s\", \"5m\" or \"2h\""
            ))
        })
    }

    fn parse(text: &str) -> Option<Duration> {
        let digits = text.find(|c: char| !c.is_ascii_digit())?;
        let number: u64 = text[..digits].parse().ok()?;
        let millis = match &text[digits..] {
            "ms" => 1,
            "s" => 1000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => return None,
        };
        number.checked_mul(millis).map(Duration::from_millis)
    }
}
