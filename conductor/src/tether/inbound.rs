//! What the editor says, over one stream after the other: each frame once, in
//! order.

use std::{
    pin::Pin,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use futures_util::Stream;
use tokio::sync::mpsc;

use super::{Feed, Heard, Shared, kept::after};
use crate::connection::{End, Input};

/// Lines handed on at a time. A message may hold millions, each of which may
/// need an answer; between pieces the connection sees whether answers wait.
const PIECE_LINES: usize = 256;

/// What the tether tells the connection.
pub(super) enum Turn {
    /// A stream to listen to from now on, and its number.
    Stream(u64, Feed),
    /// The editor has been away for a while.
    Away,
    /// The connection ends.
    End(End),
}

/// The connection's input.
pub struct Inbound {
    turns: mpsc::Receiver<Turn>,
    current: Option<(u64, Feed)>,
    /// The current stream has brought something new.
    is_level: bool,
    rest: Bytes,
    shared: Arc<Shared>,
}

impl Inbound {
    pub(super) fn new(turns: mpsc::Receiver<Turn>, shared: Arc<Shared>) -> Self {
        Self { turns, current: None, is_level: false, rest: Bytes::new(), shared }
    }

    /// Lines in pieces of few, each with bytes of its own: a frame that waits
    /// in a queue must not keep the buffer alive that its message, and perhaps
    /// far larger ones before it, came in.
    fn piece(&mut self) -> Option<Bytes> {
        if self.rest.is_empty() {
            return None;
        }
        let newline = memchr::memchr_iter(b'\n', &self.rest).nth(PIECE_LINES - 1);
        let piece = self.rest.split_to(newline.map_or(self.rest.len(), |newline| newline + 1));
        Some(Bytes::copy_from_slice(&piece))
    }

    fn accept(&mut self, first_seq: u64, count: u32, frames: &Bytes) -> Result<(), End> {
        let taken = self.shared.taken.load(Ordering::Relaxed);
        // A new stream may begin with what a former one brought; only then is it
        // no sign that something is wrong.
        if first_seq == 0 || first_seq > taken + 1 || self.is_level && first_seq <= taken {
            return Err(End::Invalid(format!("first_seq is {first_seq}, but {} comes next", taken + 1)));
        }
        let lines = memchr::memchr_iter(b'\n', frames).count();
        if count == 0 || lines != count as usize || frames.last() != Some(&b'\n') {
            let rule = "a run must hold `count` lines, each ended by a newline";
            return Err(End::Invalid(format!("{rule}; it says {count} and has {lines}")));
        }
        let known = u32::try_from(taken + 1 - first_seq).unwrap_or(u32::MAX).min(count);
        self.is_level |= known < count;
        self.rest = after(frames, known);
        self.shared.taken.fetch_add(u64::from(count - known), Ordering::Relaxed);
        self.shared.taken_bytes.fetch_add(self.rest.len() as u64, Ordering::Relaxed);
        self.shared.changed.notify_one();
        Ok(())
    }

    fn acknowledged(&mut self, seq: u64) -> Result<(), End> {
        let sent = self.shared.sent.load(Ordering::Relaxed);
        if seq > sent {
            return Err(End::Invalid(format!("frame {seq} is acknowledged, but only {sent} were sent")));
        }
        self.shared.acked.fetch_max(seq, Ordering::Relaxed);
        self.shared.changed.notify_one();
        Ok(())
    }
}

impl Stream for Inbound {
    type Item = Result<Input, End>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(piece) = self.piece() {
                return Poll::Ready(Some(Ok(Input::Block(piece))));
            }
            match self.turns.poll_recv(cx) {
                Poll::Ready(Some(Turn::Stream(number, feed))) => {
                    self.current = Some((number, feed));
                    self.is_level = false;
                    if number > 1 {
                        return Poll::Ready(Some(Ok(Input::Resumed)));
                    }
                }
                Poll::Ready(Some(Turn::Away)) => return Poll::Ready(Some(Ok(Input::Away))),
                Poll::Ready(Some(Turn::End(end))) => return Poll::Ready(Some(Err(end))),
                Poll::Ready(None) => return Poll::Ready(Some(Err(End::EditorGone))),
                Poll::Pending => {}
            }
            let Some((number, feed)) = &mut self.current else { return Poll::Pending };
            let number = *number;
            let heard = match ready!(feed.as_mut().poll_next(cx)) {
                Some(Ok(Heard::Run { first_seq, count, frames })) => self.accept(first_seq, count, &frames),
                Some(Ok(Heard::Ack(seq))) => self.acknowledged(seq),
                // The stream broke, or we ended it. Whether that is the end of
                // the connection is for the tether to say.
                end @ (Some(Err(End::EditorGone)) | None)
                    if end.is_some() || self.shared.let_go.load(Ordering::Acquire) >= number =>
                {
                    self.current = None;
                    self.shared.broken.store(number, Ordering::Release);
                    self.shared.changed.notify_one();
                    Ok(())
                }
                Some(Err(end)) => Err(end),
                None => {
                    self.shared.finished.store(true, Ordering::Release);
                    self.shared.changed.notify_one();
                    return Poll::Ready(None);
                }
            };
            if let Err(end) = heard {
                return Poll::Ready(Some(Err(end)));
            }
        }
    }
}
