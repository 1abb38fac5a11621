//! Agents that mean harm, contained (`tests/faults`, rows A21–A27, C3, C4, M4–M6, M8, M10). Every
//! escape is tried for real, by the agent itself and by its terminals, in a service that runs
//! as somebody without rights; and the same is tried without a sandbox, where it must succeed,
//! so that a test can tell a wall from a misspelt path.
//!
//! `ORPHAN_ROUNDS` and `ORPHAN_SEED` make a longer or another run of random kills; `make soak`
//! has hundreds.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

mod bubble;
mod delegated;
mod escapes;
mod groups;
mod hogs;
mod layers;
mod orphans;
mod races;
mod terminals;

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use conductor::ledger::Settings;
use conductor_tests::{
    editor::{DEADLINE, Editor},
    fake::{attempt::ERRAND, syscall::landlock},
    harness::{Builder, Service, poll_until, service},
    shipping,
};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use self::orphans::who_ends_with_a_killed_guard;

/// The promise: one second after an end nothing of it is alive.
const ONE_SECOND: Duration = Duration::from_secs(1);

/// Longer than any ladder of deadlines for one process takes.
const LADDER: Duration = Duration::from_secs(15);

/// What is in files that nobody must read.
const SECRET: &str = "SECRET";

/// Versions of the kernel's Landlock that brought what layers are made of.
const NETWORK_SINCE: u32 = 4;
const SCOPE_SINCE: u32 = 6;
const UNIX_SOCKETS_SINCE: u32 = 9;

/// Whether agents are contained.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sandbox {
    Required,
    Off,
}

/// Who makes an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Who {
    Agent,
    Terminal,
}

/// What came of an attempt: what it yielded, or the name of the error.
type Outcome = Result<Value, String>;

/// What this kernel can contain an agent with.
fn layers() -> Vec<&'static str> {
    let since = [("landlock", 1), ("network", NETWORK_SINCE), ("scope", SCOPE_SINCE)];
    let found = since.into_iter().filter(|(_, version)| landlock() >= *version).map(|(layer, _)| layer);
    found.chain(["seccomp"]).collect()
}

/// Whether this kernel has a layer; says so if a test does nothing because it has not.
#[allow(clippy::print_stderr, reason = "whoever reads why a test did nothing")]
fn has(layer: &str) -> bool {
    let found = layers().contains(&layer);
    if !found {
        eprintln!("skipped: this kernel has no {layer} (its Landlock is version {})", landlock());
    }
    found
}

/// A service with two agents, `fake` and `other`, that runs as somebody without rights.
fn world(sandbox: Sandbox) -> Builder {
    populated(sandbox).without_rights()
}

/// The same, as whoever runs the tests.
fn populated(sandbox: Sandbox) -> Builder {
    // Whatever people allow: everything is asked, and the editor says yes to everything.
    let rules = "[[rule]]\nid = 'ask'\neffect = 'ask'\nreason = 'always'\nanything = true";
    let builder = service(&json!({})).agent("other", &json!({})).rules(rules);
    ["fake", "other"].into_iter().fold(builder, |builder, name| contain(builder, name, sandbox))
}

/// Contains an agent, or does not.
fn contain(builder: Builder, name: &str, sandbox: Sandbox) -> Builder {
    let key = |key: &str| format!("agents.{name}.{key}");
    let own = |kind: &str| builder.dir().join(kind).join(name);
    // What the fake agent keeps for the test.
    let own = json!([own("ledger"), own("store")]);
    let builder = builder.set(&key("home"), "isolated");
    match sandbox {
        Sandbox::Off => builder.set(&key("sandbox"), "off"),
        Sandbox::Required => {
            // Without a say in the network, that one is open.
            let layers: Vec<_> = layers().into_iter().filter(|layer| *layer != "network").collect();
            builder
                .set(&key("sandbox"), "required")
                .set(&key("sandbox_layers"), layers)
                .set(&key("reach.write"), own)
        }
    }
}

/// A session of an agent, and what goes with it.
struct Cell {
    editor: Editor,
    session: String,
    /// Its root.
    root: PathBuf,
    /// The agent's process.
    agent: i32,
    /// The guard of the agent.
    guard: i32,
}

impl Cell {
    /// A session of an agent in a directory of its own, which has one file.
    fn open(service: &Service, agent: &str, root: PathBuf) -> Self {
        fs::create_dir_all(&root).unwrap();
        fs::write(root.join("file"), SECRET).unwrap();
        service.give(&root);
        let mut editor = service.connect(&["--agent", agent]);
        editor.initialize();
        let session = editor.new_session(&root);
        let mut cell = Self { editor, session, root, agent: 0, guard: 0 };
        let own = cell.tries(&json!(["who_am_i"])).remove(0).unwrap();
        let pid = |name: &str| i32::try_from(own[name].as_i64().unwrap()).unwrap();
        (cell.agent, cell.guard) = (pid("pid"), pid("parent"));
        cell
    }

    /// The session of the agent that is to be contained.
    fn mine(service: &Service) -> Self {
        Self::open(service, "fake", service.work().join("mine"))
    }

    /// A session of somebody else's, with another agent.
    fn theirs(service: &Service) -> Self {
        Self::open(service, "other", service.dir.join("other/theirs"))
    }

    /// Has the agent try things.
    fn tries(&mut self, attempts: &Value) -> Vec<Outcome> {
        outcomes(&self.editor.turn_do(&self.session, &json!([{ "try": attempts }]))[0])
    }

