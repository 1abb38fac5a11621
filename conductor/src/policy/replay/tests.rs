//! What counts as a change, and what it is put down to.

#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use super::*;
use crate::policy::{Command, PathFact, Subject, Word};

fn rules(text: &str) -> Policy {
    Policy::parse("candidate", text).unwrap()
}

fn rule(id: &str, effect: &str, what: &str) -> String {
    format!("[[rule]]\nid = '{id}'\neffect = '{effect}'\nreason = 'r'\n{what}\n")
}

/// A request as these rules judged it.
fn past(policy: &Policy, actions: &[SubAction]) -> Past {
    let standing =
        Standing { subject: Subject { user: "ann".into(), ..Subject::default() }, ..Standing::default() };
    let verdict = policy.judge(&standing, actions);
    Past {
        session: "s".into(),
        seq: 7,
        at_us: 1_794_830_400_000_000,
        user: "ann".into(),
        ruled: Some(verdict.decision.name().into()),
        is_whole: Some(true),
        subject: Some(serde_json::to_string(&standing).unwrap()),
        sub_actions: Some(serde_json::to_string(&verdict.sub_actions).unwrap()),
        terms: (verdict.decision == Effect::Ask).then(|| serde_json::to_string(&verdict.asks).unwrap()),
        answer: None,
    }
}

/// Rules that are about nothing here.
fn none() -> Policy {
    rules(&rule("none", "allow", "set_model = ['none']"))
}

fn tool(name: &str) -> SubAction {
    SubAction::Tool { name: name.into() }
}

fn replayed(past: &Past, policy: &Policy) -> Replay {
    let mut replay = Replay::default();
    replay.judge(past, &past.facts().unwrap(), policy);
    replay
}

#[test]
fn the_same_rules_change_nothing() {
    let policy = rules(&(rule("a", "allow", "tool = ['x']") + &rule("d", "deny", "tool = ['z']")));
    for actions in [vec![tool("x")], vec![tool("y")], vec![tool("x"), tool("z")], vec![]] {
        let replay = replayed(&past(&policy, &actions), &policy);
        assert_eq!((replay.same, replay.flips.len()), (1, 0), "{actions:?}");
    }
}

#[test]
fn what_gets_looser_is_put_down_to_what_was_strict() {
    let before = rules(&rule("known", "allow", "tool = ['x']"));
    let after = rules(&(rule("known", "allow", "tool = ['x']") + &rule("new", "allow", "tool = ['y']")));
    let mut asked = past(&before, &[tool("x"), tool("y")]);
    asked.answer = Some(Answer::Allowed);
    let replay = replayed(&asked, &after);
    assert_eq!((replay.same, replay.looser, replay.stricter), (0, 1, 0));
    let (flip, group) = replay.flips.first_key_value().unwrap();
    assert_eq!((flip.from, flip.to), (Effect::Ask, Effect::Allow));
    assert_eq!((flip.rule.as_deref(), flip.topic.as_str()), (Some("new"), "tool y"));
    assert_eq!(group.answers[&Answer::Allowed], 1);
    assert_eq!((group.examples[0].seq, group.examples[0].user.as_str()), (7, "ann"));
}

#[test]
fn what_gets_stricter_is_put_down_to_what_is_strict() {
    let before = rules(&rule("all", "allow", "tool = ['*']"));
    let after = rules(&(rule("all", "allow", "tool = ['*']") + &rule("no", "deny", "tool = ['y']")));
    let replay = replayed(&past(&before, &[tool("x"), tool("y")]), &after);
    let (flip, _) = replay.flips.first_key_value().unwrap();
    assert_eq!((flip.rule.as_deref(), flip.topic.as_str(), flip.to), (Some("no"), "tool y", Effect::Deny));
    assert_eq!(replay.stricter, 1);
    let gone = replayed(&past(&before, &[tool("x")]), &none());
    let (flip, _) = gone.flips.first_key_value().unwrap();
    assert_eq!((flip.rule.as_deref(), flip.to), (None, Effect::Ask));
}

