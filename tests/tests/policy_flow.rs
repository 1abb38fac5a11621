//! What the policy does to real sessions: which requests it answers, which it
//! leaves to people, what is recorded first, and how it changes while sessions
//! are open.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

use std::{fs, path::Path, time::Duration};

use conductor::ledger::Settings;
use conductor_tests::{
    disk,
    editor::Editor,
    harness::{Builder, Service, assert_says, poll_until, service},
    people::Person,
    shipping,
};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

/// A service with these rules.
fn ruled(script: &Value, rules: &str) -> Builder {
    service(script).rules(rules)
}

/// An editor that decides for itself, and a session.
fn open(service: &Service) -> (Editor, String) {
    let (editor, session) = service.session();
    editor.decides();
    (editor, session)
}

/// A request for permission of an agent, as Claude Code writes them.
fn asks(input: &Value, options: &Value) -> Value {
    json!({ "request": { "method": "session/request_permission", "params": {
        "sessionId": "$sid",
        "toolCall": {
            "toolCallId": "call-1", "title": "innocent", "kind": "execute", "rawInput": input,
            "_meta": { "claudeCode": { "toolName": "Bash" } },
        },
        "options": options,
    } } })
}

fn usual() -> Value {
    json!([
        { "optionId": "ever", "name": "Always", "kind": "allow_always" },
        { "optionId": "once", "name": "Yes", "kind": "allow_once" },
        { "optionId": "no", "name": "No", "kind": "reject_once" },
    ])
}

/// The answer that the agent got to its first request.
fn told(chunks: &[String]) -> Value {
    let line = chunks.iter().find_map(|chunk| chunk.strip_prefix("answer "));
    serde_json::from_str(line.expect("the agent got an answer")).unwrap()
}

fn chosen(answer: &Value) -> &str {
    answer["result"]["outcome"]["optionId"].as_str().unwrap_or("nothing")
}

fn was_asked(editor: &Editor) -> usize {
    editor.lines().iter().filter(|line| line.method() == "session/request_permission").count()
}

/// What was noted of verdicts, in the journal of a service that is stopped for it.
fn judged(service: &mut Service) -> Vec<Value> {
    service.term();
    let notes = disk::journal(service).into_iter().flat_map(|record| {
        let lines: Vec<Value> = record.lines().filter_map(|line| serde_json::from_slice(line).ok()).collect();
        lines
    });
    notes.filter(|line| line["method"] == "_conductor/judged").map(|line| line["params"].clone()).collect()
}

#[test]
fn what_is_harmless_is_allowed_without_asking_anybody() {
    let mut service = ruled(&json!({}), "use = ['default']").start();
    let (mut editor, session) = open(&service);
    let chunks = editor.turn_do(&session, &json!([asks(&json!({ "command": "ls -la" }), &usual())]));
    assert_eq!(chosen(&told(&chunks)), "once", "never the option that lasts");
    assert_eq!(was_asked(&editor), 0);
    let judged = judged(&mut service);
    assert_eq!(judged[0]["decision"], "allow");
    assert!(judged[0]["revision"].as_str().is_some_and(|revision| revision.len() >= 12), "{judged:?}");
    assert!(judged[0]["rule"].is_string() && judged[0]["subActions"].is_array(), "{judged:?}");
}

#[test]
fn a_denial_chooses_reject_and_says_why() {
    let rules =
        "[[rule]]\nid = 'no-ls'\neffect = 'deny'\nreason = 'we do not list'\nrun = { program = ['ls'] }";
    let service = ruled(&json!({}), rules).start();
    let (mut editor, session) = open(&service);
    let steps = json!([asks(&json!({ "command": "ls -la" }), &usual())]);
    let answer = told(&editor.turn_do(&session, &steps));
    assert_eq!(chosen(&answer), "no");
    assert_eq!(answer["result"]["_meta"]["conductor"]["reason"], "we do not list");
    let only_always = json!([{ "optionId": "never", "name": "Never", "kind": "reject_always" }]);
    let steps = json!([asks(&json!({ "command": "ls" }), &only_always)]);
    assert_eq!(chosen(&told(&editor.turn_do(&session, &steps))), "never");
    let no_reject = json!([{ "optionId": "yes", "name": "Yes", "kind": "allow_once" }]);
    let steps = json!([asks(&json!({ "command": "ls" }), &no_reject)]);
    let answer = told(&editor.turn_do(&session, &steps));
    assert_eq!(answer["result"]["outcome"]["outcome"], "cancelled");
    assert_eq!(was_asked(&editor), 0);
}

