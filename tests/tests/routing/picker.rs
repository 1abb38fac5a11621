//! One picker for all agents, consistent in both forms and both directions.

use serde_json::{Value, json};

use super::{
    choose, id_of, modern, older, open, option, prompts, say, service, shown, teach, two, two_with, values,
    wait_update,
};

#[test]
fn p19_one_picker_has_the_models_of_all_agents_and_leaves_the_rest_alone() {
    let service = two().start();
    teach(&service, "b");
    let (editor, result) = open(&service, &[]);
    let model = shown(&result, "model");
    assert_eq!(model["id"], "model");
    assert_eq!(model["currentValue"], "a/a1");
    assert_eq!(values(model), ["a/a1", "a/a2", "b/b1", "b/b2"]);
    assert_eq!(model["options"][1]["name"], "Ay · A2");
    assert_eq!(model["options"][2]["name"], "Bee · B1");
    // The agent's other options are as it told them, byte for byte.
    let raw =
        editor.lines().into_iter().find(|line| line.json["result"]["sessionId"].is_string()).unwrap().text();
    let effort = modern()["session"]["configOptions"][1].to_string();
    assert!(raw.contains(&effort), "{raw}");
    assert!(!raw.contains("\"llm\""), "{raw}");
    // Who knows only modes has those of the option.
    assert_eq!(result["modes"]["currentModeId"], "ask");
    assert_eq!(result["modes"]["availableModes"][1], json!({ "id": "code", "name": "CODE" }));
}

#[test]
fn modes_of_an_older_agent_are_an_option_too() {
    let service = two().start();
    let (mut editor, result) = open(&service, &["--agent", "b"]);
    let session = id_of(&result);
    let mode = shown(&result, "mode");
    assert_eq!((mode["id"].as_str(), mode["currentValue"].as_str()), (Some("mode"), Some("plan")));
    assert_eq!(result["modes"], older()["session"]["modes"]);
    let set = editor.call(
        "session/set_config_option",
        &json!({ "sessionId": session, "configId": "mode", "value": "write" }),
    );
    assert_eq!(shown(&set, "mode")["currentValue"], "write");
    service.wait_received("b", "session/set_mode", |entry| {
        entry.text.as_deref().is_some_and(|text| text.contains("\"modeId\":\"write\""))
    });
    wait_update(&editor, "current_mode_update", |update| update["currentModeId"] == "write");
    editor.call("session/set_mode", &json!({ "sessionId": session, "modeId": "plan" }));
    wait_update(&editor, "config_option_update", |update| shown(update, "mode")["currentValue"] == "plan");
}

