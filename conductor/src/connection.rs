//! One editor's connection: its handshake, its session table, its ids.
//!
//! The connection knows nothing of gRPC: it is handed a stream of blocks of
//! lines and a queue for what goes back. Frames of a session go to that
//! session's task and never wait here for it, so one stuck session does not
//! hold up its siblings.

mod absence;
mod end;
mod hello;
mod listing;
mod open;
mod sideways;
mod terms;

use std::{
    collections::{HashMap, VecDeque},
    panic::AssertUnwindSafe,
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use futures_util::{FutureExt as _, Stream, StreamExt as _};
use serde_json::json;
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
    time::timeout,
};
use tokio_util::sync::{CancellationToken, DropGuard};
use tracing::{debug, error};
use uuid::Uuid;

pub use self::end::End;
pub use self::terms::{guest, may_use, rules_in};
use crate::{
    acp::{self, EditorCapabilities, Refusal, code},
    approvals::Approvals,
    catalogue::Catalogue,
    config::Config,
    cwd_map::CwdMap,
    frame::{Fault, Frame, Kind, Method, Run},
    grants::Book,
    identity::Caller,
    journal::{Class, Journal},
    ledger::{Ledger, history::History},
    metrics::Metrics,
    pending::WireId,
    policy::Live,
    pool::Pool,
    queue::{self, NotSent},
    record::{Destination, Origin, Stream as Recorded, StreamKind, note},
    recorder::Recorder,
    router::Router,
    session::{self, Packet, SessionEvent, Wish},
    state::kept::Kept,
    tasks::Tasks,
    telemetry::trace::Parent,
};

/// Answers of ours that may wait for the editor; above that nothing more is
/// read from it.
const MAX_OUTBOX: usize = 64;

/// Events of sessions that may wait; a connection takes them first.
const EVENTS: usize = 256;

/// After the editor's last word, how long answers of ours may take.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// Answers that may be in the making; one more request of that sort is refused.
const MAX_ANSWERS: usize = 8;

/// What an editor hears that watches a session and wants more.
const WATCHING: &str =
    "you may watch this session, but not drive it; its owner can share it with you as a driver";

/// Why a session cannot be had.
const ONLY_WATCHED: &str = "this session is shared with you to be watched, and nobody has it open; \
    `conductor sessions show` tells what it did, and its owner can share it with you as a driver";

/// What every connection works with.
#[derive(Debug, Clone)]
pub struct Hub {
    /// The processes.
    pub pool: Pool,
    /// The sessions.
    pub router: Router,
    /// Where everything is written down.
    pub journal: Journal,
    /// What sessions were given that the record does not hold.
    pub kept: Kept,
    /// Where it goes from there.
    pub ledger: Ledger,
    /// What sessions did.
    pub history: History,
    /// Where tasks run.
    pub tasks: Tasks,
    /// The configuration as it is now.
    pub config: watch::Receiver<Arc<Config>>,
    /// What agents may do, as of now.
    pub policy: Live,
    /// Which answers of people are remembered.
    pub grants: Book,
    /// What the agents offer.
    pub catalogue: Catalogue,
    /// What waits for people.
    pub approvals: Approvals,
    /// What is counted.
    pub metrics: Metrics,
    /// No new sessions any more.
    pub draining: CancellationToken,
    /// Connections end.
    pub closing: CancellationToken,
}

/// What the editor's side said when it connected.
#[derive(Debug, Clone, Default)]
pub struct Greeting {
    /// What the editor's side calls itself.
    pub client: String,
    /// The agent new sessions use; the default one if empty.
    pub agent: String,
    /// The model and mode they start with.
    pub wish: Wish,
    /// Where a session is likely.
    pub cwd: Option<PathBuf>,
    /// It had another connection before, which is lost.
    pub again: bool,
    /// It may come back, so that turns go on without it.
    pub outlived: bool,
    /// Its sessions go on without it, even without a turn.
    pub lingers: bool,
    /// It is on another machine.
    pub is_remote: bool,
    /// The trace that its stream was opened in.
    pub traceparent: Option<Parent>,
}

