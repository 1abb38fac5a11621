//! What shows that the ledger was not changed afterwards.
//!
//! Every frame is a link of its stream's chain of hashes. Every minute the
//! heads of the chains that went on become the leaves of a tree, whose root is
//! signed. These checkpoints are a linked log of their own, in a file and in the
//! database, so that whoever changes a frame has to change every later link and
//! cannot sign the result. What is removed or erased on purpose is written down
//! in the same log.
//!
//! Chain, tree, checkpoint and the checking of a stream are pure; `log`, `key`
//! and `signer` do the input and output.

use std::{
    fmt,
    path::{Path, PathBuf},
    time::Duration,
};

use sha2::{Digest as _, Sha256};

use super::error::LedgerError;

pub mod chain; // a frame and the one before it → its hash
pub mod merkle; // leaves → root; proofs
pub mod checkpoint; // what is signed, and its forms
pub mod key; // the key, its file, the public half
pub mod log; // the append-only file
pub mod tables; // heads and checkpoints in the database
mod ends; // what a conductor itself knows of the ends of streams
pub mod signer; // heads that went on → a checkpoint
pub mod finding; // what a check found
pub mod stream; // rows of a stream → what is wrong with them
pub mod trust; // checkpoints of a log → what is wrong with them
pub mod bundle; // a session in one file, to be checked anywhere
pub mod verify; // the checks over a whole ledger

/// The key's file in the state directory, if none is named.
pub const KEY_FILE: &str = "checkpoint.key";

/// The log's file in the state directory.
pub const LOG_FILE: &str = "checkpoints.jsonl";

/// How often heads are signed, if nothing is said.
pub const EVERY: Duration = Duration::from_secs(60);

/// A SHA-256.
pub type Hash = [u8; 32];

/// What comes before the first.
pub const NOTHING: Hash = [0; 32];

/// Where key and log are, and how often heads are signed.
#[derive(Debug, Clone)]
pub struct Files {
    /// The key.
    pub key: PathBuf,
    /// The log.
    pub log: PathBuf,
    /// The journal's id, as it stands in a file.
    pub journal: PathBuf,
    /// How often heads that went on are signed.
    pub every: Duration,
}

impl Files {
    /// Those of a state directory.
    pub fn new(state: &Path) -> Self {
        Self {
            key: state.join(KEY_FILE),
            log: state.join(LOG_FILE),
            journal: state.join("journal").join("id"),
            every: EVERY,
        }
    }

    /// Those of a state directory, as far as the configuration does not say otherwise.
    pub fn configured(config: &crate::config::Ledger, state: &Path) -> Self {
        let own = Self::new(state);
        Self {
            key: config.checkpoint_key_file.clone().unwrap_or(own.key),
            every: config.checkpoint_every,
            ..own
        }
    }
}

/// Why nothing can be signed, or a signature not be read.
#[derive(Debug, thiserror::Error)]
pub enum EvidenceError {
    /// The key cannot be used.
    #[error("the key {} {why}", path.display())]
    Key {
        /// Its file.
        path: PathBuf,
        /// What is wrong, and what to do.
        why: String,
    },
    /// The ledger cannot be used.
    #[error("{0}")]
    Ledger(#[from] LedgerError),
    /// The log cannot be used.
    #[error("the log of checkpoints {} {why}", path.display())]
    Log {
        /// Its file.
        path: PathBuf,
        /// What is wrong, and what to do.
        why: String,
    },
}

/// The hash of some bytes.
pub fn sha256(bytes: &[u8]) -> Hash {
    Sha256::digest(bytes).into()
}

/// Bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    use fmt::Write as _;
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        // Writing to a string does not fail.
        write!(text, "{byte:02x}").ok();
        text
    })
}

/// A hash from hexadecimal digits.
pub fn unhex(text: &str) -> Option<Hash> {
    let mut hash = NOTHING;
    // Two digits a byte, and only one way to write it: a log that was changed is found.
    let is_ours = |digit: u8| digit.is_ascii_digit() || (b'a'..=b'f').contains(&digit);
    if text.len() != 2 * hash.len() || !text.bytes().all(is_ours) {
        return None;
    }
    for (byte, digits) in hash.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some(hash)
}

/// Bytes that are hashed or signed: every value with a length of its own is
/// preceded by it, so that no two sequences of values give the same bytes.
#[derive(Debug)]
pub(crate) struct Canonical(Vec<u8>);

impl Canonical {
    /// Begins with what the bytes are for: a signature or a hash made for one
    /// purpose is none for another.
    pub(crate) fn new(domain: &str) -> Self {
        let mut bytes = Vec::with_capacity(256);
        bytes.extend_from_slice(domain.as_bytes());
        bytes.push(0);
        Self(bytes)
    }

    /// Bytes whose length is always the same.
    pub(crate) fn fixed<const N: usize>(mut self, bytes: &[u8; N]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    /// Text.
    pub(crate) fn text(mut self, text: &str) -> Self {
        self.0.extend_from_slice(&(text.len() as u64).to_be_bytes());
        self.0.extend_from_slice(text.as_bytes());
        self
    }

    /// A number.
    pub(crate) fn number(self, number: i64) -> Self {
        self.fixed(&number.to_be_bytes())
    }

    /// A number, or that there is none.
    pub(crate) fn number_if_any(self, number: Option<i64>) -> Self {
        match number {
            Some(number) => self.fixed(&[1]).number(number),
            None => self.fixed(&[0]),
        }
    }

    /// The bytes.
    pub(crate) fn bytes(self) -> Vec<u8> {
        self.0
    }

    /// Their hash.
    pub(crate) fn hash(&self) -> Hash {
        sha256(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_written_in_one_way_only() {
        let hash = sha256(b"abc");
        assert_eq!(unhex(&hex(&hash)), Some(hash));
        assert_eq!(hex(&hash), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        assert_eq!(unhex(&hex(&hash).to_uppercase()), None);
        assert_eq!(unhex(&format!("+{}", &hex(&hash)[1..])), None);
        assert_eq!(unhex("ab"), None);
    }

    #[test]
    fn texts_do_not_run_into_each_other() {
        let two = |a, b| Canonical::new("test").text(a).text(b).hash();
        assert_ne!(two("ab", "c"), two("a", "bc"));
        assert_ne!(Canonical::new("a").hash(), Canonical::new("b").hash());
    }
}
