//! Conversations as real agents have them.

use super::*;

fn options() -> serde_json::Value {
    json!([
        { "optionId": "yes", "name": "Yes", "kind": "allow_once" },
        { "optionId": "always", "name": "Always", "kind": "allow_always" },
        { "optionId": "no", "name": "No", "kind": "reject_once" },
    ])
}

/// An agent that runs its tools itself, names them twice, and tells its answer
/// in a form of its own before the common one.
#[test]
fn an_agent_with_tools_of_its_own() {
    let mut tape = Tape::session();
    let (_, new) = tape.ask_agent("session/new", json!({ "cwd": "/w", "mcpServers": [] }));
    tape.agent_answers(
        new,
        json!({ "sessionId": "a-1", "modes": { "currentModeId": "default" }, "configOptions": [
            { "id": "m", "category": "model", "type": "select", "currentValue": "opus", "options": [] } ] }),
    );
    let (turn, prompt) = tape.ask_agent(
        "session/prompt",
        json!({ "prompt": [
            { "type": "text", "text": "fix @src/a.rs please" },
            { "type": "resource_link", "name": "b", "uri": "file:///w/b%20c.rs" },
            { "type": "image", "data": "AAAA", "mimeType": "image/png" },
        ] }),
    );
    assert_eq!(turn, 5);
    tape.chunk("agent_message_chunk", "I ", Some("m1"));
    tape.chunk("agent_message_chunk", "will.", Some("m1"));
    tape.update(json!({ "sessionUpdate": "tool_call", "toolCallId": "t1", "name": "Bash", "rawInput": {}, "status": "pending",
        "title": "Terminal", "kind": "execute", "content": [], "_meta": { "claudeCode": { "toolName": "Bash" } } }));
    tape.update(json!({ "sessionUpdate": "tool_call_update", "toolCallId": "t1", "rawInput": { "command": "make test" },
        "title": "make test", "_meta": { "claudeCode": { "toolName": "Bash" } } }));
    let tool_call = json!({ "toolCallId": "t1", "name": "Bash", "status": "pending", "rawInput": { "command": "make test" },
        "title": "make test", "kind": "execute" });
    let (asked, ask) = tape.ask_editor(
        "session/request_permission",
        json!({ "sessionId": "a-1", "toolCall": tool_call, "options": options() }),
    );
    tape.editor_answers(ask, json!({ "outcome": { "outcome": "selected", "optionId": "yes" } }));
    tape.update(json!({ "sessionUpdate": "tool_call_update", "toolCallId": "t1",
        "_meta": { "claudeCode": { "toolName": "Bash", "toolResponse": { "stdout": "ok" } } } }));
    let ended = tape.update(json!({ "sessionUpdate": "tool_call_update", "toolCallId": "t1", "status": "completed", "rawOutput": "ok",
        "content": [{ "type": "content", "content": { "type": "text", "text": "```ok```" } }] }));
    tape.update(json!({ "sessionUpdate": "tool_call_update", "toolCallId": "t1",
        "content": [{ "type": "content", "content": { "type": "text", "text": "later" } }] }));
    tape.update(json!({ "sessionUpdate": "tool_call", "toolCallId": "t2", "rawInput": { "file_path": "/w/n.txt", "content": "x" },
        "title": "Write n.txt", "kind": "edit", "status": "pending", "locations": [{ "path": "/w/n.txt" }],
        "content": [{ "type": "diff", "path": "/w/n.txt", "oldText": null, "newText": "x" }],
        "_meta": { "claudeCode": { "toolName": "Write" } } }));
    tape.update(json!({ "sessionUpdate": "usage_update", "used": 15, "size": 1000, "cost": { "amount": 0.25, "currency": "USD" } }));
    tape.update(json!({ "sessionUpdate": "usage_update", "used": 20, "size": 1000, "cost": { "amount": 0.75, "currency": "USD" } }));
    tape.update(json!({ "sessionUpdate": "session_info_update", "title": "Fix it", "updatedAt": "2026-11-16T07:44:00Z" }));
    let end = tape.agent_answers(
        prompt,
        json!({ "stopReason": "end_turn", "usage": { "totalTokens": 15, "inputTokens": 10, "outputTokens": 5, "cachedReadTokens": 0 } }),
    );
    let rows = tape.rows();

    assert_eq!(
        rows.get(
            SESSIONS,
            "user_name team agent model mode title cwd repository opened_us turns tool_calls frames"
        ),
        [format!(
            "ann | core,web | claude | opus | default | Fix it | /w | /w | 1000 | 1 | 2 | {}",
            tape.frames.len()
        )]
    );
    assert_eq!(
        rows.get(BINDINGS, "binding_id session_id process_id seq agent agent_session how bound_us ended_us"),
        [format!("{BINDING} | {SESSION} | {PROCESS} | 2 | claude | a-1 | new | 2000 | -")]
    );
    assert_eq!(
        rows.get(
            TURNS,
            "turn user_name agent model mode prompt began_us ended_us ended_seq duration_us stop_reason error"
        ),
        [format!(
            "5 | ann | claude | opus | default | fix @src/a.rs please\nfile:///w/b%20c.rs\n[image] | 5000 | {}000 | {end} | {}000 | end_turn | -",
            end,
            end - 5
        )]
    );
    assert_eq!(
        rows.get(MESSAGES, "message turn role message_id text chunks truncated"),
        ["6 | 5 | agent | m1 | I will. | 2 | false"]
    );
    assert_eq!(
        rows.get(TOOL_CALLS, "call tool_call_id turn team name title kind status input output began_us ended_us duration_us"),
        [
            format!(
                "8 | t1 | 5 | core,web | Bash | make test | execute | completed | {{\"command\":\"make test\"}} | \"ok\" | 8000 | {ended}000 | {}000",
                ended - 8
            ),
            r#"15 | t2 | 5 | core,web | Write | Write n.txt | edit | pending | {"file_path":"/w/n.txt","content":"x"} | [{"type":"diff","path":"/w/n.txt","oldText":null,"newText":"x"}] | 15000 | - | -"#.to_string(),
        ]
    );
    assert_eq!(
        rows.get(FILE_ACCESSES, "seq item turn path access source call tool_call_id"),
        [
            "5 | 0 | 5 | src/a.rs | mention | mention | - | -",
            "5 | 1 | 5 | /w/b c.rs | mention | resource | - | -",
            "15 | 0 | 5 | /w/n.txt | write | diff | 15 | t2"
        ]
    );
    assert_eq!(
        rows.get(COMMANDS, "seq turn source line call tool_call_id began_us ended_us exit_code error"),
        [format!("9 | 5 | tool | make test | 8 | t1 | 9000 | {ended}000 | - | -")]
    );
    assert_eq!(
        rows.get(DECISIONS, "seq call tool kind title input decision option_id option_kind decided_by asked_us decided_us duration_us"),
        [format!("{asked} | 8 | Bash | execute | make test | {{\"command\":\"make test\"}} | allow | yes | allow_once | editor | 10000 | 11000 | 1000")]
    );
    assert_eq!(
        rows.get(USAGE, "turn model input_tokens output_tokens thought_tokens total_tokens cost cost_total currency context_used context_size"),
        [
            "5 | opus | - | - | - | - | 0.250000 | 0.250000 | USD | 15 | 1000",
            "5 | opus | - | - | - | - | 0.500000 | 0.750000 | USD | 20 | 1000",
            "5 | opus | 10 | 5 | - | 15 | - | - | - | - | -",
        ]
    );
}

