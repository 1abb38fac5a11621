//! One agent of the configuration as the pool knows it: who wants its
//! processes, which there are, how often it crashed. No I/O but looking at its
//! program's file.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, SystemTime},
};

use tokio::{sync::Notify, time::Instant};
use uuid::Uuid;

use super::{
    AgentState, AgentStatus, Hellos, Key, Lease, ProcessState, ProcessStatus,
    health::{self, Health, Ward},
    line::Line,
    places::{Waiter, Wish},
};
use crate::{
    acp::AgentHello,
    agent::{Cause, Exit, Process, process},
    config,
    secrets::Stamp,
};

/// An agent of the configuration, with everything the pool knows of it.
pub(super) struct Kind {
    pub(super) config: Arc<config::Agent>,
    pub(super) program: Result<PathBuf, String>,
    /// How long the secrets that its processes are given are good, if they are given any.
    pub(super) secrets_age: Option<Duration>,
    /// Not in the configuration any more; goes with its last process.
    pub(super) removed: bool,
    /// What its processes have said in their handshakes.
    pub(super) hellos: Arc<Hellos>,
    pub(super) keys: HashMap<Key, Interest>,
    /// Those who wait for a place.
    pub(super) line: Line<Waiter>,
    pub(super) starting: BTreeMap<Uuid, Starting>,
    pub(super) members: BTreeMap<Uuid, Member>,
    pub(super) health: Health,
    pub(super) restarts: u64,
    pub(super) quarantines: u64,
    pub(super) last_exit: String,
    /// The same for everybody.
    last_exit_told: String,
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
    /// Those who have a place, until their process is there.
    pub(super) waiting: VecDeque<Waiter>,
}

/// A process whose handshake is not finished.
pub(super) struct Starting {
    pub(super) key: Key,
    pub(super) since: Instant,
    pub(super) config: Arc<config::Agent>,
    pub(super) program: ProgramStamp,
    /// What the secrets looked like to whoever asked for such a process since: it may have
    /// been given others.
    pub(super) seen: Option<Stamp>,
    /// What it is given is not what it would be given now.
    pub(super) outdated: bool,
}

pub(super) struct Member {
    pub(super) process: Arc<Process>,
    pub(super) key: Key,
    /// How many sessions each user has at it.
    pub(super) sessions: BTreeMap<Arc<str>, Arc<AtomicUsize>>,
    /// It has served a session: with one session per process, it is spent.
    pub(super) served: bool,
    /// Takes no more sessions: its configuration or program is not the one
    /// that is in force.
    pub(super) retired: bool,
    pub(super) idle_since: Instant,
    pub(super) program: ProgramStamp,
    /// What the secrets looked like that it was given.
    pub(super) secrets: Stamp,
}

/// Changes when the program's file is replaced.
pub(super) type ProgramStamp = Option<(u64, u64, Option<SystemTime>)>;

impl Interest {
    fn refill_at(&self) -> Option<Instant> {
        self.leased.map(|at| at + REFILL_PAUSE)
    }
}

impl Member {
    pub(super) fn sessions(&self) -> usize {
        self.sessions.values().map(|of_user| of_user.load(Ordering::Acquire)).sum()
    }

