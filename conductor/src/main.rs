//! The `conductor` program: one line per sub-command.

use std::{env::args_os, process::ExitCode};

use clap::Parser;
use conductor::cli::{Cli, Command, GuardArgs};

/// The guard alone. It runs with the agent's environment, which may hold
/// `CONDUCTOR_…` variables of its own that must not be read as flags.
#[derive(Debug, Parser)]
struct GuardCli {
    #[command(flatten)]
    args: GuardArgs,
}

fn main() -> ExitCode {
    if args_os().nth(1).is_some_and(|name| name == "guard") {
        return conductor::guard::run(GuardCli::parse_from(args_os().skip(1)).args);
    }
    let cli = Cli::parse();
    match cli.command {
        Command::DemoAgent => conductor::demo::run(),
        Command::Guard(args) => conductor::guard::run(args),
        _ => ExitCode::FAILURE,
    }
}
