//! Which agent a session is with, and how it comes to another one: by what
//! people choose, by a route, or because the one it should go to cannot take it.
//!
//! A choice takes effect when the next prompt begins. The session then leaves
//! its agent in good order and is bound to the other one, which is told what it
//! has not heard. A prompt that has produced nothing may go on to the next agent
//! of its route; one that has is never sent again.

use std::{collections::VecDeque, sync::Arc};

use bytes::Bytes;
use regex::{RegexSet, RegexSetBuilder};
use serde_json::{Value, json};
use tracing::{debug, warn};

use super::{
    Berth, Choice, Host, Input, Purpose, Request, Session, flight::Said, judging::denied, seats::Asked,
};
use crate::{
    acp::{self, Refusal, code},
    frame::{Frame, Kind},
    identity::Person,
    journal::Class,
    options::{Category, Channel, Chooser},
    policy::{Absent, Action, Disk, Effect, Ground, normalise},
    pool,
    record::note,
    routes::{self, Decision, Field, Target},
    store::Bound,
};

/// Errors by which most agents say that there is no quota left.
const QUOTA_ERRORS: &[&str] = &[
    r"\b(429|529)\b",
    "rate.?limit",
    "too many requests",
    "quota",
    "usage limit",
    "overloaded",
    "insufficient.(credit|balance|funds)",
];

/// Answers that are such an error as a whole.
const QUOTA_ANSWERS: &[&str] =
    &[r"\W*(api |http |request |model |ran into this )?error\b.{0,200}\b(429|529|rate.?limit|quota)\b.*"];

/// Most of an answer that is held against these.
pub(super) const LONGEST_ANSWER: usize = 4 << 10;

/// Where a session goes.
#[derive(Debug, Default)]
pub(super) struct Routing {
    /// What people have chosen.
    pub(super) choice: Choice,
    /// What they had chosen when it was decided where the session is.
    pub(super) decided: Option<Choice>,
    /// Agents that are left to try.
    left: VecDeque<Target>,
    /// The agent that is tried or in use, and what it is to be set to.
    pub(super) target: Option<Target>,
    how: &'static str,
    route: Option<String>,
    reason: String,
    /// How many agents could not take it.
    attempt: u32,
    /// The agent that the session comes from.
    from: Option<String>,
    /// The agent's own sessions that it has had.
    pub(super) bound: Vec<Bound>,
    /// Which of them it uses, from 1; 0 until there is one.
    pub(super) number: u32,
    /// What the agent is told of the past ends here.
    pub(super) told_until: Option<u64>,
    /// It is on its way from another agent.
    pub(super) has_moved: bool,
    /// Which agents were asked instead while the session was being opened, and why.
    untold: Vec<(String, String)>,
}

/// Where a session is about to go. Not at once: what is being handled is recorded
/// first.
#[derive(Debug)]
pub(super) enum Onward {
    /// To the agent of this berth.
    To(Berth),
    /// To the next agent, because this one is of no use.
    Instead(Refusal),
}

impl Routing {
    pub(super) fn new(
        choice: Choice,
        decision: Option<Decision>,
        bound: Vec<Bound>,
        agent_session: &[u8],
    ) -> Self {
        let own: Option<String> = serde_json::from_slice(agent_session).ok();
        let current = bound.iter().find(|bound| Some(&bound.session) == own.as_ref());
        // One that was opened before there were numbers has had one session.
        let number = current.map_or(u32::from(own.is_some()), |bound| bound.number);
        let mut routing = Self { decided: Some(choice.clone()), choice, bound, number, ..Self::default() };
        if let Some(decision) = decision {
            routing.take(decision);
        }
        routing
    }

    fn take(&mut self, decision: Decision) {
        let Decision { targets, how, route, reason, .. } = decision;
        self.left = targets.into();
        self.target = self.left.pop_front();
        (self.how, self.route, self.reason, self.attempt) = (how.name(), route, reason, 0);
    }

    /// Whether another agent could take what this one cannot.
    pub(super) fn has_more(&self) -> bool {
        !self.left.is_empty()
    }

    /// Every agent of the route has failed: the next prompt begins with the first again.
    pub(super) fn start_over(&mut self) {
        if self.attempt > 0 {
            self.decided = None;
        }
    }

