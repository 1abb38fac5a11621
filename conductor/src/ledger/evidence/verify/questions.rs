//! What a check asks of the database, one text for both.

use std::collections::VecDeque;

use uuid::Uuid;

use crate::ledger::{
    cell::{Cell, Cells, FromCell},
    error::LedgerError,
    evidence::{
        Hash,
        checkpoint::{Checkpoint, Entry, Head, Kind},
        finding::{Finding, What},
        hex,
        stream::{Columns, Stands},
    },
    question::{Question, Record, Value},
    reader::Reader,
    table::{DECISIONS, TABLES},
};

/// Rows, and about how many bytes of them, that are held at once.
const PAGE: usize = 512;
const CHUNK: usize = 4 << 20;

/// Checkpoints that are held at once with their heads.
const CHECKPOINTS: usize = 32;

/// Most streams that are named as gone.
const MOST_GONE: usize = 1000;

/// Bytes, also where somebody has put something else into the column.
struct Lenient(Vec<u8>);

impl FromCell for Lenient {
    fn from_cell(cell: Cell) -> Result<Self, Cell> {
        match cell {
            Cell::Bytes(bytes) => Ok(Self(bytes)),
            Cell::Text(text) | Cell::Json(text) | Cell::Number(text) => Ok(Self(text.into_bytes())),
            Cell::Int(number) => Ok(Self(number.to_string().into_bytes())),
            other => Err(other),
        }
    }
}

impl Record for Stands {
    const COLUMNS: &'static [&'static str] = &[
        "seq",
        "stream_kind",
        "at_us",
        "origin",
        "destination",
        "outgoing_id",
        "raw",
        "hash",
        "chain",
        "kind",
        "method",
        "request_id",
        "CAST(binding_id AS text)",
        "CAST(json AS text)",
    ];

    fn from_row(mut row: Cells) -> Result<Self, LedgerError> {
        let bytes = |bytes: Option<Lenient>| bytes.map(|Lenient(bytes)| bytes);
        Ok(Self {
            seq: row.take()?,
            stream_kind: row.take()?,
            at_us: row.take()?,
            origin: row.take()?,
            destination: row.take()?,
            outgoing_id: row.take()?,
            raw: bytes(row.take()?),
            hash: row.take::<Lenient>()?.0,
            chain: bytes(row.take()?),
            columns: Some(Columns {
                kind: row.take()?,
                method: row.take()?,
                request_id: row.take()?,
                binding_id: row.take()?,
                json: row.take()?,
            }),
        })
    }
}

/// One text.
struct Text(String);

impl Record for Text {
    const COLUMNS: &'static [&'static str] = &[];

    fn from_row(mut row: Cells) -> Result<Self, LedgerError> {
        Ok(Self(row.take()?))
    }
}

/// One number.
struct Number(i64);

impl Record for Number {
    const COLUMNS: &'static [&'static str] = &[];

    fn from_row(mut row: Cells) -> Result<Self, LedgerError> {
        Ok(Self(row.take()?))
    }
}

/// A signed head of a stream, and by which kind of checkpoint.
#[derive(Debug)]
pub(super) struct Leaf {
    pub(super) kind: String,
    pub(super) head: Head,
    /// Which checkpoint that is.
    pub(super) journal: Uuid,
    pub(super) number: i64,
}

impl Record for Leaf {
    const COLUMNS: &'static [&'static str] = &[
        "c.kind",
        "CAST(h.stream_id AS text)",
        "h.seq",
        "h.chain",
        "CAST(h.journal_id AS text)",
        "h.number",
    ];

    fn from_row(mut row: Cells) -> Result<Self, LedgerError> {
        let kind = row.take()?;
        let head = head(&mut row)?;
        let journal = id(&row.take::<String>()?)?;
        Ok(Self { kind, head, journal, number: row.take()? })
    }
}

/// The end of a stream, and whether it is said to be signed.
struct End(Head, bool);

