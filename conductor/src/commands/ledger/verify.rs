//! `conductor ledger verify`: whether what the ledger holds is what was
//! recorded, or an exported session what was exported.

use std::{fs::File, io::BufReader, path::Path, process::ExitCode, time::Duration};

use serde_json::json;

use super::{exists, unreadable};
use crate::{
    cli::VerifyArgs,
    clock,
    commands::{
        progress::ProgressLine,
        terminal::{print, print_json},
    },
    ledger::{
        Settings,
        evidence::{
            bundle,
            finding::{Finding, Seen, What},
            key::{Key, PublicKey},
            verify::{self, LogReport, Options, Report},
        },
    },
    record::now_us,
};

/// Something was changed.
const CHANGED: u8 = 1;

pub(super) async fn run(settings: &Settings, args: &VerifyArgs) -> Result<ExitCode, String> {
    let keys = args.public_key.iter().map(|given| key(given)).collect::<Result<Vec<_>, _>>()?;
    match &args.file {
        Some(file) => offline(file, &keys, args.json),
        None => ledger(settings, keys, args).await,
    }
}

/// A key as it was given: itself, or a file that has it.
fn key(given: &str) -> Result<PublicKey, String> {
    let shown = |why: String| format!("--public-key {why}");
    if let Ok(key) = PublicKey::parse(given) {
        return Ok(key);
    }
    match std::fs::read_to_string(given) {
        Ok(text) => PublicKey::parse(&text).map_err(|why| shown(format!("{given} {why}"))),
        Err(_) => {
            Err(shown("is neither a key, as `conductor ledger key` shows it, nor a file with one".to_owned()))
        }
    }
}

async fn ledger(
    settings: &Settings,
    mut keys: Vec<PublicKey>,
    args: &VerifyArgs,
) -> Result<ExitCode, String> {
    exists(settings)?;
    let is_given = !keys.is_empty();
    if !is_given {
        // The service's own key, if this runs where the service does.
        keys.extend(Key::load(&settings.evidence.key).ok().flatten().map(|key| *key.public()));
    }
    let own = Some(&settings.evidence.log).filter(|log| log.exists());
    let options = Options {
        session: args.session,
        since_us: args.since.map(clock::micros),
        keys,
        log: args.checkpoints.as_ref().or(own).cloned(),
        is_copy: args.checkpoints.is_some(),
    };
    let mut line = ProgressLine::new("frames");
    let done = verify::verify(settings, &options, |progress| line.tell(progress.done, progress.total)).await;
    line.clear();
    let report = done.map_err(|error| unreadable(settings, &error))?;
    if let Some(session) = args.session.filter(|_| report.seen.streams == 0 && report.findings.is_empty()) {
        return match report.seen.retained {
            0 => Err(format!("there is no session {session} in {}", settings.shown())),
            _ => {
                match args.json {
                    true => print_json(&as_json(&report))?,
                    false => {
                        print(&format!("session {session} was removed by retention, which is on record\n"))?;
                    }
                }
                Ok(ExitCode::SUCCESS)
            }
        };
    }
    match args.json {
        true => print_json(&as_json(&report))?,
        false => print(&in_words(&report, &options, is_given))?,
    }
    Ok(code(&report.findings))
}

fn code(findings: &[Finding]) -> ExitCode {
    if findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(CHANGED) }
}

fn offline(file: &Path, keys: &[PublicKey], is_json: bool) -> Result<ExitCode, String> {
    // A wrong file is said first: no key would help.
    let unreadable = |error| format!("cannot read {}: {error}", file.display());
    let opened = File::open(file).map_err(unreadable)?;
    let recognised = bundle::recognise(BufReader::new(opened)).map_err(unreadable)?;
    let not_one =
        || format!("{} is no bundle; `conductor sessions export --format bundle` makes one", file.display());
    let found = recognised.ok_or_else(not_one)?;
    if keys.is_empty() {
        return Err("name the right key with --public-key; the service's operator shows it with \
                    `conductor ledger key`"
            .to_owned());
    }
    let checked = bundle::check(found, keys).map_err(unreadable)?;
    if is_json {
        let told = json!({
            "session": checked.session.map(|id| id.to_string()),
            "ok": checked.findings.is_empty(),
            "findings": checked.findings,
            "seen": checked.seen,
            "signed_to": checked.signed_to,
            "signed_us": checked.signed_us,
        });
        print_json(&told)?;
        return Ok(code(&checked.findings));
    }
    let mut text = findings(&checked.findings);
    let session = checked.session.map_or_else(|| "no session".to_owned(), |id| format!("session {id}"));
    if checked.findings.is_empty() {
        let at = checked.signed_us.map(clock::rfc3339_us).unwrap_or_default();
        text += &format!(
            "{session}: {} are what was recorded; signed up to frame {} at {at}\n",
            count(checked.seen.frames, "frame"),
            checked.signed_to,
        );
    } else {
        let are = if only_unsigned(&checked.findings) { "are NOT YET SHOWN to be" } else { "are NOT" };
        let signed = match checked.signed_to {
            0 => String::new(),
            to => format!("; signed up to frame {to}"),
        };
        let frames = count(checked.seen.frames, "frame");
        text += &format!("{session}: {frames} {are} what was recorded{signed}\n");
    }
    text += &notes(&checked.seen);
    print(&text)?;
    Ok(code(&checked.findings))
}

