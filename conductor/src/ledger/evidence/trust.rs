//! Checks a log of checkpoints, one after the other: that none is missing, that
//! each names the one before it, has its heads, and is signed by the key that
//! the log itself had introduced by then. Pure.

use uuid::Uuid;

use super::{
    NOTHING,
    checkpoint::{Checkpoint, Entry, Kind},
    finding::{Finding, What},
    key::PublicKey,
};

/// A log that is being checked.
#[derive(Debug)]
pub struct LogCheck {
    journal: Uuid,
    last: Option<Checkpoint>,
    /// Keys of the log, the current one last: the key, since which checkpoint, and
    /// whether it has signed anything.
    keys: Vec<KnownKey>,
    count: u64,
    finding: Option<Finding>,
}

/// A key of a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KnownKey {
    /// The key.
    pub key: PublicKey,
    /// The checkpoint that introduced it.
    pub since: i64,
    /// Whether it has signed any.
    pub has_signed: bool,
}

impl LogCheck {
    /// Begins with the first checkpoint of a journal.
    pub fn new(journal: Uuid) -> Self {
        Self { journal, last: None, keys: Vec::new(), count: 0, finding: None }
    }

    /// Looks at the next one.
    pub fn entry(&mut self, entry: &Entry) {
        self.count += 1;
        if self.finding.is_none()
            && let Err((what, number, why)) = self.look(entry)
        {
            self.finding = Some(Finding { what, id: Some(self.journal), number: Some(number), why });
        }
        self.last = Some(entry.checkpoint.clone());
    }

    fn look(&mut self, entry: &Entry) -> Result<(), (What, i64, String)> {
        let it = &entry.checkpoint;
        let number = it.number;
        let expected = self.last.as_ref().map_or(1, |last| last.number.saturating_add(1));
        if number < 1 {
            let why = "checkpoints are numbered from 1".to_owned();
            return Err((What::CheckpointAltered, number, why));
        }
        if number != expected {
            return Err((What::CheckpointMissing, expected, format!("the next one there is {number}")));
        }
        let altered = |why: &str| (What::CheckpointAltered, number, why.to_owned());
        if it.journal != self.journal {
            return Err(altered("it is another journal's"));
        }
        if it.previous != self.last.as_ref().map_or(NOTHING, Checkpoint::link) {
            return Err(altered("it does not follow the one before it"));
        }
        if !entry.has_its_heads() {
            return Err(altered("its heads are not those that were signed"));
        }
        let introduced = match it.kind {
            Kind::Key => {
                Some(PublicKey::parse(&it.note).map_err(|_| altered("the key it introduces is none"))?)
            }
            _ => None,
        };
        if self.keys.is_empty() {
            // The first key introduces itself: whether it is the right one, only who knows it can say.
            let first = introduced.ok_or_else(|| altered("the log does not begin with a key"))?;
            self.keys.push(KnownKey { key: first, since: number, has_signed: false });
        }
        let Some(current) = self.keys.last_mut() else { return Ok(()) };
        if !it.is_signed_by(&current.key) {
            let why = format!("key {} had to sign it, and has not", current.key.id());
            return Err((What::BadSignature, number, why));
        }
        current.has_signed = true;
        if let Some(key) = introduced.filter(|key| *key != current.key) {
            self.keys.push(KnownKey { key, since: number, has_signed: false });
        }
        Ok(())
    }

    /// Whose log it is.
    pub fn journal(&self) -> Uuid {
        self.journal
    }

    /// The last one that was looked at.
    pub fn last(&self) -> Option<&Checkpoint> {
        self.last.as_ref()
    }

    /// How many there were.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The keys, the current one last.
    pub fn keys(&self) -> &[KnownKey] {
        &self.keys
    }

    /// The first thing that is wrong.
    pub fn finding(&self) -> Option<&Finding> {
        self.finding.as_ref()
    }

    /// Whether the log is that of a key: it has signed some of it, what came before
    /// is linked to that, and what came after was signed by keys that it introduced.
    pub fn is_of(&self, key: &PublicKey) -> bool {
        self.finding.is_none() && self.keys.iter().any(|known| known.key == *key && known.has_signed)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;
    use crate::ledger::evidence::{
        Files,
        checkpoint::{Draft, Head},
        key::Key,
        log::{self, Log},
        sha256,
    };

    fn made() -> (tempfile::TempDir, Vec<Entry>, [PublicKey; 2]) {
        let temp = tempfile::tempdir().unwrap();
        let log = Log::new(Files::new(temp.path()), Uuid::from_u128(1));
        let head = |seq| Head { stream: Uuid::from_u128(9), seq, chain: sha256(&[1]) };
        log.append(Kind::Heads, vec![head(1)], "").unwrap();
        let first = log.key().unwrap();
        let (second, _) = log.rotate().unwrap();
        log.append(Kind::Heads, vec![head(2)], "").unwrap();
        let entries = log::read(log.path()).unwrap().map(Result::unwrap).collect();
        (temp, entries, [first, second])
    }

    fn check(entries: &[Entry]) -> LogCheck {
        let mut check = LogCheck::new(Uuid::from_u128(1));
        entries.iter().for_each(|entry| check.entry(entry));
        check
    }

    fn what(entries: &[Entry]) -> Option<(What, Option<i64>)> {
        check(entries).finding().map(|finding| (finding.what, finding.number))
    }

    #[test]
    fn a_log_is_that_of_each_of_its_keys() {
        let (_temp, entries, keys) = made();
        let check = check(&entries);
        assert_eq!(check.finding(), None);
        assert!(keys.iter().all(|key| check.is_of(key)));
        assert!(!check.is_of(Key::generate().unwrap().public()));
    }

    #[test]
    fn whatever_is_done_to_a_log_is_found() {
        let (_temp, entries, _) = made();
        let without = |at: usize| {
            let mut less = entries.clone();
            less.remove(at);
            less
        };
        assert_eq!(what(&without(1)), Some((What::CheckpointMissing, Some(2))));
        let mut before = entries.clone();
        before[0].checkpoint.number = -7;
        assert_eq!(what(&before), Some((What::CheckpointAltered, Some(-7))));
        let mut swapped = entries.clone();
        swapped[1].heads[0].seq = 7;
        assert_eq!(what(&swapped), Some((What::CheckpointAltered, Some(2))));
        let mut later = entries.clone();
        later[2].checkpoint.at_us += 1;
        assert_eq!(what(&later), Some((What::BadSignature, Some(3))));
        // Another log, signed by another key all through, is a good log, but not that of the key.
        let key = Key::generate().unwrap();
        let mut forged: Vec<Entry> = Vec::new();
        let introduced = Draft { kind: Kind::Key, at_us: 1, heads: Vec::new(), note: key.public().base64() };
        forged.push(Entry::sign(introduced, Uuid::from_u128(1), None, &key));
        let check = check(&forged);
        assert_eq!(check.finding(), None);
        assert!(!check.is_of(&made().2[0]));
        // One that names our key as its next, which never signed there, is not ours either.
        let ours = Draft { kind: Kind::Key, at_us: 2, heads: Vec::new(), note: made().2[0].base64() };
        forged.push(Entry::sign(ours, Uuid::from_u128(1), Some(&forged[0].checkpoint), &key));
        assert_eq!(what(&forged), None);
        assert!(!super::LogCheck::is_of(&self::check(&forged), &made().2[0]));
    }
}
