//! What happens when a session has come to an agent: it is counted, the agent is
//! set to what was chosen, and everyone learns what there is from now on.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{
    Session, Way,
    flight::{Request, Said},
    routing::LONGEST_ANSWER,
};
use crate::{catalogue::Offer, frame::Peek, store::Bound};

/// Sessions of agents that are remembered of one session.
const MOST_BOUND: usize = 32;

/// Bytes of commands that are kept of one agent, to be announced again.
const MOST_COMMANDS: usize = 1 << 20;

impl Session {
    /// Gives the agent's session its number.
    pub(super) fn count_binding(&mut self, name: &[u8], way: Way) {
        let session: String = serde_json::from_slice(name).unwrap_or_default();
        let agent = self.agent().to_owned();
        let bound = &mut self.routing.bound;
        let last = bound.iter().map(|bound| bound.number).max().unwrap_or(0);
        let known = bound.iter().find(|bound| bound.agent == agent && bound.session == session);
        let is_new = matches!(way, Way::New | Way::Handover);
        self.routing.number = match known.filter(|_| !is_new) {
            Some(known) => known.number,
            None => {
                // What was opened before there were numbers is the first.
                let number = if is_new { last.max(self.routing.number) + 1 } else { last.max(1) };
                if bound.len() >= MOST_BOUND {
                    bound.remove(0);
                }
                bound.push(Bound { agent, session, number, seen: 0 });
                number
            }
        };
    }

    /// Up to where the agent knows the conversation, if it has missed some of it.
    pub(super) fn missed_since(&self, way: Way) -> Option<u64> {
        if !matches!(way, Way::Resume | Way::Load | Way::Back) || !self.routing.has_moved {
            return None;
        }
        let name: String = serde_json::from_slice(&self.binding.as_ref()?.name).ok()?;
        self.routing
            .bound
            .iter()
            .find(|bound| bound.session == name && bound.agent == self.agent())
            .map(|bound| bound.seen)
    }

    /// Whether the agent has what it is to be set to; if not, it is not the one.
    pub(super) fn is_wish_fit(&mut self) -> bool {
        let Some(target) = self.routing.target.clone().filter(|_| self.routing.has_moved) else {
            return true;
        };
        let denied = self.wish_denied(&target);
        match denied.map_or_else(|| self.wishes(&target, &self.options), Err) {
            Ok(_) => true,
            Err(refusal) => {
                // Said once; asked for again with every request, it would keep the session
                // from this agent, and from any choice.
                if let Some(target) = &mut self.routing.target {
                    (target.model, target.mode) = (None, None);
                }
                self.not_bound(&refusal);
                false
            }
        }
    }

    /// Whether the session has come from another agent and nobody knows yet.
    pub(super) fn has_moved(&mut self) -> bool {
        std::mem::take(&mut self.routing.has_moved)
    }

    /// The session is with another agent now.
    pub(super) fn arrive(&mut self) {
        let config = self.open.config.borrow().clone();
        let title = config.agents.get(self.agent()).and_then(|agent| agent.title.clone());
        let title = title.unwrap_or_else(|| self.agent().to_owned());
        let text = match self.handover {
            Some(_) => "It gets what it has not heard of this session with your prompt.",
            None => "It knows this session.",
        };
        self.say_notice("info", &format!("{title} goes on"), text);
        let number = self.routing.number;
        if let Some((_, commands)) = self.commands.iter().find(|(of, _)| *of == number) {
            let update =
                json!({ "sessionUpdate": "available_commands_update", "availableCommands": commands });
            self.say_update(&update);
        }
        if let Some(entries) = self.plan.clone() {
            self.say_update(&json!({ "sessionUpdate": "plan", "entries": entries }));
        }
        self.renew_picker();
        self.announce();
        if let Some(target) = self.routing.target.clone()
            && let Ok(calls) = self.wishes(&target, &self.options)
        {
            self.ask_for(calls);
        }
    }

