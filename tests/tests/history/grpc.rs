//! The services `History` and `Sessions` of a running conductor, and the
//! commands that ask them.

use std::process::Stdio;

use conductor::{
    ledger::Settings,
    proto::{
        CloseSessionRequest, GetSessionRequest, ListFileAccessesRequest, ListSessionsRequest,
        ReadFramesRequest, RecordedFrame, get_session_response::Entry, history_client::HistoryClient,
        sessions_client::SessionsClient,
    },
};
use conductor_tests::{
    harness::{self, Service},
    program::done,
    shipping::{Bench, PATIENCE},
};
use serde_json::{Value, json};
use tokio::time::timeout;
use tonic::{Code, Request, Status, metadata::MetadataValue, transport::Channel};
use uuid::Uuid;

use crate::fixture::{EDITING, everything, fill};

/// A service whose ledger has sessions of an earlier life.
async fn service() -> (Service, Vec<Uuid>) {
    let service = harness::service(&json!({})).start();
    let settings = Settings::embedded(&service.state());
    let ids = fill(&settings, &Bench::sqlite().journal(), &[EDITING, EDITING]).await;
    (service, ids)
}

async fn channel(service: &Service) -> Channel {
    Channel::from_shared(service.endpoint()).unwrap().connect().await.unwrap()
}

fn with_token<T>(service: &Service, message: T) -> Request<T> {
    let mut request = Request::new(message);
    let token: MetadataValue<_> = format!("Bearer {}", service.token()).parse().unwrap();
    request.metadata_mut().insert("authorization", token);
    request
}

async fn frames(
    service: &Service,
    client: &mut HistoryClient<Channel>,
    request: ReadFramesRequest,
) -> Result<Vec<RecordedFrame>, Status> {
    let mut answer = client.read_frames(with_token(service, request)).await?.into_inner();
    let mut frames = Vec::new();
    while let Some(some) = answer.message().await? {
        frames.extend(some.frames);
    }
    Ok(frames)
}

