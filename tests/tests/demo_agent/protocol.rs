//! Handshake, malformed input, wrong requests, options.

use serde_json::{Value, json};

use crate::peer::{Peer, choose, everything, home, load};

#[test]
fn initialize_offers_what_the_demo_can_do() {
    let home = home();
    let mut peer = Peer::start(home.path());
    for version in [1, 2, 99] {
        let result = peer.call("initialize", json!({ "protocolVersion": version })).outcome.unwrap();
        assert_eq!(result["protocolVersion"], 1);
        assert_eq!(result["agentInfo"]["name"], "conductor-demo");
        let capabilities = &result["agentCapabilities"];
        assert_eq!(capabilities["loadSession"], true);
        let content = json!({ "image": true, "audio": true, "embeddedContext": true });
        assert_eq!(capabilities["promptCapabilities"], content);
        assert_eq!(capabilities["mcpCapabilities"], json!({ "http": true, "sse": true }));
        let sessions = json!({ "list": {}, "resume": {}, "close": {}, "delete": {} });
        assert_eq!(capabilities["sessionCapabilities"], sessions);
    }
    assert_eq!(peer.code("initialize", json!({ "protocolVersion": "1" })), -32602);
    assert_eq!(peer.code("initialize", json!({})), -32602);
}

#[test]
fn nothing_is_served_before_initialize() {
    let home = home();
    let mut peer = Peer::start(home.path());
    assert_eq!(peer.code("session/new", json!({ "cwd": "/", "mcpServers": [] })), -32600);
    assert_eq!(peer.code("_no/such", json!({})), -32600);
    peer.call("initialize", json!({ "protocolVersion": 1 })).outcome.unwrap();
    let session = peer.open();
    peer.call("initialize", json!({ "protocolVersion": 1 })).outcome.unwrap();
    assert_eq!(peer.prompt(&session, "stream 1").stop_reason(), "end_turn");
}

#[test]
fn malformed_input_gets_one_plain_error_and_costs_one_line() {
    let home = home();
    let mut peer = Peer::ready(home.path(), json!({}));
    let cases: [(&[u8], Value, i64); 8] = [
        (b"this is not json\n", Value::Null, -32700),
        (b"{\"jsonrpc\":\"2.0\",\"id\":1,\n", Value::Null, -32700),
        (b"\xff\xfe{}\n", Value::Null, -32700),
        (b"[{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"session/list\"}]\n", Value::Null, -32600),
        (b"42\n", Value::Null, -32600),
        (b"{\"jsonrpc\":\"2.0\",\"id\":{},\"method\":\"session/list\"}\n", Value::Null, -32600),
        (b"{\"jsonrpc\":\"2.0\",\"id\":\"a\",\"method\":5}\n", json!("a"), -32600),
        (b"{\"id\":7,\"method\":\"session/list\"}\n", json!(7), -32600),
    ];
    for (line, id, code) in cases {
        peer.raw(line);
        let error = peer.next();
        assert_eq!((&error["id"], &error["error"]["code"]), (&id, &json!(code)), "{error}");
    }
    // Blank lines, unknown notifications and answers to nothing are no reason to speak.
    peer.raw(b"\n\r\n{\"jsonrpc\":\"2.0\",\"method\":\"$/unknown\"}\n{\"jsonrpc\":\"2.0\",\"id\":0,\"result\":1}\n");
    assert_eq!(peer.call("session/list", json!({})).before, Vec::<Value>::new());
    // Ids come back as they were, and 1 is not "1".
    for id in [json!(null), json!("1"), json!(1), json!(i64::MIN)] {
        peer.send(&json!({ "jsonrpc": "2.0", "id": id, "method": "session/list", "params": {} }));
        let answer = peer.next();
        assert_eq!(answer["id"], id);
        assert_eq!(answer["result"]["sessions"], json!([]));
    }
}

