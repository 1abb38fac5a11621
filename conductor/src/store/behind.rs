//! What the store has not heard of: read from the journal at start.
//!
//! Each session's row says up to which number its record is accounted for.
//! What lies behind that is read once and folded in; a session that was open
//! when the service ended gets its last word, and a turn that ran is thereby
//! on record as interrupted. Nothing is sent again.

use std::{
    collections::HashMap,
    time::{Duration, UNIX_EPOCH},
};

use bytes::Bytes;
use serde_json::{Value, json};
use uuid::Uuid;

use super::Row;
use crate::{
    frame::{self, Kind, Method},
    journal::{Class, Journal, JournalError, Position, Record},
    record::{Destination, Origin, Stream, StreamKind, note},
    recorder::Recorder,
};

/// Bytes of the journal read at once.
const CHUNK: usize = 1 << 20;

/// Why a session that was open is not any more.
const KILLED: &str = "the conductor ended without warning";

/// What reading one session's record apart from the others takes at least: the
/// journal finds places by stretches of this size.
const STRETCH: u64 = 64 << 10;

/// Brings the rows up to date. Gives those that changed.
pub fn catch_up(journal: &Journal, rows: &mut HashMap<Uuid, Row>) -> Result<Vec<Uuid>, JournalError> {
    let mut behind: HashMap<Uuid, Behind> = HashMap::new();
    for (id, last) in journal.sessions() {
        let known = rows.get(&id);
        let from = known.map_or(1, |row| row.seq + 1);
        // After a power loss the file may know of numbers that are used again.
        let is_ahead = known.is_some_and(|row| row.seq > last);
        let is_open = known.is_some_and(|row| row.is_live);
        if from > last && !is_ahead && !is_open {
            continue;
        }
        let fold = Fold { row: known.cloned(), tentative: None, prompt: None, is_open };
        behind.insert(id, Behind { is_known: known.is_some(), from, last, fold });
    }
    // A few in a long journal are looked up; many are met on the way through it.
    if behind.len() as u64 * STRETCH < journal.status().bytes {
        read_apart(journal, &mut behind)?;
    } else {
        read_through(journal, &mut behind)?;
    }
    let mut changed = Vec::new();
    for (id, Behind { is_known, last, mut fold, .. }) in behind {
        let mut seq = last;
        if fold.is_open {
            let stream = Stream { id, kind: StreamKind::Session };
            let mut recorder = Recorder::new(Some(journal.clone()), stream);
            let interrupted = fold.prompt.take().map(|prompt| prompt.seq);
            let said = json!({ "reason": KILLED, "interrupted": interrupted, "lastSeq": last });
            recorder.note(note::SESSION_ENDED, &said);
            seq = recorder.last_seq();
            recorder.commit(Class::Stop).ok();
        }
        // One that no agent has named was never answered to an editor.
        let Some(row) = fold.row.filter(|row| is_known || !row.agent_session.is_empty()) else { continue };
        rows.insert(id, Row { is_live: false, seq, ..row });
        changed.push(id);
    }
    Ok(changed)
}

/// A session whose row does not know all of its record.
struct Behind {
    is_known: bool,
    /// The first number that is not accounted for, and the last one there is.
    from: u64,
    last: u64,
    fold: Fold,
}

impl Behind {
    fn take(&mut self, record: &Record) {
        self.fold.record(record, self.from);
        self.from = self.from.max(record.first_seq + u64::from(record.count));
    }
}

/// Reads each session's record by itself.
fn read_apart(journal: &Journal, behind: &mut HashMap<Uuid, Behind>) -> Result<(), JournalError> {
    for (id, behind) in behind {
        while behind.from <= behind.last {
            let records = journal.read_stream(*id, behind.from, CHUNK)?;
            if records.is_empty() {
                break;
            }
            records.iter().for_each(|record| behind.take(record));
        }
    }
    Ok(())
}

/// Reads the whole journal, once.
fn read_through(journal: &Journal, behind: &mut HashMap<Uuid, Behind>) -> Result<(), JournalError> {
    let mut at = Position::default();
    loop {
        let (records, next) = journal.read(at, CHUNK)?;
        if records.is_empty() {
            return Ok(());
        }
        for record in records {
            if let Some(behind) = behind.get_mut(&record.stream.id) {
                behind.take(&record);
            }
        }
        at = next;
    }
}

struct Fold {
    row: Option<Row>,
    /// A binding that knows the conversation only once it has answered.
    tentative: Option<Bytes>,
    prompt: Option<Prompt>,
    is_open: bool,
}

/// A prompt without an answer.
struct Prompt {
    seq: u64,
    /// The id that it went on with.
    away: u64,
    /// The id that it came with.
    own: Vec<u8>,
}

