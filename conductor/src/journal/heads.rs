//! The file `heads`: which numbers are used in streams whose records were all
//! freed, so that a session that comes back after a long time does not use
//! numbers again that the ledger has.

use std::{fs, io, path::Path};

use uuid::Uuid;

use crate::record::{Stream, StreamKind};

/// Its name.
pub(super) const FILE: &str = "heads";
/// Bytes of a stream: id, last number, kind.
const ENTRY: usize = 25;

/// The file's content: the streams, then a checksum.
pub(super) fn encode(heads: impl Iterator<Item = (Stream, u64)>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (stream, last_seq) in heads {
        bytes.extend_from_slice(stream.id.as_bytes());
        bytes.extend_from_slice(&last_seq.to_le_bytes());
        bytes.push(stream.kind as u8);
    }
    let sum = checksum(&bytes);
    bytes.extend_from_slice(&sum.to_le_bytes());
    bytes
}

/// What the file says; `None` if it is damaged or unreadable.
pub(super) fn read(dir: &Path) -> Option<Vec<(Stream, u64)>> {
    match fs::read(dir.join(FILE)) {
        Ok(bytes) => decode(&bytes),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Some(Vec::new()),
        Err(_) => None,
    }
}

fn decode(bytes: &[u8]) -> Option<Vec<(Stream, u64)>> {
    let (entries, sum) = bytes.split_last_chunk::<4>()?;
    if checksum(entries) != u32::from_le_bytes(*sum) || entries.len() % ENTRY != 0 {
        return None;
    }
    let entry = |bytes: &[u8]| {
        let (id, rest) = bytes.split_first_chunk::<16>()?;
        let (last_seq, kind) = rest.split_first_chunk::<8>()?;
        let kind = StreamKind::from_code(*kind.first()?)?;
        Some((Stream { id: Uuid::from_bytes(*id), kind }, u64::from_le_bytes(*last_seq)))
    };
    entries.chunks_exact(ENTRY).map(entry).collect()
}

/// Begun with a word, because that of no bytes would be zero, as is much that
/// stands in damaged files.
fn checksum(entries: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(b"heads"), entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_read_back_or_refused() {
        let session = |number| Stream { id: Uuid::from_u128(number), kind: StreamKind::Session };
        let heads = vec![(session(1), 7), (session(2), u64::MAX)];
        let bytes = encode(heads.iter().copied());
        assert_eq!(decode(&bytes), Some(heads));
        assert_eq!(decode(&encode(std::iter::empty())), Some(Vec::new()));
        for at in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[at] ^= 4;
            assert_eq!(decode(&flipped), None, "{at}");
            assert_eq!(decode(&bytes[..at]), None, "{at}");
        }
    }
}
