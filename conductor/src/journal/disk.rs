//! What the journal asks of the file system: the few calls that can fail, in
//! one place, so that tests can let any of them fail.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::{FileExt as _, OpenOptionsExt as _},
    path::Path,
};

use nix::{
    errno::Errno,
    fcntl::{FallocateFlags, fallocate},
};

/// The file system, as far as the journal writes to it.
pub(super) trait Disk: Send + Sync {
    /// Makes a file that must not exist yet, for us alone to read and write.
    fn create(&self, path: &Path) -> io::Result<File>;
    /// Opens a file to be written on.
    fn open(&self, path: &Path) -> io::Result<File>;
    /// Writes some of the bytes at an offset.
    fn write_at(&self, file: &File, bytes: &[u8], at: u64) -> io::Result<usize>;
    /// Returns once everything written is on the medium.
    fn sync_data(&self, file: &File) -> io::Result<()>;
    /// The same for the file's size and owner, or for a directory's entries.
    fn sync_all(&self, file: &File) -> io::Result<()>;
    /// Cuts the file.
    fn set_len(&self, file: &File, len: u64) -> io::Result<()>;
    /// Sets blocks aside and makes the file that long; what is not written reads as zeros.
    fn reserve(&self, file: &File, len: u64) -> io::Result<()>;
    /// Replaces one file by another.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;
}

/// The real one.
pub(super) struct Kernel;

impl Disk for Kernel {
    fn create(&self, path: &Path) -> io::Result<File> {
        OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)
    }

    fn open(&self, path: &Path) -> io::Result<File> {
        OpenOptions::new().read(true).write(true).open(path)
    }

    fn write_at(&self, file: &File, bytes: &[u8], at: u64) -> io::Result<usize> {
        file.write_at(bytes, at)
    }

    fn sync_data(&self, file: &File) -> io::Result<()> {
        file.sync_data()
    }

    fn sync_all(&self, file: &File) -> io::Result<()> {
        file.sync_all()
    }

    fn set_len(&self, file: &File, len: u64) -> io::Result<()> {
        file.set_len(len)
    }

    fn reserve(&self, file: &File, len: u64) -> io::Result<()> {
        let len = i64::try_from(len).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        fallocate(file, FallocateFlags::empty(), 0, len).map_err(io::Error::from)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }
}

/// Repeats a call that a signal interrupted.
pub(super) fn retried<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

/// Writes all of the bytes, however many calls that takes.
pub(super) fn write_all(disk: &dyn Disk, file: &File, mut bytes: &[u8], mut at: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        match retried(|| disk.write_at(file, bytes, at))? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            written => {
                bytes = bytes.get(written..).unwrap_or_default();
                at += written as u64;
            }
        }
    }
    Ok(())
}

/// Sets blocks aside where the file system can; where it cannot, a full disk
/// shows itself later.
pub(super) fn set_aside(disk: &dyn Disk, file: &File, len: u64) -> io::Result<()> {
    match retried(|| disk.reserve(file, len)) {
        Err(error) if is_any(&error, &[Errno::EOPNOTSUPP, Errno::ENOSYS, Errno::EINVAL]) => Ok(()),
        other => other,
    }
}

/// Whether there is no room left.
pub(super) fn is_full(error: &io::Error) -> bool {
    is_any(error, &[Errno::ENOSPC, Errno::EDQUOT, Errno::EFBIG])
}

fn is_any(error: &io::Error, list: &[Errno]) -> bool {
    error.raw_os_error().is_some_and(|code| list.contains(&Errno::from_raw(code)))
}

/// Makes a directory's entries durable.
pub(super) fn sync_directory(disk: &dyn Disk, path: &Path) -> io::Result<()> {
    let directory = File::open(path)?;
    retried(|| disk.sync_all(&directory))
}

/// Puts a small file in place of another, whole or not at all.
pub(super) fn replace(disk: &dyn Disk, directory: &Path, name: &str, content: &[u8]) -> io::Result<()> {
    let draft = directory.join(format!("{name}.new"));
    match fs::remove_file(&draft) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let file = retried(|| disk.create(&draft))?;
    write_all(disk, &file, content, 0)?;
    retried(|| disk.sync_all(&file))?;
    retried(|| disk.rename(&draft, &directory.join(name)))?;
    sync_directory(disk, directory)
}
