//! Somebody who can write whatever they like to the database, and has no key: what they forge is
//! found, whichever way they take.

use conductor::{
    ledger::{
        self, Settings,
        evidence::{
            NOTHING,
            chain::Link,
            checkpoint::{Draft, Entry, Head, Kind, naming},
            finding::{Finding, What},
            key::Key,
            log::{self, Log},
            sha256,
        },
    },
    record::{Destination, Origin, StreamKind, note, now_us},
};
use conductor_tests::shipping::{Bench, append, stream, texts};
use serde_json::json;
use uuid::Uuid;

use crate::fixture::{Intruder, checked, checked_with, recorded, shipped, slowly, told};

/// An hour.
const HOUR_US: i64 = 3_600_000_000;

/// The last head of a stream that was signed.
fn signed(settings: &Settings, stream: Uuid) -> Head {
    let entries = log::read(&settings.evidence.log).unwrap().map(Result::unwrap);
    entries.flat_map(|entry| entry.heads).filter(|head| head.stream == stream).last().unwrap()
}

/// Whether something of this kind was found there, for a reason that has these words.
fn has(findings: &[Finding], what: What, id: Uuid, words: &str) -> bool {
    findings
        .iter()
        .any(|finding| (finding.what, finding.id) == (what, Some(id)) && finding.why.contains(words))
}

/// A log from its first checkpoint on, signed by a key.
fn forged_log(key: &Key, journal: Uuid, claims: Vec<(Kind, Head)>) -> Vec<Entry> {
    let introduced = Draft { kind: Kind::Key, at_us: 5, heads: Vec::new(), note: key.public().base64() };
    let mut entries = vec![Entry::sign(introduced, journal, None, key)];
    for (kind, head) in claims {
        let draft = Draft { kind, at_us: 6, heads: vec![head], note: "old".to_owned() };
        let before = entries.last().map(|entry| &entry.checkpoint);
        entries.push(Entry::sign(draft, journal, before, key));
    }
    entries
}

#[tokio::test]
async fn a_checkpoint_that_no_log_has_permits_nothing() {
    for bench in Bench::both().await {
        let (journal, streams) = recorded(&bench).await;
        let settings = bench.settings();
        let (erased, retained) = (signed(&settings, streams[1].id), signed(&settings, streams[2].id));
        let mut intruder = Intruder::of(&bench).await;
        intruder.remember().await;
        let key = Key::generate().unwrap();
        for number in [0, -7, i64::MIN] {
            for (kind, head) in [(Kind::Erased, erased), (Kind::Retained, retained)] {
                let draft = Draft { kind, at_us: 5, heads: vec![head], note: String::new() };
                let mut entry = Entry::sign(draft, journal.id(), None, &key);
                entry.checkpoint.number = number;
                intruder.put_checkpoint(&entry).await;
                let own = format!("WHERE stream_id = '{}'", head.stream);
                let (statement, what) = match kind {
                    Kind::Erased => {
                        (format!("UPDATE frames SET raw = NULL, json = NULL {own}"), What::Altered)
                    }
                    _ => (
                        format!("DELETE FROM frames {own}; DELETE FROM stream_heads {own}"),
                        What::StreamMissing,
                    ),
                };
                intruder.run(&statement).await;
                for with_file in [true, false] {
                    let report = checked_with(&settings, |options| {
                        options.log = options.log.take().filter(|_| with_file);
                    });
                    let found = report.await.findings;
                    assert!(
                        found.iter().any(|finding| finding.number == Some(number)),
                        "{number}: {found:?}"
                    );
                    assert!(has(&found, what, head.stream, "on record"), "{number}: {found:?}");
                }
                intruder.undo().await;
            }
        }
        assert_eq!(checked(&settings).await.findings, []);
        intruder.close().await;
    }
}

