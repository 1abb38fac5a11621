//! Reading and writing text files.

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use conductor_tests::harness::{assert_says, poll_until};
use nix::{sys::stat::Mode, unistd::mkfifo};
use serde_json::{Value, json};

use crate::{ask, bad, good, hosted, request};

const READ: &str = "fs/read_text_file";
const WRITE: &str = "fs/write_text_file";

/// For tests that move much on a machine that may be busy.
const PATIENCE: Duration = Duration::from_secs(60);

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn text_is_read_whole_or_by_lines() {
    let service = hosted();
    let (mut editor, session) = service.session();
    let path = service.work().join("a.txt");
    fs::write(&path, "one\r\ntwo €\n\nfour").unwrap();
    let mut read = |more: Value| {
        let mut params = more;
        params["path"] = json!(path);
        good(&mut editor, &session, READ, &params)["content"].as_str().unwrap().to_owned()
    };
    assert_eq!(read(json!({})), "one\r\ntwo €\n\nfour");
    assert_eq!(read(json!({ "line": null, "limit": null })), "one\r\ntwo €\n\nfour");
    assert_eq!(read(json!({ "line": 2 })), "two €\n\nfour");
    assert_eq!(read(json!({ "line": 2, "limit": 1 })), "two €\n");
    assert_eq!(read(json!({ "limit": 2 })), "one\r\ntwo €\n");
    assert_eq!(read(json!({ "line": 4, "limit": 100 })), "four");
    assert_eq!(read(json!({ "line": 99 })), "");
    assert!(editor.lines().iter().all(|line| line.method() != READ), "the editor is not asked");
}

#[test]
fn what_is_no_text_file_is_refused_clearly() {
    let service = hosted();
    let (mut editor, session) = service.session();
    let work = service.work();
    fs::write(work.join("binary"), b"secret \xff\xfe").unwrap();
    fs::write(work.join("huge"), "line\n".repeat(3 << 20)).unwrap();
    mkfifo(&work.join("fifo"), Mode::S_IRWXU).unwrap();
    let mut refused = |path: &Path, code: i64, says: &str| {
        let error = bad(&mut editor, &session, READ, &json!({ "path": path }));
        assert_eq!(error["code"], code, "{error}");
        assert_says(&error, &[says]);
        assert!(!error.to_string().contains("secret"), "no content in errors: {error}");
        error
    };
    let missing = refused(&work.join("no such.txt"), -32002, "there is no");
    assert_eq!(missing["data"]["path"], json!(work.join("no such.txt")));
    assert!(missing["data"]["uri"].as_str().unwrap().ends_with("/no%20such.txt"), "{missing}");
    refused(&work.join("binary"), -32602, "UTF-8");
    refused(&work.join("huge"), -32602, "`limit`");
    refused(&work.join("fifo"), -32602, "regular file");
    refused(&work, -32602, "directory");
    refused(&work.join("binary/below"), -32602, "not a directory");
    refused(Path::new("a.txt"), -32602, "absolute");
    for params in [json!({}), json!({ "path": 7 }), json!({ "path": work.join("huge"), "line": -1 })] {
        let error = bad(&mut editor, &session, READ, &params);
        assert_eq!(error["code"], -32602, "{error}");
        assert_says(&error, &[READ]);
    }
    let part = good(
        &mut editor,
        &session,
        READ,
        &json!({ "path": work.join("huge"), "line": 3_000_000, "limit": 2 }),
    );
    assert_eq!(part["content"], "line\nline\n");
}

#[test]
fn writes_create_files_and_the_directories_above() {
    let service = hosted();
    let (mut editor, session) = service.session();
    let path = service.work().join("a/b/c.txt");
    let params = json!({ "path": path, "content": "new €\n" });
    assert_eq!(good(&mut editor, &session, WRITE, &params), json!({}));
    assert_eq!(fs::read_to_string(&path).unwrap(), "new €\n");
    // The service has this test's own umask.
    let plain = service.dir.join("plain");
    fs::write(&plain, "").unwrap();
    assert_eq!(mode(&path), mode(&plain) & 0o644);
    good(&mut editor, &session, WRITE, &json!({ "path": path, "content": "" }));
    assert_eq!(fs::read_to_string(&path).unwrap(), "");
    assert_eq!(names(path.parent().unwrap()), ["c.txt"], "nothing is left over");
}

#[test]
fn writes_keep_mode_and_links() {
    let service = hosted();
    let (mut editor, session) = service.session();
    let work = service.work();
    for bits in [0o755, 0o600, 0o640] {
        let path = work.join("script");
        fs::write(&path, "old").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(bits)).unwrap();
        good(&mut editor, &session, WRITE, &json!({ "path": path, "content": "new" }));
        assert_eq!(fs::read_to_string(&path).unwrap(), "new");
        assert_eq!(mode(&path), bits);
    }
    fs::create_dir(work.join("real")).unwrap();
    symlink("real/target", work.join("link")).unwrap();
    symlink(work.join("real"), work.join("absolute")).unwrap();
    // The first write finds a link that leads to nothing yet.
    for (path, content) in [("link", "1"), ("link", "2"), ("absolute/target", "3")] {
        good(&mut editor, &session, WRITE, &json!({ "path": work.join(path), "content": content }));
        assert_eq!(fs::read_to_string(work.join("real/target")).unwrap(), content, "{path}");
        let read = good(&mut editor, &session, READ, &json!({ "path": work.join(path) }));
        assert_eq!(read["content"], content);
    }
    assert!(fs::symlink_metadata(work.join("link")).unwrap().is_symlink(), "the link stays");
    assert_eq!(names(&work.join("real")), ["target"]);
}

