//! `conductor policy replay`: a candidate over what was asked, before it is in force.

use std::{cmp::Reverse, io::stdout, process::ExitCode, sync::Arc};

use serde_json::{Value, json};

use super::{
    super::{
        table::Table,
        terminal::{Style, print, print_json},
    },
    history::Decisions,
};
use crate::{
    cli::{Global, ReplayArgs},
    clock::{micros, rfc3339, rfc3339_us},
    ledger::judgements::{Judgement, Which},
    policy::{
        Answer, Policy,
        replay::{Example, Flip, Group, Past, Replay, Unjudgeable, Way},
        text::shown,
    },
};

/// Changes that people are shown; machines get all.
const SHOWN: usize = 50;

/// Characters of a name in a cell.
const NAME: usize = 40;

/// Characters of who may answer.
const TERMS: usize = 200;

/// What differs from what was.
const CHANGED: u8 = 1;

/// Judges and shows; with the exit code that says what came of it.
pub(super) async fn run(global: &Global, args: &ReplayArgs) -> Result<ExitCode, String> {
    let candidate = Arc::new(Policy::load(Some(&args.file)).map_err(|error| error.to_string())?);
    if args.session.as_ref().is_some_and(|id| !is_id(id)) {
        return Err("--session: give a session's id, or the beginning of one".to_owned());
    }
    let which = Which {
        since_us: Some(micros(args.since)),
        until_us: args.until.map(micros),
        session: args.session.clone(),
        user: args.user.clone(),
        only_asked: false,
    };
    let mut decisions = Decisions::open(global, &args.place, which, args.limit).await?;
    let mut rehearsal = Rehearsal { candidate: &candidate, replay: Replay::default(), narrowed: None };
    while let Some(judgement) = decisions.next().await? {
        rehearsal.take(&decisions, judgement).await?;
    }
    let replay = rehearsal.replay;
    let (place, is_limited) = (decisions.place(), decisions.is_limited());
    drop(decisions);
    if args.json {
        let mut json = as_json(args, &candidate, &place, &replay);
        json["limited"] = is_limited.into();
        print_json(&json)?;
    } else {
        let mut text = as_text(args, &candidate, &place, &replay);
        if is_limited {
            text.push_str("limited by --limit: there are older requests, which were not looked at\n");
        }
        print(&text)?;
    }
    let changes = replay.looser + replay.otherwise + if args.allow_stricter { 0 } else { replay.stricter };
    Ok(if changes == 0 { ExitCode::SUCCESS } else { ExitCode::from(CHANGED) })
}

fn is_id(text: &str) -> bool {
    !text.is_empty() && text.len() <= 36 && text.chars().all(|c| c.is_ascii_hexdigit() || c == '-')
}

struct Rehearsal<'a> {
    candidate: &'a Arc<Policy>,
    replay: Replay,
    /// The candidate as the last session with rules of its own has it: they come together.
    narrowed: Option<(Session, Option<Arc<Policy>>)>,
}

/// A session, and the frame with what narrows its rules.
type Session = (String, u64);

impl Rehearsal<'_> {
    async fn take(&mut self, decisions: &Decisions, judgement: Judgement) -> Result<(), String> {
        let past = past(judgement);
        let facts = match past.facts() {
            Ok(facts) => facts,
            Err(why) => {
                self.replay.pass_over(&past, &why);
                return Ok(());
            }
        };
        let Some(seq) = facts.standing.narrowing else {
            self.replay.judge(&past, &facts, self.candidate);
            return Ok(());
        };
        let key = (past.session.clone(), seq);
        if self.narrowed.as_ref().is_none_or(|(known, _)| *known != key) {
            let rules = if seq == 0 { None } else { decisions.narrowing(&past.session, seq).await? };
            let narrowed = rules.map(|rules| self.candidate.clone().narrowed_by(&rules));
            self.narrowed = Some((key, narrowed));
        }
        match &self.narrowed {
            Some((_, Some(policy))) => self.replay.judge(&past, &facts, policy),
            _ => self.replay.pass_over(&past, &Unjudgeable::NoNarrowing),
        }
        Ok(())
    }
}

fn past(judgement: Judgement) -> Past {
    let answer = Answer::of(
        judgement.verdict.as_deref(),
        judgement.method.as_deref(),
        judgement.decision.as_deref(),
        judgement.decided_by.as_deref(),
    );
    Past {
        answer,
        session: judgement.session_id,
        seq: judgement.seq,
        at_us: judgement.asked_us.unwrap_or_default(),
        user: judgement.user_name.unwrap_or_default(),
        ruled: judgement.ruled,
        is_whole: judgement.is_whole,
        subject: judgement.subject,
        sub_actions: judgement.sub_actions,
        terms: judgement.terms,
    }
}

/// What gets looser first, then what is most.
fn in_order(replay: &Replay) -> Vec<(&Flip, &Group)> {
    let mut flips: Vec<_> = replay.flips.iter().collect();
    flips.sort_by_key(|(flip, group)| (flip.way, Reverse(group.count)));
    flips
}

