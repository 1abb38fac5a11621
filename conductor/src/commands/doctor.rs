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
use super::terminal::{Style, clean, print, width};
use crate::{
    agent::strays,
    cli::{DoctorArgs, Global},
    metrics::Metrics,
};

/// Runs the command.
pub fn run(global: &Global, args: &DoctorArgs) -> ExitCode {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&format!("cannot start: {error}")),
    };
    let checks = runtime.block_on(examine(global, args));
    let text = if args.json {
        format!("{:#}\n", report::as_json(&checks))
    } else {
        report::as_text(&checks, Style::of(&stdout()), width(&stdout()))
    };
    if let Err(message) = print(&text) {
        return fail(&message);
    }
    if report::is_fine(&checks) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

#[allow(clippy::print_stderr, reason = "this is a program's message to its user")]
fn fail(message: &str) -> ExitCode {
    eprintln!("conductor doctor: {}", clean(message));
    ExitCode::FAILURE
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
    checks.extend(kernel::check());
    checks
}
