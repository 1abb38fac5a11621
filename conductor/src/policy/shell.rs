//! Command lines, read by a real grammar and taken apart into simple commands.

use super::{Ground, SubAction};

/// What a line for a shell would do.
pub fn line(_line: &str, _ground: &Ground<'_>) -> Vec<SubAction> {
    vec![SubAction::unknown("not read")]
}

/// What a program with arguments would do; wrappers such as `env` or `sh -c` are opened.
pub fn argv(_argv: &[String], _ground: &Ground<'_>) -> Vec<SubAction> {
    vec![SubAction::unknown("not read")]
}
