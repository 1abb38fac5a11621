//! Events and the ledger's tables tell the same: every command, decision and file once.

use std::collections::BTreeMap;

use conductor_tests::{
    editor::DEADLINE,
    harness::{Service, poll_until},
};
use serde_json::{Value, json};

use crate::{CANARY, busy, ruled, sql, tail, text};

/// The events of a kind, by the columns that name their row.
fn by_row<'a>(events: &'a [Value], kind: &str, key: &[&str]) -> BTreeMap<Vec<String>, &'a Value> {
    let mut rows = BTreeMap::new();
    for event in events.iter().filter(|event| text(event, "event").starts_with(kind)) {
        let named = |column: &&str| match *column {
            "session_id" => event["session"].to_string(),
            column => event["details"][column].to_string(),
        };
        let before = rows.insert(key.iter().map(named).collect::<Vec<_>>(), event);
        assert!(before.is_none(), "told twice: {event}");
    }
    rows
}

/// Fails unless the rows of a table are told, each once, with these columns.
fn agree(service: &Service, events: &[Value], kind: &str, from: &str, key: &[&str], columns: &[&str]) {
    let told = by_row(events, kind, key);
    let rows = sql(service, &format!("SELECT * FROM {from}"));
    assert!(!rows.is_empty(), "{from} has nothing; the test proves nothing");
    let named = |row: &Value| key.iter().map(|column| row[*column].to_string()).collect::<Vec<_>>();
    let mut keys: Vec<_> = rows.iter().map(named).collect();
    keys.sort();
    assert_eq!(told.keys().cloned().collect::<Vec<_>>(), keys, "{kind} of {from}");
    for row in &rows {
        let event = told[&named(row)];
        for column in columns {
            let here = &event["details"][*column];
            assert_eq!(here, &row[*column], "{kind}: {column} of {event}\n{row}");
        }
        for (field, column) in [("user", "user_name"), ("agent", "agent")] {
            if row.get(column).is_some_and(|value| !value.is_null()) {
                assert_eq!(event[field], row[column], "{kind}: {event}\n{row}");
            }
        }
    }
}

#[test]
fn what_is_told_is_what_the_ledger_has() {
    let service = ruled().start();
    let (mut editor, session) = busy(&service);
    // Its end is told, too.
    editor.close_stdin();
    editor.wait_exit();
    let gone = || !tail(&service, &["--kind", "editor.disconnected"]).is_empty();
    assert!(poll_until(DEADLINE, gone));
    let events = tail(&service, &[]);
    let same = |kind: &str, from: &str, key: &[&str], columns: &[&str]| {
        agree(&service, &events, kind, from, key, columns);
    };
    let named = ["session_id", "seq"];
    same("command.started", "commands", &named, &["line"]);
    same(
        "command.ended",
        "commands WHERE ended_us IS NOT NULL OR error IS NOT NULL",
        &named,
        &["line", "source", "exit_code", "error"],
    );
    same(
        "permission.decided",
        "decisions WHERE decision IS NOT NULL",
        &named,
        &["decision", "rule", "verdict", "decided_by", "policy_revision", "tool", "method", "reason"],
    );
    let item = ["session_id", "seq", "item"];
    let files: Vec<_> = events.iter().filter(|e| text(e, "event") != "file.failed").cloned().collect();
    agree(&service, &files, "file.", "file_accesses", &item, &["path", "access", "source"]);
    same("file.failed", "file_accesses WHERE error IS NOT NULL", &item, &["path", "error"]);
    same("prompt.sent", "turns", &["session_id", "turn"], &["began_us"]);
    same(
        "prompt.ended",
        "turns WHERE ended_us IS NOT NULL",
        &["session_id", "turn"],
        &["stop_reason", "error"],
    );
    same("tool.called", "tool_calls", &["session_id", "call"], &["tool_call_id"]);
    same("tool.ended", "tool_calls WHERE ended_us IS NOT NULL", &["session_id", "call"], &["name", "status"]);
    same("session.opened", "sessions", &["session_id"], &["cwd"]);
    same("process.started", "processes", &["process_id"], &["command", "pid", "sandbox_mode"]);
    same("editor.connected", "connections", &["connection_id"], &[]);
    same(
        "editor.disconnected",
        "connections WHERE closed_us IS NOT NULL",
        &["connection_id"],
        &["close_reason"],
    );

    // They are in the order in which they happened.
    let order = |kind: &str| events.iter().position(|event| event["event"] == kind).unwrap();
    assert!(order("session.opened") < order("prompt.sent"));
    assert!(order("command.started") < order("command.ended"));
    let denied = events.iter().find(|event| event["details"]["rule"] == "no-rm").unwrap();
    assert_eq!(
        (&denied["details"]["decision"], &denied["details"]["verdict"]),
        (&json!("reject"), &json!("deny"))
    );
    assert_eq!(denied["session"], session.as_str());
    let ran =
        events.iter().find(|e| e["event"] == "command.ended" && e["details"]["exit_code"] == 3).unwrap();
    assert_eq!(ran["details"]["line"], "sh -c 'exit 3'");
}