#[tokio::test]
async fn a_log_of_another_key_permits_nothing_until_that_key_is_named() {
    for bench in Bench::both().await {
        let (_journal, streams) = recorded(&bench).await;
        let settings = bench.settings();
        let (erased, retained) = (signed(&settings, streams[1].id), signed(&settings, streams[2].id));
        let mut intruder = Intruder::of(&bench).await;
        let key = Key::generate().unwrap();
        let claims = vec![(Kind::Erased, erased), (Kind::Retained, retained)];
        for entry in forged_log(&key, Uuid::now_v7(), claims) {
            intruder.put_checkpoint(&entry).await;
        }
        intruder
            .run(&format!(
                "UPDATE frames SET raw = NULL, json = NULL WHERE stream_id = '{}'; \
                 DELETE FROM frames WHERE stream_id = '{}'",
                erased.stream, retained.stream
            ))
            .await;
        for with_file in [true, false] {
            let report =
                checked_with(&settings, |options| options.log = options.log.take().filter(|_| with_file));
            let found = report.await.findings;
            assert!(has(&found, What::Altered, erased.stream, "name its key"), "{found:?}");
            assert!(has(&found, What::StreamMissing, retained.stream, "name its key"), "{found:?}");
        }
        let named = checked_with(&settings, |options| options.keys.push(*key.public())).await;
        assert_eq!((named.findings, named.seen.retained), (Vec::new(), 1));
        intruder.close().await;
    }
}

/// A whole session that never was, signed by somebody.
#[tokio::test]
async fn what_only_another_key_has_signed_is_not_shown() {
    for bench in Bench::both().await {
        let (_journal, streams) = recorded(&bench).await;
        let settings = bench.settings();
        let mut intruder = Intruder::of(&bench).await;
        let head = forge_tail(&settings, &mut intruder, streams[2].id, now_us()).await;
        let key = Key::generate().unwrap();
        for entry in forged_log(&key, Uuid::now_v7(), vec![(Kind::Heads, head)]) {
            intruder.put_checkpoint(&entry).await;
        }
        intruder.run("UPDATE stream_heads SET checkpoint = 2").await;
        let found = checked(&settings).await.findings;
        assert_eq!(told(&found), [(What::Unsigned, Some(head.stream), Some(head.seq))], "{found:?}");
        assert!(found[0].why.contains("name its key"), "{found:?}");
        intruder.close().await;
    }
}

#[tokio::test]
async fn frames_before_the_first_are_found_and_refused() {
    for bench in Bench::both().await {
        let (_journal, streams) = recorded(&bench).await;
        let settings = bench.settings();
        let first = streams[0].id;
        let refused = format!(
            "INSERT INTO frames (stream_id, seq, stream_kind, at_us, origin, destination, kind, hash) \
             VALUES ('{first}', 0, 'session', 5, 'agent', 'editor', 'opaque', {})",
            if settings.url.is_empty() { "x'00'" } else { "'\\x00'::bytea" }
        );
        let refused = crate::database::refused(&bench, &refused).await;
        assert!(refused.contains("numbered from 1") || refused.contains("frames_from_one"), "{refused}");
        let mut intruder = Intruder::of(&bench).await;
        intruder.remember().await;
        let other = Uuid::now_v7();
        let elsewhere = match settings.url.is_empty() {
            true => format!("'{other}'"),
            false => format!("CAST('{other}' AS uuid)"),
        };
        for seq in ["0", "-5"] {
            for (to, stream) in [("stream_id", first), (elsewhere.as_str(), other)] {
                intruder.copy_frame(first, 3, (to, seq)).await;
                let found = told(&checked(&settings).await.findings);
                assert_eq!(found, [(What::Displaced, Some(stream), Some(seq.parse().unwrap()))]);
                intruder.undo().await;
            }
        }
        // The very first id there can be is looked at, too.
        let nil = elsewhere.replace(&other.to_string(), &Uuid::nil().to_string());
        intruder.copy_frame(first, 3, (&nil, "1")).await;
        assert_eq!(told(&checked(&settings).await.findings), [(What::Displaced, Some(Uuid::nil()), Some(1))]);
        intruder.close().await;
    }
}

