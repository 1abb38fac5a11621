//! Sessions on disk, so that load, resume and list work in a later process.
//!
//! One file of JSON lines per session, only ever appended to, one `write` per line: a `kill -9` can tear the last
//! line at most, and a torn line is skipped when reading. No line is ever changed, so two processes that
//! have the same session open do not destroy each other's part.

use std::ffi::OsStr;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom, Write as _};
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::options::Settings;

/// How much of a file is read to list it. Cwd and title come first and fit: both are limited in length.
const HEAD: u64 = 512 * 1024;

/// One line of a session's file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(super) enum Entry {
    /// Written when the session is made, and again when it is opened with other directories; the last counts.
    Place { cwd: String, directories: Vec<String> },
    /// What the user chose; the last counts.
    Settings(Settings),
    /// The title, written before the first prompt.
    Title { title: String },
    /// One `session/update`, to be replayed as it is.
    Update { update: Value },
}

/// What is known of a session without its history.
#[derive(Debug, Default)]
pub(super) struct Saved {
    pub(super) cwd: String,
    pub(super) directories: Vec<String>,
    pub(super) settings: Settings,
    pub(super) title: Option<String>,
}

/// One row of a listing. Rows are ordered by time, newest first, then by id.
#[derive(Debug)]
pub(super) struct Listed {
    pub(super) id: String,
    pub(super) changed_micros: u64,
    pub(super) saved: Saved,
}

/// The directory of session files.
#[derive(Debug, Clone)]
pub(super) struct Store {
    directory: PathBuf,
}

impl Store {
    /// The store in the user's state directory, or why there is none.
    pub(super) fn in_home() -> Result<Self, String> {
        let home = std::env::var_os("HOME").map(PathBuf::from).filter(|home| home.is_absolute());
        let home = home.ok_or("HOME is not set to an absolute path; set it, sessions are kept beneath it")?;
        Ok(Self { directory: home.join(".local/state/conductor-demo") })
    }

    /// Makes the file of a new session.
    pub(super) fn create(&self, id: &str, place: &Entry) -> io::Result<()> {
        let mut builder = DirBuilder::new();
        builder.recursive(true);
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder.create(&self.directory)?;
        #[cfg(unix)]
        {
            // It may have existed before, made by someone with a wide umask.
            let private = std::os::unix::fs::PermissionsExt::from_mode(0o700);
            std::fs::set_permissions(&self.directory, private)?;
        }
        let path =
            self.path(id).ok_or_else(|| io::Error::other("a session id of ours was not well formed"))?;
        let mut options = OpenOptions::new();
        options.append(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        Record { file: options.open(path)? }.append(place)
    }

    /// Opens a session's file for appending; `None` if there is no such session.
    pub(super) fn record(&self, id: &str) -> io::Result<Option<Record>> {
        let Some(path) = self.path(id) else { return Ok(None) };
        let Some(mut file) = found(OpenOptions::new().read(true).append(true).open(path))? else {
            return Ok(None);
        };
        // A torn last line must not swallow the next one.
        if file.seek(SeekFrom::End(0))? > 0 {
            let mut last = [0];
            file.seek(SeekFrom::End(-1))?;
            file.read_exact(&mut last)?;
            if last != *b"\n" {
                file.write_all(b"\n")?;
            }
        }
        Ok(Some(Record { file }))
    }

    /// What is known of a session; `None` if there is no such session.
    pub(super) fn saved(&self, id: &str) -> io::Result<Option<Saved>> {
        let Some(path) = self.path(id) else { return Ok(None) };
        let Some(file) = found(File::open(path))? else { return Ok(None) };
        summary(Entries { reader: BufReader::new(file) })
    }

    /// The entries of a session, oldest first; `None` if there is no such session.
    pub(super) fn entries(&self, id: &str) -> io::Result<Option<Entries<File>>> {
        let Some(path) = self.path(id) else { return Ok(None) };
        let file = found(File::open(path))?;
        Ok(file.map(|file| Entries { reader: BufReader::new(file) }))
    }

    /// Every session, newest first. A file that cannot be read is left out: it is one session's trouble.
    pub(super) fn list(&self) -> io::Result<Vec<Listed>> {
        let mut listed = Vec::new();
        let Some(directory) = found(std::fs::read_dir(&self.directory))? else { return Ok(listed) };
        for item in directory {
            let path = item?.path();
            let id =
                path.file_stem().and_then(OsStr::to_str).filter(|id| self.path(id).as_ref() == Some(&path));
            let Some(id) = id else { continue };
            let Ok(file) = File::open(&path) else { continue };
            let Ok(changed) = file.metadata().and_then(|metadata| metadata.modified()) else { continue };
            let head = Entries { reader: BufReader::new(file.take(HEAD)) };
            let Ok(Some(saved)) = summary(head) else { continue };
            listed.push(Listed { id: id.to_owned(), changed_micros: micros(changed), saved });
        }
        listed.sort_by(|a, b| b.changed_micros.cmp(&a.changed_micros).then_with(|| a.id.cmp(&b.id)));
        Ok(listed)
    }

    /// Deletes a session; one that does not exist is as good as deleted.
    pub(super) fn delete(&self, id: &str) -> io::Result<()> {
        match self.path(id) {
            Some(path) => found(std::fs::remove_file(path)).map(|_| ()),
            None => Ok(()),
        }
    }

    /// The file of a session. Ids come from clients, so only ids that we could have made name a file.
    fn path(&self, id: &str) -> Option<PathBuf> {
        is_session_id(id).then(|| self.directory.join(format!("{id}.jsonl")))
    }
}

/// Makes a session id.
pub(super) fn new_session_id() -> String {
    format!("demo-{}", uuid::Uuid::now_v7().simple())
}

/// Whether we could have made this id: nothing else may become part of a path.
pub(super) fn is_session_id(id: &str) -> bool {
    id.strip_prefix("demo-").is_some_and(|random| {
        random.len() == 32 && random.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    })
}

/// The file of one session, open for appending.
#[derive(Debug)]
pub(super) struct Record {
    file: File,
}

impl Record {
    /// Appends one entry with one write.
    pub(super) fn append(&mut self, entry: &Entry) -> io::Result<()> {
        let mut line = serde_json::to_vec(entry)?;
        line.push(b'\n');
        self.file.write_all(&line)
    }

