//! The journal's files, damaged in any way.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::OnceLock,
    time::Duration,
};

use conductor::{
    journal::{Batch, Class, Journal, Position, Record, Settings},
    record::{Destination, Origin, Stream, StreamKind},
};
use tempfile::TempDir;
use uuid::Uuid;

/// The most edits of one input.
const MOST_EDITS: usize = 64;

/// A journal as it was written, and what it says.
struct Written {
    /// Its files, by name.
    files: Vec<(String, Vec<u8>)>,
    records: Vec<Record>,
}

/// Edits of a journal's files, five bytes each: what, in which file, where, and with what.
/// An input that begins with the magic of a segment is one. Whatever is done, the journal
/// opens or says why not, and no record is read that was not written.
pub fn journal(data: &[u8]) {
    let written = written();
    let mut files = written.files.clone();
    if data.starts_with(b"CJOURNAL") {
        let segment = files.iter_mut().find(|(name, _)| name.ends_with(".seg"));
        segment.into_iter().for_each(|(_, bytes)| *bytes = data.to_vec());
    } else {
        data.chunks_exact(5).take(MOST_EDITS).for_each(|edit| apply(&mut files, edit));
    }
    let directory = directory();
    let dir = directory.path().join("journal");
    make(&dir);
    for (name, bytes) in &files {
        fs::write(dir.join(name), bytes).unwrap();
    }
    match Journal::open(&dir, small()) {
        Err(refused) => assert!(!refused.to_string().is_empty()),
        Ok((journal, recovered)) => {
            assert!(recovered.findings.iter().all(|finding| !finding.to_string().is_empty()));
            let read = all(&journal);
            journal.close();
            for record in &read {
                assert!(written.records.contains(record), "{record:?} was never written");
            }
            let in_order = read.windows(2).all(|pair| pair[0].end < pair[1].end);
            assert!(in_order, "records are read twice, or out of order");
        }
    }
}

/// One edit. What it does not fit is left alone.
fn apply(files: &mut Vec<(String, Vec<u8>)>, edit: &[u8]) {
    let [what, file, high, low, with] = *edit else { return };
    let file = usize::from(file) % files.len();
    let at = usize::from(u16::from_be_bytes([high, low]));
    let bytes = &mut files[file].1;
    match what % 8 {
        0 | 1 => bytes.get_mut(at).into_iter().for_each(|byte| *byte ^= with),
        2 => bytes.truncate(at),
        3 => bytes.extend(std::iter::repeat_n(with, at.min(512))),
        4 => {
            // A part of it stands there twice.
            let from = at.min(bytes.len());
            let part = bytes[from..(from + usize::from(with)).min(bytes.len())].to_vec();
            bytes.splice(from..from, part);
        }
        5 => {
            let other = usize::from(with) % files.len();
            let name = files[other].0.clone();
            files[other].0 = std::mem::replace(&mut files[file].0, name);
        }
        6 if files.len() < 32 => {
            let copy = (format!("{at:012}.seg"), files[file].1.clone());
            files.retain(|(name, _)| *name != copy.0);
            files.push(copy);
        }
        _ if files.len() > 1 => drop(files.remove(file)),
        _ => {}
    }
}

/// Small segments and no waiting.
fn small() -> Settings {
    Settings {
        // What is written is written in 1970.
        keep: Duration::from_secs(100 * 365 * 86_400),
        segment_bytes: 512,
        reserve_bytes: 0,
        retry: Duration::from_millis(1),
        ..Settings::default()
    }
}

/// In memory if there is such a place: a disk would only be slower.
fn directory() -> TempDir {
    let builder = tempfile::Builder::new().prefix("journal").to_owned();
    match Path::new("/dev/shm").is_dir() {
        true => builder.tempdir_in("/dev/shm").unwrap(),
        false => builder.tempdir().unwrap(),
    }
}

/// Makes the directory as the journal itself would.
fn make(dir: &Path) {
    use std::os::unix::fs::DirBuilderExt as _;
    fs::DirBuilder::new().mode(0o700).create(dir).unwrap();
}

fn written() -> &'static Written {
    static WRITTEN: OnceLock<Written> = OnceLock::new();
    WRITTEN.get_or_init(|| {
        let directory = directory();
        let dir = directory.path().join("journal");
        make(&dir);
        // Known, so that segments of the corpus are this journal's.
        fs::write(dir.join("id"), format!("{}\n", Uuid::from_u128(7))).unwrap();
        let (journal, _) = Journal::open(&dir, small()).unwrap();
        for number in 0..12_u64 {
            let stream =
                Stream { id: Uuid::from_u128(1 + u128::from(number % 3)), kind: StreamKind::Session };
            let mut batch = Batch::new();
            // What an agent sends may look like a record.
            let text = format!("{{\"n\":{number},\"cjr\x01\":\"CJOURNAL\"}}");
            let frames = [text.as_bytes(), b"{}"].into_iter();
            let seq = journal.next_seq(stream.id);
            batch.push(stream, seq, 1000, Origin::Agent, Destination::Editor, &[(0, number)], frames);
            journal.append(batch, Class::Stream).unwrap();
        }
        journal.close();
        let (journal, _) = Journal::open(&dir, small()).unwrap();
        let records = all(&journal);
        journal.close();
        assert_eq!(records.len(), 12);
        let mut paths: Vec<PathBuf> =
            fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path()).collect();
        paths.retain(|path| path.is_file());
        paths.sort();
        let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
        let files = paths.iter().map(|path| (name(path), fs::read(path).unwrap())).collect();
        Written { files, records }
    })
}

/// Everything in order, without the journal's own notes.
fn all(journal: &Journal) -> Vec<Record> {
    let (mut found, mut at) = (Vec::new(), Position::default());
    while let Ok((records, next)) = journal.read(at, 1000) {
        if records.is_empty() && next == at {
            break;
        }
        found.extend(records.into_iter().filter(|record| record.stream.id != journal.id()));
        at = next;
    }
    found
}
