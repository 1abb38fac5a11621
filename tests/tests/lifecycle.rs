//! Starting, stopping and failing as a whole: points 38–40 of conformance, the
//! signals, the pool, the configuration, and the bridge without a
//! service.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

use std::{
    fs,
    os::unix::{fs::PermissionsExt as _, process::ExitStatusExt as _},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use conductor_tests::{
    fake::process::SLEEPER,
    harness::{Service, assert_says, permission, poll_until, program, service},
};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

const ONE_SECOND: Duration = Duration::from_secs(1);

fn exit_with_words(code: i32) -> Value {
    json!([{ "stderr": format!("dying {code}\n") }, { "exit": code }])
}

fn new_params(service: &Service) -> Value {
    json!({ "cwd": service.work(), "mcpServers": [] })
}

// Point 38: an agent that ends, at every phase.

#[test]
fn p38_exit_at_once() {
    let service = service(&json!({ "start": exit_with_words(21) })).start();
    let mut editor = service.editor();
    let error = editor.call_error("session/new", &new_params(&service));
    assert_says(&error, &["exited with status 21", "dying 21"]);
}

#[test]
fn p38_exit_in_the_handshake() {
    let service = service(&json!({ "instead": { "initialize": exit_with_words(22) } })).start();
    let mut editor = service.editor();
    assert_says(&editor.call_error("session/new", &new_params(&service)), &["dying 22"]);
}

#[test]
fn p38_exit_while_a_session_opens() {
    let service = service(&json!({ "instead": { "session/new": exit_with_words(23) } })).start();
    let mut editor = service.editor();
    assert_says(&editor.call_error("session/new", &new_params(&service)), &["dying 23"]);
}

#[test]
fn p38_exit_mid_prompt_answers_everything_pending() {
    let service = service(&json!({})).start();
    let (mut editor, session) = service.session();
    let gate = service.dir.join("go");
    let steps = json!([{ "update": {} }, { "wait_file": gate }, { "stderr": "dying 24\n" }, { "exit": 24 }]);
    let prompt = editor.prompt_do(&session, &steps);
    let queued = editor.prompt(&session, "queued");
    let beside = editor.request("_x/do", &json!({ "sessionId": session, "do": ["hang"] }));
    editor.wait_chunks(&session, 1);
    fs::write(gate, "").unwrap();
    for id in [&prompt, &queued, &beside] {
        let error = editor.error_of(id);
        assert!(error["message"].as_str().is_some_and(|text| text.len() > 10), "{error}");
        assert_eq!(editor.answers_to(id), 1);
    }
    assert_says(&editor.error_of(&prompt), &["dying 24"]);
    assert_eq!(editor.chunks(&session), ["chunk 0"], "what was streamed before has arrived");
}

#[test]
fn p38_exit_with_a_pending_permission() {
    let service = service(&json!({})).start();
    let (mut editor, session) = service.session();
    let mut forgotten = permission();
    forgotten["request"]["forget"] = json!(true);
    let id = editor.prompt_do(&session, &json!([forgotten, { "stderr": "dying 25\n" }, { "exit": 25 }]));
    let request = editor.next_request("session/request_permission");
    assert_says(&editor.error_of(&id), &["dying 25"]);
    // The answer comes too late and must not disturb anything.
    editor.answer(&request, &json!({ "outcome": { "outcome": "selected", "optionId": "yes" } }));
    let fresh = editor.new_session(&service.work());
    assert_eq!(editor.turn(&fresh, "alive"), ["echo: alive"]);
}

#[test]
fn p38_exit_mid_load() {
    // The editor's session/load is a session/resume to an agent that has it.
    let service = service(&json!({ "before": { "session/resume": exit_with_words(26) } })).start();
    let (mut editor, session) = service.session();
    editor.turn(&session, "history");
    editor.call("session/close", &json!({ "sessionId": session }));
    let mut params = new_params(&service);
    params["sessionId"] = json!(session);
    assert_says(&editor.call_error("session/load", &params), &["dying 26"]);
}

#[test]
fn p38_after_an_exit_between_turns_the_next_prompt_goes_on() {
    let service = service(&json!({})).start();
    let (mut editor, session) = service.session();
    editor.turn_do(&session, &json!([{ "after": [{ "exit": 27 }] }]));
    service.wait_no_process("fake");
    assert_eq!(editor.turn(&session, "anyone?"), ["echo: anyone?"]);
}

// Point 39: nothing is left, whoever dies and however.

fn with_descendants(service: &Service) -> (conductor_tests::editor::Editor, String) {
    let (mut editor, session) = service.session();
    let detached = json!({ "fork": { "detach": true, "hold_stdout": true, "ignore_sigterm": true } });
    editor.turn_do(&session, &json!([detached, { "fork": {} }]));
    assert!(poll_until(ONE_SECOND, || {
        service.processes().iter().filter(|running| running.command.contains(SLEEPER)).count() == 2
    }));
    (editor, session)
}

#[test]
fn p39_sigkill_of_the_conductor_leaves_nothing_after_one_second() {
    let script = json!({ "ignore_sigterm": true, "ignore_eof": true });
    let mut service = service(&script).set("agents.fake.warm", 2).start();
    let (mut editor, session) = with_descendants(&service);
    editor.prompt_do(&session, &json!([{ "update": {} }, "hang"]));
    editor.wait_chunks(&session, 1);
    let killed = Instant::now();
    service.kill9();
    let bridge = editor.pid();
    let left = || service.processes().into_iter().filter(|running| running.pid != bridge).collect::<Vec<_>>();
    assert!(
        poll_until(ONE_SECOND.saturating_sub(killed.elapsed()), || left().is_empty()),
        "still alive: {:?}",
        left()
    );
}

#[test]
fn p39_sigterm_of_the_conductor_leaves_nothing() {
    let mut service = service(&json!({})).set("agents.fake.warm", 1).start();
    let (editor, _session) = with_descendants(&service);
    assert_eq!(service.term().code(), Some(0));
    let bridge = editor.pid();
    let left = || service.processes().into_iter().filter(|running| running.pid != bridge).collect::<Vec<_>>();
    assert!(poll_until(ONE_SECOND, || left().is_empty()), "still alive: {:?}", left());
}

#[test]
fn p39_lost_editor_ends_its_sessions() {
    let service = service(&json!({})).start();
    let (editor, _session) = with_descendants(&service);
    drop(editor);
    service.wait_gone("fake-agent", Duration::from_secs(10));
}

#[test]
fn p39_killed_bridge_ends_its_sessions_when_their_time_is_up() {
    let service = service(&json!({})).set("service.detached_ttl", "100ms").start();
    let (mut editor, _session) = with_descendants(&service);
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(editor.pid().cast_signed()), Signal::SIGKILL).unwrap();
    editor.wait_exit();
    service.wait_gone("fake-agent", Duration::from_secs(10));
}

