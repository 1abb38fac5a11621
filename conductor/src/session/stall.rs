//! Turns that stall: an agent that shows no sign of work for long may be stuck,
//! and nobody may be looking.

use serde_json::json;
use tokio::time::Instant;
use tracing::warn;

use super::Session;
use crate::record::note;

impl Session {
    /// When the running turn counts as stalled, or is cancelled for it. While
    /// somebody else is asked something, it is not the agent that is slow.
    pub(super) fn stall_at(&self) -> Option<Instant> {
        let timeout = self.open.berth.stall_timeout;
        let is_watched = !timeout.is_zero()
            && self.turn.as_ref().is_some_and(|turn| turn.cancelled.is_none())
            && self.asks.is_empty()
            && self.host.is_idle();
        match self.is_stalled {
            _ if !is_watched => None,
            false => Some(self.heard + timeout),
            true => self.open.berth.cancels_stalled.then(|| self.heard + 2 * timeout),
        }
    }

    /// It does: everyone is told, and by the second time it is cancelled.
    pub(super) fn turn_stalls(&mut self) {
        let after = self.heard.elapsed();
        let words = if self.is_stalled {
            warn!(after_s = after.as_secs(), "the turn has stalled; it is cancelled");
            self.cancel_unasked();
            "The turn is cancelled."
        } else {
            warn!(after_s = after.as_secs(), "the turn has stalled");
            "The agent may be stuck; the turn can be cancelled."
        };
        self.recorder
            .note(note::TURN_STALLED, &json!({ "after": after.as_secs(), "cancelled": self.is_stalled }));
        self.is_stalled = true;
        let text = format!("The agent has shown no sign of work for {} s. {words}", after.as_secs());
        self.say_notice("warning", "The turn has stalled", &text);
    }
}
