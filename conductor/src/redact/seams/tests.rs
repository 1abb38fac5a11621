//! Secrets in pieces, and what is none.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::{
    frame,
    redact::{KEY_BYTES, Secret},
};

const LETTERS: &str = "aB3dE6gH9jK2mN5pQ8sT1vW4yZ7aB3dE6gH9jK2mN5pQ8sT1vW4yZ7aB3dE6gH9jK2mN5pQ8";

fn known(values: &[&str]) -> Known {
    Known::default()
        .with(values.iter().map(|value| Secret { kind: Kind::Env, value: value.as_bytes().to_vec() }))
}

/// Chunks of messages as they are recorded.
struct Tape {
    redaction: Redaction,
    known: Known,
    seams: Seams,
}

impl Tape {
    fn new(known: &Known) -> Self {
        let redaction = Redaction::new(&[7; KEY_BYTES], Vec::new());
        Self { redaction, known: known.clone(), seams: Seams::default() }
    }

    /// What is recorded of a frame; `None` if that is the frame as it is.
    fn frame(&mut self, frame: &str) -> Option<String> {
        let peek = frame::peek(frame.as_bytes()).unwrap();
        let bytes = frame.as_bytes();
        let is_suspect = self.redaction.suspects(&self.known, bytes);
        let recorded = match self.seams.pass(&self.redaction, &self.known, bytes, &peek, is_suspect) {
            Some(cut) => Some(self.redaction.chunk(&self.known, frame.as_bytes(), &peek, &cut)),
            None => self.redaction.frame(&self.known, frame.as_bytes()),
        };
        recorded.map(|bytes| String::from_utf8(bytes).unwrap())
    }

    fn chunk(&mut self, id: &str, text: &str) -> String {
        let frame = json!({ "method": "session/update", "params": { "sessionId": "s", "update": {
            "sessionUpdate": "agent_message_chunk", "messageId": id,
            "content": { "type": "text", "text": text } } } });
        let frame = frame.to_string();
        let recorded = self.frame(&frame).unwrap_or(frame);
        let recorded: Value = serde_json::from_str(&recorded).unwrap();
        recorded["params"]["update"]["content"]["text"].as_str().unwrap().to_owned()
    }
}

fn recorded<'a>(known: &Known, pieces: impl IntoIterator<Item = &'a str>) -> String {
    let mut tape = Tape::new(known);
    pieces.into_iter().map(|piece| tape.chunk("m", piece)).collect()
}

/// A text in two pieces, at every place, and in pieces of a few characters.
fn cuts(text: &str) -> Vec<Vec<&str>> {
    let places: Vec<usize> = text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
    let mut all: Vec<Vec<&str>> =
        places.iter().map(|at| text.split_at(*at)).map(|(a, b)| vec![a, b]).collect();
    for step in 1..8 {
        for first in 0..step {
            let mut ends: Vec<usize> = places.iter().copied().skip(first).step_by(step).collect();
            ends.push(text.len());
            let mut from = 0;
            all.push(ends.into_iter().map(|end| &text[std::mem::replace(&mut from, end)..end]).collect());
        }
    }
    all
}

/// No so many bytes of the secret are there.
fn is_gone(secret: &str, least: usize, recorded: &str) -> bool {
    !secret.as_bytes().windows(least).any(|part| memchr::memmem::find(recorded.as_bytes(), part).is_some())
}

#[test]
fn known_values_are_replaced_wherever_they_are_cut() {
    for value in ["cnry12-aB3dE6gH9jK2mN", "cn\"ry0\\aB3dE6gH9/é\nQ8sT1+=&", "12345678"] {
        let known = known(&[value, "another-one-1", &format!("{}-and-otherwise", &value[..7])]);
        for text in
            [format!("it is {value}, see"), format!("{value} and {value}"), format!("{value}{value}.")]
        {
            for pieces in cuts(&text) {
                let got = recorded(&known, pieces.iter().copied());
                assert!(is_gone(value, 8, &got) && got.contains("<secret:env:"), "{pieces:?}: {got}");
                let ends = ["it is ", ", see", " and ", "."].iter().filter(|end| text.contains(**end));
                assert!(ends.into_iter().all(|end| got.contains(end)), "{pieces:?}: {got}");
            }
        }
    }
}