/// An agent that has us run its commands and write its files.
#[test]
fn an_agent_that_asks_for_files_and_terminals() {
    let mut tape = Tape::session();
    let (turn, prompt) = tape.prompt("go");
    let call = tape.update(json!({ "sessionUpdate": "tool_call", "toolCallId": "c1", "title": "shell · echo",
        "rawInput": { "command": "echo 'a b' > out" }, "_meta": { "goose": { "toolCall": { "toolName": "shell" } } } }));
    let created = tape.serve(
        "terminal/create",
        json!({ "sessionId": "a-1", "command": "echo 'a b' > out", "cwd": "/w" }),
        json!({ "result": { "terminalId": "term-1" } }),
    );
    tape.update(json!({ "sessionUpdate": "tool_call_update", "toolCallId": "c1", "content": [{ "type": "terminal", "terminalId": "term-1" }] }));
    tape.serve(
        "terminal/output",
        json!({ "terminalId": "term-1" }),
        json!({ "result": { "output": "", "truncated": false, "exitStatus": null } }),
    );
    tape.serve(
        "terminal/wait_for_exit",
        json!({ "terminalId": "term-1" }),
        json!({ "result": { "exitCode": 3, "signal": null } }),
    );
    let exit = tape.frames.len();
    tape.serve("terminal/release", json!({ "terminalId": "term-1" }), json!({ "result": {} }));
    tape.update(json!({ "sessionUpdate": "tool_call_update", "toolCallId": "c1", "status": "completed" }));
    // A terminal of its own, ended by a signal, seen by polling.
    let other = tape.serve(
        "terminal/create",
        json!({ "command": "grep", "args": ["-r", "it's", ""] }),
        json!({ "result": { "terminalId": "term-2" } }),
    );
    tape.serve(
        "terminal/output",
        json!({ "terminalId": "term-2" }),
        json!({ "result": { "output": "", "exitStatus": { "exitCode": null, "signal": "KILL" } } }),
    );
    let refused = tape.serve(
        "terminal/create",
        json!({ "command": "rm" }),
        json!({ "error": { "code": -31002, "message": "too many" } }),
    );
    let read = tape.serve(
        "fs/read_text_file",
        json!({ "path": "/w/none" }),
        json!({ "error": { "code": -32002, "message": "no such file" } }),
    );
    let (write, id) = tape.ask_editor("fs/write_text_file", json!({ "path": "/w/x", "content": "y" }));
    tape.editor_answers(id, json!({}));
    tape.agent_answers(prompt, json!({ "stopReason": "end_turn" }));
    let rows = tape.rows();

    assert_eq!(rows.get(TOOL_CALLS, "call name kind status"), [format!("{call} | shell | - | completed")]);
    assert_eq!(
        rows.get(
            COMMANDS,
            "seq turn source line argv cwd call terminal_id began_us ended_us exit_code exit_signal error"
        ),
        [
            format!(
                "{call} | {turn} | terminal | echo 'a b' > out | - | /w | {call} | term-1 | {call}000 | {exit}000 | 3 | - | -"
            ),
            format!(
                r#"{other} | {turn} | terminal | grep -r 'it'\''s' '' | ["grep","-r","it's",""] | - | - | term-2 | {other}000 | {}000 | - | KILL | -"#,
                other + 3
            ),
            format!(
                "{refused} | {turn} | terminal | rm | - | - | - | - | {refused}000 | - | - | - | too many (-31002)"
            ),
        ]
    );
    assert!(created > call);
    assert_eq!(
        rows.get(FILE_ACCESSES, "seq turn path access source error"),
        [
            format!("{read} | {turn} | /w/none | read | fs | no such file (-32002)"),
            format!("{write} | {turn} | /w/x | write | fs | -")
        ]
    );
}

