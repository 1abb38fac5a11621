//! Ways out of the session's directories, all of them shut.

use std::{
    fs,
    os::unix::fs::symlink,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use conductor_tests::harness::{Service, assert_says, service};
use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
use serde_json::{Value, json};

use crate::{bad, hosted, request, told};

/// A session's directory, with traps in it, beside one it must not reach.
fn trapped(service: &Service) -> (std::path::PathBuf, std::path::PathBuf) {
    let (app, evil) = (service.work().join("app"), service.work().join("app-evil"));
    for directory in [&app, &evil, &evil.join("sub")] {
        fs::create_dir_all(directory).unwrap();
    }
    fs::create_dir(app.join("inner")).unwrap();
    fs::write(evil.join("file"), "SECRET").unwrap();
    symlink(&evil, app.join("absolute")).unwrap();
    symlink("../app-evil", app.join("relative")).unwrap();
    symlink(evil.join("file"), app.join("to-file")).unwrap();
    symlink("../app-evil/new", app.join("to-nothing")).unwrap();
    symlink("/proc/self/root", app.join("proc-root")).unwrap();
    symlink("/proc/self/cwd", app.join("proc-cwd")).unwrap();
    symlink("relative", app.join("twice")).unwrap();
    symlink("loop", app.join("loop")).unwrap();
    (app, evil)
}

#[test]
fn no_path_leads_out() {
    // Whatever people allow: everything is asked, and the editor says yes to everything.
    let rules = "[[rule]]\nid = 'ask'\neffect = 'ask'\nreason = 'always'\nanything = true";
    let service = service(&json!({})).rules(rules).start();
    let mut editor = service.editor();
    let (app, evil) = trapped(&service);
    let session = editor.new_session(&app);
    let evil_text = evil.display().to_string();
    let app_text = app.display().to_string();
    let paths = [
        format!("{evil_text}/file"),
        format!("{app_text}-evil/file"),
        format!("{app_text}/../app-evil/file"),
        format!("{app_text}/inner/../../app-evil/file"),
        format!("{app_text}/absolute/file"),
        format!("{app_text}/relative/file"),
        format!("{app_text}/twice/file"),
        format!("{app_text}/to-file"),
        format!("{app_text}/proc-root{evil_text}/file"),
        format!("{app_text}/proc-cwd/../work/app-evil/file"),
        format!("{app_text}/loop"),
        format!("{app_text}/loop/file"),
        format!("/proc/self/root{evil_text}/file"),
        "/proc/self/cwd/../work/app-evil/file".to_owned(),
        format!("//{evil_text}/file"),
        "/etc/passwd".to_owned(),
        "/dev/null".to_owned(),
        "/".to_owned(),
    ];
    let outside = |error: &Value, path: &str| {
        assert_eq!(error["code"], -32602, "{path}: {error}");
        assert_says(error, &["outside"]);
        assert_says(error, &[&app_text]);
        assert!(!error.to_string().contains("SECRET"), "{path}: {error}");
    };
    for path in &paths {
        outside(&bad(&mut editor, &session, "fs/read_text_file", &json!({ "path": path })), path);
        if path != "/" {
            let params = json!({ "path": path, "content": "EVIL" });
            outside(&bad(&mut editor, &session, "fs/write_text_file", &params), path);
        }
    }
    for path in ["to-nothing", "relative/new", "relative/sub/deep/new", "../app-evil/new", "../new"] {
        let path = format!("{app_text}/{path}");
        let params = json!({ "path": path, "content": "EVIL" });
        outside(&bad(&mut editor, &session, "fs/write_text_file", &params), &path);
    }
    for path in ["absolute", "relative", "twice/sub", "..", "proc-root", "proc-root/etc", "inner/../.."] {
        let path = format!("{app_text}/{path}");
        let params = json!({ "command": "pwd", "cwd": path });
        outside(&bad(&mut editor, &session, "terminal/create", &params), &path);
    }
    for path in [evil_text.as_str(), "/", "/proc/self/cwd", "/proc/self/root"] {
        outside(
            &bad(&mut editor, &session, "terminal/create", &json!({ "command": "pwd", "cwd": path })),
            path,
        );
    }
    // Whether something is there must not be told either.
    let there = bad(&mut editor, &session, "fs/read_text_file", &json!({ "path": evil.join("file") }));
    let not = bad(&mut editor, &session, "fs/read_text_file", &json!({ "path": evil.join("elif") }));
    assert_eq!(there.to_string().replace("file", "elif"), not.to_string());
    assert_eq!(fs::read_to_string(evil.join("file")).unwrap(), "SECRET");
    assert_eq!(fs::read_dir(&evil).unwrap().count(), 2);
    assert_eq!(fs::read_dir(service.work()).unwrap().count(), 2);
}

#[test]
fn odd_paths_are_refused() {
    let service = hosted();
    let (mut editor, session) = service.session();
    let work = service.work().display().to_string();
    let long = format!("{work}/{}", "x/".repeat(4000));
    let name = format!("{work}/{}", "x".repeat(300));
    for path in ["", "a", "./a", "~/a", "file:///a", &format!("{work}/a\0b"), &long, &name] {
        for (method, params) in [
            ("fs/read_text_file", json!({ "path": path })),
            ("fs/write_text_file", json!({ "path": path, "content": "" })),
            ("terminal/create", json!({ "command": "true", "cwd": path })),
        ] {
            let error = bad(&mut editor, &session, method, &params);
            assert_eq!(error["code"], -32602, "{method} {path:.80}: {error}");
        }
    }
    assert_eq!(fs::read_dir(service.work()).unwrap().count(), 0);
}

#[test]
fn a_thousand_races_for_a_link_are_lost() {
    const ROUNDS: usize = 1000;
    let service = hosted();
    let mut editor = service.editor();
    editor.set_deadline(std::time::Duration::from_secs(60));
    let (app, evil) = trapped(&service);
    fs::create_dir(app.join("swap")).unwrap();
    fs::write(app.join("swap/file"), "mine").unwrap();
    symlink(&evil, app.join("paws")).unwrap();
    let session = editor.new_session(&app);
    let read = request("fs/read_text_file", &json!({ "path": app.join("swap/file") }));
    let write = json!({ "path": app.join("swap/written"), "content": "EVIL" });
    let write = request("fs/write_text_file", &write);
    let deep = json!({ "path": app.join("swap/a/b/written"), "content": "EVIL" });
    let deep = request("fs/write_text_file", &deep);
    let done = AtomicBool::new(false);
    let chunks = thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let (one, other) = (app.join("swap"), app.join("paws"));
                renameat2(AT_FDCWD, &one, AT_FDCWD, &other, RenameFlags::RENAME_EXCHANGE).unwrap();
            }
        });
        let chunks = editor.turn_do(&session, &json!([{ "repeat": [ROUNDS, [read, write, deep]] }]));
        done.store(true, Ordering::Relaxed);
        chunks
    });
    let answers: Vec<Value> = chunks.iter().map(|chunk| told(chunk)).collect();
    assert_eq!(answers.len(), 3 * ROUNDS);
    let leaked = answers.iter().filter(|answer| answer.to_string().contains("SECRET"));
    assert_eq!(leaked.count(), 0, "nothing outside was read");
    let well = answers.iter().filter(|answer| answer.get("result").is_some()).count();
    let refused = answers.iter().filter(|answer| answer["error"]["code"] == -32602).count();
    assert!(well > 10 && refused > 10, "there was a race: {well} well, {refused} refused");
    let mut outside: Vec<_> = fs::read_dir(&evil).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    outside.sort();
    assert_eq!(outside, ["file", "sub"], "nothing outside was written");
}

