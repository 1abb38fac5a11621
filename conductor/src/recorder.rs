//! One stream's way into the journal: numbers what is recorded and keeps what
//! the journal would not take until it does.
//!
//! Sessions, processes and connections each own one. Nothing is ever dropped
//! here; whoever owns a recorder stops taking more when too much is pending.
//! Here, and nowhere else, a frame gets its recorded form: nothing enters the
//! journal but through a recorder, so no secret does.

use std::{borrow::Cow, sync::Arc};

use serde_json::Value;

use crate::{
    frame::Run,
    journal::{Batch, Class, Journal, Ticket},
    record::{self, Destination, Origin, Stream},
    redact::{self, Known, Redaction, Seams, Secret},
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
    redaction: Redaction,
    /// Secrets that may turn up in this stream.
    known: Known,
    /// Where one chunk of a message goes on in the next.
    seams: Seams,
}

impl Recorder {
    /// Goes on where the stream ended.
    pub fn new(journal: Option<Journal>, stream: Stream) -> Self {
        let next = journal.as_ref().map_or(1, |journal| journal.next_seq(stream.id));
        let redaction = journal.as_ref().map(|journal| journal.redaction().clone()).unwrap_or_default();
        Self {
            journal,
            stream,
            next,
            batch: Batch::new(),
            redaction,
            known: Known::default(),
            seams: Seams::default(),
        }
    }

    /// The frames of a run; `outgoing` are the ids that some go on with.
    pub fn run(&mut self, origin: Origin, to: Destination, outgoing: &[(u32, u64)], run: &Run) {
        if self.journal.is_none() || run.is_empty() {
            return;
        }
        // Each frame has a newline, and few go on with an id of ours.
        self.batch.reserve(run.size() + run.len() + outgoing.len() * 16);
        let (stream, next, now) = (self.stream, self.next, record::now_us());
        // One look at all of them: hardly ever there is anything to replace.
        let is_suspect = self.redaction.suspects(&self.known, run.block());
        let mut cuts = Vec::new();
        for (index, (bytes, peek)) in run.iter().enumerate().filter(|(_, (_, peek))| peek.text.is_some()) {
            let cut = self.seams.pass(&self.redaction, &self.known, bytes, peek, is_suspect);
            cuts.extend(cut.map(|cut| (index, cut)));
        }
        if !cuts.is_empty() || is_suspect {
            let mut cuts = cuts.into_iter().peekable();
            let recorded = run.iter().enumerate().map(|(index, (bytes, peek))| {
                match cuts.next_if(|(at, _)| *at == index) {
                    Some((_, cut)) => Cow::Owned(self.redaction.chunk(&self.known, bytes, peek, &cut)),
                    None => self.redaction.bytes(&self.known, bytes),
                }
            });
            let frames: Vec<_> = recorded.collect();
            self.batch.push(stream, next, now, origin, to, outgoing, frames.iter().map(|frame| &**frame));
        } else {
            let frames = run.iter().map(|(bytes, _)| bytes);
            self.batch.push(stream, next, now, origin, to, outgoing, frames);
        }
        self.next += run.len() as u64;
    }

    /// One frame, without its newline.
    pub fn frame(&mut self, origin: Origin, to: Destination, outgoing: Option<u64>, bytes: &[u8]) {
        if self.journal.is_none() {
            return;
        }
        let outgoing = outgoing.map(|id| (0, id));
        let bytes = bytes.strip_suffix(b"\n").unwrap_or(bytes);
        let bytes = match origin {
            Origin::Editor => self.redaction.said(&self.known, bytes),
            _ => self.redaction.bytes(&self.known, bytes),
        };
        self.batch.reserve(bytes.len() + 1);
        self.batch.push(
            self.stream,
            self.next,
            record::now_us(),
            origin,
            to,
            outgoing.as_slice(),
            std::iter::once(&*bytes),
        );
        self.next += 1;
    }

    /// From now on these are searched for, too.
    pub fn know(&mut self, secrets: impl IntoIterator<Item = Secret>) {
        self.known = self.known.with(secrets);
    }

    /// From now on the secrets that an editor hands over with a frame are searched for.
    pub fn know_handed_over(&mut self, frame: &[u8]) {
        if redact::is_form(frame) || self.redaction.suspects(&Known::default(), frame) {
            self.know(redact::handed_over(frame));
        }
    }

    /// The same for all that somebody else knows.
    pub fn know_all(&mut self, known: &Known) {
        self.known = self.known.and(known);
    }

    /// Exactly these are searched for from now on.
    pub fn know_only(&mut self, known: Known) {
        self.known = known;
    }

    /// What is searched for in this stream.
    pub fn known(&self) -> &Known {
        &self.known
    }

    /// A text as it may be shown to others, logged or kept: without secrets.
    pub fn redacted<'a>(&self, text: &'a str) -> Cow<'a, str> {
        self.redaction.text(&self.known, text)
    }

    /// The same for bytes that somebody else has written.
    pub fn redacted_bytes<'a>(&self, bytes: &'a [u8]) -> Cow<'a, [u8]> {
        self.redaction.bytes(&self.known, bytes)
    }

    /// The same for a value that is kept as JSON; `None` if there is nothing to replace.
    pub fn redacted_value<T: serde::Serialize + serde::de::DeserializeOwned>(&self, value: &T) -> Option<T> {
        let plain = serde_json::to_vec(value).ok()?;
        let redacted = self.redaction.frame(&self.known, &plain)?;
        serde_json::from_slice(&redacted).ok()
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
