//! Which agent a prompt goes to: (who, where, model, mode, labels) → agents in
//! the order in which they are tried. Pure; what is known of the agents is
//! handed in.
//!
//! Whoever names an agent gets that one. Else the first route counts whose
//! matchers all match; else an agent that offers the model; else the one that
//! the session is with; else the default. A mode that a route is for counts
//! before the name of an agent that was chosen earlier: the last choice wins.

mod matching;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, path::Path};

use serde::Serialize;

pub use self::matching::{Compiled, check_pattern};
use self::matching::{mismatch, named, place_mismatch};
use crate::{
    catalogue::{Offer, Offers},
    config::{Agent, Config, Pick, Route},
    options::Category,
};

/// What is asked for.
#[derive(Debug, Clone, Copy)]
pub struct Asked<'a> {
    /// Who asks.
    pub user: &'a str,
    /// Their teams.
    pub teams: &'a [String],
    /// Where the session works.
    pub cwd: &'a Path,
    /// What the request says of itself.
    pub labels: &'a BTreeMap<String, String>,
    /// The agent, if it was named.
    pub agent: Option<&'a str>,
    /// The model that was chosen: `MODEL`, `AGENT/MODEL`, `acp:AGENT[/MODEL]`.
    pub model: Option<&'a str>,
    /// The mode that was chosen.
    pub mode: Option<&'a str>,
    /// Which of the two was chosen last.
    pub last: Option<Category>,
    /// The agent that the session is with.
    pub bound: Option<&'a str>,
}

/// What is known at the moment.
#[derive(Clone, Copy)]
pub struct Field<'a> {
    /// Routes and agents.
    pub config: &'a Config,
    /// What the agents offer.
    pub offers: &'a Offers,
    /// How many sessions an agent has.
    pub busy: &'a dyn Fn(&str) -> usize,
}

/// An agent to try, and what it is to be set to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Target {
    /// The agent.
    pub agent: String,
    /// Its own name of the model, if one was chosen that it has.
    pub model: Option<String>,
    /// Its own name of the mode, likewise.
    pub mode: Option<String>,
    /// It is only for the case that those before cannot be had.
    pub is_fallback: bool,
}

/// How a decision came to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum How {
    /// The agent was named.
    Named,
    /// A route matched.
    Route,
    /// It offers the model.
    Model,
    /// The session stays where it is.
    Bound,
    /// Nothing else applied.
    Default,
}

impl How {
    /// Its name in the record.
    pub fn name(self) -> &'static str {
        match self {
            Self::Named => "named",
            Self::Route => "route",
            Self::Model => "model",
            Self::Bound => "bound",
            Self::Default => "default",
        }
    }
}

/// What was looked at on the way, and what came of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Step {
    /// What was looked at.
    pub what: String,
    /// Whether it decided.
    pub matches: bool,
    /// Why, or why not.
    pub why: String,
}

/// Where a prompt goes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Decision {
    /// The agents to try, in order; at least one.
    pub targets: Vec<Target>,
    /// How it came to be.
    pub how: How,
    /// The route, by its name or its number.
    pub route: Option<String>,
    /// The same in words.
    pub reason: String,
    /// Everything that was looked at.
    pub steps: Vec<Step>,
}

/// Why there is no agent for it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unroutable(pub String);

