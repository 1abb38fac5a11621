//! Reads the journal in its own order, from any place on, and tells what happened. Only what
//! is synced is told, so that nobody hears of what a power loss would undo.

use std::collections::{HashMap, VecDeque};

use bytes::Bytes;
use tokio::task::{spawn_blocking, yield_now};
use uuid::Uuid;

use super::{cursor::Cursor, event::Event, telling::Telling};
use crate::{
    journal::{Journal, JournalError, Position, Record, Standing},
    ledger::{history::History, project::FrameView},
    record::{Destination, Origin, Stream},
};

/// About so many bytes of the journal are read at once, or one record.
const CHUNK: usize = 256 << 10;

/// About so many things are told at once.
const PAGE: usize = 256;

/// So many frames are folded before others get their turn.
const TURN: u64 = 32;

/// Streams that are kept in mind. One that was forgotten is read again when it goes on.
const MOST_STREAMS: usize = 256;

/// Where to begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// With the oldest that the journal has.
    Oldest,
    /// With what comes from now on.
    Now,
    /// With what was recorded at a time or later.
    Since(i64),
    /// Behind what was told last.
    Behind(Cursor),
}

/// Why reading cannot go on.
#[derive(Debug, thiserror::Error)]
pub enum FeedError {
    /// What follows was freed.
    #[error(
        "what follows this cursor is not kept any more (journal.keep): go on with --from oldest, which is \
         {oldest} now; the ledger has what lies between"
    )]
    Freed {
        /// Where it can go on.
        oldest: Cursor,
    },
    /// It is of another journal.
    #[error(
        "this cursor is of another journal, {other}; this service writes journal {this}. Ask the service \
         that gave it out, or begin with --from oldest"
    )]
    Other {
        /// The cursor's.
        other: Uuid,
        /// Ours.
        this: Uuid,
    },
    /// No record ends there.
    #[error(
        "this cursor was not given out by this service, or its state directory was put back to an \
         earlier day; begin with --from oldest or --from now"
    )]
    Unknown,
    /// The journal cannot be read.
    #[error("the journal cannot be read: {0}")]
    Journal(String),
}

impl From<JournalError> for FeedError {
    fn from(error: JournalError) -> Self {
        Self::Journal(error.to_string())
    }
}

/// What is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// Events.
    Events,
    /// Frames as they came.
    Frames,
}

/// A frame as it was recorded.
#[derive(Debug, Clone)]
pub struct Frame {
    /// What it is numbered in.
    pub stream: Stream,
    /// Its number there.
    pub seq: u64,
    /// When it was recorded.
    pub at_us: i64,
    /// Who made it.
    pub origin: Origin,
    /// Whom it is for.
    pub to: Destination,
    /// The id it was passed on with.
    pub outgoing: Option<u64>,
    /// The bytes.
    pub raw: Bytes,
    /// Whose it is.
    pub user: Option<String>,
    /// Which agent's.
    pub agent: Option<String>,
}

/// One thing that is told, and the place behind it.
#[derive(Debug, Clone)]
pub struct Told<T> {
    /// Just behind it.
    pub cursor: Cursor,
    /// What it is.
    pub what: T,
}

/// An event or a frame.
#[derive(Debug, Clone)]
pub enum Thing {
    /// Something that happened.
    Event(Event),
    /// A frame.
    Frame(Frame),
}

/// Some of what happened, in order.
#[derive(Debug)]
pub struct Page {
    /// What is told; it may be nothing.
    pub told: Vec<Told<Thing>>,
    /// Just behind all of it.
    pub cursor: Cursor,
    /// Nothing more was synced then.
    pub is_end: bool,
}

/// Reads on and on.
#[derive(Debug)]
pub struct Reader {
    journal: Journal,
    history: History,
    what: What,
    with_words: bool,
    since_us: i64,
    /// Where the next read begins.
    read: Position,
    /// What was read and not told, each with the place in front of it.
    queue: VecDeque<(Position, Record)>,
    /// Of the first record behind the cursor: frames and events that were told.
    done: (u32, u32),
    streams: Streams,
    folded: u64,
}

