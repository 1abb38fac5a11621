//! Tells approvers that something waits for them: a program of the operator's is run, or
//! an address of theirs is written to. Whatever comes of it, the question stands in the
//! book; a failure is said in the log and counted.

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};
use tokio::{io::AsyncReadExt as _, sync::watch, time::timeout};
use tokio_util::sync::CancellationToken;
use url::Url;

use super::{Approval, Approvals, News};
use crate::{
    agent::process::{self, Environment, Errand},
    clock,
    config::{self, Config},
    fetch,
    metrics::{Branch, Metrics},
    policy::text,
};

/// How long the program may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// How often an address is tried, and the pause between.
const TRIES: u32 = 3;
const PAUSE: Duration = Duration::from_secs(1);

/// What of a question is told: so many actions and paths, with so many characters each.
const MOST_ACTIONS: usize = 16;
const LONGEST: usize = 300;

/// The variable that has the question, as JSON.
const VARIABLE: &str = "APPROVAL";

/// Bytes that the program may print; nobody reads them.
const MOST_OUTPUT: u64 = 1 << 20;

/// Tells of every question until `stop`, one after the other.
pub async fn run(
    book: Approvals,
    mut news: News,
    config: watch::Receiver<Arc<Config>>,
    metrics: Metrics,
    stop: CancellationToken,
) {
    loop {
        let approval = tokio::select! {
            approval = news.recv() => approval,
            () = stop.cancelled() => None,
        };
        let Some(approval) = approval else { return };
        // Others may have waited long for their turn to be told.
        if !book.is_open(approval.id) {
            continue;
        }
        let notify = config.borrow().approvals.notify.clone();
        let told = tokio::select! {
            told = tell(&notify, &approval) => told,
            () = stop.cancelled() => return,
        };
        if let Err(why) = told {
            metrics.best_effort(Branch::ApproversNotTold);
            tracing::warn!(approval = %approval.id, why, "approvers were not told");
        }
    }
}

/// Tells in every way there is; one that fails does not keep the other from it.
async fn tell(notify: &config::Notify, approval: &Approval) -> Result<(), String> {
    let said = said(approval).to_string();
    let ran = timeout(PATIENCE, run_command(&notify.command, &said)).await;
    let ran =
        ran.unwrap_or_else(|_| Err(format!("approvals.notify.command did not end within {PATIENCE:?}")));
    let sent = send(notify, said).await;
    match (ran, sent) {
        (Ok(()), sent) => sent,
        (Err(why), Ok(())) => Err(why),
        (Err(why), Err(and)) => Err(format!("{why}; {and}")),
    }
}

async fn send(notify: &config::Notify, said: String) -> Result<(), String> {
    if notify.webhook.is_empty() {
        return Ok(());
    }
    let url = Url::parse(&notify.webhook).map_err(|_| "approvals.notify.webhook is no address")?;
    let mut tries = 0;
    loop {
        tries += 1;
        let Err(why) = fetch::post(&url, notify.ca_file.as_deref(), said.clone()).await else {
            return Ok(());
        };
        if tries == TRIES {
            return Err(format!("approvals.notify.webhook: {why}"));
        }
        tokio::time::sleep(PAUSE * tries).await;
    }
}

/// What is told: enough to know what is asked, and where to answer. What would be written
/// is not part of it, since it goes through other hands.
fn said(approval: &Approval) -> Value {
    // A variable of a program has room for 128 KiB; `approvals show` has all.
    let brief = |text: &str| text::shown(text, LONGEST);
    let actions: Vec<String> = approval.actions.iter().take(MOST_ACTIONS).map(|text| brief(text)).collect();
    let paths: Vec<String> = approval.diffs.iter().take(MOST_ACTIONS).map(|diff| brief(&diff.path)).collect();
    let text = format!(
        "{} asks for {}: {} (rule {}). Answer with `conductor approvals allow {}` or `deny`.",
        approval.agent,
        approval.user,
        actions.first().map_or(approval.title.as_str(), String::as_str),
        approval.rule.as_deref().unwrap_or("none"),
        approval.id
    );
    json!({
        "event": "approval_requested",
        "text": text,
        "id": approval.id.to_string(),
        "session": approval.session.to_string(),
        "user": approval.user,
        "owner": approval.owner,
        "agent": approval.agent,
        "cwd": brief(&approval.cwd),
        "actions": actions,
        "moreActions": approval.actions.len().saturating_sub(MOST_ACTIONS),
        "paths": paths,
        "rule": approval.rule,
        "reason": approval.reason,
        "approvers": approval.people(),
        "askedAt": clock::rfc3339_us(approval.asked_us),
        "dueAt": approval.due_us.map(clock::rfc3339_us),
    })
}

async fn run_command(command: &[String], said: &str) -> Result<(), String> {
    if command.is_empty() {
        return Ok(());
    }
    let refused = |why: &str| format!("approvals.notify.command {why}");
    let mut env: Environment = std::env::vars_os().collect();
    env.insert(VARIABLE.into(), said.into());
    let errand = Errand::of(command, env).map_err(|why| refused(&format!("cannot be run: {why}")))?;
    let mut running =
        process::run_errand(errand).await.map_err(|why| refused(&format!("cannot be run: {why}")))?;
    let mut output = (&mut running.output).take(MOST_OUTPUT);
    tokio::io::copy(&mut output, &mut tokio::io::sink()).await.ok();
    let status = running.guarded.wait().await.ok();
    match status.is_some_and(|status| status.success()) {
        true => Ok(()),
        false => Err(refused(&process::describe(status))),
    }
}
