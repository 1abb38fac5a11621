//! What rules leave to people: how long it waits, how much of it there may be, and who
//! is told.

use std::{fmt, path::PathBuf, time::Duration};

use serde::Deserialize;

use super::duration;

/// How people are asked.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Approvals {
    /// How long a question waits at most, whoever is there; then it is denied. A rule
    /// may say less.
    #[serde(with = "duration")]
    pub limit: Duration,
    /// Questions of one session within a minute; more are denied.
    pub per_minute: usize,
    /// Questions of one session that wait at once; more are denied.
    pub pending: usize,
    /// How long what somebody has rejected is rejected again without asking, if no
    /// prompt comes before that.
    #[serde(with = "duration")]
    pub repeat_deny: Duration,
    /// How approvers are told.
    #[serde(default)]
    pub notify: Notify,
}

/// How approvers are told of a question.
#[derive(Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Notify {
    /// A program, with its arguments, that is run for each.
    #[serde(default)]
    pub command: Vec<String>,
    /// An address that each is sent to; whoever knows it can write there.
    #[serde(default)]
    pub webhook: String,
    /// A CA for that address, if it is none that the host trusts.
    #[serde(default)]
    pub ca_file: Option<PathBuf>,
}

/// The address is a secret, as a rule.
impl fmt::Debug for Notify {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Notify")
            .field("command", &self.command)
            .field("webhook", &!self.webhook.is_empty())
            .finish_non_exhaustive()
    }
}
