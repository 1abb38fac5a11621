//! `session/request_permission`, put together with what was said before about
//! the same tool call.
//!
//! The title is written by the model and the kind is a label for people; what
//! counts is the tool's name where the agent itself gives it, and the input.
//! What an agent leaves out cannot be judged: that is `Unknown`, and what the
//! title seems to say is only there for rules that deny.

use std::{collections::BTreeSet, path::PathBuf};

use serde_json::{Map, Value};

use super::{
    Ground, SubAction,
    arguments::{self, addresses_in, named_in, quoted, words},
    fetch, hidden, inner, place, strings,
    terminal::directory,
    tools::{self, Meaning, Reading},
};
use crate::policy::{paths, shell};

/// More diffs and locations than this are not looked at.
const MOST_PLACES: usize = 256;

/// What a request for permission would do.
pub fn request(params: &Value, earlier: &[Value], ground: &Ground<'_>) -> Vec<SubAction> {
    let mut found = Vec::new();
    let options = params.get("options").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let call = params.get("toolCall").filter(|call| !call.is_null());
    let subject = params.get("subject").filter(|subject| !subject.is_null());
    match call {
        Some(Value::Object(call)) => found.extend(Call::new(call, earlier).normalise(options, ground)),
        Some(_) => found.push(SubAction::unknown("the tool call is no object")),
        None if subject.is_none() => {
            found.push(SubAction::unknown("it does not say what permission is asked for"));
        }
        None => {}
    }
    if let Some(subject) = subject {
        found.extend(self::subject(subject, earlier, options, ground));
    }
    found
}

/// What the second version of the protocol asks about.
fn subject(subject: &Value, earlier: &[Value], options: &[Value], ground: &Ground<'_>) -> Vec<SubAction> {
    let kind = subject.get("type").and_then(Value::as_str);
    if let (Some("tool_call"), Some(call)) = (kind, subject.as_object()) {
        let call = call.get("toolCall").and_then(Value::as_object).unwrap_or(call);
        return Call::new(call, earlier).normalise(options, ground);
    }
    if kind != Some("command") {
        let mut found = named_in(subject, ground);
        found.push(SubAction::unknown("it is not known what permission is asked for"));
        return found;
    }
    let mut found = Vec::new();
    let resolved = match subject.get("cwd") {
        Some(Value::String(cwd)) => match directory(cwd, ground) {
            Ok(resolved) => Some(resolved),
            Err(why) => {
                found.push(SubAction::unknown(why));
                None
            }
        },
        _ => {
            found.push(SubAction::unknown("it does not say in which directory the command would run"));
            None
        }
    };
    let ground = Ground { cwd: resolved.as_deref().unwrap_or(ground.cwd), ..*ground };
    match subject.get("command") {
        Some(Value::String(line)) => found.extend(shell::line(line, &ground)),
        Some(list) => match strings(list) {
            Some(argv) if !argv.is_empty() => found.extend(words(&argv, &ground)),
            _ => found.push(SubAction::unknown("the command is neither a text nor a list of texts")),
        },
        None => found.push(SubAction::unknown("it does not say which command would run")),
    }
    let is_known =
        |key: &&String| ["type", "command", "cwd", "_meta", "title", "description"].contains(&key.as_str());
    if let Some(other) = subject.as_object().and_then(|subject| subject.keys().find(|key| !is_known(key))) {
        found.push(SubAction::unknown(format!("it is not known what {} means here", quoted(other))));
    }
    found
}

