//! Approvers are told: by a program, at an address, and by `approvals watch`.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    net::TcpListener,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::Stdio,
};

use conductor_tests::{harness::program, people::Person};
use serde_json::json;

use super::*;

#[test]
fn a_program_and_an_address_are_told_what_is_asked_and_how_to_answer() {
    let hook = TcpListener::bind("127.0.0.1:0").unwrap();
    let builder = asking("driver = false");
    let (script, out) = (builder.dir().join("tell"), builder.dir().join("told"));
    fs::write(&script, format!("#!/bin/sh\nprintf '%s\\n' \"$APPROVAL\" >> '{}'\n", out.display())).unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let service = builder
        .set("approvals.notify.command", json!([script]))
        .set("approvals.notify.webhook", format!("http://{}/hook/canary", hook.local_addr().unwrap()))
        .start();
    let (ann, lea) = (Person::named(&service, "ann"), approver(&service, "lea"));
    let (mut editor, session) = open(&service, &ann);
    editor.prompt_do(&session, &json!([run("make install")]));
    // The first try fails, and is made again.
    let (first, _) = hook.accept().unwrap();
    drop(first);
    let (mut stream, _) = hook.accept().unwrap();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let (mut head, mut length) = (String::new(), 0);
    while !head.ends_with("\r\n\r\n") {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        if let Some(number) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = number.trim().parse().unwrap();
        }
        head.push_str(&line);
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).unwrap();
    stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").unwrap();
    assert!(head.starts_with("POST /hook/canary HTTP/1.1\r\n"), "{head}");
    let sent: Value = serde_json::from_slice(&body).unwrap();
    let printed: Value = serde_json::from_str(fs::read_to_string(&out).unwrap().trim()).unwrap();
    assert_eq!(sent, printed);
    let asked = question(&service, &lea);
    assert_eq!((&sent["event"], &sent["id"]), (&json!("approval_requested"), &asked["id"]));
    assert_eq!((&sent["user"], &sent["rule"]), (&json!("ann"), &json!("make-asks")));
    let words = sent["text"].as_str().unwrap();
    assert!(words.contains("make install") && words.contains("conductor approvals allow"), "{words}");
    assert!(!service.log().contains("canary"), "the address is a secret");
}

/// Somebody who drives is asked and leaves: then others are told.
#[test]
fn a_question_that_nobody_sees_any_more_is_told_of() {
    let builder = service(&json!({})).rules("use = ['default']");
    let out = builder.dir().join("told");
    let service = builder
        .set("approvals.notify.command", json!(["/bin/sh", "-c", "printf %s \"$APPROVAL\" > \"$0\"", out]))
        .start();
    let ann = Person::named(&service, "ann");
    let (mut editor, session) = open(&service, &ann);
    editor.prompt_do(&session, &json!([run("make install")]));
    editor.next_request("session/request_permission");
    assert!(!out.exists(), "whoever is there is asked first");
    drop(editor);
    assert!(poll_until(DEADLINE, || fs::read_to_string(&out).is_ok_and(|text| text.contains("make install"))));
}

#[test]
fn a_program_that_fails_is_said_and_counted() {
    let service = asking("driver = false")
        .set("approvals.notify.command", json!(["/bin/false"]))
        .set("service.admin", "127.0.0.1:0")
        .start();
    let (ann, lea) = (Person::named(&service, "ann"), approver(&service, "lea"));
    let (mut editor, session) = open(&service, &ann);
    editor.prompt_do(&session, &json!([run("make")]));
    service.wait_log("approvers were not told");
    question(&service, &lea);
}

#[test]
fn watching_shows_what_is_asked_and_what_became_of_it() {
    let service = asking("driver = false").start();
    let (ann, lea) = (Person::named(&service, "ann"), approver(&service, "lea"));
    let mut watch = lea.command(&service, &["approvals", "watch", "--json"]);
    let mut watch = watch.stdout(Stdio::piped()).stdin(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    let mut next = || -> Value { serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap() };
    let (mut editor, session) = open(&service, &ann);
    editor.prompt_do(&session, &json!([run("make")]));
    let asked = next();
    assert_eq!(asked["event"], "asked");
    assert!(lea.run(&service, &["approvals", "allow", id(&asked["approval"])]).status.success());
    let ended = next();
    assert_eq!((&ended["event"], &ended["approval"]["outcome"]["by"]), (&json!("ended"), &json!("lea")));
    watch.kill().unwrap();
    watch.wait().unwrap();
}

/// In a real terminal, a letter is an answer.
#[test]
fn watching_in_a_terminal_answers() {
    let service = asking("driver = false").start();
    let (ann, lea) = (Person::named(&service, "ann"), approver(&service, "lea"));
    let line = format!("{} approvals watch", program("conductor").display());
    let mut script = service.beside(Path::new("script"));
    script.env("CONDUCTOR_TOKEN", &lea.token).args(["-qec", &line, "/dev/null"]);
    let mut script = script.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let (mut editor, session) = open(&service, &ann);
    let turn = editor.prompt_do(&session, &json!([run("make")]));
    let mut out = script.stdout.take().unwrap();
    let mut shown = String::new();
    let mut see = |text: &str| {
        let mut buffer = [0; 4096];
        while !shown.contains(text) {
            let count = out.read(&mut buffer).unwrap();
            assert!(count > 0, "{text} was not shown: {shown}");
            shown.push_str(&String::from_utf8_lossy(&buffer[..count]));
        }
        std::mem::take(&mut shown)
    };
    let question = see("[a]llow once, [d]eny");
    assert!(question.contains("run `make`") && question.contains("make-asks"), "{question}");
    let mut stdin = script.stdin.take().unwrap();
    stdin.write_all(b"a\n").unwrap();
    see("allowed: run `make`");
    editor.stop_reason(&turn);
    assert_eq!(chosen(&told(&editor.chunks(&session))), "once");
    stdin.write_all(b"\x03").unwrap();
    script.wait().unwrap();
}
