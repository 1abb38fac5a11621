//! Whom the rules are asked about, and what narrows them meanwhile: what was read when the
//! session was opened, and what whoever prompts brings along.
//!
//! A driver's own file holds for the turns that they begin, and for nobody else's: one that
//! cannot be used would end everybody's work. What holds is in the record before anything is
//! judged by it.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{Session, terms::Rules};
use crate::{
    identity::{Caller, Role},
    policy::Narrowing,
    record::note,
};

/// Bytes of what narrows the rules that a frame of a session's record has: four files of the
/// largest size.
const MOST_NARROWING: usize = 1 << 20;

/// Where what narrows the rules was recorded.
#[derive(Debug, Default)]
pub(super) struct Noted {
    /// What the session was opened with.
    opening: Option<u64>,
    /// The same, with what somebody else has brought last.
    latest: Option<(Arc<Narrowing>, u64)>,
}

impl Session {
    /// From now on the rules are asked about whoever prompts, with the teams and the role
    /// that they have by now, and narrowed by what they bring.
    pub(super) fn judge_as(&mut self, seat: u32) {
        self.judge.patience.prompted();
        self.judge.denials.prompted();
        let Caller { user, teams, .. } = self.caller(seat).clone();
        let role = self.caller(seat).role().map(Role::name).unwrap_or_default();
        let subject = &mut self.open.rules.subject;
        (subject.user, subject.teams, subject.role) = (user, teams, role.into());
        self.narrow_as(seat);
    }

    fn narrow_as(&mut self, seat: u32) {
        let rules = &mut self.open.rules;
        let own = self.seats.own(seat).filter(|own| !rules.narrowing.contains(own));
        if own == rules.own.as_ref() {
            return;
        }
        rules.own = own.cloned();
        self.judge.narrowed = None;
        self.judge.narrowing = match (&rules.own, &self.judge.noted.latest) {
            (None, _) => self.judge.noted.opening,
            (Some(own), Some((latest, seq))) if own == latest => Some(*seq),
            (Some(own), _) => {
                let own = own.clone();
                let seq = self.note_narrowed();
                self.judge.noted.latest = Some((own, seq));
                Some(seq)
            }
        };
    }

    /// What the session was opened with is written down once.
    pub(super) fn note_narrowed_first(&mut self) {
        if !self.open.rules.narrowing.is_empty() {
            self.judge.noted.opening = Some(self.note_narrowed());
            self.judge.narrowing = self.judge.noted.opening;
        }
    }

    /// Writes down what narrows the rules here, so that decisions can be made again when the
    /// files are gone; in which frame. See [`Standing`](crate::policy::Standing).
    fn note_narrowed(&mut self) -> u64 {
        let Rules { narrowing, own, .. } = &self.open.rules;
        let rules = || narrowing.iter().chain(own.as_deref());
        if rules().map(Narrowing::size).sum::<usize>() > MOST_NARROWING {
            return 0;
        }
        let rules: Vec<Value> = rules().map(Narrowing::noted).collect();
        self.recorder.note(note::NARROWED, &json!({ "rules": rules }));
        self.recorder.last_seq()
    }
}
