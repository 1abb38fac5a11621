//! What a check asks of the database, one text for both.

use std::collections::VecDeque;

use uuid::Uuid;

use super::decisions::Texts;
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
    table::{self, APPROVALS, DECISIONS, Fact, GRANT_USES, GRANTS, TABLES},
};

/// Rows, and about how many bytes of them, that are held at once.
const PAGE: usize = 512;
const CHUNK: usize = 4 << 20;

/// Checkpoints that are held at once with their heads.
const CHECKPOINTS: usize = 32;

/// Most rows that are named of one sort.
const MOST_NAMED: usize = 1000;

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

/// A row of `frames`; `Err` is one that cannot be read, by its number and the column.
pub(super) struct Read(pub(super) Result<Stands, (i64, &'static str)>);

impl Read {
    pub(super) fn seq(&self) -> i64 {
        match &self.0 {
            Ok(row) => row.seq,
            Err((seq, _)) => *seq,
        }
    }
}

impl Record for Read {
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
        let seq = row.take()?;
        Ok(Self(columns(seq, &mut row).map_err(|column| (seq, column))))
    }
}

/// The rest of a row. A file takes anything in any column.
fn columns(seq: i64, row: &mut Cells) -> Result<Stands, &'static str> {
    fn next<T: FromCell>(row: &mut Cells, name: &'static str) -> Result<T, &'static str> {
        row.take().map_err(|_| name)
    }
    Ok(Stands {
        seq,
        stream_kind: next(row, "stream_kind")?,
        at_us: next(row, "at_us")?,
        origin: next(row, "origin")?,
        destination: next(row, "destination")?,
        outgoing_id: next(row, "outgoing_id")?,
        raw: next(row, "raw")?,
        hash: next(row, "hash")?,
        chain: next(row, "chain")?,
        columns: Some(Columns {
            kind: next(row, "kind")?,
            method: next(row, "method")?,
            request_id: next(row, "request_id")?,
            binding_id: next(row, "binding_id")?,
            json: next(row, "json")?,
        }),
    })
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

/// The end of a stream.
pub(super) struct End {
    pub(super) head: Head,
    /// Whether it is said to be signed.
    pub(super) is_signed: bool,
    /// Whose conductor is to sign it.
    pub(super) journal: Option<Uuid>,
}

impl Record for End {
    const COLUMNS: &'static [&'static str] =
        &["CAST(stream_id AS text)", "seq", "chain", "checkpoint", "CAST(journal_id AS text)"];

    fn from_row(mut row: Cells) -> Result<Self, LedgerError> {
        let head = head(&mut row)?;
        let is_signed = row.take::<Option<i64>>()?.is_some();
        let journal = row.take::<Option<String>>()?.map(|text| id(&text)).transpose()?;
        Ok(Self { head, is_signed, journal })
    }
}

/// A frame or a checkpoint by its place: the id as it is written, and the number.
pub(super) struct Place(pub(super) String, pub(super) i64);

impl Record for Place {
    const COLUMNS: &'static [&'static str] = &[];

    fn from_row(mut row: Cells) -> Result<Self, LedgerError> {
        Ok(Self(row.take()?, row.take()?))
    }
}

/// Columns as text, as many as were asked for.
pub(super) struct Row(pub(super) Texts);

