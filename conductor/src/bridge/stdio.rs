//! This process's stdin and stdout as fast asynchronous streams.
//!
//! Tokio's own take a thread and a copy per read. Editors give us pipes or
//! sockets, which can be used directly; for anything else (a terminal, a
//! file) tokio's will do.

use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    pin::Pin,
};

use nix::sys::stat::{SFlag, fstat};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{UnixStream, unix::pipe},
};

use crate::agent::stdio::READ_BYTES;

/// Where the editor's lines come from.
pub(super) type Input = Pin<Box<dyn AsyncRead + Send>>;

/// Where the editor's lines go.
pub(super) type Output = Pin<Box<dyn AsyncWrite + Send>>;

pub(super) fn input() -> io::Result<Input> {
    let (descriptor, sort) = inspect(io::stdin())?;
    Ok(match sort {
        SFlag::S_IFIFO => Box::pin(pipe::Receiver::from_owned_fd_unchecked(nonblocking(descriptor)?)?),
        SFlag::S_IFSOCK => Box::pin(socket(descriptor)?),
        _ => Box::pin(tokio::io::stdin()),
    })
}

pub(super) fn output() -> io::Result<Output> {
    let (descriptor, sort) = inspect(io::stdout())?;
    Ok(match sort {
        SFlag::S_IFIFO => {
            Box::pin(pipe::Sender::from_owned_fd_unchecked(enlarged(nonblocking(descriptor)?))?)
        }
        SFlag::S_IFSOCK => Box::pin(socket(descriptor)?),
        _ => Box::pin(tokio::io::stdout()),
    })
}

fn inspect(stream: impl AsFd) -> io::Result<(OwnedFd, SFlag)> {
    let descriptor = stream.as_fd().try_clone_to_owned()?;
    let mode = fstat(&descriptor)?.st_mode;
    Ok((descriptor, SFlag::from_bits_truncate(mode) & SFlag::S_IFMT))
}

fn nonblocking(descriptor: OwnedFd) -> io::Result<OwnedFd> {
    use nix::fcntl::{FcntlArg, OFlag, fcntl};
    let flags = OFlag::from_bits_retain(fcntl(&descriptor, FcntlArg::F_GETFL)?);
    fcntl(&descriptor, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
    Ok(descriptor)
}

/// Makes room in a pipe for a whole run of frames: each wait for room costs two
/// switches of processes. Some systems grant a user few large pipes; then the
/// pipe stays as it is.
fn enlarged(pipe: OwnedFd) -> OwnedFd {
    use nix::fcntl::{FcntlArg, fcntl};
    fcntl(&pipe, FcntlArg::F_SETPIPE_SZ(READ_BYTES as i32)).ok();
    pipe
}

fn socket(descriptor: OwnedFd) -> io::Result<UnixStream> {
    let stream = std::os::unix::net::UnixStream::from(descriptor);
    stream.set_nonblocking(true)?;
    UnixStream::from_std(stream)
}
