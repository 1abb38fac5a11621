//! Patterns of names in the input of tools that search: where they lead, and
//! whether they are aimed at secrets.

use std::path::Path;

use serde_json::{Map, Value};

use super::{
    Ground,
    arguments::squeezed,
    place,
    tools::{Meaning, Reading},
};
use crate::policy::paths::protected;

/// More alternatives than this are not looked at.
const MOST: usize = 64;

/// What the patterns in an input lead to.
pub fn read(meaning: &Meaning, input: &Map<String, Value>, ground: &Ground<'_>, reading: &mut Reading) {
    // A pattern is seen from the place that is searched.
    let is_start = |key: &str| matches!(key, "path" | "dirpath" | "directory" | "dir" | "directorypath");
    let mut starts: Vec<&str> = Vec::new();
    for (key, value) in input {
        starts.extend(value.as_str().filter(|given| !given.is_empty() && is_start(&squeezed(key))));
    }
    if starts.is_empty() {
        starts.push(".");
    }
    for (key, value) in input {
        let Some(given) = value.as_str() else { continue };
        match squeezed(key).as_str() {
            "include" | "glob" | "includepattern" => {
                for pattern in pieces(given) {
                    one(pattern, &starts, true, ground, reading);
                }
            }
            "pattern" if *meaning == Meaning::Glob => one(given, &starts, true, ground, reading),
            // It may be one of names or of content.
            "pattern" if *meaning == Meaning::Lookup => one(given, &starts, false, ground, reading),
            _ => {}
        }
    }
}

