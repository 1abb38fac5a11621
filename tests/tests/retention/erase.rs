//! Words that are to be forgotten are nowhere any more: not in a row, not in a file, not in
//! free pages, not at an agent's; and it is known that they were there.

use std::{fs, path::Path, process::Command};

use conductor::ledger;
use conductor_tests::{
    editor::{DEADLINE, Editor},
    harness::{Builder, Service, poll_until, service},
    people::Person,
    postgres::Database,
    shipping::{Bench, ship_all},
};
use serde_json::{Value, json};

use crate::fixture::{conduct, days_ago, end, files, holding, past, run, run_json, told, verified, write};

const CANARY: &str = "canary-7d1f-of-the-erased";
const KEPT: &str = "canary-90ab-of-the-kept";

/// A service whose agent has a home of its own.
pub fn isolated() -> Builder {
    service(&json!({})).set("agents.fake.home", "isolated").set("journal.keep", "7d")
}

/// A session with these words in its prompt, its answer, its title, a tool call, a question and
/// the agent's last words; then a list that tells the title. The agent's own id of it.
pub fn talk(service: &Service, editor: &mut Editor, words: &str) -> (String, String) {
    let session = editor.new_session(&service.work());
    let update = |update: Value| json!({ "notify": { "method": "session/update", "params": { "sessionId": "$sid", "update": update } } });
    let steps = json!([
        { "update": { "text": words } },
        update(json!({ "sessionUpdate": "session_info_update", "title": words })),
        update(json!({ "sessionUpdate": "tool_call", "toolCallId": "t1", "title": words, "kind": "execute",
            "status": "completed", "rawInput": { "command": words } })),
        { "stderr": words },
    ]);
    editor.turn_do(&session, &steps);
    let listed = editor.call("session/list", &json!({}));
    assert!(listed.to_string().contains(words), "the list tells the title: {listed}");
    let received = service.wait_received("fake", "the prompt", |entry| {
        entry.method().as_deref() == Some("session/prompt")
            && entry.text.as_deref().is_some_and(|text| text.contains(words))
    });
    let own = received.json().unwrap()["params"]["sessionId"].as_str().unwrap().to_owned();
    (session, own)
}

pub fn close(service: &Service, session: &str) {
    let closed = conduct(service, &["sessions", "close", session]);
    assert_eq!(closed.code, Some(0), "{closed:?}");
}

/// Waits until the session is told as ended, as its last frame is on its way for a moment.
fn erase_soon(service: &Service, args: &[&str]) -> Value {
    let mut last = None;
    let erased = poll_until(DEADLINE, || {
        let erased = conduct(service, &[&["ledger", "erase", "--json"][..], args].concat());
        let is_done = erased.code == Some(0);
        last = Some(erased);
        is_done
    });
    let last = last.unwrap();
    assert!(erased, "{last:?}");
    serde_json::from_str(&last.stdout).unwrap()
}

fn plant(home: &Path, name: &str) {
    let path = home.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, CANARY).unwrap();
}

/// What the ledger holds, as text: the bytes of its file, or a dump of its database.
pub fn dumped(database: Option<&Database>, state: &Path) -> Vec<u8> {
    match database {
        Some(database) => {
            let dump = Command::new(database.server().program("pg_dump"))
                .arg("--dbname")
                .arg(database.url())
                .output();
            let dump = dump.unwrap();
            assert!(dump.status.success(), "{}", String::from_utf8_lossy(&dump.stderr));
            dump.stdout
        }
        None => fs::read(state.join("ledger.sqlite")).unwrap(),
    }
}

/// What the server remembers of the values in each column.
async fn sampled(database: &Database) -> Vec<u8> {
    let samples = "SELECT coalesce(string_agg(concat_ws(' ', tablename, attname, most_common_vals::text, \
        histogram_bounds::text, most_common_elems::text), chr(10)), '') FROM pg_stats WHERE schemaname = 'public'";
    let all: String = sqlx::query_scalar(samples).fetch_one(&mut database.connect().await).await.unwrap();
    all.into_bytes()
}