#[test]
fn an_agent_that_can_only_be_allowed_for_ever_is_rejected() {
    let service = ruled(&json!({}), "use = ['default']").start();
    let (mut editor, session) = open(&service);
    let options = json!([
        { "optionId": "ever", "name": "Always", "kind": "allow_always" },
        { "optionId": "no", "name": "No", "kind": "reject_once" },
    ]);
    let steps = json!([asks(&json!({ "command": "ls" }), &options)]);
    let answer = told(&editor.turn_do(&session, &steps));
    assert_eq!(chosen(&answer), "no");
    assert!(answer["result"]["_meta"]["conductor"]["reason"].as_str().unwrap().contains("no_allow_once"));
}

#[test]
fn always_becomes_once_and_holds_for_the_session_and_for_exactly_this() {
    let service = ruled(&json!({}), "use = ['default']").start();
    let (mut editor, session) = open(&service);
    let run = |command: &str| json!([asks(&json!({ "command": command }), &usual())]);
    let turn = editor.prompt_do(&session, &run("make install"));
    let request = editor.next_request("session/request_permission");
    editor.answer(&request, &json!({ "outcome": { "outcome": "selected", "optionId": "ever" } }));
    editor.stop_reason(&turn);
    assert_eq!(chosen(&told(&editor.chunks(&session))), "once");
    let chunks = editor.turn_do(&session, &run("make install"));
    assert_eq!(chosen(&told(&chunks)), "once");
    assert_eq!(was_asked(&editor), 1, "it was granted");
    editor.prompt_do(&session, &run("make install PREFIX=/"));
    let request = editor.next_request("session/request_permission");
    editor.answer(&request, &json!({ "outcome": { "outcome": "selected", "optionId": "no" } }));
    let (mut other, another) = open(&service);
    other.prompt_do(&another, &run("make install"));
    other.next_request("session/request_permission");
}

#[test]
fn an_answer_that_was_not_on_offer_allows_nothing() {
    let service = ruled(&json!({}), "use = ['default']").start();
    let (mut editor, session) = open(&service);
    let turn = editor.prompt_do(&session, &json!([asks(&json!({ "command": "make all" }), &usual())]));
    let request = editor.next_request("session/request_permission");
    editor.answer(&request, &json!({ "outcome": { "outcome": "selected", "optionId": "made up" } }));
    editor.stop_reason(&turn);
    assert_ne!(chosen(&told(&editor.chunks(&session))), "made up");
}

#[test]
fn t02_a_title_does_not_count() {
    let service = ruled(&json!({}), "use = ['default']").start();
    let (mut editor, session) = open(&service);
    let mut ask = asks(&Value::Null, &usual());
    ask["request"]["params"]["toolCall"] = json!({ "toolCallId": "c", "title": "ls", "kind": "read" });
    editor.prompt_do(&session, &json!([ask]));
    editor.next_request("session/request_permission");
}

#[test]
fn what_a_call_was_announced_with_counts() {
    let service = ruled(&json!({}), "use = ['default']").start();
    let (mut editor, session) = open(&service);
    let announced = json!({ "notify": { "method": "session/update", "params": { "sessionId": "$sid", "update": {
        "sessionUpdate": "tool_call", "toolCallId": "call-1", "title": "t", "kind": "execute",
        "rawInput": { "command": "ls" }, "_meta": { "claudeCode": { "toolName": "Bash" } },
    } } } });
    let mut ask = asks(&Value::Null, &usual());
    ask["request"]["params"]["toolCall"] = json!({ "toolCallId": "call-1" });
    let chunks = editor.turn_do(&session, &json!([announced, ask]));
    assert_eq!(chosen(&told(&chunks)), "once");
    let contradicting = asks(&json!({ "command": "make all" }), &usual());
    editor.prompt_do(&session, &json!([announced, contradicting]));
    editor.next_request("session/request_permission");
}

fn writes(path: &Path) -> Value {
    json!([{ "request": { "method": "fs/write_text_file", "params": {
        "sessionId": "$sid", "path": path, "content": "new",
    } } }])
}

