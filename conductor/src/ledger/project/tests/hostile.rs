//! Frames that mean harm.

use super::*;

/// Numbers that look random and are the same every time.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % sides as u64) as usize
    }
}

/// Whether both databases take a row as it is.
fn is_storable(fact: &Fact) {
    let table = &TABLES[fact.table];
    assert_eq!(fact.values.len(), table.columns.len());
    for (value, column) in fact.values.iter().zip(table.columns) {
        use crate::ledger::table::Type;
        let context = || format!("{}.{}: {value:?}", table.name, column.name);
        match (value, column.kind) {
            (Value::Null, _)
            | (Value::Id(_), Type::Id)
            | (Value::Int(_), Type::Int)
            | (Value::Bool(_), Type::Bool) => {}
            (Value::Real(number), Type::Real) => assert!(number.is_finite(), "{}", context()),
            (Value::Text(text), Type::Text) => {
                assert!(!text.contains('\0') && text.len() <= 1 << 20, "{}", context());
                let indexed = matches!(column.name, "path" | "name" | "user_name" | "repository");
                assert!(!indexed || text.len() <= 2000, "{}", context());
            }
            (Value::Json(text), Type::Json) => {
                assert!(text.len() <= 256 << 10, "{}", context());
                assert!(json::frame(text).is_some(), "{}", context());
                // As strict about surrogates as Postgres is.
                serde_json::from_str::<serde::de::IgnoredAny>(text).unwrap();
            }
            _ => panic!("a wrong type: {}", context()),
        }
    }
    for value in fact.key() {
        assert!(*value != Value::Null, "{}: a key without a value", table.name);
    }
}

/// Frames of every sort, with holes for something nasty.
const SEEDS: &[&str] = &[
    r#"{"id":1,"method":"session/prompt","params":{"prompt":[{"type":"text","text":@},{"type":"resource","resource":{"uri":@}},@]}}"#,
    r#"{"method":"session/update","params":{"update":{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":@},"messageId":@}}}"#,
    r#"{"method":"session/update","params":{"update":{"sessionUpdate":"agent_message_chunk","content":@}}}"#,
    r#"{"method":"session/update","params":{"update":{"sessionUpdate":"tool_call","toolCallId":@,"title":@,"kind":@,"status":@,"rawInput":@,"rawOutput":@,"locations":[{"path":@},@],"content":[{"type":"diff","path":@},@],"_meta":{"claudeCode":@}}}}"#,
    r#"{"method":"session/update","params":{"update":{"sessionUpdate":"tool_call","toolCallId":"t","rawInput":{"command":@,"args":[@],"path":@,"changes":{"x":@},"files":@,"cwd":@}}}}"#,
    r#"{"method":"session/update","params":{"update":{"sessionUpdate":"tool_call_update","toolCallId":"t","status":"completed","rawOutput":{"exit_code":@,"metadata":@}}}}"#,
    r#"{"method":"session/update","params":{"update":{"sessionUpdate":"usage_update","used":@,"size":@,"cost":{"amount":@,"currency":@}}}}"#,
    r#"{"method":"session/update","params":{"update":{"sessionUpdate":"config_option_update","configOptions":[{"id":"mode","currentValue":@},@]}}}"#,
    r#"{"method":"session/update","params":{"update":{"sessionUpdate":"session_info_update","title":@}}}"#,
    r#"{"method":"session/update","params":{"update":{"sessionUpdate":@}}}"#,
    r#"{"id":2,"method":"session/request_permission","params":{"toolCall":{"toolCallId":@,"rawInput":@,"title":@},"options":[{"optionId":@,"kind":@},@]}}"#,
    r#"{"id":3,"method":"fs/write_text_file","params":{"path":@,"content":@}}"#,
    r#"{"id":4,"method":"terminal/create","params":{"command":@,"args":[@,@],"cwd":@}}"#,
    r#"{"id":5,"method":"terminal/wait_for_exit","params":{"terminalId":@}}"#,
    r#"{"id":1,"result":{"stopReason":@,"usage":{"inputTokens":@,"totalTokens":@},"outcome":{"outcome":"selected","optionId":@},"terminalId":@,"exitCode":@,"signal":@}}"#,
    r#"{"id":1,"error":{"code":@,"message":@}}"#,
    r#"{"method":"_conductor/session_opened","params":{"how":@,"user":@,"teams":[@,@],"agent":@,"cwd":@,"connection":@}}"#,
    r#"{"method":"_conductor/asked","params":{"approval":@,"seq":@,"user":@,"approvers":@,"terms":[@],"isShown":@,"rule":@,"reason":@,"dueUs":@}}"#,
    r#"{"method":"_conductor/answered","params":{"approval":@,"outcome":@,"by":@,"via":@,"reason":@}}"#,
    r#"{"method":"_conductor/granted","params":{"grant":@,"scope":@,"scopeName":@,"what":@,"parts":[@,@],"by":@,"teams":[@,@],"reason":@,"expiresUs":@,"mostUses":@}}"#,
    r#"{"method":"_conductor/grant_used","params":{"seq":@,"grant":@,"number":@,"left":@,"subActions":[@]}}"#,
    r#"{"method":"_conductor/session_bound","params":{"binding":@,"process":@,"agentSession":@}}"#,
    r#"{"method":"_conductor/process_ended","params":{"reason":@,"code":@,"signal":@,"crashed":@,"stderr":@}}"#,
    r#"{"id":@,"method":@,"params":@}"#,
];

