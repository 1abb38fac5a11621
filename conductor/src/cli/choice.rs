//! Flags and help texts of what helps to choose an agent and a model.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::EndpointArgs;

/// Which models to list.
#[derive(Debug, Args)]
#[command(
    after_help = "A model is chosen as AGENT/MODEL, or by its own name or an alias where that is enough:\n\
    conductor prompt --model claude/opus hello\n\
    The service asks each agent that it starts ahead, and again after an upgrade; a session\n\
    tells the rest. [agents.NAME.models] and [agents.NAME.modes] give titles and aliases, and hide.\n\
    Exit codes: 0 listed, 1 not, 2 command line."
)]
pub struct ModelsArgs {
    /// Where the service is.
    #[command(flatten)]
    pub endpoint: EndpointArgs,
    /// Only those of this agent
    #[arg(long, value_name = "NAME")]
    pub agent: Option<String>,
    /// Hidden ones, too
    #[arg(long)]
    pub all: bool,
    /// Print JSON, for machines
    #[arg(long)]
    pub json: bool,
}

/// What to do with routes.
#[derive(Debug, Args)]
pub struct RouteArgs {
    /// What to do.
    #[command(subcommand)]
    pub action: RouteAction,
}

/// What can be done with routes.
#[derive(Debug, Subcommand)]
pub enum RouteAction {
    /// Show which agent a prompt would go to, and why
    #[command(after_help = "✓ it decided   ✗ it did not, with why\n\
        Needs no running service: it reads the configuration as `serve` would, and what the agents\n\
        offer from the state directory. Which agent is least busy only the service knows.\n\
        Exit codes: 0 there is an agent for it, 1 there is none, 2 command line.")]
    Explain(ExplainRouteArgs),
}

/// What would be asked for.
#[derive(Debug, Args)]
pub struct ExplainRouteArgs {
    /// The agent, if it is named
    #[arg(long, value_name = "NAME")]
    pub agent: Option<String>,
    /// The model: MODEL, AGENT/MODEL or acp:AGENT[/MODEL]
    #[arg(long, value_name = "MODEL")]
    pub model: Option<String>,
    /// The mode
    #[arg(long, value_name = "MODE")]
    pub mode: Option<String>,
    /// Who prompts [default: you]
    #[arg(long, value_name = "NAME")]
    pub user: Option<String>,
    /// A team of theirs (may be given several times)
    #[arg(long, value_name = "NAME")]
    pub team: Vec<String>,
    /// Where the session works [default: the current directory]
    #[arg(long, value_name = "DIR")]
    pub cwd: Option<PathBuf>,
    /// A label of the request (may be given several times)
    #[arg(long, value_name = "KEY=VALUE", value_parser = label)]
    pub label: Vec<(String, String)>,
    /// Configuration file [default: the one that `serve` would use]
    #[arg(long, value_name = "FILE", env = "CONDUCTOR_CONFIG")]
    pub config: Option<PathBuf>,
    /// Print the decision as JSON, for machines
    #[arg(long)]
    pub json: bool,
}

fn label(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("a label is KEY=VALUE")?;
    if key.is_empty() {
        return Err("a label has a name before the `=`".into());
    }
    Ok((key.to_owned(), value.to_owned()))
}
