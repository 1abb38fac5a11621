//! Names that are protected wherever they are, and why.
//!
//! Names, not files: a file that is not there yet can be made, and then it
//! counts. They are compared without regard to case and to what some file
//! systems leave out (dots and spaces at the end, streams), because there
//! `.GIT` and `.git` are the same. What a disk with short names calls `git~1`
//! is protected as well.
//!
//! Most are protected from being written only: they make other programs, or
//! the next session, do something. What is likely to hold keys or passwords is
//! protected from being read, too. A sample of such a file (`.env.example`) is
//! made to be read and is not protected.

mod aim;
mod lists;

use std::{borrow::Cow, ffi::OsStr, os::unix::ffi::OsStrExt as _, path::Path};

pub use self::aim::is_aimed_at_secrets;
use self::lists::{
    ACCOUNT, AGENT, BEGINNINGS, COPIES, ENDINGS, ENV, FILES, GIT, HOOK, HOOKS, KEY, LOOSE, NAMES, PAIRS,
    SAMPLES, SOURCES, STARTUP,
};

/// Why a name is protected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Protection {
    /// In words.
    pub reason: &'static str,
    /// From being read, too.
    pub secret: bool,
}

/// Why a path is protected, by its names; the weightiest reason if there are several. `above` of
/// its components are those of a root: that is a place that people have chosen, so that only
/// names count there that are never those of a workspace.
pub fn by_name(path: &Path, above: usize) -> Option<Protection> {
    let mut found: Option<Protection> = None;
    let mut note = |protection: Option<Protection>| {
        if let Some(protection) = protection
            && found.is_none_or(|found| protection.secret && !found.secret)
        {
            found = Some(protection);
        }
    };
    let is_source = path.file_name().is_some_and(|name| is_source(&fold(name)));
    let mut is_in_git = false;
    let mut previous: Cow<'_, str> = Cow::Borrowed("");
    let mut names = names(path).peekable();
    while let Some((at, given)) = names.next() {
        // What it undoes is not known here; the resolved path tells.
        if given == ".." {
            continue;
        }
        let name = fold(given);
        // Working copies that agents make for themselves are workspaces like others.
        let next = names.peek().map(|(_, next)| *next);
        let is_last = next.is_none();
        let is_copy = || next.is_some_and(|next| fold(next) == "worktrees");
        note(listed(&name).filter(|protection| *protection != AGENT || !is_copy()));
        note(PAIRS.iter().find(|(one, two, _)| *two == name && *one == previous).map(|pair| pair.2));
        // Also submodules and working copies have one, deeper in.
        if is_in_git && is_last && matches!(&*name, "config" | "config.worktree") {
            note(Some(ACCOUNT));
        }
        is_in_git |= name == ".git" || name == "git~1";
        // Settings of git may name any directory for them.
        if previous.contains("hook") && HOOKS.contains(&&*name) {
            note(Some(GIT));
        }
        if at >= above {
            note(exact(FILES, &name));
            note(pattern(&name));
            if !is_source && LOOSE.contains(&&*name) {
                note(Some(ACCOUNT));
            }
            // With a file of this name beside a few others, git takes a directory for a repository
            // and runs what its configuration names.
            if is_last && given == "HEAD" {
                note(Some(GIT));
            }
        }
        if let Some(original) = original(&name) {
            note(secret(original).filter(|_| at >= above));
        }
        previous = name;
    }
    found
}

/// What is protected in a directory of this name, which need not be protected itself.
pub fn protected_in(name: &OsStr) -> impl Iterator<Item = &'static str> {
    let name = fold(name);
    PAIRS.iter().filter(move |(above, ..)| *above == name).map(|(_, inner, _)| *inner)
}

/// The names in a path with their places, as [`Path::components`] counts them.
fn names(path: &Path) -> impl Iterator<Item = (usize, &OsStr)> {
    let bytes = path.as_os_str().as_bytes();
    // A dot at the beginning counts there, and a root is the first.
    let first = usize::from(bytes.starts_with(b"/") || bytes == b"." || bytes.starts_with(b"./"));
    let names = bytes.split(|byte| *byte == b'/').filter(|name| !matches!(*name, b"" | b"."));
    names.enumerate().map(move |(at, name)| (first + at, OsStr::from_bytes(name)))
}

/// How many components an absolute path has.
pub fn depth(path: &Path) -> usize {
    1 + names(path).count()
}

