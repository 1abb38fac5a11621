//! `conductor login`, `logout` and `whoami`, over TLS: a token is given once and
//! used by every command from then on.

use std::{
    fs,
    io::{ErrorKind, Write as _},
    net::TcpListener,
    os::unix::fs::MetadataExt as _,
    process::{Command, Output, Stdio},
};

use conductor_tests::{certificates::Certificate, editor::Editor, harness::service, people::Person};
use serde_json::{Value, json};

use super::{Site, answer, document, refusal, run, text};

/// Somebody's laptop: a home and a state directory of its own, and no variables.
fn laptop(site: &Site, args: &[&str]) -> Command {
    let mut command = site.service.command(args);
    command.env("CONDUCTOR_STATE_DIR", site.service.dir.join("laptop"));
    command
}

/// Logs in with what stdin gives.
fn login(site: &Site, args: &[&str], stdin: &str) -> Output {
    let endpoint = site.service.endpoint();
    let mut command = laptop(site, &["login", "--endpoint", &endpoint]);
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(stdin.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&[output.stdout.as_slice(), &output.stderr].concat()).into_owned()
}

#[test]
fn a_login_is_used_by_every_command() {
    let site = Site::new();
    let service = &site.service;
    let ann = Person::new(service, &["--user", "ann", "--team", "web"]);
    let ca = ["--ca-file", text(&site.ca.file)];
    let kept = service.dir.join("laptop/logins.json");
    // What the service does not take is not kept.
    for (given, words) in
        [("", "no token was given"), ("short", "copy the token again"), (&*"x".repeat(40), "refused")]
    {
        let refused = login(&site, &ca, given);
        assert_eq!(refused.status.code(), Some(1), "{refused:?}");
        assert!(said(&refused).contains(words), "{refused:?}");
        assert!(given.len() < 6 || !said(&refused).contains(given), "{refused:?}");
    }
    let refused = login(&site, &[], &ann.token);
    assert!(said(&refused).contains("--ca-file"), "{refused:?}");
    assert!(!kept.exists());

    let done = login(&site, &[&ca[..], &["--json"]].concat(), &format!("{}\n", ann.token));
    assert!(done.status.success(), "{done:?}");
    let shown: Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!((&shown["user"], &shown["endpoint"]), (&json!("ann"), &json!(service.endpoint())));
    assert!(!said(&done).contains(&ann.token), "{done:?}");
    assert_eq!(fs::metadata(&kept).unwrap().mode() & 0o7777, 0o600);
    // From here on nothing has to be named.
    let who = document(&mut laptop(&site, &["whoami", "--json"]));
    assert_eq!(
        (&who["user"], &who["teams"], &who["proof"]),
        (&json!("ann"), &json!(["web"]), &json!("token"))
    );
    assert_eq!(who["proof_detail"], ann.id);
    let table = answer(&mut laptop(&site, &["whoami"]));
    assert!(table.contains("user      ann\n") && table.contains(&service.endpoint()), "{table}");
    let mut editor = Editor::spawn(&mut laptop(&site, &["connect"]));
    editor.initialize();
    let session = editor.new_session(&service.work());
    assert_eq!(editor.turn(&session, "hello"), ["echo: hello"]);
    let sessions = document(&mut laptop(&site, &["sessions", "ls", "--json"]));
    assert_eq!(sessions.as_array().unwrap().len(), 1, "{sessions}");
    let looked: Value =
        serde_json::from_slice(&run(&mut laptop(&site, &["doctor", "--json"])).stdout).unwrap();
    let service_check = looked["checks"].as_array().unwrap().iter().find(|check| check["group"] == "service");
    assert_eq!(service_check.unwrap()["data"]["endpoint"], service.endpoint());
    for running in service.processes() {
        assert!(!running.command.contains(&ann.token), "{running:?}");
    }
    // A variable goes before it.
    let bob = Person::named(service, "bob");
    let who = document(laptop(&site, &["whoami", "--json"]).env("CONDUCTOR_TOKEN", &bob.token));
    assert_eq!(who["user"], "bob");
    // A token that is taken back is told as such.
    assert!(run(&mut service.command(&["token", "revoke", &ann.id])).status.success());
    let told = refusal(&mut laptop(&site, &["whoami"]));
    assert!(told.contains("refused the token") && told.contains("conductor login"), "{told}");

    let out = document(&mut laptop(&site, &["logout", "--json"]));
    assert_eq!((&out["endpoint"], &out["logged_in"]), (&json!(service.endpoint()), &json!(false)));
    assert!(!fs::read_to_string(&kept).unwrap().contains(&ann.token));
    let told = refusal(&mut laptop(&site, &["logout"]));
    assert!(told.contains("not logged in"), "{told}");
    assert!(!run(&mut laptop(&site, &["whoami"])).status.success());
}

#[test]
fn a_certificate_is_a_login_too() {
    let site = Site::with(|builder, ca| {
        builder
            .set("service.tls.client_ca", ca.file.to_str().unwrap())
            .set("service.tls.client_auth", "required")
            .set("identity.certificates.users", json!({ "ann@a.example": { "user": "ann" } }))
    });
    let pair = site.ca.sign("ann", &Certificate::person("Ann").email("ann@a.example"));
    let ca = ["--ca-file", text(&site.ca.file)];
    let done = login(&site, &[&ca[..], &pair.flags()].concat(), "\n");
    assert!(done.status.success(), "{done:?}");
    let who = document(&mut laptop(&site, &["whoami", "--json"]));
    assert_eq!((&who["user"], &who["proof"]), (&json!("ann"), &json!("certificate")));
    let mut editor = Editor::spawn(&mut laptop(&site, &["connect"]));
    editor.initialize();
}

#[test]
fn what_is_kept_is_not_used_once_others_may_have_seen_it() {
    let site = Site::new();
    let ann = Person::named(&site.service, "ann");
    let done = login(&site, &["--ca-file", text(&site.ca.file)], &ann.token);
    assert!(done.status.success(), "{done:?}");
    let kept = site.service.dir.join("laptop/logins.json");
    fs::set_permissions(&kept, std::os::unix::fs::PermissionsExt::from_mode(0o644)).unwrap();
    let told = refusal(&mut laptop(&site, &["whoami"]));
    assert!(told.contains("open to other users") && told.contains("log in again"), "{told}");
}

#[test]
fn the_token_of_this_host_is_told_to_nobody_who_took_the_port() {
    let mut service = service(&json!({})).start();
    let endpoint = service.endpoint();
    let address = endpoint.strip_prefix("http://").unwrap().to_owned();
    assert!(run(&mut service.command(&["agents"])).status.success());
    service.kill9();
    assert_eq!(service.endpoint(), endpoint, "it was left behind");
    // Somebody else listens there now.
    let thief = TcpListener::bind(&address).unwrap();
    thief.set_nonblocking(true).unwrap();
    for args in [&["agents"][..], &["agents", "--endpoint", &endpoint], &["whoami"]] {
        let told = refusal(&mut service.command(args));
        assert!(told.contains("no conductor is running with the state directory"), "{told}");
        assert!(told.contains("its token is told to nobody else"), "{told}");
        let came = thief.accept().map(drop).unwrap_err();
        assert_eq!(came.kind(), ErrorKind::WouldBlock, "nobody comes: {came}");
    }
    let doctor = run(&mut service.command(&["doctor", "--json"]));
    assert!(!String::from_utf8_lossy(&doctor.stdout).contains(&service.token()));
    thief.accept().map(drop).unwrap_err();
    // The next service is found as ever.
    drop(thief);
    service.start_again();
    assert!(run(&mut service.command(&["agents"])).status.success());
}
