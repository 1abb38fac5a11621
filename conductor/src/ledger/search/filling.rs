//! Filling the index: some of the rows that have changed at a time, in a
//! transaction with the notes that say so. Whoever is interrupted has done
//! nothing, and the notes are still there.

use std::collections::{HashMap, HashSet};

use futures_util::TryStreamExt as _;
use sqlx::{AssertSqlSafe, PgConnection, Row as _, SqliteConnection};
use uuid::Uuid;

use super::{
    Source,
    document::{Key, ROWS, Row, Tag, folded_line, fts_words, pairs, tsvector},
    listed,
};
use crate::ledger::{cell, error::LedgerError, question::Record, sink::Sink};

/// So many rows at a time, and about so many bytes.
const STEP: usize = 512;
const MOST_BYTES: usize = 4 << 20;

/// So many rows go into one statement of SQLite's.
const ROWS_AT_ONCE: usize = 64;

/// How often another number is tried for a document; so many never come at once.
const MOST_TRIES: usize = 10_000;

/// A row to be indexed.
struct Document {
    /// The number that it has, if it was indexed before.
    known: Option<i64>,
    row: Row,
    text: Option<String>,
}

impl Document {
    fn new(cells: Vec<cell::Cell>) -> Result<(Self, usize), LedgerError> {
        let bytes = cells.iter().map(cell::Cell::size).sum();
        let mut cells = cell::Cells::new(cells);
        let known = cells.take()?;
        let row = Row::from_row(cells)?;
        let text = row.searchable();
        Ok((Self { known, row, text }, bytes))
    }

    fn line(&self) -> Option<String> {
        self.text.as_deref().filter(|_| self.row.key.source.is_line()).map(folded_line)
    }

    fn pairs(&self) -> String {
        pairs(self.text.as_deref().unwrap_or_default())
    }
}

impl Sink {
    /// Indexes some of what has changed, and says whether there may be more.
    pub async fn index_some(&mut self) -> Result<bool, LedgerError> {
        self.begin(false).await?;
        let done = match self {
            Self::Postgres(sink) => postgres(sink.connection()).await,
            Self::Sqlite(sink) => sqlite(sink.connection()).await,
        };
        match done {
            Ok(more) => {
                self.run("COMMIT").await?;
                Ok(more)
            }
            Err(error) => {
                // If that fails, too, the connection is of no more use.
                self.run("ROLLBACK").await.map_err(|_| error.clone())?;
                Err(LedgerError::Value(error.to_string()))
            }
        }
    }

    /// Forgets the whole index, within a transaction in which everything is made
    /// anew.
    pub async fn forget_index(&mut self) -> Result<(), LedgerError> {
        let first = match self {
            Self::Postgres(_) => "SELECT 1",
            // Faster than row after row.
            Self::Sqlite(_) => {
                "INSERT INTO search_words (search_words) VALUES ('delete-all'); \
                 INSERT INTO search_lines (search_lines) VALUES ('delete-all')"
            }
        };
        for statement in [first, "DELETE FROM search_docs", "DELETE FROM search_pending"] {
            self.run_long(statement).await?;
        }
        Ok(())
    }
}

async fn sqlite(connection: &mut SqliteConnection) -> Result<bool, LedgerError> {
    let question = format!(
        "SELECT k.doc, {}, k.note FROM (SELECT p.session_id, p.source, p.seq, p.item, d.doc, p.rowid AS note \
         FROM search_pending p LEFT JOIN search_docs d ON d.session_id = p.session_id AND d.source = p.source \
         AND d.seq = p.seq AND d.item = p.item \
         ORDER BY p.session_id DESC, p.source DESC, p.seq DESC, p.item DESC LIMIT {STEP}) k{ROWS}",
        Row::COLUMNS.join(", ")
    );
    let (mut notes, mut documents, mut bytes) = (Vec::new(), Vec::new(), 0);
    let mut rows = sqlx::query(AssertSqlSafe(question)).fetch(&mut *connection);
    while bytes < MOST_BYTES
        && let Some(row) = rows.try_next().await?
    {
        let (document, size) = Document::new(cell::of_sqlite(&row)?)?;
        notes.push(row.try_get(row.len() - 1)?);
        bytes += size;
        documents.push(document);
    }
    drop(rows);
    let more = documents.len() == STEP || bytes >= MOST_BYTES;
    write_sqlite(connection, &notes, documents).await?;
    Ok(more)
}

/// Writes documents in as few statements as can be: a hop to the driver's thread
/// costs more than a row does.
async fn write_sqlite(
    connection: &mut SqliteConnection,
    notes: &[i64],
    documents: Vec<Document>,
) -> Result<(), LedgerError> {
    let known: Vec<_> = documents.iter().filter_map(|document| document.known).collect();
    // The words of documents go with them, by a trigger.
    for (from, column, numbers) in
        [("search_docs", "doc", known.as_slice()), ("search_pending", "rowid", notes)]
    {
        let forget = format!("DELETE FROM {from} WHERE {column} IN ({})", listed(numbers));
        sqlx::query(AssertSqlSafe(forget)).persistent(false).execute(&mut *connection).await?;
    }
    let documents: Vec<_> = documents.into_iter().filter(|document| document.text.is_some()).collect();
    let mut documents = numbered(connection, documents).await?;
    // FTS5 gathers words as long as numbers rise, and writes a piece of its index
    // for each one that does not.
    documents.sort_unstable_by_key(|(doc, _)| *doc);
    for some in documents.chunks(ROWS_AT_ONCE) {
        insert_sqlite(connection, some).await?;
    }
    Ok(())
}

