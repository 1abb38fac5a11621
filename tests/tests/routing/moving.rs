//! Sessions that go from one agent to another, and back.

use conductor_tests::harness::{permission, poll_until};
use serde_json::{Value, json};

use super::{
    choose, id_of, methods, modern, notes, older, open, prompts, say, shown, teach, two, two_with,
    wait_update,
};

/// What an agent was told of the past with its n-th prompt.
fn handed_over(prompt: &Value) -> Option<String> {
    let first = &prompt["params"]["prompt"][0];
    let text = first["resource"]["text"].as_str().or_else(|| first["text"].as_str())?;
    text.starts_with("[History").then(|| text.to_owned())
}

#[test]
fn a_session_goes_to_another_agent_and_back_and_each_hears_what_it_missed() {
    let service = two().start();
    teach(&service, "b");
    let (mut editor, result) = open(&service, &[]);
    let session = id_of(&result);
    say(&mut editor, &session, "first for a");
    let set = choose(&mut editor, &session, "b/b2");
    assert_eq!(shown(&set, "model")["currentValue"], "b/b2");
    // Nothing happens until the next prompt.
    assert_eq!(prompts(&service, "b").len(), 0);
    say(&mut editor, &session, "second for b");
    let told = prompts(&service, "b");
    assert_eq!(told.len(), 1);
    assert_eq!(told[0]["params"]["prompt"][0]["type"], "resource", "{}", told[0]);
    let past = handed_over(&told[0]).unwrap();
    assert!(past.contains("User: first for a\nAgent: echo: first for a"), "{past}");
    assert!(!past.contains("second for b"), "{past}");
    assert_eq!(told[0]["params"]["prompt"][1]["text"], "second for b");
    // The model was set before the prompt came.
    let asked = methods(&service, "b");
    let place = |method: &str| asked.iter().rposition(|asked| asked == method).unwrap();
    assert!(place("session/new") < place("session/set_config_option"), "{asked:?}");
    assert!(place("session/set_config_option") < place("session/prompt"), "{asked:?}");
    wait_update(&editor, "config_option_update", |update| {
        shown(update, "model")["currentValue"] == "b/b2" && shown(update, "mode")["currentValue"] == "plan"
    });
    say(&mut editor, &session, "third for b");
    assert_eq!(handed_over(&prompts(&service, "b")[1]), None);
    choose(&mut editor, &session, "a/a2");
    say(&mut editor, &session, "fourth for a");
    let told = prompts(&service, "a");
    assert_eq!(told.len(), 2);
    let past = handed_over(&told[1]).unwrap();
    assert!(past.contains("User: second for b") && past.contains("User: third for b"), "{past}");
    assert!(!past.contains("first for a") && past.contains("what you have missed"), "{past}");
    // It is the same session there, in the same process.
    assert_eq!(told[0]["params"]["sessionId"], told[1]["params"]["sessionId"]);
    assert_eq!(methods(&service, "a").iter().filter(|method| *method == "session/new").count(), 1);
    // The editor never sees what agents are told.
    let seen: Vec<String> = editor.lines().iter().map(conductor_tests::editor::Line::text).collect();
    assert!(!seen.iter().any(|line| line.contains("[History")), "{seen:#?}");
    let routed = notes(&service, &session, "_conductor/routed");
    let way: Vec<_> =
        routed.iter().map(|note| (note["agent"].as_str().unwrap(), note["how"].as_str().unwrap())).collect();
    assert_eq!(way, [("a", "default"), ("b", "named"), ("a", "named")]);
    assert_eq!(routed[1]["from"], "a");
}

#[test]
fn prompts_that_wait_keep_their_order_when_the_first_goes_elsewhere() {
    let service = two().start();
    teach(&service, "b");
    let (mut editor, result) = open(&service, &[]);
    let session = id_of(&result);
    let lost = editor.prompt_do(&session, &json!([{ "exit": 3 }]));
    editor.error_of(&lost);
    // Both wait until the agent is back.
    let mut ask = |text: &str, meta: Value| {
        let prompt = json!([{ "type": "text", "text": text }]);
        let params = json!({ "sessionId": session, "prompt": prompt, "_meta": meta });
        editor.request("session/prompt", &params)
    };
    let first = ask("first for b", json!({ "conductor": { "agent": "b" } }));
    let second = ask("second for b", json!({}));
    assert_eq!(
        (editor.stop_reason(&first), editor.stop_reason(&second)),
        ("end_turn".into(), "end_turn".into())
    );
    let told = prompts(&service, "b");
    let texts: Vec<_> = told
        .iter()
        .filter_map(|prompt| prompt["params"]["prompt"].as_array()?.last()?["text"].as_str())
        .collect();
    assert_eq!(texts, ["first for b", "second for b"]);
}

