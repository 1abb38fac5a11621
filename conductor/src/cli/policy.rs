//! Flags and help texts of what helps with rules.

use std::{path::PathBuf, time::SystemTime};

use clap::{Args, Subcommand, ValueEnum};

use super::LedgerPlaceArgs;
use crate::clock;

/// What to do with policies.
#[derive(Debug, Args)]
pub struct PolicyArgs {
    /// What to do.
    #[command(subcommand)]
    pub action: PolicyAction,
}

/// What can be done with policies. None of it needs a running service.
#[derive(Debug, Subcommand)]
pub enum PolicyAction {
    /// Look for mistakes in a policy file
    #[command(
        after_help = "Tells what keeps the file from being used, examples that do not hold included, and warns of\n\
        rules that are never reached, conflict, never match, or have no examples.\n\
        Exit codes: 0 it can be used, perhaps with warnings, 1 it cannot, 2 command line."
    )]
    Check(CheckPolicyArgs),
    /// List the presets, or print one: rules to use, to read and to copy
    Show(ShowPolicyArgs),
    /// Tell what the rules say to something, and why
    #[command(after_help = "Try it:  conductor policy explain --run 'git log | head'\n\n\
        Programs give a request as JSON on stdin, and get JSON. A request is {\"user\", \"teams\", \"role\", \"agent\", \"mode\", \"model\", \"cwd\", \"roots\",\n\
        \"interactive\", \"action\"}; all but \"action\" may be left out. An action is one of\n\
        {\"shell\": LINE}, {\"argv\": [WORD, …]}, {\"read\": PATH}, {\"write\": PATH}, {\"fetch\": URL},\n\
        {\"mcp\": {\"server\", \"tool\", \"arguments\"}}, {\"mode\": ID}, and {\"permission\": PARAMS}, which is\n\
        what an agent sends with session/request_permission. The answer has \"decision\" (allow,\n\
        ask or deny), \"rule\", \"rules\", \"reason\", \"sub_actions\" and \"revision\".\n\
        As in:  echo '{\"action\": {\"shell\": \"git log | head\"}}' | conductor policy explain\n\n\
        Paths and programs are looked up on this machine. Nothing is run.\n\
        Exit codes: 0 it was explained, whatever the decision, 1 it could not be, 2 command line.")]
    Explain(ExplainPolicyArgs),
    /// Show which share of what agents did had a decision, by agent and version
    #[command(
        after_help = "The policy decides about what agents ask. This counts the tool calls that may have had an\n\
        effect (any kind but read, search and think), and those among them that the agent asked\n\
        about. The view `unmediated` has the rest, one by one:\n\
        conductor ledger sql 'SELECT * FROM unmediated ORDER BY at DESC LIMIT 20'"
    )]
    Coverage(CoverageArgs),
    /// Judge what agents have asked for by a policy file, and show what would come out otherwise
    #[command(
        after_help = "Rehearses a policy on history before it is in force. Each request in the ledger is judged with\n\
        the facts that were found then, so neither the disk nor the agents are needed, and nothing is\n\
        run. What changes is shown by the candidate's rule and by what it is about, what people had\n\
        answered beside it; `looser` is what would be asked less or denied less. Compared is what the\n\
        rules say and, where they ask, who may answer (`ask otherwise`): grants and answers of people\n\
        change what counted, not that. Rules that a repository or a user adds are those of then. Requests\n\
        that the record does not hold in full, such as those from before version 0008 of the ledger's\n\
        schema, are listed as not judgeable.\n\
        In CI:  conductor policy replay policy.toml --since 30d --allow-stricter\n\
        Exit codes: 0 nothing changes (with --allow-stricter: nothing gets looser or\n\
        is asked otherwise), 1 something does, 2 it could not be found out."
    )]
    Replay(ReplayArgs),
    /// Show what people are asked most, how long it waits, and what they answer
    #[command(
        after_help = "Counts the questions that the rules left to people. A wait ends with an answer, a cancel or the\n\
        time-out; `open` has none of them on record. The same by rule and day is in the view\n\
        `waiting_times`, and the views `asked_by_rule` and `denied_by_rule` have examples."
    )]
    Stats(StatsArgs),
}

