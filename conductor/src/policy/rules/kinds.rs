//! What a word of a command may be: the kinds that rules name.

use regex::{Regex, RegexBuilder};

/// How large a compiled expression may be; those that people write are far smaller.
const LARGEST_EXPRESSION: usize = 1 << 20;

/// What a word is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::policy) enum Kind {
    /// Just text.
    Text,
    /// Digits.
    Number,
    /// A file or directory that is read.
    Read,
    /// A file or directory that is written.
    Write,
    /// An address that is fetched.
    Url,
}

impl Kind {
    pub(super) const NAMES: [(&'static str, Self); 5] = [
        ("text", Self::Text),
        ("number", Self::Number),
        ("read", Self::Read),
        ("write", Self::Write),
        ("url", Self::Url),
    ];

    fn from_name(name: &str) -> Result<Self, String> {
        let found = Self::NAMES.iter().find(|(known, _)| *known == name);
        found.map(|(_, kind)| *kind).ok_or_else(|| {
            format!("`{name}` is no kind of word; the kinds are text, number, read, write, url, match:/…/ and read:/…/")
        })
    }

    /// Whether a word of this kind is a sub-action of its own.
    pub(super) fn is_fact(self) -> bool {
        !matches!(self, Self::Text | Self::Number)
    }
}

/// What a word has to be.
#[derive(Debug, Clone)]
pub(super) struct Expected {
    pub(super) kind: Kind,
    /// What all of the text has to match.
    pub(super) like: Option<Regex>,
}

impl PartialEq for Expected {
    fn eq(&self, other: &Self) -> bool {
        let expression = |expected: &Self| expected.like.as_ref().map(|like| like.as_str().to_owned());
        self.kind == other.kind && expression(self) == expression(other)
    }
}

impl Eq for Expected {}

impl Expected {
    /// Reads a kind: a name, `match:/EXPRESSION/` for text, or `read:/EXPRESSION/` for what is read and
    /// written so.
    pub(super) fn new(name: &str) -> Result<Self, String> {
        let (kind, rest) = match name.split_once(':') {
            Some(("match", rest)) => (Kind::Text, rest),
            Some(("read", rest)) => (Kind::Read, rest),
            _ => return Ok(Self { kind: Kind::from_name(name)?, like: None }),
        };
        let inner = rest.strip_prefix('/').and_then(|rest| rest.strip_suffix('/'));
        let Some(expression) = inner.filter(|inner| !inner.is_empty()) else {
            return Err(format!(
                "`{name}` has no expression; write it between slashes, as in match:/[a-z]+/"
            ));
        };
        // Compiled alone first, so that no parenthesis of it can close the one around it.
        RegexBuilder::new(expression)
            .size_limit(LARGEST_EXPRESSION)
            .build()
            .and_then(|_| {
                // A part of a word that matches says nothing about the rest of it.
                let whole = format!(r"\A(?:{expression})\z");
                RegexBuilder::new(&whole).size_limit(LARGEST_EXPRESSION).build()
            })
            .map(|like| Self { kind, like: Some(like) })
            .map_err(|error| format!("`{name}` cannot be read: {error}"))
    }

    pub(super) fn fits(&self, text: &str) -> bool {
        (self.kind != Kind::Number || is_number(text))
            && self.like.as_ref().is_none_or(|like| like.is_match(text))
    }
}

/// Digits, perhaps with a fraction.
fn is_number(text: &str) -> bool {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.len() <= 20 && digits(whole) && digits(fraction)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

    use super::*;

    #[test]
    fn expressions_hold_for_the_whole_word() {
        let lines = Expected::new("match:/[0-9]+p|q/").unwrap();
        for (text, fits) in
            [("1p", true), ("q", true), ("1p;e", false), ("x1p", false), ("1p\n", false), ("", false)]
        {
            assert_eq!(lines.fits(text), fits, "{text:?}");
        }
        // Nor does a line of it.
        let any = Expected::new("match:/(?m)^a$/").unwrap();
        assert!(any.fits("a") && !any.fits("a\nb") && !any.fits("b\na"));
    }

    #[test]
    fn what_is_no_kind_is_refused() {
        for name in [
            "",
            "path",
            "match:",
            "match:/",
            "match://",
            "match:[a-z]",
            "match:/(/",
            "match:/a)|(b/",
            "match:/a{9999999}/",
        ] {
            assert!(Expected::new(name).is_err(), "{name}");
        }
    }
}
