//! Durations are written as text, `"250ms"`, `"30s"`, `"5m"`, `"2h"` or
//! `"7d"`, because a bare number leaves the unit to memory.

use std::{fmt, time::Duration};

use serde::{
    Deserializer,
    de::{Error, Visitor},
};

use super::error::{DURATION, quoted, remark};

/// Longer is surely a mistake, and keeps sums of deadlines far from overflow.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
    from.deserialize_str(Written)
}

/// A duration as it is written. It says what it expects, so that whoever writes a bare number is
/// told of a duration and not of any text.
struct Written;

impl Visitor<'_> for Written {
    type Value = Duration;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(DURATION)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Duration, E> {
        let parsed = parse(text).ok_or_else(|| {
            E::custom(remark(
                &format!("{} is not a duration", quoted(text)),
                "write a whole number and a unit, as in \"250ms\", \"30s\", \"5m\", \"2h\" or \"7d\"",
            ))
        })?;
        if parsed > LONGEST {
            return Err(E::custom(remark(
                &format!("{} is longer than a year", quoted(text)),
                "write at most \"365d\"",
            )));
        }
        Ok(parsed)
    }
}

fn parse(text: &str) -> Option<Duration> {
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit())?);
    let millis = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return None,
    };
    // Digits that do not fit are a duration all the same: one that is too long.
    let number = if number.is_empty() { return None } else { number.parse().unwrap_or(u64::MAX) };
    Some(Duration::from_millis(number.saturating_mul(millis)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_with_a_unit_are_durations() {
        assert_eq!(parse("250ms"), Some(Duration::from_millis(250)));
        assert_eq!(parse("30s"), Some(Duration::from_secs(30)));
        assert_eq!(parse("5m"), Some(Duration::from_secs(300)));
        assert_eq!(parse("2h"), Some(Duration::from_secs(7200)));
        assert_eq!(parse("7d"), Some(Duration::from_secs(7 * 86_400)));
        assert_eq!(parse("0s"), Some(Duration::ZERO));
    }

    #[test]
    fn anything_else_is_not() {
        for text in ["", "5", "s", "-1s", "1.5s", "5 s", "5S", "5sec", "１s", "5s "] {
            assert_eq!(parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn digits_without_end_saturate() {
        assert!(parse("99999999999999999999999999d").is_some_and(|long| long > LONGEST));
    }
}