#[test]
fn what_cannot_be_written_stays_as_it_was() {
    let service = hosted();
    let (mut editor, session) = service.session();
    let work = service.work();
    fs::write(work.join("file"), "old").unwrap();
    fs::create_dir(work.join("directory")).unwrap();
    mkfifo(&work.join("fifo"), Mode::S_IRWXU).unwrap();
    let mut refused = |params: Value| {
        let error = bad(&mut editor, &session, WRITE, &params);
        assert_eq!(error["code"], -32602, "{error}");
        assert!(!error.to_string().contains("secret"), "no content in errors: {error}");
    };
    for path in ["directory", "", "fifo", "file/below", "directory/.."] {
        refused(json!({ "path": work.join(path), "content": "secret" }));
    }
    refused(json!({ "path": "file", "content": "secret" }));
    refused(json!({ "path": work.join("file") }));
    refused(json!({ "path": work.join("file"), "content": ["secret"] }));
    assert_eq!(fs::read_to_string(work.join("file")).unwrap(), "old");
    assert_eq!(names(&work), ["directory", "fifo", "file"]);
}

#[test]
fn a_reader_sees_the_old_or_the_new_text_and_nothing_else() {
    let service = hosted();
    let (mut editor, session) = service.session();
    let path = service.work().join("file");
    fs::write(&path, "a".repeat(100_000)).unwrap();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut seen = [0, 0];
            while !done.load(Ordering::Relaxed) {
                let text = fs::read(&path).unwrap();
                assert_eq!(text.len(), 100_000);
                assert!(text.iter().all(|byte| *byte == text[0]));
                seen[usize::from(text[0] == b'b')] += 1;
            }
            seen
        });
        let write =
            |letter: &str| request(WRITE, &json!({ "path": path, "content": letter.repeat(100_000) }));
        editor.turn_do(&session, &json!([{ "repeat": [30, [write("b"), write("a")]] }]));
        done.store(true, Ordering::Relaxed);
        let seen = reader.join().unwrap();
        assert!(seen[0] > 0 && seen[1] > 0, "both texts were seen: {seen:?}");
    });
}

#[test]
fn many_requests_at_once_are_each_answered_once() {
    let service = hosted();
    let (mut editor, session) = service.session();
    editor.set_deadline(PATIENCE);
    fs::write(service.work().join("file"), "x".repeat(50_000)).unwrap();
    let mut read = request(READ, &json!({ "path": service.work().join("file") }));
    read["request"]["forget"] = json!(true);
    let big = json!({ "path": service.work().join("big"), "content": "y".repeat(1 << 20) });
    let mut write = request(WRITE, &big);
    write["request"]["forget"] = json!(true);
    editor.turn_do(&session, &json!([{ "repeat": [60, [read]] }, { "repeat": [10, [write]] }]));
    // The last to be asked is not the last to be answered.
    ask(&mut editor, &session, READ, &json!({ "path": service.work().join("none") }));
    let mut answers = Vec::new();
    poll_until(PATIENCE, || {
        answers = service
            .received("fake")
            .into_iter()
            .filter_map(|line| line.json())
            .filter(|m| m.get("method").is_none())
            .collect();
        answers.len() >= 71
    });
    let mut ids: Vec<i64> = answers.iter().filter_map(|answer| answer["id"].as_i64()).collect();
    ids.sort_unstable();
    assert_eq!(ids, (0..71).collect::<Vec<_>>());
    assert!(answers.iter().all(|answer| answer["id"] == 70 || answer.get("result").is_some()));
    assert_eq!(fs::metadata(service.work().join("big")).unwrap().len(), 1 << 20);
}

#[test]
fn other_directories_of_the_session_count_too() {
    let service = hosted();
    let mut editor = service.editor();
    let (work, other) = (service.work(), service.dir.join("other"));
    fs::write(other.join("there"), "yes").unwrap();
    symlink(other.join("there"), work.join("link")).unwrap();
    let plain = editor.new_session(&work);
    for path in [other.join("there"), work.join("link")] {
        assert_eq!(bad(&mut editor, &plain, READ, &json!({ "path": path }))["code"], -32602);
    }
    let params = json!({ "cwd": work, "mcpServers": [], "additionalDirectories": [other] });
    let wide = editor.call("session/new", &params)["sessionId"].as_str().unwrap().to_owned();
    for path in [other.join("there"), work.join("link")] {
        assert_eq!(good(&mut editor, &wide, READ, &json!({ "path": path }))["content"], "yes");
    }
    for more in [json!(["/etc"]), json!(["relative"]), json!([work.join("none")]), json!([1]), json!("x")] {
        let params = json!({ "cwd": work, "mcpServers": [], "additionalDirectories": more });
        assert_eq!(editor.call_error("session/new", &params)["code"], -32602, "{more}");
    }
}

#[test]
fn the_session_may_be_reached_through_a_link() {
    let service = hosted();
    let mut editor = service.editor();
    let work = service.work();
    fs::create_dir(work.join("project")).unwrap();
    symlink(work.join("project"), work.join("alias")).unwrap();
    let session = editor.new_session(&work.join("alias"));
    good(&mut editor, &session, WRITE, &json!({ "path": work.join("alias/f"), "content": "1" }));
    assert_eq!(good(&mut editor, &session, READ, &json!({ "path": work.join("project/f") }))["content"], "1");
    assert_eq!(bad(&mut editor, &session, READ, &json!({ "path": work.join("f") }))["code"], -32602);
}
