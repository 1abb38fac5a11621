//! `Acp.Connect`: messages of the tunnel ↔ blocks of lines.

use std::{
    path::PathBuf,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use futures_util::{Stream, StreamExt as _, stream};
use tokio::{sync::oneshot, time::timeout};
use tonic::{Code, Request, Response, Status, Streaming};
use tracing::{Instrument as _, Span, info, info_span};
use uuid::Uuid;

use super::{breakage::Breakage, incoming::Admission, layers};
use crate::{
    config::Config,
    connection::{self, End, Greeting, Hub},
    frame::{self, MAX_FRAME},
    identity::Caller,
    proto::{
        Ack, ConnectRequest, ConnectResponse, Hello, Run, Welcome, acp_server::Acp, connect_request,
        connect_response,
    },
    session::Wish,
    telemetry::trace::Parent,
    tether::{Attached, Feed, Heard, Patience, Said, Tethers},
};

/// How long an editor may take to say hello.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct Tunnel {
    hub: Hub,
    tethers: Tethers,
}

impl Tunnel {
    pub(super) fn new(hub: Hub, tethers: Tethers) -> Self {
        Self { hub, tethers }
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
        let breakage = request.extensions().get::<Breakage>().cloned().unwrap_or_default();
        let is_remote = Admission::is_remote(request.extensions());
        let traceparent = layers::traceparent(request.metadata());
        let (opened, opening) = oneshot::channel();
        let stream = NewStream {
            hub: self.hub.clone(),
            tethers: self.tethers.clone(),
            caller,
            messages: request.into_inner(),
            breakage,
            is_remote,
            traceparent,
            opened,
            call: Span::current(),
        };
        // The stream opens at once, so that a client may say hello after that. Its task has a
        // span once it is known what it wants.
        self.hub.tasks.start_in(Span::none(), "connection", stream.serve());
        Ok(Response::new(Outbound::Opening(opening)))
    }
}

/// A stream that has not said what it wants.
struct NewStream {
    hub: Hub,
    tethers: Tethers,
    caller: Caller,
    messages: Streaming<ConnectRequest>,
    breakage: Breakage,
    is_remote: bool,
    traceparent: Option<Parent>,
    opened: oneshot::Sender<Result<(Welcome, Attached), End>>,
    /// The span of the call.
    call: Span,
}

impl NewStream {
    async fn serve(mut self) {
        let hello = match self.hello().await {
            Ok(hello) => hello,
            Err(end) => return self.opened.send(Err(end)).unwrap_or(()),
        };
        if hello.connection_id.is_empty() {
            return self.begin(hello, false).await;
        }
        let Self { hub, tethers, caller, messages, breakage, is_remote, traceparent, opened, call } = self;
        let mut messages = Some(messages);
        let feed = || match messages.take() {
            Some(messages) => feed(messages, breakage.clone()),
            None => Box::pin(stream::empty()),
        };
        let resumed =
            tethers.resume(&hello.connection_id, &hello.resume_key, &caller, hello.last_seq, feed).await;
        match (resumed, messages) {
            (Some(resumed), _) => {
                let opening = resumed.map(|attached| (welcome(&attached, true), attached));
                opened.send(opening).unwrap_or(());
            }
            (None, Some(messages)) => {
                let again =
                    Self { hub, tethers, caller, messages, breakage, is_remote, traceparent, opened, call };
                again.begin(hello, true).await;
            }
            (None, None) => {}
        }
    }

    async fn hello(&mut self) -> Result<Hello, End> {
        let first = tokio::select! {
            first = timeout(HELLO_TIMEOUT, self.messages.message()) => first,
            () = self.hub.closing.cancelled() => return Err(End::Draining),
        };
        match first {
            Ok(Ok(Some(ConnectRequest { kind: Some(connect_request::Kind::Hello(hello)) }))) => Ok(hello),
            Ok(Ok(Some(_))) => Err(End::Invalid("the first message must be hello".into())),
            Ok(Ok(None)) => Err(End::EditorGone),
            Ok(Err(status)) => Err(unreadable(&status)),
            Err(_) => Err(End::Invalid(format!("no hello came within {HELLO_TIMEOUT:?}"))),
        }
    }

    /// Serves a new connection, whatever streams will carry it.
    async fn begin(self, hello: Hello, again: bool) {
        let Self { hub, tethers, caller, messages, breakage, is_remote, traceparent, opened, call } = self;
        if let Some(unknown) = unknown_agent(&hub, &hello.agent) {
            return opened.send(Err(End::NoAgent(unknown))).unwrap_or(());
        }
        let id = Uuid::now_v7();
        let span = info_span!(parent: &call, "connection", connection.id = %id, user = %caller.user);
        // In a box of its own: whatever an async function moves about, it keeps
        // room for twice, and this lasts as long as the connection.
        let serve = Box::pin(async move {
            let patience = {
                let config = hub.config.borrow();
                let service = &config.service;
                Patience { detached_ttl: service.detached_ttl, editor_timeout: service.editor_timeout }
            };
            let client: String = hello.client.chars().filter(|c| !c.is_control()).take(100).collect();
            info!(%client, "editor connected");
            let feed = feed(messages, breakage);
            let tied = tethers.tie(id, &caller, feed, hello.resumable, patience, &hub.tasks).await;
            opened.send(Ok((welcome(&tied.attached, false), tied.attached))).ok();
            let greeting = Greeting { is_remote, traceparent, ..greeting(hello, client, again) };
            let how = connection::serve(id, hub, caller, greeting, tied.inbound, tied.out).await;
            info!(?how, "editor disconnected");
            tied.end.send(how).ok();
        });
        serve.instrument(span).await;
    }
}

