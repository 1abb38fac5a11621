//! Who is calling. Every call carries a [`Caller`] from its first line of
//! code on; today the local token yields the user the service runs as.

use nix::unistd::{Uid, User};

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
    /// Everything.
    Admin,
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
