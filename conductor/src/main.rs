//! The `conductor` program: one line per sub-command.

use std::process::ExitCode;

use clap::Parser as _;
use conductor::cli::{Cli, Command};

fn main() -> ExitCode {
    let cli = Cli::parse();
    match cli.command {
        Command::DemoAgent => conductor::demo::run(),
        Command::Guard(args) => conductor::guard::run(args),
        _ => ExitCode::FAILURE,
    }
}
