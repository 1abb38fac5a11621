//! Checks a whole ledger: its log of checkpoints, in the table and in the file,
//! then every stream against it, page by page. Nothing is changed, and a service
//! may go on writing meanwhile.

use std::{path::PathBuf, time::Duration};

use tokio::time::sleep;
use uuid::Uuid;

use super::{
    checkpoint::{Entry, Kind},
    finding::{Finding, Seen, What},
    key::PublicKey,
    log,
    stream::{Checked, StreamCheck},
    trust::LogCheck,
};
use crate::ledger::{error::LedgerError, reader::Reader, rebuild::Progress, settings::Settings};

pub(super) mod decisions; // decisions as they stand, against those that frames tell of
pub mod export; // a session as a bundle
mod questions; // what is asked of the database

pub use questions::Table;
use questions::{Leaf, Stored};

/// A checkpoint is in the file before it is in the table; for so long that is no finding.
const ON_ITS_WAY: Duration = Duration::from_secs(1);

/// How often a stream is looked at again that seems to be unsigned.
const TRIES: usize = 2;

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
        let mut verifier = Verifier { reader, options, findings: Vec::new(), seen: Seen::default() };
        let logs = verifier.logs().await?;
        verifier.streams(&mut tell).await?;
        verifier.gone().await?;
        Ok(Report { findings: verifier.findings, seen: verifier.seen, logs })
    };
    done.await.map_err(|error| settings.hide(error))
}

struct Verifier<'a> {
    reader: Reader,
    options: &'a Options,
    findings: Vec<Finding>,
    seen: Seen,
}

