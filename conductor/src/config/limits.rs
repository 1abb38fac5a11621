//! How much users and teams may use.

use std::collections::BTreeMap;

use serde::Deserialize;

/// Limits for everyone, for some users and for teams. What is not given is not
/// limited.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Sessions that one user may have open.
    pub sessions: Option<u64>,
    /// Processes that the sessions of one user may have.
    pub processes: Option<u64>,
    /// Prompts of one user in a minute.
    pub prompts_per_minute: Option<u64>,
    /// Tokens that one user's turns may take in a day.
    pub tokens_per_day: Option<u64>,
    /// Money that one user's turns may take in a day.
    pub cost_per_day: Option<f64>,
    /// For these users instead, key by key.
    #[serde(default)]
    pub users: BTreeMap<String, Quota>,
    /// For all in a team together.
    #[serde(default)]
    pub teams: BTreeMap<String, Quota>,
}

/// How much somebody may use.
#[derive(Debug, Clone, Copy, PartialEq, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Quota {
    /// Sessions that may be open.
    pub sessions: Option<u64>,
    /// Processes that these may have.
    pub processes: Option<u64>,
    /// Prompts in a minute.
    pub prompts_per_minute: Option<u64>,
    /// Tokens in a day.
    pub tokens_per_day: Option<u64>,
    /// Money in a day.
    pub cost_per_day: Option<f64>,
}

impl Limits {
    /// What holds for every user.
    fn usual(&self) -> Quota {
        let Self { sessions, processes, prompts_per_minute, tokens_per_day, cost_per_day, .. } = *self;
        Quota { sessions, processes, prompts_per_minute, tokens_per_day, cost_per_day }
    }

    /// What holds for a user.
    pub fn of_user(&self, name: &str) -> Quota {
        let (own, usual) = (self.users.get(name).copied().unwrap_or_default(), self.usual());
        Quota {
            sessions: own.sessions.or(usual.sessions),
            processes: own.processes.or(usual.processes),
            prompts_per_minute: own.prompts_per_minute.or(usual.prompts_per_minute),
            tokens_per_day: own.tokens_per_day.or(usual.tokens_per_day),
            cost_per_day: own.cost_per_day.or(usual.cost_per_day),
        }
    }

    /// What holds for a team.
    pub fn of_team(&self, name: &str) -> Quota {
        self.teams.get(name).copied().unwrap_or_default()
    }
}
