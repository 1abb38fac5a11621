//! Which updates of an agent only repeat what is on record: agents that load a
//! session tell its history again, some of them even to who resumes.

use crate::{
    frame::{Kind, Method, Peek},
    ledger::project::FrameView,
    record::{Destination, Origin},
};

/// The updates that tell history.
const HISTORY: [&str; 6] = [
    "user_message_chunk",
    "agent_message_chunk",
    "agent_thought_chunk",
    "tool_call",
    "tool_call_update",
    "plan",
];

/// Whether an agent is repeating what it said.
#[derive(Debug, Default)]
pub(super) struct Replay {
    /// The id of the request that makes it do so, and whether it may go on
    /// after the answer, up to the next prompt.
    running: Option<(String, bool)>,
}

impl Replay {
    /// Whether an agent's update of this sort is not news.
    pub(super) fn swallows(&self, kind: &str) -> bool {
        self.running.is_some() && HISTORY.contains(&kind)
    }

    pub(super) fn request(&mut self, frame: &FrameView<'_>, peek: &Peek, id: Option<&str>) {
        if frame.to != Destination::Agent {
            return;
        }
        match peek.method {
            Method::SessionPrompt if frame.outgoing.is_some() => self.running = None,
            Method::SessionLoad | Method::SessionResume => {
                let away = match frame.origin {
                    Origin::Conductor => id.map(ToOwned::to_owned),
                    _ => frame.outgoing.map(|id| id.to_string()),
                };
                let is_load = peek.method == Method::SessionLoad;
                self.running = away.map(|id| (id, is_load)).or(self.running.take());
            }
            _ => {}
        }
    }

    pub(super) fn answer(&mut self, frame: &FrameView<'_>, peek: &Peek, id: Option<&str>) {
        let is_over = |(asked, goes_on): &(String, bool)| {
            Some(asked.as_str()) == id && (!goes_on || peek.kind == Kind::Error)
        };
        if frame.origin == Origin::Agent && self.running.as_ref().is_some_and(is_over) {
            self.running = None;
        }
    }
}
