//! Secrets whose values are known: what a process was given and what an editor has handed over.
//! They are searched for wherever they may turn up, also written as JSON within JSON, as a
//! part of an address or in base64.

mod begun;

use std::{fmt, sync::Arc};

use aho_corasick::{AhoCorasick, MatchKind};
use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD},
};

use self::begun::Starts;

use super::{Kind, finder::Finder, words};

/// Values that are searched for, and their bytes; more are only replaced where they stand.
const MOST: usize = 1024;
const MOST_BYTES: usize = 4 << 20;

/// Bytes of a value that the automaton knows; behind them it is compared.
const LONGEST_FORM: usize = 128;

/// Values of so many bytes are searched for in base64, too: of shorter ones too little stays as it
/// is wherever they stand. Of longer ones as much as this.
const SHORTEST_CODED: usize = 12;
const LONGEST_CODED: usize = 16 << 10;

/// What is left of the shortest in base64, and so the shortest stretch that one may be in.
const CODED: usize = 15;

/// Bytes of a value that frames are searched for first, at most and at least.
const LONGEST_HINT: usize = 24;
const SHORTEST_HINT: usize = 3;

/// A secret and what it is.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret {
    /// What sort it is.
    pub kind: Kind,
    /// Its value.
    pub value: Vec<u8>,
}

// Written by hand: values are never shown.
impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secret").field("kind", &self.kind).finish_non_exhaustive()
    }
}

impl Secret {
    /// A value by its name, if it is worth searching for.
    pub fn named(kind: Kind, name: &str, value: &[u8]) -> Option<Self> {
        let is_one = words::is_searched(name, &String::from_utf8_lossy(value));
        is_one.then(|| Self { kind, value: value.to_vec() })
    }

    /// A value that somebody has called a secret.
    pub fn declared(kind: Kind, value: &[u8]) -> Option<Self> {
        (value.len() >= words::SHORTEST).then(|| Self { kind, value: value.to_vec() })
    }

    /// Itself, and its lines if it has several: what is written to stderr comes line by line.
    fn with_lines(self) -> Vec<Self> {
        let text = String::from_utf8_lossy(&self.value).into_owned();
        let lines = text.lines().filter(|line| text.contains('\n') && !words::is_ordinary(line));
        let lines = lines.filter_map(|line| Self::declared(self.kind, line.as_bytes()));
        let mut all: Vec<Self> = lines.collect();
        all.insert(0, self);
        all
    }

    /// What is secret in a file: values that have a name or stand alone in their line.
    pub fn in_file(kind: Kind, content: &[u8]) -> Vec<Self> {
        let text = String::from_utf8_lossy(content);
        let mut found = Vec::new();
        if let Ok(value) = serde_json::from_str::<serde_json::Value>(&text) {
            leaves(kind, "", &value, &mut found);
            return found;
        }
        for line in text.lines().map(str::trim) {
            let cut = line.split_once(['=', ':']).filter(|(name, _)| !name.contains(char::is_whitespace));
            match cut {
                Some((name, value)) => {
                    let value = value.trim().trim_matches(['"', '\'']);
                    found.extend(Self::named(kind, name, value.as_bytes()));
                }
                None if line.starts_with("-----") => {}
                None => found.extend(
                    line.split_whitespace().filter_map(|word| Self::named(kind, "", word.as_bytes())),
                ),
            }
        }
        let whole = text.trim();
        if !whole.contains(char::is_whitespace) {
            found.extend(Self::named(kind, "", whole.as_bytes()));
        }
        found
    }
}

fn leaves(kind: Kind, name: &str, value: &serde_json::Value, found: &mut Vec<Secret>) {
    match value {
        serde_json::Value::String(text) => found.extend(Secret::named(kind, name, text.as_bytes())),
        serde_json::Value::Array(items) => items.iter().for_each(|item| leaves(kind, name, item, found)),
        serde_json::Value::Object(members) => {
            members.iter().for_each(|(name, value)| leaves(kind, name, value, found));
        }
        _ => {}
    }
}

/// Values that are searched for. Cheap to clone.
#[derive(Clone, Default)]
pub struct Known(Option<Arc<Table>>);

struct Table {
    secrets: Vec<Secret>,
    /// A part of each that stands in a frame however it is escaped.
    hints: Finder,
    /// A part of each in base64; only frames with a long stretch are searched for them.
    coded: Finder,
    /// How each may be written in a text, and whose it is.
    forms: AhoCorasick,
    written: Vec<(usize, Vec<u8>)>,
    /// What these begin with.
    starts: Starts,
}

impl fmt::Debug for Known {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Known").field(&self.0.as_ref().map_or(0, |table| table.secrets.len())).finish()
    }
}

impl Known {
    /// These and more.
    #[must_use]
    pub fn with(&self, more: impl IntoIterator<Item = Secret>) -> Self {
        let old = self.0.as_ref().map(|table| table.secrets.as_slice()).unwrap_or_default();
        let mut secrets = old.to_vec();
        for secret in more.into_iter().flat_map(Secret::with_lines) {
            let is_new = secret.value.len() >= words::SHORTEST
                && !super::is_mark(&secret.value)
                && !secrets.iter().any(|known| known.value == secret.value);
            if is_new && secrets.len() < MOST {
                secrets.push(secret);
            }
        }
        if secrets.len() == old.len() {
            return self.clone();
        }
        let mut left = MOST_BYTES;
        secrets.retain(|secret| {
            let fits = secret.value.len() <= left;
            left -= if fits { secret.value.len() } else { 0 };
            fits
        });
        Table::new(secrets).map_or_else(|| self.clone(), |table| Self(Some(Arc::new(table))))
    }

