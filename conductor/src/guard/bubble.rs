//! Puts the command into a bubble: name spaces of its own, which `bwrap` makes.
//!
//! Inside Landlock nothing can be mounted, so the copy of the guard that is to be the command
//! becomes `bwrap` first, and that starts this same program once more inside the bubble
//! ([`inside`](super::inside)). What this one has to know stands in a file in memory, the
//! [`Letter`]; that one, the pipe to the guard, the command's own 0 to 2 and the program
//! itself are handed through by their numbers. `bwrap` keeps none of them, so the bubble is no
//! reason for a pipe to stay open, and its own words go to a file in memory.
//!
//! `bwrap` stays beside the command, as the guard's child and as the first process of the name
//! space; with either of them everything in there dies. Its exit code is the command's, and
//! 128 plus the number of the signal that it died of. It must not die of signals that are
//! meant for the command, so those are ignored in it.

use std::{
    env,
    ffi::{OsStr, OsString},
    fs::{self, File},
    io::{self, PipeWriter, Read as _, Seek as _},
    os::{
        fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd, RawFd},
        unix::{fs::MetadataExt as _, process::CommandExt as _},
    },
    path::{Path, PathBuf},
    process::Command,
};

use nix::{
    fcntl::{AT_FDCWD, FcntlArg, OFlag, fcntl, openat},
    sys::{
        memfd::{MFdFlags, memfd_create},
        signal::{SigHandler, Signal, signal},
        stat::Mode,
    },
    unistd::{dup2_stderr, dup2_stdin, dup2_stdout},
};
use rustix::io::{FdFlags, fcntl_setfd};
use serde::{Deserialize, Serialize};

use super::{
    launch::{Failed, Order, THIS_EXECUTABLE},
    protected::{Mount, Protected},
};
use crate::contain::{
    Held, Terms,
    bubble::{Bubble, PROGRAMS},
};

/// The first descriptor that is not one of the command's own three.
const FIRST_OTHER_FD: RawFd = 3;

/// How much of what `bwrap` says is told.
const MOST_WORDS: u64 = 400;

/// What the guard passes on to the command and its group, and `bwrap` would die of.
const IGNORED: [Signal; 6] =
    [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGUSR1, Signal::SIGUSR2];

/// What the stage inside has to know.
#[derive(Debug, Serialize, Deserialize)]
pub struct Letter {
    /// What the command is held by.
    pub terms: Terms,
    /// What holds already.
    pub held: Held,
    /// What has to be read-only.
    pub fixed: Vec<PathBuf>,
    /// The name spaces that it must not be in.
    pub outside: Spaces,
    /// Which directory it has to be in, whatever the way to it is by now.
    pub directory: (u64, u64),
    /// `PWD`, which `bwrap` changes.
    pub pwd: Option<OsString>,
    /// The descriptors that the command gets as 0, 1 and 2.
    pub streams: [RawFd; 3],
    /// That of the pipe to the guard.
    pub tell: RawFd,
    /// That of this program.
    pub program: RawFd,
}

/// The name spaces of a process, as the kernel names them.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spaces {
    /// In which processes have numbers.
    pub process: PathBuf,
    /// In which there are networks.
    pub network: PathBuf,
}

impl Spaces {
    /// Those of this process.
    pub fn own() -> io::Result<Self> {
        Ok(Self {
            process: fs::read_link("/proc/self/ns/pid")?,
            network: fs::read_link("/proc/self/ns/net")?,
        })
    }
}

/// A bubble that can be tried.
#[derive(Debug)]
pub struct Shell<'a> {
    program: &'a Path,
    cut_network: bool,
    /// What it keeps as it is.
    pub protected: Protected,
    /// What `bwrap` says.
    words: File,
}

impl<'a> Shell<'a> {
    /// One around a command, or why there is none.
    pub fn new(bubble: &'a Bubble, terms: &Terms) -> Result<Self, String> {
        let program = bubble.program.as_deref().ok_or_else(|| {
            format!("there is no bubblewrap on this host ({}); install it", PROGRAMS.join(", "))
        })?;
        let words = memory("bwrap's words", MFdFlags::MFD_CLOEXEC)
            .map_err(|error| format!("there is no file for what bwrap says: {error}"))?;
        let protected = Protected::find(bubble, terms.reach.as_ref());
        Ok(Self { program, cut_network: bubble.cut_network, protected, words })
    }

    /// Turns this copy of the guard into `bwrap`; returns only if that fails.
    pub fn enter(&self, order: &Order<'_>, held: Held, tell: &PipeWriter) -> Failed {
        match self.prepare(order, held, tell) {
            Ok(mut command) => {
                let error = command.exec();
                Failed::Bubble(format!("{} cannot be run: {error}", self.program.display()))
            }
            Err(error) => Failed::Bubble(format!("it cannot be made ready: {error}")),
        }
    }

