//! Whether the author of a grant may still answer: asked of who they are by now, at
//! each use.

use std::time::Duration;

use conductor_tests::{
    harness::{Service, poll_until, service},
    issuer::{Issuer, Signer},
    people::{Person, owner},
};
use serde_json::{Value, json};

use crate::{RULES, give, listed, may_run, path, refusing, text};

const LINE: &str = "truncate -s 0 a";

/// Approvers answer, and nobody else; or whoever is of the team.
fn asking(approvers: &str) -> String {
    format!(
        "{RULES}\n[[rule]]\nid = 'asked'\neffect = 'ask'\nreason = 'ask them'\nrun = {{ program = ['truncate'] }}\n\
         ask = {{ approvers = {approvers}, driver = false, timeout = '1s' }}\n"
    )
}

fn revoke_token(service: &Service, person: &Person) {
    assert!(service.run(&["token", "revoke", &person.id]).status.success());
}

#[test]
fn who_has_lost_their_tokens_or_what_these_said_allows_nothing_any_more() {
    for (approvers, then, less) in [
        ("{ role = ['approver'] }", ["--role", "approver"].as_slice(), ["--role", "developer"].as_slice()),
        ("{ team = ['leads'] }", &["--role", "approver", "--team", "leads"], &["--role", "approver"]),
    ] {
        let service = service(&json!({})).rules(&asking(approvers)).start();
        let (editor, session) = service.session();
        let mut editor = refusing(editor);
        let lea = |args: &[&str]| Person::new(&service, &[&["--user", "lea"], args].concat());
        let first = lea(then);
        give(&service, &first, &["--root", path(&service.work()), "--run", LINE]);
        assert!(may_run(&mut editor, &session, LINE), "{approvers}");
        let second = lea(then);
        revoke_token(&service, &first);
        assert!(may_run(&mut editor, &session, LINE), "{approvers}: another token says the same");
        revoke_token(&service, &second);
        assert!(!may_run(&mut editor, &session, LINE), "{approvers}: there is none");
        lea(less);
        assert!(!may_run(&mut editor, &session, LINE), "{approvers}: it says less");
        lea(then);
        assert!(may_run(&mut editor, &session, LINE), "{approvers}");
        assert_eq!(listed(&service, &owner(&service))[0]["uses"], 3);
    }
}

#[test]
fn who_comes_back_with_less_has_allowed_no_more_than_that() {
    let issuer = Issuer::start(Signer::ec());
    let mut oidc = issuer.config();
    oidc["role_claim"] = json!("roles");
    oidc["roles"] = json!({ "leads": "approver" });
    let rules = asking("{ role = ['approver'] }");
    let mut service = service(&json!({})).set("identity.oidc", oidc).rules(&rules).start();
    service.wait_log("the issuer's keys are known");
    let admin = owner(&service);
    let coming = |roles: &[&str]| {
        let mut claims = issuer.claims("lea", 600);
        claims["roles"] = json!(roles);
        Person { token: issuer.sign(&issuer.header(), &claims), id: String::new() }
    };
    let (editor, session) = service.session();
    let mut editor = refusing(editor);
    give(&service, &coming(&["leads"]), &["--root", path(&service.work()), "--run", LINE]);
    assert!(may_run(&mut editor, &session, LINE));
    assert!(coming(&[]).run(&service, &["whoami"]).status.success());
    assert!(!may_run(&mut editor, &session, LINE));
    // That is not forgotten, and what was lost does not come back by itself.
    assert_eq!(listed(&service, &admin).len(), 1);
    service.term();
    service.start_again();
    let (editor, session) = service.session();
    let mut editor = refusing(editor);
    assert!(!may_run(&mut editor, &session, LINE));
    let is_let_in = || coming(&["leads"]).run(&service, &["whoami"]).status.success();
    assert!(poll_until(Duration::from_secs(20), is_let_in));
    assert!(!may_run(&mut editor, &session, LINE));
    give(&service, &coming(&["leads"]), &["--root", path(&service.work()), "--run", LINE]);
    assert!(may_run(&mut editor, &session, LINE));
}

#[test]
fn all_that_somebody_has_given_is_taken_back_at_once() {
    let service = crate::ruled();
    let (admin, work) = (owner(&service), service.work());
    let lea = Person::new(&service, &["--user", "lea", "--role", "approver"]);
    let ann = Person::named(&service, "ann");
    let mut editor = ann.editor(&service);
    let session = editor.new_session(&work);
    editor.turn(&session, "hello");
    let own = give(&service, &ann, &["--session", &session, "--run", LINE]);
    let theirs = ["make", LINE].map(|line| give(&service, &lea, &["--root", path(&work), "--run", line]));
    // What one may only see is told of, and stays.
    let bob = Person::named(&service, "bob");
    let mut bobs = bob.editor(&service);
    let session = bobs.new_session(&work);
    bobs.turn(&session, "hello");
    let said = bob.run(&service, &["grants", "revoke", "--by", "lea"]);
    assert_eq!(said.status.code(), Some(1), "{said:?}");
    assert!(text(&said).contains("an approver or an administrator can"), "{said:?}");
    assert_eq!(listed(&service, &admin).len(), 3);
    let gone = admin.run(&service, &["grants", "revoke", "--by", "lea", "--json", "--reason", "has left"]);
    let gone: Value = crate::json_of(&gone);
    let mut ids: Vec<_> = gone["grants"].as_array().unwrap().iter().map(|grant| &grant["id"]).collect();
    ids.sort_by_key(|id| id.as_str());
    assert_eq!(ids, theirs.each_ref().map(|id| id.as_str()));
    let left = listed(&service, &admin);
    assert_eq!(left.iter().map(|grant| &grant["id"]).collect::<Vec<_>>(), [own.as_str()]);
    let none = admin.run(&service, &["grants", "revoke", "--by", "lea"]);
    assert!(none.status.success() && String::from_utf8_lossy(&none.stdout).contains("no grant"), "{none:?}");
}