impl Record for End {
    const COLUMNS: &'static [&'static str] = &["CAST(stream_id AS text)", "seq", "chain", "checkpoint"];

    fn from_row(mut row: Cells) -> Result<Self, LedgerError> {
        let head = head(&mut row)?;
        Ok(Self(head, row.take::<Option<i64>>()?.is_some()))
    }
}

/// Columns as text, as many as were asked for.
struct Texts(Vec<Option<String>>);

impl Record for Texts {
    const COLUMNS: &'static [&'static str] = &[];

    fn from_row(mut row: Cells) -> Result<Self, LedgerError> {
        TABLES[DECISIONS].columns.iter().map(|_| row.take()).collect::<Result<_, _>>().map(Self)
    }
}

/// A row of `checkpoints`; `Err` is one that cannot have been signed.
struct Signed(Result<Checkpoint, i64>);

impl Record for Signed {
    const COLUMNS: &'static [&'static str] = &[
        "CAST(journal_id AS text)",
        "number",
        "kind",
        "at_us",
        "previous",
        "root",
        "leaves",
        "key_id",
        "note",
        "signature",
    ];

    fn from_row(mut row: Cells) -> Result<Self, LedgerError> {
        let journal = id(&row.take::<String>()?)?;
        let number = row.take()?;
        let kind = Kind::from_name(&row.take::<String>()?);
        let at_us = row.take()?;
        let (previous, root) = (hash(&mut row)?, hash(&mut row)?);
        let (leaves, key_id, note) = (row.take()?, row.take()?, row.take()?);
        let signature = hex(&row.take::<Lenient>()?.0);
        Ok(Self(match (kind, previous, root) {
            (Some(kind), Some(previous), Some(root)) => Ok(Checkpoint {
                journal,
                number,
                kind,
                at_us,
                previous,
                root,
                leaves,
                key_id,
                note,
                signature,
            }),
            _ => Err(number),
        }))
    }
}

/// A row of `checkpoint_heads` with its checkpoint's number.
struct Under(i64, Head);

impl Record for Under {
    const COLUMNS: &'static [&'static str] = &["number", "CAST(stream_id AS text)", "seq", "chain"];

    fn from_row(mut row: Cells) -> Result<Self, LedgerError> {
        let number = row.take()?;
        Ok(Self(number, head(&mut row)?))
    }
}

/// A hash that is none cannot be signed: whatever stands there instead differs from all.
fn head(row: &mut Cells) -> Result<Head, LedgerError> {
    let (stream, seq) = (id(&row.take::<String>()?)?, row.take()?);
    Ok(Head { stream, seq, chain: hash(row)?.unwrap_or_default() })
}

fn hash(row: &mut Cells) -> Result<Option<Hash>, LedgerError> {
    Ok(row.take::<Lenient>()?.0.try_into().ok())
}

fn id(text: &str) -> Result<Uuid, LedgerError> {
    Uuid::try_parse(text).map_err(|_| LedgerError::Corrupt(format!("{text:?} stands where an id should")))
}

fn select<T: Record>(from: &str) -> Question {
    Question::new(format!("SELECT {} FROM {from}", T::COLUMNS.join(", ")))
}

/// Streams that were signed and have no frames.
pub(super) struct Stored {
    /// How many of them a retention is on record for.
    pub(super) retained: u64,
    /// The others.
    pub(super) missing: Vec<Uuid>,
}

impl Reader {
    /// Whether this ledger, a file, is not from before there were any.
    pub(in crate::ledger) async fn has_checkpoints(&mut self) -> Result<bool, LedgerError> {
        let question = Question::new("SELECT count(*) FROM sqlite_schema WHERE name = 'checkpoints'");
        Ok(self.number(question).await? > 0)
    }

    /// Whose checkpoints there are.
    pub(in crate::ledger) async fn journals(&mut self) -> Result<Vec<Uuid>, LedgerError> {
        let question = Question::new("SELECT DISTINCT CAST(journal_id AS text) FROM checkpoints ORDER BY 1");
        self.ask(question, usize::MAX).await?.iter().map(|Text(text)| id(text)).collect()
    }

