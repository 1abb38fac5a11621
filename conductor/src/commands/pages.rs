//! `conductor completions` and `conductor man`: what shells and `man` know of
//! the command line, made from its definition, so that it cannot be stale.

use std::{collections::BTreeMap, fs, io, path::Path, process::ExitCode};

use clap::{Command, CommandFactory as _};
use clap_complete::Shell;
use clap_mangen::{
    Man,
    roff::{Roff, bold, roman},
};

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
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    let Some(directory) = directory else {
        return match page(&command) {
            Ok(page) => print("man", &page),
            Err(error) => fail("man", &format!("cannot make the page: {error}")),
        };
    };
    let written = fs::create_dir_all(directory).and_then(|()| write_pages(&command, directory));
    match written {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let directory = directory.display();
            fail("man", &format!("cannot write to {directory}: {error}; name another directory with --dir"))
        }
    }
}

/// Writes the page of a command and those of all beneath it.
fn write_pages(command: &Command, directory: &Path) -> io::Result<()> {
    for beneath in command.get_subcommands().filter(|beneath| !beneath.is_hide_set()) {
        write_pages(beneath, directory)?;
    }
    let name = Man::new(command.clone()).get_filename();
    fs::write(directory.join(name), page(command)?)
}

/// The page of a command. The sections are put together here, since the library calls what stands
/// behind the flags EXTRA and leaves the variables out.
fn page(command: &Command) -> io::Result<Vec<u8>> {
    let man = Man::new(command.clone());
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if command.get_subcommands().any(|beneath| !beneath.is_hide_set()) {
        man.render_subcommands_section(&mut page)?;
    }
    for section in [environment(command), notes(command)].into_iter().flatten() {
        section.to_writer(&mut page)?;
    }
    if command.get_version().is_some() {
        man.render_version_section(&mut page)?;
    }
    Ok(page)
}

/// The variables that stand for flags of a command or of one beneath it.
fn environment(command: &Command) -> Option<Roff> {
    let mut variables = BTreeMap::new();
    gather(command, &mut variables);
    let mut section = Roff::new();
    section.control("SH", ["ENVIRONMENT"]);
    let is_any = !variables.is_empty();
    for (variable, flag) in variables {
        section.control("TP", []);
        section.text([bold(variable)]);
        section.text([roman("What "), bold(flag), roman(" says, unless that is given.")]);
    }
    is_any.then_some(section)
}

fn gather(command: &Command, variables: &mut BTreeMap<String, String>) {
    for flag in command.get_arguments().filter(|flag| !flag.is_hide_set() && !flag.is_hide_env_set()) {
        if let (Some(variable), Some(name)) = (flag.get_env(), flag.get_long()) {
            variables.insert(variable.to_string_lossy().into_owned(), format!("--{name}"));
        }
    }
    command.get_subcommands().for_each(|beneath| gather(beneath, variables));
}

/// What stands behind the flags: examples, if each line is one, else notes.
fn notes(command: &Command) -> Option<Roff> {
    let text = command.get_after_long_help().or_else(|| command.get_after_help())?.to_string();
    let is_example = |line: &str| line.trim_start().starts_with("conductor ") || line.contains(":  ");
    let mut lines = text.lines().filter(|line| !line.trim().is_empty());
    let mut section = Roff::new();
    section.control("SH", [if lines.all(is_example) { "EXAMPLES" } else { "NOTES" }]);
    for line in text.lines() {
        match line.trim() {
            "" => section.control("PP", []),
            // What can be typed stands on a line of its own.
            _ if is_example(line) => section.control("br", []).text([roman(line.trim())]).control("br", []),
            line => section.text([roman(line)]),
        };
    }
    Some(section)
}

fn print(command: &str, text: &[u8]) -> ExitCode {
    match write(text) {
        Ok(_) => ExitCode::SUCCESS,
        Err(message) => fail(command, &message),
    }
}
