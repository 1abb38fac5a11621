//! What someone beside the lead sees of a session: its record, as far as they
//! have not seen it, then what is added to it, told like to the lead.
//!
//! A follower has a task of its own, and reads no faster than its editor does:
//! what an editor leaves unread stays where it is safe anyway.

use std::{
    collections::{HashSet, VecDeque},
    sync::Arc,
};

use bytes::{BufMut as _, Bytes, BytesMut};
use serde_json::json;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tracing::debug;
use uuid::Uuid;

use super::{
    EditorLink, Packet, SeatRole, Seated, SessionEvent, Told,
    adapt::{put_update, takes},
    past::{self, Past, blocks, user_message},
};
use crate::{
    acp,
    cwd_map::CwdMap,
    frame::{self, Kind, Method, Peek, Run, splice},
    ledger::history::{self, History},
    pending::WireId,
};

/// About so many bytes go to the editor at once.
const PACKET: usize = 64 << 10;

/// What a follower starts from.
#[derive(Debug)]
pub struct Follower {
    /// The session.
    pub session: Uuid,
    /// The way to the editor.
    pub link: EditorLink,
    /// What it may do.
    pub role: SeatRole,
    /// Whether it wants to see what was before.
    pub replays: bool,
    /// Where the editor has other paths than this host.
    pub cwd_map: Option<Arc<CwdMap>>,
    /// It gets nothing more but answers to what it has asked.
    pub ended: CancellationToken,
    /// The service stops, and lets everybody go: nobody has left then.
    pub closing: CancellationToken,
}

/// The editor's queue is closed, or the history cannot be read: nothing more can
/// be told.
struct Lost;

struct Following {
    with: Follower,
    history: History,
    /// Our id of the session, with quotes.
    name: Bytes,
    at_seq: u64,
    past: Past,
    /// What waits until the record was followed so far.
    told: VecDeque<(u64, Word)>,
    /// Prompts of its own that are about to be recorded: the last number before
    /// each, and its id. Ids come again with every process.
    own: Vec<(u64, u64)>,
    /// Permission requests that the editor has open.
    open: HashSet<u32>,
    out: BytesMut,
    count: u32,
    /// The opening request was answered.
    is_open: bool,
    /// It has given up its seat, or lost it.
    has_left: bool,
}

/// What is said besides the record.
enum Word {
    Line(Bytes),
    Ask(u32, Bytes),
    Withdrawn(u32, Option<String>),
}

/// Follows a session until it ends or the editor goes.
pub async fn follow(with: Follower, seated: oneshot::Receiver<Seated>, history: History) {
    let (events, slot) = (with.link.events.clone(), with.link.slot);
    if let Ok(seated) = seated.await {
        let name = format!("\"{}\"", with.session).into();
        let from = if with.replays { 1 } else { seated.at_seq + 1 };
        let mut past = if with.replays { Past::default() } else { Past::behind(seated.standing.clone()) };
        past.follows = true;
        let following = Following {
            with,
            history,
            name,
            at_seq: seated.at_seq,
            past,
            told: VecDeque::new(),
            own: Vec::new(),
            open: HashSet::new(),
            out: BytesMut::new(),
            count: 0,
            is_open: false,
            has_left: false,
        };
        following.run(seated, from).await.ok();
    }
    events.send(SessionEvent::Ended(slot)).await.ok();
}

