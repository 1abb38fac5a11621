//! What the demo agent answers to each request.

use std::path::Path;

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::agent::{self, Agent, Running, Session, Work};
use super::options::Settings;
use super::script::{self, Prompt};
use super::store::{self, Entry, Store};
use super::turn::{Offers, Remembered, Turn};
use super::wire::{RpcError, text};

/// Open sessions at a time. A client that needs more has most likely forgotten to close.
const MOST_SESSIONS: usize = 256;
/// The longest directory name taken, as on Linux.
const LONGEST_PATH: usize = 4096;
/// Additional directories of a session.
const MOST_DIRECTORIES: usize = 16;
/// Sessions on one page of a listing.
const PAGE: usize = 50;

impl Agent {
    /// Answers one request, at once or, for prompts and loads, when its task ends.
    pub(super) async fn request(&mut self, id: Value, method: &str, params: &Value) {
        let Some(offers) = self.offers.filter(|_| method != "initialize") else {
            let outcome = match method {
                "initialize" => self.initialize(params),
                _ => Err(RpcError::invalid_request("the first request must be `initialize`")),
            };
            return self.answer(&id, &outcome).await;
        };
        let outcome = match method {
            "session/new" => match self.new_session(params) {
                Ok((session, result)) => return self.opened(&id, &session, result).await,
                Err(error) => Err(error),
            },
            "session/resume" => match self.reopen(params, false) {
                Ok((session, result)) => return self.opened(&id, &session, result).await,
                Err(error) => Err(error),
            },
            "session/load" => match self.load(&id, params) {
                Ok(()) => return,
                Err(error) => Err(error),
            },
            "session/prompt" => match self.prompt(&id, params, offers) {
                Ok(()) => return,
                Err(error) => Err(error),
            },
            "session/close" | "session/delete" => {
                match self.end_session(&id, params, method == "session/delete") {
                    Ok(Some(result)) => Ok(result),
                    Ok(None) => return,
                    Err(error) => Err(error),
                }
            }
            "session/list" => self.list(params),
            "session/set_mode" => match text(params, "modeId") {
                Ok(mode) => self.choose(params, "mode", mode).await.map(|_| json!({})),
                Err(error) => Err(error),
            },
            "session/set_config_option" => match (text(params, "configId"), text(params, "value")) {
                (Ok(option), Ok(value)) => self.choose(params, option, value).await,
                (Err(error), _) | (_, Err(error)) => Err(error),
            },
            "authenticate" => {
                Err(RpcError::bad_params("the demo agent needs no authentication and has no method for it"))
            }
            _ => Err(RpcError::unknown_method(method)),
        };
        self.answer(&id, &outcome).await;
    }

    /// May come again; the last one counts, and sessions stay.
    fn initialize(&mut self, params: &Value) -> Result<Value, RpcError> {
        let version = params.get("protocolVersion").and_then(Value::as_u64);
        if version.is_none_or(|version| version > u64::from(u16::MAX)) {
            return Err(RpcError::bad_params("`protocolVersion` must be an integer from 0 to 65535"));
        }
        self.offers = Some(Offers::from_capabilities(&params["clientCapabilities"]));
        Ok(json!({
            "protocolVersion": 1,
            "agentInfo": {
                "name": "conductor-demo",
                "title": "Conductor demo agent",
                "version": env!("CARGO_PKG_VERSION"),
            },
            "agentCapabilities": {
                "loadSession": true,
                "promptCapabilities": { "image": true, "audio": true, "embeddedContext": true },
                "mcpCapabilities": { "http": true, "sse": true },
                "sessionCapabilities": { "list": {}, "resume": {}, "close": {}, "delete": {} },
            },
            "authMethods": [],
        }))
    }

    fn new_session(&mut self, params: &Value) -> Result<(String, Value), RpcError> {
        let (cwd, directories) = place(params)?;
        servers(params, true)?;
        self.room()?;
        let session = store::new_session_id();
        let entry = Entry::Place { cwd: cwd.clone(), directories };
        self.store()?.create(&session, &entry).map_err(|error| unkept(&error))?;
        let settings = Settings::default();
        let mut result = options(&settings);
        result["sessionId"] = json!(session);
        let opened = Session { cwd, settings, title: None, remembered: Remembered::default(), task: None };
        self.sessions.insert(session.clone(), opened);
        Ok((session, result))
    }

