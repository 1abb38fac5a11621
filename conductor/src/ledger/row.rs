//! A frame as it goes into the ledger, with what it says of the derived
//! tables, and how the facts of many frames become one row per key.

use std::collections::HashMap;

use bytes::Bytes;
use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use super::{
    error::LedgerError,
    evidence::{Hash, chain::Link},
    project::{self, Envelope, FrameView},
    table::{Fact, TABLES, Value},
};
use crate::{
    journal::Record,
    record::{Destination, Origin, Stream},
};

/// The columns of `frames`, as both databases have them.
pub const COLUMNS: [&str; 15] = [
    "stream_id",
    "seq",
    "stream_kind",
    "at_us",
    "origin",
    "destination",
    "kind",
    "method",
    "request_id",
    "outgoing_id",
    "binding_id",
    "raw",
    "json",
    "hash",
    "chain",
];

/// About so many bytes of frames are read back at once, or one frame.
pub const PAGE_BYTES: usize = 4 << 20;

/// The last moment both databases have a date for: the year 9999.
pub const LAST_US: i64 = 253_402_300_799_000_000;

/// A row of `frames` and its facts.
#[derive(Debug, Clone)]
pub struct Row {
    /// What it is numbered in.
    pub stream: Stream,
    /// Its number.
    pub seq: i64,
    /// When it was recorded.
    pub at_us: i64,
    /// Who made it.
    pub origin: Origin,
    /// Whom it is for.
    pub to: Destination,
    /// The id it was passed on with.
    pub outgoing: Option<i64>,
    /// What a look at it told.
    pub envelope: Envelope,
    /// The bytes.
    pub raw: Bytes,
    /// Whether these were erased, and only their hash is left.
    pub is_erased: bool,
    /// SHA-256 of them.
    pub hash: Hash,
    /// Its place in the stream's chain, if it is to have one.
    pub chain: Option<Hash>,
    /// What it says of the derived tables.
    pub facts: Vec<Fact>,
}

/// A frame as it was stored, to be folded again.
#[derive(Debug, Clone)]
pub struct Stored {
    /// What it is numbered in.
    pub stream: Stream,
    /// Its number.
    pub seq: i64,
    /// When it was recorded.
    pub at_us: i64,
    /// Who made it.
    pub origin: Origin,
    /// Whom it is for.
    pub to: Destination,
    /// The id it was passed on with.
    pub outgoing: Option<i64>,
    /// The bytes.
    pub raw: Bytes,
    /// SHA-256 of the bytes, if these were erased.
    pub erased: Option<Hash>,
    /// Its place in the stream's chain, if it was given one.
    pub chain: Option<Hash>,
}

/// How far a journal has been carried over; committed with the rows.
#[derive(Debug, Clone)]
pub struct Reached {
    /// The journal.
    pub journal: Uuid,
    /// The host it is on.
    pub host: String,
    /// The segment.
    pub segment: u64,
    /// The place in it.
    pub offset: u64,
}

impl Stored {
    /// The frames of a record of the journal by their numbers; of those that were erased nothing is left.
    pub fn all_of(record: &Record) -> impl Iterator<Item = (i64, Option<Self>)> + '_ {
        let mut outgoing = record.outgoing.iter().peekable();
        record.lines().enumerate().map(move |(index, line)| {
            let index = u32::try_from(index).unwrap_or(u32::MAX);
            let forwarded = outgoing.next_if(|(at, _)| *at == index).map(|(_, id)| *id);
            let seq = record.first_seq.saturating_add(u64::from(index));
            let seq = i64::try_from(seq).unwrap_or(i64::MAX);
            let frame = (!record.is_erased(line)).then(|| Self {
                stream: record.stream,
                seq,
                at_us: record.at_us,
                origin: record.origin,
                to: record.to,
                outgoing: forwarded.and_then(|id| i64::try_from(id).ok()),
                raw: record.frames.slice_ref(line),
                erased: None,
                chain: None,
            });
            (seq, frame)
        })
    }

    /// SHA-256 of its bytes.
    pub fn hash(&self) -> Hash {
        self.erased.unwrap_or_else(|| Sha256::digest(&self.raw).into())
    }

    /// Its place in the chain: the one it was given, or the one behind the frame
    /// before it.
    pub fn chained(&self, before: &Hash) -> Hash {
        self.chain.unwrap_or_else(|| {
            let link = Link {
                stream: self.stream.id,
                stream_kind: self.stream.kind.name(),
                seq: self.seq,
                at_us: self.at_us,
                origin: self.origin.name(),
                destination: self.to.name(),
                outgoing: self.outgoing,
                hash: &self.hash(),
            };
            link.after(before)
        })
    }

    /// Folds it into the state of its stream; what it says is the answer.
    pub fn project(self, state: &mut project::State) -> Row {
        let view = FrameView {
            stream: self.stream,
            seq: u64::try_from(self.seq).unwrap_or_default(),
            at_us: self.at_us,
            origin: self.origin,
            to: self.to,
            outgoing: self.outgoing.and_then(|id| u64::try_from(id).ok()),
            raw: &self.raw,
        };
        let projected = project::project(state, &view);
        Row {
            stream: self.stream,
            seq: self.seq,
            at_us: self.at_us,
            origin: self.origin,
            to: self.to,
            outgoing: self.outgoing,
            envelope: projected.envelope,
            is_erased: self.erased.is_some(),
            hash: self.hash(),
            chain: self.chain,
            raw: self.raw,
            facts: projected.facts,
        }
    }
}

