//! `conductor prompt` on a terminal: what people see.

use std::fs::File;
use std::io::Write as _;
use std::process::{Child, Stdio};

use nix::pty::{OpenptyResult, openpty};
use nix::sys::signal::Signal;

use crate::service::{Service, finish, read_until, signal};

/// Starts a command whose stdin and stderr are a terminal; stdout is a pipe.
fn on_terminal(service: &Service, args: &[&str], colour: bool) -> (Child, File) {
    let OpenptyResult { master, slave } = openpty(None, None).unwrap();
    let mut command = service.command(args);
    command.env("TERM", "xterm").env("NO_COLOR", if colour { "" } else { "1" });
    command.stdin(slave.try_clone().unwrap()).stderr(slave).stdout(Stdio::piped());
    (command.spawn().unwrap(), File::from(master))
}

const HINT: &str = "Type a number from 1 to 4; Enter alone rejects: ";

#[test]
fn the_dialogue_shows_what_is_asked_and_takes_the_choice() {
    let service = Service::start();
    let (child, mut terminal) = on_terminal(&service, &["prompt", "ask"], false);
    let shown = read_until(&mut terminal, HINT).replace("\r\n", "\n");
    assert_eq!(
        shown,
        format!(
            "The agent asks for permission: Do nothing at all (other)\n  input: {{\"nothing\":true}}\n  \
             1) Allow once  [allows once]\n  2) Always allow  [allows always]\n  \
             3) Reject once  [rejects once]\n  4) Always reject  [rejects always]\n{HINT}"
        )
    );
    terminal.write_all(b"five\n").unwrap();
    read_until(&mut terminal, HINT);
    terminal.write_all(b"2\n").unwrap();
    let done = finish(child, "");
    assert_eq!(done.stdout, "You chose \"yes-always\", which means allow_always.\n");
    assert_eq!(done.code, Some(0));
}

#[test]
fn enter_and_the_end_of_input_reject() {
    let service = Service::start();
    for typed in [&b"\n"[..], b"\x04"] {
        let (child, mut terminal) = on_terminal(&service, &["prompt", "ask"], false);
        read_until(&mut terminal, HINT);
        terminal.write_all(typed).unwrap();
        assert_eq!(finish(child, "").stdout, "You chose \"no\", which means reject_once.\n");
    }
}

#[test]
fn ctrl_c_ends_the_dialogue_and_the_turn() {
    let service = Service::start();
    let (child, mut terminal) = on_terminal(&service, &["prompt", "ask"], false);
    read_until(&mut terminal, HINT);
    signal(&child, Signal::SIGINT);
    let done = finish(child, "");
    assert_eq!((done.code, &*done.stdout), (Some(130), ""));
}

#[test]
fn thoughts_are_dimmed_beside_the_answer() {
    let service = Service::start();
    let (child, mut terminal) = on_terminal(&service, &["prompt", "think"], true);
    let shown = read_until(&mut terminal, "\x1b[0m");
    assert!(shown.starts_with("\x1b[2mThe user wants me to think."), "{shown:?}");
    assert_eq!(finish(child, "").stdout, "I have thought about it (thought level low).\n");
}
