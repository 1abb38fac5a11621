//! One request being handled: runs its steps and answers it once, unless a
//! step says otherwise.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    io::Write as _,
    path::Path,
    process,
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicBool, Ordering},
        mpsc::Receiver,
    },
    thread,
    time::Duration,
};

use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use serde_json::{Value, json, value::RawValue};

use super::{
    Agent, attempt,
    process::{fork, zombies},
    script::{Answer, CancelStyle, Chunks, Directive, Request, Step, Swapping},
};

/// The flag that `session/cancel` raises.
#[derive(Debug, Default)]
pub struct Cancel {
    raised: Mutex<bool>,
    changed: Condvar,
}

impl Cancel {
    /// Raises the flag.
    pub fn set(&self) {
        *self.raised.lock().unwrap() = true;
        self.changed.notify_all();
    }

    fn is_set(&self) -> bool {
        *self.raised.lock().unwrap()
    }

    fn wait(&self, time: Duration) {
        let raised = self.raised.lock().unwrap();
        drop(self.changed.wait_timeout_while(raised, time, |raised| !*raised).unwrap());
    }
}

/// Between two swaps; short against all that lies between a look at a path and its use.
const SWAP_PAUSE: Duration = Duration::from_micros(100);

/// Whether to go on with the next step.
#[derive(PartialEq, Eq)]
enum Flow {
    Next,
    Stop,
}

/// A request being handled.
pub struct Turn {
    agent: Arc<Agent>,
    /// The session it belongs to; may be empty.
    pub session: String,
    id: Option<String>,
    cancel: Arc<Cancel>,
    answered: bool,
    after: Vec<Step>,
    newest: Option<(String, Receiver<String>)>,
    /// Id of the newest terminal.
    terminal: String,
}

impl Turn {
    /// A turn for the request with this id.
    pub fn new(agent: &Arc<Agent>, session: &str, id: Option<&str>) -> Self {
        Self {
            agent: Arc::clone(agent),
            session: session.to_owned(),
            id: id.map(str::to_owned),
            cancel: Arc::default(),
            answered: false,
            after: Vec::new(),
            newest: None,
            terminal: String::new(),
        }
    }

    /// The flag that ends it.
    pub fn cancel(&self) -> Arc<Cancel> {
        Arc::clone(&self.cancel)
    }

    /// Runs a directive given as text.
    pub fn run_text(&mut self, text: &str) {
        match serde_json::from_str::<Directive>(text) {
            Ok(mut directive) => {
                self.run(&directive.steps);
                for step in &mut directive.steps {
                    if let Step::After(steps) = step {
                        self.after.append(steps);
                    }
                }
            }
            Err(error) => self.answer_error(-32602, &format!("bad steps: {error}")),
        }
    }

    /// Runs steps until one stops or the turn is cancelled.
    pub fn run(&mut self, steps: &[Step]) -> bool {
        for step in steps {
            if self.step(step) == Flow::Stop || self.ended_by_cancel() {
                return false;
            }
        }
        true
    }

