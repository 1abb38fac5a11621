//! The agent's tool calls, as they are told of piece by piece: what they are,
//! how far they are, how long they took, and what came of them. Everything
//! here comes from an agent that may mean harm, and is escaped.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use serde_json::Value;

use super::{
    diff,
    terminal::{Style, clean},
    turn_usage::took,
};
use crate::frame::escape;

/// How much of a title is shown.
const SHOWN_TITLE: usize = 200;

/// How much of a tool's input is shown to whoever has to decide about it.
const SHOWN_INPUT: usize = 4000;

/// How many tool calls are remembered. An agent with more open ones has its
/// later updates shown without their titles.
const MAX_CALLS: usize = 1000;

/// How many lines of a tool's output are shown, from its beginning and from
/// its end.
const SHOWN_LINES: usize = 10;

/// How much of one line of it is shown.
const SHOWN_LINE: usize = 400;

/// How much of a terminal's output is kept: its end.
const KEPT_OUTPUT: usize = 16 << 10;

/// How much of what came of a call is kept to be shown.
const KEPT_DETAILS: usize = 64 << 10;

/// A tool call as far as it was told.
#[derive(Debug, Clone)]
pub(super) struct Call {
    title: String,
    kind: String,
    input: String,
    status: String,
    begun: Instant,
    /// What came of it, ready to be shown.
    details: String,
    /// What its terminal wrote, as far as the agent passes it on.
    output: String,
    /// Whether the details were shown already.
    shown: bool,
}

impl Call {
    fn new() -> Self {
        Self {
            title: String::new(),
            kind: String::new(),
            input: String::new(),
            status: String::new(),
            begun: Instant::now(),
            details: String::new(),
            output: String::new(),
            shown: false,
        }
    }

    /// What it is called, on one line.
    pub(super) fn title(&self) -> &str {
        if self.title.is_empty() { "a tool call without a title" } else { &self.title }
    }

    /// What sort of thing it does.
    pub(super) fn kind(&self) -> &str {
        if self.kind.is_empty() { "other" } else { &self.kind }
    }

    /// How far it is.
    pub(super) fn status(&self) -> &str {
        if self.status.is_empty() { "pending" } else { &self.status }
    }

    /// What it would do it with, escaped; empty if it was not told.
    pub(super) fn input(&self) -> &str {
        &self.input
    }

    /// What came of it so far, or would come of it; lines to be shown as they
    /// are.
    pub(super) fn details(&self) -> &str {
        &self.details
    }

    /// How long it took, once it has ended.
    pub(super) fn took(&self) -> Option<Duration> {
        matches!(&*self.status, "completed" | "failed").then(|| self.begun.elapsed())
    }

    /// Fields that are absent keep their values.
    fn update(&mut self, told: &Value, style: Style) {
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
        // Some agents run commands themselves and pass on what they write.
        if let Some(data) = told["_meta"]["terminal_output"]["data"].as_str() {
            self.output.push_str(data);
            let surplus = self.output.len().saturating_sub(KEPT_OUTPUT);
            self.output.drain(..self.output.ceil_char_boundary(surplus));
        }
        let mut details = match told["content"].as_array() {
            Some(content) => content.iter().map(|item| detail(item, style)).collect(),
            None => self.details.clone(),
        };
        if details.is_empty() && self.took().is_some() {
            let raw = raw_output(&told["rawOutput"]);
            details = lines(if self.output.is_empty() { &raw } else { &self.output }, style);
        }
        if details.len() > KEPT_DETAILS {
            details.truncate(details.floor_char_boundary(KEPT_DETAILS));
            // The cut may lie within a style.
            details.push_str(&style.paint("0", "\n    …\n"));
        }
        if details != self.details {
            self.details = details;
            self.shown = false;
        }
    }

    /// The details, if they are new to whoever reads.
    fn take_details(&mut self) -> String {
        if std::mem::replace(&mut self.shown, true) { String::new() } else { self.details.clone() }
    }
}