    /// Opens a saved session, for load (which requires `mcpServers`) or resume.
    fn reopen(&mut self, params: &Value, load: bool) -> Result<(String, Value), RpcError> {
        let session = text(params, "sessionId")?;
        let (cwd, directories) = place(params)?;
        servers(params, load)?;
        let remembered = match self.sessions.get(session) {
            Some(open) if open.task.is_some() => return Err(busy(session)),
            Some(open) => open.remembered.clone(),
            None => {
                self.room()?;
                Remembered::default()
            }
        };
        let store = self.store()?;
        let (Some(saved), Some(mut record)) = (
            store.saved(session).map_err(|error| unkept(&error))?,
            store.record(session).map_err(|error| unkept(&error))?,
        ) else {
            return Err(RpcError::unknown_session(session));
        };
        if (&saved.cwd, &saved.directories) != (&cwd, &directories) {
            let place = Entry::Place { cwd: cwd.clone(), directories };
            record.append(&place).map_err(|error| unkept(&error))?;
        }
        let result = options(&saved.settings);
        let opened = Session { cwd, settings: saved.settings, title: saved.title, remembered, task: None };
        self.sessions.insert(session.to_owned(), opened);
        Ok((session.to_owned(), result))
    }

    async fn opened(&self, id: &Value, session: &str, result: Value) {
        self.answer(id, &Ok(result)).await;
        self.update(session, &script::commands_update()).await;
    }

    fn load(&mut self, id: &Value, params: &Value) -> Result<(), RpcError> {
        let (session, result) = self.reopen(params, true)?;
        let entries = self.store()?.entries(&session).map_err(|error| unkept(&error))?;
        let entries = entries.ok_or_else(|| RpcError::unknown_session(&session))?;
        let cancel = CancellationToken::new();
        let task = agent::replay(session.clone(), entries, result, self.client.out.clone(), cancel.clone());
        let task = self.tasks.spawn(task).id();
        self.started(id, session, Work::Load, cancel, task);
        Ok(())
    }

    fn prompt(&mut self, id: &Value, params: &Value, offers: Offers) -> Result<(), RpcError> {
        let name = text(params, "sessionId")?;
        let record = match self.sessions.get(name) {
            None => return Err(RpcError::unknown_session(name)),
            Some(open) if open.task.is_some() => return Err(busy(name)),
            Some(_) => self.store()?.record(name).map_err(|error| unkept(&error))?,
        };
        let prompt = Prompt::from_params(params)?;
        let (Some(record), Some(session)) = (record, self.sessions.get_mut(name)) else {
            // The file was deleted behind our back, perhaps by another process.
            self.sessions.remove(name);
            return Err(RpcError::unknown_session(name));
        };
        let new_title = if session.title.is_none() { prompt.title() } else { None };
        let mut turn = Turn {
            session: name.to_owned(),
            cwd: session.cwd.clone(),
            settings: session.settings.clone(),
            offers,
            remembered: session.remembered.clone(),
            client: self.client.clone(),
            record,
            message: uuid::Uuid::now_v7().to_string(),
            open_tool: None,
            open_terminal: None,
            unanswered: None,
        };
        agent::record_prompt(&mut turn, &prompt, new_title.as_ref())?;
        if new_title.is_some() {
            session.title.clone_from(&new_title);
        }
        let cancel = CancellationToken::new();
        let task = self.tasks.spawn(agent::turn(turn, prompt, new_title, cancel.clone())).id();
        self.started(id, name.to_owned(), Work::Prompt, cancel, task);
        Ok(())
    }

    fn started(
        &mut self,
        id: &Value,
        session: String,
        work: Work,
        cancel: CancellationToken,
        task: tokio::task::Id,
    ) {
        if let Some(open) = self.sessions.get_mut(&session) {
            open.task = Some(task);
        }
        self.running.insert(task, Running { id: id.clone(), session, work, cancel, then: None });
    }

    /// Closes or deletes a session. If something runs in it, that is cancelled and answered first, and `None` says
    /// that the answer will come then.
    fn end_session(&mut self, id: &Value, params: &Value, delete: bool) -> Result<Option<Value>, RpcError> {
        let name = text(params, "sessionId")?;
        let session = self.sessions.remove(name);
        if session.is_none() && !delete {
            return Err(RpcError::unknown_session(name));
        }
        let task = session.and_then(|session| session.task);
        if let Some(running) = task.and_then(|task| self.running.get_mut(&task)) {
            running.cancel.cancel();
            running.then = Some((id.clone(), delete));
            return Ok(None);
        }
        if delete { self.delete(name).map(Some) } else { Ok(Some(json!({}))) }
    }

    pub(super) fn delete(&self, session: &str) -> Result<Value, RpcError> {
        self.store()?.delete(session).map_err(|error| unkept(&error))?;
        Ok(json!({}))
    }

