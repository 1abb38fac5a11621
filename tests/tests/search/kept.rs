//! The index has what the tables have: it is made anew with them, comes along
//! when a ledger is imported, and forgets at once what is deleted or blanked.

use std::collections::BTreeSet;

use conductor::ledger::{self, search::Filter};
use conductor_tests::{
    postgres::Database,
    shipping::{Bench, open_file, ship_all},
};
use sqlx::{AssertSqlSafe, Executor as _};

use crate::corpus::{Author, NOON_US, all, corpus, history, key};

const SEED: u64 = 3;

async fn execute(bench: &Bench, statement: &str) {
    let statement = AssertSqlSafe(statement.to_owned());
    match bench.settings().url.is_empty() {
        true => drop(open_file(&bench.file()).await.execute(statement).await.unwrap()),
        false => drop(bench.database().connect().await.execute(statement).await.unwrap()),
    }
}

/// Documents of the index itself, whatever a search makes of them.
async fn indexed(bench: &Bench, condition: &str) -> i64 {
    let docs = bench.number(&format!("SELECT count(*) FROM search_docs WHERE {condition}")).await;
    if bench.settings().url.is_empty() {
        // FTS5 has a row for each document in a table of its own.
        let all = bench.number("SELECT count(*) FROM search_docs").await;
        assert_eq!(bench.number("SELECT count(*) FROM search_words_docsize").await, all);
        let lines =
            bench.number("SELECT count(*) FROM search_docs WHERE source IN ('command', 'path')").await;
        assert_eq!(bench.number("SELECT count(*) FROM search_lines_docsize").await, lines);
    }
    docs
}

async fn keys(bench: &Bench, text: &str) -> BTreeSet<(uuid::Uuid, &'static str, i64)> {
    all(&history(bench), text, &Filter::default()).await.iter().map(key).collect()
}

#[tokio::test]
async fn a_rebuild_and_an_import_bring_the_index_along() {
    for bench in Bench::both().await {
        corpus(&bench, SEED).await;
        let (limit, orc) = (keys(&bench, "limit").await, keys(&bench, "orc").await);
        assert!(!limit.is_empty() && !orc.is_empty());
        ledger::rebuild(&bench.settings(), |_| {}).await.unwrap();
        assert_eq!((keys(&bench, "limit").await, keys(&bench, "orc").await), (limit.clone(), orc.clone()));
        assert_eq!(bench.number("SELECT count(*) FROM search_pending").await, 0);
        // The index alone was lost.
        execute(&bench, "DELETE FROM search_docs").await;
        assert!(keys(&bench, "limit").await.is_empty());
        ledger::rebuild(&bench.settings(), |_| {}).await.unwrap();
        assert_eq!(keys(&bench, "limit").await, limit);

        if bench.settings().url.is_empty() {
            for target in [Bench::sqlite(), Bench::postgres(Database::new().await)] {
                ledger::import(&target.settings(), &bench.file(), |_| {}).await.unwrap();
                assert_eq!(
                    (keys(&target, "limit").await, keys(&target, "orc").await),
                    (limit.clone(), orc.clone())
                );
                ledger::import(&target.settings(), &bench.file(), |_| {}).await.unwrap();
                assert_eq!(keys(&target, "limit").await, limit, "once more changes nothing");
            }
        }
    }
}

#[tokio::test]
async fn what_is_deleted_or_blanked_leaves_the_index_at_once() {
    for bench in Bench::both().await {
        let journal = bench.journal();
        let mut author = Author::new(&journal, NOON_US, ("ann", "demo", "/w"));
        author.prompt("badger one");
        author.answer(&["badger ", "two"]);
        author.tool("badger three", "/w/badger.rs");
        author.command("badger --four");
        let session = author.id();
        let mut other = Author::new(&journal, NOON_US, ("ann", "demo", "/w"));
        other.prompt("badger five");
        ship_all(bench.settings(), &journal).await;
        assert_eq!(keys(&bench, "badger").await.len(), 6);
        assert_eq!(indexed(&bench, "1 = 1").await, 6);

        // No service runs: triggers do this.
        execute(&bench, &format!("UPDATE messages SET text = NULL WHERE session_id = '{session}'")).await;
        assert_eq!(indexed(&bench, "source = 'message'").await, 0);
        execute(
            &bench,
            &format!("UPDATE turns SET prompt = '[erased by request]' WHERE session_id = '{session}'"),
        )
        .await;
        assert_eq!(indexed(&bench, "source = 'prompt'").await, 1);
        execute(
            &bench,
            &format!("UPDATE tool_calls SET input = NULL, title = NULL WHERE session_id = '{session}'"),
        )
        .await;
        assert_eq!(indexed(&bench, "source = 'tool'").await, 0);
        execute(&bench, &format!("UPDATE commands SET line = '' WHERE session_id = '{session}'")).await;
        assert_eq!(indexed(&bench, "source = 'command'").await, 0);
        execute(&bench, &format!("DELETE FROM file_accesses WHERE session_id = '{session}'")).await;
        assert_eq!(indexed(&bench, "1 = 1").await, 1);
        assert_eq!(keys(&bench, "badger").await.len(), 1);

        // What stands there instead is found when the service runs again.
        ship_all(bench.settings(), &journal).await;
        assert_eq!(keys(&bench, "erased").await.len(), 1);
        assert_eq!(keys(&bench, "badger").await.len(), 1);
        for table in ["turns", "messages", "tool_calls", "commands", "file_accesses"] {
            execute(&bench, &format!("DELETE FROM {table}")).await;
        }
        assert_eq!(indexed(&bench, "1 = 1").await, 0);
        assert_eq!(bench.number("SELECT count(*) FROM search_pending").await, 0);
    }
}

