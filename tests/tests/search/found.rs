//! What is found, against looking through everything; filters, marks, and texts
//! that were typed to do harm.

use std::collections::BTreeSet;

use conductor::ledger::search::{Filter, Kind, SearchError};
use conductor_tests::shipping::Bench;

use crate::{
    corpus::{Lot, NOON_US, SECOND_US, Thing, all, corpus, history, key},
    naive::{Typed, fits},
};

const SEED: u64 = 20_261_116;

/// Something that a person might type, drawn by lot from what is there.
fn typed(lot: &mut Lot, things: &[Thing]) -> Vec<Typed> {
    let mut all = Vec::new();
    for _ in 0..=lot.below(3) {
        let text = &things[lot.below(things.len())].text;
        let words: Vec<_> =
            text.split(|c: char| c.is_whitespace() || c == '"').filter(|word| !word.is_empty()).collect();
        let from = lot.below(words.len());
        let to = (from + 1 + lot.below(3)).min(words.len());
        let mut text = words[from..to].join(" ").chars().take(40).collect::<String>();
        // Stars, and a dash that comes first, have a meaning.
        text = text.replace('*', "").trim_start_matches('-').trim().to_owned();
        if lot.below(4) == 0 {
            text = text.to_uppercase();
        }
        let mut prefix = false;
        if lot.below(4) == 0 {
            text = text.chars().take(1 + lot.below(4)).collect::<String>().trim().to_owned();
            prefix = text.ends_with(char::is_alphanumeric);
        }
        // What has no letter and no digit is no word.
        if text.starts_with(char::is_alphanumeric) {
            all.push(Typed { text, unwanted: !all.is_empty() && lot.below(5) == 0, prefix });
        }
    }
    all
}

#[tokio::test]
async fn what_is_found_is_what_looking_through_everything_finds() {
    let (mut searches, mut found) = (0, 0);
    for bench in Bench::both().await {
        let things = corpus(&bench, SEED).await;
        let history = history(&bench);
        let mut lot = Lot::new(SEED + 1);
        while searches % 150 != 149 {
            let typed = typed(&mut lot, &things);
            if typed.is_empty() {
                continue;
            }
            let kinds: Vec<_> = Kind::ALL.into_iter().filter(|_| lot.below(3) == 0).collect();
            let text = typed.iter().map(Typed::shown).collect::<Vec<_>>().join(" ");
            let filter = Filter { kinds: kinds.clone(), limit: 1 + lot.below(200), ..Filter::default() };
            let hits = all(&history, &text, &filter).await;
            let keys: BTreeSet<_> = hits.iter().map(key).collect();
            assert_eq!(keys.len(), hits.len(), "{text}: a hit came twice");
            let wanted = things.iter().filter(|thing| kinds.is_empty() || kinds.contains(&thing.kind));
            let wanted = wanted.filter(|thing| fits(&typed, thing.kind, &thing.text));
            let wanted: BTreeSet<_> = wanted.map(Thing::key).collect();
            let missed: Vec<_> = wanted.difference(&keys).collect();
            let wrong: Vec<_> = keys.difference(&wanted).collect();
            assert!(
                missed.is_empty() && wrong.is_empty(),
                "{text} {kinds:?}: missed {missed:?}, wrong {wrong:?}"
            );
            searches += 1;
            found += hits.len();
        }
        searches += 1;
    }
    // Else it would have shown nothing.
    assert!(found > 5_000, "{found} hits of {searches} searches");
}

#[tokio::test]
async fn both_databases_rank_alike_and_mark_what_was_searched_for() {
    let mut told = Vec::new();
    for bench in Bench::both().await {
        let things = corpus(&bench, SEED).await;
        let history = history(&bench);
        let mut all_hits = Vec::new();
        for text in ["rate limit", "\"limit limit\"", "fox* -the", "main.rs", "größe", "日本", "orc"] {
            let hits = all(&history, text, &Filter::default()).await;
            assert!(!hits.is_empty(), "{text}");
            for hit in &hits {
                let snippet = &hit.snippet;
                assert!(!snippet.ranges.is_empty(), "{text}: {snippet:?}");
                let mut before = 0;
                for (start, end) in &snippet.ranges {
                    assert!(before <= *start && start < end, "{text}: {snippet:?}");
                    before = *end;
                    let marked = snippet.text[*start..*end].to_lowercase();
                    let words = text.trim_matches('"').split(' ').map(|word| word.trim_end_matches('*'));
                    assert!(
                        words.clone().any(|word| marked.contains(&word.to_lowercase()))
                            || marked == "limit limit"
                            || marked.starts_with("main"),
                        "{text}: `{marked}`"
                    );
                }
                let thing = things.iter().find(|thing| thing.key() == key(hit)).unwrap();
                let shown = snippet.text.trim_matches('…');
                assert!(thing.text.contains(shown), "{text}: {shown} is not in {}", thing.text);
                assert_eq!(hit.at_us, thing.at_us, "{hit:?}");
                assert_eq!(
                    (hit.user_name.as_deref(), hit.agent.as_deref()),
                    (Some(thing.user), Some(thing.agent))
                );
                assert_eq!(hit.repository.as_deref(), Some(thing.repository));
            }
            // Sessions have other ids in the other database.
            all_hits
                .extend(hits.into_iter().map(|hit| (hit.seq, hit.kind, hit.at_us, hit.label, hit.snippet)));
        }
        told.push(all_hits);
    }
    assert_eq!(told[0], told[1]);
}

