//! How others reach a session: a handle in the router, and seats.
//!
//! The editor that opens a session *leads* it: frames go straight to and from
//! its connection. Whoever comes while it is live takes a seat beside it. A
//! seat speaks through this handle and listens to the session's record, so
//! however slow it is, it never holds the agent back.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicU32, Ordering},
    },
    time::SystemTime,
};

use bytes::Bytes;
use serde_json::Value;
use tokio::sync::{Notify, Semaphore, TryAcquireError, mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::{INPUT_FRAMES, approving::Decided, past::Standing};
use crate::{frame::Frame, identity::Caller, policy::Narrowing, queue};

/// Who may have a seat at once, the lead among them; one more is refused.
const MOST_SEATS: usize = 65;

/// Questions without a seat that may wait for a session; more wait outside.
const MOST_QUESTIONS: usize = 32;

/// The seat of the editor that opened the session.
pub(super) const LEAD: u32 = 0;

/// What a seat may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SeatRole {
    /// Everything the session's editor may.
    Driver,
    /// Watch.
    Observer,
}

impl SeatRole {
    /// Its name in the record.
    pub fn name(self) -> &'static str {
        match self {
            Self::Driver => "driver",
            Self::Observer => "observer",
        }
    }
}

/// Who takes a seat.
#[derive(Debug)]
pub struct Guest {
    /// Who it is.
    pub caller: Caller,
    /// What they may do.
    pub role: SeatRole,
    /// What they add to the rules while they prompt, as it stands when they come.
    pub own: Option<Narrowing>,
}

/// A session's handle, for as long as it is live.
#[derive(Debug, Clone)]
pub struct SessionHandle {
    pub(super) words: queue::Sender<Word>,
    pub(super) overrun: Arc<Notify>,
    pub(super) away: Arc<Notify>,
    pub(super) close: CancellationToken,
    pub(super) over: CancellationToken,
    departures: mpsc::Sender<u32>,
    next_seat: Arc<AtomicU32>,
    questions: Arc<Semaphore>,
    /// Frames of others than the lead that the session keeps until it is open; closed then.
    early: Arc<Semaphore>,
}

/// What a session is told.
#[derive(Debug)]
pub(super) enum Word {
    /// A frame from a seat.
    Frame(u32, Frame),
    /// Someone takes a seat, perhaps by a request that wants an answer.
    Sit {
        seat: u32,
        /// Gone once the seat is given up.
        here: Weak<()>,
        guest: Guest,
        request: Option<Frame>,
        reply: oneshot::Sender<Seated>,
    },
    /// An answer to a permission request, by the id it is recorded with.
    Answer { caller: Caller, request: u64, option: Option<String>, reply: oneshot::Sender<Answered> },
    /// An answer to a question, by the id that approvers know it by.
    Decide { caller: Caller, approval: Uuid, allow: bool, reason: String, reply: oneshot::Sender<Decided> },
    /// Which prompts wait?
    Queue(oneshot::Sender<Vec<QueuedPrompt>>),
    /// One of them is not wanted any more.
    Unqueue(u64, oneshot::Sender<bool>),
    /// Something happened to the session that belongs in its record.
    Note(&'static str, Value),
}

/// What one learns on taking a seat.
#[derive(Debug)]
pub struct Seated {
    /// Up to here the record is history; what follows is news.
    pub at_seq: u64,
    /// Permission requests that are open: their numbers, and the agent's frames.
    pub asks: Vec<(u32, Bytes)>,
    /// What the session is set to: `configOptions` and `modes`, as far as the
    /// agent has told.
    pub options: Value,
    /// What else has to be known to read on from there.
    pub(super) standing: Standing,
    /// What concerns this seat alone. Closed when the session or the seat ends.
    pub told: mpsc::Receiver<Told>,
}

/// What one seat is told, to be heeded once the record was followed so far.
#[derive(Debug)]
pub enum Told {
    /// The prompt that goes on with this id is this seat's own. Told before it
    /// is recorded.
    Own {
        /// The last number before it.
        after: u64,
        /// The id.
        outgoing: u64,
    },
    /// An answer to a request of this seat.
    Answer {
        /// The last number before it.
        after: u64,
        /// The line.
        line: Bytes,
    },
    /// A permission request needs no answer any more.
    Withdrawn {
        /// The last number before that.
        after: u64,
        /// Which one.
        number: u32,
        /// Who has answered it; nobody, if it is void.
        by: Option<String>,
    },
}

/// What became of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answered {
    /// It counts.
    Taken,
    /// Another came first, or the request was void before.
    TooLate {
        /// Whose.
        by: Option<String>,
    },
    /// The rules leave it to others: why.
    NotTheirs(String),
    /// It allows something and could not be recorded, so the request stays open: why.
    NotRecorded(Arc<str>),
    /// There is no such request, or it offers no such option.
    Unknown,
}

