//! Which requests have no answer yet, in both directions.
//!
//! Should the service vanish, nobody must wait for ever: the editor's requests
//! are then answered with an error, and those of agents are taken back. On the
//! way down only frames that may matter are looked at; updates, which are most,
//! are told by their first bytes.

use bytes::{Bytes, BytesMut};
use serde_json::{Value, json};

use super::recall::Recall;
use crate::{
    acp::{self, Refusal, code},
    frame::{Frame, Kind},
};

/// How nearly every update begins.
const UPDATE: &[u8] = br#"{"jsonrpc":"2.0","method":"session/update""#;

/// More requests than an editor ever has open; the oldest is forgotten.
const MOST: usize = 4096;

/// The raw ids of requests without an answer.
#[derive(Debug, Default)]
pub(super) struct InFlight {
    /// The editor's.
    ids: Vec<Bytes>,
    /// Those to the editor.
    asks: Vec<Bytes>,
}

impl InFlight {
    /// Takes note of lines from the editor.
    pub(super) fn asked(&mut self, block: &Bytes, recall: &mut Recall) {
        for frame in frames(block, b"") {
            let id = frame.peek().id;
            match frame.peek().kind {
                Kind::Request => {
                    push(&mut self.ids, frame.copy(id));
                    recall.asked(&frame);
                }
                Kind::Result | Kind::Error => self.asks.retain(|ask| ask != frame.get(id)),
                _ => {}
            }
        }
    }

    /// Takes note of lines from the service.
    pub(super) fn answered(&mut self, block: &Bytes, recall: &mut Recall) {
        for frame in frames(block, UPDATE) {
            let id = frame.peek().id;
            match frame.peek().kind {
                Kind::Request => push(&mut self.asks, frame.copy(id)),
                Kind::Result | Kind::Error => {
                    self.ids.retain(|open| open != frame.get(id));
                    recall.answered(&frame);
                }
                _ => {}
            }
        }
    }

    /// Whether the editor waits for the answer to this.
    pub(super) fn waits_for(&self, id: &[u8]) -> bool {
        self.ids.iter().any(|open| open == id)
    }

    /// The answers to all that is left but `spared`, which will be asked again.
    /// They say how far the service's frames have come.
    pub(super) fn refusals(&mut self, why: &str, last_seq: u64, spared: impl Fn(&[u8]) -> bool) -> Vec<u8> {
        let data = Some(json!({ "lastSeq": last_seq }));
        let refusal = Refusal { code: code::UNREACHABLE, message: why.to_string(), data };
        let (kept, ids): (Vec<_>, Vec<_>) = self.ids.drain(..).partition(|id| spared(id));
        self.ids = kept;
        ids.into_iter().flat_map(|id| refusal.frame(&id)).collect()
    }

    /// Takes back what the service asked the editor.
    pub(super) fn withdrawals(&mut self) -> Bytes {
        let mut out = BytesMut::new();
        for id in self.asks.drain(..) {
            let id: Value = serde_json::from_slice(&id).unwrap_or_default();
            out.extend_from_slice(&acp::call(None, "$/cancel_request", &json!({ "requestId": id })));
        }
        out.freeze()
    }
}

fn push(ids: &mut Vec<Bytes>, id: Bytes) {
    if ids.len() >= MOST {
        ids.remove(0);
    }
    ids.push(id);
}

/// The lines that do not begin like `others`. Found by `memchr`: this passes
/// over every byte that comes down.
fn frames(block: &Bytes, others: &'static [u8]) -> impl Iterator<Item = Frame> {
    let mut start = 0;
    let lines = memchr::memchr_iter(b'\n', block).map(move |end| std::mem::replace(&mut start, end + 1)..end);
    let lines = lines.filter(move |line| others.is_empty() || !block[line.clone()].starts_with(others));
    lines.filter_map(|line| Frame::parse(block.slice(line)).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_has_no_answer_is_refused() {
        let (mut open, mut recall) = (InFlight::default(), Recall::default());
        open.asked(
            &Bytes::from_static(
                b"{\"id\":1,\"method\":\"a\"}\n{\"method\":\"n\"}\n{\"jsonrpc\":\"2.0\",\"method\":\"b\",\"id\":\"1\"}\n{\"id\":9,\"result\":0}\n",
            ),
            &mut recall,
        );
        open.answered(
            &Bytes::from_static(
                b"{\"jsonrpc\":\"2.0\",\"method\":\"session/update\"}\n{\"id\":1,\"result\":{}}\n{\"jsonrpc\":\"2.0\",\"method\":\"ask\",\"id\":7}\n{\"id\":8,\"method\":\"ask\"}\n",
            ),
            &mut recall,
        );
        open.asked(&Bytes::from_static(b"{\"id\":8,\"result\":{}}\n"), &mut recall);
        assert!(open.waits_for(b"\"1\""));
        let left = String::from_utf8(open.refusals("gone", 7, |_| false)).unwrap_or_default();
        assert_eq!(left.lines().count(), 1, "{left}");
        assert!(
            left.contains(r#""id":"1","error":{"code":-31003,"message":"gone","data":{"lastSeq":7}}"#),
            "{left}"
        );
        let back = String::from_utf8(open.withdrawals().to_vec()).unwrap_or_default();
        assert!(back.lines().count() == 1 && back.contains(r#""requestId":7"#), "{back}");
    }
}
