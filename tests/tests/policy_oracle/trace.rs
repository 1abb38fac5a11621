//! Real shells under strace, and what they did.

use std::{
    collections::HashMap,
    env,
    ffi::OsStr,
    fs,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::world::{Claim, World};

/// What the file system is asked for, and how processes come about.
const TRACED: &str = "execve,execveat,open,openat,openat2,creat,chdir,fchdir,clone,clone3,fork,vfork,socket,\
    ?unlink,unlinkat,?rename,?renameat,renameat2,?mkdir,mkdirat,?rmdir,?link,linkat,?symlink,symlinkat,truncate,\
    ?mknod,mknodat,?chmod,fchmodat";

/// A shell and how it reads one line and nothing else.
#[derive(Debug, Clone)]
pub struct Shell {
    file: PathBuf,
    options: &'static [&'static str],
}

impl Shell {
    /// Bash, which must be there, and others that are.
    pub fn installed() -> Vec<Self> {
        let known: [(&str, &[&str]); 4] = [
            ("bash", &["--noprofile", "--norc", "-c"]),
            ("sh", &["-c"]),
            ("zsh", &["-f", "-c"]),
            ("bash", &["--noprofile", "--norc", "--posix", "-c"]),
        ];
        let found: Vec<_> = known
            .into_iter()
            .filter_map(|(name, options)| Some(Self { file: program(name)?, options }))
            .collect();
        assert!(found.first().is_some_and(|first| first.file.ends_with("bash")), "these tests need bash");
        found
    }
}

/// Something a process did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// It became another program, or tried to.
    Start { cwd: PathBuf, file: PathBuf, argv: Vec<String>, is_done: bool },
    /// It went to a directory.
    Enter { path: PathBuf },
    /// It opened a file, or tried to.
    Open { path: PathBuf, writes: bool },
    /// It did something else that is not expected at all.
    Other { call: String },
}

impl Event {
    pub fn is_start(&self) -> bool {
        matches!(self, Self::Start { is_done: true, .. })
    }
}

/// Looks for a program in `PATH`.
pub fn program(name: &str) -> Option<PathBuf> {
    let search = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&search).map(|directory| directory.join(name)).find(|file| file.is_file())
}

/// Runs each line in a shell of its own; what each did, in order per process.
pub fn run(shell: &Shell, world: &World, claims: &[Claim]) -> Vec<Vec<Event>> {
    let directory = tempfile::tempdir().unwrap();
    let script = directory.path().join("script");
    let quoted = |text: &str| format!("'{}'", text.replace('\'', "'\\''"));
    let options = shell.options.join(" ");
    let start = |claim: &Claim| {
        let file = quoted(shell.file.to_str().unwrap());
        format!("{file} {options} {} </dev/null >/dev/null 2>&1\n", quoted(&claim.line))
    };
    fs::write(&script, claims.iter().map(start).collect::<String>()).unwrap();

    let traces = directory.path().join("trace");
    let mut command = Command::new(strace());
    command.args(["-ff", "--seccomp-bpf", "-qq", "-xx", "-v", "-s", "100000", "-e", "signal=none"]);
    command.args(["-e", &format!("trace={}", TRACED.replace(' ', "")), "-o"]).arg(&traces);
    command.arg(program("bash").unwrap()).args(["--noprofile", "--norc"]).arg(&script);
    command.env_clear().env("PATH", &world.bin).env("HOME", &world.home).env("LC_ALL", "C.UTF-8");
    let done = command.current_dir(&world.cwd).stdin(Stdio::null()).output().unwrap();
    let error = String::from_utf8_lossy(&done.stderr);
    assert!(
        !error.contains("strace:"),
        "strace cannot follow processes here, so nothing was tested; allow ptrace (a container needs \
         the capability SYS_PTRACE): {error}"
    );
    Traces::read(directory.path(), world).lines(shell, claims)
}

/// The traces of all processes of a run.
struct Traces {
    /// By process.
    calls: HashMap<u32, Vec<Call>>,
    first: u32,
    cwd: PathBuf,
}

#[derive(Debug)]
struct Call {
    text: String,
    name: String,
    strings: Vec<Vec<u8>>,
    /// How many of the strings are arguments of `execve`.
    argv: usize,
    result: i64,
}