/// A prompt that waits for the turns before it.
#[derive(Debug, Clone)]
pub struct QueuedPrompt {
    /// Names it as long as it waits.
    pub entry: u64,
    /// Who sent it.
    pub user: String,
    /// How it begins.
    pub text: String,
    /// Since when it waits.
    pub since: SystemTime,
}

impl SessionHandle {
    /// A handle, the lead's seat, and where a session hears of those who leave.
    pub(super) fn new(
        words: queue::Sender<Word>,
        close: CancellationToken,
    ) -> (Self, Seat, mpsc::Receiver<u32>) {
        let (departures, departed) = mpsc::channel(MOST_SEATS);
        let handle = Self {
            words,
            overrun: Arc::new(Notify::new()),
            away: Arc::new(Notify::new()),
            close,
            over: CancellationToken::new(),
            departures,
            next_seat: Arc::new(AtomicU32::new(LEAD)),
            questions: Arc::new(Semaphore::new(MOST_QUESTIONS)),
            early: Arc::new(Semaphore::new(INPUT_FRAMES)),
        };
        // Nobody has taken a place before.
        let lead = handle.seat_at(handle.departures.clone().try_reserve_owned().ok());
        (handle, lead, departed)
    }

    /// One that nobody listens to.
    #[cfg(test)]
    pub(crate) fn unheard() -> Self {
        Self::new(queue::queue(1, 1).0, CancellationToken::new()).0
    }

    /// The editor that leads the session has lost its stream, and nobody wants its
    /// turns meanwhile: they end, unless somebody else is there.
    pub fn away(&self) {
        self.away.notify_one();
    }

    /// The session is open, and keeps nothing for later any more.
    pub(super) fn opened(&self) {
        self.early.close();
    }

    /// Waits until the session has ended and may be opened again.
    pub async fn over(&self) {
        self.over.cancelled().await;
    }

    /// Ends the session, whoever has it open.
    pub fn close(&self) {
        self.close.cancel();
    }

    /// Has something written into the session's record; whether it will be.
    pub fn note(&self, method: &'static str, params: Value) -> bool {
        self.words.try_send(0, Word::Note(method, params)).is_ok()
    }

    /// A seat of which the session has not heard; `None` if all are taken.
    fn seat(&self) -> Option<Seat> {
        let place = self.departures.clone().try_reserve_owned().ok()?;
        Some(self.seat_at(Some(place)))
    }

    fn seat_at(&self, place: Option<mpsc::OwnedPermit<u32>>) -> Seat {
        let id = self.next_seat.fetch_add(1, Ordering::Relaxed);
        Seat { id, handle: self.clone(), here: Some(Arc::default()), place }
    }

    /// Whether the session hears nobody any more.
    pub fn is_ending(&self) -> bool {
        self.words.is_closed()
    }

    /// Takes a seat. What there is to know comes later; never, if the session
    /// ends before that. `None` if there is no room.
    pub fn take_seat(
        &self,
        guest: Guest,
        request: Option<Frame>,
    ) -> Option<(Seat, oneshot::Receiver<Seated>)> {
        let seat = self.seat()?;
        let (reply, seated) = oneshot::channel();
        let size = request.as_ref().map_or(0, |frame| frame.bytes().len())
            + guest.own.as_ref().map_or(0, Narrowing::size);
        let here = seat.here.as_ref().map(Arc::downgrade).unwrap_or_default();
        let word = Word::Sit { seat: seat.id, here, guest, request, reply };
        self.words.try_send_in_half(size, word).ok()?;
        Some((seat, seated))
    }

