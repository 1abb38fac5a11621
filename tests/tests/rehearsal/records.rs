//! Records as older and newer versions write them, and those that do not fit: listed, never
//! taken for the same.

use std::{fs, path::Path};

use conductor::record::{Destination, Origin, StreamKind, note, now_us};
use conductor_tests::{
    program::conductor,
    shipping::{Bench, append, open_file, open_session, ship_all, stream},
};
use serde_json::{Value, json};
use sqlx::{Executor as _, migrate::Migrator};

use crate::corpus::told;

/// A verdict as it is noted.
fn judged(seq: u64) -> Value {
    json!({
        "seq": seq, "method": "fs/read_text_file", "decision": "ask", "ruled": "ask", "revision": "r",
        "rule": null, "rules": [], "reason": "no rule", "tookUs": 5,
        "subject": { "user": "ann", "teams": [], "role": "", "agent": "demo", "mode": null, "model": null, "cwd": "/w" },
        "subActions": [{ "tool": { "name": "x" }, "decision": "ask", "rules": [], "reason": "no rule" }],
    })
}

fn with(mut note: Value, name: &str, value: Value) -> Value {
    note[name] = value;
    note
}

fn without(mut note: Value, names: &[&str]) -> Value {
    names.iter().for_each(|name| drop(note.as_object_mut().unwrap().remove(*name)));
    note
}

#[tokio::test]
async fn what_cannot_be_judged_is_listed() {
    for bench in Bench::both().await {
        let journal = bench.journal();
        let session = stream(StreamKind::Session);
        open_session(&journal, session);
        let large = json!([{ "tool": { "name": "x".repeat(300 << 10) }, "decision": "ask", "rules": [], "reason": "" }]);
        let nul = json!([{ "tool": { "name": "a\u{0}b" }, "decision": "ask", "rules": [], "reason": "" }]);
        let newer = json!([{ "teleport": { "to": "x" }, "decision": "ask", "rules": [], "reason": "" }]);
        let narrowed = |seq: u64| {
            let mut subject = judged(0)["subject"].clone();
            subject["narrowing"] = seq.into();
            subject
        };
        let notes = [
            judged(101),
            // Before the facts were kept.
            without(judged(102), &["ruled", "subject"]),
            with(judged(103), "subActions", large),
            with(judged(104), "subActions", nul),
            with(judged(105), "subActions", newer),
            // What narrows the rules was too large, or its frame is another one.
            with(judged(106), "subject", narrowed(0)),
            with(judged(107), "subject", narrowed(1)),
            with(judged(108), "subject", Value::Null),
        ];
        let lines: Vec<Vec<u8>> = notes.iter().map(|params| note(note::JUDGED, params)).collect();
        append(&journal, session, Origin::Conductor, Destination::Record, &lines);
        ship_all(bench.settings(), &journal).await;

        let rules = "[[rule]]\nid = 'r'\neffect = 'deny'\nreason = 'x'\nset_model = ['none']\n";
        let file = bench.state().join("policy.toml");
        fs::write(&file, rules).unwrap();
        let args = ["policy", "replay", file.to_str().unwrap(), "--json"];
        let (code, replay) = told(&conductor(&bench, &args).output().unwrap());
        assert_eq!(code, Some(0), "{replay:#}");
        assert_eq!((&replay["same"], &replay["not_judgeable"]), (&json!(1), &json!(7)), "{replay:#}");
        let reasons = replay["unjudgeable"].as_array().unwrap().iter();
        let reasons: Vec<(&str, i64)> = reasons
            .map(|group| (group["reason"].as_str().unwrap(), group["count"].as_i64().unwrap()))
            .collect();
        assert_eq!(
            reasons,
            [
                ("recorded before the facts were kept", 1),
                ("recorded in a form that this version does not read", 1),
                ("too large or too odd to be kept as it was judged", 3),
                ("what a repository or a user added to the rules is not on record", 2),
            ]
        );
        let unread = &replay["unjudgeable"][1]["examples"][0];
        assert_eq!(unread["seq"], 105);
        assert!(unread["what"].as_str().unwrap().contains("teleport"), "{unread}");

        // The same in words.
        let shown = conductor(&bench, &["policy", "replay", file.to_str().unwrap()]).output().unwrap();
        let shown = String::from_utf8(shown.stdout).unwrap();
        assert!(shown.contains("same 1, looser 0, stricter 0, otherwise 0, not judgeable 7\n"), "{shown}");
        let unsaid = "  1 of the same: who could answer is not on record, and not compared\n";
        assert!(shown.contains(unsaid), "{shown}");
        assert!(shown.contains("  1 not judgeable: recorded before the facts were kept\n"), "{shown}");
    }
}

/// The migrations before there was anything to replay.
async fn older(folder: &str) -> Migrator {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../migrations").join(folder);
    let all = Migrator::new(folder).await.unwrap();
    Migrator::with_migrations(all.iter().filter(|migration| migration.version <= 5).cloned().collect())
}

#[tokio::test]
async fn a_ledger_of_an_older_version_says_what_to_do() {
    let decision = format!(
        "INSERT INTO decisions (session_id, seq, asked_us, verdict, method) VALUES \
         ('01900000-0000-7000-8000-000000000001', 1, {}, 'ask', 'session/request_permission')",
        now_us()
    );
    for bench in Bench::both().await {
        let decision = sqlx::AssertSqlSafe(decision.clone());
        if bench.settings().url.is_empty() {
            fs::write(bench.file(), b"").unwrap();
            let mut file = open_file(&bench.file()).await;
            older("sqlite").await.run_direct(None, &mut file, false).await.unwrap();
            file.execute(decision).await.unwrap();
        } else {
            let mut owner = bench.database().connect().await;
            older("postgres").await.run_direct(None, &mut owner, false).await.unwrap();
            owner.execute(decision).await.unwrap();
        }
        let file = bench.state().join("policy.toml");
        fs::write(&file, "use = ['default']").unwrap();
        let refused = conductor(&bench, &["policy", "replay", file.to_str().unwrap()]).output().unwrap();
        let told = String::from_utf8(refused.stderr).unwrap();
        assert_eq!(refused.status.code(), Some(2), "{told}");
        assert!(told.contains("older version: start `conductor serve` of this one on it"), "{told}");
        assert_eq!(conductor(&bench, &["policy", "stats"]).output().unwrap().status.code(), Some(1));
    }
}
