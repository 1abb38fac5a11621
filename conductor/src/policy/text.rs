//! Characters that hide what a text says.
//!
//! A person who is asked sees glyphs, a program sees code points. Whatever makes the two differ
//! (it moves the text around, has no width, looks like a blank and is none, or drives the
//! terminal) is never part of something that is allowed, and is shown by its number.

use std::fmt::Write as _;

/// Why this text is not to be trusted: control characters, directions, zero width, tags. For
/// texts of one line: words, paths, names, addresses.
pub fn hidden(text: &str) -> Option<String> {
    text.chars().find_map(named)
}

/// As [`hidden`], for a text that may have several lines, and tabs.
pub fn hidden_in_lines(text: &str) -> Option<String> {
    text.chars().filter(|c| !matches!(c, '\n' | '\t')).find_map(named)
}

/// The text as people may see it: such characters as `\u{202e}`, and no longer than `most`
/// characters.
pub fn shown(text: &str, most: usize) -> String {
    let mut shown = String::new();
    let mut room = most;
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        let before = shown.len();
        match c {
            '\n' => shown.push_str("\\n"),
            '\t' => shown.push_str("\\t"),
            '\r' => shown.push_str("\\r"),
            c if kind(c).is_some() => {
                // Writing to a string does not fail.
                let _ = write!(shown, "\\u{{{:x}}}", u32::from(c));
            }
            c => shown.push(c),
        }
        let used = shown[before..].chars().count();
        let is_last = chars.as_str().is_empty();
        // The last place is the ellipsis's, unless nothing is left out.
        if used > room || (used == room && !is_last) {
            shown.truncate(before);
            shown.push('…');
            return shown;
        }
        room -= used;
    }
    shown
}

/// Words as one line for a shell, so that people can tell them apart.
pub fn join<S: AsRef<str>>(words: impl Iterator<Item = S>) -> String {
    let mut line = String::new();
    for word in words {
        let word = word.as_ref();
        if !line.is_empty() {
            line.push(' ');
        }
        let plain = |c: char| c.is_alphanumeric() || "_@%+=:,./-".contains(c);
        if !word.is_empty() && word.chars().all(plain) {
            line.push_str(word);
        } else {
            line.push('\'');
            line.push_str(&word.replace('\'', r"'\''"));
            line.push('\'');
        }
    }
    line
}

fn named(c: char) -> Option<String> {
    kind(c).map(|kind| format!("U+{:04X}, {kind}", u32::from(c)))
}

/// What is wrong with a character, if anything is. The ranges are those of the Unicode standard:
/// `Cc`, `Zl`, `Zp`, `Zs` but the space, `Bidi_Control`, `Default_Ignorable_Code_Point`, and
/// noncharacters.
fn kind(c: char) -> Option<&'static str> {
    Some(match u32::from(c) {
        // Nearly all that is ever written.
        0x20..=0x7e => return None,
        0x00 => "a NUL",
        0x0a | 0x0d | 0x85 | 0x2028 | 0x2029 => "an end of line",
        0x09 => "a tab",
        0x1b => "an escape for terminals",
        0x01..=0x1f | 0x7f..=0x9f => "a control character",
        0xa0 | 0x1680 | 0x2000..=0x200a | 0x202f | 0x205f | 0x3000 | 0x2800 => "a blank that is no space",
        0xad => "a soft hyphen",
        0x061c | 0x200e | 0x200f | 0x202a..=0x202e | 0x2066..=0x2069 => {
            "a character that turns the direction of the text"
        }
        0x200b..=0x200d | 0x034f | 0x2060 => "a character without width",
        0x2061..=0x2064 => "an invisible operator",
        0x2065 | 0x206a..=0x206f => "a formatting character that is not to be used",
        0x115f | 0x1160 | 0x3164 | 0xffa0 => "a filler without a glyph",
        0x17b4 | 0x17b5 => "a vowel without a glyph",
        0x180b..=0x180f | 0xfe00..=0xfe0f => "a variation selector",
        0xfeff => "a byte order mark",
        0xfff0..=0xfffc => "a special character",
        0xfffd => "the sign for what could not be read",
        0x1_3430..=0x1_345f | 0x1_bca0..=0x1_bca3 | 0x1_d173..=0x1_d17a => "a formatting character",
        0xe_0000..=0xe_007f => "a tag",
        0xe_0080..=0xe_0fff => "a character without a glyph",
        0xfdd0..=0xfdef => "no character",
        other if other & 0xfffe == 0xfffe => "no character",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_hides_is_named() {
        for (text, number) in [
            ("a\u{202e}b", "U+202E"),
            ("a\0", "U+0000"),
            ("\u{1b}[2K", "U+001B"),
            ("ls\r", "U+000D"),
            ("x\u{200b}y", "U+200B"),
            ("x\u{ad}y", "U+00AD"),
            ("\u{feff}ls", "U+FEFF"),
            ("x\u{e0041}", "U+E0041"),
            ("x\u{e0100}", "U+E0100"),
            ("x\u{fe0f}", "U+FE0F"),
            ("a\u{2028}b", "U+2028"),
            ("a\u{a0}b", "U+00A0"),
            ("a\u{85}b", "U+0085"),
            ("a\u{9b}b", "U+009B"),
            ("a\u{2063}b", "U+2063"),
            ("a\u{3164}b", "U+3164"),
            ("a\u{fffd}b", "U+FFFD"),
            ("a\u{ffff}b", "U+FFFF"),
            ("a\u{1fffe}b", "U+1FFFE"),
            ("a\u{2067}b", "U+2067"),
            ("a\u{034f}b", "U+034F"),
            ("a\nb", "U+000A"),
            ("a\tb", "U+0009"),
        ] {
            let found = hidden(text).unwrap_or_default();
            assert!(found.starts_with(number), "{text:?}: {found:?}");
        }
    }

    #[test]
    fn what_is_written_is_not_hidden() {
        for text in ["", "git log --oneline", "päron/été.txt", "日本語", "naïve", "🚀", "a\u{301}", "Ω≠∅"]
        {
            assert_eq!(hidden(text), None, "{text:?}");
        }
        assert_eq!(hidden_in_lines("a\n\tb\n"), None);
        assert!(hidden_in_lines("a\n\u{200d}b").is_some());
        assert!(hidden_in_lines("a\r\nb").is_some());
    }

    #[test]
    fn it_is_shown_by_number_and_cut() {
        assert_eq!(shown("a\u{202e}b\n", 100), "a\\u{202e}b\\n");
        assert_eq!(shown("abc", 3), "abc");
        assert_eq!(shown("abcd", 3), "ab…");
        assert_eq!(shown("ab\u{202e}", 5), "ab…", "an escape is shown whole or not at all");
        assert_eq!(shown("a", 0), "…");
        assert_eq!(shown("", 0), "");
    }

    proptest! {
        #[test]
        fn what_is_shown_hides_nothing(text in any::<String>(), most in 1usize..50) {
            let shown = shown(&text, most);
            prop_assert_eq!(hidden(&shown), None);
            prop_assert!(shown.chars().count() <= most);
        }
    }
}
