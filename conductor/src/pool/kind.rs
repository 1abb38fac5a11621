//! One agent of the configuration as the pool knows it: who wants its
//! processes, which there are, how often it crashed. No I/O but looking at its
//! program's file.

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
    sync::{Notify, oneshot},
    time::Instant,
};
use tracing::{info, warn};
use uuid::Uuid;

use super::{AgentState, AgentStatus, Key, Lease, ProcessState, ProcessStatus, Unavailable};
use crate::{
    acp::AgentHello,
    agent::{Cause, Exit, Process, process},
    config,
};

/// An agent of the configuration, with everything the pool knows of it.
pub(super) struct Kind {
    pub(super) config: Arc<config::Agent>,
    pub(super) program: Result<PathBuf, String>,
    /// Not in the configuration any more; goes with its last process.
    pub(super) removed: bool,
    pub(super) hello: Option<AgentHello>,
    pub(super) hello_waiters: Vec<oneshot::Sender<Option<AgentHello>>>,
    pub(super) keys: HashMap<Key, Interest>,
    pub(super) starting: BTreeMap<Uuid, Starting>,
    pub(super) members: BTreeMap<Uuid, Member>,
    pub(super) crashes: VecDeque<Instant>,
    pub(super) backoff_until: Option<Instant>,
    pub(super) quarantine: Option<String>,
    pub(super) restarts: u64,
    pub(super) last_exit: String,
}

/// A leased process is replaced by a new spare only after this long: starting
/// one at once would compete with the session that is just being opened.
const REFILL_PAUSE: Duration = Duration::from_millis(100);

/// Who wants processes with a key.
pub(super) struct Interest {
    pub(super) used: Instant,
    /// When a process was last leased.
    pub(super) leased: Option<Instant>,
    /// Kept warm whether used or not.
    pub(super) configured: bool,
    pub(super) waiting: VecDeque<oneshot::Sender<Result<Lease, Unavailable>>>,
}

/// A process whose handshake is not finished.
pub(super) struct Starting {
    pub(super) key: Key,
    pub(super) since: Instant,
    pub(super) config: Arc<config::Agent>,
}

pub(super) struct Member {
    pub(super) process: Arc<Process>,
    pub(super) key: Key,
    pub(super) sessions: Arc<AtomicUsize>,
    /// It has served a session: with one session per process, it is spent.
    pub(super) served: bool,
    /// Takes no more sessions: its configuration or program is not the one
    /// that is in force.
    pub(super) retired: bool,
    pub(super) idle_since: Instant,
    pub(super) stamp: Option<Stamp>,
}

/// What tells whether a program's file was replaced.
pub(super) type Stamp = (u64, u64, Option<SystemTime>);

impl Interest {
    fn refill_at(&self) -> Option<Instant> {
        self.leased.map(|at| at + REFILL_PAUSE)
    }
}

impl Member {
    pub(super) fn sessions(&self) -> usize {
        self.sessions.load(Ordering::Acquire)
    }

    pub(super) fn is_spare(&self) -> bool {
        self.sessions() == 0 && !self.process.is_ending()
    }
}

