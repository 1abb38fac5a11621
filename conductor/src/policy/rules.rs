//! The rules: read, checked, layered.
//!
//! All that a rule says is compiled when it is read, and rules are found by what they
//! are about, so that a decision costs little however many there are.

mod compile;
mod examples;
mod file;
mod globs;
mod index;
mod kinds;
pub mod lint;
mod matcher;
pub mod presets;
mod read;
mod words;

use std::{
    fs::File,
    io::Read as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::SystemTime,
};

use sha2::{Digest as _, Sha256};

pub use self::file::Problem;
pub(in crate::policy) use self::{globs::Sight, kinds::Kind, matcher::base_name, words::Found};
use self::{
    index::Index,
    matcher::{Scope, What},
    read::{Layer, Place},
};
use super::{AskTerms, Effect, SubAction, Subject};

/// The longest file with the service's rules. Longer ones are a mistake.
const LONGEST_FILE: usize = 1 << 20;

/// Why a policy cannot be used; says where and what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct PolicyError(pub String);

/// All rules that hold, as of one revision.
#[derive(Debug, Clone)]
pub struct Policy {
    revision: String,
    /// One digest for each text that the rules were read from.
    digests: Vec<u8>,
    /// By id, so that their order in files means nothing.
    rules: Vec<Arc<Rule>>,
    index: Index,
    file: Option<PathBuf>,
    loaded_at: SystemTime,
}

impl Policy {
    /// The default policy, or the one in a file.
    pub fn load(file: Option<&Path>) -> Result<Self, PolicyError> {
        let Some(file) = file else {
            return Self::parse("built-in policy", "use = [\"default\"]\n");
        };
        let text = text_of(file)?;
        Ok(Self { file: Some(file.to_path_buf()), ..Self::parse(&file.display().to_string(), &text)? })
    }

    /// The policy in a text; `origin` is where it stands, for messages.
    pub fn parse(origin: &str, text: &str) -> Result<Self, PolicyError> {
        let layer = read::read(text, Place::Service);
        if let Some(problem) = layer.problems.first() {
            return Err(PolicyError(problem.shown(origin)));
        }
        Ok(Self::build(layer.digests.clone(), rules_of(layer, ""), None))
    }

    /// This policy and what a repository or a user adds, which can only narrow it. A text that
    /// cannot be used makes everything at best ask.
    #[must_use]
    pub fn narrowed(&self, origin: &str, text: &str) -> Self {
        self.narrowed_or(origin, text, Effect::Ask)
    }

    /// The same, with what becomes of everything if the text cannot be used.
    #[must_use]
    pub fn narrowed_or(&self, origin: &str, text: &str, otherwise: Effect) -> Self {
        let layer = read::read(text, Place::Narrowing);
        match layer.problems.first() {
            None => self.with(&layer.digests.clone(), rules_of(layer, origin)),
            Some(problem) => {
                let rule = unusable(origin, problem.shown(origin), otherwise);
                self.with(&layer.digests, vec![rule])
            }
        }
    }

    /// The same for a text that could not even be read.
    #[must_use]
    pub fn narrowed_unread(&self, origin: &str, why: &str, otherwise: Effect) -> Self {
        let rule = unusable(origin, format!("{origin}: {why}"), otherwise);
        self.with(&Sha256::digest(&rule.reason), vec![rule])
    }

    fn with(&self, digest: &[u8], more: Vec<Arc<Rule>>) -> Self {
        let digests = [self.digests.as_slice(), digest].concat();
        let rules = self.rules.iter().cloned().chain(more).collect();
        Self { file: self.file.clone(), loaded_at: self.loaded_at, ..Self::build(digests, rules, None) }
    }

    fn build(digests: Vec<u8>, mut rules: Vec<Arc<Rule>>, file: Option<PathBuf>) -> Self {
        rules.sort_by(|one, other| one.id.cmp(&other.id));
        let revision = Sha256::digest(&digests).iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        let index = Index::new(&rules);
        Self { revision, digests, rules, index, file, loaded_at: SystemTime::now() }
    }

    /// Names exactly these rules: a digest of all that they were read from.
    pub fn revision(&self) -> &str {
        &self.revision
    }

    /// How many rules there are.
    pub fn rule_count(&self) -> usize {
        self.rules.len()
    }

    /// The file that the rules are from, if it is not the built-in policy.
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// When the rules were read.
    pub fn loaded_at(&self) -> SystemTime {
        self.loaded_at
    }

    /// A rule by its place among all.
    pub(super) fn rule(&self, at: usize) -> Option<&Rule> {
        self.rules.get(at).map(Arc::as_ref)
    }

    /// How rules ask, where they say so. What is asked about without a word on that is asked
    /// in the usual way, and whoever answers all of it has to be somebody for that, too.
    pub(super) fn ask_terms<'a>(&self, asked: impl Iterator<Item = &'a [String]>) -> Vec<Arc<AskTerms>> {
        let mut all: Vec<Arc<AskTerms>> = Vec::new();
        let mut has_usual = false;
        for ids in asked {
            let found = ids.iter().filter_map(|id| {
                let at = self.rules.binary_search_by(|rule| rule.id.cmp(id)).ok()?;
                self.rules.get(at)?.ask.clone()
            });
            let found: Vec<_> = found.collect();
            has_usual |= found.is_empty();
            for terms in found {
                if !all.contains(&terms) {
                    all.push(terms);
                }
            }
        }
        if has_usual && !all.is_empty() {
            all.push(Arc::new(AskTerms::default()));
        }
        all
    }

    /// The rules that may be about a sub-action, with their places among all.
    pub(super) fn candidates(
        &self,
        action: &SubAction,
        sight: Option<&Sight<'_>>,
    ) -> impl Iterator<Item = (usize, &Rule)> {
        let places = self.index.candidates(action, sight).into_iter().map(|at| at as usize);
        places.filter_map(|at| Some((at, self.rules.get(at)?.as_ref())))
    }
}

