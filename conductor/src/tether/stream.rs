//! What a stream carries, both ways, and what it can be waited for.

use std::pin::Pin;

use bytes::Bytes;
use futures_util::Stream;
use tokio::sync::{mpsc, oneshot};
use uuid::Uuid;

use crate::{connection::End, session::Packet, state::Token};

/// What a stream brings.
#[derive(Debug)]
pub enum Heard {
    /// Frames.
    Run {
        /// Number of the first.
        first_seq: u64,
        /// How many.
        count: u32,
        /// The lines.
        frames: Bytes,
    },
    /// How far ours were taken.
    Ack(u64),
}

/// A stream's messages, until it breaks ([`End::EditorGone`]), breaks a rule,
/// or is ended by the editor.
pub type Feed = Pin<Box<dyn Stream<Item = Result<Heard, End>> + Send>>;

/// What a stream carries to the editor.
#[derive(Debug)]
pub enum Said {
    /// Frames.
    Run {
        /// Number of the first.
        first_seq: u64,
        /// The lines.
        packet: Packet,
    },
    /// How far the editor's were taken.
    Ack(u64),
}

/// A stream's part in a connection.
#[derive(Debug)]
pub struct Attached {
    /// The connection.
    pub id: Uuid,
    /// How far the editor's frames were taken.
    pub taken: u64,
    /// What lets a later stream carry the connection on; `None` if none may.
    pub key: Option<Token>,
    /// What the editor receives.
    pub messages: mpsc::Receiver<Said>,
    /// Why the stream ends, once there are no more.
    pub end: oneshot::Receiver<End>,
}

/// Waits until the stream takes a message.
pub(super) async fn room(messages: Option<&mpsc::Sender<Said>>) {
    if let Some(messages) = messages {
        messages.reserve().await.ok();
    }
}

/// Waits until the stream is no more.
pub(super) async fn gone(messages: Option<&mpsc::Sender<Said>>) {
    match messages {
        Some(messages) => messages.closed().await,
        None => std::future::pending().await,
    }
}
