//! What is read from files: when the service starts, and again while it runs.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use tokio::{sync::watch, task::spawn_blocking};
use tracing::{error, info, warn};

use super::files::Read;
use crate::{
    cli::ServeArgs,
    config::{Config, Loaded, check_listen},
    connection::Hub,
    metrics::Reloaded,
    policy::{
        Policy, PolicyError, Publisher,
        rules::{lint, text_of},
    },
    tls::listener::Served,
};

/// Remarks on a file of rules that are logged; `conductor policy check` has all of them.
const MOST_REMARKS: usize = 20;

/// What is read before anything is started, so that a refusal leaves nothing
/// behind.
pub(super) struct Prepared {
    pub(super) loaded: Loaded,
    pub(super) policy: Policy,
    pub(super) served: Option<Served>,
    /// The files of both as they were before that.
    pub(super) read: Read,
}

pub(super) fn load(args: &ServeArgs) -> Result<Prepared, String> {
    let mut read = Read::default();
    let file = config_file(args.config.as_deref(), &mut read);
    let loaded = Config::load(file.as_deref(), std::env::vars_os()).map_err(|error| error.to_string())?;
    let tls = &loaded.config.service.tls;
    if let Some(listen) = args.listen {
        check_listen(listen, tls).map_err(|refused| format!("--listen: {refused}"))?;
    }
    let served = Served::read(tls).map_err(|refused| format!("[service.tls]: {refused}"))?;
    let policy = load_policy(args, &loaded.config, &mut read).map_err(|error| error.to_string())?;
    Ok(Prepared { loaded, policy, served, read })
}

/// The configuration's file, if there is one. If not, one that somebody makes is a change, too.
fn config_file(named: Option<&Path>, read: &mut Read) -> Option<PathBuf> {
    let file = Config::file(named, std::env::vars_os());
    match &file {
        Some(file) => read.next(Some(file)),
        None => Config::usual_files(std::env::vars_os()).iter().for_each(|file| read.next(Some(file))),
    }
    file
}

/// The rules that hold: of the file that was named, or the built-in ones.
fn load_policy(args: &ServeArgs, config: &Config, read: &mut Read) -> Result<Policy, PolicyError> {
    let file = args.policy.as_deref().or(config.policy.file.as_deref());
    read.next(file);
    Policy::load(file)
}

/// A bad file changes nothing; a good one applies to new processes and
/// sessions. Gives back which files were read.
pub(super) async fn reload(
    args: &ServeArgs,
    (file, started): (Option<&Path>, &Config),
    publish: &watch::Sender<Arc<Config>>,
    rule: &Publisher,
    hub: &Hub,
) -> Read {
    let reloads = &hub.metrics.reloads;
    let mut read = Read::default();
    let file = config_file(args.config.as_deref().or(file), &mut read);
    let loaded = Config::load(file.as_deref(), std::env::vars_os());
    // The rules are read anew even if the rest cannot be used.
    let config =
        loaded.as_ref().map_or_else(|_| publish.borrow().clone(), |loaded| Arc::new(loaded.config.clone()));
    let policy = load_policy(args, &config, &mut read);
    let outcome = policy.as_ref().map(|policy| policy.revision().to_owned()).map_err(ToString::to_string);
    // What was said of the same rules is not said again.
    let new = policy.as_ref().ok().filter(|new| new.revision() != hub.policy.current().revision());
    let rules = new.and_then(|policy| policy.file().map(Path::to_path_buf));
    rule.publish(policy);
    // Said once it is in force, for whoever waits for that.
    match outcome {
        Ok(revision) => {
            reloads.of(Reloaded::Policy).one();
            info!(revision, "the policy was reloaded");
            hub.tasks.start("remarks", remark(rules));
        }
        Err(refused) => {
            reloads.of(Reloaded::PolicyRefused).one();
            error!(refused, "the policy was not reloaded; the old one stays in force");
        }
    }
    match loaded {
        Ok(loaded) => {
            let config = Arc::new(loaded.config);
            let later = taken_at_start(started, &config);
            if !later.is_empty() {
                warn!(keys = later.join(", "), "what was changed here takes effect at the next start");
            }
            reloads.of(Reloaded::Config).one();
            publish.send_replace(config.clone());
            hub.tasks.start("roots", warn_of_roots(config.clone()));
            hub.router.limits().apply(config.limits.clone());
            hub.pool.reload(config).await;
            info!("the configuration was reloaded");
        }
        Err(refused) => {
            reloads.of(Reloaded::ConfigRefused).one();
            error!(%refused, "the configuration was not reloaded; the old one stays in force");
        }
    }
    read
}

