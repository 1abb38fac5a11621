//! `conductor ledger`: questions in SQL, how the ledger does, what takes long
//! (making the derived tables anew, carrying an old ledger over), and letting go
//! of what is old or to be forgotten. Needs no running service, except for what
//! happens as it happens.

mod key;
mod output;
mod premises;
mod removal;
mod status;
mod tail;
mod verify;

use std::{
    io::{IsTerminal as _, Read as _, stdin, stdout},
    path::Path,
    process::ExitCode,
    time::Duration,
};

use self::output::{Csv, JsonLines, TableOutput};
use super::{
    finish::{block_on, fail},
    progress::ProgressLine,
    terminal::print,
};
use crate::{
    cli::{Global, LedgerAction, LedgerArgs},
    config::{Config, GivenUrl},
    ledger::{
        self, Settings,
        evidence::Files,
        sql::{self, Stop},
    },
    state::StateDir,
};

/// What messages are said under.
const COMMAND: &str = "ledger";

/// It could not be found out whether something was changed.
const UNCHECKED: u8 = 2;

/// Where the ledger is: by flag, by the environment, by the configuration.
pub(super) fn settings(
    global: &Global,
    database_url: Option<&GivenUrl>,
    config: Option<&Path>,
) -> Result<Settings, String> {
    let state = StateDir::resolve(global.state_dir.clone(), std::env::var_os).map_err(|e| e.to_string())?;
    let given =
        database_url.map(GivenUrl::check).transpose().map_err(|why| format!("--database-url: {why}"))?;
    if let Some(url) = given.filter(|url| !url.is_empty()) {
        // The configured password is for the configured database; the key is the service's.
        let configured = Config::load(config, std::env::vars_os()).ok();
        let embedded = Settings::embedded(state.path());
        let evidence = match configured {
            Some(loaded) => Files::configured(&loaded.config.ledger, state.path()),
            None => embedded.evidence.clone(),
        };
        return Ok(Settings { url, evidence, ..embedded });
    }
    let loaded = Config::load(config, std::env::vars_os()).map_err(|error| error.to_string())?;
    Ok(Settings::new(&loaded.config.ledger, state.path()))
}

/// Runs the command.
pub fn run(global: &Global, args: &LedgerArgs) -> ExitCode {
    match block_on(act(global, args)).flatten() {
        Ok(code) => code,
        Err(message) => {
            let failed = fail(COMMAND, &message);
            // What was changed and what could not be found out must not be taken for each other.
            let is_check = matches!(args.action, LedgerAction::Verify(_));
            if is_check { ExitCode::from(UNCHECKED) } else { failed }
        }
    }
}

async fn act(global: &Global, args: &LedgerArgs) -> Result<ExitCode, String> {
    let settings = || settings(global, args.place.database_url.as_ref(), args.place.config.as_deref());
    match &args.action {
        LedgerAction::Sql { statement, json, csv, timeout } => {
            let settings = settings()?;
            let statement = read(statement)?;
            ask(&settings, &statement, *timeout, *json, *csv).await
        }
        LedgerAction::Status { json } => status::show(&settings()?, *json).await,
        // The service tells it, wherever the ledger is.
        LedgerAction::Tail(tail) => tail::run(global, tail).await,
        LedgerAction::Migrate => migrate(&settings()?).await,
        LedgerAction::Rebuild => rebuild(&settings()?).await,
        LedgerAction::Import { file } => import(&settings()?, file).await,
        LedgerAction::Key(key) => key::run(&settings()?, key).await,
        LedgerAction::Retain(retain) => {
            Box::pin(removal::Task::new(global, args, settings()?)?.retain(retain)).await
        }
        LedgerAction::Erase(erase) => {
            Box::pin(removal::Task::new(global, args, settings()?)?.erase(erase)).await
        }
        LedgerAction::Verify(verify) => {
            // A file is checked without a ledger, wherever one is.
            let settings = settings().or_else(|why| match verify.file {
                Some(_) => Ok(Settings::embedded(Path::new(""))),
                None => Err(why),
            });
            return verify::run(&settings?, verify).await;
        }
    }?;
    Ok(ExitCode::SUCCESS)
}

fn read(statement: &str) -> Result<String, String> {
    if statement != "-" {
        return Ok(statement.to_owned());
    }
    let mut text = String::new();
    let read = stdin().read_to_string(&mut text);
    read.map_err(|error| format!("cannot read the statement from stdin: {error}"))?;
    Ok(text)
}

