//! `conductor doctor`, as a program: what it says about a host, and by which exit code.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use conductor_tests::harness::{poll_until, program};
use serde_json::Value;
use tempfile::TempDir;

/// A host with a configuration and a state directory of its own.
struct Host {
    directory: TempDir,
}

impl Host {
    fn new(agents: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        // None of the agents that happen to be on this machine is started.
        let others =
            ["claude", "cline", "codex", "copilot", "gemini", "goose", "kimi", "opencode", "qwen", "vibe"];
        let others: String =
            others.iter().map(|name| format!("[agents.{name}]\nenabled = false\n")).collect();
        let config = format!("roots = [{:?}]\n{others}{agents}", directory.path());
        fs::write(directory.path().join("agents.toml"), config).unwrap();
        Self { directory }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(program("conductor"));
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("CONDUCTOR_") {
                command.env_remove(name);
            }
        }
        command
            .args(args)
            .env("CONDUCTOR_CONFIG", self.path("agents.toml"))
            .env("CONDUCTOR_STATE_DIR", self.path("state"))
            .current_dir(self.directory.path());
        command
    }

    /// Exit code and text.
    fn doctor(&self, args: &[&str]) -> (Option<i32>, String) {
        let done = self.command(&[&["doctor"], args].concat()).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&done.stderr), "");
        (done.status.code(), String::from_utf8(done.stdout).unwrap())
    }

    /// Exit code and document.
    fn document(&self, args: &[&str]) -> (Option<i32>, Value) {
        let (code, text) = self.doctor(&[&["--json"], args].concat());
        (code, serde_json::from_str(&text).unwrap())
    }

    fn serve(&self) -> Service {
        let mut command = self.command(&["serve", "--listen", "127.0.0.1:0"]);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let service = Service(child);
        let ready = poll_until(Duration::from_secs(30), || self.path("state/endpoint").exists());
        assert!(ready, "the service does not start");
        service
    }
}

struct Service(Child);

impl Drop for Service {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

fn find<'a>(document: &'a Value, group: &str, name: &str) -> &'a Value {
    let mut checks = document["checks"].as_array().unwrap().iter();
    checks
        .find(|check| check["group"] == group && check["name"] == name)
        .unwrap_or_else(|| panic!("{document:#}"))
}

/// A program that does this, whatever it is asked.
fn script(host: &Host, name: &str, text: &str) -> String {
    let path = host.path(name);
    fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path.to_str().unwrap().to_string()
}

fn add(host: &Host, agents: &str) {
    let config = host.path("agents.toml");
    let text = fs::read_to_string(&config).unwrap();
    fs::write(config, text + agents).unwrap();
}

#[test]
fn a_host_without_a_service_is_fine() {
    let host = Host::new("");
    let (code, text) = host.doctor(&[]);
    assert_eq!(code, Some(0), "{text}");
    assert!(!text.contains('\x1b') && !text.contains('✗'), "{text}");
    assert!(text.contains("  ✓ demo "), "{text}");
    assert!(text.contains("sessions: load, list, resume"), "{text}");
    assert!(text.contains("→ start it with `conductor serve`\n"), "{text}");
    assert!(text.ends_with("Nothing that is needed is broken.\n"), "{text}");
    let (code, document) = host.document(&[]);
    assert_eq!((code, &document["ok"]), (Some(0), &true.into()));
    let demo = find(&document, "agents", "demo");
    assert_eq!((&demo["status"], &demo["data"]["capabilities"]["loadSession"]), (&"ok".into(), &true.into()));
    assert!(demo["data"]["ready_ms"].is_u64() && demo["data"]["version"].is_string(), "{demo}");
    assert_eq!(find(&document, "config", "file")["data"]["path"], host.path("agents.toml").to_str().unwrap());
    assert!(
        !find(&document, "kernel", if cfg!(target_os = "linux") { "linux" } else { "system" })["detail"]
            .is_null()
    );
}

