//! What the agents offer: the service asks them by itself, remembers it, and
//! tells it; and which of them a prompt would go to.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    time::{Duration, Instant},
};

use conductor_tests::{
    editor::DEADLINE,
    harness::{Builder, Service, poll_until, program, service},
    postgres::Database,
};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

/// What an agent with these models and two modes answers to `session/new`.
fn offering(models: &[&str]) -> Value {
    let options: Vec<Value> =
        models.iter().map(|model| json!({ "value": model, "name": model.to_uppercase() })).collect();
    json!({ "session": {
        "configOptions": [{
            "id": "m", "name": "Model", "category": "model", "type": "select",
            "currentValue": models[0], "options": options,
        }],
        "modes": { "currentModeId": "ask", "availableModes": [
            { "id": "ask", "name": "Ask" }, { "id": "yolo", "name": "Yolo" },
        ] },
    } })
}

/// Adds an agent that the service may start ahead.
fn asked(builder: Builder, name: &str, script: &Value) -> Builder {
    builder.agent(name, script).set(&format!("agents.{name}.warm"), 1)
}

/// What `conductor models --json` says of an agent.
fn agent(service: &Service, name: &str, more: &[&str]) -> Value {
    let output = service.run(&[&["models", "--json"], more].concat());
    assert!(output.status.success(), "{output:?}");
    let agents: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    agents.iter().find(|agent| agent["name"] == name).cloned().unwrap_or_default()
}

/// Waits until it says that an agent has a model.
fn wait_model(service: &Service, name: &str, model: &str) -> Value {
    let has = || values(&agent(service, name, &["--all"])["models"]).contains(&model.to_owned());
    assert!(poll_until(DEADLINE, has), "{}\n{}", agent(service, name, &["--all"]), service.log());
    agent(service, name, &[])
}

fn values(choices: &Value) -> Vec<String> {
    let choices = choices.as_array().cloned().unwrap_or_default();
    choices.iter().filter_map(|choice| choice["own_value"].as_str().map(str::to_owned)).collect()
}

/// The line of `conductor models` about an agent's model.
fn row(service: &Service, agent: &str, model: &str) -> String {
    let text = String::from_utf8(service.run(&["models"]).stdout).unwrap();
    let found = text.lines().find(|line| line.split_whitespace().take(2).eq([agent, model]));
    found.unwrap_or_else(|| panic!("no {agent} {model} in\n{text}")).to_owned()
}

/// How often an agent was asked something.
fn times(service: &Service, name: &str, method: &str) -> usize {
    service.received(name).iter().filter(|entry| entry.method().as_deref() == Some(method)).count()
}

