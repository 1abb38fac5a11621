//! Heads and checkpoints in the database: the statements for both.

use sqlx::{Row as _, postgres::PgRow, sqlite::SqliteRow};
use uuid::Uuid;

use super::{
    Hash,
    checkpoint::{Entry, Head},
};
use crate::ledger::{error::LedgerError, row::Row, sink::Sink};

/// The heads of these rows: the last one of each stream that has a place in its chain.
pub(in crate::ledger) fn heads_of<'a>(rows: impl Iterator<Item = &'a Row>) -> Vec<Head> {
    let mut heads = std::collections::BTreeMap::new();
    for row in rows {
        if let Some(chain) = row.chain {
            let head = Head { stream: row.stream.id, seq: row.seq, chain };
            heads.insert(row.stream.id, head);
        }
    }
    heads.into_values().collect()
}

/// A row's bytes as a hash.
fn hash(bytes: &[u8]) -> Result<Hash, LedgerError> {
    bytes.try_into().map_err(|_| LedgerError::Corrupt("a hash has not 32 bytes".to_owned()))
}

fn id(text: &str) -> Result<Uuid, LedgerError> {
    Uuid::try_parse(text).map_err(|error| LedgerError::Corrupt(format!("a stream's id is none: {error}")))
}

fn of_postgres(row: &PgRow) -> Result<Head, LedgerError> {
    Ok(Head { stream: row.try_get(0)?, seq: row.try_get(1)?, chain: hash(row.try_get(2)?)? })
}

fn of_sqlite(row: &SqliteRow) -> Result<Head, LedgerError> {
    Ok(Head { stream: id(row.try_get(0)?)?, seq: row.try_get(1)?, chain: hash(row.try_get(2)?)? })
}

impl Sink {
    /// Writes heads down, within a transaction. One that is further already stays.
    pub(in crate::ledger) async fn put_heads(
        &mut self,
        journal: Option<Uuid>,
        heads: &[Head],
    ) -> Result<(), LedgerError> {
        if heads.is_empty() {
            return Ok(());
        }
        match self {
            Self::Postgres(sink) => {
                sqlx::query(
                    "INSERT INTO stream_heads AS t (stream_id, journal_id, seq, chain) \
                     SELECT v.stream_id, $1, v.seq, v.chain \
                     FROM UNNEST($2::uuid[], $3::bigint[], $4::bytea[]) AS v(stream_id, seq, chain) \
                     ON CONFLICT (stream_id) DO UPDATE SET journal_id = excluded.journal_id, \
                     seq = excluded.seq, chain = excluded.chain, checkpoint = NULL WHERE t.seq < excluded.seq",
                )
                .bind(journal)
                .bind(heads.iter().map(|head| head.stream).collect::<Vec<_>>())
                .bind(heads.iter().map(|head| head.seq).collect::<Vec<_>>())
                .bind(heads.iter().map(|head| &head.chain[..]).collect::<Vec<_>>())
                .execute(sink.connection())
                .await?;
            }
            Self::Sqlite(sink) => {
                for head in heads {
                    sqlx::query(
                        "INSERT INTO stream_heads AS t (stream_id, journal_id, seq, chain) VALUES (?, ?, ?, ?) \
                         ON CONFLICT (stream_id) DO UPDATE SET journal_id = excluded.journal_id, \
                         seq = excluded.seq, chain = excluded.chain, checkpoint = NULL WHERE t.seq < excluded.seq",
                    )
                    .bind(head.stream.to_string())
                    .bind(journal.map(|id| id.to_string()))
                    .bind(head.seq)
                    .bind(&head.chain[..])
                    .execute(sink.connection())
                    .await?;
                }
            }
        }
        Ok(())
    }

