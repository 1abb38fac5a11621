//! Flags and help texts of `conductor search`.

use std::time::SystemTime;

use clap::{Args, ValueEnum};

use super::HistoryArgs;
use crate::{clock, ledger::search::Kind};

/// What to search for, and where.
#[derive(Debug, Args)]
#[command(after_help = "All words must be there. Upper and lower case are the same.\n\
    \n  conductor search rate limit             both words, anywhere in one message, tool call, command or path\n\
    \x20 conductor search '\"rate limit\"'         the two words one after the other\n\
    \x20 conductor search 'migrat* -test'        words that begin so; without this one\n\
    \x20 conductor search src/limits --kind path any part of a path or of a command\n\
    \nA word is a run of letters and digits, so the parts of snake_case and src/main.rs are words, and the\n\
    whole is a phrase. Of commands and paths any part of three characters or more is found, as it is typed.\n\
    The best hits come first, among the 256 newest; then those before them.")]
pub struct SearchArgs {
    /// What to search for; put it in quotes if it has any of " * -
    #[arg(required = true, value_name = "TEXT")]
    pub text: Vec<String>,
    /// Where the record is.
    #[command(flatten)]
    pub history: HistoryArgs,
    /// Only in sessions of this user
    #[arg(long, value_name = "NAME")]
    pub user: Option<String>,
    /// Only by or to this agent
    #[arg(long, value_name = "NAME")]
    pub agent: Option<String>,
    /// Only in sessions in this repository or directory; if it does not begin
    /// with /, the end of its path is enough
    #[arg(long, visible_alias = "cwd", value_name = "PATH")]
    pub repository: Option<String>,
    /// Only in this session: its id, the beginning of it, or `last`
    #[arg(long, value_name = "ID")]
    pub session: Option<String>,
    /// Only since: 30m, 2h, 7d, or a date as 2026-11-16 or 2026-11-16T12:00:00Z
    #[arg(long, value_name = "WHEN", value_parser = clock::parse_since)]
    pub since: Option<SystemTime>,
    /// Only before; written in the same ways
    #[arg(long, value_name = "WHEN", value_parser = clock::parse_since)]
    pub until: Option<SystemTime>,
    /// Only hits of this kind; several are joined by commas
    #[arg(long, value_name = "KIND", value_delimiter = ',')]
    pub kind: Vec<GivenKind>,
    /// At most so many
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: u32,
    /// Print JSON, for machines
    #[arg(long)]
    pub json: bool,
}

/// A kind of hits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum GivenKind {
    /// Prompts, answers and thoughts
    Message,
    /// Names, titles and inputs of tool calls
    Tool,
    /// Command lines
    Command,
    /// Paths of files
    Path,
}

impl From<GivenKind> for Kind {
    fn from(given: GivenKind) -> Self {
        match given {
            GivenKind::Message => Self::Message,
            GivenKind::Tool => Self::Tool,
            GivenKind::Command => Self::Command,
            GivenKind::Path => Self::Path,
        }
    }
}
