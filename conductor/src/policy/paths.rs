//! Where a path leads, and which places are protected.
//!
//! A path is walked as the kernel walks it: component by component, links
//! followed, `..` taken from where the link has led. A text comparison would be
//! cheated by each of these. What a walk cannot see: hard links (a second name
//! of a file looks like the first), and what is swapped after it was looked at;
//! whoever acts for an agent has to open the place that was found, without links.

mod absent;
mod looks;
mod memory;
pub mod protected;
pub mod survey;
mod walk;

use std::{
    borrow::Cow,
    cell::RefCell,
    io::ErrorKind,
    os::unix::ffi::OsStrExt as _,
    path::{Component, Path, PathBuf},
};

pub(super) use self::memory::Memory;
pub use self::{absent::Absent, looks::Looks};
use self::{
    looks::Look,
    walk::{Walk, walk},
};
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

    /// The same as [`Self::path`] for one of several questions about the same request: what was
    /// looked at need not be looked at again.
    fn path_among(&self, _: &Looks, cwd: &Path, given: &str) -> PathFact {
        self.path(cwd, given)
    }

    /// The same as [`Self::program`] for one of several questions about the same request.
    fn program_among(&self, _: &Looks, cwd: &Path, name: &str) -> (Option<PathBuf>, bool) {
        self.program(cwd, name)
    }

    /// Whether there is certainly nothing at a place. A quicker answer than [`Self::path`] can
    /// give, for what is hardly ever there.
    fn is_absent(&self, _: &Path) -> bool {
        false
    }

    /// The same for one of several questions about the same request.
    fn is_absent_among(&self, _: &Looks, path: &Path) -> bool {
        self.is_absent(path)
    }

    /// Whether there is a directory at a place that is reached without links.
    fn is_directory(&self, _: &Path) -> bool {
        false
    }

    /// The same for one of several questions about the same request.
    fn is_directory_among(&self, _: &Looks, path: &Path) -> bool {
        self.is_directory(path)
    }
}

/// The disk as it is.
#[derive(Debug, Clone)]
pub struct Disk {
    /// The session's roots, resolved.
    pub roots: Vec<PathBuf>,
    /// Directories in which programs are looked for, in order.
    search: Vec<PathBuf>,
    absent: RefCell<Absent>,
}

impl Disk {
    /// Resolves the roots; one that cannot be resolved is left out, so that nothing is beneath
    /// it. `search` is as in `PATH`, also entries that are relative or empty.
    pub fn new<P: AsRef<Path>>(roots: impl IntoIterator<Item = P>, search: Vec<PathBuf>) -> Self {
        let roots = roots.into_iter().filter_map(|root| root.as_ref().canonicalize().ok()).collect();
        Self::resolved(roots, search, Absent::default())
    }

    /// The same with roots that are resolved, and with what is known from earlier requests.
    pub fn resolved(roots: Vec<PathBuf>, search: Vec<PathBuf>, absent: Absent) -> Self {
        Self { roots, search, absent: RefCell::new(absent) }
    }

    /// What is known by now, for the next request.
    pub fn into_absent(self) -> Absent {
        self.absent.into_inner()
    }

    /// Walks a path. Roots have no links, so the walk starts at the innermost one that is
    /// above.
    fn walk(&self, looks: &Looks, cwd: &Path, given: &str) -> Result<Walk, String> {
        let whole = if given.starts_with('/') { PathBuf::from(given) } else { joined(cwd, given)? };
        // Stripping a prefix forgets a slash at the end, which means that a directory is wanted.
        let wants_directory = given.ends_with('/') || given.ends_with("/.");
        let (start, rest) = match innermost(&self.roots, &whole) {
            Some(root) => (root.clone(), whole.strip_prefix(root).unwrap_or(&whole)),
            None => (PathBuf::from("/"), whole.as_path()),
        };
        walk(looks, start, rest, wants_directory)
    }

    /// Anyone, and so an agent, may have put this file there, which is reached without links.
    fn is_local(&self, looks: &Looks, file: &Path) -> bool {
        let is_open = |directory: &Path| looks.at(directory).map_or(true, |look| look.is_open);
        innermost(&self.roots, file).is_some()
            || !looks.at(file).is_ok_and(|look| look.kind.is_file() && !look.is_open)
            || file.parent().is_none_or(is_open)
    }

