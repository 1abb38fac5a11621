//! A session: the one place where both directions meet.
//!
//! One task per session owns its state alone. It takes frames from the editor
//! and runs from the agent, and it never waits for room on one side while the
//! other has something to say: what cannot go out is held in an outbox, and
//! the side that fills that outbox is not read until it is empty. (An agent
//! that floods its stdout before it reads its stdin would otherwise lock both
//! up for ever.)

mod adapt;
mod ending;
mod from_agent;
mod from_editor;
mod host;

use std::{
    collections::{HashSet, VecDeque},
    path::PathBuf,
    pin::pin,
    sync::Arc,
    time::Duration,
    time::SystemTime,
};

use bytes::{Bytes, BytesMut};
use serde_json::json;
use tokio::{
    sync::mpsc,
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, debug, info_span};
use uuid::Uuid;

use self::host::Host;
pub use self::host::Hosting;
use crate::{
    acp::{self, AgentHello, EditorCapabilities, Refusal, code},
    agent::{Cause, Exit, Process},
    cwd_map::CwdMap,
    frame::{Frame, Kind, Method, Run, splice},
    identity::Caller,
    pending::{Pending, WireId},
    pool::{Key, Lease, Pool},
    queue,
    router::{Entry, Router},
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

/// How long an editor may take to answer a request that the agent has
/// withdrawn; then the answer is ours.
const WITHDRAW_GRACE: Duration = Duration::from_secs(5);

/// Frames on their way to an editor: complete lines.
#[derive(Debug, Clone)]
pub struct Packet {
    /// The lines.
    pub frames: Bytes,
    /// How many.
    pub count: u32,
}

/// A session's way to its editor.
#[derive(Debug)]
pub struct EditorLink {
    /// Which session of the connection; part of every request id.
    pub slot: u32,
    /// Where frames for the editor go.
    pub out: queue::Sender<Packet>,
    /// What the editor can do.
    pub capabilities: EditorCapabilities,
    /// Where the connection learns of this session's fate.
    pub events: mpsc::Sender<SessionEvent>,
}

/// What a connection must know of its sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionEvent {
    /// The opening request was answered with a result.
    Opened(u32),
    /// The session is no more.
    Ended(u32),
    /// The editor has not taken its frames for too long.
    Stalled,
}

/// How a session comes to be.
#[derive(Debug, Clone)]
pub enum Opening {
    /// `session/new`.
    New,
    /// `session/load`, with the agent's own id of the session.
    Load(Bytes),
    /// `session/resume`, likewise.
    Resume(Bytes),
}

/// The model and mode a new session should start with.
#[derive(Debug, Clone, Default)]
pub struct Wish {
    /// The model.
    pub model: Option<String>,
    /// The mode.
    pub mode: Option<String>,
}

/// Everything a session starts from.
#[derive(Debug)]
pub struct Open {
    /// Our id of it.
    pub id: Uuid,
    /// How it comes to be.
    pub opening: Opening,
    /// The editor's request.
    pub request: Frame,
    /// Who asks.
    pub caller: Caller,
    /// Which process it needs.
    pub key: Key,
    /// Where it works.
    pub cwd: PathBuf,
    /// What this host does for it; `None` leaves files and terminals to the
    /// editor.
    pub hosting: Option<Hosting>,
    /// Where the editor has other paths than this host.
    pub cwd_map: Option<Arc<CwdMap>>,
    /// What it should start with.
    pub wish: Wish,
    /// How long a cancelled turn may take to end.
    pub cancel_grace: Duration,
    /// How long the editor may leave its frames unread.
    pub editor_timeout: Duration,
}

/// The handle: frames from the editor go in here. Dropping it ends the session.
#[derive(Debug)]
pub struct SessionHandle {
    input: queue::Sender<Frame>,
    overrun: CancellationToken,
}

impl SessionHandle {
    /// Passes a request on if there is room.
    pub fn ask(&self, frame: Frame) -> Result<(), queue::NotSent<Frame>> {
        self.input.try_send(frame.bytes().len(), frame)
    }

    /// Passes an answer or a notification on. These cannot be refused, and
    /// losing one in silence would leave the agent waiting; when there is no
    /// room for one, the agent has not read its input for long, and its
    /// process is ended.
    pub fn tell(&self, frame: Frame) {
        if let Err(queue::NotSent::Full(_)) = self.input.try_send(frame.bytes().len(), frame) {
            self.overrun.cancel();
        }
    }
}

