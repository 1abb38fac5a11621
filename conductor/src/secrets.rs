//! The secrets of users and teams: read when a process is started for a user,
//! handed to that process alone, and kept nowhere.
//!
//! They come from a directory (`directory`) or from a program of the operator's
//! (`command`). Either way, what is wrong with them is told by the names of files
//! and variables only: no value is shown, logged or recorded, and neither is what
//! the program says when it fails.

mod command;
mod directory;

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fmt,
    path::{Component, Path, PathBuf},
    sync::Arc,
};

use tokio::{
    sync::{Semaphore, watch},
    task::spawn_blocking,
    time::timeout,
};

use crate::{
    config::{self, SecretSource},
    identity::Person,
    limits::turns::Turns,
};

/// Programs that may be asked for secrets at the same time; more would only wait
/// for the same place.
const PARALLEL: usize = 8;

/// Looks at the directory that may go on at the same time. A file system that hangs holds
/// a thread for each, and threads are needed elsewhere.
const LOOKS: usize = 64;

/// What may be asked for one user at the same time, of either.
const PER_USER: usize = 4;

/// Bytes of a variable's value; the kernel takes a little more.
const LARGEST_VALUE: usize = 64 << 10;

/// Bytes of all variables together. The kernel starts no program with more than a quarter
/// of its stack, which is 2 MiB as a rule, and the rest of the environment is in there, too.
const LARGEST_ENV: usize = 512 << 10;

/// Bytes of a file.
const LARGEST_FILE: usize = 1 << 20;

/// Variables and files that one process may be given.
const MOST: usize = 256;

/// What a process is given of its user's.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secrets {
    /// Variables.
    pub env: BTreeMap<String, OsString>,
    /// Files, from the user's home on.
    pub files: BTreeMap<PathBuf, Vec<u8>>,
}

// Written by hand: names are shown, values never.
impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { env, files } = self;
        f.debug_struct("Secrets").field("env", &env.keys()).field("files", &files.keys()).finish()
    }
}

/// Why there are none to be had: cause and remedy, without any value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NoSecrets(String);

impl Secrets {
    /// Their names, for people.
    pub fn names(&self) -> Vec<String> {
        let files = self.files.keys().map(|path| format!("~/{}", path.display()));
        self.env.keys().cloned().chain(files).collect()
    }

    fn is_empty(&self) -> bool {
        self.env.is_empty() && self.files.is_empty()
    }

    /// Adds what is not there yet: what was added first counts.
    fn add(&mut self, more: Self) {
        for (name, value) in more.env {
            self.env.entry(name).or_insert(value);
        }
        for (path, content) in more.files {
            self.files.entry(path).or_insert(content);
        }
    }

    /// Refuses what no process can be given, or should be.
    fn check(&self, origin: &str) -> Result<(), NoSecrets> {
        if self.env.len() + self.files.len() > MOST {
            return Err(NoSecrets(format!("{origin} has more than {MOST} secrets; leave some out")));
        }
        for (name, value) in &self.env {
            check_variable(name).map_err(|why| NoSecrets(format!("{origin}: {why}")))?;
            let bytes = value.as_encoded_bytes();
            if bytes.len() > LARGEST_VALUE || bytes.contains(&0) {
                return Err(NoSecrets(format!(
                    "{origin}: the value of {name} has a NUL in it or more than {} KiB; no process can be given that",
                    LARGEST_VALUE >> 10
                )));
            }
        }
        let sizes = self.env.iter().map(|(name, value)| (name.len() + value.len(), name));
        let (whole, largest) = (sizes.clone().map(|(size, _)| size).sum::<usize>(), sizes.max());
        if let Some((size, name)) = largest.filter(|_| whole > LARGEST_ENV) {
            return Err(NoSecrets(format!(
                "{origin} has {} KiB of variables, and a process can be given {} KiB; the largest is {name} with {} \
                 KiB: make it a file",
                whole.div_ceil(1 << 10),
                LARGEST_ENV >> 10,
                size.div_ceil(1 << 10)
            )));
        }
        for (path, content) in &self.files {
            let shown = path.display();
            if !path.components().all(|part| matches!(part, Component::Normal(_)))
                || path.as_os_str().is_empty()
            {
                return Err(NoSecrets(format!(
                    "{origin}: {shown} is not a path beneath the user's home; write it without a leading `/` and `..`"
                )));
            }
            if content.len() > LARGEST_FILE {
                return Err(NoSecrets(format!("{origin}: the file {shown} is larger than 1 MiB")));
            }
        }
        Ok(())
    }
}

/// Whether a secret may be a variable of this name. Some names decide which code
/// runs, and the guard runs with the same environment.
fn check_variable(name: &str) -> Result<(), String> {
    let shown = name.escape_debug();
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if name.is_empty() || name.len() > 100 || !name.chars().all(is_word) {
        return Err(format!("`{shown}` cannot be the name of a variable; use letters, digits and _"));
    }
    if name.starts_with("LD_") || name.starts_with("GLIBC_") || ["PATH", "HOME"].contains(&name) {
        return Err(format!("{name} decides which programs run, and so is no secret; set it in agents.toml"));
    }
    Ok(())
}

/// Where secrets are asked for. Clones share it.
#[derive(Debug, Clone)]
pub struct Vault {
    // Not for its receivers: it is replaced by a reload, and read for a moment.
    source: Arc<watch::Sender<SecretSource>>,
    programs: Arc<Semaphore>,
    looks: Arc<Semaphore>,
    turns: Turns,
}

/// What the directory looked like; always the same where there is none to look at.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stamp(Option<u64>);

/// What was found in the vault.
#[derive(Debug, Clone, Default)]
pub struct Found {
    /// The secrets.
    pub secrets: Secrets,
    /// What the directory looked like before they were read.
    pub stamp: Stamp,
}

