//! The command line: every sub-command, flag and help text in one place, as
//! data, so that nothing but parsing happens before a sub-command starts.

mod access;
mod agents;
mod approvals;
mod choice;
mod endpoint;
mod evidence;
mod grants;
mod ledger;
mod policy;
mod search;
mod removal;
mod sessions;
mod tail;
mod usage;

use std::{ffi::OsString, net::SocketAddr, path::PathBuf};

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;

pub use self::access::{
    CreateTokenArgs, GivenAccess, GivenRole, ListSharesArgs, ListTokensArgs, RevokeTokenArgs,
    ShareSessionArgs, TokenAction, TokenArgs, UnshareSessionArgs,
};
pub use self::agents::{AgentsAction, AgentsArgs, ListArgs, LoginAgentArgs};
pub use self::approvals::{
    AnswerApprovalArgs, ApprovalsAction, ApprovalsArgs, ListApprovalsArgs, ShowApprovalArgs,
    WatchApprovalsArgs,
};
pub use self::choice::{ExplainRouteArgs, ModelsArgs, RouteAction, RouteArgs};
pub use self::endpoint::{EndpointArgs, LoginArgs, LogoutArgs, WhoAmIArgs};
pub use self::evidence::{KeyAction, KeyArgs, VerifyArgs};
pub use self::grants::{
    GiveGrantArgs, GrantScopeArgs, GrantsAction, GrantsArgs, ListGrantsArgs, RevokeGrantArgs, ShowGrantArgs,
};
pub use self::ledger::{LedgerAction, LedgerArgs, LedgerPlaceArgs};
pub use self::policy::{
    CheckPolicyArgs, CountBy, CoverageArgs, ExplainPolicyArgs, PolicyAction, PolicyArgs, ReplayArgs,
    ShowPolicyArgs, StatsArgs,
};
pub use self::removal::{EraseArgs, RetainArgs};
pub use self::search::{GivenKind, SearchArgs};
pub use self::sessions::{
    AttachSessionArgs, CloseSessionArgs, ExportFormat, ExportSessionArgs, HistoryArgs, ListSessionsArgs,
    QueueArgs, SessionsAction, SessionsArgs, ShowSessionArgs,
};
pub use self::tail::TailArgs;
pub use self::usage::UsageArgs;
use crate::{config, config::GivenUrl};

