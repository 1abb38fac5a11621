//! Name spaces of a command's own (bubblewrap): it sees no process but its own, it has no
//! network if it shall have none, and what makes other programs or the next session do
//! something stays as it is, though all around it may be changed.
//!
//! Landlock only grants: it cannot keep `.git/hooks` out of a project that is writable. A
//! mount can, also where nothing is yet.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// Where the system has it. Never from `PATH`: what is found there need not be the system's,
/// and a host that restricts name spaces allows them to this one only.
pub const PROGRAMS: [&str; 3] = ["/usr/bin/bwrap", "/bin/bwrap", "/usr/local/bin/bwrap"];

/// What the guard is told of it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Bubble {
    /// The program that makes it; `None` if this host has none.
    pub program: Option<PathBuf>,
    /// The directories that the command works in, whose protected places are held.
    pub roots: Vec<PathBuf>,
    /// It has no network at all.
    pub cut_network: bool,
}

impl Bubble {
    /// One with what this host has.
    pub fn new(roots: &[PathBuf], cut_network: bool) -> Self {
        let program = PROGRAMS.iter().map(Path::new).find(|path| path.is_file());
        Self { program: program.map(Path::to_path_buf), roots: roots.to_vec(), cut_network }
    }
}

/// A place that is protected in a bubble.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// From the directory that it is in.
    pub path: &'static str,
    /// It is a directory, and while it is not there it cannot be made.
    pub even_absent: bool,
    /// It is a directory in which its program writes a `.gitignore` at every start, and ends if
    /// it cannot: so one stands there already.
    pub with_ignore: bool,
}

const fn always(path: &'static str) -> Place {
    Place { path, even_absent: true, with_ignore: false }
}

const fn with_ignore(path: &'static str) -> Place {
    Place { with_ignore: true, ..always(path) }
}

const fn if_there(path: &'static str) -> Place {
    Place { even_absent: false, ..always(path) }
}

/// What git leaves out of sight in a directory.
pub const IGNORE: &str = ".gitignore";
/// What stands in one that is there for a program only: git does not see it either.
pub const IGNORED: &str = ".gitignore\n";

/// The file that says where the repository is, of a copy that has it elsewhere.
pub const GIT: &str = ".git";

/// In a repository: git runs or believes them. All else in there changes with every commit.
pub static IN_REPOSITORY: &[Place] =
    &[always("hooks"), if_there("config"), if_there("config.worktree"), if_there("info/attributes")];

/// In every root. Each makes another program, or the next session, do something: git, editors,
/// agents, build machines, shells and package managers. The policy protects them as well, and
/// many more, from being written without somebody's leave; a bubble has only those that no
/// build and no agent needs to change by itself.
///
/// One that is not there is held by an empty directory. So these are only names that mean
/// nothing while they are empty (`.hg` or `.mvn` would), of programs that many have. A file
/// cannot be held so: an empty one does mean something.
pub static IN_ROOT: &[Place] = &[
    // Agents: what they may do, and which tools they start.
    always(".agents"),
    always(".claude"),
    always(".codex"),
    always(".conductor"),
    always(".cursor"),
    always(".gemini"),
    always(".goose"),
    with_ignore(".opencode"),
    always(".qwen"),
    if_there(".aider.conf.yml"),
    if_there(".amazonq"),
    if_there(".augment"),
    if_there(".continue"),
    if_there(".copilot"),
    if_there(".crush"),
    if_there(".crush.json"),
    if_there(".factory"),
    if_there(".fast-agent"),
    if_there(".junie"),
    if_there(".kilocode"),
    if_there(".kiro"),
    if_there(".mcp.json"),
    if_there(".roo"),
    if_there(".trae"),
    if_there(".windsurf"),
    if_there("crush.json"),
    if_there("opencode.json"),
    if_there("opencode.jsonc"),
    // Editors: tasks and programs that they run.
    always(".devcontainer"),
    always(".idea"),
    always(".vscode"),
    always(".zed"),
    if_there(".devcontainer.json"),
    if_there(".dir-locals.el"),
    if_there(".exrc"),
    if_there(".fleet"),
    if_there(".helix"),
    if_there(".lvimrc"),
    if_there(".nova"),
    if_there(".nvim.lua"),
    if_there(".nvimrc"),
    if_there(".vs"),
    // Build machines, with their rights.
    always(".buildkite"),
    always(".circleci"),
    always(".github/actions"),
    always(".github/workflows"),
    if_there(".cirrus.yml"),
    if_there(".drone.yml"),
    if_there(".forgejo"),
    if_there(".gitea"),
    if_there(".gitlab-ci.yml"),
    if_there(".gitlab/ci"),
    if_there(".semaphore"),
    if_there(".teamcity"),
    if_there(".travis.yml"),
    if_there(".woodpecker"),
    if_there(".woodpecker.yaml"),
    if_there(".woodpecker.yml"),
    if_there("Jenkinsfile"),
    if_there("azure-pipelines.yml"),
    if_there("bitbucket-pipelines.yml"),
    // Hooks, and what shells and tools run when they start.
    always(".husky"),
    if_there(".cargo/config"),
    if_there(".cargo/config.toml"),
    if_there(".envrc"),
    if_there(".hg/hgrc"),
    if_there(".mise.toml"),
    if_there(".mvn"),
    if_there(".pnpmfile.cjs"),
    if_there(".pre-commit-config.yaml"),
    if_there(".yarn/plugins"),
    if_there(".yarn/releases"),
    if_there("lefthook.toml"),
    if_there("lefthook.yml"),
    if_there("mise.toml"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::paths::protected;

    #[test]
    fn the_policy_protects_these_as_well() {
        let in_repository = IN_REPOSITORY.iter().map(|place| Path::new(GIT).join(place.path));
        for path in IN_ROOT.iter().map(|place| PathBuf::from(place.path)).chain(in_repository) {
            assert!(protected::by_name(&path, 0).is_some(), "{path:?}");
        }
    }

    #[test]
    fn each_stands_there_once() {
        let mut paths: Vec<&str> = IN_ROOT.iter().map(|place| place.path).collect();
        paths.sort_unstable();
        let count = paths.len();
        paths.dedup();
        assert_eq!(paths.len(), count);
    }
}
