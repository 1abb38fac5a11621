//! From what is asked to what would be done.
//!
//! Agents say in many ways what they are about to do. What is understood
//! becomes sub-actions; what is missing, contradicts itself or is merely not
//! known becomes [`SubAction::Unknown`] beside them, so that a rule that denies
//! still sees the part that is understood, and no rule allows the rest.

mod arguments;
mod duplicates;
mod inner;
mod patterns;
mod permission;
mod terminal;
mod tools;

use std::path::Path;

use serde_json::{Map, Value};

pub(super) use self::duplicates::check as check_keys;
pub use self::duplicates::has_duplicate_keys;

use super::{PathFact, Resolver, ServerFact, SubAction, paths::Memory, shell, text, urls};

/// What is asked for.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// A line for a shell.
    Shell(String),
    /// A program with its arguments.
    Argv(Vec<String>),
    /// `terminal/create`: its parameters.
    Terminal(Value),
    /// A file is read; a path or a `file:` URI.
    Read(String),
    /// A file is written; a path or a `file:` URI.
    Write(String),
    /// Something is fetched.
    Fetch(String),
    /// A tool of an MCP server is called.
    Mcp {
        /// The server's name.
        server: String,
        /// The tool's name.
        tool: String,
        /// What it is given.
        arguments: Value,
    },
    /// The mode is changed.
    Mode(String),
    /// The model is changed.
    Model(String),
    /// Another option is changed.
    Setting {
        /// Its id.
        id: String,
        /// Its value.
        value: String,
    },
    /// An agent is used.
    Agent(String),
    /// An editor brings an MCP server.
    Server(ServerFact),
    /// `session/request_permission`.
    Permission {
        /// Its parameters.
        params: Value,
        /// The `update` objects (`tool_call`, `tool_call_update`) of the same tool call that came
        /// before, oldest first.
        earlier: Vec<Value>,
    },
    /// `elicitation/create` with an address: its parameters.
    Elicitation(Value),
}

/// Where something is asked, and how to find out about that place.
#[derive(Clone, Copy)]
pub struct Ground<'a> {
    /// The session's directory, resolved.
    pub cwd: &'a Path,
    /// Whom to ask.
    pub resolver: &'a dyn Resolver,
}

impl Action {
    /// Reads an action as `policy explain` and the examples of rules have it: an object with one
    /// key, which says what is asked.
    pub fn from_json(value: &Value) -> Result<Self, String> {
        let object = value.as_object().ok_or("an action is an object, such as {\"shell\": \"ls\"}")?;
        let mut entries = object.iter();
        let (Some((key, value)), None) = (entries.next(), entries.next()) else {
            return Err(format!("an action has exactly one key, and this one has {}", object.len()));
        };
        let text = || words(key, value);
        match key.as_str() {
            "shell" => Ok(Self::Shell(text()?)),
            "argv" => match strings(value) {
                Some(argv) if !argv.is_empty() => Ok(Self::Argv(argv)),
                _ => Err("`argv` is a list of texts, the program first".into()),
            },
            "terminal" => Ok(Self::Terminal(object_of(key, value)?.clone().into())),
            "read" => Ok(Self::Read(text()?)),
            "write" => Ok(Self::Write(text()?)),
            "fetch" => Ok(Self::Fetch(text()?)),
            "mcp" => {
                let object = known(key, value, &["server", "tool", "arguments"])?;
                let arguments = object.get("arguments").cloned().unwrap_or(Value::Null);
                Ok(Self::Mcp { server: field(object, "server")?, tool: field(object, "tool")?, arguments })
            }
            "mode" => Ok(Self::Mode(text()?)),
            "model" => Ok(Self::Model(text()?)),
            "setting" => {
                let object = known(key, value, &["id", "value"])?;
                let value = match object.get("value") {
                    Some(Value::String(value)) => value.clone(),
                    Some(value @ (Value::Bool(_) | Value::Number(_))) => value.to_string(),
                    _ => return Err("`setting` needs `value`: a text, a number, true or false".into()),
                };
                Ok(Self::Setting { id: field(object, "id")?, value })
            }
            "agent" => Ok(Self::Agent(text()?)),
            "server" => {
                let object = known(key, value, &["name", "known", "transport", "remote", "shown"])?;
                let optional = |name: &str| object.get(name).filter(|value| !value.is_null());
                let known = optional("known").map(|value| words("known", value)).transpose()?;
                let is_remote = match optional("remote") {
                    None => false,
                    Some(Value::Bool(remote)) => *remote,
                    Some(_) => return Err("`remote` is true or false".into()),
                };
                let transport =
                    optional("transport").map_or(Ok("stdio".into()), |value| words("transport", value))?;
                let shown = optional("shown").map_or(Ok(String::new()), |value| words("shown", value))?;
                Ok(Self::Server(ServerFact {
                    name: field(object, "name")?,
                    known,
                    transport,
                    is_remote,
                    shown,
                }))
            }
            "permission" => {
                Ok(Self::Permission { params: object_of(key, value)?.clone().into(), earlier: Vec::new() })
            }
            "elicitation" => Ok(Self::Elicitation(object_of(key, value)?.clone().into())),
            other => Err(format!(
                "`{}` is no action; there are shell, argv, terminal, read, write, fetch, mcp, mode, model, setting, \
                 agent, server, permission and elicitation",
                text::shown(other, 60)
            )),
        }
    }
}

