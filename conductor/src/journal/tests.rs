//! The journal from outside: what is acknowledged is there after any end.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

use std::time::Duration;

use super::*;
use crate::record::StreamKind;

mod damage;
mod disk;
mod erasing;
mod faults;
mod flaky;
mod modes;
mod places;

/// Small segments and quick retries.
fn small() -> Settings {
    Settings {
        // The records of the tests are made in 1970.
        keep: Duration::from_secs(100 * 365 * 86_400),
        segment_bytes: 4096,
        reserve_bytes: 4096,
        retry: Duration::from_millis(1),
        refuse_after: Duration::from_secs(60),
        ..Settings::default()
    }
}

fn stream(number: u128) -> Stream {
    Stream { id: Uuid::from_u128(number), kind: StreamKind::Session }
}

fn batch(stream: Stream, first_seq: u64, frames: &[&str]) -> Batch {
    let mut batch = Batch::new();
    let frames = frames.iter().map(|frame| frame.as_bytes());
    batch.push(stream, first_seq, 1_000, Origin::Agent, Destination::Editor, &[(0, 7)], frames);
    batch
}

/// Everything in order, without the journal's own notes.
fn all(journal: &Journal) -> Vec<Record> {
    let (mut found, mut at) = (Vec::new(), Position::default());
    loop {
        let (records, next) = journal.read(at, 1000).unwrap();
        if records.is_empty() && next == at {
            return found;
        }
        found.extend(records.into_iter().filter(|record| record.stream.id != journal.id()));
        at = next;
    }
}

#[tokio::test]
async fn what_is_released_is_read_back_now_and_later() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().join("journal");
    let (journal, recovered) = Journal::open(&dir, small()).unwrap();
    assert!(recovered.findings.is_empty());
    let mut last = None;
    for number in 0..100 {
        let stream = stream(number % 3);
        let seq = journal.next_seq(stream.id);
        last = Some(journal.append(batch(stream, seq, &["{\"a\":1}", "{}"]), Class::Effect).unwrap());
    }
    journal.released(last.unwrap()).await.unwrap();
    let before = all(&journal);
    assert_eq!(before.len(), 100);
    assert_eq!(before[4].first_seq, 3);
    assert_eq!(before[4].outgoing, [(0, 7)]);
    assert_eq!(before[4].lines().collect::<Vec<_>>(), [b"{\"a\":1}".as_slice(), b"{}"]);
    assert!(journal.status().segments > 2);
    journal.close();
    assert_eq!(journal.append(batch(stream(1), 1, &["{}"]), Class::Stop).unwrap_err().cause, Cause::Closed);

    let (journal, recovered) = Journal::open(&dir, small()).unwrap();
    assert_eq!(recovered.findings, []);
    assert_eq!(all(&journal), before);
    assert_eq!(journal.next_seq(stream(0).id), 69);
    let of_one = journal.read_stream(stream(1).id, 10, 1 << 20).unwrap();
    assert_eq!(of_one.first().unwrap().first_seq, 9);
    assert_eq!(of_one.len(), 29);
}
