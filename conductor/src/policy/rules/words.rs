//! The words of a command: which may stand there, and what they are.
//!
//! A rule that allows knows every option by its full name and knows what each
//! takes; where programs differ in how they read a line, it does not match. A rule
//! that asks or denies has it the other way round: a word that could be what it
//! looks for is.

use super::kinds::{Expected, Kind};
use crate::policy::Word;

/// A word, or a part of it, that is a sub-action of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::policy) struct Found {
    /// Which word.
    pub word: usize,
    /// Only what stands behind its first `=`.
    pub is_value: bool,
    /// What it is; never text or a number.
    pub kind: Kind,
}

/// Options, by their full names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Options {
    flags: String,
    named: Vec<Named>,
    /// `-5`.
    has_bare_number: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Named {
    /// With its dashes.
    name: String,
    takes: Takes,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Takes {
    Nothing,
    Value(Expected),
    /// Only as `--name=V`.
    Perhaps(Expected),
}

impl Options {
    /// Reads `flags` and `options` of a rule.
    pub(super) fn new<'a>(flags: &str, options: impl Iterator<Item = &'a str>) -> Result<Self, String> {
        if let Some(odd) = flags.chars().find(|c| !c.is_ascii_alphanumeric()) {
            return Err(format!("`flags` has letters and digits only, and `{odd}` is neither"));
        }
        let mut all = Self { flags: flags.to_owned(), ..Self::default() };
        for option in options {
            if option == "-#" {
                all.has_bare_number = true;
                continue;
            }
            let named = Named::new(option)?;
            if all.named.iter().any(|other| other.name == named.name) {
                return Err(format!("`{}` is listed twice", named.name));
            }
            if named.letter().is_some_and(|letter| all.flags.contains(letter)) {
                return Err(format!("`{}` is in `flags`, too", named.name));
            }
            all.named.push(named);
        }
        Ok(all)
    }

    /// Whether one of them takes what would be a sub-action of its own.
    pub(super) fn has_facts(&self) -> bool {
        self.named.iter().any(|named| match &named.takes {
            Takes::Nothing => false,
            Takes::Value(value) | Takes::Perhaps(value) => value.kind.is_fact(),
        })
    }

    /// How many words the option at `at` takes, itself included; none if it is not listed.
    fn take(&self, words: &[Word], at: usize, found: &mut Vec<Found>) -> Option<usize> {
        let text = words.get(at)?.text.as_str();
        for named in &self.named {
            if let Some(rest) = text.strip_prefix(&named.name)
                && let Some(taken) = named.take(rest, words, at, found)
            {
                return Some(taken);
            }
        }
        let letters = text.strip_prefix('-')?;
        if letters.is_empty() || letters.starts_with('-') {
            return None;
        }
        let is_cluster = letters.chars().all(|letter| self.flags.contains(letter));
        let is_number = self.has_bare_number && letters.bytes().all(|byte| byte.is_ascii_digit());
        (is_cluster || is_number).then_some(1)
    }
}

