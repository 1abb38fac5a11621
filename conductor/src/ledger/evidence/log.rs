//! The log of checkpoints: a file that only grows, a checkpoint a line.
//!
//! Whoever appends holds a lock on the file and goes on from its last line, so
//! that the service and a command can both do it. A line that has no end was
//! never synced, and nothing refers to it: it is cut off.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom, Write as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use uuid::Uuid;

use super::{
    EvidenceError, Files,
    checkpoint::{Checkpoint, Draft, Entry, Head, Kind},
    key::{self, Key, PublicKey},
};
use crate::record::now_us;

/// So many bytes of the end are read to find the last line; more, if it is longer.
const END: u64 = 64 << 10;

/// A line is no longer: a checkpoint has a bounded number of heads.
pub const LONGEST: u64 = 16 << 20;

/// What an empty checkpoint says that comes after a new key.
const FIRST_OF_A_KEY: &str = "the first with this key";

/// The log of a journal.
#[derive(Debug, Clone)]
pub struct Log {
    files: Files,
    journal: Uuid,
}

impl Log {
    /// The log of this journal.
    pub fn new(files: Files, journal: Uuid) -> Self {
        Self { files, journal }
    }

    /// The log of the journal beside it. For commands, which have no journal open.
    pub fn of_state(files: Files) -> Result<Self, EvidenceError> {
        let id = fs::read_to_string(&files.journal).ok().and_then(|text| text.trim().parse().ok());
        match id {
            Some(journal) => Ok(Self { files, journal }),
            None => Err(EvidenceError::Log {
                why: format!(
                    "belongs to a journal whose id {} does not have; run this where the service runs, with its \
                     state directory, once it was started",
                    files.journal.display()
                ),
                path: files.log,
            }),
        }
    }

    /// Whose log it is.
    pub fn journal(&self) -> Uuid {
        self.journal
    }

    /// Its file.
    pub fn path(&self) -> &Path {
        &self.files.log
    }

    /// Signs heads and appends the checkpoint. Returns what was appended: before
    /// the very first one, the key is introduced. Blocks, and syncs the file.
    pub fn append(&self, kind: Kind, heads: Vec<Head>, note: &str) -> Result<Vec<Entry>, EvidenceError> {
        let mut open = self.open()?;
        let key = open.key()?;
        let mut made = Vec::new();
        if open.last.is_none() {
            made.push(open.add(Kind::Key, Vec::new(), &key.public().base64(), &key)?);
        }
        made.push(open.add(kind, heads, note, &key)?);
        Ok(made)
    }

    /// Begins the log, if it is not yet: the key is made and introduced.
    pub fn begin(&self) -> Result<(), EvidenceError> {
        let mut open = self.open()?;
        if open.last.is_none() {
            let key = open.key()?;
            open.add(Kind::Key, Vec::new(), &key.public().base64(), &key)?;
        }
        Ok(())
    }

    /// Makes a new key, which the old one signs, and signs with it from now on.
    pub fn rotate(&self) -> Result<(PublicKey, Vec<Entry>), EvidenceError> {
        let mut open = self.open()?;
        let old = open.key()?;
        let mut made = Vec::new();
        if open.last.is_none() {
            made.push(open.add(Kind::Key, Vec::new(), &old.public().base64(), &old)?);
        }
        let path = &self.files.key;
        let new = Key::generate().map_err(|why| EvidenceError::Key { path: path.clone(), why })?;
        // One that waits was never introduced, or it would be in its place.
        fs::remove_file(key::waiting(path)).or_else(unless_missing).map_err(|error| EvidenceError::Key {
            path: key::waiting(path),
            why: format!("cannot be removed: {error}"),
        })?;
        new.save(&key::waiting(path))?;
        made.push(open.add(Kind::Key, Vec::new(), &new.public().base64(), &old)?);
        key::put_in_place(path)?;
        // So that a key which is in the log has signed something there.
        made.push(open.add(Kind::Heads, Vec::new(), FIRST_OF_A_KEY, &new)?);
        Ok((*new.public(), made))
    }

    /// The key that signs, made if there is none yet.
    pub fn key(&self) -> Result<PublicKey, EvidenceError> {
        Ok(*self.open()?.key()?.public())
    }

