//! Requests of the agent that this host answers instead of the editor.
//!
//! Each is a job among the session's own; its answer goes back through the
//! session's loop, so there is exactly one, whatever happens to the job.

use std::{collections::HashMap, path::PathBuf, sync::Arc};

use bytes::Bytes;
use tokio::{
    sync::oneshot,
    task::{AbortHandle, Id, JoinError, JoinSet},
};
use tracing::error;

use super::{Session, released};
use crate::{
    acp::{self, EditorCapabilities, Refusal, code},
    frame::{self, Frame, Method},
    journal::Class,
    workspace::{Done, Job, Roots, Workspace},
};

/// Jobs a session may have at once; one more is refused. Those that wait for
/// the end of a command stay long.
const MOST_JOBS: usize = 256;

/// Bytes of requests that may wait for their job; with more, the agent is not
/// read until some are done.
const MOST_WAITING: usize = 8 << 20;

/// What this host does for a session.
#[derive(Debug, Clone)]
pub struct Hosting {
    /// Where.
    pub roots: Arc<Roots>,
    /// Files are left to editors that can serve them.
    pub prefer_client_fs: bool,
    /// Terminals are left to editors that can serve them.
    pub prefer_client_terminal: bool,
}

/// The host's side of a session; does nothing if all is left to the editor.
#[derive(Debug, Default)]
pub(super) struct Host {
    workspace: Option<Workspace>,
    /// This host serves reads, writes and terminals.
    serves: [bool; 3],
    jobs: JoinSet<Done>,
    asked: HashMap<Id, Asked>,
    waiting: usize,
}

/// A request that has a job.
#[derive(Debug)]
struct Asked {
    /// The agent's id of it, raw.
    agent_id: Bytes,
    size: usize,
    job: AbortHandle,
}

/// A job that is done, well or not.
pub(super) type Finished = Result<(Id, Done), JoinError>;

impl Host {
    pub(super) fn new(hosting: Option<&Hosting>, able: EditorCapabilities) -> Self {
        let Some(hosting) = hosting else { return Self::default() };
        let (fs, terminal) = (hosting.prefer_client_fs, hosting.prefer_client_terminal);
        Self {
            workspace: Some(Workspace::new(hosting.roots.clone())),
            serves: [!(fs && able.fs_read), !(fs && able.fs_write), !(terminal && able.terminal)],
            ..Self::default()
        }
    }

    /// Whether requests of this method are answered here.
    pub(super) fn serves(&self, method: Method) -> bool {
        let [read, write, terminal] = self.serves;
        match method {
            Method::FsRead => read,
            Method::FsWrite => write,
            Method::TerminalCreate | Method::Terminal => terminal,
            _ => false,
        }
    }

    /// Whether a request with this id has a job.
    pub(super) fn has(&self, agent_id: &[u8]) -> bool {
        self.asked.values().any(|asked| asked.agent_id == agent_id)
    }

    /// Whether nothing of the session runs here.
    pub(super) fn is_idle(&self) -> bool {
        self.asked.is_empty() && self.workspace.as_ref().is_none_or(Workspace::is_idle)
    }

    /// Whether more requests may come.
    pub(super) fn has_room(&self) -> bool {
        self.waiting < MOST_WAITING
    }

    /// The next job that is done; waits for ever if there is none. Nothing is
    /// lost if this is dropped.
    pub(super) async fn next(&mut self) -> Finished {
        loop {
            let Some(workspace) = &mut self.workspace else { return std::future::pending().await };
            tokio::select! {
                Some(finished) = self.jobs.join_next_with_id() => return finished,
                () = workspace.reap() => {}
            }
        }
    }

    /// Takes back a request; whether there was one.
    fn withdraw(&mut self, agent_id: &[u8]) -> bool {
        let found = self.asked.iter().find(|(_, asked)| asked.agent_id == agent_id).map(|(id, _)| *id);
        match found.and_then(|id| self.forget(id)) {
            Some(asked) => {
                asked.job.abort();
                true
            }
            None => false,
        }
    }

    fn forget(&mut self, id: Id) -> Option<Asked> {
        let asked = self.asked.remove(&id)?;
        self.waiting -= asked.size;
        Some(asked)
    }

    /// Gives up all requests and ends all terminals; the ids of the requests.
    pub(super) fn stop(&mut self) -> Vec<Bytes> {
        self.jobs.abort_all();
        self.waiting = 0;
        if let Some(workspace) = &mut self.workspace {
            workspace.end();
        }
        self.asked.drain().map(|(_, asked)| asked.agent_id).collect()
    }

