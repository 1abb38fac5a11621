//! The policy that is in force now, for those who decide by it.

use std::sync::Arc;

use tokio::sync::watch;

use super::Policy;

/// The policy in force. A decision borrows it once, and so uses exactly one revision.
#[derive(Debug, Clone)]
pub struct Live {
    /// The rules.
    pub policy: watch::Receiver<Arc<Policy>>,
    /// Why a newer file was not taken.
    pub refused: watch::Receiver<Option<String>>,
}

/// Who changes the policy in force.
#[derive(Debug)]
pub struct Publisher {
    policy: watch::Sender<Arc<Policy>>,
    refused: watch::Sender<Option<String>>,
}

impl Live {
    /// A policy that is in force until another is published.
    pub fn new(policy: Policy) -> (Publisher, Self) {
        let (policy, rules) = watch::channel(Arc::new(policy));
        let (refused, why) = watch::channel(None);
        (Publisher { policy, refused }, Self { policy: rules, refused: why })
    }

    /// The rules in force.
    pub fn current(&self) -> Arc<Policy> {
        self.policy.borrow().clone()
    }
}

impl Publisher {
    /// Puts new rules in force; rules that cannot be used leave the old ones there.
    pub fn publish(&self, loaded: Result<Policy, super::PolicyError>) {
        match loaded {
            Ok(policy) => {
                self.policy.send_replace(Arc::new(policy));
                self.refused.send_replace(None);
            }
            Err(error) => {
                self.refused.send_replace(Some(error.to_string()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

    use super::*;

    #[test]
    fn a_bad_policy_keeps_the_old_one() {
        let (publisher, live) = Live::new(Policy::load(None).unwrap());
        let before = live.current().revision().to_owned();
        publisher.publish(Policy::parse("x", "[broken"));
        assert_eq!(live.current().revision(), before);
        assert!(live.refused.borrow().as_deref().unwrap().starts_with("x:1"));
        publisher.publish(Policy::parse("x", "use = [\"plan\"]"));
        assert_ne!(live.current().revision(), before);
        assert_eq!(*live.refused.borrow(), None);
    }
}
