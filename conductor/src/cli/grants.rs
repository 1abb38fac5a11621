//! Flags and help texts of `conductor grants`.

use std::{path::PathBuf, time::Duration};

use clap::{Args, Subcommand};

use super::EndpointArgs;
use crate::clock;

/// What to do with grants.
#[derive(Debug, Args)]
pub struct GrantsArgs {
    /// What to do.
    #[command(subcommand)]
    pub action: GrantsAction,
}

/// What can be done with grants.
#[derive(Debug, Subcommand)]
pub enum GrantsAction {
    /// Allow something ahead of time; what is understood is shown first
    #[command(
        after_help = "A grant allows what the rules would ask about, and never what they deny. It is for exactly what\n\
        is named, as the service understands it, unless --any-arguments or --beneath say more.\n\
        Anyone may give grants for their own sessions; approvers and administrators also for a\n\
        directory, a user or a team.\n\n\
        conductor grants give --session last --run 'npm test' --for 2h --reason 'fixing the tests'\n\
        conductor grants give --session last --approval 1f0a2b3c\n\
        conductor grants give --root /srv/web --write docs --beneath --uses 20\n\
        conductor grants give --team web --cwd /srv/web --run 'cargo check' --any-arguments"
    )]
    Give(Box<GiveGrantArgs>),
    /// List the grants that hold, newest first
    Ls(ListGrantsArgs),
    /// Show one grant
    Show(ShowGrantArgs),
    /// Take a grant back, or all of an author: the next decision does not see them
    Revoke(RevokeGrantArgs),
}

/// Where a grant holds: exactly one of these.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub struct GrantScopeArgs {
    /// In one session: its id, its beginning if there is only one such, or `last`
    #[arg(long, value_name = "ID")]
    pub session: Option<String>,
    /// In every session in this directory of the service's host
    #[arg(long, value_name = "PATH")]
    pub root: Option<PathBuf>,
    /// Wherever this user prompts
    #[arg(long, value_name = "NAME")]
    pub user: Option<String>,
    /// Wherever somebody of this team prompts
    #[arg(long, value_name = "NAME")]
    pub team: Option<String>,
}

/// What to grant, where and for how long.
#[derive(Debug, Args)]
pub struct GiveGrantArgs {
    /// Where it holds.
    #[command(flatten)]
    pub scope: GrantScopeArgs,
    /// A command that may be run (this and the next three may be given several times)
    #[arg(long, value_name = "LINE", required_unless_present_any = ["read", "write", "fetch", "like", "approval"])]
    pub run: Vec<String>,
    /// A file that may be read
    #[arg(long, value_name = "PATH")]
    pub read: Vec<String>,
    /// A file that may be written
    #[arg(long, value_name = "PATH")]
    pub write: Vec<String>,
    /// An address that may be fetched
    #[arg(long, value_name = "URL")]
    pub fetch: Vec<String>,
    /// What this request has asked for: a session and the number of the request in its record,
    /// as in `decision_log`
    #[arg(long, value_name = "SESSION:SEQ")]
    pub like: Option<String>,
    /// What this approval asks: its id or the end of it, as `conductor approvals ls` shows
    #[arg(long, value_name = "ID")]
    pub approval: Option<String>,
    /// Each --run with any further arguments, and in directories beneath
    #[arg(long, requires = "run")]
    pub any_arguments: bool,
    /// Each --read and --write is a directory, with everything beneath it
    #[arg(long)]
    pub beneath: bool,
    /// Where commands run and relative paths begin [default: the session's directory, or the
    /// root]
    #[arg(long, value_name = "DIR")]
    pub cwd: Option<String>,
    /// How long it holds: 30m, 8h, 7d; at most 30d
    #[arg(long = "for", value_name = "TIME", default_value = "8h", value_parser = clock::parse_duration)]
    pub time: Duration,
    /// How often it may be used [default: any number of times]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub uses: Option<u64>,
    /// Why, for whoever reads the record
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub reason: String,
    /// Give it without being asked whether that is what is meant
    #[arg(long, short)]
    pub yes: bool,
    /// Only show what would be granted
    #[arg(long, conflicts_with = "yes")]
    pub dry_run: bool,
    /// Where the service is.
    #[command(flatten)]
    pub endpoint: EndpointArgs,
    /// Print JSON, for machines
    #[arg(long)]
    pub json: bool,
}

/// Which grants to list.
#[derive(Debug, Args)]
pub struct ListGrantsArgs {
    /// Only those for this session: its id, its beginning, or `last`
    #[arg(long, value_name = "ID")]
    pub session: Option<String>,
    /// At most so many
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: u32,
    /// Where the service is.
    #[command(flatten)]
    pub endpoint: EndpointArgs,
    /// Print JSON, for machines
    #[arg(long)]
    pub json: bool,
}

/// Which grant to show.
#[derive(Debug, Args)]
pub struct ShowGrantArgs {
    /// The grant's id, or its beginning or end if there is only one such
    pub id: String,
    /// Where the service is.
    #[command(flatten)]
    pub endpoint: EndpointArgs,
    /// Print JSON, for machines
    #[arg(long)]
    pub json: bool,
}

/// Which grant to take back.
#[derive(Debug, Args)]
pub struct RevokeGrantArgs {
    /// The grant's id, or its beginning or end if there is only one such
    #[arg(required_unless_present = "by", conflicts_with = "by")]
    pub id: Option<String>,
    /// All that this user has given, as far as you may take them back
    #[arg(long, value_name = "USER")]
    pub by: Option<String>,
    /// Why, for whoever reads the record
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub reason: String,
    /// Where the service is.
    #[command(flatten)]
    pub endpoint: EndpointArgs,
    /// Print JSON, for machines
    #[arg(long)]
    pub json: bool,
}
