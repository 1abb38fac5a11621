//! What happened, as others are told of it: one thing at one time, with who, where and what.
//! No I/O.

use serde_json::{Map, Value as Json};
use uuid::Uuid;

use crate::{
    ledger::table::{Fact, TABLES, Value},
    record::Stream,
};

macro_rules! kinds {
    ($($(#[$doc:meta])* $variant:ident $name:literal),+ $(,)?) => {
        /// What sort of thing happened.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Kind { $($(#[$doc])* $variant),+ }

        impl Kind {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// Its name, which does not change from version to version.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),+ }
            }
        }
    };
}

kinds! {
    /// A session was opened.
    SessionOpened "session.opened",
    /// It was opened again.
    SessionReopened "session.reopened",
    /// It has ended.
    SessionEnded "session.ended",
    /// It was shared.
    SessionShared "session.shared",
    /// It is shared no longer.
    SessionUnshared "session.unshared",
    /// Somebody took a seat in it.
    SessionJoined "session.joined",
    /// Somebody left theirs.
    SessionLeft "session.left",
    /// A prompt was sent.
    PromptSent "prompt.sent",
    /// Which agent gets it was decided.
    PromptRouted "prompt.routed",
    /// It was answered, or will not be.
    PromptEnded "prompt.ended",
    /// The agent uses a tool.
    ToolCalled "tool.called",
    /// It is done with it.
    ToolEnded "tool.ended",
    /// A tool call is another than was allowed.
    ToolChanged "tool.changed",
    /// A command is to be run.
    CommandStarted "command.started",
    /// It turned out to be another, or to be run elsewhere.
    CommandChanged "command.changed",
    /// It has ended, or was not run.
    CommandEnded "command.ended",
    /// A file is to be read.
    FileRead "file.read",
    /// A file is to be written.
    FileWrite "file.write",
    /// A file is to be deleted.
    FileDelete "file.delete",
    /// A file is to be moved.
    FileMove "file.move",
    /// A person has named a file.
    FileMention "file.mention",
    /// An agent works on a file, and does not tell how.
    FileTouch "file.touch",
    /// What was to be done with a file was refused.
    FileFailed "file.failed",
    /// A request for permission was decided.
    PermissionDecided "permission.decided",
    /// People were asked.
    ApprovalAsked "approval.asked",
    /// They have answered, or will not.
    ApprovalAnswered "approval.answered",
    /// An answer is remembered.
    GrantGiven "grant.given",
    /// It was used.
    GrantUsed "grant.used",
    /// It was taken back.
    GrantRevoked "grant.revoked",
    /// A process of an agent was started.
    ProcessStarted "process.started",
    /// It has ended.
    ProcessEnded "process.ended",
    /// It has ended unasked.
    ProcessCrashed "process.crashed",
    /// What it left behind was ended.
    ProcessLeftovers "process.leftovers",
    /// An editor has connected.
    EditorConnected "editor.connected",
    /// Its stream broke.
    EditorDetached "editor.detached",
    /// It has another.
    EditorReattached "editor.reattached",
    /// It has gone.
    EditorDisconnected "editor.disconnected",
    /// Something was done, and nobody was asked.
    ActionUnmediated "action.unmediated",
    /// Not all that is protected could be looked at.
    ActionUnseen "action.unseen",
    /// Frames could not be recorded.
    RecordingGap "recording.gap",
    /// Recording stopped or went on.
    RecordingChanged "recording.changed",
    /// What was recorded could not be told: it was freed before.
    FeedGap "feed.gap",
}

impl Kind {
    /// The kind with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.iter().find(|kind| kind.name() == name).copied()
    }

    /// Whether it is one of those that a name stands for: `command.ended`, or all of `command`.
    pub fn is_of(self, name: &str) -> bool {
        let rest = self.name().strip_prefix(name);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    }
}