    /// The last checkpoint.
    pub fn last(&self) -> Result<Option<Checkpoint>, EvidenceError> {
        match File::open(self.path()) {
            Ok(mut file) => Ok(last_line(&mut file, self.path())?.1),
            Err(error) => unless_missing(error).map(|()| None).map_err(failed(self.path())),
        }
    }

    /// The checkpoints behind a number, at most so many. The file may still be the log of a journal
    /// that there was before; then there are none.
    pub fn after(&self, number: i64, most: usize) -> Result<Vec<Entry>, EvidenceError> {
        let is_later = |made: &Checkpoint| made.journal == self.journal && made.number > number;
        if !self.last()?.as_ref().is_some_and(is_later) {
            return Ok(Vec::new());
        }
        let later = read(self.path())?.filter(|entry| match entry {
            Ok(entry) => is_later(&entry.checkpoint),
            Err(_) => true,
        });
        later.take(most).collect()
    }

    fn open(&self) -> Result<Open<'_>, EvidenceError> {
        let path = self.path();
        loop {
            let options = OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(path);
            let mut file = options.map_err(failed(path))?;
            file.lock().map_err(failed(path))?;
            // Another may have moved it aside while this one waited for the lock.
            let (ours, there) = (file.metadata().map_err(failed(path))?, fs::metadata(path));
            if there.map_or(true, |there| there.ino() != ours.ino()) {
                continue;
            }
            let (end, last) = last_line(&mut file, path)?;
            if let Some(other) = last.as_ref().map(|last| last.journal).filter(|id| *id != self.journal) {
                // The journal was begun anew: its log is, too, and the old one is kept.
                fs::rename(path, path.with_extension(format!("{other}.jsonl"))).map_err(failed(path))?;
                continue;
            }
            if end < ours.len() {
                file.set_len(end).map_err(failed(path))?;
            }
            return Ok(Open { log: self, file, last });
        }
    }
}

/// The log, locked.
struct Open<'a> {
    log: &'a Log,
    file: File,
    last: Option<Checkpoint>,
}

impl Open<'_> {
    /// The key that the log expects next.
    fn key(&self) -> Result<Key, EvidenceError> {
        let path = &self.log.files.key;
        let refuse = |why: String| EvidenceError::Key { path: path.clone(), why };
        let found = Key::load(path)?;
        let Some(last) = &self.last else {
            return match found {
                Some(key) => Ok(key),
                None => {
                    let key = Key::generate().map_err(refuse)?;
                    key.save(path)?;
                    Ok(key)
                }
            };
        };
        let expected = last.next_key();
        let is_expected = |key: &Key| expected.as_ref() == Some(&key.public().id());
        if let Some(key) = found.filter(is_expected) {
            return Ok(key);
        }
        // A change of keys that was interrupted after the log was told of it.
        if let Some(key) = Key::load(&key::waiting(path))?.filter(is_expected) {
            key::put_in_place(path)?;
            return Ok(key);
        }
        Err(refuse(format!(
            "is not the one that {} goes on with ({}); put that key back, or move the log away to begin a new one",
            self.log.path().display(),
            expected.unwrap_or_default()
        )))
    }

    fn add(&mut self, kind: Kind, heads: Vec<Head>, note: &str, key: &Key) -> Result<Entry, EvidenceError> {
        let draft = Draft { kind, at_us: now_us(), heads, note: note.to_owned() };
        let entry = Entry::sign(draft, self.log.journal, self.last.as_ref(), key);
        let line = entry.line() + "\n";
        let path = self.log.path();
        if line.len() as u64 > LONGEST {
            let why = format!("takes no checkpoint of {} streams at once", entry.heads.len());
            return Err(EvidenceError::Log { path: path.to_owned(), why });
        }
        let written = self.file.write_all(line.as_bytes()).and_then(|()| self.file.sync_data());
        written.map_err(failed(path))?;
        self.last = Some(entry.checkpoint.clone());
        Ok(entry)
    }
}

