//! What users and teams may use: sessions, processes, prompts, tokens and money;
//! told when it is used up, shown by `conductor usage`, kept over restarts.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

use std::time::Duration;

use conductor_tests::{
    editor::Editor,
    harness::{Service, assert_says, poll_until, service},
    people::Person,
};
use serde_json::{Value, json};

/// What editors and programs read when a limit is reached.
const LIMIT: i64 = -31002;

fn ann(service: &Service) -> Person {
    Person::new(service, &["--user", "ann", "--team", "web"])
}

fn bob(service: &Service) -> Person {
    Person::new(service, &["--user", "bob", "--team", "web"])
}

/// Why a prompt is refused.
fn refused(editor: &mut Editor, session: &str) -> Value {
    let id = editor.prompt(session, "hello");
    let error = editor.error_of(&id);
    assert_eq!(error["code"], LIMIT, "{error}");
    error
}

fn not_opened(editor: &mut Editor, service: &Service) -> Value {
    let error = editor.call_error("session/new", &json!({ "cwd": service.work(), "mcpServers": [] }));
    assert_eq!(error["code"], LIMIT, "{error}");
    error
}

/// A step in which an agent tells what the session has cost so far.
fn telling(cost: f64) -> Value {
    let update = json!({ "sessionUpdate": "usage_update", "used": 10, "size": 100,
        "cost": { "amount": cost, "currency": "USD" } });
    json!({ "notify": { "method": "session/update", "params": { "sessionId": "$sid", "update": update } } })
}

/// A turn whose agent reports tokens and what the session has cost so far.
fn report(editor: &mut Editor, session: &str, tokens: u64, cost: f64) {
    let result = json!({ "stopReason": "end_turn", "usage": { "totalTokens": tokens } });
    editor.turn_do(
        session,
        &json!([
            telling(cost),
            { "answer": { "result": result } },
        ]),
    );
}

/// What `conductor usage` tells this person of somebody.
fn usage(service: &Service, person: &Person, kind: &str, name: &str) -> Option<Value> {
    let output = person.run(service, &["usage", "--json"]);
    assert!(output.status.success(), "{output:?}");
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    let all = told["usage"].as_array().unwrap().clone();
    all.into_iter().find(|usage| usage["kind"] == kind && usage["name"] == name)
}

/// Has the service read its configuration again, and waits until it has.
fn reloaded(service: &Service) {
    let times = || service.log().matches("the configuration was reloaded").count();
    let before = times();
    service.reload();
    assert!(poll_until(Duration::from_secs(10), || times() > before), "{}", service.log());
}

#[test]
fn sessions_are_counted_for_the_user_and_the_team() {
    let service = service(&json!({}))
        .set("limits.sessions", 2)
        .set("limits.users.bob.sessions", 5)
        .set("limits.teams.web.sessions", 3)
        .start();
    let (ann, bob) = (ann(&service), bob(&service));
    let mut of_ann = ann.editor(&service);
    let first = of_ann.new_session(&service.work());
    of_ann.new_session(&service.work());
    let told = not_opened(&mut of_ann, &service);
    assert_says(&told, &["user ann has 2 of 2 sessions open", "limits.sessions", "close a session first"]);
    let mut of_bob = bob.editor(&service);
    of_bob.new_session(&service.work());
    let told = not_opened(&mut of_bob, &service);
    assert_says(&told, &["team web has 3 of 3 sessions open", "limits.teams.web.sessions"]);
    // Somebody else is in no team.
    Person::named(&service, "cleo").editor(&service).new_session(&service.work());
    let counted = usage(&service, &ann, "team", "web").unwrap();
    assert_eq!((&counted["sessions"], &counted["limits"]["sessions"]), (&json!(3), &json!(3)));
    of_ann.call("session/close", &json!({ "sessionId": first }));
    // The session ends behind the answer.
    let freed = || usage(&service, &ann, "team", "web").unwrap()["sessions"] == 2;
    assert!(poll_until(Duration::from_secs(10), freed));
    of_bob.new_session(&service.work());
    not_opened(&mut of_ann, &service);
}

