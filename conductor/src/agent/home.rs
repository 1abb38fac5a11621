//! The home that an agent sees, and what a process is given that runs for one user
//! alone: secrets, a home of theirs, the name that commits are made under.

use std::{
    ffi::{OsStr, OsString},
    fs::{self, File},
    io,
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
};

use nix::unistd::Uid;

use super::{
    beneath::{Beneath, explained, put},
    process::Environment,
};
use crate::{
    config::{self, Config, GitIdentity, Home},
    identity::{Person, file_name},
    redact::{self, Kind, Known, Secret},
    secrets::{Found, NoSecrets, Secrets, Stamp, Vault},
};

/// Marks the homes of a user among those of agents, whose names never begin so.
const USER_MARK: &str = "@";

/// Where it is kept which of a home's files are secrets that we put there: beside the
/// home, since what is in it is the agent's to change.
const LIST_SUFFIX: &str = ".secrets";

/// What a process gets that runs for one user alone.
#[derive(Debug, Clone)]
pub struct Belongings {
    user: String,
    secrets: Secrets,
    stamp: Stamp,
    git: Option<GitIdentity>,
}

impl Belongings {
    /// Those of a person at an agent. May have to wait for the secrets.
    pub async fn of(
        person: &Person,
        agent: &config::Agent,
        vault: &Vault,
        git: Option<GitIdentity>,
    ) -> Result<Self, NoSecrets> {
        let Found { secrets, stamp } = vault.open(agent, person).await?;
        Ok(Self { user: person.user.clone(), secrets, stamp, git })
    }

    /// Those of a person if processes of the agent are theirs alone at all.
    pub async fn if_personal(
        config: &Config,
        person: &Person,
        agent: &config::Agent,
    ) -> Result<Option<Self>, NoSecrets> {
        if !config.is_personal(agent, &person.user) {
            return Ok(None);
        }
        let vault = Vault::new(&config.secrets);
        Self::of(person, agent, &vault, config.git_identity(&person.user)).await.map(Some)
    }

    /// The names of the secrets.
    pub fn secret_names(&self) -> Vec<String> {
        self.secrets.names()
    }

    /// What the secrets looked like before they were read.
    pub fn stamp(&self) -> Stamp {
        self.stamp
    }

    /// Variables that only the agent gets.
    pub(super) fn secret_variables(&self) -> impl Iterator<Item = (OsString, OsString)> {
        self.secrets.env.iter().map(|(name, value)| (name.into(), value.clone()))
    }

    /// Variables that commands get, too, which it has us run.
    pub(super) fn git_variables(&self) -> impl Iterator<Item = (OsString, OsString)> {
        let roles = ["GIT_AUTHOR", "GIT_COMMITTER"];
        self.git.iter().flat_map(move |git| {
            roles.into_iter().flat_map(|role| {
                [("NAME", &git.name), ("EMAIL", &git.email)]
                    .map(|(part, value)| (format!("{role}_{part}").into(), value.into()))
            })
        })
    }
}

/// What a process is given that is secret: all that is called so, of the variables that are
/// handed on (`env` has them) those that are not plainly something else, and of those in the
/// configuration, which anybody may read, those whose names say so.
pub(super) fn known(agent: &config::Agent, own: Option<&Belongings>, env: &Environment) -> Known {
    let variable = |name: &str, value: &[u8]| Secret::named(Kind::Env, name, value);
    let configured = agent.env.iter().filter(|(name, _)| redact::speaks_of_secret(name));
    let configured = configured.filter_map(|(name, value)| variable(name, value.as_bytes()));
    let handed_on = agent.env_from.iter().filter_map(|name| {
        env.get(OsStr::new(name)).and_then(|value| variable(name, value.as_encoded_bytes()))
    });
    let secrets = own.iter().flat_map(|own| {
        let env = own.secrets.env.values();
        let env = env.filter_map(|value| Secret::declared(Kind::Env, value.as_encoded_bytes()));
        env.chain(own.secrets.files.values().flat_map(|content| Secret::in_file(Kind::File, content)))
    });
    Known::default().with(secrets.chain(handed_on).chain(configured))
}

