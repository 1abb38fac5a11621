//! Flags and help texts of `conductor approvals`.

use clap::{Args, Subcommand};

use super::EndpointArgs;

/// What to do with questions that rules leave to people.
#[derive(Debug, Args)]
pub struct ApprovalsArgs {
    /// What to do.
    #[command(subcommand)]
    pub action: ApprovalsAction,
}

/// What can be done with them.
#[derive(Debug, Subcommand)]
pub enum ApprovalsAction {
    /// List what waits for an answer
    #[command(after_help = "Shown are the questions that you may answer, and those of your sessions.\n\
        What was asked and answered at any time:  conductor ledger sql 'SELECT * FROM approval_log ORDER BY at DESC'")]
    Ls(ListApprovalsArgs),
    /// Show one question: what would be done, where, for whom, by which rule
    Show(ShowApprovalArgs),
    /// Show questions as they come; on a terminal, answer them
    Watch(WatchApprovalsArgs),
    /// Allow what is asked, this once
    #[command(
        after_help = "Exit codes: 0 if the answer counts, 1 if not: somebody was first, or it is for others."
    )]
    Allow(AnswerApprovalArgs),
    /// Deny what is asked
    #[command(
        after_help = "Exit codes: 0 if the answer counts, 1 if not: somebody was first, or it is for others."
    )]
    Deny(AnswerApprovalArgs),
}

/// Which questions to list.
#[derive(Debug, Args)]
pub struct ListApprovalsArgs {
    /// Those that have ended of late, too
    #[arg(long)]
    pub all: bool,
    /// Of this session only, by its id in full
    #[arg(long, value_name = "ID")]
    pub session: Option<String>,
    /// At most so many
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: u32,
    /// Where the service is.
    #[command(flatten)]
    pub endpoint: EndpointArgs,
    /// Print JSON, for machines
    #[arg(long)]
    pub json: bool,
}

/// Which question to show.
#[derive(Debug, Args)]
pub struct ShowApprovalArgs {
    /// Its id, or the end of it
    pub id: String,
    /// Where the service is.
    #[command(flatten)]
    pub endpoint: EndpointArgs,
    /// Print JSON, for machines
    #[arg(long)]
    pub json: bool,
}

/// How to watch.
#[derive(Debug, Args)]
pub struct WatchApprovalsArgs {
    /// Only show them, also on a terminal
    #[arg(long)]
    pub no_answer: bool,
    /// Where the service is.
    #[command(flatten)]
    pub endpoint: EndpointArgs,
    /// Print a JSON object for each that is asked or has ended, for machines
    #[arg(long)]
    pub json: bool,
}

/// Which question to answer.
#[derive(Debug, Args)]
pub struct AnswerApprovalArgs {
    /// Its id, or the end of it
    pub id: String,
    /// What to tell the agent and the record about it
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub reason: String,
    /// Where the service is.
    #[command(flatten)]
    pub endpoint: EndpointArgs,
    /// Print JSON, for machines
    #[arg(long)]
    pub json: bool,
}
