//! A full disk beneath the embedded ledger. In a file of its own, because the
//! limit that stands for the disk is one of the whole process.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

use std::{env, process::Command};

use conductor::{
    journal,
    record::{Destination, Origin},
    tasks::Tasks,
};
use conductor_tests::shipping::{Bench, append, caught_up, down_because, session, ship, sorted};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Says that the limit is in force.
const LIMITED: &str = "LEDGER_TEST_LIMITED";

/// No file grows beyond so many blocks of 512 bytes, and a write that would make
/// it fails instead of killing who writes.
const LIMIT: &str = r#"trap '' XFSZ; ulimit -S -f 16384; exec "$0" "$@""#;

#[test]
fn d12_a_full_disk_is_waited_out() {
    if env::var_os(LIMITED).is_some() {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        return runtime.block_on(on_a_full_disk());
    }
    let mut again = Command::new("sh");
    again.args(["-c", LIMIT]).arg(env::current_exe().unwrap());
    again.args(["--exact", "d12_a_full_disk_is_waited_out", "--nocapture"]).env(LIMITED, "1");
    let done = again.output().unwrap();
    let told = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{told}\n{}", String::from_utf8_lossy(&done.stdout));
}

async fn on_a_full_disk() {
    let bench = Bench::sqlite();
    // The journal's files stay small, so only the ledger finds the disk full.
    let journal = bench.journal_with(journal::Settings { segment_bytes: 2 << 20, ..Default::default() });
    let tasks = Tasks::default();
    let ledger = ship(bench.settings(), &journal, &tasks).await;
    let (first, mut frames) = session(&journal, 2);
    caught_up(&ledger, &journal).await;
    for number in 0..24u8 {
        let line = vec![b'a' + number; 1 << 20];
        frames.extend(append(&journal, first, Origin::Agent, Destination::Editor, &[line]));
    }
    let why = down_because(&ledger, "").await;
    assert!(why.contains("disk") || why.contains("full"), "{why}");
    assert!(journal.refusing().is_none());
    let (_, hard) = getrlimit(Resource::RLIMIT_FSIZE).unwrap();
    setrlimit(Resource::RLIMIT_FSIZE, hard, hard).unwrap();
    caught_up(&ledger, &journal).await;
    assert!(bench.frames().await == sorted(frames), "all frames must be there");
    assert!(ledger.status().progress.set_aside.is_none(), "a full disk is no damage");
}
