//! Numbers that many tasks write and nobody locks.

use std::{
    fmt,
    marker::PhantomData,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use super::{Counts, Label, Metrics};

/// Bounds for what should take no time, in microseconds: from a judgement in
/// memory to a disk that hangs.
pub const QUICK: &[u64] = &[
    50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000,
    2_500_000, 5_000_000, 10_000_000,
];

/// Bounds for what agents and people take their time for, in microseconds.
pub const TURNS: &[u64] = &[
    100_000,
    500_000,
    1_000_000,
    2_500_000,
    5_000_000,
    10_000_000,
    30_000_000,
    60_000_000,
    120_000_000,
    300_000_000,
    600_000_000,
    1_800_000_000,
    3_600_000_000,
];

/// A number that only grows.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// One more.
    pub fn one(&self) {
        self.add(1);
    }

    /// So many more.
    pub fn add(&self, more: u64) {
        self.0.fetch_add(more, Relaxed);
    }

    /// How many so far.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// A number that goes up and down, made of everybody's [`Part`].
#[derive(Debug, Default)]
pub struct Gauge(AtomicU64);

impl Gauge {
    /// How many now.
    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Somebody's part in a gauge. It is taken back when it is dropped, however its
/// owner ends.
pub struct Part {
    metrics: Metrics,
    which: fn(&Counts) -> &Gauge,
    now: u64,
}

impl Part {
    pub(super) fn new(metrics: Metrics, which: fn(&Counts) -> &Gauge) -> Self {
        Self { metrics, which, now: 0 }
    }

    /// Makes the part this large. Nothing is written if it is already.
    pub fn set(&mut self, now: usize) {
        let now = now as u64;
        if now == self.now {
            return;
        }
        // Wrapping around zero is what makes one addition do for both directions.
        (self.which)(&self.metrics).0.fetch_add(now.wrapping_sub(self.now), Relaxed);
        self.now = now;
    }

    /// The same part, one large.
    #[must_use]
    pub fn held(mut self) -> Self {
        self.set(1);
        self
    }
}

impl fmt::Debug for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Part").field(&self.now).finish()
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.set(0);
    }
}

/// A counter for each of a closed set of names.
#[derive(Debug)]
pub struct By<L> {
    counts: Box<[Counter]>,
    of: PhantomData<L>,
}

impl<L: Label> Default for By<L> {
    fn default() -> Self {
        Self { counts: L::ALL.iter().map(|_| Counter::default()).collect(), of: PhantomData }
    }
}

impl<L: Label> By<L> {
    /// The counter of one.
    pub fn of(&self, label: L) -> &Counter {
        &self.counts[label.index()]
    }

    /// All of them with their names.
    pub fn all(&self) -> impl Iterator<Item = (&'static str, u64)> {
        L::ALL.iter().map(|label| (label.name(), self.of(*label).get()))
    }
}

/// How often something took how long.
#[derive(Debug)]
pub struct Histogram {
    /// Upper bounds in microseconds; what is above the last has a place of its own.
    bounds: &'static [u64],
    counts: Box<[AtomicU64]>,
    sum_us: AtomicU64,
}

/// A histogram at one moment.
#[derive(Debug, Clone, PartialEq)]
pub struct Spread {
    /// Upper bounds, in seconds.
    pub bounds: Vec<f64>,
    /// How many lie in each, and one more place for what is above all.
    pub counts: Vec<u64>,
    /// All together, in seconds.
    pub sum: f64,
}

impl Spread {
    /// How many there are.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
}

impl Histogram {
    /// An empty one.
    pub fn new(bounds: &'static [u64]) -> Self {
        let counts = (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect();
        Self { bounds, counts, sum_us: AtomicU64::new(0) }
    }

    /// Something took so long.
    pub fn took(&self, time: Duration) {
        self.took_us(u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
    }

    /// The same in microseconds.
    pub fn took_us(&self, us: u64) {
        let at = self.bounds.partition_point(|bound| *bound < us);
        self.counts[at].fetch_add(1, Relaxed);
        self.sum_us.fetch_add(us, Relaxed);
    }

    /// What it has come to.
    pub fn spread(&self) -> Spread {
        Spread {
            bounds: self.bounds.iter().map(|us| *us as f64 / 1e6).collect(),
            counts: self.counts.iter().map(|count| count.load(Relaxed)).collect(),
            sum: self.sum_us.load(Relaxed) as f64 / 1e6,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_make_up_a_gauge_and_go_with_their_owners() {
        let metrics = Metrics::default();
        let mut one = metrics.part(|counts| &counts.prompts_waiting);
        let other = metrics.part(|counts| &counts.prompts_waiting).held();
        one.set(5);
        assert_eq!(metrics.prompts_waiting.get(), 6);
        one.set(2);
        drop(other);
        assert_eq!(metrics.prompts_waiting.get(), 2);
        drop(one);
        assert_eq!(metrics.prompts_waiting.get(), 0);
    }

    #[test]
    fn times_fall_into_the_bucket_whose_bound_they_do_not_exceed() {
        let histogram = Histogram::new(&[10, 100]);
        for us in [0, 10, 11, 100, 101] {
            histogram.took_us(us);
        }
        let spread = histogram.spread();
        assert_eq!(spread.counts, [2, 2, 1]);
        assert_eq!((spread.count(), spread.bounds), (5, vec![0.000_01, 0.000_1]));
    }
}
