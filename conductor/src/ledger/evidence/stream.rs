//! Checks one stream, row by row, in order: bytes against their hash, each row
//! against the one before it, the signed heads against the rows they name, and
//! the columns that are read from a frame against the frame. Pure.

use std::collections::{BTreeSet, VecDeque};

use bytes::Bytes;
use uuid::Uuid;

use super::{
    Hash, NOTHING,
    chain::Link,
    checkpoint::{Checkpoint, Head, Kind},
    finding::{Finding, Seen, What},
    sha256,
};
use crate::{
    ledger::{
        project::State,
        row::{Merging, Stored},
        table::{APPROVALS, DECISIONS, Fact, GRANT_USES, GRANTS},
    },
    record::{Destination, Origin, Stream, StreamKind},
};

/// A row of `frames` as the database has it, whatever somebody made of it.
#[derive(Debug, Clone, PartialEq, Default)]
#[allow(missing_docs, reason = "fields are named as the columns are")]
pub struct Stands {
    pub seq: i64,
    pub stream_kind: String,
    pub at_us: i64,
    pub origin: String,
    pub destination: String,
    pub outgoing_id: Option<i64>,
    pub raw: Option<Vec<u8>>,
    pub hash: Vec<u8>,
    pub chain: Option<Vec<u8>>,
    /// What else is read from the frame; `None` if that is not at hand.
    pub columns: Option<Columns>,
}

/// The columns that are read from a frame.
#[derive(Debug, Clone, PartialEq, Default)]
#[allow(missing_docs, reason = "fields are named as the columns are")]
pub struct Columns {
    pub kind: String,
    pub method: Option<String>,
    pub request_id: Option<String>,
    pub binding_id: Option<String>,
    pub json: Option<String>,
}

/// The tables whose rows are compared with what the frames tell.
pub const COMPARED: [usize; 4] = [DECISIONS, APPROVALS, GRANTS, GRANT_USES];

/// What logs say of a stream.
#[derive(Debug, Clone, Default)]
pub struct OnRecord {
    /// The heads that were signed, and how.
    pub signed: Vec<(Head, By)>,
    /// What was erased.
    pub erased: Erased,
    /// What was erased as logs say whose keys are not known.
    pub claimed: Erased,
}

/// How a head was signed. The frames up to it have to be there, whichever it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// As what was recorded, in a log whose key is known.
    Known,
    /// In another log.
    Unknown,
    /// As where a stream ended from which something was taken, which nobody held against the journal.
    Removal,
}

/// Which bytes of a stream were erased.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Erased {
    /// All up to this frame.
    pub to: i64,
    /// And these.
    pub frames: BTreeSet<i64>,
}

impl Erased {
    /// Adds what a checkpoint says of a stream whose head it has.
    pub fn add(&mut self, checkpoint: &Checkpoint, head: &Head) {
        match checkpoint.kind {
            Kind::Erased => self.to = self.to.max(head.seq),
            Kind::Frames => self.frames.extend(checkpoint.frames_of(head.stream)),
            Kind::Heads | Kind::Retained | Kind::Key => {}
        }
    }

    fn covers(&self, seq: i64) -> bool {
        seq <= self.to || self.frames.contains(&seq)
    }
}

/// A stream that is being checked.
#[derive(Debug)]
pub struct StreamCheck {
    stream: Uuid,
    /// Signed heads that are yet to be met, in order.
    signed: VecDeque<(Head, By)>,
    erased: Erased,
    claimed: Erased,
    /// The chain as it is computed, and the last link that is stored.
    computed: Hash,
    stored: Hash,
    /// Rows without a link since then: the first, and how many.
    without: Option<(i64, u64)>,
    last: i64,
    /// Rows behind the last head that a known log has signed, and the first of them: its number
    /// and its time.
    unsigned: u64,
    behind: Option<(i64, i64)>,
    /// Whether another log has signed some of them.
    is_claimed: bool,
    seen: Seen,
    finding: Option<Finding>,
    state: State,
    facts: Merging,
}

