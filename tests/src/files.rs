//! What is beneath a directory, for tests that look at every byte of it.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Every file beneath a directory, but for those that are, or are beneath, one of `except`.
pub fn files(dir: &Path, except: &[PathBuf]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap().filter_map(Result::ok) {
        let path = entry.path();
        let kind = entry.file_type().unwrap();
        if except.iter().any(|skipped| path.starts_with(skipped)) {
            continue;
        }
        if kind.is_dir() {
            found.extend(files(&path, except));
        } else if kind.is_file() {
            found.push(path);
        }
    }
    found
}
