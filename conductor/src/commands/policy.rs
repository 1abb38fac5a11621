//! `conductor policy`: checks rules, shows those that ship, explains decisions.
//! Needs no service; what goes through history needs the ledger.

mod history;
mod replay;
mod stats;

use std::{
    env,
    io::{self, BufRead, IsTerminal as _, Read as _, stdin, stdout},
    path::PathBuf,
    process::ExitCode,
    time::Duration,
};

use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::{
    events::harmless,
    ledger,
    table::Table,
    terminal::{Style, clean, print},
};
use crate::{
    cli::{
        CheckPolicyArgs, CoverageArgs, ExplainPolicyArgs, Global, PolicyAction, PolicyArgs, ShowPolicyArgs,
    },
    frame::MAX_FRAME,
    policy::{
        Policy, Question,
        rules::{Problem, lint, presets, text_of},
    },
};

/// The longest line of a batch. A request is far shorter; a line that never ends must not fill
/// the memory.
const LONGEST_LINE: usize = 1 << 20;

/// The question behind `coverage`.
const COVERAGE: &str = "SELECT agent, agent_version, calls, decided, calls - decided AS unasked, \
    round(percent) AS percent FROM policy_coverage ORDER BY percent, agent, agent_version";

/// The exit code where 1 says something else.
const NO_ANSWER: u8 = 2;

/// How long it may take.
const COVERAGE_TIME: Duration = Duration::from_secs(60);

/// Runs the command.
pub fn run(global: &Global, args: &PolicyArgs) -> ExitCode {
    let done = match &args.action {
        PolicyAction::Check(args) => check(args),
        PolicyAction::Show(args) => show(args),
        PolicyAction::Explain(args) => explain(args),
        PolicyAction::Coverage(args) => coverage(global, args),
        PolicyAction::Replay(args) => {
            runtime().and_then(|runtime| runtime.block_on(replay::run(global, args)))
        }
        PolicyAction::Stats(args) => runtime().and_then(|runtime| runtime.block_on(stats::run(global, args))),
    };
    match done {
        Ok(code) => code,
        Err(message) => {
            say(&format!("conductor policy: {message}"));
            // There, 1 is an answer.
            let answers = matches!(args.action, PolicyAction::Replay(_));
            if answers { ExitCode::from(NO_ANSWER) } else { ExitCode::FAILURE }
        }
    }
}

fn runtime() -> Result<Runtime, String> {
    let built = tokio::runtime::Builder::new_current_thread().enable_all().build();
    built.map_err(|error| format!("cannot start: {error}"))
}

#[allow(clippy::print_stderr, reason = "this is a program's message to its user")]
fn say(message: &str) {
    eprintln!("{}", clean(message));
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
        print(&harmless(format!("{shown:#}\n")))?;
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
    runtime()?.block_on(ledger::ask(&settings, COVERAGE, COVERAGE_TIME, args.json, false))?;
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
        let shown = if args.json {
            format!("{:#}\n", json!({ "name": name, "text": text }))
        } else {
            text.to_owned()
        };
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
        print(&format!("{:#}\n", json!({ "presets": all.collect::<Vec<_>>() })))?;
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

fn explain(args: &ExplainPolicyArgs) -> Result<ExitCode, String> {
    let explainer = Explainer {
        policy: Policy::load(args.policy.as_deref()).map_err(|error| error.to_string())?,
        here: env::current_dir().map_err(|error| format!("the current directory is not known: {error}"))?,
        search: env::var_os("PATH").map(|path| env::split_paths(&path).collect()).unwrap_or_default(),
    };
    if args.batch {
        return explainer.batch(&mut stdin().lock());
    }
    let mut json = Vec::new();
    let read = stdin().lock().take(MAX_FRAME as u64 + 1).read_to_end(&mut json);
    read.map_err(|error| format!("cannot read stdin: {error}"))?;
    let answer = match json.len() > MAX_FRAME {
        true => Err(format!("the request is longer than {MAX_FRAME} bytes")),
        false => explainer.answer(&json),
    };
    let code = if answer.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    let answer = answer.unwrap_or_else(|why| {
        say(&format!("conductor policy explain: {why}"));
        refused(&why)
    });
    print(&harmless(if stdout().is_terminal() { format!("{answer:#}\n") } else { format!("{answer}\n") }))?;
    Ok(code)
}

struct Explainer {
    policy: Policy,
    here: PathBuf,
    search: Vec<PathBuf>,
}

impl Explainer {
    fn answer(&self, json: &[u8]) -> Result<Value, String> {
        let explained = Question::from_json(json)?.explain(&self.policy, &self.here, &self.search)?;
        serde_json::to_value(explained).map_err(|error| format!("it cannot be shown as JSON: {error}"))
    }

    /// Answers line by line, each before the next is read.
    fn batch(&self, input: &mut impl BufRead) -> Result<ExitCode, String> {
        loop {
            let answer = match next_line(input).map_err(|error| format!("cannot read stdin: {error}"))? {
                None => return Ok(ExitCode::SUCCESS),
                Some(Err(why)) => refused(&why),
                Some(Ok(line)) => self.answer(&line).unwrap_or_else(|why| refused(&why)),
            };
            print(&harmless(format!("{answer}\n")))?;
        }
    }
}

/// The next line; an error in place of one that is too long, which is skipped.
fn next_line(input: &mut impl BufRead) -> io::Result<Option<Result<Vec<u8>, String>>> {
    let mut line = Vec::new();
    let count = input.by_ref().take(LONGEST_LINE as u64 + 1).read_until(b'\n', &mut line)?;
    if count == 0 {
        return Ok(None);
    }
    if line.len() <= LONGEST_LINE || line.ends_with(b"\n") {
        return Ok(Some(Ok(line)));
    }
    loop {
        let rest = input.fill_buf()?;
        let end = memchr::memchr(b'\n', rest);
        let (is_over, used) = (end.is_some() || rest.is_empty(), end.map_or(rest.len(), |end| end + 1));
        input.consume(used);
        if is_over {
            return Ok(Some(Err(format!("the line is longer than {LONGEST_LINE} bytes"))));
        }
    }
}

/// The answer to what cannot be read: nobody shall take it for a yes.
fn refused(why: &str) -> Value {
    json!({ "decision": "deny", "error": why })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

    use super::*;

    #[test]
    fn lines_are_bounded_and_counted() {
        let long = "x".repeat(LONGEST_LINE + 1);
        let exact = "y".repeat(LONGEST_LINE);
        let text = format!("a\n\n{long}\nb\n{exact}\n{long}{long}\nc");
        let mut input = io::BufReader::new(text.as_bytes());
        let mut found = Vec::new();
        while let Some(line) = next_line(&mut input).unwrap() {
            found.push(line.map(|line| String::from_utf8(line).unwrap().trim().len()).map_err(|_| ()));
        }
        assert_eq!(found, [Ok(1), Ok(0), Err(()), Ok(1), Ok(LONGEST_LINE), Err(()), Ok(1)]);
    }
}
