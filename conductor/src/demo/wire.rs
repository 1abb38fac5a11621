//! JSON-RPC 2.0 by hand: one object per line, and a plain answer to everything that is not one.
//!
//! Knows nothing of ACP beyond its error codes, so that the agent's loop only sees well-formed messages.

use std::io::{BufRead, Read as _, Write};

use serde_json::{Value, json};
use tokio::sync::mpsc;

/// The longest line taken from a client. Screenshots of 5 MB are seen in practice; this leaves room.
pub(super) const LONGEST_LINE: u64 = 64 * 1024 * 1024;

/// Where lines for stdout go: whole lines, newline included, in the order sent.
pub(super) type Outbox = mpsc::Sender<Vec<u8>>;

/// An error as it goes over the wire.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct RpcError {
    pub(super) code: i64,
    pub(super) message: String,
    pub(super) data: Option<Value>,
}

impl RpcError {
    fn new(code: i64, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), data: None }
    }

    pub(super) fn parse(message: impl Into<String>) -> Self {
        Self::new(-32700, message)
    }

    pub(super) fn invalid_request(message: impl Into<String>) -> Self {
        Self::new(-32600, message)
    }

    pub(super) fn unknown_method(method: &str) -> Self {
        let message = format!("the demo agent has no method {method:?}; it speaks ACP version 1");
        Self { data: Some(json!({ "method": method })), ..Self::new(-32601, message) }
    }

    pub(super) fn bad_params(message: impl Into<String>) -> Self {
        Self::new(-32602, message)
    }

    pub(super) fn internal(message: impl Into<String>) -> Self {
        Self::new(-32603, message)
    }

    pub(super) fn cancelled() -> Self {
        Self::new(-32800, "cancelled, as the client asked")
    }

    pub(super) fn unknown_session(session: &str) -> Self {
        let message =
            "no such open session; open it with session/load or session/resume, or see session/list";
        Self { data: Some(json!({ "sessionId": session })), ..Self::new(-32002, message) }
    }

    /// Reads the error of an answer leniently: it is only ever shown to a human.
    fn from_wire(error: &Value) -> Self {
        Self {
            code: error["code"].as_i64().unwrap_or(-32603),
            message: error["message"].as_str().unwrap_or("an error without a message").to_owned(),
            data: error.get("data").cloned(),
        }
    }

    fn to_wire(&self) -> Value {
        let mut error = json!({ "code": self.code, "message": self.message });
        if let Some(data) = &self.data {
            error["data"] = data.clone();
        }
        error
    }
}

/// What stdin yielded.
#[derive(Debug, PartialEq)]
pub(super) enum Line {
    Whole(Vec<u8>),
    /// Over [`LONGEST_LINE`]; its bytes were skipped.
    TooLong,
}

/// What a line means.
#[derive(Debug, PartialEq)]
pub(super) enum Incoming {
    Request {
        id: Value,
        method: String,
        params: Value,
    },
    Notification {
        method: String,
        params: Value,
    },
    /// The client's answer to a request of ours.
    Answer {
        id: Value,
        outcome: Result<Value, RpcError>,
    },
    /// Not a message; the error goes back under this id.
    Broken {
        id: Value,
        error: RpcError,
    },
    /// A blank line.
    Nothing,
}

/// Understands one line.
pub(super) fn understand(line: &Line) -> Incoming {
    let broken = |id: Value, error: RpcError| Incoming::Broken { id, error };
    let bytes = match line {
        Line::Whole(bytes) => bytes.trim_ascii(),
        Line::TooLong => {
            let message = format!("the line is longer than {LONGEST_LINE} bytes and was skipped");
            return broken(Value::Null, RpcError::parse(message));
        }
    };
    if bytes.is_empty() {
        return Incoming::Nothing;
    }
    let mut object = match serde_json::from_slice(bytes) {
        Ok(Value::Object(object)) => object,
        Ok(Value::Array(_)) => {
            let message = "batches are not part of ACP; send one object per line";
            return broken(Value::Null, RpcError::invalid_request(message));
        }
        Ok(_) => {
            let message = "a message must be a JSON object";
            return broken(Value::Null, RpcError::invalid_request(message));
        }
        Err(error) => return broken(Value::Null, RpcError::parse(format!("the line is not JSON: {error}"))),
    };
    let id = object.remove("id");
    if id.as_ref().is_some_and(|id| !(id.is_string() || id.is_i64() || id.is_u64() || id.is_null())) {
        let message = "`id` must be a string, an integer or null";
        return broken(Value::Null, RpcError::invalid_request(message));
    }
    if object.get("jsonrpc").and_then(Value::as_str) != Some("2.0") {
        let message = "`jsonrpc` must be \"2.0\"";
        return broken(id.unwrap_or_default(), RpcError::invalid_request(message));
    }
    let method = object.remove("method");
    let params = object.remove("params").unwrap_or_default();
    match (method, id) {
        (Some(Value::String(method)), Some(id)) => Incoming::Request { id, method, params },
        (Some(Value::String(method)), None) => Incoming::Notification { method, params },
        (Some(_), id) => {
            broken(id.unwrap_or_default(), RpcError::invalid_request("`method` must be a string"))
        }
        (None, Some(id)) => match (object.remove("result"), object.remove("error")) {
            (_, Some(error)) => Incoming::Answer { id, outcome: Err(RpcError::from_wire(&error)) },
            (Some(result), None) => Incoming::Answer { id, outcome: Ok(result) },
            (None, None) => broken(
                id,
                RpcError::invalid_request("the message has neither `method`, `result` nor `error`"),
            ),
        },
        (None, None) => broken(Value::Null, RpcError::invalid_request("the message has no `method`")),
    }
}

