//! What a hostile agent, a careless rule or a full disk must not make of an answer.

use std::fs;

use conductor_tests::people::Person;
use serde_json::json;

use super::*;

/// An agent that gives two answers one id cannot turn a denial into an allowance.
#[test]
fn one_id_for_two_answers_is_no_way_to_be_allowed() {
    let service = asking("driver = false").start();
    let (ann, lea) = (Person::named(&service, "ann"), approver(&service, "lea"));
    let (mut editor, session) = open(&service, &ann);
    let mut ask = run("make");
    ask["request"]["params"]["options"] = json!([
        { "optionId": "x", "name": "Yes", "kind": "allow_once" },
        { "optionId": "x", "name": "No", "kind": "reject_once" },
    ]);
    let turn = editor.prompt_do(&session, &json!([ask]));
    let asked = question(&service, &lea);
    let allowed = lea.run(&service, &["approvals", "allow", id(&asked)]);
    assert!(text(&allowed).contains("no way to allow this one time only"), "{allowed:?}");
    assert!(lea.run(&service, &["approvals", "deny", id(&asked)]).status.success());
    editor.stop_reason(&turn);
    assert_eq!(told(&editor.chunks(&session))["result"]["outcome"]["outcome"], "cancelled");
    assert_eq!(outcome(&service, &lea, id(&asked))["how"], "rejected");
}

/// However much it is, an approver sees all of it.
#[test]
fn all_that_would_be_done_is_shown() {
    let service = asking("driver = false").start();
    let (ann, lea) = (Person::named(&service, "ann"), approver(&service, "lea"));
    let (mut editor, session) = open(&service, &ann);
    let mut line: Vec<String> = (0..40).map(|n| format!("make {n}")).collect();
    line.push(format!("make {} the-end", "x".repeat(2000)));
    let turn = editor.prompt_do(&session, &json!([run(&line.join(" && "))]));
    let asked = question(&service, &lea);
    let brief = asked["actions"].as_array().unwrap();
    assert_eq!(brief.last().unwrap(), "… and 33 more", "lists say how much they leave out");
    let shown = lea.run(&service, &["approvals", "show", id(&asked)]);
    assert!(text(&shown).contains("the-end") && text(&shown).contains("run `make 39`"), "{shown:?}");
    assert!(lea.run(&service, &["approvals", "deny", id(&asked)]).status.success());
    editor.stop_reason(&turn);
}

/// Who may answer one part of a request may not thereby answer another.
#[test]
fn a_part_without_a_word_on_who_answers_is_for_those_it_usually_is_for() {
    let rules = format!(
        "{}[[rule]]\nid = 'other'\neffect = 'ask'\nreason = 'usual'\nrun = {{ program = ['truncate'] }}\n",
        rule("approvers = { user = ['lea'] }, driver = false")
    );
    let service = service(&json!({})).rules(&rules).start();
    let (ann, lea) = (Person::named(&service, "ann"), Person::named(&service, "lea"));
    let max = Person::new(&service, &["--user", "max", "--role", "approver"]);
    let (mut editor, session) = open(&service, &ann);
    let turn = editor.prompt_do(&session, &json!([run("make && truncate -s 0 notes")]));
    let asked = question(&service, &conductor_tests::people::owner(&service));
    assert!(listed(&service, &lea, &[]).is_empty(), "`truncate` is not hers to answer");
    assert!(text(&max.run(&service, &["approvals", "allow", id(&asked)])).contains("there is no approval"));
    editor.cancel(&session);
    editor.stop_reason(&turn);
}

/// Whoever asks may not choose who answers for them by sharing their session.
#[test]
fn v07_a_driver_who_was_invited_does_not_answer_for_the_owner() {
    let service = asking("approvers = { team = ['leads'] }, self = false").start();
    let (ann, bob) = (Person::named(&service, "ann"), Person::named(&service, "bob"));
    let (mut editor, session) = open(&service, &ann);
    let shared = ann.run(&service, &["sessions", "share", &session, "--with", "bob", "--as", "driver"]);
    assert!(shared.status.success(), "{shared:?}");
    editor.prompt_do(&session, &json!([run("make")]));
    let asked = question(&service, &bob);
    assert_eq!(asked["may_answer"], false);
    let tried = bob.run(&service, &["approvals", "allow", id(&asked)]);
    assert!(text(&tried).contains("the rule leaves it to team leads"), "{tried:?}");
}

/// What was announced may not become something else while people think about it.
#[test]
fn what_has_changed_since_it_was_asked_is_not_allowed() {
    let service = asking("driver = false").start();
    let (ann, lea) = (Person::named(&service, "ann"), approver(&service, "lea"));
    let (mut editor, session) = open(&service, &ann);
    let gate = service.dir.join("asked");
    let update = |kind: &str, command: &str| {
        json!({ "notify": { "method": "session/update", "params": { "sessionId": "$sid", "update": {
            "sessionUpdate": kind, "toolCallId": "call-1", "title": "t", "kind": "execute",
            "rawInput": { "command": command }, "_meta": { "claudeCode": { "toolName": "Bash" } },
        } } } })
    };
    let mut ask = run("");
    ask["request"]["params"]["toolCall"].as_object_mut().unwrap().remove("rawInput");
    ask["request"]["forget"] = true.into();
    let steps = json!([
        update("tool_call", "make all"), ask, { "wait_file": gate },
        update("tool_call_update", "make install"), "await_answer",
    ]);
    let turn = editor.prompt_do(&session, &steps);
    let asked = question(&service, &lea);
    assert!(asked["actions"][0].as_str().unwrap().contains("make all"), "{asked}");
    fs::write(&gate, "").unwrap();
    editor.wait_for("the changed call", |line| line.json.to_string().contains("make install").then_some(()));
    lea.run(&service, &["approvals", "allow", id(&asked)]);
    editor.stop_reason(&turn);
    let answer = told(&editor.chunks(&session));
    assert_eq!(chosen(&answer), "no", "{answer}");
    let reason = answer["result"]["_meta"]["conductor"]["reason"].as_str().unwrap();
    assert!(reason.contains("not what was asked about any more"), "{answer}");
}

