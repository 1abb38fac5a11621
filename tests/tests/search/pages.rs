//! Pages: all of what was there, once, whatever is recorded meanwhile.

use std::collections::BTreeSet;

use conductor::ledger::search::{Cursor, Filter, Kind, SearchError};
use conductor_tests::shipping::{Bench, ship_all};

use crate::corpus::{Author, NOON_US, SECOND_US, corpus, history, key};

const SEED: u64 = 7;

#[tokio::test]
async fn pages_stay_as_they_are_while_more_is_recorded() {
    for bench in Bench::both().await {
        let things = corpus(&bench, SEED).await;
        let there: BTreeSet<_> = things.iter().map(|thing| thing.key()).collect();
        let history = history(&bench);
        let whole = Filter { limit: 500, ..Filter::default() };
        let wanted = history.search("the", &whole).await.unwrap().items;
        assert!(wanted.len() > 300, "more than one window: {}", wanted.len());

        let mut filter = Filter { limit: 60, ..Filter::default() };
        let mut pages = Vec::new();
        let mut nth = 0;
        loop {
            let page = history.search("the", &filter).await.unwrap();
            pages.extend(page.items);
            filter.after = page.next;
            if filter.after.is_none() {
                break;
            }
            // Newer, older, and in the midst of what is being told.
            nth += 1;
            let journal = bench.journal();
            for hours in [20, -20, 3] {
                let at_us = NOON_US + hours * 3600 * SECOND_US + nth;
                let mut author = Author::new(&journal, at_us, ("bob", "demo", "/w/one"));
                author.prompt("the new one");
                author.answer(&["the ", "the answer"]);
            }
            ship_all(bench.settings(), &journal).await;
        }
        assert!(nth >= 4, "{nth} pages");
        let keys: BTreeSet<_> = pages.iter().map(key).collect();
        assert_eq!(keys.len(), pages.len(), "a hit came twice");
        let missed: Vec<_> = wanted.iter().map(key).filter(|hit| !keys.contains(hit)).collect();
        assert!(missed.is_empty(), "{missed:?}");
        // What was there stands in the order it had.
        let order: Vec<_> = pages.iter().map(key).filter(|hit| there.contains(hit)).collect();
        assert_eq!(order[..60], wanted.iter().map(key).collect::<Vec<_>>()[..60]);
    }
}

#[tokio::test]
async fn the_best_come_first_and_the_newest_of_equals() {
    for bench in Bench::both().await {
        let journal = bench.journal();
        let day = 86_400 * SECOND_US;
        let said = |days: i64, text: &str| {
            let mut author = Author::new(&journal, NOON_US + days * day, ("ann", "demo", "/w"));
            author.prompt(text);
        };
        said(0, "badger and nothing else");
        said(1, "badger badger badger");
        said(2, &format!("badger among {}", "many other words ".repeat(100)));
        said(3, "badger and nothing else");
        said(-400, "badger and nothing else");
        ship_all(bench.settings(), &journal).await;
        let hits = history(&bench).search("Badger", &Filter::default()).await.unwrap().items;
        let days: Vec<_> = hits.iter().map(|hit| (hit.at_us - NOON_US) / day).collect();
        assert_eq!(days, [1, 3, 0, -399, 2], "{hits:?}");
        assert!(hits.windows(2).all(|pair| pair[0].score >= pair[1].score));
    }
}

#[tokio::test]
async fn a_token_is_for_one_search_only() {
    let bench = Bench::sqlite();
    corpus(&bench, SEED).await;
    let history = history(&bench);
    let first = history.search("the", &Filter { limit: 1, ..Filter::default() }).await.unwrap();
    let after = Cursor::parse(&first.next.unwrap().token());
    let same = Filter { limit: 2, after, ..Filter::default() };
    assert_eq!(history.search("the", &same).await.unwrap().items.len(), 2);
    for (text, filter) in [("a", same.clone()), ("the", Filter { kinds: vec![Kind::Path], ..same })] {
        let refused = history.search(text, &filter).await.unwrap_err();
        assert!(matches!(refused, SearchError::Refused("page_token", _)), "{refused}");
    }
}
