//! `conductor ledger`: SQL for people, against both databases.

use std::{io::Write as _, process::Stdio};

use conductor_tests::{
    program::{conductor, done},
    shipping::Bench,
};
use serde_json::Value;

use crate::fixture::{EDITING, ledger, run};

fn rows(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[tokio::test]
async fn questions_are_answered_as_table_json_and_csv() {
    for bench in Bench::both().await {
        let id = ledger(&bench, &[EDITING]).await[0].to_string();
        let sql = "SELECT user_name, title, turns, is_open, end_reason, 1.5 AS half, opened_at FROM sessions";
        let table = run(&bench, &["ledger", "sql", sql]);
        assert_eq!((table.code, table.stderr.as_str()), (Some(0), ""));
        let lines: Vec<_> = table.stdout.lines().collect();
        assert_eq!(
            lines[0].split_whitespace().collect::<Vec<_>>(),
            ["user_name", "title", "turns", "is_open", "end_reason", "half", "opened_at"]
        );
        assert!(
            lines[2].starts_with("ann        A faster parser      1  true     NULL         1.5  2026-11-16"),
            "{}",
            table.stdout
        );

        let json = run(&bench, &["ledger", "sql", "--json", sql]);
        let row = rows(&json.stdout).remove(0);
        assert_eq!(
            (&row["user_name"], &row["turns"], &row["is_open"]),
            (&"ann".into(), &1.into(), &true.into())
        );
        assert_eq!((&row["end_reason"], &row["half"]), (&Value::Null, &1.5.into()));

        let csv = run(
            &bench,
            &["ledger", "sql", "--csv", "SELECT title, end_reason, '' AS e, 'a,\"b' AS q FROM sessions"],
        );
        assert_eq!(csv.stdout, "title,end_reason,e,q\r\nA faster parser,,\"\",\"a,\"\"b\"\r\n");

        // Whatever an agent wrote, it does not act and stays in its line.
        let text = run(&bench, &["ledger", "sql", "SELECT text FROM messages WHERE role = 'agent'"]);
        assert!(text.stdout.contains(r"file.\n\nDone: 100 % of it_self \u{1b}[2J"), "{}", text.stdout);
        // Ids, bytes and JSON.
        let mixed = run(&bench, &["ledger", "sql", "--json", "SELECT session_id, input FROM tool_calls"]);
        let mixed = rows(&mixed.stdout).remove(0);
        assert_eq!(mixed["session_id"], id.as_str());
        assert!(mixed["input"].to_string().contains("parser.rs"), "{mixed}");
        let bytes = run(&bench, &["ledger", "sql", "--json", "SELECT raw FROM frames WHERE seq = 20"]);
        assert!(rows(&bytes.stdout)[0]["raw"].as_str().unwrap().starts_with("\\x7b22"), "{}", bytes.stdout);

        // No rows still have columns.
        let empty = run(&bench, &["ledger", "sql", "SELECT title FROM sessions WHERE 1 = 0"]);
        assert_eq!((empty.code, empty.stdout.as_str()), (Some(0), "title\n─────\n"));
        let empty = run(&bench, &["ledger", "sql", "--csv", "SELECT title FROM sessions WHERE 1 = 0"]);
        assert_eq!(empty.stdout, "title\r\n");
        assert_eq!(run(&bench, &["ledger", "sql", "EXPLAIN SELECT 1"]).code, Some(0));
    }
}

#[tokio::test]
async fn every_type_of_postgres_is_shown() {
    let bench = Bench::postgres(conductor_tests::postgres::Database::new().await);
    ledger(&bench, &[EDITING]).await;
    let sql = "SELECT sum(turns) AS n, 12345678901234567890.5::numeric AS big, 'NaN'::float8 AS nan, '{1,2}'::int[] AS list, \
        interval '1 day' AS span, '10.0.0.1'::inet AS host, '{\"a\": [1]}'::jsonb AS j, 0.1::float8 AS tenth, \
        date '2026-11-16' AS day, 'x'::char AS c, NULL::uuid AS u FROM sessions";
    let shown = run(&bench, &["ledger", "sql", "--json", sql]).stdout;
    assert!(shown.contains(r#""big":12345678901234567890.5,"#), "no digit is lost: {shown}");
    let row = rows(&shown).remove(0);
    assert_eq!(row["n"], 1);
    assert_eq!(row["nan"], "NaN");
    assert_eq!(
        (&row["list"], &row["span"], &row["host"]),
        (&"{1,2}".into(), &"1 day".into(), &"10.0.0.1".into())
    );
    assert_eq!(row["j"]["a"][0], 1);
    assert_eq!((&row["tenth"], &row["day"], &row["u"]), (&0.1.into(), &"2026-11-16".into(), &Value::Null));
}

#[tokio::test]
async fn nothing_can_be_changed() {
    for bench in Bench::both().await {
        ledger(&bench, &[EDITING]).await;
        for sql in [
            "DELETE FROM sessions",
            "INSERT INTO sessions (session_id) VALUES ('019a8c3e-1b2c-7000-8000-000000000001')",
            "UPDATE sessions SET title = 'x'",
            "CREATE TABLE mine (a int)",
            "DROP TABLE sessions",
        ] {
            let refused = run(&bench, &["ledger", "sql", sql]);
            assert_eq!(refused.code, Some(1), "{sql}: {refused:?}");
            assert!(refused.stderr.contains("open for reading only"), "{sql}: {}", refused.stderr);
        }
        for sql in [
            "SELECT 1; DELETE FROM sessions",
            "COMMIT; DELETE FROM sessions",
            "ROLLBACK; DROP TABLE sessions",
        ] {
            let refused = run(&bench, &["ledger", "sql", sql]);
            assert_eq!(refused.code, Some(1), "{sql}: {refused:?}");
        }
        assert_eq!(bench.number("SELECT count(*) FROM sessions").await, 1);
    }
    let bench = Bench::postgres(conductor_tests::postgres::Database::new().await);
    ledger(&bench, &[EDITING]).await;
    for sql in [
        "WITH gone AS (DELETE FROM sessions RETURNING 1) SELECT * FROM gone",
        "SELECT set_config('transaction_read_only', 'off', false)",
        "SET TRANSACTION READ WRITE",
        "DO $$ BEGIN DELETE FROM sessions; END $$",
        "EXPLAIN ANALYZE DELETE FROM sessions",
    ] {
        let refused = run(&bench, &["ledger", "sql", sql]);
        assert_eq!(refused.code, Some(1), "{sql}: {refused:?}");
    }
    assert_eq!(bench.number("SELECT count(*) FROM sessions").await, 1);
}

#[tokio::test]
async fn mistakes_are_explained() {
    for bench in Bench::both().await {
        ledger(&bench, &[EDITING]).await;
        let wrong = run(&bench, &["ledger", "sql", "SELECT nonsense FROM sessions"]);
        assert_eq!((wrong.code, wrong.stdout.as_str()), (Some(1), ""));
        assert!(
            wrong.stderr.starts_with("conductor ledger: ") && wrong.stderr.contains("nonsense"),
            "{wrong:?}"
        );
        assert_eq!(run(&bench, &["ledger", "sql", "  ; "]).code, Some(1));
        assert_eq!(run(&bench, &["ledger", "sql"]).code, Some(2));
        assert_eq!(run(&bench, &["ledger", "sql", "--json", "--csv", "SELECT 1"]).code, Some(2));
        assert_eq!(run(&bench, &["ledger", "sql", "--timeout", "soon", "SELECT 1"]).code, Some(2));

        let forever =
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n";
        let late = run(&bench, &["ledger", "sql", "--timeout", "200ms", forever]);
        assert_eq!(late.code, Some(1), "{late:?}");
        assert!(late.stderr.contains("no answer within 0.2 s; give it longer with --timeout"), "{late:?}");
    }
}

#[tokio::test]
async fn a_statement_comes_from_stdin_and_a_reader_may_leave() {
    let bench = Bench::sqlite();
    ledger(&bench, &[EDITING]).await;
    let mut child = conductor(&bench, &["ledger", "sql", "--csv", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(b"SELECT agent\nFROM sessions -- all\n;\n").unwrap();
    assert_eq!(done(&child.wait_with_output().unwrap()).stdout, "agent\r\ndemo\r\n");

    let many =
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000000) SELECT i FROM n";
    for form in ["--json", "--csv"] {
        let mut child = conductor(&bench, &["ledger", "sql", form, many])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // Gone before it has written all.
        drop(child.stdout.take());
        let ended = done(&child.wait_with_output().unwrap());
        assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{form}");
    }
}

#[tokio::test]
async fn where_the_ledger_is_can_be_said_in_every_way() {
    let bench = Bench::postgres(conductor_tests::postgres::Database::new().await);
    ledger(&bench, &[EDITING]).await;
    let count = ["ledger", "sql", "--csv", "SELECT count(*) AS n FROM sessions"];
    let plain = |args: &[&str]| {
        let mut command = conductor(&bench, args);
        command.env_remove("CONDUCTOR_DATABASE_URL");
        command
    };
    // Nothing is said, and there is no file.
    let none = done(&plain(&count).output().unwrap());
    assert_eq!(none.code, Some(1));
    assert!(
        none.stderr.contains("there is no ledger at") && none.stderr.contains("ledger.sqlite"),
        "{none:?}"
    );
    assert!(!bench.state().join("ledger.sqlite").exists(), "asking makes nothing");
    // By flag, after the sub-command, too.
    let url = bench.database().url();
    let flag = done(&plain(&count).args(["--database-url", &url]).output().unwrap());
    assert_eq!((flag.code, flag.stdout.as_str()), (Some(0), "n\r\n1\r\n"), "{flag:?}");
    // By the configuration, with the password in a file.
    let password = bench.state().join("password");
    std::fs::write(&password, format!("{}\n", conductor_tests::postgres::PASSWORD)).unwrap();
    let config = bench.state().join("agents.toml");
    let text =
        format!("[ledger]\nurl = {:?}\npassword_file = {password:?}\n", bench.database().url_of("postgres"));
    std::fs::write(&config, text).unwrap();
    let configured = done(&plain(&count).arg("--config").arg(&config).output().unwrap());
    assert_eq!((configured.code, configured.stdout.as_str()), (Some(0), "n\r\n1\r\n"), "{configured:?}");
    // A wrong one is named without its password.
    let gone = "postgres://ann:harness-password@127.0.0.1:1/gone";
    let gone = done(&plain(&count).args(["--database-url", gone]).output().unwrap());
    assert_eq!(gone.code, Some(1));
    assert!(gone.stderr.contains("127.0.0.1:1/gone"), "{gone:?}");
    let odd =
        done(&plain(&count).args(["--database-url", "mysql://ann:harness-password@h/d"]).output().unwrap());
    assert_eq!(odd.code, Some(1), "{odd:?}");
}

#[tokio::test]
async fn status_says_where_and_how_much() {
    for bench in Bench::both().await {
        ledger(&bench, &[EDITING]).await;
        let status = run(&bench, &["ledger", "status"]);
        assert_eq!((status.code, status.stderr.as_str()), (Some(0), ""));
        assert!(status.stdout.contains("schema"), "{}", status.stdout);
        let json: Value = serde_json::from_str(&run(&bench, &["ledger", "status", "--json"]).stdout).unwrap();
        assert_eq!((&json["rows"]["sessions"], &json["rows"]["frames"]), (&1.into(), &21.into()));
        assert_eq!(json["rows"]["frame_conflicts"], 0);
        assert!(json["schema_version"].as_i64().unwrap() >= 2);
        assert!(json["bytes"].as_i64().unwrap() > 10_000);
        assert_eq!(json["journals"].as_array().unwrap().len(), 1);
    }
}

#[tokio::test]
async fn a_ledger_is_rebuilt_and_carried_over() {
    let old = Bench::sqlite();
    ledger(&old, &[EDITING]).await;
    let before = old.derived().await;
    let rebuilt = run(&old, &["ledger", "rebuild"]);
    assert_eq!((rebuilt.code, rebuilt.stderr.as_str()), (Some(0), ""), "no progress in a pipe");
    assert!(rebuilt.stdout.contains("anew from 21 frames"), "{}", rebuilt.stdout);
    assert_eq!(old.derived().await, before);

    let new = Bench::postgres(conductor_tests::postgres::Database::new().await);
    let file = old.file();
    let imported = run(&new, &["ledger", "import", file.to_str().unwrap()]);
    assert_eq!(imported.code, Some(0), "{imported:?}");
    assert!(imported.stdout.starts_with("21 frames of "), "{}", imported.stdout);
    assert_eq!(new.derived().await, before);
    let again = run(&new, &["ledger", "import", file.to_str().unwrap()]);
    assert!(again.stdout.starts_with("0 frames of "), "{}", again.stdout);
    let nothing = run(&new, &["ledger", "import", "/nowhere/ledger.sqlite"]);
    assert_eq!(nothing.code, Some(1));
    assert!(nothing.stderr.contains("/nowhere/ledger.sqlite"), "{nothing:?}");
}
