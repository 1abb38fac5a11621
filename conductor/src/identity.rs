//! Who is calling. Every call carries a [`Caller`] from its first line of
//! code on: the local token yields the user the service runs as, an API token
//! the user it was made for.

pub mod tokens;

use nix::unistd::{Uid, User};

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

/// What a caller may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Work in sessions, their own and those shared with them.
    Developer,
    /// Everything.
    Admin,
}

impl Role {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Developer => "developer",
            Self::Admin => "admin",
        }
    }

    /// The role with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Developer, Self::Admin].into_iter().find(|role| role.name() == name)
    }
}

impl Caller {
    /// Whether the caller may do everything.
    pub fn is_admin(&self) -> bool {
        self.roles.contains(&Role::Admin)
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
    if name.chars().any(is_unseen) {
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

/// Controls, line and paragraph ends, blanks without width, and what turns the
/// direction of text.
fn is_unseen(c: char) -> bool {
    c.is_control()
        || (c.is_whitespace() && c != ' ')
        || matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{feff}' | '\u{e0000}'..='\u{e007f}')
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}')
}

#[cfg(test)]
mod tests {
    use super::*;

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