/// What to judge again, and by what.
#[derive(Debug, Args)]
pub struct ReplayArgs {
    /// The policy file to try
    pub file: PathBuf,
    /// Only what was asked since: 30m, 2h, 7d, or a date as 2026-01-31
    #[arg(long, value_name = "WHEN", default_value = "30d", value_parser = clock::parse_since)]
    pub since: SystemTime,
    /// Only what was asked before: a time as above
    #[arg(long, value_name = "WHEN", value_parser = clock::parse_since)]
    pub until: Option<SystemTime>,
    /// Only this session: its id, or the beginning of it
    #[arg(long, value_name = "ID")]
    pub session: Option<String>,
    /// Only sessions of this user
    #[arg(long, value_name = "NAME")]
    pub user: Option<String>,
    /// At most so many requests, those of the latest sessions first
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub limit: Option<u64>,
    /// Exit with 0 even if something gets stricter
    #[arg(long)]
    pub allow_stricter: bool,
    /// Which ledger.
    #[command(flatten)]
    pub place: LedgerPlaceArgs,
    /// Print JSON, for machines
    #[arg(long)]
    pub json: bool,
}

/// What to count.
#[derive(Debug, Args)]
pub struct StatsArgs {
    /// Only what was asked since: 30m, 2h, 7d, or a date as 2026-01-31
    #[arg(long, value_name = "WHEN", default_value = "30d", value_parser = clock::parse_since)]
    pub since: SystemTime,
    /// What to count by
    #[arg(long, value_enum, default_value_t)]
    pub by: CountBy,
    /// Which ledger.
    #[command(flatten)]
    pub place: LedgerPlaceArgs,
    /// Print JSON, for machines
    #[arg(long)]
    pub json: bool,
}

/// What questions are counted by.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum CountBy {
    /// The rule that asks
    #[default]
    Rule,
    /// What would be done: the kind, and the command or name
    Command,
    /// Whose session it is
    User,
    /// The agent that asks
    Agent,
}

/// Where to look.
#[derive(Debug, Args)]
pub struct CoverageArgs {
    /// Which ledger.
    #[command(flatten)]
    pub place: LedgerPlaceArgs,
    /// Print one JSON object per line, for machines
    #[arg(long)]
    pub json: bool,
}

/// What to check.
#[derive(Debug, Args)]
pub struct CheckPolicyArgs {
    /// The policy file
    pub file: PathBuf,
    /// Print JSON, for machines
    #[arg(long)]
    pub json: bool,
}

/// What to show.
#[derive(Debug, Args)]
pub struct ShowPolicyArgs {
    /// The preset to print [default: list all]
    pub name: Option<String>,
    /// Print JSON, for machines
    #[arg(long)]
    pub json: bool,
}

/// What to explain, and how.
#[derive(Debug, Args)]
pub struct ExplainPolicyArgs {
    /// A command line, as for a shell
    #[arg(long, value_name = "LINE", group = "what")]
    pub run: Option<String>,
    /// A path that is read
    #[arg(long, value_name = "PATH", group = "what")]
    pub read: Option<String>,
    /// A path that is written
    #[arg(long, value_name = "PATH", group = "what")]
    pub write: Option<String>,
    /// An address that is fetched
    #[arg(long, value_name = "URL", group = "what")]
    pub fetch: Option<String>,
    /// Who prompts
    #[arg(long, value_name = "NAME", requires = "what")]
    pub user: Option<String>,
    /// A team of theirs; may be given several times
    #[arg(long, value_name = "NAME", requires = "what")]
    pub team: Vec<String>,
    /// Which agent asks
    #[arg(long, value_name = "NAME", requires = "what")]
    pub agent: Option<String>,
    /// The mode that the session is in
    #[arg(long, value_name = "MODE", requires = "what")]
    pub mode: Option<String>,
    /// The session's directory [default: the current one]
    #[arg(long, value_name = "DIR", requires = "what")]
    pub cwd: Option<PathBuf>,
    /// Print JSON, for machines
    #[arg(long, requires = "what")]
    pub json: bool,
    /// Policy file [default: the one that `serve` would use]
    #[arg(long, value_name = "FILE")]
    pub policy: Option<PathBuf>,
    /// Configuration file, which names the policy [default: the one that `serve` would use]
    #[arg(long, value_name = "FILE", env = "CONDUCTOR_CONFIG", conflicts_with = "policy")]
    pub config: Option<PathBuf>,
    /// Read one request from each line, and print one answer per line; a line that cannot be
    /// read is answered with "decision": "deny" and an "error"
    #[arg(long, conflicts_with = "what")]
    pub batch: bool,
}