/// An agent with argument lists and patches, whose wishes are turned down.
#[test]
fn what_is_refused_was_not_run() {
    let mut tape = Tape::session();
    let (turn, prompt) = tape.prompt("go");
    let run = tape.update(json!({ "sessionUpdate": "tool_call", "toolCallId": "x1", "title": "ls", "kind": "execute", "status": "in_progress",
        "rawInput": { "command": ["bash", "-lc", "ls -l"], "cwd": "/w" } }));
    let ended = tape.update(json!({ "sessionUpdate": "tool_call_update", "toolCallId": "x1", "status": "failed", "rawOutput": { "exit_code": 2, "output": "?" } }));
    let patch = tape
        .update(json!({ "sessionUpdate": "tool_call", "toolCallId": "x2", "title": "patch", "kind": "edit",
        "rawInput": { "changes": { "/w/a": { "type": "update" }, "/w/b": { "type": "delete" } } } }));
    let mut asked = Vec::new();
    for (at, outcome) in [
        json!({ "outcome": "selected", "optionId": "no" }),
        json!({ "outcome": "cancelled" }),
        json!({ "outcome": "selected", "optionId": "made up" }),
    ]
    .into_iter()
    .enumerate()
    {
        let tool_call = json!({ "toolCallId": format!("y{at}"), "title": "rm", "rawInput": { "cmd": format!("rm {at}") } });
        let (seq, id) = tape
            .ask_editor("session/request_permission", json!({ "toolCall": tool_call, "options": options() }));
        tape.editor_answers(id, json!({ "outcome": outcome }));
        tape.update(json!({ "sessionUpdate": "tool_call_update", "toolCallId": format!("y{at}"), "status": "failed" }));
        asked.push(seq);
    }
    // We answer for the editor, by the agent's own id.
    tape.next += 1;
    let frame = json!({ "id": "p", "method": "session/request_permission", "params": { "toolCall": { "toolCallId": "y9" }, "options": options() } });
    let ours = tape.push(Origin::Agent, Destination::Editor, Some(tape.next), frame);
    tape.push(
        Origin::Conductor,
        Destination::Agent,
        None,
        json!({ "id": "p", "result": { "outcome": { "outcome": "cancelled" } } }),
    );
    // Too late, and nothing to do with it any more.
    tape.editor_answers(tape.next, json!({ "outcome": { "outcome": "selected", "optionId": "yes" } }));
    tape.agent_answers(prompt, json!({ "stopReason": "refusal" }));
    let rows = tape.rows();

    let [a, b, c] = asked[..] else { panic!("three were asked") };
    assert_eq!(
        rows.get(COMMANDS, "seq turn line argv cwd ended_us exit_code error"),
        [
            format!(
                r#"{run} | {turn} | bash -lc 'ls -l' | ["bash","-lc","ls -l"] | /w | {ended}000 | 2 | -"#
            ),
            format!("{a} | {turn} | rm 0 | - | - | - | - | rejected"),
            format!("{b} | {turn} | rm 1 | - | - | - | - | cancelled"),
            format!("{c} | {turn} | rm 2 | - | - | - | - | error"),
        ]
    );
    assert_eq!(
        rows.get(DECISIONS, "seq tool decision option_id option_kind decided_by"),
        [
            format!("{a} | unknown | reject | no | reject_once | editor"),
            format!("{b} | unknown | cancelled | - | - | editor"),
            format!("{c} | unknown | error | made up | - | editor"),
            format!("{ours} | unknown | cancelled | - | - | conductor"),
        ]
    );
    assert_eq!(
        rows.get(FILE_ACCESSES, "seq path access source"),
        [format!("{patch} | /w/a | write | input"), format!("{patch} | /w/b | delete | input")]
    );
}