/// Decides which agent a prompt goes to.
pub fn decide(asked: &Asked<'_>, field: &Field<'_>) -> Result<Decision, Unroutable> {
    let wanted = Wanted::new(asked, field)?;
    let mut steps = Vec::new();
    let routes = || field.config.route.iter().enumerate();
    // A route for the mode that was just chosen.
    if asked.last == Some(Category::Mode) && asked.mode.is_some() {
        for (index, route) in routes().filter(|(_, route)| !route.mode.is_empty()) {
            if let Some(decision) = wanted.follow(index, route, &mut steps) {
                return Ok(decision);
            }
        }
    }
    if let Some(agent) = wanted.agent {
        let reason = match asked.agent {
            Some(_) => format!("agent `{agent}` was named"),
            None => format!("model `{}` names agent `{agent}`", asked.model.unwrap_or_default()),
        };
        steps.push(Step { what: "the agent's name".into(), matches: true, why: reason.clone() });
        // Its fallbacks are those of the first route that leads there.
        let leads = |(_, route): &(usize, &Route)| {
            mismatch(route, &wanted).is_none() && expand(&route.to, field.config).any(|to| to == agent)
        };
        let found = routes().find(leads);
        let mut targets = vec![wanted.target(agent, None, false)];
        if let Some((_, route)) = found {
            targets.extend(wanted.fallbacks(route, &[agent]));
        }
        let route = found.map(|(index, route)| title(index, route));
        return Ok(Decision { targets, how: How::Named, route, reason, steps });
    }
    for (index, route) in routes() {
        if let Some(decision) = wanted.follow(index, route, &mut steps) {
            return Ok(decision);
        }
    }
    let (agent, how, reason) = wanted.without_route();
    let what = if how == How::Model { "the model's agent" } else { "no route" };
    steps.push(Step { what: what.into(), matches: true, why: reason.clone() });
    let mut targets = vec![wanted.target(agent, None, false)];
    wanted.insist(&mut targets);
    Ok(Decision { targets, how, route: None, reason, steps })
}

/// Modes that lead somewhere by a route, for this user in this place.
pub fn routed_modes<'a>(asked: &Asked<'_>, config: &'a Config) -> Vec<&'a str> {
    let routes = config.route.iter().filter(|route| place_mismatch(route, asked).is_none());
    let mut modes = Vec::new();
    for mode in routes.flat_map(|route| &route.mode).filter(|mode| matching::is_literal(mode)) {
        if !modes.contains(&mode.as_str()) {
            modes.push(mode.as_str());
        }
    }
    modes
}

/// What a route is called.
pub fn title(index: usize, route: &Route) -> String {
    route.name.clone().unwrap_or_else(|| format!("{}", index + 1))
}

/// Names of agents, and the agents behind labels; only those that are enabled.
fn expand<'a>(names: &'a [String], config: &'a Config) -> impl Iterator<Item = &'a str> {
    let enabled = |agent: &&Agent| agent.enabled;
    names.iter().flat_map(move |name| {
        let found: Vec<&str> = match name.strip_prefix("label:").and_then(|label| label.split_once('=')) {
            Some((key, value)) => {
                let has = |agent: &&Agent| agent.labels.get(key).is_some_and(|label| label == value);
                config.agents.values().filter(enabled).filter(has).map(|agent| agent.name.as_str()).collect()
            }
            None => {
                config.agents.get(name).filter(enabled).map(|agent| agent.name.as_str()).into_iter().collect()
            }
        };
        found
    })
}

/// What is asked for, taken apart.
struct Wanted<'a> {
    asked: &'a Asked<'a>,
    field: &'a Field<'a>,
    /// The agent that was named.
    agent: Option<&'a str>,
    /// The model without the name of an agent.
    model: Option<&'a str>,
}

impl<'a> Wanted<'a> {
    fn new(asked: &'a Asked<'a>, field: &'a Field<'a>) -> Result<Self, Unroutable> {
        let (by_model, model) = match asked.model {
            Some(model) => named(model, field)?,
            None => (None, None),
        };
        let agent = match asked.agent {
            Some(name) => Some(known(name, field.config)?),
            None => by_model,
        };
        Ok(Self { asked, field, agent, model })
    }

    /// What a route leads to, if it matches.
    fn follow(&self, index: usize, route: &Route, steps: &mut Vec<Step>) -> Option<Decision> {
        let name = title(index, route);
        let what = format!("route {name}");
        if let Some(why) = mismatch(route, self) {
            steps.push(Step { what, matches: false, why });
            return None;
        }
        let config = self.field.config;
        let mut agents: Vec<&str> = expand(&route.to, config).collect();
        if route.pick == Pick::LeastBusy {
            // Where it is already, it has nothing to be told.
            let is_elsewhere = |agent: &&str| Some(*agent) != self.asked.bound;
            agents.sort_by_key(|agent| (is_elsewhere(agent), (self.field.busy)(agent)));
        }
        let mut targets: Vec<Target> =
            agents.iter().map(|agent| self.target(agent, Some(route), false)).collect();
        // Those that have the model are asked first.
        targets.sort_by_key(|target| self.model.is_some() && target.model.is_none());
        self.insist(&mut targets);
        targets.extend(self.fallbacks(route, &agents));
        if targets.is_empty() {
            let why = "none of its agents is enabled".to_owned();
            steps.push(Step { what, matches: false, why });
            return None;
        }
        let why = matching::description(route);
        steps.push(Step { what, matches: true, why: why.clone() });
        let reason = format!("route {name}: {why}");
        Some(Decision { targets, how: How::Route, route: Some(name), reason, steps: steps.clone() })
    }

