//! The yardstick: an agent behind a TCP connection with nothing but copying in between. That is the shape of
//! `ssh host agent` without its cipher, and the least that any remote agent costs; it tells what the conductor
//! adds from what the machine takes to wake so many processes.

use std::{
    io::{self, Read, Write},
    net::{Shutdown, TcpListener, TcpStream},
    process::{Command, Stdio},
    thread,
};

use anyhow::{Context as _, Result};

use crate::{editor::Editor, service::Programs};

/// The first argument that makes this program the editor's end of a relay.
pub const NEAR: &str = "relay-near";

/// The same for the agent's end.
pub const FAR: &str = "relay-far";

/// An agent behind a relay.
pub fn spawn(programs: &Programs) -> Result<Editor> {
    Editor::spawn(Command::new(std::env::current_exe()?).arg(NEAR).arg(&programs.stub))
}

/// The editor's end: starts the other one, as a process of its own, and copies between stdio and TCP.
pub fn near(stub: &str) -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?.to_string();
    let mut far =
        Command::new(std::env::current_exe()?).args([FAR, &address, stub]).stdin(Stdio::null()).spawn()?;
    let (stream, _) = listener.accept()?;
    stream.set_nodelay(true)?;
    let sending = stream.try_clone()?;
    thread::spawn(move || {
        copy(io::stdin().lock(), &sending).ok();
        sending.shutdown(Shutdown::Write)
    });
    copy(&stream, io::stdout().lock())?;
    far.wait()?;
    Ok(())
}

/// The agent's end.
pub fn far(address: &str, stub: &str) -> Result<()> {
    let stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    let mut agent = Command::new(stub).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let (stdin, stdout) =
        (agent.stdin.take().context("no stdin")?, agent.stdout.take().context("no stdout")?);
    let receiving = stream.try_clone()?;
    thread::spawn(move || copy(&receiving, stdin));
    copy(stdout, &stream)?;
    stream.shutdown(Shutdown::Write)?;
    agent.wait()?;
    Ok(())
}

/// What one read yields goes on at once.
fn copy(mut from: impl Read, mut to: impl Write) -> io::Result<()> {
    let mut buffer = vec![0; 256 << 10];
    loop {
        let n = from.read(&mut buffer)?;
        if n == 0 {
            return Ok(());
        }
        to.write_all(&buffer[..n])?;
        to.flush()?;
    }
}
