//! Tokens of an OIDC issuer (rows U1, U3 and U4): which are good, until when,
//! and what becomes of them when the issuer is down, changes its keys or talks
//! nonsense.

use std::{fs, process::Command, time::Duration};

use conductor::{
    identity::Caller,
    proto::{ConnectRequest, connect_request},
};
use conductor_tests::{
    certificates::{Authority, Certificate},
    editor::DEADLINE,
    harness::{Service, poll_until, service},
    issuer::{Issuer, Mood, Signer, now, part},
    people::Person,
    tunnel::{Tunnel, hello},
};
use serde_json::{Value, json};
use tonic::Code;

use super::{document, refusal, run, text};

/// How long keys may take to be fetched again after an unknown one was named.
const SOON: Duration = Duration::from_secs(20);

fn start(issuer: &Issuer, more: &Value) -> Service {
    let mut config = issuer.config();
    for (key, value) in more.as_object().unwrap() {
        config[key] = value.clone();
    }
    // Bad tokens come here more often than anybody would put up with elsewhere.
    let service = service(&json!({}))
        .set("identity.oidc", config)
        .set("service.bad_tokens_per_minute", 100_000)
        .env("RUST_LOG", "info,conductor=debug")
        .start();
    service.wait_log("the issuer's keys are known");
    service
}

fn with(service: &Service, token: &str, args: &[&str]) -> Command {
    let mut command = service.command(args);
    command.env("CONDUCTOR_TOKEN", token);
    command
}

fn who(service: &Service, token: &str) -> Value {
    document(&mut with(service, token, &["whoami", "--json"]))
}

fn is_let_in(service: &Service, token: &str) -> bool {
    run(&mut with(service, token, &["whoami"])).status.success()
}

#[test]
fn an_issuer_says_who_somebody_is() {
    for signer in [Some(Signer::ec()), Some(Signer::ed()), Signer::rsa()].into_iter().flatten() {
        let issuer = Issuer::start(signer);
        let service = start(
            &issuer,
            &json!({
                "user_claim": "email", "team_claim": "groups", "role_claim": "realm_access.roles",
                "roles": { "conductor-admins": "admin" }, "require": { "hd": "a.example" },
            }),
        );
        let mut claims = issuer.claims("17", 600);
        claims["email"] = json!("ann@a.example");
        claims["hd"] = json!("a.example");
        claims["groups"] = json!(["web", "core"]);
        claims["aud"] = json!(["other", "conductor"]);
        let sign = |claims: &Value| issuer.sign(&issuer.header(), claims);
        let ann = who(&service, &sign(&claims));
        assert_eq!((&ann["user"], &ann["teams"]), (&json!("ann@a.example"), &json!(["core", "web"])));
        assert_eq!((&ann["roles"], &ann["proof"]), (&json!(["developer"]), &json!("oidc")));
        assert_eq!(ann["proof_detail"], issuer.url);
        assert_eq!(ann["expires_us"], claims["exp"].as_i64().unwrap() * 1_000_000);
        claims["realm_access"] = json!({ "roles": ["x", "conductor-admins"] });
        assert_eq!(who(&service, &sign(&claims))["roles"], json!(["admin"]));
        claims["hd"] = json!("b.example");
        assert!(!is_let_in(&service, &sign(&claims)));
        // Others come in as before.
        assert!(run(&mut service.command(&["whoami"])).status.success());
        let bob = Person::named(&service, "bob");
        assert_eq!(who(&service, &bob.token)["proof"], "token");
    }
}

