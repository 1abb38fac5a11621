//! Flags and help texts of what helps with rules.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::LedgerPlaceArgs;

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
    /// Tell what a policy says to a request, and why: JSON on stdin, JSON on stdout
    #[command(
        after_help = "A request is {\"user\", \"teams\", \"role\", \"agent\", \"mode\", \"model\", \"cwd\", \"roots\",\n\
        \"interactive\", \"action\"}; all but \"action\" may be left out. An action is one of\n\
        {\"shell\": LINE}, {\"argv\": [WORD, …]}, {\"read\": PATH}, {\"write\": PATH}, {\"fetch\": URL},\n\
        {\"mcp\": {\"server\", \"tool\", \"arguments\"}}, {\"mode\": ID}, and {\"permission\": PARAMS}, which is\n\
        what an agent sends with session/request_permission. The answer has \"decision\" (allow,\n\
        ask or deny), \"rule\", \"rules\", \"reason\", \"sub_actions\" and \"revision\".\n\
        Paths and programs are looked up on this machine. Nothing is run.\n\
        Try it:  echo '{\"action\": {\"shell\": \"git log | head\"}}' | conductor policy explain\n\
        Exit codes: 0 it was explained, whatever the decision, 1 it could not be, 2 command line."
    )]
    Explain(ExplainPolicyArgs),
    /// Show which share of what agents did had a decision, by agent and version
    #[command(
        after_help = "The policy decides about what agents ask. This counts the tool calls that may have had an\n\
        effect (any kind but read, search and think), and those among them that the agent asked\n\
        about. The view `unmediated` has the rest, one by one:\n\
        conductor ledger sql 'SELECT * FROM unmediated ORDER BY at DESC LIMIT 20'"
    )]
    Coverage(CoverageArgs),
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

/// How to explain.
#[derive(Debug, Args)]
pub struct ExplainPolicyArgs {
    /// Policy file [default: the preset `default`]
    #[arg(long, value_name = "FILE")]
    pub policy: Option<PathBuf>,
    /// Read one request from each line, and print one answer per line; a line that cannot be
    /// read is answered with "decision": "deny" and an "error"
    #[arg(long)]
    pub batch: bool,
}
