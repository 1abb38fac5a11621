//! Headers and messages that want to be more than they are.

use conductor::proto::{ListRequest, PromptRequest, sessions_client::SessionsClient};
use conductor_tests::{
    harness::service,
    people::{channel, owner},
    tunnel::{Tunnel, authorised, hello},
};
use serde_json::{Value, json};
use tonic::{Code, metadata::MetadataValue};

use crate::h2::{DATA, END_HEADERS, END_STREAM, HEADERS, Raw, call, frame, header};

/// KiB by which the service may grow meanwhile.
const FLAT: u64 = 64 << 10;

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn v05_compression_is_not_taken() {
    let service = service(&json!({})).start();
    let mut sessions = SessionsClient::new(channel(&service).await);
    let before = service.peak_memory();
    for encoding in ["gzip", "deflate", "zstd", "br"] {
        let mut request = owner(&service).request(ListRequest::default());
        request.metadata_mut().insert("grpc-encoding", MetadataValue::try_from(encoding).unwrap());
        let refused = sessions.list(request).await.unwrap_err();
        assert_eq!(refused.code(), Code::Unimplemented, "{refused:?}");
    }
    // A message that says of itself that it is compressed, and no header does.
    let mut raw = Raw::open(&service);
    raw.write(&frame(HEADERS, END_HEADERS, 1, &call("/conductor.v1.Sessions/List", &service.token())))
        .unwrap();
    raw.write(&frame(DATA, END_STREAM, 1, b"\x01\0\0\0\x04\x1f\x8b\x08\0")).unwrap();
    assert!(sessions.list(owner(&service).request(ListRequest::default())).await.is_ok());
    assert!(service.peak_memory() - before < FLAT);
}

#[test]
fn v06_headers_do_not_write_log_lines() {
    let mut service = service(&json!({})).env("RUST_LOG", "debug").start();
    let forged = b"x\r\n{\"level\":\"FORGED\"}\x1b[2J\x07";
    let list = "/conductor.v1.Sessions/List";
    for (name, value) in [
        ("user-agent", &forged[..]),
        ("grpc-timeout", forged),
        ("traceparent", forged),
        ("authorization", b"Bearer \x1b[31mFORGED\n"),
        ("user-agent", b"\xff\xfe\x80FORGED\t"),
    ] {
        let mut raw = Raw::open(&service);
        let mut block = call(list, &service.token());
        block.extend(header(name, value));
        raw.write(&frame(HEADERS, END_HEADERS | END_STREAM, 1, &block)).unwrap();
    }
    for path in ["/conductor.v1.Sessions/List\n{\"level\":\"FORGED\"}", "/conductor.v1.X\u{1b}[2J/%0aFORGED"]
    {
        let mut raw = Raw::open(&service);
        raw.write(&frame(HEADERS, END_HEADERS | END_STREAM, 1, &call(path, &service.token()))).unwrap();
    }
    // What an editor calls itself is in the log.
    let client = "editor\n{\"level\":\"FORGED\"}\u{1b}[2J\u{202e}";
    let greeting = conductor::proto::Hello { client: client.into(), ..hello() };
    let first = conductor::proto::ConnectRequest {
        kind: Some(conductor::proto::connect_request::Kind::Hello(greeting)),
    };
    Tunnel::open_with(&service, authorised(&service), Some(first)).next_message().unwrap();
    service.wait_log("editor connected");
    service.term();
    for line in service.log().lines() {
        let entry: Value = serde_json::from_str(line).unwrap_or_else(|_| panic!("no line of ours: {line:?}"));
        assert_ne!(entry["level"], "FORGED", "{line}");
        assert!(!line.contains(|c: char| c.is_control()), "{line:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn e07_call_over_the_limit_is_refused_and_the_connection_lives() {
    let service = service(&json!({})).start();
    let mut sessions = SessionsClient::new(channel(&service).await).max_encoding_message_size(64 << 20);
    let before = service.peak_memory();
    for _ in 0..3 {
        let text = "x".repeat(32 << 20);
        let huge = PromptRequest { session_id: String::new(), text, ..Default::default() };
        let refused = sessions.prompt(owner(&service).request(huge)).await.unwrap_err();
        assert!([Code::OutOfRange, Code::ResourceExhausted].contains(&refused.code()), "{refused:?}");
        assert!(sessions.list(owner(&service).request(ListRequest::default())).await.is_ok());
    }
    assert!(service.peak_memory() - before < FLAT);
}
