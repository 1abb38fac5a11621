//! What the rules say. Pure: the same facts and rules, the same verdict.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::Arc,
};

use serde::{Deserialize, Serialize};

use super::{
    AskTerms, Command, Effect, Policy, SubAction,
    rules::{Found, Kind, Matched, Rule, Sight},
    text, urls,
};

/// The most words that the commands of one request may have for any of them to be allowed. Each
/// may be a path to be judged, and people read shorter lines.
const MOST_WORDS: usize = 1000;

/// Reasons that are given at once.
const MOST_REASONS: usize = 3;

/// Characters of a name or a line in a reason.
const SHOWN: usize = 80;

/// Who asks, and where.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Subject {
    /// Whoever prompts.
    pub user: String,
    /// Their teams.
    pub teams: Vec<String>,
    /// Their role; empty if it is not known.
    pub role: String,
    /// The agent.
    pub agent: String,
    /// The session's mode, if it has one.
    pub mode: Option<String>,
    /// The session's model, if it is known.
    pub model: Option<String>,
    /// The session's directory.
    pub cwd: PathBuf,
}

/// What the rules say about one sub-action.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Judged {
    /// What would be done.
    #[serde(flatten)]
    pub action: SubAction,
    /// It was found by a rule in the words of the command before it; other rules may not find it.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub derived: bool,
    /// The outcome.
    pub decision: Effect,
    /// Ids of the rules behind it; none if no rule matched.
    pub rules: Vec<String>,
    /// Why, in words.
    pub reason: String,
}

/// What the rules say about all of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Verdict {
    /// The strictest outcome.
    pub decision: Effect,
    /// The rule that decided; none if no rule matched.
    pub rule: Option<String>,
    /// All rules that matched.
    pub rules: Vec<String>,
    /// Why, in words, for the agent and for people.
    pub reason: String,
    /// Every sub-action with its own outcome; those that a rule has found in the words of a
    /// command follow it.
    pub sub_actions: Vec<Judged>,
    /// How the rules that ask want it asked; none if they do not say.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub asks: Vec<Arc<AskTerms>>,
}

impl Verdict {
    /// The same where nobody can be asked: what would be asked is denied.
    #[must_use]
    pub fn non_interactive(self) -> Self {
        if self.decision != Effect::Ask {
            return self;
        }
        let reason = format!("{} (it would be asked about, but nobody can be asked here)", self.reason);
        Self { decision: Effect::Deny, reason, ..self }
    }

    /// This and another verdict about the same sub-actions: of each the stricter outcome, and
    /// whatever only the other has found in words. Whoever answers has to be content with both.
    #[must_use]
    pub(super) fn and(mut self, mut other: Self) -> Self {
        let mut all: Vec<Judged> = Vec::with_capacity(self.sub_actions.len());
        let mut own = self.sub_actions.into_iter().peekable();
        let mut others = other.sub_actions.into_iter().peekable();
        while let Some(part) = own.next() {
            let from = all.len();
            all.push(part);
            all.extend(std::iter::from_fn(|| own.next_if(|part| part.derived)));
            let first = others.next();
            let derived = std::iter::from_fn(|| others.next_if(|part| part.derived));
            for part in first.into_iter().chain(derived) {
                let is_same = |it: &&mut Judged| it.derived == part.derived && it.action == part.action;
                match all.iter_mut().skip(from).find(is_same) {
                    Some(known) if known.decision < part.decision => *known = part,
                    Some(_) => {}
                    None => all.push(part),
                }
            }
        }
        other.rules.retain(|rule| !self.rules.contains(rule));
        self.rules.append(&mut other.rules);
        // Where nobody is named, it is asked in the usual way.
        if self.asks.is_empty() != other.asks.is_empty() {
            self.asks.push(Arc::new(AskTerms::default()));
        }
        other.asks.retain(|terms| !self.asks.contains(terms));
        self.asks.append(&mut other.asks);
        verdict(all, self.rules, self.asks)
    }
}

impl Policy {
    /// Judges sub-actions.
    pub fn evaluate(&self, subject: &Subject, actions: &[SubAction]) -> Verdict {
        let words = |action: &SubAction| match action {
            SubAction::Run(command) => command.words.len(),
            _ => 0,
        };
        let mut judge = Judge {
            policy: self,
            subject,
            is_for: vec![None; self.rule_count()],
            matched: BTreeSet::new(),
            has_many_words: actions.iter().map(words).sum::<usize>() > MOST_WORDS,
        };
        let mut judged = Vec::with_capacity(actions.len());
        for action in actions {
            judge.judge(action, &mut judged);
        }
        let rules = judge.matched_ids();
        let asking = judged.iter().filter(|each| each.decision == Effect::Ask);
        let asks = self.ask_terms(asking.map(|each| each.rules.as_slice()));
        verdict(judged, rules, asks)
    }
}