#[test]
fn processes_are_counted_over_all_agents() {
    let service = service(&json!({})).agent("other", &json!({})).set("limits.users.ann.processes", 1).start();
    let ann = ann(&service);
    let mut editor = ann.editor(&service);
    let session = editor.new_session(&service.work());
    let mut other = Editor::spawn(&mut ann.command(&service, &["connect", "--agent", "other"]));
    other.initialize();
    let told = not_opened(&mut other, &service);
    assert_says(&told, &["user ann has 1 of 1 processes in use", "limits.users.ann.processes"]);
    assert_eq!(editor.turn(&session, "hello"), ["echo: hello"]);
    editor.call("session/close", &json!({ "sessionId": session }));
    let freed = || usage(&service, &ann, "user", "ann").unwrap()["processes"] == 0;
    assert!(poll_until(Duration::from_secs(10), freed));
    other.new_session(&service.work());
}

#[test]
fn prompts_are_counted_by_the_minute_and_a_reload_counts_for_the_next() {
    let mut service = service(&json!({})).set("limits.prompts_per_minute", 2).start();
    let ann = ann(&service);
    let mut editor = ann.editor(&service);
    let session = editor.new_session(&service.work());
    editor.turn(&session, "one");
    editor.turn(&session, "two");
    let told = refused(&mut editor, &session);
    assert_says(&told, &["user ann has made 2 of 2 prompts in the last minute", "try again in"]);
    // Over the typed API and in a terminal the same words.
    let prompted = ann.run(&service, &["prompt", "--session", &session, "hello"]);
    let words = String::from_utf8_lossy(&prompted.stderr).into_owned();
    assert!(!prompted.status.success() && words.contains("prompts in the last minute"), "{words}");
    // Others do not notice.
    let (mut other, theirs) = service.session();
    other.turn(&theirs, "hello");
    service.configure("limits.prompts_per_minute", 3);
    reloaded(&service);
    assert_eq!(editor.turn(&session, "three"), ["echo: three"]);
    refused(&mut editor, &session);
}

#[test]
fn tokens_and_money_count_by_the_day_and_outlive_the_service() {
    let mut service = service(&json!({}))
        .set("limits.users.ann.tokens_per_day", 1000)
        .set("limits.teams.web.cost_per_day", 2.0)
        .start();
    let (ann, bob) = (ann(&service), bob(&service));
    let mut of_ann = ann.editor(&service);
    let session = of_ann.new_session(&service.work());
    report(&mut of_ann, &session, 600, 0.5);
    report(&mut of_ann, &session, 400, 0.75);
    let told = refused(&mut of_ann, &session);
    assert_says(
        &told,
        &["user ann has used 1000 of 1000 tokens today", "limits.users.ann.tokens_per_day", "00:00 UTC"],
    );
    // What an agent reports is the sum, of which the new part counts.
    let counted = usage(&service, &bob, "team", "web").unwrap();
    assert_eq!(counted["today"], json!({ "prompts": 2, "tokens": 1000, "cost": 0.75 }));
    let mut of_bob = bob.editor(&service);
    let other = of_bob.new_session(&service.work());
    report(&mut of_bob, &other, 1, 1.25);
    let told = refused(&mut of_bob, &other);
    assert_says(&told, &["team web has spent 2.00 of 2.00 today", "limits.teams.web.cost_per_day"]);
    drop((of_ann, of_bob));
    assert!(service.term().success());
    service.start_again();
    let mut again = ann.editor(&service);
    again.call("session/resume", &json!({ "sessionId": session, "cwd": service.work(), "mcpServers": [] }));
    refused(&mut again, &session);
    // What the session has cost before is not paid twice.
    service.configure("limits.users.ann.tokens_per_day", 10_000);
    service.configure("limits.teams.web.cost_per_day", 20.0);
    reloaded(&service);
    report(&mut again, &session, 5, 1.0);
    let counted = usage(&service, &ann, "user", "ann").unwrap();
    assert_eq!(counted["today"], json!({ "prompts": 3, "tokens": 1005, "cost": 1.0 }));
}