    fn list(&self, params: &Value) -> Result<Value, RpcError> {
        let optional = |name: &str| match params.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(_) => text(params, name).map(Some),
        };
        let cwd = optional("cwd")?;
        let after = optional("cursor")?.map(read_cursor).transpose()?;
        let mut rows = self.store()?.list().map_err(|error| unkept(&error))?;
        rows.retain(|row| {
            let older = after.is_none_or(|(micros, id)| {
                row.changed_micros < micros || (row.changed_micros == micros && row.id.as_str() > id)
            });
            older && cwd.is_none_or(|cwd| row.saved.cwd == cwd)
        });
        let more = rows.len() > PAGE;
        rows.truncate(PAGE);
        let sessions: Vec<_> = rows
            .iter()
            .map(|row| {
                json!({
                    "sessionId": row.id,
                    "cwd": row.saved.cwd,
                    "additionalDirectories": row.saved.directories,
                    "title": row.saved.title,
                    "updatedAt": store::iso8601(row.changed_micros),
                })
            })
            .collect();
        let mut result = json!({ "sessions": sessions });
        if let Some(last) = rows.last().filter(|_| more) {
            result["nextCursor"] = json!(format!("{}:{}", last.changed_micros, last.id));
        }
        Ok(result)
    }

    /// Changes an option by either path, and tells of it by both.
    async fn choose(&mut self, params: &Value, option: &str, value: &str) -> Result<Value, RpcError> {
        let name = text(params, "sessionId")?;
        let session = self.sessions.get(name).ok_or_else(|| RpcError::unknown_session(name))?;
        let mut settings = session.settings.clone();
        let change = settings.choose(option, value)?;
        let announcements = settings.announcements(change);
        if !announcements.is_empty() {
            let record = self.store()?.record(name).map_err(|error| unkept(&error))?;
            let mut record = record.ok_or_else(|| RpcError::unknown_session(name))?;
            record.append(&Entry::Settings(settings.clone())).map_err(|error| unkept(&error))?;
        }
        let result = json!({ "configOptions": settings.config_options() });
        if let Some(session) = self.sessions.get_mut(name) {
            session.settings = settings;
        }
        for announcement in announcements {
            self.update(name, &announcement).await;
        }
        Ok(result)
    }

    fn store(&self) -> Result<&Store, RpcError> {
        self.store.as_ref().map_err(|why| RpcError::internal(why.clone()))
    }

    fn room(&self) -> Result<(), RpcError> {
        if self.sessions.len() < MOST_SESSIONS {
            return Ok(());
        }
        let message =
            format!("{MOST_SESSIONS} sessions are open, which is the most; close one with session/close");
        Err(RpcError::internal(message))
    }
}

/// The options of a session, by both paths.
fn options(settings: &Settings) -> Value {
    json!({ "modes": settings.modes(), "configOptions": settings.config_options() })
}

/// `cwd` and `additionalDirectories`.
fn place(params: &Value) -> Result<(String, Vec<String>), RpcError> {
    let absolute = |name: &str, path: &Value| match path.as_str() {
        Some(path) if Path::new(path).is_absolute() && path.len() <= LONGEST_PATH => Ok(path.to_owned()),
        _ => {
            let message = format!("`{name}` must be an absolute path of at most {LONGEST_PATH} bytes");
            Err(RpcError::bad_params(message))
        }
    };
    let cwd = absolute("cwd", &params["cwd"])?;
    let directories = match params.get("additionalDirectories") {
        None | Some(Value::Null) => vec![],
        Some(Value::Array(paths)) if paths.len() <= MOST_DIRECTORIES => {
            paths.iter().map(|path| absolute("additionalDirectories", path)).collect::<Result<_, _>>()?
        }
        Some(_) => {
            let message =
                format!("`additionalDirectories` must be an array of at most {MOST_DIRECTORIES} paths");
            return Err(RpcError::bad_params(message));
        }
    };
    Ok((cwd, directories))
}

/// `mcpServers` is checked for its shape only: there is no model that could call them.
fn servers(params: &Value, required: bool) -> Result<(), RpcError> {
    let right = match params.get("mcpServers") {
        None => !required,
        Some(Value::Null) => true,
        Some(Value::Array(servers)) => servers.iter().all(Value::is_object),
        Some(_) => false,
    };
    if right { Ok(()) } else { Err(RpcError::bad_params("`mcpServers` must be an array of objects")) }
}

/// A cursor is the time and id of the last row seen.
fn read_cursor(cursor: &str) -> Result<(u64, &str), RpcError> {
    cursor
        .split_once(':')
        .and_then(|(micros, id)| Some((micros.parse().ok()?, id)))
        .filter(|(_, id)| store::is_session_id(id))
        .ok_or_else(|| RpcError::bad_params("`cursor` is not one that session/list gave out"))
}

fn busy(session: &str) -> RpcError {
    let message =
        "the session is busy with a prompt or a load; wait for its answer, or send session/cancel first";
    let mut error = RpcError::invalid_request(message);
    error.data = Some(json!({ "sessionId": session }));
    error
}

fn unkept(error: &std::io::Error) -> RpcError {
    RpcError::internal(format!(
        "cannot use the session files in .local/state/conductor-demo beneath HOME: {error}"
    ))
}
