//! How segments and records lie on disk. No I/O.
//!
//! A record's checksum is bound to the journal, the segment and the offset it
//! stands at. What an older file left in the same blocks, a copied segment, or
//! bytes that an agent made look like a record never count as one.

use uuid::Uuid;

use crate::record::{Destination, Origin, Stream, StreamKind};

/// What a segment begins with.
const SEGMENT_MAGIC: [u8; 8] = *b"CJOURNAL";
/// What a record begins with: what is looked for behind damage.
pub(super) const RECORD_MAGIC: [u8; 4] = *b"cjr\x01";
/// The format written by this program, and the newest it reads.
const VERSION: u32 = 1;

/// Bytes before the first record of a segment.
pub(super) const SEGMENT_HEADER: u64 = 64;
/// Bytes before a record's pairs and frames.
pub(super) const RECORD_HEADER: usize = 60;
/// Bytes of one pair of index and outgoing id.
pub(super) const PAIR: usize = 12;

/// Marks a note of ours that stands for frames which were not recorded.
pub(super) const GAP: u8 = 1;
/// Marks a record from which words were erased: lines of blanks stand for frames.
pub(super) const ERASED: u8 = 2;

/// A place in the journal: just behind a record, or where a segment begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Position {
    /// Number of the segment.
    pub segment: u64,
    /// Byte in it.
    pub offset: u64,
}

/// The head of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SegmentHead {
    /// Whose segment it is.
    pub journal: Uuid,
    /// Its number, whatever the file is called.
    pub number: u64,
    /// Where the journal ended when this segment was begun. What lies between
    /// there and here was abandoned and is written again here.
    pub after: Position,
}

/// Why a segment's head is not used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BadHead {
    /// Its checksum or its magic is wrong.
    Damaged,
    /// A later program wrote it.
    Newer(u32),
}

impl SegmentHead {
    pub(super) fn encode(&self) -> [u8; SEGMENT_HEADER as usize] {
        let mut bytes = [0; SEGMENT_HEADER as usize];
        bytes[..8].copy_from_slice(&SEGMENT_MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[16..32].copy_from_slice(self.journal.as_bytes());
        bytes[32..40].copy_from_slice(&self.number.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.after.segment.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.after.offset.to_le_bytes());
        let sum = checksum(&bytes[..12], &bytes[16..]);
        bytes[12..16].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    pub(super) fn parse(bytes: &[u8]) -> Result<Self, BadHead> {
        let bytes = bytes.get(..SEGMENT_HEADER as usize).ok_or(BadHead::Damaged)?;
        let sum = checksum(&bytes[..12], &bytes[16..]);
        if bytes[..8] != SEGMENT_MAGIC || u32_at(bytes, 12) != sum {
            return Err(BadHead::Damaged);
        }
        if u32_at(bytes, 8) > VERSION {
            return Err(BadHead::Newer(u32_at(bytes, 8)));
        }
        Ok(Self {
            journal: uuid_at(bytes, 16),
            number: u64_at(bytes, 32),
            after: Position { segment: u64_at(bytes, 40), offset: u64_at(bytes, 48) },
        })
    }
}

/// The head of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RecordHead {
    /// Bytes of the whole record.
    pub len: u64,
    pub stream: Stream,
    pub first_seq: u64,
    pub at_us: i64,
    pub count: u32,
    /// How many pairs there are.
    pub pairs: u32,
    pub origin: Origin,
    pub to: Destination,
    pub gap: bool,
    pub erased: bool,
}

impl RecordHead {
    /// Writes it over the room left for it; the checksum stays open.
    pub(super) fn encode(&self, into: &mut [u8]) {
        into[..4].copy_from_slice(&RECORD_MAGIC);
        into[8..16].copy_from_slice(&self.len.to_le_bytes());
        into[16..32].copy_from_slice(self.stream.id.as_bytes());
        into[32..40].copy_from_slice(&self.first_seq.to_le_bytes());
        into[40..48].copy_from_slice(&self.at_us.to_le_bytes());
        into[48..52].copy_from_slice(&self.count.to_le_bytes());
        into[52..56].copy_from_slice(&self.pairs.to_le_bytes());
        into[56] = self.stream.kind as u8;
        into[57] = self.origin as u8;
        into[58] = self.to as u8;
        into[59] = if self.gap { GAP } else { 0 } | if self.erased { ERASED } else { 0 };
    }

    /// Reads one that may be anything; the checksum is another matter.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.get(..RECORD_HEADER)?;
        let head = Self {
            len: u64_at(bytes, 8),
            stream: Stream { id: uuid_at(bytes, 16), kind: StreamKind::from_code(bytes[56])? },
            first_seq: u64_at(bytes, 32),
            at_us: u64_at(bytes, 40).cast_signed(),
            count: u32_at(bytes, 48),
            pairs: u32_at(bytes, 52),
            origin: Origin::from_code(bytes[57])?,
            to: Destination::from_code(bytes[58])?,
            gap: bytes[59] & GAP != 0,
            erased: bytes[59] & ERASED != 0,
        };
        let plausible = bytes[..4] == RECORD_MAGIC
            && bytes[59] <= GAP | ERASED
            && head.count > 0
            && head.len >= head.body_at()
            && head.first_seq.checked_add(u64::from(head.count)).is_some();
        plausible.then_some(head)
    }

