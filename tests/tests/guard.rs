//! The guard, met from outside: real processes below the real program.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

use std::{
    collections::BTreeMap,
    fs,
    io::{self, BufRead as _, BufReader, IoSlice, Read as _, Write as _},
    mem::MaybeUninit,
    os::{
        fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd},
        unix::{fs::PermissionsExt as _, net::UnixStream, process::ExitStatusExt as _},
    },
    path::{Path, PathBuf},
    process::{Child, ChildStdout, Command, ExitStatus, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

use conductor_tests::harness::program;
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use rustix::{
    io::{FdFlags, fcntl_dupfd_cloexec, fcntl_setfd},
    net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg},
};

// Every process here ends by itself after a minute at most, so that a failing
// test leaves nothing behind for long.

/// Far more than anything here takes, even on a busy host.
const DEADLINE: Duration = Duration::from_secs(20);
/// What the issue promises for the death of a tree.
const DEATH_DEADLINE: Duration = Duration::from_secs(1);

/// An empty directory of its own for one test.
fn scratch(name: &str) -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("guard-{name}"));
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir_all(&directory).unwrap();
    directory
}

/// Polls until `done`, and fails loudly at the deadline.
fn eventually(within: Duration, what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + within;
    while !done() {
        assert!(Instant::now() < end, "not within {within:?}: {what}");
        thread::sleep(Duration::from_millis(2));
    }
}

/// The state letter and the parent of a process, unless it is gone without trace.
fn stat(pid: i32) -> Option<(char, i32)> {
    let text = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let text = String::from_utf8_lossy(&text).into_owned();
    let mut fields = text.rsplit_once(')')?.1.split_ascii_whitespace();
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}

fn runs(pid: i32) -> bool {
    stat(pid).is_some_and(|(state, _)| !matches!(state, 'Z' | 'X'))
}

/// The processes that have `mark` in their environment.
fn marked(mark: &str) -> Vec<i32> {
    let pids = fs::read_dir("/proc").unwrap().flatten();
    pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
        })
        .collect()
}

/// What one field of `/proc/PID/status` says.
fn status_field(pid: i32, field: &str) -> String {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("no {field} in {text}")).trim().to_owned()
}

/// The command line of a guard, up to the command.
fn guard_command(program: &Path, flags: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.arg("guard").args(flags);
    command
}

/// Gives the guard what its agent gets as stdin, as the conductor does.
fn hand_over(mut control: &UnixStream, stdin: BorrowedFd<'_>) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut rights = SendAncillaryBuffer::new(&mut space);
    let stdin = [stdin];
    assert!(rights.push(SendAncillaryMessage::ScmRights(&stdin)));
    sendmsg(control, &[IoSlice::new(b"0")], &mut rights, SendFlags::NOSIGNAL).unwrap();
    // Nothing holds the command.
    control.write_all(b"{}\n").unwrap();
}

/// A guard, held as the conductor holds it.
struct Guarded {
    guard: Child,
    control: Option<BufReader<UnixStream>>,
    stdout: BufReader<ChildStdout>,
}

impl Guarded {
    fn start(command: &[&str]) -> Self {
        Self::start_with(&[], command, |_| {})
    }

    fn start_with(flags: &[&str], command: &[&str], adjust: impl FnOnce(&mut Command)) -> Self {
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_read_timeout(Some(DEADLINE)).unwrap();
        let mut guard = guard_command(&program("conductor"), flags);
        guard.args(["--control", "--"]).args(command);
        guard.stdin(OwnedFd::from(theirs)).stdout(Stdio::piped());
        adjust(&mut guard);
        let mut child = guard.spawn().unwrap();
        // The command, and with it our copy of their end, lives until the end of this scope.
        drop(guard);
        let (read, write) = io::pipe().unwrap();
        hand_over(&ours, read.as_fd());
        child.stdin = Some(OwnedFd::from(write).into());
        let stdout = BufReader::new(child.stdout.take().unwrap());
        Self { guard: child, control: Some(BufReader::new(ours)), stdout }
    }

