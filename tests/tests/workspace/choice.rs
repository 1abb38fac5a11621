//! Who serves: this host or the editor.

use std::fs;

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
