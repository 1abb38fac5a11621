//! What the policy says to an agent's requests, before anything comes of them.
//!
//! Every request that would do something in the world is taken apart, held
//! against the rules of one revision and written down with what came out,
//! before its answer or its effect goes on. What the rules leave to people goes
//! to whoever has the session open.

use std::{collections::HashSet, sync::Arc, time::Instant as Clock};

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    Ask, Recorded, Session,
    asking::{call_id, chosen_answer, described, offers, pick, rejection, selected},
    calls::Calls,
    flight::{Held, Offer, OfferKind},
    outbox::About,
    terms::Rules,
};
use crate::{
    acp::{self, Refusal, code},
    frame::{Frame, Kind, Method},
    journal::Class,
    policy::{
        Action, Disk, Effect, Ground, Policy, SubAction, Subject, Verdict, has_duplicate_keys, normalise,
    },
    record::note,
};

/// Grants that a session remembers; more are asked about again.
const MOST_GRANTS: usize = 1024;

/// Bytes of requests that may wait for an answer of people; one frame of the largest size.
const MOST_HELD: usize = 16 << 20;

/// What asks people.
const PERMISSION: &str = "session/request_permission";

/// An agent that can only be allowed something for ever would not ask again.
const NO_ALLOW_ONCE: &str = "no_allow_once: the agent offers no way to allow this one time only";

/// The rules of a session, and what people have added to them.
#[derive(Debug, Default)]
pub(super) struct Judge {
    /// The team's rules, and the same narrowed for this session.
    narrowed: Option<(Arc<Policy>, Arc<Policy>)>,
    pub(super) calls: Calls,
    /// Allowed by a person as long as the session is open.
    grants: HashSet<SubAction>,
    /// Allowed by a person once, in this turn: what a tool call was allowed to do
    /// may be asked for again when it does so.
    passes: Vec<SubAction>,
    /// The mode that the session is in, once it was judged; not one that is denied.
    pub(super) mode: Option<String>,
    /// The mode that people have set, or that the session was opened with.
    pub(super) chosen_mode: Option<String>,
    /// How often a forbidden one was set back.
    pub(super) set_back: u32,
}

/// A verdict, and what is to be known of how it came to be.
#[derive(Debug)]
pub(super) struct Ruling {
    pub(super) verdict: Verdict,
    /// What counts, after what people have allowed before.
    pub(super) effect: Effect,
    is_granted: bool,
    revision: String,
    took_us: u64,
}

impl Ruling {
    /// A verdict that was reached before the session was.
    pub(super) fn of(verdict: Verdict, revision: String) -> Self {
        Self { effect: verdict.decision, verdict, is_granted: false, revision, took_us: 0 }
    }

    /// What is written down.
    fn note(&self, method: &str) -> Value {
        json!({
            "method": method,
            "decision": self.effect,
            "revision": self.revision,
            "rule": if self.is_granted { Some("granted") } else { self.verdict.rule.as_deref() },
            "rules": self.verdict.rules,
            "reason": self.verdict.reason,
            "subActions": self.verdict.sub_actions,
            "tookUs": self.took_us,
        })
    }

    /// Whether all that would be done can be told apart from anything else.
    fn is_exact(&self) -> bool {
        self.verdict
            .sub_actions
            .iter()
            .all(|judged| judged.decision == Effect::Allow || is_exact(&judged.action))
    }

    /// What the agent is told of a denial.
    pub(super) fn refusal(&self) -> Refusal {
        denied(self.verdict.rule.as_deref(), &self.verdict.reason)
    }
}

/// The refusal of something that a rule or a person does not want.
pub fn denied(rule: Option<&str>, reason: &str) -> Refusal {
    let by = rule.map(|rule| format!(" (rule `{rule}`)")).unwrap_or_default();
    Refusal {
        code: code::DENIED,
        message: format!("denied by the policy{by}: {reason}"),
        data: Some(json!({ "rule": rule, "reason": reason })),
    }
}

impl Judge {
    /// The rules as they are now. What a repository or a user adds was read when the
    /// session was opened: the agent cannot take it back.
    fn policy(&mut self, rules: &Rules) -> Arc<Policy> {
        let team = rules.policy.borrow().clone();
        match &self.narrowed {
            Some((of, narrowed)) if Arc::ptr_eq(of, &team) => narrowed.clone(),
            _ => {
                let narrowed = rules.narrow(&team);
                self.narrowed = Some((team, narrowed.clone()));
                narrowed
            }
        }
    }

