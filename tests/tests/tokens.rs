//! API tokens: made, listed and revoked by administrators, good for their user
//! until then and not a moment longer, and shown to nobody but that user.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

use std::{fs, path::Path, process::Output, time::Duration};

use conductor::proto::{
    ConnectRequest, CreateTokenRequest, ListAgentsRequest, ListTokensRequest, RestartAgentRequest,
    RevokeTokenRequest, agents_client::AgentsClient, connect_request, tokens_client::TokensClient,
};
use conductor_tests::{
    harness::{Service, service},
    people::{Person, channel, owner},
    tunnel::{Tunnel, hello},
};
use serde_json::{Value, json};
use tonic::{Code, Status};

fn texts(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

fn listed(service: &Service) -> Vec<Value> {
    let output = service.run(&["token", "ls", "--json"]);
    assert!(output.status.success(), "{output:?}");
    let list: Value = serde_json::from_slice(&output.stdout).unwrap();
    list["tokens"].as_array().unwrap().clone()
}

/// What becomes of a plain call.
fn call(service: &Service, person: &Person) -> Result<(), Status> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut agents = AgentsClient::new(channel(service).await);
        agents.list(person.request(ListAgentsRequest {})).await.map(|_| ())
    })
}

fn refused(service: &Service, person: &Person) {
    let status = call(service, person).unwrap_err();
    assert_eq!(status.code(), Code::Unauthenticated, "{status:?}");
    assert!(!status.message().contains(&person.token), "{status:?}");
}

/// An open stream of this person's.
fn stream(service: &Service, person: &Person) -> Tunnel {
    let hello = ConnectRequest { kind: Some(connect_request::Kind::Hello(hello())) };
    let mut tunnel = Tunnel::open_with(service, person.metadata(), Some(hello));
    tunnel.next_message().expect("a welcome");
    tunnel
}

#[test]
fn a_token_is_made_used_listed_and_revoked() {
    let service = service(&json!({})).start();
    let made = service.run(&["token", "create", "--user", "ann", "--team", "web", "--team", "core"]);
    let (token, told) = texts(&made);
    assert!(made.status.success(), "{told}");
    assert_eq!(token.lines().count(), 1, "{token}");
    let port = service.endpoint().rsplit(':').next().unwrap().to_owned();
    let way = format!("ssh -L {port}:127.0.0.1:{port} HOST");
    assert!(told.contains("CONDUCTOR_TOKEN") && told.contains(&way), "{told}");
    assert!(!told.contains(token.trim()), "once is enough: {told}");
    let all = listed(&service);
    let [only] = all.as_slice() else { panic!("{all:?}") };
    assert_eq!(
        (&only["user"], &only["teams"], &only["roles"]),
        (&json!("ann"), &json!(["core", "web"]), &json!(["developer"]))
    );
    assert_eq!((&only["state"], &only["revoked_us"]), (&json!("valid"), &Value::Null));
    let days = (only["expires_us"].as_i64().unwrap() - only["created_us"].as_i64().unwrap()) / 86_400_000_000;
    assert_eq!(days, 90);
    let ann = Person { token: token.trim().to_owned(), id: only["id"].as_str().unwrap().to_owned() };

    let mut editor = ann.editor(&service);
    let session = editor.new_session(&service.work());
    assert_eq!(editor.turn(&session, "hello"), ["echo: hello"]);
    let sessions = ann.run(&service, &["sessions", "ls", "--json"]);
    assert!(sessions.status.success(), "{sessions:?}");

    let table = texts(&service.run(&["token", "ls"])).0;
    let lines: Vec<_> = table.lines().collect();
    assert!(lines[0].starts_with("ID ") && lines[1].starts_with(&ann.id), "{table}");
    assert_eq!(lines[0].find("USER"), lines[1].find("ann"), "columns line up: {table}");
    assert!(!table.contains(&ann.token), "{table}");

    let revoked = service.run(&["token", "revoke", &ann.id[..35]]);
    assert_eq!(texts(&revoked).0, format!("token {} of ann is revoked\n", ann.id));
    refused(&service, &ann);
    assert_eq!(editor.wait_exit().code(), Some(1), "{}", editor.story());
    assert!(
        editor.stderr().contains("revoked") && !editor.stderr().contains(&ann.token),
        "{}",
        editor.stderr()
    );
    assert_eq!(listed(&service)[0]["state"], "revoked");
    // Once more is fine.
    assert!(service.run(&["token", "revoke", &ann.id]).status.success());
}

