//! How permission is asked for and given, as bytes: what an agent offers, what an
//! editor chooses, and how a request is put to people that asks for none itself.

use bytes::Bytes;
use serde_json::{Value, json};

use super::flight::{Offer, OfferKind};
use crate::{
    acp,
    frame::{Frame, Method},
    policy::text::shown,
};

/// Characters of a file's new content that stand in a question.
const CONTENT: usize = 64 << 10;

/// Characters of a command or a path that stand in a question.
const SHOWN: usize = 200;

/// The tool call that a permission request with these parameters is about.
pub(super) fn call_id(params: &Value) -> &str {
    params["toolCall"]["toolCallId"].as_str().unwrap_or_default()
}

/// What that call is given, as far as it is known: by the request, or by what was announced
/// before.
pub(super) fn input_of(params: &Value, earlier: &[Value]) -> Value {
    let known = std::iter::once(&params["toolCall"]).chain(earlier.iter().rev());
    let input = known.map(|update| &update["rawInput"]).find(|input| !input.is_null());
    input.cloned().unwrap_or_default()
}

/// The answers that a permission request offers.
pub(super) fn offers(params: &Value) -> Vec<Offer> {
    let options = params["options"].as_array().map(Vec::as_slice).unwrap_or_default();
    let offer = |option: &Value| {
        let kind = OfferKind::from_name(option["kind"].as_str().unwrap_or_default());
        Some(Offer { id: option["optionId"].as_str()?.to_string(), kind })
    };
    let mut offers: Vec<Offer> = options.iter().filter_map(offer).collect();
    // An id that names two answers says nothing of which is meant.
    let ids: Vec<String> = offers.iter().map(|offer| offer.id.clone()).collect();
    for offer in &mut offers {
        if ids.iter().filter(|id| **id == offer.id).count() > 1 {
            offer.kind = OfferKind::Other;
        }
    }
    offers
}

/// The first answer on offer of the first kind that there is.
pub(super) fn pick<'a>(offers: &'a [Offer], kinds: &[OfferKind]) -> Option<&'a str> {
    kinds
        .iter()
        .find_map(|kind| offers.iter().find(|offer| offer.kind == *kind))
        .map(|offer| offer.id.as_str())
}

/// The option that an answer to a permission request names.
pub(super) fn selected(answer: &Frame) -> Option<String> {
    let result: Value = answer.decode(answer.peek().outcome)?;
    let outcome = &result["outcome"];
    (outcome["outcome"] == "selected").then(|| outcome["optionId"].as_str().unwrap_or_default().to_string())
}

/// The answer on offer that allows nothing.
pub(super) fn rejection(offers: &[Offer]) -> Option<&str> {
    pick(offers, &[OfferKind::RejectOnce, OfferKind::RejectAlways])
}

/// Our own answer to a permission request, with what the agent may tell its model.
pub(super) fn chosen_answer(agent_id: &[u8], option: Option<&str>, why: &Value) -> Bytes {
    let outcome = match option {
        Some(option) => json!({ "outcome": "selected", "optionId": option }),
        None => json!({ "outcome": "cancelled" }),
    };
    let mut result = json!({ "outcome": outcome });
    if !why.is_null() {
        result["_meta"] = json!({ "conductor": why });
    }
    acp::result(agent_id, result.to_string().as_bytes())
}

/// How a request is put to people: its kind in ACP, a title, and what it has in it.
pub(super) fn described(method: Method, params: &Value) -> (&'static str, String, Value) {
    let shown = |text: &str| shown(text, SHOWN);
    let path = shown(params["path"].as_str().unwrap_or_default());
    match method {
        Method::FsRead => ("read", format!("Read {path}"), json!({ "path": params["path"] })),
        Method::FsWrite => {
            let content = params["content"].as_str().unwrap_or_default();
            let (content, rest) = content.split_at(content.floor_char_boundary(CONTENT));
            let more =
                if rest.is_empty() { String::new() } else { format!("\n… and {} bytes more", rest.len()) };
            let content = format!("{content}{more}");
            ("edit", format!("Write {path}"), json!({ "path": params["path"], "content": content }))
        }
        _ => {
            let args = params["args"].as_array().map(Vec::as_slice).unwrap_or_default();
            let words = params["command"].as_str().into_iter().chain(args.iter().filter_map(Value::as_str));
            let line = words.collect::<Vec<_>>().join(" ");
            let input = json!({
                "command": params["command"], "args": params["args"], "cwd": params["cwd"], "env": params["env"],
            });
            ("execute", format!("Run {}", shown(&line)), input)
        }
    }
}
