//! From its second agent session on, a session's ids of tool calls and messages
//! get a prefix: two agents may well count both of theirs from one.

use bytes::Bytes;

use super::members::{Members, replaced};
use crate::frame::Peek;

/// An id as editors see it.
pub(super) fn prefixed(id: &str, number: u32) -> String {
    if number > 1 { format!("{number}:{id}") } else { id.to_owned() }
}

/// A frame of the agent with prefixed ids: an update, or a request about a tool
/// call. `None` if it has none.
pub(super) fn with_prefix(frame: &[u8], peek: &Peek, number: u32) -> Option<Bytes> {
    if number <= 1 {
        return None;
    }
    let params = Members::of(peek.params.of(frame))?;
    let mut edits = Vec::new();
    let mut edit = |holder: &Members<'_>, name: &str| {
        // A member is a slice of the frame, whichever reader found it.
        let Some(raw) = holder.get(name) else { return };
        let Ok(id) = serde_json::from_str::<String>(raw) else { return };
        let start = raw.as_ptr() as usize - frame.as_ptr() as usize;
        if let Ok(part) = std::str::from_utf8(&frame[start..start + raw.len()]) {
            edits.push((part, serde_json::Value::from(prefixed(&id, number)).to_string()));
        }
    };
    edit(&params, "toolCallId");
    for holder in ["update", "toolCall"] {
        if let Some(inner) = params.get(holder).and_then(|text| Members::of(text.as_bytes())) {
            edit(&inner, "toolCallId");
            edit(&inner, "messageId");
        }
    }
    (!edits.is_empty()).then(|| replaced(frame, edits))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;
    use crate::frame;

    #[test]
    fn ids_get_a_prefix_and_every_other_byte_stays() {
        let line = r#"{"method":"session/update","params":{"sessionId":"s","update":{"sessionUpdate":"tool_call", "toolCallId" : "a\"b","n":1e3}}}"#;
        let peek = frame::peek(line.as_bytes()).unwrap();
        let out = with_prefix(line.as_bytes(), &peek, 3).unwrap();
        assert_eq!(std::str::from_utf8(&out).unwrap(), line.replace(r#""a\"b""#, r#""3:a\"b""#));
        assert_eq!(with_prefix(line.as_bytes(), &peek, 1), None);
        let ask = r#"{"id":1,"method":"session/request_permission","params":{"toolCall":{"toolCallId":"x","title":"toolCallId"}}}"#;
        let peek = frame::peek(ask.as_bytes()).unwrap();
        let out = with_prefix(ask.as_bytes(), &peek, 2).unwrap();
        assert_eq!(std::str::from_utf8(&out).unwrap(), ask.replace(r#":"x""#, r#":"2:x""#));
        let none = r#"{"method":"session/update","params":{"update":{"sessionUpdate":"plan","entries":[]}}}"#;
        assert_eq!(with_prefix(none.as_bytes(), &frame::peek(none.as_bytes()).unwrap(), 2), None);
    }
}
