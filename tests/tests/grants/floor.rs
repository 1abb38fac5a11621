//! What no grant allows: what the rules deny, what a repository narrows, what
//! others are to answer, and what cannot be told.

use std::{fs, time::Duration};

use conductor_tests::{
    harness::{Service, poll_until},
    people::{Person, owner},
};

use crate::{RULES, give, listed, may_run, path, refused, refusing, ruled};

const LINE: &str = "truncate -s 0 a";

/// Puts rules in force besides the usual ones.
fn rule(service: &Service, more: &str) {
    let before = service.log().matches("the policy was reloaded").count();
    fs::write(service.work().parent().unwrap().join("policy.toml"), format!("{RULES}\n{more}")).unwrap();
    service.reload();
    let reloaded = || service.log().matches("the policy was reloaded").count() > before;
    assert!(poll_until(Duration::from_secs(20), reloaded), "{}", service.log());
}

#[test]
fn what_is_denied_cannot_be_granted_and_a_later_rule_wins_at_once() {
    let service = ruled();
    let admin = owner(&service);
    let (editor, session) = service.session();
    let mut editor = refusing(editor);
    for line in ["rm -rf x", "make; rm x"] {
        let said = refused(&service, &admin, &["--session", &session, "--run", line]);
        assert!(said.contains("rule `no-removal`") && said.contains("nothing is removed here"), "{said}");
    }
    assert!(listed(&service, &admin).is_empty());
    give(&service, &admin, &["--session", &session, "--run", LINE]);
    assert!(may_run(&mut editor, &session, LINE));
    rule(
        &service,
        "[[rule]]\nid = 'no-more'\neffect = 'deny'\nreason = 'stop'\nrun = { program = ['truncate'] }\n",
    );
    assert!(!may_run(&mut editor, &session, LINE));
    assert_eq!(listed(&service, &admin)[0]["uses"], 1, "a grant that could not be used was not used");
    rule(&service, "");
    assert!(may_run(&mut editor, &session, LINE));
}

#[test]
fn what_a_repository_forbids_there_stays_forbidden() {
    let service = ruled();
    let admin = owner(&service);
    let narrow = service.work().join("narrow");
    fs::create_dir_all(narrow.join(".conductor")).unwrap();
    let own =
        "[[rule]]\nid = 'here'\neffect = 'deny'\nreason = 'not here'\nrun = { program = ['truncate'] }\n";
    fs::write(narrow.join(".conductor/policy.toml"), own).unwrap();
    let said = refused(&service, &admin, &["--root", path(&narrow), "--run", LINE]);
    assert!(said.contains("not here"), "{said}");
    // Given where it may be, it does not hold where it may not.
    let mut editor = refusing(service.editor());
    let session = editor.new_session(&narrow);
    let me = String::from_utf8(service.run(&["whoami", "--json"]).stdout).unwrap();
    let me: serde_json::Value = serde_json::from_str(&me).unwrap();
    let me = me["user"].as_str().unwrap();
    give(
        &service,
        &admin,
        &["--user", me, "--cwd", path(&service.work()), "--run", "truncate", "--any-arguments"],
    );
    let wide = editor.new_session(&service.work());
    assert!(may_run(&mut editor, &wide, LINE));
    assert!(!may_run(&mut editor, &session, LINE));
}

#[test]
fn only_who_may_answer_may_allow_ahead_of_time_and_that_is_looked_at_again() {
    let asks = |approvers: &str| {
        format!(
            "[[rule]]\nid = 'leads'\neffect = 'ask'\nreason = 'ask a lead'\nrun = {{ program = ['truncate'] }}\n\
             ask = {{ {approvers}, driver = false, self = false, timeout = '1s' }}\n"
        )
    };
    let service = ruled();
    rule(&service, &asks("approvers = { user = ['lea', 'ann'] }"));
    let admin = owner(&service);
    let approver = Person::new(&service, &["--user", "lea", "--role", "approver"]);
    let other = Person::new(&service, &["--user", "max", "--role", "approver"]);
    let ann = Person::named(&service, "ann");
    let mut editor = refusing(ann.editor(&service));
    let session = editor.new_session(&service.work());
    let wanted = ["--session", session.as_str(), "--run", LINE];
    for (who, words) in [
        (&ann, "nobody answer what they have asked for themselves"),
        (&other, "the rule leaves it to lea, ann"),
        (&admin, "the rule leaves it to lea, ann"),
    ] {
        let said = refused(&service, who, &wanted);
        assert!(said.contains(words), "{said}");
    }
    give(&service, &approver, &wanted);
    assert!(may_run(&mut editor, &session, LINE));
    // Whoever gave it may not answer any more.
    rule(&service, &asks("approvers = { user = ['max'] }"));
    assert!(!may_run(&mut editor, &session, LINE));
    // Nor does a grant for all who work here hold for the one who gave it.
    rule(&service, &asks("approvers = { user = ['lea'] }"));
    assert!(may_run(&mut editor, &session, LINE));
    let own = Person::new(&service, &["--user", "lea", "--role", "approver"]);
    let mut leas = refusing(own.editor(&service));
    give(&service, &approver, &["--root", path(&service.work()), "--run", LINE]);
    let theirs = leas.new_session(&service.work());
    assert!(!may_run(&mut leas, &theirs, LINE), "self-approval");
}

#[test]
fn what_cannot_be_told_cannot_be_granted() {
    let service = ruled();
    let admin = owner(&service);
    let (_editor, session) = service.session();
    for (args, words) in [
        (["--run", "cat a | sh"], "cannot be told exactly"),
        (["--run", "echo $(id)"], "cannot be told exactly"),
        (["--write", "a\nb"], "cannot be"),
        (["--run", "  "], "empty"),
    ] {
        let said = refused(&service, &admin, &[&["--session", session.as_str()], &args[..]].concat());
        assert!(said.contains(words), "{args:?}: {said}");
    }
    let local = service.work().join("tool.sh");
    fs::write(&local, "#!/bin/sh\n").unwrap();
    fs::set_permissions(&local, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let wide = ["--session", session.as_str(), "--run", "./tool.sh", "--any-arguments"];
    assert!(refused(&service, &admin, &wide).contains("an agent may have made"));
    let work = service.work();
    let for_many = ["--root", path(&work), "--run", "./tool.sh x"];
    assert!(refused(&service, &admin, &for_many).contains("for more than one session"));
    let long = format!("truncate -s 0 {}", "a".repeat(1001));
    let long = ["--session", session.as_str(), "--run", &long];
    assert!(refused(&service, &admin, &long).contains("nobody is shown whole"));
    let much: Vec<String> = (0..10).map(|at| format!("make {}", format!("{at} ").repeat(200))).collect();
    let much = much.iter().flat_map(|line| ["--run", line.as_str()]);
    let much: Vec<&str> = ["--session", session.as_str()].into_iter().chain(much).collect();
    let said = refused(&service, &admin, &much);
    assert!(said.contains("bytes"), "{said}");
    let long = ["--session", session.as_str(), "--run", LINE, "--for", "31d"];
    assert!(refused(&service, &admin, &long).contains("30 days at most"));
    let nowhere = ["--user", "ann", "--run", LINE];
    assert!(refused(&service, &admin, &nowhere).contains("in which directory"));
    let outside = ["--root", "/etc", "--run", LINE];
    assert!(refused(&service, &admin, &outside).contains("beneath the roots"));
    let above = ["--session", session.as_str(), "--read", "/etc", "--beneath"];
    assert!(refused(&service, &admin, &above).contains("outside the directory"));
    assert!(listed(&service, &admin).is_empty());
}
