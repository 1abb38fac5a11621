//! Modes, models and options: the other way to get a permission. A mode may
//! let an agent do things unasked, so whoever sets one is judged, by whichever
//! channel; and where an agent sets a forbidden one itself, it is set back.

use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};
use tracing::warn;

use super::{
    Ask, Purpose, Request, Session,
    flight::Held,
    granting::Recall,
    judging::{Ruling, denied},
    outbox::About,
};
use crate::{
    acp::{self, Refusal, code},
    frame::{Frame, Kind, Method},
    journal::Class,
    policy::{Action, Effect, Standing, Verdict},
    routes::Target,
};

/// So often a forbidden mode is set back; an agent that goes on is ended.
const MOST_SET_BACK: u32 = 3;

/// A text that is longer is no mode.
const LONGEST_MODE: usize = 64;

/// A `_meta` that is deeper may hide anything.
const DEPTH: usize = 16;

/// Members by which agents take allow-rules, programs and settings; letters and digits only.
const HANDED_OVER: [&str; 12] = [
    "allowedtools",
    "additionalallowedtools",
    "permissions",
    "permissionprompttoolname",
    "extraargs",
    "hooks",
    "mcpservers",
    "env",
    "executable",
    "executableargs",
    "pathtoclaudecodeexecutable",
    "settings",
];

/// Members of `_meta` that are no agent's business, or everybody's.
const PLAIN_META: [&str; 4] = ["conductor", "traceparent", "tracestate", "baggage"];

/// Values in a `_meta` that are looked at; with more, it is refused.
const MOST_LEAVES: usize = 256;

impl Session {
    /// All that the session's mode may be, in whichever form the agent tells it.
    fn current_modes(&self) -> Vec<String> {
        let legacy = self.options["modes"]["currentModeId"].as_str();
        let options = self.options["configOptions"].as_array().map(Vec::as_slice).unwrap_or_default();
        let options = options.iter().filter(|option| is_of(option, "mode"));
        let values = options.filter_map(|option| option["currentValue"].as_str());
        legacy.into_iter().chain(values).map(str::to_string).collect()
    }

    /// What the session is set to: its mode or its model, if it has any.
    pub(super) fn current(&self, category: &str) -> Option<String> {
        let mode = self.options["modes"]["currentModeId"].as_str().filter(|_| category == "mode");
        let options = self.options["configOptions"].as_array().map(Vec::as_slice).unwrap_or_default();
        let option = options.iter().find(|option| is_of(option, category));
        // Older agents tell their model like this, and their mode like that.
        let model = self.options["models"]["currentModelId"].as_str().filter(|_| category == "model");
        mode.or_else(|| option?["currentValue"].as_str()).or(model).map(str::to_string)
    }

    /// The modes that the agent offers.
    fn modes(&self) -> Vec<String> {
        let legacy =
            self.options["modes"]["availableModes"].as_array().map(Vec::as_slice).unwrap_or_default();
        let legacy = legacy.iter().filter_map(|mode| mode["id"].as_str());
        let options = self.options["configOptions"].as_array().map(Vec::as_slice).unwrap_or_default();
        let values = options.iter().filter(|option| is_of(option, "mode")).flat_map(|option| {
            let entries = option["options"].as_array().map(Vec::as_slice).unwrap_or_default();
            entries.iter().flat_map(|entry| match entry["options"].as_array() {
                Some(group) => group.as_slice(),
                None => std::slice::from_ref(entry),
            })
        });
        legacy.chain(values.filter_map(|entry| entry["value"].as_str())).map(str::to_string).collect()
    }

    /// What an editor's request would set.
    fn settings_of(&self, frame: &Frame) -> Result<Vec<Action>, Refusal> {
        let mut actions = meta_actions(frame)?;
        // Prompts may be long, and only these have more to tell.
        let params = || {
            let unread =
                || Refusal::new(code::INVALID_PARAMS, "the parameters of this request cannot be read");
            frame.decode::<Value>(frame.peek().params).ok_or_else(unread)
        };
        match frame.peek().method {
            Method::SessionSetMode => {
                let params = params()?;
                actions.push(Action::Mode(params["modeId"].as_str().unwrap_or_default().to_string()));
            }
            Method::SessionSetConfigOption => {
                let params = params()?;
                let id = params["configId"].as_str().unwrap_or_default();
                actions.extend(self.option_actions(id, &params["value"]));
            }
            _ => {}
        }
        Ok(actions)
    }

