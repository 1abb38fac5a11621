//! What people see of grants: what is understood is shown before it is given.

use std::{
    fs::File,
    io::{Read as _, Write as _},
    process::Stdio,
};

use conductor::proto::{CreateGrantRequest, GrantAction, GrantScope, grant_action, grant_scope};
use conductor_tests::{
    harness::{Service, service},
    people::{Person, channel, owner},
};
use nix::pty::{OpenptyResult, openpty};
use serde_json::json;

use crate::{RULES, asks, give, json_of, listed, may_run, outcomes, path, refused, refusing, ruled, text};

const LINE: &str = "truncate -s 0 a";

#[test]
fn what_is_understood_is_shown_first_and_nothing_is_given_unasked() {
    let service = ruled();
    let (admin, (_editor, session)) = (owner(&service), service.session());
    let dir = service.work().canonicalize().unwrap();
    let wanted = ["--root", path(&dir), "--run", "ls; truncate -s 0 a", "--uses", "2", "--for", "90m"];
    let unasked = service.run(&[&["grants", "give"], &wanted[..]].concat());
    assert_eq!(unasked.status.code(), Some(1));
    assert!(text(&unasked).contains("give --yes to grant it, or --dry-run"), "{unasked:?}");
    let shown = service.run(&[&["grants", "give", "--dry-run"], &wanted[..]].concat());
    let out = String::from_utf8(shown.stdout).unwrap();
    for words in [
        &format!("For root {}, this is allowed without asking:", dir.display()),
        &format!("run `truncate -s 0 a` in {} (", dir.display()),
        "asked now: no rule allows running `truncate -s 0 a`",
        "allowed already by rule listing",
        "1h 30m from now), 2 times.",
        &format!("It concerns {session}."),
    ] {
        assert!(out.contains(words), "{words}: {out}");
    }
    let trial = json_of(&service.run(&[&["grants", "give", "--dry-run", "--json"], &wanted[..]].concat()));
    assert_eq!((&trial["id"], &trial["judged"][0]["decision"]), (&json!(null), &json!("allow")));
    assert!(listed(&service, &admin).is_empty());
    let given = json_of(&service.run(&[&["grants", "give", "--yes", "--json"], &wanted[..]].concat()));
    let id = given["id"].as_str().unwrap();
    let table = String::from_utf8(service.run(&["grants", "ls"]).stdout).unwrap();
    let lines: Vec<_> = table.lines().collect();
    assert_eq!(
        lines[0].split_whitespace().collect::<Vec<_>>(),
        ["ID", "SCOPE", "WHAT", "USES", "LEFT", "BY"]
    );
    assert!(
        lines[1].starts_with(id) && lines[1].contains("0/2") && lines[1].contains("  1h 30m  "),
        "{table}"
    );
    let one = String::from_utf8(service.run(&["grants", "show", &id[..13]]).stdout).unwrap();
    assert!(one.contains("allows  run `truncate -s 0 a` in"), "{one}");
    // Ids of the same minute begin alike.
    let by_end = String::from_utf8(service.run(&["grants", "show", &id[24..]]).stdout).unwrap();
    assert!(by_end.contains(id), "{by_end}");
}

/// The number of the request for permission to run this.
pub fn request_of(service: &Service, session: &str, asked: &str) -> u64 {
    let frames = service.run(&["sessions", "export", session, "--format", "jsonl"]);
    String::from_utf8(frames.stdout)
        .unwrap()
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter(|line| {
            // Not the prompt, which has the agent's steps in it.
            let has = |text: &str| line.to_string().contains(text);
            has("session/request_permission") && has(asked) && !has("session/prompt")
        })
        .find_map(|line| line["seq"].as_u64())
        .unwrap()
}