impl Named {
    fn new(option: &str) -> Result<Self, String> {
        let (name, takes) = match option.split_once('=') {
            None => (option, Takes::Nothing),
            Some((name, kind)) => match name.strip_suffix('?') {
                None => (name, Takes::Value(Expected::new(kind)?)),
                Some(name) => (name, Takes::Perhaps(Expected::new(kind)?)),
            },
        };
        let bare = name.trim_start_matches('-');
        let dashes = name.len() - bare.len();
        let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '+' | ':');
        if !(1..=2).contains(&dashes) || bare.is_empty() || !bare.chars().all(good) {
            return Err(format!(
                "`{option}` is no option; write --name, --name=KIND, --name?=KIND, -n, -n=KIND or -#"
            ));
        }
        if matches!(takes, Takes::Perhaps(_)) && dashes == 1 {
            return Err(format!("`{option}`: only an option with two dashes can have a value or none"));
        }
        Ok(Self { name: name.to_owned(), takes })
    }

    /// Its letter, if it is a dash and a letter.
    fn letter(&self) -> Option<char> {
        let mut letters = self.name.strip_prefix('-')?.chars();
        letters.next().filter(|letter| *letter != '-' && letters.next().is_none())
    }

    /// How many words it takes; `rest` is what follows its name in its own word.
    fn take(&self, rest: &str, words: &[Word], at: usize, found: &mut Vec<Found>) -> Option<usize> {
        let mut is = |kind: Kind, word: usize, is_value: bool| {
            if kind.is_fact() {
                found.push(Found { word, is_value, kind });
            }
        };
        let joined = self.name.starts_with("--").then(|| rest.strip_prefix('=')).flatten();
        match (&self.takes, joined) {
            (Takes::Nothing | Takes::Perhaps(_), None) => rest.is_empty().then_some(1),
            (Takes::Nothing, Some(_)) => None,
            (Takes::Value(value) | Takes::Perhaps(value), Some(given)) => {
                value.fits(given).then(|| is(value.kind, at, true))?;
                Some(1)
            }
            (Takes::Value(value), None) if rest.is_empty() => {
                // Some programs read a word with a dash as the next option. Only a number may have
                // one, where the expression says so: no option that is followed by a number needs it.
                let next = words.get(at + 1).map(|word| word.text.as_str())?;
                let is_value = match next.strip_prefix('-') {
                    None | Some("") => true,
                    Some(rest) => value.like.is_some() && rest.starts_with(|c: char| c.is_ascii_digit()),
                };
                (is_value && value.fits(next)).then(|| is(value.kind, at + 1, false))?;
                Some(2)
            }
            (Takes::Value(value), None) => {
                let is_joined = match (&value.like, value.kind) {
                    (Some(_), kind) => !kind.is_fact() && value.fits(rest),
                    (None, Kind::Number) => rest.bytes().all(|byte| byte.is_ascii_digit()),
                    (None, _) => false,
                };
                (is_joined && self.letter().is_some()).then_some(1)
            }
        }
    }
}

/// What words that are no options may be.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Positionals {
    /// In order; whether it may be missing.
    single: Vec<(Expected, bool)>,
    /// All that follow, and whether there has to be one.
    rest: Option<(Expected, bool)>,
}

impl Positionals {
    /// Reads `positionals` of a rule.
    pub(super) fn new<'a>(kinds: impl Iterator<Item = &'a str>) -> Result<Self, String> {
        let mut all = Self::default();
        for kind in kinds {
            if all.rest.is_some() {
                return Err("only the last of `positionals` may end with `*` or `+`".to_owned());
            }
            if let Some(name) = kind.strip_suffix('*') {
                all.rest = Some((Expected::new(name)?, false));
            } else if let Some(name) = kind.strip_suffix('+') {
                all.rest = Some((Expected::new(name)?, true));
            } else if let Some(name) = kind.strip_suffix('?') {
                all.single.push((Expected::new(name)?, true));
            } else {
                all.single.push((Expected::new(kind)?, false));
            }
        }
        Ok(all)
    }

    /// Whether these words are what may stand here; says what they are.
    fn fits(&self, words: &[Word], which: &[usize], found: &mut Vec<Found>) -> bool {
        let needed = self.single.iter().filter(|(_, may_miss)| !may_miss).count()
            + usize::from(self.rest.as_ref().is_some_and(|(_, is_needed)| *is_needed));
        // Words beyond those that are needed go to the optional ones, from the left.
        let Some(mut spare) = which.len().checked_sub(needed) else { return false };
        let mut which = which.iter();
        let mut kinds = Vec::new();
        for (expected, may_miss) in &self.single {
            if *may_miss {
                if spare == 0 {
                    continue;
                }
                spare -= 1;
            }
            let Some(word) = which.next() else { return false };
            kinds.push((*word, expected));
        }
        for word in which {
            let Some((expected, _)) = &self.rest else { return false };
            kinds.push((*word, expected));
        }
        for (word, expected) in kinds {
            if !words.get(word).is_some_and(|word| expected.fits(&word.text)) {
                return false;
            }
            if expected.kind.is_fact() {
                found.push(Found { word, is_value: false, kind: expected.kind });
            }
        }
        true
    }
}