    /// Answers if nothing has, then runs what was put off.
    pub fn finish(&mut self) {
        if !self.answered {
            self.answer_result(r#"{"stopReason":"end_turn"}"#);
        }
        let after = std::mem::take(&mut self.after);
        self.run(&after);
    }

    /// Streams a text.
    pub fn chunk(&self, text: &str) {
        let update =
            json!({ "sessionUpdate": "agent_message_chunk", "content": { "type": "text", "text": text } });
        self.agent.update(&self.session, &update.to_string());
    }

    /// Answers with a result, given as JSON text.
    pub fn answer_result(&mut self, result: &str) {
        if let Some(id) = self.id.clone() {
            self.agent.wire.line(&format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#));
        }
        self.answered = true;
    }

    /// Answers with an error.
    pub fn answer_error(&mut self, code: i64, message: &str) {
        let mut error = json!({ "code": code, "message": message });
        if code == -32002 {
            error["data"] = json!({ "sessionId": self.session });
        }
        if let Some(id) = self.id.clone() {
            self.agent.wire.line(&format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{error}}}"#));
        }
        self.answered = true;
    }

    fn ended_by_cancel(&mut self) -> bool {
        if self.answered || !self.cancel.is_set() {
            return false;
        }
        match self.agent.script.cancel {
            CancelStyle::Never => return false,
            CancelStyle::Cancelled => self.answer_result(r#"{"stopReason":"cancelled"}"#),
            CancelStyle::UpdateFirst => {
                self.chunk("last words");
                self.answer_result(r#"{"stopReason":"cancelled"}"#);
            }
            CancelStyle::EndTurn => self.answer_result(r#"{"stopReason":"end_turn"}"#),
            CancelStyle::Error => self.answer_error(-32800, "request cancelled"),
            CancelStyle::Die => process::exit(9),
        }
        true
    }

    fn fill_in(&self, text: &str) -> String {
        text.replace("$sid", &self.session)
            .replace("$id", self.id.as_deref().unwrap_or("null"))
            .replace("$terminal", &self.terminal)
    }

    fn step(&mut self, step: &Step) -> Flow {
        let wire = &self.agent.wire;
        match step {
            Step::Update(chunks) => self.chunks(chunks),
            Step::Random(count) => self.random(*count),
            Step::Line(text) => wire.line(&self.fill_in(text)),
            Step::Trickle(text) => {
                let text = self.fill_in(text);
                wire.pieces(text.as_bytes(), format!("{text}\n").as_bytes(), 1);
            }
            Step::Bytes(hex) => wire.bytes(&crate::ledger::from_hex(hex)),
            Step::Fill(byte, count) => wire.bytes(&vec![*byte; *count]),
            Step::Repeat(times, steps) => {
                if !(0..*times).all(|_| self.run(steps)) {
                    return Flow::Stop;
                }
            }
            Step::Request(request) => self.request(request),
            Step::Notify(call) => {
                let (method, params) = (json!(call.method), self.params(call.params.as_deref()));
                wire.line(&format!(r#"{{"jsonrpc":"2.0","method":{method},"params":{params}}}"#));
            }
            Step::CancelRequest => {
                let id = self.newest.as_ref().map_or("null", |(id, _)| id.as_str());
                wire.line(&format!(
                    r#"{{"jsonrpc":"2.0","method":"$/cancel_request","params":{{"requestId":{id}}}}}"#
                ));
            }
            Step::AwaitAnswer => self.await_answer(false),
            Step::Answer(answer) => self.answer(answer),
            Step::Sleep(millis) => self.cancel.wait(Duration::from_millis(*millis)),
            Step::WaitCancel => self.cancel.wait(Duration::MAX),
            Step::WaitFile(path) => {
                while !Path::new(path).exists() && !self.cancel.is_set() {
                    self.cancel.wait(Duration::from_millis(2));
                }
            }
            Step::Touch(path) => fs::write(path, "").expect("the file can be created"),
            Step::Plant(path, text) => {
                fs::create_dir_all(Path::new(path).parent().expect("a path")).expect("directories");
                fs::write(path, text).expect("the file can be written");
            }
            Step::Link(path, target) => {
                let _ = fs::remove_file(path);
                std::os::unix::fs::symlink(target, path).expect("the link can be made");
            }
            Step::Hang => loop {
                thread::park();
            },
            Step::Exit(code) => process::exit(*code),
            Step::ExitIfHomeHas(name) => {
                if std::env::home_dir().is_some_and(|home| home.join(name).exists()) {
                    std::process::exit(1);
                }
            }
            Step::Signal(number) => {
                let signal = nix::sys::signal::Signal::try_from(*number).expect("a signal number");
                nix::sys::signal::kill(nix::unistd::Pid::this(), signal).expect("kill");
                // These end the process, but maybe from another thread, after this
                // one has answered; and the first SIGSEGV or SIGBUS only meets the
                // standard library's handler, which restores the default.
                use nix::sys::signal::Signal::{SIGBUS, SIGILL, SIGKILL, SIGSEGV};
                if matches!(signal, SIGBUS | SIGILL | SIGKILL | SIGSEGV) {
                    loop {
                        thread::yield_now();
                        nix::sys::signal::kill(nix::unistd::Pid::this(), signal).expect("kill");
                    }
                }
            }
            Step::Abort => process::abort(),
            Step::Fork(how) => fork(how),
            Step::Zombies(count) => self.chunk(&json!(zombies(*count)).to_string()),
            Step::Stderr(text) => stderr(text.as_bytes()),
            Step::StderrFlood(mib) => {
                let line = format!("{}\n", "e".repeat(1023));
                (0..mib * 1024).for_each(|_| stderr(line.as_bytes()));
            }
            Step::CloseStdout => wire.close_stdout(),
            Step::StopReading => wire.set_reading(false),
            Step::StartReading => wire.set_reading(true),
            Step::IgnoreSigterm => wire.ignore_sigterm.store(true, Ordering::SeqCst),
            Step::Describe => self.describe(),
            Step::Try(attempts) => self.chunk(&attempt::make(attempts).to_string()),
            Step::Swapping(swapping) => {
                if !self.swapping(swapping) {
                    return Flow::Stop;
                }
            }
            // Taken out by `run_text` once the others have run.
            Step::After(_) => {}
        }
        Flow::Next
    }

    fn chunks(&self, chunks: &Chunks) {
        for number in chunks.first..chunks.first + chunks.n {
            let mut text = format!("{}{number}", chunks.text);
            if text.len() < chunks.size {
                text.push(' ');
                text.push_str(&"x".repeat(chunks.size - text.len()));
            }
            let update = json!({ "sessionUpdate": "agent_message_chunk", "content": { "type": "text", "text": text } });
            let session = chunks.session.as_ref().unwrap_or(&self.session);
            self.agent.update(session, &update.to_string());
        }
    }

    /// Sizes from a small generator (xorshift), so that a seed repeats a run.
    fn random(&self, count: usize) {
        let mut state = self.agent.script.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut next = move |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            usize::try_from(state % below).unwrap()
        };
        for number in 0..count {
            let text = format!("random {number} {}", "r".repeat(next(5000)));
            let line = json!({ "jsonrpc": "2.0", "method": "session/update", "params": {
                "sessionId": self.session,
                "update": { "sessionUpdate": "agent_message_chunk", "content": { "type": "text", "text": text } },
            } })
            .to_string();
            self.agent.wire.pieces(line.as_bytes(), format!("{line}\n").as_bytes(), 1 + next(700));
        }
    }

    fn params(&self, params: Option<&RawValue>) -> String {
        self.fill_in(params.map_or("{}", RawValue::get))
    }

    fn request(&mut self, request: &Request) {
        let id = request.id.as_deref().map_or_else(|| self.agent.wire.mint_id(), |id| id.get().to_owned());
        let (method, params) = (json!(request.method), self.params(request.params.as_deref()));
        self.newest = Some((id.clone(), self.agent.wire.expect(&id)));
        self.agent
            .wire
            .line(&format!(r#"{{"jsonrpc":"2.0","id":{id},"method":{method},"params":{params}}}"#));
        if !request.forget {
            self.await_answer(request.quiet);
        }
    }

    fn await_answer(&mut self, quiet: bool) {
        let Some((_, answer)) = self.newest.take() else { return };
        if let Ok(answer) = answer.recv() {
            let told: Value = serde_json::from_str(&answer).unwrap_or_default();
            if let Some(id) = told["result"]["terminalId"].as_str() {
                id.clone_into(&mut self.terminal);
            }
            if !quiet {
                self.chunk(&format!("answer {answer}"));
            }
        }
    }

    fn answer(&mut self, answer: &Answer) {
        let right = self.id.clone().unwrap_or_else(|| "null".to_owned());
        let id = answer.id.as_deref().map_or(right.as_str(), RawValue::get);
        let body = match (&answer.result, &answer.error) {
            (_, Some(error)) => format!(r#""error":{}"#, self.fill_in(error.get())),
            (Some(result), None) => format!(r#""result":{}"#, self.fill_in(result.get())),
            (None, None) => r#""result":{"stopReason":"end_turn"}"#.to_owned(),
        };
        for _ in 0..answer.times {
            self.agent.wire.line(&format!(r#"{{"jsonrpc":"2.0","id":{id},{body}}}"#));
        }
        self.answered |= answer.id.is_none();
    }

    /// Runs steps while two paths are swapped.
    fn swapping(&mut self, Swapping { one, other, steps }: &Swapping) -> bool {
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    renameat2(AT_FDCWD, one, AT_FDCWD, other, RenameFlags::RENAME_EXCHANGE).expect("a swap");
                    // On few processors it would starve those it races with.
                    thread::sleep(SWAP_PAUSE);
                }
            });
            let went_on = self.run(steps);
            done.store(true, Ordering::Relaxed);
            went_on
        })
    }

    fn describe(&self) {
        let names: BTreeSet<String> = env::vars().map(|(name, _)| name).collect();
        let open = fs::read_dir("/proc/self/fd").expect("/proc is there").filter_map(Result::ok);
        let fds: BTreeMap<String, String> = open
            .filter_map(|fd| {
                let target = fs::read_link(fd.path()).ok()?.to_string_lossy().into_owned();
                Some((fd.file_name().to_string_lossy().into_owned(), target))
            })
            .collect();
        self.chunk(&json!({ "env": names, "cwd": env::current_dir().ok(), "fds": fds }).to_string());
    }
}

fn stderr(bytes: &[u8]) {
    // A reader that is gone must not end the agent.
    let _ = std::io::stderr().write_all(bytes);
}
