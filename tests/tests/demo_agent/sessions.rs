//! Sessions on disk: load, resume, list, close, delete, and who may read them.

use std::io::Write as _;
use std::path::Path;

use serde_json::{Value, json};

use crate::peer::{Peer, choose, everything, home, load};

#[test]
fn hostile_session_ids_reach_no_file() {
    let home = home();
    let mut peer = Peer::ready(home.path(), json!({}));
    let session = peer.open();
    let state = home.path().join(".local/state");
    let outside = state.join("outside.jsonl");
    let place = std::fs::read(state.join(format!("conductor-demo/{session}.jsonl"))).unwrap();
    std::fs::write(&outside, place).unwrap();
    let path = outside.with_extension("");
    for id in
        ["../outside", path.to_str().unwrap(), "demo-../../outside", "../outside\0", "", "demo-\n\u{1b}[2J"]
    {
        assert_eq!(peer.code("session/load", load(id)), -32002, "{id:?}");
        assert_eq!(peer.code("session/resume", load(id)), -32002, "{id:?}");
        peer.call("session/delete", json!({ "sessionId": id })).outcome.unwrap();
    }
    assert!(outside.is_file());
    assert_eq!(peer.prompt(&session, "stream 1").stop_reason(), "end_turn");
}

#[test]
fn session_files_are_private() {
    use std::os::unix::fs::PermissionsExt as _;
    let home = home();
    let directory = home.path().join(".local/state/conductor-demo");
    std::fs::create_dir_all(&directory).unwrap();
    std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o755)).unwrap();
    let mut peer = Peer::ready(home.path(), json!({}));
    let session = peer.open();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&directory), 0o700);
    assert_eq!(mode(&directory.join(format!("{session}.jsonl"))), 0o600);
}

#[test]
fn without_a_home_the_error_says_what_to_do() {
    let mut peer = Peer::ready(Path::new("relative"), json!({}));
    let error = peer.call("session/new", json!({ "cwd": "/", "mcpServers": [] })).outcome.unwrap_err();
    assert_eq!(error["code"], -32603);
    assert!(error["message"].as_str().unwrap().contains("HOME"), "{error}");
}

#[test]
fn a_later_process_loads_resumes_and_lists() {
    let home = home();
    let mut peer = Peer::ready(home.path(), everything());
    let session = peer.open();
    let mut live = Vec::new();
    for prompt in ["think", "plan", "tool", "read /a"] {
        let reply = peer.prompt_with(&session, prompt, |_, _| Ok(json!({ "content": "text" })));
        live.push(json!({ "type": "text", "text": prompt }));
        let history = reply.updates().into_iter().filter(|u| u["sessionUpdate"] != "session_info_update");
        live.extend(history.cloned());
    }
    peer.end();

    let mut peer = Peer::ready(home.path(), json!({}));
    assert_eq!(peer.prompt(&session, "help").outcome.unwrap_err()["code"], -32002);
    let listed = peer.call("session/list", json!({})).outcome.unwrap();
    assert_eq!(listed["sessions"][0]["sessionId"], session);
    assert_eq!(listed["sessions"][0]["title"], "think");
    assert_eq!(listed["sessions"][0]["cwd"], "/project");
    assert!(listed["sessions"][0]["updatedAt"].as_str().unwrap().ends_with('Z'));
    assert_eq!(peer.call("session/list", json!({ "cwd": "/other" })).outcome.unwrap()["sessions"], json!([]));

    let reply = peer.call("session/load", load(&session));
    let title = reply.of_kind("session_info_update")[0];
    assert_eq!(title["title"], "think");
    let replayed = reply.updates().into_iter().filter(|update| *update != title);
    let replayed: Vec<_> = replayed
        .map(|update| match update["sessionUpdate"].as_str() {
            Some("user_message_chunk") => update["content"].clone(),
            _ => update.clone(),
        })
        .collect();
    assert_eq!(replayed, live);
    assert_eq!(reply.outcome.unwrap()["modes"]["currentModeId"], "ask");
    assert_eq!(peer.next()["params"]["update"]["sessionUpdate"], "available_commands_update");
    assert_eq!(peer.prompt(&session, "stream 1").stop_reason(), "end_turn");

    let mut peer = Peer::ready(home.path(), json!({}));
    let reply = peer.call("session/resume", json!({ "sessionId": session, "cwd": "/project" }));
    assert_eq!(reply.before, Vec::<Value>::new());
    assert!(reply.outcome.unwrap()["configOptions"].is_array());
    peer.next();
    // It is not the first prompt any more, so the title stays.
    assert_eq!(peer.prompt(&session, "stream 1").of_kind("session_info_update").len(), 0);
}

