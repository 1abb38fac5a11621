//! Secrets in a file that everyone on the machine may read.

use super::{Checker, Config, ConfigError, quoted};

/// Words in the names of variables and headers that hold secrets.
const SECRET: &[&str] = &["AUTHORIZATION", "COOKIE", "KEY", "PASSWORD", "SECRET", "TOKEN"];

impl Checker<'_> {
    /// Refuses secrets that stand in such a file. What comes from the environment is
    /// its user's alone.
    pub(super) fn exposed(&self, config: &Config) -> Result<(), ConfigError> {
        if !self.origins.file.as_ref().is_some_and(|file| file.is_open) {
            return Ok(());
        }
        let mut paths = Vec::new();
        for (key, url) in [("url", &config.ledger.url), ("owner_url", &config.ledger.owner_url)] {
            if url.has_password() {
                paths.push(vec!["ledger", key]);
            }
        }
        if !config.approvals.notify.webhook.is_empty() {
            paths.push(vec!["approvals", "notify", "webhook"]);
        }
        if config.feed.is_address() {
            paths.push(vec!["feed", "to"]);
        }
        for (name, agent) in &config.agents {
            let secret = agent.env.keys().filter(|name| is_secret(name));
            paths.extend(secret.map(|variable| vec!["agents", name, "env", variable]));
        }
        for (name, server) in &config.mcp {
            for (kind, all) in [("env", &server.env), ("headers", &server.headers)] {
                let secret = all.keys().filter(|name| is_secret(name));
                paths.extend(secret.map(|key| vec!["mcp", name, kind, key]));
            }
        }
        match paths.iter().find_map(|path| Some((path.join("."), self.origins.in_file(path)?))) {
            None => Ok(()),
            Some((key, place)) => Err(ConfigError {
                place,
                what: format!(
                    "{} counts as a secret, and every user of this machine may read the file",
                    quoted(&key)
                ),
                hint: "take that right away (chmod o-r FILE), or keep the secret elsewhere: `ledger.password_file`, \
                       `env_from`, [secrets], a variable CONDUCTOR_TABLE__KEY"
                    .into(),
            }),
        }
    }
}

fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    SECRET.iter().any(|word| name.contains(word))
}
