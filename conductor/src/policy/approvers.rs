//! Who may answer what a rule leaves to people, and how long it waits for them.
//!
//! Several rules may ask about one request. Then each of them has to be content with
//! who answers, and the shortest wait counts: rules that are added only narrow.

use std::{borrow::Cow, cmp::Ordering, sync::Arc, time::Duration};

use serde::{Deserialize, Serialize};

use crate::clock;

/// What one rule says of how it asks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AskTerms {
    /// Who may answer besides whoever drives the session; those whose role lets them
    /// answer, if it names nobody.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approvers: Option<Approvers>,
    /// Whoever drives the session is asked, and may answer, unless nobody may for themselves.
    pub driver: bool,
    /// Whoever the request is made for may answer: who prompted, and whose session it is.
    #[serde(rename = "self")]
    pub is_own_allowed: bool,
    /// How long it waits; then it is denied.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "in_ms", rename = "timeoutMs")]
    pub timeout: Option<Duration>,
}

/// People, by what they are called, where they belong and what they may do.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Approvers {
    /// Names of users.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub user: Vec<String>,
    /// Names of teams.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub team: Vec<String>,
    /// Names of roles.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub role: Vec<String>,
}

/// Roles that answer where a rule names nobody.
const ANSWERING: [&str; 2] = ["approver", "admin"];

/// Somebody who would answer.
#[derive(Debug, Clone, Copy)]
pub struct Answerer<'a> {
    /// Who it is.
    pub user: &'a str,
    /// Their teams.
    pub teams: &'a [String],
    /// Their roles.
    pub roles: &'a [&'a str],
    /// Whether they drive the session.
    pub drives: bool,
}

impl Default for AskTerms {
    fn default() -> Self {
        Self { approvers: None, driver: true, is_own_allowed: true, timeout: None }
    }
}

impl Approvers {
    fn has(&self, who: Answerer<'_>) -> bool {
        self.user.iter().any(|user| user == who.user)
            || self.team.iter().any(|team| who.teams.contains(team))
            || self.role.iter().any(|role| who.roles.contains(&role.as_str()))
    }

    /// Whether everybody whom the other names is among these.
    fn covers(&self, other: &Self) -> bool {
        let covers = |own: &[String], other: &[String]| other.iter().all(|name| own.contains(name));
        covers(&self.user, &other.user) && covers(&self.team, &other.team) && covers(&self.role, &other.role)
    }

    /// Whom it names, in words.
    fn people(&self) -> String {
        let named = |what: &'static str, names: &[String]| -> Vec<String> {
            names.iter().map(|name| format!("{what} {name}")).collect()
        };
        let all = [named("", &self.user), named("team", &self.team), named("role", &self.role)].concat();
        all.iter().map(|name| name.trim()).collect::<Vec<_>>().join(", ")
    }
}

impl AskTerms {
    /// Who may answer besides whoever drives the session.
    fn answering(&self) -> Cow<'_, Approvers> {
        match &self.approvers {
            Some(approvers) => Cow::Borrowed(approvers),
            None => {
                let role = ANSWERING.map(str::to_owned).to_vec();
                Cow::Owned(Approvers { role, ..Approvers::default() })
            }
        }
    }

    /// Whether everybody who may answer by the other may by this.
    fn demands_no_more_than(&self, other: &Self) -> bool {
        self.driver >= other.driver
            && self.is_own_allowed >= other.is_own_allowed
            && self.answering().covers(&other.answering())
    }

    fn refusal(&self, who: Answerer<'_>, own: &[&str]) -> Option<String> {
        if !self.is_own_allowed && own.contains(&who.user) {
            return Some("the rule lets nobody answer what they have asked for themselves".into());
        }
        // Whoever asks chooses with whom they share their session.
        if self.driver && self.is_own_allowed && who.drives {
            return None;
        }
        match &self.approvers {
            Some(approvers) if approvers.has(who) => None,
            Some(approvers) => Some(format!("the rule leaves it to {}", approvers.people())),
            None if ANSWERING.iter().any(|role| who.roles.contains(role)) => None,
            None => Some("it is for approvers and administrators".into()),
        }
    }
}

