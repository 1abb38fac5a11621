//! A session of a ledger as the lines of a bundle.

use std::collections::BTreeSet;

use uuid::Uuid;

use super::questions::{Leaf, Read, Table};
use crate::{
    ledger::{
        error::LedgerError,
        evidence::{
            bundle::{Header, Line, Policy, Signed, Writer},
            checkpoint::{Entry, Kind},
        },
        reader::Reader,
        settings::Settings,
        table::{DECISIONS, TABLES},
    },
    record::now_us,
};

/// The column that names the rules.
const REVISION: &str = "policy_revision";

/// Hands the lines of a session's bundle to `put`, with their ends. `policy` knows the text
/// of a revision, or does not. `false` if there is no such session.
pub async fn export<E: From<LedgerError>>(
    settings: &Settings,
    session: Uuid,
    policy: impl Fn(&str) -> Option<String>,
    mut put: impl FnMut(String) -> Result<(), E>,
) -> Result<bool, E> {
    let mut reader = Reader::open_for_long(settings).await?;
    let mut writer = Writer::default();
    // What is signed is asked for first: frames that come later are not yet.
    let leaves = reader.leaves(session).await?;
    let decisions = reader.decisions(session).await?;
    let mut page = reader.rows(session, None).await?;
    if page.is_empty() {
        return Ok(false);
    }
    put(writer.line(&Line::Bundle(Header::new(session, now_us()))))?;
    // The last that has signed it covers all before it; erasures are told each.
    let erases = |leaf: &&Leaf| [Kind::Erased, Kind::Frames].iter().any(|kind| leaf.kind == kind.name());
    let last = leaves.iter().filter(|leaf| leaf.kind == Kind::Heads.name()).max_by_key(|leaf| leaf.head.seq);
    let mut needed: Vec<&Leaf> = leaves.iter().filter(erases).collect();
    needed.extend(last);
    let mut journals: Vec<_> = needed.iter().map(|leaf| leaf.journal).collect();
    journals.dedup();
    for journal in journals {
        for line in keys(&mut reader, journal).await? {
            put(writer.line(&line))?;
        }
    }
    for leaf in needed {
        let entry = reader.checkpoint(leaf.journal, leaf.number).await?;
        if let Some(signed) = entry.and_then(|entry| Signed::new(entry.checkpoint, &entry.heads, session)) {
            put(writer.line(&Line::Signed(signed)))?;
        }
    }
    let at = TABLES[DECISIONS].columns.iter().position(|column| column.name == REVISION);
    let revisions: BTreeSet<_> = decisions.iter().filter_map(|row| row.get(at?)?.clone()).collect();
    for revision in revisions {
        put(writer.line(&Line::Policy(Policy { text: policy(&revision), revision })))?;
    }
    for row in decisions {
        put(writer.line(&Line::Decision(row)))?;
    }
    while let Some(last) = page.last().map(Read::seq) {
        for Read(row) in page {
            let unreadable = |(seq, column)| {
                LedgerError::Corrupt(format!(
                    "frame {seq} of {session} holds in {column} what no frame has there"
                ))
            };
            put(writer.line(&Line::Frame(row.map_err(unreadable)?.into())))?;
        }
        page = reader.rows(session, Some(last)).await?;
    }
    put(writer.end())?;
    Ok(true)
}

/// The checkpoints that introduced the keys of a journal, each with the one behind it.
async fn keys(reader: &mut Reader, journal: Uuid) -> Result<Vec<Line>, LedgerError> {
    let mut lines = Vec::new();
    for number in reader.introductions(journal).await? {
        for number in [number, number + 1] {
            if let Some(Entry { checkpoint, .. }) = reader.checkpoint(journal, number).await? {
                let line = Line::Key(checkpoint);
                if lines.last() != Some(&line) {
                    lines.push(line);
                }
            }
        }
    }
    Ok(lines)
}

impl Reader {
    /// A checkpoint with its heads; `None` if it is not there, or is none.
    async fn checkpoint(&mut self, journal: Uuid, number: i64) -> Result<Option<Entry>, LedgerError> {
        let found = Table::from(journal, number).next(self).await?;
        Ok(found.and_then(Result::ok).filter(|entry| entry.checkpoint.number == number))
    }
}
