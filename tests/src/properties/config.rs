//! The configuration file.

use std::fs;

use conductor::config::{Config, ConfigError, Place};
use tempfile::NamedTempFile;

/// A file can be used, or it is said in which line and at which character it cannot be,
/// and what to do.
pub fn config(data: &[u8]) {
    // One that only its owner can read.
    let file = NamedTempFile::with_suffix(".toml").unwrap();
    fs::write(&file, data).unwrap();
    let file = file.path();
    let text = String::from_utf8_lossy(data);
    match Config::load(Some(file), [("HOME".into(), "/home/ann".into())]) {
        Ok(loaded) => assert_eq!(loaded.file.as_deref(), Some(file)),
        Err(ConfigError { place, what, hint }) => {
            let message = format!("{place}: {what}\nhint: {hint}");
            assert!(!what.is_empty() && !hint.is_empty(), "{message}");
            assert!(!message.chars().any(|c| c.is_control() && c != '\n'), "{message:?}");
            let Place::Line { file: named, line, column } = place else {
                panic!("{message:?} names no line")
            };
            assert_eq!(named, file);
            assert!((1..=text.matches('\n').count() + 1).contains(&line), "{message:?}");
            let most = text.split('\n').nth(line - 1).unwrap_or_default().chars().count() + 1;
            assert!((1..=most).contains(&column), "{message:?} in a line of {most}");
        }
    }
}
