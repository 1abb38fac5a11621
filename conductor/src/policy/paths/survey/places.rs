//! The walk over the protected places: the top of each root, and the inside of what is protected
//! there.
//!
//! Some protected directories hold what ordinary work changes all the time beside what makes
//! programs do something. Of these only the latter is looked at, or every turn would be reported.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::OsStr,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
    time::Instant,
};

use nix::{
    dir::Dir,
    errno::Errno,
    fcntl::{AtFlags, OFlag, readlinkat},
    sys::stat::{FileStat, Mode, SFlag, fstat, fstatat},
};

use super::{
    super::protected::{by_name, fold, protected_in},
    Found, Kind,
    still::Still,
};

/// Things that are looked at. Directories that people keep by hand are far smaller.
const MOST: usize = 8192;

/// Those in one protected directory: a large one must not hide what is in the others.
pub(super) const MOST_IN_ONE: usize = 1024;

/// Names that are listed to find them, mostly at the top of a root.
const MOST_NAMES: usize = 32_768;

/// Directories within a protected one that are gone into. Each is an open descriptor, and nobody
/// keeps settings deeper.
const MOST_DEPTH: usize = 8;

/// How a directory is opened.
const DIRECTORY: OFlag =
    OFlag::O_RDONLY.union(OFlag::O_DIRECTORY).union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);

/// What is looked at in directories that otherwise hold state and caches.
static PARTS: &[(&str, &[&str])] = &[
    (".crush", &["crush.json"]),
    (".gradle", &["gradle.properties", "init.d", "init.gradle"]),
    (".hg", &["hgrc", "sharedpath"]),
    (".jj", &["repo/config.toml"]),
    (".m2", &["extensions.xml", "settings-security.xml", "settings.xml"]),
    (".svn", &[]),
    (".venv", &["bin", "pyvenv.cfg"]),
];

/// Names that an editor or an agent writes by itself, whatever it is asked: where its windows are,
/// what was said, what it has in its cache.
fn is_state(name: &str) -> bool {
    matches!(name, "workspace.xml" | ".ds_store")
        || name.ends_with("_history")
        || name.starts_with(".aider.") && (name.contains("history") || name.contains("cache"))
}

/// OpenCode writes it at every start, and so does a bubble for it.
const WRITTEN: &str = ".opencode/.gitignore";

/// Whether a place, seen from its root, is one whose change is told.
fn is_watched(place: &Path) -> bool {
    by_name(place, 0).is_some()
        && !place.file_name().is_some_and(|name| is_state(&fold(name)))
        && place != Path::new(WRITTEN)
}

/// Git puts samples beside its hooks, and runs none of them.
fn is_sample(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "sample")
        && path.parent().is_some_and(|above| above.ends_with("hooks"))
}

/// A directory that is looked into.
pub(super) struct Open {
    directory: Dir,
    pub(super) path: PathBuf,
}

impl Open {
    /// Opens a directory that is no link itself.
    pub(super) fn at(path: &Path) -> nix::Result<Self> {
        let directory = Dir::open(path, DIRECTORY, Mode::empty())?;
        Ok(Self { directory, path: path.to_path_buf() })
    }

    /// Opens one in it.
    pub(super) fn inner(&self, name: &Path) -> Option<Self> {
        let directory = Dir::openat(&self.directory, name, DIRECTORY, Mode::empty()).ok()?;
        Some(Self { directory, path: self.path.join(name) })
    }

    /// What the kernel says of it.
    pub(super) fn itself(&self) -> nix::Result<Found> {
        fstat(&self.directory).map(|stat| Found::new(self, Path::new("."), &stat))
    }

    /// Whether it has something of this name.
    pub(super) fn has(&self, name: &Path) -> bool {
        fstatat(&self.directory, name, AtFlags::AT_SYMLINK_NOFOLLOW).is_ok()
    }
}

/// A look around, and what has come of it.
pub(super) struct Look {
    due: Instant,
    /// What may still be looked at, and listed.
    entries: usize,
    names: usize,
    /// What may still be looked at in the place in hand.
    left: usize,
    pub(super) found: BTreeMap<PathBuf, Found>,
    pub(super) partial: BTreeSet<PathBuf>,
    pub(super) closed: BTreeMap<PathBuf, Found>,
    pub(super) still: Still,
    /// Directories of git that were looked at.
    pub(super) repositories: BTreeSet<PathBuf>,
}

impl Look {
    /// It is over when it is due, whatever it has seen.
    pub(super) fn new(due: Instant) -> Self {
        Self {
            due,
            entries: MOST,
            names: MOST_NAMES,
            left: MOST_IN_ONE,
            found: BTreeMap::new(),
            partial: BTreeSet::new(),
            closed: BTreeMap::new(),
            still: Still::now(),
            repositories: BTreeSet::new(),
        }
    }

    /// The top of a root. First all that is there, then what is inside: what is large must not
    /// hide what is not.
    pub(super) fn root(&mut self, root: &Path) {
        let Ok(mut top) = Open::at(root) else { return self.leave_out(root) };
        let is_meant = |name: &OsStr| is_watched(name.as_ref()) || protected_in(name).next().is_some();
        let names = self.names(&mut top, usize::MAX, is_meant);
        let (protected, gates): (Vec<_>, Vec<_>) = names.into_iter().partition(|name| is_watched(name));
        self.begin_place();
        let directories: Vec<_> =
            protected.into_iter().filter(|name| self.at(&top, name) == Some(Kind::Directory)).collect();
        for name in directories {
            self.begin_place();
            self.place(root, &top, &name);
        }
        for name in gates {
            self.begin_place();
            self.gate(root, &top, &name);
        }
    }

    /// What may be looked at in one place is counted anew.
    pub(super) fn begin_place(&mut self) {
        self.left = MOST_IN_ONE;
    }