#[test]
fn a_bad_configuration_is_shown_with_its_line() {
    let host = Host::new("");
    fs::write(host.path("agents.toml"), "defualt = \"demo\"\n").unwrap();
    let (code, text) = host.doctor(&[]);
    assert_eq!(code, Some(1), "{text}");
    assert!(
        text.contains("agents.toml:1:1: unknown key `defualt`") && text.contains("→ did you mean"),
        "{text}"
    );
    let (code, document) = host.document(&[]);
    assert_eq!((code, &document["ok"]), (Some(1), &false.into()));
    assert_eq!(find(&document, "config", "file")["status"], "broken");
    // The rest is looked at all the same.
    assert_eq!(find(&document, "service", "running")["status"], "info");
    let (_, text) = host.doctor(&["--config", "/nowhere/agents.toml"]);
    assert!(text.contains("/nowhere/agents.toml"), "{text}");
}

#[test]
fn an_agent_that_is_not_there_matters_only_if_it_is_needed() {
    let host = Host::new("[agents.absent]\ncommand = \"no-such-program-anywhere\"\ninstall = \"get it\"\n");
    let (code, document) = host.document(&[]);
    let absent = find(&document, "agents", "absent");
    assert_eq!((code, &absent["status"]), (Some(0), &"info".into()));
    assert!(absent["remedy"].as_str().unwrap().contains("`get it`"), "{absent}");
    let (code, document) = host.document(&["--agent", "absent"]);
    assert_eq!((code, &find(&document, "agents", "absent")["status"]), (Some(1), &"broken".into()));
    let named = document["checks"].as_array().unwrap().iter().filter(|check| check["group"] == "agents");
    assert_eq!(named.count(), 1, "only the named one is looked at");
    let (code, text) = host.doctor(&["--agent", "nobody"]);
    assert_eq!(code, Some(1));
    assert!(text.contains("there is no such agent") && text.contains("demo"), "{text}");
}

#[test]
fn an_agent_that_fails_shows_its_last_words_harmlessly() {
    let host = Host::new("");
    let dies = script(&host, "dies", r"printf 'no key \033[2J\n' >&2; exit 7");
    let mute = script(&host, "mute", "exec sleep 600");
    let other = script(
        &host,
        "other",
        r#"read -r line; echo '{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":9}}'; read -r line"#,
    );
    add(
        &host,
        &format!(
            "[agents.dies]\ncommand = {dies:?}\n[agents.mute]\ncommand = {mute:?}\nstart_timeout = \"1s\"\n\
             [agents.other]\ncommand = {other:?}\n"
        ),
    );
    let begun = Instant::now();
    let (code, text) = host.doctor(&[]);
    assert_eq!(code, Some(1), "{text}");
    assert!(!text.contains('\x1b'), "{text:?}");
    assert!(text.contains("  ✗ dies") && text.contains("exited with status 7"), "{text}");
    assert!(text.contains("no key \\u{1b}[2J"), "{text}");
    assert!(text.contains("did not answer initialize within 1s"), "{text}");
    assert!(text.contains("it speaks ACP version 9"), "{text}");
    assert!(text.contains("3 things are broken"), "{text}");
    assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
}

