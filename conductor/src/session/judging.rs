//! What the policy says to an agent's requests, before anything comes of them.
//!
//! Every request that would do something in the world is taken apart, held
//! against the rules of one revision and written down with what came out,
//! before its answer or its effect goes on. What the rules leave to people goes
//! to whoever has the session open.

use std::{borrow::Cow, path::PathBuf, sync::Arc, time::Instant as Clock};

use bytes::Bytes;
use serde_json::{Value, json};

use super::{
    Ask, Recorded, Session,
    approving::Put,
    asking::{call_id, chosen_answer, described, input_of, offers, pick, rejection},
    calls::Calls,
    denials::Denials,
    flight::{Held, Offer, OfferKind},
    granting::{Pass, Recall, unite},
    narrowing::Noted,
    outbox::About,
    patience::Patience,
    terms::Rules,
    traced::ruled,
};
use crate::{
    acp::{self, Refusal, code},
    frame::{Frame, Method},
    grants::Use,
    journal::Class,
    policy::{
        Absent, Action, Disk, Effect, Ground, Policy, Standing, SubAction, Verdict, has_duplicate_keys,
        normalise,
    },
    record::note,
};

/// Bytes of requests that may wait for an answer of people; one frame of the largest size,
/// and the question about it.
const MOST_HELD: usize = 32 << 20;

/// What an agent is told then.
const TOO_MUCH_WAITS: &str = "too much waits for an answer of people already";

/// What asks people.
const PERMISSION: &str = "session/request_permission";

/// An agent that can only be allowed something for ever would not ask again.
pub(super) const NO_ALLOW_ONCE: &str = "no_allow_once: the agent offers no way to allow this one time only";

/// The rules of a session, and what people have added to them.
#[derive(Debug, Default)]
pub(super) struct Judge {
    /// The team's rules, and the same narrowed for this session.
    pub(super) narrowed: Option<(Arc<Policy>, Arc<Policy>)>,
    pub(super) calls: Calls,
    /// Allowed once, in this turn: what a tool call was allowed to do may be asked for
    /// again when it does so.
    pub(super) passes: Vec<Pass>,
    /// The mode that the session is in, once it was judged; not one that is denied.
    pub(super) mode: Option<String>,
    /// The mode that people have set, or that the session was opened with.
    pub(super) chosen_mode: Option<String>,
    /// How often a forbidden one was set back.
    pub(super) set_back: u32,
    /// What is known of the directories in which programs are looked for.
    absent: Absent,
    /// How much people were asked.
    pub(super) patience: Patience,
    /// What people were told of.
    pub(super) denials: Denials,
    /// Where what narrows the rules is recorded, if anything does; see [`Standing`].
    pub(super) narrowing: Option<u64>,
    /// Where that was recorded before.
    pub(super) noted: Noted,
}

/// A verdict, and what is to be known of how it came to be.
#[derive(Debug)]
pub(super) struct Ruling {
    pub(super) verdict: Verdict,
    /// What counts, after what people have allowed before.
    pub(super) effect: Effect,
    pub(super) is_granted: bool,
    /// Grants that were used for that.
    pub(super) uses: Vec<Use>,
    /// Who asked, as the rules were told.
    standing: Standing,
    revision: String,
    pub(super) took_us: u64,
}

impl Ruling {
    /// A verdict that was reached before the session was.
    pub(super) fn of(verdict: Verdict, standing: Standing, revision: String) -> Self {
        let effect = verdict.decision;
        Self { effect, verdict, is_granted: false, uses: Vec::new(), standing, revision, took_us: 0 }
    }

    /// What is written down.
    fn note(&self, method: &str) -> Value {
        // A path that is no text cannot be written down: null, which says so.
        let sub_actions = serde_json::to_value(&self.verdict.sub_actions).unwrap_or_default();
        let subject = serde_json::to_value(&self.standing).unwrap_or_default();
        let mut note = json!({
            "method": method,
            "decision": self.effect,
            "ruled": self.verdict.decision,
            "revision": self.revision,
            "rule": if self.is_granted { Some("granted") } else { self.verdict.rule.as_deref() },
            "rules": self.verdict.rules,
            "reason": self.verdict.reason,
            "subject": subject,
            "subActions": sub_actions,
            "tookUs": self.took_us,
        });
        // That nothing is said of it is something else than that nobody knows.
        if self.verdict.decision == Effect::Ask {
            note["asks"] = serde_json::to_value(&self.verdict.asks).unwrap_or_default();
        }
        note
    }