impl Fold {
    fn record(&mut self, record: &Record, from: u64) {
        let at = UNIX_EPOCH + Duration::from_micros(record.at_us.max(0).cast_unsigned());
        for (index, line) in (0_u32..).zip(record.lines()) {
            let seq = record.first_seq + u64::from(index);
            let Ok(peek) = frame::peek(line) else { continue };
            if seq < from {
                continue;
            }
            if let Some(row) = &mut self.row {
                row.updated = row.updated.max(at);
            }
            let params = || serde_json::from_slice::<Value>(peek.params.of(line)).unwrap_or_default();
            match (record.origin, peek.kind, peek.method) {
                (Origin::Conductor, Kind::Notification, _) if record.to == Destination::Record => {
                    let name: String = serde_json::from_slice(peek.name.of(line)).unwrap_or_default();
                    self.note(&name, &params(), at);
                }
                (Origin::Editor, Kind::Request, Method::SessionPrompt) => {
                    let away = record.outgoing.iter().find(|(at, _)| *at == index).map(|(_, id)| *id);
                    if let Some(away) = away {
                        self.prompt = Some(Prompt { seq, away, own: peek.id.of(line).to_vec() });
                    }
                }
                (Origin::Agent, Kind::Notification, Method::SessionUpdate)
                    if peek.update.of(line) == b"\"session_info_update\"" =>
                {
                    if let (Some(title), Some(row)) = (params()["update"].get("title"), &mut self.row) {
                        row.title = title.as_str().map(crate::router::title);
                    }
                }
                (origin, Kind::Result | Kind::Error, _) => {
                    let id = peek.id.of(line);
                    let number = std::str::from_utf8(id).ok().and_then(|id| id.parse::<u64>().ok());
                    let answered = self.prompt.as_ref().is_some_and(|prompt| match origin {
                        Origin::Agent => Some(prompt.away) == number,
                        _ => record.to == Destination::Editor && prompt.own == id,
                    });
                    if answered {
                        self.prompt = None;
                        if origin == Origin::Agent && peek.kind == Kind::Result {
                            self.settle();
                        }
                    }
                }
                _ => {}
            }
        }
    }

    fn note(&mut self, name: &str, params: &Value, at: std::time::SystemTime) {
        let text = |key: &str| params[key].as_str().unwrap_or_default().to_owned();
        match name {
            note::SESSION_OPENED => {
                self.is_open = true;
                self.tentative = None;
                if params["how"] != "new" {
                    return;
                }
                // It counts once the agent has named it.
                self.row = Some(Row {
                    owner: text("user"),
                    agent: text("agent").into(),
                    cwd: text("cwd").into(),
                    agent_session: Bytes::new(),
                    title: None,
                    created: at,
                    updated: at,
                    is_live: true,
                    is_deleted: false,
                    seq: 0,
                });
            }
            note::SESSION_BOUND => {
                let Some(name) = params["agentSession"].as_str() else { return };
                self.tentative = Some(Value::from(name).to_string().into());
                if params["how"] != "handover" {
                    self.settle();
                }
            }
            note::SESSION_ENDED => {
                self.is_open = false;
                self.prompt = None;
                self.tentative = None;
            }
            _ => {}
        }
    }

    fn settle(&mut self) {
        if let (Some(name), Some(row)) = (self.tentative.take(), &mut self.row) {
            row.agent_session = name;
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;
    use crate::journal::Settings;

    fn session(journal: &Journal, id: Uuid, title: &str) {
        let mut recorder = Recorder::new(Some(journal.clone()), Stream { id, kind: StreamKind::Session });
        let opened = json!({ "how": "new", "user": "ann", "agent": "demo", "cwd": "/w" });
        recorder.note(note::SESSION_OPENED, &opened);
        recorder.note(note::SESSION_BOUND, &json!({ "how": "new", "agentSession": title }));
        recorder.commit(Class::Stream).unwrap();
        let told = json!({ "jsonrpc": "2.0", "method": "session/update", "params": { "sessionId": "a",
            "update": { "sessionUpdate": "session_info_update", "title": title } } });
        recorder.frame(Origin::Agent, Destination::Editor, None, told.to_string().as_bytes());
        recorder.frame(
            Origin::Editor,
            Destination::Agent,
            Some(7),
            br#"{"jsonrpc":"2.0","id":3,"method":"session/prompt","params":{"sessionId":"a"}}"#,
        );
        recorder.commit(Class::Stream).unwrap();
    }

    #[test]
    fn both_ways_to_read_find_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let ids: Vec<Uuid> = (0..5).map(|_| Uuid::now_v7()).collect();
        let (journal, _) = Journal::open(&dir.path().join("journal"), Settings::default()).unwrap();
        ids.iter().enumerate().for_each(|(number, id)| session(&journal, *id, &format!("s{number}")));
        journal.close();
        let (journal, _) = Journal::open(&dir.path().join("journal"), Settings::default()).unwrap();
        type Read = fn(&Journal, &mut HashMap<Uuid, Behind>) -> Result<(), JournalError>;
        let [apart, through] = [read_apart as Read, read_through].map(|read| {
            let fold = || Fold { row: None, tentative: None, prompt: None, is_open: false };
            let behind = |(id, last)| (id, Behind { is_known: false, from: 1, last, fold: fold() });
            let mut all: HashMap<_, _> = journal.sessions().into_iter().map(behind).collect();
            read(&journal, &mut all).unwrap();
            let found = |id: &Uuid| {
                let Behind { from, last, fold, .. } = &all[id];
                (*from, *last, fold.row.clone(), fold.prompt.as_ref().map(|prompt| prompt.seq), fold.is_open)
            };
            ids.iter().map(found).collect::<Vec<_>>()
        });
        assert_eq!(apart, through);
        let (from, last, row, prompt, is_open) = through[3].clone();
        assert_eq!((from, last, prompt, is_open), (5, 4, Some(4), true));
        let row = row.unwrap();
        assert_eq!((row.title.as_deref(), &row.agent_session[..]), (Some("s3"), &b"\"s3\""[..]));

        let mut rows = HashMap::new();
        assert_eq!(catch_up(&journal, &mut rows).unwrap().len(), 5);
        assert!(rows.values().all(|row| !row.is_live && row.seq == 5), "{rows:?}");
        assert_eq!(catch_up(&journal, &mut rows).unwrap(), Vec::<Uuid>::new(), "nothing is left to do");
    }
}
