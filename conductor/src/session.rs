//! A session: the one place where both directions meet.
//!
//! One task per session owns its state alone. It takes frames from the editor
//! and runs from the agent, and it never waits for room on one side while the
//! other has something to say: what cannot go out is held in an outbox, and
//! the side that fills that outbox is not read until it is empty. (An agent
//! that floods its stdout before it reads its stdin would otherwise lock both
//! up for ever.)

mod adapt;
mod approving;
mod arrival;
mod asking;
pub mod berth;
mod binding;
mod calls;
mod choice;
mod counting;
mod deadlines;
mod denials;
mod ending;
mod excuses;
mod farewell;
mod flight;
mod follower;
mod from_agent;
mod from_editor;
mod granting;
mod handle;
mod handover;
mod host;
mod judging;
mod members;
mod modes;
mod narrowing;
mod opening;
mod outbox;
mod past;
mod patience;
mod picker;
mod picking;
mod place;
mod prefix;
mod resting;
mod routing;
mod seats;
mod settling;
mod stall;
mod surveying;
mod terms;
mod traced;
mod usage;
mod waits;
mod watching;

use std::{
    collections::{HashMap, HashSet, VecDeque},
    pin::pin,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep, sleep_until},
};
use tracing::info_span;

pub use self::{
    approving::Decided,
    berth::Berth,
    choice::Choice,
    follower::{Follower, follow},
    handle::{Answered, Guest, QueuedPrompt, Seat, SeatRole, Seated, SessionHandle, Told},
    host::Hosting,
    judging::denied,
    modes::meta_actions,
    terms::{EditorLink, Open, Opening, Packet, Rules, SessionEvent, Wish},
};
use self::{
    binding::{Settled, Way},
    counting::Levels,
    farewell::Farewell,
    flight::{Ask, Binding, Purpose, Request, Turn},
    handle::{LEAD, Word},
    host::Host,
    judging::Judge,
    outbox::{Entry as Recorded, InHand, Input, Outgoing, Waiting},
    picker::{Picker, Shown},
    place::Reaching,
    resting::{Resting, late_word},
    routing::{Onward, Routing},
    seats::{Asked, Seats},
    surveying::Surveying,
    traced::Traced,
    waits::{exited, front, heard, news, released, room_at},
    watching::Watched,
};
use crate::{
    acp::{self, Refusal},
    agent::{Cause, Ended, Exit},
    frame::{Kind, Method, Run},
    journal::Journal,
    ledger::history::History,
    pending::Pending,
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
    /// What it has cost, as far as the limits were told.
    cost: usage::Cost,
    /// The agent's own id of the session, with quotes, that is worth going back
    /// to; empty if there is none.
    agent_session: Bytes,
    /// Requests that wait for the agent.
    waiting: VecDeque<Asked>,
    /// What the agent has to be told of the past with the next prompt.
    handover: Option<String>,
    /// The process that is ending.
    leaving: Option<Ended>,
    /// Those of agents that it has left, by the agent.
    ending: HashMap<String, Ended>,
    /// Agents that it has left and keeps for a while.
    resting: Vec<Resting>,
    /// Where it goes, and why.
    routing: Routing,
    /// It is about to go to another agent.
    onward: Option<Onward>,
    /// What there is to pick from, if that is more than the agent offers.
    picker: Option<Picker>,
    /// What the agent has told of its options, as it stands in its frames.
    told: picker::Told,
    /// What everyone has been shown of them.
    announced: Option<Shown>,
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
    /// It has not, or with an error, but the agent has the session.
    exists_at_agent: bool,
    requests: Pending<Request>,
    asks: Pending<Ask>,
    host: Host,
    judge: Judge,
    watched: Watched,
    survey: Surveying,
    /// Since when nobody is there who could answer a question.
    unattended_since: Option<Instant>,
    turn: Option<Turn>,
    queued: VecDeque<Asked>,
    /// The name of the last request that had to wait.
    next_entry: u64,
    seats: Seats,
    handle: SessionHandle,
    levels: Levels,
    traced: Traced,
    /// `configOptions` and `modes`, as the agent has told of them last.
    options: Value,
    /// When the agent has last shown that it is at work.
    heard: Instant,
    /// The running turn was reported as stalled.
    is_stalled: bool,
    journal: Journal,
    recorder: Recorder,
    /// What is being handled, and what follows from it.
    hand: InHand,
    /// What the agents have announced besides options: commands, by the number of
    /// the agent's session, and the plan.
    commands: Vec<(u32, Value)>,
    plan: Option<Value>,
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
) -> Seat {
    let (words, input) = queue::queue(INPUT_FRAMES, INPUT_BYTES);
    let (handle, lead, departures) = SessionHandle::new(words, open.close.clone());
    if !matches!(open.opening, Opening::New) {
        router.started(open.id, handle.clone());
    }
    let span =
        info_span!("session", session.id = %open.id, agent = %open.berth.key.agent, user = %open.caller.user);
    let mut recorder =
        Recorder::new(Some(journal.clone()), Stream { id: open.id, kind: StreamKind::Session });
    // Before anything is said of them: what the editor hands over, and what every session gets.
    recorder.know_handed_over(open.request.bytes());
    recorder.know_handed_over(json!({ "mcpServers": open.injected }).to_string().as_bytes());
    let agent_session = match &open.opening {
        Opening::New => Bytes::new(),
        Opening::Load(name) | Opening::Resume(name) => name.clone(),
    };
    let (levels, seats) = (Levels::new(&open.metrics), Seats::new(open.metrics.clone()));
    let (choice, decision, bound) =
        (std::mem::take(&mut open.choice), open.decision.take(), std::mem::take(&mut open.bound));
    let session = Box::new(Session {
        pool,
        history,
        output: None,
        reaching: None,
        ways: VecDeque::new(),
        way: None,
        settled: None,
        early: Vec::new(),
        is_replaying: false,
        cost: None,
        routing: Routing::new(choice, decision, bound, &agent_session),
        onward: None,
        picker: None,
        told: picker::Told::default(),
        announced: None,
        ending: HashMap::new(),
        resting: Vec::new(),
        agent_session,
        waiting: VecDeque::new(),
        handover: None,
        leaving: open.leaving.take(),
        is_parked: false,
        idle_since: Instant::now(),
        first_seq: recorder.last_seq() + 1,
        is_asked: false,
        is_refused: false,
        host: Host::new(open.berth.hosting.as_ref(), link.capabilities),
        judge: Judge::default(),
        watched: Watched::default(),
        survey: Surveying::default(),
        unattended_since: None,
        name: format!("\"{}\"", open.id).into(),
        recorder,
        journal,
        hand: InHand::default(),
        commands: Vec::new(),
        plan: None,
        held: Vec::new(),
        open,
        link,
        router,
        binding: None,
        is_open: false,
        exists_at_agent: false,
        requests: Pending::new(),
        asks: Pending::new(),
        turn: None,
        queued: VecDeque::new(),
        next_entry: 0,
        seats,
        levels,
        traced: Traced::default(),
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
    });
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
    tasks.start_in(span, "session", run);
    lead
}