impl Following {
    async fn run(mut self, seated: Seated, from: u64) -> Result<(), Lost> {
        let Seated { at_seq, asks, mut told, .. } = seated;
        let mut reading = self.history.frames(self.with.session, from, None, true);
        let mut next = from;
        let (mut is_over, mut is_closing) = (false, false);
        let ended = self.with.ended.clone();
        let mut asks = Some(asks);
        loop {
            self.deliver(next).await?;
            // The answer to the opening request comes first of all that is told.
            if self.is_open
                && let Some(asks) = asks.take()
            {
                self.told.extend(asks.into_iter().map(|(number, line)| (at_seq, Word::Ask(number, line))));
                continue;
            }
            tokio::select! {
                biased;
                () = ended.cancelled(), if !self.has_left && !is_closing => {
                    // Answers stay behind what was said before them, up to the session's end.
                    if self.with.closing.is_cancelled() {
                        is_closing = true;
                        continue;
                    }
                    self.has_left = true;
                    // With the session over as well, there is nobody left to wait for.
                    if is_over {
                        return self.deliver(u64::MAX).await;
                    }
                }
                word = told.recv(), if !is_over => match word {
                    Some(word) => self.heed(word),
                    None if self.has_left => return self.deliver(u64::MAX).await,
                    None => {
                        // Nothing is added any more for this seat.
                        is_over = true;
                        reading = self.history.frames(self.with.session, next, None, false);
                    }
                },
                frames = reading.next(), if !self.has_left => {
                    let frames = frames.map_err(|error| {
                        debug!(%error, "the session cannot be followed");
                        Lost
                    })?;
                    if frames.is_empty() {
                        return self.deliver(u64::MAX).await;
                    }
                    // What was told before these were written is here by now.
                    while let Ok(word) = told.try_recv() {
                        self.heed(word);
                    }
                    for frame in &frames {
                        self.deliver(frame.seq).await?;
                        self.frame(frame);
                        next = frame.seq + 1;
                        if self.out.len() >= PACKET {
                            self.flush().await?;
                        }
                    }
                    self.flush().await?;
                }
            }
        }
    }

    fn heed(&mut self, told: Told) {
        match told {
            Told::Own { after, outgoing } => self.own.push((after, outgoing)),
            Told::Answer { after, line } => self.told.push_back((after, Word::Line(line))),
            Told::Withdrawn { after, number, by } => {
                self.told.push_back((after, Word::Withdrawn(number, by)));
            }
        }
    }

    /// Says what is due before the frame with this number.
    async fn deliver(&mut self, next: u64) -> Result<(), Lost> {
        let has_left = self.has_left;
        while let Some((_, word)) = self.told.pop_front_if(|(after, _)| *after < next || has_left) {
            match word {
                Word::Ask(..) | Word::Withdrawn(..) if has_left => {}
                Word::Line(line) => {
                    self.out.put_slice(&line);
                    self.count += 1;
                    if !self.is_open {
                        self.open().await?;
                    }
                }
                Word::Ask(number, line) => {
                    if let Ok(peek) = frame::peek(&line) {
                        self.ask(number, &line, &peek);
                    }
                }
                Word::Withdrawn(number, by) => self.withdraw(number, by),
            }
        }
        self.flush().await
    }

    fn frame(&mut self, frame: &history::Frame) {
        let is_news = frame.seq > self.at_seq;
        match self.past.hear(frame) {
            past::Told::Update(raw, peek) => self.line(&raw, &peek),
            past::Told::Prompt(peek) => {
                let outgoing = frame.outgoing_id.and_then(|id| u64::try_from(id).ok());
                let is_it = |own: &(u64, u64)| own.0 < frame.seq && Some(own.1) == outgoing;
                if let Some(at) = self.own.iter().position(is_it) {
                    self.own.remove(at);
                    return;
                }
                for content in blocks(&frame.raw, &peek) {
                    let line = user_message(self.with.session, frame.seq, &self.name, content);
                    if let Ok(peek) = frame::peek(line.as_bytes()) {
                        self.line(line.as_bytes(), &peek);
                    }
                }
            }
            past::Told::Nothing if is_news => self.news(frame),
            past::Told::Nothing => {}
        }
    }

