//! The loop that owns all state of the demo agent.
//!
//! Four things can wake it: stdout is gone, a turn registers a request to the client, a turn ends, the client
//! says something. It waits for nothing else except room in the outbox for its own answers, so a turn that
//! waits for the client never keeps it from reading.

use std::collections::HashMap;
use std::process::ExitCode;
use std::sync::Arc;

use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};
use tokio::task::{Id, JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

use super::options::Settings;
use super::script::{self, Prompt};
use super::store::{Entries, Entry, Store};
use super::turn::{Client, Flow, Offers, Remembered, Stop, Turn, Waiting, unrecorded};
use super::wire::{self, Incoming, Line, Outbox, RpcError};

/// Registrations on their way from turns to the loop. A turn has at most one, and waits if there is no room.
const REGISTRATIONS: usize = 16;

/// An open session.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) cwd: String,
    pub(super) settings: Settings,
    pub(super) title: Option<String>,
    pub(super) remembered: Remembered,
    /// The task that works for it: a turn, or the replay of a load.
    pub(super) task: Option<Id>,
}

/// What a task works on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Work {
    Prompt,
    Load,
}

/// A request that is answered when its task ends.
#[derive(Debug)]
pub(super) struct Running {
    pub(super) id: Value,
    pub(super) session: String,
    pub(super) work: Work,
    pub(super) cancel: CancellationToken,
    /// A close (`false`) or delete (`true`) that waits for the task to end, with its request id.
    pub(super) then: Option<(Value, bool)>,
}

/// How a task ended.
#[derive(Debug)]
pub(super) enum Ending {
    Answer(Result<Value, RpcError>, Option<Remembered>),
    Crash,
}

/// The demo agent.
#[derive(Debug)]
pub(super) struct Agent {
    pub(super) store: Result<Store, String>,
    pub(super) client: Client,
    registrations: mpsc::Receiver<Waiting>,
    /// `None` until `initialize`.
    pub(super) offers: Option<Offers>,
    pub(super) sessions: HashMap<String, Session>,
    pub(super) running: HashMap<Id, Running>,
    pub(super) tasks: JoinSet<Ending>,
    /// Requests of ours that wait for an answer. Bounded by the number of turns.
    waiting: HashMap<i64, oneshot::Sender<Result<Value, RpcError>>>,
}

impl Agent {
    pub(super) fn new(store: Result<Store, String>, out: Outbox) -> Self {
        let (waiting, registrations) = mpsc::channel(REGISTRATIONS);
        Self {
            store,
            client: Client { out, waiting, sent: Arc::default() },
            registrations,
            offers: None,
            sessions: HashMap::new(),
            running: HashMap::new(),
            tasks: JoinSet::new(),
            waiting: HashMap::new(),
        }
    }

    /// Serves until stdin ends, stdout is gone, or a script crashes; says which by the exit code.
    pub(super) async fn serve(mut self, mut lines: mpsc::Receiver<Line>) -> ExitCode {
        let code = loop {
            // In this order, because a request is registered before it leaves: its answer, which comes in by a
            // line, must find it registered.
            tokio::select! {
                biased;
                () = self.client.out.closed() => break ExitCode::FAILURE,
                Some(waiting) = self.registrations.recv() => {
                    self.waiting.insert(waiting.id, waiting.reply);
                }
                Some(ended) = self.tasks.join_next_with_id() => {
                    if let Some(code) = self.ended(ended).await {
                        break code;
                    }
                }
                line = lines.recv() => match line {
                    Some(line) => self.receive(&line).await,
                    None => break ExitCode::SUCCESS,
                },
            }
        };
        self.tasks.shutdown().await;
        code
    }

    async fn receive(&mut self, line: &Line) {
        match wire::understand(line) {
            Incoming::Request { id, method, params } => {
                let used = |running: &Running| {
                    running.id == id || running.then.as_ref().is_some_and(|(then, _)| *then == id)
                };
                if self.running.values().any(used) {
                    let message = "this `id` belongs to a request that is still running; use another";
                    self.answer(&id, &Err(RpcError::invalid_request(message))).await;
                } else {
                    self.request(id, &method, &params).await;
                }
            }
            Incoming::Notification { method, params } => self.notified(&method, &params),
            Incoming::Answer { id, outcome } => {
                // Unknown ids are late answers to requests that were given up.
                if let Some(reply) = id.as_i64().and_then(|id| self.waiting.remove(&id)) {
                    // A turn that no longer waits was cancelled a moment ago.
                    let _ = reply.send(outcome);
                }
            }
            Incoming::Broken { id, error } => self.answer(&id, &Err(error)).await,
            Incoming::Nothing => {}
        }
    }

    fn notified(&mut self, method: &str, params: &Value) {
        let running = match method {
            "session/cancel" => {
                let session = params.get("sessionId").and_then(Value::as_str);
                self.running.values().find(|r| r.work == Work::Prompt && Some(r.session.as_str()) == session)
            }
            "$/cancel_request" => {
                let id = params.get("requestId");
                self.running.values().find(|r| Some(&r.id) == id)
            }
            // Notifications that nobody knows are ignored, as ACP asks.
            _ => None,
        };
        if let Some(running) = running {
            running.cancel.cancel();
        }
    }

