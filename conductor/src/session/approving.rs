//! Questions about permission, as people have them: in the editors that drive the session,
//! and in the book where approvers find them. The session has each until it is answered,
//! withdrawn or overdue, and that is why one outcome counts.

use std::{
    sync::Arc,
    time::{Duration, Instant as Clock},
};

use serde_json::{Value, json};
use tokio::time::Instant;
use uuid::Uuid;

use super::{
    Ask, Recorded, Session,
    asking::{chosen_answer, pick, rejection},
    flight::{Held, OfferKind},
    judging::{Ruling, denied},
    outbox::About,
    settling::Reply,
};
use crate::{
    acp::{self, Refusal},
    approvals::{self, Approval, Diff, How, Outcome},
    frame::Frame,
    grants::MOST_PARTS,
    identity::Caller,
    journal::Class,
    metrics::Answered,
    policy::{AskTerms, Effect, approvers, text::shown},
    record::{note, now_us},
};

/// Characters of what an agent calls something, and of why a rule asks. What would be done is
/// shown in full: it is no longer than the request, of which only so much may wait.
const SHOWN: usize = 500;

/// What is put to people, besides what the rules have found.
#[derive(Debug, Default)]
pub(super) struct Put {
    pub(super) kind: String,
    pub(super) title: String,
    pub(super) diffs: Vec<Diff>,
}

impl Put {
    /// What a permission request says of its tool call, or what was announced of it before.
    pub(super) fn of_request(params: &Value, earlier: &[Value]) -> Self {
        let call = &params["toolCall"];
        let told = |key: &str| {
            let all = std::iter::once(call).chain(earlier.iter().rev());
            all.map(|update| &update[key]).find(|value| !value.is_null()).cloned().unwrap_or_default()
        };
        let text = |key: &str| shown(told(key).as_str().unwrap_or_default(), SHOWN);
        let content = told("content");
        let blocks = content.as_array().map(Vec::as_slice).unwrap_or_default();
        let diffs = blocks.iter().filter(|block| block["type"] == "diff");
        let diffs = diffs.map(|block| Diff {
            path: shown(block["path"].as_str().unwrap_or_default(), usize::MAX),
            old: block["oldText"].as_str().map(str::to_owned),
            new: block["newText"].as_str().unwrap_or_default().to_owned(),
            is_claim: true,
        });
        Self { kind: text("kind"), title: text("title"), diffs: diffs.collect() }
    }

    /// A question of our own, about a request that is held meanwhile.
    pub(super) fn of_held(kind: &str, title: &str, held: Option<&Held>) -> Self {
        let params: Value = match held {
            Some(Held::Request(frame)) => frame.decode(frame.peek().params).unwrap_or_default(),
            _ => Value::Null,
        };
        let written = params["content"].as_str().filter(|_| kind == "edit").map(|content| Diff {
            path: shown(params["path"].as_str().unwrap_or_default(), usize::MAX),
            old: None,
            new: content.to_owned(),
            is_claim: false,
        });
        Self { kind: kind.to_owned(), title: shown(title, SHOWN), diffs: written.into_iter().collect() }
    }
}

/// The ways in which people answer, as the record has them.
pub(super) const EDITOR: &str = "editor";
const APPROVALS: &str = "approvals";

/// Who has answered, and how.
#[derive(Debug, Clone)]
pub(super) struct By {
    pub(super) user: String,
    /// [`EDITOR`], or [`APPROVALS`].
    pub(super) via: &'static str,
    /// What they said about it.
    pub(super) reason: String,
}

impl By {
    /// From a seat in the session.
    pub(super) fn editor(user: &str) -> Self {
        Self { user: user.to_owned(), via: EDITOR, reason: String::new() }
    }

    /// What the agent is told of an answer, if there is something to tell.
    pub(super) fn said(&self) -> Value {
        match self.reason.as_str() {
            "" => Value::Null,
            reason => json!({ "reason": reason, "by": self.user }),
        }
    }

    /// The same in words, for something that was declined.
    pub(super) fn declined(&self) -> String {
        match self.reason.as_str() {
            "" => "it was declined by a person".to_owned(),
            reason => format!("it was declined by {}: {reason}", self.user),
        }
    }
}

