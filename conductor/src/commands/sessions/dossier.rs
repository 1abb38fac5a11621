//! Everything that is known of one session, and the order in which it happened.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;

use crate::{
    commands::terminal::harmless,
    ledger::history::{Command, Decision, Entry, FileAccess, Frame, Message, Session, ToolCall, Turn, Usage},
};

/// A session and what it did.
#[derive(Debug, Default, Serialize)]
pub(super) struct Dossier {
    pub(super) session: Session,
    pub(super) turns: Vec<Turn>,
    pub(super) messages: Vec<Message>,
    pub(super) tool_calls: Vec<ToolCall>,
    pub(super) file_accesses: Vec<FileAccess>,
    pub(super) commands: Vec<Command>,
    pub(super) usage: Vec<Usage>,
    pub(super) decisions: Vec<Decision>,
    /// Changes as the content of tool calls had them, by the call's number.
    #[serde(skip)]
    pub(super) diffs: BTreeMap<i64, Vec<Value>>,
}

/// Something that happened.
#[derive(Debug, Clone, Copy)]
pub(super) enum Event<'a> {
    Prompt(&'a Turn),
    Message(&'a Message),
    ToolCall(&'a ToolCall),
    Decision(&'a Decision),
    /// What belongs to a tool call is told with it.
    Command(&'a Command),
    FileAccess(&'a FileAccess),
    Ended(&'a Turn),
}

impl Dossier {
    pub(super) fn new(session: Session) -> Self {
        Self { session, ..Self::default() }
    }

    pub(super) fn add(&mut self, entry: Entry) {
        match entry {
            Entry::Turn(turn) => self.turns.push(turn),
            Entry::Message(message) => self.messages.push(message),
            Entry::ToolCall(call) => self.tool_calls.push(call),
            Entry::FileAccess(access) => self.file_accesses.push(access),
            Entry::Command(command) => self.commands.push(command),
            Entry::Usage(usage) => self.usage.push(usage),
            Entry::Decision(decision) => self.decisions.push(decision),
        }
    }

    /// Takes the changes that a frame tells of, if it does. A later frame of a
    /// call repeats all that it changes.
    pub(super) fn learn_diffs(&mut self, frame: &Frame) {
        let (id, diffs) = diffs(&frame.raw);
        let seq = i64::try_from(frame.seq).unwrap_or(i64::MAX);
        // An id may be used again: the last call that has begun is meant.
        let mut same = self.tool_calls.iter().filter(|call| call.call <= seq && call.tool_call_id == id);
        if let Some(call) = same.next_back().filter(|_| !diffs.is_empty()) {
            self.diffs.insert(call.call, diffs);
        }
    }

    /// What happened, in order.
    pub(super) fn events(&self) -> Vec<Event<'_>> {
        let mut events: Vec<(i64, Event<'_>)> = Vec::new();
        events.extend(self.turns.iter().map(|turn| (turn.turn, Event::Prompt(turn))));
        events.extend(self.messages.iter().map(|message| (message.message, Event::Message(message))));
        events.extend(self.tool_calls.iter().map(|call| (call.call, Event::ToolCall(call))));
        events.extend(self.decisions.iter().map(|decision| (decision.seq, Event::Decision(decision))));
        let alone = self.commands.iter().filter(|command| !self.has_call(command.call));
        events.extend(alone.map(|command| (command.seq, Event::Command(command))));
        // The others are told by the prompt or the call that names them.
        let asked = self.file_accesses.iter().filter(|access| access.source.as_deref() == Some("fs"));
        events.extend(asked.map(|access| (access.seq, Event::FileAccess(access))));
        let ends = self.turns.iter().filter_map(|turn| Some((turn.ended_seq?, Event::Ended(turn))));
        events.extend(ends);
        events.sort_by_key(|(seq, _)| *seq);
        events.into_iter().map(|(_, event)| event).collect()
    }

    fn has_call(&self, call: Option<i64>) -> bool {
        call.is_some_and(|call| self.tool_calls.iter().any(|known| known.call == call))
    }

    /// The commands of a tool call.
    pub(super) fn commands_of(&self, call: i64) -> impl Iterator<Item = &Command> {
        self.commands.iter().filter(move |command| command.call == Some(call))
    }

    /// What a turn took, added up: tokens read, tokens written, money.
    pub(super) fn spent(&self, turn: i64) -> Spent {
        let mut spent = Spent::default();
        for usage in self.usage.iter().filter(|usage| usage.turn == Some(turn)) {
            spent.add(usage);
        }
        spent
    }

    /// The same for the session.
    pub(super) fn spent_in_all(&self) -> Spent {
        let mut spent = Spent::default();
        self.usage.iter().for_each(|usage| spent.add(usage));
        spent
    }

    /// For machines: every row by the name of its table.
    pub(super) fn as_json(&self) -> Result<String, String> {
        let text = serde_json::to_string_pretty(self);
        text.map(|text| harmless(text) + "\n").map_err(|error| format!("cannot write JSON: {error}"))
    }
}

/// What something took.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Spent {
    pub(super) input: i64,
    pub(super) output: i64,
    pub(super) total: i64,
    /// By currency.
    pub(super) cost: BTreeMap<String, f64>,
}

impl Spent {
    fn add(&mut self, usage: &Usage) {
        self.input += usage.input_tokens.unwrap_or_default();
        self.output += usage.output_tokens.unwrap_or_default();
        self.total += usage.total_tokens.unwrap_or_default();
        if let Some(cost) = usage.cost.filter(|cost| *cost != 0.0) {
            *self.cost.entry(usage.currency.clone().unwrap_or_default()).or_default() += cost;
        }
    }

    /// In words; nothing if nothing was reported.
    pub(super) fn parts(&self) -> Vec<String> {
        let count =
            |number: i64| crate::commands::turn_usage::count(u64::try_from(number).unwrap_or_default());
        let mut parts = Vec::new();
        if self.input > 0 || self.output > 0 {
            parts.push(format!("{} tokens in, {} out", count(self.input), count(self.output)));
        } else if self.total > 0 {
            parts.push(format!("{} tokens", count(self.total)));
        }
        for (currency, cost) in &self.cost {
            let digits = if cost.abs() < 1.0 { 4 } else { 2 };
            let currency = crate::frame::escape(currency.as_bytes(), 10);
            parts.push(format!("{cost:.digits$} {currency}").trim().to_owned());
        }
        parts
    }
}

/// The changes that a frame tells of, and the tool call they belong to.
fn diffs(raw: &[u8]) -> (Option<String>, Vec<Value>) {
    // Most frames have none, and need not be parsed for that.
    if memchr::memmem::find(raw, b"\"diff\"").is_none() {
        return (None, Vec::new());
    }
    let frame: Value = serde_json::from_slice(raw).unwrap_or_default();
    let params = &frame["params"];
    let told = if params["toolCall"].is_object() { &params["toolCall"] } else { &params["update"] };
    let items = told["content"].as_array().into_iter().flatten();
    let diffs = items.filter(|item| item["type"] == "diff").cloned().collect();
    (told["toolCallId"].as_str().map(str::to_owned), diffs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_reported_is_added_up() {
        let mut dossier = Dossier::new(Session::default());
        let usage = |turn, input, cost| Usage {
            turn: Some(turn),
            input_tokens: input,
            output_tokens: input,
            cost,
            currency: Some("USD".into()),
            ..Usage::default()
        };
        for report in [usage(1, Some(1000), Some(0.25)), usage(1, None, Some(0.5)), usage(9, Some(1), None)] {
            dossier.add(Entry::Usage(report));
        }
        assert_eq!(dossier.spent(1).parts(), ["1,000 tokens in, 1,000 out", "0.7500 USD"]);
        assert_eq!(dossier.spent(2).parts(), Vec::<String>::new());
        assert_eq!(dossier.spent_in_all().input, 1001);
    }

    #[test]
    fn changes_are_found_where_frames_have_them() {
        let mut dossier = Dossier::new(Session::default());
        let call = |call, id: &str| {
            Entry::ToolCall(ToolCall { call, tool_call_id: Some(id.into()), ..ToolCall::default() })
        };
        [call(2, "a"), call(5, "b"), call(9, "a")].into_iter().for_each(|call| dossier.add(call));
        let mut learn = |seq, raw: &str| {
            let raw = raw.as_bytes().to_vec();
            let (origin, destination) = (String::new(), String::new());
            dossier.learn_diffs(&Frame { seq, at_us: 0, origin, destination, outgoing_id: None, raw });
        };
        let diff = r#"{"type":"diff","path":"/x","newText":"y"}"#;
        learn(
            3,
            &format!(
                r#"{{"params":{{"update":{{"toolCallId":"a","content":[{diff},{{"type":"content"}}]}}}}}}"#
            ),
        );
        learn(6, &format!(r#"{{"params":{{"toolCall":{{"toolCallId":"b","content":[{diff},{diff}]}}}}}}"#));
        // Says nothing new of it, is none, or belongs to nothing.
        learn(7, r#"{"params":{"update":{"toolCallId":"b","content":[]}}}"#);
        learn(8, r#""diff""#);
        learn(8, &format!(r#"{{"params":{{"update":{{"toolCallId":"c","content":[{diff}]}}}}}}"#));
        let learned: Vec<_> = dossier.diffs.iter().map(|(call, diffs)| (*call, diffs.len())).collect();
        assert_eq!(learned, [(2, 1), (5, 2)]);
    }
}
