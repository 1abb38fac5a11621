//! People by their certificates (rows U2 and U3): who is let in without a token,
//! who is not, and until when.

use std::{
    fs,
    process::Command,
    time::{Duration, SystemTime},
};

use conductor::identity::Caller;

use conductor_tests::{
    certificates::{Authority, Certificate, Pair},
    editor::Editor,
    harness::poll_until,
    people::Person,
};
use serde_json::json;

use super::{Site, answer, document, refusal};

const ANN: &str = "ann@a.example";

/// A service that knows Ann by her certificate, of the same CA as its own.
fn site(auth: &str) -> Site {
    let auth = auth.to_owned();
    Site::with(move |builder, ca| {
        builder
            .set("service.tls.client_ca", ca.file.to_str().unwrap())
            .set("service.tls.client_auth", auth)
            .set("identity.certificates.users", json!({ ANN: { "user": "ann", "teams": ["web"] } }))
    })
}

fn ann(site: &Site) -> Pair {
    site.ca.sign("ann", &Certificate::person("Ann").email(ANN))
}

/// Somebody elsewhere who presents a certificate and no token.
fn with(site: &Site, pair: &Pair, args: &[&str]) -> Command {
    let mut command = site.elsewhere(args);
    command.args(pair.flags());
    command
}

#[test]
fn a_certificate_lets_its_bearer_in() {
    let site = site("required");
    let pair = ann(&site);
    let who = document(&mut with(&site, &pair, &["whoami", "--json"]));
    assert_eq!((&who["user"], &who["teams"]), (&json!("ann"), &json!(["web"])));
    assert_eq!((&who["roles"], &who["proof"]), (&json!(["developer"]), &json!("certificate")));
    assert_eq!(who["proof_detail"], ANN);
    let mut editor = Editor::spawn(&mut with(&site, &pair, &["connect"]));
    editor.initialize();
    let session = editor.new_session(&site.service.work());
    assert_eq!(editor.turn(&session, "hello"), ["echo: hello"]);
    let sessions = document(&mut with(&site, &pair, &["sessions", "ls", "--json"]));
    assert_eq!(sessions.as_array().unwrap().len(), 1, "{sessions}");
    let told = refusal(&mut with(&site, &pair, &["token", "ls"]));
    assert!(told.contains("administrators"), "{told}");
}

#[test]
fn u02_a_certificate_that_is_not_good_ends_the_handshake() {
    let site = site("required");
    let service = &site.service;
    let stranger = Authority::new(&service.dir, "stranger");
    let ago = SystemTime::now() - Duration::from_secs(60);
    let person = || Certificate::person("Ann").email(ANN);
    for (what, pair) in [
        ("another CA's", stranger.sign("ann", &person())),
        ("expired", site.ca.sign("late", &person().until(ago))),
        ("a server's", site.ca.sign("machine", &Certificate::server())),
    ] {
        let told = refusal(&mut with(&site, &pair, &["whoami"]));
        assert!(told.contains("does not take the certificate"), "{what}: {told}");
    }
    // None at all, also with a token, and also on this host.
    for told in [
        refusal(site.elsewhere(&["whoami"]).env("CONDUCTOR_TOKEN", service.token())),
        refusal(&mut service.command(&["whoami"])),
    ] {
        assert!(told.contains("without a certificate") && told.contains("--client-cert"), "{told}");
    }
    // Half a pair, or two halves of two, is found before anything is sent.
    let (good, other) = (ann(&site), site.ca.sign("bob", &Certificate::person("Bob")));
    let mut half = site.elsewhere(&["whoami"]);
    let told = refusal(half.arg("--client-cert").arg(&good.cert));
    assert!(told.contains("--client-key"), "{told}");
    let told = refusal(&mut with(&site, &Pair { key: other.key, ..good.clone() }, &["whoami"]));
    assert!(told.contains("does not belong"), "{told}");
    // Another name than those that are known: hands are shaken, and that is all.
    let eve =
        site.ca.sign("eve", &Certificate::person(ANN).email("eve@a.example").uri("mailto:ann@a.example"));
    let told = refusal(&mut with(&site, &eve, &["whoami"]));
    assert!(told.contains("valid token or certificate is required"), "{told}");
    assert_eq!(answer(&mut with(&site, &good, &["whoami"])).lines().next(), Some("user      ann"));
}