/// The keys that differ from those the service was started with, and are read only then.
fn taken_at_start(started: &Config, now: &Config) -> Vec<&'static str> {
    let (service, new_service) = (&started.service, &now.service);
    let (journal, new_journal) = (&started.journal, &now.journal);
    let (ledger, new_ledger) = (&started.ledger, &now.ledger);
    let differ = [
        ("service.listen", service.listen != new_service.listen),
        ("service.admin", service.admin != new_service.admin),
        ("service.max_connections", service.max_connections != new_service.max_connections),
        (
            "service.max_connections_per_user",
            service.max_connections_per_user != new_service.max_connections_per_user,
        ),
        ("service.tls", service.tls.pair().is_some() != new_service.tls.pair().is_some()),
        ("telemetry", started.telemetry != now.telemetry),
        ("journal.recording", journal.recording != new_journal.recording),
        ("journal.cap", journal.cap != new_journal.cap),
        ("journal.keep", journal.keep != new_journal.keep),
        ("journal.secret_patterns", journal.secret_patterns != new_journal.secret_patterns),
        ("ledger.url", ledger.url != new_ledger.url),
        ("ledger.owner_url", ledger.owner_url != new_ledger.owner_url),
        ("ledger.password_file", ledger.password_file != new_ledger.password_file),
        ("ledger.checkpoint_every", ledger.checkpoint_every != new_ledger.checkpoint_every),
        ("ledger.checkpoint_key_file", ledger.checkpoint_key_file != new_ledger.checkpoint_key_file),
    ];
    differ.into_iter().filter(|(_, differs)| *differs).map(|(key, _)| key).collect()
}

/// Says which roots are not there: sessions beneath them would be refused, one by one.
pub(super) async fn warn_of_roots(config: Arc<Config>) {
    // A root may be on a file system that takes its time.
    let looked = spawn_blocking(move || missing_roots(&config)).await;
    for (key, root) in looked.unwrap_or_default() {
        warn!(
            key,
            root = %root.display(),
            "this root is no directory, so no session can work beneath it; make it, or name another"
        );
    }
}

/// Roots that are no directories, and the keys that name them.
fn missing_roots(config: &Config) -> Vec<(String, PathBuf)> {
    let own = config.agents.values().filter(|agent| agent.enabled).flat_map(|agent| {
        let roots = agent.roots.iter().flatten();
        roots.map(|root| (format!("agents.{}.roots", agent.name), root))
    });
    let all = config.roots.iter().map(|root| ("roots".to_owned(), root)).chain(own);
    all.filter(|(_, root)| !root.is_dir()).map(|(key, root)| (key, root.clone())).collect()
}

/// Says what is likely a mistake in a file of rules, though it can be used.
pub(super) async fn remark(file: Option<PathBuf>) {
    let Some(file) = file else { return };
    let origin = file.display().to_string();
    // Each rule is compared with all others.
    let checked = spawn_blocking(move || text_of(&file).map(|text| lint::check(&text).warnings)).await;
    let Ok(Ok(remarks)) = checked else { return };
    for remark in remarks.iter().take(MOST_REMARKS) {
        warn!(policy = remark.shown(&origin), "a rule may not do what was meant");
    }
    if let Some(more) = remarks.len().checked_sub(MOST_REMARKS).filter(|more| *more > 0) {
        warn!(more, "there is more to say of the rules: `conductor policy check {origin}`");
    }
}
