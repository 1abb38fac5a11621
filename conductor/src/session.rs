//! A session: the one place where both directions meet.
//!
//! One task per session owns its state alone. It takes frames from the editor
//! and runs from the agent, and it never waits for room on one side while the
//! other has something to say: what cannot go out is held in an outbox, and
//! the side that fills that outbox is not read until it is empty. (An agent
//! that floods its stdout before it reads its stdin would otherwise lock both
//! up for ever.)

mod adapt;
mod asking;
mod binding;
mod calls;
mod ending;
mod farewell;
mod flight;
mod follower;
mod from_agent;
mod from_editor;
mod handle;
mod host;
mod judging;
mod modes;
mod opening;
mod outbox;
mod past;
mod seats;
mod stall;
mod terms;
mod watching;

use std::{
    collections::{HashSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep, sleep_until},
};
use tracing::{Instrument as _, debug, info_span};

use self::{
    binding::{Reached, Reaching, Settled, Way},
    farewell::Farewell,
    flight::{Ask, Binding, Purpose, Request, Turn},
    handle::{LEAD, Word},
    host::Host,
    judging::Judge,
    outbox::{Entry as Recorded, Gate, Input, Outgoing, Waiting},
    seats::{Asked, Seats},
    watching::Watched,
};
pub use self::{
    follower::{Follower, follow},
    handle::{Answered, QueuedPrompt, Seat, SeatRole, Seated, SessionHandle, Told},
    host::Hosting,
    judging::denied,
    modes::meta_actions,
    terms::{EditorLink, Open, Opening, Packet, Rules, SessionEvent, Wish},
};
use crate::{
    acp::{self, Refusal},
    agent::{Cause, Ended, Exit, Process},
    frame::{Frame, Kind, Method, Run},
    journal::{Class, Journal, Ticket},
    ledger::history::History,
    pending::{Pending, WireId},
    pool::Pool,
    queue,
    record::{Stream, StreamKind},
    recorder::Recorder,
    router::Router,
    tasks::Tasks,
};

/// Prompts that may wait while a turn runs; one more is refused.
const MAX_QUEUED_PROMPTS: usize = 16;

/// Requests that may be in flight in one direction; one more is refused.
const MAX_IN_FLIGHT: usize = 1024;

/// Frames from the editor that may wait for a session; more are refused.
const INPUT_FRAMES: usize = 256;

/// Bytes that may wait there: two frames of the largest size.
const INPUT_BYTES: u32 = 32 << 20;

/// Answers of ours that may pile up in an outbox before the side that causes
/// them is not read any more.
const MAX_OUTBOX: usize = 64;

/// Bytes of updates that may wait while a session is opened again; one agent's
/// first update has half a megabyte. More go before the history.
const EARLY_BYTES: usize = 8 << 20;

/// How long an editor may take to answer a request that the agent has
/// withdrawn; then the answer is ours.
const WITHDRAW_GRACE: Duration = Duration::from_secs(5);

