//! Secrets in a directory: `users/USER/AGENT/env/NAME`, `users/USER/AGENT/files/PATH`,
//! and the same beneath `teams/TEAM`.
//!
//! Names that begin with two dots are passed over, and links are followed: that is how
//! orchestrators lay out the secrets that they mount. They lead to something beneath the
//! directory and nowhere else, by a way that no other user of this host can change.

use std::{
    ffi::OsString,
    fs::{self, File},
    hash::{DefaultHasher, Hash as _, Hasher as _},
    io::{self, Read as _},
    os::unix::{
        ffi::OsStringExt as _,
        fs::{MetadataExt as _, OpenOptionsExt as _},
    },
    path::{Path, PathBuf},
};

use nix::sys::statvfs::{FsFlags, statvfs};

use super::{LARGEST_FILE, LARGEST_VALUE, MOST, NoSecrets, Secrets, shown};
use crate::identity::{Person, file_name};

/// Directories within directories that files may be in.
const DEEPEST: usize = 8;

/// What others may not do to a secret: read or change it.
const OTHERS: u32 = 0o006;

/// What others may not do to a directory of secrets: change it.
const OTHERS_WRITE: u32 = 0o002;

/// Where everybody may add something and nobody may move what is another's.
const STICKY: u32 = 0o1000;

/// Where a user's secrets for an agent are.
pub(super) fn place_of_user(dir: &Path, agent: &str, person: &Person) -> PathBuf {
    dir.join("users").join(file_name(&person.user)).join(agent)
}

/// All places that count for a person: the user's own first, then the teams' by name.
fn places(dir: &Path, agent: &str, person: &Person) -> Vec<PathBuf> {
    let teams = person.teams.iter().map(|team| dir.join("teams").join(file_name(team)).join(agent));
    std::iter::once(place_of_user(dir, agent, person)).chain(teams).collect()
}

/// What there is for a person.
pub(super) fn read(dir: &Path, agent: &str, person: &Person) -> Result<Secrets, NoSecrets> {
    // Without it nobody has any, which is rather a mistake than what was meant.
    let base = Base::open(dir)?.ok_or_else(|| {
        NoSecrets(format!("{} is not there; create it, or correct secrets.dir", dir.display()))
    })?;
    let mut all = Secrets::default();
    for place in places(dir, agent, person) {
        let mut found = Secrets::default();
        base.variables(&place.join("env"), &mut found)?;
        base.files(&place.join("files"), Path::new(""), 0, &mut found)?;
        found.check(&shown(&place))?;
        all.add(found);
    }
    all.check("what is there for this user")?;
    Ok(all)
}

/// The directory, to which everything in it is held.
struct Base {
    given: PathBuf,
    /// Without links.
    real: PathBuf,
}

impl Base {
    /// `None` if it is not there.
    fn open(dir: &Path) -> Result<Option<Self>, NoSecrets> {
        let Some(real) = canonical(dir)? else { return Ok(None) };
        only_ours(&real, 0)?;
        // To what is above it others may add, as to /tmp.
        real.ancestors().skip(1).try_for_each(|above| only_ours(above, STICKY))?;
        Ok(Some(Self { given: dir.to_owned(), real }))
    }

    /// Where a path leads; `None` if to nothing.
    fn find(&self, path: &Path) -> Result<Option<PathBuf>, NoSecrets> {
        let Some(real) = canonical(path)? else { return Ok(None) };
        let Ok(rest) = real.strip_prefix(&self.real) else {
            return Err(NoSecrets(format!(
                "{} leads out of {}; put there what it leads to, or link to something beneath that directory",
                shown(path),
                shown(&self.given)
            )));
        };
        let above = rest.ancestors().skip(1);
        above.map(|part| self.real.join(part)).try_for_each(|directory| only_ours(&directory, 0))?;
        Ok(Some(real))
    }

