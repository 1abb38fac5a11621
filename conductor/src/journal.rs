//! The local, crash-safe log that every frame enters before it is forwarded.
//!
//! Whoever has a run encodes it into a [`Batch`] and appends it: one write into
//! the page cache, under the journal's lock, which a killed conductor does not
//! lose. One thread syncs for all; an effect waits for a sync that began after
//! its write. Only what is synced is shipped to the ledger, so that the ledger
//! never knows of a number that a power loss lets us use again.
//!
//! Files in the journal's directory: `id`, the segments `000000000001.seg` and so on,
//! `shipped` (up to where the ledger had it when a segment was freed last), `heads`
//! (numbers used in what was freed), `reserve` (room for the last word on a full disk), and `quarantine/` (copies of what
//! became unreadable).
//!
//! `format` is what lies on disk, `batch` encodes it, `cursor` reads it, `disk` is
//! the file system, `log` the state behind the lock, `sync` the thread, `index` where
//! streams are, `left` what could not be written in time, `places` what becomes of places
//! that were given out, `recover` what happens at start and `findings` what it may find.
//! `erase` takes words out of it for good.

use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
};

use bytes::Bytes;
use tokio::sync::watch;
use uuid::Uuid;

pub use self::{
    batch::Batch,
    erase::Erasure,
    figures::{Figures, Frames},
    findings::Finding,
    format::Position,
    places::Standing,
    recover::Recovered,
    settings::Settings,
};
use self::{disk::Disk, log::Log};
pub use crate::config::Recording;
use crate::record::{Destination, Origin, Stream};
use crate::redact::Redaction;

mod batch;
mod cursor;
mod disk;
mod erase;
mod figures;
mod findings;
mod format;
mod heads;
mod index;
mod left;
mod log;
mod places;
mod reader;
mod recover;
mod settings;
mod shipping;
mod sync;
#[cfg(test)]
mod tests;

/// What an append is for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Frames that are passed on once they are written.
    #[default]
    Stream,
    /// Frames after which something happens in the world; they wait for
    /// [`Journal::released`].
    Effect,
    /// Stopping something: never refused for want of room or by the mode.
    Stop,
}

/// An append that was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ticket(u64);

/// An append that was not made, or not released.
#[derive(Debug)]
pub struct Refused {
    /// What was to be written; empty if it was written but not released.
    pub batch: Batch,
    /// What sort of reason it is.
    pub cause: Cause,
    /// The reason, with its remedy, for people.
    pub why: Arc<str>,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

impl std::error::Error for Refused {}

/// Sorts of reasons for a refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cause {
    /// Too much is not synced yet; try again after [`Journal::accepting`].
    Busy,
    /// The ledger is too far behind.
    Cap,
    /// The disk is full or failing.
    Disk,
    /// In strict mode: the ledger is down.
    Ledger,
    /// The journal is closed.
    Closed,
}

/// Why a journal cannot be opened or read.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The system refused.
    #[error("cannot {verb} {}: {error}", path.display())]
    Io {
        /// What was tried.
        verb: &'static str,
        /// With what.
        path: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// A later version wrote it.
    #[error(
        "{} has version {version} of the journal's format, which this conductor does not know; \
         use the version that wrote it, or a later one",
        path.display()
    )]
    Newer {
        /// The segment.
        path: PathBuf,
        /// Its version.
        version: u32,
    },
    /// Others can read or change it.
    #[error("{} is open to other users (mode {mode:04o}); run chmod 700 on it", path.display())]
    Shared {
        /// The directory.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
}

impl JournalError {
    fn io(verb: &'static str, path: &Path, error: io::Error) -> Self {
        Self::Io { verb, path: path.to_path_buf(), error }
    }
}

/// A run as it was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// What it belongs to.
    pub stream: Stream,
    /// Number of its first frame.
    pub first_seq: u64,
    /// How many frames there are.
    pub count: u32,
    /// When it was recorded, in microseconds since 1970.
    pub at_us: i64,
    /// Who made the frames.
    pub origin: Origin,
    /// Whom they are for.
    pub to: Destination,
    /// By index in the run: the id a frame is forwarded with.
    pub outgoing: Vec<(u32, u64)>,
    /// The frames, each followed by a newline.
    pub frames: Bytes,
    /// Words were erased: lines of blanks stand for frames.
    pub erased: bool,
    /// Just behind the record.
    pub end: Position,
}