struct Session {
    open: Open,
    /// Our id of the session, with quotes.
    name: Bytes,
    link: EditorLink,
    router: Router,
    pool: Pool,
    history: History,
    binding: Option<Binding>,
    /// What the agent says to this session; `None` once it has said all.
    output: Option<queue::Receiver<Run>>,
    /// A process, and a place at it, on the way.
    reaching: Option<Reaching>,
    /// The ways to the agent that are left, and the one that is being tried.
    ways: VecDeque<Way>,
    way: Option<Way>,
    settled: Option<Settled>,
    /// Updates that the agent sent while the editor waits for its session.
    early: Vec<Packet>,
    /// The agent may still be replaying what it has loaded: some do so after
    /// their answer. It is over with the next prompt.
    is_replaying: bool,
    /// The agent's own id of the session, with quotes, that is worth going back
    /// to; empty if there is none.
    agent_session: Bytes,
    /// Requests that wait for the agent.
    waiting: VecDeque<Asked>,
    /// What the agent has to be told of the past with the next prompt.
    handover: Option<String>,
    /// The process that is ending.
    leaving: Option<Ended>,
    /// The process was released because nothing happened.
    is_parked: bool,
    idle_since: Instant,
    /// Number of the first frame since this opening.
    first_seq: u64,
    /// The opening request is on record.
    is_asked: bool,
    /// The opening request has been answered with an error.
    is_refused: bool,
    /// The opening request has been answered with a result.
    is_open: bool,
    requests: Pending<Request>,
    asks: Pending<Ask>,
    host: Host,
    judge: Judge,
    watched: Watched,
    /// Since when nobody is there who could answer a question.
    unattended_since: Option<Instant>,
    turn: Option<Turn>,
    queued: VecDeque<Asked>,
    /// The name of the last request that had to wait.
    next_entry: u64,
    seats: Seats,
    handle: SessionHandle,
    /// `configOptions` and `modes`, as the agent has told of them last.
    options: Value,
    /// When the agent has last shown that it is at work.
    heard: Instant,
    /// The running turn was reported as stalled.
    is_stalled: bool,
    journal: Journal,
    recorder: Recorder,
    /// While something is handled: what is recorded besides it, the ids that
    /// it goes on with, what follows from it, and the weightiest of that.
    entries: Vec<Recorded>,
    outgoing: Vec<(u32, u64)>,
    staged: Vec<Outgoing>,
    class: Class,
    /// Where in its run the frame in hand stands.
    index: u32,
    /// Jobs of this host that wait to hear of their record.
    gates: Vec<Gate>,
    /// The frame in hand is recorded later, when its turn comes.
    deferred: bool,
    /// What the journal has not taken yet.
    held: Vec<Outgoing>,
    to_agent: VecDeque<Waiting>,
    to_editor: VecDeque<Waiting>,
    stalled_since: Option<Instant>,
    /// Terminals that the editor runs for this session.
    terminals: HashSet<String>,
    exit: Option<Arc<Exit>>,
    /// The editor's id of the `session/close` that ends it.
    closing: Option<Bytes>,
    /// It ends because the editor closed it.
    closed: bool,
    ended: bool,
}

/// Starts a session's task.
pub fn start(
    mut open: Open,
    link: EditorLink,
    pool: Pool,
    router: Router,
    journal: Journal,
    history: History,
    tasks: &Tasks,
) -> Option<Seat> {
    let (words, input) = queue::queue(INPUT_FRAMES, INPUT_BYTES);
    let (handle, departures) = SessionHandle::new(words, open.close.clone());
    let lead = handle.seat()?;
    if !matches!(open.opening, Opening::New) {
        router.started(open.id, handle.clone());
    }
    let span =
        info_span!("session", session.id = %open.id, agent = %open.key.agent, user = %open.caller.user);
    let recorder = Recorder::new(Some(journal.clone()), Stream { id: open.id, kind: StreamKind::Session });
    let session = Session {
        pool,
        history,
        output: None,
        reaching: None,
        ways: VecDeque::new(),
        way: None,
        settled: None,
        early: Vec::new(),
        is_replaying: false,
        agent_session: match &open.opening {
            Opening::New => Bytes::new(),
            Opening::Load(name) | Opening::Resume(name) => name.clone(),
        },
        waiting: VecDeque::new(),
        handover: None,
        leaving: open.leaving.take(),
        is_parked: false,
        idle_since: Instant::now(),
        first_seq: recorder.last_seq() + 1,
        is_asked: false,
        is_refused: false,
        host: Host::new(open.hosting.as_ref(), link.capabilities),
        judge: Judge::default(),
        watched: Watched::default(),
        unattended_since: None,
        name: format!("\"{}\"", open.id).into(),
        recorder,
        journal,
        entries: Vec::new(),
        outgoing: Vec::new(),
        staged: Vec::new(),
        class: Class::Stream,
        index: 0,
        gates: Vec::new(),
        deferred: false,
        held: Vec::new(),
        open,
        link,
        router,
        binding: None,
        is_open: false,
        requests: Pending::new(),
        asks: Pending::new(),
        turn: None,
        queued: VecDeque::new(),
        next_entry: 0,
        seats: Seats::new(),
        handle,
        options: json!({}),
        heard: Instant::now(),
        is_stalled: false,
        to_agent: VecDeque::new(),
        to_editor: VecDeque::new(),
        stalled_since: None,
        terminals: HashSet::new(),
        exit: None,
        closing: None,
        closed: false,
        ended: false,
    };
    let farewell = Farewell {
        is_said: false,
        session: session.open.id,
        router: session.router.clone(),
        over: session.handle.over.clone(),
        events: session.link.events.clone(),
    };
    let run = async move {
        let mut farewell = farewell;
        session.run(input, departures).await;
        farewell.is_said = true;
    };
    tasks.start("session", run.instrument(span));
    Some(lead)
}

