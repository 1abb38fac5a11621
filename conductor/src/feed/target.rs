//! Where events go: stdout, a file, or an address. Whatever is handed over is whole lines,
//! and counts as delivered only when it is there.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read as _, Seek as _, SeekFrom, Write as _},
    os::unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use http::StatusCode;
use tokio::task::spawn_blocking;
use url::Url;

use crate::{config, fetch};

/// How lines of JSON are called on the way to an address.
const LINES: &str = "application/x-ndjson";

/// So far back the end of the last whole line is looked for.
const LONGEST_LINE: u64 = 1 << 20;

/// Why events were not delivered.
#[derive(Debug)]
pub enum Undelivered {
    /// There were too many of them at once.
    TooLarge(String),
    /// Something else.
    Failed(String),
}

impl Undelivered {
    /// The reason, for people.
    pub fn why(&self) -> &str {
        match self {
            Self::TooLarge(why) | Self::Failed(why) => why,
        }
    }
}

/// Where events go.
#[derive(Debug)]
pub enum Target {
    /// To whoever reads what the service prints.
    Stdout,
    /// To a file.
    File(Appended),
    /// To an address.
    Address {
        /// The address, which may be a secret: never shown.
        url: Url,
        /// Headers for it.
        headers_file: Option<PathBuf>,
        /// A CA of its own.
        ca_file: Option<PathBuf>,
    },
}

impl Target {
    /// The place that the configuration names; it was checked.
    pub fn new(feed: &config::Feed) -> Option<Self> {
        if feed.is_stdout() {
            return Some(Self::Stdout);
        }
        if let Some(path) = feed.file() {
            return Some(Self::File(Appended { path, open: None }));
        }
        let (headers_file, ca_file) = (feed.headers_file.clone(), feed.ca_file.clone());
        Some(Self::Address { url: Url::parse(&feed.to).ok()?, headers_file, ca_file })
    }

    /// What it is, without secrets.
    pub fn shown(&self) -> String {
        match self {
            Self::Stdout => "stdout".to_owned(),
            Self::File(file) => file.path.display().to_string(),
            Self::Address { url, .. } => {
                format!("{}://{}/…", url.scheme(), url.host_str().unwrap_or_default())
            }
        }
    }

    /// Hands over whole lines.
    pub async fn deliver(&mut self, lines: String) -> Result<(), Undelivered> {
        let failed = |why: String| Undelivered::Failed(why);
        match self {
            Self::Stdout => {
                let written = spawn_blocking(move || {
                    let mut out = io::stdout().lock();
                    out.write_all(lines.as_bytes()).and_then(|()| out.flush())
                });
                let written = written.await.map_err(|error| failed(error.to_string()))?;
                written.map_err(|error| failed(format!("cannot write to stdout: {error}")))
            }
            Self::File(file) => {
                let mut file_then = std::mem::take(file);
                let written = spawn_blocking(move || {
                    let written = file_then.append(lines.as_bytes());
                    (file_then, written)
                });
                let (file_then, written) = written.await.map_err(|error| failed(error.to_string()))?;
                *file = file_then;
                let shown = file.path.display();
                written.map_err(|error| failed(format!("cannot write to {shown}: {error}")))
            }
            Self::Address { url, headers_file, ca_file } => {
                let headers = match headers_file.clone() {
                    Some(file) => {
                        let read = spawn_blocking(move || fetch::headers("feed.headers_file", &file)).await;
                        read.map_err(|error| failed(error.to_string()))?.map_err(failed)?
                    }
                    None => Vec::new(),
                };
                let sent = fetch::deliver(url, ca_file.as_deref(), &headers, LINES, lines).await;
                sent.map_err(|refused| match refused.status {
                    Some(StatusCode::PAYLOAD_TOO_LARGE) => Undelivered::TooLarge(refused.why),
                    _ => Undelivered::Failed(refused.why),
                })
            }
        }
    }
}

/// A file that lines are appended to, and that others may move away.
#[derive(Debug, Default)]
pub struct Appended {
    path: PathBuf,
    open: Option<File>,
}

impl Appended {
    /// Appends lines, and waits until they are on the medium. If that fails, nothing of them is
    /// left in the file.
    fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        let mut file = match self.open.take() {
            Some(file) if is_at(&file, &self.path) => file,
            _ => open(&self.path)?,
        };
        let before = file.metadata()?.len();
        let written = file.write_all(lines).and_then(|()| file.sync_data());
        if let Err(error) = written {
            file.set_len(before)?;
            return Err(error);
        }
        self.open = Some(file);
        Ok(())
    }
}

/// Whether a file is still the one of this name.
fn is_at(file: &File, path: &Path) -> bool {
    let same = || {
        let (open, there) = (file.metadata()?, std::fs::metadata(path)?);
        Ok::<_, io::Error>((open.dev(), open.ino()) == (there.dev(), there.ino()))
    };
    same().unwrap_or(false)
}

/// Opens a file at its end, behind its last whole line: a killed conductor may have left
/// half of one, which is told again.
fn open(path: &Path) -> io::Result<File> {
    let mut file = OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    let (length, mut tail) = (metadata.len(), Vec::new());
    let from = length.saturating_sub(LONGEST_LINE);
    file.seek(SeekFrom::Start(from))?;
    (&file).take(LONGEST_LINE).read_to_end(&mut tail)?;
    let whole = memchr::memrchr(b'\n', &tail).map_or(0, |at| at as u64 + 1);
    if from + whole < length && (whole > 0 || from == 0) {
        file.set_len(from + whole)?;
    }
    Ok(file)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _};

    use super::*;

    #[test]
    fn a_file_is_private_follows_its_name_and_has_whole_lines() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("events");
        let mut file = Appended { path: path.clone(), open: None };
        file.append(b"one\n").unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let moved = temp.path().join("events.1");
        fs::rename(&path, &moved).unwrap();
        file.append(b"two\n").unwrap();
        fs::remove_file(&path).unwrap();
        file.append(b"three\n").unwrap();
        assert_eq!(fs::read_to_string(&moved).unwrap(), "one\n");
        assert_eq!(fs::read_to_string(&path).unwrap(), "three\n");
        fs::write(&path, "three\nfo").unwrap();
        Appended { path: path.clone(), open: None }.append(b"four\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "three\nfour\n");
    }

    #[test]
    fn what_is_no_file_is_refused() {
        let mut file = Appended { path: "/dev/null".into(), open: None };
        assert!(file.append(b"x\n").unwrap_err().to_string().contains("regular"));
    }
}
