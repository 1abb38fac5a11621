//! What an editor says to a session.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use tokio::time::Instant;

use super::{
    Ask, Asked, MAX_IN_FLIGHT, MAX_QUEUED_PROMPTS, Purpose, Recorded, Request, Session, Turn,
    approving::By,
    asking::selected,
    flight::Said,
    handle::{LEAD, Told},
    handover::with_past_first,
    modes::meta_actions,
    picking::Picked,
    settling::Reply,
};
use crate::{
    acp::{self, Refusal, code},
    frame::{self, Frame, Kind, Method, Span, splice},
    journal::Class,
    metrics::TurnEnd,
    pending::WireId,
    record::note,
};

/// How a frame of an editor is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Noted {
    /// Where it was heard.
    AsHeard,
    /// Only now: it had to wait.
    Late,
    /// In our own words: it is on record, and goes to another agent.
    Again,
}

impl Session {
    #[allow(clippy::wrong_self_convention, reason = "named for where the frames come from")]
    pub(super) fn from_editor(&mut self, seat: u32, frame: &Frame) {
        let peek = frame.peek();
        match peek.kind {
            Kind::Request => self.editor_asks(seat, frame),
            Kind::Result | Kind::Error => self.editor_answers(seat, frame),
            Kind::Notification => match peek.method {
                Method::SessionCancel => self.cancel(seat, frame),
                Method::CancelRequest => self.cancel_request(seat, frame.get(peek.request_id)),
                // What changes something is a request, and judged as one.
                Method::SessionPrompt | Method::SessionSetMode | Method::SessionSetConfigOption => {}
                _ if !meta_actions(frame).is_ok_and(|actions| actions.is_empty()) => {}
                _ if !self.is_ready() => self.keep_for_agent(seat, frame),
                _ => self.forward(seat, frame, None, Noted::AsHeard),
            },
            Kind::Opaque => {}
        }
    }

    fn editor_asks(&mut self, seat: u32, frame: &Frame) {
        let peek = frame.peek();
        let id = frame.get(peek.id);
        // Asked first, so that nothing is begun which would have to be undone.
        if peek.method != Method::SessionClose
            && let Some(why) = self.journal.refusing()
        {
            return self.refuse(seat, frame, code::NOT_RECORDED, &*why);
        }
        if self.requests.find(|request| request.seat == seat && request.editor_id == id).is_some()
            || self.queued.iter().chain(&self.waiting).any(|asked| asked.is(seat, id))
        {
            let text = format!("a request with the id {} is already in flight", frame::escape(id, 100));
            return self.refuse(seat, frame, code::INVALID_REQUEST, text);
        }
        if peek.method == Method::SessionClose {
            return self.close(seat, frame);
        }
        if !self.is_ready() {
            return self.wait_for_agent(seat, frame);
        }
        if self.requests.len() >= MAX_IN_FLIGHT {
            let text = format!("{MAX_IN_FLIGHT} requests of this session are in flight already");
            return self.refuse(seat, frame, code::LIMIT, text);
        }
        let words;
        let frame = match if self.picks() { self.picked(seat, frame) } else { Picked::AsIs } {
            Picked::Answered => return,
            Picked::As(others) => {
                words = others;
                &words
            }
            Picked::AsIs => {
                if let Some(refusal) = self.setting_denied(frame) {
                    return self.answer(seat, refusal.frame(id));
                }
                frame
            }
        };
        self.hand.shows_options = self.picks() && peek.method == Method::SessionSetConfigOption;
        match peek.method {
            Method::SessionPrompt if self.turn.is_some() => {
                if self.queued.len() >= MAX_QUEUED_PROMPTS {
                    let text =
                        format!("{MAX_QUEUED_PROMPTS} prompts are waiting for the running turn already");
                    return self.refuse(seat, frame, code::LIMIT, text);
                }
                // It is recorded when it goes on, with the id it then has.
                self.hand.deferred = true;
                let asked = self.asked(seat, frame);
                self.queued.push_back(asked);
            }
            Method::SessionPrompt => self.begin_turn(seat, frame, Noted::AsHeard),
            _ => self.forward(seat, frame, Some(Purpose::Relay), Noted::AsHeard),
        }
    }