/// The top level.
#[derive(Debug, Parser)]
#[command(
    name = "conductor",
    version,
    about = "Runs coding agents as a team service and serves them to editors over gRPC",
    after_help = "Try it:  conductor serve   and, in another terminal:   conductor prompt help"
)]
pub struct Cli {
    /// Flags that every sub-command takes.
    #[command(flatten)]
    pub global: Global,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Says what is wrong with the command line, and ends. Of a variable that is set to nothing, as units
/// and compose files do, clap only says that its flag has no value.
#[allow(clippy::print_stderr, reason = "this is a program's message to its user")]
pub fn refuse(error: &clap::Error) -> ! {
    error.print().ok();
    let is_empty = |(name, value): &(OsString, OsString)| {
        value.is_empty() && name.to_str().is_some_and(|name| name.starts_with("CONDUCTOR_"))
    };
    if error.use_stderr()
        && let Some((name, _)) = std::env::vars_os().find(is_empty)
    {
        eprintln!("\n{} is set to nothing, which is a value, too: unset it", name.display());
    }
    std::process::exit(error.exit_code());
}

/// Flags that every sub-command takes, before or after its name.
#[derive(Debug, Clone, Args)]
pub struct Global {
    /// Directory for the token, the endpoint and the service's state [default:
    /// $XDG_STATE_HOME/conductor, else ~/.local/state/conductor]
    #[arg(long, global = true, value_name = "DIR", env = "CONDUCTOR_STATE_DIR")]
    pub state_dir: Option<PathBuf>,
}

/// Every sub-command, except `guard`: that one is the service's own affair, and
/// `main` looks for it before anything else is parsed.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the service
    Serve(ServeArgs),
    /// Be an ACP agent on stdin and stdout: what an editor starts
    Connect(ConnectArgs),
    /// Send one prompt from the terminal and stream the answer
    Prompt(PromptArgs),
    /// Show the agents and their processes, restart one, or log in to one
    Agents(AgentsArgs),
    /// List the models and modes that can be chosen, by agent
    Models(ModelsArgs),
    /// Explain which agent a prompt goes to
    Route(RouteArgs),
    /// List sessions, show what one did, export its record, share it, close it
    Sessions(Box<SessionsArgs>),
    /// Search what was said and done: messages, tool calls, commands, paths
    Search(Box<SearchArgs>),
    /// List what rules leave to people, and answer it
    Approvals(ApprovalsArgs),
    /// Keep a token for a service, so that all other commands use it
    Login(LoginArgs),
    /// Forget the token for a service
    Logout(LogoutArgs),
    /// Show who you are to the service, how that is proven and until when
    #[command(name = "whoami")]
    WhoAmI(WhoAmIArgs),
    /// Give others access: make, list and revoke API tokens
    Token(TokenArgs),
    /// Allow ahead of time what would be asked: give, list, show and revoke grants
    Grants(Box<GrantsArgs>),
    /// Show what users and teams have used, and what they may
    Usage(UsageArgs),
    /// Check rules, show those that ship with the program, explain a decision, rehearse a change
    Policy(PolicyArgs),
    /// Ask the ledger in SQL, follow what happens, verify it, rebuild it, let go of what is old
    Ledger(LedgerArgs),
    /// The built-in scripted agent, which needs no model (ACP on stdin and stdout)
    DemoAgent,
    /// Check the configuration, the state directory, the agents and the system
    Doctor(DoctorArgs),
    /// Print the completions for a shell
    #[command(
        after_help = "bash:  conductor completions bash > ~/.local/share/bash-completion/completions/conductor\n\
        zsh:   conductor completions zsh > a directory of your $fpath, as _conductor\n\
        fish:  conductor completions fish > ~/.config/fish/completions/conductor.fish"
    )]
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Print the manual page, or write those of all sub-commands
    #[command(after_help = "To read it at once:  conductor man | man -l -")]
    Man {
        /// Write a page for each sub-command, too, into this directory
        #[arg(long, value_name = "DIR")]
        dir: Option<PathBuf>,
    },
}

/// How to run the service.
#[derive(Debug, Args)]
pub struct ServeArgs {
    /// Configuration file [default: ~/.config/conductor/agents.toml, else
    /// /etc/conductor/agents.toml, else built-in defaults]
    #[arg(long, value_name = "FILE", env = "CONDUCTOR_CONFIG")]
    pub config: Option<PathBuf>,
    /// What agents may do; see `conductor policy` [default: `policy.file` of the
    /// configuration, else the built-in rules]
    #[arg(long, value_name = "FILE")]
    pub policy: Option<PathBuf>,
    /// Address to listen on; port 0 takes a free one [default: 127.0.0.1:7420]
    #[arg(long, value_name = "ADDR", value_parser = config::parse_listen)]
    pub listen: Option<SocketAddr>,
    /// Database of the ledger, as postgres://USER@HOST/DATABASE; better set by
    /// the variable or by `ledger.url` in the file, as others see arguments
    /// [default: a SQLite file in the state directory]
    #[arg(long, value_name = "URL", env = "CONDUCTOR_DATABASE_URL", hide_env_values = true)]
    pub database_url: Option<GivenUrl>,
    /// What to log: a level, or filters as in `RUST_LOG` [default: info]
    #[arg(long, value_name = "FILTER", env = "RUST_LOG")]
    pub log: Option<String>,
}

/// Which agent, model and mode new sessions use.
#[derive(Debug, Clone, Default, Args)]
pub struct ChoiceArgs {
    /// Agent for new sessions [default: the service's default agent]
    #[arg(long, value_name = "NAME")]
    pub agent: Option<String>,
    /// Model for new sessions [default: the agent's own]
    #[arg(long, value_name = "MODEL")]
    pub model: Option<String>,
    /// Mode for new sessions [default: the agent's own]
    #[arg(long, value_name = "MODE")]
    pub mode: Option<String>,
}

