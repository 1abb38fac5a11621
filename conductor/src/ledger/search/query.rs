//! What a person types, and what the databases are asked for it. There is one
//! parser, every word goes through it, and what comes out are words in quotes,
//! so nothing that is typed has a meaning of its own in a database.

use std::collections::BTreeSet;

use super::words::{folded, pair, words};

/// Longest text that is looked at, and most parts of it.
const MOST_BYTES: usize = 4096;
const MOST_TERMS: usize = 32;

/// A part of a line is found by its trigrams, so it has three characters.
const LEAST_PART: usize = 3;

/// What is searched for: all that must be there, nothing that must not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Query {
    pub(super) terms: Vec<Term>,
}

/// A word or a phrase.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Term {
    /// It must not be there.
    pub(super) is_unwanted: bool,
    /// Its last word may go on.
    pub(super) is_prefix: bool,
    /// Its words, one after the other.
    pub(super) words: Vec<String>,
    /// The same as it was typed, folded: what is looked for in lines.
    pub(super) part: String,
}

impl Term {
    /// Whether it is looked for as a part of a line, and not word by word.
    pub(super) fn is_part(&self) -> bool {
        self.part.chars().nth(LEAST_PART - 1).is_some()
    }
}

impl Query {
    /// Reads what was typed; says what is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.len() > MOST_BYTES {
            return Err(format!("the text is longer than {MOST_BYTES} bytes; search for a part of it"));
        }
        let mut terms = Vec::new();
        let mut rest = text.trim_start();
        while !rest.is_empty() {
            let (term, after) = next(rest);
            terms.extend(term);
            rest = after.trim_start();
        }
        if terms.len() > MOST_TERMS {
            return Err(format!("more than {MOST_TERMS} words; search for the rarest of them"));
        }
        if terms.iter().all(|term: &Term| term.is_unwanted) {
            let why = if terms.is_empty() {
                "there is no word in it"
            } else {
                "something must be there, too, not only be missing"
            };
            return Err(format!(
                "{why}; words, \"a phrase\", begin* and -without can be searched for, as in: rate* -test"
            ));
        }
        Ok(Self { terms })
    }

    pub(super) fn wanted(&self) -> impl Iterator<Item = &Term> {
        self.terms.iter().filter(|term| !term.is_unwanted)
    }

    /// Unwanted terms that a database can leave out without a mistake.
    fn left_out(&self) -> impl Iterator<Item = &Term> {
        self.terms.iter().filter(|term| term.is_unwanted && term.words.len() == 1)
    }

    /// For FTS5, by words.
    pub(super) fn fts_words(&self) -> String {
        let wanted: Vec<_> = self.wanted().map(fts_phrase).collect();
        let unwanted: Vec<_> = self.left_out().map(fts_phrase).collect();
        match unwanted.as_slice() {
            [] => format!("words : ({})", wanted.join(" AND ")),
            some => format!("(words : ({})) NOT (words : ({}))", wanted.join(" AND "), some.join(" OR ")),
        }
    }

    /// For FTS5, by parts of lines; `None` if no term is long enough for that.
    pub(super) fn fts_parts(&self) -> Option<String> {
        let parts: Vec<_> =
            self.wanted().filter(|term| term.is_part()).map(|term| quoted(&term.part)).collect();
        (!parts.is_empty()).then(|| format!("line : ({})", parts.join(" AND ")))
    }

    /// For Postgres, by words. Texts that are too long for the places of all
    /// their words have the tag `long`, and are looked at one by one.
    pub(super) fn tsquery(&self, long: &str) -> String {
        let wanted = self.wanted().map(|term| match term.words.as_slice() {
            [_] => lexemes(term, " & "),
            _ => format!("({} | ({} & '{long}'))", lexemes(term, " <-> "), lexemes(term, " & ")),
        });
        let unwanted = self.left_out().map(|term| format!("!{}", lexemes(term, " & ")));
        wanted.chain(unwanted).collect::<Vec<_>>().join(" & ")
    }

    /// For Postgres: the numbers of the pairs of words that a text must have, since
    /// its index does not know which words stand together.
    pub(super) fn pairs(&self) -> BTreeSet<i16> {
        let phrases = self.wanted().map(|term| {
            // The last word of a beginning may be any.
            &term.words[..term.words.len() - usize::from(term.is_prefix)]
        });
        phrases.flat_map(|words| words.windows(2).map(|two| pair(&two[0], &two[1]))).collect()
    }

    /// Whether a word may go on: Postgres gathers all that begin so, each time it
    /// is asked.
    pub(super) fn has_prefix(&self) -> bool {
        self.terms.iter().any(|term| term.is_prefix)
    }

    /// For Postgres, by parts of lines: patterns, all of which must fit.
    pub(super) fn patterns(&self) -> Vec<String> {
        let literal = |part: &str| part.replace('\\', r"\\").replace('%', r"\%").replace('_', r"\_");
        self.wanted().filter(|term| term.is_part()).map(|term| format!("%{}%", literal(&term.part))).collect()
    }
}

