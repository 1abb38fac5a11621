//! A real service that signs what it records, and the commands for people.

use std::{
    fs,
    path::Path,
    process::{Output, Stdio},
    time::Duration,
};

use conductor_tests::harness::{Service, poll_until, service};
use serde_json::{Value, json};

const PATIENCE: Duration = Duration::from_secs(60);

/// A service that signs often.
fn signing() -> conductor_tests::harness::Builder {
    service(&json!({})).demo().set("ledger.checkpoint_every", "200ms")
}

fn code(output: &Output) -> Option<i32> {
    output.status.code()
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

fn json_of(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", text(output)))
}

fn log(service: &Service) -> Vec<Value> {
    let text = fs::read_to_string(service.state().join("checkpoints.jsonl")).unwrap_or_default();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Prompts in a directory where agents may work.
pub fn prompt(service: &Service) -> Output {
    service.command(&["prompt", "hello"]).current_dir(service.work()).stdin(Stdio::null()).output().unwrap()
}

/// Prompts, and waits until all that was recorded is signed.
fn prompt_and_sign(service: &Service) {
    let done = prompt(service);
    assert_eq!(code(&done), Some(0), "{}", text(&done));
    wait_signed(service, &[]);
}

/// Waits until all that was recorded is signed.
pub fn wait_signed(service: &Service, args: &[&str]) {
    let verify = [&["ledger", "verify", "--json"], args].concat();
    let signed = poll_until(PATIENCE, || {
        let checked = service.run(&verify);
        // The service may not have made its tables yet.
        if code(&checked) == Some(2) {
            return false;
        }
        let seen = json_of(&checked);
        assert_eq!(seen["ok"], true, "{seen}");
        seen["seen"]["frames"].as_u64() > Some(0) && seen["seen"]["unsigned"] == 0
    });
    assert!(signed, "{}", text(&service.run(&verify)));
}

fn tamper(service: &Service, statement: &'static str) {
    let file = service.state().join("ledger.sqlite");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut connection = conductor_tests::shipping::open_file(&file).await;
        sqlx::raw_sql(statement).execute(&mut connection).await.unwrap();
    });
}

#[test]
fn a_service_signs_what_it_records_through_kills_and_restarts() {
    let mut service = signing().start();
    prompt_and_sign(&service);
    let before = log(&service).len();
    assert!(before >= 2);
    // Killed at any moment between checkpoints.
    prompt(&service);
    service.kill9();
    service.start_again();
    prompt_and_sign(&service);
    assert!(log(&service).len() > before);
    // An orderly stop signs what is left, whatever the time.
    assert!(service.term().success());
    let seen = json_of(&service.run(&["ledger", "verify", "--json"]));
    assert_eq!((&seen["ok"], &seen["seen"]["unsigned"]), (&json!(true), &json!(0)), "{seen}");
    // What is done to the file afterwards is found, and told from what could not be checked.
    tamper(&service, "DROP TRIGGER frames_stay_update; UPDATE frames SET at_us = at_us + 1 WHERE seq = 2");
    let found = service.run(&["ledger", "verify"]);
    assert_eq!(code(&found), Some(1), "{}", text(&found));
    assert!(text(&found).contains("frame 2: swapped, renumbered or altered"), "{}", text(&found));
    let elsewhere = service.run(&["ledger", "verify", "--database-url", "sqlite:/nowhere/ledger"]);
    assert_eq!(code(&elsewhere), Some(2), "{}", text(&elsewhere));
}

#[test]
fn a_new_key_is_signed_by_the_old_one_while_the_service_runs() {
    let service = signing().start();
    prompt_and_sign(&service);
    let old = json_of(&service.run(&["ledger", "key", "--json"]));
    let rotated = service.run(&["ledger", "key", "rotate", "--json"]);
    assert_eq!(code(&rotated), Some(0), "{}", text(&rotated));
    let new = json_of(&rotated);
    assert_ne!(old["key_id"], new["key_id"]);
    prompt_and_sign(&service);
    let last = log(&service).pop().unwrap();
    assert_eq!(last["checkpoint"]["key_id"], new["key_id"]);
    let pem = service.state().join("old.pem");
    fs::write(&pem, old["pem"].as_str().unwrap()).unwrap();
    for key in
        [old["public_key"].as_str().unwrap(), new["public_key"].as_str().unwrap(), pem.to_str().unwrap()]
    {
        let checked = service.run(&["ledger", "verify", "--public-key", key]);
        assert_eq!(code(&checked), Some(0), "{}", text(&checked));
        assert!(text(&checked).contains("the key you named"), "{}", text(&checked));
    }
    let other = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
    let checked = service.run(&["ledger", "verify", "--public-key", other]);
    assert_eq!(code(&checked), Some(1), "{}", text(&checked));
    let shown = text(&service.run(&["ledger", "key"]));
    assert!(shown.contains("BEGIN PUBLIC KEY") && !shown.contains("PRIVATE"), "{shown}");
}

