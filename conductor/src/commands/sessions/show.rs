//! `conductor sessions show`: what a session did, for people to read. Nearly
//! all of it was written by agents, so its control characters never act.

use std::{io::stdout, time::Duration};

use serde_json::Value;

use super::dossier::{Dossier, Event};
use crate::{
    clock,
    commands::{
        markdown::Markdown,
        terminal::{Style, clean},
        tool,
        turn_usage::took,
    },
    frame::escape,
    ledger::history::{Command, Decision, FileAccess, Message, Session, ToolCall, Turn},
};

/// How much of one value is shown.
const SHOWN: usize = 300;

/// The transcript, for stdout.
pub(super) fn transcript(dossier: &Dossier) -> String {
    Transcript { style: Style::of(&stdout()), out: String::new() }.write(dossier)
}

struct Transcript {
    style: Style,
    out: String,
}

impl Transcript {
    fn write(mut self, dossier: &Dossier) -> String {
        self.session(&dossier.session);
        for event in dossier.events() {
            match event {
                Event::Prompt(turn) => self.prompt(turn),
                Event::Message(message) => self.message(message),
                Event::ToolCall(call) => self.tool_call(call, dossier),
                Event::Decision(decision) => self.decision(decision),
                Event::Command(command) => self.command(command),
                Event::FileAccess(access) => self.file_access(access),
                Event::Ended(turn) => self.ended(turn, dossier),
            }
        }
        let spent = dossier.spent_in_all().parts();
        if dossier.turns.len() > 1 && !spent.is_empty() {
            self.line(&self.style.dim(&format!("in all: {}", spent.join(" · "))));
        }
        self.out
    }

    fn line(&mut self, line: &str) {
        self.out.push_str(line);
        self.out.push('\n');
    }

    /// An empty line, but never two.
    fn gap(&mut self) {
        if !self.out.is_empty() && !self.out.ends_with("\n\n") {
            self.out.push('\n');
        }
    }

    fn session(&mut self, session: &Session) {
        let title = session.title.as_deref().or(session.first_prompt.as_deref());
        let title = title.unwrap_or("a session without a title");
        self.line(&self.style.bold(&one_line(title)));
        let facts = facts(session);
        for (name, value) in facts {
            self.line(&format!("{}  {value}", self.style.dim(&format!("{name:10}"))));
        }
    }

    fn prompt(&mut self, turn: &Turn) {
        self.gap();
        let at = turn.began_us.map(clock::rfc3339_us).unwrap_or_default();
        self.line(&self.style.dim(&format!("── {at} ──")));
        for line in clean(turn.prompt.as_deref().unwrap_or_default()).lines() {
            self.line(&format!("{} {}", self.style.paint("36", ">"), self.style.bold(line)));
        }
        self.gap();
    }

    fn message(&mut self, message: &Message) {
        let text = clean(message.text.as_deref().unwrap_or_default()).into_owned();
        if text.trim().is_empty() {
            return;
        }
        self.gap();
        match message.role.as_deref() {
            Some("thought") => {
                for line in text.trim_end().lines() {
                    self.line(&self.style.dim(&format!("· {line}")));
                }
            }
            Some("user") => {
                for line in text.trim_end().lines() {
                    self.line(&format!("{} {line}", self.style.paint("36", ">")));
                }
            }
            _ if self.style.can_dim() => {
                let mut markdown = Markdown::default();
                let shown = markdown.add(&text) + &markdown.end();
                self.line(shown.trim_end_matches('\n'));
            }
            _ => self.line(text.trim_end()),
        }
        if message.truncated == Some(true) {
            self.line(&self.style.dim("… (cut; the frames have the rest)"));
        }
        self.gap();
    }

    fn tool_call(&mut self, call: &ToolCall, dossier: &Dossier) {
        let (mark, colour) = match call.status.as_deref() {
            Some("completed") => ("✓", "32"),
            Some("failed") => ("✗", "31"),
            _ => ("·", "2"),
        };
        let line = format!("{} {}", self.style.paint(colour, mark), tool_line(call));
        self.line(&line);
        for command in dossier.commands_of(call.call) {
            self.line(&format!("    {}", command_line(command)));
        }
        let output: Value =
            call.output.as_deref().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
        let diffs = dossier.diffs.get(&call.call).map(Vec::as_slice).unwrap_or_default();
        self.out.push_str(&tool::outcome(diffs, &output, self.style));
    }

    fn decision(&mut self, decision: &Decision) {
        let colour = if decision.decision.as_deref() == Some("allow") { "32" } else { "33" };
        let line = format!("{} {}", self.style.paint(colour, "?"), decision_line(decision));
        self.line(&line);
    }

    fn command(&mut self, command: &Command) {
        self.line(&format!("· {}", command_line(command)));
    }

    fn file_access(&mut self, access: &FileAccess) {
        let line = format!("· {}", file_line(access));
        self.line(&self.style.dim(&line));
    }

    fn ended(&mut self, turn: &Turn, dossier: &Dossier) {
        self.gap();
        self.line(&self.style.dim(&format!("── {} ──", end_line(turn, dossier))));
    }
}