#[test]
fn agents_are_asked_once_and_known_from_then_on() {
    let builder = asked(service(&offering(&["untold"])), "one", &offering(&["small", "big", "old"]));
    let mut service = builder
        .set("agents.one.title", "The One")
        .set("agents.one.models.big", json!({ "title": "Big, by us", "aliases": ["smart", "best"] }))
        .set("agents.one.models.old", json!({ "hidden": true }))
        .set("agents.one.models.beta", json!({ "aliases": "next" }))
        .set("agents.one.modes.yolo", json!({ "hidden": true }))
        .start();
    let one = wait_model(&service, "one", "small");
    assert_eq!(
        (&one["state"], &one["reason"], &one["title"]),
        (&json!("ready"), &json!(""), &json!("The One"))
    );
    assert_eq!(values(&one["models"]), ["small", "big", "beta"]);
    assert_eq!(values(&one["modes"]), ["ask"]);
    let all = agent(&service, "one", &["--all", "--agent", "one"]);
    assert_eq!(values(&all["models"]), ["small", "big", "old", "beta"]);
    assert_eq!(values(&all["modes"]), ["ask", "yolo"]);
    let expected = json!({
        "value": "one/big", "own_value": "big", "name": "Big, by us", "description": "",
        "aliases": ["smart", "best"], "hidden": false, "is_told": true, "is_default": false,
    });
    assert_eq!(one["models"][1], expected);
    assert_eq!(
        (&one["models"][0]["is_default"], &one["models"][2]["is_told"]),
        (&json!(true), &json!(false))
    );

    // It was a session in an empty place of its own, and nothing is left of it.
    let opened =
        service.wait_received("one", "session/new", |e| e.method().as_deref() == Some("session/new"));
    let place = service.state().join("probe/one");
    assert_eq!(opened.json().unwrap()["params"]["cwd"], json!(place));
    assert_eq!(times(&service, "one", "session/close"), 1);
    assert!(service.agents_alive().is_empty() && !place.exists());
    // What must not be started ahead is not asked.
    let fake = agent(&service, "fake", &[]);
    assert_eq!(fake["models"], json!([]));
    assert!(fake["reason"].as_str().unwrap().contains("warm is 0"), "{fake}");
    assert!(service.received("fake").is_empty());

    assert!(row(&service, "AGENT", "MODEL").ends_with("STATUS"));
    assert!(row(&service, "one", "big").ends_with("smart, best  available"));
    assert!(row(&service, "one", "beta").ends_with("not told by the agent"));
    assert!(row(&service, "fake*", "-").contains("not asked yet"));
    let unknown = service.run(&["models", "--agent", "none"]);
    assert_eq!(unknown.status.code(), Some(1));

    // After a restart it is known without being asked: the one that is asked
    // next shows that its turn has passed.
    assert!(service.term().success());
    service.configure("agents.two", json!({
        "command": program("fake-agent"), "env": { "FAKE_AGENT_SCRIPT": offering(&["second"]).to_string() },
    }));
    service.start_again();
    wait_model(&service, "two", "second");
    assert_eq!(values(&agent(&service, "one", &[])["models"]), ["small", "big", "beta"]);
    assert_eq!(times(&service, "one", "initialize"), 1);
}

#[test]
fn an_agent_that_wants_a_login_is_listed_with_the_reason_and_asked_again() {
    let refused = json!({ "answer": { "error": { "code": -32000, "message": "nobody is logged in" } } });
    let script = json!({ "instead": { "session/new": [refused] } });
    let mut service = asked(service(&json!({})), "shy", &script).start();
    let told =
        |service: &Service| agent(service, "shy", &[])["reason"].as_str().unwrap_or_default().to_owned();
    let explained =
        || told(&service).contains("nobody is logged in; log in with `conductor agents login shy`");
    assert!(poll_until(DEADLINE, explained), "{}", told(&service));
    assert_eq!(times(&service, "shy", "session/new"), 1);
    assert!(row(&service, "shy", "-").contains("log in"));
    assert!(service.run(&["agents", "restart", "shy"]).status.success());
    let again = |count| poll_until(DEADLINE, || times(&service, "shy", "session/new") == count);
    assert!(again(2), "{}", service.log());
    assert!(service.term().success());
    service.start_again();
    let again = |count| poll_until(DEADLINE, || times(&service, "shy", "session/new") == count);
    assert!(again(3), "{}", service.log());
}

#[test]
fn an_agent_that_does_not_start_is_listed_with_what_to_do() {
    let script = json!({ "start": [{ "stderr": "no such model\n" }, { "exit": 7 }] });
    let service = asked(service(&json!({})), "broken", &script).start();
    let reason = || agent(&service, "broken", &[])["reason"].as_str().unwrap_or_default().to_owned();
    let explained = || ["7", "no such model", "by hand"].iter().all(|word| reason().contains(word));
    assert!(poll_until(DEADLINE, explained), "{}", reason());
}

/// A program that is the fake agent with a script.
fn write_program(path: &Path, script: &Value) {
    let draft = path.with_extension("new");
    let fake = program("fake-agent");
    fs::write(&draft, format!("#!/bin/sh\nFAKE_AGENT_SCRIPT='{script}' exec {}\n", fake.display())).unwrap();
    fs::set_permissions(&draft, fs::Permissions::from_mode(0o755)).unwrap();
    fs::rename(&draft, path).unwrap();
}

