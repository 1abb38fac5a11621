//! Faults where connections are accepted (`tests/faults`, rows N5, N7 and N8):
//! everybody comes back at once, there is no descriptor left for another
//! connection, somebody else has the port.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

use std::{
    net::TcpListener,
    process::Stdio,
    thread,
    time::{Duration, Instant},
};

use conductor::proto::{
    ConnectRequest, ConnectResponse, Hello, Run, Welcome, acp_client::AcpClient, connect_request,
    connect_response,
};
use conductor_tests::{
    admin::{metric, watched},
    editor::Editor,
    harness::{Service, poll_until, service},
    proxy::Proxy,
    tunnel::{authorised, hello},
};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use serde_json::json;
use tokio::{sync::mpsc, task::JoinSet};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Streaming, metadata::MetadataMap, transport::Endpoint};

const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":1}}"#;

/// Connections in one process; what a thousand bridges take is measured by
/// `make bench`.
const FLEET: usize = 100;

/// Bridges, each a process of its own.
const BRIDGES: usize = 16;

/// How long a whole team may take to be back.
const BACK: Duration = Duration::from_secs(10);

/// One connection of the fleet.
struct Client {
    welcome: Welcome,
    outgoing: mpsc::Sender<ConnectRequest>,
    incoming: Streaming<ConnectResponse>,
}

impl Client {
    async fn open(port: u16, metadata: MetadataMap, hello: Hello) -> Self {
        let endpoint = Endpoint::from_shared(format!("http://127.0.0.1:{port}")).unwrap();
        let mut acp = AcpClient::new(endpoint.connect().await.unwrap());
        let (outgoing, queued) = mpsc::channel(4);
        let hello = connect_request::Kind::Hello(Hello { resumable: true, ..hello });
        outgoing.try_send(ConnectRequest { kind: Some(hello) }).unwrap();
        let mut request = Request::new(ReceiverStream::new(queued));
        *request.metadata_mut() = metadata;
        let mut incoming = acp.connect(request).await.unwrap().into_inner();
        let first = incoming.message().await.unwrap().unwrap();
        let Some(connect_response::Kind::Welcome(welcome)) = first.kind else { panic!("{first:?}") };
        Self { welcome, outgoing, incoming }
    }

    /// Asks something; the number of the frame that answers.
    async fn ask(&mut self, seq: u64) -> u64 {
        let run = Run { first_seq: seq, count: 1, frames: format!("{INITIALIZE}\n").into() };
        let message = ConnectRequest { kind: Some(connect_request::Kind::Run(run)) };
        self.outgoing.send(message).await.unwrap();
        loop {
            let message = self.incoming.message().await.unwrap().unwrap();
            if let Some(connect_response::Kind::Run(run)) = message.kind {
                assert_eq!(run.count, 1, "{run:?}");
                return run.first_seq;
            }
        }
    }

    fn back(&self) -> Hello {
        Hello {
            connection_id: self.welcome.connection_id.clone(),
            resume_key: self.welcome.resume_key.clone(),
            last_seq: 1,
            ..hello()
        }
    }
}

#[test]
fn n05_all_connections_come_back_at_once() {
    let service = service(&json!({})).start();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let port = service.endpoint().rsplit(':').next().unwrap().parse().unwrap();
    runtime.block_on(async {
        let proxy = Proxy::to(port).await;
        let mut fleet = JoinSet::new();
        for _ in 0..FLEET {
            let (port, metadata) = (proxy.port(), authorised(&service));
            fleet.spawn(async move {
                let mut client = Client::open(port, metadata, hello()).await;
                assert_eq!(client.ask(1).await, 1);
                client
            });
        }
        let fleet = fleet.join_all().await;
        proxy.cut();
        let began = Instant::now();
        let mut again = JoinSet::new();
        for former in fleet {
            let (port, metadata) = (proxy.port(), authorised(&service));
            again.spawn(async move {
                let mut client = Client::open(port, metadata, former.back()).await;
                assert!(client.welcome.resumed, "{:?}", client.welcome);
                assert_eq!(client.welcome.connection_id, former.welcome.connection_id);
                // Neither a gap nor a frame that was taken already.
                assert_eq!(client.ask(2).await, 2);
            });
        }
        assert_eq!(again.join_all().await.len(), FLEET);
        assert!(began.elapsed() < BACK, "it took {:?}", began.elapsed());
        assert_eq!(proxy.connections(), 2 * FLEET, "each came back once");
    });
}

