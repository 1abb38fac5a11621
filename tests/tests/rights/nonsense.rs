//! Messages that are none, to every call there is (E8): refused, and nobody
//! falls over them.

use bytes::Bytes;
use conductor::proto::{Party, ShareSessionRequest, party};
use conductor_tests::{
    harness::service,
    people::{channel, owner},
};
use prost::Message as _;
use serde_json::json;
use tonic::Code;

use crate::{calls::call, matrix::table, raw};

/// Messages that are tried with each call.
const TRIES: u64 = 25;

/// Bytes that look random and are the same each time.
fn garbage(seed: u64) -> Bytes {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let length = next() % 64;
    (0..length).map(|_| next() as u8).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e08_nonsense_to_every_call_is_refused() {
    let service = service(&json!({})).start();
    let (channel, me) = (channel(&service).await, owner(&service));
    for (number, path) in (0..).zip(table().keys()) {
        let message = call(path, "no-session", "").unwrap();
        if message.names_session {
            let status = raw::call(&channel, path, Some(&me), message.message).await.unwrap_err();
            assert_eq!(status.code(), Code::InvalidArgument, "{path}: {status:?}");
            assert!(status.message().contains("no-session"), "the field is named: {status:?}");
        }
        for seed in 0..TRIES {
            // Whatever it is taken for, the service lives, and says what it has to say.
            let answer = raw::call(&channel, path, Some(&me), garbage(number * TRIES + seed)).await;
            if let Err(status) = answer {
                assert!(!status.message().contains("panicked"), "{path}: {status:?}");
                assert_ne!(status.code(), Code::Unavailable, "{path}: {status:?}");
            }
        }
    }
    let (mut editor, session) = service.session();
    // A role that nobody knows is no role.
    let guest = Some(Party { party: Some(party::Party::User("guest".into())) });
    let strange = ShareSessionRequest { session_id: session.clone(), with: guest, role: 99 };
    let path = "/conductor.v1.Sharing/Share";
    let status = raw::call(&channel, path, Some(&me), strange.encode_to_vec().into()).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
    assert!(status.message().starts_with("role: "), "{status:?}");
    assert_eq!(editor.turn(&session, "still here"), ["echo: still here"]);
    assert!(!service.log().contains("panicked"), "{}", service.log());
}
