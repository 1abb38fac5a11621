//! What agents keep of a session in homes that the conductor gives them: files and
//! directories whose name has the agent's own id of it. They go with the session.
//!
//! What is in a home is the agent's to change, so the way down is walked from the home's
//! own descriptor and no link is followed: what a link leads to is neither looked at nor
//! removed.

use std::{
    io,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
};

use nix::{
    dir::{Dir, Type},
    errno::Errno,
    sys::stat::{Mode, SFlag, fstatat},
    unistd::{UnlinkatFlags, unlinkat},
};

use super::{
    beneath::{DIRECTORY, explained},
    home,
};
use crate::config::{self, Home};

/// Shorter ids could stand in a name by chance.
const SHORTEST: usize = 8;

/// Directories within directories that are looked into.
const DEEPEST: usize = 32;

/// Names in a home that are looked at; more are not an agent's record.
const MOST: usize = 1_000_000;

/// A session of an agent.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Kept {
    /// The agent, as the configuration names it.
    pub agent: String,
    /// Whose session it is.
    pub user: String,
    /// The agent's own id of it.
    pub id: String,
}

/// Removes what agents keep of these sessions, as far as it can be told, and says what
/// that was. With `only_look` all stays.
pub fn remove<'a>(
    agents: impl IntoIterator<Item = &'a config::Agent>,
    homes: &Path,
    sessions: &[Kept],
    only_look: bool,
) -> io::Result<Vec<PathBuf>> {
    let mut removed = Vec::new();
    for agent in agents {
        let mut places: Vec<(PathBuf, Vec<&str>)> = Vec::new();
        for kept in sessions.iter().filter(|kept| kept.agent == agent.name && kept.id.len() >= SHORTEST) {
            let place = match agent.home {
                Home::Inherit => continue,
                Home::Isolated => homes.join(&agent.name),
                Home::User => home::place_of_user(homes, &agent.name, &kept.user),
            };
            match places.iter_mut().find(|(known, _)| *known == place) {
                Some((_, ids)) => ids.push(&kept.id),
                None => places.push((place, vec![&kept.id])),
            }
        }
        for (place, ids) in places {
            let directory = match Dir::open(&place, DIRECTORY, Mode::empty()) {
                Ok(directory) => directory,
                Err(Errno::ENOENT) => continue,
                Err(errno) => return Err(explained(&errno.into(), &place.display().to_string())),
            };
            let mut walk = Walk { ids, left: MOST, only_look, removed: &mut removed };
            walk.look(directory, &place, 0).map_err(|errno| {
                explained(&errno.into(), &format!("cannot look into {}", place.display()))
            })?;
        }
    }
    Ok(removed)
}

struct Walk<'a> {
    ids: Vec<&'a str>,
    left: usize,
    only_look: bool,
    removed: &'a mut Vec<PathBuf>,
}

impl Walk<'_> {
    fn look(&mut self, mut directory: Dir, path: &Path, depth: usize) -> nix::Result<()> {
        for (name, is_directory) in entries(&mut directory)? {
            self.left = self.left.checked_sub(1).ok_or(Errno::EOVERFLOW)?;
            let place = path.join(&name);
            if self.ids.iter().any(|id| has_id(name.as_os_str().as_bytes(), id.as_bytes())) {
                if !self.only_look {
                    remove_all(&directory, &name, is_directory, depth)?;
                }
                self.removed.push(place);
            } else if is_directory && depth < DEEPEST {
                match Dir::openat(&directory, &name, DIRECTORY, Mode::empty()) {
                    Ok(inner) => self.look(inner, &place, depth + 1)?,
                    // It went meanwhile, or is a link by now, or not ours to look into.
                    Err(Errno::ENOENT | Errno::ELOOP | Errno::ENOTDIR | Errno::EACCES) => {}
                    Err(errno) => return Err(errno),
                }
            }
        }
        Ok(())
    }
}

/// What a directory has, and which of it are directories themselves.
fn entries(directory: &mut Dir) -> nix::Result<Vec<(PathBuf, bool)>> {
    let mut found = Vec::new();
    for entry in directory.iter() {
        let entry = entry?;
        let bytes = entry.file_name().to_bytes();
        if !matches!(bytes, b"." | b"..") {
            found.push((PathBuf::from(std::ffi::OsStr::from_bytes(bytes)), entry.file_type()));
        }
    }
    let is_directory = |name: &Path, kind: Option<Type>| match kind {
        Some(kind) => kind == Type::Directory,
        // Not every file system tells.
        None => fstatat(&*directory, name, nix::fcntl::AtFlags::AT_SYMLINK_NOFOLLOW)
            .is_ok_and(|stat| SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT == SFlag::S_IFDIR),
    };
    Ok(found
        .into_iter()
        .map(|(name, kind)| (is_directory(&name, kind), name))
        .map(|(is, name)| (name, is))
        .collect())
}

