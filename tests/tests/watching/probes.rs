//! What orchestrators ask: is it alive, may sessions be sent to it?

use std::{io::Read as _, net::TcpStream, time::Duration};

use conductor_tests::{
    admin::{address, get, request, watched},
    editor::DEADLINE,
    harness::{poll_until, service},
    people::channel,
};
use nix::sys::signal::Signal;
use serde_json::json;
use tokio::{runtime::Runtime, time::timeout};
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};

#[test]
fn probes_are_answered_and_nothing_else_is() {
    let service = watched(service(&json!({}))).start();
    assert_eq!(get(&service, "/healthz"), (200, "the process works\n".to_owned()));
    assert_eq!(get(&service, "/readyz"), (200, "ready\n".to_owned()));
    assert_eq!(get(&service, "/metrics?name=x").0, 200);
    assert_eq!(get(&service, "/").0, 404);
    assert_eq!(get(&service, "/metrics/../healthz").0, 404);
    assert_eq!(request(address(&service), "POST", "/metrics").0, 405);
    assert_eq!(request(address(&service), "HEAD", "/readyz"), (200, String::new()));
}

#[test]
fn without_an_address_nothing_listens() {
    let service = service(&json!({})).start();
    assert!(!service.log().contains("metrics and health are served"), "{}", service.log());
}

#[test]
fn whoever_says_nothing_keeps_nobody_from_asking() {
    let service = watched(service(&json!({}))).start();
    let silent: Vec<TcpStream> = (0..32).map(|_| TcpStream::connect(address(&service)).unwrap()).collect();
    // They are let go after a while, and the question is answered then.
    let answered = poll_until(Duration::from_secs(30), || get(&service, "/healthz").0 == 200);
    assert!(answered);
    for mut stream in silent {
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        assert!(stream.read(&mut [0; 1]).is_ok_and(|count| count == 0) || stream.read(&mut [0; 1]).is_err());
    }
}

#[test]
fn while_turns_end_the_service_is_alive_but_not_ready() {
    let mut service = watched(service(&json!({}))).set("service.drain_timeout", "60s").start();
    let (mut editor, session) = service.session();
    let go = service.dir.join("go");
    let id = editor.prompt_do(&session, &json!([{ "update": {} }, { "wait_file": go }]));
    editor.wait_chunks(&session, 1);
    let runtime = Runtime::new().unwrap();
    let mut watching = runtime.block_on(async {
        let mut client = HealthClient::new(channel(&service).await);
        let all = HealthCheckRequest { service: String::new() };
        let mut watching = client.watch(all).await.unwrap().into_inner();
        let now = watching.message().await.unwrap().unwrap();
        assert_eq!(now.status(), ServingStatus::Serving);
        watching
    });

    service.signal(Signal::SIGTERM);
    let told = runtime.block_on(async { timeout(DEADLINE, watching.message()).await });
    assert_eq!(told.unwrap().unwrap().unwrap().status(), ServingStatus::NotServing);
    let (status, body) = get(&service, "/readyz");
    assert_eq!(status, 503);
    assert!(body.starts_with("draining: "), "{body}");
    assert_eq!(get(&service, "/healthz").0, 200);

    std::fs::write(&go, "").unwrap();
    assert_eq!(editor.stop_reason(&id), "end_turn");
    // Whoever watches does not hold up the end.
    assert!(service.wait_exit(Duration::from_secs(6)).success());
}

#[test]
fn a_journal_that_refuses_is_named() {
    // Nothing listens there, and strict recording lets nothing happen without it.
    let service = watched(service(&json!({})))
        .set("journal.recording", "strict")
        .set("ledger.url", "postgres://nobody@127.0.0.1:1/nothing")
        .start();
    let refused = poll_until(DEADLINE, || get(&service, "/readyz").0 == 503);
    assert!(refused, "{:?}", get(&service, "/readyz"));
    let (_, body) = get(&service, "/readyz");
    assert!(body.starts_with("journal: "), "{body}");
    assert!(!body.contains("127.0.0.1") && !body.contains("nobody"), "{body}");
}
