//! What the record has in a secret's place, and what it leaves as it is.

use conductor_tests::harness::service;
use serde_json::{Value, json};

use crate::canaries::{Canaries, journal, tags};

fn opening(cwd: &std::path::Path, values: &[&str]) -> Value {
    let env: Vec<Value> = values.iter().map(|value| json!({ "name": "KEY", "value": value })).collect();
    json!({ "cwd": cwd, "mcpServers": [{ "name": "x", "command": "true", "args": [], "env": env }] })
}

#[test]
fn equal_secrets_have_equal_tags_and_others_have_not() {
    let mut service = service(&json!({})).start();
    let mut editor = service.editor();
    editor.call("session/new", &opening(&service.work(), &["one-secret-1", "other-secret-2"]));
    service.kill9();
    service.start_again();
    let mut editor = service.editor();
    let opened = editor.call("session/new", &opening(&service.work(), &["one-secret-1"]));
    // As text, and as a part of something else.
    editor.turn(opened["sessionId"].as_str().unwrap(), "it is one-secret-1.");
    let tags = tags(&service, "<secret:mcp-env:");
    let (one, other) = (&tags[0], &tags[1]);
    assert_ne!(one, other);
    assert_eq!(tags.iter().filter(|tag| *tag == other).count(), 1);
    assert!(tags.iter().filter(|tag| *tag == one).count() >= 3, "{tags:?}");
    assert!(tags.iter().all(|tag| tag == one || tag == other), "{tags:?}");
}

#[test]
fn all_else_is_recorded_as_it_came() {
    let service = service(&json!({})).set("journal.secret_patterns", json!(["ACME-[0-9]{6}"])).start();
    let (mut editor, session) = service.session();
    let text = r#"{"x":1e400,"s":"\ud800 task-list sk-estimator-doc-link \/ \u003cb\u003e", "n" : [ 1 ,2]}"#;
    let raw = format!(
        r#"{{"sessionId":"{session}","prompt":[{{"type":"text","text":"ACME-123456 and ACME-12"}}],"_meta":{text}}}"#
    );
    let id = editor.request_raw("session/prompt", &raw);
    editor.stop_reason(&id);
    let heard = service.wait_received("fake", "the prompt", |entry| {
        entry.text.as_deref().is_some_and(|line| line.contains("ACME-123456 and ACME-12"))
    });
    assert!(heard.text.unwrap().contains(text), "the agent got something else");
    let journal = journal(&service);
    let has = |text: &str| memchr::memmem::find(&journal, text.as_bytes()).is_some();
    assert!(has(text), "the record has something else");
    assert!(has("<secret:pattern:") && !has("ACME-123456") && has("ACME-12"));
}

#[test]
fn what_is_typed_into_a_form_is_not_recorded() {
    let mut canaries = Canaries::default();
    let word = canaries.next();
    let mut service = service(&json!({})).start();
    let (mut editor, session) = service.session();
    let typed = word.clone();
    editor.answer_with(move |_| {
        let content = json!({ "password": typed, "pin": 4711, "host": "db.example.com" });
        Some(json!({ "action": "accept", "content": content }))
    });
    let params = json!({ "sessionId": "$sid", "message": "Log in", "mode": "form", "requestedSchema": {
        "type": "object", "properties": { "password": { "type": "string" } } } });
    // The agent says in a chunk what it was answered.
    editor.turn_do(&session, &json!([{ "request": { "method": "elicitation/create", "params": params } }]));
    assert!(editor.chunks(&session).iter().any(|chunk| chunk.contains(&word)), "{}", editor.story());
    drop(editor);
    assert!(service.term().success());
    canaries.are_not_beneath(&service.state(), &[]);
    let journal = journal(&service);
    let has = |text: &str| memchr::memmem::find(&journal, text.as_bytes()).is_some();
    assert!(has(r#""pin":"<secret:auth:"#) && has("db.example.com") && has(r#""action":"accept""#));
}

#[test]
fn a_pattern_that_cannot_be_used_is_refused_at_start() {
    let service = service(&json!({})).start();
    for (pattern, why) in [("[", "is no expression"), ("x*", "matches where there is nothing")] {
        let file = service.dir.join("bad.toml");
        std::fs::write(&file, format!("[journal]\nsecret_patterns = ['{pattern}']\n")).unwrap();
        let refused = service.run(&["serve", "--config", file.to_str().unwrap()]);
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(
            !refused.status.success() && said.contains(why) && said.contains("secret_patterns"),
            "{said}"
        );
    }
}

#[test]
fn what_is_granted_with_a_secret_in_it_holds_for_the_same_secret_only() {
    let rules = "use = ['default']\n";
    let service = service(&json!({})).rules(rules).start();
    let mut editor = service.editor();
    editor.decides();
    let id = editor.request("session/new", &opening(&service.work(), &["one-secret-1", "other-secret-2"]));
    let asked = editor.next_request("session/request_permission");
    editor.answer(&asked, &json!({ "outcome": { "outcome": "selected", "optionId": "allow" } }));
    let session = editor.response(&id)["result"]["sessionId"].as_str().unwrap().to_owned();
    let ask = |value: &str| {
        json!([{ "request": { "method": "session/request_permission", "params": { "sessionId": "$sid",
            "toolCall": { "toolCallId": format!("t-{value}"), "title": "x", "kind": "execute",
                "rawInput": { "command": format!("deploy --key {value}") } },
            "options": [{ "optionId": "yes", "name": "Yes", "kind": "allow_once" },
                { "optionId": "always", "name": "Always", "kind": "allow_always" },
                { "optionId": "no", "name": "No", "kind": "reject_once" }] } } }])
    };
    let turn = editor.prompt_do(&session, &ask("one-secret-1"));
    let asked = editor.next_request("session/request_permission");
    // Whoever is asked in the session sees what would be done.
    assert!(asked.to_string().contains("deploy --key one-secret-1"), "{asked}");
    let listed = service.run(&["approvals", "ls", "--json"]);
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    assert!(listed.contains("deploy --key <secret:mcp-env:") && !listed.contains("one-secret-1"), "{listed}");
    editor.answer(&asked, &json!({ "outcome": { "outcome": "selected", "optionId": "always" } }));
    editor.stop_reason(&turn);
    // The same once more is granted; with another secret it is asked about.
    let turn = editor.prompt_do(&session, &ask("one-secret-1"));
    editor.stop_reason(&turn);
    let turn = editor.prompt_do(&session, &ask("other-secret-2"));
    let asked = editor.next_request("session/request_permission");
    assert!(asked.to_string().contains("other-secret-2"), "{asked}");
    editor.answer(&asked, &json!({ "outcome": { "outcome": "selected", "optionId": "no" } }));
    editor.stop_reason(&turn);
}
