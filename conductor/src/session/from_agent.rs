//! What an agent says to a session.

use bytes::{Bytes, BytesMut};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    Ask, EARLY_BYTES, Input, MAX_IN_FLIGHT, Packet, Purpose, Recorded, Request, Session, Turn,
    WITHDRAW_GRACE, Way,
    adapt::{put_update, takes, withheld},
    ending::unanswered,
    flight::Said,
    judging::Judged,
    past::HISTORY,
    prefix::with_prefix,
};
use crate::{
    acp::{self, Refusal, code, login},
    frame::{self, Frame, Kind, Method, Peek, Run, Span, splice},
    journal::Class,
    metrics::{Branch, TurnEnd},
    pending::WireId,
    record::Destination,
};

impl Session {
    /// Takes what an agent says, from its first frame to its record.
    pub(super) fn take_run(&mut self, run: &Run) {
        self.from_agent(run);
        self.commit(Input::Run(run));
        (self.heard, self.is_stalled) = (Instant::now(), false);
        if self.turn.is_none() {
            self.idle_since = self.heard;
        }
    }

    #[allow(clippy::wrong_self_convention, reason = "named for where the frames come from")]
    fn from_agent(&mut self, run: &Run) {
        let mapped;
        let run = match &self.open.cwd_map {
            Some(map) => {
                mapped = map.from_agent(run, |method| self.host.serves(method));
                &mapped
            }
            None => run,
        };
        let mut out = BytesMut::with_capacity(run.size() + run.len() * 40);
        let mut count = 0;
        for (index, (bytes, peek)) in run.iter().enumerate() {
            // It may have had another agent before, whose ids were the same.
            let renamed = with_prefix(bytes, peek, self.routing.number);
            let renamed = renamed.and_then(|bytes| Frame::parse(bytes).ok());
            let (bytes, peek) = renamed.as_ref().map_or((bytes, peek), |frame| (frame.bytes(), frame.peek()));
            // Most frames are updates: nothing but a copy with our own id.
            if peek.method == Method::SessionUpdate && peek.kind == Kind::Notification {
                if self.picks() && is_of_options(bytes, peek) {
                    self.emit(&mut out, &mut count);
                    self.hear_options(bytes, peek);
                } else if self.passes(bytes, peek) {
                    put_update(&self.link.capabilities, &self.name, &mut out, bytes, peek);
                    count += 1;
                }
                continue;
            }
            // Everything else may say something to the editor itself, so what
            // came before goes first.
            self.emit(&mut out, &mut count);
            self.tell_findings();
            self.hand.index = index as u32;
            self.agent_says(&renamed.unwrap_or_else(|| run.frame(index)));
        }
        self.emit(&mut out, &mut count);
        self.tell_findings();
    }

    fn emit(&mut self, out: &mut BytesMut, count: &mut u32) {
        if *count == 0 {
            return;
        }
        let packet = Packet { frames: out.split().freeze(), count: std::mem::take(count) };
        let waiting: usize = self.early.iter().map(|packet| packet.frames.len()).sum();
        // First the editor gets its history and its answer.
        let is_early = !self.is_open && self.way.is_some_and(|way| way != Way::New);
        if is_early && waiting < EARLY_BYTES {
            self.early.push(packet);
            return;
        }
        if is_early {
            self.open.metrics.best_effort(Branch::EarlyUnordered);
        }
        self.relay_editor(packet, Class::Stream);
    }

