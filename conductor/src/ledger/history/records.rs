//! What the history tells, as it stands in the ledger: field by field the
//! columns of its tables, which are described in `migrations`.

use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

use crate::ledger::{cell::Cells, error::LedgerError, question::Record};

/// A struct whose fields are selected by these expressions, in this order.
macro_rules! record {
    (
        $(#[$about:meta])*
        $name:ident {
            $($(#[$field_about:meta])* $field:ident: $type:ty = $column:literal),+ $(,)?
        }
    ) => {
        $(#[$about])*
        #[derive(Debug, Clone, PartialEq, Default, serde::Serialize)]
        #[allow(missing_docs, reason = "fields are named as the columns are")]
        pub struct $name {
            $($(#[$field_about])* pub $field: $type,)+
        }

        impl Record for $name {
            const COLUMNS: &'static [&'static str] = &[$($column),+];

            fn from_row(mut row: Cells) -> Result<Self, LedgerError> {
                Ok(Self { $($field: row.take()?,)+ })
            }
        }
    };
}

pub(in crate::ledger) use record;

record! {
    /// A conversation.
    Session {
        session_id: String = "CAST(s.session_id AS text)",
        user_name: Option<String> = "s.user_name",
        team: Option<String> = "s.team",
        agent: Option<String> = "s.agent",
        model: Option<String> = "s.model",
        mode: Option<String> = "s.mode",
        title: Option<String> = "s.title",
        cwd: Option<String> = "s.cwd",
        repository: Option<String> = "s.repository",
        sandbox: Option<String> = "(SELECT CASE WHEN p.sandbox_mode = 'off' THEN 'off' WHEN p.sandbox_missing <> '' THEN \
             p.sandbox_mode || ': ' || p.sandbox || '; without ' || p.sandbox_missing \
             ELSE p.sandbox_mode || ': ' || p.sandbox END \
             FROM bindings b JOIN processes p ON p.process_id = b.process_id \
             WHERE b.session_id = s.session_id ORDER BY b.bound_us DESC, b.seq DESC LIMIT 1)",
        opened_us: Option<i64> = "s.opened_us",
        reopened_us: Option<i64> = "s.reopened_us",
        updated_us: Option<i64> = "s.updated_us",
        ended_us: Option<i64> = "s.ended_us",
        end_reason: Option<String> = "s.end_reason",
        is_open: bool = "s.is_open",
        turns: i64 = "COALESCE(s.turns, 0)",
        tool_calls: i64 = "COALESCE(s.tool_calls, 0)",
        frames: i64 = "COALESCE(s.frames, 0)",
        // Its beginning, for lists.
        first_prompt: Option<String> =
            "(SELECT substr(t.prompt, 1, 200) FROM turns t WHERE t.session_id = s.session_id ORDER BY t.turn LIMIT 1)",
    }
}

record! {
    /// One prompt and all that follows until its answer.
    Turn {
        turn: i64 = "turn",
        agent: Option<String> = "agent",
        model: Option<String> = "model",
        mode: Option<String> = "mode",
        prompt: Option<String> = "prompt",
        began_us: Option<i64> = "began_us",
        ended_us: Option<i64> = "ended_us",
        ended_seq: Option<i64> = "ended_seq",
        duration_us: Option<i64> = "duration_us",
        stop_reason: Option<String> = "stop_reason",
        error: Option<String> = "error",
    }
}

record! {
    /// A message, its chunks joined.
    Message {
        message: i64 = "message",
        turn: Option<i64> = "turn",
        role: Option<String> = "role",
        began_us: Option<i64> = "began_us",
        ended_us: Option<i64> = "ended_us",
        text: Option<String> = "text",
        truncated: Option<bool> = "truncated",
    }
}

record! {
    /// A tool call, merged over its updates.
    ToolCall {
        call: i64 = "call",
        tool_call_id: Option<String> = "tool_call_id",
        turn: Option<i64> = "turn",
        name: Option<String> = "name",
        title: Option<String> = "title",
        kind: Option<String> = "kind",
        status: Option<String> = "status",
        #[serde(serialize_with = "as_json")]
        input: Option<String> = "CAST(input AS text)",
        #[serde(serialize_with = "as_json")]
        output: Option<String> = "CAST(output AS text)",
        #[serde(serialize_with = "as_json")]
        locations: Option<String> = "CAST(locations AS text)",
        began_us: Option<i64> = "began_us",
        ended_us: Option<i64> = "ended_us",
        duration_us: Option<i64> = "duration_us",
    }
}

record! {
    /// An access to a file, as far as frames tell of it.
    FileAccess {
        session_id: String = "CAST(session_id AS text)",
        seq: i64 = "seq",
        item: i64 = "item",
        turn: Option<i64> = "turn",
        user_name: Option<String> = "user_name",
        team: Option<String> = "team",
        agent: Option<String> = "agent",
        path: Option<String> = "path",
        access: Option<String> = "access",
        source: Option<String> = "source",
        call: Option<i64> = "call",
        tool_call_id: Option<String> = "tool_call_id",
        at_us: Option<i64> = "at_us",
        error: Option<String> = "error",
    }
}

record! {
    /// A command that was run, or that an agent asked to run.
    Command {
        seq: i64 = "seq",
        turn: Option<i64> = "turn",
        source: Option<String> = "source",
        line: Option<String> = "line",
        #[serde(serialize_with = "as_json")]
        argv: Option<String> = "CAST(argv AS text)",
        cwd: Option<String> = "cwd",
        call: Option<i64> = "call",
        began_us: Option<i64> = "began_us",
        ended_us: Option<i64> = "ended_us",
        duration_us: Option<i64> = "duration_us",
        exit_code: Option<i64> = "exit_code",
        exit_signal: Option<String> = "exit_signal",
        error: Option<String> = "error",
    }
}

record! {
    /// Tokens and cost, as the agent reports them.
    Usage {
        seq: i64 = "seq",
        turn: Option<i64> = "turn",
        model: Option<String> = "model",
        at_us: Option<i64> = "at_us",
        input_tokens: Option<i64> = "input_tokens",
        output_tokens: Option<i64> = "output_tokens",
        thought_tokens: Option<i64> = "thought_tokens",
        cached_read_tokens: Option<i64> = "cached_read_tokens",
        cached_write_tokens: Option<i64> = "cached_write_tokens",
        total_tokens: Option<i64> = "total_tokens",
        cost: Option<f64> = "cost",
        cost_total: Option<f64> = "cost_total",
        currency: Option<String> = "currency",
        context_used: Option<i64> = "context_used",
        context_size: Option<i64> = "context_size",
    }
}

record! {
    /// A request for permission and its outcome.
    Decision {
        seq: i64 = "seq",
        turn: Option<i64> = "turn",
        call: Option<i64> = "call",
        tool: Option<String> = "tool",
        kind: Option<String> = "kind",
        title: Option<String> = "title",
        #[serde(serialize_with = "as_json")]
        input: Option<String> = "CAST(input AS text)",
        #[serde(serialize_with = "as_json")]
        options: Option<String> = "CAST(options AS text)",
        decision: Option<String> = "decision",
        option_id: Option<String> = "option_id",
        option_kind: Option<String> = "option_kind",
        decided_by: Option<String> = "decided_by",
        decided_user: Option<String> = "decided_user",
        rule: Option<String> = "rule",
        reason: Option<String> = "reason",
        asked_us: Option<i64> = "asked_us",
        decided_us: Option<i64> = "decided_us",
        duration_us: Option<i64> = "duration_us",
    }
}

/// A frame as it was recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// Its number in the stream.
    pub seq: u64,
    /// When it was recorded.
    pub at_us: i64,
    /// Who made it.
    pub origin: String,
    /// Whom it is for.
    pub destination: String,
    /// The id it was passed on with.
    pub outgoing_id: Option<i64>,
    /// The bytes; none if they were erased.
    pub raw: Vec<u8>,
}

impl Record for Frame {
    const COLUMNS: &'static [&'static str] = &["seq", "at_us", "origin", "destination", "outgoing_id", "raw"];

    fn from_row(mut row: Cells) -> Result<Self, LedgerError> {
        Ok(Self {
            seq: u64::try_from(row.take::<i64>()?).unwrap_or_default(),
            at_us: row.take()?,
            origin: row.take()?,
            destination: row.take()?,
            outgoing_id: row.take()?,
            raw: row.take::<Option<_>>()?.unwrap_or_default(),
        })
    }
}

/// Something that is known of a session.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs, reason = "named as the types are")]
pub enum Entry {
    Turn(Turn),
    Message(Message),
    ToolCall(ToolCall),
    FileAccess(FileAccess),
    Command(Command),
    Usage(Usage),
    Decision(Decision),
}

/// JSON stays JSON. What is none, although it should be, is text.
fn as_json<S: Serializer>(text: &Option<String>, serializer: S) -> Result<S::Ok, S::Error> {
    match text.as_deref().map(serde_json::from_str::<&RawValue>) {
        None => serializer.serialize_none(),
        Some(Ok(json)) => json.serialize(serializer),
        Some(Err(_)) => text.serialize(serializer),
    }
}