#[test]
fn a_key_that_others_can_read_is_refused_and_recording_goes_on() {
    use std::os::unix::fs::PermissionsExt as _;
    let mut service = signing().start();
    prompt_and_sign(&service);
    assert!(service.term().success());
    let key = service.state().join("checkpoint.key");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
    service.start_again();
    let done = prompt(&service);
    assert_eq!(code(&done), Some(0), "{}", text(&done));
    service.wait_log("is open to other users (mode 0644)");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
    prompt_and_sign(&service);
}

#[test]
fn checkpoints_are_sent_away_in_order_and_again_if_that_fails() {
    let builder = signing();
    let (taken, refuse) = (builder.dir().join("home/taken"), builder.dir().join("home/refuse"));
    let script = format!("test -e '{}' && exit 1; cat >> '{}'", refuse.display(), taken.display());
    fs::write(&refuse, "").unwrap();
    let mut service = builder.set("ledger.checkpoint_command", json!(["/bin/sh", "-c", script])).start();
    prompt_and_sign(&service);
    service.wait_log("a checkpoint was not sent");
    fs::remove_file(&refuse).unwrap();
    prompt_and_sign(&service);
    assert!(service.term().success());
    let own = fs::read_to_string(service.state().join("checkpoints.jsonl")).unwrap();
    assert_eq!(fs::read_to_string(&taken).unwrap(), own, "all of them, once, in order");
    let checked = service.run(&["ledger", "verify", "--checkpoints", taken.to_str().unwrap()]);
    assert_eq!(code(&checked), Some(0), "{}", text(&checked));
}

#[test]
fn an_exported_session_is_checked_without_a_service_or_a_ledger() {
    let service = signing().start();
    prompt_and_sign(&service);
    let key = json_of(&service.run(&["ledger", "key", "--json"]))["public_key"].as_str().unwrap().to_owned();
    let file = service.state().join("session.bundle");
    let verify = |file: &Path, args: &[&str]| {
        let nowhere = service.state().join("nowhere");
        let mut command = service.command(&["ledger", "verify", file.to_str().unwrap()]);
        command.args(args).env("CONDUCTOR_STATE_DIR", nowhere).output().unwrap()
    };
    // Its last frames may be on their way yet; until they are signed, nothing shows them.
    let mut bytes = Vec::new();
    let is_shown = poll_until(PATIENCE, || {
        let exported = service.run(&["sessions", "export", "--format", "bundle", "last"]);
        assert_eq!(code(&exported), Some(0), "{}", text(&exported));
        bytes = exported.stdout;
        fs::write(&file, &bytes).unwrap();
        let checked = verify(&file, &["--public-key", &key]);
        assert!(code(&checked) == Some(0) || text(&checked).contains("NOT YET SHOWN"), "{}", text(&checked));
        code(&checked) == Some(0)
    });
    assert!(is_shown);
    let checked = verify(&file, &["--public-key", &key]);
    assert!(text(&checked).contains("are what was recorded; signed up to frame"), "{}", text(&checked));
    assert_eq!(code(&verify(&file, &[])), Some(2), "without a key nothing can be told");
    // A wrong file is no tampering, and no key would help.
    let other = service.state().join("endpoint");
    for (file, says) in [(&service.state().join("nope"), "cannot read "), (&other, " is no bundle")] {
        let checked = verify(file, &[]);
        assert_eq!(code(&checked), Some(2), "{}", text(&checked));
        let named = text(&checked).contains(file.to_str().unwrap()) && text(&checked).contains(says);
        assert!(named, "{}", text(&checked));
    }
    let at = bytes.len() / 2;
    bytes[at] ^= 1;
    fs::write(&file, bytes).unwrap();
    let checked = verify(&file, &["--public-key", &key]);
    assert_eq!(code(&checked), Some(1), "{}", text(&checked));
}

#[test]
fn a_session_that_is_exported_before_it_is_signed_says_so_and_what_to_do() {
    let mut service = service(&json!({})).demo().set("ledger.checkpoint_every", "1h").start();
    let done = prompt(&service);
    assert_eq!(code(&done), Some(0), "{}", text(&done));
    let file = service.state().join("session.bundle");
    let export = |service: &Service| {
        let exported = service.run(&["sessions", "export", "--format", "bundle", "last"]);
        assert_eq!(code(&exported), Some(0), "{}", text(&exported));
        fs::write(&file, &exported.stdout).unwrap();
    };
    export(&service);
    // An orderly stop makes a checkpoint, whatever the time; the key is made with the first.
    assert!(service.term().success());
    let key = json_of(&service.run(&["ledger", "key", "--json"]))["public_key"].as_str().unwrap().to_owned();
    let verify = || service.run(&["ledger", "verify", file.to_str().unwrap(), "--public-key", &key]);
    let early = verify();
    assert_eq!(code(&early), Some(1), "{}", text(&early));
    for says in ["unsigned: no checkpoint has covered it yet", "export it again after the next one"] {
        assert!(text(&early).contains(says), "{}", text(&early));
    }
    assert!(text(&early).contains("are NOT YET SHOWN to be what was recorded"), "{}", text(&early));
    export(&service);
    let checked = verify();
    assert_eq!(code(&checked), Some(0), "{}", text(&checked));
}
