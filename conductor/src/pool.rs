//! The supervised pool: processes are started ahead, leased by key, replaced
//! when they crash and quarantined when they crash too often. Where they are
//! scarce, sessions wait in a line that is fair to users.
//!
//! [`Pool`] is a cheap handle; one task (`keeper`) owns all state and is fed
//! by a bounded queue.

mod health;
mod hellos;
mod keeper;
mod kind;
mod line;
mod order;
mod places;

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

pub use self::hellos::Hellos;
use self::{
    keeper::Keeper,
    places::{Waiter, Wish},
};
use crate::{
    acp::{AgentHello, Refusal, WorkspaceCapabilities, code},
    agent::{Process, process::Launch},
    config::{self, Config},
    contain::{Premises, Shown},
    identity::Person,
    journal::Journal,
    limits::Held,
    metrics::{Branch, Metrics},
    secrets::Vault,
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
    /// Further ones that it can reach; none for agents that are not shut in.
    pub more: Vec<PathBuf>,
    /// What the handshake promised for the editor.
    pub capabilities: WorkspaceCapabilities,
    /// For whom alone it runs, if it is given something of theirs.
    pub person: Option<Arc<Person>>,
}

/// Why no process could be had, with the remedy.
#[derive(Debug, Clone, thiserror::Error)]
pub enum Unavailable {
    /// As many are in use as may be.
    #[error("{0}")]
    Full(String),
    /// None can be started.
    #[error("{0}")]
    Failed(String),
}

impl Unavailable {
    /// What an editor is told.
    pub fn refusal(&self) -> Refusal {
        let code = match self {
            Self::Full(_) => code::LIMIT,
            Self::Failed(_) => code::AGENT_ENDED,
        };
        Refusal::new(code, self.to_string())
    }
}

/// The right of one session to use a process; dropping it gives it back.
#[derive(Debug)]
pub struct Lease {
    /// The process.
    pub process: Arc<Process>,
    /// How many its user has at this process.
    sessions: Arc<AtomicUsize>,
    released: Arc<Notify>,
    /// Its place among those that its user may have, of whatever agent.
    held: Option<Held>,
}

impl Lease {
    /// The same, which gives this back, too.
    pub fn with(self, held: Held) -> Self {
        let mut lease = self;
        lease.held = Some(held);
        lease
    }
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
    /// Why not, with what a process has said.
    pub reason: String,
    /// The same for everybody.
    pub reason_told: String,
    /// The command as configured.
    pub command: String,
    /// Whether it is the default.
    pub is_default: bool,
    /// Its processes, oldest first.
    pub processes: Vec<ProcessStatus>,
    /// How many processes ended unasked.
    pub restarts: u64,
    /// How often it was quarantined.
    pub quarantines: u64,
    /// How the last one ended, with what it said and where it ran.
    pub last_exit: String,
    /// The same for everybody.
    pub last_exit_told: String,
    /// Most processes at once.
    pub max: usize,
    /// Most processes that sessions of one user may have at once.
    pub max_per_user: usize,
    /// How many requests wait because one of these is reached.
    pub waiting: usize,
    /// Labels of the configuration.
    pub labels: BTreeMap<String, String>,
    /// What its processes have said in their handshakes.
    pub hellos: Arc<Hellos>,
}

/// How many sessions an agent has.
pub fn sessions_of(agents: &[AgentStatus], name: &str) -> usize {
    let processes = agents.iter().filter(|agent| &*agent.name == name).flat_map(|agent| &agent.processes);
    processes.map(|process| process.sessions).sum()
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
    /// Whose sessions it serves.
    pub users: Vec<Arc<str>>,
    /// What holds it; nobody knows while it starts.
    pub sandbox: Option<Arc<Shown>>,
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

/// What somebody wants to know of an agent for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// To greet an editor, which does not wait for long.
    Greeting,
    /// To log in, which may be what ends a quarantine.
    Login,
}

/// How a process would be started, with everything in place for it.
#[derive(Debug)]
pub struct Prepared {
    /// What to start.
    pub launch: Launch,
    /// The agent as it was configured by then.
    pub agent: Arc<config::Agent>,
}

/// The handle.
#[derive(Debug, Clone)]
pub struct Pool {
    asks: mpsc::Sender<Ask>,
    vault: Vault,
    released: Arc<Notify>,
    status: watch::Receiver<Arc<Vec<AgentStatus>>>,
    metrics: Metrics,
}

enum Ask {
    Lease(Waiter),
    Warm { key: Key },
    Hello(Waiter),
    Restart { agent: String, force: bool, reply: oneshot::Sender<Option<Restarted>> },
    Replace { agent: String, user: String },
    Prepare { key: Key, reply: oneshot::Sender<Result<Prepared, Unavailable>> },
    Reload { config: Arc<Config> },
    Stop,
}

impl Pool {
    /// Starts the pool, on these premises.
    pub fn start(
        config: &Arc<Config>,
        premises: Premises,
        journal: Journal,
        metrics: Metrics,
        tasks: &Tasks,
    ) -> Self {
        let (asks, asked) = mpsc::channel(ASKS);
        let (publish, status) = watch::channel(Arc::default());
        let released = Arc::new(Notify::new());
        let vault = Vault::new(&config.secrets);
        let kept = vault.clone();
        let keeper = Keeper::new(config, premises, kept, journal, tasks.clone(), publish, released.clone());
        keeper.show();
        tasks.start("pool", keeper.run(asked));
        Self { asks, vault, released, status, metrics }
    }

