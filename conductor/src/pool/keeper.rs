//! The task that owns the pool's state.
//!
//! It never waits for a process, nor for a disk that secrets are on: starting a process
//! and watching for its end happen in a task per process, and looking whether secrets
//! have changed in a task per look, which report here.

use std::{collections::BTreeMap, panic::resume_unwind, path::PathBuf, sync::Arc};

use tokio::{
    sync::{Notify, Semaphore, mpsc, oneshot, watch},
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;
use tracing::info;
use uuid::Uuid;

use super::{
    AgentStatus, Ask, Hellos, Key, Prepared, Restarted, Unavailable,
    kind::{Kind, Starting, program_stamp},
    line::Line,
    order::{self, Means, Order, Outcome},
    places::{LINE, Waiter},
};
use crate::{
    acp::WorkspaceCapabilities,
    agent::{Cause, Exit},
    config::{self, Config, Secrets},
    contain::Premises,
    journal::Journal,
    secrets::{NoSecrets, Stamp, Vault},
    tasks::Tasks,
};

/// Reports of processes that may wait; reporters wait when it is full.
const REPORTS: usize = 256;

pub(super) struct Keeper {
    config: Arc<Config>,
    premises: Premises,
    vault: Vault,
    journal: Journal,
    tasks: Tasks,
    publish: watch::Sender<Arc<Vec<AgentStatus>>>,
    kinds: BTreeMap<Arc<str>, Kind>,
    /// Limits how many processes start at once.
    tokens: Arc<Semaphore>,
    /// Requests that may wait for a look at secrets: as many as may stand in a line.
    looks: Arc<Semaphore>,
    /// A lease was given back, or somebody waits no longer.
    released: Arc<Notify>,
    reports: mpsc::Sender<Report>,
    reported: Option<mpsc::Receiver<Report>>,
    /// Nothing is to be started any more.
    stopping: CancellationToken,
}

enum Report {
    Looked { waiter: Waiter, seen: Result<Stamp, NoSecrets> },
    Started { id: Uuid, outcome: Outcome },
    Exited { id: Uuid, exit: Arc<Exit> },
}

impl Keeper {
    pub(super) fn new(
        config: &Arc<Config>,
        premises: Premises,
        vault: Vault,
        journal: Journal,
        tasks: Tasks,
        publish: watch::Sender<Arc<Vec<AgentStatus>>>,
        released: Arc<Notify>,
    ) -> Self {
        let (reports, reported) = mpsc::channel(REPORTS);
        let tokens = Arc::new(Semaphore::new(config.service.parallel_spawns));
        let mut keeper = Self {
            config: config.clone(),
            premises,
            vault,
            journal,
            tasks,
            publish,
            kinds: BTreeMap::new(),
            tokens,
            looks: Arc::new(Semaphore::new(LINE)),
            released,
            reports,
            reported: Some(reported),
            stopping: CancellationToken::new(),
        };
        keeper.apply(config);
        keeper
    }

    pub(super) async fn run(mut self, mut asked: mpsc::Receiver<Ask>) {
        let Some(mut reported) = self.reported.take() else { return };
        let released = self.released.clone();
        loop {
            let now = Instant::now();
            self.housekeep(now);
            self.show();
            let is_stopping = self.stopping.is_cancelled();
            if is_stopping && self.kinds.values().all(|k| k.members.is_empty() && k.starting.is_empty()) {
                return;
            }
            let wake = self.next_wake(now);
            tokio::select! {
                Some(report) = reported.recv() => self.hear(report),
                ask = asked.recv(), if !is_stopping => match ask {
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
            Ask::Lease(waiter) => self.lease(waiter),
            Ask::Warm { key } => {
                if let Some(kind) = self.kinds.get_mut(&key.agent) {
                    kind.interest(key).used = Instant::now();
                }
            }
            Ask::Hello(waiter) => self.hello(waiter),
            Ask::Restart { agent, force, reply } => {
                reply.send(self.restart(&agent, force)).ok();
            }
            Ask::Replace { agent, user } => {
                if let Some(kind) = self.kinds.get_mut(&*agent) {
                    kind.retire_those_of(&user);
                }
            }
            Ask::Prepare { key, reply } => self.prepare(key, reply),
            Ask::Reload { config } => self.apply(&config),
            Ask::Stop => self.stop(),
        }
    }

    /// Takes a request, for which it may have to be looked first whether its user's
    /// secrets are still the same.
    fn lease(&mut self, waiter: Waiter) {
        let name = waiter.key.agent.clone();
        let Some(kind) = self.kinds.get_mut(&name) else { return waiter.refuse(unknown(&name)) };
        if let Some(why) = kind.refusal(&waiter.key) {
            return waiter.refuse(Unavailable::Failed(why));
        }
        let Some(person) = waiter.key.person.clone().filter(|_| kind.config.secrets != Secrets::Off) else {
            return self.queue(waiter, Stamp::default());
        };
        let Ok(place) = self.looks.clone().try_acquire_owned() else {
            let why = format!("{LINE} requests wait for secrets of their users already; try again later");
            return waiter.refuse(Unavailable::Full(why));
        };
        let (agent, vault, reports) = (kind.config.clone(), self.vault.clone(), self.reports.clone());
        let stopping = self.stopping.clone();
        self.tasks.start("secrets look", async move {
            // Whoever waits is told by the end of their wait that the service stops.
            let looked = stopping.run_until_cancelled_owned(vault.stamp(&agent, &person)).await;
            drop(place);
            let Some(seen) = looked else { return };
            reports.send(Report::Looked { waiter, seen }).await.ok();
        });
    }

    /// Puts a request into the line, which `housekeep` serves.
    fn queue(&mut self, waiter: Waiter, secrets: Stamp) {
        let name = waiter.key.agent.clone();
        let Some(kind) = self.kinds.get_mut(&name) else { return waiter.refuse(unknown(&name)) };
        kind.interest(waiter.key.clone()).used = Instant::now();
        kind.retire_replaced();
        kind.retire_outdated(&waiter.key, secrets);
        kind.line.push(&waiter.user.clone(), waiter);
    }

    /// Answers from what is known, or puts the request into the line.
    fn hello(&mut self, waiter: Waiter) {
        let name = waiter.key.agent.clone();
        let Some(kind) = self.kinds.get_mut(&name) else { return waiter.refuse(unknown(&name)) };
        if let Some(why) = kind.unusable(&name) {
            return waiter.refuse(Unavailable::Failed(why));
        }
        if let Some(hello) = kind.hello(&waiter.key) {
            return waiter.tell(&hello);
        }
        if let Some(why) = kind.quarantine(&waiter.key).filter(|_| !waiter.passes_quarantine()) {
            return waiter.refuse(Unavailable::Failed(why));
        }
        kind.line.push(&waiter.user.clone(), waiter);
    }

    fn restart(&mut self, name: &str, force: bool) -> Option<Restarted> {
        let kind = self.kinds.get_mut(name)?;
        let quarantine_lifted = kind.health.forgive_all();
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
        let gives_the_same = self.config.gives_the_same(config);
        self.vault.change(&config.secrets);
        self.config = config.clone();
        self.tokens = Arc::new(Semaphore::new(config.service.parallel_spawns));
        for (name, kind) in &mut self.kinds {
            let still = config.agents.get(&**name);
            kind.removed = still.is_none();
            if still != Some(&*kind.config) || !gives_the_same {
                kind.retire_all();
            }
        }
        for (name, agent) in &config.agents {
            let name: Arc<str> = name.as_str().into();
            let same = self.kinds.get(&name).is_some_and(|kind| *kind.config == *agent);
            let kind = self.kinds.entry(name.clone()).or_insert_with(|| Kind::new(agent));
            if !same {
                kind.config = Arc::new(agent.clone());
                kind.health.forgive_all();
                kind.hellos = Arc::new(Hellos::new(agent.is_personal()));
                kind.keys.retain(|_, interest| !interest.waiting.is_empty());
            }
            kind.secrets_age = (agent.secrets != Secrets::Off).then_some(config.secrets.max_age);
            kind.resolve(&name);
            for cwd in &agent.warm_keys {
                let capabilities = WorkspaceCapabilities::ALL;
                let key = Key {
                    agent: name.clone(),
                    cwd: cwd.clone(),
                    more: Vec::new(),
                    capabilities,
                    person: None,
                };
                kind.interest(key).configured = true;
            }
        }
    }

    fn stop(&mut self) {
        self.stopping.cancel();
        for kind in self.kinds.values_mut() {
            for member in kind.members.values() {
                member.process.stop(Cause::Asked("the service is stopping"));
            }
            // Dropping the replies tells whoever waits.
            kind.keys.clear();
            kind.line = Line::new();
        }
    }

    /// Makes ready what a process needs, and leaves the start to whoever asks.
    fn prepare(&mut self, key: Key, reply: oneshot::Sender<Result<Prepared, Unavailable>>) {
        let name = key.agent.clone();
        let Some(kind) = self.kinds.get_mut(&name) else {
            reply.send(Err(unknown(&name))).ok();
            return;
        };
        // Not being logged in may be why it is quarantined.
        let program = match (kind.removed, &kind.program) {
            (false, Ok(program)) => program.clone(),
            _ => {
                let why = kind.refusal(&key).unwrap_or_default();
                reply.send(Err(Unavailable::Failed(why))).ok();
                return;
            }
        };
        let agent = kind.config.clone();
        let order = self.order(key, program, agent);
        let (vault, stopping) = (self.vault.clone(), self.stopping.clone());
        self.tasks.start("prepare", async move {
            let prepared = match stopping.run_until_cancelled(order.belongings(&vault)).await {
                Some(Ok(own)) => order.prepare(own.as_ref()),
                Some(Err(cause)) => Err(cause),
                None => return,
            };
            let prepared = match prepared {
                Ok(launch) => Ok(Prepared { launch, agent: order.agent }),
                Err(cause) => Err(Unavailable::Failed(order.failed(cause).to_string())),
            };
            reply.send(prepared).ok();
        });
    }

    fn order(&self, key: Key, program: PathBuf, agent: Arc<config::Agent>) -> Order {
        let git = key.person.as_ref().and_then(|person| self.config.git_identity(&person.user));
        Order { key, program, agent, premises: self.premises.clone(), git }
    }

    /// Starts a process for a key in a task of its own.
    fn start(&mut self, key: Key) {
        let Some(kind) = self.kinds.get(&key.agent) else { return };
        let Ok(program) = kind.program.clone() else { return };
        let id = Uuid::now_v7();
        let config = kind.config.clone();
        let order = self.order(key, program, config.clone());
        let (key, program) = (order.key.clone(), program_stamp(&order.program));
        let starting = Starting { key, since: Instant::now(), config, program, seen: None, outdated: false };
        if let Some(kind) = self.kinds.get_mut(&order.key.agent) {
            kind.starting.insert(id, starting);
        }
        let means = Means {
            vault: self.vault.clone(),
            tokens: self.tokens.clone(),
            stall_timeout: self.config.service.stall_timeout,
            journal: self.journal.clone(),
            tasks: self.tasks.clone(),
            unwanted: self.stopping.clone(),
        };
        let reports = self.reports.clone();
        self.tasks.start("process watch", async move {
            let (outcome, panic) = order.outcome(means).await;
            let process = outcome.as_ref().ok().map(|(process, _)| process.clone());
            reports.send(Report::Started { id, outcome }).await.ok();
            if let Some(panic) = panic {
                // It is seen by whoever runs tasks.
                resume_unwind(panic);
            }
            if let Some(process) = process {
                let exit = process.exited().await;
                reports.send(Report::Exited { id, exit }).await.ok();
            }
        });
    }

    fn hear(&mut self, report: Report) {
        match report {
            Report::Looked { .. } if self.stopping.is_cancelled() => {}
            Report::Looked { waiter, seen: Ok(seen) } => self.queue(waiter, seen),
            Report::Looked { waiter, seen: Err(why) } => {
                let exit = order::failed(&waiter.key, Cause::NoSecrets(why.to_string()));
                info!(agent = %exit.agent, how = exit.summary(), "agent process was not started");
                waiter.refuse(Unavailable::Failed(exit.to_string()));
            }
            Report::Started { id, outcome } => {
                let Some(kind) = self.kinds.values_mut().find(|kind| kind.starting.contains_key(&id)) else {
                    return;
                };
                let Some(starting) = kind.starting.remove(&id) else { return };
                match outcome {
                    Ok((process, secrets)) => {
                        if self.stopping.is_cancelled() {
                            process.stop(Cause::Asked("the service is stopping"));
                        }
                        kind.welcome(id, starting, (process, secrets), &self.released);
                    }
                    // That is no fault of the agent, and would be so again.
                    Err(exit) if !exit.is_crash() => {
                        info!(agent = %exit.agent, how = exit.summary(), "agent process was not started");
                        for waiter in kind.keys.remove(&starting.key).into_iter().flat_map(|i| i.waiting) {
                            waiter.refuse(Unavailable::Failed(exit.to_string()));
                        }
                    }
                    Err(exit) => {
                        kind.crashed(&starting.key, &exit);
                        let coming = kind.coming(&starting.key);
                        let waiting = &mut kind.interest(starting.key).waiting;
                        if waiting.len() > coming
                            && let Some(first) = waiting.pop_front()
                        {
                            first.refuse(Unavailable::Failed(exit.to_string()));
                        }
                    }
                }
            }
            Report::Exited { id, exit } => {
                let Some(kind) = self.kinds.values_mut().find(|kind| kind.members.contains_key(&id)) else {
                    return;
                };
                let Some(member) = kind.members.remove(&id) else { return };
                if exit.is_crash() {
                    kind.restarts += 1;
                    kind.crashed(&member.key, &exit);
                } else {
                    kind.note_exit(&member.key, &exit);
                }
            }
        }
    }

    /// Ends what is spent, old or unwanted, and starts what is missing.
    fn housekeep(&mut self, now: Instant) {
        let mut missing = Vec::new();
        for (name, kind) in &mut self.kinds {
            kind.end_spent(now);
            kind.refuse_hopeless();
            kind.serve_line(name, now, &self.released);
        }
        while let Some(key) = self.kinds.values_mut().find_map(Kind::wanted) {
            self.start(key);
        }
        if !self.stopping.is_cancelled() {
            missing.extend(self.kinds.values().flat_map(|kind| kind.missing(now)));
        }
        self.kinds.retain(|_, kind| !kind.removed || !kind.members.is_empty() || !kind.starting.is_empty());
        for key in missing {
            self.start(key);
        }
    }

    /// The first moment after `now` at which something may have to be done. What
    /// was due by then has been.
    fn next_wake(&self, now: Instant) -> Option<Instant> {
        self.kinds.values().flat_map(Kind::wakes).filter(|wake| *wake > now).min()
    }

    /// Publishes the state for others to see.
    pub(super) fn show(&self) {
        let all = self.kinds.iter().filter(|(_, k)| !k.removed);
        let all = all.map(|(name, kind)| kind.status(name, **name == *self.config.default)).collect();
        self.publish.send_replace(Arc::new(all));
    }
}

fn unknown(agent: &str) -> Unavailable {
    Unavailable::Failed(format!("there is no agent `{agent}`; `conductor agents` lists them"))
}
