//! What a service that has forgotten us must be told again: the editor's
//! handshake, and the sessions it has open. No I/O.

use bytes::{Bytes, BytesMut};
use serde_json::{Value, json};

use crate::{
    acp::{self, EditorCapabilities},
    frame::{Frame, Kind, Method, splice},
};

/// Sessions remembered; more than the service lets an editor have.
const MOST: usize = 4096;

/// How ids of our own begin.
const OURS: &str = "conductor-connect:";

#[derive(Debug)]
struct Session {
    id: String,
    /// `cwd` and what else it was opened with.
    params: Value,
    /// Why it could not be opened again.
    refused: Option<Value>,
}

/// What the editor has set up.
#[derive(Debug, Default)]
pub(super) struct Recall {
    initialize: Option<Frame>,
    notices: bool,
    /// Requests that open a session, or end one, without an answer yet.
    asked: Vec<Frame>,
    sessions: Vec<Session>,
    /// Our own requests without an answer yet: the raw id, and the session.
    waiting: Vec<(String, Option<String>)>,
}

impl Recall {
    /// Looks at a request of the editor.
    pub(super) fn asked(&mut self, frame: &Frame) {
        match frame.peek().method {
            Method::Initialize if self.initialize.is_none() => {
                let params: Value = frame.decode(frame.peek().params).unwrap_or_default();
                self.notices = EditorCapabilities::parse(&params).notices;
                self.initialize = Some(frame.detached());
            }
            Method::SessionNew
            | Method::SessionLoad
            | Method::SessionResume
            | Method::SessionClose
            | Method::SessionDelete => {
                if self.asked.len() >= MOST {
                    self.asked.remove(0);
                }
                self.asked.push(frame.detached());
            }
            _ => {}
        }
    }

    /// Looks at an answer of the service.
    pub(super) fn answered(&mut self, answer: &Frame) {
        let id = answer.get(answer.peek().id);
        let Some(at) = self.asked.iter().position(|asked| asked.get(asked.peek().id) == id) else { return };
        let asked = self.asked.remove(at);
        if answer.peek().kind != Kind::Result {
            return;
        }
        let mut params: Value = asked.decode(asked.peek().params).unwrap_or_default();
        let named = match asked.peek().method {
            Method::SessionNew => answer.decode(answer.peek().outcome).unwrap_or_default(),
            _ => params.clone(),
        };
        let Some(id) = named["sessionId"].as_str().map(str::to_owned) else { return };
        self.sessions.retain(|session| session.id != id);
        let ends = matches!(asked.peek().method, Method::SessionClose | Method::SessionDelete);
        if !ends && self.sessions.len() < MOST {
            params["sessionId"] = id.clone().into();
            self.sessions.push(Session { id, params, refused: None });
        }
    }

    /// What to say first on a new connection. The answers are ours, but for
    /// that to an `initialize` which the editor still waits for.
    pub(super) fn again(&mut self, waits_for: impl Fn(&[u8]) -> bool) -> Bytes {
        self.waiting.clear();
        self.asked.clear();
        let Some(initialize) = &self.initialize else { return Bytes::new() };
        let mut out = BytesMut::new();
        let id = initialize.peek().id;
        if waits_for(initialize.get(id)) {
            out.extend_from_slice(initialize.bytes());
        } else {
            let own = format!("\"{OURS}0\"");
            splice(&mut out, initialize.bytes(), [(id, own.as_bytes())]);
            self.waiting.push((own, None));
        }
        if out.last() != Some(&b'\n') {
            out.extend_from_slice(b"\n");
        }
        for (number, session) in self.sessions.iter_mut().enumerate() {
            session.refused = None;
            let own = format!("\"{OURS}{}\"", number + 1);
            out.extend_from_slice(&acp::call(Some(own.clone()), "session/resume", &session.params));
            self.waiting.push((own, Some(session.id.clone())));
        }
        out.freeze()
    }

