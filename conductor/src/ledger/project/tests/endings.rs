//! How things end, and begin again.

use super::*;

#[test]
fn a_cancelled_turn_is_cancelled_whatever_the_agent_says() {
    let mut tape = Tape::session();
    let (first, id) = tape.prompt("1");
    let (second, _) = tape.prompt("2");
    tape.push(
        Origin::Editor,
        Destination::Agent,
        None,
        json!({ "method": "session/cancel", "params": { "sessionId": SESSION.to_string() } }),
    );
    tape.push(
        Origin::Conductor,
        Destination::Editor,
        None,
        json!({ "id": "editor-102", "result": { "stopReason": "cancelled" } }),
    );
    tape.chunk("agent_message_chunk", "still here", None);
    tape.push(
        Origin::Agent,
        Destination::Editor,
        None,
        json!({ "id": id, "error": { "code": -32800, "message": "cancelled" } }),
    );
    let (third, id) = tape.prompt("3");
    tape.agent_answers(id, json!({ "stopReason": "max_tokens" }));
    let rows = tape.rows();
    assert_eq!(
        rows.get(TURNS, "turn stop_reason error"),
        [
            format!("{first} | cancelled | -"),
            format!("{second} | cancelled | -"),
            format!("{third} | max_tokens | -")
        ]
    );
    assert_eq!(rows.get(MESSAGES, "turn text"), [format!("{first} | still here")]);
}

#[test]
fn a_lost_process_ends_the_turn_by_our_answer() {
    let mut tape = Tape::session();
    let (turn, id) = tape.prompt("go");
    let call = tape.update(
        json!({ "sessionUpdate": "tool_call", "toolCallId": "t", "title": "x", "status": "in_progress" }),
    );
    let answer = tape.push(
        Origin::Conductor,
        Destination::Editor,
        None,
        json!({ "id": format!("editor-{id}"), "error": { "code": -31001, "message": "the agent died" } }),
    );
    tape.note(note::SESSION_ENDED, json!({ "reason": "process ended" }));
    // The same numbers mean something else when it comes back.
    tape.opened("load");
    let again = Uuid::from_u128(77);
    tape.note(note::SESSION_BOUND, json!({ "binding": again.to_string(), "process": PROCESS.to_string() }));
    tape.note(
        note::SESSION_BOUND,
        json!({ "binding": again.to_string(), "process": PROCESS.to_string(), "agentSession": "a-2" }),
    );
    tape.agent_answers(id, json!({ "stopReason": "end_turn" }));
    let rows = tape.rows();
    assert_eq!(
        rows.get(TURNS, "turn ended_seq duration_us stop_reason error"),
        [format!("{turn} | {answer} | {}000 | - | the agent died (-31001)", answer - turn)]
    );
    assert_eq!(rows.get(TOOL_CALLS, "call status ended_us"), [format!("{call} | in_progress | -")]);
    assert_eq!(
        rows.get(SESSIONS, "opened_us reopened_us ended_us ended_seq end_reason"),
        ["1000 | 7000 | 6000 | 6 | process ended"]
    );
    assert_eq!(
        rows.get(BINDINGS, "agent_session how bound_us ended_us"),
        ["a-2 | load | 8000 | -", "a-1 | new | 2000 | 6000"]
    );
}

#[test]
fn a_turn_without_an_answer_ends_with_its_session() {
    let mut tape = Tape::session();
    tape.prompt("one");
    tape.note(note::SESSION_ENDED, json!({ "reason": "closed" }));
    tape.opened("resume");
    tape.prompt("two");
    // The conductor was killed here.
    tape.opened("load");
    let rows = tape.rows();
    assert_eq!(
        rows.get(TURNS, "ended_us error"),
        ["4000 | the session ended: closed", "7000 | the session was opened again before an answer came"]
    );
}

#[test]
fn a_number_that_comes_again_answers_the_turn_that_runs() {
    let mut tape = Tape::session();
    let (_, first) = tape.prompt("one");
    // The conductor was killed here; another process counts from the beginning.
    tape.opened("resume");
    tape.next -= 1;
    let (_, second) = tape.prompt("two");
    assert_eq!(first, second);
    tape.agent_answers(second, json!({ "stopReason": "end_turn" }));
    assert_eq!(
        tape.rows().get(TURNS, "prompt stop_reason error"),
        ["one | - | the session was opened again before an answer came", "two | end_turn | -"]
    );
}

#[test]
fn an_answer_that_leaves_it_to_others_decides_nothing() {
    let mut tape = Tape::session();
    tape.prompt("go");
    let options = json!([{ "optionId": "yes", "name": "Yes", "kind": "allow_once" }]);
    let params = json!({ "sessionId": "a-1", "toolCall": { "toolCallId": "t" }, "options": options });
    let (_, ask) = tape.ask_editor("session/request_permission", params);
    tape.note(note::DECLINED, json!({ "user": "ann" }));
    tape.editor_answers(ask, json!({ "outcome": { "outcome": "cancelled" } }));
    tape.editor_answers(ask, json!({ "outcome": { "outcome": "selected", "optionId": "yes" } }));
    assert_eq!(tape.rows().get(DECISIONS, "decision option_id"), ["allow | yes"]);
}

