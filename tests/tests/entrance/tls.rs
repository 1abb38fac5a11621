//! TLS on the listener (rows U5 and U6): what is spoken, what is refused, and
//! certificates that are renewed while people work.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpStream,
    os::unix::fs::PermissionsExt as _,
    process::{Command, Stdio},
    thread,
    time::{Duration, SystemTime},
};

use conductor_tests::{
    certificates::{Authority, Certificate},
    editor::{DEADLINE, Editor},
    harness::{Service, poll_until},
};
use serde_json::json;

use super::{Site, answer, document, has_openssl, refusal, run, text};

fn port(service: &Service) -> String {
    service.endpoint().rsplit(':').next().unwrap().to_owned()
}

fn fingerprint(service: &Service) -> String {
    fs::read_to_string(service.state().join("fingerprint")).unwrap()
}

#[test]
fn everything_works_over_tls() {
    let site = Site::new();
    let service = &site.service;
    assert!(service.endpoint().starts_with("https://127.0.0.1:"), "{}", service.endpoint());
    // The banner follows the endpoint's file, by which a service counts as started.
    let banner = || fs::read_to_string(service.dir.join("serve.out")).unwrap();
    assert!(poll_until(DEADLINE, || banner().contains(&service.endpoint())), "{}", banner());
    // On this host nothing has to be named.
    let (mut editor, session) = service.session();
    assert_eq!(editor.turn(&session, "hello"), ["echo: hello"]);
    let me = document(&mut service.command(&["whoami", "--json"]));
    assert_eq!(
        (&me["proof"], &me["roles"], &me["expires_us"]),
        (&json!("local"), &json!(["admin"]), &json!(null))
    );
    // Elsewhere it is the CA and a token.
    let token = answer(&mut service.command(&["token", "create", "--user", "ann", "--team", "web"]));
    let ann = |args: &[&str]| {
        let mut command = site.elsewhere(args);
        command.env("CONDUCTOR_TOKEN", token.trim());
        command
    };
    let who = document(&mut ann(&["whoami", "--json"]));
    assert_eq!(
        (&who["user"], &who["teams"], &who["proof"]),
        (&json!("ann"), &json!(["web"]), &json!("token"))
    );
    assert_eq!(who["endpoint"], service.endpoint());
    assert!(who["expires_us"].as_i64().is_some(), "{who}");
    let mut editor = Editor::spawn(&mut ann(&["connect"]));
    editor.initialize();
    let session = editor.new_session(&service.work());
    assert_eq!(editor.turn(&session, "from afar"), ["echo: from afar"]);
    assert!(answer(ann(&["prompt", "once"]).arg("--cwd").arg(service.work())).contains("echo: once"));
    // Both versions of TLS, by somebody else's program.
    if has_openssl() {
        for version in ["-tls1_2", "-tls1_3"] {
            let (code, said) =
                s_client(service, &[version, "-CAfile", text(&site.ca.file), "-verify_return_error"]);
            assert!(code == Some(0) && said.contains("ALPN protocol: h2"), "{version}: {said}");
        }
    }
}

#[test]
fn the_cas_of_this_host_are_read_only_where_they_count() {
    let site = Site::new();
    let service = &site.service;
    // Whoever opens this waits for ever: nobody writes to it.
    let trap = service.dir.join("cas");
    nix::unistd::mkfifo(&trap, nix::sys::stat::Mode::S_IRUSR).unwrap();
    let plain = super::service(&json!({})).start();
    for mut command in [plain.command(&["whoami"]), service.command(&["whoami"]), site.elsewhere(&["whoami"])]
    {
        command.env("SSL_CERT_FILE", &trap).env("CONDUCTOR_TOKEN", service.token());
        let mut child =
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let ended = poll_until(DEADLINE, || child.try_wait().unwrap().is_some());
        child.kill().ok();
        child.wait().unwrap();
        assert!(ended, "{command:?} reads the CAs of this host");
    }
    // With no file of CAs named, they do.
    let mut command = site.elsewhere(&["whoami", "--json"]);
    command.env_remove("CONDUCTOR_CA_FILE").env("SSL_CERT_FILE", &site.ca.file);
    assert_eq!(document(command.env("CONDUCTOR_TOKEN", service.token()))["proof"], "local");
}

/// What `openssl s_client` makes of the service.
fn s_client(service: &Service, args: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new("openssl");
    command.args(["s_client", "-connect", &format!("127.0.0.1:{}", port(service)), "-alpn", "h2"]).args(args);
    let output = command.stdin(Stdio::null()).output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8_lossy(&said).into_owned())
}

