//! The agent's side of a session: a process, a place at it, and the agent's
//! own session there. It may be lost and found several times in a session's
//! life; what the editor asks meanwhile waits here.
//!
//! There are three ways back to a conversation, tried in this order:
//! `session/resume`; `session/load`, whose replay is kept from the editor; and
//! a new session of the agent's that is handed what was recorded, in front of
//! the next prompt. No prompt is ever sent twice: what was under way when a
//! process ended has been answered with an error, and what waits here has
//! never been sent.

use std::{collections::VecDeque, time::Duration};

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::{
    sync::watch,
    time::{Instant, timeout},
};
use tracing::debug;
use uuid::Uuid;

use super::{
    Asked, Binding, Input, LEAD, MAX_QUEUED_PROMPTS, Opening, Purpose, Recorded, Request, Session,
    flight::Held, from_editor::take_from, handover::Missed, past::Replayed, place::Reaching,
};
use crate::{
    acp::{self, AgentHello, Refusal, code},
    agent::{Attachment, Ended},
    frame::{Frame, Kind, Method},
    journal::Class,
    limits,
    pending::{Pending, WireId},
    pool::{Key, Lease, Pool},
    record::note,
};

/// How long the process that served a session before may take to end. Some
/// agents refuse a session that another process of theirs has open.
const LEAVING: Duration = Duration::from_secs(10);

/// How long an agent that is to take a session back may say nothing at all.
pub(super) const SILENCE: Duration = Duration::from_secs(60);

/// How a session comes to its agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// It is new to both.
    New,
    /// `session/resume`.
    Resume,
    /// `session/load`, with its replay swallowed.
    Load,
    /// A new session of the agent's, with a hand-over.
    Handover,
    /// The process was kept since the session has left it.
    Back,
}

impl Way {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::Resume => "resume",
            Self::Load => "load",
            Self::Handover => "handover",
            Self::Back => "back",
        }
    }

    fn method(self) -> &'static str {
        match self {
            Self::New | Self::Handover => "session/new",
            Self::Resume => "session/resume",
            Self::Load | Self::Back => "session/load",
        }
    }
}

/// A place at a process, and the ways to try there.
pub(super) struct Reached {
    lease: Lease,
    attachment: Attachment,
    ways: VecDeque<Way>,
}

/// A way that has led to the agent.
#[derive(Debug)]
pub(super) struct Settled {
    pub(super) way: Way,
    /// The answer to the editor's opening request, if that was the reason.
    pub(super) answer: Option<Bytes>,
}

async fn reach(
    pool: Pool,
    held: Result<limits::Held, limits::Exceeded>,
    key: Key,
    owner: String,
    told: watch::Sender<usize>,
    known: Option<Bytes>,
    leaving: Option<Ended>,
) -> Result<Reached, Refusal> {
    let held = held.map_err(|reached| reached.refusal())?;
    if let Some(mut leaving) = leaving {
        timeout(LEAVING, leaving.wait()).await.ok();
    }
    let lease = pool.lease_told(key, &owner, told).await.map_err(|why| why.refusal())?;
    let lease = lease.with(held);
    let ways = match &known {
        None => [Way::New].into(),
        Some(name) => ways(&lease.process.hello, name),
    };
    attach(lease, ways, known.unwrap_or_default()).await
}

/// The ways that an agent offers, best first.
fn ways(hello: &AgentHello, name: &[u8]) -> VecDeque<Way> {
    let mut ways = VecDeque::new();
    if !name.is_empty() && hello.can("resume") {
        ways.push_back(Way::Resume);
    }
    if !name.is_empty() && hello.can_load() {
        ways.push_back(Way::Load);
    }
    ways.push_back(Way::Handover);
    ways
}

async fn attach(lease: Lease, ways: VecDeque<Way>, name: Bytes) -> Result<Reached, Refusal> {
    let known = matches!(ways.front(), Some(Way::Resume | Way::Load)).then_some(name);
    match lease.process.attach(known).await {
        Some(attachment) => Ok(Reached { lease, attachment, ways }),
        None => Err(Refusal::new(code::AGENT_ENDED, lease.process.exited().await.to_string())),
    }
}

