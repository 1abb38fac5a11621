//! The task that owns the pool's state.
//!
//! It never waits for a process: starting one and watching for its end happen
//! in a task per process, which reports here.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    fs,
    hash::{BuildHasher as _, RandomState},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, SystemTime},
};

use tokio::{
    sync::{Notify, Semaphore, mpsc, oneshot, watch},
    time::{Instant, sleep_until},
};
use tracing::{info, warn};
use uuid::Uuid;

use super::{AgentState, AgentStatus, Ask, Key, Lease, ProcessState, ProcessStatus, Restarted, Unavailable};
use crate::{
    acp::AgentHello,
    agent::{Cause, Exit, Process, Spec, process},
    config::{self, Config},
    tasks::Tasks,
};

/// Reports of processes that may wait; reporters wait when it is full.
const REPORTS: usize = 256;

pub(super) struct Keeper {
    config: Arc<Config>,
    homes: PathBuf,
    tasks: Tasks,
    publish: watch::Sender<Arc<Vec<AgentStatus>>>,
    kinds: BTreeMap<Arc<str>, Kind>,
    /// Limits how many processes start at once.
    tokens: Arc<Semaphore>,
    released: Arc<Notify>,
    reports: mpsc::Sender<Report>,
    reported: Option<mpsc::Receiver<Report>>,
    stopping: bool,
}

/// An agent of the configuration, with everything the pool knows of it.
struct Kind {
    config: Arc<config::Agent>,
    program: Result<PathBuf, String>,
    /// Not in the configuration any more; goes with its last process.
    removed: bool,
    hello: Option<AgentHello>,
    hello_waiters: Vec<oneshot::Sender<Option<AgentHello>>>,
    keys: HashMap<Key, Interest>,
    starting: BTreeMap<Uuid, (Key, Instant)>,
    members: BTreeMap<Uuid, Member>,
    crashes: VecDeque<Instant>,
    backoff_until: Option<Instant>,
    quarantine: Option<String>,
    restarts: u64,
    last_exit: String,
}

/// Who wants processes with a key.
struct Interest {
    used: Instant,
    /// Kept warm whether used or not.
    configured: bool,
    waiting: VecDeque<oneshot::Sender<Result<Lease, Unavailable>>>,
}

struct Member {
    process: Arc<Process>,
    key: Key,
    sessions: Arc<AtomicUsize>,
    /// It has served a session: with one session per process, it is spent.
    served: bool,
    idle_since: Instant,
    stamp: Option<Stamp>,
}

/// What tells whether a program's file was replaced.
type Stamp = (u64, u64, Option<SystemTime>);

enum Report {
    Started { id: Uuid, result: Result<Arc<Process>, Arc<Exit>>, stamp: Option<Stamp> },
    Exited { id: Uuid, exit: Arc<Exit> },
}

impl Member {
    fn sessions(&self) -> usize {
        self.sessions.load(Ordering::Acquire)
    }

    fn is_spare(&self) -> bool {
        self.sessions() == 0 && !self.process.is_ending()
    }
}

impl Keeper {
    pub(super) fn new(
        config: &Arc<Config>,
        homes: PathBuf,
        tasks: Tasks,
        publish: watch::Sender<Arc<Vec<AgentStatus>>>,
    ) -> Self {
        let (reports, reported) = mpsc::channel(REPORTS);
        let tokens = Arc::new(Semaphore::new(config.service.parallel_spawns));
        let mut keeper = Self {
            config: config.clone(),
            homes,
            tasks,
            publish,
            kinds: BTreeMap::new(),
            tokens,
            released: Arc::new(Notify::new()),
            reports,
            reported: Some(reported),
            stopping: false,
        };
        keeper.apply(config);
        keeper
    }

    pub(super) async fn run(mut self, mut asked: mpsc::Receiver<Ask>) {
        let Some(mut reported) = self.reported.take() else { return };
        let released = self.released.clone();
        loop {
            self.housekeep();
            self.show();
            if self.stopping && self.kinds.values().all(|k| k.members.is_empty() && k.starting.is_empty()) {
                return;
            }
            let wake = self.next_wake();
            tokio::select! {
                Some(report) = reported.recv() => self.hear(report),
                ask = asked.recv(), if !self.stopping => match ask {
                    Some(ask) => self.answer(ask),
                    None => self.stop(),
                },
                () = released.notified() => {}
                () = sleep_until(wake.unwrap_or_else(Instant::now)), if wake.is_some() => {}
            }
        }
    }

