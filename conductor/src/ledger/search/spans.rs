//! Stretches of time, for Postgres: its index has no order, so what is searched
//! for is looked for in one stretch after the other, newest first, until there
//! is enough of it.
//!
//! Every document has a tag for each of the spans that it lies in, from minutes
//! to years (`search_spans` in `migrations/postgres/0014_search_spans.sql`). A
//! stretch of any length is a few of them, and the index leaves out what has
//! none of these tags before it looks at a document.

/// Bits of a document's number that lie within a span: the shortest is 18
/// minutes, each of the others eight times as long.
const BITS: [u32; 6] = [42, 45, 48, 51, 54, 57];

/// Bits of a tag that say which of them it is.
const LEVEL_BITS: u32 = 3;

/// A stretch ends where spans of at most this part of it do, so that it is few.
const PARTS: i64 = 8;

/// How many of the hundredths that Postgres knows of the documents are in each
/// stretch behind the newest; the last one is repeated.
const HUNDREDTHS: [usize; 3] = [1, 4, 8];

/// The same for what costs the index as much for a stretch as for everything.
const HUNDREDTHS_IF_SLOW: [usize; 2] = [4, 100];

/// Documents between two, both included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stretch {
    pub(super) top: i64,
    pub(super) bottom: i64,
}

impl Stretch {
    /// Tags of which every document of it has one.
    pub(super) fn tags(self) -> Vec<i64> {
        let (mut low, mut high) = (self.bottom.max(0) >> BITS[0], self.top.max(0) >> BITS[0]);
        let mut tags = Vec::new();
        for (level, number) in BITS.iter().zip(0_i64..) {
            let is_last = *level == BITS[BITS.len() - 1];
            let tag = |span: i64| (span << LEVEL_BITS) | number;
            // The ends, until what is left is whole spans of the next kind.
            while low <= high && (is_last || low % PARTS != 0) {
                tags.push(tag(low));
                low += 1;
            }
            while low <= high && high % PARTS != PARTS - 1 {
                tags.push(tag(high));
                high -= 1;
            }
            if low > high {
                break;
            }
            (low, high) = (low / PARTS, high / PARTS);
        }
        tags
    }

    /// It in parts, newest first: what lies from `near` on, then more and more, by
    /// what is known of how many documents are where. Where the index is `slow`, the first is
    /// walked, and has no more than it must.
    pub(super) fn parts(self, near: i64, known: &[i64], slow: bool) -> Vec<Self> {
        let steps: &[usize] = if slow { &HUNDREDTHS_IF_SLOW } else { &HUNDREDTHS };
        let mut bounds = vec![if slow { near } else { aligned(near, near) }];
        let mut behind = known.iter().rev().copied().skip_while(|bound| *bound >= near);
        for nth in 0.. {
            let Some(bound) = behind.nth(steps[steps.len().min(nth + 1) - 1] - 1) else { break };
            let before = bounds.last().copied().unwrap_or(near);
            bounds.push(aligned(bound, before));
        }
        let mut parts = Vec::new();
        let mut top = self.top;
        for bound in bounds.into_iter().filter(|bound| *bound > self.bottom).chain([self.bottom]) {
            if bound <= top {
                parts.push(Self { top, bottom: bound });
                top = bound.saturating_sub(1);
            }
        }
        parts
    }
}

/// Where spans end that are short beside what lies between two documents.
fn aligned(bottom: i64, top: i64) -> i64 {
    let most = top.saturating_sub(bottom) / PARTS;
    let bits = BITS.iter().rev().find(|bits| 1_i64 << **bits <= most).unwrap_or(&BITS[0]);
    (bottom >> bits) << bits
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As `search_spans` makes them.
    fn spans(doc: i64) -> Vec<i64> {
        BITS.iter().zip(0..).map(|(bits, level)| ((doc >> bits) << LEVEL_BITS) | level).collect()
    }

    const MINUTE: i64 = 60_000_000 << 12;
    const NOW: i64 = 1_794_830_400_000_000 << 12;

    #[test]
    fn a_stretch_is_covered_and_hardly_more() {
        for (minutes, before) in [(0, 0), (1, 7), (300, 20), (9_000, 0), (130_000, 5), (10_000_000, 3)] {
            let stretch = Stretch { top: NOW - before * MINUTE, bottom: NOW - (before + minutes) * MINUTE };
            let tags = stretch.tags();
            assert!(tags.len() < 80, "{minutes}: {}", tags.len());
            let has = |doc: i64| spans(doc).iter().filter(|span| tags.contains(span)).count();
            for nth in 0..=1000 {
                let doc = stretch.bottom + (stretch.top - stretch.bottom) / 1000 * nth;
                assert_eq!(has(doc), 1, "{minutes}: {nth}");
            }
            assert_eq!(has(stretch.top) + has(stretch.bottom), 2);
            assert_eq!(has(stretch.top + 19 * MINUTE) + has(stretch.bottom - 19 * MINUTE), 0, "{minutes}");
        }
        let ever = Stretch { top: i64::MAX, bottom: i64::MIN };
        assert!(ever.tags().len() < 80);
    }

    #[test]
    fn parts_are_the_whole_and_nothing_twice() {
        let known: Vec<_> = (0..=100).map(|nth| NOW - (100 - nth) * 900 * MINUTE).collect();
        for (top, bottom) in [(i64::MAX, i64::MIN), (NOW, NOW - 9_000 * MINUTE), (NOW - 50_000 * MINUTE, 0)] {
            for (known, slow) in [(known.as_slice(), false), (&known, true), (&[], false), (&[], true)] {
                let whole = Stretch { top, bottom };
                let near = top.min(NOW) - 90 * MINUTE;
                let parts = whole.parts(near, known, slow);
                assert_eq!((parts[0].top, parts[parts.len() - 1].bottom), (top, bottom));
                assert!(parts.windows(2).all(|two| two[0].bottom == two[1].top + 1), "{parts:?}");
                assert!(parts[0].bottom <= near && parts.len() <= 16, "{parts:?}");
            }
        }
        let short = Stretch { top: NOW, bottom: NOW - 1 };
        assert_eq!(short.parts(NOW - 1, &known, false), [short]);
    }
}
