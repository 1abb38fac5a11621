//! What the conductor itself says in ACP, and the few shapes it must read.
//!
//! Everything else passes through as bytes. The shapes here are lenient on
//! purpose: a field of an unexpected type counts as absent.

pub mod login;

use bytes::{BufMut as _, Bytes, BytesMut};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::frame::Frame;

/// Error codes. Those of JSON-RPC and ACP, then the conductor's own, which
/// lie outside the reserved ranges.
pub mod code {
    /// The message is not a valid request.
    pub const INVALID_REQUEST: i64 = -32600;
    /// The method does not exist or was not advertised.
    pub const METHOD_NOT_FOUND: i64 = -32601;
    /// The parameters are wrong.
    pub const INVALID_PARAMS: i64 = -32602;
    /// Something went wrong on our side.
    pub const INTERNAL: i64 = -32603;
    /// The line is not JSON.
    pub const PARSE: i64 = -32700;
    /// The request was cancelled.
    pub const CANCELLED: i64 = -32800;
    /// Somebody has to log in to the agent first.
    pub const AUTH_REQUIRED: i64 = -32000;
    /// There is no such session, file or terminal.
    pub const NOT_FOUND: i64 = -32002;
    /// The agent's process ended, or could not be started.
    pub const AGENT_ENDED: i64 = -31001;
    /// A limit of the conductor was reached.
    pub const LIMIT: i64 = -31002;
    /// The service cannot be reached.
    pub const UNREACHABLE: i64 = -31003;
    /// It was not done because it could not be recorded.
    pub const NOT_RECORDED: i64 = -31004;
    /// The policy, or a person whom it asked, does not allow it.
    pub const DENIED: i64 = -31005;
}

/// The version both handshakes are pinned to: some agents switch to a draft
/// when offered more.
pub const PROTOCOL_VERSION: u64 = 1;

/// An error to answer with.
#[derive(Debug, Clone)]
pub struct Refusal {
    /// One of [`code`].
    pub code: i64,
    /// Cause and remedy.
    pub message: String,
    /// More for machines.
    pub data: Option<Value>,
}

impl Refusal {
    /// A refusal without data.
    pub fn new(code: i64, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), data: None }
    }

    /// The error of an answer.
    pub fn of(frame: &Frame) -> Self {
        let error: Value = frame.decode(frame.peek().outcome).unwrap_or_default();
        Self {
            code: error["code"].as_i64().unwrap_or(code::INTERNAL),
            message: error["message"].as_str().unwrap_or_default().to_owned(),
            data: error.get("data").cloned(),
        }
    }

    /// The refusal for a session that is not there.
    pub fn unknown_session(frame: &Frame) -> Self {
        let id: Value = frame.decode(frame.peek().session).unwrap_or_default();
        Self {
            code: code::NOT_FOUND,
            message: "no such session here; open one with session/new, or reopen it with session/load".into(),
            data: Some(json!({ "sessionId": id })),
        }
    }

    /// The whole error frame for the request with this raw id.
    pub fn frame(&self, id: &[u8]) -> Bytes {
        let mut error = json!({ "code": self.code, "message": self.message });
        if let Some(data) = &self.data {
            error["data"] = data.clone();
        }
        respond(id, "error", error.to_string().as_bytes())
    }
}

/// A result frame for the request with this raw id.
pub fn result(id: &[u8], result: &[u8]) -> Bytes {
    respond(id, "result", result)
}