#[test]
fn a_value_has_its_own_mark_however_it_is_cut() {
    let known = known(&["cnry12-aB3dE6gH9jK2mN"]);
    let mark = Redaction::new(&[7; KEY_BYTES], Vec::new()).mark(Kind::Env, b"cnry12-aB3dE6gH9jK2mN");
    let got = recorded(&known, ["it is cnry12-", "aB3dE6", "gH9jK2mN", ", see"]);
    assert_eq!(got, format!("it is {mark}, see"));
    let got = recorded(&known, ["it is cnr", "y12-aB3dE6gH9jK2mN, see"]);
    assert_eq!(got, format!("it is cnr{mark}, see"));
}

#[test]
fn tokens_are_replaced_wherever_they_are_cut() {
    let digits: String =
        LETTERS.bytes().map(|byte| char::from(b"0123456789abcdef"[usize::from(byte % 16)])).collect();
    let tokens = [
        ("sk-", LETTERS[..48].to_owned()),
        ("sk-", digits[..32].to_owned()),
        ("sk-ant-api03-", LETTERS[..60].to_owned()),
        ("ghp_", LETTERS[..36].to_owned()),
        ("github_pat_", LETTERS[..40].to_owned()),
        ("glpat-", LETTERS[..20].to_owned()),
        ("xoxb-123456789012-", LETTERS[..24].to_owned()),
        ("AKIA", "IOSFODNN7EXAMPLE".to_owned()),
        ("AIza", LETTERS[..35].to_owned()),
        ("ya29.", LETTERS[..40].to_owned()),
        ("npm_", LETTERS[..36].to_owned()),
        ("hf_", LETTERS[..34].to_owned()),
        ("cdt_", digits[..64].to_owned()),
        ("eyJ", format!("{}.eyJ{}.{}", &LETTERS[..20], &LETTERS[..30], &LETTERS[..43])),
        ("SG.", format!("{}.{}", &LETTERS[..22], &LETTERS[..43])),
        // With a sign before the first long stretch, and with one in the middle of it.
        ("whsec_", "aB+3dE6/gH9jK2mN5pQ8sT1vW4yZ7+aB".to_owned()),
        ("whsec_", format!("{}/{}", &LETTERS[..20], &LETTERS[..20])),
    ];
    for (prefix, body) in &tokens {
        for text in [
            format!("try {prefix}{body} now"),
            format!("{prefix}{body}"),
            format!("KEY={prefix}{body}\n"),
            format!("(`{prefix}{body}`)"),
        ] {
            for pieces in cuts(&text) {
                let got = recorded(&Known::default(), pieces.iter().copied());
                assert!(is_gone(body, 12, &got) && got.contains("<secret:token:"), "{pieces:?}: {got}");
                let is_kept = |part: &str| !text.contains(part) || got.contains(part);
                assert!(is_kept("try ") && is_kept(" now") && is_kept("KEY=") && is_kept("`)"), "{got}");
            }
        }
    }
}

#[test]
fn ordinary_text_stays_however_it_is_cut() {
    for text in [
        "task-oriented desk-top risk-free ask-me-anything sk-estimator-doc-link sk-toggleable__control-label",
        "the sk-learn library, sk-folding-cube and sk-cube-grid-animation-delay-loop classes",
        "commit 3f2a9c4b5d6e7f8091a2b3c4d5e6f708192a3b4c and sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4",
        "01a1e59e-36a4-77fa-9541-e2cf6575c745 550E8400-E29B-41D4-A716-446655440000",
        "/home/me/src/task-1234567890abcdefghij/sk-build/xoxo/AKIAB.txt in ASIA, ASIAN PACIFIC",
        "npm_config_registry=https://r/ npm_lifecycle_event hf_hub_download xoxo-loves-you ghp_ AIza",
        "SG.something hvs.x cdt_ dop_v1_ lin_api_ pypi-server whsec_ xai-org/grok pplx-api nvapi-doc glpat-",
        "<secret:env:0123abcd> stays, and <secret:x> too; \"quoted\"\tand\nso\\on",
        "ユニコード 🎉 \u{7f} \\u0073k-, not in there, no",
    ] {
        for pieces in cuts(text) {
            let mut tape = Tape::new(&known(&["not-in-there-1", "zq8xw7-vk3jh2"]));
            for piece in &pieces {
                let frame = json!({ "method": "session/update", "params": { "update": {
                    "sessionUpdate": "agent_thought_chunk", "content": { "type": "text", "text": piece } } } });
                // What a piece shows by itself is replaced, whatever stood before it.
                let frame = frame.to_string();
                let alone = tape.redaction.frame(&tape.known, frame.as_bytes());
                let alone = alone.map(|bytes| String::from_utf8(bytes).unwrap());
                assert_eq!(tape.frame(&frame), alone, "{pieces:?}");
            }
        }
    }
}

