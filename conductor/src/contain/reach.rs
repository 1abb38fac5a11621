//! Which files an agent needs, so that all others can be kept from it.
//!
//! It can read the system, its own program with what that is installed with, the directories
//! of `PATH` and what people install in their homes. It can change its session's directory, its home or what its profile
//! says is its own in ours, and a directory for temporary files. Everything else is out of
//! reach: our state with tokens, journal and other homes, other projects, keys in the home.

use std::{
    ffi::OsStr,
    fs::{self, File},
    io::Read as _,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
};

use super::Files;
use crate::{
    agent::profile::Profile,
    config::{self, Sandbox},
};

/// Directories that programs come with, and what they are told of this host.
const SYSTEM: &[&str] = &[
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/usr",
    "/etc",
    "/opt",
    "/nix",
    "/gnu",
    "/snap",
    // Other processes show nothing private to a process that is shut in.
    "/proc",
    "/sys",
    // What `/etc/resolv.conf` and the like may lead to.
    "/run/systemd/resolve",
    "/run/resolvconf",
    "/run/NetworkManager",
    "/run/nscd",
    "/var/lib/ca-certificates",
    "/var/cache/fontconfig",
];

/// Devices that every program may use.
const DEVICES: &[&str] = &[
    "/dev/null",
    "/dev/zero",
    "/dev/full",
    "/dev/random",
    "/dev/urandom",
    "/dev/tty",
    "/dev/ptmx",
    "/dev/pts",
];

/// Memory that processes share; semaphores live there.
const SHARED_MEMORY: &str = "/dev/shm";

/// What is read in a home that is not the agent's own: tools that people install there, what
/// they have fetched with them, and who commits. None of it holds keys.
const TOOLS: &[&str] = &[
    ".gitconfig",
    ".config/git",
    ".rustup",
    ".cargo/bin",
    ".cargo/config.toml",
    ".cargo/registry",
    ".cargo/git",
    ".nvm/versions",
    ".volta",
    ".bun/bin",
    ".deno/bin",
    ".asdf",
    ".local/share/mise",
    ".pyenv",
    ".local/lib",
    ".local/share/uv",
    ".sdkman/candidates",
    ".jdks",
    "go/bin",
    "go/pkg",
];

/// How much of a program is read to see which other program runs it.
const FIRST_LINE: usize = 256;

/// What is known of a process before it is started.
#[derive(Debug, Clone, Copy)]
pub struct Needs<'a> {
    /// Its program, resolved.
    pub program: &'a Path,
    /// Its arguments, which may be the script that the program runs.
    pub args: &'a [String],
    /// Where it finds other programs.
    pub search: Option<&'a OsStr>,
    /// The home that it sees.
    pub home: Option<&'a Path>,
    /// Whether that is its own.
    pub owns_home: bool,
    /// The directories that it works in.
    pub roots: &'a [PathBuf],
    /// The agent that it is known as.
    pub profile: Option<Profile>,
}

/// Whether an agent is shut in: as configured, else only those that are known to work then.
pub fn mode(agent: &config::Agent, profile: Option<Profile>) -> Sandbox {
    let usual = match profile.is_some_and(|profile| profile.is_tested) {
        true => Sandbox::Preferred,
        false => Sandbox::Off,
    };
    agent.sandbox.unwrap_or(usual)
}

/// What it can reach.
pub fn files(state: &Path, agent: &config::Agent, needs: &Needs<'_>) -> Files {
    let mut read: Vec<PathBuf> = SYSTEM.iter().map(PathBuf::from).collect();
    let mut write: Vec<PathBuf> = needs.roots.to_vec();
    write.push(SHARED_MEMORY.into());
    read.extend(installed(needs));
    if let Some(home) = needs.home {
        match needs.owns_home {
            true => write.push(home.to_path_buf()),
            false => {
                write.extend(own_places(home, needs.profile));
                read.extend(TOOLS.iter().map(|tool| home.join(tool)));
            }
        }
    }
    // What a profile has put beside the home, which is for this agent alone.
    read.push(state.join("homes").join(&agent.name));
    read.extend(agent.reach.read.iter().cloned());
    write.extend(agent.reach.write.iter().cloned());
    let devices = DEVICES.iter().map(PathBuf::from).collect();
    Files { read, write, devices }
}

/// What a known agent keeps in a home that is not its own. Directories are made: a rule
/// holds only for what is there.
fn own_places(home: &Path, profile: Option<Profile>) -> impl Iterator<Item = PathBuf> {
    let places = profile.map(|profile| profile.home_paths).unwrap_or_default();
    places.iter().map(move |place| {
        let path = home.join(place);
        if place.ends_with('/') {
            // Without it the agent says what it misses.
            fs::create_dir_all(&path).ok();
        }
        path
    })
}

