//! Which connections can be carried on by a new stream. A task of its own, so
//! that it needs no lock; it is asked once per stream.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::Arc,
};

use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::Attach;
use crate::{identity::Caller, metrics::Metrics, state::Token, tasks::Tasks};

/// Questions that may wait; each is answered at once.
const QUESTIONS: usize = 64;

/// A connection that can be carried on.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) caller: Caller,
    pub(super) key: Token,
    pub(super) attach: mpsc::Sender<Attach>,
}

enum Question {
    Add(Uuid, Entry, oneshot::Sender<bool>),
    Find { id: Uuid, caller: Caller, key: String, answer: oneshot::Sender<Option<mpsc::Sender<Attach>>> },
    Gone(Uuid),
}

/// The handle.
#[derive(Debug, Clone)]
pub struct Tethers {
    ask: mpsc::Sender<Question>,
    spools: Arc<Path>,
    metrics: Metrics,
}

impl Tethers {
    /// Starts the task. At most `most` connections can be carried on; those
    /// above end with their stream. What waits for editors that are away is
    /// kept in files beneath `spools`.
    pub fn start(
        most: usize,
        spools: PathBuf,
        closing: CancellationToken,
        metrics: Metrics,
        tasks: &Tasks,
    ) -> Self {
        let (ask, questions) = mpsc::channel(QUESTIONS);
        tasks.start("tethers", async move {
            tokio::select! {
                () = answer(most, questions) => {}
                () = closing.cancelled() => {}
            }
        });
        Self { ask, spools: spools.into(), metrics }
    }

    /// What is counted.
    pub(super) fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// Where spools are made.
    pub(super) fn spools(&self) -> PathBuf {
        self.spools.to_path_buf()
    }

    /// Whether the connection can be carried on from now on.
    pub(super) async fn add(&self, id: Uuid, entry: Entry) -> bool {
        let (answer, answered) = oneshot::channel();
        self.ask.send(Question::Add(id, entry, answer)).await.is_ok() && answered.await.unwrap_or(false)
    }

    /// The way to a connection. One that is not there, another user's and a
    /// wrong key look the same; so does one whose user has other teams or roles
    /// by now, as the connection still has the former.
    pub(super) async fn find(&self, id: &str, key: &str, caller: &Caller) -> Option<mpsc::Sender<Attach>> {
        let id = Uuid::try_parse(id).ok()?;
        let (answer, answered) = oneshot::channel();
        let question = Question::Find { id, caller: caller.clone(), key: key.to_owned(), answer };
        self.ask.send(question).await.ok()?;
        answered.await.ok().flatten()
    }

    /// The connection has ended.
    pub(super) async fn gone(&self, id: Uuid) {
        self.ask.send(Question::Gone(id)).await.ok();
    }
}

async fn answer(most: usize, mut questions: mpsc::Receiver<Question>) {
    let mut entries: HashMap<Uuid, Entry> = HashMap::new();
    while let Some(question) = questions.recv().await {
        match question {
            Question::Add(id, entry, answer) => {
                let room = entries.len() < most;
                if room {
                    entries.insert(id, entry);
                }
                answer.send(room).ok();
            }
            Question::Find { id, caller, key, answer } => {
                let entry = entries.get(&id).filter(|entry| entry.key.matches(key.as_bytes()));
                let entry = entry.filter(|entry| entry.caller == caller);
                answer.send(entry.map(|entry| entry.attach.clone())).ok();
            }
            Question::Gone(id) => {
                entries.remove(&id);
            }
        }
    }
}