/// A file takes anything in any column.
#[tokio::test]
async fn rows_that_nobody_would_find_by_their_ids_are_found() {
    let bench = Bench::sqlite();
    let (journal, streams) = recorded(&bench).await;
    let settings = bench.settings();
    let (first, own) = (streams[0].id, journal.id());
    let mut intruder = Intruder::of(&bench).await;
    intruder.remember().await;
    let at = format!("WHERE stream_id = '{first}'");
    for statement in [
        format!("UPDATE frames SET stream_id = upper(stream_id) {at} AND seq = 3"),
        format!("UPDATE frames SET stream_id = upper(stream_id) {at}"),
        format!("UPDATE frames SET stream_id = replace(stream_id, '-', '') {at}"),
        format!("UPDATE frames SET stream_id = CAST(stream_id AS BLOB) {at}"),
        format!("UPDATE frames SET stream_id = stream_id || char(0) {at}"),
        format!("UPDATE frames SET seq = 'three' {at} AND seq = 3"),
        format!("UPDATE stream_heads SET stream_id = upper(stream_id) {at}"),
        format!("UPDATE stream_heads SET journal_id = upper(journal_id) {at}"),
        format!("UPDATE checkpoints SET journal_id = upper(journal_id) WHERE journal_id = '{own}'"),
        "UPDATE checkpoints SET kind = CAST(kind AS BLOB) WHERE number = 2".to_owned(),
        format!("UPDATE checkpoint_heads SET stream_id = upper(stream_id) {at}"),
    ] {
        assert!(intruder.run(&statement).await > 0, "{statement}");
        let found = checked(&settings).await.findings;
        assert!(found.iter().any(|finding| finding.why.contains("not written as")), "{statement}: {found:?}");
        intruder.undo().await;
    }
    for column in ["origin", "stream_kind", "method", "at_us", "raw"] {
        let other =
            if column == "raw" { "CAST(raw AS TEXT)".to_owned() } else { format!("CAST({column} AS BLOB)") };
        intruder.run(&format!("UPDATE frames SET {column} = {other} {at} AND seq = 3")).await;
        let found = checked(&settings).await.findings;
        assert_eq!(told(&found), [(What::Altered, Some(first), Some(3))], "{column}: {found:?}");
        assert!(found[0].why.contains(column), "{found:?}");
        intruder.undo().await;
    }
    assert_eq!(checked(&settings).await.findings, []);
    intruder.close().await;
}

#[tokio::test]
async fn a_ledger_whose_checkpoints_are_all_gone_is_not_good() {
    for bench in Bench::both().await {
        recorded(&bench).await;
        let settings = bench.settings();
        let mut intruder = Intruder::of(&bench).await;
        intruder
            .run("DELETE FROM checkpoints; DELETE FROM checkpoint_heads; UPDATE stream_heads SET checkpoint = NULL")
            .await;
        let found = checked_with(&settings, |options| options.log = None).await.findings;
        assert_eq!(told(&found), [(What::CheckpointMissing, None, None)], "{found:?}");
        intruder.close().await;
    }
}

/// Appends a frame to a stream as somebody does who knows how chains are made.
pub async fn forge_tail(settings: &Settings, intruder: &mut Intruder, stream: Uuid, at_us: i64) -> Head {
    let digits = if settings.url.is_empty() { "lower(hex(chain))" } else { "encode(chain, 'hex')" };
    let last = format!("FROM stream_heads WHERE stream_id = '{stream}'");
    let seq: i64 = texts(settings, &format!("SELECT CAST(seq AS text) {last}")).await[0].parse().unwrap();
    let before = texts(settings, &format!("SELECT {digits} {last}")).await;
    let before = ledger::evidence::unhex(&before[0]).unwrap();
    let (raw, seq) = (b"a line that was never said", seq + 1);
    let hash = sha256(raw);
    let link = Link {
        stream,
        stream_kind: "session",
        seq,
        at_us,
        origin: "agent",
        destination: "editor",
        outgoing: None,
        hash: &hash,
    };
    let chain = link.after(&before);
    let (raw, hash, stored) = (intruder.bytes(raw), intruder.bytes(&hash), intruder.bytes(&chain));
    intruder
        .run(&format!(
            "INSERT INTO frames (stream_id, seq, stream_kind, at_us, origin, destination, kind, binding_id, raw, hash, \
             chain) SELECT '{stream}', {seq}, 'session', {at_us}, 'agent', 'editor', 'opaque', binding_id, {raw}, \
             {hash}, {stored} FROM frames WHERE stream_id = '{stream}' AND seq = {seq} - 1; \
             UPDATE stream_heads SET seq = {seq}, chain = {stored}, checkpoint = NULL WHERE stream_id = '{stream}'"
        ))
        .await;
    Head { stream, seq, chain }
}

