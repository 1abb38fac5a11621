//! `conductor route explain`: which agent a prompt would go to, and why. Needs
//! no service.

use std::{
    collections::BTreeMap,
    env,
    io::stdout,
    path::{self, Path},
    process::ExitCode,
};

use serde_json::json;

use super::{
    finish::{block_on, fail, say},
    table::Table,
    terminal::{Style, clean, in_json, print, print_json},
};
use crate::{
    catalogue::Offers,
    cli::{ExplainRouteArgs, Global, RouteAction, RouteArgs},
    config::Config,
    identity::Caller,
    routes::{Asked, Decision, Field, Target, decide},
    state::StateDir,
    store,
};

/// What messages are said under.
const COMMAND: &str = "route explain";

/// Runs the command.
pub fn run(global: &Global, args: &RouteArgs) -> ExitCode {
    let RouteAction::Explain(args) = &args.action;
    match explain(global, args) {
        Ok(code) => code,
        Err(message) => fail(COMMAND, &message),
    }
}

fn explain(global: &Global, args: &ExplainRouteArgs) -> Result<ExitCode, String> {
    let loaded = Config::load(args.config.as_deref(), env::vars_os()).map_err(|error| error.to_string())?;
    let state =
        StateDir::resolve(global.state_dir.clone(), env::var_os).map_err(|error| error.to_string())?;
    let offers = known(&state.path().join("store.sqlite")).unwrap_or_else(|why| {
        say(
            COMMAND,
            &format!("what the agents offer is not known, so models are taken as they are named: {why}"),
        );
        Offers::new()
    });
    let here = match &args.cwd {
        Some(given) => path::absolute(given),
        None => env::current_dir(),
    };
    let here = here.map_err(|error| format!("the directory is not known: {error}"))?;
    let user = args.user.clone().unwrap_or_else(|| Caller::local().user);
    let labels: BTreeMap<String, String> = args.label.iter().cloned().collect();
    let asked = Asked {
        user: &user,
        teams: &args.team,
        cwd: &here,
        labels: &labels,
        agent: args.agent.as_deref(),
        model: args.model.as_deref(),
        mode: args.mode.as_deref(),
        last: None,
        bound: None,
    };
    let field = Field { config: &loaded.config, offers: &offers, busy: &|_| 0 };
    match decide(&asked, &field) {
        Ok(decision) => {
            print(&match args.json {
                true => {
                    let shown = serde_json::to_value(&decision)
                        .map_err(|error| format!("it cannot be shown as JSON: {error}"))?;
                    in_json(&shown)
                }
                false => text(&decision, Style::of(&stdout())),
            })?;
            Ok(ExitCode::SUCCESS)
        }
        Err(refused) => {
            say(COMMAND, &refused.to_string());
            if args.json {
                print_json(&json!({ "error": refused.to_string() }))?;
            }
            Ok(ExitCode::FAILURE)
        }
    }
}

/// What the service has learned of the agents.
fn known(file: &Path) -> Result<Offers, String> {
    if !file.exists() {
        return Err(format!("there is no {}; `conductor serve` makes it", file.display()));
    }
    let read = block_on(store::catalogue::read(file))?;
    read.map_err(|error| format!("{} cannot be read: {error}", file.display()))
}

/// The way through the rules, then where it leads.
fn text(decision: &Decision, style: Style) -> String {
    let mut table = Table::new(2);
    for step in &decision.steps {
        table.row([if step.matches { "✓" } else { "✗" }, &step.what, &step.why]);
    }
    let lines = table.lines();
    let mut out = String::new();
    for (step, line) in decision.steps.iter().zip(lines) {
        let line = clean(&line).into_owned();
        out.push_str(&format!("{}\n", if step.matches { line.into() } else { style.dim(&line) }));
    }
    out.push_str(&format!("{}\n", style.bold("goes to")));
    for (at, target) in decision.targets.iter().enumerate() {
        out.push_str(&format!("  {}. {}\n", at + 1, clean(&described(target))));
    }
    out.push_str(&format!("because {} ({})\n", clean(&decision.reason), decision.how.name()));
    out
}

fn described(target: &Target) -> String {
    let mut parts = vec![target.agent.clone()];
    parts.extend(target.model.as_ref().map(|model| format!("model {model}")));
    parts.extend(target.mode.as_ref().map(|mode| format!("mode {mode}")));
    if target.is_fallback {
        parts.push("fallback".into());
    }
    parts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routes::{How, Step};

    #[test]
    fn the_way_is_shown_step_by_step() {
        let step = |what: &str, matches, why: &str| Step { what: what.into(), matches, why: why.into() };
        let target = |agent: &str, model: Option<&str>, is_fallback| Target {
            agent: agent.into(),
            model: model.map(str::to_owned),
            mode: None,
            is_fallback,
        };
        let decision = Decision {
            targets: vec![target("codex", Some("gpt-5"), false), target("claude", None, true)],
            how: How::Route,
            route: Some("reviews".into()),
            reason: "route reviews: it is for mode `review`".into(),
            steps: vec![
                step("route 1", false, "user `ann` is not `bob`"),
                step("route reviews", true, "it is for mode `review`"),
            ],
        };
        let expected = "  \
  ✗  route 1        user `ann` is not `bob`
  ✓  route reviews  it is for mode `review`
goes to
  1. codex, model gpt-5
  2. claude, fallback
because route reviews: it is for mode `review` (route)
";
        assert_eq!(text(&decision, Style::default()), expected);
    }
}