#[tokio::test]
async fn a_message_that_grows_is_found_by_all_of_it() {
    for bench in Bench::both().await {
        let journal = bench.journal();
        let mut author = Author::new(&journal, NOON_US, ("ann", "demo", "/w"));
        author.begin("first badg");
        ship_all(bench.settings(), &journal).await;
        assert_eq!((keys(&bench, "badg").await.len(), keys(&bench, "badger").await.len()), (1, 0));
        author.begin("er, then fox");
        ship_all(bench.settings(), &journal).await;
        assert_eq!((keys(&bench, "badg").await.len(), keys(&bench, "badger").await.len()), (0, 1));
        assert_eq!(keys(&bench, "\"first badger then fox\"").await.len(), 1);
        assert_eq!(indexed(&bench, "1 = 1").await, 1);
    }
}

/// Only the newest hits of a text are looked at for a list of sessions: filters count before that, and
/// it is told if there are others.
#[tokio::test]
async fn a_list_of_sessions_finds_beneath_newer_hits_what_filters_ask_for() {
    for bench in Bench::both().await {
        let journal = bench.journal();
        let mut old = Author::new(&journal, NOON_US, ("ann", "codex", "/w"));
        old.prompt("a badger");
        old.tool("looks", "/w/badger/den.rs");
        let (id, mut other) =
            (old.id(), Author::new(&journal, NOON_US + 3_600_000_000, ("ann", "demo", "/w")));
        for number in 0..4200 {
            other.prompt(&format!("badger {number}"));
        }
        ship_all(bench.settings(), &journal).await;
        let history = history(&bench);
        let asked = |agent: Option<&str>, path: Option<&str>| conductor::ledger::history::Filter {
            text: Some("badger".to_owned()),
            agent: agent.map(str::to_owned),
            path: path.map(str::to_owned),
            ..Default::default()
        };
        for (agent, path, found, is_cut) in [
            (None, None, other.id(), true),
            (Some("demo"), None, other.id(), true),
            (Some("codex"), None, id, false),
            (None, Some("/w/badger"), id, false),
        ] {
            let page = history.sessions(&asked(agent, path)).await.unwrap();
            let ids: Vec<_> = page.items.iter().map(|session| session.session_id.clone()).collect();
            assert_eq!((ids, page.is_cut), (vec![found.to_string()], is_cut), "{agent:?} {path:?}");
            assert!(!page.more);
        }
    }
}

#[tokio::test]
async fn a_database_without_trigrams_finds_words_and_says_so() {
    let bench = Bench::postgres(Database::new().await);
    corpus(&bench, SEED).await;
    let filter = Filter { kinds: vec![conductor::ledger::search::Kind::Command], ..Filter::default() };
    let whole = history(&bench).search("orc", &filter).await.unwrap();
    assert!(!whole.items.is_empty() && whole.hint.is_none(), "--force has it");
    execute(&bench, "DROP INDEX search_docs_on_line").await;
    let words = history(&bench).search("orc", &filter).await.unwrap();
    assert_eq!(words.items, []);
    assert!(words.hint.unwrap().contains("CREATE EXTENSION pg_trgm"));
    let words = history(&bench).search("force", &filter).await.unwrap();
    assert_eq!(words.items.len(), whole.items.len());
    // What the hint says is the remedy.
    let hint = words.hint.unwrap();
    execute(&bench, &hint[hint.find("CREATE INDEX").unwrap()..]).await;
    assert_eq!(history(&bench).search("orc", &filter).await.unwrap().items.len(), whole.items.len());
}