    fn answer(&mut self, ask: Ask) {
        match ask {
            Ask::Lease { key, reply } => self.lease(key, reply),
            Ask::Warm { key } => {
                if let Some(kind) = self.kinds.get_mut(&key.agent) {
                    kind.interest(key).used = Instant::now();
                }
            }
            Ask::Hello { key, reply } => self.hello(key, reply),
            Ask::Restart { agent, force, reply } => {
                reply.send(self.restart(&agent, force)).ok();
            }
            Ask::Reload { config } => self.apply(&config),
            Ask::Stop => self.stop(),
        }
    }

    fn lease(&mut self, key: Key, reply: oneshot::Sender<Result<Lease, Unavailable>>) {
        let refusal = match self.kinds.get_mut(&key.agent) {
            None => Some(format!("there is no agent `{}`; `conductor agents` lists them", key.agent)),
            Some(kind) => kind.refusal(&key.agent),
        };
        if let Some(why) = refusal {
            reply.send(Err(Unavailable(why))).ok();
            return;
        }
        let Some(kind) = self.kinds.get_mut(&key.agent) else { return };
        kind.interest(key.clone()).used = Instant::now();
        kind.retire_replaced();
        if let Some(member) = kind.pick(&key) {
            reply.send(Ok(member.lease(&self.released))).ok();
            return;
        }
        if !kind.make_room() {
            let why = format!(
                "all {} processes of agent `{}` are in use; close a session, or raise agents.{}.max",
                kind.config.max, key.agent, key.agent
            );
            reply.send(Err(Unavailable(why))).ok();
            return;
        }
        kind.interest(key.clone()).waiting.push_back(reply);
        self.start(key);
    }

    fn hello(&mut self, key: Key, reply: oneshot::Sender<Option<AgentHello>>) {
        let usable = |kind: &mut &mut Kind| kind.refusal(&key.agent).is_none();
        let Some(kind) =
            self.kinds.get_mut(&key.agent).into_iter().find_map(|mut k| usable(&mut k).then_some(k))
        else {
            reply.send(None).ok();
            return;
        };
        if let Some(hello) = &kind.hello {
            reply.send(Some(hello.clone())).ok();
            return;
        }
        kind.hello_waiters.push(reply);
        if kind.starting.is_empty() {
            self.start(key);
        }
    }

    fn restart(&mut self, name: &str, force: bool) -> Option<Restarted> {
        let kind = self.kinds.get_mut(name)?;
        let quarantine_lifted = kind.quarantine.take().is_some();
        kind.crashes.clear();
        kind.backoff_until = None;
        kind.resolve(name);
        let mut stopped = 0;
        for member in kind.members.values().filter(|m| force || m.is_spare()) {
            member.process.stop(Cause::Asked("its agent is restarted"));
            stopped += 1;
        }
        Some(Restarted { stopped, quarantine_lifted })
    }

    /// Takes over a configuration: new agents appear, removed ones go with
    /// their last process, changed ones lose their spares and quarantine.
    fn apply(&mut self, config: &Arc<Config>) {
        self.config = config.clone();
        self.tokens = Arc::new(Semaphore::new(config.service.parallel_spawns));
        for (name, kind) in &mut self.kinds {
            let still = config.agents.get(&**name);
            kind.removed = still.is_none();
            if still != Some(&*kind.config) {
                kind.end_spares("its configuration has changed");
            }
        }
        for (name, agent) in &config.agents {
            let name: Arc<str> = name.as_str().into();
            let same = self.kinds.get(&name).is_some_and(|kind| *kind.config == *agent);
            let kind = self.kinds.entry(name.clone()).or_insert_with(|| Kind::new(agent));
            if !same {
                kind.config = Arc::new(agent.clone());
                kind.quarantine = None;
                kind.hello = None;
                kind.keys.retain(|_, interest| !interest.waiting.is_empty());
            }
            kind.resolve(&name);
            for cwd in &agent.warm_keys {
                let capabilities =
                    crate::acp::WorkspaceCapabilities { fs_read: true, fs_write: true, terminal: true };
                let key = Key { agent: name.clone(), cwd: cwd.clone(), capabilities };
                kind.interest(key).configured = true;
            }
        }
    }

    fn stop(&mut self) {
        self.stopping = true;
        for kind in self.kinds.values_mut() {
            for member in kind.members.values() {
                member.process.stop(Cause::Asked("the service is stopping"));
            }
            // Dropping the replies tells whoever waits.
            kind.keys.clear();
            kind.hello_waiters.clear();
        }
    }

