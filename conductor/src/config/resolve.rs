//! Finds the program of an agent, or says in words why it cannot run.

use std::{
    env,
    ffi::OsStr,
    io,
    path::{Path, PathBuf},
};

use nix::unistd::{AccessFlags, access};

use super::Agent;

/// The command that means the running binary itself.
const SELF: &str = "conductor";

/// Why an agent cannot be started on this machine.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{why}; {remedy}")]
pub struct Unavailable {
    /// What is wrong with its command.
    pub why: String,
    /// What to do about it.
    pub remedy: String,
}

impl Agent {
    /// The file to execute. `path_var` is the value of `PATH`.
    pub fn resolve(&self, path_var: Option<&OsStr>) -> Result<PathBuf, Unavailable> {
        let command = Path::new(&self.command);
        if self.command == SELF {
            return own_binary()
                .map_err(|error| self.unavailable(format!("cannot find this very binary: {error}")));
        }
        if command.is_absolute() {
            return match executable(command) {
                Ok(()) => Ok(command.to_owned()),
                Err(why) => Err(self.unavailable(format!("`{}` {why}", self.command))),
            };
        }
        let Some(path_var) = path_var else {
            return Err(self.unavailable(format!("`{}` cannot be looked for: PATH is not set", self.command)));
        };
        let mut not_executable = None;
        // Relative directories on PATH would let the working directory choose
        // what runs.
        for directory in env::split_paths(path_var).filter(|directory| directory.is_absolute()) {
            let candidate = directory.join(command);
            match executable(&candidate) {
                Ok(()) => return Ok(candidate),
                Err(why) if candidate.is_file() => {
                    not_executable.get_or_insert_with(|| format!("`{}` {why}", candidate.display()));
                }
                Err(_) => {}
            }
        }
        let why = not_executable.unwrap_or_else(|| format!("`{}` is not on PATH", self.command));
        Err(self.unavailable(why))
    }

    fn unavailable(&self, why: String) -> Unavailable {
        let key = match self.name.as_str() {
            "" => "its command".to_owned(),
            name => format!("agents.{name}.command"),
        };
        let remedy = match &self.install {
            Some(install) => format!("install it with `{install}` or set {key}"),
            None => format!("install it or set {key}"),
        };
        Unavailable { why, remedy }
    }
}

fn executable(path: &Path) -> Result<(), String> {
    match path.metadata() {
        Ok(metadata) if !metadata.is_file() => Err("is not a file".to_owned()),
        Ok(_) => access(path, AccessFlags::X_OK).map_err(|_| "is not executable".to_owned()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err("does not exist".to_owned()),
        Err(error) => Err(format!("cannot be looked at: {error}")),
    }
}

/// The running binary. On Linux by way of `/proc`, which stays right when the
/// file is replaced by an upgrade.
fn own_binary() -> io::Result<PathBuf> {
    if cfg!(target_os = "linux") { Ok(PathBuf::from("/proc/self/exe")) } else { env::current_exe() }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

    use std::{fs, os::unix::fs::PermissionsExt as _};

    use super::*;

    fn agent(command: &str) -> Agent {
        let mut agent: Agent = toml::from_str(&format!("command = {command:?}")).unwrap();
        agent.name = "claude".to_owned();
        agent
    }

    fn program(directory: &Path, name: &str, mode: u32) -> PathBuf {
        let path = directory.join(name);
        fs::write(&path, "#!/bin/sh\n").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    #[test]
    fn names_are_looked_up_on_path_in_order() {
        let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let wanted = program(second.path(), "tool", 0o755);
        let path = env::join_paths([first.path(), second.path()]).unwrap();
        assert_eq!(agent("tool").resolve(Some(&path)), Ok(wanted));
        // What cannot be executed is passed over.
        program(first.path(), "tool", 0o644);
        assert_eq!(agent("tool").resolve(Some(&path)), Ok(second.path().join("tool")));
        let nearer = program(first.path(), "tool", 0o755);
        assert_eq!(agent("tool").resolve(Some(&path)), Ok(nearer));
    }

    #[test]
    fn what_is_missing_is_explained() {
        let mut claude = agent("claude-agent-acp");
        let refused = claude.resolve(Some(OsStr::new("/nowhere"))).unwrap_err().to_string();
        assert_eq!(refused, "`claude-agent-acp` is not on PATH; install it or set agents.claude.command");
        claude.install = Some("npm install -g x".to_owned());
        let refused = claude.resolve(Some(OsStr::new(""))).unwrap_err().to_string();
        assert_eq!(
            refused,
            "`claude-agent-acp` is not on PATH; install it with `npm install -g x` or set agents.claude.command"
        );
        let refused = claude.resolve(None).unwrap_err().to_string();
        assert!(refused.contains("PATH is not set"), "{refused}");
    }

    #[test]
    fn f04_files_that_cannot_run_are_explained() {
        let directory = tempfile::tempdir().unwrap();
        let plain = program(directory.path(), "plain", 0o644);
        let why = |command: &Path| agent(command.to_str().unwrap()).resolve(None).unwrap_err().why;
        assert!(why(&plain).ends_with("is not executable"));
        assert!(why(directory.path()).ends_with("is not a file"));
        assert!(why(&directory.path().join("none")).ends_with("does not exist"));
        let refused = agent("plain").resolve(Some(directory.path().as_os_str())).unwrap_err().why;
        assert!(refused.ends_with("plain` is not executable"), "{refused}");
    }

    #[test]
    fn the_working_directory_is_not_searched() {
        // `cargo test` runs in the package's directory, which holds build.rs.
        assert!(Path::new("build.rs").exists());
        for path in ["", ".", ":", "./"] {
            let refused = agent("build.rs").resolve(Some(OsStr::new(path))).unwrap_err().why;
            assert_eq!(refused, "`build.rs` is not on PATH");
        }
    }

    #[test]
    fn conductor_is_this_binary() {
        let found = agent("conductor").resolve(None).unwrap();
        assert_eq!(fs::canonicalize(found).unwrap(), fs::canonicalize(env::current_exe().unwrap()).unwrap());
    }
}
