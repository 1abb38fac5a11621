//! What a session was given is there again when it comes back, whoever brings it back.

use std::fs;

use conductor::proto::{CreateSessionRequest, PromptRequest, sessions_client::SessionsClient};
use conductor_tests::{
    harness::{Service, service},
    people::{channel, owner},
};
use serde_json::{Value, json};
use tonic::{Code, Status};

const SECRET: &str = "kept-canary-7f3a9";

/// The requests of a method that the agent got, newest last.
fn requests(service: &Service, method: &str) -> Vec<Value> {
    let received = service.received("fake").into_iter().filter_map(|entry| entry.json());
    received.filter(|line| line["method"] == method).collect()
}

async fn prompt(service: &Service, session: &str) -> Result<(), Status> {
    let mut typed = SessionsClient::new(channel(service).await);
    let request =
        PromptRequest { session_id: session.to_owned(), text: "hello".into(), ..Default::default() };
    let mut events = typed.prompt(owner(service).request(request)).await?.into_inner();
    while events.message().await?.is_some() {}
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_nobody_has_open_is_opened_with_its_secrets() {
    let tools = json!({ "command": "true", "env": { "TOOL_TOKEN": SECRET } });
    let mut service = service(&json!({})).set("mcp.tools", tools).start();
    let servers = json!([{ "name": "tools", "command": "true", "args": [],
        "env": [{ "name": "TOOL_TOKEN", "value": SECRET }] }]);
    let mut typed = SessionsClient::new(channel(&service).await);
    let request = CreateSessionRequest {
        cwd: service.work().to_str().unwrap().to_owned(),
        mcp_servers_json: servers.to_string(),
        ..Default::default()
    };
    let session = typed.create(owner(&service).request(request)).await.unwrap().into_inner().session_id;
    prompt(&service, &session).await.unwrap();
    let kept = service.state().join("kept").join(format!("{session}.json"));
    assert!(kept.exists());
    service.kill9();
    service.start_again();
    prompt(&service, &session).await.unwrap();
    let resumed = requests(&service, "session/resume");
    assert_eq!(resumed.last().unwrap()["params"]["mcpServers"], servers);

    // Without what was kept it says so, and no server is sent a mark.
    service.kill9();
    fs::remove_file(&kept).unwrap();
    service.start_again();
    let refused = prompt(&service, &session).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("hand them over again"), "{refused}");
    let all = service.received("fake");
    assert!(all.iter().filter_map(|entry| entry.text.as_deref()).all(|line| !line.contains("<secret:")));
    // Handed over again, it goes on; closed, it is forgotten.
    let mut editor = service.editor();
    editor.call(
        "session/resume",
        &json!({ "sessionId": session, "cwd": service.work(), "mcpServers": servers }),
    );
    assert!(kept.exists());
    editor.turn(&session, "hello");
    editor.call("session/close", &json!({ "sessionId": session }));
    assert!(!kept.exists());
}

#[test]
fn an_agent_that_dies_and_a_service_that_is_killed_cost_no_secret() {
    // Nobody has to be asked about a server that is in the catalogue.
    let tools = json!({ "command": "true", "env": { "TOOL_TOKEN": SECRET } });
    let mut service = service(&json!({})).set("mcp.tools", tools).start();
    let mut editor = service.editor();
    let servers = json!([{ "name": "tools", "command": "true", "args": [],
        "env": [{ "name": "TOOL_TOKEN", "value": SECRET }] }]);
    let opened = editor.call("session/new", &json!({ "cwd": service.work(), "mcpServers": servers }));
    let session = opened["sessionId"].as_str().unwrap().to_owned();
    let id = editor.prompt_do(&session, &json!([{ "exit": 1 }]));
    editor.error_of(&id);
    editor.turn(&session, "hello");
    assert_eq!(requests(&service, "session/resume").last().unwrap()["params"]["mcpServers"], servers);
    let before = requests(&service, "session/resume").len();
    // The bridge opens the session again by itself.
    service.kill9();
    service.start_again();
    editor.turn(&session, "hello again");
    let resumed = requests(&service, "session/resume");
    assert!(resumed.len() > before);
    assert_eq!(resumed.last().unwrap()["params"]["mcpServers"], servers);
    // What the record has in its place is not taken for it.
    let marked = json!([{ "name": "tools", "command": "true", "args": [],
        "env": [{ "name": "TOOL_TOKEN", "value": "<secret:mcp-env:0123abcd>" }] }]);
    let error = editor.call_error("session/new", &json!({ "cwd": service.work(), "mcpServers": marked }));
    assert!(error["message"].as_str().unwrap().contains("hand over the secret itself"), "{error}");
}
