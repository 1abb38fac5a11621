//! What one user or team has used. No I/O, and no clock of its own.

use std::collections::BTreeMap;

use super::{KEPT_DAYS, exceeded::Kind};

/// Seconds that are looked back upon.
const SECONDS: usize = 60;

/// What was used.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Used {
    /// Prompts.
    pub prompts: u64,
    /// Tokens, as far as agents report them.
    pub tokens: u64,
    /// Millionths of money, likewise.
    pub cost_micros: u64,
}

impl std::iter::Sum for Used {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, used| Self {
            prompts: sum.prompts.saturating_add(used.prompts),
            tokens: sum.tokens.saturating_add(used.tokens),
            cost_micros: sum.cost_micros.saturating_add(used.cost_micros),
        })
    }
}

/// What one of them has used.
#[derive(Debug, Default)]
pub(super) struct Account {
    pub(super) sessions: u64,
    pub(super) processes: u64,
    pub(super) minute: Minute,
    /// By the day's number.
    pub(super) days: BTreeMap<i64, Used>,
}

impl Account {
    /// How many are in use now.
    pub(super) fn held(&mut self, kind: Kind) -> &mut u64 {
        match kind {
            Kind::Processes => &mut self.processes,
            _ => &mut self.sessions,
        }
    }

    /// What is used on a day. What is long past is forgotten.
    pub(super) fn day(&mut self, today: i64) -> &mut Used {
        if !self.days.contains_key(&today) {
            self.days = self.days.split_off(&(today - KEPT_DAYS));
        }
        self.days.entry(today).or_default()
    }
}

/// How much happened in each of the last sixty seconds.
#[derive(Debug)]
pub(super) struct Minute {
    counts: [u32; SECONDS],
    /// The last second that is counted.
    last: u64,
}

impl Default for Minute {
    fn default() -> Self {
        Self { counts: [0; SECONDS], last: 0 }
    }
}

impl Minute {
    /// Counts one.
    pub(super) fn count(&mut self, second: u64) {
        let second = second.max(self.last);
        let passed = usize::try_from(second - self.last).unwrap_or(SECONDS).min(SECONDS);
        for step in 1..=passed as u64 {
            self.counts[slot(self.last + step)] = 0;
        }
        if passed == SECONDS {
            self.counts = [0; SECONDS];
        }
        self.last = second;
        let count = &mut self.counts[slot(second)];
        *count = count.saturating_add(1);
    }

    /// What there was in a second, if that is not longer ago than a minute.
    fn at(&self, second: u64) -> u64 {
        let is_kept = second <= self.last && self.last - second < SECONDS as u64;
        if is_kept { self.counts[slot(second)].into() } else { 0 }
    }

    /// What there was in the minute before a second's end.
    pub(super) fn sum(&self, second: u64) -> u64 {
        let first = (second + 1).saturating_sub(SECONDS as u64);
        (first..=second).map(|second| self.at(second)).sum()
    }

    /// In how many seconds there are fewer than this; never if that is none.
    pub(super) fn free_in(&self, second: u64, most: u64) -> Option<u64> {
        (0..=SECONDS as u64).find(|wait| self.sum(second + wait) < most)
    }
}

fn slot(second: u64) -> usize {
    (second % SECONDS as u64) as usize
}
