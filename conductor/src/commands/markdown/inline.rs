//! The text within a line: bold, italics, code spans, links.

/// Writes text with styles that nest: leaving one restores those around it.
#[derive(Debug)]
pub(super) struct Painter<'a> {
    out: &'a mut String,
    codes: Vec<&'static str>,
}

impl<'a> Painter<'a> {
    pub(super) fn new(out: &'a mut String) -> Self {
        Self { out, codes: Vec::new() }
    }

    pub(super) fn text(&mut self, text: &str) {
        self.out.push_str(text);
    }

    /// Writes something in a style; nothing at all if there is nothing in it.
    pub(super) fn paint(&mut self, code: &'static str, content: impl FnOnce(&mut Self)) {
        let start = self.out.len();
        self.select(code);
        let empty = self.out.len();
        self.codes.push(code);
        content(self);
        self.codes.pop();
        if self.out.len() == empty {
            return self.out.truncate(start);
        }
        self.out.push_str("\x1b[0m");
        for code in self.codes.clone() {
            self.select(code);
        }
    }

    fn select(&mut self, code: &str) {
        self.out.push_str("\x1b[");
        self.out.push_str(code);
        self.out.push('m');
    }
}

/// Characters that may mean something.
const SPECIAL: [char; 5] = ['\\', '`', '*', '_', '['];

/// Shows text; gives how many bytes of it. It stops early only if it is not
/// complete and what comes may decide about what is there.
pub(super) fn inline(text: &str, before: Option<char>, complete: bool, out: &mut Painter<'_>) -> usize {
    let mut at = 0;
    // Markers that have no counterpart in the rest of the text: looking for it
    // once is enough.
    let mut alone = Vec::new();
    while at < text.len() {
        let rest = &text[at..];
        let before = text[..at].chars().next_back().or(before);
        let special = match rest.find(SPECIAL) {
            Some(0) => special(rest, before, complete, &mut alone, out),
            Some(plain) => {
                out.text(&rest[..plain]);
                Some(plain)
            }
            None => {
                out.text(rest);
                Some(rest.len())
            }
        };
        match special {
            Some(taken) => at += taken,
            None => return at,
        }
    }
    at
}

/// Shows what begins with a special character; gives how many bytes of it, or
/// `None` if more must come first.
fn special(
    text: &str,
    before: Option<char>,
    complete: bool,
    alone: &mut Vec<(char, usize)>,
    out: &mut Painter<'_>,
) -> Option<usize> {
    let mut chars = text.chars();
    let first = chars.next()?;
    // A run at the end may grow, and a marker is known by what follows it.
    let run = match first {
        '\\' | '[' => 1,
        _ => text.len() - text.trim_start_matches(first).len(),
    };
    if run == text.len() && !complete {
        return None;
    }
    if alone.contains(&(first, run)) {
        out.text(&text[..run]);
        return Some(run);
    }
    let found = match first {
        '\\' => {
            let escaped = chars.next().filter(char::is_ascii_punctuation);
            if escaped.is_some() {
                out.text(&text[1..2]);
            }
            return Some(match escaped {
                Some(_) => 2,
                None => {
                    out.text("\\");
                    1
                }
            });
        }
        '`' => code(text, run, complete).map(|(inside, end)| {
            out.paint("36", |out| out.text(inside));
            end
        }),
        '[' => match link(text) {
            Link::Whole { label, target, end } => {
                out.paint("4", |out| {
                    inline(label, None, true, out);
                });
                if target != label {
                    out.paint("2", |out| out.text(&format!(" ({target})")));
                }
                return Some(end);
            }
            Link::None => {
                out.text("[");
                return Some(1);
            }
            Link::Unfinished => None,
        },
        mark => {
            let length = run.min(2);
            let opens = !text[run..].starts_with(char::is_whitespace)
                && run <= 3
                && run < text.len()
                && (mark == '*' || !before.is_some_and(char::is_alphanumeric));
            if !opens {
                out.text(&text[..run]);
                return Some(run);
            }
            emphasis(&text[length..], mark, length, complete).map(|end| {
                out.paint(if length == 2 { "1" } else { "3" }, |out| {
                    inline(&text[length..length + end], Some(mark), true, out);
                });
                2 * length + end
            })
        }
    };
    match found {
        Some(taken) => Some(taken),
        None if complete => {
            alone.push((first, run));
            out.text(&text[..run]);
            Some(run)
        }
        None => None,
    }
}

/// The inside of a code span, and where the whole ends. What may still grow is
/// no end.
fn code(text: &str, run: usize, complete: bool) -> Option<(&str, usize)> {
    let mut at = run;
    while let Some(next) = text[at..].find('`') {
        at += next;
        let closing = text[at..].len() - text[at..].trim_start_matches('`').len();
        if closing == run && (complete || at + closing < text.len()) {
            let inside = &text[run..at];
            let spaced = inside.strip_prefix(' ').and_then(|inside| inside.strip_suffix(' '));
            return Some((spaced.filter(|s| !s.trim().is_empty()).unwrap_or(inside), at + closing));
        }
        at += closing;
    }
    None
}

/// Where the inside of an emphasis ends, whose opening marker came before.
fn emphasis(text: &str, mark: char, length: usize, complete: bool) -> Option<usize> {
    let mut at = 0;
    while let Some(next) = text[at..].find(['\\', '`', mark]) {
        at += next;
        let rest = &text[at..];
        let run = rest.len() - rest.trim_start_matches(|c| rest.starts_with(c)).len();
        match rest.as_bytes()[0] {
            b'\\' => at += 1 + rest[1..].chars().next().map_or(0, char::len_utf8),
            b'`' => at = code(rest, run, complete).map_or(at + run, |(_, end)| at + end),
            _ => {
                let before = text[..at].chars().next_back();
                let after = rest[run..].chars().next();
                let closes = before.is_some_and(|c| !c.is_whitespace())
                    && (mark == '*' || !after.is_some_and(char::is_alphanumeric))
                    && (complete || after.is_some())
                    && (if length == 2 { run >= 2 } else { run != 2 });
                if closes {
                    return Some(at + run.saturating_sub(length).min(run));
                }
                at += run;
            }
        }
    }
    None
}

enum Link<'a> {
    Whole { label: &'a str, target: &'a str, end: usize },
    Unfinished,
    None,
}

fn link(text: &str) -> Link<'_> {
    let Some(close) = text.find(']') else { return Link::Unfinished };
    let target = &text[close + 1..];
    match (target.is_empty(), target.strip_prefix('(')) {
        (true, _) => Link::Unfinished,
        (false, None) => Link::None,
        (false, Some(target)) => match target.find([')', ' ']) {
            Some(end) if target[end..].starts_with(')') => {
                Link::Whole { label: &text[1..close], target: &target[..end], end: close + 3 + end }
            }
            Some(_) => Link::None,
            None => Link::Unfinished,
        },
    }
}