    /// Whether an update is for this editor; also takes note of titles.
    fn passes(&mut self, bytes: &[u8], peek: &Peek) -> bool {
        match peek.update.of(bytes) {
            b"\"agent_message_chunk\"" | b"\"agent_thought_chunk\""
                if self.way.is_none() && !self.is_replaying =>
            {
                self.take_note_of_words(bytes, peek);
                true
            }
            kind @ (b"\"tool_call\"" | b"\"tool_call_update\"")
                if self.way.is_none() && !self.is_replaying =>
            {
                self.take_note_of_words(bytes, peek);
                self.watch_call(kind, peek.params.of(bytes));
                true
            }
            b"\"session_info_update\"" => {
                let params: Option<Value> = serde_json::from_slice(peek.params.of(bytes)).ok();
                if let Some(title) = params.as_ref().and_then(|params| params["update"].get("title")) {
                    let title = title.as_str().map(|title| self.recorder.redacted(title));
                    self.router.titled(self.open.id, title.as_deref());
                }
                true
            }
            b"\"config_option_update\"" | b"\"current_mode_update\"" => {
                self.hear_options(bytes, peek);
                true
            }
            b"\"available_commands_update\"" | b"\"plan\"" if self.picks() => {
                self.keep_announcement(bytes, peek);
                !(self.is_replaying || matches!(self.way, Some(Way::Resume | Way::Load)))
                    || peek.update.of(bytes) != b"\"plan\""
            }
            // The editor has the history, or gets it from our own record; some
            // agents replay it even to who resumes.
            kind => {
                let may_replay = self.is_replaying || matches!(self.way, Some(Way::Resume | Way::Load));
                if kind == b"\"usage_update\"" && !may_replay {
                    self.hear_cost(peek.params.of(bytes));
                }
                !(may_replay && HISTORY.contains(&kind)) && takes(&self.link.capabilities, bytes, peek)
            }
        }
    }

    fn agent_says(&mut self, frame: &Frame) {
        let peek = frame.peek();
        match peek.kind {
            Kind::Result | Kind::Error => self.agent_answers(frame),
            Kind::Request => self.agent_asks(frame),
            Kind::Notification if peek.method == Method::CancelRequest => self.agent_withdraws(frame),
            Kind::Notification if is_request(peek.method) => {
                self.violation(&format!("{} without an id", frame.method_name()));
            }
            Kind::Notification => self.pass(frame, peek.id, &[], Span::default(), &[]),
            Kind::Opaque => self.violation("a message that is neither request, notification nor answer"),
        }
    }

    /// Copies a frame to the editor with our session id, another id, and one
    /// more edit.
    fn pass(&mut self, frame: &Frame, id: Span, new_id: &[u8], span: Span, with: &[u8]) {
        let class = match frame.peek().method {
            // Who writes or runs something may be the editor.
            Method::FsWrite | Method::TerminalCreate => Class::Effect,
            Method::CancelRequest => Class::Stop,
            _ => Class::Stream,
        };
        self.pass_as(class, frame, (id, new_id), (span, with));
    }

    fn pass_as(&mut self, class: Class, frame: &Frame, id: (Span, &[u8]), edit: (Span, &[u8])) {
        let frames = self.renamed(frame, id, edit);
        self.relay_editor(Packet { frames, count: 1 }, class);
    }

    /// Passes an answer on to who has asked.
    fn pass_answer(&mut self, request: &Request, frame: &Frame, class: Class, edit: (Span, &[u8])) {
        let line = self.renamed(frame, (frame.peek().id, &request.editor_id), edit);
        self.relay_answer(request.seat, line, class);
    }

    fn renamed(&self, frame: &Frame, id: (Span, &[u8]), edit: (Span, &[u8])) -> Bytes {
        let mut out = BytesMut::new();
        // An extension's answer may name anything by `sessionId`.
        let bound = self.binding.as_ref().map(|binding| &binding.name[..]);
        let session =
            Some(frame.peek().session).filter(|span| Some(frame.get(*span)) == bound).unwrap_or_default();
        splice(&mut out, frame.bytes(), [id, (session, &self.name), edit]);
        out.freeze()
    }