#[test]
fn f04_an_upgraded_agent_is_asked_again() {
    let builder = asked(service(&json!({})), "grown", &json!({}));
    let path = builder.dir().join("grown");
    write_program(&path, &offering(&["first"]));
    let service = builder.set("agents.grown.command", json!(path)).start();
    wait_model(&service, "grown", "first");
    write_program(&path, &offering(&["second"]));
    // Somebody works, so it is looked at.
    let (mut editor, session) = service.session();
    editor.turn(&session, "hello");
    let grown = wait_model(&service, "grown", "second");
    assert_eq!(values(&grown["models"]), ["second"]);
    assert_eq!(times(&service, "grown", "session/new"), 2);
}

#[test]
fn a_changed_configuration_is_asked_again_on_reload() {
    let mut service = asked(service(&json!({})), "one", &offering(&["before"])).start();
    wait_model(&service, "one", "before");
    service.configure("agents.one.env.FAKE_AGENT_SCRIPT", offering(&["after"]).to_string());
    service.configure("agents.one.models.after", json!({ "aliases": ["now"] }));
    service.reload();
    let one = wait_model(&service, "one", "after");
    assert!(poll_until(DEADLINE, || values(&agent(&service, "one", &[])["models"]) == ["after"]), "{one}");
    assert_eq!(agent(&service, "one", &[])["models"][0]["aliases"], json!(["now"]));
}