/// Stands for all rules of a text that cannot be used.
fn unusable(origin: &str, reason: String, effect: Effect) -> Arc<Rule> {
    let (scope, what) = (Scope::default(), What::Anything);
    Arc::new(Rule { id: format!("{origin}:unusable"), effect, reason, scope, what, ask: None })
}

fn rules_of(layer: Layer, origin: &str) -> Vec<Arc<Rule>> {
    let rules = layer.entries.into_values().map(|entry| entry.rule);
    // Nobody's rule shall pass for one of the service's.
    let named = rules.map(|rule| match origin {
        "" => rule,
        origin => Rule { id: format!("{origin}:{}", rule.id), ..rule },
    });
    named.map(Arc::new).collect()
}

/// The text of a policy file.
pub fn text_of(file: &Path) -> Result<String, PolicyError> {
    let refuse = |what: String, hint: &str| PolicyError(format!("{}: {what}\nhint: {hint}", file.display()));
    let mut bytes = Vec::new();
    File::open(file)
        .and_then(|opened| opened.take(LONGEST_FILE as u64 + 1).read_to_end(&mut bytes))
        .map_err(|error| refuse(format!("cannot be read: {error}"), "check the path and its permissions"))?;
    if bytes.len() > LONGEST_FILE {
        return Err(refuse("is longer than 1 MiB".to_owned(), "give the path of a policy file"));
    }
    String::from_utf8(bytes).map_err(|error| {
        let before = error.as_bytes().get(..error.utf8_error().valid_up_to()).unwrap_or_default();
        let line = 1 + memchr::memchr_iter(b'\n', before).count();
        refuse(format!("line {line} is not UTF-8"), "save it as UTF-8")
    })
}

/// One rule.
#[derive(Debug, Clone)]
pub(super) struct Rule {
    pub id: String,
    pub effect: Effect,
    pub reason: String,
    scope: Scope,
    what: What,
    /// How it asks, if it says so.
    ask: Option<Arc<AskTerms>>,
}

/// How a rule matches a sub-action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Matched {
    /// As a whole.
    Whole,
    /// A command; what its words are, in each way in which the rule can read them.
    Words(Vec<Vec<Found>>),
}

impl Rule {
    /// Whether the rule is for this subject.
    pub(super) fn is_for(&self, subject: &Subject) -> bool {
        self.scope.matches(subject)
    }

    /// Whether the rule holds where a sub-action happens: one about programs may hold in the session's directory only.
    pub(super) fn is_there(&self, subject: &Subject, action: &SubAction) -> bool {
        match (&self.what, action) {
            (What::Run(matcher), SubAction::Run(command)) => !matcher.at_start || command.cwd == subject.cwd,
            _ => true,
        }
    }

    /// Whether the rule lists which words a program may have.
    pub(super) fn knows_words(&self) -> bool {
        matches!(&self.what, What::Run(matcher) if matcher.line.options.is_some() || matcher.line.positionals.is_some())
    }

    /// Whether the rule is about a sub-action, and how.
    pub(super) fn matches(&self, action: &SubAction) -> Option<Matched> {
        self.matches_seen(action, action.path().map(Sight::of).as_ref())
    }

    /// The same with what patterns see of its path, if it has one.
    pub(super) fn matches_seen(&self, action: &SubAction, sight: Option<&Sight<'_>>) -> Option<Matched> {
        let is =
            |globs: &Option<globs::Globs>, text: &str| globs.as_ref().is_none_or(|globs| globs.matches(text));
        let matches = match (&self.what, action) {
            (What::Run(matcher), SubAction::Run(command)) => {
                let found = matcher.matches(command);
                return (!found.is_empty()).then_some(Matched::Words(found));
            }
            (What::Read(matcher), SubAction::Read(fact)) => matcher.matches(fact, fact.secret, sight?),
            (What::Write(matcher), SubAction::Write(fact)) => {
                matcher.matches(fact, fact.protected.is_some() || fact.secret, sight?)
            }
            (What::Fetch(matcher), SubAction::Fetch(fact)) => matcher.matches(fact),
            (What::Mcp { server, tool }, SubAction::Mcp { server: from, tool: name }) => {
                is(server, from) && is(tool, name)
            }
            (What::Tool(globs), SubAction::Tool { name })
            | (What::Agent(globs), SubAction::Agent { name }) => globs.matches(name),
            (What::Mode(globs), SubAction::Mode { id }) | (What::Model(globs), SubAction::Model { id }) => {
                globs.matches(id)
            }
            (What::Setting { id, value }, SubAction::Setting { id: which, value: new }) => {
                is(id, which) && is(value, new)
            }
            (What::Server(matcher), SubAction::Server(fact)) => matcher.matches(fact),
            (What::Anything, _) => true,
            _ => false,
        };
        // Whatever rules say, what was not understood is not allowed.
        let is_known = self.effect != Effect::Allow || !matches!(action, SubAction::Unknown { .. });
        (matches && is_known).then_some(Matched::Whole)
    }
}

#[cfg(test)]
mod tests;
