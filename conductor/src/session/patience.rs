//! How much people are asked: an agent that asks without end must not wear them down
//! until they allow what they would not have allowed.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use crate::{clock, config, policy::SubAction};

/// Rejections that are remembered.
const MOST_REJECTED: usize = 64;

/// What counts as often.
const MINUTE: Duration = Duration::from_secs(60);

/// What people were asked of late, and what they did not want.
#[derive(Debug, Default)]
pub(super) struct Patience {
    asked: VecDeque<Instant>,
    rejected: VecDeque<Rejected>,
}

#[derive(Debug)]
struct Rejected {
    actions: Vec<SubAction>,
    by: String,
    at: Instant,
}

/// Why nobody is asked.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Spared {
    /// What stands in place of a rule.
    pub(super) rule: &'static str,
    pub(super) reason: String,
}

impl Patience {
    /// Whether people may be asked about this now, with so many questions open; else why
    /// not. Counts it, if so.
    pub(super) fn ask(
        &mut self,
        actions: &[SubAction],
        open: usize,
        limits: &config::Approvals,
        now: Instant,
    ) -> Result<(), Spared> {
        self.asked.retain(|at| now.duration_since(*at) < MINUTE);
        self.rejected.retain(|rejected| now.duration_since(rejected.at) < limits.repeat_deny);
        if let Some(same) = self.rejected.iter().find(|rejected| rejected.actions == actions) {
            let ago = clock::age(now.duration_since(same.at));
            let reason = format!(
                "{} rejected the same {ago} ago; it is asked about again after the next prompt",
                same.by
            );
            return Err(Spared { rule: "conductor:repeated", reason });
        }
        if open >= limits.pending {
            let reason = format!("{open} questions of this session wait for an answer already");
            return Err(Spared { rule: "conductor:pending", reason });
        }
        if self.asked.len() >= limits.per_minute {
            let reason = format!(
                "this session has asked {} times within a minute, and people are not asked more often",
                self.asked.len()
            );
            return Err(Spared { rule: "conductor:per-minute", reason });
        }
        self.asked.push_back(now);
        Ok(())
    }

    /// Somebody has rejected this.
    pub(super) fn rejected(&mut self, actions: Vec<SubAction>, by: &str, now: Instant) {
        if self.rejected.len() >= MOST_REJECTED {
            self.rejected.pop_front();
        }
        self.rejected.push_back(Rejected { actions, by: by.to_owned(), at: now });
    }

    /// Somebody has prompted, and may have changed their mind.
    pub(super) fn prompted(&mut self) {
        self.rejected.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits() -> config::Approvals {
        config::Approvals {
            limit: MINUTE,
            per_minute: 3,
            pending: 2,
            repeat_deny: Duration::from_secs(10),
            notify: config::Notify::default(),
        }
    }

    #[test]
    fn what_was_rejected_is_not_asked_again_until_the_next_prompt() {
        let (mut patience, now) = (Patience::default(), Instant::now());
        let (one, other) = ([SubAction::unknown("one")], [SubAction::unknown("other")]);
        patience.rejected(one.to_vec(), "lea", now);
        let spared = patience.ask(&one, 0, &limits(), now + Duration::from_secs(5)).err();
        assert!(spared.is_some_and(|spared| spared.reason.starts_with("lea rejected the same 5s ago")));
        assert_eq!(patience.ask(&other, 0, &limits(), now), Ok(()));
        assert_eq!(patience.ask(&one, 0, &limits(), now + Duration::from_secs(10)), Ok(()));
        patience.rejected(one.to_vec(), "lea", now);
        patience.prompted();
        assert_eq!(patience.ask(&one, 0, &limits(), now), Ok(()));
    }

    #[test]
    fn people_are_asked_so_often_and_no_more() {
        let (mut patience, now) = (Patience::default(), Instant::now());
        let rule = |result: Result<(), Spared>| result.err().map(|spared| spared.rule);
        assert_eq!(rule(patience.ask(&[], 2, &limits(), now)), Some("conductor:pending"));
        for _ in 0..3 {
            assert_eq!(patience.ask(&[], 1, &limits(), now), Ok(()));
        }
        assert_eq!(rule(patience.ask(&[], 0, &limits(), now)), Some("conductor:per-minute"));
        assert_eq!(patience.ask(&[], 0, &limits(), now + MINUTE), Ok(()));
    }
}
