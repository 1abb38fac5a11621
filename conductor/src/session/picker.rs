//! One picker for all agents: the models of every agent that the user may use
//! are values of one option, and modes that lead to another agent stand beside
//! those of the agent at work. Its other options pass as they are.
//!
//! Config options and the older `modes` are kept as twins: whoever knows the
//! options looks at nothing else, so what an agent tells in one form only is
//! shown in both. A session with one agent to choose from is left alone.

use serde_json::{Value, json, value::RawValue};

use super::{Session, adapt::withheld, members::with_members};
use crate::{
    acp,
    catalogue::{
        Offer,
        listing::{self, Listed},
    },
    config::Agent,
    frame::{Frame, Span},
    options::{Category, Channel, Choice, Chooser},
    pool::AgentState,
    record::Destination,
    routes,
};

/// The id of the option that has all models.
const MODEL: &str = "model";

/// Its id where the agent has another option of that name.
const OTHER_MODEL: &str = "conductor.model";

/// The id of an option that stands for modes which an agent tells only in the
/// older form.
pub(super) const MODE: &str = "mode";

/// The mode of an agent that has none, where routes have some.
pub(super) const NO_MODE: &str = "default";

/// What there is to pick from.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Picker {
    agents: Vec<Pickable>,
    /// Modes that are a route's.
    modes: Vec<String>,
}

/// An agent in the picker.
#[derive(Debug, PartialEq, Eq)]
struct Pickable {
    name: String,
    title: String,
    models: Vec<Choice>,
}

/// What the agent has told last, as it stands in its frames.
#[derive(Debug, Default)]
pub(super) struct Told {
    pub(super) options: Option<Box<RawValue>>,
    pub(super) modes: Option<Box<RawValue>>,
    /// The mode, by whichever of the two told it last.
    pub(super) mode: Option<String>,
}

/// What the editor is shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Shown {
    /// `configOptions`, as JSON.
    pub(super) options: String,
    /// `modes`, as JSON, if there are any.
    pub(super) modes: Option<String>,
    /// The mode that counts.
    pub(super) mode: Option<String>,
}

impl Shown {
    fn members(&self) -> Vec<(&'static str, String)> {
        let modes = self.modes.iter().map(|modes| ("modes", modes.clone()));
        std::iter::once(("configOptions", self.options.clone())).chain(modes).collect()
    }

    /// The same as a value.
    pub(super) fn value(&self) -> Value {
        let read = |text: &String| serde_json::from_str::<Value>(text).ok();
        let mut value = json!({});
        for (name, text) in self.members() {
            value[name] = read(&text).unwrap_or_default();
        }
        value
    }
}

impl Session {
    /// The agent that the session is with.
    pub(super) fn agent(&self) -> &str {
        &self.open.berth.key.agent
    }

    /// Looks anew at what there is to pick from.
    pub(super) fn renew_picker(&mut self) {
        let config = self.open.config.borrow().clone();
        let offers = self.open.catalogue.offers();
        let status = self.pool.status().borrow().clone();
        let bound = self.agent().to_owned();
        let mut agents = Vec::new();
        for (name, agent) in &config.agents {
            let offer = offers.get(name);
            let is_ready =
                || status.iter().any(|status| *status.name == **name && status.state == AgentState::Ready);
            let is_shown = || listing::is_offered(agent, &config.default);
            let is_usable = || offer.is_none_or(|offer| offer.problem.is_none());
            if *name != bound && !(is_shown() && is_usable() && is_ready() && self.may_use(name).is_ok()) {
                continue;
            }
            let models = match *name == bound {
                true => Chooser::read(&self.options, Category::Model).map(|own| own.choices),
                false => offer.map(|offer| offer.models.clone()),
            };
            let models = offered(Category::Model, agent, models.unwrap_or_default());
            agents.push(Pickable { name: name.clone(), title: title(agent), models });
        }
        let asked = self.routing.choice.asked(&self.open.caller, &self.open.cwd, None);
        let modes: Vec<String> =
            routes::routed_modes(&asked, &config).into_iter().map(str::to_owned).collect();
        self.picker = (agents.len() > 1 || !modes.is_empty()).then_some(Picker { agents, modes });
    }

    /// Whether options are shown in another form than the agent's.
    pub(super) fn picks(&self) -> bool {
        self.picker.is_some()
    }