impl Verifier<'_> {
    fn found(&mut self, finding: Finding) {
        if self.findings.len() < MOST_FINDINGS {
            self.findings.push(finding);
        }
    }

    /// The logs of all journals; the one of the file in both places.
    async fn logs(&mut self) -> Result<Vec<LogReport>, LedgerError> {
        let mut journals = self.reader.journals().await?;
        let filed = match &self.options.log {
            Some(path) => match log::read(path) {
                Ok(mut entries) => entries.next().transpose(),
                Err(error) => Err(error),
            },
            None => Ok(None),
        };
        let own = match filed {
            Ok(first) => first.map(|entry| entry.checkpoint.journal),
            Err(error) => {
                self.found(Finding {
                    what: What::CheckpointAltered,
                    id: None,
                    number: None,
                    why: error.to_string(),
                });
                None
            }
        };
        if let Some(own) = own.filter(|own| !journals.contains(own)) {
            journals.push(own);
        }
        let mut reports = Vec::new();
        let mut any_known = false;
        for journal in journals {
            let check = match own == Some(journal) {
                true => self.both(journal).await?,
                false => self.table(journal).await?,
            };
            self.seen.checkpoints += check.count();
            let is_known = self.options.keys.iter().any(|key| check.is_of(key));
            any_known |= is_known;
            reports.push(LogReport {
                journal,
                checkpoints: check.count(),
                last_us: check.last().map(|last| last.at_us),
                keys: check.keys().iter().map(|known| known.key.id()).collect(),
                is_known,
            });
            if let Some(finding) = check.finding() {
                self.found(finding.clone());
            }
        }
        // A log that somebody else signed from its begin is in good order, too.
        if !self.options.keys.is_empty() && !any_known && !reports.is_empty() && self.findings.is_empty() {
            let ids: Vec<_> = self.options.keys.iter().map(PublicKey::id).collect();
            let why = format!("no log is signed by the key that should have ({})", ids.join(", "));
            self.found(Finding { what: What::BadSignature, id: None, number: None, why });
        }
        Ok(reports)
    }

    /// A log that is in the table only.
    async fn table(&mut self, journal: Uuid) -> Result<LogCheck, LedgerError> {
        let mut check = LogCheck::new(journal);
        let mut table = Table::new(journal);
        while let Some(entry) = table.next(&mut self.reader).await? {
            match entry {
                Ok(entry) => check.entry(&entry),
                Err(finding) => self.found(finding),
            }
        }
        Ok(check)
    }

    /// The log that is in the file and in the table.
    async fn both(&mut self, journal: Uuid) -> Result<LogCheck, LedgerError> {
        let mut check = LogCheck::new(journal);
        let Some(path) = &self.options.log else { return Ok(check) };
        let at = |what, number: i64, why: &str| Finding {
            what,
            id: Some(journal),
            number: Some(number),
            why: why.to_owned(),
        };
        let mut table = Table::new(journal);
        let mut stands = table.next(&mut self.reader).await?;
        // Up to the first difference; behind it both would differ in every line.
        let mut alike = true;
        let mut ahead = None;
        let entries = log::read(path).map_err(|error| LedgerError::Unavailable(error.to_string()))?;
        for filed in entries {
            let filed = match filed {
                Ok(filed) => filed,
                Err(error) => {
                    let number = check.last().map_or(1, |last| last.number + 1);
                    self.found(at(What::CheckpointAltered, number, &error.to_string()));
                    return Ok(check);
                }
            };
            check.entry(&filed);
            if !alike {
                continue;
            }
            let number = filed.checkpoint.number;
            match stands.take() {
                Some(Ok(entry)) if entry == filed => stands = table.next(&mut self.reader).await?,
                Some(Ok(entry)) if entry.checkpoint.number > number => {
                    alike = false;
                    self.found(at(
                        What::CheckpointMissing,
                        number,
                        "the table of checkpoints does not have it",
                    ));
                }
                Some(Ok(entry)) => {
                    alike = false;
                    let number = number.min(entry.checkpoint.number);
                    self.found(at(What::CheckpointAltered, number, "table and file do not have the same"));
                }
                Some(Err(finding)) => {
                    alike = false;
                    self.found(finding);
                }
                None => {
                    alike = false;
                    ahead = Some(number);
                }
            }
        }
        if let Some(number) = ahead {
            sleep(ON_ITS_WAY).await;
            if self.reader.last_checkpoint(journal).await? < number {
                let why = "the table of checkpoints does not have it; if the service was killed just now, its next \
                           start puts it there";
                self.found(at(What::CheckpointMissing, number, why));
            }
        }
        if alike && let Some(Ok(entry)) = stands {
            self.beyond(&mut check, entry, table).await?;
        }
        Ok(check)
    }

    /// What the table has behind the end of the file.
    async fn beyond(
        &mut self,
        check: &mut LogCheck,
        first: Entry,
        mut table: Table,
    ) -> Result<(), LedgerError> {
        let number = first.checkpoint.number;
        // It may have come while the file was read.
        let now = self.options.log.as_ref().and_then(|path| log::last_number(path).ok()).unwrap_or_default();
        if !self.options.is_copy && now < number {
            self.found(Finding {
                what: What::CheckpointMissing,
                id: Some(check.journal()),
                number: Some(number),
                why: "the table of checkpoints has it, and the file ends before it".to_owned(),
            });
        }
        check.entry(&first);
        while let Some(entry) = table.next(&mut self.reader).await? {
            match entry {
                Ok(entry) => check.entry(&entry),
                Err(finding) => self.found(finding),
            }
        }
        Ok(())
    }

    /// Every stream that has frames.
    async fn streams(&mut self, tell: &mut impl FnMut(Progress)) -> Result<(), LedgerError> {
        let total = self.reader.frames_in(self.options.session).await?;
        let mut after = Uuid::nil();
        loop {
            let next = match self.options.session {
                Some(session) if after == session => None,
                Some(session) => Some(session),
                None => self.reader.stream_after(after, self.options.since_us).await?,
            };
            let Some(stream) = next else { return Ok(()) };
            after = stream;
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
            let Some(checked) = checked else { continue };
            self.seen.add(&checked.seen);
            checked.finding.into_iter().for_each(|finding| self.found(finding));
        }
    }

    async fn stream(
        &mut self,
        stream: Uuid,
        total: u64,
        tell: &mut impl FnMut(Progress),
    ) -> Result<Option<Checked>, LedgerError> {
        let leaves = self.reader.leaves(stream).await?;
        let erased = leaves.iter().filter(|leaf| leaf.kind == Kind::Erased.name());
        let erased_to = erased.map(|leaf| leaf.head.seq).max().unwrap_or_default();
        let signed = leaves.iter().map(|leaf: &Leaf| leaf.head).collect();
        let mut check = StreamCheck::new(stream, signed, erased_to);
        let (mut last, mut done) = (0, self.seen.frames);
        // Whoever writes meanwhile writes frames, decisions and the head together, so
        // they are of one moment if the head is the last frame that was read.
        let (head, stored) = loop {
            let page = self.reader.rows(stream, last).await?;
            if let Some(end) = page.last().map(|row| row.seq) {
                last = end;
                done += page.len() as u64;
                page.into_iter().for_each(|row| check.row(row));
                tell(Progress { done, total: total.max(done) });
                continue;
            }
            let stored = self.reader.decisions(stream).await?;
            let head = self.reader.head(stream).await?;
            if head.is_none_or(|(head, _)| head.seq <= last)
                || self.reader.rows(stream, last).await?.is_empty()
            {
                break (head, stored);
            }
        };
        if last == 0 {
            return Ok(None);
        }
        let mut checked = check.end(head);
        if let Some(told) = checked.decisions.take() {
            let compared = decisions::compare(stream, &told, &stored);
            checked.seen.decisions += stored.len() as u64;
            checked.seen.sparse += compared.sparse;
            checked.finding = checked.finding.or(compared.finding);
        }
        Ok(Some(checked))
    }

    /// Streams that were signed and have no frames.
    async fn gone(&mut self) -> Result<(), LedgerError> {
        let Stored { retained, missing } = self.reader.gone(self.options.session).await?;
        self.seen.retained += retained;
        for stream in missing {
            let why = "it was recorded, and nothing of it is there; no retention is on record";
            self.found(Finding::frame(What::StreamMissing, stream, 1, why));
        }
        Ok(())
    }
}