    /// The next line from the guard itself; empty at the end.
    fn told(&mut self) -> String {
        let mut line = String::new();
        self.control.as_mut().unwrap().read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// The agent's process id, which must be told after what holds it.
    fn agent(&mut self) -> i32 {
        let held = self.told();
        assert_eq!(held, r#"held {"layers":[],"missing":[]}"#);
        let told = self.told();
        told.strip_prefix("pid ").unwrap_or_else(|| panic!("no pid but {told:?}")).parse().unwrap()
    }

    /// The next line from the agent; empty at the end.
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn pids(&mut self) -> Vec<i32> {
        self.line().split(' ').map(|pid| pid.parse().unwrap()).collect()
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.guard.id().cast_signed()), signal).unwrap();
    }

    fn wait(&mut self) -> ExitStatus {
        let mut status = None;
        eventually(DEADLINE, "the guard exits", || {
            status = self.guard.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }
}

impl Drop for Guarded {
    /// Leaves nothing behind, even after a failure.
    fn drop(&mut self) {
        self.control = None;
        let end = Instant::now() + DEADLINE;
        while matches!(self.guard.try_wait(), Ok(None)) {
            if Instant::now() > end {
                let _ = self.guard.kill();
                let _ = self.guard.wait();
                break;
            }
            thread::sleep(Duration::from_millis(2));
        }
    }
}

#[test]
fn exit_codes_are_exact() {
    for code in [0, 1, 42, 255] {
        let mut guarded = Guarded::start(&["sh", "-c", &format!("exit {code}")]);
        assert_eq!(guarded.wait().into_raw(), code << 8);
        guarded.agent();
        assert_eq!(guarded.told(), "", "nothing but the pid is told");
    }
}

#[test]
fn signals_are_exact() {
    // 34 and 64 are realtime signals, and 0x80, the mark of a core dump, must never be set.
    for signal in [1, 2, 3, 6, 9, 11, 13, 14, 15, 34, 64] {
        let mut guarded = Guarded::start(&["sh", "-c", &format!("kill -{signal} $$")]);
        assert_eq!(guarded.wait().into_raw(), signal, "the agent died of {signal}");
    }
}

#[test]
fn signals_are_passed_on() {
    let script = "
import os, signal
names = 'TERM INT HUP QUIT USR1 USR2 CONT WINCH'.split()
for name in names:
    signal.signal(getattr(signal, 'SIG' + name), lambda number, _: os.write(1, b'%d\\n' % number))
os.write(1, b'ready\\n')
while True: signal.pause()
";
    let mut guarded = Guarded::start(&["python3", "-c", script]);
    assert_eq!(guarded.line(), "ready");
    let passed = [
        Signal::SIGTERM,
        Signal::SIGINT,
        Signal::SIGHUP,
        Signal::SIGQUIT,
        Signal::SIGUSR1,
        Signal::SIGUSR2,
        Signal::SIGCONT,
        Signal::SIGWINCH,
    ];
    for signal in passed {
        guarded.signal(signal);
        assert_eq!(guarded.line(), (signal as i32).to_string());
    }
}

#[test]
fn an_agent_without_a_trap_dies_of_sigterm() {
    let mut guarded = Guarded::start(&["sleep", "60"]);
    guarded.agent();
    guarded.signal(Signal::SIGTERM);
    assert_eq!(guarded.wait().into_raw(), Signal::SIGTERM as i32);
}

/// Starts helpers of every stubborn kind, prints their ids and its own, and stays.
const STUBBORN_TREE: &str = "
import os, signal, subprocess, sys, time
for name in ('TERM', 'INT', 'HUP'): signal.signal(getattr(signal, 'SIG' + name), signal.SIG_IGN)
deaf = \"trap '' TERM HUP INT; sleep 60; :\"
read, write = os.pipe()
def say(): os.write(write, b'%d\\n' % os.getpid())
pids = [os.getpid(), subprocess.Popen(['sh', '-c', deaf]).pid,
        subprocess.Popen(['setsid', 'sh', '-c', deaf]).pid]
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        say()
        os.setsid()
        if os.fork() == 0: say()
        time.sleep(60)
    os._exit(0)
if os.fork() == 0:
    say()
    os.setpgid(0, 0)
    os.kill(os.getpid(), signal.SIGSTOP)
    os._exit(0)
told = b''
while told.count(b'\\n') < 3: told += os.read(read, 99)
print(*pids, *told.decode().split(), flush=True)
time.sleep(60)
";

#[test]
fn losing_the_conductor_kills_the_whole_tree() {
    let mut guarded = Guarded::start(&["python3", "-c", STUBBORN_TREE]);
    let pids = guarded.pids();
    assert_eq!(pids.len(), 6);
    assert!(pids.iter().all(|pid| runs(*pid)), "all run at first");

    guarded.control = None;
    eventually(DEATH_DEADLINE, "the tree is gone", || pids.iter().all(|pid| stat(*pid).is_none()));
    assert_eq!(guarded.wait().into_raw(), Signal::SIGKILL as i32);
    assert_eq!(guarded.line(), "", "nobody holds stdout");
}

#[test]
fn half_closing_the_control_is_enough() {
    let mut guarded = Guarded::start(&["python3", "-c", STUBBORN_TREE]);
    let pids = guarded.pids();
    guarded.control.as_ref().unwrap().get_ref().shutdown(std::net::Shutdown::Write).unwrap();
    eventually(DEATH_DEADLINE, "the tree is gone", || pids.iter().all(|pid| stat(*pid).is_none()));
    assert_eq!(guarded.wait().into_raw(), Signal::SIGKILL as i32);
}

#[test]
fn words_on_the_control_do_no_harm() {
    let mut guarded = Guarded::start(&["cat"]);
    let agent = guarded.agent();
    guarded.control.as_mut().unwrap().get_mut().write_all(&[b'x'; 1000]).unwrap();
    let mut stdin = guarded.guard.stdin.take().unwrap();
    stdin.write_all(b"hello\n").unwrap();
    assert_eq!(guarded.line(), "hello");
    assert!(runs(agent));
    drop(stdin);
    assert_eq!(guarded.wait().into_raw(), 0);
}

#[test]
fn the_end_of_the_agent_is_the_end_of_its_helpers() {
    let mut guarded = Guarded::start(&["sh", "-c", "setsid sleep 60 & sleep 60 & echo $!; exit 3"]);
    let helper = guarded.pids()[0];
    // Without the guard this would wait for the helpers, which hold the pipe.
    let mut rest = String::new();
    guarded.stdout.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "");
    assert_eq!(guarded.wait().into_raw(), 3 << 8);
    assert!(stat(helper).is_none());
}

#[test]
fn orphans_are_reaped_while_the_agent_lives() {
    let script = "for i in $(seq 30); do sh -c 'true & printf \"$! \"'; done; echo $$; read end; exit 9";
    let mut guarded = Guarded::start(&["sh", "-c", script]);
    let mut orphans = guarded.pids();
    let agent = orphans.pop().unwrap();
    assert_eq!(orphans.len(), 30);
    eventually(DEATH_DEADLINE, "no zombie is left", || orphans.iter().all(|pid| stat(*pid).is_none()));
    assert!(runs(agent), "its wait is undisturbed");
    drop(guarded.guard.stdin.take());
    assert_eq!(guarded.wait().into_raw(), 9 << 8);
}

#[test]
fn zombies_of_the_agent_go_with_it() {
    let script = "
import os, sys
pids = []
for _ in range(20):
    pid = os.fork()
    if pid == 0: os._exit(0)
    pids.append(pid)
print(*pids, flush=True)
sys.stdin.read()
";
    let mut guarded = Guarded::start(&["python3", "-c", script]);
    let zombies = guarded.pids();
    drop(guarded.guard.stdin.take());
    assert_eq!(guarded.wait().into_raw(), 0);
    assert!(zombies.iter().all(|pid| stat(*pid).is_none()));
}

#[test]
fn the_agent_has_three_descriptors_and_the_guard_none_of_its_pipes() {
    // Descriptors leak into the guard, below and above its control one in number.
    let (_ours, theirs) = UnixStream::pair().unwrap();
    let zero = fs::File::open("/dev/zero").unwrap();
    let leaks = [
        fcntl_dupfd_cloexec(&zero, 3).unwrap(),
        fcntl_dupfd_cloexec(&zero, 9).unwrap(),
        fcntl_dupfd_cloexec(&theirs, 200).unwrap(),
    ];
    for leak in &leaks {
        fcntl_setfd(leak, FdFlags::empty()).unwrap();
    }
    let mut guarded = Guarded::start(&["cat"]);
    let agent = guarded.agent();
    let mut stdin = guarded.guard.stdin.take().unwrap();
    stdin.write_all(b"hello\n").unwrap();
    assert_eq!(guarded.line(), "hello");

    let descriptors = |pid: i32| -> BTreeMap<String, PathBuf> {
        let entries = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
        entries
            .map(|entry| (entry.file_name().into_string().unwrap(), fs::read_link(entry.path()).unwrap()))
            .collect()
    };
    assert_eq!(descriptors(agent).into_keys().collect::<Vec<_>>(), ["0", "1", "2"]);
    let guards = descriptors(guarded.guard.id().cast_signed());
    for own in ["0", "1", "2"] {
        assert_eq!(guards[own], Path::new("/dev/null"));
    }
    let others: Vec<_> = guards.values().filter(|target| *target != Path::new("/dev/null")).collect();
    assert_eq!(others.len(), 2, "the control socket and the signals, not {others:?}");
}

#[test]
fn the_agent_starts_clean() {
    let mut guarded = Guarded::start(&["cat"]);
    let agent = guarded.agent();
    for mask in ["SigBlk", "SigIgn", "SigCgt"] {
        assert_eq!(status_field(agent, mask), "0000000000000000", "{mask}");
    }
    assert_eq!(status_field(agent, "NoNewPrivs"), "1");
    assert_eq!(stat(agent).unwrap().1, guarded.guard.id().cast_signed(), "the guard is its parent");
    let session = nix::unistd::getsid(Some(Pid::from_raw(agent))).unwrap();
    assert_eq!(session.as_raw(), agent, "it leads its own session");
    let limits = fs::read_to_string(format!("/proc/{agent}/limits")).unwrap();
    let core = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
    assert_eq!(core.split_whitespace().skip(4).take(2).collect::<Vec<_>>(), ["0", "0"]);
}

#[test]
fn the_environment_is_passed_exactly() {
    let mut guarded = Guarded::start_with(&[], &["/usr/bin/env"], |guard| {
        // The guard must not take the agent's variables for its own settings.
        guard.env_clear().env("CONDUCTOR_STATE_DIR", "").env("ONE", "1 = ü").env("RUST_LOG", "nonsense=");
    });
    let mut printed = String::new();
    guarded.stdout.read_to_string(&mut printed).unwrap();
    let mut lines: Vec<_> = printed.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["CONDUCTOR_STATE_DIR=", "ONE=1 = ü", "RUST_LOG=nonsense="]);
    assert_eq!(guarded.wait().into_raw(), 0);
}

