//! Reading JSON that nobody vouches for, and writing what a database takes.
//!
//! Frames are read by walking their bytes: nothing is decoded but the few
//! members that are asked for, so a frame of many megabytes costs no more
//! memory than itself. Where a member stands there twice, the last one counts,
//! as it does in the parsers of editors and agents.

use std::borrow::Cow;

use crate::ledger::table::Value;

/// Longest JSON kept in a column of a derived table.
const MOST_JSON: usize = 256 << 10;
/// How much is kept of what is longer.
const HEAD: usize = 16 << 10;
/// Longest frame that is kept as JSON beside its bytes.
const MOST_FRAME: usize = 1 << 20;
/// Longest number, and its largest exponent: far beyond what anyone means, far
/// within what Postgres' `numeric` holds.
const MOST_DIGITS: usize = 1000;
const MOST_EXPONENT: u32 = 1000;

/// The values of `keys` in the object `json`, as JSON.
pub fn pick<'a, const N: usize>(json: &'a str, keys: [&str; N]) -> [Option<&'a str>; N] {
    let mut found = [None; N];
    for (key, value) in members(json) {
        if let Some(at) = keys.iter().position(|wanted| *wanted == key) {
            found[at] = Some(value);
        }
    }
    found
}

/// The value at the end of a path of keys.
pub fn dig<'a>(json: &'a str, path: &[&str]) -> Option<&'a str> {
    path.iter().try_fold(json, |json, key| pick(json, [*key])[0])
}

/// The members of an object; nothing if it is none.
pub fn members(json: &str) -> impl Iterator<Item = (Cow<'_, str>, &str)> {
    let mut walk = Walk { json, at: 0 };
    let mut open = walk.enter(b'{');
    std::iter::from_fn(move || {
        if !open {
            return None;
        }
        let member = walk.member();
        open = member.is_some() && walk.another();
        member
    })
}

/// The elements of an array; nothing if it is none.
pub fn elements(json: &str) -> impl Iterator<Item = &str> {
    let mut walk = Walk { json, at: 0 };
    let mut open = walk.enter(b'[');
    std::iter::from_fn(move || {
        if !open {
            return None;
        }
        let element = walk.value();
        open = element.is_some() && walk.another();
        element
    })
}

/// A string. Halves of surrogate pairs, which no text has, are replaced.
pub fn text(json: &str) -> Option<Cow<'_, str>> {
    let inner = json.strip_prefix('"')?.strip_suffix('"')?;
    if memchr::memchr(b'\\', inner.as_bytes()).is_none() {
        return Some(Cow::Borrowed(inner));
    }
    let decoded: Option<String> = serde_json::from_str(json).ok();
    decoded.or_else(|| serde_json::from_str(&repair(json)).ok()).map(Cow::Owned)
}

/// A string, cut to so many bytes.
pub fn short(json: Option<&str>, limit: usize) -> Option<String> {
    Some(cut(&text(json?)?, limit))
}

/// A whole number.
pub fn int(json: &str) -> Option<i64> {
    json.parse().ok().or_else(|| {
        let real: f64 = real(json)?;
        // Beyond this, numbers of this type are not whole any more.
        (real.fract() == 0.0 && real.abs() <= 9e15).then_some(real as i64)
    })
}

/// A number.
pub fn real(json: &str) -> Option<f64> {
    let number = json.starts_with(|first: char| first == '-' || first.is_ascii_digit());
    json.parse().ok().filter(|real: &f64| number && real.is_finite())
}

/// The value, if it is not null.
pub fn some(json: Option<&str>) -> Option<&str> {
    json.filter(|json| *json != "null")
}

/// At most so many bytes of a text; what was cut ends in an ellipsis.
pub fn cut(text: &str, limit: usize) -> String {
    if text.len() <= limit {
        return text.to_string();
    }
    let end = text.floor_char_boundary(limit.saturating_sub('…'.len_utf8()));
    format!("{}…", &text[..end])
}

/// A value for a JSON column: what Postgres takes, or nothing.
pub fn column(json: Option<&str>) -> Value {
    let Some(json) = some(json) else { return Value::Null };
    if json.len() > MOST_JSON {
        let head = cut(json, HEAD);
        let stub = serde_json::json!({ "truncated": true, "bytes": json.len(), "head": head.replace('\0', "\u{fffd}") });
        return Value::Json(stub.to_string());
    }
    match fit(json) {
        Fit::Exact => Value::Json(json.to_string()),
        Fit::Repairable => Value::Json(repair(json)),
        Fit::Not => Value::Null,
    }
}

/// A whole frame for `frames.json`: only if it is the same there.
pub fn frame(json: &str) -> Option<String> {
    (json.len() <= MOST_FRAME && fit(json) == Fit::Exact).then(|| json.to_string())
}