    /// Takes a seat and waits until it is there; `None` if the session ends, or
    /// all seats are taken.
    pub async fn sit(&self, guest: Guest) -> Option<(Seat, Seated)> {
        let (seat, seated) = self.take_seat(guest, None)?;
        Some((seat, seated.await.ok()?))
    }

    /// Answers a permission request; without an option it is answered as
    /// cancelled.
    pub async fn answer(&self, caller: Caller, request: u64, option: Option<String>) -> Answered {
        let (reply, answered) = oneshot::channel();
        self.ask(Word::Answer { caller, request, option, reply }, answered).await.unwrap_or(Answered::Unknown)
    }

    /// Answers a question as an approver.
    pub async fn decide(&self, caller: Caller, approval: Uuid, allow: bool, reason: String) -> Decided {
        let (reply, decided) = oneshot::channel();
        let word = Word::Decide { caller, approval, allow, reason, reply };
        self.ask(word, decided).await.unwrap_or(Decided::Ended)
    }

    /// The prompts that wait, the next one first.
    pub async fn queue(&self) -> Vec<QueuedPrompt> {
        let (reply, queue) = oneshot::channel();
        self.ask(Word::Queue(reply), queue).await.unwrap_or_default()
    }

    /// Takes a prompt out of the queue; it is answered as cancelled. Whether it
    /// was there.
    pub async fn unqueue(&self, entry: u64) -> bool {
        let (reply, done) = oneshot::channel();
        self.ask(Word::Unqueue(entry, reply), done).await.unwrap_or(false)
    }

    async fn ask<T>(&self, word: Word, answer: oneshot::Receiver<T>) -> Option<T> {
        let _question = self.questions.acquire().await.ok()?;
        self.words.reserve(0).await.ok()?.send(word);
        answer.await.ok()
    }
}

/// A place at a session. Dropping it leaves the session, which ends when nobody
/// is left.
#[derive(Debug)]
pub struct Seat {
    pub(super) id: u32,
    handle: SessionHandle,
    here: Option<Arc<()>>,
    place: Option<mpsc::OwnedPermit<u32>>,
}

impl Seat {
    /// The session.
    pub fn handle(&self) -> &SessionHandle {
        &self.handle
    }

    /// Passes a request on if there is room. Half of it is the lead's alone:
    /// whoever else says too much must not end the agent's process.
    pub fn ask(&self, frame: Frame) -> Result<(), queue::NotSent<Frame>> {
        use queue::NotSent::{Closed, Full};
        if self.id != LEAD {
            match self.handle.early.try_acquire() {
                Ok(kept) => kept.forget(),
                Err(TryAcquireError::NoPermits) => return Err(Full(frame)),
                Err(TryAcquireError::Closed) => {}
            }
        }
        let (word, size) = (Word::Frame(self.id, frame.clone()), frame.bytes().len());
        let sent = match self.id {
            LEAD => self.handle.words.try_send(size, word),
            _ => self.handle.words.try_send_in_half(size, word),
        };
        sent.map_err(|not_sent| match not_sent {
            Full(_) => Full(frame),
            Closed(_) => Closed(frame),
        })
    }

    /// Passes an answer or a notification on. These cannot be refused: when
    /// there is no room for one of the lead's, it is lost, which would leave the
    /// agent waiting. It has not read its input for long, and its process is
    /// ended. What is too much of others is lost, and nothing comes of it.
    pub fn tell(&self, frame: Frame) {
        if let Err(queue::NotSent::Full(_)) = self.ask(frame)
            && self.id == LEAD
        {
            self.handle.overrun.notify_one();
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        // First this: a session that has heard of the departure does not seat
        // who has left.
        self.here = None;
        if let Some(place) = self.place.take() {
            place.send(self.id);
        }
    }
}