#[test]
fn the_command_runs_where_it_is_told_to() {
    let directory = scratch("cwd").canonicalize().unwrap();
    let mut guarded = Guarded::start_with(&["--cwd", directory.to_str().unwrap()], &["pwd", "-P"], |_| {});
    assert_eq!(guarded.line(), directory.to_str().unwrap());
}

#[test]
fn an_ignored_sigchld_is_not_inherited() {
    // A parent that ignores SIGCHLD would make the agent's status unknowable.
    let script = "
import os, signal, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
os.execv(sys.argv[1], [sys.argv[1], 'guard', '--', 'sh', '-c', 'exit 42'])
";
    // A guard around the guard, so that a hanging one is noticed and ended.
    let mut guarded = Guarded::start(&["python3", "-c", script, program("conductor").to_str().unwrap()]);
    assert_eq!(guarded.wait().into_raw(), 42 << 8);
}

#[test]
fn a_stopped_agent_is_killed_after_the_grace() {
    let script = "setsid sleep 60 & echo $!; kill -STOP $$; exit 1";
    let mut guarded = Guarded::start_with(&["--stopped-grace-ms", "100"], &["sh", "-c", script], |_| {});
    let helper = guarded.pids()[0];
    let agent = guarded.agent();
    assert_eq!(guarded.told(), "stopped");
    assert_eq!(guarded.wait().into_raw(), Signal::SIGKILL as i32);
    assert!(stat(agent).is_none());
    assert!(stat(helper).is_none());
}

