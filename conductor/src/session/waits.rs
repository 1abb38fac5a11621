//! What a session waits for. Each of these may be dropped and asked again.

use std::{collections::VecDeque, sync::Arc};

use bytes::Bytes;

use super::{
    outbox::Waiting,
    place::{News, Reaching},
};
use crate::{
    agent::{Exit, Process},
    frame::Run,
    journal::{Journal, Ticket},
    queue,
};

/// Size and ticket of what stands first in a queue.
pub(super) fn front(queue: &VecDeque<Waiting>) -> (usize, Option<Ticket>) {
    queue.front().map_or((0, None), |waiting| (waiting.packet.frames.len(), waiting.after))
}

/// A place in the queue of a process.
pub(super) async fn room_at(
    process: Option<&Process>,
    size: usize,
) -> Result<queue::Permit<'_, Bytes>, queue::Closed> {
    match process {
        Some(process) => process.input().reserve(size).await,
        None => Err(queue::Closed),
    }
}

pub(super) async fn exited(process: Option<&Process>) -> Arc<Exit> {
    match process {
        Some(process) => process.exited().await,
        None => std::future::pending().await,
    }
}

pub(super) async fn heard(output: &mut Option<queue::Receiver<Run>>) -> Option<Run> {
    match output {
        Some(output) => output.recv().await,
        None => std::future::pending().await,
    }
}

pub(super) async fn news(reaching: &mut Option<Reaching>) -> News {
    match reaching {
        Some(reaching) => reaching.news().await,
        None => std::future::pending().await,
    }
}

/// Waits until an effect may go, or must not.
pub(super) async fn released(journal: &Journal, ticket: Option<Ticket>) -> Result<(), Arc<str>> {
    match ticket {
        Some(ticket) => journal.released(ticket).await.map_err(|refused| refused.why),
        None => std::future::pending().await,
    }
}
