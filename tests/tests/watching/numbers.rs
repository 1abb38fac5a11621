//! The numbers on `/metrics`.

use conductor_tests::{
    admin::{get, metric, metrics, wait_metric, watched},
    harness::{permission, service},
    net::Net,
    people::Person,
    tunnel::Tunnel,
};
use serde_json::json;
use tonic::{Code, metadata::MetadataMap};

#[test]
fn a_turn_shows_in_the_numbers_of_everything_it_passed() {
    let service = watched(service(&json!({}))).start();
    let (mut editor, session) = service.session();
    let id = editor.prompt_do(&session, &json!([{ "update": { "n": 3 } }, permission()]));
    let ask = editor.next_request("session/request_permission");
    let during = metrics(&service);
    let at = |series: &str| during.get(series).copied().unwrap_or_else(|| panic!("no {series}"));
    assert_eq!(at("conductor_sessions"), 1.0);
    assert_eq!(at("conductor_turns_running"), 1.0);
    assert_eq!(at("conductor_questions_open"), 1.0);
    assert_eq!(at("conductor_connections"), 1.0);
    assert_eq!(at(r#"conductor_processes{agent="fake",state="leased"}"#), 1.0);
    assert_eq!(at(r#"conductor_decisions_total{outcome="ask"}"#), 1.0);
    assert_eq!(at(r#"conductor_turns_total{end="end_turn"}"#), 0.0);

    editor.answer(&ask, &json!({ "outcome": { "outcome": "selected", "optionId": "yes" } }));
    editor.stop_reason(&id);
    let after = metrics(&service);
    let at = |series: &str| after.get(series).copied().unwrap_or_else(|| panic!("no {series}"));
    assert_eq!(at("conductor_turns_running"), 0.0);
    assert_eq!(at("conductor_questions_open"), 0.0);
    assert_eq!(at(r#"conductor_turns_total{end="end_turn"}"#), 1.0);
    assert_eq!(at("conductor_turn_seconds_count"), 1.0);
    assert_eq!(at(r#"conductor_answers_total{outcome="allowed"}"#), 1.0);
    assert_eq!(at("conductor_decision_seconds_count"), 1.0);
    // initialize, session/new, the prompt and the answer; three updates and more.
    assert!(at(r#"conductor_frames_total{from="editor",to="agent"}"#) >= 4.0);
    assert!(at(r#"conductor_frames_total{from="agent",to="editor"}"#) >= 6.0);
    assert!(at(r#"conductor_frames_total{from="conductor",to="record"}"#) >= 2.0);
    assert!(at("conductor_journal_sync_seconds_count") >= 2.0);
    assert!(at("conductor_effect_seconds_count") >= 2.0, "the session, the prompt, the permission");
    assert!(at("conductor_journal_appended_bytes_total") > 0.0);
    assert_eq!(at("conductor_journal_refusing"), 0.0);
    wait_metric(&service, "conductor_ledger_frames_total", |frames| frames > 0.0);
    wait_metric(&service, "conductor_ledger_up", |up| up == 1.0);

    editor.call("session/close", &json!({ "sessionId": session }));
    drop(editor);
    wait_metric(&service, "conductor_sessions", |sessions| sessions == 0.0);
    wait_metric(&service, "conductor_connections", |connections| connections == 0.0);
}

#[test]
fn the_policys_outcomes_are_counted() {
    let rules = "[[rule]]\nid = 'no'\neffect = 'deny'\nreason = 'no'\nrun = { program = ['ls'] }\n";
    let service = watched(service(&json!({})).rules(rules)).start();
    let (mut editor, session) = service.session();
    editor.turn_do(
        &session,
        &json!([{ "request": { "method": "terminal/create", "params": {
            "sessionId": "$sid", "command": "ls", "args": ["-l"],
        } } }]),
    );
    assert_eq!(metric(&service, r#"conductor_decisions_total{outcome="deny"}"#), 1.0);
    let quick = metric(&service, r#"conductor_decision_seconds_bucket{le="+Inf"}"#);
    assert_eq!(quick, metric(&service, "conductor_decision_seconds_count"));
}

#[test]
fn crashes_and_quarantines_are_counted_by_agent() {
    let service = watched(service(&json!({})).agent("bad", &json!({ "start": [{ "exit": 3 }] })))
        .set("agents.bad.restart", json!({ "intensity": 2, "within": "30s", "backoff": "10ms" }))
        .start();
    let mut editor = service.connect(&["--agent", "bad"]);
    editor.initialize();
    for _ in 0..3 {
        editor.call_error("session/new", &json!({ "cwd": service.work(), "mcpServers": [] }));
    }
    wait_metric(&service, r#"conductor_quarantines_total{agent="bad"}"#, |count| count == 1.0);
    assert_eq!(metric(&service, r#"conductor_agent_quarantined{agent="bad"}"#), 1.0);
    assert_eq!(metric(&service, r#"conductor_agent_quarantined{agent="fake"}"#), 0.0);
}

#[test]
fn refused_tokens_are_counted_by_what_was_wrong() {
    let service = watched(service(&json!({}))).start();
    let revoked = Person::named(&service, "eve");
    assert!(service.run(&["token", "revoke", &revoked.id]).status.success());
    let mut wrong = MetadataMap::new();
    wrong.insert("authorization", "Bearer nobody".parse().unwrap());
    for metadata in [MetadataMap::new(), wrong, revoked.metadata()] {
        Tunnel::open_with(&service, metadata, None).expect_end(Code::Unauthenticated);
    }
    for reason in ["missing", "unknown", "revoked"] {
        assert_eq!(metric(&service, &format!(r#"conductor_auth_failures_total{{reason="{reason}"}}"#)), 1.0);
    }
}

#[test]
fn streams_that_break_and_come_back_are_counted() {
    let service = watched(service(&json!({}))).start();
    let net = Net::before(&service);
    let (mut editor, session) = net.session(&service);
    editor.turn(&session, "one");
    net.proxy.cut();
    editor.turn(&session, "two");
    assert!(metric(&service, "conductor_streams_lost_total") >= 1.0);
    assert!(metric(&service, "conductor_streams_resumed_total") >= 1.0);
    assert_eq!(metric(&service, "conductor_editors_away"), 0.0);
}

#[test]
fn no_number_tells_who_or_what_it_was_about() {
    let service = watched(service(&json!({}))).start();
    let secret = Person::named(&service, "canary-user");
    let mut editor = secret.editor(&service);
    let session = editor.new_session(&service.work());
    editor.turn(&session, "canary-prompt");
    let (_, text) = get(&service, "/metrics");
    let work = service.work();
    for word in ["canary", secret.token.as_str(), session.as_str(), work.to_str().unwrap()] {
        assert!(!text.contains(word), "{word} is in the metrics");
    }
}