/// One thing that happened.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// What sort of thing.
    pub kind: Kind,
    /// When it was recorded, in microseconds since 1970.
    pub at_us: i64,
    /// What the frame belongs to that tells of it.
    pub stream: Stream,
    /// The frame's number there.
    pub seq: u64,
    /// Counts the events that the frame tells of.
    pub item: u32,
    /// The session it is about.
    pub session: Option<Uuid>,
    /// Whose session, connection or grant it is.
    pub user: Option<String>,
    /// Who did it, if that is a person and not the same.
    pub by: Option<String>,
    /// That user's team; several are joined by commas.
    pub team: Option<String>,
    /// The agent at work.
    pub agent: Option<String>,
    /// What the ledger's row says, as far as it is known by now, by the names of its columns.
    pub details: Map<String, Json>,
}

impl Event {
    /// What tells it from every other, wherever it is told, and however often.
    pub fn uid(&self) -> String {
        format!("{}:{}:{}", self.stream.id, self.seq, self.item)
    }

    /// A detail that is text.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.details.get(name)?.as_str()
    }
}

/// Columns that hold what people, models and files say; they are told only on demand.
const WORDS: &[(&str, &[&str])] = &[
    ("sessions", &["title"]),
    ("turns", &["prompt"]),
    ("tool_calls", &["title", "input", "output", "locations"]),
    ("decisions", &["title", "input", "options"]),
    ("processes", &["stderr_tail"]),
];

/// Columns that an event has elsewhere, or that only the ledger needs.
const ELSEWHERE: &[&str] =
    &["session_id", "user_name", "team", "agent", "is_whole", "subject", "terms", "frames", "updated_us"];

/// Whether a column holds what is told only on demand.
pub fn is_words(table: usize, column: &str) -> bool {
    let of = WORDS.iter().find(|(name, _)| *name == TABLES[table].name);
    of.is_some_and(|(_, columns)| columns.contains(&column))
}

/// The value of a column; null if the table has none of that name.
pub fn value<'a>(fact: &'a Fact, name: &str) -> &'a Value {
    let at = TABLES[fact.table].columns.iter().position(|column| column.name == name);
    at.and_then(|at| fact.values.get(at)).unwrap_or(&Value::Null)
}

/// The same, if it is text.
pub fn text<'a>(fact: &'a Fact, name: &str) -> Option<&'a str> {
    match value(fact, name) {
        Value::Text(text) => Some(text),
        _ => None,
    }
}

/// What a row says, as JSON.
pub fn details(fact: &Fact) -> Map<String, Json> {
    let columns = TABLES[fact.table].columns.iter().zip(&fact.values);
    let told = columns.filter(|(column, _)| !ELSEWHERE.contains(&column.name));
    told.filter_map(|(column, value)| Some((column.name.to_owned(), json(value)?))).collect()
}

fn json(value: &Value) -> Option<Json> {
    Some(match value {
        Value::Null => return None,
        Value::Id(id) => id.to_string().into(),
        Value::Int(number) => (*number).into(),
        Value::Real(number) => (*number).into(),
        Value::Bool(yes) => (*yes).into(),
        Value::Text(text) => text.as_str().into(),
        Value::Json(json) => serde_json::from_str(json).ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_have_names_of_their_own() {
        for (at, kind) in Kind::ALL.iter().enumerate() {
            assert_eq!(Kind::from_name(kind.name()), Some(*kind));
            assert!(Kind::ALL[..at].iter().all(|other| other.name() != kind.name()), "{kind:?}");
        }
        assert!(Kind::FileRead.is_of("file") && Kind::FileRead.is_of("file.read"));
        assert!(
            !Kind::FileRead.is_of("fil") && !Kind::FileRead.is_of("file.re") && !Kind::FileRead.is_of("")
        );
    }

    #[test]
    fn what_is_left_out_are_columns() {
        for (table, columns) in WORDS {
            let of = TABLES.iter().find(|of| of.name == *table).map(|of| of.columns).unwrap_or_default();
            for column in *columns {
                assert!(of.iter().any(|of| of.name == *column), "{table}.{column}");
            }
        }
    }
}
