//! What can be searched of a row: its text, its words for the database at hand,
//! and tags by which the database leaves out what was not asked for.
//!
//! Tags only make a search fast. They are hashes, and whether a hit belongs to
//! a user, a session or a repository is always asked of the tables themselves.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    fmt::Write as _,
};

use serde_json::Value;
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use super::{
    Source,
    words::{NO_PAIRS, Word, beginning, folded, pair, words},
};
use crate::ledger::{cell::Cells, error::LedgerError, question::Record};

/// So much of a text can be searched: Postgres has no more room for its words.
pub(super) const MOST_TEXT: usize = 256 << 10;

/// So much of a line.
pub(super) const MOST_LINE: usize = 16 << 10;

/// Postgres knows no place behind this one, and no more places of one word.
const LAST_PLACE: usize = 16_383;
const MOST_PLACES: usize = 255;

/// A text of more pairs has so many of all numbers that they would tell nothing.
const MOST_PAIRS: usize = 4096;

/// The tag of texts for whose words Postgres has not enough places.
pub(super) const LONG: &str = "=long";

/// Deepest level of JSON that is looked at.
const DEEPEST: usize = 32;

/// What a hit or a row to be indexed is read from: the row that a key points to,
/// whichever table it is in. `k` is whatever has the keys.
pub(super) const ROWS: &str = " LEFT JOIN turns t ON k.source = 'prompt' AND t.session_id = k.session_id AND t.turn = k.seq \
     LEFT JOIN messages m ON k.source = 'message' AND m.session_id = k.session_id AND m.message = k.seq \
     LEFT JOIN turns mt ON mt.session_id = m.session_id AND mt.turn = m.turn \
     LEFT JOIN tool_calls c ON k.source = 'tool' AND c.session_id = k.session_id AND c.call = k.seq \
     LEFT JOIN commands r ON k.source = 'command' AND r.session_id = k.session_id AND r.seq = k.seq \
     LEFT JOIN file_accesses f ON k.source = 'path' AND f.session_id = k.session_id AND f.seq = k.seq \
     AND f.item = k.item \
     LEFT JOIN sessions s ON s.session_id = k.session_id";

/// A row as it is read: its key, and what its table has.
#[derive(Debug, Clone)]
pub(super) struct Row {
    pub(super) key: Key,
    /// A prompt, a message, a command or a path.
    text: Option<String>,
    /// Of a tool call.
    title: Option<String>,
    input: Option<String>,
    pub(super) turn: Option<i64>,
    at_us: Option<i64>,
    pub(super) agent: Option<String>,
    /// Who said it, the tool's name, how a command was run or a file accessed.
    pub(super) label: Option<String>,
    user: Option<String>,
    cwd: Option<String>,
    repository: Option<String>,
}

/// Which row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) session: Uuid,
    pub(super) source: Source,
    pub(super) seq: i64,
    pub(super) item: i64,
}

impl Record for Row {
    const COLUMNS: &'static [&'static str] = &[
        "CAST(k.session_id AS text)",
        "k.source",
        "k.seq",
        "k.item",
        // As many characters have at least as many bytes.
        "substr(COALESCE(t.prompt, m.text, r.line, f.path), 1, 262144)",
        "c.title",
        "CAST(c.input AS text)",
        "COALESCE(t.turn, m.turn, c.turn, r.turn, f.turn)",
        "COALESCE(t.began_us, m.began_us, c.began_us, r.began_us, f.at_us)",
        "COALESCE(t.agent, c.agent, r.agent, f.agent, mt.agent, s.agent)",
        "CASE k.source WHEN 'prompt' THEN 'user' ELSE COALESCE(m.role, c.name, r.source, f.access) END",
        "s.user_name",
        "s.cwd",
        "s.repository",
    ];

    fn from_row(mut row: Cells) -> Result<Self, LedgerError> {
        Ok(Self {
            key: Key {
                session: id(&row.take::<String>()?)?,
                source: Source::from_name(&row.take::<String>()?)?,
                seq: row.take()?,
                item: row.take()?,
            },
            text: row.take()?,
            title: row.take()?,
            input: row.take()?,
            turn: row.take()?,
            at_us: row.take()?,
            agent: row.take()?,
            label: row.take()?,
            user: row.take()?,
            cwd: row.take()?,
            repository: row.take()?,
        })
    }
}

pub(super) fn id(text: &str) -> Result<Uuid, LedgerError> {
    text.parse().map_err(|_| LedgerError::Corrupt(format!("`{text}` is no id")))
}

