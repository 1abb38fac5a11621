//! Sessions that several people drive.

use super::*;

fn selected(option: &str) -> serde_json::Value {
    json!({ "outcome": { "outcome": "selected", "optionId": option } })
}

impl Tape {
    /// What comes next is said by somebody else than the owner, who is ann.
    fn by(&mut self, user: &str) -> &mut Self {
        self.note(note::BY, json!({ "user": user }));
        self
    }

    fn permission(&mut self) -> (i64, u64) {
        let options = json!([
            { "optionId": "yes", "name": "Yes", "kind": "allow_once" },
            { "optionId": "no", "name": "No", "kind": "reject_once" },
        ]);
        let params = json!({ "toolCall": { "toolCallId": "t", "title": "rm" }, "options": options });
        self.ask_editor("session/request_permission", params)
    }

    /// A request with an id that other editors may use as well, and our answer.
    fn ask_us(&mut self, id: u64, method: &str, outgoing: Option<u64>, result: serde_json::Value) {
        let frame = json!({ "id": id, "method": method, "params": { "sessionId": SESSION.to_string() } });
        self.push(Origin::Editor, Destination::Agent, outgoing, frame);
        let answer = json!({ "id": id, "result": result });
        self.push(Origin::Conductor, Destination::Editor, None, answer);
    }
}

#[test]
fn whoever_prompts_and_answers_is_named() {
    let mut tape = Tape::session();
    let (first, id) = tape.prompt("by the owner");
    let (a, ask) = tape.permission();
    tape.by("bob").editor_answers(ask, selected("yes"));
    let (b, ask) = tape.permission();
    tape.editor_answers(ask, selected("no"));
    let (c, _) = tape.permission();
    let own = format!("agent-{}", tape.next);
    let cancelled = json!({ "id": own, "result": { "outcome": { "outcome": "cancelled" } } });
    tape.push(Origin::Conductor, Destination::Agent, None, cancelled);
    tape.agent_answers(id, json!({ "stopReason": "end_turn" }));
    let (second, id) = tape.by("bob").prompt("by bob");
    let (_, mode) = tape.by("bob").ask_agent("session/set_mode", json!({ "modeId": "code" }));
    tape.agent_answers(mode, json!({}));
    let cancel = json!({ "method": "session/cancel", "params": { "sessionId": SESSION.to_string() } });
    tape.by("cy").push(Origin::Editor, Destination::Agent, None, cancel);
    tape.agent_answers(id, json!({ "stopReason": "end_turn" }));
    // Opened again by somebody else, it stays its owner's.
    tape.note(note::SESSION_OPENED, json!({ "how": "load", "user": "bob", "teams": ["ops"] }));
    let (third, _) = tape.prompt("by the owner again");
    let (d, ask) = tape.permission();
    tape.editor_answers(ask, selected("yes"));
    let rows = tape.rows();
    assert_eq!(
        rows.get(TURNS, "turn user_name team agent prompt stop_reason"),
        [
            format!("{first} | ann | core,web | claude | by the owner | end_turn"),
            format!("{second} | bob | - | claude | by bob | cancelled"),
            format!("{third} | ann | core,web | claude | by the owner again | -"),
        ]
    );
    assert_eq!(
        rows.get(DECISIONS, "seq user_name decision decided_by decided_user"),
        [
            format!("{a} | ann | allow | editor | bob"),
            format!("{b} | ann | reject | editor | ann"),
            format!("{c} | ann | cancelled | conductor | -"),
            format!("{d} | ann | allow | editor | ann"),
        ]
    );
    assert_eq!(rows.get(SESSIONS, "user_name mode turns"), ["ann | code | 3"]);
}

#[test]
fn a_name_counts_for_the_next_frame_only() {
    let others: [fn(&mut Tape) -> i64; 4] = [
        |tape| tape.note(note::SEATED, json!({ "user": "bob", "as": "driver", "seat": 1 })),
        |tape| tape.note(note::TURN_STALLED, json!({ "after": 7 })),
        |tape| tape.chunk("agent_message_chunk", "hm", None),
        |tape| tape.push(Origin::Agent, Destination::Editor, None, "no JSON"),
    ];
    for other in others {
        let mut tape = Tape::session();
        tape.by("bob");
        other(&mut tape);
        tape.prompt("whose?");
        assert_eq!(tape.rows().get(TURNS, "user_name team"), ["ann | core,web"]);
    }
    // What is no name names nobody, and an agent cannot write our notes.
    let mut tape = Tape::session();
    tape.note(note::BY, json!({ "user": 7 }));
    tape.prompt("one");
    let forged = String::from_utf8(crate::record::note(note::BY, &json!({ "user": "eve" }))).unwrap();
    tape.push(Origin::Agent, Destination::Editor, None, forged);
    tape.prompt("two");
    assert_eq!(tape.rows().get(TURNS, "user_name"), ["ann", "ann"]);
}

#[test]
fn who_declines_has_not_decided() {
    let mut tape = Tape::session();
    tape.prompt("go");
    let (asked, ask) = tape.permission();
    for user in ["bob", "cy"] {
        tape.note(note::DECLINED, json!({}));
        tape.by(user).editor_answers(ask, json!({ "outcome": { "outcome": "cancelled" } }));
    }
    assert_eq!(tape.rows().get(DECISIONS, "decision decided_user"), ["- | -"]);
    tape.editor_answers(ask, selected("yes"));
    // Too late.
    tape.by("bob").editor_answers(ask, selected("no"));
    let rows = tape.rows();
    assert_eq!(rows.get(DECISIONS, "seq decision decided_user"), [format!("{asked} | allow | ann")]);
}

/// Every editor numbers its requests by itself.
#[test]
fn editors_may_use_the_same_ids() {
    let mut tape = Tape::session();
    let prompt = |text: &str| json!({ "id": 1, "method": "session/prompt", "params": { "prompt": [{ "type": "text", "text": text }] } });
    let first = tape.push(Origin::Editor, Destination::Agent, Some(7), prompt("first"));
    tape.chunk("agent_message_chunk", "one ", None);
    // Bob takes a seat in the midst of it, asks this and that, and leaves.
    tape.by("bob").ask_us(1, "session/load", None, json!({ "modes": { "currentModeId": "none of it" } }));
    tape.chunk("agent_message_chunk", "message", None);
    tape.by("bob").ask_us(1, "_unknown", None, json!({}));
    tape.by("bob").push(Origin::Editor, Destination::Agent, None, json!({ "id": 1, "method": "_bare" }));
    tape.push(Origin::Conductor, Destination::Editor, None, json!({ "id": 1, "result": {} }));
    let second = tape.by("bob").push(Origin::Editor, Destination::Agent, None, prompt("second"));
    let cancelled = json!({ "id": 1, "result": { "stopReason": "cancelled" } });
    tape.push(Origin::Conductor, Destination::Editor, None, cancelled);
    tape.by("bob").ask_us(1, "session/close", None, json!({}));
    tape.agent_answers(7, json!({ "stopReason": "end_turn" }));
    let rows = tape.rows();
    assert_eq!(
        rows.get(TURNS, "turn user_name prompt stop_reason"),
        [format!("{first} | ann | first | end_turn"), format!("{second} | bob | second | cancelled")]
    );
    // That somebody came in between does not make it two.
    assert_eq!(rows.get(MESSAGES, "turn text"), [format!("{first} | one message")]);
}
