//! Which sessions of agents a session has had: where it can go back to, and what
//! each of them has not heard.

use serde::{Deserialize, Serialize};

pub(super) const STEP: &str = "ALTER TABLE sessions ADD COLUMN bound TEXT NOT NULL DEFAULT '[]'";

/// A session of an agent's own that a session has used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bound {
    /// The agent.
    pub agent: String,
    /// The agent's own id of it.
    pub session: String,
    /// The how many-th it is, from 1.
    pub number: u32,
    /// It knows the conversation up to this frame.
    pub seen: u64,
}

pub(super) fn written(bound: &[Bound]) -> String {
    serde_json::to_string(bound).unwrap_or_else(|_| "[]".into())
}

/// What cannot be read is as good as lost: the session is then handed over.
pub(super) fn read(text: &str) -> Vec<Bound> {
    serde_json::from_str(text).unwrap_or_default()
}
