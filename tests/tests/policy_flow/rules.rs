//! Where rules come from: the service, a repository, a user; and how they change while sessions are open.

use std::fs;

use conductor_tests::{
    disk,
    harness::{assert_says, service},
    people::Person,
};
use serde_json::{Value, json};

use super::{asks, chosen, judged, modes, open, ruled, told, usual};

#[test]
fn an_opening_that_is_refused_late_leaves_nothing_behind() {
    const SECRET: &str = "late-canary-31c8e";
    let tools = json!({ "command": "true", "env": { "TOOL_TOKEN": SECRET } });
    let mut service = service(&modes("default")).set("mcp.tools", tools).start();
    let mut editor = service.editor();
    let servers = json!([{ "name": "tools", "command": "true", "args": [],
        "env": [{ "name": "TOOL_TOKEN", "value": SECRET }] }]);
    let error = editor.call_error(
        "session/new",
        &json!({ "cwd": service.work(), "mcpServers": servers,
            "_meta": { "conductor": { "mode": "nowhere" } } }),
    );
    assert_says(&error, &["has no mode"]);
    // The agent has opened it, so it is closed there.
    service.wait_received("fake", "session/close", |entry| {
        entry.json().is_some_and(|line| line["method"] == "session/close")
    });
    service.term();
    let kept = fs::read_dir(service.state().join("kept")).map_or(0, Iterator::count);
    assert_eq!(kept, 0, "its secrets are still there");
    let notes = disk::texts(&disk::journal(&service), conductor::record::Origin::Conductor);
    let ended: Vec<_> = notes.iter().filter(|note| note.contains("_conductor/session_ended")).collect();
    assert!(ended.len() == 1 && ended[0].contains("never opened"), "{ended:?}");
}

#[test]
fn t03_mcp_servers_must_be_known_or_allowed() {
    let service = ruled(&json!({}), "use = ['default']")
        .set("mcp.known", json!({ "command": "good-mcp", "args": ["--stdio"] }))
        .set("mcp.team", json!({ "command": "team-mcp", "inject": true }))
        .start();
    let mut editor = service.editor();
    editor.decides();
    let open = |servers: Value| json!({ "cwd": service.work(), "mcpServers": servers });
    let known = json!([{ "name": "mine", "command": "good-mcp", "args": ["--stdio"], "env": [] }]);
    editor.call("session/new", &open(known));
    let heard = service.wait_received("fake", "session/new", |entry| {
        entry.json().is_some_and(|line| line["method"] == "session/new")
    });
    let servers = heard.json().unwrap()["params"]["mcpServers"].clone();
    let names: Vec<&str> = servers.as_array().unwrap().iter().filter_map(|s| s["name"].as_str()).collect();
    assert_eq!(names, ["mine", "team"]);
    let changed = json!([{ "name": "known", "command": "good-mcp", "args": ["--evil"], "env": [] }]);
    let id = editor.request("session/new", &open(changed.clone()));
    let request = editor.next_request("session/request_permission");
    assert!(request["params"]["toolCall"]["rawInput"]["servers"].as_str().unwrap().contains("--evil"));
    editor.answer(&request, &json!({ "outcome": { "outcome": "selected", "optionId": "reject" } }));
    assert_eq!(editor.error_of(&id)["code"], -31005);
    let id = editor.request("session/new", &open(changed));
    let request = editor.next_request("session/request_permission");
    editor.answer(&request, &json!({ "outcome": { "outcome": "selected", "optionId": "allow" } }));
    assert!(editor.response(&id)["result"]["sessionId"].is_string());
}

