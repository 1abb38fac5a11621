//! Checks a whole ledger: its log of checkpoints, in the table and in the file,
//! then every stream against it, page by page. Nothing is changed, and a service
//! may go on writing meanwhile.

use std::{collections::BTreeSet, path::PathBuf, time::Duration};

use uuid::Uuid;

use super::{
    checkpoint::Kind,
    finding::{Finding, Seen, What},
    key::PublicKey,
    stream::{By, Checked, OnRecord, StreamCheck},
};
use crate::ledger::{
    error::LedgerError,
    reader::Reader,
    rebuild::Progress,
    settings::Settings,
    table::{DECISIONS, GRANTS, TABLES},
};

pub(super) mod decisions; // rows as they stand, against those that frames tell of
pub mod export; // a session as a bundle
mod logs; // the logs, and what they say of streams
mod questions; // what is asked of the database
mod shape; // whether ids are ids

use logs::Logs;
pub use questions::Table;
use questions::{End, Leaf, Place};

/// A checkpoint is in the file before it is in the table; for so long that is no finding.
const ON_ITS_WAY: Duration = Duration::from_secs(1);

/// How often a stream is looked at again that seems to be unsigned.
const TRIES: usize = 2;

/// Frames that are older than the last checkpoint by this, and by so many times as long as it is
/// between two, should have been signed. A machine that is slow needs no more.
const LATE: Duration = Duration::from_secs(300);
const LATE_TIMES: u32 = 5;

/// No more findings than these are told of.
const MOST_FINDINGS: usize = 1000;

/// What to check, and against what.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Only this stream.
    pub session: Option<Uuid>,
    /// Only streams in which something was recorded since.
    pub since_us: Option<i64>,
    /// Keys that are known to be right.
    pub keys: Vec<PublicKey>,
    /// The log's file, if there is one.
    pub log: Option<PathBuf>,
    /// Whether that is a copy, which may be older than the ledger.
    pub is_copy: bool,
}

/// What came of it.
#[derive(Debug)]
pub struct Report {
    /// What is wrong.
    pub findings: Vec<Finding>,
    /// What was looked at.
    pub seen: Seen,
    /// Whose logs there are.
    pub logs: Vec<LogReport>,
}

/// A journal's log.
#[derive(Debug)]
pub struct LogReport {
    /// The journal.
    pub journal: Uuid,
    /// How many checkpoints it has.
    pub checkpoints: u64,
    /// When the last one was made.
    pub last_us: Option<i64>,
    /// Its keys by their ids, the current one last.
    pub keys: Vec<String>,
    /// Whether one of the keys that are known to be right has signed it.
    pub is_known: bool,
}

/// Checks a ledger.
pub async fn verify(
    settings: &Settings,
    options: &Options,
    mut tell: impl FnMut(Progress),
) -> Result<Report, LedgerError> {
    let done = async {
        let reader = Reader::open_for_long(settings).await?;
        let late = LATE.max(settings.evidence.every.saturating_mul(LATE_TIMES));
        let mut verifier = Verifier {
            reader,
            options,
            late_us: i64::try_from(late.as_micros()).unwrap_or(i64::MAX),
            findings: Vec::new(),
            seen: Seen::default(),
            logged: Logs::default(),
        };
        verifier.findings = verifier.reader.misshapen().await?;
        if !verifier.findings.is_empty() {
            // What is looked for by its id would not be found, and must not pass for missing.
            return Ok(Report { findings: verifier.findings, seen: verifier.seen, logs: Vec::new() });
        }
        let total = verifier.reader.frames_in(options.session).await?;
        let logs = verifier.logs(total).await?;
        verifier.streams(total, &mut tell).await?;
        verifier.gone().await?;
        verifier.beside().await?;
        Ok(Report { findings: verifier.findings, seen: verifier.seen, logs })
    };
    done.await.map_err(|error| settings.hide(error))
}

