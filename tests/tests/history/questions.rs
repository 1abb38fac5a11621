//! The typed questions: filters, pages, and what one session did.

use conductor::ledger::{
    LedgerError,
    history::{Entry, FileFilter, FilePlace, Filter, History},
};
use conductor_tests::shipping::Bench;
use uuid::Uuid;

use crate::fixture::{About, EDITING, NOON_US, history, ledger};

const HOUR_US: i64 = 3_600_000_000;

fn three() -> [About; 3] {
    let other = About {
        user: "bob",
        agent: "codex",
        model: "sonnet_5",
        prompt: "write a poem about 50% off",
        answer: "Roses",
        title: "Poem",
        path: "/w/docs/poem.md",
    };
    let again = About { user: "bob", path: "/w/src/parser.rs.orig", title: "Again", ..EDITING };
    [EDITING, other, again]
}

/// As many ids as a question takes, with this one first.
fn many(id: Uuid) -> Vec<Uuid> {
    std::iter::once(id).chain(std::iter::repeat_with(Uuid::now_v7)).take(12_000).collect()
}

async fn titles(history: &History, filter: Filter) -> Vec<String> {
    let page = history.sessions(&filter).await.unwrap();
    page.items.into_iter().map(|session| session.title.unwrap()).collect()
}

#[tokio::test]
async fn sessions_are_found_by_every_filter() {
    for bench in Bench::both().await {
        let ids = ledger(&bench, &three()).await;
        let history = history(&bench);
        let some = |text: &str| Some(text.to_owned());
        let none = Filter::default;
        let cases: Vec<(Filter, &[&str])> = vec![
            (none(), &["Again", "Poem", "A faster parser"]),
            (Filter { user: some("bob"), ..none() }, &["Again", "Poem"]),
            (Filter { seen_by: some("ann"), ..none() }, &["A faster parser"]),
            (Filter { seen_by: some("ann"), user: some("bob"), ..none() }, &[]),
            (Filter { seen_by: some("ann"), shared: vec![ids[1]], ..none() }, &["Poem", "A faster parser"]),
            (Filter { seen_by: some("eve"), shared: many(ids[2]), ..none() }, &["Again"]),
            (Filter { seen_by: some("eve"), shared: vec![ids[2]], user: some("ann"), ..none() }, &[]),
            (Filter { agent: some("codex"), ..none() }, &["Poem"]),
            (Filter { agent: some("cod"), ..none() }, &[]),
            (Filter { model: some("OPUS"), ..none() }, &["Again", "A faster parser"]),
            // Characters that mean something in a pattern mean themselves.
            (Filter { model: some("sonnet_5"), ..none() }, &["Poem"]),
            (Filter { model: some("opus_5"), ..none() }, &[]),
            // A tool call's title has it in all of them.
            (Filter { text: some("PARSER"), ..none() }, &["Again", "Poem", "A faster parser"]),
            (Filter { text: some("\"parser FASTER\""), ..none() }, &["Again", "A faster parser"]),
            (Filter { text: some("roses"), ..none() }, &["Poem"]),
            (Filter { text: some("50%"), ..none() }, &["Poem"]),
            (Filter { text: some("5%off"), ..none() }, &[]),
            (Filter { text: some("' OR 1=1 --"), ..none() }, &[]),
            (Filter { path: some("/w/src/parser.rs"), ..none() }, &["A faster parser"]),
            (Filter { path: some("parser.rs"), ..none() }, &["A faster parser"]),
            (Filter { path: some("src/"), ..none() }, &["Again", "A faster parser"]),
            (Filter { path: some("/w"), ..none() }, &["Again", "Poem", "A faster parser"]),
            (Filter { path: some("arser.rs"), ..none() }, &[]),
            (Filter { since_us: Some(NOON_US + HOUR_US), ..none() }, &["Again", "Poem"]),
            (Filter { since_us: Some(NOON_US + 9 * HOUR_US), ..none() }, &[]),
            (Filter { id_prefix: Some(ids[1].to_string()[..36].to_owned()), ..none() }, &["Poem"]),
            (Filter { id_prefix: some("00"), ..none() }, &[]),
            (Filter { id_prefix: some("no id"), ..none() }, &[]),
            (Filter { limit: 1, ..none() }, &["Again"]),
            (Filter { after: Some(ids[2]), ..none() }, &["Poem", "A faster parser"]),
            (
                Filter {
                    user: some("bob"),
                    agent: some("demo"),
                    text: some("faster"),
                    path: some("src"),
                    ..none()
                },
                &["Again"],
            ),
        ];
        for (filter, expected) in cases {
            let shown = format!("{filter:?}");
            assert_eq!(titles(&history, filter).await, expected, "{shown}");
        }
        let page = history.sessions(&Filter { limit: 2, ..none() }).await.unwrap();
        assert!(page.more);
        assert!(!history.sessions(&Filter { limit: 3, ..none() }).await.unwrap().more);
    }
}