#[test]
fn what_people_and_files_say_is_told_on_demand_only() {
    let service = ruled().start();
    let (_editor, _) = busy(&service);
    for form in [&[][..], &["--ocsf"]] {
        let told = tail(&service, form);
        let words = told.iter().filter(|event| event.to_string().contains(CANARY));
        assert_eq!(words.collect::<Vec<_>>(), Vec::<&Value>::new());
        let with = tail(&service, &[form, &["--include-text"]].concat());
        assert!(with.iter().filter(|event| event.to_string().contains(CANARY)).count() >= 3);
        assert_eq!(with.len(), told.len());
    }
}

#[test]
fn what_is_remembered_and_taken_back_is_told() {
    let service = ruled().start();
    let root = service.work().canonicalize().unwrap().display().to_string();
    let wanted = ["--root", &root, "--run", "ls; truncate -s 0 a", "--for", "1h", "--reason", "release"];
    let given = service.run(&[&["grants", "give", "--yes", "--json"], &wanted[..]].concat());
    assert!(given.status.success(), "{given:?}");
    let given: Value = serde_json::from_slice(&given.stdout).unwrap();
    let id = given["id"].as_str().unwrap();
    assert!(service.run(&["grants", "revoke", id]).status.success());
    let events = tail(&service, &["--kind", "grant"]);
    let kinds: Vec<_> = events.iter().map(|event| text(event, "event")).collect();
    assert_eq!(kinds, ["grant.given", "grant.revoked"]);
    assert!(events.iter().all(|event| event["details"]["grant_id"] == id), "{events:#?}");
    let me = sql(&service, "SELECT author FROM grants")[0]["author"].clone();
    assert!(events.iter().all(|event| event["user"] == me || event["by"] == me), "{events:#?}");
}

#[test]
fn the_same_as_ocsf() {
    let service = ruled().start();
    let (_editor, _) = busy(&service);
    let (ours, theirs) = (tail(&service, &[]), tail(&service, &["--ocsf"]));
    assert_eq!(ours.len(), theirs.len());
    for (ours, theirs) in ours.iter().zip(&theirs) {
        assert_eq!(theirs["metadata"]["uid"], ours["uid"]);
        assert_eq!(theirs["unmapped"]["details"], ours["details"]);
        assert_eq!(theirs["time"].as_i64().unwrap(), ours["at_us"].as_i64().unwrap() / 1000);
        let (class, activity) =
            (theirs["class_uid"].as_u64().unwrap(), theirs["activity_id"].as_u64().unwrap());
        assert_eq!(theirs["type_uid"].as_u64().unwrap(), class * 100 + activity);
        assert_eq!(theirs["category_uid"].as_u64().unwrap(), class / 1000);
        if let Some(user) = ours["user"].as_str() {
            let who = ours["by"].as_str().unwrap_or(user);
            assert_eq!(theirs["actor"]["user"]["name"], who);
        }
    }
    let classes: std::collections::BTreeSet<_> =
        theirs.iter().map(|e| e["class_uid"].as_u64().unwrap()).collect();
    for class in [1001, 1007, 3002, 3003, 6003] {
        assert!(classes.contains(&class), "{class} is not in {classes:?}");
    }
    let denied = theirs.iter().find(|e| e["unmapped"]["details"]["rule"] == "no-rm").unwrap();
    assert_eq!((&denied["class_uid"], &denied["status_id"]), (&json!(3003), &json!(2)));
}