#[test]
fn a_write_that_nobody_asked_about_is_asked_about() {
    let service = ruled(&json!({}), "use = ['default']").start();
    let file = service.work().join("a.txt");
    let (mut editor, session) = open(&service);
    let turn = editor.prompt_do(&session, &writes(&file));
    let request = editor.next_request("session/request_permission");
    assert_eq!(request["params"]["toolCall"]["kind"], "edit");
    assert_eq!(request["params"]["toolCall"]["rawInput"]["path"], file.to_str().unwrap());
    assert!(!file.exists(), "it waits");
    editor.answer(&request, &json!({ "outcome": { "outcome": "selected", "optionId": "allow" } }));
    editor.stop_reason(&turn);
    assert_eq!(fs::read_to_string(&file).unwrap(), "new");
    let other = service.work().join("b.txt");
    let turn = editor.prompt_do(&session, &writes(&other));
    let request = editor.next_request("session/request_permission");
    editor.answer(&request, &json!({ "outcome": { "outcome": "selected", "optionId": "reject" } }));
    editor.stop_reason(&turn);
    assert!(!other.exists());
    assert_eq!(told(&editor.chunks(&session)[1..])["error"]["code"], -31005);
}

#[test]
fn a_write_that_is_denied_says_why_to_the_agent() {
    let service = ruled(&json!({}), "use = ['default']").start();
    let (mut editor, session) = open(&service);
    let answer = told(&editor.turn_do(&session, &writes(&service.work().join(".git/hooks/pre-commit"))));
    assert_eq!(answer["error"]["code"], -31005, "{answer}");
    assert!(answer["error"]["message"].as_str().unwrap().contains("denied by the policy"), "{answer}");
    assert!(!service.work().join(".git").exists());
    assert_eq!(was_asked(&editor), 0);
}

#[test]
fn what_a_person_has_allowed_a_tool_to_do_it_may_do_once() {
    let service = ruled(&json!({}), "use = ['default']").start();
    let file = service.work().join("a.txt");
    let (mut editor, session) = open(&service);
    let mut ask = asks(&json!({ "file_path": file, "content": "new" }), &usual());
    ask["request"]["params"]["toolCall"]["kind"] = "edit".into();
    ask["request"]["params"]["toolCall"]["_meta"]["claudeCode"]["toolName"] = "Write".into();
    let steps = json!([ask, writes(&file)[0], writes(&file)[0]]);
    let turn = editor.prompt_do(&session, &steps);
    let request = editor.next_request("session/request_permission");
    editor.answer(&request, &json!({ "outcome": { "outcome": "selected", "optionId": "once" } }));
    let second = editor.next_request("session/request_permission");
    assert!(file.exists(), "the first write needed no second question");
    editor.answer(&second, &json!({ "outcome": { "outcome": "selected", "optionId": "reject" } }));
    editor.stop_reason(&turn);
}

#[test]
fn with_nobody_there_a_question_is_denied_in_time() {
    let service = ruled(&json!({}), "use = ['default']").set("policy.ask_timeout", "300ms").start();
    let (mut editor, session) = open(&service);
    editor.prompt_do(&session, &json!([asks(&json!({ "command": "make all" }), &usual())]));
    editor.next_request("session/request_permission");
    drop(editor);
    let answer = service.wait_received("fake", "an answer to its request", |line| {
        line.json().is_some_and(|message| message.get("method").is_none() && message["id"] == 0)
    });
    let answer = answer.json().unwrap();
    assert_eq!(chosen(&answer), "no", "{answer}");
    assert!(answer["result"]["_meta"]["conductor"]["reason"].as_str().unwrap().contains("nobody"));
}

fn modes(current: &str) -> Value {
    json!({ "session": { "modes": { "currentModeId": current, "availableModes": [
        { "id": "default", "name": "Default" }, { "id": "bypassPermissions", "name": "Bypass" },
    ] } } })
}