impl Row {
    /// Its place in the chain behind the frame before it.
    pub fn chained(&self, before: &Hash) -> Hash {
        let link = Link {
            stream: self.stream.id,
            stream_kind: self.stream.kind.name(),
            seq: self.seq,
            at_us: self.at_us,
            origin: self.origin.name(),
            destination: self.to.name(),
            outgoing: self.outgoing,
            hash: &self.hash,
        };
        link.after(before)
    }

    /// Its bytes as the database has them.
    pub(super) fn stored_raw(&self) -> Option<&[u8]> {
        (!self.is_erased).then_some(&*self.raw)
    }

    /// The row with nothing in it that a database could refuse: its bytes, its
    /// number, and where it belongs.
    #[must_use]
    pub fn stripped(&self) -> Self {
        let binding = self.envelope.binding;
        Self {
            stream: self.stream,
            seq: self.seq,
            at_us: self.at_us.clamp(0, LAST_US),
            origin: self.origin,
            to: self.to,
            outgoing: self.outgoing,
            envelope: Envelope { kind: "opaque", method: None, request_id: None, binding, json: None },
            raw: self.raw.clone(),
            is_erased: self.is_erased,
            hash: self.hash,
            chain: self.chain,
            facts: Vec::new(),
        }
    }
}

/// The bytes of a frame as they are read back, and their hash if they were erased.
pub(super) fn kept(raw: Option<&[u8]>, stored: &[u8]) -> Result<(Bytes, Option<Hash>), LedgerError> {
    match raw {
        Some(raw) => Ok((Bytes::copy_from_slice(raw), None)),
        None => Ok((Bytes::new(), hash(Some(stored))?)),
    }
}

/// A hash as it is read back.
pub(super) fn hash(bytes: Option<&[u8]>) -> Result<Option<Hash>, LedgerError> {
    let wrong = |_| LedgerError::Corrupt("a hash has not 32 bytes".to_owned());
    bytes.map(|bytes| bytes.try_into().map_err(wrong)).transpose()
}

/// The facts of these rows, merged to one per key, by table.
pub fn merged<'a>(rows: impl Iterator<Item = &'a Row>) -> Vec<Vec<Fact>> {
    let mut merging = Merging::default();
    for row in rows {
        for fact in &row.facts {
            merging.add(fact);
        }
    }
    merging.take()
}

/// Facts on their way to one row per key.
#[derive(Debug, Default)]
pub struct Merging {
    tables: Vec<Vec<Fact>>,
    places: HashMap<Vec<u8>, usize>,
    /// The key at hand; kept for its memory.
    key: Vec<u8>,
}

impl Merging {
    /// Adds what a later frame says. Most frames tell of rows that an earlier
    /// one has told of, so that nothing but what is new need be copied.
    pub fn add(&mut self, fact: &Fact) {
        self.tables.resize_with(TABLES.len(), Vec::new);
        key(fact, &mut self.key);
        let facts = &mut self.tables[fact.table];
        match self.places.get(&self.key).and_then(|at| facts.get_mut(*at)) {
            Some(earlier) => earlier.merge(fact),
            None => {
                self.places.insert(self.key.clone(), facts.len());
                facts.push(fact.clone());
            }
        }
    }

    /// The rows of a table so far.
    pub fn of(&self, table: usize) -> &[Fact] {
        self.tables.get(table).map_or(&[], Vec::as_slice)
    }

    /// How many rows there are.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// The rows by table; nothing is left.
    pub fn take(&mut self) -> Vec<Vec<Fact>> {
        self.places.clear();
        std::mem::take(&mut self.tables)
    }
}

/// Table and key as bytes: values have no hash of their own, as numbers with a
/// point have none.
fn key(fact: &Fact, bytes: &mut Vec<u8>) {
    bytes.clear();
    bytes.push(u8::try_from(fact.table).unwrap_or(u8::MAX));
    for value in fact.key() {
        match value {
            Value::Null => bytes.push(0),
            Value::Id(id) => bytes.extend(id.as_bytes()),
            Value::Int(number) => bytes.extend(number.to_le_bytes()),
            Value::Real(number) => bytes.extend(number.to_le_bytes()),
            Value::Bool(yes) => bytes.push(u8::from(*yes)),
            Value::Text(text) | Value::Json(text) => {
                bytes.extend((text.len() as u64).to_le_bytes());
                bytes.extend(text.as_bytes());
            }
        }
    }
}
