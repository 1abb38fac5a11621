//! Denials that people hear of. The agent is told why it may not do something, and may pass on
//! something else ("you said no"), or nothing: so whoever has the session open is told, too.

use super::{Session, judging::Ruling};
use crate::{acp, policy::Effect};

/// Notices of one turn. An agent that tries everything must not fill the screen.
const MOST_TOLD: usize = 16;

/// Characters of what was denied that are shown.
const SHOWN: usize = 200;

/// What people were told of in this turn.
#[derive(Debug, Default)]
pub(super) struct Denials(Vec<String>);

impl Denials {
    /// Somebody has prompted.
    pub(super) fn prompted(&mut self) {
        self.0.clear();
    }

    /// Whether this is to be told; counts it, if so.
    fn tell(&mut self, text: &str) -> bool {
        let is_new = self.0.len() < MOST_TOLD && !self.0.iter().any(|told| told == text);
        if is_new {
            self.0.push(text.to_owned());
        }
        is_new
    }
}

impl Session {
    /// Says what was denied, and by which rule, to an editor that takes notices.
    pub(super) fn tell_denied(&mut self, ruling: &Ruling) {
        if !(self.seats.is_led && self.link.capabilities.notices) {
            return;
        }
        let text = words(ruling);
        if self.judge.denials.tell(&text) {
            self.tell_editor(acp::notice(
                &self.open.id.to_string(),
                "warning",
                "Denied by the policy",
                &text,
            ));
        }
    }
}

/// What was denied, why, and by what.
fn words(ruling: &Ruling) -> String {
    let verdict = &ruling.verdict;
    let denied = verdict.sub_actions.iter().find(|judged| judged.decision == Effect::Deny);
    let what = denied.or(verdict.sub_actions.first()).map(|judged| judged.action.in_words(SHOWN) + ": ");
    let by = verdict.rule.as_ref().map(|rule| format!(" (rule `{rule}`)"));
    format!("{}{}{}", what.unwrap_or_default(), verdict.reason, by.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_tells_the_same_once_and_not_without_end() {
        let mut denials = Denials::default();
        assert!(denials.tell("a") && !denials.tell("a"));
        let told = (0..100).filter(|number| denials.tell(&number.to_string())).count();
        assert_eq!(told, MOST_TOLD - 1);
        denials.prompted();
        assert!(denials.tell("a"));
    }
}
