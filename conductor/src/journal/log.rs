//! The journal's state behind its lock: which segments there are, where the
//! next record goes, what is written but not yet synced, and why something is
//! refused.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    fs::File,
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Instant,
};

use serde_json::json;
use uuid::Uuid;

use super::{
    Cause, Class, Recording, Refused, Settings,
    batch::Batch,
    disk::{Disk, is_full, retried, set_aside, sync_directory, write_all},
    figures::Frames,
    format::{Position, SEGMENT_HEADER, SegmentHead},
    index::Index,
};
use crate::record::{self, Destination, Origin, Stream, StreamKind, note};

/// Bytes of a segment between two times that are remembered.
const TIME_EVERY: u64 = 256 * 1024;

/// A file of the journal, as far as it counts.
#[derive(Debug, Clone, Default)]
pub(super) struct Segment {
    pub path: PathBuf,
    /// Where what counts ends.
    pub end: u64,
    /// What cannot be read, from byte to byte.
    pub holes: Vec<(u64, u64)>,
    /// When the record at an offset was made, every now and then.
    times: Vec<(u64, i64)>,
    /// When its last record was made.
    pub last_us: i64,
}

impl Segment {
    pub(super) fn new(path: PathBuf) -> Self {
        Self { path, end: SEGMENT_HEADER, ..Self::default() }
    }

    pub(super) fn add(&mut self, offset: u64, at_us: i64) {
        self.last_us = self.last_us.max(at_us);
        if self.times.last().is_none_or(|(last, _)| offset.saturating_sub(*last) >= TIME_EVERY) {
            self.times.push((offset, at_us));
        }
    }

    /// Where a record begins that was made before a time, the last such that is known.
    pub(super) fn mark_before(&self, at_us: i64) -> Option<u64> {
        self.times.iter().take_while(|(_, at)| *at < at_us).last().map(|(offset, _)| *offset)
    }

    /// About when the record at an offset was made.
    pub(super) fn time_at(&self, offset: u64) -> Option<i64> {
        let behind = self.times.partition_point(|(at, _)| *at <= offset);
        self.times.get(behind.saturating_sub(1)).map(|(_, at_us)| *at_us)
    }
}

/// A file that is written to.
#[derive(Debug, Clone)]
pub(super) struct Open {
    pub number: u64,
    pub file: Arc<File>,
    pub path: PathBuf,
}

/// Writing or syncing failed, and has not worked since.
#[derive(Debug)]
pub(super) struct Trouble {
    pub why: Arc<str>,
    pub since: Instant,
    pub retry_at: Instant,
    /// There was no room.
    pub full: bool,
    /// A sync failed: what was not synced must be written again elsewhere.
    pub rewrite: bool,
}

/// Frames that passed without being recorded.
#[derive(Debug)]
struct Gap {
    stream: Stream,
    from: u64,
    to: u64,
    count: u64,
    reason: Arc<str>,
}

/// A call to the file system that failed.
#[derive(Debug)]
pub(super) struct Failure {
    pub why: Arc<str>,
    pub full: bool,
}

impl Failure {
    pub(super) fn new(verb: &str, path: &Path, error: &io::Error) -> Self {
        let full = is_full(error);
        let remedy = if full {
            "free space on that disk, or give the conductor a state directory with more; it goes on by itself"
        } else {
            "look at the disk and the kernel's log; it is tried again all the time"
        };
        Self { why: format!("cannot {verb} {}: {error}; {remedy}", path.display()).into(), full }
    }
}

/// What the lock guards.
pub(super) struct Log {
    pub dir: PathBuf,
    pub id: Uuid,
    pub settings: Settings,
    pub disk: Arc<dyn Disk>,
    pub index: Index,
    pub segments: BTreeMap<u64, Segment>,
    /// The number of the next new file; higher than that of any file.
    pub next_number: u64,
    pub current: Option<Open>,
    /// A file made ahead, empty.
    pub spare: Option<Open>,
    /// Files that only held what was written again elsewhere.
    pub dead: Vec<PathBuf>,

