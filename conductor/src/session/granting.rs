//! What people have allowed before: passes, which hold once in a turn, and grants,
//! which hold until they end. Both turn what the rules ask into allowed, never
//! what they deny.

use std::{borrow::Cow, time::SystemTime};

use serde_json::json;
use uuid::Uuid;

use super::{Recorded, Session, judging::Ruling, outbox::About};
use crate::{
    grants::{Asker, Author, Grant, MOST_PARTS, Part, Scope, USUAL_TIME, Use, kept},
    identity::Caller,
    policy::{Effect, SubAction, Verdict},
    record::note,
};

/// Why a grant was given that somebody chose in an editor.
const CHOSEN: &str = "chosen in an editor: allow in this session";

/// What may be allowed once in a turn; more is asked about again.
const MOST_PASSES: usize = 1024;

/// Something that may be done once, in this turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Pass {
    action: SubAction,
    /// The grant that it comes from, and that must hold when it is done; none if a person
    /// has allowed it.
    grant: Option<Uuid>,
}

/// What may be recalled for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Recall {
    /// Nothing: only the rules are asked.
    Nothing,
    /// What is granted.
    Grants,
    /// The same, and what a tool call was allowed to do once.
    GrantsAndPasses,
}

impl Session {
    /// Whether all that the rules ask was allowed before, and by which grants. These are used
    /// thereby; none are, if a part of it was not allowed.
    pub(super) fn recall(&self, verdict: &Verdict, recall: Recall) -> Option<Vec<Use>> {
        if verdict.decision != Effect::Ask || recall == Recall::Nothing || verdict.sub_actions.is_empty() {
            return None;
        }
        let asked = verdict.sub_actions.iter().filter(|judged| judged.decision != Effect::Allow);
        let mut asked: Vec<&SubAction> = asked.map(|judged| &judged.action).collect();
        if recall == Recall::GrantsAndPasses {
            let mut spent = Vec::new();
            asked.retain(|action| !self.takes_pass(action, verdict, &mut spent));
        }
        if asked.is_empty() {
            return Some(Vec::new());
        }
        let rules = &self.open.rules;
        let (user, teams) = (rules.subject.user.as_str(), rules.subject.teams.as_slice());
        let kept: Vec<Cow<'_, SubAction>> = asked.into_iter().map(|action| self.kept_form(action)).collect();
        let asked: Vec<&SubAction> = kept.iter().map(|action| &**action).collect();
        let asker = Asker { session: self.open.id, root: &self.open.cwd, user, teams };
        rules.grants.make_use(&asker, &asked, |grant| self.may_answer(grant, verdict))
    }