fn respond(id: &[u8], member: &str, value: &[u8]) -> Bytes {
    let mut out = BytesMut::with_capacity(id.len() + value.len() + 48);
    out.put_slice(br#"{"jsonrpc":"2.0","id":"#);
    out.put_slice(if id.is_empty() { b"null" } else { id });
    out.put_slice(format!(",\"{member}\":").as_bytes());
    out.put_slice(value);
    out.put_slice(b"}\n");
    out.freeze()
}

/// A request or notification of our own.
pub fn call(id: Option<String>, method: &str, params: &Value) -> Bytes {
    let mut message = json!({ "jsonrpc": "2.0" });
    if let Some(id) = id {
        message["id"] = serde_json::from_str(&id).unwrap_or_default();
    }
    message["method"] = method.into();
    message["params"] = params.clone();
    Bytes::from(format!("{message}\n"))
}

/// A `notice`, for editors that take them.
pub fn notice(session: &str, severity: &str, title: &str, description: &str) -> Bytes {
    let update = json!({
        "sessionUpdate": "notice", "severity": severity, "title": title, "description": description,
    });
    call(None, "session/update", &json!({ "sessionId": session, "update": update }))
}

/// Tells an editor that a session which others had open, too, is no more.
pub fn ended(session: &str) -> Bytes {
    let update = json!({
        "sessionUpdate": "notice", "severity": "info", "title": "The session has ended",
        "description": "Whoever had it open has closed it.", "_meta": { "conductor": { "ended": true } },
    });
    call(None, "session/update", &json!({ "sessionId": session, "update": update }))
}

/// The result of a prompt that was cancelled.
pub const CANCELLED_TURN: &[u8] = br#"{"stopReason":"cancelled"}"#;

/// The answer to a permission request that nobody will decide any more.
pub const CANCELLED_PERMISSION: &[u8] = br#"{"outcome":{"outcome":"cancelled"}}"#;

/// The answer to an elicitation that nobody will answer any more.
pub const CANCELLED_ELICITATION: &[u8] = br#"{"action":"cancel"}"#;

/// The answer to an elicitation that the policy does not allow.
pub const DECLINED_ELICITATION: &[u8] = br#"{"action":"decline"}"#;

/// What an editor can do, as far as the conductor must know it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct EditorCapabilities {
    /// Reads files for the agent.
    pub fs_read: bool,
    /// Writes files for the agent.
    pub fs_write: bool,
    /// Runs terminals for the agent.
    pub terminal: bool,
    /// Shows forms.
    pub elicitation_form: bool,
    /// Opens links.
    pub elicitation_url: bool,
    /// Shows boolean config options.
    pub boolean_options: bool,
    /// Takes `notice` updates.
    pub notices: bool,
    /// Takes `compaction_*` updates.
    pub compaction: bool,
    /// Lets people log in to agents in a terminal.
    pub auth_terminal: bool,
}

impl EditorCapabilities {
    /// Reads the `params` of an `initialize`.
    pub fn parse(params: &Value) -> Self {
        let caps = &params["clientCapabilities"];
        let flag = |value: &Value| value.as_bool().unwrap_or(false);
        let object = |value: &Value| value.is_object() || value.as_bool().unwrap_or(false);
        Self {
            fs_read: flag(&caps["fs"]["readTextFile"]),
            fs_write: flag(&caps["fs"]["writeTextFile"]),
            terminal: flag(&caps["terminal"]),
            elicitation_form: object(&caps["elicitation"]["form"]),
            elicitation_url: object(&caps["elicitation"]["url"]),
            boolean_options: object(&caps["session"]["configOptions"]["boolean"]),
            notices: object(&caps["session"]["notices"]),
            compaction: object(&caps["session"]["compaction"]),
            auth_terminal: flag(&caps["auth"]["terminal"]),
        }
    }

    /// Only what decides how an agent process must be initialised: processes
    /// are pooled by it.
    pub fn workspace(self) -> WorkspaceCapabilities {
        WorkspaceCapabilities { fs_read: self.fs_read, fs_write: self.fs_write, terminal: self.terminal }
    }
}

/// What is done for the agent's files and commands, by the editor or by this
/// host.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct WorkspaceCapabilities {
    /// Reads files.
    pub fs_read: bool,
    /// Writes files.
    pub fs_write: bool,
    /// Runs terminals.
    pub terminal: bool,
}

impl WorkspaceCapabilities {
    /// What an agent is told whose files and commands this host serves.
    pub const ALL: Self = Self { fs_read: true, fs_write: true, terminal: true };
}

/// The `initialize` that every agent process gets.
pub fn initialize_agent(id: &str, caps: WorkspaceCapabilities) -> Bytes {
    call(
        Some(id.to_string()),
        "initialize",
        &json!({
            "protocolVersion": PROTOCOL_VERSION,
            "clientCapabilities": {
                "fs": { "readTextFile": caps.fs_read, "writeTextFile": caps.fs_write },
                "terminal": caps.terminal,
                "session": { "configOptions": { "boolean": {} }, "notices": {}, "compaction": {} },
                "elicitation": { "form": {}, "url": {} },
                // `conductor agents login` has one.
                "auth": { "terminal": true },
            },
            "clientInfo": client_info(),
        }),
    )
}

fn client_info() -> Value {
    json!({ "name": "conductor", "title": "conductor", "version": env!("CARGO_PKG_VERSION") })
}

/// Bytes of an agent's answer to `initialize`, which is kept for as long as the agent is
/// known.
const LARGEST_HELLO: usize = 256 << 10;

/// What an agent said in its handshake.
#[derive(Debug, Clone, Default)]
pub struct AgentHello {
    /// The whole result.
    pub result: Value,
}

impl AgentHello {
    /// Reads the answer to our `initialize`; refuses any version but ours.
    pub fn parse(frame: &Frame) -> Result<Self, String> {
        if frame.bytes().len() > LARGEST_HELLO {
            return Err(format!("its answer to initialize is larger than {} KiB", LARGEST_HELLO >> 10));
        }
        let result: Value = frame.decode(frame.peek().outcome).unwrap_or_default();
        match &result["protocolVersion"] {
            version if version.as_u64() == Some(PROTOCOL_VERSION) => Ok(Self { result }),
            Value::Null => Err("it answered initialize without a protocolVersion".into()),
            version => Err(format!(
                "it speaks ACP version {version}, and conductor speaks version {PROTOCOL_VERSION}; \
                 install a release of the agent that does too"
            )),
        }
    }