/// What may stand behind a program and its sub-command. None is anything.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Line {
    pub options: Option<Options>,
    pub positionals: Option<Positionals>,
    /// The program takes options only in front of everything else: what looks like one behind that
    /// is a file.
    pub options_first: bool,
    /// The rule asks or denies.
    pub is_strict: bool,
}

impl Line {
    /// Whether the words from `from` on fit; says what they are.
    pub(super) fn fits(&self, words: &[Word], from: usize) -> Option<Vec<Found>> {
        let mut found = Vec::new();
        let mut which = Vec::new();
        let mut at = from;
        while let Some(word) = words.get(at) {
            if word.text == "--" {
                if self.minds_dashes() && words.iter().skip(at + 1).any(is_dashed) {
                    return None;
                }
                which.extend(at + 1..words.len());
                break;
            }
            if word.text == "-" || !word.text.starts_with('-') {
                which.push(at);
                at += 1;
                continue;
            }
            if self.options_first && !which.is_empty() {
                return None;
            }
            at += match &self.options {
                Some(options) => options.take(words, at, &mut found)?,
                None => 1,
            };
        }
        match &self.positionals {
            Some(positionals) => positionals.fits(words, &which, &mut found).then_some(found),
            None => Some(found),
        }
    }

    /// Not every program takes `--` for the end of its options: `git stash list` drops it and hands on
    /// the rest. So what looks like an option behind it is not what a rule that lists options allows.
    fn minds_dashes(&self) -> bool {
        !self.is_strict && (self.options.is_some() || self.positionals.is_some())
    }
}

/// Whether a word would be an option if it stood elsewhere.
fn is_dashed(word: &Word) -> bool {
    word.text.len() > 1 && word.text.starts_with('-')
}

/// Where the words of a sub-command end, if exactly it stands behind known options.
pub(super) fn exact_subcommand(globals: &Options, sequence: &[String], words: &[Word]) -> Option<usize> {
    let mut at = 0;
    let mut found = Vec::new();
    loop {
        let end = at + sequence.len();
        // A sub-command may have dashes, as `--version` has, which must be there and not only may.
        if words.get(at..end)?.iter().zip(sequence).all(|(word, part)| word.text == *part) {
            // What a global option names as a file would have to be judged, and is not.
            return found.is_empty().then_some(end);
        }
        if !words.get(at)?.text.starts_with('-') {
            return None;
        }
        at += globals.take(words, at, &mut found)?;
    }
}

/// Where the words of a sub-command may end, if it could stand here: options may stand before
/// and between its words, and any of them that is not known may take the word behind it.
pub(super) fn possible_subcommand(globals: &Options, sequence: &[String], words: &[Word]) -> Vec<usize> {
    let mut reached = vec![false; words.len() + 1];
    reached[0] = true;
    for part in sequence {
        let mut next = vec![false; words.len() + 1];
        for at in 0..words.len() {
            if !reached[at] {
                continue;
            }
            let text = &words[at].text;
            if text == part {
                next[at + 1] = true;
            }
            if text.starts_with('-') {
                if let Some(taken) = globals.take(words, at, &mut Vec::new()) {
                    reached[(at + taken).min(words.len())] = true;
                } else {
                    reached[at + 1] = true;
                    if !text.contains('=') && at + 2 <= words.len() {
                        reached[at + 2] = true;
                    }
                }
            }
        }
        reached = next;
    }
    (0..=words.len()).filter(|at| reached[*at]).collect()
}

/// Whether a word is this option or could be: with a value, shortened, or in a cluster.
pub(super) fn could_be_option(text: &str, option: &str) -> bool {
    let name = text.split('=').next().unwrap_or(text);
    if name == option {
        return true;
    }
    match option.strip_prefix("--") {
        Some(_) => name.len() > 2 && name.starts_with("--") && option.starts_with(name),
        None => {
            let mut letters = option.chars().skip(1);
            let (Some(letter), None) = (letters.next(), letters.next()) else { return false };
            text.starts_with('-') && !text.starts_with("--") && text.contains(letter)
        }
    }
}

#[cfg(test)]
mod tests;
