//! Agents that stand in for others: before anything was said, and never after.

use conductor_tests::harness::Builder;
use serde_json::{Value, json};

use super::{choose, id_of, modern, notes, older, open, prompts, say, two, two_with, wait_update};

/// Everything goes to `b`, else to `a`.
fn routed(builder: Builder) -> Builder {
    builder.set("route", json!([{ "name": "all", "to": "b", "fallback": ["a"] }]))
}

/// `b` cannot even be opened: `a` has the session, and the record says why.
#[track_caller]
fn opens_elsewhere(builder: Builder, why: &str) {
    let service = routed(builder).start();
    let (mut editor, result) = open(&service, &[]);
    let session = id_of(&result);
    let notice = wait_update(&editor, "notice", |notice| notice["severity"] == "warning");
    assert!(notice["description"].as_str().unwrap().contains("agent `b`"), "{notice}");
    assert_eq!(say(&mut editor, &session, "hello"), "end_turn");
    assert_eq!(prompts(&service, "a").len(), 1);
    let routed = notes(&service, &session, "_conductor/routed");
    assert_eq!((&routed[0]["agent"], &routed[0]["route"]), (&json!("b"), &json!("all")));
    assert_eq!((&routed[1]["agent"], &routed[1]["attempt"]), (&json!("a"), &json!(1)));
    let failed = routed[1]["failed"].as_str().unwrap().to_lowercase();
    assert!(failed.contains("agent `b`") && failed.contains(why), "{failed}");
}

#[test]
fn an_agent_that_cannot_be_started_is_stood_in_for() {
    opens_elsewhere(
        two_with(&modern(), &json!({ "start": [{ "stderr": "no key\n" }, { "exit": 3 }] })),
        "no key",
    );
}

#[test]
fn f04_an_agent_that_is_not_installed_is_stood_in_for() {
    opens_elsewhere(two().set("agents.b.command", "no-such-agent-anywhere"), "not on path");
}

#[test]
fn an_agent_that_does_not_start_in_time_is_stood_in_for() {
    let silent = json!({ "instead": { "initialize": [{ "hang": null }] } });
    opens_elsewhere(two_with(&modern(), &silent).set("agents.b.start_timeout", "300ms"), "");
}

#[test]
fn an_agent_that_wants_a_login_is_stood_in_for() {
    let closed = json!({ "instead": { "session/new": [
        { "answer": { "error": { "code": -32000, "message": "Authentication required" } } },
    ] } });
    opens_elsewhere(two_with(&modern(), &closed), "authentication required");
}

#[test]
fn an_agent_in_quarantine_is_stood_in_for() {
    let builder = two_with(&modern(), &json!({ "start": [{ "exit": 3 }] }))
        .set("agents.b.restart", json!({ "intensity": 1, "within": "60s", "backoff": "10ms" }));
    let service = routed(builder).start();
    for _ in 0..2 {
        let (mut editor, result) = open(&service, &[]);
        assert_eq!(say(&mut editor, &id_of(&result), "hello"), "end_turn");
    }
    let (_editor, result) = open(&service, &[]);
    let routed = notes(&service, &id_of(&result), "_conductor/routed");
    assert!(routed[1]["failed"].as_str().unwrap().contains("quarantine"), "{routed:?}");
}

fn error(code: i64, message: &str) -> Value {
    json!({ "answer": { "error": { "code": code, "message": message } } })
}

