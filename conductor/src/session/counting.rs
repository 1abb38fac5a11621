//! What a session counts, and its part in what all sessions have under way.

use tokio::time::Instant;

use super::{Ask, Session, flight::OfferKind, judging::Ruling};
use crate::{
    metrics::{Answered, Decided, Metrics, Part, TurnEnd},
    policy::Effect,
};

/// A session's part in the levels of all.
#[derive(Debug)]
pub(super) struct Levels {
    _open: Part,
    prompts: Part,
    to_agent: Part,
    to_editor: Part,
    questions: Part,
}

impl Levels {
    pub(super) fn new(metrics: &Metrics) -> Self {
        Self {
            _open: metrics.part(|counts| &counts.sessions).held(),
            prompts: metrics.part(|counts| &counts.prompts_waiting),
            to_agent: metrics.part(|counts| &counts.to_agent_waiting),
            to_editor: metrics.part(|counts| &counts.to_editor_waiting),
            questions: metrics.part(|counts| &counts.questions_open),
        }
    }
}

impl Session {
    /// Shows what waits. Four comparisons, as long as nothing has changed.
    pub(super) fn show_levels(&mut self) {
        self.levels.prompts.set(self.queued.len() + self.waiting.len());
        self.levels.to_agent.set(self.to_agent.len());
        self.levels.to_editor.set(self.to_editor.len());
        self.levels.questions.set(self.asks.len());
    }

    /// A turn has ended.
    pub(super) fn count_turn(&mut self, began: Instant, end: TurnEnd) {
        self.traced.ended(end);
        let metrics = &self.open.metrics;
        metrics.turns.of(end).one();
        metrics.turn_seconds.took(began.elapsed());
    }

    /// The policy has decided.
    pub(super) fn count_ruling(&self, ruling: &Ruling) {
        let outcome = match ruling.effect {
            Effect::Allow if ruling.is_granted => Decided::Granted,
            Effect::Allow => Decided::Allow,
            Effect::Ask => Decided::Ask,
            Effect::Deny => Decided::Deny,
        };
        let metrics = &self.open.metrics;
        metrics.decisions.of(outcome).one();
        metrics.decision_seconds.took_us(ruling.took_us);
    }

    /// People have answered a question, or have not.
    pub(super) fn count_answer(&self, ask: &Ask, chosen: Option<OfferKind>) {
        self.count_answered(
            ask,
            match chosen {
                Some(OfferKind::AllowOnce | OfferKind::AllowAlways) => Answered::Allowed,
                Some(_) => Answered::Rejected,
                None => Answered::Cancelled,
            },
        );
    }

    pub(super) fn count_answered(&self, ask: &Ask, answered: Answered) {
        let metrics = &self.open.metrics;
        metrics.answers.of(answered).one();
        metrics.answer_seconds.took(ask.asked.elapsed());
    }
}
