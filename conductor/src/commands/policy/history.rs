//! Decisions on record, for the commands that go through them: where they are, how far it is,
//! what to say if they cannot be read.

use std::path::Path;

use crate::{
    cli::{Global, LedgerPlaceArgs},
    commands::{
        ledger::{exists, settings, unreadable},
        progress::ProgressLine,
    },
    ledger::{
        LedgerError, Settings,
        judgements::{Judgement, Judgements, Which},
    },
    policy::Narrowing,
};

/// Decisions, one after the other, with a line that says how far it is.
pub(super) struct Decisions {
    settings: Settings,
    judgements: Judgements,
    page: std::vec::IntoIter<Judgement>,
    line: ProgressLine,
    done: u64,
    /// How many there were at first: more may have come, and all of them are read.
    total: u64,
    most: u64,
    is_limited: bool,
}

impl Decisions {
    /// Those of the ledger that is meant; no more than so many.
    pub(super) async fn open(
        global: &Global,
        place: &LedgerPlaceArgs,
        which: Which,
        limit: Option<u64>,
    ) -> Result<Self, String> {
        let config: Option<&Path> = place.config.as_deref();
        let settings = settings(global, place.database_url.as_ref(), config)?;
        exists(&settings)?;
        let judgements = Judgements::new(settings.clone(), which);
        let total = judgements.count().await.map_err(|error| explain(&settings, &error))?;
        let most = limit.unwrap_or(u64::MAX);
        let (page, line) = (Vec::new().into_iter(), ProgressLine::new("requests"));
        Ok(Self { settings, judgements, page, line, done: 0, total, most, is_limited: false })
    }

    /// The next one. The oldest come last, so none is left out for one that has come meanwhile.
    pub(super) async fn next(&mut self) -> Result<Option<Judgement>, String> {
        if self.page.len() == 0 {
            let some = self.judgements.next().await.map_err(|error| explain(&self.settings, &error))?;
            self.page = some.into_iter();
            self.line.tell(self.done, self.total.max(self.done).min(self.most));
        }
        let Some(next) = self.page.next() else { return Ok(None) };
        self.is_limited = self.done >= self.most;
        self.done += 1;
        Ok(Some(next).filter(|_| !self.is_limited))
    }

    /// Whether there are more than were wanted; known once there is no next one.
    pub(super) fn is_limited(&self) -> bool {
        self.is_limited
    }

    /// What was added to the rules of a session.
    pub(super) async fn narrowing(&self, session: &str, seq: u64) -> Result<Option<Vec<Narrowing>>, String> {
        let Ok(session) = session.parse() else { return Ok(None) };
        let found = self.judgements.narrowing(session, seq).await;
        found.map_err(|error| explain(&self.settings, &error))
    }

    /// Where they are, without secrets.
    pub(super) fn place(&self) -> String {
        self.settings.shown()
    }
}

impl Drop for Decisions {
    fn drop(&mut self) {
        self.line.clear();
    }
}

/// A column that is missing is one that this version has added.
fn explain(settings: &Settings, error: &LedgerError) -> String {
    let text = unreadable(settings, error);
    let is_older = ["no such column", "does not exist"].iter().any(|words| text.contains(words));
    match is_older {
        true => {
            format!("{text}; the ledger is of an older version: start `conductor serve` of this one on it")
        }
        false => text,
    }
}