    /// Starts a process for a key in a task of its own.
    fn start(&mut self, key: Key) {
        let Some(kind) = self.kinds.get_mut(&key.agent) else { return };
        let Ok(program) = kind.program.clone() else { return };
        let id = Uuid::now_v7();
        kind.starting.insert(id, (key.clone(), Instant::now()));
        let (config, homes) = (kind.config.clone(), self.homes.clone());
        let (tokens, tasks, reports) = (self.tokens.clone(), self.tasks.clone(), self.reports.clone());
        let stall_timeout = self.config.service.stall_timeout;
        self.tasks.start("process watch", async move {
            let permit = tokens.acquire_owned().await;
            let stamp = stamp(&program);
            let cwd = config.cwd.clone().unwrap_or_else(|| key.cwd.clone());
            let result = match process::Launch::prepare(&key.agent, &config, program, cwd, &homes) {
                Ok(launch) => {
                    let spec = Spec {
                        agent: key.agent.clone(),
                        launch,
                        capabilities: key.capabilities,
                        start_timeout: config.start_timeout,
                        stall_timeout,
                    };
                    Process::start(spec, &tasks).await
                }
                Err(error) => Err(Arc::new(Exit {
                    agent: key.agent.clone(),
                    pid: 0,
                    cause: Cause::NotStarted(error.to_string()),
                    status: None,
                    stderr: String::new(),
                })),
            };
            drop(permit);
            let process = result.as_ref().ok().cloned();
            reports.send(Report::Started { id, result, stamp }).await.ok();
            if let Some(process) = process {
                let exit = process.exited().await;
                reports.send(Report::Exited { id, exit }).await.ok();
            }
        });
    }

    fn hear(&mut self, report: Report) {
        match report {
            Report::Started { id, result, stamp } => {
                let Some(kind) = self.kinds.values_mut().find(|kind| kind.starting.contains_key(&id)) else {
                    return;
                };
                let Some((key, _)) = kind.starting.remove(&id) else { return };
                match result {
                    Ok(process) => {
                        if self.stopping {
                            process.stop(Cause::Asked("the service is stopping"));
                        }
                        kind.welcome(id, &key, process, stamp, &self.released);
                    }
                    Err(exit) => {
                        kind.crashed(&exit);
                        let why = Unavailable(exit.to_string());
                        if let Some(waiting) = kind.interest(key).waiting.pop_front() {
                            waiting.send(Err(why)).ok();
                        }
                        // Dropped replies read as "could not be asked".
                        kind.hello_waiters.clear();
                    }
                }
            }
            Report::Exited { id, exit } => {
                let Some(kind) = self.kinds.values_mut().find(|kind| kind.members.contains_key(&id)) else {
                    return;
                };
                kind.members.remove(&id);
                if exit.is_crash() {
                    kind.restarts += 1;
                    kind.crashed(&exit);
                } else {
                    kind.last_exit = exit.summary();
                }
            }
        }
    }

    /// Ends what is spent, old or unwanted, and starts what is missing.
    fn housekeep(&mut self) {
        let now = Instant::now();
        let mut missing = Vec::new();
        for kind in self.kinds.values_mut() {
            kind.end_spent(now);
            if !self.stopping {
                missing.extend(kind.missing(now));
            }
        }
        self.kinds.retain(|_, kind| !kind.removed || !kind.members.is_empty() || !kind.starting.is_empty());
        for key in missing {
            self.start(key);
        }
    }

    fn next_wake(&self) -> Option<Instant> {
        let now = Instant::now();
        self.kinds.values().flat_map(Kind::wakes).filter(|wake| *wake > now).min()
    }

    /// Publishes the state for others to see.
    pub(super) fn show(&self) {
        let all = self.kinds.iter().filter(|(_, k)| !k.removed);
        let all = all.map(|(name, kind)| kind.status(name, **name == *self.config.default)).collect();
        self.publish.send_replace(Arc::new(all));
    }
}

impl Kind {
    fn new(agent: &config::Agent) -> Self {
        Self {
            config: Arc::new(agent.clone()),
            program: Err(String::new()),
            removed: false,
            hello: None,
            hello_waiters: Vec::new(),
            keys: HashMap::new(),
            starting: BTreeMap::new(),
            members: BTreeMap::new(),
            crashes: VecDeque::new(),
            backoff_until: None,
            quarantine: None,
            restarts: 0,
            last_exit: String::new(),
        }
    }

    fn resolve(&mut self, name: &str) {
        self.program = if self.config.enabled {
            self.config.resolve(process::path_variable().as_deref()).map_err(|why| why.to_string())
        } else {
            Err(format!("disabled by agents.{name}.enabled"))
        };
    }

    fn interest(&mut self, key: Key) -> &mut Interest {
        let fresh = || Interest { used: Instant::now(), configured: false, waiting: VecDeque::new() };
        self.keys.entry(key).or_insert_with(fresh)
    }

