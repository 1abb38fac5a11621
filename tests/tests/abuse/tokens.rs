//! Bad tokens by the thousands, and good ones that are none any more.

use conductor::proto::{ListRequest, sessions_client::SessionsClient};
use conductor_tests::{
    harness::service,
    people::{Person, channel},
};
use serde_json::json;
use tokio::task::JoinSet;
use tonic::Code;

use crate::h2::{DATA, END_HEADERS, END_STREAM, HEADERS, PING, Raw, call, frame};

/// Calls of the flood, and how many of them are under way at once.
const CALLS: usize = 10_000;
const AT_ONCE: usize = 100;

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn u07_flood_of_bad_tokens_locks_nobody_out() {
    let service = service(&json!({})).set("service.bad_tokens_per_minute", 100).start();
    let ann = Person::named(&service, "ann");
    let (bad, good) = (channel(&service).await, channel(&service).await);
    let before = service.peak_memory();
    let (mut refused, mut turned_away) = (0, 0);
    for batch in 0..CALLS / AT_ONCE {
        let mut calls = JoinSet::new();
        for number in 0..AT_ONCE {
            let token = format!("cdt_{:064x}", batch * AT_ONCE + number);
            let (mut sessions, eve) = (SessionsClient::new(bad.clone()), Person { token, id: String::new() });
            calls.spawn(async move { sessions.list(eve.request(ListRequest::default())).await.unwrap_err() });
        }
        // From the same address, and meanwhile.
        let mut sessions = SessionsClient::new(good.clone());
        sessions.list(ann.request(ListRequest::default())).await.unwrap();
        for status in calls.join_all().await {
            match status.code() {
                Code::Unauthenticated => refused += 1,
                Code::ResourceExhausted => turned_away += 1,
                // The connection of a stranger does not last.
                Code::Unavailable | Code::Unknown | Code::Cancelled => turned_away += 1,
                _ => panic!("{status:?}"),
            }
        }
    }
    // A share, and what came back of it meanwhile.
    assert!((100..1000).contains(&refused), "{refused} were told what is wrong");
    assert!(turned_away > CALLS / 2, "{turned_away} were turned away");
    assert!(service.peak_memory() - before < 64 << 10);
    let told = service.log().matches("too many calls without a valid token").count();
    assert!((1..=3).contains(&told), "it is logged once, not {told} times");
    // Nor does a good token over the connection of the bad ones suffer.
    let mut sessions = SessionsClient::new(bad);
    sessions.list(ann.request(ListRequest::default())).await.unwrap();
}

#[test]
fn a_connection_does_not_outlast_the_token_that_let_it_in() {
    let service = service(&json!({})).start();
    let ann = Person::named(&service, "ann");
    let ask = |token: &str| {
        let mut raw = Raw::open(&service);
        let headers = frame(HEADERS, END_HEADERS, 1, &call("/conductor.v1.Sessions/List", token));
        raw.write(&[headers, frame(DATA, END_STREAM, 1, &[0; 5])].concat()).unwrap();
        raw.wait_for(HEADERS);
        raw
    };
    let (mut of_ann, mut of_the_host) = (ask(&ann.token), ask(&service.token()));
    let revoked = service.run(&["token", "revoke", &ann.id]);
    assert!(revoked.status.success(), "{revoked:?}");
    assert!(of_ann.is_ended(), "who has no token keeps no place");
    // Who was let in for good is not asked again.
    of_the_host.write(&frame(PING, 0, 0, b"abcdefgh")).unwrap();
    of_the_host.wait_for(PING);
}
