//! Our side of a terminal that a program on this host is run in.

use std::{
    ffi::OsStr,
    fs::File,
    io,
    os::unix::{ffi::OsStrExt as _, fs::OpenOptionsExt as _},
};

use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
use rustix::{
    pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt},
    termios::{Winsize, tcsetwinsize},
};
use tokio::net::unix::pipe;

/// The size of a terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// Characters in a line.
    pub columns: u16,
    /// Lines.
    pub rows: u16,
}

impl Default for Size {
    fn default() -> Self {
        Self { columns: 80, rows: 24 }
    }
}

/// Our side of a terminal. Read and written like two pipes, which it looks like from here.
#[derive(Debug)]
pub struct Pty {
    output: pipe::Receiver,
    input: pipe::Sender,
}

impl Pty {
    /// A terminal, and the side that the program gets.
    pub fn open(size: Size) -> io::Result<(Self, File)> {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY)?;
        fcntl(&master, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
        fcntl(&master, FcntlArg::F_SETFL(OFlag::O_RDWR | OFlag::O_NONBLOCK))?;
        grantpt(&master)?;
        unlockpt(&master)?;
        let name = ptsname(&master, Vec::new())?;
        // It must not become the terminal of this service.
        let slave = File::options()
            .read(true)
            .write(true)
            .custom_flags(nix::libc::O_NOCTTY)
            .open(OsStr::from_bytes(name.as_bytes()))?;
        let output = pipe::Receiver::from_owned_fd_unchecked(master.try_clone()?)?;
        let pty = Self { output, input: pipe::Sender::from_owned_fd_unchecked(master)? };
        pty.resize(size);
        Ok((pty, slave))
    }

    /// What the program has written; nothing once nobody has its side open any more.
    pub async fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            self.output.readable().await?;
            match self.output.try_read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.raw_os_error() == Some(nix::libc::EIO) => return Ok(0),
                read => return read,
            }
        }
    }

    /// Types some of this; how much.
    pub async fn write(&self, typed: &[u8]) -> io::Result<usize> {
        loop {
            self.input.writable().await?;
            match self.input.try_write(typed) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                written => return written,
            }
        }
    }

    /// Tells the program of another size.
    pub fn resize(&self, size: Size) {
        let size = Winsize { ws_col: size.columns, ws_row: size.rows, ws_xpixel: 0, ws_ypixel: 0 };
        // Only a terminal whose program has gone refuses.
        tcsetwinsize(&self.input, size).ok();
    }
}