impl Record {
    /// The frames without their newlines.
    pub fn lines(&self) -> impl Iterator<Item = &[u8]> {
        let mut rest: &[u8] = &self.frames;
        std::iter::from_fn(move || {
            let end = memchr::memchr(b'\n', rest)?;
            let (line, behind) = (&rest[..end], &rest[end + 1..]);
            rest = behind;
            Some(line)
        })
    }

    /// Whether one of these lines stands for a frame that was erased.
    pub fn is_erased(&self, line: &[u8]) -> bool {
        self.erased && line.iter().all(|byte| *byte == b' ')
    }
}

/// How the journal does.
#[derive(Debug, Clone)]
pub struct Status {
    /// Bytes that the ledger has not taken.
    pub unshipped: u64,
    /// Most of them.
    pub cap: u64,
    /// Bytes of all segments.
    pub bytes: u64,
    /// How many segments there are.
    pub segments: usize,
    /// Bytes that are written but not synced.
    pub unsynced: u64,
    /// Frames written since the start, by where from and where to.
    pub frames: Frames,
    /// Bytes written since the start.
    pub appended: u64,
    /// Frames that passed without being recorded, since the start.
    pub unrecorded: u64,
    /// Parts of the journal that cannot be read.
    pub damaged: u64,
    /// Why effects are refused.
    pub refusing: Option<Arc<str>>,
    /// About when the oldest record was made that the ledger has not taken.
    pub oldest_unshipped_us: Option<i64>,
    /// Up to where the ledger has it.
    pub shipped: Position,
    /// Where the journal ends.
    pub end: Position,
}

/// What the handles and the thread share.
struct Shared {
    dir: PathBuf,
    id: Uuid,
    recording: Recording,
    redaction: Redaction,
    log: Mutex<Log>,
    /// Wakes the thread.
    wake: Condvar,
    /// Tickets up to here are released.
    released: AtomicU64,
    synced: watch::Sender<Position>,
    written: watch::Sender<Position>,
    refusing: watch::Sender<Option<Arc<str>>>,
    /// Something changed that someone may wait for.
    progress: watch::Sender<()>,
    figures: Figures,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells those who follow up to where the journal is written. Another append
    /// may have come first.
    fn wrote(&self, end: Position) {
        self.written.send_if_modified(|written| end > std::mem::replace(written, end.max(*written)));
    }

    /// Tells everybody who waits how things stand.
    fn publish(&self, log: &Log) {
        let strict = self.recording == Recording::Strict;
        self.released.store(if strict { log.shipped_no } else { log.synced }, Ordering::Release);
        self.synced.send_if_modified(|synced| std::mem::replace(synced, log.synced_end) != log.synced_end);
        let refusing = log.refusing();
        self.refusing.send_if_modified(|old| std::mem::replace(old, refusing.clone()) != refusing);
        self.progress.send_replace(());
    }
}

/// A handle to the journal.
#[derive(Clone)]
pub struct Journal(Arc<Handle>);

impl fmt::Debug for Journal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Journal").field("id", &self.0.shared.id).finish_non_exhaustive()
    }
}

struct Handle {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Journal {
    /// Opens the journal in a directory, or begins one, and starts its thread.
    /// The caller holds the state directory, so that nobody else does the same.
    pub fn open(dir: &Path, settings: Settings) -> Result<(Self, Recovered), JournalError> {
        Self::open_on(dir, settings, Arc::new(disk::Kernel))
    }

    fn open_on(
        dir: &Path,
        settings: Settings,
        disk: Arc<dyn Disk>,
    ) -> Result<(Self, Recovered), JournalError> {
        let mut recovered = Recovered::default();
        let id = recover::prepare(dir, &*disk, &mut recovered)?;
        let (recording, redaction) = (settings.recording, settings.redaction.clone());
        let mut log = Log::new(dir.to_path_buf(), id, settings, disk);
        recover::recover(&mut log, &mut recovered)?;
        if let Err(failure) = log.make_reserve() {
            log.fail(failure, false);
        }
        for finding in &recovered.findings {
            tracing::warn!(journal.finding = %finding, "the journal is not as it was left");
        }
        let shared = Arc::new(Shared {
            dir: dir.to_path_buf(),
            id,
            recording,
            redaction,
            wake: Condvar::new(),
            released: AtomicU64::new(0),
            synced: watch::Sender::new(log.synced_end),
            written: watch::Sender::new(log.end),
            refusing: watch::Sender::new(log.refusing()),
            progress: watch::Sender::new(()),
            figures: Figures::default(),
            log: Mutex::new(log),
        });
        let thread = thread::Builder::new().name("journal-sync".to_owned());
        let started = thread.spawn({
            let shared = shared.clone();
            move || sync::run(&shared)
        });
        let thread = started.map_err(|error| JournalError::io("start the thread of", dir, error))?;
        Ok((Self(Arc::new(Handle { shared, thread: Mutex::new(Some(thread)) })), recovered))
    }

