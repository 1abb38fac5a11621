//! Files that the conductor puts into a directory that is an agent's to change, and takes
//! away again.
//!
//! The agent may have put a link wherever one of them is to be, or in the place of a
//! directory above it. So the way there is walked name by name from the directory's own
//! descriptor, and no link is followed: what it leads to is neither written nor removed.

use std::{
    ffi::OsStr,
    fs::{self, File},
    io::{self, Read},
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::{DirBuilderExt as _, PermissionsExt as _},
    },
    path::{Component, Path, PathBuf},
};

use nix::{
    errno::Errno,
    fcntl::{AT_FDCWD, OFlag, openat, renameat},
    sys::stat::{Mode, mkdirat},
    unistd::{UnlinkatFlags, unlinkat},
};

/// How a directory on the way is opened.
pub(super) const DIRECTORY: OFlag =
    OFlag::O_RDONLY.union(OFlag::O_DIRECTORY).union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);

/// How a new file is.
const NEW: OFlag = OFlag::O_WRONLY
    .union(OFlag::O_CREAT)
    .union(OFlag::O_EXCL)
    .union(OFlag::O_NOFOLLOW)
    .union(OFlag::O_CLOEXEC);

/// A directory with such files in it.
#[derive(Debug)]
pub(super) struct Beneath {
    path: PathBuf,
    directory: OwnedFd,
}

impl Beneath {
    /// Opens a directory, which is no link itself.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let directory = openat(AT_FDCWD, path, DIRECTORY, Mode::empty());
        Ok(Self { path: path.to_owned(), directory: directory.map_err(|errno| explain(path, errno))? })
    }

    /// Puts a file there, with these permissions; whatever has its name is replaced as a
    /// whole, since other processes may read it meanwhile.
    pub(super) fn put(&self, path: &Path, mode: u32, mut content: impl Read) -> io::Result<()> {
        let (above, name) = self.walk(path, true)?;
        // Processes of one agent may start at the same time.
        let beside = format!(".new-{}", uuid::Uuid::now_v7());
        let mut write = || {
            let file = openat(&above, beside.as_str(), NEW, Mode::from_bits_truncate(0o600))?;
            let mut file = File::from(file);
            file.set_permissions(fs::Permissions::from_mode(mode & 0o777))?;
            io::copy(&mut content, &mut file)?;
            Ok(renameat(&above, beside.as_str(), &above, name)?)
        };
        write().map_err(|error: io::Error| {
            let _ = unlinkat(&above, beside.as_str(), UnlinkatFlags::NoRemoveDir);
            explained(&error, &format!("cannot write {}", self.path.join(path).display()))
        })
    }

    /// Takes a file away; that there is none is fine.
    pub(super) fn remove(&self, path: &Path) -> io::Result<()> {
        let removed = self.walk(path, false).and_then(|(above, name)| {
            unlinkat(above, name, UnlinkatFlags::NoRemoveDir)
                .map_err(|errno| explain(&self.path.join(path), errno))
        });
        match removed {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }

    /// The directory that a file is in, and its name there.
    fn walk<'a>(&self, path: &'a Path, makes: bool) -> io::Result<(OwnedFd, &'a OsStr)> {
        let name = |part: Component<'a>| match part {
            Component::Normal(name) => Ok(name),
            _ => Err(explain(path, Errno::EINVAL)),
        };
        let mut parts = path.components();
        let last = name(parts.next_back().ok_or_else(|| explain(path, Errno::EINVAL))?)?;
        let mut directory = self.directory.try_clone()?;
        let mut shown = self.path.clone();
        for part in parts {
            let part = name(part)?;
            shown.push(part);
            directory = step(&directory, part, makes).map_err(|errno| explain(&shown, errno))?;
        }
        Ok((directory, last))
    }
}

/// The directory of this name; made if it is missing.
fn step(from: impl AsFd, name: &OsStr, makes: bool) -> nix::Result<OwnedFd> {
    match openat(&from, name, DIRECTORY, Mode::empty()) {
        Err(Errno::ENOENT) if makes => {}
        opened => return opened,
    }
    match mkdirat(&from, name, Mode::from_bits_truncate(0o700)) {
        // Another process starts at the same time.
        Ok(()) | Err(Errno::EEXIST) => {}
        Err(errno) => return Err(errno),
    }
    openat(&from, name, DIRECTORY, Mode::empty())
}