/// The number of a log's last checkpoint, 0 if it has none.
pub fn last_number(path: &Path) -> Result<i64, EvidenceError> {
    let mut file = File::open(path).map_err(failed(path))?;
    Ok(last_line(&mut file, path)?.1.map_or(0, |last| last.number))
}

/// The logs beside this one that were moved aside: those of journals that there were before.
pub fn former(path: &Path) -> Vec<PathBuf> {
    let (Some(dir), Some(name)) = (path.parent(), path.file_stem().and_then(|name| name.to_str())) else {
        return Vec::new();
    };
    let is_former = |file: &Path| {
        let file = file.file_name().and_then(|file| file.to_str());
        let between =
            file.and_then(|file| file.strip_prefix(name)?.strip_prefix('.')?.strip_suffix(".jsonl"));
        between.is_some_and(|id| Uuid::try_parse(id).is_ok())
    };
    let beside = dir.read_dir().into_iter().flatten().flatten().map(|entry| entry.path());
    let mut found: Vec<_> = beside.filter(|file| is_former(file)).collect();
    found.sort_unstable();
    found
}

/// Reads a log from its begin, line by line.
pub fn read(path: &Path) -> Result<Entries, EvidenceError> {
    let file = File::open(path).map_err(failed(path))?;
    Ok(Entries { path: path.to_owned(), lines: BufReader::new(file), line: 0 })
}

/// A log that is being read.
#[derive(Debug)]
pub struct Entries {
    path: PathBuf,
    lines: BufReader<File>,
    line: u64,
}

impl Iterator for Entries {
    type Item = Result<Entry, EvidenceError>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut line = Vec::new();
        self.line += 1;
        match (&mut self.lines).take(LONGEST + 1).read_until(b'\n', &mut line) {
            // A line without an end is being written, or never was.
            Ok(_) if line.last() != Some(&b'\n') && line.len() as u64 <= LONGEST => None,
            Ok(_) => {
                line.pop();
                let number = self.line;
                Some(parse(&line).map_err(|why| damaged(&self.path, &format!("line {number}: {why}"))))
            }
            Err(error) => Some(Err(failed(&self.path)(error))),
        }
    }
}

fn parse(line: &[u8]) -> Result<Entry, String> {
    Entry::parse(std::str::from_utf8(line).map_err(|error| error.to_string())?)
}

/// Where the last complete line ends, and what it says.
fn last_line(file: &mut File, path: &Path) -> Result<(u64, Option<Checkpoint>), EvidenceError> {
    let length = file.metadata().map_err(failed(path))?.len();
    let mut window = END;
    loop {
        let begin = length.saturating_sub(window);
        file.seek(SeekFrom::Start(begin)).map_err(failed(path))?;
        let mut bytes = Vec::new();
        file.take(window).read_to_end(&mut bytes).map_err(failed(path))?;
        let Some(end) = memchr::memrchr(b'\n', &bytes) else {
            if begin == 0 {
                return Ok((0, None));
            }
            window = wider(window, path)?;
            continue;
        };
        match memchr::memrchr(b'\n', &bytes[..end]) {
            None if begin > 0 => window = wider(window, path)?,
            before => {
                let line = &bytes[before.map_or(0, |at| at + 1)..end];
                let entry = parse(line).map_err(|why| damaged(path, &format!("last line: {why}")))?;
                return Ok((begin + end as u64 + 1, Some(entry.checkpoint)));
            }
        }
    }
}

fn wider(window: u64, path: &Path) -> Result<u64, EvidenceError> {
    match window < 2 * LONGEST {
        true => Ok(window * 8),
        false => Err(damaged(path, "its last line is longer than any checkpoint")),
    }
}

fn damaged(path: &Path, why: &str) -> EvidenceError {
    let why = format!("is damaged ({why}); put it back from a copy, or move it away to begin a new one");
    EvidenceError::Log { path: path.to_owned(), why }
}

fn failed(path: &Path) -> impl Fn(io::Error) -> EvidenceError {
    move |error| EvidenceError::Log { path: path.to_owned(), why: format!("cannot be used: {error}") }
}

