//! What a request would do, in the words that rules are written in.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::text::{join, shown};

/// What a request comes to, from mild to strict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Effect {
    /// It happens.
    Allow,
    /// A person is asked.
    Ask,
    /// It does not happen.
    Deny,
}

impl Effect {
    /// The word for it in files and records.
    pub fn name(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Ask => "ask",
            Self::Deny => "deny",
        }
    }
}

/// One thing that a request would do.
///
/// Records keep these as JSON and read them again, perhaps with another program: a member
/// that is not known here may change the meaning, so it makes a record unreadable.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum SubAction {
    /// A program is started.
    Run(Command),
    /// A file or directory is read.
    Read(PathFact),
    /// A file or directory is made, changed, moved or removed.
    Write(PathFact),
    /// Something is fetched from or sent to a place on the network.
    Fetch(UrlFact),
    /// A tool of an MCP server is called. What its arguments name as paths or
    /// addresses are sub-actions of their own.
    Mcp {
        /// The server's name, as the agent has it.
        server: String,
        /// The tool's name.
        tool: String,
    },
    /// A tool of the agent's own that is none of the above.
    Tool {
        /// Its name.
        name: String,
    },
    /// The session's mode is changed.
    Mode {
        /// The mode's id.
        id: String,
    },
    /// The session's model is changed.
    Model {
        /// The model's id.
        id: String,
    },
    /// Another option of the session is changed.
    Setting {
        /// The option's id.
        id: String,
        /// Its new value, as text.
        value: String,
    },
    /// An agent is used.
    Agent {
        /// Its name in `agents.toml`.
        name: String,
    },
    /// An editor brings an MCP server along.
    Server(ServerFact),
    /// It could not be told what would happen. Never allowed.
    Unknown {
        /// What could not be told and why, for people; text of others in it is
        /// escaped.
        what: String,
    },
}

impl SubAction {
    /// Something that could not be understood.
    pub fn unknown(what: impl Into<String>) -> Self {
        Self::Unknown { what: what.into() }
    }

    /// What would be done, in words for people: where paths lead, not how they were
    /// written; hidden characters are shown by their numbers.
    pub fn in_words(&self, most: usize) -> String {
        let shown = |text: &str| shown(text, most);
        let place = |fact: &PathFact| match &fact.resolved {
            Some(resolved) => shown(&resolved.to_string_lossy()),
            None => shown(&fact.given),
        };
        match self {
            Self::Run(command) => {
                let words = command.words.iter().map(|word| word.text.as_str());
                let line: Vec<&str> = std::iter::once(command.program.as_str()).chain(words).collect();
                let line = join(line.into_iter());
                format!("run `{}` in {}", shown(&line), shown(&command.cwd.to_string_lossy()))
            }
            Self::Read(fact) => format!("read {}", place(fact)),
            Self::Write(fact) => format!("write {}", place(fact)),
            Self::Fetch(fact) => format!("fetch {}", shown(&fact.given)),
            Self::Mcp { server, tool } => {
                format!("call the tool {} of the MCP server {}", shown(tool), shown(server))
            }
            Self::Tool { name } => format!("use the tool {}", shown(name)),
            Self::Mode { id } => format!("change to the mode {}", shown(id)),
            Self::Model { id } => format!("change to the model {}", shown(id)),
            Self::Setting { id, value } => format!("set {} to {}", shown(id), shown(value)),
            Self::Agent { name } => format!("use the agent {}", shown(name)),
            Self::Server(fact) => format!("use the MCP server {}: {}", shown(&fact.name), shown(&fact.shown)),
            Self::Unknown { what } => format!("something that cannot be told: {}", shown(what)),
        }
    }

    /// The path that is read or written.
    pub fn path(&self) -> Option<&PathFact> {
        match self {
            Self::Read(fact) | Self::Write(fact) => Some(fact),
            _ => None,
        }
    }

    /// Whether two that are equal do the same: a command that reads what another
    /// writes, and tools whose arguments are not part of them, may do anything.
    pub fn is_exact(&self) -> bool {
        match self {
            Self::Run(command) => !command.is_piped,
            Self::Mcp { .. } | Self::Tool { .. } | Self::Unknown { .. } => false,
            _ => true,
        }
    }
}

/// A program with its arguments.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Command {
    /// The program as written.
    pub program: String,
    /// The file that would be started, all links resolved; none if the shell has it
    /// built in or it is not found.
    pub file: Option<PathBuf>,
    /// The file lies beneath a root or where anyone may write, so that an agent may
    /// have made it; or the name was found by a relative entry of `PATH`. Rules about
    /// names do not hold for it.
    pub is_local: bool,
    /// Its arguments.
    pub words: Vec<Word>,
    /// Where it runs.
    pub cwd: PathBuf,
    /// The shell gives it another command's output, or a file, to read.
    pub is_piped: bool,
}

/// An argument, and the path that it would be if it is one.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Word {
    /// The argument, quotes removed.
    pub text: String,
    /// The whole of it as a path, seen from where the command runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<PathFact>,
    /// What stands behind the first `=`, as a path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<PathFact>,
}

/// A path, and what the disk says about it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PathFact {
    /// As it was given.
    pub given: String,
    /// Where it leads, all links resolved; the last components need not exist. None if
    /// that cannot be told.
    pub resolved: Option<PathBuf>,
    /// The innermost root above that.
    pub root: Option<PathBuf>,
    /// Why this place is protected, if it is. Judged by names, given and resolved, whether
    /// or not there is such a file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protected: Option<String>,
    /// It is protected from being read, too: it is likely to hold keys or passwords.
    pub secret: bool,
    /// Why it cannot be told where it leads, or why it is not to be trusted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
}

/// An address on the network, taken apart.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UrlFact {
    /// As it was given.
    pub given: String,
    /// The scheme, in lower case.
    pub scheme: String,
    /// The host: lower case, punycode, no dot at the end; addresses in their usual form.
    pub host: String,
    /// The port, also if it is the scheme's own.
    pub port: u16,
    /// The path.
    pub path: String,
    /// What the host says about the network that it is in.
    pub network: Network,
    /// Why it is not to be trusted: user information, an address in a form that hides which one
    /// it is, a name that looks like another, text that parsers read differently.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trouble: Option<String>,
}

/// Where a host is, as far as its name or address says.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Network {
    /// There is no host, or it cannot be read.
    #[default]
    None,
    /// A name of which only the name service knows where it leads.
    Name,
    /// An address in the public network.
    Public,
    /// This machine, by address or by a `localhost` name.
    Loopback,
    /// An address of a private network, or another that is not public.
    Private,
    /// An address of the link, where clouds keep the credentials of a machine.
    LinkLocal,
}

/// An MCP server that an editor brings.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerFact {
    /// Its name, as the editor has it.
    pub name: String,
    /// The entry of the catalogue that it equals in content, if it does.
    pub known: Option<String>,
    /// `stdio`, `http`, `sse` or `acp`.
    pub transport: String,
    /// The editor is on another machine.
    pub is_remote: bool,
    /// Its command line or address, escaped, without the values of variables and headers.
    pub shown: String,
}