#[test]
fn an_agent_that_was_not_kept_is_resumed_and_hears_what_it_missed() {
    let service = two().set("agents.a.linger", "0s").set("agents.b.linger", "0s").start();
    let (mut editor, result) = open(&service, &[]);
    let session = id_of(&result);
    say(&mut editor, &session, "first for a");
    choose(&mut editor, &session, "b");
    say(&mut editor, &session, "second for b");
    assert!(poll_until(std::time::Duration::from_secs(10), || service.agents_alive().len() == 1));
    choose(&mut editor, &session, "a/a1");
    say(&mut editor, &session, "third for a");
    assert!(methods(&service, "a").contains(&"session/resume".to_owned()), "{:?}", methods(&service, "a"));
    let past = handed_over(&prompts(&service, "a")[1]).unwrap();
    assert!(past.contains("second for b") && !past.contains("first for a"), "{past}");
}

#[test]
fn ids_of_a_second_agent_are_told_apart_live_and_on_record() {
    let call = json!({ "notify": { "method": "session/update", "params": { "sessionId": "$sid", "update": {
        "sessionUpdate": "tool_call", "toolCallId": "call-1", "title": "T", "status": "completed", "kind": "read",
    } } } });
    let service = two().start();
    let (mut editor, result) = open(&service, &[]);
    let session = id_of(&result);
    let steps = json!({ "do": [call, permission()] }).to_string();
    editor.answer_with(|_| Some(json!({ "outcome": { "outcome": "selected", "optionId": "yes" } })));
    say(&mut editor, &session, &steps);
    choose(&mut editor, &session, "b");
    say(&mut editor, &session, &steps);
    let asked: Vec<String> = editor
        .lines()
        .iter()
        .filter_map(|line| line.json["params"]["toolCall"]["toolCallId"].as_str().map(str::to_owned))
        .collect();
    assert_eq!(asked, ["call-1", "2:call-1"]);
    let calls = |editor: &conductor_tests::editor::Editor| -> Vec<String> {
        let lines = editor.lines();
        let updates = lines.iter().map(|line| &line.json["params"]["update"]);
        updates.filter_map(|update| update["toolCallId"].as_str().map(str::to_owned)).collect()
    };
    assert_eq!(calls(&editor), ["call-1", "2:call-1"]);
    editor.call("session/close", &json!({ "sessionId": session }));
    let mut other = service.editor();
    let loaded =
        other.call("session/load", &json!({ "sessionId": session, "cwd": service.work(), "mcpServers": [] }));
    assert_eq!(calls(&other), ["call-1", "2:call-1"]);
    // It is with the agent that it was with.
    assert!(shown(&loaded, "model")["currentValue"].as_str().unwrap().starts_with("b"), "{loaded}");
}

#[test]
fn what_an_agent_says_after_it_was_left_is_recorded_and_not_shown() {
    let service = two().start();
    let (mut editor, result) = open(&service, &[]);
    let session = id_of(&result);
    let flag = service.dir.join("go");
    let late = json!({ "do": [{ "after": [
        { "wait_file": flag },
        { "update": { "n": 1, "text": "too late" } },
        { "request": { "method": "session/request_permission", "params": {
            "sessionId": "$sid", "toolCall": { "toolCallId": "x" }, "options": [],
        } } },
    ] }] });
    say(&mut editor, &session, &late.to_string());
    choose(&mut editor, &session, "b");
    say(&mut editor, &session, "for b");
    std::fs::write(&flag, "").unwrap();
    // The request is answered, so what came before it was heard.
    service.wait_received("a", "an answer to its question", |entry| {
        entry.text.as_deref().is_some_and(|text| text.contains("\"outcome\":\"cancelled\""))
    });
    say(&mut editor, &session, "again for b");
    assert!(!editor.lines().iter().any(|line| line.text().contains("too late")));
    let export = service.run(&["sessions", "export", &session]);
    assert!(String::from_utf8_lossy(&export.stdout).contains("too late"));
}

#[test]
fn a_session_is_with_its_agent_after_a_kill_of_the_service() {
    let mut service = two().start();
    let (mut editor, result) = open(&service, &[]);
    let session = id_of(&result);
    say(&mut editor, &session, "first for a");
    choose(&mut editor, &session, "b");
    say(&mut editor, &session, "second for b");
    service.kill9();
    drop(editor);
    service.start_again();
    let mut editor = service.editor();
    let params = json!({ "sessionId": session, "cwd": service.work(), "mcpServers": [] });
    editor.call("session/load", &params);
    say(&mut editor, &session, "third for b");
    assert_eq!(handed_over(prompts(&service, "b").last().unwrap()), None);
    choose(&mut editor, &session, "a");
    say(&mut editor, &session, "fourth for a");
    let last = prompts(&service, "a").pop().unwrap();
    let past = handed_over(&last).unwrap();
    assert!(
        past.contains("second for b") && past.contains("third for b") && !past.contains("first for a"),
        "{past}"
    );
}

