//! Frames for the editor that may have to be sent again: in order, numbered,
//! until they are acknowledged. No I/O.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::session::Packet;

/// A packet and the number of its first frame.
#[derive(Debug, Clone)]
pub(super) struct Numbered {
    pub(super) first: u64,
    pub(super) packet: Packet,
}

impl Numbered {
    /// The number of its last frame.
    pub(super) fn last(&self) -> u64 {
        self.first + u64::from(self.packet.count) - 1
    }
}

/// What was sent on the stream and what is to be sent next.
#[derive(Debug, Default)]
pub(super) struct Kept {
    runs: VecDeque<Numbered>,
    bytes: usize,
    /// How many of them the stream has got.
    sent: usize,
}

impl Kept {
    /// Adds what comes next.
    pub(super) fn push(&mut self, run: Numbered) {
        self.bytes += run.packet.frames.len();
        self.runs.push_back(run);
    }

    /// Bytes in memory.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Whether something is to be sent.
    pub(super) fn has_unsent(&self) -> bool {
        self.sent < self.runs.len()
    }

    /// What the stream gets next. It is forgotten unless it `keeps`.
    pub(super) fn send(&mut self, keeps: bool) -> Option<Numbered> {
        let run = self.runs.get(self.sent)?.clone();
        if keeps {
            self.sent += 1;
        } else {
            self.bytes -= run.packet.frames.len();
            self.runs.remove(self.sent);
        }
        Some(run)
    }

    /// Forgets every run that was taken as a whole.
    pub(super) fn acknowledged(&mut self, seq: u64) {
        while let Some(run) = self.runs.front().filter(|run| run.last() <= seq) {
            self.bytes -= run.packet.frames.len();
            self.sent = self.sent.saturating_sub(1);
            self.runs.pop_front();
        }
    }

    /// Forgets what was sent: nobody will ask for it again.
    pub(super) fn forget_sent(&mut self) {
        for run in self.runs.drain(..self.sent) {
            self.bytes -= run.packet.frames.len();
        }
        self.sent = 0;
    }

    /// A new stream begins after this number.
    pub(super) fn rewind(&mut self, seq: u64) {
        self.acknowledged(seq);
        self.sent = 0;
        if let Some(run) = self.runs.front_mut().filter(|run| run.first <= seq) {
            let taken = (seq + 1 - run.first) as u32;
            let rest = after(&run.packet.frames, taken);
            self.bytes -= run.packet.frames.len() - rest.len();
            run.packet = Packet { frames: rest, count: run.packet.count - taken };
            run.first = seq + 1;
        }
    }
}

/// What follows the first `count` lines.
pub(super) fn after(lines: &Bytes, count: u32) -> Bytes {
    let skipped = (count as usize).checked_sub(1);
    let newline = skipped.and_then(|skipped| memchr::memchr_iter(b'\n', lines).nth(skipped));
    match (count, newline) {
        (0, _) => lines.clone(),
        (_, Some(newline)) => lines.slice(newline + 1..),
        (_, None) => Bytes::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(first: u64, lines: &'static str) -> Numbered {
        let count = lines.lines().count() as u32;
        Numbered { first, packet: Packet { frames: Bytes::from_static(lines.as_bytes()), count } }
    }

    fn sent(kept: &mut Kept) -> Vec<(u64, Bytes)> {
        std::iter::from_fn(|| kept.send(true)).map(|run| (run.first, run.packet.frames)).collect()
    }

    #[test]
    fn a_new_stream_gets_what_the_former_did_not_deliver() {
        let mut kept = Kept::default();
        kept.push(run(1, "a\nb\n"));
        kept.push(run(3, "c\nd\ne\n"));
        assert_eq!(sent(&mut kept).len(), 2);
        kept.push(run(6, "f\n"));
        kept.acknowledged(1);
        assert_eq!(kept.bytes(), 12, "half a run is kept as a whole");
        kept.rewind(4);
        assert_eq!(sent(&mut kept), [(5, "e\n".into()), (6, "f\n".into())]);
        kept.rewind(4);
        assert_eq!(sent(&mut kept).len(), 2, "as often as need be");
        kept.acknowledged(6);
        assert_eq!((kept.bytes(), kept.has_unsent()), (0, false));
    }

    #[test]
    fn what_nobody_will_ask_for_is_not_kept() {
        let mut kept = Kept::default();
        kept.push(run(1, "a\n"));
        kept.push(run(2, "b\n"));
        assert!(kept.send(true).is_some());
        kept.forget_sent();
        assert_eq!(kept.send(false).map(|run| run.first), Some(2));
        assert_eq!((kept.bytes(), kept.has_unsent()), (0, false));
    }
}
