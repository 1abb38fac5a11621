//! Sessions of others: what a driver may, what an observer may not.

use conductor::proto::{ObserveRequest, SetModeRequest, event::Kind};
use conductor_tests::harness::{Service, permission, service};
use serde_json::json;
use tonic::Code;

use crate::client::{Typed, names, said};

fn share(service: &Service, session: &str, args: &[&str]) {
    let shared = service.run(&[&["sessions"], args, &[session]].concat());
    assert!(shared.status.success(), "{shared:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_driver_prompts_and_answers_under_their_own_name() {
    let service = service(&json!({})).start();
    let mut owner = Typed::new(&service).await;
    let session = owner.create(&service).await;
    let mut ann = Typed::named(&service, "ann").await;
    assert_eq!(ann.try_prompt(&session, "mine?").await.err().unwrap().code(), Code::NotFound);
    share(&service, &session, &["share", "--with", "ann", "--as", "driver"]);
    let listed = ann.list().await;
    assert_eq!((listed[0].session_id.as_str(), listed[0].role.as_str()), (session.as_str(), "driver"));
    assert_ne!(listed[0].owner, "ann");

    let mut watcher = owner.observe(&session, 1).await;
    watcher.find("the share", |kind| matches!(kind, Kind::SharingChanged(_)).then_some(())).await;
    let mut events = ann.prompt_do(&session, &json!([permission()])).await;
    let request = events.find("the request", |kind| match kind {
        Kind::PermissionRequested(asked) => Some(asked.request),
        _ => None,
    });
    let request = request.await;
    let Some(Kind::TurnStarted(turn)) = &events.seen[0].kind else { panic!("{:?}", names(&events.seen)) };
    assert_eq!(turn.user, "ann");
    ann.answer(&session, request, "yes").await.unwrap();
    let late = owner.answer(&session, request, "no").await.unwrap_err();
    assert_eq!(
        (late.code(), late.message()),
        (Code::Aborted, &*format!("ann has answered request {request} already"))
    );
    assert_eq!(events.end().await, "end_turn");
    assert_eq!(watcher.end().await, "end_turn");
    let seen = |kind: fn(&Kind) -> Option<&str>| {
        watcher.seen.iter().filter_map(|event| event.kind.as_ref().and_then(kind)).collect::<Vec<_>>()
    };
    let turns = seen(|kind| match kind {
        Kind::TurnStarted(turn) => Some(&turn.user),
        _ => None,
    });
    let decisions = seen(|kind| match kind {
        Kind::PermissionResolved(it) => Some(&it.by),
        _ => None,
    });
    assert_eq!((turns, decisions), (vec!["ann"], vec!["ann"]));

    // What was closed is opened again by a driver, too.
    owner.close(&session).await;
    watcher.find("the end", |kind| matches!(kind, Kind::SessionEnded(_)).then_some(())).await;
    let again = ann.prompt(&session, "hello").await.rest().await.unwrap();
    assert_eq!(said(&again), "echo: hello");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn an_observer_watches_as_long_as_it_is_shared() {
    let service = service(&json!({})).start();
    let mut owner = Typed::new(&service).await;
    let session = owner.create(&service).await;
    let mut bob = Typed::named(&service, "bob").await;
    share(&service, &session, &["share", "--with", "bob"]);
    let mut watcher = bob.observe(&session, 1).await;
    assert_eq!(owner.prompt(&session, "hello").await.end().await, "end_turn");
    assert_eq!(watcher.end().await, "end_turn");
    assert_eq!(said(&watcher.seen), "echo: hello");

    assert_eq!(bob.try_prompt(&session, "me too").await.err().unwrap().code(), Code::PermissionDenied);
    assert_eq!(bob.answer(&session, 1, "yes").await.unwrap_err().code(), Code::PermissionDenied);
    let mode = SetModeRequest { session_id: session.clone(), mode_id: "x".into() };
    assert_eq!(bob.calls.set_mode(bob.with(mode)).await.unwrap_err().code(), Code::PermissionDenied);
    assert_eq!(bob.list().await[0].role, "observer");

    share(&service, &session, &["unshare", "--with", "bob"]);
    assert_eq!(watcher.rest().await.unwrap_err().code(), Code::NotFound);
    let observe = ObserveRequest { session_id: session.clone(), ..Default::default() };
    assert_eq!(bob.calls.observe(bob.with(observe)).await.unwrap_err().code(), Code::NotFound);
    assert!(bob.list().await.is_empty());
}
