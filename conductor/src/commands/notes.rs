//! What happens beside the answer, for people, on stderr: tool calls,
//! thoughts, questions. Everything here comes from an agent that may mean
//! harm, and is escaped.

use std::{
    collections::HashMap,
    io::{Write as _, stderr},
};

use serde_json::Value;

use super::terminal::{Style, clean};
use crate::frame::escape;

/// How much of a title is shown.
const SHOWN_TITLE: usize = 200;

/// How much of a tool's input is shown to whoever has to decide about it.
const SHOWN_INPUT: usize = 4000;

/// How many tool calls are remembered. An agent with more open ones has its
/// later updates shown without their titles.
const MAX_CALLS: usize = 1000;

/// A tool call as far as it was told.
#[derive(Debug, Clone, Default)]
pub(super) struct Call {
    title: String,
    kind: String,
    input: String,
    status: String,
}

impl Call {
    /// What it is called, on one line.
    pub(super) fn title(&self) -> &str {
        if self.title.is_empty() { "a tool call without a title" } else { &self.title }
    }

    /// What sort of thing it does.
    pub(super) fn kind(&self) -> &str {
        if self.kind.is_empty() { "other" } else { &self.kind }
    }

    /// What it would do it with, escaped; empty if it was not told.
    pub(super) fn input(&self) -> &str {
        &self.input
    }

    /// Fields that are absent keep their values.
    fn update(&mut self, told: &Value) {
        let set = |field: &mut String, name: &str| {
            if let Some(text) = told[name].as_str() {
                *field = escape(text.as_bytes(), SHOWN_TITLE);
            }
        };
        set(&mut self.title, "title");
        set(&mut self.kind, "kind");
        set(&mut self.status, "status");
        if !told["rawInput"].is_null() {
            self.input = escape(told["rawInput"].to_string().as_bytes(), SHOWN_INPUT);
        }
    }
}

/// The tool calls of a turn.
#[derive(Debug, Default)]
pub(super) struct Calls {
    open: HashMap<String, Call>,
}

impl Calls {
    /// The call that is being told of, brought up to date.
    pub(super) fn learn(&mut self, told: &Value) -> Call {
        let id = told["toolCallId"].as_str().unwrap_or_default();
        let mut call = self.open.get(id).cloned().unwrap_or_default();
        call.update(told);
        if matches!(&*call.status, "completed" | "failed") {
            self.open.remove(id);
        } else if self.open.len() < MAX_CALLS || self.open.contains_key(id) {
            self.open.insert(id.to_string(), call.clone());
        }
        call
    }

    /// A line about an update of a call, unless it says nothing new: calls
    /// are shown when they begin and when they end.
    pub(super) fn note(&mut self, told: &Value) -> Option<String> {
        let id = told["toolCallId"].as_str().unwrap_or_default();
        let known = self.open.contains_key(id);
        let call = self.learn(told);
        let (title, kind) = (call.title(), call.kind());
        match &*call.status {
            "completed" => Some(format!("✓ {title} ({kind}): completed")),
            "failed" => Some(format!("✗ {title} ({kind}): failed")),
            _ if known => None,
            "" => Some(format!("· {title} ({kind}): pending")),
            status => Some(format!("· {title} ({kind}): {}", status.replace('_', " "))),
        }
    }
}

/// Writes notes to stderr.
#[derive(Debug)]
pub(super) struct Notes {
    style: Style,
    /// Whether the last thought was left within a line.
    thinking: bool,
}

impl Notes {
    pub(super) fn new() -> Self {
        Self { style: Style::of(&stderr()), thinking: false }
    }

    /// How stderr can be decorated.
    pub(super) fn style(&self) -> Style {
        self.style
    }

    /// Writes a dimmed line.
    pub(super) fn note(&mut self, text: &str) {
        let text = self.style.dim(text).into_owned();
        self.print(&format!("{text}\n"));
    }

    /// Writes escaped text as it is.
    pub(super) fn print(&mut self, text: &str) {
        self.end_thought();
        // Nobody reading it is no reason to give up the answer.
        stderr().write_all(text.as_bytes()).ok();
    }

    /// Writes a piece of a thought, if it can be told from the answer.
    pub(super) fn think(&mut self, text: &str) {
        if !self.style.can_dim() || text.is_empty() {
            return;
        }
        stderr().write_all(self.style.dim(&clean(text)).as_bytes()).ok();
        self.thinking = !text.ends_with('\n');
    }

    /// Ends the line of a thought that was left within one.
    pub(super) fn end_thought(&mut self) {
        if std::mem::take(&mut self.thinking) {
            stderr().write_all(b"\n").ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn calls_are_noted_at_their_beginning_and_end() {
        let mut calls = Calls::default();
        let begun =
            json!({ "toolCallId": "1", "title": "Look\u{1b}[2J", "kind": "read", "status": "pending" });
        assert_eq!(calls.note(&begun).as_deref(), Some("· Look\\u{1b}[2J (read): pending"));
        assert_eq!(calls.note(&json!({ "toolCallId": "1", "status": "in_progress" })), None);
        let ended = json!({ "toolCallId": "1", "status": "failed" });
        assert_eq!(calls.note(&ended).as_deref(), Some("✗ Look\\u{1b}[2J (read): failed"));
        assert!(calls.open.is_empty());
    }

    #[test]
    fn a_question_knows_what_was_told_before() {
        let mut calls = Calls::default();
        calls.note(&json!({ "toolCallId": "1", "title": "Write", "rawInput": { "path": "/x" } }));
        let call = calls.learn(&json!({ "toolCallId": "1" }));
        assert_eq!((call.title(), call.kind(), call.input()), ("Write", "other", r#"{"path":"/x"}"#));
    }
}
