//! `conductor sessions export --format markdown`: what a session did, as a
//! document.

use serde_json::Value;

use super::{
    dossier::{Dossier, Event},
    show::{command_line, decision_line, end_line, facts, file_line, one_line, tool_line},
};
use crate::{
    clock,
    commands::{
        terminal::{Style, clean},
        tool,
    },
    ledger::history::{Message, ToolCall, Turn},
};

/// The document.
pub(super) fn of(dossier: &Dossier) -> String {
    let mut out = String::new();
    let session = &dossier.session;
    let title = session.title.as_deref().or(session.first_prompt.as_deref());
    let title = title.unwrap_or("A session without a title");
    block(&mut out, &format!("# {}", plain(&one_line(title))));
    let mut table = "| | |\n|---|---|".to_owned();
    for (name, value) in facts(session) {
        table.push_str(&format!("\n| {name} | {} |", code(&value).replace('|', "\\|")));
    }
    block(&mut out, &table);
    for event in dossier.events() {
        let text = match event {
            Event::Prompt(turn) => prompt(turn),
            Event::Message(message) => self::message(message),
            Event::ToolCall(call) => tool_call(call, dossier),
            Event::Decision(decision) => format!("- {}", code(&decision_line(decision))),
            Event::Command(command) => format!("- {}", code(&command_line(command))),
            Event::FileAccess(access) => format!("- {}", code(&file_line(access))),
            Event::Ended(turn) => format!("*{}*", plain(&end_line(turn, dossier))),
        };
        block(&mut out, &text);
    }
    let spent = dossier.spent_in_all().parts();
    if !spent.is_empty() {
        block(&mut out, &format!("*In all: {}*", plain(&spent.join(" · "))));
    }
    out
}

fn block(out: &mut String, text: &str) {
    if !text.trim().is_empty() {
        if !out.is_empty() {
            out.push('\n');
        }
        out.push_str(text.trim_end());
        out.push('\n');
    }
}

fn prompt(turn: &Turn) -> String {
    let at = turn.began_us.map(clock::rfc3339_us).unwrap_or_default();
    format!("## {at}\n\n{}", quoted(turn.prompt.as_deref().unwrap_or_default()))
}

fn message(message: &Message) -> String {
    let text = message.text.as_deref().unwrap_or_default();
    match message.role.as_deref() {
        Some("thought") => format!("<details><summary>thought</summary>\n\n{}\n\n</details>", quoted(text)),
        Some("user") => quoted(text),
        // The agent's own Markdown.
        _ => clean(text).into_owned(),
    }
}

fn tool_call(call: &ToolCall, dossier: &Dossier) -> String {
    let mark = match call.status.as_deref() {
        Some("completed") => "✓",
        Some("failed") => "✗",
        _ => "·",
    };
    let mut text = format!("{mark} {}", code(&tool_line(call)));
    for command in dossier.commands_of(call.call) {
        text.push_str(&format!("\n\n{}", fenced("sh", &command_line(command))));
    }
    let output: Value =
        call.output.as_deref().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
    let style = Style::default();
    let diffs = dossier.diffs.get(&call.call).map(Vec::as_slice).unwrap_or_default();
    for (language, shown) in
        [("diff", tool::outcome(diffs, &Value::Null, style)), ("", tool::outcome(&[], &output, style))]
    {
        if !shown.trim().is_empty() {
            let lines: Vec<_> = shown.lines().map(|line| line.strip_prefix("    ").unwrap_or(line)).collect();
            text.push_str(&format!("\n\n{}", fenced(language, &lines.join("\n"))));
        }
    }
    text
}

fn quoted(text: &str) -> String {
    clean(text).lines().map(|line| format!("> {line}").trim_end().to_owned()).collect::<Vec<_>>().join("\n")
}

/// The longest run of backticks in a text.
fn backticks(text: &str) -> usize {
    text.split(|c| c != '`').map(str::len).max().unwrap_or(0)
}

/// A code block that its text cannot end.
fn fenced(language: &str, text: &str) -> String {
    let fence = "`".repeat(backticks(text).max(2) + 1);
    format!("{fence}{language}\n{text}\n{fence}")
}

/// A code span that its text cannot end.
fn code(text: &str) -> String {
    match backticks(text) {
        0 => format!("`{text}`"),
        run => format!("{0} {text} {0}", "`".repeat(run + 1)),
    }
}

/// Text without any meaning in Markdown.
fn plain(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if matches!(c, '\\' | '`' | '*' | '_' | '[' | ']' | '<' | '>' | '#' | '|') {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_breaks_out_of_a_block() {
        assert_eq!(fenced("", "a\n````\nb"), "`````\na\n````\nb\n`````");
        assert_eq!(code("a `b`"), "`` a `b` ``");
        assert_eq!(plain("<b>*x*"), "\\<b\\>\\*x\\*");
        assert_eq!(quoted("a\n\nb\u{1b}"), "> a\n>\n> b\\u{1b}");
    }
}