/// How JSON fits in `jsonb`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fit {
    Exact,
    /// It has characters that Postgres' text does not have.
    Repairable,
    /// It has numbers that are out of range.
    Not,
}

/// Looks at all strings and numbers. The JSON is known to be JSON, and its
/// nesting to be bounded: that was looked at when the frame was.
fn fit(json: &str) -> Fit {
    let bytes = json.as_bytes();
    let mut fit = Fit::Exact;
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'"' => {
                let (end, bad) = string(bytes, at, |_, _, _| ());
                if bad {
                    fit = Fit::Repairable;
                }
                at = end;
            }
            b'-' | b'0'..=b'9' => {
                let rest = &bytes[at..];
                let end = rest
                    .iter()
                    .position(|byte| !matches!(byte, b'-' | b'+' | b'.' | b'e' | b'E' | b'0'..=b'9'));
                let number = &rest[..end.unwrap_or(rest.len())];
                // Shorter ones are in range whatever they say.
                if number.len() > 5 && !in_range(number) {
                    return Fit::Not;
                }
                at += number.len();
            }
            _ => at += 1,
        }
    }
    fit
}

fn in_range(number: &[u8]) -> bool {
    let mut parts = number.splitn(2, |byte| matches!(byte, b'e' | b'E'));
    let digits = parts.next().map_or(0, <[u8]>::len);
    let exponent = parts.next().map_or(Some(0), |exponent| {
        std::str::from_utf8(exponent).ok()?.trim_start_matches(['-', '+']).parse().ok()
    });
    digits <= MOST_DIGITS && exponent.is_some_and(|exponent: u32| exponent <= MOST_EXPONENT)
}

/// Goes over the string that begins at `start`; returns where it ends, and
/// whether it has escapes that stand for no character of a database's text.
/// `each` is told of every escape: where it begins, where it ends, and whether
/// it is bad.
fn string(bytes: &[u8], start: usize, mut each: impl FnMut(usize, usize, bool)) -> (usize, bool) {
    let mut at = start + 1;
    let mut any = false;
    loop {
        let Some(step) = bytes.get(at..).and_then(special) else {
            return (bytes.len(), any);
        };
        at += step;
        if bytes[at] == b'"' {
            return (at + 1, any);
        }
        let (length, bad) = match (bytes.get(at + 1), unit(bytes, at)) {
            (Some(b'u'), Some(0xd800..=0xdbff)) => match unit(bytes, at + 6) {
                Some(0xdc00..=0xdfff) => (12, false),
                _ => (6, true),
            },
            (Some(b'u'), Some(0 | 0xdc00..=0xdfff)) => (6, true),
            (Some(b'u'), Some(_)) => (6, false),
            _ => (2, false),
        };
        any |= bad;
        let end = (at + length).min(bytes.len());
        each(at, end, bad);
        at = end;
    }
}

/// Where the next quote or backslash is. Most strings are short, and then
/// looking is faster than asking.
fn special(bytes: &[u8]) -> Option<usize> {
    let found = |byte: &u8| matches!(byte, b'"' | b'\\');
    let (near, far) = bytes.split_at(bytes.len().min(24));
    near.iter().position(found).or_else(|| Some(near.len() + memchr::memchr2(b'"', b'\\', far)?))
}

/// The number of the escape `\uXXXX` at `at`.
fn unit(bytes: &[u8], at: usize) -> Option<u32> {
    let digits = bytes.get(at..at + 6)?.strip_prefix(b"\\u")?;
    u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

/// The same JSON with the replacement character for what no text can hold.
fn repair(json: &str) -> String {
    let bytes = json.as_bytes();
    let mut out = String::with_capacity(json.len());
    let (mut at, mut copied) = (0, 0);
    while let Some(step) = bytes.get(at..).and_then(|rest| memchr::memchr(b'"', rest)) {
        let (end, _) = string(bytes, at + step, |from, to, bad| {
            if bad {
                out.push_str(json.get(copied..from).unwrap_or_default());
                out.push_str("\\ufffd");
                copied = to;
            }
        });
        at = end;
    }
    out.push_str(json.get(copied..).unwrap_or_default());
    out
}

/// A walk over JSON that is known to be JSON; anything else ends it.
struct Walk<'a> {
    json: &'a str,
    at: usize,
}

impl<'a> Walk<'a> {
    fn byte(&self) -> Option<u8> {
        self.json.as_bytes().get(self.at).copied()
    }

    fn space(&mut self) {
        while matches!(self.byte(), Some(b' ' | b'\t' | b'\r' | b'\n')) {
            self.at += 1;
        }
    }

    /// Steps over `byte` if it comes next.
    fn take(&mut self, byte: u8) -> bool {
        self.space();
        let there = self.byte() == Some(byte);
        self.at += usize::from(there);
        there
    }

