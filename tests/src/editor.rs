//! A fake editor: drives any ACP agent command on stdio, be it `conductor
//! connect` or the fake agent itself, line by line and as badly as a test
//! wants. Every wait has a deadline, and running into it shows everything that
//! arrived so far.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    io::{BufReader, Read as _, Write as _},
    path::Path,
    process::{Child, ChildStdin, Command, ExitStatus, Stdio},
    sync::{
        Arc, Condvar, Mutex, MutexGuard,
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json, value::RawValue};

/// How long a wait may take unless the test says otherwise. Long, because the
/// machine may be busy; a test that passes never waits for it.
pub const DEADLINE: Duration = Duration::from_secs(10);

/// Messages that may wait to be written; more than any test sends at once.
const OUTBOX: usize = 10_000;

/// One line that arrived.
#[derive(Debug, Clone)]
pub struct Line {
    /// Its bytes, without the newline.
    pub raw: Vec<u8>,
    /// What it says, as far as a `Value` can hold it.
    pub json: Value,
}

impl Line {
    /// The method, or "" for answers.
    pub fn method(&self) -> &str {
        self.json["method"].as_str().unwrap_or_default()
    }

    fn is_answer_to(&self, id: &Value) -> bool {
        self.json.get("method").is_none() && self.json.get("id") == Some(id)
    }

    fn is_request(&self) -> bool {
        self.json.get("method").is_some() && self.json.get("id").is_some()
    }

    /// The text of a message chunk, if this is one of the session.
    fn chunk(&self, session: &str) -> Option<&str> {
        let params = &self.json["params"];
        let update = &params["update"];
        let wanted = params["sessionId"] == session && update["sessionUpdate"] == "agent_message_chunk";
        update["content"]["text"].as_str().filter(|_| wanted)
    }

    /// The line as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.raw).into_owned()
    }
}

/// Answers requests of the agent by itself: `Some(result)`, or `None` to leave
/// the request to the test.
pub type Hook = Box<dyn Fn(&Value) -> Option<Value> + Send>;

#[derive(Default)]
struct Inbox {
    lines: Vec<Line>,
    stderr: Vec<u8>,
    /// Nothing more comes on stderr.
    stderr_ended: bool,
    ended: bool,
    paused: bool,
    hook: Option<Hook>,
    /// The conductor's own questions are left to the test.
    decides: bool,
}

struct Shared {
    inbox: Mutex<Inbox>,
    changed: Condvar,
    /// Feeds the thread that writes, so that a command that does not read
    /// blocks no test for ever.
    outbox: Mutex<Option<SyncSender<Vec<u8>>>>,
}

/// A fake editor and the command it talks to.
pub struct Editor {
    child: Child,
    shared: Arc<Shared>,
    next_id: i64,
    /// Requests of the agent that the test has taken.
    taken: usize,
    deadline: Duration,
}

impl Editor {
    /// Starts the command.
    pub fn spawn(command: &mut Command) -> Self {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
        let (outbox, outgoing) = sync_channel(OUTBOX);
        let shared = Arc::new(Shared {
            inbox: Mutex::default(),
            changed: Condvar::new(),
            outbox: Mutex::new(Some(outbox)),
        });
        let stdin = child.stdin.take().unwrap();
        thread::spawn(move || write(stdin, &outgoing));
        let (stdout, mut stderr) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
        let inbox = Arc::clone(&shared);
        thread::spawn(move || inbox.read(BufReader::new(stdout)));
        let inbox = Arc::clone(&shared);
        thread::spawn(move || {
            let mut chunk = [0; 4096];
            while let Ok(count @ 1..) = stderr.read(&mut chunk) {
                inbox.inbox.lock().unwrap().stderr.extend_from_slice(&chunk[..count]);
            }
            inbox.inbox.lock().unwrap().stderr_ended = true;
            inbox.changed.notify_all();
        });
        Self { child, shared, next_id: 1, taken: 0, deadline: DEADLINE }
    }

    /// Uses another deadline from now on.
    pub fn set_deadline(&mut self, deadline: Duration) {
        self.deadline = deadline;
    }

    /// Process id of the command.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Answers the agent's requests with what `hook` returns.
    pub fn answer_with(&self, hook: impl Fn(&Value) -> Option<Value> + Send + 'static) {
        self.inbox().hook = Some(Box::new(hook));
    }