/// What became of an approver's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decided {
    /// It counts.
    Taken,
    /// It has ended; the book tells how.
    Ended,
    /// It is not for them: why.
    NotTheirs(String),
    /// The agent offers no way to allow this one time only.
    NoAllowOnce,
    /// It cannot be written down now, so it cannot happen: why.
    NotRecorded(Arc<str>),
}

impl Session {
    /// Whether those who drive the session see a question: not if a rule wants others to
    /// answer, or nobody to answer for themselves.
    pub(super) fn shows(ruling: &Ruling) -> bool {
        let terms = &ruling.verdict.asks;
        approvers::asks_driver(terms) && terms.iter().all(|terms| terms.is_own_allowed)
    }

    /// Puts a question into the book, and says how long it waits.
    pub(super) fn open_approval(&mut self, number: u32, about: About, put: Put) {
        let limit = self.open.config.borrow().approvals.limit;
        let is_unattended = self.unattended_since.is_some();
        let Some(ask) = self.asks.get_mut(number) else { return };
        let Some(ruling) = &ask.ruling else { return };
        let verdict = &ruling.verdict;
        let timeout = approvers::timeout(&verdict.asks);
        let wait = timeout.map_or(limit, |timeout| timeout.min(limit));
        let asked_us = now_us();
        let is_fixed = timeout.is_some() || !ask.is_shown;
        let due_us = is_fixed.then(|| asked_us.saturating_add(in_us(wait)));
        let mut actions: Vec<_> = verdict.sub_actions.iter().collect();
        actions.sort_by_key(|judged| judged.decision != Effect::Ask);
        let approval = Approval {
            id: Uuid::now_v7(),
            session: self.open.id,
            owner: self.open.owner.clone(),
            user: self.open.rules.subject.user.clone(),
            agent: self.open.rules.subject.agent.clone(),
            cwd: shown(&self.open.cwd.to_string_lossy(), SHOWN),
            kind: put.kind,
            title: put.title,
            actions: actions.iter().map(|judged| judged.action.in_words(usize::MAX)).collect(),
            asked: Some(ruling.asked()).filter(|asked| asked.len() <= MOST_PARTS).unwrap_or_default(),
            diffs: put.diffs,
            rule: verdict.rule.clone(),
            reason: shown(&verdict.reason, SHOWN),
            terms: verdict.asks.clone(),
            is_shown: ask.is_shown,
            asked_us,
            due_us,
        };
        // It is kept, and shown to people who may not know what the session's user knows.
        let approval = self.recorder.redacted_value(&approval).unwrap_or(approval);
        let noted = json!({
            "approval": approval.id.to_string(),
            "user": approval.user,
            "approvers": approval.people(),
            "terms": approval.terms,
            "isShown": approval.is_shown,
            "rule": approval.rule,
            "reason": approval.reason,
            "dueUs": due_us,
        });
        let people = approval.people();
        let (rule, is_shown) = (approval.rule.clone(), ask.is_shown);
        let mut open = self.open.approvals.open(approval, self.handle.clone(), &self.open.metrics);
        if is_unattended {
            open.tell(&self.open.metrics);
        }
        (ask.due, ask.approval) = (Some(ask.asked + wait), Some(open));
        self.hand.entries.push(Recorded::About(about, note::ASKED, noted));
        if !is_shown && self.seats.is_led && self.link.capabilities.notices {
            let by = rule.map(|rule| format!(" (rule `{rule}`)")).unwrap_or_default();
            let text = format!("The agent waits until {people} has answered{by}.");
            self.tell_editor(acp::notice(&self.open.id.to_string(), "info", "Waiting for approval", &text));
        }
    }

    /// A question has ended. To be called before what follows from that is said.
    pub(super) fn end_approval(&mut self, ask: &mut Ask, how: How, by: Option<&By>, reason: &str) {
        let Some(open) = ask.approval.take() else { return };
        let reason = by.map_or(reason, |by| by.reason.as_str());
        let user = by.map(|by| by.user.clone());
        let noted = json!({
            "approval": open.approval().id.to_string(),
            "outcome": how.name(),
            "by": user,
            "via": by.map(|by| by.via),
            "reason": reason,
        });
        self.hand.entries.push(Recorded::Note(note::ANSWERED, noted));
        open.end(Outcome::new(how, user, reason));
    }

