//! Which rules may be about a sub-action, found without trying all.

use std::{collections::HashMap, sync::Arc};

use super::{
    Rule,
    matcher::{Programs, What, base_name},
};
use crate::policy::SubAction;

/// Kinds of sub-actions.
const KINDS: usize = 12;

/// Places of rules among all rules, by what they are about.
#[derive(Debug, Clone, Default)]
pub(super) struct Index {
    /// Rules about every program stand under `run` here.
    by_kind: [Vec<u32>; KINDS],
    by_program: HashMap<String, Vec<u32>>,
}

impl Index {
    pub(super) fn new(rules: &[Arc<Rule>]) -> Self {
        let mut index = Self::default();
        for (at, rule) in (0u32..).zip(rules) {
            let kind = match &rule.what {
                What::Anything => {
                    index.by_kind.iter_mut().for_each(|list| list.push(at));
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
                What::Read(_) => 1,
                What::Write(_) => 2,
                What::Fetch(_) => 3,
                What::Mcp { .. } => 4,
                What::Tool(_) => 5,
                What::Mode(_) => 6,
                What::Model(_) => 7,
                What::Setting { .. } => 8,
                What::Agent(_) => 9,
                What::Server(_) => 10,
            };
            index.by_kind[kind].push(at);
        }
        index
    }

    /// Places of all rules that may be about a sub-action, each once.
    pub(super) fn candidates(&self, action: &SubAction) -> impl Iterator<Item = usize> {
        let kind = match action {
            SubAction::Run(_) => 0,
            SubAction::Read(_) => 1,
            SubAction::Write(_) => 2,
            SubAction::Fetch(_) => 3,
            SubAction::Mcp { .. } => 4,
            SubAction::Tool { .. } => 5,
            SubAction::Mode { .. } => 6,
            SubAction::Model { .. } => 7,
            SubAction::Setting { .. } => 8,
            SubAction::Agent { .. } => 9,
            SubAction::Server(_) => 10,
            SubAction::Unknown { .. } => 11,
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
        self.by_kind[kind].iter().chain(written).chain(others).map(|at| *at as usize)
    }
}
