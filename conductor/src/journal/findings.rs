//! What can be wrong with a journal's files, in words for the log and for
//! `doctor`.

use std::{fmt, path::PathBuf};

use uuid::Uuid;

use super::format::Position;

/// Something that was found when the journal was opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Finding {
    /// The last segment ends in the middle of a record: the conductor or the
    /// machine stopped while it was written.
    Torn {
        /// The segment's file.
        file: String,
        /// First byte that was cut.
        from: u64,
        /// Where the file ended.
        to: u64,
        /// Stream and number of the record, if that much is readable.
        about: Option<(Uuid, u64)>,
        /// Where the bytes are kept.
        copy: Option<PathBuf>,
    },
    /// Bytes in the middle are not what was written.
    Damaged {
        /// The segment's file.
        file: String,
        /// First byte that cannot be read.
        from: u64,
        /// First byte that can be again.
        to: u64,
        /// Stream and number of the first record, if that much is readable.
        about: Option<(Uuid, u64)>,
        /// Where the bytes are kept.
        copy: Option<PathBuf>,
    },
    /// A segment is shorter than its successor says.
    Short {
        /// The segment's file.
        file: String,
        /// Where it ends.
        from: u64,
        /// Where it should.
        to: u64,
    },
    /// A segment's head cannot be read; its records can.
    Head {
        /// The segment's file.
        file: String,
    },
    /// A segment is not there.
    Missing {
        /// Its number.
        number: u64,
    },
    /// A segment has another's name. It is used by its number.
    Misnamed {
        /// The file.
        file: String,
        /// Its number.
        number: u64,
    },
    /// There is a second file for a segment. It is left alone.
    Duplicate {
        /// The file.
        file: String,
        /// The segment's number.
        number: u64,
    },
    /// A file is empty that should not be.
    Empty {
        /// The file.
        file: String,
    },
    /// A segment is from another journal. It is left alone.
    Foreign {
        /// The file.
        file: String,
        /// The other journal's id.
        journal: Uuid,
    },
    /// A file cannot be read from here on.
    Unreadable {
        /// The file.
        file: String,
        /// First byte that cannot be read.
        from: u64,
        /// What the system says.
        why: String,
    },
    /// Frames of a stream are missing.
    Lost {
        /// The stream.
        stream: Uuid,
        /// First missing number.
        from: u64,
        /// Last missing number.
        to: u64,
    },
    /// The file with the journal's id was missing or damaged and was written
    /// again.
    NoId {
        /// The id, as a segment has it.
        id: Uuid,
    },
    /// The file with the numbers of streams whose segments were freed is
    /// damaged.
    Heads,
    /// The ledger has more than the journal: its last segments are gone.
    Behind {
        /// What is shipped.
        shipped: Position,
        /// Where the journal ends.
        end: Position,
    },
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Torn { file, from, to, about, .. } => {
                write!(f, "{file}: the last record is not whole; cut bytes {from} to {to}")?;
                name(f, *about)
            }
            Self::Damaged { file, from, to, about, copy } => {
                write!(f, "{file}: bytes {from} to {to} are damaged and skipped")?;
                name(f, *about)?;
                match copy {
                    Some(copy) => write!(f, "; kept in {}", copy.display()),
                    None => Ok(()),
                }
            }
            Self::Short { file, from, to } => {
                write!(f, "{file}: ends at byte {from}, but {to} bytes were written")
            }
            Self::Head { file } => write!(f, "{file}: the segment's head is damaged; its records are used"),
            Self::Missing { number } => write!(f, "segment {number} is missing"),
            Self::Misnamed { file, number } => {
                write!(f, "{file}: is segment {number} by its head and used as such")
            }
            Self::Duplicate { file, number } => {
                write!(f, "{file}: is a copy of segment {number} and ignored; remove it")
            }
            Self::Empty { file } => write!(f, "{file}: is empty; its records are lost"),
            Self::Foreign { file, journal } => {
                write!(f, "{file}: is of another journal, {journal}, and ignored; remove it")
            }
            Self::Unreadable { file, from, why } => {
                write!(f, "{file}: cannot be read from byte {from} on: {why}")
            }
            Self::Lost { stream, from, to } => write!(f, "stream {stream}: frames {from} to {to} are lost"),
            Self::NoId { id } => write!(f, "the journal's id was missing; its segments say {id}"),
            Self::Heads => f.write_str(
                "heads: is damaged; sessions that were idle for longer than journal.keep cannot be continued \
                 under their old numbers before the ledger is asked",
            ),
            Self::Behind { shipped, end } => write!(
                f,
                "segment {} was shipped up to byte {}, but the journal ends at byte {} of segment {}; \
                 its last segments are missing",
                shipped.segment, shipped.offset, end.offset, end.segment
            ),
        }
    }
}

fn name(f: &mut fmt::Formatter<'_>, about: Option<(Uuid, u64)>) -> fmt::Result {
    match about {
        Some((stream, seq)) => write!(f, " (stream {stream} from frame {seq} on)"),
        None => Ok(()),
    }
}
