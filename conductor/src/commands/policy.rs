//! `conductor policy`: checks rules, shows those that ship, explains decisions.
//! Needs no service; what goes through history needs the ledger.

mod explain;
mod history;
mod replay;
mod stats;

use std::{io::stdout, process::ExitCode, time::Duration};

use serde_json::{Value, json};

use super::{
    finish::{block_on, fail},
    ledger,
    table::Table,
    terminal::{Style, clean, in_json, print, print_json},
};
use crate::{
    cli::{CheckPolicyArgs, CoverageArgs, Global, PolicyAction, PolicyArgs, ShowPolicyArgs},
    ledger::judgements::COVERAGE,
    policy::{
        Policy,
        rules::{Problem, lint, presets, text_of},
    },
};

/// The exit code where 1 says something else.
const NO_ANSWER: u8 = 2;

/// How long it may take.
const COVERAGE_TIME: Duration = Duration::from_secs(60);

/// Runs the command.
pub fn run(global: &Global, args: &PolicyArgs) -> ExitCode {
    let done = match &args.action {
        PolicyAction::Check(args) => check(args),
        PolicyAction::Show(args) => show(args),
        PolicyAction::Explain(args) => explain::run(args),
        PolicyAction::Coverage(args) => coverage(global, args),
        PolicyAction::Replay(args) => block_on(replay::run(global, args)).flatten(),
        PolicyAction::Stats(args) => block_on(stats::run(global, args)).flatten(),
    };
    match done {
        Ok(code) => code,
        Err(message) => {
            let failed = fail("policy", &message);
            // There, 1 is an answer.
            let answers = matches!(args.action, PolicyAction::Replay(_));
            if answers { ExitCode::from(NO_ANSWER) } else { failed }
        }
    }
}

fn check(args: &CheckPolicyArgs) -> Result<ExitCode, String> {
    let text = text_of(&args.file).map_err(|error| error.to_string())?;
    let report = lint::check(&text);
    let code = if report.errors.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    let origin = args.file.display().to_string();
    if args.json {
        let list = |problems: &[Problem]| problems.iter().map(as_json).collect::<Vec<_>>();
        let shown = json!({
            "file": origin,
            "errors": list(&report.errors),
            "warnings": list(&report.warnings),
            "rules": report.rules,
            "revision": report.revision,
        });
        print_json(&shown)?;
        return Ok(code);
    }
    let mut out = String::new();
    for (kind, problems) in [("error", &report.errors), ("warning", &report.warnings)] {
        for problem in problems {
            out.push_str(&format!("{kind}: {}\n", problem.shown(&origin)));
        }
    }
    let count = |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    out.push_str(&match &report.revision {
        Some(revision) => format!(
            "{origin}: {}, {}; revision {revision}\n",
            count(report.rules, "rule"),
            count(report.warnings.len(), "warning"),
        ),
        None => format!("{origin}: {}; it cannot be used\n", count(report.errors.len(), "error")),
    });
    print(&clean(&out))?;
    Ok(code)
}

/// What the ledger knows of it.
fn coverage(global: &Global, args: &CoverageArgs) -> Result<ExitCode, String> {
    let settings = ledger::settings(global, args.place.database_url.as_ref(), args.place.config.as_deref())?;
    block_on(ledger::ask(&settings, COVERAGE, COVERAGE_TIME, args.json, false))??;
    Ok(ExitCode::SUCCESS)
}

fn as_json(problem: &Problem) -> Value {
    let line = (problem.line > 0).then_some(problem.line);
    json!({ "line": line, "rule": problem.rule, "what": problem.what, "hint": problem.hint })
}

fn show(args: &ShowPolicyArgs) -> Result<ExitCode, String> {
    if let Some(name) = &args.name {
        let text = presets::preset(name).ok_or_else(|| {
            let names: Vec<_> = presets::PRESETS.iter().map(|(name, _)| *name).collect();
            format!("there is no preset `{name}`; the presets are {}", names.join(", "))
        })?;
        let shown = if args.json { in_json(&json!({ "name": name, "text": text })) } else { text.to_owned() };
        print(&shown)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut rows = Vec::new();
    for (name, text) in presets::PRESETS {
        let policy = Policy::parse(name, text).map_err(|error| error.to_string())?;
        rows.push((*name, policy.rule_count(), policy.revision().to_owned(), presets::summary(text)));
    }
    if args.json {
        let all = rows.iter().map(|(name, rules, revision, summary)| {
            json!({ "name": name, "rules": rules, "revision": revision, "summary": summary })
        });
        print_json(&json!({ "presets": all.collect::<Vec<_>>() }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Table::new(0);
    table.row(["NAME", "RULES", "WHAT IT IS FOR"]);
    for (name, rules, _, summary) in &rows {
        table.row([(*name).to_owned(), rules.to_string(), (*summary).to_owned()]);
    }
    let style = Style::of(&stdout());
    let mut lines = table.lines().into_iter();
    let mut out = lines.next().map(|header| format!("{}\n", style.bold(&header))).unwrap_or_default();
    lines.for_each(|line| out.push_str(&(line + "\n")));
    print(&out)?;
    Ok(ExitCode::SUCCESS)
}
