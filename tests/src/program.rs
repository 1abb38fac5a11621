//! The program beside a ledger, without a service, and what came of it.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::process::{Command, Output};

use crate::{harness::program, postgres::PASSWORD, shipping::Bench};

/// The program, with nothing of the machine's own settings, beside a ledger.
pub fn conductor(bench: &Bench, args: &[&str]) -> Command {
    told_by(bench, "CONDUCTOR_DATABASE_URL", args)
}

/// The same with the variable that tells it of a ledger in Postgres.
pub fn told_by(bench: &Bench, variable: &str, args: &[&str]) -> Command {
    let mut command = Command::new(program("conductor"));
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CONDUCTOR_") || text.starts_with("XDG_") {
            command.env_remove(&name);
        }
    }
    command.env("HOME", bench.state()).env("CONDUCTOR_STATE_DIR", bench.state()).args(args);
    if !bench.settings().url.is_empty() {
        command.env(variable, bench.database().url());
    }
    command
}

/// What came of a command.
#[derive(Debug)]
pub struct Done {
    /// Its exit code, unless a signal ended it.
    pub code: Option<i32>,
    /// What it printed.
    pub stdout: String,
    /// What it said beside that.
    pub stderr: String,
}

/// What came of a command; whatever it says, it never tells the password.
pub fn done(output: &Output) -> Done {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    let done =
        Done { code: output.status.code(), stdout: text(&output.stdout), stderr: text(&output.stderr) };
    assert!(!done.stderr.contains(PASSWORD) && !done.stdout.contains(PASSWORD), "{done:?}");
    done
}