#[test]
fn a_model_of_the_agent_at_work_is_set_there_in_its_own_words() {
    let service = two().start();
    let (mut editor, result) = open(&service, &[]);
    let session = id_of(&result);
    // With and without the agent's name.
    for (value, own) in [("a/a2", "a2"), ("a1", "a1")] {
        let set = choose(&mut editor, &session, value);
        assert_eq!(shown(&set, "model")["currentValue"], format!("a/{own}"));
        assert!(
            set["configOptions"].as_array().unwrap().iter().any(|option| option["id"] == "effort"),
            "{set}"
        );
        service.wait_received("a", "its own value", |entry| {
            entry.text.as_deref().is_some_and(|text| {
                text.contains(r#""configId":"llm""#) && text.contains(&format!(r#""value":"{own}""#))
            })
        });
    }
    assert_eq!(say(&mut editor, &session, "hello"), "end_turn");
    for bad in ["a/a9", "nobody/x", "acp:nobody"] {
        let params = json!({ "sessionId": session, "configId": "model", "value": bad });
        assert_eq!(editor.call_error("session/set_config_option", &params)["code"], -32602, "{bad}");
    }
}

#[test]
fn what_an_agent_changes_itself_is_shown_in_both_forms() {
    let service = two().start();
    let (mut editor, result) = open(&service, &[]);
    let session = id_of(&result);
    let mut options = modern()["session"]["configOptions"].clone();
    options[0]["currentValue"] = "a2".into();
    options[2]["currentValue"] = "code".into();
    let update = |update: &Value| json!({ "notify": { "method": "session/update", "params": { "sessionId": "$sid", "update": update } } });
    let steps = json!({ "do": [
        update(&json!({ "sessionUpdate": "config_option_update", "configOptions": options })),
        update(&json!({ "sessionUpdate": "current_mode_update", "currentModeId": "ask" })),
    ] });
    say(&mut editor, &session, &steps.to_string());
    let told = wait_update(&editor, "config_option_update", |update| {
        shown(update, "model")["currentValue"] == "a/a2" && shown(update, "mode")["currentValue"] == "code"
    });
    assert_eq!(values(shown(&told, "model")).len(), 3, "{told}");
    wait_update(&editor, "current_mode_update", |update| update["currentModeId"] == "code");
    wait_update(&editor, "config_option_update", |update| shown(update, "mode")["currentValue"] == "ask");
    wait_update(&editor, "current_mode_update", |update| update["currentModeId"] == "ask");
}

#[test]
fn one_agent_alone_is_left_as_it_is() {
    let service = service(&modern()).start();
    let (editor, _) = open(&service, &[]);
    let raw =
        editor.lines().into_iter().find(|line| line.json["result"]["sessionId"].is_string()).unwrap().text();
    let options = modern()["session"]["configOptions"].to_string();
    assert!(raw.contains(&format!("\"configOptions\":{options}")), "{raw}");
    assert!(!raw.contains("\"modes\""), "{raw}");
}

#[test]
fn agents_that_may_not_be_used_are_not_offered() {
    let service = two()
        .rules("use = ['trusted']\n[[rule]]\nid = 'no-b'\neffect = 'ask'\nreason = 'not yet'\nuse_agent = ['b']\nmatch = [{ agent = 'b' }]\n")
        .agent("c", &json!({}))
        .set("agents.c.hidden", true)
        .agent("d", &json!({}))
        .start();
    let (mut editor, result) = open(&service, &[]);
    assert_eq!(values(shown(&result, "model")), ["a/a1", "a/a2", "d"]);
    let params = json!({ "sessionId": id_of(&result), "configId": "model", "value": "b/b1" });
    let refused = editor.call_error("session/set_config_option", &params);
    assert_eq!(refused["code"], -31005, "{refused}");
    // One that is only hidden can be named.
    let set = choose(&mut editor, &id_of(&result), "c");
    assert_eq!(shown(&set, "model")["currentValue"], "c");
}

#[test]
fn the_configuration_names_and_hides_models() {
    let service = two_with(
        &modern(),
        &json!({ "session": { "configOptions": [
        option("model", "model", "b1", &["b1", "b2", "b3"]),
    ] } }),
    )
    .set(
        "agents.b.models",
        json!({
            "b1": { "title": "The best", "aliases": ["best"] }, "b2": { "hidden": true },
        }),
    )
    .start();
    teach(&service, "b");
    let (mut editor, result) = open(&service, &[]);
    let model = shown(&result, "model");
    assert_eq!(values(model), ["a/a1", "a/a2", "b/b1", "b/b3"]);
    assert_eq!(model["options"][2]["name"], "Bee · The best");
    let set = choose(&mut editor, &id_of(&result), "best");
    assert_eq!(shown(&set, "model")["currentValue"], "b/b1");
}

#[test]
fn modes_of_routes_are_offered_and_lead_there() {
    let service = two()
        .set(
            "route",
            json!([
                { "name": "reviews", "mode": "review", "to": "b", "set": { "mode": "write", "model": "b2" } },
                { "mode": "secret", "user": "nobody", "to": "b" },
            ]),
        )
        .start();
    let (mut editor, result) = open(&service, &[]);
    let session = id_of(&result);
    assert_eq!(values(shown(&result, "mode")), ["ask", "code", "review"]);
    let modes = result["modes"]["availableModes"].as_array().unwrap();
    assert_eq!(
        modes.iter().map(|mode| mode["id"].as_str().unwrap()).collect::<Vec<_>>(),
        ["ask", "code", "review"]
    );
    editor.call("session/set_mode", &json!({ "sessionId": session, "modeId": "review" }));
    wait_update(&editor, "config_option_update", |update| shown(update, "mode")["currentValue"] == "review");
    assert_eq!(say(&mut editor, &session, "look at it"), "end_turn");
    let told = wait_update(&editor, "config_option_update", |update| {
        shown(update, "model")["currentValue"] == "b/b2"
    });
    assert_eq!(shown(&told, "mode")["currentValue"], "review");
    service.wait_received("b", "its mode", |entry| {
        entry.text.as_deref().is_some_and(|text| text.contains("\"modeId\":\"write\""))
    });
    let refused = editor.call_error("session/set_mode", &json!({ "sessionId": session, "modeId": "secret" }));
    assert_eq!(refused["code"], -32602, "{refused}");
}

#[test]
fn models_of_the_oldest_agents_can_be_chosen_too() {
    let oldest = json!({
        "session": { "models": { "currentModelId": "x", "availableModels": [
            { "modelId": "x", "name": "Ex" }, { "modelId": "y", "name": "Why" },
        ] } },
        "instead": { "session/set_model": [{ "answer": { "result": {} } }] },
    });
    let service = two_with(&oldest, &older()).start();
    let (mut editor, result) = open(&service, &[]);
    let session = id_of(&result);
    assert_eq!(values(shown(&result, "model")), ["a/x", "a/y", "b"]);
    let set = choose(&mut editor, &session, "a/y");
    assert_eq!(shown(&set, "model")["currentValue"], "a/y");
    service.wait_received("a", "session/set_model", |entry| {
        entry
            .text
            .as_deref()
            .is_some_and(|text| text.contains("session/set_model") && text.contains(r#""modelId":"y""#))
    });
    assert_eq!(say(&mut editor, &session, "hello"), "end_turn");
}

/// Gemini CLI, for one, does not list the model that it was started with.
#[test]
fn a_model_in_use_can_be_come_back_to_though_its_agent_does_not_list_it() {
    let started_with = json!({
        "session": { "models": { "currentModelId": "x", "availableModels": [{ "modelId": "y" }] } },
        "instead": { "session/set_model": [{ "answer": { "result": {} } }] },
    });
    let service = two_with(&started_with, &older()).start();
    teach(&service, "a");
    let (mut editor, result) = open(&service, &[]);
    let session = id_of(&result);
    assert_eq!(values(shown(&result, "model")), ["a/y", "a/x", "b"]);
    let was = shown(&result, "model")["currentValue"].as_str().unwrap().to_owned();
    assert_eq!(was, "a/x");
    assert_eq!(say(&mut editor, &session, "here"), "end_turn");
    choose(&mut editor, &session, "b");
    assert_eq!(say(&mut editor, &session, "there"), "end_turn");
    let set = choose(&mut editor, &session, &was);
    assert_eq!(shown(&set, "model")["currentValue"], was);
    assert_eq!(say(&mut editor, &session, "here again"), "end_turn");
    assert_eq!(prompts(&service, "a").len(), 2);
}

#[test]
fn a_second_editor_sees_what_the_first_has_chosen() {
    let service = two().start();
    let (mut editor, result) = open(&service, &[]);
    let session = id_of(&result);
    say(&mut editor, &session, "one");
    let (mut other, _) = open(&service, &[]);
    let params = json!({ "sessionId": session, "cwd": service.work(), "mcpServers": [] });
    let loaded = other.call("session/load", &params);
    assert_eq!(shown(&loaded, "model")["currentValue"], "a/a1");
    choose(&mut editor, &session, "b");
    wait_update(&other, "config_option_update", |update| shown(update, "model")["currentValue"] == "b");
    say(&mut editor, &session, "two");
    wait_update(&other, "config_option_update", |update| {
        shown(update, "model")["currentValue"] == "b/b1" && shown(update, "mode")["currentValue"] == "plan"
    });
    // It may choose as well.
    choose(&mut other, &session, "a/a2");
    wait_update(&editor, "config_option_update", |update| shown(update, "model")["currentValue"] == "a/a2");
}
