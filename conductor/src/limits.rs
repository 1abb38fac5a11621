//! How much users and teams may use, and what they have used.
//!
//! Asked where something begins (a session, its way to a process, a prompt), and
//! told when an agent reports what a turn took; frames in between pass without
//! it. What counts by the day is written to the store behind everybody's back
//! and outlives the service; what is open now and what was asked in the last
//! minute begins anew with it.

mod account;
mod exceeded;
pub mod memory;
pub mod turns;

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tokio::{sync::watch, time::Instant};
use uuid::Uuid;

use self::{account::Account, exceeded::Free};
pub use self::{
    account::Used,
    exceeded::{Exceeded, Kind},
};
use crate::{
    config::{self, Quota},
    identity::{Caller, Party},
};

/// Days that are kept. What was before the ledger knows.
pub const KEPT_DAYS: i64 = 35;

/// The most that one report may say; more is a slip or a lie.
const MOST_TOKENS: u64 = 1_000_000_000;
const MOST_COST: f64 = 1e6;

/// Parts of the money's unit that are counted.
const MICROS: f64 = 1e6;

const DAY: Duration = Duration::from_secs(86_400);

/// What everybody has used, by user and by team. Clones share it.
#[derive(Debug, Clone)]
pub struct Limits {
    // Not for its receivers but for who saves: each looks at it for a moment.
    book: Arc<watch::Sender<Book>>,
}

#[derive(Debug)]
struct Book {
    quotas: config::Limits,
    accounts: HashMap<Party, Account>,
    /// What sessions have cost in all, as each of their agents says: a report tells
    /// the sum.
    sums: HashMap<(Uuid, String), u64>,
    began: Instant,
    /// What the store has not been told of.
    changed: HashSet<(i64, Party)>,
    changed_sums: HashSet<(Uuid, String)>,
}

/// What is to be saved.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Unsaved {
    /// What was used on a day.
    pub days: Vec<(i64, Party, Used)>,
    /// What sessions have cost in all at an agent.
    pub sums: Vec<((Uuid, String), u64)>,
}

/// What somebody has used, and what they may.
#[derive(Debug, Clone)]
pub struct Statement {
    /// Who.
    pub party: Party,
    /// What they may use.
    pub quota: Quota,
    /// Sessions that are open now.
    pub sessions: u64,
    /// Processes that these have now.
    pub processes: u64,
    /// Prompts of the last minute.
    pub prompts: u64,
    /// Today.
    pub today: Used,
    /// Since the day that was asked for.
    pub since: Used,
}

impl Statement {
    /// Of somebody who has used nothing.
    pub fn nothing(party: Party, quota: Quota) -> Self {
        let used = Used::default();
        Self { party, quota, sessions: 0, processes: 0, prompts: 0, today: used, since: used }
    }
}

/// Something that is in use; dropping it gives it back.
#[derive(Debug)]
pub struct Held {
    limits: Limits,
    kind: Kind,
    parties: Vec<Party>,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.limits.quietly(|book| {
            for party in &self.parties {
                let account = book.accounts.entry(party.clone()).or_default();
                let count = account.held(self.kind);
                *count = count.saturating_sub(1);
            }
        });
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self::new(config::Limits::default(), Unsaved::default())
    }
}

impl Limits {
    /// These limits, and what the store knows of what was used.
    pub fn new(quotas: config::Limits, saved: Unsaved) -> Self {
        let mut accounts: HashMap<Party, Account> = HashMap::new();
        for (day, party, used) in saved.days {
            accounts.entry(party).or_default().days.insert(day, used);
        }
        let sums = saved.sums.into_iter().collect();
        let (changed, changed_sums) = (HashSet::new(), HashSet::new());
        let book = Book { quotas, accounts, sums, began: Instant::now(), changed, changed_sums };
        Self { book: Arc::new(watch::channel(book).0) }
    }

    /// From now on these hold.
    pub fn apply(&self, quotas: config::Limits) {
        self.quietly(|book| book.quotas = quotas);
    }

    fn quietly<T>(&self, change: impl FnOnce(&mut Book) -> T) -> Option<T> {
        let (mut change, mut given) = (Some(change), None);
        self.book.send_if_modified(|book| {
            given = change.take().map(|change| change(book));
            false
        });
        given
    }