#[test]
fn agents_are_chosen_by_flags_names_and_requests() {
    let service = two().set("agents.a.sessions_per_process", 4).start();
    for (args, agent) in [
        (&["--model", "b/b2"][..], "b"),
        (&["--model", "acp:b"], "b"),
        (&["--agent", "b", "--model", "b2", "--mode", "write"], "b"),
        (&["--model", "a/a2"], "a"),
    ] {
        let (mut editor, result) = open(&service, args);
        say(&mut editor, &id_of(&result), &format!("by {args:?}"));
        let last = prompts(&service, agent).pop().unwrap().to_string();
        assert!(last.contains(args[1]), "{args:?}: {last}");
    }
    let mut editor = service.editor();
    let meta = |choice: Value| json!({ "conductor": choice });
    let new =
        json!({ "cwd": service.work(), "mcpServers": [], "_meta": meta(json!({ "model": "acp:b/b1" })) });
    let session = id_of(&editor.call("session/new", &new));
    let prompt = |text: &str, choice: Value| json!({ "sessionId": session, "prompt": [{ "type": "text", "text": text }], "_meta": meta(choice) });
    editor.call("session/prompt", &prompt("meta one", json!({})));
    assert!(prompts(&service, "b").pop().unwrap().to_string().contains("meta one"));
    editor.call("session/prompt", &prompt("meta two", json!({ "agent": "a", "model": "a2" })));
    assert!(prompts(&service, "a").pop().unwrap().to_string().contains("meta two"));
    // The choice stays until there is another.
    say(&mut editor, &session, "meta three");
    assert!(prompts(&service, "a").pop().unwrap().to_string().contains("meta three"));
    let refused = editor.call_error("session/prompt", &prompt("x", json!({ "agent": "nobody" })));
    assert!(refused["message"].as_str().unwrap().contains("there is no agent `nobody`"), "{refused}");
    let refused = editor.call_error("session/prompt", &prompt("x", json!({ "model": 7 })));
    assert_eq!(refused["code"], -32602);
}

#[test]
fn prompts_that_wait_follow_the_session_in_order() {
    let service = two_with(&modern(), &older()).start();
    let (mut editor, result) = open(&service, &[]);
    let session = id_of(&result);
    let flag = service.dir.join("go");
    let first = editor.prompt(&session, &json!({ "do": [{ "wait_file": flag }] }).to_string());
    service.wait_received("a", "the first prompt", |entry| {
        entry.text.as_deref().is_some_and(|text| text.contains("session/prompt"))
    });
    let second = editor.prompt(&session, "two");
    let third = editor.prompt(&session, "three");
    choose(&mut editor, &session, "b");
    std::fs::write(&flag, "").unwrap();
    for id in [&first, &second, &third] {
        assert_eq!(editor.stop_reason(id), "end_turn");
    }
    assert_eq!(prompts(&service, "a").len(), 1);
    let texts: Vec<String> = prompts(&service, "b")
        .iter()
        .map(|prompt| {
            prompt["params"]["prompt"].as_array().unwrap().last().unwrap()["text"]
                .as_str()
                .unwrap()
                .to_owned()
        })
        .collect();
    assert_eq!(texts, ["two", "three"]);
}

#[test]
fn a_model_that_the_other_agent_does_not_have_is_refused_once() {
    let service = two().start();
    let (mut editor, result) = open(&service, &[]);
    let session = id_of(&result);
    say(&mut editor, &session, "first for a");
    let refused = editor.call_error(
        "session/prompt",
        &json!({ "sessionId": session, "prompt": [{ "type": "text", "text": "x" }],
            "_meta": { "conductor": { "agent": "b", "model": "unheard-of" } } }),
    );
    assert_eq!(refused["code"], -32602, "{refused}");
    assert!(refused["message"].as_str().unwrap().contains("it has: b1, b2"), "{refused}");
    assert_eq!(say(&mut editor, &session, "second for b"), "end_turn");
    assert!(prompts(&service, "b").pop().unwrap().to_string().contains("second for b"));
    choose(&mut editor, &session, "a/a1");
    assert_eq!(say(&mut editor, &session, "third for a"), "end_turn");
}

#[test]
fn an_agent_that_another_stood_in_for_hears_only_what_it_missed() {
    // Agent `a` answers whatever it is told to do.
    let mut first = modern();
    first["instead"] = json!({ "session/prompt": [{ "update": { "n": 1, "text": "done" } }] });
    let service = two_with(&first, &older()).set("route", json!([{ "to": "b", "fallback": "a" }])).start();
    let (mut editor, result) = open(&service, &[]);
    let session = id_of(&result);
    say(&mut editor, &session, "first for b");
    let error = json!({ "answer": { "error": { "code": -32603, "message": "429" } } });
    assert_eq!(say(&mut editor, &session, &json!({ "do": [error] }).to_string()), "end_turn");
    say(&mut editor, &session, "second for a");
    choose(&mut editor, &session, "b");
    say(&mut editor, &session, "third for b");
    let past = handed_over(prompts(&service, "b").last().unwrap()).unwrap();
    assert!(past.contains("second for a") && !past.contains("first for b"), "{past}");
}
