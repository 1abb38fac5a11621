//! A small world in which shells are let loose, and what may happen in it.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Component, Path, PathBuf},
};

use conductor::policy::{Ground, PathFact, Resolver, SubAction, shell};
use tempfile::TempDir;

use crate::trace::{Event, program};

/// Programs that do nothing.
const STUBS: &[&str] = &[
    "tool", "other", "git", "ls", "nope", "find", "xargs", "sudo", "cat", "1", "a", "kill", "type", "echo",
    "test", "printf", "true",
];
/// Programs that start others, as they are.
const REAL: &[&str] = &["env", "timeout", "nice", "stdbuf", "nohup", "bash", "sh", "dash"];

/// Others that would be opened if they were there.
const ABSENT: &[&str] = &["ash", "ksh", "mksh", "rbash", "zsh", "time", "command", "builtin"];

/// A line and what it was read as.
#[derive(Debug)]
pub struct Claim {
    pub line: String,
    pub subs: Vec<SubAction>,
}

impl Claim {
    /// The claim in short, for people.
    pub fn shown(&self) -> Vec<String> {
        let shown = |sub: &SubAction| match sub {
            SubAction::Run(command) => {
                let words: Vec<_> = command.words.iter().map(|word| &word.text).collect();
                format!("run {:?} {words:?} in {}", command.program, command.cwd.display())
            }
            SubAction::Read(fact) => format!("read {:?}", fact.resolved),
            SubAction::Write(fact) => format!("write {:?}", fact.resolved),
            other => format!("{other:?}"),
        };
        self.subs.iter().map(shown).collect()
    }
}

/// A directory for lines to run in, programs for them to find, and a home.
#[derive(Debug)]
pub struct World {
    _directory: TempDir,
    all: PathBuf,
    pub cwd: PathBuf,
    pub bin: PathBuf,
    pub home: PathBuf,
}

impl World {
    pub fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let all = directory.path().canonicalize().unwrap();
        let (cwd, bin, home) = (all.join("world"), all.join("bin"), all.join("home"));
        for place in [&cwd.join("dir/sub"), &cwd.join("s p"), &bin, &home, &all.join("outside/deep")] {
            fs::create_dir_all(place).unwrap();
        }
        for file in ["file", "a", "f1", "f2", "*", "dir/x", "~"] {
            fs::write(cwd.join(file), "x").unwrap();
        }
        symlink(all.join("outside/deep"), cwd.join("link")).unwrap();
        let stub = Path::new(env!("CARGO_BIN_EXE_stub-program"));
        for name in
            STUBS.iter().map(|name| bin.join(name)).chain([cwd.join("dir/local"), cwd.join("link/local")])
        {
            // Another file system may hold the build; a copy does as well.
            fs::hard_link(stub, &name).or_else(|_| fs::copy(stub, &name).map(drop)).unwrap();
        }
        for name in REAL {
            if let Some(real) = program(name) {
                symlink(real, bin.join(name)).unwrap();
            }
        }
        Self { _directory: directory, all, cwd, bin, home }
    }

    /// What happened and was not named.
    pub fn unnamed(&self, claim: &Claim, seen: &[Event]) -> Vec<Event> {
        seen.iter().filter(|event| !self.is_named(&claim.subs, event)).cloned().collect()
    }

    fn is_named(&self, subs: &[SubAction], event: &Event) -> bool {
        match event {
            Event::Start { cwd, file, argv, is_done } => {
                let is_run = |sub: &SubAction| match sub {
                    SubAction::Run(command) => {
                        let words = command.words.iter().map(|word| &word.text);
                        command.cwd == *cwd && std::iter::once(&command.program).chain(words).eq(argv)
                    }
                    _ => false,
                };
                let found = self.program(cwd, &argv[0]).0;
                let is_file = !is_done || (found.is_some() && found == file.canonicalize().ok());
                is_file && (subs.iter().any(is_run) || self.is_opened(subs, cwd, argv))
            }
            Event::Enter { path } => {
                let read =
                    |sub: &SubAction| matches!(sub, SubAction::Read(fact) if fact.resolved == real(path));
                subs.iter().any(read)
            }
            Event::Open { path, writes } => {
                let path = real(path).unwrap_or_default();
                let is_named = subs.iter().any(|sub| match sub {
                    SubAction::Read(fact) => !writes && fact.resolved.as_ref() == Some(&path),
                    SubAction::Write(fact) => fact.resolved.as_ref() == Some(&path),
                    _ => false,
                });
                let is_device = path == Path::new("/dev/null") || path == Path::new("/dev/tty");
                // Libraries, locales, accounts: whatever a program needs to come to life.
                let is_system = ["/usr", "/lib", "/lib64", "/etc", "/proc", "/sys"];
                let is_system = is_system.iter().any(|place| path.starts_with(place)) && !writes;
                // When a program is not there, zsh looks whether it is a script.
                let is_program = |sub: &SubAction| matches!(sub, SubAction::Run(run) if real(&run.cwd.join(&run.program)).as_ref() == Some(&path));
                let is_looked_for = !writes && (path.starts_with(&self.bin) || subs.iter().any(is_program));
                is_named || is_device || is_system || is_looked_for
            }
            Event::Other { .. } => false,
        }
    }

    /// Whether it is a wrapper, and everything it starts in turn was named.
    fn is_opened(&self, subs: &[SubAction], cwd: &Path, argv: &[String]) -> bool {
        let name = argv[0].rsplit('/').next().unwrap_or_default();
        let inner = shell::argv(argv, &Ground { cwd, resolver: self });
        (REAL.contains(&name) || ABSENT.contains(&name))
            && !inner.is_empty()
            && inner.iter().all(|sub| is_among(subs, sub))
    }
}

/// Whether the same is among these: whether something is piped is not seen by who is started.
fn is_among(subs: &[SubAction], sub: &SubAction) -> bool {
    subs.iter().any(|known| match (known, sub) {
        (SubAction::Run(known), SubAction::Run(sub)) => {
            (&known.program, &known.words, &known.cwd) == (&sub.program, &sub.words, &sub.cwd)
        }
        (known, sub) => known == sub,
    })
}

/// Where a path leads: links are followed as far as there is something.
fn real(path: &Path) -> Option<PathBuf> {
    let mut resolved = PathBuf::from("/");
    for component in path.components() {
        match component {
            Component::Normal(name) => {
                resolved.push(name);
                resolved = resolved.canonicalize().unwrap_or(resolved);
            }
            Component::ParentDir => drop(resolved.pop()),
            _ => {}
        }
    }
    Some(resolved)
}

impl Resolver for World {
    fn path(&self, cwd: &Path, given: &str) -> PathFact {
        let resolved = real(&cwd.join(given));
        let root = resolved.as_ref().filter(|path| path.starts_with(&self.all)).map(|_| self.cwd.clone());
        PathFact { given: given.into(), resolved, root, ..PathFact::default() }
    }

    fn program(&self, cwd: &Path, name: &str) -> (Option<PathBuf>, bool) {
        let file = if name.contains('/') { cwd.join(name) } else { self.bin.join(name) };
        let is_local = name.contains('/');
        match file.canonicalize() {
            Ok(file) if file.is_file() => (Some(file), is_local),
            _ => (None, is_local),
        }
    }
}
