//! Who decides when the agent asks for permission, and how.

use bytes::Bytes;
use serde_json::{Value, json};

use super::{terminal::Style, tool::Call};
use crate::{acp, frame::escape};

/// How much of an option's name is shown.
const SHOWN_NAME: usize = 100;

/// What to do with questions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stance {
    /// `--allow`.
    Allow,
    /// `--deny`.
    Deny,
    /// Somebody sits at the terminal.
    Ask,
    /// Nobody does.
    Nobody,
}

/// An option the agent offers.
#[derive(Debug, Clone)]
struct Choice {
    id: String,
    name: String,
    kind: String,
}

/// A question of the agent.
#[derive(Debug)]
pub(super) struct Question {
    /// The request that must be answered.
    pub(super) id: Bytes,
    /// What it asked.
    pub(super) params: Value,
    /// What it is about.
    pub(super) call: Call,
    choices: Vec<Choice>,
}

/// A decision, and what to say about it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Decision {
    /// The result for the agent.
    pub(super) result: Bytes,
    /// A line for people.
    pub(super) note: String,
}

impl Question {
    pub(super) fn new(id: Bytes, call: Call, params: &Value) -> Self {
        let offered = params["options"].as_array().map(Vec::as_slice).unwrap_or_default();
        let choice = |option: &Value| {
            Some(Choice {
                id: option["optionId"].as_str()?.to_string(),
                name: option["name"].as_str().unwrap_or_default().to_string(),
                kind: option["kind"].as_str().unwrap_or_default().to_string(),
            })
        };
        let choices = offered.iter().filter_map(choice).collect();
        Self { id, params: params.clone(), call, choices }
    }

    /// Decides without asking anybody; `None` if somebody is to be asked.
    pub(super) fn decide(&self, stance: Stance) -> Option<Decision> {
        let title = self.call.title();
        match stance {
            Stance::Allow => match self.of_kind("allow_once") {
                Some(choice) => Some(select(choice, format!("allowed once (--allow): {title}"))),
                None => {
                    Some(self.reject("the agent does not offer to allow it once, and --allow means no more"))
                }
            },
            Stance::Deny => Some(self.reject("--deny")),
            Stance::Nobody => {
                Some(self.reject("there is no terminal to ask on; --allow allows what the agent asks for"))
            }
            // Nothing to choose from is nothing to ask.
            Stance::Ask if self.choices.is_empty() => Some(self.reject("the agent offers no options")),
            Stance::Ask => None,
        }
    }

    /// Decides by what was typed; `None` if it means nothing. An empty line
    /// and the end of the input reject.
    pub(super) fn reply(&self, typed: Option<&str>) -> Option<Decision> {
        let typed = typed.unwrap_or_default().trim();
        if typed.is_empty() {
            return Some(self.reject("no option was chosen"));
        }
        let number: usize = typed.parse().ok()?;
        let choice = self.choices.get(number.checked_sub(1)?)?;
        Some(select(choice, format!("{}: {}", kind(choice), self.call.title())))
    }

    /// The dialogue, up to where the answer is typed.
    pub(super) fn show(&self, style: Style) -> String {
        let title = format!("{} ({})", self.call.title(), self.call.kind());
        let mut text = format!("The agent asks for permission: {}\n", style.bold(&title));
        if !self.call.input().is_empty() {
            text.push_str(&format!("  input: {}\n", self.call.input()));
        }
        // Whoever decides about a change wants to see it.
        text.push_str(self.call.details());
        for (number, choice) in (1..).zip(&self.choices) {
            // The name is the agent's own word; the kind is what it means.
            let name = escape(choice.name.as_bytes(), SHOWN_NAME);
            let meaning = style.dim(kind(choice)).into_owned();
            text.push_str(&format!("  {number}) {name}  [{meaning}]\n"));
        }
        text + &self.hint()
    }

    /// What can be typed.
    pub(super) fn hint(&self) -> String {
        format!("Type a number from 1 to {}; Enter alone rejects: ", self.choices.len())
    }

    fn of_kind(&self, kind: &str) -> Option<&Choice> {
        self.choices.iter().find(|choice| choice.kind == kind)
    }