    /// Appends one update, borrowed: an update may be megabytes long.
    pub(super) fn append_update(&mut self, update: &Value) -> io::Result<()> {
        self.file.write_all(format!("{{\"type\":\"update\",\"update\":{update}}}\n").as_bytes())
    }

    /// Bytes kept so far.
    pub(super) fn size(&self) -> io::Result<u64> {
        self.file.metadata().map(|metadata| metadata.len())
    }
}

/// Reads entries, skipping lines that are none.
#[derive(Debug)]
pub(super) struct Entries<R> {
    reader: BufReader<R>,
}

impl<R: io::Read> Iterator for Entries<R> {
    type Item = io::Result<Entry>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut line = Vec::new();
        loop {
            line.clear();
            match self.reader.read_until(b'\n', &mut line) {
                Ok(0) => return None,
                Ok(_) => {
                    if let Ok(entry) = serde_json::from_slice(&line) {
                        return Some(Ok(entry));
                    }
                }
                Err(error) => return Some(Err(error)),
            }
        }
    }
}

/// What the entries say of the session. Without a place it never came to life.
fn summary(entries: Entries<impl io::Read>) -> io::Result<Option<Saved>> {
    let mut saved = Saved::default();
    let mut placed = false;
    for entry in entries {
        match entry? {
            Entry::Place { cwd, directories } => {
                (saved.cwd, saved.directories, placed) = (cwd, directories, true);
            }
            Entry::Settings(settings) => saved.settings = settings.checked(),
            Entry::Title { title } => saved.title = Some(title),
            Entry::Update { .. } => {}
        }
    }
    Ok(placed.then_some(saved))
}

fn found<T>(outcome: io::Result<T>) -> io::Result<Option<T>> {
    match outcome {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn micros(time: SystemTime) -> u64 {
    // Before 1970 counts as 1970: only the order of a listing hangs on it.
    time.duration_since(UNIX_EPOCH).map_or(0, |since| u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
}

/// Now, in microseconds since 1970.
pub(super) fn now_micros() -> u64 {
    micros(SystemTime::now())
}

/// A time in ISO 8601, UTC, to the second.
pub(super) fn iso8601(micros: u64) -> String {
    let seconds = micros / 1_000_000;
    let (days, of_day) = (seconds / 86_400, seconds % 86_400);
    // Days are counted from 1 March of the year 0, so that the leap day is the last day of a year; 146,097 days
    // make 400 years.
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (of_day / 3_600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ids_of_our_making_name_files() {
        assert!(is_session_id(&new_session_id()));
        for hostile in ["", "demo-", "demo-..", "../x", "demo-/etc/passwd", "demo-a\0", "demo-a\nb"] {
            assert!(!is_session_id(hostile), "{hostile:?}");
        }
        assert!(!is_session_id(&format!("demo-{}/", "a".repeat(31))));
        assert!(!is_session_id(&format!("demo-{}", "A".repeat(32))));
    }

    #[test]
    fn times_are_written_as_people_read_them() {
        assert_eq!(iso8601(0), "1970-01-01T00:00:00Z");
        assert_eq!(iso8601(951_782_399_000_000), "2000-02-28T23:59:59Z");
        assert_eq!(iso8601(951_782_400_000_000), "2000-02-29T00:00:00Z");
        assert_eq!(iso8601(1_794_787_199_999_999), "2026-11-15T23:59:59Z");
    }
}