impl Vault {
    /// A vault with this source.
    pub fn new(source: &SecretSource) -> Self {
        Self {
            source: Arc::new(watch::channel(source.clone()).0),
            programs: Arc::new(Semaphore::new(PARALLEL)),
            looks: Arc::new(Semaphore::new(LOOKS)),
            turns: Turns::new(PER_USER),
        }
    }

    /// From now on this is the source.
    pub fn change(&self, source: &SecretSource) {
        self.source.send_replace(source.clone());
    }

    /// What a process of this agent is given for this person.
    pub async fn open(&self, agent: &config::Agent, person: &Person) -> Result<Found, NoSecrets> {
        if agent.secrets == config::Secrets::Off {
            return Ok(Found::default());
        }
        let source = self.source.borrow().clone();
        let found = match &source.dir {
            Some(dir) => {
                let (place, name, whose) = (dir.clone(), agent.name.clone(), person.clone());
                let look = move || {
                    let stamp = Stamp(Some(directory::stamp(&place, &name, &whose)));
                    Ok(Found { stamp, secrets: directory::read(&place, &name, &whose)? })
                };
                self.look(&source, dir, person, look).await??
            }
            None => {
                let turns = self.turns.of(&person.user);
                let _places = (turns.acquire().await, self.programs.acquire().await);
                let secrets = command::ask(&source, &agent.name, person).await?;
                Found { secrets, stamp: Stamp::default() }
            }
        };
        if agent.secrets == config::Secrets::Required && found.secrets.is_empty() {
            return Err(NoSecrets(missing(&source, &agent.name, person)));
        }
        if !found.secrets.files.is_empty() && agent.home != config::Home::User {
            return Err(NoSecrets(format!(
                "the secrets of user `{}` have files, and the agent has no home of this user's to put them in; \
                 set agents.{}.home = \"user\"",
                person.user, agent.name
            )));
        }
        Ok(found)
    }

    /// Changes when what the directory has for this person changes. A command
    /// cannot be asked so often; what it gives is good for a while.
    pub async fn stamp(&self, agent: &config::Agent, person: &Person) -> Result<Stamp, NoSecrets> {
        let source = self.source.borrow().clone();
        let Some(dir) = source.dir.as_deref().filter(|_| agent.secrets != config::Secrets::Off) else {
            return Ok(Stamp::default());
        };
        let (place, name, whose) = (dir.to_path_buf(), agent.name.clone(), person.clone());
        self.look(&source, dir, person, move || Stamp(Some(directory::stamp(&place, &name, &whose)))).await
    }

    /// Looks at the directory, on a thread that may have to wait. Nobody waits for longer
    /// than secrets may take. A look that hangs goes on and keeps its turn, so that it is
    /// in the way of its own user's first.
    async fn look<T: Send + 'static>(
        &self,
        source: &SecretSource,
        dir: &Path,
        person: &Person,
        look: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, NoSecrets> {
        let looking = async {
            let turn = self.turns.of(&person.user).acquire_owned().await;
            let place = self.looks.clone().acquire_owned().await;
            let look = move || {
                let seen = look();
                drop((turn, place));
                seen
            };
            spawn_blocking(look).await.map_err(|_| NoSecrets("the secrets could not be read".into()))
        };
        let late = |_| {
            NoSecrets(format!(
                "{} could not be read within {:?}; see whether the file system answers that it is on, \
                 or raise secrets.timeout",
                dir.display(),
                source.timeout
            ))
        };
        timeout(source.timeout, looking).await.map_err(late)?
    }
}

fn missing(source: &SecretSource, agent: &str, person: &Person) -> String {
    let user = &person.user;
    match &source.dir {
        Some(dir) => format!(
            "there are no secrets for user `{user}`; put them into {}",
            directory::place_of_user(dir, agent, person).display()
        ),
        None => format!("secrets.command has no secrets for user `{user}`; add them where it looks"),
    }
}

/// A path for people, from the directory on.
fn shown(path: &Path) -> String {
    path.display().to_string().escape_debug().to_string()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    #[test]
    fn no_value_is_shown() {
        let secrets = Secrets {
            env: [("KEY".to_owned(), OsString::from("canary"))].into(),
            files: [(PathBuf::from(".x/y"), b"canary".to_vec())].into(),
        };
        assert_eq!(secrets.names(), ["KEY", "~/.x/y"]);
        assert!(!format!("{secrets:?}").contains("canary"));
    }

    #[test]
    fn what_decides_which_code_runs_is_no_secret() {
        for good in ["API_KEY", "x", "_1"] {
            assert_eq!(check_variable(good), Ok(()));
        }
        for bad in ["", "A=B", "A B", "LD_PRELOAD", "GLIBC_TUNABLES", "PATH", "HOME", "é", "A\n"] {
            assert!(check_variable(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_is_too_much_for_a_process_is_told_by_its_name() {
        let many = |count: usize| Secrets {
            env: (0..count).map(|at| (format!("KEY_{at}"), "x".repeat(LARGEST_VALUE - at).into())).collect(),
            ..Secrets::default()
        };
        assert_eq!(many(7).check("it"), Ok(()));
        let refused = many(9).check("it").unwrap_err().to_string();
        assert!(
            refused.contains("577 KiB of variables") && refused.contains("the largest is KEY_0"),
            "{refused}"
        );
    }

    #[test]
    fn files_stay_beneath_the_home() {
        for bad in ["", "/etc/passwd", "../x", "a/../../b"] {
            let secrets = Secrets { files: [(PathBuf::from(bad), Vec::new())].into(), ..Secrets::default() };
            assert!(secrets.check("it").is_err(), "{bad}");
        }
    }
}