    /// What effects wait for.
    pub fn recording(&self) -> Recording {
        self.0.shared.recording
    }

    /// How secrets are kept out of what is written here.
    pub fn redaction(&self) -> &Redaction {
        &self.0.shared.redaction
    }

    /// The journal's id. Every segment carries it, and the ledger knows it.
    pub fn id(&self) -> Uuid {
        self.0.shared.id
    }

    /// Writes a batch. When this returns, a killed conductor does not lose it.
    pub fn append(&self, batch: Batch, class: Class) -> Result<Ticket, Refused> {
        let shared = &*self.0.shared;
        let mut log = shared.lock();
        let troubled = log.is_refusing();
        let outcome = log.append(batch, class);
        let urgent = log.wanted > log.synced
            || log.unsynced_bytes >= log.settings.sync_bytes
            || (log.unsynced.len() == 1 && !log.looks_again)
            || log.chores;
        let end = log.end;
        if troubled != log.is_refusing() || log.alarm() {
            shared.publish(&log);
            shared.wake.notify_one();
        } else if urgent && log.idle {
            shared.wake.notify_one();
        }
        drop(log);
        if outcome.is_ok() && shared.written.receiver_count() > 0 {
            shared.wrote(end);
        }
        outcome.map(Ticket).inspect_err(|refused| shared.figures.refusals.of(refused.cause).one())
    }

    /// Takes what the owner of a stream could not write before it went. It is
    /// written as soon as that works; its numbers are used from now on.
    pub fn leave(&self, batch: Batch) {
        let shared = &*self.0.shared;
        let mut log = shared.lock();
        log.leave(batch);
        shared.publish(&log);
        shared.wake.notify_one();
    }

    /// Returns once the append may have its effect: when it is synced, in
    /// strict mode when the ledger has it, in best-effort mode at once.
    pub async fn released(&self, ticket: Ticket) -> Result<(), Refused> {
        let shared = &*self.0.shared;
        let mut progress = shared.progress.subscribe();
        loop {
            progress.mark_unchanged();
            if self.is_released(ticket) {
                return Ok(());
            }
            if let Some((cause, why)) = self.given_up(ticket) {
                return Err(Refused { batch: Batch::new(), cause, why });
            }
            if progress.changed().await.is_err() {
                let why = "the journal is closed; the conductor is stopping".into();
                return Err(Refused { batch: Batch::new(), cause: Cause::Closed, why });
            }
        }
    }

    /// Why a ticket is not waited for any longer. Also says that it is waited
    /// for, whatever its class.
    fn given_up(&self, ticket: Ticket) -> Option<(Cause, Arc<str>)> {
        let mut log = self.0.shared.lock();
        if log.wanted < ticket.0 {
            log.wanted = ticket.0;
            self.0.shared.wake.notify_one();
        }
        if log.closed {
            return Some((Cause::Closed, "the journal is closed; the conductor is stopping".into()));
        }
        if let Some(trouble) = &log.trouble
            && log.synced < ticket.0
            && trouble.since.elapsed() >= log.settings.refuse_after
        {
            return Some((Cause::Disk, trouble.why.clone()));
        }
        let down = log.ledger_down.as_ref().filter(|_| self.0.shared.recording == Recording::Strict);
        down.map(|why| (Cause::Ledger, why.clone()))
    }

    /// Whether the append may have its effect.
    pub fn is_released(&self, ticket: Ticket) -> bool {
        let shared = &*self.0.shared;
        shared.recording == Recording::BestEffort || shared.released.load(Ordering::Acquire) >= ticket.0
    }

