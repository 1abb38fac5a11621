//! What is written down of a grant: a stream of its own says who gave it, and who
//! took it back.

use std::sync::Arc;

use serde_json::{Value, json};

use super::Grant;
use crate::{
    journal::{Class, Journal, Ticket},
    record::{Stream, StreamKind, note},
    recorder::Recorder,
};

/// Writes down that a grant was given. Without that it does not count.
pub fn record_given(journal: &Journal, grant: &Grant) -> Result<Option<Ticket>, Arc<str>> {
    if let Some(why) = journal.refusing() {
        return Err(why);
    }
    record(journal, grant, note::GRANTED, &grant.note())
}

/// Writes down that a grant was taken back. What the journal does not take now it takes later:
/// nobody waits for it to be without a grant.
pub fn record_revoked(
    journal: &Journal,
    grant: &Grant,
    by: &str,
    reason: &str,
) -> Result<Option<Ticket>, Arc<str>> {
    let said = json!({ "grant": grant.id.to_string(), "by": by, "reason": reason });
    record(journal, grant, note::GRANT_REVOKED, &said)
}

/// One who gives and one who takes back: nobody else writes to this stream, and a grant can
/// be taken back once.
fn record(
    journal: &Journal,
    grant: &Grant,
    method: &'static str,
    params: &Value,
) -> Result<Option<Ticket>, Arc<str>> {
    let mut recorder = Recorder::new(Some(journal.clone()), Stream { id: grant.id, kind: StreamKind::Grant });
    recorder.note(method, params);
    recorder.commit(Class::Stop)
}