    fn begin_turn(&mut self, seat: u32, frame: &Frame, noted: Noted) {
        self.judge_as(seat);
        self.trace(seat, frame);
        let route = self.traced.step("route");
        let sets_out = if noted == Noted::Again { Ok(false) } else { self.leaves_for(seat, frame) };
        route.record("agent", self.routing.target.as_ref().map_or(self.agent(), |target| &target.agent));
        drop(route);
        let begins = match sets_out {
            Err(refusal) => Err(refusal),
            Ok(true) => {
                // It is recorded when it goes on, with the agent that gets it.
                self.hand.deferred |= noted == Noted::AsHeard;
                let asked = self.asked(seat, frame);
                self.queued_wait();
                return self.waiting.push_front(asked);
            }
            Ok(false) => match self.unfit(frame) {
                Some(refusal) => Err(refusal),
                None => self.may_begin(seat, noted),
            },
        };
        if let Err(refusal) = begins {
            self.traced.ended(TurnEnd::Error);
            if noted == Noted::Late {
                self.hand.entries.push(Recorded::Late(seat, frame.clone(), None));
            }
            return self.answer(seat, refusal.frame(frame.get(frame.peek().id)));
        }
        let prompt = self.routing.has_more().then(|| self.asked(seat, frame));
        self.survey_before();
        self.forward(seat, frame, Some(Purpose::Prompt), noted);
        let number =
            self.requests.find(|request| request.purpose == Purpose::Prompt).map(|(number, _)| number);
        self.is_replaying = false;
        let from_seq = self.recorder.last_seq();
        let began = Instant::now();
        self.turn = number.map(|number| Turn {
            number,
            from_seq,
            began,
            cancelled: None,
            said: Said::Nothing,
            prompt,
        });
        (self.heard, self.is_stalled) = (began, false);
    }

    /// Whether the session has to go to another agent first. Nobody goes anywhere
    /// for a prompt that is one too many.
    fn leaves_for(&mut self, seat: u32, frame: &Frame) -> Result<bool, Refusal> {
        self.router.limits().allows_prompt(self.caller(seat)).map_err(|reached| reached.refusal())?;
        self.sets_out(frame)
    }

    /// Whether a turn may begin: whoever prompts has not used up what they may, and
    /// the service goes on. What another agent could not take is counted already.
    fn may_begin(&self, seat: u32, noted: Noted) -> Result<(), Refusal> {
        if noted != Noted::Again {
            self.router.limits().prompt(self.caller(seat)).map_err(|reached| reached.refusal())?;
        }
        if self.router.begin_turn(self.open.id) {
            return Ok(());
        }
        Err(Refusal::new(code::LIMIT, "the service is stopping; ask again once it is back"))
    }

    /// After a turn's end: the next prompt, if one waits.
    pub(super) fn next_turn(&mut self) {
        while self.turn.is_none() && !self.queued.is_empty() {
            if !self.is_ready() {
                // A mode that is denied may not be left yet, or the agent has gone.
                self.queued_wait();
                return self.wake();
            }
            let Some(asked) = self.queued.pop_front() else { return };
            if !self.may_drive(asked.seat) {
                let refusal = Refusal::unknown_session(&asked.frame);
                self.answer_queued(asked, |id| refusal.frame(id));
                continue;
            }
            self.begin_turn(asked.seat, &asked.frame, Noted::Late);
        }
    }

    /// Queued prompts have to wait for the agent: before all that has come later.
    fn queued_wait(&mut self) {
        self.queued.append(&mut self.waiting);
        std::mem::swap(&mut self.queued, &mut self.waiting);
    }

    /// Sends a prompt to another agent than the one that could not take it.
    pub(super) fn prompt_again(&mut self, seat: u32, frame: &Frame) {
        self.begin_turn(seat, frame, Noted::Again);
    }