impl Traces {
    fn read(directory: &Path, world: &World) -> Self {
        let mut calls = HashMap::new();
        for entry in fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            let Some(pid) = path.extension().and_then(OsStr::to_str) else { continue };
            let text = fs::read_to_string(&path).unwrap();
            calls.insert(pid.parse().unwrap(), text.lines().filter_map(Call::read).collect::<Vec<_>>());
        }
        let children: Vec<u32> = calls.values().flatten().filter_map(Call::child).collect();
        let mut roots = calls.keys().copied().filter(|pid| !children.contains(pid));
        let first = roots.next().expect("strace wrote no trace");
        assert_eq!(roots.next(), None, "a process came from nowhere");
        Self { calls, first, cwd: world.cwd.clone() }
    }

    /// The children of the script are the lines' shells, in order.
    fn lines(&self, shell: &Shell, claims: &[Claim]) -> Vec<Vec<Event>> {
        let shells: Vec<_> = self.calls[&self.first].iter().filter_map(Call::child).collect();
        assert_eq!(shells.len(), claims.len(), "not every line was run");
        let mut all = Vec::new();
        for (pid, claim) in shells.into_iter().zip(claims) {
            let mut events = Vec::new();
            self.follow(pid, self.cwd.clone(), &mut events);
            // What came before is the script's: it leads the output away, then starts the shell.
            let at = events.iter().position(Event::is_start).expect("no shell was started");
            let Event::Start { file, argv, .. } = &events[at] else { panic!("{events:?}") };
            assert_eq!((file, argv.last().unwrap()), (&shell.file, &claim.line));
            all.push(events.split_off(at + 1));
        }
        all
    }

    fn follow(&self, pid: u32, mut cwd: PathBuf, events: &mut Vec<Event>) {
        for call in self.calls.get(&pid).map(Vec::as_slice).unwrap_or_default() {
            let path = |at: usize| {
                let path = call.strings.get(at).map(Vec::as_slice).unwrap_or_default();
                cwd.join(OsStr::from_bytes(path))
            };
            match call.name.as_str() {
                _ if call.child().is_some() => {
                    self.follow(call.child().unwrap(), cwd.clone(), events);
                }
                "clone" | "clone3" | "fork" | "vfork" => {}
                "execve" => {
                    let argv = &call.strings[1..1 + call.argv];
                    let argv = argv.iter().map(|word| String::from_utf8(word.clone()).unwrap()).collect();
                    let is_done = call.result == 0;
                    events.push(Event::Start { cwd: cwd.clone(), file: path(0), argv, is_done });
                }
                "chdir" if call.result == 0 => {
                    events.push(Event::Enter { path: path(0) });
                    cwd = path(0).canonicalize().unwrap();
                }
                "chdir" => {}
                // The C library asks a cache for the user's name.
                "socket" if call.text.contains("AF_UNIX") => {}
                "open" | "openat" if call.name == "open" || call.text.starts_with("openat(AT_FDCWD") => {
                    let writes = ["O_WRONLY", "O_RDWR", "O_CREAT", "O_TRUNC", "O_APPEND"];
                    let writes = writes.iter().any(|flag| call.text.contains(flag));
                    events.push(Event::Open { path: path(0), writes });
                }
                _ => events.push(Event::Other { call: call.text.clone() }),
            }
        }
    }
}

impl Call {
    fn read(line: &str) -> Option<Self> {
        let (name, rest) = line.split_once('(')?;
        if !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
            return None;
        }
        let result = line.rsplit_once(" = ").map_or("?", |(_, result)| result);
        let result = result.split(' ').next().and_then(|number| number.parse().ok()).unwrap_or(-1);
        // With `-xx` there are no quotes or brackets inside of strings.
        let strings =
            |text: &str| -> Vec<Vec<u8>> { text.split('"').skip(1).step_by(2).map(bytes).collect() };
        let argv = rest.split_once('[').and_then(|(_, list)| list.split_once(']'));
        let argv = argv.map_or(0, |(list, _)| strings(list).len());
        Some(Self { text: line.to_owned(), name: name.to_owned(), strings: strings(rest), argv, result })
    }

    /// The process that this call has made.
    fn child(&self) -> Option<u32> {
        let makes = matches!(self.name.as_str(), "clone" | "clone3" | "fork" | "vfork");
        u32::try_from(self.result).ok().filter(|pid| makes && *pid > 0)
    }
}

/// `\x61\x62` as bytes.
fn bytes(text: &str) -> Vec<u8> {
    text.split("\\x").skip(1).map(|digits| u8::from_str_radix(digits, 16).unwrap()).collect()
}

/// Strace, which is installed where it is not there yet. Test processes wait for one another: only
/// one can have the package manager.
fn strace() -> PathBuf {
    if let Some(found) = program("strace") {
        return found;
    }
    let lock = fs::File::create(env::temp_dir().join("conductor-tests-install")).unwrap();
    lock.lock().unwrap();
    let remedy = "these tests need strace: install the package strace";
    for arguments in [&["update"][..], &["install", "-y", "--no-install-recommends", "strace"]] {
        if program("strace").is_some() {
            break;
        }
        assert!(nix::unistd::Uid::current().is_root(), "{remedy} (only root can do so by itself)");
        let done = Command::new("apt-get").env("DEBIAN_FRONTEND", "noninteractive").args(arguments).output();
        let done = done.unwrap_or_else(|error| panic!("{remedy} (apt-get: {error})"));
        let error = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success() || arguments == ["update"], "{remedy} (apt-get: {error})");
    }
    program("strace").expect(remedy)
}