    /// Leases a process with this key for a session of this user: a warm one if
    /// there is any, else a new one, whose start this waits for. While the agent
    /// or the user has as many as may be, it waits its turn, for the agent's
    /// `queue_timeout` at most.
    pub async fn lease(&self, key: Key, user: &str) -> Result<Lease, Unavailable> {
        self.wait(key, user, None).await
    }

    /// The same; its position is told, from 1, while it waits its turn.
    pub async fn lease_told(
        &self,
        key: Key,
        user: &str,
        told: watch::Sender<usize>,
    ) -> Result<Lease, Unavailable> {
        self.wait(key, user, Some(told)).await
    }

    async fn wait(
        &self,
        key: Key,
        user: &str,
        told: Option<watch::Sender<usize>>,
    ) -> Result<Lease, Unavailable> {
        let (reply, answer) = oneshot::channel();
        self.stand(Ask::Lease(Waiter::new(key, user, told, Wish::Lease(reply))), answer).await
    }

    /// Waits for an answer; dropping this gives up the place in the line.
    async fn stand<T>(
        &self,
        ask: Ask,
        answer: oneshot::Receiver<Result<T, Unavailable>>,
    ) -> Result<T, Unavailable> {
        let mut promise = Promise { answer, released: self.released.clone() };
        let gone = || Unavailable::Failed("the service is stopping; try again once it is back".into());
        self.asks.send(ask).await.map_err(|_| gone())?;
        (&mut promise.answer).await.map_err(|_| gone())?
    }

    /// Says that a session with this key is likely soon. A hint: when the
    /// keeper is busy it is lost.
    pub fn warm(&self, key: Key) {
        if self.asks.try_send(Ask::Warm { key }).is_err() {
            self.metrics.best_effort(Branch::WarmHintLost);
        }
    }

    /// What the agent says in its handshake to a process with this key. If no process of
    /// the same person's has told yet, one is started to find out, when it is this user's
    /// turn.
    pub async fn hello(
        &self,
        key: Key,
        user: &str,
        purpose: Purpose,
    ) -> Result<Arc<AgentHello>, Unavailable> {
        let (reply, answer) = oneshot::channel();
        self.stand(Ask::Hello(Waiter::new(key, user, None, Wish::Hello(reply, purpose))), answer).await
    }

    /// Ends an agent's spare processes (with `force`, all) and lifts its
    /// quarantine. `None` if there is no such agent.
    pub async fn restart(&self, agent: String, force: bool) -> Option<Restarted> {
        let (reply, done) = oneshot::channel();
        self.asks.send(Ask::Restart { agent, force, reply }).await.ok()?;
        done.await.ok()?
    }

    /// Lets no process of an agent take another session that others do not have for
    /// themselves: what it has in its home is out of date, since this user has logged in
    /// or out.
    pub async fn replace(&self, agent: &str, user: &str) {
        self.asks.send(Ask::Replace { agent: agent.to_owned(), user: user.to_owned() }).await.ok();
    }

    /// How a process with this key would be started, with everything in place for it.
    pub async fn prepare(&self, key: Key) -> Result<Prepared, Unavailable> {
        let gone = || Unavailable::Failed("the service is stopping; try again once it is back".into());
        let (reply, prepared) = oneshot::channel();
        self.asks.send(Ask::Prepare { key, reply }).await.map_err(|_| gone())?;
        prepared.await.map_err(|_| gone())?
    }

    /// Applies a new configuration to new processes.
    pub async fn reload(&self, config: Arc<Config>) {
        self.asks.send(Ask::Reload { config }).await.ok();
    }

    /// The agents and processes as they are, and as they change.
    pub fn status(&self) -> watch::Receiver<Arc<Vec<AgentStatus>>> {
        self.status.clone()
    }

    /// Where the secrets of users are asked for.
    pub fn vault(&self) -> &Vault {
        &self.vault
    }

    /// Ends all processes; no new ones are started.
    pub async fn stop(&self) {
        self.asks.send(Ask::Stop).await.ok();
    }
}

/// Something to come; dropping it gives up the place in the line.
struct Promise<T> {
    answer: oneshot::Receiver<Result<T, Unavailable>>,
    released: Arc<Notify>,
}

impl<T> Drop for Promise<T> {
    fn drop(&mut self) {
        if !self.answer.is_terminated() {
            // The keeper must find it closed when it wakes.
            self.answer.close();
            self.released.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::config::SecretSource;

    #[test]
    fn a_hint_that_the_keeper_has_no_time_for_is_counted() {
        let (asks, _kept) = mpsc::channel(1);
        let (_publish, status) = watch::channel(Arc::default());
        let metrics = Metrics::default();
        let (timeout, max_age) = (Duration::ZERO, Duration::ZERO);
        let vault = Vault::new(&SecretSource { dir: None, command: Vec::new(), timeout, max_age });
        let pool = Pool { asks, vault, released: Arc::default(), status, metrics: metrics.clone() };
        let capabilities = WorkspaceCapabilities::ALL;
        let key = Key { agent: "demo".into(), cwd: "/".into(), more: Vec::new(), capabilities, person: None };
        pool.warm(key.clone());
        assert_eq!(metrics.best_effort.of(Branch::WarmHintLost).get(), 0);
        pool.warm(key);
        assert_eq!(metrics.best_effort.of(Branch::WarmHintLost).get(), 1);
    }
}
