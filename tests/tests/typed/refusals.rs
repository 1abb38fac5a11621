//! What is refused, with which code and which words.

use conductor::proto::{
    CloseSessionRequest, ContentBlock, CreateSessionRequest, ListRequest, ObserveRequest, PromptRequest,
    event::Kind,
};
use conductor_tests::{
    disk::Disk,
    harness::{permission, service},
};
use serde_json::json;
use tonic::Code;
use uuid::Uuid;

use crate::client::Typed;

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn wrong_fields_are_named() {
    let service = service(&json!({})).start();
    let mut client = Typed::new(&service).await;
    let work = service.work().to_str().unwrap().to_owned();
    let good = CreateSessionRequest { cwd: work, ..Default::default() };
    let cases = [
        (CreateSessionRequest { agent: "nobody".into(), ..good.clone() }, Code::NotFound, "there are: "),
        (CreateSessionRequest { cwd: String::new(), ..good.clone() }, Code::InvalidArgument, "cwd"),
        (CreateSessionRequest { cwd: "work".into(), ..good.clone() }, Code::InvalidArgument, "cwd"),
        (
            CreateSessionRequest { cwd: "/".into(), ..good.clone() },
            Code::InvalidArgument,
            "cwd `/` lies outside",
        ),
        (
            CreateSessionRequest { additional_directories: vec!["/".into()], ..good.clone() },
            Code::InvalidArgument,
            "additional_directories `/` lies outside",
        ),
        (
            CreateSessionRequest { mcp_servers_json: "{}".into(), ..good.clone() },
            Code::InvalidArgument,
            "mcp_servers_json",
        ),
        (
            CreateSessionRequest { model: "x".into(), ..good.clone() },
            Code::InvalidArgument,
            "no choice of model",
        ),
    ];
    for (request, code, words) in cases {
        let refused = client.calls.create(client.with(request)).await.unwrap_err();
        assert_eq!(refused.code(), code, "{refused}");
        assert!(refused.message().contains(words), "{refused}");
    }
    assert!(client.list().await.is_empty(), "nothing is left of what was refused");

    let session = client.create(&service).await;
    let empty = PromptRequest { session_id: session.clone(), ..Default::default() };
    let holes = PromptRequest { content: vec![ContentBlock { kind: None }], ..empty.clone() };
    for (request, words) in [(empty, "text: "), (holes, "content[0]: ")] {
        let refused = client.calls.prompt(client.with(request)).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument);
        assert!(refused.message().starts_with(words), "{refused}");
    }
    let token = ListRequest { page_token: "x".into(), ..Default::default() };
    assert_eq!(client.calls.list(client.with(token)).await.unwrap_err().code(), Code::InvalidArgument);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn what_is_not_there_is_not_found() {
    let service = service(&json!({})).start();
    let mut client = Typed::new(&service).await;
    let gone = Uuid::now_v7().to_string();
    let prompt = client.try_prompt(&gone, "x").await.err().unwrap();
    assert_eq!(prompt.code(), Code::NotFound);
    let observe = ObserveRequest { session_id: gone.clone(), ..Default::default() };
    assert_eq!(client.calls.observe(client.with(observe)).await.unwrap_err().code(), Code::NotFound);
    assert_eq!(client.answer(&gone, 1, "yes").await.unwrap_err().code(), Code::NotFound);
    let close = CloseSessionRequest { session_id: gone };
    assert_eq!(client.calls.close(client.with(close)).await.unwrap_err().code(), Code::NotFound);
    assert_eq!(client.try_prompt("x", "x").await.err().unwrap().code(), Code::InvalidArgument);
    // Nobody without the token.
    let refused = client.calls.list(ListRequest::default()).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unauthenticated);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn what_an_agent_has_against_it_is_told_in_its_words() {
    let login = json!({ "code": -32000, "message": "run `fake login` first" });
    let script = json!({ "instead": { "session/new": [{ "answer": { "error": login } }] } });
    let broken = json!({ "start": [{ "exit": 7 }] });
    let service = service(&script).agent("broken", &broken).start();
    let mut client = Typed::new(&service).await;
    let cwd = service.work().to_str().unwrap().to_owned();
    let request = CreateSessionRequest { cwd, ..Default::default() };
    let refused = client.calls.create(client.with(request.clone())).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("run `fake login` first"), "{refused}");
    let request = CreateSessionRequest { agent: "broken".into(), ..request };
    let refused = client.calls.create(client.with(request)).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable, "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn nothing_is_allowed_that_cannot_be_recorded() {
    let (disk, builder) = Disk::under(service(&json!({})));
    let service = builder.start();
    let mut client = Typed::new(&service).await;
    let (asking, other) = (client.create(&service).await, client.create(&service).await);
    let mut events = client.prompt_do(&asking, &json!([permission()])).await;
    let request = events.find("the request", |kind| match kind {
        Kind::PermissionRequested(asked) => Some(asked.request),
        _ => None,
    });
    let request = request.await;
    disk.rule("pwrite EIO");
    // From now on the service knows.
    let refused = match client.try_prompt(&other, "refused").await {
        Ok(mut events) => events.rest().await.unwrap_err(),
        Err(refused) => refused,
    };
    assert!(refused.message().contains("journal"), "{refused}");
    let refused = client.answer(&asking, request, "yes").await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable, "{refused}");
    disk.works();
    service.wait_log("the journal can be written again");
    // It has stayed open.
    client.answer(&asking, request, "yes").await.unwrap();
    assert_eq!(events.end().await, "end_turn");
}