/// A dump has bytes in hexadecimal digits.
pub fn holds(dump: &[u8], words: &str) -> bool {
    let digits: String = words.bytes().map(|byte| format!("{byte:02x}")).collect();
    [words, &digits].iter().any(|form| memchr::memmem::find(dump, form.as_bytes()).is_some())
}

async fn erased_everywhere(database: Option<Database>) {
    let mut builder = isolated();
    if let Some(database) = &database {
        builder = builder.set("ledger.url", database.url());
    }
    let mut service = builder.start();
    let (mut editor, mut other) = (service.editor(), service.editor());
    let (session, own) = talk(&service, &mut editor, CANARY);
    let (kept, _) = talk(&service, &mut other, KEPT);
    let home = service.state().join("homes/fake");
    for name in [format!("projects/a/{own}.jsonl"), format!("env/{own}/deep"), format!("{own}1.jsonl")] {
        plant(&home, &name);
    }
    plant(&home, "history.jsonl");
    // What is open is refused, and stays as it is.
    let refused = conduct(&service, &["ledger", "erase", "--session", &session]);
    assert!(
        refused.code == Some(1) && refused.stderr.contains(&format!("conductor sessions close {session}")),
        "{refused:?}"
    );
    close(&service, &session);
    // Who prompts it now is refused, and what they said is recorded with the refusal.
    let prompt = json!({ "sessionId": session, "prompt": [{ "type": "text", "text": format!("once more, {CANARY}") }] });
    other.call_error("session/prompt", &prompt);
    assert!(!holding(&service.state().join("journal"), CANARY).is_empty(), "there is something to erase");
    let looked = poll_until(DEADLINE, || {
        let looked = conduct(&service, &["ledger", "erase", "--session", &session, "--dry-run", "--json"]);
        looked.code == Some(0)
            && serde_json::from_str::<Value>(&looked.stdout).unwrap()["transcripts"].as_array().unwrap().len()
                == 2
    });
    assert!(looked, "it can be looked at first");
    assert!(holds(&dumped(database.as_ref(), &service.state()), CANARY) || database.is_none(), "only looked");
    if let Some(database) = &database {
        sqlx::raw_sql("ANALYZE").execute(&mut database.connect().await).await.unwrap();
        assert!(holds(&sampled(database).await, CANARY), "the server has taken it down as a sample");
    }

    let erased = erase_soon(&service, &["--session", &session, "--reason", "she asked for it"]);
    assert!(
        erased["frames"].as_u64().unwrap() > 5 && erased["journal_records"].as_u64().unwrap() > 5,
        "{erased}"
    );
    assert_eq!(erased["transcripts"].as_array().unwrap().len(), 2, "{erased}");
    assert!(home.join(format!("{own}1.jsonl")).exists() && !home.join(format!("env/{own}")).exists());
    // The two that are nobody's in particular are left to people.
    for left in [format!("{own}1.jsonl"), "history.jsonl".to_owned()] {
        fs::remove_file(home.join(left)).unwrap();
    }
    assert_eq!(holding(&service.state(), CANARY), Vec::<std::path::PathBuf>::new());
    assert!(!holds(&dumped(database.as_ref(), &service.state()), CANARY));
    if let Some(database) = &database {
        assert!(!holds(&sampled(database).await, CANARY), "{:?}", sampled(database).await);
    }
    assert!(!holding(&service.state(), KEPT).is_empty(), "the other session is all there");

    // Those who look for it find that it was, and nothing of what.
    let listed = other.call("session/list", &json!({}));
    assert!(!listed.to_string().contains(&session) && listed.to_string().contains(&kept), "{listed}");
    let load = other.call_error(
        "session/load",
        &json!({ "sessionId": session, "cwd": service.work(), "mcpServers": [] }),
    );
    assert!(load["message"].as_str().is_some(), "{load}");
    let exported = conduct(&service, &["sessions", "export", &session, "--format", "jsonl"]);
    let lines: Vec<Value> = exported.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(lines.len() > 5 && lines.iter().all(|line| line["erased"] == true), "{exported:?}");
    let shown = conduct(&service, &["sessions", "show", &session]);
    assert_eq!(shown.code, Some(0), "{shown:?}");
    let sessions = told(&service, &["sessions", "ls"]);
    let row = sessions.as_array().unwrap().iter().find(|row| row["session_id"] == session.as_str()).unwrap();
    assert_eq!((&row["title"], &row["turns"]), (&Value::Null, &1.into()), "that it happened stays");
    let verify = conduct(&service, &["ledger", "verify"]);
    assert!(verify.code == Some(0) && verify.stdout.contains("erased"), "{verify:?}");

    // Nor does anything bring it back: a rebuild, a restart, the same once more.
    let rebuilt = conduct(&service, &["ledger", "rebuild"]);
    assert_eq!(rebuilt.code, Some(0), "{rebuilt:?}");
    assert_eq!(told(&service, &["sessions", "ls"]), sessions);
    let again = erase_soon(&service, &["--session", &session]);
    assert_eq!(again["frames"], 2, "that somebody wanted to load it, and was refused: {again}");
    let again = erase_soon(&service, &["--session", &session]);
    assert_eq!(again["frames"], 0, "{again}");
    assert!(service.term().success());
    service.start_again();
    let mut third = service.editor();
    let listed = third.call("session/list", &json!({}));
    assert!(!listed.to_string().contains(&session) && listed.to_string().contains(KEPT), "{listed}");
    assert_eq!(conduct(&service, &["ledger", "verify"]).code, Some(0));
    let log = service.log();
    assert!(!log.contains("is not as it was left"), "the journal is whole: {log}");

    // And where no service runs.
    close(&service, &kept);
    drop(third);
    assert!(service.term().success());
    let erased = erase_soon(&service, &["--session", &kept]);
    assert!(erased["frames"].as_u64().unwrap() > 5, "{erased}");
    assert_eq!(holding(&service.state(), KEPT), Vec::<std::path::PathBuf>::new());
    assert!(!holds(&dumped(database.as_ref(), &service.state()), KEPT));
    assert_eq!(conduct(&service, &["ledger", "verify"]).code, Some(0));
    service.start_again();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn words_are_gone_from_everything_with_sqlite() {
    erased_everywhere(None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn words_are_gone_from_everything_with_postgres() {
    erased_everywhere(Some(Database::new().await)).await;
}

/// A user's sessions all go, and only theirs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_is_forgotten() {
    let service = isolated().start();
    let (ann, bob) = (Person::named(&service, "ann"), Person::named(&service, "bob"));
    let mut sessions = Vec::new();
    for (person, words) in [(&ann, CANARY), (&ann, CANARY), (&bob, KEPT)] {
        let mut editor = person.editor(&service);
        let (session, _) = talk(&service, &mut editor, words);
        close(&service, &session);
        sessions.push(session);
    }
    let erased = erase_soon(&service, &["--user", "ann"]);
    assert_eq!(erased["session_ids"].as_array().unwrap().len(), 2, "{erased}");
    assert_eq!(holding(&service.state(), CANARY), Vec::<std::path::PathBuf>::new());
    assert!(!holding(&service.state(), KEPT).is_empty());
    let nobody = conduct(&service, &["ledger", "erase", "--user", "nobody"]);
    assert!(nobody.code == Some(1) && nobody.stderr.contains("nothing of nobody"), "{nobody:?}");
    assert_eq!(conduct(&service, &["ledger", "verify"]).code, Some(0));
}

/// What MCP servers were given is in no record, but in a file of its own; it goes, too, and so does
/// what was left by somebody who was killed while writing it.
#[test]
fn what_is_kept_for_mcp_servers_goes_with_the_session() {
    let mut service = isolated().start();
    let mut editor = service.editor();
    let mut open = |secret: &str| {
        let server = json!({ "name": "db", "command": "/bin/true", "args": [],
            "env": [{ "name": "KEY", "value": secret }] });
        let opened = editor.call("session/new", &json!({ "cwd": service.work(), "mcpServers": [server] }));
        let session = opened["sessionId"].as_str().unwrap().to_owned();
        editor.turn(&session, "hello");
        session
    };
    let (one, other, kept) = (open(CANARY), open(CANARY), open(KEPT));
    let directory = service.state().join("kept");
    let names = || {
        let mut names: Vec<_> =
            fs::read_dir(&directory).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names.into_iter().map(|name| name.into_string().unwrap()).collect::<Vec<_>>()
    };
    let file = |session: &str| format!("{session}.json");
    assert_eq!(names(), [file(&one), file(&other), file(&kept)]);
    fs::write(directory.join(format!("{one}.tmp")), CANARY).unwrap();
    close(&service, &one);
    erase_soon(&service, &["--session", &one]);
    assert_eq!(names(), [file(&other), file(&kept)]);
    // And where no service runs.
    close(&service, &other);
    drop(editor);
    assert!(service.term().success());
    erase_soon(&service, &["--session", &other]);
    assert_eq!(names(), [file(&kept)]);
    assert_eq!(holding(&service.state(), CANARY), Vec::<std::path::PathBuf>::new());
    service.start_again();
}

/// Rows keep what is no words, frames their hashes, and nothing is made anew from nothing.
#[tokio::test]
async fn what_stays_of_a_session_is_the_same_after_a_rebuild_and_an_import() {
    for bench in Bench::both().await {
        let journal = bench.journal();
        let it = past(&journal, days_ago(9), CANARY);
        end(&journal, &it, days_ago(8));
        let other = past(&journal, days_ago(9), KEPT);
        end(&journal, &other, days_ago(8));
        // A list that tells both titles, to a connection of somebody else's.
        let list = json!({ "jsonrpc": "2.0", "id": 9, "result": { "sessions": [
            { "sessionId": it.session.id.to_string(), "title": CANARY } ] } });
        let to_editor = (conductor::record::Origin::Conductor, conductor::record::Destination::Editor);
        write(&journal, other.connection, days_ago(8), to_editor, list.to_string().as_bytes());
        ship_all(bench.settings(), &journal).await;
        journal.close();
        let before = bench.derived().await;
        let hashes = "SELECT count(DISTINCT hash) FROM frames";
        let distinct = bench.number(hashes).await;
        let id = it.session.id.to_string();
        let erased = run_json(&bench, &["ledger", "erase", "--session", &id[..20]]);
        // Eight frames of the session, two of its process, one that names it.
        assert_eq!((erased["frames"].as_u64(), erased["others"].as_u64()), (Some(11), Some(1)), "{erased}");
        assert_eq!(holding(bench.state(), CANARY), Vec::<std::path::PathBuf>::new());
        assert_eq!(bench.number(hashes).await, distinct);
        let after = bench.derived().await;
        assert_eq!(after.len(), before.len(), "no row is gone");
        assert!(!after.iter().any(|row| row.contains(CANARY)) && after.iter().any(|row| row.contains(KEPT)));
        verified(&bench);
        ledger::rebuild(&bench.settings(), |_| {}).await.unwrap();
        assert_eq!(bench.derived().await, after);
        verified(&bench);
        // What is recorded afterwards in the same ledger is as ever.
        let journal = bench.journal();
        past(&journal, days_ago(1), KEPT);
        ship_all(bench.settings(), &journal).await;
        journal.close();
        verified(&bench);
        if bench.settings().url.is_empty() {
            let target = Bench::sqlite();
            run(&target, &["ledger", "import", bench.file().to_str().unwrap()]);
            let all = "SELECT count(*) FROM frames";
            assert_eq!(target.number(all).await, bench.number(all).await);
            let null = "SELECT count(*) FROM frames WHERE raw IS NULL";
            assert_eq!(target.number(null).await, 11);
            assert_eq!(target.number(hashes).await, bench.number(hashes).await);
        }
        let mut found = Vec::new();
        files(bench.state(), &mut found);
        assert!(found.iter().any(|path| path.ends_with("checkpoints.jsonl")), "{found:?}");
    }
}
