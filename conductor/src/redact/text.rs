//! The content of a JSON string without its escapes, and where each part of it stands in the
//! frame, so that one part can be replaced and all else stays as it is.

use std::borrow::Cow;

/// A string's content.
#[derive(Debug)]
pub(super) struct Text<'a> {
    /// Without escapes. A lone surrogate is written as UTF-8 would write its number.
    pub(super) bytes: Cow<'a, [u8]>,
    /// Where it begins in the frame.
    start: usize,
    escapes: Vec<Escape>,
}

/// Where an escape stands.
#[derive(Debug, Clone, Copy)]
struct Escape {
    /// In the text.
    text: (usize, usize),
    /// In the frame.
    raw: (usize, usize),
}

impl<'a> Text<'a> {
    /// Reads what stands between the quotes. `None` if it is no JSON.
    pub(super) fn read(frame: &'a [u8], start: usize, end: usize) -> Option<Self> {
        let raw = &frame[start..end];
        if memchr::memchr(b'\\', raw).is_none() {
            return Some(Self { bytes: Cow::Borrowed(raw), start, escapes: Vec::new() });
        }
        let mut bytes = Vec::with_capacity(raw.len());
        let mut escapes = Vec::new();
        let mut at = 0;
        while let Some(next) = memchr::memchr(b'\\', &raw[at..]) {
            bytes.extend_from_slice(&raw[at..at + next]);
            at += next;
            let text = bytes.len();
            let len = unescape(&raw[at..], &mut bytes)?;
            escapes.push(Escape { text: (text, bytes.len()), raw: (start + at, start + at + len) });
            at += len;
        }
        bytes.extend_from_slice(&raw[at..]);
        Some(Self { bytes: Cow::Owned(bytes), start, escapes })
    }

    /// A text that stands there as it is.
    pub(super) fn plain(frame: &'a [u8]) -> Self {
        Self { bytes: Cow::Borrowed(frame), start: 0, escapes: Vec::new() }
    }

    /// A part of it, in the frame. What is written by one escape is taken as a whole.
    pub(super) fn in_frame(&self, from: usize, to: usize) -> (usize, usize) {
        let before = self.escapes.partition_point(|escape| escape.text.0 <= from);
        let start = match before.checked_sub(1).map(|at| self.escapes[at]) {
            Some(escape) if from < escape.text.1 => escape.raw.0,
            Some(escape) => escape.raw.1 + (from - escape.text.1),
            None => self.start + from,
        };
        let before = self.escapes.partition_point(|escape| escape.text.0 < to);
        let end = match before.checked_sub(1).map(|at| self.escapes[at]) {
            Some(escape) if to < escape.text.1 => escape.raw.1,
            Some(escape) => escape.raw.1 + (to - escape.text.1),
            None => self.start + to,
        };
        (start, end)
    }
}

/// Adds what stands between quotes to `out`, without escapes: as much as the first `enough` bytes
/// of it say.
pub(super) fn decode(raw: &[u8], enough: usize, out: &mut Vec<u8>) {
    let enough = enough.min(raw.len());
    let mut at = 0;
    while at < enough {
        let plain = memchr::memchr(b'\\', &raw[at..enough]).unwrap_or(enough - at);
        out.extend_from_slice(&raw[at..at + plain]);
        at += plain;
        if at < enough {
            // Frames were read before, so this is one.
            let Some(len) = unescape(&raw[at..], out) else { return };
            at += len;
        }
    }
}

/// Reads one escape; how long it is.
fn unescape(raw: &[u8], out: &mut Vec<u8>) -> Option<usize> {
    let plain = match raw.get(1)? {
        b'n' => b'\n',
        b'r' => b'\r',
        b't' => b'\t',
        b'b' => 8,
        b'f' => 12,
        byte @ (b'"' | b'\\' | b'/') => *byte,
        b'u' => {
            let high = code(raw.get(2..6)?)?;
            let low = raw.get(6..12).filter(|low| low.starts_with(b"\\u")).and_then(|low| code(&low[2..]));
            if let (0xd800..0xdc00, Some(low @ 0xdc00..0xe000)) = (high, low) {
                put(0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00), out);
                return Some(12);
            }
            put(high, out);
            return Some(6);
        }
        _ => return None,
    };
    out.push(plain);
    Some(2)
}

fn code(digits: &[u8]) -> Option<u32> {
    let digits = digits.iter().all(u8::is_ascii_hexdigit).then_some(digits)?;
    u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
}

/// Writes a character as UTF-8 does, surrogates as well.
fn put(c: u32, out: &mut Vec<u8>) {
    let tail = |shift: u32| 0x80 | ((c >> shift) & 0x3f) as u8;
    match c {
        0..0x80 => out.push(c as u8),
        0x80..0x800 => out.extend([0xc0 | (c >> 6) as u8, tail(0)]),
        0x800..0x10000 => out.extend([0xe0 | (c >> 12) as u8, tail(6), tail(0)]),
        _ => out.extend([0xf0 | (c >> 18) as u8, tail(12), tail(6), tail(0)]),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    #[test]
    fn parts_are_found_where_they_stand() {
        let frame = br#""a\n\u00e9\ud83d\ude00\ud800z""#;
        let text = Text::read(frame, 1, frame.len() - 1).unwrap();
        assert_eq!(&text.bytes[..8], "a\né😀".as_bytes());
        assert_eq!(&text.bytes[8..], b"\xed\xa0\x80z");
        assert_eq!(text.in_frame(0, 1), (1, 2));
        assert_eq!(text.in_frame(1, 2), (2, 4));
        assert_eq!(text.in_frame(2, 4), (4, 10));
        assert_eq!(text.in_frame(3, 5), (4, 22));
        assert_eq!(text.in_frame(11, 12), (28, 29));
        assert!(Text::read(br"\x", 0, 2).is_none());
    }
}
