//! Who gets a place at an agent's processes, and who waits for one.
//!
//! A request first stands in the `line`. Once there is a place for it, it gets
//! a process that is there, or waits on for one that is started for it
//! (`Interest::waiting`); its place is then taken.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use tokio::{
    sync::{Notify, oneshot, watch},
    time::Instant,
};
use uuid::Uuid;

use super::{
    Key, Lease, Purpose, Unavailable,
    health::{self, Ward},
    kind::{Interest, Kind, Starting},
    line::Spot,
};
use crate::{acp::AgentHello, agent::Cause, config};

/// Requests that may wait for a place at one agent's processes: several for each
/// process of the default `max`. One more, and the user who has the most waiting
/// is refused the last of them.
pub(super) const LINE: usize = 256;

/// How long an editor's handshake waits for a place. It can be answered without, if with
/// less; an editor that waits for longer takes us for dead.
const GREETING_PATIENCE: Duration = Duration::from_secs(2);

/// Somebody who waits for a process.
pub(super) struct Waiter {
    pub(super) key: Key,
    pub(super) user: Arc<str>,
    pub(super) since: Instant,
    /// Where it stands in the line, from 1; 0 outside of it.
    position: usize,
    /// Told that as it changes.
    told: Option<watch::Sender<usize>>,
    pub(super) wish: Wish,
}

/// What somebody waits for.
pub(super) enum Wish {
    /// To use the process.
    Lease(oneshot::Sender<Result<Lease, Unavailable>>),
    /// To know what it says in its handshake.
    Hello(oneshot::Sender<Result<Arc<AgentHello>, Unavailable>>, Purpose),
}

impl Waiter {
    pub(super) fn new(key: Key, user: &str, told: Option<watch::Sender<usize>>, wish: Wish) -> Self {
        Self { key, user: user.into(), since: Instant::now(), position: 0, told, wish }
    }

    /// Whoever waited has gone.
    pub(super) fn is_gone(&self) -> bool {
        match &self.wish {
            Wish::Lease(reply) => reply.is_closed(),
            Wish::Hello(reply, _) => reply.is_closed(),
        }
    }

    /// Gets a process even from an agent in quarantine.
    pub(super) fn passes_quarantine(&self) -> bool {
        matches!(self.wish, Wish::Hello(_, Purpose::Login))
    }

    /// How long it waits for a place.
    fn patience(&self, agent: &config::Agent) -> Duration {
        match self.wish {
            Wish::Hello(_, Purpose::Greeting) => GREETING_PATIENCE.min(agent.queue_timeout),
            _ => agent.queue_timeout,
        }
    }

    fn stands(&mut self, position: usize) {
        if std::mem::replace(&mut self.position, position) != position
            && let Some(told) = &self.told
        {
            told.send_replace(position);
        }
    }

    pub(super) fn refuse(self, why: Unavailable) {
        match self.wish {
            Wish::Lease(reply) => drop(reply.send(Err(why))),
            Wish::Hello(reply, _) => drop(reply.send(Err(why))),
        }
    }

    /// Tells what it waits for, if that is all it waits for.
    pub(super) fn tell(self, hello: &Arc<AgentHello>) {
        if let Wish::Hello(reply, _) = self.wish {
            reply.send(Ok(hello.clone())).ok();
        }
    }
}

impl Interest {
    /// How many processes those who have a place need: one each, but all who only want to
    /// know what it says hear it from the first.
    fn needs(&self) -> usize {
        let leases = self.waiting.iter().filter(|waiter| matches!(waiter.wish, Wish::Lease(_)));
        leases.count().max(usize::from(!self.waiting.is_empty()))
    }
}

