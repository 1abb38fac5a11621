//! The walk along a path, as the kernel does it.

use std::{
    borrow::Cow,
    ffi::OsStr,
    fs,
    io::ErrorKind,
    os::unix::{ffi::OsStrExt as _, fs::FileTypeExt as _},
    path::{Path, PathBuf},
};

use super::looks::{Look, Looks};

/// Links that are followed, as many as the kernel follows.
const MOST_LINKS: usize = 40;

/// Components that are walked, those of links included. More of them means that somebody tries
/// to make the walk long.
const MOST_STEPS: usize = 4096;

/// Where a walk has led.
#[derive(Debug)]
pub struct Walk {
    /// There, without links. The last components need not exist.
    pub real: PathBuf,
    /// Where the links were that were followed.
    pub links: Vec<PathBuf>,
    /// Where the link is that the path itself names, if it names one.
    pub leaf: Option<PathBuf>,
    /// Why this place is not to be trusted.
    pub trouble: Option<String>,
}

/// Walks on from a directory that has no links. An error says why it cannot be told where the path
/// leads.
pub fn walk(looks: &Looks, start: PathBuf, rest: &Path, mut wants_directory: bool) -> Result<Walk, String> {
    let mut real = start;
    let mut links = Vec::new();
    let mut leaf = None;
    let mut trouble = None;
    // What is still to be walked, the next component last.
    let mut ahead: Vec<Cow<'_, OsStr>> = components(rest.as_os_str()).map(Cow::Borrowed).collect();
    let mut steps = 0;
    // Nothing is at `real`: what follows can only be made.
    let mut is_missing = false;
    while let Some(name) = ahead.pop() {
        steps += 1;
        if steps > MOST_STEPS {
            return Err("it is too long, or its links are".into());
        }
        if *name == *".." {
            if is_missing {
                return Err("`..` follows a directory that does not exist".into());
            }
            real.pop();
            continue;
        }
        real.push(&name);
        if is_missing {
            continue;
        }
        let look = match looks.at(&real) {
            Ok(look) => look,
            Err(ErrorKind::NotFound) => {
                is_missing = true;
                continue;
            }
            Err(kind) => return Err(format!("it cannot be looked at: {kind}")),
        };
        let is_last = ahead.is_empty();
        if !look.kind.is_symlink() {
            if !look.kind.is_dir() && (!is_last || wants_directory) {
                return Err("a part of it is used as a directory and is none".into());
            }
            trouble = odd(look, &real);
            continue;
        }
        if links.len() >= MOST_LINKS {
            return Err("it has too many links, or they lead in a circle".into());
        }
        if is_magic(&real) {
            return Err("a link of /proc leads to different places for different processes".into());
        }
        let target = match fs::read_link(&real) {
            Ok(target) if !target.as_os_str().is_empty() => target,
            Ok(_) => return Err("a link in it leads nowhere".into()),
            Err(error) => return Err(format!("a link in it cannot be read: {}", error.kind())),
        };
        if is_last {
            leaf.get_or_insert_with(|| real.clone());
            wants_directory |= target.as_os_str().as_bytes().ends_with(b"/");
        }
        links.push(real.clone());
        real.pop();
        if target.is_absolute() {
            real = PathBuf::from("/");
        }
        ahead.extend(components(target.as_os_str()).map(|name| Cow::Owned(name.to_owned())));
    }
    Ok(Walk { real, links, leaf, trouble })
}

/// The names in a path from the last to the first, without those that mean nothing. A name before
/// a slash at the end, or before `/.`, has to be a directory; the caller sees to that.
fn components(path: &OsStr) -> impl Iterator<Item = &OsStr> {
    let names = path.as_bytes().rsplit(|byte| *byte == b'/');
    names.filter(|name| !name.is_empty() && *name != b".").map(OsStr::from_bytes)
}

/// Something else than a file or a directory.
fn odd(look: Look, real: &Path) -> Option<String> {
    let kind = look.kind;
    if kind.is_file() || kind.is_dir() || kind.is_char_device() && real.starts_with("/dev") {
        return None;
    }
    Some("it is neither a file nor a directory".into())
}

/// A link that the kernel follows by itself, not by its text: one of procfs, wherever that is
/// mounted.
#[cfg(target_os = "linux")]
fn is_magic(link: &Path) -> bool {
    use nix::sys::statfs::{PROC_SUPER_MAGIC, statfs};
    let Some(directory) = link.parent() else { return true };
    link.starts_with("/proc") || statfs(directory).map_or(true, |fs| fs.filesystem_type() == PROC_SUPER_MAGIC)
}

#[cfg(not(target_os = "linux"))]
fn is_magic(link: &Path) -> bool {
    link.starts_with("/proc")
}