    /// Appends so far: what tickets count.
    pub written: u64,
    /// The frames and bytes of these.
    pub frames: Frames,
    pub appended: u64,
    /// Where the next record goes.
    pub end: Position,
    /// The appends that are on the medium.
    pub synced: u64,
    pub synced_end: Position,
    /// An effect waits for this append.
    pub wanted: u64,
    /// What is written but not synced, in order, in case the sync fails.
    pub unsynced: VecDeque<(u64, Batch)>,
    pub unsynced_bytes: u64,
    pub dirty_since: Option<Instant>,
    /// The files that a sync must cover.
    pub dirty: Vec<Open>,

    /// What was before this has been freed.
    pub freed: Position,
    pub shipped: Position,
    pub shipped_no: u64,
    /// In strict mode: which appends are shipped once a position is.
    pub marks: VecDeque<(Position, u64)>,
    pub unshipped: u64,
    /// When the first record was made since the ledger had all.
    pub behind_since_us: i64,
    pub alarmed: bool,
    /// What the file `shipped` says.
    pub told_shipped: Position,

    /// What owners of streams left, until the trouble ends.
    pub left: Vec<Batch>,
    pub left_bytes: u64,
    gaps: HashMap<Uuid, Gap>,
    /// Frames that passed unrecorded.
    pub unrecorded: u64,
    pub damaged: u64,

    pub trouble: Option<Trouble>,
    pub capped: Option<Arc<str>>,
    pub ledger_down: Option<Arc<str>>,
    /// The record says that it stopped, and why.
    pub noted: Option<Arc<str>>,
    /// The reserve is there.
    pub reserve: bool,
    pub chores: bool,
    /// The thread waits to be woken.
    pub idle: bool,
    /// It wakes by itself before what is written now has to be synced.
    pub looks_again: bool,
    pub closing: bool,
    pub closed: bool,
}

impl Log {
    pub(super) fn new(dir: PathBuf, id: Uuid, settings: Settings, disk: Arc<dyn Disk>) -> Self {
        Self {
            dir,
            id,
            settings,
            disk,
            index: Index::default(),
            segments: BTreeMap::new(),
            next_number: 1,
            current: None,
            spare: None,
            dead: Vec::new(),
            written: 0,
            frames: Frames::default(),
            appended: 0,
            end: Position::default(),
            synced: 0,
            synced_end: Position::default(),
            wanted: 0,
            unsynced: VecDeque::new(),
            unsynced_bytes: 0,
            dirty_since: None,
            dirty: Vec::new(),
            freed: Position::default(),
            shipped: Position::default(),
            shipped_no: 0,
            marks: VecDeque::new(),
            unshipped: 0,
            behind_since_us: 0,
            alarmed: false,
            told_shipped: Position::default(),
            left: Vec::new(),
            left_bytes: 0,
            gaps: HashMap::new(),
            unrecorded: 0,
            damaged: 0,
            trouble: None,
            capped: None,
            ledger_down: None,
            noted: None,
            reserve: false,
            chores: true,
            idle: false,
            looks_again: false,
            closing: false,
            closed: false,
        }
    }

    /// Why effects are refused now.
    pub(super) fn refusing(&self) -> Option<Arc<str>> {
        let strict = self.settings.recording == Recording::Strict;
        let trouble = self.trouble.as_ref().map(|trouble| &trouble.why);
        trouble.or(self.capped.as_ref()).or(self.ledger_down.as_ref().filter(|_| strict)).cloned()
    }

    /// Whether there is such a reason.
    pub(super) fn is_refusing(&self) -> bool {
        let strict = self.settings.recording == Recording::Strict;
        self.trouble.is_some() || self.capped.is_some() || (strict && self.ledger_down.is_some())
    }

