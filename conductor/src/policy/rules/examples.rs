//! Examples in rules: what a rule is for and what it is not for, checked
//! wherever the rule is read.
//!
//! They are judged on a disk that is imagined, so that they mean the same on every
//! machine: a workspace at `/workspace`, every program in `/usr/bin`.

use std::path::Path;

use serde_json::Value;
use toml::Spanned;

use super::{
    Rule,
    file::{Problem, RuleShape, Source, escaped},
};
use crate::policy::{Action, Effect, Ground, Imagined, SubAction, normalise};

/// Where examples happen.
const WORKSPACE: &str = "/workspace";

/// What an example would do.
pub(super) fn sub_actions(example: &Value) -> Result<Vec<SubAction>, String> {
    let action = Action::from_json(example)?;
    let resolver = Imagined { roots: vec![WORKSPACE.into()] };
    Ok(normalise(&action, &Ground { cwd: Path::new(WORKSPACE), resolver: &resolver }))
}

/// The first example that the rule does not hold for.
pub(super) fn check(source: Source<'_>, shape: &RuleShape, rule: &Rule) -> Result<(), Problem> {
    for (examples, expected) in [(&shape.matching, true), (&shape.not_match, false)] {
        for example in examples {
            let refuse = |what: String, hint: &str| Problem {
                line: source.line(&example.span()),
                rule: Some(rule.id.clone()),
                what: format!("{what}: {}", shown(example)),
                hint: hint.to_owned(),
            };
            let actions = sub_actions(example.get_ref()).map_err(|why| {
                refuse(format!("an example cannot be read ({why})"), "write it as `policy explain` takes it")
            })?;
            if matches(rule, &actions, expected) == expected {
                continue;
            }
            return Err(match expected {
                true => refuse(
                    "the rule does not match its example".into(),
                    "widen the rule, or correct the example",
                ),
                false => refuse(
                    "the rule matches what it is not for".into(),
                    "narrow the rule, or remove the example",
                ),
            });
        }
    }
    Ok(())
}

/// Whether the rule is about an example. What a rule does not match it does not allow as a
/// whole, and what a stricter rule does not match it does not touch at all.
fn matches(rule: &Rule, actions: &[SubAction], expected: bool) -> bool {
    let mut each = actions.iter().map(|action| rule.matches(action).is_some());
    if rule.effect == Effect::Allow && !expected { each.all(|is| is) } else { each.any(|is| is) }
}

fn shown(example: &Spanned<Value>) -> String {
    example.get_ref().to_string().chars().take(200).flat_map(escaped).collect()
}
