//! What waits, what is refused and what passes, by mode; caps and full disks.

use futures_util::FutureExt as _;

use super::*;

fn opened(settings: Settings) -> (tempfile::TempDir, Journal) {
    let root = tempfile::tempdir().unwrap();
    let (journal, _) = Journal::open(&root.path().join("journal"), settings).unwrap();
    (root, journal)
}

/// All notes of a method, anywhere.
fn notes(journal: &Journal, method: &str) -> Vec<(Record, serde_json::Value)> {
    let (records, _) = journal.read(Position::default(), usize::MAX).unwrap();
    let note = |record: Record| {
        let value: serde_json::Value = serde_json::from_slice(record.lines().next().unwrap()).unwrap();
        (value["method"] == method).then(|| (record, value["params"].clone()))
    };
    records.into_iter().filter_map(note).collect()
}

async fn synced(journal: &Journal, upto: Position) {
    journal.synced().wait_for(|synced| *synced >= upto).await.unwrap();
}

#[tokio::test]
async fn strict_effects_wait_for_the_ledger() {
    let (_root, journal) = opened(Settings { recording: Recording::Strict, ..small() });
    let ticket = journal.append(batch(stream(1), 1, &["{}"]), Class::Effect).unwrap();
    synced(&journal, journal.status().end).await;
    assert!(!journal.is_released(ticket));
    let (_, end) = journal.read(Position::default(), 1000).unwrap();
    journal.shipped(end);
    journal.released(ticket).await.unwrap();
    assert_eq!(journal.status().unshipped, 0);

    let waits = journal.append(batch(stream(1), 2, &["{}"]), Class::Effect).unwrap();
    journal.ledger_down(Some("the ledger does not answer".to_owned()));
    assert_eq!(journal.released(waits).await.unwrap_err().cause, Cause::Ledger);
    for class in [Class::Stream, Class::Effect] {
        let refused = journal.append(batch(stream(1), 3, &["{}"]), class).unwrap_err();
        assert_eq!(refused.cause, Cause::Ledger);
        assert!(!refused.batch.is_empty());
    }
    journal.append(batch(stream(1), 3, &["{}"]), Class::Stop).unwrap();
    assert_eq!(journal.refusing().as_deref(), Some("the ledger does not answer"));
    assert!(journal.accepting().now_or_never().is_none());
    journal.ledger_down(None);
    journal.accepting().await;
    assert_eq!(journal.refusing(), None);
}

#[tokio::test]
async fn at_the_cap_all_but_stopping_is_refused_until_the_ledger_follows() {
    let (_root, journal) = opened(Settings { cap_bytes: 20_000, ..small() });
    let text = format!("\"{}\"", "x".repeat(500));
    let mut seq = 1;
    let refused = loop {
        match journal.append(batch(stream(1), seq, &[&text]), Class::Stream) {
            Ok(_) => seq += 1,
            Err(refused) => break refused,
        }
    };
    assert_eq!(refused.cause, Cause::Cap);
    assert!(refused.why.contains("journal.cap"), "{refused}");
    let status = journal.status();
    assert!(status.unshipped > 19_000 && status.oldest_unshipped_us == Some(1_000), "{status:?}");
    let segments = status.segments;
    assert_eq!(journal.append(batch(stream(2), 1, &["{}"]), Class::Effect).unwrap_err().cause, Cause::Cap);
    let stop = journal.append(batch(stream(2), 1, &["{}"]), Class::Stop).unwrap();
    journal.released(stop).await.unwrap();
    // The record itself says that it stopped.
    let mut synced = journal.synced();
    let (record, params) = loop {
        if let Some(note) = notes(&journal, crate::record::note::RECORDING).pop() {
            break note;
        }
        synced.changed().await.unwrap();
    };
    assert_eq!(record.stream.id, journal.id());
    assert!(params["reason"].as_str().unwrap().contains("journal.cap"), "{params}");

    let (_, end) = journal.read(Position::default(), usize::MAX).unwrap();
    journal.shipped(end);
    journal.accepting().await;
    assert_eq!(journal.refusing(), None);
    journal.append(refused.batch, Class::Stream).unwrap();
    journal.close();
    // What the ledger has and what was in the way is gone.
    assert!(journal.status().segments < segments, "{:?}", journal.status());
    assert_eq!(journal.next_seq(stream(1).id), seq + 1);
}

#[tokio::test]
async fn what_the_ledger_has_is_kept_for_a_while() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("journal");
    let seg = |dir: &Path| {
        let names = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name());
        names.filter(|name| name.to_str().unwrap().ends_with(".seg")).count()
    };
    let text = "x".repeat(2000);
    let mut counts = Vec::new();
    for keep in [Duration::from_secs(100 * 365 * 86_400), Duration::from_secs(7 * 86_400)] {
        let (journal, recovered) = Journal::open(&dir, Settings { keep, ..small() }).unwrap();
        assert_eq!(recovered.findings, []);
        let seq = journal.next_seq(stream(1).id);
        if seq == 1 {
            journal.append(batch(stream(2), 1, &["{}", "{}"]), Class::Stream).unwrap();
        }
        let mut last = None;
        for seq in seq..seq + 6 {
            last = Some(journal.append(batch(stream(1), seq, &[&text]), Class::Effect).unwrap());
        }
        journal.released(last.unwrap()).await.unwrap();
        let (_, end) = journal.read(Position::default(), usize::MAX).unwrap();
        journal.shipped(end);
        journal.close();
        assert_eq!(journal.status().segments, seg(&dir));
        counts.push(seg(&dir));
    }
    assert!(counts[0] >= 3 && counts[1] == 1, "{counts:?}");
    // What is gone was shipped and is not missed; how far it was is known.
    let (journal, recovered) = Journal::open(&dir, small()).unwrap();
    assert_eq!(recovered.findings, []);
    assert_eq!((journal.status().unshipped, journal.next_seq(stream(1).id)), (0, 13));
    // A session of which nothing is left goes on with its numbers.
    assert!(journal.read_stream(stream(2).id, 1, 1000).unwrap().is_empty());
    assert_eq!(journal.next_seq(stream(2).id), 3);
    drop(journal);
    std::fs::write(dir.join("heads"), "?").unwrap();
    let (_, recovered) = Journal::open(&dir, small()).unwrap();
    assert_eq!(recovered.findings, [Finding::Heads]);
}