/// Puts a question and shows the answer.
pub(super) async fn ask(
    settings: &Settings,
    statement: &str,
    timeout: Duration,
    json: bool,
    csv: bool,
) -> Result<(), String> {
    exists(settings)?;
    let out = std::io::BufWriter::new(stdout().lock());
    let is_terminal = stdout().is_terminal();
    let done = if json {
        let mut output = JsonLines::new(out);
        let asked = sql::ask(settings, statement, timeout, &mut output).await;
        asked.and(output.finish())
    } else if csv {
        let mut output = Csv::new(out, is_terminal);
        let asked = sql::ask(settings, statement, timeout, &mut output).await;
        asked.and(output.finish())
    } else {
        let mut output = TableOutput::new(out, super::terminal::width(&stdout()));
        let asked = sql::ask(settings, statement, timeout, &mut output).await;
        // What came before a failure is shown; it may say why.
        let shown = output.finish();
        asked.and(shown)
    };
    match done {
        // Whoever reads no more has seen enough.
        Ok(()) | Err(Stop::Enough) => Ok(()),
        Err(Stop::Refused(why)) => Err(why),
        Err(Stop::Output(error)) => Err(format!("cannot write to stdout: {error}")),
        Err(Stop::Ledger(error)) => Err(unreadable(settings, &error)),
    }
}

/// SQLite would say no more than that it cannot open something.
pub(super) fn exists(settings: &Settings) -> Result<(), String> {
    let Ok(ledger::settings::Place::Sqlite(file)) = settings.place() else { return Ok(()) };
    let shown = file.display();
    match file.try_exists() {
        Ok(true) => Ok(()),
        Ok(false) => Err(format!(
            "there is no ledger at {shown}; `conductor serve` makes it, or name another with --database-url"
        )),
        Err(error) if error.kind() == std::io::ErrorKind::PermissionDenied => Err(format!(
            "cannot read the ledger {shown}: {error}; run this as the user that the service runs as, or name another \
             ledger with --database-url"
        )),
        Err(error) => Err(format!("cannot read the ledger {shown}: {error}")),
    }
}

/// Why a ledger cannot be read, with its name.
pub(super) fn unreadable(settings: &Settings, error: &ledger::LedgerError) -> String {
    format!("cannot read the ledger {}: {error}", settings.shown())
}

async fn migrate(settings: &Settings) -> Result<(), String> {
    settings.check().map_err(|error| error.to_string())?;
    let version = ledger::sink::Sink::migrate(settings)
        .await
        .map_err(|error| format!("{} was not brought up to date: {error}", settings.shown()))?;
    print(&format!("{} is up to date, with version {version} of its schema\n", settings.shown()))
}

async fn rebuild(settings: &Settings) -> Result<(), String> {
    exists(settings)?;
    let mut line = ProgressLine::new("frames");
    let done = ledger::rebuild(settings, |progress| line.tell(progress.done, progress.total)).await;
    line.clear();
    let frames = done
        .map_err(|error| format!("the derived tables of {} stay as they were: {error}", settings.shown()))?;
    print(&format!("made the derived tables of {} anew from {frames} frames\n", settings.shown()))
}

async fn import(settings: &Settings, file: &Path) -> Result<(), String> {
    let mut line = ProgressLine::new("frames");
    let done = ledger::import(settings, file, |progress| line.tell(progress.done, progress.total)).await;
    line.clear();
    let (from, to) = (file.display(), settings.shown());
    let written = done.map_err(|error| {
        format!("cannot carry {from} over to {to}: {error}; what is there stays, and it can be done again")
    })?;
    let conflicts = match written.conflicts {
        0 => String::new(),
        n => format!("; {n} have a number that another frame has, and are in frame_conflicts"),
    };
    print(&format!("{} frames of {from} are new in {to}{conflicts}\n", written.new))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    #[test]
    fn a_ledger_that_is_not_there_is_told_from_one_that_cannot_be_looked_at() {
        let directory = tempfile::tempdir().unwrap();
        let none = exists(&Settings::embedded(directory.path())).unwrap_err();
        assert!(none.starts_with("there is no ledger at"), "{none}");
        // Root may look everywhere, but nobody can look into a file as a directory.
        let file = directory.path().join("file");
        std::fs::write(&file, "").unwrap();
        let unseen = exists(&Settings::embedded(&file)).unwrap_err();
        assert!(unseen.starts_with("cannot read the ledger") && unseen.contains("file/ledger"), "{unseen}");
    }
}
