//! The `conductor` program: one line per sub-command.

use std::process::ExitCode;

use clap::Parser as _;
use conductor::{
    bridge,
    cli::{Cli, Command},
    demo, guard, serve,
};

fn main() -> ExitCode {
    let Cli { global, command } = Cli::parse();
    match command {
        Command::Serve(args) => serve::run(&global, &args),
        Command::Connect(args) => bridge::run(&global, &args),
        Command::DemoAgent => demo::run(),
        Command::Guard(args) => guard::run(args),
        Command::Prompt(_) | Command::Agents(_) => ExitCode::FAILURE,
    }
}