#[tokio::test]
async fn what_should_long_be_signed_and_is_not_is_found() {
    for bench in Bench::both().await {
        let (_journal, streams) = recorded(&bench).await;
        let settings = bench.settings();
        let mut intruder = Intruder::of(&bench).await;
        intruder.remember().await;
        // Right behind the last checkpoint there may be some.
        forge_tail(&settings, &mut intruder, streams[0].id, now_us()).await;
        let report = checked(&settings).await;
        assert_eq!((report.findings, report.seen.unsigned), (Vec::new(), 1));
        intruder.undo().await;
        for journal in ["journal_id", "NULL"] {
            let head = forge_tail(&settings, &mut intruder, streams[0].id, now_us() - HOUR_US).await;
            intruder.run(&format!("UPDATE stream_heads SET journal_id = {journal}")).await;
            let found = told(&checked(&settings).await.findings);
            assert_eq!(found, [(What::Unsigned, Some(head.stream), Some(head.seq))]);
            intruder.undo().await;
        }
        intruder.close().await;
    }
}

#[tokio::test]
async fn streams_are_chosen_by_what_was_signed_since_too() {
    for bench in Bench::both().await {
        let (_journal, streams) = recorded(&bench).await;
        let settings = bench.settings();
        let mut intruder = Intruder::of(&bench).await;
        let first = streams[0].id;
        intruder.run(&format!("UPDATE frames SET at_us = 5 WHERE stream_id = '{first}'")).await;
        let recent = checked_with(&settings, |options| options.since_us = Some(now_us() - HOUR_US)).await;
        assert_eq!(told(&recent.findings), [(What::Displaced, Some(first), Some(1))]);
        intruder.close().await;
    }
}

#[tokio::test]
async fn the_logs_of_former_journals_are_read_from_their_files_too() {
    let bench = Bench::sqlite();
    let (journal, _) = recorded(&bench).await;
    let settings = bench.settings();
    // The journal was begun anew.
    let begun = Log::new(settings.evidence.clone(), Uuid::now_v7());
    begun.begin().unwrap();
    let mut intruder = Intruder::of(&bench).await;
    let first = log::read(begun.path()).unwrap().next().unwrap().unwrap();
    intruder.put_checkpoint(&first).await;
    assert_eq!(checked(&settings).await.findings, []);
    intruder
        .run(&format!("DELETE FROM checkpoints WHERE journal_id = '{}' AND number = 3", journal.id()))
        .await;
    let found = told(&checked(&settings).await.findings);
    assert_eq!(found[0], (What::CheckpointMissing, Some(journal.id()), Some(3)), "{found:?}");
    intruder.close().await;
}

#[tokio::test]
async fn a_retention_covers_what_there_was_then_and_an_erasure_what_it_names() {
    for bench in Bench::both().await {
        let (journal, streams) = recorded(&bench).await;
        let settings = bench.settings();
        let (erased, retained) = (signed(&settings, streams[1].id), signed(&settings, streams[2].id));
        let log = Log::new(settings.evidence.clone(), journal.id());
        let early = Head { seq: retained.seq - 1, chain: NOTHING, ..retained };
        log.append(Kind::Retained, vec![early], "older than 90d").unwrap();
        let named = [(erased.stream, vec![3, 5])].into();
        log.append(Kind::Frames, vec![erased], &naming(&named, "asked for")).unwrap();
        // The next start puts them into the table.
        shipped(slowly(&bench), &journal).await;
        let mut intruder = Intruder::of(&bench).await;
        let blank = |seq: i64| {
            format!(
                "UPDATE frames SET raw = NULL, json = NULL WHERE stream_id = '{}' AND seq = {seq}",
                erased.stream
            )
        };
        intruder.run(&blank(3)).await;
        intruder.run(&blank(5)).await;
        let report = checked_with(&settings, |options| options.session = Some(erased.stream)).await;
        assert_eq!((report.findings, report.seen.erased), (Vec::new(), 2));
        intruder.run(&blank(4)).await;
        let found = checked_with(&settings, |options| options.session = Some(erased.stream)).await.findings;
        assert_eq!(told(&found), [(What::Altered, Some(erased.stream), Some(4))]);
        let own = format!("WHERE stream_id = '{}'", retained.stream);
        intruder.run(&format!("DELETE FROM frames {own}; DELETE FROM stream_heads {own}")).await;
        let found = checked_with(&settings, |options| options.session = Some(retained.stream)).await.findings;
        assert!(has(&found, What::StreamMissing, retained.stream, "a retention is on record"), "{found:?}");
        intruder.close().await;
    }
}

