//! How much of one kind each user may have under way, where others must not have to
//! wait for it.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
};

use tokio::sync::{Semaphore, watch};

/// The turns of every user who has something under way or waiting. Clones share them.
#[derive(Debug, Clone)]
pub struct Turns {
    most: usize,
    // Not for its receivers: many look at it, each for a moment.
    users: Arc<watch::Sender<HashMap<String, Weak<Semaphore>>>>,
}

impl Turns {
    /// So many at a time for each.
    pub fn new(most: usize) -> Self {
        Self { most, users: Arc::default() }
    }

    /// Those of one user, which are forgotten with the last who holds or awaits one.
    pub fn of(&self, user: &str) -> Arc<Semaphore> {
        let mut turns = None;
        self.users.send_if_modified(|users| {
            turns = users.get(user).and_then(Weak::upgrade);
            if turns.is_none() {
                users.retain(|_, turns| turns.strong_count() > 0);
                let new = Arc::new(Semaphore::new(self.most));
                users.insert(user.to_owned(), Arc::downgrade(&new));
                turns = Some(new);
            }
            false
        });
        turns.unwrap_or_else(|| Arc::new(Semaphore::new(self.most)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_have_turns_of_their_own_which_go_with_them() {
        let turns = Turns::new(1);
        let held = turns.of("ann").try_acquire_owned();
        assert!(held.is_ok());
        assert!(turns.of("ann").try_acquire_owned().is_err());
        assert!(turns.of("bob").try_acquire_owned().is_ok());
        drop(held);
        assert!(turns.of("ann").try_acquire_owned().is_ok());
        turns.of("carl");
        turns.of("dora");
        assert_eq!(turns.users.borrow().len(), 1, "who has none is forgotten");
    }
}
