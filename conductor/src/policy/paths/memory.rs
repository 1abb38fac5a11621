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

use super::{PathFact, Resolver};

/// What was asked: a text, and from which directory it is seen.
type Asked = (PathBuf, String);

/// What a program's name stands for.
type Program = (Option<PathBuf>, bool);

/// A resolver that remembers; for one request and no longer.
pub struct Memory<'a> {
    resolver: &'a dyn Resolver,
    paths: RefCell<HashMap<Asked, PathFact>>,
    programs: RefCell<HashMap<Asked, Program>>,
}

impl<'a> Memory<'a> {
    /// One that remembers nothing yet.
    pub fn new(resolver: &'a dyn Resolver) -> Self {
        Self { resolver, paths: RefCell::default(), programs: RefCell::default() }
    }
}

impl Resolver for Memory<'_> {
    fn path(&self, cwd: &Path, given: &str) -> PathFact {
        let key = (cwd.to_path_buf(), given.to_owned());
        self.paths.borrow_mut().entry(key).or_insert_with(|| self.resolver.path(cwd, given)).clone()
    }

    fn program(&self, cwd: &Path, name: &str) -> (Option<PathBuf>, bool) {
        let key = (cwd.to_path_buf(), name.to_owned());
        self.programs.borrow_mut().entry(key).or_insert_with(|| self.resolver.program(cwd, name)).clone()
    }
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
