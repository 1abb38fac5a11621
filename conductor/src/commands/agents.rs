//! `conductor agents`.

use std::process::ExitCode;

use crate::cli::{AgentsArgs, Global};

/// Runs the command.
pub fn run(_global: &Global, _args: &AgentsArgs) -> ExitCode {
    ExitCode::FAILURE
}
