//! How the process ends.

use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use conductor_tests::harness::program;
use serde_json::{Value, json};

use crate::peer::{PATIENCE, Peer, home};

#[test]
fn ends_with_stdin_also_in_mid_turn() {
    let home = home();
    let mut peer = Peer::start(home.path());
    assert_eq!(peer.end().code(), Some(0));

    let mut peer = Peer::ready(home.path(), json!({}));
    let session = peer.open();
    peer.begin_prompt(&session, "slow 3600");
    peer.until(|message| message["params"]["update"]["sessionUpdate"] == "agent_message_chunk");
    let begun = Instant::now();
    assert_eq!(peer.end().code(), Some(0));
    assert!(begun.elapsed() < Duration::from_secs(5));

    // What was asked before the end is still answered, also without a last newline.
    let mut peer = Peer::start(home.path());
    peer.raw(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"initialize\",\"params\":{\"protocolVersion\":1}}");
    drop(peer.stdin.take());
    assert_eq!(peer.next()["id"], 1);
    assert_eq!(peer.wait().code(), Some(0));
}

/// Starts an agent whose stdout is stuck in the middle of a line longer than a pipe holds.
fn stuck(home: &Path) -> (Child, ChildStdin, ChildStdout) {
    let mut child = Command::new(program("conductor"))
        .arg("demo-agent")
        .env("HOME", home)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut stdin, mut stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    // Byte by byte, so that no more is taken out of the pipe than was looked at.
    let mut line = || -> Value {
        let mut bytes = Vec::new();
        while !bytes.ends_with(b"\n") {
            let mut byte = [0];
            stdout.read_exact(&mut byte).unwrap();
            bytes.extend(byte);
        }
        serde_json::from_slice(&bytes).unwrap()
    };
    let mut send = |method: &str, params: Value| {
        let message = json!({ "jsonrpc": "2.0", "id": method, "method": method, "params": params });
        stdin.write_all(format!("{message}\n").as_bytes()).unwrap();
    };
    send("initialize", json!({ "protocolVersion": 1 }));
    line();
    send("session/new", json!({ "cwd": "/", "mcpServers": [] }));
    let session = line()["result"]["sessionId"].clone();
    line();
    let prompt = json!([{ "type": "text", "text": "big 1024" }]);
    send("session/prompt", json!({ "sessionId": session, "prompt": prompt }));
    assert_eq!(line()["params"]["update"]["sessionUpdate"], "session_info_update");
    let mut first_of_big = [0];
    stdout.read_exact(&mut first_of_big).unwrap();
    (child, stdin, stdout)
}

/// Waits for the process in a thread, so that a hang fails the test instead of hanging it.
fn exit_code(mut child: Child) -> Option<i32> {
    let pid = nix::unistd::Pid::from_raw(i32::try_from(child.id()).unwrap());
    let (sender, ended) = sync_channel(1);
    let waiting = std::thread::spawn(move || sender.send(child.wait().unwrap()));
    let status = ended.recv_timeout(PATIENCE);
    if status.is_err() {
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).unwrap();
    }
    let _ = waiting.join();
    status.expect("the agent should have ended").code()
}

#[test]
fn ends_with_stdin_although_nobody_reads() {
    let home = home();
    let (child, mut stdin, stdout) = stuck(home.path());
    // More answers than the queue for stdout holds, so that the agent waits for room when stdin ends.
    stdin.write_all("{}\n".repeat(70).as_bytes()).unwrap();
    drop(stdin);
    assert_eq!(exit_code(child), Some(0));
    drop(stdout);
}

#[test]
fn ends_when_stdout_is_gone() {
    let home = home();
    let (child, stdin, stdout) = stuck(home.path());
    drop(stdout);
    assert_eq!(exit_code(child), Some(1));
    drop(stdin);
}

#[test]
fn sigterm_ends_it_as_usual() {
    use std::os::unix::process::ExitStatusExt as _;
    let home = home();
    let mut peer = Peer::ready(home.path(), json!({}));
    let pid = nix::unistd::Pid::from_raw(i32::try_from(peer.child.id()).unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    assert_eq!(peer.wait().signal(), Some(15));
}
