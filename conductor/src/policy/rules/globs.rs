//! Patterns over names and paths, compiled once.
//!
//! A rule that asks or denies matches more widely than one that allows: `dir/**` is
//! also `dir` itself, `**/name` is also a file outside all roots, and a path counts
//! as it was given, too. So a doubt about what a pattern means never allows anything.

use std::{borrow::Cow, path::Path};

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};
use memchr::memmem::Finder;

use crate::policy::PathFact;

/// The longest pattern; a longer one is no pattern that people write.
const LONGEST: usize = 512;

/// Characters that do not stand for themselves.
const SPECIAL: [char; 7] = ['*', '?', '[', ']', '{', '}', '\\'];

/// Patterns over names, of which one has to match.
#[derive(Debug, Clone)]
pub(super) struct Globs {
    /// Patterns without any special character.
    exact: Vec<String>,
    others: GlobSet,
    /// What each of the others needs.
    hints: Vec<Hint>,
    is_everything: bool,
}

/// What a text must have for a pattern to match it. That is quick to see, and spares most patterns
/// of many rules the rest.
#[derive(Debug, Clone)]
struct Hint {
    start: String,
    end: String,
    within: Finder<'static>,
}

impl Hint {
    fn new(pattern: &str) -> Self {
        let start = pattern.split(SPECIAL).next().unwrap_or_default();
        // `**/` may stand for nothing, so that slashes beside a star need not be there.
        let end = pattern.rsplit(SPECIAL).next().unwrap_or_default().trim_start_matches('/');
        // Of what stands in brackets, only some has to be there.
        let parts = pattern.split(SPECIAL).filter(|_| !pattern.contains(['[', '{', '\\']));
        let longest = parts.map(|part| part.trim_matches('/')).max_by_key(|part| part.len());
        Self {
            start: start.into(),
            end: end.into(),
            within: Finder::new(longest.unwrap_or_default()).into_owned(),
        }
    }

    fn allows(&self, text: &str) -> bool {
        text.starts_with(&self.start)
            && text.ends_with(&self.end)
            && self.within.find(text.as_bytes()).is_some()
    }
}

impl Globs {
    /// Patterns in which `*` stands for anything.
    pub(super) fn of_names<S: AsRef<str>>(patterns: &[S]) -> Result<Self, String> {
        Self::new(patterns.iter().map(AsRef::as_ref), false)
    }

    /// Patterns in which `*` stops at a slash and `**` does not.
    pub(super) fn of_paths<S: AsRef<str>>(patterns: &[S]) -> Result<Self, String> {
        Self::new(patterns.iter().map(AsRef::as_ref), true)
    }

    fn new<'a>(patterns: impl Iterator<Item = &'a str>, of_paths: bool) -> Result<Self, String> {
        let mut exact = Vec::new();
        let mut others = GlobSetBuilder::new();
        let mut hints = Vec::new();
        let mut is_everything = false;
        for pattern in patterns {
            if pattern.len() > LONGEST {
                return Err(format!("a pattern has more than {LONGEST} characters"));
            }
            if is_literal(pattern) {
                exact.push(pattern.to_owned());
                continue;
            }
            is_everything |= pattern == "**" || (pattern == "*" && !of_paths);
            let glob = GlobBuilder::new(pattern).literal_separator(of_paths).backslash_escape(true).build();
            hints.push(Hint::new(pattern));
            others.add(glob.map_err(|error| error.kind().to_string())?);
        }
        let others = others.build().map_err(|error| error.kind().to_string())?;
        Ok(Self { exact, others, hints, is_everything })
    }

    /// Whether a text is named as it is, not by a pattern.
    pub(super) fn names(&self, text: &str) -> bool {
        self.exact.iter().any(|exact| exact == text)
    }

    /// What a text has for sure that one of the patterns matches: one of these.
    fn needed(&self) -> impl Iterator<Item = &[u8]> {
        let hinted = self.hints.iter().map(|hint| hint.within.needle());
        self.exact.iter().map(String::as_bytes).chain(hinted)
    }

    pub(super) fn matches(&self, text: &str) -> bool {
        self.is_everything
            || self.exact.iter().any(|exact| exact == text)
            || (self.hints.iter().any(|hint| hint.allows(text)) && self.others.is_match(text))
    }
}

