//! Files that are read again, because somebody says so or because they changed.

use std::{
    collections::BTreeMap,
    fs::{self, OpenOptions},
    io::Write as _,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
};

use conductor_tests::{
    admin::{metric, wait_metric, watched},
    certificates::{Authority, Certificate},
    disk,
    editor::DEADLINE,
    harness::{assert_says, poll_until, service},
};
use nix::{
    sys::{
        signal::{Signal, kill},
        stat::Mode,
    },
    unistd::{Pid, mkfifo},
};
use serde_json::{Value, json};

fn deny(id: &str) -> String {
    format!("[[rule]]\nid = '{id}'\neffect = 'deny'\nreason = 'rule {id}'\nrun = {{ program = ['ls'] }}\n")
}

/// An agent's question whether it may list files.
fn question() -> Value {
    json!({ "request": { "method": "session/request_permission", "params": {
        "sessionId": "$sid",
        "toolCall": {
            "toolCallId": "call-1", "title": "List", "kind": "execute", "rawInput": { "command": "ls" },
            "_meta": { "claudeCode": { "toolName": "Bash" } },
        },
        "options": [
            { "optionId": "yes", "name": "Yes", "kind": "allow_once" },
            { "optionId": "no", "name": "No", "kind": "reject_once" },
        ],
    } } })
}

/// What the agent was told of its one question: the option, and the rule.
fn outcome(chunks: &[String]) -> (String, String) {
    let answer = chunks.iter().find_map(|chunk| chunk.strip_prefix("answer ")).expect("an answer");
    let answer: Value = serde_json::from_str(answer).unwrap();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let result = &answer["result"];
    (text(&result["outcome"]["optionId"]), text(&result["_meta"]["conductor"]["rule"]))
}

#[test]
fn roots_that_are_not_there_are_told_of_at_the_start_and_when_they_are_named() {
    let mut service = service(&json!({})).set("agents.fake.roots", json!(["/nowhere/at-start"])).start();
    service.wait_log("/nowhere/at-start");
    let log = service.log();
    assert!(log.contains("agents.fake.roots") && log.contains("this root is no directory"), "{log}");
    service.configure("roots", json!(["/nowhere/later"]));
    service.wait_log("/nowhere/later");
}