#[test]
fn only_administrators_have_to_do_with_tokens() {
    let service = service(&json!({})).start();
    let ann = Person::named(&service, "ann");
    for args in [
        &["token", "create", "--user", "eve", "--role", "admin"][..],
        &["token", "ls"],
        &["token", "revoke", &ann.id],
        &["agents", "restart", "fake"],
    ] {
        let (out, told) = texts(&ann.run(&service, args));
        assert!(told.contains("administrators") && out.is_empty(), "{args:?}: {out} {told}");
    }
    assert_eq!(listed(&service).len(), 1);
    assert!(call(&service, &ann).is_ok());
    let root = Person::new(&service, &["--user", "root2", "--role", "admin"]);
    let eve = root.run(&service, &["token", "create", "--user", "eve"]);
    assert!(eve.status.success(), "{eve:?}");
    assert_eq!(listed(&service)[0]["created_by"], "root2");
    // Whoever revokes their own token is told so.
    let last = root.run(&service, &["token", "revoke", &root.id]);
    assert!(texts(&last).0.ends_with("of root2 is revoked\n"), "{last:?}");
    refused(&service, &root);
}

#[test]
fn a_revoked_or_expired_token_ends_its_streams() {
    let service = service(&json!({})).start();
    let (ann, bob) = (Person::named(&service, "ann"), Person::named(&service, "bob"));
    let (mut of_ann, mut of_bob) = (stream(&service, &ann), stream(&service, &bob));
    assert!(service.run(&["token", "revoke", &ann.id]).status.success());
    of_ann.expect_end(Code::Unauthenticated);
    // What she says now is heard by nobody, and others do not notice.
    of_ann.send_frame(r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":1}}"#);
    of_bob.send_frame(r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":1}}"#);
    assert_eq!(of_bob.next_frames()[0]["id"], 0);

    let brief = Person::new(&service, &["--user", "cleo", "--ttl", "2s"]);
    let mut of_cleo = stream(&service, &brief);
    let end = of_cleo.next_within(Duration::from_secs(60)).unwrap_err();
    assert_eq!(end.code(), Code::Unauthenticated, "{end:?}");
    refused(&service, &brief);
    assert_eq!(listed(&service)[0]["state"], "expired");
}

/// Whoever takes nothing any more holds up what is said to them, but not the end of
/// their token.
#[test]
fn whoever_reads_nothing_is_not_heard_any_longer_than_others() {
    let service = service(&json!({})).start();
    let ann = Person::named(&service, "ann");
    let mut tunnel = stream(&service, &ann);
    tunnel.send_frame(r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":1}}"#);
    assert_eq!(tunnel.next_frames()[0]["id"], 0);
    let new = json!({ "jsonrpc": "2.0", "id": 1, "method": "session/new",
        "params": { "cwd": service.work(), "mcpServers": [] } });
    tunnel.send_frame(&new.to_string());
    let session = tunnel.next_frames()[0]["result"]["sessionId"].clone();
    let flood = json!({ "do": [{ "update": { "n": 1000, "size": 50_000 } }, { "hang": null }] }).to_string();
    let prompt = json!({ "jsonrpc": "2.0", "id": 2, "method": "session/prompt",
        "params": { "sessionId": session, "prompt": [{ "type": "text", "text": flood }] } });
    tunnel.send_frame(&prompt.to_string());
    tunnel.next_frames();
    assert!(service.run(&["token", "revoke", &ann.id]).status.success());
    service.wait_no_process("fake");
}

#[test]
fn tokens_outlive_the_service_and_so_does_their_end() {
    let mut service = service(&json!({})).start();
    let (ann, bob) =
        (Person::new(&service, &["--user", "ann", "--team", "web"]), Person::named(&service, "bob"));
    assert!(service.run(&["token", "revoke", &bob.id]).status.success());
    // Without warning: what was answered is on disk.
    service.kill9();
    service.start_again();
    assert!(call(&service, &ann).is_ok());
    refused(&service, &bob);
    let all = listed(&service);
    assert_eq!((&all[0]["state"], &all[1]["teams"]), (&json!("revoked"), &json!(["web"])));
    assert_eq!(service.term().code(), Some(0));
    service.start_again();
    assert!(call(&service, &ann).is_ok());
    refused(&service, &bob);
}

// The service stops only once its clients have heard so.
#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_a_token_is_refused() {
    let service = service(&json!({})).start();
    let me = owner(&service);
    let mut tokens = TokensClient::new(channel(&service).await);
    let good = CreateTokenRequest { user: "ann".into(), ..Default::default() };
    let long = "x".repeat(101);
    let named = |user: &str| CreateTokenRequest { user: user.into(), ..good.clone() };
    let in_team = |team: &str| CreateTokenRequest { teams: vec![team.into()], ..good.clone() };
    let many = (0..51).map(|team| team.to_string()).collect();
    for bad in [
        named(""),
        named(" ann"),
        named("a\nb"),
        named("\u{1b}[2Jann"),
        named("a\u{202e}nn"),
        named("team:web"),
        named(&long),
        in_team(""),
        in_team("a,b"),
        CreateTokenRequest { teams: many, ..good.clone() },
        CreateTokenRequest { role: "god".into(), ..good.clone() },
        CreateTokenRequest { ttl_seconds: u64::MAX, ..good.clone() },
    ] {
        let status = tokens.create(me.request(bad)).await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
        assert!(!status.message().contains(['\u{1b}', '\u{202e}', '\n']), "{status:?}");
    }
    assert!(tokens.list(me.request(ListTokensRequest {})).await.unwrap().into_inner().tokens.is_empty());
    let made = tokens.create(me.request(good)).await.unwrap().into_inner();
    // The token where its id belongs is told nobody.
    for wrong in [made.token.as_str(), "", "nothing", "00000000-0000-0000-0000-000000000000"] {
        let status = tokens.revoke(me.request(RevokeTokenRequest { id: wrong.into() })).await.unwrap_err();
        assert_eq!(status.code(), Code::NotFound, "{status:?}");
        assert!(!status.message().contains(&made.token), "{status:?}");
    }
    // Nearly a token is none.
    for presented in
        [&made.token[..made.token.len() - 1], &made.token.to_uppercase(), "", "x", &"x".repeat(8000)]
    {
        let person = Person { token: presented.to_owned(), id: String::new() };
        let mut agents = AgentsClient::new(channel(&service).await);
        let status = agents.list(person.request(ListAgentsRequest {})).await.unwrap_err();
        assert_eq!(status.code(), Code::Unauthenticated, "{status:?}");
    }
    let mut agents = AgentsClient::new(channel(&service).await);
    let ann = Person { token: made.token, id: String::new() };
    let restart = RestartAgentRequest { name: "fake".into(), force: true };
    assert_eq!(agents.restart(ann.request(restart)).await.unwrap_err().code(), Code::PermissionDenied);
    let command = service.run(&["token", "create", "--user", "ann", "--ttl", "0s"]);
    assert_eq!(command.status.code(), Some(1), "{command:?}");
}

/// Files beneath a directory that hold this.
fn holding(directory: &Path, needle: &str) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap().filter_map(Result::ok) {
        let path = entry.path();
        if path.is_dir() {
            found.extend(holding(&path, needle));
        } else if let Ok(bytes) = fs::read(&path)
            && bytes.windows(needle.len()).any(|window| window == needle.as_bytes())
        {
            found.push(path.display().to_string());
        }
    }
    found
}

#[test]
fn a_token_is_written_nowhere() {
    let mut service = service(&json!({})).env("RUST_LOG", "trace").start();
    let ann = Person::named(&service, "ann");
    let mut editor = ann.editor(&service);
    let session = editor.new_session(&service.work());
    editor.turn(&session, "hello");
    let agents = service.agents_alive();
    assert_eq!(agents.len(), 1);
    for running in service.processes() {
        assert!(!running.command.contains(&ann.token), "{running:?}");
    }
    for pid in agents {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap();
        assert!(!String::from_utf8_lossy(&environment).contains(&ann.token));
    }
    service.run(&["token", "revoke", &ann.id]);
    refused(&service, &ann);
    drop(editor);
    service.term();
    // The log stands beneath it, too.
    assert_eq!(holding(&service.dir, &ann.token), Vec::<String>::new());
    let control = holding(&service.dir, &ann.id);
    assert!(control.iter().any(|file| file.ends_with("serve.log")), "{control:?}");
}
