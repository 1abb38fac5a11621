//! A running `conductor serve` of a test's own: its directories, its port, its
//! agents. Dropping it stops the service and fails the test if a process, a
//! file or a panic is left over.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

use std::{
    collections::BTreeMap,
    env,
    fs::{self, OpenOptions},
    os::unix::{fs::PermissionsExt as _, process::ExitStatusExt as _},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use rustix::process::{Resource, getrlimit};
use serde_json::{Value, json};

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

/// Processes and threads that somebody without rights may have beyond all those of this host.
const NET: u64 = 3000;

/// What is set up before the service starts.
pub struct Builder {
    config: Value,
    dir: PathBuf,
    tag: String,
    env: BTreeMap<String, String>,
    listen: String,
    without_rights: bool,
    within: Option<PathBuf>,
}

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

/// A service whose default agent is the fake agent with this script.
pub fn service(script: &Value) -> Builder {
    let tag = uuid::Uuid::now_v7().to_string();
    let dir = env::temp_dir().join(format!("conductor-test-{tag}"));
    for name in ["home", "work", "other", "ledger", "store"] {
        fs::create_dir_all(dir.join(name)).unwrap();
    }
    // Most tests are about something else than the policy.
    fs::write(dir.join("policy.toml"), "use = ['trusted']\n").unwrap();
    let defaults: Value = toml::from_str(conductor::config::DEFAULTS).unwrap();
    let built_in = defaults["agents"].as_object().unwrap();
    let config = json!({
        "default": "fake",
        "policy": { "file": dir.join("policy.toml") },
        "roots": [dir.join("work"), dir.join("other")],
        "service": { "drain_timeout": "2s", "cancel_grace": "5s", "stall_timeout": "5s" },
        // Nor is an agent asked what it offers that no test is about.
        "agents": built_in.keys().map(|name| (name.clone(), json!({ "warm": 0 }))).collect::<Value>(),
    });
    let listen = "127.0.0.1:0".to_owned();
    Builder { config, dir, tag, env: BTreeMap::new(), listen, without_rights: false, within: None }
        .agent("fake", script)
}

impl Builder {
    /// Adds an agent: the fake one with this script.
    #[must_use]
    pub fn agent(mut self, name: &str, script: &Value) -> Self {
        fs::create_dir_all(self.dir.join("ledger").join(name)).unwrap();
        fs::create_dir_all(self.dir.join("store").join(name)).unwrap();
        self.config["agents"][name] = json!({
            "command": program("fake-agent"),
            // Spares would blur what tests count; the tests of the pool ask for them.
            "warm": 0,
            "env": {
                TAG: self.tag,
                "FAKE_AGENT_SCRIPT": script.to_string(),
                "FAKE_AGENT_LEDGER": self.dir.join("ledger").join(name),
                "FAKE_AGENT_STORE": self.dir.join("store").join(name),
            },
        });
        self
    }

    /// Makes a program that nobody here wrote the default agent, as `peer`.
    #[must_use]
    pub fn peer(self, command: &Path, args: &[&Path]) -> Self {
        let env = json!({ TAG: self.tag });
        let agent = json!({ "command": command, "args": args, "warm": 0, "env": env });
        self.set("agents.peer", agent).set("default", "peer")
    }

    /// Makes the demo agent the only one.
    #[must_use]
    pub fn demo(self) -> Self {
        let env = json!({ TAG: self.tag });
        let demo = json!({ "warm": 0, "env": env });
        self.set("agents.demo", demo).set("agents.fake.enabled", false).set("default", "demo")
    }

    /// Sets a key of the configuration, for example `service.cancel_grace`.
    #[must_use]
    pub fn set(mut self, path: &str, value: impl Into<Value>) -> Self {
        set(&mut self.config, path, value.into());
        self
    }

    /// Has the service judge by these rules.
    #[must_use]
    pub fn rules(self, rules: &str) -> Self {
        fs::write(self.dir.join("policy.toml"), rules).unwrap();
        self
    }

    /// Sets a variable of the service's environment.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.insert(name.to_owned(), value.to_owned());
        self
    }

    /// Has the service listen elsewhere than on loopback alone.
    #[must_use]
    pub fn listen(mut self, address: &str) -> Self {
        address.clone_into(&mut self.listen);
        self
    }

    /// Has the service, its agents and its commands run as somebody without rights, whoever
    /// runs the test. All that is in its directory by now will be theirs.
    #[must_use]
    pub fn without_rights(mut self) -> Self {
        self.without_rights = true;
        self
    }

    /// Has the service start in a control group, which will be its user's. Only root can do
    /// that.
    #[must_use]
    pub fn within(mut self, group: &Path) -> Self {
        self.within = Some(group.to_path_buf());
        self
    }

    /// Directory that scripts may name.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Starts the service and waits until it is ready.
    pub fn start(self) -> Service {
        let Self { mut config, dir, tag, env, listen, without_rights, within } = self;
        let user = without_rights.then(User::without_rights).flatten();
        if let Some(user) = user {
            user.give(&dir);
            let (fake, reachable) =
                (json!(program("fake-agent")), json!(reachable("fake-agent", &dir, Some(user))));
            let agents = config["agents"].as_object_mut().unwrap().values_mut();
            agents
                .filter(|agent| agent["command"] == fake)
                .for_each(|agent| agent["command"] = reachable.clone());
        }
        let file = dir.join("agents.toml");
        fs::write(&file, toml::to_string(&config).unwrap()).unwrap();
        // It may hold secrets.
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        if let Some(user) = user {
            user.give(&file);
        }
        if let (Some(user), Some(group)) = (user, &within) {
            user.give(group);
        }
        let child = serve(&dir, &tag, &env, &listen, without_rights, within.as_deref(), user);
        let mut service = Service {
            child,
            dir,
            tag,
            config,
            env,
            listen,
            without_rights,
            within,
            user,
            stopped: None,
            kept: false,
        };
        service.wait_ready();
        service
    }
}