fn welcome(attached: &Attached, resumed: bool) -> Welcome {
    Welcome {
        connection_id: attached.id.to_string(),
        server_version: env!("CARGO_PKG_VERSION").into(),
        max_frame_bytes: MAX_FRAME as u32,
        resumed_from_seq: attached.taken,
        resumed,
        resume_key: attached.key.as_ref().map(|key| key.expose().to_owned()).unwrap_or_default(),
    }
}

/// What is wrong with the name of an agent; nothing if it is one, or none.
pub(super) fn unknown_agent(hub: &Hub, name: &str) -> Option<String> {
    let config = hub.config.borrow();
    let is_fine = name.is_empty() || config.agents.contains_key(name);
    (!is_fine).then(|| no_agent(&config, name))
}

/// That there is no agent of this name, and which there are.
pub(super) fn no_agent(config: &Config, name: &str) -> String {
    let known: Vec<&str> = config.agents.keys().map(String::as_str).collect();
    let asked = frame::escape(name.as_bytes(), 100);
    format!("there is no agent `{asked}`; there are: {}", known.join(", "))
}

fn greeting(hello: Hello, client: String, again: bool) -> Greeting {
    let some = |text: String| (!text.is_empty()).then_some(text);
    Greeting {
        client,
        agent: hello.agent,
        wish: Wish { model: some(hello.model), mode: some(hello.mode) },
        cwd: some(hello.cwd).map(PathBuf::from),
        again,
        outlived: hello.resumable,
        lingers: false,
        is_remote: true,
        traceparent: None,
    }
}

/// What an editor sends after its hello. Only a stream that the editor's side
/// has half-closed comes to an end; all else is a breakage.
fn feed(messages: Streaming<ConnectRequest>, breakage: Breakage) -> Feed {
    let broken = move || breakage.has_happened().then_some(Err(End::EditorGone));
    let rest = stream::once(async {}).filter_map(move |()| std::future::ready(broken()));
    let messages = messages.map(|message| match message {
        Ok(ConnectRequest { kind: Some(connect_request::Kind::Run(run)) }) => {
            Ok(Heard::Run { first_seq: run.first_seq, count: run.count, frames: run.frames })
        }
        Ok(ConnectRequest { kind: Some(connect_request::Kind::Ack(ack)) }) => Ok(Heard::Ack(ack.seq)),
        Ok(ConnectRequest { kind: Some(connect_request::Kind::Hello(_)) }) => {
            Err(End::Invalid("hello may come only once".into()))
        }
        Ok(ConnectRequest { kind: None }) => {
            Err(End::Invalid("a message must be a hello, a run or an ack".into()))
        }
        Err(status) => Err(unreadable(&status)),
    });
    Box::pin(messages.chain(rest))
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

/// What an editor receives.
pub(super) enum Outbound {
    /// Nothing before the welcome.
    Opening(oneshot::Receiver<Result<(Welcome, Attached), End>>),
    /// Frames and acks, then why there are no more.
    Open(Attached),
    Ended,
}

impl Stream for Outbound {
    type Item = Result<ConnectResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let message = |kind| Poll::Ready(Some(Ok(ConnectResponse { kind: Some(kind) })));
        let end = match &mut *self {
            Self::Opening(opening) => match ready!(Pin::new(opening).poll(cx)) {
                Ok(Ok((welcome, attached))) => {
                    *self = Self::Open(attached);
                    return message(connect_response::Kind::Welcome(welcome));
                }
                Ok(Err(end)) => end,
                Err(_) => End::Broken,
            },
            Self::Open(attached) => match ready!(attached.messages.poll_recv(cx)) {
                Some(Said::Run { first_seq, packet }) => {
                    let run = Run { first_seq, count: packet.count, frames: packet.frames };
                    return message(connect_response::Kind::Run(run));
                }
                Some(Said::Ack(seq)) => return message(connect_response::Kind::Ack(Ack { seq })),
                None => ready!(Pin::new(&mut attached.end).poll(cx)).unwrap_or(End::Broken),
            },
            Self::Ended => return Poll::Ready(None),
        };
        *self = Self::Ended;
        Poll::Ready(status(end).map(Err))
    }
}

fn status(end: End) -> Option<Status> {
    let text = end.to_string();
    Some(match end {
        End::EditorGone => return None,
        End::Invalid(why) => Status::invalid_argument(why),
        End::NoAgent(which) => Status::not_found(which),
        End::TooLarge => {
            Status::resource_exhausted(format!("a frame may have {} MiB at most", MAX_FRAME >> 20))
        }
        End::Stalled => {
            Status::resource_exhausted("the editor did not take its frames for too long; connect again")
        }
        End::Draining => Status::unavailable("the service is stopping; connect again once it is back"),
        End::Expired(_) | End::Behind(_) => Status::resource_exhausted(text),
        End::Replaced => Status::aborted(text),
        End::Dropped | End::Busy => Status::unavailable(format!("{text}; come back with a new stream")),
        End::Broken => Status::internal(format!("{text}; connect again")),
    })
}
