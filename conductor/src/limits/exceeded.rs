//! What somebody is told who has used what they may.

use std::{fmt, time::Duration};

use crate::{
    acp::{Refusal, code},
    config::{self, Quota},
    identity::Party,
};

/// What is limited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Sessions that are open.
    Sessions,
    /// Processes that these have.
    Processes,
    /// Prompts in a minute.
    Prompts,
    /// Tokens in a day.
    Tokens,
    /// Money in a day.
    Cost,
}

impl Kind {
    /// The key of the configuration.
    pub fn key(self) -> &'static str {
        match self {
            Self::Sessions => "sessions",
            Self::Processes => "processes",
            Self::Prompts => "prompts_per_minute",
            Self::Tokens => "tokens_per_day",
            Self::Cost => "cost_per_day",
        }
    }

    /// How many of those that are held a quota has.
    pub(super) fn of(self, quota: &Quota) -> Option<u64> {
        match self {
            Self::Sessions => quota.sessions,
            Self::Processes => quota.processes,
            Self::Prompts | Self::Tokens | Self::Cost => None,
        }
    }
}

/// When there is room again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Free {
    /// Once one is given back.
    OnceGivenBack,
    /// In so many seconds.
    In(u64),
    /// With the next day, which is so far away.
    Tomorrow(Duration),
    /// As long as the limit is none at all.
    Never,
}

/// A limit that is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exceeded {
    kind: Kind,
    party: Party,
    /// Where the limit stands in the configuration.
    key: String,
    used: u64,
    most: u64,
    free: Free,
}

impl Exceeded {
    pub(super) fn new(
        kind: Kind,
        limits: &config::Limits,
        party: &Party,
        used: u64,
        most: u64,
        free: Free,
    ) -> Self {
        let table = match party {
            Party::Team(name) => format!("limits.teams.{name}"),
            Party::User(name) if has_own(limits, name, kind) => format!("limits.users.{name}"),
            Party::User(_) => "limits".to_owned(),
        };
        Self { kind, party: party.clone(), key: format!("{table}.{}", kind.key()), used, most, free }
    }
}

impl Exceeded {
    /// What an editor is told.
    pub fn refusal(&self) -> Refusal {
        Refusal::new(code::LIMIT, self.to_string())
    }
}

/// Whether a user has a limit of their own.
fn has_own(limits: &config::Limits, user: &str, kind: Kind) -> bool {
    limits.users.get(user).is_some_and(|own| match kind {
        Kind::Sessions => own.sessions.is_some(),
        Kind::Processes => own.processes.is_some(),
        Kind::Prompts => own.prompts_per_minute.is_some(),
        Kind::Tokens => own.tokens_per_day.is_some(),
        Kind::Cost => own.cost_per_day.is_some(),
    })
}

impl fmt::Display for Exceeded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, party, key, used, most, free } = self;
        match party {
            Party::User(name) => write!(f, "user {name} has ")?,
            Party::Team(name) => write!(f, "team {name} has ")?,
        }
        match kind {
            Kind::Sessions => write!(f, "{used} of {most} sessions open")?,
            Kind::Processes => write!(f, "{used} of {most} processes in use")?,
            Kind::Prompts => write!(f, "made {used} of {most} prompts in the last minute")?,
            Kind::Tokens => write!(f, "used {used} of {most} tokens today")?,
            Kind::Cost => write!(f, "spent {} of {} today", money(*used), money(*most))?,
        }
        write!(f, " ({key}); ")?;
        match free {
            Free::OnceGivenBack => f.write_str("close a session first"),
            Free::In(seconds) => write!(f, "try again in {} s", seconds.max(&1)),
            Free::Tomorrow(left) => {
                let minutes = left.as_secs().div_ceil(60);
                write!(f, "try again after 00:00 UTC, in {} h {} min", minutes / 60, minutes % 60)
            }
            Free::Never => f.write_str("ask an administrator"),
        }
    }
}

/// Millionths as an amount.
fn money(micros: u64) -> String {
    format!("{}.{:02}", micros / 1_000_000, micros % 1_000_000 / 10_000)
}
