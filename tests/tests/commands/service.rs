//! A real service with a state directory of its own, and the commands run against it.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

use conductor_tests::harness::program;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

/// Nothing here takes long; whoever waits this long waits for something that will not come.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A running service.
pub struct Service {
    child: Child,
    directory: TempDir,
}

/// How a command ended.
#[derive(Debug)]
pub struct Done {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Service {
    pub fn start() -> Self {
        Self::with_agents("")
    }

    /// A service with more agents than the built-in ones.
    pub fn with_agents(agents: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let config = directory.path().join("agents.toml");
        std::fs::write(&config, format!("roots = [{:?}]\n{agents}", directory.path())).unwrap();
        std::fs::create_dir(directory.path().join("project")).unwrap();
        let log = File::create(directory.path().join("log")).unwrap();
        let mut child = clean(Command::new(program("conductor")))
            .args(["serve", "--listen", "127.0.0.1:0", "--config"])
            .arg(&config)
            .arg("--state-dir")
            .arg(directory.path().join("state"))
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .unwrap();
        let banner = child.stdout.take().unwrap();
        let mut service = Self { child, directory };
        let ready = lines(banner).recv_timeout(PATIENCE).unwrap_or_default();
        if !ready.ends_with("is ready") {
            service.child.wait().unwrap();
            panic!("the service did not start: {}", service.log());
        }
        service
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("log")).unwrap()
    }

    pub fn state(&self) -> PathBuf {
        self.directory.path().join("state")
    }

    pub fn project(&self) -> PathBuf {
        self.directory.path().join("project")
    }

    pub fn endpoint(&self) -> String {
        std::fs::read_to_string(self.state().join("endpoint")).unwrap().trim().to_string()
    }

    /// A command that finds this service and works in its project.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = clean(Command::new(program("conductor")));
        command.args(args).current_dir(self.project()).env("CONDUCTOR_STATE_DIR", self.state());
        command
    }

    /// Runs a command to its end, with nothing on stdin.
    pub fn run(&self, args: &[&str]) -> Done {
        self.run_with(args, "")
    }

    /// Runs a command to its end, with this on stdin.
    pub fn run_with(&self, args: &[&str], stdin: &str) -> Done {
        finish(self.spawn(args), stdin)
    }

    /// Starts a command with pipes.
    pub fn spawn(&self, args: &[&str]) -> Child {
        let mut command = self.command(args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// Ends the service and waits for it.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            signal(&self.child, Signal::SIGTERM);
            self.child.wait().ok();
        }
    }
}

/// A command that sees nothing of whoever runs the tests.
fn clean(mut command: Command) -> Command {
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("CONDUCTOR_") || name == "RUST_LOG" || name == "NO_COLOR" {
            command.env_remove(name);
        }
    }
    command
}

/// A command that needs no service.
pub fn alone(args: &[&str], state: &Path) -> Command {
    let mut command = clean(Command::new(program("conductor")));
    command.args(args).env("CONDUCTOR_STATE_DIR", state);
    command
}

/// Runs a command that needs no service.
pub fn run_alone(args: &[&str], state: &Path) -> Done {
    let mut command = alone(args, state);
    finish(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap(), "")
}

/// Gives a command its input, and waits for its end.
pub fn finish(mut child: Child, stdin: &str) -> Done {
    if let Some(mut pipe) = child.stdin.take() {
        // A command that does not read its input may be gone already.
        pipe.write_all(stdin.as_bytes()).ok();
    }
    let stderr = child.stderr.take().map(gather);
    let stdout = child.stdout.take().map(gather);
    let mut text = |stream: Option<Receiver<String>>| {
        let Some(all) = stream else { return String::new() };
        all.recv_timeout(PATIENCE).unwrap_or_else(|_| {
            child.kill().ok();
            child.wait().ok();
            panic!("the command does not end")
        })
    };
    let (stdout, stderr) = (text(stdout), text(stderr));
    Done { code: child.wait().unwrap().code(), stdout, stderr }
}

/// All that a stream has to say, once it has ended.
pub fn gather(mut stream: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, all) = sync_channel(1);
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        // A pseudo-terminal ends with an error.
        stream.read_to_end(&mut bytes).ok();
        sender.send(String::from_utf8(bytes).unwrap())
    });
    all
}

/// The lines of a stream as they come.
pub fn lines(stream: ChildStdout) -> Receiver<String> {
    let (sender, lines) = sync_channel(1024);
    std::thread::spawn(move || {
        for line in BufReader::new(stream).lines() {
            let Ok(line) = line else { return };
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    lines
}

/// Reads until the stream has said this.
pub fn read_until(stream: &mut (impl Read + AsFd), wanted: &str) -> String {
    let mut seen = Vec::new();
    let mut byte = [0];
    while !String::from_utf8_lossy(&seen).contains(wanted) {
        let mut waiting = [PollFd::new(stream.as_fd(), PollFlags::POLLIN)];
        let came = poll(&mut waiting, PollTimeout::try_from(PATIENCE).unwrap()).unwrap();
        assert!(came > 0, "waited for {wanted:?}: {}", String::from_utf8_lossy(&seen));
        match stream.read(&mut byte) {
            Ok(1) => seen.push(byte[0]),
            _ => panic!("ended without {wanted:?}: {}", String::from_utf8_lossy(&seen)),
        }
    }
    String::from_utf8(seen).unwrap()
}

/// The text with `…` for how long things took.
pub fn without_times(text: &str) -> String {
    let line = |line: &str| match line.rsplit_once(" in ") {
        Some((what, time)) if time.ends_with("ms") || time.ends_with(" s") => format!("{what} in …\n"),
        _ => format!("{line}\n"),
    };
    text.lines().map(line).collect()
}

pub fn signal(child: &Child, signal: Signal) {
    kill(Pid::from_raw(i32::try_from(child.id()).unwrap()), signal).unwrap();
}