    /// A mode of a route's is not in force any more.
    pub(super) fn leave_mode(&mut self) {
        if self.decided.as_ref() == Some(&self.choice) {
            self.choice.mode = None;
            self.decided = Some(self.choice.clone());
            if let Some(target) = &mut self.target {
                target.mode = None;
            }
        }
    }

    /// The agent's session that a session with this agent would go back to.
    fn back_to(&self, agent: &str) -> Option<&Bound> {
        self.bound.iter().rev().find(|bound| bound.agent == agent)
    }
}

impl Session {
    /// Where the next prompt goes, if that is not where the session is.
    pub(super) fn pending_target(&self) -> Option<Target> {
        if self.routing.decided.as_ref() == Some(&self.routing.choice) {
            return None;
        }
        let target = self.decide(&self.routing.choice).ok()?.targets.into_iter().next()?;
        (target.agent != self.agent() || self.routing.choice.last == Some(Category::Model)).then_some(target)
    }

    pub(super) fn decide(&self, choice: &Choice) -> Result<Decision, Refusal> {
        let config = self.open.config.borrow().clone();
        let offers = self.open.catalogue.offers();
        let agents = self.pool.status().borrow().clone();
        let busy = |agent: &str| pool::sessions_of(&agents, agent);
        let asked = choice.asked(&self.open.caller, &self.open.cwd, Some(self.agent()));
        routes::decide(&asked, &Field { config: &config, offers: &offers, busy: &busy })
            .map_err(|why| Refusal::new(code::INVALID_PARAMS, why.to_string()))
    }

    /// Whether the session may go to an agent: the code goes with it, so what the
    /// policy would ask about counts as no.
    pub(super) fn may_use(&mut self, agent: &str) -> Result<(), Refusal> {
        let policy = self.judge.policy(&self.open.rules);
        let mut subject = self.open.rules.subject.clone();
        (subject.agent, subject.mode, subject.model) = (agent.to_owned(), None, None);
        let disk = Disk::resolved(self.open.berth.roots.clone(), Vec::new(), Absent::default());
        let ground = Ground { cwd: &self.open.cwd, resolver: &disk };
        let verdict = policy.evaluate(&subject, &normalise(&Action::Agent(agent.to_owned()), &ground));
        if verdict.decision != Effect::Allow {
            return Err(denied(verdict.rule.as_deref(), &verdict.reason));
        }
        for server in &self.open.servers {
            let verdict = policy.evaluate(&subject, &normalise(&Action::Server(server.clone()), &ground));
            if verdict.decision == Effect::Deny {
                return Err(denied(verdict.rule.as_deref(), &verdict.reason));
            }
        }
        Ok(())
    }

    /// Sees to it that a prompt begins with the agent it is for. Whether it does not
    /// begin now: the session is on its way, or the agent is being set.
    pub(super) fn sets_out(&mut self, frame: &Frame) -> Result<bool, Refusal> {
        let mut choice = self.routing.choice.clone();
        choice.take_meta(frame)?;
        if self.routing.decided.as_ref() == Some(&choice) {
            return Ok(false);
        }
        let mut decision = self.decide(&choice)?;
        let here = self.agent().to_owned();
        if decision.targets[0].agent == here {
            let target = decision.targets.remove(0);
            let calls = self.wishes(&target, &self.options)?;
            if let Some(refusal) = self.wish_denied(&target) {
                return Err(refusal);
            }
            decision.targets.insert(0, target);
            self.settle_choice(choice, decision);
            self.note_routed(None);
            return Ok(self.ask_for(calls));
        }
        self.may_use(&decision.targets[0].agent)?;
        self.settle_choice(choice, decision);
        self.routing.from = Some(here);
        // The first may not be to be had; the others are tried as if it had failed.
        let Some(target) = self.routing.target.clone() else { return Ok(false) };
        match self.berth_at(&target.agent) {
            Ok(berth) => {
                self.note_routed(None);
                self.onward = Some(Onward::To(berth));
            }
            Err(refusal) if self.has_other() => self.onward = Some(Onward::Instead(refusal)),
            Err(refusal) => return Err(refusal),
        }
        Ok(true)
    }

