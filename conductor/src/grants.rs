//! Grants: answers of people that are remembered, each for exactly these
//! sub-actions, for a session, a root, a user or a team, until a moment, and at
//! most so many times.
//!
//! A grant turns *ask* into *allow* and nothing else: whatever a use would do is
//! held against the rules in force first, so a later rule that denies, and what
//! a repository or a user narrows, win at once. The [`Book`] has all of them.

mod book;
mod recording;
mod standing;

use std::{
    fmt,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use uuid::Uuid;

pub use self::{
    book::{Asker, Book, Change, MOST_OF_AUTHOR, MOST_OF_SCOPE, TooMany, Use},
    recording::{record_given, record_revoked},
    standing::{Author, Found, Refused, Wanted, judge},
};
use crate::{
    clock::micros,
    identity::Caller,
    policy::{
        Command, SubAction,
        text::{join, shown},
    },
};

/// How long a grant lasts unless somebody says so, and at most.
pub const USUAL_TIME: Duration = Duration::from_secs(8 * 3600);
/// The longest.
pub const LONGEST_TIME: Duration = Duration::from_secs(30 * 86_400);

/// Sub-actions that one grant may be about. People must be able to read them.
pub const MOST_PARTS: usize = 50;

/// Characters of a reason.
pub const MOST_REASON: usize = 500;

/// Characters of a command or a path, where people are shown what is granted. What has more
/// nobody can grant who was shown it.
pub const SHOWN: usize = 1000;

/// Bytes of all that one grant is about, as it is kept.
pub const MOST_BYTES: usize = 64 << 10;

/// Where a grant holds.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Scope {
    /// In one session, whoever prompts.
    Session(Uuid),
    /// In every session in this directory.
    Root(PathBuf),
    /// Wherever this user prompts.
    User(String),
    /// Wherever somebody of this team prompts.
    Team(String),
}

impl Scope {
    /// Its sort, and which one.
    pub fn parts(&self) -> (&'static str, String) {
        match self {
            Self::Session(id) => ("session", id.to_string()),
            Self::Root(path) => ("root", path.display().to_string()),
            Self::User(user) => ("user", user.clone()),
            Self::Team(team) => ("team", team.clone()),
        }
    }

    /// The scope of this sort; none if there is no such.
    pub fn from_parts(sort: &str, name: &str) -> Option<Self> {
        match sort {
            "session" => name.parse().ok().map(Self::Session),
            "root" => Some(Self::Root(name.into())),
            "user" => Some(Self::User(name.into())),
            "team" => Some(Self::Team(name.into())),
            _ => None,
        }
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (sort, name) = self.parts();
        write!(f, "{sort} {name}")
    }
}

/// Whether files are read or written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Access {
    /// They are read.
    Read,
    /// They are made, changed, moved or removed.
    Write,
}

/// One thing that a grant allows.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// This and nothing else.
    Exactly(SubAction),
    /// A program with these arguments in front, whatever follows them.
    Program {
        /// As it was written.
        program: String,
        /// The file that is started, all links resolved.
        file: PathBuf,
        /// The arguments in front.
        words: Vec<String>,
        /// It runs here or beneath.
        directory: PathBuf,
    },
    /// All files beneath a directory, but for those that are protected.
    Beneath {
        /// What is done with them.
        access: Access,
        /// The directory, all links resolved.
        directory: PathBuf,
    },
}

impl Part {
    /// Whether it allows something.
    pub fn covers(&self, action: &SubAction) -> bool {
        match (self, action) {
            (Self::Exactly(granted), asked) => asked.is_exact() && is_same(granted, asked),
            (Self::Program { program, file, words, directory }, SubAction::Run(command)) => {
                // One file may be many programs, by the name that it is called by.
                let is_it = command.file.as_ref() == Some(file)
                    && Path::new(program).file_name() == Path::new(&command.program).file_name();
                let begins = command.words.len() >= words.len()
                    && command.words.iter().zip(words).all(|(word, granted)| word.text == *granted);
                is_it
                    && begins
                    && !command.is_piped
                    && !command.is_local
                    && command.cwd.starts_with(directory)
            }
            (Self::Beneath { access: Access::Read, directory }, SubAction::Read(fact))
            | (Self::Beneath { access: Access::Write, directory }, SubAction::Write(fact)) => {
                let is_open = fact.trouble.is_none() && fact.protected.is_none() && !fact.secret;
                is_open && fact.resolved.as_ref().is_some_and(|resolved| resolved.starts_with(directory))
            }
            _ => false,
        }
    }
}

