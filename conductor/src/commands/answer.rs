//! The agent's answer on stdout: its text, all of it, and nothing else. On a
//! terminal with colours it is rendered; anywhere else it stays as it is.

use std::io;

use serde_json::Value;
use tokio::io::{AsyncWriteExt as _, Stdout};

use super::{
    markdown::Markdown,
    terminal::{Style, clean},
};

/// Text is written at the latest when so much of it waits.
const ENOUGH: usize = 64 << 10;

/// Collects the text and writes it.
#[derive(Debug)]
pub(super) struct Answer {
    out: Stdout,
    text: Text,
}

impl Answer {
    pub(super) fn new() -> Self {
        let markdown = Style::of(&std::io::stdout()).can_dim().then(Markdown::default);
        Self { out: tokio::io::stdout(), text: Text { markdown, ..Text::default() } }
    }

    /// Takes a line for a machine, instead of text for people.
    pub(super) fn line(&mut self, line: &str) {
        self.text.waiting.push_str(line);
        self.text.waiting.push('\n');
    }

    /// Takes a piece of the answer.
    pub(super) fn add(&mut self, text: &str, message: Option<&Value>) {
        self.text.add(text, message);
    }

    /// What comes next is said in a new breath.
    pub(super) fn pause(&mut self) {
        self.text.paused = true;
    }

    /// Whether text should be written before more is taken.
    pub(super) fn is_full(&self) -> bool {
        self.text.waiting.len() >= ENOUGH
    }

    /// Shows also what waits to be understood.
    pub(super) fn settle(&mut self) {
        if let Some(markdown) = &mut self.text.markdown {
            self.text.waiting.push_str(&markdown.settle());
        }
    }

    /// Somebody else is about to write to the same screen: whether the cursor
    /// stands within a line of the answer, which they then have to end.
    pub(super) fn leave_line(&mut self) -> bool {
        std::mem::take(&mut self.text.cursor_within_line)
    }

    /// Writes what waits.
    pub(super) async fn write(&mut self) -> io::Result<()> {
        if self.text.waiting.is_empty() {
            return Ok(());
        }
        let text = std::mem::take(&mut self.text.waiting);
        self.out.write_all(text.as_bytes()).await?;
        self.out.flush().await
    }

    /// Writes the rest; the last line is ended if the agent did not do so.
    pub(super) async fn end(&mut self) -> io::Result<()> {
        self.text.end_line();
        self.write().await
    }
}

/// The text, without the stream it goes to.
#[derive(Debug, Default)]
struct Text {
    waiting: String,
    markdown: Option<Markdown>,
    /// Whether the text itself has an unfinished line.
    is_within_line: bool,
    /// Whether a screen has one, where others write, too.
    cursor_within_line: bool,
    paused: bool,
    message: Option<Value>,
}

impl Text {
    /// Two messages never share a line: their texts were not written to be
    /// read as one.
    fn add(&mut self, text: &str, message: Option<&Value>) {
        let other = message.is_some() && self.message.is_some() && message != self.message.as_ref();
        if other || std::mem::take(&mut self.paused) {
            self.end_line();
        }
        if let Some(message) = message {
            self.message = Some(message.clone());
        }
        // Clean first: what the renderer adds are the only escapes.
        let text = clean(text);
        match &mut self.markdown {
            Some(markdown) => self.waiting.push_str(&markdown.add(&text)),
            None => self.waiting.push_str(&text),
        }
        if let Some(last) = text.chars().last() {
            self.is_within_line = last != '\n';
            self.cursor_within_line = self.is_within_line;
        }
    }

    fn end_line(&mut self) {
        if let Some(markdown) = &mut self.markdown {
            self.waiting.push_str(&markdown.end());
        }
        if std::mem::take(&mut self.is_within_line) {
            self.waiting.push('\n');
            self.cursor_within_line = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_one_message_join_and_messages_do_not() {
        let (one, two) = (Value::from("1"), Value::from("2"));
        let mut text = Text::default();
        text.add("a", Some(&one));
        text.add("b", Some(&one));
        text.add("c", None);
        text.add("d\n", Some(&two));
        text.add("e", Some(&one));
        text.end_line();
        text.end_line();
        assert_eq!(text.waiting, "abc\nd\ne\n");
    }

    #[test]
    fn rendered_text_is_cleaned_first() {
        let mut text = Text { markdown: Some(Markdown::default()), ..Text::default() };
        text.add(
            "**a\u{1b}[2J** [l\u{1b}](u\u{7}) `\u{9b}`\n```\u{1b}\n\u{1b}]0;x\u{7}\n```\n# \u{1b}c\n",
            None,
        );
        text.end_line();
        let own = ["\x1b[0m", "\x1b[1m", "\x1b[1;4m", "\x1b[2m", "\x1b[4m", "\x1b[36m"];
        let bare = own.iter().fold(text.waiting, |text, escape| text.replace(escape, ""));
        assert!(!bare.contains(|c: char| c.is_control() && c != '\n'), "{bare:?}");
        assert!(bare.starts_with("a\\u{1b}[2J l\\u{1b} (u\\u{7}) \\u{9b}\n"), "{bare}");
    }

    #[test]
    fn a_pause_ends_the_line_only_if_more_comes() {
        let mut text = Text { paused: true, ..Text::default() };
        text.add("I look.", None);
        text.paused = true;
        text.add("Done.", None);
        text.paused = true;
        assert_eq!(text.waiting, "I look.\nDone.");
    }
}
