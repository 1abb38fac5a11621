//! Secrets that come in pieces. Models stream a few characters at a time and the ledger joins the
//! chunks of a message, so that what no frame holds would stand in the record all the same.
//!
//! Of each message the last bytes are remembered. Where a chunk ends in what a secret begins
//! with, the record has a mark in place of that, and what goes on with it in the next chunk is
//! left out. Nothing waits for what comes next: what turns out to be no secret was replaced by
//! then, and of one that comes in very small pieces the first few bytes stay.
//!
//! Of a chunk without any of this only the ends are looked at, and nothing is allocated for it.

use std::fmt;

use super::{
    Kind, Known, Redaction, text,
    tokens::{self, Reach},
};
use crate::frame::Peek;

/// What is said in pieces.
const ROLES: &[&[u8]] = &[b"\"agent_message_chunk\"", b"\"agent_thought_chunk\"", b"\"user_message_chunk\""];

/// Messages of one stream that are remembered: parts of several may come by turns.
const MESSAGES: usize = 8;

/// Bytes remembered of each. What a token is known by is shorter.
const TAIL: usize = 40;

/// A longer text is not read as a whole, but so much of its beginning and of its end.
const LONG: usize = 4096;
const HEAD: usize = 512;
const ENDING: usize = 2048;

/// What of a chunk's text is replaced, beside what it holds itself.
#[derive(Debug, PartialEq, Eq)]
pub struct Cut {
    /// Bytes at its beginning, and what stands for them.
    pub(super) head: (usize, String),
    /// The same at its end.
    pub(super) tail: (usize, String),
}

/// The seams between the chunks of a stream's messages.
#[derive(Default)]
pub struct Seams {
    messages: Vec<Message>,
    /// Which one is forgotten for the next.
    oldest: usize,
    /// Room for the end of a chunk and the next one; kept, since it is needed for each.
    joint: Vec<u8>,
}

// Written by hand: what was said is not shown.
impl fmt::Debug for Seams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Seams").field("messages", &self.messages.len()).finish_non_exhaustive()
    }
}

/// What is remembered of a message.
struct Message {
    name: u64,
    tail: [u8; TAIL],
    len: usize,
    going: Going,
}

/// What a message was in the middle of when its last chunk ended.
#[derive(Default)]
enum Going {
    #[default]
    Nothing,
    /// A token, which may have these in it, too.
    Token(&'static [u8]),
    /// A known value: which way of writing it, and how much of that was there.
    Value(Known, usize, usize),
}

/// What a chunk begins with that has begun before it.
struct Across {
    end: usize,
    mark: String,
    going: Going,
}

impl Seams {
    /// Takes a frame of the stream, and says what of it is to be replaced. Whether it was suspected
    /// to hold a secret as it is says how far back one may have begun.
    #[inline]
    pub fn pass(
        &mut self,
        redaction: &Redaction,
        known: &Known,
        frame: &[u8],
        peek: &Peek,
        is_suspect: bool,
    ) -> Option<Cut> {
        let role = ROLES.iter().position(|role| *role == peek.update.of(frame))?;
        let raw = peek.text.of(frame).strip_prefix(b"\"")?.strip_suffix(b"\"")?;
        if raw.is_empty() {
            return None;
        }
        let reach = if is_suspect { Reach::Long } else { Reach::Short };
        let at = self.place(name(role, id_of(frame, peek.message as usize)));
        let (message, joint) = (&mut self.messages[at], &mut self.joint);
        let (begin, is_begin) = (message.len, message.len < TAIL);
        let going = std::mem::take(&mut message.going);
        let mut is_whole = raw.len() <= LONG || !matches!(going, Going::Nothing);
        let across = loop {
            joint.clear();
            joint.extend_from_slice(&message.tail[..begin]);
            text::decode(raw, if is_whole { raw.len() } else { HEAD }, joint);
            let across = across(redaction, known, joint, begin, is_begin, &going);
            if is_whole || across.end < joint.len() {
                break across;
            }
            is_whole = true;
        };
        let mut cut = Cut { head: (across.end - begin, across.mark), tail: (0, String::new()) };
        message.going = across.going;
        if !is_whole {
            joint.clear();
            ending_of(raw, joint);
        }
        let from = if is_whole { across.end } else { 0 };
        if from < joint.len()
            && let Some((start, mark, going)) =
                ending(redaction, known, joint, from, is_whole && is_begin, reach)
        {
            cut.tail = (joint.len() - start, mark);
            message.going = going;
        }
        let kept = &joint[joint.len().saturating_sub(TAIL)..];
        message.tail[..kept.len()].copy_from_slice(kept);
        message.len = kept.len();
        (cut.head.0 + cut.tail.0 > 0).then_some(cut)
    }