#[tokio::test]
async fn columns_that_were_emptied_and_rows_that_no_frame_tells_of_are_found() {
    for bench in Bench::both().await {
        let journal = bench.journal();
        let grant = stream(StreamKind::Grant);
        let granted = json!({ "grant": grant.id.to_string(), "scope": "user", "scopeName": "ann", "by": "ann",
            "teams": ["core"], "what": "edit", "parts": [], "reason": "often", "expiresUs": 9, "mostUses": 3 });
        let line = note(note::GRANTED, &granted);
        append(&journal, grant, Origin::Conductor, Destination::Record, &[line]);
        let (_, streams) = {
            shipped(slowly(&bench), &journal).await;
            drop(journal);
            recorded(&bench).await
        };
        let settings = bench.settings();
        assert_eq!(checked(&settings).await.findings, []);
        let mut intruder = Intruder::of(&bench).await;
        intruder.remember().await;
        let (first, nobody, grant) = (streams[0].id, Uuid::now_v7(), grant.id);
        let stripped = format!(
            "UPDATE frames SET kind = 'opaque', method = NULL, request_id = NULL, json = NULL \
             WHERE stream_id = '{first}' AND seq = 2"
        );
        intruder.run(&stripped).await;
        let found = told(&checked(&settings).await.findings);
        assert_eq!(found, [(What::Altered, Some(first), Some(2))], "and decisions are compared all the same");
        intruder.undo().await;
        let of = |session: Uuid| format!("('{}', '{session}', 4, 'allowed')", Uuid::now_v7());
        for (statement, back, stream) in [
            (
                format!("UPDATE grants SET author = NULL WHERE grant_id = '{grant}'"),
                format!("UPDATE grants SET author = 'ann' WHERE grant_id = '{grant}'"),
                grant,
            ),
            (
                format!("UPDATE grants SET expires_us = 99 WHERE grant_id = '{grant}'"),
                format!("UPDATE grants SET expires_us = 9 WHERE grant_id = '{grant}'"),
                grant,
            ),
            (
                format!("INSERT INTO approvals (approval_id, session_id, seq, outcome) VALUES {}", of(first)),
                "DELETE FROM approvals".to_owned(),
                first,
            ),
            (
                format!(
                    "INSERT INTO approvals (approval_id, session_id, seq, outcome) VALUES {}",
                    of(nobody)
                ),
                "DELETE FROM approvals".to_owned(),
                nobody,
            ),
            (
                format!(
                    "INSERT INTO grant_uses (session_id, seq, grant_id) VALUES ('{first}', 4, '{grant}')"
                ),
                "DELETE FROM grant_uses".to_owned(),
                first,
            ),
            (
                format!("INSERT INTO decisions (session_id, seq, decision) VALUES ('{nobody}', 1, 'allow')"),
                format!("DELETE FROM decisions WHERE session_id = '{nobody}'"),
                nobody,
            ),
        ] {
            intruder.run(&statement).await;
            let found = checked(&settings).await.findings;
            assert!(has(&found, What::DecisionDiffers, stream, ""), "{statement}: {found:?}");
            assert_eq!(found.len(), 1, "{statement}: {found:?}");
            intruder.run(&back).await;
        }
        assert_eq!(checked(&settings).await.findings, []);
        intruder.close().await;
    }
}
