//! An editor of our own, which speaks ACP for callers that do not: it connects,
//! opens one session and leaves. The session goes on without it.

use std::pin::pin;

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tonic::Status;
use uuid::Uuid;

use crate::{
    acp::{self, code},
    connection::{self, End, Greeting, Hub, Input},
    frame::{Frame, Kind, MAX_FRAME},
    identity::Caller,
    ledger::project::json::{int, pick},
    queue,
    session::Packet,
};

/// Frames that may wait for us, and their bytes; we read all the time.
const PACKETS: usize = 64;
const BYTES: u32 = 1 << 20;

/// A request of ours. Its id is like no other, whoever else has the session open.
pub(in crate::grpc) fn request(method: &str, params: &Value) -> Result<Frame, Status> {
    let id = format!("\"typed-{}\"", Uuid::now_v7().simple());
    let line = acp::call(Some(id), method, params);
    if line.len() > MAX_FRAME {
        let text = format!("a prompt may have {} MiB at most", MAX_FRAME >> 20);
        return Err(Status::invalid_argument(text));
    }
    parsed(&line)
}

/// A notification of ours.
pub(super) fn notification(method: &str, params: &Value) -> Result<Frame, Status> {
    let line = acp::call(None, method, params);
    parsed(&line)
}

fn parsed(line: &Bytes) -> Result<Frame, Status> {
    let line = line.slice(..line.len() - 1);
    Frame::parse(line).map_err(|fault| Status::internal(format!("a frame of ours is {fault}")))
}

/// Opens a session by this request, and gives the result as JSON. It has a task of its own: a
/// caller may leave in the middle, and then it ends as with an editor that leaves.
pub(in crate::grpc) async fn open(
    hub: &Hub,
    caller: &Caller,
    greeting: Greeting,
    request: Frame,
) -> Result<String, Status> {
    let (told, outcome) = oneshot::channel();
    hub.tasks.start("opening", opened(hub.clone(), caller.clone(), greeting, request, told));
    outcome.await.unwrap_or_else(|_| Err(Status::internal("no answer came; the service's log says why")))
}

async fn opened(
    hub: Hub,
    caller: Caller,
    greeting: Greeting,
    request: Frame,
    mut outcome: oneshot::Sender<Result<String, Status>>,
) {
    let client = json!({ "name": greeting.client, "version": "" });
    let hello = acp::call(
        Some("0".into()),
        "initialize",
        &json!({
            "protocolVersion": acp::PROTOCOL_VERSION,
            "clientInfo": client,
            "clientCapabilities": {
                "session": { "configOptions": { "boolean": {} }, "notices": {}, "compaction": {} },
            },
        }),
    );
    let lines = Bytes::from([&hello[..], request.bytes(), b"\n"].concat());
    let (leave, left) = oneshot::channel::<()>();
    // Nothing more is said, until we leave.
    let silence = stream::once(left).filter_map(|_| std::future::ready(None));
    let inbound = stream::iter([Ok(Input::Block(lines))]).chain(silence);
    let (out, mut told) = queue::queue(PACKETS, BYTES);
    let serving = connection::serve(Uuid::now_v7(), hub, caller, greeting, Box::pin(inbound), out);
    let mut serving = pin!(serving);
    let mut leave = Some(leave);
    let mut answer = None;
    loop {
        tokio::select! {
            end = &mut serving => {
                // Nobody may be there to be told.
                outcome.send(answer.unwrap_or_else(|| Err(ended(&end)))).ok();
                return;
            }
            () = outcome.closed(), if leave.is_some() => drop(leave.take()),
            Some(Packet { frames, .. }) = told.recv() => {
                let found = frames.split(|byte| *byte == b'\n').find_map(|line| answered(line, &request));
                if let Some(found) = found {
                    answer = Some(found);
                    // It is served to its end, so that nothing is left half done.
                    drop(leave.take());
                }
            }
        }
    }
}

/// The outcome of our request, if this line has it.
pub(super) fn answered(line: &[u8], request: &Frame) -> Option<Result<String, Status>> {
    let frame = Frame::parse(Bytes::copy_from_slice(line)).ok()?;
    let peek = frame.peek();
    if frame.get(peek.id) != request.get(request.peek().id) {
        return None;
    }
    let outcome = String::from_utf8_lossy(frame.get(peek.outcome)).into_owned();
    match peek.kind {
        Kind::Result => Some(Ok(outcome)),
        Kind::Error => Some(Err(refused(&outcome))),
        _ => None,
    }
}

/// An error of ACP as a status: the same words.
fn refused(error: &str) -> Status {
    let [number, message] = pick(error, ["code", "message"]);
    let message = message.and_then(crate::ledger::project::json::text).unwrap_or_default();
    // The names that the fields have here.
    let message = message.replace("additionalDirectories", "additional_directories");
    match number.and_then(int).unwrap_or_default() {
        code::INVALID_PARAMS => Status::invalid_argument(message),
        code::NOT_FOUND => Status::not_found(message),
        code::LIMIT => Status::resource_exhausted(message),
        code::AGENT_ENDED | code::NOT_RECORDED => Status::unavailable(message),
        code::CANCELLED => Status::aborted(message),
        code::AUTH_REQUIRED => {
            let text = format!("the agent wants someone to log in first: {message}");
            Status::failed_precondition(text)
        }
        // Whatever else an agent has against it.
        number => Status::failed_precondition(format!("{message} ({number})")),
    }
}

fn ended(end: &End) -> Status {
    match end {
        End::Draining => Status::unavailable("the service is stopping; try again once it is back"),
        other => Status::internal(format!("no answer came: {other}")),
    }
}
