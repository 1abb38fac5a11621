//! `conductor policy explain`: what the rules say to one thing, in words for people, or to
//! requests as JSON, for programs.

use std::{
    env,
    io::{self, BufRead, IsTerminal as _, Read as _, stdin, stdout},
    path::PathBuf,
    process::ExitCode,
};

use serde_json::{Value, json};

use super::super::{
    finish::say,
    terminal::{Style, clean, fold, harmless, in_json, print, width},
};
use crate::{
    cli::ExplainPolicyArgs,
    config::Config,
    frame::MAX_FRAME,
    policy::{Effect, Explained, Policy, Question, approvers},
};

/// The longest line of a batch. A request is far shorter; a line that never ends must not fill
/// the memory.
const LONGEST_LINE: usize = 1 << 20;

/// Characters of a command or a path that are shown.
const SHOWN: usize = 1000;

/// Before a reason, so that it stands below what it is about; and what it gets at least.
const INDENT: &str = "         ";
const NARROWEST: usize = 30;

/// What is said to somebody who names nothing, at a terminal or without any input.
const NOTHING: &str = "name what to explain, as in `conductor policy explain --run 'git push'` (also: --read, \
    --write, --fetch), or give a request as JSON on stdin; see --help";

pub(super) fn run(args: &ExplainPolicyArgs) -> Result<ExitCode, String> {
    let file = match &args.policy {
        Some(file) => Some(file.clone()),
        None => {
            let loaded = Config::load(args.config.as_deref(), env::vars_os());
            loaded.map_err(|error| error.to_string())?.config.policy.file
        }
    };
    let explainer = Explainer {
        policy: Policy::load(file.as_deref()).map_err(|error| error.to_string())?,
        here: env::current_dir().map_err(|error| format!("the current directory is not known: {error}"))?,
        search: env::var_os("PATH").map(|path| env::split_paths(&path).collect()).unwrap_or_default(),
    };
    if args.batch {
        return explainer.batch(&mut stdin().lock());
    }
    if let Some(question) = question(args) {
        let explained = explainer.explain(&question)?;
        let by = file.map_or("the built-in rules".into(), |file| file.display().to_string());
        let text = match args.json {
            true => in_json(&as_json(&explained)?),
            false => in_words(&explained, &by, Style::of(&stdout()), width(&stdout())),
        };
        print(&text)?;
        return Ok(ExitCode::SUCCESS);
    }
    if stdin().is_terminal() {
        return Err(NOTHING.into());
    }
    one(&explainer)
}

/// Answers the request on stdin.
fn one(explainer: &Explainer) -> Result<ExitCode, String> {
    let mut json = Vec::new();
    let read = stdin().lock().take(MAX_FRAME as u64 + 1).read_to_end(&mut json);
    read.map_err(|error| format!("cannot read stdin: {error}"))?;
    let answer = match json.len() > MAX_FRAME {
        true => Err(format!("the request is longer than {MAX_FRAME} bytes")),
        false if json.trim_ascii().is_empty() => Err(NOTHING.into()),
        false => explainer.answer(&json),
    };
    let code = if answer.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    let answer = answer.unwrap_or_else(|why| {
        say("policy explain", &why);
        refused(&why)
    });
    print(&harmless(if stdout().is_terminal() { format!("{answer:#}\n") } else { format!("{answer}\n") }))?;
    Ok(code)
}

/// What the command line asks about, if it does.
fn question(args: &ExplainPolicyArgs) -> Option<Question> {
    let action = [("shell", &args.run), ("read", &args.read), ("write", &args.write), ("fetch", &args.fetch)]
        .into_iter()
        .find_map(|(name, given)| Some(json!({ name: given.as_ref()? })))?;
    Some(Question {
        user: args.user.clone(),
        teams: Some(args.team.clone()),
        agent: args.agent.clone(),
        mode: args.mode.clone(),
        cwd: args.cwd.clone(),
        action,
        ..Question::default()
    })
}

/// The answer for people, on a terminal of so many columns: what comes of all of it, then each
/// part with the rules behind it.
fn in_words(explained: &Explained, by: &str, style: Style, columns: Option<usize>) -> String {
    let verdict = &explained.verdict;
    let room = columns.map_or(usize::MAX, |columns| columns.saturating_sub(INDENT.len()).max(NARROWEST));
    let mut out =
        format!("{}  by {} (revision {})\n", word(verdict.decision, style), clean(by), explained.revision);
    for judged in &verdict.sub_actions {
        let action = judged.action.in_words(SHOWN);
        out.push_str(&format!("  {}  {}\n", word(judged.decision, style), clean(&action)));
        let rules = if judged.rules.is_empty() { "no rule".into() } else { judged.rules.join(", ") };
        let why = clean(&format!("{rules}: {}", judged.reason)).replace('\n', " ");
        for line in fold(&why, room) {
            out.push_str(&format!("{INDENT}{}\n", style.dim(&line)));
        }
    }
    if verdict.decision == Effect::Ask {
        out.push_str(&format!("  answered by {}\n", clean(&approvers::words(&verdict.asks))));
    }
    out
}

/// An outcome, as wide as any.
fn word(effect: Effect, style: Style) -> String {
    let (word, colour) = match effect {
        Effect::Allow => ("allow", "32"),
        Effect::Ask => ("ask  ", "33"),
        Effect::Deny => ("deny ", "31"),
    };
    style.paint(colour, word).into_owned()
}

fn as_json(explained: &Explained) -> Result<Value, String> {
    serde_json::to_value(explained).map_err(|error| format!("it cannot be shown as JSON: {error}"))
}

struct Explainer {
    policy: Policy,
    here: PathBuf,
    search: Vec<PathBuf>,
}

impl Explainer {
    fn explain(&self, question: &Question) -> Result<Explained, String> {
        question.explain(&self.policy, &self.here, &self.search)
    }

    fn answer(&self, json: &[u8]) -> Result<Value, String> {
        as_json(&self.explain(&Question::from_json(json)?)?)
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
