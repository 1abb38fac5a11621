//! Which of a process's sessions does a frame of the agent belong to?
//!
//! By the agent's session id, by the id of the request that is answered, or,
//! when a frame names neither, by there being one session only. Ids are
//! unique within this process alone, so nothing can cross to another one.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use bytes::Bytes;
use serde_json::json;

use super::{Attachment, Process};
use crate::{
    acp::{self, Refusal, code},
    frame::{self, Frame, Kind, Method, Peek, Run},
    journal::{Class, Journal},
    metrics::{Branch, Metrics},
    pending::WireId,
    queue,
    record::{Destination, Origin},
    recorder::Recorder,
};

/// Frames kept for sessions whose id the agent has not told us yet.
const EARLY_FRAMES: usize = 1024;

/// Bytes kept for them: one agent's first update has half a megabyte.
const EARLY_BYTES: usize = 8 << 20;

/// Answers of ours that may wait for the agent to read; above that nothing
/// more is read from it.
const MAX_REPLIES: usize = 64;

/// The sessions of one process and what is on its way to them.
pub(super) struct Routing {
    process: Arc<Process>,
    runs: usize,
    bytes: u32,
    slots: HashMap<u32, Slot>,
    next_slot: u32,
    /// The agent's session ids, with quotes. Ids of sessions that are gone
    /// stay, so that what the agent still says of them is no breach.
    bound: HashMap<Bytes, u32>,
    early: Vec<(Bytes, Frame)>,
    early_bytes: usize,
    outgoing: VecDeque<(u32, Run)>,
    replies: VecDeque<Bytes>,
    /// What belongs to no session is recorded as the process's own.
    pub(super) recorder: Recorder,
    metrics: Metrics,
}

struct Slot {
    output: queue::Sender<Run>,
    /// Its `session/new` has not been answered.
    opening: bool,
}

/// Number of the request that opens a session: its first.
const OPENING: u32 = 1;

/// Where a frame goes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    To(u32),
    All,
    Early,
    Nowhere,
}

impl Routing {
    pub(super) fn new(
        process: Arc<Process>,
        runs: usize,
        bytes: u32,
        recorder: Recorder,
        metrics: Metrics,
    ) -> Self {
        Self {
            process,
            runs,
            bytes,
            slots: HashMap::new(),
            next_slot: 0,
            bound: HashMap::new(),
            early: Vec::new(),
            early_bytes: 0,
            outgoing: VecDeque::new(),
            replies: VecDeque::new(),
            recorder,
            metrics,
        }
    }

    pub(super) fn attach(&mut self, known: Option<Bytes>) -> Attachment {
        self.slots.retain(|_, slot| slot.opening || !slot.output.is_closed());
        // Slots are not used again: a late answer to a former session's
        // request must find nobody.
        let slot = self.next_slot;
        self.next_slot += 1;
        let (output, receiver) = queue::queue(self.runs, self.bytes);
        self.slots.insert(slot, Slot { output, opening: known.is_none() });
        if let Some(known) = known {
            self.bound.insert(known, slot);
        }
        Attachment { slot, output: receiver }
    }

    /// Whether something waits to be delivered, so that nothing more may be
    /// read.
    pub(super) fn is_blocked(&self) -> bool {
        !self.outgoing.is_empty() || self.replies.len() > MAX_REPLIES || !self.recorder.has_room()
    }

    /// Whether something waits at all.
    pub(super) fn has_waiting(&self) -> bool {
        !self.outgoing.is_empty() || !self.replies.is_empty()
    }

    /// Waits until one waiting thing can go on, and sends it. Safe to drop.
    pub(super) async fn deliver(&mut self) {
        let reply = self.replies.front().map_or(0, Bytes::len);
        let target = self.outgoing.front().and_then(|(slot, run)| Some((self.slots.get(slot)?, run.size())));
        let lost = tokio::select! {
            permit = self.process.input().reserve(reply), if reply > 0 => {
                if let (Ok(permit), Some(reply)) = (permit, self.replies.pop_front()) {
                    permit.send(reply);
                }
                None
            }
            permit = async {
                match target {
                    Some((slot, size)) => slot.output.reserve(size).await.ok(),
                    None => None,
                }
            }, if !self.outgoing.is_empty() => {
                match (self.outgoing.pop_front(), permit) {
                    (Some((_, run)), Some(permit)) => {
                        permit.send(run);
                        None
                    }
                    (front, _) => front.map(|(_, run)| run),
                }
            }
        };
        if let Some(run) = lost {
            self.lost(&run);
            self.write();
        }
    }

