//! The agent's plan as a check-list.

use serde_json::Value;

use super::terminal::Style;
use crate::frame::escape;

/// How much of an entry is shown.
const SHOWN_ENTRY: usize = 300;

/// How many entries are shown.
const MOST_ENTRIES: usize = 50;

/// The plan as it was last told.
#[derive(Debug, Default)]
pub(super) struct Plan {
    entries: Vec<Entry>,
}

#[derive(Debug, PartialEq, Eq)]
struct Entry {
    text: String,
    status: Status,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Status {
    Pending,
    InProgress,
    Completed,
}

impl Plan {
    /// Takes the plan that replaces the last one; gives what is new in it:
    /// all of it, or the entries whose status has changed.
    pub(super) fn update(&mut self, told: &Value, style: Style) -> String {
        let told = told["entries"].as_array().map(Vec::as_slice).unwrap_or_default();
        let entry = |entry: &Value| Entry {
            text: escape(entry["content"].as_str().unwrap_or_default().as_bytes(), SHOWN_ENTRY),
            status: match entry["status"].as_str() {
                Some("completed") => Status::Completed,
                Some("in_progress") => Status::InProgress,
                _ => Status::Pending,
            },
        };
        let entries: Vec<Entry> = told.iter().take(MOST_ENTRIES).map(entry).collect();
        let texts = |entries: &[Entry]| entries.iter().map(|entry| entry.text.clone()).collect::<Vec<_>>();
        let same = texts(&entries) == texts(&self.entries);
        let mut out = String::new();
        if !same && !entries.is_empty() {
            out.push_str(&format!("{}\n", style.bold("Plan")));
        }
        for (position, entry) in entries.iter().enumerate() {
            if !same || self.entries.get(position) != Some(entry) {
                out.push_str(&line(entry, style));
            }
        }
        if !same && told.len() > MOST_ENTRIES {
            let more = format!("  … ({} entries more)", told.len() - MOST_ENTRIES);
            out.push_str(&format!("{}\n", style.dim(&more)));
        }
        self.entries = entries;
        out
    }
}

fn line(entry: &Entry, style: Style) -> String {
    let text = &entry.text;
    match entry.status {
        Status::Pending => format!("  [ ] {text}\n"),
        Status::InProgress => format!("  {} {text}\n", style.paint("33", "[>]")),
        Status::Completed => format!("  {} {}\n", style.paint("32", "[x]"), style.dim(text)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_plan_is_shown_whole_once_and_then_where_it_changed() {
        let mut plan = Plan::default();
        let told = |one: &str, two: &str| {
            json!({ "entries": [
                { "content": "Look\u{1b}[2J", "status": one },
                { "content": "Leap\nfar", "status": two },
            ] })
        };
        let first = plan.update(&told("pending", "pending"), Style::default());
        assert_eq!(first, "Plan\n  [ ] Look\\u{1b}[2J\n  [ ] Leap\\nfar\n");
        let next = plan.update(&told("in_progress", "pending"), Style::default());
        assert_eq!(next, "  [>] Look\\u{1b}[2J\n");
        let next = plan.update(&told("completed", "in_progress"), Style::default());
        assert_eq!(next, "  [x] Look\\u{1b}[2J\n  [>] Leap\\nfar\n");
        assert_eq!(plan.update(&told("completed", "in_progress"), Style::default()), "");
        let other = plan.update(&json!({ "entries": [{ "content": "New" }] }), Style::default());
        assert_eq!(other, "Plan\n  [ ] New\n");
        assert_eq!(plan.update(&json!({ "entries": [] }), Style::default()), "");
    }
}
