//! How many requests of one user are read at a time.
//!
//! Room for a whole message is made as soon as its length is known, so whoever begins
//! many large ones and sends none to its end would take more memory than there is.
//! A request waits for its turn until others of its user are read; its own deadline
//! ends the wait. Streams have limits of their own.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::PollSemaphore;
use tonic::{Status, body::Body};

use crate::limits::turns;

/// Requests of one user that are read at a time.
const AT_A_TIME: usize = 16;

/// The turns of every user who has a request waiting or being read.
#[derive(Debug, Clone)]
pub(super) struct Turns(turns::Turns);

impl Default for Turns {
    fn default() -> Self {
        Self(turns::Turns::new(AT_A_TIME))
    }
}

impl Turns {
    /// Lets a request's body be read when it is its user's turn.
    pub(super) fn await_turn(&self, user: &str, body: Body) -> Body {
        if http_body::Body::is_end_stream(&body) {
            return body;
        }
        Body::new(InTurn { body, turns: PollSemaphore::new(self.0.of(user)), turn: None })
    }
}

struct InTurn {
    body: Body,
    turns: PollSemaphore,
    turn: Option<OwnedSemaphorePermit>,
}

impl http_body::Body for InTurn {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if self.turn.is_none() {
            self.turn = ready!(self.turns.poll_acquire(cx));
        }
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