    /// One more session, or one more process for one, if the caller may have it.
    pub fn hold(&self, kind: Kind, caller: &Caller) -> Result<Held, Exceeded> {
        let parties: Vec<_> = Party::all_of(caller).collect();
        let checked = self.quietly(|book| {
            for party in &parties {
                let quota = book.quota(party);
                let used = *book.accounts.entry(party.clone()).or_default().held(kind);
                if let Some(most) = kind.of(&quota).filter(|most| used >= *most) {
                    return Err(Exceeded::new(kind, &book.quotas, party, used, most, Free::OnceGivenBack));
                }
            }
            for party in &parties {
                *book.accounts.entry(party.clone()).or_default().held(kind) += 1;
            }
            Ok(())
        });
        checked.unwrap_or(Ok(())).map(|()| Held { limits: self.clone(), kind, parties })
    }

    /// Whether the caller may have one more prompt, which is not counted yet.
    pub fn allows_prompt(&self, caller: &Caller) -> Result<(), Exceeded> {
        let (today, left) = day(SystemTime::now());
        let book = self.book.borrow();
        let second = book.began.elapsed().as_secs();
        Party::all_of(caller).try_for_each(|party| book.check_prompt(&party, second, today, left))
    }

    /// One more prompt, if the caller may have it.
    pub fn prompt(&self, caller: &Caller) -> Result<(), Exceeded> {
        self.prompt_at(caller, SystemTime::now())
    }

    fn prompt_at(&self, caller: &Caller, now: SystemTime) -> Result<(), Exceeded> {
        let parties: Vec<_> = Party::all_of(caller).collect();
        let (today, left) = day(now);
        let mut outcome = Ok(());
        self.book.send_if_modified(|book| {
            let second = book.began.elapsed().as_secs();
            outcome = parties.iter().try_for_each(|party| book.check_prompt(party, second, today, left));
            if outcome.is_err() {
                return false;
            }
            for party in parties {
                let account = book.accounts.entry(party.clone()).or_default();
                account.minute.count(second);
                account.day(today).prompts += 1;
                book.changed.insert((today, party));
            }
            true
        });
        outcome
    }

    /// What a turn of the caller's took.
    pub fn tokens(&self, caller: &Caller, tokens: u64) {
        let tokens = tokens.min(MOST_TOKENS);
        self.add(caller, |used| used.tokens = used.tokens.saturating_add(tokens));
    }

    /// What a session has cost in all at an agent, of which the caller pays what is new.
    /// Less than before means in a turn that the agent counts from nothing again; outside
    /// of one it is history that it tells once more.
    pub fn cost(&self, session: Uuid, agent: &str, caller: &Caller, total: u64, in_turn: bool) {
        let (today, _) = day(SystemTime::now());
        let key = (session, agent.to_owned());
        self.book.send_if_modified(|book| {
            let before = book.sums.get(&key).copied().unwrap_or(0);
            let added = match total.checked_sub(before) {
                Some(0) => return false,
                Some(added) => added,
                None if in_turn => total,
                None => return false,
            };
            book.sums.insert(key.clone(), total);
            book.changed_sums.insert(key);
            book.add(caller, today, |used| used.cost_micros = used.cost_micros.saturating_add(added));
            true
        });
    }

    fn add(&self, caller: &Caller, add: impl Fn(&mut Used)) {
        let (today, _) = day(SystemTime::now());
        self.book.send_modify(|book| book.add(caller, today, add));
    }

    /// What those have used who are asked for, since a day, by name.
    pub fn statements(&self, since: SystemTime, which: impl Fn(&Party) -> bool) -> Vec<Statement> {
        let ((today, _), (since, _)) = (day(SystemTime::now()), day(since));
        let book = self.book.borrow();
        let second = book.began.elapsed().as_secs();
        let statement = |(party, account): (&Party, &Account)| Statement {
            party: party.clone(),
            quota: book.quota(party),
            sessions: account.sessions,
            processes: account.processes,
            prompts: account.minute.sum(second),
            today: account.days.get(&today).copied().unwrap_or_default(),
            since: account.days.range(since..).map(|(_, used)| *used).sum(),
        };
        let mut all: Vec<_> = book.accounts.iter().filter(|(party, _)| which(party)).map(statement).collect();
        drop(book);
        all.sort_by(|one, other| one.party.cmp(&other.party));
        all
    }

