//! A user without rights, of a test's own. Where the tests run as root, a service runs as
//! such a user instead: nearly everything that contains others lets root pass.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

use std::{
    fs,
    os::unix::{
        fs::{PermissionsExt as _, lchown},
        process::CommandExt as _,
    },
    path::{Path, PathBuf},
    process::Command,
    sync::atomic::{AtomicU32, Ordering},
};

use nix::unistd::Uid;

/// Below are the users of this host.
const FIRST: u32 = 1_000_000;

/// Tests of one process that may run at the same time.
const AT_ONCE: u32 = 64;

/// The one who is known everywhere, also where few ids are.
const NOBODY: u32 = 65_534;

/// A user without rights.
#[derive(Debug, Clone, Copy)]
pub struct User(u32);

impl User {
    /// Somebody nobody else is, so that limits on a user's processes count those of one test
    /// alone; `None` for whoever is not root, who has no rights anyway.
    pub fn without_rights() -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed) % AT_ONCE;
        let id = FIRST.saturating_add(std::process::id().saturating_mul(AT_ONCE)).saturating_add(number);
        Uid::current().is_root().then(|| Self(if is_mapped(id) { id } else { NOBODY }))
    }

    /// Has a command run as this user. The standard library drops all groups with it.
    pub fn run(self, command: &mut Command) {
        command.uid(self.0).gid(self.0);
    }

    /// Words before a command that root begins and this user goes on with.
    pub fn becoming(self) -> [String; 4] {
        let id = self.0;
        ["setpriv".to_owned(), format!("--reuid={id}"), format!("--regid={id}"), "--clear-groups".to_owned()]
    }

    /// Gives this user a file, or a directory with all that is in it.
    pub fn give(self, path: &Path) {
        lchown(path, Some(self.0), Some(self.0)).unwrap();
        let is_directory = fs::symlink_metadata(path).unwrap().is_dir();
        for entry in fs::read_dir(path).into_iter().flatten().filter(|_| is_directory) {
            self.give(&entry.unwrap().path());
        }
    }

    /// A path by which this user can run a program: its own, or that of a copy in `directory`
    /// where a home that is closed to others lies in between.
    pub fn reach(self, program: &Path, directory: &Path) -> PathBuf {
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode();
        let is_open = mode(program) & 0o005 == 0o005;
        if is_open && program.ancestors().skip(1).all(|above| mode(above) & 0o001 != 0) {
            return program.to_path_buf();
        }
        let copy = directory.join(program.file_name().unwrap());
        fs::create_dir_all(directory).unwrap();
        // Programs are large; a second name for one costs nothing where both are on one disk.
        let is_linked = copy.exists() || (is_open && fs::hard_link(program, &copy).is_ok());
        if !is_linked {
            fs::copy(program, &copy).unwrap();
            fs::set_permissions(&copy, fs::Permissions::from_mode(0o755)).unwrap();
        }
        copy
    }
}

/// Whether there can be a user with this id here: a container may have few.
fn is_mapped(id: u32) -> bool {
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    map.lines().any(|line| {
        let numbers: Vec<u64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        matches!(numbers[..], [first, _, count] if (first..first + count).contains(&u64::from(id)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_behind_a_closed_door_are_run_from_elsewhere() {
        let Some(user) = User::without_rights() else { return };
        let directory = tempfile::tempdir().unwrap();
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o755)).unwrap();
        let closed = directory.path().join("closed");
        fs::create_dir(&closed).unwrap();
        let program = closed.join("id");
        fs::copy("/usr/bin/id", &program).unwrap();
        assert_eq!(user.reach(&program, &directory.path().join("open")), program, "the door is open yet");
        fs::set_permissions(&closed, fs::Permissions::from_mode(0o700)).unwrap();
        let reached = user.reach(&program, &directory.path().join("open"));
        assert_ne!(reached, program);
        let mut command = Command::new(reached);
        user.run(&mut command);
        let told = String::from_utf8(command.arg("-u").output().unwrap().stdout).unwrap();
        assert_eq!(told.trim(), user.0.to_string());
    }
}