    /// Something as it may be kept for longer: a grant holds no secrets, and what is asked is
    /// held against it in the same form. Equal secrets have equal tags.
    fn kept_form<'a>(&self, action: &'a SubAction) -> Cow<'a, SubAction> {
        self.recorder.redacted_value(action).map_or(Cow::Borrowed(action), Cow::Owned)
    }

    /// Whether the author of a grant may answer what is asked. Who may, the rules in force
    /// say; those of when it was given do not count, nor do teams and roles of then.
    fn may_answer(&self, grant: &Grant, verdict: &Verdict) -> bool {
        let rules = &self.open.rules;
        let Some(author) = rules.grants.author(grant) else { return false };
        let drives = matches!(grant.scope, Scope::Session(_)) && self.drives(&author);
        let own = [rules.subject.user.as_str(), self.open.owner.as_str()];
        Author { caller: &author, drives }.may_not_answer(&verdict.asks, &own).is_none()
    }

    /// Whether there is a pass for something besides those that are spent, one of a person
    /// first; it is spent then. One from a grant is as good as the grant is now.
    fn takes_pass(&self, action: &SubAction, verdict: &Verdict, spent: &mut Vec<usize>) -> bool {
        let holds = |id: Uuid| {
            let granted = self.open.rules.grants.get(id);
            granted.is_some_and(|(grant, _)| self.may_answer(&grant, verdict))
        };
        let fitting = self.judge.passes.iter().enumerate();
        let fitting = fitting.filter(|(at, pass)| pass.action == *action && !spent.contains(at));
        let good = fitting.filter(|(_, pass)| pass.grant.is_none_or(holds));
        let taken = good.min_by_key(|(_, pass)| pass.grant.is_some()).map(|(at, _)| at);
        spent.extend(taken);
        taken.is_some()
    }

    /// Uses up what was allowed once.
    pub(super) fn spend(&mut self, verdict: &Verdict) {
        let mut spent = Vec::new();
        for judged in &verdict.sub_actions {
            self.takes_pass(&judged.action, verdict, &mut spent);
        }
        let mut at = 0..;
        self.judge.passes.retain(|_| at.next().is_none_or(|at| !spent.contains(&at)));
    }

    /// What was allowed once may be done when the tool call comes to it. However often a grant
    /// has allowed it, it leaves no more passes than one request needs.
    pub(super) fn let_pass(&mut self, ruling: &Ruling) {
        let asked = ruling.verdict.sub_actions.iter().filter(|judged| judged.decision != Effect::Allow);
        let exact = asked.map(|judged| &judged.action).filter(|action| action.is_exact());
        let new = exact.take(MOST_PASSES).map(|action| {
            let kept = self.kept_form(action);
            let used = ruling.uses.iter().find(|used| used.actions.contains(&*kept));
            Pass { action: action.clone(), grant: used.map(|used| used.grant) }
        });
        let new: Vec<Pass> = new.collect();
        let passes = &mut self.judge.passes;
        match ruling.is_granted {
            true => unite(passes, new),
            false => passes.extend(new),
        }
        let over = passes.len().saturating_sub(MOST_PASSES);
        passes.drain(..over);
    }

    /// Uses are written down with the verdict, in the same append.
    pub(super) fn note_uses(&mut self, uses: &[Use]) {
        for used in uses {
            let params = json!({
                "grant": used.grant.to_string(),
                "number": used.number,
                "left": used.left,
                "subActions": used.actions,
            });
            self.hand.entries.push(Recorded::About(About::Input(self.hand.index), note::GRANT_USED, params));
        }
    }

    /// Keeps who has answered a permission request: what they allow for longer is theirs.
    pub(super) fn answered_by(&mut self, number: u32, caller: Caller) {
        if let Some(ask) = self.asks.get_mut(number) {
            ask.by = Some(caller);
        }
    }

    /// Somebody has chosen to be asked no more: from now on exactly this is allowed in this
    /// session. Where the book is full, or it is too much for one grant, they are asked again.
    pub(super) fn grant(&mut self, ruling: &Ruling, by: Caller) {
        let asked = ruling.verdict.sub_actions.iter().filter(|judged| judged.decision == Effect::Ask);
        let exact = asked.map(|judged| &judged.action).filter(|action| action.is_exact());
        let exact = exact.take(MOST_PARTS).map(|action| self.kept_form(action).into_owned());
        let parts: Vec<Part> = exact.map(Part::Exactly).collect();
        let given = SystemTime::now();
        let grant = Grant {
            id: Uuid::now_v7(),
            scope: Scope::Session(self.open.id),
            parts,
            by,
            reason: CHOSEN.to_owned(),
            given,
            expires: given + USUAL_TIME,
            most_uses: None,
        };
        if grant.parts.is_empty() {
            return;
        }
        if kept(&grant.parts).is_none() {
            tracing::warn!(session.id = %self.open.id, "too much for one grant; asking again");
            return;
        }
        match self.open.rules.grants.give(grant) {
            Ok(grant) => self.hand.entries.push(Recorded::Note(note::GRANTED, grant.note())),
            Err(why) => tracing::warn!(session.id = %self.open.id, ?why, "too many grants; asking again"),
        }
    }
}

/// Adds what is not there as often already.
pub(super) fn unite<T: PartialEq>(all: &mut Vec<T>, more: impl IntoIterator<Item = T>) {
    let mut is_met = vec![false; all.len()];
    for each in more {
        let there = is_met.iter_mut().zip(all.iter()).find(|(is_met, known)| !**is_met && **known == each);
        match there {
            Some((is_met, _)) => *is_met = true,
            None => all.push(each),
        }
    }
}
