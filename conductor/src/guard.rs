//! The small parent of every agent process.
use crate::cli::GuardArgs;
use std::process::ExitCode;
/// Runs the command under guard.
pub fn run(_args: GuardArgs) -> ExitCode {
    ExitCode::FAILURE
}