impl Kind {
    pub(super) fn new(agent: &config::Agent) -> Self {
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

    pub(super) fn resolve(&mut self, name: &str) {
        self.program = if self.config.enabled {
            self.config.resolve(process::path_variable().as_deref()).map_err(|why| why.to_string())
        } else {
            Err(format!("disabled by agents.{name}.enabled"))
        };
    }

    pub(super) fn interest(&mut self, key: Key) -> &mut Interest {
        let fresh =
            || Interest { used: Instant::now(), leased: None, configured: false, waiting: VecDeque::new() };
        self.keys.entry(key).or_insert_with(fresh)
    }

    /// Why no session can be started, if so.
    pub(super) fn refusal(&mut self, name: &str) -> Option<String> {
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
    pub(super) fn pick(&mut self, key: &Key) -> Option<&mut Member> {
        let room = self.config.sessions_per_process;
        self.members
            .values_mut()
            .filter(|m| m.key == *key && !m.retired && !m.process.is_ending() && m.sessions() < room)
            .filter(|m| room > 1 || !m.served)
            .min_by_key(|member| member.sessions())
    }

    /// Whether one more session can have a process of its own, now or as soon
    /// as a spare has made room or one that is ending has gone.
    pub(super) fn has_place(&self) -> bool {
        let busy = self.members.values().filter(|m| m.sessions() > 0 && !m.process.is_ending()).count();
        let waiting: usize = self.keys.values().map(|interest| interest.waiting.len()).sum();
        busy + waiting < self.config.max
    }

    /// A key that someone waits for without a process being on its way, if
    /// one more may be started; ends the spare of another key if that is what
    /// it takes.
    pub(super) fn wanted(&mut self) -> Option<Key> {
        let (key, _) = self.keys.iter().find(|(key, i)| i.waiting.len() > self.coming(key))?;
        let key = key.clone();
        if self.program.is_err() {
            return None;
        }
        if self.members.len() + self.starting.len() >= self.config.max {
            let oldest = self.members.values().filter(|m| m.is_spare()).min_by_key(|m| m.idle_since)?;
            oldest.process.stop(Cause::Asked("its place is needed for a session"));
        }
        Some(key)
    }

    /// How many processes that may serve a key are starting.
    pub(super) fn coming(&self, key: &Key) -> usize {
        let current = |s: &&Starting| s.key == *key && Arc::ptr_eq(&s.config, &self.config);
        self.starting.values().filter(current).count()
    }

    /// Tells everyone who waits why they wait in vain.
    pub(super) fn refuse_waiting(&mut self, why: &str) {
        for waiting in self.keys.values_mut().flat_map(|interest| interest.waiting.drain(..)) {
            waiting.send(Err(Unavailable(why.to_string()))).ok();
        }
    }

    pub(super) fn welcome(
        &mut self,
        id: Uuid,
        starting: Starting,
        process: Arc<Process>,
        stamp: Option<Stamp>,
        released: &Arc<Notify>,
    ) {
        // It may have been started before a reload.
        let retired = !Arc::ptr_eq(&starting.config, &self.config);
        if !retired {
            self.hello = Some(process.hello.clone());
        }
        for waiting in self.hello_waiters.drain(..) {
            waiting.send(Some(process.hello.clone())).ok();
        }
        let mut member = Member {
            process,
            key: starting.key,
            sessions: Arc::default(),
            served: false,
            retired,
            idle_since: Instant::now(),
            stamp,
        };
        // Some who waited may have gone meanwhile; a lease that comes back
        // unused must not spend the process.
        let interest = self.interest(member.key.clone());
        interest.waiting.retain(|waiting| !waiting.is_closed());
        if !retired && let Some(waiting) = interest.waiting.pop_front() {
            interest.leased = Some(Instant::now());
            waiting.send(Ok(member.lease(released))).ok();
        }
        self.members.insert(id, member);
    }

    pub(super) fn crashed(&mut self, exit: &Exit) {
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
            return self.refuse_waiting(&exit.to_string());
        }
        let doubled = restart.backoff.saturating_mul(1 << n.saturating_sub(1).min(16));
        let pause = jitter(doubled.min(restart.within));
        info!(agent = %exit.agent, pause_ms = pause.as_millis() as u64, "agent will be started again");
        self.backoff_until = Some(now + pause);
    }

    /// Lets no process take another session; idle ones end.
    pub(super) fn retire_all(&mut self) {
        self.members.values_mut().for_each(|member| member.retired = true);
    }

    /// The same for processes whose program's file was replaced.
    pub(super) fn retire_replaced(&mut self) {
        let Ok(program) = &self.program else { return };
        let current = stamp(program);
        for member in self.members.values_mut().filter(|member| member.stamp != current) {
            member.retired = true;
        }
    }

    pub(super) fn end_spent(&mut self, now: Instant) {
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
            } else if member.retired {
                member.process.stop(Cause::Asked("its configuration or program has changed"));
            } else if !wanted && now.duration_since(member.idle_since) >= idle {
                member.process.stop(Cause::Asked("nobody has used it for a while"));
            } else if now.duration_since(member.process.started) >= age {
                member.process.stop(Cause::Asked("it is old"));
            }
        }
        for interest in self.keys.values_mut() {
            interest.waiting.retain(|waiting| !waiting.is_closed());
        }
        self.keys.retain(|_, i| i.configured || !i.waiting.is_empty() || now.duration_since(i.used) < idle);
    }

    /// Keys for which a spare should be started now.
    pub(super) fn missing(&self, now: Instant) -> Vec<Key> {
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
            if !interest.waiting.is_empty() || interest.refill_at().is_some_and(|at| at > now) {
                continue;
            }
            let ready = self.members.values().filter(|m| m.key == *key && m.is_spare() && !m.served).count();
            for _ in ready + self.coming(key)..self.config.warm {
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
    pub(super) fn wakes(&self) -> impl Iterator<Item = Instant> {
        let idle = self.config.idle_timeout;
        let ages = self.members.values().filter(|m| m.is_spare());
        let ages =
            ages.flat_map(move |m| [m.process.started + self.config.warm_max_age, m.idle_since + idle]);
        let refills = self.keys.values().filter_map(Interest::refill_at);
        let uses = self.keys.values().filter(|i| !i.configured).map(move |i| i.used + idle);
        self.backoff_until.into_iter().chain(ages).chain(refills).chain(uses)
    }

    pub(super) fn status(&self, name: &Arc<str>, is_default: bool) -> AgentStatus {
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
        let starting = self.starting.iter().map(|(id, starting)| ProcessStatus {
            id: *id,
            pid: 0,
            state: ProcessState::Starting,
            started: starting.since,
            sessions: 0,
            cwd: starting.key.cwd.clone(),
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
    pub(super) fn lease(&mut self, released: &Arc<Notify>) -> Lease {
        self.served = true;
        self.sessions.fetch_add(1, Ordering::AcqRel);
        Lease { process: self.process.clone(), sessions: self.sessions.clone(), released: released.clone() }
    }
}

pub(super) fn stamp(program: &Path) -> Option<Stamp> {
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