impl Session {
    /// Whether the agent can be asked something now.
    pub(super) fn is_ready(&self) -> bool {
        let is_set = |request: &Request| matches!(request.purpose, Purpose::SetBack | Purpose::Wish);
        let is_set_back = !self.requests.iter().any(is_set);
        self.way.is_none()
            && self.onward.is_none()
            && is_set_back
            && self.binding.as_ref().is_some_and(|binding| !binding.process().is_ending())
    }

    /// Keeps a request until the agent can be asked, and sees to that.
    pub(super) fn wait_for_agent(&mut self, seat: u32, frame: &Frame) {
        if self.waiting_of(Kind::Request) >= MAX_QUEUED_PROMPTS {
            return self.refuse(seat, frame, code::LIMIT, "too much is waiting for this session's agent");
        }
        // It is recorded when it goes on.
        self.hand.deferred = true;
        self.trace_waiting(seat, frame);
        let asked = self.asked(seat, frame);
        self.waiting.push_back(asked);
        self.wake();
    }

    /// Keeps a notification until then, if there is room; nobody is woken for it.
    pub(super) fn keep_for_agent(&mut self, seat: u32, frame: &Frame) {
        if self.waiting_of(Kind::Notification) < MAX_QUEUED_PROMPTS {
            self.hand.deferred = true;
            let asked = self.asked(seat, frame);
            self.waiting.push_back(asked);
        }
    }

    /// How many of a kind wait. Each kind has room of its own: notifications wake
    /// nobody, and must not keep those out that do.
    fn waiting_of(&self, kind: Kind) -> usize {
        self.waiting.iter().filter(|asked| asked.frame.peek().kind == kind).count()
    }

    /// Begins to look for a process, unless there is one or it is on its way.
    pub(super) fn wake(&mut self) {
        // Somebody may have to allow it first.
        let is_held = self.asks.iter().any(|ask| matches!(ask.held, Some(Held::Opening)));
        if self.binding.is_some() || self.reaching.is_some() || self.ended || is_held {
            return;
        }
        let known = match self.open.opening {
            Opening::New if !self.is_open => None,
            _ => Some(self.agent_session.clone()),
        };
        let (pool, key, owner) = (self.pool.clone(), self.open.berth.key.clone(), self.open.owner.clone());
        let held = self.router.limits().hold(limits::Kind::Processes, &self.open.caller);
        let (told, position) = watch::channel(0);
        self.traced.spawns(&key.agent);
        let reaching = Reaching::new(reach(pool, held, key, owner, told, known, self.leaving.take()));
        // Before it is open the editor has no session that could be spoken of.
        self.reaching = Some(if self.is_open { reaching.shown(position) } else { reaching });
    }

    /// There is a place at a process, or there is none to be had.
    pub(super) fn reached(&mut self, reached: Result<Reached, Refusal>) {
        self.reaching = None;
        self.traced.spawned();
        let Reached { lease, attachment, ways } = match reached {
            Ok(reached) => reached,
            Err(refusal) => return self.not_bound(&refusal),
        };
        let Some(way) = ways.front().copied() else { return };
        let name = match way {
            Way::Resume | Way::Load => self.agent_session.clone(),
            Way::New | Way::Handover | Way::Back => Bytes::new(),
        };
        (self.ways, self.way, self.exit) = (ways, Some(way), None);
        self.is_replaying = false;
        // Numbers begin anew at every place: the first request opens it.
        self.requests = Pending::new();
        let binding = Binding { id: Uuid::now_v7(), lease, slot: attachment.slot, name };
        self.note_bound(&binding, None);
        // What either has been given may be said by the other from now on.
        binding.process().is_told(self.recorder.known());
        self.recorder.know_all(&binding.process().known());
        (self.binding, self.output) = (Some(binding), Some(attachment.output));
        if way == Way::New { self.ask_to_open() } else { self.ask_again(way) }
    }

