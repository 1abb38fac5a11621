//! Who people are by now. What somebody has allowed for later (a grant) holds only
//! as far as they still may allow it, so it is asked of what lets them in today
//! and not of what did so then.
//!
//! The tokens are all known, and one that is void vouches for nothing. Issuers and
//! certificates are known only when somebody comes with them: what was said last
//! counts until they come again.

use std::{collections::HashMap, sync::Arc};

use tokio::sync::watch;

use super::{Caller, tokens::Tokens};

/// Users of whom it is kept what an issuer or a certificate has said last. One more takes the
/// place of any other, of whom then only the tokens are known.
const MOST_SEEN: usize = 4096;

/// Knows who people are by now. Clones share it.
#[derive(Debug, Clone)]
pub struct Present {
    tokens: Tokens,
    /// By user; those who came with something other than a token.
    seen: Arc<watch::Sender<HashMap<String, Caller>>>,
}

impl Present {
    /// Goes by these tokens.
    pub fn new(tokens: Tokens) -> Self {
        Self { tokens, seen: Arc::new(watch::channel(HashMap::new()).0) }
    }

    /// Somebody has come in by an issuer's token or a certificate. Whether they are somebody
    /// else than before: nearly never.
    pub fn saw(&self, caller: &Caller) -> bool {
        if self.seen.borrow().get(&caller.user) == Some(caller) {
            return false;
        }
        self.seen.send_modify(|seen| {
            if seen.len() >= MOST_SEEN
                && let Some(any) = seen.keys().next().cloned()
            {
                seen.remove(&any);
            }
            seen.insert(caller.user.clone(), caller.clone());
        });
        true
    }

    /// Somebody of then, without the teams and roles that they have lost since. None if
    /// nothing lets them in any more. Of whom nothing was heard since the service started,
    /// and who never had a token, nothing else is known than what they were.
    pub fn by_now(&self, then: &Caller) -> Option<Caller> {
        let (mut now, had_tokens) = self.tokens.holders(&then.user);
        now.extend(self.seen.borrow().get(&then.user).cloned());
        if now.is_empty() {
            return (!had_tokens).then(|| then.clone());
        }
        let mut left = then.clone();
        left.teams.retain(|team| now.iter().any(|caller| caller.teams.contains(team)));
        left.roles.retain(|role| now.iter().any(|caller| caller.roles.contains(role)));
        Some(left)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{identity::Role, state::Token};

    fn lea(teams: &[&str], role: Role) -> Caller {
        Caller {
            user: "lea".into(),
            teams: teams.iter().map(ToString::to_string).collect(),
            roles: vec![role],
        }
    }

    #[test]
    fn what_is_lost_does_not_count_and_what_is_won_does_not_either() {
        let tokens = Tokens::new(Token::random().unwrap(), Vec::new());
        let present = Present::new(tokens.clone());
        let then = lea(&["web", "core"], Role::Approver);
        assert_eq!(present.by_now(&then), Some(then.clone()), "nothing was heard of them");
        assert!(present.saw(&lea(&["core", "new"], Role::Approver)));
        assert!(!present.saw(&lea(&["core", "new"], Role::Approver)), "nothing new");
        assert_eq!(present.by_now(&then), Some(lea(&["core"], Role::Approver)));
        // What any one of the ways in says counts.
        let hour = Duration::from_secs(3600);
        let (_, issued) = tokens.issue(lea(&["web"], Role::Developer), &Caller::local(), hour).unwrap();
        assert_eq!(present.by_now(&then), Some(then.clone()));
        assert!(present.saw(&lea(&[], Role::Developer)));
        let left = Caller { roles: Vec::new(), ..lea(&["web"], Role::Developer) };
        assert_eq!(present.by_now(&then), Some(left));
        tokens.revoke(issued.id).unwrap();
        let left = Caller { roles: Vec::new(), ..lea(&[], Role::Developer) };
        assert_eq!(present.by_now(&then), Some(left));
    }

    #[test]
    fn whoever_has_only_void_tokens_is_nobody() {
        let tokens = Tokens::new(Token::random().unwrap(), Vec::new());
        let present = Present::new(tokens.clone());
        let then = lea(&[], Role::Approver);
        let hour = Duration::from_secs(3600);
        let (_, issued) = tokens.issue(then.clone(), &Caller::local(), hour).unwrap();
        assert_eq!(present.by_now(&then), Some(then.clone()));
        tokens.revoke(issued.id).unwrap();
        assert_eq!(present.by_now(&then), None);
        tokens.issue(then.clone(), &Caller::local(), hour).unwrap();
        assert_eq!(present.by_now(&then), Some(then));
        let me = Caller::local();
        assert_eq!(present.by_now(&me), Some(me), "the local token is never void");
    }
}
