//! Sessions that are shared: who sees them, who drives them, who can tell that
//! they are there, and that all of it is on record and outlives the service.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

use std::{future::Future, process::Output};

use conductor::proto::{
    CloseSessionRequest, GetSessionRequest, ListFileAccessesRequest, ListSessionsRequest, ListSharesRequest,
    Party, ReadFramesRequest, ShareRole, ShareSessionRequest, UnshareSessionRequest,
    history_client::HistoryClient, party, sessions_client::SessionsClient, sharing_client::SharingClient,
};
use conductor_tests::{
    editor::{DEADLINE, Editor},
    harness::{Service, assert_says, open_params, poll_until, service},
    people::{Person, channel, owner, share},
};
use serde_json::{Value, json};
use tonic::{Code, Status, transport::Channel};
use uuid::Uuid;

fn out(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn told(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// A session of the service's own user that nobody has open.
fn parked(service: &Service) -> String {
    let (mut editor, session) = service.session();
    let title = json!({ "notify": { "method": "session/update", "params": { "sessionId": "$sid",
        "update": { "sessionUpdate": "session_info_update", "title": "Mend it" } } } });
    editor.turn_do(&session, &json!([title, { "update": { "text": "once " } }]));
    editor.call("session/close", &json!({ "sessionId": session }));
    session
}

fn listed(editor: &mut Editor) -> Vec<Value> {
    editor.call("session/list", &json!({}))["sessions"].as_array().unwrap().clone()
}

/// The notes of a session's record, without those of its life.
fn notes(service: &Service, session: &str) -> Vec<(String, Value)> {
    let frames = out(&service.run(&["sessions", "export", session]));
    let frames = frames.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let raw = frames.map(|frame| serde_json::from_str::<Value>(frame["raw"].as_str().unwrap()).unwrap());
    let notes = raw.filter(|raw| raw["method"].as_str().is_some_and(|name| name.ends_with("shared")));
    notes.map(|note| (note["method"].as_str().unwrap().to_owned(), note["params"].clone())).collect()
}

fn me() -> String {
    nix::unistd::User::from_uid(nix::unistd::Uid::effective()).unwrap().unwrap().name
}

#[test]
fn a_driver_finds_the_session_and_goes_on_with_it() {
    let service = service(&json!({})).start();
    let session = parked(&service);
    let ann = Person::named(&service, "ann");
    let mut editor = ann.editor(&service);
    assert_eq!(listed(&mut editor), Vec::<Value>::new());
    assert_eq!(ann.run(&service, &["sessions", "show", &session]).status.code(), Some(1));

    let said = out(&service.run(&["sessions", "share", &session, "--with", "ann", "--as", "driver"]));
    assert_eq!(said, format!("session {session} is shared with ann as driver\n"));
    let entries = listed(&mut editor);
    let [entry] = entries.as_slice() else { panic!("{entries:?}") };
    assert_eq!((&entry["sessionId"], &entry["title"]), (&json!(session), &json!("Mend it")));
    assert_eq!(entry["cwd"], json!(service.work()));
    assert!(entry["updatedAt"].is_string(), "{entry}");
    assert_eq!(entry["_meta"], json!({ "conductor": { "owner": me(), "as": "driver" } }));
    // One's own needs no mark.
    assert_eq!(listed(&mut service.editor())[0].get("_meta"), None);

    editor.call("session/load", &open_params(&service, &session));
    assert_eq!(editor.chunks(&session), ["once 0"]);
    assert_eq!(editor.turn(&session, "and twice").last().unwrap(), "echo: and twice");
    // It stays its owner's: that ann has opened it gives her nothing for good.
    editor.call("session/close", &json!({ "sessionId": session }));
    let wanted = format!("\"user_name\": {:?}", me());
    assert!(poll_until(DEADLINE, || {
        let shown = out(&ann.run(&service, &["sessions", "show", &session, "--json"]));
        shown.contains("and twice") && shown.contains(&wanted)
    }));
    out(&service.run(&["sessions", "unshare", &session, "--with", "user:ann"]));
    assert_eq!(listed(&mut editor), Vec::<Value>::new());
    assert_eq!(editor.call_error("session/load", &open_params(&service, &session))["code"], -32002);
    assert!(told(&ann.run(&service, &["sessions", "show", &session])).contains("there is no session"));
    assert!(out(&ann.run(&service, &["sessions", "ls", "--json"])).starts_with("[]"));

    let expected = [
        ("_conductor/shared", json!({ "with": "user:ann", "as": "driver", "by": me() })),
        ("_conductor/unshared", json!({ "with": "user:ann", "by": me() })),
    ];
    let expected: Vec<_> = expected.into_iter().map(|(name, params)| (name.to_owned(), params)).collect();
    assert_eq!(notes(&service, &session), expected);
}

#[test]
fn an_observer_sees_and_does_not_touch() {
    let service = service(&json!({})).start();
    let session = parked(&service);
    let ann = Person::named(&service, "ann");
    share(&service, &session, "ann", "observer");
    let mut editor = ann.editor(&service);
    assert_eq!(listed(&mut editor)[0]["_meta"]["conductor"]["as"], "observer");
    for method in ["session/load", "session/resume"] {
        let error = editor.call_error(method, &open_params(&service, &session));
        assert_says(&error, &["driver"]);
    }
    assert!(out(&ann.run(&service, &["sessions", "export", &session])).contains("once 0"));
    let found =
        || out(&ann.run(&service, &["sessions", "ls", "--json", "--text", "once"])).contains(&session);
    assert!(poll_until(DEADLINE, found));
    // Neither closing nor sharing it further is hers.
    assert_eq!(ann.run(&service, &["sessions", "close", &session]).status.code(), Some(1));
    for args in [&["sessions", "share", &session, "--with", "eve"][..], &["sessions", "shares", &session]] {
        assert!(told(&ann.run(&service, args)).contains(&format!("{}'s", me())), "{args:?}");
    }
    // A second time changes what she may do.
    share(&service, &session, "ann", "driver");
    let shares = out(&service.run(&["sessions", "shares", &session, "--json"]));
    let shares: Value = serde_json::from_str(&shares).unwrap();
    assert_eq!(shares["shares"].as_array().unwrap().len(), 1);
    assert_eq!((&shares["shares"][0]["with"], &shares["shares"][0]["as"]), (&json!("ann"), &json!("driver")));
    editor.call("session/resume", &open_params(&service, &session));
    assert_eq!(editor.turn(&session, "hers"), ["echo: hers"]);
}

#[test]
fn a_session_that_is_open_can_be_shared() {
    let service = service(&json!({})).start();
    let ann = Person::named(&service, "ann");
    let (mut mine, session) = service.session();
    mine.turn(&session, "hello");
    share(&service, &session, "ann", "observer");
    assert_eq!(listed(&mut ann.editor(&service))[0]["sessionId"], json!(session));
    assert!(out(&ann.run(&service, &["sessions", "export", &session])).contains("echo: hello"));
}

#[test]
fn a_team_is_those_who_are_in_it() {
    let service = service(&json!({})).start();
    let session = parked(&service);
    let ann = Person::new(&service, &["--user", "ann", "--team", "web", "--team", "core"]);
    let bob = Person::new(&service, &["--user", "bob", "--team", "ops"]);
    // A user is no team, whatever the name.
    let web = Person::named(&service, "web");
    share(&service, &session, "team:web", "observer");
    share(&service, &session, "team:core", "driver");
    // The better of the two counts.
    assert_eq!(listed(&mut ann.editor(&service))[0]["_meta"]["conductor"]["as"], "driver");
    for other in [&bob, &web] {
        assert_eq!(listed(&mut other.editor(&service)), Vec::<Value>::new());
    }
    let table = out(&service.run(&["sessions", "shares", &session]));
    let lines: Vec<_> = table.lines().collect();
    assert!(lines[0].starts_with("WITH") && lines[1].starts_with("team:web"), "{table}");
    assert_eq!(lines[0].find("AS"), lines[1].find("observer"), "columns line up: {table}");
    out(&service.run(&["sessions", "unshare", &session, "--with", "team:core"]));
    assert_eq!(listed(&mut ann.editor(&service))[0]["_meta"]["conductor"]["as"], "observer");
}

#[test]
fn shares_outlive_the_service_and_so_does_their_end() {
    let mut service = service(&json!({})).start();
    let session = parked(&service);
    let (ann, bob) = (Person::named(&service, "ann"), Person::named(&service, "bob"));
    share(&service, &session, "ann", "driver");
    share(&service, &session, "bob", "driver");
    out(&service.run(&["sessions", "unshare", &session, "--with", "bob"]));
    for crash in [true, false] {
        if crash {
            service.kill9();
        } else {
            service.term();
        }
        service.start_again();
        assert_eq!(listed(&mut bob.editor(&service)), Vec::<Value>::new());
        let mut editor = ann.editor(&service);
        assert_eq!(listed(&mut editor)[0]["_meta"]["conductor"]["as"], "driver");
        editor.call("session/resume", &open_params(&service, &session));
        assert_eq!(editor.turn(&session, "still"), ["echo: still"]);
        editor.call("session/close", &json!({ "sessionId": session }));
    }
    assert_eq!(notes(&service, &session).len(), 3);
}

/// What one person can ask of the service.
struct Asking {
    person: Person,
    sharing: SharingClient<Channel>,
    history: HistoryClient<Channel>,
    sessions: SessionsClient<Channel>,
}

impl Asking {
    async fn new(service: &Service, person: &Person) -> Self {
        let channel = channel(service).await;
        Self {
            person: person.clone(),
            sharing: SharingClient::new(channel.clone()),
            history: HistoryClient::new(channel.clone()),
            sessions: SessionsClient::new(channel),
        }
    }

    async fn share(&mut self, id: &str, with: Party, role: ShareRole) -> Result<(), Status> {
        let request = ShareSessionRequest { session_id: id.into(), with: Some(with), role: role.into() };
        self.sharing.share(self.person.request(request)).await.map(|_| ())
    }

    /// The answers to every question about one session.
    async fn everything(&mut self, id: &str) -> Vec<Result<(), (Code, String)>> {
        async fn answer<T>(
            asked: impl Future<Output = Result<T, Status>>,
            id: &str,
        ) -> Result<(), (Code, String)> {
            let failed = |status: Status| (status.code(), status.message().replace(id, "ID"));
            asked.await.map(|_| ()).map_err(failed)
        }
        let session_id = id.to_owned();
        let share = self.share(id, user("eve"), ShareRole::Driver).await;
        let person = self.person.clone();
        let unshare = UnshareSessionRequest { session_id: session_id.clone(), with: Some(user("eve")) };
        let shares = ListSharesRequest { session_id: session_id.clone() };
        let shown = GetSessionRequest { session_id: session_id.clone() };
        let frames = ReadFramesRequest { stream_id: session_id.clone(), ..Default::default() };
        let close = CloseSessionRequest { session_id: session_id.clone() };
        let listed = ListSessionsRequest { id_prefix: session_id.clone(), ..Default::default() };
        let files = ListFileAccessesRequest { session_id, ..Default::default() };
        let listed = self.history.list_sessions(person.request(listed)).await.unwrap().into_inner();
        assert_eq!(listed.sessions, []);
        let files = self.history.list_file_accesses(person.request(files)).await.unwrap().into_inner();
        assert_eq!(files.file_accesses, []);
        vec![
            answer(async { share }, id).await,
            answer(self.sharing.unshare(person.request(unshare)), id).await,
            answer(self.sharing.list_shares(person.request(shares)), id).await,
            answer(self.history.get_session(person.request(shown)), id).await,
            answer(self.history.read_frames(person.request(frames)), id).await,
            answer(self.sessions.close(person.request(close)), id).await,
        ]
    }
}

fn user(name: &str) -> Party {
    Party { party: Some(party::Party::User(name.into())) }
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_can_tell_anothers_session_from_none() {
    let service = service(&json!({})).start();
    let session = parked(&service);
    share(&service, &session, "ann", "observer");
    let bob = Person::named(&service, "bob");
    let mut asking = Asking::new(&service, &bob).await;
    let none = Uuid::now_v7().to_string();
    let (there, not_there) = (asking.everything(&session).await, asking.everything(&none).await);
    assert_eq!(there, not_there);
    assert!(there.iter().all(|answer| matches!(answer, Err((Code::NotFound, _)))), "{there:?}");

    let mut editor = bob.editor(&service);
    for method in ["session/load", "session/resume", "session/prompt"] {
        let mut errors = [&session, &none].map(|id| {
            let error = editor.call_error(method, &open_params(&service, id));
            error.to_string().replace(id.as_str(), "ID")
        });
        errors.sort();
        assert_eq!(errors[0], errors[1]);
    }
    for id in [&session, &none] {
        editor.call("session/delete", &json!({ "sessionId": id }));
    }
    // Not so much as scratched.
    assert_eq!(listed(&mut service.editor()).len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_owner_or_an_administrator_shares() {
    let service = service(&json!({})).start();
    let ann = Person::named(&service, "ann");
    let mut editor = ann.editor(&service);
    let session = editor.new_session(&service.work());
    editor.turn(&session, "mine");
    editor.call("session/close", &json!({ "sessionId": session }));
    let bob = Person::named(&service, "bob");
    let root = Person::new(&service, &["--user", "root2", "--role", "admin"]);
    let (mut of_ann, mut of_bob) = (Asking::new(&service, &ann).await, Asking::new(&service, &bob).await);
    let mut of_root = Asking::new(&service, &root).await;
    of_ann.share(&session, user("bob"), ShareRole::Driver).await.unwrap();
    let denied = of_bob.share(&session, user("eve"), ShareRole::Observer).await.unwrap_err();
    assert_eq!(denied.code(), Code::PermissionDenied);
    assert!(denied.message().contains("ann's"), "{denied:?}");
    of_root.share(&session, user("cleo"), ShareRole::Observer).await.unwrap();
    let request = of_ann.person.request(ListSharesRequest { session_id: session.clone() });
    let shares = of_ann.sharing.list_shares(request).await.unwrap().into_inner().shares;
    let by: Vec<_> = shares.iter().map(|share| share.shared_by.as_str()).collect();
    assert_eq!(by, ["ann", "root2"]);
    assert!(shares.iter().all(|share| share.shared_us > 0));
    // An administrator sees it all, but it does not become theirs.
    assert_eq!(listed(&mut root.editor(&service)), Vec::<Value>::new());
    assert_eq!(notes(&service, &session)[1].1["by"], "root2");
    // What its owner has deleted nobody sees any more.
    editor.call("session/delete", &json!({ "sessionId": session }));
    assert_eq!(listed(&mut bob.editor(&service)), Vec::<Value>::new());
    assert_eq!(of_bob.everything(&session).await, of_bob.everything(&Uuid::now_v7().to_string()).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_follows_a_session_is_put_out_when_it_is_unshared() {
    let service = service(&json!({})).start();
    let session = parked(&service);
    share(&service, &session, "ann", "observer");
    let ann = Person::named(&service, "ann");
    let mut of_ann = Asking::new(&service, &ann).await;
    let request = ReadFramesRequest { stream_id: session.clone(), follow: true, ..Default::default() };
    let mut frames = of_ann.history.read_frames(ann.request(request)).await.unwrap().into_inner();
    assert!(!frames.message().await.unwrap().unwrap().frames.is_empty());
    // Others' access is another matter.
    share(&service, &session, "bob", "driver");
    let note = frames.message().await.unwrap().unwrap().frames;
    assert!(note[0].raw.windows(8).any(|window| window == b"user:bob"), "she reads with whom it is shared");
    out(&service.run(&["sessions", "unshare", &session, "--with", "ann"]));
    let end = loop {
        match tokio::time::timeout(DEADLINE, frames.message()).await.unwrap() {
            Ok(Some(_)) => {}
            Ok(None) => panic!("the end says nothing"),
            Err(status) => break status,
        }
    };
    assert_eq!(end.code(), Code::NotFound, "{end:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_shared_is_refused() {
    let service = service(&json!({})).start();
    let session = parked(&service);
    let mut asking = Asking::new(&service, &owner(&service)).await;
    let team = |name: &str| Party { party: Some(party::Party::Team(name.into())) };
    let long = "x".repeat(101);
    for bad in [
        user(""),
        user("a\nb"),
        user("\u{1b}[2J"),
        user("a\u{202e}b"),
        user("team:web"),
        user(&long),
        user(&me()),
        team(""),
        team("a,b"),
        Party { party: None },
    ] {
        let refused = asking.share(&session, bad, ShareRole::Driver).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused:?}");
        assert!(!refused.message().contains(['\u{1b}', '\u{202e}', '\n']), "{refused:?}");
    }
    let refused = asking.share(&session, user("ann"), ShareRole::Unspecified).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    for id in ["", "x", "../../etc", &long] {
        let refused = asking.share(id, user("ann"), ShareRole::Driver).await.unwrap_err();
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused:?}");
    }
    // Taking back what was never given is fine, and leaves no trace.
    out(&service.run(&["sessions", "unshare", &session, "--with", "nobody"]));
    assert_eq!(notes(&service, &session), []);
    for number in 0..100 {
        asking.share(&session, user(&format!("u{number}")), ShareRole::Observer).await.unwrap();
    }
    let refused = asking.share(&session, user("one more"), ShareRole::Observer).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    // One of them can still be changed.
    asking.share(&session, user("u7"), ShareRole::Driver).await.unwrap();
}

#[test]
fn each_of_two_loads_at_once_is_answered() {
    let service = service(&json!({})).start();
    let (_lead, session) = service.session();
    for _ in 0..5 {
        let editor = service.editor();
        let load = |id: u32| {
            let params = open_params(&service, &session);
            json!({ "jsonrpc": "2.0", "id": id, "method": "session/load", "params": params })
        };
        editor.send_bytes(format!("{}\n{}\n", load(901), load(902)).as_bytes());
        // The second takes the place of the first, which may have been answered by then.
        editor.response(&json!(901));
        assert!(editor.response(&json!(902))["result"].is_object(), "{}", editor.story());
    }
}