#[test]
fn who_may_answer_is_part_of_what_is_asked() {
    let asking = |terms: &str| rules(&rule("a", "ask", &format!("tool = ['x']\n{terms}")));
    let usual = asking("");
    let leads = asking("ask = { approvers = { team = ['leads'] } }");
    let others = asking("ask = { self = false }");
    let counts = |past: &Past, policy: &Policy| {
        let replay = replayed(past, policy);
        [replay.same, replay.looser, replay.otherwise, replay.stricter]
    };
    let of = |policy: &Policy| past(policy, &[tool("x")]);
    for policy in [&usual, &leads, &others] {
        assert_eq!(counts(&of(policy), policy), [1, 0, 0, 0]);
    }
    assert_eq!(counts(&of(&others), &usual), [0, 1, 0, 0]);
    assert_eq!(counts(&of(&usual), &leads), [0, 0, 1, 0]);
    assert_eq!(counts(&of(&usual), &others), [0, 0, 0, 1]);
    // No rule asks like one that says nothing more.
    assert_eq!(counts(&of(&none()), &usual), [1, 0, 0, 0]);
    let replay = replayed(&of(&leads), &others);
    let (flip, _) = replay.flips.first_key_value().unwrap();
    let terms =
        ("team leads or the driver".to_owned(), "an approver or the driver, not their own".to_owned());
    assert_eq!((flip.way, &flip.terms), (Way::Otherwise, &Some(terms)));
    assert_eq!((flip.rule.as_deref(), flip.topic.as_str()), (Some("a"), "tool x"));
    // A record that does not say it is compared without.
    let older = Past { terms: None, ..of(&leads) };
    let replay = replayed(&older, &usual);
    assert_eq!((replay.same, replay.without_terms, replay.flips.len()), (1, 1, 0));
    let odd = Past { terms: Some("[{\"driver\":true}]".into()), ..of(&leads) };
    assert!(matches!(odd.facts().unwrap_err(), Unjudgeable::Unreadable(_)));
}

#[test]
fn what_rules_of_then_found_in_words_is_not_asked_again() {
    let cat = |words: &str| {
        rule("cat", "allow", &format!("run = {{ program = ['cat'], positionals = ['{words}'] }}"))
    };
    let before = rules(&(cat("read") + &rule("look", "allow", "read = {}")));
    let fact = PathFact {
        given: "a".into(),
        resolved: Some("/w/a".into()),
        root: Some("/w".into()),
        ..PathFact::default()
    };
    let command = SubAction::Run(Command {
        program: "cat".into(),
        file: Some("/bin/cat".into()),
        is_local: false,
        words: vec![Word { text: "a".into(), path: Some(fact), value: None }],
        cwd: "/w".into(),
        is_piped: false,
    });
    let past = past(&before, &[command]);
    assert_eq!((past.ruled.as_deref(), past.facts().unwrap().parts.len()), (Some("allow"), 2));
    let replay = replayed(&past, &rules(&cat("text")));
    assert_eq!((replay.same, replay.flips.len()), (1, 0));
}

#[test]
fn what_is_not_all_there_is_no_change() {
    let policy = rules(&rule("a", "allow", "read = {}"));
    let whole = past(&policy, &[SubAction::Read(PathFact::default())]);
    assert!(whole.facts().is_ok());
    let none = Past { ruled: None, sub_actions: None, subject: None, is_whole: None, ..whole.clone() };
    assert_eq!(none.facts().unwrap_err(), Unjudgeable::NoVerdict);
    let older = Past { ruled: None, subject: None, is_whole: None, ..whole.clone() };
    assert_eq!(older.facts().unwrap_err(), Unjudgeable::Older);
    let cut = Past { is_whole: Some(false), ..whole.clone() };
    assert_eq!(cut.facts().unwrap_err(), Unjudgeable::NotWhole);
    let newer = Past { sub_actions: Some("[{\"leap\":{}}]".into()), ..whole };
    let why = newer.facts().unwrap_err();
    assert!(matches!(why, Unjudgeable::Unreadable(_)), "{why:?}");
    let mut replay = Replay::default();
    replay.pass_over(&newer, &why);
    replay.pass_over(&cut, &Unjudgeable::NotWhole);
    assert_eq!((replay.passed_over(), replay.same, replay.flips.len()), (2, 0, 0));
}

#[test]
fn what_an_agent_makes_up_does_not_fill_the_memory() {
    let (before, after) = (none(), rules(&rule("all", "deny", "tool = ['*']")));
    let mut replay = Replay::default();
    for number in 0..MOST_GROUPS + 7 {
        let past = past(&before, &[tool(&format!("t{number}"))]);
        replay.judge(&past, &past.facts().unwrap(), &after);
    }
    assert_eq!(replay.flips.len(), MOST_GROUPS + 1);
    let rest = replay.flips.iter().find(|(flip, _)| flip.topic == OTHERS).unwrap().1;
    assert_eq!((rest.count, rest.examples.len()), (7, EXAMPLES));
}