/// The strictest of all counts.
fn verdict(judged: Vec<Judged>, rules: Vec<String>, asks: Vec<Arc<AskTerms>>) -> Verdict {
    // A request that would do nothing was not understood.
    let decision = judged.iter().map(|each| each.decision).max().unwrap_or(Effect::Ask);
    let strictest = || judged.iter().filter(|each| each.decision == decision);
    let by_rule = strictest().filter(|each| !each.rules.is_empty());
    let by_none = strictest().filter(|each| each.rules.is_empty());
    let mut reasons: Vec<&str> = Vec::new();
    for each in by_rule.chain(by_none) {
        if !reasons.contains(&each.reason.as_str()) && reasons.len() <= MOST_REASONS {
            reasons.push(&each.reason);
        }
    }
    let mut reason = reasons.iter().take(MOST_REASONS).copied().collect::<Vec<_>>().join("; ");
    if reasons.len() > MOST_REASONS {
        reason.push_str("; and more");
    }
    if reason.is_empty() {
        "it could not be told what would happen".clone_into(&mut reason);
    }
    let rule = strictest().find_map(|each| each.rules.first().cloned());
    Verdict { decision, rule, rules, reason, sub_actions: judged, asks }
}

struct Judge<'a> {
    policy: &'a Policy,
    subject: &'a Subject,
    /// Whether a rule is for the subject, as far as somebody wanted to know.
    is_for: Vec<Option<bool>>,
    /// Which rules have matched anything.
    matched: BTreeSet<usize>,
    has_many_words: bool,
}

/// Sub-actions that are found in the words of one command, judged.
type Cache = BTreeMap<Found, Judged>;

impl<'a> Judge<'a> {
    fn judge(&mut self, action: &SubAction, judged: &mut Vec<Judged>) {
        let mut matching = self.matching(action);
        let own = matching.iter().map(|(rule, _)| rule.effect).max();
        let mut derived = Vec::new();
        if let SubAction::Run(command) = action {
            if own == Some(Effect::Allow) && self.has_many_words {
                let reason = format!("the commands have more than {MOST_WORDS} words");
                judged.push(Judged {
                    action: action.clone(),
                    derived: false,
                    decision: Effect::Ask,
                    rules: Vec::new(),
                    reason,
                });
                return;
            }
            if own != Some(Effect::Deny) && !self.has_many_words {
                derived = self.derive(command, &mut matching);
            }
        }
        let decision = own.unwrap_or(Effect::Ask);
        let behind: Vec<&Rule> =
            matching.iter().map(|(rule, _)| *rule).filter(|rule| rule.effect == decision).collect();
        let reason = match behind.as_slice() {
            [] => unmatched(action),
            rules => reasons(rules),
        };
        let rules = behind.iter().map(|rule| rule.id.clone()).collect();
        judged.push(Judged { action: action.clone(), derived: false, decision, rules, reason });
        judged.extend(derived);
    }

    fn is_for(&mut self, at: usize, rule: &Rule) -> bool {
        let known = self.is_for.get(at).copied().flatten();
        let is_for = known.unwrap_or_else(|| rule.is_for(self.subject));
        if let Some(known) = self.is_for.get_mut(at) {
            *known = Some(is_for);
        }
        is_for
    }

    /// The rules that match a sub-action, by id.
    fn matching(&mut self, action: &SubAction) -> Vec<(&'a Rule, Matched)> {
        let mut all = Vec::new();
        let sight = action.path().map(Sight::of);
        for (at, rule) in self.policy.candidates(action, sight.as_ref()) {
            // Most rules are about something else, which is quicker to see than for whom they are.
            let Some(how) = rule.matches_seen(action, sight.as_ref()) else { continue };
            if self.is_for(at, rule) && rule.is_there(self.subject, action) {
                self.matched.insert(at);
                all.push((at, rule, how));
            }
        }
        all.sort_by_key(|(at, ..)| *at);
        all.into_iter().map(|(_, rule, how)| (rule, how)).collect()
    }

