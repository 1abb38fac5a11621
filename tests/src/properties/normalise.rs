//! What agents ask for, in whichever words.

use conductor::policy::{Action, Effect, SubAction, explain::Question, has_duplicate_keys, text};
use serde_json::{Value, json};

use super::{decision, is_odd, taken_apart};

/// Any JSON, read as an action, as a request for permission, as a terminal's parameters
/// and as arguments of a tool: it comes to something, a record keeps what it comes to,
/// and what is left out or said twice is not allowed.
pub fn normalise(data: &[u8]) {
    let Ok(value) = serde_json::from_slice::<Value>(data) else { return };
    let asked = format!("{{\"action\":{}}}", String::from_utf8_lossy(data));
    if has_duplicate_keys(data) {
        assert!(Question::from_json(asked.as_bytes()).is_err(), "it says two things");
    }
    if let Ok(action) = Action::from_json(&value) {
        judge(&action);
    }
    judge(&Action::Terminal(value.clone()));
    judge(&Action::Elicitation(value.clone()));
    judge(&Action::Mcp { server: "s".into(), tool: "t".into(), arguments: value.clone() });
    permission(value.clone());
    permission(json!({ "toolCall": value }));
}

/// The request itself, the request without its input, and the input as it was told before.
fn permission(params: Value) {
    let of = |params: &Value, earlier: &[Value]| Action::Permission {
        params: params.clone(),
        earlier: earlier.to_vec(),
    };
    judge(&of(&params, &[]));
    judge(&of(&params, std::slice::from_ref(&params["toolCall"])));
    let mut without = params;
    let Some(call) = without.get_mut("toolCall").and_then(Value::as_object_mut) else { return };
    for key in ["rawInput", "content", "locations"] {
        call.remove(key);
    }
    without.as_object_mut().into_iter().for_each(|params| drop(params.remove("subject")));
    let found = taken_apart(&of(&without, &[]));
    // Some tools are of no consequence outside of the agent, whatever they are given.
    let is_inner = |action: &SubAction| matches!(action, SubAction::Tool { .. } | SubAction::Mode { .. });
    assert!(
        decision(&found) != Effect::Allow || found.iter().all(is_inner),
        "{without} was allowed, and has no input"
    );
}

fn judge(action: &Action) {
    let found = taken_apart(action);
    assert!(!found.is_empty(), "{action:?} comes to nothing");
    assert_eq!(found, taken_apart(action));
    for each in &found {
        let shown = each.in_words(200);
        assert_eq!(text::hidden(&shown), None, "{shown:?} is shown to people");
        let kept = serde_json::to_string(each).unwrap();
        assert_eq!(serde_json::from_str::<SubAction>(&kept).unwrap(), *each, "a record tells it differently");
    }
    assert!(decision(&found) != Effect::Allow || !found.iter().any(is_odd), "{action:?} was allowed");
}