#[test]
fn an_id_that_is_used_again_is_another_tool_call() {
    let mut tape = Tape::session();
    let mut began = Vec::new();
    for command in ["ls", "pwd"] {
        let (_, prompt) = tape.prompt("go");
        let tool_call =
            json!({ "toolCallId": "pending", "kind": "execute", "rawInput": { "command": command } });
        let (seq, id) = tape
            .ask_editor("session/request_permission", json!({ "toolCall": tool_call, "options": options() }));
        tape.editor_answers(id, json!({ "outcome": { "outcome": "selected", "optionId": "always" } }));
        // Said twice, meant once.
        for _ in 0..2 {
            tape.update(json!({ "sessionUpdate": "tool_call", "toolCallId": "pending", "title": command, "status": "in_progress" }));
        }
        tape.update(
            json!({ "sessionUpdate": "tool_call_update", "toolCallId": "pending", "status": "completed" }),
        );
        tape.agent_answers(prompt, json!({ "stopReason": "end_turn" }));
        began.push(seq);
    }
    let rows = tape.rows();
    let expected =
        |line: &str, at: usize| format!("{0} | pending | {0}000 | completed | {1}", began[at], line);
    assert_eq!(
        rows.get(TOOL_CALLS, "call tool_call_id began_us status title"),
        [expected("ls", 0), expected("pwd", 1)]
    );
    assert_eq!(
        rows.get(COMMANDS, "line call"),
        [format!("ls | {}", began[0]), format!("pwd | {}", began[1])]
    );
    assert_eq!(rows.get(DECISIONS, "decision option_kind"), ["allow | allow_always"; 2]);
    assert_eq!(rows.get(SESSIONS, "tool_calls turns"), ["2 | 2"]);
}

#[test]
fn a_command_that_is_asked_for_under_another_id_is_one_command() {
    let mut tape = Tape::session();
    tape.prompt("go");
    let tool_call =
        json!({ "toolCallId": "pending", "kind": "execute", "rawInput": { "command": "echo hi" } });
    let (asked, id) =
        tape.ask_editor("session/request_permission", json!({ "toolCall": tool_call, "options": options() }));
    tape.editor_answers(id, json!({ "outcome": { "outcome": "selected", "optionId": "yes" } }));
    let call = tape.update(
        json!({ "sessionUpdate": "tool_call", "toolCallId": "real", "title": "execute", "kind": "execute",
        "rawInput": { "command": "echo hi" } }),
    );
    tape.serve(
        "terminal/create",
        json!({ "command": "echo", "args": ["hi"] }),
        json!({ "result": { "terminalId": "t" } }),
    );
    tape.serve(
        "terminal/wait_for_exit",
        json!({ "terminalId": "t" }),
        json!({ "result": { "exitCode": 0 } }),
    );
    // Another one that only reads the same.
    let other = tape
        .update(json!({ "sessionUpdate": "tool_call", "toolCallId": "real too", "title": "execute",
        "rawInput": { "command": "echo hi" } }));
    assert_eq!(
        tape.rows().get(COMMANDS, "seq call tool_call_id source exit_code"),
        [
            format!("{asked} | {call} | real | terminal | 0"),
            format!("{other} | {other} | real too | tool | -")
        ]
    );
}

