//! What a session has under way: requests in both directions, the running turn,
//! and the place at the agent that it all belongs to.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::Value;
use tokio::time::Instant;
use uuid::Uuid;

use super::{Session, handle::LEAD, judging::Ruling, seats::Asked};
use crate::{
    agent::Process,
    approvals,
    frame::{Frame, Method},
    identity::Caller,
    pending::WireId,
    pool::Lease,
};

/// A request of the editor (or our own) that the agent has not answered.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) purpose: Purpose,
    /// Who asked.
    pub(super) seat: u32,
    /// The editor's id of it, raw; empty for our own.
    pub(super) editor_id: Bytes,
    /// The mode that it sets.
    pub(super) sets: Option<String>,
    /// The model that it sets at an agent that answers nothing to that.
    pub(super) sets_model: Option<String>,
    /// Its answer shows all options.
    pub(super) shows_options: bool,
}

impl Request {
    /// One of our own.
    pub(super) fn ours(purpose: Purpose) -> Self {
        Self {
            purpose,
            seat: LEAD,
            editor_id: Bytes::new(),
            sets: None,
            sets_model: None,
            shows_options: false,
        }
    }
}

impl Session {
    /// The id of a request of ours towards the editor.
    pub(super) fn editor_id(&self, number: u32) -> u64 {
        WireId { slot: self.link.slot, number }.value()
    }

    /// Notes a request to the agent and gives its id on the wire.
    pub(super) fn number(&mut self, request: Request) -> WireId {
        let number = self.requests.register(request);
        let slot = self.binding.as_ref().map_or(0, |binding| binding.slot);
        WireId { slot, number }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    Open,
    Prompt,
    Relay,
    /// Our own attempt to come back to the agent's session.
    Rebind,
    /// Our own `session/set_config_option` or `session/set_mode`.
    Wish,
    /// Our own request that a forbidden mode be left.
    SetBack,
    /// Our own `session/close`.
    Close,
}

/// A request of the agent that the editor has not answered.
#[derive(Debug)]
pub(super) struct Ask {
    /// The agent's id of it, raw.
    pub(super) agent_id: Bytes,
    pub(super) method: Method,
    /// The agent has withdrawn it; by then the answer is due.
    pub(super) withdrawn: Option<Instant>,
    /// A permission request as it came, for those who come later.
    pub(super) frame: Option<Bytes>,
    /// The answers that a permission request offers.
    pub(super) options: Vec<Offer>,
    /// Seats whose editor has answered it with anything but an option.
    pub(super) declined: Vec<u32>,
    /// What the policy has said to it.
    pub(super) ruling: Option<Ruling>,
    /// What waits for the answer to a question of our own.
    pub(super) held: Option<Held>,
    /// When it was asked.
    pub(super) asked: Instant,
    /// The tool call that it is about, and its input when people were asked.
    pub(super) expected: Option<(String, Value)>,
    /// Those who drive the session see it.
    pub(super) is_shown: bool,
    /// By then somebody must have answered.
    pub(super) due: Option<Instant>,
    /// Where approvers see it.
    pub(super) approval: Option<approvals::Open>,
    /// Who has answered it.
    pub(super) by: Option<Caller>,
}

/// What waits until somebody has allowed it.
#[derive(Debug)]
pub(super) enum Held {
    /// A request of the agent.
    Request(Frame),
    /// The opening of the session itself.
    Opening,
}

/// An answer that a permission request offers.
#[derive(Debug, Clone)]
pub(super) struct Offer {
    pub(super) id: String,
    pub(super) kind: OfferKind,
}

/// What an answer means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OfferKind {
    AllowOnce,
    AllowAlways,
    RejectOnce,
    RejectAlways,
    /// Something that is not in the protocol as we know it.
    Other,
}

impl OfferKind {
    pub(super) fn from_name(name: &str) -> Self {
        match name {
            "allow_once" => Self::AllowOnce,
            "allow_always" => Self::AllowAlways,
            "reject_once" => Self::RejectOnce,
            "reject_always" => Self::RejectAlways,
            _ => Self::Other,
        }
    }
}

impl Ask {
    pub(super) fn new(agent_id: Bytes, method: Method) -> Self {
        Self {
            agent_id,
            method,
            withdrawn: None,
            frame: None,
            options: Vec::new(),
            declined: Vec::new(),
            ruling: None,
            held: None,
            asked: Instant::now(),
            expected: None,
            is_shown: true,
            due: None,
            approval: None,
            by: None,
        }
    }

    /// Whether people are asked for permission.
    pub(super) fn is_permission(&self) -> bool {
        self.frame.is_some()
    }

    /// Whether this option would allow something.
    pub(super) fn allows(&self, option: &str) -> bool {
        let kinds = [OfferKind::AllowOnce, OfferKind::AllowAlways];
        self.options.iter().any(|offer| offer.id == option && kinds.contains(&offer.kind))
    }

    /// Whether a permission request offers this option.
    pub(super) fn offers(&self, option: &str) -> bool {
        self.options.iter().any(|offer| offer.id == option)
    }
}

/// The running turn.
#[derive(Debug)]
pub(super) struct Turn {
    /// Number of its prompt among the requests.
    pub(super) number: u32,
    /// Its record begins behind this number.
    pub(super) from_seq: u64,
    /// When its prompt was sent.
    pub(super) began: Instant,
    /// It was cancelled; by then it must have ended.
    pub(super) cancelled: Option<Instant>,
    /// What the agent has said in it, as far as that matters.
    pub(super) said: Said,
    /// The prompt, if another agent may have to take it.
    pub(super) prompt: Option<Asked>,
}

/// What an agent has said in a turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Said {
    Nothing,
    /// This text and nothing else.
    Only(String),
    /// More than could be an error.
    More,
}

/// The agent's side of the session.
#[derive(Debug)]
pub(super) struct Binding {
    pub(super) id: Uuid,
    pub(super) lease: Lease,
    pub(super) slot: u32,
    /// The agent's id of the session, with quotes; empty until it is told.
    pub(super) name: Bytes,
}

impl Binding {
    pub(super) fn process(&self) -> &Arc<Process> {
        &self.lease.process
    }
}
