//! Events from frames as they were recorded.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

use serde::Deserialize;
use serde_json::{Value, json};

use super::*;
use crate::proto::{ContentBlock, ToolCallState, ToolStatus, content_block};

/// The record of a session of the demo agent's: a tool, a command that was
/// allowed, a question that was answered with no, a failure; in between the
/// editor left and came back.
const RECORDED: &str = include_str!("tests/recorded.jsonl");

#[derive(Deserialize)]
struct Line {
    seq: u64,
    at_us: i64,
    origin: String,
    destination: String,
    outgoing_id: Option<i64>,
    raw: String,
}

fn recorded() -> Vec<Frame> {
    RECORDED
        .lines()
        .map(|line| {
            let Line { seq, at_us, origin, destination, outgoing_id, raw } =
                serde_json::from_str(line).unwrap();
            Frame { seq, at_us, origin, destination, outgoing_id, raw: raw.into_bytes() }
        })
        .collect()
}

fn words(blocks: &[ContentBlock]) -> String {
    let word = |block: &ContentBlock| match block.kind.as_ref().unwrap() {
        content_block::Kind::Text(text) => text.trim_end().to_owned(),
        other => format!("{other:?}"),
    };
    blocks.iter().map(word).collect::<Vec<_>>().join(",")
}

fn tool(call: &ToolCallState) -> String {
    let status = ToolStatus::try_from(call.status).unwrap();
    let new = if call.is_new { " new" } else { "" };
    let output = call.output_json.as_deref().unwrap_or("-");
    format!("{} {} {} {status:?}{new} {output}", call.call, call.name, call.kind)
}

/// An event in a few words.
fn show(event: &Event) -> String {
    let what = match event.kind.as_ref().unwrap() {
        Kind::UserMessage(chunk) => format!("user {}", words(chunk.content.as_slice())),
        Kind::AgentMessage(chunk) => format!("agent {}", words(chunk.content.as_slice())),
        Kind::AgentThought(chunk) => format!("thought {}", words(chunk.content.as_slice())),
        Kind::ToolCall(call) => format!("tool {}", tool(call)),
        Kind::AvailableCommands(commands) => format!("commands {}", commands.commands.len()),
        Kind::Modes(modes) => format!("mode {} of {}", modes.current_mode_id, modes.available.len()),
        Kind::ConfigOptions(options) => {
            let each = options
                .options
                .iter()
                .map(|option| format!("{}={:?}", option.id, option.value.as_ref().unwrap()));
            format!("options {}", each.collect::<Vec<_>>().join(" "))
        }
        Kind::TurnStarted(turn) => format!("turn by {}: {}", turn.user, words(&turn.prompt)),
        Kind::TurnEnded(end) => format!("end {} {} {}", end.stop_reason, end.error, end.error_code),
        Kind::CancelRequested(cancel) => format!("cancel by {}", cancel.user),
        Kind::PermissionRequested(asked) => {
            let options: Vec<_> = asked.options.iter().map(|option| option.option_id.as_str()).collect();
            format!(
                "ask {} {} [{}]",
                asked.request,
                tool(asked.tool_call.as_ref().unwrap()),
                options.join(",")
            )
        }
        Kind::PermissionResolved(it) => {
            format!("decided {} {} {} {} by {}", it.request, it.outcome, it.option_id, it.option_kind, it.by)
        }
        Kind::SessionOpened(opened) => format!("opened {} by {} in {}", opened.how, opened.user, opened.cwd),
        Kind::SessionBound(bound) => format!("bound {}", bound.how),
        Kind::SessionEnded(ended) => format!("ended {}", ended.reason),
        Kind::SessionInfo(info) => format!("title {:?}", info.title),
        Kind::Other(other) => format!("other {} {} {}", other.origin, other.method, other.update),
        other => format!("{other:?}"),
    };
    format!("{}/{} {}", event.seq, event.turn, what.trim_end())
}

fn tell(frames: &[Frame]) -> Vec<String> {
    let mut events = Events::default();
    frames.iter().flat_map(|frame| events.hear(frame)).map(|event| show(&event)).collect()
}

/// A record in the making.
#[derive(Default)]
struct Tape(Vec<Frame>);