impl Session {
    async fn run(mut self: Box<Self>, mut input: queue::Receiver<Word>, mut departures: mpsc::Receiver<u32>) {
        self.note_opened();
        self.trace(LEAD, &self.open.request.clone());
        match self.open.asks_first.take() {
            Some((verdict, shown)) => self.ask_first(verdict, &shown),
            None => self.wake(),
        }
        self.serve(&mut input, &mut departures).await;
        let late = self.survey_last().await;
        self.refuse_agent(late);
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
        self.release_resting(true);
        let closed = self.closing.take().map(|id| acp::result(&id, b"{}"));
        self.note_ended(closed.as_ref());
        if self.closed || (!self.is_open && matches!(self.open.opening, Opening::New)) {
            self.open.kept.forget(self.open.id);
        }
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
        let SessionHandle { overrun, away, .. } = self.handle.clone();
        let (mut out, journal) = (self.link.out.clone(), self.journal.clone());
        let mut is_lead_gone = false;
        let mut presence = self.link.presence.clone();
        // One timer for the life of the session: setting one for every run would
        // cost more than the run.
        let mut watch = Box::pin(sleep(self.open.berth.stall_timeout));
        let mut offers = self.open.catalogue.changes();
        let mut configured = self.open.config.clone();
        // Waited for all the time, and asked for once: to be put on a list and taken off it again
        // for every run costs more than to be woken.
        let mut close_asked = pin!(close.cancelled());
        let mut end_asked = pin!(ending.cancelled());
        let mut is_overrun = pin!(overrun.notified());
        let mut is_away = pin!(away.notified());
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
            if is_attended {
                self.unattended_since = None;
            } else if self.unattended_since.is_none() {
                self.unattended_since = Some(Instant::now());
                self.tell_approvers();
            }
            if let Some(onward) = self.onward.take() {
                self.go_onward(onward);
                continue;
            }
            if let Some(settled) = self.settled.take() {
                self.settle(settled).await;
                continue;
            }
            self.feed_waiting();
            if self.onward.is_some() {
                // What waited goes to another agent, and nothing else may come to wake us.
                continue;
            }
            self.show_levels();
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
            let rest_due = self.rest_due();
            let is_watched = !self.open.berth.stall_timeout.is_zero();
            let has_outbox = self.to_editor.len() < MAX_OUTBOX && self.to_agent.len() < MAX_OUTBOX;
            // What stops something must not wait: not what the editor says…
            let hears_editor =
                has_outbox && self.recorder.can_hear_editor() && (agent_size == 0 || agent_ticket.is_some());
            // …nor the end of a turn that was cancelled, however full the disk is.
            let reads_on = self.recorder.has_room()
                && (!self.is_unwritten() || self.turn.as_ref().is_some_and(|turn| turn.cancelled.is_some()));
            let (is_first_look, is_second_look) = (self.survey.holds_prompt(), self.survey.holds_answer());
            let hears_agent = self.output.is_some() && editor_size == 0 && has_outbox && has_room && reads_on;
            let agent_gone = self.output.is_none() && process.is_some() && !is_second_look;
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
                released = released(&journal, agent_ticket), if agent_ticket.is_some() && !is_first_look => {
                    self.agent_released(released);
                }
                released = released(&journal, editor_ticket), if editor_ticket.is_some() => {
                    self.editor_released(released);
                }
                survey = self.survey.seen(), if is_first_look || is_second_look => self.surveyed(survey),
                () = journal.accepting(), if self.recorder.has_pending() => self.write(),
                () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => {
                    self.deadline_passed().await;
                    self.commit(Input::Nothing);
                }
                // Before the agent's output: a flood must not hold up what stops something.
                Some(word) = input.recv(), if hears_editor => self.hear(word),
                Some(seat) = departures.recv() => self.left(seat).await,
                () = &mut close_asked => {
                    self.closed = true;
                    self.ended = true;
                }
                () = &mut end_asked => self.ended = true,
                // Always heard, as is the next: kept for later, it would end a turn of an
                // editor that is back, or a process that has lost nothing.
                () = &mut is_away => {
                    is_away.set(away.notified());
                    if !self.seats.has_others() {
                        self.cancel_unasked();
                        self.commit(Input::Nothing);
                    }
                }
                () = &mut is_overrun => {
                    is_overrun.set(overrun.notified());
                    if let Some(process) = process.as_ref().filter(|process| !process.is_ending()) {
                        process.stop(Cause::Overrun);
                    }
                }
                done = self.host.next(), if agent_size == 0 || agent_ticket.is_some() => {
                    self.host_answers(done);
                    self.heard = Instant::now();
                    self.commit(Input::Nothing);
                }
                run = heard(&mut self.output), if hears_agent && !is_second_look => self.hear_agent(run),
                () = &mut watch, if is_watched => {
                    if self.stall_at().is_some_and(|due| due <= Instant::now()) {
                        self.turn_stalls();
                        self.commit(Input::Nothing);
                    }
                    watch.as_mut().reset(self.stall_at().unwrap_or_else(|| Instant::now() + self.open.berth.stall_timeout));
                }
                Ok(()) = presence.changed() => {}
                news = news(&mut self.reaching), if self.reaching.is_some() => self.hear_of_way(news),
                exit = exited(process.as_deref()), if agent_gone => self.agent_gone(exit).await,
                () = sleep_until(park_at.unwrap_or_else(Instant::now)), if park_at.is_some() => self.park(),
                (at, run) = late_word(&mut self.resting), if !self.resting.is_empty() => self.heard_late(at, run),
                () = sleep_until(rest_due.unwrap_or_else(Instant::now)), if rest_due.is_some() => {
                    self.release_resting(false);
                }
                // Other agents may have more to offer, or fewer be left.
                Ok(()) = offers.changed() => self.offers_changed(),
                Ok(()) = configured.changed() => self.offers_changed(),
            }
        }
    }
}
