//! `Acp.Connect`: messages of the tunnel ↔ blocks of lines.

use std::{
    path::PathBuf,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Bytes, BytesMut};
use futures_util::{Stream, StreamExt as _, stream};
use tokio::{sync::oneshot, time::timeout};
use tonic::{Code, Request, Response, Status, Streaming};
use tracing::{Instrument as _, info, info_span};
use uuid::Uuid;

use crate::{
    connection::{self, End, Greeting, Hub},
    frame::{self, MAX_FRAME},
    identity::Caller,
    proto::{
        Ack, ConnectRequest, ConnectResponse, Hello, Run, Welcome, acp_server::Acp, connect_request,
        connect_response,
    },
    queue,
    session::{Packet, Wish},
};

/// How long an editor may take to say hello.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);

/// Packets that may wait for an editor. Few, because a full queue is what
/// slows the agents of a slow editor down.
const OUT_PACKETS: usize = 16;

/// Bytes that may wait there.
const OUT_BYTES: u32 = 2 << 20;

/// Lines handed on at a time. A message may hold millions, each of which may
/// need an answer; between pieces the connection sees whether answers wait.
const PIECE_LINES: usize = 256;

/// Packets are put together into one message up to about this size. Larger
/// ones are not worth a copy.
const GATHER_BYTES: usize = 4 << 10;

/// An ack goes out after so many frames.
const ACK_EVERY: u64 = 4096;

#[derive(Debug)]
pub(super) struct Tunnel {
    hub: Hub,
}

impl Tunnel {
    pub(super) fn new(hub: Hub) -> Self {
        Self { hub }
    }
}

#[tonic::async_trait]
impl Acp for Tunnel {
    type ConnectStream = Outbound;

    async fn connect(
        &self,
        request: Request<Streaming<ConnectRequest>>,
    ) -> Result<Response<Self::ConnectStream>, Status> {
        if self.hub.draining.is_cancelled() {
            return Err(Status::unavailable("the service is stopping; connect again once it is back"));
        }
        let caller = request.extensions().get::<Caller>().cloned();
        let caller = caller.ok_or_else(|| Status::internal("a call without a caller"))?;
        let messages = request.into_inner();
        let id = Uuid::now_v7();
        let span = info_span!("connection", connection.id = %id, user = %caller.user);
        let (out, packets) = queue::queue(OUT_PACKETS, OUT_BYTES);
        let (ended, end) = oneshot::channel();
        let (welcome, welcomed) = oneshot::channel();
        let counts = Arc::new(Counts::default());
        let serve = serve(self.hub.clone(), caller, id, messages, out, welcome, counts.clone());
        // The stream opens at once, so that a client may say hello after that.
        self.hub
            .tasks
            .start("connection", async move { ended.send(serve.await).unwrap_or(()) }.instrument(span));
        Ok(Response::new(Outbound {
            welcomed: Some(welcomed),
            packets,
            next: None,
            end: Some(end),
            counts,
            acked: 0,
        }))
    }
}

/// How far the frames of both directions have come.
#[derive(Debug, Default)]
struct Counts {
    sent: AtomicU64,
    taken: AtomicU64,
}

async fn serve(
    hub: Hub,
    caller: Caller,
    id: Uuid,
    mut messages: Streaming<ConnectRequest>,
    out: queue::Sender<Packet>,
    welcome: oneshot::Sender<Welcome>,
    counts: Arc<Counts>,
) -> End {
    let first = tokio::select! {
        first = timeout(HELLO_TIMEOUT, messages.message()) => first,
        () = hub.closing.cancelled() => return End::Draining,
    };
    let hello = match first {
        Ok(Ok(Some(ConnectRequest { kind: Some(connect_request::Kind::Hello(hello)) }))) => hello,
        Ok(Ok(Some(_))) => return End::Invalid("the first message must be hello".into()),
        Ok(Ok(None)) => return End::EditorGone,
        Ok(Err(status)) => return unreadable(&status),
        Err(_) => return End::Invalid(format!("no hello came within {HELLO_TIMEOUT:?}")),
    };
    if let Some(unknown) = unknown_agent(&hub, &hello) {
        return End::NoAgent(unknown);
    }
    let client: String = hello.client.chars().filter(|c| !c.is_control()).take(100).collect();
    info!(%client, "editor connected");
    let said = Welcome {
        connection_id: id.to_string(),
        server_version: env!("CARGO_PKG_VERSION").into(),
        max_frame_bytes: MAX_FRAME as u32,
    };
    welcome.send(said).ok();
    let inbound = Box::pin(inbound(messages, counts));
    let how = connection::serve(id, hub, caller, greeting(hello, client), inbound, out).await;
    info!(?how, "editor disconnected");
    how
}

