//! Replay over real sessions: the same rules give the same outcomes, other rules what changes.

use conductor::ledger::Settings;
use conductor_tests::{harness::Service, postgres::Database};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::corpus::{RULES, candidate, fill, ruled, settle, told};

pub fn replay(service: &Service, args: &[&str]) -> (Option<i32>, Value) {
    told(&service.run(&[&["policy", "replay", "--json", "--config", &config(service)], args].concat()))
}

fn config(service: &Service) -> String {
    service.dir.join("agents.toml").to_str().unwrap().to_owned()
}

/// G19, and after that what other rules would have said.
fn rehearses(mut service: Service, settings: &Settings) {
    fill(&service);
    let rows = settle(&mut service, settings);
    assert!(rows > 40, "{rows}");
    let unchanged = candidate(&service, "same.toml", RULES);

    // With the service, and without it.
    for is_running in [true, false] {
        if !is_running {
            service.term();
        }
        let (code, same) = replay(&service, &[&unchanged]);
        let flips = format!("{:#}", same["flips"]);
        assert_eq!(flips, "[]", "the disk of today must not count");
        assert_eq!(same["unjudgeable"], json!([]), "{same:#}");
        assert_eq!((code, &same["same"]), (Some(0), &json!(rows)), "{same:#}");
        assert_eq!([&same["looser"], &same["stricter"], &same["not_judgeable"]], [0, 0, 0]);
        assert_eq!([&same["otherwise"], &same["without_terms"]], [0, 0], "all of them say who may answer");
    }
    looser(&service, rows);
    otherwise(&service);
    stricter(&service);
    narrower(&service);
    shown(&service);
}

/// People always allowed it, and the candidate does.
fn looser(service: &Service, rows: i64) {
    let text = RULES.replace("effect = \"ask\"", "effect = \"allow\"");
    let file = candidate(service, "looser.toml", &text);
    let (code, told) = replay(service, &[&file]);
    assert_eq!(code, Some(1), "{told:#}");
    assert_eq!((&told["looser"], &told["stricter"]), (&json!(2), &json!(0)), "{told:#}");
    assert_eq!(told["same"], rows - 2);
    let flip = &told["flips"][0];
    assert_eq!((&flip["from"], &flip["to"]), (&json!("ask"), &json!("allow")));
    assert_eq!((&flip["rule"], &flip["what"]), (&json!("installs"), &json!("run make install")));
    assert_eq!((&flip["count"], &flip["answers"]), (&json!(2), &json!({ "allowed": 2 })));
    let example = &flip["examples"][0];
    assert_eq!(example["what"], "make install");
    assert!(example["seq"].as_i64().is_some_and(|seq| seq > 0) && example["user"].is_string(), "{example}");
    assert!(example["at"].as_str().unwrap().starts_with("20"), "{example}");
    // Only the latest session, by the beginning of its id.
    let session = example["session"].as_str().unwrap();
    let (_, one) = replay(service, &[&file, "--session", session]);
    assert_eq!(one["looser"], 1, "{one:#}");
    assert_eq!(replay(service, &[&file, "--allow-stricter"]).0, Some(1), "looser is what CI minds");
    let (code, nobody) = replay(service, &[&file, "--user", "nobody"]);
    assert_eq!((code, &nobody["same"]), (Some(0), &json!(0)));
    let (code, later) = replay(service, &[&file, "--until", "2026-01-01"]);
    assert_eq!((code, &later["same"]), (Some(0), &json!(0)));
    let (_, few) = replay(service, &[&file, "--limit", "3"]);
    let sum = ["same", "looser", "stricter", "not_judgeable"].map(|name| few[name].as_i64().unwrap());
    assert_eq!(sum.iter().sum::<i64>(), 3, "{few:#}");
    assert_eq!((&few["limited"], &told["limited"]), (&json!(true), &json!(false)));
    let (_, all) = replay(service, &[&file, "--limit", &rows.to_string()]);
    assert_eq!((&all["limited"], &all["same"]), (&json!(false), &told["same"]));
    let args = ["policy", "replay", &file, "--config", &config(service), "--limit", "3"];
    let shown = String::from_utf8(service.run(&args).stdout).unwrap();
    assert!(shown.ends_with("limited by --limit: there are older requests, which were not looked at\n"));
}

