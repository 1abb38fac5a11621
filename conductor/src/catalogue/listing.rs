//! What people may choose of an agent: what it offers, as the configuration
//! wants it shown. Pure.

use std::collections::BTreeMap;

use super::Offer;
use crate::{
    config::{Agent, Overlay},
    options::{Category, Choice},
};

/// A model or a mode as people see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// The agent's own name of it.
    pub value: String,
    /// Its name for people.
    pub name: String,
    /// More about it.
    pub description: Option<String>,
    /// Other names it can be chosen by.
    pub aliases: Vec<String>,
    /// It is not offered; who names it gets it all the same.
    pub hidden: bool,
    /// The agent has told of it; if not, only the configuration names it.
    pub is_told: bool,
    /// The agent uses it if nobody chooses.
    pub is_default: bool,
}

/// What there is of a category, as the agent tells it; then what only the
/// configuration names.
pub fn list(category: Category, agent: &Agent, offer: Option<&Offer>) -> Vec<Listed> {
    let (told, overlays) = match category {
        Category::Model => (offer.map(|offer| offer.models.as_slice()), &agent.models),
        Category::Mode => (offer.map(|offer| offer.modes.as_slice()), &agent.modes),
    };
    let told = told.unwrap_or_default();
    let current = match category {
        Category::Model => offer.and_then(|offer| offer.model.as_deref()),
        Category::Mode => None,
    };
    let mut listed: Vec<Listed> = told.iter().map(|choice| overlay(choice, overlays)).collect();
    for entry in &mut listed {
        entry.is_default = current == Some(entry.value.as_str());
    }
    let is_told = |value: &str| told.iter().any(|choice| choice.value == value);
    listed.extend(overlays.keys().filter(|value| !is_told(value)).map(|value| {
        let choice = Choice { value: value.clone(), name: value.clone(), description: None };
        Listed { is_told: false, ..overlay(&choice, overlays) }
    }));
    listed
}

/// Whether an agent is offered beside others.
pub fn is_offered(agent: &Agent, default: &str) -> bool {
    agent.enabled && (!agent.hidden || agent.name == default)
}

fn overlay(choice: &Choice, overlays: &BTreeMap<String, Overlay>) -> Listed {
    let overlay = overlays.get(&choice.value);
    Listed {
        value: choice.value.clone(),
        name: overlay.and_then(|overlay| overlay.title.clone()).unwrap_or_else(|| choice.name.clone()),
        description: choice.description.clone(),
        aliases: overlay.map(|overlay| overlay.aliases.clone()).unwrap_or_default(),
        hidden: overlay.is_some_and(|overlay| overlay.hidden),
        is_told: true,
        is_default: false,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    fn agent() -> Agent {
        let text = "command = 'x'\n\
            [models.opus]\ntitle = 'Opus, the big one'\naliases = ['smart', 'best']\n\
            [models.old]\nhidden = true\n\
            [models.beta]\naliases = 'next'\n\
            [modes.yolo]\nhidden = true\n";
        toml::from_str(text).unwrap()
    }

    fn choice(value: &str, name: &str) -> Choice {
        Choice { value: value.into(), name: name.into(), description: Some(format!("about {name}")) }
    }

    #[test]
    fn the_configuration_is_laid_over_what_the_agent_tells() {
        let offer = Offer {
            models: vec![choice("opus", "Opus"), choice("old", "Old"), choice("plain", "Plain")],
            model: Some("plain".into()),
            modes: vec![choice("ask", "Ask"), choice("yolo", "Yolo")],
            ..Offer::default()
        };
        let models = list(Category::Model, &agent(), Some(&offer));
        let seen: Vec<_> = models
            .iter()
            .map(|m| (&*m.value, &*m.name, m.aliases.join(","), m.hidden, m.is_told, m.is_default))
            .collect();
        assert_eq!(
            seen,
            [
                ("opus", "Opus, the big one", "smart,best".to_owned(), false, true, false),
                ("old", "Old", String::new(), true, true, false),
                ("plain", "Plain", String::new(), false, true, true),
                ("beta", "beta", "next".to_owned(), false, false, false),
            ]
        );
        assert_eq!(models[0].description.as_deref(), Some("about Opus"));
        let modes = list(Category::Mode, &agent(), Some(&offer));
        let seen: Vec<_> = modes.iter().map(|mode| (&*mode.value, mode.hidden)).collect();
        assert_eq!(seen, [("ask", false), ("yolo", true)]);
    }

    #[test]
    fn what_is_only_configured_is_listed_before_the_agent_has_told_anything() {
        let models = list(Category::Model, &agent(), None);
        let seen: Vec<_> = models.iter().map(|model| (&*model.value, model.is_told)).collect();
        assert_eq!(seen, [("beta", false), ("old", false), ("opus", false)]);
        assert_eq!(list(Category::Mode, &agent(), None).len(), 1);
    }

    #[test]
    fn a_hidden_agent_is_offered_only_as_the_default() {
        let agent = Agent { name: "demo".into(), hidden: true, ..agent() };
        assert!(is_offered(&agent, "demo") && !is_offered(&agent, "claude"));
    }
}