    /// The version the agent calls itself.
    pub fn version(&self) -> &str {
        self.result["agentInfo"]["version"].as_str().unwrap_or_default()
    }

    /// Whether the agent can reopen a session by replaying it.
    pub fn can_load(&self) -> bool {
        self.result["agentCapabilities"]["loadSession"].as_bool().unwrap_or(false)
    }

    /// Whether the agent can forget who logged in.
    pub fn can_logout(&self) -> bool {
        let value = &self.result["agentCapabilities"]["auth"]["logout"];
        value.is_object() || value.as_bool().unwrap_or(false)
    }

    /// Whether the agent has one of the optional session methods.
    pub fn can(&self, method: &str) -> bool {
        let value = &self.result["agentCapabilities"]["sessionCapabilities"][method];
        value.is_object() || value.as_bool().unwrap_or(false)
    }
}

/// The answer to an editor's `initialize`: what the conductor delivers
/// together with the agent behind this connection. `None` while that agent
/// could not be asked; then only the baseline is promised. Prompts may go to the
/// `others`, too, so they may hold whatever any of them takes. `methods` are the ways
/// to log in to any of them.
pub fn initialize_editor<'a>(
    agent: Option<&'a AgentHello>,
    others: impl IntoIterator<Item = &'a AgentHello>,
    methods: &[Value],
) -> Value {
    let caps = agent.map(|hello| &hello.result["agentCapabilities"]);
    let part =
        |name: &str| caps.map(|caps| caps[name].clone()).filter(|v| v.is_object()).unwrap_or(json!({}));
    let mut prompts = part("promptCapabilities");
    for other in others {
        let more = other.result["agentCapabilities"]["promptCapabilities"].as_object();
        for (name, _) in more.into_iter().flatten().filter(|(_, able)| **able == true) {
            prompts[name] = true.into();
        }
    }
    // Sessions are loaded and resumed from our own record, whatever the agent
    // can do.
    let session = json!({ "list": {}, "close": {}, "delete": {}, "resume": {} });
    let mut own = json!({
        "loadSession": true,
        "promptCapabilities": prompts,
        "mcpCapabilities": part("mcpCapabilities"),
        "sessionCapabilities": session,
    });
    if agent.is_some_and(AgentHello::can_logout) {
        own["auth"] = json!({ "logout": {} });
    }
    // Extensions are announced in `_meta` and pass through.
    if let Some(meta) = caps.map(|caps| &caps["_meta"]).filter(|meta| meta.is_object()) {
        own["_meta"] = meta.clone();
    }
    json!({
        "protocolVersion": PROTOCOL_VERSION,
        "agentCapabilities": own,
        "authMethods": methods,
        "agentInfo": client_info(),
    })
}

/// The parameters of `session/new`, `session/load` and `session/resume` that
/// the conductor reads.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OpenParams<'a> {
    /// Where the session works.
    #[serde(borrow)]
    pub cwd: std::borrow::Cow<'a, str>,
    /// Further directories it works in, if it is an array.
    #[serde(default)]
    pub additional_directories: Value,
}

/// One entry of `session/list`.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct SessionEntry {
    /// Our id.
    pub session_id: String,
    /// Where it works.
    pub cwd: String,
    /// What it is about, if the agent said so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// When something last happened in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub updated_at: Option<String>,
    /// Whose it is and what the editor's user may do with it, if it is another's.
    #[serde(rename = "_meta", skip_serializing_if = "Option::is_none")]
    pub meta: Option<Value>,
}

/// Finds the config option of `category` and checks that it offers `value`.
/// Gives the option's id, or says what is on offer.
pub fn find_option(result: &Value, category: &str, value: &str) -> Result<String, Vec<String>> {
    let options = result["configOptions"].as_array().cloned().unwrap_or_default();
    let mut offered = Vec::new();
    for option in options.iter().filter(|o| o["category"] == category || o["id"] == category) {
        let flat = option["options"].as_array().cloned().unwrap_or_default();
        let values = flat.iter().flat_map(|entry| match entry["options"].as_array() {
            Some(group) => group.clone(),
            None => vec![entry.clone()],
        });
        for entry in values {
            let Some(name) = entry["value"].as_str() else { continue };
            if name == value {
                return Ok(option["id"].as_str().unwrap_or(category).to_string());
            }
            offered.push(name.to_string());
        }
    }
    Err(offered)
}

/// The session of ours that a frame names, if it is the name of one.
pub fn session_id(frame: &Frame) -> Option<Uuid> {
    let text: String = frame.decode(frame.peek().session)?;
    Uuid::try_parse(&text).ok()
}
