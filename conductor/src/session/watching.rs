//! Whether an agent keeps to what was decided: one that does things without
//! asking is reported, and one that changes a tool call after it was allowed
//! loses its turn.

use std::{
    borrow::Cow,
    collections::{HashMap, VecDeque},
};

use serde::Deserialize;
use serde_json::{Value, json, value::RawValue};
use tracing::warn;

use super::{Recorded, Session};
use crate::{
    policy::{Action, SubAction, text::shown},
    record::note,
};

/// Tool calls that are watched; of older ones nothing is expected.
const MOST: usize = 512;

/// Kinds of tool calls that change nothing.
const HARMLESS: [&str; 3] = ["read", "search", "think"];

/// What is known of the tool calls of a session.
#[derive(Debug, Default)]
pub(super) struct Watched {
    calls: HashMap<String, Call>,
    order: VecDeque<String>,
    /// Requests for files and terminals that were judged so far: a tool that works
    /// through these does not act unasked.
    judged: u64,
    is_reported: bool,
    /// What is to be told once the run that it was found in has been passed on.
    due: Vec<Finding>,
}

/// What an agent did that it should not have.
#[derive(Debug)]
enum Finding {
    /// A tool call has ended for which nobody was asked: its id.
    Unasked(String),
    /// A tool call was changed after it was allowed: its id, and what it would now do.
    Changed(String, Vec<SubAction>),
}

#[derive(Debug, Default)]
struct Call {
    kind: Option<String>,
    /// `judged`, when the call was first named.
    since: u64,
    is_decided: bool,
    is_over: bool,
    /// What was allowed, if it was.
    allowed: Option<Allowed>,
}

#[derive(Debug)]
struct Allowed {
    input: Value,
    actions: Vec<SubAction>,
}

impl Watched {
    fn call(&mut self, id: &str) -> &mut Call {
        if !self.calls.contains_key(id) {
            if self.order.len() >= MOST
                && let Some(oldest) = self.order.pop_front()
            {
                self.calls.remove(&oldest);
            }
            self.order.push_back(id.to_string());
        }
        let since = self.judged;
        self.calls.entry(id.to_string()).or_insert_with(|| Call { since, ..Call::default() })
    }

    /// A request for a file or a terminal was judged.
    pub(super) fn judged(&mut self) {
        self.judged += 1;
    }

    /// The agent has asked about a tool call.
    pub(super) fn asked(&mut self, id: &str) {
        self.call(id).is_decided = true;
    }

    /// It was allowed, as it was then.
    pub(super) fn allowed(&mut self, id: &str, input: Value, actions: Vec<SubAction>) {
        self.call(id).allowed = Some(Allowed { input, actions });
    }

    /// Turns are over, and ids may come again.
    pub(super) fn forget(&mut self) {
        self.calls.clear();
        self.order.clear();
    }
}

#[derive(Deserialize)]
struct Params<'a> {
    #[serde(borrow)]
    update: Update<'a>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Update<'a> {
    #[serde(borrow)]
    tool_call_id: Cow<'a, str>,
    #[serde(borrow, default)]
    kind: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    status: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    raw_input: Option<&'a RawValue>,
}

impl Session {
    /// The agent tells of a tool call, in an update of this kind.
    pub(super) fn watch_call(&mut self, kind: &[u8], params: &[u8]) {
        let read = serde_json::from_slice::<Params<'_>>(params).ok();
        self.judge.calls.hear(read.as_ref().map(|params| &*params.update.tool_call_id), params);
        let Some(Params { update }) = read else { return };
        let id = &*update.tool_call_id;
        let (judged, is_first) = (self.watched.judged, kind == b"\"tool_call\"");
        self.traced.tool(id, update.kind.as_deref(), update.status.as_deref());
        let call = self.watched.call(id);
        if call.is_over && is_first {
            // Some agents use an id again. Others tell twice that a call is over.
            *call = Call { since: judged, ..Call::default() };
        }
        if let Some(kind) = update.kind {
            call.kind = Some(kind.into_owned());
        }
        let is_over = matches!(update.status.as_deref(), Some("completed" | "failed"));
        let changes = !call.kind.as_deref().is_some_and(|kind| HARMLESS.contains(&kind));
        let unasked = is_over && changes && !call.is_decided && !call.is_over && judged == call.since;
        call.is_over |= is_over;
        let input = update.raw_input.and_then(|input| serde_json::from_str::<Value>(input.get()).ok());
        let changed = match (&call.allowed, input) {
            (Some(allowed), Some(input)) => !is_within(&input, &allowed.input),
            _ => false,
        };
        if unasked {
            let finding = Finding::Unasked(id.to_string());
            self.watched.due.push(finding);
        }
        if changed {
            self.check_changed(params);
        }
    }

