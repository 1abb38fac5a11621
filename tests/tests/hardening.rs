//! What someone with bad intentions tried, and what must come of it: that one
//! alone is slowed, refused or dropped, and the service's memory stays flat.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

use std::{
    collections::HashSet,
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
};

use conductor::proto::{
    ConnectRequest, ConnectResponse, RestartAgentRequest, Run, WhoAmIRequest, connect_request::Kind,
    identity_client::IdentityClient,
};
use conductor_tests::{
    editor::DEADLINE,
    harness::{Service, poll_until, service},
    people::{Person, channel, owner},
    tunnel::{Tunnel, authorised, hello},
};
use serde_json::{Value, json};
use tonic::{Code, Request, metadata::MetadataMap, transport::Endpoint};

const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":1}}"#;

/// KiB by which the service may grow while somebody misbehaves.
const FLAT: u64 = 64 << 10;

fn still_serves(service: &Service) {
    let (mut editor, session) = service.session();
    assert_eq!(editor.turn(&session, "still here"), ["echo: still here"]);
}

/// Reads until a frame with this id comes.
fn answer_to(tunnel: &mut Tunnel, id: &Value) -> Value {
    loop {
        if let Some(frame) = tunnel.next_frames().into_iter().find(|frame| frame["id"] == *id) {
            return frame;
        }
    }
}

#[test]
fn message_of_a_million_lines_is_answered_bit_by_bit() {
    let service = service(&json!({})).start();
    let before = service.peak_memory();
    let mut tunnel = Tunnel::greeted(&service);
    // Every line needs an answer that is far longer than the line.
    let count = 2 << 20;
    tunnel.send(Kind::Run(Run { first_seq: 1, count, frames: "x\n".repeat(count as usize).into() }));
    for _ in 0..1_000 {
        assert_eq!(tunnel.next_frames()[0]["error"]["code"], -32700);
    }
    let growth = service.peak_memory() - before;
    assert!(growth <= FLAT, "memory grew by {growth} KiB");
    still_serves(&service);
}

#[test]
fn requests_answered_by_a_task_of_their_own_are_bounded() {
    // The handshake with an editor waits for the one with the agent.
    let service = service(&json!({ "instead": { "initialize": ["hang"] } })).start();
    let mut tunnel = Tunnel::greeted(&service);
    for id in 1..=500 {
        let params = json!({ "protocolVersion": 1 });
        let line = json!({ "jsonrpc": "2.0", "id": id, "method": "initialize", "params": params });
        tunnel.send_frame(&line.to_string());
    }
    let mut refused = HashSet::new();
    while refused.len() < 500 - 8 {
        for frame in tunnel.next_frames() {
            assert!(frame["error"]["code"] == -31002, "{frame}");
            assert!(refused.insert(frame["id"].as_u64().unwrap()), "answered twice: {frame}");
        }
    }
}

#[test]
fn small_frame_does_not_keep_the_block_it_came_in() {
    let service = service(&json!({})).start();
    let mut tunnel = Tunnel::greeted(&service);
    tunnel.send_frame(INITIALIZE);
    answer_to(&mut tunnel, &json!(0));
    let new = json!({ "cwd": service.work(), "mcpServers": [] });
    tunnel.send_frame(
        &json!({ "jsonrpc": "2.0", "id": 1, "method": "session/new", "params": new }).to_string(),
    );
    let session = answer_to(&mut tunnel, &json!(1))["result"]["sessionId"].clone();
    let gate = service.dir.join("go");
    let prompt = |id: u32, text: &str| {
        let params = json!({ "sessionId": session, "prompt": [{ "type": "text", "text": text }] });
        json!({ "jsonrpc": "2.0", "id": id, "method": "session/prompt", "params": params }).to_string()
    };
    tunnel.send_frame(&prompt(2, &json!({ "do": [{ "wait_file": gate }] }).to_string()));
    let before = service.peak_memory();
    // Blank lines are passed over, but they are part of the block.
    let blank = " ".repeat(12 << 20);
    for number in 0..12 {
        let (few, many) = ("\n".repeat(255), blank.as_str());
        let frames = format!("{}\n{few}{many}\n", prompt(10 + number, "small"));
        let first_seq = 4 + 257 * u64::from(number);
        assert!(tunnel.send(Kind::Run(Run { first_seq, count: 257, frames: frames.into() })));
    }
    // An answer beside the turn: so everything before it has been taken.
    let ask = json!({ "sessionId": session, "do": [{ "answer": { "result": {} } }] });
    let line = format!("{}\n", json!({ "jsonrpc": "2.0", "id": 99, "method": "_x/do", "params": ask }));
    tunnel.send(Kind::Run(Run { first_seq: 4 + 257 * 12, count: 1, frames: line.into() }));
    answer_to(&mut tunnel, &json!(99));
    let growth = service.peak_memory() - before;
    assert!(growth <= 2 * FLAT, "twelve small prompts in the queue cost {growth} KiB");
    fs::write(gate, "").unwrap();
    answer_to(&mut tunnel, &json!(21));
}

