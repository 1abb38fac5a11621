//! What no type can refuse: keys that contradict each other, numbers that
//! make no sense, paths that lead somewhere unexpected. Also where `~` becomes
//! the home directory, since only then can a path be judged.

mod access;
mod containment;
mod exposed;
mod feed;
mod limits;
mod people;
mod routes;

use std::{
    collections::BTreeMap,
    path::{Component, Path, PathBuf},
    time::Duration,
};

use super::{
    Agent, Config, Home, ListenRefused, McpServer, check_listen,
    error::{ConfigError, nearest, quoted},
    origins::Origins,
};
use crate::agent::profile::Profile;

/// More of anything is a slip of the finger, and some queues could not be
/// built that large.
const MOST: usize = 1_000_000;

/// The smallest cap of the journal: a few of the longest frames there may be.
const LEAST_CAP: u64 = 64 << 20;

/// The longest name of an agent: it becomes part of file names.
const LONGEST_NAME: usize = 64;

/// Refuses what makes no sense and expands `~`.
pub(super) fn check(config: &mut Config, origins: &Origins, home: Option<&Path>) -> Result<(), ConfigError> {
    let checker = Checker { origins, home };
    checker.access(config)?;
    checker.service(config)?;
    checker.journal(config)?;
    checker.limits(config)?;
    checker.telemetry(config)?;
    checker.approvals(config)?;
    checker.feed(config)?;
    if let Some(file) = &mut config.approvals.notify.ca_file {
        checker.path(&["approvals", "notify", "ca_file"], file)?;
    }
    if let Some(file) = &mut config.telemetry.headers_file {
        checker.path(&["telemetry", "headers_file"], file)?;
    }
    checker.paths(&["roots"], &mut config.roots)?;
    checker.ledger(config)?;
    for (key, file) in [("file", &mut config.policy.file), ("users", &mut config.policy.users)] {
        if let Some(file) = file {
            checker.path(&["policy", key], file)?;
        }
    }
    for (name, server) in &config.mcp {
        checker.mcp_server(name, server)?;
    }
    for (index, entry) in config.service.cwd_map.iter_mut().enumerate() {
        let index = index.to_string();
        let at = |key| ["service", "cwd_map", index.as_str(), key];
        checker.path(&at("host"), &mut entry.host)?;
        if !entry.editor.starts_with('/') {
            let what = format!("{} is not a path from `/` on", quoted(&entry.editor));
            return Err(origins.refuse(&at("editor"), what, "write it as the editor's machine has it"));
        }
    }
    checker.secrets(config)?;
    checker.people(config)?;
    let mut agents = std::mem::take(&mut config.agents);
    for (name, agent) in &mut agents {
        agent.name.clone_from(name);
        checker.agent(name, agent)?;
    }
    checker.commands(&agents)?;
    config.agents = agents;
    checker.personal(config)?;
    for index in 0..config.route.len() {
        checker.route(config, index)?;
    }
    checker.default(config)?;
    // Last: whether something is a secret is worth saying of what makes sense.
    checker.exposed(config)
}

struct Checker<'a> {
    origins: &'a Origins,
    home: Option<&'a Path>,
}

