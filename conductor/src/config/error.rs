//! The words for a refused configuration: where, what is wrong, what to do.

use std::{fmt, path::PathBuf};

use figment::error::{Actual, Kind};

/// Why a configuration was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {what}\nhint: {hint}")]
pub struct ConfigError {
    /// Where the mistake is.
    pub place: Place,
    /// What is wrong.
    pub what: String,
    /// What to do about it.
    pub hint: String,
}

/// Where a mistake is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// In a file, lines and columns counted from 1.
    Line {
        /// The file.
        file: PathBuf,
        /// Its line.
        line: usize,
        /// The character in that line.
        column: usize,
    },
    /// The file as a whole.
    File(PathBuf),
    /// In the compiled-in defaults.
    BuiltIn {
        /// Their line.
        line: usize,
        /// The character in that line.
        column: usize,
    },
    /// In an environment variable.
    Variable(String),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line { file, line, column } => write!(f, "{}:{line}:{column}", file.display()),
            Self::File(file) => write!(f, "{}", file.display()),
            Self::BuiltIn { line, column } => write!(f, "built-in agents.toml:{line}:{column}"),
            Self::Variable(name) => write!(f, "environment variable {name}"),
        }
    }
}

/// The longest piece of a user's text that a message repeats.
const QUOTE: usize = 80;

/// Nearness, in edits per letter of the longer word, within which a guess is
/// more help than noise.
const NEAR: f64 = 0.5;

/// A user's text for a message: bounded, and without characters that would
/// act on a terminal.
pub(super) fn quoted(text: &str) -> String {
    let mut shown: String = text.chars().take(QUOTE).flat_map(char::escape_debug).collect();
    // Quotes are harmless here and read badly escaped.
    shown = shown.replace("\\\"", "\"").replace("\\'", "'");
    if text.chars().nth(QUOTE).is_some() {
        shown.push('…');
    }
    format!("`{shown}`")
}

/// What is wrong and what to do, as the one message that serde carries.
pub(super) fn remark(what: &str, hint: &str) -> String {
    format!("{what}\n{hint}")
}

/// The remark for a word outside a closed set.
pub(super) fn not_one_of(text: &str, allowed: &[&str]) -> String {
    let list: Vec<_> = allowed.iter().map(|word| format!("\"{word}\"")).collect();
    let guess = nearest(text, allowed.iter().copied());
    let hint = match guess {
        Some(word) => format!("did you mean \"{word}\"? allowed are {}", list.join(" and ")),
        None => format!("allowed are {}", list.join(" and ")),
    };
    remark(&format!("{} is not allowed here", quoted(text)), &hint)
}

/// What is wrong and what to do, for an error of the merge. `path` leads to
/// the key. Values are not repeated: they may be secrets.
pub(super) fn explain(kind: &Kind, path: &[String]) -> (String, String) {
    let key = quoted(&path.join("."));
    match kind {
        Kind::UnknownField(field, known) => {
            let table = match path {
                [] | [_] => "at the top level".to_owned(),
                [table @ .., _] => format!("in {}", quoted(&format!("[{}]", table.join(".")))),
            };
            let keys = known.join(", ");
            let hint = match nearest(field, known.iter().copied()) {
                Some(guess) => format!("did you mean `{guess}`? keys here: {keys}"),
                None => format!("remove it; keys here: {keys}"),
            };
            (format!("unknown key {} {table}", quoted(field)), hint)
        }
        Kind::InvalidType(found, expected) | Kind::InvalidValue(found, expected) => {
            let (wanted, example) = wanted(expected);
            (format!("{key} must be {wanted}, not {}", found_words(found)), format!("write {example}"))
        }
        Kind::Message(text) => match text.split_once('\n') {
            Some((what, hint)) => (format!("{key}: {what}"), hint.to_owned()),
            None => (format!("{key}: {text}"), "correct the value".to_owned()),
        },
        other => (format!("{key}: {other}"), "correct the value".to_owned()),
    }
}

