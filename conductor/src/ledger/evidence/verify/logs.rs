//! The logs of checkpoints: each is read to its end, from its file if there is one, and what it
//! says of streams counts only as far as it is in good order.

use std::{
    collections::{BTreeSet, HashMap},
    path::{Path, PathBuf},
};

use tokio::time::sleep;
use uuid::Uuid;

use super::{LogReport, ON_ITS_WAY, Table, Verifier};
use crate::ledger::{
    error::LedgerError,
    evidence::{
        checkpoint::{Entry, Kind},
        finding::{Finding, What},
        key::PublicKey,
        log,
        stream::Erased,
        trust::LogCheck,
    },
};

/// What a log says of streams.
#[derive(Debug, Default)]
pub(super) struct Claims {
    /// Streams of which bytes were erased.
    pub(super) erased: HashMap<Uuid, Erased>,
    /// Streams that were removed, and the last frame that each had.
    pub(super) retained: HashMap<Uuid, i64>,
    /// Streams that were signed since the moment that is asked for.
    pub(super) recent: BTreeSet<Uuid>,
    /// When heads were signed last.
    pub(super) signed_us: Option<i64>,
}

impl Claims {
    fn add(&mut self, entry: &Entry, since_us: Option<i64>) {
        let it = &entry.checkpoint;
        for head in &entry.heads {
            match it.kind {
                Kind::Erased | Kind::Frames => self.erased.entry(head.stream).or_default().add(it, head),
                Kind::Retained => {
                    let last = self.retained.entry(head.stream).or_insert(head.seq);
                    *last = (*last).max(head.seq);
                }
                Kind::Heads => self.signed_us = self.signed_us.max(Some(it.at_us)),
                Kind::Key => {}
            }
        }
        if since_us.is_some_and(|since| it.at_us >= since) {
            self.recent.extend(entry.heads.iter().map(|head| head.stream));
        }
    }

    fn join(&mut self, other: Self) {
        for (stream, erased) in other.erased {
            let own = self.erased.entry(stream).or_default();
            own.to = own.to.max(erased.to);
            own.frames.extend(erased.frames);
        }
        for (stream, seq) in other.retained {
            let last = self.retained.entry(stream).or_insert(seq);
            *last = (*last).max(seq);
        }
        self.recent.extend(other.recent);
        self.signed_us = self.signed_us.max(other.signed_us);
    }
}

/// What all logs say of streams.
#[derive(Debug, Default)]
pub(super) struct Logs {
    /// Those that are known to be right.
    pub(super) known: Claims,
    /// The others.
    pub(super) others: Claims,
    /// When the known ones signed heads last, by journal.
    pub(super) signed_us: HashMap<Uuid, Option<i64>>,
}

/// A log that is being read.
struct Reading {
    check: LogCheck,
    claims: Claims,
    since_us: Option<i64>,
}

impl Reading {
    fn entry(&mut self, entry: &Entry) {
        self.check.entry(entry);
        // What is behind the first bad one was perhaps never signed.
        if self.check.finding().is_none() {
            self.claims.add(entry, self.since_us);
        }
    }
}

