//! The places that a bubble keeps as they are, found and, if need be, made.
//!
//! Each is mounted on itself, read-only. A mount holds a directory only as long as nobody
//! moves one above it away, so every directory between it and what cannot be moved is mounted
//! on itself, too. A link is never followed, and nothing can be mounted on it: whoever may
//! change its directory can replace it, so it is said that it is open.
//!
//! Where a directory is missing that must not be made, an empty one is made and removed again
//! at the end. Several guards may need the same one, and one that is removed takes the mounts
//! on it along: so each that uses it holds a lock, and the last one removes it. It is known by
//! its sticky bit, which means nothing to anybody else, also if a guard was killed and could
//! not remove it: then the next one does. The same goes for a file that a program would write
//! into such a directory at every start, and does not start without.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs::{self, File},
    io::{Read as _, Write as _},
    os::{fd::OwnedFd, unix::fs::OpenOptionsExt as _},
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::Duration,
};

use nix::{
    errno::Errno,
    fcntl::{AT_FDCWD, AtFlags, OFlag, openat},
    libc,
    sys::stat::{FileStat, Mode, SFlag, fchmod, fstat, fstatat, mkdirat},
    unistd::{UnlinkatFlags, unlinkat},
};

use crate::contain::{
    Files,
    bubble::{Bubble, GIT, IGNORE, IGNORED, IN_REPOSITORY, IN_ROOT, Place},
};

/// Those that a bubble mounts by itself.
const MOUNTED: [&str; 3] = ["/dev", "/dev/shm", "/proc"];

/// How often a directory is made anew, or its lock asked for again: others hold it for as long
/// as it takes to remove an empty directory.
const MOST_TRIES: usize = 20;
const TRY_AGAIN_AFTER: Duration = Duration::from_millis(5);

/// The longest file that says where a repository is.
const LONGEST_POINTER: u64 = 8 << 10;

/// Is only opened to name it.
const NAME_ONLY: OFlag = OFlag::O_PATH.union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);

/// How something is mounted on itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mount {
    /// It cannot be moved or removed; what is in it can be changed.
    Pinned,
    /// Nothing in it can be changed either.
    Fixed,
}

/// The protected places of a command. Dropping it removes what was made for it.
#[derive(Debug, Default)]
pub struct Protected {
    /// What is mounted, sorted: a directory stands before what is in it.
    pub mounts: BTreeMap<PathBuf, Mount>,
    /// What cannot be held.
    pub open: Vec<PathBuf>,
    made: Vec<Made>,
    /// What the command may change.
    writable: Vec<PathBuf>,
}

impl Protected {
    /// Those of a bubble for a command that can reach these files.
    pub fn find(bubble: &Bubble, reach: Option<&Files>) -> Self {
        let everything = [PathBuf::from("/")];
        let writable = reach.map_or(&everything[..], |files| &files.write);
        let real = |paths: &[PathBuf]| paths.iter().filter_map(|path| path.canonicalize().ok()).collect();
        let roots: Vec<PathBuf> = real(&bubble.roots);
        let mut found = Self::default();
        found.writable = real(writable);
        for root in &roots {
            found.protect(root, IN_ROOT);
            found.protect_repository(root);
        }
        found.leave_writable();
        found
    }

    /// What is mounted read-only.
    pub fn fixed(&self) -> impl Iterator<Item = &PathBuf> {
        self.mounts.iter().filter(|(_, mount)| **mount == Mount::Fixed).map(|(path, _)| path)
    }

    /// Protects what is in the repository of a root. Of a copy that has it elsewhere it is the
    /// one that its file names, and the one that it shares with others.
    fn protect_repository(&mut self, root: &Path) {
        let git = root.join(GIT);
        let Ok(directory) = open(root) else { return };
        let elsewhere = match Kind::of(&directory, OsStr::new(GIT)) {
            Kind::Absent => return,
            Kind::Directory | Kind::Marked => return self.protect(&git, IN_REPOSITORY),
            Kind::Link => {
                self.leave_open(git.clone());
                git.canonicalize().ok()
            }
            Kind::File => {
                self.fix(git.clone());
                pointer(&git, "gitdir:").and_then(|path| root.join(path).canonicalize().ok())
            }
        };
        let Some(elsewhere) = elsewhere else { return };
        let shared = pointer(&elsewhere.join("commondir"), "");
        let shared = shared.and_then(|path| elsewhere.join(path).canonicalize().ok());
        for repository in [Some(elsewhere), shared].into_iter().flatten() {
            if self.writable.iter().any(|writable| repository.starts_with(writable)) {
                self.protect(&repository, IN_REPOSITORY);
            }
        }
    }

