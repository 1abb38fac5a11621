//! Where a grant holds, and where it does not.

use std::fs;

use conductor_tests::people::{Person, owner};

use crate::{asks, give, listed, may_run, outcomes, path, refusing, ruled, writes};

#[test]
fn a_grant_holds_in_its_scope_and_nowhere_else() {
    let service = ruled();
    let admin = owner(&service);
    let work = service.work();
    let elsewhere = work.join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    let ann = Person::new(&service, &["--user", "ann", "--team", "web"]);
    let bob = Person::new(&service, &["--user", "bob", "--team", "core"]);
    let (mut anns, mut bobs) = (refusing(ann.editor(&service)), refusing(bob.editor(&service)));
    let first = anns.new_session(&work);
    let second = anns.new_session(&work);
    let other = bobs.new_session(&work);
    let away = bobs.new_session(&elsewhere);

    // By scope: whether it holds in each of the four sessions.
    let (line, dir) = ("truncate -s 0 a", path(&work));
    let scopes: [(&[&str], [bool; 4]); 4] = [
        (&["--session", &first], [true, false, false, false]),
        (&["--root", dir], [true, true, true, false]),
        (&["--user", "ann", "--cwd", dir], [true, true, false, false]),
        (&["--team", "core", "--cwd", dir], [false, false, true, false]),
    ];
    let mut holds = || {
        let anns = [&first, &second].map(|session| may_run(&mut anns, session, line));
        let bobs = [&other, &away].map(|session| may_run(&mut bobs, session, line));
        [anns[0], anns[1], bobs[0], bobs[1]]
    };
    assert_eq!(holds(), [false; 4], "nothing is granted yet");
    for (scope, wanted) in scopes {
        let id = give(&service, &admin, &[scope, &["--run", line]].concat());
        assert_eq!(holds(), wanted, "{scope:?}");
        assert!(admin.run(&service, &["grants", "revoke", &id]).status.success());
        assert_eq!(holds(), [false; 4], "{scope:?} was revoked");
    }
}

#[test]
fn exactly_this_unless_more_is_said() {
    let service = ruled();
    let (admin, work) = (owner(&service), service.work());
    fs::create_dir(work.join("docs")).unwrap();
    let (editor, session) = service.session();
    let mut editor = refusing(editor);
    give(&service, &admin, &["--session", &session, "--run", "truncate -s 0 a"]);
    let lines = [
        "truncate -s 0 a",
        "truncate -s 0 b",
        "truncate -s 0 a b",
        "truncate -s 0 a; make",
        "cat a | truncate -s 0 a",
    ];
    assert_eq!(outcomes(&mut editor, &session, &asks(&lines)), [true, false, false, false, false]);

    give(&service, &admin, &["--session", &session, "--run", "make -C docs", "--any-arguments"]);
    let lines =
        ["make -C docs", "make -C docs all", "make", "make -C other", "make -C docs all; truncate -s 9 x"];
    assert_eq!(outcomes(&mut editor, &session, &asks(&lines)), [true, true, false, false, false]);

    give(&service, &admin, &["--session", &session, "--write", "a.txt"]);
    assert_eq!(outcomes(&mut editor, &session, &writes(&work.join("a.txt"))), [true]);
    assert_eq!(fs::read_to_string(work.join("a.txt")).unwrap(), "new");
    assert_eq!(outcomes(&mut editor, &session, &writes(&work.join("docs/b.txt"))), [false]);
    give(&service, &admin, &["--session", &session, "--write", "docs", "--beneath"]);
    assert_eq!(outcomes(&mut editor, &session, &writes(&work.join("docs/b.txt"))), [true]);
    // A link leads elsewhere, whatever it is called.
    std::os::unix::fs::symlink(work.join("secret.txt"), work.join("docs/link")).unwrap();
    assert_eq!(outcomes(&mut editor, &session, &writes(&work.join("docs/link"))), [false]);
    assert!(!work.join("secret.txt").exists());
}

#[test]
fn always_in_an_editor_is_a_grant_of_the_session() {
    let service = ruled();
    let admin = owner(&service);
    let ann = Person::named(&service, "ann");
    let mut editor = ann.editor(&service);
    editor.decides();
    let session = editor.new_session(&service.work());
    let turn = editor.prompt_do(&session, &asks(&["make install"]));
    let request = editor.next_request("session/request_permission");
    editor.answer(&request, &serde_json::json!({ "outcome": { "outcome": "selected", "optionId": "ever" } }));
    editor.stop_reason(&turn);
    let mut editor = refusing(editor);
    assert!(may_run(&mut editor, &session, "make install"));
    let grants = listed(&service, &ann);
    assert_eq!(grants.len(), 1);
    assert_eq!((&grants[0]["scope_name"], &grants[0]["author"]), (&session.as_str().into(), &"ann".into()));
    assert_eq!(grants[0]["uses"], 1, "once when it was asked again: {grants:?}");
    let id = grants[0]["id"].as_str().unwrap();
    assert!(admin.run(&service, &["grants", "revoke", &id[..id.len() - 2]]).status.success());
    assert!(!may_run(&mut editor, &session, "make install"));
}

#[test]
fn the_grants_of_a_deleted_session_go_with_it() {
    let service = ruled();
    let (admin, ann) = (owner(&service), Person::named(&service, "ann"));
    let mut editor = ann.editor(&service);
    let session = editor.new_session(&service.work());
    editor.turn(&session, "hello");
    give(&service, &ann, &["--session", &session, "--run", "make"]);
    let mut bob = Person::named(&service, "bob").editor(&service);
    bob.call("session/delete", &serde_json::json!({ "sessionId": session }));
    assert_eq!(listed(&service, &admin).len(), 1, "it is not bob's to delete");
    editor.call("session/delete", &serde_json::json!({ "sessionId": session }));
    assert_eq!(listed(&service, &admin), Vec::<serde_json::Value>::new());
}
