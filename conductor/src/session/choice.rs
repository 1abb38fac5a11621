//! What people have chosen for a session: agent, model, mode, labels.

use std::{collections::BTreeMap, path::Path};

use serde_json::Value;

use crate::{
    acp::{Refusal, code},
    frame::Frame,
    identity::Caller,
    options::Category,
    routes::Asked,
};

/// Labels that a request may have.
const MOST_LABELS: usize = 32;

/// What was chosen.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Choice {
    /// An agent by its name.
    pub agent: Option<String>,
    /// A model; its name may tell the agent, too.
    pub model: Option<String>,
    /// A mode.
    pub mode: Option<String>,
    /// Which of the two was chosen last.
    pub last: Option<Category>,
    /// What requests say of themselves.
    pub labels: BTreeMap<String, String>,
}

impl Choice {
    /// The same as a question to the routes.
    pub fn asked<'a>(&'a self, caller: &'a Caller, cwd: &'a Path, bound: Option<&'a str>) -> Asked<'a> {
        Asked {
            user: &caller.user,
            teams: &caller.teams,
            cwd,
            labels: &self.labels,
            agent: self.agent.as_deref(),
            model: self.model.as_deref(),
            mode: self.mode.as_deref(),
            last: self.last,
            bound,
        }
    }

    /// Somebody chooses a model.
    pub fn choose_model(&mut self, model: String) {
        (self.agent, self.model, self.last) = (None, Some(model), Some(Category::Model));
    }

    /// Somebody chooses a mode.
    pub fn choose_mode(&mut self, mode: String) {
        (self.mode, self.last) = (Some(mode), Some(Category::Mode));
    }

    /// Takes over what the `_meta.conductor` of a request chooses.
    pub fn take_meta(&mut self, frame: &Frame) -> Result<(), Refusal> {
        let params = frame.get(frame.peek().params);
        // Prompts may be long, and few of them say anything here.
        if memchr::memmem::find(params, b"conductor").is_none() {
            return Ok(());
        }
        let params: Value = serde_json::from_slice(params).unwrap_or_default();
        let given = &params["_meta"]["conductor"];
        let text = |name: &str| match &given[name] {
            Value::Null => Ok(None),
            Value::String(text) if !text.is_empty() => Ok(Some(text.clone())),
            _ => Err(invalid(&format!("_meta.conductor.{name} must be a text"))),
        };
        let (agent, model, mode) = (text("agent")?, text("model")?, text("mode")?);
        if let Some(mode) = mode {
            self.choose_mode(mode);
        }
        if agent.is_some() || model.is_some() {
            // A model alone is one of the agent that was named before, if any was.
            let named = agent.or_else(|| self.agent.take().filter(|_| self.last.is_none()));
            (self.agent, self.model, self.last) = (named, model, Some(Category::Model));
        }
        match &given["labels"] {
            Value::Null => {}
            Value::Object(labels) if labels.len() <= MOST_LABELS => {
                self.labels.clear();
                for (name, value) in labels {
                    let value =
                        value.as_str().ok_or_else(|| invalid("_meta.conductor.labels must be texts"))?;
                    self.labels.insert(name.clone(), value.to_owned());
                }
            }
            _ => {
                let text = format!("_meta.conductor.labels must be an object of at most {MOST_LABELS} texts");
                return Err(invalid(&text));
            }
        }
        Ok(())
    }
}

fn invalid(text: &str) -> Refusal {
    Refusal::new(code::INVALID_PARAMS, text)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use bytes::Bytes;
    use serde_json::json;

    use super::*;

    fn taken(before: &Choice, meta: &Value) -> Result<Choice, Refusal> {
        let params = json!({ "_meta": { "conductor": meta } });
        let line =
            json!({ "jsonrpc": "2.0", "id": 1, "method": "session/prompt", "params": params }).to_string();
        let mut choice = before.clone();
        choice.take_meta(&Frame::parse(Bytes::from(line)).unwrap()).map(|()| choice)
    }

    #[test]
    fn a_request_may_choose() {
        let before = Choice { agent: Some("a".into()), ..Choice::default() };
        assert_eq!(taken(&before, &json!({ "observe": true })).unwrap(), before);
        let model = taken(&before, &json!({ "model": "m" })).unwrap();
        assert_eq!((model.agent.as_deref(), model.model.as_deref()), (Some("a"), Some("m")));
        let other = taken(&model, &json!({ "model": "b/m" })).unwrap();
        assert_eq!((other.agent.as_deref(), other.model.as_deref()), (None, Some("b/m")));
        let mode = taken(&other, &json!({ "mode": "plan", "labels": { "a": "b" } })).unwrap();
        assert_eq!((mode.last, mode.labels.len()), (Some(Category::Mode), 1));
        for bad in [
            json!({ "model": 7 }),
            json!({ "agent": "" }),
            json!({ "labels": [] }),
            json!({ "labels": { "a": 1 } }),
        ] {
            assert_eq!(taken(&before, &bad).unwrap_err().code, code::INVALID_PARAMS, "{bad}");
        }
    }
}