#[tokio::test]
async fn best_effort_lets_pass_and_says_what_is_missing() {
    let settings = Settings { recording: Recording::BestEffort, cap_bytes: 3_000, ..small() };
    let (root, journal) = opened(settings.clone());
    let text = format!("\"{}\"", "x".repeat(500));
    for seq in 1..=20 {
        let ticket = journal.append(batch(stream(1), seq, &[&text]), Class::Effect).unwrap();
        assert!(journal.is_released(ticket));
    }
    let unrecorded = journal.status().unrecorded;
    assert!(unrecorded > 10, "{unrecorded}");
    assert_eq!(journal.next_seq(stream(1).id), 21);
    synced(&journal, journal.status().end).await;
    let (_, end) = journal.read(Position::default(), usize::MAX).unwrap();
    journal.shipped(end);
    journal.accepting().await;
    journal.append(batch(stream(1), 21, &["{}"]), Class::Stream).unwrap();
    synced(&journal, journal.status().end).await;
    let gaps = notes(&journal, crate::record::note::GAP);
    let [(record, params)] = gaps.as_slice() else { panic!("{gaps:?}") };
    assert_eq!(record.first_seq, 21 - unrecorded);
    assert_eq!((&params["to"], &params["count"]), (&20.into(), &unrecorded.into()));
    assert_eq!(record.stream, stream(1));
    journal.close();
    let (journal, recovered) = Journal::open(&root.path().join("journal"), settings).unwrap();
    assert_eq!(recovered.findings, [], "a gap that is noted is no loss");
    assert_eq!(journal.next_seq(stream(1).id), 22);
}

#[tokio::test]
async fn streams_wait_while_too_much_is_not_synced() {
    let settings = Settings { unsynced_bytes: 1000, sync_delay: Duration::from_secs(3600), ..small() };
    let (_root, journal) = opened(settings);
    let text = "x".repeat(1000);
    journal.append(batch(stream(1), 1, &[&text]), Class::Stream).unwrap();
    let refused = journal.append(batch(stream(1), 2, &[&text]), Class::Stream).unwrap_err();
    assert_eq!(refused.cause, Cause::Busy);
    assert_eq!(journal.refusing(), None);
    assert!(journal.accepting().now_or_never().is_none());
    // An effect goes through, and its sync makes room.
    journal.append(batch(stream(2), 1, &["{}"]), Class::Effect).unwrap();
    journal.accepting().await;
    journal.append(refused.batch, Class::Stream).unwrap();
}

#[tokio::test]
async fn a_run_may_be_larger_than_a_segment() {
    let (root, journal) = opened(small());
    let large = "x".repeat(1 << 20);
    let frames = ["{}", large.as_str(), "[]"];
    for seq in [1, 4, 7] {
        journal.append(batch(stream(1), seq, &["{}", &large, "[]"]), Class::Stream).unwrap();
    }
    let small_one = journal.append(batch(stream(2), 1, &["{}"]), Class::Effect).unwrap();
    journal.released(small_one).await.unwrap();
    let check = |journal: &Journal| {
        let found = all(journal);
        assert_eq!(found.len(), 4);
        for record in &found[..3] {
            assert_eq!(record.lines().collect::<Vec<_>>(), frames.map(str::as_bytes));
        }
        let last = journal.read_stream(stream(1).id, 8, 10).unwrap();
        assert_eq!(last.iter().map(|record| record.first_seq).collect::<Vec<_>>(), [7]);
    };
    check(&journal);
    journal.close();
    let (journal, recovered) = Journal::open(&root.path().join("journal"), small()).unwrap();
    assert_eq!(recovered.findings, []);
    check(&journal);
}

#[tokio::test]
async fn effects_of_many_tasks_share_syncs() {
    let (_root, journal) = opened(Settings::default());
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..50 {
        let journal = journal.clone();
        tasks.spawn(async move {
            for seq in 1..=20 {
                let ticket = journal.append(batch(stream(task), seq, &["{}"]), Class::Effect).unwrap();
                journal.released(ticket).await.unwrap();
                assert!(journal.is_released(ticket));
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.unwrap();
    }
    let found = all(&journal);
    assert_eq!(found.len(), 1000);
    for task in 0..50 {
        let of_task = found.iter().filter(|record| record.stream == stream(task));
        assert!(of_task.map(|record| record.first_seq).eq(1..=20));
    }
}