    /// Where a message is remembered.
    fn place(&mut self, name: u64) -> usize {
        if let Some(at) = self.messages.iter().position(|message| message.name == name) {
            return at;
        }
        let new = Message { name, tail: [0; TAIL], len: 0, going: Going::Nothing };
        if self.messages.len() < MESSAGES {
            self.messages.push(new);
            return self.messages.len() - 1;
        }
        let at = self.oldest;
        self.oldest = (at + 1) % MESSAGES;
        self.messages[at] = new;
        at
    }
}

/// The id of a message, as far as it tells messages apart: to its first quote.
fn id_of(frame: &[u8], at: usize) -> &[u8] {
    match frame.get(at..).unwrap_or_default() {
        [b'"', id @ ..] if at > 0 => &id[..memchr::memchr(b'"', id).unwrap_or(id.len())],
        _ => b"",
    }
}

/// A number for a message. That of another may be the same; then a little more is replaced.
fn name(role: usize, id: &[u8]) -> u64 {
    id.chunks(8).fold(role as u64 + 1, |name, part| {
        let mut word = [0; 8];
        word[..part.len()].copy_from_slice(part);
        (name ^ u64::from_le_bytes(word)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
    })
}

/// The end of a long text, from a place on that is in no escape: behind a space, if there are
/// escapes at all.
fn ending_of(raw: &[u8], out: &mut Vec<u8>) {
    let last = &raw[raw.len().saturating_sub(ENDING)..];
    let from = match memchr::memchr(b'\\', last) {
        None => 0,
        Some(_) => memchr::memchr(b' ', last).map_or(last.len(), |at| at + 1),
    };
    text::decode(&last[from..], last.len(), out);
}

/// What goes on, or shows to have begun, at the beginning of the chunk that begins at `begin`.
fn across(
    redaction: &Redaction,
    known: &Known,
    joint: &[u8],
    begin: usize,
    is_begin: bool,
    going: &Going,
) -> Across {
    let mut across = Across { end: begin, mark: String::new(), going: Going::Nothing };
    match going {
        Going::Nothing => {}
        Going::Token(signs) => {
            across.end += tokens::more(&joint[begin..], signs);
            if across.end == joint.len() {
                across.going = Going::Token(signs);
            }
            return across;
        }
        Going::Value(known, form, at) => {
            let (form, more, is_over) = known.more(*form, *at, &joint[begin..]);
            across.end += more;
            if across.end == joint.len() {
                if !is_over {
                    across.going = Going::Value(known.clone(), form, at + more);
                }
                return across;
            }
        }
    }
    let is_new = across.end == begin;
    if is_new && let Some(begun) = known.begun(joint, begin) {
        across.end = begun.end;
        across.mark = redaction.mark(begun.secret.kind, &begun.secret.value);
        if begun.is_open {
            across.going = Going::Value(known.clone(), begun.form, begun.end - begun.start);
        }
    }
    // What began like a value may have been a token that begins as that does.
    if let Some((start, end, signs)) = tokens::begun(joint, begin, is_begin, Reach::Short)
        && end > across.end
    {
        if is_new && across.mark.is_empty() {
            across.mark = redaction.mark(Kind::Token, &joint[start..end]);
        }
        across.end = end;
        across.going = if end == joint.len() { Going::Token(signs) } else { Going::Nothing };
    }
    across
}

/// What a text ends in, from `from` on: where that begins, what stands for it, and what it is.
fn ending(
    redaction: &Redaction,
    known: &Known,
    joint: &[u8],
    from: usize,
    is_begin: bool,
    reach: Reach,
) -> Option<(usize, String, Going)> {
    let value = known.ending(joint, from);
    let token = tokens::begun(joint, joint.len(), is_begin, reach).filter(|(start, ..)| *start >= from);
    if let Some(begun) = value.filter(|begun| token.is_none_or(|(start, ..)| begun.start <= start)) {
        let mark = redaction.mark(begun.secret.kind, &begun.secret.value);
        return Some((begun.start, mark, Going::Value(known.clone(), begun.form, begun.end - begun.start)));
    }
    let (start, end, signs) = token?;
    Some((start, redaction.mark(Kind::Token, &joint[start..end]), Going::Token(signs)))
}

#[cfg(test)]
mod tests;
