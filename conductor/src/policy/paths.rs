//! Where a path leads, and which places are protected.
//!
//! A path is walked as the kernel walks it: component by component, links
//! followed, `..` taken from where the link has led. A text comparison would be
//! cheated by each of these. What a walk cannot see: hard links (a second name
//! of a file looks like the first), and what is swapped after it was looked at;
//! whoever acts for an agent has to open files beneath the roots themselves.

mod memory;
pub mod protected;
mod walk;

use std::{
    fs::Metadata,
    os::unix::fs::PermissionsExt as _,
    path::{Component, Path, PathBuf},
};

pub(super) use self::memory::Memory;
use self::walk::{Walk, walk};
use super::{PathFact, text};

/// The longest path a kernel takes.
const LONGEST: usize = 4096;

/// What has to be asked of the world to judge a request.
pub trait Resolver {
    /// Where a path leads, seen from `cwd`, which is absolute.
    fn path(&self, cwd: &Path, given: &str) -> PathFact;

    /// The file that a program's name stands for, all links resolved, and whether it is local
    /// (see `Command::is_local`). A name with a slash is a path from `cwd`; another is looked
    /// up in `PATH`.
    fn program(&self, cwd: &Path, name: &str) -> (Option<PathBuf>, bool);
}

/// The disk as it is.
#[derive(Debug, Clone)]
pub struct Disk {
    /// The session's roots, resolved.
    pub roots: Vec<PathBuf>,
    /// Directories in which programs are looked for, in order.
    pub search: Vec<PathBuf>,
}

impl Disk {
    /// Resolves the roots; one that cannot be resolved is left out, so that nothing is beneath
    /// it. `search` is as in `PATH`, also entries that are relative or empty.
    pub fn new<P: AsRef<Path>>(roots: impl IntoIterator<Item = P>, search: Vec<PathBuf>) -> Self {
        let roots = roots.into_iter().filter_map(|root| root.as_ref().canonicalize().ok()).collect();
        Self { roots, search }
    }

    /// Walks a path. Roots have no links, so the walk starts at the innermost one that is
    /// above.
    fn walk(&self, cwd: &Path, given: &str) -> Result<Walk, String> {
        let whole = if given.starts_with('/') { PathBuf::from(given) } else { joined(cwd, given)? };
        // Stripping a prefix forgets a slash at the end, which means that a directory is wanted.
        let wants_directory = given.ends_with('/') || given.ends_with("/.");
        let root = innermost(&self.roots, &whole);
        let (start, rest) = match root {
            Some(root) => (root.clone(), whole.strip_prefix(root).unwrap_or(&whole).to_path_buf()),
            None => (PathBuf::from("/"), whole),
        };
        walk(start, &rest, wants_directory)
    }

    /// Anyone, and so an agent, may have put this file there.
    fn is_local(&self, file: &Path) -> bool {
        let is_plain = |metadata: Metadata| metadata.is_file() && !is_open(&metadata);
        innermost(&self.roots, file).is_some()
            || !file.metadata().is_ok_and(is_plain)
            || file.parent().is_none_or(open_to_all)
    }

    /// A path to a program leads through a directory of `PATH`: one that lies elsewhere is not known by its name.
    fn is_searched(&self, name: &str) -> bool {
        let real = |directory: &Path| directory.canonicalize().ok();
        let Some(directory) = Path::new(name).parent().and_then(real) else { return false };
        self.search.iter().any(|entry| entry.is_absolute() && real(entry).as_ref() == Some(&directory))
    }

    /// An agent may put a file into this directory of `PATH`.
    fn is_open<'a>(&self, directory: &'a Path, seen: &mut Seen<'a>) -> bool {
        if !directory.is_absolute() {
            return true;
        }
        if let Some(is_open) = seen.plain(directory) {
            return is_open || innermost(&self.roots, directory).is_some();
        }
        match directory.canonicalize() {
            Ok(real) => innermost(&self.roots, &real).is_some() || open_to_all(&real),
            // It is not there; whether it could be made is told by its place.
            Err(_) => innermost(&self.roots, directory).is_some(),
        }
    }
}

/// Directories that were looked at in one search. Those of `PATH` lie beside one another, and looking
/// at all that is above each of them is most of what a search costs.
#[derive(Default)]
struct Seen<'a>(Vec<(&'a Path, Option<bool>)>);

