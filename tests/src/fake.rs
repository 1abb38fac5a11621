//! A scripted ACP agent over raw bytes: well behaved unless told otherwise.
//!
//! The process follows its [`script::Script`]; a prompt whose text is
//! `{"do":[…]}` adds steps for that turn. Everything is threads and blocking
//! calls on purpose: nothing of the conductor's own machinery is shared, and a
//! fault such as "reads nothing" is just a thread that does not read.
//!
//! With the step `try` it turns hostile: it does harm by itself, past the protocol, and
//! tells what came of it ([`attempt`], [`hog`], [`syscall`]). `fake-agent --try '[…]'` does
//! the same without being an agent, for terminals.
//!
//! Environment: `FAKE_AGENT_SCRIPT` (JSON or a file), `FAKE_AGENT_LEDGER` (a
//! directory for the ledger), `FAKE_AGENT_STORE` (a directory for histories,
//! so that `session/load` works across processes).
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

pub mod attempt;
pub mod hog;
pub mod login;
pub mod process;
pub mod script;
pub mod syscall;
pub mod turn;
pub mod wire;

use std::{
    borrow::Cow,
    collections::HashMap,
    env, fs,
    io::{ErrorKind, Read as _, Write as _},
    path::PathBuf,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    thread,
};

use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};

use self::{
    script::{Script, Step},
    turn::{Cancel, Turn},
    wire::Wire,
};
use crate::ledger::{Kind, Ledger};

/// What all threads of the agent share.
#[derive(Debug)]
pub struct Agent {
    /// How to behave.
    pub script: Script,
    /// The pipes.
    pub wire: Wire,
    /// Where histories are kept.
    store: Option<PathBuf>,
    /// Running turns by session.
    turns: Mutex<HashMap<String, Arc<Cancel>>>,
    /// Working directories of open sessions.
    sessions: Mutex<HashMap<String, String>>,
    /// What was chosen in each: the option's id, and the value.
    chosen: Mutex<HashMap<(String, String), Value>>,
    next_session: AtomicU64,
}

/// A message as it came, as far as the agent must understand it.
#[derive(Debug, Deserialize)]
struct Message<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    method: Option<Cow<'a, str>>,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
}

/// The parameters that matter, read leniently: numbers and strings that no
/// number or string type can hold must not stop the agent.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Params<'a> {
    session_id: Option<Cow<'a, str>>,
    cwd: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    prompt: Vec<&'a RawValue>,
    #[serde(rename = "do")]
    steps: Option<&'a RawValue>,
}

#[derive(Debug, Deserialize)]
struct TextBlock {
    text: String,
}

/// The program: never returns while it has a reason to live.
pub fn main() {
    if process::is_descendant() {
        return;
    }
    if attempt::is_errand() {
        return;
    }
    if login::is_wanted() {
        return login::run();
    }
    let script = read_script();
    let ledger = Ledger::create(env::var_os("FAKE_AGENT_LEDGER").map(PathBuf::from).as_deref());
    let started = json!({ "start": env::args().collect::<Vec<_>>(), "cwd": env::current_dir().ok() });
    ledger.write(Kind::Event, started.to_string().as_bytes());
    let wire = Wire::new(ledger, script.ignore_sigterm, script.uuid_request_ids);
    let store = env::var_os("FAKE_AGENT_STORE").map(PathBuf::from);
    let agent = Arc::new(Agent {
        script,
        wire,
        store,
        turns: Mutex::default(),
        sessions: Mutex::default(),
        chosen: Mutex::default(),
        next_session: AtomicU64::new(0),
    });
    process::watch_sigterm(&agent);
    Turn::new(&agent, "", None).run(&agent.script.start);
    agent.read_lines();
    agent.wire.event("end of input");
    if agent.script.ignore_eof {
        loop {
            thread::park();
        }
    }
}

fn read_script() -> Script {
    let Ok(given) = env::var("FAKE_AGENT_SCRIPT") else { return Script::default() };
    let text = if given.trim_start().starts_with('{') {
        given
    } else {
        fs::read_to_string(&given).unwrap_or_else(|error| panic!("cannot read {given}: {error}"))
    };
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("bad script: {error}\n{text}"))
}