/// The first term of a text, if there is a word in it, and what follows.
fn next(text: &str) -> (Option<Term>, &str) {
    let after_sign = text.strip_prefix('-');
    // `--force` is a word as others are, a dash alone is nothing.
    let signed = after_sign.filter(|after| after.starts_with(|c: char| c.is_alphanumeric() || c == '"'));
    let (is_unwanted, text) = (signed.is_some(), signed.unwrap_or(text));
    let (said, is_phrase, after) = match text.strip_prefix('"') {
        // A phrase that is not closed goes on to the end.
        Some(inside) => {
            let end = inside.find('"').unwrap_or(inside.len());
            (&inside[..end], true, inside[end..].strip_prefix('"').unwrap_or_default())
        }
        None => {
            let end = text.find(|c: char| c.is_whitespace() || c == '"').unwrap_or(text.len());
            (&text[..end], false, &text[end..])
        }
    };
    let (said, starred, after) = match (is_phrase, said.strip_suffix('*'), after.strip_prefix('*')) {
        (false, Some(said), _) => (said, true, after),
        (true, _, Some(after)) => (said, true, after),
        _ => (said, false, after),
    };
    let found: Vec<_> = words(said).map(|word| word.text).collect();
    if found.is_empty() {
        return (None, after);
    }
    // The databases have no NUL.
    let part = folded(&said.trim().replace('\0', "\u{fffd}"));
    let is_prefix = starred && said.ends_with(char::is_alphanumeric);
    (Some(Term { is_unwanted, is_prefix, words: found, part }), after)
}

/// Quotes are the only thing that ends a text in quotes.
fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\"\""))
}

fn fts_phrase(term: &Term) -> String {
    format!("{}{}", quoted(&term.words.join(" ")), if term.is_prefix { " *" } else { "" })
}

fn lexemes(term: &Term, between: &str) -> String {
    let last = term.words.len() - 1;
    // Words are letters and digits, so there is nothing to escape in them.
    let lexeme = |(at, word): (usize, &String)| {
        format!("'{word}'{}", if term.is_prefix && at == last { ":*" } else { "" })
    };
    let all: Vec<_> = term.words.iter().enumerate().map(lexeme).collect();
    format!("({})", all.join(between))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    fn shown(text: &str) -> Vec<String> {
        let sign = |term: &Term| if term.is_unwanted { "-" } else { "" };
        let star = |term: &Term| if term.is_prefix { "*" } else { "" };
        let query = Query::parse(text).unwrap();
        query.terms.iter().map(|t| format!("{}{}{}", sign(t), t.words.join(" "), star(t))).collect()
    }

    #[test]
    fn words_phrases_beginnings_and_what_must_be_missing() {
        assert_eq!(shown("Rate limit"), ["rate", "limit"]);
        assert_eq!(
            shown(r#""rate limit" -test -"a b" pre* "ru ste"*"#),
            ["rate limit", "-test", "-a b", "pre*", "ru ste*"]
        );
        assert_eq!(
            shown("src/main.rs --force a -- - * \"\" \"open end"),
            ["src main rs", "force", "a", "open end"]
        );
        assert_eq!(shown("x\0y \u{202e}z a\"b c\"d"), ["x y", "z", "a", "b c", "d"]);
    }

    #[test]
    fn what_says_nothing_is_refused_with_a_remedy() {
        for none in ["", "  ", "* -- \"\"", "-only", "-\"not this\" -that"] {
            let why = Query::parse(none).unwrap_err();
            assert!(why.contains("can be searched for"), "{none}: {why}");
        }
        assert!(Query::parse(&"x".repeat(MOST_BYTES + 1)).unwrap_err().contains("longer"));
        assert!(Query::parse(&"x ".repeat(MOST_TERMS + 1)).unwrap_err().contains("rarest"));
    }

    #[test]
    fn nothing_typed_has_a_meaning_in_a_database() {
        let query = Query::parse(r#"a') OR "x" NEAR(b) col:c* ^d {e} -f 100%_\"#).unwrap();
        assert_eq!(
            query.fts_words(),
            r#"(words : ("a" AND "or" AND "x" AND "near b" AND "col c" * AND "d" AND "e" AND "100")) NOT (words : ("f"))"#
        );
        assert_eq!(
            query.tsquery("=long"),
            "('a') & ('or') & ('x') & (('near' <-> 'b') | (('near' & 'b') & '=long')) & \
             (('col' <-> 'c':*) | (('col' & 'c':*) & '=long')) & ('d') & ('e') & ('100') & !('f')"
        );
        assert_eq!(
            query.fts_parts().unwrap(),
            r#"line : ("a')" AND "near(b)" AND "col:c" AND "{e}" AND "100%_\")"#
        );
        assert_eq!(query.pairs(), BTreeSet::from([pair("near", "b")]), "not of what may go on");
        assert_eq!(query.patterns(), ["%a')%", "%near(b)%", "%col:c%", "%{e}%", r"%100\%\_\\%"]);
    }
}
