//! Who may answer, from where, and what they see.

use std::{fs, process::Stdio};

use conductor_tests::people::{Person, owner};
use serde_json::json;

use super::*;

#[test]
fn an_approver_answers_what_the_driver_is_not_asked() {
    let mut service = asking("driver = false").start();
    let (ann, lea) = (Person::named(&service, "ann"), approver(&service, "lea"));
    let (mut editor, session) = open(&service, &ann);
    let turn = editor.prompt_do(&session, &json!([run("make install")]));
    let asked = question(&service, &lea);
    assert_eq!(asked["actions"][0], format!("run `make install` in {}", service.work().display()));
    assert_eq!((&asked["user"], &asked["rule"]), (&json!("ann"), &json!("make-asks")));
    assert_eq!((&asked["session_id"], &asked["may_answer"]), (&json!(session), &json!(true)));
    // Whose session it is sees it, and cannot answer it.
    let seen = listed(&service, &ann, &[]);
    assert_eq!((&seen[0]["id"], &seen[0]["may_answer"]), (&asked["id"], &json!(false)));
    let refused = ann.run(&service, &["approvals", "allow", id(&asked)]);
    assert!(!refused.status.success());
    assert!(text(&refused).contains("you may not answer this"), "{refused:?}");
    // The end of the id is enough for people.
    let end = &id(&asked)[28..];
    let allowed = lea.run(&service, &["approvals", "allow", end, "--reason", "looks fine"]);
    assert!(allowed.status.success(), "{allowed:?}");
    assert!(text(&allowed).starts_with("allowed: run `make install`"), "{allowed:?}");
    editor.stop_reason(&turn);
    let answer = told(&editor.chunks(&session));
    assert_eq!(chosen(&answer), "once");
    assert_eq!(answer["result"]["_meta"]["conductor"], json!({ "reason": "looks fine", "by": "lea" }));
    assert_eq!(was_asked(&editor), 0);
    assert!(listed(&service, &lea, &[]).is_empty());
    let late = lea.run(&service, &["approvals", "deny", id(&asked)]);
    assert!(!late.status.success());
    assert!(text(&late).contains("it was allowed by lea at 20"), "{late:?}");
    // Who allowed what under which rule.
    service.term();
    let query = "SELECT outcome, answered_by, answered_via, rule, for_user, answer_reason FROM approval_log";
    let log = service.run(&["ledger", "sql", "--json", query]);
    let log = text(&log);
    for word in ["allowed", "lea", "approvals", "make-asks", "ann", "looks fine"] {
        assert!(log.contains(word), "{word}: {log}");
    }
    let query = "SELECT decision, decided_by, decided_user FROM decisions WHERE rule = 'make-asks'";
    let log = text(&service.run(&["ledger", "sql", "--json", query]));
    for word in ["allow", "approver", "lea"] {
        assert!(log.contains(word), "{word}: {log}");
    }
}

#[test]
fn a_denial_tells_the_agent_and_whoever_prompted_why() {
    let service = asking("driver = false").start();
    let (ann, lea) = (Person::named(&service, "ann"), approver(&service, "lea"));
    let mut editor = Editor::spawn(&mut ann.command(&service, &["connect"]));
    editor.initialize_with(&json!({ "session": { "notices": {} } }));
    let session = editor.new_session(&service.work());
    let turn = editor.prompt_do(&session, &json!([run("make install")]));
    let asked = question(&service, &lea);
    assert!(
        lea.run(&service, &["approvals", "deny", id(&asked), "--reason", "not on fridays"]).status.success()
    );
    editor.stop_reason(&turn);
    let answer = told(&editor.chunks(&session));
    assert_eq!(chosen(&answer), "no");
    assert_eq!(answer["result"]["_meta"]["conductor"]["reason"], "not on fridays");
    // An agent need not pass that on.
    let notices: Vec<_> =
        editor.lines().into_iter().filter(|line| line.text().contains("Rejected by lea")).collect();
    assert_eq!(notices.len(), 1, "{}", editor.story());
    let text = notices[0].text();
    assert!(text.contains("make install") && text.contains("not on fridays"), "{text}");
}