impl Tape {
    fn push(
        &mut self,
        origin: &str,
        destination: &str,
        outgoing_id: Option<i64>,
        frame: &Value,
    ) -> &mut Self {
        let seq = self.0.len() as u64 + 1;
        let (origin, destination) = (origin.to_owned(), destination.to_owned());
        let raw = frame.to_string().into_bytes();
        self.0.push(Frame { seq, at_us: 0, origin, destination, outgoing_id, raw });
        self
    }

    fn note(&mut self, method: &str, params: &Value) -> &mut Self {
        self.push("conductor", "record", None, &json!({ "method": method, "params": params }))
    }

    fn opened(&mut self) -> &mut Self {
        self.note(note::SESSION_OPENED, &json!({ "how": "new", "user": "ann", "agent": "demo", "cwd": "/w" }))
    }

    fn prompt(&mut self, outgoing: i64, text: &str) -> &mut Self {
        let params = json!({ "prompt": [{ "type": "text", "text": text }] });
        let id = format!("e{}", self.0.len());
        let frame = json!({ "id": id, "method": "session/prompt", "params": params });
        self.push("editor", "agent", Some(outgoing), &frame)
    }

    fn update(&mut self, update: &Value) -> &mut Self {
        let frame = json!({ "method": "session/update", "params": { "sessionId": "s", "update": update } });
        self.push("agent", "editor", None, &frame)
    }

    fn ask(&mut self, outgoing: i64) -> &mut Self {
        let params = json!({ "toolCall": { "toolCallId": "t", "title": "Go" }, "options": [
            { "optionId": "yes", "name": "Yes", "kind": "allow_once" }] });
        let frame = json!({ "id": "a1", "method": "session/request_permission", "params": params });
        self.push("agent", "editor", Some(outgoing), &frame)
    }

    fn said(&mut self, origin: &str, destination: &str, frame: &Value) -> &mut Self {
        self.push(origin, destination, None, frame)
    }

    fn told(&self) -> Vec<String> {
        tell(&self.0)
    }
}

#[test]
fn a_recorded_session_is_told() {
    let told = tell(&recorded());
    let wanted: Vec<_> = include_str!("tests/told.txt").lines().collect();
    assert_eq!(told, wanted);
}

#[test]
fn the_rest_of_a_record_is_the_same_wherever_it_begins() {
    let frames = recorded();
    let whole = tell(&frames);
    for from in 1..=frames.len() {
        let mut events = Events::default();
        frames[..from].iter().for_each(|frame| events.skip(frame));
        let rest: Vec<_> =
            frames[from..].iter().flat_map(|frame| events.hear(frame)).map(|e| show(&e)).collect();
        assert!(whole.ends_with(&rest), "from {from}: {rest:#?}");
        let before = whole.len() - rest.len();
        let number = |line: &String| line.split('/').next().unwrap().parse::<usize>().unwrap();
        assert!(whole[..before].iter().all(|line| number(line) <= from), "from {from}");
    }
}

#[test]
fn every_event_has_its_frame_and_says_whether_another_follows() {
    let mut tape = Tape::default();
    tape.opened().prompt(1, "go").note(note::SESSION_ENDED, &json!({ "reason": "killed" }));
    let mut events = Events::default();
    let told: Vec<_> = tape.0.iter().flat_map(|frame| events.hear(frame)).collect();
    let seen: Vec<_> = told.iter().map(|event| (event.seq, event.turn, event.more)).collect();
    assert_eq!(seen, [(1, 0, false), (2, 2, false), (3, 2, true), (3, 0, false)]);
    assert!(told.iter().all(|event| event.raw == tape.0[event.seq as usize - 1].raw));
}