/// Documents with the numbers that they get: those they have or wish, or the next
/// that nobody has. Nobody else writes meanwhile.
async fn numbered(
    connection: &mut SqliteConnection,
    documents: Vec<Document>,
) -> Result<Vec<(i64, Document)>, LedgerError> {
    let (mut given, mut done) = (HashSet::new(), Vec::with_capacity(documents.len()));
    let mut left: Vec<_> = documents
        .into_iter()
        .map(|document| (document.known.unwrap_or_else(|| document.row.wished_doc()), document))
        .collect();
    for _ in 0..MOST_TRIES {
        if left.is_empty() {
            break;
        }
        let wishes: Vec<_> = left.iter().map(|(doc, _)| *doc).collect();
        let question = format!("SELECT doc FROM search_docs WHERE doc IN ({})", listed(&wishes));
        let taken: Vec<i64> =
            sqlx::query_scalar(AssertSqlSafe(question)).persistent(false).fetch_all(&mut *connection).await?;
        given.extend(taken);
        let (free, other): (Vec<_>, Vec<_>) = left.into_iter().partition(|(doc, _)| given.insert(*doc));
        done.extend(free);
        left = other.into_iter().map(|(doc, document)| (doc + 1, document)).collect();
    }
    Ok(done)
}

async fn insert_sqlite(
    connection: &mut SqliteConnection,
    documents: &[(i64, Document)],
) -> Result<(), LedgerError> {
    let insert = format!(
        "INSERT INTO search_docs (doc, session_id, source, seq, item, turn, agent, label) VALUES {}",
        places(documents.len(), 8)
    );
    let mut query = sqlx::query(AssertSqlSafe(insert));
    for (doc, Document { row, .. }) in documents {
        let Key { session, source, seq, item } = row.key;
        query = query.bind(doc).bind(session.to_string()).bind(source.name()).bind(seq).bind(item);
        query = query.bind(row.turn).bind(&row.agent).bind(&row.label);
    }
    query.execute(&mut *connection).await?;

    let joined = |document: &Document, form: fn(&Tag) -> String| {
        document.row.tags().iter().map(form).collect::<Vec<_>>().join(" ")
    };
    let insert =
        format!("INSERT INTO search_words (rowid, words, tags) VALUES {}", places(documents.len(), 3));
    let mut query = sqlx::query(AssertSqlSafe(insert));
    for (doc, document) in documents {
        let words = fts_words(document.text.as_deref().unwrap_or_default());
        query = query.bind(doc).bind(words).bind(joined(document, Tag::word));
    }
    query.execute(&mut *connection).await?;

    let lines: Vec<_> =
        documents.iter().filter_map(|(doc, document)| Some((doc, document, document.line()?))).collect();
    if lines.is_empty() {
        return Ok(());
    }
    let insert = format!("INSERT INTO search_lines (rowid, line, tags) VALUES {}", places(lines.len(), 3));
    let mut query = sqlx::query(AssertSqlSafe(insert));
    for (doc, document, line) in lines {
        query = query.bind(doc).bind(line).bind(joined(document, Tag::trigram));
    }
    query.execute(&mut *connection).await?;
    Ok(())
}

/// Places for the values of so many rows.
fn places(rows: usize, columns: usize) -> String {
    let row = format!("({})", vec!["?"; columns].join(", "));
    vec![row; rows].join(", ")
}

/// Keys as lists, one per column.
struct Keys {
    sessions: Vec<Uuid>,
    sources: Vec<&'static str>,
    seqs: Vec<i64>,
    items: Vec<i64>,
}

impl Keys {
    fn of<'a>(keys: impl Iterator<Item = &'a Key> + Clone) -> Self {
        Self {
            sessions: keys.clone().map(|key| key.session).collect(),
            sources: keys.clone().map(|key| key.source.name()).collect(),
            seqs: keys.clone().map(|key| key.seq).collect(),
            items: keys.map(|key| key.item).collect(),
        }
    }
}

/// Binds keys as the first four parameters.
macro_rules! with_keys {
    ($query:expr, $keys:expr) => {
        $query.bind($keys.sessions).bind($keys.sources).bind($keys.seqs).bind($keys.items)
    };
}

const KEYS: &str =
    "UNNEST($1::uuid[], $2::text[], $3::bigint[], $4::bigint[]) AS p(session_id, source, seq, item)";