impl<'a> Seen<'a> {
    /// Whether everyone may write to a directory that is reached without links; none if it is not.
    fn plain(&mut self, directory: &'a Path) -> Option<bool> {
        if directory.components().any(|component| component == Component::ParentDir) {
            return None;
        }
        let mut above = directory.ancestors();
        let is_open = above.next().and_then(|directory| self.look(directory))?;
        let mut above = above.filter(|above| above.parent().is_some());
        above.all(|directory| self.look(directory).is_some()).then_some(is_open)
    }

    fn look(&mut self, directory: &'a Path) -> Option<bool> {
        let is_same = |(seen, _): &&(&Path, Option<bool>)| seen.as_os_str() == directory.as_os_str();
        if let Some((_, known)) = self.0.iter().find(is_same) {
            return *known;
        }
        let metadata = directory.symlink_metadata().ok().filter(Metadata::is_dir);
        let found = metadata.map(|metadata| is_open(&metadata));
        self.0.push((directory, found));
        found
    }
}

impl Resolver for Disk {
    fn path(&self, cwd: &Path, given: &str) -> PathFact {
        let mut fact = begin(given);
        if fact.trouble.is_some() {
            return fact;
        }
        let walked = match self.walk(cwd, given) {
            Ok(walked) => walked,
            Err(trouble) => {
                fact.trouble = Some(trouble);
                return fact;
            }
        };
        for link in &walked.links {
            protect(&mut fact, link, innermost(&self.roots, link));
        }
        // A name that is no text could not be shown, matched or recorded.
        if walked.real.to_str().is_none_or(|real| text::hidden(real).is_some()) {
            fact.trouble = Some("it leads to a place whose name cannot be shown".into());
            return fact;
        }
        let root = innermost(&self.roots, &walked.real);
        protect(&mut fact, &walked.real, root);
        fact.trouble = walked.trouble.or_else(|| special(&walked.real));
        if let (Some(_), Some(link)) = (root, &walked.leaf)
            && innermost(&self.roots, link).is_none()
        {
            // Who moves or removes it, or replaces it by a new file, changes the link itself.
            fact.trouble = Some("it is a link outside of the roots that leads into them".into());
        }
        fact.root = root.cloned();
        fact.resolved = Some(walked.real);
        fact
    }

    fn program(&self, cwd: &Path, name: &str) -> (Option<PathBuf>, bool) {
        if name.is_empty() || begin(name).trouble.is_some() {
            return (None, true);
        }
        if name.contains('/') {
            let fact = self.path(cwd, name);
            let is_local = fact.trouble.is_some()
                || !name.starts_with('/')
                || !self.is_searched(name)
                || fact.resolved.as_deref().is_none_or(|file| self.is_local(file));
            return (fact.resolved, is_local);
        }
        // An agent that may write to a directory before the one where the program is found can
        // put another program of this name there.
        let mut is_local = false;
        let mut seen = Seen::default();
        for (at, directory) in self.search.iter().enumerate() {
            if self.search.iter().take(at).any(|other| other.as_os_str() == directory.as_os_str()) {
                continue;
            }
            is_local |= self.is_open(directory, &mut seen);
            let file = cwd.join(directory).join(name);
            if !is_program(&file) {
                continue;
            }
            return match file.canonicalize() {
                Ok(real) => {
                    is_local |= self.is_local(&real);
                    (real.to_str().is_some().then_some(real), is_local)
                }
                Err(_) => (None, true),
            };
        }
        (None, is_local)
    }
}

/// A disk without links, on which every program is found in `/usr/bin`; for the examples in
/// rules, which must mean the same on every machine.
#[derive(Debug, Clone)]
pub struct Imagined {
    /// The roots.
    pub roots: Vec<PathBuf>,
}

impl Resolver for Imagined {
    fn path(&self, cwd: &Path, given: &str) -> PathFact {
        let mut fact = begin(given);
        if fact.trouble.is_some() {
            return fact;
        }
        let real = match joined(cwd, given) {
            Ok(whole) => flat(&whole),
            Err(trouble) => {
                fact.trouble = Some(trouble);
                return fact;
            }
        };
        let root = innermost(&self.roots, &real);
        protect(&mut fact, &real, root);
        fact.trouble = special(&real);
        fact.root = root.cloned();
        fact.resolved = Some(real);
        fact
    }

    fn program(&self, cwd: &Path, name: &str) -> (Option<PathBuf>, bool) {
        if name.is_empty() || begin(name).trouble.is_some() {
            return (None, true);
        }
        if !name.contains('/') {
            return (Some(Path::new("/usr/bin").join(name)), false);
        }
        let fact = self.path(cwd, name);
        let is_system = fact.resolved.as_deref().is_some_and(is_system);
        let is_local = fact.trouble.is_some() || fact.root.is_some() || !name.starts_with('/') || !is_system;
        (fact.resolved, is_local)
    }
}