#[test]
fn each_variant_has_its_type() {
    let text = json!({ "type": "text", "text": "x" });
    let cases = [
        (json!({ "sessionUpdate": "user_message_chunk", "content": text }), "user x"),
        (json!({ "sessionUpdate": "agent_message_chunk", "content": text, "messageId": "m" }), "agent x"),
        (json!({ "sessionUpdate": "agent_thought_chunk", "content": text }), "thought x"),
        (json!({ "sessionUpdate": "tool_call", "toolCallId": "t", "title": "T" }), "tool"),
        (json!({ "sessionUpdate": "tool_call_update", "toolCallId": "t", "status": "failed" }), "tool"),
        (
            json!({ "sessionUpdate": "plan", "entries": [{ "content": "c", "priority": "low", "status": "pending" }] }),
            "Plan(",
        ),
        (
            json!({ "sessionUpdate": "plan_update", "plan": { "type": "markdown", "planId": "p", "content": "# x" } }),
            "Plan(",
        ),
        (json!({ "sessionUpdate": "plan_removed", "planId": "p" }), "PlanRemoved("),
        (
            json!({ "sessionUpdate": "available_commands_update", "availableCommands": [{ "name": "c" }] }),
            "commands 1",
        ),
        (json!({ "sessionUpdate": "current_mode_update", "currentModeId": "code" }), "mode code"),
        (json!({ "sessionUpdate": "current_mode_update", "modeId": "old" }), "mode old"),
        (
            json!({ "sessionUpdate": "config_option_update", "configOptions": [
            { "id": "b", "type": "boolean", "currentValue": true }] }),
            "options b=Flag(true)",
        ),
        (json!({ "sessionUpdate": "session_info_update", "title": null }), "title Some(\"\")"),
        (json!({ "sessionUpdate": "session_info_update", "updatedAt": "now" }), "title None"),
        (
            json!({ "sessionUpdate": "usage_update", "used": 1, "size": 2, "cost": { "amount": 0.5, "currency": "USD" } }),
            "Usage(",
        ),
        (json!({ "sessionUpdate": "notice", "severity": "info", "title": "n" }), "Notice("),
        (
            json!({ "sessionUpdate": "compaction_update", "compactionId": "c", "status": "completed", "summary": [text] }),
            "Compaction(",
        ),
        (
            json!({ "sessionUpdate": "compaction_summary_chunk", "compactionId": "c", "content": text }),
            "CompactionSummary(",
        ),
        (
            json!({ "sessionUpdate": "subagent_update", "sessionId": "s", "state": { "state": "running" } }),
            "Subagent(",
        ),
        (
            json!({ "sessionUpdate": "session_message", "messageId": "m", "content": [text] }),
            "SubagentMessage(",
        ),
        (
            json!({ "sessionUpdate": "session_message_chunk", "messageId": "m", "content": text }),
            "SubagentMessage(",
        ),
        // What nobody knows yet, and what is of no shape.
        (json!({ "sessionUpdate": "brand_new", "x": 1 }), "other agent session/update brand_new"),
        (json!({ "sessionUpdate": "tool_call", "title": "no id" }), "other agent session/update tool_call"),
        (
            json!({ "sessionUpdate": "config_option_update" }),
            "other agent session/update config_option_update",
        ),
        (json!({ "sessionUpdate": 7 }), "other agent session/update"),
        (json!("no object"), "other agent session/update"),
        (json!({ "sessionUpdate": "plan", "entries": "none" }), "Plan("),
    ];
    for (update, wanted) in cases {
        let mut tape = Tape::default();
        let told = tape.update(&update).told();
        assert_eq!(told.len(), 1, "{update}");
        assert!(told[0].starts_with(&format!("1/0 {wanted}")), "{update}: {told:?}");
    }
}

#[test]
fn tool_calls_are_merged_and_named_as_in_the_ledger() {
    let mut tape = Tape::default();
    tape.opened().prompt(1, "go");
    tape.update(&json!({ "sessionUpdate": "tool_call", "toolCallId": "t", "title": "Bash", "kind": "execute", "rawInput": { "command": "ls" },
        "_meta": { "claudeCode": { "toolName": "Bash" } } }));
    tape.update(&json!({ "sessionUpdate": "tool_call_update", "toolCallId": "t", "status": "in_progress", "name": "shell",
        "content": [{ "type": "terminal", "terminalId": "x" }] }));
    tape.update(&json!({ "sessionUpdate": "tool_call_update", "toolCallId": "t", "_meta": { "claudeCode": { "toolName": "Bash", "toolResponse": { "stdout": "a" } } } }));
    tape.update(&json!({ "sessionUpdate": "tool_call_update", "toolCallId": "t", "status": "completed", "rawOutput": "done" }));
    // A worse source does not replace it.
    tape.update(&json!({ "sessionUpdate": "tool_call_update", "toolCallId": "t", "content": [{ "type": "diff", "path": "/a", "oldText": null, "newText": "n" }] }));
    // The same id again is another call.
    tape.update(&json!({ "sessionUpdate": "tool_call", "toolCallId": "t", "title": "again" }));
    let told = tape.told();
    assert_eq!(
        told[2..],
        [
            "3/2 tool 3 Bash execute Pending new -",
            r#"4/2 tool 3 shell execute InProgress [{"type":"terminal","terminalId":"x"}]"#,
            r#"5/2 tool 3 shell execute InProgress {"stdout":"a"}"#,
            r#"6/2 tool 3 shell execute Completed "done""#,
            "7/2 tool 3 shell execute Completed -",
            "8/2 tool 8 unknown  Pending new -",
        ]
    );
    let mut events = Events::default();
    let all: Vec<_> = tape.0.iter().flat_map(|frame| events.hear(frame)).collect();
    let Some(Kind::ToolCall(call)) = &all[6].kind else { panic!("{:?}", all[6]) };
    assert!(call.has_content && !call.has_locations && call.title == "Bash" && call.input_json.is_none());
    assert!(format!("{:?}", call.content).contains("old_text: None"), "{:?}", call.content);
}