#[test]
fn what_an_agent_tells_again_is_not_paid_again() {
    // Its history, before its answer and, as some do, behind it.
    let history = json!([telling(0.25), telling(0.5)]);
    let that_is_all = json!({ "notify": { "method": "session/update",
        "params": { "sessionId": "$sid", "update": { "sessionUpdate": "that_is_all" } } } });
    let service = service(&json!({
        "capabilities": { "loadSession": true },
        "before": { "session/load": history },
        "after": { "session/load": [telling(0.25), telling(0.5), that_is_all] },
    }))
    .start();
    let ann = ann(&service);
    let spent = || usage(&service, &ann, "user", "ann").unwrap()["today"]["cost"].clone();
    let mut editor = ann.editor(&service);
    let session = editor.new_session(&service.work());
    report(&mut editor, &session, 1, 0.5);
    assert_eq!(spent(), 0.5);
    for (round, cost) in [0.75, 1.0].into_iter().enumerate() {
        drop(editor);
        service.wait_no_process("fake");
        editor = ann.editor(&service);
        let load = json!({ "sessionId": session, "cwd": service.work(), "mcpServers": [] });
        let loading = editor.request("session/load", &load);
        let mut is_answered = false;
        // What comes in a turn is news: the prompt waits until all of the history is there.
        editor.wait_for("the end of the history", |line| {
            is_answered |= line.json["id"] == loading && line.method().is_empty();
            (is_answered && line.json["params"]["update"]["sessionUpdate"] == "that_is_all").then_some(())
        });
        report(&mut editor, &session, 1, cost);
        assert_eq!(spent(), cost, "round {round}");
    }
    let loads = service
        .received("fake")
        .iter()
        .filter(|entry| entry.method().as_deref() == Some("session/load"))
        .count();
    assert_eq!(loads, 2, "the agent was asked to load it");
    // One that begins anew in a turn has taken that much more.
    report(&mut editor, &session, 1, 0.25);
    assert_eq!(spent(), 1.25);
}

#[test]
fn what_was_used_is_told_those_whom_it_concerns() {
    let service = service(&json!({})).set("limits.tokens_per_day", 5000).start();
    let (ann, cleo) = (ann(&service), Person::named(&service, "cleo"));
    let auditor = Person::new(&service, &["--user", "audrey", "--role", "auditor"]);
    let mut editor = ann.editor(&service);
    let session = editor.new_session(&service.work());
    report(&mut editor, &session, 1234, 0.5);
    assert!(usage(&service, &cleo, "user", "ann").is_none());
    let own = usage(&service, &cleo, "user", "cleo").expect("who has used nothing is told so");
    assert_eq!((&own["today"]["tokens"], &own["limits"]["tokens_per_day"]), (&json!(0), &json!(5000)));
    assert_eq!(usage(&service, &auditor, "user", "ann").unwrap()["today"]["tokens"], 1234);
    // There is no telling whether there is such a user.
    for name in ["ann", "nobody"] {
        let output = cleo.run(&service, &["usage", "--user", name]);
        let told = String::from_utf8_lossy(&output.stderr).replace(name, "NAME");
        assert!(!output.status.success(), "{output:?}");
        assert_eq!(told, "conductor usage: nothing is known here of what user:NAME has used\n");
    }
    let table = ann.run(&service, &["usage", "--since", "7d"]);
    let table = String::from_utf8_lossy(&table.stdout).into_owned();
    let lines: Vec<_> = table.lines().collect();
    assert!(lines[0].starts_with("WHO ") && lines[0].ends_with("COST SINCE"), "{table}");
    assert!(lines[1].starts_with("ann ") && lines[1].contains("1,234 / 5,000"), "{table}");
    assert!(lines[2].starts_with("team:web "), "{table}");
}

#[test]
fn limits_that_cannot_be_are_refused_with_their_line() {
    let mut service = service(&json!({})).start();
    for (key, value, words) in [
        ("limits.cost_per_day", json!(-1.0), "is no amount of money"),
        ("limits.prompts_per_minute", json!("many"), "prompts_per_minute"),
        ("limits.users.ann.tokens", json!(1), "tokens"),
        ("limits.teams.web.sessions", json!(-1), "sessions"),
    ] {
        service.configure(key, value);
        service.signal(nix::sys::signal::Signal::SIGHUP);
        service.wait_log(words);
        let line = service.log().lines().rfind(|line| line.contains("was not reloaded")).unwrap().to_owned();
        assert!(line.contains("agents.toml:") && line.contains(words), "{line}");
        service.configure("limits", json!({}));
    }
}
