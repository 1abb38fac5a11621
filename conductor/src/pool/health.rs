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
    agent::{Cause, Exit},
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
    quarantine: Option<Quarantine>,
}

/// Why none is started.
#[derive(Debug)]
struct Quarantine {
    /// With all that is known, for those whose processes they are and who look after them.
    reason: String,
    /// Without what a process said, and where.
    told_to_all: String,
}

/// What everybody may know of an exit: neither where a process of others ran, nor its words.
pub(super) fn told_to_all(exit: &Exit) -> String {
    match &exit.cause {
        Cause::NotStarted(_) => "could not be started".into(),
        Cause::NoDirectory(_) => "cannot run in what is not a directory".into(),
        Cause::NoSecrets(_) => "was not started: what it is to be given is not to be had".into(),
        Cause::Handshake(_) => "was ended after its handshake".into(),
        Cause::Unfinished(after, _) => format!("left a line unfinished for {after:?} and was ended"),
        Cause::Violations(_) => "breached the protocol too often and was ended".into(),
        Cause::Itself
        | Cause::ClosedStdout
        | Cause::ClosedStdin
        | Cause::StartTimeout(_)
        | Cause::LineTooLong
        | Cause::Unread(_)
        | Cause::Overrun
        | Cause::CancelIgnored(_)
        | Cause::Stopped
        | Cause::TooMuchMemory(_)
        | Cause::TooManyProcesses(_)
        | Cause::Asked(_) => exit.summary(),
    }
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
            let often = format!("it ended {times} within {:?}; the last time", restart.within);
            let reason = format!("{often}: {exit}");
            let told_to_all = format!("{often}: {}", told_to_all(exit));
            let user = ward.map(|person| person.user.clone());
            warn!(agent = %exit.agent, user, reason, "agent is quarantined");
            return record.quarantine.replace(Quarantine { reason, told_to_all }).is_none();
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
        Some(&self.wards.get(ward)?.quarantine.as_ref()?.reason)
    }

    /// The same for everybody, where processes are nobody's own.
    pub(super) fn quarantine_told_to_all(&self) -> Option<&str> {
        Some(&self.wards.get(&None)?.quarantine.as_ref()?.told_to_all)
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