    /// A model that none of them is known to have is asked for all the same: that it is
    /// not there is then said, with what there is instead.
    fn insist(&self, targets: &mut [Target]) {
        let Some(model) = self.model.filter(|_| self.agent.is_none()) else { return };
        if targets.iter().all(|target| target.model.is_none()) {
            targets.iter_mut().for_each(|target| target.model = Some(model.to_owned()));
        }
    }

    fn fallbacks(&self, route: &Route, before: &[&str]) -> Vec<Target> {
        let mut agents: Vec<&str> = Vec::new();
        for agent in expand(&route.fallback, self.field.config) {
            if !before.contains(&agent) && !agents.contains(&agent) {
                agents.push(agent);
            }
        }
        agents.into_iter().map(|agent| self.target(agent, None, true)).collect()
    }

    /// An agent with the model and mode that were chosen, as far as it has them.
    fn target(&self, agent: &str, route: Option<&Route>, is_fallback: bool) -> Target {
        let settings = self.field.config.agents.get(agent);
        let offer = self.field.offers.get(agent);
        let is_named = self.agent == Some(agent);
        let model = self.model.and_then(|model| {
            let own = offer.zip(settings).and_then(|(offer, settings)| offer.model(model, settings));
            own.or_else(|| is_named.then_some(model)).map(str::to_owned)
        });
        let mode = self.asked.mode.filter(|mode| {
            let has = |offer: &Offer| offer.modes.iter().any(|own| own.value == *mode);
            // The name of a route's mode is none of the agent's, and a mode that was chosen
            // before the model may be another agent's. Any other is asked for, and refused.
            let is_for_it = route.is_none_or(|route| route.mode.is_empty())
                && !is_fallback
                && self.asked.last != Some(Category::Model);
            is_for_it || offer.is_some_and(has)
        });
        let set = route.map(|route| &route.set);
        Target {
            agent: agent.to_owned(),
            model: set.and_then(|set| set.model.clone()).or(model),
            mode: set.and_then(|set| set.mode.clone()).or(mode.map(str::to_owned)),
            is_fallback,
        }
    }

    /// Where it goes if no route says so.
    fn without_route(&self) -> (&'a str, How, String) {
        let config = self.field.config;
        let has = |agent: &&str| {
            let (model, offer) = (self.model.unwrap_or_default(), self.field.offers.get(*agent));
            config
                .agents
                .get(*agent)
                .filter(|settings| settings.enabled)
                .is_some_and(|settings| offer.is_some_and(|offer| offer.model(model, settings).is_some()))
        };
        if let Some(model) = self.model {
            let first = self.asked.bound.into_iter().chain([config.default.as_str()]);
            let all = first.chain(config.agents.keys().map(String::as_str));
            if let Some(agent) = all.into_iter().find(has) {
                return (agent, How::Model, format!("agent `{agent}` offers the model `{model}`"));
            }
        }
        match self.asked.bound {
            Some(agent) => (agent, How::Bound, format!("the session is with agent `{agent}`")),
            None => (&config.default, How::Default, format!("agent `{}` is the default", config.default)),
        }
    }
}

/// The name of an agent that is there, or why not.
fn known<'a>(name: &str, config: &'a Config) -> Result<&'a str, Unroutable> {
    let found = config.agents.get(name).filter(|agent| agent.enabled);
    found.map(|agent| agent.name.as_str()).ok_or_else(|| {
        let names = config.agents.values().filter(|agent| agent.enabled).map(|agent| agent.name.as_str());
        let names: Vec<&str> = names.collect();
        let shown = crate::frame::escape(name.as_bytes(), 100);
        Unroutable(format!("there is no agent `{shown}`; the agents are: {}", names.join(", ")))
    })
}