    /// The session leaves its agent, whose commands are not to be had any more.
    pub(super) fn depart(&mut self) {
        let number = self.routing.number;
        let has_some = |(of, commands): &(u32, Value)| {
            *of == number && commands.as_array().is_some_and(|commands| !commands.is_empty())
        };
        if self.commands.iter().any(has_some) {
            self.say_update(
                &json!({ "sessionUpdate": "available_commands_update", "availableCommands": [] }),
            );
        }
    }

    /// Keeps what an agent announces, for when the session comes back to it.
    pub(super) fn keep_announcement(&mut self, bytes: &[u8], peek: &Peek) {
        let params = peek.params.of(bytes);
        if params.len() > MOST_COMMANDS {
            return;
        }
        let mut params: Value = serde_json::from_slice(params).unwrap_or_default();
        let mut update = params["update"].take();
        if peek.update.of(bytes) == b"\"plan\"" {
            self.plan = Some(update["entries"].take()).filter(Value::is_array);
            return;
        }
        // Some come before the agent's session has its number.
        let number = if self.way.is_some() { 0 } else { self.routing.number };
        self.commands.retain(|(of, _)| *of != number);
        self.commands.push((number, update["availableCommands"].take()));
        if self.commands.len() > MOST_BOUND {
            self.commands.remove(0);
        }
    }

    /// Takes note of options that an agent tells by itself.
    pub(super) fn hear_options(&mut self, bytes: &[u8], peek: &Peek) {
        let params = super::members::Members::of(peek.params.of(bytes));
        if let Some(update) = params.and_then(|params| params.get("update").map(str::to_owned)) {
            self.take_options(update.as_bytes());
        }
        if self.way.is_none() {
            self.announce();
        }
    }

    /// Takes note of what the agent says in a turn that another one may take over.
    pub(super) fn take_note_of_words(&mut self, bytes: &[u8], peek: &Peek) {
        let Some(turn) = self.turn.as_mut().filter(|turn| turn.prompt.is_some()) else { return };
        let is_message = peek.update.of(bytes) == b"\"agent_message_chunk\"";
        let params: Value = match is_message && turn.said != Said::More {
            true => serde_json::from_slice(peek.params.of(bytes)).unwrap_or_default(),
            false => Value::Null,
        };
        let text = params["update"]["content"]["text"].as_str();
        turn.said = match (std::mem::replace(&mut turn.said, Said::More), text) {
            (Said::Nothing, Some(text)) => Said::Only(text.to_owned()),
            (Said::Only(said), Some(text)) => Said::Only(said + text),
            _ => Said::More,
        };
        if matches!(&turn.said, Said::Only(text) if text.len() > LONGEST_ANSWER) {
            turn.said = Said::More;
        }
    }

    /// A model was set at an agent that tells nobody.
    pub(super) fn model_set(&mut self, request: &Request) {
        if let Some(model) = &request.sets_model
            && self.options["models"].is_object()
        {
            self.options["models"]["currentModelId"] = model.as_str().into();
        }
    }

    /// The catalogue learns what the agent offers.
    pub(super) fn learn_offer(&self) {
        let Some(binding) = &self.binding else { return };
        // Others are shown it, and it is kept.
        let clean = self.recorder.redacted_value(&self.options);
        let offer = Offer::read(binding.process().hello.version(), clean.as_ref().unwrap_or(&self.options));
        let before = self.open.catalogue.offers().get(self.agent()).cloned();
        // What a session was set to is not what the agent uses by itself.
        let model = before.as_ref().and_then(|before| before.model.clone()).or_else(|| offer.model.clone());
        let offer = Offer { model, ..offer };
        self.open.catalogue.learn(self.agent(), offer);
    }

    /// What other agents offer has changed, or which there are.
    pub(super) fn offers_changed(&mut self) {
        if self.is_open && self.way.is_none() {
            self.renew_picker();
            self.announce();
            self.commit(super::Input::Nothing);
        }
    }

    /// Whether the agent takes embedded resources.
    pub(super) fn takes_resources(&self) -> bool {
        let hello = self.binding.as_ref().map(|binding| Arc::clone(binding.process()));
        hello.is_some_and(|process| {
            process.hello.result["agentCapabilities"]["promptCapabilities"]["embeddedContext"] == true
        })
    }
}
