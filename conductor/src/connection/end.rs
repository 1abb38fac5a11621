//! Why a connection ends, in words.

use std::{fmt, time::Duration};

/// Why a connection ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// The editor went away.
    EditorGone,
    /// The editor broke the tunnel's rules.
    Invalid(String),
    /// The editor asked for an agent that is not there.
    NoAgent(String),
    /// The editor sent more than a frame may have.
    TooLarge,
    /// The editor did not take its frames for too long.
    Stalled,
    /// The service is stopping.
    Draining,
    /// The editor was away for longer than this.
    Expired(Duration),
    /// Too much waits for an editor that is away.
    Behind(String),
    /// Only the stream ends: a newer one carries the connection.
    Replaced,
    /// Only the stream ends: its frames were not taken for too long.
    Dropped,
    /// Only the stream ends: the connection cannot take it now.
    Busy,
    /// A task of ours ended early.
    Broken,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::EditorGone => f.write_str("the editor went away"),
            Self::Invalid(why) | Self::NoAgent(why) => f.write_str(why),
            Self::TooLarge => f.write_str("the editor sent more than a frame may have"),
            Self::Stalled => f.write_str("the editor did not take its frames"),
            Self::Draining => f.write_str("the service is stopping"),
            Self::Expired(ttl) => write!(f, "the editor did not come back within {ttl:?}"),
            Self::Behind(why) => f.write_str(why),
            Self::Replaced => f.write_str("another stream carries this connection now"),
            Self::Dropped => f.write_str("the editor did not take its frames for too long"),
            Self::Busy => f.write_str("the connection cannot take a new stream right now"),
            Self::Broken => f.write_str("the connection's task ended early"),
        }
    }
}