#[test]
fn f02_f07_a_policy_file_that_changes_counts_from_the_next_decision_on() {
    let service = watched(service(&json!({})).rules(&deny("first"))).start();
    let (mut editor, session) = service.session();
    let steps = json!([question()]);
    assert_eq!(outcome(&editor.turn_do(&session, &steps)), ("no".into(), "first".into()));
    // Nobody sends a signal. A file that cannot be used changes nothing.
    let file = service.dir.join("policy.toml");
    fs::write(&file, "[broken").unwrap();
    wait_metric(&service, r#"conductor_reloads_total{outcome="policy_refused"}"#, |count| count == 1.0);
    assert_eq!(outcome(&editor.turn_do(&session, &steps)).1, "first");
    fs::write(&file, deny("second")).unwrap();
    wait_metric(&service, r#"conductor_reloads_total{outcome="policy"}"#, |count| count >= 1.0);
    let changed = poll_until(DEADLINE, || outcome(&editor.turn_do(&session, &steps)).1 == "second");
    assert!(changed, "{}", service.log());
    // The same bad file is not complained about again and again.
    assert_eq!(metric(&service, r#"conductor_reloads_total{outcome="policy_refused"}"#), 1.0);
}

#[test]
fn f02_a_configuration_that_changes_is_read_and_a_bad_one_is_named() {
    let mut service = service(&json!({})).start();
    service.configure("agents.fake.title", "Renamed");
    let renamed = poll_until(DEADLINE, || service.agent_json("fake")["title"] == "Renamed");
    assert!(renamed, "{}", service.log());
    let file = service.dir.join("agents.toml");
    fs::write(&file, "[service]\nlisten = 7\n").unwrap();
    service.wait_log("the configuration was not reloaded; the old one stays in force");
    assert!(service.log().contains("agents.toml:2:10"), "{}", service.log());
    assert_eq!(service.agent_json("fake")["title"], "Renamed");
    let (mut editor, session) = service.session();
    editor.turn(&session, "still served");
}

#[test]
fn f02_what_a_reload_cannot_change_is_named() {
    let mut service = service(&json!({})).start();
    service.configure("journal.keep", "3d");
    service.configure("ledger.checkpoint_every", "2m");
    service.configure("service.max_connections", 7);
    service.configure("agents.fake.title", "Renamed");
    service.reload();
    let renamed = poll_until(DEADLINE, || service.agent_json("fake")["title"] == "Renamed");
    assert!(renamed, "{}", service.log());
    service.wait_log("service.max_connections, journal.keep, ledger.checkpoint_every");
    assert!(service.log().contains("takes effect at the next start"), "{}", service.log());
}

#[test]
fn f05_a_rule_that_is_never_reached_is_in_the_log_when_the_file_is_read() {
    let never = |id: &str| {
        format!("{}\n{}", deny(id), deny(&format!("{id}-again")).replace("effect = 'deny'", "effect = 'ask'"))
    };
    let service = service(&json!({})).rules(&never("first")).start();
    service.wait_log("it is never reached: rule `first` denies wherever it matches");
    fs::write(service.dir.join("policy.toml"), never("second")).unwrap();
    service.reload();
    service.wait_log("it is never reached: rule `second` denies wherever it matches");
}

#[test]
fn f03_each_decision_is_made_by_one_revision_however_often_it_changes() {
    let mut service = service(&json!({})).rules(&deny("a")).start();
    let (mut editor, session) = service.session();
    let (file, pid) = (service.dir.join("policy.toml"), Pid::from_raw(service.pid().cast_signed()));
    let done = AtomicBool::new(false);
    let questions = json!([{ "repeat": [100, [question()]] }]);
    thread::scope(|scope| {
        scope.spawn(|| {
            for id in ["b", "a"].into_iter().cycle().take_while(|_| !done.load(Relaxed)) {
                let draft = file.with_extension("new");
                fs::write(&draft, deny(id)).unwrap();
                fs::rename(&draft, &file).unwrap();
                kill(pid, Signal::SIGHUP).unwrap();
                thread::yield_now();
            }
        });
        // As often as it takes to meet both, and a few times more.
        let mut seen = std::collections::BTreeSet::new();
        let both = poll_until(DEADLINE, || {
            let chunks = editor.turn_do(&session, &questions);
            let answers = chunks.iter().filter_map(|chunk| chunk.strip_prefix("answer "));
            seen.extend(answers.map(|answer| outcome(&[format!("answer {answer}")]).1));
            seen.len() >= 2
        });
        done.store(true, Relaxed);
        assert!(both, "only {seen:?}");
    });
    drop(editor);
    service.term();
    // A revision stands for one set of rules, in every note.
    let lines = disk::journal(&service).into_iter().flat_map(|record| {
        record.lines().filter_map(|line| serde_json::from_slice(line).ok()).collect::<Vec<Value>>()
    });
    let mut rules: BTreeMap<String, Value> = BTreeMap::new();
    for note in lines.filter(|line| line["method"] == "_conductor/judged") {
        let params = &note["params"];
        let revision = params["revision"].as_str().unwrap().to_owned();
        let rule = rules.entry(revision).or_insert_with(|| params["rule"].clone());
        assert_eq!(*rule, params["rule"], "{params}");
    }
    assert_eq!(rules.len(), 2, "{rules:?}");
}

#[test]
fn what_is_written_while_the_service_starts_counts_too() {
    let builder = service(&json!({}));
    let pair = Authority::new(builder.dir(), "ca").sign("server", &Certificate::server());
    let (file, cert) = (builder.dir().join("agents.toml"), pair.cert.clone());
    // The certificate is read after the configuration, and the service waits for it here.
    let held = cert.with_extension("held");
    fs::rename(&cert, &held).unwrap();
    mkfifo(&cert, Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
    let giving = thread::spawn(move || {
        let mut pipe = OpenOptions::new().write(true).open(&cert).unwrap();
        let text = fs::read(&held).unwrap();
        fs::rename(&held, &cert).unwrap();
        let mut config = OpenOptions::new().append(true).open(&file).unwrap();
        config.write_all(b"\n[limits]\nsessions = 1\n").unwrap();
        pipe.write_all(&text).unwrap();
    });
    let service = builder.set("service.tls", pair.tls()).start();
    giving.join().unwrap();
    service.wait_log("the configuration was reloaded");
    let (mut editor, _session) = service.session();
    let refused = editor.call_error("session/new", &json!({ "cwd": service.work(), "mcpServers": [] }));
    assert_says(&refused, &["1 of 1 sessions"]);
}
