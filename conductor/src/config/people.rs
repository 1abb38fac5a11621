//! What users have of their own at agents: secrets, and the name that their
//! commits are made under.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use serde::Deserialize;

use super::{Agent, Config, Home, duration, error};

/// Where the secrets of users and teams come from.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SecretSource {
    /// A directory with `users/USER/AGENT` and `teams/TEAM/AGENT` in it.
    #[serde(default)]
    pub dir: Option<PathBuf>,
    /// A program, with its arguments, that prints them as JSON.
    #[serde(default)]
    pub command: Vec<String>,
    /// How long the program, or reading the directory, may take.
    #[serde(with = "duration")]
    pub timeout: Duration,
    /// A spare process that was given secrets longer ago is replaced.
    #[serde(with = "duration")]
    pub max_age: Duration,
}

/// Who commits.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GitIdentity {
    /// The name.
    pub name: String,
    /// The address.
    pub email: String,
}

/// What stands for the user's name in the identity of all users.
pub(super) const PLACEHOLDER: &str = "{user}";

/// One user.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct User {
    /// Who commits when the user's agents do; as `[git]` says if absent.
    #[serde(default)]
    pub git: Option<GitIdentity>,
}

/// Whether an agent gets secrets of its user.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(try_from = "String")]
pub enum Secrets {
    /// None.
    #[default]
    Off,
    /// Those that there are.
    Optional,
    /// The same, and it is not started for users who have none.
    Required,
}

// Not derived: a derived enum would also take the number of a variant.
impl TryFrom<String> for Secrets {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match text.as_str() {
            "off" => Ok(Self::Off),
            "optional" => Ok(Self::Optional),
            "required" => Ok(Self::Required),
            _ => Err(error::not_one_of(&text, &["off", "optional", "required"])),
        }
    }
}

impl Config {
    /// Who commits when agents of this user do; nobody in particular if `None`.
    pub fn git_identity(&self, user: &str) -> Option<GitIdentity> {
        let own = self.users.get(user).and_then(|user| user.git.clone());
        own.or_else(|| {
            let GitIdentity { name, email } = self.git.as_ref()?;
            let filled = |pattern: &str| pattern.replace(PLACEHOLDER, user);
            Some(GitIdentity { name: filled(name), email: filled(email) })
        })
    }

    /// Whether processes of an agent that run for this user are of no use to
    /// anybody else.
    pub fn is_personal(&self, agent: &Agent, user: &str) -> bool {
        agent.is_personal() || self.git_identity(user).is_some()
    }

    /// Whether two configurations give the same things to users' processes.
    pub fn gives_the_same(&self, other: &Self) -> bool {
        let given = |config: &Self| (config.secrets.clone(), config.git.clone(), config.users.clone());
        given(self) == given(other)
    }
}

impl Agent {
    /// Whether no process of it may be used by two users, whoever they are.
    pub fn is_personal(&self) -> bool {
        self.secrets != Secrets::Off || self.home == Home::User
    }
}

/// Users by name.
pub type Users = BTreeMap<String, User>;
