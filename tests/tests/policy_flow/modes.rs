//! Modes, models and options: those that are denied are not set, and set back where an agent sets them.

use std::fs;

use serde_json::{Value, json};

use super::{asks, chosen, judged, modes, open, ruled, tells, told, usual, was_asked, writes};

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
