//! What editors, chaos and gauges have in common: the phase, what was counted, what was
//! found, and how to get to the service.

use std::{
    collections::BTreeMap,
    fs::{File, OpenOptions},
    io,
    path::PathBuf,
    process::Command,
    sync::{
        Mutex,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
};

use conductor_tests::harness::Service;
use tokio::sync::watch;

use crate::{findings::Findings, gauges::Gauges};

/// What is going on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Everything breaks, and whoever works goes on.
    Storm,
    /// Steady work, and nothing breaks: what fails now, fails by itself.
    Calm,
    /// Every session shows that it still works; then it is over.
    Settle,
}

/// How an editor gets to the service.
#[derive(Debug, Clone)]
pub struct Way {
    /// The agent of its sessions.
    pub agent: &'static str,
    /// The number of the proxy in between, if any.
    pub proxy: Option<usize>,
}

/// How to start a bridge or open a tunnel.
#[derive(Debug)]
pub struct Launch {
    connect: Command,
    dir: PathBuf,
    work: PathBuf,
    token: String,
    port: u16,
    proxies: Vec<u16>,
}

impl Launch {
    pub fn new(service: &Service, port: u16, proxies: Vec<u16>) -> Self {
        let connect = service.command(&["connect"]);
        let (dir, work, token) = (service.dir.clone(), service.work(), service.token());
        Self { connect, dir, work, token, port, proxies }
    }

    /// A command that connects.
    pub fn bridge(&self, way: &Way) -> Command {
        let mut command = Command::new(self.connect.get_program());
        command.args(self.connect.get_args()).args(["--agent", way.agent]);
        for (name, value) in self.connect.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.current_dir(&self.work);
        if way.proxy.is_some() {
            command.args(["--endpoint", &format!("127.0.0.1:{}", self.port(way))]);
        }
        command
    }

    /// Where bridges say what they have to say.
    pub fn words(&self) -> io::Result<File> {
        OpenOptions::new().create(true).append(true).open(self.dir.join("bridges.log"))
    }

    /// Where a tunnel connects to.
    pub fn port(&self, way: &Way) -> u16 {
        way.proxy.map_or(self.port, |number| self.proxies[number])
    }

    pub fn token(&self) -> &str {
        &self.token
    }

    /// A directory for sessions; several share one, and with it the processes.
    pub fn work(&self, number: usize) -> PathBuf {
        self.work.join((number % 4).to_string())
    }
}

/// What is counted while it runs.
#[derive(Debug, Default)]
pub struct Counts {
    /// Lines that editors were sent.
    pub frames: AtomicU64,
    /// Sessions that were opened.
    pub sessions: AtomicU32,
    pub prompts: AtomicU64,
    pub done: AtomicU64,
    pub cut: AtomicU64,
    pub cancels: AtomicU64,
    pub asks: AtomicU64,
    pub loads: AtomicU64,
    pub closes: AtomicU64,
    pub slow: AtomicU64,
    pub faults: AtomicU64,
}

/// What all have in common.
#[derive(Debug)]
pub struct Shared {
    pub phase: watch::Sender<Phase>,
    pub findings: Findings,
    pub gauges: Gauges,
    pub counts: Counts,
    pub launch: Launch,
    /// The service's process.
    pub service: AtomicU32,
    /// Bridges that run, by their editor.
    pub bridges: Mutex<BTreeMap<usize, u32>>,
    /// The longest pause of a session between two prompts.
    pub pause_ms: u64,
}

impl Shared {
    pub fn phase(&self) -> Phase {
        *self.phase.borrow()
    }
}

/// One more.
pub fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