/// What came of it.
#[derive(Debug)]
pub struct Checked {
    /// What was looked at.
    pub seen: Seen,
    /// The first thing that is wrong.
    pub finding: Option<Finding>,
    /// What the frames tell of rows that are compared, by table; `None` if not all of it can be told.
    pub facts: Option<Vec<Vec<Fact>>>,
    /// The first frame that no log has signed, and when it was recorded. Rows from before there
    /// were chains do not count.
    pub behind: Option<(i64, i64)>,
}

impl StreamCheck {
    /// Begins.
    pub fn new(stream: Uuid, on_record: OnRecord) -> Self {
        let OnRecord { mut signed, erased, claimed } = on_record;
        signed.sort_unstable_by_key(|(head, _)| head.seq);
        Self {
            stream,
            signed: signed.into(),
            erased,
            claimed,
            computed: NOTHING,
            stored: NOTHING,
            without: None,
            last: 0,
            unsigned: 0,
            behind: None,
            is_claimed: false,
            seen: Seen { streams: 1, ..Seen::default() },
            finding: None,
            state: State::default(),
            facts: Merging::default(),
        }
    }

    /// The number of the last row.
    pub fn last(&self) -> i64 {
        self.last
    }

    /// Looks at the next row.
    pub fn row(&mut self, row: Stands) {
        self.seen.frames += 1;
        // Behind the first bad row nothing can be told.
        if self.finding.is_none()
            && let Err((what, seq, why)) = self.look(row)
        {
            self.finding = Some(Finding::frame(what, self.stream, seq, why));
        }
    }

    /// The next row cannot be read.
    pub fn unreadable(&mut self, seq: i64, column: &str) {
        self.seen.frames += 1;
        if self.finding.is_none() {
            let why = format!("its column {column} holds what no frame has there");
            self.finding = Some(Finding::frame(What::Altered, self.stream, seq, why));
        }
    }

    fn look(&mut self, row: Stands) -> Result<(), (What, i64, String)> {
        let seq = row.seq;
        let expected = self.last.saturating_add(1);
        if seq < 1 {
            return Err((What::Displaced, seq, "frames are numbered from 1".to_owned()));
        }
        if seq < expected {
            return Err((What::Displaced, seq, format!("stands behind frame {}", self.last)));
        }
        let hash: Hash = row
            .hash
            .as_slice()
            .try_into()
            .map_err(|_| (What::Altered, seq, format!("its hash has {} bytes", row.hash.len())))?;
        self.bytes(&row, &hash)?;
        let link = Link {
            stream: self.stream,
            stream_kind: &row.stream_kind,
            seq,
            at_us: row.at_us,
            origin: &row.origin,
            destination: &row.destination,
            outgoing: row.outgoing_id,
            hash: &hash,
        };
        let computed = link.after(&self.computed);
        match row.chain.as_deref() {
            None => {
                self.without.get_or_insert((seq, 0)).1 += 1;
                self.seen.unchained += 1;
                self.computed = computed;
            }
            Some(chain) => {
                self.link(seq, chain, &computed, &link.after(&self.stored))?;
                self.without = None;
                self.computed = chain.try_into().unwrap_or(computed);
                self.stored = self.computed;
            }
        }
        self.last = seq;
        self.unsigned += 1;
        self.behind.get_or_insert((seq, row.at_us));
        self.heads(seq)?;
        self.columns(row)
    }

    /// A link that is stored: it follows the row before it. Rows without a link are older
    /// than all that have one and are followed, too, or came into a gap: then the chain
    /// goes on around them.
    fn link(
        &mut self,
        seq: i64,
        stored: &[u8],
        behind: &Hash,
        around: &Hash,
    ) -> Result<(), (What, i64, String)> {
        let follows = stored == behind;
        match self.without {
            Some((_, count)) if stored == around && !follows => {
                self.seen.outside += count;
                Ok(())
            }
            Some((first, _)) if self.stored != NOTHING => {
                Err((What::Altered, first, "its link of the chain was taken away".to_owned()))
            }
            _ if follows => Ok(()),
            _ if seq > self.last.saturating_add(1) => {
                Err((What::Missing, self.last.saturating_add(1), format!("the next one there is {seq}")))
            }
            _ => {
                let why = "it does not follow the frame before it in the chain".to_owned();
                Err((What::Displaced, seq, why))
            }
        }
    }

