//! `conductor completions` and `conductor man`: what shells and `man` know of
//! the command line, made from its definition, so that it cannot be stale.

use std::{fs, path::Path, process::ExitCode};

use clap::CommandFactory as _;
use clap_complete::Shell;

use super::{finish::fail, terminal::write};
use crate::cli::Cli;

/// Prints the completions for a shell.
pub fn completions(shell: Shell) -> ExitCode {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "conductor", &mut script);
    print("completions", &script)
}

/// Prints the page of the program, or writes one for each sub-command, too.
pub fn man(directory: Option<&Path>) -> ExitCode {
    let Some(directory) = directory else {
        let mut page = Vec::new();
        return match clap_mangen::Man::new(Cli::command().disable_help_subcommand(true)).render(&mut page) {
            Ok(()) => print("man", &page),
            Err(error) => fail("man", &format!("cannot make the page: {error}")),
        };
    };
    let written =
        fs::create_dir_all(directory).and_then(|()| clap_mangen::generate_to(Cli::command(), directory));
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let directory = directory.display();
            fail("man", &format!("cannot write to {directory}: {error}; name another directory with --dir"))
        }
    }
}

fn print(command: &str, text: &[u8]) -> ExitCode {
    match write(text) {
        Ok(_) => ExitCode::SUCCESS,
        Err(message) => fail(command, &message),
    }
}
