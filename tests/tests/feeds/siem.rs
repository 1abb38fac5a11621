//! `[feed]`: events go where the operator says, each at least once, whoever is down meanwhile.

use std::{
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
};

use conductor_tests::{
    admin::{metric, wait_metric},
    editor::DEADLINE,
    harness::{Builder, Service, poll_until},
};
use serde_json::{Value, json};

use crate::{
    CANARY, busy, lines,
    listener::Hook,
    places::{flood, forgetful},
    ruled, tail, uids,
};

fn feeding(builder: Builder, to: &str) -> Builder {
    builder.set("feed", json!({ "to": to, "interval": "20ms", "format": "conductor" }))
}

/// Waits until all that is told to those who follow has arrived, each once and in order.
fn wait_all(service: &Service, arrived: impl Fn() -> Vec<Value>) {
    let all = uids(&tail(service, &[]));
    let come = || uids(&arrived()).len() >= all.len();
    assert!(poll_until(DEADLINE * 6, come), "{:#?}\nof {all:#?}\n{}", uids(&arrived()), service.log());
    assert_eq!(uids(&arrived())[..all.len()], all);
}

#[test]
fn an_address_that_is_down_for_a_while_misses_nothing() {
    let mut hook = Hook::new();
    let builder = ruled();
    let headers = builder.dir().join("headers");
    fs::write(&headers, "Authorization: Splunk canary-token\nX-Team: audit\n").unwrap();
    fs::set_permissions(&headers, fs::Permissions::from_mode(0o600)).unwrap();
    let mut service = feeding(builder, &hook.url()).set("feed.headers_file", json!(headers)).start();
    let (first, _) = busy(&service);
    wait_all(&service, || hook.events());
    let head = hook.heads()[0].to_ascii_lowercase();
    assert!(head.starts_with("post /in/canary-address http/1.1\r\n"), "{head}");
    assert!(head.contains("authorization: splunk canary-token\r\n") && head.contains("x-team: audit\r\n"));
    assert!(head.contains("content-type: application/x-ndjson\r\n"), "{head}");

    // Nobody there, over a restart; then somebody who says no.
    hook.down();
    let failures = || metric(&service, "conductor_feed_failures_total");
    let (second, _) = busy(&service);
    assert!(poll_until(DEADLINE, || failures() >= 1.0));
    assert_eq!(metric(&service, "conductor_feed_failing"), 1.0);
    drop((first, second));
    service.term();
    service.start_again();
    let (_third, _) = busy(&service);
    hook.refuse(true);
    hook.up();
    service.wait_log("it answers 503");
    hook.refuse(false);
    wait_all(&service, || hook.events());
    wait_metric(&service, "conductor_feed_failing", |failing| failing == 0.0);
    assert!(metric(&service, "conductor_feed_events_total") > 20.0);
    assert_eq!(metric(&service, r#"conductor_best_effort_total{branch="feed_lost"}"#), 0.0);
    let log = service.log();
    for secret in ["canary-address", "canary-token", CANARY] {
        assert!(!log.contains(secret), "{secret} is in the log");
    }
    let events = hook.events();
    assert!(!events.iter().any(|event| event.to_string().contains(CANARY)));
}

#[test]
fn what_comes_again_after_a_kill_has_the_same_name() {
    let hook = Hook::new();
    let mut service = feeding(ruled(), &hook.url()).start();
    for _ in 0..2 {
        let (editor, _) = busy(&service);
        service.kill9();
        drop(editor);
        service.start_again();
    }
    let all = tail(&service, &[]);
    let has_all = || {
        let come = uids(&hook.events());
        uids(&all).iter().all(|uid| come.contains(uid))
    };
    assert!(poll_until(DEADLINE * 6, has_all), "{:#?}", hook.events());
    // What came twice is the same twice.
    for event in hook.events() {
        let told = all.iter().find(|told| told["uid"] == event["uid"]);
        if let Some(told) = told {
            assert_eq!(told, &event);
        }
    }
}

#[test]
fn whoever_takes_little_at_once_gets_little() {
    let hook = Hook::new();
    hook.take_at_most(3);
    let service = feeding(ruled(), &hook.url()).start();
    let (_editor, _) = busy(&service);
    wait_all(&service, || hook.events());
}

#[test]
fn whoever_took_little_for_a_while_gets_more_again() {
    let hook = Hook::new();
    hook.take_at_most(1);
    let service = feeding(ruled(), &hook.url()).start();
    let (_first, _) = busy(&service);
    wait_all(&service, || hook.events());
    assert!(hook.sizes().iter().all(|size| *size == 1), "{:?}", hook.sizes());
    hook.take_at_most(usize::MAX);
    hook.refuse(true);
    let (_second, _) = busy(&service);
    hook.refuse(false);
    wait_all(&service, || hook.events());
    assert!(hook.sizes().iter().any(|size| *size >= 4), "{:?}", hook.sizes());
}

#[test]
fn a_file_is_private_and_may_be_moved_away() {
    let builder = ruled();
    let (file, moved) = (builder.dir().join("events.jsonl"), builder.dir().join("events.jsonl.1"));
    let mut service = feeding(builder, &format!("file:{}", file.display())).start();
    let (first, _) = busy(&service);
    let all = || {
        let text = [&moved, &file].map(|path| fs::read(path).unwrap_or_default()).concat();
        lines(&text)
    };
    wait_all(&service, all);
    assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o600);
    fs::rename(&file, &moved).unwrap();
    let (second, _) = busy(&service);
    wait_all(&service, all);
    assert!(fs::metadata(&file).unwrap().len() > 0);
    // Half a line, as a killed service may leave it, is told again and not told half.
    drop((first, second));
    service.term();
    let whole = fs::read(&file).unwrap();
    let last = whole[..whole.len() - 1].iter().rposition(|byte| *byte == b'\n').unwrap() + 1;
    fs::write(&file, [&whole[..], &whole[last..last + 40]].concat()).unwrap();
    service.start_again();
    let (_third, _) = busy(&service);
    wait_all(&service, all);
}

#[test]
fn stdout_has_events_and_nothing_else() {
    let service = feeding(ruled(), "stdout").set("feed.format", "ocsf").start();
    let (_editor, _) = busy(&service);
    let printed = || lines(&fs::read(service.dir.join("serve.out")).unwrap());
    let all = tail(&service, &["--ocsf"]);
    assert!(poll_until(DEADLINE, || printed().len() >= all.len()));
    assert_eq!(printed()[..all.len()], all);
    assert!(service.log().contains("is ready"), "the banner went aside");
}

#[test]
fn what_was_freed_before_it_was_told_is_said_to_be_lost() {
    let mut hook = Hook::new();
    let service = feeding(forgetful(ruled()), &hook.url()).start();
    let (mut editor, session) = busy(&service);
    wait_all(&service, || hook.events());
    hook.down();
    let before = hook.events().len();
    flood(&mut editor, &session);
    // It may go while it is told, which is an error of its own.
    let first_line = || {
        let told = service.run(&["ledger", "tail", "--json"]);
        told.status.success().then(|| lines(&told.stdout).first().cloned()).flatten()
    };
    let first = first_line();
    let freed = || {
        editor.turn_do(&session, &json!([{ "update": { "n": 40, "size": 100_000 } }]));
        first_line() != first
    };
    assert!(poll_until(DEADLINE * 2, freed), "nothing was freed");
    assert!(metric(&service, "conductor_feed_failing") > 0.0, "it holds up nobody");
    hook.up();
    let gap = || hook.events()[before..].iter().find(|event| event["event"] == "feed.gap").cloned();
    assert!(poll_until(DEADLINE * 2, || gap().is_some()), "{}", service.log());
    assert!(gap().unwrap()["details"]["reason"].as_str().unwrap().contains("journal.keep"));
    wait_metric(&service, r#"conductor_best_effort_total{branch="feed_lost"}"#, |lost| lost >= 1.0);
    // It goes on with what there is.
    editor.turn(&session, "hello");
    let is_told = || {
        let told = service.run(&["ledger", "tail", "--json"]);
        let last = lines(&told.stdout).last().map(|event| event["uid"].clone());
        told.status.success() && hook.events().iter().any(|event| Some(&event["uid"]) == last.as_ref())
    };
    assert!(poll_until(DEADLINE, is_told));
}

#[test]
fn a_reload_sends_events_elsewhere() {
    let hook = Hook::new();
    let mut service = ruled().start();
    let (_first, _) = busy(&service);
    assert!(!service.state().join("feed-cursor").exists(), "nothing is told unasked");
    service.configure("feed", json!({ "to": hook.url(), "interval": "20ms", "format": "conductor" }));
    service.reload();
    wait_all(&service, || hook.events());
    let file = service.dir.join("events.jsonl");
    service.configure(
        "feed",
        json!({ "to": format!("file:{}", file.display()), "interval": "20ms", "format": "conductor" }),
    );
    service.reload();
    service.wait_log("events.jsonl");
    let before = hook.events().len();
    let (_second, _) = busy(&service);
    wait_all(&service, || [hook.events(), lines(&fs::read(&file).unwrap_or_default())].concat());
    assert_eq!(hook.events().len(), before, "the address is told nothing more");
    // What is nowhere is refused, and changes nothing.
    service.configure("feed", json!({ "to": "ftp://canary-address/" }));
    service.reload();
    service.wait_log("nowhere that events could go");
    assert!(!service.log().contains("ftp://canary-address"));
}