/// Makes the home that the agent is to see, with the files that belong into it;
/// `None` if it sees the conductor's own.
pub(super) fn furnish(
    agent: &config::Agent,
    homes: &Path,
    own: Option<&Belongings>,
) -> io::Result<Option<PathBuf>> {
    let home = match (agent.home, own) {
        (Home::Inherit, _) => return Ok(None),
        (Home::Isolated, _) => homes.join(&agent.name),
        (Home::User, Some(own)) => place_of_user(homes, &agent.name, &own.user),
        (Home::User, None) => {
            let text = "its home is each user's own, and it was to be started for nobody in particular";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
    };
    private_directory(&home)?;
    let beneath = Beneath::open(&home)?;
    let secrets = own.map(|own| &own.secrets).filter(|_| agent.home == Home::User);
    // First what is to go: one of the others may have its place now.
    if let Some(secrets) = secrets {
        take_back(&home, &beneath, secrets)?;
    }
    for (target, source) in &agent.files {
        let copied = File::open(source).and_then(|file| {
            let mode = file.metadata()?.mode();
            beneath.put(target, mode, file)
        });
        copied.map_err(|error| {
            explained(&error, &format!("cannot copy {} into the agent's home", source.display()))
        })?;
    }
    for (path, content) in secrets.into_iter().flat_map(|secrets| &secrets.files) {
        beneath.put(path, 0o600, &content[..])?;
    }
    Ok(Some(home))
}

/// Where the home of a user at an agent is. It stays there for the next session.
pub(super) fn place_of_user(homes: &Path, agent: &str, user: &str) -> PathBuf {
    homes.join(format!("{USER_MARK}{}", file_name(user))).join(agent)
}

/// A directory that nobody else may look into, and that is no link to elsewhere.
fn private_directory(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    let metadata = fs::symlink_metadata(path)?;
    if !metadata.is_dir() || metadata.uid() != Uid::effective().as_raw() {
        let text = format!("{} is not a directory of the conductor's; move it away", path.display());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    if metadata.mode() & 0o777 != 0o700 {
        fs::set_permissions(path, fs::Permissions::from_mode(0o700))?;
    }
    Ok(())
}

/// Takes the secret files away that were put into a user's home and are none any more,
/// and writes down which will be there.
fn take_back(home: &Path, beneath: &Beneath, secrets: &Secrets) -> io::Result<()> {
    let mut list = home.as_os_str().to_owned();
    list.push(LIST_SUFFIX);
    let list = PathBuf::from(list);
    // What is in the list is not to be had any longer, so one that cannot be read is no
    // empty one.
    let lost = |why: String| {
        let (list, home) = (list.display(), home.display());
        io::Error::other(format!(
            "{list} should tell which files in {home} are secrets, and cannot be read ({why}); take those away that are \
             none any more, then remove the list"
        ))
    };
    let given: Vec<PathBuf> = match fs::read(&list) {
        Ok(text) => serde_json::from_slice(&text).map_err(|error| lost(error.to_string()))?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
        Err(error) => return Err(lost(error.to_string())),
    };
    if given.is_empty() && secrets.files.is_empty() {
        return Ok(());
    }
    for path in given.iter().filter(|path| !secrets.files.contains_key(*path)) {
        let shown = path.display();
        beneath.remove(path).map_err(|error| {
            explained(&error, &format!("cannot take {shown} away, which is no secret of the user's any more"))
        })?;
    }
    // Written first: better one too many in the list than one too few.
    let names = serde_json::to_vec(&secrets.files.keys().collect::<Vec<_>>());
    put(&list, &names.map_err(|_| io::Error::other("a secret file has a name that is no text"))?)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn own(user: &str, files: &[(&str, &str)]) -> Belongings {
        let files = files.iter().map(|(path, text)| (PathBuf::from(path), text.as_bytes().to_vec()));
        let secrets = Secrets { files: files.collect(), ..Secrets::default() };
        Belongings { user: user.into(), secrets, stamp: Stamp::default(), git: None }
    }

    fn agent() -> config::Agent {
        let mut agent: config::Agent = toml::from_str("command = 'x'\nhome = 'user'").unwrap();
        agent.name = "claude".to_owned();
        agent
    }

    #[test]
    fn users_have_homes_of_their_own() {
        let homes = tempfile::tempdir().unwrap();
        let home = |user: &str| furnish(&agent(), homes.path(), Some(&own(user, &[]))).unwrap().unwrap();
        let (ann, bob) = (home("ann"), home("../ann"));
        assert_eq!(ann, homes.path().join("@ann/claude"));
        assert_eq!(bob, homes.path().join("@%2e.%2fann/claude"));
        fs::write(ann.join("kept"), "").unwrap();
        fs::set_permissions(&ann, fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(home("ann"), ann);
        assert_eq!(fs::metadata(&ann).unwrap().mode() & 0o777, 0o700);
        assert!(ann.join("kept").exists());
        assert!(furnish(&agent(), homes.path(), None).is_err(), "nobody has no home");
        fs::remove_dir_all(&bob).unwrap();
        symlink(&ann, &bob).unwrap();
        assert!(furnish(&agent(), homes.path(), Some(&own("../ann", &[]))).is_err(), "a link is no home");
    }

    #[test]
    fn secret_files_come_and_go_with_the_secrets() {
        let homes = tempfile::tempdir().unwrap();
        let furnish = |files: &[(&str, &str)]| {
            furnish(&agent(), homes.path(), Some(&own("ann", files))).unwrap().unwrap()
        };
        let home = furnish(&[(".a/token", "one"), ("key", "k")]);
        assert_eq!(fs::read_to_string(home.join(".a/token")).unwrap(), "one");
        assert_eq!(fs::metadata(home.join("key")).unwrap().mode() & 0o777, 0o600);
        fs::write(home.join("own"), "the agent's").unwrap();
        furnish(&[(".a/token", "two")]);
        assert_eq!(fs::read_to_string(home.join(".a/token")).unwrap(), "two");
        assert!(!home.join("key").exists(), "what is no secret any more is gone");
        furnish(&[]);
        assert!(!home.join(".a/token").exists());
        assert!(home.join("own").exists());
    }
    #[test]
    fn a_list_that_cannot_be_read_forgets_nothing() {
        let homes = tempfile::tempdir().unwrap();
        let furnish = |files: &[(&str, &str)]| furnish(&agent(), homes.path(), Some(&own("ann", files)));
        let home = furnish(&[("key", "k")]).unwrap().unwrap();
        let list = homes.path().join("@ann/claude.secrets");
        for broken in ["", "[\"ke", "{}", "\"key\""] {
            fs::write(&list, broken).unwrap();
            let refused = furnish(&[]).unwrap_err().to_string();
            assert!(refused.contains("claude.secrets") && refused.contains("remove the list"), "{refused}");
            assert!(home.join("key").exists(), "it is still known that something is there");
        }
        // Nor does it reach beyond the home, whoever wrote it.
        fs::write(homes.path().join("other"), "").unwrap();
        fs::write(&list, "[\"../../other\"]").unwrap();
        assert!(furnish(&[]).is_err() && homes.path().join("other").exists());
        fs::remove_file(&list).unwrap();
        furnish(&[]).unwrap();
    }

    #[test]
    fn a_file_may_be_moved_out_of_the_secrets_and_into_them() {
        let homes = tempfile::tempdir().unwrap();
        let source = homes.path().join("settings.json");
        fs::write(&source, "configured").unwrap();
        fs::set_permissions(&source, fs::Permissions::from_mode(0o744)).unwrap();
        let mut configured = agent();
        configured.files.insert(".a/settings.json".into(), source);
        let secret = own("ann", &[(".a/settings.json", "secret")]);
        let read = |agent: &config::Agent, own: &Belongings| {
            let home = furnish(agent, homes.path(), Some(own)).unwrap().unwrap();
            fs::read_to_string(home.join(".a/settings.json")).ok()
        };
        assert_eq!(read(&agent(), &secret).as_deref(), Some("secret"));
        assert_eq!(read(&configured, &own("ann", &[])).as_deref(), Some("configured"));
        let copied = homes.path().join("@ann/claude/.a/settings.json");
        assert_eq!(fs::metadata(&copied).unwrap().mode() & 0o777, 0o744);
        assert_eq!(read(&configured, &secret).as_deref(), Some("secret"), "the user's own counts more");
        assert_eq!(read(&agent(), &own("ann", &[])), None);
    }
}