/// Whether a pattern stands for itself only.
pub(super) fn is_literal(pattern: &str) -> bool {
    !pattern.contains(SPECIAL)
}

/// Patterns over paths: from `/` on, or from the root on.
#[derive(Debug, Clone)]
pub(super) struct PathGlobs {
    relative: Globs,
    absolute: Globs,
    /// Patterns that begin with `**/`, for paths outside all roots.
    anywhere: Globs,
    /// The root itself is meant, too.
    has_root: bool,
    is_strict: bool,
}

impl PathGlobs {
    /// `is_strict`: the rule asks or denies, and matches widely.
    pub(super) fn new<S: AsRef<str>>(patterns: &[S], is_strict: bool) -> Result<Self, String> {
        let (mut relative, mut absolute, mut anywhere) = (Vec::new(), Vec::new(), Vec::new());
        let mut has_root = false;
        for pattern in patterns.iter().map(AsRef::as_ref) {
            check_path(pattern)?;
            has_root |= matches!(pattern, "**" | ".") || (is_strict && matches!(pattern, "*" | "**/*"));
            let list = if pattern.starts_with('/') { &mut absolute } else { &mut relative };
            list.push(pattern.to_owned());
            if is_strict {
                if let Some(parent) = pattern.strip_suffix("/**").filter(|parent| !parent.is_empty()) {
                    list.push(parent.to_owned());
                }
                if pattern.starts_with("**") {
                    anywhere.push(pattern.to_owned());
                    anywhere.extend(pattern.strip_suffix("/**").map(str::to_owned));
                }
            }
        }
        Ok(Self {
            relative: Globs::of_paths(&relative)?,
            absolute: Globs::of_paths(&absolute)?,
            anywhere: Globs::of_paths(&anywhere)?,
            has_root,
            is_strict,
        })
    }

    /// What one of a sight's texts has for sure if a path is meant: one of these. `None` if that
    /// cannot be told.
    pub(super) fn needed(&self) -> Option<Vec<&[u8]>> {
        let all = [&self.relative, &self.absolute, &self.anywhere];
        let needed: Vec<&[u8]> = all.into_iter().flat_map(Globs::needed).collect();
        (!self.has_root && needed.iter().all(|part| !part.is_empty())).then_some(needed)
    }

    /// Whether a path is meant.
    pub(super) fn matches_sight(&self, sight: &Sight<'_>) -> bool {
        if sight.resolved.as_ref().is_some_and(|place| self.matches_place(place)) {
            return true;
        }
        // What a link is called counts as much as what it leads to.
        self.is_strict
            && match &sight.given {
                Given::Place(place) => self.matches_place(place),
                Given::Relative(given) => self.matches_inner(given) || self.anywhere.matches(given),
            }
    }

    /// Whether an absolute path is meant that is beneath no root.
    pub(super) fn matches_absolute(&self, path: &Path) -> bool {
        self.matches_place(&Place::new(path, None))
    }

    fn matches_place(&self, place: &Place<'_>) -> bool {
        // A name that is no text is not what an allowing rule has in mind.
        (place.is_text || self.is_strict)
            && (self.absolute.matches(&place.absolute)
                || place.inner.as_ref().is_some_and(|inner| self.matches_inner(inner))
                || self.anywhere.matches(place.absolute.trim_start_matches('/')))
    }

    fn matches_inner(&self, inner: &str) -> bool {
        if inner.is_empty() { self.has_root } else { self.relative.matches(inner) }
    }
}

/// A path as patterns see it: worked out once, for all rules.
#[derive(Debug)]
pub(in crate::policy) struct Sight<'a> {
    resolved: Option<Place<'a>>,
    given: Given<'a>,
}