    /// A turn has ended: what was allowed once was for that.
    pub(super) fn turn_ended(&mut self) {
        self.passes.clear();
    }

    fn covers(&self, verdict: &Verdict, may_spend: bool) -> bool {
        let is_covered =
            |action: &SubAction| self.grants.contains(action) || may_spend && self.passes.contains(action);
        verdict.decision == Effect::Ask
            && verdict
                .sub_actions
                .iter()
                .all(|judged| judged.decision == Effect::Allow || is_covered(&judged.action))
    }

    /// Uses up what was allowed once.
    fn spend(&mut self, verdict: &Verdict) {
        for judged in &verdict.sub_actions {
            if let Some(at) = self.passes.iter().position(|pass| *pass == judged.action) {
                self.passes.remove(at);
            }
        }
    }
}

impl Session {
    /// Judges something by the rules and by what people have allowed before.
    pub(super) fn rule(&mut self, action: &Action) -> Ruling {
        self.rule_all(std::slice::from_ref(action), None, false)
    }

    /// Judges several things at once: the strictest outcome counts. What a person has
    /// allowed a tool to do once, `may_spend` uses up.
    fn rule_all(&mut self, actions: &[Action], beside: Option<SubAction>, may_spend: bool) -> Ruling {
        let began = Clock::now();
        let policy = self.judge.policy(&self.open.rules);
        let mut subject = self.open.rules.subject.clone();
        subject.model = self.current("model");
        let actions = actions.iter().flat_map(|action| self.taken_apart(action));
        let actions: Vec<SubAction> = actions.chain(beside).collect();
        let verdict = self.evaluate(&policy, subject, &actions);
        let is_granted = self.judge.covers(&verdict, may_spend);
        let effect = if is_granted { Effect::Allow } else { verdict.decision };
        let took_us = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
        Ruling { effect, is_granted, verdict, revision: policy.revision().to_owned(), took_us }
    }

    /// A mode that people have set may allow something. One that the agent has chosen itself
    /// may only forbid.
    fn evaluate(&self, policy: &Policy, mut subject: Subject, actions: &[SubAction]) -> Verdict {
        subject.mode.clone_from(&self.judge.chosen_mode);
        let verdict = policy.evaluate(&subject, actions);
        let now = self.current("mode");
        if now == subject.mode {
            return verdict;
        }
        subject.mode = now;
        let other = policy.evaluate(&subject, actions);
        if other.decision > verdict.decision { other } else { verdict }
    }

    /// What something would do, seen from the session's directory.
    pub(super) fn taken_apart(&self, action: &Action) -> Vec<SubAction> {
        let search = self.binding.as_ref().map(|binding| binding.process().search()).unwrap_or_default();
        let disk = Disk { roots: self.open.rules.roots.clone(), search };
        normalise(action, &Ground { cwd: &self.open.cwd, resolver: &disk })
    }

    /// What a request of the agent would do: nothing if it is none that is judged, `None` if
    /// it cannot be read.
    fn actions_of(&self, frame: &Frame) -> Option<Vec<Action>> {
        let peek = frame.peek();
        if !matches!(
            peek.method,
            Method::RequestPermission
                | Method::FsRead
                | Method::FsWrite
                | Method::TerminalCreate
                | Method::ElicitationCreate
        ) {
            return Some(Vec::new());
        }
        let params: Value = match (frame.decode(peek.params), peek.method) {
            (Some(params), _) => params,
            // People see these before anything happens, and may be able to read them.
            (None, Method::RequestPermission | Method::ElicitationCreate) => Value::Null,
            (None, _) => return None,
        };
        let path = || params["path"].as_str().unwrap_or_default().to_owned();
        Some(match peek.method {
            Method::RequestPermission => {
                let earlier =
                    self.judge.calls.of(params["toolCall"]["toolCallId"].as_str().unwrap_or_default());
                vec![Action::Permission { params, earlier }]
            }
            Method::FsRead => vec![Action::Read(path())],
            Method::FsWrite => vec![Action::Write(path())],
            Method::TerminalCreate => {
                // Editors may join the words and hand them to a shell.
                let args = params["args"].as_array().filter(|_| !self.host.serves(peek.method));
                let words = params["command"].as_str().into_iter();
                let joined = args.filter(|args| !args.is_empty()).map(|args| {
                    let words = words.chain(args.iter().filter_map(Value::as_str));
                    Action::Shell(words.collect::<Vec<_>>().join(" "))
                });
                joined.into_iter().chain([Action::Terminal(params)]).collect()
            }
            _ if !params.is_null() && params["url"].is_null() && params["mode"] != "url" => Vec::new(),
            _ => vec![Action::Elicitation(params)],
        })
    }

