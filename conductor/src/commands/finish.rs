//! How a command for people ends: what it does runs on a runtime of its own,
//! what there is to say goes to stderr under the command's name, and the
//! outcome becomes an exit code.

use std::process::ExitCode;

use tokio::runtime::Builder;
use tonic::Status;

use super::terminal::clean;
use crate::client::Client;

/// Does the work of a command, and ends it.
pub(super) fn finish(command: &str, work: impl Future<Output = Result<(), String>>) -> ExitCode {
    match block_on(work).flatten() {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => fail(command, &message),
    }
}

/// Does the work, for commands with exit codes of their own.
pub(super) fn block_on<T>(work: impl Future<Output = T>) -> Result<T, String> {
    let runtime = Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("cannot start: {error}"))?;
    let done = runtime.block_on(work);
    // A terminal that is being read, or an output that nobody reads, must not hold up the end.
    runtime.shutdown_background();
    Ok(done)
}

/// Cause and remedy of what the service refused.
pub(super) fn explain(client: &Client, status: &Status) -> String {
    client.explain(status).message
}

/// Says why a command fails.
pub(super) fn fail(command: &str, message: &str) -> ExitCode {
    say(command, message);
    ExitCode::FAILURE
}

/// Says something under a command's name.
pub(super) fn say(command: &str, message: &str) {
    tell(&format!("conductor {command}: {message}"));
}

/// Says something to who is at the terminal, as it is.
#[allow(clippy::print_stderr, reason = "this is a program's message to its user")]
pub(super) fn tell(message: &str) {
    eprintln!("{}", clean(message));
}
