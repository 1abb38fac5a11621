//! The key that tags of secrets are made with. With it, a tag could be compared with guesses, so
//! it is nobody's but the service's.

use std::{fs, os::unix::fs::MetadataExt as _};

use super::{ServiceState, StateError, is_missing, read_small, write_private};
use crate::redact::KEY_BYTES;

/// Its file in the state directory.
const FILE: &str = "redact.key";

impl ServiceState {
    /// The key; it is made at the first start. With another one, secrets have other tags from
    /// then on, and nothing else changes.
    pub fn tag_key(&self) -> Result<[u8; KEY_BYTES], StateError> {
        let path = self.path().join(FILE);
        let bad = |why: &str| StateError::BadKey { path: path.clone(), why: why.to_owned() };
        match fs::metadata(&path) {
            Ok(metadata) if metadata.mode() & 0o077 != 0 => {
                return Err(bad("is open to other users and may be known to them"));
            }
            Ok(_) => {}
            Err(error) if is_missing(&error) => {
                let mut key = [0; KEY_BYTES];
                getrandom::fill(&mut key)
                    .map_err(|error| StateError::NoRandomness { why: error.to_string() })?;
                let digits: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
                write_private(&path, &digits)?;
                return Ok(key);
            }
            Err(error) => return Err(StateError::io("read", &path)(error)),
        }
        let text = read_small(&path).map_err(StateError::io("read", &path))?;
        let digits = text.trim().as_bytes();
        let mut key = [0; KEY_BYTES];
        if digits.len() != 2 * KEY_BYTES {
            return Err(bad("is not 64 hexadecimal digits"));
        }
        for (byte, digits) in key.iter_mut().zip(digits.chunks(2)) {
            let digits = std::str::from_utf8(digits).ok();
            *byte = digits
                .and_then(|digits| u8::from_str_radix(digits, 16).ok())
                .ok_or_else(|| bad("is not 64 hexadecimal digits"))?;
        }
        Ok(key)
    }
}
