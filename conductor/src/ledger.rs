//! The ledger: the queryable record. Postgres for a team, SQLite as the
//! embedded default, with the same tables in both.
//!
//! Everything in it comes from the journal's frames: `project` turns a frame
//! into facts (rows of the derived tables), the shipper carries both into the
//! database, and a rebuild makes the derived tables anew from `frames`.

use std::{sync::Arc, time::Duration};

use tokio::{sync::watch, time::timeout};
use tokio_util::sync::CancellationToken;

pub use self::{
    error::LedgerError,
    reader::Reader,
    rebuild::{import, rebuild},
    settings::Settings,
    shipper::Progress,
};
use self::{
    evidence::{log::Log, signer::Signer},
    shipper::Shipper,
    sink::Sink,
};
use crate::{
    journal::{Journal, Position},
    record::now_us,
    tasks::Tasks,
};

pub mod table; // the tables and how rows of one key are merged
pub mod project; // a frame → what it says of the tables
pub mod words; // which columns an erasure empties
pub mod row; // a frame with its facts, on its way into the database
pub mod error; // what can go wrong, as far as it makes a difference
pub mod settings; // where the database is
pub mod schema; // migrations
pub mod evidence; // what shows that nothing was changed: chains, signed checkpoints
pub mod upsert; // statements made from the tables
pub mod postgres; // the verbs for Postgres
pub mod sqlite; // the verbs for SQLite
pub mod lift; // what keeps rows as they are, lifted for one transaction
pub mod sink; // a batch in one transaction, whichever database it is
pub mod states; // the projection's state of each stream
pub mod shipper; // from the journal into the database, whatever happens to it
pub mod reader; // a connection for questions
pub mod cell; // a value as a question gets it
pub mod question; // our own questions, one text for both databases
pub mod sql; // a person's question, as it was typed
pub mod history; // sessions, what they did, their frames
pub mod search; // what was said and done, by its words
pub mod judgements; // decisions as they were judged, to be judged again
pub mod overview; // how large it is
pub mod rebuild; // derived tables anew; another ledger's frames
pub mod removal; // what is old goes; what is to be forgotten loses its words

/// At start the database is waited for so long, to find out whether it can be
/// used at all. If it does not answer, the service starts without it.
const FIRST_ATTEMPT: Duration = Duration::from_secs(3);

/// With so much to write, nobody who asks waits for it; with less, only so long.
const CLOSE_BEHIND: u64 = 4 << 20;
const SETTLING: Duration = Duration::from_secs(1);

/// How long it may take to end.
const STOPPING: Duration = Duration::from_secs(6);

/// A handle to the ledger. What it stands for is a task that carries frames
/// from the journal into the database.
#[derive(Debug, Clone)]
pub struct Ledger {
    settings: Arc<Settings>,
    journal: Journal,
    progress: watch::Receiver<Progress>,
    signed: watch::Receiver<i64>,
    stop: CancellationToken,
}

/// How the ledger does.
#[derive(Debug, Clone)]
pub struct Status {
    /// Where it is, without secrets.
    pub place: String,
    /// What the shipper says.
    pub progress: Progress,
    /// Bytes of the journal that it does not have.
    pub behind_bytes: u64,
    /// Age of the oldest record that it does not have.
    pub behind: Duration,
}

impl Ledger {
    /// Starts to carry the journal over. A database that is not there is no
    /// failure: it is waited for. What fails are settings that make no sense,
    /// and a database whose schema is newer than this program.
    pub async fn open(settings: Settings, journal: Journal, tasks: &Tasks) -> Result<Self, LedgerError> {
        settings.check()?;
        let first = timeout(FIRST_ATTEMPT, Sink::open(&settings)).await.unwrap_or_else(|_| {
            Err(LedgerError::Unavailable(format!(
                "the database has not answered within {} s",
                FIRST_ATTEMPT.as_secs()
            )))
        });
        if let Err(error @ (LedgerError::Settings(_) | LedgerError::Newer { .. })) = first {
            return Err(error);
        }
        let settings = Arc::new(settings);
        let stop = CancellationToken::new();
        let (progress, watched) = watch::channel(Progress::default());
        let log = Log::new(settings.evidence.clone(), journal.id());
        let (newest, signed) = watch::channel(0);
        let every = settings.evidence.every;
        let signer = Signer::new(log, journal.clone(), every, newest, tasks.metrics().clone());
        let shipper = Shipper::new(settings.clone(), journal.clone(), progress, stop.clone(), signer);
        tasks.start("shipper", shipper.run(first));
        Ok(Self { settings, journal, progress: watched, signed, stop })
    }

    /// Where it is.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// How it does.
    pub fn status(&self) -> Status {
        let journal = self.journal.status();
        let age = journal.oldest_unshipped_us.map_or(0, |oldest| now_us().saturating_sub(oldest));
        Status {
            place: self.settings.shown(),
            progress: self.progress.borrow().clone(),
            behind_bytes: journal.unshipped,
            behind: Duration::from_micros(u64::try_from(age).unwrap_or_default()),
        }
    }

    /// Waits a moment for what has happened so far, if the ledger is close behind:
    /// whoever asks right after something expects to find it.
    pub async fn settle(&self) {
        let status = self.status();
        if status.progress.down.is_none() && status.behind_bytes <= CLOSE_BEHIND {
            let written = *self.journal.written().borrow();
            timeout(SETTLING, self.reached(written)).await.ok();
        }
    }

    /// The same for whoever searches: what has happened is to be found, too.
    pub async fn settle_index(&self) {
        self.settle().await;
        let Some(reached) = self.status().progress.reached.filter(|_| self.status().progress.down.is_none())
        else {
            return;
        };
        let mut progress = self.progress.clone();
        let indexed =
            progress.wait_for(|progress| progress.indexed.is_some_and(|indexed| indexed >= reached));
        timeout(SETTLING, indexed).await.ok();
    }

    /// What the shipper says, to be told of changes.
    pub fn progress(&self) -> watch::Receiver<Progress> {
        self.progress.clone()
    }

    /// The number of the newest checkpoint that was made since the start, 0 before.
    pub fn signed(&self) -> watch::Receiver<i64> {
        self.signed.clone()
    }

    /// Waits until everything up to a position of the journal is in the
    /// database, however long that takes. `false` if shipping has ended before.
    pub async fn reached(&self, position: Position) -> bool {
        let mut progress = self.progress.clone();
        progress
            .wait_for(|progress| progress.reached.is_some_and(|reached| reached >= position))
            .await
            .is_ok()
    }

    /// Carries over what is synced, for a bounded time, and ends.
    pub async fn stop(&self) {
        self.stop.cancel();
        let mut progress = self.progress.clone();
        // Large frames keep the shipper's thread busy, and it steps back for all
        // others: it may see late that its time is up. The journal has the rest.
        let ended = async { while progress.changed().await.is_ok() {} };
        timeout(STOPPING, ended).await.ok();
    }

    /// A connection for questions.
    pub async fn reader(&self) -> Result<Reader, LedgerError> {
        Reader::open(&self.settings).await
    }
}
