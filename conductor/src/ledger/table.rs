//! The derived tables as data: columns, keys, and how two rows of one key are
//! merged. Both databases' statements are made from this, and a test holds the
//! migrations against it.

use uuid::Uuid;

/// What a column holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Type {
    /// An id of ours.
    Id,
    /// A whole number; times are microseconds since 1970 and end in `_us`.
    Int,
    /// A number.
    Real,
    /// Yes or no.
    Bool,
    /// Text without NUL.
    Text,
    /// JSON text that Postgres takes as `jsonb`.
    Json,
}

/// What happens when a row of the same key is there already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Merge {
    /// The first value that is not null stays.
    First,
    /// The last value that is not null counts.
    Last,
    /// Texts are joined.
    Append,
    /// Numbers are added.
    Sum,
    /// The greatest counts.
    Greatest,
}

/// A column of a derived table.
#[derive(Debug, Clone, Copy)]
pub struct Column {
    /// Its name.
    pub name: &'static str,
    /// What it holds.
    pub kind: Type,
    /// How it is merged. Columns of the key never are.
    pub merge: Merge,
}

/// A derived table.
#[derive(Debug)]
pub struct Table {
    /// Its name.
    pub name: &'static str,
    /// So many of the first columns are its primary key.
    pub key: usize,
    /// All columns, except those that the database generates.
    pub columns: &'static [Column],
}

/// A value of a row.
#[derive(Debug, Clone, PartialEq, Default)]
#[allow(missing_docs, reason = "named as the types are")]
pub enum Value {
    #[default]
    Null,
    Id(Uuid),
    Int(i64),
    Real(f64),
    Bool(bool),
    Text(String),
    Json(String),
}

/// A row, or what one frame says of it: the key, and what is known.
#[derive(Debug, Clone, PartialEq)]
pub struct Fact {
    /// Number of the table in [`TABLES`].
    pub table: usize,
    /// A value for each column, in order.
    pub values: Vec<Value>,
}

const fn column(name: &'static str, kind: Type, merge: Merge) -> Column {
    Column { name, kind, merge }
}

use Merge::{Append, First, Greatest, Last, Sum};
use Type::{Bool, Id, Int, Json, Real, Text};

/// A session: one conversation.
pub const SESSIONS: usize = 0;
/// A binding: the agent-side session that a session uses.
pub const BINDINGS: usize = 1;
/// A process: one running child of an agent.
pub const PROCESSES: usize = 2;
/// A connection of an editor.
pub const CONNECTIONS: usize = 3;
/// A turn: one prompt and all that follows until its stop reason.
pub const TURNS: usize = 4;
/// A message: its chunks joined.
pub const MESSAGES: usize = 5;
/// A tool call, merged over its updates.
pub const TOOL_CALLS: usize = 6;
/// One access to a file, as far as frames tell.
pub const FILE_ACCESSES: usize = 7;
/// One command that was run.
pub const COMMANDS: usize = 8;
/// Tokens and cost, as the agent reports them.
pub const USAGE: usize = 9;
/// The outcome of one request for permission.
pub const DECISIONS: usize = 10;
/// A model or a mode that an agent offers.
pub const MODELS: usize = 11;
/// Where a prompt went.
pub const ROUTES_TAKEN: usize = 12;
/// A question about permission that people were asked.
pub const APPROVALS: usize = 13;
/// An answer that is remembered.
pub const GRANTS: usize = 14;
/// One use of it.
pub const GRANT_USES: usize = 15;