    /// Passes a request or notification on to the agent; a late one waited
    /// and is recorded only now.
    fn forward(&mut self, seat: u32, frame: &Frame, purpose: Option<Purpose>, noted: Noted) {
        let peek = frame.peek();
        let name_in = |method: &str, member: &str| {
            let is_it = purpose == Some(Purpose::Relay) && frame.method_name() == method;
            let params = is_it.then(|| frame.decode::<serde_json::Value>(peek.params)).flatten();
            params.and_then(|params| params[member].as_str().map(str::to_string))
        };
        let request = purpose.map(|purpose| Request {
            purpose,
            seat,
            editor_id: frame.copy(peek.id),
            sets: name_in("session/set_mode", "modeId"),
            sets_model: name_in("session/set_model", "modelId"),
            shows_options: std::mem::take(&mut self.hand.shows_options),
        });
        let id = request.map(|request| self.number(request));
        if let (Some(id), Some(Purpose::Prompt)) = (id, purpose) {
            let after = self.recorder.last_seq();
            self.seats.tell(seat, Told::Own { after, outgoing: id.value() });
        }
        match id.map(WireId::value) {
            _ if noted == Noted::Again => {}
            id if noted == Noted::Late => self.hand.entries.push(Recorded::Late(seat, frame.clone(), id)),
            Some(id) => self.hand.outgoing.push((0, id)),
            None => {}
        }
        let class = match peek.method {
            Method::SessionCancel => Class::Stop,
            // Requests change something: a prompt, a mode, what an extension
            // may do.
            _ if purpose.is_some() => Class::Effect,
            _ => Class::Stream,
        };
        let id = id.map(|id| id.to_string());
        let session = self.agent_name();
        let told = match &self.handover {
            Some(past) if purpose == Some(Purpose::Prompt) => {
                with_past_first(frame, past, self.takes_resources())
            }
            _ => None,
        };
        if let (Some(_), Some(past)) = (&told, &self.handover) {
            self.recorder.note(note::HANDOVER, &serde_json::json!({ "text": past }));
        }
        let mut frame = told.as_ref().unwrap_or(frame);
        let traced = (purpose == Some(Purpose::Prompt)).then(|| self.with_traceparent(frame)).flatten();
        if let Some((with, context)) = &traced {
            self.recorder.note(note::TRACED, context);
            frame = with;
        }
        let peek = frame.peek();
        let mut out = BytesMut::new();
        splice(
            &mut out,
            frame.bytes(),
            [(peek.id, id.unwrap_or_default().as_bytes()), (self.our_name_in(frame), &session)],
        );
        match noted {
            Noted::Again => self.say_agent(out.freeze(), class),
            _ => self.relay_agent(out.freeze(), class),
        }
    }

    fn editor_answers(&mut self, seat: u32, frame: &Frame) {
        let Some(number) = WireId::parse(frame.get(frame.peek().id)).map(|id| id.number) else { return };
        // An answer to something that was decided or withdrawn meanwhile.
        let Some(ask) = self.asks.get_mut(number) else { return };
        // Whoever guesses the id of a question that is for others has not answered it.
        let is_permission = ask.is_permission();
        let is_barred = is_permission && self.is_barred(number, seat, frame);
        let Some(ask) = self.asks.get_mut(number) else { return };
        if !ask.is_shown || is_barred {
            let params = serde_json::json!({ "user": self.user(seat) });
            self.recorder.note(note::DECLINED, &params);
            return;
        }
        // Where several are asked, one that does not choose leaves it to the
        // others. Anything but a permission is for the lead alone.
        let counts = match is_permission {
            true => ask.chosen(frame).is_some() || !self.declines(number, seat),
            false => seat == LEAD,
        };
        if !counts {
            let params = serde_json::json!({ "user": self.user(seat) });
            self.recorder.note(note::DECLINED, &params);
            return;
        }
        if is_permission {
            self.answered_by(number, self.caller(seat).clone());
            self.decided(number, Some(seat));
        }
        let by = By::editor(self.user(seat));
        self.take_answer(number, frame, &by);
    }

