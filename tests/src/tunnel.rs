//! A fake editor on the gRPC level, for tests that break the tunnel's rules,
//! which `conductor connect` never would.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

use std::time::Duration;

use conductor::proto::{
    Ack, ConnectRequest, ConnectResponse, Hello, Run, acp_client::AcpClient, connect_request,
    connect_response,
};
use serde_json::Value;
use tokio::{runtime::Runtime, sync::mpsc, time::timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{
    Code, Request, Status, Streaming,
    metadata::MetadataMap,
    transport::{Channel, Endpoint},
};

use crate::{editor::DEADLINE, harness::Service};

/// Frames under way in one direction; tests never fill it by accident.
const QUEUE: usize = 64;

/// One stream of `Acp.Connect`, driven by blocking calls.
pub struct Tunnel {
    runtime: Runtime,
    sender: Option<mpsc::Sender<ConnectRequest>>,
    stream: Option<Streaming<ConnectResponse>>,
    refused: Option<Status>,
    next_seq: u64,
}

impl Tunnel {
    /// Opens a stream with this metadata, with `first` already sent.
    pub fn open_with(service: &Service, metadata: MetadataMap, first: Option<ConnectRequest>) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (sender, receiver) = mpsc::channel(QUEUE);
        if let Some(first) = first {
            sender.try_send(first).unwrap();
        }
        let endpoint = service.endpoint();
        let opened = runtime.block_on(async move {
            let channel: Channel = Endpoint::from_shared(endpoint).unwrap().connect().await.unwrap();
            let mut client = AcpClient::new(channel)
                .max_decoding_message_size(64 << 20)
                .max_encoding_message_size(64 << 20);
            let mut request = Request::new(ReceiverStream::new(receiver));
            *request.metadata_mut() = metadata;
            timeout(DEADLINE, client.connect(request)).await
        });
        let (stream, refused) = match opened.expect("the service opens or refuses the stream in time") {
            Ok(response) => (Some(response.into_inner()), None),
            Err(status) => (None, Some(status)),
        };
        Self { runtime, sender: Some(sender), stream, refused, next_seq: 1 }
    }

    /// Opens a stream with the service's token and greets.
    pub fn greeted(service: &Service) -> Self {
        // The service answers nothing, headers included, before it is greeted.
        let first = ConnectRequest { kind: Some(connect_request::Kind::Hello(hello())) };
        let mut tunnel = Self::open_with(service, authorised(service), Some(first));
        let welcome = tunnel.next_message().expect("a welcome");
        assert!(matches!(welcome.kind, Some(connect_response::Kind::Welcome(_))), "{welcome:?}");
        tunnel
    }

    /// Sends a message; `false` if the stream has ended.
    pub fn send(&mut self, kind: connect_request::Kind) -> bool {
        self.send_message(ConnectRequest { kind: Some(kind) })
    }

    /// Sends a message as it is.
    pub fn send_message(&mut self, message: ConnectRequest) -> bool {
        let Some(sender) = self.sender.clone() else { return false };
        self.runtime
            .block_on(async { timeout(DEADLINE, sender.send(message)).await })
            .is_ok_and(|sent| sent.is_ok())
    }

    /// Sends a frame with the right sequence number.
    pub fn send_frame(&mut self, frame: &str) -> bool {
        let first_seq = self.next_seq;
        self.next_seq += 1;
        self.send(connect_request::Kind::Run(Run {
            first_seq,
            count: 1,
            frames: format!("{frame}\n").into(),
        }))
    }

    /// Acknowledges frames.
    pub fn send_ack(&mut self, seq: u64) -> bool {
        self.send(connect_request::Kind::Ack(Ack { seq }))
    }

    /// The next message, or how the stream ended.
    pub fn next_message(&mut self) -> Result<ConnectResponse, Status> {
        self.next_within(DEADLINE)
    }

    /// The next message within a time, or how the stream ended.
    pub fn next_within(&mut self, time: Duration) -> Result<ConnectResponse, Status> {
        if let Some(status) = &self.refused {
            return Err(status.clone());
        }
        let stream = self.stream.as_mut().unwrap();
        match self.runtime.block_on(async { timeout(time, stream.message()).await }) {
            Ok(Ok(Some(message))) => Ok(message),
            Ok(Ok(None)) => Err(Status::ok("the stream ended")),
            Ok(Err(status)) => Err(status),
            Err(_) => panic!("nothing arrived and the stream did not end within {time:?}"),
        }
    }

    /// Reads until the stream ends; how.
    pub fn end(&mut self) -> Status {
        loop {
            if let Err(status) = self.next_message() {
                return status;
            }
        }
    }

    /// Reads until the stream ends and checks how.
    pub fn expect_end(&mut self, code: Code) {
        let status = self.end();
        assert_eq!(status.code(), code, "{status:?}");
        assert!(!status.message().is_empty(), "an error should say why: {status:?}");
    }

    /// The next frames as JSON, acks left out.
    pub fn next_frames(&mut self) -> Vec<Value> {
        loop {
            let message = self.next_message().unwrap_or_else(|status| panic!("the stream ended: {status:?}"));
            if let Some(connect_response::Kind::Run(run)) = message.kind {
                let lines = run.frames.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
                return lines.map(|line| serde_json::from_slice(line).unwrap()).collect();
            }
        }
    }

    /// Half-closes the stream.
    pub fn close(&mut self) {
        self.sender = None;
    }
}

/// A plain greeting.
pub fn hello() -> Hello {
    Hello { client: "tests/1".to_owned(), ..Hello::default() }
}

/// Metadata with the service's token.
pub fn authorised(service: &Service) -> MetadataMap {
    let mut metadata = MetadataMap::new();
    metadata.insert("authorization", format!("Bearer {}", service.token()).parse().unwrap());
    metadata
}
