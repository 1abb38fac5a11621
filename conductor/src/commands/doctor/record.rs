//! Is everything being written down, and does the ledger keep up?

use std::{path::Path, time::Duration};

use serde_json::json;
use tokio::time::timeout;

use super::report::{Check, Verdict};
use crate::{
    cli::{EndpointArgs, Global},
    client::Client,
    clock,
    commands::table::size,
    config::Config,
    ledger::{Reader, Settings},
    proto::{GetRecordStatusRequest, GetRecordStatusResponse},
};

/// How long the service may take to answer.
const SERVICE_TIMEOUT: Duration = Duration::from_secs(15);

/// Further behind than this is worth a word: normally it is milliseconds.
const LATE: Duration = Duration::from_secs(10);

/// What the running service says, or what can be seen without it.
pub(super) async fn check(
    global: &Global,
    endpoint: &EndpointArgs,
    config: Option<&Config>,
    state: &Path,
) -> Vec<Check> {
    let asked = timeout(SERVICE_TIMEOUT, async {
        let client = Client::connect(global, endpoint).await.ok()?;
        let answer = client.history().get_record_status(GetRecordStatusRequest {}).await.ok()?;
        Some(answer.into_inner())
    });
    match asked.await.ok().flatten() {
        Some(status) => vec![journal(&status), ledger(&status)],
        None => match config {
            Some(config) => vec![resting(&Settings::new(&config.ledger, state)).await],
            None => Vec::new(),
        },
    }
}

fn journal(status: &GetRecordStatusResponse) -> Check {
    let check = |verdict, detail: String| Check::new("record", "journal", verdict, detail);
    let data = json!({
        "recording": status.recording,
        "refusing": (!status.refusing.is_empty()).then_some(&status.refusing),
        "bytes": status.journal_bytes,
        "cap_bytes": status.cap_bytes,
        "unrecorded_frames": status.unrecorded_frames,
        "damaged_parts": status.damaged_parts,
    });
    if !status.refusing.is_empty() {
        let (what, remedy) = status.refusing.split_once("; ").unwrap_or((&status.refusing, ""));
        return check(Verdict::Broken, what.to_string()).remedy(remedy).data(data);
    }
    let mut detail = format!("{}, {} on disk", status.recording, size(status.journal_bytes));
    let mut verdict = Verdict::Fine;
    let mut remedy = "";
    if status.unrecorded_frames > 0 {
        verdict = Verdict::Info;
        detail.push_str(&format!("; {} frames passed unrecorded", status.unrecorded_frames));
        remedy = "the log says why; the ledger's view recording_gaps says where";
    }
    if status.damaged_parts > 0 {
        verdict = Verdict::Broken;
        detail.push_str(&format!("; {} parts cannot be read", status.damaged_parts));
        remedy = "look at the disk; copies of the damaged parts are in the journal's quarantine";
    }
    check(verdict, detail).remedy(remedy).data(data)
}

fn ledger(status: &GetRecordStatusResponse) -> Check {
    let check = |verdict, detail: String| Check::new("record", "ledger", verdict, detail);
    let behind = Duration::from_micros(status.behind_us);
    let data = json!({
        "place": status.ledger,
        "down": (!status.ledger_down.is_empty()).then_some(&status.ledger_down),
        "behind_bytes": status.behind_bytes,
        "behind_seconds": behind.as_secs_f64(),
        "conflicts": status.conflicts,
    });
    let late = format!(
        "{} behind ({} of at most {})",
        clock::age(behind),
        size(status.behind_bytes),
        size(status.cap_bytes)
    );
    if !status.ledger_down.is_empty() {
        return check(
            Verdict::Broken,
            format!("{} cannot be written, {late}: {}", status.ledger, status.ledger_down),
        )
        .remedy("mend the database; what it has not taken waits in the journal, nothing is lost")
        .data(data);
    }
    if status.conflicts > 0 {
        let text = format!("{} contradicts the journal in {} frames", status.ledger, status.conflicts);
        return check(Verdict::Broken, text)
            .remedy("see the table frame_conflicts: do two services write the same streams, or was a row changed?")
            .data(data);
    }
    if behind > LATE {
        return check(Verdict::Info, format!("{}, {late}", status.ledger))
            .remedy("it is catching up, or the database is slow; look again")
            .data(data);
    }
    check(Verdict::Fine, format!("{}, up to date", status.ledger)).data(data)
}

/// The ledger of a service that does not run.
async fn resting(settings: &Settings) -> Check {
    let check = |verdict, detail: String| Check::new("record", "ledger", verdict, detail);
    let place = settings.shown();
    if settings.url.is_empty() && matches!(settings.file.try_exists(), Ok(false)) {
        return check(Verdict::Info, format!("{place}, not there yet; `conductor serve` makes it"));
    }
    match Reader::open(settings).await {
        Ok(_) => check(Verdict::Fine, format!("{place}, can be read")),
        Err(error) => check(Verdict::Broken, format!("{place}: {error}"))
            .remedy("mend the database, or `ledger.url`; the service starts without it and waits"),
    }
}
