//! Routes that lead nowhere, or are for nothing.

use std::path::PathBuf;

use super::{Checker, Config, ConfigError, nearest, quoted};
use crate::routes::{Compiled, check_pattern};

impl Checker<'_> {
    /// Refuses a route that cannot be followed, and expands `~` in its
    /// directories.
    pub(super) fn route(&self, config: &mut Config, index: usize) -> Result<(), ConfigError> {
        let number = index.to_string();
        let at = |key| ["route", number.as_str(), key];
        let mut route = config.route[index].clone();
        if route.to.is_empty() {
            return Err(self.origins.refuse(&at("to"), "this route leads nowhere", "name an agent"));
        }
        for (key, agents) in [("to", &route.to), ("fallback", &route.fallback)] {
            for name in agents {
                self.destination(config, &at(key), name)?;
            }
        }
        for pattern in &mut route.cwd {
            if pattern.starts_with('~') {
                let mut path = PathBuf::from(pattern.as_str());
                self.path(&at("cwd"), &mut path)?;
                *pattern = path.to_string_lossy().into_owned();
            }
            if !pattern.starts_with('/') && !pattern.starts_with("**") {
                let what = format!("{} is not a path from `/` on", quoted(pattern));
                return Err(self.origins.refuse(&at("cwd"), what, "write it from `/` or from `~/` on"));
            }
        }
        let lists = [
            ("model", &route.model),
            ("mode", &route.mode),
            ("user", &route.user),
            ("team", &route.team),
            ("cwd", &route.cwd),
        ];
        for (key, patterns) in lists {
            for pattern in patterns {
                if let Err(why) = check_pattern(pattern) {
                    let what = format!("{} is no pattern: {why}", quoted(pattern));
                    return Err(self.origins.refuse(&at(key), what, "`*` stands for anything"));
                }
            }
        }
        let earlier = config.route[..index].iter().filter_map(|route| route.name.as_ref());
        if let Some(name) = &route.name
            && (name.is_empty()
                || name.parse::<usize>().is_ok()
                || earlier.into_iter().any(|other| other == name))
        {
            let what = format!("{} cannot be the name of this route", quoted(name));
            return Err(self.origins.refuse(&at("name"), what, "give each route a name of its own, or none"));
        }
        route.compiled = Compiled::of(&route);
        config.route[index] = route;
        Ok(())
    }

    fn destination(&self, config: &Config, at: &[&str], name: &str) -> Result<(), ConfigError> {
        if let Some(label) = name.strip_prefix("label:") {
            let has = |(key, value): (&str, &str)| {
                config.agents.values().any(|agent| agent.labels.get(key).is_some_and(|label| label == value))
            };
            if label.split_once('=').is_some_and(has) {
                return Ok(());
            }
            let what = format!("no agent has the label {}", quoted(label));
            return Err(self.origins.refuse(at, what, "write \"label:KEY=VALUE\" with a label of an agent"));
        }
        if config.agents.contains_key(name) {
            return Ok(());
        }
        let known: Vec<&str> = config.agents.keys().map(String::as_str).collect();
        let list = known.join(", ");
        let hint = match nearest(name, known) {
            Some(guess) => format!("did you mean \"{guess}\"? the agents are: {list}"),
            None => format!("the agents are: {list}"),
        };
        Err(self.origins.refuse(at, format!("there is no agent {}", quoted(name)), hint))
    }
}