/// What a connection is told.
#[derive(Debug)]
pub enum Input {
    /// Complete lines of the editor.
    Block(Bytes),
    /// The editor has been away for a while.
    Away,
    /// It is back.
    Resumed,
}

struct Connection {
    id: Uuid,
    /// What concerns no session is recorded here.
    recorder: Recorder,
    hub: Hub,
    caller: Caller,
    greeting: Greeting,
    out: queue::Sender<Packet>,
    outbox: VecDeque<Packet>,
    initialized: Option<EditorCapabilities>,
    /// Where this editor has other paths than this host.
    cwd_map: Option<Arc<CwdMap>>,
    seats: HashMap<u32, Seat>,
    /// Our session ids with quotes, as editors send them.
    names: HashMap<Bytes, u32>,
    next_slot: u32,
    events: mpsc::Sender<SessionEvent>,
    /// Answers that take a while to make.
    answers: JoinSet<Bytes>,
    /// Sessions of ours that are to be opened again once they have ended.
    reopening: HashMap<u32, Frame>,
    /// Loads that a seat at somebody else's session answers. Should that end before it has
    /// heard them, it is opened in the usual way.
    sitting: HashMap<u32, Frame>,
    /// Whether the editor is there, for its sessions to know.
    presence: watch::Sender<bool>,
}

/// A session of this connection.
struct Seat {
    id: Uuid,
    /// The place at the session.
    at: session::Seat,
    /// This editor has opened it, and others may have joined.
    leads: bool,
    /// The editor may only watch.
    watches: bool,
    /// The id of the request that opens it, until that is answered.
    opening: Option<Bytes>,
    /// Its turns are cancelled when the editor goes away.
    cancels: bool,
    /// Who is fed from the record gets nothing more once this is dropped but
    /// answers, and nobody looks any more whether they may.
    _here: DropGuard,
}

/// Serves one editor until it goes.
pub async fn serve(
    id: Uuid,
    hub: Hub,
    caller: Caller,
    greeting: Greeting,
    inbound: impl Stream<Item = Result<Input, End>> + Unpin,
    out: queue::Sender<Packet>,
) -> End {
    let stream = Recorded { id, kind: StreamKind::Connection };
    let mut recorder = Recorder::new(Some(hub.journal.clone()), stream);
    let said = json!({ "user": caller.user, "teams": caller.teams, "client": greeting.client });
    recorder.note(note::CONNECTED, &said);
    let _counted = hub.metrics.part(|counts| &counts.connections).held();
    let (events, happened) = mpsc::channel(EVENTS);
    let cwd_map = CwdMap::new(&hub.config.borrow().service.cwd_map).map(Arc::new);
    // An editor may still answer what the lost connection asked it. Ids begin
    // elsewhere, so that this answers nothing here.
    let next_slot = if greeting.again { id.as_u128() as u32 & (WireId::MAX_SLOT >> 1) } else { 0 };
    let mut connection = Connection {
        id,
        recorder,
        cwd_map,
        hub,
        caller,
        greeting,
        out,
        outbox: VecDeque::new(),
        initialized: None,
        seats: HashMap::new(),
        names: HashMap::new(),
        next_slot,
        events,
        answers: JoinSet::new(),
        reopening: HashMap::new(),
        sitting: HashMap::new(),
        presence: watch::Sender::new(true),
    };
    let end = converse(&mut connection, happened, inbound).await;
    let mut recorder = connection.recorder;
    recorder.note(note::DISCONNECTED, &json!({ "reason": end.to_string() }));
    recorder.commit(Class::Stop).ok();
    end
}