    /// Leaves the conductor's own questions to the test. Otherwise they are answered with
    /// yes, for tests that are about something else than the policy.
    pub fn decides(&self) {
        self.inbox().decides = true;
    }

    /// Stops or goes on reading what the command writes. At most one more line
    /// is taken after a stop.
    pub fn pause(&self, paused: bool) {
        self.inbox().paused = paused;
        self.shared.changed.notify_all();
    }

    // Sending.

    /// Sends bytes as they are.
    pub fn send_bytes(&self, bytes: &[u8]) {
        let sent = self.shared.write(bytes.to_vec());
        assert!(sent, "cannot send: the command is gone or reads nothing\n{}", self.story());
    }

    /// Sends a line.
    pub fn send_line(&self, line: &str) {
        self.send_bytes(format!("{line}\n").as_bytes());
    }

    /// Sends a request with an id of our choice.
    pub fn request_with_id(&self, id: &Value, method: &str, params: &Value) {
        self.send_line(
            &json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }).to_string(),
        );
    }

    /// Sends a request; its id.
    pub fn request(&mut self, method: &str, params: &Value) -> Value {
        self.request_raw(method, &params.to_string())
    }

    /// Sends a request whose parameters are given as text; its id.
    pub fn request_raw(&mut self, method: &str, params: &str) -> Value {
        let id = json!(self.next_id);
        self.next_id += 1;
        self.send_line(&format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":{},"params":{params}}}"#,
            json!(method)
        ));
        id
    }

    /// Sends a notification.
    pub fn notify(&self, method: &str, params: &Value) {
        self.send_line(&json!({ "jsonrpc": "2.0", "method": method, "params": params }).to_string());
    }

    /// Answers a request of the agent.
    pub fn answer(&self, request: &Value, result: &Value) {
        self.answer_raw(request, &format!(r#""result":{result}"#));
    }

    /// Answers a request of the agent with `"result":…` or `"error":…` as text.
    pub fn answer_raw(&self, request: &Value, body: &str) {
        self.send_line(&format!(r#"{{"jsonrpc":"2.0","id":{},{body}}}"#, request["id"]));
    }

    /// Closes stdin, as an editor does that ends.
    pub fn close_stdin(&self) {
        self.shared.outbox.lock().unwrap().take();
    }

    // Waiting.

    /// Waits until `find` finds what it looks for. It is shown every line once,
    /// in order, from the first one on.
    pub fn wait_for<T>(&self, what: &str, mut find: impl FnMut(&Line) -> Option<T>) -> T {
        let until = Instant::now() + self.deadline;
        let mut shown = 0;
        let mut inbox = self.inbox();
        loop {
            if let Some(found) = inbox.lines[shown..].iter().find_map(&mut find) {
                return found;
            }
            shown = inbox.lines.len();
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || inbox.ended {
                let why = if inbox.ended { "the command closed its output" } else { "the deadline passed" };
                drop(inbox);
                panic!("{why} while waiting for {what}\n{}", self.story());
            }
            inbox = self.shared.changed.wait_timeout(inbox, left).unwrap().0;
        }
    }

    /// Waits for the answer to a request.
    pub fn response_line(&self, id: &Value) -> Line {
        self.wait_for(&format!("the answer to request {id}"), |line| {
            line.is_answer_to(id).then(|| line.clone())
        })
    }

    /// Waits for the answer to a request: the whole message.
    pub fn response(&self, id: &Value) -> Value {
        self.response_line(id).json
    }

    /// Sends a request and waits for its result; an error fails the test.
    pub fn call(&mut self, method: &str, params: &Value) -> Value {
        let id = self.request(method, params);
        let answer = self.response(&id);
        answer.get("result").unwrap_or_else(|| panic!("{method} failed: {answer}\n{}", self.story())).clone()
    }

    /// Sends a request and waits for its error; a result fails the test.
    pub fn call_error(&mut self, method: &str, params: &Value) -> Value {
        let id = self.request(method, params);
        self.error_of(&id)
    }

    /// Waits for the error that answers a request; a result fails the test.
    pub fn error_of(&self, id: &Value) -> Value {
        let answer = self.response(id);
        answer.get("error").unwrap_or_else(|| panic!("no error: {answer}\n{}", self.story())).clone()
    }

    /// Waits for the stop reason that answers a prompt; an error fails the test.
    pub fn stop_reason(&self, id: &Value) -> String {
        let answer = self.response(id);
        let reason = answer["result"]["stopReason"].as_str();
        reason.unwrap_or_else(|| panic!("no stop reason: {answer}\n{}", self.story())).to_owned()
    }

    /// Waits for the next request of the agent that the test has not taken yet.
    pub fn next_request(&mut self, method: &str) -> Value {
        let taken = self.taken;
        let mut place = 0;
        let request = self.wait_for(&format!("a request {method}"), |line| {
            place += 1;
            let wanted = place > taken && line.is_request() && line.method() == method;
            wanted.then(|| line.json.clone())
        });
        self.taken = place;
        request
    }

    /// Waits until the session has so many message chunks; their texts.
    pub fn wait_chunks(&self, session: &str, count: usize) -> Vec<String> {
        let mut texts = Vec::new();
        self.wait_for(&format!("{count} chunks of {session}"), |line| {
            texts.extend(line.chunk(session).map(str::to_owned));
            (texts.len() >= count).then_some(())
        });
        texts
    }

    /// Waits for the command to end, and for its last words on stderr.
    pub fn wait_exit(&mut self) -> ExitStatus {
        let until = Instant::now() + self.deadline;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                let left = until.saturating_duration_since(Instant::now());
                let speaks = |inbox: &mut Inbox| !inbox.stderr_ended;
                let waited = self.shared.changed.wait_timeout_while(self.inbox(), left, speaks).unwrap();
                assert!(!waited.1.timed_out(), "something else holds the command's stderr");
                return status;
            }
            assert!(Instant::now() < until, "the command does not end\n{}", self.story());
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits for the command to close its output.
    pub fn wait_end(&self) {
        let until = Instant::now() + self.deadline;
        let mut inbox = self.inbox();
        while !inbox.ended {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                drop(inbox);
                panic!("the command does not close its output\n{}", self.story());
            }
            inbox = self.shared.changed.wait_timeout(inbox, left).unwrap().0;
        }
    }

    // Looking.

    /// All lines so far, in order of arrival.
    pub fn lines(&self) -> Vec<Line> {
        self.inbox().lines.clone()
    }

    /// Texts of the session's message chunks so far.
    pub fn chunks(&self, session: &str) -> Vec<String> {
        self.inbox().lines.iter().filter_map(|line| line.chunk(session)).map(str::to_owned).collect()
    }

    /// How often a request has been answered so far.
    pub fn answers_to(&self, id: &Value) -> usize {
        self.inbox().lines.iter().filter(|line| line.is_answer_to(id)).count()
    }

    /// Whether the command has closed its output.
    pub fn has_ended(&self) -> bool {
        self.inbox().ended
    }

    /// What the command wrote to stderr so far.
    pub fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.inbox().stderr).into_owned()
    }

    // The usual opening moves.

    /// Shakes hands with everything an editor may offer.
    pub fn initialize(&mut self) -> Value {
        self.initialize_with(&json!({
            "fs": { "readTextFile": true, "writeTextFile": true },
            "terminal": true,
            "elicitation": { "form": {}, "url": {} },
        }))
    }

    /// Shakes hands with these capabilities.
    pub fn initialize_with(&mut self, capabilities: &Value) -> Value {
        let info = json!({ "name": "fake-editor", "version": "1" });
        self.call(
            "initialize",
            &json!({ "protocolVersion": 1, "clientCapabilities": capabilities, "clientInfo": info }),
        )
    }

    /// Opens a session; its id.
    pub fn new_session(&mut self, cwd: &Path) -> String {
        let result = self.call("session/new", &json!({ "cwd": cwd, "mcpServers": [] }));
        result["sessionId"].as_str().unwrap_or_else(|| panic!("no session id in {result}")).to_owned()
    }

    /// Prompts with a text; the request's id.
    pub fn prompt(&mut self, session: &str, text: &str) -> Value {
        let prompt = json!([{ "type": "text", "text": text }]);
        self.request("session/prompt", &json!({ "sessionId": session, "prompt": prompt }))
    }

    /// Prompts the fake agent with steps; the request's id.
    pub fn prompt_do(&mut self, session: &str, steps: &Value) -> Value {
        self.prompt(session, &json!({ "do": steps }).to_string())
    }

    /// Prompts with a text and waits for the end of the turn; the chunks that
    /// came in between.
    pub fn turn(&mut self, session: &str, text: &str) -> Vec<String> {
        let before = self.chunks(session).len();
        let id = self.prompt(session, text);
        let reason = self.stop_reason(&id);
        assert_eq!(reason, "end_turn", "{}", self.story());
        self.chunks(session).split_off(before)
    }

    /// Prompts with steps and waits for the end of the turn; the chunks.
    pub fn turn_do(&mut self, session: &str, steps: &Value) -> Vec<String> {
        self.turn(session, &json!({ "do": steps }).to_string())
    }

    /// Asks for the running turn to end.
    pub fn cancel(&self, session: &str) {
        self.notify("session/cancel", &json!({ "sessionId": session }));
    }

    /// Everything that arrived, for messages of failed tests.
    pub fn story(&self) -> String {
        let inbox = self.inbox();
        let mut story = format!("received {} lines:\n", inbox.lines.len());
        for line in inbox.lines.iter().take(100) {
            let text: String = line.text().chars().take(400).collect();
            let _ = writeln!(story, "  {text}");
        }
        let _ = writeln!(story, "stderr of the command:\n{}", String::from_utf8_lossy(&inbox.stderr));
        story
    }

    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.shared.inbox.lock().unwrap()
    }
}