impl Checker<'_> {
    fn service(&self, config: &Config) -> Result<(), ConfigError> {
        let service = &config.service;
        self.count(&["service", "max_connections"], service.max_connections, 1)?;
        self.count(&["service", "max_connections_per_user"], service.max_connections_per_user, 1)?;
        self.count(&["service", "max_sessions_per_connection"], service.max_sessions_per_connection, 1)?;
        self.count(&["service", "parallel_spawns"], service.parallel_spawns, 1)?;
        self.count(&["service", "bad_tokens_per_minute"], service.bad_tokens_per_minute as usize, 1)?;
        if service.memory_high > 100 {
            let what = "`service.memory_high` is in percent";
            return Err(self.origins.refuse(&["service", "memory_high"], what, "write at most 100"));
        }
        self.not_zero(&["service", "stall_timeout"], service.stall_timeout)?;
        self.not_zero(&["service", "editor_timeout"], service.editor_timeout)
    }

    fn journal(&self, config: &Config) -> Result<(), ConfigError> {
        for pattern in &config.journal.secret_patterns {
            let refuse = |what: &str| {
                let what = format!("`journal.secret_patterns` holds `{pattern}`, which {what}");
                self.origins.refuse(&["journal", "secret_patterns"], &what, "correct it, or remove it")
            };
            match regex::bytes::Regex::new(pattern) {
                Ok(regex) if regex.is_match(b"") => return Err(refuse("matches where there is nothing")),
                Ok(_) => {}
                Err(error) => return Err(refuse(&format!("is no expression: {error}"))),
            }
        }
        if config.journal.cap >= LEAST_CAP {
            return Ok(());
        }
        let what = "`journal.cap` has no room for a turn of one agent";
        Err(self.origins.refuse(&["journal", "cap"], what, "write \"64MiB\" or more, or remove the line"))
    }

    fn ledger(&self, config: &mut Config) -> Result<(), ConfigError> {
        let ledger = &mut config.ledger;
        let files = [
            ("password_file", &mut ledger.password_file),
            ("owner_password_file", &mut ledger.owner_password_file),
            ("checkpoint_key_file", &mut ledger.checkpoint_key_file),
        ];
        for (key, file) in files {
            if let Some(file) = file {
                self.path(&["ledger", key], file)?;
            }
        }
        if ledger.checkpoint_command.first().is_some_and(String::is_empty) {
            let what = "`ledger.checkpoint_command` names no program";
            let remedy = "write [\"PROGRAM\", \"ARGUMENT\"], or remove the line";
            return Err(self.origins.refuse(&["ledger", "checkpoint_command"], what, remedy));
        }
        self.not_zero(&["ledger", "checkpoint_every"], ledger.checkpoint_every)
    }

    fn telemetry(&self, config: &Config) -> Result<(), ConfigError> {
        let telemetry = &config.telemetry;
        let endpoint = &telemetry.otlp_endpoint;
        let is_url = |url: url::Url| matches!(url.scheme(), "http" | "https") && url.has_host();
        if !endpoint.is_empty() && !url::Url::parse(endpoint).is_ok_and(is_url) {
            let what = format!("{} is not where a collector could be", quoted(endpoint));
            let remedy = "write http://HOST:PORT or https://HOST:PORT; the usual port is 4317";
            return Err(self.origins.refuse(&["telemetry", "otlp_endpoint"], what, remedy));
        }
        if !(0.0..=1.0).contains(&telemetry.sample_ratio) {
            let what = "`telemetry.sample_ratio` is not between 0 and 1";
            return Err(self.origins.refuse(
                &["telemetry", "sample_ratio"],
                what,
                "write 1.0 for every trace",
            ));
        }
        self.not_zero(&["telemetry", "metrics_interval"], telemetry.metrics_interval)
    }

    fn approvals(&self, config: &Config) -> Result<(), ConfigError> {
        let approvals = &config.approvals;
        self.not_zero(&["approvals", "limit"], approvals.limit)?;
        self.count(&["approvals", "per_minute"], approvals.per_minute, 1)?;
        self.count(&["approvals", "pending"], approvals.pending, 1)?;
        let webhook = &approvals.notify.webhook;
        let is_url = |url: url::Url| matches!(url.scheme(), "http" | "https") && url.has_host();
        if !webhook.is_empty() && !url::Url::parse(webhook).is_ok_and(is_url) {
            let what = "`approvals.notify.webhook` is no address";
            let remedy = "write https://HOST/PATH, or remove the line";
            return Err(self.origins.refuse(&["approvals", "notify", "webhook"], what, remedy));
        }
        if approvals.notify.command.first().is_some_and(String::is_empty) {
            let what = "`approvals.notify.command` names no program";
            let remedy = "write [\"PROGRAM\", \"ARGUMENT\"], or remove the line";
            return Err(self.origins.refuse(&["approvals", "notify", "command"], what, remedy));
        }
        Ok(())
    }

    fn mcp_server(&self, name: &str, server: &McpServer) -> Result<(), ConfigError> {
        let (what, remedy) = if !good_name(name) {
            (
                format!("{} cannot be the name of an MCP server", quoted(name)),
                "use a-z, 0-9, _ and -".to_owned(),
            )
        } else if server.command.is_empty() == server.url.is_empty() {
            (
                format!("MCP server `{name}` needs a command or a url, and not both"),
                "give one of them".to_owned(),
            )
        } else if !["http", "sse"].contains(&server.transport.as_str()) {
            let what = format!("MCP servers are not spoken to by {}", quoted(&server.transport));
            (what, "write \"http\" or \"sse\"".to_owned())
        } else {
            return Ok(());
        };
        Err(self.origins.refuse_table(&["mcp", name], what, remedy))
    }

    fn agent(&self, name: &str, agent: &mut Agent) -> Result<(), ConfigError> {
        let at = |key| ["agents", name, key];
        if !good_name(name) {
            return Err(self.origins.refuse_table(
                &["agents", name],
                format!("{} cannot be the name of an agent", quoted(name)),
                format!(
                    "use at most {LONGEST_NAME} of a-z, 0-9, _ and -, and begin with a letter or a digit"
                ),
            ));
        }
        self.count(&at("warm"), agent.warm, 0)?;
        self.count(&at("warm_total"), agent.warm_total, 0)?;
        self.count(&at("max"), agent.max, 1)?;
        self.count(&at("sessions_per_process"), agent.sessions_per_process, 1)?;
        self.not_zero(&at("start_timeout"), agent.start_timeout)?;
        self.not_zero(&at("warm_max_age"), agent.warm_max_age)?;
        self.count(&["agents", name, "restart", "intensity"], agent.restart.intensity, 1)?;
        self.not_zero(&["agents", name, "restart", "within"], agent.restart.within)?;
        self.not_zero(&["agents", name, "restart", "backoff"], agent.restart.backoff)?;
        if agent.warm > agent.warm_total {
            return Err(self.origins.refuse_one_of(
                &[&at("warm"), &at("warm_total")],
                format!("warm = {} is more than warm_total = {}", agent.warm, agent.warm_total),
                "raise warm_total, which is the bound over all directories, or lower warm",
            ));
        }
        self.texts(name, agent)?;
        if !["auto", "none"].contains(&agent.profile.as_str()) && Profile::by_name(&agent.profile).is_none() {
            let known: Vec<_> = ["auto", "none"].into_iter().chain(Profile::names()).collect();
            let what = format!("there is no profile {}", quoted(&agent.profile));
            return Err(self.origins.refuse(
                &at("profile"),
                what,
                format!("write one of: {}", known.join(", ")),
            ));
        }
        self.containment(name, agent)?;
        self.count(&at("max_per_user"), agent.max_per_user, 1)?;
        for (key, expressions) in
            [("quota_errors", &agent.quota_errors), ("quota_answers", &agent.quota_answers)]
        {
            for (index, expression) in expressions.iter().flatten().enumerate() {
                if let Err(error) = regex::Regex::new(expression) {
                    let at = ["agents", name, key, &index.to_string()];
                    let error = error.to_string();
                    let why = error.lines().last().unwrap_or_default().trim_start_matches("error: ");
                    let what = format!("{} is no regular expression: {why}", quoted(expression));
                    return Err(self.origins.refuse(&at, what, "correct it, or remove it"));
                }
            }
        }
        if let Some(cwd) = &mut agent.cwd {
            self.path(&at("cwd"), cwd)?;
        }
        if let Some(roots) = &mut agent.roots {
            self.paths(&at("roots"), roots)?;
        }
        self.paths(&at("warm_keys"), &mut agent.warm_keys)?;
        self.files(name, agent)
    }

    /// Texts that become a command line or an environment.
    fn texts(&self, name: &str, agent: &mut Agent) -> Result<(), ConfigError> {
        let at = ["agents", name, "command"];
        self.no_nul(&at, &agent.command)?;
        if agent.command.starts_with('~') || agent.command.contains('/') {
            let mut program = PathBuf::from(&agent.command);
            self.path(&at, &mut program)?;
            // The text was UTF-8 and so is an expanded home, or it is refused.
            agent.command = program.into_os_string().into_string().map_err(|_| {
                self.origins.refuse(&at, "the home directory is not UTF-8", "write the path without `~`")
            })?;
        }
        for (index, arg) in agent.args.iter().enumerate() {
            self.no_nul(&["agents", name, "args", &index.to_string()], arg)?;
        }
        for (variable, value) in &agent.env {
            let at = ["agents", name, "env", variable];
            self.variable(&at, variable)?;
            self.no_nul(&at, value)?;
        }
        for (index, variable) in agent.env_from.iter().enumerate() {
            self.variable(&["agents", name, "env_from", &index.to_string()], variable)?;
        }
        Ok(())
    }

    fn files(&self, name: &str, agent: &mut Agent) -> Result<(), ConfigError> {
        if !agent.files.is_empty() && agent.home == Home::Inherit {
            return Err(self.origins.refuse_one_of(
                &[&["agents", name, "files"], &["agents", name, "home"]],
                "`files` needs a home of the agent's own to be copied into",
                "add home = \"isolated\" or home = \"user\", or remove `files`",
            ));
        }
        for (target, source) in &mut agent.files {
            let shown = target.to_string_lossy().into_owned();
            let at = ["agents", name, "files", &shown];
            self.no_nul(&at, &shown)?;
            let inside = target.components().all(|part| matches!(part, Component::Normal(_)));
            if shown.is_empty() || !inside || shown.starts_with('~') {
                return Err(self.origins.refuse_key(
                    &at,
                    format!("{} is not a path beneath the agent's home", quoted(&shown)),
                    "write where the file goes from the home on, without a leading `/` or `~`, and without `..`, \
                     as in \".config/tool.json\"",
                ));
            }
            self.path(&at, source)?;
        }
        Ok(())
    }

    /// Judged last, when every agent is known to be well-formed: a misspelt
    /// name shows itself as an agent without a command.
    fn commands(&self, agents: &BTreeMap<String, Agent>) -> Result<(), ConfigError> {
        if let Some(Agent { name, .. }) = agents.values().find(|agent| agent.command.is_empty()) {
            let what = format!("agent {} has no `command`", quoted(name));
            let at = ["agents", name, "command"];
            if self.origins.has(&at) {
                return Err(self.origins.refuse(&at, what, "write the name or the path of a program"));
            }
            let others = agents.values().filter(|other| !other.command.is_empty());
            let hint = match nearest(name, others.map(|other| other.name.as_str())) {
                Some(guess) => {
                    format!("did you mean `agents.{guess}`? a new agent needs command = \"PROGRAM\"")
                }
                None => "add command = \"PROGRAM\"".to_owned(),
            };
            return Err(self.origins.refuse_table(&["agents", name], what, hint));
        }
        Ok(())
    }

    fn default(&self, config: &Config) -> Result<(), ConfigError> {
        let name = config.default.as_str();
        let Some(agent) = config.agents.get(name) else {
            let known: Vec<_> = config.agents.keys().map(String::as_str).collect();
            let list = known.join(", ");
            let hint = match nearest(name, known) {
                Some(guess) => format!("did you mean \"{guess}\"? the agents are: {list}"),
                None => format!("the agents are: {list}"),
            };
            return Err(self.origins.refuse(
                &["default"],
                format!("`default` names {}, which is no agent", quoted(name)),
                hint,
            ));
        };
        if !agent.enabled {
            return Err(self.origins.refuse_one_of(
                &[&["default"], &["agents", name, "enabled"]],
                format!("`default` names {}, which is not enabled", quoted(name)),
                "choose another `default`, or enable it",
            ));
        }
        Ok(())
    }

    fn count(&self, at: &[&str], value: usize, least: usize) -> Result<(), ConfigError> {
        let key = at.join(".");
        if value < least {
            let what = format!("{} must not be 0", quoted(&key));
            return Err(self.origins.refuse(at, what, format!("write {least} or more, or remove the line")));
        }
        if value > MOST {
            let what = format!("{} is too large", quoted(&key));
            return Err(self.origins.refuse(at, what, format!("write at most {MOST}")));
        }
        Ok(())
    }

    fn not_zero(&self, at: &[&str], value: Duration) -> Result<(), ConfigError> {
        if !value.is_zero() {
            return Ok(());
        }
        let what = format!("{} must not be zero", quoted(&at.join(".")));
        Err(self.origins.refuse(at, what, "write a longer time, as in \"30s\", or remove the line"))
    }

    fn variable(&self, at: &[&str], name: &str) -> Result<(), ConfigError> {
        if !name.is_empty() && !name.contains(['=', '\0']) {
            return Ok(());
        }
        let what = format!("{} cannot be the name of an environment variable", quoted(name));
        Err(self.origins.refuse_key(at, what, "write the bare name, as in \"API_KEY\""))
    }

    fn no_nul(&self, at: &[&str], text: &str) -> Result<(), ConfigError> {
        if !text.contains('\0') {
            return Ok(());
        }
        let what = format!("{} contains a NUL character", quoted(&at.join(".")));
        Err(self.origins.refuse(at, what, "remove it: no program can be given one"))
    }

    fn paths(&self, at: &[&str], paths: &mut [PathBuf]) -> Result<(), ConfigError> {
        for (index, path) in paths.iter_mut().enumerate() {
            let index = index.to_string();
            let at: Vec<&str> = at.iter().copied().chain([index.as_str()]).collect();
            self.path(&at, path)?;
        }
        Ok(())
    }

    /// Expands `~` and refuses what is not absolute.
    fn path(&self, at: &[&str], path: &mut PathBuf) -> Result<(), ConfigError> {
        let shown = quoted(&path.to_string_lossy());
        self.no_nul(at, &path.to_string_lossy())?;
        if let Ok(rest) = path.strip_prefix("~") {
            let Some(home) = self.home else {
                return Err(self.origins.refuse(
                    at,
                    format!("{shown} needs the home directory, and HOME is not set to an absolute path"),
                    "set HOME, or write the path from `/` on",
                ));
            };
            // Joined part by part: an empty rest must not leave a trailing slash.
            *path = home.components().chain(rest.components()).collect();
        }
        if !path.is_absolute() {
            let what = if shown.starts_with("`~") {
                format!("{shown} names another user's home, which is not looked up")
            } else {
                format!("{shown} is a relative path")
            };
            return Err(self.origins.refuse(at, what, "write it from `/` or from `~/` on"));
        }
        if path.components().any(|part| part == Component::ParentDir) {
            let what = format!("{shown} contains `..`");
            return Err(self.origins.refuse(at, what, "write the path that is meant, without `..`"));
        }
        Ok(())
    }
}

fn good_name(name: &str) -> bool {
    let alphanumeric = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    name.len() <= LONGEST_NAME
        && name.starts_with(alphanumeric)
        && name.chars().all(|c| alphanumeric(c) || c == '_' || c == '-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_agents() {
        for name in ["a", "0", "claude", "my-agent_2", &"x".repeat(64)] {
            assert!(good_name(name), "{name}");
        }
        for name in ["", "-a", "_a", "A", "a b", "a.b", "a/b", "é", &"x".repeat(65)] {
            assert!(!good_name(name), "{name}");
        }
    }
}
