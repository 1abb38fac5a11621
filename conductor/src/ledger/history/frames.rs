//! A stream's frames from any number on: from the journal as far as it still
//! has them, from the ledger otherwise, joined without gap or duplicate.
//!
//! The journal is asked first, always: it lets go only of what the ledger has,
//! so what it does not have any more is there.

use tokio::sync::watch;
use uuid::Uuid;

use super::{CHUNK, Frame, History, select};
use crate::{
    journal::{Journal, Position, Record},
    ledger::{
        error::LedgerError,
        question::{Question, Value},
    },
};

/// So many of the ledger's frames are asked for at once, if they are small.
const FRAMES: usize = 1000;

/// A stream that is being read.
pub struct Reading {
    history: History,
    stream: Uuid,
    next: u64,
    left: u64,
    follow: Option<watch::Receiver<Position>>,
}

impl Reading {
    pub(super) fn new(
        history: History,
        stream: Uuid,
        from_seq: u64,
        limit: Option<u64>,
        follow: bool,
    ) -> Self {
        let follow = history.journal.as_ref().filter(|_| follow).map(Journal::written);
        Self { history, stream, next: from_seq.max(1), left: limit.unwrap_or(u64::MAX), follow }
    }

    /// Some more frames, in order. Nothing at the end; never, if the stream is
    /// followed and the journal goes on.
    pub async fn next(&mut self) -> Result<Vec<Frame>, LedgerError> {
        loop {
            if self.left == 0 {
                return Ok(Vec::new());
            }
            // What is written from here on wakes us, however late we look.
            if let Some(written) = &mut self.follow {
                written.mark_unchanged();
            }
            let mut frames = self.some().await?;
            frames.truncate(usize::try_from(self.left).unwrap_or(usize::MAX));
            if let Some(last) = frames.last() {
                self.next = last.seq + 1;
                self.left -= frames.len() as u64;
                return Ok(frames);
            }
            let Some(written) = &mut self.follow else { return Ok(frames) };
            // The journal is closed when the service stops.
            if written.changed().await.is_err() {
                return Ok(frames);
            }
        }
    }

    async fn some(&self) -> Result<Vec<Frame>, LedgerError> {
        let Some(journal) = &self.history.journal else { return self.stored().await };
        let known_to = journal.next_seq(self.stream);
        // A stream that the journal knows ends there.
        if known_to > 1 && self.next >= known_to {
            return Ok(Vec::new());
        }
        let journaled = if known_to > 1 { self.journaled(journal).await? } else { Vec::new() };
        if journaled.first().is_some_and(|frame| frame.seq == self.next) {
            return Ok(journaled);
        }
        let mut stored = self.stored().await?;
        // Both may begin late: frames that could not be recorded have no
        // number, but an erased or lost one leaves a hole.
        match (journaled.first(), stored.first()) {
            (Some(journaled_first), Some(stored_first)) if journaled_first.seq <= stored_first.seq => {
                Ok(journaled)
            }
            (Some(first), Some(_)) => {
                stored.retain(|frame| frame.seq < first.seq);
                Ok(stored)
            }
            (Some(_), None) => Ok(journaled),
            _ => Ok(stored),
        }
    }

    async fn journaled(&self, journal: &Journal) -> Result<Vec<Frame>, LedgerError> {
        let (journal, stream, from) = (journal.clone(), self.stream, self.next);
        let reading = tokio::task::spawn_blocking(move || journal.read_stream(stream, from, CHUNK));
        let unreadable = |error: &dyn std::error::Error| {
            LedgerError::Unavailable(format!("the journal cannot be read: {error}"))
        };
        let records =
            reading.await.map_err(|error| unreadable(&error))?.map_err(|error| unreadable(&error))?;
        Ok(records.iter().flat_map(frames).filter(|frame| frame.seq >= from).collect())
    }

    async fn stored(&self) -> Result<Vec<Frame>, LedgerError> {
        let mut question: Question = select::<Frame>("frames");
        question.bind(" WHERE stream_id = ?", Value::Id(self.stream));
        let next = i64::try_from(self.next).unwrap_or(i64::MAX);
        question.bind(" AND seq >= ?", Value::Int(next));
        question.push(&format!(" ORDER BY seq LIMIT {FRAMES}"));
        self.history.ask(question, CHUNK).await
    }
}

fn frames(record: &Record) -> impl Iterator<Item = Frame> {
    (0_u32..).zip(record.lines()).map(move |(at, line)| Frame {
        seq: record.first_seq + u64::from(at),
        at_us: record.at_us,
        origin: record.origin.name().to_owned(),
        destination: record.to.name().to_owned(),
        outgoing_id: record
            .outgoing
            .iter()
            .find(|(index, _)| *index == at)
            .and_then(|(_, id)| i64::try_from(*id).ok()),
        raw: if record.is_erased(line) { Vec::new() } else { line.to_vec() },
    })
}
