//! Who is at a session besides the editor that leads it: who sits down, who
//! leaves, whom permission requests go to, and which prompts wait.

use std::{
    collections::BTreeMap,
    sync::{Arc, Weak},
    time::SystemTime,
};

use bytes::{Bytes, BytesMut};
use serde_json::{Value, json};
use tokio::{
    sync::{mpsc, oneshot},
    time::Instant,
};

use super::{
    INPUT_BYTES, Input, Request, Session, SessionEvent,
    from_editor::take_from,
    handle::{Guest, LEAD, QueuedPrompt, SeatRole, Seated, Told, Word},
    past::{Standing, blocks, user_message},
};
use crate::{
    acp::{self, Refusal, code},
    frame::{Frame, Kind, Method, splice},
    identity::Caller,
    metrics::Metrics,
    pending::WireId,
    policy::Narrowing,
    queue,
    record::note,
    router::Access,
};

/// What may wait for a seat to hear of it; one that lets more pile up is let go
/// and can come back.
const TOLD: usize = 256;

/// Answers that are remembered, to tell those who come late.
const REMEMBERED: usize = 64;

/// Characters of a waiting prompt that are shown.
const SHOWN: usize = 200;

/// Someone who has a seat.
#[derive(Debug)]
pub(super) struct Place {
    caller: Caller,
    role: SeatRole,
    /// What narrows the rules while they prompt.
    own: Option<Arc<Narrowing>>,
    /// `None` once it is so far behind that it has to begin again.
    told: Option<mpsc::Sender<Told>>,
}

impl Place {
    /// Whether it may say something, and hears what becomes of that.
    fn drives(&self) -> bool {
        self.role == SeatRole::Driver && self.told.is_some()
    }
}

/// Everyone who has one, the lead aside.
#[derive(Debug)]
pub(super) struct Seats {
    /// The editor that opened the session is still there.
    pub(super) is_led: bool,
    /// The lead is let go as soon as it has got everything.
    pub(super) is_lead_leaving: bool,
    /// Since when nobody is there.
    pub(super) deserted: Option<Instant>,
    others: BTreeMap<u32, Place>,
    /// Who has left, but has prompts that wait.
    departed: BTreeMap<u32, Place>,
    /// They come as soon as the session is open.
    pub(super) waiting: Vec<Word>,
    /// Who is to hear of which permission request that it needs no answer.
    withdrawn: Vec<(u32, u32, Option<String>)>,
    /// They have closed the session, and get their answer first.
    pub(super) leaving: Vec<u32>,
    /// Who has answered which permission request.
    pub(super) answered: Vec<(u32, Option<String>)>,
    metrics: Metrics,
}

impl Seats {
    pub(super) fn new(metrics: Metrics) -> Self {
        Self {
            is_led: true,
            is_lead_leaving: false,
            deserted: None,
            others: BTreeMap::new(),
            departed: BTreeMap::new(),
            waiting: Vec::new(),
            withdrawn: Vec::new(),
            leaving: Vec::new(),
            answered: Vec::new(),
            metrics,
        }
    }

    /// Whether somebody is there besides the lead, wherever that is.
    pub(super) fn has_others(&self) -> bool {
        !self.others.is_empty()
    }

    /// Whether somebody is there besides this one.
    pub(super) fn has_more_than(&self, seat: u32) -> bool {
        self.is_led && seat != LEAD || self.others.keys().any(|other| *other != seat)
    }

    /// Whose seat it is, or was.
    fn place(&self, seat: u32) -> Option<&Place> {
        self.others.get(&seat).or_else(|| self.departed.get(&seat))
    }

    /// What narrows the rules while somebody prompts from this seat.
    pub(super) fn own(&self, seat: u32) -> Option<&Arc<Narrowing>> {
        self.place(seat)?.own.as_ref()
    }

    /// Those who may answer, the lead among them.
    fn drivers(&self) -> impl Iterator<Item = u32> {
        let others = self.others.iter().filter(|(_, place)| place.drives());
        self.is_led.then_some(LEAD).into_iter().chain(others.map(|(seat, _)| *seat))
    }

    /// Whether somebody can be asked; whether the lead is there is for others to know.
    pub(super) fn is_attended(&self, is_lead_there: bool) -> bool {
        self.drivers().any(|seat| seat != LEAD || is_lead_there)
    }