    pub(super) async fn last_checkpoint(&mut self, journal: Uuid) -> Result<i64, LedgerError> {
        let mut question = Question::new("SELECT COALESCE(max(number), 0) FROM checkpoints");
        question.bind(" WHERE journal_id = ?", Value::Id(journal));
        self.number(question).await
    }

    async fn number(&mut self, question: Question) -> Result<i64, LedgerError> {
        Ok(self.ask(question, usize::MAX).await?.first().map_or(0, |Number(number)| *number))
    }

    pub(super) async fn frames_in(&mut self, stream: Option<Uuid>) -> Result<u64, LedgerError> {
        let mut question = Question::new("SELECT count(*) FROM frames");
        if let Some(stream) = stream {
            question.bind(" WHERE stream_id = ?", Value::Id(stream));
        }
        Ok(u64::try_from(self.number(question).await?).unwrap_or_default())
    }

    /// The next stream that has frames, in order.
    pub(super) async fn stream_after(
        &mut self,
        after: Uuid,
        since_us: Option<i64>,
    ) -> Result<Option<Uuid>, LedgerError> {
        let mut question = Question::new("SELECT CAST(stream_id AS text) FROM frames");
        question.bind(" WHERE stream_id > ?", Value::Id(after));
        if let Some(since) = since_us {
            question.bind(" AND at_us >= ?", Value::Int(since));
        }
        question.push(" ORDER BY frames.stream_id LIMIT 1");
        self.ask(question, usize::MAX).await?.first().map(|Text(text)| id(text)).transpose()
    }

    pub(super) async fn rows(&mut self, stream: Uuid, after: i64) -> Result<Vec<Stands>, LedgerError> {
        let mut question = select::<Stands>("frames");
        question.bind(" WHERE stream_id = ?", Value::Id(stream));
        question.bind(" AND seq > ?", Value::Int(after));
        question.push(&format!(" ORDER BY seq LIMIT {PAGE}"));
        self.ask(question, CHUNK).await
    }

    pub(super) async fn head(&mut self, stream: Uuid) -> Result<Option<(Head, bool)>, LedgerError> {
        let mut question = select::<End>("stream_heads");
        question.bind(" WHERE stream_id = ?", Value::Id(stream));
        Ok(self.ask(question, usize::MAX).await?.into_iter().next().map(|End(head, signed)| (head, signed)))
    }

    pub(super) async fn leaves(&mut self, stream: Uuid) -> Result<Vec<Leaf>, LedgerError> {
        let mut question = select::<Leaf>(
            "checkpoint_heads h JOIN checkpoints c ON c.journal_id = h.journal_id AND c.number = h.number",
        );
        question.bind(" WHERE h.stream_id = ?", Value::Id(stream));
        question.push(" ORDER BY h.seq");
        self.ask(question, usize::MAX).await
    }

    pub(super) async fn decisions(&mut self, session: Uuid) -> Result<Vec<Vec<Option<String>>>, LedgerError> {
        let columns: Vec<_> =
            TABLES[DECISIONS].columns.iter().map(|column| format!("CAST({} AS text)", column.name)).collect();
        let mut question = Question::new(format!("SELECT {} FROM decisions", columns.join(", ")));
        question.bind(" WHERE session_id = ?", Value::Id(session));
        question.push(" ORDER BY decisions.seq");
        Ok(self.ask(question, usize::MAX).await?.into_iter().map(|Texts(row)| row).collect())
    }

    /// The numbers of the checkpoints that introduced keys.
    pub(super) async fn introductions(&mut self, journal: Uuid) -> Result<Vec<i64>, LedgerError> {
        let mut question = Question::new("SELECT number FROM checkpoints WHERE kind = 'key'");
        question.bind(" AND journal_id = ?", Value::Id(journal));
        question.push(" ORDER BY number");
        Ok(self.ask(question, usize::MAX).await?.into_iter().map(|Number(number)| number).collect())
    }