/// Path by which the user of a service can run a program that cargo built.
fn reachable(name: &str, dir: &Path, user: Option<User>) -> PathBuf {
    let built = program(name);
    // A place of its own: an agent may read whatever is installed with it.
    user.map_or(built.clone(), |user| user.reach(&built, &dir.join("programs/bin")))
}

/// A command that can have no more processes and threads than this host can bear, whatever it
/// starts: a net beneath agents that fork without end.
fn above_net(program: &Path) -> Command {
    let load = fs::read_to_string("/proc/loadavg").unwrap();
    let tasks = load.split_whitespace().nth(3).and_then(|tasks| tasks.split_once('/')).unwrap().1;
    let most = tasks.parse::<u64>().unwrap() + NET;
    // Somebody's own limit may be lower, and is not raised.
    let most = getrlimit(Resource::Nproc).maximum.map_or(most, |own| own.min(most));
    // By its whole path: what a test has as PATH may lead nowhere.
    let path = env::var_os("PATH").unwrap_or_default();
    let mut places = env::split_paths(&path).map(|place| place.join("prlimit"));
    let mut command = Command::new(places.find(|place| place.exists()).expect("the tests need `prlimit`"));
    command.arg(format!("--nproc={most}:{most}")).arg(program);
    command
}

/// A command that enters a control group, and then runs as somebody else: what the group is in
/// is not theirs.
fn entering(group: &Path, program: &Path, user: Option<User>) -> Command {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", "echo 0 > \"$0\" && exec \"$@\""]).arg(group.join("cgroup.procs"));
    command.args(user.iter().flat_map(|user| user.becoming())).arg(program);
    command
}

fn serve(
    dir: &Path,
    tag: &str,
    env: &BTreeMap<String, String>,
    listen: &str,
    without_rights: bool,
    within: Option<&Path>,
    user: Option<User>,
) -> Child {
    let output = |name| OpenOptions::new().create(true).append(true).open(dir.join(name)).unwrap();
    let program = reachable("conductor", dir, user);
    let mut command = match within {
        Some(group) => entering(group, &program, user),
        None if without_rights => above_net(&program),
        None => Command::new(program),
    };
    command.arg("serve").arg("--config").arg(dir.join("agents.toml")).args(["--listen", listen]);
    clean(&mut command, dir, tag, env, user.filter(|_| within.is_none()));
    command.stdin(Stdio::null()).stdout(output("serve.out")).stderr(output("serve.log")).spawn().unwrap()
}

fn set(config: &mut Value, path: &str, value: Value) {
    let mut place = config;
    for key in path.split('.') {
        place = &mut place[key];
    }
    *place = value;
}

/// Nothing of the machine's own configuration may reach a test.
fn clean(command: &mut Command, dir: &Path, tag: &str, env: &BTreeMap<String, String>, user: Option<User>) {
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CONDUCTOR_") || text.starts_with("XDG_") || text == "RUST_LOG" {
            command.env_remove(&name);
        }
    }
    command.env("HOME", dir.join("home")).env("CONDUCTOR_STATE_DIR", dir.join("state")).env(TAG, tag);
    command.envs(env).current_dir(dir.join("home"));
    if let Some(user) = user {
        user.run(command);
    }
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
