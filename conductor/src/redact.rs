//! The recorded form of a frame: as it came, but for secrets. In their place stands
//! `<secret:KIND:TAG>`. No I/O.
//!
//! A secret is known by its place (what an editor hands over for MCP servers, what is said to
//! log in), by its value (what a process was given, what an editor has handed over before) or by
//! its looks (keys of providers, private keys, passwords in addresses). The tag is a keyed hash,
//! so equal secrets have equal tags, and a tag tells nobody else anything.
//!
//! What is forwarded never comes here. Most frames hold nothing of all this, and for them there
//! is one search and neither copy nor allocation; but for chunks of messages, whose text is looked
//! at together with the end of the one before (`seams`).

mod finder;
mod known;
mod places;
mod seams;
mod text;
mod tokens;
mod words;

#[cfg(test)]
mod tests;

use std::{borrow::Cow, fmt, sync::Arc};

use regex::bytes::Regex;
use ring::hmac;

pub use self::{
    known::{Known, Secret},
    seams::{Cut, Seams},
    words::speaks_of_secret,
};
use self::{
    places::{Met, Place, Purpose},
    text::Text,
};
use crate::frame::{self, Method, Peek};

/// How a mark begins.
const MARK: &[u8] = b"<secret:";

/// Digits of a tag.
const TAG: usize = 8;

/// Bytes of the key that tags are made with.
pub const KEY_BYTES: usize = 32;

/// Sorts of secrets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A variable of an MCP server.
    McpEnv,
    /// A header for an MCP server.
    McpHeader,
    /// In the address of an MCP server.
    McpUrl,
    /// Among the arguments of an MCP server.
    McpArg,
    /// Something else about an MCP server.
    Mcp,
    /// Said to log in.
    Auth,
    /// A variable that a process was given.
    Env,
    /// In a file that a process was given.
    File,
    /// Looks like a token.
    Token,
    /// Matches a pattern of the configuration.
    Pattern,
}

impl Kind {
    /// Its name in a mark.
    pub fn name(self) -> &'static str {
        match self {
            Self::McpEnv => "mcp-env",
            Self::McpHeader => "mcp-header",
            Self::McpUrl => "mcp-url",
            Self::McpArg => "mcp-arg",
            Self::Mcp => "mcp",
            Self::Auth => "auth",
            Self::Env => "env",
            Self::File => "file",
            Self::Token => "token",
            Self::Pattern => "pattern",
        }
    }
}

/// How secrets are replaced: the key of the tags, and patterns beside the built-in ones. Cheap
/// to clone.
#[derive(Clone)]
pub struct Redaction(Arc<Inner>);

struct Inner {
    key: hmac::Key,
    patterns: Vec<Regex>,
}

// Written by hand: the key is never shown.
impl fmt::Debug for Redaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redaction").field("patterns", &self.0.patterns).finish_non_exhaustive()
    }
}

impl Default for Redaction {
    /// With a key of this moment, for what is kept nowhere: its tags can be compared with no
    /// others.
    fn default() -> Self {
        let mut key = [0; KEY_BYTES];
        // Without random numbers tags would only be easier to guess.
        getrandom::fill(&mut key).ok();
        Self::new(&key, Vec::new())
    }
}

impl Redaction {
    /// With this key, and with patterns that are searched for, too.
    pub fn new(key: &[u8; KEY_BYTES], patterns: Vec<Regex>) -> Self {
        Self(Arc::new(Inner { key: hmac::Key::new(hmac::HMAC_SHA256, key), patterns }))
    }

    /// The recorded form of a frame; `None` if that is the frame as it is.
    #[inline]
    pub fn frame(&self, known: &Known, frame: &[u8]) -> Option<Vec<u8>> {
        if self.suspects(known, frame) { self.rewrite(known, frame) } else { None }
    }