    /// Those who have sessions at it.
    pub(super) fn users(&self) -> impl Iterator<Item = &Arc<str>> {
        self.sessions
            .iter()
            .filter(|(_, sessions)| sessions.load(Ordering::Acquire) > 0)
            .map(|(user, _)| user)
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
            secrets_age: None,
            removed: false,
            hellos: Arc::new(Hellos::new(agent.is_personal())),
            keys: HashMap::new(),
            line: Line::new(),
            starting: BTreeMap::new(),
            members: BTreeMap::new(),
            health: Health::default(),
            restarts: 0,
            quarantines: 0,
            last_exit: String::new(),
            last_exit_told: String::new(),
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

    /// Why no session with this key can be started, if so.
    pub(super) fn refusal(&mut self, key: &Key) -> Option<String> {
        self.unusable(&key.agent).or_else(|| self.quarantine(key))
    }

    /// Why no process can be started at all, if so.
    pub(super) fn unusable(&mut self, name: &str) -> Option<String> {
        if self.removed {
            return Some(format!("agent `{name}` is not in the configuration any more"));
        }
        if self.program.is_err() {
            // It may have been installed meanwhile.
            self.resolve(name);
        }
        let why = self.program.as_ref().err()?;
        Some(format!("agent `{name}` is not available: {why}"))
    }

    /// Why none is started for whoever has this key, if they have crashed too often.
    pub(super) fn quarantine(&self, key: &Key) -> Option<String> {
        let name = &*key.agent;
        let reason = self.health.quarantine(&health::ward(&self.config, key))?;
        Some(format!(
            "agent `{name}` is quarantined: {reason}\nOnce that is mended: `conductor agents restart {name}`"
        ))
    }

    /// What a process with this key has said, or would, if that is known.
    pub(super) fn hello(&self, key: &Key) -> Option<Arc<AgentHello>> {
        let ward = health::ward(&self.config, key);
        let is_theirs = |m: &&Member| !m.retired && health::ward(&self.config, &m.key) == ward;
        let of_member = || self.members.values().find(is_theirs).map(|m| m.process.hello.clone());
        self.hellos.of_ward(&ward).cloned().or_else(of_member)
    }

    pub(super) fn welcome(
        &mut self,
        id: Uuid,
        starting: Starting,
        (process, secrets): (Arc<Process>, Stamp),
        released: &Arc<Notify>,
    ) {
        // It may have been started before a reload.
        let retired = starting.outdated
            || starting.seen.is_some_and(|seen| seen != secrets)
            || !Arc::ptr_eq(&starting.config, &self.config);
        if !retired {
            self.learn(health::ward(&self.config, &starting.key), &process.hello);
        }
        let mut member = Member {
            process,
            key: starting.key,
            sessions: BTreeMap::new(),
            served: false,
            retired,
            idle_since: Instant::now(),
            program: starting.program,
            secrets,
        };
        // Some who waited may have gone meanwhile; a lease that comes back
        // unused must not spend the process.
        let interest = self.interest(member.key.clone());
        interest.waiting.retain(|waiter| !waiter.is_gone());
        if !retired && let Some(waiter) = interest.waiting.pop_front() {
            interest.leased = Some(Instant::now());
            member.serve(waiter, released);
        }
        self.members.insert(id, member);
    }

    /// Keeps what a process has said, and tells those who wait for just that.
    fn learn(&mut self, ward: Ward, hello: &Arc<AgentHello>) {
        self.tell_waiting(&ward, hello);
        Arc::make_mut(&mut self.hellos).learn(ward, hello.clone());
    }

    /// Notes how a process has ended; not what one user's own has said.
    pub(super) fn note_exit(&mut self, key: &Key, exit: &Exit) {
        (self.last_exit, self.last_exit_told) = match key.person {
            None => (exit.summary(), health::told_to_all(exit)),
            Some(_) => {
                let told = if exit.is_crash() { "ended unasked; its user was told how" } else { "was ended" };
                (told.to_owned(), told.to_owned())
            }
        };
    }

    /// A process with this key, or the start of one, has ended unasked.
    pub(super) fn crashed(&mut self, key: &Key, exit: &Exit) {
        self.note_exit(key, exit);
        let ward = health::ward(&self.config, key);
        if self.health.crashed(ward.clone(), exit, &self.config.restart) {
            self.quarantines += 1;
            let config = self.config.clone();
            let is_meant =
                |waiter: &Waiter| health::ward(&config, &waiter.key) == ward && !waiter.passes_quarantine();
            self.refuse_waiting(&exit.to_string(), is_meant);
        }
    }

    /// Lets no process take another session; idle ones end.
    pub(super) fn retire_all(&mut self) {
        self.members.values_mut().for_each(|member| member.retired = true);
        self.starting.values_mut().for_each(|starting| starting.outdated = true);
    }

    /// The same for processes whose program's file was replaced.
    pub(super) fn retire_replaced(&mut self) {
        let Ok(program) = &self.program else { return };
        let current = program_stamp(program);
        for member in self.members.values_mut().filter(|member| member.program != current) {
            member.retired = true;
        }
    }

    /// The same for those with a key whose person has other secrets by now.
    pub(super) fn retire_outdated(&mut self, key: &Key, seen: Stamp) {
        for member in self.members.values_mut().filter(|m| m.key == *key && m.secrets != seen) {
            member.retired = true;
        }
        for starting in self.starting.values_mut().filter(|s| s.key == *key) {
            starting.seen = Some(seen);
        }
    }

    /// The same for all but those that run for others alone.
    pub(super) fn retire_those_of(&mut self, user: &str) {
        let is_theirs = |key: &Key| key.person.as_ref().is_none_or(|person| person.user == user);
        for member in self.members.values_mut().filter(|member| is_theirs(&member.key)) {
            member.retired = true;
        }
        for starting in self.starting.values_mut().filter(|starting| is_theirs(&starting.key)) {
            starting.outdated = true;
        }
        self.health.forgive(user);
    }

    pub(super) fn end_spent(&mut self, now: Instant) {
        let single = self.config.sessions_per_process == 1;
        let (idle, age) = (self.config.idle_timeout, self.max_age());
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
            interest.waiting.retain(|waiter| !waiter.is_gone());
        }
        self.health.forget_old(now, self.config.restart.within);
        self.keys.retain(|_, i| i.configured || !i.waiting.is_empty() || now.duration_since(i.used) < idle);
    }