/// Yes to a question of the conductor's own.
fn consent(line: &Line) -> Option<Value> {
    let call = line.json["params"]["toolCall"]["toolCallId"].as_str()?;
    let asks = line.method() == "session/request_permission" && call.starts_with("conductor-");
    asks.then(|| json!({ "outcome": { "outcome": "selected", "optionId": "allow" } }))
}

impl Drop for Editor {
    fn drop(&mut self) {
        self.pause(false);
        // An editor that ends closes the pipe; the bridge must follow by itself.
        self.close_stdin();
        let until = Instant::now() + Duration::from_secs(3);
        while Instant::now() < until {
            if matches!(self.child.try_wait(), Ok(Some(_)) | Err(_)) {
                return;
            }
            thread::sleep(Duration::from_millis(2));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        assert!(thread::panicking(), "the command does not end when its stdin does\n{}", self.story());
    }
}

impl Shared {
    fn read(&self, mut stdout: impl std::io::BufRead) {
        loop {
            let inbox = self.inbox.lock().unwrap();
            drop(self.changed.wait_while(inbox, |inbox| inbox.paused).unwrap());
            let mut raw = Vec::new();
            if !matches!(stdout.read_until(b'\n', &mut raw), Ok(1..)) {
                break;
            }
            if raw.last() == Some(&b'\n') {
                raw.pop();
            }
            let json = read_json(&raw);
            let line = Line { raw, json };
            let mut inbox = self.inbox.lock().unwrap();
            let asked = Some(&line).filter(|line| line.is_request());
            let hooked = asked.and_then(|line| inbox.hook.as_ref()?(&line.json));
            let answer = hooked.or_else(|| asked.filter(|_| !inbox.decides).and_then(consent));
            let answer = answer.map(|answer| (line.json["id"].clone(), answer));
            inbox.lines.push(line);
            drop(inbox);
            self.changed.notify_all();
            if let Some((id, result)) = answer {
                let text = json!({ "jsonrpc": "2.0", "id": id, "result": result }).to_string();
                // The command may be gone by now; the test will notice.
                self.write(format!("{text}\n").into_bytes());
            }
        }
        self.inbox.lock().unwrap().ended = true;
        self.changed.notify_all();
    }

    /// Puts bytes on their way; `false` if that is no longer possible.
    fn write(&self, bytes: Vec<u8>) -> bool {
        self.outbox.lock().unwrap().as_ref().is_some_and(|outbox| outbox.try_send(bytes).is_ok())
    }
}

/// Writes until there is nothing more to write, then closes the pipe.
fn write(mut stdin: ChildStdin, outgoing: &Receiver<Vec<u8>>) {
    for bytes in outgoing {
        if stdin.write_all(&bytes).is_err() {
            // The command is gone; whoever waits for it will notice.
            return;
        }
    }
}

/// What a line says, as far as a `Value` can hold it: a member that it cannot
/// (such as 1e400000 somewhere inside) becomes `null`.
fn read_json(raw: &[u8]) -> Value {
    if let Ok(json) = serde_json::from_slice(raw) {
        return json;
    }
    let members: BTreeMap<String, &RawValue> = serde_json::from_slice(raw).unwrap_or_default();
    let read =
        |(name, value): (String, &RawValue)| (name, serde_json::from_str(value.get()).unwrap_or_default());
    Value::Object(members.into_iter().map(read).collect())
}
