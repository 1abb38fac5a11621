//! A small ACP client over a tunnel: requests with answers, notifications,
//! and whatever the agent says or asks in between.

use std::time::Duration;

use bytes::{Buf as _, Bytes};
use serde_json::Value;
use tokio::{sync::mpsc, time::timeout};
use tonic::Streaming;

use crate::{
    acp::{self, Refusal, code},
    client::{Client, Tunnel, Unreachable},
    frame::{self, Frame, Kind, MAX_FRAME},
    proto::{Ack, ConnectRequest, ConnectResponse, Run, connect_request, connect_response},
};

/// An ack goes out after so many frames.
const ACK_EVERY: u64 = 256;

/// After our last word, how long the service's may take.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// How much of an error's data is shown.
const SHOWN_DATA: usize = 2000;

/// Why a request got no result.
#[derive(Debug, thiserror::Error)]
pub(super) enum Failure {
    /// The other side answered with an error.
    #[error("{0}")]
    Answered(String),
    /// The other side does not have this method.
    #[error("{0}")]
    NotOffered(String),
    /// There is no other side any more.
    #[error(transparent)]
    Lost(#[from] Unreachable),
}

/// What came from the service.
#[derive(Debug)]
pub(super) enum Heard {
    /// The answer to our request of this number.
    Answer { number: u64, outcome: Result<Value, Failure> },
    /// A request, which must be answered once.
    Asked { id: Bytes, method: String, params: Value },
    /// A notification. Parameters that cannot be read are null.
    Told { method: String, params: Value },
}

/// One side of a conversation.
pub(super) struct Conversation {
    outgoing: mpsc::Sender<ConnectRequest>,
    incoming: Streaming<ConnectResponse>,
    client: Client,
    /// Frames that came and were not yet looked at.
    unread: Bytes,
    requests: u64,
    sent: u64,
    acked: u64,
}

impl Conversation {
    pub(super) fn new(client: Client, tunnel: Tunnel) -> Self {
        let Tunnel { outgoing, incoming, .. } = tunnel;
        Self { outgoing, incoming, client, unread: Bytes::new(), requests: 0, sent: 0, acked: 0 }
    }

    /// Sends a request and gives its number, by which its answer is known.
    pub(super) async fn request(&mut self, method: &str, params: &Value) -> Result<u64, Failure> {
        self.requests += 1;
        let frame = acp::call(Some(self.requests.to_string()), method, params);
        if frame.len() > MAX_FRAME {
            let text = format!("{method} is longer than the {} MiB that fit; send less", MAX_FRAME >> 20);
            return Err(Failure::Answered(text));
        }
        self.send(frame).await;
        Ok(self.requests)
    }

    /// Sends a notification.
    pub(super) async fn notify(&mut self, method: &str, params: &Value) {
        self.send(acp::call(None, method, params)).await;
    }

    /// Answers a request of the agent.
    pub(super) async fn answer(&mut self, id: &[u8], result: &[u8]) {
        self.send(acp::result(id, result)).await;
    }

    /// Answers a request of the agent that this client cannot fulfil.
    pub(super) async fn cannot(&mut self, id: &[u8], method: &str) {
        let method = frame::escape(method.as_bytes(), 100);
        let text = format!("`{method}` is not something that this client does");
        self.send(Refusal::new(code::METHOD_NOT_FOUND, text).frame(id)).await;
    }

    /// Sends a request outside a turn and waits for its result. Nobody can be
    /// asked anything then.
    pub(super) async fn ask(&mut self, method: &str, params: &Value) -> Result<Value, Failure> {
        let asked = self.request(method, params).await?;
        loop {
            match self.next().await? {
                Heard::Answer { number, outcome } if number == asked => return outcome,
                Heard::Asked { id, method, .. } if method == "session/request_permission" => {
                    self.answer(&id, acp::CANCELLED_PERMISSION).await;
                }
                Heard::Asked { id, method, .. } => self.cannot(&id, &method).await,
                Heard::Answer { .. } | Heard::Told { .. } => {}
            }
        }
    }

    /// Whether something is there without waiting.
    pub(super) fn has_more(&self) -> bool {
        !self.unread.is_empty()
    }

    /// The next thing. Safe to drop at any time.
    pub(super) async fn next(&mut self) -> Result<Heard, Unreachable> {
        loop {
            while let Some(end) = memchr::memchr(b'\n', &self.unread) {
                let line = self.unread.split_to(end);
                self.unread.advance(1);
                if let Some(heard) = Frame::parse(line).ok().and_then(|frame| understand(&frame)) {
                    return Ok(heard);
                }
            }
            match self.incoming.message().await.map_err(|status| self.client.explain(&status))? {
                Some(ConnectResponse { kind: Some(connect_response::Kind::Run(run)) }) => self.take(run),
                Some(_) => {}
                None => {
                    let endpoint = &self.client.endpoint;
                    let message = format!(
                        "the conductor at {endpoint} ended the connection; see its log for the reason, then try again"
                    );
                    return Err(Unreachable { message, passing: true });
                }
            }
        }
    }

