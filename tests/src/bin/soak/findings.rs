//! What is wrong: counted by kind, with the words needed to find it. Whoever sees
//! something says so here at once, and the run goes on: one fault must not hide the
//! next.

use std::{collections::BTreeMap, sync::Mutex};

/// Words that are kept of each kind. A broken build finds the same thing many times.
const KEPT: usize = 20;

/// What can be wrong. All of it fails the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A frame that somebody must have is not there.
    Lost,
    /// A frame came twice.
    Duplicated,
    /// A frame came after one that was said later.
    Reordered,
    /// A frame came in a session that it does not belong to.
    Strayed,
    /// A request was never answered.
    Unanswered,
    /// A request was answered again.
    AnsweredTwice,
    /// A prompt reached an agent twice.
    SentTwice,
    /// Something happened that no earlier record tells of.
    Unrecorded,
    /// The ledger is not what was recorded, or `ledger verify` says so.
    Unverified,
    /// A process outlived its service by more than a second.
    Orphan,
    /// Something failed while nothing was broken.
    Failed,
    /// The service ended by itself, or not as it was told to.
    Died,
    /// The service has ever more of something.
    Leak,
}

impl Kind {
    /// Every kind, in the order of the report.
    pub const ALL: [Self; 13] = [
        Self::Lost,
        Self::Duplicated,
        Self::Reordered,
        Self::Strayed,
        Self::Unanswered,
        Self::AnsweredTwice,
        Self::SentTwice,
        Self::Unrecorded,
        Self::Unverified,
        Self::Orphan,
        Self::Failed,
        Self::Died,
        Self::Leak,
    ];

    /// Its name in the report.
    pub fn name(self) -> &'static str {
        match self {
            Self::Lost => "lost",
            Self::Duplicated => "duplicated",
            Self::Reordered => "reordered",
            Self::Strayed => "strayed",
            Self::Unanswered => "unanswered",
            Self::AnsweredTwice => "answered twice",
            Self::SentTwice => "sent twice",
            Self::Unrecorded => "unrecorded effects",
            Self::Unverified => "unverified",
            Self::Orphan => "orphans",
            Self::Failed => "failed in calm",
            Self::Died => "died",
            Self::Leak => "leaks",
        }
    }
}

/// Something that is wrong: what, how many times, and where to look.
#[derive(Debug, PartialEq, Eq)]
pub struct Trouble {
    pub kind: Kind,
    pub count: u64,
    pub words: String,
}

impl Trouble {
    pub fn one(kind: Kind, words: impl Into<String>) -> Self {
        Self { kind, count: 1, words: words.into() }
    }

    /// One, if there is any.
    pub fn some(kind: Kind, count: u64, words: impl FnOnce() -> String) -> Option<Self> {
        (count > 0).then(|| Self { kind, count, words: words() })
    }
}

/// All that was found so far.
#[derive(Debug, Default)]
pub struct Findings {
    found: Mutex<BTreeMap<Kind, (u64, Vec<String>)>>,
}

impl Findings {
    /// Takes note, and tells people at once.
    pub fn add(&self, Trouble { kind, count, words }: Trouble) {
        let mut found = self.found.lock().unwrap();
        let (total, kept) = found.entry(kind).or_default();
        *total += count;
        if kept.len() < KEPT {
            eprintln!("soak: {}: {words}", kind.name());
            kept.push(words);
        }
    }

    /// The same for several.
    pub fn extend(&self, troubles: impl IntoIterator<Item = Trouble>) {
        troubles.into_iter().for_each(|trouble| self.add(trouble));
    }

    /// How much was found of a kind.
    pub fn count(&self, kind: Kind) -> u64 {
        self.found.lock().unwrap().get(&kind).map_or(0, |(total, _)| *total)
    }

    /// How much was found.
    pub fn total(&self) -> u64 {
        self.found.lock().unwrap().values().map(|(total, _)| total).sum()
    }

    /// The words, by kind.
    pub fn words(&self) -> Vec<(Kind, Vec<String>)> {
        self.found.lock().unwrap().iter().map(|(kind, (_, words))| (*kind, words.clone())).collect()
    }
}