async fn converse(
    connection: &mut Connection,
    mut happened: mpsc::Receiver<SessionEvent>,
    mut inbound: impl Stream<Item = Result<Input, End>> + Unpin,
) -> End {
    let (closing, journal) = (connection.hub.closing.clone(), connection.hub.journal.clone());
    let to_editor = connection.out.clone();
    loop {
        let size = connection.outbox.front().map_or(0, |packet| packet.frames.len());
        tokio::select! {
            biased;
            () = closing.cancelled() => return End::Draining,
            Some(event) = happened.recv() => {
                match event {
                    SessionEvent::Stalled => return End::Stalled,
                    SessionEvent::Broken => return End::Broken,
                    _ => {}
                }
                connection.session_event(event);
            }
            permit = to_editor.reserve(size), if size > 0 => {
                match (permit, connection.outbox.pop_front()) {
                    (Ok(permit), Some(packet)) => permit.send(packet),
                    _ => return End::EditorGone,
                }
            }
            Some(answer) = connection.answers.join_next(), if !connection.answers.is_empty() => {
                if let Ok(line) = answer {
                    connection.send(line);
                }
            }
            () = journal.accepting(), if connection.recorder.has_pending() => connection.write(),
            block = inbound.next(), if connection.has_room() => match block {
                Some(Ok(input)) => {
                    match input {
                        Input::Block(block) => connection.block(block),
                        Input::Away => connection.away(),
                        Input::Resumed => connection.resumed(),
                    }
                    connection.write();
                }
                Some(Err(end)) => return end,
                None => {
                    timeout(LAST_WORDS, connection.finish()).await.ok();
                    return End::EditorGone;
                }
            },
        }
    }
}

impl Connection {
    /// The editor has said all it had to say, and may still listen.
    async fn finish(&mut self) {
        while let Some(answer) = self.answers.join_next().await {
            if let Ok(line) = answer {
                self.send(line);
            }
        }
        while let Some(packet) = self.outbox.pop_front() {
            match self.out.reserve(packet.frames.len()).await {
                Ok(permit) => permit.send(packet),
                Err(queue::Closed) => return,
            }
        }
    }

    /// Has an answer made that takes a while. Should that panic, who asked is told.
    fn answer_later(&mut self, id: Bytes, answer: impl Future<Output = Bytes> + Send + 'static) {
        let metrics = self.hub.metrics.clone();
        self.answers.spawn(AssertUnwindSafe(answer).catch_unwind().map(move |made| {
            made.unwrap_or_else(|_| {
                metrics.panics.one();
                error!("the making of an answer panicked");
                Refusal::new(code::INTERNAL, "the service made a mistake; its log says more").frame(&id)
            })
        }));
    }

    fn has_room(&self) -> bool {
        self.outbox.len() < MAX_OUTBOX && self.answers.len() < MAX_OUTBOX && self.recorder.has_room()
    }

    /// Writes down what concerns no session. Nothing here has an effect, so
    /// nothing waits for it.
    fn write(&mut self) {
        self.recorder.commit(Class::Stop).ok();
    }

    fn record(&mut self, frame: &Frame) {
        self.recorder.know_handed_over(frame.bytes());
        self.recorder.frame(Origin::Editor, Destination::Agent, None, frame.bytes());
    }

    fn block(&mut self, block: Bytes) {
        let mut faults = Vec::new();
        let lines = block.clone();
        let run = Run::parse(block, |line, fault| faults.push((lines.slice_ref(line), fault)));
        for (line, fault) in faults {
            self.recorder.frame(Origin::Editor, Destination::Agent, None, &line);
            let code = if matches!(fault, Fault::NotJson(_) | Fault::NotUtf8) {
                code::PARSE
            } else {
                code::INVALID_REQUEST
            };
            self.send(Refusal::new(code, format!("the line is {fault}")).frame(b"null"));
        }
        for index in 0..run.len() {
            let frame = run.frame(index);
            let frame = match &self.cwd_map {
                Some(map) => map.from_editor(frame),
                None => frame,
            };
            // It may wait in a queue that counts its own bytes only.
            let small = frame.bytes().len() < run.size() / 2;
            self.frame(if small { frame.detached() } else { frame });
        }
    }

