//! Opening a journal: which segments are ours and in which order, what in them
//! counts, and what is wrong with them. Nothing that stands in the directory
//! may make this fail but what people must decide.

use std::{
    collections::BTreeMap,
    fs::{self, DirBuilder, File},
    io::{self, Read as _},
    os::unix::fs::{DirBuilderExt as _, FileExt as _, MetadataExt as _},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use bytes::Bytes;
use uuid::Uuid;

use super::{
    JournalError,
    cursor::{Cursor, Step, record},
    disk::{replace, retried},
    findings::Finding,
    format::{BadHead, Position, RecordHead, SEGMENT_HEADER, SegmentHead},
    heads,
    index::comes_back,
    log::{Log, Segment},
};

/// Bytes read at once.
const CHUNK: usize = 1024 * 1024;
/// Bytes read at once to find where a file's zeros begin.
const PIECE: usize = 64 * 1024;
/// Where copies of damaged parts go.
pub(super) const QUARANTINE: &str = "quarantine";

/// What was found when the journal was opened.
#[derive(Debug, Default)]
pub struct Recovered {
    /// Segments in use.
    pub segments: usize,
    /// Records in them.
    pub records: u64,
    /// Frames in those.
    pub frames: u64,
    /// Bytes of the segments.
    pub bytes: u64,
    /// How long it took.
    pub took: Duration,
    /// What is wrong, in order of the segments.
    pub findings: Vec<Finding>,
}

/// A file that may be a segment.
struct Candidate {
    path: PathBuf,
    name: String,
    named: u64,
    /// Where what was written ends: no record and no head ends with a zero.
    len: u64,
    /// How long the file is; what is beyond that was set aside.
    file_len: u64,
    head: Result<SegmentHead, BadHead>,
}

/// Makes the directory if need be and finds or gives the journal's id.
pub(super) fn prepare(
    dir: &Path,
    disk: &dyn super::disk::Disk,
    recovered: &mut Recovered,
) -> Result<Uuid, JournalError> {
    let failed = |verb, path: &Path| {
        let path = path.to_path_buf();
        move |error| JournalError::io(verb, &path, error)
    };
    DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed("make", dir))?;
    let metadata = fs::metadata(dir).map_err(failed("look at", dir))?;
    if metadata.mode() & 0o077 != 0 {
        return Err(JournalError::Shared { path: dir.to_path_buf(), mode: metadata.mode() & 0o7777 });
    }
    if let Some(parent) = dir.parent() {
        super::disk::sync_directory(disk, parent).map_err(failed("sync", parent))?;
    }
    let file = dir.join("id");
    let told = match read_small(&file) {
        Ok(text) => text.trim().parse::<Uuid>().ok(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(failed("read", &file)(error)),
    };
    if let Some(id) = told {
        return Ok(id);
    }
    let heads = candidates(dir)?.into_iter().filter_map(|candidate| candidate.head.ok());
    let id = match heads.map(|head| head.journal).next() {
        Some(id) => {
            recovered.findings.push(Finding::NoId { id });
            id
        }
        None => Uuid::now_v7(),
    };
    replace(disk, dir, "id", format!("{id}\n").as_bytes()).map_err(failed("write", &file))?;
    Ok(id)
}

/// Fills the log from what the directory holds.
pub(super) fn recover(log: &mut Log, recovered: &mut Recovered) -> Result<(), JournalError> {
    let began = Instant::now();
    let found = candidates(&log.dir)?;
    log.next_number = found.iter().map(|candidate| candidate.named).max().unwrap_or(0).saturating_add(1);
    log.shipped = read_shipped(&log.dir);
    log.told_shipped = log.shipped;
    match heads::read(&log.dir) {
        Some(heads) => {
            // Those of former versions hold others, too.
            for (stream, last_seq) in heads.into_iter().filter(|(stream, _)| comes_back(*stream, log.id)) {
                log.index.used(stream, last_seq);
            }
        }
        None => recovered.findings.push(Finding::Heads),
    }
    let segments = sort_out(log, found, recovered)?;
    let ends = cuts(log, &segments, recovered);
    let last = segments.keys().next_back().copied();
    let complete =
        segments.values().next().is_some_and(|(_, head)| head.is_none_or(|head| head.after.segment == 0));
    // Those who read in order are told what they have missed.
    if let Some((_, Some(head))) = segments.values().next() {
        log.freed = head.after;
    }
    for (number, (candidate, _)) in &segments {
        let end = ends.get(number).copied();
        if end == Some(0) {
            log.dead.push(candidate.path.clone());
            continue;
        }
        scan(log, *number, candidate, end, last == Some(*number), complete, recovered);
        sync(log, &candidate.path)?;
    }
    if let Some((number, segment)) = log.segments.last_key_value() {
        log.end = Position { segment: *number, offset: segment.end };
    }
    log.synced_end = log.end;
    if log.shipped > log.end {
        recovered.findings.push(Finding::Behind { shipped: log.shipped, end: log.end });
        log.shipped = log.end;
    }
    log.count_unshipped();
    let damage = recovered.findings.iter().filter(|finding| matches!(finding, Finding::Damaged { .. }));
    log.damaged = damage.count() as u64;
    recovered.segments = log.segments.len();
    recovered.took = began.elapsed();
    Ok(())
}

fn candidates(dir: &Path) -> Result<Vec<Candidate>, JournalError> {
    let failed = |error| JournalError::io("read", dir, error);
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let Some(name) = path.file_name().and_then(|name| name.to_str()).map(str::to_owned) else { continue };
        let Some(number) = name.strip_suffix(".seg").filter(|number| number.len() == 12) else { continue };
        let Ok(named) = number.parse() else { continue };
        let mut bytes = Vec::new();
        let read = File::open(&path).and_then(|file| {
            let file_len = file.metadata()?.len();
            let written = written(&file, file_len)?;
            file.take(SEGMENT_HEADER).read_to_end(&mut bytes)?;
            Ok((written, file_len))
        });
        let (written, file_len) = read.map_err(|error| JournalError::io("read", &path, error))?;
        let head = SegmentHead::parse(&bytes);
        // A head may well end with zeros.
        let len = if head.is_ok() { written.max(SEGMENT_HEADER) } else { written };
        found.push(Candidate { path, name, named, len, file_len, head });
    }
    found.sort_by_key(|candidate| candidate.named);
    Ok(found)
}