    /// How old a spare may get.
    fn max_age(&self) -> Duration {
        self.secrets_age.map_or(self.config.warm_max_age, |age| age.min(self.config.warm_max_age))
    }

    /// Keys for which a spare should be started now.
    pub(super) fn missing(&self, now: Instant) -> Vec<Key> {
        if self.removed || self.program.is_err() {
            return Vec::new();
        }
        let mut total = self.members.len() + self.starting.len();
        let mut spares =
            self.members.values().filter(|m| m.is_spare() && !m.served).count() + self.starting.len();
        let mut missing = Vec::new();
        for (key, interest) in &self.keys {
            // Whoever waits comes first; the spare is started once they have
            // theirs.
            if !interest.waiting.is_empty()
                || interest.refill_at().is_some_and(|at| at > now)
                || self.health.is_resting(&health::ward(&self.config, key), now)
            {
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
        let ages = ages.flat_map(move |m| [m.process.started + self.max_age(), m.idle_since + idle]);
        let refills = self.keys.values().filter_map(Interest::refill_at);
        let uses = self.keys.values().filter(|i| !i.configured).map(move |i| i.used + idle);
        self.health.wakes().chain(ages).chain(refills).chain(uses).chain(self.line_wakes())
    }

    pub(super) fn status(&self, name: &Arc<str>, is_default: bool) -> AgentStatus {
        // What one user's processes said is not for others.
        let alone = match self.health.quarantined_users() {
            0 => String::new(),
            users => format!("quarantined for {users} of its users alone"),
        };
        let (state, reason) = match (&self.program, self.health.quarantine(&None)) {
            (Err(why), _) => (AgentState::Unavailable, why.clone()),
            (Ok(_), Some(reason)) => (AgentState::Quarantined, reason.to_owned()),
            (Ok(_), None) => (AgentState::Ready, alone),
        };
        let reason_told = match self.health.quarantine_told_to_all() {
            Some(told) if state == AgentState::Quarantined => told.to_owned(),
            _ => reason.clone(),
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
                users: member.users().cloned().collect(),
                sandbox: Some(member.process.sandbox.clone()),
            }
        });
        let starting = self.starting.iter().map(|(id, starting)| ProcessStatus {
            id: *id,
            pid: 0,
            state: ProcessState::Starting,
            started: starting.since,
            sessions: 0,
            cwd: starting.key.cwd.clone(),
            users: Vec::new(),
            sandbox: None,
        });
        let mut processes: Vec<ProcessStatus> = running.chain(starting).collect();
        processes.sort_by_key(|process| process.id);
        let words = std::iter::once(&self.config.command).chain(&self.config.args);
        AgentStatus {
            name: name.clone(),
            title: self.config.title.clone().unwrap_or_else(|| name.to_string()),
            state,
            reason,
            reason_told,
            command: words.map(String::as_str).collect::<Vec<_>>().join(" "),
            is_default,
            processes,
            restarts: self.restarts,
            quarantines: self.quarantines,
            last_exit: self.last_exit.clone(),
            last_exit_told: self.last_exit_told.clone(),
            max: self.config.max,
            max_per_user: self.config.max_per_user,
            waiting: self.line.len(),
            labels: self.config.labels.clone(),
            hellos: self.hellos.clone(),
        }
    }
}

impl Member {
    /// Gives whoever has waited what they have waited for.
    pub(super) fn serve(&mut self, waiter: Waiter, released: &Arc<Notify>) {
        let reply = match waiter.wish {
            Wish::Lease(reply) => reply,
            Wish::Hello(reply, _) => {
                reply.send(Ok(self.process.hello.clone())).ok();
                return;
            }
        };
        self.served = true;
        self.sessions.retain(|_, sessions| sessions.load(Ordering::Acquire) > 0);
        let sessions = self.sessions.entry(waiter.user).or_default().clone();
        sessions.fetch_add(1, Ordering::AcqRel);
        let lease = Lease { process: self.process.clone(), sessions, released: released.clone(), held: None };
        reply.send(Ok(lease)).ok();
    }
}

pub(super) fn program_stamp(program: &Path) -> ProgramStamp {
    // Our own binary is reached through a link that always names what runs.
    if program.starts_with("/proc") {
        return None;
    }
    let meta = fs::metadata(program).ok()?;
    Some((meta.dev(), meta.ino(), meta.modified().ok()))
}
