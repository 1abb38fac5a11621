//! Signs the heads that went on, now and then, on the shipper's connection. What
//! goes wrong with the key or the file is said and counted; it never holds up
//! what is being shipped.

use std::{future, time::Duration};

use tokio::{
    sync::watch,
    task::spawn_blocking,
    time::{Instant, sleep_until},
};
use tracing::{error, info};

use super::{
    EvidenceError,
    checkpoint::{Head, Kind},
    ends::Ends,
    log::Log,
};
use crate::{
    journal::Journal,
    ledger::{error::LedgerError, row::Row, sink::Sink},
    metrics::{Branch, Metrics},
};

/// So many heads are signed by one checkpoint; what is left is signed by the next, at once.
const MOST: i64 = 4096;

/// So many checkpoints are put into the table at once.
const SOME: usize = 64;

/// Signs when its time has come.
#[derive(Debug)]
pub(in crate::ledger) struct Signer {
    log: Log,
    ends: Ends,
    every: Duration,
    due: Instant,
    /// The newest checkpoint that is in the file, for whoever sends them away.
    newest: watch::Sender<i64>,
    metrics: Metrics,
    /// What went wrong last, so that it is said once.
    told: Option<String>,
}

impl Signer {
    pub(in crate::ledger) fn new(
        log: Log,
        journal: Journal,
        every: Duration,
        newest: watch::Sender<i64>,
        metrics: Metrics,
    ) -> Self {
        let ends = Ends::new(journal);
        Self { log, ends, every, due: Instant::now() + every, newest, metrics, told: None }
    }

    /// Rows were written as they were made.
    pub(in crate::ledger) fn wrote(&mut self, rows: &[Row]) {
        self.ends.wrote(rows);
    }

    /// Rows were written, and the ledger has other frames among or before them.
    pub(in crate::ledger) fn doubt(&mut self, rows: &[Row]) {
        self.ends.doubt(rows);
    }

    /// Waits until heads should be signed.
    pub(in crate::ledger) async fn due(&self) {
        sleep_until(self.due).await;
    }

    /// Signs what went on, if it is time.
    pub(in crate::ledger) async fn sign_if_due(&mut self, sink: &mut Sink) -> Result<(), LedgerError> {
        match Instant::now() < self.due {
            true => Ok(()),
            false => self.sign(sink).await,
        }
    }

    /// Signs what went on.
    pub(in crate::ledger) async fn sign(&mut self, sink: &mut Sink) -> Result<(), LedgerError> {
        self.due = Instant::now() + self.every;
        let signed = self.sign_all(sink).await;
        self.heard(signed)
    }

    async fn sign_all(&mut self, sink: &mut Sink) -> Result<(), EvidenceError> {
        let mut after = None;
        loop {
            let found = sink.unsigned_heads(self.log.journal(), after, MOST).await?;
            let Some(last) = found.last() else { return Ok(()) };
            after = Some(last.stream);
            let heads = self.recorded(found, sink).await?;
            if heads.is_empty() {
                continue;
            }
            let (log, signed) = (self.log.clone(), heads.clone());
            let entries = blocking(move || log.append(Kind::Heads, signed, "")).await?;
            fill(&self.log, sink).await?;
            let Some(number) = entries.last().map(|entry| entry.checkpoint.number) else { return Ok(()) };
            sink.mark_signed(self.log.journal(), number, &heads).await?;
            self.ends.signed(&heads);
            self.newest.send_replace(number);
        }
    }

    /// Those among these heads that are what was recorded. Whoever can write to the database must
    /// not get a signature for what they put there.
    async fn recorded(&mut self, found: Vec<Head>, sink: &mut Sink) -> Result<Vec<Head>, LedgerError> {
        let mut heads = Vec::with_capacity(found.len());
        for head in found {
            if self.ends.is_refused(&head) {
                continue;
            }
            if self.ends.are(&head, sink).await? {
                heads.push(head);
                continue;
            }
            self.metrics.best_effort(Branch::HeadNotSigned);
            error!(
                stream = %head.stream,
                seq = head.seq,
                "the ledger says that this stream ends otherwise than was recorded; that is not signed. \
                 Did somebody else write to the database?"
            );
            heads.extend(self.ends.refuse(head));
        }
        Ok(heads)
    }

    /// Begins the log, if need be, and puts into the table what it misses.
    pub(in crate::ledger) async fn catch_up(&mut self, sink: &mut Sink) -> Result<(), LedgerError> {
        let log = self.log.clone();
        let begun = match blocking(move || log.begin()).await {
            Ok(()) => fill(&self.log, sink).await,
            Err(error) => Err(error),
        };
        self.heard(begun)
    }

    /// Puts into the table what it misses.
    pub(in crate::ledger) async fn fill(&mut self, sink: &mut Sink) -> Result<(), LedgerError> {
        let filled = fill(&self.log, sink).await;
        self.heard(filled)
    }

    /// Says what went wrong, once, and counts it. What the database said is the shipper's.
    fn heard(&mut self, outcome: Result<(), EvidenceError>) -> Result<(), LedgerError> {
        match outcome {
            Ok(()) => {
                if self.told.take().is_some() {
                    info!("checkpoints are made again");
                }
                Ok(())
            }
            Err(EvidenceError::Ledger(error)) => Err(error),
            Err(error) => {
                self.metrics.best_effort(Branch::CheckpointNotMade);
                let why = error.to_string();
                if self.told.as_ref() != Some(&why) {
                    error!(
                        why,
                        "no checkpoint is made; frames are recorded all the same, and this is tried again"
                    );
                    self.told = Some(why);
                }
                Ok(())
            }
        }
    }
}

/// Puts into the table what a log's file has and the table has not.
pub async fn fill(log: &Log, sink: &mut Sink) -> Result<(), EvidenceError> {
    loop {
        let known = sink.last_checkpoint(log.journal()).await?;
        let file = log.clone();
        let entries = blocking(move || file.after(known, SOME)).await?;
        if entries.is_empty() {
            return Ok(());
        }
        sink.add_checkpoints(&entries).await?;
    }
}

pub(in crate::ledger) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, EvidenceError> + Send + 'static,
) -> Result<T, EvidenceError> {
    match spawn_blocking(work).await {
        Ok(done) => done,
        // It was cancelled, which happens to the whole runtime only.
        Err(_) => future::pending().await,
    }
}