    /// Judges a request of the agent. Whether it goes on as it is; if not, it has been
    /// answered, or somebody is asked.
    pub(super) fn judge_agent(&mut self, frame: &Frame) -> bool {
        let method = frame.peek().method;
        let Some(actions) = self.actions_of(frame) else {
            // Whoever carries it out may read what we cannot.
            let text = format!("the parameters of {} cannot be read", frame.method_name());
            let refusal = Refusal::new(code::INVALID_PARAMS, text);
            self.say_agent(refusal.frame(frame.get(frame.peek().id)), Class::Stop);
            return false;
        };
        if actions.is_empty() {
            return true;
        }
        // Which of the two counts, readers do not agree on.
        let beside = has_duplicate_keys(frame.get(frame.peek().params))
            .then(|| SubAction::unknown("a name stands twice in the request"));
        let ruling = self.rule_all(&actions, beside, method != Method::RequestPermission);
        if method == Method::RequestPermission {
            self.judge_permission(frame, ruling);
            return false;
        }
        self.watched.judged();
        // A person sees the address before it is opened.
        let asks = ruling.effect == Effect::Ask && method != Method::ElicitationCreate;
        if asks {
            self.ask_about(frame, ruling);
            return false;
        }
        self.note_ruling(&ruling, &frame.method_name(), About::Input(self.index));
        match ruling.effect {
            Effect::Deny => {
                let id = frame.get(frame.peek().id);
                let answer = match method {
                    Method::ElicitationCreate => acp::result(id, acp::DECLINED_ELICITATION),
                    _ => ruling.refusal().frame(id),
                };
                self.say_agent(answer, Class::Stop);
                false
            }
            _ => {
                self.judge.spend(&ruling.verdict);
                true
            }
        }
    }

    /// The answer to a request that people have allowed, but that is denied by now.
    pub(super) fn denied_meanwhile(&mut self, frame: &Frame) -> Option<Bytes> {
        let ruling = self.actions_of(frame).map(|actions| self.rule_all(&actions, None, false))?;
        let is_denied = ruling.effect == Effect::Deny;
        is_denied.then(|| ruling.refusal().frame(frame.get(frame.peek().id)))
    }

    fn judge_permission(&mut self, frame: &Frame, mut ruling: Ruling) {
        let offers = offers(frame);
        self.watched.asked(&call_id(frame));
        let once = pick(&offers, &[OfferKind::AllowOnce]);
        if ruling.effect == Effect::Allow && once.is_none() {
            ruling.verdict.reason = NO_ALLOW_ONCE.into();
        }
        self.note_ruling(&ruling, PERMISSION, About::Input(self.index));
        let chosen = match ruling.effect {
            Effect::Ask => return self.pass_permission(frame, offers, ruling),
            Effect::Allow if once.is_some() => {
                self.let_pass(&ruling);
                self.expect(frame.bytes(), &ruling);
                once
            }
            Effect::Allow | Effect::Deny => rejection(&offers),
        };
        let why = json!({ "rule": ruling.verdict.rule, "reason": ruling.verdict.reason });
        self.say_agent(chosen_answer(frame.get(frame.peek().id), chosen, &why), Class::Effect);
    }

    /// Passes a permission request on to whoever has the session open.
    fn pass_permission(&mut self, frame: &Frame, options: Vec<Offer>, ruling: Ruling) {
        let agent_id = frame.copy(frame.peek().id);
        let kept = Some(Bytes::copy_from_slice(frame.bytes()));
        let mut ask = Ask::new(agent_id, Method::RequestPermission);
        (ask.frame, ask.options, ask.ruling) = (kept, options, Some(ruling));
        let number = self.asks.register(ask);
        let id = self.editor_id(number);
        self.outgoing.push((self.index, id));
        self.pass_with_id(frame, id);
    }

