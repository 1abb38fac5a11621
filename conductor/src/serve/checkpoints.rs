//! Takes checkpoints off this host: each goes to a program of the operator's, as a
//! line on its stdin, in order. One that it does not take is offered again with the
//! next; nothing waits for it.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use tokio::{io::AsyncReadExt as _, sync::watch, task::spawn_blocking, time::timeout};
use tracing::warn;

use crate::{
    agent::process::{self, Environment, Errand},
    config::Config,
    ledger::evidence::{checkpoint::Entry, log},
    metrics::{Branch, Metrics},
};

/// How long the program may take for one.
const PATIENCE: Duration = Duration::from_secs(30);

/// So many are offered, one after the other, before the log is looked at again.
const SOME: usize = 64;

/// Bytes that the program may print; nobody reads them.
const MOST_OUTPUT: u64 = 1 << 20;

/// Sends until there are no more: `signed` is the newest, and ends with the ledger.
pub(super) async fn run(
    log: PathBuf,
    mut signed: watch::Receiver<i64>,
    config: watch::Receiver<Arc<Config>>,
    metrics: Metrics,
) {
    // The last one before this start may not have been sent any more.
    let mut sent = log::last_number(&log).unwrap_or_default() - 1;
    loop {
        let is_over = signed.changed().await.is_err();
        let command = config.borrow().ledger.checkpoint_command.clone();
        if !command.is_empty()
            && let Err(why) = send(&log, &command, &mut sent).await
        {
            metrics.best_effort(Branch::CheckpointNotSent);
            warn!(checkpoint = sent + 1, why, "a checkpoint was not sent; it is tried again with the next");
        }
        if is_over {
            return;
        }
    }
}

/// Sends all behind the last that was sent.
async fn send(log: &Path, command: &[String], sent: &mut i64) -> Result<(), String> {
    loop {
        let (path, after) = (log.to_path_buf(), *sent);
        let read = spawn_blocking(move || {
            let later = log::read(&path)?
                .filter(|entry| entry.as_ref().map_or(true, |entry| entry.checkpoint.number > after));
            later.take(SOME).collect::<Result<Vec<Entry>, _>>()
        });
        let entries = read.await.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
        if entries.is_empty() {
            return Ok(());
        }
        for entry in entries {
            let line = entry.line() + "\n";
            let ran = timeout(PATIENCE, hand_over(command, line.as_bytes())).await;
            ran.unwrap_or_else(|_| {
                Err(format!("ledger.checkpoint_command did not end within {PATIENCE:?}"))
            })?;
            *sent = entry.checkpoint.number;
        }
    }
}

async fn hand_over(command: &[String], line: &[u8]) -> Result<(), String> {
    if command.is_empty() {
        return Ok(());
    }
    let refused = |why: &str| format!("ledger.checkpoint_command {why}");
    let env: Environment = std::env::vars_os().collect();
    let errand = Errand::of(command, env).map_err(|why| refused(&format!("cannot be run: {why}")))?;
    let running = process::run_errand_with(errand, line).await;
    let mut running = running.map_err(|why| refused(&format!("cannot be run: {why}")))?;
    let mut output = (&mut running.output).take(MOST_OUTPUT);
    tokio::io::copy(&mut output, &mut tokio::io::sink()).await.ok();
    let status = running.guarded.wait().await.ok();
    match status.is_some_and(|status| status.success()) {
        true => Ok(()),
        false => Err(refused(&process::describe(status))),
    }
}