/// Every derived table, by the numbers above.
pub const TABLES: &[Table] = &[
    Table {
        name: "sessions",
        key: 1,
        columns: &[
            column("session_id", Id, First),
            column("user_name", Text, First),
            column("team", Text, First),
            column("agent", Text, Last),
            column("model", Text, Last),
            column("mode", Text, Last),
            column("title", Text, Last),
            column("cwd", Text, First),
            column("repository", Text, First),
            column("connection_id", Id, Last),
            column("opened_us", Int, First),
            // Nothing is ever set back to null, so a session that was opened again has
            // ended before this.
            column("reopened_us", Int, Last),
            column("updated_us", Int, Greatest),
            column("ended_us", Int, Last),
            column("ended_seq", Int, Last),
            column("end_reason", Text, Last),
            column("turns", Int, Sum),
            column("tool_calls", Int, Sum),
            column("frames", Int, Sum),
        ],
    },
    Table {
        name: "bindings",
        key: 1,
        columns: &[
            column("binding_id", Id, First),
            column("session_id", Id, First),
            column("seq", Int, First),
            column("process_id", Id, First),
            column("agent", Text, First),
            column("agent_session", Text, Last),
            column("how", Text, First),
            column("bound_us", Int, First),
            column("ended_us", Int, Last),
        ],
    },
    Table {
        name: "processes",
        key: 1,
        columns: &[
            column("process_id", Id, First),
            column("agent", Text, First),
            column("pid", Int, First),
            column("command", Text, First),
            column("cwd", Text, First),
            column("agent_name", Text, Last),
            column("agent_version", Text, Last),
            column("started_us", Int, First),
            column("ready_us", Int, First),
            column("ended_us", Int, First),
            column("end_reason", Text, First),
            column("exit_code", Int, First),
            column("exit_signal", Text, First),
            column("crashed", Bool, First),
            column("stderr_tail", Text, First),
            column("sandbox_mode", Text, First),
            column("sandbox", Text, First),
            column("sandbox_missing", Text, First),
            column("leftovers", Int, Last),
        ],
    },
    Table {
        name: "connections",
        key: 1,
        columns: &[
            column("connection_id", Id, First),
            column("user_name", Text, First),
            column("team", Text, First),
            column("client", Text, Last),
            column("opened_us", Int, First),
            column("closed_us", Int, First),
            column("close_reason", Text, First),
        ],
    },
    Table {
        name: "turns",
        key: 2,
        columns: &[
            column("session_id", Id, First),
            // The seq of its prompt: a turn is named by what began it.
            column("turn", Int, First),
            column("user_name", Text, First),
            column("team", Text, First),
            column("agent", Text, First),
            column("model", Text, First),
            column("mode", Text, First),
            column("prompt", Text, First),
            column("began_us", Int, First),
            column("ended_us", Int, First),
            column("ended_seq", Int, First),
            column("duration_us", Int, First),
            column("stop_reason", Text, First),
            column("error", Text, First),
        ],
    },
    Table {
        name: "messages",
        key: 2,
        columns: &[
            column("session_id", Id, First),
            // The seq of its first chunk.
            column("message", Int, First),
            column("turn", Int, First),
            column("role", Text, First),
            column("message_id", Text, First),
            column("began_us", Int, First),
            column("ended_us", Int, Greatest),
            column("text", Text, Append),
            column("chunks", Int, Sum),
            column("truncated", Bool, Last),
        ],
    },
    Table {
        name: "tool_calls",
        key: 2,
        columns: &[
            column("session_id", Id, First),
            // The seq of the frame that named it first: agents use their own ids again.
            column("call", Int, First),
            column("tool_call_id", Text, First),
            column("turn", Int, First),
            column("user_name", Text, First),
            column("team", Text, First),
            column("agent", Text, First),
            column("name", Text, Last),
            column("title", Text, Last),
            column("kind", Text, Last),
            column("status", Text, Last),
            column("input", Json, Last),
            column("output", Json, Last),
            column("locations", Json, Last),
            column("began_us", Int, First),
            column("ended_us", Int, Last),
            column("duration_us", Int, Last),
        ],
    },
    Table {
        name: "file_accesses",
        key: 3,
        columns: &[
            column("session_id", Id, First),
            column("seq", Int, First),
            // Counts within one frame.
            column("item", Int, First),
            column("turn", Int, First),
            column("user_name", Text, First),
            column("team", Text, First),
            column("agent", Text, First),
            column("path", Text, First),
            // read, write, delete, move, mention, touch
            column("access", Text, First),
            // fs, diff, location, resource, mention, input, survey
            column("source", Text, First),
            column("call", Int, First),
            column("tool_call_id", Text, First),
            column("at_us", Int, First),
            column("error", Text, First),
        ],
    },
    Table {
        name: "commands",
        key: 2,
        columns: &[
            column("session_id", Id, First),
            column("seq", Int, First),
            column("turn", Int, First),
            column("user_name", Text, First),
            column("team", Text, First),
            column("agent", Text, First),
            // terminal (run by conductor or editor), tool (run by the agent itself)
            column("source", Text, Last),
            column("line", Text, Last),
            column("argv", Json, Last),
            column("cwd", Text, Last),
            column("call", Int, Last),
            column("tool_call_id", Text, Last),
            column("terminal_id", Text, First),
            column("began_us", Int, First),
            column("ended_us", Int, First),
            column("duration_us", Int, First),
            column("exit_code", Int, First),
            column("exit_signal", Text, First),
            column("error", Text, First),
        ],
    },
    Table {
        name: "usage",
        key: 2,
        columns: &[
            column("session_id", Id, First),
            column("seq", Int, First),
            column("turn", Int, First),
            column("user_name", Text, First),
            column("team", Text, First),
            column("agent", Text, First),
            column("model", Text, First),
            column("at_us", Int, First),
            // Of this turn alone; null where the agent tells nothing.
            column("input_tokens", Int, First),
            column("output_tokens", Int, First),
            column("thought_tokens", Int, First),
            column("cached_read_tokens", Int, First),
            column("cached_write_tokens", Int, First),
            column("total_tokens", Int, First),
            // What this report adds to the session's cost: agents report sums.
            column("cost", Real, First),
            column("cost_total", Real, First),
            column("currency", Text, First),
            column("context_used", Int, First),
            column("context_size", Int, First),
        ],
    },
    Table {
        name: "decisions",
        key: 2,
        columns: &[
            column("session_id", Id, First),
            column("seq", Int, First),
            column("turn", Int, First),
            column("user_name", Text, First),
            column("team", Text, First),
            column("agent", Text, First),
            column("call", Int, First),
            column("tool_call_id", Text, First),
            column("tool", Text, First),
            column("kind", Text, First),
            column("title", Text, First),
            column("input", Json, First),
            column("options", Json, First),
            // allow, reject, cancelled, error
            column("decision", Text, First),
            column("option_id", Text, First),
            column("option_kind", Text, First),
            column("decided_by", Text, First),
            column("rule", Text, First),
            column("reason", Text, First),
            column("asked_us", Int, First),
            column("decided_us", Int, First),
            column("duration_us", Int, First),
            // Who answered; null if it was the conductor.
            column("decided_user", Text, First),
            column("method", Text, First),
            // allow, ask, deny
            column("verdict", Text, First),
            column("rules", Json, First),
            column("policy_revision", Text, First),
            column("sub_actions", Json, First),
            column("judging_us", Int, First),
            // allow, ask, deny
            column("ruled", Text, First),
            column("subject", Json, First),
            column("is_whole", Bool, First),
            column("terms", Json, First),
        ],
    },
    Table {
        name: "models",
        key: 3,
        columns: &[
            column("agent", Text, First),
            // model, mode
            column("kind", Text, First),
            column("value", Text, First),
            column("name", Text, Last),
            column("agent_version", Text, Last),
            column("first_us", Int, First),
            column("last_us", Int, Greatest),
            column("process_id", Id, Last),
        ],
    },
    Table {
        name: "routes_taken",
        key: 2,
        columns: &[
            column("session_id", Id, First),
            column("seq", Int, First),
            column("turn", Int, First),
            column("user_name", Text, First),
            column("team", Text, First),
            column("agent", Text, First),
            column("from_agent", Text, First),
            column("model", Text, First),
            column("mode", Text, First),
            column("route", Text, First),
            // named, route, model, bound, default
            column("how", Text, First),
            column("reason", Text, First),
            column("attempt", Int, First),
            column("failed", Text, First),
            column("at_us", Int, First),
        ],
    },
    Table {
        name: "approvals",
        key: 1,
        columns: &[
            column("approval_id", Id, First),
            column("session_id", Id, First),
            column("seq", Int, First),
            column("turn", Int, First),
            column("user_name", Text, First),
            column("team", Text, First),
            column("agent", Text, First),
            column("for_user", Text, First),
            column("rule", Text, First),
            column("reason", Text, First),
            column("approvers", Text, First),
            column("terms", Json, First),
            column("is_shown", Bool, First),
            column("asked_us", Int, First),
            column("due_us", Int, First),
            column("ended_us", Int, First),
            column("duration_us", Int, First),
            column("outcome", Text, First),
            column("answered_by", Text, First),
            column("answered_via", Text, First),
            column("answer_reason", Text, First),
        ],
    },
    Table {
        name: "grants",
        key: 1,
        columns: &[
            column("grant_id", Id, First),
            // session, root, user, team
            column("scope", Text, First),
            column("scope_name", Text, First),
            column("session_id", Id, First),
            column("author", Text, First),
            column("team", Text, First),
            column("reason", Text, First),
            column("what", Text, First),
            column("parts", Json, First),
            column("given_us", Int, First),
            column("expires_us", Int, First),
            column("most_uses", Int, First),
            column("uses", Int, Greatest),
            column("last_used_us", Int, Greatest),
            column("revoked_us", Int, First),
            column("revoked_by", Text, First),
            column("end_reason", Text, First),
        ],
    },
    Table {
        name: "grant_uses",
        key: 2,
        columns: &[
            column("session_id", Id, First),
            // The note that tells of the use.
            column("seq", Int, First),
            column("turn", Int, First),
            column("user_name", Text, First),
            column("team", Text, First),
            column("agent", Text, First),
            column("grant_id", Id, First),
            column("request", Int, First),
            column("number", Int, First),
            column("uses_left", Int, First),
            column("sub_actions", Json, First),
            column("at_us", Int, First),
        ],
    },
];

