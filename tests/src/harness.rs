//! A running `conductor serve` of a test's own: its directories, its port, its
//! agents. Dropping it stops the service and fails the test if a process, a
//! file or a panic is left over.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

mod setup;

use std::{
    collections::BTreeMap,
    env, fs,
    os::unix::process::ExitStatusExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use serde_json::{Value, json};

pub use self::setup::{Builder, service};
use self::setup::{clean, reachable, serve, set};
use crate::{
    editor::{DEADLINE, Editor},
    ledger::{self, Entry, Kind},
    procfs::parent,
    user::User,
};

/// Marks every process of one test, in its environment, or as an argument `NAME=VALUE` of
/// those that have none. Not `CONDUCTOR_…`: such names are configuration, and unknown ones
/// are refused.
pub const TAG: &str = "EDGE_TEST_TAG";

/// A running service.
pub struct Service {
    child: Child,
    /// Everything of this test lies beneath it.
    pub dir: PathBuf,
    tag: String,
    config: Value,
    env: BTreeMap<String, String>,
    listen: String,
    without_rights: bool,
    within: Option<PathBuf>,
    /// Whom it runs as, if not as whoever runs the test.
    user: Option<User>,
    /// Set once a test has stopped the service in its own way.
    stopped: Option<ExitStatus>,
    /// Its directory is left behind.
    kept: bool,
}

/// A running process of this test.
#[derive(Debug, Clone)]
pub struct Running {
    /// Its id.
    pub pid: u32,
    /// Its command line.
    pub command: String,
}

/// Polls until `done`; whether it was in time.
pub fn poll_until(time: Duration, mut done: impl FnMut() -> bool) -> bool {
    let until = Instant::now() + time;
    loop {
        if done() {
            return true;
        }
        if Instant::now() > until {
            return false;
        }
        thread::sleep(Duration::from_millis(5));
    }
}

/// Path of a program that cargo built beside this test or program.
pub fn program(name: &str) -> PathBuf {
    let own = env::current_exe().unwrap();
    let beside = own.parent().unwrap();
    // Tests lie one below the programs.
    let programs = if beside.ends_with("deps") { beside.parent().unwrap() } else { beside };
    let path = programs.join(name);
    assert!(path.exists(), "{} is missing; run `cargo build --workspace` first", path.display());
    path
}

impl Service {
    /// Directory for sessions.
    pub fn work(&self) -> PathBuf {
        self.dir.join("work")
    }

    /// The state directory.
    pub fn state(&self) -> PathBuf {
        self.dir.join("state")
    }

    /// Process id of the service.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The variable by which processes of this test are found, as terminals take
    /// variables.
    pub fn tag(&self) -> Value {
        json!({ "name": TAG, "value": self.tag })
    }

    /// URL of the service.
    pub fn endpoint(&self) -> String {
        fs::read_to_string(self.state().join("endpoint")).unwrap().trim().to_owned()
    }

    /// Token of the service.
    pub fn token(&self) -> String {
        fs::read_to_string(self.state().join("token")).unwrap().trim().to_owned()
    }

    /// What the service has logged so far.
    pub fn log(&self) -> String {
        let log = fs::read(self.dir.join("serve.log")).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }

    /// Waits until the log contains a text.
    pub fn wait_log(&self, text: &str) {
        let found = poll_until(DEADLINE, || self.log().contains(text));
        assert!(found, "the log never said {text:?}:\n{}", self.log());
    }

    /// Any sub-command against this service.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = self.beside(&self.program("conductor"));
        command.args(args);
        command
    }

    /// Any program that shall find this service.
    pub fn beside(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        clean(&mut command, &self.dir, &self.tag, &self.env, self.user);
        command
    }

    /// Path by which whoever the service runs as can run a program that cargo built.
    pub fn program(&self, name: &str) -> PathBuf {
        reachable(name, &self.dir, self.user)
    }

    /// Gives whoever the service runs as a file, or a directory with all that is in it.
    pub fn give(&self, path: &Path) {
        if let Some(user) = self.user {
            user.give(path);
        }
    }

    /// Runs a sub-command to its end.
    pub fn run(&self, args: &[&str]) -> Output {
        self.command(args).stdin(Stdio::null()).output().unwrap()
    }

    /// Starts `conductor connect`; nothing is sent yet.
    pub fn connect(&self, args: &[&str]) -> Editor {
        let mut command = self.command(&["connect"]);
        Editor::spawn(command.args(args))
    }

    /// Starts `conductor connect` and shakes hands.
    pub fn editor(&self) -> Editor {
        let mut editor = self.connect(&[]);
        editor.initialize();
        editor
    }

    /// An editor with a session.
    pub fn session(&self) -> (Editor, String) {
        let mut editor = self.editor();
        let session = editor.new_session(&self.work());
        (editor, session)
    }

    /// What `conductor agents --json` says about an agent.
    pub fn agent_json(&self, name: &str) -> Value {
        let output = self.run(&["agents", "--json"]);
        assert!(output.status.success(), "conductor agents failed: {output:?}");
        let list: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
            panic!("not JSON ({error}): {}", String::from_utf8_lossy(&output.stdout))
        });
        let agents = list.get("agents").unwrap_or(&list).as_array().cloned().unwrap_or_default();
        let found = agents.iter().find(|agent| agent["name"] == name).cloned();
        found.unwrap_or_else(|| panic!("no agent {name} in {list}"))
    }

    /// Waits until the service knows that no process of an agent is left.
    pub fn wait_no_process(&self, name: &str) {
        let none = || self.agent_json(name)["processes"].as_array().is_some_and(Vec::is_empty);
        assert!(poll_until(DEADLINE, none), "still there: {}", self.agent_json(name));
    }

    /// Changes a key of the configuration file; `reload` makes it count.
    pub fn configure(&mut self, path: &str, value: impl Into<Value>) {
        set(&mut self.config, path, value.into());
        fs::write(self.dir.join("agents.toml"), toml::to_string(&self.config).unwrap()).unwrap();
    }

    /// Sends the service a signal.
    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().cast_signed()), signal).unwrap();
    }

    /// Has the service read its configuration again.
    pub fn reload(&self) {
        self.signal(Signal::SIGHUP);
    }

    /// Stops the service with SIGTERM; how it ended.
    pub fn term(&mut self) -> ExitStatus {
        self.signal(Signal::SIGTERM);
        self.wait_exit(DEADLINE)
    }

    /// Kills the service.
    pub fn kill9(&mut self) {
        self.signal(Signal::SIGKILL);
        self.wait_exit(DEADLINE);
    }

    /// Whether its directory is left behind for a look.
    pub fn keep(&mut self, kept: bool) {
        self.kept = kept;
    }

    /// Whether it has not been stopped.
    pub fn is_running(&self) -> bool {
        self.stopped.is_none()
    }

    /// Starts it again after its end, on the same state directory.
    pub fn start_again(&mut self) {
        assert!(self.stopped.take().is_some(), "the service has not ended");
        // Whoever waits for this file must not find the former one.
        let _ = fs::remove_file(self.state().join("endpoint"));
        let within = self.within.as_deref();
        self.child =
            serve(&self.dir, &self.tag, &self.env, &self.listen, self.without_rights, within, self.user);
        self.wait_ready();
    }

    /// Waits for the service to end.
    pub fn wait_exit(&mut self, time: Duration) -> ExitStatus {
        let mut status = None;
        poll_until(time, || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        let status = status.unwrap_or_else(|| panic!("the service does not end; its log:\n{}", self.log()));
        self.stopped = Some(status);
        status
    }

    /// What the fake agent `name` received and sent, in all its processes.
    pub fn ledger(&self, name: &str) -> Vec<Entry> {
        ledger::read(&self.dir.join("ledger").join(name))
    }

    /// Lines that the fake agent received.
    pub fn received(&self, name: &str) -> Vec<Entry> {
        self.ledger(name).into_iter().filter(|entry| entry.kind == Kind::In).collect()
    }

    /// Waits until the fake agent received a matching line.
    pub fn wait_received(&self, name: &str, what: &str, mut wanted: impl FnMut(&Entry) -> bool) -> Entry {
        let mut found = None;
        poll_until(DEADLINE, || {
            found = self.received(name).into_iter().find(&mut wanted);
            found.is_some()
        });
        found.unwrap_or_else(|| {
            let lines: Vec<_> = self.received(name).into_iter().filter_map(|entry| entry.text).collect();
            panic!("agent {name} never received {what}; it received\n{}", lines.join("\n"))
        })
    }

    /// Waits until the fake agent's ledger grows no more, because it is held
    /// back or has nothing to do.
    pub fn wait_settled(&self, name: &str) {
        let size = || -> u64 {
            let files = fs::read_dir(self.dir.join("ledger").join(name)).unwrap().filter_map(Result::ok);
            files.filter_map(|file| file.metadata().ok()).map(|meta| meta.len()).sum()
        };
        let (mut last, mut since) = (size(), Instant::now());
        let settled = poll_until(DEADLINE, || {
            if size() != last {
                (last, since) = (size(), Instant::now());
            }
            since.elapsed() > Duration::from_millis(400)
        });
        assert!(settled, "agent {name} is never held back");
    }

    /// Processes of this test that run now, the service itself left out.
    pub fn processes(&self) -> Vec<Running> {
        let own = self.child.id();
        tagged(&self.tag).into_iter().filter(|running| running.pid != own).collect()
    }

    /// What the service has started and runs now: processes of this test, the service and our
    /// own editors left out.
    pub fn supervised(&self) -> Vec<Running> {
        let own = std::process::id();
        self.processes().into_iter().filter(|running| parent(running.pid) != Some(own)).collect()
    }

    /// Running processes of the fake agent, descendants left out.
    pub fn agents_alive(&self) -> Vec<u32> {
        let fake = self.program("fake-agent").display().to_string();
        self.processes().iter().filter(|running| running.command == fake).map(|running| running.pid).collect()
    }

    /// Waits until no process with this text in its command line runs.
    pub fn wait_gone(&self, text: &str, time: Duration) {
        let left = || {
            self.processes().into_iter().filter(|running| running.command.contains(text)).collect::<Vec<_>>()
        };
        assert!(poll_until(time, || left().is_empty()), "still running: {:?}\nlog:\n{}", left(), self.log());
    }

    /// Largest resident memory of the service so far, in KiB.
    pub fn peak_memory(&self) -> u64 {
        self.memory("VmHWM:")
    }

    /// Largest address space of the service so far, in KiB, whether used or not.
    pub fn peak_address_space(&self) -> u64 {
        self.memory("VmPeak:")
    }

    fn memory(&self, what: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with(what)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    fn wait_ready(&mut self) {
        let endpoint = self.state().join("endpoint");
        let until = Instant::now() + DEADLINE;
        while !endpoint.exists() {
            if let Some(status) = self.child.try_wait().unwrap() {
                self.stopped = Some(status);
                panic!("the service ended with {status} before it was ready; its log:\n{}", self.log());
            }
            assert!(Instant::now() < until, "the service does not become ready; its log:\n{}", self.log());
            thread::sleep(Duration::from_millis(2));
        }
    }

    fn left_over(&mut self) -> Vec<String> {
        let mut found = Vec::new();
        if self.stopped.is_none() {
            self.signal(Signal::SIGTERM);
            let mut status = None;
            poll_until(DEADLINE, || {
                status = self.child.try_wait().ok().flatten();
                status.is_some()
            });
            match status {
                Some(status) if status.success() => {}
                Some(status) => found.push(format!("the service ended with {status}")),
                None => {
                    found.push("the service did not end within the deadline".to_owned());
                    let _ = self.child.kill();
                    let _ = self.child.wait();
                }
            }
            self.stopped = status;
        }
        poll_until(Duration::from_secs(1), || self.processes().is_empty());
        for running in self.processes() {
            found.push(format!("process {} is left over: {}", running.pid, running.command));
            let _ = kill(Pid::from_raw(running.pid.cast_signed()), Signal::SIGKILL);
        }
        let killed = self.stopped.is_some_and(|status| status.signal().is_some());
        if !killed && self.state().join("endpoint").exists() {
            found.push("the file `endpoint` is left over".to_owned());
        }
        if self.log().contains("panicked at") {
            found.push("the service panicked".to_owned());
        }
        found
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let found = self.left_over();
        let log = self.log();
        // Kept for a look if somebody says so; never left behind otherwise.
        if !self.kept && env::var_os("KEEP_TEST_DIR").is_none() {
            let _ = fs::remove_dir_all(&self.dir);
        }
        if thread::panicking() {
            let tail: String = log.chars().rev().take(6000).collect::<Vec<_>>().into_iter().rev().collect();
            std::io::Write::write_all(
                &mut std::io::stderr(),
                format!("log of the service:\n{tail}\nleft over: {found:?}\n").as_bytes(),
            )
            .unwrap();
            return;
        }
        assert!(found.is_empty(), "{}\nlog of the service:\n{log}", found.join("\n"));
    }
}

/// Processes whose environment or command line carries the tag.
fn tagged(tag: &str) -> Vec<Running> {
    let wanted = format!("{TAG}={tag}").into_bytes();
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().filter_map(Result::ok) {
        let Ok(pid) = entry.file_name().to_string_lossy().parse::<u32>() else { continue };
        let read = |name: &str| fs::read(entry.path().join(name)).unwrap_or_default();
        let has_tag = |text: &[u8]| text.split(|byte| *byte == 0).any(|part| part == wanted);
        let line = read("cmdline");
        if pid != std::process::id() && (has_tag(&line) || has_tag(&read("environ"))) {
            let command = String::from_utf8_lossy(&line).replace('\0', " ").trim().to_owned();
            found.push(Running { pid, command });
        }
    }
    found
}

/// Fails unless the error's message contains each of the texts, whatever their case.
pub fn assert_says(error: &Value, texts: &[&str]) {
    let message = error["message"].as_str().unwrap_or_default().to_lowercase();
    for text in texts {
        assert!(message.contains(&text.to_lowercase()), "the message should say {text:?}: {error}");
    }
}

/// What opens a session again, in its directory.
pub fn open_params(service: &Service, session: &str) -> Value {
    json!({ "sessionId": session, "cwd": service.work(), "mcpServers": [] })
}

/// A step that asks for permission and waits for the answer.
pub fn permission() -> Value {
    json!({ "request": { "method": "session/request_permission", "params": {
        "sessionId": "$sid",
        "toolCall": { "toolCallId": "call-1", "title": "Run" },
        "options": [
            { "optionId": "yes", "name": "Yes", "kind": "allow_once" },
            { "optionId": "no", "name": "No", "kind": "reject_once" },
        ],
    } } })
}
