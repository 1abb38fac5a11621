//! An agent in a bubble (`tests/faults`, row M7): what makes other programs or the next session do
//! something stays as it is, whoever tries to change it, and all else goes on as without one.

use std::fs;

use conductor_tests::bubblewrap;
use serde_json::{Value, json};

use crate::{Cell, Sandbox, Who, all_well, contain, world};

const LAYERS: [&str; 3] = ["landlock", "seccomp", "bwrap"];

/// What the log says of protected places.
const TOLD: &str = "what is protected was changed in a turn";

/// How the process of an agent is held.
fn shown(agent: &Value) -> &Value {
    &agent["processes"][0]["sandbox"]
}

#[test]
fn m07_hooks_and_settings_of_others_cannot_be_planted() {
    if !bubblewrap::is_there() {
        return;
    }
    let mut service = world(Sandbox::Required).set("agents.fake.sandbox_layers", json!(LAYERS)).start();
    let root = service.work().join("mine");
    fs::create_dir_all(root.join(".git/hooks")).unwrap();
    fs::write(root.join(".git/config"), "").unwrap();
    let mut mine = Cell::mine(&service);
    let agent = service.agent_json("fake");
    let achieved = shown(&agent)["layers"].as_array().unwrap();
    assert!(LAYERS.iter().all(|layer| achieved.contains(&json!(layer))), "{agent}");

    let at = |path: &str| root.join(path);
    let planted = json!([
        { "write": at(".git/hooks/pre-commit") },
        { "write": at(".git/config") },
        { "write": at(".vscode/tasks.json") },
        { "write": at(".claude/settings.json") },
        { "make_dir": at(".github/workflows/x") },
        { "rename": [at(".git"), at("x")] },
    ]);
    let usual = json!([{ "write": at("file") }, { "write": at(".git/index") }]);
    for who in [Who::Agent, Who::Terminal] {
        for outcome in mine.tries_by(&service, who, &planted) {
            let is_refused = matches!(outcome.as_ref().map_err(String::as_str), Err("EROFS" | "EBUSY"));
            assert!(is_refused, "{who:?}: {outcome:?}");
        }
        all_well(&usual, &mine.tries_by(&service, who, &usual));
    }
    mine.is_well();
    drop(mine);
    service.term();
    let mut left: Vec<_> = fs::read_dir(&root).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    left.sort();
    assert_eq!(left, [".git", "file"], "nothing is left of what was made for the bubble");
}

#[test]
fn m06_without_a_port_there_is_no_network() {
    if !bubblewrap::is_there() {
        return;
    }
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let connect = json!([{ "connect": listener.local_addr().unwrap() }]);
    let builder = world(Sandbox::Required).set("agents.fake.sandbox_layers", json!(LAYERS));
    let service = contain(builder, "other", Sandbox::Off).set("agents.fake.reach.network", json!([])).start();
    let outcome = Cell::mine(&service).tries(&connect).remove(0);
    assert!(outcome.is_err(), "{outcome:?}");
    all_well(&connect, &Cell::theirs(&service).tries(&connect));
}

/// A mount goes away with what it is on: somebody outside who replaces a held place, as git does
/// with its configuration, opens it. What an agent does there then is told like anywhere else.
#[test]
fn m07_what_is_changed_in_a_place_that_others_have_replaced_is_told() {
    if !bubblewrap::is_there() {
        return;
    }
    let service = world(Sandbox::Required).set("agents.fake.sandbox_layers", json!(LAYERS)).start();
    let root = service.work().join("mine");
    let config = root.join(".git/config");
    fs::create_dir_all(root.join(".git/hooks")).unwrap();
    fs::write(&config, "").unwrap();
    let mut mine = Cell::mine(&service);
    let attempt = json!([{ "write": config }]);
    assert_eq!(mine.tries(&attempt), [Err("EROFS".to_owned())]);
    let new = root.join(".git/config.lock");
    fs::write(&new, "[user]\n").unwrap();
    service.give(&new);
    fs::rename(&new, &config).unwrap();
    assert!(!service.log().contains(TOLD), "nobody has changed it in a turn: {}", service.log());
    all_well(&attempt, &mine.tries(&attempt));
    service.wait_log(TOLD);
    assert!(service.log().contains(".git/config"), "{}", service.log());
}