    /// Nobody who drives the session is there: approvers are told of what waits.
    pub(super) fn tell_approvers(&mut self) {
        for open in self.asks.iter_mut().filter_map(|ask| ask.approval.as_mut()) {
            open.tell(&self.open.metrics);
        }
    }

    /// Somebody answers who need not be in the session.
    pub(super) fn answer_as_approver(
        &mut self,
        caller: &Caller,
        id: Uuid,
        allow: bool,
        reason: &str,
    ) -> Decided {
        let is_it = |ask: &Ask| ask.approval.as_ref().is_some_and(|open| open.approval().id == id);
        let Some((number, ask)) = self.asks.find(is_it) else { return Decided::Ended };
        let Some(approval) = ask.approval.as_ref().map(|open| open.approval().clone()) else {
            return Decided::Ended;
        };
        let option = match allow {
            true => match pick(&ask.options, &[OfferKind::AllowOnce]) {
                Some(option) => Some(option.to_owned()),
                None => return Decided::NoAllowOnce,
            },
            false => rejection(&ask.options).map(str::to_owned),
        };
        if let Some(why) = self.may_not_answer(number, &approval, caller) {
            return Decided::NotTheirs(why);
        }
        if allow && let Some(why) = self.journal.refusing() {
            return Decided::NotRecorded(why);
        }
        let Some(ask) = self.asks.complete(number) else { return Decided::Ended };
        if ask.is_shown {
            self.withdraw_from(number, None, Some(caller.user.clone()));
        }
        let by = By { user: caller.user.clone(), via: APPROVALS, reason: shown(reason, SHOWN) };
        let told = (!allow).then(|| rejected(&ask, &by));
        self.settle_permission(ask, &Reply::decided(allow, option), &by);
        // The agent may pass on something else, or nothing.
        if let Some(text) = told {
            self.say_notice("warning", &format!("Rejected by {}", caller.user), &text);
        }
        Decided::Taken
    }

    /// Why somebody may not answer a question: by what it was asked with, and by what the
    /// rules say now.
    pub(super) fn may_not_answer(
        &mut self,
        number: u32,
        approval: &Approval,
        caller: &Caller,
    ) -> Option<String> {
        let drives = self.drives(caller);
        let own = [approval.user.as_str(), approval.owner.as_str()];
        approvals::refusal(&approval.terms, caller, drives, &own).or_else(|| {
            let now = self.terms_now(number)?;
            approvals::refusal(&now, caller, drives, &own)
        })
    }

    /// Whether an answer from a seat that would allow something is not theirs to give by now:
    /// the rules may have changed since it was asked.
    pub(super) fn is_barred(&mut self, number: u32, seat: u32, answer: &Frame) -> bool {
        let Some(ask) = self.asks.get_mut(number) else { return false };
        let approval = ask.approval.as_ref().map(|open| open.approval().clone());
        let Some(approval) = approval.filter(|_| Reply::heard(ask, answer).allows()) else { return false };
        let caller = self.caller(seat).clone();
        self.may_not_answer(number, &approval, &caller).is_some()
    }

    /// How the rules want it asked by now; nothing, if they do not ask any more.
    fn terms_now(&mut self, number: u32) -> Option<Vec<Arc<AskTerms>>> {
        let ask = self.asks.get_mut(number)?;
        let frame = asked_about(ask)?;
        let ruling = self.judged_again(&frame).filter(|ruling| ruling.effect == Effect::Ask)?;
        Some(ruling.verdict.asks)
    }

    /// Denies what people are not to be asked about: they have been asked enough.
    pub(super) fn spare_people(&mut self, mut ruling: Ruling) -> Ruling {
        let open = self.asks.iter().filter(|ask| ask.approval.is_some()).count();
        let config = self.open.config.borrow().clone();
        let asked = self.judge.patience.ask(&ruling.asked(), open, &config.approvals, Clock::now());
        if let Err(spared) = asked {
            ruling.effect = Effect::Deny;
            ruling.verdict.rule = Some(spared.rule.to_owned());
            ruling.verdict.reason = spared.reason;
        }
        ruling
    }