#[test]
fn connections_without_a_token_lock_nobody_out() {
    let service = service(&json!({})).set("service.max_connections", 3).start();
    let address = service.endpoint().replace("http://", "");
    // One is silent, one stops after the preface, one in the middle of it.
    let silent = TcpStream::connect(&address).unwrap();
    let mut prefaced = TcpStream::connect(&address).unwrap();
    prefaced.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").unwrap();
    let mut slow = TcpStream::connect(&address).unwrap();
    slow.write_all(b"PRI * HTT").unwrap();
    // There is room again once these are dropped; one with a token stays.
    let (mut editor, session) = service.session();
    for mut stream in [silent, prefaced, slow] {
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        // What the service had to say, and then the end.
        stream.read_to_end(&mut Vec::new()).unwrap();
    }
    assert_eq!(editor.turn(&session, "in spite of all"), ["echo: in spite of all"]);
}

#[test]
fn one_user_cannot_take_every_connection() {
    let service = service(&json!({})).set("service.max_connections_per_user", 2).start();
    let (ann, bob) = (Person::named(&service, "ann"), Person::named(&service, "bob"));
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let come = |who: &Person| {
        runtime.block_on(async {
            let mut client = IdentityClient::new(channel(&service).await);
            let answer = client.who_am_i(who.request(WhoAmIRequest {})).await;
            (client, answer.map(drop))
        })
    };
    let ([first, second], third) = ([come(&ann), come(&ann)], come(&ann));
    assert!(first.1.is_ok() && second.1.is_ok(), "{first:?} {second:?}");
    let refused = third.1.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused:?}");
    assert!(refused.message().contains("service.max_connections_per_user"), "{refused:?}");
    // Others come, and over one that is open, so does she.
    let others = [come(&bob), come(&owner(&service)), come(&owner(&service)), come(&owner(&service))];
    assert!(others.iter().all(|(_, answer)| answer.is_ok()), "{others:?}");
    let mut client = second.0.clone();
    assert!(runtime.block_on(client.who_am_i(ann.request(WhoAmIRequest {}))).is_ok());
    drop(first);
    let has_room = poll_until(DEADLINE, || come(&ann).1.is_ok());
    assert!(has_room, "{}", service.log());
    drop((second, client, others));
}

#[test]
fn message_that_cannot_be_read_is_refused_and_not_just_ended() {
    let service = service(&json!({})).start();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    // Another message in the place of a greeting, whose text is no greeting.
    let garbage = RestartAgentRequest { name: "\u{f}\u{f}".to_owned(), force: false };
    let status = runtime.block_on(async {
        let channel = Endpoint::from_shared(service.endpoint()).unwrap().connect().await.unwrap();
        let mut client = tonic::client::Grpc::new(channel);
        client.ready().await.unwrap();
        let mut request = Request::new(tokio_stream::once(garbage));
        *request.metadata_mut() = authorised(&service);
        let codec = tonic_prost::ProstCodec::<RestartAgentRequest, ConnectResponse>::default();
        let path = "/conductor.v1.Acp/Connect".parse().unwrap();
        let mut answer = client.streaming(request, path, codec).await.unwrap().into_inner();
        answer.message().await.unwrap_err()
    });
    assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
    assert!(status.message().contains("cannot be read"), "{status:?}");
    still_serves(&service);
}

#[test]
fn scheme_of_the_token_may_be_written_in_any_case() {
    let service = service(&json!({})).start();
    let open = |value: String| {
        let mut metadata = MetadataMap::new();
        metadata.insert("authorization", value.parse().unwrap());
        let first = ConnectRequest { kind: Some(Kind::Hello(hello())) };
        Tunnel::open_with(&service, metadata, Some(first)).next_message()
    };
    assert!(open(format!("bearer {}", service.token())).is_ok());
    for wrong in [String::from("bearer"), String::from("bearer "), format!("bearer {}0", service.token())] {
        assert_eq!(open(wrong).unwrap_err().code(), Code::Unauthenticated);
    }
}

#[test]
fn what_is_wrong_with_a_setting_is_said() {
    let service = service(&json!({})).env("RUST_LOG", "conductor=loud").start();
    service.wait_log("--log or RUST_LOG makes no sense");
    let empty = service.dir.join("nothing-here");
    let foreign =
        service.run(&["agents", "--state-dir", empty.to_str().unwrap(), "--endpoint", "127.0.0.1:1"]);
    let text = String::from_utf8_lossy(&foreign.stderr);
    assert!(text.contains("CONDUCTOR_TOKEN") && !text.contains("is running"), "{text}");
    let short = service.command(&["agents"]).env("CONDUCTOR_TOKEN", "short").output().unwrap();
    let text = String::from_utf8_lossy(&short.stderr);
    assert!(text.contains("CONDUCTOR_TOKEN") && text.contains("unset it"), "{text}");
}

#[test]
fn drain_follows_the_configuration_as_it_is_now() {
    let mut service = service(&json!({})).set("service.drain_timeout", "1h").start();
    service.configure("service.drain_timeout", "50ms");
    service.reload();
    let (mut editor, session) = service.session();
    editor.prompt_do(&session, &json!([{ "update": {} }, "hang"]));
    editor.wait_chunks(&session, 1);
    assert!(service.term().success());
}
