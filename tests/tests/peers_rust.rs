//! Peers made with the official Rust SDK, on both sides of the conductor.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use agent_client_protocol::{
    AcpAgent, AcpAgentConfig, Agent, Client, Result, on_receive_notification, on_receive_request,
    schema::ProtocolVersion,
    v1::{
        ConnectionTo,
        schema::{
            CancelNotification, ClientCapabilities, CloseSessionRequest, ContentBlock,
            FileSystemCapabilities, Implementation, InitializeRequest, LoadSessionRequest, NewSessionRequest,
            PermissionOptionKind, PromptRequest, RequestPermissionOutcome, RequestPermissionRequest,
            RequestPermissionResponse, SelectedPermissionOutcome, SessionId, SessionNotification,
            SessionUpdate, SetSessionConfigOptionRequest, TextContent,
        },
    },
};
use conductor_tests::{
    harness::{Service, program, service},
    peers::{check_report, demo, drive_agent},
};
use serde_json::{Value, json};
use tokio::sync::Notify;

#[test]
fn an_agent_of_the_rust_sdk_works_behind_us() {
    drive_agent(service(&json!({})).peer(&program("sdk-agent"), &[]));
}

#[tokio::test]
async fn a_client_of_the_rust_sdk_works_against_us() {
    let service = demo();
    let seen = Seen::default();
    let (updates, permissions, talk) = (seen.clone(), seen.clone(), seen.clone());
    let cwd = service.work();
    let report = Client
        .v1()
        .on_receive_notification(
            async move |notification: SessionNotification, _connection: ConnectionTo<Agent>| {
                updates.update(&notification.update);
                Ok(())
            },
            on_receive_notification!(),
        )
        .on_receive_request(
            async move |request: RequestPermissionRequest, responder, _connection: ConnectionTo<Agent>| {
                responder.respond(permissions.permission(&request))
            },
            on_receive_request!(),
        )
        .connect_with(bridge(&service), async move |agent: ConnectionTo<Agent>| talk.talk(&agent, cwd).await)
        .await
        .unwrap();
    check_report(&report);
}

/// The bridge, as the SDK starts its agents.
fn bridge(service: &Service) -> AcpAgent {
    let command = service.command(&["connect"]);
    let text = |text: &std::ffi::OsStr| text.to_str().unwrap().to_owned();
    let env = command.get_envs().filter_map(|(name, value)| Some((text(name), text(value?))));
    AcpAgent::new(AcpAgentConfig::new(command.get_program()).arg("connect").envs(env))
}

/// What the client has seen; its handlers share it.
#[derive(Clone, Default)]
struct Seen {
    agent_text: Arc<Mutex<String>>,
    user_text: Arc<Mutex<Vec<String>>>,
    offered: Arc<Mutex<Vec<PermissionOptionKind>>>,
    chunk: Arc<Notify>,
}

impl Seen {
    fn update(&self, update: &SessionUpdate) {
        match update {
            SessionUpdate::AgentMessageChunk(chunk) => {
                self.agent_text.lock().unwrap().push_str(text_of(&chunk.content));
                self.chunk.notify_one();
            }
            SessionUpdate::UserMessageChunk(chunk) => {
                self.user_text.lock().unwrap().push(text_of(&chunk.content).to_owned());
            }
            _ => {}
        }
    }

    fn permission(&self, request: &RequestPermissionRequest) -> RequestPermissionResponse {
        *self.offered.lock().unwrap() = request.options.iter().map(|option| option.kind).collect();
        let chosen = request.options.iter().find(|option| option.kind == PermissionOptionKind::AllowOnce);
        let chosen = SelectedPermissionOutcome::new(chosen.unwrap().option_id.clone());
        RequestPermissionResponse::new(RequestPermissionOutcome::Selected(chosen))
    }

    async fn turn(&self, agent: &ConnectionTo<Agent>, session: &SessionId, text: &str) -> Result<Value> {
        self.agent_text.lock().unwrap().clear();
        let answer = agent.send_request(prompt(session, text)).block_task().await?;
        Ok(json!({ "stopReason": answer.stop_reason, "text": *self.agent_text.lock().unwrap() }))
    }

    async fn talk(&self, agent: &ConnectionTo<Agent>, cwd: PathBuf) -> Result<Value> {
        let files = FileSystemCapabilities::new().read_text_file(true).write_text_file(true);
        let hello = InitializeRequest::new(ProtocolVersion::V1)
            .client_capabilities(ClientCapabilities::new().fs(files))
            .client_info(Implementation::new("rust-client", "1"));
        let hello = agent.send_request(hello).block_task().await?;
        let opened = agent.send_request(NewSessionRequest::new(&cwd)).block_task().await?;
        let session = opened.session_id;

        let stream = self.turn(agent, &session, "stream 5").await?;
        let ask = self.turn(agent, &session, "ask").await?;
        let slow = self.cancelled(agent, &session).await?;

        let choice = SetSessionConfigOptionRequest::new(session.clone(), "model", "demo-large");
        let options = agent.send_request(choice).block_task().await?.config_options;
        let options = serde_json::to_value(options).unwrap();
        let model = options.as_array().unwrap().iter().find(|option| option["id"] == "model");

        agent.send_request(CloseSessionRequest::new(session.clone())).block_task().await?;
        self.user_text.lock().unwrap().clear();
        let load = LoadSessionRequest::new(session.clone(), Path::new(&cwd));
        agent.send_request(load).block_task().await?;
        let replayed = self.user_text.lock().unwrap().clone();
        let after = self.turn(agent, &session, "stream 1").await?;

        Ok(json!({
            "protocolVersion": hello.protocol_version,
            "stream": stream,
            "ask": ask,
            "offered": *self.offered.lock().unwrap(),
            "slow": slow,
            "model": model.unwrap()["currentValue"],
            "replayed": replayed,
            "after": after,
        }))
    }

    /// A turn that is cancelled once it has begun to stream.
    async fn cancelled(&self, agent: &ConnectionTo<Agent>, session: &SessionId) -> Result<Value> {
        // Chunks of earlier turns have left a permit behind; it is taken first.
        self.chunk.notify_one();
        self.chunk.notified().await;
        let request = agent.send_request(prompt(session, "slow 60"));
        self.chunk.notified().await;
        agent.send_notification(CancelNotification::new(session.clone()))?;
        Ok(json!({ "stopReason": request.block_task().await?.stop_reason }))
    }
}

fn prompt(session: &SessionId, text: &str) -> PromptRequest {
    PromptRequest::new(session.clone(), vec![ContentBlock::Text(TextContent::new(text))])
}

fn text_of(content: &ContentBlock) -> &str {
    match content {
        ContentBlock::Text(text) => &text.text,
        _ => "",
    }
}