    /// A path to a program leads through a directory of `PATH`: one that lies elsewhere is not known by its name.
    fn is_searched(&self, looks: &Looks, name: &str) -> bool {
        let Some(directory) = Path::new(name).parent().and_then(|directory| looks.real(directory)) else {
            return false;
        };
        self.search.iter().any(|entry| entry.is_absolute() && looks.real(entry).as_ref() == Some(&directory))
    }

    /// Where a directory of `PATH` is, what is there, and whether it is known not to have a name;
    /// none if that takes a closer look.
    fn real<'a>(
        &self,
        looks: &Looks,
        directory: &'a Path,
        name: &str,
    ) -> Option<(Cow<'a, Path>, Look, bool)> {
        let look = looks.at(directory).ok()?;
        // One that was reached without links, and is the same still, need not be walked to again.
        if let Some(is_absent) = self.absent.borrow().of(directory, look.stamp, name) {
            return Some((Cow::Borrowed(directory), look, is_absent));
        }
        if let Some(look) = looks.plain(directory) {
            return Some((Cow::Borrowed(directory), look, false));
        }
        let walked = walk(looks, PathBuf::from("/"), directory.strip_prefix("/").ok()?, true).ok()?;
        let mut look = looks.at(&walked.real).ok().filter(|look| look.kind.is_dir())?;
        // Who may replace a link on the way decides where it leads.
        look.is_open |= walked.links.iter().any(|link| innermost(&self.roots, link).is_some());
        let is_absent = self.absent.borrow().of(&walked.real, look.stamp, name);
        Some((Cow::Owned(walked.real), look, is_absent == Some(true)))
    }

    /// An agent may put a file into this directory of `PATH`, where something is odd.
    fn is_open(&self, directory: &Path) -> bool {
        if !directory.is_absolute() {
            return true;
        }
        match directory.canonicalize() {
            Ok(real) => innermost(&self.roots, &real).is_some() || open_to_all(&real),
            // It is not there; whether it could be made is told by its place.
            Err(_) => innermost(&self.roots, directory).is_some(),
        }
    }

    /// Looks for a program in a directory that is like this and reached without links: the file that
    /// it is, and whether that is local.
    fn found_in(
        &self,
        looks: &Looks,
        directory: &Path,
        look: Look,
        name: &str,
    ) -> Option<(Option<PathBuf>, bool)> {
        let file = directory.join(name);
        if looks.at(&file).is_err_and(|kind| kind == ErrorKind::NotFound) {
            self.absent.borrow_mut().note(directory, look.stamp, name);
            return None;
        }
        self.found(looks, &file)
    }

    /// The same wherever the file lies, and whatever leads there.
    fn found(&self, looks: &Looks, file: &Path) -> Option<(Option<PathBuf>, bool)> {
        let is_program = |look: &Look| look.kind.is_file() && look.is_executable;
        match file.strip_prefix("/").map(|rest| walk(looks, PathBuf::from("/"), rest, false)) {
            Ok(Ok(Walk { real, .. })) => {
                looks.at(&real).ok().filter(is_program)?;
                let is_local = self.is_local(looks, &real);
                Some((real.to_str().is_some().then_some(real), is_local))
            }
            // Something is there, but it cannot be told what.
            _ => look_through(file).filter(is_program).map(|_| (None, true)),
        }
    }
}

impl Resolver for Disk {
    fn path(&self, cwd: &Path, given: &str) -> PathFact {
        self.path_among(&Looks::default(), cwd, given)
    }

    fn program(&self, cwd: &Path, name: &str) -> (Option<PathBuf>, bool) {
        self.program_among(&Looks::default(), cwd, name)
    }