#[test]
fn a_bad_policy_changes_nothing_and_a_good_one_holds_at_once() {
    let mut service = ruled(&json!({}), "use = ['default']").start();
    let (mut editor, session) = open(&service);
    let file = service.work().parent().unwrap().join("policy.toml");
    let steps = json!([asks(&json!({ "command": "ls" }), &usual())]);
    assert_eq!(chosen(&told(&editor.turn_do(&session, &steps))), "once");
    fs::write(&file, "[[rule]]\nid = 'broken'").unwrap();
    service.reload();
    service.wait_log("the policy was not reloaded; the old one stays in force");
    assert_eq!(chosen(&told(&editor.turn_do(&session, &steps))), "once");
    let deny = "[[rule]]\nid = 'x'\neffect = 'deny'\nreason = 'closed'\nanything = true";
    fs::write(&file, deny).unwrap();
    service.reload();
    service.wait_log("the policy was reloaded");
    assert_eq!(chosen(&told(&editor.turn_do(&session, &steps))), "no");
    let revisions: Vec<Value> = judged(&mut service).iter().map(|note| note["revision"].clone()).collect();
    assert_eq!(revisions[0], revisions[1]);
    assert_ne!(revisions[1], revisions[2]);
}

#[test]
fn a_repository_can_only_narrow_the_rules() {
    let service = ruled(&json!({}), "use = ['default']").start();
    let rules = service.work().join(".conductor");
    fs::create_dir(&rules).unwrap();
    let deny = "[[rule]]\nid = 'quiet'\neffect = 'deny'\nreason = 'not here'\nrun = { program = ['ls'] }";
    fs::write(rules.join("policy.toml"), deny).unwrap();
    let (mut editor, session) = open(&service);
    let steps = json!([asks(&json!({ "command": "ls" }), &usual())]);
    assert_eq!(chosen(&told(&editor.turn_do(&session, &steps))), "no");
    // A file that would allow something, or cannot be read, makes everything ask.
    let allow =
        "[[rule]]\nid = 'open'\neffect = 'allow'\nreason = 'x'\nrun = { program = ['*'], words = 'any' }";
    fs::write(rules.join("policy.toml"), allow).unwrap();
    let (mut editor, session) = open(&service);
    editor.prompt_do(&session, &json!([asks(&json!({ "command": "make all" }), &usual())]));
    editor.next_request("session/request_permission");
}

#[test]
fn a_users_own_file_narrows_whatever_they_are_called() {
    let builder = ruled(&json!({}), "use = ['trusted']");
    let users = builder.dir().join("users");
    fs::create_dir(&users).unwrap();
    let deny = "[[rule]]\nid = 'no-ls'\neffect = 'deny'\nreason = 'not you'\nrun = { program = ['ls'] }\n";
    for (name, text) in [("%2e.%2fann.toml", deny), ("%2eeve.toml", deny), ("cleo.toml", "[broken")] {
        fs::write(users.join(name), text).unwrap();
    }
    // Nobody can read this one.
    fs::create_dir(users.join("dan.toml")).unwrap();
    let service = builder.set("policy.users", users.to_str().unwrap()).start();
    let steps = json!([asks(&json!({ "command": "ls" }), &usual())]);
    for (user, outcome) in [("../ann", "no"), (".eve", "no"), ("bob", "once")] {
        let mut editor = Person::named(&service, user).editor(&service);
        let session = editor.new_session(&service.work());
        assert_eq!(chosen(&told(&editor.turn_do(&session, &steps))), outcome, "{user}");
    }
    // What cannot be read or understood could have denied anything.
    let new = json!({ "cwd": service.work(), "mcpServers": [] });
    for (user, words) in [("dan", "dan.toml"), ("cleo", "cleo.toml")] {
        let refused = Person::named(&service, user).editor(&service).call_error("session/new", &new);
        assert_says(&refused, &[words]);
    }
    fs::remove_dir_all(&users).unwrap();
    let refused = Person::named(&service, "bob").editor(&service).call_error("session/new", &new);
    assert_says(&refused, &["there is no such directory"]);
}

#[test]
fn a_pipe_in_place_of_a_repositorys_rules_holds_up_nobody() {
    let service = ruled(&json!({}), "use = ['default']").start();
    fs::create_dir(service.work().join(".conductor")).unwrap();
    let pipe = service.work().join(".conductor/policy.toml");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let (mut editor, session) = open(&service);
    editor.prompt_do(&session, &json!([asks(&json!({ "command": "ls" }), &usual())]));
    editor.next_request("session/request_permission");
}
