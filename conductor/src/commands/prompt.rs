//! `conductor prompt`: one prompt from the terminal, the answer on stdout,
//! everything else on stderr.

use std::{
    io::{IsTerminal as _, Read as _, Write as _, stderr, stdin, stdout},
    process::ExitCode,
};

use tokio::signal::unix::{SignalKind, signal};

use super::{
    events,
    finish::{block_on, fail, say},
    opening::{Opened, open},
    permission::Stance,
    turn::{End, Turn},
};
use crate::{
    cli::{Global, PromptArgs},
    frame::{MAX_FRAME, escape},
};

/// What messages are said under.
const COMMAND: &str = "prompt";

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
            say(COMMAND, &message);
            return ExitCode::from(USAGE);
        }
    };
    report(block_on(interruptible(global, args, &text)).unwrap_or_else(End::Failed))
}

fn report(end: End) -> ExitCode {
    let cut_short = |message: &str| {
        say(COMMAND, message);
        ExitCode::from(CUT_SHORT)
    };
    match end {
        End::Interrupted => ExitCode::from(INTERRUPTED),
        End::Failed(message) => fail(COMMAND, &message),
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
                // Who pressed Ctrl-C here needs no words for it.
                say(
                    COMMAND,
                    "the turn was cancelled, and not from here: the service is stopping, or somebody else in \
                     the session has cancelled it",
                );
                ExitCode::from(INTERRUPTED)
            }
            other => {
                let other = escape(other.as_bytes(), 100);
                fail(COMMAND, &format!("the turn ended for an unknown reason: {other}"))
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
    let mut opened = match opened {
        Ok(opened) => opened,
        Err(failure) => return not_begun(failure.to_string(), args.json),
    };
    let leave = async {
        second.recv().await;
        second.recv().await;
    };
    let converse = async {
        match Turn::begin(&mut opened, &mut first, stance(args), args.json, text).await {
            Ok(turn) => turn.run().await,
            Err(failure) => not_begun(failure.to_string(), args.json),
        }
    };
    let end = tokio::select! {
        end = converse => end,
        () = leave => return End::Interrupted,
    };
    let Opened { conversation, .. } = opened;
    conversation.close().await;
    end
}

/// There was no turn; a machine is told so, too.
fn not_begun(message: String, json: bool) -> End {
    if json {
        // Nobody reading it will see the exit code.
        writeln!(stdout(), "{}", events::error(&message)).ok();
    }
    End::Failed(message)
}

fn stance(args: &PromptArgs) -> Stance {
    match (args.allow, args.deny) {
        (true, _) => Stance::Allow,
        (_, true) => Stance::Deny,
        _ if stdin().is_terminal() && stderr().is_terminal() => Stance::Ask,
        _ => Stance::Nobody,
    }
}