/// What is expected where a duration or a size is.
pub(super) const DURATION: &str = "a duration";
pub(super) const SIZE: &str = "a size";

/// The kind of value that was expected, and an example of it.
fn wanted(expected: &str) -> (&str, &str) {
    match expected {
        "usize" => ("a whole number that is not negative", "a number without quotes, as in 4"),
        "a boolean" => ("true or false", "true or false, without quotes"),
        "a string" | "path string" | "a path string" => ("text", "it in quotes, as in \"text\""),
        DURATION => (DURATION, "a number and a unit in quotes, as in \"10s\""),
        SIZE => (SIZE, "a number and a unit in quotes, as in \"64MiB\""),
        "a sequence" => ("a list", "a list, as in [\"one\", \"two\"]"),
        "a map" => ("a table", "a table, as in { name = \"value\" }"),
        other if other.starts_with("struct") => ("a table", "its keys beneath a [table] header"),
        other => (other, "a value of that kind"),
    }
}

fn found_words(found: &Actual) -> &'static str {
    match found {
        Actual::Bool(_) => "true or false",
        Actual::Signed(number) if *number < 0 => "a negative number",
        Actual::Unsigned(_) | Actual::Signed(_) => "a number",
        Actual::Float(_) => "a number with a fraction",
        Actual::Char(_) | Actual::Str(_) => "text",
        Actual::Seq => "a list",
        Actual::Map => "a table",
        _ => "a value of another kind",
    }
}

/// The known word that was probably meant.
pub(super) fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // Nothing known is longer, and the cost grows with the product.
    let word: Vec<char> = word.chars().take(QUOTE).collect();
    known
        .into_iter()
        .map(|candidate| (edits(&word, candidate), candidate))
        .filter(|(edits, candidate)| {
            let longer = word.len().max(candidate.chars().count());
            *edits as f64 <= (longer as f64 * NEAR).max(1.0)
        })
        .min_by_key(|(edits, _)| *edits)
        .map(|(_, candidate)| candidate)
}

/// How many letters to insert, delete or replace to turn one word into the
/// other.
fn edits(from: &[char], to: &str) -> usize {
    let mut row: Vec<usize> = (0..=from.len()).collect();
    for (line, wanted) in to.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = line + 1;
        for (column, found) in from.iter().enumerate() {
            let replaced = diagonal + usize::from(*found != wanted);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(row[column] + 1).min(diagonal + 1);
        }
    }
    row[from.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edits_are_counted() {
        let count = |from: &str, to| edits(&from.chars().collect::<Vec<_>>(), to);
        assert_eq!(count("", ""), 0);
        assert_eq!(count("", "abc"), 3);
        assert_eq!(count("abc", ""), 3);
        assert_eq!(count("kitten", "sitting"), 3);
        assert_eq!(count("idle_timeout", "idle_timeout"), 0);
    }

    #[test]
    fn the_nearest_word_is_found_and_far_ones_are_not_offered() {
        let known = ["idle_timeout", "start_timeout", "max", "warm"];
        assert_eq!(nearest("idel_timeout", known), Some("idle_timeout"));
        assert_eq!(nearest("idletimeout", known), Some("idle_timeout"));
        assert_eq!(nearest("wram", known), Some("warm"));
        assert_eq!(nearest("warn", known), Some("warm"));
        assert_eq!(nearest("colour", known), None);
        assert_eq!(nearest("", known), None);
        assert_eq!(nearest(&"x".repeat(1_000_000), known), None);
    }

    #[test]
    fn quoted_text_is_bounded_and_cannot_act_on_a_terminal() {
        assert_eq!(quoted("a\u{1b}[2Jb\n"), "`a\\u{1b}[2Jb\\n`");
        assert_eq!(quoted("it's \"x\""), "`it's \"x\"`");
        assert_eq!(quoted(&"é".repeat(1000)).chars().count(), QUOTE + 3);
    }
}