    fn agent_answers(&mut self, frame: &Frame) {
        let withheld = withheld(&self.link.capabilities, frame.bytes(), frame.peek().outcome)
            .and_then(|bytes| Frame::parse(bytes).ok());
        let frame = withheld.as_ref().unwrap_or(frame);
        let advised = login::advised(frame, self.agent());
        let frame = advised.as_ref().unwrap_or(frame);
        let peek = frame.peek();
        let request = WireId::parse(frame.get(peek.id)).and_then(|id| self.requests.complete(id.number));
        let Some(request) = request else {
            let id = frame::escape(frame.get(peek.id), 100);
            return self.violation(&format!("a second answer, or an answer to nothing, with id {id}"));
        };
        match request.purpose {
            Purpose::Open if self.way == Some(Way::New) => self.agent_opened(frame, &request),
            Purpose::Open | Purpose::Rebind => self.agent_answered_way(frame, &request),
            Purpose::Prompt => {
                if peek.kind == Kind::Result {
                    self.hear_tokens(request.seat, frame.get(peek.outcome));
                }
                let turn = self.turn.take();
                let cancelled = turn.as_ref().is_some_and(|turn| turn.cancelled.is_some());
                let began = turn.as_ref().map_or_else(Instant::now, |turn| turn.began);
                self.turn_ended();
                // Nobody is to allow something that no turn waits for.
                self.answer_asks(Ask::is_permission);
                if let Some(Turn { prompt, said, from_seq, .. }) = turn.filter(|_| !cancelled)
                    && self.falls_back(frame, prompt, &said, from_seq)
                {
                    return;
                }
                let end = match (cancelled, peek.kind) {
                    (true, _) => TurnEnd::Cancelled,
                    (_, Kind::Error) => TurnEnd::Error,
                    _ => TurnEnd::from_reason(frame.get(peek.stop_reason)),
                };
                self.count_turn(began, end);
                if peek.kind == Kind::Result {
                    self.handed_over();
                }
                match (cancelled, peek.stop_reason.is_some()) {
                    (false, _) => self.pass_answer(&request, frame, Class::Stream, Default::default()),
                    // Some agents say "end_turn" of a turn that was cancelled.
                    (true, true) => {
                        let edit = (peek.stop_reason, &b"\"cancelled\""[..]);
                        self.pass_answer(&request, frame, Class::Stop, edit);
                    }
                    // Others answer with an error.
                    (true, false) => {
                        self.answer(request.seat, acp::result(&request.editor_id, acp::CANCELLED_TURN));
                    }
                }
                self.next_turn();
            }
            Purpose::Relay => {
                if peek.kind == Kind::Result {
                    self.mode_set(&request);
                    self.model_set(&request);
                    self.take_options(frame.get(peek.outcome));
                }
                let is_shown = request.shows_options && peek.kind == Kind::Result;
                let shown = if is_shown { self.with_shown(frame, peek.outcome) } else { None };
                let frame = shown.as_ref().unwrap_or(frame);
                self.pass_answer(&request, frame, Class::Stream, Default::default());
                self.announce();
            }
            Purpose::Wish => self.wish_granted(frame, &request),
            Purpose::SetBack => self.was_set_back(frame, &request),
            Purpose::Close => {}
        }
    }

    fn agent_opened(&mut self, frame: &Frame, request: &Request) {
        let peek = frame.peek();
        if peek.kind == Kind::Error {
            let refusal = Refusal::of(frame);
            if self.asks_another(&refusal) {
                return;
            }
            self.pass(frame, peek.id, &request.editor_id, Span::default(), &[]);
            self.ended = true;
            return;
        }
        if peek.session.is_none() {
            let text = "the agent answered session/new without a sessionId";
            return self.answer_opening(&Refusal::new(code::INTERNAL, text));
        }
        if let Some(binding) = &mut self.binding {
            binding.name = frame.copy(peek.session);
            // Whatever becomes of it here, it is closed there, too.
            self.exists_at_agent = true;
        }
        self.take_options(frame.get(peek.outcome));
        self.learn_offer();
        let target = self.routing.target.clone();
        let wishes = match target.as_ref().and_then(|target| self.wish_denied(target)) {
            Some(refusal) => Err(refusal),
            None => target.map_or(Ok(Vec::new()), |target| self.wishes(&target, &self.options)),
        };
        if self.ended {
            return;
        }
        match wishes {
            Ok(calls) => {
                self.renew_picker();
                self.take_note_of_way(Way::New);
                self.way = None;
                self.opened();
                let shown = self.with_shown(frame, peek.outcome);
                let frame = shown.as_ref().unwrap_or(frame);
                self.pass(frame, frame.peek().id, &request.editor_id, Span::default(), &[]);
                self.note_shown();
                self.tell_fallbacks();
                self.ask_for(calls);
            }
            Err(refusal) => {
                self.answer_opening(&refusal);
            }
        }
    }