/// A request of the editor (or our own) that the agent has not answered.
#[derive(Debug)]
struct Request {
    purpose: Purpose,
    /// The editor's id of it, raw; empty for our own.
    editor_id: Bytes,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    Open,
    Prompt,
    Relay,
    /// Our own `session/set_config_option` or `session/set_mode`.
    Wish,
    /// Our own `session/close`.
    Close,
}

/// A request of the agent that the editor has not answered.
#[derive(Debug)]
struct Ask {
    /// The agent's id of it, raw.
    agent_id: Bytes,
    method: Method,
    /// The agent has withdrawn it; by then the answer is due.
    withdrawn: Option<Instant>,
}

/// The running turn.
#[derive(Debug)]
struct Turn {
    /// Number of its prompt among the requests.
    number: u32,
    /// It was cancelled; by then it must have ended.
    cancelled: Option<Instant>,
}

/// The agent's side of the session.
#[derive(Debug)]
struct Binding {
    lease: Lease,
    slot: u32,
    /// The agent's id of the session, with quotes; empty until it is told.
    name: Bytes,
}

impl Binding {
    fn process(&self) -> &Arc<Process> {
        &self.lease.process
    }
}

struct Session {
    open: Open,
    /// Our id of the session, with quotes.
    name: Bytes,
    link: EditorLink,
    router: Router,
    binding: Option<Binding>,
    /// The opening request has been answered with a result.
    is_open: bool,
    requests: Pending<Request>,
    asks: Pending<Ask>,
    host: Host,
    turn: Option<Turn>,
    queued: VecDeque<Frame>,
    to_agent: VecDeque<Bytes>,
    to_editor: VecDeque<Packet>,
    stalled_since: Option<Instant>,
    /// Terminals that the editor runs for this session.
    terminals: HashSet<String>,
    exit: Option<Arc<Exit>>,
    /// The editor's id of the `session/close` that ends it.
    closing: Option<Bytes>,
    ended: bool,
}

/// Starts a session's task.
pub fn start(open: Open, link: EditorLink, pool: Pool, router: Router, tasks: &Tasks) -> SessionHandle {
    let (input, frames) = queue::queue(INPUT_FRAMES, INPUT_BYTES);
    let span =
        info_span!("session", session.id = %open.id, agent = %open.key.agent, user = %open.caller.user);
    let session = Session {
        host: Host::new(open.hosting.as_ref(), link.capabilities),
        name: format!("\"{}\"", open.id).into(),
        open,
        link,
        router,
        binding: None,
        is_open: false,
        requests: Pending::new(),
        asks: Pending::new(),
        turn: None,
        queued: VecDeque::new(),
        to_agent: VecDeque::new(),
        to_editor: VecDeque::new(),
        stalled_since: None,
        terminals: HashSet::new(),
        exit: None,
        closing: None,
        ended: false,
    };
    let overrun = CancellationToken::new();
    tasks.start("session", session.run(pool, frames, overrun.clone()).instrument(span));
    SessionHandle { input, overrun }
}

impl Session {
    async fn run(mut self, pool: Pool, mut input: queue::Receiver<Frame>, overrun: CancellationToken) {
        let mut held = Vec::new();
        if let Some(mut output) = self.bind(pool, &mut input, &mut held).await {
            self.ask_to_open();
            for frame in held.drain(..) {
                self.from_editor(&frame);
            }
            self.serve(&mut input, &mut output, overrun).await;
            self.refuse_agent(output);
        }
        self.stop_host();
        self.answer_rest();
        // What came too late is answered like what comes from now on.
        input.close();
        held.extend(std::iter::from_fn(|| input.try_recv()));
        for frame in held.iter().filter(|frame| frame.peek().kind == Kind::Request) {
            self.send_editor(Refusal::unknown_session(frame).frame(frame.get(frame.peek().id)));
        }
        // First the agent: stopping must not wait for an editor that is slow, and
        // the place is free before the editor reads that the session is closed.
        self.leave();
        self.binding = None;
        if let Some(id) = self.closing.take() {
            self.send_editor(acp::result(&id, b"{}"));
        }
        self.flush_editor().await;
        self.host.ended().await;
        self.link.events.send(SessionEvent::Ended(self.link.slot)).await.ok();
    }