    /// The bytes, or that they were erased.
    fn bytes(&mut self, row: &Stands, hash: &Hash) -> Result<(), (What, i64, String)> {
        match &row.raw {
            Some(raw) if sha256(raw) != *hash => {
                Err((What::Altered, row.seq, "its bytes are not those that its hash is of".to_owned()))
            }
            None if !self.erased.covers(row.seq) => {
                let why = match self.claimed.covers(row.seq) {
                    true => {
                        "its bytes are gone, and only a log whose key is not known says that they were erased: \
                         name its key with --public-key"
                    }
                    false => "its bytes are gone, and no erasure is on record",
                };
                Err((What::Altered, row.seq, why.to_owned()))
            }
            None => {
                self.seen.erased += 1;
                Ok(())
            }
            Some(_) => Ok(()),
        }
    }

    /// The heads that were signed when this was the last row.
    fn heads(&mut self, seq: i64) -> Result<(), (What, i64, String)> {
        while let Some((head, by)) = self.signed.front().filter(|(head, _)| head.seq <= seq) {
            if head.seq < seq {
                return Err((What::Missing, head.seq, "a checkpoint has signed it".to_owned()));
            }
            if head.chain != self.computed {
                let why = "a checkpoint has signed other frames up to this one; they were rewritten, here or before";
                return Err((What::Altered, seq, why.to_owned()));
            }
            match by {
                By::Known => (self.unsigned, self.behind, self.is_claimed) = (0, None, false),
                By::Unknown => self.is_claimed = self.unsigned > 0,
                By::Removal => {}
            }
            self.signed.pop_front();
        }
        Ok(())
    }

    /// What is read from the frame.
    fn columns(&mut self, row: Stands) -> Result<(), (What, i64, String)> {
        let seq = row.seq;
        let Some(raw) = row.raw else { return Ok(()) };
        let stored = Stored {
            stream: Stream {
                id: self.stream,
                kind: StreamKind::from_name(&row.stream_kind).unwrap_or(StreamKind::Session),
            },
            seq,
            at_us: row.at_us,
            origin: Origin::from_name(&row.origin).unwrap_or(Origin::Conductor),
            to: Destination::from_name(&row.destination).unwrap_or(Destination::Record),
            outgoing: row.outgoing_id,
            raw: Bytes::from(raw),
            erased: None,
            chain: None,
        };
        let told = stored.project(&mut self.state);
        told.facts.iter().filter(|fact| COMPARED.contains(&fact.table)).for_each(|fact| self.facts.add(fact));
        let Some(stands) = row.columns else { return Ok(()) };
        let says = told.envelope;
        let is_stripped = stands.kind == "opaque" && stands.method.is_none() && stands.json.is_none();
        if is_stripped && says.kind != "opaque" {
            let why = "it is stored as bytes only: its columns were emptied, or the database has refused one of its \
                       values, which the service's log said then";
            return Err((What::Altered, seq, why.to_owned()));
        }
        let binding = says.binding.map(|id| id.to_string());
        let differs = [
            ("kind", stands.kind != says.kind),
            ("method", stands.method != says.method),
            ("request_id", stands.request_id != says.request_id),
            ("binding_id", stands.binding_id != binding),
            ("json", !same_json(stands.json.as_deref(), says.json.as_deref())),
        ];
        match differs.iter().find(|(_, differs)| *differs) {
            Some((column, _)) => {
                Err((What::Altered, seq, format!("its column {column} is not what its bytes say")))
            }
            None => Ok(()),
        }
    }

    /// What the rows so far have told of a table.
    pub fn told(&self, table: usize) -> &[Fact] {
        self.facts.of(table)
    }

