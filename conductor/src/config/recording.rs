//! How and where everything is written down.

use std::{path::PathBuf, time::Duration};

use serde::Deserialize;

use super::{DatabaseUrl, duration, error, size};

/// How frames are written down on this host.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Journal {
    /// What effects wait for.
    pub recording: Recording,
    /// Most bytes that the ledger may be behind.
    #[serde(with = "size")]
    pub cap: u64,
    /// How long what the ledger has stays on this host.
    #[serde(with = "duration")]
    pub keep: Duration,
    /// What else is a secret, as expressions, wherever it stands in a text.
    pub secret_patterns: Vec<String>,
}

impl Journal {
    /// The expressions of `secret_patterns`. The configuration was checked, so that all are
    /// there.
    pub fn patterns(&self) -> Vec<regex::bytes::Regex> {
        self.secret_patterns.iter().filter_map(|text| regex::bytes::Regex::new(text).ok()).collect()
    }
}

/// What effects wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum Recording {
    /// That they are synced to this host's disk.
    Durable,
    /// That the ledger has them.
    Strict,
    /// Nothing: what cannot be recorded passes, and a note says so.
    BestEffort,
}

impl Recording {
    /// Its name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Durable => "durable",
            Self::Strict => "strict",
            Self::BestEffort => "best-effort",
        }
    }
}

impl TryFrom<String> for Recording {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match text.as_str() {
            "durable" => Ok(Self::Durable),
            "strict" => Ok(Self::Strict),
            "best-effort" => Ok(Self::BestEffort),
            _ => Err(error::not_one_of(&text, &["durable", "strict", "best-effort"])),
        }
    }
}

/// Where the queryable record is.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Ledger {
    /// The database; empty for a SQLite file in the state directory.
    pub url: DatabaseUrl,
    /// The same database for a role that may change its schema.
    pub owner_url: DatabaseUrl,
    /// Where the password of `url` stands, read anew at every connection.
    pub password_file: Option<PathBuf>,
    /// The same for `owner_url`.
    pub owner_password_file: Option<PathBuf>,
    /// How often the heads of streams that went on are signed.
    #[serde(with = "duration")]
    pub checkpoint_every: Duration,
    /// The key that signs; a file in the state directory if it is not given.
    pub checkpoint_key_file: Option<PathBuf>,
    /// A program that is handed each checkpoint as a line on its stdin.
    pub checkpoint_command: Vec<String>,
}

impl Default for Ledger {
    fn default() -> Self {
        Self {
            url: DatabaseUrl::default(),
            owner_url: DatabaseUrl::default(),
            password_file: None,
            owner_password_file: None,
            checkpoint_every: Duration::from_secs(60),
            checkpoint_key_file: None,
            checkpoint_command: Vec::new(),
        }
    }
}