    /// Leases a process and takes a place at it. What the editor says
    /// meanwhile is held.
    async fn bind(
        &mut self,
        pool: Pool,
        input: &mut queue::Receiver<Frame>,
        held: &mut Vec<Frame>,
    ) -> Option<queue::Receiver<Run>> {
        let known = match &self.open.opening {
            Opening::New => None,
            Opening::Load(name) | Opening::Resume(name) => Some(name.clone()),
        };
        let key = self.open.key.clone();
        let name = known.clone().unwrap_or_default();
        let mut attached = pin!(async {
            let lease = pool.lease(key).await.map_err(|why| why.to_string())?;
            match lease.process.attach(known).await {
                Some(attachment) => Ok((lease, attachment)),
                None => Err(lease.process.exited().await.to_string()),
            }
        });
        loop {
            tokio::select! {
                attached = &mut attached => match attached {
                    Ok((lease, attachment)) => {
                        if let Some(refusal) = self.cannot_reopen(&lease.process.hello) {
                            self.answer_opening(&refusal);
                            return None;
                        }
                        self.binding = Some(Binding { lease, slot: attachment.slot, name });
                        return Some(attachment.output);
                    }
                    Err(why) => {
                        self.answer_opening(&Refusal::new(code::AGENT_ENDED, why));
                        return None;
                    }
                },
                frame = input.recv() => {
                    let Some(frame) = frame else {
                        self.answer_opening(&Refusal::new(code::AGENT_ENDED, ending::NO_CONNECTION));
                        return None;
                    };
                    let peek = frame.peek();
                    let opening = self.open.request.get(self.open.request.peek().id);
                    if peek.method == Method::CancelRequest && frame.get(peek.request_id) == opening {
                        self.answer_opening(&Refusal::new(code::CANCELLED, "cancelled before the agent was ready"));
                        return None;
                    }
                    if held.len() < MAX_QUEUED_PROMPTS {
                        held.push(frame);
                    } else {
                        self.refuse(&frame, code::LIMIT, "too much is waiting for this session to open");
                    }
                }
            }
        }
    }

    /// Why this agent cannot open the session in the way that is asked for.
    fn cannot_reopen(&self, hello: &AgentHello) -> Option<Refusal> {
        let (able, what) = match self.open.opening {
            Opening::New => return None,
            Opening::Load(_) => (hello.can_load(), "session/load"),
            Opening::Resume(_) => (hello.can("resume"), "session/resume"),
        };
        let text = || format!("agent `{}` does not offer {what}", self.open.key.agent);
        (!able).then(|| Refusal::new(code::METHOD_NOT_FOUND, text()))
    }

    /// Passes the opening request on to the agent.
    fn ask_to_open(&mut self) {
        let Some(binding) = &self.binding else { return };
        let request = self.open.request.clone();
        let peek = request.peek();
        // Null means none; agents differ in whether they take it.
        let mcp = request.get(peek.mcp_servers);
        let servers = if mcp == b"null" { peek.mcp_servers } else { Default::default() };
        let name = binding.name.clone();
        let editor_id = request.copy(peek.id);
        let id = self.number(Request { purpose: Purpose::Open, editor_id });
        let mut out = BytesMut::new();
        splice(
            &mut out,
            request.bytes(),
            [(peek.id, id.as_bytes()), (peek.session, &name), (servers, b"[]")],
        );
        self.send_agent(out.freeze());
    }

    async fn serve(
        &mut self,
        input: &mut queue::Receiver<Frame>,
        output: &mut queue::Receiver<Run>,
        overrun: CancellationToken,
    ) {
        let Some(process) = self.binding.as_ref().map(|binding| binding.process().clone()) else { return };
        let out = self.link.out.clone();
        let mut agent_gone = false;
        let mut editor_gone = false;
        while !self.ended && !editor_gone {
            if agent_gone {
                // Nobody is there to read it, and it must not keep us from
                // hearing the editor.
                self.to_agent.clear();
            }
            let editor_size = self.to_editor.front().map_or(0, |packet| packet.frames.len());
            let agent_size = self.to_agent.front().map_or(0, Bytes::len);
            let deadline = self.next_deadline();
            let has_room = self.host.has_room();
            tokio::select! {
                biased;
                permit = out.reserve(editor_size), if editor_size > 0 => {
                    match (permit, self.to_editor.pop_front()) {
                        (Ok(permit), Some(packet)) => permit.send(packet),
                        _ => editor_gone = true,
                    }
                    self.stalled_since = (!self.to_editor.is_empty()).then(Instant::now);
                }
                permit = process.input().reserve(agent_size), if agent_size > 0 && !agent_gone => {
                    if let (Ok(permit), Some(line)) = (permit, self.to_agent.pop_front()) {
                        permit.send(line);
                    } else {
                        self.to_agent.clear();
                    }
                }
                () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => {
                    self.deadline_passed().await;
                }
                // Before the agent's output: a flood must not hold up a cancel.
                frame = input.recv(), if agent_size == 0 && self.to_editor.len() < MAX_OUTBOX => {
                    match frame {
                        Some(frame) => self.from_editor(&frame),
                        None => editor_gone = true,
                    }
                }
                done = self.host.next(), if agent_size == 0 => self.host_answers(done),
                run = output.recv(), if !agent_gone && editor_size == 0 && self.to_agent.len() < MAX_OUTBOX
                    && has_room => {
                    match run {
                        Some(run) => self.from_agent(&run),
                        None => agent_gone = true,
                    }
                }
                () = overrun.cancelled(), if !process.is_ending() => process.stop(Cause::Overrun),
                exit = process.exited(), if agent_gone && self.exit.is_none() => self.agent_ended(exit),
            }
        }
    }

