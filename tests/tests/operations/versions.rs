//! A bridge and a service of other versions: what one does not know of the other is
//! passed over, and what cannot be understood is refused in words.

use std::pin::Pin;

use conductor::proto::{
    ConnectRequest, ConnectResponse, Run, Welcome,
    acp_server::{Acp, AcpServer},
    connect_request, connect_response,
};
use conductor_tests::{
    editor::{DEADLINE, Editor},
    harness::{Service, service},
    people::{channel, owner},
};
use serde_json::json;
use tokio::{net::TcpListener, runtime::Runtime, sync::mpsc, time::timeout};
use tokio_stream::{
    Stream, StreamExt as _,
    wrappers::{ReceiverStream, TcpListenerStream},
};
use tonic::{Code, Request, Response, Status, Streaming, client::Grpc, transport::Server};

/// What a later bridge might say: more in its greeting, and more sorts of messages.
#[derive(Clone, PartialEq, prost::Message)]
struct LaterRequest {
    #[prost(message, optional, tag = "1")]
    hello: Option<LaterHello>,
    #[prost(message, optional, tag = "2")]
    run: Option<Run>,
    #[prost(message, optional, tag = "40")]
    other: Option<LaterHello>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct LaterHello {
    #[prost(string, tag = "1")]
    client: String,
    #[prost(string, tag = "99")]
    colour: String,
    #[prost(fixed64, repeated, tag = "100")]
    numbers: Vec<u64>,
}

async fn connect(
    service: &Service,
    requests: mpsc::Receiver<LaterRequest>,
) -> Result<Streaming<ConnectResponse>, Status> {
    let mut grpc = Grpc::new(channel(service).await);
    grpc.ready().await.unwrap();
    let codec = tonic_prost::ProstCodec::<LaterRequest, ConnectResponse>::default();
    let path = "/conductor.v1.Acp/Connect".parse().unwrap();
    let request = owner(service).request(ReceiverStream::new(requests));
    Ok(grpc.streaming(request, path, codec).await?.into_inner())
}

/// The next message that has something to say.
async fn next(stream: &mut Streaming<ConnectResponse>) -> Result<connect_response::Kind, Status> {
    let message = timeout(DEADLINE, stream.message()).await.expect("a message in time")?;
    Ok(message.expect("the stream goes on").kind.expect("a known sort of message"))
}

fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

#[test]
fn a_later_bridge_is_served_and_told_what_is_not_understood() {
    let service = service(&json!({})).start();
    runtime().block_on(async {
        let (requests, queued) = mpsc::channel(8);
        let greeting =
            LaterHello { client: "later/9.0".into(), colour: "blue".into(), numbers: vec![1, 2, 3] };
        let hello = LaterRequest { hello: Some(greeting.clone()), ..LaterRequest::default() };
        requests.send(hello).await.unwrap();
        let mut stream = connect(&service, queued).await.unwrap();
        assert!(matches!(next(&mut stream).await, Ok(connect_response::Kind::Welcome(_))));
        let call =
            json!({ "jsonrpc": "2.0", "id": 1, "method": "initialize", "params": { "protocolVersion": 1 } });
        let run = Run { first_seq: 1, count: 1, frames: format!("{call}\n").into() };
        requests.send(LaterRequest { run: Some(run), ..LaterRequest::default() }).await.unwrap();
        let answer = loop {
            if let connect_response::Kind::Run(run) = next(&mut stream).await.unwrap() {
                break String::from_utf8_lossy(&run.frames).into_owned();
            }
        };
        assert!(answer.contains("protocolVersion"), "{answer}");
        // A sort of message that this service does not know is refused, with the reason.
        requests.send(LaterRequest { other: Some(greeting), ..LaterRequest::default() }).await.unwrap();
        let refused = loop {
            if let Err(status) = next(&mut stream).await {
                break status;
            }
        };
        assert_eq!(refused.code(), Code::InvalidArgument);
        assert!(refused.message().contains("a hello, a run or an ack"), "{refused:?}");
    });
}

#[test]
fn an_earlier_bridge_that_says_little_is_served() {
    let service = service(&json!({})).start();
    runtime().block_on(async {
        let (requests, queued) = mpsc::channel(8);
        let hello = LaterHello::default();
        requests.send(LaterRequest { hello: Some(hello), ..LaterRequest::default() }).await.unwrap();
        let mut stream = connect(&service, queued).await.unwrap();
        let Ok(connect_response::Kind::Welcome(welcome)) = next(&mut stream).await else {
            panic!("no welcome");
        };
        assert!(welcome.resume_key.is_empty(), "it did not say that it can come back");
    });
}

/// How a service of another version begins.
#[derive(Clone, Copy)]
enum Other {
    /// With a welcome that has nothing in it, then a message of an unknown sort.
    Sparse,
    /// With something else than a welcome.
    Strange,
}

#[tonic::async_trait]
impl Acp for Other {
    type ConnectStream = Pin<Box<dyn Stream<Item = Result<ConnectResponse, Status>> + Send>>;

    async fn connect(
        &self,
        request: Request<Streaming<ConnectRequest>>,
    ) -> Result<Response<Self::ConnectStream>, Status> {
        let first = match self {
            Self::Sparse => Some(connect_response::Kind::Welcome(Welcome::default())),
            Self::Strange => None,
        };
        // What a later service sends that this bridge does not know looks like nothing.
        let first = [first, None].map(|kind| Ok(ConnectResponse { kind }));
        let answers = request.into_inner().filter_map(|message| {
            let Ok(ConnectRequest { kind: Some(connect_request::Kind::Run(_)) }) = message else {
                return None;
            };
            let answer = json!({ "jsonrpc": "2.0", "id": 1, "result": { "protocolVersion": 1 } });
            let run = Run { first_seq: 1, count: 1, frames: format!("{answer}\n").into() };
            Some(Ok(ConnectResponse { kind: Some(connect_response::Kind::Run(run)) }))
        });
        Ok(Response::new(Box::pin(tokio_stream::iter(first).chain(answers))))
    }
}

/// A service of another version; its address, and what it runs on.
fn other(how: Other) -> (String, Runtime) {
    let runtime = runtime();
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let server = Server::builder().add_service(AcpServer::new(how));
    runtime.spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
    (address, runtime)
}

fn bridge(service: &Service, address: &str) -> Editor {
    service.connect(&["--endpoint", address])
}

#[test]
fn a_service_that_says_little_or_something_unknown_is_used_as_far_as_it_goes() {
    let service = service(&json!({})).start();
    let (address, _runtime) = other(Other::Sparse);
    let mut editor = bridge(&service, &address);
    let answer = editor.call("initialize", &json!({ "protocolVersion": 1 }));
    assert_eq!(answer["protocolVersion"], 1);
    editor.close_stdin();
    editor.wait_exit();
}

#[test]
fn a_service_that_speaks_otherwise_is_named() {
    let service = service(&json!({})).start();
    let (address, _runtime) = other(Other::Strange);
    let mut editor = bridge(&service, &address);
    let id = editor.request("initialize", &json!({ "protocolVersion": 1 }));
    let error = editor.error_of(&id).to_string();
    assert!(error.contains("does not speak the conductor's protocol"), "{error}");
    assert!(!editor.wait_exit().success());
    assert!(editor.stderr().contains(&address), "{}", editor.stderr());
}
