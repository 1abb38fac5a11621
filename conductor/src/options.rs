//! What an agent lets people choose: its model and its mode, in whichever form
//! it tells them. Config options are how it is done today; `modes` stands beside
//! them for older editors, and older agents have `models`. Read leniently: what
//! has another shape is not there. No I/O.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Choices of one list that are read; an agent with more is not one to pick from.
const MOST: usize = 1000;

/// The longest value, name or description that is kept, in bytes.
const LONGEST: usize = 1000;

/// What is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Category {
    /// The model.
    Model,
    /// The mode.
    Mode,
}

impl Category {
    /// Its name in the protocol.
    pub fn name(self) -> &'static str {
        match self {
            Self::Model => "model",
            Self::Mode => "mode",
        }
    }
}

/// One of the things that can be chosen.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Choice {
    /// The agent's own name of it.
    pub value: String,
    /// Its name for people.
    pub name: String,
    /// More about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
}

/// How a choice is made known to the agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Channel {
    /// `session/set_config_option`, with this id.
    Option(String),
    /// `session/set_mode`, or `session/set_model` of older agents.
    Legacy,
}

/// A list to choose from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chooser {
    /// How a choice is made known.
    pub channel: Channel,
    /// What is chosen now.
    pub current: Option<String>,
    /// What can be chosen.
    pub choices: Vec<Choice>,
}

impl Chooser {
    /// What an agent offers of a category, if it offers any; `told` is the result
    /// of an opening request, or what is known since.
    pub fn read(told: &Value, category: Category) -> Option<Self> {
        Self::option(told, category).or_else(|| Self::legacy(told, category))
    }

    /// The same, of the config options alone.
    pub fn option(told: &Value, category: Category) -> Option<Self> {
        let options = told["configOptions"].as_array()?;
        let is_select = |option: &&Value| option["options"].is_array() && option["id"].is_string();
        let by = |key: &str| {
            options.iter().filter(is_select).find(|option| option[key].as_str() == Some(category.name()))
        };
        // A category is a hint; some agents have only the id.
        let option = by("category").or_else(|| by("id"))?;
        let entries = option["options"].as_array()?;
        let entries = entries.iter().flat_map(|entry| match entry["options"].as_array() {
            Some(group) => group.as_slice(),
            None => std::slice::from_ref(entry),
        });
        Some(Self {
            channel: Channel::Option(option["id"].as_str()?.to_owned()),
            current: option["currentValue"].as_str().map(str::to_owned),
            choices: choices(entries, "value"),
        })
    }

    /// The same, of the older lists alone.
    pub fn legacy(told: &Value, category: Category) -> Option<Self> {
        let (list, entries, id, current) = match category {
            Category::Model => ("models", "availableModels", "modelId", "currentModelId"),
            Category::Mode => ("modes", "availableModes", "id", "currentModeId"),
        };
        let list = &told[list];
        let current = list[current].as_str().map(str::to_owned);
        let choices = choices(list[entries].as_array()?.iter(), id);
        let mut found = Self { channel: Channel::Legacy, current, choices };
        // A model that an agent was started with need not be in its list; who has gone on to
        // another must be able to come back to it.
        if category == Category::Model
            && let Some(value) = found.current.clone().filter(|value| is_fine(value) && !found.offers(value))
        {
            found.choices.push(Choice { name: value.clone(), value, description: None });
        }
        Some(found)
    }

    /// Whether a value can be chosen.
    pub fn offers(&self, value: &str) -> bool {
        self.choices.iter().any(|choice| choice.value == value)
    }
}

/// Whether it can be the value of a choice.
fn is_fine(value: &str) -> bool {
    !value.is_empty() && value.len() <= LONGEST
}

fn choices<'a>(entries: impl Iterator<Item = &'a Value>, id: &str) -> Vec<Choice> {
    let text = |value: &Value| value.as_str().filter(|text| text.len() <= LONGEST).map(str::to_owned);
    let choice = |entry: &Value| {
        let value = text(&entry[id]).filter(|value| is_fine(value))?;
        let name = text(&entry["name"]).filter(|name| !name.is_empty()).unwrap_or_else(|| value.clone());
        Some(Choice { value, name, description: text(&entry["description"]) })
    };
    entries.take(MOST).filter_map(choice).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn options_count_before_older_lists() {
        let told = json!({
            "configOptions": [
                { "id": "effort", "category": "thought_level", "options": [{ "value": "high" }] },
                { "id": "m", "category": "model", "currentValue": "b", "options": [
                    { "group": "x", "options": [{ "value": "a", "name": "A", "description": "first" }] },
                    { "value": "b" }, { "value": "" }, { "value": 7 },
                ] },
            ],
            "models": { "currentModelId": "old", "availableModels": [{ "modelId": "old" }] },
            "modes": { "currentModeId": "ask", "availableModes": [{ "id": "ask", "name": "Ask" }] },
        });
        let models = Chooser::read(&told, Category::Model).unwrap();
        assert_eq!(models.channel, Channel::Option("m".into()));
        assert_eq!(models.current.as_deref(), Some("b"));
        let names: Vec<_> = models.choices.iter().map(|choice| (&*choice.value, &*choice.name)).collect();
        assert_eq!(names, [("a", "A"), ("b", "b")]);
        let modes = Chooser::read(&told, Category::Mode).unwrap();
        assert_eq!((modes.channel.clone(), modes.offers("ask")), (Channel::Legacy, true));
        assert_eq!(Chooser::legacy(&told, Category::Model).unwrap().current.as_deref(), Some("old"));
    }

    #[test]
    fn a_model_in_use_can_be_chosen_though_the_list_lacks_it() {
        let told = |current: &str| {
            json!({
                "models": { "currentModelId": current, "availableModels": [{ "modelId": "a" }] },
                "modes": { "currentModeId": current, "availableModes": [{ "id": "a" }] },
            })
        };
        let values = |current: &str, category: Category| -> Vec<String> {
            let found = Chooser::read(&told(current), category).unwrap();
            found.choices.into_iter().map(|choice| choice.value).collect()
        };
        assert_eq!(values("b", Category::Model), ["a", "b"]);
        assert_eq!(values("a", Category::Model), ["a"]);
        assert_eq!(values("", Category::Model), ["a"]);
        assert_eq!(values("b", Category::Mode), ["a"], "a mode must not be made up");
    }

    #[test]
    fn what_has_another_shape_is_not_there() {
        for told in [
            json!(null),
            json!({ "configOptions": {} }),
            json!({ "configOptions": [{ "id": "model", "type": "boolean", "currentValue": true }] }),
            json!({ "models": { "availableModels": 7 } }),
        ] {
            assert_eq!(Chooser::read(&told, Category::Model), None, "{told}");
        }
    }
}
