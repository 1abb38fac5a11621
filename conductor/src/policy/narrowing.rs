//! What a repository or a user adds to the rules, which can only narrow them.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{Effect, Policy};

/// A text that narrows the rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Narrowing {
    /// Where it stands.
    pub origin: String,
    /// What it says, or why that cannot be read.
    pub text: Result<String, String>,
    /// What becomes of everything if it cannot be used.
    pub otherwise: Effect,
}

impl Narrowing {
    /// Bytes of it.
    pub fn size(&self) -> usize {
        let (Ok(text) | Err(text)) = &self.text;
        self.origin.len() + text.len()
    }

    /// As it is recorded.
    pub fn noted(&self) -> Value {
        let mut noted = json!({ "origin": self.origin, "otherwise": self.otherwise });
        match &self.text {
            Ok(text) => noted["text"] = text.as_str().into(),
            Err(why) => noted["unread"] = why.as_str().into(),
        }
        noted
    }

    /// From a record; none if it is not one of these.
    pub fn from_note(noted: &Value) -> Option<Self> {
        let text = |key: &str| noted[key].as_str().map(str::to_owned);
        let otherwise = serde_json::from_value(noted["otherwise"].clone()).ok()?;
        let said = text("text").map(Ok).or_else(|| text("unread").map(Err))?;
        Some(Self { origin: text("origin")?, text: said, otherwise })
    }
}

impl Policy {
    /// These rules, and what all of these add.
    #[must_use]
    pub fn narrowed_by(self: Arc<Self>, all: &[Narrowing]) -> Arc<Self> {
        all.iter().fold(self, |policy, Narrowing { origin, text, otherwise }| {
            let narrowed = match text {
                Ok(text) => policy.narrowed_or(origin, text, *otherwise),
                Err(why) => policy.narrowed_unread(origin, why, *otherwise),
            };
            narrowed.into()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_recorded_is_read_again() {
        for text in [Ok("use = []".to_owned()), Err("not a file".to_owned())] {
            let narrowing = Narrowing { origin: "/repo".into(), text, otherwise: Effect::Deny };
            assert_eq!(Narrowing::from_note(&narrowing.noted()), Some(narrowing));
        }
        for other in [json!({}), json!({ "origin": "x", "otherwise": "ask" }), json!(1)] {
            assert_eq!(Narrowing::from_note(&other), None);
        }
    }
}