/// Where what was written to a file ends. Behind that there are only zeros: the room that was set
/// aside for more, and that a killed conductor did not give back.
fn written(file: &File, file_len: u64) -> io::Result<u64> {
    if file_len <= SEGMENT_HEADER {
        return Ok(file_len);
    }
    let (zeros, mut chunk) = (vec![0; PIECE], vec![0; PIECE]);
    let mut end = file_len;
    while end > 0 {
        let from = end.saturating_sub(PIECE as u64);
        let piece = &mut chunk[..usize::try_from(end - from).unwrap_or(PIECE)];
        retried(|| file.read_exact_at(piece, from))?;
        // Comparing is fast, and mostly there is nothing to look for.
        if *piece != zeros[..piece.len()]
            && let Some(last) = piece.iter().rposition(|byte| *byte != 0)
        {
            return Ok(from + last as u64 + 1);
        }
        end = from;
    }
    Ok(0)
}

/// Our segments by number: the head says it, or the name if the head cannot.
type Ours = BTreeMap<u64, (Candidate, Option<SegmentHead>)>;

fn sort_out(log: &mut Log, found: Vec<Candidate>, recovered: &mut Recovered) -> Result<Ours, JournalError> {
    let mut ours = Ours::new();
    let (mut headless, mut empty) = (Vec::new(), Vec::new());
    let newest = found.iter().filter(|candidate| candidate.len > 0).map(|candidate| candidate.named).max();
    for candidate in found {
        let file = candidate.name.clone();
        match candidate.head {
            Err(BadHead::Newer(version)) => {
                return Err(JournalError::Newer { path: candidate.path, version });
            }
            Ok(head) if head.journal != log.id => {
                recovered.findings.push(Finding::Foreign { file, journal: head.journal });
            }
            Ok(head) => {
                if let Some((first, _)) = ours.get(&head.number) {
                    // The one with the right name is the original, if any has it.
                    let right = candidate.named == head.number;
                    let copy = if right { first.name.clone() } else { file };
                    recovered.findings.push(Finding::Duplicate { file: copy, number: head.number });
                    if !right {
                        continue;
                    }
                } else if candidate.named != head.number {
                    recovered.findings.push(Finding::Misnamed { file, number: head.number });
                }
                log.next_number = log.next_number.max(head.number.saturating_add(1));
                ours.insert(head.number, (candidate, Some(head)));
            }
            Err(BadHead::Damaged) if candidate.len == 0 => empty.push(candidate),
            // Killed while the head was written.
            Err(BadHead::Damaged) if candidate.len < SEGMENT_HEADER && Some(candidate.named) == newest => {
                let (from, to) = (0, candidate.len);
                recovered.findings.push(Finding::Torn { file, from, to, about: None, copy: None });
                log.dead.push(candidate.path);
            }
            Err(BadHead::Damaged) => headless.push(candidate),
        }
    }
    for candidate in empty {
        // Made ahead and never used, unless another follows on it.
        let follows =
            |head: &Option<SegmentHead>| head.is_some_and(|head| head.after.segment == candidate.named);
        if ours.values().any(|(_, head)| follows(head)) {
            recovered.findings.push(Finding::Empty { file: candidate.name });
        } else {
            log.dead.push(candidate.path);
        }
    }
    for candidate in headless {
        let (file, number) = (candidate.name.clone(), candidate.named);
        recovered.findings.push(Finding::Head { file });
        ours.entry(number).or_insert((candidate, None));
    }
    Ok(ours)
}

