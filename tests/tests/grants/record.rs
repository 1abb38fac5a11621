//! What the ledger has of grants, in both databases.

use std::time::Duration;

use conductor::proto::{
    CreateGrantRequest, GrantAction, GrantScope, ListGrantsRequest, grant_action::Action, grant_scope::Scope,
    grants_client::GrantsClient,
};
use conductor_tests::{
    disk::Disk,
    harness::{Builder, Service, poll_until, service},
    people::{channel, owner},
    postgres::Database,
};
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::{RULES, asks, give, outcomes, path, refusing};

const LINE: &str = "truncate -s 0 a";

fn what_is_granted_and_used_is_on_record(builder: Builder) {
    let mut service = builder.rules(RULES).start();
    let admin = owner(&service);
    let (editor, session) = service.session();
    let mut editor = refusing(editor);
    let root = path(&service.work()).to_owned();
    let used =
        give(&service, &admin, &["--root", &root, "--run", LINE, "--uses", "5", "--reason", "why not"]);
    let open = give(&service, &admin, &["--session", &session, "--write", "x"]);
    let gone = give(&service, &admin, &["--session", &session, "--read", "x"]);
    assert_eq!(outcomes(&mut editor, &session, &asks(&[LINE, LINE])), [true, true]);
    assert!(service.run(&["grants", "revoke", &gone, "--reason", "a mistake"]).status.success());
    let sql = |service: &Service, statement: &str| -> Vec<Value> {
        let config = service.dir.join("agents.toml");
        let asked = service.run(&["ledger", "--config", path(&config), "sql", "--json", statement]);
        assert!(asked.status.success(), "{asked:?}");
        let text = String::from_utf8(asked.stdout).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let shipped = || {
        sql(&service, "SELECT count(*) AS n FROM grant_uses").first().is_some_and(|row| row["n"] == 2)
            && sql(&service, "SELECT 1 AS n FROM grants WHERE revoked_us IS NOT NULL").len() == 1
    };
    assert!(poll_until(Duration::from_secs(30), shipped), "{}", service.log());

    let rows = sql(
        &service,
        "SELECT grant_id, author, scope, scope_name, what, reason, uses, most_uses, sessions, last_used_at \
                    FROM grants_used",
    );
    assert_eq!(rows.len(), 1, "{rows:?}");
    let row = &rows[0];
    assert_eq!((&row["grant_id"], &row["scope"]), (&json!(used), &json!("root")));
    assert_eq!((&row["uses"], &row["most_uses"], &row["sessions"]), (&json!(2), &json!(5), &json!(1)));
    assert_eq!(row["reason"], "why not");
    assert!(row["what"].as_str().unwrap().starts_with("run `truncate -s 0 a` in "), "{row}");
    let rows = sql(&service, "SELECT grant_id FROM grants_open ORDER BY expires_at");
    let ids: Vec<_> = rows.iter().map(|row| row["grant_id"].as_str().unwrap()).collect();
    assert_eq!(ids, [used.as_str(), open.as_str()]);
    let rows = sql(
        &service,
        "SELECT grant_id, revoked_by, end_reason, session_id FROM grants WHERE revoked_us IS NOT NULL",
    );
    assert_eq!((&rows[0]["grant_id"], &rows[0]["end_reason"]), (&json!(gone), &json!("a mistake")));
    assert_eq!(rows[0]["session_id"], session.as_str());

    // Each use is beside the decision that it made.
    let rows = sql(
        &service,
        "SELECT grant_uses.number, grant_uses.uses_left, grant_uses.user_name, decisions.rule, \
                    decisions.decision FROM grant_uses JOIN decisions ON decisions.session_id = grant_uses.session_id \
                    AND decisions.seq = grant_uses.request ORDER BY grant_uses.number",
    );
    let uses: Vec<_> = rows.iter().map(|row| (row["number"].clone(), row["uses_left"].clone())).collect();
    assert_eq!(uses, [(json!(1), json!(4)), (json!(2), json!(3))]);
    assert!(rows.iter().all(|row| row["rule"] == "granted" && row["decision"] == "allow"), "{rows:?}");

    // And all of it comes from frames alone.
    drop(editor);
    assert!(service.term().success());
    let all =
        "SELECT grant_id, scope, author, what, uses, revoked_by, expires_us FROM grants ORDER BY grant_id";
    let before = sql(&service, all);
    assert_eq!(before.len(), 3);
    let config = service.dir.join("agents.toml");
    let rebuilt = service.run(&["ledger", "--config", path(&config), "rebuild"]);
    assert!(rebuilt.status.success(), "{rebuilt:?}");
    assert_eq!(sql(&service, all), before);
}

#[test]
fn what_is_granted_and_used_is_on_record_in_sqlite() {
    what_is_granted_and_used_is_on_record(service(&json!({})));
}

#[test]
fn what_is_granted_and_used_is_on_record_in_postgres() {
    let database = Runtime::new().unwrap().block_on(Database::new());
    what_is_granted_and_used_is_on_record(service(&json!({})).set("ledger.url", database.url()));
}

/// What is on record as given holds, whether its giver waits or not.
#[test]
fn a_grant_whose_giver_leaves_in_the_middle_is_given_all_the_same() {
    let (disk, builder) = Disk::under(service(&json!({})).rules(RULES));
    let service = builder.start();
    let admin = owner(&service);
    let request = CreateGrantRequest {
        scope: Some(GrantScope { scope: Some(Scope::Root(path(&service.work()).to_owned())) }),
        actions: vec![GrantAction { action: Some(Action::Run(LINE.to_owned())), wide: false }],
        reason: "given-in-passing".to_owned(),
        ..Default::default()
    };
    let runtime = Runtime::new().unwrap();
    let client = GrantsClient::new(runtime.block_on(channel(&service)));
    disk.rule("fdatasync hold");
    let (asked, mut calling) = (admin.request(request), client.clone());
    let call = runtime.spawn(async move { calling.create(asked).await.map(drop) });
    let is_written = || {
        let files = std::fs::read_dir(service.state().join("journal")).unwrap().filter_map(Result::ok);
        let mut texts = files.filter_map(|file| std::fs::read(file.path()).ok());
        texts.any(|text| String::from_utf8_lossy(&text).contains("given-in-passing"))
    };
    assert!(poll_until(Duration::from_secs(30), is_written), "{}", service.log());
    call.abort();
    assert!(runtime.block_on(call).unwrap_err().is_cancelled());
    // On the same connection, so it comes behind the caller's leaving.
    let list = || {
        let asked = admin.request(ListGrantsRequest::default());
        runtime.block_on(client.clone().list(asked)).unwrap().into_inner().grants
    };
    assert!(list().is_empty());
    disk.works();
    assert!(poll_until(Duration::from_secs(30), || list().len() == 1), "{}", service.log());
    drop(client);
}