/// One item of what came of a call.
fn detail(item: &Value, style: Style) -> String {
    match item["type"].as_str() {
        Some("diff") => {
            let text = |name: &str| item[name].as_str();
            diff::render(
                text("path").unwrap_or_default(),
                text("oldText"),
                text("newText").unwrap_or_default(),
                style,
            )
        }
        Some("content") => {
            let content = &item["content"];
            match (content["text"].as_str(), content["resource"]["text"].as_str()) {
                (Some(text), _) | (None, Some(text)) => lines(text, style),
                (None, None) => {
                    let kind = escape(content["type"].as_str().unwrap_or("something").as_bytes(), 40);
                    format!("{}\n", style.dim(&format!("    ({kind}, not shown)")))
                }
            }
        }
        // Its output is where it runs; agents often repeat it in the end.
        _ => String::new(),
    }
}

/// What came of a call of the past: its changes, as its content had them, and
/// its output, as the ledger has it.
pub(super) fn outcome(diffs: &[Value], output: &Value, style: Style) -> String {
    let changes: String = diffs.iter().map(|item| detail(item, style)).collect();
    let content = output.as_array().filter(|items| items.iter().any(|item| item["type"].is_string()));
    let output = match content {
        Some(items) => items.iter().filter(|i| i["type"] != "diff").map(|i| detail(i, style)).collect(),
        None => lines(&raw_output(output), style),
    };
    changes + &output
}

/// The output in what a tool gave back, where agents usually have it.
fn raw_output(raw: &Value) -> String {
    if let Some(text) = raw.as_str() {
        return text.to_string();
    }
    let parts = ["formatted_output", "output", "stdout", "stderr"].map(|name| raw[name].as_str());
    match parts {
        [Some(all), ..] | [None, Some(all), ..] => all.to_string(),
        [_, _, stdout, stderr] => [stdout.unwrap_or_default(), stderr.unwrap_or_default()].concat(),
    }
}

/// Text of a tool: its beginning and its end, indented.
fn lines(text: &str, style: Style) -> String {
    let all: Vec<&str> = text.trim_end().lines().collect();
    let mut out = String::new();
    let mut show = |line: &str| {
        let cut = line.floor_char_boundary(SHOWN_LINE);
        let more = if cut < line.len() { "…" } else { "" };
        let line = format!("    {}{more}", clean(&line[..cut]));
        out.push_str(&format!("{}\n", style.dim(&line)));
    };
    if all.len() > 2 * SHOWN_LINES + 1 {
        let hidden = all.len() - 2 * SHOWN_LINES;
        all[..SHOWN_LINES].iter().for_each(|line| show(line));
        show(&format!("… ({hidden} lines more)"));
        all[all.len() - SHOWN_LINES..].iter().for_each(|line| show(line));
    } else {
        all.iter().for_each(|line| show(line));
    }
    out
}

/// The tool calls of a turn.
#[derive(Debug, Default)]
pub(super) struct Calls {
    open: HashMap<String, Call>,
    style: Style,
}

/// What to say about a tool call.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Note {
    /// A sign for how it goes, and its colour.
    pub(super) mark: (&'static str, &'static str),
    /// A line.
    pub(super) text: String,
    /// What came of it: more lines, ready to be shown; may be empty.
    pub(super) details: String,
}

impl Calls {
    pub(super) fn new(style: Style) -> Self {
        Self { open: HashMap::new(), style }
    }

    /// The call that is being told of, brought up to date.
    pub(super) fn learn(&mut self, told: &Value) -> Call {
        let id = told["toolCallId"].as_str().unwrap_or_default();
        let mut call = self.open.get(id).cloned().unwrap_or_else(Call::new);
        call.update(told, self.style);
        self.keep(id, call.clone());
        call
    }

    /// The same, for whoever is shown its details now.
    pub(super) fn learn_and_show(&mut self, told: &Value) -> Call {
        let mut call = self.learn(told);
        call.shown = true;
        self.keep(told["toolCallId"].as_str().unwrap_or_default(), call.clone());
        call
    }

    fn keep(&mut self, id: &str, call: Call) {
        if call.took().is_some() {
            self.open.remove(id);
        } else if self.open.len() < MAX_CALLS || self.open.contains_key(id) {
            self.open.insert(id.to_string(), call);
        }
    }

