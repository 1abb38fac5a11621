//! Tests of the scanner, with serde_json as the oracle.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

use super::*;

fn ok(text: &str) -> Peek {
    peek(text.as_bytes()).unwrap_or_else(|fault| panic!("{text}: {fault}"))
}

fn at(text: &str, span: Span) -> &str {
    std::str::from_utf8(span.of(text.as_bytes())).unwrap()
}

#[test]
fn finds_what_routes_a_frame() {
    let text = r#"{"jsonrpc":"2.0","id":"1","method":"session\/prompt","params":{"update":{"x":[],"sessionUpdate":"plan"},"\u0073essionId":"s\"1","requestId":-0.0}}"#;
    let peek = ok(text);
    assert_eq!((peek.kind, peek.method), (Kind::Request, Method::SessionPrompt));
    assert_eq!(at(text, peek.id), r#""1""#);
    assert_eq!(at(text, peek.session), r#""s\"1""#);
    assert_eq!(at(text, peek.update), r#""plan""#);
    assert_eq!(at(text, peek.request_id), "-0.0");
}

#[test]
fn finds_what_a_chunk_says() {
    let text = r#"{"method":"session/update","params":{"update":{"messageId":"m","content":{"a":{"text":"no"},"text":"a\"b","type":"text"},"sessionUpdate":"x"},"text":"no"}}"#;
    let peek = ok(text);
    assert_eq!(at(text, peek.text), r#""a\"b""#);
    assert!(text[peek.message as usize..].starts_with(r#""m","#));
    assert_eq!(at(text, peek.update), r#""x""#);
    // The last one counts.
    let text = r#"{"method":"x","params":{"update":{"content":{"text":"a","text":"b"}}}}"#;
    assert_eq!(at(text, ok(text).text), r#""b""#);
    let text = r#"{"method":"x","params":{"update":{"content":{"text":"a"},"content":[{"text":"b"}]}}}"#;
    assert!(ok(text).text.is_none());
}

#[test]
fn a_null_beside_an_outcome_means_nothing() {
    for (text, kind, outcome) in [
        (r#"{"id":1,"error":null,"result":{}}"#, Kind::Result, "{}"),
        (r#"{"id":1,"result":{},"error":null}"#, Kind::Result, "{}"),
        (r#"{"id":1,"result":null,"error":{"code":1}}"#, Kind::Error, r#"{"code":1}"#),
        (r#"{"id":1,"result":null,"error":null}"#, Kind::Result, "null"),
        (r#"{"id":1,"error":null}"#, Kind::Error, "null"),
    ] {
        let peek = ok(text);
        assert_eq!((peek.kind, at(text, peek.outcome)), (kind, outcome), "{text}");
    }
    assert_eq!(peek(br#"{"id":1,"result":{},"error":{}}"#).unwrap_err(), Fault::Ambiguous);
}

#[test]
fn finds_the_session_in_results_and_error_data() {
    let text = r#"{"id":0,"result":{"modes":null,"sessionId":"a"}}"#;
    assert_eq!(at(text, ok(text).session), r#""a""#);
    assert_eq!(ok(text).kind, Kind::Result);
    let text = r#"{"id":0,"error":{"code":1,"data":{"sessionId":"b"}}}"#;
    assert_eq!(at(text, ok(text).session), r#""b""#);
    assert_eq!(ok(text).kind, Kind::Error);
    assert!(ok(r#"{"method":"x","params":{"sessionId":7}}"#).session.is_none());
    assert!(ok(r#"{"method":"x","params":[{"sessionId":"x"}]}"#).session.is_none());
}

#[test]
fn tells_requests_from_notifications_and_answers() {
    assert_eq!(ok(r#"{"id":null,"method":"x"}"#).kind, Kind::Request);
    assert_eq!(ok(r#"{"method":"x"}"#).kind, Kind::Notification);
    assert_eq!(ok(r#"{"id":1,"result":null}"#).kind, Kind::Result);
    assert_eq!(ok(r#"{"id":1}"#).kind, Kind::Opaque);
    assert_eq!(ok("{}").kind, Kind::Opaque);
}

#[test]
fn a14_refuses_what_two_parsers_could_read_differently() {
    for text in [
        r#"{"id":1,"id":2,"method":"x"}"#,
        r#"{"method":"x","method":"y"}"#,
        r#"{"id":1,"result":1,"error":{}}"#,
        r#"{"method":"x","params":{"sessionId":"a","sessionId":"b"}}"#,
        r#"{"method":"x","params":{"sessionId":"a","\u0073essionId":"b"}}"#,
        r#"{"method":"x","params":{},"params":{}}"#,
    ] {
        assert_eq!(peek(text.as_bytes()).unwrap_err(), Fault::Ambiguous, "{text}");
    }
    assert!(peek(br#"{"method":"x","params":{"_meta":{"a":1,"a":2}}}"#).is_ok());
}

#[test]
fn names_what_is_wrong() {
    assert_eq!(peek(b"[{},{}]").unwrap_err(), Fault::Batch);
    assert_eq!(peek(b"12").unwrap_err(), Fault::NotObject);
    assert_eq!(peek(b"{\"a\":\"\xff\"}").unwrap_err(), Fault::NotUtf8);
    assert_eq!(peek(br#"{"id":{},"method":"x"}"#).unwrap_err(), Fault::BadId);
    assert_eq!(peek(br#"{"id":true,"method":"x"}"#).unwrap_err(), Fault::BadId);
    let deep = |n: usize| format!("{{\"params\":{}{}}}", "[".repeat(n), "]".repeat(n));
    assert!(peek(deep(127).as_bytes()).is_ok());
    assert_eq!(peek(deep(128).as_bytes()).unwrap_err(), Fault::TooDeep);
    assert_eq!(peek(deep(100_000).as_bytes()).unwrap_err(), Fault::TooDeep);
}

/// The oracle: for lines without the exceptions named above, we must say
/// "JSON" exactly when serde_json does.
#[test]
fn agrees_with_serde_json_on_what_is_json() {
    let seeds = [
        r#"{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"s","update":{"sessionUpdate":"agent_message_chunk","content":{"type":"text","text":"h\u00e9 \n"}}}}"#,
        r#"{"a":[1,-2.5e+10,true,false,null,{"b":[]},{}, "\\\"/\b\f\t"],"c" : 0.1E-7 }"#,
    ];
    let bytes = b"{}[]\",:\\ u0e-+.ntf\x01a\x7f";
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = |n: usize| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % n as u64) as usize
    };
    let mut valid = 0;
    for round in 0..200_000 {
        let mut line = seeds[round % 2].as_bytes().to_vec();
        for _ in 0..=random(3) {
            let at = random(line.len());
            match random(3) {
                0 => line[at] = bytes[random(bytes.len())],
                1 => line.insert(at, bytes[random(bytes.len())]),
                _ => drop(line.remove(at)),
            }
        }
        let ours = match peek(&line) {
            Err(Fault::NotJson(_)) => false,
            Ok(_) | Err(Fault::Batch | Fault::NotObject) => true,
            Err(Fault::Ambiguous | Fault::BadId | Fault::TooDeep | Fault::NotUtf8) => continue,
        };
        let theirs = serde_json::from_slice::<serde::de::IgnoredAny>(&line).is_ok();
        assert_eq!(ours, theirs, "{}", String::from_utf8_lossy(&line));
        valid += usize::from(theirs);
    }
    assert!(valid > 1000, "the mutations left too little valid JSON: {valid}");
}

#[test]
fn a_string_ends_where_it_ends_however_long() {
    for length in 0..100 {
        for at in 0..length {
            let with = |what: &str| {
                let text =
                    format!("{}{what}{}", "é".repeat(at / 2) + &"x".repeat(at % 2), "y".repeat(length - at));
                format!(r#"{{"method":"m","x":"{text}","id":1}}"#)
            };
            assert_eq!(peek(with("").as_bytes()).map(|peek| peek.kind), Ok(Kind::Request));
            assert_eq!(peek(with("\\\"").as_bytes()).map(|peek| peek.kind), Ok(Kind::Request));
            for bad in ["\"", "\t", "\u{1f}", "\\x"] {
                assert!(
                    matches!(peek(with(bad).as_bytes()), Err(Fault::NotJson(_))),
                    "{bad:?} at {at} of {length}"
                );
            }
        }
    }
}
