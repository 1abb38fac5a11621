//! What the service has of memory, descriptors and threads, second by second, and
//! whether it is ever more: a line through the samples of the calm, by least squares.
//!
//! Only a growth that is a line and no noise, and more than steady work explains, is
//! called a leak: the journal's index and the allocator take their time to settle.

use std::{
    sync::Mutex,
    time::{Duration, Instant},
};

use conductor_tests::procfs::{Holds, holds};
use serde_json::{Value, json};

use crate::findings::{Kind, Trouble};

/// How often the service is looked at.
pub const EVERY: Duration = Duration::from_secs(1);

/// A line through fewer samples says nothing.
const ENOUGH: usize = 60;

/// From this share of what varies that the line explains, it is a line and no noise.
const IS_A_LINE: f64 = 0.6;

/// What the whole calm may add before that line counts as a leak.
const MEMORY_KIB: f64 = 24.0 * 1024.0;
const DESCRIPTORS: f64 = 24.0;
const THREADS: f64 = 6.0;

/// One look.
#[derive(Debug, Clone, Copy)]
struct Sample {
    at: Instant,
    holds: Holds,
    calm: bool,
}

/// All looks so far.
#[derive(Debug, Default)]
pub struct Gauges {
    samples: Mutex<Vec<Sample>>,
}

/// A line through samples.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Line {
    /// Per second.
    pub slope: f64,
    /// The share of what varies that it explains.
    pub fit: f64,
}

impl Line {
    /// The line with the least squares.
    fn through(points: &[(f64, f64)]) -> Self {
        let count = points.len() as f64;
        let mean = |of: fn(&(f64, f64)) -> f64| points.iter().map(of).sum::<f64>() / count;
        let (x, y) = (mean(|point| point.0), mean(|point| point.1));
        let sum = |of: &dyn Fn(f64, f64) -> f64| points.iter().map(|at| of(at.0 - x, at.1 - y)).sum::<f64>();
        let (xx, xy, yy) = (sum(&|x, _| x * x), sum(&|x, y| x * y), sum(&|_, y| y * y));
        if xx == 0.0 || yy == 0.0 {
            return Self { slope: 0.0, fit: 0.0 };
        }
        Self { slope: xy / xx, fit: xy * xy / (xx * yy) }
    }
}

/// What the calm shows of one thing.
#[derive(Debug)]
pub struct Trend {
    pub name: &'static str,
    pub unit: &'static str,
    pub line: Line,
    /// At the beginning and at the end of the calm, and the most ever.
    pub first: u64,
    pub last: u64,
    pub peak: u64,
    /// How long the calm was looked at, and how often.
    pub seconds: f64,
    pub samples: usize,
    bound: f64,
}

impl Trend {
    /// How much more in an hour.
    pub fn per_hour(&self) -> f64 {
        self.line.slope * 3600.0
    }

    /// A leak, if it clearly is one.
    pub fn trouble(&self) -> Option<Trouble> {
        let grown = self.line.slope * self.seconds;
        let is_leak = self.samples >= ENOUGH && self.line.fit >= IS_A_LINE && grown > self.bound;
        is_leak.then(|| {
            let Self { name, unit, seconds, bound, .. } = self;
            Trouble::one(
                Kind::Leak,
                format!(
                    "{name} grew by {grown:.0} {unit} in {seconds:.0} s of steady work; {bound:.0} may be"
                ),
            )
        })
    }

    pub fn json(&self) -> Value {
        json!({
            "per_hour": self.per_hour(), "fit": self.line.fit, "first": self.first, "last": self.last,
            "peak": self.peak, "samples": self.samples, "seconds": self.seconds, "unit": self.unit,
        })
    }
}

impl Gauges {
    /// Looks at the service, which may be gone.
    pub fn sample(&self, pid: u32, calm: bool) {
        if let Some(holds) = holds(pid) {
            self.samples.lock().unwrap().push(Sample { at: Instant::now(), holds, calm });
        }
    }

    /// What the calm shows.
    pub fn trends(&self) -> Vec<Trend> {
        let samples = self.samples.lock().unwrap();
        let trend = |name, unit, bound, of: fn(&Holds) -> u64| {
            let calm: Vec<&Sample> = samples.iter().filter(|sample| sample.calm).collect();
            let since = |sample: &Sample| (sample.at - calm[0].at).as_secs_f64();
            let points: Vec<_> =
                calm.iter().map(|sample| (since(sample), of(&sample.holds) as f64)).collect();
            Trend {
                name,
                unit,
                bound,
                line: Line::through(&points),
                first: calm.first().map_or(0, |sample| of(&sample.holds)),
                last: calm.last().map_or(0, |sample| of(&sample.holds)),
                peak: samples.iter().map(|sample| of(&sample.holds)).max().unwrap_or_default(),
                seconds: calm.last().map_or(0.0, |sample| since(sample)),
                samples: calm.len(),
            }
        };
        vec![
            trend("resident memory", "KiB", MEMORY_KIB, |holds| holds.resident),
            trend("descriptors", "", DESCRIPTORS, |holds| holds.descriptors),
            trend("threads", "", THREADS, |holds| holds.threads),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(of: impl Fn(u64) -> u64) -> Trend {
        let gauges = Gauges::default();
        let begun = Instant::now();
        for second in 0..120 {
            let holds = Holds { resident: of(second), descriptors: 40, threads: 5 };
            let at = begun + Duration::from_secs(second);
            gauges.samples.lock().unwrap().push(Sample { at, holds, calm: second >= 20 });
        }
        gauges.trends().swap_remove(0)
    }

    #[test]
    fn the_line_has_the_slope_of_its_points() {
        let line = Line::through(&[(0.0, 1.0), (1.0, 3.0), (2.0, 5.0)]);
        assert_eq!((line.slope, line.fit), (2.0, 1.0));
        assert_eq!(Line::through(&[]), Line { slope: 0.0, fit: 0.0 });
    }

    #[test]
    fn steady_growth_is_a_leak_and_only_the_calm_counts() {
        let trend = memory(|second| 50_000 + 1_000 * second);
        assert_eq!((trend.first, trend.samples, trend.per_hour().round()), (70_000, 100, 3_600_000.0));
        assert!(trend.trouble().is_some_and(|trouble| trouble.kind == Kind::Leak));
        assert_eq!(memory(|second| if second < 20 { 1_000 * second } else { 50_000 }).trouble(), None);
    }

    #[test]
    fn neither_noise_nor_a_little_growth_is_a_leak() {
        assert_eq!(memory(|second| 50_000 + second % 2 * 90_000).trouble(), None);
        assert_eq!(memory(|second| 50_000 + 10 * second).trouble(), None);
    }
}
