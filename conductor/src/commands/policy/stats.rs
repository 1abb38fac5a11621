//! `conductor policy stats`: what people are asked, and what comes of it.

use std::{cmp::Reverse, io::stdout, process::ExitCode, time::Duration};

use serde_json::{Value, json};

use super::{
    super::{
        table::Table,
        terminal::{Style, in_json, print},
    },
    history::Decisions,
};
use crate::{
    cli::{CountBy, Global, StatsArgs},
    clock::{age, micros, rfc3339},
    ledger::judgements::{Judgement, Which},
    policy::{
        Answer,
        stats::{Asked, Cause, NO_RULE, Stats, Tally},
        text::shown,
    },
};

/// Rows that people are shown; machines get all.
const SHOWN: usize = 50;

/// Characters of a name in a cell.
const NAME: usize = 40;

/// People that a row names.
const PEOPLE: usize = 3;

/// Hints that are given at once.
const HINTS: usize = 5;

/// Counts and shows.
pub(super) async fn run(global: &Global, args: &StatsArgs) -> Result<ExitCode, String> {
    let which = Which { since_us: Some(micros(args.since)), only_asked: true, ..Which::default() };
    let mut decisions = Decisions::open(global, &args.place, which, None).await?;
    let mut stats = Stats::default();
    while let Some(judgement) = decisions.next().await? {
        if let Some(asked) = asked(args.by, judgement) {
            stats.add(&asked);
        }
    }
    drop(decisions);
    let (groups, all) = stats.finish();
    let text = match args.json {
        true => in_json(&as_json(args, &groups, &all)),
        false => as_text(args, &groups, &all),
    };
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn asked(by: CountBy, judgement: Judgement) -> Option<Asked> {
    let answer = Answer::of(
        judgement.verdict.as_deref(),
        judgement.method.as_deref(),
        judgement.decision.as_deref(),
        judgement.decided_by.as_deref(),
    )?;
    let named = |name: Option<String>, none: &str| name.unwrap_or_else(|| none.to_owned());
    let Cause { topic, only_by } = Cause::of(judgement.sub_actions.as_deref());
    let key = match by {
        CountBy::Rule => named(judgement.rule, NO_RULE),
        CountBy::Command => topic,
        CountBy::User => named(judgement.user_name, "(unknown)"),
        CountBy::Agent => named(judgement.agent, "(unknown)"),
    };
    Some(Asked { key, answer, waited_us: judgement.duration_us, by: judgement.decided_user, only_by })
}

fn name(by: CountBy) -> &'static str {
    match by {
        CountBy::Rule => "rule",
        CountBy::Command => "command",
        CountBy::User => "user",
        CountBy::Agent => "agent",
    }
}

fn as_json(args: &StatsArgs, groups: &[(String, Tally)], all: &Tally) -> Value {
    let tally = |tally: &Tally| {
        let waited = |percent| tally.percentile(percent).map(|us| us as f64 / 1000.0);
        json!({
            "asked": tally.asked, "answers": tally.answers, "answered_by": tally.by,
            "p50_ms": waited(50), "p95_ms": waited(95), "max_ms": waited(100),
            "always_allowed": tally.is_always_allowed(), "asked_only_by": tally.only_by,
        })
    };
    let groups = groups.iter().map(|(key, one)| {
        let mut shown = tally(one);
        shown[name(args.by)] = key.as_str().into();
        shown
    });
    json!({
        "by": name(args.by),
        "since": rfc3339(args.since),
        "groups": groups.collect::<Vec<_>>(),
        "all": tally(all),
    })
}

fn as_text(args: &StatsArgs, groups: &[(String, Tally)], all: &Tally) -> String {
    let since = rfc3339(args.since).unwrap_or_default();
    if groups.is_empty() {
        return format!("nobody was asked anything since {since}\n");
    }
    let mut table = Table::new(0);
    let header =
        ["ASKED", "ALLOWED", "REJECTED", "TIMED OUT", "CANCELLED", "OPEN", "P50", "P95", "MAX", "BY"];
    table.row(std::iter::once(name(args.by).to_uppercase()).chain(header.map(str::to_owned)));
    let rows = groups.iter().take(SHOWN).map(|(key, tally)| (shown(key, NAME), tally));
    for (key, tally) in rows.chain([("all".to_owned(), all)]) {
        let waited = |percent| match tally.percentile(percent) {
            Some(us) => age(Duration::from_micros(u64::try_from(us).unwrap_or_default())),
            None => "-".to_owned(),
        };
        let counts = Answer::ALL.map(|answer| tally.count(answer).to_string());
        let waits = [50, 95, 100].map(waited);
        let cells = [key, tally.asked.to_string()].into_iter().chain(counts).chain(waits);
        table.row(cells.chain([people(tally)]));
    }
    let style = Style::of(&stdout());
    let mut lines = table.lines().into_iter();
    let mut out = format!("asked since {since}\n\n");
    lines.next().iter().for_each(|header| out.push_str(&format!("{}\n", style.bold(header))));
    lines.for_each(|line| out.push_str(&(line + "\n")));
    if groups.len() > SHOWN {
        out.push_str(&format!("… and {} more; --json has them all\n", groups.len() - SHOWN));
    }
    out.push_str(&hints(args.by, groups));
    out
}

/// Those who answered most.
fn people(tally: &Tally) -> String {
    let mut by: Vec<_> = tally.by.iter().collect();
    by.sort_by_key(|(_, count)| Reverse(**count));
    let mut names: Vec<String> =
        by.iter().take(PEOPLE).map(|(name, count)| format!("{} {count}", shown(name, NAME))).collect();
    if by.len() > PEOPLE {
        names.push("…".to_owned());
    }
    names.join(", ")
}

/// What people have always allowed might as well be a rule. Whether it should is theirs to
/// say. Counted are only questions that this alone would have spared.
fn hints(by: CountBy, groups: &[(String, Tally)]) -> String {
    let hint = |(key, tally): &(String, Tally)| {
        let (asked, name) = (tally.asked, shown(key, NAME));
        if by == CountBy::Rule {
            let spared = tally.spared_by(key).filter(|_| key != NO_RULE)?;
            let what = format!("all {asked} questions of rule `{name}` were allowed");
            return Some(format!("hint: {what}; if it allowed them itself, {spared} would be spared\n"));
        }
        let what = format!("all {asked} questions about `{name}` were allowed");
        if let Some(spared) = tally.spared_by(NO_RULE) {
            return Some(format!("hint: {what}; a rule that allows exactly those would spare {spared}\n"));
        }
        let (rule, spared) = tally.only_by.keys().find_map(|rule| Some((rule, tally.spared_by(rule)?)))?;
        let rule = shown(rule, NAME);
        Some(format!("hint: {what}; if rule `{rule}` allowed them, {spared} would be spared\n"))
    };
    // Whoever asks, no rule is about all that they ask.
    let is_about = matches!(by, CountBy::Rule | CountBy::Command);
    let hints: String = groups.iter().filter(|_| is_about).filter_map(hint).take(HINTS).collect();
    if hints.is_empty() {
        hints
    } else {
        format!("\n{hints}try it on history first: conductor policy replay FILE\n")
    }
}