    /// All of both.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        match (&self.0, &other.0) {
            (_, None) => self.clone(),
            (None, Some(_)) => other.clone(),
            (Some(mine), Some(theirs)) if Arc::ptr_eq(mine, theirs) => self.clone(),
            (_, Some(theirs)) => self.with(theirs.secrets.iter().cloned()),
        }
    }

    /// Whether there is nothing to search for.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Whether a frame has to be taken apart, because one may be in it.
    #[inline]
    pub(super) fn suspects(&self, bytes: &[u8]) -> bool {
        self.0.as_ref().is_some_and(|table| {
            table.hints.any(bytes, |_, _, _| true)
                || (has_coded(bytes) && table.coded.any(bytes, |_, _, _| true))
        })
    }

    /// Tells of every one in a text without escapes, and where it is.
    pub(super) fn find(&self, text: &[u8], mut found: impl FnMut(usize, usize, &Secret)) {
        let Some(table) = &self.0 else { return };
        let mut from = 0;
        while let Some(hit) = table.forms.find(&text[from..]) {
            let (whose, form) = &table.written[hit.pattern().as_usize()];
            let (start, mut end) = (from + hit.start(), from + hit.end());
            // As far as it goes: somebody may have cut it.
            let rest = form.get(hit.len()..).unwrap_or_default();
            end += rest.iter().zip(&text[end..]).take_while(|(a, b)| a == b).count();
            found(start, end, &table.secrets[*whose]);
            from = end;
        }
    }
}

impl Table {
    fn new(secrets: Vec<Secret>) -> Option<Self> {
        let (mut hints, mut coded) = (Vec::new(), Vec::new());
        let mut written: Vec<(usize, Vec<u8>)> = Vec::new();
        for (whose, secret) in secrets.iter().enumerate() {
            let value = &secret.value;
            let once = escaped(value);
            let twice = escaped(&once);
            let forms = [value.clone(), once, twice, percent(value)];
            match plain_run(value) {
                Some(run) => hints.push(run.to_vec()),
                // Nothing in it stays as it is, so all its forms are searched for, each as the
                // frame has it.
                None => {
                    let raw = forms.iter().map(|form| escaped(form)).chain([value.clone()]);
                    hints.extend(raw.map(|form| form[..form.len().min(LONGEST_HINT)].to_vec()));
                }
            }
            let in_base64 = in_base64(value);
            for form in &in_base64 {
                // Ids have joints in them and are everywhere, so a stretch has none.
                let run = form.split(|byte| matches!(byte, b'-' | b'_')).max_by_key(|run| run.len());
                match run.filter(|run| run.len() >= CODED) {
                    Some(run) => coded.push(run[..run.len().min(LONGEST_HINT)].to_vec()),
                    None => hints.push(form[..form.len().min(LONGEST_HINT)].to_vec()),
                }
            }
            for form in forms.into_iter().chain(in_base64) {
                if !written.iter().any(|(_, known)| *known == form) {
                    written.push((whose, form));
                }
            }
        }
        let prefixes = written.iter().map(|(_, form)| &form[..form.len().min(LONGEST_FORM)]);
        let forms = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(prefixes).ok()?;
        let finder = |mut hints: Vec<Vec<u8>>| {
            hints.sort_unstable();
            hints.dedup();
            Finder::new(hints.iter().map(Vec::as_slice))
        };
        let starts = Starts::new(&written);
        Some(Self { secrets, hints: finder(hints), coded: finder(coded), forms, written, starts })
    }
}

/// Whether there is a stretch that is long enough for a value in base64. The last byte of what
/// would be one is looked at first.
fn has_coded(bytes: &[u8]) -> bool {
    let is_sign = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/');
    let mut start = 0;
    while let Some(window) = bytes.get(start..start + CODED) {
        match window.iter().rposition(|byte| !is_sign(byte)) {
            Some(gap) => start += gap + 1,
            None => return true,
        }
    }
    false
}

/// A value in base64, without what depends on the bytes around it: there are three ways in which
/// it may stand, and two alphabets.
fn in_base64(value: &[u8]) -> Vec<Vec<u8>> {
    let mut forms = Vec::new();
    if value.len() < SHORTEST_CODED {
        return forms;
    }
    let value = &value[..value.len().min(LONGEST_CODED)];
    for (before, unstable) in [(0, 0), (1, 2), (2, 3)] {
        let padded: Vec<u8> = std::iter::repeat_n(0, before).chain(value.iter().copied()).collect();
        // Whole signs of six bits.
        let end = padded.len() * 8 / 6;
        for text in [STANDARD_NO_PAD.encode(&padded), URL_SAFE_NO_PAD.encode(&padded)] {
            forms.push(text.as_bytes()[unstable..end].to_vec());
        }
    }
    forms.dedup();
    forms
}

/// The longest part of a value that neither JSON nor an address writes in another way.
fn plain_run(value: &[u8]) -> Option<&[u8]> {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~');
    let longest = value.split(|byte| !is_plain(byte)).max_by_key(|run| run.len())?;
    (longest.len() >= SHORTEST_HINT).then(|| &longest[..longest.len().min(LONGEST_HINT)])
}

/// A value as the content of a JSON string.
fn escaped(value: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(value);
    let quoted = serde_json::Value::from(text.into_owned()).to_string();
    quoted.as_bytes()[1..quoted.len() - 1].to_vec()
}

/// A value as a part of an address.
fn percent(value: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(value.len());
    for byte in value {
        match byte {
            b'-' | b'_' | b'.' | b'~' => out.push(*byte),
            byte if byte.is_ascii_alphanumeric() => out.push(*byte),
            byte => out.extend_from_slice(format!("%{byte:02X}").as_bytes()),
        }
    }
    out
}