#[test]
fn permissions_say_who_decided() {
    let selected = json!({ "id": 9, "result": { "outcome": { "outcome": "selected", "optionId": "yes" } } });
    let mut tape = Tape::default();
    tape.opened()
        .prompt(1, "go")
        .ask(9)
        .note(note::BY, &json!({ "user": "bob" }))
        .said("editor", "agent", &selected);
    // Too late.
    tape.said("editor", "agent", &selected);
    assert_eq!(
        tape.told()[2..],
        ["3/2 ask 9 3 unknown  Pending new - [yes]", "5/2 decided 9 selected yes allow_once by bob"]
    );

    // One of several would rather not: the others are still asked.
    let cancelled = json!({ "id": 9, "result": { "outcome": { "outcome": "cancelled" } } });
    let mut tape = Tape::default();
    tape.opened().prompt(1, "go").ask(9).note(note::DECLINED, &json!({ "user": "ann" }));
    tape.said("editor", "agent", &cancelled).said("editor", "agent", &selected);
    assert_eq!(tape.told()[4..], ["6/2 decided 9 selected yes allow_once by ann"]);

    // Cancelled: the conductor withdraws it and answers the agent.
    let mut tape = Tape::default();
    tape.opened().prompt(1, "go").ask(9);
    tape.said("editor", "agent", &json!({ "method": "session/cancel", "params": {} }));
    tape.said("conductor", "editor", &json!({ "method": "$/cancel_request", "params": { "requestId": 9 } }));
    tape.said(
        "conductor",
        "agent",
        &json!({ "id": "a1", "result": { "outcome": { "outcome": "cancelled" } } }),
    );
    tape.said("agent", "editor", &json!({ "id": 1, "result": { "stopReason": "end_turn" } }));
    assert_eq!(
        tape.told()[3..],
        ["4/2 cancel by ann", "6/2 decided 9 cancelled   by", "7/2 end cancelled  0"]
    );

    // The process has ended: nobody waits for an answer.
    let mut tape = Tape::default();
    tape.opened().prompt(1, "go").ask(9);
    tape.said(
        "conductor",
        "editor",
        &json!({ "id": "e1", "error": { "code": -31001, "message": "it died" } }),
    );
    tape.said("conductor", "editor", &json!({ "method": "$/cancel_request", "params": { "requestId": 9 } }));
    assert_eq!(tape.told()[3..], ["4/2 end  it died -31001", "5/0 decided 9 void   by"]);
}

#[test]
fn what_an_agent_repeats_is_not_told_again() {
    let chunk =
        json!({ "sessionUpdate": "agent_message_chunk", "content": { "type": "text", "text": "hi" } });
    let mut tape = Tape::default();
    tape.opened().prompt(1, "go").update(&chunk);
    tape.said("agent", "editor", &json!({ "id": 1, "result": { "stopReason": "end_turn" } }));
    tape.note(note::SESSION_ENDED, &json!({ "reason": "editor left" })).opened();
    tape.said("conductor", "agent", &json!({ "id": 1, "method": "session/load", "params": {} }));
    tape.update(&chunk);
    tape.said("agent", "editor", &json!({ "id": 1, "result": { "modes": { "currentModeId": "m" } } }));
    // Some go on after their answer.
    tape.update(&chunk).prompt(1, "more").update(&chunk);
    assert_eq!(
        tape.told()[5..],
        ["6/0 opened new by ann in /w", "9/0 mode m of 0", "11/11 turn by ann: more", "12/11 agent hi"]
    );
}