    fn settle_choice(&mut self, choice: Choice, decision: Decision) {
        self.routing.choice = choice.clone();
        self.routing.decided = Some(choice);
        self.routing.take(decision);
    }

    /// What the session needs of an agent.
    fn berth_at(&self, agent: &str) -> Result<Berth, Refusal> {
        let config = self.open.config.borrow().clone();
        let agent: Arc<str> = agent.into();
        let owner = Person::owner(&self.open.owner, &self.open.caller);
        Berth::new(&config, &agent, &owner, &self.open.request, &self.open.cwd, self.link.capabilities)
    }

    /// Goes where the session is about to go.
    pub(super) fn go_onward(&mut self, onward: Onward) {
        match onward {
            Onward::To(berth) => self.move_to(berth),
            Onward::Instead(refusal) => {
                if !self.try_next(&refusal) {
                    self.give_up(&refusal);
                }
            }
        }
        self.commit(Input::Nothing);
    }

    /// Whether an agent is left that may be tried.
    fn has_other(&mut self) -> bool {
        let left: Vec<String> = self.routing.left.iter().map(|target| target.agent.clone()).collect();
        left.iter().any(|agent| self.may_use(agent).is_ok() && self.berth_at(agent).is_ok())
    }

    /// Leaves the agent, and goes to the one of this berth.
    fn move_to(&mut self, berth: Berth) {
        let agent = berth.key.agent.clone();
        debug!(from = %self.agent(), to = %agent, "the session goes to another agent");
        self.answer_asks(|_| true);
        self.host.stop();
        self.depart();
        self.routing.has_moved = true;
        self.mark_seen();
        self.commit(Input::Nothing);
        self.rest();
        self.board(berth);
        if !self.go_back() {
            self.wake();
        }
    }

    /// Up to here the agent that the session leaves knows the conversation.
    fn mark_seen(&mut self) {
        let (seen, number) = (self.recorder.last_seq(), self.routing.number);
        if let Some(bound) = self.routing.bound.iter_mut().find(|bound| bound.number == number) {
            bound.seen = seen;
        }
    }

    /// Takes over what goes with an agent.
    fn board(&mut self, berth: Berth) {
        let agent = berth.key.agent.clone();
        self.host = Host::new(berth.hosting.as_ref(), self.link.capabilities);
        self.open.rules.subject.agent = agent.to_string();
        self.open.berth = berth;
        self.judge.forget_agent();
        self.watched.forget();
        self.terminals.clear();
        self.options = json!({});
        self.told = Default::default();
        self.handover = None;
        self.is_parked = false;
        let back = self.routing.back_to(&agent).map(|bound| Value::from(bound.session.as_str()).to_string());
        self.agent_session = back.map(Bytes::from).unwrap_or_default();
        self.leaving = self.ending.remove(&*agent);
    }

    /// The agent cannot take it: the next one is tried, if there is one and it may
    /// be. Nobody has been told anything yet but that.
    fn try_next(&mut self, refusal: &Refusal) -> bool {
        let failed = format!(
            "agent `{}`: {}",
            self.routing.target.as_ref().map_or(self.agent(), |target| &target.agent),
            refusal.message
        );
        while let Some(target) = self.routing.left.pop_front() {
            if let Err(refusal) = self.may_use(&target.agent) {
                debug!(agent = target.agent, why = %self.recorder.redacted(&refusal.message), "not tried");
                continue;
            }
            let Ok(berth) = self.berth_at(&target.agent) else { continue };
            self.routing.attempt += 1;
            self.routing.from.get_or_insert_with(|| self.open.berth.key.agent.to_string());
            self.routing.target = Some(target);
            self.note_routed(Some(&failed));
            self.notice_fallback(&failed);
            warn!(why = %self.recorder.redacted(&failed), to = %berth.key.agent, "another agent is tried");
            self.open.metrics.fallbacks.one();
            self.mark_seen();
            self.unbind();
            if let Some(ended) = self.leaving.take() {
                let agent = self.agent().to_owned();
                self.ending.insert(agent, ended);
            }
            self.board(berth);
            self.routing.has_moved = self.is_open;
            if !self.go_back() {
                self.wake();
            }
            return true;
        }
        false
    }

