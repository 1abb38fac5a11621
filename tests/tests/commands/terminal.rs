//! `conductor prompt` on a terminal: what people see.

use std::fs::File;
use std::io::Write as _;
use std::process::{Child, Stdio};

use nix::pty::{OpenptyResult, openpty};
use nix::sys::signal::Signal;

use crate::agents::wait_for_idle;
use crate::hostile;
use crate::service::{Service, finish, read_until, signal, without_times};

/// Starts a command whose stdin and stderr are a terminal; stdout is a pipe.
fn on_terminal(service: &Service, args: &[&str], colour: bool) -> (Child, File) {
    on_terminal_after("", service, args, colour)
}

/// The same; this was typed before it started.
fn on_terminal_after(typed: &str, service: &Service, args: &[&str], colour: bool) -> (Child, File) {
    let OpenptyResult { master, slave } = openpty(None, None).unwrap();
    let mut master = File::from(master);
    master.write_all(typed.as_bytes()).unwrap();
    let mut command = service.command(args);
    command.env("TERM", "xterm").env("NO_COLOR", if colour { "" } else { "1" });
    command.stdin(slave.try_clone().unwrap()).stderr(slave).stdout(Stdio::piped());
    (command.spawn().unwrap(), master)
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
    // The agent must ask again; that it need not ask people is for us to remember.
    assert_eq!(done.stdout, "You chose \"yes\", which means allow_once.\n");
    assert_eq!(done.code, Some(0));
}

#[test]
fn after_an_agents_death_it_is_said_how_to_go_on() {
    let service = Service::start();
    let (child, mut terminal) = on_terminal(&service, &["prompt", "crash"], false);
    let shown = read_until(&mut terminal, "to go on: conductor prompt --session ");
    assert!(shown.contains("exited with status 3"), "{shown}");
    assert_eq!(finish(child, "").code, Some(1));
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

#[test]
fn what_was_typed_before_the_question_does_not_answer_it() {
    let service = Service::start();
    let (child, mut terminal) = on_terminal_after("1\n", &service, &["prompt", "ask"], false);
    read_until(&mut terminal, HINT);
    terminal.write_all(b"3\n").unwrap();
    assert_eq!(finish(child, "").stdout, "You chose \"no\", which means reject_once.\n");
}

#[test]
fn a_question_can_be_taken_back_and_the_next_one_waits() {
    let ask = r#"prompt=$id
        question() { say '{"jsonrpc":"2.0","id":'"$1"',"method":"session/request_permission","params":{"sessionId":"s","toolCall":{"toolCallId":"1","title":"Question '"$1"'"},"options":[{"optionId":"yes","name":"Yes","kind":"allow_once"},{"optionId":"no","name":"No","kind":"reject_once"}]}}'; }
        question 8; question 9
        say '{"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":8}}'
        IFS= read -r first; IFS= read -r second; id=$prompt
        case $first in *'"cancelled"'*) chunk 'first taken back, ' ;; esac
        case $second in *'"optionId":"yes"'*) chunk 'second allowed' ;; esac
        stop end_turn"#;
    let (service, _directory) = hostile::service(ask);
    let (child, mut terminal) = on_terminal(&service, &["prompt", "--agent", "odd", "go"], false);
    let shown = read_until(&mut terminal, "Question 9 (other)");
    assert!(shown.contains("Question 8 (other)"), "{shown}");
    assert!(shown.contains("the agent took the question back"), "{shown}");
    read_until(&mut terminal, "Enter alone rejects: ");
    terminal.write_all(b"1\n").unwrap();
    let done = finish(child, "");
    assert_eq!((done.code, &*done.stdout), (Some(0), "first taken back, second allowed\n"));
}

#[test]
fn whoever_decides_about_a_change_sees_it_once_and_harmlessly() {
    let ask = r#"prompt=$id
        diff='"content":[{"type":"diff","path":"/p/\u001b[2Ja","oldText":"one\u001b[2J\n","newText":"two\u0007\n"}]'
        update '{"sessionUpdate":"tool_call","toolCallId":"1","title":"Edit",'"$diff"'}'
        say '{"jsonrpc":"2.0","id":9,"method":"session/request_permission","params":{"sessionId":"s","toolCall":{"toolCallId":"1"},"options":[{"optionId":"yes","name":"Yes","kind":"allow_once"}]}}'
        IFS= read -r answer; id=$prompt
        update '{"sessionUpdate":"tool_call_update","toolCallId":"1","status":"completed"}'
        chunk done; stop end_turn"#;
    let (service, _directory) = hostile::service(ask);
    let (child, mut terminal) = on_terminal(&service, &["prompt", "--agent", "odd", "go"], false);
    let shown = read_until(&mut terminal, "Enter alone rejects: ").replace("\r\n", "\n");
    assert!(
        shown.contains(
            "permission: Edit (other)\n    /p/\\u{1b}[2Ja (+1 −1)\n    @@ -1,1 +1,1 @@\n    -one\\u{1b}[2J\n    +two\\u{7}\n  1) Yes"
        ),
        "{shown}"
    );
    terminal.write_all(b"1\n").unwrap();
    let after = read_until(&mut terminal, "Edit (other): completed");
    let done = finish(child, "");
    assert_eq!(done.stdout, "done\n");
    assert!(!after.contains("@@"), "{after}");
    assert!(!(shown + &after).contains('\x1b'));
}

#[test]
fn watching_draws_over_what_was_drawn() {
    let service = Service::start();
    let OpenptyResult { master, slave } = openpty(None, None).unwrap();
    let mut terminal = File::from(master);
    let mut command = service.command(&["agents", "--watch"]);
    let mut watch = command.env("TERM", "xterm").stdin(Stdio::null()).stdout(slave).spawn().unwrap();
    drop(command);
    let first = read_until(&mut terminal, "the default agent");
    assert!(first.starts_with("\x1b[H\x1b[1mNAME "), "{first:?}");
    let mut prompt = service.spawn(&["prompt", "slow 30"]);
    let later = read_until(&mut terminal, "1 leased");
    assert!(later.contains("\x1b[H"), "{later:?}");
    for child in [&mut watch, &mut prompt] {
        signal(child, Signal::SIGINT);
        child.wait().unwrap();
    }
    wait_for_idle(&service, "demo");
}

#[test]
fn on_one_screen_a_note_begins_on_a_line_of_its_own() {
    let call = r#"update '{"sessionUpdate":"tool_call","toolCallId":"1","title":"Look","kind":"read"}'"#;
    let end = r#"update '{"sessionUpdate":"tool_call_update","toolCallId":"1","status":"completed"}'"#;
    let (service, _directory) =
        hostile::service(&format!("chunk Looking; {call}; {end}; chunk done; stop end_turn"));
    let OpenptyResult { master, slave } = openpty(None, None).unwrap();
    let mut terminal = File::from(master);
    let mut command = service.command(&["prompt", "--agent", "odd", "go"]);
    command.env("NO_COLOR", "1").stdin(Stdio::null());
    let mut child = command.stdout(slave.try_clone().unwrap()).stderr(slave).spawn().unwrap();
    let shown = read_until(&mut terminal, "done\r\n").replace("\r\n", "\n");
    assert_eq!(
        without_times(&shown),
        "Looking\n· Look (read): pending\n✓ Look (read): completed in …\n\ndone\n"
    );
    assert!(child.wait().unwrap().success());
}
