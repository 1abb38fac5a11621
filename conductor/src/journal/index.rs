//! Where each stream's records are. No I/O.
//!
//! Each stream has a list of places; a place leads to the records of the stream
//! that begin within [`SPAN`] bytes of it. The lists are kept as differences in
//! variable length, five bytes or so a place, since a journal of a gigabyte may
//! have millions of them.

use std::collections::HashMap;

use uuid::Uuid;

use super::format::Position;
use crate::record::{Stream, StreamKind};

/// Records of a stream that begin so close behind a place need none of their
/// own: reading that much costs less than another read.
pub(super) const SPAN: u64 = 64 * 1024;

/// All streams of the journal.
#[derive(Debug, Default)]
pub(super) struct Index {
    streams: HashMap<Uuid, Entry>,
}

#[derive(Debug)]
struct Entry {
    kind: StreamKind,
    /// The number that the stream's next frame gets.
    next: u64,
    places: Vec<u8>,
    last: Option<Place>,
}

/// A position and the number of the record there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    pub seq: u64,
    pub at: Position,
}

impl Index {
    /// The number of the stream's next frame, 1 if it is new.
    pub(super) fn next_seq(&self, stream: Uuid) -> u64 {
        self.streams.get(&stream).map_or(1, |entry| entry.next)
    }

    /// Whether any frame of the stream was ever noted.
    pub(super) fn knows(&self, stream: Uuid) -> bool {
        self.streams.contains_key(&stream)
    }

    /// Notes the numbers as used, wherever their record may be.
    pub(super) fn used(&mut self, stream: Stream, last_seq: u64) {
        let entry = self.entry(stream);
        entry.next = entry.next.max(last_seq.saturating_add(1));
    }

    /// Notes a record.
    pub(super) fn add(&mut self, stream: Stream, first_seq: u64, last_seq: u64, at: Position) {
        let entry = self.entry(stream);
        entry.next = entry.next.max(last_seq.saturating_add(1));
        let near =
            |last: Place| last.at.segment == at.segment && at.offset.wrapping_sub(last.at.offset) < SPAN;
        if entry.last.is_some_and(near) {
            return;
        }
        entry.put(Place { seq: first_seq, at });
    }

    fn entry(&mut self, stream: Stream) -> &mut Entry {
        self.streams.entry(stream.id).or_insert_with(|| Entry::new(stream.kind))
    }

    /// The streams of which only the number is known and which come back, with the last they
    /// used.
    pub(super) fn heads(&self, journal: Uuid) -> impl Iterator<Item = (Stream, u64)> {
        let gone = self.streams.iter().filter(|(_, entry)| entry.places.is_empty() && entry.next > 1);
        let heads = gone.map(|(id, entry)| (Stream { id: *id, kind: entry.kind }, entry.next - 1));
        heads.filter(move |(stream, _)| comes_back(*stream, journal))
    }

    /// All sessions, with the last number used.
    pub(super) fn sessions(&self) -> impl Iterator<Item = (Uuid, u64)> {
        let sessions = self.streams.iter().filter(|(_, entry)| entry.kind == StreamKind::Session);
        sessions.map(|(id, entry)| (*id, entry.next - 1))
    }

    /// Where to look for the frames from a number on, in order.
    pub(super) fn find(&self, stream: Uuid, from_seq: u64, most: usize) -> Vec<Place> {
        let Some(entry) = self.streams.get(&stream) else { return Vec::new() };
        let mut found: Vec<Place> = Vec::new();
        for place in entry.places() {
            // The last place before the wanted number may lead to it.
            if place.seq <= from_seq {
                found.clear();
            } else if found.len() == most {
                break;
            }
            found.push(place);
        }
        found
    }

    /// Forgets all places from a position on; the numbers stay used.
    pub(super) fn cut(&mut self, from: Position) {
        for entry in self.streams.values_mut() {
            if entry.last.is_some_and(|last| last.at >= from) {
                entry.keep(|place| place.at < from);
            }
        }
    }

    /// Forgets all places in segments before this one. The numbers stay used in streams that
    /// come back; of others, whose one writer knows the next itself, nothing is left then.
    pub(super) fn free(&mut self, before: u64, journal: Uuid) {
        for entry in self.streams.values_mut() {
            if entry.places().next().is_some_and(|first| first.at.segment < before) {
                entry.keep(|place| place.at.segment >= before);
            }
        }
        self.streams.retain(|id, entry| {
            !entry.places.is_empty() || comes_back(Stream { id: *id, kind: entry.kind }, journal)
        });
    }
}

/// Whether somebody goes on with a stream after its writer has gone: with sessions and grants,
/// and with the journal's own. Processes and connections do not come back.
pub(super) fn comes_back(stream: Stream, journal: Uuid) -> bool {
    matches!(stream.kind, StreamKind::Session | StreamKind::Grant) || stream.id == journal
}

impl Entry {
    fn new(kind: StreamKind) -> Self {
        Self { kind, next: 1, places: Vec::new(), last: None }
    }

