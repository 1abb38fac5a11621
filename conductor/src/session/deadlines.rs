//! What a session gives others time for, and what becomes of it when that is over.

use tokio::time::Instant;
use tracing::{debug, warn};

use super::{Cause, LEAD, Purpose, Request, Session, SessionEvent, binding::SILENCE, denied, front};
use crate::metrics::Branch;

impl Session {
    /// When something is due next.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let turn = self.turn.as_ref().and_then(|turn| turn.cancelled);
        let asks = self.asks.iter().filter_map(|ask| ask.withdrawn).min();
        // While something waits for the disk, the editor is not to blame.
        let stalled = self.stalled_since.filter(|_| front(&self.to_editor).1.is_none());
        let stall = stalled.map(|since| since + self.open.editor_timeout);
        let deserted = self.seats.deserted.map(|since| since + self.open.detached_ttl);
        let dues = [turn, asks, stall, deserted, self.way_due(), self.setting_due(), self.answers_due()];
        dues.into_iter().flatten().min()
    }

    /// By when the agent must have said something to what it is to be set to: prompts
    /// wait for that.
    fn setting_due(&self) -> Option<Instant> {
        let is_set = |request: &Request| matches!(request.purpose, Purpose::SetBack | Purpose::Wish);
        self.requests.iter().any(is_set).then(|| self.heard + SILENCE)
    }

    /// It has not.
    fn setting_overdue(&mut self) {
        let silence = SILENCE.as_secs();
        self.requests.drain(|request| request.purpose == Purpose::Wish);
        if !self.requests.drain(|request| request.purpose == Purpose::SetBack).is_empty() {
            let text = format!("the agent did not leave a mode that is denied for {silence} s");
            return self.end_forbidden_with(&denied(None, &text));
        }
        self.open.metrics.best_effort(Branch::SettingUnanswered);
        warn!(silence, "the agent does not answer what it is to be set to; prompts go on without");
    }

    /// Something was due.
    pub(super) async fn deadline_passed(&mut self) {
        let now = Instant::now();
        if self.stalled_since.is_some_and(|since| since + self.open.editor_timeout <= now) {
            debug!("the editor does not take its frames; it is dropped");
            self.link.events.send(SessionEvent::Stalled).await.ok();
            self.left(LEAD).await;
        }
        if self.way_due().is_some_and(|due| due <= now) {
            self.way_overdue();
        }
        if self.setting_due().is_some_and(|due| due <= now) {
            self.setting_overdue();
        }
        self.answer_asks(|ask| ask.withdrawn.is_some_and(|due| due <= now));
        if self.answers_due().is_some_and(|due| due <= now) {
            self.deny_overdue(now);
        }
        if self.turn.as_ref().and_then(|turn| turn.cancelled).is_some_and(|due| due <= now) {
            // The agent had its chance; the editor gets its one answer now.
            let grace = self.open.cancel_grace;
            if let Some(binding) = &self.binding {
                binding.process().stop(Cause::CancelIgnored(grace));
            }
            self.end_turn_cancelled();
        }
    }
}
