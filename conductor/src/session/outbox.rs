//! What a session sends, and when: first into the journal, then on its way.
//!
//! While something is handled, what is to be sent is staged. `commit` records
//! in one append what came in and what we say ourselves, and only then lets it
//! go. Streams go once they are written; an effect waits until its record is
//! on disk; what stops something waits for nothing.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::{sync::oneshot, time::Instant};
use tracing::{Span, warn};

use super::{
    Packet, Purpose, Session,
    handle::{LEAD, Told},
    traced::Traced,
};
use crate::{
    acp::{self, Refusal, code},
    approvals::How,
    frame::{Frame, Kind, Method, Run},
    journal::{Class, Ticket},
    metrics::{Branch, Metrics, TurnEnd},
    pending::WireId,
    queue,
    record::{Destination, Origin},
};

/// What has been handled.
#[derive(Clone, Copy)]
pub(super) enum Input<'a> {
    Run(&'a Run),
    /// Said from this seat.
    Frame(u32, &'a Frame),
    /// A deadline, an end, an answer of this host.
    Nothing,
}

/// What is recorded besides the input, in order.
#[derive(Debug)]
pub(super) enum Entry {
    /// Our own words.
    Said(Destination, Bytes),
    /// An editor's frame that waited, and from which seat it came.
    Late(u32, Frame, Option<u64>),
    /// A note of ours, in its place among the rest.
    Note(&'static str, Value),
    /// The same, with the number of the frame that it is about.
    About(About, &'static str, Value),
}

/// Which frame a note is about.
#[derive(Debug, Clone, Copy)]
pub(super) enum About {
    /// The one in hand, by its place in its run.
    Input(u32),
    /// The one that was just heard, which stands alone.
    Frame,
    /// The last one of our own.
    Said,
}

/// Whom something is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum To {
    Agent,
    /// The editor that leads the session.
    Lead,
    /// Someone who has a seat beside it.
    Seat(u32),
}

/// On its way to someone.
#[derive(Debug)]
pub(super) struct Outgoing {
    to: To,
    packet: Packet,
    class: Class,
}

/// Tells a job whether what asked for it was written, and where.
pub(super) type Gate = oneshot::Sender<Result<Option<Ticket>, Arc<str>>>;

/// What is being handled, and what follows from it, until `commit` has written and sent that.
#[derive(Debug, Default)]
pub(super) struct InHand {
    /// What is recorded besides it.
    pub(super) entries: Vec<Entry>,
    /// The ids that it goes on with, by the frame's place in its run.
    pub(super) outgoing: Vec<(u32, u64)>,
    staged: Vec<Outgoing>,
    /// The weightiest of what follows.
    pub(super) class: Class,
    /// Where in its run the frame in hand stands.
    pub(super) index: u32,
    /// Jobs of this host that wait to hear of their record.
    pub(super) gates: Vec<Gate>,
    /// It is recorded later, when its turn comes.
    pub(super) deferred: bool,
    /// The answer to it shows all options.
    pub(super) shows_options: bool,
    /// Which frame of the run the editor does not get.
    pub(super) kept_back: Option<u32>,
}

/// Something that waits for room, or for its record to be on disk.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) packet: Packet,
    pub(super) after: Option<Ticket>,
    /// Since when it waits for its record, if it does, and that as a step of a trace.
    since: Option<(Instant, Span)>,
}

impl Session {
    /// Passes a frame of the editor on.
    pub(super) fn relay_agent(&mut self, line: Bytes, class: Class) {
        self.stage(To::Agent, Packet { frames: line, count: 1 }, class);
    }

    /// Passes frames of the agent on. Who has a seat reads them in the record.
    pub(super) fn relay_editor(&mut self, packet: Packet, class: Class) {
        self.stage(To::Lead, packet, class);
    }

    /// Passes an answer of the agent on to who has asked.
    pub(super) fn relay_answer(&mut self, seat: u32, line: Bytes, class: Class) {
        let to = if seat == LEAD { To::Lead } else { To::Seat(seat) };
        self.stage(to, Packet { frames: line, count: 1 }, class);
    }

    /// Answers a request from a seat.
    pub(super) fn answer(&mut self, seat: u32, line: Bytes) {
        self.hand.entries.push(Entry::Said(Destination::Editor, line.clone()));
        self.relay_answer(seat, line, Class::Stop);
    }

    /// Shows the lead something that is on record already.
    pub(super) fn show_lead(&mut self, frames: Bytes, count: u32) {
        self.stage(To::Lead, Packet { frames, count }, Class::Stream);
    }

    /// Says something to the agent.
    pub(super) fn say_agent(&mut self, line: Bytes, class: Class) {
        self.hand.entries.push(Entry::Said(Destination::Agent, line.clone()));
        self.relay_agent(line, class);
    }

    /// Says something to the editor. Nobody must wait for a disk to learn that
    /// it is refused something or that it has ended.
    pub(super) fn say_editor(&mut self, line: Bytes) {
        self.hand.entries.push(Entry::Said(Destination::Editor, line.clone()));
        self.relay_editor(Packet { frames: line, count: 1 }, Class::Stop);
    }

    /// Says the last thing to the editor, which is recorded already.
    pub(super) fn say_last(&mut self, line: Bytes) {
        self.queue_editor(Packet { frames: line, count: 1 }, None);
    }

    /// Says something to the editor that others build on.
    pub(super) fn tell_editor(&mut self, line: Bytes) {
        self.hand.entries.push(Entry::Said(Destination::Editor, line.clone()));
        self.relay_editor(Packet { frames: line, count: 1 }, Class::Stream);
    }

    /// Tells everyone something that is no part of the conversation, if anybody
    /// is there who takes such news.
    pub(super) fn say_notice(&mut self, severity: &str, title: &str, text: &str) {
        let to_lead = self.seats.is_led && self.link.capabilities.notices;
        if !to_lead && !self.seats.has_others() {
            return;
        }
        let line = acp::notice(&self.open.id.to_string(), severity, title, text);
        self.hand.entries.push(Entry::Said(Destination::Editor, line.clone()));
        if to_lead {
            self.relay_editor(Packet { frames: line, count: 1 }, Class::Stream);
        }
    }

    /// Tells the agent something of its session that stops it.
    pub(super) fn tell_agent(&mut self, method: &str) {
        let Some(binding) = &self.binding else { return };
        let id: String = serde_json::from_slice(&binding.name).unwrap_or_default();
        self.say_agent(acp::call(None, method, &json!({ "sessionId": id })), Class::Stop);
    }

    /// Refuses a request from a seat.
    pub(super) fn refuse(&mut self, seat: u32, frame: &Frame, code: i64, message: impl Into<String>) {
        let peek = frame.peek();
        if peek.kind == Kind::Request {
            self.answer(seat, Refusal::new(code, message).frame(frame.get(peek.id)));
        }
    }

    fn stage(&mut self, to: To, packet: Packet, class: Class) {
        self.hand.class = self.hand.class.max(class);
        self.hand.staged.push(Outgoing { to, packet, class });
    }

    /// Ends the handling of something: it is written down, then what follows
    /// from it goes out.
    pub(super) fn commit(&mut self, input: Input<'_>) {
        let first = self.recorder.last_seq() + 1;
        match input {
            Input::Run(run) => match self.hand.kept_back.take() {
                None => self.recorder.run(Origin::Agent, Destination::Editor, &self.hand.outgoing, run),
                Some(kept) => self.record_without(run, kept),
            },
            Input::Frame(seat, frame) if !self.hand.deferred => {
                let id = self.hand.outgoing.first().map(|(_, id)| *id);
                self.record_editor(seat, frame, id);
            }
            Input::Frame(..) | Input::Nothing => {}
        }
        let heard = self.recorder.last_seq();
        let mut said = heard;
        self.hand.outgoing.clear();
        self.hand.deferred = false;
        for entry in std::mem::take(&mut self.hand.entries) {
            match entry {
                Entry::Said(to, line) => {
                    self.recorder.frame(Origin::Conductor, to, None, &line);
                    said = self.recorder.last_seq();
                }
                Entry::Late(seat, frame, id) => self.record_editor(seat, &frame, id),
                Entry::Note(method, params) => self.recorder.note(method, &params),
                Entry::About(about, method, mut params) => {
                    params["seq"] = match about {
                        About::Input(index) => first + u64::from(index),
                        About::Frame => heard,
                        About::Said => said,
                    }
                    .into();
                    self.recorder.note(method, &params);
                }
            }
        }
        if self.seats.has_withdrawn() {
            self.tell_withdrawn();
        }
        self.write();
    }

    /// Records a run of which the editor does not get one frame.
    fn record_without(&mut self, run: &Run, kept: u32) {
        for index in 0..run.len() {
            let at = index as u32;
            let to = if at == kept { Destination::Record } else { Destination::Editor };
            let id = self.hand.outgoing.iter().find(|(of, _)| *of == at).map(|(_, id)| (0, *id));
            self.recorder.run(Origin::Agent, to, id.as_slice(), &run.frame(index).into());
        }
    }

    fn record_editor(&mut self, seat: u32, frame: &Frame, id: Option<u64>) {
        self.note_speaker(seat);
        if frame.peek().method == Method::Other {
            self.learn(frame);
        }
        self.recorder.frame(Origin::Editor, Destination::Agent, id, frame.bytes());
        if seat != LEAD && id.is_some() && frame.peek().method == Method::SessionPrompt {
            self.echo(frame, self.recorder.last_seq());
        }
    }

    /// An extension of an editor's may hand over secrets at any time.
    fn learn(&mut self, frame: &Frame) {
        self.recorder.know_handed_over(frame.bytes());
        if let Some(binding) = &self.binding {
            binding.process().is_told(self.recorder.known());
        }
    }

    /// Writes what is pending and lets go what waited for that.
    pub(super) fn write(&mut self) {
        let class = std::mem::take(&mut self.hand.class);
        // What stops something is written in any case, but that takes no effect
        // with it.
        if class == Class::Stop
            && let Some(why) = self.journal.refusing()
        {
            self.refuse_effects(&why);
            if !self.hand.entries.is_empty() {
                self.hand.class = class;
                return self.commit(Input::Nothing);
            }
        }
        match self.recorder.commit(class) {
            Ok(ticket) => {
                // While the disk is at work.
                self.survey.look();
                for held in std::mem::take(&mut self.held) {
                    self.release(held, ticket);
                }
                // The vector is kept: this happens for every run.
                let mut staged = std::mem::take(&mut self.hand.staged);
                for outgoing in staged.drain(..) {
                    self.release(outgoing, ticket);
                }
                self.hand.staged = staged;
                for gate in self.hand.gates.drain(..) {
                    gate.send(Ok(ticket)).ok();
                }
            }
            Err(why) => {
                for gate in self.hand.gates.drain(..) {
                    gate.send(Err(why.clone())).ok();
                }
                for outgoing in std::mem::take(&mut self.hand.staged) {
                    match outgoing.class {
                        Class::Stream => self.held.push(outgoing),
                        Class::Stop => {
                            self.open.metrics.best_effort(Branch::StopUnrecorded);
                            self.release(outgoing, None);
                        }
                        Class::Effect => self.effect_refused(outgoing.to, &outgoing.packet, &why),
                    }
                }
                // The refusals are recorded as soon as that is possible, and
                // go out in any case.
                if !self.hand.entries.is_empty() {
                    self.commit(Input::Nothing);
                }
            }
        }
    }

    fn refuse_effects(&mut self, why: &Arc<str>) {
        for gate in self.hand.gates.drain(..) {
            gate.send(Err(why.clone())).ok();
        }
        let staged = std::mem::take(&mut self.hand.staged).into_iter();
        let (effects, rest): (Vec<_>, _) = staged.partition(|outgoing| outgoing.class == Class::Effect);
        self.hand.staged = rest;
        for effect in effects {
            self.effect_refused(effect.to, &effect.packet, why);
        }
    }

    /// Whether something waits for the journal to take it.
    pub(super) fn is_unwritten(&self) -> bool {
        !self.held.is_empty()
    }

    fn release(&mut self, outgoing: Outgoing, ticket: Option<Ticket>) {
        let Outgoing { to, packet, class } = outgoing;
        // A prompt also waits until it is known what there was before it.
        let is_early = to == To::Agent && self.survey.holds_prompt();
        let is_held = |ticket: &Ticket| is_early || !self.journal.is_released(*ticket);
        let after = ticket.filter(|ticket| class == Class::Effect && is_held(ticket));
        match to {
            To::Agent => self.queue_agent(packet, after, class),
            To::Lead => self.queue_editor(packet, after),
            To::Seat(seat) => {
                let after = self.recorder.last_seq();
                self.seats.tell(seat, Told::Answer { after, line: packet.frames });
            }
        }
    }

    fn queue_agent(&mut self, packet: Packet, after: Option<Ticket>, class: Class) {
        let Some(binding) = &self.binding else { return };
        let front = self.to_agent.front();
        // What stops something passes what waits for the disk.
        let passes = class == Class::Stop && front.is_some_and(|front| front.after.is_some());
        if after.is_none() && (front.is_none() || passes) {
            match binding.process().input().try_send(packet.frames.len(), packet.frames) {
                Ok(()) | Err(queue::NotSent::Closed(_)) => {}
                Err(queue::NotSent::Full(frames)) => {
                    self.to_agent.push_front(Waiting::new(Packet { frames, count: 1 }, after, &self.traced));
                }
            }
        } else {
            self.to_agent.push_back(Waiting::new(packet, after, &self.traced));
        }
    }

    fn queue_editor(&mut self, packet: Packet, after: Option<Ticket>) {
        if !self.seats.is_led {
            return;
        }
        if after.is_none() && self.to_editor.is_empty() {
            match self.link.out.try_send(packet.frames.len(), packet) {
                Ok(()) => {}
                Err(queue::NotSent::Closed(_)) => self.seats.is_lead_leaving = true,
                Err(queue::NotSent::Full(packet)) => {
                    self.stalled_since = Some(Instant::now());
                    self.to_editor.push_back(Waiting::new(packet, after, &self.traced));
                }
            }
        } else {
            self.to_editor.push_back(Waiting::new(packet, after, &self.traced));
        }
    }

    /// The record of what stands first in a queue is on disk, or will not be.
    pub(super) fn agent_released(&mut self, released: Result<(), Arc<str>>) {
        let Some(front) = self.to_agent.front_mut() else { return };
        front.released(&self.open.metrics);
        if let Err(why) = released
            && let Some(front) = self.to_agent.pop_front()
        {
            self.effect_refused(To::Agent, &front.packet, &why);
            self.commit(Input::Nothing);
        }
    }

    /// The same for the editor's queue.
    pub(super) fn editor_released(&mut self, released: Result<(), Arc<str>>) {
        let Some(front) = self.to_editor.front_mut() else { return };
        front.released(&self.open.metrics);
        // Only now is it the editor that may be slow.
        self.stalled_since = Some(Instant::now());
        if let Err(why) = released
            && let Some(front) = self.to_editor.pop_front()
        {
            self.effect_refused(To::Lead, &front.packet, &why);
            self.commit(Input::Nothing);
        }
    }

    /// An effect that cannot be recorded does not happen: whoever asked for it
    /// is told why.
    fn effect_refused(&mut self, to: To, packet: &Packet, why: &str) {
        self.open.metrics.effects_refused.one();
        let Some(frame) = only_frame(packet) else { return };
        let peek = frame.peek();
        let refusal = Refusal::new(code::NOT_RECORDED, why);
        let number = WireId::parse(frame.get(peek.id)).map(|id| id.number);
        if to != To::Agent {
            if let Some(mut ask) = number.and_then(|number| self.asks.complete(number)) {
                self.end_approval(&mut ask, How::Cancelled, None, why);
                self.say_agent(refusal.frame(&ask.agent_id), Class::Stop);
            }
            return;
        }
        if peek.kind != Kind::Request {
            // A permission that was given but could not be written down.
            return self.say_agent(acp::result(frame.get(peek.id), acp::CANCELLED_PERMISSION), Class::Stop);
        }
        let Some(request) = number.and_then(|number| self.requests.complete(number)) else { return };
        match request.purpose {
            Purpose::Open => self.answer_opening(&refusal),
            Purpose::Prompt => {
                self.survey.forget();
                if let Some(turn) = self.turn.take() {
                    self.turn_ended();
                    self.count_turn(turn.began, TurnEnd::Error);
                }
                self.answer(request.seat, refusal.frame(&request.editor_id));
                self.next_turn();
            }
            Purpose::Relay => self.answer(request.seat, refusal.frame(&request.editor_id)),
            Purpose::Rebind => self.not_bound(&refusal),
            Purpose::Wish | Purpose::SetBack | Purpose::Close => warn!(why, "a request of ours was not sent"),
        }
    }

    /// Takes back a request to the agent that still waits for the disk; whether
    /// it did.
    pub(super) fn take_back(&mut self, number: u32) -> bool {
        let is_it = |waiting: &Waiting| {
            waiting.effect().is_some_and(|frame| {
                let peek = frame.peek();
                peek.kind == Kind::Request
                    && WireId::parse(frame.get(peek.id)).is_some_and(|id| id.number == number)
            })
        };
        let taken = self.to_agent.iter().position(is_it).and_then(|at| self.to_agent.remove(at));
        if taken.is_some() && self.turn.as_ref().is_some_and(|turn| turn.number == number) {
            self.survey.forget();
        }
        taken.is_some()
    }

    /// Takes back the answers to the agent that still wait for the disk; the
    /// agent's ids of what they answer.
    pub(super) fn take_back_answers(&mut self) -> Vec<Bytes> {
        let mut ids = Vec::new();
        self.to_agent.retain(|waiting| match waiting.effect() {
            Some(frame) if frame.peek().kind != Kind::Request => {
                ids.push(frame.copy(frame.peek().id));
                false
            }
            _ => true,
        });
        ids
    }
}

impl Waiting {
    fn new(packet: Packet, after: Option<Ticket>, traced: &Traced) -> Self {
        let since = after.map(|_| (Instant::now(), traced.step("journal.sync")));
        Self { packet, after, since }
    }

    /// Its record is on disk, or will not be.
    fn released(&mut self, metrics: &Metrics) {
        self.after = None;
        if let Some((since, _)) = self.since.take() {
            metrics.effect_seconds.took(since.elapsed());
        }
    }

    /// The frame, if it waits for the disk.
    fn effect(&self) -> Option<Frame> {
        self.after.and_then(|_| only_frame(&self.packet))
    }
}

/// The frame of a packet that holds one, as all effects do.
fn only_frame(packet: &Packet) -> Option<Frame> {
    let line = packet.frames.strip_suffix(b"\n").unwrap_or(&packet.frames);
    Frame::parse(packet.frames.slice(..line.len())).ok()
}
