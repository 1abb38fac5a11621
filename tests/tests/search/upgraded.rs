//! A ledger whose index is from before it had spans of time and pairs of words: everything is
//! found from the first moment on, and indexed again behind it.

use conductor::ledger::search::{Filter, Snippet};
use conductor_tests::{
    postgres::Database,
    shipping::{Bench, ship_all},
};
use sqlx::Executor as _;
use uuid::Uuid;

use crate::corpus::{Author, NOON_US, SECOND_US, all, corpus, history, key};

const SEED: u64 = 11;

const MIGRATION: &str = include_str!("../../../migrations/postgres/0014_search_spans.sql");

/// What there was before the migration.
const BEFORE: &str = "DROP INDEX search_docs_on_words, search_docs_on_line; \
    ALTER TABLE search_docs DROP COLUMN pairs; DROP FUNCTION search_spans(bigint); \
    CREATE INDEX search_docs_on_words ON search_docs USING gin (words) WITH (gin_pending_list_limit = 512); \
    CREATE INDEX search_docs_on_line ON search_docs USING gin (line gin_trgm_ops) WITH (gin_pending_list_limit = 512)";

/// What is found, in its order. Scores count from the newest that was proposed, which may be another.
async fn found(bench: &Bench) -> Vec<((Uuid, &'static str, i64), Snippet)> {
    let history = history(bench);
    let mut hits = Vec::new();
    for text in ["rate", "\"rate fox\"", "\"limit limit\"", "rate_limit", "orc", "fox* -the", "\"the ra\"*"] {
        let found = all(&history, text, &Filter::default()).await;
        hits.extend(found.into_iter().map(|hit| (key(&hit), hit.snippet)));
    }
    hits
}

#[tokio::test]
async fn an_index_from_before_finds_the_same_and_is_brought_up_to_date() {
    let bench = Bench::postgres(Database::new().await);
    corpus(&bench, SEED).await;
    let wanted = found(&bench).await;
    assert!(wanted.len() > 100, "{}", wanted.len());
    let unknown = "SELECT count(*) FROM search_docs WHERE pairs = '{-32768}'";
    assert_eq!(bench.number(unknown).await, 0);

    let mut owner = bench.database().connect().await;
    owner.execute(BEFORE).await.unwrap();
    owner.execute(MIGRATION).await.unwrap();
    let documents = bench.number("SELECT count(*) FROM search_docs").await;
    assert_eq!(bench.number(unknown).await, documents);
    assert_eq!(bench.number("SELECT count(*) FROM search_pending").await, documents);
    assert_eq!(found(&bench).await, wanted, "before anything is indexed again");

    ship_all(bench.settings(), &bench.journal()).await;
    assert_eq!(
        (bench.number(unknown).await, bench.number("SELECT count(*) FROM search_pending").await),
        (0, 0)
    );
    assert_eq!(found(&bench).await, wanted);
}

/// What a session is asked, so often that what is only in an old one lies behind what is walked.
const EACH: usize = 120;

#[tokio::test]
async fn stretches_of_time_are_those_that_the_database_knows() {
    // Over many years, so that there are several, and with what Postgres knows of where they are.
    let bench = Bench::postgres(Database::new().await);
    let journal = bench.journal();
    let year = 365 * 86_400 * SECOND_US;
    for nth in 0..40_i64 {
        let at_us = NOON_US - nth * nth * year / 60;
        let mut author = Author::new(&journal, at_us, ("ann", "demo", "/w"));
        for _ in 0..EACH {
            author.prompt(match nth {
                38 => "heron in the fog",
                nth if nth % 3 == 0 => "badger in the rain",
                _ => "fox in the sun",
            });
        }
    }
    ship_all(bench.settings(), &journal).await;
    let history = history(&bench);
    for _ in 0..2 {
        for (text, share) in [
            ("badger", 14),
            ("\"the sun\"", 25),
            ("in -x", 40),
            ("bad*", 14),
            ("her*", 1),
            ("\"in the fo\"*", 1),
            ("nowhere", 0),
        ] {
            let hits = all(&history, text, &Filter { limit: 200, ..Filter::default() }).await;
            assert_eq!(hits.len(), share * EACH, "{text}");
            assert!(hits.windows(2).all(|two| two[0].at_us >= two[1].at_us), "newest first: {text}");
        }
        bench.database().connect().await.execute("ANALYZE search_docs").await.unwrap();
    }
}