impl Fact {
    /// A row with its key; everything else is null.
    pub fn new<const N: usize>(table: usize, key: [Value; N]) -> Self {
        debug_assert_eq!(N, TABLES[table].key);
        let mut values = Vec::with_capacity(TABLES[table].columns.len());
        values.extend(key);
        values.resize(TABLES[table].columns.len(), Value::Null);
        Self { table, values }
    }

    /// Sets a column by its name. A name that the table does not have is a
    /// mistake of ours and does nothing; tests set every column.
    #[must_use]
    pub fn set(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.put(name, value);
        self
    }

    /// Sets a column by its name, in place.
    pub fn put(&mut self, name: &str, value: impl Into<Value>) {
        let at = TABLES[self.table].columns.iter().position(|column| column.name == name);
        debug_assert!(at.is_some(), "{} has no column {name}", TABLES[self.table].name);
        if let Some(slot) = at.and_then(|at| self.values.get_mut(at)) {
            *slot = value.into();
        }
    }

    /// Merges what a later frame says of the same row, as the database would.
    pub fn merge(&mut self, later: &Self) {
        let columns = TABLES[self.table].columns;
        for ((old, new), column) in self.values.iter_mut().zip(&later.values).zip(columns) {
            column.merge.apply(old, new);
        }
    }