fn words(key: &str, value: &Value) -> Result<String, String> {
    value.as_str().map(Into::into).ok_or_else(|| format!("`{key}` is a text"))
}

fn object_of<'a>(key: &str, value: &'a Value) -> Result<&'a Map<String, Value>, String> {
    value.as_object().ok_or_else(|| format!("`{key}` is an object"))
}

/// An object that has no other keys than these.
fn known<'a>(key: &str, value: &'a Value, keys: &[&str]) -> Result<&'a Map<String, Value>, String> {
    let object = object_of(key, value)?;
    match object.keys().find(|name| !keys.contains(&name.as_str())) {
        Some(other) => {
            Err(format!("`{}` is no key of `{key}`; it has {}", text::shown(other, 60), keys.join(", ")))
        }
        None => Ok(object),
    }
}

fn field(object: &Map<String, Value>, name: &str) -> Result<String, String> {
    object.get(name).map_or_else(|| Err(format!("`{name}` is missing")), |value| words(name, value))
}

/// A list of texts, and of nothing else.
fn strings(value: &Value) -> Option<Vec<String>> {
    value.as_array()?.iter().map(|word| word.as_str().map(Into::into)).collect()
}

/// Takes a request apart. Never empty: what cannot be told is `SubAction::Unknown`.
pub fn normalise(action: &Action, ground: &Ground<'_>) -> Vec<SubAction> {
    let memory = Memory::new(ground.resolver);
    let ground = &Ground { resolver: &memory, ..*ground };
    let mut found = match action {
        Action::Shell(line) => shell::line(line, ground),
        Action::Argv(argv) => shell::argv(argv, ground),
        Action::Terminal(params) => terminal::create(params, ground),
        Action::Read(given) => vec![SubAction::Read(place(given, ground))],
        Action::Write(given) => vec![SubAction::Write(place(given, ground))],
        Action::Fetch(given) => fetch(given, ground),
        Action::Mcp { server, tool, arguments } => arguments::mcp(server, tool, arguments, ground),
        Action::Mode(id) => named(id, |id| SubAction::Mode { id }),
        Action::Model(id) => named(id, |id| SubAction::Model { id }),
        Action::Setting { id, value } => {
            let mut found = named(id, |id| SubAction::Setting { id, value: value.clone() });
            found.extend(hidden("the value", value));
            found
        }
        Action::Agent(name) => named(name, |name| SubAction::Agent { name }),
        Action::Server(fact) => {
            let mut found = vec![SubAction::Server(fact.clone())];
            found.extend(hidden("the server's name", &fact.name));
            found
        }
        Action::Permission { params, earlier } => permission::request(params, earlier, ground),
        Action::Elicitation(params) => elicitation(params, ground),
    };
    if found.is_empty() {
        found.push(SubAction::unknown("nothing in it says what would be done"));
    }
    found
}

