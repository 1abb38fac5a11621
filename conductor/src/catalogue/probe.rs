//! Asks agents what they offer, so that people can choose before the first
//! session: each that is started ahead anyway, once, and again when its program
//! or its configuration has changed.
//!
//! One task, and one agent at a time: nobody waits for this, and it must not
//! take the machine from those who work.

use std::{
    fs,
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use super::{Catalogue, Offer};
use crate::{
    agent::{
        Cause, Process,
        process::path_variable,
        trial::{self, Trial},
    },
    config::{Agent, Config},
    contain::Premises,
    frame::escape,
    journal::{Class, Journal},
    options::Choice,
    pool::AgentStatus,
    record::{Stream, StreamKind, note},
    recorder::Recorder,
    tasks::Tasks,
};

/// Programs are looked at again after this long, for upgrades that nobody
/// has used yet.
const LOOK: Duration = Duration::from_secs(60);

/// They are looked at when processes come and go, too, but not more often than
/// this.
const LOOK_PAUSE: Duration = Duration::from_secs(2);

/// How long the agent may take to close the session. It is ended anyway.
const CLOSE: Duration = Duration::from_secs(2);

/// How much of an agent's words is kept.
const WORDS: usize = 500;

/// What the task works with.
#[derive(Debug)]
pub struct Probe {
    /// What is learned.
    pub catalogue: Catalogue,
    /// Which agents there are.
    pub config: watch::Receiver<Arc<Config>>,
    /// Changes whenever a process comes or goes.
    pub processes: watch::Receiver<Arc<Vec<AgentStatus>>>,
    /// What processes are started on.
    pub premises: Premises,
    /// Where the processes' lives are written down.
    pub journal: Journal,
    /// Where they run.
    pub tasks: Tasks,
    /// The end of it.
    pub stop: CancellationToken,
}

impl Probe {
    /// Asks whoever is to be asked, until it is stopped; then no process is left.
    pub async fn run(mut self) {
        let mut stamps = self.catalogue.stamps();
        let mut is_first = true;
        loop {
            let config = self.config.borrow_and_update().clone();
            stamps.mark_unchanged();
            self.processes.mark_unchanged();
            self.look(&config).await;
            if std::mem::take(&mut is_first) && !self.stop.is_cancelled() {
                info!(agents = self.catalogue.offers().len(), "what the agents offer is known");
            }
            let used = async {
                sleep(LOOK_PAUSE).await;
                self.processes.changed().await
            };
            tokio::select! {
                () = self.stop.cancelled() => return,
                Ok(()) = self.config.changed() => {}
                Ok(()) = stamps.changed() => {}
                Ok(()) = used => {}
                () = sleep(LOOK) => {}
            }
        }
    }

    async fn look(&self, config: &Config) {
        // What runs with users' own secrets or homes cannot be asked for nobody; the first
        // session tells.
        let may_be_asked = |agent: &&Agent| agent.enabled && agent.warm > 0 && !agent.is_personal();
        for agent in config.agents.values().filter(may_be_asked) {
            let Ok(program) = agent.resolve(path_variable().as_deref()) else { continue };
            let stamp = stamp(agent, &program);
            if self.catalogue.stamps().borrow().get(&agent.name) == Some(&stamp) {
                continue;
            }
            let begun = Instant::now();
            let answer = self.ask(agent, program, config.service.stall_timeout).await;
            // What an agent says that is being ended is not what it offers.
            if self.stop.is_cancelled() {
                return;
            }
            match &answer {
                Ok(offer) => info!(
                    agent = agent.name,
                    models = offer.models.len(),
                    modes = offer.modes.len(),
                    took_ms = begun.elapsed().as_millis() as u64,
                    "the agent has told what it offers"
                ),
                Err(problem) => {
                    warn!(agent = agent.name, problem, "the agent cannot be asked what it offers");
                }
            }
            self.catalogue.asked(&agent.name, stamp, answer);
        }
    }

    /// Starts a process, has it open a session, and ends it.
    async fn ask(&self, agent: &Agent, program: PathBuf, stall: Duration) -> Result<Offer, String> {
        let name = &agent.name;
        let cwd = self.premises.state.join("probe").join(name);
        // It always has the same name, because some agents keep things by it.
        empty(&cwd).map_err(|error| format!("{} cannot be made: {error}", cwd.display()))?;
        let journal = Some(self.journal.clone());
        let spec =
            trial::spec(&self.premises, agent, program, &cwd, None, stall, journal).map_err(|error| {
                format!("it cannot be made ready: {error}; see agents.{name}.home and agents.{name}.files")
            })?;
        let started = Process::start_unless(spec, &self.tasks, &self.stop).await;
        let process = started.map_err(|exit| {
            let last = exit.stderr.lines().next_back().unwrap_or_default();
            let last = if last.is_empty() {
                String::new()
            } else {
                format!(" ({})", escape(last.as_bytes(), WORDS))
            };
            format!("it {}{last}; {}", exit.summary(), trial::start_remedy(agent))
        })?;
        let told = tokio::select! {
            told = self.hear(&process, agent, &cwd) => told,
            () = self.stop.cancelled() => Err(String::new()),
        };
        process.stop(Cause::Asked("it was asked what it offers"));
        process.exited().await;
        if let Ok(offer) = &told {
            self.record(&process, offer);
        }
        fs::remove_dir_all(&cwd).ok();
        told
    }

    async fn hear(&self, process: &Process, agent: &Agent, cwd: &Path) -> Result<Offer, String> {
        let trial = Trial::open(process, cwd, agent.start_timeout).await.map_err(|refused| {
            let why = escape(refused.message.as_bytes(), WORDS);
            format!("it opens no session: {why}; {}", refused.remedy(&agent.name))
        })?;
        let offer = Offer::read(process.hello.version(), &trial.told);
        trial.close(process, CLOSE).await.ok();
        Ok(offer)
    }

    /// Writes down what it told, behind its end: until then its task has the
    /// stream.
    fn record(&self, process: &Process, offer: &Offer) {
        let stream = Stream { id: process.id, kind: StreamKind::Process };
        let mut recorder = Recorder::new(Some(self.journal.clone()), stream);
        let list = |choices: &[Choice]| -> Value {
            choices.iter().map(|choice| json!({ "value": choice.value, "name": choice.name })).collect()
        };
        recorder.note(
            note::CATALOGUE,
            &json!({
                "agent": &*process.agent,
                "version": offer.version,
                "models": list(&offer.models),
                "modes": list(&offer.modes),
            }),
        );
        // If the journal does not take it now, it does so later.
        recorder.commit(Class::Stop).ok();
    }
}

/// A directory of ours with nothing in it.
fn empty(directory: &Path) -> std::io::Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)
}