    /// The agent has set what we asked for; the editor learns of it by an
    /// ordinary update.
    fn wish_granted(&mut self, frame: &Frame, request: &Request) {
        let result: Value = frame.decode(frame.peek().outcome).unwrap_or_default();
        if frame.peek().kind == Kind::Error {
            let text = self.recorder.redacted_bytes(frame.get(frame.peek().outcome));
            let text = frame::escape(&text, 500);
            tracing::warn!(error = text, "the agent refused the model or mode it had offered");
            return;
        }
        self.model_set(request);
        self.take_options(frame.get(frame.peek().outcome));
        if self.picks() {
            return self.announce();
        }
        let Some(options) = result.get("configOptions").filter(|options| options.is_array()) else { return };
        let update = json!({ "sessionUpdate": "config_option_update", "configOptions": options });
        let params = json!({ "sessionId": self.open.id.to_string(), "update": update });
        self.say_editor(acp::call(None, "session/update", &params));
    }

    fn agent_asks(&mut self, frame: &Frame) {
        if let Some(turn) = &mut self.turn {
            turn.said = Said::More;
        }
        let name = frame.method_name();
        let is_unknown = frame.peek().method == Method::Other
            && ["fs/", "terminal/"].iter().any(|part| name.starts_with(part));
        if is_unknown || frame.peek().method == Method::SessionUpdate {
            let refusal = Refusal::new(code::METHOD_NOT_FOUND, format!("there is no request {name}"));
            return self.say_agent(refusal.frame(frame.get(frame.peek().id)), Class::Stop);
        }
        let refused = match self.host.serves(frame.peek().method) {
            true => self.host_refusal(frame),
            false => self.refusal(frame),
        };
        if let Some(refusal) = refused {
            return self.say_agent(refusal, Class::Stop);
        }
        if let Some(judged) = self.judge_agent(frame) {
            self.go_on(frame, judged, false);
        }
    }

    /// What was asked about has been allowed.
    pub(super) fn go_on_late(&mut self, frame: &Frame, judged: Judged) {
        // The editor may have left meanwhile, or run out of room.
        let refused = match self.host.serves(frame.peek().method) {
            true => self.host_refusal(frame),
            false => self.refusal(frame),
        };
        match refused {
            Some(refusal) => self.say_agent(refusal, Class::Stop),
            None => self.go_on(frame, judged, true),
        }
    }

    /// Has a request of the agent done, by this host or by the editor.
    fn go_on(&mut self, frame: &Frame, judged: Judged, is_late: bool) {
        let peek = frame.peek();
        if self.host.serves(peek.method) {
            return self.host_asks(frame, judged.place);
        }
        let agent_id = frame.copy(peek.id);
        // An elicitation may name the editor's request it belongs to, by our
        // id of it; the editor knows it by its own.
        let scope = match (peek.method, WireId::parse(frame.get(peek.request_id))) {
            (Method::ElicitationCreate, Some(id)) => self
                .requests
                .get_mut(id.number)
                .map(|request| request.editor_id.clone())
                .filter(|id| !id.is_empty()),
            _ => None,
        };
        if frame.get(peek.name) == b"\"terminal/release\"" {
            let params: Value = frame.decode(peek.params).unwrap_or_default();
            self.terminals.remove(params["terminalId"].as_str().unwrap_or_default());
        }
        let number = self.asks.register(Ask::new(agent_id, peek.method));
        let id = self.editor_id(number).to_string();
        if is_late {
            // It was recorded when it came; now it goes on in our words.
            let line = self.renamed(frame, (peek.id, id.as_bytes()), (Span::default(), &[]));
            self.hand.entries.push(Recorded::Said(Destination::Editor, line));
        } else {
            self.hand.outgoing.push((self.hand.index, self.editor_id(number)));
        }
        let (span, with) = match &scope {
            Some(editor_id) => (peek.request_id, editor_id.clone()),
            None => (Span::default(), Bytes::new()),
        };
        self.pass(frame, peek.id, id.as_bytes(), span, &with);
    }

    /// Copies a request to the editor under an id of ours.
    pub(super) fn pass_with_id(&mut self, frame: &Frame, id: u64) {
        self.pass(frame, frame.peek().id, id.to_string().as_bytes(), Span::default(), &[]);
    }

