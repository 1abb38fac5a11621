//! What people were asked, counted by the command and by the views, which agree.

use std::time::Duration;

use conductor::{
    journal::{Batch, Class, Journal},
    ledger::Settings,
    record::{Destination, Origin, Stream, StreamKind, note},
};
use conductor_tests::{
    editor::Editor,
    harness::poll_until,
    program::conductor,
    shipping::{self, Bench, open_session, ship_all, stream},
};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::corpus::{RULES, answer, direct, ruled, runs, told};

/// When all of this happened: 2026-11-16T12:00:00Z.
const NOON_US: i64 = 1_794_830_400_000_000;

const SECOND_US: i64 = 1_000_000;

fn write(journal: &Journal, session: Stream, after_s: i64, way: (Origin, Destination), line: &[u8]) {
    let seq = journal.next_seq(session.id);
    let outgoing: &[(u32, u64)] = if way.0 == Origin::Agent { &[(0, seq)] } else { &[] };
    let mut batch = Batch::new();
    let at_us = NOON_US + after_s * SECOND_US;
    batch.push(session, seq, at_us, way.0, way.1, outgoing, [line].into_iter());
    journal.append(batch, Class::Stream).map_err(|refused| refused.why).unwrap();
}

/// Who answers a request, and what they choose.
#[derive(Clone, Copy)]
enum Said {
    Person(&'static str),
    Conductor(&'static str),
    Nothing,
}

/// A request that a rule has judged so, and the answer after so many seconds.
fn ask(journal: &Journal, session: Stream, rule: Option<&str>, decision: &str, waited: i64, said: Said) {
    let id = journal.next_seq(session.id);
    let request = json!({ "jsonrpc": "2.0", "id": id, "method": "session/request_permission", "params": {
        "sessionId": "s-1", "toolCall": { "toolCallId": format!("c{id}"), "title": "t", "kind": "execute" },
        "options": [{ "optionId": "yes", "kind": "allow_once" }, { "optionId": "no", "kind": "reject_once" }],
    } });
    let to_editor = (Origin::Agent, Destination::Editor);
    write(journal, session, 0, to_editor, request.to_string().as_bytes());
    let verdict = json!({
        "seq": id, "method": "session/request_permission", "decision": decision, "ruled": decision,
        "revision": "r", "rule": rule, "rules": [], "reason": format!("because of {rule:?}"), "tookUs": 5,
        "subActions": [
            { "tool": { "name": rule.unwrap_or("thing") }, "decision": decision, "rules": [], "reason": "" },
        ],
        "subject": {
            "user": "ann", "teams": [], "role": "", "agent": "demo", "mode": null, "model": null, "cwd": "/w",
        },
    });
    let to_record = (Origin::Conductor, Destination::Record);
    write(journal, session, 0, to_record, &note(note::JUDGED, &verdict));
    let (from, chosen) = match said {
        Said::Person(chosen) => (Origin::Editor, chosen),
        Said::Conductor(chosen) => (Origin::Conductor, chosen),
        Said::Nothing => return,
    };
    let result = json!({ "outcome": { "outcome": "selected", "optionId": chosen } });
    let line = json!({ "jsonrpc": "2.0", "id": id, "result": result }).to_string();
    write(journal, session, waited, (from, Destination::Agent), line.as_bytes());
}

#[tokio::test]
async fn waits_and_answers_are_those_that_were() {
    for bench in Bench::both().await {
        let journal = bench.journal();
        let session = stream(StreamKind::Session);
        open_session(&journal, session);
        for waited in (1..=20).rev() {
            ask(&journal, session, Some("slow"), "ask", waited, Said::Person("yes"));
        }
        ask(&journal, session, Some("mixed"), "ask", 4, Said::Person("yes"));
        ask(&journal, session, Some("mixed"), "ask", 6, Said::Person("no"));
        ask(&journal, session, Some("mixed"), "ask", 300, Said::Conductor("no"));
        ask(&journal, session, None, "ask", 0, Said::Nothing);
        ask(&journal, session, Some("never"), "deny", 0, Said::Conductor("no"));
        ask(&journal, session, Some("never"), "deny", 0, Said::Conductor("no"));
        ask(&journal, session, Some("fine"), "allow", 0, Said::Conductor("yes"));
        ship_all(bench.settings(), &journal).await;

        let since = ["--since", "2026-11-01", "--json"];
        let (code, stats) =
            told(&conductor(&bench, &[&["policy", "stats"], &since[..]].concat()).output().unwrap());
        assert_eq!(code, Some(0));
        let groups = stats["groups"].as_array().unwrap();
        let rules: Vec<&Value> = groups.iter().map(|group| &group["rule"]).collect();
        assert_eq!(rules, ["slow", "mixed", "(no rule)"], "{stats:#}");
        let slow = &groups[0];
        assert_eq!((&slow["asked"], &slow["answers"]), (&json!(20), &json!({ "allowed": 20 })));
        let waits = |group: &Value| ["p50_ms", "p95_ms", "max_ms"].map(|name| group[name].as_f64());
        assert_eq!(waits(slow), [Some(10_000.0), Some(19_000.0), Some(20_000.0)]);
        assert_eq!((&slow["answered_by"], &slow["always_allowed"]), (&json!({ "ann": 20 }), &json!(true)));
        let mixed = &groups[1];
        assert_eq!(mixed["answers"], json!({ "allowed": 1, "rejected": 1, "timed_out": 1 }));
        assert_eq!((&mixed["answered_by"], &mixed["always_allowed"]), (&json!({ "ann": 2 }), &json!(false)));
        assert_eq!((&groups[2]["answers"], waits(&groups[2])), (&json!({ "open": 1 }), [None; 3]));
        assert_eq!(stats["all"]["asked"], 24);
        let (_, none) =
            told(&conductor(&bench, &["policy", "stats", "--since", "1ms", "--json"]).output().unwrap());
        assert_eq!(none["groups"], json!([]));

        // The views say the same.
        let sql = |sql: &str| {
            let output = conductor(&bench, &["ledger", "sql", "--json", sql]).output().unwrap();
            let text = String::from_utf8(output.stdout).unwrap();
            let rows: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            rows
        };
        let waiting = sql("SELECT * FROM waiting_times ORDER BY times DESC, rule");
        assert_eq!(waiting[0]["rule"], "slow");
        assert_eq!((&waiting[0]["day"], &waiting[0]["times"]), (&json!("2026-11-16"), &json!(20)));
        assert_eq!(waits(&waiting[0]), [Some(10_000.0), Some(19_000.0), Some(20_000.0)]);
        assert_eq!((&waiting[0]["answered"], &waiting[0]["timed_out"]), (&json!(20), &json!(0)));
        assert_eq!((&waiting[1]["answered"], &waiting[1]["timed_out"]), (&json!(2), &json!(1)));
        assert_eq!(waits(&waiting[1]), [Some(6000.0), Some(300_000.0), Some(300_000.0)]);
        assert_eq!((&waiting[2]["rule"], waits(&waiting[2])), (&Value::Null, [None; 3]));
        assert_eq!(waiting.len(), 3);
        let asked = sql("SELECT * FROM asked_by_rule ORDER BY times DESC, rule");
        assert_eq!(
            (&asked[0]["rule"], &asked[0]["times"], &asked[0]["allowed"]),
            (&json!("slow"), &json!(20), &json!(20))
        );
        assert_eq!(asked[0]["example_session"], session.id.to_string());
        assert!(
            asked[0]["example"].as_str().unwrap().contains("slow") && asked[0]["last_at"].is_string(),
            "{asked:?}"
        );
        assert_eq!((&asked[1]["allowed"], asked.len()), (&json!(1), 3));
        let denied = sql("SELECT * FROM denied_by_rule");
        assert_eq!(
            (&denied[0]["rule"], &denied[0]["times"], &denied[0]["users"]),
            (&json!("never"), &json!(2), &json!(1))
        );
        assert_eq!(denied.len(), 1);
        assert!(denied[0]["example_seq"].as_i64().is_some(), "{denied:?}");
    }
}

/// Waits for the question about a command; those before it were answered by themselves.
fn asked_about(editor: &mut Editor, command: &str) {
    while editor.next_request("session/request_permission")["params"]["toolCall"]["rawInput"]["command"]
        != command
    {}
}

/// What a real session leaves: allowed, rejected, cancelled, and left alone.
#[test]
fn questions_of_real_sessions_are_counted_by_what_they_are_about() {
    let service = ruled(RULES).set("policy.ask_timeout", "300ms").start();
    let mut editor = service.editor();
    editor.answer_with(answer);
    let session = editor.new_session(&service.work());
    let install = || runs("make install");
    editor.turn_do(&session, &json!([install(), install(), install(), runs("make clean"), runs("ls")]));
    editor.answer_with(|_| None);
    let turn = editor.prompt_do(&session, &json!([runs("make world")]));
    asked_about(&mut editor, "make world");
    editor.cancel(&session);
    assert_eq!(editor.stop_reason(&turn), "cancelled");
    editor.prompt_do(&session, &json!([runs("make universe")]));
    asked_about(&mut editor, "make universe");
    drop(editor);
    let settings = Settings::embedded(&service.state());
    let runtime = Runtime::new().unwrap();
    let asked = "SELECT count(*) FROM decisions WHERE verdict = 'ask' AND decision IS NOT NULL";
    let is_there =
        poll_until(Duration::from_secs(20), || runtime.block_on(shipping::number(&settings, asked)) == 6);
    assert!(is_there, "{}", runtime.block_on(shipping::number(&settings, asked)));

    let config = service.dir.join("agents.toml").to_str().unwrap().to_owned();
    let stats = |more: &[&str]| service.run(&[&["policy", "stats", "--config", &config], more].concat());
    let (_, told) = told(&stats(&["--by", "command", "--json"]));
    let found = |what: &str| {
        let groups = told["groups"].as_array().unwrap();
        groups
            .iter()
            .find(|group| group["command"] == what)
            .unwrap_or_else(|| panic!("{what}: {told:#}"))
            .clone()
    };
    assert_eq!(found("run make install")["answers"], json!({ "allowed": 3 }));
    assert_eq!(found("run make clean")["answers"], json!({ "rejected": 1 }));
    assert_eq!(found("run make world")["answers"], json!({ "cancelled": 1 }));
    assert_eq!(found("run make universe")["answers"], json!({ "timed_out": 1 }));
    let shown = String::from_utf8(stats(&["--by", "command"]).stdout).unwrap();
    assert!(shown.contains("hint: all 3 questions about `run make install` were allowed; if rule `installs` allowed them, 3 would be spared\n"), "{shown}");
    assert!(!shown.contains("`run make clean` were allowed") && !shown.contains('\u{1b}'), "{shown}");
    let by_rule = String::from_utf8(stats(&[]).stdout).unwrap();
    assert!(
        by_rule.contains("RULE") && by_rule.lines().any(|line| line.starts_with("installs  ")),
        "{by_rule}"
    );
    assert!(by_rule.contains("hint: all 3 questions of rule `installs` were allowed;"), "{by_rule}");
    for by in ["user", "agent"] {
        assert!(stats(&["--by", by]).status.success());
    }
    assert_eq!(stats(&["--by", "moon"]).status.code(), Some(2));
}

/// What the conductor asks by itself, about files and commands for which the agent has asked
/// no permission, has no answer of an editor on record if nobody gives one.
#[test]
fn questions_of_the_conductors_own_time_out_as_well() {
    let moon = "\n[[rule]]\nid = 'moon'\neffect = 'ask'\nreason = 'far'\n\
        run = { program = ['make'], subcommand = ['moon'] }\n\
        ask = { approvers = { user = ['lea'] }, driver = false, timeout = '1s' }\n\
        [[rule]]\nid = 'notes'\neffect = 'ask'\nreason = 'mine'\nwrite = { path = ['**/notes.txt'] }\n";
    let service = ruled(&format!("{RULES}{moon}")).set("policy.ask_timeout", "300ms").start();
    let mut editor = service.editor();
    editor.decides();
    let session = editor.new_session(&service.work());
    let makes = |what: &str| direct("terminal/create", json!({ "command": "make", "args": [what] }));
    // One that the editor is not shown; then those that it is, and leaves to nobody.
    editor.turn_do(&session, &json!([makes("moon")]));
    let file = service.work().join("notes.txt");
    let writes = direct("fs/write_text_file", json!({ "path": file, "content": "x" }));
    editor.prompt_do(&session, &json!([writes, makes("install")]));
    editor.next_request("session/request_permission");
    drop(editor);

    let config = service.dir.join("agents.toml").to_str().unwrap().to_owned();
    let stats = || told(&service.run(&["policy", "stats", "--config", &config, "--json"])).1;
    let wanted = json!({ "timed_out": 3 });
    assert!(poll_until(Duration::from_secs(20), || stats()["all"]["answers"] == wanted), "{:#}", stats());
    let stats = stats();
    for group in stats["groups"].as_array().unwrap() {
        assert!(group["p50_ms"].as_f64().is_some_and(|waited| waited >= 250.0), "{group:#}");
        assert_eq!(group["answered_by"], json!({}), "{group:#}");
    }
    let settings = Settings::embedded(&service.state());
    let counted = "SELECT sum(timed_out) FROM waiting_times";
    assert_eq!(Runtime::new().unwrap().block_on(shipping::number(&settings, counted)), 3);
    assert!(!file.exists());
}