#[test]
fn a_prompt_without_quota_goes_on_to_the_next_agent() {
    for (steps, why) in [
        (json!([error(-32603, "HTTP 429: rate limit exceeded")]), "429"),
        (json!([error(-32000, "log in first")]), "log in"),
        (json!([{ "update": { "n": 1, "text": "API Error: 429 {\"type\":\"rate_limit_error\"}" } }]), "429"),
    ] {
        let poor = json!({ "instead": { "session/prompt": steps } });
        let service = two_with(&modern(), &poor)
            .agent("c", &json!({}))
            .set("route", json!([{ "to": "b", "fallback": ["nobody-knows", "c"] }]))
            .set("agents.nobody-knows", json!({ "command": "no-such-agent-anywhere" }))
            .start();
        let (mut editor, result) = open(&service, &["--agent", "a"]);
        let session = id_of(&result);
        say(&mut editor, &session, "first for a");
        choose(&mut editor, &session, "b");
        assert_eq!(say(&mut editor, &session, "second"), "end_turn", "{why}");
        let notice = wait_update(&editor, "notice", |notice| notice["severity"] == "warning");
        assert!(notice["description"].as_str().unwrap().contains(why), "{notice}");
        let told = prompts(&service, "c");
        assert_eq!((prompts(&service, "b").len(), told.len()), (1, 1));
        let past = told[0]["params"]["prompt"][0].to_string();
        assert!(past.contains("first for a") && !past.contains("second"), "{past}");
        assert_eq!(told[0]["params"]["prompt"][1]["text"], "second");
        // One answer, and no second prompt in the history.
        let mut other = service.editor();
        other.call("session/load", &json!({ "sessionId": session, "cwd": service.work(), "mcpServers": [] }));
        let words = other.lines().iter().filter(|line| line.text().contains("user_message_chunk")).count();
        assert_eq!(words, 2);
        let routed = notes(&service, &session, "_conductor/routed");
        let tried: Vec<_> = routed.iter().map(|note| note["agent"].as_str().unwrap()).collect();
        assert_eq!(tried, ["a", "b", "nobody-knows", "c"]);
        assert!(routed[2]["failed"].as_str().unwrap().contains(why), "{routed:?}");
        // It stays where it is.
        say(&mut editor, &session, "third");
        assert_eq!(prompts(&service, "c").len(), 2);
    }
}

#[test]
fn when_all_have_failed_the_next_prompt_begins_with_the_first_again() {
    let poor = json!({ "instead": { "session/prompt": [error(-32603, "429 too many requests")] } });
    let service = routed(two_with(&modern(), &poor)).start();
    let (mut editor, result) = open(&service, &[]);
    let session = id_of(&result);
    let id = editor.prompt(&session, &json!({ "do": [error(-32603, "quota exceeded")] }).to_string());
    assert_eq!(editor.error_of(&id)["message"], "quota exceeded");
    assert_eq!((prompts(&service, "b").len(), prompts(&service, "a").len()), (1, 1));
    assert_eq!(say(&mut editor, &session, "hello"), "end_turn");
    assert_eq!((prompts(&service, "b").len(), prompts(&service, "a").len()), (2, 2));
}

#[test]
fn nothing_is_sent_again_once_something_was_said_or_done() {
    let call = json!({ "notify": { "method": "session/update", "params": { "sessionId": "$sid", "update": {
        "sessionUpdate": "tool_call", "toolCallId": "1", "title": "T",
    } } } });
    for first in [json!({ "update": { "n": 1, "text": "I will" } }), call] {
        let service = routed(two()).start();
        let (mut editor, result) = open(&service, &[]);
        let steps = json!({ "do": [first, error(-32603, "429 too many requests")] }).to_string();
        let id = editor.prompt(&id_of(&result), &steps);
        let failed = editor.error_of(&id);
        assert_eq!(failed["message"], "429 too many requests");
        assert_eq!(prompts(&service, "a").len(), 0);
    }
}

#[test]
fn other_errors_and_agents_that_were_named_are_final() {
    let service = routed(two()).start();
    let (mut editor, result) = open(&service, &[]);
    let session = id_of(&result);
    let id =
        editor.prompt(&session, &json!({ "do": [error(-32603, "the prompt makes no sense")] }).to_string());
    assert_eq!(editor.error_of(&id)["message"], "the prompt makes no sense");
    // The first route that leads to the agent has its fallbacks; this has none.
    choose(&mut editor, &session, "a/a1");
    let id = editor.prompt(&session, &json!({ "do": [error(-32603, "429")] }).to_string());
    assert_eq!(editor.error_of(&id)["message"], "429");
    assert_eq!(prompts(&service, "b").len(), 1);
}

#[test]
fn an_agent_that_the_policy_does_not_allow_stands_in_for_nobody() {
    let rules = "use = ['trusted']\n[[rule]]\nid = 'no-a'\neffect = 'ask'\nreason = 'not yet'\nuse_agent = ['a']\nmatch = [{ agent = 'a' }]\n";
    let service = routed(two_with(&modern(), &older())).rules(rules).start();
    let (mut editor, result) = open(&service, &[]);
    let id = editor.prompt(&id_of(&result), &json!({ "do": [error(-32603, "quota exceeded")] }).to_string());
    assert_eq!(editor.error_of(&id)["message"], "quota exceeded");
    assert_eq!(prompts(&service, "a").len(), 0);
}