#[test]
fn a_continued_agent_lives_beyond_the_grace() {
    // After its stop of a moment it works for longer than a stop may last.
    let script = "kill -STOP $$; sleep 2.5; exit 5";
    let mut guarded = Guarded::start_with(&["--stopped-grace-ms", "2000"], &["sh", "-c", script], |_| {});
    let agent = guarded.agent();
    eventually(DEADLINE, "the agent is stopped", || stat(agent).is_some_and(|(state, _)| state == 'T'));
    guarded.signal(Signal::SIGCONT);
    assert_eq!(guarded.wait().into_raw(), 5 << 8);
    assert_eq!(guarded.told(), "", "it was not killed as stopped");
}

#[test]
fn killing_the_guard_kills_the_agent() {
    let mut guarded = Guarded::start(&["sh", "-c", "trap '' TERM HUP; echo ready; exec sleep 60"]);
    let agent = guarded.agent();
    assert_eq!(guarded.line(), "ready");
    guarded.signal(Signal::SIGKILL);
    eventually(DEATH_DEADLINE, "the agent is dead", || !runs(agent));
}

#[test]
fn forking_does_not_outrun_the_guard() {
    // Each relay forks, leaves its session and lets the parent die, over and over;
    // the first processes of half of them also stay in the agent's own group.
    let script = "
import os, signal, time
end = time.time() + 30
def relay(leave):
    while time.time() < end:
        if os.fork(): os._exit(0)
        if leave: os.setsid()
for number in range(6):
    if os.fork() == 0: relay(number % 2)
print('ready', flush=True)
time.sleep(60)
";
    for round in 0..5 {
        let mark = format!("GUARD_TEST=relay-{}-{round}", std::process::id());
        let mut guarded = Guarded::start_with(&[], &["python3", "-c", script], |guard| {
            let (name, value) = mark.split_once('=').unwrap();
            guard.env(name, value);
        });
        let agent = guarded.agent();
        let guard = guarded.guard.id().cast_signed();
        assert_eq!(guarded.line(), "ready");
        eventually(DEADLINE, "the relays run", || {
            marked(&mark).iter().any(|pid| ![agent, guard].contains(pid))
        });
        guarded.control = None;
        assert_eq!(guarded.wait().into_raw(), Signal::SIGKILL as i32);
        assert_eq!(marked(&mark), Vec::<i32>::new(), "nothing is left");
    }
}

