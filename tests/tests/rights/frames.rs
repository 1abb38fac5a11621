//! The same for the frames of the tunnel: what is not the caller's and what is
//! not there are answered alike.

use conductor::proto::{ConnectRequest, connect_request};
use conductor_tests::tunnel::{Tunnel, hello};
use serde_json::{Value, json};

use crate::cast::{BONDS, Bond, Cast, Pass};

const INITIALIZE: &str = r#"{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":1}}"#;

/// Requests that name a session.
const METHODS: [&str; 8] = [
    "session/load",
    "session/resume",
    "session/prompt",
    "session/set_mode",
    "session/set_config_option",
    "session/close",
    "session/delete",
    "_conductor.test/anything",
];

/// The answer to one request, without what names the session.
fn asked(tunnel: &mut Tunnel, id: u64, method: &str, session: &str, cwd: &str) -> String {
    let params = json!({ "sessionId": session, "cwd": cwd, "mcpServers": [], "modeId": "x", "configId": "x",
        "value": "x", "prompt": [{ "type": "text", "text": "hello" }] });
    let line = json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params });
    assert!(tunnel.send_frame(&line.to_string()));
    loop {
        let frames = tunnel.next_frames();
        if let Some(mut answer) = frames.into_iter().find(|frame| frame["id"] == id) {
            answer["id"] = Value::Null;
            return answer.to_string().replace(session, "SESSION");
        }
    }
}

#[test]
fn v02_frames_do_not_tell_what_is_there() {
    let cast = Cast::new();
    let cwd = cast.work().display().to_string();
    let mut cells = 0;
    for player in cast.players.iter().filter(|player| player.role != "auditor") {
        let first = ConnectRequest { kind: Some(connect_request::Kind::Hello(hello())) };
        let metadata = player.presents(Pass::Valid).unwrap().metadata();
        let mut tunnel = Tunnel::open_with(&cast.service, metadata, Some(first));
        tunnel.next_message().unwrap();
        tunnel.send_frame(INITIALIZE);
        assert!(tunnel.next_frames()[0]["result"].is_object());
        for (number, method) in METHODS.iter().enumerate() {
            let mut answers = Vec::new();
            for (bond, place) in BONDS.iter().zip(1..) {
                // What is deleted is gone for the cells that follow.
                if *method == "session/delete" && *bond == Bond::Own {
                    continue;
                }
                let session = cast.session(player, *bond);
                let id = number as u64 * 10 + place;
                answers.push((*bond, asked(&mut tunnel, id, method, &session, &cwd)));
                cells += 1;
            }
            let of = |bond: Bond| &answers.iter().find(|(of, _)| *of == bond).unwrap().1;
            assert_eq!(of(Bond::Stranger), of(Bond::NoSuch), "{method} by {}", player.role);
            let opens = ["session/load", "session/resume"].contains(method);
            let is_opened = |bond: Bond| of(bond).contains("\"result\"");
            if opens {
                assert!(is_opened(Bond::Own) && is_opened(Bond::Drives), "{method}: {answers:?}");
                assert!(!is_opened(Bond::Watches) && !is_opened(Bond::NoSuch), "{method}: {answers:?}");
                assert_ne!(of(Bond::Watches), of(Bond::NoSuch), "who may watch is told so: {answers:?}");
            }
        }
        tunnel.send_frame(r#"{"jsonrpc":"2.0","id":99,"method":"session/list","params":{}}"#);
        let listed = loop {
            if let Some(answer) = tunnel.next_frames().into_iter().find(|frame| frame["id"] == 99) {
                break answer.to_string();
            }
        };
        assert!(!listed.contains(&cast.hidden) && !listed.contains(cast.secret), "{listed}");
        assert!(listed.contains(&cast.session(player, Bond::Watches)), "{listed}");
    }
    assert_eq!(cells, 3 * (METHODS.len() * BONDS.len() - 1));
}