async fn postgres(connection: &mut PgConnection) -> Result<bool, LedgerError> {
    // Several conductors may write to one database. Each takes rows that no other
    // has, and whoever changes one of them meanwhile waits.
    let taken = sqlx::query(
        "SELECT session_id, source, seq, item FROM search_pending \
         ORDER BY session_id DESC, source DESC, seq DESC, item DESC LIMIT $1 FOR UPDATE SKIP LOCKED",
    );
    let mut keys = Vec::new();
    for row in taken.bind(i64::try_from(STEP).unwrap_or(i64::MAX)).fetch_all(&mut *connection).await? {
        keys.push(Key {
            session: row.try_get(0)?,
            source: Source::from_name(row.try_get(1)?)?,
            seq: row.try_get(2)?,
            item: row.try_get(3)?,
        });
    }
    if keys.is_empty() {
        return Ok(false);
    }
    // In a statement of its own, which sees what was written up to now.
    let question = format!(
        "SELECT k.doc, {} FROM (SELECT p.session_id, p.source, p.seq, p.item, d.doc FROM {KEYS} \
         LEFT JOIN search_docs d ON d.session_id = p.session_id AND d.source = p.source AND d.seq = p.seq \
         AND d.item = p.item) k{ROWS}",
        Row::COLUMNS.join(", ")
    );
    let (mut documents, mut bytes) = (Vec::new(), 0);
    let query = with_keys!(sqlx::query(AssertSqlSafe(question)), Keys::of(keys.iter()));
    let mut rows = query.fetch(&mut *connection);
    while bytes < MOST_BYTES
        && let Some(row) = rows.try_next().await?
    {
        let (document, size) = Document::new(cell::of_postgres(&row)?)?;
        bytes += size;
        documents.push(document);
    }
    drop(rows);
    let done = Keys::of(documents.iter().map(|document| &document.row.key));
    let unmark = format!(
        "DELETE FROM search_pending t USING {KEYS} WHERE t.session_id = p.session_id AND t.source = p.source \
         AND t.seq = p.seq AND t.item = p.item"
    );
    with_keys!(sqlx::query(AssertSqlSafe(unmark)), done).execute(&mut *connection).await?;
    let old: Vec<_> = documents.iter().filter_map(|document| document.known).collect();
    if !old.is_empty() {
        let forget = sqlx::query("DELETE FROM search_docs WHERE doc = ANY($1)");
        forget.bind(old).execute(&mut *connection).await?;
    }
    let more = keys.len() == STEP || bytes >= MOST_BYTES;
    insert_postgres(connection, documents).await?;
    Ok(more)
}

async fn insert_postgres(connection: &mut PgConnection, documents: Vec<Document>) -> Result<(), LedgerError> {
    let insert = "INSERT INTO search_docs (session_id, source, seq, item, doc, turn, agent, label, words, pairs, line) \
         SELECT p.session_id, p.source, p.seq, p.item, p.doc, p.turn, p.agent, p.label, p.words::tsvector, \
         p.pairs::smallint[], p.line \
         FROM UNNEST($1::uuid[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::text[], \
         $8::text[], $9::text[], $10::text[], $11::text[]) \
         AS p(session_id, source, seq, item, doc, turn, agent, label, words, pairs, line) \
         ON CONFLICT DO NOTHING RETURNING session_id, source, seq, item";
    let mut wishes: HashMap<Key, i64> = HashMap::new();
    let mut left: Vec<_> = documents.into_iter().filter(|document| document.text.is_some()).collect();
    for _ in 0..MOST_TRIES {
        if left.is_empty() {
            break;
        }
        let docs: Vec<_> = left
            .iter()
            .map(|document| {
                let wish = || document.known.unwrap_or_else(|| document.row.wished_doc());
                *wishes.entry(document.row.key).or_insert_with(wish)
            })
            .collect();
        let words: Vec<_> = left
            .iter()
            .map(|document| tsvector(document.text.as_deref().unwrap_or_default(), &document.row.tags()))
            .collect();
        let keys = Keys::of(left.iter().map(|document| &document.row.key));
        let inserted = with_keys!(sqlx::query(insert), keys)
            .bind(docs)
            .bind(left.iter().map(|document| document.row.turn).collect::<Vec<_>>())
            .bind(left.iter().map(|document| document.row.agent.as_deref()).collect::<Vec<_>>())
            .bind(left.iter().map(|document| document.row.label.as_deref()).collect::<Vec<_>>())
            .bind(words)
            .bind(left.iter().map(Document::pairs).collect::<Vec<_>>())
            .bind(left.iter().map(Document::line).collect::<Vec<_>>())
            .fetch_all(&mut *connection)
            .await?;
        let mut stored = HashSet::new();
        for row in inserted {
            stored.insert(Key {
                session: row.try_get(0)?,
                source: Source::from_name(row.try_get(1)?)?,
                seq: row.try_get(2)?,
                item: row.try_get(3)?,
            });
        }
        left.retain(|document| !stored.contains(&document.row.key));
        for document in &left {
            if let Some(doc) = wishes.get_mut(&document.row.key) {
                *doc += 1;
            }
        }
    }
    Ok(())
}
