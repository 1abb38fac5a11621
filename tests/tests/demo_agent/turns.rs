//! Cancelling, and turns beside each other.

use serde_json::json;

use crate::peer::{Peer, choose, everything, home, load};

#[test]
fn slow_is_cancelled_at_once_and_the_next_turn_is_unharmed() {
    let home = home();
    let mut peer = Peer::ready(home.path(), json!({}));
    let session = peer.open();
    // Nothing runs, so nothing happens, also to the next turn.
    peer.notify("session/cancel", json!({ "sessionId": session }));
    peer.notify("session/cancel", json!({ "sessionId": "no-such" }));
    peer.notify("session/cancel", json!(null));

    let id = peer.begin_prompt(&session, "slow 3600");
    peer.until(|message| message["params"]["update"]["sessionUpdate"] == "agent_message_chunk");
    peer.notify("session/cancel", json!({ "sessionId": session }));
    peer.notify("session/cancel", json!({ "sessionId": session }));
    assert_eq!(peer.finish(id).stop_reason(), "cancelled");
    assert_eq!(peer.prompt(&session, "slow 1").stop_reason(), "end_turn");

    let id = peer.begin_prompt(&session, "slow 3600");
    peer.notify("$/cancel_request", json!({ "requestId": id + 1 }));
    peer.notify("$/cancel_request", json!({ "requestId": id.to_string() }));
    peer.until(|message| message["params"]["update"]["sessionUpdate"] == "agent_message_chunk");
    peer.notify("$/cancel_request", json!({ "requestId": id }));
    assert_eq!(peer.finish(id).stop_reason(), "cancelled");
    assert_eq!(peer.prompt(&session, "stream 1").stop_reason(), "end_turn");
}

#[test]
fn cancel_while_a_permission_is_pending() {
    let home = home();
    let mut peer = Peer::ready(home.path(), json!({ "fs": { "writeTextFile": true } }));
    let session = peer.open();
    let id = peer.begin_prompt(&session, "write /a b");
    let permission = peer.until(|message| message["method"] == "session/request_permission").pop().unwrap();
    peer.notify("session/cancel", json!({ "sessionId": session }));
    let reply = peer.finish(id);
    assert_eq!(reply.stop_reason(), "cancelled");
    assert_eq!(reply.statuses(), ["failed"]);
    let given_up = reply.before.iter().find(|message| message["method"] == "$/cancel_request").unwrap();
    assert_eq!(given_up["params"]["requestId"], permission["id"]);
    // The late answer opens nothing, neither now nor in the next turn.
    peer.answer(&permission, choose("yes"));
    let reply = peer.prompt(&session, "stream 1");
    assert_eq!(reply.asked(), Vec::<&str>::new());
    assert_eq!(reply.stop_reason(), "end_turn");

    // Answered `cancelled` without session/cancel, the turn ends as cancelled, too.
    let cancelled = json!({ "outcome": { "outcome": "cancelled" } });
    let reply = peer.prompt_with(&session, "write /a b", |_, _| Ok(cancelled.clone()));
    assert_eq!(reply.stop_reason(), "cancelled");
    assert_eq!(reply.statuses(), ["pending", "failed"]);
}

#[test]
fn cancel_releases_the_terminal() {
    let home = home();
    let mut peer = Peer::ready(home.path(), everything());
    let session = peer.open();
    peer.call("session/set_mode", json!({ "sessionId": session, "modeId": "yolo" })).outcome.unwrap();
    let id = peer.begin_prompt(&session, "run sleep 60");
    let create = peer.until(|message| message["method"] == "terminal/create").pop().unwrap();
    peer.answer(&create, json!({ "terminalId": "t9" }));
    peer.until(|message| message["method"] == "terminal/wait_for_exit");
    peer.notify("session/cancel", json!({ "sessionId": session }));
    let reply = peer.finish(id);
    assert_eq!(reply.stop_reason(), "cancelled");
    assert_eq!(reply.statuses(), ["failed"]);
    assert_eq!(reply.asked(), ["terminal/release"]);
}

#[test]
fn one_turn_at_a_time_in_a_session_and_many_beside_each_other() {
    let home = home();
    let mut peer = Peer::ready(home.path(), json!({}));
    let (first, second) = (peer.open(), peer.open());
    let asking = peer.begin_prompt(&first, "ask");
    let permission = peer.until(|message| message["method"] == "session/request_permission").pop().unwrap();

    let error = peer.prompt(&first, "help").outcome.unwrap_err();
    assert_eq!(error["code"], -32600);
    assert!(error["message"].as_str().unwrap().contains("busy"), "{error}");
    assert_eq!(peer.code("session/load", load(&first)), -32600);
    peer.send(&json!({ "jsonrpc": "2.0", "id": asking, "method": "session/list", "params": {} }));
    assert_eq!(peer.next()["error"]["code"], -32600);

    // The other session goes on, new ones can be opened, and its cancel is not ours.
    assert_eq!(peer.prompt(&second, "stream 20").stop_reason(), "end_turn");
    peer.open();
    let slow = peer.begin_prompt(&second, "slow 3600");
    peer.notify("session/cancel", json!({ "sessionId": second }));
    assert_eq!(peer.finish(slow).stop_reason(), "cancelled");

    peer.answer(&permission, choose("yes"));
    let reply = peer.finish(asking);
    assert_eq!(reply.stop_reason(), "end_turn");
    assert!(reply.text().contains("allow_once"));
}