#[test]
fn nothing_that_was_started_is_left() {
    let host = Host::new("");
    let pids = host.path("pids");
    let fork = format!(
        r#"sleep 600 & echo $! >> {pids:?}; read -r line
echo '{{"jsonrpc":"2.0","id":0,"result":{{"protocolVersion":1,"agentInfo":{{"name":"x","version":"2\u001b[2J"}}}}}}'
sleep 600"#
    );
    let forks = script(&host, "forks", &fork);
    add(&host, &format!("[agents.forks]\ncommand = {forks:?}\n"));
    let (code, text) = host.doctor(&["--agent", "forks"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("x 2\\u{1b}[2J, ready in "), "{text:?}");
    let pid = fs::read_to_string(&pids).unwrap();
    assert!(!Path::new("/proc").join(pid.trim()).exists(), "{pid}");
}

#[test]
fn sessions_show_models_and_modes_on_demand() {
    let host = Host::new("");
    let (_, text) = host.doctor(&["--agent", "demo"]);
    assert!(!text.contains("models: "), "{text}");
    let (code, text) = host.doctor(&["--agent", "demo", "--sessions"]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("models: ") && text.contains("demo-large") && text.contains("modes: "), "{text}");
    let login = script(
        &host,
        "login",
        r#"while read -r line; do
    id=$(printf '%s' "$line" | sed -n 's/^{"jsonrpc":"2.0","id":\([^,]*\),.*/\1/p')
    case $line in
    *'"initialize"'*) echo '{"jsonrpc":"2.0","id":'$id',"result":{"protocolVersion":1,"authMethods":[{"id":"browser","name":"B"}]}}' ;;
    *'"session/new"'*) echo '{"jsonrpc":"2.0","id":'$id',"error":{"code":-32000,"message":"Log in first"}}' ;;
    esac
done"#,
    );
    add(&host, &format!("[agents.login]\ncommand = {login:?}\n"));
    let (code, text) = host.doctor(&["--agent", "login"]);
    assert_eq!(code, Some(0), "nobody asked for a session: {text}");
    assert!(text.contains("ways to log in: browser"), "{text}");
    let (code, text) = host.doctor(&["--agent", "login", "--sessions"]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("Log in first") && text.contains("→ log in with"), "{text}");
}

#[test]
fn a_state_directory_that_others_may_write_to_is_broken() {
    let host = Host::new("");
    fs::create_dir(host.path("state")).unwrap();
    fs::set_permissions(host.path("state"), fs::Permissions::from_mode(0o777)).unwrap();
    let (code, text) = host.doctor(&["--agent", "demo"]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("(mode 0777)") && text.contains("→ take that right away: chmod go-w"), "{text}");
    fs::set_permissions(host.path("state"), fs::Permissions::from_mode(0o700)).unwrap();
    fs::write(host.path("state/token"), "x".repeat(40)).unwrap();
    fs::set_permissions(host.path("state/token"), fs::Permissions::from_mode(0o644)).unwrap();
    let (code, document) = host.document(&["--agent", "demo"]);
    let token = find(&document, "state", "token");
    assert_eq!((code, &token["status"]), (Some(1), &"broken".into()));
    assert!(token["remedy"].as_str().unwrap().contains("remove it"), "{token}");
}

#[test]
fn a_running_service_is_found_and_a_wrong_token_is_not_let_in() {
    let host = Host::new("");
    let service = host.serve();
    let (code, document) = host.document(&["--agent", "demo"]);
    let running = find(&document, "service", "running");
    assert_eq!((code, &running["status"]), (Some(0), &"ok".into()), "{running}");
    assert_eq!(running["data"]["version"], document["version"]);
    if cfg!(target_os = "linux") {
        assert_eq!(running["data"]["pid"], service.0.id());
    }
    let mut command = host.command(&["doctor", "--agent", "demo"]);
    let done = command.env("CONDUCTOR_TOKEN", "x".repeat(40)).output().unwrap();
    let text = String::from_utf8(done.stdout).unwrap();
    assert_eq!(done.status.code(), Some(1), "{text}");
    assert!(text.contains("  ✗ running") && text.contains("refused the token"), "{text}");
    // Killed, it leaves its endpoint behind, which harms nobody.
    drop(service);
    let (code, document) = host.document(&["--agent", "demo"]);
    assert_eq!((code, &find(&document, "service", "running")["status"]), (Some(0), &"info".into()));
    // What was named must be there. The token of this host is for its own service alone.
    let named = ["--agent", "demo", "--endpoint", "127.0.0.1:1"];
    let (code, text) = host.doctor(&named);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("its token is told to nobody else"), "{text}");
    assert!(text.contains("conductor login --endpoint http://127.0.0.1:1"), "{text}");
    let mut command = host.command(&[&["doctor"][..], &named].concat());
    let done = command.env("CONDUCTOR_TOKEN", "x".repeat(40)).output().unwrap();
    let text = String::from_utf8(done.stdout).unwrap();
    assert_eq!(done.status.code(), Some(1), "{text}");
    assert!(text.contains("no conductor answers at http://127.0.0.1:1"), "{text}");
}