    /// What a command's words would do, in the mildest way to read them. Allowing rules that
    /// read them in another way are not behind the outcome, and leave.
    fn derive(&mut self, command: &Command, matching: &mut Vec<(&'a Rule, Matched)>) -> Vec<Judged> {
        let mut cache = Cache::new();
        let mut mildest: Option<(Effect, Vec<Found>)> = None;
        let mut mildest_known: Option<(Effect, Vec<Found>)> = None;
        let mut outcomes = Vec::with_capacity(matching.len());
        for (rule, how) in matching.iter() {
            let mut outcome = None;
            if let (Effect::Allow, Matched::Words(readings)) = (rule.effect, how) {
                for reading in readings {
                    let effects = reading.iter().map(|found| self.judge_word(command, *found, &mut cache));
                    let effect = effects.max().unwrap_or(Effect::Allow);
                    outcome = Some(outcome.map_or(effect, |before: Effect| before.min(effect)));
                    if mildest.as_ref().is_none_or(|(before, _)| effect < *before) {
                        mildest = Some((effect, reading.clone()));
                    }
                    let is_milder = mildest_known.as_ref().is_none_or(|(before, _)| effect < *before);
                    if rule.knows_words() && is_milder {
                        mildest_known = Some((effect, reading.clone()));
                    }
                }
            }
            outcomes.push(outcome);
        }
        // A rule that takes any words does not see what they are; what is denied wherever that is
        // known stays denied.
        let denied = mildest_known.filter(|(effect, _)| *effect == Effect::Deny);
        let Some((effect, reading)) = denied.or(mildest) else { return Vec::new() };
        let mut outcomes = outcomes.into_iter();
        matching.retain(|_| outcomes.next().flatten().is_none_or(|outcome| outcome == effect));
        reading.iter().filter_map(|found| cache.get(found).cloned()).collect()
    }

    fn judge_word(&mut self, command: &Command, found: Found, cache: &mut Cache) -> Effect {
        if let Some(known) = cache.get(&found) {
            return known.decision;
        }
        let mut judged = Vec::with_capacity(1);
        self.judge(&derived(command, found), &mut judged);
        let Some(mut judged) = judged.pop() else { return Effect::Ask };
        judged.derived = true;
        let decision = judged.decision;
        cache.insert(found, judged);
        decision
    }

    /// Ids of all rules that have matched, the strictest first.
    fn matched_ids(&self) -> Vec<String> {
        let mut rules: Vec<&Rule> = self.matched.iter().filter_map(|at| self.policy.rule(*at)).collect();
        rules.sort_by_key(|rule| std::cmp::Reverse(rule.effect));
        rules.iter().map(|rule| rule.id.clone()).collect()
    }
}

/// The sub-action that a word stands for.
fn derived(command: &Command, found: Found) -> SubAction {
    let untold =
        || SubAction::unknown(format!("what a word of {} names", text::shown(&command.program, SHOWN)));
    let Some(word) = command.words.get(found.word) else { return untold() };
    let path = if found.is_value { &word.value } else { &word.path };
    match (found.kind, path) {
        (Kind::Read, Some(fact)) => SubAction::Read(fact.clone()),
        (Kind::Write, Some(fact)) => SubAction::Write(fact.clone()),
        (Kind::Url, _) => {
            let value = word.text.split_once('=').map(|(_, value)| value).filter(|_| found.is_value);
            SubAction::Fetch(urls::fact(value.unwrap_or(&word.text)))
        }
        _ => untold(),
    }
}

/// The reasons of rules, each once.
fn reasons(rules: &[&Rule]) -> String {
    let mut all: Vec<&str> = Vec::new();
    for rule in rules {
        if !all.contains(&rule.reason.as_str()) && all.len() < MOST_REASONS {
            all.push(&rule.reason);
        }
    }
    all.join("; ")
}

/// Why something asks that no rule is about.
fn unmatched(action: &SubAction) -> String {
    let shown = |text: &str| text::shown(text, SHOWN);
    match action {
        SubAction::Unknown { what } => {
            format!("it cannot be told what would happen: {}", text::shown(what, 300))
        }
        SubAction::Run(command) => {
            let mut line = command.program.clone();
            for word in command.words.iter().take(SHOWN) {
                line.push(' ');
                line.push_str(&word.text);
            }
            format!("no rule allows running `{}`", shown(&line))
        }
        SubAction::Read(fact) => {
            format!("no rule allows reading `{}`{}", shown(&fact.given), because(&fact.trouble))
        }
        SubAction::Write(fact) => {
            format!("no rule allows writing `{}`{}", shown(&fact.given), because(&fact.trouble))
        }
        SubAction::Fetch(fact) => {
            format!("no rule allows fetching `{}`{}", shown(&fact.given), because(&fact.trouble))
        }
        SubAction::Mcp { server, tool } => {
            format!("no rule allows the tool `{}` of the MCP server `{}`", shown(tool), shown(server))
        }
        SubAction::Tool { name } => format!("no rule allows the tool `{}`", shown(name)),
        SubAction::Mode { id } => format!("no rule allows the mode `{}`", shown(id)),
        SubAction::Model { id } => format!("no rule allows the model `{}`", shown(id)),
        SubAction::Setting { id, value } => {
            format!("no rule allows setting `{}` to `{}`", shown(id), shown(value))
        }
        SubAction::Agent { name } => format!("no rule allows the agent `{}`", shown(name)),
        SubAction::Server(fact) => format!("no rule allows the MCP server `{}`", shown(&fact.name)),
    }
}

fn because(trouble: &Option<String>) -> String {
    trouble.as_ref().map(|trouble| format!(" ({})", text::shown(trouble, SHOWN))).unwrap_or_default()
}

#[cfg(test)]
mod tests;