    /// Has the agent, or a command that it has us run, try things.
    fn tries_by(&mut self, service: &Service, who: Who, attempts: &Value) -> Vec<Outcome> {
        let outcomes = match who {
            Who::Agent => self.tries(attempts),
            Who::Terminal => {
                let args = json!([ERRAND, attempts.to_string()]);
                let output = self.runs(&json!({ "command": service.program("fake-agent"), "args": args }));
                outcomes(&output)
            }
        };
        assert_eq!(outcomes.len(), attempts.as_array().unwrap().len());
        outcomes
    }

    /// Has the agent send a request; the whole answer that it got.
    fn asks(&mut self, method: &str, params: &Value) -> Value {
        let chunks = self.editor.turn_do(&self.session, &json!([request(method, params)]));
        let answer = chunks[0].strip_prefix("answer ").unwrap_or_else(|| panic!("no answer: {}", chunks[0]));
        serde_json::from_str(answer).unwrap()
    }

    /// Has the agent send a request; the result. An error fails the test.
    fn asks_well(&mut self, method: &str, params: &Value) -> Value {
        let answer = self.asks(method, params);
        answer.get("result").unwrap_or_else(|| panic!("{method} {params} failed: {answer}")).clone()
    }

    /// Starts a command in a terminal; the terminal, as parameters name it.
    fn creates(&mut self, params: &Value) -> Value {
        json!({ "terminalId": self.asks_well("terminal/create", params)["terminalId"] })
    }

    /// Runs a command in a terminal to its end; what it wrote.
    fn runs(&mut self, params: &Value) -> String {
        let id = self.creates(params);
        self.asks_well("terminal/wait_for_exit", &id);
        let output = self.asks_well("terminal/output", &id);
        self.asks_well("terminal/release", &id);
        output["output"].as_str().unwrap().to_owned()
    }

    /// Whether it is served as if nothing else happened on this host.
    fn is_well(&mut self) {
        let start = Instant::now();
        assert_eq!(self.editor.turn(&self.session, "well?"), ["echo: well?"]);
        assert!(start.elapsed() < Duration::from_secs(3), "a turn took {:?}", start.elapsed());
    }

    fn close(&mut self) {
        self.editor.call("session/close", &json!({ "sessionId": self.session }));
    }
}

/// The step by which the agent sends a request and waits for the answer.
fn request(method: &str, params: &Value) -> Value {
    let mut params = params.clone();
    params["sessionId"] = json!("$sid");
    json!({ "request": { "method": method, "params": params } })
}

fn outcomes(told: &str) -> Vec<Outcome> {
    let told: Vec<Value> =
        serde_json::from_str(told).unwrap_or_else(|error| panic!("no outcomes ({error}): {told}"));
    let read = |outcome: &Value| match outcome.get("ok") {
        Some(value) => Ok(value.clone()),
        None => Err(outcome["error"].as_str().unwrap().to_owned()),
    };
    told.iter().map(read).collect()
}

/// Fails unless every attempt was refused, for want of a right or because nothing was to be seen.
fn all_refused(attempts: &Value, outcomes: &[Outcome]) {
    let refusals = ["EACCES", "EPERM", "EXDEV", "ENOENT"];
    let pairs = attempts.as_array().unwrap().iter().zip(outcomes);
    let passed: Vec<_> = pairs
        .filter(|(_, outcome)| !matches!(outcome, Err(error) if refusals.contains(&error.as_str())))
        .map(|(attempt, outcome)| format!("{attempt}: {outcome:?}"))
        .collect();
    assert!(passed.is_empty(), "not refused:\n{}", passed.join("\n"));
}

/// Fails unless every attempt succeeded.
fn all_well(attempts: &Value, outcomes: &[Outcome]) {
    let pairs = attempts.as_array().unwrap().iter().zip(outcomes);
    let failed: Vec<_> = pairs
        .filter(|(_, outcome)| outcome.is_err())
        .map(|(attempt, outcome)| format!("{attempt}: {outcome:?}"))
        .collect();
    assert!(failed.is_empty(), "failed:\n{}", failed.join("\n"));
}

/// Whether a process is there and not dead.
fn runs(pid: i32) -> bool {
    let stat = fs::read(format!("/proc/{pid}/stat")).unwrap_or_default();
    let stat = String::from_utf8_lossy(&stat).into_owned();
    let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.trim_start().chars().next());
    state.is_some_and(|state| !matches!(state, 'Z' | 'X'))
}

/// Waits until the ledger tells why a process ended.
fn end_reason(service: &Service, pid: i32) -> String {
    let settings = Settings::embedded(&service.state());
    let runtime = Runtime::new().unwrap();
    let statement = format!("SELECT end_reason FROM processes WHERE pid = {pid} AND end_reason IS NOT NULL");
    let mut reasons = Vec::new();
    let told = poll_until(DEADLINE, || {
        reasons = runtime.block_on(shipping::texts(&settings, &statement));
        !reasons.is_empty()
    });
    assert!(told, "the end of process {pid} is not recorded\n{}", service.log());
    reasons.remove(0)
}

/// Every file beneath a directory, but for one part.
fn files(directory: &Path, except: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let beneath = entries.filter(|path| path != except).map(|path| {
        let is_directory = fs::symlink_metadata(&path).unwrap().is_dir();
        if is_directory { files(&path, except) } else { vec![path] }
    });
    beneath.flatten().collect()
}
