//! Markdown for a terminal, while it streams.
//!
//! Not the whole language, but what agents write: headings, bold, italics,
//! code, fenced blocks, lists, quotes, links and rules. What is not understood
//! is shown as it came. A line's kind is settled by its first characters and
//! its text is then shown as it comes, except where a marker waits for its
//! counterpart: nothing that was shown has to be taken back, and no character
//! is lost for want of one.
//!
//! The text must be clean already: what is added here are the only escapes.

mod inline;

use self::inline::{Painter, inline};

/// A line that hides its kind, or a marker that waits for its counterpart, for
/// longer than this is shown as it is.
const LONGEST_WAIT: usize = 4096;

/// The renderer of one stream.
#[derive(Debug, Default)]
pub(super) struct Markdown {
    /// What came of the current line and is not yet shown.
    pending: String,
    /// Whether the beginning of the current line is shown.
    is_within_line: bool,
    /// The character before what is pending.
    before: Option<char>,
    /// The marker that ends the current code block.
    fence: Option<String>,
}

impl Markdown {
    /// Takes a piece of the text; gives what can be shown of it.
    pub(super) fn add(&mut self, text: &str) -> String {
        let mut out = String::with_capacity(text.len() + 16);
        for piece in text.split_inclusive('\n') {
            let line = piece.strip_suffix('\n');
            let mut rest = line.unwrap_or(piece);
            // In parts, so that no line costs more than its length.
            while !rest.is_empty() {
                let (part, more) = rest.split_at(rest.floor_char_boundary(LONGEST_WAIT));
                self.pending.push_str(part);
                rest = more;
                let waits_too_long = self.pending.len() > LONGEST_WAIT;
                self.show(waits_too_long, &mut out);
            }
            if line.is_some() {
                self.show(true, &mut out);
                out.push('\n');
                self.is_within_line = false;
                self.before = None;
            }
        }
        out
    }

    /// Gives what is pending, without waiting any longer; the line may go on.
    pub(super) fn settle(&mut self) -> String {
        let mut out = String::new();
        if !self.pending.is_empty() {
            self.show(true, &mut out);
        }
        out
    }

    /// The text has ended; another one may follow, which is on its own.
    pub(super) fn end(&mut self) -> String {
        let out = self.settle();
        *self = Self::default();
        out
    }

    /// Shows what can be shown; everything if no more is waited for.
    fn show(&mut self, complete: bool, out: &mut String) {
        if !self.is_within_line && !self.begin(complete, out) {
            return;
        }
        self.is_within_line = true;
        let mut painter = Painter::new(out);
        let shown = if self.fence.is_some() {
            painter.paint(CODE, |out| out.text(&self.pending));
            self.pending.len()
        } else {
            inline(&self.pending, self.before, complete, &mut painter)
        };
        self.before = self.pending[..shown].chars().next_back().or(self.before);
        self.pending.drain(..shown);
    }

    /// Shows the beginning of the line, up to where its text begins; `false`
    /// if more of it must come first.
    fn begin(&mut self, complete: bool, out: &mut String) -> bool {
        let line = &*self.pending;
        let text = line.trim_start_matches(' ');
        let indent = line.len() - text.len();
        let mut painter = Painter::new(out);
        if let Some(fence) = &self.fence {
            // The end of a code block looks like code until it is whole.
            if !complete && text.chars().all(|c| fence.starts_with(c) || c == ' ') {
                return false;
            }
            if text.starts_with(&**fence) && text.trim_end().chars().all(|c| fence.starts_with(c)) {
                painter.paint(DIM, |out| out.text(line));
                self.fence = None;
                self.pending.clear();
            }
            return true;
        }
        let Some(first) = text.chars().next() else { return complete };
        let undecided = !complete && text.chars().all(|c| c == first || c == ' ');
        match first {
            '`' | '~' => {
                let run = text.chars().take_while(|c| *c == first).count();
                if undecided || (!complete && run >= 3) {
                    return false;
                }
                // A backtick later in the line makes it a code span.
                if run >= 3 && (first == '~' || !text[run..].contains('`')) {
                    painter.paint(DIM, |out| out.text(line));
                    self.fence = Some(text[..run].to_string());
                    self.pending.clear();
                }
            }
            '#' => {
                let level = text.chars().take_while(|c| *c == '#').count();
                if !complete && text[level..].chars().next().is_none_or(|c| c == ' ') {
                    return false;
                }
                if level <= 6 && (text.len() == level || text[level..].starts_with(' ')) {
                    let title = text[level..].trim().trim_end_matches('#').trim_end();
                    let code = if level == 1 { TITLE } else { BOLD };
                    painter.paint(code, |out| {
                        inline(title, None, true, out);
                    });
                    self.pending.clear();
                }
            }
            '-' | '*' | '+' | '_' => {
                if undecided {
                    return false;
                }
                let marks = text.chars().filter(|c| *c == first).count();
                if first != '+' && marks >= 3 && text.chars().all(|c| c == first || c == ' ') {
                    painter.paint(DIM, |out| out.text("────────"));
                    self.pending.clear();
                } else if first != '_' && text[1..].starts_with(' ') {
                    painter.text(&line[..indent]);
                    painter.text("• ");
                    self.pending.drain(..indent + 2);
                }
            }
            '>' => {
                // Whether a space follows must be known.
                if !complete && text.len() == 1 {
                    return false;
                }
                painter.paint(DIM, |out| out.text("│ "));
                let skip = indent + 1 + usize::from(text[1..].starts_with(' '));
                self.pending.drain(..skip);
            }
            '0'..='9' => {
                // `1. text` keeps its number, and is plain text otherwise.
                let digits = text.chars().take_while(char::is_ascii_digit).count();
                if matches!(&text.as_bytes()[digits..], [b'.' | b')', b' ', ..]) {
                    let marker = indent + digits + 2;
                    painter.text(&line[..marker]);
                    self.pending.drain(..marker);
                }
            }
            _ => {}
        }
        true
    }
}

/// Styles, as the numbers that select them.
const BOLD: &str = "1";
const DIM: &str = "2";
const CODE: &str = "36";
const TITLE: &str = "1;4";

#[cfg(test)]
mod tests;