impl Record for Row {
    const COLUMNS: &'static [&'static str] = &[];

    fn from_row(mut row: Cells) -> Result<Self, LedgerError> {
        let mut texts = Vec::new();
        while !row.is_empty() {
            texts.push(row.take()?);
        }
        Ok(Self(texts))
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
        after: Option<Uuid>,
        since_us: Option<i64>,
    ) -> Result<Option<Uuid>, LedgerError> {
        let mut question = Question::new("SELECT CAST(stream_id AS text) FROM frames WHERE 1 = 1");
        if let Some(after) = after {
            question.bind(" AND stream_id > ?", Value::Id(after));
        }
        if let Some(since) = since_us {
            question.bind(" AND at_us >= ?", Value::Int(since));
        }
        question.push(" ORDER BY frames.stream_id LIMIT 1");
        self.ask(question, usize::MAX).await?.first().map(|Text(text)| id(text)).transpose()
    }

    /// The rows of a stream behind a number, whatever numbers they have.
    pub(super) async fn rows(&mut self, stream: Uuid, after: Option<i64>) -> Result<Vec<Read>, LedgerError> {
        let mut question = select::<Read>("frames");
        question.bind(" WHERE stream_id = ?", Value::Id(stream));
        if let Some(after) = after {
            question.bind(" AND seq > ?", Value::Int(after));
        }
        question.push(&format!(" ORDER BY seq LIMIT {PAGE}"));
        self.ask(question, CHUNK).await
    }

    pub(super) async fn end(&mut self, stream: Uuid) -> Result<Option<End>, LedgerError> {
        let mut question = select::<End>("stream_heads");
        question.bind(" WHERE stream_id = ?", Value::Id(stream));
        Ok(self.ask(question, usize::MAX).await?.pop())
    }

    pub(super) async fn leaves(&mut self, stream: Uuid) -> Result<Vec<Leaf>, LedgerError> {
        let mut question = select::<Leaf>(
            "checkpoint_heads h JOIN checkpoints c ON c.journal_id = h.journal_id AND c.number = h.number",
        );
        question.bind(" WHERE h.stream_id = ?", Value::Id(stream));
        question.push(" ORDER BY h.seq");
        self.ask(question, usize::MAX).await
    }

    pub(super) async fn decisions(&mut self, session: Uuid) -> Result<Vec<Texts>, LedgerError> {
        self.derived(DECISIONS, "session_id", session).await
    }

    /// The rows that are compared with what a stream tells, by table.
    pub(super) async fn compared(
        &mut self,
        stream: Uuid,
        grants: &[Fact],
    ) -> Result<Vec<(usize, Vec<Texts>)>, LedgerError> {
        let mut found = Vec::new();
        for table in [DECISIONS, APPROVALS, GRANT_USES] {
            found.push((table, self.derived(table, "session_id", stream).await?));
        }
        let mut of_grants = Vec::new();
        for grant in grants {
            if let [table::Value::Id(grant)] = grant.key() {
                of_grants.extend(self.derived(GRANTS, "grant_id", *grant).await?);
            }
        }
        found.push((GRANTS, of_grants));
        Ok(found)
    }

    async fn derived(&mut self, table: usize, column: &str, id: Uuid) -> Result<Vec<Texts>, LedgerError> {
        let table = &TABLES[table];
        let columns: Vec<_> =
            table.columns.iter().map(|column| format!("CAST({} AS text)", column.name)).collect();
        let mut question = Question::new(format!("SELECT {} FROM {}", columns.join(", "), table.name));
        question.bind(&format!(" WHERE {}.{column} = ?", table.name), Value::Id(id));
        question.push(&format!(
            " ORDER BY {0}.{1}, {0}.{2}",
            table.name, table.columns[0].name, table.columns[1].name
        ));
        Ok(self.ask(question, usize::MAX).await?.into_iter().map(|Row(row)| row).collect())
    }

    /// Rows that are derived from frames of streams which have none, by table.
    pub(super) async fn orphans(&mut self, only: Option<Uuid>) -> Result<Vec<(usize, Place)>, LedgerError> {
        let mut found = Vec::new();
        for (table, seq) in [(DECISIONS, "seq"), (APPROVALS, "COALESCE(seq, 1)"), (GRANT_USES, "seq")] {
            let name = TABLES[table].name;
            let mut question = Question::new(format!(
                "SELECT CAST(session_id AS text), CAST({seq} AS text) FROM {name} d WHERE session_id IS NOT NULL \
                 AND NOT EXISTS (SELECT 1 FROM frames f WHERE f.stream_id = d.session_id)"
            ));
            if let Some(stream) = only {
                question.bind(" AND session_id = ?", Value::Id(stream));
            }
            question.push(&format!(" ORDER BY 1, 2 LIMIT {MOST_NAMED}"));
            for Row(texts) in self.ask(question, usize::MAX).await? {
                let mut texts = texts.into_iter().map(Option::unwrap_or_default);
                let (session, seq) = (texts.next().unwrap_or_default(), texts.next().unwrap_or_default());
                found.push((table, Place(session, seq.parse().unwrap_or_default())));
            }
        }
        Ok(found)
    }

    /// Frames that came under a number which another has.
    pub(super) async fn conflicts(&mut self, only: Option<Uuid>) -> Result<Vec<Place>, LedgerError> {
        let mut question = Question::new("SELECT CAST(stream_id AS text), seq FROM frame_conflicts");
        if let Some(stream) = only {
            question.bind(" WHERE stream_id = ?", Value::Id(stream));
        }
        question.push(&format!(" ORDER BY 1, 2 LIMIT {MOST_NAMED}"));
        self.ask(question, usize::MAX).await
    }

    /// The numbers of the checkpoints that introduced keys.
    pub(super) async fn introductions(&mut self, journal: Uuid) -> Result<Vec<i64>, LedgerError> {
        let mut question = Question::new("SELECT number FROM checkpoints WHERE kind = 'key'");
        question.bind(" AND journal_id = ?", Value::Id(journal));
        question.push(" ORDER BY number");
        Ok(self.ask(question, usize::MAX).await?.into_iter().map(|Number(number)| number).collect())
    }

    /// Streams that were recorded and have no frames, each with the last that is known of it.
    pub(super) async fn gone(&mut self, only: Option<Uuid>) -> Result<Vec<(Uuid, i64)>, LedgerError> {
        let mut question = Question::new(
            "SELECT CAST(k.stream_id AS text), k.seq FROM (SELECT u.stream_id, max(u.seq) AS seq FROM \
             (SELECT stream_id, seq FROM checkpoint_heads UNION ALL SELECT stream_id, seq FROM stream_heads) u \
             GROUP BY u.stream_id) k WHERE NOT EXISTS (SELECT 1 FROM frames f WHERE f.stream_id = k.stream_id)",
        );
        if let Some(stream) = only {
            question.bind(" AND k.stream_id = ?", Value::Id(stream));
        }
        question.push(" ORDER BY k.stream_id");
        let places: Vec<Place> = self.ask(question, usize::MAX).await?;
        places.iter().map(|Place(text, seq)| Ok((id(text)?, *seq))).collect()
    }
}