    /// Where its frames begin, from the record's begin on.
    pub(super) fn body_at(&self) -> u64 {
        RECORD_HEADER as u64 + u64::from(self.pairs) * PAIR as u64
    }
}

/// The pairs of a record.
pub(super) fn pairs(bytes: &[u8]) -> Vec<(u32, u64)> {
    bytes.chunks_exact(PAIR).map(|pair| (u32_at(pair, 0), u64_at(pair, 4))).collect()
}

/// The checksum of a whole record without the four bytes of the checksum.
pub(super) fn plain_sum(record: &[u8]) -> u32 {
    checksum(&record[..4], &record[8..])
}

/// What a record's checksum is mixed with at a place.
pub(super) fn mask(journal: Uuid, at: Position) -> u32 {
    let mut place = [0; 32];
    place[..16].copy_from_slice(journal.as_bytes());
    place[16..24].copy_from_slice(&at.segment.to_le_bytes());
    place[24..].copy_from_slice(&at.offset.to_le_bytes());
    crc32c::crc32c(&place)
}

/// Whether a whole record is what was written at this place.
pub(super) fn is_intact(record: &[u8], journal: Uuid, at: Position) -> bool {
    record.len() >= RECORD_HEADER && u32_at(record, 4) == plain_sum(record) ^ mask(journal, at)
}

/// The record with blanks for those of its frames that go; `None` if there are none, or
/// if they are blanks already.
pub(super) fn blank(
    head: &RecordHead,
    record: &[u8],
    journal: Uuid,
    at: Position,
    goes: impl Fn(&[u8]) -> bool,
) -> Option<Vec<u8>> {
    let mut blanked = record.to_vec();
    let body = usize::try_from(head.body_at()).unwrap_or(usize::MAX).min(blanked.len());
    let mut changed = false;
    for line in blanked[body..].split_mut(|byte| *byte == b'\n') {
        if line.iter().any(|byte| *byte != b' ') && goes(line) {
            line.fill(b' ');
            changed = true;
        }
    }
    if !changed {
        return None;
    }
    blanked[59] |= ERASED;
    let sum = plain_sum(&blanked) ^ mask(journal, at);
    blanked[4..8].copy_from_slice(&sum.to_le_bytes());
    Some(blanked)
}

fn checksum(first: &[u8], second: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(first), second)
}

// The callers have checked the length; out of range is zero rather than a panic.
fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    bytes.get(at..at + N).and_then(|bytes| bytes.try_into().ok()).unwrap_or([0; N])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array(bytes, at))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array(bytes, at))
}

fn uuid_at(bytes: &[u8], at: usize) -> Uuid {
    Uuid::from_bytes(array(bytes, at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_head_is_read_back_or_refused() {
        let head = SegmentHead {
            journal: Uuid::from_u128(7),
            number: 3,
            after: Position { segment: 2, offset: 900 },
        };
        let bytes = head.encode();
        assert_eq!(SegmentHead::parse(&bytes), Ok(head));
        assert_eq!(SegmentHead::parse(&bytes[..63]), Err(BadHead::Damaged));
        for at in 0..bytes.len() {
            let mut flipped = bytes;
            flipped[at] ^= 1;
            assert_eq!(SegmentHead::parse(&flipped), Err(BadHead::Damaged), "{at}");
        }
        let mut newer = bytes;
        newer[8] = 2;
        let sum = checksum(&newer[..12], &newer[16..]);
        newer[12..16].copy_from_slice(&sum.to_le_bytes());
        assert_eq!(SegmentHead::parse(&newer), Err(BadHead::Newer(2)));
    }

    #[test]
    fn a_record_counts_only_where_it_was_written() {
        let journal = Uuid::from_u128(1);
        let at = Position { segment: 1, offset: 64 };
        let stream = Stream { id: Uuid::from_u128(2), kind: StreamKind::Session };
        let head = RecordHead {
            len: 60,
            stream,
            first_seq: 1,
            at_us: -5,
            count: 1,
            pairs: 0,
            origin: Origin::Agent,
            to: Destination::Editor,
            gap: false,
            erased: false,
        };
        let mut bytes = [0; RECORD_HEADER];
        head.encode(&mut bytes);
        assert_eq!(RecordHead::parse(&bytes), Some(head));
        let sum = plain_sum(&bytes) ^ mask(journal, at);
        bytes[4..8].copy_from_slice(&sum.to_le_bytes());
        assert!(is_intact(&bytes, journal, at));
        assert!(!is_intact(&bytes, Uuid::from_u128(2), at));
        assert!(!is_intact(&bytes, journal, Position { segment: 2, ..at }));
        assert!(!is_intact(&bytes, journal, Position { offset: 65, ..at }));
    }
}
