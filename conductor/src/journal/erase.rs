//! Taking the words out of what the journal still holds, where somebody has had a
//! session erased.
//!
//! A record keeps its place, its length and its head, so that numbers, positions and
//! the records around it stay as they are. Its frames become blanks, a flag says so, and
//! the checksum is made anew. All files are read, not only what the index leads to: what
//! was written twice, and what became unreadable, may hold the same words.

use std::{
    collections::{BTreeMap, HashSet},
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use uuid::Uuid;

use super::{
    JournalError, Shared,
    cursor::{Cursor, Step},
    disk::{retried, write_all},
    format::{Position, RecordHead, SEGMENT_HEADER, blank},
    recover::QUARANTINE,
};
use crate::record::StreamKind;

/// Bytes read at once.
const CHUNK: usize = 1 << 20;

/// What is to be erased.
#[derive(Debug, Clone, Default)]
pub struct Erasure {
    /// Every frame of these streams.
    pub streams: HashSet<Uuid>,
    /// Whatever in the streams of connections names one of these sessions: lists of sessions
    /// tell their titles, and requests that were refused have their words.
    pub named: HashSet<Uuid>,
}

impl Erasure {
    /// Whether a frame goes, by its stream and its bytes.
    fn takes(&self, head: &RecordHead, names: &[String], line: &[u8]) -> bool {
        self.streams.contains(&head.stream.id)
            || (head.stream.kind == StreamKind::Connection
                && names.iter().any(|name| memchr::memmem::find(line, name.as_bytes()).is_some()))
    }

    /// Whether bytes that are no record may hold a part of what goes.
    fn may_be_in(&self, names: &[String], bytes: &[u8]) -> bool {
        let mut ids = self.streams.iter().chain(&self.named);
        ids.any(|id| memchr::memmem::find(bytes, id.as_bytes()).is_some())
            || names.iter().any(|name| memchr::memmem::find(bytes, name.as_bytes()).is_some())
    }
}

/// A segment as a file.
struct Whole {
    number: u64,
    path: PathBuf,
    end: u64,
}

impl Shared {
    /// Blanks what goes, and returns how many records that were once it is on the medium.
    pub(super) fn erase(&self, erasure: &Erasure) -> Result<u64, JournalError> {
        let names: Vec<_> = erasure.named.iter().map(Uuid::to_string).collect();
        let (mut erased, mut touched) = (0, BTreeMap::new());
        for segment in self.whole_segments() {
            let failed = |error| JournalError::io("erase in", &segment.path, error);
            match self.erase_in(&segment, erasure, &names, &mut touched) {
                Ok(records) => erased += records,
                // It was freed meanwhile, and its words with it.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(failed(error)),
            }
        }
        for (path, file) in touched {
            let disk = self.lock().disk.clone();
            retried(|| disk.sync_data(&file)).map_err(|error| JournalError::io("sync", &path, error))?;
        }
        let quarantine = self.dir.join(QUARANTINE);
        remove_copies(&quarantine, erasure, &names)
            .map_err(|error| JournalError::io("erase in", &quarantine, error))?;
        Ok(erased)
    }

    /// All segments to their files' ends; the one that is written to, to where it is
    /// written by now.
    fn whole_segments(&self) -> Vec<Whole> {
        let log = self.lock();
        let current = log.end.segment;
        let whole = |(number, segment): (&u64, &super::log::Segment)| {
            let len = fs::metadata(&segment.path).map_or(segment.end, |metadata| metadata.len());
            let end = if *number == current { segment.end } else { len.max(segment.end) };
            Whole { number: *number, path: segment.path.clone(), end }
        };
        log.segments.iter().map(whole).collect()
    }

    fn erase_in(
        &self,
        segment: &Whole,
        erasure: &Erasure,
        names: &[String],
        touched: &mut BTreeMap<PathBuf, File>,
    ) -> io::Result<u64> {
        let begin = Position { segment: segment.number, offset: SEGMENT_HEADER };
        let mut cursor = Cursor::open(&segment.path, self.id, begin, segment.end, CHUNK)?;
        let mut erased = 0;
        loop {
            let offset = cursor.at;
            match cursor.next()? {
                None => return Ok(erased),
                Some(Step::Record(head, whole)) if !head.gap => {
                    let at = Position { segment: segment.number, offset };
                    let takes = |line: &[u8]| erasure.takes(&head, names, line);
                    if let Some(blanked) = blank(&head, &whole, self.id, at, takes) {
                        self.overwrite(segment, offset, &blanked, touched)?;
                        erased += 1;
                    }
                }
                // Its note stands for frames that were never recorded, and says which.
                Some(Step::Record(..)) => {}
                Some(Step::Damage { to, .. }) => {
                    let bytes = cursor.bytes(offset, to)?;
                    if erasure.may_be_in(names, &bytes) {
                        self.overwrite(segment, offset, &vec![0; bytes.len()], touched)?;
                        erased += 1;
                    }
                }
            }
        }
    }

    /// Writes over bytes, under the lock: whoever finds half of it looks again under the
    /// lock before it counts as damaged.
    fn overwrite(
        &self,
        segment: &Whole,
        offset: u64,
        bytes: &[u8],
        touched: &mut BTreeMap<PathBuf, File>,
    ) -> io::Result<()> {
        let log = self.lock();
        if !touched.contains_key(&segment.path) {
            touched.insert(segment.path.clone(), log.disk.open(&segment.path)?);
        }
        match touched.get(&segment.path) {
            Some(file) => write_all(&*log.disk, file, bytes, offset),
            None => Ok(()),
        }
    }

    /// Whether a record stands where something was read that is none: it was being
    /// overwritten then.
    pub(super) fn stands(&self, path: &Path, at: Position, end: u64) -> bool {
        let _log = self.lock();
        Cursor::open(path, self.id, at, end, 0).and_then(|mut cursor| cursor.is_at_record()).unwrap_or(false)
    }
}

/// Removes the copies of unreadable parts that may hold what goes.
fn remove_copies(quarantine: &Path, erasure: &Erasure, names: &[String]) -> io::Result<()> {
    let entries = match fs::read_dir(quarantine) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    for entry in entries {
        let path = entry?.path();
        if erasure.may_be_in(names, &fs::read(&path)?) {
            fs::remove_file(&path)?;
        }
    }
    Ok(())
}
