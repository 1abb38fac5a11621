//! The events of a turn for machines: one JSON object per line. Their fields
//! are a promise; the raw message stands beside them for everything else.

use std::time::Duration;

use serde_json::{Value, json};

use super::{permission::Question, terminal::harmless, tool::Calls, turn_usage::Usage};

/// The session is open.
pub(super) fn session(id: &str, can_continue: bool) -> String {
    line(&json!({ "event": "session", "session": id, "can_continue": can_continue }))
}

/// The agent tells something.
pub(super) fn update(update: &Value, calls: &mut Calls) -> String {
    let content = &update["content"];
    let mut event = match update["sessionUpdate"].as_str() {
        Some("agent_message_chunk") if content["text"].is_string() => {
            json!({ "event": "text", "text": content["text"], "message": update["messageId"] })
        }
        Some("user_message_chunk") if content["text"].is_string() => {
            json!({ "event": "user", "text": content["text"], "message": update["messageId"] })
        }
        Some("agent_thought_chunk") if content["text"].is_string() => {
            json!({ "event": "thought", "text": content["text"], "message": update["messageId"] })
        }
        Some("tool_call" | "tool_call_update") => {
            let call = calls.learn(update);
            json!({
                "event": "tool",
                "id": update["toolCallId"],
                "title": call.title(),
                "kind": call.kind(),
                "status": call.status(),
                "ms": call.took().map(milliseconds),
            })
        }
        Some("plan") => json!({ "event": "plan", "entries": update["entries"] }),
        Some("usage_update") => json!({
            "event": "usage",
            "used": update["used"],
            "size": update["size"],
            "cost": update["cost"],
        }),
        Some("notice") => json!({
            "event": "notice",
            "severity": update["severity"],
            "title": update["title"],
            "description": update["description"],
        }),
        kind => json!({ "event": "update", "kind": kind }),
    };
    event["raw"] = update.clone();
    line(&event)
}

/// A question of the agent was answered with this result.
pub(super) fn permission(question: &Question, result: &[u8], note: &str) -> String {
    let result: Value = serde_json::from_slice(result).unwrap_or_default();
    line(&json!({
        "event": "permission",
        "id": question.params["toolCall"]["toolCallId"],
        "title": question.call.title(),
        "kind": question.call.kind(),
        "options": question.params["options"],
        "outcome": result["outcome"]["outcome"],
        "option": result["outcome"]["optionId"],
        "note": note,
        "raw": question.params,
    }))
}

/// The turn has ended.
pub(super) fn end(session: &str, stop_reason: &str, took: Duration, usage: &Usage) -> String {
    line(&json!({
        "event": "end",
        "stop_reason": stop_reason,
        "session": session,
        "ms": milliseconds(took),
        "usage": usage.as_json(),
    }))
}

/// It went wrong: cause and remedy.
pub(super) fn error(message: &str) -> String {
    line(&json!({ "event": "error", "message": message }))
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// On one line, without characters that steer a terminal or reorder what it
/// shows: JSON escapes the older ones only, and a reader gets the same string.
fn line(event: &Value) -> String {
    harmless(event.to_string())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests fail by panicking")]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_harmless_and_says_the_same() {
        let text = "a\n\u{1b}[2J\u{7f}\u{9b}\u{202e}é";
        let told =
            json!({ "sessionUpdate": "agent_message_chunk", "content": { "type": "text", "text": text } });
        let line = update(&told, &mut Calls::default());
        assert!(!line.contains(|c: char| c.is_control() || c == '\u{202e}'), "{line}");
        let read: Value = serde_json::from_str(&line).unwrap();
        assert_eq!((&read["event"], &read["text"], &read["raw"]), (&"text".into(), &text.into(), &told));
    }

    #[test]
    fn what_is_not_known_is_an_update() {
        let told = json!({ "sessionUpdate": "later_invention", "x": 1 });
        let read: Value = serde_json::from_str(&update(&told, &mut Calls::default())).unwrap();
        assert_eq!(read, json!({ "event": "update", "kind": "later_invention", "raw": told }));
        let odd: Value = serde_json::from_str(&update(&Value::Null, &mut Calls::default())).unwrap();
        assert_eq!(odd["event"], "update");
    }
}