/// Changes with the agent's program, and with what it is started with. A hash,
/// because there may be secrets among that.
fn stamp(agent: &Agent, program: &Path) -> String {
    let file = fs::metadata(program).ok();
    let file = file.map(|file| json!([file.ino(), file.size(), file.mtime(), file.mtime_nsec()]));
    let handed_on = agent.env_from.iter().map(|name| {
        let value = std::env::var_os(name);
        json!([name, value.map(|value| value.to_string_lossy().into_owned())])
    });
    let what = json!([
        program.to_string_lossy(),
        file,
        agent.args,
        agent.env,
        handed_on.collect::<Vec<_>>(),
        format!("{:?}", (&agent.files, agent.home, &agent.profile, &agent.cwd)),
    ]);
    Sha256::digest(what.to_string()).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    #[test]
    fn a_stamp_changes_with_the_program_and_its_settings() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("agent");
        fs::write(&program, "one").unwrap();
        let agent: Agent = toml::from_str("command = 'x'\nargs = ['--acp']").unwrap();
        let first = stamp(&agent, &program);
        assert_eq!((first.len(), &first), (64, &stamp(&agent, &program)));
        // How it is shown and how many are kept says nothing about it.
        let shown = Agent { title: Some("X".into()), warm: 7, ..agent.clone() };
        assert_eq!(first, stamp(&shown, &program));
        let other = Agent { env: [("KEY".to_owned(), "1".to_owned())].into(), ..agent.clone() };
        assert_ne!(first, stamp(&other, &program));
        fs::write(&program, "another").unwrap();
        assert_ne!(first, stamp(&agent, &program));
    }

    #[test]
    fn a_directory_is_emptied() {
        let dir = tempfile::tempdir().unwrap();
        let place = dir.path().join("a/b");
        empty(&place).unwrap();
        fs::write(place.join("file"), "").unwrap();
        empty(&place).unwrap();
        assert_eq!(fs::read_dir(&place).unwrap().count(), 0);
    }
}