    /// Answers the request whose task has ended, and whatever waited behind it.
    async fn ended(&mut self, ended: Result<(Id, Ending), JoinError>) -> Option<ExitCode> {
        let (task, ending) = match ended {
            Ok(ended) => ended,
            Err(error) => {
                let message = format!("the script broke off ({error}); this is a fault of the demo agent");
                (error.id(), Ending::Answer(Err(RpcError::internal(message)), None))
            }
        };
        // What the task waited for has been given up with it.
        self.waiting.retain(|_, reply| !reply.is_closed());
        let running = self.running.remove(&task)?;
        let Ending::Answer(outcome, remembered) = ending else { return Some(ExitCode::from(3)) };
        if let Some(session) = self.sessions.get_mut(&running.session).filter(|s| s.task == Some(task)) {
            session.task = None;
            if let Some(remembered) = remembered {
                session.remembered = remembered;
            }
            if running.work == Work::Load && outcome.is_err() {
                self.sessions.remove(&running.session);
            }
        }
        self.answer(&running.id, &outcome).await;
        if running.work == Work::Load && outcome.is_ok() {
            self.update(&running.session, &script::commands_update()).await;
        }
        if let Some((id, delete)) = running.then {
            let outcome = if delete { self.delete(&running.session) } else { Ok(json!({})) };
            self.answer(&id, &outcome).await;
        }
        None
    }

    pub(super) async fn answer(&self, id: &Value, outcome: &Result<Value, RpcError>) {
        // Nobody to tell if stdout is gone; the loop notices by itself.
        let _ = self.client.out.send(wire::answer(id, outcome)).await;
    }

    pub(super) async fn update(&self, session: &str, update: &Value) {
        let _ = self.client.out.send(wire::update(session, update)).await;
    }
}

/// Plays one turn from the prompt to its stop reason.
pub(super) async fn turn(
    mut turn: Turn,
    prompt: Prompt,
    new_title: Option<String>,
    cancel: CancellationToken,
) -> Ending {
    let outcome = tokio::select! {
        biased;
        () = cancel.cancelled() => Err(Stop::Cancelled),
        outcome = begin_and_play(&mut turn, &prompt, new_title) => outcome,
    };
    let outcome = match turn.tidy().await {
        Ok(()) => outcome,
        Err(stop) => outcome.and(Err(stop)),
    };
    let stopped = |reason: &str| Ok(json!({ "stopReason": reason }));
    let answer = match outcome {
        Ok(()) => stopped("end_turn"),
        Err(Stop::Refusal) => stopped("refusal"),
        Err(Stop::Cancelled) => stopped("cancelled"),
        Err(Stop::Error(error)) => Err(error),
        Err(Stop::Gone) => Err(RpcError::internal("stdout is gone")),
        Err(Stop::Crash) => return Ending::Crash,
    };
    Ending::Answer(answer, Some(turn.remembered))
}

async fn begin_and_play(turn: &mut Turn, prompt: &Prompt, new_title: Option<String>) -> Flow {
    if let Some(title) = new_title {
        turn.update(&json!({
            "sessionUpdate": "session_info_update",
            "title": title,
            "updatedAt": super::store::iso8601(super::store::now_micros()),
        }))
        .await?;
    }
    script::play(turn, prompt).await
}

/// Records what the user said. It is not sent: the client knows it, until it loads the session again.
pub(super) fn record_prompt(
    turn: &mut Turn,
    prompt: &Prompt,
    new_title: Option<&String>,
) -> Result<(), RpcError> {
    let message = uuid::Uuid::now_v7().to_string();
    let mut record = || {
        if let Some(title) = new_title {
            turn.record.append(&Entry::Title { title: title.clone() })?;
        }
        for block in &prompt.blocks {
            let chunk =
                json!({ "sessionUpdate": "user_message_chunk", "content": block, "messageId": message });
            turn.record.append_update(&chunk)?;
        }
        Ok(())
    };
    record().map_err(|error| match unrecorded(&error) {
        Stop::Error(error) => error,
        _ => RpcError::internal(error.to_string()),
    })
}

/// Replays a session's history, then answers with its options.
pub(super) async fn replay(
    session: String,
    entries: Entries<std::fs::File>,
    answer: Value,
    out: Outbox,
    cancel: CancellationToken,
) -> Ending {
    let answer = tokio::select! {
        biased;
        () = cancel.cancelled() => Err(RpcError::cancelled()),
        outcome = replay_all(&session, entries, &out) => outcome.map(|()| answer),
    };
    Ending::Answer(answer, None)
}

async fn replay_all(session: &str, entries: Entries<std::fs::File>, out: &Outbox) -> Result<(), RpcError> {
    let gone = |_| RpcError::internal("stdout is gone");
    // In the order shown; at the end it holds the calls that a killed process left open.
    let mut open_calls: Vec<Value> = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|error| RpcError::internal(format!("cannot read the session: {error}")))?;
        let update = match entry {
            Entry::Update { mut update } => {
                forget_terminals(&mut update);
                let call = &update["toolCallId"];
                if matches!(update["status"].as_str(), Some("completed" | "failed")) {
                    open_calls.retain(|open| open != call);
                } else if update["sessionUpdate"] == "tool_call" {
                    open_calls.push(call.clone());
                }
                update
            }
            Entry::Title { title } => json!({ "sessionUpdate": "session_info_update", "title": title }),
            Entry::Place { .. } | Entry::Settings(_) => continue,
        };
        out.send(wire::update(session, &update)).await.map_err(gone)?;
    }
    for call in open_calls {
        let update = json!({ "sessionUpdate": "tool_call_update", "toolCallId": call, "status": "failed" });
        out.send(wire::update(session, &update)).await.map_err(gone)?;
    }
    Ok(())
}

/// Takes terminals out of a tool call: their ids meant something to an earlier client only.
fn forget_terminals(update: &mut Value) {
    if update.get("toolCallId").is_some()
        && let Some(content) = update.get_mut("content").and_then(Value::as_array_mut)
    {
        content.retain(|item| item["type"] != "terminal");
    }
}
