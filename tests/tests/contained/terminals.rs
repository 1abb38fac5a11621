//! Commands that an agent has us run are contained as the agent itself is.

use std::fs;

use conductor_tests::{
    fake::process::{DETACH, SLEEPER},
    harness::poll_until,
};
use serde_json::json;

use crate::{Cell, ONE_SECOND, Sandbox, Who, escapes, hogs, world};

#[test]
fn m04_state_other_roots_and_home_are_out_of_reach_of_terminals() {
    escapes::files_of_others(Who::Terminal);
}

#[test]
fn m04_without_a_sandbox_they_are_within_reach_of_terminals() {
    escapes::files_without_a_sandbox(Who::Terminal);
}

#[test]
fn m04_terminals_see_no_environment_memory_or_descriptor_of_others() {
    escapes::insides_of_others(Who::Terminal);
}

#[test]
fn m04_sockets_of_others_are_refused_to_terminals() {
    escapes::sockets(Who::Terminal);
}

#[test]
fn m05_terminals_signal_nobody() {
    escapes::signals(Who::Terminal);
}

#[test]
fn m05_terminals_trace_nobody() {
    escapes::tracing(Who::Terminal);
}

#[test]
fn m05_terminals_starve_nobody() {
    escapes::starving(Who::Terminal);
}

#[test]
fn m05_calls_that_no_command_needs_are_forbidden_to_terminals() {
    escapes::calls(Who::Terminal);
}

#[test]
fn m06_terminals_reach_only_the_named_ports() {
    escapes::network(Who::Terminal);
}

#[test]
fn a25_a_fork_bomb_in_a_terminal_is_ended() {
    hogs::bomb_in_a_terminal();
}

#[test]
fn a26_a_terminal_that_takes_too_much_memory_is_ended() {
    hogs::memory_in_a_terminal();
}

#[test]
fn a27_terminals_have_the_limits_of_their_agent() {
    hogs::descriptors(Who::Terminal);
}

#[test]
fn m10_files_of_terminals_grow_no_longer_than_they_may() {
    hogs::disk(Who::Terminal);
}

#[test]
fn a21_what_a_terminal_leaves_behind_ends_with_it() {
    let service = world(Sandbox::Required).start();
    let mut mine = Cell::mine(&service);
    let fake = service.program("fake-agent").display().to_string();
    let tag = service.tag();
    let tag = format!("{}={}", tag["name"].as_str().unwrap(), tag["value"].as_str().unwrap());
    let sleepers = || service.processes().iter().filter(|running| running.command.contains(SLEEPER)).count();
    for verb in ["terminal/kill", "terminal/release", "session/close"] {
        // One leaves by itself, one is sent away, and neither has anything to be known by.
        let line = format!(
            "env -i setsid {fake} {SLEEPER} {tag} & env -i {fake} {tag} {DETACH} {SLEEPER}; echo > there; sleep 3600"
        );
        let there = mine.root.join("there");
        let id = mine.creates(&json!({ "command": "sh", "args": ["-c", line] }));
        assert!(
            poll_until(ONE_SECOND * 5, || there.exists() && sleepers() == 2),
            "{:?}",
            service.processes()
        );
        match verb {
            "session/close" => mine.close(),
            verb => drop(mine.asks_well(verb, &id)),
        }
        service.wait_gone(SLEEPER, ONE_SECOND);
        fs::remove_file(there).unwrap();
    }
}