    /// Steps into a container; false if it is none or empty.
    fn enter(&mut self, opening: u8) -> bool {
        let entered = self.take(opening);
        self.space();
        entered && !matches!(self.byte(), Some(b'}' | b']') | None)
    }

    fn another(&mut self) -> bool {
        self.take(b',')
    }

    fn member(&mut self) -> Option<(Cow<'a, str>, &'a str)> {
        let key = text(self.value()?)?;
        if !self.take(b':') {
            return None;
        }
        Some((key, self.value()?))
    }

    fn value(&mut self) -> Option<&'a str> {
        self.space();
        let start = self.at;
        match self.byte()? {
            b'"' => self.string(),
            b'{' | b'[' => {
                let mut depth = 0u32;
                loop {
                    match self.byte()? {
                        b'"' => self.string(),
                        b'{' | b'[' => {
                            depth += 1;
                            self.at += 1;
                        }
                        b'}' | b']' => {
                            depth -= 1;
                            self.at += 1;
                            if depth == 0 {
                                break;
                            }
                        }
                        _ => self.at += 1,
                    }
                }
            }
            _ => {
                while !matches!(
                    self.byte(),
                    None | Some(b',' | b':' | b'}' | b']' | b' ' | b'\t' | b'\r' | b'\n')
                ) {
                    self.at += 1;
                }
            }
        }
        self.json.get(start..self.at).filter(|value| !value.is_empty())
    }

    fn string(&mut self) {
        self.at = string(self.json.as_bytes(), self.at, |_, _, _| ()).0;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    #[test]
    fn picks_members_whatever_stands_around_them() {
        let json = r#" { "a" : [1,{"b":"}"}] , "\u0062":"x\"y", "a":{"c":null},"\ud800":1, "d" : -1.5e3 } "#;
        assert_eq!(
            pick(json, ["a", "b", "d", "e"]),
            [Some(r#"{"c":null}"#), Some(r#""x\"y""#), Some("-1.5e3"), None]
        );
        assert_eq!(dig(json, &["a", "c"]), Some("null"));
        assert_eq!(elements("[1, [2,\"]\"],{}]").collect::<Vec<_>>(), ["1", "[2,\"]\"]", "{}"]);
        for none in ["", "{", "[", "[]", "{}", "7", "\"", "{\"a\"}", "{\"a\":}", "{:1}", "]", "{]"] {
            assert_eq!(pick(none, ["a"]), [None], "{none}");
            assert!(elements(none).all(|element| !element.is_empty()));
        }
    }

    #[test]
    fn texts_are_read_even_if_no_text_can_hold_them() {
        assert_eq!(text(r#""a\u00e9\ud83d\ude00""#).unwrap(), "aé😀");
        assert_eq!(text(r#""a\ud800b\udc00\n\ud83d""#).unwrap(), "a\u{fffd}b\u{fffd}\n\u{fffd}");
        assert_eq!(text("7"), None);
        assert_eq!(cut("aé😀", 6), "aé…");
        assert_eq!(cut("aé😀", 7), "aé😀");
    }

    #[test]
    fn numbers_are_what_they_say() {
        assert_eq!(
            (int("7"), int("-1e3"), int("1.5"), int("1e400"), int("\"7\"")),
            (Some(7), Some(-1000), None, None, None)
        );
        assert_eq!((int("9223372036854775807"), int("18446744073709551616")), (Some(i64::MAX), None));
        assert_eq!(
            (real("0.25"), real("1e999"), real("NaN"), real("infinity")),
            (Some(0.25), None, None, None)
        );
    }

    #[test]
    fn a_column_gets_what_postgres_takes() {
        let json = |text: &str| column(Some(text));
        let is = |text: &str| Value::Json(text.to_string());
        assert_eq!(json(r#"{"a":[1,-2.5e10,"\\u0000"]}"#), is(r#"{"a":[1,-2.5e10,"\\u0000"]}"#));
        assert_eq!(
            json(r#"{"\u0000":"x\ud800y\ud83d\ude00\udc00"}"#),
            is(r#"{"\ufffd":"x\ufffdy\ud83d\ude00\ufffd"}"#)
        );
        for bad in ["1e400000", "[1e-400000]", "{\"a\":1E99999999999999999999}", &"7".repeat(1001)] {
            assert_eq!(json(bad), Value::Null, "{bad}");
            assert_eq!(frame(bad), None);
        }
        assert_eq!(json("null"), Value::Null);
        assert_eq!(frame(r#""\u0000""#), None);
        assert_eq!(frame(r#"["\\u0000",1e300]"#).unwrap(), r#"["\\u0000",1e300]"#);
        let Value::Json(stub) = json(&format!("\"{}\"", "é".repeat(MOST_JSON))) else { unreachable!() };
        assert!(stub.len() < 2 * HEAD && stub.contains("\"truncated\":true"));
    }
}