#[test]
fn u05_nothing_less_is_spoken() {
    let site = Site::new();
    let service = &site.service;
    let plain = format!("http://127.0.0.1:{}", port(service));
    let told = refusal(&mut service.command(&["agents", "--endpoint", &plain]));
    assert!(told.contains("speaks TLS") && told.contains("https://"), "{told}");
    let mut stream = TcpStream::connect(("127.0.0.1", port(service).parse().unwrap())).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").unwrap();
    let mut said = Vec::new();
    stream.read_to_end(&mut said).ok();
    assert!(said.len() < 16 && !said.starts_with(b"\0"), "an alert at most: {said:?}");
    if has_openssl() {
        for weak in [
            &["-tls1_1", "-cipher", "ALL:@SECLEVEL=0"][..],
            &["-tls1", "-cipher", "ALL:@SECLEVEL=0"],
            &["-tls1_2", "-cipher", "NULL:@SECLEVEL=0"],
            &["-tls1_2", "-cipher", "AES128-SHA:@SECLEVEL=0"],
            &["-alpn", "http/1.1"],
        ] {
            let (code, said) = s_client(service, weak);
            assert!(code != Some(0) && !said.contains("ALPN protocol: h2"), "{weak:?}: {said}");
        }
    }
    let (mut editor, session) = service.session();
    assert_eq!(editor.turn(&session, "all the same"), ["echo: all the same"]);
}

#[test]
fn u06_beyond_loopback_only_with_tls() {
    let site = Site::new();
    let service = &site.service;
    let config = service.dir.join("other.toml");
    let serve = |listen: &str| {
        let mut command = service.command(&["serve", "--listen", listen, "--config", text(&config)]);
        command.env("CONDUCTOR_STATE_DIR", service.dir.join("other-state"));
        command
    };
    fs::write(&config, "").unwrap();
    for listen in ["0.0.0.0:0", "[::]:0", "192.0.2.1:0"] {
        let output = run(&mut serve(listen));
        let told = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{told}");
        assert!(told.contains("[service.tls]") && told.contains("ssh -L"), "cause and remedy: {told}");
    }
    assert!(!service.dir.join("other-state").exists(), "nothing is left behind");
    let (cert, key) = (text(&site.pair.cert), text(&site.pair.key));
    let tls = format!("[service.tls]\ncert = {cert:?}\nkey = {key:?}\n[agents.demo]\nwarm = 0\n");
    fs::write(&config, &tls).unwrap();
    let mut child = serve("0.0.0.0:0").stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let endpoint = service.dir.join("other-state/endpoint");
    let ready = poll_until(DEADLINE, || endpoint.exists());
    let found = fs::read_to_string(&endpoint).unwrap_or_default();
    let me = ready.then(|| {
        let mut command = service.command(&["whoami", "--json"]);
        document(command.env("CONDUCTOR_STATE_DIR", service.dir.join("other-state")))
    });
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(found.starts_with("https://127.0.0.1:"), "{found}");
    assert_eq!(me.unwrap()["proof"], "local");
    // A pair that cannot be used is no reason to do without.
    for (text, words) in [
        (tls.replace(key, "/nowhere"), "/nowhere"),
        (tls.replace(key, cert), "private key"),
        (tls.replace(&format!("key = {key:?}\n"), ""), "both"),
    ] {
        fs::write(&config, text).unwrap();
        let output = run(&mut serve("127.0.0.1:0"));
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && told.contains(words), "{told}");
    }
    fs::write(&config, &tls).unwrap();
    fs::set_permissions(&site.pair.key, fs::Permissions::from_mode(0o604)).unwrap();
    let output = run(&mut serve("127.0.0.1:0"));
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && told.contains("chmod 600"), "{told}");
    fs::set_permissions(&site.pair.key, fs::Permissions::from_mode(0o600)).unwrap();
    let expired =
        site.ca.sign("old", &Certificate::server().until(SystemTime::now() - Duration::from_secs(60)));
    fs::write(&config, tls.replace(cert, text(&expired.cert)).replace(key, text(&expired.key))).unwrap();
    let output = run(&mut serve("127.0.0.1:0"));
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && told.contains("renew it"), "{told}");
    let other = site.ca.sign("other", &Certificate::server());
    fs::write(&config, tls.replace(key, text(&other.key))).unwrap();
    let output = run(&mut serve("127.0.0.1:0"));
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && told.contains("does not belong"), "{told}");
}

#[test]
fn a_certificate_is_renewed_while_people_work() {
    let site = Site::new();
    let service = &site.service;
    let (mut editor, session) = service.session();
    let first = fingerprint(service);
    // Renewed in place: nobody says anything to the service.
    site.ca.sign_into(&site.pair, &Certificate::server());
    assert!(poll_until(DEADLINE, || fingerprint(service) != first), "{}", service.log());
    let second = fingerprint(service);
    assert_eq!(editor.turn(&session, "still here"), ["echo: still here"]);
    assert!(run(&mut service.command(&["agents"])).status.success());
    // A bad pair changes nothing, and says so.
    fs::write(&site.pair.cert, "no certificate").unwrap();
    service.wait_log("the certificate was not reloaded; the old one stays in use");
    assert_eq!(editor.turn(&session, "in spite of it"), ["echo: in spite of it"]);
    assert_eq!(fingerprint(service), second);
    assert!(run(&mut service.command(&["agents"])).status.success());
    // A reload takes up new files, too, and tells of bad ones.
    service.reload();
    let twice = || service.log().matches("the certificate was not reloaded").count() >= 2;
    assert!(poll_until(DEADLINE, twice), "{}", service.log());
    site.ca.sign_into(&site.pair, &Certificate::server());
    service.reload();
    assert!(poll_until(DEADLINE, || fingerprint(service) != second), "{}", service.log());
    let (mut other, another) = service.session();
    assert_eq!(other.turn(&another, "new"), ["echo: new"]);
    assert_eq!(editor.turn(&session, "and old"), ["echo: and old"]);
}