    /// Tells what was found in a run.
    pub(super) fn tell_findings(&mut self) {
        for finding in std::mem::take(&mut self.watched.due) {
            match finding {
                Finding::Unasked(id) => self.report_unmediated(&id),
                Finding::Changed(id, actions) => self.report_changed(&id, &actions),
            }
        }
    }

    fn report_unmediated(&mut self, id: &str) {
        let shown = shown(&self.recorder.redacted(id), 100);
        warn!(tool_call = shown, "the agent acted without asking");
        self.open.metrics.unmediated.one();
        self.hand.entries.push(Recorded::Note(note::UNMEDIATED, json!({ "toolCallId": id })));
        if std::mem::replace(&mut self.watched.is_reported, true) {
            return;
        }
        let text = "The agent has done something without asking for permission. \
            `conductor policy coverage` shows how often; its own settings decide when it asks.";
        self.say_notice("warning", "Not asked", text);
    }

    /// What a tool call is given has changed since it was allowed. It may have been put
    /// in other words; what it would do must be the same.
    fn check_changed(&mut self, params: &[u8]) {
        let Ok(mut params) = serde_json::from_slice::<Value>(params) else { return };
        let update = params["update"].take();
        let id = update["toolCallId"].as_str().unwrap_or_default().to_string();
        // What the call is stays; only what it is given is compared.
        let mut earlier = self.judge.calls.of(&id);
        for update in &mut earlier {
            if let Some(members) = update.as_object_mut() {
                members.retain(|name, _| !["rawInput", "content", "locations"].contains(&name.as_str()));
            }
        }
        let actions =
            self.taken_apart(&Action::Permission { params: json!({ "toolCall": update }), earlier });
        let allowed = self.watched.call(&id).allowed.as_ref();
        if allowed.is_some_and(|allowed| !actions.iter().all(|action| allowed.actions.contains(action))) {
            self.watched.due.push(Finding::Changed(id, actions));
        }
    }

    fn report_changed(&mut self, id: &str, actions: &[SubAction]) {
        self.open.metrics.changed_calls.one();
        warn!(
            tool_call = shown(&self.recorder.redacted(id), 100),
            "a tool call was changed after it was allowed; the turn is cancelled"
        );
        self.hand
            .entries
            .push(Recorded::Note(note::CHANGED, json!({ "toolCallId": id, "subActions": actions })));
        let text = "The agent has changed a tool call after it was allowed. The turn is cancelled.";
        self.say_notice("error", "Changed after approval", text);
        self.cancel_unasked();
    }
}

/// Whether everything in an input was in what was allowed, word for word. Some agents leave
/// out members when they repeat an input.
fn is_within(input: &Value, allowed: &Value) -> bool {
    match (input.as_object(), allowed.as_object()) {
        (Some(input), Some(allowed)) => {
            input.iter().all(|(name, value)| value.is_null() || allowed.get(name) == Some(value))
        }
        _ => input == allowed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_watched_is_bounded() {
        let mut watched = Watched::default();
        for number in 0..3 * MOST {
            watched.asked(&number.to_string());
        }
        assert_eq!((watched.calls.len(), watched.order.len()), (MOST, MOST));
    }

    #[test]
    fn an_input_may_be_repeated_in_part_but_not_changed() {
        let allowed = json!({ "command": "ls", "cwd": "/w" });
        assert!(is_within(&json!({ "command": "ls" }), &allowed));
        assert!(is_within(&json!({ "command": "ls", "cwd": null }), &allowed));
        assert!(!is_within(&json!({ "command": "rm" }), &allowed));
        assert!(!is_within(&json!({ "command": "ls", "env": {} }), &allowed));
        assert!(!is_within(&json!("ls"), &allowed));
    }
}