    /// Whether a refused stream is worth another try.
    pub(super) fn accepts(&self) -> bool {
        !self.closing && !self.is_refusing() && self.unsynced_bytes < self.settings.unsynced_bytes
    }

    /// Writes the batch, or says why not. The number is that of its ticket.
    pub(super) fn append(&mut self, batch: Batch, class: Class) -> Result<u64, Refused> {
        if let Some((cause, why)) = self.refuses(class, batch.len() as u64) {
            return self.refuse(batch, cause, why);
        }
        // What is left comes first in its stream.
        if let Some(trouble) = self.trouble.as_ref().filter(|_| self.has_left(&batch)) {
            let why = trouble.why.clone();
            return self.refuse(batch, Cause::Disk, why);
        }
        if batch.is_empty() {
            return Ok(self.written);
        }
        if let Err(failure) = self.put_gaps() {
            let why = self.fail(failure, false);
            return self.refuse(batch, Cause::Disk, why);
        }
        let stop = class == Class::Stop;
        let mut outcome = self.put(batch, !stop || self.trouble.is_none());
        if let Err((batch, failure)) = outcome {
            let full = failure.full;
            let why = self.fail(failure, false);
            if !(stop && full && self.release_reserve()) {
                return self.refuse(batch, Cause::Disk, why);
            }
            outcome = self.put(batch, false);
        }
        match outcome {
            Ok(number) => {
                // Where nobody waits, the sync comes in its own time.
                if class == Class::Effect && self.settings.recording != Recording::BestEffort {
                    self.wanted = number;
                }
                Ok(number)
            }
            Err((batch, failure)) => self.refuse(batch, Cause::Disk, failure.why),
        }
    }

    fn refuses(&mut self, class: Class, len: u64) -> Option<(Cause, Arc<str>)> {
        if self.closing {
            return Some((Cause::Closed, "the journal is closed; the conductor is stopping".into()));
        }
        let stop = class == Class::Stop;
        if let Some(trouble) = self.trouble.as_ref().filter(|trouble| trouble.rewrite || !stop) {
            return Some((Cause::Disk, trouble.why.clone()));
        }
        if stop {
            return None;
        }
        if self.capped.is_none() && self.unshipped.saturating_add(len) > self.settings.cap_bytes {
            self.capped = Some(self.cap_reached());
            self.chores = true;
        }
        if let Some(why) = &self.capped {
            return Some((Cause::Cap, why.clone()));
        }
        if let (Recording::Strict, Some(why)) = (self.settings.recording, &self.ledger_down) {
            return Some((Cause::Ledger, why.clone()));
        }
        if class == Class::Stream && self.unsynced_bytes >= self.settings.unsynced_bytes {
            let why = "the disk is slower than what is to be recorded; wait for it".into();
            return Some((Cause::Busy, why));
        }
        None
    }

    fn cap_reached(&self) -> Arc<str> {
        format!(
            "the journal in {} holds {} bytes that the ledger has not taken yet, and journal.cap allows {}; \
             bring the ledger back, or raise journal.cap",
            self.dir.display(),
            self.unshipped,
            self.settings.cap_bytes
        )
        .into()
    }

    /// Hands the batch back, or, where recording must not hinder, notes what
    /// is missing.
    fn refuse(&mut self, batch: Batch, cause: Cause, why: Arc<str>) -> Result<u64, Refused> {
        let passes = !matches!(cause, Cause::Busy | Cause::Closed);
        if self.settings.recording != Recording::BestEffort || !passes {
            return Err(Refused { batch, cause, why });
        }
        self.miss(&batch, &why);
        Ok(self.written)
    }

    /// Notes that these frames are not recorded.
    pub(super) fn miss(&mut self, batch: &Batch, why: &Arc<str>) {
        for entry in batch.entries() {
            let (stream, from, to) = (entry.stream, entry.first_seq, entry.last_seq);
            self.index.used(stream, to);
            let fresh = || Gap { stream, from, to, count: 0, reason: why.clone() };
            let gap = self.gaps.entry(stream.id).or_insert_with(fresh);
            gap.to = gap.to.max(to);
            gap.count += to - from + 1;
            self.unrecorded += to - from + 1;
        }
    }

