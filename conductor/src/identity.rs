//! Who is calling. Every call carries a [`Caller`] from its first line of
//! code on: the local token yields the user the service runs as, an API token
//! the user it was made for, a certificate or an issuer's token whom the
//! configuration says. [`door::Door`] asks all of them.

pub mod certificates;
pub mod door;
pub mod lease;
pub mod oidc;
pub mod present;
pub mod tokens;

use std::fmt;

use nix::unistd::{Uid, User};
use sha2::{Digest as _, Sha256};

use crate::frame::is_unseen;

/// Characters that the name of a user or of a team may have.
pub const MOST_NAME: usize = 100;

/// Teams that one user may be in.
pub const MOST_TEAMS: usize = 50;

/// What marks a team where users and teams are named in the same place.
pub const TEAM: &str = "team:";

/// What may mark a user there.
pub const USER: &str = "user:";

/// The authenticated identity behind a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caller {
    /// Who it is.
    pub user: String,
    /// The teams the user belongs to.
    pub teams: Vec<String>,
    /// What the user may do.
    pub roles: Vec<Role>,
}

/// Somebody for whom a process runs that nobody else may use. What it is given
/// depends on the teams, too, so who has other teams by now needs another process.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Person {
    /// Who it is.
    pub user: String,
    /// The teams the user belongs to, in order.
    pub teams: Vec<String>,
}

impl Person {
    /// The owner of a session that the caller opens. Of somebody else it is not
    /// known here which teams they belong to, so what those have is left out.
    pub fn owner(owner: &str, caller: &Caller) -> Self {
        let mut teams = if owner == caller.user { caller.teams.clone() } else { Vec::new() };
        teams.sort();
        Self { user: owner.to_owned(), teams }
    }
}

/// What a caller may do. Which calls a role may make, the protos say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Work in sessions, their own and those shared with them.
    Developer,
    /// The same, and answer approvals.
    Approver,
    /// Read everything, of everyone, and change nothing.
    Auditor,
    /// Everything.
    Admin,
}

impl Role {
    /// All roles.
    pub const ALL: [Self; 4] = [Self::Developer, Self::Approver, Self::Auditor, Self::Admin];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Developer => "developer",
            Self::Approver => "approver",
            Self::Auditor => "auditor",
            Self::Admin => "admin",
        }
    }

    /// What those are called who have it.
    pub fn people(self) -> &'static str {
        match self {
            Self::Developer => "developers",
            Self::Approver => "approvers",
            Self::Auditor => "auditors",
            Self::Admin => "administrators",
        }
    }

    /// The role with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.name() == name)
    }

    /// The role with this name, or what to say to whoever named it; the least
    /// one if no name is given.
    pub fn given(name: &str) -> Result<Self, &'static str> {
        let role = if name.is_empty() { Some(Self::Developer) } else { Self::from_name(name) };
        role.ok_or("the role must be developer, approver, auditor or admin")
    }
}

/// What a caller must have to do with a session, the narrowest first. A call
/// that is about all sessions tells of those to which this holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Relation {
    /// Nothing: it is about no session.
    Nothing,
    /// It is theirs.
    Own,
    /// It is theirs, or shared with them to be driven.
    Driven,
    /// It is theirs, or shared with them.
    Seen,
    /// It is there.
    Any,
}

impl Caller {
    /// Whether the caller may do everything.
    pub fn is_admin(&self) -> bool {
        self.roles.contains(&Role::Admin)
    }

    /// The role that rules of the policy go by: the one that may do the most.
    pub fn role(&self) -> Option<Role> {
        let ranks = [Role::Admin, Role::Approver, Role::Developer, Role::Auditor];
        ranks.into_iter().find(|role| self.roles.contains(role))
    }

    /// The names of all roles.
    pub fn role_names(&self) -> String {
        self.roles.iter().map(|role| role.name()).collect::<Vec<_>>().join(", ")
    }

    /// The caller behind the local token: whoever can read that file is the
    /// user the service runs as.
    pub fn local() -> Self {
        let uid = Uid::effective();
        let name = User::from_uid(uid).ok().flatten().map(|user| user.name);
        Self {
            user: name.unwrap_or_else(|| format!("uid {uid}")),
            teams: Vec::new(),
            roles: vec![Role::Admin],
        }
    }
}

