//! How often processes of an agent have ended unasked, and what follows from it: a pause,
//! then quarantine.
//!
//! Where processes are each user's own, it is counted for each user: what is amiss may be
//! their home or their key, and others must not have to do without the agent for it.

use std::{
    collections::{HashMap, VecDeque},
    hash::{BuildHasher as _, RandomState},
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;
use tracing::{info, warn};

use super::Key;
use crate::{
    agent::Exit,
    config::{self, Restart},
    identity::Person,
};

/// The health of an agent's processes.
#[derive(Debug, Default)]
pub(super) struct Health {
    /// For each user who has processes of their own, or for all together.
    wards: HashMap<Ward, Record>,
}

/// Whose processes are counted together: one person's, or everybody's.
pub(super) type Ward = Option<Arc<Person>>;

#[derive(Debug, Default)]
struct Record {
    crashes: VecDeque<Instant>,
    backoff_until: Option<Instant>,
    quarantine: Option<String>,
}

/// With whose processes those of this key are counted. A name for commits alone breaks no
/// process.
pub(super) fn ward(agent: &config::Agent, key: &Key) -> Ward {
    key.person.clone().filter(|_| agent.is_personal())
}

impl Health {
    /// Counts a crash; whether it was the one too many.
    pub(super) fn crashed(&mut self, ward: Ward, exit: &Exit, restart: &Restart) -> bool {
        let now = Instant::now();
        let record = self.wards.entry(ward.clone()).or_default();
        record.crashes.push_back(now);
        while record.crashes.front().is_some_and(|at| now.duration_since(*at) > restart.within) {
            record.crashes.pop_front();
        }
        let n = record.crashes.len();
        if n >= restart.intensity {
            let times = if n == 1 { "once".to_string() } else { format!("{n} times") };
            let reason = format!("it ended {times} within {:?}; the last time: {exit}", restart.within);
            let user = ward.map(|person| person.user.clone());
            warn!(agent = %exit.agent, user, reason, "agent is quarantined");
            return record.quarantine.replace(reason).is_none();
        }
        let doubled = restart.backoff.saturating_mul(1 << n.saturating_sub(1).min(16));
        let pause = jitter(doubled.min(restart.within));
        let pause_ms = pause.as_millis() as u64;
        info!(agent = %exit.agent, how = exit.summary(), pause_ms, "agent will be started again");
        record.backoff_until = Some(now + pause);
        false
    }

    /// Why none is started for them, if so.
    pub(super) fn quarantine(&self, ward: &Ward) -> Option<&str> {
        self.wards.get(ward)?.quarantine.as_deref()
    }

    /// How many users are alone in quarantine.
    pub(super) fn quarantined_users(&self) -> usize {
        self.wards.iter().filter(|(ward, record)| ward.is_some() && record.quarantine.is_some()).count()
    }

    /// Whether none is to be started ahead for them now.
    pub(super) fn is_resting(&self, ward: &Ward, now: Instant) -> bool {
        let is_resting = |record: &Record| {
            record.quarantine.is_some() || record.backoff_until.is_some_and(|until| until > now)
        };
        self.wards.get(ward).is_some_and(is_resting)
    }

    /// When pauses end.
    pub(super) fn wakes(&self) -> impl Iterator<Item = Instant> {
        self.wards.values().filter_map(|record| record.backoff_until)
    }

    /// Begins anew; whether a quarantine was lifted.
    pub(super) fn forgive_all(&mut self) -> bool {
        std::mem::take(&mut self.wards).values().any(|record| record.quarantine.is_some())
    }

    /// Begins anew with one user, who has logged in or out, and with all who share a home
    /// with them.
    pub(super) fn forgive(&mut self, user: &str) {
        self.wards.retain(|ward, _| ward.as_ref().is_some_and(|person| person.user != user));
    }

    /// Keeps nothing of users who have had no crash for a while.
    pub(super) fn forget_old(&mut self, now: Instant, within: Duration) {
        self.wards.retain(|ward, record| {
            let is_recent = record.crashes.back().is_some_and(|at| now.duration_since(*at) <= within);
            ward.is_none() || record.quarantine.is_some() || is_recent
        });
    }
}

/// Half to one and a half times the pause, so that many do not return at once.
fn jitter(pause: Duration) -> Duration {
    let random = RandomState::new().hash_one(0_u8) % 1000;
    pause.mul_f64(0.5 + random as f64 / 1000.0)
}