    /// A protected directory at the top of a root.
    fn place(&mut self, root: &Path, top: &Open, name: &Path) {
        let folded = fold(name.as_os_str());
        if folded == ".git" {
            return self.repository(&root.join(name));
        }
        let Some(inside) = top.inner(name) else { return self.leave_out(&root.join(name)) };
        match PARTS.iter().find(|(whole, _)| *whole == folded) {
            Some((_, parts)) => parts.iter().for_each(|part| self.part(&inside, part.as_ref())),
            None => self.inside(Some(root), inside, 0),
        }
    }

    /// A directory that is not protected, but has something protected in it.
    fn gate(&mut self, root: &Path, top: &Open, name: &Path) {
        let Some(mut inside) = top.inner(name) else { return self.not_opened(top, name) };
        // Those without a dot are large, and only what is known by both names counts there.
        let names = match name.as_os_str().as_bytes().starts_with(b".") {
            true => self.names(&mut inside, self.left, |_| true),
            false => protected_in(name.as_os_str()).map(PathBuf::from).collect(),
        };
        for inner in names {
            if inside.path.join(&inner).strip_prefix(root).is_ok_and(is_watched) {
                self.part(&inside, &inner);
            }
        }
    }

    /// Something cannot be opened that is a directory only to hold what is protected. If it is none,
    /// nothing is in it, as long as it stays so. Whoever closes one may open it again and say nothing.
    pub(super) fn not_opened(&mut self, above: &Open, name: &Path) {
        let path = above.path.join(name);
        match fstatat(&above.directory, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(stat) => match Found::new(above, name, &stat) {
                found if found.kind == Kind::Directory => {
                    self.leave_out(&path);
                    self.closed.insert(path, found);
                }
                found => self.still.noted(path, found),
            },
            Err(Errno::ENOENT | Errno::ENOTDIR) => self.still.missing(path),
            Err(_) => self.leave_out(&path),
        }
    }

    /// One thing in a directory, and all that is in it.
    pub(super) fn part(&mut self, above: &Open, name: &Path) {
        if self.at(above, name) == Some(Kind::Directory) {
            match above.inner(name) {
                Some(inside) => self.inside(None, inside, 0),
                None => self.leave_out(&above.path.join(name)),
            }
        }
    }

    /// All that is in a directory; beneath a root, what is protected there.
    fn inside(&mut self, root: Option<&Path>, mut above: Open, depth: usize) {
        for name in self.names(&mut above, self.left, |_| true) {
            let path = above.path.join(&name);
            let is_left_out = match root {
                Some(root) => !path.strip_prefix(root).is_ok_and(is_watched),
                None => is_sample(&path),
            };
            if is_left_out || self.at(&above, &name) != Some(Kind::Directory) {
                continue;
            }
            match above.inner(&name) {
                Some(inside) if depth < MOST_DEPTH => self.inside(root, inside, depth + 1),
                _ => self.leave_out(&path),
            }
        }
    }

    /// The names in a directory that are meant; at most so many are listed.
    pub(super) fn names(
        &mut self,
        above: &mut Open,
        most: usize,
        is_meant: impl Fn(&OsStr) -> bool,
    ) -> Vec<PathBuf> {
        let mut names = Vec::new();
        self.still.listed(above);
        for entry in above.directory.iter() {
            let Ok(entry) = entry else {
                self.leave_out(&above.path);
                break;
            };
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name == "." || name == ".." {
                continue;
            }
            if self.names == 0 || names.len() >= most || Instant::now() > self.due {
                self.leave_out(&above.path);
                break;
            }
            self.names -= 1;
            if is_meant(name) {
                names.push(name.into());
            }
        }
        names
    }

    /// Looks at something in a directory: what it is, if it is there.
    fn at(&mut self, above: &Open, name: &Path) -> Option<Kind> {
        let path = above.path.join(name);
        if self.entries == 0 || self.left == 0 || Instant::now() > self.due {
            self.leave_out(&above.path);
            return None;
        }
        self.entries -= 1;
        self.left -= 1;
        match fstatat(&above.directory, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Ok(stat) => {
                let found = Found::new(above, name, &stat);
                let kind = found.kind;
                self.found.insert(path, found);
                Some(kind)
            }
            Err(Errno::ENOENT | Errno::ENOTDIR) => {
                self.still.missing(path);
                None
            }
            Err(_) => {
                self.leave_out(&path);
                None
            }
        }
    }

    /// Not all of this was looked at: the bounds were reached, or it cannot be read.
    pub(super) fn leave_out(&mut self, path: &Path) {
        self.partial.insert(path.to_path_buf());
    }
}

impl Found {
    /// Whether the kernel says the same of something.
    pub(super) fn is_as(&self, stat: &FileStat) -> bool {
        (self.mode, self.inode, self.size) == (stat.st_mode.into(), stat.st_ino, stat.st_size)
            && self.times == times(stat)
    }

    fn new(above: &Open, name: &Path, stat: &FileStat) -> Self {
        let kind = match SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT {
            SFlag::S_IFDIR => Kind::Directory,
            SFlag::S_IFLNK => Kind::Link,
            _ => Kind::Other,
        };
        let target = match kind {
            Kind::Link => readlinkat(&above.directory, name).ok().map(PathBuf::from),
            _ => None,
        };
        Self {
            kind,
            mode: stat.st_mode.into(),
            inode: stat.st_ino,
            size: stat.st_size,
            times: times(stat),
            target,
        }
    }
}

/// When content and anything else were changed last.
fn times(stat: &FileStat) -> [(i64, i64); 2] {
    [(stat.st_mtime, stat.st_mtime_nsec), (stat.st_ctime, stat.st_ctime_nsec)]
}