    /// The same for what an editor says, which may be the answer to a form.
    pub fn said<'a>(&self, known: &Known, frame: &'a [u8]) -> Cow<'a, [u8]> {
        let rewritten = if is_form(frame) { self.rewrite(known, frame) } else { self.frame(known, frame) };
        rewritten.map_or(Cow::Borrowed(frame), Cow::Owned)
    }

    /// Whether there may be anything to replace, in one frame or in several at once.
    #[inline]
    pub fn suspects(&self, known: &Known, frames: &[u8]) -> bool {
        known.suspects(frames) || tokens::suspects(frames) || self.is_match(frames)
    }

    /// The same for text that is no JSON, such as a line of a log.
    pub fn text<'a>(&self, known: &Known, text: &'a str) -> Cow<'a, str> {
        if !self.suspects(known, text.as_bytes()) {
            return Cow::Borrowed(text);
        }
        let mut edits = Vec::new();
        self.in_text(known, &Text::plain(text.as_bytes()), 0, text.len(), true, &mut edits);
        match apply(text.as_bytes(), edits) {
            Some(bytes) => Cow::Owned(String::from_utf8_lossy(&bytes).into_owned()),
            None => Cow::Borrowed(text),
        }
    }

    /// The same for bytes that may be either.
    pub fn bytes<'a>(&self, known: &Known, bytes: &'a [u8]) -> Cow<'a, [u8]> {
        self.frame(known, bytes).map_or(Cow::Borrowed(bytes), Cow::Owned)
    }

    /// Whether a pattern of the configuration may match. It is written for text without escapes.
    fn is_match(&self, frame: &[u8]) -> bool {
        let patterns = &self.0.patterns;
        !patterns.is_empty()
            && (memchr::memchr(b'\\', frame).is_some()
                || patterns.iter().any(|pattern| pattern.is_match(frame)))
    }

    /// What stands for a secret.
    pub fn mark(&self, kind: Kind, secret: &[u8]) -> String {
        let sum = hmac::sign(&self.0.key, secret);
        let tag: String = sum.as_ref().iter().take(TAG / 2).map(|byte| format!("{byte:02x}")).collect();
        format!("<secret:{}:{tag}>", kind.name())
    }

    #[cold]
    fn rewrite(&self, known: &Known, frame: &[u8]) -> Option<Vec<u8>> {
        let mut edits = Vec::new();
        let is_json = places::walk(frame, purpose(frame), &mut |met| self.meet(known, &met, &mut edits));
        if !is_json {
            edits.clear();
            self.in_text(known, &Text::plain(frame), 0, frame.len(), true, &mut edits);
        }
        apply(frame, edits)
    }

    /// The recorded form of a chunk of a message, of whose text more is to be replaced than it
    /// tells by itself.
    #[cold]
    pub fn chunk(&self, known: &Known, frame: &[u8], peek: &Peek, cut: &Cut) -> Vec<u8> {
        let mut edits = Vec::new();
        let inner = (peek.text.range().start + 1, peek.text.range().end - 1);
        places::walk(frame, Purpose::Any, &mut |met| {
            self.meet(known, &met, &mut edits);
            if let Some(text) = met.text.as_ref().filter(|_| met.span == inner) {
                let len = text.bytes.len();
                let (head, tail) = (cut.head.0.min(len), cut.tail.0.min(len));
                for (from, to, mark) in [(0, head, &cut.head.1), (len - tail, len, &cut.tail.1)] {
                    if from < to {
                        let (start, end) = text.in_frame(from, to);
                        edits.push((start, end, mark.clone()));
                    }
                }
            }
        });
        apply(frame, joined(edits)).unwrap_or_else(|| frame.to_vec())
    }

    /// Replaces what is secret of one value.
    fn meet(&self, known: &Known, met: &Met<'_>, edits: &mut Vec<Edit>) {
        if met.place == Place::Envelope {
            return;
        }
        let Some(text) = &met.text else {
            // A number or a truth may be a secret by its place only.
            let is_number = met.raw.iter().any(u8::is_ascii_digit);
            let kind = match met.place {
                Place::Secret(kind) if met.raw != b"null" => Some(kind),
                Place::Login if is_number && words::speaks_of_secret(met.name) => Some(Kind::Auth),
                _ => None,
            };
            if let Some(kind) = kind {
                let quoted = format!("\"{}\"", self.mark(kind, met.raw));
                edits.push((met.span.0, met.span.1, quoted));
            }
            return;
        };
        let mut at = 0;
        for (from, to, kind, _) in secrets_of(met, &text.bytes) {
            self.in_text(known, text, at, from, true, edits);
            let (start, end) = text.in_frame(from, to);
            edits.push((start, end, self.mark(kind, &text.bytes[from..to])));
            at = to;
        }
        // Names of things are what others are found by; what looks like a token there is none.
        let is_id = met.name.ends_with("Id") && !met.is_name;
        self.in_text(known, text, at, text.bytes.len(), !is_id, edits);
    }

    /// Replaces what is found in a part of a text. Marks in it stay, and what is left between
    /// two of them is a text of its own.
    fn in_text(
        &self,
        known: &Known,
        text: &Text<'_>,
        from: usize,
        to: usize,
        with_looks: bool,
        edits: &mut Vec<Edit>,
    ) {
        let mut pieces = vec![(from, to)];
        while let Some((from, to)) = pieces.pop() {
            let piece = &text.bytes[from..to];
            if piece.len() < words::SHORTEST {
                continue;
            }
            if let Some((start, end)) = next_mark(piece) {
                pieces.push((from, from + start));
                pieces.push((from + end, to));
                continue;
            }
            let mut found: Vec<(usize, usize, Kind, Vec<u8>)> = Vec::new();
            // One that is written in another way has the tag of its value.
            known.find(piece, |start, end, secret| {
                found.push((start, end, secret.kind, secret.value.clone()));
            });
            if with_looks {
                let mut looks = |start: usize, end: usize, kind| {
                    found.push((start, end, kind, piece[start..end].to_vec()));
                };
                tokens::find(piece, |start, end| looks(start, end, Kind::Token));
                for pattern in &self.0.patterns {
                    let matches = pattern.find_iter(piece).filter(|found| !found.is_empty());
                    matches.for_each(|found| looks(found.start(), found.end(), Kind::Pattern));
                }
            }
            if found.is_empty() {
                continue;
            }
            // What was found first is what it is; where others go beyond it, it is all of them.
            found.sort_by_key(|(start, end, ..)| (*start, std::cmp::Reverse(*end)));
            let mut whole: Vec<(usize, usize, Kind, Vec<u8>)> = Vec::new();
            for (start, end, kind, value) in found {
                match whole.last_mut() {
                    Some(last) if end <= last.1 => {}
                    Some(last) if start < last.1 => (last.1, last.3) = (end, piece[last.0..end].to_vec()),
                    _ => whole.push((start, end, kind, value)),
                }
            }
            let mut at = 0;
            for (start, end, kind, value) in whole {
                let (first, last) = text.in_frame(from + start, from + end);
                edits.push((first, last, self.mark(kind, &value)));
                pieces.push((from + at, from + start));
                at = end;
            }
            pieces.push((from + at, to));
        }
    }
}

