//! What has been asked of the disk once is not asked again for the same request.
//!
//! The same names stand in a request several times: announced and asked about,
//! in several commands of a line. Two answers that differ would be no better
//! than one, and each costs time that an agent waits for.

use std::{
    cell::RefCell,
    collections::HashMap,
    path::{Path, PathBuf},
};

use foldhash::fast::RandomState;

use super::{Looks, PathFact, Resolver};

/// What a program's name stands for.
type Program = (Option<PathBuf>, bool);

/// What was answered to each text, seen from a directory; there are few of these.
type Answers<T> = RefCell<HashMap<String, Vec<(PathBuf, T)>, RandomState>>;

/// A resolver that remembers; for one request and no longer.
pub struct Memory<'a> {
    resolver: &'a dyn Resolver,
    looks: Looks,
    paths: Answers<PathFact>,
    programs: Answers<Program>,
}

impl<'a> Memory<'a> {
    /// One that remembers nothing yet.
    pub fn new(resolver: &'a dyn Resolver) -> Self {
        Self { resolver, looks: Looks::default(), paths: RefCell::default(), programs: RefCell::default() }
    }
}

impl Resolver for Memory<'_> {
    fn path(&self, cwd: &Path, given: &str) -> PathFact {
        remembered(&self.paths, cwd, given, || self.resolver.path_among(&self.looks, cwd, given))
    }

    fn program(&self, cwd: &Path, name: &str) -> (Option<PathBuf>, bool) {
        remembered(&self.programs, cwd, name, || self.resolver.program_among(&self.looks, cwd, name))
    }

    fn is_absent(&self, path: &Path) -> bool {
        self.resolver.is_absent_among(&self.looks, path)
    }

    fn is_directory(&self, path: &Path) -> bool {
        self.resolver.is_directory_among(&self.looks, path)
    }
}

fn remembered<T: Clone>(answers: &Answers<T>, cwd: &Path, given: &str, ask: impl FnOnce() -> T) -> T {
    let from_here = |all: &Vec<(PathBuf, T)>| {
        all.iter().find(|(from, _)| from.as_os_str() == cwd.as_os_str()).map(|(_, answer)| answer.clone())
    };
    if let Some(known) = answers.borrow().get(given).and_then(from_here) {
        return known;
    }
    let answer = ask();
    answers.borrow_mut().entry(given.to_owned()).or_default().push((cwd.to_path_buf(), answer.clone()));
    answer
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    struct Counting {
        asked: Cell<usize>,
    }

    impl Resolver for Counting {
        fn path(&self, cwd: &Path, given: &str) -> PathFact {
            self.asked.set(self.asked.get() + 1);
            PathFact { given: given.into(), resolved: Some(cwd.join(given)), ..PathFact::default() }
        }

        fn program(&self, cwd: &Path, name: &str) -> (Option<PathBuf>, bool) {
            self.asked.set(self.asked.get() + 1);
            (Some(cwd.join(name)), false)
        }
    }

    #[test]
    fn nothing_is_asked_twice() {
        let counting = Counting { asked: Cell::new(0) };
        let memory = Memory::new(&counting);
        let (one, two) = (Path::new("/a"), Path::new("/b"));
        for _ in 0..3 {
            assert_eq!(memory.path(one, "x").resolved, Some("/a/x".into()));
            assert_eq!(memory.path(two, "x").resolved, Some("/b/x".into()), "seen from elsewhere");
            assert_eq!(memory.program(one, "x").0, Some("/a/x".into()));
            assert_eq!(memory.program(one, "y").0, Some("/a/y".into()));
        }
        assert_eq!(counting.asked.get(), 4);
    }
}
