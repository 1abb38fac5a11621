//! What the editor has said and the service has not acknowledged: in order,
//! numbered, to be sent again after a loss. No I/O.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::proto::Run;

#[derive(Debug)]
struct Block {
    frames: Bytes,
    count: u32,
}

/// The editor's blocks that may have to be sent again.
#[derive(Debug, Default)]
pub(super) struct Uplink {
    blocks: VecDeque<Block>,
    bytes: usize,
    /// Frames before the first block.
    base: u64,
    /// Blocks that this stream has got.
    sent: usize,
    /// Blocks that any stream of this connection may have brought there.
    tried: usize,
    /// The first block is our own, and no stream has got it yet.
    is_first_ours: bool,
    /// The editor will say no more.
    pub(super) ended: bool,
}

impl Uplink {
    /// Adds what the editor says next.
    pub(super) fn push(&mut self, frames: Bytes) {
        self.bytes += frames.len();
        self.blocks.push_back(block(frames));
    }

    /// Bytes that wait for an ack.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The frames that go out next, if no stream has got them yet.
    pub(super) fn untried(&self) -> Option<&Bytes> {
        let next = self.sent == self.tried;
        self.blocks.get(self.sent).filter(|_| next).map(|block| &block.frames)
    }

    /// Puts others in their place.
    pub(super) fn replace(&mut self, frames: Bytes) {
        if let Some(next) = self.blocks.get_mut(self.sent) {
            self.bytes = self.bytes + frames.len() - next.frames.len();
            *next = block(frames);
        }
    }

    /// Whether what comes next is our own.
    pub(super) fn is_first_ours(&self) -> bool {
        self.is_first_ours
    }

    /// The next block as it goes out. One without frames is passed over.
    pub(super) fn send(&mut self) -> Option<Run> {
        while self.blocks.get(self.sent)?.count == 0 {
            self.blocks.remove(self.sent);
        }
        let Block { frames, count } = self.blocks.get(self.sent)?;
        let earlier: u64 = self.blocks.iter().take(self.sent).map(|block| u64::from(block.count)).sum();
        let run = Run { first_seq: self.base + earlier + 1, count: *count, frames: frames.clone() };
        self.sent += 1;
        self.is_first_ours = false;
        self.tried = self.tried.max(self.sent);
        Some(run)
    }

    /// Forgets the blocks that were taken as a whole.
    pub(super) fn acknowledged(&mut self, seq: u64) {
        while let Some(block) =
            self.blocks.front().filter(|block| self.tried > 0 && self.base + u64::from(block.count) <= seq)
        {
            self.base += u64::from(block.count);
            self.bytes = self.bytes.saturating_sub(block.frames.len());
            self.blocks.pop_front();
            self.sent = self.sent.saturating_sub(1);
            self.tried -= 1;
        }
    }

    /// A new stream carries the connection on, from this number.
    pub(super) fn resumed(&mut self, seq: u64) {
        self.acknowledged(seq);
        self.sent = 0;
    }

    /// There is a new connection. What may have reached the former one is not
    /// said twice; what it never got follows after `first`.
    pub(super) fn restarted(&mut self, first: Bytes) {
        self.blocks.drain(..self.tried + usize::from(self.is_first_ours));
        (self.base, self.sent, self.tried) = (0, 0, 0);
        self.is_first_ours = !first.is_empty();
        if self.is_first_ours {
            self.blocks.push_front(block(first));
        }
        self.bytes = self.blocks.iter().map(|block| block.frames.len()).sum();
    }

    /// What no stream has got yet.
    pub(super) fn rest(&self) -> impl Iterator<Item = &Bytes> {
        self.blocks.iter().skip(self.tried).map(|block| &block.frames)
    }
}

fn block(frames: Bytes) -> Block {
    let count = count(&frames);
    Block { frames, count }
}

fn count(frames: &[u8]) -> u32 {
    memchr::memchr_iter(b'\n', frames).count() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(up: &mut Uplink) -> Vec<(u64, Bytes)> {
        std::iter::from_fn(|| up.send()).map(|run| (run.first_seq, run.frames)).collect()
    }

    #[test]
    fn what_was_not_taken_is_sent_again() {
        let mut up = Uplink::default();
        up.push("a\nb\n".into());
        up.push("c\n".into());
        assert_eq!(sent(&mut up), [(1, "a\nb\n".into()), (3, "c\n".into())]);
        up.push("d\n".into());
        up.acknowledged(1);
        assert_eq!(up.bytes(), 8, "half a block is kept as a whole");
        up.resumed(2);
        assert_eq!(sent(&mut up), [(3, "c\n".into()), (4, "d\n".into())]);
        up.acknowledged(4);
        assert_eq!(up.bytes(), 0);
    }

    #[test]
    fn a_new_connection_gets_only_what_the_former_never_did() {
        let mut up = Uplink::default();
        up.push("a\n".into());
        assert_eq!(sent(&mut up).len(), 1);
        up.push("b\n".into());
        up.restarted("hello\nagain\n".into());
        assert_eq!(sent(&mut up), [(1, "hello\nagain\n".into()), (3, "b\n".into())]);
        up.restarted("hello\n".into());
        assert_eq!(sent(&mut up), [(1, "hello\n".into())]);
    }

    #[test]
    fn a_block_may_become_empty_at_the_last_look() {
        let mut up = Uplink::default();
        up.push("a\n".into());
        up.push("b\n".into());
        assert_eq!(up.untried(), Some(&"a\n".into()));
        up.replace(Bytes::new());
        assert_eq!(sent(&mut up), [(1, "b\n".into())]);
        assert!(up.untried().is_none());
        assert_eq!(up.bytes(), 2);
    }
}