impl Verifier<'_> {
    /// The logs of all journals; those of files in both places.
    pub(super) async fn logs(&mut self, frames: u64) -> Result<Vec<LogReport>, LedgerError> {
        let reports = self.fold().await?;
        if !self.lacks_a_known_one(&reports, frames) {
            return Ok(reports);
        }
        // A service that begins its log has the key before it has signed anything.
        sleep(ON_ITS_WAY).await;
        self.seen.checkpoints = 0;
        let reports = self.fold().await?;
        if self.lacks_a_known_one(&reports, frames) {
            let ids: Vec<_> = self.options.keys.iter().map(PublicKey::id).collect();
            let ids = ids.join(", ");
            // A log that somebody else signed from its begin is in good order, too.
            let (what, why) = match reports.is_empty() {
                false => {
                    let why = format!("no log is signed by the key that should have ({ids})");
                    (What::BadSignature, why)
                }
                true => {
                    let why = format!(
                        "there are frames and no checkpoint at all; the key {ids} should have signed some"
                    );
                    (What::CheckpointMissing, why)
                }
            };
            self.found(Finding { what, id: None, number: None, why });
        }
        Ok(reports)
    }

    fn lacks_a_known_one(&self, reports: &[LogReport], frames: u64) -> bool {
        let is_known = reports.iter().any(|log| log.is_known);
        !self.options.keys.is_empty()
            && !is_known
            && self.findings.is_empty()
            && (frames > 0 || !reports.is_empty())
    }

    async fn fold(&mut self) -> Result<Vec<LogReport>, LedgerError> {
        let files = self.files();
        let mut journals = self.reader.journals().await?;
        let filed: Vec<_> = files.keys().filter(|journal| !journals.contains(journal)).copied().collect();
        journals.extend(filed);
        let (mut reports, mut read) = (Vec::new(), Vec::new());
        for journal in journals {
            let reading = match files.get(&journal) {
                Some(path) => self.both(journal, path).await?,
                None => self.table(journal).await?,
            };
            let check = &reading.check;
            self.seen.checkpoints += check.count();
            let is_known = self.options.keys.iter().any(|key| check.is_of(key));
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
            read.push((journal, is_known, reading.claims));
        }
        // Without a key, what lies in a file is right; without a file, all there is has to do. If
        // nothing is known although there are keys, that is told, once.
        let any_known = read.iter().any(|(_, is_known, _)| *is_known);
        let by_file = self.options.keys.is_empty() && !files.is_empty();
        self.logged = Logs::default();
        for (journal, is_known, claims) in read {
            if is_known || (by_file && files.contains_key(&journal)) || (!any_known && !by_file) {
                self.logged.signed_us.insert(journal, claims.signed_us);
                self.logged.known.join(claims);
            } else {
                self.logged.others.join(claims);
            }
        }
        Ok(reports)
    }

    /// The files of logs by their journals: the one that is named and, where the service runs,
    /// those of journals that there were before.
    fn files(&mut self) -> HashMap<Uuid, PathBuf> {
        let mut files = HashMap::new();
        let Some(named) = &self.options.log else { return files };
        let mut paths = vec![named.clone()];
        if !self.options.is_copy {
            paths.extend(log::former(named));
        }
        for path in paths {
            let first = match log::read(&path) {
                Ok(mut entries) => entries.next().transpose(),
                Err(error) => Err(error),
            };
            match first {
                Ok(Some(entry)) => {
                    files.entry(entry.checkpoint.journal).or_insert(path);
                }
                Ok(None) => {}
                Err(error) => self.found(Finding {
                    what: What::CheckpointAltered,
                    id: None,
                    number: None,
                    why: error.to_string(),
                }),
            }
        }
        files
    }

    fn reading(&self, journal: Uuid) -> Reading {
        Reading { check: LogCheck::new(journal), claims: Claims::default(), since_us: self.options.since_us }
    }

    /// A log that is in the table only.
    async fn table(&mut self, journal: Uuid) -> Result<Reading, LedgerError> {
        let mut reading = self.reading(journal);
        let mut table = Table::new(journal);
        while let Some(entry) = table.next(&mut self.reader).await? {
            match entry {
                Ok(entry) => reading.entry(&entry),
                Err(finding) => self.found(finding),
            }
        }
        Ok(reading)
    }

    /// A log that is in a file and in the table.
    async fn both(&mut self, journal: Uuid, path: &Path) -> Result<Reading, LedgerError> {
        let mut reading = self.reading(journal);
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
                    let number = reading.check.last().map_or(1, |last| last.number.saturating_add(1));
                    self.found(at(What::CheckpointAltered, number, &error.to_string()));
                    return Ok(reading);
                }
            };
            reading.entry(&filed);
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
        match stands {
            Some(Ok(entry)) if alike => self.beyond(&mut reading, path, entry, table).await?,
            Some(Err(finding)) if alike => self.found(finding),
            _ => {}
        }
        Ok(reading)
    }

    /// What the table has behind the end of the file.
    async fn beyond(
        &mut self,
        reading: &mut Reading,
        path: &Path,
        first: Entry,
        mut table: Table,
    ) -> Result<(), LedgerError> {
        let number = first.checkpoint.number;
        // It may have come while the file was read.
        let now = log::last_number(path).ok().unwrap_or_default();
        if !self.options.is_copy && now < number {
            self.found(Finding {
                what: What::CheckpointMissing,
                id: Some(reading.check.journal()),
                number: Some(number),
                why: "the table of checkpoints has it, and the file ends before it".to_owned(),
            });
        }
        reading.entry(&first);
        while let Some(entry) = table.next(&mut self.reader).await? {
            match entry {
                Ok(entry) => reading.entry(&entry),
                Err(finding) => self.found(finding),
            }
        }
        Ok(())
    }
}