impl Agent {
    fn read_lines(self: &Arc<Self>) {
        let mut stdin = std::io::stdin().lock();
        let mut pending = Vec::new();
        let mut chunk = vec![0; 64 * 1024];
        loop {
            self.wire.wait_until_reading();
            let count = match stdin.read(&mut chunk) {
                Ok(0) => break,
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(_) => break,
            };
            let mut rest = &chunk[..count];
            while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
                pending.extend_from_slice(&rest[..end]);
                rest = &rest[end + 1..];
                self.wire.ledger.write(Kind::In, &pending);
                self.take(&pending);
                pending.clear();
            }
            pending.extend_from_slice(rest);
        }
    }

    fn take(self: &Arc<Self>, line: &[u8]) {
        let Ok(text) = std::str::from_utf8(line) else { return };
        let Ok(message) = serde_json::from_str::<Message<'_>>(text) else { return };
        match (message.method, message.id) {
            (Some(method), id) => {
                let params = message.params.map_or("{}", RawValue::get);
                self.take_call(&method, id.map(RawValue::get), params);
            }
            (None, Some(id)) => self.wire.deliver(id.get(), text),
            (None, None) => {}
        }
    }

    fn take_call(self: &Arc<Self>, method: &str, id: Option<&str>, raw: &str) {
        let params: Params<'_> = serde_json::from_str(raw).unwrap_or_default();
        let session = params.session_id.as_deref().unwrap_or_default().to_owned();
        let Some(id) = id else {
            if method == "session/cancel"
                && let Some(cancel) = self.turns.lock().unwrap().get(&session)
            {
                cancel.set();
            }
            return;
        };
        let session = if method == "session/new" { self.mint_session() } else { session };
        let mut turn = Turn::new(self, &session, Some(id));
        turn.run(steps_for(&self.script.before, method));
        if self.script.instead.contains_key(method) {
            // Not the reader's thread: these steps may wait for the reader.
            let (agent, method) = (Arc::clone(self), method.to_owned());
            thread::spawn(move || {
                turn.run(&agent.script.instead[&method]);
                turn.finish();
            });
            return;
        }
        match method {
            "session/prompt" => return self.prompt(turn, &params),
            "_x/do" => return self.extension(turn, &params),
            _ => {}
        }
        let answer = self.answer(method, &session, &params, raw);
        match answer {
            Ok(result) => turn.answer_result(&result.to_string()),
            Err((code, message)) => turn.answer_error(code, &message),
        }
        turn.run(steps_for(&self.script.after, method));
    }

    /// The answer to every method that is not a turn.
    fn answer(
        &self,
        method: &str,
        session: &str,
        params: &Params<'_>,
        raw: &str,
    ) -> Result<Value, (i64, String)> {
        let open = self.sessions.lock().unwrap().contains_key(session);
        let cwd = params.cwd.as_deref().unwrap_or_default().to_owned();
        match method {
            "initialize" => Ok(self.handshake()),
            "session/new" if self.script.needs_login && !login::is_done() => {
                Err((-32000, "Authentication required".to_owned()))
            }
            "session/new" => {
                self.sessions.lock().unwrap().insert(session.to_owned(), cwd);
                Ok(self.session_result(session, true))
            }
            "session/load" | "session/resume" => {
                let Some(history) = self.history(session) else {
                    return Err((-32002, format!("session {session} is not known")));
                };
                self.sessions.lock().unwrap().insert(session.to_owned(), cwd);
                if method == "session/load" {
                    for update in &history {
                        self.send_update(session, update);
                    }
                }
                Ok(self.session_result(session, false))
            }
            "session/list" => {
                let sessions = self.sessions.lock().unwrap();
                let list: Vec<_> =
                    sessions.iter().map(|(id, cwd)| json!({ "sessionId": id, "cwd": cwd })).collect();
                Ok(json!({ "sessions": list }))
            }
            "session/close" | "session/delete" => {
                self.sessions.lock().unwrap().remove(session);
                Ok(json!({}))
            }
            "session/set_mode" | "session/set_config_option" if open => {
                let took: Value = serde_json::from_str(raw).unwrap_or_default();
                let option = took["configId"].as_str().unwrap_or(method).to_owned();
                let value = took.get("value").unwrap_or(&took["modeId"]).clone();
                self.chosen.lock().unwrap().insert((session.to_owned(), option), value);
                let options = self.session_result(session, false)["configOptions"].take();
                let options = if options.is_array() { options } else { json!([]) };
                Ok(json!({ "configOptions": options, "took": took }))
            }
            "authenticate" if self.script.needs_login => {
                login::keep(raw);
                Ok(json!({}))
            }
            "logout" if self.script.needs_login => {
                login::forget();
                Ok(json!({}))
            }
            "authenticate" | "logout" => Ok(json!({})),
            "_x/return" => Ok(serde_json::from_str(raw).unwrap_or_default()),
            _ => Err((-32601, format!("{method} is not known to the fake agent"))),
        }
    }

    fn handshake(&self) -> Value {
        let methods = login::own_methods().or_else(|| self.script.auth_methods.clone());
        let methods = methods.unwrap_or_else(|| json!([]));
        let capabilities = self.script.capabilities.clone().unwrap_or_else(|| {
            json!({
                "loadSession": true,
                "promptCapabilities": { "image": true, "embeddedContext": true },
                "sessionCapabilities": { "list": {}, "resume": {}, "close": {} },
            })
        });
        json!({
            "protocolVersion": self.script.version.clone().unwrap_or_else(|| json!(1)),
            "agentCapabilities": capabilities,
            "agentInfo": { "name": "fake-agent", "version": env!("CARGO_PKG_VERSION") },
            "authMethods": methods,
        })
    }

    fn session_result(&self, id: &str, names_it: bool) -> Value {
        let mut result = self.script.session.clone().unwrap_or_else(|| json!({}));
        if names_it {
            result["sessionId"] = json!(id);
        }
        let chosen = self.chosen.lock().unwrap();
        for option in result["configOptions"].as_array_mut().into_iter().flatten() {
            let name = option["id"].as_str().unwrap_or_default().to_owned();
            if let Some(value) = chosen.get(&(id.to_owned(), name)) {
                option["currentValue"] = value.clone();
            }
        }
        if let Some(mode) = chosen.get(&(id.to_owned(), "session/set_mode".to_owned())) {
            result["modes"]["currentModeId"] = mode.clone();
        }
        if result["configOptions"].is_null() {
            result.as_object_mut().unwrap().remove("configOptions");
        }
        result
    }

    fn mint_session(&self) -> String {
        let number = self.next_session.fetch_add(1, Ordering::Relaxed);
        if self.script.reuse_session_ids {
            return number.to_string();
        }
        format!("agent-session-{}-{number}", std::process::id())
    }

    fn prompt(self: &Arc<Self>, mut turn: Turn, params: &Params<'_>) {
        let texts =
            params.prompt.iter().filter_map(|block| serde_json::from_str::<TextBlock>(block.get()).ok());
        let text = texts.map(|block| block.text).collect::<Vec<_>>().join("\n");
        let message =
            json!({ "sessionUpdate": "user_message_chunk", "content": { "type": "text", "text": text } });
        self.remember(&turn.session, &message.to_string());
        let cancel = turn.cancel();
        self.turns.lock().unwrap().insert(turn.session.clone(), Arc::clone(&cancel));
        let agent = Arc::clone(self);
        thread::spawn(move || {
            if text.trim_start().starts_with("{\"do\"") {
                turn.run_text(&text);
            } else {
                turn.chunk(&format!("echo: {text}"));
            }
            {
                // A newer turn may have taken the place.
                let mut turns = agent.turns.lock().unwrap();
                if turns.get(&turn.session).is_some_and(|current| Arc::ptr_eq(current, &cancel)) {
                    turns.remove(&turn.session);
                }
            }
            turn.finish();
            turn.run(steps_for(&agent.script.after, "session/prompt"));
        });
    }

    fn extension(self: &Arc<Self>, mut turn: Turn, params: &Params<'_>) {
        let steps = params.steps.map_or("[]", RawValue::get).to_owned();
        thread::spawn(move || {
            turn.run_text(&format!("{{\"do\":{steps}}}"));
            turn.finish();
        });
    }

    /// Streams an update, given as JSON text, and keeps it for `session/load`.
    pub fn update(&self, session: &str, update: &str) {
        self.remember(session, update);
        self.send_update(session, update);
    }

    fn send_update(&self, session: &str, update: &str) {
        self.wire.line(&format!(
            r#"{{"jsonrpc":"2.0","method":"session/update","params":{{"sessionId":{},"update":{update}}}}}"#,
            json!(session)
        ));
    }

    fn remember(&self, session: &str, update: &str) {
        let Some(path) = self.store.as_ref().filter(|_| !session.is_empty()).map(|dir| dir.join(session))
        else {
            return;
        };
        let mut file =
            fs::OpenOptions::new().create(true).append(true).open(path).expect("the store must be writable");
        file.write_all(format!("{update}\n").as_bytes()).expect("the store must be writable");
    }

    fn history(&self, session: &str) -> Option<Vec<String>> {
        let text = fs::read_to_string(self.store.as_ref()?.join(session)).ok()?;
        Some(text.lines().map(str::to_owned).collect())
    }
}

fn steps_for<'a>(map: &'a std::collections::BTreeMap<String, Vec<Step>>, method: &str) -> &'a [Step] {
    map.get(method).map_or(&[], Vec::as_slice)
}
