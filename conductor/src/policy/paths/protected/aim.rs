//! Whether a pattern of names is aimed at secrets.

use super::{BEGINNINGS, FILES, LOOSE, NAMES, fold, secret};

/// Whether a component of a pattern could match a name that is protected from being read, and says
/// enough to be meant so: `*` and `*.json` match such names, too, and are not.
pub fn is_aimed_at_secrets(component: &str) -> bool {
    let folded = fold(component.as_ref());
    let is_pattern = folded.contains(['*', '?', '[']);
    if !is_pattern {
        return secret(&folded).is_some();
    }
    if folded.starts_with('.') {
        return true;
    }
    let literal = folded.trim_matches('*');
    if literal.is_empty() {
        return false;
    }
    if ["", "x"].iter().any(|other| secret(&filled(&folded, other)).is_some()) {
        return true;
    }
    // Of these only the ending is told.
    let is_ending = folded.starts_with('*') && literal.starts_with('.') && !literal.contains(['*', '?', '[']);
    if is_ending {
        return false;
    }
    let listed = NAMES.iter().chain(FILES).chain(BEGINNINGS).filter(|(_, protection)| protection.secret);
    let mut names = listed.map(|(name, _)| *name).chain(LOOSE.iter().copied());
    let pattern: Vec<char> = folded.chars().collect();
    names.any(|name| matches(&pattern, &name.chars().collect::<Vec<_>>()))
}

/// A name that the pattern matches: this in place of what may be anything.
fn filled(pattern: &str, other: &str) -> String {
    let mut name = String::new();
    let mut chars = pattern.chars();
    while let Some(c) = chars.next() {
        match c {
            '*' => name.push_str(other),
            '?' => name.push('x'),
            '[' => {
                let first = chars.next();
                name.extend(first);
                chars.by_ref().find(|c| *c == ']');
            }
            c => name.push(c),
        }
    }
    name
}

/// Whether a pattern matches a name. What stands in brackets may be any character: better too much
/// than too little.
fn matches(pattern: &[char], name: &[char]) -> bool {
    let (mut at, mut of) = (0, 0);
    // Where to go on if it does not fit: behind the last `*`, one character further.
    let mut retry: Option<(usize, usize)> = None;
    loop {
        let step = match pattern.get(at) {
            Some('*') => {
                retry = Some((at + 1, of));
                at += 1;
                continue;
            }
            Some('?') => Some(1),
            Some('[') => {
                let end = pattern.iter().skip(at + 2).position(|c| *c == ']');
                Some(end.map_or(pattern.len() - at, |end| end + 3))
            }
            Some(c) => (name.get(of) == Some(c)).then_some(1),
            None if of == name.len() => return true,
            None => None,
        };
        match (step, &mut retry) {
            (Some(step), _) if of < name.len() => {
                at += step;
                of += 1;
            }
            (_, Some((behind, start))) if *start < name.len() => {
                *start += 1;
                (at, of) = (*behind, *start);
            }
            _ => return false,
        }
    }
}