    /// An option may be a mode by its category, by its name, or by what it is set to.
    fn option_actions(&self, id: &str, value: &Value) -> Vec<Action> {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_string);
        let options = self.options["configOptions"].as_array().map(Vec::as_slice).unwrap_or_default();
        let option = options.iter().find(|option| option["id"] == id);
        let is = |category: &str| id == category || option.is_some_and(|option| is_of(option, category));
        let modes = self.modes();
        let mut actions = Vec::new();
        if is("mode") || modes.contains(&text) {
            actions.push(Action::Mode(text.clone()));
        }
        if modes.iter().any(|mode| mode == id) {
            actions.push(Action::Mode(id.to_string()));
        }
        if is("model") {
            actions.push(Action::Model(text.clone()));
        }
        if actions.is_empty() {
            actions.push(Action::Setting { id: id.to_string(), value: text });
        }
        actions
    }

    /// Why what an editor asks for is not done: it would set what the policy denies.
    /// Who sets something is a person, so there is nobody else to ask.
    pub(super) fn setting_denied(&mut self, frame: &Frame) -> Option<Refusal> {
        let method = frame.method_name();
        let actions = match self.settings_of(frame) {
            Ok(actions) => actions,
            Err(refusal) => return Some(refusal),
        };
        self.any_denied(&actions, &method)
    }

    /// Why several things are not done that are asked for at once: one of them is denied. They
    /// are one decision, as they are one frame.
    fn any_denied(&mut self, actions: &[Action], method: &str) -> Option<Refusal> {
        if actions.is_empty() {
            return None;
        }
        let ruling = self.rule_all(actions, None, Recall::Nothing);
        self.note_ruling(&ruling, method, About::Frame);
        (ruling.effect == Effect::Deny).then(|| ruling.refusal())
    }

    /// Why the model or the mode that an agent is to be set to is not set.
    pub(super) fn wish_denied(&mut self, target: &Target) -> Option<Refusal> {
        let (model, mode) = (target.model.clone(), target.mode.clone());
        let wished = model.map(Action::Model).into_iter().chain(mode.map(Action::Mode));
        self.any_denied(&wished.collect::<Vec<_>>(), "session/new")
    }

    /// The agent has told its options: a mode that is denied is set back before anything
    /// else is asked of it, or the session ends.
    pub(super) fn check_mode(&mut self) {
        let modes = self.current_modes();
        let Some(mode) = modes.first().cloned() else { return };
        if (!self.is_open || self.way.is_some()) && self.judge.chosen_mode.is_none() {
            self.judge.chosen_mode = Some(mode.clone());
        }
        let denied = modes.iter().find_map(|mode| {
            let ruling = self.rule(&Action::Mode(mode.clone()));
            (ruling.effect == Effect::Deny).then(|| (mode.clone(), ruling))
        });
        let Some((mode, ruling)) = denied else {
            self.judge.mode = Some(mode);
            return;
        };
        if self.judge.chosen_mode.as_ref() == Some(&mode) {
            self.judge.chosen_mode = None;
        }
        self.note_ruling(&ruling, "session/update", About::Frame);
        self.judge.set_back += 1;
        let before = self.judge.mode.clone().into_iter();
        let other = before
            .chain(self.modes())
            .find(|other| *other != mode && self.rule(&Action::Mode(other.clone())).effect != Effect::Deny);
        match other.filter(|_| self.judge.set_back <= MOST_SET_BACK) {
            Some(other) => self.set_back(&other),
            None => self.end_forbidden(&ruling),
        }
    }

    fn set_back(&mut self, mode: &str) {
        let Some(binding) = &self.binding else { return };
        let session: Value = serde_json::from_slice(&binding.name).unwrap_or_default();
        let legacy = self.options["modes"]["currentModeId"].is_string();
        let option = acp::find_option(&self.options, "mode", mode).ok();
        let (method, params) = match option.filter(|_| !legacy) {
            Some(id) => {
                ("session/set_config_option", json!({ "sessionId": session, "configId": id, "value": mode }))
            }
            None => ("session/set_mode", json!({ "sessionId": session, "modeId": mode })),
        };
        let mut request = Request::ours(Purpose::SetBack);
        request.sets = Some(mode.to_string());
        let id = self.number(request);
        self.say_agent(acp::call(Some(id.to_string()), method, &params), Class::Stop);
        let text = format!("The policy does not allow the agent's mode; it is set to `{mode}`.");
        self.say_notice("warning", "Mode set back", &text);
    }

    /// The agent has answered that.
    pub(super) fn was_set_back(&mut self, frame: &Frame, request: &Request) {
        if frame.peek().kind == Kind::Error {
            return self.end_forbidden_with(&denied(None, "the agent would not leave a mode that is denied"));
        }
        self.mode_set(request);
        self.take_options(frame.get(frame.peek().outcome));
        if self.picks() {
            return self.announce();
        }
        if let Some(mode) = &request.sets {
            let update = json!({ "sessionUpdate": "current_mode_update", "currentModeId": mode });
            let params = json!({ "sessionId": self.open.id.to_string(), "update": update });
            self.tell_editor(acp::call(None, "session/update", &params));
        }
    }

    /// A mode was set by request: some agents tell nobody.
    pub(super) fn mode_set(&mut self, request: &Request) {
        if let Some(mode) = &request.sets {
            self.judge.chosen_mode = Some(mode.clone());
            self.take_options(json!({ "currentModeId": mode }).to_string().as_bytes());
        }
    }

    fn end_forbidden(&mut self, ruling: &Ruling) {
        self.end_forbidden_with(&ruling.refusal());
    }

    pub(super) fn end_forbidden_with(&mut self, refusal: &Refusal) {
        warn!(why = %self.recorder.redacted(&refusal.message), "the session ends: its agent is in a mode that is denied");
        if !self.is_open {
            self.exists_at_agent = true;
            return self.answer_opening(refusal);
        }
        self.say_notice("error", "The session has ended", &refusal.message);
        self.closed = true;
        self.ended = true;
    }

    /// Somebody has to allow the MCP servers that the editor brings.
    pub(super) fn ask_first(&mut self, verdict: Verdict, shown: &str) {
        let mut ask = Ask::new(bytes::Bytes::new(), Method::Other);
        ask.held = Some(Held::Opening);
        let revision = self.judge.policy(&self.open.rules).revision().to_owned();
        // It was judged before there was a mode or a model.
        let subject = self.open.rules.subject.clone();
        let standing = Standing { subject, agent_mode: None, narrowing: self.judge.narrowing };
        let ruling = Ruling::of(verdict, standing, revision);
        self.ask_people(
            ask,
            "execute",
            "Start MCP servers that are not in the catalogue",
            &json!({ "servers": shown }),
            ruling,
        );
        self.commit(super::Input::Nothing);
    }

    /// They were allowed.
    pub(super) fn open_allowed(&mut self) {
        self.wake();
    }
}

