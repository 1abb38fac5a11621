//! Who may give, see and take back grants. (V7)

use conductor_tests::{
    harness::service,
    people::{Person, owner},
};
use serde_json::json;

use crate::{RULES, asks, give, listed, path, refused, ruled, text};

const LINE: &str = "truncate -s 0 a";

#[test]
fn v07_a_role_that_may_not_gives_none() {
    let service = ruled();
    let dir = service.work();
    let (ann, bob) = (Person::named(&service, "ann"), Person::named(&service, "bob"));
    let auditor = Person::new(&service, &["--user", "eve", "--role", "auditor"]);
    let mut editor = ann.editor(&service);
    let session = editor.new_session(&dir);
    editor.turn(&session, "hello");
    let own = ["--session", session.as_str(), "--run", LINE];
    let said = refused(&service, &auditor, &own);
    assert!(said.contains("your role is auditor"), "{said}");
    // Not even that there is such a session.
    let said = refused(&service, &bob, &own);
    assert!(said.contains("session") && !said.contains("ann"), "{said}");
    let shared = ["sessions", "share", &session, "--with", "bob", "--as", "driver"];
    assert!(ann.run(&service, &shared).status.success());
    let said = refused(&service, &bob, &own);
    assert!(said.contains("only shared with you"), "{said}");
    for scope in [
        ["--root", path(&dir)].as_slice(),
        &["--user", "ann", "--cwd", path(&dir)],
        &["--team", "web", "--cwd", path(&dir)],
    ] {
        let said = refused(&service, &ann, &[scope, &["--run", LINE]].concat());
        assert!(said.contains("for approvers and administrators"), "{said}");
    }
    give(&service, &ann, &own);
}

#[test]
fn nobody_learns_of_grants_that_do_not_concern_them() {
    let service = ruled();
    let (admin, dir) = (owner(&service), service.work());
    let ann = Person::new(&service, &["--user", "ann", "--team", "web"]);
    let bob = Person::named(&service, "bob");
    let auditor = Person::new(&service, &["--user", "eve", "--role", "auditor"]);
    let approver = Person::new(&service, &["--user", "lea", "--role", "approver"]);
    let mut editor = ann.editor(&service);
    let session = editor.new_session(&dir);
    editor.turn(&session, "hello");
    let cwd = path(&dir);
    let of_session = give(&service, &ann, &["--session", &session, "--run", LINE]);
    let of_user = give(&service, &approver, &["--user", "ann", "--cwd", cwd, "--run", LINE]);
    let of_team = give(&service, &admin, &["--team", "web", "--cwd", cwd, "--run", LINE]);
    let of_root = give(&service, &admin, &["--root", cwd, "--run", LINE]);
    let all = [&of_root, &of_team, &of_user, &of_session];
    let seen = |who: &Person| -> Vec<String> {
        listed(&service, who).iter().map(|grant| grant["id"].as_str().unwrap().to_owned()).collect()
    };
    for who in [&ann, &approver, &auditor, &admin] {
        assert_eq!(seen(who), all.map(Clone::clone), "newest first");
    }
    assert!(seen(&bob).is_empty(), "nothing of it concerns bob");
    for id in all {
        for command in ["show", "revoke"] {
            let said = bob.run(&service, &["grants", command, id]);
            assert_eq!(said.status.code(), Some(1));
            assert!(text(&said).contains(&format!("there is no grant {id} that holds")), "{said:?}");
        }
        let said = auditor.run(&service, &["grants", "revoke", id]);
        assert!(text(&said).contains("your role is auditor"), "{said:?}");
    }
    // What one may see is not one's own to take back.
    let said = ann.run(&service, &["grants", "revoke", &of_team]);
    assert!(text(&said).contains("an approver or an administrator can"), "{said:?}");
    assert!(ann.run(&service, &["grants", "revoke", &of_session]).status.success());
    assert!(approver.run(&service, &["grants", "revoke", &of_team]).status.success());
    assert_eq!(seen(&admin), [of_root.clone(), of_user]);
    // Whoever works there sees what holds there.
    let mut bobs = bob.editor(&service);
    let session = bobs.new_session(&dir);
    bobs.turn(&session, "hello");
    assert_eq!(seen(&bob), [of_root]);
}

