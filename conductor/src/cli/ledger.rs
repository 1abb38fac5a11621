//! Flags and help texts of `conductor ledger`, and where the ledger is.

use std::{path::PathBuf, time::Duration};

use clap::{Args, Subcommand};

use super::{EraseArgs, KeyArgs, RetainArgs, TailArgs, VerifyArgs};
use crate::{clock, config::GivenUrl};

/// What to do with the ledger.
#[derive(Debug, Args)]
pub struct LedgerArgs {
    /// Where it is.
    #[command(flatten)]
    pub place: LedgerPlaceArgs,
    /// What to do.
    #[command(subcommand)]
    pub action: LedgerAction,
}

/// Where the ledger is.
#[derive(Debug, Args)]
pub struct LedgerPlaceArgs {
    /// The ledger, as postgres://USER@HOST/DATABASE or sqlite:/FILE [default: as
    /// the configuration says]
    #[arg(long, global = true, value_name = "URL", env = "CONDUCTOR_DATABASE_URL", hide_env_values = true)]
    pub database_url: Option<GivenUrl>,
    /// Configuration file [default: the one that `serve` would use]
    #[arg(long, global = true, value_name = "FILE", env = "CONDUCTOR_CONFIG")]
    pub config: Option<PathBuf>,
}

/// What can be done with the ledger.
#[derive(Debug, Subcommand)]
pub enum LedgerAction {
    /// Ask a question in SQL; nothing can be changed
    #[command(
        after_help = "For example:  conductor ledger sql \"SELECT * FROM file_heat ORDER BY touches DESC LIMIT 10\"\n\
        README, \"Audit with SQL\", has the tables and views.\n\
        Exit codes: 0 answered, 1 not, 2 command line."
    )]
    Sql {
        /// One statement; `-` reads it from stdin
        // It may begin with a comment.
        #[arg(allow_hyphen_values = true)]
        statement: String,
        /// Print one JSON object per row
        #[arg(long, conflicts_with = "csv")]
        json: bool,
        /// Print CSV (RFC 4180) with a header; NULL is an empty field, an empty
        /// text is ""
        #[arg(long)]
        csv: bool,
        /// Give up after this time: 500ms, 30s, 5m
        #[arg(long, value_name = "TIME", default_value = "60s", value_parser = clock::parse_duration)]
        timeout: Duration,
    },
    /// Show where it is, how large it is and what has been carried over
    Status {
        /// Print JSON, for machines
        #[arg(long)]
        json: bool,
    },
    /// Tell what happens, as it happens: for people, or as JSON for other programs
    Tail(TailArgs),
    /// Bring its schema up to date, and give the service's role its rights
    #[command(
        after_help = "The service does so at its start, if it may. With the roles of deploy/postgres/roles.sql this does it\n\
        instead, with ledger.owner_url and its password alone, so that the service need not know them.\n\
        Exit codes: 0 it is up to date, 1 not, 2 command line."
    )]
    Migrate,
    /// Make the derived tables anew from the frames
    Rebuild,
    /// Carry the frames of another ledger, a SQLite file, over into this one
    Import {
        /// The file
        file: PathBuf,
    },
    /// Check that nothing in it was changed after it was recorded
    Verify(VerifyArgs),
    /// Show the key that signs checkpoints, or make a new one
    Key(KeyArgs),
    /// Remove what is old, as a whole
    Retain(RetainArgs),
    /// Erase the words of a session or of a user, for good
    Erase(EraseArgs),
}
