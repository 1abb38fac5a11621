//! The chain through a stream: the hash of a frame and of the one before it.
//!
//! It is a pure function of a stream's rows in the order of their numbers, so
//! that both databases have the same, also after an import.

use uuid::Uuid;

use super::{Canonical, Hash};
use crate::ledger::row::LAST_US;

/// What these hashes are for.
const DOMAIN: &str = "conductor frame v1";

/// What of a frame the chain covers, as the ledger has it. The names are text,
/// since whoever changes a row may write anything.
#[derive(Debug, Clone, Copy)]
pub struct Link<'a> {
    /// What it is numbered in.
    pub stream: Uuid,
    /// What sort of stream that is.
    pub stream_kind: &'a str,
    /// Its number.
    pub seq: i64,
    /// When it was recorded.
    pub at_us: i64,
    /// Who made it.
    pub origin: &'a str,
    /// Whom it is for.
    pub destination: &'a str,
    /// The id it was passed on with.
    pub outgoing: Option<i64>,
    /// SHA-256 of its bytes, which stays when these are erased.
    pub hash: &'a Hash,
}

impl Link<'_> {
    /// The hash of this frame behind the previous one's; zeros if it is the first.
    pub fn after(&self, previous: &Hash) -> Hash {
        Canonical::new(DOMAIN)
            .fixed(previous)
            .fixed(self.stream.as_bytes())
            .text(self.stream_kind)
            .number(self.seq)
            // A time that a database refuses is stored as the nearest that it takes.
            .number(self.at_us.clamp(0, LAST_US))
            .text(self.origin)
            .text(self.destination)
            .number_if_any(self.outgoing)
            .fixed(self.hash)
            .hash()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ledger::evidence::{NOTHING, hex, sha256};

    fn link(hash: &Hash) -> Link<'_> {
        Link {
            stream: Uuid::from_u128(7),
            stream_kind: "session",
            seq: 3,
            at_us: 1_700_000_000_000_000,
            origin: "agent",
            destination: "editor",
            outgoing: Some(4),
            hash,
        }
    }

    /// What is in a ledger must be found again by every later version.
    #[test]
    fn the_hash_of_a_frame_never_changes() {
        let hash = sha256(b"{}");
        assert_eq!(
            hex(&link(&hash).after(&NOTHING)),
            "69ef29eb683167b74bca315db34dc68de5456718ff7421abe8ff6096e290827f"
        );
    }

    #[test]
    fn every_part_counts() {
        let (hash, other) = (sha256(b"{}"), sha256(b"[]"));
        let it = link(&hash);
        let changed = [
            Link { stream: Uuid::from_u128(8), ..it },
            Link { stream_kind: "process", ..it },
            Link { seq: 4, ..it },
            Link { at_us: it.at_us + 1, ..it },
            Link { origin: "editor", ..it },
            Link { destination: "record", ..it },
            Link { outgoing: Some(5), ..it },
            Link { outgoing: None, ..it },
            Link { hash: &other, ..it },
        ];
        let first = it.after(&NOTHING);
        assert!(changed.iter().all(|link| link.after(&NOTHING) != first));
        assert_ne!(it.after(&first), first, "and what was before");
        let late = Link { at_us: i64::MAX, ..it };
        assert_eq!(late.after(&NOTHING), Link { at_us: LAST_US, ..it }.after(&NOTHING));
    }
}