impl Reader {
    /// Begins at a place, if there is something to go on with.
    pub async fn new(
        journal: Journal,
        history: History,
        start: Start,
        what: What,
        with_words: bool,
    ) -> Result<Self, FeedError> {
        let (mut done, mut since_us) = ((0, 0), i64::MIN);
        let read = match start {
            Start::Oldest => journal.oldest(),
            Start::Now => *journal.synced().borrow(),
            Start::Since(at_us) => {
                since_us = at_us;
                journal.since(at_us)
            }
            Start::Behind(cursor) => {
                if cursor.journal != journal.id() {
                    return Err(FeedError::Other { other: cursor.journal, this: journal.id() });
                }
                let asked = journal.clone();
                let standing = spawn_blocking(move || asked.standing(cursor.at)).await;
                match standing.map_err(|error| FeedError::Journal(error.to_string()))?? {
                    Standing::Kept => {}
                    Standing::Freed => return Err(freed(&journal)),
                    Standing::Unknown => return Err(FeedError::Unknown),
                }
                done = (cursor.frames, cursor.events);
                cursor.at
            }
        };
        let queue = VecDeque::new();
        let streams = Streams::default();
        Ok(Self { journal, history, what, with_words, since_us, read, queue, done, streams, folded: 0 })
    }

    /// Just behind what was told.
    pub fn cursor(&self) -> Cursor {
        let at = self.queue.front().map_or(self.read, |(before, _)| *before);
        Cursor { journal: self.journal.id(), at, frames: self.done.0, events: self.done.1 }
    }

    /// Some more, as far as it is synced. Dropping this halfway loses nothing but work.
    pub async fn next(&mut self) -> Result<Page, FeedError> {
        if self.queue.is_empty() {
            self.fill().await?;
        }
        let is_empty = self.queue.is_empty();
        let mut told = Vec::new();
        while told.len() < PAGE
            && let Some((before, record)) = self.queue.front().cloned()
        {
            if record.at_us >= self.since_us {
                self.tell(before, &record, &mut told).await;
            }
            self.queue.pop_front();
            self.done = (0, 0);
        }
        Ok(Page { told, cursor: self.cursor(), is_end: is_empty })
    }

    async fn fill(&mut self) -> Result<(), FeedError> {
        let (journal, from) = (self.journal.clone(), self.read);
        let read = spawn_blocking(move || journal.read(from, CHUNK)).await;
        let (records, to) = read.map_err(|error| FeedError::Journal(error.to_string()))??;
        // What goes while it is read is passed over without a word.
        if from < self.journal.oldest() {
            return Err(freed(&self.journal));
        }
        let mut before = from;
        for record in records {
            let end = record.end;
            self.queue.push_back((before, record));
            before = end;
        }
        if self.queue.is_empty() && to != from {
            self.done = (0, 0);
        }
        self.read = to;
        Ok(())
    }

    async fn tell(&mut self, before: Position, record: &Record, told: &mut Vec<Told<Thing>>) {
        let (frames_done, events_done) = self.done;
        let behind = |frames: u32, events: u32| match frames < record.count {
            true => Cursor { journal: self.journal.id(), at: before, frames, events },
            false => Cursor::before(self.journal.id(), record.end),
        };
        let mut outgoing = record.outgoing.iter().peekable();
        for (index, line) in (0_u32..).zip(record.lines()) {
            let forwarded = outgoing.next_if(|(at, _)| *at == index).map(|(_, id)| *id);
            if index < frames_done {
                continue;
            }
            let view = FrameView {
                stream: record.stream,
                seq: record.first_seq.saturating_add(u64::from(index)),
                at_us: record.at_us,
                origin: record.origin,
                to: record.to,
                outgoing: forwarded,
                raw: line,
            };
            self.folded += 1;
            if self.folded.is_multiple_of(TURN) {
                yield_now().await;
            }
            let telling = self.streams.of(&view, &self.history, &self.journal, self.with_words).await;
            let events = telling.tell(&view);
            if self.what == What::Frames {
                let about = telling.about();
                let frame = Frame {
                    stream: view.stream,
                    seq: view.seq,
                    at_us: view.at_us,
                    origin: view.origin,
                    to: view.to,
                    outgoing: forwarded,
                    raw: record.frames.slice_ref(line),
                    user: about.user.clone(),
                    agent: about.agent.clone(),
                };
                told.push(Told { cursor: behind(index + 1, 0), what: Thing::Frame(frame) });
                continue;
            }
            let last = u32::try_from(events.len()).unwrap_or(u32::MAX);
            for (number, event) in (1_u32..).zip(events) {
                if index == frames_done && number <= events_done {
                    continue;
                }
                let cursor = if number == last { behind(index + 1, 0) } else { behind(index, number) };
                told.push(Told { cursor, what: Thing::Event(event) });
            }
        }
    }
}