/// The checkpoints of a journal as the table has them, one after the other.
#[derive(Debug)]
pub struct Table {
    journal: Uuid,
    /// Behind this one; `None` begins with whatever number there is, since one that no log has
    /// shows that somebody put it there.
    after: Option<i64>,
    page: VecDeque<Result<Entry, Finding>>,
}

impl Table {
    /// From the first on.
    pub fn new(journal: Uuid) -> Self {
        Self { journal, after: None, page: VecDeque::new() }
    }

    /// From this one on.
    pub(super) fn from(journal: Uuid, number: i64) -> Self {
        Self { after: Some(number.saturating_sub(1)), ..Self::new(journal) }
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
        self.behind(&mut question);
        question.push(&format!(" ORDER BY number LIMIT {CHECKPOINTS}"));
        let signed: Vec<Signed> = reader.ask(question, usize::MAX).await?;
        let number = |signed: &Signed| match &signed.0 {
            Ok(checkpoint) => checkpoint.number,
            Err(number) => *number,
        };
        let Some(last) = signed.last().map(number) else { return Ok(()) };
        let mut question = select::<Under>("checkpoint_heads");
        question.bind(" WHERE journal_id = ?", Value::Id(self.journal));
        self.behind(&mut question);
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
        self.after = Some(last);
        Ok(())
    }

    fn behind(&self, question: &mut Question) {
        if let Some(after) = self.after {
            question.bind(" AND number > ?", Value::Int(after));
        }
    }
}
