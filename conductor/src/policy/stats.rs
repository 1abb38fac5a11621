//! What people were asked, counted: how often, how long it waited, what they said.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use super::{Answer, Effect, Recorded, SubAction};

/// Rules, commands and users that are told apart; what an agent makes up is counted together
/// beyond this.
const MOST_GROUPS: usize = 10_000;

/// People, and rules, that are told apart in one group.
const MOST_NAMES: usize = 1000;

/// Stands for what is counted together.
const OTHERS: &str = "(others)";

/// Stands for a rule where none matched.
pub const NO_RULE: &str = "(no rule)";

/// With fewer answers than this there is nothing to learn from them.
const ENOUGH: u64 = 3;

/// A question that people were asked.
#[derive(Debug, Clone)]
pub struct Asked {
    /// What it is counted under.
    pub key: String,
    /// What became of it.
    pub answer: Answer,
    /// How long it waited for that, in microseconds.
    pub waited_us: Option<i64>,
    /// Who answered.
    pub by: Option<String>,
    /// The rule that alone made it a question; [`NO_RULE`] if it only lacked one.
    pub only_by: Option<String>,
}

/// What made a request a question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cause {
    /// The one topic of all parts that made the rules ask.
    pub topic: String,
    /// What alone would have to be another rule for nobody to be asked; none if that would
    /// take more than one, or no rule can do it.
    pub only_by: Option<String>,
}

impl Cause {
    /// Reads it from the parts of a request.
    pub fn of(sub_actions: Option<&str>) -> Self {
        let Some(Ok(parts)) = sub_actions.map(Recorded::list) else {
            return Self { topic: "(unreadable)".to_owned(), only_by: None };
        };
        let asked: Vec<&Recorded> = parts.iter().filter(|part| part.decision == Effect::Ask).collect();
        let topics: BTreeSet<String> = asked.iter().map(|part| part.action.topic()).collect();
        let topic = match topics.len() {
            0 => "unknown".to_owned(),
            1 => topics.into_iter().next().unwrap_or_default(),
            _ => "(several at once)".to_owned(),
        };
        let rules: BTreeSet<&[String]> = asked.iter().map(|part| part.rules.as_slice()).collect();
        // What was not understood is never allowed, whatever rules say.
        let is_known = !asked.iter().any(|part| matches!(part.action, SubAction::Unknown { .. }));
        let only_by = match rules.into_iter().collect::<Vec<_>>().as_slice() {
            [[]] if is_known => Some(NO_RULE.to_owned()),
            [[rule]] if is_known => Some(rule.clone()),
            _ => None,
        };
        Self { topic, only_by }
    }
}

/// Questions of one kind.
#[derive(Debug, Clone, Default)]
pub struct Tally {
    /// How many.
    pub asked: u64,
    /// What became of them.
    pub answers: BTreeMap<Answer, u64>,
    /// Who answered how many.
    pub by: BTreeMap<String, u64>,
    /// How many of them one rule alone, or the lack of one, made a question.
    pub only_by: BTreeMap<String, u64>,
    waits: Vec<i64>,
}

/// Counts a name, and those beyond a number together.
fn count(names: &mut BTreeMap<String, u64>, name: &str, most: usize) {
    let is_known = names.len() < most || names.contains_key(name);
    *names.entry(if is_known { name } else { OTHERS }.to_owned()).or_default() += 1;
}

impl Tally {
    fn add(&mut self, asked: &Asked) {
        self.asked += 1;
        *self.answers.entry(asked.answer).or_default() += 1;
        self.waits.extend(asked.waited_us);
        asked.by.iter().for_each(|by| count(&mut self.by, by, MOST_NAMES));
        asked.only_by.iter().for_each(|rule| count(&mut self.only_by, rule, MOST_NAMES));
    }

    /// How many had this answer.
    pub fn count(&self, answer: Answer) -> u64 {
        self.answers.get(&answer).copied().unwrap_or_default()
    }

    /// How long so many of a hundred waited at most, in microseconds. A wait that really was
    /// one, and the same as in the view `waiting_times`.
    pub fn percentile(&self, percent: usize) -> Option<i64> {
        let rank = (self.waits.len() * percent).div_ceil(100).max(1);
        self.waits.get(rank - 1).copied()
    }

    /// Whether every one of them was allowed, and there were enough to say so.
    pub fn is_always_allowed(&self) -> bool {
        self.asked >= ENOUGH && self.count(Answer::Allowed) == self.asked
    }

    /// How many would not have been asked if this rule, or a new one, had allowed them: as far
    /// as people would have, too.
    pub fn spared_by(&self, rule: &str) -> Option<u64> {
        let spared = self.only_by.get(rule).copied().filter(|spared| *spared >= ENOUGH);
        spared.filter(|_| self.is_always_allowed())
    }
}

