//! The one way from a path that an agent names to something open beneath the
//! session's directories.
//!
//! Comparing texts cannot tell where a path leads: links, `..` and what is
//! swapped between check and use all cheat it. So every root is opened once,
//! and the kernel itself resolves the rest of a path beneath that descriptor
//! (`openat2` with `RESOLVE_BENEATH`). What text decides here is only which root
//! is meant.

use std::{
    ffi::OsString,
    io,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
};

use nix::{
    errno::Errno,
    fcntl::{AT_FDCWD, OFlag, ResolveFlag},
    sys::stat::{Mode, mkdirat},
};
use serde_json::json;

use crate::{
    acp::{Refusal, code},
    cwd_map::encode,
    frame,
};

/// The longest path a kernel takes.
const LONGEST: usize = 4096;

/// The kernel gives up, asking to try again, when directories are moved while
/// it walks through them. More often than this they are moved on purpose.
const TRIES: usize = 64;

/// How a directory is opened that is only walked through.
const DIRECTORY: OFlag = OFlag::O_PATH.union(OFlag::O_DIRECTORY);

/// The directories of a session.
#[derive(Debug)]
pub struct Roots {
    all: Vec<Root>,
}

#[derive(Debug)]
struct Root {
    /// As the editor and thus the agent call it.
    given: PathBuf,
    /// Without links.
    real: PathBuf,
    directory: OwnedFd,
}

/// Where a file is to be written.
#[derive(Debug)]
pub struct Target {
    /// The directory it is in.
    pub directory: OwnedFd,
    /// Its name there.
    pub name: OsString,
    /// What is there now, opened for writing.
    pub existing: Option<OwnedFd>,
}

impl Roots {
    /// Opens the directories, each given as the editor calls it and as it is
    /// without links. The first is the one the session works in.
    pub fn open(directories: Vec<(PathBuf, PathBuf)>) -> Result<Self, String> {
        let open = |(given, real): (PathBuf, PathBuf)| {
            // It has no links now; if it has some by the time it is opened,
            // somebody is playing tricks.
            let flags = ResolveFlag::RESOLVE_NO_SYMLINKS | ResolveFlag::RESOLVE_NO_MAGICLINKS;
            match resolve(AT_FDCWD, &real, DIRECTORY, flags) {
                Ok(directory) => Ok(Root { given, real, directory }),
                // Some sandboxes forbid what they do not know.
                Err(Errno::ENOSYS | Errno::EPERM) => Err(NO_OPENAT2.to_string()),
                Err(errno) => Err(format!("cannot open {}: {}", real.display(), errno.desc())),
            }
        };
        Ok(Self { all: directories.into_iter().map(open).collect::<Result<_, _>>()? })
    }

