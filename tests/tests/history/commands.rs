//! `conductor sessions`, without a service: the ledger is read.

use conductor::record::{Destination, Origin};
use conductor_tests::{
    program::{Done, conductor, done},
    shipping::Bench,
};
use serde_json::Value;

use crate::fixture::{About, EDITING, NO_TEXT, everything, ledger, run};

/// The same from a ledger that is named, so that nothing is said about it.
fn named(bench: &Bench, args: &[&str]) -> Done {
    let file = format!("sqlite:{}", bench.file().display());
    let url = if bench.settings().url.is_empty() { file } else { bench.database().url() };
    done(&conductor(bench, args).args(["--database-url", &url]).output().unwrap())
}

#[tokio::test]
async fn sessions_are_listed() {
    for bench in Bench::both().await {
        let other = About { user: "bob", title: "Other", ..EDITING };
        let ids = ledger(&bench, &[EDITING, other]).await;
        let listed = run(&bench, &["sessions", "ls"]);
        assert_eq!(listed.code, Some(0), "{listed:?}");
        assert!(listed.stderr.contains("no service answers; reading the ledger"), "{}", listed.stderr);
        let lines: Vec<_> = listed.stdout.lines().collect();
        assert_eq!(
            lines[0].split_whitespace().collect::<Vec<_>>(),
            ["ID", "AGE", "STATE", "USER", "AGENT", "MODEL", "TURNS", "TOOLS", "TITLE"]
        );
        assert!(
            lines[1].starts_with(&ids[1].to_string()) && lines[1].ends_with("Other"),
            "{}",
            listed.stdout
        );
        assert!(lines[2].starts_with(&ids[0].to_string()) && lines[2].ends_with("A faster parser"));

        let only = named(&bench, &["sessions", "--user", "bob"]);
        assert_eq!((only.code, only.stderr.as_str(), only.stdout.lines().count()), (Some(0), "", 2));
        let json = named(&bench, &["sessions", "ls", "--json", "--text", "FASTER", "--limit", "1"]);
        let json: Value = serde_json::from_str(&json.stdout).unwrap();
        assert_eq!(json.as_array().unwrap().len(), 1);
        assert_eq!(json[0]["session_id"], ids[1].to_string());
        assert_eq!(json[0]["first_prompt"], EDITING.prompt);
        let since = named(&bench, &["sessions", "ls", "--json", "--since", "2026-11-16T13:00:00Z"]);
        assert_eq!(serde_json::from_str::<Value>(&since.stdout).unwrap().as_array().unwrap().len(), 1);
        let nothing = named(&bench, &["sessions", "ls", "--path", "nowhere"]);
        assert_eq!((nothing.code, nothing.stdout.as_str()), (Some(0), ""));
        assert!(nothing.stderr.contains("no sessions were found"), "{nothing:?}");
        assert_eq!(named(&bench, &["sessions", "ls", "--since", "whenever"]).code, Some(2));
    }
}

#[tokio::test]
async fn a_session_is_shown() {
    for bench in Bench::both().await {
        let id = ledger(&bench, &[EDITING]).await[0].to_string();
        let shown = named(&bench, &["sessions", "show", "last"]);
        assert_eq!((shown.code, shown.stderr.as_str()), (Some(0), ""));
        let text = &shown.stdout;
        let mut at = 0;
        for part in [
            "A faster parser\n",
            &id,
            "ann",
            "── 2026-11-16T12:00:03Z ──\n> make the parser faster\n",
            "· hmm, yes\n",
            "I **edit** the file.\n\nDone: 100 % of it_self \\u{1b}[2J\n",
            "✓ Edit (edit): Edit the parser, completed in 3.0 s\n",
            "    /w/src/parser.rs (+1 −1)\n",
            "    -slow\n    +fast\n",
            "    1 file changed\n",
            "? permission for Edit the parser: allow (allow_once) by ann after 1.0 s\n",
            "· $ cargo test (exit 3)",
            "· read /etc/shadow (refused: ",
            "── end turn · 17.0 s · 1,000 tokens in, 500 out · 0.2500 USD ──\n",
        ] {
            let found = text[at..]
                .find(part)
                .unwrap_or_else(|| panic!("{part:?} is not where it should be:\n{text}"));
            at += found + part.len();
        }
        assert!(!text.contains('\x1b'), "nothing acts");

        let json = named(&bench, &["sessions", "show", &id, "--json"]);
        let json: Value = serde_json::from_str(&json.stdout).unwrap();
        assert_eq!(json["session"]["session_id"], id.as_str());
        for (table, rows) in [
            ("turns", 1),
            ("messages", 2),
            ("tool_calls", 1),
            ("commands", 1),
            ("usage", 2),
            ("decisions", 1),
        ] {
            assert_eq!(json[table].as_array().unwrap().len(), rows, "{table}");
        }
        assert_eq!(json["tool_calls"][0]["input"]["path"], EDITING.path, "JSON stays JSON");
        assert_eq!(json["decisions"][0]["decided_by"], "editor");
        assert_eq!(json["decisions"][0]["decided_user"], "ann");
    }
}