fn is_of(option: &Value, category: &str) -> bool {
    option["category"] == category || option["id"] == category
}

#[derive(Deserialize)]
struct Meta<'a> {
    #[serde(borrow, default, rename = "_meta")]
    meta: Option<&'a RawValue>,
}

/// What the `_meta` of a request would set at the agent. One that cannot be read, or holds more than
/// can be looked through, may set anything.
pub fn meta_actions(frame: &Frame) -> Result<Vec<Action>, Refusal> {
    let params = frame.get(frame.peek().params);
    let raw = match serde_json::from_slice::<Meta<'_>>(params) {
        Ok(Meta { meta: Some(meta) }) => meta.get(),
        Ok(Meta { meta: None }) => return Ok(Vec::new()),
        Err(_) if !params.starts_with(b"{") => return Ok(Vec::new()),
        Err(_) => return Err(denied(None, "this request has two members of the name `_meta`")),
    };
    let Ok(meta) = serde_json::from_str::<Value>(raw) else {
        // Numbers and texts that only some can read. Each text in it may be a mode.
        return texts_in(raw).map(|texts| texts.into_iter().map(Action::Mode).collect());
    };
    let Some(members) = meta.as_object() else { return Ok(Vec::new()) };
    if members.iter().any(|(name, value)| !PLAIN_META.contains(&name.as_str()) && hands_over(value, DEPTH)) {
        return Err(denied(
            None,
            "the `_meta` of this request hands the agent permissions or programs of its own",
        ));
    }
    let mut actions = Vec::new();
    for (name, value) in members.iter().filter(|(name, _)| !PLAIN_META.contains(&name.as_str())) {
        actions.push(Action::Setting { id: format!("_meta.{name}"), value: value.to_string() });
        let mut left = MOST_LEAVES;
        modes_in(name, value, &mut left, &mut actions);
        if left == 0 {
            return Err(too_much());
        }
    }
    Ok(actions)
}

fn too_much() -> Refusal {
    denied(None, "the `_meta` of this request holds too much to be looked through")
}

/// All texts in some JSON, names included; what is no character is left out of them.
fn texts_in(raw: &str) -> Result<Vec<String>, Refusal> {
    let mut texts = Vec::new();
    let mut rest = raw;
    while let Some(start) = rest.find('"') {
        let mut is_escaped = false;
        let end = rest[start + 1..].find(|c| {
            let ends = c == '"' && !is_escaped;
            is_escaped = c == '\\' && !is_escaped;
            ends
        });
        let Some(end) = end else { break };
        let token = &rest[start..start + end + 2];
        rest = &rest[start + end + 2..];
        let read = serde_json::from_str(token).or_else(|_| serde_json::from_str(&without_halves(token)));
        texts.push(read.map_err(|_| denied(None, "the `_meta` of this request cannot be read"))?);
        if texts.len() > MOST_LEAVES {
            return Err(too_much());
        }
    }
    Ok(texts)
}