    fn frame(&mut self, frame: Frame) {
        let peek = frame.peek();
        match peek.kind {
            Kind::Result | Kind::Error => {
                // Answers to nothing are the editor's own affair.
                let seat = WireId::parse(frame.get(peek.id)).and_then(|id| self.seats.get(&id.slot));
                match seat.filter(|seat| !seat.watches) {
                    Some(seat) => seat.at.tell(frame),
                    None => self.record(&frame),
                }
            }
            Kind::Request
                if self.answers.len() >= MAX_ANSWERS
                    && matches!(peek.method, Method::Initialize | Method::Authenticate | Method::Logout) =>
            {
                let text = format!("{MAX_ANSWERS} such requests are in flight already");
                self.refuse(&frame, Refusal::new(code::LIMIT, text));
            }
            Kind::Request if peek.method == Method::Initialize => self.initialize(&frame),
            Kind::Request if self.initialized.is_none() => {
                self.refuse(&frame, Refusal::new(code::INVALID_REQUEST, "send initialize first"));
            }
            Kind::Request => self.request(frame),
            Kind::Notification if self.initialized.is_none() => self.record(&frame),
            Kind::Notification if peek.method == Method::CancelRequest => {
                self.record(&frame);
                // The session that has it in flight will know its id. One that has no room for
                // it need not be that one, so its agent is not ended for it.
                for seat in self.seats.values().filter(|seat| !seat.watches) {
                    seat.at.ask(frame.clone()).ok();
                }
            }
            Kind::Notification => match self.seat(&frame).filter(|seat| !seat.watches) {
                Some(seat) => seat.at.tell(frame),
                None => self.record(&frame),
            },
            Kind::Opaque => {
                let text = "neither a request, a notification nor an answer";
                self.refuse(&frame, Refusal::new(code::INVALID_REQUEST, text));
            }
        }
    }

    fn request(&mut self, frame: Frame) {
        match frame.peek().method {
            Method::SessionNew => self.open_new(&frame),
            Method::SessionLoad | Method::SessionResume => self.reopen(&frame),
            Method::SessionList => self.list(&frame),
            Method::SessionDelete => self.delete(&frame),
            Method::Authenticate | Method::Logout => self.sideways(frame),
            Method::Proxy => {
                let text = "proxy methods do not cross a conductor";
                self.refuse(&frame, Refusal::new(code::INVALID_REQUEST, text));
            }
            // Extensions begin with an underscore; any other name that we do
            // not know was not advertised.
            Method::Other if !frame.get(frame.peek().name).starts_with(b"\"_") => {
                let text = format!("{} is not offered here", frame.method_name());
                self.refuse(&frame, Refusal::new(code::METHOD_NOT_FOUND, text));
            }
            method => {
                let Some(seat) = self.seat(&frame) else {
                    let refusal = self.unroutable(&frame, method);
                    return self.refuse(&frame, refusal);
                };
                if seat.watches {
                    return self.watcher_asks(&frame, method);
                }
                match seat.at.ask(frame) {
                    Ok(()) => {}
                    Err(NotSent::Full(frame)) => {
                        let text = "the agent of this session does not take its input; try again later";
                        self.refuse(&frame, Refusal::new(code::LIMIT, text));
                    }
                    Err(NotSent::Closed(frame)) => {
                        let refusal = Refusal::unknown_session(&frame);
                        self.refuse(&frame, refusal);
                    }
                }
            }
        }
    }

    /// Who only watches a session may leave it, and nothing else.
    fn watcher_asks(&mut self, frame: &Frame, method: Method) {
        if method != Method::SessionClose {
            return self.refuse(frame, Refusal::new(code::INVALID_PARAMS, WATCHING));
        }
        let slot = self.names.get(frame.get(frame.peek().session)).copied();
        if let Some(slot) = slot {
            // The load that it does not wait for must not bring it back.
            if let Some(load) = self.sitting.remove(&slot) {
                self.refuse(
                    &load,
                    Refusal::new(code::CANCELLED, "the session was closed before it was open"),
                );
            }
            self.dismiss(slot);
        }
        self.record(frame);
        self.send(acp::result(frame.get(frame.peek().id), b"{}"));
    }

