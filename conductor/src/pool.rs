//! The supervised pool: processes are started ahead, leased by key, replaced
//! when they crash and quarantined when they crash too often.
//!
//! [`Pool`] is a cheap handle; one task (`keeper`) owns all state and is fed
//! by a bounded queue.

mod keeper;
mod kind;

use std::{
    collections::BTreeMap,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use tokio::{
    sync::{Notify, mpsc, oneshot, watch},
    time::Instant,
};
use uuid::Uuid;

use crate::{
    acp::{AgentHello, WorkspaceCapabilities},
    agent::Process,
    config::Config,
    journal::Journal,
    tasks::Tasks,
};

/// Questions that may wait for the keeper; it never waits for anyone, so a
/// full queue only means a burst.
const ASKS: usize = 256;

/// What makes processes interchangeable: a process is leased only to a session
/// with its key.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Key {
    /// The agent's name.
    pub agent: Arc<str>,
    /// The directory the process runs in.
    pub cwd: PathBuf,
    /// What the handshake promised for the editor.
    pub capabilities: WorkspaceCapabilities,
}

/// Why no process could be had, with the remedy.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{0}")]
pub struct Unavailable(pub String);

/// The right of one session to use a process; dropping it gives it back.
#[derive(Debug)]
pub struct Lease {
    /// The process.
    pub process: Arc<Process>,
    sessions: Arc<AtomicUsize>,
    released: Arc<Notify>,
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.sessions.fetch_sub(1, Ordering::AcqRel);
        self.released.notify_one();
    }
}

/// The state of an agent as others see it.
#[derive(Debug, Clone)]
pub struct AgentStatus {
    /// Its name.
    pub name: Arc<str>,
    /// Its name for people.
    pub title: String,
    /// Whether sessions can be started.
    pub state: AgentState,
    /// Why not.
    pub reason: String,
    /// The command as configured.
    pub command: String,
    /// Whether it is the default.
    pub is_default: bool,
    /// Its processes, oldest first.
    pub processes: Vec<ProcessStatus>,
    /// How many processes ended unasked.
    pub restarts: u64,
    /// How the last one ended.
    pub last_exit: String,
    /// Most processes at once.
    pub max: usize,
    /// Labels of the configuration.
    pub labels: BTreeMap<String, String>,
    /// The version it gave in its handshake.
    pub version: String,
}

/// Whether an agent can be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AgentState {
    /// Yes.
    Ready,
    /// Its command was not found, or it is disabled.
    Unavailable,
    /// It crashed too often.
    Quarantined,
}

/// The state of a process as others see it.
#[derive(Debug, Clone)]
pub struct ProcessStatus {
    /// Our id of it.
    pub id: Uuid,
    /// Its process id; 0 while it starts.
    pub pid: u32,
    /// What it is doing.
    pub state: ProcessState,
    /// When it was started.
    pub started: Instant,
    /// How many sessions it serves.
    pub sessions: usize,
    /// Where it runs.
    pub cwd: PathBuf,
}

/// What a process is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessState {
    /// Its handshake is not finished.
    Starting,
    /// It serves no session.
    Spare,
    /// It serves sessions.
    Leased,
    /// It was told to end.
    Stopping,
}

/// What a restart did.
#[derive(Debug, Clone, Copy)]
pub struct Restarted {
    /// Processes told to end.
    pub stopped: usize,
    /// Whether a quarantine was lifted.
    pub quarantine_lifted: bool,
}

/// The handle.
#[derive(Debug, Clone)]
pub struct Pool {
    asks: mpsc::Sender<Ask>,
    status: watch::Receiver<Arc<Vec<AgentStatus>>>,
}

enum Ask {
    Lease { key: Key, reply: oneshot::Sender<Result<Lease, Unavailable>> },
    Warm { key: Key },
    Hello { key: Key, reply: oneshot::Sender<Option<AgentHello>> },
    Restart { agent: String, force: bool, reply: oneshot::Sender<Option<Restarted>> },
    Reload { config: Arc<Config> },
    Stop,
}

impl Pool {
    /// Starts the pool. Agents with an isolated home have it beneath `homes`.
    pub fn start(config: &Arc<Config>, homes: PathBuf, journal: Journal, tasks: &Tasks) -> Self {
        let (asks, asked) = mpsc::channel(ASKS);
        let (publish, status) = watch::channel(Arc::default());
        let keeper = keeper::Keeper::new(config, homes, journal, tasks.clone(), publish);
        keeper.show();
        tasks.start("pool", keeper.run(asked));
        Self { asks, status }
    }

    /// Leases a process with this key: a warm one if there is any, else a new
    /// one, whose start this waits for.
    pub async fn lease(&self, key: Key) -> Result<Lease, Unavailable> {
        let (reply, leased) = oneshot::channel();
        let gone = || Unavailable("the service is stopping; try again once it is back".into());
        self.asks.send(Ask::Lease { key, reply }).await.map_err(|_| gone())?;
        leased.await.map_err(|_| gone())?
    }

    /// Says that a session with this key is likely soon. A hint: when the
    /// keeper is busy it is lost.
    pub fn warm(&self, key: Key) {
        self.asks.try_send(Ask::Warm { key }).ok();
    }

    /// What the agent says in its handshake; starts a process to find out if
    /// none has told yet. `None` if that fails.
    pub async fn hello(&self, key: Key) -> Option<AgentHello> {
        let (reply, told) = oneshot::channel();
        self.asks.send(Ask::Hello { key, reply }).await.ok()?;
        told.await.ok()?
    }

    /// Ends an agent's spare processes (with `force`, all) and lifts its
    /// quarantine. `None` if there is no such agent.
    pub async fn restart(&self, agent: String, force: bool) -> Option<Restarted> {
        let (reply, done) = oneshot::channel();
        self.asks.send(Ask::Restart { agent, force, reply }).await.ok()?;
        done.await.ok()?
    }

    /// Applies a new configuration to new processes.
    pub async fn reload(&self, config: Arc<Config>) {
        self.asks.send(Ask::Reload { config }).await.ok();
    }

    /// The agents and processes as they are, and as they change.
    pub fn status(&self) -> watch::Receiver<Arc<Vec<AgentStatus>>> {
        self.status.clone()
    }

    /// Ends all processes; no new ones are started.
    pub async fn stop(&self) {
        self.asks.send(Ask::Stop).await.ok();
    }
}