#[test]
fn a_prompt_of_another_driver_is_theirs() {
    let mut tape = Tape::default();
    tape.opened().note(note::BY, &json!({ "user": "bob" })).prompt(1, "go");
    tape.said(
        "agent",
        "editor",
        &json!({ "id": 1, "result": { "stopReason": "end_turn", "usage": { "inputTokens": 3 } } }),
    );
    tape.prompt(2, "mine");
    // Taken back before its turn came: no turn.
    tape.push(
        "editor",
        "agent",
        None,
        &json!({ "id": "q", "method": "session/prompt", "params": { "prompt": [] } }),
    );
    tape.said("conductor", "editor", &json!({ "id": "q", "result": { "stopReason": "cancelled" } }));
    assert_eq!(tape.told()[1..], ["3/3 turn by bob: go", "4/3 end end_turn  0", "5/5 turn by ann: mine"]);
}

#[test]
fn the_same_id_of_two_editors_is_told_apart() {
    let mut tape = Tape::default();
    let prompt = |id: i64| json!({ "id": id, "method": "session/prompt", "params": { "prompt": [] } });
    tape.opened().push("editor", "agent", Some(1), &prompt(3));
    // Another editor's prompt waited and was taken back.
    tape.push("editor", "agent", None, &prompt(3));
    tape.said("conductor", "editor", &json!({ "id": 3, "result": { "stopReason": "cancelled" } }));
    tape.said("agent", "editor", &json!({ "id": 1, "result": { "stopReason": "end_turn" } }));
    assert_eq!(tape.told()[1..], ["2/2 turn by ann:", "5/2 end end_turn  0"]);
}

#[test]
fn no_bytes_break_it() {
    let mut events = Events::default();
    let frame = |raw: &[u8], origin: &str| Frame {
        seq: 1,
        at_us: 0,
        origin: origin.to_owned(),
        destination: "editor".to_owned(),
        outgoing_id: Some(-1),
        raw: raw.to_vec(),
    };
    for raw in [
        &b"\xff\xfe"[..],
        b"",
        b"{}",
        b"[]",
        b"7",
        b"{\"method\":\"session/update\"}",
        b"{\"id\":1,\"result\":null}",
    ] {
        for origin in ["agent", "editor", "conductor", "nobody"] {
            assert!(events.hear(&frame(raw, origin)).len() <= 1, "{raw:?} of {origin}");
        }
    }
    // A frame of the largest size does not become many times as much.
    let many = format!("[{}]", "{},".repeat(1_000_000).trim_end_matches(','));
    let update = format!(
        "{{\"method\":\"session/update\",\"params\":{{\"update\":{{\"sessionUpdate\":\"plan\",\"entries\":{many}}}}}}}"
    );
    let told = events.hear(&frame(update.as_bytes(), "agent"));
    let Some(Kind::Plan(plan)) = &told[0].kind else { panic!("{:?}", told[0].kind) };
    assert_eq!(plan.entries.len(), 10_000);
}

#[test]
fn content_comes_back_as_it_went() {
    for given in [
        json!({ "type": "text", "text": "é" }),
        json!({ "type": "image", "data": "AA==", "mimeType": "image/png", "uri": "file:///a" }),
        json!({ "type": "audio", "data": "AA==", "mimeType": "audio/wav" }),
        json!({ "type": "resource_link", "uri": "file:///a", "name": "a", "size": 3 }),
        json!({ "type": "resource", "resource": { "uri": "file:///a", "text": "t", "mimeType": "text/plain" } }),
        json!({ "type": "resource", "resource": { "uri": "file:///a", "blob": "AA==" } }),
        json!({ "type": "hologram", "data": [1, 2] }),
    ] {
        let block = content::block(&given.to_string());
        assert_eq!(block_json(&block), Ok(given));
    }
    assert!(block_json(&ContentBlock { kind: None }).is_err());
    let nonsense = content_block::Kind::OtherJson("[1]".into());
    assert!(block_json(&ContentBlock { kind: Some(nonsense) }).unwrap_err().contains("object"));
}
