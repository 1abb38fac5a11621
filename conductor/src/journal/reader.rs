//! Reading the journal back: in order for the ledger, by stream for replay.
//! Files are read without the lock; it only tells which bytes count.

use std::{io, path::PathBuf};

use uuid::Uuid;

use super::{
    JournalError, Record, Shared,
    cursor::{Cursor, Step, record},
    format::{Position, RECORD_HEADER, SEGMENT_HEADER},
    index::{Place, SPAN},
};

/// Places of a stream looked at in one go.
const PLACES: usize = 4096;
/// Bytes read at once in order.
const CHUNK: usize = 256 * 1024;

/// A segment as far as it may be read.
struct Readable {
    number: u64,
    path: PathBuf,
    end: u64,
}

impl Shared {
    /// The synced records behind a position, about so many bytes, at least one
    /// if there is any. The new position is where to go on.
    pub(super) fn read(&self, from: Position, most: usize) -> Result<(Vec<Record>, Position), JournalError> {
        let (mut found, mut at, mut bytes) = (Vec::new(), from, 0);
        while let Some(segment) = self.next_readable(at) {
            if segment.number > at.segment {
                at = Position { segment: segment.number, offset: SEGMENT_HEADER };
            }
            let mut cursor = match self.cursor(&segment, at.offset, CHUNK.min(most)) {
                Ok(cursor) => cursor,
                Err(_) if self.is_freed(&segment) => continue,
                Err(error) => return Err(JournalError::io("read", &segment.path, error)),
            };
            loop {
                if bytes >= most && !found.is_empty() {
                    return Ok((found, at));
                }
                let begin = cursor.at;
                let step = cursor.next().map_err(|error| JournalError::io("read", &segment.path, error))?;
                match step {
                    None => break,
                    Some(Step::Damage { to, .. }) => {
                        let place = Position { segment: segment.number, offset: begin };
                        if self.stands(&segment.path, place, segment.end) {
                            cursor = self
                                .cursor(&segment, begin, CHUNK.min(most))
                                .map_err(|error| JournalError::io("read", &segment.path, error))?;
                            continue;
                        }
                        self.found_damage(&segment, &mut cursor, begin, to);
                    }
                    Some(Step::Record(head, whole)) => {
                        bytes += whole.len();
                        let end = Position { segment: segment.number, offset: cursor.at };
                        found.push(record(&head, &whole, end));
                    }
                }
                at = Position { segment: segment.number, offset: cursor.at };
            }
        }
        Ok((found, at))
    }

    /// The first segment that has something synced behind a position.
    fn next_readable(&self, from: Position) -> Option<Readable> {
        let log = self.lock();
        let synced = log.synced_end;
        let readable =
            log.segments.range(from.segment..).take_while(|(number, _)| **number <= synced.segment);
        let readable = readable.map(|(number, segment)| {
            let end = if *number == synced.segment { synced.offset } else { segment.end };
            (*number, &segment.path, end)
        });
        let behind = |(number, _, end): &(u64, _, u64)| {
            *end > if *number == from.segment { from.offset.max(SEGMENT_HEADER) } else { SEGMENT_HEADER }
        };
        readable.into_iter().find(behind).map(|(number, path, end)| Readable {
            number,
            path: path.clone(),
            end,
        })
    }

    /// A stream's records that have frames from a number on, synced or not,
    /// about so many bytes. Nothing if there are none.
    pub(super) fn read_stream(
        &self,
        stream: Uuid,
        from_seq: u64,
        most: usize,
    ) -> Result<Vec<Record>, JournalError> {
        let places: Vec<(Place, Readable)> = {
            let log = self.lock();
            let places = log.index.find(stream, from_seq, PLACES).into_iter();
            let readable = places.filter_map(|place| {
                let segment = log.segments.get(&place.at.segment)?;
                let (number, path, end) = (place.at.segment, segment.path.clone(), segment.end);
                Some((place, Readable { number, path, end }))
            });
            readable.collect()
        };
        let (mut found, mut bytes, mut next) = (Vec::new(), 0, from_seq);
        let mut open: Option<(u64, Cursor)> = None;
        for (place, segment) in &places {
            let failed = |error| JournalError::io("read", &segment.path, error);
            // A place's stretch is read in one go, and the file opened once.
            let mut cursor = match open.take() {
                Some((number, cursor)) if number == segment.number => cursor,
                _ => match self.cursor(segment, place.at.offset, SPAN as usize + RECORD_HEADER) {
                    Ok(cursor) => cursor,
                    Err(_) if self.is_freed(segment) => continue,
                    Err(error) => return Err(failed(error)),
                },
            };
            cursor.at = place.at.offset;
            while cursor.at < place.at.offset + SPAN {
                match cursor.next().map_err(failed)? {
                    None => break,
                    Some(Step::Damage { .. }) => {}
                    Some(Step::Record(head, whole)) => {
                        let last = head.first_seq + (u64::from(head.count) - 1);
                        if head.stream.id == stream && last >= next {
                            bytes += whole.len();
                            next = last + 1;
                            let end = Position { segment: segment.number, offset: cursor.at };
                            found.push(record(&head, &whole, end));
                        }
                    }
                }
                if bytes >= most {
                    return Ok(found);
                }
            }
            open = Some((segment.number, cursor));
        }
        Ok(found)
    }

    fn cursor(&self, segment: &Readable, offset: u64, chunk: usize) -> io::Result<Cursor> {
        let at = Position { segment: segment.number, offset };
        Cursor::open(&segment.path, self.id, at, segment.end, chunk)
    }

    /// Whether a segment went away since it was looked up.
    fn is_freed(&self, segment: &Readable) -> bool {
        !self.lock().segments.contains_key(&segment.number)
    }

    /// Keeps what became unreadable, and says so once.
    fn found_damage(&self, segment: &Readable, cursor: &mut Cursor, from: u64, to: u64) {
        let known = {
            let mut log = self.lock();
            let holes = log.segments.get_mut(&segment.number).map(|segment| &mut segment.holes);
            holes.is_none_or(|holes| {
                let known = holes.contains(&(from, to));
                if !known {
                    holes.push((from, to));
                }
                known
            })
        };
        if !known {
            self.lock().damaged += 1;
            let copy = super::recover::keep_aside(&self.dir, &segment.path, cursor, from, to);
            tracing::error!(
                journal.file = %segment.path.display(), journal.from = from, journal.to = to,
                journal.copy = copy.as_deref().map(|path| path.display().to_string()),
                "a part of the journal cannot be read any more and is skipped"
            );
        }
    }
}