fn examples(group: &Group) -> Vec<Value> {
    let example = |example: &Example| {
        json!({
            "session": example.session, "seq": example.seq, "at": rfc3339_us(example.at_us),
            "user": example.user, "what": example.what,
        })
    };
    group.examples.iter().map(example).collect()
}

fn as_json(args: &ReplayArgs, candidate: &Policy, place: &str, replay: &Replay) -> Value {
    let flips = in_order(replay).into_iter().map(|(flip, group)| {
        json!({
            "from": flip.from, "to": flip.to, "way": flip.way, "looser": flip.way == Way::Looser,
            "rule": flip.rule, "what": flip.topic,
            "terms": flip.terms.as_ref().map(|(then, now)| json!({ "from": then, "to": now })),
            "count": group.count, "answers": group.answers, "examples": examples(group),
        })
    });
    let passed = replay.unjudgeable.iter().map(
        |(reason, group)| json!({ "reason": reason, "count": group.count, "examples": examples(group) }),
    );
    json!({
        "candidate": {
            "file": args.file.display().to_string(),
            "revision": candidate.revision(),
            "rules": candidate.rule_count(),
        },
        "ledger": place,
        "since": rfc3339(args.since),
        "until": args.until.and_then(rfc3339),
        "same": replay.same,
        "looser": replay.looser,
        "stricter": replay.stricter,
        "otherwise": replay.otherwise,
        "without_terms": replay.without_terms,
        "not_judgeable": replay.passed_over(),
        "flips": flips.collect::<Vec<_>>(),
        "unjudgeable": passed.collect::<Vec<_>>(),
    })
}

fn as_text(args: &ReplayArgs, candidate: &Policy, place: &str, replay: &Replay) -> String {
    let style = Style::of(&stdout());
    let judged = replay.same + replay.looser + replay.stricter + replay.otherwise;
    let since = rfc3339(args.since).unwrap_or_default();
    let mut out = format!(
        "{} (revision {}), over {judged} requests since {since} in {}\n",
        shown(&args.file.display().to_string(), usize::MAX),
        candidate.revision(),
        shown(place, usize::MAX),
    );
    let flips = in_order(replay);
    let mut table = Table::new(0);
    table.row(["FROM", "TO", "RULE", "WHAT", "COUNT", "PEOPLE SAID"]);
    for (flip, group) in flips.iter().take(SHOWN) {
        let rule = flip.rule.as_deref().map_or_else(|| "(no rule)".to_owned(), |rule| shown(rule, NAME));
        let from = flip.from.name().to_owned();
        let to = if flip.from == flip.to { "ask otherwise" } else { flip.to.name() }.to_owned();
        table.row([from, to, rule, flip.topic.clone(), group.count.to_string(), answers(group)]);
    }
    let mut lines = table.lines().into_iter();
    if let Some(header) = lines.next().filter(|_| !flips.is_empty()) {
        out.push_str(&format!("\n{}\n", style.bold(&header)));
    }
    for ((flip, group), line) in flips.iter().zip(lines) {
        let line = if flip.way != Way::Stricter { style.paint("33", &line) } else { line.as_str().into() };
        out.push_str(&format!("{line}\n"));
        if let Some((then, now)) = &flip.terms {
            let line = format!("    asked of {}; now of {}", shown(then, TERMS), shown(now, TERMS));
            out.push_str(&format!("{line}\n"));
        }
        group.examples.iter().for_each(|example| out.push_str(&example_line(example, style)));
    }
    if flips.len() > SHOWN {
        out.push_str(&format!("… and {} more; --json has them all\n", flips.len() - SHOWN));
    }
    out.push_str(&format!(
        "\nsame {}, looser {}, stricter {}, otherwise {}, not judgeable {}\n",
        replay.same,
        replay.looser,
        replay.stricter,
        replay.otherwise,
        replay.passed_over(),
    ));
    if replay.without_terms > 0 {
        let count = replay.without_terms;
        out.push_str(&format!(
            "  {count} of the same: who could answer is not on record, and not compared\n"
        ));
    }
    for (reason, group) in &replay.unjudgeable {
        out.push_str(&format!("  {} not judgeable: {reason}\n", group.count));
        group.examples.iter().for_each(|example| out.push_str(&example_line(example, style)));
    }
    out
}

fn example_line(example: &Example, style: Style) -> String {
    let (at, user) = (rfc3339_us(example.at_us), shown(&example.user, NAME));
    let (session, what) = (shown(&example.session, NAME), &example.what);
    let line = format!("    {at}  {user}  {session} seq {}  {what}", example.seq);
    format!("{}\n", style.dim(line.trim_end()))
}

fn answers(group: &Group) -> String {
    let said = Answer::ALL.iter().filter_map(|answer| {
        let count = group.answers.get(answer)?;
        Some(format!("{count} {}", answer.name()))
    });
    said.collect::<Vec<_>>().join(", ")
}
