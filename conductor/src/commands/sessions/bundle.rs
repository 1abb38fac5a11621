//! `conductor sessions export --format bundle`: a session in one file that can
//! be checked anywhere. The ledger itself is read, since only that has the chain.

use std::io::{BufWriter, Write as _, stdout};

use uuid::Uuid;

use super::{Failure, written};
use crate::{
    cli::{Global, HistoryArgs},
    commands::ledger::{exists, settings, unreadable},
    config::{Config, GivenUrl},
    ledger::{LedgerError, evidence::verify::export::export},
    policy::{Policy, rules::text_of},
};

enum Stop {
    Ledger(LedgerError),
    Output(Failure),
}

impl From<LedgerError> for Stop {
    fn from(error: LedgerError) -> Self {
        Self::Ledger(error)
    }
}

pub(super) async fn bundle(global: &Global, args: &HistoryArgs, id: Uuid) -> Result<(), Failure> {
    let given = std::env::var("CONDUCTOR_DATABASE_URL").ok().map(GivenUrl::from);
    let url = args.database_url.as_ref().or(given.as_ref());
    let settings = settings(global, url, args.config.as_deref()).map_err(Failure::Told)?;
    exists(&settings).map_err(Failure::Told)?;
    let rules = rules(args);
    let text = |revision: &str| rules.clone().filter(|(of, _)| of == revision).map(|(_, text)| text);
    let mut out = BufWriter::new(stdout().lock());
    let put = |line: String| written(out.write_all(line.as_bytes())).map_err(Stop::Output);
    let done = export(&settings, id, text, put).await;
    match done {
        Ok(true) => written(out.flush()),
        Ok(false) => Err(Failure::Told(format!("there is no session {id} in {}", settings.shown()))),
        Err(Stop::Output(failure)) => Err(failure),
        Err(Stop::Ledger(error)) => Err(Failure::Told(unreadable(&settings, &settings.hide(error)))),
    }
}

/// The rules that are configured now, and their revision: those of then, if nobody has
/// changed them since.
fn rules(args: &HistoryArgs) -> Option<(String, String)> {
    let loaded = Config::load(args.config.as_deref(), std::env::vars_os()).ok()?;
    let text = match &loaded.config.policy.file {
        Some(file) => text_of(file).ok()?,
        None => "use = [\"default\"]\n".to_owned(),
    };
    let policy = Policy::parse("the policy", &text).ok()?;
    Some((policy.revision().to_owned(), text))
}
