//! The control group that the guard makes for its command, and by which it kills it.

use std::{
    fs::{self, File},
    io,
    os::fd::{AsFd, BorrowedFd},
    path::{Path, PathBuf},
};

use crate::contain::cells::Places;

/// A group that the command is born into. Dropping it removes it.
#[derive(Debug)]
pub struct Group {
    directory: PathBuf,
    handle: File,
}

impl Group {
    /// Makes one within another.
    pub fn make(within: &Path) -> io::Result<Self> {
        let directory = within.join(std::process::id().to_string());
        fs::create_dir(&directory)?;
        // Kernels before 5.14 cannot kill a group at once; then it is of no use here.
        let opened = fs::metadata(directory.join("cgroup.kill")).and_then(|_| File::open(&directory));
        match opened {
            Ok(handle) => Ok(Self { directory, handle }),
            Err(error) => {
                fs::remove_dir(&directory).ok();
                Err(error)
            }
        }
    }

    /// Where it is.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Kills all that are in it, at once.
    pub fn kill(&self) {
        // The walk over all descendants follows in any case.
        fs::write(self.directory.join("cgroup.kill"), "1").ok();
    }

    /// Whether somebody is in it.
    pub fn is_populated(&self) -> bool {
        let events = fs::read_to_string(self.directory.join("cgroup.events")).unwrap_or_default();
        events.lines().any(|line| line == "populated 1")
    }
}

impl AsFd for Group {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The conductor removes what cannot be removed here, with the cell.
        fs::remove_dir(&self.directory).ok();
    }
}

/// Removes the groups of a cell whose service is gone, and the service's own, as soon as
/// nobody else is in them.
pub fn forsake(places: &Places) {
    for directory in places.within.iter().chain(&places.join) {
        fs::remove_dir(directory).ok();
        directory.parent().map(fs::remove_dir);
    }
}
