//! The projection's state of each stream that is being written to, and the end of
//! its chain. What is not in memory is made again from the frames that the ledger
//! has already.

use std::collections::HashMap;

use uuid::Uuid;

use super::{
    error::LedgerError,
    evidence::{Hash, NOTHING},
    project::State,
    row::{Row, Stored},
    sink::Sink,
};

/// Streams that are kept in mind. More are only slower: a stream that was
/// forgotten is read again from the ledger when it goes on.
const MOST: usize = 1024;

/// States by stream.
#[derive(Debug, Default)]
pub struct States {
    streams: HashMap<Uuid, Kept>,
    clock: u64,
    /// What was used after this is not in the ledger yet.
    written: u64,
    /// Below so many there is no use in looking again for some to forget.
    crowd: usize,
}

#[derive(Debug)]
struct Kept {
    state: State,
    /// The last frame's place in the chain.
    chain: Hash,
    /// The number that is expected next.
    next: i64,
    used: u64,
}

impl States {
    /// Folds a frame that is to be written.
    pub async fn apply(&mut self, frame: Stored, sink: &mut Sink) -> Result<Row, LedgerError> {
        self.clock += 1;
        let (stream, seq) = (frame.stream.id, frame.seq);
        // A number that was seen already means that the ledger has gone back,
        // as after a restored backup: its state is not ours.
        let known = self.streams.get(&stream).is_some_and(|kept| kept.next <= seq);
        if !known {
            let (state, chain) = replayed(stream, seq, sink).await?;
            self.make_room();
            self.streams.insert(stream, Kept { state, chain, next: seq, used: self.clock });
        }
        let Some(kept) = self.streams.get_mut(&stream) else {
            // It was put there just now.
            return Ok(frame.project(&mut State::default()));
        };
        kept.next = seq + 1;
        kept.used = self.clock;
        let mut row = frame.project(&mut kept.state);
        kept.chain = row.chained(&kept.chain);
        row.chain = Some(kept.chain);
        Ok(row)
    }

    /// Everything that was folded so far is in the ledger.
    pub fn begin_batch(&mut self) {
        self.written = self.clock;
        self.crowd = 0;
    }

    /// Forgets everything, as what was folded has not been written.
    pub fn clear(&mut self) {
        self.streams.clear();
    }

    /// Forgets the half that was not used for longest, if there are too many.
    fn make_room(&mut self) {
        if self.streams.len() < MOST.max(self.crowd) {
            return;
        }
        let mut used: Vec<_> = self.streams.values().map(|kept| kept.used).collect();
        used.sort_unstable();
        let median = used[used.len() / 2];
        // What belongs to this batch could not be made again from the ledger.
        let written = self.written;
        self.streams.retain(|_, kept| kept.used > median.min(written));
        self.crowd = 2 * self.streams.len();
    }
}

/// The state of a stream before a frame, and the end of its chain. What the earlier frames say was
/// written with them, and is thrown away here.
async fn replayed(stream: Uuid, below: i64, sink: &mut Sink) -> Result<(State, Hash), LedgerError> {
    let (mut state, mut chain) = (State::default(), NOTHING);
    let mut after = 0;
    while after + 1 < below {
        let page = sink.frames_of(stream, after, below).await?;
        let Some(last) = page.last() else { break };
        after = last.seq;
        for frame in page {
            chain = frame.chained(&chain);
            frame.project(&mut state);
        }
        tokio::task::yield_now().await;
    }
    Ok((state, chain))
}
