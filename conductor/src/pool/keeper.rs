//! The task that owns the pool's state.
//!
//! It never waits for a process: starting one and watching for its end happen
//! in a task per process, which reports here.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use tokio::{
    sync::{Notify, Semaphore, mpsc, oneshot, watch},
    time::{Instant, sleep_until},
};
use tracing::info;
use uuid::Uuid;

use super::{
    AgentStatus, Ask, Key, Lease, Restarted, Unavailable,
    kind::{Kind, Stamp, Starting, stamp},
};
use crate::{
    acp::{AgentHello, WorkspaceCapabilities},
    agent::{Cause, Exit, Process, Spec, process},
    config::Config,
    journal::Journal,
    tasks::Tasks,
};

/// Reports of processes that may wait; reporters wait when it is full.
const REPORTS: usize = 256;

pub(super) struct Keeper {
    config: Arc<Config>,
    homes: PathBuf,
    journal: Journal,
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

enum Report {
    Started { id: Uuid, result: Result<Arc<Process>, Arc<Exit>>, stamp: Option<Stamp> },
    Exited { id: Uuid, exit: Arc<Exit> },
}

impl Keeper {
    pub(super) fn new(
        config: &Arc<Config>,
        homes: PathBuf,
        journal: Journal,
        tasks: Tasks,
        publish: watch::Sender<Arc<Vec<AgentStatus>>>,
    ) -> Self {
        let (reports, reported) = mpsc::channel(REPORTS);
        let tokens = Arc::new(Semaphore::new(config.service.parallel_spawns));
        let mut keeper = Self {
            config: config.clone(),
            homes,
            journal,
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
        let interest = kind.interest(key.clone());
        interest.used = Instant::now();
        interest.leased = Some(interest.used);
        kind.retire_replaced();
        if let Some(member) = kind.pick(&key) {
            reply.send(Ok(member.lease(&self.released))).ok();
            return;
        }
        if !kind.has_place() {
            let why = format!(
                "all {} processes of agent `{}` are in use; close a session, or raise agents.{}.max",
                kind.config.max, key.agent, key.agent
            );
            reply.send(Err(Unavailable(why))).ok();
            return;
        }
        // What is missing is started by `housekeep`, once there is room.
        kind.interest(key).waiting.push_back(reply);
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
        for member in kind.members.values_mut() {
            member.retired = true;
            if force || member.is_spare() {
                member.process.stop(Cause::Asked("its agent is restarted"));
                stopped += 1;
            }
        }
        Some(Restarted { stopped, quarantine_lifted })
    }

    /// Takes over a configuration: new agents appear, removed ones go with
    /// their last process, changed ones lose their spares and quarantine, and
    /// their busy processes take no more sessions.
    fn apply(&mut self, config: &Arc<Config>) {
        self.config = config.clone();
        self.tokens = Arc::new(Semaphore::new(config.service.parallel_spawns));
        for (name, kind) in &mut self.kinds {
            let still = config.agents.get(&**name);
            kind.removed = still.is_none();
            if still != Some(&*kind.config) {
                kind.retire_all();
            }
        }
        for (name, agent) in &config.agents {
            let name: Arc<str> = name.as_str().into();
            let same = self.kinds.get(&name).is_some_and(|kind| *kind.config == *agent);
            let kind = self.kinds.entry(name.clone()).or_insert_with(|| Kind::new(agent));
            if !same {
                kind.config = Arc::new(agent.clone());
                kind.quarantine = None;
                kind.crashes.clear();
                kind.backoff_until = None;
                kind.hello = None;
                kind.keys.retain(|_, interest| !interest.waiting.is_empty());
            }
            kind.resolve(&name);
            for cwd in &agent.warm_keys {
                let capabilities = WorkspaceCapabilities::ALL;
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
        let (since, config) = (Instant::now(), kind.config.clone());
        kind.starting.insert(id, Starting { key: key.clone(), since, config });
        let (config, homes) = (kind.config.clone(), self.homes.clone());
        let (tokens, tasks, reports) = (self.tokens.clone(), self.tasks.clone(), self.reports.clone());
        let stall_timeout = self.config.service.stall_timeout;
        let journal = Some(self.journal.clone());
        self.tasks.start("process watch", async move {
            let permit = tokens.acquire_owned().await;
            let stamp = stamp(&program);
            let cwd = config.cwd.clone().unwrap_or_else(|| key.cwd.clone());
            let failed = |cause| {
                let agent = key.agent.clone();
                Err(Arc::new(Exit { agent, pid: 0, cause, status: None, stderr: String::new() }))
            };
            let result = match process::Launch::prepare(&key.agent, &config, program, cwd.clone(), &homes) {
                _ if !cwd.is_dir() => failed(Cause::NoDirectory(cwd)),
                Ok(launch) => {
                    let spec = Spec {
                        agent: key.agent.clone(),
                        launch,
                        capabilities: key.capabilities,
                        start_timeout: config.start_timeout,
                        stall_timeout,
                        journal,
                    };
                    Process::start(spec, &tasks).await
                }
                Err(error) => failed(Cause::NotStarted(error.to_string())),
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
                let Some(starting) = kind.starting.remove(&id) else { return };
                match result {
                    Ok(process) => {
                        if self.stopping {
                            process.stop(Cause::Asked("the service is stopping"));
                        }
                        kind.welcome(id, starting, process, stamp, &self.released);
                    }
                    // That is no fault of the agent, and would be so again.
                    Err(exit) if !exit.is_crash() => {
                        info!(agent = %exit.agent, how = exit.summary(), "agent process was not started");
                        for waiting in kind.keys.remove(&starting.key).into_iter().flat_map(|i| i.waiting) {
                            waiting.send(Err(Unavailable(exit.to_string()))).ok();
                        }
                        kind.hello_waiters.clear();
                    }
                    Err(exit) => {
                        kind.crashed(&exit);
                        let coming = kind.coming(&starting.key);
                        let waiting = &mut kind.interest(starting.key).waiting;
                        if waiting.len() > coming
                            && let Some(first) = waiting.pop_front()
                        {
                            first.send(Err(Unavailable(exit.to_string()))).ok();
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
        for (name, kind) in &mut self.kinds {
            kind.end_spent(now);
            // A reload may have taken away what they wait for.
            if kind.keys.values().any(|interest| !interest.waiting.is_empty())
                && let Some(why) = kind.refusal(name)
            {
                kind.refuse_waiting(&why);
            }
        }
        while let Some(key) = self.kinds.values_mut().find_map(Kind::wanted) {
            self.start(key);
        }
        if !self.stopping {
            missing.extend(self.kinds.values().flat_map(|kind| kind.missing(now)));
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