    /// A second descriptor of the directory the session works in.
    pub fn first(&self) -> io::Result<OwnedFd> {
        match self.all.first() {
            Some(root) => root.directory.try_clone(),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// Opens a file beneath the roots. `judged` is where the path led when that was judged: it is
    /// opened there and nowhere else. If that could not be told, there must be no link on the way.
    pub fn file(&self, path: &str, judged: Option<&Path>, flags: OFlag) -> Result<OwnedFd, Refusal> {
        self.look_at(path)?;
        let place = judged.unwrap_or(Path::new(path));
        self.reach_plain(place, flags).map_err(|errno| self.explain_judged(path, judged, errno))
    }

    /// Opens a directory beneath the roots.
    pub fn directory(&self, path: &str) -> Result<OwnedFd, Refusal> {
        self.look_at(path)?;
        self.reach(Path::new(path), DIRECTORY).map_err(|errno| self.explain(path, errno))
    }

    /// Finds where a file is to be written, as [`Self::file`] does; makes the directories above it.
    pub fn target(&self, path: &str, judged: Option<&Path>) -> Result<Target, Refusal> {
        self.look_at(path)?;
        let place = judged.unwrap_or(Path::new(path));
        self.find_target(place).map_err(|errno| self.explain_judged(path, judged, errno))
    }

    /// What is wrong with a path whatever the disk looks like.
    fn look_at(&self, path: &str) -> Result<(), Refusal> {
        let shown = shown(path);
        let invalid = |text: String| Err(Refusal::new(code::INVALID_PARAMS, text));
        if !path.starts_with('/') {
            return invalid(format!("paths must be absolute, and `{shown}` is not; begin it with /"));
        }
        if path.contains('\0') {
            return invalid(format!("`{shown}` is no path: it has a NUL character in it"));
        }
        if path.len() >= LONGEST {
            return invalid(format!("`{shown}` is longer than the {LONGEST} bytes a path may have"));
        }
        Ok(())
    }

    /// Opens what the path leads to. `EXDEV` means that it is outside.
    fn reach(&self, path: &Path, flags: OFlag) -> nix::Result<OwnedFd> {
        for (root, rest) in self.rooted(path) {
            match beneath(&root.directory, rest, flags, ResolveFlag::empty()) {
                Err(Errno::EXDEV | Errno::ELOOP) => {}
                opened => return opened,
            }
        }
        // The kernel refuses every absolute link, also one that leads back in,
        // and knows nothing of links from one root into another. So the
        // destination itself is tried, which must be beneath a root, link-free.
        let real = path.canonicalize().map_err(|_| Errno::EXDEV)?;
        for (root, rest) in self.rooted(&real) {
            match beneath(&root.directory, rest, flags, ResolveFlag::RESOLVE_NO_SYMLINKS) {
                Err(Errno::EXDEV | Errno::ELOOP) => {}
                opened => return opened,
            }
        }
        Err(Errno::EXDEV)
    }

    /// Opens a place that must have no links on the way; `ELOOP` means that it has some.
    fn reach_plain(&self, place: &Path, flags: OFlag) -> nix::Result<OwnedFd> {
        let mut outcome = Err(Errno::EXDEV);
        for (root, rest) in self.rooted(place) {
            outcome = beneath(&root.directory, rest, flags, ResolveFlag::RESOLVE_NO_SYMLINKS);
            if outcome.is_ok() {
                break;
            }
        }
        outcome
    }

    /// The roots that a path begins with, and what follows them.
    fn rooted<'a>(&'a self, path: &'a Path) -> impl Iterator<Item = (&'a Root, &'a Path)> {
        self.all.iter().filter_map(move |root| {
            let rest = path.strip_prefix(&root.given).or_else(|_| path.strip_prefix(&root.real)).ok()?;
            Some((root, if rest.as_os_str().is_empty() { Path::new(".") } else { rest }))
        })
    }

    fn find_target(&self, place: &Path) -> nix::Result<Target> {
        // A path that ends in `..` or is a root has no name to write to.
        let (Some(above), Some(name)) = (place.parent(), place.file_name()) else {
            return Err(Errno::EISDIR);
        };
        if self.rooted(place).any(|(_, rest)| rest == Path::new(".")) {
            return Err(Errno::EISDIR);
        }
        let directory = self.make(above)?;
        let flags = OFlag::O_WRONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
        match beneath(&directory, Path::new(name), flags, ResolveFlag::RESOLVE_NO_SYMLINKS) {
            Ok(existing) => Ok(Target { directory, name: name.into(), existing: Some(existing) }),
            Err(Errno::ENOENT) => Ok(Target { directory, name: name.into(), existing: None }),
            Err(errno) => Err(errno),
        }
    }

    /// Opens a directory, and makes it and those above it if they are missing.
    fn make(&self, path: &Path) -> nix::Result<OwnedFd> {
        match self.reach_plain(path, DIRECTORY) {
            Err(Errno::ENOENT) => {}
            found => return found,
        }
        let (Some(above), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(Errno::ENOENT);
        };
        let above = self.make(above)?;
        match mkdirat(&above, name, Mode::from_bits_truncate(0o777)) {
            Ok(()) | Err(Errno::EEXIST) => {}
            Err(errno) => return Err(errno),
        }
        beneath(&above, Path::new(name), DIRECTORY, ResolveFlag::RESOLVE_NO_SYMLINKS)
    }

    /// Says what went wrong with a path that was judged.
    fn explain_judged(&self, path: &str, judged: Option<&Path>, errno: Errno) -> Refusal {
        match errno {
            Errno::ELOOP if judged.is_some() => Refusal::new(
                code::INVALID_PARAMS,
                format!(
                    "where `{}` leads has changed since it was judged: there is a link now that was not \
                     there before; ask again",
                    shown(path)
                ),
            ),
            errno => self.explain(path, errno),
        }
    }

    /// Says what went wrong with a path.
    pub fn explain(&self, path: &str, errno: Errno) -> Refusal {
        let shown = shown(path);
        let invalid = |text: String| Refusal::new(code::INVALID_PARAMS, text);
        match errno {
            Errno::EXDEV | Errno::ELOOP => {
                let roots: Vec<String> =
                    self.all.iter().map(|root| root.given.display().to_string()).collect();
                invalid(format!(
                    "`{shown}` lies outside this session's directories ({}), or a link leads out of them; \
                     use a path beneath them",
                    roots.join(", ")
                ))
            }
            Errno::ENOENT => Refusal {
                code: code::NOT_FOUND,
                message: format!("there is no `{shown}` on the conductor's host"),
                data: Some(json!({ "path": path, "uri": format!("file://{}", encode(path)) })),
            },
            Errno::EISDIR => invalid(format!("`{shown}` is a directory, not a file")),
            Errno::ENOTDIR => invalid(format!("`{shown}` is not a directory, or one above it is none")),
            Errno::ENAMETOOLONG | Errno::EINVAL => invalid(format!("`{shown}` is no path this system takes")),
            Errno::ENXIO => invalid(not_regular(path)),
            Errno::ENOSYS => Refusal::new(code::INTERNAL, NO_OPENAT2),
            Errno::EACCES | Errno::EPERM => Refusal::new(
                code::INTERNAL,
                format!("the conductor's user may not use `{shown}`; change the permissions on its host"),
            ),
            errno => Refusal::new(code::INTERNAL, format!("cannot use `{shown}`: {}", errno.desc())),
        }
    }
}

const NO_OPENAT2: &str = "this kernel cannot keep paths beneath a directory (openat2); \
     use Linux 5.6 or newer, or set workspace = \"editor\" for the agent";

/// The words for something that is neither file nor directory.
pub fn not_regular(path: &str) -> String {
    format!("`{}` is not a regular file", shown(path))
}

/// A path in a message: escaped, and not too long.
pub fn shown(path: &str) -> String {
    frame::escape(path.as_bytes(), 500)
}

/// Opens a path that the kernel keeps beneath the directory.
fn beneath(directory: &OwnedFd, path: &Path, flags: OFlag, more: ResolveFlag) -> nix::Result<OwnedFd> {
    let resolve_flags = ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS | more;
    for _ in 0..TRIES {
        match resolve(directory, path, flags, resolve_flags) {
            Err(Errno::EAGAIN | Errno::EINTR) => {}
            opened => return opened,
        }
    }
    Err(Errno::EXDEV)
}

#[cfg(target_os = "linux")]
fn resolve(from: impl AsFd, path: &Path, flags: OFlag, how: ResolveFlag) -> nix::Result<OwnedFd> {
    use nix::fcntl::{OpenHow, openat2};
    openat2(from, path, OpenHow::new().flags(flags | OFlag::O_CLOEXEC).resolve(how))
}

#[cfg(not(target_os = "linux"))]
fn resolve(_: impl AsFd, _: &Path, _: OFlag, _: ResolveFlag) -> nix::Result<OwnedFd> {
    Err(Errno::ENOSYS)
}
