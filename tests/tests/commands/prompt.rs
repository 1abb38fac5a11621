//! `conductor prompt` with pipes: what scripts see.

use std::io::Read as _;
use std::process::Stdio;

use conductor_tests::{editor::DEADLINE, harness::poll_until};
use nix::sys::signal::Signal;

use crate::agents::wait_for_idle;
use crate::service::{Service, finish, read_until, run_alone, signal, without_times};

#[test]
fn stdout_holds_the_answer_and_nothing_else() {
    let service = Service::start();
    let streamed = service.run(&["prompt", "stream 5"]);
    assert_eq!(streamed.stdout, (1..=5).map(|n| format!("chunk {n} of 5\n")).collect::<String>());
    assert_eq!((streamed.code, &*streamed.stderr), (Some(0), ""));
    let thought = service.run(&["prompt", "think"]);
    assert_eq!(thought.stdout, "I have thought about it (thought level low).\n");
    assert_eq!((thought.code, &*thought.stderr), (Some(0), ""));
    let called = service.run(&["prompt", "tool"]);
    assert_eq!(called.stdout, "The tool call is complete; it only pretended.\n");
    assert_eq!(
        without_times(&called.stderr),
        "· Search for \"demo\" (search): pending\n✓ Search for \"demo\" (search): completed in …\n"
    );
}

#[test]
fn a_long_answer_is_whole() {
    let service = Service::start();
    let done = service.run(&["prompt", "big 3000"]);
    assert_eq!(done.code, Some(0));
    assert_eq!(done.stdout.len(), 3000 * 1024);
    let done = service.run(&["prompt", "stream 20000"]);
    assert_eq!(done.stdout.lines().count(), 20_000);
    assert!(done.stdout.ends_with("chunk 20000 of 20000\n"));
}

#[test]
fn a_dash_reads_the_prompt_from_stdin() {
    let service = Service::start();
    let done = service.run_with(&["prompt", "-"], "hello\nthere\n");
    assert!(done.stdout.starts_with("You said: hello\nthere\n"), "{done:?}");
    let empty = service.run_with(&["prompt", "-"], "\n");
    assert_eq!(empty.code, Some(2));
    assert!(empty.stderr.contains("the prompt is empty"), "{empty:?}");
}

#[test]
fn permissions_are_answered_by_flags() {
    let service = Service::start();
    let allowed = service.run(&["prompt", "--allow", "ask"]);
    assert_eq!(allowed.stdout, "You chose \"yes\", which means allow_once.\n");
    assert_eq!(allowed.stderr, "allowed once (--allow): Do nothing at all\n");
    let denied = service.run(&["prompt", "ask", "--deny"]);
    assert_eq!(denied.stdout, "You chose \"no\", which means reject_once.\n");
    assert_eq!(denied.stderr, "rejected (--deny): Do nothing at all\n");
    let both = service.run(&["prompt", "ask", "--deny", "--allow"]);
    assert_eq!(both.code, Some(2));
}

#[test]
fn without_flags_and_terminal_nothing_is_allowed() {
    let service = Service::start();
    let done = service.run_with(&["prompt", "ask"], "1\n1\n1\n");
    assert_eq!(done.stdout, "You chose \"no\", which means reject_once.\n");
    assert!(done.stderr.contains("no terminal") && done.stderr.contains("--allow"), "{done:?}");
    assert_eq!(done.code, Some(0));
}

#[test]
fn exit_codes_tell_how_the_turn_ended() {
    let service = Service::start();
    let refused = service.run(&["prompt", "refuse"]);
    assert_eq!(refused.code, Some(3));
    assert!(refused.stderr.contains("(refusal)"), "{refused:?}");
    let failed = service.run(&["prompt", "fail"]);
    assert_eq!((failed.code, &*failed.stdout), (Some(1), "I am going to fail now.\n"));
    assert!(failed.stderr.contains("the demo agent failed, as you asked"), "{failed:?}");
    assert!(failed.stderr.contains("something more pleasant"), "the data is shown: {failed:?}");
    let crashed = service.run(&["prompt", "crash"]);
    assert_eq!(crashed.code, Some(1));
    assert!(crashed.stderr.contains("exited with status 3"), "{crashed:?}");
    assert!(!crashed.stderr.contains("to go on"), "that is for people: {crashed:?}");
}

