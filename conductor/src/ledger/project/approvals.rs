//! Questions that people were asked, and what became of them.

use uuid::Uuid;

use super::{
    LINE, NAME, Step,
    json::{column, int, pick, short},
    notes::id,
};
use crate::ledger::table::{APPROVALS, DECISIONS, Fact, Value};

/// Most questions that are open at once; a session has fewer than it may have requests.
const MOST_OPEN: usize = 1024;

/// A question without an answer.
#[derive(Debug)]
pub struct Open {
    id: Uuid,
    /// The request's frame.
    seq: i64,
    asked_us: i64,
}

impl Step<'_> {
    /// People are asked.
    pub(super) fn asked(&mut self, params: &str) {
        let [approval, seq, user, approvers, terms] =
            pick(params, ["approval", "seq", "user", "approvers", "terms"]);
        let [is_shown, rule, reason, due] = pick(params, ["isShown", "rule", "reason", "dueUs"]);
        let (Some(id), Some(seq)) = (approval.and_then(id), seq.and_then(int)) else { return };
        let at = self.at();
        let is_shown = is_shown != Some("false");
        let mut fact = self.row(APPROVALS, [id.into()]);
        fact.put("session_id", self.id());
        fact.put("seq", seq);
        fact.put("for_user", short(user, NAME));
        fact.put("rule", short(rule, NAME));
        fact.put("reason", short(reason, LINE));
        fact.put("approvers", short(approvers, LINE));
        fact.put("terms", column(terms));
        fact.put("is_shown", Value::Bool(is_shown));
        fact.put("asked_us", at);
        fact.put("due_us", due.and_then(int));
        self.facts.push(fact);
        if !is_shown {
            // Nothing else tells when it began to wait.
            self.facts.push(self.row(DECISIONS, [self.id().into(), seq.into()]).set("asked_us", at));
        }
        if self.state.approvals.len() >= MOST_OPEN {
            self.state.approvals.remove(0);
        }
        self.state.approvals.push(Open { id, seq, asked_us: at });
    }

    /// Somebody has answered, or nobody has in time.
    pub(super) fn answered_by_people(&mut self, params: &str) {
        let [approval, outcome, by, via, reason] =
            pick(params, ["approval", "outcome", "by", "via", "reason"]);
        let Some(id) = approval.and_then(id) else { return };
        let Some(at) = self.state.approvals.iter().position(|open| open.id == id) else { return };
        let open = self.state.approvals.remove(at);
        let (outcome, by, via) = (short(outcome, NAME), short(by, NAME), short(via, NAME));
        if via.as_deref() != Some("editor") {
            let decision = match outcome.as_deref() {
                Some("allowed") => "allow",
                Some("rejected" | "timed_out") => "reject",
                _ => "cancelled",
            };
            let mut fact = Fact::new(DECISIONS, [self.id().into(), open.seq.into()]);
            fact.put("decision", decision);
            fact.put("decided_by", if by.is_some() { "approver" } else { "conductor" });
            fact.put("decided_user", by.clone());
            fact.put("decided_us", self.at());
            fact.put("duration_us", self.at().saturating_sub(open.asked_us).max(0));
            self.facts.push(fact);
        }
        let mut fact = self.ended_approval(&open, outcome.as_deref().unwrap_or("cancelled"));
        fact.put("answered_by", by);
        fact.put("answered_via", via);
        fact.put("answer_reason", short(reason, LINE).filter(|reason| !reason.is_empty()));
        self.facts.push(fact);
    }

    /// Nobody will answer what is still open.
    pub(super) fn interrupt_approvals(&mut self, why: &str) {
        for open in std::mem::take(&mut self.state.approvals) {
            let fact = self.ended_approval(&open, "interrupted").set("answer_reason", why.to_owned());
            self.facts.push(fact);
        }
    }

    fn ended_approval(&self, open: &Open, outcome: &str) -> Fact {
        let waited = self.at().saturating_sub(open.asked_us).max(0);
        let fact = Fact::new(APPROVALS, [open.id.into()]).set("ended_us", self.at());
        fact.set("duration_us", waited).set("outcome", outcome.to_owned())
    }
}
