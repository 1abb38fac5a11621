//! The rules: read, checked, layered.

use std::path::Path;

/// Why a policy cannot be used; says where and what to do.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct PolicyError(pub String);

/// All rules that hold, as of one revision.
#[derive(Debug)]
pub struct Policy {
    revision: String,
}

impl Policy {
    /// The default policy, or the one in a file.
    pub fn load(_file: Option<&Path>) -> Result<Self, PolicyError> {
        Ok(Self { revision: String::new() })
    }

    /// This policy and what a repository or a user adds, which can only narrow it. A text that
    /// cannot be used makes everything at best ask.
    #[must_use]
    pub fn narrowed(&self, _origin: &str, _text: &str) -> Self {
        Self { revision: self.revision.clone() }
    }

    /// Names exactly these rules: a digest of all that they were read from.
    pub fn revision(&self) -> &str {
        &self.revision
    }
}
