//! The part of a repository that git runs or believes.
//!
//! Everything else in there (objects, references, the index, logs) changes with every commit and
//! makes nobody do anything.

use std::{
    fs::{self, FileType, OpenOptions},
    io::Read as _,
    os::unix::{ffi::OsStrExt as _, fs::OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use nix::{errno::Errno, fcntl::OFlag};

use super::places::{Look, Open};

/// Where programs are named (`config`), where they are (`hooks`), which of them are used for which
/// file (`attributes`), what people are not shown (`exclude`), and whether all of that is read
/// somewhere else (`commondir`).
static PARTS: &[&str] = &[COMMON, "config", "config.worktree", "hooks", "info/attributes", "info/exclude"];

/// The file of a working copy that says where what it has in common with others is.
const COMMON: &str = "commondir";

/// Directories with repositories in them: those of submodules, and what working copies have of
/// their own.
static SEVERAL: &[&str] = &["modules", "worktrees"];

/// Submodules within submodules, and the directories in their names.
const MOST_DEPTH: usize = 6;

/// Directories above a root that are asked whether they are a repository's; more has no path.
const MOST_ABOVE: usize = 64;

/// The longest file that names a directory of git.
const LONGEST: u64 = 4096 + 16;

/// The directories of git that these roots belong to. A root may lie deep in a working copy, whose
/// repository may be somewhere else.
pub(super) fn repositories(roots: &[PathBuf]) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = Vec::new();
    for (path, kind) in roots.iter().filter_map(|root| git_above(root)) {
        let repository = match kind {
            kind if kind.is_dir() => Some(path),
            kind if kind.is_file() => named_in(&path, b"gitdir:"),
            _ => path.canonicalize().ok().filter(|path| path.is_dir()),
        };
        let Some(repository) = repository else { continue };
        // A working copy has its settings and hooks with those of all others.
        let common = named_in(&repository.join(COMMON), b"");
        for each in [Some(repository), common].into_iter().flatten() {
            if !found.contains(&each) {
                found.push(each);
            }
        }
    }
    found
}

/// The same, if each is simply the `.git` of a working copy. Where a file or a link names another
/// place, an agent may have named one that hangs.
pub(super) fn plain_repositories(roots: &[PathBuf]) -> Option<Vec<PathBuf>> {
    let mut found: Vec<PathBuf> = Vec::new();
    for (path, kind) in roots.iter().filter_map(|root| git_above(root)) {
        if !kind.is_dir() || path.join(COMMON).symlink_metadata().is_ok() {
            return None;
        }
        if !found.contains(&path) {
            found.push(path);
        }
    }
    Some(found)
}

/// The `.git` of the working copy that a root is in, and what it is.
fn git_above(root: &Path) -> Option<(PathBuf, FileType)> {
    root.ancestors().take(MOST_ABOVE).map(|above| above.join(".git")).find_map(|path| {
        let kind = path.symlink_metadata().ok()?.file_type();
        Some((path, kind))
    })
}

/// The directory that a small file names, behind these words.
fn named_in(file: &Path, words: &[u8]) -> Option<PathBuf> {
    // An agent may have put a pipe or a link there.
    let flags = (OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits();
    let opened = OpenOptions::new().read(true).custom_flags(flags).open(file).ok()?;
    if !opened.metadata().ok()?.is_file() {
        return None;
    }
    let mut text = Vec::new();
    opened.take(LONGEST).read_to_end(&mut text).ok()?;
    let named = text.strip_prefix(words)?.trim_ascii();
    let named = Path::new(std::ffi::OsStr::from_bytes(named));
    fs::canonicalize(file.parent()?.join(named)).ok().filter(|path| path.is_dir())
}

impl Look {
    /// What git runs or believes of a repository, and of those within it.
    pub(super) fn repository(&mut self, path: &Path) {
        self.repository_at(path, 0);
    }

    fn repository_at(&mut self, path: &Path, depth: usize) {
        if !self.repositories.insert(path.to_path_buf()) {
            return;
        }
        let repository = match Open::at(path) {
            Ok(repository) => repository,
            // It is gone, or something else by now.
            Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => {
                return self.still.missing(path.to_path_buf());
            }
            Err(_) => return self.leave_out(path),
        };
        self.begin_place();
        for part in PARTS {
            self.part(&repository, part.as_ref());
        }
        for several in SEVERAL {
            match repository.inner(several.as_ref()) {
                Some(inside) => self.several(inside, &path.join(several), depth),
                None => self.not_opened(&repository, several.as_ref()),
            }
        }
    }

    /// Repositories in a directory. The name of a submodule may have slashes in it.
    fn several(&mut self, mut above: Open, path: &Path, depth: usize) {
        self.begin_place();
        for name in self.names(&mut above, usize::MAX, |_| true) {
            let Some(inside) = above.inner(&name) else {
                self.not_opened(&above, &name);
                continue;
            };
            let path = path.join(&name);
            // Whether it is a repository depends on what is in it.
            self.still.listed(&inside);
            match inside.has("HEAD".as_ref()) {
                _ if depth >= MOST_DEPTH => self.leave_out(&path),
                true => self.repository_at(&path, depth + 1),
                false => self.several(inside, &path, depth + 1),
            }
        }
    }
}
