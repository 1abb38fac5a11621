//! Every question ends: in time, with its turn, its agent, its session or its service.

use conductor_tests::people::Person;
use serde_json::json;

use super::*;

#[test]
fn nobody_answers_in_time() {
    let service = asking("driver = false, timeout = '1s'").start();
    let (ann, lea) = (Person::named(&service, "ann"), approver(&service, "lea"));
    let (mut editor, session) = open(&service, &ann);
    let turn = editor.prompt_do(&session, &json!([run("make")]));
    let asked = question(&service, &lea);
    assert!(asked["due_us"].as_i64().unwrap() - asked["asked_us"].as_i64().unwrap() == 1_000_000, "{asked}");
    editor.stop_reason(&turn);
    let answer = told(&editor.chunks(&session));
    assert_eq!(chosen(&answer), "no", "a reject option, not `cancelled`");
    let reason = answer["result"]["_meta"]["conductor"]["reason"].as_str().unwrap();
    assert_eq!(reason, "nobody has answered within 1s");
    assert_eq!(outcome(&service, &lea, id(&asked))["how"], "timed_out");
    let late = lea.run(&service, &["approvals", "allow", id(&asked)]);
    assert!(text(&late).contains("it was timed out at 20"), "{late:?}");
}

/// Who is there and does not answer is not waited for without end either.
#[test]
fn a_question_in_the_editor_ends_in_time_too() {
    let rules = "use = ['default']";
    let service = service(&json!({})).rules(rules).set("approvals.limit", "1s").start();
    let (mut editor, session) = service.session();
    editor.decides();
    let turn = editor.prompt_do(&session, &json!([run("make")]));
    let request = editor.next_request("session/request_permission");
    editor.stop_reason(&turn);
    assert_eq!(chosen(&told(&editor.chunks(&session))), "no");
    editor.wait_for("the question being taken back", |line| {
        (line.method() == "$/cancel_request" && line.json["params"]["requestId"] == request["id"])
            .then_some(())
    });
}

#[test]
fn a_cancelled_turn_takes_its_questions_along() {
    let service = asking("driver = false").start();
    let (ann, lea) = (Person::named(&service, "ann"), approver(&service, "lea"));
    let (mut editor, session) = open(&service, &ann);
    let turn = editor.prompt_do(&session, &json!([run("make")]));
    let asked = question(&service, &lea);
    editor.cancel(&session);
    assert_eq!(editor.stop_reason(&turn), "cancelled");
    assert_eq!(outcome(&service, &lea, id(&asked))["how"], "cancelled");
    let late = lea.run(&service, &["approvals", "allow", id(&asked)]);
    assert!(!late.status.success() && text(&late).contains("it was cancelled at 20"), "{late:?}");
    let answer = service.wait_received("fake", "an answer to its request", |line| {
        line.json().is_some_and(|message| message.get("method").is_none() && message["id"] == 0)
    });
    assert_eq!(answer.json().unwrap()["result"]["outcome"]["outcome"], "cancelled");
}

#[test]
fn a_dead_agent_needs_no_answer() {
    let service = asking("driver = false").start();
    let (ann, lea) = (Person::named(&service, "ann"), approver(&service, "lea"));
    let (mut editor, session) = open(&service, &ann);
    let turn = editor.prompt_do(&session, &json!([run("make")]));
    let asked = question(&service, &lea);
    for pid in service.agents_alive() {
        nix::sys::signal::kill(
            nix::unistd::Pid::from_raw(i32::try_from(pid).unwrap()),
            nix::sys::signal::Signal::SIGKILL,
        )
        .unwrap();
    }
    editor.error_of(&turn);
    assert_eq!(outcome(&service, &lea, id(&asked))["how"], "cancelled");
    assert!(listed(&service, &lea, &[]).is_empty());
}

/// The editor leaves; approvers still answer, and the turn goes on.
#[test]
fn an_editor_that_leaves_takes_no_question_along() {
    let service = asking("driver = false").start();
    let (ann, lea) = (Person::named(&service, "ann"), approver(&service, "lea"));
    let (mut editor, session) = open(&service, &ann);
    editor.prompt_do(&session, &json!([run("make")]));
    let asked = question(&service, &lea);
    drop(editor);
    service.wait_log("editor disconnected");
    assert!(lea.run(&service, &["approvals", "allow", id(&asked)]).status.success());
    let answer = service.wait_received("fake", "an answer to its request", |line| {
        line.json().is_some_and(|message| message.get("method").is_none() && message["id"] == 0)
    });
    assert_eq!(chosen(&answer.json().unwrap()), "once");
}

