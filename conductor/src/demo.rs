//! The built-in demo agent: ACP v1 on stdin and stdout, scripted, without a model.
//!
//! It exists so that the product can be tried on any machine, and so that every kind of traffic an agent can
//! cause (streams, tools, permissions, terminals, forms, failures, crashes) can be caused by typing one word.
//!
//! - `wire` turns lines into messages and back, and owns the two threads that touch stdin and stdout.
//! - `agent` is the one loop that owns all state; `methods` holds what it answers to each request.
//! - `turn` is what a running script may do; `script` and `hands` are the scripts.
//! - `options` are the models, modes and thought levels; `store` keeps sessions on disk.

mod agent;
mod hands;
mod methods;
mod options;
mod script;
mod store;
mod turn;
mod wire;

use std::process::ExitCode;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

/// Lines read from stdin and not yet handled. When full, the client waits on its pipe.
const LINES_WAITING: usize = 16;
/// Lines written by turns and not yet on stdout. When full, the turns wait; nothing is dropped.
const LINES_LEAVING: usize = 64;
/// How long the last lines may take to leave before the process ends without them: a client that has gone
/// away without reading must not keep us alive.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Runs the demo agent until stdin ends; exits 0 then, 3 when asked to crash, 1 when stdout is gone.
pub fn run() -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_time().build() {
        Ok(runtime) => runtime,
        Err(error) => return complain(&format!("cannot start the timer and task runtime: {error}")),
    };
    let (lines_in, lines) = mpsc::channel(LINES_WAITING);
    let (out, lines_out) = mpsc::channel(LINES_LEAVING);
    let (input, input_ended) = oneshot::channel::<()>();
    let (written, all_written) = oneshot::channel::<()>();

    // Blocking threads, because a pipe read cannot be interrupted portably. Neither outlives the process: the
    // reader ends with stdin, the writer when the last sender is gone, and returning from `main` ends both.
    let reader = std::thread::Builder::new().name("stdin".to_owned()).spawn(move || {
        wire::read_lines(std::io::stdin().lock(), &lines_in);
        drop(input);
    });
    let writer = std::thread::Builder::new().name("stdout".to_owned()).spawn(move || {
        wire::write_lines(std::io::stdout().lock(), lines_out);
        drop(written);
    });
    if let Err(error) = reader.and(writer) {
        return complain(&format!("cannot start a thread, perhaps the process limit is reached: {error}"));
    }

    runtime.block_on(async {
        let agent = agent::Agent::new(store::Store::in_home(), out);
        let code = tokio::select! {
            code = agent.serve(lines) => code,
            // It sees the end of stdin by itself, unless it waits for room on a stdout that nobody reads.
            () = grace_after(input_ended) => ExitCode::SUCCESS,
        };
        // The agent and its turns are gone, and with them all senders, so the writer now drains and ends.
        // A missed deadline means that nobody reads; there is nobody left to tell.
        let _ = tokio::time::timeout(LAST_WORDS, all_written).await;
        code
    })
}

async fn grace_after(end: oneshot::Receiver<()>) {
    // Nothing is ever sent: the sender's end is the message.
    let _ = end.await;
    tokio::time::sleep(LAST_WORDS).await;
}

#[expect(clippy::print_stderr, reason = "stdout carries ACP only, and there is no log yet")]
fn complain(message: &str) -> ExitCode {
    eprintln!("conductor demo-agent: {message}");
    ExitCode::FAILURE
}
