//! The n-th call to the file system fails, for every n, in every way; and the
//! process or the machine stops before the n-th call, for every n.

use nix::errno::Errno;

use super::{
    flaky::{Fault, Flaky, restore},
    *,
};

/// Appends that each test makes.
const APPENDS: u64 = 30;

/// Small segments, so that files are made all the time.
fn tiny() -> Settings {
    Settings { segment_bytes: 1024, sync_bytes: 600, reserve_bytes: 100, ..small() }
}

fn frame(number: u64) -> String {
    format!("{{\"n\":{number},\"text\":\"{}\"}}", "x".repeat(number as usize * 7 % 90))
}

/// Appends everything, each until it is taken, and every third waits until it
/// is released. Which of them were refused at least once.
async fn fill(journal: &Journal, disk: &Flaky) -> u64 {
    let mut refused = 0;
    for number in 1..=APPENDS {
        let stream = stream((number % 3).into());
        let mut batch = batch(stream, journal.next_seq(stream.id), &[&frame(number)]);
        let class = if number.is_multiple_of(3) { Class::Effect } else { Class::Stream };
        let ticket = loop {
            match journal.append(batch, class) {
                Ok(ticket) => break ticket,
                Err(back) => {
                    refused += 1;
                    assert!(matches!(back.cause, Cause::Disk | Cause::Busy), "{back:?}");
                    assert!(!back.why.is_empty());
                    batch = back.batch;
                    journal.accepting().await;
                }
            }
        };
        if class == Class::Effect {
            journal.released(ticket).await.unwrap();
            disk.acknowledged.store(number, Ordering::SeqCst);
        }
        // The ledger follows, so that segments are freed.
        if number == 20 {
            journal.shipped(Position { segment: 2, offset: 64 });
        }
    }
    refused
}

/// The numbers in the journal's frames, in order.
fn numbers(journal: &Journal) -> Vec<u64> {
    let number =
        |line: &[u8]| serde_json::from_slice::<serde_json::Value>(line).unwrap()["n"].as_u64().unwrap();
    all(journal).iter().flat_map(|record| record.lines().map(number).collect::<Vec<_>>()).collect()
}

async fn every_call(fault: Fault, times: u64) {
    for call in 1.. {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("journal");
        std::os::unix::fs::DirBuilderExt::mode(&mut std::fs::DirBuilder::new(), 0o700).create(&dir).unwrap();
        let disk = Flaky::new(&dir, fault, call, times);
        let written = match Journal::open_on(&dir, tiny(), disk.clone()) {
            Err(refused) => {
                assert!(refused.to_string().starts_with("cannot "), "{refused}");
                0
            }
            Ok((journal, _)) => {
                fill(&journal, &disk).await;
                assert_eq!(
                    numbers_written(&journal),
                    (1..=APPENDS).collect::<Vec<_>>(),
                    "{fault:?} at {call}"
                );
                journal.close();
                APPENDS
            }
        };
        let (journal, recovered) = Journal::open(&dir, tiny()).unwrap();
        assert_eq!(recovered.findings, [], "{fault:?} at {call}");
        assert_eq!(numbers(&journal), (1..=written).collect::<Vec<_>>(), "{fault:?} at {call}");
        if !disk.hit.load(Ordering::SeqCst) {
            let least = if matches!(fault, Fault::Sync(_)) { 10 } else { 50 };
            assert!(call > least, "only {call} calls were tried");
            return;
        }
    }
}

/// The same by streams, which also shows what is not synced.
fn numbers_written(journal: &Journal) -> Vec<u64> {
    let mut found: Vec<u64> = Vec::new();
    for id in 0..3 {
        let mut from = 1;
        loop {
            let records = journal.read_stream(stream(id).id, from, 300).unwrap();
            let Some(last) = records.last() else { break };
            from = last.first_seq + u64::from(last.count);
            let lines =
                records.iter().flat_map(|record| record.lines().map(<[u8]>::to_vec).collect::<Vec<_>>());
            found.extend(lines.map(|line| {
                serde_json::from_slice::<serde_json::Value>(&line).unwrap()["n"].as_u64().unwrap()
            }));
        }
    }
    found.sort_unstable();
    found
}

