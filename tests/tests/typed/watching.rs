//! Sessions are watched: history, then what happens, from any number on.

use conductor::proto::{ListRequest, event::Kind};
use conductor_tests::{
    admin::{metric, watched},
    harness::service,
};
use serde_json::json;
use tonic::Code;

use crate::client::{Typed, names, said};

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn history_then_live_without_a_gap_from_any_number() {
    let service = service(&json!({})).demo().start();
    let mut client = Typed::new(&service).await;
    let session = client.create(&service).await;
    for prompt in ["tool", "plan", "think", "fail"] {
        client.prompt(&session, prompt).await.rest().await.unwrap();
    }
    let mut watcher = client.observe(&session, 1).await;
    let mut other = client.clone();
    let (told, ()) = tokio::join!(
        async {
            while !watcher.end().await.contains("end_turn")
                || said(&watcher.seen).matches("of 50").count() < 50
            {}
            watcher.seen.clone()
        },
        async {
            other.prompt(&session, "stream 50").await.rest().await.unwrap();
        }
    );
    let all = client.history(&session, 1).await;
    assert_eq!(told, all[..told.len()], "live and on record are the same");
    assert_eq!(names(&all)[0], "SessionOpened");
    // Carried on from anywhere it is the same again.
    for event in all.iter().filter(|event| !event.more).step_by(3) {
        let rest = client.history(&session, event.seq + 1).await;
        assert!(all.ends_with(&rest), "from {}", event.seq + 1);
        let before = &all[..all.len() - rest.len()];
        assert_eq!(before.last(), Some(event), "nothing is left out");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn whatever_is_not_known_passes_as_it_is() {
    let service = service(&json!({})).start();
    let mut client = Typed::new(&service).await;
    let session = client.create(&service).await;
    let raw = r#"{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"$sid","update":{"sessionUpdate":"telepathy","x":1e400,"y":"\ud800"}}}"#;
    let steps =
        json!([{ "line": raw }, { "notify": { "method": "_own/thing", "params": { "sessionId": "$sid" } } }]);
    let told = client.prompt_do(&session, &steps).await.rest().await.unwrap();
    let others: Vec<_> = told.iter().filter(|event| matches!(event.kind, Some(Kind::Other(_)))).collect();
    assert_eq!(others.len(), 2, "{:?}", names(&told));
    let Some(Kind::Other(update)) = &others[0].kind else { unreachable!() };
    assert_eq!((update.method.as_str(), update.update.as_str()), ("session/update", "telepathy"));
    let bytes = String::from_utf8_lossy(&others[0].raw);
    assert!(bytes.ends_with(r#""update":{"sessionUpdate":"telepathy","x":1e400,"y":"\ud800"}}}"#), "{bytes}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn o03_a_slow_watcher_is_dropped_and_comes_back() {
    let service = watched(service(&json!({})).set("service.editor_timeout", "1s")).start();
    let mut client = Typed::new(&service).await;
    let session = client.create(&service).await;
    let mut slow = Typed::new(&service).await;
    let mut watcher = slow.observe(&session, 1).await;
    watcher.find("the session", |kind| matches!(kind, Kind::SessionOpened(_)).then_some(())).await;
    // More than any window and queue on the way to it holds.
    let mut events = client.prompt_do(&session, &json!([{ "update": { "n": 100, "size": 50_000 } }])).await;
    assert_eq!(events.end().await, "end_turn", "the agent is not held up");
    service.wait_log("a reader of events was dropped");
    assert_eq!(metric(&service, "conductor_readers_dropped_total"), 1.0);
    let lost = watcher.rest().await.unwrap_err();
    assert_eq!(lost.code(), Code::Unavailable);
    let next = watcher.seen.last().unwrap().seq + 1;
    assert!(lost.message().contains("from_seq"), "{lost}");
    let mut rest = slow.observe(&session, next).await;
    assert_eq!(rest.end().await, "end_turn");
    let chunks = said(&watcher.seen).matches("chunk ").count() + said(&rest.seen).matches("chunk ").count();
    assert_eq!(chunks, 100, "nothing is lost, nothing comes twice");
    assert!(said(&rest.seen).matches("chunk ").count() > 0, "it was dropped before the end");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_stop_of_the_service_is_told() {
    let mut service = service(&json!({})).start();
    let mut client = Typed::new(&service).await;
    let session = client.create(&service).await;
    let mut watcher = client.observe(&session, 1).await;
    watcher.find("the session", |kind| matches!(kind, Kind::SessionOpened(_)).then_some(())).await;
    let watching = tokio::spawn(async move { watcher.rest().await });
    let stopping = tokio::task::spawn_blocking(move || {
        assert!(service.term().success());
        service
    });
    let lost = watching.await.unwrap().unwrap_err();
    assert_eq!(lost.code(), Code::Unavailable, "{lost}");
    assert!(lost.message().contains("the service is stopping"), "{lost}");
    drop(stopping.await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn sessions_are_listed_in_pages() {
    let service = service(&json!({})).start();
    let mut client = Typed::new(&service).await;
    let mut made = Vec::new();
    for _ in 0..5 {
        made.insert(0, client.create(&service).await);
    }
    let mut seen = Vec::new();
    let mut page_token = String::new();
    loop {
        let request = ListRequest { page_size: 2, page_token, ..Default::default() };
        let page = client.calls.list(client.with(request)).await.unwrap().into_inner();
        assert!(page.sessions.len() <= 2);
        seen.extend(page.sessions.into_iter().map(|session| session.session_id));
        page_token = page.next_page_token;
        if page_token.is_empty() {
            break;
        }
    }
    assert_eq!(seen, made, "newest first, none twice");
    let elsewhere = ListRequest { cwd: "/".into(), ..Default::default() };
    assert!(client.calls.list(client.with(elsewhere)).await.unwrap().into_inner().sessions.is_empty());
}
