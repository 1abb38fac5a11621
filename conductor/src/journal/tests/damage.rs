//! Segments that are cut, flipped, lost, doubled, swapped, or somebody else's.

use std::fs;

use super::{format::SegmentHead, *};

const HEAD: usize = format::SEGMENT_HEADER as usize;

/// A closed journal with so many records, and what is in it.
async fn written(dir: &Path, settings: Settings, records: u64) -> Vec<Record> {
    let (journal, _) = Journal::open(dir, settings).unwrap();
    let mut last = None;
    for number in 1..=records {
        let stream = stream((number % 2).into());
        let seq = journal.next_seq(stream.id);
        let text = format!("{{\"n\":{number}}}");
        last = Some(journal.append(batch(stream, seq, &[&text, "{}"]), Class::Effect).unwrap());
    }
    journal.released(last.unwrap()).await.unwrap();
    let all = all(&journal);
    journal.close();
    all
}

fn segments(dir: &Path) -> Vec<PathBuf> {
    let paths = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let mut paths: Vec<_> = paths.filter(|path| path.extension().is_some_and(|end| end == "seg")).collect();
    paths.sort();
    paths
}

/// Opens what damage left. Every record is there as it was, or lies in a range
/// that a finding names.
fn judge(dir: &Path, before: &[Record], what: &str) -> Vec<Finding> {
    let (journal, recovered) = Journal::open(dir, small()).unwrap();
    let after = all(&journal);
    let mut rest = after.iter().peekable();
    for record in before {
        if rest.next_if(|next| *next == record).is_some() {
            continue;
        }
        let named = recovered.findings.iter().any(|finding| match finding {
            Finding::Torn { from, to, .. }
            | Finding::Damaged { from, to, .. }
            | Finding::Short { from, to, .. } => (*from..=*to).contains(&record.end.offset),
            _ => false,
        });
        assert!(named, "{what}: {record:?} is gone, but found were only {:?}", recovered.findings);
    }
    assert!(rest.next().is_none(), "{what}: something appeared that was never written");
    for finding in &recovered.findings {
        assert!(!finding.to_string().is_empty());
    }
    recovered.findings
}

#[tokio::test]
async fn s05_every_flipped_bit_is_found() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("journal");
    let before = written(&dir, small(), 4).await;
    let path = segments(&dir).pop().unwrap();
    let bytes = fs::read(&path).unwrap();
    // Once as the last segment, once with another behind it.
    for sealed in [false, true] {
        if sealed {
            fs::write(&path, &bytes).unwrap();
            let (journal, _) = Journal::open(&dir, small()).unwrap();
            journal.append(batch(stream(9), 1, &["{}"]), Class::Stream).unwrap();
            journal.close();
        }
        let before = if sealed {
            let (journal, _) = Journal::open(&dir, small()).unwrap();
            all(&journal)
        } else {
            before.clone()
        };
        for at in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1 << (at % 8);
            fs::write(&path, &flipped).unwrap();
            let findings = judge(&dir, &before, &format!("bit {at} flipped"));
            assert!(!findings.is_empty(), "bit {at} flipped, and nothing was found");
            if sealed && at >= format::SEGMENT_HEADER as usize {
                let kept = findings.iter().any(
                    |finding| matches!(finding, Finding::Damaged { copy: Some(copy), .. } if copy.exists()),
                );
                assert!(kept, "bit {at}: {findings:?}");
            }
        }
    }
}

#[tokio::test]
async fn s05_every_cut_is_found() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("journal");
    let before = written(&dir, small(), 4).await;
    let path = segments(&dir).pop().unwrap();
    let bytes = fs::read(&path).unwrap();
    let ends: Vec<_> = before.iter().map(|record| record.end.offset as usize).collect();
    // What a killed conductor had set aside for more stands behind it as zeros.
    for (at, room) in (1..bytes.len()).flat_map(|at| [(at, 0), (at, 100_000)]) {
        let mut cut = bytes[..at].to_vec();
        cut.resize(at + room, 0);
        fs::write(&path, &cut).unwrap();
        let (journal, recovered) = Journal::open(&dir, small()).unwrap();
        let whole = ends.iter().filter(|end| **end <= at).count();
        assert_eq!(all(&journal), before[..whole], "cut at {at}");
        // A head may end with zeros, and is whole again with those behind it.
        let is_head = at <= HEAD && SegmentHead::parse(&cut).is_ok();
        let clean = ends.contains(&at) || is_head;
        assert_eq!(recovered.findings.is_empty(), clean, "cut at {at}: {:?}", recovered.findings);
        journal.close();
        // The next start finds nothing any more.
        let (journal, recovered) = Journal::open(&dir, small()).unwrap();
        assert_eq!(recovered.findings, [], "cut at {at}");
        assert_eq!(all(&journal).len(), whole);
        journal.close();
        let kept = fs::metadata(&path).map_or(0, |file| file.len());
        assert!(kept <= at.max(HEAD) as u64, "the room is not given back: {kept} bytes for {at}");
    }
}

