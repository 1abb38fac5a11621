//! How a command in a bubble ends, and what there is if there can be no bubble.

use std::{fs, io::Read as _, os::unix::process::ExitStatusExt as _, time::Duration};

use conductor_tests::harness::poll_until;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::{World, worlds};

/// The promise: one second after an end nothing of it is alive.
const ONE_SECOND: Duration = Duration::from_secs(1);

#[test]
fn exit_codes_are_exact_and_signals_are_told_by_one() {
    for world in worlds() {
        for (script, code) in
            [("exit 0", 0), ("exit 42", 42), ("kill -9 $$", 128 + 9), ("kill -11 $$", 128 + 11)]
        {
            let mut guarded = world.start(&world.terms(), script);
            guarded.held();
            assert_eq!(guarded.wait().code(), Some(code), "{script}");
            assert_eq!(guarded.told(), "", "nothing else is told");
        }
    }
}

#[test]
fn signals_reach_the_command_and_not_what_is_around_it() {
    for world in worlds() {
        let script =
            "trap 'echo term; exit 7' TERM; trap 'echo usr1' USR1; echo ready; while :; do sleep 0.01; done";
        let mut guarded = world.start(&world.terms(), script);
        guarded.held();
        assert_eq!(guarded.line(), "ready");
        guarded.signal(Signal::SIGUSR1);
        // What the shell waits for gets it, too, and dies of it.
        assert_eq!(guarded.line(), "usr1");
        guarded.signal(Signal::SIGTERM);
        assert_eq!(guarded.line(), "term");
        assert_eq!(guarded.wait().code(), Some(7));
    }
}

/// The processes of somebody, by a word in their command line.
fn running(word: &str) -> usize {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let lines = entries.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
    lines.filter(|line| String::from_utf8_lossy(line).contains(word)).count()
}

#[test]
fn nothing_is_left_when_the_conductor_or_the_guard_is_gone() {
    for world in worlds() {
        let word = world.outside.display().to_string();
        let script = format!(
            ": {word}; trap '' TERM HUP; (setsid sh -c 'sleep 60; : {word}') & setsid sh -c 'echo; sleep 60; : {word}'"
        );
        for is_killed in [false, true] {
            let mut guarded = world.start(&world.terms(), &script);
            guarded.held();
            guarded.line();
            assert!(running(&word) > 3);
            match is_killed {
                true => guarded.signal(Signal::SIGKILL),
                false => guarded.control = None,
            }
            assert!(poll_until(ONE_SECOND, || running(&word) == 0), "{} are left", running(&word));
            assert_eq!(guarded.wait().signal(), Some(Signal::SIGKILL as i32));
        }
    }
}

#[test]
fn a_stopped_command_is_killed_after_the_grace() {
    for world in worlds() {
        let words = ["sh", "-c", "kill -STOP $$; exit 1"];
        let mut guarded = world.start_with(&world.terms(), &["--stopped-grace-ms", "100"], &words, None);
        guarded.held();
        assert_eq!(guarded.told(), "stopped");
        guarded.wait();
    }
}

#[test]
fn a_command_that_takes_too_much_memory_is_told_apart() {
    for world in worlds() {
        let mut terms = world.terms();
        terms["limits"] = json!({ "memory": 100 << 20, "nice": 0 });
        let script = "exec python3 -c 'import time; x = bytearray(200 << 20); time.sleep(60)'";
        let mut guarded = world.start(&terms, script);
        guarded.held();
        assert_eq!(guarded.told(), "limit memory");
        guarded.wait();
    }
}

/// Terms with something else in the place of bubblewrap.
fn with_program(world: &World, program: Value, is_required: bool) -> Value {
    let mut terms = world.terms();
    terms["bubble"]["program"] = program;
    terms["is_required"] = json!(is_required);
    terms
}

#[test]
fn without_a_bubble_a_command_starts_only_if_none_is_required() {
    for world in worlds() {
        let before = world.names("");
        // Not installed; not to be run; refused by the kernel.
        let refused = world.root.join("refused");
        fs::write(&refused, "#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
            .unwrap();
        fs::set_permissions(&refused, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let cases = [
            (Value::Null, "there is no bubblewrap on this host"),
            (json!("/nowhere/bwrap"), "cannot be run"),
            (json!(refused), "No permissions to create new namespace"),
        ];
        for (program, why) in cases {
            let mut guarded = world.start(&with_program(&world, program.clone(), true), "echo runs");
            let told = guarded.told();
            assert!(told.starts_with("error ") && told.contains("\"bwrap\"") && told.contains(why), "{told}");
            assert_eq!(guarded.line(), "", "it has run");
            assert_eq!(guarded.wait().code(), Some(126));

            let mut guarded = world.start(&with_program(&world, program, false), "read x; echo $x");
            let (held, _) = guarded.started();
            let missing = &held["missing"][0];
            assert!(missing["layer"] == "bwrap" && missing["why"].as_str().unwrap().contains(why), "{held}");
            assert!(held["layers"].as_array().unwrap().contains(&json!("landlock")), "{held}");
            // Its stdin is untouched.
            std::io::Write::write_all(guarded.stdin.as_mut().unwrap(), b"hello\n").unwrap();
            assert_eq!(guarded.line(), "hello");
            assert!(guarded.wait().success());
        }
        fs::remove_file(refused).unwrap();
        assert_eq!(world.names(""), before);
    }
}

#[test]
fn a_command_that_cannot_run_is_explained_as_without_a_bubble() {
    for world in worlds() {
        let mut guarded = world.start_with(&world.terms(), &[], &["no-such-agent"], None);
        let told = guarded.told();
        assert!(told.contains("\"no-such-agent\" is in no directory of PATH"), "{told}");
        assert_eq!(guarded.wait().code(), Some(127));
        let mut text = String::new();
        guarded.stdout.read_to_string(&mut text).unwrap();
        assert_eq!(text, "");
    }
}