    /// Takes a run from the agent and sends it on as far as there is room.
    pub(super) fn accept(&mut self, run: Run) {
        if let Some(slot) = self.whole(&run) {
            self.send(slot, run);
        } else {
            self.accept_parts(&run);
        }
        // Nobody will come for these any more.
        if !self.early.is_empty() && !self.slots.values().any(|slot| slot.opening) {
            self.early_bytes = 0;
            for (_, frame) in std::mem::take(&mut self.early) {
                self.refuse(&frame);
            }
        }
        self.flush();
    }

    /// The one session that all of a run is for: most runs go on as they are.
    fn whole(&self, run: &Run) -> Option<u32> {
        let Way::To(slot) = run.iter().next().map(|(bytes, peek)| self.way(bytes, peek))? else {
            return None;
        };
        (self.end_of(run, 0, slot) == run.len()).then_some(slot)
    }

    /// Where the frames of one session end that stand together from `at` on.
    fn end_of(&self, run: &Run, at: usize, slot: u32) -> usize {
        let goes_along =
            |(bytes, peek)| alike(run.at(at), (bytes, peek)) || self.way(bytes, peek) == Way::To(slot);
        (at + 1..run.len()).find(|index| !goes_along(run.at(*index))).unwrap_or(run.len())
    }

    fn accept_parts(&mut self, run: &Run) {
        let mut at = 0;
        while at < run.len() {
            let (bytes, peek) = run.at(at);
            let way = self.way(bytes, peek);
            // Frames of one session that stand together stay together.
            let end = match way {
                Way::To(slot) => self.end_of(run, at, slot),
                _ => at + 1,
            };
            let part = run.part(at..end);
            match way {
                Way::To(slot) => self.send(slot, part),
                Way::All => {
                    let open = self.slots.iter().filter(|(_, slot)| !slot.output.is_closed());
                    let slots: Vec<u32> = open.map(|(slot, _)| *slot).collect();
                    // Without any session it is the process's own, once.
                    if slots.is_empty() {
                        self.record(&part);
                    }
                    for slot in slots {
                        self.send(slot, part.clone());
                    }
                }
                Way::Early => self.keep(&part.frame(0)),
                Way::Nowhere => self.refuse(&part.frame(0)),
            }
            at = end;
        }
    }

    fn way(&self, bytes: &[u8], peek: &Peek) -> Way {
        match peek.kind {
            Kind::Result | Kind::Error => {
                // An answer that comes after its session has gone is no breach.
                match WireId::parse(peek.id.of(bytes)) {
                    Some(id) if id.slot < self.next_slot => Way::To(id.slot),
                    _ => Way::Nowhere,
                }
            }
            _ if peek.session.is_some() => match self.bound.get(peek.session.of(bytes)) {
                Some(slot) => Way::To(*slot),
                None if self.slots.values().any(|slot| slot.opening) => Way::Early,
                None => Way::Nowhere,
            },
            // An elicitation may belong to a request instead of a session.
            Kind::Request if peek.request_id.is_some() => match WireId::parse(peek.request_id.of(bytes)) {
                Some(id) if self.slots.contains_key(&id.slot) => Way::To(id.slot),
                _ => Way::Nowhere,
            },
            Kind::Request if peek.method.needs_session() => Way::Nowhere,
            Kind::Request => match self.only_slot() {
                Some(slot) => Way::To(slot),
                None => Way::Nowhere,
            },
            // Whoever it concerns will know: a cancelled request by its id.
            Kind::Notification | Kind::Opaque => match self.only_slot() {
                Some(slot) => Way::To(slot),
                None => Way::All,
            },
        }
    }

    fn only_slot(&self) -> Option<u32> {
        let mut open = self.slots.iter().filter(|(_, slot)| !slot.output.is_closed());
        match (open.next(), open.next()) {
            (Some((slot, _)), None) => Some(*slot),
            _ => None,
        }
    }

    fn send(&mut self, slot: u32, run: Run) {
        let opened = self.opened(slot, &run);
        self.outgoing.push_back((slot, run));
        // What came before the answer that names the session goes right after
        // it, in order.
        for frame in opened {
            self.outgoing.push_back((slot, frame.into()));
        }
    }

    /// If the run holds the answer that opens this slot's session, binds the
    /// agent's id and gives the frames that waited for it.
    fn opened(&mut self, slot: u32, run: &Run) -> Vec<Frame> {
        let Some(entry) = self.slots.get_mut(&slot).filter(|entry| entry.opening) else { return Vec::new() };
        let id = WireId { slot, number: OPENING };
        let answer = run.iter().position(|(bytes, peek)| {
            matches!(peek.kind, Kind::Result | Kind::Error) && WireId::parse(peek.id.of(bytes)) == Some(id)
        });
        let Some(answer) = answer.map(|index| run.frame(index)) else { return Vec::new() };
        entry.opening = false;
        if answer.peek().kind == Kind::Error || answer.peek().session.is_none() {
            return Vec::new();
        }
        if entry.output.is_closed() && self.process.hello.can("close") {
            // Nobody else knows of it, so nobody else would close it.
            let session: serde_json::Value = answer.decode(answer.peek().session).unwrap_or_default();
            let id = WireId { slot, number: OPENING + 1 }.to_string();
            self.reply(acp::call(Some(id), "session/close", &json!({ "sessionId": session })));
        }
        let name = answer.copy(answer.peek().session);
        let early = std::mem::take(&mut self.early);
        let (ours, others): (Vec<_>, Vec<_>) = early.into_iter().partition(|(id, _)| *id == name);
        self.early = others;
        self.early_bytes = self.early.iter().map(|(_, frame)| frame.bytes().len()).sum();
        self.bound.insert(name, slot);
        ours.into_iter().map(|(_, frame)| frame).collect()
    }