#[derive(Debug)]
enum Given<'a> {
    Place(Place<'a>),
    Relative(&'a str),
}

/// An absolute path.
#[derive(Debug)]
struct Place<'a> {
    absolute: Cow<'a, str>,
    /// From its root on.
    inner: Option<Cow<'a, str>>,
    is_text: bool,
}

impl<'a> Sight<'a> {
    pub(in crate::policy) fn of(fact: &'a PathFact) -> Self {
        let root = fact.root.as_deref();
        let given = fact.given.trim_end_matches('/');
        let given = match given.starts_with('/') {
            true => Given::Place(Place::new(Path::new(given), root)),
            false => Given::Relative(given.trim_start_matches("./")),
        };
        Self { resolved: fact.resolved.as_deref().map(|path| Place::new(path, root)), given }
    }

    /// All that patterns see is a part of one of these.
    pub(super) fn texts(&self) -> impl Iterator<Item = &str> {
        let given = match &self.given {
            Given::Place(place) => &place.absolute,
            Given::Relative(given) => *given,
        };
        let resolved = self.resolved.as_ref().map(|place| &*place.absolute);
        // Mostly both are the same.
        std::iter::once(given).chain(resolved.filter(move |resolved| *resolved != given))
    }
}

impl<'a> Place<'a> {
    fn new(path: &'a Path, root: Option<&Path>) -> Self {
        let inner = root.and_then(|root| path.strip_prefix(root).ok());
        Self {
            absolute: path.to_string_lossy(),
            inner: inner.map(Path::to_string_lossy),
            is_text: path.to_str().is_some(),
        }
    }
}