#[test]
fn u01_a_token_that_is_not_good_lets_nobody_in() {
    let issuer = Issuer::start(Signer::rsa().unwrap_or_else(Signer::ec));
    let service = start(&issuer, &json!({}));
    let good = issuer.claims("ann", 600);
    assert_eq!(who(&service, &issuer.token("ann", 600))["user"], "ann");
    let claimed = |name: &str, value: Value| {
        let mut claims = good.clone();
        claims[name] = value;
        issuer.sign(&issuer.header(), &claims)
    };
    let without = |name: &str| {
        let mut claims = good.clone();
        claims.as_object_mut().unwrap().remove(name);
        issuer.sign(&issuer.header(), &claims)
    };
    let headed = |name: &str, value: Value| {
        let mut header = issuer.header();
        header[name] = value;
        issuer.sign(&header, &good)
    };
    let whole = issuer.token("ann", 600);
    let (signed, _) = whole.rsplit_once('.').unwrap();
    let stranger = Issuer::start(Signer::ec());
    let none = json!({ "alg": "none", "kid": "first" });
    let tampered = {
        let mut parts = whole.split('.');
        let (header, signature) = (parts.next().unwrap(), parts.nth(1).unwrap());
        let mut admin = good.clone();
        admin["sub"] = json!("root");
        format!("{header}.{}.{signature}", part(&admin))
    };
    let bad = [
        ("expired", claimed("exp", json!(now() - 60))),
        ("not yet valid", claimed("nbf", json!(now() + 60))),
        ("made in the future", claimed("iat", json!(now() + 60))),
        ("another audience", claimed("aud", json!("other"))),
        ("an audience of another type", claimed("aud", json!({ "conductor": true }))),
        ("no audience", without("aud")),
        ("another issuer", claimed("iss", json!("https://evil.example"))),
        ("no issuer", without("iss")),
        ("no end", without("exp")),
        ("an end as text", claimed("exp", json!((now() + 600).to_string()))),
        ("a user as number", claimed("sub", json!(7))),
        ("no user", without("sub")),
        ("a user that clears the screen", claimed("sub", json!("\u{1b}[2J"))),
        ("no signature", format!("{signed}.")),
        ("alg none", format!("{}.{}.", part(&none), part(&good))),
        ("alg none with a signature", headed("alg", json!("none"))),
        ("the public key as secret", issuer.sign_with_public_key(&good)),
        ("another algorithm", headed("alg", json!("PS256"))),
        ("somebody else's signature", stranger.sign(&issuer.header(), &good)),
        ("changed claims", tampered),
        ("a path as kid", headed("kid", json!("../../../../etc/passwd"))),
        ("an address as kid", headed("kid", json!(format!("{}/keys", stranger.url)))),
        ("no kid", headed("kid", Value::Null)),
        ("a long kid", headed("kid", json!("k".repeat(2000)))),
        ("critical extensions", headed("crit", json!(["b64"]))),
        ("another type", headed("typ", json!("logout+jwt"))),
        ("a huge one", claimed("x", json!("x".repeat(9000)))),
        ("dots", ".".repeat(40)),
        ("nothing but parts", format!("{}.{}.{}", "a".repeat(20), "b".repeat(20), "c".repeat(20))),
    ];
    for (what, token) in &bad {
        let told = refusal(&mut with(&service, token, &["whoami"]));
        assert!(told.contains("refused the token"), "{what}: {told}");
        // Why not is nobody's business but the log's.
        assert!(
            !told.contains("signature") && !told.contains("audience") && !told.contains(token),
            "{what}: {told}"
        );
    }
    let log = service.log();
    for reason in ["expired", "another audience", "another algorithm", "too long", "not the issuer's"] {
        assert!(log.contains(reason), "the log does not say {reason:?}");
    }
    for (what, token) in bad.iter().filter(|(_, token)| token.len() > 60) {
        assert!(!log.contains(&token[token.len() - 40..]), "{what} stands in the log");
    }
    assert_eq!(stranger.asked(), 0, "nobody is asked for keys but the issuer");
    assert_eq!(who(&service, &whole)["user"], "ann");
}