#[tokio::test]
async fn filters_narrow_and_nothing_else() {
    for bench in Bench::both().await {
        let things = corpus(&bench, SEED).await;
        let history = history(&bench);
        let some = |text: &str| Some(text.to_owned());
        let none = Filter::default;
        let (session, noon) = (things[40].session, NOON_US + 2 * 3600 * SECOND_US);
        type Fits = Box<dyn Fn(&Thing) -> bool>;
        let cases: Vec<(Filter, Fits)> = vec![
            (none(), Box::new(|_| true)),
            (Filter { user: some("ann"), ..none() }, Box::new(|t| t.user == "ann")),
            (Filter { user: some("an"), ..none() }, Box::new(|_| false)),
            (Filter { agent: some("codex"), ..none() }, Box::new(|t| t.agent == "codex")),
            (Filter { repository: some("/w/two/"), ..none() }, Box::new(|t| t.repository == "/w/two")),
            (Filter { repository: some("two"), ..none() }, Box::new(|t| t.repository.ends_with("/two"))),
            (Filter { repository: some("%wo"), ..none() }, Box::new(|_| false)),
            (Filter { session: Some(session), ..none() }, Box::new(move |t| t.session == session)),
            (Filter { since_us: Some(noon), ..none() }, Box::new(move |t| t.at_us >= noon)),
            (Filter { until_us: Some(noon), ..none() }, Box::new(move |t| t.at_us < noon)),
            (Filter { kinds: vec![Kind::Path], ..none() }, Box::new(|t| t.kind == Kind::Path)),
            (Filter { seen_by: some("bob"), ..none() }, Box::new(|t| t.user == "bob")),
            (
                Filter { seen_by: some("bob"), shared: vec![session], ..none() },
                Box::new(move |t| t.user == "bob" || t.session == session),
            ),
            (
                Filter {
                    seen_by: some("eve"),
                    shared: std::iter::repeat_with(uuid::Uuid::now_v7).take(300).chain([session]).collect(),
                    ..none()
                },
                Box::new(move |t| t.session == session),
            ),
            (
                Filter {
                    user: some("ann"),
                    agent: some("codex"),
                    kinds: vec![Kind::Tool, Kind::Command],
                    ..none()
                },
                Box::new(|t| {
                    t.user == "ann" && t.agent == "codex" && matches!(t.kind, Kind::Tool | Kind::Command)
                }),
            ),
        ];
        let limit = Typed { text: "limit".into(), unwanted: false, prefix: false };
        for (filter, wanted) in cases {
            let hits: BTreeSet<_> = all(&history, "limit", &filter).await.iter().map(key).collect();
            let wanted = things.iter().filter(|thing| wanted(thing));
            let wanted = wanted.filter(|thing| fits(std::slice::from_ref(&limit), thing.kind, &thing.text));
            assert_eq!(hits, wanted.map(Thing::key).collect(), "{filter:?}");
        }
    }
}

#[tokio::test]
async fn whatever_is_typed_is_only_searched_for() {
    for bench in Bench::both().await {
        let things = corpus(&bench, SEED).await;
        let history = history(&bench);
        for text in [
            "'; DROP TABLE search_docs; --",
            "limit') OR ('1'='1",
            "limit\" OR \"the",
            "words : limit",
            "limit NEAR/2 the",
            "NOT limit",
            "limit AND OR NOT",
            "(limit",
            "limit)",
            "{limit}",
            "^limit",
            "limit + the",
            "\"",
            "\"limit",
            "***",
            "limit\0the",
            "\u{0}",
            "\u{202e}limit",
            "%",
            "_",
            "\\",
            "lim\\",
            "a&b|!c<->d",
            "'limit':*",
            "$1",
            "?",
            "🦊",
            "limit:*",
            "e\u{301}t",
            "\u{fffd}\u{ffff}",
            "-limit",
            "x'41'",
            "%s%n",
            "limit\nthe\t50%",
        ] {
            match history.search(text, &Filter::default()).await {
                Ok(_) => {}
                Err(SearchError::Refused("text", why)) => {
                    assert!(why.contains("can be searched for"), "{text}: {why}");
                }
                Err(other) => panic!("{text:?}: {other}"),
            }
        }
        for odd in ["' OR 1=1 --", "\"", "x\u{0}y", "\\"] {
            let filter = Filter {
                user: Some(odd.into()),
                agent: Some(odd.into()),
                repository: Some(odd.into()),
                seen_by: Some(odd.into()),
                ..Filter::default()
            };
            // Postgres takes no NUL in any text, and says so.
            if let Ok(hits) = history.search("limit", &filter).await {
                assert_eq!(hits.items, [], "{odd}");
            }
        }
        assert_eq!(
            bench.number("SELECT count(*) FROM search_docs").await,
            i64::try_from(things.len()).unwrap()
        );
    }
}
