//! What an editor says to a session.

use bytes::{Bytes, BytesMut};
use tokio::time::Instant;

use super::{Ask, MAX_IN_FLIGHT, MAX_QUEUED_PROMPTS, Purpose, Recorded, Request, Session, Turn};
use crate::{
    acp::{self, code},
    frame::{self, Frame, Kind, Method, Span, splice},
    journal::Class,
    pending::WireId,
};

impl Session {
    #[allow(clippy::wrong_self_convention, reason = "named for where the frames come from")]
    pub(super) fn from_editor(&mut self, frame: &Frame) {
        let peek = frame.peek();
        match peek.kind {
            Kind::Request => self.editor_asks(frame),
            Kind::Result | Kind::Error => self.editor_answers(frame),
            Kind::Notification => match peek.method {
                Method::SessionCancel => self.cancel(frame),
                Method::CancelRequest => self.cancel_request(frame.get(peek.request_id)),
                _ => self.forward(frame, None, false),
            },
            Kind::Opaque => {}
        }
    }

    fn editor_asks(&mut self, frame: &Frame) {
        let peek = frame.peek();
        let id = frame.get(peek.id);
        // Asked first, so that nothing is begun which would have to be undone.
        if peek.method != Method::SessionClose
            && let Some(why) = self.journal.refusing()
        {
            return self.refuse(frame, code::NOT_RECORDED, &*why);
        }
        if self.requests.find(|request| request.editor_id == id).is_some()
            || self.queued.iter().any(|queued| queued.get(queued.peek().id) == id)
        {
            let text = format!("a request with the id {} is already in flight", frame::escape(id, 100));
            return self.refuse(frame, code::INVALID_REQUEST, text);
        }
        if peek.method == Method::SessionClose {
            return self.close(frame);
        }
        if let Some(exit) = self.exit.clone() {
            let text =
                format!("this session's process is gone: {exit}\nReopen the session with session/load.");
            return self.refuse(frame, code::AGENT_ENDED, text);
        }
        if self.requests.len() >= MAX_IN_FLIGHT {
            let text = format!("{MAX_IN_FLIGHT} requests of this session are in flight already");
            return self.refuse(frame, code::LIMIT, text);
        }
        if peek.method == Method::SessionPrompt
            && let Some(refusal) = self.unfit(frame)
        {
            return self.say_editor(refusal.frame(id));
        }
        match peek.method {
            Method::SessionPrompt if self.turn.is_some() => {
                if self.queued.len() >= MAX_QUEUED_PROMPTS {
                    let text =
                        format!("{MAX_QUEUED_PROMPTS} prompts are waiting for the running turn already");
                    return self.refuse(frame, code::LIMIT, text);
                }
                // It is recorded when it goes on, with the id it then has.
                self.deferred = true;
                self.queued.push_back(frame.clone());
            }
            Method::SessionPrompt => self.begin_turn(frame, false),
            _ => self.forward(frame, Some(Purpose::Relay), false),
        }
    }

    fn begin_turn(&mut self, frame: &Frame, late: bool) {
        self.forward(frame, Some(Purpose::Prompt), late);
        let number =
            self.requests.find(|request| request.purpose == Purpose::Prompt).map(|(number, _)| number);
        self.turn = number.map(|number| Turn { number, cancelled: None });
        self.router.turn_begun();
    }

    /// After a turn's end: the next prompt, if one waits.
    pub(super) fn next_turn(&mut self) {
        if self.turn.is_none()
            && let Some(frame) = self.queued.pop_front()
        {
            self.begin_turn(&frame, true);
        }
    }

