//! `conductor prompt --session`: going on where one has stopped.

use std::process::Stdio;

use serde_json::Value;

use crate::hostile;
use crate::service::{Service, finish};

/// Begins a session; gives its id.
fn begin(service: &Service, args: &[&str]) -> String {
    let done = service.run(&[&["prompt", "--json"], args].concat());
    assert_eq!(done.code, Some(0), "{done:?}");
    let first: Value = serde_json::from_str(done.stdout.lines().next().unwrap()).unwrap();
    first["session"].as_str().unwrap().to_string()
}

/// The agent's own id of the session, as it says.
fn own_id(said: &str) -> &str {
    said.lines().find_map(|line| line.strip_prefix("- session: ")).unwrap()
}

#[test]
fn a_session_goes_on_where_it_was_and_without_its_history() {
    let service = Service::start();
    let inner = service.project().canonicalize().unwrap().join("inner");
    std::fs::create_dir(&inner).unwrap();
    let session = begin(&service, &["--cwd", "inner", "stream 3"]);
    let first = service.run(&["prompt", "--session", &session, "whoami"]);
    assert_eq!((first.code, &*first.stderr), (Some(0), ""), "{first:?}");
    assert!(first.stdout.starts_with("- pid: "), "nothing of the history is shown: {first:?}");
    assert!(first.stdout.contains(&format!("- cwd: {}\n", inner.display())), "{first:?}");
    let second =
        service.run(&["prompt", "--session", &session, "--model", "demo-large", "--mode", "code", "whoami"]);
    assert!(second.stdout.contains("- model: demo-large\n- mode: code\n"), "{second:?}");
    assert_eq!(own_id(&first.stdout), own_id(&second.stdout));
    let unknown = service.run(&["prompt", "--session", &session, "--model", "nothing", "whoami"]);
    assert_eq!(unknown.code, Some(1));
    assert!(unknown.stderr.contains("`nothing`") && unknown.stderr.contains("demo-large"), "{unknown:?}");
}

#[test]
fn an_agent_that_only_loads_replays_unseen() {
    let directory = tempfile::tempdir().unwrap();
    let script = directory.path().join("agent.sh");
    std::fs::write(&script, LOADS).unwrap();
    let service = Service::with_agents(&format!("[agents.loads]\ncommand = \"sh\"\nargs = [{script:?}]\n"));
    let session = begin(&service, &["--agent", "loads", "one"]);
    let done = service.run(&["prompt", "--session", &session, "two"]);
    assert_eq!((done.code, &*done.stdout), (Some(0), "after load\n"), "{done:?}");
}

#[test]
fn flags_stand_before_the_action_or_behind_it_and_what_is_left_out_is_said() {
    let service = Service::start();
    let first = begin(&service, &["one"]);
    begin(&service, &["two"]);
    let state = service.state().display().to_string();
    let endpoint = std::fs::read_to_string(service.state().join("endpoint")).unwrap();
    let listed = |args: &[&str]| {
        let done = service.run(args);
        assert_eq!(done.code, Some(0), "{args:?}: {done:?}");
        let sessions: Vec<Value> = serde_json::from_str(&done.stdout).unwrap();
        (sessions.len(), done.stderr)
    };
    for args in [
        &["sessions", "--json", "ls"][..],
        &["sessions", "ls", "--json"],
        &["sessions", "--state-dir", &state, "--json", "ls"],
        &["sessions", "--endpoint", endpoint.trim(), "ls", "--json"],
        &["sessions", "--limit", "1", "ls", "--json", "--limit", "2"],
    ] {
        assert_eq!(listed(args), (2, String::new()), "{args:?}");
    }
    let (one, said) = listed(&["sessions", "--limit", "1", "--json", "ls"]);
    assert_eq!((one, said.as_str()), (1, "conductor sessions: there are more than 1; --limit shows more\n"));
    let shown = service.run(&["sessions", "--json", "show", &first]);
    assert!(serde_json::from_str::<Value>(&shown.stdout).is_ok_and(|shown| shown.is_object()), "{shown:?}");
    for wrong in [
        &["sessions", "--user", "ann", "show", &first][..],
        &["sessions", "--json", "export", &first],
        &["sessions", "ls", "--limit", "0"],
        &["approvals", "ls", "--limit", "0"],
        &["grants", "ls", "--limit", "0"],
    ] {
        let done = service.run(wrong);
        assert_eq!((done.code, done.stdout.as_str()), (Some(2), ""), "{wrong:?}: {done:?}");
    }
}

#[test]
fn what_is_empty_says_so_apart_from_the_list() {
    let service = Service::start();
    for (list, said) in [
        ("approvals", "nothing waits for an answer"),
        ("grants", "no grant holds"),
        ("token", "there are no tokens"),
        ("sessions", "no sessions were found"),
    ] {
        let done = service.run(&[list, "ls"]);
        assert_eq!((done.code, done.stdout.as_str()), (Some(0), ""), "{done:?}");
        assert!(done.stderr.starts_with(&format!("conductor {list}: {said}")), "{done:?}");
        let json = service.run(&[list, "ls", "--json"]);
        assert!(serde_json::from_str::<Value>(&json.stdout).is_ok() && json.stderr.is_empty(), "{json:?}");
    }
}

/// An agent with `session/load` and without `session/resume`.
const LOADS: &str = r#"
say() { printf '%s\n' "$1"; }
chunk() { say '{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s","update":{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"'"$1"'"}}}}'; }
how="after new"
while IFS= read -r line; do
    id=$(printf '%s' "$line" | sed -n 's/^{"jsonrpc":"2.0","id":\([^,]*\),.*/\1/p')
    case $line in
    *'"method":"initialize"'*) say '{"jsonrpc":"2.0","id":'"$id"',"result":{"protocolVersion":1,"agentCapabilities":{"loadSession":true}}}' ;;
    *'"method":"session/new"'*) say '{"jsonrpc":"2.0","id":'"$id"',"result":{"sessionId":"s"}}' ;;
    *'"method":"session/load"'*) chunk history; how="after load"; say '{"jsonrpc":"2.0","id":'"$id"',"result":{}}' ;;
    *'"method":"session/prompt"'*) chunk "$how"; say '{"jsonrpc":"2.0","id":'"$id"',"result":{"stopReason":"end_turn"}}' ;;
    esac
done
"#;

#[test]
fn an_agent_without_load_goes_on_and_what_is_not_there_says_so() {
    let (service, _directory) = hostile::service("stop end_turn");
    let session = begin(&service, &["--agent", "odd", "go"]);
    let done = service.run(&["prompt", "--session", &session, "go"]);
    assert_eq!(done.code, Some(0), "{done:?}");
    for id in ["0199-no-such", "\u{1b}[2J"] {
        let done = service.run(&["prompt", "--session", id, "go"]);
        assert_eq!(done.code, Some(1));
        assert!(done.stderr.contains("there is no session") && !done.stderr.contains('\u{1b}'), "{done:?}");
    }
    let both = service.run(&["prompt", "--session", &session, "--agent", "demo", "go"]);
    assert_eq!(both.code, Some(2), "a session keeps its agent: {both:?}");
}

#[test]
fn another_agent_being_the_default_does_not_matter() {
    // The connection's agent can resume, the session's cannot, and the other way round.
    let (service, _directory) = hostile::service("stop end_turn");
    let session = begin(&service, &["stream 1"]);
    let mut command = service.command(&["prompt", "--session", &session, "stream 1"]);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let done = finish(command.spawn().unwrap(), "");
    assert_eq!((done.code, &*done.stdout), (Some(0), "chunk 1 of 1\n"), "{done:?}");
}
