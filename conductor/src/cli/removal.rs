//! Flags and help texts of `conductor ledger retain` and `conductor ledger erase`.

use std::time::Duration;

use clap::Args;

use crate::clock;

/// What is old.
#[derive(Debug, Args)]
#[command(
    after_help = "Removes sessions in which nothing has happened since, with everything that was derived from them,\n\
    and processes, connections and grants that no session needs any more. Never a session that is open.\n\
    It is recorded and signed first, so `ledger verify` knows what went. Needs the role that owns the\n\
    tables (ledger.owner_url), and the service's state directory.\n\
    For example, every night:  conductor ledger retain --older-than 90d\n\
    Exit codes: 0 done, also if there was nothing to do; 1 not; 2 command line."
)]
pub struct RetainArgs {
    /// Remove what nothing has happened in for so long: 90d, 26w
    #[arg(long, value_name = "TIME", value_parser = clock::parse_duration)]
    pub older_than: Duration,
    /// Do not ask first, as is done on a terminal
    #[arg(long)]
    pub yes: bool,
    /// Only show what would be removed
    #[arg(long, conflicts_with = "yes")]
    pub dry_run: bool,
    /// Print JSON, for machines
    #[arg(long)]
    pub json: bool,
}

/// Whose words to erase.
#[derive(Debug, Args)]
#[command(
    after_help = "What people and agents wrote, read, ran and named is gone for good: from the ledger, the journal,\n\
    the service's own file, and the files that agents keep of it in homes of their own. What stays is\n\
    that it happened: ids, times, counts, who, outcomes and rules, and the hashes. It is recorded and\n\
    signed first, and `ledger verify` tells it from tampering. A session that is open is refused.\n\
    Backups that were made before still hold the words.\n\
    Exit codes: 0 done; 1 not; 2 command line."
)]
pub struct EraseArgs {
    /// Erase this session: its id, or its beginning if there is only one such
    #[arg(long, value_name = "ID", required_unless_present = "user", conflicts_with = "user")]
    pub session: Option<String>,
    /// Erase every session of this user, and their connections
    #[arg(long, value_name = "NAME")]
    pub user: Option<String>,
    /// Why, for the record; it is signed and stays
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub reason: String,
    /// Do not ask first, as is done on a terminal
    #[arg(long)]
    pub yes: bool,
    /// Only show what would be erased
    #[arg(long, conflicts_with = "yes")]
    pub dry_run: bool,
    /// Print JSON, for machines
    #[arg(long)]
    pub json: bool,
}