    /// What is no part of the conversation, and only told as it happens.
    fn news(&mut self, frame: &history::Frame) {
        let Ok(peek) = frame::peek(&frame.raw) else { return };
        let is_drivers = self.with.role == SeatRole::Driver;
        match (peek.kind, peek.method) {
            (Kind::Request, Method::RequestPermission) if frame.destination == "editor" && is_drivers => {
                // A question of our own has its id already.
                let id = match frame.origin.as_str() {
                    "agent" => frame.outgoing_id.and_then(|id| WireId::parse(id.to_string().as_bytes())),
                    _ => WireId::parse(peek.id.of(&frame.raw)),
                };
                if let Some(id) = id {
                    let renamed =
                        if frame.origin == "agent" { self.past.renamed(&frame.raw, &peek) } else { None };
                    match renamed {
                        Some((raw, peek)) => self.ask(id.number, &raw, &peek),
                        None => self.ask(id.number, &frame.raw, &peek),
                    }
                }
            }
            (Kind::Notification, Method::SessionUpdate)
                if frame.destination == "editor" && peek.update.of(&frame.raw) == b"\"notice\"" =>
            {
                self.line(&frame.raw, &peek);
            }
            (Kind::Notification, Method::Other) if frame.origin == "agent" => {
                splice(&mut self.out, &frame.raw, [(peek.session, &self.name)]);
                self.count += 1;
            }
            _ => {}
        }
    }

    /// One update, if the editor takes its kind.
    fn line(&mut self, raw: &[u8], peek: &Peek) {
        let able = &self.with.link.capabilities;
        if !takes(able, raw, peek) {
            return;
        }
        let Some(map) = &self.with.cwd_map else {
            put_update(able, &self.name, &mut self.out, raw, peek);
            self.count += 1;
            return;
        };
        let mut line = BytesMut::from(raw);
        line.put_u8(b'\n');
        let run = map.from_agent(&Run::parse(line.freeze(), |_, _| {}), |_| false);
        for (bytes, peek) in run.iter() {
            put_update(able, &self.name, &mut self.out, bytes, peek);
            self.count += 1;
        }
    }

    fn ask(&mut self, number: u32, raw: &[u8], peek: &Peek) {
        let id = WireId { slot: self.with.link.slot, number }.to_string();
        splice(&mut self.out, raw, [(peek.id, id.as_bytes()), (peek.session, &self.name)]);
        self.count += 1;
        self.open.insert(number);
    }

    fn withdraw(&mut self, number: u32, by: Option<String>) {
        if !self.open.remove(&number) {
            return;
        }
        let id = WireId { slot: self.with.link.slot, number }.value();
        let params = match &by {
            Some(user) => json!({ "requestId": id, "_meta": { "conductor": { "answeredBy": user } } }),
            None => json!({ "requestId": id }),
        };
        self.say(&acp::call(None, "$/cancel_request", &params));
        if let Some(user) = by.filter(|_| self.with.link.capabilities.notices) {
            let text = format!("{user} has answered the request for permission.");
            self.say(&acp::notice(&self.with.session.to_string(), "info", "Answered elsewhere", &text));
        }
    }

    fn say(&mut self, line: &[u8]) {
        self.out.put_slice(line);
        self.count += 1;
    }

    /// Sends the answer to the opening request. The connection hears of it first:
    /// what the editor says to it then is in time, and should the seat be lost
    /// before, it is the connection that answers.
    async fn open(&mut self) -> Result<(), Lost> {
        let room = self.with.link.out.reserve(self.out.len()).await.map_err(|_| Lost)?;
        self.with.link.events.send(SessionEvent::Opened(self.with.link.slot)).await.ok();
        room.send(Packet { frames: self.out.split().freeze(), count: std::mem::take(&mut self.count) });
        self.is_open = true;
        Ok(())
    }

    async fn flush(&mut self) -> Result<(), Lost> {
        if self.count == 0 {
            return Ok(());
        }
        let packet = Packet { frames: self.out.split().freeze(), count: std::mem::take(&mut self.count) };
        let room = self.with.link.out.reserve(packet.frames.len()).await.map_err(|_| Lost)?;
        room.send(packet);
        Ok(())
    }
}