impl Kind {
    /// Gives places to those who are next, and refuses those who have waited too
    /// long or are too many.
    pub(super) fn serve_line(&mut self, name: &str, now: Instant, released: &Arc<Notify>) {
        if self.line.is_empty() {
            return;
        }
        self.line.take_if(Waiter::is_gone);
        while let Some((spot, process)) = self.next_in_line() {
            let Some(mut waiter) = self.line.serve(&spot) else { break };
            waiter.stands(0);
            let interest = self.interest(waiter.key.clone());
            (interest.used, interest.leased) = (now, Some(now));
            if process.is_none() {
                // What is missing is started by the keeper, once there is room.
                interest.waiting.push_back(waiter);
            } else if let Some(member) = process.and_then(|id| self.members.get_mut(&id)) {
                member.serve(waiter, released);
            }
        }
        self.refuse_overdue(name, now);
        while let Some(waiter) = self.line.take_surplus(LINE) {
            let why = format!(
                "{LINE} requests wait for a process of agent `{name}` already, most of them of user `{}`; \
                 try again later, or raise agents.{name}.max",
                waiter.user
            );
            waiter.refuse(Unavailable::Full(why));
        }
        for (position, spot) in (1..).zip(self.order()) {
            if let Some(waiter) = self.line.get_mut(&spot) {
                waiter.stands(position);
            }
        }
    }

    /// Who can be served, and the process if it is there.
    fn next_in_line(&self) -> Option<(Spot, Option<Uuid>)> {
        let (has_place, holdings) = (self.has_place(), self.holdings());
        self.order().into_iter().find_map(|spot| {
            let waiter = self.line.get(&spot)?;
            let has = holdings.get(&spot.user).copied().unwrap_or_default();
            let may_have_more = has < self.config.max_per_user;
            let is_place = has_place && may_have_more;
            let process = self.pick(waiter, is_place, may_have_more);
            (is_place || process.is_some()).then_some((spot, process))
        })
    }

    /// The least busy process that may take one more session of this user with
    /// this key: an idle one only if there is a place for it, and one that only
    /// others use only if the user may have more.
    fn pick(&self, waiter: &Waiter, is_place: bool, may_have_more: bool) -> Option<Uuid> {
        let room = self.config.sessions_per_process;
        self.members
            .iter()
            .filter(|(_, m)| m.sessions() < room && (room > 1 || !m.served))
            .filter(|(_, m)| m.key == waiter.key && !m.retired && !m.process.is_ending())
            .filter(|(_, m)| match m.sessions() {
                0 => is_place,
                _ => may_have_more || m.users().any(|user| *user == waiter.user),
            })
            .min_by_key(|(_, m)| m.sessions())
            .map(|(id, _)| *id)
    }

    /// Whether one more session can have a process of its own, now or as soon
    /// as a spare has made room or one that is ending has gone.
    fn has_place(&self) -> bool {
        let busy = self.members.values().filter(|m| m.sessions() > 0 && !m.process.is_ending()).count();
        let waiting: usize = self.keys.values().map(|interest| interest.waiting.len()).sum();
        busy + waiting < self.config.max
    }

    /// How many processes each user has, those included that are started for them.
    fn holdings(&self) -> HashMap<Arc<str>, usize> {
        let mut holdings = HashMap::new();
        let at_work = self.members.values().flat_map(|member| member.users());
        let coming = self.keys.values().flat_map(|interest| &interest.waiting).map(|waiter| &waiter.user);
        for user in at_work.chain(coming) {
            *holdings.entry(user.clone()).or_default() += 1;
        }
        holdings
    }

    fn order(&self) -> Vec<Spot> {
        let holdings = self.holdings();
        self.line.order(self.config.max_per_user, |user| holdings.get(user).copied().unwrap_or_default())
    }

    fn refuse_overdue(&mut self, name: &str, now: Instant) {
        let is_overdue = |w: &Waiter| now.duration_since(w.since) >= w.patience(&self.config);
        let overdue = self.line.take_if(is_overdue);
        for waiter in overdue {
            let why = self.why_full(name, &waiter, now.duration_since(waiter.since));
            waiter.refuse(Unavailable::Full(why));
        }
    }

