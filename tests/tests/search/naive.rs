//! A search as simple as it can be: every text is looked through, character by
//! character, by what README.md says of the words that are typed.

use conductor::ledger::search::Kind;

/// A word or phrase that was typed.
#[derive(Debug, Clone)]
pub struct Typed {
    pub text: String,
    pub unwanted: bool,
    pub prefix: bool,
}

impl Typed {
    pub fn shown(&self) -> String {
        let sign = if self.unwanted { "-" } else { "" };
        let star = if self.prefix { "*" } else { "" };
        if self.text.contains(' ') {
            format!("{sign}\"{}\"{star}", self.text)
        } else {
            format!("{sign}{}{star}", self.text)
        }
    }

    fn is_in(&self, kind: Kind, text: &str) -> bool {
        let lower = |text: &str| text.chars().map(lower).collect::<Vec<_>>();
        if matches!(kind, Kind::Command | Kind::Path) && self.text.chars().count() >= 3 {
            let (text, part) = (lower(text), lower(&self.text));
            return text.windows(part.len()).any(|window| window == part);
        }
        let (all, wanted) = (split(text), split(&self.text));
        (0..all.len()).any(|start| {
            wanted.iter().enumerate().all(|(at, word)| match all.get(start + at) {
                Some(found) if self.prefix && at + 1 == wanted.len() => found.starts_with(word),
                Some(found) => found == word,
                None => false,
            })
        })
    }
}

/// Whether a text has all that is wanted and nothing that is not.
pub fn fits(typed: &[Typed], kind: Kind, text: &str) -> bool {
    typed.iter().all(|typed| typed.is_in(kind, text) != typed.unwanted)
}

fn lower(c: char) -> char {
    let mut lower = c.to_lowercase();
    if lower.len() == 1 { lower.next().unwrap() } else { c }
}

/// Runs of letters and digits; Han characters each for itself.
fn split(text: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    for c in text.chars() {
        let han = ('\u{3400}'..='\u{9fff}').contains(&c);
        if (!c.is_alphanumeric() || han) && words.last().is_some_and(|word| !word.is_empty()) {
            words.push(String::new());
        }
        if c.is_alphanumeric() {
            words.last_mut().unwrap().push(lower(c));
        }
        if han {
            words.push(String::new());
        }
    }
    words.retain(|word| !word.is_empty());
    words
}
