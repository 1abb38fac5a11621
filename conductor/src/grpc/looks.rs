//! Which secrets somebody has, for `Agents.List`: names only.
//!
//! A directory is read each time, so that who has just mended something sees it. A
//! program of the operator's is run at most once in a while for each user and agent:
//! anybody may ask for the list as often as they like. The vault bounds how many at once.

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::sync::watch;

use crate::{
    config::{self, Config},
    identity::Person,
    secrets::Vault,
};

/// For how long an answer of the program is told again.
const GOOD_FOR: Duration = Duration::from_secs(30);

/// Answers that are kept. When there are more, all are forgotten.
const MOST_KEPT: usize = 1024;

/// The names of somebody's secrets, or what is wrong with them.
type Told = Result<Vec<String>, String>;

/// What was told of whom, and when, by a program that was configured so.
type Kept = HashMap<(Person, String), (Instant, Arc<Config>, Told)>;

#[derive(Debug)]
pub(super) struct Looks {
    // Not for its receivers: a look takes a moment.
    kept: watch::Sender<Kept>,
}

impl Default for Looks {
    fn default() -> Self {
        Self { kept: watch::channel(Kept::default()).0 }
    }
}

impl Looks {
    /// What a process of this agent would be given for this person.
    pub(super) async fn look(
        &self,
        vault: &Vault,
        config: &Arc<Config>,
        agent: &config::Agent,
        person: &Person,
    ) -> Told {
        let who = (person.clone(), agent.name.clone());
        if let Some(told) = self.known(config, &who) {
            return told;
        }
        let opened = vault.open(agent, person).await;
        let told = opened.map(|found| found.secrets.names()).map_err(|why| why.to_string());
        if config.secrets.dir.is_none() {
            self.kept.send_if_modified(|kept| {
                if kept.len() >= MOST_KEPT {
                    kept.clear();
                }
                kept.insert(who, (Instant::now(), config.clone(), told.clone()));
                false
            });
        }
        told
    }

    fn known(&self, config: &Arc<Config>, who: &(Person, String)) -> Option<Told> {
        let kept = self.kept.borrow();
        let (at, by, told) = kept.get(who)?;
        // What was said under another configuration does not count.
        (at.elapsed() < GOOD_FOR && Arc::ptr_eq(by, config)).then(|| told.clone())
    }
}
