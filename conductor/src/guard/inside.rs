//! The stage inside a bubble, between `bwrap` and the command: it sees whether the bubble is
//! one, takes on what is left to hold the command, tells the guard, and becomes the command.

use std::{
    ffi::OsStr,
    fs::{self, File},
    io::{self, PipeWriter, Write as _},
    os::{
        fd::{AsFd as _, FromRawFd as _, OwnedFd, RawFd},
        unix::fs::{MetadataExt as _, OpenOptionsExt as _},
    },
    path::Path,
    process::{Command, ExitCode},
};

use nix::{
    errno::Errno,
    libc,
    sys::{
        signal::SigSet,
        statvfs::{FsFlags, fstatvfs},
    },
    unistd::{dup2_stderr, dup2_stdin, dup2_stdout},
};
use rustix::io::{FdFlags, fcntl_setfd};

use super::{
    bubble::{Letter, Spaces},
    hold,
    launch::{self, Failed},
};
use crate::{cli::GuardArgs, config::Layer};

/// What a shell says of a command that it cannot run.
const NOT_RUN: u8 = 126;

/// Becomes the command of a letter, or says why not: to the guard, or to whoever sees stderr.
pub fn run(letter: RawFd, args: &GuardArgs) -> ExitCode {
    let letter = match read(letter) {
        Ok(letter) => letter,
        Err(error) => {
            // Nobody is left to tell when stderr itself cannot be written.
            drop(writeln!(
                io::stderr(),
                "conductor guard: --inside is for bwrap, which the guard starts itself ({error}); leave it out"
            ));
            return ExitCode::from(NOT_RUN);
        }
    };
    let tell = PipeWriter::from(own(letter.tell));
    let failed = become_command(letter, args, &tell);
    let text = serde_json::to_vec(&failed).unwrap_or_default();
    // The guard takes silence for a failure, too.
    (&tell).write_all(&text).ok();
    ExitCode::from(NOT_RUN)
}

fn read(letter: RawFd) -> io::Result<Letter> {
    // The standard three are somebody else's.
    if letter <= libc::STDERR_FILENO || Errno::result(flags(letter)).is_err() {
        return Err(io::ErrorKind::NotFound.into());
    }
    let letter: Letter = serde_json::from_reader(File::from(own(letter)))?;
    for descriptor in letter.streams.into_iter().chain([letter.tell, letter.program]) {
        Errno::result(flags(descriptor))?;
    }
    Ok(letter)
}

/// Asks about a descriptor; negative if it is not open.
#[allow(unsafe_code, reason = "a number need not be a descriptor")]
fn flags(descriptor: RawFd) -> i32 {
    // SAFETY: the call reads no memory.
    unsafe { libc::fcntl(descriptor, libc::F_GETFD) }
}

/// Takes over a descriptor that was handed through.
#[allow(unsafe_code, reason = "taking a descriptor by number is unsafe")]
fn own(descriptor: RawFd) -> OwnedFd {
    // SAFETY: it is open, and this process has opened nothing that could have its number.
    unsafe { OwnedFd::from_raw_fd(descriptor) }
}

fn become_command(letter: Letter, args: &GuardArgs, tell: &PipeWriter) -> Failed {
    let Letter { terms, mut held, fixed, outside, directory, pwd, streams, program, .. } = letter;
    let mut command = launch::command(&args.command, &args.env);
    if let Err(error) = take_back(tell, streams, program, pwd.as_deref(), &mut command) {
        return Failed::Exec(error.raw_os_error().unwrap_or(libc::EIO));
    }
    if fs::metadata(".").map(|here| (here.dev(), here.ino())).ok() != Some(directory) {
        return Failed::Held("its working directory has been replaced meanwhile; try again".to_owned());
    }
    let cut_network = terms.bubble.as_ref().is_some_and(|bubble| bubble.cut_network);
    let is_held =
        is_apart(&outside, cut_network).and_then(|()| fixed.iter().try_for_each(|path| is_fixed(path)));
    match is_held {
        Ok(()) => held.has(Layer::Bwrap),
        Err(why) => held.lacks(Layer::Bwrap, why),
    }
    match hold::hold(&terms, &mut held) {
        Ok(()) => launch::exec(&mut command, &held, tell),
        Err(why) => Failed::Held(why),
    }
}

/// Undoes what was done for `bwrap` alone: descriptors that an exec does not close, ignored
/// signals, and `PWD`.
fn take_back(
    tell: &PipeWriter,
    streams: [RawFd; 3],
    program: RawFd,
    pwd: Option<&OsStr>,
    command: &mut Command,
) -> io::Result<()> {
    fcntl_setfd(tell, FdFlags::CLOEXEC)?;
    drop(own(program));
    let [stdin, stdout, stderr] = streams.map(own);
    dup2_stdin(stdin)?;
    dup2_stdout(stdout)?;
    dup2_stderr(stderr)?;
    match pwd {
        Some(pwd) => command.env("PWD", pwd),
        None => command.env_remove("PWD"),
    };
    launch::reset_signals();
    SigSet::empty().thread_set_mask()?;
    Ok(())
}

/// Whether this process is in name spaces of its own.
fn is_apart(outside: &Spaces, cut_network: bool) -> Result<(), String> {
    let own = Spaces::own().map_err(|error| format!("its name spaces cannot be seen: {error}"))?;
    if own.process == outside.process {
        return Err("it is in the same name space of processes as the service".to_owned());
    }
    if cut_network && own.network == outside.network {
        return Err("it is in the same network as the service".to_owned());
    }
    Ok(())
}

/// Tries what must not be possible any more, in a way that leaves nothing if it is.
fn is_fixed(path: &Path) -> Result<(), String> {
    let open = |flags: i32| File::options().custom_flags(flags | libc::O_NOFOLLOW).clone();
    let seen = open(libc::O_PATH).read(true).open(path).and_then(|place| {
        let flags = fstatvfs(place.as_fd())?.flags();
        Ok((place.metadata()?.is_dir(), flags.contains(FsFlags::ST_RDONLY)))
    });
    let (is_directory, is_read_only) =
        seen.map_err(|error| format!("{} cannot be looked at: {error}", path.display()))?;
    let nameless = if is_directory { libc::O_TMPFILE } else { libc::O_NONBLOCK };
    if !is_read_only || open(nameless).write(true).open(path).is_ok() {
        return Err(format!("{} can still be changed", path.display()));
    }
    Ok(())
}