/// Where a program and those it runs are installed.
fn installed(needs: &Needs<'_>) -> Vec<PathBuf> {
    let home = needs.home.filter(|_| !needs.owns_home);
    let mut found = Vec::new();
    let search: Vec<PathBuf> = needs
        .search
        .map(|path| std::env::split_paths(path).filter(|path| path.is_absolute()).collect())
        .unwrap_or_default();
    let scripts = needs.args.iter().map(PathBuf::from).filter(|path| path.is_absolute() && path.is_file());
    let own = std::iter::once(needs.program.to_path_buf()).chain(interpreter(needs.program, &search));
    for program in own.chain(scripts) {
        found.extend(program.parent().map(|directory| prefix(directory, home)));
        if let Ok(real) = program.canonicalize() {
            found.extend(real.parent().map(|directory| prefix(directory, home)));
            found.extend(packages(&real));
            found.push(real);
        }
    }
    for directory in search {
        // What Node's programs in there lead to.
        let beside = directory.parent().map(|above| above.join("lib/node_modules"));
        found.extend(beside.filter(|path| path.is_dir()));
        found.push(directory);
    }
    found
}

/// What is installed together with what is in a directory: all beside a `bin`, unless much
/// else is there, too.
fn prefix(directory: &Path, home: Option<&Path>) -> PathBuf {
    let is_bin = directory.file_name().is_some_and(|name| name == "bin" || name == "sbin");
    let above = directory.parent().filter(|_| is_bin);
    let shared = |path: &Path| {
        path.parent().is_none()
            || home.is_some_and(|home| {
                home.starts_with(path) || path == home.join(".local") || path == home.join(".cargo")
            })
    };
    above.filter(|above| !shared(above)).unwrap_or(directory).to_path_buf()
}

/// The outermost `node_modules` above a program.
fn packages(program: &Path) -> Option<PathBuf> {
    let above: Vec<&Path> = program.ancestors().collect();
    above
        .into_iter()
        .rev()
        .find(|path| path.file_name().is_some_and(|name| name == "node_modules"))
        .map(Path::to_path_buf)
}

/// Who runs a script: by its first line, directly or by `env`.
fn interpreter(program: &Path, search: &[PathBuf]) -> Option<PathBuf> {
    let mut line = Vec::new();
    File::open(program).ok()?.take(FIRST_LINE as u64).read_to_end(&mut line).ok()?;
    let line = line.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    let first = Path::new(OsStr::from_bytes(words.next()?));
    if first.file_name()? != "env" {
        return Some(first.to_path_buf());
    }
    let name = words.find(|word| !word.starts_with(b"-"))?;
    search.iter().map(|directory| directory.join(OsStr::from_bytes(name))).find(|path| path.is_file())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_script_brings_its_package_and_who_runs_it() {
        let temp = tempfile::tempdir().unwrap();
        let home = temp.path().canonicalize().unwrap();
        for directory in ["node/bin", "node/lib/node_modules/agent/dist", ".local/bin"] {
            fs::create_dir_all(home.join(directory)).unwrap();
        }
        fs::write(home.join("node/bin/node"), "binary").unwrap();
        let script = home.join("node/lib/node_modules/agent/dist/cli.js");
        fs::write(&script, "#!/usr/bin/env -S node --flag\n").unwrap();
        let program = home.join(".local/bin/agent");
        symlink(&script, &program).unwrap();
        let search = std::env::join_paths([home.join("node/bin"), home.join(".local/bin")]).unwrap();
        let needs = Needs {
            program: &program,
            args: &[],
            search: Some(&search),
            home: Some(&home),
            owns_home: false,
            roots: &[],
            profile: None,
        };
        let found = installed(&needs);
        for place in ["node", ".local/bin", "node/lib/node_modules"] {
            assert!(found.contains(&home.join(place)), "{place} is not in {found:?}");
        }
        for place in ["", ".local"] {
            assert!(!found.contains(&home.join(place)), "{place} is in {found:?}");
        }
    }

    #[test]
    fn a_shared_place_is_no_prefix() {
        let home = Path::new("/home/ann");
        let of = |path: &str| prefix(Path::new(path), Some(home));
        assert_eq!(of("/home/ann/.nvm/v20/bin"), Path::new("/home/ann/.nvm/v20"));
        assert_eq!(of("/home/ann/.local/bin"), Path::new("/home/ann/.local/bin"));
        assert_eq!(of("/home/ann/.cargo/bin"), Path::new("/home/ann/.cargo/bin"), "tokens are beside it");
        assert_eq!(of("/home/ann/bin"), Path::new("/home/ann/bin"));
        assert_eq!(of("/home/bin"), Path::new("/home/bin"));
        assert_eq!(of("/bin"), Path::new("/bin"));
        assert_eq!(of("/srv/tools/target/debug"), Path::new("/srv/tools/target/debug"));
    }
}
