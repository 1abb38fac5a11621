//! Runs on their way into the journal, encoded by whoever has them, so that
//! under the journal's lock there is one write and nothing else.

use uuid::Uuid;

use super::format::{PAIR, Position, RECORD_HEADER, RecordHead, mask, plain_sum};
use crate::record::{Destination, Origin, Stream};

/// Bytes of a record with one frame of usual size.
const TYPICAL: usize = 480;

/// Records that are written together, in one buffer.
#[derive(Debug, Default, Clone)]
pub struct Batch {
    bytes: Vec<u8>,
    entries: Vec<Entry>,
}

/// What the journal must know of a record that it writes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Entry {
    /// Where it begins in the buffer.
    pub start: usize,
    pub stream: Stream,
    pub first_seq: u64,
    /// The last number it stands for.
    pub last_seq: u64,
    pub at_us: i64,
    pub origin: Origin,
    pub to: Destination,
    /// How many frames it holds.
    pub count: u32,
    /// The checksum, not yet bound to a place.
    sum: u32,
}

impl Batch {
    /// An empty one.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Bytes that it takes in the journal.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Makes room for so many bytes of frames: what grows step by step ends up
    /// with twice the memory, for as long as it is not synced.
    pub fn reserve(&mut self, bytes: usize) {
        self.bytes.reserve_exact(RECORD_HEADER + bytes);
    }

    /// Adds a run: complete frames of one stream, numbered from `first_seq` on.
    /// `outgoing` says by index in the run which id a frame is forwarded with.
    /// Without frames nothing is added.
    #[allow(clippy::too_many_arguments, reason = "a record has that many parts, and each call names all")]
    pub fn push<'a>(
        &mut self,
        stream: Stream,
        first_seq: u64,
        at_us: i64,
        origin: Origin,
        to: Destination,
        outgoing: &[(u32, u64)],
        frames: impl Iterator<Item = &'a [u8]>,
    ) {
        let head = RecordHead {
            len: 0,
            stream,
            first_seq,
            at_us,
            count: 0,
            pairs: u32::try_from(outgoing.len()).unwrap_or(u32::MAX),
            origin,
            to,
            gap: false,
            erased: false,
        };
        self.encode(head, outgoing, frames, None);
    }

    /// Adds the note that stands for the frames `first_seq` to `last_seq`.
    pub(super) fn push_gap(
        &mut self,
        stream: Stream,
        first_seq: u64,
        last_seq: u64,
        at_us: i64,
        note: &[u8],
    ) {
        let (origin, to) = (Origin::Conductor, Destination::Record);
        let head = RecordHead {
            len: 0,
            stream,
            first_seq,
            at_us,
            count: 0,
            pairs: 0,
            origin,
            to,
            gap: true,
            erased: false,
        };
        self.encode(head, &[], std::iter::once(note), Some(last_seq));
    }

    fn encode<'a>(
        &mut self,
        mut head: RecordHead,
        outgoing: &[(u32, u64)],
        frames: impl Iterator<Item = &'a [u8]>,
        last_seq: Option<u64>,
    ) {
        let start = self.bytes.len();
        // Most runs are one small frame, and need no second allocation then.
        self.bytes.reserve(TYPICAL);
        self.bytes.resize(start + RECORD_HEADER, 0);
        self.bytes.reserve(outgoing.len() * PAIR);
        for (index, id) in outgoing {
            self.bytes.extend_from_slice(&index.to_le_bytes());
            self.bytes.extend_from_slice(&id.to_le_bytes());
        }
        for frame in frames {
            self.bytes.extend_from_slice(frame);
            self.bytes.push(b'\n');
            head.count += 1;
        }
        if head.count == 0 {
            self.bytes.truncate(start);
            return;
        }
        head.len = (self.bytes.len() - start) as u64;
        head.encode(&mut self.bytes[start..]);
        let last_seq = last_seq.unwrap_or(head.first_seq + u64::from(head.count) - 1);
        let RecordHead { stream, first_seq, at_us, origin, to, count, .. } = head;
        let sum = plain_sum(&self.bytes[start..]);
        self.entries.push(Entry { start, stream, first_seq, last_seq, at_us, origin, to, count, sum });
    }

    /// Binds all records to where they are about to be written.
    pub(super) fn bind(&mut self, journal: Uuid, at: Position) {
        for entry in &self.entries {
            let place = Position { offset: at.offset + entry.start as u64, ..at };
            let sum = entry.sum ^ mask(journal, place);
            self.bytes[entry.start + 4..entry.start + 8].copy_from_slice(&sum.to_le_bytes());
        }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    pub(super) fn entries(&self) -> &[Entry] {
        &self.entries
    }
}