/// Something that is chosen by its name.
fn named(name: &str, make: impl FnOnce(String) -> SubAction) -> Vec<SubAction> {
    let mut found = vec![make(name.into())];
    if name.is_empty() {
        found.push(SubAction::unknown("the name is empty"));
    }
    found.extend(hidden("the name", name));
    found
}

/// Says so if a text has characters in it that hide what it says.
fn hidden(what: &str, given: &str) -> Option<SubAction> {
    text::hidden(given).map(|why| SubAction::unknown(format!("{what} is not to be trusted: {why}")))
}

/// What is fetched. An address of a file is also a file.
fn fetch(given: &str, ground: &Ground<'_>) -> Vec<SubAction> {
    let mut found = vec![SubAction::Fetch(urls::fact(given))];
    if is_file_uri(given) {
        found.push(SubAction::Read(place(given, ground)));
    }
    found
}

/// `elicitation/create`: a person is sent to an address, or fills in a form.
fn elicitation(params: &Value, ground: &Ground<'_>) -> Vec<SubAction> {
    match (params.get("mode").and_then(Value::as_str), params.get("url")) {
        (_, Some(Value::String(url))) => fetch(url, ground),
        (Some("form"), None | Some(Value::Null)) => vec![SubAction::Tool { name: "elicitation".into() }],
        _ => {
            vec![SubAction::unknown("it says neither which address is to be opened nor which form filled in")]
        }
    }
}

/// A path, or a `file:` URI, as agents name files.
fn place(given: &str, ground: &Ground<'_>) -> PathFact {
    if !is_file_uri(given) {
        return ground.resolver.path(ground.cwd, given);
    }
    match file_path(given) {
        Ok(path) => PathFact { given: given.into(), ..ground.resolver.path(ground.cwd, &path) },
        Err(trouble) => {
            // Its names still tell whether it means to be a protected place.
            let fact = ground.resolver.path(ground.cwd, given);
            PathFact { resolved: None, root: None, trouble: Some(trouble.into()), ..fact }
        }
    }
}

fn is_file_uri(given: &str) -> bool {
    given.get(..5).is_some_and(|scheme| scheme.eq_ignore_ascii_case("file:"))
}

/// The path in a `file:` URI. Links and `..` in it are for the disk to follow, so that no parser of
/// addresses may tidy it up.
fn file_path(uri: &str) -> Result<String, &'static str> {
    let rest = uri.get(5..).unwrap_or_default();
    let path = match rest.strip_prefix("//") {
        Some(rest) => {
            let start = rest.find('/').ok_or("it has no path")?;
            let (host, path) = rest.split_at(start);
            if !host.is_empty() && !host.eq_ignore_ascii_case("localhost") {
                return Err("it names a file of another machine");
            }
            path
        }
        None => rest,
    };
    if !path.starts_with('/') || path.contains(['?', '#', '\\']) {
        return Err("programs read such an address differently; give the path alone");
    }
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.bytes();
    while let Some(byte) = rest.next() {
        if byte != b'%' {
            bytes.push(byte);
            continue;
        }
        let mut digit = || rest.next().and_then(|byte| char::from(byte).to_digit(16));
        let (Some(high), Some(low)) = (digit(), digit()) else {
            return Err("it is not encoded as an address must be");
        };
        match u8::try_from(high * 16 + low) {
            Ok(b'/' | b'\\' | 0) | Err(_) => return Err("it has a slash or a NUL encoded in it"),
            Ok(byte) => bytes.push(byte),
        }
    }
    String::from_utf8(bytes).map_err(|_| "it is no text once it is decoded")
}

#[cfg(test)]
mod tests;