/// Some tools take several at once.
fn pieces(given: &str) -> Vec<&str> {
    let mut depth = 0_usize;
    let ends = |c: char| {
        match c {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c.is_whitespace() || c == ',' && depth == 0
    };
    given.split(ends).filter(|piece| !piece.is_empty()).collect()
}

/// One pattern. `is_sure` that it is one of names.
fn one(given: &str, starts: &[&str], is_sure: bool, ground: &Ground<'_>, reading: &mut Reading) {
    // What is left out is not read; `!(` begins a pattern of its own, and what `!!` means tools differ on.
    if given.is_empty() || given.starts_with('!') && !given.starts_with("!(") && !given.starts_with("!!") {
        return;
    }
    if climbs(given) {
        reading.unknown("the pattern leads to places that it does not name");
    }
    if is_sure && (given.starts_with('!') || is_extended(given)) {
        reading.unknown("the pattern is one that tools read differently");
    }
    let is_name = |c: char| c.is_alphanumeric() || "._-/*?[]{},@+~!".contains(c);
    if !is_sure && !leaves(given) && !given.chars().all(is_name) {
        if may_be_extended(given) {
            reading.unknown("the pattern may be one of names, and match files that hold secrets");
        }
        return;
    }
    let Some(alternatives) = alternatives(given) else {
        return reading.unknown("the pattern has too many alternatives");
    };
    for pattern in alternatives {
        let (base, rest) = parts(&pattern);
        if is_aimed(rest) {
            reading.unknown("the pattern may match files that hold secrets");
        }
        if base.is_empty() {
            continue;
        }
        for start in starts {
            let whole = if base.starts_with(['/', '~', '$']) || *start == "." {
                base.to_owned()
            } else {
                format!("{}/{base}", start.trim_end_matches('/'))
            };
            let fact = place(&whole, ground);
            let is_plain = fact.root.is_some() && fact.protected.is_none() && fact.trouble.is_none();
            // A word without a slash is mostly one that is looked for in files.
            if is_sure || pattern.contains('/') || !is_plain {
                reading.place(fact, false);
            }
        }
    }
}

/// Whether a name would be aimed at secrets if a tool took it for a pattern.
pub fn may_be_aimed(given: &str) -> bool {
    given.contains(['[', '{']) && alternatives(given).is_none_or(|all| all.iter().any(|each| is_aimed(each)))
}

/// Whether a pattern is aimed at secrets, or at what git has, where some are.
fn is_aimed(pattern: &str) -> bool {
    let is_git = |component: &str| protected::fold(component.as_ref()) == ".git";
    pattern.split('/').any(|component| protected::is_aimed_at_secrets(component) || is_git(component))
        || protected::by_name(Path::new(pattern), 0).is_some_and(|found| found.secret)
}

/// A pattern without its braces. None if there is too much in them.
fn alternatives(given: &str) -> Option<Vec<String>> {
    let mut all = vec![given.to_owned()];
    while let Some(at) = all.iter().position(|pattern| pattern.contains('{')) {
        let pattern = all.swap_remove(at);
        all.extend(expanded(&pattern)?);
        if all.len() > MOST {
            return None;
        }
    }
    Some(all)
}

/// A pattern with its last innermost braces replaced by what is in them. None if that cannot be told.
fn expanded(pattern: &str) -> Option<Vec<String>> {
    let (before, rest) = pattern.rsplit_once('{')?;
    match rest.split_once('}') {
        Some((inner, after)) => Some(inner.split(',').map(|each| format!("{before}{each}{after}")).collect()),
        // It stands for itself.
        None => Some(vec![format!("{before}?{rest}")]),
    }
}

/// A pattern that may lead out of the directory that is searched.
fn leaves(pattern: &str) -> bool {
    pattern.starts_with(['/', '~', '$']) || climbs(pattern) || pattern.starts_with("../")
}

/// A pattern that goes up behind its beginning, or may.
fn climbs(pattern: &str) -> bool {
    let in_braces =
        pattern.contains('{') && (pattern.contains("..") || pattern.contains("{/") || pattern.contains(",/"));
    in_braces || parts(pattern).1.split('/').any(|component| component == "..")
}

/// A pattern in which parentheses or backslashes may mean something, as in `@(a|b)` and `\\.a`.
fn is_extended(pattern: &str) -> bool {
    let is_sign = |pair: &[u8]| matches!(pair, [b'@' | b'+' | b'!' | b'?' | b'*', b'(']);
    pattern.contains('\\') || pattern.as_bytes().windows(2).any(is_sign)
}

/// Whether a pattern that is mostly one of content could be such a one, for secrets. What stands before
/// the parenthesis is common in expressions, but for `@` and `!`.
fn may_be_extended(pattern: &str) -> bool {
    let inner = |opened: &str| opened.split([')', '|']).any(protected::is_aimed_at_secrets);
    ["@(", "!("].iter().any(|sign| pattern.contains(sign))
        || ["+(.", "?(.", "*(."].iter().any(|sign| {
            pattern.match_indices(sign).any(|(at, _)| inner(pattern.get(at + 2..).unwrap_or_default()))
        })
}

/// What stands before the first component that is a pattern, which may be nothing, and the rest.
fn parts(pattern: &str) -> (&str, &str) {
    let Some(special) = pattern.find(['*', '?', '[', '{']) else { return (pattern, "") };
    let slash = pattern.get(..special).and_then(|literal| literal.rfind('/'));
    // The root's slash belongs to its name.
    slash.map_or(("", pattern), |slash| pattern.split_at(slash.max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_is_taken_apart_where_it_begins() {
        for (pattern, expected) in [
            (".env*", ("", ".env*")),
            (".*", ("", ".*")),
            ("*", ("", "*")),
            ("..?/x", ("", "..?/x")),
            ("./.e*", (".", "/.e*")),
            ("../*", ("..", "/*")),
            ("a/b/c*/d", ("a/b", "/c*/d")),
            ("/*", ("/", "*")),
            ("/etc/*", ("/etc", "/*")),
            ("a.txt", ("a.txt", "")),
            (".", (".", "")),
            ("", ("", "")),
        ] {
            assert_eq!(parts(pattern), expected, "{pattern}");
        }
        assert!(climbs("a*/../b") && climbs("{a,..}/b") && !climbs("../a*") && !climbs(".a*/b"));
    }

    #[test]
    fn what_a_name_would_be_as_a_pattern() {
        for (given, expected) in [
            (".[e]nv", true),
            ("{.env,a}", true),
            ("{a,.e}nv", true),
            ("config/.[a-z]*", true),
            ("pages/[slug].tsx", false),
            ("{{cookiecutter.name}}/setup.py", false),
            (".env", false),
            ("{a", false),
            ("[a]/.git/x", true),
        ] {
            assert_eq!(may_be_aimed(given), expected, "{given}");
        }
    }

    #[test]
    fn patterns_are_aimed_by_all_of_their_names() {
        for (pattern, expected) in [
            ("**/.git/config", true),
            ("**/.GIT/**", true),
            ("*/.docker/config.json", true),
            ("**/.e*", true),
            ("**/.github/*.yml", false),
            ("**/config.json", false),
            ("*.rs", false),
        ] {
            assert_eq!(is_aimed(pattern), expected, "{pattern}");
        }
        for (pattern, expected) in [
            ("@(.env|x)", true),
            ("!(a)", true),
            ("*(.env)", true),
            ("fn (a|b)?(c)*", false),
            ("a+(b|c)", false),
        ] {
            assert_eq!(may_be_extended(pattern), expected, "{pattern}");
        }
    }
}
