//! What is made of the journal, each for its own use: the ledger for questions, the feed
//! for others, the store for what the service needs in order to act.

use std::{collections::HashMap, path::Path, time::Instant};

use tokio::runtime::Handle;
use tracing::info;

use crate::{
    cli::ServeArgs,
    config::Config,
    connection::Hub,
    feed::{self, Feed},
    grants::{Book, Scope},
    identity::{present::Present, tokens::Tokens},
    journal::{self, Journal},
    ledger::{self, Ledger},
    limits::Limits,
    metrics::Metrics,
    redact::Redaction,
    router::Router,
    state::ServiceState,
    store::{
        Store,
        behind::{self, CaughtUp},
    },
    tasks::Tasks,
};

/// Opens the journal, and mends what a kill left of it.
pub(super) fn open_journal(state: &ServiceState, config: &Config) -> Result<Journal, String> {
    let key = state.tag_key().map_err(|error| error.to_string())?;
    let redaction = Redaction::new(&key, config.journal.patterns());
    let settings = journal::Settings { redaction, ..(&config.journal).into() };
    let (journal, recovered) = Journal::open(&state.path().join("journal"), settings)
        .map_err(|error| format!("the journal cannot be opened: {error}"))?;
    info!(
        segments = recovered.segments,
        frames = recovered.frames,
        bytes = recovered.bytes,
        took_ms = recovered.took.as_millis() as u64,
        "the journal is open"
    );
    Ok(journal)
}

/// Begins to carry the journal into the ledger. A database that does not
/// answer is waited for; one that cannot be ours is a reason not to start.
pub(super) async fn open_ledger(
    args: &ServeArgs,
    config: &Config,
    state: &Path,
    journal: &Journal,
    shipping: &Handle,
    metrics: &Metrics,
) -> Result<Ledger, String> {
    let mut settings = ledger::Settings::new(&config.ledger, state);
    if let Some(given) = &args.database_url {
        settings.url = given.check().map_err(|why| format!("--database-url: {why}"))?;
    }
    // Its task ends after all others, so it is none of theirs.
    let (journal, tasks) = (journal.clone(), Tasks::counted(metrics.clone()));
    let opened = shipping.spawn(async move { Ledger::open(settings, journal, &tasks).await });
    match opened.await {
        Ok(Ok(ledger)) => Ok(ledger),
        Ok(Err(error)) => Err(format!("the ledger cannot be used: {error}")),
        Err(failure) => Err(format!("the ledger cannot be opened: {failure}")),
    }
}

/// Begins to tell others what happens, if that is wanted. That is work of the same sort as
/// the ledger's, and steps back as it does.
pub(super) async fn start_feed(hub: &Hub, state: &Path, shipping: &Handle) -> Result<Feed, String> {
    let sources = feed::Sources {
        journal: hub.journal.clone(),
        history: hub.history.clone(),
        config: hub.config.clone(),
        state: state.to_path_buf(),
        host: hub.ledger.settings().host.clone(),
        metrics: hub.metrics.clone(),
    };
    let started = shipping.spawn(async move { Feed::start(sources) });
    started.await.map_err(|failure| format!("the feed cannot be started: {failure}"))
}

/// Opens what is known of sessions, tokens and grants, and brings it up to date from the journal.
pub(super) async fn open_store(
    state: &ServiceState,
    journal: &Journal,
    config: &Config,
) -> Result<(Store, Router, Book, Tokens), String> {
    let began = Instant::now();
    let file = state.path().join("store.sqlite");
    let failed = |error| format!("{} cannot be used: {error}", file.display());
    let mut store = Store::open(&file).await.map_err(failed)?;
    let mut rows: HashMap<_, _> = store.sessions().await.map_err(failed)?.into_iter().collect();
    let CaughtUp { changed, uses } = behind::catch_up(journal, &mut rows)
        .map_err(|error| format!("the journal cannot be read for the sessions in it: {error}"))?;
    info!(
        sessions = rows.len(),
        from_journal = changed.len(),
        took_ms = began.elapsed().as_millis() as u64,
        "the sessions are known"
    );
    let used = store.usage().await.map_err(failed)?;
    let limits = Limits::new(config.limits.clone(), used);
    let kept = store.grants().await.map_err(failed)?;
    let issued = store.tokens().await.map_err(failed)?;
    let tokens = Tokens::new(state.token().clone(), issued);
    let book = Book::new(kept, Present::new(tokens.clone()));
    book.were_used(&uses);
    for (grant, _) in book.list() {
        if let Scope::Session(id) = grant.scope
            && rows.get(&id).is_none_or(|row| row.is_deleted)
        {
            book.session_deleted(id);
        }
    }
    Ok((store, Router::new(rows, changed, limits), book, tokens))
}
