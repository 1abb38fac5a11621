//! Flags and help texts of `conductor sessions`, and where the record is read.

use std::{path::PathBuf, time::SystemTime};

use clap::{Args, Subcommand, ValueEnum};

use super::{EndpointArgs, ListSharesArgs, ShareSessionArgs, UnshareSessionArgs};
use crate::{clock, config::GivenUrl};

/// What to do with sessions.
#[derive(Debug, Args)]
pub struct SessionsArgs {
    /// Something else than listing.
    #[command(subcommand)]
    pub action: Option<SessionsAction>,
    /// How to list.
    #[command(flatten)]
    pub list: ListSessionsArgs,
}

/// What can be done with sessions.
#[derive(Debug, Subcommand)]
pub enum SessionsAction {
    /// List sessions, newest first (the default)
    Ls(ListSessionsArgs),
    /// Show what a session did: prompts, answers, tool calls, changes, costs
    Show(ShowSessionArgs),
    /// Print a session's record: every frame, or a document for people
    #[command(
        after_help = "jsonl is lossless: one object per frame with seq, at_us, origin, destination, outgoing_id,\n\
        and raw, the frame's bytes as text; raw_base64 stands in its place for bytes that are no UTF-8.\n\
        bundle is read from the ledger itself, also while a service runs: frames with their chain, decisions, and the\n\
        checkpoints that signed them."
    )]
    Export(ExportSessionArgs),
    /// Follow a session in the terminal, and take part in it
    #[command(
        after_help = "What is typed is sent as a prompt, and permissions can be answered. Ctrl-C leaves; the session goes on.\n\
        Without a terminal, or with --json, one only watches. --json prints one event per line, as `prompt --json` does."
    )]
    Attach(AttachSessionArgs),
    /// List the prompts that wait for a session's running turn, or take one back
    Queue(QueueArgs),
    /// End a session, whoever has it open
    Close(CloseSessionArgs),
    /// Let somebody else, or a team, watch or drive a session
    #[command(after_help = "The session then stands in the other's `session/list`, in any editor, and in\n\
        `conductor sessions`. Sharing it again with the same changes what they may do.\n\
        Only its owner or an administrator may share a session. It is recorded who did.")]
    Share(ShareSessionArgs),
    /// Take that back; who is in the session is put out
    Unshare(UnshareSessionArgs),
    /// List with whom a session is shared
    Shares(ListSharesArgs),
}

/// Where the record is read.
#[derive(Debug, Clone, Args)]
pub struct HistoryArgs {
    /// Where the service is.
    #[command(flatten)]
    pub endpoint: EndpointArgs,
    /// Read this ledger itself, as postgres://USER@HOST/DATABASE or sqlite:/FILE
    /// [default: ask the service; if none runs, read its ledger]
    #[arg(long, value_name = "URL", conflicts_with = "endpoint")]
    pub database_url: Option<GivenUrl>,
    /// Configuration file that names the ledger [default: the one that `serve`
    /// would use]
    #[arg(long, value_name = "FILE", env = "CONDUCTOR_CONFIG")]
    pub config: Option<PathBuf>,
}

/// Which sessions to list, and how.
#[derive(Debug, Args)]
pub struct ListSessionsArgs {
    /// Where the record is.
    #[command(flatten)]
    pub history: HistoryArgs,
    /// Only those of this user
    #[arg(long, value_name = "NAME")]
    pub user: Option<String>,
    /// Only those with this agent
    #[arg(long, value_name = "NAME")]
    pub agent: Option<String>,
    /// Only those that used a model with this in its name
    #[arg(long, value_name = "TEXT")]
    pub model: Option<String>,
    /// Only those in which something happened since: 30m, 2h, 7d, or a date as
    /// 2026-11-16 or 2026-11-16T12:00:00Z
    #[arg(long, value_name = "WHEN", value_parser = clock::parse_since)]
    pub since: Option<SystemTime>,
    /// Only those with this in the title, or found by `conductor search` for it
    #[arg(long, value_name = "TEXT")]
    pub text: Option<String>,
    /// Only those that touched this file, or a file beneath this directory; if it
    /// does not begin with /, the end of a path is enough
    #[arg(long, value_name = "PATH")]
    pub path: Option<String>,
    /// At most so many [default: 50]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: Option<u32>,
    /// Print JSON, for machines
    #[arg(long)]
    pub json: bool,
}

