//! One stream's way into the journal: numbers what is recorded and keeps what
//! the journal would not take until it does.
//!
//! Sessions, processes and connections each own one. Nothing is ever dropped
//! here; whoever owns a recorder stops taking more when too much is pending.

use std::sync::Arc;

use serde_json::Value;

use crate::{
    frame::Run,
    journal::{Batch, Class, Journal, Ticket},
    record::{self, Destination, Origin, Stream},
};

/// Bytes that may wait for the journal; above that the owner takes no more.
const MOST_PENDING: usize = 4 << 20;

/// The same for what editors say: it may stop something, so it is still heard
/// when a frame of the largest size waits already.
const MOST_OF_EDITORS: usize = 32 << 20;

/// Writes one stream.
#[derive(Debug)]
pub struct Recorder {
    /// Without one nothing is recorded, as for trials of `doctor`.
    journal: Option<Journal>,
    stream: Stream,
    next: u64,
    batch: Batch,
}

impl Recorder {
    /// Goes on where the stream ended.
    pub fn new(journal: Option<Journal>, stream: Stream) -> Self {
        let next = journal.as_ref().map_or(1, |journal| journal.next_seq(stream.id));
        Self { journal, stream, next, batch: Batch::new() }
    }

    /// The frames of a run; `outgoing` are the ids that some go on with.
    pub fn run(&mut self, origin: Origin, to: Destination, outgoing: &[(u32, u64)], run: &Run) {
        if self.journal.is_none() || run.is_empty() {
            return;
        }
        // Each frame has a newline, and few go on with an id of ours.
        self.batch.reserve(run.size() + run.len() + outgoing.len() * 16);
        let frames = run.iter().map(|(bytes, _)| bytes);
        self.batch.push(self.stream, self.next, record::now_us(), origin, to, outgoing, frames);
        self.next += run.len() as u64;
    }

    /// One frame, without its newline.
    pub fn frame(&mut self, origin: Origin, to: Destination, outgoing: Option<u64>, bytes: &[u8]) {
        if self.journal.is_none() {
            return;
        }
        let outgoing = outgoing.map(|id| (0, id));
        let bytes = bytes.strip_suffix(b"\n").unwrap_or(bytes);
        self.batch.push(
            self.stream,
            self.next,
            record::now_us(),
            origin,
            to,
            outgoing.as_slice(),
            std::iter::once(bytes),
        );
        self.next += 1;
    }

    /// A note of ours.
    pub fn note(&mut self, method: &str, params: &Value) {
        self.frame(Origin::Conductor, Destination::Record, None, &record::note(method, params));
    }

    /// Writes what was added. `None` if there was nothing to write; on a
    /// refusal everything stays for the next time.
    pub fn commit(&mut self, class: Class) -> Result<Option<Ticket>, Arc<str>> {
        let Some(journal) = self.journal.as_ref().filter(|_| !self.batch.is_empty()) else {
            return Ok(None);
        };
        match journal.append(std::mem::take(&mut self.batch), class) {
            Ok(ticket) => Ok(Some(ticket)),
            Err(refused) => {
                self.batch = refused.batch;
                Err(refused.why)
            }
        }
    }

    /// The number of what was added last.
    pub fn last_seq(&self) -> u64 {
        self.next - 1
    }

    /// Whether more may be added.
    pub fn has_room(&self) -> bool {
        self.batch.len() < MOST_PENDING
    }

    /// Whether what an editor says may still be added.
    pub fn can_hear_editor(&self) -> bool {
        self.batch.len() < MOST_OF_EDITORS
    }

    /// Where it writes.
    pub fn journal(&self) -> Option<Journal> {
        self.journal.clone()
    }

    /// Nothing more comes: what the journal would not take is left to it, so
    /// that whoever writes to this stream next goes on behind it.
    pub fn leave(&mut self) {
        if let Some(journal) = self.journal.as_ref().filter(|_| !self.batch.is_empty()) {
            journal.leave(std::mem::take(&mut self.batch));
        }
    }

    /// Whether something waits for the journal.
    pub fn has_pending(&self) -> bool {
        !self.batch.is_empty()
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.leave();
    }
}