    /// Tells one of them something, if it is there.
    pub(super) fn tell(&mut self, seat: u32, told: Told) {
        let Some(place) = self.others.get_mut(&seat) else { return };
        // It is gone, or so far behind that it has to begin again.
        let sent = place.told.as_ref().map(|to| to.try_send(told));
        if let Some(Err(failed)) = sent {
            place.told = None;
            if matches!(failed, mpsc::error::TrySendError::Full(_)) {
                self.metrics.seats_dropped.one();
            }
        }
    }

    /// Those beside the lead need not answer a permission request any more.
    pub(super) fn withdraw(&mut self, number: u32, by: Option<u32>, user: Option<&String>) {
        let others = self.drivers().filter(|seat| *seat != LEAD && Some(*seat) != by);
        let told: Vec<_> = others.map(|seat| (seat, number, user.cloned())).collect();
        self.withdrawn.extend(told);
    }

    /// Whether somebody waits to hear that.
    pub(super) fn has_withdrawn(&self) -> bool {
        !self.withdrawn.is_empty()
    }

    /// Gives up a seat once everything that is under way to it is there.
    pub(super) fn unseat(&mut self, seat: u32) {
        self.leaving.push(seat);
    }

    /// Whether this is a driver's seat.
    fn is_drivers(&self, seat: u32) -> bool {
        seat == LEAD || self.others.get(&seat).is_some_and(Place::drives)
    }

    /// Keeps a word until the session is open: who wants a seat, and what they
    /// say meanwhile, as long as that is not too much. Whoever wants a seat is
    /// never turned away here, as they would come again at once.
    fn keep(&mut self, word: Word) {
        self.waiting.retain(|word| !matches!(word, Word::Sit { here, .. } if is_gone(here)));
        if let Word::Frame(of, frame) = &word {
            let waits = self.waiting.iter().any(|word| matches!(word, Word::Sit { seat, .. } if seat == of));
            let sizes = self.waiting.iter().map(|word| match word {
                Word::Frame(_, frame) => frame.bytes().len(),
                _ => 0,
            });
            if !waits || sizes.sum::<usize>() + frame.bytes().len() > INPUT_BYTES as usize {
                return;
            }
        }
        self.waiting.push(word);
    }
}

impl Session {
    /// Hears what is said to the session.
    pub(super) fn hear(&mut self, word: Word) {
        match word {
            Word::Sit { .. } if !self.is_open => self.seats.keep(word),
            Word::Frame(seat, _) if !self.is_open && seat != LEAD => self.seats.keep(word),
            Word::Frame(seat, frame) => self.hear_frame(seat, &frame),
            Word::Sit { here, .. } if is_gone(&here) => {}
            Word::Sit { seat, guest, request, reply, .. } => {
                self.seat(seat, guest, request.as_ref(), reply);
            }
            Word::Answer { caller, request, option, reply } => {
                let answered = self.answer_by_name(&caller, request, option.as_deref());
                self.commit(Input::Nothing);
                reply.send(answered).ok();
            }
            Word::Decide { caller, approval, allow, reason, reply } => {
                let decided = self.answer_as_approver(&caller, approval, allow, &reason);
                self.commit(Input::Nothing);
                reply.send(decided).ok();
            }
            Word::Queue(reply) => {
                reply.send(self.waiting_prompts()).ok();
            }
            Word::Unqueue(entry, reply) => {
                let was_there = self.unqueue(entry);
                self.commit(Input::Nothing);
                reply.send(was_there).ok();
            }
            Word::Note(method, params) => {
                self.recorder.note(method, &params);
                self.commit(Input::Nothing);
            }
        }
    }

    fn hear_frame(&mut self, seat: u32, frame: &Frame) {
        if !self.seats.is_drivers(seat) {
            // Its place is gone, or it only watches; the connection knows.
            return;
        }
        if !self.may_drive(seat) {
            if frame.peek().kind == Kind::Request {
                self.answer(seat, Refusal::unknown_session(frame).frame(frame.get(frame.peek().id)));
            }
            // The connection has recorded those.
            self.hand.deferred = frame.peek().method == Method::CancelRequest;
            return self.commit(Input::Frame(seat, frame));
        }
        let is_answer = matches!(frame.peek().kind, Kind::Result | Kind::Error);
        let renumbered = if seat != LEAD && is_answer { renumbered(frame, self.link.slot) } else { None };
        let frame = renumbered.as_ref().unwrap_or(frame);
        self.from_editor(seat, frame);
        self.commit(Input::Frame(seat, frame));
        for seat in std::mem::take(&mut self.seats.leaving) {
            self.unseated(seat);
        }
        self.idle_since = Instant::now();
    }