    fn variables(&self, place: &Path, found: &mut Secrets) -> Result<(), NoSecrets> {
        for entry in self.directory(place)? {
            // In a home there are files that begin with a dot; no variable does.
            if entry.as_encoded_bytes().starts_with(b".") {
                continue;
            }
            let path = place.join(&entry);
            let Ok(name) = entry.into_string() else {
                return Err(NoSecrets(format!("{} cannot be the name of a variable", shown(&path))));
            };
            let mut value = self.content(&path, LARGEST_VALUE)?;
            // Most editors end a file with a line end that nobody means.
            if value.last() == Some(&b'\n') {
                value.pop();
            }
            found.env.insert(name, OsString::from_vec(value));
        }
        Ok(())
    }

    fn files(
        &self,
        place: &Path,
        from_home: &Path,
        depth: usize,
        found: &mut Secrets,
    ) -> Result<(), NoSecrets> {
        for entry in self.directory(place)? {
            let (path, target) = (place.join(&entry), from_home.join(&entry));
            let is_directory = self.find(&path)?.is_some_and(|real| real.is_dir());
            if found.files.len() > MOST || depth > DEEPEST {
                return Err(NoSecrets(format!("there is too much beneath {}", shown(place))));
            } else if is_directory {
                self.files(&path, &target, depth + 1, found)?;
            } else {
                found.files.insert(target, self.content(&path, LARGEST_FILE)?);
            }
        }
        Ok(())
    }

    /// The names in a directory, in order; none if it is not there. Two dots in front are
    /// how orchestrators name what their links lead to.
    fn directory(&self, path: &Path) -> Result<Vec<OsString>, NoSecrets> {
        let Some(real) = self.find(path)? else { return Ok(Vec::new()) };
        only_ours(&real, 0)?;
        let listed = fs::read_dir(real).map_err(|error| unreadable(path, &error))?;
        let mut names = Vec::new();
        for entry in listed.take(2 * MOST) {
            names.push(entry.map_err(|error| unreadable(path, &error))?.file_name());
        }
        names.retain(|name| !name.as_encoded_bytes().starts_with(b".."));
        names.sort();
        Ok(names)
    }

    /// What is in a file that only those can read who may.
    fn content(&self, path: &Path, most: usize) -> Result<Vec<u8>, NoSecrets> {
        let found = self.find(path)?;
        let real = found.ok_or_else(|| unreadable(path, &io::ErrorKind::NotFound.into()))?;
        content(path, &real, most)
    }
}

