//! What the rules say. Pure: the same facts and rules, the same verdict.

use std::path::PathBuf;

use serde::Serialize;

use super::{Effect, Policy, SubAction};

/// Who asks, and where.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Subject {
    /// The session's owner.
    pub user: String,
    /// Their teams.
    pub teams: Vec<String>,
    /// Their role; empty if it is not known.
    pub role: String,
    /// The agent.
    pub agent: String,
    /// The session's mode, if it has one.
    pub mode: Option<String>,
    /// The session's model, if it is known.
    pub model: Option<String>,
    /// The session's directory.
    pub cwd: PathBuf,
}

/// What the rules say about one sub-action.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Judged {
    /// What would be done.
    #[serde(flatten)]
    pub action: SubAction,
    /// The outcome.
    pub decision: Effect,
    /// Ids of the rules behind it; none if no rule matched.
    pub rules: Vec<String>,
    /// Why, in words.
    pub reason: String,
}

/// What the rules say about all of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// The strictest outcome.
    pub decision: Effect,
    /// The rule that decided; none if no rule matched.
    pub rule: Option<String>,
    /// All rules that matched.
    pub rules: Vec<String>,
    /// Why, in words, for the agent and for people.
    pub reason: String,
    /// Every sub-action with its own outcome; those that a rule has found in the words of a
    /// command follow it.
    pub sub_actions: Vec<Judged>,
}

impl Policy {
    /// Judges sub-actions.
    pub fn evaluate(&self, _subject: &Subject, actions: &[SubAction]) -> Verdict {
        let judged = |action: &SubAction| Judged {
            action: action.clone(),
            decision: Effect::Ask,
            rules: Vec::new(),
            reason: "no rule allows it".into(),
        };
        Verdict {
            decision: Effect::Ask,
            rule: None,
            rules: Vec::new(),
            reason: "no rule allows it".into(),
            sub_actions: actions.iter().map(judged).collect(),
        }
    }
}
