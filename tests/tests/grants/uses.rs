//! How often and how long a grant holds: in a storm, after a kill, at its end.

use std::{thread, time::Duration};

use conductor_tests::{
    harness::{Service, poll_until},
    people::owner,
};

use crate::{asks, give, listed, may_run, outcomes, path, refusing, ruled, shown};

const LINE: &str = "truncate -s 0 a";

/// Several sessions at once, each asking many times; how often it was allowed.
fn storm(service: &Service, sessions: usize, asked: usize) -> usize {
    let lines = vec![LINE; asked];
    let allowed = thread::scope(|scope| {
        let threads: Vec<_> = (0..sessions)
            .map(|_| {
                scope.spawn(|| {
                    let (editor, session) = service.session();
                    outcomes(&mut refusing(editor), &session, &asks(&lines))
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    assert!(allowed.iter().all(|outcomes| outcomes.len() == asked));
    allowed.iter().flatten().filter(|is_allowed| **is_allowed).count()
}

#[test]
fn a_storm_over_several_sessions_uses_no_more_than_there_is() {
    let service = ruled();
    let admin = owner(&service);
    let id = give(&service, &admin, &["--root", path(&service.work()), "--run", LINE, "--uses", "37"]);
    assert_eq!(storm(&service, 6, 20), 37);
    let grant = shown(&service, &admin, &id);
    assert_eq!((&grant["uses"], &grant["max_uses"]), (&37.into(), &37.into()));
    assert_eq!(storm(&service, 2, 3), 0);
}

#[test]
fn a_kill_gives_no_use_back_and_takes_none() {
    let mut service = ruled();
    let admin = owner(&service);
    let id = give(&service, &admin, &["--root", path(&service.work()), "--run", LINE, "--uses", "10"]);
    assert_eq!(storm(&service, 3, 2), 6);
    // Within the time in which what was used would be written to the store.
    service.kill9();
    service.start_again();
    assert_eq!(shown(&service, &admin, &id)["uses"], 6);
    assert_eq!(storm(&service, 3, 3), 4, "what was left");
    service.kill9();
    service.start_again();
    assert_eq!(storm(&service, 2, 2), 0);
    assert_eq!(shown(&service, &admin, &id)["uses"], 10);
}

#[test]
fn a_kill_in_the_midst_of_a_storm_allows_no_more_than_there_is() {
    let mut service = ruled();
    let admin = owner(&service);
    let id = give(&service, &admin, &["--root", path(&service.work()), "--run", LINE, "--uses", "400"]);
    let mut gone = Vec::new();
    for least in [5, 250] {
        let editors: Vec<_> = (0..4)
            .map(|_| {
                let (editor, session) = service.session();
                let mut editor = refusing(editor);
                editor.prompt_do(&session, &asks(&[LINE; 60]));
                editor
            })
            .collect();
        let used = || shown(&service, &admin, &id)["uses"].as_u64().unwrap();
        assert!(poll_until(Duration::from_secs(30), || used() >= least));
        service.kill9();
        gone.extend(editors);
        service.start_again();
    }
    // What agents were told, whoever was there to see it.
    let told = |service: &Service| {
        let received = service.received("fake");
        received
            .iter()
            .filter(|entry| {
                entry.json().is_some_and(|answer| answer["result"]["outcome"]["optionId"] == "once")
            })
            .count() as u64
    };
    let before = shown(&service, &admin, &id)["uses"].as_u64().unwrap();
    assert!(told(&service) <= before && before <= 400, "{} told, {before} counted", told(&service));
    storm(&service, 4, 100);
    assert_eq!(shown(&service, &admin, &id)["uses"], 400);
    assert!(told(&service) <= 400, "{} were allowed", told(&service));
}

#[test]
fn a_restart_keeps_grants_and_what_was_revoked_stays_so() {
    let mut service = ruled();
    let admin = owner(&service);
    let (editor, session) = service.session();
    let mut editor = refusing(editor);
    let kept = give(&service, &admin, &["--session", &session, "--run", LINE, "--reason", "it's \"fine\""]);
    let gone = give(&service, &admin, &["--session", &session, "--run", "make"]);
    assert!(may_run(&mut editor, &session, "make"));
    assert!(admin.run(&service, &["grants", "revoke", &gone]).status.success());
    service.kill9();
    service.start_again();
    let grants = listed(&service, &admin);
    assert_eq!(grants.len(), 1, "{grants:?}");
    assert_eq!((&grants[0]["id"], &grants[0]["reason"]), (&kept.as_str().into(), &"it's \"fine\"".into()));
    let mut editor = refusing(service.editor());
    editor.call(
        "session/load",
        &serde_json::json!({ "sessionId": session, "cwd": service.work(), "mcpServers": [] }),
    );
    assert_eq!(outcomes(&mut editor, &session, &asks(&[LINE, "make"])), [true, false]);
    assert!(service.term().success());
    service.start_again();
    assert_eq!(shown(&service, &admin, &kept)["uses"], 1);
}

#[test]
fn a_grant_ends_by_itself() {
    let service = ruled();
    let admin = owner(&service);
    let (editor, session) = service.session();
    let mut editor = refusing(editor);
    give(&service, &admin, &["--session", &session, "--run", LINE, "--for", "4s"]);
    assert!(may_run(&mut editor, &session, LINE));
    assert!(poll_until(Duration::from_secs(30), || !may_run(&mut editor, &session, LINE)));
    assert_eq!(listed(&service, &admin), Vec::<serde_json::Value>::new());
}

#[test]
fn revocation_acts_within_a_running_turn() {
    let service = ruled();
    let admin = owner(&service);
    let (editor, session) = service.session();
    let mut editor = refusing(editor);
    let id = give(&service, &admin, &["--session", &session, "--run", LINE]);
    // One that nobody answers stands between the two.
    editor.answer_with(|request| {
        let call = request["params"]["toolCall"]["rawInput"]["command"].as_str()?;
        let chosen =
            |option| Some(serde_json::json!({ "outcome": { "outcome": "selected", "optionId": option } }));
        if call == "make" { None } else { chosen("no") }
    });
    let turn = editor.prompt_do(&session, &asks(&[LINE, "make", LINE]));
    let between = editor.next_request("session/request_permission");
    assert!(admin.run(&service, &["grants", "revoke", &id]).status.success());
    editor.answer(&between, &serde_json::json!({ "outcome": { "outcome": "selected", "optionId": "no" } }));
    editor.stop_reason(&turn);
    let chunks = editor.chunks(&session);
    let chosen: Vec<_> = chunks.iter().filter(|chunk| chunk.starts_with("answer ")).collect();
    assert!(chosen[0].contains("\"once\""), "{chosen:?}");
    assert!(chosen[2].contains("\"no\""), "{chosen:?}");
}

#[test]
fn what_a_grant_let_pass_ends_with_it() {
    let service = ruled();
    let admin = owner(&service);
    for revoked in [false, true] {
        let (editor, session) = service.session();
        let mut editor = refusing(editor);
        let id = give(&service, &admin, &["--session", &session, "--run", LINE, "--uses", "1"]);
        editor.answer_with(|request| {
            let call = request["params"]["toolCall"]["rawInput"]["command"].as_str();
            let no =
                request["params"]["options"].as_array()?.iter().find(|it| it["kind"] == "reject_once")?;
            let no = serde_json::json!({ "outcome": { "outcome": "selected", "optionId": no["optionId"] } });
            (call != Some("make")).then_some(no)
        });
        let mut steps = asks(&[LINE, "make"]);
        let create = serde_json::json!({ "request": { "method": "terminal/create", "params": {
            "sessionId": "$sid", "command": "truncate", "args": ["-s", "0", "a"], "cwd": service.work(),
        } } });
        steps.as_array_mut().unwrap().extend([create.clone(), create]);
        let turn = editor.prompt_do(&session, &steps);
        let between = editor.next_request("session/request_permission");
        if revoked {
            assert!(admin.run(&service, &["grants", "revoke", &id]).status.success());
        }
        editor
            .answer(&between, &serde_json::json!({ "outcome": { "outcome": "selected", "optionId": "no" } }));
        editor.stop_reason(&turn);
        let chunks = editor.chunks(&session);
        let answers: Vec<_> = chunks.iter().filter(|chunk| chunk.starts_with("answer ")).collect();
        let is_created = |at: usize| answers[at].contains("terminalId");
        assert!(answers[0].contains("\"once\""), "{answers:?}");
        assert_eq!((is_created(2), is_created(3)), (!revoked, false), "{answers:?}");
    }
}

#[test]
fn each_time_in_one_line_is_a_use() {
    let service = ruled();
    let admin = owner(&service);
    let (editor, session) = service.session();
    let mut editor = refusing(editor);
    let id = give(&service, &admin, &["--session", &session, "--run", LINE, "--uses", "3"]);
    let times = |times: usize| [LINE].repeat(times).join("; ");
    assert!(!may_run(&mut editor, &session, &times(4)), "more than there is");
    assert!(may_run(&mut editor, &session, &times(2)));
    assert_eq!(shown(&service, &admin, &id)["uses"], 2);
    assert!(!may_run(&mut editor, &session, &times(2)));
    assert!(may_run(&mut editor, &session, LINE));
    assert!(!may_run(&mut editor, &session, LINE));
    // What is granted together is used together.
    let line = "touch b; make";
    let id = give(&service, &admin, &["--session", &session, "--run", line, "--uses", "2"]);
    assert_eq!(outcomes(&mut editor, &session, &asks(&[line, line, line])), [true, true, false]);
    assert_eq!(shown(&service, &admin, &id)["uses"], 2);
}