    /// Sees to it that another agent is asked, if what this one says is a reason for
    /// that and there is one.
    pub(super) fn asks_another(&mut self, refusal: &Refusal) -> bool {
        let asks =
            self.onward.is_none() && self.routing.has_more() && self.is_no_use(refusal) && self.has_other();
        if asks {
            self.onward = Some(Onward::Instead(refusal.clone()));
        }
        asks
    }

    fn is_no_use(&self, refusal: &Refusal) -> bool {
        let config = self.open.config.borrow().clone();
        let own = config.agents.get(self.agent()).and_then(|agent| agent.quota_errors.clone());
        let text = match &refusal.data {
            Some(data) => format!("{} {data}", refusal.message),
            None => refusal.message.clone(),
        };
        matches!(refusal.code, code::AGENT_ENDED | code::LIMIT | code::AUTH_REQUIRED)
            || refusal.code == 429
            || expressions(own, QUOTA_ERRORS, false).is_some_and(|errors| errors.is_match(&text))
    }

    /// Whether an answer is nothing but the word that there is no quota left.
    fn is_quota_answer(&self, said: &Said) -> bool {
        let Said::Only(text) = said else { return false };
        let config = self.open.config.borrow().clone();
        let own = config.agents.get(self.agent()).and_then(|agent| agent.quota_answers.clone());
        expressions(own, QUOTA_ANSWERS, true).is_some_and(|answers| answers.is_match(text.trim()))
    }

    /// The answer to a prompt: whether it goes to another agent instead of to the
    /// editor.
    pub(super) fn falls_back(
        &mut self,
        frame: &Frame,
        prompt: Option<Asked>,
        said: &Said,
        until: u64,
    ) -> bool {
        let Some(mut prompt) = prompt.filter(|_| self.routing.has_more()) else {
            if frame.peek().kind == Kind::Error && self.is_no_use(&Refusal::of(frame)) {
                self.routing.start_over();
            }
            return false;
        };
        let refusal = match frame.peek().kind {
            Kind::Error if *said == Said::Nothing || self.is_quota_answer(said) => {
                let refusal = Refusal::of(frame);
                if !self.is_no_use(&refusal) {
                    return false;
                }
                refusal
            }
            Kind::Result if self.is_quota_answer(said) => {
                let Said::Only(text) = said else { return false };
                Refusal::new(code::INTERNAL, crate::frame::escape(text.trim().as_bytes(), 300))
            }
            _ => return false,
        };
        if !self.has_other() {
            return false;
        }
        prompt.is_again = true;
        self.waiting.push_front(prompt);
        self.routing.told_until = Some(until);
        self.onward = Some(Onward::Instead(refusal));
        // The editor does not get this answer.
        self.hand.kept_back = Some(self.hand.index);
        true
    }

    fn notice_fallback(&mut self, failed: &str) {
        let to = self.routing.target.as_ref().map(|target| target.agent.clone()).unwrap_or_default();
        self.routing.untold.push((format!("Agent `{to}` is asked instead"), failed.to_owned()));
        if self.is_open {
            self.tell_fallbacks();
        }
    }

    /// Says which agents were asked instead: an editor knows a session only once it is open.
    pub(super) fn tell_fallbacks(&mut self) {
        for (title, why) in std::mem::take(&mut self.routing.untold) {
            self.say_notice("warning", &title, &why);
        }
    }

    /// Writes down where the session goes, and why.
    pub(super) fn note_routed(&mut self, failed: Option<&str>) {
        let Some(target) = &self.routing.target else { return };
        let params = json!({
            "agent": target.agent,
            "from": self.routing.from,
            "model": target.model,
            "mode": target.mode,
            "route": self.routing.route,
            "how": self.routing.how,
            "reason": self.routing.reason,
            "attempt": self.routing.attempt,
            "failed": failed,
        });
        self.hand.entries.push(super::Recorded::Note(note::ROUTED, params));
    }