/// Refuses patterns that no path can match.
fn check_path(pattern: &str) -> Result<(), String> {
    if pattern.is_empty() {
        return Err("an empty pattern matches nothing; write `.` for the root, `**` for all in it".into());
    }
    if pattern.starts_with('~') {
        return Err(format!("`{pattern}`: `~` is not expanded; write the path from `/` on"));
    }
    if pattern != "." && pattern != "/" {
        if pattern.ends_with('/') {
            return Err(format!("`{pattern}` ends with `/` and matches nothing; write `{pattern}**`"));
        }
        if pattern.split('/').any(|part| part == "." || part == "..") || pattern.contains("//") {
            return Err(format!(
                "`{pattern}` matches nothing: paths are compared without `.`, `..` and `//`"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

    use super::*;

    impl PathGlobs {
        fn matches(&self, fact: &PathFact) -> bool {
            self.matches_sight(&Sight::of(fact))
        }
    }

    fn fact(path: &str, root: Option<&str>) -> PathFact {
        PathFact {
            given: path.into(),
            resolved: Some(path.into()),
            root: root.map(Into::into),
            ..PathFact::default()
        }
    }

    #[test]
    fn names() {
        for (pattern, text, matches) in [
            ("ann", "ann", true),
            ("ann", "Ann", false),
            ("ann", "anna", false),
            ("codex*", "codex", true),
            ("codex*", "codex-acp", true),
            ("*opus*", "vendor/opus-4", true),
            ("*", "", true),
            ("", "", true),
            ("", "x", false),
            ("get_*", "get", false),
            ("a?c", "abc", true),
            ("{a,b}", "b", true),
            ("[ab]", "c", false),
            (r"\*", "*", true),
            (r"\*", "x", false),
            (r"a\*b*", "a*bc", true),
            ("a{b,c}d*", "acde", true),
            ("a[bc]*", "ab", true),
        ] {
            let globs = Globs::of_names(&[pattern]).unwrap();
            assert_eq!(globs.matches(text), matches, "{pattern} {text}");
        }
        assert!(Globs::of_names(&["{a"]).is_err());
        assert!(Globs::of_names(&["x".repeat(LONGEST + 1)]).is_err());
    }

    /// Pattern, path, root, whether an allowing rule matches, whether a strict one does.
    #[test]
    fn paths() {
        let w = Some("/w");
        for (pattern, path, root, mild, strict) in [
            ("**", "/w/a", w, true, true),
            ("**", "/w", w, true, true),
            ("**", "/etc/passwd", None, false, true),
            (".", "/w", w, true, true),
            ("*", "/w", w, false, true),
            ("*", "/w/a", w, true, true),
            ("*", "/w/a/b", w, false, false),
            ("src/**", "/w/src/a/b", w, true, true),
            ("src/**", "/w/src", w, false, true),
            ("src/**", "/w/srcs/a", w, false, false),
            ("src/*", "/w/src/a/b", w, false, false),
            ("**/*.md", "/w/README.md", w, true, true),
            ("**/*.md", "/w/a/b.md", w, true, true),
            ("**/*.md", "/w/a/b.MD", w, false, false),
            ("**/*.md", "/home/b.md", None, false, true),
            ("/etc/**", "/etc/passwd", None, true, true),
            ("/etc/**", "/etc", None, false, true),
            ("/etc/**", "/etcetera", None, false, false),
            ("/w/src/**", "/w/src/a", w, true, true),
            ("etc/**", "/etc/passwd", None, false, false),
            ("**/.ssh/**", "/home/a/.ssh", None, false, true),
            ("**/.ssh/**", "/home/a/.ssh/id", None, false, true),
            ("**/.ssh/**", "/w/.ssh/id", w, true, true),
            ("a b/[x]", "/w/a b/x", w, true, true),
        ] {
            for (is_strict, expected) in [(false, mild), (true, strict)] {
                let globs = PathGlobs::new(&[pattern], is_strict).unwrap();
                assert_eq!(globs.matches(&fact(path, root)), expected, "{pattern} {path} {is_strict}");
            }
        }
    }

    #[test]
    fn a_link_counts_by_its_own_name_where_that_is_stricter() {
        let link = PathFact { given: "prod.env".into(), ..fact("/w/other", Some("/w")) };
        assert!(PathGlobs::new(&["prod.env"], true).unwrap().matches(&link));
        assert!(!PathGlobs::new(&["prod.env"], false).unwrap().matches(&link));
        let nowhere = PathFact { given: "/w/prod.env".into(), ..PathFact::default() };
        assert!(PathGlobs::new(&["**/prod.env"], true).unwrap().matches(&nowhere));
        assert!(!PathGlobs::new(&["**"], false).unwrap().matches(&nowhere));
    }

    #[test]
    fn patterns_that_match_nothing_are_refused() {
        for pattern in ["", "~/x", "src/", "./src", "a/../b", "a//b", "/..", "x/."] {
            assert!(PathGlobs::new(&[pattern], false).is_err(), "{pattern}");
        }
    }

    proptest::proptest! {
        /// No rule is passed over that is about a path.
        #[test]
        fn what_is_needed_is_there(
            pattern in r"/?[ab/*?{},\[\].-]{1,8}",
            given in "/?[ab/.]{0,6}",
            path in "(/w)?(/[ab.]{1,2}){0,3}",
        ) {
            let fact = PathFact { given, ..fact(&path, path.starts_with("/w").then_some("/w")) };
            let sight = Sight::of(&fact);
            for is_strict in [false, true] {
                let Ok(globs) = PathGlobs::new(&[pattern.as_str(), "b/ab"], is_strict) else { continue };
                let Some(needed) = globs.needed() else { continue };
                let is_there = |part: &&[u8]| {
                    sight.texts().any(|text| memchr::memmem::find(text.as_bytes(), part).is_some())
                };
                proptest::prop_assert!(!globs.matches_sight(&sight) || needed.iter().any(is_there));
            }
        }

        /// The look at the first letters changes nothing, above all not what is denied.
        #[test]
        fn first_letters_say_nothing_else(pattern in r"[ab/*?{},\\\[\]!-]{1,10}", text in "[ab/*-]{0,10}") {
            for of_paths in [false, true] {
                if let Ok(globs) = Globs::new([pattern.as_str()].into_iter(), of_paths) {
                    let plain = globs.others.is_match(&text) || globs.exact.contains(&text);
                    proptest::prop_assert_eq!(globs.matches(&text), plain || globs.is_everything);
                }
            }
        }
    }
}