    fn path_among(&self, looks: &Looks, cwd: &Path, given: &str) -> PathFact {
        let mut fact = begin(given);
        if fact.trouble.is_some() {
            return fact;
        }
        let walked = match self.walk(looks, cwd, given) {
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

    fn program_among(&self, looks: &Looks, cwd: &Path, name: &str) -> (Option<PathBuf>, bool) {
        if name.is_empty() || odd(name).is_some() {
            return (None, true);
        }
        if name.contains('/') {
            let fact = self.path_among(looks, cwd, name);
            let is_local = fact.trouble.is_some()
                || !name.starts_with('/')
                || !self.is_searched(looks, name)
                || fact.resolved.as_deref().is_none_or(|file| self.is_local(looks, file));
            return (fact.resolved, is_local);
        }
        // An agent that may write to a directory before the one where the program is found can
        // put another program of this name there.
        let mut is_open = false;
        let mut searched: Vec<Cow<'_, Path>> = Vec::with_capacity(self.search.len());
        for directory in &self.search {
            let found = match self.real(looks, directory, name) {
                // The same under another name, or once more.
                Some((real, ..)) if searched.iter().any(|other| other.as_os_str() == real.as_os_str()) => {
                    None
                }
                Some((real, look, is_absent)) => {
                    is_open |= look.is_open || innermost(&self.roots, &real).is_some();
                    let found = if is_absent { None } else { self.found_in(looks, &real, look, name) };
                    searched.push(real);
                    found
                }
                None => {
                    is_open |= self.is_open(directory);
                    self.found(looks, &cwd.join(directory).join(name))
                }
            };
            if let Some((file, is_local)) = found {
                return (file, is_local || is_open);
            }
        }
        (None, is_open)
    }

    fn is_absent(&self, path: &Path) -> bool {
        self.is_absent_among(&Looks::default(), path)
    }

    fn is_absent_among(&self, looks: &Looks, path: &Path) -> bool {
        looks.at(path).is_err_and(|kind| kind == ErrorKind::NotFound)
    }

    fn is_directory(&self, path: &Path) -> bool {
        self.is_directory_among(&Looks::default(), path)
    }

    fn is_directory_among(&self, looks: &Looks, path: &Path) -> bool {
        looks.at(path).is_ok_and(|look| look.kind.is_dir())
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
    let above = root.map_or(0, |root| protected::depth(root));
    if let Some(found) = protected::by_name(path, above)
        && (fact.protected.is_none() || found.secret && !fact.secret)
    {
        fact.protected = Some(found.reason.into());
        fact.secret |= found.secret;
    }
}

/// Notes that all that is protected beneath a root would go with it, if this is one.
pub(super) fn protect_all_in(fact: &mut PathFact) {
    if is_root(fact) {
        fact.protected.get_or_insert_with(|| "protected files are in there, and would go with it".into());
    }
}

/// Whether something in this place is protected, though the place itself need not be.
pub(super) fn holds_protected(fact: &PathFact) -> bool {
    let has =
        |path: &Path| path.file_name().is_some_and(|name| protected::protected_in(name).next().is_some());
    is_root(fact) || has(Path::new(&fact.given)) || fact.resolved.as_deref().is_some_and(has)
}

fn is_root(fact: &PathFact) -> bool {
    fact.root.is_some() && fact.resolved == fact.root
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
    let above = roots.iter().filter(|root| is_above(root, path));
    above.max_by_key(|root| root.as_os_str().len())
}

/// Whether a path is at a root or beneath it. The texts tell it of most that are.
fn is_above(root: &Path, path: &Path) -> bool {
    let rest = path.as_os_str().as_bytes().strip_prefix(root.as_os_str().as_bytes());
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/")) || path.starts_with(root)
}

/// A path as seen from a directory, `..` and links as they are.
fn joined(cwd: &Path, given: &str) -> Result<PathBuf, String> {
    if !cwd.is_absolute() && !given.starts_with('/') {
        return Err("it is relative, and it is not known to what".into());
    }
    Ok(cwd.join(given))
}

/// A path without `.` and `..`, by its text.
pub(super) fn flat(path: &Path) -> PathBuf {
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
    look_through(path).is_none_or(|look| look.is_open)
}

/// What is at a place, all links followed.
fn look_through(path: &Path) -> Option<Look> {
    path.metadata().ok().map(|metadata| Look::from(&metadata))
}

#[cfg(test)]
mod tests;