/// A user or a team.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Party {
    /// One user.
    User(String),
    /// All of a team.
    Team(String),
}

impl Party {
    /// A caller's own name, and those of their teams, each once.
    pub fn all_of(caller: &Caller) -> impl Iterator<Item = Self> {
        let teams = caller.teams.iter().enumerate();
        let teams = teams.filter(|(at, team)| !caller.teams[..*at].contains(team));
        let teams = teams.map(|(_, team)| Self::Team(team.clone()));
        std::iter::once(Self::User(caller.user.clone())).chain(teams)
    }

    /// Whether the caller is meant.
    pub fn has(&self, caller: &Caller) -> bool {
        match self {
            Self::User(user) => *user == caller.user,
            Self::Team(team) => caller.teams.contains(team),
        }
    }
}

impl fmt::Display for Party {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User(user) => write!(f, "{USER}{user}"),
            Self::Team(team) => write!(f, "{TEAM}{team}"),
        }
    }
}

/// Whether a user or a team can be called so; `what` of the two. Names are
/// shown in terminals and lists and compared as they are, so none may hold
/// what cannot be seen.
pub fn check_name(what: &str, name: &str) -> Result<(), String> {
    if name.is_empty() {
        return Err(format!("the name of a {what} is missing"));
    }
    if name.chars().count() > MOST_NAME {
        return Err(format!("the name of a {what} may have {MOST_NAME} characters, and this one has more"));
    }
    let shown = name.escape_debug();
    if name.chars().any(|c| is_unseen(c) || (c.is_whitespace() && c != ' ')) {
        return Err(format!("the name of a {what} must be printable, and `{shown}` is not"));
    }
    if name.trim() != name {
        return Err(format!("the name of a {what} has no blanks around it, and `{shown}` does"));
    }
    // Lists are written with commas, and sharing tells users and teams by marks.
    if name.contains(',') || name.starts_with(TEAM) || name.starts_with(USER) {
        return Err(format!(
            "the name of a {what} has no comma and does not begin with `{TEAM}` or `{USER}`, and `{shown}` does"
        ));
    }
    Ok(())
}

/// Bytes that the name of a file may have, with room for what is put behind it.
const MOST_FILE_NAME: usize = 200;

/// The name of a user or of a team as the name of a file: letters, digits and
/// `._@+-` as they are, everything else, and a dot in front, as `%` and two digits
/// for each byte. What gets too long is cut off, and told apart by a hash.
pub fn file_name(name: &str) -> String {
    let mut out = String::new();
    for byte in name.bytes() {
        let is_plain = byte.is_ascii_alphanumeric() || b"._@+-".contains(&byte);
        if is_plain && !(out.is_empty() && byte == b'.') {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02x}"));
        }
    }
    if out.len() > MOST_FILE_NAME {
        let hash: String =
            Sha256::digest(name.as_bytes()).iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        out.truncate(MOST_FILE_NAME - 33);
        out.push('~');
        out.push_str(&hash);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_names_of_files() {
        let files = ["ann", "a@b.example", "uid 1000", "..", "a/b", "a%2fb", "Ü"].map(file_name);
        assert_eq!(files, ["ann", "a@b.example", "uid%201000", "%2e.", "a%2fb", "a%252fb", "%c3%9c"]);
        let long = ["王".repeat(99) + "a", "王".repeat(99) + "b"].map(|name| file_name(&name));
        assert!(long.iter().all(|name| name.len() == MOST_FILE_NAME), "{long:?}");
        assert_ne!(long[0], long[1]);
    }

    #[test]
    fn names_are_what_they_look_like() {
        for good in ["ann", "uid 1000", "Ána Üñal", "a@b.example", "build:bot", "王"] {
            assert_eq!(check_name("user", good), Ok(()), "{good}");
        }
        let long = "x".repeat(MOST_NAME + 1);
        for bad in
            ["", " ann", "ann ", "a\nb", "a\u{1b}[2J", "a\u{202e}b", "a\u{200b}", "a,b", "team:web", &long]
        {
            assert!(check_name("user", bad).is_err(), "{bad:?}");
        }
    }
}
