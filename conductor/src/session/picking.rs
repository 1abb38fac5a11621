//! An editor chooses a model or a mode in the picker: what it means, whether it may
//! be, and in which words the agent hears of it, if it does.

use serde_json::{Value, json};

use super::{Session, members::with_members, outbox::About, picker::NO_MODE};
use crate::{
    acp::{self, Refusal, code},
    frame::{self, Frame, Method},
    options::{Category, Channel, Chooser},
    policy::{Action, Effect},
    routes::{Decision, Target},
};

/// What becomes of an editor's choice.
pub(super) enum Picked {
    /// The agent hears of it as it is.
    AsIs,
    /// The agent hears of it in these words.
    As(Frame),
    /// It has its answer.
    Answered,
}

impl Session {
    /// An editor chooses something that the picker shows.
    pub(super) fn picked(&mut self, seat: u32, frame: &Frame) -> Picked {
        // Prompts may be long, and choose nothing here.
        if !matches!(frame.peek().method, Method::SessionSetMode | Method::SessionSetConfigOption) {
            return Picked::AsIs;
        }
        let params: Value = frame.decode(frame.peek().params).unwrap_or_default();
        let (category, value) = match frame.peek().method {
            Method::SessionSetMode => (Some(Category::Mode), &params["modeId"]),
            _ => (self.category_of(params["configId"].as_str().unwrap_or_default()), &params["value"]),
        };
        let (Some(category), Some(value)) = (category, value.as_str()) else { return Picked::AsIs };
        let mut choice = self.routing.choice.clone();
        match category {
            Category::Model => choice.choose_model(self.full_model(value)),
            Category::Mode => choice.choose_mode(value.to_owned()),
        }
        let target = match self.decide(&choice).and_then(|decision| self.checked(decision, category, value)) {
            Ok(target) => target,
            Err(refusal) => {
                self.answer(seat, refusal.frame(frame.get(frame.peek().id)));
                return Picked::Answered;
            }
        };
        let is_here = target.agent == self.agent();
        let wanted = match category {
            Category::Model => target.model.as_deref(),
            Category::Mode => target.mode.as_deref().or(is_here.then_some(value)),
        };
        if let Some(refusal) = self.choice_denied(frame, &target.agent, category, wanted) {
            self.answer(seat, refusal.frame(frame.get(frame.peek().id)));
            return Picked::Answered;
        }
        let own = Chooser::read(&self.options, category);
        let offered = wanted.filter(|wanted| own.as_ref().is_some_and(|own| own.offers(wanted)));
        // A model of another agent's does not keep this one's mode.
        if category == Category::Model && target.agent != self.agent() && target.mode.is_none() {
            choice.mode = None;
        }
        self.routing.choice = choice;
        match (is_here, own, offered) {
            (true, Some(own), Some(wanted)) => {
                self.routing.decided = Some(self.routing.choice.clone());
                self.in_words_of(frame, &own.channel, category, wanted)
            }
            _ => {
                if is_here {
                    // The agent has nothing to be set; a mode of a route's may have.
                    let is_set = category == Category::Model && target.model.is_none();
                    if is_set || value == NO_MODE {
                        self.routing.decided = Some(self.routing.choice.clone());
                    }
                }
                self.answer_choice(seat, frame);
                Picked::Answered
            }
        }
    }

    /// A value of the picker, or the name of a model of the agent at hand, with the
    /// agent's name.
    fn full_model(&self, value: &str) -> String {
        let own = Chooser::read(&self.options, Category::Model);
        let is_own = own.is_some_and(|own| own.offers(value));
        if is_own { format!("{}/{value}", self.agent()) } else { value.to_owned() }
    }

    /// Where a choice leads, unless nobody has it.
    fn checked(&self, decision: Decision, category: Category, value: &str) -> Result<Target, Refusal> {
        let unknown = || {
            let text =
                format!("there is no {} `{}` here", category.name(), frame::escape(value.as_bytes(), 100));
            Refusal::new(code::INVALID_PARAMS, text)
        };
        let target = decision.targets.into_iter().next().ok_or_else(unknown)?;
        let is_known = match category {
            Category::Model => {
                let offers = self.open.catalogue.offers();
                let models = match target.agent == self.agent() {
                    true => Chooser::read(&self.options, category).map(|own| own.choices),
                    false => offers.get(&target.agent).map(|offer| offer.models.clone()),
                };
                let has = |model: &String| {
                    models.as_ref().is_none_or(|models| models.iter().any(|own| own.value == *model))
                };
                match &target.model {
                    Some(model) => has(model),
                    // The name of an agent alone.
                    None => {
                        target.agent == value || value.strip_prefix("acp:") == Some(target.agent.as_str())
                    }
                }
            }
            Category::Mode => self.shown().is_none_or(|shown| {
                let modes: Value =
                    shown.modes.and_then(|modes| serde_json::from_str(&modes).ok()).unwrap_or_default();
                let modes = modes["availableModes"].as_array().cloned().unwrap_or_default();
                modes.iter().any(|mode| mode["id"] == value)
            }),
        };
        if is_known { Ok(target) } else { Err(unknown()) }
    }

    /// Why a choice is not made: the policy denies what it would set, or the agent.
    fn choice_denied(
        &mut self,
        frame: &Frame,
        agent: &str,
        category: Category,
        wanted: Option<&str>,
    ) -> Option<Refusal> {
        if agent != self.agent()
            && let Err(refusal) = self.may_use(agent)
        {
            return Some(refusal);
        }
        let wanted = wanted?.to_owned();
        let action = match category {
            Category::Model => Action::Model(wanted),
            Category::Mode => Action::Mode(wanted),
        };
        let ruling = self.rule(&action);
        self.note_ruling(&ruling, &frame.method_name(), About::Frame);
        (ruling.effect == Effect::Deny).then(|| ruling.refusal())
    }

    /// The same request as the agent takes it.
    fn in_words_of(&self, frame: &Frame, channel: &Channel, category: Category, value: &str) -> Picked {
        let is_option = frame.peek().method == Method::SessionSetConfigOption;
        let id = String::from_utf8_lossy(frame.get(frame.peek().id)).into_owned();
        let session = self.open.id.to_string();
        let (method, params) = match (channel, category) {
            (Channel::Option(option), _) if is_option => {
                let members = [("configId", json!(option).to_string()), ("value", json!(value).to_string())];
                let params = frame.get(frame.peek().params);
                let bytes = with_members(frame.bytes(), params, &members);
                return match bytes.and_then(|bytes| Frame::parse(bytes).ok()) {
                    Some(frame) => Picked::As(frame),
                    None => Picked::AsIs,
                };
            }
            (Channel::Option(option), _) => (
                "session/set_config_option",
                json!({ "sessionId": session, "configId": option, "value": value }),
            ),
            (Channel::Legacy, Category::Mode) if !is_option => return Picked::AsIs,
            (Channel::Legacy, Category::Mode) => {
                ("session/set_mode", json!({ "sessionId": session, "modeId": value }))
            }
            (Channel::Legacy, Category::Model) => {
                ("session/set_model", json!({ "sessionId": session, "modelId": value }))
            }
        };
        let line = acp::call(Some(id), method, &params);
        match Frame::parse(line.slice(..line.len() - 1)) {
            Ok(frame) => Picked::As(frame),
            Err(_) => Picked::AsIs,
        }
    }
}
