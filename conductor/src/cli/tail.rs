//! Flags and help texts of `conductor ledger tail`.

use std::time::SystemTime;

use clap::Args;

use super::EndpointArgs;
use crate::clock;

/// What to tell, and from where on.
#[derive(Debug, Args)]
#[command(
    after_help = "For example:  conductor ledger tail --follow --since 1h --kind command --kind permission\n\
    \x20             conductor ledger tail --follow --json --from \"$(cat cursor)\"\n\
    Every event has a `cursor`; --from goes on just behind it, without gap or duplicate. Events reach\n\
    back as far as the service's journal (journal.keep); README, \"Feeds\", has their kinds and fields.\n\
    For auditors and administrators. Exit codes: 0 told, or ended with Ctrl-C, 1 not, 2 command line."
)]
pub struct TailArgs {
    /// Go on with what comes, also over restarts of the service, until Ctrl-C
    #[arg(short, long)]
    pub follow: bool,
    /// Where to begin: a cursor, behind which it goes on; `oldest`, or `now`
    /// [default: oldest; with --follow now]
    #[arg(long, value_name = "CURSOR", conflicts_with = "since")]
    pub from: Option<String>,
    /// Begin with what happened since: 30m, 2h, 7d, or a date as 2026-11-16 or
    /// 2026-11-16T12:00:00Z
    #[arg(long, value_name = "WHEN", value_parser = clock::parse_since)]
    pub since: Option<SystemTime>,
    /// Every frame as it came, and no events
    #[arg(long, conflicts_with_all = ["ocsf", "kind", "text"])]
    pub raw: bool,
    /// Events in the words of the Open Cybersecurity Schema Framework; implies --json
    #[arg(long)]
    pub ocsf: bool,
    /// Prompts, titles, and what tools are given and give back, too
    #[arg(long = "include-text")]
    pub text: bool,
    /// Only events of this kind: command.ended, or command for all of them (may be given several
    /// times)
    #[arg(long, value_name = "KIND")]
    pub kind: Vec<String>,
    /// Only of this session, by its id in full
    #[arg(long, value_name = "ID")]
    pub session: Option<String>,
    /// Only of this user, or done by them
    #[arg(long, value_name = "NAME")]
    pub user: Option<String>,
    /// Only of this agent
    #[arg(long, value_name = "NAME")]
    pub agent: Option<String>,
    /// Where the service is.
    #[command(flatten)]
    pub endpoint: EndpointArgs,
    /// Print JSON, one object per line
    #[arg(long)]
    pub json: bool,
}
