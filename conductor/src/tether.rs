//! What ties an editor to its connection while streams come and go.
//!
//! A stream breaks with the network, the laptop's lid or a proxy; the
//! connection, its sessions and their turns need not. One task per connection
//! stands between it and its stream: it numbers what goes to the editor, keeps
//! it until it is acknowledged, and sends it again on the next stream. A slow
//! editor still holds its agents back: no more than `WINDOW` is sent ahead of
//! its acks. Only while there is no stream is everything taken, first into
//! memory, then into a spool on disk.

mod inbound;
mod kept;
mod registry;
mod spool;
mod stream;

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::BytesMut;
use tokio::{
    sync::{Notify, mpsc, oneshot},
    time::{Instant, sleep_until},
};
use tracing::info;
use uuid::Uuid;

pub use self::{
    inbound::Inbound,
    registry::Tethers,
    stream::{Attached, Feed, Heard, Said},
};
use self::{
    inbound::Turn,
    kept::{Kept, Numbered},
    registry::Entry,
    spool::Spool,
    stream::{gone, room},
};
use crate::{
    connection::End,
    identity::Caller,
    metrics::{Lost, Metrics, Part},
    queue,
    session::Packet,
    state::Token,
    tasks::Tasks,
};

/// Bytes that may be under way to an editor without an ack. With what waits in
/// the queue before it, the bound on what one editor holds in memory.
const WINDOW: usize = 1 << 20;

/// Packets that may wait for an editor. Few, because a full queue is what
/// slows the agents of a slow editor down.
const OUT_PACKETS: usize = 16;

/// Bytes that may wait there.
const OUT_BYTES: u32 = 1 << 20;

/// Messages that may wait for the stream to take them.
const STREAM_MESSAGES: usize = 4;

/// Streams and words to the connection that may wait for it to listen; a
/// stream more is told to come again.
const TURNS: usize = 8;

/// Packets are put together into one message up to about this size. Larger
/// ones are not worth a copy.
const GATHER_BYTES: usize = 4 << 10;

/// An ack goes out after so many bytes, or after this time.
const ACK_BYTES: u64 = 128 << 10;
const ACK_DELAY: Duration = Duration::from_millis(100);

/// An editor that is back within this time was not away.
const BLIP: Duration = Duration::from_secs(2);

/// A stream that wants to carry a connection on.
pub(crate) struct Attach {
    last_seq: u64,
    feed: Feed,
    answer: oneshot::Sender<Result<Attached, End>>,
}

/// How patient a tether is.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// How long an editor may be away.
    pub detached_ttl: Duration,
    /// How long it may leave its frames unread.
    pub editor_timeout: Duration,
}

/// A new connection's ends: its own, and the first stream's.
pub struct Tethered {
    /// What the connection listens to.
    pub inbound: Inbound,
    /// Where frames for the editor go.
    pub out: queue::Sender<Packet>,
    /// Tells why the connection has ended.
    pub end: oneshot::Sender<End>,
    /// The first stream's part.
    pub attached: Attached,
}

/// What the connection's task and the tether's tell each other without waiting.
#[derive(Debug, Default)]
struct Shared {
    /// Frames numbered for the editor, and those it has acknowledged.
    sent: AtomicU64,
    acked: AtomicU64,
    /// Frames taken from the editor, and their bytes.
    taken: AtomicU64,
    taken_bytes: AtomicU64,
    /// The number of the newest stream that broke.
    broken: AtomicU64,
    /// The number of the newest stream that we ended ourselves: that its client
    /// then ends its side means nothing.
    let_go: AtomicU64,
    /// The editor has said all it had to say.
    finished: AtomicBool,
    changed: Notify,
}

impl Tethers {
    /// Ties a new connection to its first stream.
    pub async fn tie(
        &self,
        id: Uuid,
        caller: &Caller,
        feed: Feed,
        resumable: bool,
        patience: Patience,
        tasks: &Tasks,
    ) -> Tethered {
        let (attach, attaches) = mpsc::channel(1);
        let mut key = None;
        if let Some(made) = resumable.then(|| Token::random().ok()).flatten() {
            let entry = Entry { caller: caller.clone(), key: made.clone(), attach };
            key = self.add(id, entry).await.then_some(made);
        }
        let (out, packets) = queue::queue(OUT_PACKETS, OUT_BYTES);
        let (end, ended) = oneshot::channel();
        let (turns, told) = mpsc::channel(TURNS);
        let shared = Arc::new(Shared::default());
        let mut tether = Tether {
            id,
            keeps: key.is_some(),
            key,
            patience,
            shared: shared.clone(),
            packets,
            ahead: None,
            kept: Kept::default(),
            spool: Spool::new(self.spools()),
            stream: None,
            streams: 0,
            attaches,
            turns,
            away_since: None,
            told_away: false,
            blocked_since: None,
            acked: 0,
            acked_bytes: 0,
            ack_due: None,
            over: ended,
            ended: None,
            failed: false,
            exhausted: false,
            is_away: self.metrics().part(|counts| &counts.editors_away),
            metrics: self.metrics().clone(),
        };
        let attached = tether.carry(feed);
        let tethers = self.clone();
        let run = async move {
            tether.run().await;
            tethers.gone(id).await;
        };
        tasks.start("tether", run);
        Tethered { inbound: Inbound::new(told, shared), out, end, attached }
    }