#[test]
fn what_a_rule_found_in_the_words_of_a_command_can_be_granted_by_its_number() {
    let rule = "[[rule]]\nid = 'showing'\neffect = 'allow'\nreason = 'what may be read'\n\
                run = { program = ['cat'], positionals = ['read*'] }\n";
    let service = service(&json!({})).rules(&format!("{RULES}\n{rule}")).start();
    let admin = owner(&service);
    let (editor, session) = service.session();
    let mut editor = refusing(editor);
    assert!(!may_run(&mut editor, &session, "cat some.txt"));
    let seq = request_of(&service, &session, "cat some.txt");
    give(&service, &admin, &["--session", &session, "--like", &format!("{session}:{seq}")]);
    let part = listed(&service, &admin)[0]["parts"][0].as_str().unwrap().to_owned();
    assert!(part.starts_with("read /") && part.ends_with("/some.txt"), "{part}");
    assert!(may_run(&mut editor, &session, "cat some.txt"));
    assert!(!may_run(&mut editor, &session, "cat other.txt"));
}

#[test]
fn what_was_asked_before_can_be_granted_by_its_number() {
    let service = ruled();
    let admin = owner(&service);
    let (editor, session) = service.session();
    let mut editor = refusing(editor);
    assert_eq!(outcomes(&mut editor, &session, &asks(&["ls", LINE])), [true, false]);
    let seq = request_of(&service, &session, LINE);
    give(&service, &admin, &["--session", &session, "--like", &format!("{session}:{seq}")]);
    assert!(may_run(&mut editor, &session, LINE));
    let said = refused(&service, &admin, &["--session", &session, "--like", &format!("{session}:1")]);
    assert!(said.contains("no request 1"), "{said}");
    let said = refused(&service, &admin, &["--session", &session, "--like", "nonsense"]);
    assert!(said.contains("a session and a number"), "{said}");
}

#[test]
fn what_waits_for_approval_can_be_granted() {
    let service = ruled();
    let admin = owner(&service);
    let bob = Person::named(&service, "bob");
    let (editor, session) = service.session();
    let mut editor = refusing(editor);
    editor.answer_with(|_| None);
    let turn = editor.prompt_do(&session, &asks(&[LINE]));
    let request = editor.next_request("session/request_permission");
    let waiting = json_of(&service.run(&["approvals", "ls", "--json"]));
    let id = waiting["approvals"][0]["id"].as_str().unwrap().to_owned();
    let wanted = ["--session", session.as_str(), "--approval", &id[24..]];
    let mut bobs = bob.editor(&service);
    let theirs = bobs.new_session(&service.work());
    let said = refused(&service, &bob, &["--session", &theirs, "--approval", &id]);
    assert!(said.contains("there is no approval"), "{said}");
    give(&service, &admin, &wanted);
    // It is not answered by that.
    editor.answer(&request, &json!({ "outcome": { "outcome": "selected", "optionId": "no" } }));
    editor.stop_reason(&turn);
    assert!(may_run(&mut editor, &session, LINE));
}