#[test]
fn a_killed_turn_can_be_loaded() {
    let home = home();
    let mut peer = Peer::ready(home.path(), json!({ "terminal": true }));
    let session = peer.open();
    peer.begin_prompt(&session, "run sleep 60");
    let permission = peer.until(|message| message["method"] == "session/request_permission").pop().unwrap();
    peer.answer(&permission, choose("yes"));
    let create = peer.until(|message| message["method"] == "terminal/create").pop().unwrap();
    peer.answer(&create, json!({ "terminalId": "t1" }));
    peer.until(|message| message["method"] == "terminal/wait_for_exit");
    peer.child.kill().unwrap();
    peer.wait();

    // The worst that a kill in mid-write leaves behind.
    let file = home.path().join(format!(".local/state/conductor-demo/{session}.jsonl"));
    let mut torn = std::fs::OpenOptions::new().append(true).open(file).unwrap();
    torn.write_all(b"{\"type\":\"update\",\"update\":{\"sessionUp").unwrap();

    let mut peer = Peer::ready(home.path(), json!({}));
    let reply = peer.call("session/load", load(&session));
    assert_eq!(reply.of_kind("user_message_chunk")[0]["content"]["text"], "run sleep 60");
    // The call that the kill left open is shown as failed, without a terminal that no longer exists.
    assert_eq!(reply.statuses(), ["pending", "in_progress", "failed"]);
    assert_eq!(reply.of_kind("tool_call_update")[0]["content"], json!([]));
    reply.outcome.unwrap();
    peer.next();
    assert_eq!(peer.prompt(&session, "stream 2").stop_reason(), "end_turn");

    // The torn line swallowed nothing of what came after.
    let reply = peer.call("session/load", load(&session));
    assert_eq!(reply.of_kind("user_message_chunk")[1]["content"]["text"], "stream 2");
    assert_eq!(reply.text(), "chunk 1 of 2\nchunk 2 of 2\n");
}

#[test]
fn close_and_delete_end_the_turn_first() {
    let home = home();
    let mut peer = Peer::ready(home.path(), json!({}));
    let session = peer.open();
    for (method, afterwards) in [("session/close", 1), ("session/delete", 0)] {
        let prompt = peer.begin_prompt(&session, "slow 3600");
        peer.until(|message| message["params"]["update"]["sessionUpdate"] == "agent_message_chunk");
        let close = peer.begin(method, json!({ "sessionId": session }));
        assert_eq!(peer.finish(prompt).stop_reason(), "cancelled");
        assert_eq!(peer.finish(close).outcome, Ok(json!({})));
        assert_eq!(peer.prompt(&session, "help").outcome.unwrap_err()["code"], -32002);
        assert_eq!(peer.code("session/close", json!({ "sessionId": session })), -32002);
        let listed = peer.call("session/list", json!({})).outcome.unwrap();
        assert_eq!(listed["sessions"].as_array().unwrap().len(), afterwards);
        if afterwards == 1 {
            peer.call("session/resume", load(&session)).outcome.unwrap();
        }
    }
    assert_eq!(peer.code("session/load", load(&session)), -32002);
    // Deleting again is no error.
    assert_eq!(peer.call("session/delete", json!({ "sessionId": session })).outcome, Ok(json!({})));
}

#[test]
fn listing_comes_in_pages_without_gap_or_overlap() {
    let home = home();
    let mut peer = Peer::ready(home.path(), json!({}));
    let mut opened: Vec<_> = (0..120).map(|_| peer.open()).collect();
    let (mut listed, mut cursor, mut pages) = (Vec::new(), Value::Null, 0);
    loop {
        let page = peer.call("session/list", json!({ "cursor": cursor })).outcome.unwrap();
        let sessions = page["sessions"].as_array().unwrap();
        listed.extend(sessions.iter().map(|session| session["sessionId"].as_str().unwrap().to_owned()));
        pages += 1;
        cursor = page["nextCursor"].clone();
        if cursor.is_null() {
            break;
        }
    }
    assert_eq!(pages, 3);
    opened.sort();
    listed.sort();
    assert_eq!(listed, opened);
}

#[test]
fn open_sessions_are_limited_and_closing_makes_room() {
    let home = home();
    let mut peer = Peer::ready(home.path(), json!({}));
    let first = peer.open();
    for _ in 1..256 {
        peer.open();
    }
    let error = peer.call("session/new", json!({ "cwd": "/", "mcpServers": [] })).outcome.unwrap_err();
    assert!(error["message"].as_str().unwrap().contains("session/close"), "{error}");
    peer.call("session/close", json!({ "sessionId": first })).outcome.unwrap();
    peer.open();
}
