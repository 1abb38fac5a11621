//! A candidate policy over decisions on record: what would come out otherwise, and how.
//!
//! Compared is what the rules say, then and now; where they ask, also who may answer and for
//! how long. What people had granted and what they
//! answered changed what counted, and stands beside it. A record that does not hold all that
//! was judged is listed as such: it is neither the same nor a change.

use std::{cmp::Ordering, collections::BTreeMap, sync::Arc};

use serde::Serialize;

use super::{Answer, AskTerms, Effect, Policy, Recorded, Standing, SubAction, Verdict, approvers, record};

/// Changes that are told apart. Rules and commands are few; what an agent makes up is not, and
/// is counted together beyond this.
const MOST_GROUPS: usize = 10_000;

/// Requests that are shown of each.
const EXAMPLES: usize = 3;

/// Stands for what is counted together.
const OTHERS: &str = "(others)";

/// A decision as the record has it.
#[derive(Debug, Clone, Default)]
pub struct Past {
    /// The session.
    pub session: String,
    /// The request's frame.
    pub seq: i64,
    /// When it was asked.
    pub at_us: i64,
    /// Whose session it is.
    pub user: String,
    /// What the rules said.
    pub ruled: Option<String>,
    /// Whether what follows is all that was judged; nothing in old records.
    pub is_whole: Option<bool>,
    /// Who asked.
    pub subject: Option<String>,
    /// What would have been done.
    pub sub_actions: Option<String>,
    /// How the rules wanted it asked; nothing if they did not ask, or in old records.
    pub terms: Option<String>,
    /// What people said, if they were asked.
    pub answer: Option<Answer>,
}

/// What was judged.
#[derive(Debug, Clone)]
pub struct Facts {
    /// Who asked.
    pub standing: Standing,
    /// Every part of it, with what was said then.
    pub parts: Vec<Recorded>,
    /// What the rules said then.
    pub ruled: Effect,
    /// How they wanted it asked, if that is on record.
    pub terms: Option<Vec<Arc<AskTerms>>>,
}

/// Why a decision cannot be made again.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Unjudgeable {
    /// Nothing was judged, as far as the record tells.
    NoVerdict,
    /// It was recorded by a version that kept less.
    Older,
    /// It is too large for its row, or has characters that no database takes.
    NotWhole,
    /// What a repository or a user added to the rules is not on record.
    NoNarrowing,
    /// It is not in a form that this version reads: why.
    Unreadable(String),
}

impl Unjudgeable {
    /// In words, without what differs from one to the next.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NoVerdict => "no verdict is on record",
            Self::Older => "recorded before the facts were kept",
            Self::NotWhole => "too large or too odd to be kept as it was judged",
            Self::NoNarrowing => "what a repository or a user added to the rules is not on record",
            Self::Unreadable(_) => "recorded in a form that this version does not read",
        }
    }
}

impl Past {
    /// What was judged, if all of it is there.
    pub fn facts(&self) -> Result<Facts, Unjudgeable> {
        let Some(ruled) = &self.ruled else {
            // What was judged before these facts were kept has none of them.
            let is_judged = self.sub_actions.is_some();
            return Err(if is_judged { Unjudgeable::Older } else { Unjudgeable::NoVerdict });
        };
        let whole = self.is_whole.ok_or(Unjudgeable::Older)?;
        let (Some(subject), Some(parts), true) = (&self.subject, &self.sub_actions, whole) else {
            return Err(Unjudgeable::NotWhole);
        };
        Ok(Facts {
            ruled: effect(ruled).ok_or_else(|| Unjudgeable::Unreadable("an unknown verdict".to_owned()))?,
            standing: Standing::from_json(subject).map_err(Unjudgeable::Unreadable)?,
            parts: Recorded::list(parts).map_err(Unjudgeable::Unreadable)?,
            terms: self.terms.as_deref().map(record::terms).transpose().map_err(Unjudgeable::Unreadable)?,
        })
    }

    fn example(&self, what: String) -> Example {
        let (session, seq, at_us) = (self.session.clone(), self.seq, self.at_us);
        Example { session, seq, at_us, user: self.user.clone(), what }
    }
}

fn effect(name: &str) -> Option<Effect> {
    [Effect::Allow, Effect::Ask, Effect::Deny].into_iter().find(|effect| effect.name() == name)
}

/// A request that stands for others like it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Example {
    /// The session.
    pub session: String,
    /// The request's frame.
    pub seq: i64,
    /// When it was asked.
    pub at_us: i64,
    /// Whose session it is.
    pub user: String,
    /// What it would do, or what of it cannot be read.
    pub what: String,
}

/// Which way something changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// It comes out milder.
    Looser,
    /// Other people are asked: neither can be told.
    Otherwise,
    /// It comes out stricter.
    Stricter,
}