#[test]
fn on_a_terminal_it_is_asked_whether_that_is_meant() {
    let service = ruled();
    let (admin, (_editor, session)) = (owner(&service), service.session());
    for (typed, is_given) in [("n\n", false), ("\n", false), ("y\n", true)] {
        let OpenptyResult { master, slave } = openpty(None, None).unwrap();
        let mut command = service.command(&["grants", "give", "--session", &session, "--run", LINE]);
        command.stdin(slave.try_clone().unwrap()).stderr(slave).stdout(Stdio::piped());
        let child = command.spawn().unwrap();
        drop(command);
        let (mut terminal, mut seen) = (File::from(master), String::new());
        while !seen.contains("Grant this? [y/N]") {
            let mut chunk = [0; 4096];
            let count = terminal.read(&mut chunk).unwrap();
            seen.push_str(&String::from_utf8_lossy(&chunk[..count]));
        }
        assert!(seen.contains("run `truncate -s 0 a` in ") && seen.contains("asked now: "), "{seen}");
        assert!(listed(&service, &admin).is_empty(), "nothing is given while it is asked");
        terminal.write_all(typed.as_bytes()).unwrap();
        let done = child.wait_with_output().unwrap();
        assert_eq!(
            (done.status.success(), done.stdout.is_empty()),
            (is_given, !is_given),
            "{typed:?}: {done:?}"
        );
        assert_eq!(listed(&service, &admin).len(), usize::from(is_given));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_has_changed_since_it_was_shown_is_not_given() {
    let service = ruled();
    let (admin, (_editor, session)) = (owner(&service), service.session());
    let mut client = conductor::proto::grants_client::GrantsClient::new(channel(&service).await);
    let link = service.work().join("link");
    std::os::unix::fs::symlink(service.work().join("harmless"), &link).unwrap();
    let mut request = CreateGrantRequest {
        scope: Some(GrantScope { scope: Some(grant_scope::Scope::SessionId(session)) }),
        actions: vec![GrantAction { action: Some(grant_action::Action::Write("link".into())), wide: false }],
        dry_run: true,
        ..Default::default()
    };
    let shown = client.create(admin.request(request.clone())).await.unwrap().into_inner();
    std::fs::remove_file(&link).unwrap();
    std::os::unix::fs::symlink(service.work().join("precious"), &link).unwrap();
    (request.dry_run, request.expected_parts) = (false, shown.grant.unwrap().parts);
    let refused = client.create(admin.request(request.clone())).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Aborted, "{refused:?}");
    assert!(listed(&service, &admin).is_empty());
    request.expected_parts.clear();
    let given = client.create(admin.request(request)).await.unwrap().into_inner();
    assert!(given.grant.unwrap().parts[0].ends_with("/precious"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_words_do_not_tell_may_not_change_either() {
    let service = ruled();
    let (admin, (_editor, session)) = (owner(&service), service.session());
    let mut client = conductor::proto::grants_client::GrantsClient::new(channel(&service).await);
    let link = service.work().join("link");
    std::os::unix::fs::symlink(service.work().join("harmless"), &link).unwrap();
    let run = grant_action::Action::Run("truncate -s 0 link".into());
    let mut request = CreateGrantRequest {
        scope: Some(GrantScope { scope: Some(grant_scope::Scope::SessionId(session)) }),
        actions: vec![GrantAction { action: Some(run), wide: false }],
        dry_run: true,
        ..Default::default()
    };
    let shown = client.create(admin.request(request.clone())).await.unwrap().into_inner();
    std::fs::remove_file(&link).unwrap();
    std::os::unix::fs::symlink(service.work().join("precious"), &link).unwrap();
    (request.dry_run, request.expected_digest) = (false, shown.digest.clone());
    request.expected_parts = shown.grant.unwrap().parts;
    let refused = client.create(admin.request(request.clone())).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Aborted, "{refused:?}");
    assert!(listed(&service, &admin).is_empty());
    std::fs::remove_file(&link).unwrap();
    std::os::unix::fs::symlink(service.work().join("harmless"), &link).unwrap();
    let given = client.create(admin.request(request)).await.unwrap().into_inner();
    assert_eq!(given.digest, shown.digest);
}

#[test]
fn a_path_that_leads_away_is_shown_where_it_ends() {
    let service = ruled();
    let (admin, (_editor, session)) = (owner(&service), service.session());
    let outside = service.dir.join("outside.txt");
    std::os::unix::fs::symlink(&outside, service.work().join("link")).unwrap();
    let id = give(&service, &admin, &["--session", &session, "--read", "link"]);
    let part = crate::shown(&service, &admin, &id)["parts"][0].as_str().unwrap().to_owned();
    assert!(part.starts_with("read /") && part.ends_with("/outside.txt"), "{part}");
    let tool = service.work().join("tool.sh");
    std::fs::write(&tool, "#!/bin/sh\n").unwrap();
    std::fs::set_permissions(&tool, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let id = give(&service, &admin, &["--session", &session, "--run", "./tool.sh x"]);
    let part = crate::shown(&service, &admin, &id)["parts"][0].as_str().unwrap().to_owned();
    assert!(part.ends_with("/tool.sh, whatever an agent makes of this file)"), "{part}");
}