    /// Leaves politely: the service hears that we are done, and may finish.
    pub(super) async fn close(self) {
        let Self { outgoing, mut incoming, .. } = self;
        drop(outgoing);
        let end = async { while let Ok(Some(_)) = incoming.message().await {} };
        timeout(LAST_WORDS, end).await.ok();
    }

    fn take(&mut self, run: Run) {
        let taken = run.first_seq.saturating_add(u64::from(run.count)).saturating_sub(1);
        if taken.saturating_sub(self.acked) >= ACK_EVERY {
            let ack = ConnectRequest { kind: Some(connect_request::Kind::Ack(Ack { seq: taken })) };
            // A full queue means that one will follow soon.
            if self.outgoing.try_send(ack).is_ok() {
                self.acked = taken;
            }
        }
        self.unread = run.frames;
    }

    async fn send(&mut self, frame: Bytes) {
        let run = Run { first_seq: self.sent + 1, count: 1, frames: frame };
        self.sent += 1;
        let message = ConnectRequest { kind: Some(connect_request::Kind::Run(run)) };
        // A closed queue means that the tunnel has ended. The reason waits
        // among what came from it.
        self.outgoing.send(message).await.ok();
    }
}

fn understand(frame: &Frame) -> Option<Heard> {
    let peek = frame.peek();
    let params = || frame.decode(peek.params).unwrap_or_default();
    match peek.kind {
        Kind::Request => {
            Some(Heard::Asked { id: frame.copy(peek.id), method: frame.method_name(), params: params() })
        }
        Kind::Notification => Some(Heard::Told { method: frame.method_name(), params: params() }),
        Kind::Result => Some(Heard::Answer {
            number: frame.decode(peek.id)?,
            outcome: Ok(frame.decode(peek.outcome).unwrap_or_default()),
        }),
        Kind::Error => {
            let error = frame.decode(peek.outcome).unwrap_or_default();
            Some(Heard::Answer { number: frame.decode(peek.id)?, outcome: Err(explain(&error)) })
        }
        Kind::Opaque => None,
    }
}

/// An error in words. Its data often holds the only useful part, so it is
/// shown, too.
fn explain(error: &Value) -> Failure {
    let number = error["code"].as_i64().unwrap_or_default();
    let mut text = match error["message"].as_str() {
        // What JSON-RPC calls every mishap. Whose it was, and what to do, is more than an agent tells.
        Some("Internal error") => "the agent failed (Internal error); it may not be set up: give it what it needs, \
            a key for instance, with `env` or `env_from` in agents.toml. What it writes to stderr is in the log of \
            `conductor serve --log debug`."
            .to_string(),
        Some(message) if !message.is_empty() => message.to_string(),
        _ => format!("the agent answered with error {number} and no message"),
    };
    if number == code::AUTH_REQUIRED && !text.contains("conductor agents login") {
        text.push_str("\nThe agent wants a login; see `conductor agents login --help`.");
    }
    let data = match &error["data"] {
        Value::Null => String::new(),
        Value::String(data) => data.clone(),
        data => data.to_string(),
    };
    if !data.is_empty() {
        text.push_str(&format!("\ndetails: {}", frame::escape(data.as_bytes(), SHOWN_DATA)));
    }
    if number == code::METHOD_NOT_FOUND { Failure::NotOffered(text) } else { Failure::Answered(text) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    fn heard(line: &'static str) -> Option<Heard> {
        understand(&Frame::parse(Bytes::from_static(line.as_bytes())).unwrap())
    }

    #[test]
    fn tells_answers_requests_and_notifications_apart() {
        let Some(Heard::Answer { number: 3, outcome: Ok(result) }) = heard(r#"{"id":3,"result":{"a":1}}"#)
        else {
            panic!("no result")
        };
        assert_eq!(result["a"], 1);
        let Some(Heard::Asked { id, method, .. }) = heard(r#"{"id":"x\u0001","method":"m/n","params":{}}"#)
        else {
            panic!("no request")
        };
        assert_eq!((&*id, &*method), (&br#""x\u0001""#[..], "m/n"));
        let unreadable = heard(r#"{"method":"session/update","params":{"text":"\ud83d"}}"#);
        assert!(matches!(unreadable, Some(Heard::Told { params: Value::Null, .. })));
        assert!(heard(r#"{"id":"not ours","result":{}}"#).is_none());
    }

    #[test]
    fn errors_show_their_data() {
        let text = |line| match heard(line) {
            Some(Heard::Answer { outcome: Err(failure), .. }) => failure.to_string(),
            other => panic!("{other:?}"),
        };
        let error = r#"{"id":1,"error":{"code":-32603,"message":"no","data":{"why":"\u001b"}}}"#;
        assert_eq!(text(error), "no\ndetails: {\"why\":\"\\u001b\"}");
        assert_eq!(
            text(r#"{"id":1,"error":{"code":-5}}"#),
            "the agent answered with error -5 and no message"
        );
        assert!(text(r#"{"id":1,"error":{"code":-32000,"message":"log in"}}"#).contains("wants a login"));
        let failed = text(r#"{"id":1,"error":{"code":-32603,"message":"Internal error","data":"no key"}}"#);
        assert!(failed.contains("may not be set up") && failed.ends_with("details: no key"), "{failed}");
    }
}
