//! Sizes are written as text, `"512KiB"`, `"64MiB"`, `"10GiB"` or `"1TiB"`,
//! because a bare number leaves the unit to memory.

use std::fmt;

use serde::{
    Deserializer,
    de::{Error, Visitor},
};

use super::error::{SIZE, quoted, remark};

/// More is surely a mistake, and keeps sums of sizes far from overflow.
const LARGEST: u64 = 1 << 50;

pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    from.deserialize_str(Written)
}

/// A size as it is written, which says what it expects as durations do.
struct Written;

impl Visitor<'_> for Written {
    type Value = u64;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(SIZE)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<u64, E> {
        read(text).map_err(E::custom)
    }
}

/// The size that a text says, or what is wrong with it.
pub(super) fn read(text: &str) -> Result<u64, String> {
    let parsed = parse(text).ok_or_else(|| {
        remark(
            &format!("{} is not a size", quoted(text)),
            "write a whole number and a unit, as in \"512KiB\", \"64MiB\", \"10GiB\" or \"1TiB\"",
        )
    })?;
    if parsed > LARGEST {
        let what = format!("{} is larger than any disk", quoted(text));
        return Err(remark(&what, "write at most \"1024TiB\""));
    }
    Ok(parsed)
}

fn parse(text: &str) -> Option<u64> {
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit())?);
    let bytes: u64 = match unit {
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "TiB" => 1 << 40,
        _ => return None,
    };
    // Digits that do not fit are a size all the same: one that is too large.
    let number = if number.is_empty() { return None } else { number.parse().unwrap_or(u64::MAX) };
    Some(number.saturating_mul(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_with_a_unit_are_sizes() {
        assert_eq!(parse("0KiB"), Some(0));
        assert_eq!(parse("512KiB"), Some(512 * 1024));
        assert_eq!(parse("64MiB"), Some(64 * 1024 * 1024));
        assert_eq!(parse("10GiB"), Some(10 * 1024 * 1024 * 1024));
        assert_eq!(parse("1TiB"), Some(1 << 40));
    }

    #[test]
    fn anything_else_is_not() {
        for text in ["", "5", "GiB", "-1GiB", "1.5GiB", "5 GiB", "5GB", "5gib", "5G", "１GiB", "5GiB "] {
            assert_eq!(parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn digits_without_end_saturate() {
        assert!(parse("99999999999999999999999999TiB").is_some_and(|large| large > LARGEST));
    }
}
