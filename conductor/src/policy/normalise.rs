//! From what is asked to what would be done.

use std::path::Path;

use serde_json::Value;

use super::{Resolver, ServerFact, SubAction};

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

/// Takes a request apart. Never empty: what cannot be told is `SubAction::Unknown`.
pub fn normalise(_action: &Action, _ground: &Ground<'_>) -> Vec<SubAction> {
    vec![SubAction::unknown("not read")]
}
