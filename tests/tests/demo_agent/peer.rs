//! The client's side: starts the agent, talks to it, and keeps what came back.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::time::{Duration, Instant};

use conductor_tests::harness::program;
use serde_json::{Value, json};
use tempfile::TempDir;

/// Nothing here takes long; whoever waits this long waits for something that will not come.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// A running demo agent and the client that talks to it.
pub struct Peer {
    pub child: Child,
    pub stdin: Option<ChildStdin>,
    lines: Receiver<Value>,
    last_id: i64,
}

/// What came back for one request: everything before the answer, and the answer.
pub struct Reply {
    pub before: Vec<Value>,
    pub outcome: Result<Value, Value>,
}

impl Peer {
    pub fn start(home: &Path) -> Self {
        let mut child = Command::new(program("conductor"))
            .arg("demo-agent")
            .env("HOME", home)
            .env("DEMO_SECRET", "hunter2")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = sync_channel(1024);
        std::thread::spawn(move || {
            for line in stdout.lines() {
                let Ok(line) = line else { return };
                let message = serde_json::from_str(&line).unwrap_or_else(|_| json!({ "not JSON": line }));
                if sender.send(message).is_err() {
                    return;
                }
            }
        });
        let stdin = child.stdin.take();
        Self { child, stdin, lines, last_id: 100 }
    }

    /// A peer after `initialize` with these client capabilities.
    pub fn ready(home: &Path, capabilities: Value) -> Self {
        let mut peer = Self::start(home);
        let params = json!({ "protocolVersion": 1, "clientCapabilities": capabilities });
        peer.call("initialize", params).outcome.unwrap();
        peer
    }

    pub fn raw(&mut self, bytes: &[u8]) {
        self.stdin.as_mut().unwrap().write_all(bytes).unwrap();
    }

    pub fn send(&mut self, message: &Value) {
        self.raw(format!("{message}\n").as_bytes());
    }

    pub fn notify(&mut self, method: &str, params: Value) {
        self.send(&json!({ "jsonrpc": "2.0", "method": method, "params": params }));
    }

    /// Sends a request without waiting.
    pub fn begin(&mut self, method: &str, params: Value) -> i64 {
        self.last_id += 1;
        self.send(&json!({ "jsonrpc": "2.0", "id": self.last_id, "method": method, "params": params }));
        self.last_id
    }

    pub fn answer(&mut self, request: &Value, result: Value) {
        self.send(&json!({ "jsonrpc": "2.0", "id": request["id"], "result": result }));
    }

    pub fn next(&mut self) -> Value {
        self.lines.recv_timeout(PATIENCE).expect("the agent should have said something")
    }

    /// Reads on until a message satisfies the test; that one comes last.
    pub fn until(&mut self, wanted: impl Fn(&Value) -> bool) -> Vec<Value> {
        let mut seen = Vec::new();
        loop {
            seen.push(self.next());
            if wanted(seen.last().unwrap()) {
                return seen;
            }
        }
    }

    pub fn finish(&mut self, id: i64) -> Reply {
        let mut before = self.until(|message| message["id"] == id && message.get("method").is_none());
        let mut last = before.pop().unwrap();
        let outcome = match last.get_mut("error") {
            Some(error) => Err(error.take()),
            None => Ok(last["result"].take()),
        };
        Reply { before, outcome }
    }

    pub fn call(&mut self, method: &str, params: Value) -> Reply {
        let id = self.begin(method, params);
        self.finish(id)
    }

    pub fn code(&mut self, method: &str, params: Value) -> i64 {
        self.call(method, params).outcome.unwrap_err()["code"].as_i64().unwrap()
    }

    /// Opens a session and reads the announcement that follows.
    pub fn open(&mut self) -> String {
        let result =
            self.call("session/new", json!({ "cwd": "/project", "mcpServers": [] })).outcome.unwrap();
        let update = self.next();
        assert_eq!(update["params"]["update"]["sessionUpdate"], "available_commands_update");
        result["sessionId"].as_str().unwrap().to_owned()
    }

    pub fn begin_prompt(&mut self, session: &str, text: &str) -> i64 {
        let prompt = json!([{ "type": "text", "text": text }]);
        self.begin("session/prompt", json!({ "sessionId": session, "prompt": prompt }))
    }

    pub fn prompt(&mut self, session: &str, text: &str) -> Reply {
        let id = self.begin_prompt(session, text);
        self.finish(id)
    }

    /// Prompts, and answers each request of the agent with what the client says: a result or an error.
    pub fn prompt_with(
        &mut self,
        session: &str,
        text: &str,
        client: impl Fn(&str, &Value) -> Result<Value, &'static str>,
    ) -> Reply {
        let id = self.begin_prompt(session, text);
        let mut before = Vec::new();
        loop {
            before.extend(self.until(|message| message.get("id").is_some()));
            let message = before.last().unwrap().clone();
            let Some(method) = message["method"].as_str() else {
                assert_eq!(message["id"], id);
                before.pop();
                let outcome = message.get("error").map_or(Ok(message["result"].clone()), |e| Err(e.clone()));
                return Reply { before, outcome };
            };
            match client(method, &message["params"]) {
                Ok(result) => self.answer(&message, result),
                Err(why) => {
                    let error = json!({ "code": -32000, "message": why });
                    self.send(&json!({ "jsonrpc": "2.0", "id": message["id"], "error": error }));
                }
            }
        }
    }

    /// Closes stdin and waits for the end.
    pub fn end(&mut self) -> ExitStatus {
        drop(self.stdin.take());
        self.wait()
    }

    /// Waits for stdout to end, which is when the process does, and reaps it.
    pub fn wait(&mut self) -> ExitStatus {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(_) => {}
                Err(RecvTimeoutError::Disconnected) => return self.child.wait().unwrap(),
                Err(RecvTimeoutError::Timeout) => panic!("the agent is still alive"),
            }
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Reply {
    pub fn updates(&self) -> Vec<&Value> {
        let updates = self.before.iter().filter(|message| message["method"] == "session/update");
        updates.map(|message| &message["params"]["update"]).collect()
    }

    pub fn of_kind(&self, kind: &str) -> Vec<&Value> {
        self.updates().into_iter().filter(|update| update["sessionUpdate"] == kind).collect()
    }

    pub fn text(&self) -> String {
        let chunks = self.of_kind("agent_message_chunk");
        chunks.iter().map(|chunk| chunk["content"]["text"].as_str().unwrap()).collect()
    }

    /// The statuses that tool calls went through.
    pub fn statuses(&self) -> Vec<&str> {
        let updates = self.updates().into_iter().filter(|update| update.get("toolCallId").is_some());
        updates.map(|update| update["status"].as_str().unwrap()).collect()
    }

    /// The methods that the agent called on the client.
    pub fn asked(&self) -> Vec<&str> {
        let requests = self.before.iter().filter(|message| message.get("id").is_some());
        requests.map(|message| message["method"].as_str().unwrap()).collect()
    }

    pub fn stop_reason(&self) -> &str {
        self.outcome.as_ref().unwrap()["stopReason"].as_str().unwrap()
    }
}

pub fn home() -> TempDir {
    tempfile::tempdir().unwrap()
}

pub fn everything() -> Value {
    json!({
        "fs": { "readTextFile": true, "writeTextFile": true },
        "terminal": true,
        "elicitation": { "form": {} },
    })
}

pub fn choose(option: &str) -> Value {
    json!({ "outcome": { "outcome": "selected", "optionId": option } })
}

pub fn load(session: &str) -> Value {
    json!({ "sessionId": session, "cwd": "/project", "mcpServers": [] })
}
