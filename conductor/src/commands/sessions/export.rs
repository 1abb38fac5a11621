//! `conductor sessions export --format jsonl`: every frame of a session on a
//! line of its own, byte for byte.

use std::io::{BufWriter, Write as _, stdout};

use serde_json::{Value, json};
use uuid::Uuid;

use super::{Failure, source::Source, written};
use crate::ledger::history::Frame;

pub(super) async fn jsonl(source: &Source, id: Uuid) -> Result<(), Failure> {
    let mut out = BufWriter::new(stdout().lock());
    source.frames(id, 1, 0, |frame| written(writeln!(out, "{}", line(&frame)))).await?;
    written(out.flush())
}

/// Text is kept as text, which a reader of JSON gets back exactly; other bytes
/// are in base64.
fn line(frame: &Frame) -> Value {
    let mut line = json!({
        "seq": frame.seq,
        "at_us": frame.at_us,
        "origin": frame.origin,
        "destination": frame.destination,
        "outgoing_id": frame.outgoing_id,
    });
    // No frame is empty when it is recorded.
    if frame.raw.is_empty() {
        line["erased"] = true.into();
        return line;
    }
    match std::str::from_utf8(&frame.raw) {
        Ok(text) => line["raw"] = text.into(),
        Err(_) => line["raw_base64"] = base64(&frame.raw).into(),
    }
    line
}

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// As RFC 4648 has it, padded.
fn base64(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let byte = |at: usize| u32::from(three.get(at).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for digit in 0..4 {
            if digit <= three.len() {
                let value = (bits >> (18 - 6 * digit)) & 0x3f;
                text.push(char::from(DIGITS[value as usize]));
            } else {
                text.push('=');
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_as_others_have_it() {
        let vectors = ["", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy"];
        for (length, expected) in vectors.into_iter().enumerate() {
            assert_eq!(base64(&b"foobar"[..length]), expected);
        }
        assert_eq!(base64(&[0xff, 0xfe, 0xfd]), "//79");
    }

    #[test]
    fn every_frame_can_be_restored() {
        let frame = |raw: &[u8]| Frame {
            seq: 1,
            at_us: 2,
            origin: "agent".into(),
            destination: "editor".into(),
            outgoing_id: Some(3),
            raw: raw.to_vec(),
        };
        let text = "{\"a\": \"\\u0000 \\ud800\", \"b\": 1e999 }\u{0}\u{2028}";
        let back: Value =
            serde_json::from_str(&line(&frame(text.as_bytes())).to_string()).unwrap_or_default();
        assert_eq!(back["raw"], text);
        assert_eq!(back["outgoing_id"], 3);
        assert_eq!(line(&frame(b""))["erased"], true);
        let back = line(&frame(b"\xff{"));
        assert_eq!((&back["raw"], &back["raw_base64"]), (&Value::Null, &"/3s=".into()));
    }
}
