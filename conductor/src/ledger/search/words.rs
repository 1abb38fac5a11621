//! Text as words, the same for both databases: they are handed words that were
//! made here, so what is found does not depend on a database's own idea of one.
//!
//! A word is a run of letters and digits. Everything else stands between words,
//! so the parts of `snake_case`, `kebab-case`, `a::b` and `src/main.rs` are words
//! of their own, and the whole is a phrase. Scripts that are written without
//! blanks have a word per character.

use std::ops::Range;

/// Of longer words only the beginning counts; they are keys and hashes.
const MOST_LETTERS: usize = 64;

/// A word, folded, and where it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Word {
    pub(super) text: String,
    pub(super) range: Range<usize>,
}

/// Upper and lower case are the same. Letters that become several are left as
/// they are, so that places in folded text can be told from the text's own.
pub(super) fn fold(c: char) -> char {
    if c.is_ascii() {
        return c.to_ascii_lowercase();
    }
    let mut lower = c.to_lowercase();
    match (lower.next(), lower.next()) {
        (Some(one), None) => one,
        _ => c,
    }
}

/// A whole text, folded.
pub(super) fn folded(text: &str) -> String {
    text.chars().map(fold).collect()
}

/// The words of a text, in order.
pub(super) fn words(text: &str) -> impl Iterator<Item = Word> {
    let mut rest = text.char_indices().peekable();
    std::iter::from_fn(move || {
        let (start, first) = rest.by_ref().find(|(_, c)| c.is_alphanumeric())?;
        let mut word = Word { text: fold(first).to_string(), range: start..start + first.len_utf8() };
        if stands_alone(first) {
            return Some(word);
        }
        let mut letters = 1;
        while let Some((at, c)) = rest.next_if(|(_, c)| c.is_alphanumeric() && !stands_alone(*c)) {
            word.range.end = at + c.len_utf8();
            letters += 1;
            if letters <= MOST_LETTERS {
                word.text.push(fold(c));
            }
        }
        Some(word)
    })
}

/// Whether words of this script are not told apart by blanks: kana, Han, Hangul.
fn stands_alone(c: char) -> bool {
    matches!(c, '\u{3040}'..='\u{30ff}' | '\u{3400}'..='\u{9fff}' | '\u{ac00}'..='\u{d7af}'
        | '\u{f900}'..='\u{faff}' | '\u{20000}'..='\u{3ffff}')
}

/// A number for two words that stand together, out of a hash, so that others have
/// the same: it is only to propose texts.
pub(super) fn pair(first: &str, second: &str) -> i16 {
    // FNV-1a, folded. It stands in databases and must stay as it is.
    let mut hash = 0x811c_9dc5_u32;
    for byte in first.bytes().chain([b' ']).chain(second.bytes()) {
        hash = (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    }
    let [a, b, c, d] = hash.to_be_bytes();
    i16::from_be_bytes([a ^ c, b ^ d]).max(NO_PAIRS + 1)
}

/// Stands for the pairs of a text of which they are not known.
pub(super) const NO_PAIRS: i16 = i16::MIN;

/// The beginning of a text, at most so many bytes of it.
pub(super) fn beginning(text: &str, most: usize) -> &str {
    &text[..text.floor_char_boundary(most)]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(text: &str) -> Vec<String> {
        words(text).map(|word| word.text).collect()
    }

    #[test]
    fn identifiers_and_paths_fall_into_their_parts() {
        assert_eq!(
            texts("Fix snake_case in src/main.rs: Vec::<u8>"),
            ["fix", "snake", "case", "in", "src", "main", "rs", "vec", "u8"]
        );
        assert_eq!(texts("日本語 ÄÖ İ ß"), ["日", "本", "語", "äö", "İ", "ß"]);
        assert_eq!(texts(" \0--::\u{202e}"), Vec::<String>::new());
        assert_eq!(texts(&"x".repeat(200)), ["x".repeat(MOST_LETTERS)]);
    }

    #[test]
    fn a_pair_has_the_number_that_databases_have_of_it() {
        assert_eq!([pair("rate", "limit"), pair("limit", "rate"), pair("日", "本")], [10524, 27264, 30663]);
    }

    #[test]
    fn a_word_says_where_it_stands() {
        let text = "é «Größe» 本";
        let found: Vec<_> = words(text).map(|word| &text[word.range]).collect();
        assert_eq!(found, ["é", "Größe", "本"]);
        assert_eq!(folded(text).chars().count(), text.chars().count());
    }
}