    /// Those who came before the session was open.
    pub(super) fn seat_waiting(&mut self) {
        for word in std::mem::take(&mut self.seats.waiting) {
            self.hear(word);
        }
    }

    fn seat(&mut self, seat: u32, guest: Guest, request: Option<&Frame>, reply: oneshot::Sender<Seated>) {
        let Guest { caller, role, own } = guest;
        let (tell, told) = mpsc::channel(TOLD);
        let at_seq = self.recorder.last_seq();
        let asks = self.asks.numbered().filter(|(_, ask)| role == SeatRole::Driver && ask.is_shown);
        let asks = asks.filter_map(|(number, ask)| Some((number, ask.frame.clone()?))).collect();
        self.recorder.note(note::SEATED, &json!({ "user": caller.user, "as": role.name(), "seat": seat }));
        self.seats.others.insert(seat, Place { caller, role, own: own.map(Arc::new), told: Some(tell) });
        self.seats.deserted = None;
        let options = self.shown().map_or_else(|| self.options.clone(), |shown| shown.value());
        // Whoever does not wait for this any more leaves in a moment.
        let standing =
            Standing { replayed: self.replayed(), number: self.routing.number, picks: self.picks() };
        reply.send(Seated { at_seq, asks, options: options.clone(), standing, told }).ok();
        match request {
            Some(frame) => {
                self.answer(seat, acp::result(frame.get(frame.peek().id), options.to_string().as_bytes()));
                self.commit(Input::Frame(seat, frame));
            }
            None => self.commit(Input::Nothing),
        }
    }

    /// Someone has left.
    pub(super) async fn left(&mut self, seat: u32) {
        if seat == LEAD {
            if !self.seats.is_led {
                return;
            }
            if !self.goes_on() {
                self.ended = true;
                return;
            }
            if !self.may_drive(LEAD) {
                self.disown(LEAD);
            }
            self.seats.is_led = false;
            self.to_editor.clear();
            self.stalled_since = None;
            // Only the lead could have done these.
            self.answer_asks(|ask| !ask.is_permission());
            self.link.events.send(SessionEvent::Ended(self.link.slot)).await.ok();
            // The connection ends once nobody can say anything to its editor.
            self.link.out = queue::queue(1, 1).0;
        }
        self.unseated(seat);
    }

    /// A seat is free, and what depends on that is done.
    fn unseated(&mut self, seat: u32) {
        if seat != LEAD && !self.may_drive(seat) {
            self.disown(seat);
        }
        if let Some(place) = self.seats.others.remove(&seat) {
            self.recorder.note(note::UNSEATED, &json!({ "user": place.caller.user, "seat": seat }));
            let waits = |seat: u32| self.queued.iter().chain(&self.waiting).any(|asked| asked.seat == seat);
            self.seats.departed.retain(|seat, _| waits(*seat));
            if waits(seat) {
                self.seats.departed.insert(seat, Place { told: None, ..place });
            }
        }
        // The others have said that they will not answer these. If nobody is
        // left, they wait for somebody to come.
        let drivers: Vec<u32> = self.seats.drivers().collect();
        if !drivers.is_empty() {
            self.answer_asks(|ask| drivers.iter().all(|seat| ask.declined.contains(seat)));
        }
        if !self.seats.is_led && !self.seats.has_others() {
            self.seats.deserted = Some(Instant::now());
        }
        self.commit(Input::Nothing);
    }

