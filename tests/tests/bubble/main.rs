//! Bubbles, met from outside: a guard is told to make one as the service tells it, and what is
//! in there tries to get out. All is tried twice where the tests run as root: as root, and as
//! somebody without rights, for whom bubblewrap does it in another way.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

mod ends;
mod inside;
mod places;

use std::{
    fs,
    io::{self, BufRead as _, BufReader, IoSlice, PipeWriter, Read as _, Write as _},
    mem::MaybeUninit,
    os::{
        fd::{AsFd as _, BorrowedFd, OwnedFd},
        unix::{fs::PermissionsExt as _, net::UnixStream},
    },
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, ExitStatus, Stdio},
    time::Duration,
};

use conductor::contain::bubble::Bubble;
use conductor_tests::{
    bubblewrap,
    harness::{poll_until, program},
    user::User,
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Far more than anything here takes, even on a busy host.
const DEADLINE: Duration = Duration::from_secs(20);

/// Who starts the guard, and where.
struct World {
    _directory: TempDir,
    user: Option<User>,
    program: PathBuf,
    /// A repository, which may be written.
    root: PathBuf,
    /// Beside it, and out of reach.
    outside: PathBuf,
}

/// One of this user's, and one of somebody's without rights; none where nothing can be tried.
fn worlds() -> Vec<World> {
    if !bubblewrap::is_there() {
        return Vec::new();
    }
    let mut worlds = vec![World::new(None)];
    worlds.extend(User::without_rights().map(|user| World::new(Some(user))));
    worlds
}

impl World {
    fn new(user: Option<User>) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().canonicalize().unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        let (root, outside) = (path.join("root"), path.join("outside"));
        fs::create_dir_all(root.join(".git/hooks")).unwrap();
        fs::create_dir(&outside).unwrap();
        fs::write(root.join(".git/config"), "[core]\n").unwrap();
        fs::write(outside.join("secret"), "secret").unwrap();
        let program = program("conductor");
        let program = user.map_or(program.clone(), |user| user.reach(&program, &path.join("bin")));
        let world = Self { _directory: directory, user, program, root, outside };
        world.give();
        world
    }

    /// What the test has made belongs to who starts the guard.
    fn give(&self) {
        if let Some(user) = self.user {
            user.give(&self.root);
            user.give(&self.outside);
        }
    }

    /// What the service tells a guard of an agent with every layer that a kernel always has.
    fn terms(&self) -> Value {
        let system = ["/bin", "/sbin", "/lib", "/lib32", "/lib64", "/usr", "/etc", "/opt", "/proc", "/sys"];
        json!({
            "layers": ["landlock", "seccomp", "bwrap"],
            "is_required": true,
            "reach": {
                "read": system,
                "write": [self.root],
                "devices": ["/dev/null", "/dev/tty", "/dev/ptmx", "/dev/pts"],
            },
            "seccomp": true,
            "probe": self.outside,
            "bubble": Bubble::new(std::slice::from_ref(&self.root), false),
        })
    }

    /// Starts a shell in a bubble.
    fn start(&self, terms: &Value, script: &str) -> Guarded {
        self.start_with(terms, &[], &["sh", "-c", script], None)
    }

    fn start_with(&self, terms: &Value, flags: &[&str], words: &[&str], stdin: Option<&OwnedFd>) -> Guarded {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_read_timeout(Some(DEADLINE)).unwrap();
        let mut command = Command::new(&self.program);
        command.args(["guard", "--control", "--cwd"]).arg(&self.root).args(flags).arg("--").args(words);
        command.env_clear().env("PATH", "/usr/bin:/bin").env("CONDUCTOR_X", "1");
        command.stdin(OwnedFd::from(theirs)).stdout(Stdio::piped());
        if let Some(user) = self.user {
            user.run(&mut command);
        }
        let mut guard = command.spawn().unwrap();
        drop(command);
        let (read, write) = io::pipe().unwrap();
        hand_over(&ours, stdin.map_or(read.as_fd(), OwnedFd::as_fd), terms);
        let stdout = BufReader::new(guard.stdout.take().unwrap());
        Guarded { guard, control: Some(BufReader::new(ours)), stdin: Some(write), stdout }
    }

    /// Runs a shell in a bubble to its end; what it wrote.
    fn run(&self, terms: &Value, script: &str) -> String {
        let mut guarded = self.start(terms, script);
        guarded.held();
        let mut text = String::new();
        guarded.stdout.read_to_string(&mut text).unwrap();
        guarded.wait();
        text
    }

    /// All names in a directory of the root.
    fn names(&self, directory: &str) -> Vec<String> {
        let entries = fs::read_dir(self.root.join(directory)).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

/// Gives the guard what its command gets as stdin, and says what holds it.
fn hand_over(mut control: &UnixStream, stdin: BorrowedFd<'_>, terms: &Value) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut rights = SendAncillaryBuffer::new(&mut space);
    let stdin = [stdin];
    assert!(rights.push(SendAncillaryMessage::ScmRights(&stdin)));
    sendmsg(control, &[IoSlice::new(b"0")], &mut rights, SendFlags::NOSIGNAL).unwrap();
    control.write_all(format!("{terms}\n").as_bytes()).unwrap();
}

/// A guard, held as the service holds it.
struct Guarded {
    guard: Child,
    control: Option<BufReader<UnixStream>>,
    stdin: Option<PipeWriter>,
    stdout: BufReader<ChildStdout>,
}

impl Guarded {
    /// The next line from the guard itself; empty at the end.
    fn told(&mut self) -> String {
        let mut line = String::new();
        self.control.as_mut().unwrap().read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// What holds the command, and the process that the guard has started.
    fn started(&mut self) -> (Value, i32) {
        let held = self.told();
        let held = held.strip_prefix("held ").unwrap_or_else(|| panic!("not held: {held}"));
        let held = serde_json::from_str(held).unwrap();
        let pid = self.told();
        (held, pid.strip_prefix("pid ").unwrap().parse().unwrap())
    }

    /// The same, of a command that must be in a bubble.
    fn held(&mut self) -> Value {
        let (held, _) = self.started();
        assert!(held["layers"].as_array().unwrap().contains(&json!("bwrap")), "{held}");
        held
    }

    /// The next line from the command; empty at the end.
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.guard.id().cast_signed()), signal).unwrap();
    }

    fn wait(&mut self) -> ExitStatus {
        let mut status = None;
        let is_over = poll_until(DEADLINE, || {
            status = self.guard.try_wait().unwrap();
            status.is_some()
        });
        assert!(is_over, "the guard does not end");
        status.unwrap()
    }
}

impl Drop for Guarded {
    /// Leaves nothing behind, even after a failure.
    fn drop(&mut self) {
        self.control = None;
        if !poll_until(DEADLINE, || !matches!(self.guard.try_wait(), Ok(None))) {
            self.guard.kill().ok();
            self.guard.wait().ok();
        }
    }
}

/// The lines of a text.
fn lines(text: &str) -> Vec<&str> {
    text.lines().collect()
}

fn exists(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok()
}
