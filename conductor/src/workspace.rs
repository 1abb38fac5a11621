//! The host workspace: `fs/*` and `terminal/*` served on this host, beneath a
//! session's directories.
//!
//! A request becomes a job, which the session runs among its own tasks; nothing
//! here waits. `paths` is the only way to a file, `files` reads and writes,
//! `terminal` runs commands.

mod files;
mod paths;
mod terminal;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    pin::Pin,
    sync::Arc,
};

use bytes::Bytes;
use serde::Deserialize;
use serde_json::json;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    task::{JoinSet, spawn_blocking},
};
use tracing::error;
use uuid::Uuid;

pub use self::paths::Roots;
use self::terminal::{DEFAULT_OUTPUT, Life, MOST_OUTPUT, Terminal};
use crate::{
    acp::{Refusal, code},
    agent::{
        Process,
        process::{self, Environment},
    },
    contain::Container,
    frame::{self, Frame, Method},
};

/// Terminals a session may have at once; one more is refused.
const MOST_TERMINALS: usize = 32;

/// Beyond what every terminal may keep by default, the terminals of a session
/// may together keep so much of their output.
const EXTRA_OUTPUT: usize = 64 << 20;

/// Jobs of a session that may hold a file's text or a terminal's output at
/// once; the others wait.
const HEAVY_JOBS: usize = 2;

/// The result of a request, or why there is none.
pub type Outcome = Result<Bytes, Refusal>;

/// A request on its way.
pub type Job = Pin<Box<dyn Future<Output = Done> + Send>>;

/// What became of a request.
#[derive(Debug)]
pub struct Done {
    what: What,
    /// Held until the answer is on its way, so that answers nobody takes do
    /// not pile up.
    _turn: Option<OwnedSemaphorePermit>,
}

#[derive(Debug)]
enum What {
    Answer(Outcome),
    Created(Box<(Terminal, Life)>),
}

impl From<Outcome> for Done {
    fn from(outcome: Outcome) -> Self {
        Self { what: What::Answer(outcome), _turn: None }
    }
}

/// A session's files and terminals on this host.
#[derive(Debug)]
pub struct Workspace {
    roots: Arc<Roots>,
    terminals: BTreeMap<String, Terminal>,
    /// The tasks of terminals, also of those that are being ended.
    lives: JoinSet<()>,
    heavy: Arc<Semaphore>,
    places: Arc<Semaphore>,
    memory: Arc<Semaphore>,
}

impl Workspace {
    /// A workspace beneath these roots.
    pub fn new(roots: Arc<Roots>) -> Self {
        Self {
            roots,
            terminals: BTreeMap::new(),
            lives: JoinSet::new(),
            heavy: Arc::new(Semaphore::new(HEAVY_JOBS)),
            places: Arc::new(Semaphore::new(MOST_TERMINALS)),
            memory: Arc::new(Semaphore::new(EXTRA_OUTPUT)),
        }
    }

    /// Makes a job of a request of this process. Commands get what it shares beside their own
    /// variables, and are held by what holds it; a file is opened where its path led when that
    /// was `judged`.
    pub fn job(&mut self, frame: &Frame, process: &Process, judged: Option<PathBuf>) -> Result<Job, Refusal> {
        match frame.peek().method {
            Method::FsRead => Ok(self.file_job(frame, judged, files::read)),
            Method::FsWrite => Ok(self.file_job(frame, judged, files::write)),
            _ => match frame.method_name().as_str() {
                "terminal/create" => {
                    self.create(frame, process.shared_env.clone(), process.container.clone())
                }
                "terminal/output" => {
                    let output = self.terminal(frame)?.1.output();
                    let heavy = self.heavy.clone();
                    Ok(Box::pin(async move {
                        let turn = heavy.acquire_owned().await.ok();
                        Done { what: What::Answer(output.await), _turn: turn }
                    }))
                }
                "terminal/wait_for_exit" => {
                    let wait = self.terminal(frame)?.1.wait();
                    Ok(Box::pin(async move { wait.await.into() }))
                }
                "terminal/kill" => {
                    let kill = self.terminal(frame)?.1.kill();
                    Ok(Box::pin(async move { kill.await.into() }))
                }
                "terminal/release" => {
                    let (id, _) = self.terminal(frame)?;
                    let released = self.terminals.remove(&id);
                    Ok(Box::pin(async move {
                        match released {
                            Some(terminal) => terminal.kill().await.into(),
                            None => unknown_terminal(&id).into(),
                        }
                    }))
                }
                name => {
                    let text = format!("there is no method {}", frame::escape(name.as_bytes(), 100));
                    Err(Refusal::new(code::METHOD_NOT_FOUND, text))
                }
            },
        }
    }