#[test]
fn messages_by_turns_are_told_apart() {
    let value = "cnry12-aB3dE6gH9jK2mN";
    let mut tape = Tape::new(&known(&[value]));
    let (mut one, mut other) = (String::new(), String::new());
    for piece in value.as_bytes().chunks(4) {
        let piece = std::str::from_utf8(piece).unwrap();
        one.push_str(&tape.chunk("one", piece));
        other.push_str(&tape.chunk("other", piece));
        assert_eq!(tape.chunk("third", "plain words "), "plain words ");
    }
    assert!(is_gone(value, 8, &one) && is_gone(value, 8, &other), "{one} {other}");
}

#[test]
fn the_ends_of_long_texts_are_looked_at() {
    let value = "cnry12-aB3dE6gH9jK2mN5pQ8";
    for filler in ["plain words, ", "lines\n\"quoted\" é ", "x"] {
        let long = filler.repeat(8000 / filler.len());
        for at in 1..value.len() {
            let got = recorded(
                &known(&[value]),
                [&*format!("{long} {}", &value[..at]), &*format!("{} {long}", &value[at..])],
            );
            assert!(is_gone(value, 8, &got), "{at}");
            assert!(got.len() > long.len() * 2, "{at}");
        }
    }
    // A value that fills chunks of its own.
    let value: String = (0..9000).map(|at: usize| char::from(b'a' + (at * at % 23) as u8)).collect();
    let got = recorded(&known(&[&value]), ["so: ", &value[..20], &value[20..8000], &value[8000..], " end"]);
    assert!(got.starts_with("so: <secret:env:") && got.ends_with("> end") && got.len() < 100, "{got}");
}

#[test]
fn what_is_written_otherwise_is_the_same() {
    let mut tape = Tape::new(&known(&["cnry12-\"aB3dE6gH9jK2mN"]));
    let first = r#"{ "method": "session/update", "params": { "update": { "content": { "text": "so: cnry12-\u0022aB" , "type": "text" }, "sessionUpdate": "agent_message_chunk" } } }"#;
    let got = tape.frame(first).unwrap();
    assert!(got.contains(r#""so: <secret:env:"#) && !got.contains("cnry12"), "{got}");
    let second = r#"{ "method": "session/update", "params": { "update": { "content": { "text": "3dE\u00366gH9jK2mN." , "type": "text" }, "sessionUpdate": "agent_message_chunk" } } }"#.replace("\\u00366", "\\u0036");
    let got = tape.frame(&second).unwrap();
    assert!(got.contains(r#""text": "." ,"#), "{got}");
    // What is no text has no seams.
    assert_eq!(tape.frame(r#"{"method":"session/update","params":{"update":{"sessionUpdate":"agent_message_chunk","content":{"text":7}}}}"#), None);
}

proptest! {
    #[test]
    fn a_chunk_stays_json_and_says_no_more_than_it_did(
        pieces in prop::collection::vec("(\\PC|[\"\\\\\n]|ghp_[a-zA-Z0-9]{1,9}|canary-[0-9]{1,10}){0,6}", 1..8)
    ) {
        let mut tape = Tape::new(&known(&["canary-0123456789"]));
        for piece in &pieces {
            let got = tape.chunk("m", piece);
            prop_assert!(got.len() <= piece.len() + 30 * (piece.len() / 4 + 2), "{}", got);
        }
    }
}
