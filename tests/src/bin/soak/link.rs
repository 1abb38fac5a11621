//! The way from one editor to the service: lines out, lines in, over a real `conductor
//! connect` or over a tunnel of our own. A link ends when what the editor knows of its
//! connection is void; then there is another one, and sessions are loaded again.

use std::{process::Stdio, sync::Arc, time::Duration};

use anyhow::{Context as _, Result};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    process::{Child, ChildStdin, ChildStdout, Command},
    sync::mpsc,
    task::JoinSet,
    time::timeout,
};

use crate::{
    findings::{Kind, Trouble},
    shared::{Shared, Way},
    tunnel,
};

/// Lines on their way to an editor. Small, so that a slow one is soon felt by the service.
const INBOX: usize = 64;

/// Lines on their way to the service; more than an editor ever says at once.
const OUTBOX: usize = 1024;

/// How long a link may take to end once its editor has.
const FAREWELL: Duration = Duration::from_secs(20);

/// An open link.
pub struct Link {
    outbox: Option<mpsc::Sender<String>>,
    inbox: mpsc::Receiver<Vec<u8>>,
    tasks: JoinSet<()>,
}

impl Link {
    /// A bridge as an editor starts it; told where it is if somebody wants to kill it.
    pub fn bridge(shared: &Arc<Shared>, seat: usize, way: &Way) -> Result<Self> {
        let mut command = Command::from(shared.launch.bridge(way));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(shared.launch.words()?);
        let mut child = command.kill_on_drop(true).spawn().context("a bridge does not start")?;
        let pid = child.id().context("a bridge ended at once")?;
        let stdin = child.stdin.take().context("no stdin")?;
        let stdout = child.stdout.take().context("no stdout")?;
        let registered = Registered::new(shared, seat, pid);
        let (outbox, outgoing) = mpsc::channel(OUTBOX);
        let (incoming, inbox) = mpsc::channel(INBOX);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            carry(child, stdin, stdout, outgoing, incoming).await;
            drop(registered);
        });
        Ok(Self { outbox: Some(outbox), inbox, tasks })
    }

    /// A tunnel without a bridge.
    pub fn tunnel(shared: &Arc<Shared>, way: &Way) -> Self {
        let (outbox, outgoing) = mpsc::channel(OUTBOX);
        let (incoming, inbox) = mpsc::channel(INBOX);
        let mut tasks = JoinSet::new();
        tasks.spawn(tunnel::carry(Arc::clone(shared), way.clone(), outgoing, incoming));
        Self { outbox: Some(outbox), inbox, tasks }
    }

    /// Sends a line; one that finds no link is lost with it.
    pub fn send(&self, line: String) {
        if let Some(outbox) = &self.outbox {
            let _ = outbox.try_send(line);
        }
    }

    /// The next line; none once the link is void.
    pub async fn next(&mut self) -> Option<Vec<u8>> {
        self.inbox.recv().await
    }

    /// Ends it as an editor does that is closed.
    pub async fn leave(mut self, shared: &Shared, seat: usize) {
        self.outbox = None;
        let ends = async {
            while self.inbox.recv().await.is_some() {}
            while self.tasks.join_next().await.is_some() {}
        };
        if timeout(FAREWELL, ends).await.is_err() {
            let words = format!("editor {seat} is closed, and its bridge or tunnel does not end");
            shared.findings.add(Trouble::one(Kind::Unanswered, words));
        }
    }
}

/// A bridge that may be killed, until it ends in whichever way.
struct Registered {
    shared: Arc<Shared>,
    seat: usize,
    pid: u32,
}

impl Registered {
    fn new(shared: &Arc<Shared>, seat: usize, pid: u32) -> Self {
        shared.bridges.lock().unwrap().insert(seat, pid);
        Self { shared: Arc::clone(shared), seat, pid }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        let mut bridges = self.shared.bridges.lock().unwrap();
        // The next one of this editor may have taken its place.
        if bridges.get(&self.seat) == Some(&self.pid) {
            bridges.remove(&self.seat);
        }
    }
}

/// Feeds and reads a bridge until it ends.
async fn carry(
    mut child: Child,
    stdin: ChildStdin,
    stdout: ChildStdout,
    mut outgoing: mpsc::Receiver<String>,
    incoming: mpsc::Sender<Vec<u8>>,
) {
    let write = async move {
        let mut stdin = stdin;
        while let Some(line) = outgoing.recv().await {
            if stdin.write_all(format!("{line}\n").as_bytes()).await.is_err() {
                // It is gone; whoever reads it will notice.
                return;
            }
        }
    };
    let read = async move {
        let mut stdout = BufReader::new(stdout);
        let mut line = Vec::new();
        // What stands before the end without a newline was cut by a kill.
        while let Ok(1..) = stdout.read_until(b'\n', &mut line).await
            && line.ends_with(b"\n")
            && incoming.send(std::mem::take(&mut line)).await.is_ok()
        {}
    };
    tokio::join!(write, async {
        read.await;
        let _ = child.wait().await;
    });
}
