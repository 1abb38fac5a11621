//! What follows from an answer to a question about permission.

use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    Ask, Session,
    approving::{By, EDITOR},
    asking::{chosen_answer, pick, rejection, selected},
    flight::{Held, OfferKind},
    handle::Answered,
    judging::{Judged, NO_ALLOW_ONCE, denied},
};
use crate::{
    acp::{self, Refusal, code},
    approvals::How,
    frame::{Frame, Kind},
    identity::Caller,
    journal::Class,
    metrics,
    pending::WireId,
    record::{Destination, Origin, note},
};

/// What somebody has said to a question.
#[derive(Debug)]
pub(super) struct Reply {
    /// What that means; nothing, if it is none of the answers on offer.
    kind: Option<OfferKind>,
    /// The option that it names.
    option: Option<String>,
    /// It is an error.
    error: Option<Frame>,
}

impl Reply {
    /// An answer as an editor gives it.
    pub(super) fn heard(ask: &Ask, answer: &Frame) -> Self {
        let option = selected(answer);
        let offer = option.as_ref().and_then(|id| ask.options.iter().find(|offer| offer.id == *id));
        let error = (answer.peek().kind == Kind::Error).then(|| answer.clone());
        Self { kind: offer.map(|offer| offer.kind), option, error }
    }

    /// What an approver has decided. It is what they said, whatever the agent calls its options.
    pub(super) fn decided(allow: bool, option: Option<String>) -> Self {
        let kind = if allow { OfferKind::AllowOnce } else { OfferKind::RejectOnce };
        Self { kind: Some(kind), option, error: None }
    }

    pub(super) fn allows(&self) -> bool {
        matches!(self.kind, Some(OfferKind::AllowOnce | OfferKind::AllowAlways))
    }

    fn rejects(&self) -> bool {
        matches!(self.kind, Some(OfferKind::RejectOnce | OfferKind::RejectAlways))
    }

    fn how(&self) -> How {
        match (self.allows(), self.rejects()) {
            (true, _) => How::Allowed,
            (_, true) => How::Rejected,
            _ => How::Cancelled,
        }
    }
}

impl Session {
    /// Somebody has answered a permission request.
    pub(super) fn settle_permission(&mut self, mut ask: Ask, reply: &Reply, by: &By) {
        self.heard = Instant::now();
        let changed = if reply.allows() { self.changed_meanwhile(&ask) } else { None };
        if let Some(refusal) = changed {
            return self.refuse_changed(ask, &refusal, by);
        }
        self.count_answer(&ask, reply.kind);
        self.end_approval(&mut ask, reply.how(), Some(by), "");
        if let Some(ruling) = ask.ruling.as_ref().filter(|_| reply.rejects()) {
            self.judge.patience.rejected(ruling.asked(), &by.user, std::time::Instant::now());
        }
        if reply.allows() {
            self.remember_allowed(&ask, reply);
        }
        match ask.held {
            Some(Held::Request(frame)) if reply.allows() => {
                // What people have seen and allowed, not what is there by now.
                let judged = ask.ruling.as_ref().map(Judged::of).unwrap_or_default();
                self.go_on_late(&frame, judged);
            }
            Some(Held::Opening) if reply.allows() => self.open_allowed(),
            Some(Held::Opening) => self.refuse_opening(&denied(None, "the MCP servers were not allowed")),
            Some(Held::Request(frame)) => {
                let refusal = match (reply.rejects(), &reply.error, &reply.option) {
                    (false, None, None) => Refusal::new(code::CANCELLED, "nobody allowed it"),
                    _ => denied(None, &by.declined()),
                };
                self.say_agent(refusal.frame(frame.get(frame.peek().id)), Class::Stop);
            }
            None => self.answer_permission(&ask, reply, by),
        }
    }

