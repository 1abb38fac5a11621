//! Who serves: this host or the editor.

use std::{fs, path::Path};

use conductor_tests::harness::{Service, service};
use serde_json::{Value, json};

use crate::{ask, create, good, request, told};

/// What the newest process was told in its handshake.
fn told_capabilities(service: &Service) -> Value {
    let received = service.received("fake");
    let hello = received.iter().rfind(|line| line.method().as_deref() == Some("initialize"));
    hello.unwrap().json().unwrap()["params"]["clientCapabilities"].clone()
}

#[test]
fn an_agent_on_this_host_is_promised_everything_by_any_editor() {
    let service = service(&json!({})).set("agents.fake.sessions_per_process", 8).start();
    fs::write(service.work().join("file"), "text").unwrap();
    let mut editors = Vec::new();
    for able in [json!({}), json!({ "terminal": true }), json!({ "fs": { "readTextFile": true } })] {
        let mut editor = service.connect(&[]);
        editor.initialize_with(&able);
        let session = editor.new_session(&service.work());
        let read =
            good(&mut editor, &session, "fs/read_text_file", &json!({ "path": service.work().join("file") }));
        assert_eq!(read["content"], "text");
        create(&mut editor, &session, &json!({ "command": "true" }));
        editors.push(editor);
    }
    assert_eq!(service.agents_alive().len(), 1, "editors of all sorts share a process");
    let told = told_capabilities(&service);
    assert_eq!(
        (&told["fs"], &told["terminal"]),
        (&json!({ "readTextFile": true, "writeTextFile": true }), &json!(true))
    );
}

#[test]
fn editors_may_be_preferred() {
    for (key, method, editors) in [
        ("prefer_client_fs", "fs/read_text_file", true),
        ("prefer_client_fs", "fs/write_text_file", true),
        ("prefer_client_fs", "terminal/create", false),
        ("prefer_client_terminal", "terminal/create", true),
        ("prefer_client_terminal", "fs/read_text_file", false),
    ] {
        let service = service(&json!({})).set(&format!("agents.fake.{key}"), true).start();
        let path = service.work().join("file");
        fs::write(&path, "saved").unwrap();
        let params = json!({ "path": path, "content": "", "command": "true", "terminalId": "t1" });
        // An editor that can is asked.
        let (mut editor, session) = service.session();
        if editors {
            let id = editor.prompt_do(&session, &json!([request(method, &params)]));
            let asked = editor.next_request(method);
            assert_eq!(asked["params"]["sessionId"], json!(session));
            editor.answer(&asked, &json!({ "by": "editor" }));
            assert_eq!(editor.stop_reason(&id), "end_turn");
            assert_eq!(told(&editor.chunks(&session)[0])["result"]["by"], "editor", "{key} {method}");
        } else {
            assert!(ask(&mut editor, &session, method, &params).get("result").is_some(), "{key} {method}");
        }
        // One that cannot is not.
        let mut plain = service.connect(&[]);
        plain.initialize_with(&json!({}));
        let session = plain.new_session(&service.work());
        let answer = ask(&mut plain, &session, method, &params);
        assert_eq!(answer["error"]["code"], Value::Null, "{key} {method}: {answer}");
    }
}

#[test]
fn a_wrong_choice_is_refused_at_the_start() {
    let service = service(&json!({})).start();
    let file = service.dir.join("wrong.toml");
    fs::write(&file, "[agents.demo]\nworkspace = \"cloud\"\n").unwrap();
    let output = service.run(&["serve", "--config", file.to_str().unwrap(), "--listen", "127.0.0.1:0"]);
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success());
    assert!(
        text.contains("wrong.toml:2") && text.contains("\"host\"") && text.contains("\"editor\""),
        "{text}"
    );
}

/// A service whose editors have the session's directory elsewhere.
fn far_away(prefer: bool) -> Service {
    let builder = service(&json!({}));
    let entry = json!({ "editor": "/far/away", "host": builder.dir().join("work") });
    builder.set("service.cwd_map", json!([entry])).set("agents.fake.prefer_client_fs", prefer).start()
}

#[test]
fn paths_are_translated_between_editor_and_host() {
    let service = far_away(false);
    let work = service.work().display().to_string();
    fs::write(service.work().join("file"), "text").unwrap();
    let mut editor = service.editor();
    let session = editor.new_session(Path::new("/far/away"));
    let opened =
        service.wait_received("fake", "session/new", |line| line.method().as_deref() == Some("session/new"));
    assert_eq!(opened.json().unwrap()["params"]["cwd"], work);
    // A prompt's links, but not its text.
    let prompt = json!([
        { "type": "text", "text": "see file:///far/away/file" },
        { "type": "resource_link", "uri": "file:///far/away/file", "name": "/far/away" },
    ]);
    editor.call("session/prompt", &json!({ "sessionId": session, "prompt": prompt }));
    let told = service
        .wait_received("fake", "the prompt", |line| line.method().as_deref() == Some("session/prompt"));
    let told = told.json().unwrap()["params"]["prompt"].clone();
    assert_eq!(told[0], prompt[0]);
    assert_eq!(
        told[1],
        json!({ "type": "resource_link", "uri": format!("file://{work}/file"), "name": "/far/away" })
    );
    // The places of a tool call, but not its title.
    let update = json!({ "jsonrpc": "2.0", "method": "session/update", "params": { "sessionId": "$sid", "update": {
        "sessionUpdate": "tool_call", "toolCallId": "t", "title": format!("{work}/file"),
        "locations": [{ "path": format!("{work}/file") }],
        "content": [{ "type": "diff", "path": format!("{work}/file"), "newText": work }],
    } } });
    editor.turn_do(&session, &json!([{ "line": update.to_string() }]));
    let shown = editor.wait_for("the tool call", |line| {
        let update = &line.json["params"]["update"];
        (update["sessionUpdate"] == "tool_call").then(|| update.clone())
    });
    assert_eq!(shown["title"], format!("{work}/file"));
    assert_eq!(shown["locations"], json!([{ "path": "/far/away/file" }]));
    assert_eq!(shown["content"], json!([{ "type": "diff", "path": "/far/away/file", "newText": work }]));
    // What this host serves has its own paths.
    let path = json!({ "path": service.work().join("file") });
    assert_eq!(good(&mut editor, &session, "fs/read_text_file", &path)["content"], "text");
    let list = editor.call("session/list", &json!({ "cwd": "/far/away" }));
    assert_eq!(list["sessions"][0]["cwd"], "/far/away");
}

#[test]
fn requests_to_the_editor_name_its_paths() {
    let service = far_away(true);
    let mut editor = service.editor();
    let session = editor.new_session(Path::new("/far/away"));
    let params = json!({ "path": service.work().join("file"), "content": service.work() });
    let id = editor.prompt_do(&session, &json!([request("fs/write_text_file", &params)]));
    let asked = editor.next_request("fs/write_text_file");
    assert_eq!(asked["params"]["path"], "/far/away/file");
    assert_eq!(asked["params"]["content"], json!(service.work()));
    editor.answer(&asked, &json!({}));
    assert_eq!(editor.stop_reason(&id), "end_turn");
}
