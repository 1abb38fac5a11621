//! The record's types and the protos': the same fields by the same names, so
//! the conversions are made from lists of them, in both directions.

use crate::{ledger::history, proto, proto::get_session_response};

macro_rules! same_fields {
    ($($name:ident { $($field:ident),+ $(,)? })+) => {
        $(
            impl From<history::$name> for proto::$name {
                fn from(from: history::$name) -> Self {
                    Self { $($field: from.$field),+ }
                }
            }

            impl From<proto::$name> for history::$name {
                fn from(from: proto::$name) -> Self {
                    Self { $($field: from.$field),+ }
                }
            }
        )+
    };
}

same_fields! {
    Session {
        session_id, user_name, team, agent, model, mode, title, cwd, repository, sandbox, opened_us,
        reopened_us, updated_us, ended_us, end_reason, is_open, turns, tool_calls, frames, first_prompt,
    }
    Turn {
        turn, agent, model, mode, prompt, began_us, ended_us, ended_seq, duration_us, stop_reason, error,
    }
    Message { message, turn, role, began_us, ended_us, text, truncated }
    ToolCall {
        call, tool_call_id, turn, name, title, kind, status, input, output, locations, began_us, ended_us,
        duration_us,
    }
    FileAccess {
        session_id, seq, item, turn, user_name, team, agent, path, access, source, call, tool_call_id, at_us,
        error,
    }
    Command {
        seq, turn, source, line, argv, cwd, call, began_us, ended_us, duration_us, exit_code, exit_signal, error,
    }
    Usage {
        seq, turn, model, at_us, input_tokens, output_tokens, thought_tokens, cached_read_tokens,
        cached_write_tokens, total_tokens, cost, cost_total, currency, context_used, context_size,
    }
    Decision {
        seq, turn, call, tool, kind, title, input, options, decision, option_id, option_kind, decided_by,
        decided_user, rule, reason, asked_us, decided_us, duration_us,
    }
}

impl From<history::Frame> for proto::RecordedFrame {
    fn from(from: history::Frame) -> Self {
        let history::Frame { seq, at_us, origin, destination, outgoing_id, raw } = from;
        Self { seq, at_us, origin, destination, outgoing_id, raw }
    }
}

impl From<proto::RecordedFrame> for history::Frame {
    fn from(from: proto::RecordedFrame) -> Self {
        let proto::RecordedFrame { seq, at_us, origin, destination, outgoing_id, raw } = from;
        Self { seq, at_us, origin, destination, outgoing_id, raw }
    }
}

impl From<history::Entry> for get_session_response::Entry {
    fn from(from: history::Entry) -> Self {
        match from {
            history::Entry::Turn(turn) => Self::Turn(turn.into()),
            history::Entry::Message(message) => Self::Message(message.into()),
            history::Entry::ToolCall(call) => Self::ToolCall(call.into()),
            history::Entry::FileAccess(access) => Self::FileAccess(access.into()),
            history::Entry::Command(command) => Self::Command(command.into()),
            history::Entry::Usage(usage) => Self::Usage(usage.into()),
            history::Entry::Decision(decision) => Self::Decision(decision.into()),
        }
    }
}