/// A fact with what the text alone tells.
fn begin(given: &str) -> PathFact {
    let mut fact = PathFact { given: given.into(), trouble: odd(given), ..PathFact::default() };
    protect(&mut fact, Path::new(given), None);
    fact
}

/// Why a text is no path that one could trust, whatever the disk looks like.
fn odd(given: &str) -> Option<String> {
    let says = |text: &str| Some(text.to_owned());
    if given.is_empty() {
        return says("it is empty");
    }
    if given.len() >= LONGEST {
        return Some(format!("it is longer than the {LONGEST} bytes a path may have"));
    }
    if given.chars().any(char::is_control) {
        return says("it has control characters in it");
    }
    if let Some(hidden) = text::hidden(given) {
        return Some(hidden);
    }
    if given.trim() != given || given.contains('\\') {
        return says("it has spaces around it or backslashes in it, which some tools leave out");
    }
    // Some programs read these as the home directory, or as a variable, others as names.
    if given.starts_with('~') || given.starts_with("${") || given.starts_with("$HOME") {
        return says("it is not a path yet: `~` or a variable stands at its beginning; write it out");
    }
    let scheme = given.split_once(':').map(|(scheme, _)| scheme);
    if given.contains("://") || scheme.is_some_and(|scheme| scheme.eq_ignore_ascii_case("file")) {
        return says("it may be read as an address instead of a path");
    }
    None
}

/// Notes that a path is protected, unless something is noted already that weighs as much. `root`
/// is the one above it, if any.
fn protect(fact: &mut PathFact, path: &Path, root: Option<&PathBuf>) {
    let above = root.map_or(0, |root| root.components().count());
    if let Some(found) = protected::by_name(path, above)
        && (fact.protected.is_none() || found.secret && !fact.secret)
    {
        fact.protected = Some(found.reason.into());
        fact.secret |= found.secret;
    }
}

/// Why a place is not like others, by its name.
fn special(real: &Path) -> Option<String> {
    let within = |directory: &str| real.starts_with(directory);
    let harmless = ["/dev/null", "/dev/zero", "/dev/random", "/dev/urandom"];
    if within("/proc") {
        return Some("what is beneath /proc depends on who looks at it".into());
    }
    if within("/dev") && !within("/dev/shm") && !harmless.iter().any(|name| real == Path::new(name)) {
        return Some("it is a device, or a name that some shells treat as a connection".into());
    }
    None
}

/// The innermost root above a path, or at it. Compares components: `app` is not above
/// `app-evil`.
fn innermost<'a>(roots: &'a [PathBuf], path: &Path) -> Option<&'a PathBuf> {
    let above = roots.iter().filter(|root| path.starts_with(root));
    above.max_by_key(|root| root.components().count())
}

/// A path as seen from a directory, `..` and links as they are.
fn joined(cwd: &Path, given: &str) -> Result<PathBuf, String> {
    if !cwd.is_absolute() && !given.starts_with('/') {
        return Err("it is relative, and it is not known to what".into());
    }
    Ok(cwd.join(given))
}

/// A path without `.` and `..`, by its text.
fn flat(path: &Path) -> PathBuf {
    let mut flat = PathBuf::from("/");
    for component in path.components() {
        match component {
            Component::Normal(name) => flat.push(name),
            Component::ParentDir => {
                flat.pop();
            }
            Component::Prefix(_) | Component::RootDir | Component::CurDir => {}
        }
    }
    flat
}

/// A program of the system, by its place.
fn is_system(file: &Path) -> bool {
    let directories = ["/bin", "/sbin", "/usr/bin", "/usr/sbin", "/usr/local/bin", "/usr/local/sbin"];
    file.parent().is_some_and(|parent| directories.iter().any(|directory| parent == Path::new(directory)))
        || file.starts_with("/opt")
}

/// Everyone may write here, or it cannot be told.
fn open_to_all(path: &Path) -> bool {
    path.metadata().map_or(true, |metadata| is_open(&metadata))
}

/// Everyone may write to it. A sticky bit does not help: it keeps others from removing files, not
/// from making them.
fn is_open(metadata: &Metadata) -> bool {
    metadata.permissions().mode() & 0o002 != 0
}

/// A file that somebody may execute.
fn is_program(path: &Path) -> bool {
    path.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests;