    /// Asks the agent for the session in our own words: what the editor said
    /// when it opened it, under the agent's name.
    fn ask_again(&mut self, way: Way) {
        let request = self.open.request.clone();
        let mut params: Value = request.decode(request.peek().params).unwrap_or_default();
        if !params["mcpServers"].is_array() {
            params["mcpServers"] = json!([]);
        }
        if let Some(all) = self.with_injected(&params["mcpServers"]) {
            params["mcpServers"] = all;
        }
        if let Some(params) = params.as_object_mut() {
            params.remove("sessionId");
        }
        if way != Way::Handover {
            params["sessionId"] = serde_json::from_slice(&self.agent_session).unwrap_or_default();
        }
        let id = self.number(if self.is_open {
            Request::ours(Purpose::Rebind)
        } else {
            Request { editor_id: request.copy(request.peek().id), ..Request::ours(Purpose::Open) }
        });
        self.say_agent(acp::call(Some(id.to_string()), way.method(), &params), Class::Effect);
        self.heard = Instant::now();
        let is_asked = std::mem::replace(&mut self.is_asked, true);
        self.commit(if is_asked { Input::Nothing } else { Input::Frame(LEAD, &request) });
    }

    /// The agent has answered our attempt to come back.
    pub(super) fn agent_answered_way(&mut self, frame: &Frame, request: &Request) {
        let peek = frame.peek();
        let Some(way) = self.way else { return };
        if peek.kind == Kind::Error {
            let refusal = Refusal::of(frame);
            self.ways.pop_front();
            if refusal.code != code::AUTH_REQUIRED && !self.ways.is_empty() {
                let (way, why) = (way.name(), self.recorder.redacted(&refusal.message));
                debug!(way, %why, "the agent did not take the session back; the next way is tried");
                return self.try_next_way();
            }
            return self.not_bound(&refusal);
        }
        let mut result = frame.copy(peek.outcome);
        let told = frame.get(peek.outcome);
        if way == Way::Handover {
            if peek.session.is_none() {
                let text = "the agent answered session/new without a sessionId";
                return self.not_bound(&Refusal::new(code::INTERNAL, text));
            }
            if let Some(binding) = &mut self.binding {
                binding.name = frame.copy(peek.session);
            }
            let mut members: Value = frame.decode(peek.outcome).unwrap_or_default();
            if let Some(members) = members.as_object_mut() {
                members.remove("sessionId");
            }
            result = members.to_string().into();
        }
        self.take_options(told);
        self.renew_picker();
        self.learn_offer();
        let answer = (request.purpose == Purpose::Open).then(|| {
            let line = acp::result(&request.editor_id, &result);
            let shown = Frame::parse(line.slice(..line.len() - 1)).ok();
            let shown = shown.and_then(|frame| self.with_shown(&frame, frame.peek().outcome));
            shown.map_or(line, |frame| Bytes::from([frame.bytes(), b"\n"].concat()))
        });
        self.settled = Some(Settled { way, answer });
    }

    /// What the agent may be replaying at this moment.
    pub(super) fn replayed(&self) -> Option<Replayed> {
        if self.is_replaying {
            return Some(Replayed { id: Vec::new(), goes_on: true });
        }
        let way = self.way.filter(|way| matches!(way, Way::Resume | Way::Load))?;
        let is_it = |request: &Request| matches!(request.purpose, Purpose::Open | Purpose::Rebind);
        let (number, _) = self.requests.find(is_it)?;
        let id = WireId { slot: self.binding.as_ref()?.slot, number }.to_string().into_bytes();
        Some(Replayed { id, goes_on: way == Way::Load })
    }

    /// By when the agent must have said something to our attempt to come back.
    pub(super) fn way_due(&self) -> Option<Instant> {
        let is_asked = self.settled.is_none() && self.way.is_some_and(|way| way != Way::New);
        is_asked.then(|| self.heard + SILENCE)
    }