/// The name of which this is that of a copy.
fn original(name: &str) -> Option<&str> {
    if !name.ends_with(['~', '#']) && !name.contains('.') {
        return None;
    }
    let mut rest = name.strip_prefix('#').and_then(|name| name.strip_suffix('#')).unwrap_or(name);
    let mut is_swapped = false;
    while let Some((copy, cut)) = COPIES.iter().find_map(|copy| Some((copy, rest.strip_suffix(copy)?))) {
        is_swapped |= copy.starts_with(".sw");
        rest = cut;
    }
    // An editor puts a dot before the name, too. `..env` was `.env`.
    if is_swapped && !rest.strip_prefix('.').is_none_or(|bare| secret(rest).is_some() || bare.is_empty()) {
        rest = rest.strip_prefix('.').unwrap_or(rest);
    }
    (rest != name && !rest.is_empty()).then_some(rest)
}

/// Why a single name is protected from being read, if it is.
fn secret(name: &str) -> Option<Protection> {
    let listed = listed(name).into_iter().chain(exact(FILES, name)).chain(pattern(name));
    let loose = LOOSE.contains(&name).then_some(ACCOUNT);
    listed.chain(loose).find(|found| found.secret)
}

fn is_source(name: &str) -> bool {
    name.rsplit_once('.').is_some_and(|(_, extension)| SOURCES.contains(&extension))
}

/// One of [`NAMES`], which all begin alike.
fn listed(name: &str) -> Option<Protection> {
    if name.starts_with(['.', '_']) { exact(NAMES, name) } else { None }
}

fn exact(list: &[(&str, Protection)], name: &str) -> Option<Protection> {
    let at = list.binary_search_by(|(entry, _)| (*entry).cmp(name)).ok()?;
    list.get(at).map(|(_, protection)| *protection)
}

fn pattern(name: &str) -> Option<Protection> {
    // Each of what follows has one of these in it. Few names have, and all names are looked at.
    let is_bare = !name.bytes().any(|byte| matches!(byte, b'.' | b'_' | b'-'));
    if is_bare && !name.starts_with("privatekey") && !name.starts_with("kubeconfig") {
        return None;
    }
    let begins = || BEGINNINGS.iter().find(|(beginning, _)| name.starts_with(beginning));
    let ends = || ENDINGS.iter().find(|(ending, _)| name.ends_with(ending) && name.len() > ending.len());
    if let Some(rest) = name.strip_prefix(".env") {
        let is_sample = SAMPLES.iter().any(|sample| rest.ends_with(sample));
        // `.environment` is another word.
        let is_env = rest.is_empty() || rest.starts_with(|c: char| !c.is_alphanumeric());
        return (is_env && !is_sample).then_some(ENV);
    }
    let is_source = is_source(name);
    let begins_with = |words: &[&str]| words.iter().any(|word| name.starts_with(word));
    let has = |words: &[&str]| words.iter().any(|word| name.contains(word));
    let is_secret = begins_with(&["secrets.", "secret."]) || has(&[".secrets.", ".secret."]);
    let accounts = ["service-account", "service_account", "-adminsdk", "client_secret", "gha-creds-"];
    let is_account =
        name.ends_with(".json") && has(&accounts) || name.starts_with("kubeconfig") && !is_source;
    if is_secret && !is_source || is_account || name.ends_with(".env") {
        return Some(ACCOUNT);
    }
    let is_private = begins_with(&["privatekey", "private_key", "private-key"]) && !is_source
        || name.starts_with("ssh_host_") && name.ends_with("_key")
        || name.ends_with(".asc") && has(&["private", "secret"]);
    if is_private {
        return Some(KEY);
    }
    begins().or_else(ends).map(|(_, protection)| *protection).or_else(|| settings(name))
}

/// Why a name is protected that is one of several for the settings of a tool.
fn settings(name: &str) -> Option<Protection> {
    match name.strip_prefix('.').unwrap_or(name).rsplit_once('.')? {
        ("lefthook" | "lefthook-local", "json" | "jsonc" | "toml" | "yaml" | "yml") => Some(HOOK),
        (tool, "toml") if tool.split('.').next() == Some("mise") => Some(STARTUP),
        _ => None,
    }
}

/// A name as a file system may see it that knows no case: folded, without dots and spaces at the
/// end and without the name of a stream.
pub fn fold(name: &OsStr) -> Cow<'_, str> {
    let text = name.to_string_lossy();
    let is_plain = |byte: u8| byte.is_ascii() && !byte.is_ascii_uppercase() && byte != b':';
    let is_cut = text.ends_with(['.', ' ']);
    if text.bytes().all(is_plain) && !is_cut {
        return text;
    }
    let whole: &str = text.split(':').next().unwrap_or_default();
    let cut = whole.trim_end_matches(['.', ' ']);
    if cut.is_ascii() {
        return Cow::Owned(cut.to_ascii_lowercase());
    }
    // Upper case first: it takes apart what lower case leaves alone, such as a long s.
    let folded: String = cut.chars().flat_map(char::to_uppercase).flat_map(char::to_lowercase).collect();
    Cow::Owned(folded)
}

#[cfg(test)]
mod tests;