fn unless_missing(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;
    use crate::ledger::evidence::sha256;

    fn log(state: &Path) -> Log {
        Log::new(Files::new(state), Uuid::from_u128(1))
    }

    fn heads(count: u128) -> Vec<Head> {
        let head = |at: u128| Head { stream: Uuid::from_u128(at), seq: 1, chain: sha256(&at.to_be_bytes()) };
        (0..count).map(head).collect()
    }

    fn all(log: &Log) -> Vec<Entry> {
        read(log.path()).unwrap().map(Result::unwrap).collect()
    }

    #[test]
    fn the_log_goes_on_where_it_ended() {
        let temp = tempfile::tempdir().unwrap();
        let log = log(temp.path());
        let first = log.append(Kind::Heads, heads(2000), "").unwrap();
        assert_eq!(
            first.iter().map(|entry| entry.checkpoint.kind).collect::<Vec<_>>(),
            [Kind::Key, Kind::Heads]
        );
        log.append(Kind::Erased, heads(1), "why").unwrap();
        // What a crash left of a line is cut off.
        let mut file = OpenOptions::new().append(true).open(log.path()).unwrap();
        file.write_all(b"{\"checkpoint\":{\"jour").unwrap();
        let last = log.append(Kind::Heads, heads(3), "").unwrap();
        assert_eq!(last[0].checkpoint.number, 4);
        let entries = all(&log);
        assert_eq!(entries.len(), 4);
        for two in entries.windows(2) {
            assert_eq!(two[1].checkpoint.previous, two[0].checkpoint.link());
        }
        assert_eq!(log.after(2, 1).unwrap(), entries[2..3]);
        assert_eq!(log.after(4, 10).unwrap(), []);
        // Whoever fills a table asks until there is no more.
        let begun_anew = Log::new(Files::new(temp.path()), Uuid::from_u128(2));
        assert_eq!(begun_anew.after(0, 10).unwrap(), [], "these are of the journal before");
    }

    #[test]
    fn a_new_key_is_signed_by_the_old_one_also_if_interrupted() {
        let temp = tempfile::tempdir().unwrap();
        let log = log(temp.path());
        log.append(Kind::Heads, heads(1), "").unwrap();
        let old = log.key().unwrap();
        let (new, made) = log.rotate().unwrap();
        assert_ne!(old, new);
        assert!(made[0].checkpoint.is_signed_by(&old) && made[1].checkpoint.is_signed_by(&new));
        assert_eq!(log.key().unwrap(), new);
        // Killed after the log was told, before the key was in its place.
        let files = Files::new(temp.path());
        let path = &files.key;
        let key = Key::load(path).unwrap().unwrap();
        let next = Key::generate().unwrap();
        next.save(&key::waiting(path)).unwrap();
        log.open().unwrap().add(Kind::Key, Vec::new(), &next.public().base64(), &key).unwrap();
        let entry = log.append(Kind::Heads, heads(1), "").unwrap();
        assert!(entry[0].checkpoint.is_signed_by(next.public()));
        assert!(!key::waiting(path).exists());
    }

    #[test]
    fn a_key_that_the_log_does_not_know_signs_nothing() {
        let temp = tempfile::tempdir().unwrap();
        let log = log(temp.path());
        log.append(Kind::Heads, heads(1), "").unwrap();
        let before = fs::read(log.path()).unwrap();
        fs::remove_file(temp.path().join("checkpoint.key")).unwrap();
        let refused = log.append(Kind::Heads, heads(1), "").unwrap_err().to_string();
        assert!(refused.contains("put that key back"), "{refused}");
        assert_eq!(fs::read(log.path()).unwrap(), before);
    }

    #[test]
    fn another_journal_begins_another_log() {
        let temp = tempfile::tempdir().unwrap();
        log(temp.path()).append(Kind::Heads, heads(1), "").unwrap();
        let other = Log::new(Files::new(temp.path()), Uuid::from_u128(2));
        assert_eq!(other.append(Kind::Heads, heads(1), "").unwrap()[1].checkpoint.number, 2);
        assert_eq!(all(&other).len(), 2);
        let kept = temp.path().join(format!("checkpoints.{}.jsonl", Uuid::from_u128(1)));
        assert_eq!(read(&kept).unwrap().count(), 2);
        assert_eq!(former(other.path()), [kept]);
    }
}