    /// A session has gone before it could take these: what asks is answered.
    fn lost(&mut self, run: &Run) {
        let requests = |index: &usize| run.at(*index).1.kind == Kind::Request;
        self.record(&run.select(|index| !requests(&index)));
        for index in (0..run.len()).filter(requests) {
            self.refuse(&run.frame(index));
        }
    }

    fn keep(&mut self, frame: &Frame) {
        if self.early.len() >= EARLY_FRAMES || self.early_bytes + frame.bytes().len() > EARLY_BYTES {
            self.metrics.best_effort(Branch::EarlyDropped);
            self.refuse(frame);
            return;
        }
        self.early_bytes += frame.bytes().len();
        self.early.push((frame.copy(frame.peek().session), frame.detached()));
    }

    /// A frame that belongs to no session of ours: counted, and answered if it
    /// asks something.
    fn refuse(&mut self, frame: &Frame) {
        let peek = frame.peek();
        self.record(&frame.clone().into());
        match peek.kind {
            Kind::Result | Kind::Error => {
                let id = frame::escape(frame.get(peek.id), 100);
                self.process.violation(format_args!("an answer to nothing, with id {id}"));
            }
            Kind::Request => {
                let refusal = if peek.session.is_some() {
                    Refusal::unknown_session(frame)
                } else {
                    let message =
                        format!("{} names no session, and there is not just one", frame.method_name());
                    Refusal::new(code::METHOD_NOT_FOUND, message)
                };
                self.reply(refusal.frame(frame.get(peek.id)));
            }
            Kind::Notification if peek.method == Method::SessionUpdate => {
                let id = frame::escape(frame.get(peek.session), 100);
                self.process.violation(format_args!("an update of an unknown session {id}"));
            }
            Kind::Notification | Kind::Opaque => {}
        }
    }

    fn record(&mut self, run: &Run) {
        self.recorder.know_only(self.process.known());
        self.recorder.run(Origin::Agent, Destination::Editor, &[], run);
    }

    /// Writes down what belongs to no session, as much as there is of it at once. It is what
    /// the agent says, so it waits for the disk as that does, and the agent with it.
    pub(super) fn write(&mut self) {
        self.recorder.commit(Class::Stream).ok();
    }

    fn reply(&mut self, line: Bytes) {
        self.recorder.know_only(self.process.known());
        self.recorder.frame(Origin::Conductor, Destination::Agent, None, &line);
        self.replies.push_back(line);
    }

    /// Sends what there is room for right now.
    fn flush(&mut self) {
        while let Some((slot, run)) = self.outgoing.pop_front() {
            let Some(entry) = self.slots.get(&slot) else {
                self.lost(&run);
                continue;
            };
            match entry.output.try_send(run.size(), run) {
                Ok(()) => {}
                Err(queue::NotSent::Closed(run)) => self.lost(&run),
                Err(queue::NotSent::Full(run)) => {
                    self.outgoing.push_front((slot, run));
                    break;
                }
            }
        }
        self.write();
        // What stops something is written as soon as that is possible, and goes out in any case.
        while let Some(reply) = self.replies.pop_front() {
            match self.process.input().try_send(reply.len(), reply) {
                Ok(()) | Err(queue::NotSent::Closed(_)) => {}
                Err(queue::NotSent::Full(reply)) => {
                    self.replies.push_front(reply);
                    break;
                }
            }
        }
    }
}

/// Waits until what is pending is worth another try.
pub(super) async fn accepting(journal: Option<&Journal>) {
    match journal {
        Some(journal) => journal.accepting().await,
        None => std::future::pending().await,
    }
}

/// Whether two frames are notifications of the same session, and thus go the
/// same way. Most of a run is, and this is cheaper than to ask for each.
fn alike(one: (&[u8], &Peek), other: (&[u8], &Peek)) -> bool {
    one.1.kind == Kind::Notification
        && other.1.kind == Kind::Notification
        && one.1.session.is_some()
        && one.1.session.of(one.0) == other.1.session.of(other.0)
}
