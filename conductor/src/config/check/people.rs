//! What is said of users: where their secrets come from, and who commits.

use std::path::PathBuf;

use super::{
    super::{Config, GitIdentity, Secrets},
    Checker,
};
use crate::{
    config::error::{ConfigError, quoted},
    identity::check_name,
};

impl Checker<'_> {
    pub(super) fn secrets(&self, config: &mut Config) -> Result<(), ConfigError> {
        let secrets = &mut config.secrets;
        if let Some(dir) = &mut secrets.dir {
            self.path(&["secrets", "dir"], dir)?;
        }
        if let Some(program) = secrets.command.first_mut() {
            let at = ["secrets", "command", "0"];
            // Looked for nowhere: what prints secrets is named exactly.
            let mut path = PathBuf::from(&*program);
            self.path(&at, &mut path)?;
            *program = path.into_os_string().into_string().map_err(|_| {
                self.origins.refuse(&at, "the home directory is not UTF-8", "write the path without `~`")
            })?;
        }
        for (index, word) in secrets.command.iter().enumerate() {
            self.no_nul(&["secrets", "command", &index.to_string()], word)?;
        }
        self.not_zero(&["secrets", "timeout"], secrets.timeout)?;
        self.not_zero(&["secrets", "max_age"], secrets.max_age)?;
        if secrets.dir.is_some() && !secrets.command.is_empty() {
            return Err(self.origins.refuse_one_of(
                &[&["secrets", "command"], &["secrets", "dir"]],
                "secrets come from a directory or from a command, and both are given",
                "remove one of them; a command can read the directory, too",
            ));
        }
        Ok(())
    }

    pub(super) fn people(&self, config: &Config) -> Result<(), ConfigError> {
        if let Some(git) = &config.git {
            self.git(&["git"], git)?;
        }
        for (name, user) in &config.users {
            let at = ["users", name.as_str()];
            if let Err(why) = check_name("user", name) {
                return Err(self.origins.refuse_table(&at, why, "write the name as the user's token has it"));
            }
            if let Some(git) = &user.git {
                self.git(&["users", name, "git"], git)?;
            }
        }
        Ok(())
    }

    /// What git would cut out of a name or an address is better not written there.
    fn git(&self, at: &[&str], git: &GitIdentity) -> Result<(), ConfigError> {
        for (key, value) in [("name", &git.name), ("email", &git.email)] {
            let at: Vec<&str> = at.iter().copied().chain([key]).collect();
            let is_odd = |c: char| c.is_control() || matches!(c, '<' | '>');
            if value.trim().is_empty() || value.contains(is_odd) {
                let what = format!("{} cannot be who commits", quoted(value));
                let remedy = "write a name and an address without < and >; {user} stands for the user's name";
                return Err(self.origins.refuse(&at, what, remedy));
            }
        }
        Ok(())
    }

    /// What does not go together with processes that belong to one user.
    pub(super) fn personal(&self, config: &Config) -> Result<(), ConfigError> {
        let of_agents = config.agents.values().filter_map(|agent| agent.roots.as_ref());
        let mut roots = of_agents.flatten().chain(&config.roots);
        if let Some(dir) = &config.secrets.dir
            && let Some(root) = roots.find(|root| dir.starts_with(root))
        {
            let what = format!(
                "agents may read what is beneath {}, and the secrets are to be there",
                quoted(&root.to_string_lossy())
            );
            let remedy = "keep secrets outside of all `roots`, as in /etc/conductor/secrets";
            return Err(self.origins.refuse_one_of(&[&["secrets", "dir"], &["roots"]], what, remedy));
        }
        for (name, agent) in config.agents.iter().filter(|(_, agent)| agent.is_personal()) {
            let has_source = config.secrets.dir.is_some() || !config.secrets.command.is_empty();
            if agent.secrets != Secrets::Off && !has_source {
                return Err(self.origins.refuse(
                    &["agents", name, "secrets"],
                    format!(
                        "agent {} is to get secrets, and there is nowhere to get them from",
                        quoted(name)
                    ),
                    "set `dir` or `command` in [secrets], or remove `secrets` here",
                ));
            }
            if !agent.warm_keys.is_empty() {
                return Err(self.origins.refuse_one_of(
                    &[&["agents", name, "warm_keys"], &["agents", name, "home"]],
                    "no process can be kept warm from the start for users who have not come yet",
                    "remove `warm_keys`; directories are kept warm for each user who has used them",
                ));
            }
        }
        Ok(())
    }
}
