//! Words that are taken out of the journal are in none of its files, and everything else is as
//! it was.

use std::{collections::HashSet, fs, sync::atomic::AtomicBool};

use super::*;

fn holding(dir: &Path, text: &str) -> usize {
    let read =
        |dir: &Path| fs::read_dir(dir).map(|entries| entries.filter_map(Result::ok).collect::<Vec<_>>());
    let mut files = read(dir).unwrap();
    files.extend(read(&dir.join("quarantine")).unwrap_or_default());
    let holds =
        |path: PathBuf| memchr::memmem::find(&fs::read(path).unwrap_or_default(), text.as_bytes()).is_some();
    files.into_iter().filter(|entry| holds(entry.path())).count()
}

fn erasure(streams: &[u128], named: &[u128]) -> Erasure {
    let ids = |numbers: &[u128]| numbers.iter().map(|number| stream(*number).id).collect::<HashSet<_>>();
    Erasure { streams: ids(streams), named: ids(named) }
}

async fn filled(dir: &Path) -> Journal {
    let (journal, _) = Journal::open(dir, small()).unwrap();
    let mut last = None;
    for number in 0..300 {
        let stream = stream(number % 3);
        let seq = journal.next_seq(stream.id);
        let words = format!("{{\"words\":\"secret-{}\"}}", number % 3);
        last = Some(journal.append(batch(stream, seq, &[&words, "{}"]), Class::Effect).unwrap());
    }
    journal.released(last.unwrap()).await.unwrap();
    journal
}

#[tokio::test]
async fn words_are_gone_and_all_else_stays() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("journal");
    let journal = filled(&dir).await;
    // A list that names the second of them, and what was refused, in the stream of a connection.
    let connection = Stream { id: Uuid::from_u128(9), kind: StreamKind::Connection };
    let list = format!("{{\"id\":1,\"result\":[{{\"id\":\"{}\",\"title\":\"secret-1\"}}]}}", stream(1).id);
    let refused = format!(
        "{{\"id\":2,\"method\":\"session/prompt\",\"params\":{{\"sessionId\":\"{}\",\"prompt\":\"secret-1\"}}}}",
        stream(1).id
    );
    let frames = ["{\"a\":\"stays\"}", &list, &refused];
    let ticket = journal.append(batch(connection, 1, &frames), Class::Effect).unwrap();
    journal.released(ticket).await.unwrap();
    let before = all(&journal);
    assert!(holding(&dir, "secret-1") > 2 && journal.status().segments > 2);
    assert_eq!(journal.erase(&erasure(&[1], &[1])).unwrap(), 101);
    assert_eq!(holding(&dir, "secret-1"), 0);
    assert!(holding(&dir, "secret-0") > 2 && holding(&dir, "stays") == 1);
    assert_eq!(journal.erase(&erasure(&[1], &[1])).unwrap(), 0, "once more is fine");
    let looks_right = |journal: &Journal| {
        let after = all(journal);
        assert_eq!(after.len(), before.len());
        for (old, new) in before.iter().zip(&after) {
            assert_eq!(
                (old.stream, old.first_seq, old.count, old.end),
                (new.stream, new.first_seq, new.count, new.end)
            );
            let lengths = |record: &Record| record.lines().map(<[u8]>::len).collect::<Vec<_>>();
            assert_eq!(lengths(old), lengths(new));
            let erased: Vec<_> = new.lines().map(|line| new.is_erased(line)).collect();
            match old.stream.id == stream(1).id {
                true => assert_eq!(erased, [true, true]),
                false if old.stream == connection => assert_eq!(erased, [false, true, true]),
                false => assert_eq!(old, new),
            }
        }
    };
    looks_right(&journal);
    journal.close();
    let (journal, recovered) = Journal::open(&dir, small()).unwrap();
    assert_eq!(recovered.findings, []);
    looks_right(&journal);
    assert_eq!(journal.next_seq(stream(1).id), 201);
}

/// Killed in the midst of overwriting: what cannot be read is found by its stream all the same.
#[tokio::test]
async fn what_became_unreadable_is_erased_with_its_copy() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("journal");
    let journal = filled(&dir).await;
    journal.close();
    let segment = dir.join("000000000001.seg");
    let mut bytes = fs::read(&segment).unwrap();
    let at = memchr::memmem::find(&bytes, b"secret-1").unwrap();
    bytes[at + 10] ^= 1;
    fs::write(&segment, bytes).unwrap();
    let (journal, recovered) = Journal::open(&dir, small()).unwrap();
    let found = &recovered.findings[..];
    assert!(matches!(found, [Finding::Damaged { .. }, Finding::Lost { .. }]), "{recovered:?}");
    assert!(holding(&dir.join("quarantine"), "secret-1") == 1);
    journal.erase(&erasure(&[1], &[])).unwrap();
    assert_eq!(holding(&dir, "secret-1"), 0);
    assert_eq!(fs::read_dir(dir.join("quarantine")).unwrap().count(), 0);
    assert_eq!(all(&journal).len(), 299);
}

/// Whoever reads meanwhile takes nothing for damaged.
#[tokio::test]
async fn reading_and_erasing_get_on_with_each_other() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("journal");
    let journal = filled(&dir).await;
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Acquire) {
                assert_eq!(all(&journal).len(), 300);
            }
        });
        for number in 0..3 {
            assert_eq!(journal.erase(&erasure(&[number], &[])).unwrap(), 100);
        }
        done.store(true, Ordering::Release);
    });
    assert_eq!((journal.status().damaged, holding(&dir, "secret")), (0, 0));
}