    /// Why effects are refused now; in best-effort mode they never are.
    pub fn refusing(&self) -> Option<Arc<str>> {
        let shared = &*self.0.shared;
        if shared.recording == Recording::BestEffort { None } else { shared.refusing.borrow().clone() }
    }

    /// Returns when a refused stream is worth another try.
    pub async fn accepting(&self) {
        let shared = &*self.0.shared;
        let mut progress = shared.progress.subscribe();
        loop {
            progress.mark_unchanged();
            if shared.lock().accepts() || progress.changed().await.is_err() {
                return;
            }
        }
    }

    /// The number that the stream's next frame gets; 1 if it is new.
    pub fn next_seq(&self, stream: Uuid) -> u64 {
        self.0.shared.lock().index.next_seq(stream)
    }

    /// Every session that it knows, with the last number used in it.
    pub fn sessions(&self) -> Vec<(Uuid, u64)> {
        self.0.shared.lock().index.sessions().collect()
    }

    /// Up to where the journal is synced.
    pub fn synced(&self) -> watch::Receiver<Position> {
        self.0.shared.synced.subscribe()
    }

    /// Up to where the journal is written.
    pub fn written(&self) -> watch::Receiver<Position> {
        let shared = &*self.0.shared;
        let mut written = shared.written.subscribe();
        // While nobody followed, nobody was told.
        let end = shared.lock().end;
        shared.wrote(end);
        written.mark_unchanged();
        written
    }

    /// The synced records behind a position in order, about `max_bytes` of them
    /// but at least one if there is any; and where to go on.
    pub fn read(&self, from: Position, max_bytes: usize) -> Result<(Vec<Record>, Position), JournalError> {
        self.0.shared.read(from, max_bytes)
    }

    /// A stream's records that have frames from `from_seq` on, as far as the
    /// journal still has them; read on until there are none. The first may
    /// begin before `from_seq`.
    pub fn read_stream(
        &self,
        stream: Uuid,
        from_seq: u64,
        max_bytes: usize,
    ) -> Result<Vec<Record>, JournalError> {
        self.0.shared.read_stream(stream, from_seq, max_bytes)
    }

    /// Takes words out of what it still holds, for good, and returns how many records
    /// had some. Reads all of it, and blocks for as long as that takes. What goes has to
    /// be in the ledger already: it gets there no more.
    pub fn erase(&self, erasure: &Erasure) -> Result<u64, JournalError> {
        self.0.shared.erase(erasure)
    }

    /// From here on it has everything that it ever had synced: what is behind this is
    /// what [`Journal::read`] can give.
    pub fn oldest(&self) -> Position {
        self.0.shared.lock().freed
    }

    /// A place behind which is all that was recorded at a time or later, and not much else.
    pub fn since(&self, at_us: i64) -> Position {
        self.0.shared.lock().since(at_us)
    }

    /// Whether reading can go on at a place that was given out earlier, perhaps by another.
    /// May read a segment.
    pub fn standing(&self, at: Position) -> Result<Standing, JournalError> {
        self.0.shared.standing(at)
    }

    /// The ledger has everything up to here.
    pub fn shipped(&self, upto: Position) {
        let shared = &*self.0.shared;
        let mut log = shared.lock();
        log.shipped_to(upto);
        shared.publish(&log);
        shared.wake.notify_one();
    }

    /// The ledger does not answer, or does again.
    pub fn ledger_down(&self, why: Option<String>) {
        let shared = &*self.0.shared;
        let mut log = shared.lock();
        log.ledger_down = why.map(Into::into);
        shared.publish(&log);
        shared.wake.notify_one();
    }

    /// What it has counted.
    pub fn figures(&self) -> &Figures {
        &self.0.shared.figures
    }

    /// How the journal does.
    pub fn status(&self) -> Status {
        self.0.shared.lock().status()
    }

    /// Syncs what is written and stops the thread. Blocks for as long as that
    /// takes. Nothing is taken any more.
    pub fn close(&self) {
        self.0.close();
    }
}

impl Handle {
    fn close(&self) {
        {
            let mut log = self.shared.lock();
            log.closing = true;
            if let Some(trouble) = &mut log.trouble {
                trouble.retry_at = std::time::Instant::now();
            }
            self.shared.wake.notify_one();
        }
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the journal's thread has panicked");
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.close();
    }
}