    /// Whether all that would be done can be told apart from anything else.
    fn is_exact(&self) -> bool {
        self.verdict
            .sub_actions
            .iter()
            .all(|judged| judged.decision == Effect::Allow || judged.action.is_exact())
    }

    /// What would be done, without what rules have found in it.
    pub(super) fn own(&self) -> impl Iterator<Item = &SubAction> {
        self.verdict.sub_actions.iter().filter(|judged| !judged.derived).map(|judged| &judged.action)
    }

    /// What people are asked about.
    pub(super) fn asked(&self) -> Vec<SubAction> {
        let asked = self.verdict.sub_actions.iter().filter(|judged| judged.decision == Effect::Ask);
        asked.map(|judged| judged.action.clone()).collect()
    }

    /// What the agent is told of a denial.
    pub(super) fn refusal(&self) -> Refusal {
        denied(self.verdict.rule.as_deref(), &self.verdict.reason)
    }
}

/// A request that may go on.
#[derive(Debug, Default)]
pub(super) struct Judged {
    /// Where the path in it led when it was judged; none if it has none, or that could not be told.
    pub(super) place: Option<PathBuf>,
}

impl Judged {
    pub(super) fn of(ruling: &Ruling) -> Self {
        let fact = ruling.verdict.sub_actions.iter().find_map(|judged| judged.action.path());
        Self { place: fact.and_then(|fact| fact.resolved.clone()) }
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
    /// session was opened, or when the user came: the agent cannot take it back.
    pub(super) fn policy(&mut self, rules: &Rules) -> Arc<Policy> {
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

    /// Another agent has the session: what was told of the former one's calls and
    /// modes is not about this one. What people have granted is about the session.
    pub(super) fn forget_agent(&mut self) {
        self.calls.forget();
        self.passes.clear();
        (self.mode, self.chosen_mode, self.set_back) = (None, None, 0);
    }

    /// A turn has ended: what was allowed once was for that.
    pub(super) fn turn_ended(&mut self) {
        self.passes.clear();
    }
}

impl Session {
    /// Judges something by the rules alone.
    pub(super) fn rule(&mut self, action: &Action) -> Ruling {
        self.rule_all(std::slice::from_ref(action), None, Recall::Nothing)
    }

    /// Judges several things at once: the strictest outcome counts. What people have allowed
    /// before may turn *ask* into *allow*, and is used by that.
    pub(super) fn rule_all(
        &mut self,
        actions: &[Action],
        beside: Option<SubAction>,
        recall: Recall,
    ) -> Ruling {
        let began = Clock::now();
        let step = self.traced.step("policy");
        let policy = self.judge.policy(&self.open.rules);
        let standing = self.standing();
        let mut apart: Vec<SubAction> = Vec::new();
        for action in actions {
            // What two readings of a request have in common is done once.
            let read = self.taken_apart(action);
            unite(&mut apart, read);
        }
        apart.extend(beside);
        let verdict = policy.judge(&standing, &apart);
        let uses = self.recall(&verdict, recall);
        let is_granted = uses.is_some();
        let effect = if is_granted { Effect::Allow } else { verdict.decision };
        let took_us = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
        let (uses, revision) = (uses.unwrap_or_default(), policy.revision().to_owned());
        let ruling = Ruling { effect, is_granted, uses, verdict, standing, revision, took_us };
        ruled(&step, &ruling);
        ruling
    }

    /// Who asks now. A mode that people have set may allow something. One that the agent has
    /// chosen itself may only forbid.
    fn standing(&self) -> Standing {
        let mut subject = self.open.rules.subject.clone();
        subject.model = self.current("model");
        subject.mode.clone_from(&self.judge.chosen_mode);
        let now = self.current("mode");
        let agent_mode = (now != subject.mode).then_some(now);
        Standing { subject, agent_mode, narrowing: self.judge.narrowing }
    }

    /// What something would do, seen from the session's directory.
    pub(super) fn taken_apart(&mut self, action: &Action) -> Vec<SubAction> {
        let search = self.binding.as_ref().map(|binding| binding.process().search()).unwrap_or_default();
        let absent = std::mem::take(&mut self.judge.absent);
        let disk = Disk::resolved(self.open.berth.roots.clone(), search, absent);
        let apart = normalise(action, &Ground { cwd: &self.open.cwd, resolver: &disk });
        self.judge.absent = disk.into_absent();
        apart
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

    /// Judges a request of the agent. None if it does not go on as it is; then it has been
    /// answered, or somebody is asked.
    pub(super) fn judge_agent(&mut self, frame: &Frame) -> Option<Judged> {
        let method = frame.peek().method;
        let Some(actions) = self.actions_of(frame) else {
            // Whoever carries it out may read what we cannot.
            let text = format!("the parameters of {} cannot be read", frame.method_name());
            let refusal = Refusal::new(code::INVALID_PARAMS, text);
            self.say_agent(refusal.frame(frame.get(frame.peek().id)), Class::Stop);
            return None;
        };
        if actions.is_empty() {
            return Some(Judged::default());
        }
        let beside = ambiguous(frame);
        let recall = match method {
            Method::RequestPermission => Recall::Grants,
            // A person sees it in any case.
            Method::ElicitationCreate => Recall::Nothing,
            _ => Recall::GrantsAndPasses,
        };
        let mut ruling = self.rule_all(&actions, beside, recall);
        if let [Action::Permission { params, earlier }] = &actions[..] {
            self.judge_permission(frame, params, earlier, ruling);
            return None;
        }
        self.watched.judged();
        // A person sees the address before it is opened.
        if ruling.effect == Effect::Ask && method != Method::ElicitationCreate {
            ruling = self.spare_people(ruling);
            if ruling.effect == Effect::Ask {
                self.ask_about(frame, ruling);
                return None;
            }
        }
        self.note_ruling(&ruling, &frame.method_name(), About::Input(self.hand.index));
        match ruling.effect {
            Effect::Deny => {
                self.tell_denied(&ruling);
                let id = frame.get(frame.peek().id);
                let answer = match method {
                    Method::ElicitationCreate => acp::result(id, acp::DECLINED_ELICITATION),
                    _ => ruling.refusal().frame(id),
                };
                self.say_agent(answer, Class::Stop);
                None
            }
            _ => {
                self.survey.excuses.allow(ruling.own());
                self.spend(&ruling.verdict);
                Some(Judged::of(&ruling))
            }
        }
    }

    /// What the rules say to a request by now.
    pub(super) fn judged_again(&mut self, frame: &Frame) -> Option<Ruling> {
        self.actions_of(frame).map(|actions| self.rule_all(&actions, ambiguous(frame), Recall::Nothing))
    }

    /// With the parameters of the request, and what was announced of its tool call before.
    fn judge_permission(&mut self, frame: &Frame, params: &Value, earlier: &[Value], mut ruling: Ruling) {
        let offers = offers(params);
        if ruling.effect == Effect::Ask {
            ruling = self.spare_people(ruling);
        }
        self.watched.asked(call_id(params));
        let once = pick(&offers, &[OfferKind::AllowOnce]);
        if ruling.effect == Effect::Allow && once.is_none() {
            ruling.verdict.reason = NO_ALLOW_ONCE.into();
        }
        self.note_ruling(&ruling, PERMISSION, About::Input(self.hand.index));
        let chosen = match ruling.effect {
            Effect::Ask => return self.pass_permission(frame, params, earlier, offers, ruling),
            Effect::Allow if once.is_some() => {
                self.survey.excuses.allow(ruling.own());
                self.let_pass(&ruling);
                self.expect(call_id(params), input_of(params, earlier), &ruling);
                once
            }
            Effect::Allow | Effect::Deny => {
                self.tell_denied(&ruling);
                rejection(&offers)
            }
        };
        let why = json!({ "rule": ruling.verdict.rule, "reason": ruling.verdict.reason });
        self.say_agent(chosen_answer(frame.get(frame.peek().id), chosen, &why), Class::Effect);
    }

    /// Puts a permission request to people: to whoever has the session open, if the rules
    /// do not want others.
    fn pass_permission(
        &mut self,
        frame: &Frame,
        params: &Value,
        earlier: &[Value],
        options: Vec<Offer>,
        ruling: Ruling,
    ) {
        if self.holds_too_much(frame) {
            let why = json!({ "reason": TOO_MUCH_WAITS });
            let answer = chosen_answer(frame.get(frame.peek().id), rejection(&options), &why);
            return self.say_agent(answer, Class::Stop);
        }
        let agent_id = frame.copy(frame.peek().id);
        let kept = Some(Bytes::copy_from_slice(frame.bytes()));
        let clean = |call: &Value| self.recorder.redacted_value(call).unwrap_or_else(|| call.clone());
        let shown: Vec<Value> = earlier.iter().map(clean).collect();
        let recorded = self.recorded_form(frame);
        let recorded: Option<Value> =
            recorded.map(|frame| frame.decode(frame.peek().params).unwrap_or_default());
        let put = Put::of_request(recorded.as_ref().unwrap_or(params), &shown);
        let mut ask = Ask::new(agent_id, Method::RequestPermission);
        let is_shown = Self::shows(&ruling);
        (ask.frame, ask.options, ask.ruling, ask.is_shown) = (kept, options, Some(ruling), is_shown);
        ask.expected = Some((call_id(params).to_owned(), input_of(params, earlier)));
        let number = self.asks.register(ask);
        if is_shown {
            let id = self.editor_id(number);
            self.hand.outgoing.push((self.hand.index, id));
            self.pass_with_id(frame, id);
        }
        self.open_approval(number, About::Input(self.hand.index), put);
    }

    /// Whether one more request would be more than may wait for people.
    fn holds_too_much(&self, frame: &Frame) -> bool {
        let size = |ask: &Ask| {
            let held = match &ask.held {
                Some(Held::Request(frame)) => frame.bytes().len(),
                _ => 0,
            };
            held + ask.frame.as_ref().map_or(0, Bytes::len)
        };
        self.asks.iter().map(size).sum::<usize>() + frame.bytes().len() > MOST_HELD
    }

    /// Asks whoever has the session open about a request that asks for no permission
    /// itself.
    fn ask_about(&mut self, frame: &Frame, ruling: Ruling) {
        let params: Value = frame.decode(frame.peek().params).unwrap_or_default();
        if self.holds_too_much(frame) {
            let refusal = Refusal::new(code::LIMIT, TOO_MUCH_WAITS);
            return self.say_agent(refusal.frame(frame.get(frame.peek().id)), Class::Stop);
        }
        let method = frame.peek().method;
        let (kind, mut title, mut input) = described(method, &params);
        // What is cut is cut from the recorded form: the half of a secret is not known for one.
        if let Some(clean) = self.recorder.redacted_value(&params) {
            let (_, clean_title, clean_input) = described(method, &clean);
            title = clean_title;
            if method == Method::FsWrite {
                input = clean_input;
            }
        }
        let mut ask = Ask::new(frame.copy(frame.peek().id), frame.peek().method);
        // It may wait for long, and is not to keep all that it came with.
        ask.held = Some(Held::Request(frame.detached()));
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
        ask.is_shown = Self::shows(&ruling);
        let (is_shown, about) =
            (ask.is_shown, if ask.is_shown { About::Said } else { About::Input(self.hand.index) });
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
        if is_shown {
            self.tell_editor(line);
        }
        self.note_ruling(&ruling, PERMISSION, about);
        if let Some(ask) = self.asks.get_mut(number) {
            ask.ruling = Some(ruling);
        }
        let held = self.asks.get_mut(number).and_then(|ask| match &ask.held {
            Some(Held::Request(frame)) => Some(frame.clone()),
            _ => None,
        });
        let held = held.map(|frame| Held::Request(self.recorded_form(&frame).unwrap_or(frame)));
        let put = Put::of_held(kind, &self.recorder.redacted(title), held.as_ref());
        self.open_approval(number, about, put);
    }

    /// A frame as others may see it who do not have the session open; `None` if that is as it
    /// is.
    fn recorded_form(&self, frame: &Frame) -> Option<Frame> {
        match self.recorder.redacted_bytes(frame.bytes()) {
            Cow::Borrowed(_) => None,
            // It stays one, whatever is replaced; should it not, nothing is shown of it.
            Cow::Owned(bytes) => Some(Frame::parse(bytes.into()).unwrap_or_else(|_| Frame::empty())),
        }
    }

    /// What was allowed is what the tool call must do.
    pub(super) fn expect(&mut self, call: &str, input: Value, ruling: &Ruling) {
        let actions = ruling.verdict.sub_actions.iter().map(|judged| judged.action.clone()).collect();
        self.watched.allowed(call, input, actions);
    }

    pub(super) fn note_ruling(&mut self, ruling: &Ruling, method: &str, about: About) {
        self.count_ruling(ruling);
        self.hand.entries.push(Recorded::About(about, note::JUDGED, ruling.note(method)));
        self.note_uses(&ruling.uses);
    }
}

/// Which of two counts that have the same name, readers do not agree on.
fn ambiguous(frame: &Frame) -> Option<SubAction> {
    has_duplicate_keys(frame.get(frame.peek().params))
        .then(|| SubAction::unknown("a name stands twice in the request"))
}