#[tokio::test]
async fn a_file_that_was_only_set_aside_counts_for_nothing() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("journal");
    let before = written(&dir, small(), 4).await;
    fs::write(dir.join("000000000077.seg"), vec![0; 300_000]).unwrap();
    let (journal, recovered) = Journal::open(&dir, small()).unwrap();
    assert_eq!(recovered.findings, []);
    assert_eq!(all(&journal), before);
    let ticket = journal.append(batch(stream(9), 1, &["{}"]), Class::Effect).unwrap();
    journal.released(ticket).await.unwrap();
    assert_eq!(all(&journal).len(), before.len() + 1);
    journal.close();
    assert!(!dir.join("000000000077.seg").exists());
}

#[tokio::test]
async fn any_bytes_may_stand_in_a_segment() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("journal");
    written(&dir, small(), 4).await;
    let path = segments(&dir).pop().unwrap();
    let bytes = fs::read(&path).unwrap();
    // A seeded generator, so that a failure can be repeated.
    let mut state = 0x2545_F491_4F6C_DD1D_u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for round in 0..300 {
        let mut wild = bytes.clone();
        for _ in 0..=random() % 20 {
            let at = random() as usize % wild.len();
            match random() % 3 {
                0 => wild[at] = random() as u8,
                1 => wild.truncate(at.max(1)),
                _ => {
                    let copy = wild[at..wild.len().min(at + 100)].to_vec();
                    wild.splice(at..at, copy);
                }
            }
        }
        fs::write(&path, &wild).unwrap();
        let (journal, _) = Journal::open(&dir, small()).unwrap();
        for record in all(&journal) {
            assert!(record.lines().count() == 2, "round {round}: {record:?}");
        }
    }
}

#[tokio::test]
async fn s06_missing_doubled_swapped_empty_and_foreign_segments_are_named() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("journal");
    let tiny = || Settings { segment_bytes: 350, ..small() };
    let before = written(&dir, tiny(), 20).await;
    let paths = segments(&dir);
    assert!(paths.len() > 5, "{paths:?}");
    let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
    // A spare that was never used leaves its number out.
    let number = |path: &Path| path.file_stem().unwrap().to_str().unwrap().parse().unwrap();
    let open = || {
        let (journal, recovered) = Journal::open(&dir, tiny()).unwrap();
        (all(&journal), recovered.findings)
    };

    let aside = root.path().join("aside");
    fs::rename(&paths[2], &aside).unwrap();
    let (after, findings) = open();
    assert!(findings.contains(&Finding::Missing { number: number(&paths[2]) }), "{findings:?}");
    assert!(findings.iter().any(|finding| matches!(finding, Finding::Lost { .. })), "{findings:?}");
    assert!(after.len() < before.len() && after.iter().all(|record| before.contains(record)));

    fs::write(&paths[2], b"").unwrap();
    let (_, findings) = open();
    assert!(findings.contains(&Finding::Empty { file: name(&paths[2]) }), "{findings:?}");
    fs::rename(&aside, &paths[2]).unwrap();

    let copy = dir.join("000000000900.seg");
    fs::copy(&paths[1], &copy).unwrap();
    let (after, findings) = open();
    assert_eq!(findings, [Finding::Duplicate { file: name(&copy), number: number(&paths[1]) }]);
    assert_eq!(after, before);
    fs::remove_file(&copy).unwrap();

    fs::rename(&paths[1], &aside).unwrap();
    fs::rename(&paths[3], &paths[1]).unwrap();
    fs::rename(&aside, &paths[3]).unwrap();
    let (after, findings) = open();
    assert_eq!(after, before);
    let misnamed = findings.iter().filter(|finding| matches!(finding, Finding::Misnamed { .. })).count();
    assert_eq!((misnamed, findings.len()), (2, 2), "{findings:?}");

    let elsewhere = root.path().join("elsewhere");
    written(&elsewhere, tiny(), 3).await;
    fs::copy(&segments(&elsewhere)[0], &copy).unwrap();
    let (after, findings) = open();
    assert_eq!(after, before);
    assert!(findings.iter().any(|finding| matches!(finding, Finding::Foreign { .. })), "{findings:?}");
    fs::remove_file(&copy).unwrap();

    let id = fs::read_to_string(dir.join("id")).unwrap();
    fs::write(dir.join("id"), "?").unwrap();
    let (after, findings) = open();
    assert_eq!(after, before);
    assert!(findings.iter().any(|finding| matches!(finding, Finding::NoId { .. })), "{findings:?}");
    assert_eq!(fs::read_to_string(dir.join("id")).unwrap(), id);
}

#[tokio::test]
async fn c10_s07_a_later_format_and_an_open_directory_are_refused() {
    use std::os::unix::fs::PermissionsExt as _;
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("journal");
    written(&dir, small(), 1).await;
    let path = segments(&dir).pop().unwrap();
    for path in [&path, &dir.join("id"), &dir.join("reserve")] {
        assert_eq!(fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o600, "{path:?}");
    }
    let mut bytes = fs::read(&path).unwrap();
    bytes[8] = 2;
    let sum = crc32c::crc32c_append(crc32c::crc32c(&bytes[..12]), &bytes[16..64]);
    bytes[12..16].copy_from_slice(&sum.to_le_bytes());
    fs::write(&path, &bytes).unwrap();
    let refused = Journal::open(&dir, small()).err().unwrap().to_string();
    assert!(refused.contains("version 2"), "{refused}");
    fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).unwrap();
    let refused = Journal::open(&dir, small()).err().unwrap().to_string();
    assert!(refused.contains("chmod 700"), "{refused}");
}