/// The agent's other hand swaps what lies at a path, all the time.
fn swapping<T>(one: &Path, other: &Path, meanwhile: impl FnOnce() -> T) -> T {
    /// Also a failure ends the swapping, which is waited for.
    struct Done<'a>(&'a AtomicBool);
    impl Drop for Done<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                renameat2(AT_FDCWD, one, AT_FDCWD, other, RenameFlags::RENAME_EXCHANGE).unwrap();
            }
        });
        let _done = Done(&done);
        meanwhile()
    })
}

/// Many tries to have a protected file opened under the name of another, inside the session's directory.
fn races_within(effect: &str, rounds: usize) {
    let rule = |id: &str, effect: &str, what: &str| {
        format!("[[rule]]\nid = '{id}'\neffect = '{effect}'\nreason = 'said so'\n{what}\n")
    };
    let rules = [
        rule("read", effect, "read = { inside = true, protected = false }"),
        rule("write", effect, "write = { inside = true, protected = false }"),
        rule("never-read", "deny", "read = { path = ['.env', '.git/**'] }"),
        rule("never-write", "deny", "write = { protected = true }"),
    ];
    let service = service(&json!({})).rules(&rules.concat()).start();
    let mut editor = service.editor();
    editor.set_deadline(std::time::Duration::from_secs(120));
    let app = service.work().join("app");
    let hooks = app.join(".git/hooks");
    for directory in [&hooks, &app.join("swap"), &app.join("keys")] {
        fs::create_dir_all(directory).unwrap();
    }
    fs::write(app.join(".env"), "SECRET").unwrap();
    fs::write(app.join("notes"), "mine").unwrap();
    fs::write(app.join("swap/file"), "mine").unwrap();
    fs::write(hooks.join("file"), "SECRET").unwrap();
    // Neither leads out of the session's directory.
    symlink(".env", app.join("seton")).unwrap();
    symlink(".git/hooks", app.join("paws")).unwrap();
    let session = editor.new_session(&app);
    let read = |path: &str| request("fs/read_text_file", &json!({ "path": app.join(path) }));
    let write =
        |path: &str| request("fs/write_text_file", &json!({ "path": app.join(path), "content": "EVIL" }));

    let steps = json!([{ "repeat": [rounds, [read("notes")]] }]);
    let chunks = swapping(&app.join("notes"), &app.join("seton"), || editor.turn_do(&session, &steps));
    let mut answers: Vec<Value> = chunks.iter().map(|chunk| told(chunk)).collect();
    let steps = json!([{ "repeat": [rounds, [read("swap/file"), write("swap/new"), write("swap/a/b")]] }]);
    let chunks = swapping(&app.join("swap"), &app.join("paws"), || editor.turn_do(&session, &steps));
    answers.extend(chunks.iter().map(|chunk| told(chunk)));
    assert_eq!(answers.len(), 4 * rounds);

    let leaked = answers.iter().filter(|answer| answer.to_string().contains("SECRET")).count();
    assert_eq!(leaked, 0, "nothing protected was read");
    let inside: Vec<_> = fs::read_dir(&hooks).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(inside, ["file"], "nothing protected was written");
    let well = answers.iter().filter(|answer| answer.get("result").is_some()).count();
    assert!(well > 10 && well < 4 * rounds, "there was a race: {well} well");
    let changed = answers.iter().filter(|answer| answer.to_string().contains("since it was judged"));
    assert!(changed.count() > 0, "some were judged before the link was there");
}

#[test]
fn what_was_judged_is_what_is_opened() {
    races_within("allow", 500);
}

/// What a person has allowed is what they were asked about.
#[test]
fn what_was_asked_about_is_what_is_opened() {
    races_within("ask", 250);
}
