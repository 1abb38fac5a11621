//! Faults of editors (`tests/faults`, rows E6–E9): one that never reads, one that
//! sends too much, one that breaks the tunnel's rules, one that is impatient.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

use std::time::{Duration, Instant};

use bytes::BufMut as _;
use conductor::proto::{Ack, ConnectRequest, ConnectResponse, Hello, Run, connect_request::Kind};
use conductor_tests::{
    harness::{Service, assert_says, service},
    tunnel::{Tunnel, authorised, hello},
};
use prost::Message as _;
use serde_json::json;
use tonic::{
    Code, Request, Status,
    codec::{Codec, EncodeBuf, Encoder},
    metadata::MetadataMap,
    transport::{Channel, Endpoint},
};
use tonic_prost::ProstCodec;

const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":1}}"#;

fn still_serves(service: &Service) {
    let (mut editor, session) = service.session();
    assert_eq!(editor.turn(&session, "still here"), ["echo: still here"]);
}

#[test]
fn e06_editor_that_never_reads_slows_only_itself() {
    let service = service(&json!({})).agent("good", &json!({})).start();
    let (mut slow, session) = service.session();
    let before = service.peak_memory();
    let gate = service.dir.join("written");
    slow.pause(true);
    // Far more than every queue and pipe on the way can hold.
    let id =
        slow.prompt_do(&session, &json!([{ "update": { "n": 6_000, "size": 4096 } }, { "touch": gate }]));
    // The queues fill up, and then the agent is held back.
    service.wait_settled("fake");
    assert!(!gate.exists(), "the agent was not held back");
    let mut other = service.connect(&["--agent", "good"]);
    other.initialize();
    let calm = other.new_session(&service.work());
    for number in 0..10 {
        let start = Instant::now();
        other.turn(&calm, &number.to_string());
        assert!(
            start.elapsed() < Duration::from_secs(3),
            "a turn took {:?} beside a stuck editor",
            start.elapsed()
        );
    }
    let growth = service.peak_memory() - before;
    assert!(growth <= 32 * 1024, "memory grew by {growth} KiB");
    // Once it reads again nothing is missing.
    slow.pause(false);
    slow.set_deadline(Duration::from_secs(90));
    assert_eq!(slow.stop_reason(&id), "end_turn");
    let chunks = slow.chunks(&session);
    assert_eq!(chunks.len(), 6_000);
    assert!(chunks.iter().enumerate().all(|(n, text)| text.starts_with(&format!("chunk {n} "))), "in order");
}