    /// The id of the editor's handshake.
    pub(super) fn initialize_id(&self) -> Option<&[u8]> {
        self.initialize.as_ref().map(|frame| frame.get(frame.peek().id))
    }

    /// Whether the service has not answered all of that.
    pub(super) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Takes our own answers out of what the service says. Notices go into their
    /// place where the editor takes them.
    pub(super) fn swallow(&mut self, block: &Bytes) -> Bytes {
        let mut out = BytesMut::with_capacity(block.len());
        for line in block.split_inclusive(|byte| *byte == b'\n') {
            let own = Frame::parse(block.slice_ref(line.strip_suffix(b"\n").unwrap_or(line)))
                .ok()
                .filter(|frame| matches!(frame.peek().kind, Kind::Result | Kind::Error));
            let at = own.as_ref().and_then(|frame| {
                let id = frame.get(frame.peek().id);
                self.waiting.iter().position(|(own, _)| own.as_bytes() == id)
            });
            match (own, at) {
                (Some(frame), Some(at)) => {
                    let (_, session) = self.waiting.remove(at);
                    if let Some(id) = session {
                        out.extend_from_slice(&self.reopened(&id, &frame));
                    }
                }
                _ => out.extend_from_slice(line),
            }
        }
        out.freeze()
    }

    fn reopened(&mut self, id: &str, answer: &Frame) -> Bytes {
        let error: Option<Value> =
            (answer.peek().kind == Kind::Error).then(|| answer.decode(answer.peek().outcome)).flatten();
        let (severity, title, text) = match &error {
            None => ("info", "Reconnected", "The conductor was restarted. The session goes on.".to_owned()),
            Some(error) => {
                let why = error["message"].as_str().unwrap_or_default();
                let text = format!("The conductor was restarted and could not reopen the session: {why}");
                ("error", "Session lost", text)
            }
        };
        if let Some(session) = self.sessions.iter_mut().find(|session| session.id == id) {
            session.refused = error;
        }
        if self.notices { acp::notice(id, severity, title, &text) } else { Bytes::new() }
    }