    /// Has a new stream carry a connection on; `None` if the caller has no such
    /// connection.
    pub async fn resume(
        &self,
        id: &str,
        key: &str,
        caller: &Caller,
        last_seq: u64,
        feed: impl FnOnce() -> Feed,
    ) -> Option<Result<Attached, End>> {
        let attach = self.find(id, key, caller).await?;
        let place = attach.reserve().await.ok()?;
        let (answer, answered) = oneshot::channel();
        place.send(Attach { last_seq, feed: feed(), answer });
        // Without an answer the connection ended at this very moment.
        Some(answered.await.unwrap_or(Err(End::Busy)))
    }
}

/// The stream that carries the connection now.
struct Carrier {
    messages: mpsc::Sender<Said>,
    end: oneshot::Sender<End>,
}

struct Tether {
    id: Uuid,
    key: Option<Token>,
    /// What is sent is kept until it is acknowledged.
    keeps: bool,
    patience: Patience,
    shared: Arc<Shared>,
    packets: queue::Receiver<Packet>,
    /// Taken from the queue, and too large to travel with what came before.
    ahead: Option<Packet>,
    /// In order: what is kept, what is spooled, what is ahead, what is queued.
    kept: Kept,
    spool: Spool,
    stream: Option<Carrier>,
    /// How many streams there were; the number of the present one.
    streams: u64,
    attaches: mpsc::Receiver<Attach>,
    turns: mpsc::Sender<Turn>,
    away_since: Option<Instant>,
    told_away: bool,
    /// Since when the editor has left its frames unread.
    blocked_since: Option<Instant>,
    /// How far the editor's frames were acknowledged.
    acked: u64,
    acked_bytes: u64,
    ack_due: Option<Instant>,
    over: oneshot::Receiver<End>,
    ended: Option<End>,
    /// The connection was told to end; what it still says is dropped.
    failed: bool,
    /// Nobody is left who could say something.
    exhausted: bool,
    /// Shows that the editor has no stream.
    is_away: Part,
    metrics: Metrics,
}

impl Tether {
    async fn run(mut self) {
        // One timer, set anew only for what is due before it: to set one costs more than a packet.
        let mut alarm = pin!(sleep_until(Instant::now()));
        let mut is_set = false;
        loop {
            // In this order: what is ahead must not be left where nothing wakes us.
            self.send();
            self.refill();
            let unsent = self.kept.has_unsent();
            if self.exhausted && (self.stream.is_none() || self.ended.is_some() && !unsent) {
                break;
            }
            // What is ahead could not be taken just now.
            let takes = self.takes() && self.ahead.is_none();
            self.is_away.set(usize::from(self.away_since.is_some() && !self.failed));
            self.mind_blockage(unsent);
            if let Some(due) = self.due()
                && (!is_set || due < alarm.deadline())
            {
                alarm.as_mut().reset(due);
                is_set = true;
            }
            let messages = self.stream.as_ref().map(|stream| stream.messages.clone());
            tokio::select! {
                biased;
                Some(attach) = self.attaches.recv() => self.attach(attach),
                () = self.shared.changed.notified() => self.heard(),
                end = &mut self.over, if self.ended.is_none() => {
                    // Nobody listens for acks any more.
                    self.stop_keeping();
                    self.ended = Some(end.unwrap_or(End::Broken));
                }
                () = gone(messages.as_ref()), if messages.is_some() => self.detach(),
                () = room(messages.as_ref()), if unsent && messages.is_some() => {}
                packet = self.packets.recv(), if takes => match packet {
                    Some(packet) => self.take(packet),
                    None => self.exhausted = true,
                },
                () = &mut alarm, if is_set => {
                    is_set = false;
                    self.deadline();
                }
            }
        }
        if let Some(stream) = self.stream.take() {
            stream.end.send(self.ended.take().unwrap_or(End::Broken)).ok();
        }
    }