    /// Answers what somebody has asked with whom the session is not shared any
    /// more. A turn of theirs that runs goes on; how it ends they do not learn.
    fn disown(&mut self, seat: u32) {
        let refusal = Refusal::new(code::NOT_FOUND, "this session is not shared with you any more");
        // Answers that come later have an id that nobody has asked with.
        let nobody = Bytes::from_static(b"null");
        let is_theirs = |request: &Request| {
            request.seat == seat && !request.editor_id.is_empty() && request.editor_id != nobody
        };
        while let Some((number, _)) = self.requests.find(is_theirs) {
            let Some(request) = self.requests.get_mut(number) else { break };
            let line = refusal.frame(&std::mem::replace(&mut request.editor_id, nobody.clone()));
            self.answer(seat, line);
        }
        for asked in take_from(&mut self.queued, |asked| asked.seat == seat) {
            self.answer_queued(asked, |id| refusal.frame(id));
        }
        for asked in take_from(&mut self.waiting, |asked| asked.seat == seat) {
            self.answer_queued(asked, |id| refusal.frame(id));
        }
        self.commit(Input::Nothing);
    }

    /// Whether the session has nobody and nothing left to go on for.
    pub(super) fn is_over(&self) -> bool {
        let Some(since) = self.seats.deserted else { return false };
        !self.goes_on() || since + self.open.detached_ttl <= Instant::now()
    }

    /// Whether the session has a reason to go on without the lead.
    fn goes_on(&self) -> bool {
        let is_busy = self.turn.is_some() || !self.queued.is_empty() || !self.waiting.is_empty();
        let outlives = is_busy && self.open.outlives_editor || self.open.lingers;
        let is_wanted = self.seats.has_others() || outlives && !self.open.detached_ttl.is_zero();
        self.is_open && is_wanted && !self.open.ending.is_cancelled()
    }

    /// Who a seat belongs to, or did.
    pub(super) fn caller(&self, seat: u32) -> &Caller {
        self.seats.place(seat).map_or(&self.open.caller, |place| &place.caller)
    }

    /// Its name.
    pub(super) fn user(&self, seat: u32) -> &str {
        &self.caller(seat).user
    }

    /// Whether what was said from a seat still counts: it does not any more once
    /// the session is not shared with who said it.
    pub(super) fn may_drive(&self, seat: u32) -> bool {
        self.drives(self.caller(seat))
    }

    /// Whether somebody may drive the session.
    pub(super) fn drives(&self, caller: &Caller) -> bool {
        caller.user == self.open.owner || self.router.access(self.open.id, caller).is_some_and(Access::drives)
    }

    /// Notes who said the frame that is recorded next, if it was not the
    /// session's owner.
    pub(super) fn note_speaker(&mut self, seat: u32) {
        let user = self.user(seat);
        if user != self.open.owner {
            let params = json!({ "user": user });
            self.recorder.note(note::BY, &params);
        }
    }

    /// A permission request was answered by someone: the others need not.
    pub(super) fn decided(&mut self, number: u32, by: Option<u32>) {
        let user = by.map(|seat| self.user(seat).to_string());
        self.withdraw_from(number, by, user);
    }

    /// The same, by somebody who need not have a seat.
    pub(super) fn withdraw_from(&mut self, number: u32, by: Option<u32>, user: Option<String>) {
        if self.seats.is_led && by != Some(LEAD) {
            let id = self.editor_id(number);
            let params = match &user {
                Some(user) => json!({ "requestId": id, "_meta": { "conductor": { "answeredBy": user } } }),
                None => json!({ "requestId": id }),
            };
            self.say_editor(acp::call(None, "$/cancel_request", &params));
            if let Some(user) = user.as_ref().filter(|_| self.link.capabilities.notices) {
                let text = format!("{user} has answered the request for permission.");
                self.say_editor(acp::notice(&self.open.id.to_string(), "info", "Answered elsewhere", &text));
            }
        }
        self.seats.withdraw(number, by, user.as_ref());
        self.seats.answered.push((number, user));
        if self.seats.answered.len() > REMEMBERED {
            self.seats.answered.remove(0);
        }
    }

    /// What has become of permission requests is told once that is on record.
    pub(super) fn tell_withdrawn(&mut self) {
        let after = self.recorder.last_seq();
        for (seat, number, by) in std::mem::take(&mut self.seats.withdrawn) {
            self.seats.tell(seat, Told::Withdrawn { after, number, by });
        }
    }

    /// Someone would rather not answer a permission request. Whether anybody is
    /// left who may.
    pub(super) fn declines(&mut self, number: u32, seat: u32) -> bool {
        let drivers: Vec<u32> = self.seats.drivers().collect();
        let Some(ask) = self.asks.get_mut(number) else { return false };
        if !ask.declined.contains(&seat) {
            ask.declined.push(seat);
        }
        drivers.iter().any(|seat| !ask.declined.contains(seat))
    }

