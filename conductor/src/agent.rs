//! One running child of an agent: a handle with verbs, and the task that owns
//! its pipes from spawn to exit record.
//!
//! The task reads the agent's lines, finds the session each belongs to and
//! passes them on in runs. It never waits for one thing only: what cannot be
//! delivered yet is held, and nothing more is read until it is, so that the
//! pipe itself slows the agent down.

mod beneath;
mod exit;
pub mod home;
pub mod login;
pub mod process;
pub mod profile;
pub mod pty;
mod routing;
pub mod stdio;
pub mod strays;
pub mod transcripts;
pub mod trial;

use std::{
    fmt,
    path::PathBuf,
    process::ExitStatus,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use tokio::{
    process::ChildStdout,
    sync::{mpsc, oneshot, watch},
    task::JoinSet,
    time::{Instant, sleep, sleep_until, timeout, timeout_at},
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};
use uuid::Uuid;

pub use self::exit::{Cause, Exit};
use self::{
    exit::{clear, end_strays, finish},
    process::{Guarded, Launch, Started},
    routing::{Routing, accepting},
    stdio::{Block, LineReader, WriteEnd},
};
use crate::{
    acp::{self, AgentHello, WorkspaceCapabilities},
    contain::{Container, Shown},
    frame::{self, Fault, Frame, Kind, MAX_FRAME, Run},
    journal::{Class, Journal},
    metrics::Metrics,
    pending::WireId,
    queue,
    record::{Destination, Origin, Stream, StreamKind, note},
    recorder::Recorder,
    redact::{Known, Redaction},
    tasks::Tasks,
};

/// Runs that may wait between an agent and one of its sessions. Few, because
/// a full queue is what slows a flooding agent down.
const OUTPUT_RUNS: usize = 4;

/// Bytes that may wait there.
const OUTPUT_BYTES: u32 = 1 << 20;

/// Frames that may wait to be written to an agent's stdin.
const INPUT_FRAMES: usize = 64;

/// Bytes that may wait there.
const INPUT_BYTES: u32 = 4 << 20;

/// Breaches of the protocol (lines that are no frames, answers to nothing)
/// after which an agent is ended.
const MAX_VIOLATIONS: u32 = 100;

/// After its death is known, how long what it wrote before may take to read.
const DRAIN_GRACE: Duration = Duration::from_secs(1);

/// What to start, and the limits it lives under.
#[derive(Debug, Clone)]
pub struct Spec {
    /// The agent's name in the configuration.
    pub agent: Arc<str>,
    /// The command, environment and directory.
    pub launch: Launch,
    /// What we promise the agent in the handshake.
    pub capabilities: WorkspaceCapabilities,
    /// How long spawn and handshake may take.
    pub start_timeout: Duration,
    /// How long it may leave its input unread or a line unfinished.
    pub stall_timeout: Duration,
    /// Where its life is written down; `None` for a trial.
    pub journal: Option<Journal>,
}

/// A running process. Shared by the pool and the sessions it serves.
#[derive(Debug)]
pub struct Process {
    /// Our id of it.
    pub id: Uuid,
    /// The agent's name.
    pub agent: Arc<str>,
    /// Its process id.
    pub pid: u32,
    /// Where it runs.
    pub cwd: PathBuf,
    /// What commands that it has us run get as their environment.
    pub shared_env: Arc<process::Environment>,
    /// What holds it, and those commands.
    pub container: Arc<Container>,
    /// The same, for those who look at it.
    pub sandbox: Arc<Shown>,
    /// When it was started.
    pub started: Instant,
    /// What it said in the handshake.
    pub hello: Arc<AgentHello>,
    input: queue::Sender<Bytes>,
    attach: mpsc::Sender<Attach>,
    exit: watch::Receiver<Option<Arc<Exit>>>,
    stop: Stop,
    violations: AtomicU32,
    redaction: Redaction,
    /// Secrets that it may write: what it was given, and what its sessions have handed over.
    known: watch::Sender<Known>,
}

/// A session's place at a process.
#[derive(Debug)]
pub struct Attachment {
    /// Which session of the process; part of every request id.
    pub slot: u32,
    /// What the agent says to this session.
    pub output: queue::Receiver<Run>,
}

struct Attach {
    /// The agent's session id, with quotes, if it is known already.
    known: Option<Bytes>,
    reply: oneshot::Sender<Attachment>,
}

/// Knows when a process has ended, and keeps nothing else of it.
#[derive(Debug, Clone)]
pub struct Ended(watch::Receiver<Option<Arc<Exit>>>);

impl Ended {
    /// Waits for the end.
    pub async fn wait(&mut self) {
        self.0.wait_for(Option::is_some).await.ok();
    }

    /// Whether it has come.
    pub fn is_over(&self) -> bool {
        self.0.borrow().is_some() || self.0.has_changed().is_err()
    }
}

/// The wish that a process end, with the first cause given.
#[derive(Debug, Clone, Default)]
struct Stop {
    cause: Arc<OnceLock<Cause>>,
    token: CancellationToken,
}

impl Stop {
    fn ask(&self, cause: Cause) {
        self.cause.set(cause).ok();
        self.token.cancel();
    }
}

impl Process {
    /// Where it finds its programs.
    pub fn search(&self) -> Vec<PathBuf> {
        let path = self.shared_env.get(std::ffi::OsStr::new("PATH"));
        path.map(|path| std::env::split_paths(path).collect()).unwrap_or_default()
    }

    /// Starts a process and waits for its handshake.
    pub async fn start(spec: Spec, tasks: &Tasks) -> Result<Arc<Self>, Arc<Exit>> {
        Self::start_unless(spec, tasks, &CancellationToken::new()).await
    }

    /// The same, but a process that is not wanted any more is ended before its
    /// handshake is done, too.
    pub async fn start_unless(
        spec: Spec,
        tasks: &Tasks,
        unwanted: &CancellationToken,
    ) -> Result<Arc<Self>, Arc<Exit>> {
        let (ready, mut started) = oneshot::channel();
        let (agent, stop) = (spec.agent.clone(), Stop::default());
        tasks.start("process", run(spec, tasks.metrics().clone(), stop.clone(), ready));
        let started = tokio::select! {
            started = &mut started => started,
            () = unwanted.cancelled() => {
                stop.ask(Cause::Asked("it is not wanted any more"));
                started.await
            }
        };
        started.unwrap_or_else(|_| {
            let cause = Cause::NotStarted("its task ended early".into());
            Err(Arc::new(Exit { agent, pid: 0, cause, status: None, stderr: String::new() }))
        })
    }

    /// Takes a place for a session. `known` is the agent's id of the session,
    /// with quotes, when it is to be reopened. `None` if the process has ended.
    pub async fn attach(&self, known: Option<Bytes>) -> Option<Attachment> {
        let (reply, attached) = oneshot::channel();
        self.attach.send(Attach { known, reply }).await.ok()?;
        attached.await.ok()
    }

    /// Where frames for the agent go.
    pub fn input(&self) -> &queue::Sender<Bytes> {
        &self.input
    }

    /// Asks the process to end; the first cause given stays.
    pub fn stop(&self, cause: Cause) {
        self.stop.ask(cause);
    }

    /// Whether it is ending or has ended.
    pub fn is_ending(&self) -> bool {
        self.stop.token.is_cancelled() || self.exit.borrow().is_some()
    }

    /// The secrets that it knows.
    pub fn known(&self) -> Known {
        self.known.borrow().clone()
    }

    /// It is about to be told these.
    pub fn is_told(&self, secrets: &Known) {
        if !secrets.is_empty() {
            self.known.send_modify(|known| *known = known.and(secrets));
        }
    }

    /// What it has said as others may see it.
    pub fn redacted(&self, text: &str) -> String {
        self.redaction.text(&self.known.borrow(), text).into_owned()
    }

    /// Counts a breach of the protocol; too many end the process.
    pub fn violation(&self, what: impl fmt::Display) {
        let what = self.redacted(&what.to_string());
        info!(agent = %self.agent, pid = self.pid, %what, "agent breached the protocol");
        if self.violations.fetch_add(1, Ordering::Relaxed) + 1 >= MAX_VIOLATIONS {
            self.stop(Cause::Violations(what));
        }
    }

    /// Waits for its end.
    pub async fn exited(&self) -> Arc<Exit> {
        let mut exit = self.exit.clone();
        match exit.wait_for(Option::is_some).await {
            Ok(exit) => exit.clone().unwrap_or_else(|| self.lost()),
            Err(_) => self.lost(),
        }
    }

    /// Something to wait for its end with.
    pub fn ended(&self) -> Ended {
        Ended(self.exit.clone())
    }

    /// The exit record when the owning task vanished without leaving one.
    fn lost(&self) -> Arc<Exit> {
        let cause = Cause::NotStarted("its task ended early".into());
        Arc::new(Exit {
            agent: self.agent.clone(),
            pid: self.pid,
            cause,
            status: None,
            stderr: String::new(),
        })
    }
}

/// The whole life of a process.
async fn run(
    spec: Spec,
    metrics: Metrics,
    stop: Stop,
    ready: oneshot::Sender<Result<Arc<Process>, Arc<Exit>>>,
) {
    let begun = Instant::now();
    let deadline = begun + spec.start_timeout;
    let id = Uuid::now_v7();
    let mut recorder = Recorder::new(spec.journal.clone(), Stream { id, kind: StreamKind::Process });
    recorder.know_all(&spec.launch.known);
    let redaction = spec.journal.as_ref().map(|journal| journal.redaction().clone()).unwrap_or_default();
    let (known, knows) = watch::channel(spec.launch.known.clone());
    let mut made = None;
    let start = async {
        let container = made.insert(Arc::new(spec.launch.container(id).await?));
        process::spawn(&spec.launch, container).await
    };
    let outcome = timeout_at(deadline, start).await;
    let (started, container) = match (outcome, made) {
        (Ok(Ok(started)), Some(container)) => (started, container),
        (failed, made) => {
            let cause = match failed {
                Ok(Err(why)) => Cause::NotStarted(why),
                _ => Cause::StartTimeout(spec.start_timeout),
            };
            recorder.note(note::PROCESS_STARTED, &started_note(&spec, 0, None));
            let exit = Exit { agent: spec.agent, pid: 0, cause, status: None, stderr: String::new() };
            let exit = exit.redacted(&redaction, &knows.borrow());
            exit.record(recorder);
            if let Some(container) = made {
                clear(container).await;
            }
            ready.send(Err(Arc::new(exit))).ok();
            return;
        }
    };
    let Started { pid, held, stdin, stdout, stderr, mut guarded } = started;
    let sandbox = Arc::new(container.shown(&held));
    recorder.note(note::PROCESS_STARTED, &started_note(&spec, pid, Some(&sandbox)));

    let (input, queued) = queue::queue(INPUT_FRAMES, INPUT_BYTES);
    let closing = CancellationToken::new();
    let mut helpers = JoinSet::new();
    let writer = stdio::write_lines(stdin, queued, closing.clone(), spec.stall_timeout);
    helpers.spawn(watch_writer(writer, stop.clone(), spec.stall_timeout));
    let mut words = JoinSet::new();
    let agent = spec.agent.clone();
    let (shown, told) = (redaction.clone(), knows.clone());
    words.spawn(async move {
        stdio::drain_stderr(stderr, &agent, pid, |text| shown.text(&told.borrow(), text).into_owned()).await
    });

    let mut lines = LineReader::new(stdout, MAX_FRAME);
    let (record, exit) = watch::channel(None);
    let shaken = timeout_at(deadline, handshake(&mut lines, &input, &spec, &stop, &mut recorder)).await;
    recorder.commit(Class::Stop).ok();
    let ((cause, status), recorder) = match shaken.unwrap_or(Err(Cause::StartTimeout(spec.start_timeout))) {
        Ok((hello, early)) => {
            let (attach, attaching) = mpsc::channel(1);
            let process = Arc::new(Process {
                id,
                agent: spec.agent.clone(),
                pid,
                cwd: spec.launch.cwd.clone(),
                shared_env: spec.launch.shared_env.clone(),
                container: container.clone(),
                sandbox,
                started: begun,
                hello: Arc::new(hello),
                input,
                attach,
                exit,
                stop: stop.clone(),
                violations: AtomicU32::new(0),
                redaction: redaction.clone(),
                known,
            });
            info!(agent = %spec.agent, pid, took_ms = begun.elapsed().as_millis() as u64, "agent process is ready");
            let owner = Owner { process: process.clone(), stall: spec.stall_timeout, attaching };
            let mut routing = Routing::new(process.clone(), OUTPUT_RUNS, OUTPUT_BYTES, recorder, metrics);
            ready.send(Ok(process)).ok();
            let ended = owner.relay(lines, early, &mut guarded, &stop, &mut routing).await;
            // Its sessions hear now that nothing more comes.
            (ended, routing.recorder)
        }
        Err(cause) => {
            let exit =
                finish(&spec, &container, pid, (cause, None), &mut guarded, &closing, &mut words).await;
            let exit = exit.redacted(&redaction, &knows.borrow());
            clear(container).await;
            exit.record(recorder);
            ready.send(Err(Arc::new(exit))).ok();
            return;
        }
    };
    let exit = finish(&spec, &container, pid, (cause, status), &mut guarded, &closing, &mut words).await;
    let exit = exit.redacted(&redaction, &knows.borrow());
    if exit.is_crash() {
        warn!(agent = %spec.agent, pid, how = exit.summary(), "agent process ended");
    } else {
        debug!(agent = %spec.agent, pid, how = exit.summary(), "agent process ended");
    }
    exit.record(recorder);
    record.send_replace(Some(Arc::new(exit)));
    clear(container).await;
}

/// What is known of a process at its start. Its environment may hold secrets.
fn started_note(spec: &Spec, pid: u32, sandbox: Option<&Shown>) -> serde_json::Value {
    serde_json::json!({
        "agent": &*spec.agent,
        "pid": pid,
        "command": spec.launch.program.to_string_lossy(),
        "args": spec.launch.args,
        "cwd": spec.launch.cwd.to_string_lossy(),
        "sandbox": sandbox,
    })
}

async fn watch_writer(writer: impl Future<Output = WriteEnd>, stop: Stop, stall: Duration) {
    match writer.await {
        WriteEnd::Stalled => stop.ask(Cause::Unread(stall)),
        WriteEnd::Broken => {
            // Mostly it has ended: the reader will see that, too, and find out
            // how it came.
            sleep(process::EOF_GRACE).await;
            stop.ask(Cause::ClosedStdin);
        }
        WriteEnd::Closed => {}
    }
}

/// Sends our `initialize` and waits for the answer. Also gives what came with
/// it in the same read.
async fn handshake(
    lines: &mut LineReader<ChildStdout>,
    input: &queue::Sender<Bytes>,
    spec: &Spec,
    stop: &Stop,
    recorder: &mut Recorder,
) -> Result<(AgentHello, Vec<Frame>), Cause> {
    let id = WireId { slot: 0, number: 0 }.to_string();
    let hello = acp::initialize_agent(&id, spec.capabilities);
    recorder.frame(Origin::Conductor, Destination::Agent, None, &hello);
    recorder.commit(Class::Stop).ok();
    input.try_send(hello.len(), hello).map_err(|_| Cause::Itself)?;
    let mut noise = 0;
    loop {
        let block = tokio::select! {
            block = lines.next() => block,
            () = stop.token.cancelled() => return Err(stop.cause.get().cloned().unwrap_or(Cause::Itself)),
        };
        let (block, last) = match block {
            Ok(Block::Lines(block)) => (block, false),
            Ok(Block::TooLong) => return Err(Cause::LineTooLong),
            Ok(Block::End(rest)) => (rest, true),
            Err(_) => return Err(Cause::Itself),
        };
        let mut run = Run::parse(block, |line, fault| {
            noise += 1;
            recorder.frame(Origin::Agent, Destination::Editor, None, line);
            let line = recorder.redacted_bytes(line);
            info!(agent = %spec.agent, %fault, line = frame::escape(&line, 200), "agent wrote a line that is no frame");
        });
        if noise >= MAX_VIOLATIONS {
            return Err(Cause::Violations("it wrote lines that are no frames before the handshake".into()));
        }
        let answer = run.iter().position(|(bytes, peek)| {
            matches!(peek.kind, Kind::Result | Kind::Error) && peek.id.of(bytes) == id.as_bytes()
        });
        if let Some(at) = answer {
            let frame = run.frame(at);
            recorder.run(Origin::Agent, Destination::Editor, &[], &run.select(|i| i <= at));
            if frame.peek().kind == Kind::Error {
                let error = frame::escape(&recorder.redacted_bytes(frame.get(frame.peek().outcome)), 500);
                return Err(Cause::Handshake(format!("it refused initialize: {error}")));
            }
            let hello = AgentHello::parse(&frame).map_err(Cause::Handshake)?;
            run = run.select(|i| i > at);
            let early = (0..run.len()).map(|i| run.frame(i)).collect();
            return Ok((hello, early));
        }
        recorder.run(Origin::Agent, Destination::Editor, &[], &run);
        if last {
            return Err(Cause::Itself);
        }
    }
}

/// What the task needs while the process serves.
struct Owner {
    process: Arc<Process>,
    stall: Duration,
    attaching: mpsc::Receiver<Attach>,
}

impl Owner {
    /// Passes frames on until the process ends or is to end. Gives the cause,
    /// and the status if it has ended by itself.
    async fn relay(
        mut self,
        mut lines: LineReader<ChildStdout>,
        early: Vec<Frame>,
        guarded: &mut Guarded,
        stop: &Stop,
        routing: &mut Routing,
    ) -> (Cause, Option<ExitStatus>) {
        let journal = routing.recorder.journal();
        for frame in early {
            routing.accept(frame.into());
        }
        let mut status = None;
        let mut drain_until: Option<Instant> = None;
        let mut unfinished_since: Option<Instant> = None;
        loop {
            let inside = lines.is_inside_line();
            unfinished_since = inside.then(|| unfinished_since.unwrap_or_else(Instant::now));
            let blocked = routing.is_blocked();
            let deadline =
                drain_until.or(unfinished_since.filter(|_| !blocked).map(|since| since + self.stall));
            tokio::select! {
                biased;
                () = stop.token.cancelled() => {
                    return (stop.cause.get().cloned().unwrap_or(Cause::Itself), status);
                }
                Some(attach) = self.attaching.recv() => {
                    let attachment = routing.attach(attach.known);
                    attach.reply.send(attachment).ok();
                }
                () = accepting(journal.as_ref()), if routing.recorder.has_pending() => {
                    routing.write();
                }
                () = routing.deliver(), if routing.has_waiting() => {}
                block = lines.read(), if !blocked => {
                    // Any progress restarts the clock of an unfinished line.
                    unfinished_since = None;
                    match block {
                        Ok(None) => {}
                        Ok(Some(Block::Lines(block))) => {
                            let run = self.parse(block, &mut routing.recorder);
                            routing.accept(run);
                        }
                        Ok(Some(Block::TooLong)) => return (Cause::LineTooLong, status),
                        end => {
                            if let Ok(Some(Block::End(rest))) = end && !rest.is_empty() {
                                let run = self.parse(rest, &mut routing.recorder);
                                routing.accept(run);
                            }
                            while routing.has_waiting() && !stop.token.is_cancelled() {
                                tokio::select! {
                                    () = routing.deliver() => {}
                                    () = stop.token.cancelled() => {}
                                }
                            }
                            return self.ended(status, guarded).await;
                        }
                    }
                }
                ended = guarded.wait(), if status.is_none() => {
                    status = ended.ok();
                    end_strays(self.process.pid, status).await;
                    drain_until = Some(Instant::now() + DRAIN_GRACE);
                }
                () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => {
                    if drain_until.is_some() {
                        return (Cause::Itself, status);
                    }
                    let text = self.process.redaction.bytes(&self.process.known(), lines.partial()).into_owned();
                    return (Cause::Unfinished(self.stall, frame::escape(&text, 200)), status);
                }
            }
        }
    }

    fn parse(&self, block: Bytes, recorder: &mut Recorder) -> Run {
        let mut faults: Vec<(String, Fault)> = Vec::new();
        let run = Run::parse(block, |line, fault| {
            if faults.len() < MAX_VIOLATIONS as usize {
                recorder.know_only(self.process.known());
                recorder.frame(Origin::Agent, Destination::Editor, None, line);
                faults.push((frame::escape(&recorder.redacted_bytes(line), 200), fault));
            }
        });
        if !faults.is_empty() {
            recorder.commit(Class::Stop).ok();
        }
        for (line, fault) in faults {
            self.process.violation(format_args!("a line that is {fault}: {line}"));
        }
        run
    }

    /// Its stdout has ended: has it, too?
    async fn ended(&self, status: Option<ExitStatus>, guarded: &mut Guarded) -> (Cause, Option<ExitStatus>) {
        if status.is_some() {
            return (Cause::Itself, status);
        }
        match timeout(process::EOF_GRACE, guarded.wait()).await {
            Ok(status) => (Cause::Itself, status.ok()),
            Err(_) => (Cause::ClosedStdout, None),
        }
    }
}