/// The line that answers a request.
pub(super) fn answer(id: &Value, outcome: &Result<Value, RpcError>) -> Vec<u8> {
    line(&match outcome {
        Ok(result) => json!({ "jsonrpc": "2.0", "id": id, "result": result }),
        Err(error) => json!({ "jsonrpc": "2.0", "id": id, "error": error.to_wire() }),
    })
}

/// The line of a request of ours.
pub(super) fn request(id: i64, method: &str, params: &Value) -> Vec<u8> {
    line(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }))
}

/// The line of a notification.
pub(super) fn notification(method: &str, params: &Value) -> Vec<u8> {
    line(&json!({ "jsonrpc": "2.0", "method": method, "params": params }))
}

/// The line of a `session/update`.
pub(super) fn update(session: &str, update: &Value) -> Vec<u8> {
    notification("session/update", &json!({ "sessionId": session, "update": update }))
}

fn line(message: &Value) -> Vec<u8> {
    format!("{message}\n").into_bytes()
}

/// A string parameter, or the error that names it.
pub(super) fn text<'a>(params: &'a Value, name: &str) -> Result<&'a str, RpcError> {
    params
        .get(name)
        .and_then(Value::as_str)
        .ok_or_else(|| RpcError::bad_params(format!("`{name}` must be a string")))
}

/// Reads lines until the input ends, fails, or nobody wants them any more.
pub(super) fn read_lines(mut input: impl BufRead, lines: &mpsc::Sender<Line>) {
    loop {
        let mut bytes = Vec::new();
        let line = match input.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut bytes) {
            Ok(0) | Err(_) => return,
            Ok(_) if bytes.len() as u64 == LONGEST_LINE && !bytes.ends_with(b"\n") => {
                drop(bytes);
                if input.skip_until(b'\n').is_err() {
                    return;
                }
                Line::TooLong
            }
            Ok(_) => Line::Whole(bytes),
        };
        if lines.blocking_send(line).is_err() {
            return;
        }
    }
}

/// Writes each line with one write and a flush, until all senders are gone or the output is.
pub(super) fn write_lines(mut output: impl Write, mut lines: mpsc::Receiver<Vec<u8>>) {
    while let Some(line) = lines.blocking_recv() {
        if output.write_all(&line).and_then(|()| output.flush()).is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::panic, reason = "tests fail by panicking")]
    use super::*;

    fn of(line: &str) -> Incoming {
        understand(&Line::Whole(line.as_bytes().to_vec()))
    }

    fn broken(line: &str) -> (Value, i64) {
        match of(line) {
            Incoming::Broken { id, error } => (id, error.code),
            other => panic!("{line} was understood as {other:?}"),
        }
    }

    #[test]
    fn messages_are_told_apart() {
        let params = Value::Null;
        let request = Incoming::Request { id: json!("1"), method: "m".into(), params: params.clone() };
        assert_eq!(of(r#"{"jsonrpc":"2.0","id":"1","method":"m"}"#), request);
        let request = Incoming::Request { id: Value::Null, method: "m".into(), params: params.clone() };
        assert_eq!(of(r#"{"jsonrpc":"2.0","id":null,"method":"m"}"#), request);
        assert_eq!(
            of(r#"{"jsonrpc":"2.0","method":"m"}"#),
            Incoming::Notification { method: "m".into(), params }
        );
        assert_eq!(
            of(r#"{"jsonrpc":"2.0","id":4,"result":null}"#),
            Incoming::Answer { id: json!(4), outcome: Ok(Value::Null) }
        );
        assert_eq!(of(" \r\n"), Incoming::Nothing);
    }

    #[test]
    fn broken_messages_keep_their_id_where_they_have_one() {
        assert_eq!(broken("{"), (Value::Null, -32700));
        assert_eq!(broken("[]"), (Value::Null, -32600));
        assert_eq!(broken("7"), (Value::Null, -32600));
        assert_eq!(broken("{}"), (Value::Null, -32600));
        assert_eq!(broken(r#"{"jsonrpc":"2.0","id":1.5,"method":"m"}"#), (Value::Null, -32600));
        assert_eq!(broken(r#"{"jsonrpc":"1.0","id":5,"method":"m"}"#), (json!(5), -32600));
        assert_eq!(broken(r#"{"jsonrpc":"2.0","id":5,"method":6}"#), (json!(5), -32600));
        assert_eq!(broken(r#"{"jsonrpc":"2.0","id":5}"#), (json!(5), -32600));
    }

    #[test]
    fn a_line_too_long_costs_one_line() {
        let long = std::io::repeat(b'a').take(LONGEST_LINE + 1).chain(&b"\nnext\nlast"[..]);
        let (sender, mut lines) = mpsc::channel(4);
        read_lines(std::io::BufReader::new(long), &sender);
        drop(sender);
        assert_eq!(lines.blocking_recv(), Some(Line::TooLong));
        assert_eq!(lines.blocking_recv(), Some(Line::Whole(b"next\n".to_vec())));
        assert_eq!(lines.blocking_recv(), Some(Line::Whole(b"last".to_vec())));
        assert_eq!(lines.blocking_recv(), None);
    }
}