#[test]
fn a_mode_that_asks_for_nothing_cannot_be_set() {
    let service = ruled(&modes("default"), "use = ['default']").start();
    let (mut editor, session) = open(&service);
    let params = json!({ "sessionId": session, "modeId": "bypassPermissions" });
    let error = editor.call_error("session/set_mode", &params);
    assert_eq!(error["code"], -31005, "{error}");
    let params = json!({ "sessionId": session, "configId": "mode", "value": "bypassPermissions" });
    assert_eq!(editor.call_error("session/set_config_option", &params)["code"], -31005);
    let params = json!({ "sessionId": session, "modeId": "default" });
    editor.call("session/set_mode", &params);
    let params = json!({
        "cwd": service.work(), "mcpServers": [],
        "_meta": { "claudeCode": { "options": { "permissionMode": "bypassPermissions" } } },
    });
    assert_eq!(editor.call_error("session/new", &params)["code"], -31005);
}

#[test]
fn what_one_request_sets_is_one_decision() {
    let mut service = ruled(&modes("default"), "use = ['default']").start();
    let (mut editor, session) = open(&service);
    let params = json!({
        "sessionId": session, "modeId": "bypassPermissions",
        "_meta": { "claudeCode": { "options": { "permissionMode": "default" } } },
    });
    assert_eq!(editor.call_error("session/set_mode", &params)["code"], -31005);
    let judged = judged(&mut service);
    let judged: Vec<&Value> = judged.iter().filter(|note| note["method"] == "session/set_mode").collect();
    assert_eq!((judged.len(), &judged[0]["decision"]), (1, &json!("deny")), "{judged:?}");
    assert!(judged[0]["subActions"].as_array().unwrap().len() > 1, "{judged:?}");
}

#[test]
fn a_forbidden_mode_is_set_back_before_the_next_prompt() {
    let service = ruled(&modes("bypassPermissions"), "use = ['default']").start();
    let (mut editor, session) = open(&service);
    let set_mode = |entry: &conductor_tests::ledger::Entry| {
        entry.json().is_some_and(|line| line["method"] == "session/set_mode")
    };
    let set = service.wait_received("fake", "session/set_mode", set_mode).json().unwrap();
    assert_eq!(set["params"]["modeId"], "default");
    let update = json!({ "sessionUpdate": "current_mode_update", "currentModeId": "bypassPermissions" });
    let slip = json!([{ "notify": { "method": "session/update", "params": { "sessionId": "$sid", "update": update } } }]);
    editor.turn_do(&session, &slip);
    editor.turn_do(&session, &json!([{ "update": {} }]));
    let heard = service.ledger("fake");
    let methods: Vec<String> = heard
        .iter()
        .filter_map(|entry| entry.json())
        .filter_map(|line| line["method"].as_str().map(str::to_string))
        .filter(|method| method == "session/set_mode" || method == "session/prompt")
        .collect();
    assert_eq!(methods, ["session/set_mode", "session/prompt", "session/set_mode", "session/prompt"]);
}

#[test]
fn queued_prompts_wait_until_a_forbidden_mode_is_set_back() {
    let builder = ruled(&json!({}), "use = ['default']");
    let (slip, leave) = (builder.dir().join("work/slip"), builder.dir().join("work/leave"));
    let mut script = modes("default");
    script["instead"] =
        json!({ "session/set_mode": [{ "wait_file": leave }, { "answer": { "result": {} } }] });
    let service = builder.agent("fake", &script).start();
    let (mut editor, session) = open(&service);
    let update = json!({ "sessionUpdate": "current_mode_update", "currentModeId": "bypassPermissions" });
    let first = editor.prompt_do(&session, &json!([{ "wait_file": slip }, tells(&update)]));
    let second = editor.prompt_do(&session, &json!([{ "update": { "text": "second " } }]));
    let third = editor.prompt_do(&session, &json!([{ "update": { "text": "third " } }]));
    // Behind the prompts, so that they are queued by then.
    editor.call("_x/return", &json!({ "sessionId": session }));
    fs::write(&slip, "").unwrap();
    assert_eq!(editor.stop_reason(&first), "end_turn");
    let method = |entry: &conductor_tests::ledger::Entry, name: &str| {
        entry.json().is_some_and(|line| line["method"] == name)
    };
    let set = service.wait_received("fake", "session/set_mode", |entry| method(entry, "session/set_mode"));
    service.wait_settled("fake");
    let prompts = || service.received("fake").iter().filter(|entry| method(entry, "session/prompt")).count();
    assert_eq!(prompts(), 1, "{:?} is not answered", set.text);
    fs::write(&leave, "").unwrap();
    assert_eq!(editor.stop_reason(&second), "end_turn");
    assert_eq!(editor.stop_reason(&third), "end_turn");
    assert_eq!(editor.chunks(&session), ["second 0", "third 0"]);
}

