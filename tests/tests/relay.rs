//! Fidelity of the relay and of the transport (points 32–37 of conformance), judged by the
//! fake agent's own ledger.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

use std::time::Duration;

use conductor_tests::{
    editor::{Editor, Line},
    harness::{Service, assert_says, service},
    ledger::{Entry, Kind},
};
use serde_json::{Value, json};

/// JSON texts that a parser and a printer in between would change or refuse.
/// Each is a value; nothing in it names a session.
fn corpus() -> Vec<String> {
    let mut corpus: Vec<String> = [
        r#"{"z":1,"a":2,"m":{"z":1,"a":2}}"#,
        r#"{"int":123456789012345678901234567890,"exp":1e3,"Exp":1E+3,"zero":-0,"dec":1.10,"tiny":1e-400,"huge":1e400000}"#,
        r#"{"u":"\u00e9","e":"é","s":"\/","t":"\t\n\r\b\f","q":"\"\\"}"#,
        r#"{"nul":"a\u0000b","lone":"\ud83d","low":"\ude00","pair":"\ud83d\ude00","raw":"😀"}"#,
        r#"{"dup":1,"dup":2,"dup":{"dup":3,"dup":4}}"#,
        r#"{ "space" : [ 1 , 2 ,  3 ] , "tab"	:	null }"#,
        r#"{"":"","_meta":{"traceparent":"00-1","x":{"_meta":{"y":[{"_meta":null}]}}}}"#,
        r#"{"id":7,"method":"not/this","params":{"id":null},"result":1,"error":{"code":1},"jsonrpc":"1.0"}"#,
        r#"{"line":"\u2028\u2029\u0085","bidi":"\u202e","bom":"\ufeff"}"#,
        r#"[null,true,false,0,"",[],{},[[]],{"a":[]}]"#,
        r#""just text""#,
        "1e3",
        "null",
        "{}",
    ]
    .map(str::to_owned)
    .to_vec();
    corpus.push(format!("{}1{}", "[".repeat(100), "]".repeat(100)));
    corpus.push(format!(r#"{{"long":"{}"}}"#, "l".repeat(300_000)));
    corpus
}

/// Sends steps as a prompt text without touching their bytes.
fn prompt_raw(editor: &mut Editor, session: &str, steps: &str) -> Value {
    editor.prompt(session, &format!(r#"{{"do":[{steps}]}}"#))
}

fn find(editor: &Editor, wanted: &str) {
    let is_it = |line: &Line| (line.raw == wanted.as_bytes()).then_some(());
    editor.wait_for(&format!("exactly this line: {wanted:.300}"), is_it);
}

/// Waits for a line of the agent's input with this text in it.
fn received_with(service: &Service, part: &str) -> Entry {
    service.wait_received("fake", &format!("a line with {part:.300}"), |line| {
        line.text.as_deref().is_some_and(|text| text.contains(part))
    })
}

#[test]
fn p32_notifications_of_agents_pass_byte_for_byte() {
    let service = service(&json!({})).start();
    let (mut editor, session) = service.session();
    for value in corpus() {
        let line = |sid: &str| {
            format!(
                r#"{{"jsonrpc":"2.0","method":"session/update","params":{{"before":{value},"sessionId":"{sid}","update":{{"sessionUpdate":"novel","x":{value}}},"after":{value}}},"extra":{value}}}"#
            )
        };
        editor.turn_do(&session, &json!([{ "line": line("$sid") }]));
        find(&editor, &line(&session));
    }
    let other = r#"{"params":{"x":[1e3]}, "method":"_x/no_session" ,"jsonrpc":"2.0"}"#;
    editor.turn_do(&session, &json!([{ "line": other }]));
    find(&editor, other);
}

#[test]
fn p32_requests_of_agents_pass_byte_for_byte() {
    let service = service(&json!({})).start();
    let (mut editor, session) = service.session();
    for value in corpus() {
        let params = |sid: &str| {
            format!(r#"{{"a":{value},"sessionId":"{sid}","toolCall":{value},"options":[{value}]}}"#)
        };
        let step = format!(r#"{{"request":{{"method":"_peer/ask","params":{}}}}}"#, params("$sid"));
        let before = editor.chunks(&session).len();
        let id = prompt_raw(&mut editor, &session, &step);
        let wanted = format!(r#""params":{}"#, params(&session));
        let request =
            editor.wait_for("the request", |line| line.text().contains(&wanted).then(|| line.clone()));
        let number = request
            .text()
            .split(r#""id":"#)
            .nth(1)
            .unwrap()
            .chars()
            .take_while(char::is_ascii_digit)
            .collect::<String>();
        editor.send_line(&format!(r#"{{"jsonrpc":"2.0","id":{number},"result":{value}}}"#));
        assert_eq!(editor.stop_reason(&id), "end_turn");
        received_with(&service, &format!(r#""result":{value}}}"#));
        assert_eq!(editor.chunks(&session).len(), before + 1);
    }
}

#[test]
fn p32_questions_of_agents_pass_byte_for_byte_and_are_answered_in_our_words() {
    let service = service(&json!({})).start();
    let (mut editor, session) = service.session();
    for value in corpus() {
        let params = |sid: &str| {
            format!(r#"{{"a":{value},"sessionId":"{sid}","toolCall":{value},"options":[{value}]}}"#)
        };
        let step =
            format!(r#"{{"request":{{"method":"session/request_permission","params":{}}}}}"#, params("$sid"));
        let id = prompt_raw(&mut editor, &session, &step);
        let wanted = format!(r#""params":{}"#, params(&session));
        let request =
            editor.wait_for("the request", |line| line.text().contains(&wanted).then(|| line.clone()));
        let number = request.text().split(r#""id":"#).nth(1).unwrap().to_owned();
        let number: String = number.chars().take_while(char::is_ascii_digit).collect();
        editor.send_line(&format!(r#"{{"jsonrpc":"2.0","id":{number},"result":{value}}}"#));
        assert_eq!(editor.stop_reason(&id), "end_turn");
        let told = editor.chunks(&session).pop().unwrap();
        assert!(told.contains(r#"{"outcome":"cancelled"}"#), "{value}: {told}");
    }
}

#[test]
fn p32_requests_of_editors_pass_byte_for_byte() {
    let service = service(&json!({})).start();
    let (mut editor, session) = service.session();
    for value in corpus() {
        // The fake agent reads `do` and ignores the rest.
        let steps = format!(r#"[{{"answer":{{"result":{{"r":{value}}}}}}}]"#);
        let params = |sid: &str| format!(r#"{{"x":{value},"sessionId":{sid},"do":{steps},"y":[{value}]}}"#);
        let id = editor.request_raw("_x/do", &params(&json!(session).to_string()));
        let answer = editor.response_line(&id);
        let wanted = format!(r#""result":{{"r":{value}}}"#);
        assert!(
            answer.text().contains(&wanted),
            "the result changed:\n{wanted:.500}\n{:.500}",
            answer.text()
        );
        let received = received_with(&service, &format!(r#"{{"x":{value},"sessionId":"#));
        let text = received.text.unwrap();
        let own = text.split(r#""sessionId":"#).nth(1).unwrap().split(',').next().unwrap().to_owned();
        assert!(
            text.contains(&format!(r#""params":{}"#, params(&own))),
            "the parameters changed: {text:.500}"
        );
    }
}

#[test]
fn p32_notifications_of_editors_pass_byte_for_byte() {
    let service = service(&json!({})).start();
    let (editor, session) = service.session();
    for (number, value) in corpus().into_iter().enumerate() {
        editor.send_line(&format!(
            r#"{{"jsonrpc":"2.0","method":"_x/note","params":{{"number":{number},"sessionId":"{session}","v":{value}}},"w":{value}}}"#
        ));
        let received =
            received_with(&service, &format!(r#""params":{{"number":{number},"sessionId":"#)).text.unwrap();
        assert!(received.ends_with(&format!(r#","v":{value}}},"w":{value}}}"#)), "{received:.500}");
        assert!(!received.contains(&session), "the agent sees its own session id");
    }
}

#[test]
fn p32_prompts_pass_byte_for_byte() {
    let service = service(&json!({})).start();
    let (mut editor, session) = service.session();
    for value in corpus() {
        let blocks = format!(
            r#"[{{"type":"novel","v":{value}}},{{"type":"text","text":"hi","annotations":{value}}}]"#
        );
        let id = editor.request_raw(
            "session/prompt",
            &format!(r#"{{"prompt":{blocks},"sessionId":"{session}","_meta":{value}}}"#),
        );
        assert_eq!(editor.stop_reason(&id), "end_turn");
        let received = received_with(&service, &format!(r#""params":{{"prompt":{blocks},"sessionId":""#));
        assert!(received.text.unwrap().contains(&format!(r#","_meta":{value}}}"#)));
    }
}

#[test]
fn p33_errors_pass_byte_for_byte_in_both_directions() {
    let service = service(&json!({})).set("agents.fake.workspace", "editor").start();
    let (mut editor, session) = service.session();
    for (number, value) in corpus().into_iter().enumerate() {
        let code = i64::try_from(number).unwrap() - 32_100;
        let error =
            format!(r#"{{"message":"m\u0041 {number}","code":{code},"data":{value},"extra":{value}}}"#);
        let id = prompt_raw(&mut editor, &session, &format!(r#"{{"answer":{{"error":{error}}}}}"#));
        let answer = editor.response_line(&id);
        assert!(answer.text().contains(&format!(r#""error":{error}"#)), "{:.500}", answer.text());

        let ask = r#"{"request":{"method":"fs/read_text_file","params":{"sessionId":"$sid","path":"/"}}}"#;
        let id = prompt_raw(&mut editor, &session, ask);
        let request = editor.next_request("fs/read_text_file");
        editor.answer_raw(&request, &format!(r#""error":{error}"#));
        assert_eq!(editor.stop_reason(&id), "end_turn");
        received_with(&service, &format!(r#""error":{error}"#));
    }
}

#[test]
fn p33_session_ids_of_agents_never_leak() {
    let service = service(&json!({})).start();
    let (mut editor, session) = service.session();
    let error = r#"{"code":-32002,"message":"no such session","data":{"sessionId":"$sid","more":1e3}}"#;
    let id = prompt_raw(&mut editor, &session, &format!(r#"{{"answer":{{"error":{error}}}}}"#));
    assert_eq!(editor.error_of(&id)["data"]["sessionId"], json!(session));
    editor.turn_do(&session, &json!([{ "update": { "n": 3 } }, { "notify": { "method": "_x/n", "params": { "sessionId": "$sid" } } }]));
    let list = editor.request("session/list", &json!({}));
    editor.response(&list);
    let own = service
        .ledger("fake")
        .iter()
        .filter(|entry| entry.kind == Kind::Out)
        .find_map(|entry| Some(entry.json()?["result"]["sessionId"].as_str()?.to_owned()));
    let own = own.expect("the agent minted an id");
    for line in editor.lines() {
        assert!(!line.text().contains(&own), "leaked in {}", line.text());
    }
}

#[test]
fn p34_seeded_streams_lose_repeat_and_reorder_nothing() {
    for seed in [1, 2, 3] {
        let service = service(&json!({ "seed": seed })).start();
        let (mut editor, session) = service.session();
        editor.turn_do(&session, &json!([{ "random": 400 }]));
        let own = service.ledger("fake");
        let sent: Vec<Vec<u8>> = own
            .iter()
            .filter(|entry| entry.kind == Kind::Out && entry.method().as_deref() == Some("session/update"))
            .map(|entry| {
                let text = entry.text.clone().unwrap();
                let id = entry.json().unwrap()["params"]["sessionId"].as_str().unwrap().to_owned();
                text.replace(&id, &session).into_bytes()
            })
            .collect();
        let seen: Vec<Vec<u8>> = editor
            .lines()
            .into_iter()
            .filter(|line| line.method() == "session/update")
            .map(|line| line.raw)
            .collect();
        assert_eq!(sent.len(), 400);
        assert!(sent == seen, "seed {seed}: what the agent sent is not what the editor got");
    }
}

#[test]
fn p35_split_and_merged_writes_of_agents_are_put_together() {
    let service = service(&json!({})).start();
    let (mut editor, session) = service.session();
    let note = |text: &str| {
        format!(
            r#"{{"jsonrpc":"2.0","method":"session/update","params":{{"sessionId":"$sid","update":{{"sessionUpdate":"agent_message_chunk","content":{{"type":"text","text":"{text}"}}}}}}}}"#
        )
    };
    let merged = format!("{}\n{}\r\n\n\r\n{}", note("m1"), note("m2"), note("m3 😀"));
    let steps = json!([{ "trickle": note("t1 é") }, { "line": merged }, { "trickle": note("t2") }]);
    assert_eq!(editor.turn_do(&session, &steps), ["t1 é", "m1", "m2", "m3 😀", "t2"]);
}

#[test]
fn p35_split_and_merged_writes_of_editors_are_put_together() {
    let service = service(&json!({})).start();
    let (mut editor, session) = service.session();
    let note = |number: usize| {
        format!(
            r#"{{"jsonrpc":"2.0","method":"_x/n","params":{{"sessionId":"{session}","number":{number}}}}}"#
        )
    };
    editor.send_bytes(format!("{}\n{}\r\n\n{}\n", note(0), note(1), note(2)).as_bytes());
    for byte in format!("{}\n", note(3)).as_bytes() {
        editor.send_bytes(&[*byte]);
    }
    editor.turn(&session, "barrier");
    let notes = service.received("fake").into_iter().filter(|line| line.method().as_deref() == Some("_x/n"));
    let numbers: Vec<_> =
        notes.map(|line| line.json().unwrap()["params"]["number"].as_u64().unwrap()).collect();
    assert_eq!(numbers, [0, 1, 2, 3]);
}

#[test]
fn p35_last_line_of_an_editor_needs_no_newline() {
    let service = service(&json!({})).start();
    let (editor, session) = service.session();
    editor.send_bytes(
        format!(r#"{{"jsonrpc":"2.0","method":"_x/last","params":{{"sessionId":"{session}"}}}}"#).as_bytes(),
    );
    editor.close_stdin();
    service.wait_received("fake", "the last line", |line| line.method().as_deref() == Some("_x/last"));
}

#[test]
fn p35_bad_lines_of_editors_are_answered_and_survived() {
    let service = service(&json!({})).start();
    let (mut editor, session) = service.session();
    editor.send_bytes(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"\xff\"}\n");
    editor.send_line(r#"{"jsonrpc":"2.0","id":61,"method":7}"#);
    editor.send_line(r#"{"jsonrpc":"2.0","id":{},"method":"x"}"#);
    editor.send_line(&format!("{}{}", "[".repeat(100_000), "]".repeat(100_000)));
    editor.send_line(&format!(
        r#"{{"jsonrpc":"2.0","id":62,"method":"_x/y","params":{}{}}}"#,
        "[".repeat(200),
        "]".repeat(200)
    ));
    assert_eq!(editor.turn(&session, "alive"), ["echo: alive"]);
    let errors = editor.lines().iter().filter(|line| line.json["error"]["code"].is_i64()).count();
    assert!(errors >= 4, "each bad line gets an error\n{}", editor.story());
}

#[test]
fn p36_large_lines_below_the_limit_pass() {
    let service = service(&json!({})).start();
    let (mut editor, session) = service.session();
    editor.set_deadline(Duration::from_secs(60));
    let chunks = editor
        .turn_do(&session, &json!([{ "update": { "size": 15 << 20 } }, { "update": { "text": "next" } }]));
    assert_eq!((chunks[0].len(), chunks[1].as_str()), (15 << 20, "next0"));
    let echo = editor.turn(&session, &"p".repeat(7 << 20));
    assert_eq!(echo[0].len(), (7 << 20) + 6);
}

#[test]
fn p36_line_over_the_limit_fails_that_agent_only() {
    let service = service(&json!({})).start();
    let mut editor = service.editor();
    let (big, small) = (editor.new_session(&service.work()), editor.new_session(&service.work()));
    let id = editor.prompt_do(&big, &json!([{ "update": { "size": 17 << 20 } }, "hang"]));
    assert_says(&editor.error_of(&id), &["sent a line over 16 MiB and was ended"]);
    assert!(editor.chunks(&big).is_empty());
    assert_eq!(editor.turn(&small, "fine"), ["echo: fine"]);
}

#[test]
fn p37_flooding_agent_is_held_back_by_its_own_editor_only() {
    let service = service(&json!({})).start();
    let mut slow = service.editor();
    let stuck = slow.new_session(&service.work());
    let (mut fast, session) = service.session();
    let before = service.peak_memory();
    let (go, gate) = (service.dir.join("go"), service.dir.join("written"));
    let flood = json!({ "update": { "n": 60, "size": 1_000_000 } });
    slow.prompt_do(&stuck, &json!([{ "update": {} }, { "wait_file": go }, flood, { "touch": gate }]));
    slow.wait_chunks(&stuck, 1);
    slow.pause(true);
    std::fs::write(&go, "").unwrap();
    service.wait_settled("fake");
    assert!(!gate.exists(), "the agent is held back");
    for number in 0..10 {
        fast.turn(&session, &number.to_string());
    }
    let growth = service.peak_memory() - before;
    assert!(growth <= 32 * 1024, "memory grew by {growth} KiB");
    slow.pause(false);
    slow.set_deadline(Duration::from_secs(60));
    assert_eq!(slow.wait_chunks(&stuck, 61).len(), 61);
}