#[test]
fn e07_message_over_the_limit_ends_that_stream_only() {
    let service = service(&json!({})).start();
    let mut tunnel = Tunnel::greeted(&service);
    tunnel.send_frame(&format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{}"}}"#, "m".repeat(40 << 20)));
    tunnel.expect_end(Code::ResourceExhausted);
    still_serves(&service);
}

#[test]
fn e07_line_over_the_limit_is_answered_by_the_bridge() {
    let service = service(&json!({})).start();
    let (mut editor, session) = service.session();
    let line = json!({ "jsonrpc": "2.0", "id": 5000, "method": "_x/big",
        "params": { "sessionId": session, "blob": "b".repeat(17 << 20) } });
    editor.send_line(&line.to_string());
    // Whether the connection survives is the bridge's choice; silence is not.
    let refused = editor.wait_for("an error about the size", |line| {
        line.json.get("error").map(|error| error.to_string().to_lowercase())
    });
    assert!(refused.contains("16") || refused.contains("limit") || refused.contains("large"), "{refused}");
    editor.close_stdin();
    editor.wait_exit();
    still_serves(&service);
}

#[test]
fn e07_too_many_headers_are_refused() {
    let service = service(&json!({})).start();
    let mut metadata = authorised(&service);
    for number in 0..5_000_u32 {
        let name: tonic::metadata::MetadataKey<_> = format!("x-many-{number}").parse().unwrap();
        metadata.insert(name, "value of a header that nobody needs".parse().unwrap());
    }
    let first = ConnectRequest { kind: Some(Kind::Hello(hello())) };
    let mut tunnel = Tunnel::open_with(&service, metadata, Some(first));
    let status = tunnel.end();
    // HTTP/2 refuses the call, or has had enough of the connection and says so, or has closed it by then,
    // while the headers are still being written.
    let told = format!("{status:?}");
    let is_closed = || ["GoAway", "BrokenPipe", "ConnectionReset"].iter().any(|how| told.contains(how));
    assert!(status.code() == Code::ResourceExhausted || is_closed(), "{told}");
    still_serves(&service);
}

#[test]
fn e08_no_or_wrong_token_is_unauthenticated() {
    let service = service(&json!({})).start();
    let mut wrong = MetadataMap::new();
    wrong.insert("authorization", "Bearer 00000000".parse().unwrap());
    let mut basic = MetadataMap::new();
    basic.insert("authorization", format!("Basic {}", service.token()).parse().unwrap());
    for metadata in [MetadataMap::new(), wrong, basic] {
        let first = ConnectRequest { kind: Some(Kind::Hello(hello())) };
        Tunnel::open_with(&service, metadata, Some(first)).expect_end(Code::Unauthenticated);
    }
    still_serves(&service);
}

#[test]
fn e08_unknown_agent_is_not_found() {
    let service = service(&json!({})).start();
    let first = ConnectRequest { kind: Some(Kind::Hello(Hello { agent: "nobody".to_owned(), ..hello() })) };
    let mut tunnel = Tunnel::open_with(&service, authorised(&service), Some(first));
    let status = tunnel.end();
    assert_eq!(status.code(), Code::NotFound, "{status:?}");
    assert!(status.message().contains("nobody"), "{status:?}");
}

#[test]
fn e08_frames_before_hello_are_refused() {
    let service = service(&json!({})).start();
    let run = Run { first_seq: 1, count: 1, frames: format!("{INITIALIZE}\n").into() };
    let first = ConnectRequest { kind: Some(Kind::Run(run)) };
    Tunnel::open_with(&service, authorised(&service), Some(first)).expect_end(Code::InvalidArgument);
}

#[test]
fn e08_message_of_unknown_kind_is_refused() {
    let service = service(&json!({})).start();
    let mut first = Tunnel::open_with(&service, authorised(&service), Some(ConnectRequest { kind: None }));
    first.expect_end(Code::InvalidArgument);
    let mut later = Tunnel::greeted(&service);
    later.send_message(ConnectRequest { kind: None });
    later.expect_end(Code::InvalidArgument);
    still_serves(&service);
}

#[test]
fn e08_second_hello_is_refused() {
    let service = service(&json!({})).start();
    let mut tunnel = Tunnel::greeted(&service);
    tunnel.send(Kind::Hello(hello()));
    tunnel.expect_end(Code::InvalidArgument);
}

#[test]
fn e08_runs_that_break_the_rules_are_refused() {
    let service = service(&json!({})).start();
    let frame = format!("{INITIALIZE}\n");
    let bad = [
        ("gap in the numbers", Run { first_seq: 2, count: 1, frames: frame.clone().into() }),
        ("number zero", Run { first_seq: 0, count: 1, frames: frame.clone().into() }),
        ("more frames than said", Run { first_seq: 1, count: 1, frames: frame.repeat(2).into() }),
        ("fewer frames than said", Run { first_seq: 1, count: 2, frames: frame.clone().into() }),
        ("no frame", Run { first_seq: 1, count: 0, frames: Vec::new().into() }),
        ("no newline", Run { first_seq: 1, count: 1, frames: INITIALIZE.to_owned().into() }),
    ];
    for (what, run) in bad {
        let mut tunnel = Tunnel::greeted(&service);
        tunnel.send(Kind::Run(run));
        let status = tunnel.end();
        assert_eq!(status.code(), Code::InvalidArgument, "{what}: {status:?}");
    }
    still_serves(&service);
}

#[test]
fn e08_acknowledging_the_future_is_refused() {
    let service = service(&json!({})).start();
    let mut tunnel = Tunnel::greeted(&service);
    tunnel.send_ack(1_000_000);
    tunnel.expect_end(Code::InvalidArgument);
}

#[test]
fn e08_well_formed_tunnel_carries_frames_in_order() {
    let service = service(&json!({})).start();
    let mut tunnel = Tunnel::greeted(&service);
    tunnel.send_frame(INITIALIZE);
    let frames = tunnel.next_frames();
    assert_eq!(frames[0]["result"]["protocolVersion"], 1, "{frames:?}");
    tunnel.close();
    assert_eq!(tunnel.end().code(), Code::Ok);
}

/// Sends bytes as they are in the place of messages.
struct Raw;

impl Codec for Raw {
    type Encode = Vec<u8>;
    type Decode = ConnectResponse;
    type Encoder = Self;
    type Decoder = <ProstCodec<ConnectRequest, ConnectResponse> as Codec>::Decoder;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self::Decoder {
        ProstCodec::<ConnectRequest, ConnectResponse>::default().decoder()
    }
}

impl Encoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, into: &mut EncodeBuf<'_>) -> Result<(), Status> {
        into.put_slice(&item);
        Ok(())
    }
}

/// Sends these messages and no more; how the stream ends.
async fn end_of(channel: Channel, metadata: MetadataMap, messages: Vec<Vec<u8>>) -> Code {
    let mut client = tonic::client::Grpc::new(channel);
    client.ready().await.unwrap();
    let mut request = Request::new(tokio_stream::iter(messages));
    *request.metadata_mut() = metadata;
    let path = "/conductor.v1.Acp/Connect".parse().unwrap();
    let mut answer = match client.streaming(request, path, Raw).await {
        Ok(answer) => answer.into_inner(),
        Err(status) => return status.code(),
    };
    loop {
        match answer.message().await {
            Ok(Some(_)) => {}
            Ok(None) => return Code::Ok,
            Err(status) => return status.code(),
        }
    }
}