const NASTY: &[&str] = &[
    "null",
    "\"t\"",
    "\"\"",
    "0",
    "-0",
    "1e400000",
    "-1e-400000",
    "1e308",
    "18446744073709551616",
    "true",
    "[]",
    "{}",
    "[[[[]]]]",
    r#""\u0000""#,
    r#""\ud800""#,
    r#""a\udc00\ud83d\ude00""#,
    r#""@a.b @c/d\u0000""#,
    r#"{"\u0000":1,"\ud800":"x"}"#,
    r#"{"a":1,"a":1e999999}"#,
    r#""file:///%00%ff%""#,
    r#""00000000-0000-0000-0000-000000000001""#,
    r#"["x",["y"],{"path":"z"}]"#,
    "\"\u{7f}é😀\u{202e}\"",
    "\"completed\"",
];

#[test]
fn nothing_that_comes_in_goes_wrong() {
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
    let mut states = [State::default(), State::default(), State::default()];
    let kinds = [StreamKind::Session, StreamKind::Process, StreamKind::Connection];
    let long = format!("\"{}\"", "x/é".repeat(2000));
    let mut facts = 0;
    for seq in 1..=20_000u64 {
        let mut frame = String::new();
        for (at, part) in SEEDS[dice.roll(SEEDS.len())].split('@').enumerate() {
            if at > 0 {
                frame.push_str(if dice.roll(16) == 0 { &long } else { NASTY[dice.roll(NASTY.len())] });
            }
            frame.push_str(part);
        }
        let mut raw = frame.into_bytes();
        // Some are damaged as well.
        for _ in 0..dice.roll(6).saturating_sub(3) {
            let at = dice.roll(raw.len());
            match dice.roll(3) {
                0 => raw[at] = dice.roll(256) as u8,
                1 => raw.truncate(at.max(1)),
                _ => raw.insert(at, b"{}[]\",:\\\0"[dice.roll(9)]),
            }
        }
        let which = dice.roll(6).saturating_sub(3);
        let (origin, to) = [
            (Origin::Editor, Destination::Agent),
            (Origin::Agent, Destination::Editor),
            (Origin::Conductor, Destination::Record),
            (Origin::Conductor, Destination::Agent),
        ][dice.roll(4)];
        let stream = Stream { id: SESSION, kind: kinds[which] };
        let outgoing = (dice.roll(2) == 0).then_some(1);
        let view = FrameView { stream, seq, at_us: dice.roll(1000) as i64, origin, to, outgoing, raw: &raw };
        let projected = project(&mut states[which], &view);
        projected.facts.iter().for_each(is_storable);
        facts += projected.facts.len();
        let envelope = projected.envelope;
        assert!(envelope.json.is_none_or(
            |json| json.as_bytes() == raw && serde_json::from_str::<serde::de::IgnoredAny>(&json).is_ok()
        ));
        assert!(envelope.method.is_none_or(|method| !method.contains('\0') && method.len() <= 2 * NAME));
        assert!(envelope.kind != "opaque" || projected.facts.len() <= 1);
    }
    assert!(facts > 10_000, "only {facts} facts: the frames are too bad to test anything");
}