    /// Passes the answer to a request of the agent on.
    pub(super) fn take_answer(&mut self, number: u32, frame: &Frame, by: &By) {
        let peek = frame.peek();
        let Some(ask) = self.asks.complete(number) else { return };
        if ask.is_permission() {
            let reply = Reply::heard(&ask, frame);
            return self.settle_permission(ask, &reply, by);
        }
        self.heard = Instant::now();
        let Ask { agent_id, method, .. } = ask;
        if method == Method::TerminalCreate && peek.kind == Kind::Result {
            let result: serde_json::Value = frame.decode(peek.outcome).unwrap_or_default();
            self.terminals.extend(result["terminalId"].as_str().map(str::to_string));
        }
        self.relay_reply(&agent_id, frame, Class::Stream);
    }

    /// Passes an error that answers a permission request on as it is.
    pub(super) fn relay_rejection(&mut self, agent_id: &[u8], frame: &Frame) {
        self.relay_reply(agent_id, frame, Class::Stop);
    }

    fn relay_reply(&mut self, agent_id: &[u8], frame: &Frame, class: Class) {
        let session = self.agent_name();
        let mut out = BytesMut::new();
        splice(&mut out, frame.bytes(), [(frame.peek().id, agent_id), (self.our_name_in(frame), &session)]);
        self.relay_agent(out.freeze(), class);
    }

    /// `session/cancel`: the running turn and the queued prompts end.
    fn cancel(&mut self, seat: u32, frame: &Frame) {
        self.cancel_with(Some(seat), |session| session.forward(seat, frame, None, Noted::AsHeard));
    }

    /// The same, but nobody asked: the editor is away, or the agent is stuck.
    pub(super) fn cancel_unasked(&mut self) {
        self.cancel_with(None, |session| session.tell_agent("session/cancel"));
    }

    fn cancel_with(&mut self, seat: Option<u32>, tell: impl FnOnce(&mut Self)) {
        self.cancel_queued(seat);
        self.cancel_waiting(seat);
        // Without a turn there is nothing to cancel, and some agents would
        // keep the word for the next one.
        let Some(turn) = self.turn.as_mut().filter(|turn| turn.cancelled.is_none()) else { return };
        turn.cancelled = Some(Instant::now() + self.open.cancel_grace);
        self.judge.turn_ended();
        let number = turn.number;
        if self.take_back(number) {
            self.end_turn_cancelled();
            return self.next_turn();
        }
        tell(self);
        // A permission that has not gone out yet must not follow the cancel.
        for agent_id in self.take_back_answers() {
            self.say_agent(acp::result(&agent_id, acp::CANCELLED_PERMISSION), Class::Stop);
        }
        // Some agents never end the turn while one of these is open.
        self.answer_asks(|ask| ask.is_permission() || ask.method == Method::ElicitationCreate);
    }

    /// `$/cancel_request`: one request of the editor, named by its own id.
    fn cancel_request(&mut self, seat: u32, editor_id: &[u8]) {
        if let Some(at) = self.queued.iter().position(|asked| asked.is(seat, editor_id)) {
            if let Some(queued) = self.queued.remove(at) {
                self.answer_queued(queued, |id| acp::result(id, acp::CANCELLED_TURN));
            }
            return;
        }
        if let Some(at) = self.waiting.iter().position(|asked| asked.is(seat, editor_id)) {
            if let Some(asked) = self.waiting.remove(at) {
                let is_prompt = asked.frame.peek().method == Method::SessionPrompt;
                let refusal = Refusal::new(code::CANCELLED, "cancelled before the agent was ready");
                self.answer_queued(asked, |id| match is_prompt {
                    true => acp::result(id, acp::CANCELLED_TURN),
                    false => refusal.frame(id),
                });
            }
            return;
        }
        if seat == LEAD && !self.is_asked && self.open.request.get(self.open.request.peek().id) == editor_id {
            let text = "cancelled before the agent was ready";
            return self.refuse_opening(&Refusal::new(code::CANCELLED, text));
        }
        let is_it = |request: &Request| request.seat == seat && request.editor_id == editor_id;
        let found = self.requests.find(is_it).map(|(number, _)| number);
        // The connection records it; here it counts only if it is for us.
        self.hand.deferred = true;
        if let (Some(number), Some(slot)) = (found, self.binding.as_ref().map(|binding| binding.slot)) {
            self.hand.deferred = false;
            // The agent must not hear of the end before the request.
            if self.take_back(number) {
                return self.end_taken_back(number);
            }
            let id = WireId { slot, number }.value();
            let line = acp::call(None, "$/cancel_request", &serde_json::json!({ "requestId": id }));
            self.say_agent(line, Class::Stop);
        }
    }