    /// Asks whoever has the session open about a request that asks for no permission
    /// itself.
    fn ask_about(&mut self, frame: &Frame, ruling: Ruling) {
        let params: Value = frame.decode(frame.peek().params).unwrap_or_default();
        let waiting: usize = self.asks.iter().filter_map(|ask| ask.frame.as_ref()).map(Bytes::len).sum();
        if waiting + frame.bytes().len() > MOST_HELD {
            let refusal = Refusal::new(code::LIMIT, "too much waits for an answer of people already");
            return self.say_agent(refusal.frame(frame.get(frame.peek().id)), Class::Stop);
        }
        let (kind, title, input) = described(frame.peek().method, &params);
        let mut ask = Ask::new(frame.copy(frame.peek().id), frame.peek().method);
        ask.held = Some(Held::Request(frame.clone()));
        self.ask_people(ask, kind, &title, &input, ruling);
    }

    /// A question of our own. It looks like an agent's, so that every editor can show it.
    pub(super) fn ask_people(
        &mut self,
        mut ask: Ask,
        kind: &str,
        title: &str,
        input: &Value,
        ruling: Ruling,
    ) {
        ask.options = vec![
            Offer { id: "allow".into(), kind: OfferKind::AllowOnce },
            Offer { id: "always".into(), kind: OfferKind::AllowAlways },
            Offer { id: "reject".into(), kind: OfferKind::RejectOnce },
        ];
        let number = self.asks.register(ask);
        let id = self.editor_id(number);
        let mut options = vec![
            json!({ "optionId": "allow", "name": "Allow once", "kind": "allow_once" }),
            json!({ "optionId": "reject", "name": "Reject", "kind": "reject_once" }),
        ];
        // What could not be told cannot be told again.
        if ruling.is_exact() {
            let always =
                json!({ "optionId": "always", "name": "Allow in this session", "kind": "allow_always" });
            options.insert(1, always);
        }
        let params = json!({
            "sessionId": self.open.id.to_string(),
            "toolCall": {
                "toolCallId": format!("conductor-{number}"), "title": title, "kind": kind,
                "status": "pending", "rawInput": input,
            },
            "options": options,
            "_meta": { "conductor": { "rule": ruling.verdict.rule, "reason": ruling.verdict.reason } },
        });
        let line = acp::call(Some(id.to_string()), PERMISSION, &params);
        if let Some(ask) = self.asks.get_mut(number) {
            ask.frame = Some(line.slice(..line.len() - 1));
        }
        self.tell_editor(line);
        self.note_ruling(&ruling, PERMISSION, About::Last);
        if let Some(ask) = self.asks.get_mut(number) {
            ask.ruling = Some(ruling);
        }
    }

    /// Somebody has answered a permission request, or nobody has.
    pub(super) fn settle_permission(&mut self, ask: Ask, answer: &Frame) {
        self.heard = Instant::now();
        let chosen = selected(answer);
        let offer = chosen.as_ref().and_then(|id| ask.options.iter().find(|offer| offer.id == *id));
        let kind = offer.map(|offer| offer.kind);
        let allows = matches!(kind, Some(OfferKind::AllowOnce | OfferKind::AllowAlways));
        let rejects = matches!(kind, Some(OfferKind::RejectOnce | OfferKind::RejectAlways));
        if let Some(ruling) = ask.ruling.as_ref().filter(|_| allows) {
            if kind == Some(OfferKind::AllowAlways) {
                self.grant(ruling);
            }
            let is_sent =
                kind == Some(OfferKind::AllowOnce) || pick(&ask.options, &[OfferKind::AllowOnce]).is_some();
            if ask.held.is_none() && is_sent {
                self.let_pass(ruling);
                self.expect(ask.frame.as_deref().unwrap_or_default(), ruling);
            }
        }
        match ask.held {
            Some(Held::Request(frame)) if allows => self.go_on_late(&frame),
            Some(Held::Opening) if allows => self.open_allowed(),
            Some(Held::Opening) => self.refuse_opening(&denied(None, "the MCP servers were not allowed")),
            Some(Held::Request(frame)) => {
                let id = frame.get(frame.peek().id);
                let refusal = match answer.peek().kind == Kind::Result && chosen.is_none() {
                    true => Refusal::new(code::CANCELLED, "nobody allowed it"),
                    false => denied(None, "it was declined by a person"),
                };
                self.say_agent(refusal.frame(id), Class::Stop);
            }
            None => {
                // In our own words: what an editor adds was not judged.
                let (once, why) = match kind {
                    Some(OfferKind::AllowAlways) => match pick(&ask.options, &[OfferKind::AllowOnce]) {
                        Some(once) => (Some(once), Value::Null),
                        None => (rejection(&ask.options), json!({ "reason": NO_ALLOW_ONCE })),
                    },
                    Some(OfferKind::RejectAlways) => (rejection(&ask.options), Value::Null),
                    Some(_) => (chosen.as_deref(), Value::Null),
                    // An error allows nothing, whatever it says.
                    None if answer.peek().kind == Kind::Error => {
                        return self.relay_rejection(&ask.agent_id, answer);
                    }
                    None if chosen.is_none() => (None, Value::Null),
                    None => (rejection(&ask.options), json!({ "reason": "an answer that was not on offer" })),
                };
                let class = if rejects || once.is_none() { Class::Stop } else { Class::Effect };
                self.say_agent(chosen_answer(&ask.agent_id, once, &why), class);
            }
        }
    }

