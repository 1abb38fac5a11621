//! What processes of an agent have said of themselves.
//!
//! Where processes are each user's own, that may depend on the account behind them, so it
//! is known for each user: nobody is shown what another's process has said.

use std::{collections::VecDeque, sync::Arc};

use super::health::Ward;
use crate::{acp::AgentHello, identity::Person};

/// Users of whose processes it is known; whoever is forgotten is asked for anew.
const MOST: usize = 64;

/// What is known of an agent.
#[derive(Debug, Clone, Default)]
pub struct Hellos {
    is_personal: bool,
    /// For each user who has processes of their own, or for all together; the last to
    /// have told is the last.
    told: VecDeque<(Ward, Arc<AgentHello>)>,
}

impl Hellos {
    /// Of an agent that nobody has started yet.
    pub(super) fn new(is_personal: bool) -> Self {
        Self { is_personal, told: VecDeque::new() }
    }

    /// What a process of this person's would say.
    pub fn of(&self, person: &Person) -> Option<&Arc<AgentHello>> {
        let is_theirs = |ward: &Ward| match ward {
            Some(other) => **other == *person,
            None => !self.is_personal,
        };
        self.told.iter().find(|(ward, _)| is_theirs(ward)).map(|(_, hello)| hello)
    }

    /// The same for those who are counted together.
    pub(super) fn of_ward(&self, ward: &Ward) -> Option<&Arc<AgentHello>> {
        self.told.iter().find(|(other, _)| other == ward).map(|(_, hello)| hello)
    }

    pub(super) fn learn(&mut self, ward: Ward, hello: Arc<AgentHello>) {
        self.told.retain(|(other, _)| *other != ward);
        if self.told.len() >= MOST {
            self.told.pop_front();
        }
        self.told.push_back((ward, hello));
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use serde_json::json;

    use super::*;

    fn hello(version: usize) -> Arc<AgentHello> {
        let result = json!({ "agentInfo": { "version": version.to_string() } });
        Arc::new(AgentHello { result })
    }

    fn person(user: usize) -> Person {
        Person { user: user.to_string(), teams: Vec::new() }
    }

    #[test]
    fn everybody_hears_of_shared_processes_and_nobody_of_anothers() {
        let mut hellos = Hellos::new(false);
        hellos.learn(None, hello(1));
        assert_eq!(hellos.of(&person(7)).unwrap().version(), "1");
        let mut hellos = Hellos::new(true);
        hellos.learn(Some(Arc::new(person(7))), hello(1));
        assert_eq!(hellos.of(&person(7)).unwrap().version(), "1");
        assert!(hellos.of(&person(8)).is_none());
        let in_a_team = Person { teams: vec!["web".into()], ..person(7) };
        assert!(hellos.of(&in_a_team).is_none(), "teams decide what a process is given");
    }

    #[test]
    fn whoever_told_longest_ago_is_forgotten_first() {
        let mut hellos = Hellos::new(true);
        let learn = |hellos: &mut Hellos, user| hellos.learn(Some(Arc::new(person(user))), hello(user));
        (0..MOST).for_each(|user| learn(&mut hellos, user));
        learn(&mut hellos, 0);
        learn(&mut hellos, MOST);
        assert_eq!(hellos.told.len(), MOST);
        assert!(hellos.of(&person(1)).is_none());
        assert!(hellos.of(&person(0)).is_some() && hellos.of(&person(MOST)).is_some());
    }
}