    /// The answer to a request that cannot go to the editor.
    fn refusal(&self, frame: &Frame) -> Option<Bytes> {
        let peek = frame.peek();
        let id = frame.get(peek.id);
        let able = &self.link.capabilities;
        if self.host.has(id) || self.asks.iter().any(|ask| ask.agent_id == id) {
            let text = format!("a request with the id {} is already in flight", frame::escape(id, 100));
            return Some(Refusal::new(code::INVALID_REQUEST, text).frame(id));
        }
        if self.asks.len() >= MAX_IN_FLIGHT {
            let text = format!("{MAX_IN_FLIGHT} requests of this session are in flight already");
            return Some(Refusal::new(code::LIMIT, text).frame(id));
        }
        // Only the lead can do more than answer a permission request.
        if !self.seats.is_led && peek.method != Method::RequestPermission {
            return Some(unanswered(id, peek.method));
        }
        let able = match peek.method {
            Method::FsRead => able.fs_read,
            Method::FsWrite => able.fs_write,
            Method::TerminalCreate => able.terminal,
            Method::Terminal => {
                if able.terminal
                    && let Some(refusal) = self.foreign_terminal(frame)
                {
                    return Some(refusal.frame(id));
                }
                able.terminal
            }
            Method::ElicitationCreate => {
                let params: Value = frame.decode(peek.params).unwrap_or_default();
                let able = if params["mode"] == "url" { able.elicitation_url } else { able.elicitation_form };
                if !able {
                    return Some(acp::result(id, acp::CANCELLED_ELICITATION));
                }
                true
            }
            Method::Proxy => {
                let text = "proxy methods do not cross a conductor";
                return Some(Refusal::new(code::INVALID_REQUEST, text).frame(id));
            }
            _ => true,
        };
        if able {
            return None;
        }
        let text = format!("the editor of this session does not offer {}", frame.method_name());
        Some(Refusal::new(code::METHOD_NOT_FOUND, text).frame(id))
    }

    /// Terminals belong to the session that created them.
    fn foreign_terminal(&self, frame: &Frame) -> Option<Refusal> {
        let params: Value = frame.decode(frame.peek().params).unwrap_or_default();
        let id = params["terminalId"].as_str().unwrap_or_default();
        if self.terminals.contains(id) {
            return None;
        }
        let text = format!("this session has no terminal `{}`", frame::escape(id.as_bytes(), 100));
        Some(Refusal { code: code::NOT_FOUND, message: text, data: Some(json!({ "terminalId": id })) })
    }

    /// `$/cancel_request` of the agent: passed on with the id the editor knows.
    fn agent_withdraws(&mut self, frame: &Frame) {
        let id = frame.get(frame.peek().request_id);
        if self.host_withdraws(id) {
            return;
        }
        let Some((number, ask)) = self.asks.find(|ask| ask.agent_id == id) else { return };
        if ask.held.is_some() || !ask.is_shown {
            // Nobody has begun with it, so there is nothing to wait for.
            return self.answer_asks(|ask| ask.agent_id == id);
        }
        if let Some(ask) = self.asks.get_mut(number) {
            ask.withdrawn.get_or_insert(Instant::now() + WITHDRAW_GRACE);
        }
        self.seats.withdraw(number, None, None);
        let editor_id = self.editor_id(number).to_string();
        self.pass(frame, Span::default(), &[], frame.peek().request_id, editor_id.as_bytes());
    }

    fn violation(&self, what: &str) {
        if let Some(binding) = &self.binding {
            binding.process().violation(what);
        }
    }
}

/// Whether an update tells of options, or of the mode.
fn is_of_options(bytes: &[u8], peek: &Peek) -> bool {
    matches!(peek.update.of(bytes), b"\"config_option_update\"" | b"\"current_mode_update\"")
}

/// Whether a method is that of a request, which somebody would act upon.
fn is_request(method: Method) -> bool {
    matches!(
        method,
        Method::RequestPermission
            | Method::FsRead
            | Method::FsWrite
            | Method::TerminalCreate
            | Method::Terminal
            | Method::ElicitationCreate
    )
}
