//! What a running script may do: speak, think, show tool calls, and ask the client for things.
//!
//! A turn is a task of its own, so that turns of different sessions run side by side while the agent's loop
//! keeps reading. It is stopped by dropping the script wherever it waits; [`Turn::tidy`] then closes what the
//! script had left open. Every update is recorded and sent in one step without a wait between, so that the
//! record and the client never disagree.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};

use super::options::Settings;
use super::store::Record;
use super::wire::{self, Outbox, RpcError};

/// Why a script ended early. A script that runs to its end ends the turn with `end_turn`.
#[derive(Debug)]
pub(super) enum Stop {
    Cancelled,
    Refusal,
    /// The process ends in mid-turn.
    Crash,
    /// The prompt is answered with an error.
    Error(RpcError),
    /// Stdout is gone; the agent is ending.
    Gone,
}

/// How a script goes on.
pub(super) type Flow<T = ()> = Result<T, Stop>;

/// What the client offers, out of `clientCapabilities`. What is missing counts as not offered.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Offers {
    pub(super) read: bool,
    pub(super) write: bool,
    pub(super) terminal: bool,
    pub(super) form: bool,
}

impl Offers {
    pub(super) fn from_capabilities(capabilities: &Value) -> Self {
        Self {
            read: capabilities["fs"]["readTextFile"] == true,
            write: capabilities["fs"]["writeTextFile"] == true,
            terminal: capabilities["terminal"] == true,
            form: capabilities["elicitation"]["form"].is_object(),
        }
    }
}

/// A request of ours that waits for its answer; sent to the agent's loop before the request leaves.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) id: i64,
    pub(super) reply: oneshot::Sender<Result<Value, RpcError>>,
}

/// The way to the client.
#[derive(Debug, Clone)]
pub(super) struct Client {
    pub(super) out: Outbox,
    pub(super) waiting: mpsc::Sender<Waiting>,
    /// Requests sent so far, by all turns together.
    pub(super) sent: Arc<AtomicI64>,
}

impl Client {
    /// Ids of ours are integers of all kinds (small, negative, wider than 32 bits), because whoever stands between us
    /// and the editor has to bring each of them back unharmed.
    fn next_id(&self) -> i64 {
        let n = self.sent.fetch_add(1, Ordering::Relaxed);
        match n % 3 {
            1 => -n,
            2 => (1 << 40) + n,
            _ => n,
        }
    }
}

/// Answers that said "always", by tool kind: `edit` and `execute`.
#[derive(Debug, Clone, Default)]
pub(super) struct Remembered {
    pub(super) edit: Option<bool>,
    pub(super) execute: Option<bool>,
}

impl Remembered {
    pub(super) fn of(&mut self, kind: &str) -> &mut Option<bool> {
        if kind == "edit" { &mut self.edit } else { &mut self.execute }
    }
}

/// One running turn.
#[derive(Debug)]
pub(super) struct Turn {
    pub(super) session: String,
    pub(super) cwd: String,
    pub(super) settings: Settings,
    pub(super) offers: Offers,
    pub(super) remembered: Remembered,
    pub(super) client: Client,
    pub(super) record: Record,
    /// The message that chunks of this turn belong to.
    pub(super) message: String,
    /// The tool call that has been shown and has not ended.
    pub(super) open_tool: Option<String>,
    /// The client's terminal that has not been released.
    pub(super) open_terminal: Option<String>,
    /// Our request that has not been answered.
    pub(super) unanswered: Option<i64>,
}

impl Turn {
    /// Records an update if it is part of the history, and sends it.
    pub(super) async fn update(&mut self, update: &Value) -> Flow {
        let line = wire::update(&self.session, update);
        let place = self.client.out.reserve().await.map_err(|_| Stop::Gone)?;
        if is_history(update) {
            self.record.append_update(update).map_err(|error| unrecorded(&error))?;
        }
        place.send(line);
        Ok(())
    }