impl Session {
    async fn run(mut self, mut input: queue::Receiver<Word>, mut departures: mpsc::Receiver<u32>) {
        self.note_opened();
        match self.open.asks_first.take() {
            Some((verdict, shown)) => self.ask_first(verdict, &shown),
            None => self.wake(),
        }
        self.serve(&mut input, &mut departures).await;
        if let Some(output) = self.output.take() {
            self.refuse_agent(output);
        }
        self.stop_host();
        self.answer_rest();
        self.commit(Input::Nothing);
        // What came too late is answered like what comes from now on.
        input.close();
        let mut late = std::mem::take(&mut self.seats.waiting);
        while let Some(word) = input.try_recv() {
            let (seat, frame) = match word {
                Word::Frame(seat, frame) => (seat, frame),
                // That somebody shares the session is true in any case.
                Word::Note(method, params) => {
                    self.recorder.note(method, &params);
                    continue;
                }
                // Who is left out here may open the session anew, but only then.
                word => {
                    late.push(word);
                    continue;
                }
            };
            // The connection has recorded those.
            if frame.peek().method == Method::CancelRequest {
                continue;
            }
            if frame.peek().kind == Kind::Request {
                self.answer(seat, Refusal::unknown_session(&frame).frame(frame.get(frame.peek().id)));
            }
            self.commit(Input::Frame(seat, &frame));
        }
        // First the agent: stopping must not wait for an editor that is slow, and
        // the place is free before the editor reads that the session is closed.
        self.leave();
        self.unbind();
        let closed = self.closing.take().map(|id| acp::result(&id, b"{}"));
        self.note_ended(closed.as_ref());
        // Only after the last word: whoever opens it next goes on numbering.
        let mut leaving = self.leaving.take();
        if self.is_open || !matches!(self.open.opening, Opening::New) {
            self.router.parked(self.open.id, Some(self.recorder.last_seq()), leaving.clone());
        }
        self.handle.over.cancel();
        drop(late);
        if let Some(closed) = closed {
            self.say_last(closed);
        }
        self.flush_editor().await;
        self.host.ended().await;
        if self.seats.is_led {
            self.link.events.send(SessionEvent::Ended(self.link.slot)).await.ok();
        }
        if let Some(leaving) = &mut leaving {
            leaving.wait().await;
            self.router.left(self.open.id);
        }
    }

