//! The built-in demo agent.
use std::process::ExitCode;
/// Runs the demo agent.
pub fn run() -> ExitCode {
    ExitCode::FAILURE
}