    /// What to say about an update of a call, unless it says nothing new:
    /// calls are shown when they begin and when they end.
    pub(super) fn note(&mut self, told: &Value) -> Option<Note> {
        let id = told["toolCallId"].as_str().unwrap_or_default();
        let known = self.open.contains_key(id);
        let mut call = self.learn(told);
        let what = format!("{} ({})", call.title(), call.kind());
        let ended =
            call.took().filter(|_| known).map(|time| format!(" in {}", took(time))).unwrap_or_default();
        let (mark, text) = match call.status() {
            "completed" => (("✓", "32"), format!("{what}: completed{ended}")),
            "failed" => (("✗", "31"), format!("{what}: failed{ended}")),
            _ if known => return None,
            status => (("·", "2"), format!("{what}: {}", status.replace('_', " "))),
        };
        let details = if call.took().is_some() { call.take_details() } else { String::new() };
        Some(Note { mark, text, details })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn calls_are_noted_at_their_beginning_and_end() {
        let mut calls = Calls::default();
        let begun =
            json!({ "toolCallId": "1", "title": "Look\u{1b}[2J", "kind": "read", "status": "pending" });
        assert_eq!(calls.note(&begun).unwrap().text, "Look\\u{1b}[2J (read): pending");
        assert_eq!(calls.note(&json!({ "toolCallId": "1", "status": "in_progress" })), None);
        let ended = calls.note(&json!({ "toolCallId": "1", "status": "failed" })).unwrap();
        assert_eq!(ended.mark.0, "✗");
        assert!(ended.text.starts_with("Look\\u{1b}[2J (read): failed in "), "{}", ended.text);
        assert!(calls.open.is_empty());
        // Nobody knows when this one began.
        let alone = calls.note(&json!({ "toolCallId": "2", "status": "completed" })).unwrap();
        assert_eq!(alone.text, "a tool call without a title (other): completed");
    }

    #[test]
    fn a_question_knows_what_was_told_before() {
        let mut calls = Calls::default();
        calls.note(&json!({ "toolCallId": "1", "title": "Write", "rawInput": { "path": "/x" } }));
        let call = calls.learn(&json!({ "toolCallId": "1" }));
        assert_eq!((call.title(), call.kind(), call.input()), ("Write", "other", r#"{"path":"/x"}"#));
    }

    #[test]
    fn a_diff_is_shown_once_with_the_question_or_at_the_end() {
        let diff = json!([{ "type": "diff", "path": "/x", "oldText": "a", "newText": "b" }]);
        let end = |calls: &mut Calls| {
            calls.note(&json!({ "toolCallId": "1", "status": "completed" })).unwrap().details
        };
        let mut calls = Calls::default();
        calls.note(&json!({ "toolCallId": "1", "title": "Write", "content": diff }));
        assert!(end(&mut calls).contains("    -a\n    +b\n"));
        calls.note(&json!({ "toolCallId": "1", "title": "Write", "content": diff }));
        assert!(calls.learn_and_show(&json!({ "toolCallId": "1" })).details().contains("+b"));
        assert_eq!(end(&mut calls), "");
    }

    #[test]
    fn output_is_found_where_agents_have_it_and_cut() {
        let ended = |told: Value| {
            let mut calls = Calls::default();
            calls.note(
                &json!({ "toolCallId": "1", "_meta": { "terminal_output": { "data": told["live"] } } }),
            );
            let told = json!({ "toolCallId": "1", "status": "completed", "rawOutput": told["raw"], "content": told["content"] });
            calls.note(&told).unwrap().details
        };
        assert_eq!(ended(json!({ "raw": { "output": "a\u{1b}[2J\nb\n" } })), "    a\\u{1b}[2J\n    b\n");
        assert_eq!(ended(json!({ "raw": { "stdout": "a\n", "stderr": "b" } })), "    a\n    b\n");
        assert_eq!(ended(json!({ "live": "tick", "raw": "other" })), "    tick\n");
        let text = |text: &str| json!([{ "type": "content", "content": { "type": "text", "text": text } }]);
        assert_eq!(ended(json!({ "content": text("x"), "raw": "other" })), "    x\n");
        let many: String = (1..=100).map(|n| format!("{n}\n")).collect();
        let shown = ended(json!({ "raw": many }));
        assert!(shown.contains("    10\n    … (80 lines more)\n    91\n"), "{shown}");
    }
}