#[test]
fn numbers_and_nesting_beyond_reason_cost_only_themselves() {
    let mut tape = Tape::session();
    let (turn, id) = tape.prompt("go");
    for input in [
        "1e400000",
        "{\"a\":1e400000}",
        &format!("{}{}", "[".repeat(100), "]".repeat(100)),
        &"9".repeat(5000),
    ] {
        let frame = format!(
            r#"{{"method":"session/update","params":{{"update":{{"sessionUpdate":"tool_call","toolCallId":"{}","title":"x","rawInput":{input}}}}}}}"#,
            input.len()
        );
        tape.push(Origin::Agent, Destination::Editor, None, frame);
    }
    // Deeper than any frame may be: it is kept, and says nothing.
    let deep =
        format!(r#"{{"method":"session/update","params":{}{}}}"#, "[".repeat(100_000), "]".repeat(100_000));
    tape.push(Origin::Agent, Destination::Editor, None, deep);
    tape.agent_answers(id, json!({ "stopReason": "end_turn", "usage": { "inputTokens": 1e300, "outputTokens": -5, "totalTokens": 7 } }));
    let rows = tape.rows();
    let inputs = rows.get(TOOL_CALLS, "input");
    assert_eq!(inputs.iter().filter(|input| *input == "-").count(), 3);
    assert_eq!(inputs.iter().filter(|input| input.starts_with("[[[")).count(), 1);
    assert_eq!(
        rows.get(USAGE, "turn input_tokens output_tokens total_tokens"),
        [format!("{turn} | - | - | 7")]
    );
}

#[test]
fn a_key_that_stands_there_twice_hides_nothing() {
    let mut tape = Tape::session();
    let frame = r#"{"method":"session/update","params":{"update":{"\ud800":0,"sessionUpdate":"tool_call","toolCallId":"t","rawInput":{"command":"ls"},"title":"a","title":"b","rawInput":{"command":"rm -r x"}}}}"#;
    tape.push(Origin::Agent, Destination::Editor, None, frame);
    let rows = tape.rows();
    assert_eq!(rows.get(TOOL_CALLS, "title input"), [r#"b | {"command":"rm -r x"}"#]);
    assert_eq!(rows.get(COMMANDS, "line"), ["rm -r x"]);
}

#[test]
fn t01_a_message_is_cut_once_and_stays_cut() {
    let mut tape = Tape::session();
    let most = 1 << 20;
    tape.chunk("agent_message_chunk", &"a".repeat(most - 3), None);
    tape.chunk("agent_message_chunk", "é😀", None);
    tape.chunk("agent_message_chunk", "b", None);
    tape.chunk("agent_message_chunk", "", None);
    let rows = tape.rows();
    assert_eq!(rows.get(MESSAGES, "chunks truncated"), ["4 | true"]);
    let text = &rows.get(MESSAGES, "text")[0];
    assert!(text.len() == most - 1 && text.ends_with("aé"));
}

#[test]
fn one_frame_tells_of_so_much_and_no_more() {
    let mut tape = Tape::session();
    let locations: Vec<_> = (0..5000).map(|at| json!({ "path": format!("/w/{at}") })).collect();
    let text: String = (0..5000).map(|at| format!("@f/{at} ")).collect();
    tape.update(json!({ "sessionUpdate": "tool_call", "toolCallId": "t", "title": "x", "kind": "read", "locations": locations }));
    tape.prompt(&text);
    let rows = tape.rows();
    assert_eq!(rows.get(FILE_ACCESSES, "access").len(), 2 * MOST_ITEMS as usize);
}

#[test]
fn state_is_bounded() {
    let mut state = State::default();
    let stream = Stream { id: SESSION, kind: StreamKind::Session };
    let play = |state: &mut State, seq: u64, raw: String| {
        let (origin, to) = (Origin::Agent, Destination::Editor);
        let view = FrameView { stream, seq, at_us: 0, origin, to, outgoing: Some(seq), raw: raw.as_bytes() };
        project(state, &view);
    };
    for seq in 1..=21_000u64 {
        play(
            &mut state,
            seq,
            format!(
                r#"{{"method":"session/update","params":{{"update":{{"sessionUpdate":"tool_call","toolCallId":"{seq}","rawInput":{{"command":"{seq}","path":"/{seq}"}}}}}}}}"#
            ),
        );
    }
    for seq in 1..=5000u64 {
        play(
            &mut state,
            seq,
            format!(r#"{{"id":{seq},"method":"terminal/create","params":{{"command":"{seq}"}}}}"#),
        );
    }
    assert!(state.calls.len() <= 20_000 && state.kept <= 4 << 20);
    assert!(
        state.told.len() <= 20_001
            && state.commands.len() <= 64
            && state.waiting.len() <= waiting::MOST_WAITING
    );
}

#[test]
fn protected_places_that_were_changed_unasked_are_accesses_of_their_turn() {
    let mut tape = Tape::session();
    let (turn, _) = tape.prompt("go");
    let paths = json!([
        { "path": "/w/.git/hooks/pre-commit\n\u{1b}[2J", "change": "appeared" },
        { "path": "/w/.mcp.json", "change": "removed" },
        { "path": 7 },
        { "change": "changed" },
        "odd",
    ]);
    let note = tape.note(note::UNMEDIATED, json!({ "paths": paths, "more": 0 }));
    tape.note(note::UNMEDIATED, json!({ "toolCallId": "call-1" }));
    tape.note(note::UNMEDIATED, json!({ "paths": vec![json!({ "path": "/w/.envrc" }); 1000] }));
    let rows = tape.rows().get(FILE_ACCESSES, "seq item turn user_name agent path access source");
    assert_eq!(
        rows[..2],
        [
            format!(
                "{note} | 0 | {turn} | ann | claude | /w/.git/hooks/pre-commit\n\u{1b}[2J | write | survey"
            ),
            format!("{note} | 1 | {turn} | ann | claude | /w/.mcp.json | delete | survey"),
        ]
    );
    assert_eq!(rows.len(), 2 + 256, "one frame tells of so many");
}