/// It is asked as before, but somebody else may answer.
fn otherwise(service: &Service) {
    let asked = |name: &str, terms: &str| {
        let reason = "reason = \"it changes the machine\"\n";
        candidate(service, name, &RULES.replace(reason, &format!("{reason}ask = {{ {terms} }}\n")))
    };
    let counts = |told: &Value| ["looser", "stricter", "otherwise"].map(|name| told[name].as_i64().unwrap());
    let stricter = asked("not-own.toml", "self = false");
    let (code, told) = replay(service, &[&stricter]);
    assert_eq!((code, counts(&told)), (Some(1), [0, 2, 0]), "{told:#}");
    let flip = &told["flips"][0];
    assert_eq!([&flip["from"], &flip["to"], &flip["way"]], ["ask", "ask", "stricter"]);
    assert_eq!((&flip["rule"], &flip["what"]), (&json!("installs"), &json!("run make install")));
    let terms =
        json!({ "from": "an approver or the driver", "to": "an approver or the driver, not their own" });
    assert_eq!(flip["terms"], terms);
    assert_eq!(replay(service, &[&stricter, "--allow-stricter"]).0, Some(0));
    // Whoever may answer now need not be one of those who could: CI minds.
    let others = asked("others.toml", "approvers = { team = ['leads'] }");
    let (code, told) = replay(service, &[&others, "--allow-stricter"]);
    assert_eq!((code, counts(&told)), (Some(1), [0, 0, 2]), "{told:#}");
    let shown = service.run(&["policy", "replay", &others, "--config", &config(service)]);
    let shown = String::from_utf8(shown.stdout).unwrap();
    assert!(shown.contains("ask   ask otherwise  installs  run make install  2"), "{shown}");
    let line = "    asked of an approver or the driver; now of team leads or the driver\n";
    assert!(shown.contains(line), "{shown}");
}

fn stricter(service: &Service) {
    let deny = "\n[[rule]]\nid = 'no-tests'\neffect = 'deny'\nreason = 'x'\nrun = { program = ['make'], subcommand = ['test'] }\n";
    let file = candidate(service, "stricter.toml", &format!("{RULES}{deny}"));
    let (code, told) = replay(service, &[&file]);
    assert_eq!((code, &told["looser"]), (Some(1), &json!(0)), "{told:#}");
    assert!(told["stricter"].as_i64().unwrap() >= 2, "{told:#}");
    assert!(told["flips"].as_array().unwrap().iter().all(|flip| flip["rule"] == "no-tests"), "{told:#}");
    assert_eq!(replay(service, &[&file, "--allow-stricter"]).0, Some(0));
}

/// What the repository had added still holds there, whatever the candidate says.
fn narrower(service: &Service) {
    let all = "[[rule]]\nid = 'all'\neffect = 'deny'\nreason = 'closed'\nanything = true\n";
    let file = candidate(service, "closed.toml", all);
    let (_, told) = replay(service, &[&file]);
    let (denied, flips) = (told["same"].as_i64().unwrap(), told["flips"].as_array().unwrap().clone());
    assert!(denied >= 5 && flips.iter().all(|flip| flip["to"] == "deny"), "{told:#}");
    let open = "use = ['trusted']\n";
    let file = candidate(service, "open.toml", open);
    let (_, told) = replay(service, &[&file]);
    let is_ls = |flip: &&Value| flip["what"] == "run ls";
    let quiet = told["flips"].as_array().unwrap().iter().find(is_ls);
    assert!(quiet.is_none(), "the repository's rule is no rule of the candidate's: {told:#}");
}

/// For people: a table, no colours in a pipe, and plain words for what cannot be done.
fn shown(service: &Service) {
    let config = config(service);
    let run = |file: &str, more: &[&str]| {
        let output = service.run(&[&["policy", "replay", file, "--config", &config], more].concat());
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let looser = service.dir.join("looser.toml");
    let (code, out, told) = run(looser.to_str().unwrap(), &[]);
    assert_eq!((code, told.as_str()), (Some(1), ""));
    assert!(!out.contains('\u{1b}'), "{out}");
    assert!(out.contains("FROM  TO     RULE      WHAT              COUNT  PEOPLE SAID\n"), "{out}");
    assert!(out.contains("ask   allow  installs  run make install  2      2 allowed\n    20"), "{out}");
    assert!(out.contains("looser 2, stricter 0, otherwise 0, not judgeable 0\n"), "{out}");

    let broken = candidate(service, "broken.toml", "[[rule]]\nid = 'x'\n");
    let (code, out, told) = run(&broken, &[]);
    assert_eq!((code, out.as_str()), (Some(2), ""));
    assert!(told.starts_with("conductor policy: ") && told.contains("broken.toml:1"), "{told}");
    assert_eq!(run("/nowhere/policy.toml", &[]).0, Some(2));
    assert_eq!(run(looser.to_str().unwrap(), &["--session", "last"]).0, Some(2));
    assert_eq!(run(looser.to_str().unwrap(), &["--since", "soon"]).0, Some(2));
    let (code, _, told) = run(looser.to_str().unwrap(), &["--database-url", "sqlite:/nowhere/ledger.sqlite"]);
    assert_eq!(code, Some(2));
    assert!(told.contains("there is no ledger at /nowhere/ledger.sqlite"), "{told}");
}

#[test]
fn g19_the_same_rules_give_the_same_outcomes_in_sqlite() {
    let service = ruled(RULES).start();
    let settings = Settings::embedded(&service.state());
    rehearses(service, &settings);
}

#[test]
fn g19_the_same_rules_give_the_same_outcomes_in_postgres() {
    let runtime = Runtime::new().unwrap();
    let database = runtime.block_on(Database::new());
    let service = ruled(RULES).set("ledger.url", database.url()).start();
    let mut settings = Settings::embedded(&service.state());
    settings.url = database.url().parse().unwrap();
    rehearses(service, &settings);
}