/// What changes are counted by.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Flip {
    /// Which way.
    pub way: Way,
    /// What the rules said then.
    pub from: Effect,
    /// What the candidate says.
    pub to: Effect,
    /// The candidate's rule behind that; none if no rule of it matches.
    pub rule: Option<String>,
    /// What it is about: the kind, and the command or name.
    pub topic: String,
    /// Who may answer, then and now, if only that changes.
    pub terms: Option<(String, String)>,
}

/// Requests that change in the same way.
#[derive(Debug, Clone, Default)]
pub struct Group {
    /// How many.
    pub count: u64,
    /// What people said to those that they were asked about.
    pub answers: BTreeMap<Answer, u64>,
    /// Some of them.
    pub examples: Vec<Example>,
}

impl Group {
    fn add(&mut self, answer: Option<Answer>, example: impl FnOnce() -> Example) {
        self.count += 1;
        if let Some(answer) = answer {
            *self.answers.entry(answer).or_default() += 1;
        }
        if self.examples.len() < EXAMPLES {
            self.examples.push(example());
        }
    }
}

/// What came of it.
#[derive(Debug, Clone, Default)]
pub struct Replay {
    /// Requests that come out as they did.
    pub same: u64,
    /// Those that come out milder.
    pub looser: u64,
    /// Those that come out stricter.
    pub stricter: u64,
    /// Those that are asked as before, but of others.
    pub otherwise: u64,
    /// Of the same, those whose record does not say who could answer.
    pub without_terms: u64,
    /// What changes.
    pub flips: BTreeMap<Flip, Group>,
    /// What cannot be judged, by the reason.
    pub unjudgeable: BTreeMap<&'static str, Group>,
}

impl Replay {
    /// Judges a request again; `policy` is the candidate, narrowed as it was then.
    pub fn judge(&mut self, past: &Past, facts: &Facts, policy: &Policy) {
        // What rules have found in words, the candidate finds for itself.
        let own = facts.parts.iter().filter(|part| !part.derived);
        let actions: Vec<SubAction> = own.map(|part| part.action.clone()).collect();
        let verdict = policy.judge(&facts.standing, &actions);
        let (from, to) = (facts.ruled, verdict.decision);
        let is_asked = (from, to) == (Effect::Ask, Effect::Ask);
        let then = facts.terms.as_ref().filter(|_| is_asked);
        let change = match (to.cmp(&from), then) {
            (Ordering::Equal, Some(then)) => approvers::compare(then, &verdict.asks),
            (Ordering::Equal, None) => {
                self.without_terms += u64::from(is_asked);
                Some(Ordering::Equal)
            }
            (other, _) => Some(other),
        };
        let (way, count) = match change {
            Some(Ordering::Equal) => {
                self.same += 1;
                return;
            }
            Some(Ordering::Less) => (Way::Looser, &mut self.looser),
            Some(Ordering::Greater) => (Way::Stricter, &mut self.stricter),
            None => (Way::Otherwise, &mut self.otherwise),
        };
        *count += 1;
        let terms = then.map(|then| (approvers::words(then), approvers::words(&verdict.asks)));
        let (action, rule) = behind(facts, &verdict);
        let topic = action.map_or_else(|| "nothing".to_owned(), SubAction::topic);
        let line = || action.map(SubAction::line).unwrap_or_default();
        let mut flip = Flip { way, from, to, rule, topic, terms };
        if self.flips.len() >= MOST_GROUPS && !self.flips.contains_key(&flip) {
            (flip.rule, flip.topic, flip.terms) = (None, OTHERS.to_owned(), None);
        }
        self.flips.entry(flip).or_default().add(past.answer, || past.example(line()));
    }

    /// A request that cannot be judged again.
    pub fn pass_over(&mut self, past: &Past, why: &Unjudgeable) {
        let detail = match why {
            Unjudgeable::Unreadable(detail) => detail.as_str(),
            _ => "",
        };
        let group = self.unjudgeable.entry(why.reason()).or_default();
        group.add(past.answer, || past.example(detail.to_owned()));
    }

    /// How many cannot be judged.
    pub fn passed_over(&self) -> u64 {
        self.unjudgeable.values().map(|group| group.count).sum()
    }
}

/// The part that makes the difference, and the candidate's rule behind it: what is strictest
/// now, or what was strictest then and is not any more.
fn behind<'a>(facts: &'a Facts, verdict: &'a Verdict) -> (Option<&'a SubAction>, Option<String>) {
    let now = &verdict.sub_actions;
    if verdict.decision >= facts.ruled {
        let strictest = now.iter().find(|judged| judged.decision == verdict.decision);
        return (strictest.map(|judged| &judged.action), verdict.rule.clone());
    }
    let was = facts.parts.iter().find(|part| part.decision == facts.ruled);
    let is = was.and_then(|was| now.iter().find(|judged| judged.action == was.action));
    let rule = is.map_or(verdict.rule.as_ref(), |judged| judged.rules.first());
    (was.map(|part| &part.action), rule.cloned())
}

#[cfg(test)]
mod tests;