    /// Asks the agent for what it is to be set to; whether there is anything.
    pub(super) fn ask_for(&mut self, calls: Vec<(&'static str, Value)>) -> bool {
        let is_any = !calls.is_empty();
        for (method, params) in calls {
            let mut request = Request::ours(Purpose::Wish);
            request.sets_model = params["modelId"].as_str().map(str::to_owned);
            let id = self.number(request);
            self.say_agent(acp::call(Some(id.to_string()), method, &params), Class::Effect);
        }
        is_any
    }

    /// The calls that set the model and the mode of a target, checked against what
    /// the agent offers.
    pub(super) fn wishes(
        &self,
        target: &Target,
        told: &Value,
    ) -> Result<Vec<(&'static str, Value)>, Refusal> {
        let name = self.binding.as_ref().map(|binding| binding.name.clone()).unwrap_or_default();
        let session: Value = serde_json::from_slice(&name).unwrap_or_default();
        let mut calls = Vec::new();
        for (category, wanted) in [(Category::Model, &target.model), (Category::Mode, &target.mode)] {
            let Some(wanted) = wanted else { continue };
            let options = Chooser::option(told, category).filter(|own| own.offers(wanted));
            let Some(own) =
                options.or_else(|| Chooser::legacy(told, category).filter(|own| own.offers(wanted)))
            else {
                return Err(self.not_offered(category, wanted, told));
            };
            if own.current.as_ref() == Some(wanted) {
                continue;
            }
            calls.push(match (own.channel, category) {
                (Channel::Option(id), _) => (
                    "session/set_config_option",
                    json!({ "sessionId": session, "configId": id, "value": wanted }),
                ),
                (Channel::Legacy, Category::Mode) => {
                    ("session/set_mode", json!({ "sessionId": session, "modeId": wanted }))
                }
                (Channel::Legacy, Category::Model) => {
                    ("session/set_model", json!({ "sessionId": session, "modelId": wanted }))
                }
            });
        }
        Ok(calls)
    }

    fn not_offered(&self, category: Category, wanted: &str, told: &Value) -> Refusal {
        let own = Chooser::read(told, category).map(|own| own.choices).unwrap_or_default();
        let offered: Vec<&str> = own.iter().map(|choice| choice.value.as_str()).collect();
        let (agent, what) = (self.agent(), category.name());
        let text = if offered.is_empty() {
            format!("agent `{agent}` offers no choice of {what}")
        } else {
            format!("agent `{agent}` has no {what} `{wanted}`; it has: {}", offered.join(", "))
        };
        Refusal::new(code::INVALID_PARAMS, text)
    }
}

/// Expressions of the configuration, or the usual ones; the former were checked
/// when it was read.
fn expressions(own: Option<Vec<String>>, usual: &[&str], whole: bool) -> Option<RegexSet> {
    let all = own.unwrap_or_else(|| usual.iter().map(|text| (*text).to_owned()).collect());
    let all = all.iter().map(|text| if whole { format!("^(?:{text})$") } else { text.clone() });
    let set = RegexSetBuilder::new(all).case_insensitive(true).dot_matches_new_line(true).build();
    set.inspect_err(|error| warn!(%error, "the expressions for quota cannot be used")).ok()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    #[test]
    fn words_of_quota_are_known() {
        let errors = expressions(None, QUOTA_ERRORS, false).unwrap();
        for text in [
            "HTTP 429",
            "Rate-limit reached",
            "You exceeded your current QUOTA",
            "Overloaded",
            "insufficient credit",
        ] {
            assert!(errors.is_match(text), "{text}");
        }
        assert!(!errors.is_match("line 4290 of the file"));
        let answers = expressions(None, QUOTA_ANSWERS, true).unwrap();
        for text in
            ["API Error: 429 {\"type\":\"error\"}\nmore", "Error: rate limit exceeded", "**Error** code: 429"]
        {
            assert!(answers.is_match(text), "{text}");
        }
        // An answer may well be about these things.
        for text in
            ["The rate limit is 429 per minute.", "I changed how error 429 is handled.", "Errors: none"]
        {
            assert!(!answers.is_match(text), "{text}");
        }
        let own = expressions(Some(vec!["kein guthaben".into()]), QUOTA_ERRORS, false).unwrap();
        assert!(own.is_match("Kein Guthaben mehr") && !own.is_match("quota"));
    }
}
