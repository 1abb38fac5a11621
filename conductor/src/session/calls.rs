//! What an agent has told of its tool calls, until it asks for permission: the
//! request need not repeat what the call is about.

use std::collections::VecDeque;

use serde_json::Value;

/// Updates that are remembered; an agent asks soon after it has announced a call.
const MOST: usize = 128;

/// Bytes of them; what is longer than a quarter of that is forgotten, and the request
/// has to speak for itself.
const MOST_BYTES: usize = 1 << 20;

/// The updates about tool calls that came last, as they came, with the id of the call.
#[derive(Debug, Default)]
pub(super) struct Calls {
    kept: VecDeque<(Box<str>, Box<[u8]>)>,
    size: usize,
}

impl Calls {
    /// Remembers the params of an update, and which call it is about, if whoever read them
    /// could tell.
    pub(super) fn hear(&mut self, id: Option<&str>, params: &[u8]) {
        if params.len() > MOST_BYTES / 4 {
            return;
        }
        // One with a strange member is still about a call.
        let Some(id) = id.map(Box::from).or_else(|| call_of(params)) else { return };
        self.size += id.len() + params.len();
        self.kept.push_back((id, params.into()));
        while self.kept.len() > MOST || self.size > MOST_BYTES {
            let gone = self.kept.pop_front();
            self.size -= gone.map_or(0, |(id, params)| id.len() + params.len());
        }
    }

    /// The updates about one tool call, oldest first.
    pub(super) fn of(&self, id: &str) -> Vec<Value> {
        let of_call = self.kept.iter().filter(|(of, _)| **of == *id);
        let update = |params: &[u8]| Some(serde_json::from_slice::<Value>(params).ok()?["update"].take());
        of_call.filter_map(|(_, params)| update(params)).collect()
    }

    /// The agent's process has ended; its ids may come again and mean something else.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }
}

fn call_of(params: &[u8]) -> Option<Box<str>> {
    let params: Value = serde_json::from_slice(params).ok()?;
    params["update"]["toolCallId"].as_str().map(Box::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_told_of_a_call_is_found_within_bounds() {
        let mut calls = Calls::default();
        let update = |id: &str, text: &str| {
            format!(r#"{{"sessionId":"s","update":{{"toolCallId":"{id}","title":"{text}"}}}}"#)
        };
        calls.hear(Some("a"), update("a", "first").as_bytes());
        calls.hear(Some("b"), update("b", "other").as_bytes());
        calls.hear(None, update("a", "second").as_bytes());
        calls.hear(Some("a"), update("a", &"x".repeat(MOST_BYTES)).as_bytes());
        let titles: Vec<Value> = calls.of("a").into_iter().map(|update| update["title"].clone()).collect();
        assert_eq!(titles, ["first", "second"]);
        for _ in 0..2 * MOST {
            calls.hear(Some("c"), update("c", &"y".repeat(10_000)).as_bytes());
        }
        assert!(calls.size <= MOST_BYTES && calls.kept.len() <= MOST);
        assert!(calls.of("a").is_empty());
    }
}