#[test]
fn with_a_token_beside_it_the_token_decides() {
    let site = site("optional");
    let pair = ann(&site);
    // On this host nothing but the state directory is needed.
    let bob = Person::named(&site.service, "bob");
    let who = document(with(&site, &pair, &["whoami", "--json"]).env("CONDUCTOR_TOKEN", &bob.token));
    assert_eq!((&who["user"], &who["proof"]), (&json!("bob"), &json!("token")));
    let nonsense = "cdt_".repeat(10);
    let told = refusal(with(&site, &pair, &["whoami"]).env("CONDUCTOR_TOKEN", &nonsense));
    assert!(told.contains("refused the token") && !told.contains(&nonsense), "{told}");
    let who = document(&mut with(&site, &pair, &["whoami", "--json"]));
    assert_eq!(who["user"], "ann");
    // A certificate that may be left out must be good where it is not.
    let stranger = Authority::new(&site.service.dir, "stranger");
    let other = stranger.sign("ann", &Certificate::person("Ann").email(ANN));
    let told = refusal(with(&site, &other, &["whoami"]).env("CONDUCTOR_TOKEN", &bob.token));
    assert!(told.contains("does not take the certificate"), "{told}");
}

#[test]
fn which_name_counts_is_configured() {
    let site = Site::with(|builder, ca| {
        builder
            .set("service.tls.client_ca", ca.file.to_str().unwrap())
            .set("identity.certificates.by", "uri")
            .set(
                "identity.certificates.users",
                json!({ "spiffe://a.example/ci": { "user": "ci", "role": "admin" } }),
            )
            .set("identity.certificates.others", json!({ "teams": ["bots"] }))
    });
    let sign = |name: &str, uri: &str| {
        site.ca.sign(name, &Certificate::person("x").email("spiffe://a.example/ci").uri(uri))
    };
    let ci = document(&mut with(&site, &sign("ci", "spiffe://a.example/ci"), &["whoami", "--json"]));
    assert_eq!((&ci["user"], &ci["roles"]), (&json!("ci"), &json!(["admin"])));
    let bot = document(&mut with(&site, &sign("bot", "spiffe://a.example/bot"), &["whoami", "--json"]));
    assert_eq!((&bot["user"], &bot["teams"]), (&json!("spiffe://a.example/bot"), &json!(["bots"])));
    assert_eq!(bot["roles"], json!(["developer"]));
    // Who is not on the list cannot call themselves as somebody on it.
    let told = refusal(&mut with(&site, &sign("thief", "ci"), &["whoami"]));
    assert!(told.contains("is required"), "{told}");
}

#[test]
fn u03_a_stream_ends_with_its_certificate() {
    let mut site = site("optional");
    let until = SystemTime::now() + Duration::from_secs(8);
    let brief = site.ca.sign("brief", &Certificate::person("Ann").email(ANN).until(until));
    let lasting = ann(&site);
    let connect = |pair: &Pair| {
        let mut editor = Editor::spawn(&mut with(&site, pair, &["connect"]));
        editor.initialize();
        editor
    };
    let (mut short, mut long) = (connect(&brief), connect(&lasting));
    short.set_deadline(Duration::from_secs(60));
    assert_eq!(short.wait_exit().code(), Some(1), "{}", short.story());
    // Certificates know whole seconds only.
    assert!(SystemTime::now() >= until - Duration::from_secs(1), "{}", short.stderr());
    assert!(short.stderr().contains("expired"), "{}", short.stderr());
    let session = long.new_session(&site.service.work());
    assert_eq!(long.turn(&session, "still in"), ["echo: still in"]);
    // What the configuration gave it takes back.
    site.service.configure("identity.certificates.users", json!({}));
    site.service.reload();
    assert_eq!(long.wait_exit().code(), Some(1), "{}", long.story());
    let told = refusal(&mut with(&site, &lasting, &["whoami"]));
    assert!(told.contains("is required"), "{told}");
}