/// A JSON text without halves of characters.
fn without_halves(token: &str) -> String {
    let mut out = String::with_capacity(token.len());
    let mut rest = token;
    while let Some(at) = rest.find('\\') {
        let (before, escape) = rest.split_at(at);
        out.push_str(before);
        let is_half = escape.get(1..4).is_some_and(|code| {
            let code = code.to_ascii_lowercase();
            code.starts_with("ud") && code.as_bytes()[2] >= b'8'
        });
        let length = if is_half { 6 } else { 2 };
        let (escape, after) = escape.split_at_checked(length).unwrap_or((escape, ""));
        if !is_half {
            out.push_str(escape);
        }
        rest = after;
    }
    out.push_str(rest);
    out
}

/// Whatever may be a mode: each name that is switched on, and each text that is one word.
fn modes_in(name: &str, value: &Value, left: &mut usize, actions: &mut Vec<Action>) {
    *left = left.saturating_sub(1);
    if *left == 0 {
        return;
    }
    if !matches!(value, Value::Bool(false)) {
        actions.push(Action::Mode(name.to_string()));
    }
    match value {
        Value::String(text) if text.len() <= LONGEST_MODE && !text.contains(char::is_whitespace) => {
            actions.push(Action::Mode(text.clone()));
        }
        Value::Array(all) => all.iter().for_each(|value| modes_in(name, value, left, actions)),
        Value::Object(members) => members.iter().for_each(|(inner, value)| {
            modes_in(inner, value, left, actions);
        }),
        _ => {}
    }
}

/// Whether a `_meta` has a member by which an editor would hand an agent permissions, programs or
/// settings of its own.
fn hands_over(value: &Value, depth: usize) -> bool {
    match value {
        _ if depth == 0 => true,
        Value::Array(all) => all.iter().any(|value| hands_over(value, depth - 1)),
        Value::Object(members) => members.iter().any(|(name, value)| {
            let plain: String =
                name.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_ascii_lowercase();
            HANDED_OVER.contains(&plain.as_str()) || hands_over(value, depth - 1)
        }),
        _ => false,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn actions(meta: &str) -> Result<Vec<Action>, Refusal> {
        let line =
            format!(r#"{{"jsonrpc":"2.0","id":1,"method":"session/prompt","params":{{"_meta":{meta}}}}}"#);
        meta_actions(&Frame::parse(Bytes::from(line)).unwrap())
    }

    fn modes(meta: &str) -> Vec<String> {
        let mode = |action| match action {
            Action::Mode(mode) => Some(mode),
            _ => None,
        };
        actions(meta).unwrap().into_iter().filter_map(mode).collect()
    }

    #[test]
    fn modes_are_found_wherever_they_stand() {
        assert!(modes(r#"{"traceparent":"x","conductor":{"mode":"y"}}"#).is_empty());
        for (meta, mode) in [
            (r#"{"claudeCode":{"options":{"permissionMode":"bypass"}}}"#, "bypass"),
            (r#"{"x":{"approval_policy":["never"]}}"#, "never"),
            (r#"{"x":{"yolo":true,"other":false}}"#, "yolo"),
            (r#"{"x":{"dangerously-skip":null}}"#, "dangerously-skip"),
            (r#"{"x":{"\u006dode":"bypa\u0073s"}}"#, "bypass"),
        ] {
            assert!(modes(meta).contains(&mode.to_string()), "{meta}");
        }
        assert!(!modes(r#"{"x":{"yolo":false}}"#).contains(&"yolo".to_string()));
        for meta in [r#"{"claudeCode":{"options":{"allowedTools":["Bash"]}}}"#, r#"{"x":{"extra_args":{}}}"#]
        {
            assert!(actions(meta).is_err(), "{meta}");
        }
        assert!(actions("7").unwrap().is_empty());
    }

    #[test]
    fn what_only_some_can_read_hides_nothing() {
        for meta in [r#"{"x":{"mode":"bypass","n":1e999}}"#, r#"{"x":{"mode":"bypass","half":"\ud83d"}}"#] {
            assert!(modes(meta).contains(&"bypass".to_string()), "{meta}");
        }
        assert!(modes(r#"{"x":{"mode":"by\ud83dpass\"","n":1e999}}"#).contains(&"bypass\"".to_string()));
        let twice = r#"{"mode":"a"},"_meta":{"mode":"b"}"#;
        assert!(actions(twice).is_err());
        let many = format!(r#"{{"x":[{}0]}}"#, "1,".repeat(MOST_LEAVES));
        assert!(actions(&many).is_err());
    }
}
