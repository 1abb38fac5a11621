//! `conductor doctor`: is everything there that the service needs, and if not,
//! what to do about it. Works without a running service.

mod access;
mod agents;
mod host;
mod kernel;
mod limits;
mod record;
mod report;

use std::{io::stdout, process::ExitCode};

use self::report::{Check, Verdict};
use super::{
    finish::{block_on, fail},
    terminal::{Style, in_json, print, width},
};
use crate::{
    agent::strays,
    cli::{DoctorArgs, Global},
    metrics::Metrics,
};

/// What messages are said under.
const COMMAND: &str = "doctor";

/// Runs the command.
pub fn run(global: &Global, args: &DoctorArgs) -> ExitCode {
    let checks = match block_on(examine(global, args)) {
        Ok(checks) => checks,
        Err(message) => return fail(COMMAND, &message),
    };
    let text = if args.json {
        in_json(&report::as_json(&checks))
    } else {
        report::as_text(&checks, Style::of(&stdout()), width(&stdout()))
    };
    if let Err(message) = print(&text) {
        return fail(COMMAND, &message);
    }
    if report::is_fine(&checks) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

async fn examine(global: &Global, args: &DoctorArgs) -> Vec<Check> {
    // What an agent leaves behind must not outlive this command.
    strays::adopt(&Metrics::default());
    let (loaded, mut checks) = host::config(args.config.as_deref());
    if let Some(config) = &loaded {
        checks.extend(access::check(config).await);
    }
    let (state, found) = host::state(global);
    checks.extend(found);
    if let Some(state) = &state {
        checks.push(host::service(global, &args.endpoint, state).await);
        checks.extend(record::check(global, &args.endpoint, loaded.as_ref(), state.path()).await);
    }
    if let Some(state) = &state {
        checks.extend(limits::check(loaded.as_ref(), state.path(), host::holder(state)));
    }
    match (&loaded, &state) {
        (Some(config), Some(state)) => {
            checks.extend(agents::check(config, state.path(), args).await);
        }
        _ => checks.push(Check::new(
            "agents",
            "all",
            Verdict::Info,
            "not looked at: the configuration and the state directory come first",
        )),
    }
    checks.extend(kernel::check(loaded.as_ref()));
    checks
}
