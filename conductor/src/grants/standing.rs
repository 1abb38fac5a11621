//! What the rules in force say to a grant before it is given. Pure: facts, rules
//! and author in; what may be granted, or why it may not, out.

use super::{Access, Part, SHOWN as SHOWN_OF_PARTS};
use crate::{
    identity::{Caller, Role},
    policy::{Answerer, Effect, Judged, Policy, SubAction, Subject, may_not_answer, text::shown},
};

/// Characters of what is refused, where that is said.
const SHOWN: usize = 200;

/// What somebody wants to be granted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wanted {
    /// What would be done.
    pub action: SubAction,
    /// More than exactly this: a program with any further arguments, a directory with
    /// everything beneath it.
    pub is_wide: bool,
}

/// A part of a grant, and what the rules say to it without one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// What would be granted.
    pub part: Part,
    /// What the rules say now.
    pub decision: Effect,
    /// The rules behind that.
    pub rules: Vec<String>,
    /// Why, in words.
    pub reason: String,
}

/// Why something cannot be granted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refused {
    /// The rules deny it, so nobody can allow it.
    Denied(String),
    /// Somebody else is to answer where the rules ask.
    NotTheirs(String),
    /// What is wanted cannot be told apart from anything else, or is too much.
    Unclear(String),
}

/// Who would give a grant.
#[derive(Debug, Clone, Copy)]
pub struct Author<'a> {
    /// Who it is.
    pub caller: &'a Caller,
    /// Whether they drive the session that it is for.
    pub drives: bool,
}

impl Author<'_> {
    /// Why they may not answer what these terms are for, if so; `own` are those for whom it
    /// is asked.
    pub fn may_not_answer(
        &self,
        terms: &[std::sync::Arc<crate::policy::AskTerms>],
        own: &[&str],
    ) -> Option<String> {
        let roles: Vec<&str> = self.caller.roles.iter().map(|role: &Role| role.name()).collect();
        let who = Answerer {
            user: &self.caller.user,
            teams: &self.caller.teams,
            roles: &roles,
            drives: self.drives,
        };
        may_not_answer(terms, who, own)
    }
}

/// Judges what is wanted by the rules in force. What they deny nobody can allow, and what
/// they ask only those can allow in advance who could answer.
pub fn judge(
    policy: &Policy,
    subject: &Subject,
    wanted: &[Wanted],
    author: Author<'_>,
    own: &[&str],
) -> Result<Vec<Found>, Refused> {
    let actions: Vec<SubAction> = wanted.iter().map(|wanted| wanted.action.clone()).collect();
    let verdict = policy.evaluate(subject, &actions);
    let mut found = Vec::with_capacity(verdict.sub_actions.len());
    for judged in verdict.sub_actions {
        if judged.decision == Effect::Deny {
            return Err(Refused::Denied(denied(&judged)));
        }
        let is_wide = wanted.iter().any(|wanted| wanted.is_wide && wanted.action == judged.action);
        let part = part(judged.action, is_wide)?;
        if !part.is_shown_whole() {
            let text = shown(&part.to_string(), SHOWN);
            return Err(Refused::Unclear(format!(
                "`{text}` cannot be granted: a command or a path in it has more than {SHOWN_OF_PARTS} characters, \
                 which nobody is shown whole; it has to be answered each time"
            )));
        }
        // What a rule has found in the words of a command may have been wanted by itself, too.
        if !found.iter().any(|found: &Found| found.part == part) {
            found.push(Found { part, decision: judged.decision, rules: judged.rules, reason: judged.reason });
        }
    }
    if verdict.decision == Effect::Ask
        && let Some(why) = author.may_not_answer(&verdict.asks, own)
    {
        return Err(Refused::NotTheirs(format!(
            "only who may answer what is asked may allow it ahead of time, and {why}"
        )));
    }
    Ok(found)
}

fn denied(judged: &Judged) -> String {
    let rule = judged.rules.first().map(|rule| format!(" (rule `{rule}`)")).unwrap_or_default();
    format!(
        "the policy denies it{rule}, so no grant can allow it: {}: {}",
        Part::Exactly(judged.action.clone()),
        judged.reason
    )
}

/// What is granted of an action.
fn part(action: SubAction, is_wide: bool) -> Result<Part, Refused> {
    let unclear = |why: &str| {
        let what = Part::Exactly(action.clone()).to_string();
        Err(Refused::Unclear(format!("`{}` cannot be granted: {why}", shown(&what, SHOWN))))
    };
    if !action.is_exact() {
        return unclear("what it would do cannot be told exactly; it has to be answered each time");
    }
    if action.path().is_some_and(|fact| fact.resolved.is_none() || fact.trouble.is_some()) {
        return unclear("it cannot be told where the path leads");
    }
    if !is_wide {
        return Ok(Part::Exactly(action));
    }
    match &action {
        SubAction::Run(command) => match &command.file {
            Some(file) if !command.is_local => Ok(Part::Program {
                program: command.program.clone(),
                file: file.clone(),
                words: command.words.iter().map(|word| word.text.clone()).collect(),
                directory: command.cwd.clone(),
            }),
            Some(_) => {
                unclear("an agent may have made or changed this program; grant exactly what it is to do")
            }
            None => unclear("there is no such program on the service's host; give its path"),
        },
        SubAction::Read(fact) | SubAction::Write(fact) => match (&fact.resolved, &fact.root) {
            _ if fact.protected.is_some() || fact.secret => unclear("the place is protected; name each file"),
            (Some(directory), Some(_)) => {
                let access = if matches!(action, SubAction::Read(_)) { Access::Read } else { Access::Write };
                Ok(Part::Beneath { access, directory: directory.clone() })
            }
            _ => unclear("it is outside the directory that the grant is for"),
        },
        _ => unclear("only commands, and reading and writing, can be granted wider"),
    }
}
