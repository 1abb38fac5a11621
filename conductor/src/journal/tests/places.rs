//! Places that are given out: each leads on, or it is said why not.

use super::*;

fn record(stream: Stream, seq: u64, at_us: i64) -> Batch {
    let mut batch = Batch::new();
    let text = format!("\"{}\"", "x".repeat(700));
    let frames = std::iter::once(text.as_bytes());
    batch.push(stream, seq, at_us, Origin::Agent, Destination::Editor, &[], frames);
    batch
}

async fn filled(dir: &Path, settings: Settings) -> Journal {
    let (journal, _) = Journal::open(dir, settings).unwrap();
    for seq in 1..=20 {
        let at_us = i64::try_from(seq).unwrap() * 1000;
        journal.append(record(stream(1), seq, at_us), Class::Stream).unwrap();
    }
    let end = journal.status().end;
    journal.synced().wait_for(|synced| *synced >= end).await.unwrap();
    journal
}

fn read_all(journal: &Journal, from: Position) -> Vec<Record> {
    journal.read(from, usize::MAX).unwrap().0
}

#[tokio::test]
async fn a_place_is_where_a_record_ends_and_nowhere_else() {
    let root = tempfile::tempdir().unwrap();
    let journal = filled(&root.path().join("journal"), small()).await;
    assert_eq!(journal.oldest(), Position::default());
    assert_eq!(journal.standing(Position::default()).unwrap(), Standing::Kept);
    for record in read_all(&journal, Position::default()) {
        assert_eq!(journal.standing(record.end).unwrap(), Standing::Kept);
        for offset in [record.end.offset - 1, record.end.offset + 1] {
            let beside = Position { offset, ..record.end };
            assert_eq!(journal.standing(beside).unwrap(), Standing::Unknown, "{beside:?}");
        }
    }
    let beyond = Position { segment: 99, offset: 64 };
    assert_eq!(journal.standing(beyond).unwrap(), Standing::Unknown);
    assert_eq!(journal.status().damaged, 0, "to ask is no damage");
}

#[tokio::test]
async fn a_time_leads_to_a_place_before_all_that_is_as_young() {
    let root = tempfile::tempdir().unwrap();
    let journal = filled(&root.path().join("journal"), small()).await;
    for at_us in [0, 1, 1000, 9500, 20_000] {
        let young = read_all(&journal, journal.since(at_us)).into_iter().filter(|r| r.at_us >= at_us).count();
        let all = read_all(&journal, Position::default()).into_iter().filter(|r| r.at_us >= at_us).count();
        assert_eq!(
            (young, journal.standing(journal.since(at_us)).unwrap()),
            (all, Standing::Kept),
            "{at_us}"
        );
    }
    assert!(journal.since(15_000) > Position { segment: 2, offset: 0 }, "old segments are passed over");
    assert!(read_all(&journal, journal.since(20_001)).is_empty());
}

#[tokio::test]
async fn what_was_freed_is_known_to_be_gone_also_after_a_restart() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("journal");
    let settings = Settings { keep: Duration::ZERO, ..small() };
    let journal = filled(&dir, settings.clone()).await;
    let places: Vec<_> = read_all(&journal, Position::default()).iter().map(|record| record.end).collect();
    journal.shipped(journal.status().end);
    let mut synced = journal.synced();
    // The thread frees; it is woken by what is written.
    for seq in 21..2000 {
        if journal.oldest() > Position::default() {
            break;
        }
        journal.append(record(stream(1), seq, 1), Class::Stream).unwrap();
        synced.changed().await.unwrap();
    }
    let check = |journal: &Journal| {
        let oldest = journal.oldest();
        assert!(oldest > places[0] && places.contains(&oldest), "{oldest:?}");
        for place in &places {
            let wanted = if *place < oldest { Standing::Freed } else { Standing::Kept };
            assert_eq!(journal.standing(*place).unwrap(), wanted, "{place:?}");
        }
        assert_eq!(journal.standing(Position::default()).unwrap(), Standing::Freed);
    };
    check(&journal);
    journal.close();
    drop(journal);
    let (journal, _) = Journal::open(&dir, Settings { keep: small().keep, ..settings }).unwrap();
    check(&journal);
}
