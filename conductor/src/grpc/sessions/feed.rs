//! A stream of events: a task reads the session's record, chunk by chunk, and
//! hands on what it says. Whoever reads slowly holds up nobody but this task,
//! which loses its patience after a while: what was missed is on record.

use std::{future::Future, pin::Pin, time::Duration};

use futures_util::stream;
use tokio::{sync::oneshot, time::timeout};
use tonic::Status;
use uuid::Uuid;

use super::super::{
    events::Events,
    history::{Messages, unavailable},
    rights::nothing,
};
use crate::{
    connection::Hub,
    identity::Caller,
    ledger::history::{Frame, Reading},
    metrics::Metrics,
    proto::Event,
    queue::{self, NotSent},
    router::Access,
};

/// Events that may wait for their reader, and their bytes: little, since all of
/// them can be read again.
const EVENTS: usize = 256;
const BYTES: u32 = 1 << 20;

/// Why a stream ends before its time.
pub(super) enum Stop {
    /// Its reader is gone.
    Gone,
    /// Its reader is told why.
    Status(Status),
}

impl From<Status> for Stop {
    fn from(status: Status) -> Self {
        Self::Status(status)
    }
}

/// Where events go.
pub(super) struct Out {
    events: queue::Sender<Event>,
    patience: Duration,
    /// The number to carry on with.
    next: u64,
    metrics: Metrics,
}

impl Out {
    /// Hands an event on, once there is room for it.
    pub(super) async fn send(&mut self, event: Event) -> Result<(), Stop> {
        // The typed part says the same again.
        let size = 2 * event.raw.len();
        let seq = event.seq;
        match self.events.try_send(size, event) {
            Ok(()) => {}
            Err(NotSent::Closed(_)) => return Err(Stop::Gone),
            Err(NotSent::Full(event)) => match timeout(self.patience, self.events.reserve(size)).await {
                Ok(Ok(room)) => room.send(event),
                Ok(Err(queue::Closed)) => return Err(Stop::Gone),
                Err(_) => {
                    let (patience, next) = (self.patience, self.next);
                    self.metrics.readers_dropped.one();
                    tracing::info!(next, "a reader of events was dropped; it left them unread");
                    let text = format!(
                        "the events were not read for {patience:?}; carry on with Observe and from_seq = {next}"
                    );
                    return Err(Status::unavailable(text).into());
                }
            },
        }
        self.next = self.next.max(seq + 1);
        Ok(())
    }

    /// What follows is told from this number on.
    pub(super) fn begin(&mut self, next: u64) {
        self.next = next;
    }

    /// Waits until the reader is gone.
    pub(super) async fn gone(&self) {
        self.events.closed().await;
    }

    /// The status of a stream that ends with the service.
    pub(super) fn draining(&self) -> Stop {
        let next = self.next;
        let text =
            format!("the service is stopping; carry on with Observe and from_seq = {next} once it is back");
        Status::unavailable(text).into()
    }
}

/// Starts a task that tells events, and gives its stream. `next` is the number
/// that is carried on with if the task cannot tell anything.
pub(super) fn start<F>(hub: &Hub, next: u64, task: impl FnOnce(Out) -> F) -> Messages<Event>
where
    F: Future<Output = Result<(), Stop>> + Send + 'static,
{
    let (sender, receiver) = queue::queue(EVENTS, BYTES);
    let (end, ended) = oneshot::channel();
    let patience = hub.config.borrow().service.editor_timeout;
    let told = task(Out { events: sender, patience, next, metrics: hub.metrics.clone() });
    hub.tasks.start("events", async move {
        if let Err(Stop::Status(status)) = told.await {
            end.send(status).ok();
        }
    });
    let messages = stream::unfold((receiver, Some(ended)), |(mut receiver, ended)| async {
        if let Some(event) = receiver.recv().await {
            return Some((Ok(event), (receiver, ended)));
        }
        let status = ended?.await.ok()?;
        Some((Err(status), (receiver, None)))
    });
    Box::pin(messages)
}

/// Who reads which session.
pub(super) struct Sight {
    pub(super) hub: Hub,
    pub(super) caller: Caller,
    /// Whosever it is.
    pub(super) sees_all: bool,
    pub(super) id: Uuid,
}

/// A record that is being read into events.
pub(super) struct Telling {
    hub: Hub,
    /// The session is not the reader's, and shared with them no longer.
    lost: Pin<Box<dyn Future<Output = ()> + Send>>,
    id: Uuid,
    reading: Reading,
    events: Events,
    from: u64,
    frames: std::vec::IntoIter<Frame>,
}

impl Telling {
    /// Reads a session's record, from its beginning: what is before `from` is
    /// needed in order to know what the rest means.
    pub(super) fn new(sight: &Sight, from: u64, follow: bool) -> Self {
        let reading = sight.hub.history.frames(sight.id, 1, None, follow);
        Self::of(sight, reading, Events::default(), from)
    }

    /// Reads it behind a number only, from where a turn is about to begin: what
    /// was before does not matter.
    pub(super) fn behind(sight: &Sight, seq: u64, events: Events) -> Self {
        let reading = sight.hub.history.frames(sight.id, seq + 1, None, true);
        Self::of(sight, reading, events, 0)
    }

    fn of(sight: &Sight, reading: Reading, events: Events, from: u64) -> Self {
        let Sight { hub, caller, sees_all, id } = sight;
        // What somebody sees by their role nobody takes from them.
        let lost: Pin<Box<dyn Future<Output = ()> + Send>> = match sees_all {
            false => Box::pin(hub.router.lost(*id, caller, Access::Observer)),
            true => Box::pin(std::future::pending()),
        };
        Self { hub: hub.clone(), lost, id: *id, reading, events, from, frames: Vec::new().into_iter() }
    }

    /// The next frame and its events; nothing at the end of the record.
    pub(super) async fn next(&mut self, out: &Out) -> Result<Option<(Frame, Vec<Event>)>, Stop> {
        loop {
            if let Some(frame) = self.frames.next() {
                if frame.seq < self.from {
                    self.events.skip(&frame);
                    continue;
                }
                let events = self.events.hear(&frame);
                return Ok(Some((frame, events)));
            }
            let frames = tokio::select! {
                biased;
                () = out.gone() => return Err(Stop::Gone),
                () = self.hub.closing.cancelled() => return Err(out.draining()),
                () = &mut self.lost => return Err(nothing(self.id).into()),
                frames = self.reading.next() => frames.map_err(|error| unavailable(&error))?,
            };
            if frames.is_empty() {
                return Ok(None);
            }
            self.frames = frames.into_iter();
        }
    }
}

/// Tells what happened from a number on, and what happens.
pub(super) fn observe(sight: &Sight, from: u64, follow: bool) -> Messages<Event> {
    let mut telling = Telling::new(sight, from, follow);
    start(&sight.hub, from, |mut out| async move {
        while let Some((_, events)) = telling.next(&out).await? {
            for event in events {
                out.send(event).await?;
            }
        }
        // A record that is followed ends with the service.
        if follow { Err(out.draining()) } else { Ok(()) }
    })
}