/// What replaces a part of a frame.
type Edit = (usize, usize, String);

fn apply(frame: &[u8], mut edits: Vec<Edit>) -> Option<Vec<u8>> {
    if edits.is_empty() {
        return None;
    }
    edits.sort_unstable_by_key(|(start, ..)| *start);
    let mut out = Vec::with_capacity(frame.len() + edits.len() * 32);
    let mut at = 0;
    for (start, end, with) in edits {
        out.extend_from_slice(&frame[at..start]);
        out.extend_from_slice(with.as_bytes());
        at = end;
    }
    out.extend_from_slice(&frame[at..]);
    Some(out)
}

/// Those that overlap as one, with what stands for the first.
fn joined(mut edits: Vec<Edit>) -> Vec<Edit> {
    edits.sort_by_key(|(start, ..)| *start);
    let mut whole: Vec<Edit> = Vec::with_capacity(edits.len());
    for (start, end, with) in edits {
        match whole.last_mut() {
            Some(last) if start < last.1 => {
                last.1 = last.1.max(end);
                if last.2.is_empty() {
                    last.2 = with;
                }
            }
            _ => whole.push((start, end, with)),
        }
    }
    whole
}

/// What an editor hands over with a frame and what may turn up later, as far as it is worth
/// searching for.
pub fn handed_over(frame: &[u8]) -> Vec<Secret> {
    let mut secrets = Vec::new();
    places::walk(frame, purpose(frame), &mut |met| {
        let Some(text) = &met.text else { return };
        for (from, to, kind, name) in secrets_of(&met, &text.bytes) {
            secrets.extend(Secret::named(kind, &name, &text.bytes[from..to]));
        }
    });
    secrets
}

/// Whether a frame holds marks: what stood there is not in it.
pub fn has_marks(frame: &[u8]) -> bool {
    next_mark(frame).is_some()
}