#[test]
fn rules_about_a_model_hold_in_whichever_form_an_agent_tells_it() {
    let models = json!({ "currentModelId": "big", "availableModels": [
        { "modelId": "big", "name": "Big" }, { "modelId": "small", "name": "Small" },
    ] });
    let rules = "use = ['default']\n[[rule]]\nid = 'big'\neffect = 'deny'\nreason = 'not with this one'\n\
        model = ['big']\nrun = { program = ['ls'], words = 'any' }";
    let options = json!([{ "id": "model", "name": "Model", "category": "model", "type": "select",
        "currentValue": "big", "options": [{ "value": "big", "name": "Big" }] }]);
    for told in [json!({ "models": models }), json!({ "configOptions": options })] {
        let service = ruled(&json!({ "session": told }), rules).start();
        let (mut editor, session) = open(&service);
        let chunks = editor.turn_do(&session, &json!([asks(&json!({ "command": "ls" }), &usual())]));
        assert_eq!(chosen(&self::told(&chunks)), "no", "{told}");
    }
}

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
fn what_the_agents_own_mode_asks_is_no_part_of_what_was_granted() {
    let modes = json!({ "session": { "modes": { "currentModeId": "default", "availableModes": [
        { "id": "default", "name": "Default" }, { "id": "fast", "name": "Fast" },
    ] } } });
    let rules = "[[rule]]\nid = 'modes'\neffect = 'allow'\nreason = 'x'\nset_mode = ['*']\n\
        [[rule]]\nid = 'here'\neffect = 'allow'\nreason = 'x'\nmode = ['default']\n\
        run = { program = ['deploy'], words = 'any' }";
    let service = ruled(&modes, rules).start();
    let (mut editor, session) = open(&service);
    let ask = |line: &str| asks(&json!({ "command": line }), &usual());
    let faster = tells(&json!({ "sessionUpdate": "current_mode_update", "currentModeId": "fast" }));
    // The person allows one of the two for good.
    let prompt = editor.prompt_do(&session, &json!([faster, ask("make all")]));
    let request = editor.next_request("session/request_permission");
    editor.answer(&request, &json!({ "outcome": { "outcome": "selected", "optionId": "ever" } }));
    assert_eq!(editor.stop_reason(&prompt), "end_turn");
    assert_eq!(chosen(&told(&editor.turn_do(&session, &json!([ask("make all")])))), "once");
    assert_eq!(was_asked(&editor), 1);
    // The other one is allowed in the mode that people have chosen, and not in the agent's.
    let prompt = editor.prompt_do(&session, &json!([ask("make all && deploy now")]));
    let request = editor.next_request("session/request_permission");
    editor.answer(&request, &json!({ "outcome": { "outcome": "selected", "optionId": "no" } }));
    assert_eq!(editor.stop_reason(&prompt), "end_turn");
    assert_eq!(was_asked(&editor), 2);
}

#[test]
fn decisions_can_be_asked_for_with_sql() {
    let service = ruled(&json!({}), "use = ['default']").start();
    let (mut editor, session) = open(&service);
    editor.turn_do(&session, &json!([asks(&json!({ "command": "ls" }), &usual())]));
    let settings = Settings::embedded(&service.state());
    let rows = "SELECT count(*) FROM decisions WHERE verdict = 'allow' AND decision = 'allow' \
        AND decided_by = 'conductor' AND length(policy_revision) > 11 AND rule IS NOT NULL \
        AND method = 'session/request_permission' AND sub_actions LIKE '%\"program\":\"ls\"%'";
    let runtime = Runtime::new().unwrap();
    let found =
        poll_until(Duration::from_secs(20), || runtime.block_on(shipping::number(&settings, rows)) == 1);
    assert!(found);
}

fn tells(update: &Value) -> Value {
    json!({ "notify": { "method": "session/update", "params": { "sessionId": "$sid", "update": update } } })
}