    pub(super) async fn gone(&mut self, only: Option<Uuid>) -> Result<Stored, LedgerError> {
        let known = "(SELECT stream_id FROM checkpoint_heads UNION SELECT stream_id FROM stream_heads) k \
             WHERE NOT EXISTS (SELECT 1 FROM frames f WHERE f.stream_id = k.stream_id)";
        let retained = "EXISTS (SELECT 1 FROM checkpoint_heads h JOIN checkpoints c ON c.journal_id = h.journal_id \
             AND c.number = h.number WHERE h.stream_id = k.stream_id AND c.kind = 'retained')";
        let mut count = Question::new(format!("SELECT count(*) FROM {known} AND {retained}"));
        let mut names =
            Question::new(format!("SELECT CAST(k.stream_id AS text) FROM {known} AND NOT {retained}"));
        if let Some(stream) = only {
            count.bind(" AND k.stream_id = ?", Value::Id(stream));
            names.bind(" AND k.stream_id = ?", Value::Id(stream));
        }
        names.push(&format!(" ORDER BY k.stream_id LIMIT {MOST_GONE}"));
        let retained = u64::try_from(self.number(count).await?).unwrap_or_default();
        let missing: Vec<Text> = self.ask(names, usize::MAX).await?;
        Ok(Stored { retained, missing: missing.iter().map(|Text(text)| id(text)).collect::<Result<_, _>>()? })
    }
}

/// The checkpoints of a journal as the table has them, one after the other.
#[derive(Debug)]
pub struct Table {
    journal: Uuid,
    after: i64,
    page: VecDeque<Result<Entry, Finding>>,
}

impl Table {
    /// From the first on.
    pub fn new(journal: Uuid) -> Self {
        Self { journal, after: 0, page: VecDeque::new() }
    }

    /// From this one on.
    pub(super) fn from(journal: Uuid, number: i64) -> Self {
        Self { after: number - 1, ..Self::new(journal) }
    }

    /// The next one. A row that cannot have been signed is a finding.
    pub async fn next(&mut self, reader: &mut Reader) -> Result<Option<Result<Entry, Finding>>, LedgerError> {
        if self.page.is_empty() {
            self.read(reader).await?;
        }
        Ok(self.page.pop_front())
    }

    async fn read(&mut self, reader: &mut Reader) -> Result<(), LedgerError> {
        let mut question = select::<Signed>("checkpoints");
        question.bind(" WHERE journal_id = ?", Value::Id(self.journal));
        question.bind(" AND number > ?", Value::Int(self.after));
        question.push(&format!(" ORDER BY number LIMIT {CHECKPOINTS}"));
        let signed: Vec<Signed> = reader.ask(question, usize::MAX).await?;
        let number = |signed: &Signed| match &signed.0 {
            Ok(checkpoint) => checkpoint.number,
            Err(number) => *number,
        };
        let Some(last) = signed.last().map(number) else { return Ok(()) };
        let mut question = select::<Under>("checkpoint_heads");
        question.bind(" WHERE journal_id = ?", Value::Id(self.journal));
        question.bind(" AND number > ?", Value::Int(self.after));
        question.bind(" AND number <= ?", Value::Int(last));
        question.push(" ORDER BY number, checkpoint_heads.stream_id");
        let mut heads: VecDeque<Under> = reader.ask::<Under>(question, usize::MAX).await?.into();
        for Signed(checkpoint) in signed {
            self.page.push_back(match checkpoint {
                Ok(checkpoint) => {
                    let mut own = Vec::new();
                    while let Some(Under(_, head)) = heads.pop_front_if(|under| under.0 <= checkpoint.number)
                    {
                        own.push(head);
                    }
                    Ok(Entry { checkpoint, heads: own })
                }
                Err(number) => Err(Finding {
                    what: What::CheckpointAltered,
                    id: Some(self.journal),
                    number: Some(number),
                    why: "its columns hold what no checkpoint has".to_owned(),
                }),
            });
        }
        self.after = last;
        Ok(())
    }
}