#[test]
fn n05_all_bridges_of_a_restarted_service_come_back() {
    let mut service = service(&json!({})).set("agents.fake.sessions_per_process", BRIDGES).start();
    let mut editors: Vec<(Editor, String)> = (0..BRIDGES).map(|_| service.session()).collect();
    service.kill9();
    service.start_again();
    let began = Instant::now();
    thread::scope(|scope| {
        for (editor, session) in &mut editors {
            scope.spawn(move || {
                editor.set_deadline(Duration::from_secs(30));
                assert_eq!(editor.turn(session, "back"), ["echo: back"]);
            });
        }
    });
    assert!(began.elapsed() < BACK, "it took {:?}", began.elapsed());
    let connected = service.log().matches("editor connected").count();
    assert_eq!(connected, 2 * BRIDGES, "each came back once");
}

/// Leaves the service no descriptor but those it has; what it had before.
fn no_more_descriptors(service: &Service) -> Rlimit {
    let (mut before, mut least, mut since) = (None, u64::MAX, Instant::now());
    // A file may be open for a moment only, and leave a place when it is closed.
    let settled = poll_until(Duration::from_secs(10), || {
        let open = std::fs::read_dir(format!("/proc/{}/fd", service.pid())).unwrap();
        let open: Vec<u64> =
            open.map(|entry| entry.unwrap().file_name().to_string_lossy().parse().unwrap()).collect();
        let free = (0..).find(|number| !open.contains(number)).unwrap();
        if free < least {
            (least, since) = (free, Instant::now());
            // It has inherited the hard one from here.
            let limit = Rlimit { current: Some(free), ..getrlimit(Resource::Nofile) };
            let was = prlimit(Pid::from_raw(service.pid().cast_signed()), Resource::Nofile, limit);
            before.get_or_insert(was.unwrap());
        }
        since.elapsed() > Duration::from_millis(300)
    });
    assert!(settled, "descriptors come and go");
    before.unwrap()
}

#[test]
fn n07_without_descriptors_it_pauses_and_recovers() {
    let service = watched(service(&json!({}))).start();
    let (mut editor, session) = service.session();
    editor.turn(&session, "before");
    let before = no_more_descriptors(&service);
    let mut late = service.connect(&[]);
    let asked = late.request("initialize", &json!({ "protocolVersion": 1 }));
    service.wait_log("cannot accept connections right now");
    // Whoever is connected is served, and told what does not work.
    assert_eq!(editor.turn(&session, "meanwhile"), ["echo: meanwhile"]);
    let params = json!({ "cwd": service.work(), "mcpServers": [] });
    let refused = editor.call_error("session/new", &params);
    assert!(refused["message"].as_str().unwrap().contains("open files"), "{refused}");
    assert_eq!(late.answers_to(&asked), 0);
    let pid = Pid::from_raw(service.pid().cast_signed());
    prlimit(pid, Resource::Nofile, before).unwrap();
    // The one that waited needs not come again.
    assert_eq!(late.response(&asked)["result"]["protocolVersion"], 1);
    let opened = poll_until(Duration::from_secs(10), || {
        let id = late.request("session/new", &params);
        late.response(&id).get("result").is_some()
    });
    assert!(opened, "{}", late.story());
    // It did not spin while it waited: a line is logged with each try.
    let tries = service.log().matches("cannot accept connections").count();
    assert!(tries < 200, "{tries} tries");
    assert_eq!(metric(&service, "conductor_accept_failures_total"), tries as f64);
}

#[test]
fn n08_port_that_is_taken_is_said_once_and_clearly() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let dir = tempfile::tempdir().unwrap();
    let output = std::process::Command::new(conductor_tests::harness::program("conductor"))
        .args(["serve", "--listen", &address])
        .env("CONDUCTOR_STATE_DIR", dir.path().join("state"))
        .env("HOME", dir.path())
        .env_remove("CONDUCTOR_CONFIG")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let told = String::from_utf8(output.stderr).unwrap();
    assert_eq!(told.lines().count(), 1, "{told}");
    assert!(told.contains(&address) && told.contains("--listen"), "cause and remedy: {told}");
    assert!(!dir.path().join("state/endpoint").exists());
}