/// Whether nothing contradicts what is there, but nothing shows all of it either.
fn only_unsigned(findings: &[Finding]) -> bool {
    findings.iter().all(|finding| finding.what == What::Unsigned)
}

fn as_json(report: &Report) -> serde_json::Value {
    let log = |log: &LogReport| {
        json!({
            "journal": log.journal.to_string(),
            "checkpoints": log.checkpoints,
            "last_us": log.last_us,
            "keys": log.keys,
            "is_known": log.is_known,
        })
    };
    json!({
        "ok": report.findings.is_empty(),
        "findings": report.findings,
        "seen": report.seen,
        "logs": report.logs.iter().map(log).collect::<Vec<_>>(),
    })
}

fn in_words(report: &Report, options: &Options, is_given: bool) -> String {
    let seen = &report.seen;
    let mut text = findings(&report.findings);
    let looked = format!(
        "{} in {}, {}",
        count(seen.frames, "frame"),
        count(seen.streams, "stream"),
        count(seen.checkpoints, "checkpoint")
    );
    text += &match report.findings.len() {
        0 => format!("nothing was changed: {looked}\n"),
        n if only_unsigned(&report.findings) => {
            format!(
                "NOT ALL IS SHOWN to be what was recorded: {} among {looked}\n",
                count(n as u64, "finding")
            )
        }
        n => format!("SOMETHING WAS CHANGED: {} among {looked}\n", count(n as u64, "finding")),
    };
    text += &notes(seen);
    for log in &report.logs {
        let key = log.keys.last().map_or("no key", String::as_str);
        let known = match (log.is_known, is_given) {
            (true, true) => "the key you named",
            (true, false) => "the key in the state directory",
            (false, _) => "nothing here says that it is the right one: name it with --public-key",
        };
        let last = log.last_us.map_or_else(
            || "no checkpoint".to_owned(),
            |last_us| {
                let age = u64::try_from(now_us().saturating_sub(last_us)).unwrap_or_default();
                let age = clock::age(Duration::from_micros(age));
                format!("last checkpoint at {} ({age} ago)", clock::rfc3339_us(last_us))
            },
        );
        text += &format!("· journal {}: signed by {key} ({known}); {last}\n", log.journal);
    }
    if options.log.is_none() {
        text += "· there is no checkpoints.jsonl here to compare with: name a copy with --checkpoints\n";
    }
    text
}

fn findings(findings: &[Finding]) -> String {
    let line = |finding: &Finding| {
        let is_checkpoint =
            matches!(finding.what, What::BadSignature | What::CheckpointMissing | What::CheckpointAltered);
        let (owner, part) = if is_checkpoint { ("journal", "checkpoint") } else { ("stream", "frame") };
        let mut place = String::new();
        if let Some(id) = finding.id {
            place += &format!(" {owner} {id}");
        }
        if let Some(number) = finding.number {
            place += &format!(" {part} {number}");
        }
        format!("✗{place}: {}: {}\n", finding.what.words(), finding.why)
    };
    findings.iter().map(line).collect()
}

fn notes(seen: &Seen) -> String {
    let mut text = String::new();
    let mut note = |number: u64, what: &str, says: &str| {
        if number > 0 {
            let are = if number == 1 { "is" } else { "are" };
            text += &format!("· {} {are} {says}\n", count(number, what));
        }
    };
    note(seen.unsigned, "frame", "after the last checkpoint and not yet signed");
    note(
        seen.unchained,
        "frame",
        "without a link of the chain, which is computed: recorded before there were chains, or imported",
    );
    note(seen.outside, "frame", "beside the chain: imported into a gap");
    note(seen.erased, "frame", "erased, which is on record");
    note(seen.retained, "stream", "removed by retention, which is on record");
    note(
        seen.sparse,
        "decision",
        "stored with less than the frames say; `conductor ledger rebuild` fills them in",
    );
    text
}

fn count(number: u64, what: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {what}{plural}")
}