    fn next_deadline(&self) -> Option<Instant> {
        let turn = self.turn.as_ref().and_then(|turn| turn.cancelled);
        let asks = self.asks.iter().filter_map(|ask| ask.withdrawn).min();
        let stall = self.stalled_since.map(|since| since + self.open.editor_timeout);
        [turn, asks, stall].into_iter().flatten().min()
    }

    async fn deadline_passed(&mut self) {
        let now = Instant::now();
        if self.stalled_since.is_some_and(|since| since + self.open.editor_timeout <= now) {
            debug!("the editor does not take its frames; it is dropped");
            self.link.events.send(SessionEvent::Stalled).await.ok();
            self.to_editor.clear();
            self.ended = true;
        }
        self.answer_asks(|ask| ask.withdrawn.is_some_and(|due| due <= now));
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
    fn number(&mut self, request: Request) -> String {
        let number = self.requests.register(request);
        let slot = self.binding.as_ref().map_or(0, |binding| binding.slot);
        WireId { slot, number }.to_string()
    }

    fn tell_agent(&mut self, method: &str) {
        let Some(binding) = &self.binding else { return };
        let id: String = serde_json::from_slice(&binding.name).unwrap_or_default();
        self.send_agent(acp::call(None, method, &json!({ "sessionId": id })));
    }

    fn send_agent(&mut self, line: Bytes) {
        let Some(binding) = &self.binding else { return };
        if self.to_agent.is_empty() {
            match binding.process().input().try_send(line.len(), line) {
                Ok(()) | Err(queue::NotSent::Closed(_)) => {}
                Err(queue::NotSent::Full(line)) => self.to_agent.push_back(line),
            }
        } else {
            self.to_agent.push_back(line);
        }
    }

    fn send_editor(&mut self, line: Bytes) {
        self.send_packet(Packet { frames: line, count: 1 });
    }

    fn send_packet(&mut self, packet: Packet) {
        if self.to_editor.is_empty() {
            match self.link.out.try_send(packet.frames.len(), packet) {
                Ok(()) => {}
                Err(queue::NotSent::Closed(_)) => self.ended = true,
                Err(queue::NotSent::Full(packet)) => {
                    self.stalled_since = Some(Instant::now());
                    self.to_editor.push_back(packet);
                }
            }
        } else {
            self.to_editor.push_back(packet);
        }
    }

    fn refuse(&mut self, frame: &Frame, code: i64, message: impl Into<String>) {
        let peek = frame.peek();
        if peek.kind == Kind::Request {
            self.send_editor(Refusal::new(code, message).frame(frame.get(peek.id)));
        }
    }

    fn answer_opening(&mut self, refusal: &Refusal) {
        let request = self.open.request.clone();
        self.send_editor(refusal.frame(request.get(request.peek().id)));
        self.ended = true;
    }

    /// The agent has opened the session: from now on it has a place in the
    /// table.
    fn opened(&mut self) {
        self.is_open = true;
        let Some(binding) = &self.binding else { return };
        let entry = Entry {
            owner: self.open.caller.user.clone(),
            agent: self.open.key.agent.clone(),
            cwd: self.open.cwd.clone(),
            agent_session: binding.name.clone(),
            title: None,
            updated: SystemTime::now(),
            live: true,
        };
        if matches!(self.open.opening, Opening::New) {
            self.router.opened(self.open.id, entry);
        }
        // The connection takes its events before anything else, so there is
        // room; should there be none, only its bookkeeping is late.
        self.link.events.try_send(SessionEvent::Opened(self.link.slot)).ok();
    }
}
