//! `conductor prompt`: one prompt from the terminal, the answer on stdout,
//! everything else on stderr.

use std::{
    io::{IsTerminal as _, Read as _, stderr, stdin},
    path::{Path, PathBuf},
    process::ExitCode,
};

use serde_json::json;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::{
    conversation::{Conversation, Failure},
    permission::Stance,
    terminal::clean,
    turn::{End, Turn},
};
use crate::{
    acp::PROTOCOL_VERSION,
    cli::{Global, PromptArgs},
    client::Client,
    frame::{MAX_FRAME, escape},
};

/// Exit code for a command line that makes no sense, as clap has it.
const USAGE: u8 = 2;

/// Exit code for a turn that the agent cut short.
const CUT_SHORT: u8 = 3;

/// Exit code after Ctrl-C, as shells have it.
const INTERRUPTED: u8 = 130;

/// Runs the command.
pub fn run(global: &Global, args: &PromptArgs) -> ExitCode {
    // Before anything is connected: Ctrl-C while typing simply ends us.
    let text = match prompt_text(&args.text) {
        Ok(text) => text,
        Err(message) => {
            say(&message);
            return ExitCode::from(USAGE);
        }
    };
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            say(&format!("cannot start: {error}"));
            return ExitCode::FAILURE;
        }
    };
    let end = runtime.block_on(interruptible(global, args, &text));
    // A blocked write of stdout must not keep the process alive.
    runtime.shutdown_background();
    report(end)
}

#[allow(clippy::print_stderr, reason = "this is a program's message to its user")]
fn say(message: &str) {
    eprintln!("conductor prompt: {}", clean(message));
}

fn report(end: End) -> ExitCode {
    let cut_short = |message: &str| {
        say(message);
        ExitCode::from(CUT_SHORT)
    };
    match end {
        End::Interrupted => ExitCode::from(INTERRUPTED),
        End::Failed(message) => {
            say(&message);
            ExitCode::FAILURE
        }
        End::Stopped(reason) => match &*reason {
            "end_turn" => ExitCode::SUCCESS,
            "refusal" => cut_short("the agent refused to go on (refusal)"),
            "max_tokens" => {
                cut_short("the answer is cut off at the model's limit (max_tokens); ask for less")
            }
            "max_turn_requests" => cut_short(
                "the agent stopped at its limit of model requests in one turn (max_turn_requests); \
                 ask for a smaller step",
            ),
            "cancelled" => {
                say("the turn was cancelled");
                ExitCode::from(INTERRUPTED)
            }
            other => {
                say(&format!("the turn ended for an unknown reason: {}", escape(other.as_bytes(), 100)));
                ExitCode::FAILURE
            }
        },
    }
}

/// The prompt itself, from the command line or from stdin.
fn prompt_text(given: &str) -> Result<String, String> {
    let text = if given == "-" {
        let mut bytes = Vec::new();
        // Twice what fits is enough to know that it does not.
        let most = 2 * MAX_FRAME as u64;
        stdin().take(most).read_to_end(&mut bytes).map_err(|error| format!("cannot read stdin: {error}"))?;
        String::from_utf8(bytes).map_err(|_| "what stdin holds is not text in UTF-8".to_string())?
    } else {
        given.to_string()
    };
    if text.trim().is_empty() {
        return Err("the prompt is empty; give it as an argument, or on stdin with `-`".into());
    }
    Ok(text)
}

/// Runs everything, unless Ctrl-C ends it: the first one while there is no
/// turn yet, or the second one.
async fn interruptible(global: &Global, args: &PromptArgs, text: &str) -> End {
    let (mut first, mut second) = match (signal(SignalKind::interrupt()), signal(SignalKind::interrupt())) {
        (Ok(first), Ok(second)) => (first, second),
        (Err(error), _) | (_, Err(error)) => {
            return End::Failed(format!("cannot listen for Ctrl-C: {error}"));
        }
    };
    let opened = tokio::select! {
        opened = open(global, args) => opened,
        _ = first.recv() => return End::Interrupted,
    };
    let (mut conversation, session) = match opened {
        Ok(opened) => opened,
        Err(failure) => return End::Failed(failure.to_string()),
    };
    let leave = async {
        second.recv().await;
        second.recv().await;
    };
    let end = tokio::select! {
        end = converse(&mut conversation, &mut first, stance(args), session, text) => end,
        () = leave => return End::Interrupted,
    };
    conversation.close().await;
    end
}

async fn converse(
    conversation: &mut Conversation,
    interrupts: &mut Signal,
    stance: Stance,
    session: String,
    text: &str,
) -> End {
    match Turn::begin(conversation, interrupts, stance, session, text).await {
        Ok(turn) => turn.run().await,
        Err(failure) => End::Failed(failure.to_string()),
    }
}

/// Connects and opens a session; gives its id.
async fn open(global: &Global, args: &PromptArgs) -> Result<(Conversation, String), Failure> {
    let cwd = directory(args.cwd.as_ref()).map_err(Failure::Answered)?;
    let client = Client::connect(global, &args.endpoint).await?;
    let tunnel = client.tunnel(&args.choice, "conductor-prompt", Path::new(&cwd)).await?;
    let mut conversation = Conversation::new(client, tunnel);
    let hello = json!({
        "protocolVersion": PROTOCOL_VERSION,
        "clientCapabilities": { "fs": { "readTextFile": false, "writeTextFile": false }, "terminal": false },
        "clientInfo": { "name": "conductor-prompt", "version": env!("CARGO_PKG_VERSION") },
    });
    conversation.ask("initialize", &hello).await?;
    let opened = conversation.ask("session/new", &json!({ "cwd": cwd, "mcpServers": [] })).await?;
    match opened["sessionId"].as_str() {
        Some(session) => Ok((conversation, session.to_string())),
        None => Err(Failure::Answered("the service opened a session without an id".into())),
    }
}

/// The directory of the session: absolute, and text, as the protocol wants.
fn directory(given: Option<&PathBuf>) -> Result<String, String> {
    let path = match given {
        Some(path) => {
            std::path::absolute(path).map_err(|error| format!("--cwd {}: {error}", path.display()))?
        }
        None => std::env::current_dir()
            .map_err(|error| format!("the current directory cannot be used: {error}; name one with --cwd"))?,
    };
    path.into_os_string()
        .into_string()
        .map_err(|path| format!("the directory `{}` is not text; name another with --cwd", path.display()))
}

fn stance(args: &PromptArgs) -> Stance {
    match (args.allow, args.deny) {
        (true, _) => Stance::Allow,
        (_, true) => Stance::Deny,
        _ if stdin().is_terminal() && stderr().is_terminal() => Stance::Ask,
        _ => Stance::Nobody,
    }
}