    /// Whether the next packet may be taken from the queue.
    fn takes(&self) -> bool {
        let within = !self.keeps || self.kept.bytes() < WINDOW;
        let level = !self.kept.has_unsent() && self.spool.is_empty() && within;
        !self.exhausted && (self.stream.is_none() || level)
    }

    fn take(&mut self, packet: Packet) {
        if self.failed {
            return;
        }
        let packet = if self.stream.is_some() { self.gather(packet) } else { packet };
        let first = 1 + self.shared.sent.fetch_add(u64::from(packet.count), Ordering::Relaxed);
        let run = Numbered { first, packet };
        let fits = self.kept.bytes() + run.packet.frames.len() <= WINDOW;
        if self.stream.is_some() || self.spool.is_empty() && fits {
            self.kept.push(run);
            self.send();
        } else if let Err(why) = self.spool.push(&run) {
            self.fail(End::Behind(why));
        }
    }

    /// Adds the small packets that wait behind a small one: an update and the
    /// answer after it become one message, and one write to the editor.
    fn gather(&mut self, packet: Packet) -> Packet {
        let (mut frames, mut count) = (BytesMut::new(), packet.count);
        while packet.frames.len().max(frames.len()) < GATHER_BYTES {
            let Some(more) = self.packets.try_recv() else { break };
            if more.frames.len() > GATHER_BYTES {
                self.ahead = Some(more);
                break;
            }
            if frames.is_empty() {
                frames.extend_from_slice(&packet.frames);
            }
            frames.extend_from_slice(&more.frames);
            count += more.count;
        }
        if frames.is_empty() { packet } else { Packet { frames: frames.freeze(), count } }
    }

    /// What was set aside comes before what is queued.
    fn refill(&mut self) {
        while self.stream.is_some()
            && !self.kept.has_unsent()
            && !self.spool.is_empty()
            && (!self.keeps || self.kept.bytes() < WINDOW)
        {
            match self.spool.pop() {
                Ok(Some(run)) => self.kept.push(run),
                Ok(None) => break,
                Err(why) => {
                    self.spool.clear();
                    self.fail(End::Behind(why));
                }
            }
            self.send();
        }
        while self.takes()
            && let Some(packet) = self.ahead.take()
        {
            self.take(packet);
        }
    }

    /// Hands the stream what it has room for.
    fn send(&mut self) {
        while let Some(stream) = self.stream.as_ref().filter(|_| self.kept.has_unsent()) {
            let Ok(place) = stream.messages.try_reserve() else { return };
            let Some(run) = self.kept.send(self.keeps) else { return };
            place.send(Said::Run { first_seq: run.first, packet: run.packet });
            self.blocked_since = None;
        }
    }

    fn heard(&mut self) {
        let acked = self.shared.acked.load(Ordering::Relaxed);
        let before = self.kept.bytes();
        self.kept.acknowledged(acked);
        if self.kept.bytes() < before {
            self.blocked_since = None;
        }
        if self.shared.finished.load(Ordering::Acquire) {
            self.stop_keeping();
        } else if self.shared.broken.load(Ordering::Acquire) == self.streams {
            self.detach();
        }
        if self.shared.taken.load(Ordering::Relaxed) > self.acked {
            let bytes = self.shared.taken_bytes.load(Ordering::Relaxed) - self.acked_bytes;
            self.ack_due.get_or_insert_with(|| Instant::now() + ACK_DELAY);
            if bytes >= ACK_BYTES {
                self.acknowledge();
            }
        }
    }

    fn acknowledge(&mut self) {
        let taken = self.shared.taken.load(Ordering::Relaxed);
        let bytes = self.shared.taken_bytes.load(Ordering::Relaxed);
        let sent = self.stream.as_ref().map(|stream| stream.messages.try_send(Said::Ack(taken)).is_ok());
        self.ack_due = None;
        match sent {
            Some(true) => (self.acked, self.acked_bytes) = (taken, bytes),
            Some(false) => self.ack_due = Some(Instant::now() + ACK_DELAY),
            // The next stream's welcome says it.
            None => {}
        }
    }

    fn stop_keeping(&mut self) {
        self.keeps = false;
        self.kept.forget_sent();
    }