struct Verifier<'a> {
    reader: Reader,
    options: &'a Options,
    late_us: i64,
    findings: Vec<Finding>,
    seen: Seen,
    logged: Logs,
}

impl Verifier<'_> {
    fn found(&mut self, finding: Finding) {
        if self.findings.len() < MOST_FINDINGS {
            self.findings.push(finding);
        }
    }

    /// Every stream that has frames.
    async fn streams(&mut self, total: u64, tell: &mut impl FnMut(Progress)) -> Result<(), LedgerError> {
        if let Some(session) = self.options.session {
            return self.one(session, total, tell).await;
        }
        let since = self.options.since_us;
        let (mut after, mut looked_at) = (None, BTreeSet::new());
        while let Some(stream) = self.reader.stream_after(after, since).await? {
            after = Some(stream);
            self.one(stream, total, tell).await?;
            looked_at.extend(since.map(|_| stream));
        }
        // Whoever changes a frame can change its time; what was signed since tells of it all the same.
        let recent = self.logged.known.recent.union(&self.logged.others.recent);
        let recent: Vec<_> = recent.filter(|stream| !looked_at.contains(stream)).copied().collect();
        for stream in recent {
            self.one(stream, total, tell).await?;
        }
        if since.is_none() && self.seen.frames < total {
            // A retention may have run meanwhile.
            let now = self.reader.frames_in(None).await?;
            if self.seen.frames < now {
                let why =
                    format!("{now} frames are there, and {} were found by their streams", self.seen.frames);
                self.found(Finding { what: What::Altered, id: None, number: None, why });
            }
        }
        Ok(())
    }

    async fn one(
        &mut self,
        stream: Uuid,
        total: u64,
        tell: &mut impl FnMut(Progress),
    ) -> Result<(), LedgerError> {
        let mut checked = self.stream(stream, total, tell).await?;
        // A checkpoint may have come after its heads were asked for.
        for _ in 0..TRIES {
            if checked
                .as_ref()
                .and_then(|checked| checked.finding.as_ref())
                .is_none_or(|finding| finding.what != What::Unsigned)
            {
                break;
            }
            checked = self.stream(stream, total, tell).await?;
        }
        // One without frames is looked for among those that are gone.
        if let Some(checked) = checked {
            self.seen.add(&checked.seen);
            checked.finding.into_iter().for_each(|finding| self.found(finding));
        }
        Ok(())
    }

    async fn on_record(&mut self, stream: Uuid) -> Result<OnRecord, LedgerError> {
        let leaves = self.reader.leaves(stream).await?;
        let Logs { known, others, signed_us } = &self.logged;
        let signed = |leaf: &Leaf| match signed_us.contains_key(&leaf.journal) {
            true if leaf.kind == Kind::Heads.name() => (leaf.head, By::Known),
            true => (leaf.head, By::Removal),
            false => (leaf.head, By::Unknown),
        };
        let erased = |claims: &logs::Claims| claims.erased.get(&stream).cloned().unwrap_or_default();
        Ok(OnRecord {
            signed: leaves.iter().map(signed).collect(),
            erased: erased(known),
            claimed: erased(others),
        })
    }

    async fn stream(
        &mut self,
        stream: Uuid,
        total: u64,
        tell: &mut impl FnMut(Progress),
    ) -> Result<Option<Checked>, LedgerError> {
        let on_record = self.on_record(stream).await?;
        let mut check = StreamCheck::new(stream, on_record);
        let (mut last, mut done) = (None, self.seen.frames);
        // Whoever writes meanwhile writes frames, rows and the head together, so
        // they are of one moment if the head is the last frame that was read.
        let (end, stored) = loop {
            let page = self.reader.rows(stream, last).await?;
            if let Some(row) = page.last() {
                last = Some(row.seq());
                done += page.len() as u64;
                for row in page {
                    match row.0 {
                        Ok(row) => check.row(row),
                        Err((seq, column)) => check.unreadable(seq, column),
                    }
                }
                tell(Progress { done, total: total.max(done) });
                continue;
            }
            let stored = self.reader.compared(stream, check.told(GRANTS)).await?;
            let end = self.reader.end(stream).await?;
            let is_all = end.as_ref().is_none_or(|end| Some(end.head.seq) <= last);
            if is_all || self.reader.rows(stream, last).await?.is_empty() {
                break (end, stored);
            }
        };
        if last.is_none() {
            return Ok(None);
        }
        let journal = end.as_ref().and_then(|end| end.journal);
        let mut checked = check.end(end.map(|End { head, is_signed, .. }| (head, is_signed)));
        if let Some(told) = checked.facts.take() {
            let has_old = checked.seen.unchained > 0;
            for (table, rows) in &stored {
                let facts = told.get(*table).map_or(&[][..], Vec::as_slice);
                let compared = decisions::compare(stream, *table, facts, rows, has_old);
                checked.seen.decisions += rows.len() as u64 * u64::from(*table == DECISIONS);
                checked.seen.sparse += compared.sparse;
                checked.finding = checked.finding.or(compared.finding);
            }
        }
        if checked.finding.is_none() {
            checked.finding = self.late(stream, &checked, journal);
        }
        Ok(Some(checked))
    }

    /// Frames that should have been signed long ago, by what the log of their journal has signed since.
    fn late(&self, stream: Uuid, checked: &Checked, journal: Option<Uuid>) -> Option<Finding> {
        let (seq, at_us) = checked.behind?;
        let own = journal.and_then(|journal| self.logged.signed_us.get(&journal));
        // What was imported, or says that it is a stranger's, is measured by all.
        let signed_us = own.copied().flatten().or(self.logged.known.signed_us)?;
        if at_us.saturating_add(self.late_us) >= signed_us {
            return None;
        }
        let why = match journal {
            Some(_) => {
                "it was recorded long before the last checkpoint, which has not signed it: it was put there \
                 afterwards, or the service was stopped while it caught up; start it, and look again after its \
                 next checkpoint"
            }
            None => {
                "it was imported, and nobody has signed it: import it again where the service runs, with its \
                 state directory"
            }
        };
        Some(Finding::frame(What::Unsigned, stream, seq, why))
    }

    /// Streams that were signed and have no frames.
    async fn gone(&mut self) -> Result<(), LedgerError> {
        for (stream, last) in self.reader.gone(self.options.session).await? {
            let why = match self.logged.known.retained.get(&stream) {
                Some(retained) if *retained >= last => {
                    self.seen.retained += 1;
                    continue;
                }
                Some(retained) => format!(
                    "nothing of it is there; a retention is on record for frames up to {retained}, and there were \
                     some up to {last}"
                ),
                None if self.logged.others.retained.contains_key(&stream) => {
                    "nothing of it is there, and only a log whose key is not known says that it was removed: name \
                     its key with --public-key"
                        .to_owned()
                }
                None => "it was recorded, and nothing of it is there; no retention is on record".to_owned(),
            };
            self.found(Finding::frame(What::StreamMissing, stream, 1, why));
        }
        Ok(())
    }

    /// What stands beside the streams.
    async fn beside(&mut self) -> Result<(), LedgerError> {
        for Place(stream, seq) in self.reader.conflicts(self.options.session).await? {
            let why =
                "another frame came under its number, and is in frame_conflicts: a state directory was \
                       copied, or one of the two was put there by somebody else"
                    .to_owned();
            let id = Uuid::try_parse(&stream).ok();
            self.found(Finding { what: What::Conflict, id, number: Some(seq), why });
        }
        for (table, Place(session, seq)) in self.reader.orphans(self.options.session).await? {
            let why = format!("a row of {} belongs to {session:?}, which has no frames", TABLES[table].name);
            let id = Uuid::try_parse(&session).ok();
            self.found(Finding { what: What::DecisionDiffers, id, number: Some(seq), why });
        }
        Ok(())
    }
}