/// A question that its turn did not wait for allows nothing in a later one.
#[test]
fn a_question_ends_with_its_turn() {
    let service = asking("driver = false").start();
    let (ann, lea) = (Person::named(&service, "ann"), approver(&service, "lea"));
    let (mut editor, session) = open(&service, &ann);
    let mut ask = run("make");
    ask["request"]["forget"] = true.into();
    let gate = service.dir.join("asked");
    let turn = editor.prompt_do(&session, &json!([ask, { "wait_file": gate }]));
    let asked = question(&service, &lea);
    fs::write(&gate, "").unwrap();
    editor.stop_reason(&turn);
    let late = lea.run(&service, &["approvals", "allow", id(&asked)]);
    assert!(text(&late).contains("it was cancelled at"), "{late:?}");
}

/// Rules that leave it to others by now hold for whoever sees the question, too.
#[test]
fn a_driver_who_was_asked_may_not_answer_once_the_rules_say_so() {
    let service = asking("approvers = { user = ['lea'] }").start();
    let (ann, lea) = (Person::named(&service, "ann"), Person::named(&service, "lea"));
    let (mut editor, session) = open(&service, &ann);
    let turn = editor.prompt_do(&session, &json!([run("make")]));
    let request = editor.next_request("session/request_permission");
    fs::write(service.dir.join("policy.toml"), rule("approvers = { user = ['lea'] }, driver = false"))
        .unwrap();
    service.reload();
    service.wait_log("the policy was reloaded");
    editor.answer(&request, &json!({ "outcome": { "outcome": "selected", "optionId": "once" } }));
    editor.call("session/set_mode", &json!({ "sessionId": session, "modeId": "x" }));
    assert_eq!(editor.answers_to(&turn), 0);
    let asked = question(&service, &lea);
    assert!(lea.run(&service, &["approvals", "deny", id(&asked)]).status.success());
    editor.stop_reason(&turn);
    assert_eq!(chosen(&told(&editor.chunks(&session))), "no");
}

/// MCP servers that nobody knows are asked about before the session is there.
#[test]
fn the_opening_of_a_session_can_be_approved() {
    let rules = "use = ['default']\n[[rule]]\nid = 'servers'\neffect = 'ask'\nreason = 'others look at servers'\n\
                 server = { known = false }\nask = { driver = false }";
    let service = service(&json!({})).rules(rules).start();
    let (ann, lea) = (Person::named(&service, "ann"), approver(&service, "lea"));
    let mut editor = ann.editor(&service);
    editor.decides();
    let server = json!({ "name": "mine", "command": "/bin/true", "args": [], "env": [] });
    let params = json!({ "cwd": service.work(), "mcpServers": [server] });
    let opening = editor.request("session/new", &params);
    let asked = question(&service, &lea);
    assert!(asked["actions"][0].as_str().unwrap().contains("mine"), "{asked}");
    let allowed = lea.run(&service, &["approvals", "allow", id(&asked)]);
    assert!(allowed.status.success(), "{allowed:?}");
    assert!(editor.response(&opening)["result"]["sessionId"].is_string());
    let opening = editor.request("session/new", &params);
    let asked = question(&service, &lea);
    assert!(lea.run(&service, &["approvals", "deny", id(&asked)]).status.success());
    assert_eq!(editor.error_of(&opening)["code"], -31005);
}

/// What the ledger has of a question that a driver was shown is whole, however it ended.
#[test]
fn the_record_of_a_question_about_a_file_is_whole() {
    let mut service = service(&json!({})).rules("use = ['default']").set("approvals.limit", "1s").start();
    let (mut editor, session) = service.session();
    editor.decides();
    let file = service.work().join("src.txt");
    let write = json!([{ "request": { "method": "fs/write_text_file", "params": {
        "sessionId": "$sid", "path": file, "content": "x" } } }]);
    editor.turn_do(&session, &write);
    service.term();
    let query = "SELECT outcome, title, sub_actions IS NOT NULL AS has_actions, policy_revision IS NOT NULL AS has_revision \
                 FROM approval_log";
    let log = text(&service.run(&["ledger", "sql", "--json", query]));
    let row: Value = serde_json::from_str(log.lines().next().unwrap()).unwrap_or_else(|_| panic!("{log}"));
    assert_eq!(
        (&row["outcome"], &row["has_actions"], &row["has_revision"]),
        (&json!("timed_out"), &json!(1), &json!(1))
    );
    assert!(row["title"].as_str().unwrap().starts_with("Write "), "{row}");
    let query = "SELECT decision, decided_by FROM decisions WHERE verdict = 'ask'";
    let log = text(&service.run(&["ledger", "sql", "--json", query]));
    assert_eq!(log.lines().count(), 1, "{log}");
    assert!(log.contains("reject") && log.contains("conductor"), "{log}");
}