    fn attach(&mut self, attach: Attach) {
        let Attach { last_seq, feed, answer } = attach;
        let (sent, acked) =
            (self.shared.sent.load(Ordering::Relaxed), self.shared.acked.load(Ordering::Relaxed));
        let refusal = if last_seq > sent {
            Some(End::Invalid(format!("last_seq is {last_seq}, but only {sent} frames were sent")))
        } else if last_seq < acked {
            let text = format!("last_seq is {last_seq}, but frame {acked} was acknowledged already");
            Some(End::Invalid(text))
        } else if !self.keeps || self.failed || self.turns.capacity() < TURNS / 2 {
            Some(End::Busy)
        } else {
            None
        };
        if let Some(refusal) = refusal {
            answer.send(Err(refusal)).ok();
            return;
        }
        if self.stream.is_some() {
            info!("another stream takes the connection over");
            self.let_go(End::Replaced);
        }
        self.shared.acked.fetch_max(last_seq, Ordering::Relaxed);
        self.kept.rewind(last_seq);
        (self.away_since, self.told_away, self.blocked_since) = (None, false, None);
        // If its caller is gone already, the stream's end is seen in a moment.
        answer.send(Ok(self.carry(feed))).ok();
        self.metrics.streams_resumed.one();
        info!(last_seq, "the editor is back");
    }

    /// Lets a stream carry the connection from now on.
    fn carry(&mut self, feed: Feed) -> Attached {
        self.streams += 1;
        // There is room: that was seen before.
        self.turns.try_send(Turn::Stream(self.streams, feed)).ok();
        let (messages, said) = mpsc::channel(STREAM_MESSAGES);
        let (end, ended) = oneshot::channel();
        self.stream = Some(Carrier { messages, end });
        self.acked = self.shared.taken.load(Ordering::Relaxed);
        self.acked_bytes = self.shared.taken_bytes.load(Ordering::Relaxed);
        self.ack_due = None;
        Attached { id: self.id, taken: self.acked, key: self.key.clone(), messages: said, end: ended }
    }

    /// Ends the stream, but not the connection.
    fn let_go(&mut self, end: End) {
        self.shared.let_go.store(self.streams, Ordering::Release);
        if let Some(stream) = self.stream.take() {
            stream.end.send(end).ok();
        }
    }

    /// The stream is lost.
    fn detach(&mut self) {
        if self.stream.take().is_none() {
            return;
        }
        // An editor that never said a word may not even know the key.
        if !self.keeps || self.shared.taken.load(Ordering::Relaxed) == 0 {
            return self.fail(End::EditorGone);
        }
        self.metrics.streams_lost.one();
        info!("the editor's stream broke; its sessions go on");
        self.away_since = Some(Instant::now());
    }

    /// Ends the connection from this side.
    fn fail(&mut self, end: End) {
        if !std::mem::replace(&mut self.failed, true) {
            let lost = match &end {
                End::Expired(_) => Some(Lost::Expired),
                End::Behind(_) => Some(Lost::Behind),
                _ => None,
            };
            if let Some(lost) = lost {
                self.metrics.editors_dropped.of(lost).one();
            }
            self.stop_keeping();
            self.turns.try_send(Turn::End(end)).ok();
        }
    }

    fn mind_blockage(&mut self, unsent: bool) {
        let full = self.keeps && self.kept.bytes() >= WINDOW;
        if self.stream.is_some() && (unsent || full) {
            self.blocked_since.get_or_insert_with(Instant::now);
        } else {
            self.blocked_since = None;
        }
    }

    fn due(&self) -> Option<Instant> {
        let blocked = self.blocked_since.map(|since| since + self.patience.editor_timeout);
        let patience = if self.told_away { self.patience.detached_ttl } else { BLIP };
        let patience = patience.min(self.patience.detached_ttl);
        let away = self.away_since.filter(|_| !self.failed).map(|since| since + patience);
        [blocked, away, self.ack_due].into_iter().flatten().min()
    }

    fn deadline(&mut self) {
        let now = Instant::now();
        if self.ack_due.is_some_and(|due| due <= now) {
            self.acknowledge();
        }
        if self.blocked_since.is_some_and(|since| since + self.patience.editor_timeout <= now) {
            self.blocked_since = None;
            self.metrics.editors_dropped.of(Lost::Stalled).one();
            if self.keeps {
                info!("the editor does not take its frames; its stream is dropped");
                self.let_go(End::Dropped);
                self.away_since = Some(now);
            } else {
                self.let_go(End::Stalled);
                self.fail(End::Stalled);
            }
        }
        if let Some(since) = self.away_since.filter(|_| !self.failed) {
            if since + self.patience.detached_ttl <= now {
                self.fail(End::Expired(self.patience.detached_ttl));
            } else if !self.told_away && since + BLIP <= now {
                self.told_away = true;
                self.turns.try_send(Turn::Away).ok();
            }
        }
    }
}

#[cfg(test)]
mod tests;