/// Why somebody may not answer what these terms are for, if so. `own` are those for whom
/// the request is made: who prompted, and whose session it is.
pub fn may_not_answer(terms: &[Arc<AskTerms>], who: Answerer<'_>, own: &[&str]) -> Option<String> {
    match terms {
        [] => AskTerms::default().refusal(who, own),
        terms => terms.iter().find_map(|terms| terms.refusal(who, own)),
    }
}

/// Whether whoever drives the session is asked.
pub fn asks_driver(terms: &[Arc<AskTerms>]) -> bool {
    terms.iter().all(|terms| terms.driver)
}

/// How long it waits, if a rule says so.
pub fn timeout(terms: &[Arc<AskTerms>]) -> Option<Duration> {
    terms.iter().filter_map(|terms| terms.timeout).min()
}

/// Who is to answer, in words.
pub fn people(terms: &[Arc<AskTerms>]) -> String {
    let mut named: Vec<String> =
        terms.iter().filter_map(|terms| terms.approvers.as_ref().map(Approvers::people)).collect();
    named.dedup();
    match named.is_empty() {
        true => "an approver".into(),
        false => named.join(" and "),
    }
}

/// Who may answer and for how long, in words.
pub fn words(terms: &[Arc<AskTerms>]) -> String {
    let mut words = people(terms);
    if asks_driver(terms) {
        words.push_str(" or the driver");
    }
    if terms.iter().any(|terms| !terms.is_own_allowed) {
        words.push_str(", not their own");
    }
    if let Some(timeout) = timeout(terms) {
        words.push_str(&format!(", within {}", clock::span(timeout)));
    }
    words
}

/// How terms of now compare with those of then: less is looser, more is stricter, and none if
/// they only differ. The shorter wait is the stricter one.
pub fn compare(then: &[Arc<AskTerms>], now: &[Arc<AskTerms>]) -> Option<Ordering> {
    match (is_no_stricter(now, then), is_no_stricter(then, now)) {
        (true, true) => Some(Ordering::Equal),
        (true, false) => Some(Ordering::Less),
        (false, true) => Some(Ordering::Greater),
        (false, false) => None,
    }
}

/// Whether each of these demands no more than one of the others does, all of which hold.
fn is_no_stricter(these: &[Arc<AskTerms>], others: &[Arc<AskTerms>]) -> bool {
    let usual = [Arc::new(AskTerms::default())];
    let or_usual = |terms| if <[Arc<AskTerms>]>::is_empty(terms) { &usual } else { terms };
    let waits = |terms| timeout(terms).unwrap_or(Duration::MAX);
    let is_met = |one: &Arc<AskTerms>| or_usual(others).iter().any(|other| one.demands_no_more_than(other));
    waits(these) >= waits(others) && or_usual(these).iter().all(is_met)
}

/// Times as milliseconds.
mod in_ms {
    use std::time::Duration;

    use serde::{Deserialize as _, Deserializer, Serialize as _, Serializer};