    /// Nobody is there, and nobody came in time.
    pub(super) fn deny_unattended(&mut self) {
        let timeout = self.open.rules.ask_timeout;
        let reason = format!("nobody was there to answer for {timeout:?}");
        while let Some((number, _)) = self.asks.find(Ask::is_permission) {
            let Some(ask) = self.asks.complete(number) else { break };
            self.decided(number, None);
            match ask.held {
                Some(Held::Opening) => self.refuse_opening(&denied(None, &reason)),
                Some(Held::Request(frame)) => {
                    self.say_agent(denied(None, &reason).frame(frame.get(frame.peek().id)), Class::Stop);
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
    pub(super) fn unattended_due(&self) -> Option<Instant> {
        let since = self.unattended_since?;
        let last = self.asks.iter().filter(|ask| ask.is_permission()).map(|ask| ask.asked).min()?;
        Some(since.max(last) + self.open.rules.ask_timeout)
    }

    /// What a person has allowed once may be done when the tool call comes to it.
    fn let_pass(&mut self, ruling: &Ruling) {
        let asked = ruling.verdict.sub_actions.iter().filter(|judged| judged.decision != Effect::Allow);
        let exact = asked.filter(|judged| is_exact(&judged.action));
        self.judge.passes.extend(exact.map(|judged| judged.action.clone()).take(MOST_GRANTS));
        let over = self.judge.passes.len().saturating_sub(MOST_GRANTS);
        self.judge.passes.drain(..over);
    }

    /// What was allowed is what the tool call must do.
    fn expect(&mut self, request: &[u8], ruling: &Ruling) {
        let mut request: Value = serde_json::from_slice(request).unwrap_or_default();
        let call = &mut request["params"]["toolCall"];
        let id = call["toolCallId"].as_str().unwrap_or_default().to_string();
        let earlier = self.judge.calls.of(&id);
        let announced = earlier.into_iter().rev().map(|mut update| update["rawInput"].take());
        let inputs = std::iter::once(call["rawInput"].take()).chain(announced);
        let input = inputs.into_iter().find(|input| !input.is_null()).unwrap_or_default();
        let actions = ruling.verdict.sub_actions.iter().map(|judged| judged.action.clone()).collect();
        self.watched.allowed(&id, input, actions);
    }

    /// For the rest of the session exactly this is allowed.
    fn grant(&mut self, ruling: &Ruling) {
        let asked = ruling.verdict.sub_actions.iter().filter(|judged| judged.decision == Effect::Ask);
        let known: Vec<&SubAction> = asked
            .map(|judged| &judged.action)
            .filter(|action| is_exact(action))
            .take(MOST_GRANTS - self.judge.grants.len().min(MOST_GRANTS))
            .collect();
        self.entries.push(Recorded::Note(note::GRANTED, json!({ "subActions": known })));
        let known: Vec<SubAction> = known.into_iter().cloned().collect();
        self.judge.grants.extend(known);
    }

    pub(super) fn note_ruling(&mut self, ruling: &Ruling, method: &str, about: About) {
        self.entries.push(Recorded::Judged(about, ruling.note(method)));
    }
}

/// Whether two sub-actions that are equal do the same: a command that reads what another
/// writes, and tools whose arguments are not part of them, may do anything.
fn is_exact(action: &SubAction) -> bool {
    match action {
        SubAction::Run(command) => !command.is_piped,
        SubAction::Mcp { .. } | SubAction::Tool { .. } | SubAction::Unknown { .. } => false,
        _ => true,
    }
}