/// Whether two do the same. A path is the same wherever it leads to the same place, however
/// it was written.
fn is_same(granted: &SubAction, asked: &SubAction) -> bool {
    match (granted, asked) {
        (SubAction::Read(one), SubAction::Read(other)) | (SubAction::Write(one), SubAction::Write(other)) => {
            one.resolved.is_some()
                && one.resolved == other.resolved
                && (&one.protected, one.secret, &one.trouble)
                    == (&other.protected, other.secret, &other.trouble)
        }
        _ => granted == asked,
    }
}

impl Part {
    /// What it allows, in words for people; no text in it has more than `most` characters.
    fn in_words(&self, most: usize) -> String {
        let path = |path: &Path| shown(&path.display().to_string(), most);
        match self {
            Self::Exactly(action @ SubAction::Run(Command { file: Some(file), is_local, .. })) => {
                let own = if *is_local { ", whatever an agent makes of this file" } else { "" };
                format!("{} ({}{own})", action.in_words(most), path(file))
            }
            Self::Exactly(action) => action.in_words(most),
            Self::Program { program, file, words, directory } => {
                let line = std::iter::once(program.as_str()).chain(words.iter().map(String::as_str));
                format!(
                    "run `{}` with any further arguments in {} and beneath ({})",
                    shown(&join(line), most),
                    path(directory),
                    path(file)
                )
            }
            Self::Beneath { access, directory } => {
                let verb = if *access == Access::Read { "read" } else { "write" };
                format!("{verb} anything beneath {} that is not protected", path(directory))
            }
        }
    }

    /// Whether people see all of it.
    pub fn is_shown_whole(&self) -> bool {
        self.in_words(SHOWN) == self.in_words(usize::MAX)
    }

    /// Whether it is for a program that an agent may have made or may change.
    pub fn is_local(&self) -> bool {
        matches!(self, Self::Exactly(SubAction::Run(command)) if command.is_local)
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.in_words(SHOWN))
    }
}

/// Parts as they are kept; none if a path in them is no text, or they are too many bytes for
/// one grant.
pub fn kept(parts: &[Part]) -> Option<String> {
    serde_json::to_string(parts).ok().filter(|text| text.len() <= MOST_BYTES)
}

/// An answer that is remembered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// Its name.
    pub id: Uuid,
    /// Where it holds.
    pub scope: Scope,
    /// What it allows.
    pub parts: Vec<Part>,
    /// Who gave it, with the teams and roles of then, but for those that they are known to
    /// have lost since; see [`Book::author`].
    pub by: Caller,
    /// Why.
    pub reason: String,
    /// When it was given.
    pub given: SystemTime,
    /// It allows nothing from then on.
    pub expires: SystemTime,
    /// How often each of its parts may be used, counted together where they are used
    /// together; any number of times if nothing is said.
    pub most_uses: Option<u64>,
}

impl Grant {
    /// Whether its time is over.
    pub fn is_over(&self) -> bool {
        self.expires <= SystemTime::now()
    }

    /// Which of its parts allows something, if one does.
    pub fn covering(&self, action: &SubAction) -> Option<usize> {
        self.parts.iter().position(|part| part.covers(action))
    }

    /// What is written down of it.
    pub fn note(&self) -> Value {
        let (sort, name) = self.scope.parts();
        json!({
            "grant": self.id.to_string(),
            "scope": sort,
            "scopeName": name,
            "what": self.parts.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "),
            "parts": self.parts,
            "by": self.by.user,
            "teams": self.by.teams,
            "reason": self.reason,
            "expiresUs": micros(self.expires),
            "mostUses": self.most_uses,
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests;
