//! Peers made with the official SDKs: how they are installed, and the one
//! conversation that is expected of each, whichever language it is written in.
//!
//! The packages come from the registries that npm and pip are set up for, into
//! `target/peers`, the first time a test needs them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use serde_json::{Value, json};

use crate::harness::{Builder, Service, program};

/// The interpreter with Python's packages, and the file that lists them.
const PYTHON: &str = "venv/bin/python";
const PACKAGES: &str = "requirements.txt";

/// A language that peers are written in: its interpreter, and where the
/// scripts of `tests/peers` lie beside their packages.
pub struct Language {
    /// The interpreter.
    pub program: PathBuf,
    dir: PathBuf,
}

impl Language {
    /// Path of a script.
    pub fn script(&self, name: &str) -> PathBuf {
        let path = self.dir.join(name);
        assert!(path.exists(), "{} is missing", path.display());
        path
    }
}

/// TypeScript's SDK, with Node.
pub fn typescript() -> Language {
    let dir = install("ts", "package.json", |dir| {
        // Debian has npm in a package of its own.
        if run(&["npm", "--version"], dir).is_err() {
            run(&["apt-get", "install", "-y", "npm"], dir)?;
        }
        run(&["npm", "install", "--no-audit", "--no-fund", "--no-package-lock", "--loglevel=error"], dir)
    });
    Language { program: "node".into(), dir }
}

/// Python's SDK, with an interpreter that finds it.
pub fn python() -> Language {
    let dir = install("python", PACKAGES, python_packages);
    Language { program: dir.join(PYTHON), dir }
}

/// The example of a plug-in in Python, with what it is generated from the
/// protos with.
pub fn python_example() -> Language {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let dir = install_from(&root.join("deploy/examples/python"), "python-example", PACKAGES, python_packages);
    let protos = root.join("proto").display().to_string();
    let step = [PYTHON, "-m", "grpc_tools.protoc", "-I", &protos, "--python_out=.", "--grpc_python_out=."];
    let files = ["conductor/v1/events.proto", "conductor/v1/options.proto", "conductor/v1/sessions.proto"];
    run(&[&step[..], &files].concat(), &dir).unwrap_or_else(|why| panic!("{why}"));
    Language { program: dir.join(PYTHON), dir }
}

/// An environment of its own, with the packages that its file lists.
fn python_packages(dir: &Path) -> Result<(), String> {
    const WITH_PIP: [&str; 5] = ["python3", "-m", "venv", "--clear", "venv"];
    // Debian has what makes a complete one in a package of its own.
    if let Err(why) = run(&WITH_PIP, dir) {
        let from_outside = run(&["python3", "-m", "venv", "--clear", "--without-pip", "venv"], dir)
            .and_then(|()| run(&["python3", "-m", "pip", "--python", PYTHON, "install", "-r", PACKAGES], dir))
            .or_else(|_| run(&["uv", "pip", "install", "--python", PYTHON, "-r", PACKAGES], dir));
        if from_outside.is_ok() {
            return Ok(());
        }
        run(&["apt-get", "install", "-y", "python3-venv"], dir)
            .and_then(|()| run(&WITH_PIP, dir))
            .map_err(|too| format!("{why}\n{too}"))?;
    }
    run(&[PYTHON, "-m", "pip", "install", "--disable-pip-version-check", "-r", PACKAGES], dir)
}

/// Installs a directory of `tests/peers`.
fn install(language: &str, manifest: &str, packages: impl FnOnce(&Path) -> Result<(), String>) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("peers").join(language);
    install_from(&source, language, manifest, packages)
}

/// Brings a directory to `target/peers` and has its packages installed, once for
/// all tests and until `manifest` changes.
fn install_from(
    source: &Path,
    language: &str,
    manifest: &str,
    packages: impl FnOnce(&Path) -> Result<(), String>,
) -> PathBuf {
    let target = program("conductor").ancestors().nth(2).unwrap().join("peers");
    let dir = target.join(language);
    fs::create_dir_all(&dir).unwrap();
    // Tests run at the same time, in processes of their own.
    let lock = File::create(target.join(format!("{language}.lock"))).unwrap();
    lock.lock().unwrap();
    for file in fs::read_dir(source).unwrap().map(Result::unwrap).filter(|file| file.path().is_file()) {
        // Renamed into place, because another test may be reading the old one.
        let (place, fresh) = (dir.join(file.file_name()), target.join(format!("{language}.new")));
        fs::copy(file.path(), &fresh).unwrap();
        fs::rename(&fresh, &place).unwrap();
    }
    let wanted = fs::read_to_string(source.join(manifest)).unwrap();
    let stamp = dir.join(".installed");
    if fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) {
        return dir;
    }
    if let Err(why) = packages(&dir) {
        panic!(
            "cannot install the packages of {}/{manifest}, which this test needs:\n{why}",
            source.display()
        );
    }
    fs::write(&stamp, wanted).unwrap();
    dir
}

