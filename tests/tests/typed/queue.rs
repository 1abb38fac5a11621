//! Prompts that wait for the turn that runs.

use conductor::proto::{CancelQueuedRequest, ListQueueRequest, PromptQueued, event::Kind};
use conductor_tests::harness::service;
use serde_json::{Value, json};
use tonic::Code;

use crate::client::{Events, Typed, names, said};

async fn queue(client: &mut Typed, session: &str) -> Vec<PromptQueued> {
    let request = ListQueueRequest { session_id: session.to_owned() };
    client.calls.list_queue(client.with(request)).await.unwrap().into_inner().prompts
}

async fn queued(events: &mut Events) -> PromptQueued {
    let found = events.find("its place in the queue", |kind| match kind {
        Kind::PromptQueued(queued) => Some(queued.clone()),
        _ => None,
    });
    found.await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn prompts_wait_and_can_be_taken_back() {
    let service = service(&json!({})).start();
    let mut client = Typed::new(&service).await;
    let session = client.create(&service).await;
    let gate = service.dir.join("gate");
    let mut first =
        client.prompt_do(&session, &json!([{ "update": { "n": 1 } }, { "wait_file": gate }])).await;
    first.find("the first chunk", |kind| matches!(kind, Kind::AgentMessage(_)).then_some(())).await;

    let mut second = client.prompt(&session, "second").await;
    let waits = queued(&mut second).await;
    let mut third = client.prompt(&session, "third").await;
    queued(&mut third).await;
    let list = queue(&mut client, &session).await;
    assert_eq!(list.iter().map(|entry| entry.text.as_str()).collect::<Vec<_>>(), ["second", "third"]);
    assert_eq!((list[0].entry, &list[0].user), (waits.entry, &waits.user));

    // The same in a terminal.
    let shown = service.run(&["sessions", "queue", &session, "--json"]);
    let shown: Value = serde_json::from_slice(&shown.stdout).unwrap();
    assert_eq!(shown["prompts"][0]["text"], "second");
    let shown = String::from_utf8(service.run(&["sessions", "queue", "last"]).stdout).unwrap();
    assert!(shown.starts_with("ENTRY") && shown.contains("third"), "{shown}");
    let mut fourth = client.prompt(&session, "fourth").await;
    let entry = queued(&mut fourth).await.entry.to_string();
    let taken = service.run(&["sessions", "queue", &session, "--cancel", &entry]);
    assert_eq!(String::from_utf8(taken.stdout).unwrap(), format!("prompt {entry} is taken back\n"));
    assert_eq!(fourth.end().await, "cancelled");
    let again = service.run(&["sessions", "queue", &session, "--cancel", &entry]);
    assert_eq!(again.status.code(), Some(1));

    let take_back = |entry| CancelQueuedRequest { session_id: session.clone(), entry };
    client.calls.cancel_queued(client.with(take_back(waits.entry))).await.unwrap();
    let again = client.calls.cancel_queued(client.with(take_back(waits.entry))).await.unwrap_err();
    assert_eq!(again.code(), Code::NotFound);
    assert_eq!(second.end().await, "cancelled");
    assert!(second.next().await.unwrap().is_none());
    assert_eq!(names(&second.seen), ["PromptQueued", "TurnEnded"]);

    std::fs::write(&gate, "").unwrap();
    assert_eq!(first.end().await, "end_turn");
    assert_eq!(third.end().await, "end_turn");
    assert_eq!(names(&third.seen)[..2], ["PromptQueued", "TurnStarted"], "only its own turn is told");
    assert_eq!(said(&third.seen), "echo: third");
    assert!(queue(&mut client, &session).await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_full_queue_refuses_and_a_cancel_empties_it() {
    let service = service(&json!({})).start();
    let mut client = Typed::new(&service).await;
    let session = client.create(&service).await;
    let mut first = client.prompt_do(&session, &json!([{ "update": { "n": 1 } }, "wait_cancel"])).await;
    first.find("the first chunk", |kind| matches!(kind, Kind::AgentMessage(_)).then_some(())).await;
    let mut waiting = Vec::new();
    for number in 0..16 {
        let mut events = client.prompt(&session, &format!("prompt {number}")).await;
        queued(&mut events).await;
        waiting.push(events);
    }
    let mut refused = client.prompt(&session, "one too many").await;
    assert_eq!(refused.rest().await.unwrap_err().code(), Code::ResourceExhausted);
    client.cancel(&session).await;
    for events in [first].iter_mut().chain(&mut waiting) {
        assert_eq!(events.end().await, "cancelled");
    }
}