#[test]
fn one_certificate_is_taken_back_and_the_others_stay() {
    let mut site = Site::with(|builder, ca| {
        builder
            .set("service.tls.client_ca", ca.file.to_str().unwrap())
            .set("identity.certificates.others", json!({ "teams": ["web"] }))
    });
    let sign = |name: &str| site.ca.sign(name, &Certificate::person("x").email(&format!("{name}@a.example")));
    let (eve, ann) = (sign("eve"), sign("ann"));
    let connect = |pair: &Pair| {
        let mut editor = Editor::spawn(&mut with(&site, pair, &["connect"]));
        editor.initialize();
        editor
    };
    let (mut of_eve, mut of_ann) = (connect(&eve), connect(&ann));
    site.service.configure("identity.certificates.users", json!({ "eve@a.example": { "role": "none" } }));
    site.service.reload();
    of_eve.set_deadline(Duration::from_secs(60));
    assert_eq!(of_eve.wait_exit().code(), Some(1), "{}", of_eve.story());
    let told = refusal(&mut with(&site, &eve, &["whoami"]));
    assert!(told.contains("valid token or certificate is required"), "{told}");
    let session = of_ann.new_session(&site.service.work());
    assert_eq!(of_ann.turn(&session, "still in"), ["echo: still in"]);
    // Everybody else at once is not what that is for.
    site.service.configure("identity.certificates.others.role", "none");
    site.service.reload();
    site.service.wait_log("there is no role `none`");
}

#[test]
fn u03_a_stream_ends_with_the_trust_in_its_ca() {
    let site = Site::with(|builder, ca| {
        let partner = Authority::new(builder.dir(), "partner");
        let both = builder.dir().join("people.pem");
        let texts = [&ca.file, &partner.file].map(|file| fs::read_to_string(file).unwrap());
        fs::write(&both, texts.concat()).unwrap();
        // Its certificates are made before it is gone.
        partner.sign("bob", &Certificate::person("Bob").email("bob@b.example"));
        builder
            .set("service.tls.client_ca", both.to_str().unwrap())
            .set("identity.certificates.others", json!({}))
    });
    let dir = site.service.dir.join("partner");
    let (ann, bob) = (ann(&site), Pair { cert: dir.join("bob.pem"), key: dir.join("bob.key") });
    let connect = |pair: &Pair| {
        let mut editor = Editor::spawn(&mut with(&site, pair, &["connect"]));
        editor.initialize();
        editor
    };
    let (mut of_ann, mut of_bob) = (connect(&ann), connect(&bob));
    let session = of_bob.new_session(&site.service.work());
    assert_eq!(of_bob.turn(&session, "hello"), ["echo: hello"]);
    // The partner's CA is not trusted any more, and nobody says so to the service.
    fs::copy(&site.ca.file, site.service.dir.join("people.pem")).unwrap();
    of_bob.set_deadline(Duration::from_secs(60));
    assert_eq!(of_bob.wait_exit().code(), Some(1), "{}", of_bob.story());
    let told = refusal(&mut with(&site, &bob, &["whoami"]));
    assert!(told.contains("does not take the certificate"), "{told}");
    let session = of_ann.new_session(&site.service.work());
    assert_eq!(of_ann.turn(&session, "still in"), ["echo: still in"]);
}

#[test]
fn nobody_is_called_like_the_user_the_service_runs_as() {
    let me = Caller::local().user;
    let mut site = Site::with(|builder, ca| {
        builder
            .set("service.tls.client_ca", ca.file.to_str().unwrap())
            .set("identity.certificates.by", "cn")
            .set("identity.certificates.others", json!({}))
    });
    let (thief, ann) =
        (site.ca.sign("thief", &Certificate::person(&me)), site.ca.sign("ann", &Certificate::person("ann")));
    assert_eq!(document(&mut with(&site, &ann, &["whoami", "--json"]))["user"], "ann");
    let told = refusal(&mut with(&site, &thief, &["whoami"]));
    assert!(told.contains("is required"), "{told}");
    // Unless somebody has written that down.
    site.service.configure("identity.certificates.users", json!({ &me: { "role": "developer" } }));
    site.service.reload();
    let is_in = || super::run(&mut with(&site, &thief, &["whoami"])).status.success();
    assert!(poll_until(Duration::from_secs(10), is_in), "{}", site.service.log());
}