fn run(step: &[&str], dir: &Path) -> Result<(), String> {
    let line = step.join(" ");
    // A relative path of a program would be looked up from here, not from there.
    let program = if step[0] == PYTHON { dir.join(PYTHON) } else { step[0].into() };
    let output = Command::new(program).args(&step[1..]).current_dir(dir).stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("`{line}`: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let words = [output.stdout, output.stderr].concat();
    Err(format!("`{line}` ended with {}:\n{}", output.status, String::from_utf8_lossy(&words)))
}

/// Drives an agent that understands the words of `tests/peers`, with the fake
/// editor, through everything it can do.
pub fn drive_agent(builder: Builder) {
    let service = builder.start();
    let file = service.work().join("note.txt");
    fs::write(&file, "first line\nsecond line\n").unwrap();
    let mut editor = service.editor();
    editor.answer_with(|request| {
        let path = request["params"]["path"].as_str()?;
        (request["method"] == "fs/read_text_file")
            .then(|| json!({ "content": fs::read_to_string(path).unwrap_or_default() }))
    });
    let session = editor.new_session(&service.work());

    let wanted: Vec<_> = (0..50).map(|number| format!("chunk {number}")).collect();
    assert_eq!(editor.turn(&session, "stream 50"), wanted);
    assert_eq!(editor.turn(&session, "grüße 🌍"), ["echo: grüße 🌍"]);
    assert_eq!(editor.turn(&session, &format!("read {}", file.display())), ["first line\nsecond line\n"]);

    for (option, told) in [("yes", "selected yes"), ("no", "selected no")] {
        let before = editor.chunks(&session).len();
        let id = editor.prompt(&session, "ask");
        let request = editor.next_request("session/request_permission");
        assert_eq!(request["params"]["sessionId"], json!(session));
        assert_eq!(request["params"]["options"][0]["kind"], "allow_once");
        editor.answer(&request, &json!({ "outcome": { "outcome": "selected", "optionId": option } }));
        assert_eq!(editor.stop_reason(&id), "end_turn");
        assert_eq!(editor.chunks(&session)[before..], [told]);
    }
    let updates = editor.lines();
    for kind in ["tool_call", "tool_call_update"] {
        let of_kind = updates.iter().filter(|line| line.json["params"]["update"]["sessionUpdate"] == kind);
        assert_eq!(of_kind.count(), 2, "{kind}");
    }

    let before = editor.chunks(&session).len();
    let id = editor.prompt(&session, "wait");
    editor.wait_chunks(&session, before + 1);
    editor.cancel(&session);
    assert_eq!(editor.stop_reason(&id), "cancelled");
    // Cancelled with a permission open: the agent is told so by the conductor.
    let id = editor.prompt(&session, "ask");
    editor.next_request("session/request_permission");
    editor.cancel(&session);
    assert_eq!(editor.stop_reason(&id), "cancelled");

    let other = editor.new_session(&service.work());
    assert_ne!(other, session);
    assert_eq!(editor.turn(&other, "second session"), ["echo: second session"]);
    editor.call("session/close", &json!({ "sessionId": other }));
    assert_eq!(editor.turn(&session, "after all that"), ["echo: after all that"]);
}

/// Runs a client against the demo agent and checks what it saw. It is handed
/// the command of the bridge, then the directory for the session.
pub fn drive_client(language: &Language) {
    let service = demo();
    let output = service
        .beside(&language.program)
        .arg(language.script(if language.dir.ends_with("ts") { "client.mjs" } else { "client.py" }))
        .arg(program("conductor"))
        .arg(service.work())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "the client ended with {}:\n{words}", output.status);
    let report = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| {
        panic!("no report ({error}): {}\n{words}", String::from_utf8_lossy(&output.stdout))
    });
    check_report(&report);
}

/// A service with the demo agent, and another one in the picker.
pub fn demo() -> Service {
    crate::harness::service(&json!({})).demo().set("agents.fake.enabled", true).start()
}

/// What every client must have seen of the demo agent.
pub fn check_report(report: &Value) {
    let chunks: Vec<_> = (1..=5).map(|number| format!("chunk {number} of 5\n")).collect();
    let wanted = json!({
        "protocolVersion": 1,
        // "stream 5", then "ask" with the option that allows once, then "slow 60" cancelled.
        "stream": { "stopReason": "end_turn", "text": chunks.concat() },
        "ask": { "stopReason": "end_turn", "text": "You chose \"yes\", which means allow_once.\n" },
        "offered": ["allow_once", "allow_always", "reject_once", "reject_always"],
        "slow": { "stopReason": "cancelled" },
        // The model after `session/set_config_option`.
        "model": "demo/demo-large",
        // What the user said, as `session/load` told it after `session/close`.
        "replayed": ["stream 5", "ask", "slow 60"],
        "after": { "stopReason": "end_turn", "text": "chunk 1 of 1\n" },
    });
    assert_eq!(*report, wanted, "\nwanted: {wanted:#}\nseen: {report:#}");
}
