//! The same in both databases, with all that a whole ledger has beside frames.

use std::fs;

use conductor::{
    ledger::{
        self, Settings,
        evidence::{
            Hash, NOTHING,
            chain::Link,
            checkpoint::{Checkpoint, Draft, Entry, Head, Kind},
            finding::What,
            key::Key,
            log::{self, Log},
            sha256,
        },
    },
    record::StreamKind,
};
use conductor_tests::{
    postgres::Database,
    shipping::{Bench, append, session, stream, texts, turn},
};
use sqlx::AssertSqlSafe;
use uuid::Uuid;

use crate::fixture::{Intruder, checked, checked_with, recorded, shipped, slowly, told};

#[tokio::test]
async fn what_is_done_to_a_ledger_is_found_in_both_databases() {
    for bench in Bench::both().await {
        let (_journal, streams) = recorded(&bench).await;
        let settings = bench.settings();
        let green = checked(&settings).await;
        assert_eq!(green.findings, [], "{:?}", settings.url);
        assert_eq!((green.seen.streams, green.seen.decisions, green.seen.unsigned), (3, 3, 0));
        assert!(green.logs[0].is_known);
        let mut intruder = Intruder::of(&bench).await;
        intruder.remember().await;
        let (first, second) = (streams[0].id, streams[1].id);
        let own = format!("WHERE stream_id = '{first}'");
        let bytes = intruder.bytes(b"{}");
        let hash = intruder.bytes(&sha256(b"{}"));
        let decided: i64 =
            bench.number(&format!("SELECT min(seq) FROM decisions WHERE session_id = '{first}'")).await;
        let cases = [
            (format!("UPDATE frames SET raw = {bytes} {own} AND seq = 3"), What::Altered, first, 3),
            (format!("UPDATE frames SET raw = {bytes}, hash = {hash} {own} AND seq = 3"), What::Displaced, first, 3),
            (format!("UPDATE frames SET raw = NULL {own} AND seq = 4"), What::Altered, first, 4),
            (format!("UPDATE frames SET chain = NULL {own} AND seq = 4"), What::Altered, first, 4),
            (format!("UPDATE frames SET at_us = at_us + 1 {own} AND seq = 1"), What::Displaced, first, 1),
            (format!("UPDATE frames SET origin = 'editor' {own} AND seq = 5"), What::Displaced, first, 5),
            (format!("UPDATE frames SET method = 'x' {own} AND seq = 3"), What::Altered, first, 3),
            (format!("UPDATE frames SET kind = 'result' {own} AND seq = 3"), What::Altered, first, 3),
            (format!("UPDATE frames SET json = NULL {own} AND seq = 3"), What::Altered, first, 3),
            (format!("DELETE FROM frames {own} AND seq = 6"), What::Missing, first, 6),
            (format!("DELETE FROM frames {own} AND seq = 1"), What::Missing, first, 1),
            (format!("DELETE FROM frames {own} AND seq > 7"), What::TailCut, first, 8),
            (format!("DELETE FROM frames WHERE stream_id = '{second}'"), What::StreamMissing, second, 1),
            (
                format!("UPDATE frames SET seq = 1000 {own} AND seq = 2; UPDATE frames SET seq = 2 {own} AND seq = 5;
                    UPDATE frames SET seq = 5 {own} AND seq = 1000"),
                What::Displaced,
                first,
                2,
            ),
            (
                format!("DELETE FROM frames {own} AND seq > 9; UPDATE stream_heads SET seq = 9 {own};
                    DELETE FROM checkpoint_heads {own} AND seq > 9"),
                What::HeadsDisagree,
                first,
                9,
            ),
            (format!("DELETE FROM stream_heads {own}"), What::HeadsDisagree, first, 26),
            (
                format!("UPDATE decisions SET decision = 'reject' WHERE session_id = '{first}' AND seq = {decided}"),
                What::DecisionDiffers,
                first,
                decided,
            ),
            (
                format!("DELETE FROM decisions WHERE session_id = '{first}' AND seq = {decided}"),
                What::DecisionDiffers,
                first,
                decided,
            ),
        ];
        for (statement, what, stream, seq) in cases {
            intruder.run(&statement).await;
            let findings = checked(&settings).await.findings;
            let found = told(&findings);
            assert!(found.contains(&(what, Some(stream), Some(seq))), "{statement}: {findings:?}");
            let one = checked_with(&settings, |options| options.session = Some(stream)).await;
            assert!(!one.findings.is_empty(), "{statement}: not found when the session is named");
            intruder.undo().await;
        }
        assert_eq!(checked(&settings).await.findings, []);
        let journal = green.logs[0].journal;
        let checkpoints = [
            ("UPDATE checkpoints SET at_us = at_us + 1 WHERE number = 2", What::CheckpointAltered, 2),
            ("UPDATE checkpoints SET kind = 'nonsense' WHERE number = 2", What::CheckpointAltered, 2),
            ("DELETE FROM checkpoints WHERE number = 2", What::CheckpointMissing, 2),
            ("DELETE FROM checkpoints WHERE number = 3", What::CheckpointMissing, 3),
            ("UPDATE checkpoint_heads SET seq = seq + 1 WHERE number = 3", What::CheckpointAltered, 3),
            ("DELETE FROM checkpoint_heads WHERE number = 2", What::CheckpointAltered, 2),
        ];
        for (statement, what, number) in checkpoints {
            intruder.run(statement).await;
            let findings = checked(&settings).await.findings;
            assert!(
                told(&findings).contains(&(what, Some(journal), Some(number))),
                "{statement}: {findings:?}"
            );
            intruder.undo().await;
        }
        // The file, too: cut, and changed.
        let kept = fs::read_to_string(&settings.evidence.log).unwrap();
        let lines: Vec<_> = kept.lines().collect();
        fs::write(&settings.evidence.log, format!("{}\n", lines[..2].join("\n"))).unwrap();
        let found = told(&checked(&settings).await.findings);
        assert_eq!(found, [(What::CheckpointMissing, Some(journal), Some(3))]);
        // A copy that is kept elsewhere may be older.
        assert_eq!(checked_with(&settings, |options| options.is_copy = true).await.findings, []);
        fs::write(&settings.evidence.log, kept.replacen("\"seq\":", "\"seq\":1", 1)).unwrap();
        assert!(!checked(&settings).await.findings.is_empty());
        fs::write(&settings.evidence.log, kept).unwrap();
        assert_eq!(checked(&settings).await.findings, []);
        intruder.close().await;
    }
}

/// The rows of a stream, and what a chain through them is.
pub async fn rechained(settings: &Settings, intruder: &mut Intruder, stream: Uuid, changed: i64) -> Head {
    let columns = "stream_kind || '|' || at_us || '|' || origin || '|' || destination || '|' || \
         coalesce(CAST(outgoing_id AS text), '') || '|' || seq";
    let statement = format!("SELECT {columns} FROM frames WHERE stream_id = '{stream}' ORDER BY seq");
    let mut previous: Hash = NOTHING;
    let mut last = 0;
    for row in texts(settings, &statement).await {
        let parts: Vec<_> = row.split('|').collect();
        let seq: i64 = parts[5].parse().unwrap();
        let hex = if settings.url.is_empty() { "lower(hex(hash))" } else { "encode(hash, 'hex')" };
        let place = format!("WHERE stream_id = '{stream}' AND seq = {seq}");
        let stored = texts(settings, &format!("SELECT {hex} FROM frames {place}")).await;
        let hash = ledger::evidence::unhex(&stored[0]).unwrap();
        let mut at_us: i64 = parts[1].parse().unwrap();
        if seq == changed {
            at_us += 1;
            intruder.run(&format!("UPDATE frames SET at_us = {at_us} {place}")).await;
        }
        let link = Link {
            stream,
            stream_kind: parts[0],
            seq,
            at_us,
            origin: parts[2],
            destination: parts[3],
            outgoing: parts[4].parse().ok(),
            hash: &hash,
        };
        previous = link.after(&previous);
        let chain = intruder.bytes(&previous);
        intruder.run(&format!("UPDATE frames SET chain = {chain} {place}")).await;
        last = seq;
    }
    let chain = intruder.bytes(&previous);
    intruder.run(&format!("UPDATE stream_heads SET chain = {chain} WHERE stream_id = '{stream}'")).await;
    Head { stream, seq: last, chain: previous }
}

#[tokio::test]
async fn history_that_is_rewritten_with_its_chain_is_found_by_the_checkpoint() {
    for bench in Bench::both().await {
        let (_journal, streams) = recorded(&bench).await;
        let settings = bench.settings();
        let right = *Key::load(&settings.evidence.key).unwrap().unwrap().public();
        let mut intruder = Intruder::of(&bench).await;
        let head = rechained(&settings, &mut intruder, streams[2].id, 4).await;
        let found = checked(&settings).await.findings;
        assert!(told(&found).contains(&(What::Altered, Some(head.stream), Some(head.seq))), "{found:?}");

        // Whoever rewrites the checkpoints, too, has to sign them, and has another key.
        let entries: Vec<Entry> = log::read(&settings.evidence.log).unwrap().map(Result::unwrap).collect();
        let forger = Key::generate().unwrap();
        let mut forged: Vec<Checkpoint> = Vec::new();
        for entry in entries {
            let it = entry.checkpoint;
            let note = if it.kind == Kind::Key { forger.public().base64() } else { it.note };
            let heads =
                entry.heads.iter().map(|old| if old.stream == head.stream { head } else { *old }).collect();
            let draft = Draft { kind: it.kind, at_us: it.at_us, heads, note };
            let Entry { checkpoint, .. } = Entry::sign(draft, it.journal, forged.last(), &forger);
            let chain = intruder.bytes(&head.chain);
            let (previous, root) = (intruder.bytes(&checkpoint.previous), intruder.bytes(&checkpoint.root));
            let signature: Vec<u8> = (0..128)
                .step_by(2)
                .map(|at| u8::from_str_radix(&checkpoint.signature[at..at + 2], 16).unwrap())
                .collect();
            let (signature, id) = (intruder.bytes(&signature), &checkpoint.key_id);
            let (number, note) = (checkpoint.number, &checkpoint.note);
            intruder
                .run(&format!(
                    "UPDATE checkpoints SET previous = {previous}, root = {root}, signature = {signature}, \
                     key_id = '{id}', note = '{note}' WHERE number = {number}; \
                     UPDATE checkpoint_heads SET chain = {chain} WHERE stream_id = '{}'",
                    head.stream
                ))
                .await;
            forged.push(checkpoint);
        }
        // Alone, it is a good ledger: only what lies elsewhere shows that it is not ours.
        let alone = checked_with(&settings, |options| (options.log, options.keys) = (None, Vec::new())).await;
        assert_eq!(alone.findings, []);
        assert!(!alone.logs[0].is_known);
        let by_key = checked_with(&settings, |options| options.log = None).await.findings;
        assert_eq!(told(&by_key), [(What::BadSignature, None, None)]);
        let by_file = checked_with(&settings, |options| options.keys.clear()).await.findings;
        assert!(
            told(&by_file)
                .iter()
                .any(|(what, _, number)| (*what, *number) == (What::CheckpointAltered, Some(1)))
        );
        assert_ne!(right, *forger.public());
        intruder.close().await;
    }
}

#[tokio::test]
async fn both_databases_have_the_same_chain() {
    let (sqlite, postgres) = (Bench::sqlite(), Bench::postgres(Database::new().await));
    let (journal, _) = recorded(&sqlite).await;
    let other = Settings { evidence: sqlite.settings().evidence, ..postgres.settings() };
    shipped(other.clone(), &journal).await;
    let of_sqlite = "SELECT stream_id || seq || lower(hex(chain)) FROM frames ORDER BY stream_id, seq";
    let of_postgres =
        "SELECT CAST(stream_id AS text) || seq || encode(chain, 'hex') FROM frames ORDER BY stream_id, seq";
    let chains = texts(&sqlite.settings(), of_sqlite).await;
    assert_eq!(chains.len(), 52);
    assert_eq!(chains, texts(&other, of_postgres).await);
    assert_eq!(checked(&other).await.findings, []);
}

#[tokio::test]
async fn an_import_keeps_chain_and_signatures() {
    for bench in Bench::both().await {
        let from = Bench::sqlite();
        let (_journal, streams) = recorded(&from).await;
        let settings = bench.settings();
        // Whoever imports where a service has been signs what comes; the other's log stays.
        let journal = bench.journal();
        ledger::import(&settings, &from.file(), |_| {}).await.unwrap();
        let imported = checked(&settings).await;
        assert_eq!((imported.findings, imported.seen.unsigned, imported.seen.streams), (Vec::new(), 0, 3));
        session(&journal, 1);
        shipped(slowly(&bench), &journal).await;
        let report = checked(&settings).await;
        assert_eq!((report.findings, report.seen.unsigned, report.seen.streams), (Vec::new(), 0, 4));
        let theirs = *Key::load(&from.settings().evidence.key).unwrap().unwrap().public();
        let known = checked_with(&settings, |options| options.keys.push(theirs)).await;
        assert_eq!(known.logs.iter().filter(|log| log.is_known).count(), 2, "{:?}", known.logs);
        let mut intruder = Intruder::of(&bench).await;
        intruder.run(&format!("DELETE FROM frames WHERE stream_id = '{}' AND seq = 3", streams[0].id)).await;
        let found = told(&checked(&settings).await.findings);
        assert_eq!(found, [(What::Missing, Some(streams[0].id), Some(3))]);
        intruder.close().await;
    }
}

/// A ledger from before there were chains goes on with one.
#[tokio::test]
async fn rows_without_a_link_are_continued() {
    for bench in Bench::both().await {
        let journal = bench.journal();
        let (old, _) = session(&journal, 1);
        shipped(slowly(&bench), &journal).await;
        let mut intruder = Intruder::of(&bench).await;
        intruder
            .run("UPDATE frames SET chain = NULL; DELETE FROM stream_heads; DELETE FROM checkpoint_heads; DELETE FROM checkpoints")
            .await;
        fs::remove_file(bench.settings().evidence.log).unwrap();
        turn(&journal, old, 2);
        shipped(slowly(&bench), &journal).await;
        let report = checked(&bench.settings()).await;
        assert_eq!((report.findings, report.seen.unchained, report.seen.unsigned), (Vec::new(), 12, 0));
        // They are covered by what was signed behind them.
        intruder
            .run(&format!("UPDATE frames SET at_us = 1 WHERE stream_id = '{}' AND seq = 5", old.id))
            .await;
        assert_eq!(checked(&bench.settings()).await.findings.len(), 1);
        intruder.close().await;
    }
}

/// Erasure and retention are signed in the same log; what they cover is no finding.
#[tokio::test]
async fn what_is_erased_or_retained_on_record_is_no_finding() {
    for bench in Bench::both().await {
        let (journal, streams) = recorded(&bench).await;
        let settings = bench.settings();
        let head = |stream: Uuid| {
            let entries = log::read(&settings.evidence.log).unwrap().map(Result::unwrap);
            entries.flat_map(|entry| entry.heads).filter(|head| head.stream == stream).last().unwrap()
        };
        let (erased, retained) = (head(streams[1].id), head(streams[2].id));
        let mut intruder = Intruder::of(&bench).await;
        intruder
            .run(&format!(
                "UPDATE frames SET raw = NULL, json = NULL WHERE stream_id = '{}'; \
                 DELETE FROM frames WHERE stream_id = '{}'; DELETE FROM stream_heads WHERE stream_id = '{}'",
                erased.stream, retained.stream, retained.stream
            ))
            .await;
        let before = told(&checked(&settings).await.findings);
        assert_eq!(
            before,
            [
                (What::Altered, Some(erased.stream), Some(1)),
                (What::StreamMissing, Some(retained.stream), Some(1))
            ]
        );
        let log = Log::new(settings.evidence.clone(), journal.id());
        log.append(Kind::Erased, vec![erased], "asked for").unwrap();
        log.append(Kind::Retained, vec![retained], "older than 90d").unwrap();
        // The next start puts them into the table.
        shipped(slowly(&bench), &journal).await;
        let after = checked(&settings).await;
        assert_eq!((after.findings, after.seen.retained), (Vec::new(), 1));
        assert_eq!(after.seen.erased, 14);
        intruder.close().await;
    }
}

#[tokio::test]
async fn a_second_frame_of_a_number_does_not_break_the_chain() {
    for bench in Bench::both().await {
        let journal = bench.journal();
        let it = stream(StreamKind::Session);
        let line = |text: &str| vec![text.as_bytes().to_vec()];
        let append = |text: &str| {
            append(
                &journal,
                it,
                conductor::record::Origin::Agent,
                conductor::record::Destination::Editor,
                &line(text),
            )
        };
        append("one");
        append("two");
        shipped(slowly(&bench), &journal).await;
        // The ledger has another second frame, and forgot where it was.
        let mut intruder = Intruder::of(&bench).await;
        let (raw, hash) = (intruder.bytes(b"other"), intruder.bytes(&sha256(b"other")));
        intruder
            .run(&format!(
                "DELETE FROM journals; DELETE FROM stream_heads; DELETE FROM checkpoint_heads; DELETE FROM checkpoints; \
                 UPDATE frames SET raw = {raw}, hash = {hash}, chain = NULL, kind = 'opaque' WHERE seq = 2; \
                 UPDATE frames SET chain = NULL WHERE seq = 1"
            ))
            .await;
        fs::remove_file(bench.settings().evidence.log).unwrap();
        append("three");
        shipped(slowly(&bench), &journal).await;
        assert_eq!(bench.number("SELECT count(*) FROM frame_conflicts").await, 1);
        append("four");
        shipped(slowly(&bench), &journal).await;
        // The chain goes on, and what came under a number of another's is told, and not signed.
        let report = checked(&bench.settings()).await;
        // Whether a log was begun is chance, since nothing was to be signed; one that is not there is told.
        let is_begun = bench.settings().evidence.log.exists();
        let no_log = (What::CheckpointAltered, None, None);
        let conflict = (What::Conflict, Some(it.id), Some(2));
        let expected = if is_begun { vec![conflict] } else { vec![no_log, conflict] };
        assert_eq!(told(&report.findings), expected);
        assert_eq!((report.seen.frames, report.seen.unsigned), (4, 4));
        intruder.close().await;
    }
}

#[tokio::test]
async fn a_rebuild_still_makes_decisions_anew_and_they_stay_as_they_are() {
    for bench in Bench::both().await {
        recorded(&bench).await;
        let before = bench.derived().await;
        ledger::rebuild(&bench.settings(), |_| {}).await.unwrap();
        assert_eq!(bench.derived().await, before);
        for statement in [
            "UPDATE decisions SET decision = 'reject'",
            "UPDATE decisions SET decision = NULL",
            "DELETE FROM decisions",
            "UPDATE checkpoints SET note = 'x'",
            "DELETE FROM checkpoint_heads",
            "DELETE FROM frames",
        ] {
            let refused = refused(&bench, statement).await;
            assert!(refused.contains("what is recorded is never changed"), "{statement}: {refused}");
        }
        assert_eq!(checked(&bench.settings()).await.findings, []);
    }
}

/// What a statement is refused with.
pub async fn refused(bench: &Bench, statement: &str) -> String {
    let statement = AssertSqlSafe(statement.to_owned());
    if bench.settings().url.is_empty() {
        let mut file = conductor_tests::shipping::open_file(&bench.file()).await;
        return sqlx::raw_sql(statement).execute(&mut file).await.unwrap_err().to_string();
    }
    let mut connection = bench.database().connect().await;
    sqlx::raw_sql(statement).execute(&mut connection).await.unwrap_err().to_string()
}