/// Text of somebody else's on one line.
pub(super) fn one_line(text: &str) -> String {
    escape(text.trim().as_bytes(), SHOWN)
}

fn lasted(duration_us: Option<i64>) -> Option<String> {
    let time = Duration::from_micros(u64::try_from(duration_us?).ok()?);
    Some(took(time))
}

/// What is known of a session: names and values.
pub(super) fn facts(session: &Session) -> Vec<(&'static str, String)> {
    let mut facts = vec![("session", session.session_id.clone())];
    let mut add = |name, value: &Option<String>| {
        if let Some(value) = value.as_deref().filter(|value| !value.is_empty()) {
            facts.push((name, one_line(value)));
        }
    };
    add("user", &session.user_name);
    add("team", &session.team);
    add("agent", &session.agent);
    add("model", &session.model);
    add("mode", &session.mode);
    add("directory", &session.cwd);
    add("repository", &session.repository);
    add("sandbox", &session.sandbox);
    add("opened", &session.opened_us.map(clock::rfc3339_us));
    if session.is_open {
        facts.push(("state", "open".to_owned()));
    } else {
        let at = session.ended_us.map(clock::rfc3339_us).unwrap_or_default();
        let why = session.end_reason.as_deref().map(|why| format!(", {}", one_line(why)));
        facts.push(("ended", format!("{at}{}", why.unwrap_or_default())));
    }
    let count = |number: i64, what: &str| format!("{number} {what}{}", if number == 1 { "" } else { "s" });
    let holds = [(session.turns, "turn"), (session.tool_calls, "tool call"), (session.frames, "frame")];
    facts.push(("holds", holds.map(|(number, what)| count(number, what)).join(", ")));
    facts
}

/// A tool call on one line: what it is called, how it ended.
pub(super) fn tool_line(call: &ToolCall) -> String {
    let name = one_line(call.name.as_deref().unwrap_or("unknown"));
    let title = call.title.as_deref().filter(|title| !title.trim().is_empty());
    let title = title.map(|title| format!(": {}", one_line(title))).unwrap_or_default();
    let kind = call.kind.as_deref().map(|kind| format!(" ({})", one_line(kind))).unwrap_or_default();
    let status = one_line(&call.status.as_deref().unwrap_or("pending").replace('_', " "));
    let time = lasted(call.duration_us).map(|time| format!(" in {time}")).unwrap_or_default();
    format!("{name}{kind}{title}, {status}{time}")
}

/// A command on one line: what it was, how it ended.
pub(super) fn command_line(command: &Command) -> String {
    let line = one_line(command.line.as_deref().unwrap_or_default());
    let end = match (command.exit_code, &command.exit_signal, &command.error) {
        (_, _, Some(error)) => format!(" (not run: {})", one_line(error)),
        (Some(code), ..) => format!(" (exit {code})"),
        (None, Some(signal), _) => format!(" (ended by {})", one_line(signal)),
        (None, None, None) => String::new(),
    };
    let time = lasted(command.duration_us).map(|time| format!(" in {time}")).unwrap_or_default();
    format!("$ {line}{end}{time}")
}

/// A permission on one line: what was asked, what was answered, by whom.
pub(super) fn decision_line(decision: &Decision) -> String {
    let what = decision.title.as_deref().or(decision.tool.as_deref()).unwrap_or("something");
    let answer = one_line(decision.decision.as_deref().unwrap_or("not answered"));
    let kind = decision.option_kind.as_deref().map(|kind| format!(" ({})", one_line(kind)));
    let by = decision.decided_user.as_deref().or(decision.decided_by.as_deref());
    let by = by.map(|by| format!(" by {}", one_line(by)));
    let rule = decision.rule.as_deref().map(|rule| format!(", rule {}", one_line(rule)));
    let why = decision.reason.as_deref().map(|why| format!(": {}", one_line(why)));
    let after = lasted(decision.duration_us).map(|time| format!(" after {time}"));
    let rest: String = [kind, by, rule, why, after].into_iter().flatten().collect();
    format!("permission for {}: {answer}{rest}", one_line(what))
}

/// A file that was asked for, on one line.
pub(super) fn file_line(access: &FileAccess) -> String {
    let path = one_line(access.path.as_deref().unwrap_or_default());
    let refused = access.error.as_deref().map(|error| format!(" (refused: {})", one_line(error)));
    format!("{} {path}{}", one_line(access.access.as_deref().unwrap_or("touch")), refused.unwrap_or_default())
}

/// How a turn ended, on one line.
pub(super) fn end_line(turn: &Turn, dossier: &Dossier) -> String {
    let end = match (&turn.error, &turn.stop_reason) {
        (Some(error), _) => format!("failed: {}", one_line(error)),
        (None, Some(reason)) => one_line(&reason.replace('_', " ")),
        (None, None) => "ended".to_owned(),
    };
    let parts = [Some(end), lasted(turn.duration_us)].into_iter().flatten();
    parts.chain(dossier.spent(turn.turn).parts()).collect::<Vec<_>>().join(" · ")
}