#[test]
fn wrong_requests_are_refused_by_the_right_code() {
    let home = home();
    let mut peer = Peer::ready(home.path(), json!({}));
    let session = peer.open();
    assert_eq!(peer.code("_no/such_method", json!({})), -32601);
    assert_eq!(peer.code("session/cancel", json!({ "sessionId": session })), -32601);
    assert_eq!(peer.code("authenticate", json!({ "methodId": "x" })), -32602);
    assert_eq!(peer.code("session/new", json!({ "cwd": "work", "mcpServers": [] })), -32602);
    assert_eq!(peer.code("session/new", json!({ "cwd": "/project" })), -32602);
    assert_eq!(peer.code("session/new", json!([])), -32602);
    assert_eq!(peer.code("session/prompt", json!({ "prompt": [] })), -32602);
    assert_eq!(peer.code("session/prompt", json!({ "sessionId": session, "prompt": "hi" })), -32602);
    let unknown = json!([{ "type": "smell", "data": "" }]);
    assert_eq!(peer.code("session/prompt", json!({ "sessionId": session, "prompt": unknown })), -32602);
    assert_eq!(peer.code("session/list", json!({ "cursor": "nonsense" })), -32602);
    for method in ["prompt", "load", "resume", "close", "set_mode", "set_config_option"] {
        let params = json!({
            "sessionId": "no-such", "cwd": "/project", "mcpServers": [], "prompt": [],
            "modeId": "ask", "configId": "mode", "value": "ask",
        });
        let error = peer.call(&format!("session/{method}"), params).outcome.unwrap_err();
        assert_eq!(
            (&error["code"], &error["data"]["sessionId"]),
            (&json!(-32002), &json!("no-such")),
            "{method}"
        );
    }
    assert_eq!(peer.prompt(&session, "stream 1").stop_reason(), "end_turn");
}

#[test]
fn modes_and_models_are_kept_in_step_on_both_paths() {
    let home = home();
    let mut peer = Peer::ready(home.path(), json!({}));
    let result = peer.call("session/new", json!({ "cwd": "/project", "mcpServers": null })).outcome.unwrap();
    let session = result["sessionId"].as_str().unwrap();
    assert!(session.starts_with("demo-"));
    assert_eq!(result["modes"]["currentModeId"], "ask");
    let categories: Vec<_> =
        result["configOptions"].as_array().unwrap().iter().map(|option| option["category"].clone()).collect();
    assert_eq!(categories, ["model", "mode", "thought_level"]);
    let current = |options: &Value| {
        let options = options.as_array().unwrap().iter();
        options.map(|option| option["currentValue"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(current(&result["configOptions"]), ["demo-small", "ask", "low"]);
    peer.next();

    let reply = peer.call("session/set_mode", json!({ "sessionId": session, "modeId": "yolo" }));
    assert_eq!(reply.outcome, Ok(json!({})));
    assert_eq!(reply.of_kind("current_mode_update")[0]["currentModeId"], "yolo");
    assert_eq!(current(&reply.of_kind("config_option_update")[0]["configOptions"])[1], "yolo");

    let set = |option: &str, value: &str| json!({ "sessionId": session, "configId": option, "value": value });
    let reply = peer.call("session/set_config_option", set("mode", "code"));
    assert_eq!(reply.of_kind("current_mode_update")[0]["currentModeId"], "code");
    assert_eq!(current(&reply.of_kind("config_option_update")[0]["configOptions"])[1], "code");
    assert_eq!(current(&reply.outcome.unwrap()["configOptions"]), ["demo-small", "code", "low"]);

    let reply = peer.call("session/set_config_option", set("model", "demo-large"));
    assert_eq!(current(&reply.outcome.unwrap()["configOptions"]), ["demo-large", "code", "low"]);
    assert_eq!(peer.code("session/set_config_option", set("model", "gpt")), -32602);
    assert_eq!(peer.code("session/set_config_option", set("colour", "red")), -32602);
    assert_eq!(peer.code("session/set_mode", json!({ "sessionId": session, "modeId": "x" })), -32602);
    let text = peer.prompt(session, "whoami").text();
    assert!(text.contains("model: demo-large") && text.contains("mode: code"), "{text}");

    // A later process knows the choices.
    peer.end();
    let mut peer = Peer::ready(home.path(), json!({}));
    let result = peer.call("session/resume", load(session)).outcome.unwrap();
    assert_eq!(current(&result["configOptions"]), ["demo-large", "code", "low"]);
    assert_eq!(result["modes"]["currentModeId"], "code");
}

#[test]
fn own_requests_have_integer_ids_that_differ() {
    let home = home();
    let mut peer = Peer::ready(home.path(), everything());
    let session = peer.open();
    let mut ids = Vec::new();
    for _ in 0..6 {
        let reply = peer.prompt_with(&session, "ask", |_, _| Ok(choose("yes")));
        ids.extend(
            reply.before.iter().filter_map(|message| message.get("id")).map(|id| id.as_i64().unwrap()),
        );
    }
    assert_eq!(ids.len(), 6);
    assert!(ids.iter().any(|id| *id < 0) && ids.iter().any(|id| *id > i64::from(u32::MAX)), "{ids:?}");
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 6);
}