#[test]
fn a_service_that_is_killed_leaves_no_question_open() {
    let mut service = asking("driver = false").start();
    let (ann, lea) = (Person::named(&service, "ann"), approver(&service, "lea"));
    let (mut editor, session) = open(&service, &ann);
    editor.prompt_do(&session, &json!([run("make")]));
    let asked = question(&service, &lea);
    // It is in the state directory by then, or the journal tells of it.
    service.kill9();
    service.start_again();
    assert!(listed(&service, &lea, &[]).is_empty());
    let late = lea.run(&service, &["approvals", "allow", id(&asked)]);
    assert!(!late.status.success(), "{late:?}");
    let said = text(&late);
    assert!(said.contains("it was interrupted at 20") || said.contains("there is no approval"), "{said}");
    service.term();
    let query = "SELECT outcome, answer_reason FROM approval_log";
    let log = text(&service.run(&["ledger", "sql", "--json", query]));
    assert!(log.contains("interrupted"), "{log}");
    drop(editor);
}

#[test]
fn a_service_that_stops_answers_what_is_open_and_remembers_it() {
    let mut service = asking("driver = false").start();
    let (ann, lea) = (Person::named(&service, "ann"), approver(&service, "lea"));
    let (mut editor, session) = open(&service, &ann);
    editor.prompt_do(&session, &json!([run("make")]));
    let asked = question(&service, &lea);
    service.term();
    service.start_again();
    assert!(listed(&service, &lea, &[]).is_empty());
    let ended = listed(&service, &lea, &["--all"]);
    assert_eq!((ended.len(), &ended[0]["id"]), (1, &asked["id"]));
    assert_eq!(ended[0]["outcome"]["how"], "cancelled");
    drop(editor);
}

/// Rules that deny it meanwhile win over whoever allows it, and nothing says that it was
/// allowed.
#[test]
fn what_is_denied_meanwhile_cannot_be_allowed() {
    let service = asking("driver = false").start();
    let (ann, lea) = (Person::named(&service, "ann"), approver(&service, "lea"));
    let (mut editor, session) = open(&service, &ann);
    let turn = editor.prompt_do(&session, &json!([run("make")]));
    let asked = question(&service, &lea);
    let deny = "use = ['default']\n[[rule]]\nid = 'no-make'\neffect = 'deny'\nreason = 'not any more'\n\
                run = { program = ['make'] }";
    std::fs::write(service.dir.join("policy.toml"), deny).unwrap();
    service.reload();
    service.wait_log("the policy was reloaded");
    lea.run(&service, &["approvals", "allow", id(&asked)]);
    editor.stop_reason(&turn);
    let answer = told(&editor.chunks(&session));
    assert_eq!(chosen(&answer), "no", "{answer}");
    assert_eq!(answer["result"]["_meta"]["conductor"]["rule"], "no-make");
    let ended = outcome(&service, &lea, id(&asked));
    assert_eq!((&ended["how"], &ended["by"]), (&json!("rejected"), &json!(null)));
    assert!(ended["reason"].as_str().unwrap().starts_with("lea allowed it, but it was denied"), "{ended}");
}

/// The same for whoever drives, and in the record.
#[test]
fn what_is_denied_meanwhile_cannot_be_allowed_in_an_editor() {
    let mut service = service(&json!({})).rules("use = ['default']").start();
    let (mut editor, session) = service.session();
    editor.decides();
    let turn = editor.prompt_do(&session, &json!([run("make")]));
    let request = editor.next_request("session/request_permission");
    let deny = "use = ['default']\n[[rule]]\nid = 'no-make'\neffect = 'deny'\nreason = 'not any more'\n\
                run = { program = ['make'] }";
    std::fs::write(service.dir.join("policy.toml"), deny).unwrap();
    service.reload();
    service.wait_log("the policy was reloaded");
    editor.answer(&request, &json!({ "outcome": { "outcome": "selected", "optionId": "once" } }));
    editor.stop_reason(&turn);
    assert_eq!(chosen(&told(&editor.chunks(&session))), "no");
    service.term();
    let query = "SELECT decision, decided_by FROM decisions WHERE verdict = 'ask'";
    let log = text(&service.run(&["ledger", "sql", "--json", query]));
    assert_eq!(log.lines().count(), 1, "{log}");
    assert!(log.contains("reject") && log.contains("conductor"), "{log}");
}
