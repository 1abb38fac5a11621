//! The command line of the ledger's evidence: checking it, and its key.

use std::{path::PathBuf, time::SystemTime};

use clap::{Args, Subcommand};
use uuid::Uuid;

use crate::clock;

/// What to check.
#[derive(Debug, Args)]
#[command(
    after_help = "Every frame is checked against its hash, against the frame before it, and against the checkpoints\n\
    that signed it; every checkpoint against the one before it, its key, and the file checkpoints.jsonl\n\
    in the state directory; decisions, approvals and grants against the frames they come from. The\n\
    first bad frame of each session is named. Nothing is changed, and a service may run meanwhile.\n\
    Without --public-key, the key in the state directory counts as the right one. Whoever has changed\n\
    the ledger may have changed that, too: keep the public key, and copies of checkpoints.jsonl,\n\
    elsewhere (`ledger.checkpoint_command` sends them). Where several services write to the ledger,\n\
    name the key of each: what no known key has signed is a finding.\n\
    A FILE made by `conductor sessions export --format bundle` is checked with --public-key alone.\n\
    Exit codes: 0 nothing was changed, 1 something was, 2 it could not be checked, or command line."
)]
pub struct VerifyArgs {
    /// An exported session to check instead of the ledger
    #[arg(conflicts_with_all = ["session", "since", "checkpoints"])]
    pub file: Option<PathBuf>,
    /// Only this session, or another stream, by its whole id
    #[arg(long, value_name = "ID")]
    pub session: Option<Uuid>,
    /// Only sessions in which something was recorded or signed since: 2h, 30d, or a date as 2026-11-16 or
    /// 2026-11-16T12:00:00Z
    #[arg(long, value_name = "WHEN", value_parser = clock::parse_since)]
    pub since: Option<SystemTime>,
    /// The right key, as `conductor ledger key` shows it, or a file with it (may be given several times)
    #[arg(long, value_name = "KEY")]
    pub public_key: Vec<String>,
    /// A copy of checkpoints.jsonl to compare with [default: the one in the state directory]
    #[arg(long, value_name = "FILE")]
    pub checkpoints: Option<PathBuf>,
    /// Print JSON, for machines
    #[arg(long)]
    pub json: bool,
}

/// What to do with the key.
#[derive(Debug, Args)]
pub struct KeyArgs {
    /// What to do [default: show it]
    #[command(subcommand)]
    pub action: Option<KeyAction>,
    /// Print JSON, for machines
    #[arg(long, global = true)]
    pub json: bool,
}

/// What can be done with the key.
#[derive(Debug, Clone, Copy, Subcommand)]
pub enum KeyAction {
    /// Make a new key, which the old one signs; the service uses it from then on
    #[command(after_help = "Run it on the service's host, as its user. The service may run.\n\
        Whoever knows an older public key can still check everything: the log of checkpoints leads\n\
        from each key to the next. Tell the new one to those who keep it.")]
    Rotate,
}