    async fn serve(&mut self, input: &mut queue::Receiver<Word>, departures: &mut mpsc::Receiver<u32>) {
        let (close, ending) = (self.open.close.clone(), self.open.ending.clone());
        let SessionHandle { overrun, cancel, away, .. } = self.handle.clone();
        let (mut out, journal) = (self.link.out.clone(), self.journal.clone());
        let mut is_lead_gone = false;
        let mut presence = self.link.presence.clone();
        // One timer for the life of the session: setting one for every run would
        // cost more than the run.
        let is_watched = !self.open.stall_timeout.is_zero();
        let mut watch = Box::pin(sleep(self.open.stall_timeout));
        while !self.ended {
            if std::mem::take(&mut is_lead_gone) || self.seats.is_lead_leaving && self.to_editor.is_empty() {
                self.seats.is_lead_leaving = false;
                self.left(LEAD).await;
            }
            if self.seats.deserted.is_some() || self.seats.has_others() {
                out = self.link.out.clone();
            }
            if self.is_over() || self.ended {
                break;
            }
            let is_attended = self.seats.is_attended(*presence.borrow());
            self.unattended_since = match is_attended {
                true => None,
                false => self.unattended_since.or_else(|| Some(Instant::now())),
            };
            if let Some(settled) = self.settled.take() {
                self.settle(settled).await;
                continue;
            }
            self.feed_waiting();
            let process = self.binding.as_ref().map(|binding| binding.process().clone());
            if self.output.is_none() {
                // Nobody is there to read it, and it must not keep us from
                // hearing the editor.
                self.to_agent.clear();
            }
            let (editor_size, editor_ticket) = front(&self.to_editor);
            let (agent_size, agent_ticket) = front(&self.to_agent);
            let deadline = self.next_deadline();
            let park_at = self.park_at();
            let has_room = self.host.has_room();
            let has_outbox = self.to_editor.len() < MAX_OUTBOX && self.to_agent.len() < MAX_OUTBOX;
            // What stops something must not wait: not what the editor says…
            let hears_editor =
                has_outbox && self.recorder.can_hear_editor() && (agent_size == 0 || agent_ticket.is_some());
            // …nor the end of a turn that was cancelled, however full the disk is.
            let reads_on = self.recorder.has_room()
                && (!self.is_unwritten() || self.turn.as_ref().is_some_and(|turn| turn.cancelled.is_some()));
            let hears_agent = self.output.is_some() && editor_size == 0 && has_outbox && has_room && reads_on;
            let agent_gone = self.output.is_none() && process.is_some();
            tokio::select! {
                biased;
                permit = out.reserve(editor_size), if editor_size > 0 && editor_ticket.is_none() => {
                    match (permit, self.to_editor.pop_front()) {
                        (Ok(permit), Some(waiting)) => permit.send(waiting.packet),
                        _ => is_lead_gone = true,
                    }
                    self.stalled_since = (!self.to_editor.is_empty()).then(Instant::now);
                }
                permit = room_at(process.as_deref(), agent_size), if agent_size > 0 && agent_ticket.is_none() => {
                    if let (Ok(permit), Some(waiting)) = (permit, self.to_agent.pop_front()) {
                        permit.send(waiting.packet.frames);
                    } else {
                        self.to_agent.clear();
                    }
                }
                released = released(&journal, agent_ticket), if agent_ticket.is_some() => {
                    self.agent_released(released);
                }
                released = released(&journal, editor_ticket), if editor_ticket.is_some() => {
                    self.editor_released(released);
                }
                () = journal.accepting(), if self.recorder.has_pending() => self.write(),
                () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => {
                    self.deadline_passed().await;
                    self.commit(Input::Nothing);
                }
                // Before the agent's output: a flood must not hold up a cancel.
                Some(word) = input.recv(), if hears_editor => self.hear(word),
                Some(seat) = departures.recv() => self.left(seat).await,
                done = self.host.next(), if agent_size == 0 || agent_ticket.is_some() => {
                    self.host_answers(done);
                    self.heard = Instant::now();
                    self.commit(Input::Nothing);
                }
                run = heard(&mut self.output), if hears_agent => {
                    match run {
                        Some(run) => {
                            self.from_agent(&run);
                            self.commit(Input::Run(&run));
                            (self.heard, self.is_stalled) = (Instant::now(), false);
                            if self.turn.is_none() {
                                self.idle_since = self.heard;
                            }
                        }
                        None => self.output = None,
                    }
                }
                () = &mut watch, if is_watched => {
                    if self.stall_at().is_some_and(|due| due <= Instant::now()) {
                        self.turn_stalls();
                        self.commit(Input::Nothing);
                    }
                    watch.as_mut().reset(self.stall_at().unwrap_or_else(|| Instant::now() + self.open.stall_timeout));
                }
                Ok(()) = presence.changed() => {}
                () = close.cancelled() => {
                    self.closed = true;
                    self.ended = true;
                }
                () = ending.cancelled() => self.ended = true,
                // Always heard: kept for later, it would end a turn of an editor
                // that is back.
                () = away.notified() => if !self.seats.has_others() {
                    self.cancel_unasked();
                    self.commit(Input::Nothing);
                },
                () = cancel.notified() => {
                    self.cancel_unasked();
                    self.commit(Input::Nothing);
                }
                reached = reached(&mut self.reaching), if self.reaching.is_some() => self.reached(reached),
                () = overrun.cancelled(), if process.as_ref().is_some_and(|process| !process.is_ending()) => {
                    if let Some(process) = &process {
                        process.stop(Cause::Overrun);
                    }
                }
                exit = exited(process.as_deref()), if agent_gone => {
                    let tools = self.open_tools().await;
                    self.agent_ended(exit, &tools);
                    self.commit(Input::Nothing);
                }
                () = sleep_until(park_at.unwrap_or_else(Instant::now)), if park_at.is_some() => self.park(),
            }
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        let turn = self.turn.as_ref().and_then(|turn| turn.cancelled);
        let asks = self.asks.iter().filter_map(|ask| ask.withdrawn).min();
        // While something waits for the disk, the editor is not to blame.
        let stalled = self.stalled_since.filter(|_| front(&self.to_editor).1.is_none());
        let stall = stalled.map(|since| since + self.open.editor_timeout);
        let deserted = self.seats.deserted.map(|since| since + self.open.detached_ttl);
        [turn, asks, stall, deserted, self.way_due(), self.unattended_due()].into_iter().flatten().min()
    }

    async fn deadline_passed(&mut self) {
        let now = Instant::now();
        if self.stalled_since.is_some_and(|since| since + self.open.editor_timeout <= now) {
            debug!("the editor does not take its frames; it is dropped");
            self.link.events.send(SessionEvent::Stalled).await.ok();
            self.left(LEAD).await;
        }
        if self.way_due().is_some_and(|due| due <= now) {
            self.way_overdue();
        }
        self.answer_asks(|ask| ask.withdrawn.is_some_and(|due| due <= now));
        if self.unattended_due().is_some_and(|due| due <= now) {
            self.deny_unattended();
        }
        if self.turn.as_ref().and_then(|turn| turn.cancelled).is_some_and(|due| due <= now) {
            // The agent had its chance; the editor gets its one answer now.
            let grace = self.open.cancel_grace;
            if let Some(binding) = &self.binding {
                binding.process().stop(Cause::CancelIgnored(grace));
            }
            self.end_turn_cancelled();
        }
    }

    /// The id of a request of ours towards the editor.
    fn editor_id(&self, number: u32) -> u64 {
        WireId { slot: self.link.slot, number }.value()
    }

    /// Notes a request to the agent and gives its id on the wire.
    fn number(&mut self, request: Request) -> WireId {
        let number = self.requests.register(request);
        let slot = self.binding.as_ref().map_or(0, |binding| binding.slot);
        WireId { slot, number }
    }

    fn tell_agent(&mut self, method: &str) {
        let Some(binding) = &self.binding else { return };
        let id: String = serde_json::from_slice(&binding.name).unwrap_or_default();
        self.say_agent(acp::call(None, method, &json!({ "sessionId": id })), Class::Stop);
    }

    fn refuse(&mut self, seat: u32, frame: &Frame, code: i64, message: impl Into<String>) {
        let peek = frame.peek();
        if peek.kind == Kind::Request {
            self.answer(seat, Refusal::new(code, message).frame(frame.get(peek.id)));
        }
    }
}

/// Size and ticket of what stands first in a queue.
fn front(queue: &VecDeque<Waiting>) -> (usize, Option<Ticket>) {
    queue.front().map_or((0, None), |waiting| (waiting.packet.frames.len(), waiting.after))
}

/// A place in the queue of a process.
async fn room_at(process: Option<&Process>, size: usize) -> Result<queue::Permit<'_, Bytes>, queue::Closed> {
    match process {
        Some(process) => process.input().reserve(size).await,
        None => Err(queue::Closed),
    }
}

async fn exited(process: Option<&Process>) -> Arc<Exit> {
    match process {
        Some(process) => process.exited().await,
        None => std::future::pending().await,
    }
}

async fn heard(output: &mut Option<queue::Receiver<Run>>) -> Option<Run> {
    match output {
        Some(output) => output.recv().await,
        None => std::future::pending().await,
    }
}

async fn reached(reaching: &mut Option<Reaching>) -> Result<Reached, Refusal> {
    match reaching {
        Some(reaching) => reaching.await,
        None => std::future::pending().await,
    }
}

/// Waits until an effect may go, or must not.
async fn released(journal: &Journal, ticket: Option<Ticket>) -> Result<(), Arc<str>> {
    match ticket {
        Some(ticket) => journal.released(ticket).await.map_err(|refused| refused.why),
        None => std::future::pending().await,
    }
}
