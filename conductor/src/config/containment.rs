//! What the kernel keeps an agent from, and how much of the machine it may have.

use std::path::PathBuf;

use serde::{Deserialize, Deserializer, de::Error as _};

use super::{error, size};

/// Whether an agent is shut in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum Sandbox {
    /// It is not started unless every layer holds that is asked for.
    Required,
    /// As far as this host can.
    Preferred,
    /// It is not.
    Off,
}

impl Sandbox {
    /// Its name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Required => "required",
            Self::Preferred => "preferred",
            Self::Off => "off",
        }
    }
}

impl TryFrom<String> for Sandbox {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match text.as_str() {
            "required" => Ok(Self::Required),
            "preferred" => Ok(Self::Preferred),
            "off" => Ok(Self::Off),
            _ => Err(error::not_one_of(&text, &["required", "preferred", "off"])),
        }
    }
}

/// One thing that holds an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize, serde::Serialize)]
#[serde(try_from = "String", into = "&'static str")]
pub enum Layer {
    /// Which files it can reach (Landlock).
    Landlock,
    /// Which TCP ports it can reach (Landlock, Linux 6.7).
    Network,
    /// Signals and abstract sockets only among its own (Landlock, Linux 6.12).
    Scope,
    /// System calls that no agent needs are refused.
    Seccomp,
    /// A control group that all its processes are in, by which they are killed.
    Cgroup,
    /// Name spaces of its own, with protected paths that cannot be changed (bubblewrap).
    Bwrap,
}

impl Layer {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Landlock, Self::Network, Self::Scope, Self::Seccomp, Self::Cgroup, Self::Bwrap];

    /// Its name in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Landlock => "landlock",
            Self::Network => "network",
            Self::Scope => "scope",
            Self::Seccomp => "seccomp",
            Self::Cgroup => "cgroup",
            Self::Bwrap => "bwrap",
        }
    }
}

impl From<Layer> for &'static str {
    fn from(layer: Layer) -> Self {
        layer.name()
    }
}

impl TryFrom<String> for Layer {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|layer| layer.name() == text)
            .ok_or_else(|| error::not_one_of(&text, &Self::ALL.map(Self::name)))
    }
}

/// What a sandboxed agent can reach beside what it always can.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Reach {
    /// Files and directories that it may read.
    pub read: Vec<PathBuf>,
    /// Files and directories that it may change.
    pub write: Vec<PathBuf>,
    /// Where it may connect to.
    pub network: Network,
}

/// Which TCP ports an agent may connect to.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Network {
    /// All; it may listen, too.
    #[default]
    Open,
    /// Those that its profile says it needs.
    Agent,
    /// These.
    Ports(Vec<u16>),
}

impl<'de> Deserialize<'de> for Network {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Given {
            Word(String),
            Ports(Vec<u16>),
        }
        let hint = || error::remark("this is neither a word nor a list of ports", HINT);
        match Given::deserialize(from).map_err(|_| D::Error::custom(hint()))? {
            Given::Word(word) if word == "open" => Ok(Self::Open),
            Given::Word(word) if word == "agent" => Ok(Self::Agent),
            Given::Word(word) => Err(D::Error::custom(error::not_one_of(&word, &["open", "agent"]))),
            Given::Ports(ports) => Ok(Self::Ports(ports)),
        }
    }
}

const HINT: &str = "write \"open\", \"agent\" or a list of ports from 0 to 65535, as in [443, 22]";

/// How much of the machine one process of an agent may have, with all that it starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Bounds {
    /// Memory.
    pub memory: Amount,
    /// Processes and threads.
    pub processes: usize,
    /// Its share of the processors when they are scarce; 100 is usual.
    pub cpu_weight: usize,
    /// Files that one process may have open.
    pub open_files: usize,
    /// The longest file that it may write.
    pub file_size: Amount,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            // One agent cannot take all; several together still can.
            memory: Amount::Percent(75),
            // Far more than builds with many threads take, and few enough to be killed quickly.
            processes: 4096,
            cpu_weight: 100,
            // Each is memory of the kernel's.
            open_files: 65_536,
            file_size: Amount::Bytes(64 << 30),
        }
    }
}

/// So much of something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Amount {
    /// So many bytes.
    Bytes(u64),
    /// So much of what this host has.
    Percent(u8),
    /// As much as there is.
    Unlimited,
}

impl Amount {
    /// In bytes, of a whole; `None` for no limit.
    pub fn of(self, whole: u64) -> Option<u64> {
        match self {
            Self::Bytes(bytes) => Some(bytes),
            Self::Percent(percent) => Some(whole / 100 * u64::from(percent)),
            Self::Unlimited => None,
        }
    }
}

impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        if text == "none" {
            return Ok(Self::Unlimited);
        }
        if let Some(number) = text.strip_suffix('%') {
            let percent = number.parse().ok().filter(|percent| (1..=100).contains(percent));
            return percent.map(Self::Percent).ok_or_else(|| {
                D::Error::custom(error::remark(
                    &format!("{} is no part of what there is", error::quoted(&text)),
                    "write a whole number from 1 to 100 in front of the %",
                ))
            });
        }
        size::read(&text).map(Self::Bytes).map_err(D::Error::custom)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use serde_json::json;

    use super::*;

    fn amount(text: &str) -> Result<Amount, String> {
        serde_json::from_value(json!(text)).map_err(|error| error.to_string())
    }

    #[test]
    fn amounts_are_sizes_or_parts_or_none() {
        assert_eq!(amount("512MiB"), Ok(Amount::Bytes(512 << 20)));
        assert_eq!(amount("75%"), Ok(Amount::Percent(75)));
        assert_eq!(amount("none"), Ok(Amount::Unlimited));
        for text in ["0%", "101%", "%", "-1%", "7.5%", "lots", ""] {
            assert!(amount(text).is_err(), "{text}");
        }
        assert_eq!(Amount::Percent(50).of(1000), Some(500));
        assert_eq!(Amount::Unlimited.of(1000), None);
    }

    #[test]
    fn networks_are_words_or_ports() {
        let network = |value| serde_json::from_value::<Network>(value).map_err(|error| error.to_string());
        assert_eq!(network(json!("open")), Ok(Network::Open));
        assert_eq!(network(json!("agent")), Ok(Network::Agent));
        assert_eq!(network(json!([443, 22])), Ok(Network::Ports(vec![443, 22])));
        assert!(network(json!("shut")).unwrap_err().contains("open"));
        assert!(network(json!([70_000])).unwrap_err().contains("65535"));
    }
}