#[test]
fn the_session_works_where_it_is_told_and_as_it_is_told() {
    let service = Service::start();
    let here = service.project().canonicalize().unwrap();
    let said = service.run(&["prompt", "whoami"]).stdout;
    assert!(said.contains(&format!("- cwd: {}\n", here.display())), "{said}");
    std::fs::create_dir(here.join("inner")).unwrap();
    let args = ["prompt", "--cwd", "inner", "--model", "demo-large", "--mode", "code", "whoami"];
    let said = service.run(&args).stdout;
    assert!(said.contains(&format!("- cwd: {}/inner\n", here.display())), "{said}");
    assert!(said.contains("- model: demo-large\n- mode: code\n"), "{said}");
}

#[test]
fn unknown_names_are_refused_with_those_that_are_known() {
    let service = Service::start();
    for (flag, known) in [("--agent", "demo"), ("--model", "demo-large"), ("--mode", "yolo")] {
        let done = service.run(&["prompt", flag, "no-such-thing", "help"]);
        assert_eq!((done.code, &*done.stdout), (Some(1), ""), "{flag}");
        assert!(done.stderr.contains("`no-such-thing`") && done.stderr.contains(known), "{done:?}");
    }
    let done = service.run(&["prompt", "--cwd", "/", "help"]);
    assert_eq!(done.code, Some(1));
    assert!(done.stderr.contains("outside the roots"), "{done:?}");
}

#[test]
fn without_a_service_it_says_how_to_start_one() {
    let empty = tempfile::tempdir().unwrap();
    for args in [&["prompt", "help"][..], &["agents"], &["agents", "restart", "demo"]] {
        let done = run_alone(args, empty.path());
        assert_eq!((done.code, &*done.stdout), (Some(1), ""));
        assert!(done.stderr.contains("conductor serve"), "{done:?}");
    }
    let mut service = Service::start();
    service.kill();
    // An agent that was just being started may hold what it inherits for an instant.
    let says = || {
        let done = service.run(&["prompt", "help"]);
        assert_eq!(done.code, Some(1));
        done.stderr.contains("no conductor is running") && done.stderr.contains("conductor serve")
    };
    assert!(poll_until(DEADLINE, says), "{:?}", service.run(&["prompt", "help"]));
}

#[test]
fn a_lost_service_is_an_error() {
    let mut service = Service::start();
    let mut prompt = service.spawn(&["prompt", "slow 30"]);
    read_until(prompt.stdout.as_mut().unwrap(), "second 1 of 30\n");
    service.kill();
    let done = finish(prompt, "");
    assert_eq!(done.code, Some(1));
    assert!(
        done.stderr.starts_with("conductor prompt: ") && done.stderr.contains("lost the conductor at"),
        "{done:?}"
    );
}

#[test]
fn ctrl_c_cancels_the_turn() {
    let service = Service::start();
    let mut prompt = service.spawn(&["prompt", "slow 30"]);
    read_until(prompt.stdout.as_mut().unwrap(), "second 1 of 30\n");
    signal(&prompt, Signal::SIGINT);
    let done = finish(prompt, "");
    assert_eq!(done.code, Some(130));
    assert!(!done.stdout.contains("second 30"), "{done:?}");
    assert!(done.stderr.contains("cancelling the turn"), "{done:?}");
    wait_for_idle(&service, "demo");
}

#[test]
fn ctrl_c_works_while_nobody_reads_the_answer() {
    let service = Service::start();
    let mut prompt = service.spawn(&["prompt", "stream 1000000"]);
    let mut stdout = prompt.stdout.take().unwrap();
    // The pipe is full long before the answer ends, and stays so.
    read_until(&mut stdout, "chunk 1 of 1000000\n");
    signal(&prompt, Signal::SIGINT);
    read_until(prompt.stderr.as_mut().unwrap(), "cancelling the turn");
    signal(&prompt, Signal::SIGINT);
    assert_eq!(finish(prompt, "").code, Some(130));
    drop(stdout);
    wait_for_idle(&service, "demo");
}

#[test]
fn a_closed_stdout_ends_the_turn() {
    let service = Service::start();
    let mut command = service.command(&["prompt", "slow 30"]);
    let mut prompt =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut first = [0; 6];
    prompt.stdout.take().unwrap().read_exact(&mut first).unwrap();
    let done = finish(prompt, "");
    assert_eq!(done.code, Some(1));
    assert!(done.stderr.contains("cannot be written to stdout"), "{done:?}");
    wait_for_idle(&service, "demo");
}
