//! Logging in to agents: in a terminal on the service's host, by `authenticate`, and what
//! editors are told of it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

use std::{
    fs,
    io::{Read as _, Write as _},
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
};

use agent_client_protocol::{
    AcpAgent, AcpAgentConfig, Agent, Client,
    schema::ProtocolVersion,
    v1::{
        ConnectionTo,
        schema::{AuthMethod, AuthenticateRequest, InitializeRequest, NewSessionRequest},
    },
};
use conductor::{
    proto::{LoginRequest, LoginStart, agents_client::AgentsClient, login_request},
    record::Origin,
};
use conductor_tests::{
    disk::{journal, texts},
    editor::{DEADLINE, Editor},
    harness::{Builder, Running, Service, assert_says, poll_until, program, service},
    people::Person,
};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tokio_stream::StreamExt as _;
use tonic::transport::Channel;

/// What is typed must be found nowhere.
const WRONG_CODE: &str = "canary-typed-90b2";

fn methods() -> Value {
    json!([
        { "id": "browser", "name": "Browser", "description": "opens one" },
        { "id": "tui", "name": "Terminal", "type": "terminal", "args": ["login"], "env": { "LOGIN_MARK": "yes" } },
    ])
}

/// A service whose agent wants everybody to log in, in a home of their own.
fn with_login(methods: &Value) -> Builder {
    service(&json!({
        "auth_methods": methods,
        "needs_login": true,
        "capabilities": { "loadSession": true, "auth": { "logout": {} } },
    }))
    .set("agents.fake.home", "user")
}

fn only_terminal() -> Value {
    json!([methods()[1]])
}

fn new_session(service: &Service) -> Value {
    json!({ "cwd": service.work(), "mcpServers": [] })
}

fn login_file(service: &Service, user: &str) -> PathBuf {
    service.state().join("homes").join(format!("@{user}")).join("fake/.fake-login")
}

