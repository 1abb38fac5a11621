//! Carries what the journal has synced into the database, batch after batch,
//! one in flight. Whatever happens to the database only makes the journal
//! longer: the connection is made anew, the password read again, and the
//! position that was committed with the last batch says where to go on.

use std::{
    collections::VecDeque,
    fs,
    hash::{BuildHasher as _, RandomState},
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{
    pin, select,
    sync::watch,
    task::{spawn_blocking, yield_now},
    time::{sleep, sleep_until},
};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::{
    error::LedgerError,
    evidence::signer::Signer,
    row::{Reached, Row, Stored},
    search::Pace,
    settings::{Place, Settings},
    sink::{Sink, Written},
    states::States,
};
use crate::{
    journal::{Journal, Position, Record, Recording},
    record::now_us,
};

/// About so many bytes are read from the journal at once. A batch is no larger,
/// unless one record is.
const BATCH_BYTES: usize = 2 << 20;

/// A batch has about so many rows at most. Larger ones are hardly faster and
/// need more memory.
const BATCH_ROWS: usize = 8192;

/// So many frames are projected before others get their turn.
const TURN: usize = 32;

/// The pause after the first failure; it doubles.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// The longest pause between attempts.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// The pause after a batch when there is nothing left to carry over. A turn is synced several
/// times, and to carry each over by itself would take disk and processor from that very turn. None
/// where effects wait for the ledger.
const REST: Duration = Duration::from_millis(100);

/// So much within a look is a burst. While one lasts, agents, editors and the relay want the
/// processors more than the ledger does …
const BURST: u64 = 1 << 20;

/// … so it looks every so often whether it is over …
const LOOK: Duration = Duration::from_millis(50);

/// … but waits no longer than this, and then not again until it has caught up.
const LONGEST_WAIT: Duration = Duration::from_secs(2);

/// When the service stops, what is synced is still carried over, but only for
/// so long: the journal keeps the rest.
const FLUSH: Duration = Duration::from_secs(5);

/// Another reason is told at most so often while the database is down.
const TELL_AGAIN: Duration = Duration::from_secs(60);

/// The months ahead are looked after so often.
const PREPARE: Duration = Duration::from_secs(12 * 3600);

/// How the shipper does.
#[derive(Debug, Clone, Default)]
pub struct Progress {
    /// Why nothing can be written at the moment; `None` if it can.
    pub down: Option<Arc<str>>,
    /// Since when that is so, in microseconds since 1970.
    pub since_us: i64,
    /// Where the ledger is, once it was asked.
    pub reached: Option<Position>,
    /// Up to here it can be searched.
    pub indexed: Option<Position>,
    /// What was written since the start.
    pub written: Written,
    /// Batches that were committed since the start.
    pub batches: u64,
    /// Attempts that failed since the start.
    pub failures: u64,
    /// A damaged file that was moved aside.
    pub set_aside: Option<PathBuf>,
}

/// The shipper's state.
pub(super) struct Shipper {
    settings: Arc<Settings>,
    journal: Journal,
    progress: watch::Sender<Progress>,
    stop: CancellationToken,
    states: States,
    /// Read from the journal, not yet in a batch.
    queue: VecDeque<Record>,
    /// Up to here the journal was read.
    read: Position,
    /// Made, but not known to be committed.
    pending: Option<Batch>,
    signer: Signer,
    pause: Duration,
    told: Option<Instant>,
}

/// What is written in one transaction.
struct Batch {
    /// It goes on from here …
    start: Position,
    /// … to here.
    end: Position,
    rows: Vec<Row>,
}

impl Shipper {
    pub(super) fn new(
        settings: Arc<Settings>,
        journal: Journal,
        progress: watch::Sender<Progress>,
        stop: CancellationToken,
        signer: Signer,
    ) -> Self {
        Self {
            settings,
            journal,
            signer,
            progress,
            stop,
            states: States::default(),
            queue: VecDeque::new(),
            read: Position::default(),
            pending: None,
            pause: FIRST_PAUSE,
            told: None,
        }
    }

    /// Ships until it is told to stop. `first` is the outcome of an attempt to
    /// connect that was made already.
    pub(super) async fn run(mut self, first: Result<Sink, LedgerError>) {
        let mut sink = Some(first);
        loop {
            let opened = match sink.take() {
                Some(opened) => opened,
                None => {
                    select! {
                        opened = Sink::open(&self.settings) => opened,
                        () = self.stop.cancelled() => break,
                    }
                }
            };
            let failed = match opened {
                Ok(mut sink) => match self.ship(&mut sink).await {
                    Ok(()) => {
                        sink.close().await;
                        break;
                    }
                    Err(error) => self.settings.hide(error),
                },
                Err(error) => error,
            };
            self.tell_down(&failed);
            if matches!(failed, LedgerError::Corrupt(_)) && self.set_aside(&failed) {
                continue;
            }
            let pause = jitter(self.pause);
            self.pause = (self.pause * 2).min(LONGEST_PAUSE);
            select! {
                () = sleep(pause) => {}
                () = self.stop.cancelled() => break,
            }
        }
    }

    /// Ships over one connection. Returns when all is shipped after a stop.
    async fn ship(&mut self, sink: &mut Sink) -> Result<(), LedgerError> {
        self.resume(sink).await?;
        // The log is looked after when there is time: to begin it takes the disk a while.
        let mut is_filled = false;
        let stop = self.stop.clone();
        let ending = async {
            stop.cancelled().await;
            sleep(FLUSH).await;
        };
        pin!(ending);
        let mut synced = self.journal.synced();
        let mut prepared = Instant::now();
        let mut pace = Pace::default();
        let rest = if self.journal.recording() == Recording::Strict { Duration::ZERO } else { REST };
        let mut rested = tokio::time::Instant::now();
        loop {
            synced.mark_unchanged();
            // Asked before the journal is read: what is synced until then is carried over first.
            let mut is_over = self.stop.is_cancelled();
            let batch = match self.pending.take() {
                Some(batch) => Some(batch),
                None => select! {
                    batch = self.next(sink) => batch?,
                    () = &mut ending => return Ok(()),
                },
            };
            let Some(batch) = batch else {
                self.tell_up();
                if !is_filled && !self.stop.is_cancelled() {
                    self.signer.catch_up(sink).await?;
                    is_filled = true;
                }
                if pace.is_due() || is_over {
                    select! {
                        indexed = self.index(sink, &mut pace) => indexed?,
                        () = &mut ending => return Ok(()),
                    }
                    is_over &= !pace.is_behind();
                } else {
                    let before = *self.journal.written().borrow();
                    is_over = select! {
                        changed = async {
                            sleep_until(rested).await;
                            synced.changed().await
                        } => changed.is_err(),
                        () = pace.next() => false,
                        () = self.signer.due() => false,
                        // What is left to be found is indexed first.
                        () = self.stop.cancelled() => false,
                    };
                    if !rest.is_zero() {
                        self.let_pass(before).await;
                    }
                }
                if is_over {
                    // The last word: what was shipped is signed.
                    if !is_filled {
                        self.signer.fill(sink).await?;
                    }
                    return self.signer.sign(sink).await;
                }
                self.signer.sign_if_due(sink).await?;
                continue;
            };
            let reached = Reached {
                journal: self.journal.id(),
                host: self.settings.host.clone(),
                segment: batch.end.segment,
                offset: batch.end.offset,
            };
            let written = select! {
                written = sink.write(&batch.rows, Some(&reached)) => written,
                () = &mut ending => return Ok(()),
            };
            match written {
                Ok(written) => {
                    if written.conflicts + written.rechained > 0 {
                        // The ledger has other frames than were folded.
                        self.states.clear();
                        self.signer.doubt(&batch.rows);
                    } else {
                        self.signer.wrote(&batch.rows);
                    }
                    self.wrote(batch.end, written);
                    rested = tokio::time::Instant::now() + rest;
                    pace.has_news();
                    self.signer.sign_if_due(sink).await?;
                }
                Err(error) => {
                    self.pending = Some(batch);
                    return Err(error);
                }
            }
            if pace.is_late() {
                self.index(sink, &mut pace).await?;
            }
            if prepared.elapsed() > PREPARE {
                sink.prepare().await?;
                prepared = Instant::now();
            }
        }
    }

    /// Waits while a burst of frames passes that began after this position.
    async fn let_pass(&self, mut from: Position) {
        let until = tokio::time::Instant::now() + LONGEST_WAIT;
        let written = self.journal.written();
        loop {
            let at = *written.borrow();
            let is_burst = at.segment != from.segment || at.offset.saturating_sub(from.offset) > BURST;
            if !is_burst || tokio::time::Instant::now() >= until {
                return;
            }
            from = at;
            select! {
                () = sleep(LOOK) => {}
                () = self.stop.cancelled() => return,
            }
        }
    }

    /// Makes some of what was written findable. That this fails is no reason not
    /// to record.
    async fn index(&mut self, sink: &mut Sink, pace: &mut Pace) -> Result<(), LedgerError> {
        match sink.index_some().await {
            Ok(more) => pace.did(more),
            Err(LedgerError::Value(why)) => {
                warn!(
                    ledger = self.settings.shown(),
                    why, "the index for search cannot be written; frames are, and this is tried again"
                );
                pace.failed();
            }
            Err(error) => return Err(error),
        }
        if !pace.is_behind() {
            self.progress.send_modify(|progress| progress.indexed = progress.reached);
        }
        Ok(())
    }

    /// Asks the database where it is. The batch whose answer was lost is there
    /// or it is not; in both cases what was projected stays good.
    async fn resume(&mut self, sink: &mut Sink) -> Result<(), LedgerError> {
        let reached = sink.reached(self.journal.id()).await?;
        let mut at = reached.map_or(Position::default(), |(segment, offset)| Position { segment, offset });
        let synced = *self.journal.synced().borrow();
        if at > synced {
            error!(
                ledger.position = ?at,
                journal.end = ?synced,
                "the ledger has more of this journal than there is: was an old state directory put back? \
                 The journal is carried over from its begin; frames that differ go to frame_conflicts"
            );
            at = Position::default();
        }
        let begun = self.pending.as_ref().map(|batch| (batch.start, batch.end));
        match begun {
            Some((start, _)) if start == at => {}
            Some((_, end)) if end == at => self.pending = None,
            None if self.read == at && self.queue.is_empty() => {}
            _ => {
                self.pending = None;
                self.queue.clear();
                self.states.clear();
                self.read = at;
            }
        }
        self.progress.send_modify(|progress| progress.reached = Some(at));
        // Also if that is nothing: the journal may have shipped to another
        // database before, and must keep what this one does not have.
        self.journal.shipped(at);
        Ok(())
    }

    /// The next batch; `None` if all that is synced is shipped.
    async fn next(&mut self, sink: &mut Sink) -> Result<Option<Batch>, LedgerError> {
        while self.queue.is_empty() {
            let (journal, from) = (self.journal.clone(), self.read);
            let read = spawn_blocking(move || journal.read(from, BATCH_BYTES)).await;
            let unreadable =
                |why: String| LedgerError::Unavailable(format!("the journal cannot be read: {why}"));
            let (records, to) = read
                .map_err(|error| unreadable(error.to_string()))?
                .map_err(|error| unreadable(error.to_string()))?;
            self.queue.extend(records);
            self.read = to;
            if to == from {
                break;
            }
        }
        let start = self.progress.borrow().reached.unwrap_or_default();
        let mut batch = Batch { start, end: start, rows: Vec::new() };
        self.states.begin_batch();
        while let Some(record) = self.queue.front() {
            if !batch.rows.is_empty() && batch.rows.len() + record.count as usize > BATCH_ROWS {
                break;
            }
            let Some(record) = self.queue.pop_front() else { break };
            batch.end = record.end;
            if let Err(error) = self.project(&record, sink, &mut batch.rows).await {
                // What was folded of this batch is not written.
                self.queue.clear();
                self.states.clear();
                self.read = start;
                return Err(error);
            }
        }
        Ok((batch.end != batch.start).then_some(batch))
    }

    async fn project(
        &mut self,
        record: &Record,
        sink: &mut Sink,
        rows: &mut Vec<Row>,
    ) -> Result<(), LedgerError> {
        for (_, frame) in Stored::all_of(record) {
            // Only what the ledger has already is ever erased, unless an older backup of it was put
            // back; its words are gone all the same.
            let Some(frame) = frame else { continue };
            rows.push(self.states.apply(frame, sink).await?);
            if rows.len().is_multiple_of(TURN) {
                yield_now().await;
            }
        }
        Ok(())
    }

    fn wrote(&mut self, end: Position, written: Written) {
        self.pause = FIRST_PAUSE;
        self.progress.send_modify(|progress| {
            progress.reached = Some(end);
            progress.written = progress.written.and(written);
            progress.batches += 1;
        });
        self.journal.shipped(end);
        self.tell_up();
    }

    /// Says that the database can be written, if it could not before.
    fn tell_up(&mut self) {
        self.told = None;
        let was_down = self.progress.send_if_modified(|progress| {
            let changed = progress.down.take().is_some() || progress.since_us == 0;
            if changed {
                progress.since_us = now_us();
            }
            changed
        });
        if was_down {
            self.journal.ledger_down(None);
            info!(ledger = self.settings.shown(), "the ledger is being written");
        }
    }

    /// Says that it cannot, once, and again only if the reason is another one.
    fn tell_down(&mut self, error: &LedgerError) {
        let why: Arc<str> = error.to_string().into();
        let before = self.progress.borrow().down.clone();
        let is_news = before.as_deref() != Some(&*why);
        // Nobody needs to be told of one more.
        self.progress.send_if_modified(|progress| {
            progress.failures += 1;
            false
        });
        if !is_news {
            return;
        }
        self.progress.send_modify(|progress| {
            if progress.down.is_none() {
                progress.since_us = now_us();
            }
            progress.down = Some(why.clone());
        });
        self.journal.ledger_down(Some(format!("the ledger cannot be written: {why}")));
        if before.is_none() || self.told.is_none_or(|told| told.elapsed() > TELL_AGAIN) {
            self.told = Some(Instant::now());
            warn!(
                ledger = self.settings.shown(),
                why = &*why,
                "the ledger cannot be written; frames wait in the journal, and this is tried again"
            );
        }
    }

    /// Moves a damaged file aside, so that a new one can be begun. What the
    /// journal still has is carried over into it.
    fn set_aside(&mut self, why: &LedgerError) -> bool {
        let Ok(Place::Sqlite(file)) = self.settings.place() else { return false };
        let aside = |suffix: &str| PathBuf::from(format!("{}{suffix}", file.display()));
        let name = format!(".damaged-{}", now_us());
        if let Err(error) = fs::rename(&file, aside(&name)) {
            error!(ledger = self.settings.shown(), %error, "the damaged ledger cannot be moved aside");
            return false;
        }
        for part in ["-wal", "-shm"] {
            // They belong to the damaged file and would spoil the new one; they
            // need not be there.
            let _ = fs::rename(aside(part), aside(&format!("{name}{part}")));
        }
        error!(
            damaged = %aside(&name).display(),
            %why,
            "the ledger was damaged and has been moved aside; a new one is begun with what the journal still has. \
             What is readable in the old one can be brought back with conductor ledger import"
        );
        self.progress.send_modify(|progress| progress.set_aside = Some(aside(&name)));
        true
    }
}

/// Half to one and a half times the pause, so that many do not return at once.
fn jitter(pause: Duration) -> Duration {
    let random = RandomState::new().hash_one(0_u8) % 1000;
    pause.mul_f64(0.5 + random as f64 / 1000.0)
}
