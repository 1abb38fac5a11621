//! What is signed is what was recorded, whatever stands in the database by then.

use std::{fs, os::unix::fs::PermissionsExt as _};

use conductor::{
    ledger::{
        Settings,
        evidence::{checkpoint::Head, finding::What, log},
    },
    record::now_us,
    tasks::Tasks,
};
use conductor_tests::shipping::{Bench, caught_up, session, ship, turn};
use uuid::Uuid;

use crate::{
    database::rechained,
    fixture::{Intruder, checked, shipped, slowly, told},
    forgery::forge_tail,
};

/// All heads of a stream that are signed.
fn signed(settings: &Settings, stream: Uuid) -> Vec<Head> {
    let entries = log::read(&settings.evidence.log).unwrap().map(Result::unwrap);
    entries.flat_map(|entry| entry.heads).filter(|head| head.stream == stream).collect()
}

#[tokio::test]
async fn a_frame_that_somebody_appends_is_not_signed_with_the_rest() {
    for bench in Bench::both().await {
        let journal = bench.journal();
        let (it, frames) = session(&journal, 1);
        let settings = slowly(&bench);
        let tasks = Tasks::default();
        let ledger = ship(settings.clone(), &journal, &tasks).await;
        caught_up(&ledger, &journal).await;
        let mut intruder = Intruder::of(&bench).await;
        let head = forge_tail(&settings, &mut intruder, it.id, now_us() - 3_600_000_000).await;
        ledger.stop().await;
        tasks.ended().await;
        let heads = signed(&settings, it.id);
        assert_eq!(heads.iter().map(|head| head.seq).collect::<Vec<_>>(), [frames.last().unwrap().seq]);
        let found = told(&checked(&bench.settings()).await.findings);
        assert_eq!(found, [(What::Unsigned, Some(it.id), Some(head.seq))]);
        intruder.close().await;
    }
}

#[tokio::test]
async fn what_was_left_unsigned_is_signed_only_as_the_journal_has_it() {
    for bench in Bench::both().await {
        let journal = bench.journal();
        let settings = slowly(&bench);
        let (good, _) = session(&journal, 1);
        shipped(settings.clone(), &journal).await;
        assert_eq!(signed(&settings, good.id).len(), 1);
        // A service that ends before it could sign what it has written.
        let key = fs::Permissions::from_mode;
        fs::set_permissions(&settings.evidence.key, key(0o644)).unwrap();
        turn(&journal, good, 2);
        let (bad, _) = session(&journal, 1);
        shipped(settings.clone(), &journal).await;
        fs::set_permissions(&settings.evidence.key, key(0o600)).unwrap();
        let mut intruder = Intruder::of(&bench).await;
        rechained(&settings, &mut intruder, bad.id, 4).await;
        // A session that never was, as if it were of this service, and of nobody.
        let mut never = Vec::new();
        for journal_id in [format!("'{}'", journal.id()), "NULL".to_owned()] {
            let stream = Uuid::now_v7();
            intruder
                .run(&format!(
                    "INSERT INTO stream_heads (stream_id, journal_id, seq, chain) \
                     SELECT '{stream}', {journal_id}, seq, chain FROM stream_heads WHERE stream_id = '{}'",
                    good.id
                ))
                .await;
            never.push(stream);
        }
        shipped(settings.clone(), &journal).await;
        assert_eq!(signed(&settings, good.id).len(), 2, "and what is good is signed");
        for stream in never.iter().chain([&bad.id]) {
            assert_eq!(signed(&settings, *stream), [], "{stream}");
        }
        // It goes on with both, and what was put there is still not signed.
        turn(&journal, good, 3);
        turn(&journal, bad, 2);
        shipped(settings.clone(), &journal).await;
        assert_eq!((signed(&settings, good.id).len(), signed(&settings, bad.id).len()), (3, 0));
        intruder.close().await;
    }
}