fn the_ledger_has_what_agents_offer(builder: Builder) {
    let mut service = asked(builder, "one", &offering(&["small", "big"])).start();
    wait_model(&service, "one", "big");
    let question = "SELECT models.agent, kind, value, name, models.agent_version, processes.agent AS teller, \
        CASE WHEN first_at = last_at THEN 'once' END AS told \
        FROM models JOIN processes ON processes.process_id = models.process_id ORDER BY kind, value";
    let rows = |service: &Service| {
        let config = service.dir.join("agents.toml");
        let output = service.run(&["ledger", "--config", config.to_str().unwrap(), "sql", "--csv", question]);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let version = env!("CARGO_PKG_VERSION");
    let expected = ["mode,ask,Ask", "mode,yolo,Yolo", "model,big,BIG", "model,small,SMALL"];
    let expected = expected.map(|row| format!("one,{row},{version},one,once\r\n")).concat();
    let is_there = || rows(&service).ends_with(&expected);
    assert!(poll_until(DEADLINE, is_there), "{}", rows(&service));
    assert!(service.term().success());
    let config = service.dir.join("agents.toml");
    let rebuilt = service.run(&["ledger", "--config", config.to_str().unwrap(), "rebuild"]);
    assert!(rebuilt.status.success(), "{rebuilt:?}");
    assert!(rows(&service).ends_with(&expected), "{}", rows(&service));
}

#[test]
fn the_ledger_has_what_agents_offer_in_sqlite() {
    the_ledger_has_what_agents_offer(service(&json!({})));
}

#[test]
fn the_ledger_has_what_agents_offer_in_postgres() {
    let database = Runtime::new().unwrap().block_on(Database::new());
    the_ledger_has_what_agents_offer(service(&json!({})).set("ledger.url", database.url()));
}

#[test]
fn stopping_in_the_midst_leaves_nothing() {
    for script in [
        json!({ "start": ["hang"] }),
        json!({ "instead": { "session/new": ["hang"] } }),
        json!({ "instead": { "session/close": ["hang"] } }),
    ] {
        let mut service = asked(service(&json!({})), "slow", &script).start();
        assert!(poll_until(DEADLINE, || !service.agents_alive().is_empty()), "{}", service.log());
        let begun = Instant::now();
        assert!(service.term().success());
        assert!(begun.elapsed() < Duration::from_secs(7), "{script}: {:?}", begun.elapsed());
        assert!(service.agents_alive().is_empty(), "{script}");
    }
}

fn routed() -> Builder {
    asked(service(&json!({})), "one", &offering(&["small", "big"]))
        .set("agents.one.models.big", json!({ "aliases": ["smart"] }))
        .agent("two", &json!({}))
        .set(
            "route",
            json!([
                { "user": "bob", "to": "two" },
                { "name": "reviews", "mode": "review", "team": "web", "to": "one", "fallback": ["two"],
                  "set": { "mode": "ask" } },
                { "labels": { "tier": "fast" }, "to": "two" },
            ]),
        )
}

/// How `route explain` ends, and what it says.
fn explain(service: &Service, args: &[&str]) -> (Option<i32>, String, String) {
    let config = service.dir.join("agents.toml");
    let known = ["route", "explain", "--config", config.to_str().unwrap(), "--user", "ann"];
    let output = service.run(&[&known, args].concat());
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn the_way_to_an_agent_is_explained() {
    let mut service = routed().start();
    wait_model(&service, "one", "big");
    let expected = "  \
  ✗  route 1        user `ann` is not `bob`
  ✓  route reviews  it is for mode `review`, team `web`
goes to
  1. one, mode ask
  2. two, fallback
because route reviews: it is for mode `review`, team `web` (route)
";
    let shown = explain(&service, &["--mode", "review", "--team", "ops", "--team", "web"]);
    assert_eq!(shown, (Some(0), expected.to_owned(), String::new()));
    let (code, text, _) = explain(&service, &["--label", "tier=fast", "--cwd", "/nowhere"]);
    assert_eq!(code, Some(0));
    assert!(text.contains("✗  route reviews  no mode was chosen") && text.contains("1. two\n"), "{text}");
    // An alias names a model of one agent. The service may have written it just now, and may be gone.
    let by_alias = |service: &Service| {
        let (code, json, _) = explain(service, &["--model", "smart", "--json"]);
        assert_eq!(code, Some(0));
        serde_json::from_str::<Value>(&json).unwrap()
    };
    assert!(poll_until(DEADLINE, || by_alias(&service)["how"] == "model"), "{}", by_alias(&service));
    assert!(service.term().success());
    let decision = by_alias(&service);
    assert_eq!(
        decision["targets"],
        json!([{ "agent": "one", "model": "big", "mode": null, "is_fallback": false }])
    );
    assert_eq!((&decision["how"], &decision["route"]), (&json!("model"), &json!(null)));
    assert_eq!(decision["steps"].as_array().unwrap().len(), 4);
    let (_, text, _) = explain(&service, &["--model", "acp:two/any"]);
    assert!(text.contains("✓  the agent's name") && text.contains("1. two, model any\n"), "{text}");
    // A name is taken as it is where nothing is known of the agents.
    let elsewhere = service.dir.join("elsewhere");
    let (code, text, said) =
        explain(&service, &["--model", "smart", "--state-dir", elsewhere.to_str().unwrap()]);
    assert_eq!(code, Some(0));
    assert!(text.contains("1. fake, model smart\n"), "{text}");
    assert!(said.contains("what the agents offer is not known"), "{said}");
    assert!(!elsewhere.exists());
}

#[test]
fn what_has_no_agent_is_refused() {
    let service = routed().start();
    for (args, code) in [
        (["--agent", "none"], 1),
        (["--model", "acp:none/model"], 1),
        (["--config", "/nowhere/agents.toml"], 2),
        (["--label", "tier"], 2),
    ] {
        let (found, text, said) = explain(&service, &args);
        // Named twice, the configuration file is a mistake of the command line.
        assert_eq!((found, text.as_str()), (Some(code), ""), "{args:?}: {said}");
        assert!(!said.is_empty());
    }
    let (code, json, said) = explain(&service, &["--agent", "none", "--json"]);
    let error = serde_json::from_str::<Value>(&json).unwrap()["error"].as_str().unwrap().to_owned();
    assert_eq!(code, Some(1));
    assert!(error.contains("there is no agent `none`; the agents are:") && said.contains(&error), "{error}");
}