    pub(super) fn serialize<S: Serializer>(time: &Option<Duration>, to: S) -> Result<S::Ok, S::Error> {
        time.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX)).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
        Ok(Option::<u64>::deserialize(from)?.map(Duration::from_millis))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn who<'a>(user: &'a str, roles: &'a [&'a str], drives: bool) -> Answerer<'a> {
        Answerer { user, teams: &[], roles, drives }
    }

    fn terms(change: impl FnOnce(&mut AskTerms)) -> Vec<Arc<AskTerms>> {
        let mut terms = AskTerms::default();
        change(&mut terms);
        vec![terms.into()]
    }

    #[test]
    fn without_terms_drivers_and_approvers_answer() {
        assert_eq!(may_not_answer(&[], who("ann", &["developer"], true), &["ann"]), None);
        assert_eq!(may_not_answer(&[], who("ann", &["approver"], false), &[]), None);
        assert!(may_not_answer(&[], who("ann", &["developer"], false), &[]).is_some());
        assert!(may_not_answer(&[], who("ann", &["auditor"], false), &[]).is_some());
    }

    #[test]
    fn whoever_is_named_answers_and_the_driver_unless_excluded() {
        let named = Approvers { user: vec!["lea".into()], team: vec!["leads".into()], role: Vec::new() };
        let both = terms(|terms| terms.approvers = Some(named.clone()));
        let teams = ["leads".to_owned()];
        assert_eq!(may_not_answer(&both, who("lea", &["developer"], false), &[]), None);
        assert_eq!(may_not_answer(&both, Answerer { teams: &teams, ..who("max", &[], false) }, &[]), None);
        assert_eq!(may_not_answer(&both, who("ann", &["developer"], true), &["ann"]), None);
        assert!(may_not_answer(&both, who("eve", &["approver"], false), &[]).is_some());
        let alone = terms(|terms| (terms.approvers, terms.driver) = (Some(named), false));
        assert!(may_not_answer(&alone, who("ann", &["developer"], true), &["ann"]).is_some());
        assert!(!asks_driver(&alone) && asks_driver(&both) && asks_driver(&[]));
    }

    #[test]
    fn nobody_answers_their_own_where_a_rule_says_so() {
        let strict = terms(|terms| terms.is_own_allowed = false);
        assert!(may_not_answer(&strict, who("ann", &["admin"], true), &["ann"]).is_some());
        assert!(may_not_answer(&strict, who("bob", &["developer"], true), &["ann"]).is_some());
        assert_eq!(may_not_answer(&strict, who("eve", &["approver"], false), &["ann"]), None);
    }

    #[test]
    fn fewer_demands_are_looser() {
        let named = |names: &[&str]| {
            let user = names.iter().map(|name| (*name).to_owned()).collect();
            terms(|terms| terms.approvers = Some(Approvers { user, ..Approvers::default() }))
        };
        let usual = terms(|_| ());
        let role = ANSWERING.map(str::to_owned).to_vec();
        let spelt_out = terms(|terms| terms.approvers = Some(Approvers { role, ..Approvers::default() }));
        let undriven = terms(|terms| terms.driver = false);
        let others = terms(|terms| terms.is_own_allowed = false);
        let minute = terms(|terms| terms.timeout = Some(Duration::from_secs(60)));
        let hour = terms(|terms| terms.timeout = Some(Duration::from_secs(3600)));
        let two = [others.clone(), undriven.clone()].concat();
        let (less, more, equal) = (Some(Ordering::Less), Some(Ordering::Greater), Some(Ordering::Equal));
        for (then, now, wanted) in [
            (&Vec::new(), &usual, equal),
            (&usual, &spelt_out, equal),
            (&usual, &undriven, more),
            (&others, &Vec::new(), less),
            (&named(&["ann"]), &named(&["ann", "bob"]), less),
            (&named(&["ann", "bob"]), &named(&["ann"]), more),
            (&named(&["ann"]), &named(&["bob"]), None),
            (&usual, &named(&["ann"]), None),
            (&usual, &hour, more),
            (&minute, &hour, less),
            (&others, &two, more),
            (&two, &undriven, less),
            (&undriven, &others, None),
            (&undriven, &minute, None),
        ] {
            assert_eq!(compare(then, now), wanted, "{} → {}", words(then), words(now));
        }
    }

    #[test]
    fn words_say_who_answers_and_for_how_long_it_waits() {
        assert_eq!(words(&[]), "an approver or the driver");
        let others = terms(|terms| {
            (terms.driver, terms.is_own_allowed) = (false, false);
            terms.timeout = Some(Duration::from_secs(1800));
        });
        assert_eq!(words(&others), "an approver, not their own, within 30m");
    }

    #[test]
    fn every_rule_has_to_be_content() {
        let one = terms(|terms| terms.timeout = Some(Duration::from_secs(60)));
        let other =
            terms(|terms| (terms.is_own_allowed, terms.timeout) = (false, Some(Duration::from_secs(9))));
        let both = [one, other].concat();
        assert!(may_not_answer(&both, who("ann", &["admin"], true), &["ann"]).is_some());
        assert_eq!(timeout(&both), Some(Duration::from_secs(9)));
    }
}