    fn put(&mut self, place: Place) {
        let last = self.last.unwrap_or(Place { seq: 0, at: Position::default() });
        let same = last.at.segment == place.at.segment;
        // Wrapping, so that disorder, which nobody writes, is kept all the same.
        write(&mut self.places, place.seq.wrapping_sub(last.seq));
        write(&mut self.places, place.at.segment.wrapping_sub(last.at.segment));
        write(&mut self.places, place.at.offset.wrapping_sub(if same { last.at.offset } else { 0 }));
        self.last = Some(place);
    }

    fn places(&self) -> impl Iterator<Item = Place> {
        let mut rest = self.places.as_slice();
        let mut last = Place { seq: 0, at: Position::default() };
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            last.seq = last.seq.wrapping_add(read(&mut rest));
            let step = read(&mut rest);
            last.at.segment = last.at.segment.wrapping_add(step);
            last.at.offset = read(&mut rest).wrapping_add(if step == 0 { last.at.offset } else { 0 });
            Some(last)
        })
    }

    fn keep(&mut self, wanted: impl Fn(&Place) -> bool) {
        let mut kept = Self { next: self.next, ..Self::new(self.kind) };
        for place in self.places().filter(wanted) {
            kept.put(place);
        }
        *self = kept;
    }
}

fn write(into: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        into.push(number as u8 | 0x80);
        number >>= 7;
    }
    into.push(number as u8);
}

fn read(from: &mut &[u8]) -> u64 {
    let mut number = 0;
    let mut shift = 0;
    while let Some((byte, rest)) = from.split_first() {
        *from = rest;
        number |= u64::from(byte & 0x7f) << shift;
        shift += 7;
        if byte & 0x80 == 0 || shift > 63 {
            break;
        }
    }
    number
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(segment: u64, offset: u64) -> Position {
        Position { segment, offset }
    }

    fn session(number: u128) -> Stream {
        Stream { id: Uuid::from_u128(number), kind: StreamKind::Session }
    }

    #[test]
    fn finds_where_a_number_is() {
        let mut index = Index::default();
        let session = session(1);
        let stream = session.id;
        assert_eq!(index.next_seq(stream), 1);
        index.add(session, 1, 10, at(1, 64));
        index.add(session, 11, 20, at(1, 500));
        index.add(session, 21, 30, at(1, 64 + SPAN));
        index.add(session, 31, 40, at(2, 64));
        assert_eq!(index.next_seq(stream), 41);
        let places = |from| index.find(stream, from, 10).iter().map(|place| place.at).collect::<Vec<_>>();
        assert_eq!(places(1), [at(1, 64), at(1, 64 + SPAN), at(2, 64)]);
        assert_eq!(places(15), [at(1, 64), at(1, 64 + SPAN), at(2, 64)]);
        assert_eq!(places(21), [at(1, 64 + SPAN), at(2, 64)]);
        assert_eq!(places(99), [at(2, 64)]);
        assert_eq!(index.find(stream, 1, 1).len(), 1);
        assert_eq!(index.find(Uuid::nil(), 1, 10), []);
    }

    #[test]
    fn forgets_places_but_not_numbers() {
        let mut index = Index::default();
        let session = session(1);
        let stream = session.id;
        for segment in 1..=4 {
            index.add(session, segment * 10, segment * 10 + 9, at(segment, 64));
        }
        index.cut(at(4, 0));
        index.free(2, Uuid::nil());
        let found = index.find(stream, 1, 10);
        assert_eq!(found.iter().map(|place| place.at.segment).collect::<Vec<_>>(), [2, 3]);
        assert_eq!(index.next_seq(stream), 50);
        index.cut(at(0, 0));
        assert_eq!(index.find(stream, 1, 10), []);
        assert_eq!(index.heads(Uuid::nil()).collect::<Vec<_>>(), [(session, 49)]);
        index.add(session, 50, 50, at(5, 64));
        assert_eq!(index.find(stream, 1, 10), [Place { seq: 50, at: at(5, 64) }]);
    }

    #[test]
    fn nothing_is_left_of_streams_that_do_not_come_back() {
        let mut index = Index::default();
        let (own, gone, here) = (Uuid::from_u128(7), Uuid::from_u128(8), Uuid::from_u128(9));
        for (id, segment) in [(own, 1), (gone, 1), (here, 1), (here, 2)] {
            index.add(Stream { id, kind: StreamKind::Process }, segment, segment, at(segment, 64));
        }
        index.free(2, own);
        assert_eq!((index.next_seq(own), index.next_seq(gone), index.next_seq(here)), (2, 1, 3));
        index.free(3, own);
        assert_eq!(index.streams.len(), 1, "only the journal's own is left");
        assert_eq!(index.heads(own).map(|(stream, _)| stream.id).collect::<Vec<_>>(), [own]);
    }

    #[test]
    fn a_gigabyte_of_ten_thousand_streams_takes_little_room() {
        let mut index = Index::default();
        let (streams, record) = (10_000_u64, 360);
        for number in 0..1_000_000_000 / record {
            let (segment, offset) = (number * record / 67_000_000, number * record % 67_000_000);
            let seq = number / streams + 1;
            index.add(session((number % streams).into()), seq, seq, at(segment, offset));
        }
        let bytes: usize = index.streams.values().map(|entry| entry.places.len()).sum();
        assert!(bytes < 20_000_000, "{bytes}");
    }
}
