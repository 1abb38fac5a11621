//! What the journal knows of the ledger: how far it is behind, and whether that
//! is too far.

use super::{Status, format::Position, log::Log};

/// The part of the cap from which on people are told, in percent.
const ALARM: u64 = 20;
/// The part at which the next alarm is due again, in percent.
const CALM: u64 = 10;

impl Log {
    /// The ledger has everything up to here.
    pub(super) fn shipped_to(&mut self, upto: Position) {
        let further = upto.segment > self.shipped.segment;
        self.shipped = upto.min(self.synced_end);
        while self.marks.front().is_some_and(|(at, _)| *at <= self.shipped) {
            if let Some((_, number)) = self.marks.pop_front() {
                self.shipped_no = number;
            }
        }
        self.count_unshipped();
        let cap = self.settings.cap_bytes;
        if self.unshipped <= cap - cap / 20 {
            self.capped = None;
        }
        if self.unshipped <= percent(cap, CALM) {
            self.alarmed = false;
        }
        self.chores |= further;
    }

    /// Says once that the ledger is far behind. Whether it did.
    pub(super) fn alarm(&mut self) -> bool {
        let cap = self.settings.cap_bytes;
        if self.alarmed || self.unshipped < percent(cap, ALARM) {
            return false;
        }
        self.alarmed = true;
        tracing::warn!(
            journal.unshipped = self.unshipped,
            journal.cap = cap,
            "the ledger is far behind; at the cap effects are refused"
        );
        true
    }

    pub(super) fn status(&self) -> Status {
        let behind = self.shipped < self.end;
        let time = |position: Position| {
            let (number, segment) = self.segments.range(position.segment..).next()?;
            segment.time_at(if *number == position.segment { position.offset } else { 0 })
        };
        Status {
            unshipped: self.unshipped,
            cap: self.settings.cap_bytes,
            bytes: self.segments.values().map(|segment| segment.end).sum(),
            segments: self.segments.len(),
            unsynced: self.unsynced_bytes,
            frames: self.frames,
            appended: self.appended,
            unrecorded: self.unrecorded,
            damaged: self.damaged,
            refusing: self.refusing(),
            // Times are kept every now and then only; nothing is older than this.
            oldest_unshipped_us: match behind {
                true => time(self.shipped).map(|at_us| at_us.max(self.behind_since_us)),
                false => None,
            },
            shipped: self.shipped,
            end: self.end,
        }
    }
}

fn percent(whole: u64, part: u64) -> u64 {
    whole / 100 * part
}
