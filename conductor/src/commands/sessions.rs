//! `conductor sessions`: which sessions there were, what one of them did, its
//! record, who else may see it, and its end. The service is asked; if none runs, its ledger is read.

mod attach;
mod bundle;
mod dossier;
mod export;
mod list;
mod markdown_document;
mod queue;
mod search;
mod share;
mod show;
mod source;

use std::{io, process::ExitCode};

use serde_json::json;
use tonic::Code;

use self::source::Source;
use super::{
    finish::{finish, say},
    terminal::{in_json, write},
};
use crate::{
    cli::{
        AttachSessionArgs, CloseSessionArgs, ExportFormat, Global, ListSharesArgs, QueueArgs, SearchArgs,
        SessionsAction, SessionsArgs, ShareSessionArgs, UnshareSessionArgs,
    },
    client::Client,
    proto::CloseSessionRequest,
};

/// What messages are said under.
const COMMAND: &str = "sessions";

/// Exit code for a command line that makes no sense, as clap has it.
const USAGE: u8 = 2;

/// Runs the command.
pub fn run(global: &Global, args: &SessionsArgs) -> ExitCode {
    let lists = matches!(args.action, None | Some(SessionsAction::Ls(_)));
    let is_lost = args.list.json && matches!(args.action, Some(SessionsAction::Export(_)));
    if !lists && (args.list.chooses() || is_lost) {
        say(
            COMMAND,
            "flags before the action are for all sessions; give those of the action behind its name",
        );
        return ExitCode::from(USAGE);
    }
    ended(COMMAND, act(global, args))
}

/// Runs `conductor search`.
pub fn search(global: &Global, args: &SearchArgs) -> ExitCode {
    ended(search::COMMAND, search::run(global, args))
}

fn ended(command: &str, work: impl Future<Output = Result<(), Failure>>) -> ExitCode {
    finish(command, async {
        match work.await {
            Ok(()) | Err(Failure::Enough) => Ok(()),
            Err(Failure::Told(message)) => Err(message),
        }
    })
}

/// Why a command ends early.
#[derive(Debug)]
enum Failure {
    /// Cause and remedy.
    Told(String),
    /// Whoever reads no more has seen enough.
    Enough,
}

impl From<String> for Failure {
    fn from(message: String) -> Self {
        Self::Told(message)
    }
}

async fn act(global: &Global, args: &SessionsArgs) -> Result<(), Failure> {
    // Flags stand before or after the action.
    let before = &args.list;
    match &args.action {
        None => list::run(global, before).await,
        Some(SessionsAction::Ls(args)) => list::run(global, &args.or(before)).await,
        Some(SessionsAction::Show(args)) => {
            let source = Source::open(global, &args.history.or(&before.history), COMMAND).await?;
            let id = source.resolve(&args.id).await?;
            let dossier = source.dossier(id).await?;
            let json = args.json || before.json;
            print(&if json { dossier.as_json()? } else { show::transcript(&dossier) })
        }
        Some(SessionsAction::Export(args)) => {
            let history = args.history.or(&before.history);
            let source = Source::open(global, &history, COMMAND).await?;
            let id = source.resolve(&args.id).await?;
            match args.format {
                ExportFormat::Jsonl => export::jsonl(&source, id).await,
                ExportFormat::Bundle => bundle::bundle(global, &history, id).await,
                ExportFormat::Markdown => print(&markdown_document::of(&source.dossier(id).await?)),
            }
        }
        Some(SessionsAction::Attach(args)) => {
            attach::run(global, &AttachSessionArgs { json: args.json || before.json, ..args.clone() }).await
        }
        Some(SessionsAction::Queue(args)) => {
            queue::run(global, &QueueArgs { json: args.json || before.json, ..args.clone() }).await
        }
        Some(SessionsAction::Close(args)) => {
            close(global, &CloseSessionArgs { json: args.json || before.json, ..args.clone() }).await
        }
        Some(SessionsAction::Share(args)) => {
            share::share(global, &ShareSessionArgs { json: args.json || before.json, ..args.clone() }).await
        }
        Some(SessionsAction::Unshare(args)) => {
            share::unshare(global, &UnshareSessionArgs { json: args.json || before.json, ..args.clone() })
                .await
        }
        Some(SessionsAction::Shares(args)) => {
            share::list(global, &ListSharesArgs { json: args.json || before.json, ..args.clone() }).await
        }
    }
}

async fn close(global: &Global, args: &CloseSessionArgs) -> Result<(), Failure> {
    let client = Client::connect(global, &args.endpoint).await.map_err(|error| error.message)?;
    let source = Source::Service(client.clone());
    let id = source.resolve(&args.id).await?;
    let request = CloseSessionRequest { session_id: id.to_string() };
    client.sessions().close(request).await.map_err(|status| {
        let message = client.explain(&status).message;
        match status.code() {
            Code::NotFound => {
                format!("{message} that is open; `conductor sessions ls` lists those there were")
            }
            _ => message,
        }
    })?;
    print(&if args.json {
        in_json(&json!({ "session_id": id.to_string(), "closed": true }))
    } else {
        format!("session {id} is closed\n")
    })
}

/// The session that is meant: by its id, its beginning, or `last`.
pub(super) async fn session_id(client: &Client, given: &str) -> Result<uuid::Uuid, String> {
    Source::Service(client.clone()).resolve(given).await
}

/// Writes to stdout.
fn print(text: &str) -> Result<(), Failure> {
    match write(text.as_bytes()) {
        Ok(true) => Ok(()),
        Ok(false) => Err(Failure::Enough),
        Err(message) => Err(Failure::Told(message)),
    }
}

fn written(done: io::Result<()>) -> Result<(), Failure> {
    done.map_err(|error| match error.kind() {
        io::ErrorKind::BrokenPipe => Failure::Enough,
        _ => Failure::Told(format!("cannot write to stdout: {error}")),
    })
}