/// What of a value is a secret by its place: from where to where, what sort, and its name.
fn secrets_of(met: &Met<'_>, text: &[u8]) -> Vec<(usize, usize, Kind, String)> {
    let Ok(value) = std::str::from_utf8(text) else {
        // What is no text cannot be taken apart.
        return match met.place {
            Place::Secret(kind) => vec![(0, text.len(), kind, met.name.to_owned())],
            Place::Login => vec![(0, text.len(), Kind::Auth, met.name.to_owned())],
            _ => Vec::new(),
        };
    };
    let parts = match met.place {
        _ if met.is_name || value.is_empty() || is_mark(text) => return Vec::new(),
        Place::Secret(kind) => {
            let from = if matches!(kind, Kind::McpHeader | Kind::Auth) { places::header(value) } else { 0 };
            if is_mark(&text[from..]) {
                return Vec::new();
            }
            return vec![(from, value.len(), kind, met.name.to_owned())];
        }
        Place::Login => {
            let from = places::header(value);
            let is_one = words::speaks_of_secret(met.name) || !words::is_ordinary(value);
            return match is_one && !is_mark(&text[from..]) {
                true => vec![(from, value.len(), Kind::Auth, met.name.to_owned())],
                false => Vec::new(),
            };
        }
        Place::Assigned(kind) => {
            let from = value.find('=').map_or(0, |at| at + 1);
            let name = value[..from].trim_end_matches('=').to_owned();
            (kind, if from < value.len() { vec![(from, value.len(), name)] } else { Vec::new() })
        }
        Place::Address => (Kind::McpUrl, places::address(value)),
        Place::Arguments => (Kind::McpArg, places::argument(met.name, value)),
        _ => return Vec::new(),
    };
    let (kind, parts) = parts;
    let parts = parts.into_iter().filter(|(from, to, _)| !is_mark(&text[*from..*to]));
    parts.map(|(from, to, name)| (from, to, kind, name)).collect()
}

/// What a frame is for.
fn purpose(frame: &[u8]) -> Purpose {
    let Ok(peek) = frame::peek(frame) else { return Purpose::Any };
    let name: String = serde_json::from_slice(peek.name.of(frame)).unwrap_or_default();
    let is_login = peek.method == Method::Authenticate
        || ["_auth", "auth/"].iter().any(|start| name.starts_with(start))
        || name == "providers/set";
    match is_login {
        true => Purpose::Login,
        false if answers_form(frame, &peek) => Purpose::Form,
        false => Purpose::Any,
    }
}

/// Whether a frame answers a form: what people type there may be a password. An answer names no
/// method, and it may come when the question is gone; but no other one has these members.
pub fn is_form(frame: &[u8]) -> bool {
    memchr::memmem::find(frame, b"\"action\"").is_some()
        && frame::peek(frame).is_ok_and(|peek| answers_form(frame, &peek))
}

fn answers_form(frame: &[u8], peek: &Peek) -> bool {
    #[derive(serde::Deserialize)]
    struct Form {
        #[serde(rename = "action")]
        _action: serde::de::IgnoredAny,
        content: serde_json::Map<String, serde_json::Value>,
    }
    peek.kind == frame::Kind::Result
        && serde_json::from_slice::<Form>(peek.outcome.of(frame)).is_ok_and(|form| !form.content.is_empty())
}

/// Whether a text is a mark and nothing else.
fn is_mark(text: &[u8]) -> bool {
    next_mark(text) == Some((0, text.len()))
}

/// The first mark in a text.
fn next_mark(text: &[u8]) -> Option<(usize, usize)> {
    let mut from = 0;
    while let Some(start) = memchr::memmem::find(&text[from..], MARK).map(|at| from + at) {
        let rest = &text[start + MARK.len()..];
        let kind = rest.iter().take_while(|byte| byte.is_ascii_lowercase() || **byte == b'-').count();
        let tag = rest.get(kind..kind + TAG + 2).unwrap_or_default();
        let is_tag = |tag: &[u8]| tag[1..=TAG].iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        if kind > 0 && tag.len() == TAG + 2 && tag[0] == b':' && tag[TAG + 1] == b'>' && is_tag(tag) {
            return Some((start, start + MARK.len() + kind + TAG + 2));
        }
        from = start + 1;
    }
    None
}