#[tokio::test]
async fn a_session_tells_all_it_did() {
    let mut told = Vec::new();
    for bench in Bench::both().await {
        let id = ledger(&bench, &[EDITING]).await[0];
        let history = history(&bench);
        let session = history.session(id).await.unwrap().unwrap();
        assert_eq!(session.session_id, id.to_string());
        assert_eq!(session.user_name.as_deref(), Some("ann"));
        assert_eq!(session.model.as_deref(), Some("opus-5"));
        assert_eq!(session.opened_us, Some(NOON_US));
        assert_eq!(session.first_prompt.as_deref(), Some(EDITING.prompt));
        assert_eq!((session.is_open, session.turns, session.tool_calls, session.frames), (true, 1, 1, 21));

        let mut entries = history.entries(id);
        let mut all = Vec::new();
        loop {
            let some = entries.next().await.unwrap();
            if some.is_empty() {
                break;
            }
            all.extend(some);
        }
        assert!(entries.next().await.unwrap().is_empty(), "the end stays the end");
        let count = |wanted: fn(&Entry) -> bool| all.iter().filter(|entry| wanted(entry)).count();
        assert_eq!(count(|e| matches!(e, Entry::Turn(t) if t.stop_reason.as_deref() == Some("end_turn"))), 1);
        assert_eq!(count(|e| matches!(e, Entry::Message(m) if m.text.as_deref() == Some("hmm, yes"))), 1);
        assert_eq!(count(|e| matches!(e, Entry::Message(m) if m.text.as_deref() == Some(EDITING.answer))), 1);
        assert_eq!(
            count(|e| matches!(e, Entry::ToolCall(c) if c.name.as_deref() == Some("Edit")
                && c.status.as_deref() == Some("completed") && c.duration_us == Some(3_000_000)
                && c.input.as_deref().unwrap().contains("parser.rs"))),
            1
        );
        assert_eq!(
            count(|e| matches!(e, Entry::Decision(d) if d.decision.as_deref() == Some("allow")
                && d.option_kind.as_deref() == Some("allow_once") && d.decided_by.as_deref() == Some("editor")
                && d.decided_user.as_deref() == Some("ann"))),
            1
        );
        assert_eq!(
            count(|e| matches!(e, Entry::Command(c) if c.line.as_deref() == Some("cargo test")
                && c.exit_code == Some(3))),
            1
        );
        assert_eq!(count(|e| matches!(e, Entry::Usage(u) if u.cost == Some(0.25))), 1);
        assert_eq!(count(|e| matches!(e, Entry::Usage(u) if u.output_tokens == Some(500))), 1);
        assert_eq!(
            count(|e| matches!(e, Entry::FileAccess(f) if f.path.as_deref() == Some("/etc/shadow")
                && f.source.as_deref() == Some("fs") && f.error.is_some())),
            1
        );
        assert_eq!(
            count(|e| matches!(e, Entry::FileAccess(f) if f.path.as_deref() == Some(EDITING.path)
                && f.access.as_deref() == Some("write"))),
            1
        );
        // Each database writes JSON with blanks of its own; ids differ. (The
        // fixture has members in the order that `jsonb` gives them.)
        let plain = format!("{all:?}").replace(&id.to_string(), "ID").replace([' ', '\\'], "");
        told.push(plain);
        assert_eq!(history.session(Uuid::now_v7()).await.unwrap(), None);
        assert!(history.entries(Uuid::now_v7()).next().await.unwrap().is_empty());
    }
    assert_eq!(told[0], told[1], "both databases tell the same");
}