impl HistoryArgs {
    /// Flags stand before or after an action; those after it count first.
    pub fn or(&self, before: &Self) -> Self {
        Self {
            endpoint: self.endpoint.clone(),
            database_url: self.database_url.clone().or_else(|| before.database_url.clone()),
            config: self.config.clone().or_else(|| before.config.clone()),
        }
    }
}

impl ListSessionsArgs {
    /// The same for all that says which sessions to list.
    pub fn or(&self, before: &Self) -> Self {
        let text = |own: &Option<String>, before: &Option<String>| own.clone().or_else(|| before.clone());
        Self {
            history: self.history.or(&before.history),
            user: text(&self.user, &before.user),
            agent: text(&self.agent, &before.agent),
            model: text(&self.model, &before.model),
            since: self.since.or(before.since),
            text: text(&self.text, &before.text),
            path: text(&self.path, &before.path),
            limit: self.limit.or(before.limit),
            json: self.json || before.json,
        }
    }

    /// Whether it says which sessions to list.
    pub fn chooses(&self) -> bool {
        let Self { history: _, user, agent, model, since, text, path, limit, json: _ } = self;
        let texts = [user, agent, model, text, path];
        texts.iter().any(|text| text.is_some()) || since.is_some() || limit.is_some()
    }
}

/// Which session to show.
#[derive(Debug, Args)]
pub struct ShowSessionArgs {
    /// The session's id, its beginning if there is only one such, or `last`
    pub id: String,
    /// Where the record is.
    #[command(flatten)]
    pub history: HistoryArgs,
    /// Print JSON, for machines
    #[arg(long)]
    pub json: bool,
}

/// Which session's queue.
#[derive(Debug, Clone, Args)]
pub struct QueueArgs {
    /// The session's id, its beginning if there is only one such, or `last`
    pub id: String,
    /// Where the service is.
    #[command(flatten)]
    pub endpoint: EndpointArgs,
    /// Take this prompt back, by its number in the list
    #[arg(long, value_name = "ENTRY")]
    pub cancel: Option<u64>,
    /// Print JSON, for machines
    #[arg(long)]
    pub json: bool,
}

/// Which session to export.
#[derive(Debug, Args)]
pub struct ExportSessionArgs {
    /// The session's id, its beginning if there is only one such, or `last`
    pub id: String,
    /// Where the record is.
    #[command(flatten)]
    pub history: HistoryArgs,
    /// The form
    #[arg(long, value_enum, default_value_t = ExportFormat::Jsonl)]
    pub format: ExportFormat,
}

/// Forms of a session's record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ExportFormat {
    /// Every frame, byte for byte
    Jsonl,
    /// What happened, for people
    Markdown,
    /// One file with all that is needed to check it with `conductor ledger verify FILE`
    Bundle,
}

/// Which session to follow.
#[derive(Debug, Clone, Args)]
pub struct AttachSessionArgs {
    /// The session's id, its beginning if there is only one such, or `last`
    pub id: String,
    /// Only watch: send nothing, and answer nothing
    #[arg(long)]
    pub observe: bool,
    /// Where the service is.
    #[command(flatten)]
    pub endpoint: EndpointArgs,
    /// Print JSON, one event per line
    #[arg(long)]
    pub json: bool,
}

/// Which session to close.
#[derive(Debug, Clone, Args)]
pub struct CloseSessionArgs {
    /// The session's id, its beginning if there is only one such, or `last`
    pub id: String,
    /// Where the service is.
    #[command(flatten)]
    pub endpoint: EndpointArgs,
    /// Print JSON, for machines
    #[arg(long)]
    pub json: bool,
}
