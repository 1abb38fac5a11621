//! The trace of what a session is doing for somebody: a prompt from its arrival to
//! its answer, or the opening of the session, with a step for each thing that took
//! time on the way.
//!
//! Where no collector is configured all spans are disabled: nothing is read from a
//! frame, and nothing is added to one.

use std::collections::HashMap;

use bytes::Bytes;
use serde_json::{Value, json};
use tracing::Span;

use super::{
    Session,
    judging::Ruling,
    members::{Members, with_members},
};
use crate::{
    frame::{Frame, Method},
    metrics::TurnEnd,
    telemetry::trace::{self, Parent, TRACEPARENT},
};

/// Tool calls whose spans are open; of more there are none.
const MOST_TOOLS: usize = 128;

/// Kinds of tool calls that the protocol knows; others are agents' own words.
const TOOLS: [&str; 9] =
    ["read", "edit", "delete", "move", "search", "execute", "think", "fetch", "switch_mode"];

/// What is being traced.
#[derive(Debug)]
pub(super) struct Traced {
    /// The request it is about: who asked, and with which id.
    of: Option<(u32, Bytes)>,
    root: Span,
    /// The way to a process.
    spawn: Span,
    tools: HashMap<String, Span>,
}

impl Default for Traced {
    fn default() -> Self {
        Self { of: None, root: Span::none(), spawn: Span::none(), tools: HashMap::new() }
    }
}

impl Traced {
    /// A step of it; none if nothing is traced.
    pub(super) fn step(&self, name: &'static str) -> Span {
        trace::step(&self.root, name)
    }

    /// A process is looked for.
    pub(super) fn spawns(&mut self, agent: &str) {
        self.spawn = self.step("spawn");
        self.spawn.record("agent", agent);
    }

    /// There is one, or there is none to be had.
    pub(super) fn spawned(&mut self) {
        self.spawn = Span::none();
    }

    fn is_of(&self, seat: u32, id: &[u8]) -> bool {
        self.of.as_ref().is_some_and(|(of, known)| *of == seat && known == id)
    }

    /// It has come to an end.
    pub(super) fn ended(&mut self, end: TurnEnd) {
        trace::ended(&self.root, end);
        *self = Self::default();
    }

    /// The agent tells of a tool call.
    pub(super) fn tool(&mut self, id: &str, kind: Option<&str>, status: Option<&str>) {
        if self.root.is_disabled() {
            return;
        }
        if !self.tools.contains_key(id) && self.tools.len() < MOST_TOOLS {
            self.tools.insert(id.to_owned(), self.step("tool"));
        }
        let Some(span) = self.tools.get(id) else { return };
        if let Some(kind) = kind {
            span.record("tool.kind", TOOLS.iter().find(|known| **known == kind).unwrap_or(&"other"));
        }
        if let Some(status @ ("completed" | "failed")) = status {
            span.record("outcome", status);
            self.tools.remove(id);
        }
    }
}

/// The context that a request names in its `_meta`. Read member by member: the rest of
/// it may hold numbers that fit no type.
fn named(frame: &Frame) -> Option<Parent> {
    let meta = Members::of(frame.get(frame.peek().params))?.get("_meta")?;
    let text: String = serde_json::from_str(Members::of(meta.as_bytes())?.get(TRACEPARENT)?).ok()?;
    Parent::read(&text)
}

/// A verdict of the policy, at its step.
pub(super) fn ruled(span: &Span, ruling: &Ruling) {
    if span.is_disabled() {
        return;
    }
    span.record("outcome", ruling.effect.name());
    if let Some(rule) = &ruling.verdict.rule {
        span.record("rule", rule.as_str());
    }
}

impl Session {
    /// From now on this request is traced, unless it is already. What waits behind
    /// another begins when its turn comes.
    pub(super) fn trace(&mut self, seat: u32, frame: &Frame) {
        let id = frame.get(frame.peek().id);
        if !trace::is_on() || self.traced.is_of(seat, id) {
            return;
        }
        let given = named(frame).or_else(|| self.open.traceparent.clone());
        let name = if frame.peek().method == Method::SessionPrompt { "turn" } else { "open" };
        let root = trace::root(name, given.as_ref(), self.open.id, self.agent());
        self.traced = Traced { of: Some((seat, Bytes::copy_from_slice(id))), root, ..Traced::default() };
    }

    /// The same for a prompt that waits for the agent, if nothing else is traced.
    pub(super) fn trace_waiting(&mut self, seat: u32, frame: &Frame) {
        if self.traced.of.is_none() && frame.peek().method == Method::SessionPrompt {
            self.trace(seat, frame);
        }
    }

    /// A request was answered without having gone anywhere.
    pub(super) fn trace_answered(&mut self, seat: u32, frame: &Frame, end: TurnEnd) {
        if self.traced.is_of(seat, frame.get(frame.peek().id)) {
            self.traced.ended(end);
        }
    }

    /// The prompt with the context that the agent is to go on with, and the context.
    /// It stands in the record beside the prompt, which is recorded as it came.
    pub(super) fn with_traceparent(&self, frame: &Frame) -> Option<(Frame, Value)> {
        let traceparent = trace::traceparent(&self.traced.root)?;
        let params = frame.get(frame.peek().params);
        let value = Value::from(traceparent.as_str());
        let edited = match Members::of(params)?.get("_meta") {
            Some(meta) if meta == "null" || Members::of(meta.as_bytes()).is_some() => {
                with_members(frame.bytes(), meta.as_bytes(), &[(TRACEPARENT, value.to_string())])
            }
            // Whatever that is, it is the editor's.
            Some(_) => None,
            None => {
                let meta = json!({ TRACEPARENT: value }).to_string();
                with_members(frame.bytes(), params, &[("_meta", meta)])
            }
        };
        Some((Frame::parse(edited?).ok()?, json!({ TRACEPARENT: value })))
    }
}
