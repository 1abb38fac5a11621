//! What a command means depends on what lies around it.
//!
//! Some programs start another in their place that a file of the workspace names, and some read all that is in
//! a directory where a file was meant. The disk is asked through the [`Resolver`], which tells only where paths lead; but
//! it finds a file that is used as a directory a trouble, and that is enough to tell the two apart.

use std::path::Path;

use crate::policy::paths::Resolver;

/// More directories above one another than anybody has.
const MOST_ABOVE: usize = 64;

/// The files that say which version of a program runs: `rust-toolchain.toml` can name a directory with programs, and
/// `go.mod` a release that is fetched.
pub fn chosen_by(name: &str) -> Option<&'static [&'static str]> {
    match name {
        "cargo" | "cargo-clippy" | "cargo-fmt" | "clippy-driver" | "rust-analyzer" | "rust-gdb"
        | "rust-lldb" | "rustc" | "rustdoc" | "rustfmt" | "rustup" => {
            Some(&["rust-toolchain.toml", "rust-toolchain"])
        }
        "go" | "gofmt" => Some(&["go.mod", "go.work"]),
        _ => None,
    }
}

/// The files by which managers of versions choose what runs in place of a program of theirs; some of them may name
/// any directory.
pub const MANAGED_BY: &[&str] = &[
    ".tool-versions",
    "mise.toml",
    ".mise.toml",
    "mise.local.toml",
    ".mise.local.toml",
    ".rtx.toml",
    ".node-version",
    ".nvmrc",
    ".python-version",
    ".ruby-version",
];

/// Whether a program only stands in for the one that is chosen so.
pub fn is_stand_in(program: &str, file: &Path) -> bool {
    let is_shim = file.parent().is_some_and(|dir| dir.ends_with("shims"));
    is_shim || file.ends_with("mise") && !program.ends_with("mise")
}

/// Whether there is such a file in a directory or above it, or it cannot be told.
pub fn has_one(resolver: &dyn Resolver, cwd: &Path, files: &[&str]) -> bool {
    let mut above = cwd.ancestors();
    let found = above
        .by_ref()
        .take(MOST_ABOVE)
        .any(|dir| files.iter().any(|file| is_no_directory(resolver, dir, file)));
    found || above.next().is_some()
}

/// Whether git takes a directory for a repository though it has no `.git`: it may have come along
/// with the files, and its settings name programs.
pub fn is_bare_repository(resolver: &dyn Resolver, cwd: &Path) -> bool {
    let is_there = |dir: &Path, name: &str| !resolver.is_absent(&dir.join(name));
    let above = cwd.ancestors().take(MOST_ABOVE);
    above.take_while(|dir| !is_there(dir, ".git")).any(|dir| is_there(dir, "HEAD"))
}

/// Whether a program takes a name that is not there for one without its ending, or for a pattern.
pub fn completes_names(name: &str, words: &[&str]) -> bool {
    name == "zcat" || matches!(name, "gzip" | "unzip") && words.first() == Some(&"-l")
}

/// Whether all words that name what git has, seen from here, lead where they say.
pub fn is_git_there(resolver: &dyn Resolver, cwd: &Path, words: &[&str]) -> bool {
    let is_git = |word: &&&str| **word == ".git" || word.starts_with(".git/");
    words.iter().filter(is_git).all(|word| {
        let fact = resolver.path(cwd, word);
        fact.root.is_some()
            && fact.trouble.is_none()
            && fact.resolved == Some(cwd.join(word.trim_end_matches('/')))
    })
}

/// Whether all words of a `diff` that could be names are files that are there, or its input.
pub fn are_files(resolver: &dyn Resolver, cwd: &Path, words: &[&str]) -> bool {
    let mut is_value = false;
    let mut only_names = false;
    words.iter().all(|word| {
        if std::mem::take(&mut is_value) || *word == "-" {
            return true;
        }
        if !only_names && word.starts_with('-') {
            only_names = *word == "--";
            is_value = matches!(*word, "-U" | "-C" | "-W" | "-L" | "--label" | "--width");
            return true;
        }
        is_file(resolver, cwd, word)
    })
}

/// Whether a file is there, and nothing is odd about it.
fn is_file(resolver: &dyn Resolver, cwd: &Path, name: &str) -> bool {
    resolver.path(cwd, name).trouble.is_none() && is_no_directory(resolver, cwd, name)
}

/// Whether something is there that is no directory, or it cannot be told.
fn is_no_directory(resolver: &dyn Resolver, cwd: &Path, name: &str) -> bool {
    !resolver.is_absent(&cwd.join(name)) && resolver.path(cwd, &format!("{name}/.")).trouble.is_some()
}