impl Row {
    /// What can be searched of it; `None` if there is nothing, or the row is gone.
    pub(super) fn searchable(&self) -> Option<String> {
        let text = match self.key.source {
            Source::Tool => {
                let mut text = String::new();
                for part in [&self.label, &self.title].into_iter().flatten() {
                    line(&mut text, "", part);
                }
                match self.input.as_deref().map(serde_json::from_str) {
                    Some(Ok(input)) => flatten(&mut text, "", &input, DEEPEST),
                    Some(Err(_)) => line(&mut text, "", self.input.as_deref().unwrap_or_default()),
                    None => {}
                }
                text
            }
            Source::Prompt | Source::Message | Source::Command | Source::Path => self.text.clone()?,
        };
        let most = if self.key.source.is_line() { MOST_LINE } else { MOST_TEXT };
        let text = beginning(&text, most);
        (!text.trim().is_empty()).then(|| text.to_owned())
    }

    /// Its place among all: the time, and a number that keeps apart what came at
    /// the same time. Whoever finds it taken takes the next.
    pub(super) fn wished_doc(&self) -> i64 {
        let at = self.at_us.unwrap_or(0).clamp(0, doc_time(i64::MAX));
        let apart = ((self.key.seq & 0x3ff) << 2) | (self.key.item & 3);
        first_doc(at) | apart
    }

    /// Its tags.
    pub(super) fn tags(&self) -> Vec<Tag> {
        let mut tags = vec![Tag::kind(self.key.source.kind().name()), Tag::session(self.key.session)];
        tags.extend(self.user.as_deref().map(Tag::user));
        tags.extend(self.agent.as_deref().map(Tag::agent));
        tags.extend(self.repository.as_deref().map(Tag::place));
        tags.extend(
            self.cwd.as_deref().filter(|cwd| self.repository.as_deref() != Some(cwd)).map(Tag::place),
        );
        tags
    }
}

/// Bits of a document's number behind its time.
const APART: u32 = 12;

/// The first document of a time in microseconds.
pub(super) fn first_doc(at_us: i64) -> i64 {
    at_us.clamp(0, i64::MAX >> APART) << APART
}

/// The time of a document.
pub(super) fn doc_time(doc: i64) -> i64 {
    doc >> APART
}

/// A tag: something that a hit belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Tag([u8; 4]);

impl Tag {
    fn of(what: &str, value: &str) -> Self {
        let hash = Sha256::digest(format!("{what}:{value}"));
        Self([hash[0], hash[1], hash[2], hash[3]])
    }

    pub(super) fn kind(name: &str) -> Self {
        Self::of("kind", name)
    }

    pub(super) fn session(id: Uuid) -> Self {
        Self::of("session", &id.to_string())
    }

    pub(super) fn user(name: &str) -> Self {
        Self::of("user", name)
    }

    pub(super) fn agent(name: &str) -> Self {
        Self::of("agent", name)
    }

    /// Of a directory.
    pub(super) fn place(path: &str) -> Self {
        Self::of("place", path)
    }

    /// As a word of FTS5's.
    pub(super) fn word(&self) -> String {
        format!("{:08x}", u32::from_be_bytes(self.0))
    }

    /// As a word of Postgres', among words that have letters and digits only.
    pub(super) fn lexeme(&self) -> String {
        format!("={}", self.word())
    }

    /// As one trigram, for the index of lines.
    pub(super) fn trigram(&self) -> String {
        const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
        self.0[..3].iter().map(|byte| char::from(LETTERS[usize::from(byte & 63)])).collect()
    }
}

/// Words as FTS5 takes them: its tokenizer only parts them at the blanks.
pub(super) fn fts_words(text: &str) -> String {
    let mut all = String::with_capacity(text.len());
    for word in words(text) {
        if !all.is_empty() {
            all.push(' ');
        }
        all.push_str(&word.text);
    }
    all
}

/// Words as Postgres takes them: each with its places, and the tags.
pub(super) fn tsvector(text: &str, tags: &[Tag]) -> String {
    let mut places: HashMap<String, Vec<usize>> = HashMap::new();
    let mut is_long = false;
    for (at, word) in words(text).enumerate() {
        let here = places.entry(word.text).or_default();
        is_long |= here.len() >= MOST_PLACES || at >= LAST_PLACE;
        if here.len() < MOST_PLACES {
            here.push((at + 1).min(LAST_PLACE));
        }
    }
    let mut all = String::with_capacity(text.len() + 128);
    for (word, places) in places {
        // Letters and digits need no escape.
        let _ = write!(all, "'{word}':");
        for (nth, place) in places.iter().enumerate() {
            let _ = write!(all, "{}{place}", if nth > 0 { "," } else { "" });
        }
        all.push(' ');
    }
    for tag in tags {
        let _ = write!(all, "'{}' ", tag.lexeme());
    }
    if is_long {
        let _ = write!(all, "'{LONG}'");
    }
    all
}

