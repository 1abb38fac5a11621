//! What an agent tries that means harm. Each attempt is made by the process itself, past the
//! protocol and past everybody who decides, and tells what came of it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

use std::{
    env, fs,
    io::{self, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream},
    os::{
        linux::net::SocketAddrExt as _,
        unix::{
            fs::{PermissionsExt as _, symlink},
            net::{SocketAddr as UnixAddress, UnixStream},
        },
    },
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use nix::{
    errno::Errno,
    libc,
    sys::resource::{Resource, setrlimit},
};
use rustix::net::{AddressFamily, Protocol, SendFlags, SocketType, ipproto};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    hog::{self, Bomb, Fill, Memory},
    syscall,
};

/// Has this program make the attempts of the next argument and tell of them on stdout.
pub const ERRAND: &str = "--try";

/// How much of a file is told.
const BEGINNING: u64 = 200;

/// How long a peer may take to answer that is not there.
const PATIENCE: Duration = Duration::from_secs(2);

/// Sends data with the first packet, and connects by the way.
const MSG_FASTOPEN: u32 = 0x2000_0000;

/// One thing to try.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Attempt {
    /// Tells its own pid and that of its parent.
    WhoAmI,
    /// Tells a variable of its environment.
    Variable(String),
    /// Waits so many seconds, with all that it has by then.
    Sleep(u64),

    // Files. What a kernel lets pass succeeds for real.
    /// Tells the beginning of a file.
    Read(PathBuf),
    /// Opens a file for reading and no more: what some of `/proc` checks.
    Open(PathBuf),
    /// Adds a letter to a file, which may be new.
    Write(PathBuf),
    /// Cuts a file to nothing, by its path.
    Truncate(PathBuf),
    /// Tells the names in a directory.
    List(PathBuf),
    /// Makes a directory.
    MakeDir(PathBuf),
    /// Removes a file.
    Remove(PathBuf),
    /// Moves a file: from, to.
    Rename(PathBuf, PathBuf),
    /// Makes a link: what it leads to, where it is.
    Symlink(PathBuf, PathBuf),
    /// Gives a file a second name: the file, the name.
    HardLink(PathBuf, PathBuf),
    /// Sets the mode of a file.
    Chmod(PathBuf, u32),
    /// Runs a program; tells how it ended.
    Run(PathBuf),

    // The network. Addresses are `HOST:PORT`.
    /// Connects to an address.
    Connect(SocketAddr),
    /// The same by multipath TCP, which falls back to what every server speaks.
    ConnectMultipath(SocketAddr),
    /// The same by sending at once, without `connect`.
    ConnectFast(SocketAddr),
    /// Listens on a port of loopback.
    Bind(u16),
    /// Listens without a word on where; the kernel picks a port.
    Listen,
    /// Connects to a Unix socket: a path, or `@NAME` for an abstract one.
    ConnectUnix(String),

    // Other processes.
    /// Sends a signal: the pid, the signal's number.
    Signal(i32, i32),
    /// The same by a descriptor of the process.
    SignalByDescriptor(i32, i32),
    /// Attaches to a process as a debugger, and lets go of it.
    Trace(i32),
    /// The same without stopping it.
    Seize(i32),
    /// Reads the memory of a process at an address that is not there: who gets as far
    /// as that (`EFAULT`) could read all of it.
    ReadMemory(i32),
    /// Takes the first descriptor of another process.
    TakeDescriptor(i32),
    /// Lets another process open no more files.
    LimitOther(i32),
    /// Has another process run late, or only when nothing else wants to: the pid, and how, one
    /// of [`syscall::DELAYS`].
    SlowOther(i32, String),

    // The kernel.
    /// Makes a system call, one of [`syscall::CALLS`].
    Call(String),
    /// Sets both of its own limits: `nofile`, `nproc`, `fsize`, `as` or `core`.
    Limit(String, u64),

    // Resources; each has a hard stop of its own.
    /// Forks without end.
    Bomb(Bomb),
    /// Takes memory and keeps it.
    Memory(Memory),
    /// Opens so many files at once.
    OpenFiles(usize),
    /// Has so many threads at once, which stay.
    Threads(usize),
    /// Writes a file until it is so long.
    Fill(Fill),
}

/// What came of an attempt.
pub type Outcome = Result<Value, Failure>;

/// Why an attempt came to nothing.
#[derive(Debug)]
pub struct Failure {
    /// The error's name, such as `EACCES`, or that of a signal.
    pub error: String,
    /// How often it went well before, where it was tried more than once.
    pub after: Option<usize>,
}

impl From<String> for Failure {
    fn from(error: String) -> Self {
        Self { error, after: None }
    }
}

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Self {
        format!("{errno:?}").into()
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.raw_os_error() {
            Some(number) => Errno::from_raw(number).into(),
            None => format!("{:?}", error.kind()).into(),
        }
    }
}

impl From<rustix::io::Errno> for Failure {
    fn from(errno: rustix::io::Errno) -> Self {
        Errno::from_raw(errno.raw_os_error()).into()
    }
}

/// Makes attempts, one after the other; what came of them, as JSON.
pub fn make(attempts: &[Attempt]) -> Value {
    let told = attempts.iter().map(|attempt| match attempt.make() {
        Ok(value) => json!({ "ok": value }),
        Err(Failure { error, after: None }) => json!({ "error": error }),
        Err(Failure { error, after }) => json!({ "error": error, "after": after }),
    });
    told.collect()
}

