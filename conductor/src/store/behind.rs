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

use super::{Bound, Row};
use crate::{
    frame::{self, Kind, Method},
    journal::{Class, Journal, JournalError, Position, Record},
    record::{Destination, Origin, Stream, StreamKind, note},
    recorder::Recorder,
};

/// Bytes of a session's record read at once.
const CHUNK: usize = 1 << 20;

/// Why a session that was open is not any more.
const KILLED: &str = "the conductor ended without warning";

/// What reading a frame by its stream is reckoned to cost, in bytes of reading
/// everything in order: frames of one session lie far apart where many worked.
const FAR_APART: u64 = 16 << 10;

/// What was read.
#[derive(Debug, Default)]
pub struct CaughtUp {
    /// The sessions whose rows have changed.
    pub changed: Vec<Uuid>,
    /// How often grants were used, at least.
    pub uses: HashMap<Uuid, u64>,
}

/// Brings the rows up to date.
pub fn catch_up(journal: &Journal, rows: &mut HashMap<Uuid, Row>) -> Result<CaughtUp, JournalError> {
    let mut behind = HashMap::new();
    for (id, last) in journal.sessions() {
        let known = rows.get(&id);
        let next = known.map_or(1, |row| row.seq + 1);
        // After a power loss the file may know of numbers that are used again.
        let is_ahead = known.is_some_and(|row| row.seq > last);
        if next > last && !is_ahead && known.is_none_or(|row| !row.is_live) {
            continue;
        }
        let is_open = known.is_some_and(|row| row.is_live);
        let fold = Fold { row: known.cloned(), tentative: None, prompt: None, is_open, uses: HashMap::new() };
        behind.insert(id, Behind { fold, next, last, is_known: known.is_some() });
    }
    let frames: u64 = behind.values().map(|behind| (behind.last + 1).saturating_sub(behind.next)).sum();
    if frames.saturating_mul(FAR_APART) > journal.status().bytes {
        read_all(journal, &mut behind)?;
    }
    let mut caught_up = CaughtUp::default();
    for (id, mut behind) in behind {
        while behind.next <= behind.last {
            let records = journal.read_stream(id, behind.next, CHUNK)?;
            if records.is_empty() {
                break;
            }
            records.iter().for_each(|record| behind.record(record));
        }
        let Behind { mut fold, last, is_known, .. } = behind;
        let prompt = fold.prompt.take();
        for (grant, number) in fold.uses.drain() {
            let uses = caught_up.uses.entry(grant).or_default();
            *uses = number.max(*uses);
        }
        let mut seq = last;
        if fold.is_open {
            let stream = Stream { id, kind: StreamKind::Session };
            let mut recorder = Recorder::new(Some(journal.clone()), stream);
            let interrupted = prompt.map(|prompt| prompt.seq);
            let said = json!({ "reason": KILLED, "interrupted": interrupted, "lastSeq": last });
            recorder.note(note::SESSION_ENDED, &said);
            seq = recorder.last_seq();
            recorder.commit(Class::Stop).ok();
        }
        // One that no agent has named was never answered to an editor.
        let Some(row) = fold.row.filter(|row| is_known || !row.agent_session.is_empty()) else { continue };
        rows.insert(id, Row { is_live: false, seq, ..row });
        caught_up.changed.push(id);
    }
    Ok(caught_up)
}

/// Reads the whole journal in order. What is not synced yet is left over.
fn read_all(journal: &Journal, behind: &mut HashMap<Uuid, Behind>) -> Result<(), JournalError> {
    let mut at = Position::default();
    loop {
        let (records, next) = journal.read(at, CHUNK)?;
        if records.is_empty() {
            return Ok(());
        }
        at = next;
        for record in records {
            if let Some(behind) = behind.get_mut(&record.stream.id) {
                behind.record(&record);
            }
        }
    }
}

/// A session of which the store has not heard all.
struct Behind {
    fold: Fold,
    /// The first and the last number that it has not heard of.
    next: u64,
    last: u64,
    is_known: bool,
}

impl Behind {
    fn record(&mut self, record: &Record) {
        let end = record.first_seq + u64::from(record.count);
        if end > self.next {
            self.fold.record(record, self.next);
            self.next = end;
        }
    }
}

struct Fold {
    row: Option<Row>,
    /// A binding that knows the conversation only once it has answered.
    tentative: Option<Bound>,
    prompt: Option<Prompt>,
    is_open: bool,
    /// Uses of grants: the greatest number of each.
    uses: HashMap<Uuid, u64>,
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
                    self.note(&name, &params(), at, seq);
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

    fn note(&mut self, name: &str, params: &Value, at: std::time::SystemTime, seq: u64) {
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
                    bound: Vec::new(),
                    title: None,
                    created: at,
                    updated: at,
                    is_live: true,
                    is_deleted: false,
                    seq: 0,
                });
            }
            note::SESSION_BOUND => {
                let (Some(name), Some(row)) = (params["agentSession"].as_str(), &mut self.row) else {
                    return;
                };
                let agent = params["agent"].as_str().map_or_else(|| row.agent.to_string(), str::to_owned);
                let number = params["number"].as_u64().and_then(|number| u32::try_from(number).ok());
                // Whoever had it before has heard all until now.
                let current: Option<String> = serde_json::from_slice(&row.agent_session).ok();
                if let Some(before) =
                    row.bound.iter_mut().find(|bound| Some(&bound.session) == current.as_ref())
                    && before.session != name
                {
                    before.seen = seq.saturating_sub(1);
                }
                self.tentative =
                    Some(Bound { agent, session: name.to_owned(), number: number.unwrap_or(1), seen: 0 });
                if params["how"] != "handover" {
                    self.settle();
                }
            }
            note::GRANT_USED => {
                let grant = params["grant"].as_str().and_then(|id| id.parse().ok());
                if let (Some(grant), Some(number)) = (grant, params["number"].as_u64()) {
                    let uses = self.uses.entry(grant).or_default();
                    *uses = number.max(*uses);
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
        if let (Some(bound), Some(row)) = (self.tentative.take(), &mut self.row) {
            row.agent = bound.agent.as_str().into();
            row.agent_session = Value::from(bound.session.as_str()).to_string().into();
            if !row.bound.iter().any(|known| known.session == bound.session && known.agent == bound.agent) {
                row.bound.push(bound);
            }
        }
    }
}