#[test]
fn p39_terminated_bridge_ends_its_sessions_at_once() {
    let service = service(&json!({})).start();
    let (mut editor, _session) = with_descendants(&service);
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(editor.pid().cast_signed()), Signal::SIGTERM).unwrap();
    editor.wait_exit();
    service.wait_gone("fake-agent", Duration::from_secs(10));
}

#[test]
fn p39_agents_get_a_clean_environment_and_three_descriptors() {
    let service = service(&json!({})).env("SECRET_OF_THE_SERVICE", "x").start();
    let (mut editor, session) = service.session();
    let told: Value = serde_json::from_str(&editor.turn_do(&session, &json!(["describe"]))[0]).unwrap();
    let names: Vec<&str> = told["env"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert!(names.contains(&"PATH") && names.contains(&"FAKE_AGENT_SCRIPT"), "{names:?}");
    assert!(!names.contains(&"SECRET_OF_THE_SERVICE") && !names.contains(&"CONDUCTOR_TOKEN"), "{names:?}");
    assert_eq!(told["cwd"], json!(service.work()));
    let own = |target: &str| target.contains("/ledger/") || target.starts_with("/proc/");
    let fds = told["fds"].as_object().unwrap();
    let inherited: Vec<_> =
        fds.iter().filter(|(_, target)| !own(target.as_str().unwrap())).map(|(fd, _)| fd).collect();
    assert_eq!(inherited, ["0", "1", "2"], "{fds:?}");
}

// Point 40: sessions do not wait for each other.

#[test]
fn p40_blocked_session_delays_no_other() {
    let service = service(&json!({})).start();
    let (mut editor, blocked) = service.session();
    let id = editor.prompt_do(&blocked, &json!([permission()]));
    let request = editor.next_request("session/request_permission");
    let start = Instant::now();
    let other = editor.new_session(&service.work());
    assert_eq!(editor.turn(&other, "free"), ["echo: free"]);
    let (mut second, third) = service.session();
    assert_eq!(second.turn(&third, "free"), ["echo: free"]);
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    editor.answer(&request, &json!({ "outcome": { "outcome": "selected", "optionId": "yes" } }));
    assert_eq!(editor.stop_reason(&id), "end_turn");
}

#[test]
fn p40_sessions_of_one_process_stay_apart() {
    let service =
        service(&json!({ "reuse_session_ids": true })).set("agents.fake.sessions_per_process", 4).start();
    let mut editor = service.editor();
    let sessions: Vec<String> = (0..4).map(|_| editor.new_session(&service.work())).collect();
    assert_eq!(service.agents_alive().len(), 1, "one process serves all four");
    let ids: Vec<_> = sessions.iter().map(|id| editor.prompt(id, &format!("for {id}"))).collect();
    for (id, session) in ids.iter().zip(&sessions) {
        assert_eq!(editor.stop_reason(id), "end_turn");
        assert_eq!(editor.chunks(session), [format!("echo: for {session}")]);
    }
    // Closing one leaves its siblings alone.
    editor.call("session/close", &json!({ "sessionId": sessions[0] }));
    assert_eq!(editor.turn(&sessions[1], "still"), ["echo: still"]);
}

// The pool.

#[test]
fn pool_keeps_a_spare_so_that_a_session_needs_no_spawn() {
    let service = service(&json!({})).set("agents.fake.warm", 1).start();
    // That was a process of its own, which is gone.
    service.wait_log("has told what it offers");
    let (mut editor, _first) = service.session();
    assert!(poll_until(Duration::from_secs(10), || service.agents_alive().len() == 2), "a spare is started");
    let ready = |service: &Service| {
        service.received("fake").iter().filter(|line| line.method().as_deref() == Some("initialize")).count()
    };
    assert!(poll_until(Duration::from_secs(10), || ready(&service) == 3), "the spare has shaken hands");
    let spare = service.agents_alive();
    let session = editor.new_session(&service.work());
    editor.turn(&session, "who am I?");
    let received = service.received("fake");
    let prompt =
        received.iter().find(|line| line.text.as_deref().is_some_and(|text| text.contains("who am I?")));
    assert!(spare.contains(&prompt.unwrap().pid), "the session took the spare");
}

#[test]
fn pool_refuses_above_max_and_frees_on_close() {
    let service =
        service(&json!({})).set("agents.fake.max", 1).set("agents.fake.queue_timeout", "0s").start();
    let (mut editor, session) = service.session();
    let error = editor.call_error("session/new", &new_params(&service));
    assert_says(&error, &["all 1 processes of agent `fake` are in use"]);
    editor.call("session/close", &json!({ "sessionId": session }));
    let reopened = poll_until(Duration::from_secs(10), || {
        let id = editor.request("session/new", &new_params(&service));
        editor.response(&id).get("result").is_some()
    });
    assert!(reopened, "{}", editor.story());
}

#[test]
fn agents_lists_processes_and_restart_forces_them_out() {
    let service = service(&json!({})).start();
    let (mut editor, session) = service.session();
    let id = editor.prompt_do(&session, &json!([{ "update": {} }, "hang"]));
    editor.wait_chunks(&session, 1);
    let agent = service.agent_json("fake");
    let alive = service.agents_alive();
    assert_eq!(agent["processes"][0]["pid"], json!(alive[0]), "{agent}");
    assert!(service.run(&["agents", "restart", "fake", "--force"]).status.success());
    editor.error_of(&id);
    assert!(poll_until(Duration::from_secs(10), || service.agents_alive().is_empty()));
    let unknown = service.run(&["agents", "restart", "nobody"]);
    assert!(!unknown.status.success());
    assert!(String::from_utf8_lossy(&unknown.stderr).contains("nobody"), "{unknown:?}");
}

// Signals.

#[test]
fn c06_sigterm_lets_a_running_turn_end_and_exits_0() {
    let mut service = service(&json!({})).set("service.drain_timeout", "20s").start();
    let (mut editor, session) = service.session();
    let gate = service.dir.join("go");
    let id = editor.prompt_do(
        &session,
        &json!([{ "update": {} }, { "wait_file": gate }, { "update": { "text": "end" } }]),
    );
    editor.wait_chunks(&session, 1);
    service.signal(Signal::SIGTERM);
    // No new connection is taken from now on.
    let refused = poll_until(Duration::from_secs(5), || !service.run(&["agents"]).status.success());
    assert!(refused, "the service still accepts connections");
    fs::write(gate, "").unwrap();
    assert_eq!(editor.stop_reason(&id), "end_turn");
    assert_eq!(editor.chunks(&session), ["chunk 0", "end0"]);
    assert_eq!(service.wait_exit(Duration::from_secs(10)).code(), Some(0));
    assert!(!service.state().join("endpoint").exists());
}

#[test]
fn c06_sigterm_ends_endless_turns_at_the_deadline() {
    let mut service = service(&json!({ "cancel": "never" })).set("service.drain_timeout", "300ms").start();
    let (mut editor, session) = service.session();
    let id = editor.prompt_do(&session, &json!([{ "update": {} }, "hang"]));
    editor.wait_chunks(&session, 1);
    assert_eq!(service.term().code(), Some(0));
    // The editor is told: an error, or cancelled, but not silence.
    let answer = editor.response(&id);
    assert!(answer.get("error").is_some() || answer["result"]["stopReason"] == "cancelled", "{answer}");
}

#[test]
fn second_signal_ends_at_once() {
    let mut service = service(&json!({ "cancel": "never" })).set("service.drain_timeout", "60s").start();
    let (mut editor, session) = service.session();
    editor.prompt_do(&session, &json!([{ "update": {} }, "hang"]));
    editor.wait_chunks(&session, 1);
    service.signal(Signal::SIGTERM);
    assert!(poll_until(Duration::from_secs(5), || !service.run(&["agents"]).status.success()), "it drains");
    let start = Instant::now();
    service.signal(Signal::SIGINT);
    service.wait_exit(Duration::from_secs(5));
    assert!(start.elapsed() < Duration::from_secs(3), "it took {:?}", start.elapsed());
}

// State directory, configuration.

#[test]
fn what_is_kept_is_for_the_owner_only_whoever_may_look_into_the_directory() {
    let service = service(&json!({})).start();
    let mode = |name: &str| fs::metadata(service.state().join(name)).unwrap().permissions().mode() & 0o777;
    for name in ["token", "endpoint", "lock", "store.sqlite", "ledger.sqlite", "ledger.sqlite-wal"] {
        assert_eq!(mode(name), 0o600, "{name}");
    }
    assert!(service.token().len() >= 32, "a token must not be guessable");
    assert!(service.endpoint().starts_with("http://127.0.0.1:"), "{}", service.endpoint());
}

#[test]
fn a_variable_that_is_set_to_nothing_is_named() {
    let done =
        Command::new(program("conductor")).arg("whoami").env("CONDUCTOR_STATE_DIR", "").output().unwrap();
    let said = String::from_utf8_lossy(&done.stderr);
    assert_eq!(done.status.code(), Some(2), "{said}");
    assert!(said.contains("CONDUCTOR_STATE_DIR is set to nothing"), "{said}");
}

/// Starts `serve` with this configuration and returns its exit code and stderr.
fn refused(config: &str) -> (Option<i32>, String) {
    let dir = std::env::temp_dir().join(format!("conductor-config-{}", uuid::Uuid::now_v7()));
    fs::create_dir_all(&dir).unwrap();
    let file = dir.join("bad.toml");
    fs::write(&file, config).unwrap();
    let child = Command::new(program("conductor"))
        .args(["serve", "--listen", "127.0.0.1:0", "--config"])
        .arg(&file)
        .env("CONDUCTOR_STATE_DIR", dir.join("state"))
        .env("HOME", &dir)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = nix::unistd::Pid::from_raw(child.id().cast_signed());
    let waiting = std::thread::spawn(move || child.wait_with_output().unwrap());
    if !poll_until(Duration::from_secs(10), || waiting.is_finished()) {
        let _ = nix::sys::signal::kill(pid, Signal::SIGKILL);
    }
    let output = waiting.join().unwrap();
    assert_eq!(output.status.signal(), None, "the service accepted\n{config}");
    fs::remove_dir_all(&dir).unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn f01_config_errors_exit_2_and_name_file_and_line() {
    let cases = [
        ("bad TOML", "default = \"demo\n", ":1"),
        ("unknown key", "# comment\n[service]\nlissten = \"127.0.0.1:0\"\n", ":3"),
        ("unknown key of an agent", "[agents.x]\ncommand = \"sh\"\n\ncomand = \"sh\"\n", ":4"),
        ("wrong type", "[service]\nmax_connections = \"many\"\n", ":2"),
        ("bad duration", "[service]\ncancel_grace = \"10 parsecs\"\n", ":2"),
        ("duplicate agent", "[agents.x]\ncommand = \"sh\"\n[agents.x]\ncommand = \"sh\"\n", ":3"),
        ("missing command", "\n[agents.x]\nargs = []\n", ":2"),
        ("relative root", "roots = [\"work\"]\n", ":1"),
    ];
    for (what, config, line) in cases {
        let (code, stderr) = refused(config);
        assert_eq!(code, Some(2), "{what}: {stderr}");
        assert!(stderr.contains("bad.toml"), "{what} names the file: {stderr}");
        assert!(
            stderr.contains(&format!("bad.toml{line}")) || stderr.contains(&format!("line {}", &line[1..])),
            "{what} names line {line}: {stderr}"
        );
    }
}

#[test]
fn reload_applies_to_new_sessions_and_a_bad_file_keeps_the_old() {
    let mut service = service(&json!({})).start();
    let (mut editor, session) = service.session();
    assert!(
        editor.call_error("session/new", &json!({ "cwd": service.dir.join("home"), "mcpServers": [] }))["code"]
            == -32602
    );
    service.configure("service.no_such_key", 1);
    service.reload();
    service.wait_log("no_such_key");
    assert_eq!(editor.turn(&session, "old config"), ["echo: old config"]);
    service.configure("service", json!({}));
    let home = service.dir.join("home");
    service.configure("roots", json!([service.dir.join("work"), home]));
    service.reload();
    let opened = poll_until(Duration::from_secs(10), || {
        let id = editor.request("session/new", &json!({ "cwd": home, "mcpServers": [] }));
        editor.response(&id).get("result").is_some()
    });
    assert!(opened, "the new root counts\n{}\n{}", editor.story(), service.log());
    assert_eq!(editor.turn(&session, "same session"), ["echo: same session"]);
}

#[test]
fn s08_second_service_on_the_same_state_directory_is_refused_or_served_by_the_first() {
    let service = service(&json!({})).start();
    let config = service.dir.join("agents.toml");
    let output = service.run(&["serve", "--listen", "127.0.0.1:0", "--config", config.to_str().unwrap()]);
    assert!(!output.status.success(), "{output:?}");
    let (mut editor, session) = service.session();
    assert_eq!(editor.turn(&session, "first"), ["echo: first"]);
}

// The bridge.

fn bridge_without_service(args: &[&str]) -> (Value, Option<i32>) {
    let dir = std::env::temp_dir().join(format!("conductor-alone-{}", uuid::Uuid::now_v7()));
    fs::create_dir_all(&dir).unwrap();
    let mut command = Command::new(program("conductor"));
    command.arg("connect").args(args).env("CONDUCTOR_STATE_DIR", &dir).env_remove("CONDUCTOR_ENDPOINT");
    let mut editor = conductor_tests::editor::Editor::spawn(&mut command);
    let error = editor.call_error("initialize", &json!({ "protocolVersion": 1 }));
    let code = editor.wait_exit().code();
    assert!(
        editor.lines().iter().all(|line| line.json.is_object()),
        "stdout carries ACP only\n{}",
        editor.story()
    );
    fs::remove_dir_all(&dir).unwrap();
    (error, code)
}

#[test]
fn connect_without_a_service_says_what_to_do() {
    let (error, code) = bridge_without_service(&[]);
    assert_says(&error, &["conductor serve"]);
    assert!(code.is_some_and(|code| code != 0), "{code:?}");
}

#[test]
fn connect_to_a_dead_endpoint_says_what_to_do() {
    let (error, code) = bridge_without_service(&["--endpoint", "http://127.0.0.1:9"]);
    assert_says(
        &error,
        &["there is no token for http://127.0.0.1:9", "conductor login --endpoint http://127.0.0.1:9"],
    );
    assert!(code.is_some_and(|code| code != 0), "{code:?}");
}

#[test]
fn connect_with_an_unknown_agent_names_it() {
    let service = service(&json!({})).start();
    let mut editor = service.connect(&["--agent", "nobody"]);
    assert_says(&editor.call_error("initialize", &json!({ "protocolVersion": 1 })), &["nobody"]);
    assert!(!editor.wait_exit().success());
}

#[test]
fn bridge_waits_for_a_service_that_is_gone_as_long_as_its_editor_does() {
    let mut service = service(&json!({})).start();
    let (mut editor, session) = service.session();
    editor.prompt_do(&session, &json!([{ "update": {} }, "hang"]));
    editor.wait_chunks(&session, 1);
    service.kill9();
    let told = poll_until(Duration::from_secs(5), || editor.stderr().contains("trying to get back"));
    assert!(told, "{}", editor.stderr());
    editor.close_stdin();
    editor.wait_exit();
}
