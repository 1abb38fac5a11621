//! `History.Tail`: what happens, from any place on, for those who keep a record of their own.
//!
//! Each call reads the journal for itself, as fast as its caller reads, and holds no more
//! than a page of it.

use std::{sync::Arc, time::Duration};

use futures_util::{Stream, stream};
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    time::{Instant, timeout},
};
use tonic::Status;
use uuid::Uuid;

use super::history::id;
use crate::{
    connection::Hub,
    feed::{
        Cursor, FeedError, Format, Kind, Reader, Start, Thing, Told, What,
        line::{frame, words},
    },
    frame::peek,
    journal::{Journal, Position},
    proto::{TailEntry, TailFormat, TailRequest, TailResponse},
    record::StreamKind,
};

/// Calls at once. Each may have to remember a few hundred streams.
const MOST: usize = 16;

/// About so many bytes go into one message, unless one entry has more.
const MESSAGE: usize = 256 << 10;

/// So often a caller is told where the call is while nothing is told that it asked for.
const STILL_HERE: Duration = Duration::from_secs(10);

/// How long a call waits for what was written before it to be synced.
const SETTLING: Duration = Duration::from_secs(2);

/// Those who follow.
#[derive(Debug)]
pub(super) struct Tails {
    places: Arc<Semaphore>,
}

impl Default for Tails {
    fn default() -> Self {
        Self { places: Arc::new(Semaphore::new(MOST)) }
    }
}

impl Tails {
    /// Begins to tell.
    pub(super) async fn follow(
        &self,
        hub: &Hub,
        request: TailRequest,
    ) -> Result<impl Stream<Item = Result<TailResponse, Status>> + Send + use<>, Status> {
        let place = self.places.clone().try_acquire_owned().map_err(|_| {
            Status::resource_exhausted(format!(
                "{MOST} calls follow already; end one of them, or try again later"
            ))
        })?;
        let sift = Sift::of(&request)?;
        let start = start(&request)?;
        let (what, format) = match request.format() {
            TailFormat::Unspecified | TailFormat::Conductor => (What::Events, Format::Conductor),
            TailFormat::Ocsf => (What::Events, Format::Ocsf),
            TailFormat::Frames => (What::Frames, Format::Conductor),
        };
        // Whoever asks right after something expects to find it.
        let upto = settled(&hub.journal).await;
        let (journal, history) = (hub.journal.clone(), hub.history.clone());
        let reader = Reader::new(journal, history, start, what, request.include_text).await;
        let tail = Tail {
            reader: reader.map_err(|error| refused(&error))?,
            synced: hub.journal.synced(),
            follows: request.follow,
            upto,
            sift,
            format,
            host: hub.ledger.settings().host.clone(),
            waiting: Vec::new().into_iter(),
            told: None,
            is_over: false,
            is_done: false,
            _place: place,
        };
        Ok(stream::try_unfold(tail, |mut tail| async {
            Ok(tail.next().await?.map(|response| (response, tail)))
        }))
    }
}

/// Waits a moment until all that is written is synced. Returns where that ends.
async fn settled(journal: &Journal) -> Position {
    let written = *journal.written().borrow();
    let mut synced = journal.synced();
    timeout(SETTLING, synced.wait_for(|synced| *synced >= written)).await.ok();
    *journal.synced().borrow()
}

fn start(request: &TailRequest) -> Result<Start, Status> {
    let since = Some(request.since_us).filter(|since| *since != 0).map(Start::Since);
    match request.from.as_str() {
        "" => Ok(since.unwrap_or(Start::Oldest)),
        _ if since.is_some() => {
            Err(Status::invalid_argument("from and since_us both say where to begin; give one of them"))
        }
        "oldest" => Ok(Start::Oldest),
        "now" => Ok(Start::Now),
        text => Cursor::parse(text).map(Start::Behind).ok_or_else(|| {
            let text = crate::frame::escape(text.as_bytes(), 100);
            Status::invalid_argument(format!(
                "from: `{text}` is no cursor; write oldest, now, or a cursor as an event has it"
            ))
        }),
    }
}

fn refused(error: &FeedError) -> Status {
    let text = error.to_string();
    match error {
        FeedError::Freed { .. } => Status::out_of_range(text),
        FeedError::Other { .. } | FeedError::Unknown => Status::invalid_argument(text),
        FeedError::Journal(_) => Status::unavailable(text),
    }
}

/// What a caller wants to hear of.
#[derive(Debug)]
struct Sift {
    session: Option<Uuid>,
    user: Option<String>,
    agent: Option<String>,
    kinds: Vec<String>,
    stream: Option<StreamKind>,
}

impl Sift {
    fn of(request: &TailRequest) -> Result<Self, Status> {
        let some = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
        let session = some(&request.session_id).map(|text| id("session_id", &text)).transpose()?;
        if let Some(unknown) =
            request.kinds.iter().find(|name| !Kind::ALL.iter().any(|kind| kind.is_of(name)))
        {
            let unknown = crate::frame::escape(unknown.as_bytes(), 100);
            let names: Vec<_> = Kind::ALL.iter().map(|kind| kind.name()).collect();
            return Err(Status::invalid_argument(format!(
                "kinds: there is no `{unknown}`; there are {}",
                names.join(", ")
            )));
        }
        let stream = some(&request.stream_kind).map(|name| {
            StreamKind::from_name(&name).ok_or_else(|| {
                Status::invalid_argument("stream_kind: write session, process, connection or grant")
            })
        });
        Ok(Self {
            session,
            user: some(&request.user),
            agent: some(&request.agent),
            kinds: request.kinds.clone(),
            stream: stream.transpose()?,
        })
    }

