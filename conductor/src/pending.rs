//! Requests in flight: register, complete, find, drain. No I/O, no async.
//!
//! Every request that crosses the conductor gets a number of ours, so that
//! the ids of different peers cannot collide; the table remembers whose
//! request it was. Taking an entry out is what makes "exactly one answer"
//! hold: a second answer finds nothing.

use std::collections::BTreeMap;

/// The requests in flight towards one peer.
#[derive(Debug)]
pub struct Pending<T> {
    next: u32,
    open: BTreeMap<u32, T>,
}

impl<T> Pending<T> {
    /// An empty table that numbers from 1.
    pub fn new() -> Self {
        Self { next: 1, open: BTreeMap::new() }
    }

    /// Notes a request and gives its number. Numbers are not used again.
    pub fn register(&mut self, request: T) -> u32 {
        let number = self.next;
        self.next = self.next.wrapping_add(1).max(1);
        self.open.insert(number, request);
        number
    }

    /// Takes out the request that an answer belongs to.
    pub fn complete(&mut self, number: u32) -> Option<T> {
        self.open.remove(&number)
    }

    /// All of them, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.open.values()
    }

    /// The same, in order to change them.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.open.values_mut()
    }

    /// All of them with their numbers, oldest first.
    pub fn numbered(&self) -> impl Iterator<Item = (u32, &T)> {
        self.open.iter().map(|(number, request)| (*number, request))
    }

    /// Looks at a request in order to change it.
    pub fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        self.open.get_mut(&number)
    }

    /// Finds the first request that fits.
    pub fn find(&self, fits: impl Fn(&T) -> bool) -> Option<(u32, &T)> {
        self.open.iter().find(|(_, request)| fits(request)).map(|(number, request)| (*number, request))
    }

    /// Takes out every request that fits, oldest first.
    pub fn drain(&mut self, fits: impl Fn(&T) -> bool) -> Vec<T> {
        let numbers: Vec<u32> = self.open.iter().filter(|(_, r)| fits(r)).map(|(n, _)| *n).collect();
        numbers.into_iter().filter_map(|number| self.open.remove(&number)).collect()
    }

    /// How many are in flight.
    pub fn len(&self) -> usize {
        self.open.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }
}

impl<T> Default for Pending<T> {
    fn default() -> Self {
        Self::new()
    }
}

/// The id of a request on the wire: which of the peer's sessions asked, and
/// the number in that session's table. An answer finds its way back by
/// arithmetic, and the numbers stay exact in a JavaScript peer (below 2^53).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WireId {
    /// Which session of the peer.
    pub slot: u32,
    /// Number in that session's table.
    pub number: u32,
}

impl WireId {
    /// Slots above this would make ids that JavaScript rounds.
    pub const MAX_SLOT: u32 = (1 << 21) - 1;

    /// Reads an id off the wire; `None` if it is none of ours.
    pub fn parse(raw: &[u8]) -> Option<Self> {
        // Exactly the form we write, so that no two spellings mean one id.
        let digits = raw.len() <= 16 && raw.iter().all(u8::is_ascii_digit);
        if !digits || (raw.len() > 1 && raw[0] == b'0') {
            return None;
        }
        let id: u64 = std::str::from_utf8(raw).ok()?.parse().ok()?;
        Some(Self { slot: (id >> 32) as u32, number: id as u32 })
    }

    /// The id as a number.
    pub fn value(self) -> u64 {
        u64::from(self.slot) << 32 | u64::from(self.number)
    }
}

impl std::fmt::Display for WireId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.value())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    #[test]
    fn an_answer_completes_once() {
        let mut table = Pending::new();
        let (a, b) = (table.register("a"), table.register("b"));
        assert_eq!((a, b), (1, 2));
        assert_eq!(table.complete(a), Some("a"));
        assert_eq!(table.complete(a), None);
        assert_eq!(table.register("c"), 3);
        assert_eq!(table.drain(|r| *r != "b"), ["c"]);
        assert_eq!(table.find(|r| *r == "b").unwrap().0, 2);
        assert_eq!(table.len(), 1);
    }

    #[test]
    fn wire_ids_survive_the_way_and_foreign_ones_are_refused() {
        let id = WireId { slot: WireId::MAX_SLOT, number: u32::MAX };
        assert_eq!(WireId::parse(id.to_string().as_bytes()), Some(id));
        assert!(id.value() < 1 << 53);
        for foreign in ["-1", "01", "1.0", "\"1\"", "null", "", "1e3", "99999999999999999999"] {
            assert_eq!(WireId::parse(foreign.as_bytes()), None, "{foreign}");
        }
    }
}