    /// Whether frames of this stream passed unrecorded, and that is not noted yet.
    pub(super) fn misses(&self, stream: Stream) -> bool {
        self.gaps.contains_key(&stream.id)
    }

    /// Writes down what passed unrecorded. The note takes the first number of
    /// the frames it stands for.
    fn put_gaps(&mut self) -> Result<(), Failure> {
        if self.gaps.is_empty() || self.trouble.is_some() {
            return Ok(());
        }
        let mut batch = Batch::new();
        let now = record::now_us();
        for Gap { stream, from, to, count, reason } in self.gaps.values() {
            let params = json!({ "from": from, "to": to, "count": count, "reason": **reason });
            batch.push_gap(*stream, *from, *to, now, &record::note(note::GAP, &params));
        }
        self.put(batch, true).map_err(|(_, failure)| failure)?;
        self.gaps.clear();
        Ok(())
    }

    /// Notes in the journal's own stream that recording stopped or goes on.
    pub(super) fn put_note(&mut self, state: &str, reason: &str, preallocate: bool) -> Result<(), Failure> {
        let stream = Stream { id: self.id, kind: StreamKind::Process };
        let note = record::note(note::RECORDING, &json!({ "state": state, "reason": reason }));
        let mut batch = Batch::new();
        let seq = self.index.next_seq(stream.id);
        let (origin, to) = (Origin::Conductor, Destination::Record);
        batch.push(stream, seq, record::now_us(), origin, to, &[], std::iter::once(note.as_slice()));
        self.put(batch, preallocate).map_err(|(_, failure)| failure).map(|_| ())
    }

    /// Writes a batch at the end, whole or not at all.
    pub(super) fn put(&mut self, mut batch: Batch, preallocate: bool) -> Result<u64, (Batch, Failure)> {
        if let Err(failure) = self.make_room(batch.len() as u64, preallocate) {
            return Err((batch, failure));
        }
        let Some(current) = &self.current else {
            let failure = Failure { why: "no segment of the journal is open".into(), full: false };
            return Err((batch, failure));
        };
        batch.bind(self.id, self.end);
        if let Err(error) = write_all(&*self.disk, &current.file, batch.bytes(), self.end.offset) {
            let failure = Failure::new("write to", &current.path, &error);
            let whole = self.end.offset;
            if retried(|| self.disk.set_len(&current.file, whole)).is_err() {
                // The next segment's head says where this one ended.
                self.current = None;
            }
            return Err((batch, failure));
        }
        self.settle(&batch);
        for entry in batch.entries() {
            self.frames.add(entry.origin, entry.to, entry.count);
        }
        self.appended += batch.len() as u64;
        self.written += 1;
        self.unsynced_bytes += batch.len() as u64;
        self.dirty_since.get_or_insert_with(Instant::now);
        self.unsynced.push_back((self.written, batch));
        Ok(self.written)
    }

    /// Notes where a batch now stands.
    pub(super) fn settle(&mut self, batch: &Batch) {
        if self.unshipped == 0
            && let Some(first) = batch.entries().first()
        {
            self.behind_since_us = first.at_us;
        }
        let segment = self.segments.entry(self.end.segment).or_default();
        for entry in batch.entries() {
            let at = Position { offset: self.end.offset + entry.start as u64, ..self.end };
            self.index.add(entry.stream, entry.first_seq, entry.last_seq, at);
            segment.add(at.offset, entry.at_us);
        }
        self.end.offset += batch.len() as u64;
        segment.end = self.end.offset;
        self.unshipped += batch.len() as u64;
    }