/// Makes the attempts of the command line, if it has any; `true` when that is over.
#[allow(clippy::print_stdout, reason = "this is what a terminal shows")]
pub fn is_errand() -> bool {
    let mut rest = env::args().skip_while(|arg| arg != ERRAND).skip(1);
    let Some(text) = rest.next() else { return false };
    let attempts: Vec<Attempt> =
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("bad attempts: {error}\n{text}"));
    println!("{}", make(&attempts));
    true
}

impl Attempt {
    fn make(&self) -> Outcome {
        match self {
            Self::WhoAmI => {
                Ok(json!({ "pid": std::process::id(), "parent": nix::unistd::getppid().as_raw() }))
            }
            Self::Variable(name) => Ok(json!(env::var(name).ok())),
            Self::Sleep(seconds) => {
                thread::sleep(Duration::from_secs(*seconds));
                Ok(Value::Null)
            }
            Self::Read(path) => read(path),
            Self::Open(path) => done(fs::File::open(path)),
            Self::Write(path) => {
                let file = fs::OpenOptions::new().create(true).append(true).open(path);
                done(file.and_then(|mut file| file.write_all(b"x")))
            }
            Self::Truncate(path) => done(nix::unistd::truncate(path, 0).map_err(io::Error::from)),
            Self::List(path) => {
                let names = fs::read_dir(path)?.map(|entry| entry.map(|entry| entry.file_name()));
                let names = names.collect::<io::Result<Vec<_>>>()?;
                Ok(names.iter().map(|name| json!(name.to_string_lossy())).collect())
            }
            Self::MakeDir(path) => done(fs::create_dir(path)),
            Self::Remove(path) => done(fs::remove_file(path)),
            Self::Rename(from, to) => done(fs::rename(from, to)),
            Self::Symlink(target, link) => done(symlink(target, link)),
            Self::HardLink(file, name) => done(fs::hard_link(file, name)),
            Self::Chmod(path, mode) => done(fs::set_permissions(path, fs::Permissions::from_mode(*mode))),
            Self::Run(path) => {
                let mut command = Command::new(path);
                let status =
                    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status()?;
                Ok(json!(status.to_string()))
            }
            Self::Connect(address) => done(TcpStream::connect_timeout(address, PATIENCE)),
            Self::ConnectMultipath(address) => {
                let socket = tcp_socket(*address, Some(ipproto::MPTCP))?;
                rustix::net::connect(&socket, address)?;
                Ok(Value::Null)
            }
            Self::ConnectFast(address) => {
                let socket = tcp_socket(*address, None)?;
                let flags = SendFlags::from_bits_retain(MSG_FASTOPEN) | SendFlags::NOSIGNAL;
                Ok(json!(rustix::net::sendto(&socket, b"x", flags, address)?))
            }
            Self::Bind(port) => done(TcpListener::bind(("127.0.0.1", *port))),
            Self::Listen => {
                let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None)?;
                rustix::net::listen(&socket, 1)?;
                Ok(Value::Null)
            }
            Self::ConnectUnix(name) => done(match name.strip_prefix('@') {
                Some(name) => UnixAddress::from_abstract_name(name)
                    .and_then(|address| UnixStream::connect_addr(&address)),
                None => UnixStream::connect(name),
            }),
            Self::Signal(pid, signal) => syscall::kill(*pid, *signal),
            Self::SignalByDescriptor(pid, signal) => syscall::kill_by_descriptor(*pid, *signal),
            Self::Trace(pid) => syscall::trace(*pid, libc::PTRACE_ATTACH),
            Self::Seize(pid) => syscall::trace(*pid, libc::PTRACE_SEIZE),
            Self::ReadMemory(pid) => syscall::read_memory(*pid),
            Self::TakeDescriptor(pid) => syscall::take_descriptor(*pid),
            Self::LimitOther(pid) => syscall::limit_other(*pid),
            Self::SlowOther(pid, how) => syscall::slow_other(*pid, how),
            Self::Call(name) => syscall::call_by_name(name),
            Self::Limit(name, value) => {
                let resource = match name.as_str() {
                    "nofile" => Resource::RLIMIT_NOFILE,
                    "nproc" => Resource::RLIMIT_NPROC,
                    "fsize" => Resource::RLIMIT_FSIZE,
                    "as" => Resource::RLIMIT_AS,
                    "core" => Resource::RLIMIT_CORE,
                    other => panic!("no limit is called {other}"),
                };
                setrlimit(resource, *value, *value)?;
                Ok(Value::Null)
            }
            Self::Bomb(bomb) => hog::bomb(bomb),
            Self::Memory(memory) => hog::memory(memory),
            Self::OpenFiles(count) => hog::open_files(*count),
            Self::Threads(count) => hog::threads(*count),
            Self::Fill(fill) => hog::fill(fill),
        }
    }
}

fn done<T>(result: io::Result<T>) -> Outcome {
    result.map(|_| Value::Null).map_err(Failure::from)
}

fn read(path: &Path) -> Outcome {
    let mut beginning = Vec::new();
    fs::File::open(path)?.take(BEGINNING).read_to_end(&mut beginning)?;
    Ok(json!(String::from_utf8_lossy(&beginning)))
}

fn tcp_socket(address: SocketAddr, protocol: Option<Protocol>) -> rustix::io::Result<std::os::fd::OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    rustix::net::socket(family, SocketType::STREAM, protocol)
}
