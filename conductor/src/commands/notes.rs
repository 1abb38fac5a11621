//! What happens beside the answer, for people, on stderr: tool calls,
//! thoughts, questions. Everything here comes from an agent that may mean
//! harm, and is escaped.

use std::io::{Write as _, stderr};

use super::{
    terminal::{Style, clean},
    tool::Note,
};

/// Writes notes to stderr.
#[derive(Debug)]
pub(super) struct Notes {
    style: Style,
    /// Whether only questions are shown, because a machine is told the rest.
    quiet: bool,
    /// Whether the last thought was left within a line.
    thinking: bool,
}

impl Notes {
    pub(super) fn new(quiet: bool) -> Self {
        Self { style: Style::of(&stderr()), quiet, thinking: false }
    }

    /// How stderr can be decorated.
    pub(super) fn style(&self) -> Style {
        self.style
    }

    /// Writes a dimmed line.
    pub(super) fn note(&mut self, text: &str) {
        if self.quiet {
            return;
        }
        let text = self.style.dim(text).into_owned();
        self.print(&format!("{text}\n"));
    }

    /// Writes a notice; one that people should not miss stands out.
    pub(super) fn notice(&mut self, title: &str, more: &str, is_grave: bool) {
        let colon = if title.is_empty() || more.is_empty() { "" } else { ": " };
        let head = format!("! {title}{colon}");
        if is_grave && !self.quiet {
            let line = format!("{}{}\n", self.style.paint("33", &head), self.style.dim(more));
            self.print(&line);
        } else {
            self.note(&(head + more));
        }
    }

    /// Writes about a tool call.
    pub(super) fn tool(&mut self, note: &Note) {
        let (mark, colour) = note.mark;
        let line = format!("{} {}\n", self.style.paint(colour, mark), self.style.dim(&note.text));
        self.print(&line);
        self.detail(&note.details);
    }

    /// Writes what only people at a terminal want to see.
    pub(super) fn detail(&mut self, text: &str) {
        if self.style.is_terminal && !text.is_empty() {
            self.print(text);
        }
    }

    /// Writes escaped text as it is.
    pub(super) fn print(&mut self, text: &str) {
        self.end_thought();
        // Nobody reading it is no reason to give up the answer.
        stderr().write_all(text.as_bytes()).ok();
    }

    /// Writes a piece of a thought, if it can be told from the answer.
    pub(super) fn think(&mut self, text: &str) {
        if self.quiet || !self.style.can_dim() || text.is_empty() {
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
