//! What a session starts from, and what passes between it and its connection.

use std::{path::PathBuf, sync::Arc, time::Duration};

use bytes::Bytes;
use serde_json::Value;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::Hosting;
use crate::{
    acp::EditorCapabilities,
    agent::Ended,
    cwd_map::CwdMap,
    frame::Frame,
    identity::Caller,
    policy::{Policy, Subject, Verdict},
    pool::Key,
    queue,
};

/// Frames on their way to an editor: complete lines.
#[derive(Debug, Clone)]
pub struct Packet {
    /// The lines.
    pub frames: Bytes,
    /// How many.
    pub count: u32,
}

/// A session's way to its editor.
#[derive(Debug)]
pub struct EditorLink {
    /// Which session of the connection; part of every request id.
    pub slot: u32,
    /// Where frames for the editor go.
    pub out: queue::Sender<Packet>,
    /// What the editor can do.
    pub capabilities: EditorCapabilities,
    /// Where the connection learns of this session's fate.
    pub events: mpsc::Sender<SessionEvent>,
    /// Whether the editor is there, or has lost its stream.
    pub presence: watch::Receiver<bool>,
}

/// What a connection must know of its sessions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionEvent {
    /// The opening request was answered with a result.
    Opened(u32),
    /// The session is no more.
    Ended(u32),
    /// The session is not shared with this editor's user any more.
    Revoked(u32),
    /// The editor has not taken its frames for too long.
    Stalled,
    /// The session's task broke down: what it owes nobody will say.
    Broken,
}

/// How a session comes to be.
#[derive(Debug, Clone)]
pub enum Opening {
    /// `session/new`.
    New,
    /// `session/load`, with the agent's own id of the session.
    Load(Bytes),
    /// `session/resume`, likewise.
    Resume(Bytes),
}

/// The model and mode a new session should start with.
#[derive(Debug, Clone, Default)]
pub struct Wish {
    /// The model.
    pub model: Option<String>,
    /// The mode.
    pub mode: Option<String>,
}

/// By which rules a session's agent is judged.
#[derive(Debug)]
pub struct Rules {
    /// The team's rules as they are.
    pub policy: watch::Receiver<Arc<Policy>>,
    /// What the repository and the user add: where it stands, and the text.
    pub narrowing: Vec<(String, String)>,
    /// Whose session it is, and where.
    pub subject: Subject,
    /// The directories it may work in, resolved.
    pub roots: Vec<PathBuf>,
    /// How long a question waits while nobody is there.
    pub ask_timeout: Duration,
}

impl Rules {
    /// The team's rules, narrowed for this session.
    pub fn narrow(&self, team: &Arc<Policy>) -> Arc<Policy> {
        self.narrowing
            .iter()
            .fold(team.clone(), |policy, (origin, text)| policy.narrowed(origin, text).into())
    }
}

/// Everything a session starts from.
#[derive(Debug)]
pub struct Open {
    /// Our id of it.
    pub id: Uuid,
    /// How it comes to be.
    pub opening: Opening,
    /// The editor's request.
    pub request: Frame,
    /// Who asks.
    pub caller: Caller,
    /// Whose session it is.
    pub owner: String,
    /// By which connection.
    pub connection: Uuid,
    /// Which process it needs.
    pub key: Key,
    /// Where it works.
    pub cwd: PathBuf,
    /// What this host does for it; `None` leaves files and terminals to the
    /// editor.
    pub hosting: Option<Hosting>,
    /// Where the editor has other paths than this host.
    pub cwd_map: Option<Arc<CwdMap>>,
    /// What it should start with.
    pub wish: Wish,
    /// Ends it from outside.
    pub close: CancellationToken,
    /// The service ends.
    pub ending: CancellationToken,
    /// Its turns go on when its editor leaves.
    pub outlives_editor: bool,
    /// It goes on even without a turn.
    pub lingers: bool,
    /// How long it does either with nobody there.
    pub detached_ttl: Duration,
    /// How long a cancelled turn may take to end.
    pub cancel_grace: Duration,
    /// How long the editor may leave its frames unread.
    pub editor_timeout: Duration,
    /// After so long without anything to do its process is released; zero for
    /// never.
    pub park_after: Duration,
    /// A turn in which the agent shows no sign of work for so long is reported;
    /// zero for never.
    pub stall_timeout: Duration,
    /// After twice that time it is cancelled.
    pub cancels_stalled: bool,
    /// Most bytes of a hand-over.
    pub handover_bytes: usize,
    /// Its process may go on when it does not need it any more.
    pub shares_process: bool,
    /// By which rules its agent is judged.
    pub rules: Rules,
    /// MCP servers that it gets besides those of its editor, as ACP has them.
    pub injected: Vec<Value>,
    /// What somebody has to allow before it opens: MCP servers that nobody knows.
    pub asks_first: Option<(Verdict, String)>,
    /// The process that served it before, if that is still ending.
    pub leaving: Option<Ended>,
}
