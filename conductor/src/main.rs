//! The `conductor` program: one line per sub-command.

use std::{env::args_os, process::ExitCode};

use clap::Parser;
use conductor::{
    bridge,
    cli::{self, Cli, Command, GuardArgs},
    commands, demo, guard, serve,
};

/// Run a command so that nothing it starts outlives it (used by the service itself)
// Parsed apart from the rest: it runs with the agent's environment, which may
// hold `CONDUCTOR_…` variables of its own that must not be read as flags.
#[derive(Debug, Parser)]
struct GuardCli {
    #[command(flatten)]
    args: GuardArgs,
}

fn main() -> ExitCode {
    if args_os().nth(1).is_some_and(|name| name == "guard") {
        return guard::run(GuardCli::parse_from(args_os().skip(1)).args);
    }
    let Cli { global, command } = Cli::try_parse().unwrap_or_else(|error| cli::refuse(&error));
    match command {
        Command::Serve(args) => serve::run(&global, &args),
        Command::Connect(args) => match &args.login {
            Some(way) => commands::agents::log_in(&global, &args.endpoint, way),
            None => bridge::run(&global, &args),
        },
        Command::Prompt(args) => commands::prompt::run(&global, &args),
        Command::Agents(args) => commands::agents::run(&global, &args),
        Command::Models(args) => commands::models::run(&global, &args),
        Command::Route(args) => commands::route::run(&global, &args),
        Command::Sessions(args) => commands::sessions::run(&global, &args),
        Command::Search(args) => commands::sessions::search(&global, &args),
        Command::Login(args) => commands::login::run(&global, &args),
        Command::Logout(args) => commands::login::logout(&global, &args),
        Command::WhoAmI(args) => commands::whoami::run(&global, &args),
        Command::Approvals(args) => commands::approvals::run(&global, &args),
        Command::Token(args) => commands::token::run(&global, &args),
        Command::Grants(args) => commands::grants::run(&global, &args),
        Command::Usage(args) => commands::usage::run(&global, &args),
        Command::Policy(args) => commands::policy::run(&global, &args),
        Command::Ledger(args) => commands::ledger::run(&global, &args),
        Command::DemoAgent => demo::run(),
        Command::Doctor(args) => commands::doctor::run(&global, &args),
        Command::Completions { shell } => commands::pages::completions(shell),
        Command::Man { dir } => commands::pages::man(dir.as_deref()),
    }
}