    /// Why no session can be started, if so.
    fn refusal(&mut self, name: &str) -> Option<String> {
        if self.removed {
            return Some(format!("agent `{name}` is not in the configuration any more"));
        }
        if self.program.is_err() {
            // It may have been installed meanwhile.
            self.resolve(name);
        }
        if let Err(why) = &self.program {
            return Some(format!("agent `{name}` is not available: {why}"));
        }
        let reason = self.quarantine.as_ref()?;
        Some(format!(
            "agent `{name}` is quarantined: {reason}\nOnce that is mended: `conductor agents restart {name}`"
        ))
    }

    /// The least busy process that may take one more session with this key.
    fn pick(&mut self, key: &Key) -> Option<&mut Member> {
        let room = self.config.sessions_per_process;
        self.members
            .values_mut()
            .filter(|m| m.key == *key && !m.process.is_ending() && m.sessions() < room)
            .filter(|m| room > 1 || !m.served)
            .min_by_key(|member| member.sessions())
    }

    /// Whether one more process may be started; ends the spare of another key
    /// if that is what it takes.
    fn make_room(&mut self) -> bool {
        if self.members.len() + self.starting.len() < self.config.max {
            return true;
        }
        let oldest = self.members.values().filter(|m| m.is_spare()).min_by_key(|m| m.idle_since);
        match oldest {
            Some(spare) => {
                spare.process.stop(Cause::Asked("its place is needed for a session"));
                true
            }
            None => false,
        }
    }

    fn welcome(
        &mut self,
        id: Uuid,
        key: &Key,
        process: Arc<Process>,
        stamp: Option<Stamp>,
        released: &Arc<Notify>,
    ) {
        self.hello = Some(process.hello.clone());
        for waiting in self.hello_waiters.drain(..) {
            waiting.send(Some(process.hello.clone())).ok();
        }
        let mut member = Member {
            process,
            key: key.clone(),
            sessions: Arc::default(),
            served: false,
            idle_since: Instant::now(),
            stamp,
        };
        // Some who waited may have gone meanwhile; a lease that comes back
        // unused must not spend the process.
        while let Some(waiting) = self.interest(key.clone()).waiting.pop_front() {
            if !waiting.is_closed() {
                waiting.send(Ok(member.lease(released))).ok();
                break;
            }
        }
        self.members.insert(id, member);
    }

    fn crashed(&mut self, exit: &Exit) {
        let now = Instant::now();
        let restart = &self.config.restart;
        self.last_exit = exit.summary();
        self.crashes.push_back(now);
        while self.crashes.front().is_some_and(|at| now.duration_since(*at) > restart.within) {
            self.crashes.pop_front();
        }
        let n = self.crashes.len();
        if n >= restart.intensity {
            let times = if n == 1 { "once".to_string() } else { format!("{n} times") };
            let reason = format!("it ended {times} within {:?}; the last time: {exit}", restart.within);
            warn!(agent = %exit.agent, reason, "agent is quarantined");
            self.quarantine = Some(reason);
            for interest in self.keys.values_mut() {
                for waiting in interest.waiting.drain(..) {
                    waiting.send(Err(Unavailable(exit.to_string()))).ok();
                }
            }
            return;
        }
        let doubled = restart.backoff.saturating_mul(1 << n.saturating_sub(1).min(16));
        let pause = jitter(doubled.min(restart.within));
        info!(agent = %exit.agent, pause_ms = pause.as_millis() as u64, "agent will be started again");
        self.backoff_until = Some(now + pause);
    }

    fn end_spares(&self, why: &'static str) {
        for member in self.members.values().filter(|member| member.is_spare()) {
            member.process.stop(Cause::Asked(why));
        }
    }

    /// Ends spares whose program's file was replaced.
    fn retire_replaced(&self) {
        let Ok(program) = &self.program else { return };
        let current = stamp(program);
        for member in self.members.values().filter(|m| m.is_spare() && m.stamp != current) {
            member.process.stop(Cause::Asked("its program was replaced"));
        }
    }

    fn end_spent(&mut self, now: Instant) {
        let single = self.config.sessions_per_process == 1;
        let (idle, age) = (self.config.idle_timeout, self.config.warm_max_age);
        let keys = &self.keys;
        for member in self.members.values_mut() {
            if member.sessions() > 0 {
                member.idle_since = now;
                continue;
            }
            if member.process.is_ending() {
                continue;
            }
            let interest = keys.get(&member.key);
            let wanted = interest.is_some_and(|i| i.configured || now.duration_since(i.used) < idle);
            if member.served && single {
                member.process.stop(Cause::Asked("its session has ended"));
            } else if !wanted && now.duration_since(member.idle_since) >= idle {
                member.process.stop(Cause::Asked("nobody has used it for a while"));
            } else if now.duration_since(member.process.started) >= age {
                member.process.stop(Cause::Asked("it is old"));
            }
        }
        self.keys.retain(|_, i| i.configured || !i.waiting.is_empty() || now.duration_since(i.used) < idle);
    }

