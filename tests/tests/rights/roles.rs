//! The roles as people meet them: given, listed, and refused with words that
//! help.

use conductor_tests::{harness::service, people::Person};
use serde_json::{Value, json};

#[test]
fn roles_are_given_listed_and_outlive_the_service() {
    let mut service = service(&json!({})).start();
    let made: Vec<Person> = crate::cast::ROLES
        .iter()
        .map(|role| Person::new(&service, &["--user", &format!("the-{role}"), "--role", role]))
        .collect();
    service.term();
    service.start_again();
    let listed: Value = serde_json::from_slice(&service.run(&["token", "ls", "--json"]).stdout).unwrap();
    for (role, person) in crate::cast::ROLES.iter().zip(&made) {
        let tokens = listed["tokens"].as_array().unwrap();
        let token = tokens.iter().find(|token| token["id"] == *person.id).unwrap();
        assert_eq!(token["roles"], json!([role]), "{token}");
    }
    let refused = service.run(&["token", "create", "--user", "eve", "--role", "god"]);
    let told = String::from_utf8_lossy(&refused.stderr);
    assert!(told.contains("approver") && told.contains("auditor"), "{told}");
}

#[test]
fn an_auditor_reads_everything_and_changes_nothing() {
    let service = service(&json!({})).start();
    let auditor = Person::new(&service, &["--user", "audrey", "--role", "auditor"]);
    let ann = Person::named(&service, "ann");
    let mut editor = ann.editor(&service);
    let session = editor.new_session(&service.work());
    assert_eq!(editor.turn(&session, "hello"), ["echo: hello"]);
    for args in [&["sessions", "ls", "--json"][..], &["sessions", "show", &session]] {
        let output = auditor.run(&service, args);
        assert!(output.status.success(), "{output:?}");
        assert!(String::from_utf8_lossy(&output.stdout).contains(&session[..8]), "{output:?}");
    }
    for args in [
        &["sessions", "close", &session][..],
        &["sessions", "share", &session, "--with", "audrey", "--as", "driver"],
        &["prompt", "--session", &session, "hello"],
        &["prompt", "hello"],
        &["token", "create", "--user", "eve"],
        &["agents", "restart", "fake"],
    ] {
        let output = auditor.run(&service, args);
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success(), "{args:?}: {output:?}");
        assert!(told.contains("this is for") && told.contains("your role is auditor"), "{args:?}: {told}");
    }
    assert_eq!(editor.turn(&session, "still mine"), ["echo: still mine"]);
    service.wait_log("it is not for this role");
}

/// What an agent said in somebody's session, and where, is not told to others because it broke.
#[test]
fn how_a_process_of_others_ended_tells_nothing_of_their_work() {
    let service = service(&json!({})).set("agents.fake.restart", json!({ "intensity": 1 })).start();
    let (ann, bob) = (Person::named(&service, "ann"), Person::named(&service, "bob"));
    let place = service.work().join("plans-of-ann");
    std::fs::create_dir(&place).unwrap();
    let mut editor = ann.editor(&service);
    let session = editor.new_session(&place);
    let steps = json!([
        { "stderr": "error-of-ann\n" },
        { "repeat": [100, [{ "line": "words-of-ann" }]] },
        "hang",
    ]);
    let turn = editor.prompt_do(&session, &steps);
    editor.error_of(&turn);
    service.wait_log("agent is quarantined");
    let told = |args: &[&str], who: Option<&Person>| {
        let output = who.map_or_else(|| service.run(args), |who| who.run(&service, args));
        assert!(output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let all = told(&["agents", "--json"], None);
    assert!(all.contains("words-of-ann") && all.contains("error-of-ann"), "{all}");
    for args in [&["agents", "--json"][..], &["models", "--json"]] {
        let some = told(args, Some(&bob));
        assert!(some.contains("breached the protocol too often"), "{some}");
        assert!(!some.contains("of-ann"), "{some}");
    }
}