    /// There are no more rows. `head` is the stream's end as it was written down, and
    /// whether it is said to be signed.
    pub fn end(mut self, head: Option<(Head, bool)>) -> Checked {
        if self.finding.is_none() {
            self.finding = self.cut().or_else(|| self.ending(head)).or_else(|| self.claimed());
        }
        self.finished()
    }

    /// There are no more rows, and nothing else says where the stream ended.
    pub fn end_alone(mut self) -> Checked {
        if self.finding.is_none() {
            self.finding = self.cut();
        }
        self.finished()
    }

    fn finished(mut self) -> Checked {
        self.seen.unsigned = if self.finding.is_none() { self.unsigned } else { 0 };
        let is_good = self.finding.is_none();
        let whole = self.seen.erased == 0 && is_good;
        let facts = whole.then(|| self.facts.take());
        let behind = self.behind.filter(|_| is_good && self.stored != NOTHING);
        Checked { seen: self.seen, finding: self.finding, facts, behind }
    }

    /// Whether only a log whose key is not known has signed the last frames.
    fn claimed(&self) -> Option<Finding> {
        let (first, _) = self.behind.filter(|_| self.is_claimed)?;
        let why = "only a log whose key is not known has signed it: name its key with --public-key";
        Some(Finding::frame(What::Unsigned, self.stream, first, why))
    }

    /// Whether frames are missing at the end that were signed.
    fn cut(&self) -> Option<Finding> {
        let (signed, _) = self.signed.back()?;
        let why = format!("a checkpoint has signed frames up to {}", signed.seq);
        Some(Finding::frame(What::TailCut, self.stream, self.last.saturating_add(1), why))
    }

    fn ending(&self, head: Option<(Head, bool)>) -> Option<Finding> {
        let found = |what, seq, why: String| Some(Finding::frame(what, self.stream, seq, why));
        let next = self.last.saturating_add(1);
        if let Some((first, _)) = self.without.filter(|_| self.stored != NOTHING) {
            return found(What::Altered, first, "its link of the chain was taken away".to_owned());
        }
        match head {
            Some((head, _)) if head.seq > self.last => {
                found(What::TailCut, next, format!("stream_heads says that frame {} was the last", head.seq))
            }
            Some((head, _)) if head.seq < self.last => {
                found(What::HeadsDisagree, head.seq + 1, format!("stream_heads ends with frame {}", head.seq))
            }
            Some((head, _)) if head.chain != self.computed => {
                found(What::HeadsDisagree, self.last, "stream_heads has another hash of it".to_owned())
            }
            Some((_, true)) if self.unsigned > 0 && !self.is_claimed => {
                let why = "stream_heads says that a checkpoint has signed it, and none has".to_owned();
                found(What::Unsigned, self.last, why)
            }
            None if self.stored != NOTHING => {
                found(What::HeadsDisagree, self.last, "stream_heads does not know the stream".to_owned())
            }
            _ => None,
        }
    }
}

/// Whether two JSON texts mean the same. A database may write it otherwise; what no
/// parser here takes cannot be compared.
pub(crate) fn same_json(one: Option<&str>, other: Option<&str>) -> bool {
    use serde_json::Value;
    fn same(one: &Value, other: &Value) -> bool {
        match (one, other) {
            (Value::Number(one), Value::Number(other)) => one.as_f64() == other.as_f64(),
            (Value::Array(one), Value::Array(other)) => {
                one.len() == other.len() && one.iter().zip(other).all(|(one, other)| same(one, other))
            }
            (Value::Object(one), Value::Object(other)) => {
                let both =
                    |(key, value): (&String, &Value)| other.get(key).is_some_and(|also| same(value, also));
                one.len() == other.len() && one.iter().all(both)
            }
            _ => one == other,
        }
    }
    match (one, other) {
        (None, None) => true,
        (Some(one), Some(other)) if one == other => true,
        (Some(one), Some(other)) => match (serde_json::from_str(one), serde_json::from_str(other)) {
            (Ok(one), Ok(other)) => same(&one, &other),
            (Err(_), Err(_)) => true,
            _ => false,
        },
        _ => false,
    }
}