    /// The values of its key.
    pub fn key(&self) -> &[Value] {
        &self.values[..TABLES[self.table].key]
    }
}

impl Merge {
    fn apply(self, old: &mut Value, new: &Value) {
        match (self, &mut *old, new) {
            (_, _, Value::Null) => {}
            (_, Value::Null, new) => *old = new.clone(),
            (First, ..) => {}
            (Last, old, new) => old.clone_from(new),
            (Append, Value::Text(old), Value::Text(new)) => old.push_str(new),
            (Sum, Value::Int(old), Value::Int(new)) => *old = old.saturating_add(*new),
            (Sum, Value::Real(old), Value::Real(new)) => *old += new,
            (Greatest, Value::Int(old), Value::Int(new)) => *old = (*new).max(*old),
            // Columns have one type, so nothing else comes together.
            (Append | Sum | Greatest, ..) => {}
        }
    }
}

impl From<Uuid> for Value {
    fn from(value: Uuid) -> Self {
        Self::Id(value)
    }
}

impl From<i64> for Value {
    fn from(value: i64) -> Self {
        Self::Int(value)
    }
}

impl From<f64> for Value {
    fn from(value: f64) -> Self {
        Self::Real(value)
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

/// Text as a database takes it: NUL has no place in Postgres' text, and both
/// databases must hold the same.
impl From<&str> for Value {
    fn from(value: &str) -> Self {
        Self::from(value.to_string())
    }
}

impl From<String> for Value {
    fn from(value: String) -> Self {
        Self::Text(if value.contains('\0') { value.replace('\0', "\u{fffd}") } else { value })
    }
}

impl<T: Into<Self>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

#[cfg(test)]
mod tests;
