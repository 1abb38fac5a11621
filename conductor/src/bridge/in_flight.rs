//! Which of the editor's requests have no answer yet.
//!
//! Should the service vanish, the editor must not wait for ever: each of these
//! is then answered with an error. On the way down only frames that may be
//! answers are looked at; updates, which are most, are told by their first
//! bytes.

use bytes::Bytes;

use crate::{
    acp::{Refusal, code},
    frame::{Frame, Kind},
};

/// How nearly every update begins.
const UPDATE: &[u8] = br#"{"jsonrpc":"2.0","method":"#;

/// More requests than an editor ever has open; the oldest is forgotten.
const MOST: usize = 4096;

/// The raw ids of requests without an answer.
#[derive(Debug, Default)]
pub(super) struct InFlight {
    ids: Vec<Bytes>,
}

impl InFlight {
    /// Takes note of requests in lines from the editor.
    pub(super) fn asked(&mut self, block: &Bytes) {
        for frame in frames(block).filter(|frame| frame.peek().kind == Kind::Request) {
            if self.ids.len() >= MOST {
                self.ids.remove(0);
            }
            self.ids.push(frame.copy(frame.peek().id));
        }
    }

    /// Takes note of answers in lines from the service.
    pub(super) fn answered(&mut self, block: &Bytes) {
        if self.ids.is_empty() {
            return;
        }
        for frame in frames(block).filter(|frame| matches!(frame.peek().kind, Kind::Result | Kind::Error)) {
            self.ids.retain(|id| id != frame.get(frame.peek().id));
        }
    }

    /// The answers to all that is left.
    pub(super) fn refusals(&mut self, why: &str) -> Vec<u8> {
        let refusal = Refusal::new(code::UNREACHABLE, why);
        self.ids.drain(..).flat_map(|id| refusal.frame(&id)).collect()
    }
}

/// The lines that may be requests or answers. Found by `memchr`: this passes
/// over every byte that comes down.
fn frames(block: &Bytes) -> impl Iterator<Item = Frame> {
    let mut start = 0;
    let lines = memchr::memchr_iter(b'\n', block).map(move |end| std::mem::replace(&mut start, end + 1)..end);
    let lines = lines.filter(|line| !block[line.clone()].starts_with(UPDATE));
    lines.filter_map(|line| Frame::parse(block.slice(line)).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_has_no_answer_is_refused() {
        let mut open = InFlight::default();
        open.asked(&Bytes::from_static(
            b"{\"id\":1,\"method\":\"a\"}\n{\"method\":\"n\"}\n{\"id\":\"1\",\"method\":\"b\"}\n{\"id\":9,\"result\":0}\n",
        ));
        open.answered(&Bytes::from_static(
            b"{\"jsonrpc\":\"2.0\",\"method\":\"session/update\"}\n{\"id\":1,\"result\":{}}\n",
        ));
        let left = String::from_utf8(open.refusals("gone")).unwrap_or_default();
        assert_eq!(left.lines().count(), 1, "{left}");
        assert!(left.contains(r#""id":"1","error":{"code":-31003,"message":"gone""#), "{left}");
    }
}