    /// Keys for which a spare should be started now.
    fn missing(&self, now: Instant) -> Vec<Key> {
        if self.quarantine.is_some()
            || self.removed
            || self.program.is_err()
            || self.backoff_until.is_some_and(|until| until > now)
        {
            return Vec::new();
        }
        let mut total = self.members.len() + self.starting.len();
        let mut spares =
            self.members.values().filter(|m| m.is_spare() && !m.served).count() + self.starting.len();
        let mut missing = Vec::new();
        for (key, interest) in &self.keys {
            // Whoever waits comes first; the spare is started once they have
            // theirs.
            if !interest.waiting.is_empty() {
                continue;
            }
            let ready = self.members.values().filter(|m| m.key == *key && m.is_spare() && !m.served).count();
            let coming = self.starting.values().filter(|(k, _)| k == key).count();
            for _ in ready + coming..self.config.warm {
                if spares >= self.config.warm_total || total >= self.config.max {
                    return missing;
                }
                missing.push(key.clone());
                spares += 1;
                total += 1;
            }
        }
        missing
    }

    /// Moments at which something may have to be done.
    fn wakes(&self) -> impl Iterator<Item = Instant> {
        let idle = self.config.idle_timeout;
        let ages = self.members.values().filter(|m| m.is_spare());
        let ages =
            ages.flat_map(move |m| [m.process.started + self.config.warm_max_age, m.idle_since + idle]);
        let uses = self.keys.values().filter(|i| !i.configured).map(move |i| i.used + idle);
        self.backoff_until.into_iter().chain(ages).chain(uses)
    }

    fn status(&self, name: &Arc<str>, is_default: bool) -> AgentStatus {
        let (state, reason) = match (&self.program, &self.quarantine) {
            (Err(why), _) => (AgentState::Unavailable, why.clone()),
            (Ok(_), Some(reason)) => (AgentState::Quarantined, reason.clone()),
            (Ok(_), None) => (AgentState::Ready, String::new()),
        };
        let running = self.members.iter().map(|(id, member)| {
            let sessions = member.sessions();
            ProcessStatus {
                id: *id,
                pid: member.process.pid,
                state: match sessions {
                    _ if member.process.is_ending() => ProcessState::Stopping,
                    0 => ProcessState::Spare,
                    _ => ProcessState::Leased,
                },
                started: member.process.started,
                sessions,
                cwd: member.process.cwd.clone(),
            }
        });
        let starting = self.starting.iter().map(|(id, (key, started))| ProcessStatus {
            id: *id,
            pid: 0,
            state: ProcessState::Starting,
            started: *started,
            sessions: 0,
            cwd: key.cwd.clone(),
        });
        let mut processes: Vec<ProcessStatus> = running.chain(starting).collect();
        processes.sort_by_key(|process| process.id);
        let words = std::iter::once(&self.config.command).chain(&self.config.args);
        AgentStatus {
            name: name.clone(),
            title: self.config.title.clone().unwrap_or_else(|| name.to_string()),
            state,
            reason,
            command: words.map(String::as_str).collect::<Vec<_>>().join(" "),
            is_default,
            processes,
            restarts: self.restarts,
            last_exit: self.last_exit.clone(),
            max: self.config.max,
            labels: self.config.labels.clone(),
            version: self.hello.as_ref().map(|hello| hello.version().to_string()).unwrap_or_default(),
        }
    }
}

impl Member {
    fn lease(&mut self, released: &Arc<Notify>) -> Lease {
        self.served = true;
        self.sessions.fetch_add(1, Ordering::AcqRel);
        Lease { process: self.process.clone(), sessions: self.sessions.clone(), released: released.clone() }
    }
}

fn stamp(program: &Path) -> Option<Stamp> {
    // Our own binary is reached through a link that always names what runs.
    if program.starts_with("/proc") {
        return None;
    }
    let meta = fs::metadata(program).ok()?;
    Some((meta.dev(), meta.ino(), meta.modified().ok()))
}

/// Half to one and a half times the pause, so that many do not return at once.
fn jitter(pause: Duration) -> Duration {
    let random = RandomState::new().hash_one(0_u8) % 1000;
    pause.mul_f64(0.5 + random as f64 / 1000.0)
}