/// A file that an agent writes without asking for permission is asked about by us.
#[test]
fn what_asks_for_no_permission_itself_waits_for_an_approver_too() {
    let rules = "use = ['default']\n[[rule]]\nid = 'notes'\neffect = 'ask'\nreason = 'notes are read by others'\n\
                 write = { path = ['**/notes.txt'] }\nask = { driver = false }";
    let service = service(&json!({})).rules(rules).start();
    let (ann, lea) = (Person::named(&service, "ann"), approver(&service, "lea"));
    let (mut editor, session) = open(&service, &ann);
    let file = service.work().join("notes.txt");
    let write = |text: &str| {
        json!([{ "request": { "method": "fs/write_text_file", "params": {
            "sessionId": "$sid", "path": file, "content": text } } }])
    };
    let turn = editor.prompt_do(&session, &write("one\n"));
    let asked = question(&service, &lea);
    assert_eq!(asked["diffs"], json!([]), "lists are short");
    let shown = lea.run(&service, &["approvals", "show", id(&asked)]);
    assert!(text(&shown).contains("+one") && text(&shown).contains("notes.txt"), "{shown:?}");
    assert!(!file.exists(), "nothing happens before the answer");
    assert!(lea.run(&service, &["approvals", "allow", id(&asked)]).status.success());
    editor.stop_reason(&turn);
    assert_eq!(fs::read_to_string(&file).unwrap(), "one\n");
    let turn = editor.prompt_do(&session, &write("two\n"));
    let asked = question(&service, &lea);
    assert!(lea.run(&service, &["approvals", "deny", id(&asked), "--reason", "enough"]).status.success());
    editor.stop_reason(&turn);
    assert_eq!(fs::read_to_string(&file).unwrap(), "one\n");
    assert!(told(&editor.chunks(&session)).to_string().contains("declined by lea: enough"));
    assert_eq!(was_asked(&editor), 0);
}

/// V7: approving as another role, and self-approval where it is forbidden.
#[test]
fn v07_only_those_answer_who_may() {
    let service = asking("approvers = { team = ['leads'] }, self = false").start();
    let person = |args: &[&str]| Person::new(&service, args);
    // Ann is in the team herself.
    let ann = person(&["--user", "ann", "--team", "leads"]);
    let lea = person(&["--user", "lea", "--team", "leads"]);
    let eve = person(&["--user", "eve", "--role", "approver"]);
    let bob = person(&["--user", "bob"]);
    let aud = person(&["--user", "aud", "--role", "auditor"]);
    let (mut editor, session) = open(&service, &ann);
    let turn = editor.prompt_do(&session, &json!([run("make")]));
    let asked = question(&service, &lea);
    let tries = |who: &Person| text(&who.run(&service, &["approvals", "allow", id(&asked)]));
    assert!(tries(&ann).contains("nobody answer what they have asked for themselves"), "{}", tries(&ann));
    // What is not theirs to answer or to see is not there.
    for who in [&bob, &eve] {
        assert!(tries(who).contains("there is no approval"), "{}", tries(who));
        assert!(listed(&service, who, &["--all"]).is_empty());
    }
    // Whoever sees everything sees this, and changes nothing.
    assert_eq!(listed(&service, &aud, &[]).len(), 1);
    assert!(tries(&aud).contains("this is for"), "{}", tries(&aud));
    let admin = owner(&service);
    assert_eq!(listed(&service, &admin, &[]).len(), 1);
    assert!(tries(&admin).contains("the rule leaves it to team leads"), "{}", tries(&admin));
    assert_eq!(editor.answers_to(&turn), 0);
    assert!(tries(&lea).starts_with("allowed"));
    editor.stop_reason(&turn);
    assert_eq!(chosen(&told(&editor.chunks(&session))), "once");
    assert_eq!(was_asked(&editor), 0);
}