/// The numbers of a text's pairs of words, as an array of Postgres'.
pub(super) fn pairs(text: &str) -> String {
    let mut all = BTreeSet::new();
    let mut before: Option<Word> = None;
    for word in words(text) {
        all.extend(before.as_ref().map(|before| pair(&before.text, &word.text)));
        before = Some(word);
    }
    if all.len() > MOST_PAIRS {
        all = BTreeSet::from([NO_PAIRS]);
    }
    format!("{{{}}}", all.iter().map(ToString::to_string).collect::<Vec<_>>().join(","))
}

/// A line as it is indexed by its parts.
pub(super) fn folded_line(text: &str) -> String {
    folded(beginning(text, MOST_LINE))
}

/// JSON as lines of names and values. Databases keep members in different
/// orders and write numbers differently, so there is one of our own.
fn flatten(all: &mut String, name: &str, value: &Value, deepest: usize) {
    if deepest == 0 || all.len() > MOST_TEXT {
        return;
    }
    match value {
        Value::Null => line(all, name, ""),
        Value::Bool(yes) => line(all, name, if *yes { "true" } else { "false" }),
        Value::Number(number) => match number.as_f64() {
            Some(real) if !number.is_i64() && !number.is_u64() => line(all, name, &real.to_string()),
            _ => line(all, name, &number.to_string()),
        },
        Value::String(text) => line(all, name, text),
        Value::Array(items) => items.iter().for_each(|item| flatten(all, name, item, deepest - 1)),
        Value::Object(members) => {
            let sorted: BTreeMap<_, _> = members.iter().collect();
            sorted.into_iter().for_each(|(name, value)| flatten(all, name, value, deepest - 1));
        }
    }
}

fn line(all: &mut String, name: &str, text: &str) {
    if !all.is_empty() {
        all.push('\n');
    }
    if !name.is_empty() {
        all.push_str(name);
        all.push_str(": ");
    }
    all.push_str(beginning(text, MOST_TEXT));
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    fn tool(input: &str) -> Row {
        Row {
            key: Key { session: Uuid::nil(), source: Source::Tool, seq: 3, item: 0 },
            text: None,
            title: Some("Edit the parser".into()),
            input: Some(input.into()),
            turn: None,
            at_us: Some(5),
            agent: None,
            label: Some("Edit".into()),
            user: None,
            cwd: None,
            repository: None,
        }
    }

    #[test]
    fn json_is_searched_as_what_it_says() {
        let row = tool(r#"{"path":"/a\nb","n":1e2,"list":[true,{"z":null,"y":1.5}]}"#);
        let other = tool(r#"{"n": 100, "list": [true, {"y": 1.5, "z": null}], "path": "/a\nb"}"#);
        let text = row.searchable().unwrap();
        assert_eq!(text, "Edit\nEdit the parser\nlist: true\ny: 1.5\nz: \nn: 100\npath: /a\nb");
        assert_eq!(other.searchable().unwrap(), text, "both databases say the same");
        assert!(tool("no json").searchable().unwrap().ends_with("no json"));
        let deep = format!("{}1{}", "[".repeat(100), "]".repeat(100));
        assert!(tool(&deep).searchable().is_some());
    }

    #[test]
    fn words_become_what_each_database_takes() {
        assert_eq!(fts_words("A-b, ünd \"c\""), "a b ünd c");
        let mut parts: Vec<_> =
            tsvector("b a b", &[Tag([1, 2, 3, 255])]).split(' ').map(str::to_owned).collect();
        parts.sort();
        assert_eq!(parts, ["", "'=010203ff'", "'a':2", "'b':1,3"]);
        assert!(tsvector(&"x ".repeat(256), &[]).ends_with("'=long'"));
        assert!(!tsvector(&"x ".repeat(255), &[]).contains('='));
        assert_eq!(Tag([0, 1, 255, 9]).trigram(), "AB_");
        assert_eq!(pairs("One"), "{}");
        assert_eq!(pairs("b a-B a"), format!("{{{}}}", listed(&[pair("a", "b"), pair("b", "a")])));
        let many: String = (0..=2 * MOST_PAIRS).map(|nth| format!("{nth} ")).collect();
        assert_eq!(pairs(&many), format!("{{{NO_PAIRS}}}"));
    }

    fn listed(pairs: &[i16]) -> String {
        let sorted: BTreeSet<_> = pairs.iter().collect();
        sorted.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
    }

    #[test]
    fn documents_stand_in_the_order_of_time() {
        let mut row = tool("{}");
        let first = row.wished_doc();
        assert_eq!(doc_time(first), 5);
        row.key.seq = 4;
        assert!(row.wished_doc() > first);
        row.at_us = Some(6);
        assert!(row.wished_doc() > first_doc(6) && first_doc(6) > first);
        row.at_us = Some(i64::MAX);
        assert!(row.wished_doc() > 0);
    }
}