    /// It has not: the next request tries it with another process.
    pub(super) fn way_overdue(&mut self) {
        let (agent, method) = (self.agent(), self.way.map_or("", Way::method));
        let silence = SILENCE.as_secs();
        let text =
            format!("agent `{agent}` said nothing to {method} for {silence} s; ask again to start it anew");
        self.not_bound(&Refusal::new(code::AGENT_ENDED, text));
    }

    /// Another place at the same process, so that what the agent says of the
    /// failed attempt is not taken for the next one.
    fn try_next_way(&mut self) {
        self.output = None;
        if let Some(Binding { lease, .. }) = self.binding.take() {
            let ways = std::mem::take(&mut self.ways);
            self.reaching = Some(Reaching::new(attach(lease, ways, self.agent_session.clone())));
        }
    }

    /// No way leads to the agent: whoever waits is told why, and the next
    /// request tries again.
    pub(super) fn not_bound(&mut self, refusal: &Refusal) {
        if self.asks_another(refusal) {
            return;
        }
        self.give_up(refusal);
    }

    /// Nobody else is asked either.
    pub(super) fn give_up(&mut self, refusal: &Refusal) {
        if !self.is_open {
            return self.refuse_opening(refusal);
        }
        self.routing.start_over();
        self.refuse_waiting(refusal);
        self.commit(Input::Nothing);
        self.unbind();
    }

    /// Lets the process go.
    pub(super) fn unbind(&mut self) {
        // Whoever is next need not wait for one who has gone.
        self.reaching = None;
        self.refuse_agent(None);
        // Whoever comes next has not asked these.
        self.withdraw(|ask| ask.is_permission() && !matches!(ask.held, Some(Held::Opening)));
        if let Some(binding) = self.binding.take()
            && !self.open.berth.shares_process
        {
            self.leaving = Some(binding.process().ended());
        }
        self.way = None;
        self.to_agent.clear();
    }

    /// The way is taken: history is told where that is due, the editor gets its
    /// answer, and what waits goes on.
    pub(super) async fn settle(&mut self, settled: Settled) {
        let Settled { way, answer } = settled;
        let is_load = matches!(self.open.opening, Opening::Load(_)) && answer.is_some();
        let told = match (is_load, way) {
            (true, _) => self.replay(way == Way::Handover).await,
            (false, Way::Handover) => self.read_past(1, Missed::Everything).await,
            // While another agent had it, this one has heard nothing.
            (false, _) => match self.missed_since(way) {
                Some(seen) => self.read_past(seen + 1, Missed::Since).await,
                None => Ok(()),
            },
        };
        if let Err(refusal) = told {
            return self.not_bound(&refusal);
        }
        if self.ended {
            return;
        }
        if !self.is_wish_fit() {
            return;
        }
        self.take_note_of_way(way);
        let by_editor = answer.is_some();
        if let Some(answer) = answer {
            self.requests.drain(|request| request.purpose == Purpose::Open);
            self.tell_editor(answer);
            for packet in std::mem::take(&mut self.early) {
                self.relay_editor(packet, Class::Stream);
            }
            self.opened();
            self.announced = self.shown();
            self.tell_fallbacks();
        }
        (self.way, self.is_replaying) = (None, way == Way::Load);
        // That a session which was asked for, or has rested, goes on as before is
        // no news.
        let is_expected = std::mem::take(&mut self.is_parked) || by_editor;
        let is_moved = self.has_moved();
        if (way == Way::Handover || !is_expected) && !is_moved {
            self.notice(way);
        }
        if is_moved {
            self.arrive();
        }
        self.idle_since = Instant::now();
        self.commit(Input::Nothing);
    }

    /// Writes down how the session is bound from now on.
    pub(super) fn take_note_of_way(&mut self, way: Way) {
        let Some(binding) = self.binding.take() else { return };
        self.count_binding(&binding.name, way);
        self.note_bound(&binding, Some(way));
        if way != Way::Handover || self.handover.is_none() {
            self.remember_binding(binding.name.clone());
        }
        self.binding = Some(binding);
    }

