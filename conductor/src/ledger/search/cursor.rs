//! Where a page of hits ended. Hits are ranked within a window of the newest
//! ones, window after window; the window's ends are kept, so what is recorded
//! meanwhile neither moves nor repeats anything.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};

/// What a token begins with, so that another form can follow.
const FORM: &str = "1";

/// A place between two hits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cursor {
    /// The newest document of the window.
    pub(super) top: i64,
    /// The oldest one.
    pub(super) bottom: i64,
    /// The last hit that was told: its score and its document.
    pub(super) last: (f64, i64),
    /// For which question it was made.
    pub(super) question: u64,
}

impl Cursor {
    /// What a caller hands back for the page behind.
    pub fn token(&self) -> String {
        let Self { top, bottom, last: (score, doc), question } = self;
        let plain = format!("{FORM}.{top}.{bottom}.{:x}.{doc}.{question:x}", score.to_bits());
        URL_SAFE_NO_PAD.encode(plain)
    }

    /// Reads a token; `None` if it is none.
    pub fn parse(token: &str) -> Option<Self> {
        let plain = String::from_utf8(URL_SAFE_NO_PAD.decode(token).ok()?).ok()?;
        let parts: Vec<_> = plain.split('.').collect();
        let [FORM, top, bottom, score, doc, question] = parts.as_slice() else { return None };
        Some(Self {
            top: top.parse().ok()?,
            bottom: bottom.parse().ok()?,
            last: (f64::from_bits(u64::from_str_radix(score, 16).ok()?), doc.parse().ok()?),
            question: u64::from_str_radix(question, 16).ok()?,
        })
    }
}

/// A question's mark, by which a token of another one is told.
pub(super) fn mark(question: &impl std::fmt::Debug) -> u64 {
    let mut hasher = DefaultHasher::new();
    format!("{question:?}").hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_comes_back_as_it_was() {
        let cursor = Cursor { top: i64::MAX, bottom: -7, last: (0.1 + 0.2, 5), question: u64::MAX };
        assert_eq!(Cursor::parse(&cursor.token()), Some(cursor));
        for none in ["", "x", "MS4x", "' OR 1", "MS54LnkuegA"] {
            assert_eq!(Cursor::parse(none), None, "{none}");
        }
    }
}