    /// An answer that came without a seat.
    pub(super) fn answer_by_name(&mut self, caller: &Caller, request: u64, option: Option<&str>) -> Answered {
        let Some(id) = WireId::parse(request.to_string().as_bytes()).filter(|id| id.slot == self.link.slot)
        else {
            return Answered::Unknown;
        };
        let Some(ask) = self.asks.get_mut(id.number).filter(|ask| ask.frame.is_some() && ask.is_shown) else {
            let known = self.seats.answered.iter().rev().find(|(number, _)| *number == id.number);
            return match known {
                Some((_, by)) => Answered::TooLate { by: by.clone() },
                None => Answered::Unknown,
            };
        };
        let approval = ask.approval.as_ref().map(|open| open.approval().clone());
        let allows = option.is_some_and(|option| ask.allows(option));
        if let Some(approval) = approval.filter(|_| allows)
            && let Some(why) = self.may_not_answer(id.number, &approval, caller)
        {
            return Answered::NotTheirs(why);
        }
        if allows && let Some(why) = self.journal.refusing() {
            return Answered::NotRecorded(why);
        }
        let Some(ask) = self.asks.get_mut(id.number) else { return Answered::Unknown };
        let outcome = match option {
            Some(option) if ask.offers(option) => json!({ "outcome": "selected", "optionId": option }),
            Some(_) => return Answered::Unknown,
            None => json!({ "outcome": "cancelled" }),
        };
        let line =
            acp::result(request.to_string().as_bytes(), json!({ "outcome": outcome }).to_string().as_bytes());
        let Ok(frame) = Frame::parse(line.slice(..line.len() - 1)) else { return Answered::Unknown };
        self.answered_by(id.number, caller.clone());
        self.take_answer(id.number, &frame, &By::editor(&caller.user));
        if caller.user != self.open.owner {
            self.recorder.note(note::BY, &json!({ "user": caller.user }));
        }
        self.recorder.frame(Origin::Editor, Destination::Agent, None, frame.bytes());
        self.withdraw_from(id.number, None, Some(caller.user.clone()));
        Answered::Taken
    }

    /// Answers an agent's own request, in our own words: what an editor adds was not judged.
    fn answer_permission(&mut self, ask: &Ask, reply: &Reply, by: &By) {
        let (once, why) = match (reply.kind, &reply.error) {
            (Some(OfferKind::AllowAlways), _) => match pick(&ask.options, &[OfferKind::AllowOnce]) {
                Some(once) => (Some(once), Value::Null),
                None => (rejection(&ask.options), json!({ "reason": NO_ALLOW_ONCE })),
            },
            (Some(OfferKind::RejectAlways), _) => (rejection(&ask.options), Value::Null),
            (Some(_), _) => (reply.option.as_deref(), by.said()),
            // An error allows nothing, whatever it says.
            (None, Some(error)) => return self.relay_rejection(&ask.agent_id, error),
            (None, None) if reply.option.is_none() => (None, Value::Null),
            (None, None) => (rejection(&ask.options), json!({ "reason": "an answer that was not on offer" })),
        };
        let class = if reply.rejects() || once.is_none() { Class::Stop } else { Class::Effect };
        self.say_agent(chosen_answer(&ask.agent_id, once, &why), class);
    }

    /// What was allowed may be done when the tool call comes to it, and nothing else.
    fn remember_allowed(&mut self, ask: &Ask, reply: &Reply) {
        let Some(ruling) = &ask.ruling else { return };
        if reply.kind == Some(OfferKind::AllowAlways) {
            self.grant(ruling, ask.by.clone().unwrap_or_else(|| self.open.caller.clone()));
        }
        let is_sent =
            reply.kind == Some(OfferKind::AllowOnce) || pick(&ask.options, &[OfferKind::AllowOnce]).is_some();
        if ask.held.is_some() || is_sent {
            self.survey.excuses.allow(ruling.own());
        }
        if ask.held.is_none() && is_sent {
            self.let_pass(ruling);
            if let Some((call, input)) = ask.expected.clone() {
                self.expect(&call, input, ruling);
            }
        }
    }

    /// What people have allowed does not happen: the rules deny it by now, or it is not what
    /// they were asked about any more. The record says so, and not that it was allowed.
    fn refuse_changed(&mut self, mut ask: Ask, refusal: &Refusal, by: &By) {
        self.count_answered(&ask, metrics::Answered::Rejected);
        if by.via == EDITOR {
            // Its frame comes next.
            self.recorder.note(note::DECLINED, &json!({ "user": by.user }));
        }
        let reason = format!("{} allowed it, but it was {}", by.user, refusal.message);
        self.end_approval(&mut ask, How::Rejected, None, &reason);
        match &ask.held {
            Some(Held::Request(frame)) => {
                self.say_agent(refusal.frame(frame.get(frame.peek().id)), Class::Stop);
            }
            Some(Held::Opening) => self.refuse_opening(refusal),
            None => {
                let why = refusal.data.clone().unwrap_or_default();
                let answer = chosen_answer(&ask.agent_id, rejection(&ask.options), &why);
                self.say_agent(answer, Class::Effect);
            }
        }
    }
}
