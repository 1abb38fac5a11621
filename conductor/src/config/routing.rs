//! Which agent a prompt goes to, as `agents.toml` says it: routes, and what
//! people are to see of an agent's models and modes.

use std::{collections::BTreeMap, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{SeqAccess, Visitor, value::SeqAccessDeserializer},
};

use super::error;
use crate::routes::Compiled;

/// One route: who and what it is for, and where it leads. The first that
/// matches counts.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Route {
    /// What listings and the record call it; its number if absent.
    #[serde(default)]
    pub name: Option<String>,
    /// Models it is for, as patterns.
    #[serde(default, deserialize_with = "one_or_more")]
    pub model: Vec<String>,
    /// Modes it is for, as patterns.
    #[serde(default, deserialize_with = "one_or_more")]
    pub mode: Vec<String>,
    /// Users it is for, as patterns.
    #[serde(default, deserialize_with = "one_or_more")]
    pub user: Vec<String>,
    /// Teams it is for, as patterns.
    #[serde(default, deserialize_with = "one_or_more")]
    pub team: Vec<String>,
    /// Directories it is for: a path with all beneath it, or a pattern.
    #[serde(default, deserialize_with = "one_or_more")]
    pub cwd: Vec<String>,
    /// Labels that the request must have.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Agents it leads to: names, or `label:KEY=VALUE` for all with that label.
    #[serde(deserialize_with = "one_or_more")]
    pub to: Vec<String>,
    /// Which of them.
    #[serde(default)]
    pub pick: Pick,
    /// Agents that are tried, in order, if none of those can take the prompt.
    #[serde(default, deserialize_with = "one_or_more")]
    pub fallback: Vec<String>,
    /// What the agent is set to.
    #[serde(default)]
    pub set: RouteSettings,
    /// Its patterns, ready to be matched.
    #[serde(skip)]
    pub compiled: Compiled,
}

/// What a route sets at its agent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RouteSettings {
    /// The agent's own model.
    pub model: Option<String>,
    /// The agent's own mode.
    pub mode: Option<String>,
}

/// Which agent of several a route takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(try_from = "String")]
pub enum Pick {
    /// The first; the others if it cannot be had.
    #[default]
    First,
    /// The one with the fewest sessions.
    LeastBusy,
}

impl TryFrom<String> for Pick {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match text.as_str() {
            "first" => Ok(Self::First),
            "least-busy" => Ok(Self::LeastBusy),
            _ => Err(error::not_one_of(&text, &["first", "least-busy"])),
        }
    }
}

/// What people see of a model or a mode of an agent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Overlay {
    /// Its name for people, instead of the agent's own.
    pub title: Option<String>,
    /// Other names it can be chosen by.
    #[serde(deserialize_with = "one_or_more")]
    pub aliases: Vec<String>,
    /// It is not offered; who names it gets it all the same.
    pub hidden: bool,
}

/// A text, or a list of texts.
fn one_or_more<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    struct Texts;

    impl<'de> Visitor<'de> for Texts {
        type Value = Vec<String>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a string or an array of strings")
        }

        fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Self::Value, E> {
            Ok(vec![text.to_owned()])
        }

        fn visit_seq<A: SeqAccess<'de>>(self, texts: A) -> Result<Self::Value, A::Error> {
            Vec::deserialize(SeqAccessDeserializer::new(texts))
        }
    }
    from.deserialize_any(Texts)
}