    /// Protects some places in a directory.
    fn protect(&mut self, base: &Path, places: &[Place]) {
        // What is not there, or not for this user, cannot be changed by the command.
        let Ok(directory) = open(base) else { return };
        let directory = Arc::new(directory);
        for place in places {
            self.look(base, &directory, place);
        }
    }

    /// Protects one place.
    fn look(&mut self, base: &Path, directory: &Arc<OwnedFd>, place: &Place) {
        if self.writable.contains(&base.join(place.path)) {
            // The configuration or the agent's profile says that it is the agent's own.
            return;
        }
        let (mut path, mut parent) = (base.to_path_buf(), directory.clone());
        let mut names = Path::new(place.path).iter().peekable();
        while let Some(name) = names.next() {
            path.push(name);
            match Kind::of(&parent, name) {
                Kind::Absent if !place.even_absent => return,
                Kind::Absent | Kind::Marked => match Made::take(&parent, name, Form::Directory) {
                    Ok(made) => self.made.push(made),
                    // Nor can the command make it, who is the same user.
                    Err(Errno::EACCES | Errno::EPERM | Errno::EROFS) => return,
                    Err(_) => return self.leave_open(path),
                },
                Kind::Link => return self.leave_open(path),
                Kind::Directory => {}
                // In the place of a directory, it must not become one.
                Kind::File => break,
            }
            if names.peek().is_some() {
                let Ok(next) = openat(&*parent, name, NAME_ONLY | OFlag::O_DIRECTORY, Mode::empty()) else {
                    return self.leave_open(path);
                };
                parent = Arc::new(next);
            }
        }
        if place.with_ignore {
            self.put_ignore(&path);
        }
        self.fix(path);
    }

    /// Puts a file into a directory that its program would write there.
    fn put_ignore(&mut self, directory: &Path) {
        // Without it the program says what it misses.
        let Ok(directory) = open(directory) else { return };
        self.made.extend(Made::take(&Arc::new(directory), OsStr::new(IGNORE), Form::Ignore));
    }

    /// Nothing in it can be changed, nor can it be replaced.
    fn fix(&mut self, path: PathBuf) {
        let above: Vec<PathBuf> = path.ancestors().skip(1).map(Path::to_path_buf).collect();
        for directory in above {
            let is_movable = self
                .writable
                .iter()
                .any(|writable| directory != *writable && directory.starts_with(writable));
            if is_movable {
                self.pin(directory);
            }
        }
        self.mounts.insert(path, Mount::Fixed);
    }

    /// It cannot be held.
    fn leave_open(&mut self, path: PathBuf) {
        if !self.open.contains(&path) {
            self.open.push(path);
        }
    }

    fn pin(&mut self, path: PathBuf) {
        if !MOUNTED.iter().any(|mounted| path == Path::new(mounted)) {
            self.mounts.entry(path).or_insert(Mount::Pinned);
        }
    }

    /// What is named as writable stays so inside a place that is not.
    fn leave_writable(&mut self) {
        let fixed: Vec<PathBuf> = self.fixed().cloned().collect();
        let inside = |path: &&PathBuf| fixed.iter().any(|place| path.starts_with(place));
        let inside: Vec<PathBuf> = self.writable.iter().filter(inside).cloned().collect();
        for path in inside {
            self.pin(path);
        }
    }
}

impl Drop for Protected {
    fn drop(&mut self) {
        // The last one may be in the one before.
        while let Some(made) = self.made.pop() {
            made.remove();
        }
    }
}

/// What has a name in a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Absent,
    Directory,
    /// A directory that a guard has made, or that looks like it.
    Marked,
    Link,
    File,
}

impl Kind {
    fn of(parent: &OwnedFd, name: &OsStr) -> Self {
        let Ok(found) = fstatat(parent, name, AtFlags::AT_SYMLINK_NOFOLLOW) else { return Self::Absent };
        match SFlag::from_bits_truncate(found.st_mode) & SFlag::S_IFMT {
            SFlag::S_IFDIR if is_marked(&found) => Self::Marked,
            SFlag::S_IFDIR => Self::Directory,
            SFlag::S_IFLNK => Self::Link,
            _ => Self::File,
        }
    }
}

fn is_marked(found: &FileStat) -> bool {
    Mode::from_bits_truncate(found.st_mode).contains(Mode::S_ISVTX)
}

/// What a guard makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// An empty directory.
    Directory,
    /// A `.gitignore` that hides nothing but itself.
    Ignore,
}

