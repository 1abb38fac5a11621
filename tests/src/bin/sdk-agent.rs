//! An agent built with the official Rust SDK, to stand behind the conductor.
//! The first word of a prompt says what it does; the agents in `tests/peers`
//! understand the same words.

use std::{collections::HashMap, sync::Arc, time::Duration};

use agent_client_protocol::{
    Agent, Client, Error, Result, Stdio, on_receive_notification, on_receive_request,
    v1::{
        ConnectionTo,
        schema::{
            AgentCapabilities, CancelNotification, ContentBlock, ContentChunk, Implementation,
            InitializeRequest, InitializeResponse, NewSessionRequest, NewSessionResponse, PermissionOption,
            PermissionOptionKind, PromptRequest, PromptResponse, ReadTextFileRequest,
            RequestPermissionOutcome, RequestPermissionRequest, SessionId, SessionNotification,
            SessionUpdate, StopReason, TextContent, ToolCall, ToolCallStatus, ToolCallUpdate,
            ToolCallUpdateFields, ToolKind,
        },
    },
};
use tokio::sync::{Mutex, Notify};

/// What wakes a turn that waits to be cancelled, by session.
type Cancels = Arc<Mutex<HashMap<SessionId, Arc<Notify>>>>;

/// The longest that a turn waits to be cancelled. A test is over long before.
const PATIENCE: Duration = Duration::from_secs(60);

#[tokio::main]
async fn main() -> Result<()> {
    let cancels = Cancels::default();
    let (opened, cancelled) = (Arc::clone(&cancels), Arc::clone(&cancels));
    Agent
        .v1()
        .name("sdk-agent")
        .on_receive_request(
            async |request: InitializeRequest, responder, _connection: ConnectionTo<Client>| {
                responder.respond(
                    InitializeResponse::new(request.protocol_version)
                        .agent_capabilities(AgentCapabilities::new())
                        .agent_info(Implementation::new("sdk-agent", "1")),
                )
            },
            on_receive_request!(),
        )
        .on_receive_request(
            async move |_request: NewSessionRequest, responder, _connection: ConnectionTo<Client>| {
                let session = SessionId::from(uuid::Uuid::now_v7().to_string());
                opened.lock().await.insert(session.clone(), Arc::default());
                responder.respond(NewSessionResponse::new(session))
            },
            on_receive_request!(),
        )
        .on_receive_request(
            async move |request: PromptRequest, responder, connection: ConnectionTo<Client>| {
                let cancel = cancels.lock().await.get(&request.session_id).cloned();
                let Some(cancel) = cancel else {
                    return responder.respond_with_error(Error::invalid_params());
                };
                // The connection is served by one loop; a turn that asks the
                // client something must not hold it.
                let turn = Turn { connection: connection.clone(), session: request.session_id, cancel };
                let text = text_of(&request.prompt);
                connection.spawn(async move {
                    match turn.play(&text).await {
                        Ok(reason) => responder.respond(PromptResponse::new(reason)),
                        Err(error) => responder.respond_with_error(error),
                    }
                })
            },
            on_receive_request!(),
        )
        .on_receive_notification(
            async move |cancel: CancelNotification, _connection: ConnectionTo<Client>| {
                if let Some(waiting) = cancelled.lock().await.get(&cancel.session_id) {
                    waiting.notify_waiters();
                }
                Ok(())
            },
            on_receive_notification!(),
        )
        .connect_to(Stdio::new())
        .await
}

fn text_of(prompt: &[ContentBlock]) -> String {
    let texts = prompt.iter().filter_map(|block| match block {
        ContentBlock::Text(text) => Some(text.text.as_str()),
        _ => None,
    });
    texts.collect()
}

/// One prompt being worked on.
struct Turn {
    connection: ConnectionTo<Client>,
    session: SessionId,
    cancel: Arc<Notify>,
}

impl Turn {
    async fn play(&self, text: &str) -> Result<StopReason> {
        let (word, rest) = text.split_once(' ').unwrap_or((text, ""));
        match word {
            "stream" => {
                for number in 0..rest.parse().unwrap_or(10) {
                    self.say(&format!("chunk {number}"))?;
                }
            }
            "ask" => self.ask().await?,
            "read" => {
                let request = ReadTextFileRequest::new(self.session.clone(), rest);
                let answer = self.connection.send_request(request).block_task().await?;
                self.say(&answer.content)?;
            }
            "wait" => {
                // Whoever hears "waiting" may cancel at once, so listen first.
                let cancelled = self.cancel.notified();
                tokio::pin!(cancelled);
                cancelled.as_mut().enable();
                self.say("waiting")?;
                return Ok(match tokio::time::timeout(PATIENCE, cancelled).await {
                    Ok(()) => StopReason::Cancelled,
                    Err(_) => StopReason::EndTurn,
                });
            }
            _ => self.say(&format!("echo: {text}"))?,
        }
        Ok(StopReason::EndTurn)
    }

    async fn ask(&self) -> Result<()> {
        let call = "call-1";
        self.update(SessionUpdate::ToolCall(ToolCall::new(call, "Touch a file").kind(ToolKind::Edit)))?;
        let request = RequestPermissionRequest::new(
            self.session.clone(),
            ToolCallUpdate::new(call, ToolCallUpdateFields::new()),
            vec![
                PermissionOption::new("yes", "Yes", PermissionOptionKind::AllowOnce),
                PermissionOption::new("no", "No", PermissionOptionKind::RejectOnce),
            ],
        );
        let answer = self.connection.send_request(request).block_task().await?;
        let (status, said) = match answer.outcome {
            RequestPermissionOutcome::Selected(selected) => {
                (ToolCallStatus::Completed, format!("selected {}", selected.option_id))
            }
            _ => (ToolCallStatus::Failed, "cancelled".to_owned()),
        };
        let fields = ToolCallUpdateFields::new().status(status);
        self.update(SessionUpdate::ToolCallUpdate(ToolCallUpdate::new(call, fields)))?;
        self.say(&said)
    }

    fn say(&self, text: &str) -> Result<()> {
        let chunk = ContentChunk::new(ContentBlock::Text(TextContent::new(text)));
        self.update(SessionUpdate::AgentMessageChunk(chunk))
    }

    fn update(&self, update: SessionUpdate) -> Result<()> {
        self.connection.send_notification(SessionNotification::new(self.session.clone(), update))
    }
}
