//! Flags and help texts of what gives others access: tokens, and shares of
//! sessions.

use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};

use super::EndpointArgs;
use crate::clock;

/// Which session to share, and with whom.
#[derive(Debug, Clone, Args)]
pub struct ShareSessionArgs {
    /// The session's id, its beginning if there is only one such, or `last`
    pub id: String,
    /// A user, or a team as team:NAME
    #[arg(long, value_name = "USER|team:NAME")]
    pub with: String,
    /// What they may do
    #[arg(long = "as", value_enum, default_value_t = GivenAccess::Observer)]
    pub access: GivenAccess,
    /// Where the service is.
    #[command(flatten)]
    pub endpoint: EndpointArgs,
    /// Print JSON, for machines
    #[arg(long)]
    pub json: bool,
}

/// What others may do with a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum GivenAccess {
    /// Prompt, answer and cancel
    Driver,
    /// See what happens
    Observer,
}

/// Which share to take back.
#[derive(Debug, Clone, Args)]
pub struct UnshareSessionArgs {
    /// The session's id, its beginning if there is only one such, or `last`
    pub id: String,
    /// A user, or a team as team:NAME
    #[arg(long, value_name = "USER|team:NAME")]
    pub with: String,
    /// Where the service is.
    #[command(flatten)]
    pub endpoint: EndpointArgs,
    /// Print JSON, for machines
    #[arg(long)]
    pub json: bool,
}

/// Which session's shares to list.
#[derive(Debug, Clone, Args)]
pub struct ListSharesArgs {
    /// The session's id, its beginning if there is only one such, or `last`
    pub id: String,
    /// Where the service is.
    #[command(flatten)]
    pub endpoint: EndpointArgs,
    /// Print JSON, for machines
    #[arg(long)]
    pub json: bool,
}

/// What to do with tokens.
#[derive(Debug, Args)]
pub struct TokenArgs {
    /// What to do.
    #[command(subcommand)]
    pub action: TokenAction,
}

/// What can be done with tokens.
#[derive(Debug, Subcommand)]
pub enum TokenAction {
    /// Make a token for a user; it is shown this once
    #[command(
        after_help = "The token goes to stdout, everything else to stderr. Its user gives it to `conductor login`, or\n\
        sets it as CONDUCTOR_TOKEN, for `conductor connect` and all other commands. The service keeps a\n\
        hash of it only."
    )]
    Create(CreateTokenArgs),
    /// List the tokens, newest first
    Ls(ListTokensArgs),
    /// Take a token back: it is refused at once, and its open streams end
    Revoke(RevokeTokenArgs),
}

/// Whom a token is for.
#[derive(Debug, Args)]
pub struct CreateTokenArgs {
    /// The user whom it lets in
    #[arg(long, value_name = "NAME")]
    pub user: String,
    /// A team the user is in (may be given several times)
    #[arg(long, value_name = "NAME")]
    pub team: Vec<String>,
    /// What the user may do
    #[arg(long, value_enum, default_value_t = GivenRole::Developer)]
    pub role: GivenRole,
    /// How long it is good: 8h, 90d, 52w
    #[arg(long, value_name = "TIME", default_value = "90d", value_parser = clock::parse_duration)]
    pub ttl: Duration,
    /// Where the service is.
    #[command(flatten)]
    pub endpoint: EndpointArgs,
    /// Print JSON, for machines
    #[arg(long)]
    pub json: bool,
}

/// What a user may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum GivenRole {
    /// Work in sessions, their own and those shared with them
    Developer,
    /// The same, and answer approvals
    Approver,
    /// Read the sessions and the history of everyone, and change nothing
    Auditor,
    /// Everything
    Admin,
}

/// How to list tokens.
#[derive(Debug, Args)]
pub struct ListTokensArgs {
    /// Where the service is.
    #[command(flatten)]
    pub endpoint: EndpointArgs,
    /// Print JSON, for machines
    #[arg(long)]
    pub json: bool,
}

/// Which token to revoke.
#[derive(Debug, Args)]
pub struct RevokeTokenArgs {
    /// The token's id, or its beginning if there is only one such; not the token
    pub id: String,
    /// Where the service is.
    #[command(flatten)]
    pub endpoint: EndpointArgs,
    /// Print JSON, for machines
    #[arg(long)]
    pub json: bool,
}