/// The refusal of a command: what is told on the control, and the exit code.
fn refusal(flags: &[&str], command: &[&str]) -> (String, i32) {
    let mut guarded = Guarded::start_with(flags, command, |guard| {
        guard.env("PATH", "/usr/bin:/bin");
    });
    let told = guarded.told();
    let text = told.strip_prefix("error ").unwrap_or_else(|| panic!("no error but {told:?}")).to_owned();
    (text, guarded.wait().code().unwrap())
}

#[test]
fn a_missing_command_is_named() {
    let (text, code) = refusal(&[], &["no-such-agent", "--acp"]);
    assert_eq!(code, 127);
    assert!(text.contains("\"no-such-agent\" is in no directory of PATH (\"/usr/bin:/bin\")"), "{text}");

    let (text, code) = refusal(&[], &["/nowhere/agent\n"]);
    assert_eq!(code, 127);
    assert!(text.contains("there is no file \"/nowhere/agent\\n\""), "one line: {text}");
}

#[test]
fn a_command_that_cannot_run_is_explained() {
    let directory = scratch("refusals");
    let plain = directory.join("plain");
    fs::write(&plain, "#!/bin/sh\n").unwrap();
    let (text, code) = refusal(&[], &[plain.to_str().unwrap()]);
    assert_eq!(code, 126);
    assert!(text.contains("plain\" is not executable") && text.contains("chmod +x"), "{text}");

    let (text, code) = refusal(&[], &[directory.to_str().unwrap()]);
    assert_eq!(code, 126);
    assert!(text.contains("it is a directory"), "{text}");

    let script = directory.join("script");
    fs::write(&script, "#!/no/such/interpreter\n").unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let (text, code) = refusal(&[], &[script.to_str().unwrap()]);
    assert_eq!(code, 126);
    assert!(text.contains("interpreter or loader is missing"), "{text}");
}