    /// Begins a new segment if the current one has no room, or there is none.
    fn make_room(&mut self, len: u64, preallocate: bool) -> Result<(), Failure> {
        let fits = self.end.offset <= SEGMENT_HEADER || self.end.offset + len <= self.settings.segment_bytes;
        if self.current.is_some() && fits {
            return Ok(());
        }
        let next = match self.spare.take() {
            Some(spare) => spare,
            None => {
                let number = self.next_number;
                self.next_number += 1;
                let room = if preallocate { self.settings.segment_bytes } else { 0 };
                create(&*self.disk, &self.dir, number, room)?
            }
        };
        let head = SegmentHead { journal: self.id, number: next.number, after: self.end };
        if let Err(error) = write_all(&*self.disk, &next.file, &head.encode(), 0) {
            let failure = Failure::new("write to", &next.path, &error);
            // If it stays, it is an empty or headless file that counts nothing.
            let _ = retried(|| self.disk.remove(&next.path));
            return Err(failure);
        }
        if let Some(old) = self.current.take() {
            // What was set aside and not used goes back; if not, it goes with the file.
            let _ = self.disk.set_len(&old.file, self.end.offset);
        }
        self.begin(next);
        Ok(())
    }

    /// Goes on in a segment whose head is written.
    pub(super) fn begin(&mut self, next: Open) {
        self.end = Position { segment: next.number, offset: SEGMENT_HEADER };
        self.segments.insert(next.number, Segment::new(next.path.clone()));
        self.dirty.push(next.clone());
        self.current = Some(next);
    }

    /// Notes that a call failed. From now on effects are refused.
    pub(super) fn fail(&mut self, failure: Failure, rewrite: bool) -> Arc<str> {
        let now = Instant::now();
        if self.trouble.is_none() {
            tracing::error!(journal.why = %failure.why, "the journal cannot be written");
        }
        let old = self.trouble.take();
        let since = old.as_ref().map_or(now, |old| old.since);
        let retry_at = old.as_ref().map_or(now, |old| old.retry_at);
        let rewrite = rewrite || old.as_ref().is_some_and(|old| old.rewrite);
        let full = failure.full || old.is_some_and(|old| old.full);
        self.trouble = Some(Trouble { why: failure.why.clone(), since, retry_at, full, rewrite });
        failure.why
    }

    /// Counts anew what the ledger has not taken.
    pub(super) fn count_unshipped(&mut self) {
        let behind = self.segments.range(self.shipped.segment..);
        let bytes = behind.map(|(number, segment)| {
            let from = if *number == self.shipped.segment { self.shipped.offset } else { 0 };
            segment.end.saturating_sub(from.max(SEGMENT_HEADER))
        });
        self.unshipped = bytes.sum();
    }

    pub(super) fn reserve_path(&self) -> PathBuf {
        self.dir.join("reserve")
    }

    /// Gives the reserve back to the file system.
    pub(super) fn release_reserve(&mut self) -> bool {
        if !self.reserve {
            return false;
        }
        self.reserve = false;
        retried(|| self.disk.remove(&self.reserve_path())).is_ok()
    }
}

/// The name of a segment's file.
pub(super) fn file_name(number: u64) -> String {
    format!("{number:012}.seg")
}

/// Makes a segment's file, durable as such but empty, with room set aside.
pub(super) fn create(disk: &dyn Disk, dir: &Path, number: u64, room: u64) -> Result<Open, Failure> {
    let path = dir.join(file_name(number));
    let made = retried(|| disk.create(&path)).and_then(|file| {
        if room > 0 {
            set_aside(disk, &file, room)?;
        }
        retried(|| disk.sync_all(&file))?;
        sync_directory(disk, dir)?;
        Ok(file)
    });
    match made {
        Ok(file) => Ok(Open { number, file: Arc::new(file), path }),
        Err(error) => {
            let _ = disk.remove(&path);
            Err(Failure::new("make", &path, &error))
        }
    }
}
