//! The guard's end of the line to the conductor.

use std::{
    fs::File,
    io::{ErrorKind, IoSliceMut, Read as _, Write as _, stdin},
    mem::MaybeUninit,
    os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd, RawFd},
};

use nix::libc;
use rustix::{
    io::{fcntl_dupfd_cloexec, ioctl_fionbio},
    net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg},
};

use super::launch::Refusal;
use crate::contain::Terms;

/// The first descriptor that is not one of the agent's own three.
const FIRST_OTHER_FD: RawFd = 3;

/// The line to the conductor.
#[derive(Debug)]
pub struct Control(File);

impl Control {
    /// Takes over the socket at stdin, closes whatever else was inherited beyond the agent's
    /// three, and waits for the stdin that the agent is to have and for what it is held by.
    pub fn take() -> Result<(Self, OwnedFd, Terms), Refusal> {
        let wrong = |why: &dyn std::fmt::Display| {
            Refusal::new(format!(
                "--control: stdin is not what the conductor passes ({why}); leave it out to run this by hand"
            ))
        };
        let socket = fcntl_dupfd_cloexec(stdin(), FIRST_OTHER_FD).map_err(|error| wrong(&error))?;
        close_others(Some(socket.as_raw_fd()));
        let handed = receive(&socket).map_err(|error| wrong(&error))?;
        let handed = handed.ok_or_else(|| wrong(&"it has ended"))?;
        let mut socket = File::from(socket);
        let terms = read_line(&mut socket).map_err(|error| wrong(&error))?;
        let terms = serde_json::from_slice(&terms).map_err(|error| wrong(&error))?;
        // A conductor that does not read must not hold up the guard.
        ioctl_fionbio(&socket, true).map_err(|error| wrong(&error))?;
        Ok((Self(socket), handed, terms))
    }

    /// Writes one line. A conductor that cannot be told is noticed by the end of file.
    pub fn say(&mut self, line: &str) {
        let _ = self.0.write_all(format!("{line}\n").as_bytes());
    }

    /// Whether the conductor is gone. What it may have written means nothing.
    pub fn is_over(&mut self) -> bool {
        let mut ignored = [0; 64];
        loop {
            match self.0.read(&mut ignored) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return error.kind() != ErrorKind::WouldBlock,
            }
        }
    }
}

impl AsFd for Control {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// No line to a conductor: the agent's stdin is the one that is there, and nothing holds it.
/// Nothing else that was inherited stays open.
pub fn none() {
    close_others(None);
}

/// All up to the end of a line, which is the last thing that is said for now.
fn read_line(socket: &mut File) -> std::io::Result<Vec<u8>> {
    let (mut line, mut chunk) = (Vec::new(), [0; 4096]);
    while line.last() != Some(&b'\n') {
        match socket.read(&mut chunk) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => line.extend_from_slice(&chunk[..count]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(line)
}

/// The descriptor that comes with the first byte; none if there is none.
fn receive(socket: &OwnedFd) -> rustix::io::Result<Option<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut rights = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut into = [IoSliceMut::new(&mut byte)];
    rustix::io::retry_on_intr(|| recvmsg(socket, &mut into, &mut rights, RecvFlags::CMSG_CLOEXEC))?;
    let mut handed = rights.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    Ok(handed.next())
}

/// Closes all descriptors but the agent's three and the control socket.
fn close_others(control: Option<RawFd>) {
    match control {
        Some(fd) => {
            close_between(FIRST_OTHER_FD, fd - 1);
            close_between(fd.saturating_add(1), RawFd::MAX);
        }
        None => close_between(FIRST_OTHER_FD, RawFd::MAX),
    }
}

/// Closes all descriptors from `first` to `last`.
#[allow(unsafe_code, reason = "closing descriptors by number is unsafe")]
fn close_between(first: RawFd, last: RawFd) {
    if first > last {
        return;
    }
    // SAFETY: this runs before the guard opens anything but the control socket, so none of
    // these is owned.
    // The system call is used directly because older C libraries lack its wrapper.
    let done = unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
    if done == 0 {
        return;
    }
    // Kernels before 5.9 cannot do that; there the open ones are listed. The list
    // is complete before the first is closed, and its own descriptor is closed by then.
    let open: Vec<RawFd> = std::fs::read_dir("/proc/self/fd")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    for fd in open.into_iter().filter(|fd| (first..=last).contains(fd)) {
        // SAFETY: as above; closing a descriptor that is closed already does nothing.
        unsafe { libc::close(fd) };
    }
}