impl Form {
    fn make(self, parent: &OwnedFd, name: &Path) -> nix::Result<()> {
        let marked = |mode: u32| Mode::S_ISVTX | Mode::from_bits_truncate(mode);
        match self {
            Self::Directory => mkdirat(parent, name, marked(0o755)),
            Self::Ignore => {
                let flags = OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_WRONLY | OFlag::O_CLOEXEC;
                let file = openat(parent, name, flags, marked(0o644))?;
                // One that stays empty serves as well.
                File::from(file).write_all(IGNORED.as_bytes()).ok();
                Ok(())
            }
        }
    }

    fn open(self, parent: &OwnedFd, name: &Path) -> nix::Result<File> {
        let flags = match self {
            Self::Directory => OFlag::O_DIRECTORY,
            Self::Ignore => OFlag::O_NONBLOCK,
        };
        openat(parent, name, flags | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC, Mode::empty()).map(File::from)
    }
}

/// Something that is there because a guard needs it.
#[derive(Debug)]
struct Made {
    parent: Arc<OwnedFd>,
    name: PathBuf,
    form: Form,
    /// Locked by everyone who needs it.
    handle: File,
    /// This guard has made it.
    is_new: bool,
}

impl Made {
    /// Makes it, or shares the one that another guard has made.
    fn take(parent: &Arc<OwnedFd>, name: &OsStr, form: Form) -> nix::Result<Self> {
        let name = PathBuf::from(name);
        for _ in 0..MOST_TRIES {
            let is_new = match form.make(parent, &name) {
                Ok(()) => true,
                Err(Errno::EEXIST) => false,
                Err(error) => return Err(error),
            };
            let handle = match form.open(parent, &name) {
                Ok(handle) => handle,
                Err(Errno::ENOENT) => continue,
                Err(error) => return Err(error),
            };
            if form == Form::Ignore && !fstat(&handle).is_ok_and(|found| is_marked(&found)) {
                // It is somebody's own, and does as well.
                return Err(Errno::EEXIST);
            }
            let made = Self { parent: parent.clone(), name: name.clone(), form, handle, is_new };
            match made.handle.try_lock_shared() {
                // Somebody has removed it in between.
                Ok(()) if !made.is_there() => {}
                Ok(()) => return Ok(made),
                Err(fs::TryLockError::WouldBlock) => thread::sleep(TRY_AGAIN_AFTER),
                // A disk that knows no locks: then it stays, rather than be removed too early.
                Err(fs::TryLockError::Error(_)) => return Ok(made),
            }
        }
        Err(Errno::EBUSY)
    }

    /// Whether its name still means this one.
    fn is_there(&self) -> bool {
        let named = fstatat(&*self.parent, &self.name, AtFlags::AT_SYMLINK_NOFOLLOW);
        let identity = |found: FileStat| (found.st_dev, found.st_ino);
        match (named, fstat(&self.handle)) {
            (Ok(named), Ok(own)) => identity(named) == identity(own),
            _ => false,
        }
    }

    /// Removes it, unless somebody needs it or has put something into it. Then it is theirs.
    fn remove(self) {
        if self.handle.try_lock().is_err() || !self.is_there() {
            return;
        }
        let is_theirs = match self.form {
            Form::Directory => {
                unlinkat(&*self.parent, &self.name, UnlinkatFlags::RemoveDir) == Err(Errno::ENOTEMPTY)
            }
            Form::Ignore if self.is_unwritten() => {
                unlinkat(&*self.parent, &self.name, UnlinkatFlags::NoRemoveDir).ok();
                false
            }
            Form::Ignore => true,
        };
        if is_theirs && self.is_new {
            let mode = fstat(&self.handle).map(|found| Mode::from_bits_truncate(found.st_mode));
            // A mark that stays means nothing to anybody.
            mode.and_then(|mode| fchmod(&self.handle, mode.difference(Mode::S_ISVTX))).ok();
        }
    }

    /// Whether the file is as it was made.
    fn is_unwritten(&self) -> bool {
        let mut text = Vec::new();
        let read = (&self.handle).take(IGNORED.len() as u64 + 1).read_to_end(&mut text);
        read.is_ok() && (text.is_empty() || text == IGNORED.as_bytes())
    }
}

fn open(directory: &Path) -> nix::Result<OwnedFd> {
    openat(AT_FDCWD, directory, NAME_ONLY | OFlag::O_DIRECTORY, Mode::empty())
}

/// The path in a small file, behind a word.
fn pointer(file: &Path, word: &str) -> Option<PathBuf> {
    // What is no file must not keep us waiting.
    let opened = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(file).ok()?;
    let mut text = String::new();
    opened.take(LONGEST_POINTER).read_to_string(&mut text).ok()?;
    let path = text.strip_prefix(word)?.trim();
    (!path.is_empty()).then(|| PathBuf::from(path))
}
