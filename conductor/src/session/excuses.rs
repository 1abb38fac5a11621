//! What was allowed in a turn, as far as it explains a change of a protected place.
//!
//! A change is *mediated* if in the same turn somebody, or a rule, has allowed a write of that
//! place, or anything of which it cannot be told what it writes: a command, a tool of an MCP
//! server, a tool of the agent's own. `git remote add` writes to `.git/config`, and whoever allows
//! it means that. Commands that only show something explain nothing.

use std::path::{Path, PathBuf};

use crate::policy::{Command, SubAction};

/// Allowed writes of protected places that are remembered in a turn. What is beyond is told as if
/// nobody had been asked: better once too often.
const MOST_WRITES: usize = 256;

/// Programs that write nothing, whatever their arguments; where their output goes is a write of
/// its own. Sorted, for they are searched.
static SHOW_ONLY: &[&str] = &[
    "[", "basename", "cat", "cd", "cut", "dirname", "du", "echo", "false", "grep", "head", "ls", "printf",
    "pwd", "readlink", "realpath", "stat", "tail", "test", "true", "type", "wc", "which",
];

/// What explains changes.
#[derive(Debug, Default)]
pub(super) struct Excuses {
    /// Places whose change was allowed, and what is beneath them.
    writes: Vec<PathBuf>,
    /// Something was allowed that may have written anywhere.
    is_anything: bool,
}

impl Excuses {
    /// At the beginning of a turn, in which something that was allowed before may go on.
    pub(super) fn new(is_busy: bool) -> Self {
        Self { writes: Vec::new(), is_anything: is_busy }
    }

    /// All of this was allowed.
    pub(super) fn allow<'a>(&mut self, actions: impl IntoIterator<Item = &'a SubAction>) {
        for action in actions {
            match action {
                // Only of protected places is anything told.
                SubAction::Write(fact) if fact.protected.is_some() => {
                    if let Some(place) = &fact.resolved
                        && self.writes.len() < MOST_WRITES
                        && !self.writes.contains(place)
                    {
                        self.writes.push(place.clone());
                    }
                }
                SubAction::Run(command) => self.is_anything |= !shows_only(command),
                SubAction::Mcp { .. } | SubAction::Tool { .. } | SubAction::Unknown { .. } => {
                    self.is_anything = true;
                }
                _ => {}
            }
        }
    }

    /// Whether any change is explained.
    pub(super) fn cover_all(&self) -> bool {
        self.is_anything
    }

    /// Whether a change of this place is explained.
    pub(super) fn cover(&self, place: &Path) -> bool {
        self.is_anything || self.writes.iter().any(|allowed| place.starts_with(allowed))
    }
}

fn shows_only(command: &Command) -> bool {
    !command.is_local && SHOW_ONLY.binary_search(&command.program.as_str()).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::{PathFact, Word};

    fn run(program: &str, is_local: bool) -> SubAction {
        let words = vec![Word { text: "x".into(), path: None, value: None }];
        let (program, cwd) = (program.to_owned(), "/w".into());
        SubAction::Run(Command { program, file: None, is_local, words, cwd, is_piped: false })
    }

    fn write(path: &str, protected: bool) -> SubAction {
        SubAction::Write(PathFact {
            given: path.into(),
            resolved: Some(path.into()),
            protected: protected.then(|| "because".into()),
            ..PathFact::default()
        })
    }

    #[test]
    fn what_was_allowed_explains_itself_and_no_more() {
        let mut excuses = Excuses::new(false);
        excuses.allow(&[write("/w/.vscode/tasks.json", true), write("/w", false)]);
        assert!(excuses.cover(Path::new("/w/.vscode/tasks.json")));
        assert!(!excuses.cover(Path::new("/w/.vscode/settings.json")));
        excuses.allow(&[write("/w/.claude", true)]);
        assert!(excuses.cover(Path::new("/w/.claude/settings.json")));
        assert!(!excuses.cover(Path::new("/w/.claude2")));
    }

    #[test]
    fn a_command_explains_everything_unless_it_only_shows() {
        assert!(SHOW_ONLY.is_sorted());
        for (program, is_local, is_covered) in
            [("ls", false, false), ("ls", true, true), ("git", false, true), ("./ls", false, true)]
        {
            let mut excuses = Excuses::new(false);
            excuses.allow(&[run(program, is_local)]);
            assert_eq!(excuses.cover(Path::new("/w/.git/config")), is_covered, "{program} {is_local}");
        }
        assert!(Excuses::new(true).cover_all());
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut excuses = Excuses::new(false);
        for number in 0..2 * MOST_WRITES {
            excuses.allow(&[write(&format!("/w/.claude/{number}"), true)]);
        }
        assert_eq!(excuses.writes.len(), MOST_WRITES);
    }
}