    /// Says something, one chunk per line of text.
    pub(super) async fn say(&mut self, text: &str) -> Flow {
        for line in text.split_inclusive('\n') {
            self.chunk("agent_message_chunk", line).await?;
        }
        Ok(())
    }

    /// Thinks something aloud, in one chunk.
    pub(super) async fn think(&mut self, text: &str) -> Flow {
        self.chunk("agent_thought_chunk", text).await
    }

    /// Sends one chunk.
    pub(super) async fn chunk(&mut self, kind: &str, text: &str) -> Flow {
        let content = json!({ "type": "text", "text": text });
        self.update(&json!({ "sessionUpdate": kind, "content": content, "messageId": self.message })).await
    }

    /// Shows a new tool call with status `pending`, and returns its id.
    pub(super) async fn open_tool(&mut self, title: &str, kind: &str, mut more: Value) -> Flow<String> {
        let id = format!("call-{}", uuid::Uuid::now_v7().simple());
        more["sessionUpdate"] = json!("tool_call");
        more["toolCallId"] = json!(id);
        more["title"] = json!(title);
        more["kind"] = json!(kind);
        more["name"] = json!(match kind {
            "read" => "read_file",
            "edit" => "write_file",
            "execute" => "run_command",
            _ => "pretend",
        });
        more["status"] = json!("pending");
        self.update(&more).await?;
        self.open_tool = Some(id.clone());
        Ok(id)
    }

    /// Changes the open tool call; `completed` and `failed` end it.
    pub(super) async fn tool(&mut self, status: &str, mut more: Value) -> Flow {
        let Some(id) = self.open_tool.clone() else { return Ok(()) };
        more["sessionUpdate"] = json!("tool_call_update");
        more["toolCallId"] = json!(id);
        more["status"] = json!(status);
        self.update(&more).await?;
        if status == "completed" || status == "failed" {
            self.open_tool = None;
        }
        Ok(())
    }

    /// Sends a request to the client and waits for its answer.
    pub(super) async fn ask(&mut self, method: &str, params: &Value) -> Flow<Result<Value, RpcError>> {
        let id = self.client.next_id();
        let (reply, answer) = oneshot::channel();
        // Known to the loop before it leaves, so that no answer can be faster than its registration.
        self.client.waiting.send(Waiting { id, reply }).await.map_err(|_| Stop::Gone)?;
        let place = self.client.out.reserve().await.map_err(|_| Stop::Gone)?;
        place.send(wire::request(id, method, params));
        self.unanswered = Some(id);
        let answer = answer.await.map_err(|_| Stop::Gone)?;
        self.unanswered = None;
        Ok(answer)
    }

    /// Closes what the script left open, and gives up what it waited for.
    pub(super) async fn tidy(&mut self) -> Flow {
        if let Some(id) = self.unanswered.take() {
            let line = wire::notification("$/cancel_request", &json!({ "requestId": id }));
            self.client.out.send(line).await.map_err(|_| Stop::Gone)?;
        }
        self.tool("failed", json!({})).await?;
        if let Some(terminal) = self.open_terminal.take() {
            // Releasing also kills. Nobody waits for the answer; an unexpected one is ignored.
            let params = json!({ "sessionId": self.session, "terminalId": terminal });
            let line = wire::request(self.client.next_id(), "terminal/release", &params);
            self.client.out.send(line).await.map_err(|_| Stop::Gone)?;
        }
        Ok(())
    }
}

/// A turn that cannot be recorded must not go on as if it were.
pub(super) fn unrecorded(error: &std::io::Error) -> Stop {
    Stop::Error(RpcError::internal(format!(
        "cannot record the session: {error}; see that the state directory beneath HOME is writable"
    )))
}

/// Whether `session/load` has to replay this update.
fn is_history(update: &Value) -> bool {
    matches!(
        update["sessionUpdate"].as_str(),
        Some(
            "user_message_chunk"
                | "agent_message_chunk"
                | "agent_thought_chunk"
                | "tool_call"
                | "tool_call_update"
                | "plan"
        )
    )
}