fn unknown_agent(hub: &Hub, hello: &Hello) -> Option<String> {
    let config = hub.config.borrow();
    if hello.agent.is_empty() || config.agents.contains_key(&hello.agent) {
        return None;
    }
    let known: Vec<&str> = config.agents.keys().map(String::as_str).collect();
    let asked = frame::escape(hello.agent.as_bytes(), 100);
    Some(format!("there is no agent `{asked}`; there are: {}", known.join(", ")))
}

fn greeting(hello: Hello, client: String) -> Greeting {
    let some = |text: String| (!text.is_empty()).then_some(text);
    Greeting {
        client,
        agent: hello.agent,
        wish: Wish { model: some(hello.model), mode: some(hello.mode) },
        cwd: some(hello.cwd).map(PathBuf::from),
    }
}

/// The blocks an editor sends, with the tunnel's rules checked.
fn inbound(
    messages: Streaming<ConnectRequest>,
    counts: Arc<Counts>,
) -> impl Stream<Item = Result<Bytes, End>> {
    let blocks = messages.filter_map(move |message| {
        let item = match message {
            Ok(ConnectRequest { kind: Some(connect_request::Kind::Run(run)) }) => {
                Some(accept(run, &counts.taken))
            }
            Ok(ConnectRequest { kind: Some(connect_request::Kind::Ack(ack)) }) => {
                let sent = counts.sent.load(Ordering::Relaxed);
                let text = || format!("frame {} is acknowledged, but only {sent} were sent", ack.seq);
                (ack.seq > sent).then(|| Err(End::Invalid(text())))
            }
            Ok(ConnectRequest { kind: Some(connect_request::Kind::Hello(_)) }) => {
                Some(Err(End::Invalid("hello may come only once".into())))
            }
            Ok(ConnectRequest { kind: None }) => {
                Some(Err(End::Invalid("a message must be a hello, a run or an ack".into())))
            }
            Err(status) => Some(Err(unreadable(&status))),
        };
        std::future::ready(item)
    });
    blocks.flat_map(|block| stream::iter(Pieces { rest: Some(block) }))
}

/// A block in pieces of few lines, each with bytes of its own: a frame that
/// waits in a queue must not keep the buffer alive that its message, and
/// perhaps far larger ones before it, came in.
struct Pieces {
    rest: Option<Result<Bytes, End>>,
}

impl Iterator for Pieces {
    type Item = Result<Bytes, End>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut block = match self.rest.take()? {
            Ok(block) => block,
            Err(end) => return Some(Err(end)),
        };
        let newline = memchr::memchr_iter(b'\n', &block).nth(PIECE_LINES - 1);
        let piece = block.split_to(newline.map_or(block.len(), |newline| newline + 1));
        self.rest = (!block.is_empty()).then_some(Ok(block));
        Some(Ok(Bytes::copy_from_slice(&piece)))
    }
}

/// Why there is no next message. A client that is still there learns what was
/// wrong with what it sent.
fn unreadable(status: &Status) -> End {
    match status.code() {
        Code::OutOfRange => End::TooLarge,
        Code::Internal | Code::Unimplemented => {
            End::Invalid(format!("the message cannot be read: {}", status.message()))
        }
        _ => End::EditorGone,
    }
}