/// A tool call as all frames about it tell.
#[derive(Debug, Default)]
struct Call<'a> {
    names: BTreeSet<&'a str>,
    /// The MCP server, where that is told beside the name.
    servers: BTreeSet<&'a str>,
    /// The agent says that the tool is not its own.
    is_foreign: bool,
    kind: Option<&'a str>,
    title: Option<&'a str>,
    /// A title is `server/tool`. Some agents guess the kind of such a tool from its name, which the
    /// server has chosen.
    is_titled_mcp: bool,
    /// Codex says that its input names the server, the tool and the arguments.
    is_wrapped_mcp: bool,
    announced: Option<&'a Value>,
    requested: Option<&'a Value>,
    /// The paths of the diffs in the latest content.
    diffs: Vec<&'a str>,
    locations: Vec<&'a str>,
    /// Where it says to run, beside its input.
    directories: BTreeSet<&'a str>,
    /// What is wrong with the frames themselves.
    faults: Vec<&'static str>,
}

impl<'a> Call<'a> {
    fn new(request: &'a Map<String, Value>, earlier: &'a [Value]) -> Self {
        let id = request.get("toolCallId").and_then(Value::as_str);
        let mut call = Self::default();
        if id.is_none() {
            call.faults.push("the tool call has no id");
        }
        for update in earlier.iter().filter_map(Value::as_object) {
            if update.get("toolCallId").and_then(Value::as_str) != id {
                continue;
            }
            // Some agents use an id again; what has ended has nothing to do with this.
            let is_new = update.get("sessionUpdate").and_then(Value::as_str) == Some("tool_call");
            if is_new {
                call = Self { faults: std::mem::take(&mut call.faults), ..Self::default() };
            }
            call.take(update);
            if matches!(
                update.get("status").and_then(Value::as_str),
                Some("completed" | "failed" | "cancelled")
            ) {
                call = Self { faults: std::mem::take(&mut call.faults), ..Self::default() };
            } else if let Some(input) = update.get("rawInput").filter(|input| says_something(input)) {
                call.announced = Some(input);
            }
        }
        call.take(request);
        call.requested = request.get("rawInput").filter(|input| says_something(input));
        call
    }

    /// Takes what a frame says; its fields replace those of earlier ones.
    fn take(&mut self, frame: &'a Map<String, Value>) {
        let text = |value: Option<&'a Value>| value.and_then(Value::as_str).filter(|text| !text.is_empty());
        let meta = frame.get("_meta");
        let within = |path: &str| meta.and_then(|meta| meta.pointer(path));
        let names = [
            text(frame.get("name")),
            text(within("/toolName")),
            text(within("/claudeCode/toolName")),
            text(within("/goose/toolCall/toolName")),
        ];
        self.names.extend(names.into_iter().flatten());
        let servers = [
            text(within("/goose/toolCall/extensionName")),
            text(within("/claudeCode/mcpServer/name")),
            text(within("/mcpServer/name")),
            text(within("/serverId")),
        ];
        self.servers.extend(servers.into_iter().flatten());
        for (key, value) in frame.iter().filter(|(key, _)| *key != "rawInput" && *key != "content") {
            const NAMES: [&str; 4] = ["cwd", "workdir", "workingdirectory", "directory"];
            match value {
                Value::String(given) if !given.is_empty() && NAMES.contains(&&*arguments::squeezed(key)) => {
                    self.directories.insert(given);
                }
                _ => arguments::directories_in(value, &NAMES, 0, &mut self.directories),
            }
        }
        self.is_wrapped_mcp |= within("/is_mcp_tool_call").and_then(Value::as_bool) == Some(true);
        // Qwen says whose tool it is.
        self.is_foreign |= text(within("/provenance")).is_some_and(|whose| whose != "builtin");
        if let Some(kind) = text(frame.get("kind")) {
            // A kind that says nothing does not unsay one that did.
            if kind != "other" || self.kind.is_none() {
                self.kind = Some(kind);
            }
        }
        if let Some(title) = text(frame.get("title")) {
            self.title = Some(title);
            self.is_titled_mcp |= title_as_mcp(title).is_some();
        }
        match frame.get("content") {
            Some(Value::Array(content)) if !content.is_empty() => {
                self.diffs.clear();
                for block in
                    content.iter().filter(|block| block.get("type").and_then(Value::as_str) == Some("diff"))
                {
                    match block.get("path") {
                        Some(Value::String(path)) => self.diffs.push(path),
                        _ => self.faults.push("a diff does not say of which file it is"),
                    }
                }
            }
            None | Some(Value::Null | Value::Array(_)) => {}
            Some(_) => self.faults.push("the content of the tool call is no list"),
        }
        match frame.get("locations") {
            Some(Value::Array(locations)) if !locations.is_empty() => {
                self.locations.clear();
                for location in locations {
                    match location.get("path") {
                        Some(Value::String(path)) => self.locations.push(path),
                        _ => self.faults.push("a location of the tool call has no path"),
                    }
                }
            }
            None | Some(Value::Null | Value::Array(_)) => {}
            Some(_) => self.faults.push("the locations of the tool call are no list"),
        }
    }