    /// Takes out of what the editor says what concerns sessions that could not
    /// be opened again; gives the rest, and the answers.
    pub(super) fn refuse(&self, block: &Bytes) -> Option<(Bytes, Bytes)> {
        let lost = || self.sessions.iter().filter(|session| session.refused.is_some());
        lost().next()?;
        let (mut rest, mut answers) = (BytesMut::new(), BytesMut::new());
        for line in block.split_inclusive(|byte| *byte == b'\n') {
            let frame = Frame::parse(block.slice_ref(line.strip_suffix(b"\n").unwrap_or(line))).ok();
            // Opening it anew is always worth a try.
            let frame = frame.filter(|frame| {
                let method = frame.peek().method;
                !matches!(
                    method,
                    Method::SessionLoad
                        | Method::SessionResume
                        | Method::SessionClose
                        | Method::SessionDelete
                )
            });
            let found = frame.as_ref().and_then(|frame| {
                let named: String = frame.decode(frame.peek().session)?;
                lost().find(|session| session.id == named)
            });
            match (frame, found) {
                (Some(frame), Some(session)) => {
                    if frame.peek().kind == Kind::Request {
                        // As it came: it may be a number that a `Value` cannot hold.
                        let error = json!(session.refused).to_string();
                        answers.extend_from_slice(b"{\"jsonrpc\":\"2.0\",\"id\":");
                        answers.extend_from_slice(frame.get(frame.peek().id));
                        answers.extend_from_slice(format!(",\"error\":{error}}}\n").as_bytes());
                    }
                }
                _ => rest.extend_from_slice(line),
            }
        }
        Some((rest.freeze(), answers.freeze()))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    fn frame(text: &str) -> Frame {
        Frame::parse(Bytes::copy_from_slice(text.as_bytes())).unwrap()
    }

    fn recall() -> Recall {
        let mut recall = Recall::default();
        recall.asked(&frame(
            r#"{"id":0,"method":"initialize","params":{"clientCapabilities":{"session":{"notices":{}}}}}"#,
        ));
        recall.asked(&frame(r#"{"id":1,"method":"session/new","params":{"cwd":"/w","mcpServers":[]}}"#));
        recall.answered(&frame(r#"{"id":1,"result":{"sessionId":"s"}}"#));
        recall.asked(&frame(r#"{"id":2,"method":"session/load","params":{"sessionId":"t","cwd":"/v"}}"#));
        recall.answered(&frame(r#"{"id":2,"result":{}}"#));
        recall.asked(&frame(r#"{"id":3,"method":"session/close","params":{"sessionId":"t"}}"#));
        recall.answered(&frame(r#"{"id":3,"result":{}}"#));
        recall
    }

    #[test]
    fn handshake_and_open_sessions_are_said_again_under_ids_of_ours() {
        let mut recall = recall();
        let again = recall.again(|_| false);
        let lines: Vec<Value> =
            again.split(|b| *b == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect();
        assert_eq!(lines.len(), 2, "the closed session is not reopened: {lines:?}");
        assert_eq!(
            (&lines[0]["method"], &lines[0]["id"]),
            (&json!("initialize"), &json!("conductor-connect:0"))
        );
        assert_eq!(lines[1]["method"], "session/resume");
        assert_eq!(lines[1]["params"], json!({ "sessionId": "s", "cwd": "/w", "mcpServers": [] }));
        assert!(recall.is_waiting());
        let said = Bytes::from_static(
            b"{\"id\":\"conductor-connect:0\",\"result\":{}}\n{\"method\":\"x\"}\n{\"id\":\"conductor-connect:1\",\"result\":{}}\n",
        );
        let passed = String::from_utf8(recall.swallow(&said).to_vec()).unwrap();
        assert!(passed.starts_with("{\"method\":\"x\"}\n") && passed.contains("Reconnected"), "{passed}");
        assert!(!recall.is_waiting());
        assert!(recall.refuse(&"{\"id\":9,\"method\":\"session/prompt\"}\n".into()).is_none());
    }

    #[test]
    fn an_initialize_without_an_answer_stays_the_editors_own() {
        let mut recall = recall();
        let again = recall.again(|id| id == b"0");
        assert!(again.starts_with(b"{\"id\":0,\"method\":\"initialize\""), "{again:?}");
    }

    #[test]
    fn a_session_that_is_lost_is_refused_with_the_reason() {
        let mut recall = recall();
        recall.again(|_| false);
        recall.swallow(&Bytes::from_static(
            b"{\"id\":\"conductor-connect:1\",\"error\":{\"code\":-32002,\"message\":\"gone\"}}\n",
        ));
        let said = Bytes::from_static(
            b"{\"id\":36893488147419103232,\"method\":\"session/prompt\",\"params\":{\"sessionId\":\"s\"}}\n{\"id\":5,\"method\":\"session/load\",\"params\":{\"sessionId\":\"s\"}}\n",
        );
        let (rest, answers) = recall.refuse(&said).unwrap();
        assert!(rest.starts_with(b"{\"id\":5"), "{rest:?}");
        let answer: Value = serde_json::from_slice(&answers).unwrap();
        assert_eq!(answer["error"]["message"], "gone");
        let id = b"{\"jsonrpc\":\"2.0\",\"id\":36893488147419103232,";
        assert!(answers.starts_with(id), "as it came: {answers:?}");
        recall.asked(&frame(r#"{"id":5,"method":"session/load","params":{"sessionId":"s","cwd":"/w"}}"#));
        recall.answered(&frame(r#"{"id":5,"result":{}}"#));
        assert!(recall.refuse(&said).is_none(), "it was opened again");
    }
}
