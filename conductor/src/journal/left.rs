//! What the owner of a stream could not write before it went: a session that
//! ended on a failing disk, say. It is kept, in order, until the trouble ends.

use super::{
    Cause, Class, Refused,
    batch::Batch,
    log::{Failure, Log},
};

/// Bytes that are kept for owners who have gone; of more only the gap is noted.
const MOST_LEFT: u64 = 16 << 20;

impl Log {
    /// Keeps what an owner could not write until the trouble ends.
    pub(super) fn leave(&mut self, batch: Batch) {
        let Err(Refused { batch, cause, why }) = self.append(batch, Class::Stop) else { return };
        let missed = batch.entries().iter().any(|entry| self.misses(entry.stream));
        let len = batch.len() as u64;
        if cause == Cause::Closed || missed || self.left_bytes + len > MOST_LEFT {
            return self.miss(&batch, &why);
        }
        for entry in batch.entries() {
            self.index.used(entry.stream, entry.last_seq);
        }
        self.left_bytes += len;
        self.left.push(batch);
    }

    /// Whether something is left of one of these streams.
    pub(super) fn has_left(&self, batch: &Batch) -> bool {
        let left = || self.left.iter().flat_map(Batch::entries);
        !self.left.is_empty()
            && batch.entries().iter().any(|entry| left().any(|left| left.stream.id == entry.stream.id))
    }

    /// Writes down what was left.
    pub(super) fn put_left(&mut self) -> Result<(), Failure> {
        let mut left = std::mem::take(&mut self.left).into_iter();
        while let Some(batch) = left.next() {
            let len = batch.len() as u64;
            if let Err((batch, failure)) = self.put(batch, true) {
                self.left = std::iter::once(batch).chain(left).collect();
                return Err(failure);
            }
            self.left_bytes -= len;
        }
        Ok(())
    }
}
