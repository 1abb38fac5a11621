//! What happens, for others: where audit events go, and in which words.

use std::{fmt, path::PathBuf, time::Duration};

use serde::Deserialize;

use super::{duration, error};

/// What stands before the name of a file in `feed.to`.
const FILE: &str = "file:";

/// Where audit events go.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Feed {
    /// `stdout`, `file:PATH`, or an address; empty: nowhere.
    pub to: String,
    /// In which words.
    pub format: FeedFormat,
    /// Most events at once.
    pub batch: usize,
    /// How long events may wait for others.
    #[serde(with = "duration")]
    pub interval: Duration,
    /// Whether prompts, titles and what tools are given and give back are told, too.
    pub include_text: bool,
    /// A file with headers for the address, which are secrets as a rule.
    #[serde(default)]
    pub headers_file: Option<PathBuf>,
    /// A CA for that address, if it is none that the host trusts.
    #[serde(default)]
    pub ca_file: Option<PathBuf>,
}

impl Feed {
    /// The file that they go to.
    pub fn file(&self) -> Option<PathBuf> {
        self.to.strip_prefix(FILE).map(PathBuf::from)
    }

    /// Whether they go to stdout.
    pub fn is_stdout(&self) -> bool {
        self.to == "stdout"
    }

    /// Names another file.
    pub(super) fn set_file(&mut self, path: &std::path::Path) {
        self.to = format!("{FILE}{}", path.display());
    }

    /// Whether `to` is an address.
    pub(super) fn is_address(&self) -> bool {
        !self.to.is_empty() && !self.is_stdout() && !self.to.starts_with(FILE)
    }
}

/// An address may be a secret.
impl fmt::Debug for Feed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let to = if self.is_address() { "an address" } else { &self.to };
        f.debug_struct("Feed").field("to", &to).field("format", &self.format).finish_non_exhaustive()
    }
}

/// In which words events are told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum FeedFormat {
    /// Our own.
    Conductor,
    /// Those of the Open Cybersecurity Schema Framework.
    Ocsf,
}

impl TryFrom<String> for FeedFormat {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match text.as_str() {
            "conductor" => Ok(Self::Conductor),
            "ocsf" => Ok(Self::Ocsf),
            _ => Err(error::not_one_of(&text, &["ocsf", "conductor"])),
        }
    }
}