#[test]
fn chunks_are_joined_to_messages() {
    let mut tape = Tape::session();
    tape.chunk("user_message_chunk", "before any turn", None);
    let (turn, prompt) = tape.prompt("go");
    tape.chunk("agent_thought_chunk", "hm", None);
    tape.chunk("agent_message_chunk", "a", None);
    // These say nothing of the conversation.
    tape.update(json!({ "sessionUpdate": "session_info_update", "title": "t" }));
    tape.update(json!({ "sessionUpdate": "usage_update", "used": 1, "size": 2 }));
    tape.update(json!({ "sessionUpdate": "available_commands_update", "availableCommands": [] }));
    tape.chunk("agent_message_chunk", "b", None);
    tape.update(json!({ "sessionUpdate": "plan", "entries": [] }));
    tape.chunk("agent_message_chunk", "c", None);
    // By id, they may cross.
    for (kind, text, id) in [
        ("agent_message_chunk", "1", "x"),
        ("agent_thought_chunk", "2", "y"),
        ("agent_message_chunk", "3", "x"),
        ("agent_message_chunk", "4", "z"),
    ] {
        tape.chunk(kind, text, Some(id));
        tape.update(json!({ "sessionUpdate": "something_new" }));
    }
    tape.update(
        json!({ "sessionUpdate": "agent_message_chunk", "content": { "type": "image", "data": "" } }),
    );
    tape.agent_answers(prompt, json!({ "stopReason": "end_turn" }));
    tape.chunk("agent_message_chunk", "late", None);
    let rows = tape.rows();
    let expected = [
        "user | - | - | before any turn | 1".to_string(),
        format!("thought | {turn} | - | hm | 1"),
        format!("agent | {turn} | - | ab | 2"),
        format!("agent | {turn} | - | c | 1"),
        format!("agent | {turn} | x | 13 | 2"),
        format!("thought | {turn} | y | 2 | 1"),
        format!("agent | {turn} | z | 4 | 1"),
        format!("agent | {turn} | - |  | 1"),
        "agent | - | - | late | 1".to_string(),
    ];
    assert_eq!(rows.get(MESSAGES, "role turn message_id text chunks"), expected);
}

#[test]
fn models_and_modes_are_followed() {
    let mut tape = Tape::session();
    let (_, new) = tape.ask_agent("session/new", json!({}));
    tape.agent_answers(
        new,
        json!({ "models": { "currentModelId": "old" }, "modes": { "currentModeId": "ask" } }),
    );
    let (first, id) = tape.prompt("1");
    tape.agent_answers(id, json!({ "stopReason": "end_turn" }));
    tape.update(json!({ "sessionUpdate": "current_mode_update", "currentModeId": "code" }));
    tape.update(json!({ "sessionUpdate": "config_option_update", "configOptions": [{ "id": "model", "currentValue": "new" }, { "id": "b", "currentValue": true }] }));
    let (second, id) = tape.prompt("2");
    tape.agent_answers(id, json!({ "stopReason": "end_turn" }));
    // A wish of our own, and one of the editor's that was refused.
    tape.push(
        Origin::Conductor,
        Destination::Agent,
        None,
        json!({ "id": 7000, "method": "session/set_mode", "params": { "modeId": "plan" } }),
    );
    tape.agent_answers(7000, json!({}));
    let (_, id) = tape.ask_agent("session/set_mode", json!({ "modeId": "never" }));
    tape.push(
        Origin::Agent,
        Destination::Editor,
        None,
        json!({ "id": id, "error": { "code": 1, "message": "no" } }),
    );
    let (_, id) = tape.ask_agent("session/set_config_option", json!({ "configId": "m", "value": "newest" }));
    tape.agent_answers(
        id,
        json!({ "configOptions": [{ "id": "m", "category": "model", "currentValue": "newest" }] }),
    );
    let (third, _) = tape.prompt("3");
    let rows = tape.rows();
    assert_eq!(
        rows.get(TURNS, "turn model mode"),
        [
            format!("{first} | old | ask"),
            format!("{second} | new | code"),
            format!("{third} | newest | plan")
        ]
    );
    assert_eq!(rows.get(SESSIONS, "model mode"), ["newest | plan"]);
}