    /// Rejects once if that is offered, else for ever, else by ending the
    /// turn, which is all that is left.
    pub(super) fn reject(&self, why: &str) -> Decision {
        let title = self.call.title();
        match self.of_kind("reject_once").or_else(|| self.of_kind("reject_always")) {
            Some(choice) => select(choice, format!("rejected ({why}): {title}")),
            None => Decision {
                result: Bytes::from_static(acp::CANCELLED_PERMISSION),
                note: format!("cancelled ({why}; no way to reject is offered): {title}"),
            },
        }
    }
}

fn select(choice: &Choice, note: String) -> Decision {
    let result = json!({ "outcome": { "outcome": "selected", "optionId": choice.id } });
    Decision { result: Bytes::from(result.to_string()), note }
}

fn kind(choice: &Choice) -> &'static str {
    match &*choice.kind {
        "allow_once" => "allows once",
        "allow_always" => "allows always",
        "reject_once" => "rejects once",
        "reject_always" => "rejects always",
        _ => "unknown meaning",
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;
    use crate::commands::tool::Calls;

    fn question(kinds: &[&str]) -> Question {
        let options: Vec<_> = kinds
            .iter()
            .map(|kind| json!({ "optionId": format!("id-{kind}"), "name": kind, "kind": kind }))
            .collect();
        let call = Calls::default().learn(&json!({ "toolCallId": "1", "title": "Do it" }));
        Question::new(Bytes::from_static(b"1"), call, &json!({ "options": options }))
    }

    fn chosen(decision: &Decision) -> String {
        let result: Value = serde_json::from_slice(&decision.result).unwrap();
        let outcome = &result["outcome"];
        outcome["optionId"].as_str().or(outcome["outcome"].as_str()).unwrap().to_string()
    }

    #[test]
    fn allowing_never_means_always() {
        let decide = |kinds: &[&str]| question(kinds).decide(Stance::Allow).unwrap();
        assert_eq!(chosen(&decide(&["allow_always", "reject_once", "allow_once"])), "id-allow_once");
        let refused = decide(&["allow_always", "reject_once"]);
        assert_eq!(chosen(&refused), "id-reject_once");
        assert!(refused.note.contains("does not offer"), "{}", refused.note);
        assert_eq!(chosen(&decide(&["allow_always"])), "cancelled");
    }

    #[test]
    fn denying_takes_the_mildest_rejection() {
        let decide = |kinds: &[&str]| chosen(&question(kinds).decide(Stance::Deny).unwrap());
        assert_eq!(decide(&["reject_always", "allow_once", "reject_once"]), "id-reject_once");
        assert_eq!(decide(&["allow_once", "reject_always"]), "id-reject_always");
        assert_eq!(decide(&["allow_once"]), "cancelled");
        assert_eq!(decide(&[]), "cancelled");
    }

    #[test]
    fn nobody_allows_nothing() {
        let decision = question(&["allow_once", "reject_once"]).decide(Stance::Nobody).unwrap();
        assert_eq!(chosen(&decision), "id-reject_once");
        assert!(decision.note.contains("--allow"), "{}", decision.note);
    }

    #[test]
    fn what_is_typed_must_be_a_number_on_offer() {
        let question = question(&["allow_once", "allow_always", "reject_once"]);
        assert_eq!(question.decide(Stance::Ask), None);
        let reply = |typed: &str| question.reply(Some(typed)).as_ref().map(chosen);
        assert_eq!(reply("2\n").as_deref(), Some("id-allow_always"));
        assert_eq!(reply(" 1 \n").as_deref(), Some("id-allow_once"));
        for wrong in ["0\n", "4\n", "-1\n", "yes\n", "1 2\n"] {
            assert_eq!(reply(wrong), None, "{wrong}");
        }
        assert_eq!(reply("\n").as_deref(), Some("id-reject_once"));
        assert_eq!(question.reply(None).as_ref().map(chosen).as_deref(), Some("id-reject_once"));
    }

    #[test]
    fn the_dialogue_says_what_a_name_means() {
        let options =
            json!({ "options": [{ "optionId": "a", "name": "No\r\u{1b}[K", "kind": "allow_always" }] });
        let call = Calls::default().learn(&json!({ "title": "T", "rawInput": { "x": "\u{7}" } }));
        let text = Question::new(Bytes::new(), call, &options).show(Style::default());
        assert!(text.contains("  1) No\\r\\u{1b}[K  [allows always]\n"), "{text}");
        assert!(text.contains(r#"input: {"x":"\u0007"}"#), "{text}");
    }
}
