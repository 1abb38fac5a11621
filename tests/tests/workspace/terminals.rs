//! Commands: what they are given, what they write, how they end.

use std::{fs, time::Duration};

use conductor_tests::harness::{assert_says, service};
use serde_json::{Value, json};

use crate::{bad, create, good, hosted, run, sh};

#[test]
fn exit_codes_and_signals_are_exact() {
    let service = hosted();
    let (mut editor, session) = service.session();
    for (line, code, signal) in [
        ("exit 0", json!(0), Value::Null),
        ("exit 7", json!(7), Value::Null),
        ("exit 255", json!(255), Value::Null),
        ("exit 137", json!(137), Value::Null),
        ("kill -TERM $$", Value::Null, json!("SIGTERM")),
        ("kill -SEGV $$", Value::Null, json!("SIGSEGV")),
        ("kill -KILL $$", Value::Null, json!("SIGKILL")),
    ] {
        let (_, ended) = run(&mut editor, &session, &sh(line));
        assert_eq!(ended, json!({ "exitCode": code, "signal": signal }), "{line}");
    }
    assert!(
        editor.lines().iter().all(|line| !line.method().starts_with("terminal/")),
        "the editor is not asked"
    );
}

#[test]
fn arguments_are_not_for_a_shell_and_a_line_alone_is() {
    let service = hosted();
    let (mut editor, session) = service.session();
    let mut output =
        |params: Value| run(&mut editor, &session, &params).0["output"].as_str().unwrap().to_owned();
    let args = json!(["%s|", "a b", "$HOME", "*", "", "; exit 3", "-c", "--"]);
    assert_eq!(output(json!({ "command": "printf", "args": args })), "a b|$HOME|*||; exit 3|-c|--|");
    // One word that names a program is that program, on PATH or by its path.
    let work = service.work().display().to_string();
    assert_eq!(output(json!({ "command": "pwd" })), format!("{work}\n"));
    assert_eq!(output(json!({ "command": "/bin/pwd", "args": [] })), format!("{work}\n"));
    // Everything else is a line for the shell.
    assert_eq!(
        output(json!({ "command": "echo one; echo two >&2 && echo \"$((1 + 2))\"" })),
        "one\ntwo\n3\n"
    );
    assert_eq!(output(json!({ "command": "printf '%s' 'a  b' | tr a c", "args": null })), "c  b");
    fs::write(service.work().join("script.sh"), "echo hello").unwrap();
    assert_eq!(output(json!({ "command": ". ./script.sh" })), "hello\n");
    let odd = service.work().join("my tool");
    fs::write(&odd, "#!/bin/sh\necho \"tool $#\"\n").unwrap();
    fs::set_permissions(&odd, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    assert_eq!(output(json!({ "command": odd })), "tool 0\n", "a path with a space is a path");
    assert_eq!(output(json!({ "command": "./my tool", "args": ["x"] })), "tool 1\n");
    // The shell has the last word about what it cannot run.
    let (output, ended) = run(&mut editor, &session, &json!({ "command": "no-such-program" }));
    assert_eq!(ended["exitCode"], 127, "{output}");
}

#[test]
fn what_cannot_be_started_is_refused_clearly() {
    let service = hosted();
    let (mut editor, session) = service.session();
    for (params, says) in [
        (json!({ "command": "no-such-program", "args": ["x"] }), "not found"),
        (json!({ "command": "/no/such/program", "args": ["x"] }), "not found"),
        (json!({ "command": "" }), "empty"),
        (json!({ "command": "echo \0" }), "NUL"),
        (json!({ "command": "echo", "args": ["\0"] }), "NUL"),
        (json!({ "command": "echo", "env": [{ "name": "A=B", "value": "" }] }), "variable"),
        (json!({ "command": "echo", "env": [{ "name": "", "value": "" }] }), "variable"),
        (json!({ "command": "echo", "args": "x" }), "terminal/create"),
        (json!({}), "terminal/create"),
        (json!({ "command": "echo", "cwd": "/" }), "outside"),
        (json!({ "command": "echo", "cwd": "here" }), "absolute"),
    ] {
        let error = bad(&mut editor, &session, "terminal/create", &params);
        assert_eq!(error["code"], -32602, "{params}: {error}");
        assert_says(&error, &[says]);
    }
    let none = json!({ "command": "echo", "cwd": service.work().join("none") });
    assert_eq!(bad(&mut editor, &session, "terminal/create", &none)["code"], -32002);
    assert_eq!(bad(&mut editor, &session, "terminal/explode", &json!({}))["code"], -32601);
}

#[test]
fn the_environment_is_the_allow_list_and_what_is_asked_for() {
    let service = service(&json!({}))
        .env("SERVICE_SECRET", "hidden")
        .env("HANDED_ON", "hidden")
        .env("LC_TEST", "locale")
        .set("agents.fake.env_from", json!(["HANDED_ON"]))
        .start();
    let (mut editor, session) = service.session();
    let env = json!([{ "name": "MINE", "value": "a b=c\n" }, { "name": "LANG", "value": "xx" }, { "name": "LD_TEST", "value": "loader" }]);
    let (output, _) = run(&mut editor, &session, &json!({ "command": "env", "args": ["-0"], "env": env }));
    let text = output["output"].as_str().unwrap().to_owned();
    let has = |variable: &str| text.split('\0').any(|line| line == variable);
    assert!(
        has("MINE=a b=c\n") && has("LANG=xx") && has("LC_TEST=locale") && has("LD_TEST=loader"),
        "{text}"
    );
    assert!(text.contains("PATH=") && has(&format!("HOME={}", service.dir.join("home").display())), "{text}");
    assert!(!text.contains("hidden") && !text.contains("FAKE_AGENT"), "{text}");
    // What steers the loader does not reach the guard.
    let env = json!([service.tag(), { "name": "LD_TEST", "value": "loader" }]);
    create(&mut editor, &session, &json!({ "command": "sleep", "args": ["3710"], "env": env }));
    let environment = |guard: bool| {
        let running = service.processes();
        let found = running.iter().find(|running| {
            running.command.contains("sleep 3710") && running.command.contains(" guard ") == guard
        });
        fs::read_to_string(format!("/proc/{}/environ", found.unwrap().pid)).unwrap()
    };
    assert!(environment(false).contains("LD_TEST=loader"));
    assert!(!environment(true).contains("LD_TEST"));
}

#[test]
fn commands_run_where_they_are_told_and_read_nothing() {
    let service = hosted();
    let (mut editor, session) = service.session();
    let sub = service.work().join("sub");
    fs::create_dir(&sub).unwrap();
    let (output, _) = run(&mut editor, &session, &json!({ "command": "pwd", "cwd": sub }));
    assert_eq!(output["output"], format!("{}\n", sub.display()));
    let (output, ended) =
        run(&mut editor, &session, &sh("cat; ls -l /proc/self/fd | wc -l; readlink /proc/$$/fd/0"));
    assert_eq!(ended["exitCode"], 0);
    assert!(output["output"].as_str().unwrap().ends_with("/dev/null\n"), "{output}");
}

#[test]
fn both_outputs_come_in_the_order_of_writing() {
    let service = hosted();
    let (mut editor, session) = service.session();
    let line = "i=0; while [ $i -lt 200 ]; do echo o$i; echo e$i >&2; i=$((i+1)); done";
    let (output, _) = run(&mut editor, &session, &sh(line));
    let wanted: String = (0..200).map(|i| format!("o{i}\ne{i}\n")).collect();
    assert_eq!(output["output"], wanted);
    assert_eq!(output["truncated"], false);
}

#[test]
fn the_output_limit_cuts_at_a_character() {
    let service = hosted();
    let (mut editor, session) = service.session();
    let mut limited = |text: &str, limit: Value| {
        let params = json!({ "command": "printf", "args": ["%s", text], "outputByteLimit": limit });
        let output = run(&mut editor, &session, &params).0;
        (output["output"].as_str().unwrap().to_owned(), output["truncated"].as_bool().unwrap())
    };
    assert_eq!(limited("a€€", json!(7)), ("a€€".into(), false));
    assert_eq!(limited("a€€", json!(6)), ("€€".into(), true));
    assert_eq!(limited("a€€", json!(5)), ("€".into(), true));
    assert_eq!(limited("a€€", json!(4)), ("€".into(), true));
    assert_eq!(limited("a€€", json!(2)), (String::new(), true));
    assert_eq!(limited("a", json!(0)), (String::new(), true));
    assert_eq!(limited("a€€", json!(null)), ("a€€".into(), false));
    assert_eq!(limited("a€€", json!(u64::MAX)), ("a€€".into(), false));
}

#[test]
fn t01_a_flood_is_drained_and_its_end_is_kept() {
    let service = hosted();
    let (mut editor, session) = service.session();
    editor.set_deadline(Duration::from_secs(60));
    let before = service.peak_memory();
    let (output, ended) = run(&mut editor, &session, &sh("yes flood | head -c 200000000; echo; echo end"));
    assert_eq!(ended["exitCode"], 0);
    let text = output["output"].as_str().unwrap();
    assert_eq!((text.len(), &output["truncated"]), (1 << 20, &json!(true)));
    assert!(text.ends_with("\nend\n"));
    let grown = service.peak_memory() - before;
    assert!(grown < 32 << 10, "memory grew by {grown} KiB");
}

#[test]
fn what_is_no_text_is_shown_as_well_as_can_be() {
    let service = hosted();
    let (mut editor, session) = service.session();
    let (output, _) = run(&mut editor, &session, &sh(r"printf 'a\377b\033[1m\000c'"));
    assert_eq!(output["output"], "a\u{fffd}b\u{1b}[1m\0c");
}

#[test]
fn output_can_be_watched_while_the_command_runs() {
    let service = hosted();
    let (mut editor, session) = service.session();
    let go = service.work().join("go");
    let line = format!("echo one; while [ ! -e '{}' ]; do sleep 0.01; done; echo two", go.display());
    let id = json!({ "terminalId": create(&mut editor, &session, &sh(&line)) });
    let mut output = json!({});
    while output["output"] != "one\n" {
        output = good(&mut editor, &session, "terminal/output", &id);
        assert!(output.get("exitStatus").is_none_or(Value::is_null), "{output}");
    }
    fs::write(go, "").unwrap();
    assert_eq!(good(&mut editor, &session, "terminal/wait_for_exit", &id)["exitCode"], 0);
    // The end may be asked for again, and the output still be read.
    assert_eq!(good(&mut editor, &session, "terminal/wait_for_exit", &id)["exitCode"], 0);
    assert_eq!(good(&mut editor, &session, "terminal/output", &id)["output"], "one\ntwo\n");
    assert_eq!(good(&mut editor, &session, "terminal/kill", &id), json!({}), "too late, but no error");
    assert_eq!(good(&mut editor, &session, "terminal/wait_for_exit", &id)["exitCode"], 0);
}

#[test]
fn a_session_has_so_many_terminals_and_no_more() {
    let service = hosted();
    let (mut editor, session) = service.session();
    let params = json!({ "command": "sleep", "args": ["3700"], "env": [service.tag()] });
    let ids: Vec<String> = (0..32).map(|_| create(&mut editor, &session, &params)).collect();
    let error = bad(&mut editor, &session, "terminal/create", &params);
    assert_eq!(error["code"], -31002, "{error}");
    assert_says(&error, &["terminal/release"]);
    good(&mut editor, &session, "terminal/release", &json!({ "terminalId": ids[0] }));
    create(&mut editor, &session, &params);
}