    fn normalise(&self, options: &[Value], ground: &Ground<'_>) -> Vec<SubAction> {
        let mut found: Vec<SubAction> = self.faults.iter().map(|fault| SubAction::unknown(*fault)).collect();
        if self.diffs.len() + self.locations.len() > MOST_PLACES {
            found.push(SubAction::unknown("it names too many places to look at"));
            return found;
        }
        found.extend(
            self.names.iter().chain(&self.servers).filter_map(|name| hidden("the tool's name", name)),
        );
        if self.names.len() > 1 {
            found.push(SubAction::unknown("its frames give the tool different names"));
        }
        let is_mcp =
            !self.servers.is_empty() || self.name().is_some_and(|name| tools::mcp_name(name).is_some());
        if self.is_foreign && !is_mcp {
            found.push(SubAction::unknown("the tool is not the agent's own, and it does not say whose"));
        }
        if let (Some(server), Some((other, _))) =
            (self.servers.first(), self.name().and_then(tools::mcp_name))
            && arguments::squeezed(server) != arguments::squeezed(&other)
        {
            found.push(SubAction::unknown("its name and what is beside it name different servers"));
        }
        let (directory, fault) = arguments::agreed(&self.directories, ground);
        found.extend(fault.map(SubAction::unknown));
        let ground = &Ground { cwd: directory.as_deref().unwrap_or(ground.cwd), ..*ground };
        let inputs = self.inputs(&mut found);
        if directory.is_some() {
            found.extend(self.contradiction(&inputs, ground));
        }
        let meaning = self.meaning(&inputs);
        match &meaning {
            Some(Meaning::Mcp { server, tool }) => {
                self.compare(&inputs, &mut found);
                if inputs.is_empty() {
                    found.push(SubAction::unknown("it does not say what the tool is given"));
                }
                found.extend(arguments::mcp(server, tool, &Value::Null, ground));
                inputs
                    .iter()
                    .for_each(|input| found.extend(named_in(&Value::Object((*input).clone()), ground)));
                self.rest(&mut found, ground);
            }
            Some(Meaning::Mode) => {
                found.extend(self.mode(options));
                self.inner(&inputs, &mut found, ground);
            }
            Some(Meaning::Plain) => {
                found.push(SubAction::Tool { name: self.name().unwrap_or("unnamed").into() });
                self.inner(&inputs, &mut found, ground);
            }
            Some(meaning) => self.understood(meaning, &inputs, &mut found, ground),
            None => self.stranger(&inputs, &mut found, ground),
        }
        found
    }

