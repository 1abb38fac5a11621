//! Patterns of names in the input of tools that search: where they lead, and
//! whether they are aimed at secrets.

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
    // What is left out is not read.
    if given.is_empty() || given.starts_with('!') {
        return;
    }
    if climbs(given) {
        reading.unknown("the pattern leads to places that it does not name");
    }
    let is_name = |c: char| c.is_alphanumeric() || "._-/*?[]{},@+~!".contains(c);
    if !is_sure && !leaves(given) && !given.chars().all(is_name) {
        return;
    }
    let mut alternatives = vec![given.to_owned()];
    while let Some(at) = alternatives.iter().position(|pattern| pattern.contains('{')) {
        let pattern = alternatives.swap_remove(at);
        let Some(expanded) = expanded(&pattern) else { return };
        alternatives.extend(expanded);
        if alternatives.len() > MOST {
            reading.unknown("the pattern has too many alternatives");
            return;
        }
    }
    for pattern in alternatives {
        let base = base(&pattern);
        let rest = pattern.strip_prefix(base).unwrap_or(&pattern);
        if rest.split('/').any(protected::is_aimed_at_secrets) {
            reading.unknown("the pattern may match files that hold secrets");
        }
        if base == "." {
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
    let rest = pattern.strip_prefix(base(pattern)).unwrap_or(pattern);
    in_braces || rest.split('/').any(|component| component == "..")
}

/// What stands before the first component that is a pattern.
fn base(pattern: &str) -> &str {
    let special = pattern.find(['*', '?', '[', '{']).unwrap_or(pattern.len());
    let literal = pattern.get(..special).unwrap_or_default();
    match literal.rfind('/') {
        _ if special == pattern.len() => pattern,
        Some(0) => "/",
        Some(end) => literal.get(..end).unwrap_or_default(),
        None => ".",
    }
}