/// Removes a file, a link, or a directory with all that is in it.
fn remove_all(above: &Dir, name: &Path, is_directory: bool, depth: usize) -> nix::Result<()> {
    let gone = |done: nix::Result<()>| match done {
        Err(Errno::ENOENT) => Ok(()),
        done => done,
    };
    if !is_directory {
        return gone(unlinkat(above, name, UnlinkatFlags::NoRemoveDir));
    }
    if depth > 2 * DEEPEST {
        return Err(Errno::ENAMETOOLONG);
    }
    match Dir::openat(above, name, DIRECTORY, Mode::empty()) {
        Ok(mut directory) => {
            for (inner, is_directory) in entries(&mut directory)? {
                remove_all(&directory, &inner, is_directory, depth + 1)?;
            }
        }
        Err(Errno::ENOENT) => return Ok(()),
        Err(errno) => return Err(errno),
    }
    gone(unlinkat(above, name, UnlinkatFlags::RemoveDir))
}

/// Whether a name has exactly this id in it, and not one that it is a part of. An id that is
/// a UUID is told from its neighbours by any sign; others may go on with a dash.
fn has_id(name: &[u8], id: &[u8]) -> bool {
    let is_uuid = std::str::from_utf8(id).is_ok_and(|id| id.len() == 36 && uuid::Uuid::try_parse(id).is_ok());
    let goes_on = |byte: Option<&u8>| {
        byte.is_some_and(|byte| byte.is_ascii_alphanumeric() || (!is_uuid && matches!(byte, b'-' | b'_')))
    };
    memchr::memmem::find_iter(name, id).any(|at| {
        let before = at.checked_sub(1).and_then(|before| name.get(before));
        !goes_on(before) && !goes_on(name.get(at + id.len()))
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    #[test]
    fn a_name_has_an_id_or_another_one() {
        let id = b"0199aaaa-bbbb-7ccc-8ddd-eeeeffff0000".as_slice();
        for name in ["@.jsonl", "@", "rollout-2026-01-01T00-00-00-@.jsonl", "@-agent-@.json", "x.@.tmp"] {
            assert!(has_id(name.replace('@', std::str::from_utf8(id).unwrap()).as_bytes(), id), "{name}");
        }
        assert!(!has_id(b"0199aaaa-bbbb-7ccc-8ddd-eeeeffff00001", id));
        assert!(has_id(b"sess-1234.json", b"sess-1234"));
        for other in ["sess-12345.json", "sess-1234-2.json", "a-sess-1234", "xsess-1234"] {
            assert!(!has_id(other.as_bytes(), b"sess-1234"), "{other}");
        }
    }

    #[test]
    fn what_has_the_id_goes_and_nothing_else() {
        let temp = tempfile::tempdir().unwrap();
        let (homes, elsewhere) = (temp.path().join("homes"), temp.path().join("elsewhere"));
        let home = homes.join("claude");
        for directory in [&home.join("projects/a"), &home.join("env/session-1"), &elsewhere] {
            fs::create_dir_all(directory).unwrap();
        }
        for file in
            ["projects/a/session-1.jsonl", "projects/a/session-12.jsonl", "env/session-1/deep", "history"]
        {
            fs::write(home.join(file), "words").unwrap();
        }
        fs::write(elsewhere.join("session-1"), "kept").unwrap();
        // Neither a link on the way nor one in a directory that goes is followed.
        symlink(&elsewhere, home.join("way")).unwrap();
        symlink(&elsewhere, home.join("env/session-1/out")).unwrap();
        let mut agent: config::Agent = toml::from_str("command = 'x'\nhome = 'isolated'").unwrap();
        agent.name = "claude".to_owned();
        let kept = |id: &str| Kept { agent: "claude".into(), user: "ann".into(), id: id.into() };
        let mut inherits = agent.clone();
        inherits.home = Home::Inherit;
        assert!(remove([&inherits], &homes, &[kept("session-1")], false).unwrap().is_empty());
        let agents = || [&agent];
        assert!(remove(agents(), &homes, &[kept("history")], false).unwrap().is_empty(), "too short");
        let found = remove(agents(), &homes, &[kept("session-1")], true).unwrap();
        assert!(found.len() == 2 && home.join("env/session-1/deep").exists(), "{found:?}");
        assert_eq!(remove(agents(), &homes, &[kept("session-1")], false).unwrap().len(), 2);
        assert!(!home.join("projects/a/session-1.jsonl").exists() && !home.join("env/session-1").exists());
        assert!(home.join("projects/a/session-12.jsonl").exists() && home.join("history").exists());
        assert_eq!(fs::read_to_string(elsewhere.join("session-1")).unwrap(), "kept");
    }
}