#[test]
fn u03_a_stream_ends_with_its_token() {
    let issuer = Issuer::start(Signer::ec());
    let service = start(&issuer, &json!({}));
    let person = |seconds| Person { token: issuer.token("ann", seconds), id: String::new() };
    let open = |person: &Person| {
        let first = ConnectRequest { kind: Some(connect_request::Kind::Hello(hello())) };
        let mut tunnel = Tunnel::open_with(&service, person.metadata(), Some(first));
        tunnel.next_message().expect("a welcome");
        tunnel
    };
    let (mut brief, mut lasting) = (open(&person(3)), open(&person(600)));
    let end = brief.next_within(Duration::from_secs(60)).unwrap_err();
    assert_eq!(end.code(), Code::Unauthenticated, "{end:?}");
    lasting.send_frame(r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":1}}"#);
    assert_eq!(lasting.next_frames()[0]["id"], 0);
}

#[test]
fn u03_a_stream_ends_with_what_the_configuration_says_of_its_issuer() {
    for (key, value) in [
        ("identity.oidc.audience", json!("another")),
        ("identity.oidc.issuer", json!("https://login.a.example")),
        ("identity.oidc", json!({})),
    ] {
        let issuer = Issuer::start(Signer::ec());
        let mut service = start(&issuer, &json!({}));
        let ann = Person { token: issuer.token("ann", 600), id: String::new() };
        let first = ConnectRequest { kind: Some(connect_request::Kind::Hello(hello())) };
        let mut tunnel = Tunnel::open_with(&service, ann.metadata(), Some(first));
        tunnel.next_message().expect("a welcome");
        service.configure(key, value);
        service.reload();
        let end = tunnel.next_within(Duration::from_secs(60)).unwrap_err();
        assert_eq!(end.code(), Code::Unauthenticated, "{key}: {end:?}");
        assert!(!is_let_in(&service, &ann.token), "{key}");
    }
}

#[test]
fn an_issuer_has_no_say_over_the_user_the_service_runs_as() {
    let issuer = Issuer::start(Signer::ec());
    let service = start(&issuer, &json!({}));
    let me = Caller::local().user;
    let told = refusal(&mut with(&service, &issuer.token(&me, 600), &["whoami"]));
    assert!(told.contains("refused the token"), "{told}");
    assert!(service.log().contains("the name of the user the service runs as"), "{}", service.log());
    assert_eq!(who(&service, &issuer.token("ann", 600))["user"], "ann");
    assert_eq!(document(&mut service.command(&["whoami", "--json"]))["user"], json!(me));
}

#[test]
fn u04_an_issuer_without_keys_lets_in_nobody() {
    let mut issuer = Issuer::start(Signer::ec());
    let builder = service(&json!({}));
    let file = builder.dir().join("jwks.json");
    fs::write(&file, issuer.keys()).unwrap();
    let mut config = issuer.config();
    config["jwks_file"] = json!(file);
    let service = builder.set("identity.oidc", config).start();
    service.wait_log("the issuer's keys are known");
    let token = issuer.token("ann", 600);
    assert!(is_let_in(&service, &token));
    fs::write(&file, r#"{"keys":[]}"#).unwrap();
    service.wait_log("its tokens let in nobody until it has");
    assert!(!is_let_in(&service, &token), "the last key was taken out");
    let output = run(service.command(&["doctor", "--json", "--config"]).arg(service.dir.join("agents.toml")));
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(told.contains("has no keys that tokens could be signed with"), "{told}");
    issuer.rotate("second", Signer::ed());
    fs::write(&file, issuer.keys()).unwrap();
    assert!(poll_until(DEADLINE, || is_let_in(&service, &issuer.token("ann", 600))));
}

#[test]
fn u04_new_keys_are_found_and_strangers_cannot_have_them_fetched_at_will() {
    let mut issuer = Issuer::start(Signer::ec());
    let service = start(&issuer, &json!({}));
    let old = issuer.token("ann", 600);
    assert!(is_let_in(&service, &old));
    issuer.rotate("second", Signer::ed());
    let new = issuer.token("ann", 600);
    assert!(poll_until(SOON, || is_let_in(&service, &new)), "{}", service.log());
    assert!(!is_let_in(&service, &old), "a key that was withdrawn is good for nothing");
    // A hundred unknown keys are one question, of two documents.
    let before = issuer.asked();
    for number in 0..100 {
        let mut header = issuer.header();
        header["kid"] = json!(format!("unknown-{number}"));
        let token = issuer.sign(&header, &issuer.claims("eve", 600));
        let person = Person { token, id: String::new() };
        let mut tunnel = Tunnel::open_with(&service, person.metadata(), None);
        assert_eq!(tunnel.next_message().unwrap_err().code(), Code::Unauthenticated);
    }
    assert!(issuer.asked() - before <= 8, "asked {} times", issuer.asked() - before);
}

#[test]
fn u04_keys_of_an_issuer_that_is_down_are_used_until_they_are_too_old() {
    for mood in [Mood::Down, Mood::Garbage, Mood::Endless] {
        let issuer = Issuer::start(Signer::ec());
        let service = start(&issuer, &json!({ "keys_max_age": "6s" }));
        let token = issuer.token("ann", 600);
        issuer.be(mood);
        service.wait_log("the issuer's keys cannot be fetched");
        assert!(is_let_in(&service, &token), "{mood:?}");
        assert!(poll_until(SOON, || !is_let_in(&service, &token)), "{mood:?}: still open");
        assert!(service.log().contains("too old"), "{mood:?}");
        issuer.be(Mood::Well);
        assert!(poll_until(SOON, || is_let_in(&service, &token)), "{mood:?}: {}", service.log());
    }
}

#[test]
fn an_issuer_is_reached_by_tls_and_only_if_it_is_trusted() {
    let dir = tempfile::tempdir().unwrap();
    let (ca, stranger) = (Authority::new(dir.path(), "ca"), Authority::new(dir.path(), "stranger"));
    let issuer = Issuer::start_tls(Signer::ec(), &ca.sign("issuer", &Certificate::server()));
    let mut config = issuer.config();
    config["ca_file"] = json!(stranger.file);
    let mut service = service(&json!({})).set("identity.oidc", config).start();
    service.wait_log("the issuer's keys cannot be fetched");
    let token = issuer.token("ann", 600);
    assert!(!is_let_in(&service, &token));
    // The new CA counts from the reload on.
    service.configure("identity.oidc.ca_file", text(&ca.file));
    service.reload();
    service.wait_log("the issuer's keys are known");
    assert_eq!(who(&service, &token)["user"], "ann");
    // And without an issuer nobody is let in by one.
    service.configure("identity.oidc", json!({}));
    service.reload();
    assert!(poll_until(DEADLINE, || !is_let_in(&service, &token)), "{}", service.log());
}

#[test]
fn keys_may_stand_in_a_file() {
    let mut issuer = Issuer::start(Signer::ec());
    let builder = service(&json!({}));
    let file = builder.dir().join("jwks.json");
    fs::write(&file, issuer.keys()).unwrap();
    let mut config = issuer.config();
    config["issuer"] = json!("https://login.a.example");
    config["jwks_file"] = json!(file);
    let service = builder.set("identity.oidc", config).start();
    service.wait_log("the issuer's keys are known");
    let token = |issuer: &Issuer| {
        let mut claims = issuer.claims("ann", 600);
        claims["iss"] = json!("https://login.a.example");
        issuer.sign(&issuer.header(), &claims)
    };
    let old = token(&issuer);
    assert!(is_let_in(&service, &old));
    fs::write(&file, "{").unwrap();
    service.wait_log("the issuer's keys were not read");
    assert!(is_let_in(&service, &old));
    issuer.rotate("second", Signer::ed());
    fs::write(&file, issuer.keys()).unwrap();
    assert!(poll_until(DEADLINE, || is_let_in(&service, &token(&issuer))));
    assert!(!is_let_in(&service, &old));
    assert_eq!(issuer.asked(), 0);
}

#[test]
fn the_doctor_asks_the_issuer() {
    let issuer = Issuer::start(Signer::ec());
    let service = start(&issuer, &json!({}));
    let look = || {
        let config = service.dir.join("agents.toml");
        let output = run(service.command(&["doctor", "--json", "--config"]).arg(config));
        let document: Value = serde_json::from_slice(&output.stdout).unwrap();
        let checks = document["checks"].as_array().unwrap().clone();
        checks.into_iter().find(|check| check["group"] == "access" && check["name"] == "oidc").unwrap()
    };
    let fine = look();
    assert_eq!(fine["status"], "ok", "{fine}");
    assert!(fine["detail"].as_str().unwrap().contains("1 keys"), "{fine}");
    issuer.be(Mood::Garbage);
    let broken = look();
    assert_eq!(broken["status"], "broken", "{broken}");
    assert!(broken["remedy"].as_str().unwrap().contains("jwks_file"), "{broken}");
}