#[tokio::test]
async fn a_long_session_comes_in_parts() {
    for bench in Bench::both().await {
        let journal = bench.journal();
        let (session, _) = conductor_tests::shipping::session(&journal, 1200);
        conductor_tests::shipping::ship_all(bench.settings(), &journal).await;
        let mut entries = history(&bench).entries(session.id);
        let (mut turns, mut files, mut largest) = (Vec::new(), Vec::new(), 0);
        loop {
            let some = entries.next().await.unwrap();
            if some.is_empty() {
                break;
            }
            largest = largest.max(some.len());
            for entry in some {
                match entry {
                    Entry::Turn(turn) => turns.push(turn.turn),
                    Entry::FileAccess(access) => files.push((access.seq, access.item)),
                    _ => {}
                }
            }
        }
        assert_eq!(turns.len(), 1200);
        assert!(turns.is_sorted_by(|a, b| a < b), "in order, none twice");
        assert!(files.len() >= 1200 && files.is_sorted_by(|a, b| a < b), "{} accesses", files.len());
        assert!(largest <= 1000, "{largest}");
    }
}

#[tokio::test]
async fn accesses_to_files_are_a_feed() {
    for bench in Bench::both().await {
        let ids = ledger(&bench, &three()).await;
        let history = history(&bench);
        let some = |text: &str| Some(text.to_owned());
        let none = FileFilter::default;
        let all = history.files(&none()).await.unwrap().items;
        assert!(all.len() >= 6, "{all:?}");
        assert!(all.is_sorted_by(|a, b| a.at_us >= b.at_us), "newest first");
        let count = async |filter: FileFilter| history.files(&filter).await.unwrap().items.len();
        assert_eq!(count(FileFilter { path: some("/etc"), ..none() }).await, 3);
        assert_eq!(count(FileFilter { path: some("/etc"), user: some("bob"), ..none() }).await, 2);
        assert_eq!(count(FileFilter { path: some("shadow"), seen_by: some("ann"), ..none() }).await, 1);
        let shared =
            FileFilter { path: some("shadow"), seen_by: some("ann"), shared: vec![ids[1]], ..none() };
        assert_eq!(count(shared).await, 2);
        assert_eq!(count(FileFilter { path: some("shadow"), agent: some("codex"), ..none() }).await, 1);
        assert_eq!(count(FileFilter { path: some("shadow"), session: Some(ids[0]), ..none() }).await, 1);
        assert_eq!(count(FileFilter { access: some("delete"), ..none() }).await, 0);
        assert_eq!(
            count(FileFilter { path: some("shadow"), since_us: Some(NOON_US + HOUR_US), ..none() }).await,
            2
        );
        // Page by page, nothing is missed and nothing comes twice.
        let mut paged = Vec::new();
        let mut after = None;
        loop {
            let page = history.files(&FileFilter { limit: 2, after, ..none() }).await.unwrap();
            after = page.items.last().map(|last| FilePlace {
                at_us: last.at_us.unwrap(),
                session: last.session_id.parse().unwrap(),
                seq: last.seq,
                item: last.item,
            });
            paged.extend(page.items);
            if !page.more {
                break;
            }
        }
        assert_eq!(paged, all);
    }
}

#[tokio::test]
async fn a_ledger_that_is_not_there_is_named_without_its_password() {
    let bench = Bench::sqlite();
    let settings = bench.settings_at("postgres://ann:s3cret-word@127.0.0.1:1/ledger");
    let error = History::new(settings, None).sessions(&Filter::default()).await.unwrap_err();
    assert!(matches!(error, LedgerError::Unavailable(_)), "{error}");
    assert!(!error.to_string().contains("s3cret"), "{error}");
}