    /// What somebody may use who has used nothing.
    pub fn quota(&self, party: &Party) -> Quota {
        self.book.borrow().quota(party)
    }

    /// Waits until something is to be saved.
    pub async fn changed(&self) {
        let is_unsaved = |book: &Book| !book.changed.is_empty() || !book.changed_sums.is_empty();
        self.book.subscribe().wait_for(is_unsaved).await.ok();
    }

    /// What is to be saved.
    pub fn take_changed(&self) -> Unsaved {
        let taken = self.quietly(|book| {
            let (changed, sums) = (std::mem::take(&mut book.changed), std::mem::take(&mut book.changed_sums));
            let used = |(day, party): (i64, Party)| {
                let used = *book.accounts.get(&party)?.days.get(&day)?;
                Some((day, party, used))
            };
            let sum = |key: (Uuid, String)| book.sums.get(&key).copied().map(|sum| (key, sum));
            Unsaved {
                days: changed.into_iter().filter_map(used).collect(),
                sums: sums.into_iter().filter_map(sum).collect(),
            }
        });
        taken.unwrap_or_default()
    }

    /// This was not saved after all.
    pub fn not_saved(&self, unsaved: &Unsaved) {
        self.quietly(|book| {
            book.changed.extend(unsaved.days.iter().map(|(day, party, _)| (*day, party.clone())));
            book.changed_sums.extend(unsaved.sums.iter().map(|(key, _)| key.clone()));
        });
    }
}

/// An amount of money in the parts that are counted; `None` if it is none.
pub fn micros(amount: f64) -> Option<u64> {
    (0.0..=MOST_COST).contains(&amount).then_some((amount * MICROS) as u64)
}

impl Book {
    fn add(&mut self, caller: &Caller, day: i64, add: impl Fn(&mut Used)) {
        for party in Party::all_of(caller) {
            add(self.accounts.entry(party.clone()).or_default().day(day));
            self.changed.insert((day, party));
        }
    }

    fn quota(&self, party: &Party) -> Quota {
        match party {
            Party::User(name) => self.quotas.of_user(name),
            Party::Team(name) => self.quotas.of_team(name),
        }
    }

    fn check_prompt(&self, party: &Party, second: u64, today: i64, left: Duration) -> Result<(), Exceeded> {
        let quota = self.quota(party);
        let nobody = Account::default();
        let account = self.accounts.get(party).unwrap_or(&nobody);
        let used = account.days.get(&today).copied().unwrap_or_default();
        let minute = account.minute.sum(second);
        let refused =
            |kind, used, most, free| Err(Exceeded::new(kind, &self.quotas, party, used, most, free));
        if let Some(most) = quota.prompts_per_minute.filter(|most| minute >= *most) {
            let free = account.minute.free_in(second, most).map_or(Free::Never, Free::In);
            return refused(Kind::Prompts, minute, most, free);
        }
        if let Some(most) = quota.tokens_per_day.filter(|most| used.tokens >= *most) {
            return refused(Kind::Tokens, used.tokens, most, Free::Tomorrow(left));
        }
        let most = quota.cost_per_day.map(|most| (most * MICROS) as u64);
        if let Some(most) = most.filter(|most| used.cost_micros >= *most) {
            return refused(Kind::Cost, used.cost_micros, most, Free::Tomorrow(left));
        }
        Ok(())
    }
}

/// The day of a moment, by its number since 1970, and how much of it is left.
pub fn day(moment: SystemTime) -> (i64, Duration) {
    let since = moment.duration_since(UNIX_EPOCH).unwrap_or_default();
    let number = since.as_secs() / DAY.as_secs();
    let end = Duration::from_secs((number + 1) * DAY.as_secs());
    (i64::try_from(number).unwrap_or(i64::MAX), end - since)
}

#[cfg(test)]
mod tests;