    /// Why what people have allowed is not to be: the rules deny it by now, or it is not what
    /// they were asked about any more.
    pub(super) fn changed_meanwhile(&mut self, ask: &Ask) -> Option<Refusal> {
        let frame = asked_about(ask)?;
        let now = self.judged_again(&frame)?;
        if now.effect == Effect::Deny {
            return Some(now.refusal());
        }
        let is_same = ask.ruling.as_ref().is_some_and(|then| then.own().eq(now.own()));
        (!is_same).then(|| denied(None, "it is not what was asked about any more: ask again"))
    }

    /// By when a question is denied, if nobody answers it before.
    pub(super) fn answers_due(&self) -> Option<Instant> {
        let overdue = self.asks.iter().filter_map(|ask| ask.due).min();
        overdue.into_iter().chain(self.unattended_due()).min()
    }

    /// Denies what nobody has answered in time.
    pub(super) fn deny_overdue(&mut self, now: Instant) {
        if self.unattended_due().is_some_and(|due| due <= now) {
            let timeout = self.open.rules.ask_timeout;
            let reason = format!("nobody was there to answer for {timeout:?}");
            self.deny_asks(&reason, |ask| ask.is_permission() && waits_for_drivers(ask));
        }
        let is_due = |ask: &Ask| ask.due.is_some_and(|due| due <= now);
        if let Some((_, ask)) = self.asks.find(is_due) {
            let waited = ask.due.map(|due| due - ask.asked).unwrap_or_default();
            let reason = format!("nobody has answered within {waited:?}");
            self.deny_asks(&reason, is_due);
        }
    }

    fn deny_asks(&mut self, reason: &str, which: impl Fn(&Ask) -> bool) {
        while let Some((number, _)) = self.asks.find(&which) {
            let Some(mut ask) = self.asks.complete(number) else { break };
            self.count_answered(&ask, Answered::Unattended);
            if ask.is_shown {
                self.withdraw_from(number, None, None);
            }
            self.end_approval(&mut ask, How::TimedOut, None, reason);
            match ask.held {
                Some(Held::Opening) => self.refuse_opening(&denied(None, reason)),
                Some(Held::Request(frame)) => {
                    self.say_agent(denied(None, reason).frame(frame.get(frame.peek().id)), Class::Stop);
                }
                None => {
                    let reject = rejection(&ask.options);
                    let answer = chosen_answer(&ask.agent_id, reject, &json!({ "reason": reason }));
                    self.say_agent(answer, Class::Effect);
                }
            }
        }
        self.heard = Instant::now();
    }

    /// By when an open question is denied because nobody is there.
    fn unattended_due(&self) -> Option<Instant> {
        let since = self.unattended_since?;
        let waiting = self.asks.iter().filter(|ask| ask.is_permission() && waits_for_drivers(ask));
        let first = waiting.map(|ask| ask.asked).min()?;
        Some(since.max(first) + self.open.rules.ask_timeout)
    }
}

/// What was rejected, and why, for whoever has the session open.
fn rejected(ask: &Ask, by: &By) -> String {
    let actions = ask.ruling.as_ref().map(|ruling| ruling.verdict.sub_actions.as_slice());
    let what = actions.and_then(<[_]>::first).map(|judged| judged.action.in_words(SHOWN));
    let parts = [what, Some(by.reason.clone()).filter(|reason| !reason.is_empty())];
    parts.into_iter().flatten().collect::<Vec<_>>().join(": ")
}

/// Whether a question is for those who drive the session, as far as no rule says how long
/// it waits, or names others.
fn waits_for_drivers(ask: &Ask) -> bool {
    let asks = ask.ruling.as_ref().map(|ruling| ruling.verdict.asks.as_slice()).unwrap_or_default();
    ask.is_shown && asks.iter().all(|terms| terms.timeout.is_none() && terms.approvers.is_none())
}

fn in_us(time: Duration) -> i64 {
    i64::try_from(time.as_micros()).unwrap_or(i64::MAX)
}

/// The request that a question is about; none if it is the opening of the session.
fn asked_about(ask: &Ask) -> Option<Frame> {
    match &ask.held {
        Some(Held::Request(frame)) => Some(frame.clone()),
        Some(Held::Opening) => None,
        None => ask.frame.clone().and_then(|bytes| Frame::parse(bytes).ok()),
    }
}