/// Runs a command with its input from a pipe.
fn typed(command: &mut Command, input: &str) -> Output {
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_login_in_a_terminal_is_the_users_own() {
    let service = with_login(&only_terminal()).set("agents.fake.warm", 1).start();
    let (ann, bob) = (Person::named(&service, "ann"), Person::named(&service, "bob"));
    let mut of_ann = ann.editor(&service);
    let refused = of_ann.call_error("session/new", &new_session(&service));
    assert_eq!(refused["code"], -32000);
    assert_eq!(refused["message"], "Authentication required\n\nTo log in, run: conductor agents login fake");
    // Somebody who types nothing right.
    let failed = typed(&mut ann.command(&service, &["agents", "login", "fake"]), &format!("{WRONG_CODE}\n"));
    assert_eq!(failed.status.code(), Some(1), "{failed:?}");
    assert!(text(&failed.stdout).contains("that is not it"), "{failed:?}");
    assert!(text(&failed.stderr).contains("has failed: it exited with status 3"), "{failed:?}");
    assert!(!login_file(&service, "ann").exists());
    // Somebody who does.
    let done = typed(&mut ann.command(&service, &["agents", "login", "fake"]), "right\n");
    assert!(done.status.success(), "{done:?}");
    let shown = text(&done.stdout);
    assert!(shown.contains("terminal true size Some((80, 24)) mark Some(\"yes\")"), "{shown}");
    assert!(
        shown.contains("welcome") && shown.contains("user `ann` is logged in to agent `fake`"),
        "{shown}"
    );
    assert_eq!(fs::read_to_string(login_file(&service, "ann")).unwrap(), "terminal");
    // The spare from before was replaced, and nobody else is logged in.
    of_ann.new_session(&service.work());
    let refused = bob.editor(&service).call_error("session/new", &new_session(&service));
    assert_eq!(refused["code"], -32000);
    assert!(!login_file(&service, "bob").exists());
    // It is on record who logged in, and not what was typed or shown.
    let mut journal = Vec::new();
    for entry in fs::read_dir(service.state().join("journal")).unwrap().filter_map(Result::ok) {
        if let Ok(mut file) = fs::File::open(entry.path()) {
            file.read_to_end(&mut journal).ok();
        }
    }
    let recorded = br#""login":{"user":"ann","method":"tui"}"#;
    assert_eq!(memchr::memmem::find_iter(&journal, recorded).count(), 2);
    for secret in [WRONG_CODE, "that is not it"] {
        assert!(memchr::memmem::find(&journal, secret.as_bytes()).is_none(), "{secret} is in the journal");
        assert!(!service.log().contains(secret));
    }
}

#[test]
fn a_real_terminal_works_as_one() {
    let service = with_login(&only_terminal()).start();
    let ann = Person::named(&service, "ann");
    // `script` gives the command a terminal, which it puts into raw mode and back.
    let line =
        format!("stty cols 100 rows 40; {} agents login fake; stty -a", program("conductor").display());
    let mut script = service.beside(Path::new("script"));
    script.env("CONDUCTOR_TOKEN", &ann.token);
    script.args(["-qec", &line, "/dev/null"]);
    let shown = typed(&mut script, "right\r");
    let shown = text(&shown.stdout);
    assert!(shown.contains("size Some((100, 40))"), "{shown}");
    assert!(shown.contains("is logged in to agent `fake`"), "{shown}");
    let after = shown.split("is logged in").nth(1).unwrap();
    assert!(after.contains(" icanon") && after.contains(" echo "), "the terminal is as it was: {after}");
}

#[test]
fn who_may_log_in_where() {
    let service = with_login(&methods()).set("agents.fake.home", "isolated").start();
    let ann = Person::named(&service, "ann");
    let told = |output: &Output| text(&output.stderr);
    let several = ann.run(&service, &["agents", "login", "fake"]);
    assert!(told(&several).contains("choose one with --method: browser, tui"), "{several:?}");
    let unknown = ann.run(&service, &["agents", "login", "fake", "--method", "nope"]);
    assert!(
        told(&unknown).contains("has no way `nope` to log in; its ways are: browser, tui"),
        "{unknown:?}"
    );
    let nobody = ann.run(&service, &["agents", "login", "nobody"]);
    assert!(told(&nobody).contains("there is no agent `nobody`; there are: "), "{nobody:?}");
    // A home that all share is not for everybody to log in to.
    let shared = ann.run(&service, &["agents", "login", "fake", "--method", "tui"]);
    assert!(told(&shared).contains("is for administrators"), "{shared:?}");
    let other = ann.run(&service, &["agents", "login", "fake", "--method", "tui", "--user", "bob"]);
    assert!(told(&other).contains("logging others in is for administrators"), "{other:?}");
    let done = typed(&mut service.command(&["agents", "login", "fake", "--method", "tui"]), "right\n");
    assert!(done.status.success(), "{done:?}");
    ann.editor(&service).new_session(&service.work());
}

#[test]
fn an_administrator_logs_somebody_else_in() {
    let service = with_login(&methods()).start();
    let ann = Person::named(&service, "ann");
    let args = ["agents", "login", "fake", "--method", "tui", "--user", "ann"];
    let done = typed(&mut service.command(&args), "right\n");
    assert!(done.status.success(), "{done:?}");
    assert!(text(&done.stdout).contains("user `ann` is logged in"), "{done:?}");
    ann.editor(&service).new_session(&service.work());
}

#[test]
fn an_agent_can_be_asked_to_do_it() {
    let service = with_login(&methods()).start();
    let ann = Person::named(&service, "ann");
    let done = ann.run(&service, &["agents", "login", "fake", "--method", "browser"]);
    assert!(done.status.success(), "{done:?}");
    let asked = service
        .wait_received("fake", "authenticate", |entry| entry.method().as_deref() == Some("authenticate"));
    assert_eq!(asked.json().unwrap()["params"], json!({ "methodId": "browser" }));
    let mut editor = ann.editor(&service);
    editor.new_session(&service.work());
    // And to forget it again.
    editor.call("logout", &json!({}));
    assert!(!login_file(&service, "ann").exists());
    assert_eq!(editor.call_error("session/new", &new_session(&service))["code"], -32000);
}

#[test]
fn a_login_ends_with_whoever_began_it() {
    let service = with_login(&only_terminal()).start();
    let ann = Person::named(&service, "ann");
    let mut command = ann.command(&service, &["agents", "login", "fake"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let runs = || service.processes().iter().any(|running| running.command.ends_with("fake-agent login"));
    assert!(poll_until(DEADLINE, runs), "{:?}", service.processes());
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(poll_until(DEADLINE, || !runs()), "{:?}", service.processes());
    service.wait_log("whoever began it has gone");
}

/// Begins a login that waits for somebody to type.
fn begin(service: &Service, person: &Person) -> Child {
    let mut command = person.command(service, &["agents", "login", "fake"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Waits until so many login programs run.
fn wait_logins(service: &Service, count: usize) {
    let command = format!("{} login", program("fake-agent").display());
    let is_login = |running: &&Running| running.command == command;
    let count_now = || service.processes().iter().filter(is_login).count();
    assert!(poll_until(DEADLINE, || count_now() == count), "{:?}", service.processes());
}

#[test]
fn nobody_takes_all_the_places_for_logins() {
    let service = with_login(&only_terminal()).start();
    let (ann, bob) = (Person::named(&service, "ann"), Person::named(&service, "bob"));
    let mut begun = [begin(&service, &ann), begin(&service, &ann)];
    wait_logins(&service, 2);
    let third = ann.run(&service, &["agents", "login", "fake"]);
    assert!(text(&third.stderr).contains("2 logins of user `ann` go on already"), "{third:?}");
    let done = typed(&mut bob.command(&service, &["agents", "login", "fake"]), "right\n");
    assert!(done.status.success(), "{done:?}");
    for child in &mut begun {
        child.kill().unwrap();
        child.wait().unwrap();
    }
    wait_logins(&service, 0);
    let again = || typed(&mut ann.command(&service, &["agents", "login", "fake"]), "right\n");
    assert!(poll_until(DEADLINE, || again().status.success()), "{:?}", again());
}

#[test]
fn a_login_that_the_service_cuts_off_is_recorded_as_ended() {
    let mut service = with_login(&only_terminal()).start();
    let ann = Person::named(&service, "ann");
    let login = begin(&service, &ann);
    wait_logins(&service, 1);
    assert_eq!(service.term().code(), Some(0));
    let told = login.wait_with_output().unwrap();
    assert_eq!(told.status.code(), Some(1), "{told:?}");
    let records = journal(&service);
    let notes = texts(&records, Origin::Conductor);
    let began = notes.iter().position(|note| note.contains(r#""login":{"user":"ann""#)).expect("its start");
    let ended = notes[began..].iter().find(|note| note.contains("because the service is stopping"));
    assert!(ended.is_some_and(|note| note.contains("_conductor/process_ended")), "{notes:#?}");
}

#[test]
fn a_login_that_nobody_looks_at_ends() {
    let ways = json!([
        methods()[1],
        { "id": "flood", "name": "Much", "type": "terminal", "args": ["login", "flood"] },
    ]);
    let service = with_login(&ways).start();
    let ann = Person::named(&service, "ann");
    let start = LoginStart { agent: "fake".into(), method: "flood".into(), ..LoginStart::default() };
    let start = LoginRequest { kind: Some(login_request::Kind::Start(start)) };
    let runtime = Runtime::new().unwrap();
    let unread = runtime.block_on(async {
        let channel = Channel::from_shared(service.endpoint()).unwrap();
        let channel = channel.initial_stream_window_size(1 << 16).initial_connection_window_size(1 << 17);
        let mut agents = AgentsClient::new(channel.connect().await.unwrap());
        let mut unread = Vec::new();
        for _ in 0..2 {
            // The request's half stays open, as that of somebody who only looks on.
            let said = tokio_stream::iter([start.clone()]).chain(tokio_stream::pending());
            unread.push(agents.login(ann.request(said)).await.unwrap().into_inner());
        }
        unread
    });
    let has_ended = || service.log().matches("a login has ended").count() == 2;
    assert!(poll_until(DEADLINE, has_ended), "{}", service.log());
    // Their places are free, though nobody has heard of it.
    let command = || ann.command(&service, &["agents", "login", "fake", "--method", "tui"]);
    assert!(poll_until(DEADLINE, || typed(&mut command(), "right\n").status.success()));
    drop((unread, runtime));
}

fn ids(initialized: &Value) -> Vec<&str> {
    let methods = initialized["authMethods"].as_array().unwrap();
    methods.iter().map(|method| method["id"].as_str().unwrap()).collect()
}

#[test]
fn editors_are_offered_the_ways_of_all_agents() {
    let other = json!({ "auth_methods": [{ "id": "key", "name": "Key" }], "needs_login": true });
    let service = with_login(&methods())
        .agent("other", &other)
        .agent("denied", &json!({ "auth_methods": [{ "id": "x", "name": "X" }] }))
        .set("agents.other.home", "user")
        .set("agents.other.title", "Other")
        .set("agents.denied.warm", 1)
        .rules("use = ['trusted']\n[[rule]]\nid = 'no'\neffect = 'deny'\nreason = 'not here'\nuse_agent = ['denied']\nmatch = [{ agent = 'denied' }]\n")
        .start();
    let ann = Person::named(&service, "ann");
    // An agent that nobody has started has not told its ways.
    let mut first = Editor::spawn(&mut ann.command(&service, &["connect", "--agent", "other"]));
    assert_eq!(ids(&first.initialize()), ["other/key"]);
    let mut editor = Editor::spawn(&mut ann.command(&service, &["connect"]));
    let plain = editor.initialize();
    assert_eq!(ids(&plain), ["fake/browser", "other/key"]);
    assert_eq!(plain["authMethods"][0]["description"], "opens one");
    assert_eq!(plain["authMethods"][1]["name"], "Other: Key");
    let mut with_terminal = Editor::spawn(&mut ann.command(&service, &["connect"]));
    let offered = with_terminal.initialize_with(&json!({ "auth": { "terminal": true } }));
    assert_eq!(ids(&offered), ["fake/browser", "fake/tui", "other/key"]);
    let tui = &offered["authMethods"][1];
    assert_eq!((&tui["type"], &tui["args"]), (&json!("terminal"), &json!(["--login", "fake/tui"])));
    assert!(tui["description"].as_str().unwrap().contains("conductor agents login fake --method tui"));
    // What the editor then starts.
    let done = typed(&mut ann.command(&service, &["connect", "--login", "fake/tui"]), "right\n");
    assert!(done.status.success(), "{done:?}");
    editor.new_session(&service.work());

    // `authenticate` finds the agent that is meant, and only that is told.
    editor.call("authenticate", &json!({ "methodId": "other/key", "_meta": { "x": 1 } }));
    let asked = service
        .wait_received("other", "authenticate", |entry| entry.method().as_deref() == Some("authenticate"));
    assert_eq!(asked.json().unwrap()["params"], json!({ "methodId": "key", "_meta": { "x": 1 } }));
    assert!(service.received("fake").iter().all(|entry| entry.method().as_deref() != Some("authenticate")));
    let refused = editor.call_error("authenticate", &json!({ "methodId": "fake/tui" }));
    assert_says(&refused, &["run `conductor agents login fake --method tui`"]);
    let refused = editor.call_error("authenticate", &json!({ "methodId": "fake/nope" }));
    assert_says(&refused, &["its ways are: browser, tui"]);
    let refused = editor.call_error("authenticate", &json!({}));
    assert_says(&refused, &["needs a methodId"]);
}

/// Puts somebody's home into place before any process has.
fn home_of(service: &Service, user: &str) -> PathBuf {
    let home = login_file(service, user).parent().unwrap().to_owned();
    fs::create_dir_all(&home).unwrap();
    home
}

/// Lets an agent crash until it is quarantined for this user.
fn quarantine(service: &Service, person: &Person) {
    let mut editor = person.editor(service);
    let is_quarantined = |error: Value| error["message"].as_str().unwrap().contains("is quarantined");
    let mut refused = (0..20).map(|_| editor.call_error("session/new", &new_session(service)));
    assert!(refused.any(is_quarantined), "never quarantined");
}

#[test]
fn logging_in_to_a_quarantined_agent_ends_the_quarantine() {
    let script = json!({
        "auth_methods": only_terminal(),
        "needs_login": true,
        "start": [{ "exit_if_home_has": "broken" }],
    });
    let service =
        service(&script).set("agents.fake.home", "user").set("agents.fake.restart.backoff", "1ms").start();
    // Nothing is known of it yet: one is started in spite of the quarantine.
    let bob = Person::named(&service, "bob");
    let home = home_of(&service, "bob");
    fs::write(home.join("broken"), "").unwrap();
    quarantine(&service, &bob);
    let refused = typed(&mut bob.command(&service, &["agents", "login", "fake"]), "right\n");
    assert!(text(&refused.stderr).contains("could not be asked how one logs in"), "{refused:?}");
    fs::remove_file(home.join("broken")).unwrap();
    let done = typed(&mut bob.command(&service, &["agents", "login", "fake"]), "right\n");
    assert!(done.status.success(), "{done:?}");
    let mut editor = bob.editor(&service);
    editor.new_session(&service.work());
    // What it says is known: no process has to be started to find out.
    fs::write(home.join("broken"), "").unwrap();
    drop(editor);
    service.wait_no_process("fake");
    quarantine(&service, &bob);
    let done = typed(&mut bob.command(&service, &["agents", "login", "fake"]), "right\n");
    assert!(done.status.success(), "{done:?}");
    fs::remove_file(home.join("broken")).unwrap();
    bob.editor(&service).new_session(&service.work());
}

#[test]
fn an_administrators_login_ends_the_quarantine_of_a_shared_home() {
    let script = json!({ "auth_methods": only_terminal(), "start": [{ "exit_if_home_has": "broken" }] });
    let service = service(&script)
        .set("agents.fake.home", "isolated")
        .set("agents.fake.restart.backoff", "1ms")
        .start();
    let (mut editor, session) = service.session();
    editor.turn(&session, "hello");
    drop(editor);
    let broken = service.state().join("homes/fake/broken");
    fs::write(&broken, "").unwrap();
    quarantine(&service, &Person::named(&service, "ann"));
    fs::remove_file(&broken).unwrap();
    let done = typed(&mut service.command(&["agents", "login", "fake"]), "right\n");
    assert!(done.status.success(), "{done:?}");
    service.session();
}

#[test]
fn nobody_is_offered_the_ways_of_anothers_account() {
    let service = with_login(&methods()).start();
    let (ann, bob) = (Person::named(&service, "ann"), Person::named(&service, "bob"));
    let own = json!([{ "id": "of-ann", "name": "Ann's company" }]).to_string();
    fs::write(home_of(&service, "ann").join(".fake-methods.json"), own).unwrap();
    let offered = |person: &Person| {
        let mut editor = Editor::spawn(&mut person.command(&service, &["connect"]));
        ids(&editor.initialize()).into_iter().map(ToOwned::to_owned).collect::<Vec<_>>()
    };
    for _ in 0..2 {
        assert_eq!(offered(&ann), ["fake/of-ann"]);
        assert_eq!(offered(&bob), ["fake/browser"]);
    }
    let told = bob.run(&service, &["agents", "login", "fake"]);
    assert!(text(&told.stderr).contains("choose one with --method: browser, tui"), "{told:?}");
    let done = ann.run(&service, &["agents", "login", "fake"]);
    assert!(done.status.success(), "{done:?}");
    // A version is something that a process has said, too.
    let listed = Person::named(&service, "carl").run(&service, &["agents", "--json"]);
    let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
    let fake = listed.as_array().unwrap().iter().find(|agent| agent["name"] == "fake").unwrap().clone();
    assert_eq!(fake["version"], "");
}

#[test]
fn asking_how_one_logs_in_takes_no_more_processes_than_there_may_be() {
    let service = with_login(&only_terminal())
        .set("agents.fake.max", 1)
        .set("agents.fake.queue_timeout", "300ms")
        .start();
    let (ann, bob) = (Person::named(&service, "ann"), Person::named(&service, "bob"));
    fs::write(home_of(&service, "ann").join(".fake-login"), "").unwrap();
    let mut of_ann = ann.editor(&service);
    let session = of_ann.new_session(&service.work());
    let pids = service.agents_alive();
    assert_eq!(pids.len(), 1);
    // The editor is answered without the agent, and whoever wants to log in is told why.
    let mut of_bob = Editor::spawn(&mut bob.command(&service, &["connect"]));
    assert_eq!(ids(&of_bob.initialize()), [""; 0]);
    let full = bob.run(&service, &["agents", "login", "fake"]);
    assert!(text(&full.stderr).contains("all 1 processes of agent `fake` are in use"), "{full:?}");
    assert_eq!(service.agents_alive(), pids);
    let starts =
        service.ledger("fake").into_iter().filter(|entry| entry.method().as_deref() == Some("initialize"));
    assert_eq!(starts.count(), 1, "nothing was started meanwhile");
    // Ann's own editors are told what her process has said.
    let mut second = Editor::spawn(&mut ann.command(&service, &["connect"]));
    assert_eq!(ids(&second.initialize_with(&json!({ "auth": { "terminal": true } }))), ["fake/tui"]);
    of_ann.call("session/close", &json!({ "sessionId": session }));
    service.wait_no_process("fake");
    let done = typed(&mut bob.command(&service, &["agents", "login", "fake"]), "right\n");
    assert!(done.status.success(), "{done:?}");
    drop((of_ann, of_bob, second));
    ann.editor(&service).new_session(&service.work());
}

#[test]
fn the_advice_changes_nothing_else_of_the_error() {
    let error = r#"{"data":{"n":123456789012345678901234567890,"s":"\ud83d"},"code":-32000,"message":"Log in","more":[ 1 ]}"#;
    let line = format!(r#"{{"jsonrpc":"2.0","id":$id,"error":{error}}}"#);
    let service = service(&json!({ "instead": { "session/prompt": [{ "line": line }, "hang"] } })).start();
    let (mut editor, session) = service.session();
    let id = editor.prompt(&session, "hello");
    let answer = editor.response_line(&id);
    let advised = error.replace(r#""Log in""#, r#""Log in\n\nTo log in, run: conductor agents login fake""#);
    assert!(text(&answer.raw).contains(&advised), "{}", text(&answer.raw));
}

#[tokio::test]
async fn a_client_of_the_sdk_authenticates() {
    let service = with_login(&methods()).start();
    let ann = Person::named(&service, "ann");
    let command = ann.command(&service, &["connect"]);
    let told = |text: &std::ffi::OsStr| text.to_str().unwrap().to_owned();
    let env = command.get_envs().filter_map(|(name, value)| Some((told(name), told(value?))));
    let bridge = AcpAgent::new(AcpAgentConfig::new(command.get_program()).arg("connect").envs(env));
    let cwd = service.work();
    let (ways, refused, session) = Client
        .v1()
        .connect_with(bridge, async move |agent: ConnectionTo<Agent>| {
            let hello = agent.send_request(InitializeRequest::new(ProtocolVersion::V1)).block_task().await?;
            let refused = agent.send_request(NewSessionRequest::new(&cwd)).block_task().await.unwrap_err();
            let of_agent = |method: &AuthMethod| match method {
                AuthMethod::Agent(method) => Some(method.id.clone()),
                _ => None,
            };
            let ways: Vec<_> = hello.auth_methods.iter().filter_map(of_agent).collect();
            agent.send_request(AuthenticateRequest::new(ways[0].clone())).block_task().await?;
            let opened = agent.send_request(NewSessionRequest::new(&cwd)).block_task().await?;
            Ok((ways, serde_json::to_value(&refused).unwrap(), opened.session_id))
        })
        .await
        .unwrap();
    assert_eq!(serde_json::to_value(&ways).unwrap(), json!(["fake/browser"]));
    assert_eq!(refused["code"], -32000);
    assert_says(&refused, &["conductor agents login fake"]);
    assert!(!session.to_string().is_empty());
    assert!(login_file(&service, "ann").exists());
}
