//! The fake agent's own record of every line it received and sent.
//!
//! It is the oracle of the tests: what stands here was really on the agent's
//! pipes, whatever the conductor says about it. One file per process, one JSON
//! object per line, appended before the bytes go out.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

use std::{
    fs::{self, File, OpenOptions},
    io::Write as _,
    path::Path,
    sync::Mutex,
    time::SystemTime,
};

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Longer lines are kept by length and first bytes only.
const KEEP: usize = 1 << 20;

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A line came in on stdin.
    In,
    /// Bytes went out on stdout.
    Out,
    /// Something else worth knowing: start, end of input, a signal.
    Event,
}

/// One entry of the ledger.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Entry {
    /// Process that wrote it.
    pub pid: u32,
    /// What happened.
    pub kind: Kind,
    /// When, in microseconds since 1970: after what came in was read, before what went out
    /// was written.
    #[serde(default)]
    pub at_us: i64,
    /// Length in bytes, without the newline.
    pub len: usize,
    /// The text, if it is UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Hexadecimal bytes, if it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hex: Option<String>,
}

impl Entry {
    /// The bytes of the line.
    pub fn bytes(&self) -> Vec<u8> {
        match (&self.text, &self.hex) {
            (Some(text), _) => text.clone().into_bytes(),
            (None, Some(hex)) => from_hex(hex),
            (None, None) => Vec::new(),
        }
    }

    /// The line as JSON, if it is.
    pub fn json(&self) -> Option<Value> {
        serde_json::from_slice(&self.bytes()).ok()
    }

    /// The method of the message, if it has one.
    pub fn method(&self) -> Option<String> {
        Some(self.json()?.get("method")?.as_str()?.to_owned())
    }
}

/// Writes entries.
#[derive(Debug)]
pub struct Ledger {
    file: Option<Mutex<File>>,
}

impl Ledger {
    /// A ledger in `dir`, or one that keeps nothing.
    pub fn create(dir: Option<&Path>) -> Self {
        let file = dir.map(|dir| {
            let path = dir.join(format!("{}.ndjson", std::process::id()));
            let file = OpenOptions::new().create(true).append(true).open(&path);
            Mutex::new(file.unwrap_or_else(|error| panic!("cannot write {}: {error}", path.display())))
        });
        Self { file }
    }

    /// Appends one entry.
    pub fn write(&self, kind: Kind, bytes: &[u8]) {
        let Some(file) = &self.file else { return };
        let kept = &bytes[..bytes.len().min(KEEP)];
        let text = std::str::from_utf8(kept).ok().map(str::to_owned);
        let hex = text.is_none().then(|| to_hex(kept));
        let entry = Entry { pid: std::process::id(), kind, at_us: now_us(), len: bytes.len(), text, hex };
        let mut line = serde_json::to_vec(&entry).unwrap();
        line.push(b'\n');
        file.lock().unwrap().write_all(&line).expect("the ledger must be writable");
    }
}

/// The time by a clock that is none of the conductor's.
fn now_us() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    i64::try_from(since.as_micros()).unwrap()
}

/// All entries of all processes that wrote into `dir`, oldest process first.
/// A line that is still being written is left out.
pub fn read(dir: &Path) -> Vec<Entry> {
    let mut all = Vec::new();
    each_process(dir, |entries| all.extend(entries));
    all
}

/// The same, one process after the other, for more than fits into memory.
pub fn each_process(dir: &Path, mut show: impl FnMut(Vec<Entry>)) {
    let mut files: Vec<_> =
        fs::read_dir(dir).map(|entries| entries.filter_map(Result::ok).collect()).unwrap_or_default();
    files.sort_by_key(|entry: &fs::DirEntry| entry.metadata().and_then(|meta| meta.created()).ok());
    for file in files {
        let text = fs::read_to_string(file.path()).unwrap_or_default();
        show(text.lines().filter_map(|line| serde_json::from_str::<Entry>(line).ok()).collect());
    }
}

/// Hexadecimal text of bytes.
pub fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Bytes of hexadecimal text.
pub fn from_hex(text: &str) -> Vec<u8> {
    let digits: Vec<char> = text.chars().filter(|c| !c.is_whitespace()).collect();
    digits
        .chunks(2)
        .map(|pair| u8::from_str_radix(&pair.iter().collect::<String>(), 16).expect("hexadecimal digits"))
        .collect()
}