    /// The prompts that wait for the agent or the turns before them.
    fn waiting_prompts(&self) -> Vec<QueuedPrompt> {
        let prompts = self.waiting.iter().filter(|asked| asked.frame.peek().method == Method::SessionPrompt);
        let shown = prompts.chain(&self.queued).map(|asked| {
            let blocks = blocks(asked.frame.bytes(), asked.frame.peek());
            let texts = blocks.iter().filter_map(|block| {
                serde_json::from_str::<Value>(block.get()).ok()?["text"].as_str().map(str::to_string)
            });
            QueuedPrompt {
                entry: asked.entry,
                user: self.user(asked.seat).to_string(),
                text: texts.collect::<Vec<_>>().join(" ").chars().take(SHOWN).collect(),
                since: asked.since,
            }
        });
        shown.collect()
    }

    fn unqueue(&mut self, entry: u64) -> bool {
        let in_queue = self.queued.iter().position(|asked| asked.entry == entry);
        let found = match in_queue {
            Some(at) => self.queued.remove(at),
            None => {
                let is_it = |asked: &Asked| {
                    asked.entry == entry && asked.frame.peek().method == Method::SessionPrompt
                };
                self.waiting.iter().position(is_it).and_then(|at| self.waiting.remove(at))
            }
        };
        match found {
            Some(asked) => {
                self.answer_queued(asked, |id| acp::result(id, acp::CANCELLED_TURN));
                true
            }
            None => false,
        }
    }

    /// A request that has to wait.
    pub(super) fn asked(&mut self, seat: u32, frame: &Frame) -> Asked {
        self.next_entry += 1;
        Asked {
            seat,
            frame: frame.clone(),
            is_again: false,
            entry: self.next_entry,
            since: SystemTime::now(),
        }
    }

    /// Shows the lead what someone else has asked, as it will be replayed.
    pub(super) fn echo(&mut self, frame: &Frame, seq: u64) {
        if !self.seats.is_led {
            return;
        }
        let mut out = Vec::new();
        let mut count = 0;
        for content in blocks(frame.bytes(), frame.peek()) {
            out.extend_from_slice(user_message(self.open.id, seq, &self.name, content).as_bytes());
            out.push(b'\n');
            count += 1;
        }
        if count > 0 {
            self.show_lead(out.into(), count);
        }
    }
}

/// Whether a seat was given up before its session has heard of it.
fn is_gone(here: &Weak<()>) -> bool {
    here.strong_count() == 0
}

/// An answer as the lead would have given it: each editor knows a permission
/// request by an id of its own, the record by the lead's.
fn renumbered(frame: &Frame, slot: u32) -> Option<Frame> {
    let id = WireId { slot, ..WireId::parse(frame.get(frame.peek().id))? }.to_string();
    let mut out = BytesMut::new();
    splice(&mut out, frame.bytes(), [(frame.peek().id, id.as_bytes())]);
    out.truncate(out.len() - 1);
    Frame::parse(out.freeze()).ok()
}

/// A request that waits, and whose it is.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) seat: u32,
    pub(super) frame: Frame,
    /// It was sent to an agent that could not take it.
    pub(super) is_again: bool,
    entry: u64,
    since: SystemTime,
}

impl Asked {
    /// Whether it is what a seat asks with this id.
    pub(super) fn is(&self, seat: u32, id: &[u8]) -> bool {
        self.seat == seat && self.frame.get(self.frame.peek().id) == id
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seat_that_falls_behind_is_let_go_and_counted() {
        let metrics = Metrics::default();
        let mut seats = Seats::new(metrics.clone());
        let (told, _unheard) = mpsc::channel(1);
        let caller = Caller { user: "ann".into(), teams: Vec::new(), roles: Vec::new() };
        seats.others.insert(1, Place { caller, role: SeatRole::Driver, own: None, told: Some(told) });
        for (dropped, attended) in [(0, true), (1, false), (1, false)] {
            seats.tell(1, Told::Own { after: 1, outgoing: 1 });
            assert_eq!((metrics.seats_dropped.get(), seats.is_attended(false)), (dropped, attended));
        }
    }
}
