//! Prompts find their agent: one picker for all agents, routes, sessions that go
//! from one agent to another and back, and agents that stand in for others.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

mod fallback;
mod moving;
mod picker;
mod sdk;

use conductor_tests::{
    editor::Editor,
    harness::{Builder, Service, service},
};
use serde_json::{Value, json};

/// A config option to choose from.
fn option(id: &str, category: &str, current: &str, values: &[&str]) -> Value {
    let values: Vec<Value> =
        values.iter().map(|value| json!({ "value": value, "name": value.to_uppercase() })).collect();
    json!({
        "id": id, "name": id, "category": category, "type": "select", "currentValue": current, "options": values,
    })
}

/// An agent with two models of its own, as config options.
fn modern() -> Value {
    json!({ "session": { "configOptions": [
        option("llm", "model", "a1", &["a1", "a2"]),
        { "id": "effort", "name": "Effort", "category": "thought_level", "type": "select", "currentValue": "low",
          "options": [{ "value": "low", "name": "Low", "n": 10.50 }], "vendor": { "x": 1 } },
        option("mode", "mode", "ask", &["ask", "code"]),
    ] } })
}

/// An agent of the older sort: modes, and models as a config option.
fn older() -> Value {
    json!({ "session": {
        "modes": { "currentModeId": "plan", "availableModes": [
            { "id": "plan", "name": "Plan" }, { "id": "write", "name": "Write" },
        ] },
        "configOptions": [option("model", "model", "b1", &["b1", "b2"])],
    } })
}

/// Agents `a` (the default) and `b`.
fn two() -> Builder {
    two_with(&modern(), &older())
}

fn two_with(first: &Value, second: &Value) -> Builder {
    service(&json!({}))
        .agent("a", first)
        .agent("b", second)
        .set("agents.fake.enabled", false)
        .set("agents.a.title", "Ay")
        .set("agents.b.title", "Bee")
        .set("default", "a")
}

/// Has agent `b` tell what it offers, by one session with it.
fn teach(service: &Service, agent: &str) {
    let mut editor = service.connect(&["--agent", agent]);
    editor.initialize();
    let session = editor.new_session(&service.work());
    editor.call("session/close", &json!({ "sessionId": session }));
}

fn open(service: &Service, args: &[&str]) -> (Editor, Value) {
    let mut editor = service.connect(args);
    editor.call(
        "initialize",
        &json!({ "protocolVersion": 1, "clientCapabilities": {
            "session": { "configOptions": { "boolean": {} }, "notices": {} },
        } }),
    );
    let result = editor.call("session/new", &json!({ "cwd": service.work(), "mcpServers": [] }));
    (editor, result)
}

fn id_of(result: &Value) -> String {
    result["sessionId"].as_str().unwrap().to_owned()
}

/// The option of a category among those that are shown.
fn shown<'a>(result: &'a Value, category: &str) -> &'a Value {
    let options = result["configOptions"].as_array().unwrap_or_else(|| panic!("no options: {result}"));
    options
        .iter()
        .find(|option| option["category"] == category)
        .unwrap_or_else(|| panic!("no {category}: {result}"))
}

fn values(option: &Value) -> Vec<String> {
    option["options"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| entry["value"].as_str().unwrap().to_owned())
        .collect()
}

fn choose(editor: &mut Editor, session: &str, value: &str) -> Value {
    editor.call(
        "session/set_config_option",
        &json!({ "sessionId": session, "configId": "model", "value": value }),
    )
}

fn say(editor: &mut Editor, session: &str, text: &str) -> String {
    let id = editor.prompt(session, text);
    editor.stop_reason(&id)
}

/// The prompts that an agent was sent, as JSON.
fn prompts(service: &Service, agent: &str) -> Vec<Value> {
    let lines = service.received(agent).into_iter().filter_map(|entry| entry.text);
    let messages = lines.filter_map(|line| serde_json::from_str::<Value>(&line).ok());
    messages.filter(|message| message["method"] == "session/prompt").collect()
}

/// The methods that an agent was asked, in order.
fn methods(service: &Service, agent: &str) -> Vec<String> {
    let lines = service.received(agent).into_iter().filter_map(|entry| entry.text);
    let messages = lines.filter_map(|line| serde_json::from_str::<Value>(&line).ok());
    messages.filter_map(|message| message["method"].as_str().map(str::to_owned)).collect()
}

/// Waits for an update of a kind that fits.
fn wait_update(editor: &Editor, kind: &str, fits: impl Fn(&Value) -> bool) -> Value {
    editor.wait_for(&format!("an update {kind}"), |line| {
        let update = &line.json["params"]["update"];
        (update["sessionUpdate"] == kind && fits(update)).then(|| update.clone())
    })
}

/// The notes of a kind in a session's record.
fn notes(service: &Service, session: &str, name: &str) -> Vec<Value> {
    let output = service.run(&["sessions", "export", session]);
    assert!(output.status.success(), "{output:?}");
    let lines = String::from_utf8(output.stdout).unwrap();
    let frames = lines.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let raw = frames.map(|frame| serde_json::from_str::<Value>(frame["raw"].as_str().unwrap()).unwrap());
    raw.filter(|frame| frame["method"] == name).map(|mut frame| frame["params"].take()).collect()
}