    /// What is full, for how long and where somebody waited for it, and what to do.
    fn why_full(&self, name: &str, waiter: &Waiter, waited: Duration) -> String {
        let config::Agent { max, max_per_user, .. } = *self.config;
        let user = &waiter.user;
        let (full, key) = if self.holdings().get(user).is_some_and(|has| *has >= max_per_user) {
            let text = format!(
                "user `{user}` has all {max_per_user} processes of agent `{name}` that one user may have"
            );
            (text, "max_per_user")
        } else {
            (format!("all {max} processes of agent `{name}` are in use"), "max")
        };
        // Who may not wait has no position.
        let waited = match waiter.position {
            0 => String::new(),
            position => {
                format!("; this waited {:.1} s for one, last at position {position}", waited.as_secs_f64())
            }
        };
        format!("{full}{waited}; close a session, try again later, or raise agents.{name}.{key}")
    }

    /// A key that someone waits for without a process being on its way, if
    /// one more may be started; ends the spare of another key if that is what
    /// it takes. Who has waited longest comes first.
    pub(super) fn wanted(&mut self) -> Option<Key> {
        let lacks = |(key, interest): &(&Key, &Interest)| interest.needs() > self.coming(key);
        let without = self.keys.iter().filter(lacks);
        let without = without.filter_map(|(key, i)| Some((key, i.waiting.get(self.coming(key))?)));
        let key = without.min_by_key(|(_, waiter)| waiter.since).map(|(key, _)| key.clone())?;
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
        let is_current = |s: &Starting| !s.outdated && Arc::ptr_eq(&s.config, &self.config);
        let current = |s: &&Starting| s.key == *key && is_current(s);
        self.starting.values().filter(current).count()
    }

    /// Tells everyone who waits for such a process why they wait in vain.
    pub(super) fn refuse_waiting(&mut self, why: &str, is_meant: impl FnMut(&Waiter) -> bool) {
        for waiter in self.take_waiting(is_meant) {
            waiter.refuse(Unavailable::Failed(why.to_string()));
        }
    }

    /// Tells those who ask for no more what a process of their ward has said.
    pub(super) fn tell_waiting(&mut self, ward: &Ward, hello: &Arc<AgentHello>) {
        let config = self.config.clone();
        let is_meant = |waiter: &Waiter| {
            matches!(waiter.wish, Wish::Hello(..)) && health::ward(&config, &waiter.key) == *ward
        };
        self.take_waiting(is_meant).into_iter().for_each(|waiter| waiter.tell(hello));
    }

    /// Takes out those who are meant, whether or not they have a place.
    fn take_waiting(&mut self, mut is_meant: impl FnMut(&Waiter) -> bool) -> Vec<Waiter> {
        let mut taken = self.line.take_if(&mut is_meant);
        for interest in self.keys.values_mut() {
            let all = interest.waiting.drain(..);
            let (meant, rest) = all.partition::<VecDeque<Waiter>, _>(&mut is_meant);
            interest.waiting = rest;
            taken.extend(meant);
        }
        taken
    }

    /// Refuses those who wait for what is not to be had any more; a reload may have taken
    /// it away.
    pub(super) fn refuse_hopeless(&mut self) {
        for key in self.waited_for() {
            if let Some(why) = self.unusable(&key.agent) {
                self.refuse_waiting(&why, |waiter| waiter.key == key);
            } else if let Some(why) = self.quarantine(&key) {
                self.refuse_waiting(&why, |waiter| waiter.key == key && !waiter.passes_quarantine());
            }
        }
    }

    /// The keys that somebody waits for, in the line or while a process is started.
    fn waited_for(&self) -> HashSet<Key> {
        let coming = self.keys.iter().filter(|(_, interest)| !interest.waiting.is_empty());
        coming.map(|(key, _)| key).chain(self.line.iter().map(|waiter| &waiter.key)).cloned().collect()
    }

    /// Moments at which somebody has waited too long.
    pub(super) fn line_wakes(&self) -> impl Iterator<Item = Instant> {
        self.line.iter().map(|waiter| waiter.since + waiter.patience(&self.config))
    }
}
