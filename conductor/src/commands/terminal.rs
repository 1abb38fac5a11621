//! What the commands know about the terminal they may be started in: whether
//! it is one, what must not reach it, how to read a line from it and write to it.

use std::{
    borrow::Cow,
    ffi::OsString,
    io::{self, IsTerminal, Write as _},
    os::fd::AsFd,
};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::termios::{FlushArg, tcflush},
    unistd::read,
};
use serde_json::Value;

use super::finish::tell;
use crate::frame::is_unseen;

/// The longest line a terminal hands over at once.
const LINE_BYTES: usize = 4096;

/// Columns of a terminal that does not tell.
const USUAL_WIDTH: u16 = 80;

/// Which decorations an output stream can take.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Style {
    /// Whether somebody is looking.
    pub(super) is_terminal: bool,
    /// Whether colours are welcome.
    colour: bool,
}

impl Style {
    /// The style for a stream of this process.
    pub(super) fn of(stream: &impl IsTerminal) -> Self {
        Self::decide(stream.is_terminal(), |name| std::env::var_os(name))
    }

    fn decide(is_terminal: bool, env: impl Fn(&str) -> Option<OsString>) -> Self {
        let unwanted = env("NO_COLOR").is_some_and(|value| !value.is_empty());
        let unable = env("TERM").is_some_and(|value| value == "dumb");
        Self { is_terminal, colour: is_terminal && !unwanted && !unable }
    }

    /// Whether dimmed text can be told from other text.
    pub(super) fn can_dim(self) -> bool {
        self.colour
    }

    /// Text of less weight.
    pub(super) fn dim(self, text: &str) -> Cow<'_, str> {
        self.paint("2", text)
    }

    /// Text of more weight.
    pub(super) fn bold(self, text: &str) -> Cow<'_, str> {
        self.paint("1", text)
    }

    /// Text in the style with this number.
    pub(super) fn paint<'a>(self, code: &str, text: &'a str) -> Cow<'a, str> {
        if self.colour && !text.is_empty() {
            format!("\x1b[{code}m{text}\x1b[0m").into()
        } else {
            text.into()
        }
    }
}

/// How many columns the terminal has that a stream leads to; `None` if it leads
/// somewhere else.
pub(super) fn width(stream: &(impl IsTerminal + AsFd)) -> Option<usize> {
    // Some do not know their own size.
    let columns = || terminal_size::terminal_size_of(stream).map_or(USUAL_WIDTH, |(columns, _)| columns.0);
    stream.is_terminal().then(|| usize::from(columns()))
}

/// The text in lines of at most so many characters, unless a word has more.
pub(super) fn fold(text: &str, room: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    let mut used = 0;
    for word in text.split(' ') {
        let length = word.chars().count();
        match lines.last_mut() {
            Some(line) if used == 0 || used + 1 + length <= room => {
                let gap = if used == 0 { "" } else { " " };
                *line += &format!("{gap}{word}");
                used += gap.len() + length;
            }
            _ => {
                lines.push(word.to_owned());
                used = length;
            }
        }
    }
    lines
}

/// Text of several lines from someone who may mean harm: newlines and tabs
/// stay, characters that steer a terminal or reverse the order of what it
/// shows do not.
pub(super) fn clean(text: &str) -> Cow<'_, str> {
    // Some scripts and emoji need what joins their parts, or keeps them apart.
    let harmful = |c: char| is_unseen(c) && !matches!(c, '\n' | '\t' | '\u{200c}' | '\u{200d}');
    if !text.contains(harmful) {
        return text.into();
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if harmful(c) {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
    }
    out.into()
}

/// Throws away what was typed before the question was asked: it cannot have
/// been meant as the answer.
pub(super) fn forget_typed() {
    // A stdin that cannot do this has nothing typed to forget.
    tcflush(io::stdin(), FlushArg::TCIFLUSH).ok();
}

/// Asks a question on a terminal; whether the answer is yes.
pub(super) async fn confirm(question: &str) -> Result<bool, String> {
    forget_typed();
    tell(question);
    let typed = read_line().await.map_err(|error| format!("cannot read the answer: {error}"))?;
    Ok(typed.is_some_and(|typed| ["y", "yes"].contains(&typed.trim().to_ascii_lowercase().as_str())))
}

