//! A stream's frames from journal and ledger together.

use conductor::ledger::{
    LedgerError,
    history::{Frame, History, Reading},
};
use conductor_tests::shipping::{Bench, PATIENCE, ship_all};
use tokio::time::timeout;

use crate::fixture::{EDITING, NO_TEXT, NOON_US, everything, new_session, write};

async fn all(mut reading: Reading) -> Result<Vec<Frame>, LedgerError> {
    let mut frames = Vec::new();
    loop {
        let some = timeout(PATIENCE, reading.next()).await.unwrap()?;
        if some.is_empty() {
            return Ok(frames);
        }
        frames.extend(some);
    }
}

fn seqs(frames: &[Frame]) -> Vec<u64> {
    frames.iter().map(|frame| frame.seq).collect()
}

#[tokio::test]
async fn frames_come_back_as_they_went_in() {
    for bench in Bench::both().await {
        let journal = bench.journal();
        let session = new_session();
        let sent = everything(&EDITING, session.id);
        write(&journal, session, 1, NOON_US, &sent);
        ship_all(bench.settings(), &journal).await;
        for history in
            [History::new(bench.settings(), None), History::new(bench.settings(), Some(journal.clone()))]
        {
            let frames = all(history.frames(session.id, 0, None, false)).await.unwrap();
            assert_eq!(frames.len(), sent.len());
            for (at, (frame, sent)) in frames.iter().zip(&sent).enumerate() {
                assert_eq!(frame.seq, at as u64 + 1);
                assert_eq!(frame.at_us, NOON_US + at as i64 * 1_000_000);
                assert_eq!(frame.raw, sent.raw);
                assert_eq!(
                    (frame.origin.as_str(), frame.destination.as_str()),
                    (sent.origin.name(), sent.to.name())
                );
                assert_eq!(frame.outgoing_id, sent.outgoing.map(|id| i64::try_from(id).unwrap()));
            }
            assert!(frames.iter().any(|frame| frame.raw == NO_TEXT));
            assert_eq!(seqs(&all(history.frames(session.id, 20, None, false)).await.unwrap()), [20, 21]);
            assert_eq!(seqs(&all(history.frames(session.id, 5, Some(3), false)).await.unwrap()), [5, 6, 7]);
            assert!(all(history.frames(session.id, 22, None, false)).await.unwrap().is_empty());
            assert!(history.has_stream(session.id).await.unwrap());
            assert!(!history.has_stream(new_session().id).await.unwrap());
            assert!(all(history.frames(new_session().id, 1, None, false)).await.unwrap().is_empty());
        }
    }
}

#[tokio::test]
async fn journal_and_ledger_are_joined_without_gap_or_duplicate() {
    for bench in Bench::both().await {
        let session = new_session();
        let sent = everything(&EDITING, session.id);
        let old = bench.journal();
        write(&old, session, 1, NOON_US, &sent[..12]);
        ship_all(bench.settings(), &old).await;
        // The journal of later: it has let go of the beginning, but not of all
        // that the ledger has.
        for first in [13_u64, 9] {
            let later = Bench::sqlite();
            let journal = later.journal();
            let from = usize::try_from(first).unwrap() - 1;
            write(&journal, session, first, NOON_US, &sent[from..]);
            let history = History::new(bench.settings(), Some(journal.clone()));
            for start in [1, 7, 8, 9, 12, 13, 14, 21, 22] {
                let frames = all(history.frames(session.id, start, None, false)).await.unwrap();
                assert_eq!(
                    seqs(&frames),
                    (start..=21).collect::<Vec<_>>(),
                    "from {start}, journal from {first}"
                );
                for frame in frames {
                    assert_eq!(frame.raw, sent[usize::try_from(frame.seq).unwrap() - 1].raw);
                }
            }
            // Without the ledger, what the journal has is served, and nothing
            // is passed off as all there is.
            let down = later.settings_at("postgres://ann@127.0.0.1:1/gone");
            let history = History::new(down, Some(journal));
            let frames = all(history.frames(session.id, first, None, false)).await.unwrap();
            assert_eq!(seqs(&frames), (first..=21).collect::<Vec<_>>());
            let error = all(history.frames(session.id, 1, None, false)).await.unwrap_err();
            assert!(matches!(error, LedgerError::Unavailable(_)), "{error}");
            assert!(history.has_stream(session.id).await.unwrap(), "the journal knows it");
        }
    }
}

#[tokio::test]
async fn a_stream_is_followed_as_it_grows() {
    let bench = Bench::sqlite();
    let session = new_session();
    let sent = everything(&EDITING, session.id);
    let journal = bench.journal();
    write(&journal, session, 1, NOON_US, &sent[..4]);
    ship_all(bench.settings(), &journal).await;
    let history = History::new(bench.settings(), Some(journal.clone()));
    let mut reading = history.frames(session.id, 1, None, true);
    let mut read = Vec::new();
    while read.len() < 4 {
        read.extend(timeout(PATIENCE, reading.next()).await.unwrap().unwrap());
    }
    // Others' frames wake the reader, but are none of its business.
    let other = new_session();
    for (at, frame) in (4..).zip(sent[4..].chunks(3)) {
        let first = read.len() as u64 + 1;
        let growing = async {
            tokio::task::yield_now().await;
            write(&journal, other, at - 3, NOON_US, &sent[..1]);
            write(&journal, session, first, NOON_US, frame);
        };
        let reading = async {
            let wanted = read.len() + frame.len();
            while read.len() < wanted {
                read.extend(timeout(PATIENCE, reading.next()).await.unwrap().unwrap());
            }
        };
        tokio::join!(reading, growing);
    }
    assert_eq!(seqs(&read), (1..=21).collect::<Vec<_>>());
    assert!(read.iter().zip(&sent).all(|(frame, sent)| frame.raw == sent.raw));
}