    fn file_job(
        &self,
        frame: &Frame,
        judged: Option<PathBuf>,
        act: fn(&Roots, &Frame, Option<&Path>) -> Outcome,
    ) -> Job {
        let (roots, frame, heavy) = (self.roots.clone(), frame.clone(), self.heavy.clone());
        Box::pin(async move {
            let turn = heavy.acquire_owned().await.ok();
            let done = spawn_blocking(move || {
                let outcome = act(&roots, &frame, judged.as_deref());
                Done { what: What::Answer(outcome), _turn: turn }
            });
            done.await.unwrap_or_else(|_| Err(failed()).into())
        })
    }

    fn create(
        &self,
        frame: &Frame,
        env: Arc<Environment>,
        container: Arc<Container>,
    ) -> Result<Job, Refusal> {
        let Ok(place) = self.places.clone().try_acquire_owned() else {
            let text = format!(
                "this session has {MOST_TERMINALS} terminals already; release one with terminal/release"
            );
            return Err(Refusal::new(code::LIMIT, text));
        };
        let (roots, frame, memory) = (self.roots.clone(), frame.clone(), self.memory.clone());
        Ok(Box::pin(async move {
            let ordered = spawn_blocking(move || terminal::order(&roots, &frame, &env, container)).await;
            let (errand, limit) = match ordered.unwrap_or_else(|_| Err(failed())) {
                Ok(order) => order,
                Err(refusal) => return Err(refusal).into(),
            };
            let (limit, memory) = match room(limit, &memory) {
                Some(room) => room,
                None => return Err(failed()).into(),
            };
            match process::run_errand(errand).await {
                Ok(running) => {
                    let created = terminal::terminal(running, limit, [place, memory]);
                    Done { what: What::Created(Box::new(created)), _turn: None }
                }
                Err(why) => Err(Refusal::new(code::INVALID_PARAMS, why)).into(),
            }
        }))
    }

    /// The terminal that a request names, if it is one of this session.
    fn terminal(&self, frame: &Frame) -> Result<(String, &Terminal), Refusal> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Params {
            terminal_id: String,
        }
        let Params { terminal_id: id } = read_params(frame)?;
        match self.terminals.get(&id) {
            Some(terminal) => Ok((id, terminal)),
            None => Err(unknown_terminal(&id).err().unwrap_or_else(failed)),
        }
    }

    /// The answer to a request whose job is done.
    pub fn settle(&mut self, done: Done) -> Outcome {
        match done.what {
            What::Answer(outcome) => outcome,
            What::Created(created) => {
                let (terminal, life) = *created;
                self.lives.spawn(life.run());
                let id = Uuid::now_v7().to_string();
                let answer = json!({ "terminalId": id }).to_string().into();
                self.terminals.insert(id, terminal);
                Ok(answer)
            }
        }
    }

    /// Whether there are no terminals.
    pub fn is_idle(&self) -> bool {
        self.terminals.is_empty()
    }

    /// Ends all terminals; [`Self::ended`] waits until they have.
    pub fn end(&mut self) {
        self.terminals.clear();
    }

    /// Waits until the task of some terminal has ended; for ever if there is none.
    pub async fn reap(&mut self) {
        match self.lives.join_next().await {
            Some(Err(failure)) if failure.is_panic() => {
                error!(%failure, "a terminal's task panicked; its command has ended");
            }
            Some(_) => {}
            None => std::future::pending().await,
        }
    }

    /// Waits until no command of a terminal is left.
    pub async fn ended(&mut self) {
        self.end();
        while !self.lives.is_empty() {
            self.reap().await;
        }
    }
}

/// How much a terminal may keep: what it asks for, or the default if the
/// session's memory for more is used up.
fn room(limit: usize, memory: &Arc<Semaphore>) -> Option<(usize, OwnedSemaphorePermit)> {
    let extra = u32::try_from(limit.min(MOST_OUTPUT).saturating_sub(DEFAULT_OUTPUT)).ok()?;
    match memory.clone().try_acquire_many_owned(extra) {
        Ok(permit) => Some((limit, permit)),
        Err(_) => Some((DEFAULT_OUTPUT, memory.clone().try_acquire_many_owned(0).ok()?)),
    }
}

fn unknown_terminal(id: &str) -> Outcome {
    Err(Refusal {
        code: code::NOT_FOUND,
        message: "this session has no such terminal; create one with terminal/create".into(),
        data: Some(json!({ "terminalId": id })),
    })
}

/// Something of ours broke; it has been logged where it did.
fn failed() -> Refusal {
    Refusal::new(code::INTERNAL, "the conductor failed at this request; its log says why")
}

/// Reads a request's parameters, or says what is wrong with them.
fn read_params<'a, T: Deserialize<'a>>(frame: &'a Frame) -> Result<T, Refusal> {
    let params = frame.get(frame.peek().params);
    let params = if params.is_empty() { b"{}" } else { params };
    serde_json::from_slice(params).map_err(|error| {
        let text = frame::escape(error.to_string().as_bytes(), 300);
        Refusal::new(
            code::INVALID_PARAMS,
            format!("the parameters of {} are wrong: {text}", frame.method_name()),
        )
    })
}
