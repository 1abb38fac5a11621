//! Flags and help texts of `conductor usage`.

use std::time::SystemTime;

use clap::Args;

use super::EndpointArgs;
use crate::clock;

/// Whose usage to show.
#[derive(Debug, Args)]
#[command(
    after_help = "Without --user and --team: oneself and one's teams; administrators and auditors see all.\n\
    Tokens and cost are what agents report. Days begin at 00:00 UTC, and 35 of them are kept;\n\
    what was before is in the ledger's table `usage`."
)]
pub struct UsageArgs {
    /// Only this user
    #[arg(long, value_name = "NAME")]
    pub user: Option<String>,
    /// Only this team: all who are in it together
    #[arg(long, value_name = "NAME")]
    pub team: Option<String>,
    /// Add up since: 7d, 2w, or a date as 2026-01-31 [default: today]
    #[arg(long, value_name = "WHEN", value_parser = clock::parse_since)]
    pub since: Option<SystemTime>,
    /// Where the service is.
    #[command(flatten)]
    pub endpoint: EndpointArgs,
    /// Print JSON, for machines
    #[arg(long)]
    pub json: bool,
}
