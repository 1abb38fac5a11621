//! Places that were given out to those who read in order: whether one still leads
//! anywhere, and where to begin.
//!
//! A place may come back after days, from somebody's notes. One where no record ever
//! ended would look like damage to whoever reads there, so it is refused before.

use super::{
    JournalError, Shared,
    cursor::Cursor,
    format::{Position, SEGMENT_HEADER},
    log::Log,
};

/// Bytes read at once on the way to a place.
const CHUNK: usize = 256 * 1024;

/// What has become of a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// Everything behind it is there.
    Kept,
    /// Something behind it was freed.
    Freed,
    /// No record ends there.
    Unknown,
}

impl Log {
    /// Behind this is all that was recorded at a time or later. The clock may have been set
    /// back meanwhile, so that a segment counts as a whole, unless it is the first that does.
    pub(super) fn since(&self, at_us: i64) -> Position {
        let first = self.segments.iter().find(|(_, segment)| segment.last_us >= at_us);
        let Some((number, segment)) = first else { return self.synced_end };
        let offset = segment.mark_before(at_us).unwrap_or(SEGMENT_HEADER);
        self.synced_end.min(Position { segment: *number, offset })
    }
}

impl Shared {
    pub(super) fn standing(&self, at: Position) -> Result<Standing, JournalError> {
        let (path, end) = {
            let log = self.lock();
            if at < log.freed {
                return Ok(Standing::Freed);
            }
            if at > log.synced_end {
                return Ok(Standing::Unknown);
            }
            match log.segments.get(&at.segment) {
                // Just behind what was freed, or before anything was written.
                None if at == log.freed => return Ok(Standing::Kept),
                None => return Ok(Standing::Unknown),
                Some(segment) if at.offset <= SEGMENT_HEADER || at.offset == segment.end => {
                    return Ok(Standing::Kept);
                }
                Some(segment) if at.offset > segment.end => return Ok(Standing::Unknown),
                Some(segment) => (segment.path.clone(), segment.end),
            }
        };
        let failed = |error| JournalError::io("read", &path, error);
        let begin = Position { segment: at.segment, offset: SEGMENT_HEADER };
        let mut cursor = match Cursor::open(&path, self.id, begin, end, CHUNK) {
            Ok(cursor) => cursor,
            // It went away meanwhile.
            Err(_) if at < self.lock().freed => return Ok(Standing::Freed),
            Err(error) => return Err(failed(error)),
        };
        while cursor.at < at.offset {
            if cursor.next().map_err(failed)?.is_none() {
                break;
            }
        }
        Ok(if cursor.at == at.offset { Standing::Kept } else { Standing::Unknown })
    }
}
