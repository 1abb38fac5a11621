//! The catalogue: which models and modes each agent offers, as it has told
//! itself. Kept across restarts, so that a picker can offer agents that do not
//! run yet. `probe` asks the agents, every session teaches more, and `listing`
//! lays over it what the configuration says.
//!
//! A cheap handle around values that are replaced as a whole; readers take
//! what is there.

pub mod listing;
pub mod probe;

use std::{collections::BTreeMap, sync::Arc};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio::sync::watch;

use crate::{
    config,
    options::{Category, Choice, Chooser},
};

/// Characters of a version that are kept.
const LONGEST_VERSION: usize = 100;

/// What an agent offers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    /// The version of the agent that offers it.
    pub version: String,
    /// Its models.
    pub models: Vec<Choice>,
    /// The one it uses if nobody chooses.
    pub model: Option<String>,
    /// Its modes.
    pub modes: Vec<Choice>,
    /// Why it could not be asked, if so; what is known is then from before.
    pub problem: Option<String>,
}

impl Offer {
    /// What the answer to an opening request tells.
    pub fn read(version: &str, told: &Value) -> Self {
        let models = Chooser::read(told, Category::Model);
        Self {
            version: version.chars().take(LONGEST_VERSION).collect(),
            model: models.as_ref().and_then(|models| models.current.clone()),
            models: models.map(|models| models.choices).unwrap_or_default(),
            modes: Chooser::read(told, Category::Mode).map(|modes| modes.choices).unwrap_or_default(),
            problem: None,
        }
    }

    /// The agent's own name of the model that is meant: that itself, or one whose
    /// alias it is.
    pub fn model<'a>(&'a self, name: &str, agent: &'a config::Agent) -> Option<&'a str> {
        let own = self.models.iter().map(|choice| choice.value.as_str()).find(|value| *value == name);
        let by_alias = |(value, overlay): (&'a String, &'a config::Overlay)| {
            overlay.aliases.iter().any(|alias| alias == name).then_some(value.as_str())
        };
        own.or_else(|| agent.models.iter().find_map(by_alias))
            .or_else(|| agent.models.get_key_value(name).map(|(value, _)| value.as_str()))
    }
}

/// What all agents offer, by their names.
pub type Offers = BTreeMap<String, Offer>;

/// What each agent was when it was asked: a text that is another one once its
/// program or its configuration has changed.
pub type Stamps = BTreeMap<String, String>;

/// The handle.
#[derive(Debug, Clone)]
pub struct Catalogue {
    offers: Arc<watch::Sender<Arc<Offers>>>,
    stamps: Arc<watch::Sender<Arc<Stamps>>>,
}

impl Catalogue {
    /// A catalogue with what was known before. An agent without a stamp is
    /// asked.
    pub fn new(known: Offers, stamps: Stamps) -> Self {
        let offers = Arc::new(watch::Sender::new(Arc::new(known)));
        Self { offers, stamps: Arc::new(watch::Sender::new(Arc::new(stamps))) }
    }

    /// What is known now.
    pub fn offers(&self) -> Arc<Offers> {
        self.offers.borrow().clone()
    }

    /// What is known, as it changes.
    pub fn changes(&self) -> watch::Receiver<Arc<Offers>> {
        self.offers.subscribe()
    }

    /// What the agents were when they were asked, as it changes.
    pub fn stamps(&self) -> watch::Receiver<Arc<Stamps>> {
        self.stamps.subscribe()
    }

    /// Takes note of what an agent offers; whether that is news.
    pub fn learn(&self, agent: &str, offer: Offer) -> bool {
        self.offers.send_if_modified(|offers| {
            if offers.get(agent) == Some(&offer) {
                return false;
            }
            Arc::make_mut(offers).insert(agent.to_owned(), offer);
            true
        })
    }

    /// Takes note that an agent was asked, and what it said or why it could not;
    /// what was known of it then stays known.
    pub fn asked(&self, agent: &str, stamp: String, answer: Result<Offer, String>) {
        let offer = answer.unwrap_or_else(|problem| {
            let known = self.offers().get(agent).cloned().unwrap_or_default();
            Offer { problem: Some(problem), ..known }
        });
        self.learn(agent, offer);
        self.stamps.send_if_modified(|stamps| {
            let news = stamps.get(agent) != Some(&stamp);
            if news {
                Arc::make_mut(stamps).insert(agent.to_owned(), stamp);
            }
            news
        });
    }

    /// Has an agent asked again, whatever is known of it.
    pub fn ask_again(&self, agent: &str) {
        self.stamps.send_if_modified(|stamps| {
            stamps.contains_key(agent) && Arc::make_mut(stamps).remove(agent).is_some()
        });
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_was_known_stays_known_if_an_agent_cannot_be_asked() {
        let catalogue = Catalogue::new(Offers::new(), Stamps::new());
        let told = json!({ "models": { "currentModelId": "a", "availableModels": [{ "modelId": "a" }] } });
        let offer = Offer::read("1.0", &told);
        catalogue.asked("one", "then".into(), Ok(offer.clone()));
        assert_eq!(catalogue.offers()["one"], offer);
        catalogue.asked("one", "now".into(), Err("it wants a login".into()));
        let known = catalogue.offers()["one"].clone();
        assert_eq!((known.models.len(), known.problem.as_deref()), (1, Some("it wants a login")));
        assert_eq!(catalogue.stamps().borrow()["one"], "now");
        catalogue.ask_again("one");
        assert!(catalogue.stamps().borrow().is_empty());
        // A session that was opened shows that it works again.
        assert!(catalogue.learn("one", offer.clone()));
        assert!(!catalogue.learn("one", offer));
    }
}
