//! What each command does.

use serde_json::{Value, json};

use crate::peer::{Peer, choose, everything, home};

#[test]
fn help_names_every_announced_command() {
    let home = home();
    let mut peer = Peer::ready(home.path(), json!({}));
    let session = peer.open();
    let text = peer.prompt(&session, "help").text();
    let reply = peer.prompt(&session, "/commands");
    let commands = reply.of_kind("available_commands_update")[0]["availableCommands"].as_array().unwrap();
    assert_eq!(commands.len(), 18);
    for command in commands {
        let name = command["name"].as_str().unwrap();
        assert!(text.contains(&format!("`{name}")), "{name} is missing in {text}");
    }
    let echo = peer.prompt(&session, "How are you?").text();
    assert!(echo.contains("How are you?") && echo.contains("`help`"), "{echo}");
    let prompt = json!([{ "type": "image", "data": "", "mimeType": "image/png" }]);
    let reply = peer.call("session/prompt", json!({ "sessionId": session, "prompt": prompt }));
    assert!(reply.text().contains("image"), "{}", reply.text());
}

#[test]
fn streams_thinks_plans_and_calls_tools() {
    let home = home();
    let mut peer = Peer::ready(home.path(), json!({}));
    let session = peer.open();
    let reply = peer.prompt(&session, "stream 250");
    assert_eq!(reply.of_kind("agent_message_chunk").len(), 250);
    assert_eq!(reply.of_kind("session_info_update")[0]["title"], "stream 250");
    assert_eq!(reply.stop_reason(), "end_turn");

    assert_eq!(peer.prompt(&session, "think").of_kind("agent_thought_chunk").len(), 2);
    for (level, thoughts) in [("high", 5), ("off", 0)] {
        let params = json!({ "sessionId": session, "configId": "thought_level", "value": level });
        peer.call("session/set_config_option", params).outcome.unwrap();
        assert_eq!(peer.prompt(&session, "think").of_kind("agent_thought_chunk").len(), thoughts);
    }

    let reply = peer.prompt(&session, "plan");
    let plans = reply.of_kind("plan");
    let statuses = |plan: &Value| -> Vec<String> {
        let entries = plan["entries"].as_array().unwrap().iter();
        entries.map(|entry| entry["status"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(statuses(plans[0]), ["pending"; 3]);
    assert_eq!(statuses(plans[2]), ["completed", "in_progress", "pending"]);
    assert_eq!(statuses(plans[plans.len() - 1]), ["completed"; 3]);

    let reply = peer.prompt(&session, "tool");
    assert_eq!(reply.statuses(), ["pending", "in_progress", "completed"]);
    let call = reply.of_kind("tool_call")[0];
    assert_eq!(call["locations"][0]["path"], "/project/README.md");
    assert!(call["rawInput"].is_object());
    let last = reply.of_kind("tool_call_update")[1];
    assert!(last["rawOutput"].is_object() && last["content"][0]["type"] == "content");
}

#[test]
fn reads_through_the_client() {
    let home = home();
    let mut peer = Peer::ready(home.path(), everything());
    let session = peer.open();
    let reply = peer.prompt_with(&session, "read notes.txt", |method, params| {
        assert_eq!((method, &params["path"]), ("fs/read_text_file", &json!("/project/notes.txt")));
        Ok(json!({ "content": "remember the milk" }))
    });
    assert_eq!(reply.statuses(), ["pending", "in_progress", "completed"]);
    assert_eq!(reply.of_kind("tool_call")[0]["kind"], "read");
    assert!(reply.text().contains("remember the milk"));

    let reply = peer.prompt_with(&session, "read /gone", |_, _| Err("no such file"));
    assert_eq!(reply.statuses(), ["pending", "in_progress", "failed"]);
    assert!(reply.text().contains("no such file"));
    assert_eq!(reply.stop_reason(), "end_turn");

    let reply = peer.prompt_with(&session, "read /odd", |_, _| Ok(json!({ "content": 5 })));
    assert_eq!(reply.statuses(), ["pending", "in_progress", "failed"]);
    assert!(peer.prompt(&session, "read").text().contains("read PATH"));
}

#[test]
fn asks_before_it_writes() {
    let home = home();
    let mut peer = Peer::ready(home.path(), everything());
    let session = peer.open();
    let client = |option: &'static str| {
        move |method: &str, params: &Value| match method {
            "fs/read_text_file" => Err("no such file"),
            "session/request_permission" => {
                let kinds: Vec<_> = params["options"]
                    .as_array()
                    .unwrap()
                    .iter()
                    .map(|option| option["kind"].clone())
                    .collect();
                assert_eq!(kinds, ["allow_once", "allow_always", "reject_once", "reject_always"]);
                assert_eq!(params["toolCall"]["rawInput"]["path"], "/project/a.txt");
                Ok(choose(option))
            }
            "fs/write_text_file" => {
                assert_eq!(params["path"], "/project/a.txt");
                assert_eq!(params["content"], "two  words");
                Ok(json!({}))
            }
            other => panic!("{other} was not expected"),
        }
    };
    let command = "write a.txt two  words";
    let asking = ["fs/read_text_file", "session/request_permission", "fs/write_text_file"];
    let reply = peer.prompt_with(&session, command, client("yes"));
    assert_eq!(reply.asked(), asking);
    assert_eq!(reply.statuses(), ["pending", "in_progress", "completed"]);
    let diff = json!({ "type": "diff", "path": "/project/a.txt", "oldText": null, "newText": "two  words" });
    assert_eq!(reply.of_kind("tool_call")[0]["content"], json!([diff]));

    for option in ["no", "no-always", "never-offered"] {
        let reply = peer.prompt_with(&session, command, client(option));
        assert_eq!(reply.asked(), asking[..2], "{option}");
        assert_eq!(reply.statuses(), ["pending", "failed"]);
        assert_eq!(reply.stop_reason(), "end_turn");
    }

    // In mode ask "always" is for once; in mode code it is remembered; in mode yolo nobody is asked.
    for (mode, first, second) in [("ask", true, true), ("code", true, false), ("yolo", false, false)] {
        peer.call("session/set_mode", json!({ "sessionId": session, "modeId": mode })).outcome.unwrap();
        for asked in [first, second] {
            let reply = peer.prompt_with(&session, command, client("yes-always"));
            assert_eq!(reply.asked().contains(&"session/request_permission"), asked, "{mode}");
            assert_eq!(reply.statuses(), ["pending", "in_progress", "completed"]);
        }
    }
}

#[test]
fn runs_commands_in_the_clients_terminal() {
    let home = home();
    let mut peer = Peer::ready(home.path(), everything());
    let session = peer.open();
    let client = |exit: Value| {
        move |method: &str, params: &Value| match method {
            "session/request_permission" => Ok(choose("yes")),
            "terminal/create" => {
                assert_eq!((&params["command"], &params["args"]), (&json!("ls"), &json!(["-l", "/tmp"])));
                Ok(json!({ "terminalId": "t1" }))
            }
            "terminal/wait_for_exit" => Ok(exit.clone()),
            "terminal/output" => Ok(json!({ "output": "total 0\n", "truncated": false })),
            "terminal/release" => Ok(json!({})),
            other => panic!("{other} was not expected"),
        }
    };
    let reply = peer.prompt_with(&session, "run ls -l  /tmp", client(json!({ "exitCode": 0 })));
    let whole = [
        "session/request_permission",
        "terminal/create",
        "terminal/wait_for_exit",
        "terminal/output",
        "terminal/release",
    ];
    assert_eq!(reply.asked(), whole);
    assert_eq!(reply.statuses(), ["pending", "in_progress", "completed"]);
    let shown = &reply.of_kind("tool_call_update")[0]["content"];
    assert_eq!(*shown, json!([{ "type": "terminal", "terminalId": "t1" }]));
    assert!(reply.text().contains("exit code 0") && reply.text().contains("total 0"));

    let reply = peer.prompt_with(&session, "run ls -l /tmp", client(json!({ "signal": "SIGKILL" })));
    assert_eq!(reply.statuses(), ["pending", "in_progress", "failed"]);
    assert!(reply.text().contains("SIGKILL"));

    let reply = peer.prompt_with(&session, "run ls", |method, _| match method {
        "session/request_permission" => Ok(choose("yes")),
        _ => Err("no terminals left"),
    });
    assert_eq!(reply.statuses(), ["pending", "failed"]);
    assert!(reply.text().contains("no terminals left"));
}

#[test]
fn asks_and_says_what_was_answered() {
    let home = home();
    let mut peer = Peer::ready(home.path(), json!({}));
    let session = peer.open();
    for (option, kind) in [("yes", "allow_once"), ("no-always", "reject_always")] {
        let reply = peer.prompt_with(&session, "ask", |_, _| Ok(choose(option)));
        assert!(reply.text().contains(kind), "{}", reply.text());
        assert_eq!(reply.stop_reason(), "end_turn");
    }
    let reply =
        peer.prompt_with(&session, "ask", |_, _| Ok(json!({ "outcome": { "outcome": "cancelled" } })));
    assert_eq!(reply.stop_reason(), "cancelled");
    let reply = peer.prompt_with(&session, "ask", |_, _| Err("nobody is here"));
    assert!(reply.text().contains("nobody is here"));
}

#[test]
fn shows_a_form() {
    let home = home();
    let mut peer = Peer::ready(home.path(), everything());
    let session = peer.open();
    let reply = peer.prompt_with(&session, "form", |method, params| {
        assert_eq!((method, &params["mode"]), ("elicitation/create", &json!("form")));
        assert_eq!(params["requestedSchema"]["type"], "object");
        Ok(json!({ "action": "accept", "content": { "stars": 5 } }))
    });
    assert!(reply.text().contains("\"stars\":5"), "{}", reply.text());
    for (action, word) in [("decline", "declined"), ("cancel", "closed")] {
        let reply = peer.prompt_with(&session, "form", |_, _| Ok(json!({ "action": action })));
        assert!(reply.text().contains(word), "{}", reply.text());
    }
}

#[test]
fn what_the_client_lacks_is_named_and_not_used() {
    let home = home();
    let mut peer = Peer::ready(home.path(), json!({ "fs": { "readTextFile": false }, "elicitation": {} }));
    let session = peer.open();
    let cases = [
        ("read /a", "fs.readTextFile"),
        ("write /a b", "fs.writeTextFile"),
        ("run ls", "terminal"),
        ("form", "elicitation.form"),
    ];
    for (prompt, capability) in cases {
        let reply = peer.prompt(&session, prompt);
        assert_eq!(reply.asked(), Vec::<&str>::new());
        assert!(reply.text().contains(&format!("`{capability}`")), "{}", reply.text());
        assert_eq!(reply.stop_reason(), "end_turn");
    }
}

#[test]
fn ends_turns_in_every_way() {
    let home = home();
    let mut peer = Peer::ready(home.path(), json!({}));
    let session = peer.open();
    let reply = peer.prompt(&session, "fail");
    assert_eq!(reply.outcome.unwrap_err()["code"], -32603);
    assert_eq!(peer.prompt(&session, "refuse").stop_reason(), "refusal");

    let reply = peer.prompt(&session, "big 300");
    assert_eq!(reply.of_kind("agent_message_chunk").len(), 1);
    assert_eq!(reply.text().len(), 300 * 1024);

    let reply = peer.prompt(&session, "usage");
    let usage = reply.of_kind("usage_update")[0];
    assert_eq!(usage["size"], 8_000);
    assert!(usage["used"].as_u64().unwrap() > 0 && usage["cost"]["currency"] == "USD");

    let text = peer.prompt(&session, "whoami").text();
    assert!(text.contains(&format!("pid: {}", peer.child.id())), "{text}");
    assert!(text.contains("DEMO_SECRET") && !text.contains("hunter2"), "{text}");

    let id = peer.begin_prompt(&session, "crash");
    let last_words = peer.until(|message| message["params"]["update"]["content"].is_object());
    assert!(last_words.iter().all(|message| message["id"] != id));
    assert_eq!(peer.wait().code(), Some(3));
}
