//! Which rules may be about a sub-action, found without trying all.

use std::{collections::HashMap, sync::Arc};

use aho_corasick::AhoCorasick;

use super::{
    Rule,
    globs::Sight,
    matcher::{PathMatcher, Programs, What, base_name},
};
use crate::policy::SubAction;

/// Kinds of sub-actions that are found by their kind alone.
const KINDS: usize = 10;

/// Places of rules among all rules, by what they are about.
#[derive(Debug, Clone, Default)]
pub(super) struct Index {
    /// Rules about every program stand under `run` here.
    by_kind: [Vec<u32>; KINDS],
    by_program: HashMap<String, Vec<u32>>,
    reads: Paths,
    writes: Paths,
}

/// Rules about paths. Most name a part that a path must have, and one search finds all parts that
/// a path has.
#[derive(Debug, Clone, Default)]
struct Paths {
    /// Those that may be about any path.
    always: Vec<u32>,
    /// Parts that others need, and which rules need each.
    parts: Option<AhoCorasick>,
    by_part: Vec<Vec<u32>>,
}

impl Paths {
    fn new(rules: &[(u32, Option<&PathMatcher>)]) -> Self {
        let mut always = Vec::new();
        let mut parts: HashMap<&[u8], Vec<u32>> = HashMap::new();
        for (at, matcher) in rules {
            match matcher.and_then(|matcher| matcher.path.as_ref()).and_then(|globs| globs.needed()) {
                Some(needed) => needed.iter().for_each(|part| parts.entry(part).or_default().push(*at)),
                None => always.push(*at),
            }
        }
        let (parts, by_part): (Vec<&[u8]>, Vec<Vec<u32>>) = parts.into_iter().unzip();
        match AhoCorasick::new(parts) {
            Ok(parts) => Self { always, parts: Some(parts), by_part },
            // Too many for it: then each is tried.
            Err(_) => Self { always: rules.iter().map(|(at, _)| *at).collect(), ..Self::default() },
        }
    }

    fn candidates(&self, sight: &Sight<'_>) -> Vec<u32> {
        let mut found = self.always.clone();
        let parts = self
            .parts
            .iter()
            .flat_map(|parts| sight.texts().flat_map(|text| parts.find_overlapping_iter(text.as_bytes())));
        for part in parts {
            found.extend_from_slice(&self.by_part[part.pattern()]);
        }
        found.sort_unstable();
        found.dedup();
        found
    }
}

impl Index {
    pub(super) fn new(rules: &[Arc<Rule>]) -> Self {
        let mut index = Self::default();
        let (mut reads, mut writes) = (Vec::new(), Vec::new());
        for (at, rule) in (0u32..).zip(rules) {
            let kind = match &rule.what {
                What::Anything => {
                    index.by_kind.iter_mut().for_each(|list| list.push(at));
                    reads.push((at, None));
                    writes.push((at, None));
                    continue;
                }
                What::Run(matcher) => {
                    if let Programs::Named(names) = &matcher.programs {
                        for name in names {
                            index.by_program.entry(name.clone()).or_default().push(at);
                        }
                        continue;
                    }
                    0
                }
                What::Read(matcher) => {
                    reads.push((at, Some(matcher)));
                    continue;
                }
                What::Write(matcher) => {
                    writes.push((at, Some(matcher)));
                    continue;
                }
                What::Fetch(_) => 1,
                What::Mcp { .. } => 2,
                What::Tool(_) => 3,
                What::Mode(_) => 4,
                What::Model(_) => 5,
                What::Setting { .. } => 6,
                What::Agent(_) => 7,
                What::Server(_) => 8,
            };
            index.by_kind[kind].push(at);
        }
        (index.reads, index.writes) = (Paths::new(&reads), Paths::new(&writes));
        index
    }

    /// Places of all rules that may be about a sub-action, each once. `sight`: what patterns see of
    /// its path.
    pub(super) fn candidates(&self, action: &SubAction, sight: Option<&Sight<'_>>) -> Vec<u32> {
        let kind = match (action, sight) {
            (SubAction::Read(_), Some(sight)) => return self.reads.candidates(sight),
            (SubAction::Write(_), Some(sight)) => return self.writes.candidates(sight),
            // Without a path no rule about paths matches.
            (SubAction::Read(_), None) => return self.reads.always.clone(),
            (SubAction::Write(_), None) => return self.writes.always.clone(),
            (SubAction::Run(_), _) => 0,
            (SubAction::Fetch(_), _) => 1,
            (SubAction::Mcp { .. }, _) => 2,
            (SubAction::Tool { .. }, _) => 3,
            (SubAction::Mode { .. }, _) => 4,
            (SubAction::Model { .. }, _) => 5,
            (SubAction::Setting { .. }, _) => 6,
            (SubAction::Agent { .. }, _) => 7,
            (SubAction::Server(_), _) => 8,
            (SubAction::Unknown { .. }, _) => 9,
        };
        let (mut written, mut found): (&[u32], &[u32]) = (&[], &[]);
        if let SubAction::Run(command) = action {
            let of = |name: &str| self.by_program.get(name).map_or(&[][..], Vec::as_slice);
            let name = base_name(&command.program);
            written = of(name);
            let file =
                command.file.as_deref().and_then(|file| file.file_name()).and_then(|name| name.to_str());
            found = file.filter(|file| *file != name).map_or(&[], of);
        }
        let others = found.iter().filter(|at| !written.contains(at));
        self.by_kind[kind].iter().chain(written).chain(others).copied().collect()
    }
}