#[test]
fn m2_what_is_done_without_asking_is_reported_once_and_recorded() {
    let mut service = ruled(&json!({}), "use = ['default']").start();
    let mut editor = service.connect(&[]);
    editor.initialize_with(&json!({ "session": { "notices": {} } }));
    let opened = editor.call("session/new", &json!({ "cwd": service.work(), "mcpServers": [] }));
    let session = opened["sessionId"].as_str().unwrap().to_owned();
    let done = |id: &str, kind: &str| {
        tells(&json!({ "sessionUpdate": "tool_call", "toolCallId": id, "title": "t", "kind": kind,
            "status": "completed", "rawInput": { "command": "rm -rf x" } }))
    };
    editor.turn_do(&session, &json!([done("looks", "read"), done("acts", "execute"), done("again", "edit")]));
    let notices = editor.lines().iter().filter(|line| line.text().contains("Not asked")).count();
    assert_eq!(notices, 1, "{}", editor.story());
    service.wait_log("the agent acted without asking");
    service.term();
    let noted = disk::journal(&service);
    let noted = noted.iter().flat_map(|record| record.lines().map(<[u8]>::to_vec).collect::<Vec<_>>());
    let noted: Vec<Value> = noted.filter_map(|line| serde_json::from_slice(&line).ok()).collect();
    let noted: Vec<&Value> = noted
        .iter()
        .filter(|line| line["method"] == "_conductor/unmediated")
        .map(|line| &line["params"]["toolCallId"])
        .collect();
    assert_eq!(noted, ["acts", "again"]);
}

#[test]
fn a_call_that_was_asked_about_may_end_twice_and_its_id_come_again() {
    let mut service = ruled(&json!({}), "use = ['default']").start();
    let (mut editor, session) = open(&service);
    let call = |update: &str, kind: &str, status: &str| {
        tells(&json!({ "sessionUpdate": update, "toolCallId": "call-1", "title": "t", "kind": kind,
            "status": status }))
    };
    let ended = || call("tool_call_update", "execute", "completed");
    let ask = asks(&json!({ "command": "ls" }), &usual());
    let steps = json!([
        call("tool_call", "execute", "pending"),
        ask,
        ended(),
        ended(),
        call("tool_call", "read", "completed")
    ]);
    assert_eq!(chosen(&told(&editor.turn_do(&session, &steps))), "once");
    service.term();
    let notes = disk::texts(&disk::journal(&service), conductor::record::Origin::Conductor);
    let reported: Vec<_> = notes.iter().filter(|note| note.contains("_conductor/unmediated")).collect();
    assert!(reported.is_empty(), "{reported:?}");
}

#[test]
fn m3_a_call_that_is_changed_after_it_was_allowed_ends_the_turn() {
    let service = ruled(&json!({}), "use = ['default']").start();
    let (mut editor, session) = open(&service);
    let update = |input: Value| {
        tells(&json!({ "sessionUpdate": "tool_call_update", "toolCallId": "call-1", "status": "in_progress",
            "rawInput": input, "_meta": { "claudeCode": { "toolName": "Bash" } } }))
    };
    let ask = || asks(&json!({ "command": "ls -la" }), &usual());
    let honest = json!([ask(), update(json!({ "command": "ls -la" })), { "update": { "text": "fine " } }]);
    let turn = editor.prompt_do(&session, &honest);
    assert_eq!(editor.stop_reason(&turn), "end_turn");
    let sly = json!([ask(), update(json!({ "command": "rm -rf src" })), "wait_cancel"]);
    let turn = editor.prompt_do(&session, &sly);
    assert_eq!(editor.stop_reason(&turn), "cancelled");
    service.wait_log("a tool call was changed after it was allowed");
}

#[test]
fn o4_a_storm_of_requests_is_decided_and_recorded_in_groups() {
    let service = ruled(&json!({}), "use = ['default']").start();
    let (mut editor, session) = open(&service);
    let mut ask = asks(&json!({ "command": "git status --short" }), &usual());
    ask["request"]["forget"] = true.into();
    let steps = json!([{ "repeat": [1000, [ask]] }, { "update": { "text": "sent " } }]);
    let turn = editor.prompt_do(&session, &steps);
    assert_eq!(editor.stop_reason(&turn), "end_turn");
    let answers = || {
        let heard = service.ledger("fake");
        let heard = heard.iter().filter_map(|entry| entry.json());
        heard.filter(|line| chosen(line) == "once").count()
    };
    assert!(poll_until(Duration::from_secs(30), || answers() == 1000), "{} answers", answers());
    assert_eq!(was_asked(&editor), 0);
}

