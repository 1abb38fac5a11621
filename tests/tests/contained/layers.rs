//! Which layers contain an agent: what was achieved is told and recorded, and what is required
//! and not to be had keeps the agent from starting.

use std::fs;

use conductor_tests::{
    disk,
    harness::{Service, assert_says},
};
use serde_json::{Value, json};

use crate::{Cell, Sandbox, world};

/// What `conductor agents --json` says of the process of a session.
fn shown(service: &Service, cell: &Cell) -> Value {
    let agent = service.agent_json("fake");
    let mut processes = agent["processes"].as_array().unwrap().iter();
    let process = processes.find(|process| process["pid"] == cell.agent);
    process.unwrap_or_else(|| panic!("no process {} in {agent}", cell.agent))["sandbox"].clone()
}

/// What the record says of the processes of an agent that were started.
fn recorded(service: &mut Service) -> Vec<Value> {
    service.term();
    let records = disk::journal(service);
    let lines = records.iter().flat_map(|record| record.lines().map(<[u8]>::to_vec).collect::<Vec<_>>());
    let notes = lines.filter_map(|line| serde_json::from_slice::<Value>(&line).ok());
    let started = notes.filter(|note| note["method"] == "_conductor/process_started");
    started.map(|note| note["params"]["sandbox"].clone()).collect()
}

/// The names of layers; of those that are missing, the reason is beside each.
fn names(list: &Value) -> Vec<&str> {
    let names = list.as_array().into_iter().flatten();
    names.filter_map(|entry| entry.as_str().or_else(|| entry["layer"].as_str())).collect()
}

#[test]
fn what_was_achieved_is_shown_and_recorded() {
    let mut service = world(Sandbox::Required).start();
    let mine = Cell::mine(&service);
    let shown = shown(&service, &mine);
    assert_eq!(shown["mode"], "required", "{shown}");
    let achieved = names(&shown["layers"]);
    let wanted = crate::layers().into_iter().filter(|layer| *layer != "network");
    assert!(wanted.into_iter().all(|layer| achieved.contains(&layer)), "{shown}");
    drop(mine);
    let recorded = recorded(&mut service);
    assert!(!recorded.is_empty() && recorded.iter().all(|sandbox| *sandbox == shown), "{recorded:?}");
}

#[test]
fn no_sandbox_is_shown_and_recorded_as_none() {
    let mut service = world(Sandbox::Off).start();
    let mine = Cell::mine(&service);
    let shown = shown(&service, &mine);
    assert_eq!(shown["mode"], "off", "{shown}");
    assert!(!names(&shown["layers"]).iter().any(|layer| ["landlock", "seccomp"].contains(layer)), "{shown}");
    drop(mine);
    let recorded = recorded(&mut service);
    assert!(!recorded.is_empty() && recorded.iter().all(|sandbox| *sandbox == shown), "{recorded:?}");
}

#[test]
fn a_required_layer_that_is_not_to_be_had_is_named_and_nothing_starts() {
    // Who has no rights can make no control groups.
    let service = world(Sandbox::Required)
        .set("agents.fake.sandbox_layers", json!(["landlock", "seccomp", "cgroup"]))
        .start();
    let mut editor = service.editor();
    let error = editor.call_error("session/new", &json!({ "cwd": service.work(), "mcpServers": [] }));
    assert_says(&error, &["cgroup", "Delegate=yes"]);
    assert!(service.agents_alive().is_empty(), "{:?}", service.processes());
    assert!(service.ledger("fake").is_empty(), "the agent has run");
    // Others are not touched.
    Cell::theirs(&service).is_well();
}

#[test]
fn a_preferred_layer_that_is_not_to_be_had_is_shown_as_missing() {
    let service = world(Sandbox::Required)
        .set("agents.fake.sandbox", "preferred")
        .set("agents.fake.sandbox_layers", json!(["landlock", "seccomp", "cgroup"]))
        .start();
    let mut mine = Cell::mine(&service);
    let shown = shown(&service, &mine);
    assert_eq!(shown["mode"], "preferred", "{shown}");
    assert!(names(&shown["missing"]).contains(&"cgroup"), "{shown}");
    assert!(names(&shown["layers"]).contains(&"landlock"), "{shown}");
    mine.is_well();
}

#[test]
fn a_layer_that_nobody_knows_is_refused_with_the_configuration() {
    let service = world(Sandbox::Off).start();
    let file = service.dir.join("wrong.toml");
    fs::write(&file, "[agents.fake]\nsandbox = 'required'\nsandbox_layers = ['landluck']\n").unwrap();
    service.give(&file);
    let output = service.run(&["serve", "--config", file.to_str().unwrap(), "--listen", "127.0.0.1:0"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("landluck") && said.contains("wrong.toml"), "{said}");
}