    /// Waits until nothing of the session runs on this host any more.
    pub(super) async fn ended(&mut self) {
        self.jobs.shutdown().await;
        if let Some(workspace) = &mut self.workspace {
            workspace.ended().await;
        }
    }
}

impl Session {
    /// The answer to a request that this host cannot take.
    pub(super) fn host_refusal(&self, frame: &Frame) -> Option<Bytes> {
        let id = frame.get(frame.peek().id);
        if self.host.has(id) || self.asks.iter().any(|ask| ask.agent_id == id) {
            let text = format!("a request with the id {} is already in flight", frame::escape(id, 100));
            return Some(Refusal::new(code::INVALID_REQUEST, text).frame(id));
        }
        // Questions about requests count, too: they are requests that wait.
        if self.host.jobs.len() + self.asks.len() >= MOST_JOBS {
            let text = format!("{MOST_JOBS} requests of this session are in flight already");
            return Some(Refusal::new(code::LIMIT, text).frame(id));
        }
        None
    }

    /// A request for this host; `judged` is where the path in it led when it was judged.
    pub(super) fn host_asks(&mut self, frame: &Frame, judged: Option<PathBuf>) {
        let id = frame.get(frame.peek().id);
        let begun = match (&mut self.host.workspace, &self.binding) {
            (Some(workspace), Some(binding)) => workspace.job(frame, binding.process(), judged),
            _ => Err(Refusal::new(code::INTERNAL, "this session has no workspace")),
        };
        match begun {
            Ok(job) => {
                let job = match frame.peek().method {
                    Method::FsWrite | Method::TerminalCreate => self.gated(job),
                    _ => job,
                };
                let job = self.host.jobs.spawn(job);
                let size = frame.bytes().len();
                self.host.waiting += size;
                let asked = Asked { agent_id: frame.copy(frame.peek().id), size, job: job.clone() };
                self.host.asked.insert(job.id(), asked);
            }
            Err(refusal) => self.say_agent(refusal.frame(id), Class::Stop),
        }
    }

    /// The job, once what asked for it is on disk.
    fn gated(&mut self, job: Job) -> Job {
        let (gate, written) = oneshot::channel();
        self.hand.gates.push(gate);
        self.hand.class = self.hand.class.max(Class::Effect);
        let journal = self.journal.clone();
        Box::pin(async move {
            let refused = match written.await {
                Ok(Ok(None)) => None,
                Ok(Ok(ticket)) => released(&journal, ticket).await.err(),
                Ok(Err(why)) => Some(why),
                Err(_) => Some("this session has ended".into()),
            };
            match refused {
                None => job.await,
                Some(why) => Err(Refusal::new(code::NOT_RECORDED, &*why)).into(),
            }
        })
    }

    /// A job is done: its request gets its answer, unless it was taken back.
    pub(super) fn host_answers(&mut self, finished: Finished) {
        let (id, done) = match finished {
            Ok((id, done)) => (id, Some(done)),
            Err(failure) => {
                if failure.is_panic() {
                    error!(%failure, "a job panicked; its request is refused");
                }
                (failure.id(), None)
            }
        };
        let Some(asked) = self.host.forget(id) else { return };
        let outcome = match (done, &mut self.host.workspace) {
            (Some(done), Some(workspace)) => workspace.settle(done),
            _ => Err(Refusal::new(code::INTERNAL, "the conductor failed at this request; its log says why")),
        };
        let (answer, class) = match outcome {
            Ok(result) => (acp::result(&asked.agent_id, &result), Class::Stream),
            // Who asked is told at once, whatever the disk does.
            Err(refusal) if refusal.code == code::NOT_RECORDED => {
                (refusal.frame(&asked.agent_id), Class::Stop)
            }
            Err(refusal) => (refusal.frame(&asked.agent_id), Class::Stream),
        };
        self.say_agent(answer, class);
    }

    /// The session ends: its commands are killed at once, whoever is slow to
    /// take leave.
    pub(super) fn stop_host(&mut self) {
        for id in self.host.stop() {
            self.say_agent(Refusal::new(code::CANCELLED, "this session has ended").frame(&id), Class::Stop);
        }
    }

    /// `$/cancel_request` of the agent; whether the request was one of ours.
    pub(super) fn host_withdraws(&mut self, agent_id: &[u8]) -> bool {
        let found = self.host.withdraw(agent_id);
        if found {
            self.say_agent(Refusal::new(code::CANCELLED, "cancelled as asked").frame(agent_id), Class::Stop);
        }
        found
    }
}
