//! The programs under test: found or built, started with a state directory and a configuration of their own,
//! and ended with everything they started.

use std::{
    fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::mpsc::{RecvTimeoutError, Sender, channel},
    thread::sleep,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use conductor_tests::certificates::{Authority, Certificate};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tempfile::TempDir;

use crate::editor::Editor;

/// How long the slow agent takes to start: the lower end of what node-based agents take.
pub const SLOW_START: Duration = Duration::from_millis(500);

/// How long the service may take to become ready, or an agent to become warm.
const READY_TIMEOUT: Duration = Duration::from_secs(100);

/// How long it may take to stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(20);

/// A measurement that takes longer is stuck.
const STUCK: Duration = Duration::from_secs(120);

/// The programs under test.
#[derive(Debug, Clone)]
pub struct Programs {
    pub conductor: PathBuf,
    pub stub: PathBuf,
}

impl Programs {
    /// Builds both where this program was built, so that all are of one profile and one state of the source.
    pub fn build() -> Result<Self> {
        let bench = std::env::current_exe()?;
        let dir = bench.parent().context("this program lies nowhere")?;
        if let Some(cargo) = std::env::var_os("CARGO") {
            // One after the other: built together, they would share the features of their dependencies, and the
            // conductor measured would not be the one that people build.
            for (package, program) in [("conductor", "conductor"), ("conductor-tests", "stub-agent")] {
                let mut build = Command::new(&cargo);
                build.args(["build", "--quiet", "--package", package, "--bin", program]);
                build.current_dir(env!("CARGO_MANIFEST_DIR"));
                if dir.ends_with("release") {
                    build.arg("--release");
                }
                ensure!(build.status()?.success(), "{program} does not build");
            }
        }
        let found = Self { conductor: dir.join("conductor"), stub: dir.join("stub-agent") };
        for path in [&found.conductor, &found.stub] {
            ensure!(path.is_file(), "{} is missing; start the benchmark by `make bench`", path.display());
        }
        Ok(found)
    }

    /// The agent on its own.
    pub fn direct(&self) -> Result<Editor> {
        Editor::spawn(&mut Command::new(&self.stub))
    }

    /// The agent on its own, slow to start.
    pub fn direct_slow(&self) -> Result<Editor> {
        let delay = SLOW_START.as_millis().to_string();
        Editor::spawn(Command::new(&self.stub).args(["--start-delay-ms", &delay]))
    }
}

/// How editors come to a service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// As from another host.
    Tls,
    /// As only on the same host.
    Plain,
}

/// A running service.
pub struct Service {
    programs: Programs,
    child: Child,
    dir: TempDir,
    /// The CA by which its certificate is known, if it has one.
    ca: Option<PathBuf>,
    watch: Sender<()>,
}

impl Service {
    pub fn start(programs: &Programs) -> Result<Self> {
        Self::start_with(programs, Way::Tls, "")
    }

    /// Starts one with more settings.
    pub fn start_with(programs: &Programs, way: Way, settings: &str) -> Result<Self> {
        let service = Self::start_in(programs, way, settings, None)?;
        service.until_asked()?;
        Ok(service)
    }

    /// Starts one with a state directory that is there already.
    pub fn start_at(programs: &Programs, state: &Path) -> Result<Self> {
        Self::start_in(programs, Way::Tls, "", Some(state))
    }

    fn start_in(programs: &Programs, way: Way, settings: &str, state: Option<&Path>) -> Result<Self> {
        let dir = TempDir::with_prefix("conductor-bench-")?;
        let base = dir.path().canonicalize()?;
        fs::create_dir(base.join("work"))?;
        // What the stub agent asks to read.
        fs::write(base.join("work/README.md"), "text")?;
        match state {
            Some(state) => symlink(state.canonicalize()?, base.join("state"))?,
            None => fs::create_dir(base.join("state"))?,
        }
        let (ca, tls) = match way {
            Way::Tls => {
                let authority = Authority::new(&base, "tls");
                let pair = authority.sign("server", &Certificate::server());
                let (cert, key) = (pair.cert.display(), pair.key.display());
                (Some(authority.file), format!("[service.tls]\ncert = \"{cert}\"\nkey = \"{key}\"\n"))
            }
            Way::Plain => (None, String::new()),
        };
        let config = base.join("agents.toml");
        fs::write(&config, format!("{}\n{tls}{settings}", configuration(programs, &base)))?;
        let child = spawn(programs, &base)?;
        let watch = watch(child.id());
        let mut service = Self { programs: programs.clone(), child, dir, ca, watch };
        service.until_ready()?;
        Ok(service)
    }