    /// What the editor is to see; `None` if that is what the agent says.
    pub(super) fn shown(&self) -> Option<Shown> {
        let picker = self.picker.as_ref()?;
        let told = self.told.options.as_ref().map_or("[]", |options| options.get());
        let told: Vec<&RawValue> = serde_json::from_str(told).unwrap_or_default();
        let id_of = |category| match Chooser::option(&self.options, category).map(|own| own.channel) {
            Some(Channel::Option(id)) => Some(id),
            _ => None,
        };
        let (model, mode) = (id_of(Category::Model), id_of(Category::Mode));
        let modes = self.shown_modes(picker);
        let current = self.shown_mode(picker);
        let mut options = vec![self.model_option(picker, model.as_deref()).to_string()];
        let mut has_mode = false;
        for raw in told {
            let option: Value = serde_json::from_str(raw.get()).unwrap_or_default();
            match option["id"].as_str() {
                Some(id) if Some(id) == model.as_deref() => {}
                Some(id) if Some(id) == mode.as_deref() => {
                    has_mode = true;
                    options.push(self.mode_option(raw, option, picker, current.as_deref()));
                }
                _ => options.push(raw.get().to_owned()),
            }
        }
        if !has_mode && !modes.is_empty() {
            let option = json!({
                "id": MODE, "name": "Mode", "category": MODE, "type": "select", "currentValue": current,
                "options": modes.iter().map(|mode| entry(mode, "value")).collect::<Vec<_>>(),
            });
            options.push(option.to_string());
        }
        let own = self.told.modes.as_ref().filter(|own| {
            let said: Value = serde_json::from_str(own.get()).unwrap_or_default();
            picker.modes.is_empty() && said["currentModeId"].as_str() == current.as_deref()
        });
        let twin = match own {
            Some(own) => Some(own.get().to_owned()),
            None => (!modes.is_empty()).then(|| {
                let all: Vec<Value> = modes.iter().map(|mode| entry(mode, "id")).collect();
                json!({ "currentModeId": current, "availableModes": all }).to_string()
            }),
        };
        Some(Shown { options: format!("[{}]", options.join(",")), modes: twin, mode: current })
    }

    /// The option with the models of all agents.
    fn model_option(&self, picker: &Picker, own: Option<&str>) -> Value {
        let values = picker.agents.iter().flat_map(|agent| {
            let alone = agent.models.is_empty().then(|| json!({ "value": agent.name, "name": agent.title }));
            let models = agent.models.iter().map(|model| {
                let name = format!("{} · {}", agent.title, model.name);
                let choice =
                    Choice { value: format!("{}/{}", agent.name, model.value), name, ..model.clone() };
                entry(&choice, "value")
            });
            alone.into_iter().chain(models)
        });
        json!({
            "id": self.model_id(own), "name": "Model", "category": MODEL, "type": "select",
            "currentValue": self.shown_model(), "options": values.collect::<Vec<_>>(),
        })
    }