/// Where segments end by what later ones say, and which are missing. An end of
/// zero means that nothing in it counts.
fn cuts(log: &Log, segments: &Ours, recovered: &mut Recovered) -> BTreeMap<u64, u64> {
    let mut ends = BTreeMap::new();
    let mut before: Option<u64> = None;
    for (number, (_, head)) in segments {
        let headless = before.is_some_and(|before| segments[&before].1.is_none());
        match head {
            Some(head) if head.after.segment < *number => {
                let after = head.after;
                ends.insert(after.segment, after.offset);
                for (abandoned, _) in segments.range(after.segment + 1..*number) {
                    ends.insert(*abandoned, 0);
                }
                let there = segments.contains_key(&after.segment) || after.segment == 0;
                let freed = before.is_none() && after.segment < log.shipped.segment;
                if !there && !freed {
                    recovered.findings.push(Finding::Missing { number: after.segment });
                }
            }
            _ if before.is_some_and(|before| before + 1 < *number) && !headless => {
                recovered.findings.push(Finding::Missing { number: *number - 1 });
            }
            _ => {}
        }
        before = Some(*number);
    }
    ends
}

/// Reads a whole segment into the index.
fn scan(
    log: &mut Log,
    number: u64,
    candidate: &Candidate,
    end: Option<u64>,
    last: bool,
    complete: bool,
    recovered: &mut Recovered,
) {
    let mut segment = Segment::new(candidate.path.clone());
    let told = end.unwrap_or(candidate.len);
    let mut torn = false;
    let begin = Position { segment: number, offset: SEGMENT_HEADER };
    let counts = told.min(candidate.len);
    let cursor = Cursor::open(&candidate.path, log.id, begin, counts, CHUNK);
    let file = || candidate.name.clone();
    let outcome = cursor.and_then(|mut cursor| {
        loop {
            let from = cursor.at;
            match cursor.next()? {
                None => return Ok(()),
                Some(Step::Record(head, bytes)) => {
                    note_record(log, &mut segment, number, from, &head, &bytes, complete, recovered);
                }
                Some(Step::Damage { to, more }) => {
                    let head = cursor.bytes(from, to.min(from + 60))?;
                    let about = RecordHead::parse(&head).map(|head| (head.stream.id, head.first_seq));
                    let copy = keep_aside(&log.dir, &candidate.path, &mut cursor, from, to);
                    if last && !more {
                        recovered.findings.push(Finding::Torn { file: file(), from, to, about, copy });
                        cut(log, &candidate.path, from);
                        torn = true;
                        return Ok(());
                    }
                    segment.holes.push((from, to));
                    recovered.findings.push(Finding::Damaged { file: file(), from, to, about, copy });
                }
            }
            segment.end = cursor.at;
        }
    });
    if let Err(error) = outcome {
        let why = error.to_string();
        recovered.findings.push(Finding::Unreadable { file: file(), from: segment.end, why });
    } else if told > candidate.len {
        recovered.findings.push(Finding::Short { file: file(), from: candidate.len, to: told });
    }
    if !torn && candidate.file_len > candidate.len {
        // Room that a killed conductor did not give back.
        cut(log, &candidate.path, candidate.len);
    }
    recovered.bytes += segment.end;
    log.segments.insert(number, segment);
}

