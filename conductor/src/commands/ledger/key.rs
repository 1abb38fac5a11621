//! `conductor ledger key`: the key that signs checkpoints, and a new one.

use serde_json::json;

use super::COMMAND;
use crate::{
    cli::{KeyAction, KeyArgs},
    commands::{
        finish::say,
        table::Table,
        terminal::{print, print_json},
    },
    ledger::{
        Settings,
        evidence::{
            key::{Key, PublicKey},
            log::Log,
            signer,
        },
        sink::Sink,
    },
};

pub(super) async fn run(settings: &Settings, args: &KeyArgs) -> Result<(), String> {
    match args.action {
        None => show(settings, args.json),
        Some(KeyAction::Rotate) => rotate(settings, args.json).await,
    }
}

fn show(settings: &Settings, as_json: bool) -> Result<(), String> {
    let path = &settings.evidence.key;
    let key = Key::load(path).map_err(|error| error.to_string())?;
    let key = key.ok_or_else(|| {
        format!(
            "there is no key at {} yet; `conductor serve` makes it when it starts for the first time",
            path.display()
        )
    })?;
    shown(settings, key.public(), as_json)
}

fn shown(settings: &Settings, key: &PublicKey, as_json: bool) -> Result<(), String> {
    let files = &settings.evidence;
    if as_json {
        let told = json!({
            "key_id": key.id(),
            "public_key": key.base64(),
            "pem": key.pem(),
            "file": files.key.display().to_string(),
            "checkpoints": files.log.display().to_string(),
        });
        return print_json(&told);
    }
    let mut table = Table::new(0);
    table.row(["key", &key.id()]);
    table.row(["public key", &key.base64()]);
    table.row(["file", &files.key.display().to_string()]);
    table.row(["checkpoints", &files.log.display().to_string()]);
    print(&format!("{}\n{}", table.lines().join("\n"), key.pem()))
}

async fn rotate(settings: &Settings, as_json: bool) -> Result<(), String> {
    let log = Log::of_state(settings.evidence.clone()).map_err(|error| error.to_string())?;
    let (key, _) = log.rotate().map_err(|error| error.to_string())?;
    if let Err(why) = told(settings, &log).await {
        // The file has it, which is what counts.
        say(COMMAND, &format!("the ledger is not told of the new key yet ({why}); the service does that"));
    }
    shown(settings, &key, as_json)
}

/// Puts into the table what the file has.
async fn told(settings: &Settings, log: &Log) -> Result<(), String> {
    let mut sink = Sink::open(settings).await.map_err(|error| error.to_string())?;
    signer::fill(log, &mut sink).await.map_err(|error| error.to_string())?;
    sink.close().await;
    Ok(())
}