#[test]
fn f04_a_bad_working_directory_is_named() {
    let directory = scratch("bad-cwd");
    let missing = directory.join("missing");
    let (text, code) = refusal(&["--cwd", missing.to_str().unwrap()], &["true"]);
    assert_eq!(code, 126);
    assert!(text.contains("working directory") && text.contains("create it"), "{text}");

    let file = directory.join("file");
    fs::write(&file, "").unwrap();
    let (text, code) = refusal(&["--cwd", file.to_str().unwrap()], &["true"]);
    assert_eq!(code, 126);
    assert!(text.contains("must be a directory"), "{text}");
}

/// Runs a guard as a person would, without a control descriptor.
fn by_hand(flags: &[&str], command: &[&str]) -> Output {
    guard_command(&program("conductor"), flags).arg("--").args(command).output().unwrap()
}

#[test]
fn without_a_control_descriptor_errors_go_to_stderr() {
    let output = by_hand(&[], &["no-such-agent"]);
    assert_eq!(output.status.code(), Some(127));
    assert!(String::from_utf8_lossy(&output.stderr).contains("command not found"), "{output:?}");
    assert_eq!(by_hand(&[], &["sh", "-c", "exit 6"]).status.code(), Some(6));
}

#[test]
fn a_stdin_that_is_no_control_socket_is_refused() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    drop(ours);
    for stdin in [Stdio::null(), OwnedFd::from(theirs).into()] {
        let mut guard = guard_command(&program("conductor"), &["--control", "--", "true"]);
        let output = guard.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let output = output.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(126));
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(told.contains("stdin is not what the conductor passes"), "{output:?}");
    }
}

#[test]
fn conductor_means_this_program_even_after_its_file_is_gone() {
    let copy = scratch("gone").join("old-release");
    fs::copy(program("conductor"), &copy).unwrap();
    let file = fs::File::open(&copy).unwrap();
    fs::remove_file(&copy).unwrap();
    let program = PathBuf::from(format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()));

    let output =
        guard_command(&program, &[]).args(["--", "conductor", "--version"]).env("PATH", "").output().unwrap();
    let version = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && version.starts_with("conductor "), "{output:?}");
}