    /// The session a frame belongs to: by its id, else the only one.
    fn seat(&self, frame: &Frame) -> Option<&Seat> {
        let name = frame.peek().session;
        if name.is_some() {
            return self.names.get(frame.get(name)).and_then(|slot| self.seats.get(slot));
        }
        // Only an extension may do without.
        if frame.peek().method != Method::Other {
            return None;
        }
        let mut seats = self.seats.values();
        match (seats.next(), seats.next()) {
            (Some(only), None) => Some(only),
            _ => None,
        }
    }

    fn unroutable(&self, frame: &Frame, method: Method) -> Refusal {
        if frame.peek().session.is_some() {
            return Refusal::unknown_session(frame);
        }
        let name = frame.method_name();
        if method == Method::Other {
            let text = format!("{name} names no session, and this connection has {}", self.seats.len());
            return Refusal::new(code::METHOD_NOT_FOUND, text);
        }
        Refusal::new(code::INVALID_PARAMS, format!("{name} needs a sessionId"))
    }

    /// Lets a session go; it ends if nobody else has it open.
    fn dismiss(&mut self, slot: u32) {
        self.seats.remove(&slot);
        self.names.retain(|_, named| *named != slot);
    }

    fn session_event(&mut self, event: SessionEvent) {
        match event {
            SessionEvent::Opened(slot) => {
                // A load that came since waits for the end.
                self.sitting.remove(&slot);
                if let Some(seat) = self.seats.get_mut(&slot) {
                    seat.opening = None;
                }
            }
            SessionEvent::Ended(slot) => {
                if let Some(seat) = self.seats.remove(&slot) {
                    self.names.retain(|_, named| *named != slot);
                    debug!(session.id = %seat.id, "session has ended");
                    // Others may have ended it, and nothing else would tell.
                    if !seat.leads
                        && seat.opening.is_none()
                        && self.initialized.is_some_and(|able| able.notices)
                    {
                        self.send(acp::ended(&seat.id.to_string()));
                    }
                }
                let (sitting, reopening) = (self.sitting.remove(&slot), self.reopening.remove(&slot));
                if let (Some(older), Some(_)) = (&sitting, &reopening) {
                    let text = "the session was opened once more before it was open";
                    self.refuse(older, Refusal::new(code::CANCELLED, text));
                }
                if let Some(frame) = reopening.or(sitting) {
                    self.reopen(&frame);
                }
            }
            SessionEvent::Revoked(slot) => {
                let loads = [self.sitting.remove(&slot), self.reopening.remove(&slot)];
                for frame in loads.into_iter().flatten() {
                    self.refuse(&frame, Refusal::unknown_session(&frame));
                }
                if let Some(seat) = self.seats.get(&slot).map(|seat| seat.id.to_string()) {
                    debug!(session.id = %seat, "the session is not shared any more");
                    self.dismiss(slot);
                    if self.initialized.is_some_and(|able| able.notices) {
                        self.send(acp::ended(&seat));
                    }
                }
            }
            SessionEvent::Stalled | SessionEvent::Broken => {}
        }
    }

    fn refuse(&mut self, frame: &Frame, refusal: impl std::borrow::Borrow<Refusal>) {
        self.record(frame);
        let line = refusal.borrow().frame(frame.get(frame.peek().id));
        self.send(line);
    }

    fn send(&mut self, line: Bytes) {
        self.recorder.frame(Origin::Conductor, Destination::Editor, None, &line);
        self.write();
        let packet = Packet { frames: line, count: 1 };
        if self.outbox.is_empty() {
            match self.out.try_send(packet.frames.len(), packet) {
                Ok(()) | Err(NotSent::Closed(_)) => {}
                Err(NotSent::Full(packet)) => self.outbox.push_back(packet),
            }
        } else {
            self.outbox.push_back(packet);
        }
    }
}