#[tokio::test]
async fn s01_one_failed_call_loses_and_repeats_nothing() {
    for errno in [Errno::EIO, Errno::ENOSPC, Errno::EDQUOT, Errno::EINTR] {
        every_call(Fault::Error(errno), 1).await;
    }
}

#[tokio::test]
async fn s01_several_failed_calls_lose_and_repeat_nothing() {
    for times in [2, 3, 5, 9, 20] {
        every_call(Fault::Error(Errno::EIO), times).await;
    }
    every_call(Fault::Error(Errno::ENOSPC), 12).await;
}

#[tokio::test]
async fn s02_short_and_broken_writes_leave_no_halves() {
    every_call(Fault::Short, 1).await;
    every_call(Fault::Half(Errno::EIO), 2).await;
    every_call(Fault::Half(Errno::ENOSPC), 2).await;
}

/// Killed, or without power, before any call: what was acknowledged is there,
/// nothing is there twice or out of order, and the journal goes on.
#[tokio::test]
async fn c02_stopping_before_any_call_loses_nothing_acknowledged() {
    for call in 1.. {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("journal");
        std::os::unix::fs::DirBuilderExt::mode(&mut std::fs::DirBuilder::new(), 0o700).create(&dir).unwrap();
        let disk = Flaky::new(&dir, Fault::Image, call, 1);
        let (journal, _) = Journal::open_on(&dir, tiny(), disk.clone()).unwrap();
        fill(&journal, &disk).await;
        journal.close();
        let Some((killed, unpowered, acknowledged)) = disk.image() else {
            assert!(call > 50, "only {call} calls were tried");
            return;
        };
        for (name, image) in [("killed", killed), ("unpowered", unpowered)] {
            let dir = root.path().join(name);
            restore(&image, &dir);
            let (journal, recovered) = Journal::open(&dir, tiny()).unwrap();
            let found = numbers(&journal);
            let lost = recovered.findings.iter().filter(|finding| !matches!(finding, Finding::Torn { .. }));
            assert_eq!(lost.collect::<Vec<_>>(), Vec::<&Finding>::new(), "{name} at {call}");
            assert!(found.len() as u64 >= acknowledged, "{name} at {call}: {} < {acknowledged}", found.len());
            assert_eq!(found, (1..=found.len() as u64).collect::<Vec<_>>(), "{name} at {call}");
            let seq = journal.next_seq(stream(1).id);
            let ticket = journal.append(batch(stream(1), seq, &["{\"n\":99}"]), Class::Effect).unwrap();
            journal.released(ticket).await.unwrap();
            assert_eq!(numbers(&journal).last(), Some(&99), "{name} at {call}");
        }
    }
}

/// Only syncs fail: what was not synced is written again elsewhere.
#[tokio::test]
async fn failed_syncs_are_made_good_elsewhere() {
    for times in [1, 2, 3, 7] {
        every_call(Fault::Sync(Errno::EIO), times).await;
    }
}

/// A disk that stays broken: effects that wait are refused in the end, and so
/// is what comes after them, with a reason.
#[tokio::test]
async fn effects_on_a_broken_disk_are_refused() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("journal");
    std::os::unix::fs::DirBuilderExt::mode(&mut std::fs::DirBuilder::new(), 0o700).create(&dir).unwrap();
    let disk = Flaky::new(&dir, Fault::Sync(Errno::EIO), 1, 1_000_000);
    let settings = Settings { refuse_after: Duration::from_millis(20), ..tiny() };
    let (journal, _) = Journal::open_on(&dir, settings, disk).unwrap();
    let ticket = journal.append(batch(stream(1), 1, &["{\"n\":1}"]), Class::Effect).unwrap();
    let refused = journal.released(ticket).await.unwrap_err();
    assert_eq!(refused.cause, Cause::Disk);
    assert!(refused.why.contains(".seg: ") && refused.why.contains("kernel's log"), "{refused}");
    assert!(!journal.is_released(ticket));
    assert!(journal.refusing().is_some());
    let refused = journal.append(batch(stream(1), 2, &["{\"n\":2}"]), Class::Stream).unwrap_err();
    assert_eq!((refused.cause, refused.batch.is_empty()), (Cause::Disk, false));
    assert!(numbers(&journal).is_empty());
    journal.close();
    assert_eq!(journal.released(ticket).await.unwrap_err().cause, Cause::Closed);
}
