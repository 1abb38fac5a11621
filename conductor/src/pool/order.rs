//! A process to be started: what it needs of its user's and of the configuration, and the
//! start itself, which happens in a task of its own.

use std::{any::Any, panic::AssertUnwindSafe, path::PathBuf, sync::Arc, time::Duration};

use futures_util::FutureExt as _;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::Key;
use crate::{
    agent::{Cause, Exit, Process, Spec, home::Belongings, process::Launch},
    config::{self, GitIdentity},
    contain::Premises,
    journal::Journal,
    secrets::{Stamp, Vault},
    tasks::Tasks,
};

/// A process to be started.
pub(super) struct Order {
    pub(super) key: Key,
    pub(super) program: PathBuf,
    pub(super) agent: Arc<config::Agent>,
    pub(super) premises: Premises,
    pub(super) git: Option<GitIdentity>,
}

/// What it takes to start one.
pub(super) struct Means {
    pub(super) vault: Vault,
    /// Limits how many processes start at once.
    pub(super) tokens: Arc<Semaphore>,
    pub(super) stall_timeout: Duration,
    pub(super) journal: Journal,
    pub(super) tasks: Tasks,
    /// None is to be started any more.
    pub(super) unwanted: CancellationToken,
}

/// What has come of a start: the process, and what the secrets looked like that it was
/// given.
pub(super) type Outcome = Result<(Arc<Process>, Stamp), Arc<Exit>>;

/// What a task panicked with.
pub(super) type Panic = Box<dyn Any + Send>;

impl Order {
    /// Starts it, and says what has come of it, even of a start that panics: its place
    /// among those that are starting would be taken for ever.
    pub(super) async fn outcome(&self, means: Means) -> (Outcome, Option<Panic>) {
        or_panic(self.start(means), || self.failed(Cause::NotStarted("its start has panicked".into()))).await
    }

    async fn start(&self, means: Means) -> Outcome {
        let Means { vault, tokens, stall_timeout, journal, tasks, unwanted } = means;
        let waiting = async {
            // Secrets may take a while, during which others may start.
            let own = self.belongings(&vault).await?;
            Ok((own, tokens.acquire_owned().await))
        };
        let waited = tokio::select! {
            waited = waiting => waited,
            () = unwanted.cancelled() => Err(Cause::Asked("it is not wanted any more")),
        };
        let prepared = waited.and_then(|(own, permit)| Ok((self.prepare(own.as_ref())?, own, permit)));
        let (launch, own, _permit) = prepared.map_err(|cause| self.failed(cause))?;
        let spec = Spec {
            agent: self.key.agent.clone(),
            launch,
            capabilities: self.key.capabilities,
            start_timeout: self.agent.start_timeout,
            stall_timeout,
            journal: Some(journal),
        };
        let process = Process::start_unless(spec, &tasks, &unwanted).await?;
        Ok((process, own.map(|own| own.stamp()).unwrap_or_default()))
    }

    /// What it gets that is of its user alone.
    pub(super) async fn belongings(&self, vault: &Vault) -> Result<Option<Belongings>, Cause> {
        let Some(person) = &self.key.person else { return Ok(None) };
        let own = Belongings::of(person, &self.agent, vault, self.git.clone()).await;
        own.map(Some).map_err(|why| Cause::NoSecrets(why.to_string()))
    }

    pub(super) fn prepare(&self, own: Option<&Belongings>) -> Result<Launch, Cause> {
        let cwd = self.agent.cwd.clone().unwrap_or_else(|| self.key.cwd.clone());
        if !cwd.is_dir() {
            return Err(Cause::NoDirectory(cwd));
        }
        // The session works in the key's directory, wherever the process itself runs.
        let roots: Vec<PathBuf> = std::iter::once(&self.key.cwd).chain(&self.key.more).cloned().collect();
        Launch::prepare(&self.premises, &self.agent, self.program.clone(), cwd, &roots, own)
            .map_err(|error| Cause::NotStarted(error.to_string()))
    }

    pub(super) fn failed(&self, cause: Cause) -> Arc<Exit> {
        failed(&self.key, cause)
    }
}

/// The end of a process that never was.
pub(super) fn failed(key: &Key, cause: Cause) -> Arc<Exit> {
    Arc::new(Exit { agent: key.agent.clone(), pid: 0, cause, status: None, stderr: String::new() })
}

/// What a future gives, or what stands for it if it panics, together with the panic.
async fn or_panic<T>(
    future: impl Future<Output = Result<T, Arc<Exit>>>,
    instead: impl FnOnce() -> Arc<Exit>,
) -> (Result<T, Arc<Exit>>, Option<Panic>) {
    match AssertUnwindSafe(future).catch_unwind().await {
        Ok(given) => (given, None),
        Err(panic) => (Err(instead()), Some(panic)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::acp::WorkspaceCapabilities;

    #[tokio::test]
    #[allow(clippy::panic, reason = "the panic is what is tested")]
    async fn a_start_that_panics_has_an_outcome() {
        let capabilities = WorkspaceCapabilities::ALL;
        let key = Key { agent: "demo".into(), cwd: "/".into(), more: Vec::new(), capabilities, person: None };
        let instead = || failed(&key, Cause::NotStarted("its start has panicked".into()));
        let (outcome, panic) = or_panic::<()>(async { panic!("on purpose") }, instead).await;
        assert!(outcome.is_err_and(|exit| exit.to_string().contains("its start has panicked")));
        assert!(panic.is_some_and(|panic| panic.downcast_ref() == Some(&"on purpose")));
        let (outcome, panic) = or_panic(async { Ok(7) }, instead).await;
        assert!(outcome.is_ok_and(|given| given == 7) && panic.is_none());
    }
}