#[allow(clippy::too_many_arguments, reason = "they are what one step of the scan knows")]
fn note_record(
    log: &mut Log,
    segment: &mut Segment,
    number: u64,
    from: u64,
    head: &RecordHead,
    bytes: &Bytes,
    complete: bool,
    recovered: &mut Recovered,
) {
    let stream = head.stream.id;
    let mut last_seq = head.first_seq + (u64::from(head.count) - 1);
    let at = Position { segment: number, offset: from };
    if head.gap {
        last_seq = last_seq.max(gap_end(&record(head, bytes, at).frames).unwrap_or(0));
    }
    segment.add(from, head.at_us);
    recovered.records += 1;
    recovered.frames += u64::from(head.count);
    let next = log.index.next_seq(stream);
    if last_seq < next {
        // Written twice, because a sync failed in between.
        return;
    }
    if head.first_seq > next && (complete || log.index.knows(stream)) {
        let (from, to) = (next, head.first_seq - 1);
        recovered.findings.push(Finding::Lost { stream, from, to });
    }
    log.index.add(head.stream, head.first_seq, last_seq, at);
}

/// The last number that a gap note stands for.
fn gap_end(note: &[u8]) -> Option<u64> {
    serde_json::from_slice::<serde_json::Value>(note).ok()?.get("params")?.get("to")?.as_u64()
}

/// Cuts a torn tail. If that fails, the next segment's head says the same.
fn cut(log: &Log, path: &Path, end: u64) {
    if let Ok(file) = log.disk.open(path) {
        let _ = retried(|| log.disk.set_len(&file, end));
    }
}

/// What a killed conductor wrote may not be on the medium yet, and only what
/// is may be shipped.
fn sync(log: &Log, path: &Path) -> Result<(), JournalError> {
    let synced = log.disk.open(path).and_then(|file| retried(|| log.disk.sync_data(&file)));
    synced.map_err(|error| JournalError::io("sync", path, error))
}

/// Copies a damaged part for people to look at; `None` if that fails too.
pub(super) fn keep_aside(
    dir: &Path,
    path: &Path,
    cursor: &mut Cursor,
    from: u64,
    to: u64,
) -> Option<PathBuf> {
    let name = path.file_stem()?.to_str()?;
    let quarantine = dir.join(QUARANTINE);
    DirBuilder::new().recursive(true).mode(0o700).create(&quarantine).ok()?;
    let copy = quarantine.join(format!("{name}-{from}-{to}"));
    let bytes = cursor.bytes(from, to).ok()?;
    match super::disk::Disk::create(&super::disk::Kernel, &copy) {
        Ok(file) => super::disk::write_all(&super::disk::Kernel, &file, &bytes, 0).ok()?,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(_) => return None,
    }
    Some(copy)
}

fn read_shipped(dir: &Path) -> Position {
    let text = read_small(&dir.join("shipped")).unwrap_or_default();
    let mut numbers = text.split_whitespace().map_while(|number| number.parse().ok());
    let (segment, offset) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    Position { segment, offset }
}

fn read_small(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(4096).read_to_string(&mut text)?;
    Ok(text)
}