/// A path without links; `None` if it leads to nothing.
fn canonical(path: &Path) -> Result<Option<PathBuf>, NoSecrets> {
    match path.canonicalize() {
        Ok(real) => Ok(Some(real)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(unreadable(path, &error)),
    }
}

/// Refuses a directory that every user may change, unless it has this bit. Nobody can change
/// one that is mounted read-only, whatever its mode: orchestrators leave it open.
fn only_ours(path: &Path, unless: u32) -> Result<(), NoSecrets> {
    let mode = fs::metadata(path).map_err(|error| unreadable(path, &error))?.mode();
    let is_fixed = || statvfs(path).is_ok_and(|mounted| mounted.flags().contains(FsFlags::ST_RDONLY));
    if mode & OTHERS_WRITE != 0 && mode & unless == 0 && !is_fixed() {
        let path = shown(path);
        return Err(NoSecrets(format!("{path} may be changed by every user of this host; chmod o-w {path}")));
    }
    Ok(())
}

fn content(path: &Path, real: &Path, most: usize) -> Result<Vec<u8>, NoSecrets> {
    // A pipe would be waited for for ever. There was no link a moment ago.
    let flags = nix::libc::O_NONBLOCK | nix::libc::O_NOCTTY | nix::libc::O_NOFOLLOW;
    let opened = File::options().read(true).custom_flags(flags).open(real);
    let file = opened.map_err(|error| unreadable(path, &error))?;
    // Asked of the open file, so that it cannot be another one by now.
    let metadata = file.metadata().map_err(|error| unreadable(path, &error))?;
    if !metadata.is_file() {
        return Err(NoSecrets(format!("{} is not a regular file", shown(path))));
    }
    if metadata.mode() & OTHERS != 0 {
        let (path, mode) = (shown(path), metadata.mode() & 0o7777);
        return Err(NoSecrets(format!(
            "{path} may be read or changed by every user of this host (mode {mode:04o}), and so is no secret; \
             chmod o= {path}, and replace what others may have read"
        )));
    }
    let mut bytes = Vec::new();
    file.take(most as u64 + 1).read_to_end(&mut bytes).map_err(|error| unreadable(path, &error))?;
    if bytes.len() > most {
        return Err(NoSecrets(format!("{} is larger than {} KiB", shown(path), most >> 10)));
    }
    Ok(bytes)
}

fn unreadable(path: &Path, error: &io::Error) -> NoSecrets {
    NoSecrets(format!("{} cannot be read: {error}; let the user who runs the conductor read it", shown(path)))
}

/// Changes when something is written, added or removed there.
pub(super) fn stamp(dir: &Path, agent: &str, person: &Person) -> u64 {
    let mut hasher = DefaultHasher::new();
    for place in places(dir, agent, person) {
        look(&place, 0, &mut MOST.clone(), &mut hasher);
    }
    hasher.finish()
}

fn look(path: &Path, depth: usize, left: &mut usize, hasher: &mut DefaultHasher) {
    let Ok(metadata) = fs::metadata(path) else { return };
    if *left == 0 || depth > DEEPEST {
        return;
    }
    *left -= 1;
    let seen = (metadata.dev(), metadata.ino(), metadata.size(), metadata.ctime(), metadata.ctime_nsec());
    (path, seen).hash(hasher);
    if metadata.is_dir() {
        let mut entries: Vec<PathBuf> =
            fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
        entries.sort();
        entries.iter().for_each(|entry| look(entry, depth + 1, left, hasher));
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    fn put(dir: &Path, path: &str, text: &str, mode: u32) {
        let path = dir.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    }

    fn ann() -> Person {
        Person { user: "ann".into(), teams: vec!["data".into(), "web".into()] }
    }

    #[test]
    fn the_users_own_come_before_the_teams() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        put(dir, "users/ann/claude/env/KEY", "own\n", 0o600);
        put(dir, "users/ann/claude/files/.claude/token.json", "{}", 0o400);
        put(dir, "users/ann/claude/env/.hidden", "x", 0o600);
        put(dir, "users/ann/codex/env/OTHER", "other agent", 0o600);
        put(dir, "users/bob/claude/env/KEY", "another user", 0o600);
        put(dir, "teams/data/claude/env/KEY", "team", 0o600);
        put(dir, "teams/data/claude/env/SHARED", "data\n\n", 0o640);
        put(dir, "teams/web/claude/env/SHARED", "web", 0o640);
        let found = read(dir, "claude", &ann()).unwrap();
        assert_eq!(found.env["KEY"], "own");
        assert_eq!(found.env["SHARED"], "data\n", "one line end is cut off");
        assert_eq!(found.env.len(), 2);
        assert_eq!(found.files[Path::new(".claude/token.json")], b"{}");
        let before = stamp(dir, "claude", &ann());
        assert_eq!(before, stamp(dir, "claude", &ann()));
        put(dir, "users/bob/claude/env/KEY", "changed", 0o600);
        assert_eq!(before, stamp(dir, "claude", &ann()));
        put(dir, "teams/web/claude/env/MORE", "x", 0o600);
        assert_ne!(before, stamp(dir, "claude", &ann()));
    }

    #[test]
    fn mounted_secrets_are_links() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let env = dir.join("users/ann/claude/env");
        put(dir, "users/ann/claude/env/..2026/KEY", "v", 0o440);
        symlink("..2026", env.join("..data")).unwrap();
        symlink("..data/KEY", env.join("KEY")).unwrap();
        assert_eq!(read(dir, "claude", &ann()).unwrap().env["KEY"], "v");
        // All secrets may be in one mount, and the directory itself a link to it.
        let other = tempfile::tempdir().unwrap();
        put(other.path(), "..2026/users/ann/claude/env/KEY", "w", 0o440);
        symlink("..2026", other.path().join("..data")).unwrap();
        symlink("..data/users", other.path().join("users")).unwrap();
        let linked = dir.join("linked");
        symlink(other.path(), &linked).unwrap();
        for dir in [other.path(), &linked] {
            assert_eq!(read(dir, "claude", &ann()).unwrap().env["KEY"], "w");
        }
    }

    #[test]
    fn links_lead_to_nothing_elsewhere() {
        let temp = tempfile::tempdir().unwrap();
        let (dir, elsewhere) = (temp.path().join("secrets"), temp.path().join("elsewhere"));
        put(&dir, "users/ann/claude/env/OWN", "v", 0o600);
        put(&elsewhere, "KEY", "canary", 0o600);
        for (link, target) in [
            ("users/ann/claude/env/KEY", "KEY"),
            ("users/ann/claude/files/.netrc", "KEY"),
            ("users/ann/claude/files/.config", ""),
            ("teams/web", ""),
        ] {
            let link = dir.join(link);
            fs::create_dir_all(link.parent().unwrap()).unwrap();
            symlink(elsewhere.join(target), &link).unwrap();
            // A team's place is no place of an agent's there.
            fs::create_dir_all(elsewhere.join("claude/env")).unwrap();
            let refused = read(&dir, "claude", &ann()).unwrap_err().to_string();
            assert!(refused.contains("leads out of") && !refused.contains("canary"), "{refused}");
            fs::remove_file(link).unwrap();
        }
        assert_eq!(read(&dir, "claude", &ann()).unwrap().env.len(), 1);
    }

    #[test]
    fn the_way_to_secrets_is_not_everybodys_to_change() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("mount/secrets");
        put(&dir, "users/ann/claude/env/KEY", "v", 0o600);
        for open in ["mount", "mount/secrets", "mount/secrets/users", "mount/secrets/users/ann/claude"] {
            let open = temp.path().join(open);
            let set = |mode| fs::set_permissions(&open, fs::Permissions::from_mode(mode)).unwrap();
            set(0o777);
            let refused = read(&dir, "claude", &ann()).unwrap_err().to_string();
            assert!(refused.contains(&format!("chmod o-w {}", open.display())), "{refused}");
            // As /tmp is: nobody can move what is another's, and everybody may add to it.
            set(0o1777);
            assert_eq!(read(&dir, "claude", &ann()).is_ok(), open.ends_with("mount"));
            set(0o755);
        }
        assert_eq!(read(&dir, "claude", &ann()).unwrap().env["KEY"], "v");
    }

    #[test]
    fn what_others_can_read_is_no_secret() {
        for mode in [0o644, 0o604, 0o602, 0o606] {
            let dir = tempfile::tempdir().unwrap();
            put(dir.path(), "users/ann/claude/env/KEY", "canary", mode);
            let refused = read(dir.path(), "claude", &ann()).unwrap_err().to_string();
            assert!(
                refused.contains("env/KEY") && refused.contains(&format!("mode {mode:04o}")),
                "{refused}"
            );
            assert!(refused.contains("chmod o=") && !refused.contains("canary"), "{refused}");
        }
        let dir = tempfile::tempdir().unwrap();
        put(dir.path(), "users/ann/claude/env/KEY", "canary", 0o600);
        let env = dir.path().join("users/ann/claude/env");
        fs::set_permissions(&env, fs::Permissions::from_mode(0o777)).unwrap();
        let refused = read(dir.path(), "claude", &ann()).unwrap_err().to_string();
        assert!(refused.contains("may be changed by every user"), "{refused}");
    }

    #[test]
    fn odd_files_are_refused_and_never_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        assert!(read(&dir.join("none"), "claude", &ann()).unwrap_err().to_string().contains("secrets.dir"));
        assert_eq!(read(dir, "claude", &ann()), Ok(Secrets::default()));
        put(dir, "users/ann/claude/env/PATH", "/x", 0o600);
        assert!(read(dir, "claude", &ann()).is_err());
        fs::remove_file(dir.join("users/ann/claude/env/PATH")).unwrap();
        let pipe = dir.join("users/ann/claude/env/PIPE");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::from_bits_truncate(0o600)).unwrap();
        assert!(read(dir, "claude", &ann()).unwrap_err().to_string().contains("not a regular file"));
        fs::remove_file(pipe).unwrap();
        put(dir, "users/ann/claude/env/BIG", &"x".repeat(LARGEST_VALUE + 2), 0o600);
        assert!(read(dir, "claude", &ann()).unwrap_err().to_string().contains("larger than 64 KiB"));
    }
}
