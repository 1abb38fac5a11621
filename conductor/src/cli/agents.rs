//! Flags and help texts of `conductor agents`.

use clap::{Args, Subcommand};

use super::EndpointArgs;

/// What to do with the agents.
#[derive(Debug, Args)]
pub struct AgentsArgs {
    /// Something else than listing.
    #[command(subcommand)]
    pub action: Option<AgentsAction>,
    /// How to list.
    #[command(flatten)]
    pub list: ListArgs,
}

/// How to list agents.
#[derive(Debug, Args)]
pub struct ListArgs {
    /// Where the service is.
    #[command(flatten)]
    pub endpoint: EndpointArgs,
    /// Print JSON, for machines
    #[arg(long)]
    pub json: bool,
    /// Print again after every change, until interrupted
    #[arg(long)]
    pub watch: bool,
}

/// How to log in to an agent.
#[derive(Debug, Args)]
pub struct LoginAgentArgs {
    /// Name of the agent
    pub name: String,
    /// Which of its ways to log in [default: the only one]
    #[arg(long, value_name = "ID")]
    pub method: Option<String>,
    /// Log this user in; for administrators [default: oneself]
    #[arg(long, value_name = "NAME")]
    pub user: Option<String>,
    /// Where the service is.
    #[command(flatten)]
    pub endpoint: EndpointArgs,
}

/// Changes to the agents.
#[derive(Debug, Subcommand)]
pub enum AgentsAction {
    /// List the agents (the default)
    Ls(ListArgs),
    /// End an agent's spare processes and lift its quarantine
    Restart {
        /// Name of the agent
        name: String,
        /// End the processes that serve sessions too
        #[arg(long)]
        force: bool,
        /// Where the service is.
        #[command(flatten)]
        endpoint: EndpointArgs,
        /// Print JSON, for machines
        #[arg(long)]
        json: bool,
    },
    /// Log in to an agent, in this terminal
    #[command(
        after_help = "The agent's own login runs on the service's host, and what it shows is shown here. What it\n\
        keeps of the login stays there, in your home at this agent (home = \"user\"). A home that others\n\
        use, too, is for administrators to log in to."
    )]
    Login(LoginAgentArgs),
}