/// Where a rule names others and does not exclude the driver, both are asked.
#[test]
fn the_driver_is_asked_too_unless_excluded() {
    let service = asking("approvers = { user = ['lea'] }").start();
    let (ann, lea) = (Person::named(&service, "ann"), Person::named(&service, "lea"));
    let (mut editor, session) = open(&service, &ann);
    let turn = editor.prompt_do(&session, &json!([run("make one")]));
    let request = editor.next_request("session/request_permission");
    let asked = question(&service, &lea);
    editor.answer(&request, &json!({ "outcome": { "outcome": "selected", "optionId": "once" } }));
    editor.stop_reason(&turn);
    assert_eq!(outcome(&service, &lea, id(&asked))["by"], "ann");
    let turn = editor.prompt_do(&session, &json!([run("make two")]));
    let request = editor.next_request("session/request_permission");
    let asked = question(&service, &lea);
    assert!(lea.run(&service, &["approvals", "allow", id(&asked)]).status.success());
    editor.stop_reason(&turn);
    // The editor's dialogue is closed, and its late answer counts for nothing.
    editor.wait_for("the question being taken back", |line| {
        (line.method() == "$/cancel_request" && line.json["params"]["requestId"] == request["id"])
            .then_some(())
    });
    editor.answer(&request, &json!({ "outcome": { "outcome": "selected", "optionId": "no" } }));
    editor.turn_do(&session, &json!([{ "update": {} }]));
    assert_eq!(outcome(&service, &lea, id(&asked))["by"], "lea");
}

/// An editor that makes up the id of a question which is for others.
#[test]
fn a_driver_who_is_not_asked_cannot_answer_by_guessing() {
    let service = asking("driver = false").start();
    let (ann, lea) = (Person::named(&service, "ann"), approver(&service, "lea"));
    let (mut editor, session) = open(&service, &ann);
    let turn = editor.prompt_do(&session, &json!([run("make")]));
    let asked = question(&service, &lea);
    for slot in 0..4_u64 {
        for number in 0..8_u64 {
            let guess = json!({ "id": slot << 32 | number });
            editor.answer(&guess, &json!({ "outcome": { "outcome": "selected", "optionId": "once" } }));
        }
    }
    // What comes behind them was heard, so they were.
    let params = json!({ "sessionId": session, "modeId": "nothing" });
    editor.call("session/set_mode", &params);
    assert_eq!(listed(&service, &lea, &[]).len(), 1);
    assert!(lea.run(&service, &["approvals", "deny", id(&asked)]).status.success());
    editor.stop_reason(&turn);
    assert_eq!(chosen(&told(&editor.chunks(&session))), "no");
}

#[test]
fn two_terminals_at_once_have_one_winner() {
    let service = asking("driver = false").start();
    let (ann, lea, max) =
        (Person::named(&service, "ann"), approver(&service, "lea"), approver(&service, "max"));
    let (mut editor, session) = open(&service, &ann);
    for round in 0..5 {
        let turn = editor.prompt_do(&session, &json!([run(&format!("make {round}"))]));
        let asked = question(&service, &lea);
        let start = |who: &Person, answer: &str| {
            let mut command = who.command(&service, &["approvals", answer, id(&asked)]);
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        };
        let (allowing, denying) = (start(&lea, "allow"), start(&max, "deny"));
        let (allowed, denied) = (allowing.wait_with_output().unwrap(), denying.wait_with_output().unwrap());
        let won = [allowed.status.success(), denied.status.success()];
        assert_eq!(won.iter().filter(|won| **won).count(), 1, "{allowed:?} {denied:?}");
        let (by, how, option, loser) = match won[0] {
            true => ("lea", "allowed", "once", &denied),
            false => ("max", "rejected", "no", &allowed),
        };
        assert!(text(loser).contains(&format!("it was {how} by {by}")), "{loser:?}");
        editor.stop_reason(&turn);
        assert_eq!(chosen(&told(&editor.chunks(&session))), option);
        assert_eq!(outcome(&service, &lea, id(&asked))["by"], by);
    }
}