    /// Opens, for whoever comes after the exec, what the stage inside needs.
    #[allow(clippy::disallowed_methods, reason = "the guard is who starts commands")]
    fn prepare(&self, order: &Order<'_>, held: Held, tell: &PipeWriter) -> io::Result<Command> {
        let directory = env::current_dir()?;
        let here = fs::metadata(".")?;
        let program = openat(AT_FDCWD, THIS_EXECUTABLE, OFlag::O_PATH, Mode::empty())?;
        let streams =
            [pass_on(io::stdin().as_fd())?, pass_on(io::stdout().as_fd())?, pass_on(io::stderr().as_fd())?];
        let letter = Letter {
            terms: order.terms.clone(),
            held,
            fixed: self.protected.fixed().cloned().collect(),
            outside: Spaces::own()?,
            directory: (here.dev(), here.ino()),
            pwd: env::var_os("PWD"),
            streams,
            tell: tell.as_raw_fd(),
            program: program.as_raw_fd(),
        };
        let mut file = memory("conductor", MFdFlags::empty())?;
        serde_json::to_writer(&file, &letter)?;
        file.rewind()?;
        let mut command = Command::new(self.program);
        command.args(self.arguments(&directory));
        command.arg("--").arg(format!("/proc/self/fd/{}", program.as_raw_fd()));
        command.arg("guard").arg("--inside").arg(file.as_raw_fd().to_string());
        for pair in order.env {
            command.arg("--env").arg(pair);
        }
        command.arg("--").args(order.command);
        keep(program)?;
        keep(file.into())?;
        self.stand_aside(tell)?;
        Ok(command)
    }

    /// Leaves `bwrap` nothing of the command's but its signals, and those it ignores.
    #[allow(unsafe_code, reason = "setting dispositions is unsafe")]
    fn stand_aside(&self, tell: &PipeWriter) -> io::Result<()> {
        let null = File::options().read(true).write(true).open("/dev/null")?;
        dup2_stdin(&null)?;
        dup2_stdout(&null)?;
        dup2_stderr(&self.words)?;
        for ignored in IGNORED {
            // SAFETY: no handler is installed.
            unsafe { signal(ignored, SigHandler::SigIgn) }?;
        }
        fcntl_setfd(tell, FdFlags::empty())?;
        Ok(())
    }

    /// What `bwrap` is told before the command.
    fn arguments(&self, directory: &Path) -> Vec<OsString> {
        let mut given: Vec<OsString> =
            ["--die-with-parent", "--unshare-pid", "--unshare-ipc", "--unshare-uts"]
                .map(OsString::from)
                .into();
        if self.cut_network {
            given.push("--unshare-net".into());
        }
        // Root needs no name space of users, and could take the mounts away again.
        given.extend(["--cap-drop", "CAP_SYS_ADMIN"].map(OsString::from));
        let mut mount = |how: &str, path: &OsStr| {
            given.extend([how.into(), path.to_owned(), path.to_owned()]);
        };
        mount("--bind", OsStr::new("/"));
        mount("--dev-bind", OsStr::new("/dev"));
        for (path, how) in &self.protected.mounts {
            match how {
                Mount::Pinned => mount("--bind", path.as_os_str()),
                Mount::Fixed => mount("--ro-bind", path.as_os_str()),
            }
        }
        given.extend(["--proc", "/proc", "--chdir"].map(OsString::from));
        given.push(directory.into());
        given
    }

    /// Why there was no bubble, by what `bwrap` has said.
    pub fn complaint(&self) -> String {
        let mut words = Vec::new();
        let mut file = &self.words;
        // What cannot be read is as good as nothing.
        file.rewind().and_then(|()| file.take(MOST_WORDS).read_to_end(&mut words)).ok();
        let words = String::from_utf8_lossy(&words);
        let said = words.lines().next().unwrap_or_default().trim();
        let said = said.strip_prefix("bwrap: ").unwrap_or(said);
        match said {
            "" => "bwrap has ended before the command ran, and did not say why".to_owned(),
            said => format!(
                "bwrap cannot make name spaces here ({said:?}); allow user name spaces to {}, by sysctl or \
                 by its AppArmor profile",
                self.program.display()
            ),
        }
    }
}

/// A file that is nowhere.
fn memory(name: &str, flags: MFdFlags) -> io::Result<File> {
    Ok(File::from(memfd_create(name, flags)?))
}

/// A copy of a descriptor that an exec does not close.
fn pass_on(descriptor: BorrowedFd<'_>) -> io::Result<RawFd> {
    Ok(fcntl(descriptor, FcntlArg::F_DUPFD(FIRST_OTHER_FD))?)
}

/// Leaves a descriptor open for whoever comes after the exec.
fn keep(descriptor: OwnedFd) -> io::Result<()> {
    fcntl_setfd(&descriptor, FdFlags::empty())?;
    std::mem::forget(descriptor);
    Ok(())
}