/// How to connect an editor.
#[derive(Debug, Args)]
#[command(after_help = "stdout carries ACP only; messages for people go to stderr.\n\
    The token is read from $CONDUCTOR_TOKEN, or is the one that `conductor login` kept, or that of\n\
    the state directory.")]
pub struct ConnectArgs {
    /// Where the service is.
    #[command(flatten)]
    pub endpoint: EndpointArgs,
    /// What new sessions use.
    #[command(flatten)]
    pub choice: ChoiceArgs,
    /// Log in to an agent instead, in this terminal: what editors add that were offered
    /// this way to log in
    #[arg(long, value_name = "AGENT/METHOD")]
    pub login: Option<String>,
}

/// What to prompt.
#[derive(Debug, Args)]
#[command(
    after_help = "The answer goes to stdout, everything else to stderr. On a terminal, Markdown is rendered\n\
    and thoughts are shown; NO_COLOR=1 turns that off. With --json, stdout has one JSON object\n\
    per line: its \"event\" is session, text, user, thought, tool, plan, permission, usage, notice,\n\
    update, end or error, and \"raw\" is what the agent sent.\n\
    Exit codes: 0 the turn ended, 1 it failed, 2 command line, 3 cut short, 130 cancelled."
)]
pub struct PromptArgs {
    /// The prompt; `-` reads it from stdin
    pub text: String,
    /// Where the service is.
    #[command(flatten)]
    pub endpoint: EndpointArgs,
    /// What the session uses.
    #[command(flatten)]
    pub choice: ChoiceArgs,
    /// Directory the agent works in [default: the current one]
    #[arg(long, value_name = "DIR")]
    pub cwd: Option<PathBuf>,
    /// Continue this session, with its agent and in its directory: its id, the beginning of it,
    /// or `last`
    #[arg(long, value_name = "ID", conflicts_with = "agent")]
    pub session: Option<String>,
    /// Print one JSON object per event, for machines
    #[arg(long)]
    pub json: bool,
    /// Allow every permission the agent asks for, once each
    #[arg(long, conflicts_with = "deny")]
    pub allow: bool,
    /// Reject every permission the agent asks for
    #[arg(long)]
    pub deny: bool,
}

/// What to check.
#[derive(Debug, Args)]
#[command(after_help = "✓ fine   ✗ broken, with what to do   · for information\n\
    Exit codes: 0 nothing that is needed is broken, 1 something is, 2 command line.\n\
    Needs no running service. Each agent that is installed is started once, and ended again.")]
pub struct DoctorArgs {
    /// Configuration file [default: the one that `serve` would use]
    #[arg(long, value_name = "FILE", env = "CONDUCTOR_CONFIG")]
    pub config: Option<PathBuf>,
    /// Where the service is.
    #[command(flatten)]
    pub endpoint: EndpointArgs,
    /// Check only these agents; they are then needed (may be given several times)
    #[arg(long, value_name = "NAME")]
    pub agent: Vec<String>,
    /// Open a session with each agent, too, to show its models and modes; it may need a login
    #[arg(long)]
    pub sessions: bool,
    /// Print JSON, for machines
    #[arg(long)]
    pub json: bool,
}

/// How to run a command so that nothing it starts outlives it. Used by the
/// service itself.
#[derive(Debug, Args)]
pub struct GuardArgs {
    /// Directory to run it in
    #[arg(long, value_name = "DIR")]
    pub cwd: Option<PathBuf>,
    /// Stdin is a socket of the conductor's: the command's own stdin comes over it, and its
    /// end of file means that the conductor is gone
    #[arg(long)]
    pub control: bool,
    /// A variable for the command alone, as NAME=VALUE
    #[arg(long = "env", value_name = "NAME=VALUE")]
    pub env: Vec<std::ffi::OsString>,
    /// Its stdin is a terminal that shall be its own
    #[arg(long)]
    pub terminal: bool,
    /// Where a guard that has started this says what to do: the stage inside a bubble
    #[arg(long, value_name = "FD", hide = true)]
    pub inside: Option<std::os::fd::RawFd>,
    /// How long the command may be stopped by a signal before it is killed
    #[arg(long, value_name = "MS", default_value_t = 10_000)]
    pub stopped_grace_ms: u64,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub command: Vec<std::ffi::OsString>,
}