    fn name(&self) -> Option<&'a str> {
        self.names.first().copied()
    }

    /// What the call does: by the tool's name, else by its kind.
    fn meaning(&self, inputs: &[&Map<String, Value>]) -> Option<Meaning> {
        let Some(name) = self.name() else {
            if self.is_wrapped_mcp {
                let field = |name: &str| inputs.last()?.get(name)?.as_str().map(ToOwned::to_owned);
                return Some(Meaning::Mcp { server: field("server")?, tool: field("tool")? });
            }
            return self.kind.filter(|_| !self.is_titled_mcp).and_then(tools::by_kind);
        };
        // An extension's tool may have the name of one of the agent's own.
        let mut servers = self.servers.iter().filter(|server| **server != "developer");
        if let Some(server) = servers.next() {
            let tool = tools::mcp_name(name).map_or_else(|| name.to_owned(), |(_, tool)| tool);
            return Some(Meaning::Mcp { server: (*server).to_owned(), tool });
        }
        tools::by_name(name.strip_prefix("developer__").unwrap_or(name))
    }

    /// The inputs that say something: as announced, and as asked about.
    fn inputs(&self, found: &mut Vec<SubAction>) -> Vec<&'a Map<String, Value>> {
        let mut inputs: Vec<&Map<String, Value>> = Vec::new();
        for input in [self.announced, self.requested].into_iter().flatten() {
            match input {
                Value::Object(input) if inputs.last() != Some(&input) => inputs.push(input),
                Value::Object(_) => {}
                _ => found.push(SubAction::unknown("the input of the tool is no object")),
            }
        }
        inputs
    }

    /// Inputs of which no more is known must be the same.
    fn compare(&self, inputs: &[&Map<String, Value>], found: &mut Vec<SubAction>) {
        if inputs.windows(2).any(|pair| pair[0] != pair[1]) {
            found.push(SubAction::unknown(DIFFERS));
        }
    }

    /// The input says to run somewhere else than what is beside it.
    fn contradiction(&self, inputs: &[&Map<String, Value>], ground: &Ground<'_>) -> Option<SubAction> {
        let mut named = BTreeSet::new();
        for (key, value) in inputs.iter().flat_map(|input| input.iter()) {
            let is_directory = matches!(&*arguments::squeezed(key), "cwd" | "workdir" | "workingdirectory");
            named.extend(value.as_str().filter(|given| is_directory && !given.is_empty()));
        }
        let is_same = |given: &&str| directory(given, ground).is_ok_and(|resolved| resolved == ground.cwd);
        (!named.iter().all(is_same))
            .then(|| SubAction::unknown("its input names another directory than what is beside it"))
    }

    /// A tool that is of no consequence outside of the agent, if its kind and its input do not say
    /// otherwise. Then what they say counts as well.
    fn inner(&self, inputs: &[&Map<String, Value>], found: &mut Vec<SubAction>, ground: &Ground<'_>) {
        let name = arguments::squeezed(self.name().unwrap_or_default());
        if !inner::is_kind(&name, self.kind, !inputs.is_empty())
            || !inputs.iter().all(|input| inner::is_input(input))
        {
            found.push(SubAction::unknown("its name and its input disagree"));
            let meaning = self.kind.and_then(tools::by_kind).filter(|meaning| *meaning != Meaning::Mode);
            if let Some(meaning) = meaning {
                self.understood(&meaning, inputs, found, ground);
            }
            inputs.iter().for_each(|input| found.extend(named_in(&Value::Object((*input).clone()), ground)));
        }
        self.rest(found, ground);
    }

    /// A tool that is known.
    fn understood(
        &self,
        meaning: &Meaning,
        inputs: &[&Map<String, Value>],
        found: &mut Vec<SubAction>,
        ground: &Ground<'_>,
    ) {
        let is_read = matches!(meaning, Meaning::Read | Meaning::Search | Meaning::Glob | Meaning::Lookup);
        let changes = matches!(self.kind, Some("edit" | "delete" | "move" | "execute" | "switch_mode"));
        if changes && (is_read || *meaning == Meaning::Fetch) {
            found.push(SubAction::unknown(
                "its kind says that something is changed, and its input does not say what",
            ));
        }
        let mut whole = Reading::default();
        let mut readings: Vec<Reading> =
            inputs.iter().map(|input| tools::read(meaning, input, ground)).collect();
        if let [one, two] = readings.as_slice()
            && !one.objects.is_subset(&two.objects)
            && !two.objects.is_subset(&one.objects)
        {
            found.push(SubAction::unknown(DIFFERS));
        }
        for reading in &mut readings {
            // The second input mostly repeats the first.
            let fresh =
                std::mem::take(&mut reading.found).into_iter().filter(|action| !whole.found.contains(action));
            let fresh: Vec<SubAction> = fresh.collect();
            whole.found.extend(fresh);
            whole.objects.append(&mut reading.objects);
        }
        let is_write = matches!(meaning, Meaning::Write | Meaning::Editor);
        let is_named = !whole.objects.is_empty();
        for path in &self.diffs {
            let before = whole.objects.len();
            let fact = place(path, ground);
            if !is_write {
                // Without regard to what else was found there: this says that it is changed.
                found.push(SubAction::Write(fact));
                found.push(SubAction::unknown("it shows a change of a file, and the tool changes none"));
                continue;
            }
            whole.place(fact, true);
            if is_named && whole.objects.len() > before {
                found.push(SubAction::unknown("it shows a change of a file that its input does not name"));
            }
        }
        if whole.objects.is_empty() {
            found.push(SubAction::unknown("it does not say what the tool is given"));
            found.extend(self.hints(meaning, ground));
        }
        // A change of which no diff is shown may be more than a change: Codex leaves out diffs that are
        // too large, and with them where the file is moved to.
        let shown: BTreeSet<PathBuf> =
            self.diffs.iter().filter_map(|path| place(path, ground).resolved).collect();
        let is_shown = |path: &str| place(path, ground).resolved.is_some_and(|path| shown.contains(&path));
        if is_write && inputs.is_empty() && !self.locations.iter().all(|path| is_shown(path)) {
            found.push(SubAction::unknown("it goes to a place of which it shows no change"));
        }
        // Codex asks for the network with the command that wants it.
        if *meaning == Meaning::Shell && self.title.is_some_and(|title| title.contains("network access to "))
        {
            found.push(SubAction::unknown("it asks for the network beside the command"));
        }
        // A command's places are those that its words name. Others are places that the tool says
        // it goes to.
        if *meaning != Meaning::Shell {
            self.locations.iter().for_each(|path| whole.place(place(path, ground), is_write));
        }
        if is_write {
            found.extend(with_all_in_them(&mut whole.found, ground));
        }
        found.append(&mut whole.found);
    }

    /// A tool that nothing is known about.
    fn stranger(&self, inputs: &[&Map<String, Value>], found: &mut Vec<SubAction>, ground: &Ground<'_>) {
        self.compare(inputs, found);
        match self.name() {
            Some(name) => found.push(SubAction::Tool { name: name.into() }),
            None => {
                found.push(SubAction::unknown("neither its name nor its kind says what the tool does"));
                found.extend(self.title.and_then(title_as_mcp));
            }
        }
        let named: Vec<SubAction> =
            inputs.iter().flat_map(|input| named_in(&Value::Object((*input).clone()), ground)).collect();
        let acts = !matches!(self.kind, None | Some("other" | "think"))
            || inputs.iter().any(|input| tools::leaves_sandbox(input) || inner::has_content(input))
            || self.name().is_some_and(|name| inner::is_misnamed(name, inputs));
        if inputs.is_empty() || !named.is_empty() || acts {
            found.push(SubAction::unknown("it is not known what this tool does with what it is given"));
        }
        found.extend(named);
        self.rest(found, ground);
    }

    /// Diffs and locations of a tool that should have none that matter.
    fn rest(&self, found: &mut Vec<SubAction>, ground: &Ground<'_>) {
        let places: BTreeSet<&str> = self.diffs.iter().chain(&self.locations).copied().collect();
        let is_seen = |found: &[SubAction], resolved: &Option<PathBuf>| {
            let written =
                |action: &SubAction| matches!(action, SubAction::Write(fact) if fact.resolved == *resolved);
            resolved.is_some() && found.iter().any(written)
        };
        for path in places {
            let fact = place(path, ground);
            if !is_seen(found, &fact.resolved) {
                found.push(SubAction::Write(fact));
                found.push(SubAction::unknown("it goes to a place that its input does not name"));
            }
        }
    }

    /// What the title seems to say, for rules that deny; beside something that is unknown.
    fn hints(&self, meaning: &Meaning, ground: &Ground<'_>) -> Vec<SubAction> {
        let Some(title) = self.title else { return Vec::new() };
        let mut found = match meaning {
            Meaning::Shell => shell::line(title, ground),
            Meaning::Fetch => {
                addresses_in(title).into_iter().flat_map(|given| fetch(given, ground)).collect()
            }
            _ => Vec::new(),
        };
        found.push(SubAction::unknown("only the title says what would be done, and it is not to be trusted"));
        found
    }

    /// The modes that the options to allow lead to.
    fn mode(&self, options: &[Value]) -> Vec<SubAction> {
        let mut found = Vec::new();
        if self.name().is_some_and(|name| arguments::squeezed(name) == "enterplanmode") {
            return vec![SubAction::Mode { id: "plan".into() }];
        }
        if self.name().is_none() {
            found.push(SubAction::unknown("only its kind says that the mode is changed"));
        }
        let allows = |option: &&Value| option.get("kind").and_then(Value::as_str) == Some("allow_once");
        for option in options.iter().filter(allows) {
            let id = option.get("optionId").and_then(Value::as_str).unwrap_or_default();
            // Claude names the mode in the option; Qwen means its default one by this.
            let mode = match id {
                "proceed_once" => Some("default"),
                "default" | "plan" | "acceptEdits" | "bypassPermissions" | "dontAsk" | "auto" => Some(id),
                _ => id.strip_prefix("exit-plan-"),
            };
            found.push(SubAction::Mode { id: mode.unwrap_or(id).into() });
            if mode.is_none() {
                found.push(SubAction::unknown("it is not known to which mode an option leads"));
            }
            found.extend(hidden("an option", id));
        }
        if !found.iter().any(|action| matches!(action, SubAction::Mode { .. })) {
            found.push(SubAction::unknown("it does not say to which mode it leads"));
        }
        found
    }
}