/// Writes a file of the conductor's own, for nobody else, and makes the directory it is in.
pub(super) fn put(target: &Path, content: &[u8]) -> io::Result<()> {
    let (Some(parent), Some(name)) = (target.parent(), target.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(parent)
        .map_err(|error| explained(&error, &format!("cannot make {}", parent.display())))?;
    Beneath::open(parent)?.put(Path::new(name), 0o600, content)
}

fn explain(path: &Path, errno: Errno) -> io::Error {
    let path = path.display();
    let why = match errno {
        // Which of the two it is depends on the system.
        Errno::ELOOP | Errno::ENOTDIR => {
            format!(
                "{path} is a link, or no directory, and the conductor's own files go through neither; move it away"
            )
        }
        Errno::EINVAL => format!("{path} is no path beneath a directory"),
        errno => format!("{path}: {}", errno.desc()),
    };
    io::Error::new(io::Error::from(errno).kind(), why)
}

/// The same error, with what was tried.
pub(super) fn explained(error: &io::Error, what: &str) -> io::Error {
    io::Error::new(error.kind(), format!("{what}: {error}"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use std::os::unix::fs::{MetadataExt as _, symlink};

    use super::*;

    #[test]
    fn no_link_is_followed() {
        let temp = tempfile::tempdir().unwrap();
        let (home, elsewhere) = (temp.path().join("home"), temp.path().join("elsewhere"));
        for directory in [&home, &elsewhere] {
            fs::create_dir(directory).unwrap();
        }
        fs::write(elsewhere.join("kept"), "kept").unwrap();
        let beneath = Beneath::open(&home).unwrap();
        // The name itself: the link is replaced, or removed.
        symlink(elsewhere.join("kept"), home.join("file")).unwrap();
        beneath.put(Path::new("file"), 0o640, &b"new"[..]).unwrap();
        let metadata = fs::symlink_metadata(home.join("file")).unwrap();
        assert!(metadata.is_file() && metadata.mode() & 0o777 == 0o640);
        symlink(elsewhere.join("kept"), home.join("other")).unwrap();
        beneath.remove(Path::new("other")).unwrap();
        assert!(fs::symlink_metadata(home.join("other")).is_err());
        // A directory on the way.
        symlink(&elsewhere, home.join("way")).unwrap();
        let refused = beneath.put(Path::new("way/kept"), 0o600, &b"new"[..]).unwrap_err().to_string();
        assert!(refused.contains("home/way is a link"), "{refused}");
        beneath.remove(Path::new("way/kept")).unwrap_err();
        assert_eq!(fs::read_to_string(elsewhere.join("kept")).unwrap(), "kept");
        assert_eq!(fs::read_dir(&elsewhere).unwrap().count(), 1);
        // The directory itself.
        Beneath::open(&home.join("way")).unwrap_err();
        for outside in ["..", "../elsewhere/kept", "/etc/passwd", "", "."] {
            beneath.remove(Path::new(outside)).unwrap_err();
            beneath.put(Path::new(outside), 0o600, &b""[..]).unwrap_err();
        }
    }

    #[test]
    fn what_is_missing_on_the_way_is_made_and_what_is_gone_is_fine() {
        let temp = tempfile::tempdir().unwrap();
        let beneath = Beneath::open(temp.path()).unwrap();
        beneath.remove(Path::new("a/b/c")).unwrap();
        beneath.put(Path::new("a/b/c"), 0o600, &b"text"[..]).unwrap();
        assert_eq!(fs::read_to_string(temp.path().join("a/b/c")).unwrap(), "text");
        assert_eq!(fs::metadata(temp.path().join("a/b")).unwrap().mode() & 0o777, 0o700);
        // One that cannot be written leaves nothing behind.
        beneath.put(Path::new("a/b"), 0o600, &b"text"[..]).unwrap_err();
        assert_eq!(fs::read_dir(temp.path().join("a")).unwrap().count(), 1);
    }
}