#[tokio::test(flavor = "multi_thread")]
async fn history_is_served() {
    let (service, ids) = service().await;
    let mut client = HistoryClient::new(channel(&service).await);

    let request = ListSessionsRequest { user: "ann".into(), page_size: 1, ..Default::default() };
    let first = client.list_sessions(with_token(&service, request.clone())).await.unwrap().into_inner();
    assert_eq!(first.sessions[0].session_id, ids[1].to_string());
    let request = ListSessionsRequest { page_token: first.next_page_token, ..request };
    let second = client.list_sessions(with_token(&service, request)).await.unwrap().into_inner();
    assert_eq!(second.sessions[0].session_id, ids[0].to_string());
    assert_eq!(second.next_page_token, "");

    let request = GetSessionRequest { session_id: ids[0].to_string() };
    let mut entries = client.get_session(with_token(&service, request)).await.unwrap().into_inner();
    let mut kinds = Vec::new();
    while let Some(message) = entries.message().await.unwrap() {
        let kind = match message.entry.unwrap() {
            Entry::Session(session) => {
                assert_eq!(session.title.as_deref(), Some(EDITING.title));
                0
            }
            Entry::Turn(_) => 1,
            Entry::Message(_) => 2,
            Entry::ToolCall(_) => 3,
            Entry::FileAccess(_) => 4,
            Entry::Command(_) => 5,
            Entry::Usage(_) => 6,
            Entry::Decision(_) => 7,
        };
        kinds.push(kind);
    }
    assert!(kinds.is_sorted(), "{kinds:?}");
    kinds.dedup();
    assert_eq!(kinds, [0, 1, 2, 3, 4, 5, 6, 7]);

    let request = ReadFramesRequest { stream_id: ids[0].to_string(), ..Default::default() };
    let read = frames(&service, &mut client, request.clone()).await.unwrap();
    let sent = everything(&EDITING, ids[0]);
    assert_eq!(read.len(), sent.len());
    assert!(read.iter().zip(&sent).skip(2).all(|(read, sent)| read.raw == sent.raw));
    let part = ReadFramesRequest { from_seq: 20, limit: 1, ..request };
    let part = frames(&service, &mut client, part).await.unwrap();
    assert_eq!(part.iter().map(|frame| frame.seq).collect::<Vec<_>>(), [20]);

    let request = ListFileAccessesRequest { path: "/etc".into(), page_size: 1, ..Default::default() };
    let first = client.list_file_accesses(with_token(&service, request.clone())).await.unwrap().into_inner();
    let request = ListFileAccessesRequest { page_token: first.next_page_token, ..request };
    let second = client.list_file_accesses(with_token(&service, request)).await.unwrap().into_inner();
    let sessions = [&first.file_accesses[0].session_id, &second.file_accesses[0].session_id];
    assert_eq!(sessions, [&ids[1].to_string(), &ids[0].to_string()]);
    assert_eq!(second.next_page_token, "");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_there_is_not_found_and_nonsense_is_refused() {
    let (service, _) = service().await;
    let channel = channel(&service).await;
    let mut client = HistoryClient::new(channel.clone());
    let mut sessions = SessionsClient::new(channel);
    let gone = Uuid::now_v7().to_string();
    let get = |id: &str| with_token(&service, GetSessionRequest { session_id: id.to_owned() });
    assert_eq!(client.get_session(get(&gone)).await.unwrap_err().code(), Code::NotFound);
    assert_eq!(client.get_session(get("x\u{1b}")).await.unwrap_err().code(), Code::InvalidArgument);
    let read = |id: &str| ReadFramesRequest { stream_id: id.to_owned(), ..Default::default() };
    assert_eq!(frames(&service, &mut client, read(&gone)).await.unwrap_err().code(), Code::NotFound);
    assert_eq!(frames(&service, &mut client, read("")).await.unwrap_err().code(), Code::InvalidArgument);
    let close = |id: &str| with_token(&service, CloseSessionRequest { session_id: id.to_owned() });
    assert_eq!(sessions.close(close(&gone)).await.unwrap_err().code(), Code::NotFound);
    for token in ["x", "1.2.3.4", "1.2"] {
        let request = ListFileAccessesRequest { page_token: token.into(), ..Default::default() };
        let refused = client.list_file_accesses(with_token(&service, request)).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{token}");
    }
    // Nobody without the token.
    let refused = client.list_sessions(ListSessionsRequest::default()).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unauthenticated);
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_ask_the_service() {
    let (service, ids) = service().await;
    let run = |args: &[&str]| done(&service.command(args).output().unwrap());
    let listed = run(&["sessions", "ls", "--json"]);
    assert_eq!((listed.code, listed.stderr.as_str()), (Some(0), ""));
    let listed: Value = serde_json::from_str(&listed.stdout).unwrap();
    assert_eq!(listed[0]["session_id"], ids[1].to_string());

    let shown = run(&["sessions", "show", "last"]);
    assert_eq!((shown.code, shown.stderr.as_str()), (Some(0), ""));
    for part in ["> make the parser faster\n", "    +fast\n", "· $ cargo test (exit 3)"] {
        assert!(shown.stdout.contains(part), "{part:?} is missing:\n{}", shown.stdout);
    }
    let exported = run(&["sessions", "export", &ids[0].to_string()]);
    assert_eq!((exported.code, exported.stdout.lines().count()), (Some(0), 21));
    let unknown = run(&["sessions", "close", &Uuid::now_v7().to_string()]);
    assert_eq!(unknown.code, Some(1));
    assert!(unknown.stderr.contains("there is no session"), "{unknown:?}");
    let unknown = run(&["sessions", "show", &Uuid::now_v7().to_string()]);
    assert!(unknown.stderr.contains("`conductor sessions ls` lists"), "{unknown:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_session_is_followed_until_it_is_closed() {
    let service = harness::service(&json!({})).demo().start();
    let work = service.work();
    let mut prompt = service
        .command(&["prompt", "--cwd", work.to_str().unwrap(), "slow 60"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut id = String::new();
    let listed = harness::poll_until(PATIENCE, || {
        let listed = done(&service.command(&["sessions", "ls", "--json"]).output().unwrap());
        let listed: Value = serde_json::from_str(&listed.stdout).unwrap_or_default();
        id = listed[0]["session_id"].as_str().unwrap_or_default().to_owned();
        !id.is_empty()
    });
    assert!(listed, "the session never came into the ledger: {}", service.log());

    let mut client = HistoryClient::new(channel(&service).await);
    let request = ReadFramesRequest { stream_id: id.clone(), follow: true, ..Default::default() };
    let mut answer = client.read_frames(with_token(&service, request)).await.unwrap().into_inner();
    let mut seqs = Vec::new();
    let mut read_until = async |wanted: &str| {
        loop {
            let some = timeout(PATIENCE, answer.message()).await.expect(wanted).unwrap().expect(wanted);
            seqs.extend(some.frames.iter().map(|frame| frame.seq));
            let found = |frame: &RecordedFrame| String::from_utf8_lossy(&frame.raw).contains(wanted);
            if some.frames.iter().any(found) {
                return seqs.clone();
            }
        }
    };
    read_until("second 2 of 60").await;
    let closed = done(&service.command(&["sessions", "close", &id[..30]]).output().unwrap());
    assert_eq!(
        (closed.code, closed.stdout),
        (Some(0), format!("session {id} is closed\n")),
        "{}",
        closed.stderr
    );
    let seqs = read_until("_conductor/session_ended").await;
    assert_eq!(seqs, (1..=seqs.len() as u64).collect::<Vec<_>>(), "no gap, no duplicate");
    drop(answer);
    assert!(!prompt.wait().unwrap().success(), "its turn did not end by itself");
}