/// The next line that is typed on stdin, which is a terminal; `None` at its
/// end. Safe to drop at any time: what was typed stays with the terminal.
///
/// Tokio's own stdin would keep a thread reading after the question is
/// withdrawn, and what it read would answer the next one. Making the terminal
/// non-blocking would change it for the shell, too. So a thread waits, and
/// nothing is read before somebody is there to take it.
pub(super) async fn read_line() -> io::Result<Option<String>> {
    loop {
        // Dropped with this future, which wakes the thread.
        let (gone, _here) = io::pipe()?;
        tokio::task::spawn_blocking(move || wait(&gone)).await.map_err(io::Error::other)??;
        let stdin = io::stdin();
        let mut waiting = [PollFd::new(stdin.as_fd(), PollFlags::POLLIN)];
        if poll(&mut waiting, PollTimeout::ZERO)? > 0 {
            let mut line = [0; LINE_BYTES];
            let length = read(stdin.as_fd(), &mut line)?;
            return Ok((length > 0).then(|| String::from_utf8_lossy(&line[..length]).into_owned()));
        }
    }
}

/// Blocks until stdin has something to read or the other end of `gone` closed.
fn wait(gone: &io::PipeReader) -> io::Result<()> {
    let stdin = io::stdin();
    let mut waiting =
        [PollFd::new(stdin.as_fd(), PollFlags::POLLIN), PollFd::new(gone.as_fd(), PollFlags::POLLIN)];
    loop {
        match poll(&mut waiting, PollTimeout::NONE) {
            Err(Errno::EINTR) => {}
            polled => return Ok(polled.map(drop)?),
        }
    }
}

/// JSON that says the same and harms no terminal. Controls stand escaped in it already, but
/// for the newlines between its parts.
pub(super) fn harmless(text: String) -> String {
    let harmful = |c: char| is_unseen(c) && c != '\n';
    if !text.contains(harmful) {
        return text;
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if harmful(c) {
            // They stand within strings: nothing else in JSON may hold them.
            c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| out.push_str(&format!("\\u{unit:04x}")));
        } else {
            out.push(c);
        }
    }
    out
}

/// A value for machines, which people may look at, too.
pub(super) fn in_json(value: &Value) -> String {
    harmless(format!("{value:#}\n"))
}

/// Writes a value to stdout.
pub(super) fn print_json(value: &Value) -> Result<(), String> {
    print(&in_json(value))
}

/// Writes to stdout. Whoever reads no more has seen enough.
pub(super) fn print(text: &str) -> Result<(), String> {
    write(text.as_bytes()).map(drop)
}

/// The same for whoever has more to write: whether somebody still reads.
pub(super) fn write(bytes: &[u8]) -> Result<bool, String> {
    let mut out = io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(format!("cannot write to stdout: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_only_where_they_are_welcome() {
        let with = |is_terminal, set: &'static [(&str, &str)]| {
            let env = |name: &str| set.iter().find(|(n, _)| *n == name).map(|(_, v)| OsString::from(v));
            Style::decide(is_terminal, env).dim("x").into_owned()
        };
        assert_eq!(with(true, &[]), "\x1b[2mx\x1b[0m");
        assert_eq!(with(true, &[("NO_COLOR", "")]), "\x1b[2mx\x1b[0m");
        assert_eq!(with(true, &[("NO_COLOR", "1")]), "x");
        assert_eq!(with(true, &[("TERM", "dumb")]), "x");
        assert_eq!(with(false, &[]), "x");
    }

    #[test]
    fn folding_breaks_between_words_only() {
        assert_eq!(fold("one two three", 7), ["one two", "three"]);
        assert_eq!(fold("a word/of/many/characters b", 6), ["a", "word/of/many/characters", "b"]);
        assert_eq!(fold("", 6), [""]);
    }

    #[test]
    fn cleaning_keeps_text_and_disarms_the_rest() {
        assert_eq!(clean("a\n\tb é 👩‍👩‍👧"), "a\n\tb é 👩‍👩‍👧");
        assert_eq!(clean("\x1b[2J\r\u{7}\u{9b}x\u{202e}y"), "\\u{1b}[2J\\r\\u{7}\\u{9b}x\\u{202e}y");
    }

    #[test]
    #[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
    fn what_is_not_seen_is_shown_by_each_and_json_says_the_same() {
        let unseen =
            "\u{ad}\u{61c}\u{200b}\u{200e}\u{2028}\u{202e}\u{2060}\u{2069}\u{feff}\u{e0041}\u{9b}\u{7f}";
        let value = Value::from(format!("a{unseen}👩\u{200d}👧\n"));
        let told = in_json(&value);
        assert_eq!(told.chars().filter(|c| is_unseen(*c)).collect::<String>(), "\n", "{told}");
        assert_eq!(serde_json::from_str::<Value>(&told).unwrap(), value);
        for shown in [clean(unseen).into_owned(), crate::frame::escape(unseen.as_bytes(), 100)] {
            assert!(shown.is_ascii(), "{shown}");
        }
        for c in unseen.chars() {
            assert!(crate::identity::check_name("user", &format!("a{c}b")).is_err(), "{c:?}");
        }
    }
}
