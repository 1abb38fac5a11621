//! `conductor prompt`.

use std::process::ExitCode;

use crate::cli::{Global, PromptArgs};

/// Runs the command.
pub fn run(_global: &Global, _args: &PromptArgs) -> ExitCode {
    ExitCode::FAILURE
}