    /// Heads behind a stream that no checkpoint has signed yet and that this journal's conductor
    /// has written, as the table says, at most so many.
    pub async fn unsigned_heads(
        &mut self,
        journal: Uuid,
        after: Option<Uuid>,
        most: i64,
    ) -> Result<Vec<Head>, LedgerError> {
        match self {
            Self::Postgres(sink) => {
                let query = sqlx::query(
                    "SELECT stream_id, seq, chain FROM stream_heads WHERE checkpoint IS NULL \
                     AND journal_id = $1 AND ($2::uuid IS NULL OR stream_id > $2) ORDER BY stream_id LIMIT $3",
                );
                let rows = query.bind(journal).bind(after).bind(most).fetch_all(sink.connection()).await?;
                // A row that is none was written by somebody else, and is nothing to sign.
                Ok(rows.iter().filter_map(|row| of_postgres(row).ok()).collect())
            }
            Self::Sqlite(sink) => {
                let query = sqlx::query(
                    "SELECT stream_id, seq, chain FROM stream_heads WHERE checkpoint IS NULL \
                     AND journal_id = ?1 AND (?2 IS NULL OR stream_id > ?2) ORDER BY stream_id LIMIT ?3",
                );
                let after = after.map(|id| id.to_string());
                let query = query.bind(journal.to_string()).bind(after).bind(most);
                let rows = query.fetch_all(sink.connection()).await?;
                Ok(rows.iter().filter_map(|row| of_sqlite(row).ok()).collect())
            }
        }
    }

    /// Takes note that a checkpoint has signed heads. Those that went on since
    /// are left for the next one.
    pub async fn mark_signed(
        &mut self,
        journal: Uuid,
        number: i64,
        heads: &[Head],
    ) -> Result<(), LedgerError> {
        self.begin(false).await?;
        match self {
            Self::Postgres(sink) => {
                sqlx::query(
                    "UPDATE stream_heads AS t SET checkpoint = $1, journal_id = $2 \
                     FROM UNNEST($3::uuid[], $4::bigint[]) AS v(stream_id, seq) \
                     WHERE t.stream_id = v.stream_id AND t.seq = v.seq",
                )
                .bind(number)
                .bind(journal)
                .bind(heads.iter().map(|head| head.stream).collect::<Vec<_>>())
                .bind(heads.iter().map(|head| head.seq).collect::<Vec<_>>())
                .execute(sink.connection())
                .await?;
            }
            Self::Sqlite(sink) => {
                for head in heads {
                    sqlx::query(
                        "UPDATE stream_heads SET checkpoint = ?, journal_id = ? WHERE stream_id = ? AND seq = ?",
                    )
                    .bind(number)
                    .bind(journal.to_string())
                    .bind(head.stream.to_string())
                    .bind(head.seq)
                    .execute(sink.connection())
                    .await?;
                }
            }
        }
        self.run("COMMIT").await
    }

    /// The number of a journal's last checkpoint in the table, 0 if there is none.
    pub async fn last_checkpoint(&mut self, journal: Uuid) -> Result<i64, LedgerError> {
        Ok(match self {
            Self::Postgres(sink) => {
                let query = sqlx::query_scalar(
                    "SELECT COALESCE(max(number), 0) FROM checkpoints WHERE journal_id = $1",
                );
                query.bind(journal).fetch_one(sink.connection()).await?
            }
            Self::Sqlite(sink) => {
                let query = sqlx::query_scalar(
                    "SELECT COALESCE(max(number), 0) FROM checkpoints WHERE journal_id = ?",
                );
                query.bind(journal.to_string()).fetch_one(sink.connection()).await?
            }
        })
    }

    /// Puts checkpoints into the table, in one transaction. Those that are there
    /// already stay as they are.
    pub async fn add_checkpoints(&mut self, entries: &[Entry]) -> Result<(), LedgerError> {
        self.begin(false).await?;
        for entry in entries {
            self.add_checkpoint(entry).await?;
        }
        self.run("COMMIT").await
    }

