//! Reads a segment's file record by record, and over damage. Any bytes may
//! stand in the file.

use std::{fs::File, io, os::unix::fs::FileExt as _, path::Path};

use bytes::Bytes;
use uuid::Uuid;

use super::{
    Record,
    disk::retried,
    format::{Position, RECORD_HEADER, RECORD_MAGIC, RecordHead, SEGMENT_HEADER, is_intact, pairs},
};

/// Behind damage, candidates for a record are checked until so many times the
/// rest of the segment was read; what is made to look like records cannot make
/// a start take for ever.
const MOST_CHECKED: u64 = 16;

/// A place in a segment's file.
pub(super) struct Cursor {
    file: File,
    journal: Uuid,
    segment: u64,
    /// Where what counts ends.
    end: u64,
    /// Where the next record begins.
    pub at: u64,
    chunk: Bytes,
    chunk_at: u64,
    chunk_size: u64,
}

/// What stands at a place.
pub(super) enum Step {
    Record(RecordHead, Bytes),
    /// Nothing that was written there, from the cursor's place to this one.
    /// With it, whether any record follows.
    Damage {
        to: u64,
        more: bool,
    },
}

impl Cursor {
    pub(super) fn open(
        path: &Path,
        journal: Uuid,
        at: Position,
        end: u64,
        chunk_size: usize,
    ) -> io::Result<Self> {
        let file = File::open(path)?;
        Ok(Self {
            file,
            journal,
            segment: at.segment,
            end,
            at: at.offset.max(SEGMENT_HEADER),
            chunk: Bytes::new(),
            chunk_at: 0,
            chunk_size: chunk_size as u64,
        })
    }

    /// What stands at the cursor's place; the cursor moves behind it. `None` at
    /// the end.
    pub(super) fn next(&mut self) -> io::Result<Option<Step>> {
        if self.at >= self.end {
            return Ok(None);
        }
        if let Some(found) = self.record_at(self.at)? {
            self.at += found.0.len;
            return Ok(Some(Step::Record(found.0, found.1)));
        }
        let (to, more) = self.behind_damage()?;
        self.at = to;
        Ok(Some(Step::Damage { to, more }))
    }

    /// Whether a record stands at the cursor's place.
    pub(super) fn is_at_record(&mut self) -> io::Result<bool> {
        Ok(self.at < self.end && self.record_at(self.at)?.is_some())
    }

    /// The bytes from one place to another.
    pub(super) fn bytes(&mut self, from: u64, to: u64) -> io::Result<Bytes> {
        self.fill(from, to.saturating_sub(from))?;
        Ok(self.slice(from, to.saturating_sub(from)))
    }

    fn record_at(&mut self, at: u64) -> io::Result<Option<(RecordHead, Bytes)>> {
        self.fill(at, RECORD_HEADER as u64)?;
        let Some(head) = RecordHead::parse(&self.slice(at, RECORD_HEADER as u64)) else { return Ok(None) };
        if head.len > self.end - at {
            return Ok(None);
        }
        self.fill(at, head.len)?;
        let bytes = self.slice(at, head.len);
        let intact = bytes.len() as u64 == head.len
            && is_intact(&bytes, self.journal, Position { segment: self.segment, offset: at });
        Ok(intact.then_some((head, bytes)))
    }

    /// Where the next intact record is, or else the end.
    fn behind_damage(&mut self) -> io::Result<(u64, bool)> {
        let mut at = self.at + 1;
        let mut budget = (self.end - self.at).saturating_mul(MOST_CHECKED);
        while at + RECORD_HEADER as u64 <= self.end {
            self.fill(at, RECORD_HEADER as u64)?;
            let from = usize::try_from(at - self.chunk_at).unwrap_or(usize::MAX);
            let rest = self.chunk.get(from..).unwrap_or_default();
            if rest.is_empty() {
                break;
            }
            let Some(hit) = memchr::memmem::find(rest, &RECORD_MAGIC) else {
                // The magic may stand across the border of two chunks.
                at += (rest.len() as u64).saturating_sub(3).max(1);
                continue;
            };
            at += hit as u64;
            self.fill(at, RECORD_HEADER as u64)?;
            if let Some(head) = RecordHead::parse(&self.slice(at, RECORD_HEADER as u64)) {
                if head.len <= self.end - at {
                    let Some(left) = budget.checked_sub(head.len) else { break };
                    budget = left;
                }
                if self.record_at(at)?.is_some() {
                    return Ok((at, true));
                }
            }
            at += 1;
        }
        Ok((self.end, false))
    }

    /// Has the chunk cover so many bytes, as far as the file has them.
    fn fill(&mut self, at: u64, len: u64) -> io::Result<()> {
        let have = self.chunk_at..self.chunk_at + self.chunk.len() as u64;
        if have.contains(&at) && at + len <= have.end {
            return Ok(());
        }
        let wanted = len.max(self.chunk_size).min(self.end.saturating_sub(at));
        let mut buffer = vec![0; usize::try_from(wanted).unwrap_or(usize::MAX)];
        let mut got = 0;
        while got < buffer.len() {
            match retried(|| self.file.read_at(&mut buffer[got..], at + got as u64))? {
                0 => break,
                read => got += read,
            }
        }
        buffer.truncate(got);
        self.chunk = buffer.into();
        self.chunk_at = at;
        Ok(())
    }

    /// So many bytes of the chunk, or as many as there are.
    fn slice(&self, at: u64, len: u64) -> Bytes {
        let from =
            usize::try_from(at.saturating_sub(self.chunk_at)).unwrap_or(usize::MAX).min(self.chunk.len());
        let to = usize::try_from(len).unwrap_or(usize::MAX).saturating_add(from).min(self.chunk.len());
        self.chunk.slice(from..to)
    }
}

/// A record for readers.
pub(super) fn record(head: &RecordHead, bytes: &Bytes, end: Position) -> Record {
    let body = usize::try_from(head.body_at()).unwrap_or(usize::MAX).min(bytes.len());
    Record {
        stream: head.stream,
        first_seq: head.first_seq,
        count: head.count,
        at_us: head.at_us,
        origin: head.origin,
        to: head.to,
        outgoing: pairs(&bytes[RECORD_HEADER.min(body)..body]),
        frames: bytes.slice(body..),
        erased: head.erased,
        end,
    }
}