#[test]
fn the_same_id_of_two_editors_is_told_apart() {
    let mut tape = Tape::session();
    let (first, id) = tape.prompt("one");
    // Another editor's prompt, with the same id, waited and was taken back.
    let frame =
        json!({ "id": format!("editor-{id}"), "method": "session/prompt", "params": { "prompt": [] } });
    let second = tape.push(Origin::Editor, Destination::Agent, None, frame);
    let answer = json!({ "id": format!("editor-{id}"), "result": { "stopReason": "cancelled" } });
    tape.push(Origin::Conductor, Destination::Editor, None, answer);
    tape.agent_answers(id, json!({ "stopReason": "end_turn" }));
    assert_eq!(
        tape.rows().get(TURNS, "turn stop_reason"),
        [format!("{first} | end_turn"), format!("{second} | cancelled")]
    );
}

#[test]
fn a_replayed_history_is_not_recorded_twice() {
    let mut tape = Tape::session();
    let (_, id) = tape.prompt("hello");
    tape.chunk("agent_message_chunk", "hi", None);
    tape.update(json!({ "sessionUpdate": "tool_call", "toolCallId": "t", "title": "x", "rawInput": { "command": "ls" }, "status": "completed" }));
    tape.agent_answers(id, json!({ "stopReason": "end_turn" }));
    let before = tape.rows();
    tape.note(note::SESSION_ENDED, json!({ "reason": "closed" }));
    tape.opened("load");
    let (_, load) = tape.ask_agent("session/load", json!({ "cwd": "/w", "mcpServers": [] }));
    tape.note(
        note::SESSION_BOUND,
        json!({ "binding": Uuid::from_u128(5).to_string(), "process": PROCESS.to_string() }),
    );
    tape.chunk("user_message_chunk", "hello", None);
    tape.chunk("agent_message_chunk", "hi", None);
    tape.update(json!({ "sessionUpdate": "tool_call", "toolCallId": "t", "title": "x", "rawInput": { "command": "ls" }, "status": "completed" }));
    tape.update(json!({ "sessionUpdate": "session_info_update", "title": "kept" }));
    tape.agent_answers(load, serde_json::Value::Null);
    let after = tape.rows();
    for table in [TURNS, MESSAGES, TOOL_CALLS, COMMANDS] {
        let all = TABLES[table].columns.iter().map(|column| column.name).collect::<Vec<_>>().join(" ");
        assert_eq!(after.get(table, &all), before.get(table, &all));
    }
    assert_eq!(after.get(SESSIONS, "title tool_calls"), ["kept | 1"]);
    tape.chunk("agent_message_chunk", "and on", None);
    assert_eq!(tape.rows().get(MESSAGES, "text"), ["hi", "and on"]);
}

#[test]
fn a_history_that_we_never_saw_is_recorded() {
    let mut tape = Tape::session();
    let (_, load) = tape.ask_agent("session/load", json!({ "cwd": "/w", "mcpServers": [] }));
    tape.chunk("agent_message_chunk", "hi", None);
    tape.agent_answers(load, json!({}));
    assert_eq!(tape.rows().get(MESSAGES, "text"), ["hi"]);
}

#[test]
fn processes_and_connections_have_their_lives() {
    let mut tape = Tape::of(StreamKind::Process);
    tape.note(
        note::PROCESS_STARTED,
        json!({ "agent": "claude", "command": "/bin/a b", "args": ["--acp"], "cwd": "/w", "pid": 7 }),
    );
    tape.push(
        Origin::Conductor,
        Destination::Agent,
        None,
        json!({ "id": 0, "method": "initialize", "params": {} }),
    );
    tape.push(Origin::Agent, Destination::Editor, None, json!({ "id": 0, "result": { "protocolVersion": 1, "agentInfo": { "name": "a", "version": "1.2" } } }));
    tape.push(Origin::Agent, Destination::Editor, None, "garbage on stdout");
    tape.note(note::PROCESS_ENDED, json!({ "reason": "killed", "code": null, "signal": "SIGKILL", "crashed": true, "stderr": "last \u{0}words" }));
    assert_eq!(
        tape.rows().get(PROCESSES, "agent pid command cwd agent_name agent_version started_us ready_us ended_us end_reason exit_code exit_signal crashed stderr_tail"),
        ["claude | 7 | '/bin/a b' --acp | /w | a | 1.2 | 1000 | 3000 | 5000 | killed | - | SIGKILL | true | last \u{fffd}words"]
    );

    let mut tape = Tape::of(StreamKind::Connection);
    tape.note(note::CONNECTED, json!({ "user": "ann", "teams": [], "client": null }));
    tape.push(Origin::Editor, Destination::Agent, None, json!({ "id": 0, "method": "initialize", "params": { "clientInfo": { "name": "zed", "version": "2" } } }));
    tape.note(note::DISCONNECTED, json!({ "reason": "gone" }));
    assert_eq!(
        tape.rows().get(CONNECTIONS, "user_name team client opened_us closed_us close_reason"),
        ["ann | - | zed 2 | 1000 | 3000 | gone"]
    );
}
