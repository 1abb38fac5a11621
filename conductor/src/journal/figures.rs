//! What the journal counts: frames by where they come from and go to, how long
//! syncs take, and what was refused.

use super::Cause;
use crate::{
    metrics::{By, Counter, Histogram, Label, QUICK},
    record::{Destination, Origin},
};

/// Frames that were written, by where from and where to. Counted under the
/// journal's lock, which whoever writes has anyway.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Frames([[u64; 4]; 4]);

impl Frames {
    /// How many went this way.
    pub fn of(&self, from: Origin, to: Destination) -> u64 {
        self.0[from as usize][to as usize]
    }

    pub(super) fn add(&mut self, from: Origin, to: Destination, count: u32) {
        self.0[from as usize][to as usize] += u64::from(count);
    }
}

/// What is counted outside of the lock, or too seldom to matter.
#[derive(Debug)]
pub struct Figures {
    /// How long syncs took.
    pub syncs: Histogram,
    /// Those that failed.
    pub sync_failures: Counter,
    /// Appends that were refused, by cause.
    pub refusals: By<Cause>,
}

impl Default for Figures {
    fn default() -> Self {
        Self { syncs: Histogram::new(QUICK), sync_failures: Counter::default(), refusals: By::default() }
    }
}

impl Label for Cause {
    const ALL: &'static [Self] = &[Self::Busy, Self::Cap, Self::Disk, Self::Ledger, Self::Closed];

    fn index(self) -> usize {
        self as usize
    }

    fn name(self) -> &'static str {
        match self {
            Self::Busy => "busy",
            Self::Cap => "cap",
            Self::Disk => "disk",
            Self::Ledger => "ledger",
            Self::Closed => "closed",
        }
    }
}