/// Of a file it does not matter which way it is changed. A directory is removed or moved with all that
/// is in it, and what is moved to one gets a name there that nobody has said.
fn with_all_in_them(written: &mut [SubAction], ground: &Ground<'_>) -> Vec<SubAction> {
    let mut doubts = Vec::new();
    for action in written {
        let SubAction::Write(fact) = action else { continue };
        paths::protect_all_in(fact);
        let Some(path) = fact.resolved.as_deref() else { continue };
        let is_directory = ground.resolver.is_directory(path);
        // A file has nothing in it, whatever its name.
        if is_directory || paths::holds_protected(fact) && ground.resolver.is_absent(path) {
            let shown = quoted(&fact.given);
            doubts
                .push(SubAction::unknown(format!("it is not known what becomes of all that is in {shown}")));
        }
    }
    doubts
}

const DIFFERS: &str = "what is asked about differs from what was announced";

/// An input that says something; agents announce a call with an empty one before they know more.
fn says_something(input: &Value) -> bool {
    match input {
        Value::Null => false,
        Value::Object(input) => !input.is_empty(),
        Value::String(input) => !input.is_empty(),
        _ => true,
    }
}

/// A title such as `server/tool`.
fn title_as_mcp(title: &str) -> Option<SubAction> {
    let (server, tool) = title.split_once('/').or_else(|| title.split_once("__"))?;
    let is_name = |text: &str| {
        !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-')
    };
    (is_name(server) && is_name(tool)).then(|| SubAction::Mcp { server: server.into(), tool: tool.into() })
}
