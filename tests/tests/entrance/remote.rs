//! An editor on another machine (row V3): what it may have started here.
//!
//! Another machine is whoever comes from an address that is not loopback. A host has one
//! of those as soon as it has an interface, and reaches itself by it.

use std::{
    fs,
    net::{IpAddr, SocketAddr},
    process::Command,
};

use conductor_tests::{
    certificates::{Authority, Certificate},
    editor::{DEADLINE, Editor},
    harness::{Service, assert_says, poll_until, service},
    people::Person,
};
use nix::{ifaddrs::getifaddrs, net::if_::InterfaceFlags};
use serde_json::{Value, json};

/// What an editor is told that the policy denies.
const DENIED: i64 = -31005;

/// An address of this host by which it can be reached, and which is not loopback.
fn address() -> Option<IpAddr> {
    getifaddrs().unwrap().find_map(|interface| {
        let (flags, address) = (interface.flags, interface.address?);
        let is_up = flags.contains(InterfaceFlags::IFF_UP | InterfaceFlags::IFF_RUNNING);
        let address = IpAddr::from(address.as_sockaddr_in()?.ip());
        (is_up && !flags.contains(InterfaceFlags::IFF_LOOPBACK) && !address.is_loopback()).then_some(address)
    })
}

/// A service that is reached by that address and by loopback, and how it is found there.
fn site(address: IpAddr) -> (Service, Authority, String) {
    let builder = service(&json!({}));
    let ca = Authority::new(builder.dir(), "ca");
    let pair = ca.sign("server", &Certificate::server().at(address));
    let service = builder
        .listen("0.0.0.0:0")
        .rules("use = ['default']")
        .set("service.tls", pair.tls())
        .set("mcp.known", json!({ "command": "good-mcp", "args": ["--stdio"], "env": { "LEVEL": "1" } }))
        .start();
    let local: SocketAddr = service.endpoint().strip_prefix("https://").unwrap().parse().unwrap();
    let url = format!("https://{}", SocketAddr::new(address, local.port()));
    let says = || {
        let banner = fs::read_to_string(service.dir.join("serve.out")).unwrap_or_default();
        banner.contains("every address of this host")
    };
    assert!(poll_until(DEADLINE, says), "nothing says that others can reach it");
    (service, ca, url)
}

/// A command of somebody on another machine.
fn from_afar(service: &Service, ca: &Authority, url: &str, person: &Person, args: &[&str]) -> Command {
    let mut command = person.command(service, args);
    command
        .env("CONDUCTOR_STATE_DIR", service.dir.join("elsewhere"))
        .env("CONDUCTOR_ENDPOINT", url)
        .env("CONDUCTOR_CA_FILE", &ca.file);
    command
}

#[test]
#[allow(clippy::print_stderr, reason = "whoever reads why a test did nothing")]
fn v03_an_editor_on_another_machine_brings_no_program_of_its_own() {
    let Some(address) = address() else {
        // In a sandbox without a network there is no other way to come than by loopback.
        eprintln!("skipped: this host has no interface that is up but loopback");
        return;
    };
    let (service, ca, url) = site(address);
    let ann = Person::named(&service, "ann");
    let open = |server: &Value| json!({ "cwd": service.work(), "mcpServers": [server] });
    let known = json!({ "name": "mine", "command": "good-mcp", "args": ["--stdio"],
        "env": [{ "name": "LEVEL", "value": "1" }] });
    let with = |key: &str, value: Value| {
        let mut server = known.clone();
        server[key] = value;
        server
    };
    let mut remote = Editor::spawn(&mut from_afar(&service, &ca, &url, &ann, &["connect"]));
    remote.decides();
    remote.initialize();
    let foreign = [
        with("command", json!("/bin/sh")),
        with("args", json!(["--stdio", "--evil"])),
        with("env", json!([{ "name": "LEVEL", "value": "1" }, { "name": "LD_PRELOAD", "value": "/x.so" }])),
        with("cwd", json!("/")),
        // Many agents take what is none of the other kinds for a program.
        with("type", json!("http")),
        with("type", json!("new")),
        with("type", json!(7)),
    ];
    for server in &foreign {
        let refused = remote.call_error("session/new", &open(server));
        assert_eq!(refused["code"], DENIED, "{server}: {refused}");
        assert_says(&refused, &["[mcp.NAME]"]);
    }
    let asked = |editor: &Editor| {
        editor.lines().iter().filter(|line| line.method() == "session/request_permission").count()
    };
    assert_eq!(asked(&remote), 0, "whoever sits there is not asked whether they may");
    // Nor does a session bring it along that is opened again.
    let session = remote.call("session/new", &open(&known))["sessionId"].as_str().unwrap().to_owned();
    for method in ["session/load", "session/resume"] {
        let mut again = open(&foreign[0]);
        again["sessionId"] = json!(session);
        assert_eq!(remote.call_error(method, &again)["code"], DENIED, "{method}");
    }
    let told: Vec<_> = service.received("fake").into_iter().filter_map(|entry| entry.text).collect();
    assert!(told.iter().any(|line| line.contains("good-mcp")), "the one that the team knows is there");
    for evil in ["/bin/sh", "--evil", "/x.so"] {
        assert!(!told.iter().any(|line| line.contains(evil)), "the agent was told of {evil}");
    }
    // One that runs elsewhere starts nothing here: that is for people to say.
    let http = json!({ "type": "http", "name": "mine", "url": "https://mcp.example/mcp", "headers": [] });
    let id = remote.request("session/new", &open(&http));
    let request = remote.next_request("session/request_permission");
    remote.answer(&request, &json!({ "outcome": { "outcome": "selected", "optionId": "reject" } }));
    assert_eq!(remote.error_of(&id)["code"], DENIED);
    // The same person on this host is asked, by the same service.
    let mut local = Editor::spawn(&mut ann.command(&service, &["connect"]));
    local.decides();
    local.initialize();
    let id = local.request("session/new", &open(&foreign[1]));
    let request = local.next_request("session/request_permission");
    assert!(request["params"]["toolCall"]["rawInput"]["servers"].as_str().unwrap().contains("--evil"));
    local.answer(&request, &json!({ "outcome": { "outcome": "selected", "optionId": "reject" } }));
    assert_eq!(local.error_of(&id)["code"], DENIED);
}
