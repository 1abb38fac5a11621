//! Filling the index: some of the rows that have changed at a time, in a
//! transaction with the notes that say so. Whoever is interrupted has done
//! nothing, and the notes are still there.

use std::collections::{HashMap, HashSet};

use futures_util::TryStreamExt as _;
use sqlx::{PgConnection, Row as _, SqliteConnection};
use uuid::Uuid;

use super::{
    Source,
    document::{Key, ROWS, Row, Tag, folded_line, fts_words, tsvector},
};
use crate::ledger::{cell, error::LedgerError, question::Record, sink::Sink};

/// So many rows at a time, and about so many bytes.
const STEP: usize = 512;
const MOST_BYTES: usize = 4 << 20;

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
        "SELECT k.doc, {} FROM (SELECT p.session_id, p.source, p.seq, p.item, d.doc FROM search_pending p \
         LEFT JOIN search_docs d ON d.session_id = p.session_id AND d.source = p.source AND d.seq = p.seq \
         AND d.item = p.item \
         ORDER BY p.session_id DESC, p.source DESC, p.seq DESC, p.item DESC LIMIT {STEP}) k{ROWS}",
        Row::COLUMNS.join(", ")
    );
    let (mut documents, mut bytes) = (Vec::new(), 0);
    let mut rows = sqlx::query(sqlx::AssertSqlSafe(question)).fetch(&mut *connection);
    while bytes < MOST_BYTES
        && let Some(row) = rows.try_next().await?
    {
        let (document, size) = Document::new(cell::of_sqlite(&row)?)?;
        bytes += size;
        documents.push(document);
    }
    drop(rows);
    for document in &documents {
        write_sqlite(connection, document).await?;
    }
    Ok(documents.len() == STEP || bytes >= MOST_BYTES)
}

async fn write_sqlite(connection: &mut SqliteConnection, document: &Document) -> Result<(), LedgerError> {
    let Document { known, row, text } = document;
    let Key { session, source, seq, item } = row.key;
    let session = session.to_string();
    if let Some(doc) = known {
        // Its words go with it, by a trigger.
        sqlx::query("DELETE FROM search_docs WHERE doc = ?").bind(doc).execute(&mut *connection).await?;
    }
    sqlx::query("DELETE FROM search_pending WHERE session_id = ? AND source = ? AND seq = ? AND item = ?")
        .bind(&session)
        .bind(source.name())
        .bind(seq)
        .bind(item)
        .execute(&mut *connection)
        .await?;
    let Some(text) = text else { return Ok(()) };
    let mut doc = known.unwrap_or_else(|| row.wished_doc());
    for _ in 0..MOST_TRIES {
        let insert = sqlx::query(
            "INSERT INTO search_docs (doc, session_id, source, seq, item, turn, agent, label) \
             VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (doc) DO NOTHING",
        );
        let insert = insert.bind(doc).bind(&session).bind(source.name()).bind(seq).bind(item);
        let insert = insert.bind(row.turn).bind(&row.agent).bind(&row.label);
        if insert.execute(&mut *connection).await?.rows_affected() == 1 {
            break;
        }
        doc += 1;
    }
    let tags = row.tags();
    let joined = |form: fn(&Tag) -> String| tags.iter().map(form).collect::<Vec<_>>().join(" ");
    sqlx::query("INSERT INTO search_words (rowid, words, tags) VALUES (?, ?, ?)")
        .bind(doc)
        .bind(fts_words(text))
        .bind(joined(Tag::word))
        .execute(&mut *connection)
        .await?;
    if let Some(line) = document.line() {
        sqlx::query("INSERT INTO search_lines (rowid, line, tags) VALUES (?, ?, ?)")
            .bind(doc)
            .bind(line)
            .bind(joined(Tag::trigram))
            .execute(&mut *connection)
            .await?;
    }
    Ok(())
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
    let query = with_keys!(sqlx::query(sqlx::AssertSqlSafe(question)), Keys::of(keys.iter()));
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
    with_keys!(sqlx::query(sqlx::AssertSqlSafe(unmark)), done).execute(&mut *connection).await?;
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
    let insert = "INSERT INTO search_docs (session_id, source, seq, item, doc, turn, agent, label, words, line) \
         SELECT p.session_id, p.source, p.seq, p.item, p.doc, p.turn, p.agent, p.label, p.words::tsvector, p.line \
         FROM UNNEST($1::uuid[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::text[], \
         $8::text[], $9::text[], $10::text[]) \
         AS p(session_id, source, seq, item, doc, turn, agent, label, words, line) \
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
