//! What a conductor itself knows of the ends of streams. A signature says that something was
//! recorded, so nothing is signed on the word of the database alone: only what this process has
//! written, and what the journal shows to be what was written before.

use std::collections::HashMap;

use tokio::task::spawn_blocking;
use uuid::Uuid;

use super::{Hash, NOTHING, checkpoint::Head};
use crate::{
    journal::Journal,
    ledger::{
        error::LedgerError,
        row::{Row, Stored},
        sink::Sink,
    },
};

/// Streams that are kept in mind. Those that are signed are forgotten first: when they go on, the
/// journal tells.
const MOST: usize = 65_536;

/// Ends that were refused and are kept in mind, so that each is told of once.
const MOST_REFUSED: usize = 4096;

/// About so many bytes of the journal are read at once.
const BYTES: usize = 1 << 20;

/// What is known.
#[derive(Debug)]
pub(super) struct Ends {
    journal: Journal,
    known: HashMap<Uuid, End>,
    refused: HashMap<Uuid, Head>,
}

#[derive(Debug, Clone, Copy)]
struct End {
    head: Head,
    is_signed: bool,
}

impl Ends {
    pub(super) fn new(journal: Journal) -> Self {
        Self { journal, known: HashMap::new(), refused: HashMap::new() }
    }

    /// Rows were written as they were made. What follows nothing that is known here is not known
    /// either: what it was chained to came from the database.
    pub(super) fn wrote(&mut self, rows: &[Row]) {
        for run in rows.chunk_by(|one, next| one.stream.id == next.stream.id && one.seq < next.seq) {
            let (Some(first), Some(last)) = (run.first(), run.last()) else { continue };
            let stream = first.stream.id;
            let before = match self.known.get(&stream) {
                Some(end) if end.head.seq < first.seq => Some(end.head.chain),
                None if first.seq == 1 => Some(NOTHING),
                _ => None,
            };
            let follows = before.is_some_and(|before| first.chain == Some(first.chained(&before)));
            match last.chain.filter(|_| follows) {
                Some(chain) => {
                    let head = Head { stream, seq: last.seq, chain };
                    self.known.insert(stream, End { head, is_signed: false });
                }
                None => {
                    self.known.remove(&stream);
                }
            }
        }
        if self.known.len() > MOST {
            self.known.retain(|_, end| !end.is_signed);
        }
    }

    /// The database has other frames than these, or had them before.
    pub(super) fn doubt(&mut self, rows: &[Row]) {
        for row in rows {
            self.known.remove(&row.stream.id);
        }
    }

    /// A checkpoint has them.
    pub(super) fn signed(&mut self, heads: &[Head]) {
        for head in heads {
            if let Some(end) = self.known.get_mut(&head.stream).filter(|end| end.head == *head) {
                end.is_signed = true;
            }
        }
    }

    /// Whether this end was refused before.
    pub(super) fn is_refused(&self, head: &Head) -> bool {
        self.refused.get(&head.stream) == Some(head)
    }

    /// It is not what was recorded. What is to be signed instead, if there is anything.
    pub(super) fn refuse(&mut self, head: Head) -> Option<Head> {
        if self.refused.len() >= MOST_REFUSED {
            self.refused.clear();
        }
        self.refused.insert(head.stream, head);
        self.known.get(&head.stream).filter(|end| !end.is_signed).map(|end| end.head)
    }

    /// Whether the end of a stream, as the database has it, is what was recorded.
    pub(super) async fn are(&mut self, head: &Head, sink: &mut Sink) -> Result<bool, LedgerError> {
        if self.known.get(&head.stream).is_some_and(|end| end.head == *head) {
            return Ok(true);
        }
        let is_right = self.recorded(head, sink).await? == Some(head.chain);
        if is_right {
            self.known.insert(head.stream, End { head: *head, is_signed: false });
        }
        Ok(is_right)
    }

    /// The chain up to a frame as the journal has it. Where it has let go of a stream's first frames, it
    /// goes on from what the database has of them: they were written, and most likely signed, long ago.
    async fn recorded(&self, head: &Head, sink: &mut Sink) -> Result<Option<Hash>, LedgerError> {
        let (stream, upto) = (head.stream, head.seq);
        let next = i64::try_from(self.journal.next_seq(stream)).unwrap_or(i64::MAX);
        // It has never heard of so many.
        if upto < 1 || next <= upto {
            return Ok(None);
        }
        let (mut last, mut chain) = (0, None);
        loop {
            let (journal, from) = (self.journal.clone(), u64::try_from(last + 1).unwrap_or_default());
            let read = spawn_blocking(move || journal.read_stream(stream, from, BYTES)).await;
            let Ok(Ok(records)) = read else { return Ok(None) };
            let before = last;
            for (seq, frame) in records.iter().flat_map(Stored::all_of) {
                if seq <= last || seq > upto {
                    continue;
                }
                let previous = match chain {
                    Some(chain) => chain,
                    None => sink.chain_before(stream, seq).await?.1,
                };
                // Of one that was erased only the database has the hash.
                chain = frame.map(|frame| frame.chained(&previous));
                last = seq;
            }
            if last == upto || last == before {
                break;
            }
        }
        match (last, chain) {
            (0, _) => Ok((next == upto + 1).then_some(head.chain)),
            (last, _) if last < upto => Ok(None),
            (_, Some(chain)) => Ok(Some(chain)),
            (_, None) => Ok(Some(sink.chain_before(stream, upto.saturating_add(1)).await?.1)),
        }
    }
}