/// All questions.
#[derive(Debug, Clone, Default)]
pub struct Stats {
    groups: BTreeMap<String, Tally>,
    /// All of them together.
    pub all: Tally,
}

impl Stats {
    /// Counts one.
    pub fn add(&mut self, asked: &Asked) {
        self.all.add(asked);
        let is_known = self.groups.len() < MOST_GROUPS || self.groups.contains_key(&asked.key);
        let key = if is_known { asked.key.clone() } else { OTHERS.to_owned() };
        self.groups.entry(key).or_default().add(asked);
    }

    /// What was asked most, first.
    pub fn finish(mut self) -> (Vec<(String, Tally)>, Tally) {
        let mut groups: Vec<(String, Tally)> = self.groups.into_iter().collect();
        groups.sort_by_key(|(_, tally)| Reverse(tally.asked));
        groups.iter_mut().for_each(|(_, tally)| tally.waits.sort_unstable());
        self.all.waits.sort_unstable();
        (groups, self.all)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

    use super::*;

    fn asked(key: &str, answer: Answer, waited_us: Option<i64>) -> Asked {
        let by = waited_us.map(|_| "ann".into());
        Asked { key: key.into(), answer, waited_us, by, only_by: Some("r".into()) }
    }

    #[test]
    fn waits_are_those_that_were() {
        let mut stats = Stats::default();
        for waited in (1..=20).rev() {
            stats.add(&asked("a", Answer::Allowed, Some(waited)));
        }
        stats.add(&asked("b", Answer::Open, None));
        let (groups, all) = stats.finish();
        assert_eq!(groups.iter().map(|(key, _)| key.as_str()).collect::<Vec<_>>(), ["a", "b"]);
        let tally = &groups[0].1;
        assert_eq!([50, 95, 100].map(|percent| tally.percentile(percent)), [Some(10), Some(19), Some(20)]);
        assert_eq!(groups[1].1.percentile(50), None);
        assert!(tally.is_always_allowed() && !all.is_always_allowed());
        assert_eq!((tally.spared_by("r"), tally.spared_by("s"), all.spared_by("r")), (Some(20), None, None));
        assert_eq!((all.asked, all.by["ann"]), (21, 20));
    }

    #[test]
    fn a_hint_needs_enough_answers_that_agree() {
        let mut stats = Stats::default();
        stats.add(&asked("few", Answer::Allowed, Some(1)));
        for answer in [Answer::Allowed, Answer::Allowed, Answer::Allowed, Answer::Rejected] {
            stats.add(&asked("mixed", answer, Some(1)));
        }
        assert!(stats.finish().0.iter().all(|(_, tally)| !tally.is_always_allowed()));
    }

    #[test]
    fn a_question_is_put_down_to_one_rule_only_if_that_is_all_it_takes() {
        let part = |name: &str, decision: &str, rules: &str| {
            format!(r#"{{"tool":{{"name":"{name}"}},"decision":"{decision}","rules":[{rules}],"reason":""}}"#)
        };
        let unknown = r#"{"unknown":{"what":"x"},"decision":"ask","rules":[],"reason":""}"#.to_owned();
        let cause = |parts: &[String]| {
            let Cause { topic, only_by } = Cause::of(Some(&format!("[{}]", parts.join(","))));
            (topic, only_by)
        };
        let is = |topic: &str, rule: Option<&str>| (topic.to_owned(), rule.map(str::to_owned));
        let (ask, allow) = (part("a", "ask", r#""r""#), part("b", "allow", r#""s""#));
        assert_eq!(cause(&[ask.clone(), allow]), is("tool a", Some("r")));
        assert_eq!(cause(&[part("a", "ask", "")]), is("tool a", Some(NO_RULE)));
        assert_eq!(cause(&[part("a", "ask", r#""r","s""#)]), is("tool a", None));
        assert_eq!(cause(&[ask.clone(), part("a", "ask", "")]), is("tool a", None));
        assert_eq!(cause(&[ask, part("b", "ask", r#""r""#)]), is("(several at once)", Some("r")));
        assert_eq!(cause(&[unknown]), is("unknown", None));
        assert_eq!(Cause::of(Some("[1]")).topic, "(unreadable)");
    }

    #[test]
    fn names_without_end_are_counted_together() {
        let mut stats = Stats::default();
        for number in 0..MOST_GROUPS + 5 {
            stats.add(&asked(&format!("{number:06}"), Answer::Open, None));
        }
        let (groups, _) = stats.finish();
        assert_eq!(groups.len(), MOST_GROUPS + 1);
        assert_eq!(groups[0].0, OTHERS);
        assert_eq!(groups[0].1.asked, 5);
    }
}