    async fn add_checkpoint(&mut self, Entry { checkpoint, heads }: &Entry) -> Result<(), LedgerError> {
        let signature: Vec<u8> = unhexed(&checkpoint.signature);
        match self {
            Self::Postgres(sink) => {
                sqlx::query(
                    "INSERT INTO checkpoints (journal_id, number, kind, at_us, previous, root, leaves, key_id, \
                     signature, note) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) ON CONFLICT DO NOTHING",
                )
                .bind(checkpoint.journal)
                .bind(checkpoint.number)
                .bind(checkpoint.kind.name())
                .bind(checkpoint.at_us)
                .bind(&checkpoint.previous[..])
                .bind(&checkpoint.root[..])
                .bind(checkpoint.leaves)
                .bind(&checkpoint.key_id)
                .bind(signature)
                .bind(&checkpoint.note)
                .execute(sink.connection())
                .await?;
                sqlx::query(
                    "INSERT INTO checkpoint_heads (journal_id, number, stream_id, seq, chain) \
                     SELECT $1, $2, v.stream_id, v.seq, v.chain \
                     FROM UNNEST($3::uuid[], $4::bigint[], $5::bytea[]) AS v(stream_id, seq, chain) \
                     ON CONFLICT DO NOTHING",
                )
                .bind(checkpoint.journal)
                .bind(checkpoint.number)
                .bind(heads.iter().map(|head| head.stream).collect::<Vec<_>>())
                .bind(heads.iter().map(|head| head.seq).collect::<Vec<_>>())
                .bind(heads.iter().map(|head| &head.chain[..]).collect::<Vec<_>>())
                .execute(sink.connection())
                .await?;
            }
            Self::Sqlite(sink) => {
                sqlx::query(
                    "INSERT INTO checkpoints (journal_id, number, kind, at_us, previous, root, leaves, key_id, \
                     signature, note) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
                )
                .bind(checkpoint.journal.to_string())
                .bind(checkpoint.number)
                .bind(checkpoint.kind.name())
                .bind(checkpoint.at_us)
                .bind(&checkpoint.previous[..])
                .bind(&checkpoint.root[..])
                .bind(checkpoint.leaves)
                .bind(&checkpoint.key_id)
                .bind(signature)
                .bind(&checkpoint.note)
                .execute(sink.connection())
                .await?;
                for head in heads {
                    sqlx::query(
                        "INSERT INTO checkpoint_heads (journal_id, number, stream_id, seq, chain) \
                         VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
                    )
                    .bind(checkpoint.journal.to_string())
                    .bind(checkpoint.number)
                    .bind(head.stream.to_string())
                    .bind(head.seq)
                    .bind(&head.chain[..])
                    .execute(sink.connection())
                    .await?;
                }
            }
        }
        Ok(())
    }

    /// The last frame of a stream and its place in the chain, as the rows say.
    pub(in crate::ledger) async fn end_of_chain(&mut self, stream: Uuid) -> Result<(i64, Hash), LedgerError> {
        self.chain_before(stream, i64::MAX).await
    }

    /// The last frame of a stream before a number and its place in the chain, as the rows say.
    pub(in crate::ledger) async fn chain_before(
        &mut self,
        stream: Uuid,
        below: i64,
    ) -> Result<(i64, Hash), LedgerError> {
        let found: Option<(i64, Option<Vec<u8>>)> = match self {
            Self::Postgres(sink) => {
                let query = sqlx::query_as(
                    "SELECT seq, chain FROM frames WHERE stream_id = $1 AND seq < $2 ORDER BY seq DESC LIMIT 1",
                );
                query.bind(stream).bind(below).fetch_optional(sink.connection()).await?
            }
            Self::Sqlite(sink) => {
                let query = sqlx::query_as(
                    "SELECT seq, chain FROM frames WHERE stream_id = ? AND seq < ? ORDER BY seq DESC LIMIT 1",
                );
                query.bind(stream.to_string()).bind(below).fetch_optional(sink.connection()).await?
            }
        };
        match found {
            None => Ok((0, super::NOTHING)),
            Some((seq, Some(chain))) => Ok((seq, hash(&chain)?)),
            Some((last, None)) => {
                let (mut after, mut chain) = (0, super::NOTHING);
                while after < last {
                    let page = self.frames_of(stream, after, last.saturating_add(1)).await?;
                    let Some(end) = page.last().map(|frame| frame.seq) else { break };
                    after = end;
                    chain = page.iter().fold(chain, |before, frame| frame.chained(&before));
                }
                Ok((last, chain))
            }
        }
    }
}

fn unhexed(text: &str) -> Vec<u8> {
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    text.as_bytes().chunks_exact(2).filter_map(byte).collect()
}
