//! People are not worn down: what they rejected is not asked again, and not too much at once.

use conductor_tests::people::Person;
use serde_json::json;

use super::*;

fn reason(answer: &Value) -> &str {
    answer["result"]["_meta"]["conductor"]["reason"].as_str().unwrap_or_default()
}

#[test]
fn what_was_rejected_is_rejected_again_until_the_next_prompt() {
    let service = asking("driver = false").start();
    let (ann, lea) = (Person::named(&service, "ann"), approver(&service, "lea"));
    let (mut editor, session) = open(&service, &ann);
    let turn = editor.prompt_do(&session, &json!([run("make all"), run("make all")]));
    let asked = question(&service, &lea);
    assert!(lea.run(&service, &["approvals", "deny", id(&asked)]).status.success());
    editor.stop_reason(&turn);
    let answer = told(&editor.chunks(&session));
    assert_eq!(chosen(&answer), "no");
    assert!(reason(&answer).starts_with("lea rejected the same"), "{answer}");
    assert_eq!(listed(&service, &lea, &["--all"]).len(), 1, "it was asked once");
    // Whoever prompts may have changed their mind.
    let turn = editor.prompt_do(&session, &json!([run("make all")]));
    let asked = question(&service, &lea);
    assert!(lea.run(&service, &["approvals", "allow", id(&asked)]).status.success());
    editor.stop_reason(&turn);
    assert_eq!(chosen(&told(&editor.chunks(&session))), "once");
}

#[test]
fn people_are_asked_so_often_in_a_minute() {
    let service = asking("driver = false").set("approvals.per_minute", 2).start();
    let (ann, lea) = (Person::named(&service, "ann"), approver(&service, "lea"));
    let (mut editor, session) = open(&service, &ann);
    for round in 0..2 {
        let turn = editor.prompt_do(&session, &json!([run(&format!("make {round}"))]));
        let asked = question(&service, &lea);
        assert!(lea.run(&service, &["approvals", "allow", id(&asked)]).status.success());
        editor.stop_reason(&turn);
    }
    let answer = told(&editor.turn_do(&session, &json!([run("make more")])));
    assert_eq!(chosen(&answer), "no");
    assert!(reason(&answer).contains("has asked 2 times within a minute"), "{answer}");
    // Another session has its own.
    let (mut other, session) = open(&service, &ann);
    other.prompt_do(&session, &json!([run("make other")]));
    question(&service, &lea);
}

#[test]
fn only_so_many_questions_wait_at_once() {
    let service = asking("driver = false").set("approvals.pending", 2).start();
    let (ann, lea) = (Person::named(&service, "ann"), approver(&service, "lea"));
    let (mut editor, session) = open(&service, &ann);
    let ask = |n: u32| {
        let mut ask = run(&format!("make {n}"));
        ask["request"]["forget"] = true.into();
        ask
    };
    editor.prompt_do(&session, &json!([ask(1), ask(2), ask(3), "hang"]));
    let third = service.wait_received("fake", "an answer to its third request", |line| {
        line.json().is_some_and(|message| message.get("method").is_none() && message["id"] == 2)
    });
    let third = third.json().unwrap();
    assert_eq!(chosen(&third), "no");
    assert!(reason(&third).contains("2 questions of this session wait"), "{third}");
    assert_eq!(listed(&service, &lea, &[]).len(), 2);
}