#[tokio::test]
async fn an_export_has_every_byte() {
    for bench in Bench::both().await {
        let id = ledger(&bench, &[EDITING]).await[0];
        let exported = named(&bench, &["sessions", "export", &id.to_string()]);
        assert_eq!((exported.code, exported.stderr.as_str()), (Some(0), ""));
        let lines: Vec<Value> =
            exported.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let sent = everything(&EDITING, id);
        assert_eq!(lines.len(), sent.len());
        for (at, (line, sent)) in lines.iter().zip(&sent).enumerate() {
            assert_eq!(line["seq"], at + 1);
            assert_eq!(
                (&line["origin"], &line["destination"]),
                (&sent.origin.name().into(), &sent.to.name().into())
            );
            assert_eq!(line["outgoing_id"], Value::from(sent.outgoing));
            // The ids in the notes are new each time.
            if sent.to != Destination::Record && sent.raw != NO_TEXT {
                assert_eq!(line["raw"].as_str().unwrap().as_bytes(), sent.raw);
            }
        }
        let bytes = lines.iter().find(|line| line["raw"].is_null()).unwrap();
        assert_eq!(bytes["origin"], Origin::Agent.name());
        assert_eq!(bytes["raw_base64"], "eyJqc29ucnBjIjoiMi4wIiwibWV0aG9kIjoiYmFk//4ifQ==");

        let document = named(&bench, &["sessions", "export", "last", "--format", "markdown"]);
        assert_eq!(document.code, Some(0));
        for part in [
            "# A faster parser\n",
            "## 2026-11-16T12:00:03Z\n\n> make the parser faster\n",
            "\n```diff\n/w/src/parser.rs (+1 −1)\n",
            "\n+fast\n```\n",
            "I **edit** the file.\n",
        ] {
            assert!(document.stdout.contains(part), "{part:?} is missing:\n{}", document.stdout);
        }
        assert!(!document.stdout.contains('\x1b'));
    }
}

#[tokio::test]
async fn ids_may_be_short_but_not_ambiguous() {
    let bench = Bench::sqlite();
    let ids = ledger(&bench, &[EDITING, EDITING]).await;
    let full = ids[0].to_string();
    assert_eq!(named(&bench, &["sessions", "show", &full[..35]]).code, Some(0));
    // Both were made within the same minutes.
    let ambiguous = named(&bench, &["sessions", "show", &full[..6]]);
    assert_eq!(ambiguous.code, Some(1));
    assert!(
        ambiguous.stderr.contains("several ids begin with") && ambiguous.stderr.contains(&full),
        "{ambiguous:?}"
    );
    let unknown = named(&bench, &["sessions", "show", "00000000"]);
    assert!(
        unknown.code == Some(1) && unknown.stderr.contains("no session's id begins with `00000000`"),
        "{unknown:?}"
    );
    let odd = named(&bench, &["sessions", "export", "no id"]);
    assert!(odd.code == Some(1) && odd.stderr.contains("is no session's id"), "{odd:?}");
    let gone = "00000000-0000-7000-8000-000000000000";
    for args in [["show", gone], ["export", gone]] {
        let nothing = named(&bench, &[&["sessions"][..], &args].concat());
        assert!(
            nothing.code == Some(1) && nothing.stderr.contains(&format!("there is no session {gone}")),
            "{nothing:?}"
        );
    }
    let empty = Bench::sqlite();
    ledger(&empty, &[]).await;
    let none = named(&empty, &["sessions", "show", "last"]);
    assert!(none.code == Some(1) && none.stderr.contains("there are no sessions yet"), "{none:?}");
}

#[tokio::test]
async fn without_service_and_ledger_both_are_named() {
    let bench = Bench::sqlite();
    let nothing = run(&bench, &["sessions", "ls"]);
    assert_eq!(nothing.code, Some(1));
    assert!(
        nothing.stderr.contains("conductor serve") && nothing.stderr.contains("there is no ledger"),
        "{nothing:?}"
    );
    // Whoever names a service wants that one.
    ledger(&bench, &[EDITING]).await;
    let named = run(&bench, &["sessions", "ls", "--endpoint", "127.0.0.1:1"]);
    assert_eq!((named.code, named.stdout.as_str()), (Some(1), ""));
    assert_eq!(run(&bench, &["sessions", "close", "last"]).code, Some(1), "closing needs the service");
}
