//! Numbers that look random and come again from the same seed, and numbers that
//! the environment gives: what makes a long run, or another one, of a test.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

use std::{env, time::Duration};

/// What a variable says, or this.
pub fn number(variable: &str, default: u64) -> u64 {
    env::var(variable).ok().map_or(default, |text| text.parse().unwrap())
}

/// A small generator (xorshift).
#[derive(Debug, Clone)]
pub struct Dice(u64);

impl Dice {
    /// One that rolls as every other of this seed.
    pub fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    /// Another one, for somebody who rolls at times of their own.
    #[must_use]
    pub fn fork(&mut self) -> Self {
        // Two seeds that lie near each other begin alike, so this is spread.
        Self::new(self.roll(u64::MAX).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// A number below this one.
    pub fn roll(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % below
    }

    /// A number between these, the last one left out.
    pub fn between(&mut self, from: u64, to: u64) -> u64 {
        from + self.roll((to - from).max(1))
    }

    /// Whether it is one of so many.
    pub fn one_in(&mut self, of: u64) -> bool {
        self.roll(of) == 0
    }

    /// A time between these, in milliseconds.
    pub fn millis(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(self.between(from, to))
    }
}