/// A message with a few bytes changed, cut off or put in, by numbers that look
/// random and come again from the same seed.
fn mutated(message: &[u8], mut roll: impl FnMut(usize) -> usize) -> Vec<u8> {
    let mut bytes = message.to_vec();
    for _ in 0..=roll(4) {
        let at = roll(bytes.len().max(1));
        match roll(4) {
            0 => bytes.truncate(at),
            1 => bytes.insert(at.min(bytes.len()), roll(256) as u8),
            _ => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte = roll(256) as u8;
                }
            }
        }
    }
    bytes
}

#[test]
fn e08_messages_of_nonsense_are_refused_and_harm_nobody() {
    let service = service(&json!({})).start();
    let (mut editor, session) = service.session();
    let encoded = |kind: Kind| ConnectRequest { kind: Some(kind) }.encode_to_vec();
    let hello = encoded(Kind::Hello(hello()));
    let run = Run { first_seq: 1, count: 1, frames: format!("{INITIALIZE}\n").into() };
    let samples = [hello.clone(), encoded(Kind::Run(run)), encoded(Kind::Ack(Ack { seq: 1 }))];
    let mut state = 20_261_116_u64;
    let mut roll = move |below: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below as u64) as usize
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut refused = 0;
    runtime.block_on(async {
        let channel = Endpoint::from_shared(service.endpoint()).unwrap().connect().await.unwrap();
        for number in 0..400 {
            let broken = mutated(&samples[number % 3], &mut roll);
            let messages = if number % 2 == 0 { vec![broken] } else { vec![hello.clone(), broken] };
            let code = end_of(channel.clone(), authorised(&service), messages.clone()).await;
            // Some remain well-formed: another client's name, another id.
            let expected = matches!(code, Code::Ok | Code::InvalidArgument | Code::NotFound);
            assert!(expected, "{code:?} for {messages:?}");
            refused += usize::from(code != Code::Ok);
        }
    });
    assert!(refused > 200, "only {refused} were refused: that was no nonsense");
    assert_eq!(editor.turn(&session, "still here"), ["echo: still here"]);
}

#[test]
fn e08_wrong_session_ids_do_no_harm() {
    let service = service(&json!({})).start();
    let (mut editor, session) = service.session();
    for wrong in [json!("no-such-session"), json!(""), json!(7), json!(null), json!({ "a": [] })] {
        let prompt = json!([{ "type": "text", "text": "x" }]);
        let error = editor.call_error("session/prompt", &json!({ "sessionId": wrong, "prompt": prompt }));
        assert!(matches!(error["code"].as_i64(), Some(-32002 | -32602)), "{wrong}: {error}");
    }
    // A session of one editor is unknown to every other.
    let mut stranger = service.editor();
    let id = stranger.prompt(&session, "mine?");
    assert_eq!(stranger.error_of(&id)["code"], -32002);
    assert_eq!(editor.turn(&session, "mine"), ["echo: mine"]);
}

#[test]
fn e09_prompts_in_a_running_turn_are_queued_in_order() {
    let service = service(&json!({})).start();
    let (mut editor, session) = service.session();
    let gate = service.dir.join("go");
    let first =
        editor.prompt_do(&session, &json!([{ "update": { "text": "first" } }, { "wait_file": gate }]));
    editor.wait_chunks(&session, 1);
    let queued: Vec<_> = (0..5).map(|number| editor.prompt(&session, &number.to_string())).collect();
    // An extension request is answered beside the turn: so the queue has been reached.
    let steps = json!([{ "answer": { "result": {} } }]);
    editor.call("_x/do", &json!({ "sessionId": session, "do": steps }));
    let prompts = service
        .received("fake")
        .into_iter()
        .filter(|line| line.method().as_deref() == Some("session/prompt"))
        .count();
    assert_eq!(prompts, 1, "the agent never has two prompts at once");
    std::fs::write(gate, "").unwrap();
    for id in std::iter::once(&first).chain(&queued) {
        assert_eq!(editor.stop_reason(id), "end_turn");
    }
    assert_eq!(editor.chunks(&session), ["first0", "echo: 0", "echo: 1", "echo: 2", "echo: 3", "echo: 4"]);
}

#[test]
fn e09_queue_of_prompts_is_bounded() {
    let service = service(&json!({})).start();
    let (mut editor, session) = service.session();
    let gate = service.dir.join("go");
    let first = editor.prompt_do(&session, &json!([{ "update": {} }, { "wait_file": gate }]));
    editor.wait_chunks(&session, 1);
    let queued: Vec<_> = (0..16).map(|number| editor.prompt(&session, &number.to_string())).collect();
    let over = editor.prompt(&session, "one too many");
    assert_says(&editor.error_of(&over), &["16 prompts are waiting for the running turn already"]);
    std::fs::write(gate, "").unwrap();
    for id in std::iter::once(&first).chain(&queued) {
        assert_eq!(editor.stop_reason(id), "end_turn");
    }
}