    fn lets(&self, thing: &Thing) -> bool {
        let (stream, session, people, agent) = match thing {
            Thing::Event(event) => {
                let kinds = &self.kinds;
                if !kinds.is_empty() && !kinds.iter().any(|name| event.kind.is_of(name)) {
                    return false;
                }
                (event.stream, event.session, [event.user.as_ref(), event.by.as_ref()], event.agent.as_ref())
            }
            Thing::Frame(frame) => {
                let session = (frame.stream.kind == StreamKind::Session).then_some(frame.stream.id);
                (frame.stream, session, [frame.user.as_ref(), None], frame.agent.as_ref())
            }
        };
        self.stream.is_none_or(|kind| stream.kind == kind)
            && self.session.is_none_or(|wanted| session == Some(wanted))
            && self.user.as_ref().is_none_or(|wanted| people.contains(&Some(wanted)))
            && self.agent.as_ref().is_none_or(|wanted| agent == Some(wanted))
    }
}

/// One call.
struct Tail {
    reader: Reader,
    synced: watch::Receiver<Position>,
    follows: bool,
    /// Where the journal ended when the call began.
    upto: Position,
    sift: Sift,
    format: Format,
    host: String,
    /// Read and not told.
    waiting: std::vec::IntoIter<Told<Thing>>,
    /// When the caller was told something last.
    told: Option<Instant>,
    is_over: bool,
    is_done: bool,
    _place: OwnedSemaphorePermit,
}

impl Tail {
    /// Some more; nothing at the end.
    async fn next(&mut self) -> Result<Option<TailResponse>, Status> {
        if self.told.is_none() {
            return Ok(Some(self.place()));
        }
        loop {
            let entries = self.entries();
            if let Some(last) = entries.last() {
                let cursor = last.cursor.clone();
                self.told = Some(Instant::now());
                return Ok(Some(TailResponse { entries, cursor }));
            }
            if self.is_over {
                // The last word is where the call has come to, whatever was asked for.
                return Ok(self.place_once());
            }
            self.synced.mark_unchanged();
            let page = self.reader.next().await.map_err(|error| refused(&error))?;
            self.waiting = page.told.into_iter();
            self.is_over = !self.follows && (page.is_end || page.cursor.at >= self.upto);
            if !page.is_end || self.is_over {
                continue;
            }
            if self.told.is_none_or(|told| told.elapsed() > STILL_HERE) {
                return Ok(Some(self.place()));
            }
            if self.synced.changed().await.is_err() {
                return Ok(None);
            }
        }
    }

    /// Where the call has ended, if that was not told.
    fn place_once(&mut self) -> Option<TailResponse> {
        (!std::mem::replace(&mut self.is_done, true)).then(|| self.place())
    }

    /// Where the call is.
    fn place(&mut self) -> TailResponse {
        self.told = Some(Instant::now());
        TailResponse { entries: Vec::new(), cursor: self.reader.cursor().to_string() }
    }

    /// What of the page is asked for, up to the size of a message.
    fn entries(&mut self) -> Vec<TailEntry> {
        let (mut entries, mut bytes) = (Vec::new(), 0);
        while bytes < MESSAGE
            && let Some(told) = self.waiting.next()
        {
            if self.sift.lets(&told.what) {
                let entry = self.entry(&told);
                bytes += entry.json.len() + entry.summary.len();
                entries.push(entry);
            }
        }
        entries
    }

    fn entry(&self, told: &Told<Thing>) -> TailEntry {
        let text = |text: &Option<String>| text.clone().unwrap_or_default();
        match &told.what {
            Thing::Event(event) => TailEntry {
                cursor: told.cursor.to_string(),
                at_us: event.at_us,
                kind: event.kind.name().to_owned(),
                session_id: event.session.map(|id| id.to_string()).unwrap_or_default(),
                user: text(&event.user),
                agent: text(&event.agent),
                summary: words(event),
                json: self.format.line(event, &told.cursor, &self.host),
            },
            Thing::Frame(raw) => {
                let session = (raw.stream.kind == StreamKind::Session).then(|| raw.stream.id.to_string());
                let method = peek(&raw.raw).ok().map(|peek| peek.name.of(&raw.raw).to_vec());
                let method = String::from_utf8_lossy(&method.unwrap_or_default()).into_owned();
                TailEntry {
                    cursor: told.cursor.to_string(),
                    at_us: raw.at_us,
                    kind: "frame".to_owned(),
                    session_id: session.unwrap_or_default(),
                    user: text(&raw.user),
                    agent: text(&raw.agent),
                    summary: format!("{} {} {}", raw.seq, raw.origin.name(), method.trim_matches('"')),
                    json: frame(raw, &told.cursor),
                }
            }
        }
    }
}
