//! One line, and a block of lines, of which nobody knows what they are.

use std::collections::BTreeMap;

use bytes::{Bytes, BytesMut};
use conductor::frame::{self, Fault, Kind, Peek, Run, Span};
use serde::de::IgnoredAny;
use serde_json::value::RawValue;

/// What the relay would write in place of an id.
const ID: &[u8] = br#""conductor-1""#;
/// What it would write in place of a session's.
const SESSION: &[u8] = b"\"the agent's\"";

/// The members of an object as they are written.
type Members<'a> = BTreeMap<String, &'a RawValue>;

/// A line is a frame exactly if it is JSON; what is found in it is what a parser finds;
/// splicing changes the ids and no other byte; a block has the frames of its lines.
pub fn frame(data: &[u8]) {
    line(data);
    block(data);
    let shown = frame::escape(data, 200);
    assert!(!shown.chars().any(char::is_control), "{shown:?}");
}

fn line(line: &[u8]) {
    let is_json = serde_json::from_slice::<IgnoredAny>(line).is_ok();
    match frame::peek(line) {
        Ok(peek) => {
            assert!(is_json, "a frame that is no JSON");
            compare(line, &peek);
            splice(line, &peek);
        }
        Err(Fault::NotUtf8) => assert!(std::str::from_utf8(line).is_err(), "it is UTF-8"),
        Err(Fault::NotJson(at)) => assert!(!is_json && at as usize <= line.len(), "it is JSON"),
        Err(Fault::Batch | Fault::NotObject) => assert!(is_json, "it is no JSON at all"),
        Err(Fault::TooDeep | Fault::Ambiguous | Fault::BadId) => {}
    }
}

/// The members of an object, none of anything else; nothing if a key is no text.
fn members(value: &[u8]) -> Option<Members<'_>> {
    match value.trim_ascii_start().first() {
        Some(b'{') => serde_json::from_slice(value).ok(),
        _ => Some(Members::new()),
    }
}

fn of<'a>(members: &Members<'a>, key: &str) -> &'a [u8] {
    members.get(key).map_or(&[][..], |value| value.get().as_bytes())
}

/// The members of one that is a member itself.
fn inside<'a>(outer: &Members<'a>, key: &str) -> Option<Members<'a>> {
    members(of(outer, key))
}

/// Holds what was found against a parser.
fn compare(line: &[u8], peek: &Peek) {
    let Some(envelope) = members(line) else { return };
    let same = |span: Span, value: &[u8]| {
        assert_eq!(
            String::from_utf8_lossy(span.of(line)),
            String::from_utf8_lossy(value),
            "another parser finds something else"
        );
    };
    same(peek.id, of(&envelope, "id"));
    same(peek.name, of(&envelope, "method"));
    same(peek.params, of(&envelope, "params"));
    let has_method = peek.name.is_some();
    assert_eq!(peek.kind == Kind::Request, has_method && peek.id.is_some());
    assert_eq!(peek.kind == Kind::Notification, has_method && peek.id.is_none());
    let (Some(params), Some(result), Some(error)) =
        (inside(&envelope, "params"), inside(&envelope, "result"), inside(&envelope, "error"))
    else {
        return;
    };
    same(peek.stop_reason, of(&result, "stopReason"));
    same(peek.request_id, of(&params, "requestId"));
    same(peek.mcp_servers, of(&params, "mcpServers"));
    let (Some(update), Some(details)) = (inside(&params, "update"), inside(&error, "data")) else { return };
    same(peek.update, of(&update, "sessionUpdate"));
    let sessions = [&params, &result, &details].map(|members| of(members, "sessionId"));
    let named: Vec<_> = sessions.into_iter().filter(|session| !session.is_empty()).collect();
    match named.as_slice() {
        [one] if one.starts_with(b"\"") => same(peek.session, one),
        [] | [_] => assert!(peek.session.is_none(), "there is no session"),
        _ => panic!("a frame of two sessions"),
    }
}

/// Splices both ids, and back.
fn splice(line: &[u8], peek: &Peek) {
    let spliced = |line: &[u8], peek: &Peek, id: &[u8], session: &[u8]| {
        let mut out = BytesMut::new();
        frame::splice(&mut out, line, [(peek.id, id), (peek.session, session)]);
        assert_eq!(out.split_off(out.len() - 1), b"\n"[..]);
        out
    };
    let there = spliced(line, peek, ID, SESSION);
    let again = frame::peek(&there).unwrap();
    assert_eq!((again.kind, again.method), (peek.kind, peek.method));
    assert_eq!(again.id.of(&there), if peek.id.is_some() { ID } else { b"" });
    assert_eq!(again.session.of(&there), if peek.session.is_some() { SESSION } else { b"" });
    let back = spliced(&there, &again, peek.id.of(line), peek.session.of(line));
    assert!(back == line, "another byte than those of the ids has changed");
}

/// A block has what its lines have, and says of each other line what is wrong.
fn block(data: &[u8]) {
    let mut faults = Vec::new();
    let run = Run::parse(Bytes::copy_from_slice(data), |line, fault| faults.push((line.to_vec(), fault)));
    let (mut frames, mut faults) = (run.iter(), faults.into_iter());
    for line in data.split(|byte| *byte == b'\n') {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        match frame::peek(line) {
            Err(fault) => assert_eq!(faults.next(), Some((line.to_vec(), fault))),
            Ok(peek) => {
                let (bytes, found) = frames.next().unwrap();
                assert_eq!(bytes, line);
                assert_eq!(
                    (found.kind, found.id, found.session, found.method),
                    (peek.kind, peek.id, peek.session, peek.method)
                );
            }
        }
    }
    assert!(frames.next().is_none() && faults.next().is_none(), "there are more frames than lines");
}