/// Approvers give grants for every session, and read those only that are shared with them.
#[test]
fn v07_who_gives_grants_does_not_read_by_that() {
    let rule = "[[rule]]\nid = 'asked'\neffect = 'ask'\nreason = 'ask them'\nrun = { program = ['truncate'] }\n\
                ask = { approvers = { team = ['leads'] }, driver = false }\n";
    let service = service(&json!({})).rules(&format!("{RULES}\n{rule}")).start();
    let (ann, lea) =
        (Person::named(&service, "ann"), Person::new(&service, &["--user", "lea", "--role", "approver"]));
    let max = Person::new(&service, &["--user", "max", "--role", "approver", "--team", "leads"]);
    let mut editor = ann.editor(&service);
    editor.decides();
    let session = editor.new_session(&service.work());
    let turn = editor.prompt_do(&session, &asks(&["truncate -s 0 plans-of-ann"]));
    let mut waiting = Vec::new();
    conductor_tests::harness::poll_until(std::time::Duration::from_secs(30), || {
        waiting = crate::json_of(&max.run(&service, &["approvals", "ls", "--json"]))["approvals"]
            .as_array()
            .unwrap()
            .clone();
        !waiting.is_empty()
    });
    let id = waiting[0]["id"].as_str().unwrap().to_owned();
    let seq = crate::commands::request_of(&service, &session, "plans-of-ann");
    let work = service.work();
    let scope = ["--root", path(&work)];
    for (like, nothing) in [
        (["--like", &format!("{session}:{seq}")], "there is no session"),
        (["--approval", &id], "there is no approval"),
    ] {
        let said = refused(&service, &lea, &[&scope[..], &like].concat());
        assert!(said.contains(nothing) && !said.contains("plans-of-ann"), "{said}");
    }
    // Whose answer it would be sees what is asked, and may allow it ahead of time.
    let shown =
        max.run(&service, &[&["grants", "give"][..], &scope, &["--approval", &id, "--dry-run"]].concat());
    assert!(String::from_utf8_lossy(&shown.stdout).contains("plans-of-ann"), "{shown:?}");
    assert!(max.run(&service, &["approvals", "deny", &id]).status.success());
    editor.stop_reason(&turn);
}

#[test]
fn a_list_comes_by_pages() {
    let service = ruled();
    let (admin, (_editor, session)) = (owner(&service), service.session());
    let ids: Vec<String> =
        (0..3).map(|_| give(&service, &admin, &["--session", &session, "--run", LINE])).collect();
    let some = admin.run(&service, &["grants", "ls", "--limit", "2"]);
    assert!(
        some.status.success() && text(&some).contains("there are more than 2; --limit shows more"),
        "{some:?}"
    );
    for (limit, has_more) in [("2", true), ("3", false)] {
        let some = crate::json_of(&admin.run(&service, &["grants", "ls", "--json", "--limit", limit]));
        assert_eq!(some["has_more"], has_more, "{some}");
    }
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let pages = runtime.block_on(async {
        let channel = conductor_tests::people::channel(&service).await;
        let mut client = conductor::proto::grants_client::GrantsClient::new(channel);
        let (mut pages, mut page_token) = (Vec::new(), String::new());
        loop {
            let request =
                conductor::proto::ListGrantsRequest { page_size: 2, page_token, session_id: session.clone() };
            let page = client.list(admin.request(request)).await.unwrap().into_inner();
            pages.push(page.grants.iter().map(|grant| grant.id.clone()).collect::<Vec<_>>());
            page_token = page.next_page_token;
            if page_token.is_empty() {
                return pages;
            }
        }
    });
    assert_eq!(pages, [vec![ids[2].clone(), ids[1].clone()], vec![ids[0].clone()]]);
}