    /// Answers a request of the editor that the agent never saw.
    fn end_taken_back(&mut self, number: u32) {
        if self.turn.as_ref().is_some_and(|turn| turn.number == number) {
            self.end_turn_cancelled();
            return self.next_turn();
        }
        let Some(request) = self.requests.complete(number) else { return };
        let refusal = Refusal::new(code::CANCELLED, "cancelled as asked");
        match request.purpose {
            Purpose::Open => self.answer_opening(&refusal),
            _ => self.answer(request.seat, refusal.frame(&request.editor_id)),
        }
    }

    /// `session/close` is ours to answer, once the agent has been told and its
    /// place is free. Where others have the session open, only this seat is
    /// given up.
    fn close(&mut self, seat: u32, frame: &Frame) {
        let has_more = self.seats.has_more_than(seat);
        if has_more || seat != LEAD {
            self.answer(seat, acp::result(frame.get(frame.peek().id), b"{}"));
        }
        if has_more {
            return match seat {
                LEAD => self.seats.is_lead_leaving = true,
                _ => self.seats.unseat(seat),
            };
        }
        self.answer_rest();
        self.closing = (seat == LEAD).then(|| frame.copy(frame.peek().id));
        self.closed = true;
        self.hand.class = Class::Stop;
        self.ended = true;
    }

    /// Answers every prompt that waits, of one seat or of all: its turn will not
    /// come.
    pub(super) fn cancel_queued(&mut self, seat: Option<u32>) {
        for asked in take_from(&mut self.queued, |asked| seat.is_none_or(|seat| asked.seat == seat)) {
            self.answer_queued(asked, |id| acp::result(id, acp::CANCELLED_TURN));
        }
    }

    /// Answers a request that has waited and is not passed on.
    pub(super) fn answer_queued(&mut self, asked: Asked, answer: impl Fn(&[u8]) -> Bytes) {
        let Asked { seat, frame, .. } = asked;
        self.trace_answered(seat, &frame, TurnEnd::Cancelled);
        let line = answer(frame.get(frame.peek().id));
        self.hand.entries.push(Recorded::Late(seat, frame, None));
        self.answer(seat, line);
    }

    fn agent_name(&self) -> Bytes {
        self.binding.as_ref().map(|binding| binding.name.clone()).unwrap_or_default()
    }

    /// Where our id of this session stands in an editor's frame.
    fn our_name_in(&self, frame: &Frame) -> Span {
        let span = frame.peek().session;
        if frame.get(span) == self.name { span } else { Span::default() }
    }
}

/// Takes out what fits; the order stays.
pub(super) fn take_from(all: &mut VecDeque<Asked>, fits: impl Fn(&Asked) -> bool) -> VecDeque<Asked> {
    let (taken, rest) = std::mem::take(all).into_iter().partition(fits);
    *all = rest;
    taken
}

impl Ask {
    /// The offered option that an answer chooses.
    fn chosen(&self, answer: &Frame) -> Option<String> {
        selected(answer).filter(|chosen| self.offers(chosen))
    }
}
