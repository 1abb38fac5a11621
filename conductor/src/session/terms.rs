//! What a session starts from, and what passes between it and its connection.

use std::{path::PathBuf, sync::Arc, time::Duration};

use bytes::Bytes;
use serde_json::Value;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::{Berth, Choice};
use crate::{
    acp::EditorCapabilities,
    agent::Ended,
    approvals::Approvals,
    catalogue::Catalogue,
    config::Config,
    cwd_map::CwdMap,
    frame::Frame,
    grants::Book,
    identity::Caller,
    limits::Held,
    metrics::Metrics,
    policy::{Narrowing, Policy, ServerFact, Subject, Verdict},
    queue,
    routes::Decision,
    state::kept::Kept,
    store::Bound,
    telemetry::trace::Parent,
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
    /// What the repository, the owner and whoever has opened the session add.
    pub narrowing: Vec<Narrowing>,
    /// What whoever prompts adds, if that is something else.
    pub own: Option<Arc<Narrowing>>,
    /// Whose session it is, and where.
    pub subject: Subject,
    /// Which answers of people are remembered.
    pub grants: Book,
    /// How long a question waits while nobody is there.
    pub ask_timeout: Duration,
}

impl Rules {
    /// The team's rules, narrowed for this session and whoever prompts.
    pub fn narrow(&self, team: &Arc<Policy>) -> Arc<Policy> {
        let own = self.own.as_deref().map(std::slice::from_ref).unwrap_or_default();
        team.clone().narrowed_by(&self.narrowing).narrowed_by(own)
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
    /// Its place among those that its user may have open.
    pub held: Held,
    /// By which connection.
    pub connection: Uuid,
    /// The trace that its stream was opened in, for requests that name none.
    pub traceparent: Option<Parent>,
    /// What it needs of its agent.
    pub berth: Berth,
    /// Where it works.
    pub cwd: PathBuf,
    /// Where the editor has other paths than this host.
    pub cwd_map: Option<Arc<CwdMap>>,
    /// What was chosen for it, and where that leads.
    pub choice: Choice,
    /// The same as decided; `None` for a session that is opened again, which stays
    /// where it is.
    pub decision: Option<Decision>,
    /// The agent's own sessions that it has had before.
    pub bound: Vec<Bound>,
    /// The configuration as it is now.
    pub config: watch::Receiver<Arc<Config>>,
    /// What the agents offer.
    pub catalogue: Catalogue,
    /// Where approvers find what it asks.
    pub approvals: Approvals,
    /// What is counted.
    pub metrics: Metrics,
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
    /// Most bytes of a hand-over.
    pub handover_bytes: usize,
    /// By which rules its agent is judged.
    pub rules: Rules,
    /// MCP servers that it gets besides those of its editor, as ACP has them.
    pub injected: Vec<Value>,
    /// The MCP servers that its editor brings, as they are judged.
    pub servers: Vec<ServerFact>,
    /// What somebody has to allow before it opens: MCP servers that nobody knows.
    pub asks_first: Option<(Verdict, String)>,
    /// Where it is kept what it was given and its record does not hold.
    pub kept: Kept,
    /// The process that served it before, if that is still ending.
    pub leaving: Option<Ended>,
}