    /// From now on the agent's own session is worth going back to. One that
    /// was handed the past is, once it has taken it in.
    pub(super) fn remember_binding(&mut self, name: Bytes) {
        self.agent_session = name;
        let agent = self.open.berth.key.agent.clone();
        self.router.bound(self.open.id, agent, self.agent_session.clone(), self.routing.bound.clone());
    }

    /// The prompt that carried the hand-over was answered.
    pub(super) fn handed_over(&mut self) {
        if self.handover.take().is_some()
            && let Some(name) = self.binding.as_ref().map(|binding| binding.name.clone())
        {
            self.remember_binding(name);
        }
    }

    /// Tells the editor how its session goes on, if it takes such news.
    fn notice(&mut self, way: Way) {
        let (title, description) = match way {
            Way::New | Way::Back => return,
            Way::Resume => ("The session goes on", "The agent has resumed it."),
            Way::Load => ("The session goes on", "The agent has loaded it again."),
            Way::Handover => (
                "The session goes on with a new agent session",
                "The agent could not take it back; it gets the recorded turns with your next prompt.",
            ),
        };
        self.say_notice("info", title, description);
    }

    /// An update of our own.
    pub(super) fn say_update(&mut self, update: &Value) {
        let params = json!({ "sessionId": self.open.id.to_string(), "update": update });
        self.tell_editor(acp::call(None, "session/update", &params));
    }

    /// Passes on what has waited.
    pub(super) fn feed_waiting(&mut self) {
        while self.is_ready()
            && let Some(Asked { seat, frame, is_again, .. }) = self.waiting.pop_front()
        {
            if is_again {
                self.prompt_again(seat, &frame);
                self.commit(Input::Nothing);
                continue;
            }
            if self.may_drive(seat) {
                self.from_editor(seat, &frame);
            } else if frame.peek().kind == Kind::Request {
                self.answer(seat, Refusal::unknown_session(&frame).frame(frame.get(frame.peek().id)));
            }
            self.commit(Input::Frame(seat, &frame));
        }
    }

    /// Answers what waits and will not be passed on.
    pub(super) fn refuse_waiting(&mut self, refusal: &Refusal) {
        for asked in std::mem::take(&mut self.waiting) {
            if asked.frame.peek().kind == Kind::Request {
                self.answer_queued(asked, |id| refusal.frame(id));
            } else {
                self.hand.entries.push(Recorded::Late(asked.seat, asked.frame, None));
            }
        }
    }

    /// Answers the prompts among it, of one seat or of all, as cancelled.
    pub(super) fn cancel_waiting(&mut self, seat: Option<u32>) {
        let is_one = |asked: &Asked| {
            asked.frame.peek().method == Method::SessionPrompt && seat.is_none_or(|seat| asked.seat == seat)
        };
        for prompt in take_from(&mut self.waiting, is_one) {
            self.answer_queued(prompt, |id| acp::result(id, acp::CANCELLED_TURN));
        }
    }

    /// When the session's process is released, if nothing happens until then.
    pub(super) fn park_at(&self) -> Option<Instant> {
        // Asked before every wait: what is cheap and mostly false comes first.
        let is_idle = self.turn.is_none()
            && !self.open.berth.park_after.is_zero()
            && self.is_open
            && self.is_ready()
            && self.handover.is_none()
            && self.queued.is_empty()
            && self.waiting.is_empty()
            && self.requests.is_empty()
            && self.asks.is_empty()
            && self.terminals.is_empty()
            && self.host.is_idle()
            && self.to_agent.is_empty()
            && self.to_editor.is_empty()
            && !self.is_unwritten();
        let hello = &self.binding.as_ref().filter(|_| is_idle)?.process().hello;
        (hello.can("resume") || hello.can_load()).then(|| self.idle_since + self.open.berth.park_after)
    }

    /// Releases the process of an idle session; the next request brings it back.
    pub(super) fn park(&mut self) {
        debug!("the session is idle; its process is released");
        self.close_at_agent();
        self.recorder.note(note::SESSION_PARKED, &json!({ "after": self.open.berth.park_after.as_secs() }));
        self.commit(Input::Nothing);
        self.is_parked = true;
        self.unbind();
    }
}