#[test]
fn a14_what_cannot_be_read_is_not_carried_out() {
    let service = ruled(&modes("default"), "use = ['trusted']").start();
    let (mut editor, session) = service.session();
    // Numbers that serde cannot hold, and others can.
    let odd = r#"{"jsonrpc":"2.0","id":7,"method":"fs/write_text_file","params":{"sessionId":"$sid","path":"PATH","content":"x","n":1e999}}"#;
    let odd = odd.replace("PATH", service.work().join("odd.txt").to_str().unwrap());
    editor.turn_do(&session, &json!([{ "line": odd }, { "update": {} }]));
    let refused = service.wait_received("fake", "a refusal", |entry| {
        entry.json().is_some_and(|line| line["id"] == 7 && line["error"]["code"] == -32602)
    });
    assert!(refused.json().is_some());
    assert!(!service.work().join("odd.txt").exists());
    for params in [
        format!(r#"{{"sessionId":"{session}","modeId":"bypassPermissions","n":1e999}}"#),
        format!(r#"{{"sessionId":"{session}","modeId":"default","modeId":"bypassPermissions"}}"#),
    ] {
        let id = editor.request_raw("session/set_mode", &params);
        assert!(editor.response(&id)["error"]["code"].is_i64(), "{params}");
    }
    let work = service.work();
    let params = format!(
        r#"{{"cwd":"{}","mcpServers":[{{"name":"x","command":"/bin/x","args":[],"env":[]}}],"n":1e999}}"#,
        work.display()
    );
    let id = editor.request_raw("session/new", &params);
    assert_eq!(editor.response(&id)["error"]["code"], -32602);
}

#[test]
fn a_request_without_an_id_is_nobodys_order() {
    let service =
        ruled(&modes("default"), "use = ['trusted']").set("agents.fake.workspace", "editor").start();
    let (mut editor, session) = service.session();
    let write = json!({ "notify": { "method": "fs/write_text_file", "params": {
        "sessionId": "$sid", "path": service.work().join("a"), "content": "x" } } });
    editor.turn_do(&session, &json!([write, { "update": {} }]));
    assert!(!editor.lines().iter().any(|line| line.method() == "fs/write_text_file"), "{}", editor.story());
    editor.notify("session/set_mode", &json!({ "sessionId": session, "modeId": "bypassPermissions" }));
    editor.turn_do(&session, &json!([{ "update": {} }]));
    let heard = service.ledger("fake");
    assert!(!heard.iter().any(|entry| entry.json().is_some_and(|line| line["method"] == "session/set_mode")));
}

#[test]
fn a_mode_that_the_agent_chooses_allows_nothing() {
    let script = json!({ "session": { "modes": { "currentModeId": "default", "availableModes": [
        { "id": "default", "name": "Default" }, { "id": "acceptEdits", "name": "Edits" },
    ] } } });
    let service = ruled(&script, "use = ['default']").start();
    let (mut editor, session) = open(&service);
    let file = service.work().join("a.txt");
    let chosen = tells(&json!({ "sessionUpdate": "current_mode_update", "currentModeId": "acceptEdits" }));
    let turn = editor.prompt_do(&session, &json!([chosen, writes(&file)[0]]));
    let request = editor.next_request("session/request_permission");
    editor.answer(&request, &json!({ "outcome": { "outcome": "selected", "optionId": "reject" } }));
    editor.stop_reason(&turn);
    assert!(!file.exists());
    // Set by a person, the same mode allows it.
    editor.call("session/set_mode", &json!({ "sessionId": session, "modeId": "acceptEdits" }));
    editor.turn_do(&session, &writes(&file));
    assert!(file.exists());
}

#[test]
fn once_is_once_for_a_tool_that_asks_again() {
    let service = ruled(&json!({}), "use = ['default']").start();
    let (mut editor, session) = open(&service);
    let ask = || asks(&json!({ "command": "make install" }), &usual());
    let turn = editor.prompt_do(&session, &json!([ask(), ask()]));
    for _ in 0..2 {
        let request = editor.next_request("session/request_permission");
        editor.answer(&request, &json!({ "outcome": { "outcome": "selected", "optionId": "once" } }));
    }
    editor.stop_reason(&turn);
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
