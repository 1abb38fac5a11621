//! Rules, and what they are held against.

use conductor::policy::{Action, Effect, Policy, SubAction};

use super::{is_odd, somebody, taken_apart};

/// What separates the two parts of the input.
const BETWEEN: &[u8] = b"\n---\n";

/// The most bytes of rules and of what is asked: more only takes longer.
const LONGEST: usize = 8 << 10;

/// Says no to everything.
const NOTHING: &str = "[[rule]]\nid = 'no'\neffect = 'deny'\nreason = 'no'\nanything = true\n";

/// A rule file, `---`, and an action as JSON. The strictest part of a request decides,
/// in whichever order the parts are; what was not understood is not allowed; a rule that
/// denies everything does.
pub fn matcher(data: &[u8]) {
    let Some(at) = memchr::memmem::find(data, BETWEEN) else { return };
    let (file, asked) = (&data[..at], &data[at + BETWEEN.len()..]);
    if file.len() + asked.len() > LONGEST {
        return;
    }
    let Ok(policy) = Policy::parse("rules.toml", &String::from_utf8_lossy(file)) else { return };
    let Some(mut actions) = actions(asked) else { return };
    let verdict = policy.evaluate(&somebody(), &actions);
    assert_eq!(verdict, policy.evaluate(&somebody(), &actions));
    assert!(!verdict.reason.is_empty());
    assert_eq!(verdict.sub_actions.iter().map(|each| each.decision).max(), Some(verdict.decision));
    for each in &verdict.sub_actions {
        assert!(each.decision != Effect::Allow || !is_odd(&each.action), "{each:?}");
        assert!(each.decision != Effect::Allow || !each.rules.is_empty(), "nothing allows {each:?}");
    }
    let words = |action: &SubAction| match action {
        SubAction::Run(command) => command.words.len(),
        _ => 0,
    };
    if actions.iter().map(words).sum::<usize>() < 1000 {
        let alone = |action| policy.evaluate(&somebody(), std::slice::from_ref(action)).decision;
        assert_eq!(actions.iter().map(alone).max(), Some(verdict.decision));
    }
    actions.reverse();
    assert_eq!(policy.evaluate(&somebody(), &actions).decision, verdict.decision);
    let nothing = policy.narrowed("repository", NOTHING);
    assert_eq!(nothing.evaluate(&somebody(), &actions).decision, Effect::Deny);
}

/// What is asked: an action as `policy explain` has it, or sub-actions as records have
/// them.
fn actions(asked: &[u8]) -> Option<Vec<SubAction>> {
    let value: serde_json::Value = serde_json::from_slice(asked).ok()?;
    match Action::from_json(&value) {
        Ok(action) => Some(taken_apart(&action)),
        Err(_) => serde_json::from_value(value).ok().filter(|actions: &Vec<_>| !actions.is_empty()),
    }
}
