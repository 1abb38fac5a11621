//! What a user can choose for a session: model, mode and thought level.
//!
//! Modes are offered twice, as a config option and as the older `modes`, because editors of both generations
//! exist; both are made from the same value, so they cannot drift apart.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::wire::RpcError;

/// One config option and what can be chosen.
struct Choices {
    /// The id of the option, as it goes over the wire.
    id: &'static str,
    category: &'static str,
    name: &'static str,
    description: &'static str,
    /// Value, name, description; the first is the default.
    values: &'static [(&'static str, &'static str, &'static str)],
}

const MODEL: Choices = Choices {
    id: "model",
    category: "model",
    name: "Model",
    description: "There is no model behind either; the choice is only shown back to you",
    values: &[
        ("demo-small", "Demo Small", "Claims a context of 8,000 tokens"),
        ("demo-large", "Demo Large", "Claims a context of 200,000 tokens"),
    ],
};

const MODE: Choices = Choices {
    id: "mode",
    category: "mode",
    name: "Mode",
    description: "When the agent asks before it acts",
    values: &[
        ("ask", "Ask", "Asks before every write and every command"),
        ("code", "Code", "Asks too, and remembers for this session an answer that says always"),
        ("yolo", "Yolo", "Never asks"),
    ],
};

const THOUGHT: Choices = Choices {
    id: "thought_level",
    category: "thought_level",
    name: "Thought level",
    description: "How many thoughts the think command shows",
    values: &[
        ("low", "Low", "Two thoughts"),
        ("high", "High", "Five thoughts"),
        ("off", "Off", "No thoughts at all"),
    ],
};

/// What is chosen in one session.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) struct Settings {
    pub(super) model: String,
    pub(super) mode: String,
    pub(super) thought_level: String,
}

impl Default for Settings {
    fn default() -> Self {
        let first = |choices: &Choices| choices.values[0].0.to_owned();
        Self { model: first(&MODEL), mode: first(&MODE), thought_level: first(&THOUGHT) }
    }
}

/// What a choice changed, and so what has to be announced.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Change {
    Nothing,
    Option,
    /// The mode, which has two faces.
    Mode,
}

impl Settings {
    /// Chooses a value of an option.
    pub(super) fn choose(&mut self, option: &str, value: &str) -> Result<Change, RpcError> {
        let (choices, slot, change) = match option {
            "model" => (&MODEL, &mut self.model, Change::Option),
            "mode" => (&MODE, &mut self.mode, Change::Mode),
            "thought_level" => (&THOUGHT, &mut self.thought_level, Change::Option),
            _ => {
                let message = format!("no config option {option:?}; there are model, mode and thought_level");
                return Err(RpcError::bad_params(message));
            }
        };
        if !choices.values.iter().any(|(known, ..)| *known == value) {
            let known: Vec<_> = choices.values.iter().map(|(known, ..)| *known).collect();
            let message = format!("{option} cannot be {value:?}; choose one of {}", known.join(", "));
            return Err(RpcError::bad_params(message));
        }
        if slot == value {
            return Ok(Change::Nothing);
        }
        *slot = value.to_owned();
        Ok(change)
    }

    /// The same settings with every value that is no longer offered set back to its default.
    pub(super) fn checked(&self) -> Self {
        let mut checked = Self::default();
        for (option, value) in
            [("model", &self.model), ("mode", &self.mode), ("thought_level", &self.thought_level)]
        {
            // A value that is refused leaves the default in place, which is what we want.
            let _ = checked.choose(option, value);
        }
        checked
    }

    /// The complete `configOptions`.
    pub(super) fn config_options(&self) -> Value {
        let option = |choices: &Choices, current: &str| {
            let values: Vec<_> = choices
                .values
                .iter()
                .map(|(value, name, description)| json!({ "value": value, "name": name, "description": description }))
                .collect();
            json!({
                "id": choices.id,
                "name": choices.name,
                "description": choices.description,
                "category": choices.category,
                "type": "select",
                "currentValue": current,
                "options": values,
            })
        };
        json!([option(&MODEL, &self.model), option(&MODE, &self.mode), option(&THOUGHT, &self.thought_level)])
    }

    /// The older face of the mode.
    pub(super) fn modes(&self) -> Value {
        let available: Vec<_> = MODE
            .values
            .iter()
            .map(|(id, name, description)| json!({ "id": id, "name": name, "description": description }))
            .collect();
        json!({ "currentModeId": self.mode, "availableModes": available })
    }

    /// The updates that tell a client of a change.
    pub(super) fn announcements(&self, change: Change) -> Vec<Value> {
        let options =
            json!({ "sessionUpdate": "config_option_update", "configOptions": self.config_options() });
        match change {
            Change::Nothing => vec![],
            Change::Option => vec![options],
            Change::Mode => {
                vec![json!({ "sessionUpdate": "current_mode_update", "currentModeId": self.mode }), options]
            }
        }
    }

    /// The context size that the chosen model claims.
    pub(super) fn context_size(&self) -> u64 {
        if self.model == "demo-large" { 200_000 } else { 8_000 }
    }

    /// How many thoughts the thought level shows.
    pub(super) fn thoughts(&self) -> usize {
        match self.thought_level.as_str() {
            "off" => 0,
            "high" => 5,
            _ => 2,
        }
    }
}