fn freed(journal: &Journal) -> FeedError {
    FeedError::Freed { oldest: Cursor::before(journal.id(), journal.oldest()) }
}

/// What is known of the streams that were told of lately.
#[derive(Debug, Default)]
struct Streams {
    streams: HashMap<Uuid, Kept>,
    clock: u64,
}

#[derive(Debug)]
struct Kept {
    telling: Telling,
    /// The number that is expected next.
    next: u64,
    used: u64,
}

impl Streams {
    /// What is known of a frame's stream before the frame. What is not known is read again.
    async fn of(
        &mut self,
        frame: &FrameView<'_>,
        history: &History,
        journal: &Journal,
        with_words: bool,
    ) -> &mut Telling {
        self.clock += 1;
        let (id, seq, clock) = (frame.stream.id, frame.seq, self.clock);
        let is_known = self.streams.get(&id).is_some_and(|kept| kept.next == seq);
        let again = match is_known {
            true => None,
            false => Some(replayed(frame.stream, seq, history, journal, with_words).await),
        };
        if again.is_some() {
            self.make_room();
        }
        let kept = self.streams.entry(id).or_insert_with(|| Kept {
            telling: Telling::new(with_words),
            next: seq,
            used: clock,
        });
        if let Some(telling) = again {
            kept.telling = telling;
        }
        kept.next = seq + 1;
        kept.used = clock;
        &mut kept.telling
    }

    /// Forgets the half that was not used for longest, if there are too many.
    fn make_room(&mut self) {
        if self.streams.len() < MOST_STREAMS {
            return;
        }
        let mut used: Vec<_> = self.streams.values().map(|kept| kept.used).collect();
        used.sort_unstable();
        let median = used[used.len() / 2];
        self.streams.retain(|_, kept| kept.used > median);
    }
}

/// What is known of a stream before a frame, from its earlier frames. Those that the journal
/// has freed are in the ledger; if that is down, less is known.
async fn replayed(
    stream: Stream,
    below: u64,
    history: &History,
    journal: &Journal,
    with_words: bool,
) -> Telling {
    let mut telling = Telling::new(with_words);
    if below <= 1 {
        return telling;
    }
    let mut reading = history.frames(stream.id, 1, Some(below - 1), false);
    let mut next = 1;
    loop {
        match reading.next().await {
            Ok(frames) if frames.is_empty() => return telling,
            Ok(frames) => {
                for frame in frames {
                    // Where numbers are missing, so many frames reach further.
                    if frame.seq >= below {
                        return telling;
                    }
                    let (Some(origin), Some(to)) =
                        (Origin::from_name(&frame.origin), Destination::from_name(&frame.destination))
                    else {
                        continue;
                    };
                    next = frame.seq + 1;
                    telling.tell(&FrameView {
                        stream,
                        seq: frame.seq,
                        at_us: frame.at_us,
                        origin,
                        to,
                        outgoing: frame.outgoing_id.and_then(|id| u64::try_from(id).ok()),
                        raw: &frame.raw,
                    });
                    if next.is_multiple_of(TURN) {
                        yield_now().await;
                    }
                }
            }
            Err(error) => {
                tracing::debug!(%error, stream = %stream.id, "a stream's begin cannot be read; less is told of it");
                break;
            }
        }
    }
    // Whatever the journal has of it.
    while next < below {
        let (journal, id) = (journal.clone(), stream.id);
        let read = spawn_blocking(move || journal.read_stream(id, next, CHUNK)).await;
        let Ok(Ok(records)) = read else { break };
        let from = next;
        for record in &records {
            let mut outgoing = record.outgoing.iter().peekable();
            for (index, line) in (0_u32..).zip(record.lines()) {
                let forwarded = outgoing.next_if(|(at, _)| *at == index).map(|(_, id)| *id);
                let seq = record.first_seq.saturating_add(u64::from(index));
                if (next..below).contains(&seq) {
                    next = seq + 1;
                    telling.tell(&FrameView {
                        stream,
                        seq,
                        at_us: record.at_us,
                        origin: record.origin,
                        to: record.to,
                        outgoing: forwarded,
                        raw: line,
                    });
                }
            }
            yield_now().await;
        }
        if next == from {
            break;
        }
    }
    telling
}