fn accept(run: Run, taken: &AtomicU64) -> Result<Bytes, End> {
    let expected = taken.load(Ordering::Relaxed) + 1;
    if run.first_seq != expected {
        return Err(End::Invalid(format!("first_seq is {}, but {expected} comes next", run.first_seq)));
    }
    let lines = memchr::memchr_iter(b'\n', &run.frames).count();
    if run.count == 0 || lines != run.count as usize || run.frames.last() != Some(&b'\n') {
        let rule = "a run must hold `count` lines, each ended by a newline";
        return Err(End::Invalid(format!("{rule}; it says {} and has {lines}", run.count)));
    }
    taken.fetch_add(u64::from(run.count), Ordering::Relaxed);
    Ok(run.frames)
}

/// What an editor receives.
pub(super) struct Outbound {
    welcomed: Option<oneshot::Receiver<Welcome>>,
    packets: queue::Receiver<Packet>,
    /// Taken from the queue, and too large to travel with what came before.
    next: Option<Packet>,
    end: Option<oneshot::Receiver<End>>,
    counts: Arc<Counts>,
    acked: u64,
}

impl Outbound {
    /// Adds the small packets that wait behind a small one: an update and the
    /// answer after it become one message, and one write to the editor.
    fn gather(&mut self, packet: Packet) -> Packet {
        let (mut frames, mut count) = (BytesMut::new(), packet.count);
        while packet.frames.len().max(frames.len()) < GATHER_BYTES {
            let Some(more) = self.packets.try_recv() else { break };
            if more.frames.len() > GATHER_BYTES {
                self.next = Some(more);
                break;
            }
            if frames.is_empty() {
                frames.extend_from_slice(&packet.frames);
            }
            frames.extend_from_slice(&more.frames);
            count += more.count;
        }
        if frames.is_empty() { packet } else { Packet { frames: frames.freeze(), count } }
    }
}

impl Stream for Outbound {
    type Item = Result<ConnectResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let message = |kind| Poll::Ready(Some(Ok(ConnectResponse { kind: Some(kind) })));
        if let Some(welcomed) = self.welcomed.as_mut() {
            let welcome = ready!(Pin::new(welcomed).poll(cx));
            self.welcomed = None;
            // No welcome means that the connection has ended; the reason
            // follows below.
            if let Ok(welcome) = welcome {
                return message(connect_response::Kind::Welcome(welcome));
            }
        }
        let taken = self.counts.taken.load(Ordering::Relaxed);
        if taken - self.acked >= ACK_EVERY {
            self.acked = taken;
            return message(connect_response::Kind::Ack(Ack { seq: taken }));
        }
        let packet = match self.next.take() {
            Some(packet) => Some(packet),
            None => ready!(self.packets.poll_recv(cx)),
        };
        if let Some(packet) = packet {
            let packet = self.gather(packet);
            let first_seq = 1 + self.counts.sent.fetch_add(u64::from(packet.count), Ordering::Relaxed);
            let run = Run { first_seq, count: packet.count, frames: packet.frames };
            return message(connect_response::Kind::Run(run));
        }
        let Some(end) = self.end.as_mut() else { return Poll::Ready(None) };
        let how = ready!(Pin::new(end).poll(cx));
        self.end = None;
        Poll::Ready(status(how.ok()).map(Err))
    }
}

fn status(end: Option<End>) -> Option<Status> {
    match end {
        Some(End::EditorGone) => None,
        Some(End::Invalid(why)) => Some(Status::invalid_argument(why)),
        Some(End::NoAgent(which)) => Some(Status::not_found(which)),
        Some(End::TooLarge) => {
            let text = format!("a frame may have {} MiB at most", MAX_FRAME >> 20);
            Some(Status::resource_exhausted(text))
        }
        Some(End::Stalled) => {
            Some(Status::resource_exhausted("the editor did not take its frames for too long; connect again"))
        }
        Some(End::Draining) => {
            Some(Status::unavailable("the service is stopping; connect again once it is back"))
        }
        None => Some(Status::internal("the connection's task ended early; connect again")),
    }
}