#[test]
fn each_failure_is_told_in_words() {
    let site = Site::new();
    let service = &site.service;
    let stranger = Authority::new(&service.dir, "stranger");
    let token = service.token();
    let ask = |endpoint: &str, ca: Option<&Authority>| {
        let mut command = service.command(&["agents", "--endpoint", endpoint]);
        command.env("CONDUCTOR_STATE_DIR", service.dir.join("elsewhere")).env("CONDUCTOR_TOKEN", &token);
        if let Some(ca) = ca {
            command.env("CONDUCTOR_CA_FILE", &ca.file);
        }
        let told = refusal(&mut command);
        assert!(!told.contains(&token), "{told}");
        told
    };
    let here = service.endpoint();
    for ca in [None, Some(&stranger)] {
        let told = ask(&here, ca);
        assert!(told.contains("a CA that is not trusted") && told.contains("--ca-file"), "{told}");
    }
    let nobody = ask("https://127.0.0.1:1", Some(&site.ca));
    assert!(nobody.contains("no conductor answers"), "{nobody}");
    let open = ask("http://192.0.2.1:7420", None);
    assert!(open.contains("nothing would protect the token"), "{open}");
    let plain = super::service(&json!({})).start();
    let told = ask(&plain.endpoint().replace("http://", "https://"), Some(&site.ca));
    assert!(told.contains("does not speak TLS") && told.contains("http://"), "{told}");
    // The service goes through certificates that are wrong for it.
    let until = SystemTime::now() + Duration::from_secs(6);
    for (certificate, words) in [
        (Certificate::server_of("team.example"), "for another name"),
        (Certificate::person("ann").email("ann@a.example"), "not for servers"),
        (Certificate::server().until(until), "whose time is over"),
    ] {
        let before = fingerprint(service);
        site.ca.sign_into(&site.pair, &certificate);
        service.reload();
        assert!(poll_until(DEADLINE, || fingerprint(service) != before), "{}", service.log());
        if words == "whose time is over" {
            let over = || SystemTime::now() > until + Duration::from_secs(1);
            assert!(poll_until(Duration::from_secs(20), over));
        }
        let told = ask(&here, Some(&site.ca));
        assert!(told.contains(words), "{told}");
    }
}

#[test]
fn silent_peers_lock_nobody_out() {
    let site = Site::with(|builder, _| builder.set("service.max_connections", 3));
    let service = &site.service;
    let port: u16 = port(service).parse().unwrap();
    let silent = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let mut begun = TcpStream::connect(("127.0.0.1", port)).unwrap();
    begun.write_all(b"\x16\x03\x01\x02\x00\x01").unwrap();
    // One byte now and then does not buy time.
    let mut slow = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let slow_reader = slow.try_clone().unwrap();
    let dripping = thread::spawn(move || {
        for byte in b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".iter().cycle() {
            if slow.write_all(&[*byte]).is_err() {
                return;
            }
            thread::sleep(Duration::from_millis(200));
        }
    });
    let (mut editor, session) = service.session();
    for mut stream in [silent, begun, slow_reader] {
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        // Whether it ends or is reset does not matter.
        let mut rest = Vec::new();
        if let Err(error) = stream.read_to_end(&mut rest) {
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}");
        }
    }
    dripping.join().unwrap();
    assert_eq!(editor.turn(&session, "in spite of all"), ["echo: in spite of all"]);
}

#[test]
fn the_doctor_looks_at_the_pair() {
    let site = Site::new();
    let service = &site.service;
    let look = || {
        let config = service.dir.join("agents.toml");
        let output = run(&mut service.command(&["doctor", "--json", "--config", text(&config)]));
        let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let checks = document["checks"].as_array().unwrap().clone();
        checks.into_iter().find(|check| check["group"] == "access" && check["name"] == "tls").unwrap()
    };
    let fine = look();
    assert_eq!(fine["status"], "ok", "{fine}");
    let soon = SystemTime::now() + Duration::from_secs(86_400);
    site.ca.sign_into(&site.pair, &Certificate::server().until(soon));
    let ending = look();
    assert_eq!(ending["status"], "info", "{ending}");
    assert!(ending["remedy"].as_str().unwrap().contains("renew"), "{ending}");
    fs::set_permissions(&site.pair.key, fs::Permissions::from_mode(0o644)).unwrap();
    let shared = look();
    assert_eq!(shared["status"], "broken", "{shared}");
    assert!(shared["remedy"].as_str().unwrap().contains("chmod 600"), "{shared}");
    let plain = super::service(&json!({})).start();
    assert!(!answer(&mut plain.command(&["whoami"])).contains("https://"));
}