    /// The id of that option; `own` is the agent's.
    fn model_id(&self, own: Option<&str>) -> &'static str {
        let options = self.options["configOptions"].as_array().map(Vec::as_slice).unwrap_or_default();
        let is_taken = own != Some(MODEL) && options.iter().any(|option| option["id"] == MODEL);
        if is_taken { OTHER_MODEL } else { MODEL }
    }

    /// The value of what is chosen, or in use.
    fn shown_model(&self) -> String {
        if let Some(target) = self.pending_target() {
            return value_of(&target.agent, target.model.as_deref());
        }
        let own = Chooser::read(&self.options, Category::Model);
        value_of(self.agent(), own.and_then(|own| own.current).as_deref())
    }

    /// The modes that can be chosen: the agent's own, then those of routes.
    fn shown_modes(&self, picker: &Picker) -> Vec<Choice> {
        let plain = |mode: &str| Choice { value: mode.to_owned(), name: mode.to_owned(), description: None };
        let config = self.open.config.borrow().clone();
        let own = Chooser::read(&self.options, Category::Mode).map(|own| own.choices).unwrap_or_default();
        let mut modes = match config.agents.get(self.agent()) {
            Some(agent) => offered(Category::Mode, agent, own),
            None => own,
        };
        if modes.is_empty() && !picker.modes.is_empty() {
            modes.push(Choice { name: "Default".into(), ..plain(NO_MODE) });
        }
        for mode in &picker.modes {
            if !modes.iter().any(|own| own.value == *mode) {
                modes.push(plain(mode));
            }
        }
        modes
    }

    /// The mode that is chosen or in force.
    fn shown_mode(&self, picker: &Picker) -> Option<String> {
        let own = Chooser::read(&self.options, Category::Mode);
        let offers = |mode: &String| own.as_ref().is_some_and(|own| own.offers(mode));
        let routed = self.routing.choice.mode.as_ref().filter(|mode| picker.modes.contains(mode));
        let routed = routed.filter(|mode| !offers(mode) || self.pending_target().is_some());
        let current = || self.told.mode.clone().or_else(|| own.as_ref()?.current.clone());
        routed.cloned().or_else(current).or_else(|| (!picker.modes.is_empty()).then(|| NO_MODE.to_owned()))
    }

    /// The agent's own option with what routes add to it; as it is if they add
    /// nothing.
    fn mode_option(
        &self,
        raw: &RawValue,
        mut option: Value,
        picker: &Picker,
        current: Option<&str>,
    ) -> String {
        let own = Chooser::option(&self.options, Category::Mode);
        let is_new = |mode: &&String| own.as_ref().is_none_or(|own| !own.offers(mode));
        let more: Vec<Value> =
            picker.modes.iter().filter(is_new).map(|mode| json!({ "value": mode, "name": mode })).collect();
        if more.is_empty() && option["currentValue"].as_str() == current {
            return raw.get().to_owned();
        }
        option["currentValue"] = current.into();
        if let Some(entries) = option["options"].as_array_mut() {
            match entries.first().is_some_and(|entry| entry["options"].is_array()) {
                true => entries.push(json!({ "group": "conductor", "name": "Routes", "options": more })),
                false => entries.extend(more),
            }
        }
        option.to_string()
    }

    /// The category of an option that the picker shows, by the id it has there.
    pub(super) fn category_of(&self, id: &str) -> Option<Category> {
        let own = |category| match Chooser::option(&self.options, category).map(|own| own.channel) {
            Some(Channel::Option(id)) => Some(id),
            _ => None,
        };
        if id == self.model_id(own(Category::Model).as_deref()) {
            return Some(Category::Model);
        }
        let mode = own(Category::Mode);
        (mode.as_deref().unwrap_or(MODE) == id).then_some(Category::Mode)
    }

    /// A frame of the agent in whose object the options stand as they are shown.
    pub(super) fn with_shown(&self, frame: &Frame, object: Span) -> Option<Frame> {
        let members = self.shown()?.members();
        let object = if object.is_none() { return None } else { frame.get(object) };
        let bytes = with_members(frame.bytes(), object, &members)?;
        Frame::parse(bytes).ok()
    }

    /// The editor has been shown the options with an answer of the agent's. Others read
    /// the record, where that is in the agent's form.
    pub(super) fn note_shown(&mut self) {
        if let Some(shown) = self.shown() {
            let line = bytes::Bytes::from(self.options_update(&shown));
            self.hand.entries.push(super::Recorded::Said(Destination::Editor, line));
            self.announced = Some(shown);
        }
    }

    fn options_update(&self, shown: &Shown) -> String {
        let (session, options) = (self.open.id, &shown.options);
        format!(
            r#"{{"jsonrpc":"2.0","method":"session/update","params":{{"sessionId":"{session}","update":{{"sessionUpdate":"config_option_update","configOptions":{options}}}}}}}"#
        ) + "\n"
    }

    /// Tells everyone what is shown by now, if that has changed.
    pub(super) fn announce(&mut self) {
        let Some(shown) = self.shown() else { return };
        let before = self.announced.replace(shown.clone());
        if before.as_ref() == Some(&shown) {
            return;
        }
        let line = self.options_update(&shown);
        self.tell_options(line);
        let mode_before = before.and_then(|before| before.mode);
        if let Some(mode) = shown.mode.filter(|mode| mode_before.as_ref() != Some(mode)) {
            self.say_update(&json!({ "sessionUpdate": "current_mode_update", "currentModeId": mode }));
        }
    }

    /// Says an update of options: all of it to the record, to the lead what it
    /// knows.
    fn tell_options(&mut self, line: String) {
        let line = bytes::Bytes::from(line);
        self.hand.entries.push(super::Recorded::Said(Destination::Editor, line.clone()));
        let known = Frame::parse(line.slice(..line.len() - 1)).ok().and_then(|frame| {
            let known = withheld(&self.link.capabilities, frame.bytes(), frame.peek().params)?;
            Some([&known[..], b"\n"].concat().into())
        });
        let frames = known.unwrap_or(line);
        self.relay_editor(super::Packet { frames, count: 1 }, crate::journal::Class::Stream);
    }

    /// Answers a choice that the agent does not hear of now.
    pub(super) fn answer_choice(&mut self, seat: u32, frame: &Frame) {
        let id = frame.get(frame.peek().id);
        let result = match frame.peek().method {
            crate::frame::Method::SessionSetConfigOption => {
                let shown = self.shown().map(|shown| shown.options).unwrap_or_else(|| "[]".into());
                format!("{{\"configOptions\":{shown}}}")
            }
            _ => "{}".to_owned(),
        };
        self.answer(seat, acp::result(id, result.as_bytes()));
        self.announce();
    }
}

/// What an agent is called.
fn title(agent: &Agent) -> String {
    agent.title.clone().unwrap_or_else(|| agent.name.clone())
}

/// The value that stands for a model of an agent, or for the agent alone.
fn value_of(agent: &str, model: Option<&str>) -> String {
    match model {
        Some(model) => format!("{agent}/{model}"),
        None => agent.to_owned(),
    }
}

fn entry(choice: &Choice, id: &str) -> Value {
    let mut entry = json!({ id: choice.value, "name": choice.name });
    if let Some(description) = &choice.description {
        entry["description"] = description.as_str().into();
    }
    entry
}

/// Choices with the names that the configuration has for them, without hidden ones.
fn offered(category: Category, agent: &Agent, choices: Vec<Choice>) -> Vec<Choice> {
    let offer = match category {
        Category::Model => Offer { models: choices, ..Offer::default() },
        Category::Mode => Offer { modes: choices, ..Offer::default() },
    };
    let listed = listing::list(category, agent, Some(&offer)).into_iter();
    let listed = listed.filter(|listed| listed.is_told && !listed.hidden);
    listed.map(|Listed { value, name, description, .. }| Choice { value, name, description }).collect()
}