    /// Waits until the service has asked the agents what they offer: that is none of what is measured. An older
    /// program to compare with does not ask.
    pub fn until_asked(&self) -> Result<()> {
        let mut command = Command::new(&self.programs.conductor);
        command.args(["models", "--help"]).stdout(Stdio::null()).stderr(Stdio::null());
        let asks = command.status()?.success();
        let due = Instant::now() + READY_TIMEOUT;
        while asks && !fs::read_to_string(self.path("log"))?.contains("what the agents offer is known") {
            ensure!(Instant::now() < due, "the agents were not asked within {READY_TIMEOUT:?}");
            sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    fn until_ready(&mut self) -> Result<()> {
        let due = Instant::now() + READY_TIMEOUT;
        while !self.path("state/endpoint").exists() {
            if let Some(status) = self.child.try_wait()? {
                let log = fs::read_to_string(self.path("log")).unwrap_or_default();
                bail!("the service ended at once ({status}): {log}");
            }
            ensure!(Instant::now() < due, "the service is not ready after {READY_TIMEOUT:?}");
            sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The state directory.
    pub fn state(&self) -> PathBuf {
        self.path("state")
    }

    /// Where it listens.
    pub fn port(&self) -> Result<u16> {
        let endpoint = fs::read_to_string(self.path("state/endpoint"))?;
        let (_, port) = endpoint.trim().rsplit_once(':').context("an endpoint without a port")?;
        Ok(port.parse()?)
    }

    /// Ends it without warning.
    pub fn crash(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        // Else the old one would be taken for the new one's.
        fs::remove_file(self.path("state/endpoint"))?;
        Ok(())
    }

    /// Starts it again in the same directories.
    pub fn start_again(&mut self) -> Result<()> {
        self.child = spawn(&self.programs, self.dir.path())?;
        self.watch = watch(self.child.id());
        self.until_ready()
    }

    /// The directory that sessions work in.
    pub fn work(&self) -> PathBuf {
        self.path("work")
    }

    /// Says that a measurement begins; one that never ends is ended with the service.
    pub fn step(&self) {
        self.watch.send(()).ok();
    }

    /// The CA to know its certificate by.
    pub fn ca(&self) -> Option<PathBuf> {
        self.ca.clone()
    }

    /// A bridge to one of the agents, no handshake yet.
    pub fn bridge(&self, agent: &str) -> Result<Editor> {
        Editor::spawn(&mut self.connect(agent))
    }

    /// A bridge that will lose its service and need not say so, perhaps on another way there.
    pub fn bridge_by(&self, port: Option<u16>, agent: &str) -> Result<Editor> {
        let mut command = self.connect(agent);
        if let Some(port) = port {
            let scheme = if self.ca.is_some() { "https" } else { "http" };
            command.args(["--endpoint", &format!("{scheme}://127.0.0.1:{port}")]);
        }
        Editor::spawn(command.stderr(Stdio::null()))
    }

    fn connect(&self, agent: &str) -> Command {
        let mut command = Command::new(&self.programs.conductor);
        command.args(["connect", "--agent", agent, "--state-dir"]).arg(self.state());
        if let Some(ca) = &self.ca {
            command.arg("--ca-file").arg(ca);
        }
        clean(&mut command);
        command.current_dir(self.work());
        command
    }

    /// A bridge with its handshake done.
    pub fn editor(&self, agent: &str) -> Result<Editor> {
        let mut editor = self.bridge(agent)?;
        editor.initialize()?;
        Ok(editor)
    }

    /// How many processes of an agent have done their handshake so far.
    pub fn started(&self, agent: &str) -> u64 {
        fs::metadata(self.path(&format!("ready-{agent}"))).map_or(0, |file| file.len())
    }

    /// Waits until an agent has started so many processes.
    pub fn until_started(&self, agent: &str, count: u64) -> Result<()> {
        let due = Instant::now() + READY_TIMEOUT;
        while self.started(agent) < count {
            ensure!(Instant::now() < due, "agent `{agent}` has no warm process after {READY_TIMEOUT:?}");
            sleep(Duration::from_millis(1));
        }
        // The handshake still has to be read by the service.
        sleep(Duration::from_millis(20));
        Ok(())
    }

    /// Stops the service and checks that it went in good order.
    pub fn stop(mut self) -> Result<()> {
        kill(Pid::from_raw(self.child.id() as i32), Signal::SIGTERM)?;
        let due = Instant::now() + STOP_TIMEOUT;
        loop {
            if let Some(status) = self.child.try_wait()? {
                ensure!(status.success(), "the service ended with {status}");
                return Ok(());
            }
            ensure!(Instant::now() < due, "the service did not stop within {STOP_TIMEOUT:?}");
            sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        // Both fail harmlessly if it was stopped; the guards end the agents.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn spawn(programs: &Programs, base: &Path) -> Result<Child> {
    let log = fs::File::create(base.join("log"))?;
    let mut command = Command::new(&programs.conductor);
    command.args(["serve", "--listen", "127.0.0.1:0", "--config"]).arg(base.join("agents.toml"));
    command.arg("--state-dir").arg(base.join("state"));
    clean(&mut command);
    Ok(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn()?)
}

/// The same agent in several kinds: one session to a process, the same without a spare one, slow to start, many sessions to a process, able to
/// take sessions back, and released as soon as its sessions rest.
fn configuration(programs: &Programs, base: &Path) -> String {
    let base = base.display();
    let stub = programs.stub.display();
    let delay = SLOW_START.as_millis();
    format!(
        r#"default = "stub"
roots = ["{base}"]

[service]
max_sessions_per_connection = 256

# Agents ask as fast as they are answered, which a person would not stand for.
[approvals]
per_minute = 1000000

[agents.stub]
command = "{stub}"
args = ["--ready", "{base}/ready-stub"]
max = 256
max_per_user = 256

# No process waits for a session.
[agents.cold]
command = "{stub}"
warm = 0
max = 256
max_per_user = 256

[agents.slow]
command = "{stub}"
args = ["--start-delay-ms", "{delay}", "--ready", "{base}/ready-slow"]

[agents.shared]
command = "{stub}"
args = ["--ready", "{base}/ready-shared"]
sessions_per_process = 1024

[agents.resuming]
command = "{stub}"
args = ["--resume", "yes"]

[agents.resuming-shared]
command = "{stub}"
args = ["--resume", "yes"]
sessions_per_process = 1024

[agents.parking]
command = "{stub}"
args = ["--resume", "yes"]
sessions_per_process = 1024
warm = 0
idle_timeout = "100ms"
park_after = "100ms"
"#
    )
}

/// The user's own settings must not reach what is measured.
fn clean(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("CONDUCTOR_") || name == "RUST_LOG" {
            command.env_remove(name);
        }
    }
}

/// Kills the service if a measurement is stuck: the bridge then ends, the read that waits for it fails, and the
/// benchmark ends with that error instead of never.
fn watch(pid: u32) -> Sender<()> {
    let (step, steps) = channel();
    std::thread::spawn(move || {
        loop {
            match steps.recv_timeout(STUCK) {
                Ok(()) => {}
                Err(RecvTimeoutError::Timeout) => {
                    kill(Pid::from_raw(pid as i32), Signal::SIGKILL).ok();
                    return;
                }
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    });
    step
}