    /// Passes a request or notification on to the agent; a late one waited
    /// and is recorded only now.
    fn forward(&mut self, frame: &Frame, purpose: Option<Purpose>, late: bool) {
        let peek = frame.peek();
        let id = purpose.map(|purpose| self.number(Request { purpose, editor_id: frame.copy(peek.id) }));
        match id.map(WireId::value) {
            id if late => self.entries.push(Recorded::Late(frame.clone(), id)),
            Some(id) => self.outgoing.push((0, id)),
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
        let mut out = BytesMut::new();
        splice(
            &mut out,
            frame.bytes(),
            [(peek.id, id.unwrap_or_default().as_bytes()), (self.our_name_in(frame), &session)],
        );
        self.relay_agent(out.freeze(), class);
    }

    fn editor_answers(&mut self, frame: &Frame) {
        let peek = frame.peek();
        let ask = WireId::parse(frame.get(peek.id)).and_then(|id| self.asks.complete(id.number));
        // An answer to something that was decided or withdrawn meanwhile.
        let Some(ask) = ask else { return };
        let class = ask.weight(frame);
        let Ask { agent_id, method, .. } = ask;
        if method == Method::TerminalCreate && peek.kind == Kind::Result {
            let result: serde_json::Value = frame.decode(peek.outcome).unwrap_or_default();
            self.terminals.extend(result["terminalId"].as_str().map(str::to_string));
        }
        let session = self.agent_name();
        let mut out = BytesMut::new();
        splice(&mut out, frame.bytes(), [(peek.id, &agent_id), (self.our_name_in(frame), &session)]);
        self.relay_agent(out.freeze(), class);
    }

    /// `session/cancel`: the running turn and the queued prompts end.
    fn cancel(&mut self, frame: &Frame) {
        self.cancel_with(|session| session.forward(frame, None, false));
    }

    /// The same, but nobody asked: the editor is away.
    pub(super) fn cancel_unasked(&mut self) {
        self.cancel_with(|session| session.tell_agent("session/cancel"));
    }

    fn cancel_with(&mut self, tell: impl FnOnce(&mut Self)) {
        self.cancel_queued();
        // Without a turn there is nothing to cancel, and some agents would
        // keep the word for the next one.
        let Some(turn) = self.turn.as_mut().filter(|turn| turn.cancelled.is_none()) else { return };
        turn.cancelled = Some(Instant::now() + self.open.cancel_grace);
        if self.take_back_prompt() {
            return self.end_turn_cancelled();
        }
        tell(self);
        // Some agents never end the turn while one of these is open.
        self.answer_asks(|ask| matches!(ask.method, Method::RequestPermission | Method::ElicitationCreate));
    }

    /// `$/cancel_request`: one request of the editor, named by its own id.
    fn cancel_request(&mut self, editor_id: &[u8]) {
        if let Some(at) = self.queued.iter().position(|queued| queued.get(queued.peek().id) == editor_id) {
            if let Some(queued) = self.queued.remove(at) {
                self.answer_queued(queued, |id| acp::result(id, acp::CANCELLED_TURN));
            }
            return;
        }
        let found = self.requests.find(|request| request.editor_id == editor_id).map(|(number, _)| number);
        // The connection records it; here it counts only if it is for us.
        self.deferred = true;
        if let (Some(number), Some(binding)) = (found, &self.binding) {
            self.deferred = false;
            let id = WireId { slot: binding.slot, number }.value();
            let line = acp::call(None, "$/cancel_request", &serde_json::json!({ "requestId": id }));
            self.say_agent(line, Class::Stop);
        }
    }

    /// `session/close` is ours to answer, once the agent has been told and its
    /// place is free.
    fn close(&mut self, frame: &Frame) {
        self.answer_rest();
        self.closing = Some(frame.copy(frame.peek().id));
        self.closed = true;
        self.class = Class::Stop;
        self.ended = true;
    }

    /// Answers every prompt that waits: its turn will not come.
    pub(super) fn cancel_queued(&mut self) {
        for queued in std::mem::take(&mut self.queued) {
            self.answer_queued(queued, |id| acp::result(id, acp::CANCELLED_TURN));
        }
    }

    /// Answers a prompt that has waited and is not passed on.
    pub(super) fn answer_queued(&mut self, queued: Frame, answer: impl Fn(&[u8]) -> Bytes) {
        let line = answer(queued.get(queued.peek().id));
        self.entries.push(Recorded::Late(queued, None));
        self.say_editor(line);
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

impl Ask {
    /// What the editor's answer weighs: to allow something is an effect, to
    /// refuse it stops something.
    fn weight(&self, answer: &Frame) -> Class {
        if self.method != Method::RequestPermission {
            return Class::Stream;
        }
        let result: Option<serde_json::Value> = answer.decode(answer.peek().outcome);
        let outcome = result.as_ref().map(|result| &result["outcome"]);
        let chosen = outcome.filter(|outcome| outcome["outcome"] == "selected");
        match chosen.map(|chosen| chosen["optionId"].as_str().unwrap_or_default()) {
            Some(chosen) if !self.rejects.iter().any(|reject| reject == chosen) => Class::Effect,
            _ => Class::Stop,
        }
    }
}
